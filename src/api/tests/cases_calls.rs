//! Patches, names, instants, keys, cursors and bulk calls at their edges.

use serde_json::{Value, json};

use crate::api::testing::Node;

const SCHEDULE: &str = "/v1/tenants/default/schedules/x";
const SCHEDULES: &str = "/v1/tenants/default/schedules";
const EXECUTIONS: &str = "/v1/tenants/default/executions";

/// A merge patch says by `null` what goes; a misspelt removal must not pass for a done one.
#[tokio::test]
async fn a_patch_names_only_what_there_is() {
    let node = Node::leading();
    let body = r#"{"rule":{"every":"1h"},"labels":{"a":"1"},"payload":{"b":1,"c":2}}"#;
    node.ask("PUT", SCHEDULE, body).await.must(201);
    for (patch, pointer) in [
        (r#"{"prioritty":null}"#, "/prioritty"),
        (r#"{"prioritty":1}"#, "/prioritty"),
        (r#"{"rule":{"end":null}}"#, "/rule/end"),
        (r#"{"retry":{"max":null}}"#, "/retry/max"),
        (r#"{"priority":1,"priority":2}"#, "/priority"),
        (r#"{"payload":{"b":3,"b":null}}"#, "/payload/b"),
        (r#"{"rule":null}"#, "/rule"),
    ] {
        let answer = node.ask("PATCH", SCHEDULE, patch).await.must(422);
        assert_eq!(answer.pointer(), pointer, "{patch}: {:#}", answer.body);
    }
    assert_eq!(node.ask("GET", SCHEDULE, "").await.body["generation"], 1);
    let patch = r#"{"labels":{"a":null,"none":null},"payload":{"c":null,"none":null},"rule":{"cron":null,"end_at":null},"retry":null}"#;
    let done = node.ask("PATCH", SCHEDULE, patch).await.must(200);
    assert_eq!(
        (&done.body["labels"], &done.body["payload"]),
        (&json!({}), &json!({"b": 1}))
    );
    for body in ["", " ", "null", "[]", "5", "{"] {
        let answer = node.ask("PATCH", SCHEDULE, body).await;
        assert!(
            matches!(answer.status, 400 | 422),
            "{body}: {:#}",
            answer.body
        );
    }
}

/// Instants at the ends of time are stored, or refused with their place; nothing overflows.
#[tokio::test]
async fn instants_at_the_ends_of_time_are_taken_or_refused() {
    let node = Node::leading();
    for (at, is_instant) in [
        ("0000-01-01T00:00:00Z", false),
        ("1899-12-31T23:59:59Z", false),
        ("1900-01-01T00:00:00Z", true),
        ("1969-12-31T23:59:59.999Z", true),
        ("1970-01-01T00:00:00Z", true),
        ("2199-12-31T23:59:59.999Z", true),
        ("9999-12-30T21:59:59.999Z", true),
        ("9999-12-31T23:59:59-23:59", false),
        ("10000-01-01T00:00:00Z", false),
        ("2026-02-30T00:00:00Z", false),
        ("2026-03-01T24:00:00Z", false),
        ("2026-03-01T00:00:00", false),
        ("2026-03-01", false),
    ] {
        let body = json!({"kind": "a", "due_at": at});
        let answer = node.ask("POST", EXECUTIONS, &body.to_string()).await;
        let status = if is_instant { 201 } else { 422 };
        assert_eq!(answer.status, status, "{at}: {:#}", answer.body);
        for rule in [
            json!({"at": at}),
            json!({"every": "1h", "start_at": at}),
            json!({"every": "1h", "anchor": at}),
            json!({"cron": "0 0 * * *", "end_at": at}),
        ] {
            let answer = node
                .ask("PUT", SCHEDULE, &json!({"rule": rule}).to_string())
                .await;
            assert!(
                matches!(answer.status, 200 | 201 | 422),
                "{rule}: {:#}",
                answer.body
            );
            assert!(
                answer.status != 422 || answer.pointer().starts_with("/rule"),
                "{rule}"
            );
            node.ask("GET", &format!("{SCHEDULE}/next?count=3"), "")
                .await;
        }
        let until = json!({"until": at}).to_string();
        let answer = node.ask("POST", "/v1/queues/default:pause", &until).await;
        assert!(
            matches!(answer.status, 200 | 422),
            "{at}: {:#}",
            answer.body
        );
        let after = json!({"rule": {"cron": "0 0 * * *"}, "after": at, "count": 2}).to_string();
        let answer = node.ask("POST", "/v1/schedules:preview", &after).await;
        assert!(
            matches!(answer.status, 200 | 422),
            "{at}: {:#}",
            answer.body
        );
        let list = format!("{EXECUTIONS}?due_from={at}&due_to={at}");
        let answer = node.ask("GET", &list, "").await;
        assert!(
            matches!(answer.status, 200 | 400),
            "{at}: {:#}",
            answer.body
        );
    }
}

/// Names may be percent-encoded in a path; what is no name is refused or not found, never another object.
#[tokio::test]
async fn names_in_paths_are_decoded_once_and_checked() {
    let node = Node::leading();
    node.ask("PUT", SCHEDULE, r#"{"rule":{"every":"1h"}}"#)
        .await
        .must(201);
    node.ask("PUT", "/v1/tenants/default/keys/a%2525b", "{}")
        .await
        .must(200);
    let key = node
        .ask("PUT", "/v1/tenants/default/keys/%C3%A9%20%2F%3F", "{}")
        .await
        .must(200);
    assert_eq!(key.body["key"], "é /?");
    let same = node
        .ask("GET", "/v1/tenants/%64efault/schedules/%78", "")
        .await
        .must(200);
    assert_eq!(same.body["schedule_id"], "x");
    for (name, status) in [
        ("X", 400),
        ("%58", 400),
        ("x%2Fy", 400),
        ("x%00", 400),
        ("%2e%2e", 400),
        ("..", 400),
        ("%E2%82%AC", 400),
        ("x%20", 400),
        ("x%3Apause", 400),
        ("%ff", 404),
        ("%zz", 404),
        ("x%", 404),
        ("x/", 404),
        ("", 404),
        (&"a".repeat(129), 400),
        ("x;y", 400),
        ("x:pause:pause", 404),
    ] {
        let answer = node.ask("GET", &format!("{SCHEDULES}/{name}"), "").await;
        assert_eq!(answer.status, status, "{name:?}: {:#}", answer.body);
    }
    for path in [
        "/v1/tenants//schedules/x",
        "/v1/tenants/default/schedules/x/",
        "//v1/limits",
        "/v1/limits/",
        "/V1/limits",
    ] {
        node.ask("GET", path, "").await.must(404);
    }
    for key in ["%00", "%0A", &"k".repeat(257)] {
        let answer = node
            .ask("PUT", &format!("/v1/tenants/default/keys/{key}"), "{}")
            .await;
        assert_eq!(answer.must(400).pointer(), "path:key");
    }
}

/// One id is one execution, however many ask for it at once, also after it has ended.
#[tokio::test]
async fn a_chosen_id_is_one_execution_whoever_asks_and_when() {
    let node = Node::leading();
    let bodies: Vec<String> = (0..50)
        .map(|n| {
            json!({"execution_id": "one", "kind": if n % 5 == 4 { "b" } else { "a" }}).to_string()
        })
        .collect();
    let asked = bodies.iter().map(|body| node.ask("POST", EXECUTIONS, body));
    let answers = futures::future::join_all(asked).await;
    let count = |status| answers.iter().filter(|a| a.status == status).count();
    assert_eq!((count(201), count(200), count(409)), (1, 39, 10));
    let one = format!("{EXECUTIONS}/one");
    node.ask("POST", &format!("{one}:cancel"), "")
        .await
        .must(200);
    let again = node.ask("POST", EXECUTIONS, &bodies[0]).await.must(200);
    assert_eq!(
        (again.header("x-outcome"), &again.body["state"]),
        ("existing", &json!("cancelled"))
    );
    let other = node.ask("POST", EXECUTIONS, &bodies[4]).await.must(409);
    assert_eq!(other.code(), "id_conflict");
    let usage = node
        .ask("GET", "/v1/tenants/default/usage", "")
        .await
        .must(200);
    assert_eq!(usage.body["open_executions"], 0);
    node.ask("DELETE", &one, "").await.must(204);
    node.ask("DELETE", &one, "").await.must(404);
    node.ask("GET", &one, "").await.must(404);
    let stats = node
        .ask("GET", "/v1/queues/default/stats", "")
        .await
        .must(200);
    assert!(
        stats.body["backlog"]
            .as_object()
            .unwrap()
            .values()
            .all(|n| *n == 0)
    );
    node.ask("POST", EXECUTIONS, &bodies[0]).await.must(201);
}

/// Above a bound nothing of a bulk call is done, and the answer says the bound.
#[tokio::test]
async fn bulk_calls_above_their_bound_do_nothing_and_name_it() {
    let node = Node::leading();
    let item = json!({"execution_id": "e", "attempt": 1, "fencing_token": 1});
    let many = |item: Value, n: usize| vec![item; n];
    let claim = |n: usize| {
        json!({"worker_id": "w", "wait_ms": 0, "reports": many(json!({"action": "complete",
        "execution_id": "e", "attempt": 1, "fencing_token": 1}), n)})
    };
    let schedules = |n: usize| {
        let items =
            (0..n).map(|n| json!({"schedule_id": format!("s{n}"), "rule": {"every": "1h"}}));
        json!({"items": items.collect::<Vec<_>>()})
    };
    let leases = |n: usize| json!({"worker_id": "w", "leases": many(item.clone(), n)});
    let revoke = |n: usize| json!({"leases": many(json!({"execution_id": "e"}), n)});
    for (target, bound, body) in [
        (
            "/v1/tenants/default/schedules:batch",
            1_000,
            &schedules as &dyn Fn(usize) -> Value,
        ),
        ("/v1/queues/q/leases:claim", 1_000, &claim),
        ("/v1/leases:renew", 1_000, &leases),
        ("/v1/leases:release", 1_000, &leases),
        ("/v1/leases:revoke", 1_000, &revoke),
    ] {
        let usage = node.ask("GET", "/v1/tenants/default/usage", "").await;
        let had = usage.body["schedules"].clone();
        for count in [bound + 1, bound, bound - 1] {
            let answer = node.ask("POST", target, &body(count).to_string()).await;
            if count <= bound {
                assert_eq!(answer.status, 200, "{target} {count}: {:#}", answer.body);
                continue;
            }
            let answer = answer.must(422);
            assert!(
                answer.body["detail"].as_str().unwrap().contains("1000"),
                "{target}"
            );
            assert_eq!(answer.body["errors"][0]["code"], "too_long", "{target}");
            let usage = node.ask("GET", "/v1/tenants/default/usage", "").await;
            assert_eq!(usage.body["schedules"], had, "nothing was done");
        }
    }
    for (body, pointer) in [
        (
            json!({"worker_id": "w", "queues": vec!["q"; 33]}),
            "/queues",
        ),
        (
            json!({"worker_id": "w", "queues": ["q"], "kinds": vec!["k"; 257]}),
            "/kinds",
        ),
        (
            json!({"worker_id": "w".repeat(201), "queues": ["q"]}),
            "/worker_id",
        ),
        (
            json!({"worker_id": "w", "queues": ["q"], "request_id": "r".repeat(201)}),
            "/request_id",
        ),
    ] {
        let answer = node
            .ask("POST", "/v1/leases:claim", &body.to_string())
            .await
            .must(422);
        assert_eq!(answer.pointer(), pointer);
    }
}

/// An idempotency key belongs to tenant, method and path; a repeat answers the first result whatever has happened since.
#[tokio::test]
async fn a_key_repeats_deletions_and_changes_too() {
    let node = Node::leading();
    let key = [("idempotency-key", "K")];
    let every = r#"{"rule":{"every":"1h"}}"#;
    node.ask_with("PUT", SCHEDULE, every, &key).await.must(201);
    node.ask("POST", EXECUTIONS, r#"{"execution_id":"e","kind":"a"}"#)
        .await
        .must(201);
    node.ask("POST", &format!("{EXECUTIONS}/e:cancel"), "")
        .await
        .must(200);
    node.ask("PUT", "/v1/queues/q", "{}").await.must(201);
    for target in [
        SCHEDULE.to_owned(),
        format!("{EXECUTIONS}/e"),
        "/v1/queues/q".to_owned(),
    ] {
        let first = node.ask_with("DELETE", &target, "", &key).await.must(204);
        assert_eq!(first.header("idempotency-replayed"), "", "{target}");
        let again = node.ask_with("DELETE", &target, "", &key).await.must(204);
        assert_eq!(again.header("idempotency-replayed"), "true", "{target}");
        node.ask("DELETE", &target, "").await.must(404);
    }
    // The put of long ago is answered as it was, and makes nothing anew.
    let put = node.ask_with("PUT", SCHEDULE, every, &key).await.must(201);
    assert_eq!(put.header("idempotency-replayed"), "true");
    node.ask("GET", SCHEDULE, "").await.must(404);
    let other = node
        .ask_with("PUT", SCHEDULE, r#"{"rule":{"every":"2h"}}"#, &key)
        .await
        .must(422);
    assert_eq!(other.code(), "idempotency_conflict");
    // A refusal is not kept: the same key may succeed later.
    let body = r#"{"kind":"a","queue":"small"}"#;
    node.ask("PUT", "/v1/queues/small", r#"{"max_pending":0}"#)
        .await
        .must(201);
    node.ask_with("POST", EXECUTIONS, body, &key)
        .await
        .must(429);
    node.ask("PUT", "/v1/queues/small", "{}").await.must(200);
    node.ask_with("POST", EXECUTIONS, body, &key)
        .await
        .must(201);
}

/// A cursor works for the list and the filters that it came from, and nothing else passes for one.
#[tokio::test]
async fn a_cursor_is_good_for_its_own_list_only() {
    let node = Node::leading();
    let items: Vec<Value> = (0..9)
        .map(|n| json!({"execution_id": format!("e{n}"), "kind": "a"}))
        .collect();
    let body = json!({"items": items}).to_string();
    node.ask("POST", &format!("{EXECUTIONS}:batch"), &body)
        .await
        .must(200);
    node.ask("PUT", "/v1/tenants/other", "{}").await.must(201);
    let page = node
        .ask("GET", &format!("{EXECUTIONS}?page_size=2&kind=a"), "")
        .await
        .must(200);
    let cursor = page.body["next_cursor"].as_str().unwrap().to_owned();
    node.ask(
        "GET",
        &format!("{EXECUTIONS}?cursor={cursor}&page_size=5&view=full"),
        "",
    )
    .await
    .must(200);
    node.ask("GET", &format!("{EXECUTIONS}?cursor={cursor}&kind=a"), "")
        .await
        .must(200);
    let long = "0".repeat(5_000);
    for (target, cursor) in [
        ("/v1/tenants/other/executions", cursor.as_str()),
        (SCHEDULES, &cursor),
        ("/v1/tenants/default/dead-letters", &cursor),
        ("/v1/queues", &cursor),
        (EXECUTIONS, &cursor[1..]),
        (EXECUTIONS, &cursor[..cursor.len() - 2]),
        (EXECUTIONS, &cursor.replace('0', "1")),
        (EXECUTIONS, &long),
        (EXECUTIONS, "%00"),
        (EXECUTIONS, ""),
    ] {
        let answer = node
            .ask("GET", &format!("{target}?cursor={cursor}"), "")
            .await;
        assert_eq!(
            answer.must(400).code(),
            "invalid_cursor",
            "{target} {cursor}"
        );
    }
    let changed = format!("{EXECUTIONS}?cursor={cursor}&kind=b");
    assert_eq!(
        node.ask("GET", &changed, "").await.must(400).code(),
        "invalid_cursor"
    );
}

/// A page holds no more than was asked for, whatever is open; all pages together hold everything once.
#[tokio::test]
async fn pages_of_a_ledger_are_as_long_as_asked_for() {
    let node = Node::leading();
    node.ask("PUT", SCHEDULE, r#"{"rule":{"every":"10s"}}"#)
        .await
        .must(201);
    node.wait(crate::time::Millis::secs(55));
    node.ask("PUT", SCHEDULE, r#"{"rule":{"every":"10s"},"priority":1}"#)
        .await
        .must(200);
    let ledger = format!("{SCHEDULE}/occurrences");
    let all = node.ask("GET", &ledger, "").await.must(200).body["items"]
        .as_array()
        .unwrap()
        .clone();
    for record in &all[..3] {
        let id = record["execution_id"].as_str().unwrap();
        node.ask("POST", &format!("{EXECUTIONS}/{id}:cancel"), "")
            .await
            .must(200);
    }
    for page_size in 1..=9 {
        let (mut seen, mut target) = (Vec::new(), format!("{ledger}?page_size={page_size}"));
        loop {
            let page = node.ask("GET", &target, "").await.must(200);
            let items = page.body["items"].as_array().unwrap();
            assert!(items.len() <= page_size, "{} of {page_size}", items.len());
            seen.extend(
                items
                    .iter()
                    .map(|i| i["nominal_at"].as_str().unwrap().to_owned()),
            );
            match page.body["next_cursor"].as_str() {
                Some(cursor) => target = format!("{ledger}?page_size={page_size}&cursor={cursor}"),
                None => break,
            }
        }
        assert_eq!(seen.len(), all.len(), "{page_size}");
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), all.len(), "each once, {page_size} at a time");
    }
}
