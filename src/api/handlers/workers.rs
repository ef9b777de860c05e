//! Calls about workers.

use std::sync::Arc;

use crate::api::Api;
use crate::api::call::Call;
use crate::api::cursor::ListQuery;
use crate::api::handlers::page_of;
use crate::api::problem::{Code, Error};
use crate::api::reply::Reply;
use crate::api::routes::{Route, handler};
use crate::ids::WorkerId;
use crate::leader::WorkerSeen;
use crate::wire;

/// The rows.
#[must_use]
pub fn routes() -> Vec<Route> {
    vec![
        Route::new("GET", "/v1/workers", "listWorkers", handler!(list))
            .says(
                "workers",
                "Lists the workers seen since the leader took office, by id.",
            )
            .asks_leader()
            .lists()
            .gives_page::<wire::Worker>("A page.")
            .refuses(&[Code::InvalidCursor]),
        Route::new(
            "POST",
            "/v1/workers/{worker}:drain",
            "drainWorker",
            handler!(drain),
        )
        .says("workers", "Tells a worker to claim no more.")
        .asks_leader()
        .gives::<wire::Worker>(200, "The worker.")
        .refuses(&[Code::WorkerNotFound]),
        Route::new(
            "DELETE",
            "/v1/workers/{worker}",
            "signOffWorker",
            handler!(sign_off),
        )
        .says(
            "workers",
            "Ends a worker's polls and gives its leases back; no attempt is spent.",
        )
        .asks_leader()
        .gives::<wire::SignedOff>(200, "How many leases were given back."),
    ]
}

fn shown(seen: &WorkerSeen) -> wire::Worker {
    wire::Worker {
        worker_id: seen.worker.to_string(),
        queues: seen.queues.iter().map(ToString::to_string).collect(),
        first_seen_at: Some(seen.first_seen_at.into()),
        last_seen_at: Some(seen.last_seen_at.into()),
        leased: seen.leased,
        polling: seen.polling,
        draining: seen.draining,
        labels: seen.labels.clone(),
    }
}

fn worker(call: &Call) -> Result<WorkerId, Error> {
    WorkerId::new(call.part("worker"))
        .map_err(|why| Error::parameter("path:worker", format!("the name {why}")))
}

async fn list(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let query = ListQuery::of(&call)?;
    let mut seen = api.scheduler.workers();
    seen.sort_by(|a, b| a.worker.cmp(&b.worker));
    let all = seen.iter().map(|w| (w.worker.as_str(), shown(w)));
    Reply::json(200, &page_of(&query, all))
}

async fn drain(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let worker = worker(&call)?;
    let not_seen = || {
        let detail = format!("worker {worker} has not called since the leader took office");
        Error::new(Code::WorkerNotFound, detail)
    };
    if !api.scheduler.drain_worker(&worker) {
        return Err(not_seen());
    }
    let seen = api.scheduler.workers();
    let found = seen.iter().find(|w| w.worker == worker);
    Reply::json(200, &shown(found.ok_or_else(not_seen)?))
}

async fn sign_off(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let worker = worker(&call)?;
    let released = api.scheduler.sign_off(worker.clone()).await?;
    let answer = wire::SignedOff {
        worker_id: worker.to_string(),
        released,
    };
    Reply::json(200, &answer)
}
