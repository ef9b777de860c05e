//! Planned stops: the leader hands over before it goes, and a rolling restart is hardly noticed.

#![allow(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "tests fail by panicking and print figures"
)]

use std::time::Duration;

use jepsen::cluster::Cluster;
use jepsen::history::each_second_once;
use jepsen::observe::put_schedule;
use jepsen::wait::{self, WIDE};
use jepsen::watcher::Watchers;
use serde_json::json;
use tokio::time::Instant;

/// The gap that the README promises for a crash; a planned stop must stay well inside it.
const GAP: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_told_to_stop_hands_over_and_firing_goes_on() {
    let mut cluster = Cluster::start(3, "").await.expect("a cluster that starts");
    let api = cluster.api().expect("a client");
    // Thirty schedules, spread over the second, so that a gap shows at its true length.
    for i in 0..30 {
        let anchor = format!("2026-01-01T00:00:00.{:03}Z", i * 33);
        let body =
            json!({"rule": {"every": "1s", "anchor": anchor}, "queue": "ticks", "kind": "tick"});
        put_schedule(&api, &format!("tick-{i}"), &body)
            .await
            .expect("a schedule");
    }
    let watchers = Watchers::start(&api, "ticks", 6);
    for round in 0..3 {
        let before = watchers.seen().await.len();
        let more = || async { (watchers.seen().await.len() >= before + 60).then_some(()) };
        wait::until("two seconds of firing", WIDE, more)
            .await
            .expect("firing");
        let leader = cluster.leader(WIDE).await.expect("a leader");
        let others: Vec<usize> = (0..3).filter(|n| *n != leader).collect();
        let told = Instant::now();
        cluster.signal(leader, "TERM").expect("a signal");
        let new = cluster.leader_of(&others, WIDE).await.expect("a leader");
        let led = told.elapsed();
        let code = cluster.exited(leader, WIDE).await.expect("it ends");
        assert_eq!(code, 0, "{}", cluster.log_tail(leader));
        let ended = told.elapsed();
        let again = || async {
            let seen = watchers.seen().await;
            let fresh = seen
                .iter()
                .filter(|s| s.at > told + led && s.completion == "ok");
            (fresh.count() >= 30).then_some(())
        };
        wait::until("a second of firing under the new leader", WIDE, again)
            .await
            .expect("firing");
        let mut at: Vec<Instant> = watchers.seen().await.iter().map(|s| s.at).collect();
        at.retain(|at| *at + Duration::from_secs(2) > told);
        at.sort_unstable();
        let gap = at
            .windows(2)
            .map(|w| w[1] - w[0])
            .max()
            .expect("two leases");
        eprintln!(
            "round {round}: node {} led {led:?} after SIGTERM of the leader, which ended after {ended:?}; \
             longest time without a lease {gap:?}",
            new + 1
        );
        assert!(gap < GAP, "{gap:?}");
        cluster.spawn(leader).expect("a node that starts again");
        cluster.ready(WIDE).await.expect("ready again");
    }
    let seen = watchers.finish().await;
    each_second_once(&seen, 30).expect("each second once");
}
