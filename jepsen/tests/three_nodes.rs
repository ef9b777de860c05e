//! Three real nodes with kills: nothing acknowledged is lost, nothing fires twice, a node that was away catches up.

#![allow(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "tests fail by panicking and print figures"
)]

use std::time::Duration;

use jepsen::cluster::Cluster;
use jepsen::history::{each_second_once, put_ticks};
use jepsen::http::Api;
use jepsen::observe::EXECUTIONS;
use jepsen::wait::{self, WIDE};
use jepsen::watcher::Watchers;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_leader_is_replaced_and_nothing_is_lost_or_fired_twice() {
    let mut cluster = Cluster::start(3, "").await.expect("a cluster that starts");
    let api = cluster.api().expect("a client");
    put_ticks(&api, 20).await.expect("schedules");
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
        let gap = watchers.fires_after(killed, WIDE).await.expect("failover");
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
    each_second_once(&seen, 20).expect("each second once");
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
