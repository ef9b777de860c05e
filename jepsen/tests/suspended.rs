//! Nodes that stand still and wake up again (SIGSTOP, SIGCONT): a suspended machine, a long pause of a hypervisor.

#![allow(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "tests fail by panicking and print figures"
)]

use std::time::Duration;

use jepsen::cluster::Cluster;
use jepsen::history::{each_second_once, leased_to_one, put_ticks};
use jepsen::http::Api;
use jepsen::observe::{SCHEDULES, claim, complete, put_schedule, report, submit};
use jepsen::wait::{self, WIDE};
use jepsen::watcher::Watchers;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// Failover as the README promises it, with room for a loaded machine.
const FAILOVER: Duration = Duration::from_secs(10);

/// One execution each in the queues `short` and `long`, leased to `first` for a second and for ten minutes.
async fn two_leases(api: &Api) -> (Value, Value) {
    let mut leases = Vec::new();
    for (id, lease_ms) in [("short", 1_000), ("long", 600_000)] {
        let retry = json!({"initial_backoff": "0s", "max_attempts": 5});
        let body = json!({"execution_id": id, "kind": "k", "queue": id, "retry": retry});
        submit(api, &body).await.expect("a submission");
        let lease = claim(api, id, "first", (1, 5_000, lease_ms)).await;
        leases.push(lease.expect("a lease")[0].clone());
    }
    (leases[0].clone(), leases[1].clone())
}

/// Asks the sleeping node `old` for everything that it could answer from its old view, then wakes it.
async fn ask_and_wake(cluster: &Cluster, old: usize, stale: &Value) {
    let api = cluster
        .api()
        .expect("a client")
        .with_patience(Duration::from_secs(20));
    let late = report(&api, old, "complete", "first", stale);
    let longer = report(&api, old, "renew", "first", stale);
    let wanted =
        json!({"worker_id": "greedy", "queues": ["long", "short"], "max": 10, "wait_ms": 0});
    let grant = api.at(old, Method::POST, "/v1/leases:claim", Some(&wanted));
    let read = api.at(
        old,
        Method::GET,
        "/v1/tenants/default/executions/short",
        None,
    );
    let wake = async {
        sleep(Duration::from_millis(200)).await;
        cluster.signal(old, "CONT").expect("a signal");
    };
    let (late, longer, grant, read, ()) = tokio::join!(late, longer, grant, read, wake);
    // A refusal (503) is right as well.
    for answer in [late, longer].into_iter().flatten().filter(|a| a.ok()) {
        let result = &answer.body["results"][0];
        assert_eq!(result["status"], "lease_lost", "{}", answer.body);
    }
    if let Some(answer) = grant.ok().filter(|a| a.ok()) {
        assert_eq!(answer.body["leases"], json!([]), "{}", answer.body);
    }
    if let Some(answer) = read.ok().filter(|a| a.ok()) {
        assert_eq!(answer.body["attempts_started"], 2, "{}", answer.body);
    }
}

