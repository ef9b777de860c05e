//! Workers that claim and complete.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::bench::load::post;
use crate::http::Api;

/// How workers drain a queue.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Workers, each with a claim of its own in flight.
    pub workers: usize,
    /// Leases asked for at once.
    pub max: usize,
    /// Reports ride on the next claim instead of calls of their own.
    pub reports_inside: bool,
}

/// What the workers saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// Executions completed.
    pub completed: usize,
    /// Lateness of each first lease, in milliseconds, as the server says.
    pub lateness_ms: Vec<u64>,
    /// Executions leased more than once.
    pub repeated: usize,
    /// Lateness by due minute (milliseconds since the epoch of the minute).
    pub by_minute: BTreeMap<String, Vec<u64>>,
}

struct Shared {
    api: Api,
    queue: String,
    shape: Shape,
    want: usize,
    done: AtomicUsize,
    stop: AtomicBool,
    seen: Mutex<(Seen, std::collections::BTreeSet<String>)>,
}

/// Drains `queue` until `want` executions are completed. Answers what was seen and how long it took.
///
/// # Errors
/// The first failed call, or `deadline`.
pub async fn drain(
    api: &Api,
    queue: &str,
    want: usize,
    shape: Shape,
    deadline: Duration,
) -> Result<(Seen, Duration), String> {
    let shared = Arc::new(Shared {
        api: api.clone(),
        queue: queue.to_owned(),
        shape,
        want,
        done: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
        seen: Mutex::default(),
    });
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for i in 0..shape.workers {
        tasks.spawn(work(Arc::clone(&shared), i));
    }
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(|e| e.to_string())??;
        }
        Ok::<(), String>(())
    };
    let ended = timeout(deadline, all).await;
    let completed = shared.done.load(Ordering::Relaxed);
    ended.map_err(|_| format!("{completed} of {want} completed within {deadline:?}"))??;
    let took = started.elapsed();
    let mut guard = shared.seen.lock().await;
    let mut seen = std::mem::take(&mut guard.0);
    seen.completed = completed;
    Ok((seen, took))
}

async fn work(shared: Arc<Shared>, number: usize) -> Result<(), String> {
    let worker = format!("bench-{number}");
    let path = format!("/v1/queues/{}/leases:claim", shared.queue);
    let mut reports: Vec<Value> = Vec::new();
    let mut call = 0_u64;
    loop {
        let finished = shared.stop.load(Ordering::Relaxed);
        if finished && reports.is_empty() {
            return Ok(());
        }
        call += 1;
        let body = json!({
            "worker_id": worker, "request_id": format!("{worker}-{call}"), "lease_ms": 60_000,
            "max": if finished { 1 } else { shared.shape.max },
            "wait_ms": if finished || !reports.is_empty() { 0 } else { 500 },
            "reports": std::mem::take(&mut reports),
        });
        let sent = body
            .get("reports")
            .and_then(Value::as_array)
            .map_or(0, Vec::len);
        let answer = post(&shared.api, &path, &body).await?;
        count_ok(&shared, answer.get("reports"), sent)?;
        let leases = answer
            .get("leases")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        note(&shared, &leases).await;
        let items: Vec<Value> = leases.iter().map(report_of).collect();
        if shared.shape.reports_inside {
            reports = items;
        } else if !items.is_empty() {
            let sent = items.len();
            let body = json!({"worker_id": worker, "leases": items});
            let answer = post(&shared.api, "/v1/leases:report", &body).await?;
            count_ok(&shared, answer.get("results"), sent)?;
        }
    }
}

fn report_of(lease: &Value) -> Value {
    json!({
        "action": "complete", "execution_id": lease["execution_id"], "attempt": lease["attempt"],
        "fencing_token": lease["fencing_token"], "result": null,
    })
}

fn count_ok(shared: &Shared, results: Option<&Value>, sent: usize) -> Result<(), String> {
    let results = results
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let ok = results.iter().filter(|r| r["status"] == "ok").count();
    if ok != sent {
        return Err(format!("{ok} of {sent} reports accepted: {results:?}"));
    }
    if shared.done.fetch_add(ok, Ordering::Relaxed) + ok >= shared.want {
        shared.stop.store(true, Ordering::Relaxed);
    }
    Ok(())
}

async fn note(shared: &Shared, leases: &[Value]) {
    if leases.is_empty() {
        return;
    }
    let mut guard = shared.seen.lock().await;
    for lease in leases {
        let id = lease["execution_id"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let late = lease["lateness_ms"].as_u64().unwrap_or(0);
        let minute = lease["due_at"]
            .as_str()
            .unwrap_or_default()
            .chars()
            .take(16)
            .collect();
        if !guard.1.insert(id) {
            guard.0.repeated += 1;
        }
        guard.0.lateness_ms.push(late);
        guard.0.by_minute.entry(minute).or_default().push(late);
    }
}
