//! A dry run answers what the write would: the same refusal, or the same outcome, and nothing changes.

use serde_json::{Value, json};

use crate::api::testing::{Answered, Node};

const T: &str = "/v1/tenants/default";

/// A node where much is taken: queue `full` has no room, `closed` is another's, tenant `small` may have one schedule;
/// `daily` is blocked by its own execution, execution `e` is open and `done` final, key `u` is held.
async fn furnished() -> Node {
    let node = Node::leading();
    for (method, target, body) in [
        ("PUT", "/v1/tenants/small", json!({"schedules_max": 1})),
        ("PUT", "/v1/queues/full", json!({"max_pending": 1})),
        (
            "PUT",
            "/v1/queues/closed",
            json!({"allowed_tenants": ["small"]}),
        ),
        ("PUT", "/v1/queues/unused", json!({})),
        (
            "POST",
            &format!("{T}/executions"),
            json!({"execution_id": "e", "kind": "a", "queue": "full", "unique": {"key": "u"}}),
        ),
        (
            "POST",
            &format!("{T}/executions"),
            json!({"execution_id": "done", "kind": "a"}),
        ),
        ("POST", &format!("{T}/executions/done:cancel"), json!({})),
        (
            "PUT",
            &format!("{T}/schedules/daily"),
            json!({"rule": {"every": "1h"}, "queue": "named", "overlap": {"policy": "skip"}}),
        ),
        ("POST", &format!("{T}/schedules/daily:trigger"), json!({})),
        (
            "PUT",
            &format!("{T}/schedules/paused"),
            json!({"rule": {"every": "1h"}}),
        ),
        ("POST", &format!("{T}/schedules/paused:pause"), json!({})),
        (
            "PUT",
            &format!("{T}/schedules/into-full"),
            json!({"rule": {"every": "1h"}, "queue": "full"}),
        ),
        (
            "PUT",
            "/v1/tenants/small/schedules/one",
            json!({"rule": {"every": "1h"}}),
        ),
    ] {
        let answer = node.ask(method, target, &body.to_string()).await;
        assert!(answer.status < 300, "{method} {target}: {:#}", answer.body);
    }
    node
}

/// Method, target, body, `If-Match`, and the code of the refusal (empty: none).
type Write = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
);

