//! Executions: submitting, idempotency, reading, listing.

use serde_json::{Value, json};

use crate::api::testing::{Answered, Node, each};
use crate::time::Millis;

const COLLECTION: &str = "/v1/tenants/default/executions";
const BATCH: &str = "/v1/tenants/default/executions:batch";

fn ids(list: &Answered) -> Vec<&str> {
    each(list.body["items"].as_array().unwrap(), "execution_id")
}

#[tokio::test]
async fn a_submission_is_created_with_a_minted_id_and_read_back() {
    let node = Node::leading();
    let body = r#"{"kind":"mail","queue":"email","payload":{"n":1.50},"delay":"5m","priority":9}"#;
    let headers = [(
        "traceparent",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    )];
    let made = node
        .ask_with("POST", COLLECTION, body, &headers)
        .await
        .must(201);
    assert_eq!(made.header("x-outcome"), "created");
    let id = made.body["execution_id"].as_str().unwrap();
    let got = node
        .ask("GET", &format!("{COLLECTION}/{id}"), "")
        .await
        .must(200);
    assert_eq!(got.body["state"], "waiting");
    assert_eq!(got.body["due_at"], "2026-03-01T08:05:00.000Z");
    assert_eq!(got.body["traceparent"], headers[0].1);
    assert_eq!(got.body["queue"], "email");
    assert!(
        got.reply
            .body
            .windows(18)
            .any(|w| w == br#""payload":{"n":1.5"#)
    );
    let basic = node
        .ask("GET", &format!("{COLLECTION}/{id}?view=basic"), "")
        .await
        .must(200);
    assert!(basic.body.get("payload").is_none());
    let queue = node
        .ask("GET", "/v1/queues/email/stats", "")
        .await
        .must(200);
    assert_eq!(queue.body["backlog"]["waiting"], 1);
}

#[tokio::test]
async fn a_chosen_id_is_unique_by_content() {
    let node = Node::leading();
    let body = r#"{"execution_id":"order-7","kind":"mail","payload":{"a":1,"b":2}}"#;
    node.ask("POST", COLLECTION, body).await.must(201);
    let same = r#"{ "payload": {"b":2, "a":1}, "kind":"mail", "execution_id":"order-7" }"#;
    let again = node.ask("POST", COLLECTION, same).await.must(200);
    assert_eq!(again.header("x-outcome"), "existing");
    let other = node
        .ask("POST", COLLECTION, &body.replace("mail", "fax"))
        .await
        .must(409);
    assert_eq!(other.code(), "id_conflict");
    let stats = node
        .ask("GET", "/v1/queues/default/stats", "")
        .await
        .must(200);
    assert_eq!(stats.body["backlog"]["ready"], 1);
}

#[tokio::test]
async fn an_idempotency_key_replays_one_body_in_one_scope() {
    let node = Node::leading();
    node.ask("PUT", "/v1/tenants/other", "{}").await.must(201);
    let key = [("idempotency-key", "K-1")];
    let body = r#"{"kind":"mail","payload":{"a":1,"b":[1,2]}}"#;
    let first = node
        .ask_with("POST", COLLECTION, body, &key)
        .await
        .must(201);
    let id = &first.body["execution_id"];
    let reordered = "{\n \"payload\" : {\"b\":[1,2],\"a\":1}, \"kind\":\"mail\"}";
    for repeat in [body, reordered] {
        let again = node
            .ask_with("POST", COLLECTION, repeat, &key)
            .await
            .must(201);
        assert_eq!(&again.body["execution_id"], id);
        assert_eq!(again.header("idempotency-replayed"), "true");
    }
    let conflict = node
        .ask_with("POST", COLLECTION, &body.replace("1,2", "2,1"), &key)
        .await
        .must(422);
    assert_eq!(conflict.code(), "idempotency_conflict");
    let other = node
        .ask_with("POST", "/v1/tenants/other/executions", body, &key)
        .await
        .must(201);
    assert_ne!(&other.body["execution_id"], id);
    let cancel = format!("{COLLECTION}/{}:trigger", id.as_str().unwrap());
    node.ask_with("POST", &cancel, "", &key).await.must(404);
    let batch = json!({"items": [{"kind": "mail"}]}).to_string();
    let elsewhere = node.ask_with("POST", BATCH, &batch, &key).await.must(200);
    assert_eq!(elsewhere.body["items"][0]["outcome"], "created");
    let stats = node
        .ask("GET", "/v1/queues/default/stats", "")
        .await
        .must(200);
    assert_eq!(stats.body["backlog"]["ready"], 3);
    for bad in ["", "a b", &"k".repeat(257)] {
        let answer = node
            .ask_with("POST", COLLECTION, body, &[("idempotency-key", bad)])
            .await
            .must(400);
        assert_eq!(answer.pointer(), "header:idempotency-key");
    }
}

#[tokio::test]
async fn a_repeat_is_answered_although_its_time_has_passed_meanwhile() {
    let node = Node::leading();
    let key = [("idempotency-key", "K-2")];
    let body = r#"{"kind":"mail","due_at":"2026-03-01T08:00:10Z","past":"reject"}"#;
    let first = node
        .ask_with("POST", COLLECTION, body, &key)
        .await
        .must(201);
    node.wait(Millis::minutes(1));
    let again = node
        .ask_with("POST", COLLECTION, body, &key)
        .await
        .must(201);
    assert_eq!(first.body["execution_id"], again.body["execution_id"]);
    let fresh = node.ask("POST", COLLECTION, body).await.must(422);
    assert_eq!(fresh.pointer(), "/due_at");
}

#[tokio::test]
async fn a_key_under_way_is_told_to_come_back() {
    let node = Node::leading();
    let request =
        crate::api::testing::request("POST", COLLECTION, b"{}", &[("idempotency-key", "K")]);
    let call = crate::api::call::Call {
        request,
        path: std::collections::BTreeMap::new(),
        query: Vec::new(),
        actor: crate::command::Actor::Anonymous,
    };
    let held = node.api.keyed(&call).unwrap();
    let error = node.api.keyed(&call).unwrap_err();
    assert_eq!(error.code.as_str(), "idempotency_in_progress");
    drop(held);
    assert!(node.api.keyed(&call).is_ok());
}

#[tokio::test]
async fn a_batch_repeated_under_its_key_answers_the_first_results() {
    let node = Node::leading();
    let key = [("idempotency-key", "B")];
    let body = json!({"items": [{"kind": "a"}, {"kind": "b c"}, {"kind": "d"}]}).to_string();
    let first = node.ask_with("POST", BATCH, &body, &key).await.must(200);
    let again = node.ask_with("POST", BATCH, &body, &key).await.must(200);
    assert_eq!(first.body, again.body);
    assert_eq!(first.body["items"][1]["result"]["status"], 422);
    let longer =
        json!({"items": [{"kind": "a"}, {"kind": "x"}, {"kind": "d"}, {"kind": "e"}]}).to_string();
    let other = node.ask_with("POST", BATCH, &longer, &key).await.must(422);
    assert_eq!(other.code(), "idempotency_conflict");
    let stats = node
        .ask("GET", "/v1/queues/default/stats", "")
        .await
        .must(200);
    assert_eq!(stats.body["backlog"]["ready"], 2);
}

#[tokio::test]
async fn batches_have_a_stated_limit_and_answer_duplicates() {
    let node = Node::leading();
    let items = |n: usize| json!({"items": vec![json!({"kind": "a"}); n]}).to_string();
    for n in [999, 1_000] {
        let answer = node.ask("POST", BATCH, &items(n)).await.must(200);
        assert_eq!(answer.body["items"].as_array().unwrap().len(), n);
    }
    for n in [0, 1_001] {
        let answer = node.ask("POST", BATCH, &items(n)).await.must(422);
        assert_eq!(answer.pointer(), "/items");
    }
    let over = node.ask("POST", BATCH, &items(1_001)).await;
    assert!(
        over.body["detail"].as_str().unwrap().contains("1000"),
        "{}",
        over.body
    );
    let stats = node
        .ask("GET", "/v1/queues/default/stats", "")
        .await
        .must(200);
    assert_eq!(stats.body["backlog"]["ready"], 1_999);
    let limits = node.ask("GET", "/v1/limits", "").await.must(200);
    let batch = limits.body["limits"]
        .as_array()
        .unwrap()
        .iter()
        .find(|l| l["name"] == "batch_items");
    assert_eq!(batch.unwrap()["max"], 1_000);
    let twins = json!({"items": [
        {"execution_id": "t", "kind": "a"}, {"execution_id": "t", "kind": "a"}, {"execution_id": "t", "kind": "b"},
    ]}).to_string();
    let answer = node.ask("POST", BATCH, &twins).await.must(200);
    let outcomes: Vec<_> = answer.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|i| i["result"]["status"].as_u64().unwrap())
        .collect();
    assert_eq!(outcomes, [201, 200, 409]);
    let dry = node
        .ask("POST", &format!("{BATCH}?dry_run=true"), &twins)
        .await
        .must(200);
    assert_eq!(dry.body["items"][0]["result"]["status"], 200);
}

