//! What is sent and not meant: zero, nothing, too much, twice, misspelt. It works as said or is refused by name; it is
//! never taken and then ignored.

use serde_json::{Value, json};

use crate::api::testing::Node;

const SCHEDULE: &str = "/v1/tenants/default/schedules/x";
const EXECUTIONS: &str = "/v1/tenants/default/executions";

/// `null` says as much as nothing, for every field of every definition.
#[tokio::test]
async fn null_is_the_default_for_every_field_of_a_definition() {
    let node = Node::leading();
    let document = node.ask("GET", "/openapi.json", "").await.must(200).body;
    let fields = |name: &str| -> Vec<String> {
        let properties = &document["components"]["schemas"][name]["properties"];
        properties.as_object().unwrap().keys().cloned().collect()
    };
    let nulls = |names: &[String]| -> serde_json::Map<String, Value> {
        names
            .iter()
            .map(|name| (name.clone(), Value::Null))
            .collect()
    };
    let mut schedule = nulls(&fields("Schedule"));
    let mut rule = nulls(&fields("Rule"));
    rule.insert("every".into(), json!("1h"));
    schedule.insert("rule".into(), rule.into());
    for (target, bare, full) in [
        (SCHEDULE, r#"{"rule":{"every":"1h"}}"#, schedule),
        ("/v1/queues/q", "{}", nulls(&fields("Queue"))),
        ("/v1/tenants/t", "{}", nulls(&fields("Tenant"))),
        (
            "/v1/tenants/default/keys/k",
            "{}",
            nulls(&fields("KeyLimits")),
        ),
    ] {
        let first = node.ask("PUT", target, bare).await;
        assert!(first.status < 300, "{target}: {:#}", first.body);
        let again = node
            .ask("PUT", target, &Value::from(full).to_string())
            .await
            .must(200);
        assert_eq!(again.header("x-outcome"), "unchanged", "{target}");
    }
    for (name, parts) in [
        ("misfire", "MisfirePolicy"),
        ("overlap", "OverlapPolicy"),
        ("retry", "RetryPolicy"),
        ("timeouts", "Timeouts"),
        ("on_completed", "OnCompleted"),
    ] {
        let body = json!({"rule": {"every": "1h"}, name: nulls(&fields(parts))});
        let again = node.ask("PUT", SCHEDULE, &body.to_string()).await.must(200);
        assert_eq!(again.header("x-outcome"), "unchanged", "{name}");
    }
    let mut submission = nulls(&fields("SubmitExecution"));
    submission.insert("kind".into(), json!("a"));
    let full = node
        .ask("POST", EXECUTIONS, &Value::from(submission).to_string())
        .await
        .must(201);
    let bare = node
        .ask("POST", EXECUTIONS, r#"{"kind":"a"}"#)
        .await
        .must(201);
    for field in [
        "queue", "priority", "retry", "timeouts", "labels", "due_at", "state", "payload",
    ] {
        assert_eq!(full.body[field], bare.body[field], "{field}");
    }
}

/// (call, body, pointer): an empty, wrong, huge or negative value where another kind of value belongs.
const WRONG: &[(&str, &str, &str)] = &[
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"queue":""}"#,
        "/queue",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"kind":""}"#,
        "/kind",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":""}}"#,
        "/rule/every",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"0s"}}"#,
        "/rule/every",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"-5s"}}"#,
        "/rule/every",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"9999999999999d"}}"#,
        "/rule/every",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"cron":""}}"#,
        "/rule/cron",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h","max_occurrences":0}}"#,
        "/rule/max_occurrences",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h","jitter":"8d"}}"#,
        "/rule/jitter",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"pause_after_failures":0}"#,
        "/pause_after_failures",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"priority":5.5}"#,
        "/priority",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"priority":"5"}"#,
        "/priority",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"priority":1e400}"#,
        "-",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"overlap":{"max_open":4294967296}}"#,
        "/overlap/max_open",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"retry":{"multiplier":1e308}}"#,
        "/retry/multiplier",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"retry":{"jitter":-0.1}}"#,
        "/retry/jitter",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"labels":{"a":"1","a":"2"}}"#,
        "/labels/a",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"requires":{"a":"1","a":"1"}}"#,
        "/requires/a",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h","every":"2h"}}"#,
        "/rule",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"ageing":"1m"}"#,
        "/ageing",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"misfire":{"catch_up_max":7}}"#,
        "/misfire/catch_up_max",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"misfire":{"catch_up_rate":"9/s"}}"#,
        "/misfire/catch_up_rate",
    ),
    (
        "POST /v1/tenants/default/schedules",
        r#"{"rule":{"every":"1h"},"revision":"7.0"}"#,
        "/revision",
    ),
    (
        "POST /v1/tenants/default/executions",
        r#"{"kind":"a","coalesce":{"key":"k"}}"#,
        "/coalesce",
    ),
    (
        "POST /v1/tenants/default/executions",
        r#"{"kind":"a","delay":90}"#,
        "/delay",
    ),
    (
        "POST /v1/tenants/default/executions",
        r#"{"kind":"a","delay":"-1s"}"#,
        "/delay",
    ),
    (
        "POST /v1/tenants/default/executions",
        r#"{"kind":"a","due_at":1772352000}"#,
        "/due_at",
    ),
    (
        "POST /v1/tenants/default/executions",
        r#"{"kind":"a","due_at":""}"#,
        "/due_at",
    ),
    (
        "POST /v1/tenants/default/executions",
        r#"{"kind":"a","execution_id":""}"#,
        "/execution_id",
    ),
    (
        "POST /v1/tenants/default/executions",
        r#"{"kind":"a","unique":"k"}"#,
        "/unique",
    ),
    (
        "POST /v1/tenants/default/executions",
        r#"{"kind":"a","unique":{"key":null}}"#,
        "/unique/key",
    ),
    (
        "POST /v1/tenants/default/executions",
        r#"{"kind":null}"#,
        "/kind",
    ),
    (
        "POST /v1/tenants/default/executions",
        r#"{"kind":"a","timeouts":{"start":"0s"}}"#,
        "/timeouts/start",
    ),
    (
        "POST /v1/tenants/default/executions:batch",
        r#"{"items":null}"#,
        "/items",
    ),
    (
        "POST /v1/tenants/default/executions:batch",
        r#"{"items":[null]}"#,
        "/items/0",
    ),
    (
        "POST /v1/queues/q/leases:claim",
        r#"{"worker_id":"w","max":0}"#,
        "/max",
    ),
    (
        "POST /v1/queues/q/leases:claim",
        r#"{"worker_id":"w","slots":0}"#,
        "/slots",
    ),
    (
        "POST /v1/queues/q/leases:claim",
        r#"{"worker_id":"w","kinds":[]}"#,
        "/kinds",
    ),
    (
        "POST /v1/queues/q/leases:claim",
        r#"{"worker_id":"w","wait_ms":60001}"#,
        "/wait_ms",
    ),
    (
        "POST /v1/queues/q/leases:claim",
        r#"{"worker_id":"w","wait_ms":-1}"#,
        "/wait_ms",
    ),
    (
        "POST /v1/queues/q/leases:claim",
        r#"{"worker_id":"w","wait_ms":"5"}"#,
        "/wait_ms",
    ),
    (
        "POST /v1/queues/q/leases:claim",
        r#"{"worker_id":"w","wait_ms":1e3}"#,
        "/wait_ms",
    ),
    (
        "POST /v1/queues/q/leases:claim",
        r#"{"worker_id":"w","request_id":""}"#,
        "/request_id",
    ),
    (
        "POST /v1/queues/q/leases:claim",
        r#"{"worker_id":"a b"}"#,
        "/worker_id",
    ),
    (
        "POST /v1/queues/q/leases:claim",
        r#"{"worker_id":"w","queues":["q"]}"#,
        "/queues",
    ),
    ("POST /v1/leases:revoke", r#"{}"#, "/leases"),
    (
        "POST /v1/leases:fail",
        r#"{"worker_id":"w","leases":[{"execution_id":"e","attempt":1,"fencing_token":1,"retry_in_ms":2592000001}]}"#,
        "/leases/0/retry_in_ms",
    ),
    (
        "POST /v1/leases:report",
        r#"{"worker_id":"w","leases":[{"action":"complete","execution_id":"e","attempt":1,"fencing_token":1,"delay_ms":5}]}"#,
        "/leases/0/delay_ms",
    ),
    (
        "PUT /v1/queues/q",
        r#"{"weights":{"default":1,"default":2}}"#,
        "/weights/default",
    ),
    ("PUT /v1/queues/q", r#"{"max_leased":-1}"#, "/max_leased"),
    (
        "PUT /v1/queues/q",
        r#"{"rate":{"count":1,"per":"0s"}}"#,
        "/rate/per",
    ),
    (
        "PUT /v1/queues/q",
        r#"{"rate":{"count":1,"per":"1s","burst":0}}"#,
        "/rate/burst",
    ),
    ("PUT /v1/queues/q", r#"{"ageing":true}"#, "/ageing"),
    ("PUT /v1/tenants/default", r#"{"weight":0}"#, "/weight"),
    (
        "PUT /v1/tenants/default/keys/k",
        r#"{"max_leased":4294967296}"#,
        "/max_leased",
    ),
    (
        "POST /v1/schedules:preview",
        r#"{"rule":{"every":"1h"},"tenant":"acme"}"#,
        "/tenant",
    ),
    (
        "POST /v1/retries:preview",
        r#"{"retry":{"multiplier":0}}"#,
        "/retry/multiplier",
    ),
    ("POST /v1/retries:preview", r#"{"count":1001}"#, "/count"),
    (
        "POST /v1/cluster/members",
        r#"{"node":4,"peer":"somewhere","api":"http://n:1"}"#,
        "/peer",
    ),
    (
        "POST /v1/cluster/members",
        r#"{"node":4,"peer":"n:0","api":"http://n:1"}"#,
        "/peer",
    ),
    (
        "POST /v1/cluster/members",
        r#"{"node":4,"peer":"n:1","api":"n:1"}"#,
        "/api",
    ),
    (
        "POST /v1/cluster/members",
        r#"{"node":9007199254740992,"peer":"n:1","api":"http://n:1"}"#,
        "/node",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h","dialect":"quartz"}}"#,
        "/rule/dialect",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h","dst_gap":"skip"}}"#,
        "/rule/dst_gap",
    ),
];

#[tokio::test]
async fn a_value_of_another_kind_or_size_is_refused_with_its_place() {
    let node = Node::leading();
    for (call, body, pointer) in WRONG {
        let (method, path) = call.split_once(' ').unwrap();
        let answer = node.ask(method, path, body).await;
        assert!(
            matches!(answer.status, 400 | 422),
            "{call} {body}: {:#}",
            answer.body
        );
        assert_eq!(
            answer.pointer(),
            *pointer,
            "{call} {body}: {:#}",
            answer.body
        );
    }
    node.ask("GET", SCHEDULE, "").await.must(404);
    node.ask("GET", "/v1/queues/q", "").await.must(404);
}

/// (method, target, body, header, value): a header that the call would not act upon.
const HEADERS: &[(&str, &str, &str, &str, &str)] = &[
    (
        "POST",
        "/v1/tenants/default/schedules/x:trigger",
        "",
        "if-match",
        "\"1.0\"",
    ),
    (
        "POST",
        "/v1/tenants/default/schedules/x:trigger",
        "",
        "if-none-match",
        "*",
    ),
    (
        "POST",
        "/v1/tenants/default/schedules/x:pause",
        "",
        "if-none-match",
        "*",
    ),
    (
        "PATCH",
        "/v1/tenants/default/schedules/x",
        "{}",
        "if-none-match",
        "*",
    ),
    (
        "DELETE",
        "/v1/tenants/default/schedules/x",
        "",
        "if-none-match",
        "*",
    ),
    (
        "POST",
        "/v1/tenants/default/schedules",
        r#"{"rule":{"every":"1h"}}"#,
        "if-none-match",
        "*",
    ),
    (
        "POST",
        "/v1/tenants/default/executions",
        r#"{"kind":"a"}"#,
        "if-match",
        "*",
    ),
    (
        "DELETE",
        "/v1/tenants/default/executions/e",
        "",
        "if-match",
        "*",
    ),
    (
        "POST",
        "/v1/queues/default:pause",
        "",
        "if-match",
        "\"1.0\"",
    ),
    (
        "PUT",
        "/v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"}}"#,
        "if-match",
        "",
    ),
    (
        "PUT",
        "/v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"}}"#,
        "if-match",
        "1",
    ),
    (
        "PUT",
        "/v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"}}"#,
        "if-match",
        "\"1.0\", \"2.0\"",
    ),
    (
        "PUT",
        "/v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"}}"#,
        "if-match",
        "W/\"1.0\"",
    ),
    (
        "PUT",
        "/v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"}}"#,
        "if-none-match",
        "\"1.0\"",
    ),
    (
        "PUT",
        "/v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"revision":"2.0"}"#,
        "if-match",
        "\"1.0\"",
    ),
    (
        "POST",
        "/v1/queues/default/leases:claim",
        r#"{"worker_id":"w","wait_ms":0}"#,
        "idempotency-key",
        "K",
    ),
    (
        "POST",
        "/v1/leases:claim",
        r#"{"worker_id":"w","queues":["q"],"wait_ms":0}"#,
        "idempotency-key",
        "K",
    ),
];

