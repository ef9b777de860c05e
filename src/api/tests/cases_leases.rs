//! Leases, reports, retries and cancellation as workers live through them, with faults that others had.

use serde_json::{Value, json};

use super::whole::{CLAIM, EXECUTIONS, Nodes, reference};

/// Submits one execution of queue `q` and answers its id.
async fn submit(nodes: &Nodes, id: &str, more: Value) {
    let mut body = json!({"execution_id": id, "kind": "a", "queue": "q"});
    let fields = more.as_object().cloned().unwrap_or_default();
    body.as_object_mut().expect("an object").extend(fields);
    nodes.good(&format!("POST {EXECUTIONS}"), &body).await;
}

/// The lease of the one execution that can be had.
async fn one_lease(nodes: &Nodes, worker: &str, lease_ms: u64, wait_ms: u64) -> Option<Value> {
    let body = json!({"worker_id": worker, "wait_ms": wait_ms, "lease_ms": lease_ms});
    let answer = nodes.good(&format!("POST {CLAIM}"), &body).await;
    answer["leases"].get(0).cloned()
}

fn merged(lease: &Value, more: Value) -> Value {
    let mut item = reference(lease);
    let fields = more.as_object().cloned().unwrap_or_default();
    item.as_object_mut().expect("an object").extend(fields);
    item
}

fn now(nodes: &Nodes) -> u64 {
    crate::time::Clock::monotonic(nodes.cluster.clock.as_ref()).0
}

/// A worker with many leases is told about each of them.
#[tokio::test(start_paused = true)]
async fn a_renewal_of_many_answers_each_and_the_one_left_out_expires_alone() {
    let nodes = Nodes::two(200).await;
    for n in 0..5 {
        submit(&nodes, &format!("e{n}"), json!({})).await;
    }
    let leases = nodes.claim(0, "w", 5, 1_000).await;
    nodes
        .good(&format!("POST {EXECUTIONS}/e1:cancel"), &Value::Null)
        .await;
    nodes.cluster.pass(6_000).await;
    let mut items: Vec<Value> = leases[..4].iter().map(reference).collect();
    items[2]["fencing_token"] = json!(1);
    let results = nodes.say("w", "renew", &items).await;
    let told: Vec<_> = results
        .iter()
        .map(|r| {
            [
                &r["execution_id"],
                &r["status"],
                &r["cancel_requested"],
                &r["reason"],
            ]
        })
        .collect();
    let word = |text: &str| json!(text);
    let (ok, none) = (word("ok"), Value::Null);
    assert_eq!(told[0], [&word("e0"), &ok, &json!(false), &none]);
    assert_eq!(told[1], [&word("e1"), &ok, &json!(true), &none]);
    assert_eq!(told[2][..2], [&word("e2"), &word("lease_lost")]);
    assert_eq!(told[3], [&word("e3"), &ok, &json!(false), &none]);
    assert!(results[0]["expires_in_ms"].as_u64() > Some(9_900));
    nodes.cluster.pass(5_000).await;
    for (id, state) in [
        ("e0", "leased"),
        ("e1", "leased"),
        ("e3", "leased"),
        ("e4", "backing_off"),
    ] {
        assert_eq!(nodes.execution(id).await["state"], state, "{id}");
    }
    // The stale word for e2 changed nothing either way: it was not renewed.
    assert_eq!(nodes.execution("e2").await["state"], "backing_off");
}

