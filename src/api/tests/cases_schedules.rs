//! What becomes of nominal times: clocks, outages, overlap, pauses and edits, with faults that others had.

use serde_json::{Value, json};

use super::whole::{EXECUTIONS, Nodes, reference};

const SCHEDULES: &str = "/v1/tenants/default/schedules";

async fn put(nodes: &Nodes, id: &str, body: Value) -> Value {
    let mut body = body;
    body["queue"] = json!("q");
    nodes.good(&format!("PUT {SCHEDULES}/{id}"), &body).await
}

async fn status(nodes: &Nodes, id: &str) -> Value {
    let shown = nodes
        .good(&format!("GET {SCHEDULES}/{id}"), &Value::Null)
        .await;
    shown["status"].clone()
}

/// The ledger, newest first.
async fn ledger(nodes: &Nodes, id: &str) -> Vec<Value> {
    let target = format!("GET {SCHEDULES}/{id}/occurrences?page_size=1000");
    let page = nodes.good(&target, &Value::Null).await;
    page["items"].as_array().unwrap().clone()
}

/// Nominal times that became executions, oldest first.
async fn ran(nodes: &Nodes, id: &str) -> Vec<String> {
    let executions = ledger(nodes, id)
        .await
        .into_iter()
        .filter(|r| r["kind"] == "execution");
    let mut times: Vec<_> = executions
        .map(|r| r["nominal_at"].as_str().unwrap().to_owned())
        .collect();
    times.sort_unstable();
    times
}

fn skipped(status: &Value, reason: &str) -> u64 {
    status["totals"]["skipped"][reason].as_u64().unwrap_or(0)
}

/// The wall clock's milliseconds of the minute.
fn of_minute(nodes: &Nodes) -> u64 {
    let wall = crate::time::Clock::wall(nodes.cluster.clock.as_ref());
    u64::try_from(wall.millis().rem_euclid(60_000)).unwrap()
}

async fn outage(nodes: &Nodes, ms: u64) {
    nodes.cluster.depose();
    nodes.cluster.pass(ms).await;
    nodes.cluster.elect(0);
    nodes.cluster.leader().await;
}

/// A clock that is set back across a tick runs it once.
#[tokio::test(start_paused = true)]
async fn a_small_step_back_across_a_tick_runs_it_once_and_the_next_one_in_time() {
    for (step, slices) in [(-2_000, 1), (-5_000, 1), (-2_000, 100)] {
        let nodes = Nodes::two(300).await;
        for n in 0..20 {
            put(
                &nodes,
                &format!("s{n}"),
                json!({"rule": {"cron": "* * * * *"}}),
            )
            .await;
        }
        let to_tick = 60_000 - of_minute(&nodes);
        nodes.cluster.pass(to_tick + 500).await;
        for _ in 0..slices {
            nodes.cluster.clock.jump(step / slices);
            nodes.cluster.pass(u64::from(slices > 1) * 50).await;
        }
        nodes.cluster.pass(10_000).await;
        for n in 0..20 {
            assert_eq!(ran(&nodes, &format!("s{n}")).await.len(), 1, "{step}");
        }
        let to_tick = 60_000 - of_minute(&nodes);
        nodes.cluster.pass(to_tick + 1_000).await;
        for n in 0..20 {
            assert_eq!(ran(&nodes, &format!("s{n}")).await.len(), 2, "{step}");
        }
        nodes.cluster.check();
    }
}

/// A machine that begins with an old clock must not run every missed tick when it is set.
#[tokio::test(start_paused = true)]
async fn a_leader_that_begins_with_an_old_clock_catches_up_at_most_once() {
    let nodes = Nodes::two(301).await;
    put(&nodes, "s", json!({"rule": {"cron": "*/5 * * * *"}})).await;
    nodes.cluster.pass(600_000).await;
    nodes.cluster.depose();
    nodes.cluster.pass(5_000).await;
    nodes.cluster.clock.jump(-3_600_000);
    nodes.cluster.elect(1);
    nodes.cluster.leader().await;
    nodes.cluster.pass(30_000).await;
    let before = status(&nodes, "s").await["created_count"].as_u64().unwrap();
    nodes.cluster.clock.jump(3_600_000);
    nodes.cluster.pass(30_000).await;
    let caught_up = status(&nodes, "s").await["created_count"].as_u64().unwrap() - before;
    assert!(caught_up <= 1, "{caught_up}");
    nodes.cluster.pass(900_000).await;
    let later = status(&nodes, "s").await["created_count"].as_u64().unwrap();
    assert_eq!(later - before - caught_up, 3, "the cadence is normal again");
    let times = ran(&nodes, "s").await;
    assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "{times:?}");
}

