//! Actions: what people and programs can make happen.
//!
//! Purpose: validate, read, plan, make one command, carry it into the log, and turn its outcome into an answer. They
//! run on the leader. Callers: handlers (and the console, later). Invariants:
//! 1. A command names what its action read, so that apply can compare and swap; on a miss the action plans again, at
//!    most [`ROUNDS`] times.
//! 2. A dry run makes the same command and rehearses it on a copy of the state: it refuses what the write would refuse.

pub mod admin;
pub mod executions;
pub mod leases;
pub mod schedule_batch;
pub mod schedules;

use std::sync::Arc;

use crate::api::Api;
use crate::api::call::Call;
use crate::api::problem::{Code, Error};
use crate::command::outcome::{Outcome, Refusal};
use crate::command::{Command, Envelope, Idempotency};
use crate::leader::Answer;

/// How often an action plans before it gives up.
pub const ROUNDS: usize = 4;

/// Who, why and under which key; the same for every command of a request.
#[derive(Clone, Debug)]
pub struct Purpose {
    /// Why.
    pub reason: Option<String>,
    /// Makes a repeat answer the first outcome.
    pub key: Option<Idempotency>,
}

/// A carried out command.
#[derive(Clone, Debug)]
pub struct Done {
    /// Log index of its entry.
    pub index: u64,
    /// What it did; never a refusal, never a replay.
    pub outcome: Outcome,
    /// It was carried out earlier, under the same idempotency key.
    pub is_replayed: bool,
}

impl Done {
    /// From an answer.
    ///
    /// # Errors
    /// The refusal.
    pub fn of(answer: Answer) -> Result<Self, Refusal> {
        let (outcome, is_replayed) = match answer.outcome {
            Outcome::Replayed(inner) => (*inner, true),
            fresh => (fresh, false),
        };
        match outcome {
            Outcome::Refused(refusal) => Err(refusal),
            outcome => Ok(Self {
                index: answer.index,
                outcome,
                is_replayed,
            }),
        }
    }
}

/// An answer of a kind that the command cannot have.
#[must_use]
pub fn unexpected(outcome: &Outcome) -> Error {
    Error::new(
        Code::Internal,
        format!("apply answered a command with {outcome:?}"),
    )
}

impl Api {
    /// A command with everything that goes with it.
    #[must_use]
    pub fn envelope(&self, call: &Call, purpose: &Purpose, command: Command) -> Envelope {
        Envelope {
            actor: call.actor.clone(),
            reason: purpose.reason.clone(),
            request_id: Some(call.request.request_id.clone()),
            received_at: None,
            idempotency: purpose.key,
            command,
        }
    }

    /// Carries one command into the log.
    ///
    /// # Errors
    /// `Err(Error)` when there is no answer; `Ok(Err(Refusal))` when apply refused.
    pub async fn carry(&self, envelope: Envelope) -> Result<Result<Done, Refusal>, Error> {
        let mut answers = self.scheduler.submit(vec![envelope]).await?;
        let answer = answers
            .pop()
            .ok_or_else(|| Error::new(Code::Internal, "a command without an answer"))?;
        Ok(Done::of(answer))
    }

    /// Carries one command into the log; a refusal is an error.
    ///
    /// # Errors
    /// Any.
    pub async fn carry_or_refuse(&self, envelope: Envelope) -> Result<Done, Error> {
        Ok(self.carry(envelope).await??)
    }

    /// What commands would answer, one after the other, if they were carried into the log now. Nothing changes.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn rehearse(
        self: &Arc<Self>,
        envelopes: Vec<Envelope>,
    ) -> Result<Vec<Result<Done, Refusal>>, Error> {
        let now = self.scheduler.now();
        self.long_read(move |api| {
            let outcomes = api.replica.rehearse(envelopes, now)?;
            let index = api.replica.read().token();
            let done = |outcome| Done::of(Answer { index, outcome });
            Ok(outcomes.into_iter().map(done).collect())
        })
        .await
    }

    /// What one command would do; a refusal is an error.
    ///
    /// # Errors
    /// Any.
    pub async fn rehearse_one(self: &Arc<Self>, envelope: Envelope) -> Result<Done, Error> {
        let answer = self.rehearse(vec![envelope]).await?.pop();
        let answer = answer.unwrap_or(Err(Refusal::Superseded));
        Ok(answer?)
    }
}
