//! Three real nodes with kills: nothing acknowledged is lost, nothing fires twice, a node that was away catches up.

#![allow(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "tests fail by panicking and print figures"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use jepsen::cluster::Cluster;
use jepsen::http::Api;
use jepsen::wait::{self, WIDE};
use jepsen::watcher::{Seen, Watchers, by_occurrence};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

const EXECUTIONS: &str = "/v1/tenants/default/executions";

async fn put_ticks(api: &Api, count: usize) {
    for i in 0..count {
        let path = format!("/v1/tenants/default/schedules/tick-{i}");
        let body = json!({"rule": {"every": "1s"}, "queue": "ticks", "kind": "tick"});
        api.retry(Method::PUT, &path, Some(&body), WIDE)
            .await
            .expect("an answer")
            .success()
            .expect("a schedule");
    }
}

fn seconds(nominal: &str) -> i64 {
    // Whole seconds within the day are enough: the tests last a minute, and a midnight in between is added back.
    let part = |from: usize| {
        nominal
            .get(from..from + 2)
            .and_then(|p| p.parse::<i64>().ok())
    };
    let day = part(8).unwrap_or(0);
    let clock = part(11).unwrap_or(0) * 3_600 + part(14).unwrap_or(0) * 60;
    day * 86_400 + clock + part(17).unwrap_or(0)
}

/// Each schedule's nominal times are consecutive seconds, each with one execution and one accepted completion.
fn assert_each_second_once(seen: &[Seen], schedules: usize) {
    for ((schedule, nominal), executions) in by_occurrence(seen) {
        assert_eq!(
            executions.len(),
            1,
            "{schedule} {nominal} was created twice: {executions:?}"
        );
    }
    let mut times: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for one in seen.iter().filter(|s| s.attempt == 1) {
        if let (Some(schedule), Some(nominal)) = (&one.schedule, &one.nominal_at) {
            times.entry(schedule).or_default().push(seconds(nominal));
        }
    }
    assert_eq!(times.len(), schedules, "every schedule fired");
    for (schedule, mut at) in times {
        at.sort_unstable();
        at.dedup();
        let (first, last) = (at.first().expect("fired"), at.last().expect("fired"));
        let expected = usize::try_from(last - first + 1).expect("a short test");
        assert_eq!(
            at.len(),
            expected,
            "{schedule} has a hole between {first} and {last}: {at:?}"
        );
    }
    let mut tokens: BTreeMap<&str, u64> = BTreeMap::new();
    for one in seen {
        let last = tokens.insert(&one.execution, one.token).unwrap_or(0);
        assert!(
            one.token > last,
            "{}: token {} after {last}",
            one.execution,
            one.token
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_is_replaced_and_nothing_is_lost_or_fired_twice() {
    let mut cluster = Cluster::start(3, "").await.expect("a cluster that starts");
    let api = cluster.api().expect("a client");
    put_ticks(&api, 20).await;
    let watchers = Watchers::start(&api, "ticks", 6);
    for round in 0..3 {
        let before = watchers.seen().await.len();
        let more = || async { (watchers.seen().await.len() >= before + 40).then_some(()) };
        wait::until("two seconds of firing", WIDE, more)
            .await
            .expect("firing");
        let leader = cluster.leader(WIDE).await.expect("a leader");
        cluster.kill(leader);
        let killed = Instant::now();
        let again = || async {
            let seen = watchers.seen().await;
            seen.iter()
                .any(|s| s.at > killed && s.completion == "ok")
                .then_some(())
        };
        wait::until("firing under a new leader", WIDE, again)
            .await
            .expect("failover");
        let seen = watchers.seen().await;
        let first = seen
            .iter()
            .filter(|s| s.at > killed && s.completion == "ok")
            .map(|s| s.at)
            .min();
        let gap = first.map(|at| at - killed).unwrap_or_default();
        eprintln!(
            "round {round}: firing, granting and completing again {gap:?} after SIGKILL of the leader"
        );
        cluster.spawn(leader).expect("a node that starts again");
        cluster
            .ready(WIDE)
            .await
            .expect("a node that is ready again");
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let seen = watchers.finish().await;
    assert_each_second_once(&seen, 20);
}

async fn applied(api: &Api, node: usize) -> Option<u64> {
    let path = "/v1/cluster?consistency=stale";
    let answer = api.at(node, Method::GET, path, None).await.ok()?;
    answer.body["applied_index"].as_u64()
}

async fn submit(api: &Api, id: &str) {
    let body = json!({"execution_id": id, "kind": "test", "queue": "kept"});
    api.retry(Method::POST, EXECUTIONS, Some(&body), WIDE)
        .await
        .expect("an answer")
        .success()
        .expect("a submission");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_with_one_node_down_serves_and_the_node_catches_up() {
    let mut cluster = Cluster::start(3, "").await.expect("a cluster that starts");
    let api = cluster.api().expect("a client");
    for victim in 0..3 {
        submit(&api, &format!("before-{victim}")).await;
        cluster.kill(victim);
        for i in 0..50 {
            submit(&api, &format!("without-{victim}-{i}")).await;
        }
        cluster.spawn(victim).expect("a node that starts again");
        cluster
            .ready(WIDE)
            .await
            .expect("a node that is ready again");
        let caught_up = || async {
            let all = [
                applied(&api, 0).await?,
                applied(&api, 1).await?,
                applied(&api, 2).await?,
            ];
            (all.iter().min()? + 5 >= *all.iter().max()?).then_some(())
        };
        let ((), took) = wait::until("equal applied indexes", WIDE, caught_up)
            .await
            .expect("catching up");
        eprintln!("node {} caught up {took:?} after it was ready", victim + 1);
        // A linearizable read on the node that was away sees everything.
        for i in [0, 49] {
            let path = format!("{EXECUTIONS}/without-{victim}-{i}");
            let answer = api
                .at(victim, Method::GET, &path, None)
                .await
                .expect("an answer");
            assert!(answer.ok(), "{path}: {} {}", answer.status, answer.body);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_takes_any_call_and_names_the_leader() {
    let cluster = Cluster::start(3, "").await.expect("a cluster that starts");
    let api = cluster.api().expect("a client");
    for node in 0..3 {
        let path = format!("/v1/tenants/default/schedules/by-{node}");
        let body = json!({"rule": {"cron": "0 9 * * MON-FRI"}});
        let put = api
            .at(node, Method::PUT, &path, Some(&body))
            .await
            .expect("an answer");
        assert!(put.ok(), "node {node}: {} {}", put.status, put.body);
        for reader in 0..3 {
            let get = api
                .at(reader, Method::GET, &path, None)
                .await
                .expect("an answer");
            assert_eq!(
                get.body["schedule_id"],
                Value::from(format!("by-{node}")),
                "node {reader}"
            );
        }
    }
}