/// A lease is neither shorter nor much longer than it says, and says how long it is.
#[tokio::test(start_paused = true)]
async fn each_lease_ends_at_its_own_time() {
    let nodes = Nodes::two(201).await;
    let lengths = [1_000, 2_000, 2_000, 10_000, 3_500, 30_000, 10_000];
    let mut ends = Vec::new();
    for (n, length) in lengths.into_iter().enumerate() {
        submit(
            &nodes,
            &format!("e{n}"),
            json!({"retry": {"initial_backoff": "0s"}}),
        )
        .await;
        let lease = one_lease(&nodes, "w", length, 1_000)
            .await
            .expect("there is work");
        let left = lease["expires_in_ms"].as_u64().unwrap();
        assert_eq!(lease["lease_ms"], length);
        assert!(left <= length && left + 50 >= length, "{left} of {length}");
        ends.push((lease["execution_id"].clone(), now(&nodes) + left, length));
    }
    while !ends.is_empty() {
        nodes.cluster.pass(20).await;
        let page = nodes
            .good(&format!("GET {EXECUTIONS}?page_size=50"), &Value::Null)
            .await;
        let items = page["items"].as_array().unwrap().clone();
        ends.retain(|(id, end, length)| {
            let found = items.iter().find(|i| i["execution_id"] == *id).unwrap();
            let is_leased = found["state"] == "leased";
            let late = now(&nodes).saturating_sub(*end);
            assert!(is_leased || now(&nodes) >= *end, "{id} ended early");
            assert!(
                !is_leased || late <= (length / 10).max(1_000),
                "{id} is {late} ms over"
            );
            is_leased
        });
    }
    for length in [0, 999, 86_400_001] {
        let body = json!({"worker_id": "w", "lease_ms": length});
        let answer = nodes.ask(0, "POST", CLAIM, &body).await.must(422);
        assert_eq!(answer.pointer(), "/lease_ms");
    }
}

/// Who missed the deadline has lost the lease, also when nobody else has taken the work.
#[tokio::test(start_paused = true)]
async fn a_renewal_after_the_deadline_is_refused_whether_or_not_another_waits() {
    for another in [false, true] {
        let nodes = Nodes::two(202).await;
        submit(
            &nodes,
            "e",
            json!({"retry": {"initial_backoff": "1s", "jitter": 0}}),
        )
        .await;
        let lease = one_lease(&nodes, "late", 5_000, 1_000).await.unwrap();
        let other = async {
            match another {
                true => one_lease(&nodes, "other", 30_000, 12_000).await,
                false => None,
            }
        };
        let late = async {
            nodes.cluster.pass(7_000).await;
            for what in ["renew", "complete"] {
                let said = nodes.say("late", what, &[reference(&lease)]).await;
                assert_eq!(said[0]["status"], "lease_lost", "{what}");
                assert_eq!(said[0]["reason"], "lease_expired", "{what}");
            }
        };
        let (taken, ()) = tokio::join!(other, late);
        let shown = nodes.execution("e").await;
        assert_eq!(shown["lease_losses"], 1);
        assert_eq!(shown["attempts"][0]["outcome"], "lease_expired");
        assert_eq!(taken.is_some(), another);
        if let Some(taken) = taken {
            assert_eq!(taken["attempt"], 2);
            assert!(taken["fencing_token"].as_u64() > lease["fencing_token"].as_u64());
        }
    }
}

/// The clock of a worker's machine cannot matter: no call of a worker carries an instant, and answers carry lengths.
#[tokio::test]
async fn no_call_of_a_worker_says_what_time_it_is() {
    let node = crate::api::testing::Node::leading();
    let document = node.ask("GET", "/openapi.json", "").await.must(200).body;
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let bodies = [
        "Claim",
        "RenewLeases",
        "CompleteLeases",
        "FailLeases",
        "ReleaseLeases",
        "ReportLeases",
    ];
    let items = [
        "RenewItem",
        "CompleteItem",
        "FailItem",
        "ReleaseItem",
        "ReportItem",
        "WorkerError",
    ];
    for name in bodies.iter().chain(&items) {
        let text = schemas[*name].to_string();
        assert!(
            !text.contains("date-time") && !text.contains("/Instant"),
            "{name}: {text}"
        );
    }
    for (name, field) in [
        ("Lease", "expires_in_ms"),
        ("ReportResult", "expires_in_ms"),
    ] {
        assert!(schemas[name]["properties"][field].is_object(), "{name}");
    }
}

