//! Limits, rates, fairness and priority as callers and workers see them, with faults that others had.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::crew::{Crew, Habits, Piece};
use super::whole::{CLAIM, EXECUTIONS, Nodes, reference};

const BATCH: &str = "POST /v1/tenants/default/executions:batch";

async fn nodes(seed: u64) -> Arc<Nodes> {
    Arc::new(Nodes::two(seed).await)
}

/// Submits so many, each made by `item`, to queue `q` of a tenant.
async fn submit(nodes: &Nodes, tenant: &str, count: usize, item: impl Fn(usize) -> Value) {
    let all: Vec<usize> = (0..count).collect();
    for chunk in all.chunks(1_000) {
        let items = chunk.iter().map(|n| {
            let mut item = item(*n);
            item["queue"] = json!("q");
            item
        });
        let call = BATCH.replace("default", tenant);
        let body = json!({"items": items.collect::<Vec<_>>()});
        let answer = nodes.good(&call, &body).await;
        for item in answer["items"].as_array().unwrap() {
            assert_eq!(item["result"]["status"], 201, "{item}");
        }
    }
}

async fn ids_in(nodes: &Nodes, state: &str) -> Vec<Value> {
    let target = format!("GET {EXECUTIONS}?state={state}&page_size=1000");
    let page = nodes.good(&target, &Value::Null).await;
    page["items"].as_array().unwrap().clone()
}

