//! Whatever is sent, the answer is a 4xx that names the place; never a 5xx, never a panic.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::api::routes::Route;
use crate::api::testing::Node;

/// A path of the route with names that exist or could.
fn path_of(route: &Route) -> String {
    route
        .pattern
        .replace("{tenant}", "default")
        .replace("{schedule}", "daily")
        .replace("{execution}", "e1")
        .replace("{queue}", "default")
        .replace("{key}", "k")
        .replace("{kind}", "mail")
        .replace("{worker}", "w1")
        .replace("{node}", "2")
}

async fn furnished() -> Node {
    let node = Node::leading();
    let rule = r#"{"rule":{"every":"1h"}}"#;
    node.ask("PUT", "/v1/tenants/default/schedules/daily", rule)
        .await
        .must(201);
    let body = r#"{"execution_id":"e1","kind":"a"}"#;
    node.ask("POST", "/v1/tenants/default/executions", body)
        .await
        .must(201);
    node
}

#[tokio::test]
async fn bodies_that_are_no_json_objects_are_refused_by_every_call_with_a_body() {
    let node = furnished().await;
    let mut calls = 0;
    for route in node.api.routes().iter().filter(|r| r.body.is_some()) {
        calls += 1;
        let path = path_of(route);
        for (body, status) in [
            ("{", 400),
            ("nonsense", 400),
            ("\u{feff}{}", 400),
            ("[]", 422),
            ("5", 422),
            ("\"x\"", 422),
            ("{\"surely_unknown\":1}", 422),
        ] {
            let answer = node.ask(route.method, &path, body).await;
            assert_eq!(answer.status, status, "{route:?} {body}: {:#}", answer.body);
            if body.contains("surely") {
                let places = answer.body["errors"].as_array().unwrap();
                assert!(
                    places.iter().any(|p| p["pointer"] == "/surely_unknown"),
                    "{route:?} {:#}",
                    answer.body
                );
            }
        }
    }
    assert!(calls > 25, "{calls}");
}

#[tokio::test]
async fn calls_without_a_body_refuse_one() {
    let node = furnished().await;
    for route in node
        .api
        .routes()
        .iter()
        .filter(|r| r.body.is_none() && r.method != "GET")
    {
        let answer = node.ask(route.method, &path_of(route), "{}").await;
        assert_eq!(
            (answer.status, answer.code()),
            (400, "malformed_request"),
            "{route:?}"
        );
    }
}

