//! A node that was away while the others purged their log comes back by snapshot; a lost disk is replaced by a new node.

#![allow(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "tests fail by panicking and print figures"
)]

use std::path::Path;
use std::time::Duration;

use jepsen::cluster::Cluster;
use jepsen::http::Api;
use jepsen::observe::{
    EXECUTIONS, agree, claim, complete, figure, holdings, put_schedule, stop_and_verify, submit,
};
use jepsen::wait::{self, WIDE};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Small enough that a few megabytes of payloads make the others purge what a node that is away has not seen.
const SMALL_LOG: &str = "[snapshot]\nlog_bytes = \"1MiB\"\ninterval = \"10s\"\nlog_tail_bytes = \"1MiB\"\n\
                         [store]\ncache_bytes = \"16MiB\"\nwrite_buffer_bytes = \"8MiB\"\n";

/// Work of every kind, in queue `queue`: schedules that will not fire, finished, running, waiting and parked work.
async fn some_state(api: &Api, queue: &str) {
    for i in 0..20 {
        let rule = json!({"rule": {"cron": "0 9 * * MON"}, "queue": queue, "kind": "k"});
        put_schedule(api, &format!("{queue}-{i}"), &rule)
            .await
            .expect("a schedule");
    }
    for i in 0..30 {
        let body = json!({
            "execution_id": format!("{queue}-x{i}"), "kind": "k", "queue": queue, "payload": {"n": i},
            "concurrency_key": if i % 3 == 0 { Some("tight") } else { None },
        });
        submit(api, &body).await.expect("a submission");
    }
    let later = json!({"execution_id": format!("{queue}-later"), "kind": "k", "queue": queue, "delay": "3h"});
    submit(api, &later).await.expect("a submission");
    let leases = claim(api, queue, "w", (10, 0, 600_000))
        .await
        .expect("leases");
    for lease in leases.iter().take(5) {
        let done = complete(api, "w", lease).await.expect("an answer");
        assert_eq!(done["status"], "ok", "{done}");
    }
}

/// Writes `mib` MiB of log.
async fn fill(api: &Api, name: &str, mib: usize) {
    let payload = "x".repeat(120 * 1024);
    for i in 0..mib * 9 {
        let body = json!({
            "execution_id": format!("{name}-{i}"), "kind": "k", "queue": "full", "payload": payload,
            "due_at": "2200-01-01T00:00:00Z",
        });
        submit(api, &body).await.expect("a submission");
    }
}

/// Waits until `node` has purged its log beyond `index`; takes snapshots on the way.
async fn purged_beyond(api: &Api, node: usize, index: u64) -> u64 {
    let purged = || async {
        let taken = api
            .at(node, Method::POST, "/v1/cluster:snapshot", None)
            .await;
        assert!(taken.is_ok_and(|a| a.ok()), "a snapshot on request");
        let purged = figure(api, node, "purged_index").await?;
        (purged > index).then_some(purged)
    };
    wait::until("a purged log", WIDE, purged)
        .await
        .expect("purged")
        .0
}

