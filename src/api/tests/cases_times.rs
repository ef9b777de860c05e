//! Nominal times, delays and retention: what a caller is told before anything runs, with faults that others had.

use serde_json::{Value, json};

use crate::api::testing::{Answered, Node};

const SCHEDULE: &str = "/v1/tenants/default/schedules/x";

/// Nominal times of a previewed rule.
async fn preview(node: &Node, rule: Value, after: &str, count: usize) -> Vec<String> {
    let body = json!({"rule": rule, "after": after, "count": count}).to_string();
    let answer = node
        .ask("POST", "/v1/schedules:preview", &body)
        .await
        .must(200);
    times(&answer)
}

fn times(answer: &Answered) -> Vec<String> {
    let items = answer.body["occurrences"].as_array().unwrap().iter();
    items
        .map(|o| o["nominal_at"].as_str().unwrap().replace(":00.000Z", ""))
        .collect()
}

fn cron(text: &str, zone: &str) -> Value {
    json!({"cron": text, "time_zone": zone})
}

/// On the day of a clock change, hours that it does not touch are where they always are.
#[tokio::test]
async fn a_clock_change_leaves_other_hours_of_its_day_alone() {
    let node = Node::leading();
    let chicago = preview(
        &node,
        cron("0 10 * * *", "America/Chicago"),
        "2025-03-08T15:00:00Z",
        4,
    )
    .await;
    assert_eq!(
        chicago,
        [
            "2025-03-08T16:00",
            "2025-03-09T15:00",
            "2025-03-10T15:00",
            "2025-03-11T15:00"
        ]
    );
    let new_york = "America/New_York";
    let after = "2026-11-01T04:00:00Z";
    let fixed = preview(&node, cron("30 1 * * *", new_york), after, 2).await;
    assert_eq!(
        fixed,
        ["2026-11-01T05:30", "2026-11-02T06:30"],
        "the first pass only"
    );
    let quarters = preview(
        &node,
        cron("*/15 * * * *", new_york),
        "2026-11-01T04:59:59Z",
        8,
    )
    .await;
    let expected: Vec<_> = (0..8)
        .map(|n| format!("2026-11-01T{:02}:{:02}", 5 + n / 4, n % 4 * 15))
        .collect();
    assert_eq!(quarters, expected, "real time goes on");
    let evening = preview(&node, cron("0 17 * * *", new_york), after, 1).await;
    assert_eq!(evening, ["2026-11-01T22:00"]);
}

/// Where the clock jumps at midnight the day is not lost: every even hour that exists, and the fixed midnight at the jump.
#[tokio::test]
async fn a_gap_at_midnight_keeps_the_day() {
    let node = Node::leading();
    let cairo = "Africa/Cairo";
    let after = "2025-04-24T20:00:00Z";
    let found = preview(&node, cron("0 */2 * * *", cairo), after, 12).await;
    let hours = (1..=11).map(|n| format!("2025-04-25T{:02}:00", 2 * n - 1));
    let mut expected = vec!["2025-04-24T23:00".to_owned()];
    expected.extend(hours);
    assert_eq!(
        found, expected,
        "02:00, 04:00, … 22:00 of that day, then midnight of the next"
    );
    let fixed = preview(&node, cron("0 0 * * *", cairo), after, 2).await;
    assert_eq!(fixed, ["2025-04-24T22:00", "2025-04-25T21:00"]);
    let mut skip = cron("0 0 * * *", cairo);
    skip["dst_gap"] = json!("skip");
    let skipped = preview(&node, skip, after, 1).await;
    assert_eq!(
        skipped,
        ["2025-04-25T21:00"],
        "left out when that is asked for"
    );
}