/// What waits for a slot has not failed: no attempt, no backoff.
#[tokio::test(start_paused = true)]
async fn work_that_a_key_holds_back_neither_fails_nor_backs_off() {
    let nodes = nodes(100).await;
    let key = json!({"max_leased": 1});
    nodes.good("PUT /v1/tenants/default/keys/k", &key).await;
    submit(&nodes, "default", 200, |_| {
        let retry = json!({"max_attempts": 2, "initial_backoff": "60s"});
        json!({"kind": "a", "concurrency_key": "k", "retry": retry})
    })
    .await;
    let crew = Crew::start(&nodes, 5, Habits::taking(|_| 10));
    let done = crew.until_done(200, 10_000).await;
    assert!(done.iter().all(|p| p.attempt == 1));
    assert_eq!(crew.most_at_once(), 1);
    let ended = ids_in(&nodes, "succeeded").await;
    assert_eq!(ended.len(), 200);
    for one in ended {
        assert_eq!(one["attempts"].as_array().unwrap().len(), 1, "{one}");
        assert_eq!(
            (&one["lease_losses"], &one["releases"]),
            (&json!(0), &json!(0))
        );
    }
    // Why something waits is not told yet, and that is said.
    let why = nodes.ask(0, "POST", "/v1/queues/q:explain", &Value::Null);
    assert_eq!(why.await.must(501).code(), "not_implemented");
    nodes.cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_is_freed_is_taken_at_once() {
    let nodes = nodes(101).await;
    let key = json!({"max_leased": 10});
    nodes.good("PUT /v1/tenants/default/keys/k", &key).await;
    submit(
        &nodes,
        "default",
        1_000,
        |_| json!({"kind": "a", "concurrency_key": "k"}),
    )
    .await;
    let crew = Crew::start(&nodes, 20, Habits::taking(|_| 20));
    // 1,000 of 20 ms by tens take two seconds; each end costs an entry of up to 3 ms besides.
    let done = crew.until_done(1_000, 4_000).await;
    assert_eq!(crew.most_at_once(), 10);
    for pair in done.windows(2) {
        assert!(pair[1].began <= pair[0].began + 200, "{pair:?}");
    }
    nodes.cluster.check();
}

/// A slot lasts as long as its lease, however long that is renewed; it has no time-out of its own.
#[tokio::test(start_paused = true)]
async fn a_slot_is_held_for_as_long_as_the_work_renews_its_lease() {
    let nodes = nodes(102).await;
    let key = json!({"max_leased": 3});
    nodes.good("PUT /v1/tenants/default/keys/k", &key).await;
    submit(
        &nodes,
        "default",
        20,
        |_| json!({"kind": "a", "concurrency_key": "k"}),
    )
    .await;
    let habits = Habits {
        lease_ms: 3_000,
        renew_ms: 1_000,
        ..Habits::taking(|_| 60_000)
    };
    let crew = Crew::start(&nodes, 20, habits);
    nodes.cluster.pass(30_000).await;
    let shown = nodes
        .good("GET /v1/tenants/default/keys/k", &Value::Null)
        .await;
    assert_eq!(
        (&shown["leased"], &shown["parked"]),
        (&json!(3), &json!(17))
    );
    let done = crew.until_done(20, 450_000).await;
    assert_eq!(crew.most_at_once(), 3);
    assert!(done.iter().all(|p| p.attempt == 1));
    nodes.cluster.check();
}

/// What comes after an outage must not overrun what the work calls.
#[tokio::test(start_paused = true)]
async fn a_backlog_is_worked_off_within_the_queues_limit_and_a_new_limit_holds_soon() {
    let nodes = nodes(103).await;
    nodes
        .good("PUT /v1/queues/q", &json!({"max_leased": 20}))
        .await;
    submit(&nodes, "default", 1_000, |_| json!({"kind": "a"})).await;
    let crew = Crew::start(&nodes, 60, Habits::taking(|_| 100));
    nodes.cluster.pass(2_000).await;
    assert_eq!(crew.most_at_once(), 20);
    nodes
        .good("PUT /v1/queues/q", &json!({"max_leased": 10}))
        .await;
    nodes.cluster.pass(1_000).await;
    crew.most_at_once();
    nodes.cluster.pass(1_000).await;
    assert_eq!(crew.most_at_once(), 10);
    let done = crew.until_done(1_000, 20_000).await;
    assert!(done.iter().all(|p| p.attempt == 1));
    assert!(ids_in(&nodes, "dead_lettered").await.is_empty());
    nodes.cluster.check();
}

/// A chain of work, each piece submitted by the one before: no poll interval adds up.
#[tokio::test(start_paused = true)]
async fn an_idle_worker_gets_each_piece_at_once_and_asks_seldom_while_idle() {
    let nodes = nodes(104).await;
    let habits = Habits {
        lease_ms: 60_000,
        ..Habits::taking(|_| 5)
    };
    let crew = Crew::start(&nodes, 1, habits);
    nodes.cluster.pass(60_000).await;
    let idle = crew.claims.load(Ordering::SeqCst);
    assert!(idle <= 5, "{idle} claims in an idle minute");
    let begin = crew.now();
    for n in 0..20 {
        nodes.submit(&format!("link-{n:02}")).await;
        crew.until_done(n + 1, 200).await;
    }
    let took = crew.now() - begin;
    assert!(took <= 20 * 50, "{took} ms");
}

/// A busy worker is not handed work that it cannot begin, whatever it asks for.
#[tokio::test(start_paused = true)]
async fn a_worker_gets_no_more_than_its_free_slots() {
    let nodes = nodes(105).await;
    submit(&nodes, "default", 50, |_| json!({"kind": "a"})).await;
    let claim = json!({"worker_id": "busy", "slots": 4, "max": 100, "wait_ms": 0});
    let first = nodes.good(&format!("POST {CLAIM}"), &claim).await;
    assert_eq!(first["leases"].as_array().unwrap().len(), 4);
    let again = nodes.good(&format!("POST {CLAIM}"), &claim).await;
    assert_eq!(again["leases"], json!([]));
    let crew = Crew::start(&nodes, 2, Habits::taking(|_| 100));
    crew.until_done(46, 4_000).await;
    // What it has not begun it gives back, and no attempt is spent.
    let unstarted = reference(&first["leases"][3]);
    nodes
        .say("busy", "release", std::slice::from_ref(&unstarted))
        .await;
    let done = crew.until_done(47, 500).await;
    let last = done.last().unwrap();
    assert_eq!(unstarted["execution_id"], json!(last.id));
    assert_eq!(last.attempt, 1);
}

/// One tenant's slow backlog must not fill all slots, neither by single claims nor by large ones.
#[tokio::test(start_paused = true)]
async fn slow_work_of_one_tenant_does_not_delay_quick_work_of_another() {
    for (workers, slots, max) in [(20, 1, 1), (1, 20, 50)] {
        let nodes = nodes(106 + u64::from(max)).await;
        nodes.good("PUT /v1/tenants/quick", &json!({})).await;
        submit(&nodes, "default", 1_500, |_| json!({"kind": "slow"})).await;
        let takes = |kind: &str| if kind == "slow" { 2_000 } else { 50 };
        let habits = Habits {
            slots,
            max,
            ..Habits::taking(takes)
        };
        let crew = Crew::start(&nodes, workers, habits);
        nodes.cluster.pass(3_000).await;
        for _ in 0..50 {
            submit(&nodes, "quick", 1, |_| json!({"kind": "quick"})).await;
            nodes.cluster.pass(200).await;
        }
        nodes.cluster.pass(3_000).await;
        let mut late: Vec<u64> = crew.pieces_of("quick").map(|p| p.lateness_ms).collect();
        late.sort_unstable();
        assert_eq!(late.len(), 50, "{max}");
        assert!(late[47] <= 3_000, "{max}: p95 {} ms", late[47]);
    }
}

/// A flood of one tenant is not drained before another gets its turn.
#[tokio::test(start_paused = true)]
async fn a_flood_does_not_starve_a_small_tenant() {
    let nodes = nodes(108).await;
    for tenant in ["one", "hundred"] {
        nodes
            .good(&format!("PUT /v1/tenants/{tenant}"), &json!({}))
            .await;
    }
    submit(&nodes, "default", 5_000, |_| json!({"kind": "a"})).await;
    let crew = Crew::start(&nodes, 10, Habits::taking(|_| 50));
    nodes.cluster.pass(2_000).await;
    let begin = crew.now();
    submit(&nodes, "one", 1, |_| json!({"kind": "b"})).await;
    nodes.cluster.pass(500).await;
    let started = crew.pieces_of("one").next().expect("it has run").began;
    assert!(started - begin <= 200, "{} ms", started - begin);
    let begin = crew.now();
    submit(&nodes, "hundred", 100, |_| json!({"kind": "c"})).await;
    submit(&nodes, "default", 500, |_| json!({"kind": "a"})).await;
    nodes.cluster.pass(3_000).await;
    let last = crew.pieces_of("hundred").map(|p| p.began).max().unwrap();
    assert_eq!(crew.pieces_of("hundred").count(), 100);
    let others = |p: &Piece| (begin..=last).contains(&p.began);
    let others = crew.pieces_of("default").filter(others).count();
    assert!(
        others <= 130,
        "{others} of the flood before the last of a hundred"
    );
}

/// Ids of the next seven executions granted; `fresh`: only those never granted before.
async fn claimed(nodes: &Nodes, fresh: bool) -> Vec<String> {
    let mut leases = nodes.claim(0, "w", 7, 0).await;
    assert!(!leases.is_empty(), "there is no more work");
    leases.retain(|l| !fresh || l["attempt"] == 1);
    let id = |l: &Value| l["execution_id"].as_str().unwrap().to_owned();
    leases.iter().map(id).collect()
}

/// Priority, then due time, then creation; what becomes due later enters at its place.
#[tokio::test(start_paused = true)]
async fn work_is_granted_in_the_order_of_priority_due_time_and_creation() {
    let nodes = nodes(109).await;
    let now = nodes.cluster.leader().await;
    let now = crate::leader::Scheduler::now(now.as_ref());
    let dice = |below: u64| nodes.cluster.dice.below(below);
    let mut expected = Vec::new();
    let mut items = Vec::new();
    for n in 0..1_000 {
        // Ten values of lateness, so that many are equal; one in ten is due in half a minute.
        let late = dice(10) * 1_000;
        let is_later = dice(10) == 0;
        let due = match is_later {
            true => now.plus(crate::time::Millis(30_000 + late)),
            false => now.minus(crate::time::Millis(late)),
        };
        let priority = (dice(6) > 0).then(|| dice(10));
        let id = format!("e{n:04}");
        expected.push((is_later, 9 - priority.unwrap_or(5), due, id.clone()));
        items.push(json!({"execution_id": id, "kind": "a", "due_at": due.to_rfc3339(), "priority": priority}));
    }
    submit(&nodes, "default", 1_000, |n| items[n].clone()).await;
    let mut got = Vec::new();
    while got.len() < 350 {
        got.extend(claimed(&nodes, false).await);
    }
    let mut due: Vec<_> = expected.iter().filter(|e| !e.0).collect();
    due.sort_unstable();
    assert_eq!(
        got,
        due[..got.len()]
            .iter()
            .map(|e| e.3.clone())
            .collect::<Vec<_>>()
    );
    let first = got.len();
    nodes.cluster.pass(41_000).await;
    // The leases ran out meanwhile and back off: only what was never granted counts.
    let mut rest: Vec<_> = due.split_off(first);
    rest.extend(expected.iter().filter(|e| e.0));
    rest.sort_unstable_by_key(|e| (e.1, e.2, &e.3));
    got.clear();
    while got.len() < rest.len() {
        got.extend(claimed(&nodes, true).await);
    }
    assert_eq!(got, rest.iter().map(|e| e.3.clone()).collect::<Vec<_>>());
}

/// A cap on waiting work counts all of it, whatever its keys, and refuses only what is new.
#[tokio::test(start_paused = true)]
async fn a_cap_counts_every_key_and_never_refuses_a_retry() {
    let nodes = nodes(110).await;
    nodes
        .good("PUT /v1/queues/q", &json!({"max_pending": 100}))
        .await;
    let one = |n: usize| {
        json!({"kind": "a", "queue": "q", "concurrency_key": format!("k{}", n % 50), "execution_id": format!("e{n}"),
               "retry": {"initial_backoff": "0s"}})
    };
    let bodies: Vec<Value> = (0..150).map(one).collect();
    let calls = bodies
        .iter()
        .map(|body| nodes.ask(0, "POST", EXECUTIONS, body));
    let answers = futures::future::join_all(calls).await;
    let refused: Vec<_> = answers.iter().filter(|a| a.status != 201).collect();
    assert_eq!(refused.len(), 50);
    for answer in refused {
        assert_eq!((answer.status, answer.code()), (429, "quota_exceeded"));
        let named = [&answer.body["limit"], &answer.body["current"]];
        assert_eq!(named, [&json!(100), &json!(100)]);
    }
    let held = nodes.claim(0, "w", 20, 1_000).await;
    let items: Vec<Value> = held.iter().map(reference).collect();
    nodes.say("w", "complete", &items[1..]).await;
    let more: Vec<Value> = (200..225).map(one).collect();
    let batch = nodes.good(BATCH, &json!({"items": more})).await;
    let statuses = batch["items"].as_array().unwrap().iter();
    let statuses: Vec<_> = statuses.map(|i| i["result"]["status"].clone()).collect();
    assert_eq!(statuses.iter().filter(|s| **s == 201).count(), 20);
    assert_eq!(statuses.iter().filter(|s| **s == 429).count(), 5);
    // The one that is still held fails: it comes back although the queue is full.
    nodes.say("w", "fail", &items[..1]).await;
    let stats = nodes.good("GET /v1/queues/q/stats", &Value::Null).await;
    let backlog = ["ready", "parked"].map(|k| stats["backlog"][k].as_u64().unwrap());
    assert_eq!(backlog.iter().sum::<u64>(), 101, "{stats}");
    let rule = json!({"rule": {"every": "1s"}, "queue": "q"});
    let schedule = "/v1/tenants/default/schedules/tick";
    nodes.good(&format!("PUT {schedule}"), &rule).await;
    nodes.cluster.pass(3_500).await;
    let shown = nodes.good(&format!("GET {schedule}"), &Value::Null).await;
    let status = &shown["status"];
    assert_eq!(
        (&status["created_count"], &status["open"]["total"]),
        (&json!(0), &json!(0))
    );
    assert!(
        status["totals"]["skipped"]["quota"].as_u64() >= Some(3),
        "{status}"
    );
    nodes.cluster.check();
}

/// A rate holds back; it is no failure, and a change of leader loses nothing of what waits.
#[tokio::test(start_paused = true)]
async fn a_rate_spaces_work_out_without_attempts_or_losses() {
    for (count, per_second, elect) in [(60, 2, false), (300, 10, true)] {
        let nodes = nodes(111 + count).await;
        let rate = json!({"rate": {"count": per_second, "per": "1s"}});
        nodes.good("PUT /v1/queues/q", &rate).await;
        let total = usize::try_from(count).unwrap();
        submit(&nodes, "default", total, |_| {
            let retry = json!({"initial_backoff": "5m", "max_backoff": "5m", "jitter": 0});
            json!({"kind": "a", "retry": retry})
        })
        .await;
        let crew = Crew::start(&nodes, 20, Habits::taking(|_| 10));
        nodes.cluster.pass(10_000).await;
        if elect {
            nodes.cluster.elect(1);
        }
        let stats = nodes.good("GET /v1/queues/q/stats", &Value::Null).await;
        let open: u64 = ["waiting", "ready", "parked", "leased", "backing_off"]
            .map(|k| stats["backlog"][k].as_u64().unwrap())
            .iter()
            .sum();
        let ended = ids_in(&nodes, "succeeded").await.len();
        assert_eq!(ended + usize::try_from(open).unwrap(), total);
        let done = crew.until_done(total, 25_000).await;
        let took = done.last().unwrap().began;
        assert!((27_000..=33_000).contains(&took), "{count}: {took} ms");
        assert!(done.iter().all(|p| p.attempt == 1));
        nodes.cluster.check();
    }
}
