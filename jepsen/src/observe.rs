//! What tests look at: how far nodes are, what they hold, what workers did with it.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::http::{Answer, Api};
use crate::wait;

/// Executions of the default tenant.
pub const EXECUTIONS: &str = "/v1/tenants/default/executions";
/// Schedules of the default tenant.
pub const SCHEDULES: &str = "/v1/tenants/default/schedules";

/// A number in a node's own view of the cluster, such as `applied_index`.
pub async fn figure(api: &Api, node: usize, name: &str) -> Option<u64> {
    let path = "/v1/cluster?consistency=stale";
    let answer = api.at(node, Method::GET, path, None).await.ok()?;
    answer.body.get(name)?.as_u64()
}

/// Waits until `nodes` have applied the same index; answers it. Nothing may be written meanwhile.
///
/// # Errors
/// When they have not in time.
pub async fn agree(api: &Api, nodes: &[usize], deadline: Duration) -> Result<u64, String> {
    let same = || async {
        let mut found = None;
        for node in nodes {
            let applied = figure(api, *node, "applied_index").await?;
            if found.is_some_and(|found| found != applied) {
                return None;
            }
            found = Some(applied);
        }
        found
    };
    let (index, _) = wait::until("equal applied indexes", deadline, same).await?;
    Ok(index)
}

/// Everything that lists of one node show, from what it has (`consistency=stale`): schedules, executions with payloads,
/// queues, tenants.
///
/// # Errors
/// When a page is refused.
pub async fn holdings(api: &Api, node: usize) -> Result<Vec<Value>, String> {
    let mut all = Vec::new();
    for list in [
        format!("{SCHEDULES}?view=full"),
        format!("{EXECUTIONS}?view=full"),
        "/v1/queues?".to_owned(),
        "/v1/tenants?".to_owned(),
    ] {
        let mut cursor = String::new();
        loop {
            let path = format!("{list}&consistency=stale&page_size=200{cursor}");
            let page = api.at(node, Method::GET, &path, None).await?.success()?;
            all.extend(page["items"].as_array().cloned().unwrap_or_default());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
    }
    Ok(all)
}

/// Submits an execution under its own id, wherever a node takes it, until one says yes.
///
/// # Errors
/// When none does in time, or the answer is a refusal.
pub async fn submit(api: &Api, body: &Value) -> Result<Value, String> {
    let answer = api
        .retry(Method::POST, EXECUTIONS, Some(body), wait::WIDE)
        .await?;
    answer.success()
}

/// Puts a schedule.
///
/// # Errors
/// As [`submit`].
pub async fn put_schedule(api: &Api, id: &str, body: &Value) -> Result<Value, String> {
    let path = format!("{SCHEDULES}/{id}");
    let answer = api
        .retry(Method::PUT, &path, Some(body), wait::WIDE)
        .await?;
    answer.success()
}

/// Claims up to `max` executions of `queue`, waiting up to `wait_ms`.
///
/// # Errors
/// When no node answers with leases (perhaps none) in time.
pub async fn claim(
    api: &Api,
    queue: &str,
    worker: &str,
    (max, wait_ms, lease_ms): (u32, u64, u64),
) -> Result<Vec<Value>, String> {
    let path = format!("/v1/queues/{queue}/leases:claim");
    let body = json!({
        "worker_id": worker, "max": max, "wait_ms": wait_ms, "lease_ms": lease_ms,
    });
    let answer = api
        .retry(Method::POST, &path, Some(&body), wait::WIDE)
        .await?;
    let leases = answer.success()?;
    Ok(leases["leases"].as_array().cloned().unwrap_or_default())
}

/// A report of one lease (`leases:complete` and its like) at node `node`; answers the whole answer.
///
/// # Errors
/// Transport errors in words.
pub async fn report(
    api: &Api,
    node: usize,
    call: &str,
    worker: &str,
    lease: &Value,
) -> Result<Answer, String> {
    let item = json!({
        "execution_id": lease["execution_id"], "attempt": lease["attempt"],
        "fencing_token": lease["fencing_token"],
    });
    let body = json!({"worker_id": worker, "leases": [item]});
    let path = format!("/v1/leases:{call}");
    api.at(node, Method::POST, &path, Some(&body)).await
}

/// Completes a lease wherever a node takes it; answers its result.
///
/// # Errors
/// When none does in time.
pub async fn complete(api: &Api, worker: &str, lease: &Value) -> Result<Value, String> {
    let done = || async {
        for node in 0..api.count() {
            let answer = report(api, node, "complete", worker, lease).await;
            if let Some(answer) = answer.ok().filter(Answer::ok) {
                return Some(answer.body["results"][0].clone());
            }
        }
        None
    };
    let (result, _) = wait::until("a report to be taken", wait::WIDE, done).await?;
    Ok(result)
}

/// Stops `nodes` with SIGTERM and checks their data offline: each is sound, and nothing of the log is missing in it.
///
/// # Errors
/// What was found.
pub async fn stop_and_verify(cluster: &mut Cluster, nodes: &[usize]) -> Result<(), String> {
    for node in nodes {
        cluster.signal(*node, "TERM")?;
    }
    for node in nodes {
        let code = cluster.exited(*node, wait::WIDE).await?;
        if code != 0 {
            return Err(format!(
                "node {} ended with {code}\n{}",
                cluster.id(*node),
                cluster.log_tail(*node)
            ));
        }
    }
    for node in nodes {
        let (code, report) = cluster.verify(*node)?;
        if code != 0 || report["sound"] != true {
            return Err(format!("node {}: {report}", cluster.id(*node)));
        }
    }
    Ok(())
}
