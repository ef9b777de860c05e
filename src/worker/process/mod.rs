//! A handler that starts a process for each lease: what `punctual worker -- CMD…` runs.
//!
//! Purpose: map a lease to a child and the child's end to an outcome. Callers: `cli::worker`.
//! Invariants:
//! 1. A child is the leader of its own process group; a stop goes to the whole group: TERM, then KILL before the
//!    lease's deadline. If the handler is dropped, the group is killed there and then.
//! 2. Every child is waited for: no zombie stays. Pipes are closed when the child has ended, even if something that
//!    it left behind holds them open.
//! 3. Of its output the last [`TAIL_MAX`] bytes are kept, standard output and error in order of arrival.
//!
//! | exit | outcome |
//! | --- | --- |
//! | 0 | success; the result holds the tail |
//! | 75 | given back unspent, to be leased again after [`ProcessHandler::retry_later`] |
//! | 65 | failure for good: no retry |
//! | any other, or a signal | failure; retried as the policy says |

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::{Handler, Outcome, Stop, Work};
use crate::wire::{Json, WorkerError};

mod child;
mod command;
mod tail;

pub use child::Ending;
pub use command::{Command, PayloadCommand};
pub use tail::TAIL_MAX;

/// Exit code of "try again later" (`EX_TEMPFAIL`).
pub const RETRY_LATER: i32 = 75;
/// Exit code of "this input will never work" (`EX_DATAERR`).
pub const NOT_RETRYABLE: i32 = 65;

/// What is run for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// This program with these arguments; the payload goes to its standard input as JSON.
    Argv(Vec<String>),
    /// This text, by `/bin/sh -c`; the payload goes to its standard input as JSON.
    Shell(String),
    /// What the payload says ([`PayloadCommand`]). Whoever may submit work may run anything as this worker's user.
    Payload {
        /// Run commands meant for another user as this one.
        ignore_user: bool,
    },
}

/// Which stream a piece of output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Watches children; all methods may be called from many tasks.
pub trait Observer: Send + Sync + 'static {
    /// A child was started.
    fn started(&self, _work: &Work, _pid: u32) {}
    /// A child wrote something.
    fn output(&self, _work: &Work, _stream: Stream, _bytes: &[u8]) {}
    /// A child ended, or could not be started.
    fn ended(&self, _work: &Work, _ending: &Ending, _took: Duration) {}
}

impl Observer for () {}

/// Runs a process for each lease.
pub struct ProcessHandler {
    /// What is run.
    pub source: Source,
    /// Delay after exit 75.
    pub retry_later: Duration,
    /// Time between TERM and KILL after a cancel; a lease that ends allows less.
    pub kill_after: Duration,
    /// Who is told.
    pub observer: Arc<dyn Observer>,
}

impl ProcessHandler {
    /// With 30 s after exit 75, ten seconds between TERM and KILL, and nobody watching.
    #[must_use]
    pub fn new(source: Source) -> Self {
        Self {
            source,
            retry_later: Duration::from_secs(30),
            kill_after: Duration::from_secs(10),
            observer: Arc::new(()),
        }
    }
}

impl Handler for ProcessHandler {
    async fn run(&self, work: Work) -> Outcome {
        let command = match command::for_lease(&self.source, work.lease()) {
            Ok(command) => command,
            Err(reason) => return Outcome::fail_for_good("Payload", reason),
        };
        let began = tokio::time::Instant::now();
        let ending = child::run(&command, &work, self.kill_after, &self.observer).await;
        let took = began.elapsed();
        self.observer.ended(&work, &ending, took);
        outcome(&ending, took, self.retry_later)
    }
}

fn outcome(ending: &Ending, took: Duration, retry_later: Duration) -> Outcome {
    match ending {
        Ending::NotStarted(reason) => Outcome::fail("NotStarted", reason),
        Ending::Exited {
            code: Some(0),
            output,
            ..
        } => Outcome::success_with(&json!({
            "exit_code": 0,
            "took_ms": u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            "output": output.text,
            "output_truncated": output.truncated,
        })),
        Ending::Exited {
            code: Some(RETRY_LATER),
            stopped: None,
            output,
            ..
        } => Outcome::Release {
            delay: retry_later,
            reason: format!("exit status {RETRY_LATER}: {}", output.last_line()),
        },
        // Nobody asked for this end but the worker: no attempt is spent.
        Ending::Exited {
            stopped: Some(Stop::Shutdown),
            ..
        } => Outcome::Release {
            delay: Duration::ZERO,
            reason: ending.to_string(),
        },
        Ending::Exited { .. } => failure(ending, took),
    }
}

fn failure(ending: &Ending, took: Duration) -> Outcome {
    let Ending::Exited {
        code,
        signal,
        stopped,
        output,
    } = ending
    else {
        return Outcome::fail("NotStarted", ending.to_string());
    };
    let kind = match (stopped, code) {
        (Some(Stop::CancelRequested), _) => "Cancelled",
        (Some(_), _) => "Stopped",
        (None, Some(_)) => "Exit",
        (None, None) => "Signal",
    };
    let details = json!({
        "exit_code": code,
        "signal": signal,
        "took_ms": u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        "output": output.text,
        "output_truncated": output.truncated,
    });
    Outcome::Failure {
        error: WorkerError {
            kind: Some(kind.into()),
            message: Some(ending.to_string()),
            details: Json::from_value(&details).unwrap_or_default(),
        },
        retryable: *code != Some(NOT_RETRYABLE),
        retry_in: None,
    }
}

#[cfg(test)]
mod tests;