/// More missed ticks than any fixed number: each policy does what it says, counts the rest and goes on on its grid.
#[tokio::test(start_paused = true)]
async fn missed_ticks_are_skipped_or_caught_up_once_and_counted() {
    for (missed, seed) in [(150_000, 302), (250_000, 303)] {
        let nodes = Nodes::two(seed).await;
        for policy in ["skip", "fire_latest"] {
            put(
                &nodes,
                policy,
                json!({"rule": {"every": "1s"}, "misfire": {"policy": policy}}),
            )
            .await;
        }
        let all = json!({"rule": {"every": "1s"}, "misfire": {"policy": "fire_all", "catch_up_max": 100}});
        let refused = nodes
            .ask(0, "PUT", &format!("{SCHEDULES}/all"), &all)
            .await
            .must(422);
        assert_eq!(
            (refused.code(), refused.pointer()),
            ("not_supported", "/misfire/policy")
        );
        nodes.cluster.pass(10_000).await;
        outage(&nodes, missed).await;
        nodes.cluster.pass(10_000).await;
        let gap = missed / 1_000;
        for (policy, extra) in [("skip", 0), ("fire_latest", 1)] {
            let status = status(&nodes, policy).await;
            let dropped = skipped(&status, "misfire");
            assert!(
                (gap - extra - 1..=gap - extra + 1).contains(&dropped),
                "{policy}: {dropped} of {gap}"
            );
            let times = ran(&nodes, policy).await;
            // Ten seconds before, ten after, and what was caught up.
            let count = u64::try_from(times.len()).unwrap();
            assert!(
                (18 + extra..=21 + extra).contains(&count),
                "{policy}: {count}"
            );
            let records = ledger(&nodes, policy).await;
            let runs = records.iter().filter(|r| r["kind"] == "skipped").count();
            assert_eq!(runs, 1, "one record for the whole gap: {records:?}");
            let ahead = status["next"]["due_at"].as_str().unwrap() > times.last().unwrap().as_str();
            assert!(ahead, "it goes on");
        }
        nodes.cluster.check();
    }
}

/// A start long ago is no reason to run what nobody asked for then.
#[tokio::test(start_paused = true)]
async fn nothing_before_its_creation_is_caught_up_and_a_dry_run_says_so() {
    let nodes = Nodes::two(304).await;
    let body = json!({"rule": {"every": "1h", "start_at": "2026-01-01T00:00:00Z", "anchor": "2026-01-01T00:00:00Z"}});
    let dry = nodes
        .ask(0, "PUT", &format!("{SCHEDULES}/s?dry_run=true"), &body)
        .await
        .must(200);
    let upcoming = dry.body["status"]["upcoming"].as_array().unwrap().len();
    assert_eq!(
        (upcoming, &dry.body["status"]["created_count"]),
        (5, &json!(0))
    );
    let wall = crate::time::Clock::wall(nodes.cluster.clock.as_ref()).to_rfc3339();
    let first = dry.body["status"]["next"]["nominal_at"].as_str().unwrap();
    assert!(first > wall.as_str(), "{first}");
    put(&nodes, "s", body).await;
    nodes.cluster.pass(60_000).await;
    let status = status(&nodes, "s").await;
    assert!(status["created_count"].as_u64() <= Some(1), "{status}");
    // What would bound a catch-up that does not exist is refused, not kept and ignored.
    for (field, value) in [("catch_up_max", json!(5)), ("catch_up_rate", json!("1/m"))] {
        let body = json!({"rule": {"every": "1h"}, "misfire": {field: value}});
        let refused = nodes
            .ask(0, "PUT", &format!("{SCHEDULES}/t"), &body)
            .await
            .must(422);
        assert_eq!(
            (refused.code(), refused.pointer()),
            ("not_supported", format!("/misfire/{field}").as_str())
        );
    }
}