/// A result that is too long must not make the work be done again.
#[tokio::test(start_paused = true)]
async fn an_oversized_word_leaves_the_lease_as_it_was() {
    let nodes = Nodes::two(203).await;
    submit(&nodes, "e", json!({})).await;
    let lease = one_lease(&nodes, "w", 10_000, 1_000).await.unwrap();
    let long = |bytes: usize| Value::from("x".repeat(bytes));
    for (what, field, bytes) in [
        ("complete", "result", 70_000),
        ("renew", "progress", 20_000),
    ] {
        let item = merged(&lease, json!({field: long(bytes)}));
        let body = json!({"worker_id": "w", "leases": [item]});
        let answer = nodes
            .ask(0, "POST", &format!("/v1/leases:{what}"), &body)
            .await;
        let answer = answer.must(413);
        assert_eq!(answer.pointer(), format!("/leases/0/{field}"));
        assert_eq!(nodes.execution("e").await["state"], "leased");
    }
    let item = merged(&lease, json!({"result": "short"}));
    let done = nodes.say("w", "complete", &[item]).await;
    assert_eq!(done[0]["state"], "succeeded");
    assert_eq!(nodes.execution("e").await["attempts_started"], 1);
    // An error is cut instead: however long it is, the failure is on record.
    submit(&nodes, "f", json!({})).await;
    let lease = one_lease(&nodes, "w", 10_000, 1_000).await.unwrap();
    let error =
        json!({"type": "T", "message": "at line\n".repeat(100_000), "details": long(1 << 20)});
    let item = merged(&lease, json!({"error": error, "retryable": false}));
    nodes.say("w", "fail", &[item]).await;
    let shown = nodes.execution("f").await;
    assert_eq!(
        (&shown["state"], &shown["truncated"]),
        (&json!("dead_lettered"), &json!(true))
    );
    assert_eq!(shown["attempts"][0]["error"]["type"], "T");
}

