//! Rows about what has been: ledger, audit, idempotency answers, chosen ids.
//!
//! Callers: `state`, `api` reads.

use serde::{Deserialize, Serialize};

use crate::command::Actor;
use crate::command::outcome::Outcome;
use crate::ids::ExecutionId;
use crate::model::execution::{Cause, ExecutionState, FinalReason};
use crate::model::schedule::SkipRecord;
use crate::time::Timestamp;

/// One outcome of a schedule's nominal times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LedgerRow {
    /// An execution that ended.
    Ran {
        /// Its nominal time; of one that was fired by hand, the log time at which that was.
        nominal_at: Timestamp,
        /// Which schedule of the name.
        incarnation: u64,
        /// Its id.
        execution: ExecutionId,
        /// Why it existed.
        cause: Cause,
        /// How it ended.
        state: ExecutionState,
        /// Why.
        reason: FinalReason,
        /// Log time.
        finished_at: Timestamp,
    },
    /// Nominal times that did not run.
    Skipped {
        /// Which schedule of the name.
        incarnation: u64,
        /// The run of them.
        record: SkipRecord,
    },
}

/// One change by a person, or by the leader on a person's behalf (timed pauses, self-pauses).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Log time.
    pub at: Timestamp,
    /// Who.
    pub actor: Actor,
    /// Why, in their words.
    pub reason: Option<String>,
    /// Id of the request.
    pub request_id: Option<String>,
    /// Verb and noun, such as `schedule.pause`.
    pub action: String,
    /// Name of the object (`tenant/schedule`, `queue`, …).
    pub target: String,
}

/// The answer of a command with an idempotency key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyRecord {
    /// Of the request's body.
    pub fingerprint: u64,
    /// What was answered.
    pub outcome: Outcome,
    /// Log index (base included) of the entry that answered.
    pub index: u64,
}

/// That a caller chose an execution id, and where the execution is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChosenId {
    /// Hash of what the creator sent.
    pub fingerprint: u64,
    /// Once final: class and bucket of its history row. Below the watermark it counts as absent.
    pub history: Option<(u8, u32)>,
}

/// Who holds a unique key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UniqueHolder {
    /// The open execution.
    pub execution: ExecutionId,
}
