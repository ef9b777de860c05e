//! Fields that are accepted take effect: each is set through the API and seen at work.

use std::sync::Arc;

use serde_json::{Value, json};

use super::crew::{Crew, Habits};
use super::whole::{CLAIM, EXECUTIONS, Nodes, reference};

const SCHEDULES: &str = "/v1/tenants/default/schedules";

async fn submit(nodes: &Nodes, id: &str, more: Value) {
    let mut body = json!({"execution_id": id, "kind": "a", "queue": "q"});
    let fields = more.as_object().cloned().unwrap_or_default();
    body.as_object_mut().expect("an object").extend(fields);
    nodes.good(&format!("POST {EXECUTIONS}"), &body).await;
}

/// Ids that a claim of queue `q` gets, with these fields.
async fn claim(nodes: &Nodes, more: Value) -> Vec<Value> {
    let mut body = json!({"worker_id": "w", "wait_ms": 0, "max": 100});
    let fields = more.as_object().cloned().unwrap_or_default();
    body.as_object_mut().expect("an object").extend(fields);
    let answer = nodes.good(&format!("POST {CLAIM}"), &body).await;
    answer["leases"].as_array().unwrap().clone()
}

fn ids(leases: &[Value]) -> Vec<&str> {
    leases
        .iter()
        .map(|l| l["execution_id"].as_str().unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn every_field_of_a_claim_takes_effect() {
    let nodes = Nodes::two(400).await;
    submit(&nodes, "gpu", json!({"requires": {"gpu": "yes"}})).await;
    submit(&nodes, "other", json!({"kind": "b"})).await;
    for n in 0..4 {
        submit(
            &nodes,
            &format!("e{n}"),
            json!({"payload": "x".repeat(1_000)}),
        )
        .await;
    }
    let held = claim(&nodes, json!({"kinds": ["b"]})).await;
    assert_eq!(ids(&held), ["other"]);
    assert_eq!(
        ids(&claim(&nodes, json!({"max": 1})).await),
        ["e0"],
        "what it cannot do is passed by"
    );
    assert_eq!(
        ids(&claim(&nodes, json!({"max_bytes": 1_500})).await),
        ["e1"]
    );
    assert_eq!(
        ids(&claim(&nodes, json!({"slots": 3})).await),
        Vec::<&str>::new(),
        "three are held"
    );
    assert_eq!(ids(&claim(&nodes, json!({"slots": 4})).await), ["e2"]);
    let wrong = claim(
        &nodes,
        json!({"labels": {"gpu": "no"}, "kinds": ["a"], "max": 1}),
    )
    .await;
    assert_eq!(ids(&wrong), ["e3"]);
    let labels = json!({"gpu": "yes", "zone": "a"});
    let right = claim(
        &nodes,
        json!({"labels": labels, "lease_ms": 60_000, "start_confirmation_ms": 500}),
    )
    .await;
    assert_eq!(
        (ids(&right), &right[0]["lease_ms"]),
        (vec!["gpu"], &json!(60_000))
    );
    nodes.cluster.pass(1_600).await;
    let shown = nodes.execution("gpu").await;
    assert_eq!(shown["attempts"][0]["outcome"], "start_unconfirmed");
    // Reports are applied first, under the same call; queues are served in their order.
    for (id, queue) in [("late", "second"), ("early", "first")] {
        submit(&nodes, id, json!({"queue": queue})).await;
    }
    let mut item = reference(&held[0]);
    item["action"] = json!("complete");
    let body = json!({"worker_id": "w", "queues": ["first", "second"], "wait_ms": 0, "reports": [item], "request_id": "r-1"});
    let answer = nodes.good("POST /v1/leases:claim", &body).await;
    assert_eq!(answer["reports"][0]["state"], "succeeded");
    assert_eq!(answer["leases"][0]["execution_id"], "early");
    let again = nodes
        .good(
            "POST /v1/leases:claim",
            &json!({"worker_id": "w", "queues": ["first", "second"],
        "wait_ms": 0, "request_id": "r-1"}),
        )
        .await;
    assert_eq!(
        (&again["replayed"], &again["leases"][0]["execution_id"]),
        (&json!(true), &json!("early"))
    );
}

#[tokio::test(start_paused = true)]
async fn every_limit_of_a_tenant_takes_effect() {
    let nodes = Arc::new(Nodes::two(401).await);
    let tenant = "/v1/tenants/t";
    nodes
        .good(
            &format!("PUT {tenant}"),
            &json!({"max_leased": 2, "open_executions_max": 5, "schedules_max": 1}),
        )
        .await;
    let work = json!({"kind": "a", "queue": "q"});
    for n in 0..6 {
        let answer = nodes
            .ask(0, "POST", &format!("{tenant}/executions"), &work)
            .await;
        assert_eq!(answer.status, if n < 5 { 201 } else { 429 });
        if n == 5 {
            assert_eq!(
                answer.body["quota"], "open_executions_max",
                "{}",
                answer.body
            );
        }
    }
    assert_eq!(claim(&nodes, json!({})).await.len(), 2);
    let usage = nodes
        .good(&format!("GET {tenant}/usage"), &Value::Null)
        .await;
    assert_eq!(
        (&usage["leased"], &usage["open_executions"]),
        (&json!(2), &json!(5))
    );
    for (id, status) in [("a", 201), ("b", 403)] {
        let rule = json!({"rule": {"every": "1h"}});
        let answer = nodes
            .ask(0, "PUT", &format!("{tenant}/schedules/{id}"), &rule)
            .await;
        assert_eq!(answer.status, status);
    }
    // A rate of one a second lets the other three go one by one.
    nodes
        .good(
            &format!("PUT {tenant}"),
            &json!({"rate": {"count": 1, "per": "1s"}}),
        )
        .await;
    let crew = Crew::start(&nodes, 5, Habits::taking(|_| 10));
    let done = crew.until_done(3, 5_000).await;
    let gaps: Vec<u64> = done
        .windows(2)
        .map(|pair| pair[1].began - pair[0].began)
        .collect();
    assert!(
        gaps.iter().all(|gap| (850..1_150).contains(gap)),
        "{gaps:?}"
    );
}

/// Tenants share a queue by weight; the queue's own weights stand over theirs.
#[tokio::test(start_paused = true)]
async fn weights_share_a_queue_and_its_order_can_put_priority_first() {
    let nodes = Nodes::two(402).await;
    for (tenant, weight) in [("heavy", 3), ("light", 1)] {
        nodes
            .good(
                &format!("PUT /v1/tenants/{tenant}"),
                &json!({"weight": weight}),
            )
            .await;
    }
    let count =
        |leases: &[Value], tenant: &str| leases.iter().filter(|l| l["tenant"] == tenant).count();
    for (queue, weights, order, heavy) in [
        ("q", json!(null), "fair_first", 30),
        ("r", json!({"heavy": 1, "light": 3}), "fair_first", 10),
        ("s", json!(null), "priority_first", 0),
    ] {
        let spec = json!({"weights": weights, "order": order});
        nodes.good(&format!("PUT /v1/queues/{queue}"), &spec).await;
        for (tenant, priority) in [("heavy", 3), ("light", 7)] {
            let items = vec![json!({"kind": "a", "queue": queue, "priority": priority}); 100];
            let call = format!("POST /v1/tenants/{tenant}/executions:batch");
            nodes.good(&call, &json!({"items": items})).await;
        }
        let body = json!({"worker_id": "w", "wait_ms": 0, "max": 40});
        let answer = nodes
            .good(&format!("POST /v1/queues/{queue}/leases:claim"), &body)
            .await;
        let leases = answer["leases"].as_array().unwrap();
        assert_eq!(leases.len(), 40, "{queue}");
        let got = count(leases, "heavy");
        assert!(got.abs_diff(heavy) <= 2, "{queue}: {got} of 40");
    }
}

/// One execution in each state, named after it; answers the leases of `dead`, `failing` and `holder`.
async fn one_in_each_state(nodes: &Nodes) -> Vec<Value> {
    nodes
        .good("PUT /v1/tenants/default/keys/k", &json!({"max_leased": 1}))
        .await;
    nodes
        .good(
            "PUT /v1/queues/slow",
            &json!({"rate": {"count": 1, "per": "1h"}}),
        )
        .await;
    submit(nodes, "delayed", json!({"delay": "1h"})).await;
    submit(nodes, "holder", json!({"concurrency_key": "k"})).await;
    submit(nodes, "blocked", json!({"concurrency_key": "k"})).await;
    submit(
        nodes,
        "failing",
        json!({"priority": 8, "retry": {"initial_backoff": "1h", "max_backoff": "1h"}}),
    )
    .await;
    submit(
        nodes,
        "dead",
        json!({"priority": 9, "retry": {"max_attempts": 1}}),
    )
    .await;
    submit(nodes, "spent", json!({"queue": "slow"})).await;
    submit(nodes, "rated", json!({"queue": "slow"})).await;
    let leases = claim(nodes, json!({"max": 3})).await;
    assert_eq!(ids(&leases), ["dead", "failing", "holder"]);
    let failed: Vec<Value> = leases[..2].iter().map(reference).collect();
    nodes.say("w", "fail", &failed).await;
    let slow = json!({"worker_id": "w", "wait_ms": 0});
    nodes.good("POST /v1/queues/slow/leases:claim", &slow).await;
    submit(nodes, "ready", json!({})).await;
    submit(nodes, "paused", json!({"queue": "still"})).await;
    nodes
        .good("POST /v1/queues/still:pause", &Value::Null)
        .await;
    leases
}

/// Cancelling works in every state, through any node.
#[tokio::test(start_paused = true)]
async fn a_cancel_reaches_every_state_through_any_node() {
    let nodes = Nodes::two(403).await;
    let leases = one_in_each_state(&nodes).await;
    for (id, before, outcome, after) in [
        ("delayed", "waiting", "cancelled", "cancelled"),
        ("ready", "ready", "cancelled", "cancelled"),
        ("blocked", "ready", "cancelled", "cancelled"),
        ("rated", "ready", "cancelled", "cancelled"),
        ("paused", "ready", "cancelled", "cancelled"),
        ("failing", "backing_off", "cancelled", "cancelled"),
        ("holder", "leased", "requested", "leased"),
        ("dead", "dead_lettered", "already_final", "dead_lettered"),
        ("delayed", "cancelled", "already_final", "cancelled"),
    ] {
        assert_eq!(nodes.execution(id).await["state"], before, "{id}");
        let target = format!("{EXECUTIONS}/{id}:cancel");
        let answer = nodes.ask(1, "POST", &target, &Value::Null).await.must(200);
        assert_eq!(
            (&answer.body["outcome"], &answer.body["state"]),
            (&json!(outcome), &json!(after)),
            "{id}"
        );
    }
    // The one that runs is told; that it gives up ends it, and nothing is claimed any more.
    let holder = reference(&leases[2]);
    let told = nodes.say("w", "renew", std::slice::from_ref(&holder)).await;
    assert_eq!(told[0]["cancel_requested"], true);
    nodes
        .say("w", "release", std::slice::from_ref(&holder))
        .await;
    assert_eq!(nodes.execution("holder").await["state"], "cancelled");
    nodes
        .good("POST /v1/queues/still:resume", &Value::Null)
        .await;
    nodes.cluster.pass(3_700_000).await;
    for queue in ["q", "slow", "still"] {
        let target = format!("POST /v1/queues/{queue}/leases:claim");
        let got = nodes
            .good(
                &target,
                &json!({"worker_id": "w2", "wait_ms": 0, "max": 10}),
            )
            .await;
        let left = got["leases"].as_array().unwrap();
        assert!(
            left.iter().all(|l| l["execution_id"] == "spent"),
            "{left:?}"
        );
    }
    nodes.cluster.check();
}

/// Totals of a schedule add up, whatever became of its executions.
#[tokio::test(start_paused = true)]
async fn the_totals_of_a_schedule_add_up() {
    let nodes = Nodes::two(404).await;
    let body = json!({"rule": {"every": "1s"}, "queue": "q", "retry": {"max_attempts": 1}, "timeouts": {"start": "20s"}});
    nodes.good(&format!("PUT {SCHEDULES}/s"), &body).await;
    nodes.cluster.pass(12_500).await;
    let leases = claim(&nodes, json!({"max": 6})).await;
    let items: Vec<Value> = leases.iter().map(reference).collect();
    nodes.say("w", "complete", &items[..3]).await;
    nodes.say("w", "fail", &items[3..5]).await;
    let open = nodes
        .good(
            &format!("GET {EXECUTIONS}?schedule=s&state=ready"),
            &Value::Null,
        )
        .await;
    for one in open["items"].as_array().unwrap().iter().take(2) {
        let target = format!(
            "POST {EXECUTIONS}/{}:cancel",
            one["execution_id"].as_str().unwrap()
        );
        nodes.good(&target, &Value::Null).await;
    }
    nodes
        .good(&format!("POST {SCHEDULES}/s:pause"), &Value::Null)
        .await;
    nodes.cluster.pass(25_000).await;
    let shown = nodes
        .good(&format!("GET {SCHEDULES}/s"), &Value::Null)
        .await;
    let (status, totals) = (&shown["status"], &shown["status"]["totals"]);
    let n = |value: &Value| value.as_u64().unwrap();
    assert_eq!((n(&totals["succeeded"]), n(&totals["cancelled"])), (3, 2));
    assert!(
        n(&totals["expired"]) > 0 && n(&totals["dead_lettered"]) >= 2,
        "{totals}"
    );
    let ended = ["succeeded", "dead_lettered", "cancelled", "expired"].map(|k| n(&totals[k]));
    let all = ended.iter().sum::<u64>() + n(&status["open"]["total"]);
    assert_eq!(all, n(&status["created_count"]), "{status}");
    for state in ["succeeded", "dead_lettered", "cancelled", "expired"] {
        let list = format!("GET {EXECUTIONS}?schedule=s&state={state}");
        let listed = nodes.good(&list, &Value::Null).await["items"]
            .as_array()
            .unwrap()
            .len();
        assert_eq!(u64::try_from(listed).unwrap(), n(&totals[state]), "{state}");
    }
}

async fn is_there(nodes: &Nodes, id: &str) -> bool {
    let target = format!("{EXECUTIONS}/{id}");
    nodes.ask(0, "GET", &target, &Value::Null).await.status == 200
}

/// Each class of ended work is kept as long as its queue says; the schedule keeps its last outcomes and its next time.
#[tokio::test(start_paused = true)]
async fn each_class_of_ended_work_has_its_own_retention() {
    let nodes = Nodes::two(405).await;
    let retention = json!({"succeeded": "1h", "other": "5h", "dead_lettered": "1d"});
    nodes
        .good("PUT /v1/queues/q", &json!({"retention": retention}))
        .await;
    let rule = json!({"rule": {"cron": "0 0 1 * *"}, "queue": "q"});
    nodes.good(&format!("PUT {SCHEDULES}/monthly"), &rule).await;
    let run = nodes
        .good(&format!("POST {SCHEDULES}/monthly:trigger"), &Value::Null)
        .await;
    for id in ["good", "bad", "gone"] {
        submit(&nodes, id, json!({"retry": {"max_attempts": 1}})).await;
    }
    let leases = claim(&nodes, json!({"max": 3})).await;
    assert_eq!(ids(&leases)[1..], ["good", "bad"]);
    nodes
        .say(
            "w",
            "complete",
            &[reference(&leases[0]), reference(&leases[1])],
        )
        .await;
    nodes.say("w", "fail", &[reference(&leases[2])]).await;
    nodes
        .good(&format!("POST {EXECUTIONS}/gone:cancel"), &Value::Null)
        .await;
    nodes.cluster.pass(2 * 3_600_000).await;
    assert_eq!(
        [
            is_there(&nodes, "good").await,
            is_there(&nodes, "gone").await,
            is_there(&nodes, "bad").await
        ],
        [false, true, true]
    );
    nodes.cluster.pass(5 * 3_600_000).await;
    assert_eq!(
        [
            is_there(&nodes, "gone").await,
            is_there(&nodes, "bad").await
        ],
        [false, true]
    );
    let shown = nodes
        .good(&format!("GET {SCHEDULES}/monthly"), &Value::Null)
        .await;
    assert_eq!(shown["status"]["last"]["execution_id"], run["execution_id"]);
    assert_eq!(shown["status"]["totals"]["succeeded"], 1);
    assert!(shown["status"]["next"]["nominal_at"].is_string());
}

/// Work that nobody takes grows older although nothing else happens, and that can be seen.
#[tokio::test(start_paused = true)]
async fn the_age_of_waiting_work_grows_in_a_quiet_cluster() {
    let nodes = Nodes::two(406).await;
    submit(&nodes, "forgotten", json!({})).await;
    for hours in 1..=3 {
        nodes.cluster.pass(3_600_000).await;
        for node in [0, 1] {
            let target = "/v1/queues/q/stats";
            let stats = nodes.ask(node, "GET", target, &Value::Null).await.must(200);
            let seen = stats.body["oldest_wait_ms"].as_u64().unwrap();
            assert!(
                seen >= hours * 3_600_000,
                "{seen} ms after {hours} h on node {node}"
            );
        }
    }
}

/// More failures in a row than any exponent can count: each delay is above zero and within the bound.
#[tokio::test(start_paused = true)]
async fn more_than_a_thousand_failures_in_a_row_are_retried_within_the_bound() {
    let nodes = Nodes::two(407).await;
    let retry = json!({"max_attempts": 1_200, "initial_backoff": "1ms", "multiplier": 2, "max_backoff": "20ms"});
    submit(&nodes, "e", json!({"retry": retry})).await;
    for attempt in 1..=1_150 {
        let body = json!({"worker_id": "w", "wait_ms": 1_000});
        let answer = nodes.good(&format!("POST {CLAIM}"), &body).await;
        let lease = &answer["leases"][0];
        assert_eq!(lease["attempt"], attempt);
        nodes.say("w", "fail", &[reference(lease)]).await;
        if attempt % 50 == 0 {
            let shown = nodes.execution("e").await;
            let last = shown["attempts"].as_array().unwrap().last().unwrap();
            let delay = last["delay_ms"].as_u64().unwrap();
            assert!(
                (1..=20).contains(&delay),
                "{delay} ms after attempt {attempt}"
            );
        }
    }
    let shown = nodes.execution("e").await;
    assert_eq!(
        (&shown["state"], &shown["attempts_started"]),
        (&json!("backing_off"), &json!(1_150))
    );
    nodes.cluster.check();
}