const WRITES: &[Write] = &[
    (
        "PUT",
        "/v1/tenants/default/schedules/new",
        r#"{"rule":{"every":"1h"}}"#,
        "",
        "",
    ),
    (
        "PUT",
        "/v1/tenants/default/schedules/new2",
        r#"{"rule":{"every":"1h"},"queue":"closed"}"#,
        "",
        "queue_not_allowed",
    ),
    (
        "PUT",
        "/v1/tenants/small/schedules/two",
        r#"{"rule":{"every":"1h"}}"#,
        "",
        "quota_reached",
    ),
    (
        "PUT",
        "/v1/tenants/nobody/schedules/two",
        r#"{"rule":{"every":"1h"}}"#,
        "",
        "tenant_not_found",
    ),
    (
        "PUT",
        "/v1/tenants/default/schedules/daily",
        r#"{"rule":{"every":"1h"}}"#,
        r#""1.0""#,
        "revision_mismatch",
    ),
    (
        "PUT",
        "/v1/tenants/default/schedules/none",
        r#"{"rule":{"every":"1h"}}"#,
        "*",
        "revision_mismatch",
    ),
    (
        "POST",
        "/v1/tenants/default/schedules",
        r#"{"rule":{"every":"1h"},"schedule_id":"daily"}"#,
        "",
        "already_exists",
    ),
    (
        "POST",
        "/v1/tenants/small/schedules",
        r#"{"rule":{"every":"1h"}}"#,
        "",
        "quota_reached",
    ),
    (
        "PATCH",
        "/v1/tenants/default/schedules/daily",
        r#"{"queue":"closed"}"#,
        "",
        "queue_not_allowed",
    ),
    (
        "DELETE",
        "/v1/tenants/default/schedules/none",
        "",
        "",
        "schedule_not_found",
    ),
    (
        "DELETE",
        "/v1/tenants/default/schedules/daily",
        "",
        r#""1.0""#,
        "revision_mismatch",
    ),
    (
        "POST",
        "/v1/tenants/default/schedules/none:pause",
        "",
        "",
        "schedule_not_found",
    ),
    (
        "POST",
        "/v1/tenants/default/schedules/daily:pause",
        "",
        r#""1.0""#,
        "revision_mismatch",
    ),
    (
        "POST",
        "/v1/tenants/default/schedules/paused:resume",
        "",
        r#""1.0""#,
        "revision_mismatch",
    ),
    (
        "POST",
        "/v1/tenants/default/schedules/paused:resume",
        r#"{"catch_up":"latest"}"#,
        "",
        "",
    ),
    (
        "POST",
        "/v1/tenants/default/schedules/daily:trigger",
        "",
        "",
        "overlap",
    ),
    (
        "POST",
        "/v1/tenants/default/schedules/into-full:trigger",
        "",
        "",
        "quota_exceeded",
    ),
    (
        "POST",
        "/v1/tenants/default/schedules/none:trigger",
        "",
        "",
        "schedule_not_found",
    ),
    (
        "POST",
        "/v1/tenants/default/executions",
        r#"{"kind":"a","execution_id":"e","queue":"full","unique":{"key":"u"}}"#,
        "",
        "",
    ),
    (
        "POST",
        "/v1/tenants/default/executions",
        r#"{"kind":"a","execution_id":"e"}"#,
        "",
        "id_conflict",
    ),
    (
        "POST",
        "/v1/tenants/default/executions",
        r#"{"kind":"a","unique":{"key":"u"}}"#,
        "",
        "unique_key_held",
    ),
    (
        "POST",
        "/v1/tenants/default/executions",
        r#"{"kind":"a","unique":{"key":"u","on_conflict":"return_existing"}}"#,
        "",
        "",
    ),
    (
        "POST",
        "/v1/tenants/default/executions",
        r#"{"kind":"a","queue":"full"}"#,
        "",
        "quota_exceeded",
    ),
    (
        "POST",
        "/v1/tenants/default/executions",
        r#"{"kind":"a","queue":"closed"}"#,
        "",
        "queue_not_allowed",
    ),
    (
        "POST",
        "/v1/tenants/nobody/executions",
        r#"{"kind":"a"}"#,
        "",
        "tenant_not_found",
    ),
    (
        "POST",
        "/v1/tenants/default/executions",
        r#"{"kind":"a","execution_id":"fresh"}"#,
        "",
        "",
    ),
    (
        "POST",
        "/v1/tenants/default/executions/none:cancel",
        "",
        "",
        "execution_not_found",
    ),
    (
        "POST",
        "/v1/tenants/default/executions/done:cancel",
        "",
        "",
        "",
    ),
    (
        "POST",
        "/v1/tenants/default/executions/e:cancel",
        "",
        r#""1.0""#,
        "revision_mismatch",
    ),
    (
        "DELETE",
        "/v1/tenants/default/executions/e",
        "",
        "",
        "not_final",
    ),
    (
        "DELETE",
        "/v1/tenants/default/executions/none",
        "",
        "",
        "execution_not_found",
    ),
    ("DELETE", "/v1/tenants/default/executions/done", "", "", ""),
    (
        "PUT",
        "/v1/queues/full",
        "{}",
        r#""1.0""#,
        "revision_mismatch",
    ),
    ("PUT", "/v1/queues/more", "{}", "", ""),
    ("DELETE", "/v1/queues/named", "", "", "queue_in_use"),
    ("DELETE", "/v1/queues/full", "", "", "queue_in_use"),
    ("DELETE", "/v1/queues/default", "", "", "protected"),
    ("DELETE", "/v1/queues/none", "", "", "queue_not_found"),
    ("DELETE", "/v1/queues/unused", "", "", ""),
    ("POST", "/v1/queues/none:pause", "", "", "queue_not_found"),
    (
        "PUT",
        "/v1/tenants/small",
        r#"{"weight":2}"#,
        r#""1.0""#,
        "revision_mismatch",
    ),
    ("PUT", "/v1/tenants/third", "{}", "", ""),
    (
        "PUT",
        "/v1/tenants/nobody/keys/k",
        "{}",
        "",
        "tenant_not_found",
    ),
    (
        "PUT",
        "/v1/tenants/default/keys/k",
        r#"{"max_leased":1}"#,
        "",
        "",
    ),
    (
        "POST",
        "/v1/tenants/nobody:pause",
        "",
        "",
        "tenant_not_found",
    ),
];

