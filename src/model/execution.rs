//! Executions: one unit of work to finish.
//!
//! Callers: `state`, `leader`, `api`. While open, an execution is one row in the live family; a live lease is a row
//! of its own beside it ([`crate::model::lease::Lease`]), so a grant does not rewrite the execution: it is *leased*
//! exactly when its lease row exists, whatever [`Execution::state`] says. Final ones move to the history family.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{ExecutionId, QueueNo, Revision, ScheduleId, TenantNo, WorkerId};
use crate::model::schedule::JobTemplate;
use crate::store::due::DueKey;
use crate::time::{Millis, Timestamp};

/// Attempts kept in full with an execution: the first one and the latest others.
pub const ATTEMPTS_KEPT_MAX: usize = 20;
/// Releases and undelivered grants that spend no attempt; one more counts as a failure.
pub const FREE_RELEASES_MAX: u32 = 100;
/// Payloads up to this many bytes are stored inside the row of an open execution; a final one holds any.
pub const INLINE_PAYLOAD_MAX: usize = 1_024;
/// Longest error of an attempt and longest progress that apply stores, in bytes. Requests are cut to it before they
/// are proposed; apply drops a longer one, because a value over the bound of the store would stop the node.
pub const NOTE_MAX: usize = 16 * 1_024;
/// Longest result that apply stores, in bytes; as [`NOTE_MAX`].
pub const RESULT_MAX: usize = 64 * 1_024;

/// States of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ExecutionState {
    /// Due later.
    Waiting,
    /// May be leased (in a ready line, or parked at its concurrency key).
    Ready,
    /// A worker has it.
    Leased,
    /// Waits for its next attempt.
    BackingOff,
    /// Final: done.
    Succeeded,
    /// Final: cancelled.
    Cancelled,
    /// Final: out of attempts, or failed for good.
    DeadLettered,
    /// Final: not started in time.
    Expired,
}

impl ExecutionState {
    /// The word in answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Ready => "ready",
            Self::Leased => "leased",
            Self::BackingOff => "backing_off",
            Self::Succeeded => "succeeded",
            Self::Cancelled => "cancelled",
            Self::DeadLettered => "dead_lettered",
            Self::Expired => "expired",
        }
    }

    /// Whether nothing can change it any more.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(
            self,
            Self::Succeeded | Self::Cancelled | Self::DeadLettered | Self::Expired
        )
    }
}

/// Why an execution exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// Its occurrence came.
    Due,
    /// Its occurrence was caught up after a gap.
    CatchUp,
    /// An operator asked for a past range.
    Backfill,
    /// Fired by hand.
    Triggered,
    /// Submitted directly.
    Submitted,
    /// Runs a dead letter again.
    Replay,
}

impl Cause {
    /// The word in answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Due => "due",
            Self::CatchUp => "catch_up",
            Self::Backfill => "backfill",
            Self::Triggered => "triggered",
            Self::Submitted => "submitted",
            Self::Replay => "replay",
        }
    }
}

/// Which occurrence an execution stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OccurrenceRef {
    /// The schedule.
    pub schedule: ScheduleId,
    /// Which schedule of that name.
    pub incarnation: u64,
    /// The definition in force at creation.
    pub generation: u64,
    /// The nominal time; `None` when triggered by hand.
    pub nominal_at: Option<Timestamp>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttemptOutcome {
    /// Reported complete.
    Succeeded,
    /// Reported failed.
    Failed,
    /// Given back by the worker; no attempt spent.
    Released,
    /// Granted, but the answer could not be delivered; no attempt spent.
    Undelivered,
    /// The lease ran out.
    LeaseExpired,
    /// The start was not confirmed in time.
    StartUnconfirmed,
    /// `timeouts.attempt` was reached.
    AttemptTimeout,
    /// `timeouts.total` was reached.
    TotalTimeout,
    /// Cancelled with `mode: now`.
    Cancelled,
    /// Taken away by an operator.
    Revoked,
}

impl AttemptOutcome {
    /// The word in answers; also the reason of a later `lease_lost`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Released => "released",
            Self::Undelivered => "undelivered",
            Self::LeaseExpired => "lease_expired",
            Self::StartUnconfirmed => "start_unconfirmed",
            Self::AttemptTimeout => "attempt_timeout",
            Self::TotalTimeout => "total_timeout",
            Self::Cancelled => "cancelled",
            Self::Revoked => "revoked",
        }
    }
}

/// A finished attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// From 1; grants that spend none repeat the number.
    pub attempt: u32,
    /// Token of its lease.
    pub fencing_token: u64,
    /// Who had it.
    pub worker: WorkerId,
    /// Log time of the grant.
    pub leased_at: Timestamp,
    /// Log time of the end.
    pub ended_at: Timestamp,
    /// How it ended.
    pub outcome: AttemptOutcome,
    /// JSON text of the worker's error or release reason, cut to 16 KiB; empty: none.
    #[serde(with = "serde_bytes")]
    pub error: Vec<u8>,
    /// Delay before the next attempt; `None` when there is none.
    pub delay: Option<Millis>,
}

/// A request to cancel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelRequest {
    /// Log time.
    pub at: Timestamp,
    /// Who asked.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
}