/// (call, body, pointer, code)
const TABLE: &[(&str, &str, &str, &str)] = &[
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{}"#,
        "/rule",
        "one_rule",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":null}"#,
        "/rule",
        "invalid",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"cron":"* * *"}}"#,
        "/rule/cron",
        "cron_field_count",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"cron":"0 0 * * *","time_zone":"Nowhere"}}"#,
        "/rule/time_zone",
        "time_zone_unknown",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"schedule_id":"y","rule":{"every":"1h"}}"#,
        "/schedule_id",
        "contradicts_path",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"tenant":"y","rule":{"every":"1h"}}"#,
        "/tenant",
        "contradicts_path",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"priority":10}"#,
        "/priority",
        "out_of_range",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"priority":300}"#,
        "/priority",
        "invalid",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"priority":-1}"#,
        "/priority",
        "invalid",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"queue":"Not One"}"#,
        "/queue",
        "invalid_name",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"kind":"a b"}"#,
        "/kind",
        "invalid_name",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"concurrency_key":""}"#,
        "/concurrency_key",
        "too_short",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"labels":{"":"x"}}"#,
        "/labels/",
        "too_short",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"labels":{"a=b":"x"}}"#,
        "/labels/a=b",
        "invalid",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"misfire":{"threshold":"1s"}}"#,
        "/misfire/threshold",
        "out_of_range",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"misfire":{"catch_up_rate":"fast"}}"#,
        "/misfire/catch_up_rate",
        "invalid",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"overlap":{"max_open":0}}"#,
        "/overlap/max_open",
        "out_of_range",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"on_completed":{"keep_for":"1y"}}"#,
        "/on_completed/keep_for",
        "invalid",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"timeouts":{"attempt":"0s"}}"#,
        "/timeouts/attempt",
        "out_of_range",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"retry":{"max_attempts":0}}"#,
        "/retry/max_attempts",
        "out_of_range",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h","start_at":"2027-01-02T00:00:00Z","end_at":"2027-01-01T00:00:00Z"}}"#,
        "/rule/end_at",
        "out_of_range",
    ),
    (
        "PUT /v1/tenants/default/schedules/x",
        r#"{"rule":{"every":"1h"},"revision":"abc"}"#,
        "/revision",
        "invalid",
    ),
    (
        "POST /v1/tenants/default/executions",
        r#"{}"#,
        "/kind",
        "required",
    ),
    (
        "POST /v1/tenants/default/executions",
        r#"{"kind":"a","execution_id":"A"}"#,
        "/execution_id",
        "invalid_name",
    ),
    (
        "POST /v1/tenants/default/executions",
        r#"{"kind":"a","due_at":"2026-03-01T00:00:00Z","delay":"1s"}"#,
        "/delay",
        "contradiction",
    ),
    (
        "POST /v1/tenants/default/executions",
        r#"{"kind":"a","due_at":"01/03/2026"}"#,
        "/due_at",
        "invalid",
    ),
    (
        "POST /v1/tenants/default/executions",
        r#"{"kind":"a","unique":{}}"#,
        "/unique/key",
        "required",
    ),
    (
        "POST /v1/tenants/default/executions",
        r#"{"kind":"a","unique":{"key":"","on_conflict":"reject"}}"#,
        "/unique/key",
        "too_short",
    ),
    (
        "POST /v1/tenants/default/executions",
        r#"{"kind":"a","delay":"11y"}"#,
        "/delay",
        "invalid",
    ),
    (
        "POST /v1/tenants/default/executions/e1:cancel",
        r#"{"mode":"softly"}"#,
        "/mode",
        "invalid",
    ),
    (
        "POST /v1/queues/default/leases:claim",
        r#"{}"#,
        "/worker_id",
        "required",
    ),
    (
        "POST /v1/leases:claim",
        r#"{"worker_id":"w","queues":[]}"#,
        "/queues",
        "too_short",
    ),
    (
        "POST /v1/leases:complete",
        r#"{"worker_id":"w","leases":[{}]}"#,
        "/leases/0/execution_id",
        "required",
    ),
    (
        "POST /v1/leases:report",
        r#"{"worker_id":"w","leases":[{"execution_id":"e","attempt":1,"fencing_token":2}]}"#,
        "/leases/0/action",
        "required",
    ),
    (
        "POST /v1/leases:fail",
        r#"{"worker_id":"w","leases":[{"execution_id":"e","attempt":1,"fencing_token":2,"error":"text"}]}"#,
        "/leases/0/error",
        "invalid",
    ),
    (
        "POST /v1/schedules:preview",
        r#"{"rule":{"every":"1h"},"count":0}"#,
        "/count",
        "out_of_range",
    ),
    (
        "POST /v1/schedules:preview",
        r#"{"rule":{"cron":"@reboot"}}"#,
        "/rule/cron",
        "not_supported",
    ),
    (
        "PUT /v1/queues/default",
        r#"{"rate":{"count":1}}"#,
        "/rate/per",
        "required",
    ),
    (
        "PUT /v1/queues/default",
        r#"{"order":"lifo"}"#,
        "/order",
        "invalid",
    ),
];

#[tokio::test]
async fn what_is_wrong_is_named_with_its_place() {
    let node = furnished().await;
    for (call, body, pointer, code) in TABLE {
        let (method, path) = call.split_once(' ').unwrap();
        let answer = node.ask(method, path, body).await;
        assert_eq!(answer.status, 422, "{call} {body}: {:#}", answer.body);
        let error = &answer.body["errors"][0];
        assert_eq!(
            error["pointer"], *pointer,
            "{call} {body}: {:#}",
            answer.body
        );
        assert_eq!(error["code"], *code, "{call} {body}: {:#}", answer.body);
        assert!(error["detail"].as_str().unwrap().len() > 8, "{call} {body}");
    }
}