#[tokio::test]
async fn a_header_that_a_call_would_ignore_is_refused() {
    let node = Node::leading();
    node.ask("PUT", SCHEDULE, r#"{"rule":{"every":"1h"}}"#)
        .await
        .must(201);
    for (method, target, body, name, value) in HEADERS {
        let answer = node.ask_with(method, target, body, &[(name, value)]).await;
        assert_eq!(
            answer.status, 400,
            "{method} {target} {name}: {:#}",
            answer.body
        );
        assert_eq!(
            answer.pointer(),
            format!("header:{name}"),
            "{method} {target}"
        );
    }
    let shown = node.ask("GET", SCHEDULE, "").await.must(200);
    let status = &shown.body["status"];
    assert_eq!(
        (&status["state"], &status["open"]["total"]),
        (&json!("active"), &json!(0))
    );
}

/// A read that waits for a result asks for freshness like any other.
#[tokio::test(start_paused = true)]
async fn parameters_of_freshness_hold_for_a_read_that_waits() {
    let node = Node::leading();
    node.ask("POST", EXECUTIONS, r#"{"execution_id":"e","kind":"a"}"#)
        .await
        .must(201);
    for (query, pointer) in [
        ("consistency=eventual", "query:consistency"),
        ("consistency=stale", "query:consistency"),
        ("min_index=soon", "query:min_index"),
        ("min_index=-1", "query:min_index"),
    ] {
        let answer = node
            .ask("GET", &format!("{EXECUTIONS}/e?wait_ms=5&{query}"), "")
            .await;
        assert_eq!(answer.must(400).pointer(), pointer);
    }
    let far = node
        .ask(
            "GET",
            &format!("{EXECUTIONS}/e?wait_ms=5&min_index=5000"),
            "",
        )
        .await;
    assert_eq!(far.must(503).code(), "index_not_reached");
    let near = format!("{EXECUTIONS}/e?wait_ms=5&min_index=1&consistency=linearizable");
    node.ask("GET", &near, "").await.must(200);
}