async fn follows(cluster: &Cluster, old: usize, new: usize) {
    let knows = || async {
        let itself = cluster.leader_of(&[old], Duration::ZERO).await;
        let named = cluster.leader_of(&[old, new], Duration::ZERO).await;
        (itself.is_err() && named == Ok(new)).then_some(())
    };
    let ((), took) = wait::until("the old leader to follow", FAILOVER, knows)
        .await
        .expect("following");
    eprintln!("the old leader follows {took:?} after SIGCONT");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stood_still_wakes_up_as_a_follower_and_changes_nothing() {
    let cluster = Cluster::start(3, "").await.expect("a cluster that starts");
    let api = cluster.api().expect("a client");
    put_ticks(&api, 10).await.expect("schedules");
    let old = cluster.leader(WIDE).await.expect("a leader");
    let others: Vec<usize> = (0..3).filter(|n| *n != old).collect();
    let awake = Api::new(others.iter().map(|n| cluster.url(*n)).collect()).expect("a client");
    let watchers = Watchers::start(&awake, "ticks", 4);
    watchers
        .fires_after(Instant::now(), FAILOVER)
        .await
        .expect("firing again");
    // One runs out while the leader stands still, the other lives on.
    let (short, long) = two_leases(&api).await;

    cluster.signal(old, "STOP").expect("a signal");
    let stopped = Instant::now();
    let gap = watchers
        .fires_after(stopped, FAILOVER)
        .await
        .expect("firing again");
    eprintln!("firing, granting and completing again {gap:?} after SIGSTOP of the leader");
    let new = cluster.leader_of(&others, WIDE).await.expect("a leader");
    assert_ne!(new, old);
    let second = claim(&awake, "short", "second", (1, 20_000, 600_000)).await;
    let second = second.expect("the lost lease is given to another")[0].clone();
    assert_eq!(second["execution_id"], "short");
    sleep(Duration::from_secs(5).saturating_sub(stopped.elapsed())).await;

    ask_and_wake(&cluster, old, &short).await;
    follows(&cluster, old, new).await;
    // With the old token nothing goes, anywhere; with the new ones everything.
    for node in 0..3 {
        let renewed = report(&api, node, "renew", "first", &short).await;
        let results = renewed.expect("an answer").success().expect("well-formed");
        assert_eq!(results["results"][0]["status"], "lease_lost", "{results}");
    }
    for (worker, lease) in [("second", &second), ("first", &long)] {
        let done = complete(&api, worker, lease).await.expect("an answer");
        assert_eq!(
            (&done["status"], &done["state"]),
            (&json!("ok"), &json!("succeeded"))
        );
    }
    watchers
        .fires_after(Instant::now(), FAILOVER)
        .await
        .expect("firing again");
    let seen = watchers.finish().await;
    each_second_once(&seen, 10).expect("each second once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_stood_still_is_not_missed_and_catches_up() {
    let cluster = Cluster::start(3, "").await.expect("a cluster that starts");
    let api = cluster.api().expect("a client");
    put_ticks(&api, 5).await.expect("schedules");
    let leader = cluster.leader(WIDE).await.expect("a leader");
    let follower = (leader + 1) % 3;
    let direct = Api::new(vec![cluster.url(leader)]).expect("a client");
    let watchers = Watchers::start(&direct, "ticks", 3);
    watchers
        .fires_after(Instant::now(), FAILOVER)
        .await
        .expect("firing again");
    cluster.signal(follower, "STOP").expect("a signal");
    for _ in 0..3 {
        watchers
            .fires_after(Instant::now(), FAILOVER)
            .await
            .expect("firing again");
    }
    submit(
        &direct,
        &json!({"execution_id": "meanwhile", "kind": "k", "queue": "q"}),
    )
    .await
    .expect("a write with two of three");
    assert_eq!(cluster.leader_of(&[leader], WIDE).await, Ok(leader));
    cluster.signal(follower, "CONT").expect("a signal");
    let path = "/v1/tenants/default/executions/meanwhile";
    let begun = Instant::now();
    let sees = || async {
        let read = api.at(follower, Method::GET, path, None).await.ok()?;
        read.ok().then_some(())
    };
    wait::until("the follower to serve", FAILOVER, sees)
        .await
        .expect("a read");
    eprintln!(
        "the follower serves what it missed {:?} after SIGCONT",
        begun.elapsed()
    );
    assert_eq!(
        cluster.leader_of(&[leader], WIDE).await,
        Ok(leader),
        "a node that wakes up deposes nobody"
    );
    let seen = watchers.finish().await;
    each_second_once(&seen, 5).expect("each second once");
}

/// What became of the nominal times of a schedule: created, skipped by misfire.
async fn ledger(api: &Api, id: &str) -> (u64, u64) {
    let path = format!("{SCHEDULES}/{id}");
    let answer = api.retry(Method::GET, &path, None, WIDE).await;
    let status = answer.expect("an answer").success().expect("it exists")["status"].clone();
    let number = |v: &Value| v.as_u64().unwrap_or(0);
    (
        number(&status["created_count"]),
        number(&status["totals"]["skipped"]["misfire"]),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_stood_still_fires_what_it_missed_as_each_schedule_says() {
    let cluster = Cluster::start(3, "").await.expect("a cluster that starts");
    let api = cluster.api().expect("a client");
    // Late by less than the threshold (60 s): all of it, in order. Beyond (3 s): none of it, or the newest.
    put_ticks(&api, 3).await.expect("schedules");
    for (id, policy) in [("none", "skip"), ("newest", "fire_latest")] {
        let misfire = json!({"policy": policy, "threshold": "3s"});
        let body = json!({"rule": {"every": "1s"}, "queue": id, "kind": "k", "misfire": misfire});
        put_schedule(&api, id, &body).await.expect("a schedule");
    }
    let watchers = Watchers::start(&api, "ticks", 3);
    watchers
        .fires_after(Instant::now(), FAILOVER)
        .await
        .expect("firing again");
    let before = [ledger(&api, "none").await, ledger(&api, "newest").await];
    for node in 0..3 {
        cluster.signal(node, "STOP").expect("a signal");
    }
    sleep(Duration::from_secs(11)).await;
    for node in 0..3 {
        cluster.signal(node, "CONT").expect("a signal");
    }
    let gap = watchers
        .fires_after(Instant::now(), FAILOVER)
        .await
        .expect("firing again");
    eprintln!("firing again {gap:?} after SIGCONT of all nodes");
    let ticking = || async { (watchers.seen().await.len() > 60).then_some(()) };
    wait::until("what was missed and more", WIDE, ticking)
        .await
        .expect("firing");
    for (id, before) in ["none", "newest"].into_iter().zip(before) {
        let (created, skipped) = ledger(&api, id).await;
        eprintln!("{id}: created {before:?} -> {created}, skipped as misfire {skipped}");
        assert!((7..=13).contains(&skipped), "{id}: {skipped}");
    }
    let seen = watchers.finish().await;
    each_second_once(&seen, 3).expect("each second once");
    leased_to_one(&seen).expect("one owner");
    cluster.ready(WIDE).await.expect("all nodes serve");
}