#[tokio::test]
async fn features_of_later_versions_are_refused_by_name() {
    let node = Node::leading();
    for (body, pointer) in [
        (
            r#"{"rule":{"every":"1h","calendars":["x"]}}"#,
            "/rule/calendars",
        ),
        (
            r#"{"rule":{"every":"1h"},"misfire":{"policy":"fire_all"}}"#,
            "/misfire/policy",
        ),
        (
            r#"{"rule":{"every":"1h"},"overlap":{"policy":"buffer_one"}}"#,
            "/overlap/policy",
        ),
        (
            r#"{"rule":{"every":"1h"},"overlap":{"policy":"buffer"}}"#,
            "/overlap/policy",
        ),
        (
            r#"{"rule":{"every":"1h"},"overlap":{"buffer":5}}"#,
            "/overlap/buffer",
        ),
        (
            r#"{"rule":{"every":"1h"},"overlap":{"policy":"cancel_running"}}"#,
            "/overlap/policy",
        ),
        (
            r#"{"rule":{"every":"1h"},"notify":{"on":["dead_lettered"]}}"#,
            "/notify",
        ),
    ] {
        let answer = node
            .ask("PUT", "/v1/tenants/default/schedules/x", body)
            .await
            .must(422);
        assert_eq!(
            (answer.code(), answer.pointer()),
            ("not_supported", pointer),
            "{body}"
        );
    }
    let after = r#"{"kind":"a","after":["e1"]}"#;
    let answer = node
        .ask("POST", "/v1/tenants/default/executions", after)
        .await
        .must(422);
    assert_eq!(
        (answer.code(), answer.pointer()),
        ("not_supported", "/after")
    );
    let empty = r#"{"rule":{"every":"1h"},"notify":{},"rule":{"every":"1h"}}"#;
    node.ask("PUT", "/v1/tenants/default/schedules/x", empty)
        .await
        .must(422);
}

/// JSON that is nearly a request: known names, odd values.
fn nearly(names: Vec<&'static str>) -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|f| json!(f)),
        prop::sample::select(vec![
            "",
            "default",
            "1h",
            "-5s",
            "PT0S",
            "2026-03-01T00:00:00Z",
            "* * * * *",
            "0 0 30 2 *",
            "L",
            "a b",
            "skip",
            "allow",
            "fire_latest",
            "\u{0}",
            "é",
            "Europe/Berlin",
            "R5/2026-01-31T09:00:00Z/P1M",
            "FREQ=DAILY",
            "w1",
        ])
        .prop_map(Value::from),
        ".{0,40}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        let name = prop_oneof![
            8 => prop::sample::select(names.clone()).prop_map(str::to_owned),
            1 => ".{0,12}",
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(name, inner, 0..8)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Every member name of every type.
fn names() -> Vec<&'static str> {
    NAMES.split_whitespace().collect()
}

const NAMES: &str = "
    rule cron every at time_zone anchor rrule iso8601 after_end jitter start_at end_at
    max_occurrences exclude_dates dialect day_match misfire policy threshold catch_up_max
    catch_up_rate overlap max_open retry max_attempts multiplier jitter initial_backoff
    max_backoff timeouts attempt start total labels requires payload kind queue priority items
    schedule_id execution_id unique key on_conflict delay due_at past worker_id request_id max
    wait_ms lease_ms leases reports action fencing_token result error type message details
    retryable retry_in_ms delay_ms reason until catch_up mode rate count per burst weights
    allowed_tenants retention succeeded weight max_leased max_pending node peer api to by
    revision status after notify kinds slots queues tenant progress
";

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_body_makes_any_call_fail_on_our_side(body in nearly(names()), pick in any::<prop::sample::Index>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let node = furnished().await;
            let routes: Vec<_> = node.api.routes().iter().filter(|r| r.body.is_some()).collect();
            let route = pick.get(&routes);
            let answer = node.ask(route.method, &path_of(route), &body.to_string()).await;
            prop_assert!(answer.status < 500, "{route:?} {body}: {:#}", answer.body);
            if answer.status == 422 {
                prop_assert!(answer.code() == "idempotency_conflict" || answer.pointer() != "-", "{:#}", answer.body);
            }
            Ok(())
        })?;
    }

    #[test]
    fn no_target_or_header_makes_the_node_fail(target in "/[a-z0-9/:{}%?&=.\"*-]{0,60}", value in "[ -~]{0,40}") {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let node = Node::leading();
            for method in ["GET", "PUT", "POST", "DELETE", "BREW"] {
                let headers = [("if-match", value.as_str()), ("idempotency-key", value.as_str())];
                let answer = node.ask_with(method, &target, "{}", &headers).await;
                prop_assert!(answer.status < 500 || answer.status == 501, "{method} {target}: {:#}", answer.body);
            }
            Ok(())
        })?;
    }
}