/// What fires depends on the schedules alone, not on who works or leads.
#[tokio::test(start_paused = true)]
async fn schedules_fire_without_workers_and_over_changes_of_leader() {
    let nodes = Nodes::two(305).await;
    for n in 0..10 {
        put(&nodes, &format!("s{n}"), json!({"rule": {"every": "10s"}})).await;
    }
    for n in 0..3 {
        nodes.cluster.pass(30_000).await;
        nodes.cluster.elect(1 - n % 2);
        nodes.cluster.leader().await;
    }
    nodes.cluster.pass(30_000).await;
    for n in 0..10 {
        let times = ran(&nodes, &format!("s{n}")).await;
        assert!((11..=13).contains(&times.len()), "{}", times.len());
    }
    let waiting = nodes.claim(0, "late", 200, 1_000).await;
    assert!(waiting.len() >= 110, "{}", waiting.len());
    nodes.cluster.check();
}

/// A run by hand is seen by the ticks after it; when it is cancelled the next one starts.
#[tokio::test(start_paused = true)]
async fn a_run_by_hand_blocks_the_next_ticks_until_it_is_cancelled() {
    let nodes = Nodes::two(306).await;
    let shown = put(
        &nodes,
        "s",
        json!({"rule": {"every": "10s"}, "overlap": {"policy": "skip"}}),
    )
    .await;
    let trigger = format!("POST {SCHEDULES}/s:trigger");
    let forced = nodes.good(&trigger, &Value::Null).await["execution_id"].clone();
    let lease = &nodes.claim(0, "w", 1, 1_000).await[0];
    assert_eq!(lease["execution_id"], forced);
    nodes.cluster.pass(8_000).await;
    nodes.say("w", "renew", &[reference(lease)]).await;
    nodes.cluster.pass(8_000).await;
    nodes.say("w", "renew", &[reference(lease)]).await;
    nodes.cluster.pass(5_000).await;
    let blocked = status(&nodes, "s").await;
    assert_eq!(
        (skipped(&blocked, "overlap"), &blocked["created_count"]),
        (2, &json!(0))
    );
    let records = ledger(&nodes, "s").await;
    let skips: Vec<_> = records.iter().filter(|r| r["kind"] == "skipped").collect();
    assert!(skips.iter().all(|r| r["blocker"] == forced), "{skips:?}");
    let cancel = format!("POST {EXECUTIONS}/{}:cancel", forced.as_str().unwrap());
    nodes.good(&cancel, &json!({"mode": "now"})).await;
    nodes.cluster.pass(10_000).await;
    let after = status(&nodes, "s").await;
    assert_eq!(
        (&after["created_count"], &after["open"]["total"]),
        (&json!(1), &json!(1))
    );
    let now = nodes
        .good(&format!("GET {SCHEDULES}/s"), &Value::Null)
        .await;
    assert_eq!(
        (&now["generation"], &now["revision"]),
        (&shown["generation"], &shown["revision"])
    );
}

/// What waits counts as well as what runs.
#[tokio::test(start_paused = true)]
async fn occurrences_that_cannot_start_do_not_pile_up() {
    let nodes = Nodes::two(307).await;
    put(
        &nodes,
        "s",
        json!({"rule": {"every": "2s"}, "overlap": {"policy": "skip"}}),
    )
    .await;
    for _ in 0..12 {
        nodes.cluster.pass(5_000).await;
        assert!(status(&nodes, "s").await["open"]["total"].as_u64() <= Some(1));
    }
    let before = status(&nodes, "s").await;
    assert_eq!(before["created_count"], 1);
    assert!(skipped(&before, "overlap") >= 27, "{before}");
    let lease = &nodes.claim(0, "w", 5, 0).await;
    assert_eq!(lease.len(), 1, "exactly that one runs");
    nodes.say("w", "complete", &[reference(&lease[0])]).await;
    nodes.cluster.pass(2_100).await;
    assert_eq!(
        nodes.claim(0, "w", 5, 0).await.len(),
        1,
        "the cadence is normal"
    );
}

