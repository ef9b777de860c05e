//! Reads on every node: what was written anywhere is seen everywhere; stale reads say how stale; lists agree.

#![allow(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "tests fail by panicking and print figures"
)]

use jepsen::cluster::Cluster;
use jepsen::http::Api;
use jepsen::observe::{EXECUTIONS, SCHEDULES, agree, claim, complete, holdings};
use jepsen::wait::WIDE;
use reqwest::Method;
use serde_json::json;
use tokio::time::Instant;

/// Writes at `writer` and reads on every node, at once: by default, by the write's index, and as stale after that.
async fn written_and_read(api: &Api, writer: usize, i: usize) {
    let id = format!("x-{writer}-{i}");
    let body = json!({"execution_id": id, "kind": "k", "queue": "q", "payload": {"i": i}});
    let written = api
        .at(writer, Method::POST, EXECUTIONS, Some(&body))
        .await
        .expect("an answer");
    assert!(written.ok(), "{}", written.body);
    let index = written.number("x-log-index").expect("X-Log-Index");
    let path = format!("{EXECUTIONS}/{id}");
    for reader in 0..3 {
        let read = api.at(reader, Method::GET, &path, None).await;
        let read = read.expect("an answer");
        assert!(
            read.ok(),
            "written at {writer}, read at {reader}: {}",
            read.body
        );
        assert_eq!(read.body["payload"]["i"], i);
        let reached = format!("{path}?consistency=stale&min_index={index}");
        let read = api.at(reader, Method::GET, &reached, None).await;
        let read = read.expect("an answer");
        assert!(read.ok(), "{}", read.body);
        assert!(read.number("x-applied-index").is_some_and(|at| at >= index));
        assert!(read.number("x-applied-age-ms").is_some());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_written_on_one_node_is_read_on_every_node() {
    let cluster = Cluster::start(3, "").await.expect("a cluster that starts");
    let api = cluster.api().expect("a client");
    let begun = Instant::now();
    for i in 0..20 {
        for writer in 0..3 {
            written_and_read(&api, writer, i).await;
        }
    }
    eprintln!("60 writes, 360 reads in {:?}", begun.elapsed());
    // Schedules: replaced on one node, deleted on another; each next read sees it.
    for i in 0..10 {
        let path = format!("{SCHEDULES}/s{}", i % 4);
        let body = json!({"rule": {"cron": "0 9 * * *"}, "kind": format!("k{i}")});
        let put = api.at(i % 3, Method::PUT, &path, Some(&body)).await;
        assert!(put.expect("an answer").ok());
        let read = api.at((i + 1) % 3, Method::GET, &path, None).await;
        assert_eq!(read.expect("an answer").body["kind"], format!("k{i}"));
        if i % 5 == 4 {
            let gone = api.at((i + 2) % 3, Method::DELETE, &path, None).await;
            assert!(gone.expect("an answer").ok());
            let read = api.at(i % 3, Method::GET, &path, None).await;
            assert_eq!(read.expect("an answer").status, 404);
        }
    }
    // Work that was claimed and completed through whichever node.
    let leases = claim(&api, "q", "w", (20, 0, 60_000))
        .await
        .expect("leases");
    assert_eq!(leases.len(), 20);
    for (n, lease) in leases.iter().enumerate() {
        let done = complete(&api, "w", lease).await.expect("an answer");
        assert_eq!(done["status"], "ok");
        let id = lease["execution_id"].as_str().expect("an id");
        let read = api
            .at(n % 3, Method::GET, &format!("{EXECUTIONS}/{id}"), None)
            .await;
        assert_eq!(read.expect("an answer").body["state"], "succeeded");
    }
    agree(&api, &[0, 1, 2], WIDE).await.expect("equal indexes");
    let first = holdings(&api, 0).await.expect("lists");
    assert!(first.len() >= 60, "{}", first.len());
    for node in 1..3 {
        assert!(
            first == holdings(&api, node).await.expect("lists"),
            "node {node}"
        );
    }
    // An index that is far ahead is not waited for for ever.
    let far = format!("{EXECUTIONS}?consistency=stale&min_index=1000000000");
    let begun = Instant::now();
    let refused = api.at(0, Method::GET, &far, None).await.expect("an answer");
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert_eq!(refused.body["code"], "index_not_reached");
    eprintln!(
        "an index that is not reached is refused after {:?}",
        begun.elapsed()
    );
}