/// The times of a rule never stand still or go back, and are the same one by one as all at once.
#[tokio::test]
async fn times_only_go_forward_and_do_not_depend_on_how_they_are_asked_for() {
    let node = Node::leading();
    for (zone, change) in [
        ("America/New_York", "2026-03-08T06:59:00Z"),
        ("America/New_York", "2026-11-01T05:59:00Z"),
        ("Europe/Berlin", "2026-03-29T00:59:00Z"),
        ("Australia/Lord_Howe", "2026-04-04T14:59:00Z"),
        ("Africa/Cairo", "2025-04-24T21:59:00Z"),
        ("America/Sao_Paulo", "2018-11-04T02:59:00Z"),
        ("Asia/Kathmandu", "1985-12-31T18:29:00Z"),
        ("Pacific/Apia", "2011-12-30T09:59:00Z"),
    ] {
        for text in [
            "* * * * *",
            "*/7 * * * *",
            "30 * * * *",
            "0 0 * * *",
            "30 2 * * *",
            "0 0 L * *",
            "59 23 * * SUN",
            "*/20 * * * * *",
            "0 0 29 2 *",
            "15 1,2,3 * * MON#1",
        ] {
            let all = preview(&node, cron(text, zone), change, 200).await;
            assert_eq!(all.len(), 200.min(all.len()));
            assert!(
                all.windows(2).all(|pair| pair[0] < pair[1]),
                "{zone} {text}"
            );
            assert!(all[0].as_str() > &change[..16], "{zone} {text}");
            let mut after = change.to_owned();
            for expected in all.iter().take(12) {
                let body =
                    json!({"rule": cron(text, zone), "after": after, "count": 1}).to_string();
                let one = node
                    .ask("POST", "/v1/schedules:preview", &body)
                    .await
                    .must(200);
                assert_eq!(&times(&one)[0], expected, "{zone} {text}");
                after = one.body["occurrences"][0]["nominal_at"]
                    .as_str()
                    .unwrap()
                    .to_owned();
            }
        }
    }
}

