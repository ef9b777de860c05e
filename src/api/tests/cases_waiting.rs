//! Who waits is served as soon as what held the work back is gone; who comes twice gets one thing.

use serde_json::{Value, json};

use super::whole::{CLAIM, EXECUTIONS, Nodes, reference};

const SCHEDULES: &str = "/v1/tenants/default/schedules";

/// What holds work of queue `q` back, and what lets it go: call and body each.
const GATES: &[(&str, &str, &str, &str)] = &[
    (
        "POST /v1/queues/q:pause",
        "",
        "POST /v1/queues/q:resume",
        "",
    ),
    (
        "POST /v1/tenants/default:pause",
        "",
        "POST /v1/tenants/default:resume",
        "",
    ),
    ("POST /v1/cluster:pause", "", "POST /v1/cluster:resume", ""),
    (
        "PUT /v1/queues/q",
        r#"{"max_leased":0}"#,
        "PUT /v1/queues/q",
        r#"{"max_leased":1}"#,
    ),
    (
        "PUT /v1/queues/q",
        r#"{"max_leased":0}"#,
        "PUT /v1/queues/q",
        "{}",
    ),
    (
        "PUT /v1/queues/q",
        r#"{"allowed_tenants":[]}"#,
        "PUT /v1/queues/q",
        r#"{"allowed_tenants":["default"]}"#,
    ),
    (
        "PUT /v1/tenants/default",
        r#"{"max_leased":0}"#,
        "PUT /v1/tenants/default",
        r#"{"max_leased":5}"#,
    ),
    (
        "PUT /v1/tenants/default/keys/k",
        r#"{"max_leased":0}"#,
        "PUT /v1/tenants/default/keys/k",
        r#"{"max_leased":1}"#,
    ),
    (
        "PUT /v1/tenants/default/keys/k",
        r#"{"max_leased":0}"#,
        "PUT /v1/tenants/default/keys/k",
        "{}",
    ),
    ("POST /v1/kinds/a:pause", "", "POST /v1/kinds/a:resume", ""),
];

/// A poll that waits gets nothing through a closed gate, and the work at once when it opens.
#[tokio::test(start_paused = true)]
async fn a_poll_gets_nothing_through_a_closed_gate_and_the_work_when_it_opens() {
    for (n, (shut, shut_body, open, open_body)) in GATES.iter().enumerate() {
        let nodes = Nodes::two(500 + n as u64).await;
        let parse = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
        let body = json!({"execution_id": "e", "kind": "a", "queue": "q", "concurrency_key": "k"});
        nodes.good(&format!("POST {EXECUTIONS}"), &body).await;
        nodes.good(shut, &parse(shut_body)).await;
        let poll = nodes.claim(1, "w", 5, 30_000);
        let begin = tokio::time::Instant::now();
        let opening = async {
            nodes.cluster.pass(10_000).await;
            let held = nodes.execution("e").await;
            assert_eq!(held["state"], "ready", "{shut}");
            nodes.good(open, &parse(open_body)).await;
        };
        let (leases, ()) = tokio::join!(poll, opening);
        assert_eq!(leases.len(), 1, "{open}");
        let took = begin.elapsed().as_millis();
        assert!(
            (10_000..10_200).contains(&took),
            "{shut}, {open}: {took} ms"
        );
        nodes.cluster.check();
    }
}

/// A pause with an end ends by itself, for who waits too.
#[tokio::test(start_paused = true)]
async fn a_timed_pause_ends_in_time_for_who_waits() {
    for scope in ["queues/q", "tenants/default", "kinds/a", "cluster"] {
        let nodes = Nodes::two(520).await;
        nodes.submit("e").await;
        let wall = crate::time::Clock::wall(nodes.cluster.clock.as_ref());
        let until = wall.plus(crate::time::Millis::secs(5)).to_rfc3339();
        let pause = json!({"until": until, "reason": "soon over"});
        nodes.good(&format!("POST /v1/{scope}:pause"), &pause).await;
        let begin = tokio::time::Instant::now();
        assert_eq!(nodes.claim(0, "w", 1, 30_000).await.len(), 1, "{scope}");
        let took = begin.elapsed().as_millis();
        assert!((4_900..5_300).contains(&took), "{scope}: {took} ms");
    }
}

