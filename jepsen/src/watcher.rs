//! Workers that keep a record of what they were given, for judging afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::http::Api;
use crate::spawn;
use crate::wait;

/// How long a call may take before its worker asks another node: a stopped process answers nothing.
const PATIENCE: Duration = Duration::from_secs(4);

/// One lease as a worker saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Who got it.
    pub worker: String,
    /// The execution.
    pub execution: String,
    /// Its schedule, if it has one.
    pub schedule: Option<String>,
    /// Its nominal time.
    pub nominal_at: Option<String>,
    /// The attempt.
    pub attempt: u64,
    /// The fencing token.
    pub token: u64,
    /// When this harness got it.
    pub at: Instant,
    /// What the server said to its completion: `ok`, `lease_lost`, or `unknown` when no answer came.
    pub completion: &'static str,
}

/// Workers that claim from one queue and complete at once, over all nodes, through faults.
pub struct Watchers {
    seen: Arc<Mutex<Vec<Seen>>>,
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Watchers {
    /// Starts `count` workers on `queue`.
    #[must_use]
    pub fn start(api: &Api, queue: &str, count: usize) -> Self {
        let (seen, stop) = (
            Arc::new(Mutex::new(Vec::new())),
            Arc::new(AtomicBool::new(false)),
        );
        let tasks = (0..count)
            .map(|i| {
                let (api, queue) = (api.clone().with_patience(PATIENCE), queue.to_owned());
                let (seen, stop) = (Arc::clone(&seen), Arc::clone(&stop));
                spawn(work(api, queue, i, seen, stop))
            })
            .collect();
        Self { seen, stop, tasks }
    }

    /// Waits for an execution that was leased after `since` and completed; answers how long after.
    ///
    /// # Errors
    /// When there is none within `deadline`.
    pub async fn fires_after(
        &self,
        since: Instant,
        deadline: Duration,
    ) -> Result<Duration, String> {
        let first = || async {
            let seen = self.seen().await;
            let later = seen
                .iter()
                .filter(|s| s.at > since && s.completion == "ok")
                .map(|s| s.at);
            later.min().map(|at| at - since)
        };
        let (gap, _) = wait::until("firing again", deadline, first).await?;
        Ok(gap)
    }

    /// What was seen so far.
    pub async fn seen(&self) -> Vec<Seen> {
        self.seen.lock().await.clone()
    }

    /// Stops the workers and answers all they saw.
    pub async fn finish(self) -> Vec<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            let _a_panic_shows_in_the_record = task.await;
        }
        let seen = self.seen.lock().await;
        seen.clone()
    }
}

async fn work(
    api: Api,
    queue: String,
    number: usize,
    seen: Arc<Mutex<Vec<Seen>>>,
    stop: Arc<AtomicBool>,
) {
    let worker = format!("watcher-{number}-{}", std::process::id());
    let path = format!("/v1/queues/{queue}/leases:claim");
    let (mut node, mut call) = (number, 0_u64);
    while !stop.load(Ordering::Relaxed) {
        let body = json!({
            "worker_id": worker, "request_id": format!("{worker}-{call}"), "max": 20,
            "wait_ms": 500, "lease_ms": 10_000,
        });
        let answer = api.at(node, Method::POST, &path, Some(&body)).await;
        let leases = match answer {
            Ok(answer) if answer.ok() => {
                call += 1;
                answer.body["leases"].as_array().cloned()
            }
            // The same request again, elsewhere: it answers what the lost answer said.
            _ => {
                node += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        let leases = leases.unwrap_or_default();
        if !leases.is_empty() {
            complete(&api, &mut node, &worker, &leases, &seen).await;
        }
    }
}

async fn complete(
    api: &Api,
    node: &mut usize,
    worker: &str,
    leases: &[Value],
    seen: &Mutex<Vec<Seen>>,
) {
    let at = Instant::now();
    let items: Vec<Value> = leases
        .iter()
        .map(|l| {
            json!({
                "execution_id": l["execution_id"], "attempt": l["attempt"],
                "fencing_token": l["fencing_token"],
            })
        })
        .collect();
    let body = json!({"worker_id": worker, "leases": items});
    let mut results = Vec::new();
    // A lease call may be repeated as it is: the same report gets the same answer.
    for _ in 0..200 {
        let answer = api
            .at(*node, Method::POST, "/v1/leases:complete", Some(&body))
            .await;
        if let Some(done) = answer.ok().filter(|a| a.ok()) {
            results = done.body["results"].as_array().cloned().unwrap_or_default();
            break;
        }
        *node += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut seen = seen.lock().await;
    for (i, lease) in leases.iter().enumerate() {
        let completion = match results.get(i).and_then(|r| r["status"].as_str()) {
            Some("ok") => "ok",
            Some(_) => "lease_lost",
            None => "unknown",
        };
        seen.push(Seen {
            worker: worker.to_owned(),
            execution: text(&lease["execution_id"]).unwrap_or_default(),
            schedule: text(&lease["schedule_id"]),
            nominal_at: text(&lease["nominal_at"]),
            attempt: lease["attempt"].as_u64().unwrap_or(0),
            token: lease["fencing_token"].as_u64().unwrap_or(0),
            at,
            completion,
        });
    }
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Executions by (schedule, nominal time): more than one under a key is an occurrence created twice.
#[must_use]
pub fn by_occurrence(seen: &[Seen]) -> BTreeMap<(String, String), Vec<String>> {
    let mut found: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for one in seen {
        if let (Some(schedule), Some(nominal)) = (&one.schedule, &one.nominal_at) {
            let executions = found
                .entry((schedule.clone(), nominal.clone()))
                .or_default();
            if !executions.contains(&one.execution) {
                executions.push(one.execution.clone());
            }
        }
    }
    found
}