/// A rule that can never fire is refused at creation and at every kind of change, and what there was stays.
#[tokio::test]
async fn a_rule_that_never_fires_is_refused_and_leaves_the_old_one() {
    let node = Node::leading();
    let never = [
        json!({"cron": "0 0 30 2 *"}),
        json!({"cron": "0 0 31 4 *"}),
        json!({"cron": "0 0 31 2,4,6 *"}),
        json!({"cron": "0 9 * * *", "start_at": "2027-01-02T00:00:00Z", "end_at": "2027-01-01T00:00:00Z"}),
        json!({"cron": "0 9 1 1 *", "start_at": "2027-01-02T00:00:00Z", "end_at": "2027-03-01T00:00:00Z"}),
        json!({"every": "1h", "end_at": "2026-02-01T00:00:00Z"}),
    ];
    for rule in &never {
        let body = json!({"rule": rule}).to_string();
        let refused = node.ask("PUT", SCHEDULE, &body).await.must(422);
        assert!(refused.pointer().starts_with("/rule"), "{rule}");
        let code = refused.body["errors"][0]["code"].as_str().unwrap();
        assert!(
            matches!(code, "no_future_occurrence" | "out_of_range"),
            "{rule}: {code}"
        );
    }
    let old = node
        .ask("PUT", SCHEDULE, r#"{"rule":{"cron":"0 9 * * *"}}"#)
        .await
        .must(201);
    for rule in &never {
        let body = json!({"rule": rule}).to_string();
        node.ask("PUT", SCHEDULE, &body).await.must(422);
        node.ask("PATCH", SCHEDULE, &json!({"rule": rule}).to_string())
            .await
            .must(422);
        let batch = json!({"items": [{"schedule_id": "x", "rule": rule}]}).to_string();
        let batch = node
            .ask("POST", "/v1/tenants/default/schedules:batch", &batch)
            .await
            .must(200);
        assert_eq!(batch.body["items"][0]["result"]["status"], 422);
    }
    let now = node.ask("GET", SCHEDULE, "").await.must(200);
    assert_eq!(now.body, old.body);
    let leap = preview(&node, cron("0 0 29 2 *", "UTC"), "2026-03-01T00:00:00Z", 2).await;
    assert_eq!(leap, ["2028-02-29T00:00", "2032-02-29T00:00"]);
    let ends = preview(&node, cron("0 0 31 * *", "UTC"), "2026-03-31T00:00:00Z", 3).await;
    assert_eq!(
        ends,
        ["2026-05-31T00:00", "2026-07-31T00:00", "2026-08-31T00:00"],
        "none is clamped"
    );
}

/// A preview for a schedule of another tenant spreads as that tenant's schedule will.
#[tokio::test]
async fn a_preview_resolves_spread_times_as_the_schedule_of_its_tenant_does() {
    let node = Node::leading();
    let mut minutes = std::collections::BTreeSet::new();
    for tenant in ["default", "t1", "t2", "t3", "t4"] {
        node.ask("PUT", &format!("/v1/tenants/{tenant}"), "{}")
            .await;
        let target = format!("/v1/tenants/{tenant}/schedules/x");
        let made = node
            .ask("PUT", &target, r#"{"rule":{"cron":"H H * * *"}}"#)
            .await
            .must(201);
        let body = json!({"rule": {"cron": "H H * * *"}, "schedule_id": "x", "tenant": tenant, "count": 1});
        let shown = node
            .ask("POST", "/v1/schedules:preview", &body.to_string())
            .await
            .must(200);
        let next = made.body["status"]["next"]["nominal_at"].clone();
        assert_eq!(shown.body["occurrences"][0]["nominal_at"], next, "{tenant}");
        minutes.insert(next.to_string());
    }
    assert!(minutes.len() > 1, "{minutes:?}");
}

/// The answer of the preview of a retry policy.
async fn delays(node: &Node, retry: Value, count: u32) -> Answered {
    let body = json!({"retry": retry, "count": count}).to_string();
    node.ask("POST", "/v1/retries:preview", &body).await
}

/// Delays grow to their bound and stay there, whatever the number of the attempt.
#[tokio::test]
async fn delays_grow_to_their_bound_and_never_wrap() {
    let node = Node::leading();
    let plain = json!({"max_attempts": 100_000, "initial_backoff": "1s", "multiplier": 2, "max_backoff": "1h", "jitter": 0});
    let answer = delays(&node, plain.clone(), 1_000).await.must(200);
    for delay in answer.body["delays"].as_array().unwrap() {
        let n = delay["attempt"].as_u64().unwrap();
        let expected = if n <= 12 { 1_000 << (n - 1) } else { 3_600_000 };
        assert_eq!(delay["delay_ms"], expected, "attempt {n}");
    }
    let mut jittered = plain;
    jittered["jitter"] = json!(0.2);
    let answer = delays(&node, jittered, 1_000).await.must(200);
    for delay in answer.body["delays"].as_array().unwrap() {
        let [mid, min, max] = ["delay_ms", "min_ms", "max_ms"].map(|k| delay[k].as_u64().unwrap());
        assert!(
            min * 5 >= mid * 4 && max * 5 <= mid * 6 && max <= 3_600_000,
            "{delay}"
        );
    }
    // No bound asked for: the documented one is shown, and holds.
    let steep = json!({"max_attempts": 50, "initial_backoff": "1h", "multiplier": 10});
    let answer = delays(&node, steep, 40).await.must(200);
    assert_eq!(answer.body["retry"]["max_backoff"], "1h");
    let all = answer.body["delays"].as_array().unwrap();
    assert!(all.iter().all(|d| {
        d["max_ms"]
            .as_u64()
            .is_some_and(|ms| ms > 0 && ms <= 3_600_000)
    }));
    for (field, value) in [
        ("multiplier", json!(1e308)),
        ("multiplier", json!(-2)),
        ("initial_backoff", json!("31d")),
        ("max_backoff", json!("31d")),
        ("max_attempts", json!(100_001)),
        ("jitter", json!(1.5)),
    ] {
        let refused = delays(&node, json!({field: value}), 5).await.must(422);
        assert_eq!(refused.pointer(), format!("/retry/{field}"));
        let body = json!({"kind": "a", "retry": {field: value}}).to_string();
        let refused = node
            .ask("POST", "/v1/tenants/default/executions", &body)
            .await
            .must(422);
        assert_eq!(refused.pointer(), format!("/retry/{field}"));
    }
}

/// What later versions have is refused by name today, call by call.
#[tokio::test]
async fn what_is_not_there_says_so() {
    let node = Node::leading();
    let executions = "/v1/tenants/default/executions";
    node.ask("POST", executions, r#"{"execution_id":"e","kind":"a"}"#)
        .await
        .must(201);
    for (call, what) in [
        ("POST /v1/tenants/default/executions/e:replay", "replay"),
        ("POST /v1/tenants/default/dead-letters:replay", "replay"),
        (
            "POST /v1/tenants/default/dead-letters:discard",
            "discarding",
        ),
        ("POST /v1/tenants/default/schedules/x:backfill", "backfill"),
        (
            "POST /v1/tenants/default/executions/e:explain",
            "explanations",
        ),
        ("POST /v1/operations", "bulk operations"),
        ("GET /v1/events", "change feed"),
        ("PUT /v1/tenants/default/calendars/c", "calendars"),
    ] {
        let (method, target) = call.split_once(' ').unwrap();
        let answer = node.ask(method, target, "{}").await.must(501);
        assert_eq!(answer.code(), "not_implemented");
        assert!(
            answer.body["detail"].as_str().unwrap().contains(what),
            "{call}"
        );
    }
}