/// A run whose end is never reported blocks its schedule only until its lease is over, also over a restart.
#[tokio::test(start_paused = true)]
async fn a_crashed_run_does_not_block_its_schedule_for_ever() {
    let nodes = Nodes::two(308).await;
    let body = json!({"rule": {"every": "10s"}, "overlap": {"policy": "skip"}, "retry": {"max_attempts": 1}});
    put(&nodes, "s", body).await;
    let lease = &nodes.claim(0, "dies", 1, 20_000).await[0];
    nodes.cluster.pass(3_000).await;
    outage(&nodes, 2_000).await;
    // The lease has one fresh duration of 10 s from the election.
    nodes.cluster.pass(11_500).await;
    let id = lease["execution_id"].as_str().unwrap();
    let ended = nodes.execution(id).await;
    assert_eq!(
        (&ended["state"], &ended["attempts"][0]["outcome"]),
        (&json!("dead_lettered"), &json!("lease_expired"))
    );
    nodes.cluster.pass(10_000).await;
    let status = status(&nodes, "s").await;
    assert_eq!(
        (&status["created_count"], skipped(&status, "overlap")),
        (&json!(2), 1),
        "{status}"
    );
}

/// A pause is no outage: its ticks are recorded as a span, and run only when a resume asks for them.
#[tokio::test(start_paused = true)]
async fn a_pause_releases_nothing_unless_asked_and_shows_as_a_span() {
    let nodes = Nodes::two(309).await;
    for (id, body, created) in [
        ("none", Value::Null, 0),
        ("some", json!({"catch_up": "all", "catch_up_max": 3}), 3),
        ("last", json!({"catch_up": "latest"}), 1),
    ] {
        put(&nodes, id, json!({"rule": {"every": "5s"}})).await;
        nodes
            .good(
                &format!("POST {SCHEDULES}/{id}:pause"),
                &json!({"reason": "night"}),
            )
            .await;
        nodes.cluster.pass(60_000).await;
        let resumed = nodes
            .good(&format!("POST {SCHEDULES}/{id}:resume"), &body)
            .await;
        assert_eq!(resumed["caught_up"], created, "{id}");
        let records = ledger(&nodes, id).await;
        let open = records.iter().filter(|r| r["kind"] == "execution");
        let ids: Vec<_> = open
            .map(|r| r["execution_id"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(ids.len(), created, "{id}");
        for one in &ids {
            assert_eq!(nodes.execution(one).await["cause"], "catch_up");
        }
        let span = records
            .iter()
            .find(|r| r["reason"] == "paused")
            .expect("the span");
        assert_eq!(
            span["count"].as_u64(),
            resumed["skipped"].as_u64(),
            "{span}"
        );
        assert!(
            span["from"].is_null() && span["nominal_at"].as_str() < span["to"].as_str(),
            "{span}"
        );
        nodes.cluster.pass(5_100).await;
        assert_eq!(
            ran(&nodes, id).await.len(),
            created + 1,
            "{id}: the next one is on the grid"
        );
    }
    let none = json!({"catch_up_max": 3});
    for body in [none, json!({"catch_up": "latest", "catch_up_max": 3})] {
        let refused = nodes
            .ask(0, "POST", &format!("{SCHEDULES}/none:resume"), &body)
            .await
            .must(422);
        assert_eq!(refused.pointer(), "/catch_up_max");
    }
}

/// Many clients put one name while it fires: one schedule, every change counted, no tick lost or doubled.
#[tokio::test(start_paused = true)]
async fn puts_of_many_clients_while_it_fires_lose_and_double_nothing() {
    let nodes = Nodes::two(310).await;
    let first = put(&nodes, "s", json!({"rule": {"every": "1s"}, "payload": -1})).await;
    let mut changes = 1;
    for round in 0..25 {
        let bodies: Vec<Value> = (0..20)
            .map(|n| json!({"rule": {"every": "1s"}, "queue": "q", "payload": round * 10 + n.max(10)}))
            .collect();
        let target = format!("{SCHEDULES}/s");
        let puts = bodies.iter().map(|body| nodes.ask(0, "PUT", &target, body));
        for answer in futures::future::join_all(puts).await {
            assert_eq!(answer.status, 200, "{:#}", answer.body);
            assert_eq!(answer.body["incarnation"], first["incarnation"]);
            changes += u64::from(answer.header("x-outcome") == "updated");
        }
        nodes.cluster.pass(400).await;
    }
    let shown = nodes
        .good(&format!("GET {SCHEDULES}/s"), &Value::Null)
        .await;
    assert_eq!(shown["generation"], changes);
    let times = ran(&nodes, "s").await;
    assert!(times.len() >= 9, "{}", times.len());
    for pair in times.windows(2) {
        let at = |text: &str| crate::time::Timestamp::parse_rfc3339(text).unwrap();
        assert_eq!(at(&pair[1]).since(at(&pair[0])).0, 1_000, "{pair:?}");
    }
    nodes.cluster.check();
}

/// Clients in a crash loop register the same schedule again and again; it keeps its phase and fires as if alone.
#[tokio::test(start_paused = true)]
async fn the_same_definition_put_all_the_time_neither_delays_nor_doubles_a_tick() {
    let nodes = Nodes::two(311).await;
    let ids: Vec<String> = (0..5).map(|n| format!("s{n}")).collect();
    let body = json!({"rule": {"every": "2s"}, "queue": "q"});
    for id in &ids {
        put(&nodes, id, body.clone()).await;
    }
    for _ in 0..100 {
        nodes.cluster.pass(300).await;
        for id in &ids {
            let target = format!("{SCHEDULES}/{id}");
            let again = nodes.ask(1, "PUT", &target, &body).await.must(200);
            assert_eq!(
                (again.header("x-outcome"), &again.body["generation"]),
                ("unchanged", &json!(1))
            );
        }
    }
    for id in &ids {
        let count = ran(&nodes, id).await.len();
        assert!((14..=16).contains(&count), "{count}");
    }
}

/// One-time work whose time is past runs once, with its own nominal time, or is refused as asked; a repeat of the call
/// changes nothing.
#[tokio::test(start_paused = true)]
async fn a_past_instant_runs_once_or_is_refused_as_asked() {
    let nodes = Nodes::two(312).await;
    let wall = crate::time::Clock::wall(nodes.cluster.clock.as_ref());
    let ago = |ms| wall.minus(crate::time::Millis(ms)).to_rfc3339();
    for (n, at) in [
        ago(1),
        ago(3_600_000),
        "1970-01-01T00:00:00.000Z".to_owned(),
    ]
    .into_iter()
    .enumerate()
    {
        let (id, key) = (format!("s{n}"), format!("K{n}"));
        let body =
            |past: &str| json!({"schedule_id": id, "rule": {"at": at}, "past": past, "queue": "q"});
        let refused = nodes
            .keyed(
                0,
                "POST",
                SCHEDULES,
                &body("reject"),
                Some(&format!("R{n}")),
            )
            .await;
        assert_eq!(refused.must(422).pointer(), "/rule/at");
        let target = format!("{SCHEDULES}/{id}");
        nodes.ask(0, "GET", &target, &Value::Null).await.must(404);
        let first = nodes
            .keyed(0, "POST", SCHEDULES, &body("run"), Some(&key))
            .await
            .must(201);
        nodes.cluster.pass(500).await;
        let again = nodes
            .keyed(1, "POST", SCHEDULES, &body("run"), Some(&key))
            .await
            .must(201);
        assert_eq!(again.header("idempotency-replayed"), "true");
        assert_eq!(again.body["incarnation"], first.body["incarnation"]);
        let leases = nodes.claim(0, "w", 5, 1_000).await;
        assert_eq!(leases.len(), 1, "{at}");
        assert_eq!(leases[0]["nominal_at"], at);
        nodes.say("w", "complete", &[reference(&leases[0])]).await;
        let work = json!({"kind": "a", "queue": "q", "due_at": at, "past": "reject"});
        assert_eq!(
            nodes
                .ask(0, "POST", EXECUTIONS, &work)
                .await
                .must(422)
                .pointer(),
            "/due_at"
        );
        let work = json!({"kind": "a", "queue": "q", "due_at": at});
        let made = nodes
            .keyed(0, "POST", EXECUTIONS, &work, Some(&key))
            .await
            .must(201);
        let again = nodes
            .keyed(0, "POST", EXECUTIONS, &work, Some(&key))
            .await
            .must(201);
        assert_eq!(made.body["execution_id"], again.body["execution_id"]);
        let leases = nodes.claim(0, "w", 5, 1_000).await;
        assert_eq!(leases.len(), 1, "{at}");
        let late = leases[0]["lateness_ms"].as_u64().unwrap();
        let due = crate::time::Timestamp::parse_rfc3339(&at).unwrap();
        assert!(late >= wall.since(due).0, "{late}");
        nodes.say("w", "complete", &[reference(&leases[0])]).await;
    }
}