/// One key, many requests at once through both nodes: one execution; who comes too early is told to come back.
#[tokio::test(start_paused = true)]
async fn many_requests_with_one_key_make_one_thing() {
    let nodes = Nodes::two(521).await;
    let body = json!({"kind": "a", "queue": "q"});
    let asked = (0..50).map(|n| nodes.keyed(n % 2, "POST", EXECUTIONS, &body, Some("K")));
    let answers = futures::future::join_all(asked).await;
    let mut ids = std::collections::BTreeSet::new();
    for answer in &answers {
        match answer.status {
            201 => drop(ids.insert(answer.body["execution_id"].to_string())),
            _ => assert_eq!(
                (answer.status, answer.code()),
                (409, "idempotency_in_progress")
            ),
        }
    }
    assert_eq!(ids.len(), 1);
    let again = nodes
        .keyed(1, "POST", EXECUTIONS, &body, Some("K"))
        .await
        .must(201);
    assert!(ids.contains(&again.body["execution_id"].to_string()));
    assert_eq!(nodes.claim(0, "w", 50, 500).await.len(), 1);
    // The same for an act: a trigger under one key runs once.
    nodes
        .good(
            &format!("PUT {SCHEDULES}/s"),
            &json!({"rule": {"every": "1h"}, "queue": "q"}),
        )
        .await;
    let trigger = format!("{SCHEDULES}/s:trigger");
    let asked = (0..20).map(|n| nodes.keyed(n % 2, "POST", &trigger, &Value::Null, Some("K")));
    let answers = futures::future::join_all(asked).await;
    assert!(answers.iter().all(|a| matches!(a.status, 201 | 409)));
    assert_eq!(nodes.claim(0, "w", 50, 500).await.len(), 1);
}

/// A schedule that is deleted and made anew is another one: what ran under the old one neither blocks nor counts.
#[tokio::test(start_paused = true)]
async fn a_schedule_made_anew_owes_nothing_to_the_one_before() {
    let nodes = Nodes::two(522).await;
    let body =
        json!({"rule": {"every": "4s"}, "queue": "q", "overlap": {"policy": "skip"}, "payload": 1});
    let old = nodes.good(&format!("PUT {SCHEDULES}/s"), &body).await;
    let lease = &nodes.claim(0, "w", 1, 20_000).await[0];
    nodes
        .good(&format!("DELETE {SCHEDULES}/s"), &Value::Null)
        .await;
    nodes
        .ask(1, "GET", &format!("{SCHEDULES}/s"), &Value::Null)
        .await
        .must(404);
    let mut other = body;
    other["payload"] = json!(2);
    let new = nodes.good(&format!("PUT {SCHEDULES}/s"), &other).await;
    assert_ne!(new["incarnation"], old["incarnation"]);
    assert_eq!(
        (&new["generation"], &new["status"]["open"]["total"]),
        (&json!(1), &json!(0))
    );
    let next = &nodes.claim(0, "w2", 1, 20_000).await[0];
    assert_eq!(
        next["payload"], 2,
        "the open one of before does not block it"
    );
    let done = nodes.say("w", "complete", &[reference(lease)]).await;
    assert_eq!(done[0]["state"], "succeeded");
    let shown = nodes
        .good(&format!("GET {SCHEDULES}/s"), &Value::Null)
        .await;
    assert_eq!(
        shown["status"]["totals"]["succeeded"], 0,
        "it was not its own"
    );
    assert_eq!(shown["status"]["last"], Value::Null);
    for _ in 0..20 {
        for node in [0, 1] {
            let seen = nodes
                .ask(node, "GET", &format!("{SCHEDULES}/s"), &Value::Null)
                .await;
            assert_eq!(seen.must(200).body["payload"], 2);
        }
    }
    nodes.cluster.check();
}