/// Where a payload is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoredPayload {
    /// Inside the row: `template.payload` (at most [`INLINE_PAYLOAD_MAX`] bytes while it is open).
    Inline,
    /// In the body family under the execution's key; `template.payload` is empty.
    Body {
        /// Its size in bytes.
        len: u32,
    },
}

/// An open execution (or the last image of a final one).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    /// Owner.
    pub tenant: TenantNo,
    /// Name, unique in the tenant.
    pub id: ExecutionId,
    /// The caller chose the id: a pointer row exists in the keys family.
    pub chosen_id: bool,
    /// Its occurrence, for one of a schedule.
    pub occurrence: Option<OccurrenceRef>,
    /// Why it exists.
    pub cause: Cause,
    /// Its line.
    pub queue: QueueNo,
    /// What to run.
    pub template: JobTemplate,
    /// Where the payload is.
    pub payload: StoredPayload,
    /// Forbids a second open execution with the same key in the tenant.
    pub unique_key: Option<String>,
    /// W3C trace context of the creator.
    pub traceparent: Option<String>,
    /// Hash of what the creator sent, to tell a repeat of a chosen id from a conflict.
    pub fingerprint: u64,
    /// Log time of creation.
    pub created_at: Timestamp,
    /// When it may become ready for the first time.
    pub due_at: Timestamp,
    /// Waiting, ready or backing off; *leased* is told by the lease row.
    pub state: ExecutionState,
    /// Log time of the last change of state that rewrote this row.
    pub state_since: Timestamp,
    /// End of backoff, when backing off; end of the delay, when waiting after a delayed release.
    pub next_attempt_at: Option<Timestamp>,
    /// Its one entry in the due index: due time, end of backoff or delay (or `timeouts.total`, if that comes first);
    /// while ready, the deadline that ends it there ([`Execution::ready_deadline`]). `None` while leased.
    pub due_key: Option<DueKey>,
    /// Time used in its key in a ready or parked line, while ready.
    pub line_at: Option<Timestamp>,
    /// Ready, but waiting in the parked line of its concurrency key.
    pub parked: bool,
    /// Attempts spent by leases that have ended; a live lease spends one more.
    pub attempts_started: u32,
    /// Leases lost, ever.
    pub lease_losses: u32,
    /// Leases lost since a worker last reported (failure or release).
    pub lease_losses_in_row: u32,
    /// Releases and undelivered grants.
    pub releases: u32,
    /// Log time of the first lease that reached its worker. Written when that lease ends: while it lives, the answer
    /// is the lease's `granted_at`.
    pub started_at: Option<Timestamp>,
    /// Last progress that a worker gave (JSON text, at most 16 KiB); empty: none.
    #[serde(with = "serde_bytes")]
    pub progress: Vec<u8>,
    /// A request to cancel.
    pub cancel: Option<CancelRequest>,
    /// The dead letter that this one runs again.
    pub replay_of: Option<ExecutionId>,
    /// Finished attempts, oldest first; at most [`ATTEMPTS_KEPT_MAX`], the first one always kept.
    pub attempts: Vec<Attempt>,
    /// The last change by a person.
    pub revision: Revision,
}

impl Execution {
    /// Log time at which `timeouts.total` ends it; `None`: no such bound, or no lease has ended yet.
    #[must_use]
    pub fn total_deadline(&self) -> Option<Timestamp> {
        let total = self.template.timeouts.total?;
        self.started_at.map(|at| at.plus(total))
    }

    /// Log time at which it ends if it is still ready: `timeouts.start` before the first lease, else `timeouts.total`.
    #[must_use]
    pub fn ready_deadline(&self) -> Option<Timestamp> {
        match self.started_at {
            None => self.template.timeouts.start.map(|d| self.due_at.plus(d)),
            Some(_) => self.total_deadline(),
        }
    }
}

/// Why a final execution is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinalReason {
    /// Reported complete.
    Completed,
    /// Cancelled while not leased, or by `mode: now`, or after a request.
    CancelRequested,
    /// Attempts used up.
    AttemptsExhausted,
    /// `retry.max_elapsed` forbids another attempt.
    MaxElapsed,
    /// The failure is not to be retried.
    NonRetryable,
    /// Too many lease losses in a row.
    Poison,
    /// Not leased within `timeouts.start`.
    StartTimeout,
    /// `timeouts.total` was reached.
    TotalTimeout,
    /// Its tenant or schedule was removed with it.
    Removed,
}

impl FinalReason {
    /// The word in answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::CancelRequested => "cancel_requested",
            Self::AttemptsExhausted => "attempts_exhausted",
            Self::MaxElapsed => "max_elapsed",
            Self::NonRetryable => "non_retryable",
            Self::Poison => "poison",
            Self::StartTimeout => "start_timeout",
            Self::TotalTimeout => "total_timeout",
            Self::Removed => "removed",
        }
    }
}

/// The history row of an execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinalExecution {
    /// Its last image; `state` is final and the payload is inline, whatever its size.
    pub execution: Execution,
    /// Why.
    pub reason: FinalReason,
    /// Log time of the end.
    pub finished_at: Timestamp,
    /// JSON text that the worker returned (at most 64 KiB); empty: none.
    #[serde(with = "serde_bytes")]
    pub result: Vec<u8>,
    /// Error, result or progress was cut.
    pub truncated: bool,
}

/// Labels or requirements as a sorted map.
pub type Labels = BTreeMap<String, String>;
