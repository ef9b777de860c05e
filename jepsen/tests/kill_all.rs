//! All nodes killed at once: what was acknowledged is there, and limits, leases, pauses and overlap hold as before.

#![allow(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "tests fail by panicking and print figures"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jepsen::bench::load::spread;
use jepsen::cluster::Cluster;
use jepsen::http::Api;
use jepsen::observe::{EXECUTIONS, SCHEDULES, claim, complete, put_schedule, report, submit};
use jepsen::wait::{self, WIDE};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

async fn kill_and_start_all(cluster: &mut Cluster) {
    let killed = Instant::now();
    for i in 0..3 {
        cluster.kill(i);
    }
    for i in 0..3 {
        cluster.spawn(i).expect("a node that starts again");
    }
    cluster.ready(WIDE).await.expect("ready again");
    eprintln!(
        "three nodes killed at once serve again after {:?}",
        killed.elapsed()
    );
}

/// A submission with an idempotency key and no id of its own; the id it got.
async fn keyed(api: &Api, node: usize, key: &str) -> Result<(String, bool), String> {
    let body = json!({"kind": "k", "queue": "kept", "payload": {"key": key}});
    let headers = [("idempotency-key", key)];
    let answer = api
        .at_with(node, Method::POST, EXECUTIONS, Some(&body), &headers)
        .await?;
    let replayed = answer.headers.contains_key("idempotency-replayed");
    let body = answer.success()?;
    let id = body["execution_id"].as_str().ok_or("an id")?;
    Ok((id.to_owned(), replayed))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_the_death_of_all_nodes() {
    let mut cluster = Cluster::start(3, "").await.expect("a cluster that starts");
    for round in 0..2 {
        let api = cluster.api().expect("a client");
        let acked: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
        let (caller, log) = (api.clone(), Arc::clone(&acked));
        let load = spread(100_000, 16, move |i| {
            let (api, log) = (caller.clone(), Arc::clone(&log));
            async move {
                let key = format!("key-{round}-{i}");
                let (id, _) = keyed(&api, i % 3, &key).await?;
                log.lock().map_err(|e| e.to_string())?.push((key, id));
                Ok(())
            }
        });
        let killer = async {
            let enough = || async { (acked.lock().ok()?.len() > 400).then_some(()) };
            wait::until("400 acknowledged submissions", WIDE, enough)
                .await
                .expect("progress");
            kill_and_start_all(&mut cluster).await;
        };
        let (_ends_when_a_node_is_gone, ()) = tokio::join!(load, killer);
        let api = cluster.api().expect("a client");
        let acked = acked.lock().expect("no panic").clone();
        for (n, (key, id)) in acked.iter().enumerate() {
            let read = api
                .at(n % 3, Method::GET, &format!("{EXECUTIONS}/{id}"), None)
                .await
                .expect("an answer");
            assert!(
                read.ok(),
                "{id} was acknowledged and is lost: {}",
                read.body
            );
            // Some only: each is a write of its own.
            if n % 10 == 0 {
                let (again, replayed) = keyed(&api, (n + 1) % 3, key).await.expect("an answer");
                assert_eq!((&again, replayed), (id, true), "{key}");
            }
        }
        eprintln!("round {round}: {} acknowledged, none lost", acked.len());
    }
}

/// What `queue` holds, by its statistics.
async fn backlog(api: &Api, queue: &str) -> Value {
    let path = format!("/v1/queues/{queue}/stats");
    let answer = api.retry(Method::GET, &path, None, WIDE).await;
    answer.expect("an answer").success().expect("statistics")["backlog"].clone()
}

/// What `overlap: skip` has decided for the schedule `tick`: created, skipped.
async fn decided(api: &Api) -> (u64, u64) {
    let path = format!("{SCHEDULES}/tick");
    let answer = api.retry(Method::GET, &path, None, WIDE).await;
    let found = answer.expect("an answer").success().expect("the schedule");
    let status = &found["status"];
    let skipped = status["totals"]["skipped"]["overlap"].as_u64();
    (
        status["created_count"].as_u64().unwrap_or(0),
        skipped.unwrap_or(0),
    )
}

/// One execution of `tick` is leased for ten minutes; two of five with key `tight` (limit 2) and three of six in queue
/// `narrow` (limit 3) are leased; queue `halted` is paused with one in it.
async fn set_up(api: &Api) -> (Value, Vec<Value>, Vec<Value>) {
    for (path, body) in [
        ("/v1/tenants/default/keys/tight", json!({"max_leased": 2})),
        ("/v1/queues/narrow", json!({"max_leased": 3})),
        ("/v1/queues/halted", json!({})),
    ] {
        let put = api.retry(Method::PUT, path, Some(&body), WIDE).await;
        put.expect("an answer").success().expect("a limit");
    }
    let pause = api
        .retry(Method::POST, "/v1/queues/halted:pause", None, WIDE)
        .await;
    pause.expect("an answer").success().expect("a pause");
    submit(
        api,
        &json!({"execution_id": "halted", "kind": "k", "queue": "halted"}),
    )
    .await
    .expect("a submission");
    for i in 0..5 {
        let body = json!({"execution_id": format!("t{i}"), "kind": "k", "queue": "keyed", "concurrency_key": "tight"});
        submit(api, &body).await.expect("a submission");
    }
    for i in 0..6 {
        let body = json!({"execution_id": format!("n{i}"), "kind": "k", "queue": "narrow"});
        submit(api, &body).await.expect("a submission");
    }
    let tick = json!({
        "rule": {"every": "1s"}, "queue": "ticks", "kind": "tick", "overlap": {"policy": "skip"},
    });
    put_schedule(api, "tick", &tick).await.expect("a schedule");
    let long = (10, 5_000, 600_000);
    let running = claim(api, "ticks", "runner", long).await.expect("a lease");
    let tight = claim(api, "keyed", "runner", long).await.expect("leases");
    let narrow = claim(api, "narrow", "runner", long).await.expect("leases");
    assert_eq!((running.len(), tight.len(), narrow.len()), (1, 2, 3));
    (running[0].clone(), tight, narrow)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_leases_pauses_and_overlap_hold_after_the_death_of_all_nodes() {
    let mut cluster = Cluster::start(3, "").await.expect("a cluster that starts");
    let api = cluster.api().expect("a client");
    let (running, tight, narrow) = set_up(&api).await;
    let before = decided(&api).await;
    kill_and_start_all(&mut cluster).await;
    let api = cluster.api().expect("a client");

    // Nothing more than the limits allow, and nothing of the paused queue.
    for queue in ["keyed", "narrow", "halted"] {
        let more = claim(&api, queue, "greedy", (10, 1_000, 10_000)).await;
        let more = more.expect("an answer");
        assert!(more.is_empty(), "{queue}: {more:?}");
    }
    // The running execution still blocks its schedule: occurrences are skipped, none is created.
    let skips = || async {
        let now = decided(&api).await;
        (now.1 >= before.1 + 3).then_some(now)
    };
    let (after, _) = wait::until("three skipped occurrences", WIDE, skips)
        .await
        .expect("skips");
    assert_eq!(after.0, before.0, "overlap counts what was running before");
    // The leases live: renewed, and completed by those who hold them.
    for lease in tight.iter().chain(&narrow).chain([&running]) {
        let renewed = report(&api, 1, "renew", "runner", lease).await;
        let renewed = renewed.expect("an answer").success().expect("well-formed");
        assert_eq!(renewed["results"][0]["status"], "ok", "{renewed}");
    }
    for lease in tight.iter().chain(&narrow).chain([&running]) {
        let done = complete(&api, "runner", lease).await.expect("an answer");
        assert_eq!(done["status"], "ok", "{done}");
    }
    // The slots are free again, all of them and no more.
    let tight = claim(&api, "keyed", "next", (10, 2_000, 60_000)).await;
    let narrow = claim(&api, "narrow", "next", (10, 2_000, 60_000)).await;
    assert_eq!(tight.expect("an answer").len(), 2);
    assert_eq!(narrow.expect("an answer").len(), 3);
    let left = backlog(&api, "keyed").await;
    assert_eq!(
        (&left["leased"], &left["parked"]),
        (&json!(2), &json!(1)),
        "{left}"
    );
    // And the schedule goes on.
    let goes_on = || async { (decided(&api).await.0 > before.0).then_some(()) };
    wait::until("the next occurrence", WIDE, goes_on)
        .await
        .expect("firing");
    let resumed = api
        .retry(Method::POST, "/v1/queues/halted:resume", None, WIDE)
        .await;
    resumed.expect("an answer").success().expect("resumed");
    let halted = claim(&api, "halted", "next", (1, 5_000, 10_000)).await;
    assert_eq!(halted.expect("an answer").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offline_check_after_a_kill_names_what_is_only_in_the_log() {
    let mut cluster = Cluster::start(1, "").await.expect("a node that starts");
    let api = cluster.api().expect("a client");
    for i in 0..40 {
        submit(
            &api,
            &json!({"execution_id": format!("e{i}"), "kind": "k", "queue": "q"}),
        )
        .await
        .expect("a submission");
    }
    // Before the first flush, which comes after ten seconds.
    cluster.kill(0);
    let (code, found) = cluster.verify(0).expect("a report");
    assert_eq!((code, &found["sound"]), (0, &json!(true)), "{found}");
    let waiting = found["entries_to_replay"].as_u64().expect("a number");
    assert!(waiting > 0, "{found}");
    let dir = cluster.data_dir(0);
    let (_, text, _) =
        Cluster::run(&["store", "verify", "--data-dir", &dir.to_string_lossy()]).expect("a report");
    assert!(
        text.contains(&format!("without the last {waiting} entries of the log")),
        "{text}"
    );
    cluster.spawn(0).expect("a node that starts again");
    cluster.ready(WIDE).await.expect("ready again");
    let read = api.get(&format!("{EXECUTIONS}/e39")).await;
    assert!(read.is_ok_and(|a| a.ok()), "the node replayed it");
    cluster.signal(0, "TERM").expect("a signal");
    let code = cluster.exited(0, Duration::from_secs(30)).await;
    assert_eq!(code, Ok(0));
    let (code, found) = cluster.verify(0).expect("a report");
    assert_eq!(
        (code, &found["entries_to_replay"]),
        (0, &json!(0)),
        "{found}"
    );
}