/// A claim whose lease is as long as its wait is still served with a whole lease.
#[tokio::test(start_paused = true)]
async fn a_lease_is_whole_however_long_its_claim_has_waited() {
    let nodes = Nodes::two(523).await;
    let claim = json!({"worker_id": "w", "wait_ms": 10_000, "lease_ms": 1_000});
    let poll = nodes.ask(0, "POST", CLAIM, &claim);
    let submitting = async {
        nodes.cluster.pass(9_000).await;
        nodes.submit("e").await;
    };
    let (answer, ()) = tokio::join!(poll, submitting);
    let lease = &answer.must(200).body["leases"][0];
    assert!(lease["expires_in_ms"].as_u64() > Some(900), "{lease}");
    let renewed = nodes.say("w", "renew", &[reference(lease)]).await;
    assert_eq!(renewed[0]["status"], "ok");
}

/// A kind is paused in every queue, others go on; the pause is shown, survives a change of leader, and is no skip.
#[tokio::test(start_paused = true)]
async fn a_paused_kind_waits_in_every_queue_and_others_go_on() {
    let nodes = Nodes::two(524).await;
    for (kind, queue) in [("Mail:send/v2", "q"), ("Mail:send/v2", "r"), ("other", "q")] {
        let body = json!({"kind": kind, "queue": queue});
        nodes.good(&format!("POST {EXECUTIONS}"), &body).await;
    }
    let path = "/v1/kinds/Mail:send%2Fv2";
    let dry = nodes
        .ask(
            0,
            "POST",
            &format!("{path}:pause?dry_run=true"),
            &Value::Null,
        )
        .await;
    assert_eq!(dry.must(200).header("x-dry-run"), "true");
    let why = json!({"reason": "the gateway is down"});
    let shown = nodes.good(&format!("POST {path}:pause"), &why).await;
    assert_eq!(
        (&shown["kind"], &shown["paused"]["reason"]),
        (&json!("Mail:send/v2"), &why["reason"])
    );
    nodes.cluster.elect(1);
    nodes.cluster.leader().await;
    let claim = json!({"worker_id": "w", "queues": ["q", "r"], "max": 9, "wait_ms": 500});
    let got = nodes.good("POST /v1/leases:claim", &claim).await;
    let kinds: Vec<_> = got["leases"]
        .as_array()
        .unwrap()
        .iter()
        .map(|l| l["kind"].clone())
        .collect();
    assert_eq!(kinds, ["other"]);
    let list = nodes
        .ask(1, "GET", "/v1/kinds", &Value::Null)
        .await
        .must(200);
    assert_eq!(list.body["items"], json!([shown]));
    let resumed = nodes
        .good(&format!("POST {path}:resume"), &Value::Null)
        .await;
    assert_eq!(resumed["paused"], Value::Null);
    let got = nodes.good("POST /v1/leases:claim", &claim).await;
    assert_eq!(got["leases"].as_array().unwrap().len(), 2);
    let list = nodes.good("GET /v1/kinds", &Value::Null).await;
    assert_eq!(list["items"], json!([]));
    for (target, status) in [
        ("/v1/kinds/a%20b:pause", 400),
        ("/v1/kinds/:pause", 404),
        ("/v1/kinds/a:stop", 404),
    ] {
        nodes
            .ask(0, "POST", target, &Value::Null)
            .await
            .must(status);
    }
    let until = json!({"until": "2020-01-01T00:00:00Z"});
    assert_eq!(
        nodes
            .ask(0, "POST", "/v1/kinds/a:pause", &until)
            .await
            .must(422)
            .pointer(),
        "/until"
    );
}
