//! Cut networks between real nodes, through proxies that hold bytes back.

#![allow(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "tests fail by panicking and print figures"
)]

use std::time::Duration;

use jepsen::cluster::Cluster;
use jepsen::history::{each_second_once, put_ticks};
use jepsen::http::{Answer, Api};
use jepsen::observe::{EXECUTIONS, agree, figure, holdings, submit};
use jepsen::wait::{self, WIDE};
use jepsen::watcher::Watchers;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

/// What the README promises, with room for a loaded machine.
const FAILOVER: Duration = Duration::from_secs(10);
/// Elections that a busy machine does not call for, where a test says that nobody is deposed.
const CALM: &str =
    "[raft]\nheartbeat = \"100ms\"\nelection_min = \"500ms\"\nelection_max = \"800ms\"\n";
/// A client of a node without a majority is told so within this.
const TOLD: Duration = Duration::from_secs(6);

/// A call to `node` must be refused with 503 and `Retry-After`, soon; answers its code and how long it took.
async fn refused(
    api: &Api,
    node: usize,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> (String, Duration) {
    let begun = Instant::now();
    let call = api.at(node, method, path, body);
    let answer: Answer = timeout(TOLD, call)
        .await
        .expect("an answer in time")
        .expect("an answer");
    let code = answer.body["code"].as_str().unwrap_or_default().to_owned();
    assert_eq!(answer.status, 503, "{path}: {}", answer.body);
    assert!(
        answer.number("retry-after").is_some(),
        "{path}: Retry-After"
    );
    (code, begun.elapsed())
}

/// Whatever a node without a majority is asked, it says 503; what it answers as stale carries its age.
async fn assert_minority(api: &Api, node: usize) {
    let new = json!({"kind": "k", "queue": "minority"});
    let wanted = json!({"worker_id": "w", "queues": ["ticks"], "wait_ms": 20_000});
    for (method, path, body) in [
        (Method::POST, EXECUTIONS, Some(&new)),
        (Method::POST, "/v1/leases:claim", Some(&wanted)),
        (Method::GET, "/v1/tenants/default/executions/before", None),
        (Method::GET, "/v1/tenants/default/schedules", None),
    ] {
        let (code, took) = refused(api, node, method, path, body).await;
        eprintln!(
            "node {} without a majority: {path}: {code} after {took:?}",
            node + 1
        );
    }
    let path = "/v1/tenants/default/executions/before?consistency=stale";
    let stale = api.at(node, Method::GET, path, None).await;
    let stale = stale.expect("an answer");
    assert!(stale.ok(), "{}", stale.body);
    assert!(stale.number("x-applied-index").is_some());
    assert!(
        stale
            .number("x-applied-age-ms")
            .is_some_and(|age| age > 1_000)
    );
}

/// A cluster with ten ticking schedules, an execution `before`, and the place of its leader.
async fn ticking(extra: &str) -> (Cluster, Api, usize) {
    let cluster = Cluster::linked(3, extra)
        .await
        .expect("a cluster that starts");
    let api = cluster.api().expect("a client");
    put_ticks(&api, 10).await.expect("schedules");
    submit(
        &api,
        &json!({"execution_id": "before", "kind": "k", "queue": "q"}),
    )
    .await
    .expect("a submission");
    let leader = cluster.leader(WIDE).await.expect("a leader");
    (cluster, api, leader)
}

async fn assert_healed(cluster: &Cluster, api: &Api, watchers: Watchers) {
    let healed = Instant::now();
    cluster.links().expect("links").heal();
    let serves = || async {
        for node in 0..3 {
            let path = "/v1/tenants/default/executions/before";
            let read = api.at(node, Method::GET, path, None).await.ok()?;
            read.ok().then_some(())?;
        }
        Some(())
    };
    wait::until("every node to serve", FAILOVER, serves)
        .await
        .expect("healing without help");
    eprintln!("every node serves {:?} after the healing", healed.elapsed());
    watchers
        .fires_after(Instant::now(), FAILOVER)
        .await
        .expect("firing again");
    let seen = watchers.finish().await;
    each_second_once(&seen, 10).expect("each second once");
    // Nothing fires while they are compared.
    let paused = api
        .retry(Method::POST, "/v1/cluster:pause", None, WIDE)
        .await;
    paused.expect("an answer").success().expect("a pause");
    agree(api, &[0, 1, 2], WIDE).await.expect("equal indexes");
    let first = holdings(api, 0).await.expect("lists");
    for node in 1..3 {
        assert!(
            first == holdings(api, node).await.expect("lists"),
            "node {node}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_is_replaced_and_refuses_everything() {
    let (cluster, api, old) = ticking("").await;
    let others: Vec<usize> = (0..3).filter(|n| *n != old).collect();
    let connected = Api::new(others.iter().map(|n| cluster.url(*n)).collect()).expect("a client");
    let watchers = Watchers::start(&connected, "ticks", 4);
    watchers
        .fires_after(Instant::now(), FAILOVER)
        .await
        .expect("firing again");
    let links = cluster.links().expect("links");
    for other in &others {
        links.cut(cluster.id(old), cluster.id(*other));
    }
    let cut = Instant::now();
    // Asked at once, while it still believes in its office.
    let body = json!({"kind": "k", "queue": "minority"});
    let early = refused(&api, old, Method::POST, EXECUTIONS, Some(&body));
    let ((code, told), gap) = tokio::join!(early, watchers.fires_after(cut, FAILOVER));
    let gap = gap.expect("firing again");
    eprintln!(
        "leader cut off: others complete again after {gap:?}; a write to it: {code} after {told:?}"
    );
    let new = cluster.leader_of(&others, WIDE).await.expect("a leader");
    assert!(others.contains(&new));
    assert_minority(&api, old).await;
    let ready = api
        .at(old, Method::GET, "/readyz", None)
        .await
        .expect("an answer");
    assert_eq!(ready.status, 503, "a node without a majority is not ready");
    assert_healed(&cluster, &api, watchers).await;
    // What the old leader refused was not done, or once at most where it said that it did not know.
    let all = holdings(&api, 0).await.expect("lists");
    let late = all
        .iter()
        .filter(|x| x["queue"] == "minority" && x["execution_id"].is_string());
    assert_eq!(late.count(), 0, "the majority never had it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_is_cut_off_says_so_and_comes_back() {
    let (cluster, api, leader) = ticking(CALM).await;
    let follower = (leader + 1) % 3;
    let rest: Vec<usize> = (0..3).filter(|n| *n != follower).collect();
    let connected = Api::new(rest.iter().map(|n| cluster.url(*n)).collect()).expect("a client");
    let watchers = Watchers::start(&connected, "ticks", 4);
    watchers
        .fires_after(Instant::now(), FAILOVER)
        .await
        .expect("firing again");
    let links = cluster.links().expect("links");
    for other in &rest {
        links.cut(cluster.id(follower), cluster.id(*other));
    }
    let term = figure(&api, leader, "term").await;
    assert_minority(&api, follower).await;
    // An operator still sees what the node knows.
    let url = cluster.url(follower);
    let (code, shown, errors) =
        Cluster::run(&["--server", &url, "cluster", "status"]).expect("the command line");
    assert!(code == 0 && shown.contains("leader"), "{shown}{errors}");
    watchers
        .fires_after(Instant::now(), FAILOVER)
        .await
        .expect("firing again");
    assert_healed(&cluster, &api, watchers).await;
    assert_eq!(
        figure(&api, leader, "term").await,
        term,
        "it deposed nobody"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_hears_nobody_or_is_heard_by_nobody_is_replaced() {
    for is_deaf in [true, false] {
        let (cluster, api, old) = ticking("").await;
        let others: Vec<usize> = (0..3).filter(|n| *n != old).collect();
        let connected = Api::new(others.iter().map(|n| cluster.url(*n)).collect());
        let watchers = Watchers::start(&connected.expect("a client"), "ticks", 4);
        watchers
            .fires_after(Instant::now(), FAILOVER)
            .await
            .expect("firing again");
        let links = cluster.links().expect("links");
        for other in &others {
            let (from, to) = match is_deaf {
                true => (cluster.id(*other), cluster.id(old)),
                false => (cluster.id(old), cluster.id(*other)),
            };
            links.cut_way(from, to);
        }
        let gap = watchers
            .fires_after(Instant::now(), FAILOVER)
            .await
            .expect("firing again");
        let what = if is_deaf {
            "hears nobody"
        } else {
            "is heard by nobody"
        };
        eprintln!("leader {what}: others complete again after {gap:?}");
        let new = cluster.leader_of(&others, WIDE).await.expect("a leader");
        assert_ne!(new, old);
        assert_healed(&cluster, &api, watchers).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_link_to_one_follower_slows_nobody_and_deposes_nobody() {
    let (cluster, api, leader) = ticking(CALM).await;
    let slow = (leader + 1) % 3;
    let watchers = Watchers::start(&api, "ticks", 4);
    watchers
        .fires_after(Instant::now(), FAILOVER)
        .await
        .expect("firing again");
    let term = figure(&api, leader, "term").await;
    let by = Duration::from_millis(40);
    cluster
        .links()
        .expect("links")
        .delay(cluster.id(leader), cluster.id(slow), by);
    let direct = Api::new(vec![cluster.url(leader)]).expect("a client");
    let begun = Instant::now();
    for i in 0..50 {
        submit(
            &direct,
            &json!({"execution_id": format!("s{i}"), "kind": "k", "queue": "q"}),
        )
        .await
        .expect("a write");
    }
    let each = begun.elapsed() / 50;
    eprintln!("writes with one follower {by:?} away, each way: {each:?} each");
    assert!(each < by, "the near follower is a majority with the leader");
    assert_eq!(
        figure(&api, leader, "term").await,
        term,
        "nobody was deposed"
    );
    assert_healed(&cluster, &api, watchers).await;
}
