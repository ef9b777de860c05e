//! One real node: what it acknowledged survives SIGKILL, and a stale token changes nothing.

#![allow(
    clippy::expect_used,
    clippy::print_stderr,
    reason = "tests fail by panicking and print figures"
)]

use std::time::Duration;

use jepsen::bench::load::spread;
use jepsen::cluster::Cluster;
use jepsen::http::Api;
use jepsen::wait::{self, WIDE};
use reqwest::Method;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

const EXECUTIONS: &str = "/v1/tenants/default/executions";

async fn submit(api: &Api, id: &str, queue: &str) -> Result<(), String> {
    let body = json!({"execution_id": id, "kind": "test", "queue": queue, "payload": {"id": id}});
    api.post(EXECUTIONS, &body).await?.success().map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_work_survives_kill_nine() {
    let mut cluster = Cluster::start(1, "").await.expect("a node that starts");
    for round in 0..3 {
        let api = cluster.api().expect("a client");
        let acked: Arc<Mutex<Vec<String>>> = Arc::default();
        let (caller, log) = (api.clone(), Arc::clone(&acked));
        let load = spread(100_000, 16, move |i| {
            let (api, log) = (caller.clone(), Arc::clone(&log));
            async move {
                let id = format!("r{round}-{i}");
                submit(&api, &id, "kept").await?;
                log.lock().map_err(|e| e.to_string())?.push(id);
                Ok(())
            }
        });
        let killer = async {
            let enough = || async { (acked.lock().ok()?.len() > 300).then_some(()) };
            wait::until("300 acknowledged submissions", WIDE, enough)
                .await
                .expect("progress");
            cluster.kill(0);
        };
        let (load, ()) = tokio::join!(load, killer);
        assert!(load.is_err(), "the load ends because its node is gone");
        cluster.spawn(0).expect("a node that starts again");
        let back = cluster
            .ready(WIDE)
            .await
            .expect("a node that is ready again");
        let acked = acked.lock().expect("no panic").clone();
        eprintln!(
            "round {round}: {} acknowledged, ready again after {back:?}",
            acked.len()
        );
        let api = cluster.api().expect("a client");
        for id in &acked {
            let answer = api
                .get(&format!("{EXECUTIONS}/{id}"))
                .await
                .expect("an answer");
            assert!(
                answer.ok(),
                "{id} was acknowledged and is lost: {} {}",
                answer.status,
                answer.body
            );
        }
    }
}

async fn claim_one(api: &Api, queue: &str, worker: &str, lease_ms: u64) -> Value {
    let path = format!("/v1/queues/{queue}/leases:claim");
    let body = json!({"worker_id": worker, "max": 1, "wait_ms": 20_000, "lease_ms": lease_ms});
    let answer = api
        .post(&path, &body)
        .await
        .expect("an answer")
        .success()
        .expect("a claim");
    answer["leases"][0].clone()
}

async fn complete(api: &Api, worker: &str, lease: &Value) -> Value {
    let item = json!({
        "execution_id": lease["execution_id"], "attempt": lease["attempt"],
        "fencing_token": lease["fencing_token"],
    });
    let body = json!({"worker_id": worker, "leases": [item]});
    let answer = api
        .post("/v1/leases:complete", &body)
        .await
        .expect("an answer");
    answer.success().expect("a well-formed report")["results"][0].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_token_is_refused_after_the_work_was_given_to_another() {
    let cluster = Cluster::start(1, "").await.expect("a node that starts");
    let api = cluster.api().expect("a client");
    let body = json!({
        "execution_id": "once", "kind": "test", "queue": "stale",
        "retry": {"initial_backoff": "0s", "max_attempts": 5},
    });
    api.post(EXECUTIONS, &body)
        .await
        .expect("an answer")
        .success()
        .expect("a submission");
    let first = claim_one(&api, "stale", "slow", 1_000).await;
    let second = claim_one(&api, "stale", "quick", 30_000).await;
    assert_eq!(first["execution_id"], "once");
    assert_eq!(
        second["execution_id"], "once",
        "the lost lease is given to another worker"
    );
    assert!(
        second["fencing_token"].as_u64() > first["fencing_token"].as_u64(),
        "tokens grow"
    );
    let late = complete(&api, "slow", &first).await;
    assert_eq!(
        (&late["status"], &late["reason"]),
        (&json!("lease_lost"), &json!("lease_expired"))
    );
    let done = complete(&api, "quick", &second).await;
    assert_eq!(
        (&done["status"], &done["state"]),
        (&json!("ok"), &json!("succeeded"))
    );
    let again = complete(&api, "quick", &second).await;
    assert_eq!(
        (&again["status"], &again["replayed"]),
        (&json!("ok"), &json!(true))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_stops_cleanly_on_sigterm_and_verifies_offline() {
    let mut cluster = Cluster::start(1, "").await.expect("a node that starts");
    let api = cluster.api().expect("a client");
    let rule = json!({"rule": {"every": "1s"}, "queue": "ticks"});
    api.put("/v1/tenants/default/schedules/tick", &rule)
        .await
        .expect("an answer")
        .success()
        .expect("a schedule");
    for i in 0..50 {
        submit(&api, &format!("v{i}"), "verify")
            .await
            .expect("a submission");
    }
    let lease = claim_one(&api, "verify", "w", 60_000).await;
    assert_eq!(complete(&api, "w", &lease).await["status"], "ok");
    cluster.signal(0, "TERM").expect("a signal");
    let code = cluster
        .exited(0, Duration::from_secs(30))
        .await
        .expect("a node that stops");
    assert_eq!(code, 0, "{}", cluster.log_tail(0));
    let out = std::process::Command::new(jepsen::cluster::binary())
        .args(["store", "verify", "--data-dir"])
        .arg(cluster.data_dir(0))
        .output()
        .expect("the verifier runs");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&out.stderr)
    );
    cluster.spawn(0).expect("a node that starts again");
    cluster
        .ready(WIDE)
        .await
        .expect("a node that is ready again");
    let api = cluster.api().expect("a client");
    let answer = api
        .at(0, Method::GET, &format!("{EXECUTIONS}/v7"), None)
        .await
        .expect("an answer");
    assert!(answer.ok());
}
