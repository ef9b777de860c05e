//! One handler from grant to outcome.
//!
//! Callers: `worker::run` spawns one per lease. Invariant: exactly one [`Ended`] is sent per lease.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};

use super::held::{Held, Stop};
use super::{Handler, Outcome, Work};

/// A handler ended.
pub(super) struct Ended {
    pub(super) held: Arc<Held>,
    /// What to report; `None`: the lease is over, nothing can be reported.
    pub(super) outcome: Option<Outcome>,
}

/// Runs the handler, and ends it when its time is over.
pub(super) async fn attend<H: Handler>(
    held: Arc<Held>,
    handler: Arc<H>,
    ended: mpsc::UnboundedSender<Ended>,
) {
    let outcome = if held.confirmed().await {
        let work = Work {
            held: Arc::clone(&held),
        };
        let task = AbortOnDrop(spawn(async move { handler.run(work).await }));
        finish(task, &held).await
    } else {
        None
    };
    // The loop is gone only when the worker is: then nobody is left to report.
    let _worker_gone = ended.send(Ended { held, outcome });
}

async fn finish(mut task: AbortOnDrop, held: &Held) -> Option<Outcome> {
    let why = tokio::select! {
        biased;
        done = &mut task.0 => return Some(outcome_of(done)),
        why = held.must_end() => why,
    };
    task.0.abort();
    // It may have finished in the same moment: then its own outcome counts.
    let done = (&mut task.0).await;
    let lease = held.reference();
    tracing::warn!(execution = lease.execution_id, attempt = lease.attempt, %why, "handler ended early");
    match (done, why) {
        (_, Stop::LeaseLost(_)) => None,
        (Ok(outcome), _) => Some(outcome),
        (Err(_), Stop::Shutdown) => Some(Outcome::Release {
            delay: std::time::Duration::ZERO,
            reason: "shutdown".into(),
        }),
        (Err(_), why) => Some(Outcome::fail("Stopped", why.to_string())),
    }
}

fn outcome_of(done: Result<Outcome, JoinError>) -> Outcome {
    let error = match done {
        Ok(outcome) => return outcome,
        Err(error) => error,
    };
    let message = match error.try_into_panic() {
        Ok(panic) => panic
            .downcast_ref::<&str>()
            .map(ToString::to_string)
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "the handler panicked".into()),
        Err(_) => "the handler was ended".into(),
    };
    Outcome::fail("Panic", message)
}

/// A task of its own, so that a panic in a handler is one failed attempt and not the end of the worker.
#[allow(
    clippy::disallowed_methods,
    reason = "a worker runs on its program's tokio, outside the simulation"
)]
fn spawn(task: impl Future<Output = Outcome> + Send + 'static) -> JoinHandle<Outcome> {
    tokio::spawn(task)
}

struct AbortOnDrop(JoinHandle<Outcome>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