#[tokio::test]
async fn a_unique_key_is_held_and_named() {
    let node = Node::leading();
    let body = |conflict: &str| {
        format!(r#"{{"kind":"a","unique":{{"key":"u","on_conflict":"{conflict}"}}}}"#)
    };
    let first = node
        .ask("POST", COLLECTION, &body("reject"))
        .await
        .must(201);
    let held = node
        .ask("POST", COLLECTION, &body("reject"))
        .await
        .must(409);
    assert_eq!(held.code(), "unique_key_held");
    assert_eq!(held.body["blocker"], first.body["execution_id"]);
    let existing = node
        .ask("POST", COLLECTION, &body("return_existing"))
        .await
        .must(200);
    assert_eq!(existing.body["execution_id"], first.body["execution_id"]);
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_result_ends_with_the_present_state() {
    let node = Node::leading();
    let made = node
        .ask("POST", COLLECTION, r#"{"execution_id":"e","kind":"a"}"#)
        .await
        .must(201);
    let before = tokio::time::Instant::now();
    let target = format!("{COLLECTION}/e?wait_ms=2000");
    let waited = node.ask("GET", &target, "").await.must(200);
    assert_eq!(waited.body["state"], made.body["state"]);
    assert_eq!(before.elapsed().as_secs(), 2);
    node.ask("GET", &format!("{COLLECTION}/none?wait_ms=2000"), "")
        .await
        .must(404);
    node.ask("GET", &format!("{COLLECTION}/e?wait_ms=60001"), "")
        .await
        .must(400);
}

#[tokio::test]
async fn open_executions_are_listed_newest_first_with_filters_bound_into_the_cursor() {
    let node = Node::leading();
    let items: Vec<Value> = (0..30)
        .map(|i| {
            json!({
                "execution_id": format!("e{i:02}"), "kind": if i % 3 == 0 { "x" } else { "y" },
                "delay": format!("{i}m"), "labels": {"half": (i / 15).to_string()},
            })
        })
        .collect();
    node.ask("POST", BATCH, &json!({"items": items}).to_string())
        .await
        .must(200);
    let first = node
        .ask("GET", &format!("{COLLECTION}?kind=x&page_size=4"), "")
        .await
        .must(200);
    assert_eq!(ids(&first), ["e27", "e24", "e21", "e18"]);
    let cursor = first.body["next_cursor"].as_str().unwrap();
    let next = node
        .ask(
            "GET",
            &format!("{COLLECTION}?page_size=4&cursor={cursor}"),
            "",
        )
        .await
        .must(200);
    assert_eq!(ids(&next), ["e15", "e12", "e09", "e06"]);
    for (filter, count) in [
        ("state=waiting", 29),
        ("state=ready", 1),
        ("state=succeeded", 0),
        ("label=half%3D1", 15),
        (
            "due_from=2026-03-01T08:10:00Z&due_to=2026-03-01T08:20:00Z",
            10,
        ),
        ("queue=nowhere", 0),
        ("schedule=none", 0),
    ] {
        let page = node
            .ask("GET", &format!("{COLLECTION}?{filter}"), "")
            .await
            .must(200);
        assert_eq!(ids(&page).len(), count, "{filter}");
        assert_eq!(page.body["next_cursor"], Value::Null, "{filter}");
    }
    for bad in [
        "state=asleep",
        "due_from=soon",
        "schedule=Not%20One",
        "view=wide",
    ] {
        node.ask("GET", &format!("{COLLECTION}?{bad}"), "")
            .await
            .must(400);
    }
    let dead = node
        .ask("GET", "/v1/tenants/default/dead-letters", "")
        .await
        .must(200);
    assert!(ids(&dead).is_empty());
}

#[tokio::test]
async fn oversized_payloads_are_refused_with_the_limit() {
    let node = Node::leading();
    let body = json!({"kind": "a", "payload": "x".repeat(262_143)}).to_string();
    let answer = node.ask("POST", COLLECTION, &body).await.must(413);
    assert_eq!(
        (answer.code(), answer.pointer()),
        ("payload_too_large", "/payload")
    );
    assert!(answer.body["detail"].as_str().unwrap().contains("262144"));
    let fits = json!({"kind": "a", "payload": "x".repeat(262_142)}).to_string();
    node.ask("POST", COLLECTION, &fits).await.must(201);
}

#[tokio::test]
async fn what_is_open_cannot_be_deleted() {
    let node = Node::leading();
    node.ask("POST", COLLECTION, r#"{"execution_id":"e","kind":"a"}"#)
        .await
        .must(201);
    let path = format!("{COLLECTION}/e");
    assert_eq!(
        node.ask("DELETE", &path, "").await.must(409).code(),
        "not_final"
    );
    let dry = format!("{path}?dry_run=true");
    assert_eq!(
        node.ask("DELETE", &dry, "").await.must(409).code(),
        "not_final"
    );
    let gone = format!("{COLLECTION}/none");
    assert_eq!(
        node.ask("DELETE", &gone, "").await.must(404).code(),
        "execution_not_found"
    );
}

#[tokio::test]
async fn final_executions_are_listed_newest_first_over_their_buckets_and_deleted() {
    let node = Node::leading();
    let cancel = |id: String| format!("{COLLECTION}/{id}:cancel");
    for i in 0..40 {
        let body = json!({"execution_id": format!("e{i:02}"), "kind": "a", "delay": "5d"});
        node.ask("POST", COLLECTION, &body.to_string())
            .await
            .must(201);
    }
    // They end on different days, so in different buckets of history.
    for i in [3, 20, 7, 39, 11, 0] {
        node.wait(Millis::days(2));
        let answer = node
            .ask("POST", &cancel(format!("e{i:02}")), r#"{"reason":"no"}"#)
            .await
            .must(200);
        assert_eq!(answer.body["outcome"], "cancelled");
    }
    let again = node.ask("POST", &cancel("e03".into()), "").await.must(200);
    assert_eq!(again.body["outcome"], "already_final");
    let cancelled = format!("{COLLECTION}?state=cancelled");
    let seen = node.pages(&cancelled, 4).await;
    let newest_first = ["e39", "e20", "e11", "e07", "e03", "e00"];
    assert_eq!(each(&seen, "execution_id"), newest_first);
    // Open ones first, then final ones, each once, whatever the size of a page.
    let all = node.pages(COLLECTION, 17).await;
    assert_eq!(all.len(), 40);
    assert_eq!(each(&all[34..], "execution_id"), newest_first);
    let shown = node
        .ask("GET", &format!("{COLLECTION}/e03"), "")
        .await
        .must(200);
    assert_eq!(shown.body["state"], "cancelled");
    assert_eq!(shown.body["final_reason"], "cancel_requested");
    assert_eq!(shown.body["cancel"]["reason"], "no");
    node.ask("DELETE", &format!("{COLLECTION}/e03"), "")
        .await
        .must(204);
    node.ask("GET", &format!("{COLLECTION}/e03"), "")
        .await
        .must(404);
}

#[tokio::test]
async fn a_schedule_finds_its_own_executions_open_and_final() {
    let node = Node::leading();
    let schedule = "/v1/tenants/default/schedules/tick";
    node.ask("PUT", schedule, r#"{"rule":{"every":"10s"}}"#)
        .await
        .must(201);
    node.ask("POST", COLLECTION, r#"{"kind":"other"}"#)
        .await
        .must(201);
    node.wait(Millis::secs(31));
    node.ask("PUT", schedule, r#"{"rule":{"every":"10s"},"priority":1}"#)
        .await
        .must(200);
    let list = format!("{COLLECTION}?schedule=tick");
    let open = node.ask("GET", &list, "").await.must(200);
    let items = open.body["items"].as_array().unwrap().clone();
    assert_eq!(items.len(), 3);
    let first = items[1]["execution_id"].as_str().unwrap();
    node.ask("POST", &format!("{COLLECTION}/{first}:cancel"), "")
        .await
        .must(200);
    let states = ["ready", "ready", "cancelled"];
    assert_eq!(each(&node.pages(&list, 10).await, "state"), states);
    let ledger = format!("{schedule}/occurrences");
    assert_eq!(each(&node.pages(&ledger, 10).await, "state"), states);
    let shown = node.ask("GET", schedule, "").await.must(200);
    assert_eq!(shown.body["status"]["last"]["execution_id"], first);
    assert_eq!(shown.body["status"]["totals"]["cancelled"], 1);
}