/// Work that kills its worker says nothing; the attempts are counted all the same, and the rest of the queue goes on.
#[tokio::test(start_paused = true)]
async fn work_that_kills_its_workers_ends_as_a_dead_letter_that_names_them() {
    let nodes = Nodes::two(204).await;
    let retry = json!({"retry": {"max_attempts": 3, "initial_backoff": "100ms"}, "priority": 9});
    submit(&nodes, "poison", retry).await;
    for n in 0..60 {
        submit(&nodes, &format!("healthy-{n}"), json!({})).await;
    }
    let mut killed = Vec::new();
    for process in 0..1_000 {
        let worker = format!("w{process}");
        while let Some(lease) = one_lease(&nodes, &worker, 2_000, 500).await {
            if lease["execution_id"] == "poison" {
                killed.push(json!(worker));
                break;
            }
            nodes.say(&worker, "complete", &[reference(&lease)]).await;
        }
        if nodes.execution("poison").await["state"] == "dead_lettered" {
            break;
        }
    }
    assert_eq!(killed.len(), 3);
    let shown = nodes.execution("poison").await;
    assert_eq!(shown["final_reason"], "attempts_exhausted");
    let attempts = shown["attempts"].as_array().unwrap();
    let told: Vec<_> = attempts.iter().map(|a| a["worker_id"].clone()).collect();
    assert_eq!(told, killed);
    assert!(attempts.iter().all(|a| a["outcome"] == "lease_expired"));
    let list = format!("GET {EXECUTIONS}?state=succeeded&page_size=100");
    let healthy = nodes.good(&list, &Value::Null).await;
    assert_eq!(healthy["items"].as_array().unwrap().len(), 60);
    let dead = nodes
        .good("GET /v1/tenants/default/dead-letters", &Value::Null)
        .await;
    assert_eq!(dead["items"].as_array().unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_lease_with_attempts_left_is_retried_after_its_delay() {
    let nodes = Nodes::two(205).await;
    let retry = json!({"max_attempts": 3, "initial_backoff": "2s", "multiplier": 1, "jitter": 0});
    submit(&nodes, "e", json!({"retry": retry})).await;
    for attempt in 1..=3 {
        let lease = one_lease(&nodes, "w", 1_000, 5_000)
            .await
            .expect("it is claimable");
        assert_eq!(lease["attempt"], attempt);
        let end = now(&nodes) + lease["expires_in_ms"].as_u64().unwrap();
        while nodes.execution("e").await["state"] == "leased" {
            nodes.cluster.pass(10).await;
        }
        let shown = nodes.execution("e").await;
        if attempt == 3 {
            assert_eq!(shown["state"], "dead_lettered");
            break;
        }
        assert_eq!(shown["state"], "backing_off");
        assert_eq!(one_lease(&nodes, "w", 1_000, 0).await, None);
        nodes
            .cluster
            .pass((end + 1_990).saturating_sub(now(&nodes)))
            .await;
        assert_eq!(
            one_lease(&nodes, "w", 1_000, 0).await,
            None,
            "not before its delay"
        );
    }
    let shown = nodes.execution("e").await;
    let outcomes = shown["attempts"].as_array().unwrap().iter();
    assert!(
        outcomes
            .map(|a| &a["outcome"])
            .eq([&json!("lease_expired"); 3])
    );
}

/// A delay that is none is refused by name, and costs neither the lease nor an attempt.
#[tokio::test(start_paused = true)]
async fn a_workers_own_delay_is_taken_or_refused_never_ignored() {
    let nodes = Nodes::two(206).await;
    let retry = json!({"initial_backoff": "7s", "max_backoff": "1h", "jitter": 0});
    submit(&nodes, "e", json!({"retry": retry})).await;
    let lease = one_lease(&nodes, "w", 60_000, 1_000).await.unwrap();
    let wrong = [
        json!(0.5),
        json!(-1),
        json!(1e308),
        json!("1 day"),
        json!("2076-01-01T00:00:00Z"),
        json!(true),
        json!(2_592_000_001_u64),
        json!(1_577_880_000_000_u64),
        json!([1]),
    ];
    for (what, field) in [("fail", "retry_in_ms"), ("release", "delay_ms")] {
        for value in &wrong {
            let item = merged(&lease, json!({field: value}));
            let body = json!({"worker_id": "w", "leases": [item]});
            let answer = nodes
                .ask(0, "POST", &format!("/v1/leases:{what}"), &body)
                .await;
            let answer = answer.must(422);
            assert_eq!(answer.pointer(), format!("/leases/0/{field}"), "{value}");
        }
        let nan = format!(r#"{{"worker_id":"w","leases":[{{"{field}":NaN}}]}}"#);
        let request = crate::api::testing::request(
            "POST",
            &format!("/v1/leases:{what}"),
            nan.as_bytes(),
            &[],
        );
        assert_eq!(nodes.raw(request).await.status, 400);
    }
    let shown = nodes.execution("e").await;
    assert_eq!(
        (&shown["state"], &shown["attempts_started"]),
        (&json!("leased"), &json!(1))
    );
    let mut lease = lease;
    // A worker's delay is cut to max_backoff; null and nothing are the policy's.
    for (given, delay) in [
        (json!(0), 0),
        (Value::Null, 14_000),
        (json!(90_000_000), 3_600_000),
        (json!(1), 1),
    ] {
        nodes
            .say(
                "w",
                "fail",
                &[merged(&lease, json!({"retry_in_ms": given}))],
            )
            .await;
        let shown = nodes.execution("e").await;
        let attempt = shown["attempts"].as_array().unwrap().last().unwrap();
        assert_eq!(
            (&attempt["outcome"], &attempt["delay_ms"]),
            (&json!("failed"), &json!(delay)),
            "{given}"
        );
        let state = if delay == 0 { "ready" } else { "backing_off" };
        assert_eq!(shown["state"], state, "{given}");
        nodes.cluster.pass(delay + 50).await;
        lease = one_lease(&nodes, "w", 60_000, 0)
            .await
            .expect("its delay is over");
    }
}

/// A worker that stops gives its work back with everything that it held of limits.
#[tokio::test(start_paused = true)]
async fn a_worker_that_signs_off_frees_work_and_slots_at_once() {
    let nodes = Nodes::two(207).await;
    nodes
        .good("PUT /v1/tenants/default/keys/k", &json!({"max_leased": 1}))
        .await;
    for id in ["e1", "e2"] {
        submit(&nodes, id, json!({"concurrency_key": "k"})).await;
    }
    let first = one_lease(&nodes, "stopping", 600_000, 1_000).await.unwrap();
    assert_eq!(one_lease(&nodes, "next", 10_000, 0).await, None);
    let off = nodes
        .good("DELETE /v1/workers/stopping", &Value::Null)
        .await;
    assert_eq!(off["released"], 1);
    let next = one_lease(&nodes, "next", 10_000, 2_000)
        .await
        .expect("the slot is free");
    assert_eq!(
        (&next["execution_id"], &next["attempt"]),
        (&first["execution_id"], &json!(1))
    );
    let workers = nodes.good("GET /v1/workers", &Value::Null).await;
    let ids: Vec<_> = workers["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| &w["worker_id"])
        .collect();
    assert_eq!(ids, [&json!("next")]);
}

/// Taking away work that runs: its worker is told with whatever it says next, and nothing comes back to life.
#[tokio::test(start_paused = true)]
async fn running_work_that_is_cancelled_now_stays_cancelled_whatever_its_worker_says() {
    let nodes = Nodes::two(208).await;
    nodes
        .good("PUT /v1/tenants/default/keys/k", &json!({"max_leased": 60}))
        .await;
    for n in 0..60 {
        submit(&nodes, &format!("e{n:02}"), json!({"concurrency_key": "k"})).await;
    }
    let leases = nodes.claim(0, "w", 60, 1_000).await;
    assert_eq!(leases.len(), 60);
    let refused = nodes
        .ask(0, "DELETE", &format!("{EXECUTIONS}/e00"), &Value::Null)
        .await;
    assert_eq!(refused.must(409).code(), "not_final");
    let cancels = leases.iter().map(|lease| {
        let target = format!(
            "POST {EXECUTIONS}/{}:cancel",
            lease["execution_id"].as_str().unwrap()
        );
        let nodes = &nodes;
        async move { nodes.good(&target, &json!({"mode": "now"})).await["state"].clone() }
    });
    let states = futures::future::join_all(cancels).await;
    assert!(states.iter().all(|s| s == "cancelled"));
    let key = nodes
        .good("GET /v1/tenants/default/keys/k", &Value::Null)
        .await;
    assert_eq!(key["leased"], 0);
    let items: Vec<Value> = leases.iter().map(reference).collect();
    for what in ["renew", "complete", "fail", "release"] {
        for said in nodes.say("w", what, &items).await {
            assert_eq!(
                (&said["status"], &said["reason"]),
                (&json!("lease_lost"), &json!("cancelled"))
            );
        }
    }
    for lease in &leases {
        let target = format!(
            "DELETE {EXECUTIONS}/{}",
            lease["execution_id"].as_str().unwrap()
        );
        nodes.good(&target, &Value::Null).await;
    }
    assert_eq!(one_lease(&nodes, "w2", 10_000, 0).await, None);
    nodes.cluster.check();
}

/// What has succeeded is never taken for abandoned by anything that cleans up later.
#[tokio::test(start_paused = true)]
async fn what_succeeded_stays_so_whatever_becomes_of_its_worker() {
    let nodes = Nodes::two(209).await;
    for n in 0..50 {
        submit(&nodes, &format!("e{n}"), json!({})).await;
        let worker = format!("w{n}");
        let lease = one_lease(&nodes, &worker, 2_000, 1_000).await.unwrap();
        nodes.say(&worker, "complete", &[reference(&lease)]).await;
    }
    nodes.cluster.pass(5_000).await;
    nodes.cluster.elect(1);
    nodes.cluster.leader().await;
    nodes.cluster.pass(10_000).await;
    let list = format!("GET {EXECUTIONS}?page_size=1000");
    let all = nodes.good(&list, &Value::Null).await;
    let all = all["items"].as_array().unwrap();
    assert_eq!(all.len(), 50);
    for one in all {
        assert_eq!(
            (&one["state"], &one["lease_losses"]),
            (&json!("succeeded"), &json!(0))
        );
        assert_eq!(one["attempts"].as_array().unwrap().len(), 1);
    }
}

/// A unique key is held while its execution is open, and not a moment longer.
#[tokio::test(start_paused = true)]
async fn a_unique_key_is_free_again_when_its_crashed_holder_is_dead() {
    let nodes = Nodes::two(210).await;
    let unique = json!({"unique": {"key": "u"}, "retry": {"max_attempts": 1}});
    submit(&nodes, "first", unique.clone()).await;
    one_lease(&nodes, "dies", 2_000, 1_000).await.unwrap();
    let mut body = unique;
    body["kind"] = json!("a");
    let held = nodes.ask(0, "POST", EXECUTIONS, &body).await.must(409);
    assert_eq!(
        (held.code(), &held.body["blocker"]),
        ("unique_key_held", &json!("first"))
    );
    nodes.cluster.pass(3_100).await;
    let shown = nodes.execution("first").await;
    assert_eq!(
        (&shown["state"], &shown["final_reason"]),
        (&json!("dead_lettered"), &json!("attempts_exhausted"))
    );
    assert_eq!(shown["attempts"][0]["outcome"], "lease_expired");
    nodes.ask(1, "POST", EXECUTIONS, &body).await.must(201);
}