async fn send(node: &Node, write: &Write, target: &str) -> Answered {
    let (method, _, body, condition, _) = write;
    let headers = [("if-match", *condition)];
    let count = usize::from(!condition.is_empty());
    node.ask_with(method, target, body, &headers[..count]).await
}

/// Everything that a caller could see of the node's state.
async fn image(node: &Node) -> Vec<Value> {
    let mut image = Vec::new();
    for target in [
        "/v1/queues",
        "/v1/tenants",
        "/v1/tenants/default/schedules",
        "/v1/tenants/small/schedules",
        "/v1/tenants/default/executions",
        "/v1/tenants/default/usage",
    ] {
        image.push(node.ask("GET", target, "").await.must(200).body);
    }
    image
}

#[tokio::test]
async fn a_dry_run_refuses_what_the_write_would_refuse_and_changes_nothing() {
    let node = furnished().await;
    for write in WRITES {
        let (method, target, _, _, code) = write;
        let before = image(&node).await;
        let dry = send(&node, write, &format!("{target}?dry_run=true")).await;
        assert_eq!(
            image(&node).await,
            before,
            "{method} {target} changed something"
        );
        assert_eq!(dry.code(), *code, "{method} {target} dry: {:#}", dry.body);
        let real = send(&node, write, target).await;
        assert_eq!(real.code(), *code, "{method} {target}: {:#}", real.body);
        match *code {
            "" => {
                assert!(dry.status < 300 && real.status < 300, "{method} {target}");
                assert_eq!(dry.header("x-dry-run"), "true", "{method} {target}");
                // A trigger, a resume and a cancel say what they did in their bodies.
                if !target.contains(':') {
                    assert_eq!(
                        dry.header("x-outcome"),
                        real.header("x-outcome"),
                        "{method} {target}"
                    );
                }
            }
            _ => assert_eq!(dry.status, real.status, "{method} {target}"),
        }
    }
}

#[tokio::test]
async fn a_dry_run_of_a_batch_answers_every_item_as_the_batch_would() {
    let node = furnished().await;
    let outcomes = |answer: &Answered| -> Vec<(Value, Value)> {
        let items = answer.body["items"].as_array().unwrap().iter();
        items
            .map(|i| (i["outcome"].clone(), i["result"]["problem"]["code"].clone()))
            .collect()
    };
    let executions = json!({"items": [
        {"kind": "a", "execution_id": "twin"}, {"kind": "a", "execution_id": "twin"}, {"kind": "b", "execution_id": "twin"},
        {"kind": "a", "queue": "full"}, {"kind": "a", "unique": {"key": "u"}}, {"kind": "a b"}, {"kind": "c"},
    ]});
    let schedules = json!({"items": [
        {"schedule_id": "one", "rule": {"every": "1h"}}, {"schedule_id": "two", "rule": {"every": "1h"}},
        {"schedule_id": "one", "rule": {"every": "2h"}}, {"schedule_id": "three", "rule": {"cron": "nonsense"}},
        {"schedule_id": "one", "rule": {"every": "1h"}, "revision": "1.0"},
    ]});
    for (target, body) in [
        ("/v1/tenants/default/executions:batch", executions),
        ("/v1/tenants/small/schedules:batch", schedules),
    ] {
        let before = image(&node).await;
        let dry = node
            .ask("POST", &format!("{target}?dry_run=true"), &body.to_string())
            .await
            .must(200);
        assert_eq!(image(&node).await, before, "{target} changed something");
        assert_eq!(dry.header("x-dry-run"), "true");
        let real = node.ask("POST", target, &body.to_string()).await.must(200);
        assert_eq!(outcomes(&dry), outcomes(&real), "{target}");
    }
}