/// All of `nodes` show the same when asked alone.
async fn assert_equal(api: &Api, nodes: &[usize]) {
    agree(api, nodes, WIDE).await.expect("equal indexes");
    let first = holdings(api, nodes[0]).await.expect("lists");
    assert!(first.len() > 50, "the lists hold something");
    for node in &nodes[1..] {
        let other = holdings(api, *node).await.expect("lists");
        assert_eq!(first.len(), other.len(), "node {node}");
        for (a, b) in first.iter().zip(&other) {
            assert_eq!(a, b, "node {node}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_was_away_for_longer_than_the_log_catches_up_by_snapshot() {
    let mut cluster = Cluster::start(3, SMALL_LOG)
        .await
        .expect("a cluster that starts");
    let api = cluster.api().expect("a client");
    some_state(&api, "before").await;
    let leader = cluster.leader(WIDE).await.expect("a leader");
    let away = (leader + 1) % 3;
    let known = figure(&api, away, "last_log_index").await.expect("a log");
    cluster.kill(away);
    some_state(&api, "meanwhile").await;
    fill(&api, "a", 4).await;
    for node in (0..3).filter(|n| *n != away) {
        let purged = purged_beyond(&api, node, known + 10).await;
        eprintln!(
            "node {} purged its log up to {purged}; the node that is away ends at {known}",
            node + 1
        );
    }
    cluster.spawn(away).expect("a node that starts again");
    let back = Instant::now();
    cluster
        .ready(WIDE)
        .await
        .expect("a node that is ready again");
    let index = agree(&api, &[0, 1, 2], WIDE).await.expect("catching up");
    eprintln!(
        "by snapshot at the others' index {index} {:?} after its start",
        back.elapsed()
    );
    assert!(
        cluster.log_has(away, "receiving a snapshot"),
        "{}",
        cluster.log_tail(away)
    );
    some_state(&api, "after").await;
    assert_equal(&api, &[0, 1, 2]).await;
    stop_and_verify(&mut cluster, &[0, 1, 2])
        .await
        .expect("sound data on every node");
}

/// Starts node `i` and waits until it has ended by itself; the end of its log.
async fn refused(cluster: &mut Cluster, i: usize, flags: &[&str]) -> String {
    cluster.spawn_with(i, flags).expect("a process");
    let code = cluster
        .exited(i, Duration::from_secs(20))
        .await
        .expect("a node that stops by itself");
    assert_eq!(code, 70, "{}", cluster.log_tail(i));
    cluster.log_tail(i)
}

fn wipe(dir: &Path) {
    std::fs::remove_dir_all(dir).expect("the data directory is removed");
}

fn cli(server: &str, words: &[&str]) -> (i32, String, String) {
    let words = [&["--server", server], words].concat();
    Cluster::run(&words).expect("the command line runs")
}

async fn voters(api: &Api, node: usize) -> Vec<u64> {
    let path = "/v1/cluster?consistency=stale";
    let Ok(answer) = api.at(node, Method::GET, path, None).await else {
        return Vec::new();
    };
    let members = answer.body["members"].as_array().cloned();
    let votes = |m: &Value| m["voter"].as_bool().filter(|v| *v).and(m["node"].as_u64());
    members
        .unwrap_or_default()
        .iter()
        .filter_map(votes)
        .collect()
}

/// Node `dead` starts under its old number without its data: it stops, and says what to type. Again when a supervisor
/// starts it again, and when it joins instead of founding.
async fn assert_refused_without_data(cluster: &mut Cluster, dead: usize) {
    let id = cluster.id(dead);
    for flags in [&[] as &[&str], &[], &["--join"]] {
        if cluster.data_dir(dead).exists() && flags.len() == 1 {
            wipe(&cluster.data_dir(dead));
        }
        let said = refused(cluster, dead, flags).await;
        for words in [
            format!("cluster remove-member {id}"),
            "node_id = 4".into(),
            "cluster add-member --node 4".into(),
        ] {
            assert!(said.contains(&words), "{words} is missing in\n{said}");
        }
    }
}

fn add(cluster: &Cluster, node: usize, server: &str) -> (i32, String) {
    let (id, peer, url) = (
        cluster.id(node).to_string(),
        cluster.peer(node),
        cluster.url(node),
    );
    let words = [
        "cluster",
        "add-member",
        "--node",
        &id,
        "--peer",
        &peer,
        "--api",
        &url,
    ];
    let (code, _, errors) = cli(server, &words);
    (code, errors)
}

/// Removes `dead` and adds an empty node 4, by the commands of the README; answers its place.
async fn replace(cluster: &mut Cluster, dead: usize, server: &str) -> usize {
    let id = cluster.id(dead).to_string();
    let (code, out, errors) = cli(server, &["cluster", "remove-member", &id]);
    assert_eq!(code, 0, "{out}{errors}");
    let new = cluster.prepare_joining(4, SMALL_LOG).await.expect("files");
    // A node that does not run yet is not added.
    let (code, errors) = add(cluster, new, server);
    assert!(code == 4 && errors.contains("--join"), "{code}: {errors}");
    cluster.spawn(new).expect("a process");
    let begun = Instant::now();
    let added = || async {
        let (code, errors) = add(cluster, new, server);
        assert!(code == 0 || errors.contains("--join"), "{errors}");
        (code == 0).then_some(())
    };
    wait::until("the new node to be added", WIDE, added)
        .await
        .expect("added");
    eprintln!("an empty node votes {:?} after its start", begun.elapsed());
    new
}

/// Kills `first`, then `second`, one at a time: writes go on with the two that are left.
async fn assert_writes_go_on(cluster: &mut Cluster, api: &Api, victims: [usize; 2]) {
    for victim in victims {
        cluster.kill(victim);
        let id = format!("without-{victim}");
        submit(api, &json!({"execution_id": id, "kind": "k", "queue": "q"}))
            .await
            .expect("a write with two of three");
        let found = api
            .retry(Method::GET, &format!("{EXECUTIONS}/{id}"), None, WIDE)
            .await;
        assert!(found.is_ok_and(|a| a.ok()));
        cluster.spawn(victim).expect("a node that starts again");
        cluster.ready(WIDE).await.expect("ready");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_disk_is_refused_under_its_number_and_replaced_by_a_new_node() {
    let mut cluster = Cluster::start(3, SMALL_LOG)
        .await
        .expect("a cluster that starts");
    let api = cluster.api().expect("a client");
    some_state(&api, "before").await;
    let leader = cluster.leader(WIDE).await.expect("a leader");
    let (dead, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let server = cluster.url(leader);
    cluster.kill(dead);
    wipe(&cluster.data_dir(dead));
    assert_refused_without_data(&mut cluster, dead).await;

    // The new node cannot get everything from the log.
    fill(&api, "b", 3).await;
    let known = figure(&api, leader, "applied_index")
        .await
        .expect("an index");
    purged_beyond(&api, leader, known / 2).await;
    let new = replace(&mut cluster, dead, &server).await;
    let api = cluster.api().expect("a client of four");
    let live: Vec<usize> = (0..4).filter(|n| *n != dead).collect();
    assert_eq!(voters(&api, leader).await.len(), 3);
    assert!(cluster.log_has(new, "receiving a snapshot"));
    assert_equal(&api, &live).await;

    // It counts.
    assert_writes_go_on(&mut cluster, &api, [other, leader]).await;
    assert_equal(&api, &live).await;
    // The old number does not come back by adding it either.
    let (code, errors) = add(&cluster, dead, &cluster.url(other));
    assert_eq!(code, 4, "{errors}");
    stop_and_verify(&mut cluster, &live)
        .await
        .expect("sound data on every node");
}
