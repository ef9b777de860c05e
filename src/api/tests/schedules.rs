//! Schedules from creation to deletion.

use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use crate::api::testing::{Answered, Node};
use crate::time::Millis;

const DAILY: &str = "/v1/tenants/default/schedules/daily";
const COLLECTION: &str = "/v1/tenants/default/schedules";
const BODY: &str =
    r#"{"rule":{"cron":"0 9 * * MON-FRI","time_zone":"Europe/Berlin"},"payload":{"b":1.0,"a":[]}}"#;

async fn created(node: &Node) -> Answered {
    node.ask("PUT", DAILY, BODY).await.must(201)
}

#[tokio::test]
async fn a_created_schedule_shows_every_default_as_a_value() {
    let node = Node::leading();
    let put = created(&node).await;
    assert_eq!(put.header("x-outcome"), "created");
    assert_eq!(put.header("x-log-index"), "2");
    let get = node.ask("GET", DAILY, "").await.must(200);
    assert_eq!(get.header("etag"), put.header("etag"));
    for (pointer, value) in [
        ("/schedule_id", json!("daily")),
        ("/kind", json!("daily")),
        ("/queue", json!("default")),
        ("/priority", json!(5)),
        ("/misfire/policy", json!("fire_latest")),
        ("/misfire/threshold", json!("1m")),
        ("/misfire/catch_up_rate", json!("10/s")),
        ("/overlap/max_open", json!(1000)),
        ("/retry/max_attempts", json!(15)),
        ("/retry/multiplier", json!(2.0)),
        ("/on_completed/keep_for", json!("7d")),
        ("/rule/dialect", json!("unix")),
        ("/rule/jitter", json!("0s")),
        ("/generation", json!(1)),
        ("/status/state", json!("active")),
        ("/status/next/nominal_at", json!("2026-03-02T08:00:00.000Z")),
        ("/status/open/total", json!(0)),
    ] {
        assert_eq!(
            get.body.pointer(pointer),
            Some(&value),
            "{pointer} of {:#}",
            get.body
        );
    }
    let local = get.body["status"]["next"]["local"].as_str().unwrap();
    assert!(local.starts_with("2026-03-02T09:00:00+01:00"), "{local}");
    let text = String::from_utf8(get.reply.body.to_vec()).unwrap();
    assert!(
        text.contains(r#""payload":{"b":1.0,"a":[]}"#),
        "the payload keeps its text"
    );
}

#[tokio::test]
async fn a_put_of_what_a_get_answered_is_unchanged_and_resumes_nothing() {
    let node = Node::leading();
    created(&node).await;
    let get = String::from_utf8(node.ask("GET", DAILY, "").await.reply.body.to_vec()).unwrap();
    let again = node.ask("PUT", DAILY, &get).await.must(200);
    assert_eq!(again.header("x-outcome"), "unchanged");
    assert_eq!(again.body["generation"], 1);
    let pause = format!("{DAILY}:pause");
    let paused = node
        .ask("POST", &pause, r#"{"reason":"broken"}"#)
        .await
        .must(200);
    assert_eq!(paused.body["status"]["state"], "paused");
    assert_eq!(paused.body["status"]["paused"]["reason"], "broken");
    assert_eq!(paused.body["status"]["paused"]["by"], "anonymous");
    assert_eq!(paused.body["status"]["next"], Value::Null);
    let mut body: Value = paused.body;
    body["priority"] = json!(9);
    let put = node.ask("PUT", DAILY, &body.to_string()).await.must(200);
    assert_eq!(put.body["status"]["state"], "paused");
    assert_eq!(put.body["priority"], 9);
}

#[tokio::test]
async fn conditions_protect_from_lost_updates() {
    let node = Node::leading();
    let etag = created(&node).await.header("etag").to_owned();
    let other = BODY.replace("0 9", "0 10");
    let a = node
        .ask_with("PUT", DAILY, &other, &[("if-match", &etag)])
        .await
        .must(200);
    let b = node
        .ask_with("PUT", DAILY, BODY, &[("if-match", &etag)])
        .await
        .must(412);
    assert_eq!(b.code(), "revision_mismatch");
    assert_eq!(b.header("etag"), a.header("etag"));
    assert_eq!(
        b.body["current_revision"].as_str(),
        Some(a.header("etag").trim_matches('"'))
    );
    let first = node
        .ask_with("PUT", DAILY, BODY, &[("if-none-match", "*")])
        .await
        .must(412);
    assert_eq!(first.code(), "revision_mismatch");
    let gone = format!("{COLLECTION}/other");
    node.ask_with("PUT", &gone, BODY, &[("if-match", "*")])
        .await
        .must(412);
    let stale = node
        .ask_with("DELETE", DAILY, "", &[("if-match", &etag)])
        .await
        .must(412);
    assert_eq!(stale.code(), "revision_mismatch");
    node.ask("PUT", DAILY, BODY).await.must(200);
}

#[tokio::test]
async fn a_merge_patch_changes_what_it_names() {
    let node = Node::leading();
    created(&node).await;
    let patch =
        r#"{"priority":7,"rule":{"jitter":"30s"},"labels":{"team":"x"},"payload":{"a":null}}"#;
    let patched = node.ask("PATCH", DAILY, patch).await.must(200);
    assert_eq!(patched.body["priority"], 7);
    assert_eq!(patched.body["rule"]["jitter"], "30s");
    assert_eq!(patched.body["rule"]["cron"], "0 9 * * MON-FRI");
    assert_eq!(patched.body["generation"], 2);
    let text = String::from_utf8(patched.reply.body.to_vec()).unwrap();
    assert!(text.contains(r#""payload":{"b":1.0}"#), "{text}");
    let wrong = node
        .ask("PATCH", DAILY, r#"{"rule":{"jitter":5}}"#)
        .await
        .must(422);
    assert_eq!(wrong.pointer(), "/rule/jitter");
    let two = node
        .ask("PATCH", DAILY, r#"{"rule":{"every":"5s"}}"#)
        .await
        .must(422);
    assert_eq!(two.body["errors"][0]["code"], "one_rule");
    let swap = r#"{"rule":{"every":"5s","cron":null}}"#;
    node.ask("PATCH", DAILY, swap).await.must(200);
    let stale = node
        .ask("PATCH", DAILY, r#"{"revision":"1.0","priority":1}"#)
        .await
        .must(412);
    assert_eq!(stale.code(), "revision_mismatch");
    node.ask("PATCH", DAILY, r#"{"unknown":1}"#).await.must(422);
    node.ask("PATCH", &format!("{COLLECTION}/none"), "{}")
        .await
        .must(404);
}

#[tokio::test]
async fn a_dry_run_validates_shows_what_would_happen_and_changes_nothing() {
    let node = Node::leading();
    let dry = format!("{DAILY}?dry_run=true");
    let would = node.ask("PUT", &dry, BODY).await.must(200);
    assert_eq!(
        (would.header("x-dry-run"), would.header("x-outcome")),
        ("true", "created")
    );
    assert_eq!(
        would.body["status"]["upcoming"].as_array().unwrap().len(),
        5
    );
    node.ask("GET", DAILY, "").await.must(404);
    node.ask("PUT", &dry, r#"{"rule":{"cron":"61 * * * *"}}"#)
        .await
        .must(422);
    created(&node).await;
    let same = node.ask("PUT", &dry, BODY).await.must(200);
    assert_eq!(same.header("x-outcome"), "unchanged");
    let stale = node
        .ask_with("PUT", &dry, BODY, &[("if-match", "\"1.0\"")])
        .await;
    assert_eq!(stale.must(412).code(), "revision_mismatch");
    for action in ["pause", "trigger", "resume"] {
        let target = format!("{DAILY}:{action}?dry_run=true");
        let answer = node.ask("POST", &target, "").await.must(200);
        assert_eq!(answer.header("x-dry-run"), "true", "{action}");
    }
    node.ask("DELETE", &dry, "").await.must(204);
    let get = node.ask("GET", DAILY, "").await.must(200);
    assert_eq!(
        (&get.body["generation"], &get.body["status"]["state"]),
        (&json!(1), &json!("active"))
    );
}

#[tokio::test]
async fn a_rule_that_never_fires_is_refused_and_a_past_instant_as_asked() {
    let node = Node::leading();
    let over = r#"{"rule":{"cron":"0 9 * * *","end_at":"2020-01-01T00:00:00Z"}}"#;
    let refused = node.ask("PUT", DAILY, over).await.must(422);
    assert_eq!(refused.body["errors"][0]["code"], "no_future_occurrence");
    let past = r#"{"rule":{"at":"2026-02-01T00:00:00Z"},"past":"reject"}"#;
    let refused = node.ask("PUT", DAILY, past).await.must(422);
    assert_eq!(
        (refused.pointer(), &refused.body["errors"][0]["code"]),
        ("/rule/at", &json!("in_the_past"))
    );
    let run = node
        .ask("PUT", DAILY, &past.replace("reject", "run"))
        .await
        .must(201);
    assert_eq!(
        run.body["status"]["next"]["nominal_at"],
        "2026-02-01T00:00:00.000Z"
    );
}

#[tokio::test]
async fn a_schedule_fires_in_the_settling_before_an_edit_and_loses_nothing() {
    let node = Node::leading();
    let every = r#"{"rule":{"every":"10s"}}"#;
    node.ask("PUT", DAILY, every).await.must(201);
    node.wait(Millis::secs(25));
    let edit = node
        .ask("PUT", DAILY, r#"{"rule":{"every":"10s"},"priority":1}"#)
        .await
        .must(200);
    assert_eq!(edit.body["status"]["created_count"], 2);
    assert_eq!(
        edit.body["status"]["open"],
        json!({
            "total": 2, "waiting": 0, "ready": 2, "leased": 0, "backing_off": 0,
        })
    );
    assert_eq!(
        edit.body["status"]["next"]["nominal_at"],
        "2026-03-01T08:00:30.000Z"
    );
    node.wait(Millis::secs(10));
    let target = format!("{DAILY}?pending=drop");
    let drop = node
        .ask("PUT", &target, r#"{"rule":{"every":"10s"},"priority":2}"#)
        .await
        .must(200);
    assert_eq!(
        drop.body["status"]["totals"]["skipped"],
        json!({"superseded": 1})
    );
    let ledger = node
        .ask("GET", &format!("{DAILY}/occurrences"), "")
        .await
        .must(200);
    let kinds: Vec<_> = ledger.body["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|i| {
            (
                i["kind"].as_str().unwrap(),
                i["nominal_at"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        kinds,
        [
            ("execution", "2026-03-01T08:00:20.000Z"),
            ("execution", "2026-03-01T08:00:10.000Z"),
            ("skipped", "2026-03-01T08:00:30.000Z"),
        ]
    );
}

#[tokio::test]
async fn a_pause_is_caught_up_only_when_asked_for() {
    let node = Node::leading();
    node.ask("PUT", DAILY, r#"{"rule":{"every":"10s"}}"#)
        .await
        .must(201);
    node.ask("POST", &format!("{DAILY}:pause"), "")
        .await
        .must(200);
    node.wait(Millis::secs(60));
    let resume = format!("{DAILY}:resume");
    let target = format!("{resume}?dry_run=true");
    let dry = node.ask("POST", &target, r#"{"catch_up":"all","catch_up_max":3}"#);
    let dry = dry.await.must(200);
    assert_eq!(
        (&dry.body["caught_up"], &dry.body["skipped"]),
        (&json!(3), &json!(3))
    );
    let done = node.ask("POST", &resume, "{}").await.must(200);
    assert_eq!(
        (&done.body["caught_up"], &done.body["skipped"]),
        (&json!(0), &json!(6))
    );
    assert_eq!(
        done.body["schedule"]["status"]["totals"]["skipped"],
        json!({"paused": 6})
    );
    assert_eq!(
        done.body["schedule"]["status"]["next"]["nominal_at"],
        "2026-03-01T08:01:10.000Z"
    );
    for (body, pointer) in [
        (r#"{"catch_up":"some"}"#, "/catch_up"),
        (r#"{"catch_up":"all","catch_up_max":61}"#, "/catch_up_max"),
        (r#"{"catch":"all"}"#, "/catch"),
    ] {
        assert_eq!(
            node.ask("POST", &resume, body).await.must(422).pointer(),
            pointer
        );
    }
}

#[tokio::test]
async fn a_trigger_against_overlap_skip_names_the_blocker() {
    let node = Node::leading();
    let body = r#"{"rule":{"every":"1h"},"overlap":{"policy":"skip"}}"#;
    node.ask("PUT", DAILY, body).await.must(201);
    let trigger = format!("{DAILY}:trigger");
    let first = node
        .ask("POST", &trigger, r#"{"payload":null}"#)
        .await
        .must(201);
    let id = first.body["execution_id"].as_str().unwrap().to_owned();
    let second = node.ask("POST", &trigger, "").await.must(409);
    assert_eq!(
        (second.code(), second.body["blocker"].as_str()),
        ("overlap", Some(id.as_str()))
    );
    let dry = node
        .ask("POST", &format!("{trigger}?dry_run=true"), "")
        .await
        .must(409);
    assert_eq!(dry.code(), "overlap");
    node.ask("POST", &trigger, r#"{"overlap":"allow"}"#)
        .await
        .must(201);
    let shown = node
        .ask("GET", &format!("/v1/tenants/default/executions/{id}"), "")
        .await
        .must(200);
    assert_eq!(
        (&shown.body["cause"], &shown.body["schedule_id"]),
        (&json!("triggered"), &json!("daily"))
    );
    assert_eq!(shown.body["payload"], Value::Null);
}

#[tokio::test]
async fn a_post_mints_a_name_or_conflicts() {
    let node = Node::leading();
    let minted = node.ask("POST", COLLECTION, BODY).await.must(201);
    let id = minted.body["schedule_id"].as_str().unwrap();
    assert!(id.starts_with("s-"), "{id}");
    let named = r#"{"schedule_id":"daily","rule":{"every":"1h"}}"#;
    node.ask("POST", COLLECTION, named).await.must(201);
    let again = node.ask("POST", COLLECTION, named).await.must(409);
    assert_eq!(again.code(), "already_exists");
    let key = [("idempotency-key", "k1")];
    let first = node
        .ask_with("POST", COLLECTION, BODY, &key)
        .await
        .must(201);
    let repeat = node
        .ask_with("POST", COLLECTION, BODY, &key)
        .await
        .must(201);
    assert_eq!(first.body["schedule_id"], repeat.body["schedule_id"]);
    assert_eq!(repeat.header("idempotency-replayed"), "true");
}

#[tokio::test]
async fn a_batch_answers_every_item_by_itself() {
    let node = Node::leading();
    created(&node).await;
    let body = json!({"items": [
        {"schedule_id": "a", "rule": {"every": "1h"}},
        {"schedule_id": "b", "rule": {"every": "1ms"}},
        {"rule": {"every": "1h"}},
        {"schedule_id": "daily", "rule": {"every": "2h"}},
        {"schedule_id": "a", "rule": {"every": "1h"}},
        {"schedule_id": "daily", "rule": {"every": "3h"}, "revision": "1.0"},
    ]});
    let answer = node
        .ask(
            "POST",
            "/v1/tenants/default/schedules:batch",
            &body.to_string(),
        )
        .await
        .must(200);
    let items = answer.body["items"].as_array().unwrap();
    let outcomes: Vec<_> = items
        .iter()
        .map(|i| {
            (
                i["result"]["status"].as_u64().unwrap(),
                i["outcome"].as_str(),
            )
        })
        .collect();
    assert_eq!(
        outcomes,
        [
            (201, Some("created")),
            (422, None),
            (422, None),
            (200, Some("updated")),
            (200, Some("unchanged")),
            (412, None),
        ]
    );
    assert_eq!(
        items[1]["result"]["problem"]["errors"][0]["pointer"],
        "/rule/every"
    );
    assert_eq!(
        items[2]["result"]["problem"]["errors"][0]["pointer"],
        "/items/2/schedule_id"
    );
    node.ask("GET", &format!("{COLLECTION}/b"), "")
        .await
        .must(404);
}

#[tokio::test]
async fn pages_cover_every_schedule_once_and_filters_hold() {
    let node = Node::leading();
    let items: Vec<Value> = (0..250).map(|i| json!({
        "schedule_id": format!("s{i:03}"), "rule": {"every": "1h"}, "queue": if i % 2 == 0 { "even" } else { "odd" },
        "labels": {"n": (i % 5).to_string()},
    })).collect();
    let body = json!({"items": items}).to_string();
    node.ask("POST", "/v1/tenants/default/schedules:batch", &body)
        .await
        .must(200);
    node.ask("POST", &format!("{COLLECTION}/s004:pause"), "")
        .await
        .must(200);
    let mut seen = Vec::new();
    let mut target = format!("{COLLECTION}?page_size=100");
    for _ in 0..3 {
        let page = node.ask("GET", &target, "").await.must(200);
        let items = page.body["items"].as_array().unwrap().clone();
        seen.extend(
            items
                .iter()
                .map(|i| i["schedule_id"].as_str().unwrap().to_owned()),
        );
        match page.body["next_cursor"].as_str() {
            Some(cursor) => target = format!("{COLLECTION}?page_size=100&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(
        seen,
        (0..250).map(|i| format!("s{i:03}")).collect::<Vec<_>>()
    );
    for (filter, count) in [
        ("queue=even", 125),
        ("queue=none", 0),
        ("label=n%3D4", 50),
        ("label=n", 250),
        ("state=paused", 1),
        ("state=active,paused&kind=s004", 1),
        ("last_outcome=succeeded", 0),
    ] {
        let page = node
            .ask("GET", &format!("{COLLECTION}?page_size=1000&{filter}"), "")
            .await
            .must(200);
        assert_eq!(
            page.body["items"].as_array().unwrap().len(),
            count,
            "{filter}"
        );
    }
    node.ask("GET", &format!("{COLLECTION}?state=sleeping"), "")
        .await
        .must(400);
}

#[tokio::test]
async fn next_and_preview_tell_the_same_times() {
    let node = Node::leading();
    created(&node).await;
    let next = node
        .ask("GET", &format!("{DAILY}/next?count=3"), "")
        .await
        .must(200);
    let body = r#"{"rule":{"cron":"0 9 * * MON-FRI","time_zone":"Europe/Berlin"},"count":3}"#;
    let preview = node
        .ask("POST", "/v1/schedules:preview", body)
        .await
        .must(200);
    let times = |answer: &Answered| -> Vec<String> {
        let items = answer.body["occurrences"].as_array().unwrap().iter();
        items
            .map(|o| o["nominal_at"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(times(&next), times(&preview));
    assert_eq!(times(&next).len(), 3);
    assert_eq!(preview.body["exhausted"], false);
    // Warnings are about what is to come, wherever the times begin.
    let early = r#"{"rule":{"cron":"30 2 * * *","time_zone":"Europe/Berlin"},"after":"2024-01-01T00:00:00Z"}"#;
    let early = node
        .ask("POST", "/v1/schedules:preview", early)
        .await
        .must(200);
    let warning = early.body["warnings"][0]["detail"].as_str().unwrap();
    assert!(warning.starts_with("2026-03-29T02:30:00"), "{warning}");
    let over = r#"{"rule":{"at":"2020-01-01T00:00:00Z"}}"#;
    let over = node
        .ask("POST", "/v1/schedules:preview", over)
        .await
        .must(200);
    assert_eq!(
        (&over.body["exhausted"], times(&over).len()),
        (&json!(true), 0)
    );
    node.ask("GET", &format!("{DAILY}/next?count=1001"), "")
        .await
        .must(400);
    let limited = format!("{COLLECTION}/limited");
    node.ask(
        "PUT",
        &limited,
        r#"{"rule":{"every":"1h","max_occurrences":2}}"#,
    )
    .await
    .must(201);
    let next = node
        .ask("GET", &format!("{limited}/next"), "")
        .await
        .must(200);
    assert_eq!(
        (&next.body["exhausted"], times(&next).len()),
        (&json!(true), 2)
    );
}

#[tokio::test]
async fn an_action_plans_again_when_it_was_superseded_and_gives_up_politely() {
    let node = Node::leading();
    node.scheduler.supersede.store(2, Ordering::SeqCst);
    created(&node).await;
    node.scheduler.supersede.store(50, Ordering::SeqCst);
    let answer = node
        .ask("PUT", DAILY, &BODY.replace("0 9", "0 8"))
        .await
        .must(409);
    assert_eq!(
        (answer.code(), &answer.body["retryable"]),
        ("contended", &json!(true))
    );
    assert_eq!(answer.header("retry-after"), "1");
}

#[tokio::test]
async fn what_does_not_exist_is_said_precisely() {
    let node = Node::leading();
    for (method, path) in [
        ("GET", DAILY.to_owned()),
        ("DELETE", DAILY.to_owned()),
        ("POST", format!("{DAILY}:pause")),
        ("POST", format!("{DAILY}:resume")),
        ("POST", format!("{DAILY}:trigger")),
        ("GET", format!("{DAILY}/next")),
        ("GET", format!("{DAILY}/occurrences")),
    ] {
        let answer = node.ask(method, &path, "").await.must(404);
        assert_eq!(answer.code(), "schedule_not_found", "{method} {path}");
        let other = path.replace("default", "nobody");
        let answer = node.ask(method, &other, "").await.must(404);
        assert_eq!(answer.code(), "tenant_not_found", "{method} {other}");
    }
}
