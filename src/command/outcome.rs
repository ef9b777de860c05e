//! Outcomes and effects: what apply answers.
//!
//! Purpose: an [`Outcome`] goes to the caller of a command, by its position in the batch; an [`Effect`] goes to the
//! leader, as a hint. Outcomes of commands with an idempotency key are stored (bincode in a versioned envelope), so
//! these types are bincode-safe.
//! Invariants: a [`Refusal`] changed nothing. Losing an effect costs latency, never correctness.

use serde::{Deserialize, Serialize};

use crate::ids::{ExecutionId, Kind, QueueNo, Revision, ScheduleId, TenantNo, WorkerId};
use crate::model::execution::{ExecutionState, FinalReason};
use crate::model::lease::Lease;
use crate::store::due::DueEntry;
use crate::time::{Millis, Timestamp};

/// What a write did to the object it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Written {
    /// It did not exist.
    Created,
    /// It changed.
    Updated,
    /// It was so already.
    Unchanged,
    /// Another one, made earlier, answers.
    Existing,
    /// It took the place of another one.
    Replaced,
    /// It is gone.
    Deleted,
}

/// The answer to one command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// A command without a more exact answer was carried out.
    Done,
    /// A tenant, queue, key, pause or setting was written.
    Written {
        /// What it did.
        written: Written,
        /// Revision of the object now.
        revision: Revision,
    },
    /// A schedule was written.
    Schedule {
        /// What it did.
        written: Written,
        /// Its incarnation.
        incarnation: u64,
        /// Its generation.
        generation: u64,
        /// Its revision.
        revision: Revision,
    },
    /// An execution was created or found.
    Submitted {
        /// What it did.
        written: Written,
        /// Its tenant.
        tenant: TenantNo,
        /// Its id.
        execution: ExecutionId,
    },
    /// Occurrences were decided.
    Fired {
        /// Executions created.
        created: Vec<ExecutionId>,
        /// Nominal times skipped.
        skipped: u64,
    },
    /// What a cancel did.
    Cancelled(CancelDid),
    /// Grants, by item.
    Granted(Vec<GrantResult>),
    /// Reports, by item.
    Reported(Vec<ReportResult>),
    /// Items of a `ProcessDue`, `Expire` or `Revoke` that were carried out.
    Processed {
        /// How many.
        done: u32,
    },
    /// Refused; nothing changed.
    Refused(Refusal),
    /// The stored outcome of an earlier command with the same idempotency key.
    Replayed(Box<Outcome>),
}

/// What a cancel did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CancelDid {
    /// It was not leased (or `mode: now`) and is cancelled.
    Cancelled,
    /// It is leased: the worker will be told.
    Requested,
    /// It was final already.
    AlreadyFinal(ExecutionState),
}

/// The answer to one grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GrantResult {
    /// Granted. What else a worker needs (payload, times) is read from the execution's row.
    Granted(Box<Granted>),
    /// Not granted.
    Refused {
        /// Its tenant.
        tenant: TenantNo,
        /// Which.
        execution: ExecutionId,
        /// Why.
        why: GrantRefusal,
    },
}

/// A granted lease with what its worker is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// The lease.
    pub lease: Lease,
    /// The execution as it was granted (payload inline or by reference).
    pub execution: crate::model::execution::Execution,
}

/// Why an execution was not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GrantRefusal {
    /// It is no longer ready.
    NotReady,
    /// Something it belongs to is paused.
    Paused,
    /// Its concurrency key is full: it is parked now.
    KeyFull,
    /// The queue's lease limit is reached.
    QueueFull,
    /// The tenant's lease limit is reached.
    TenantFull,
    /// A rate limit admits the next one at this log time.
    RateLimited {
        /// When.
        until: Timestamp,
    },
    /// The tenant may not use the queue.
    NotAllowed,
}

/// The answer to one item of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReportResult {
    /// Accepted, now or the first time.
    Ok {
        /// A repeat of an accepted report.
        replayed: bool,
        /// State of the execution now.
        state: ExecutionState,
        /// Time left of the lease, for a renewal: from `received_at` on the log's clock.
        expires_in: Option<Millis>,
        /// A cancel was requested.
        cancel_requested: bool,
        /// Next attempt, for `backing_off` or a delayed release.
        next_attempt_at: Option<Timestamp>,
        /// Why it is final.
        final_reason: Option<FinalReason>,
    },
    /// Stale: changes nothing.
    LeaseLost {
        /// The word of api.md: `lease_expired`, `attempt_timeout`, …, `unknown`.
        reason: LostReason,
    },
}

/// What ended the lease that a stale call names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LostReason {
    /// Its deadline passed (or its start was not confirmed, or its answer was not delivered).
    LeaseExpired,
    /// `timeouts.attempt`.
    AttemptTimeout,
    /// `timeouts.total`.
    TotalTimeout,
    /// Cancelled.
    Cancelled,
    /// An operator.
    Revoked,
    /// The worker gave it back before.
    Released,
    /// The worker reported failure before.
    Failed,
    /// The worker reported success before.
    Succeeded,
    /// No such lease is known.
    Unknown,
}

impl LostReason {
    /// The word in answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LeaseExpired => "lease_expired",
            Self::AttemptTimeout => "attempt_timeout",
            Self::TotalTimeout => "total_timeout",
            Self::Cancelled => "cancelled",
            Self::Revoked => "revoked",
            Self::Released => "released",
            Self::Failed => "failed",
            Self::Succeeded => "succeeded",
            Self::Unknown => "unknown",
        }
    }
}

/// Why a command changed nothing: the broken rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// The batch's term is not in office.
    NotInOffice,
    /// What the maker read has changed: plan again.
    Superseded,
    /// The tenant does not exist.
    TenantNotFound,
    /// The queue does not exist.
    QueueNotFound,
    /// The schedule does not exist.
    ScheduleNotFound,
    /// The execution does not exist.
    ExecutionNotFound,
    /// The object's revision is another one.
    RevisionMismatch {
        /// The present one; none when the object does not exist.
        current: Revision,
    },
    /// It exists already.
    AlreadyExists {
        /// The present revision.
        revision: Revision,
    },
    /// The chosen id belongs to another execution with other content.
    IdConflict,
    /// The unique key is held.
    UniqueKeyHeld {
        /// By this open execution.
        holder: ExecutionId,
    },
    /// The idempotency key was used with another request.
    IdempotencyConflict,
    /// An execution of the schedule is open.
    Overlap {
        /// This one.
        blocker: ExecutionId,
    },
    /// A quota is used up.
    QuotaExceeded {
        /// Its name in the API.
        quota: Quota,
        /// Its value.
        limit: u64,
        /// What is in use.
        current: u64,
    },
    /// The tenant may not use the queue.
    QueueNotAllowed,
    /// The queue holds work or a schedule names it.
    QueueInUse {
        /// Open executions in it.
        open: u64,
    },
    /// The execution is not final.
    NotFinal,
    /// The schedule is completed: it cannot be paused, resumed or triggered.
    ScheduleCompleted,
    /// `default` can be neither deleted nor renamed.
    Protected,
}

/// A quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Quota {
    /// `tenant.schedules_max`.
    Schedules,
    /// `tenant.open_executions_max`.
    OpenExecutions,
    /// `queue.max_pending`.
    MaxPending,
    /// Tenants in the cluster.
    Tenants,
    /// Queues in the cluster.
    Queues,
    /// Concurrency keys with limits in the cluster.
    Keys,
    /// Paused kinds in the cluster.
    PausedKinds,
}

impl Quota {
    /// The name in answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Schedules => "schedules_max",
            Self::OpenExecutions => "open_executions_max",
            Self::MaxPending => "max_pending",
            Self::Tenants => "tenants_max",
            Self::Queues => "queues_max",
            Self::Keys => "keys_max",
            Self::PausedKinds => "paused_kinds_max",
        }
    }
}

/// A ready execution, as the leader's lines hold it: enough to decide a grant without reading its row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadyItem {
    /// Its queue.
    pub queue: QueueNo,
    /// Its tenant.
    pub tenant: TenantNo,
    /// Its priority.
    pub priority: u8,
    /// Time in its line key.
    pub line_at: Timestamp,
    /// Its id.
    pub execution: ExecutionId,
    /// The rest, as stored in the line's value.
    pub hint: LineValue,
}

/// The value of a ready line's row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineValue {
    /// Handler needed.
    pub kind: Kind,
    /// Payload bytes.
    pub payload_len: u32,
    /// Concurrency key.
    pub concurrency_key: Option<String>,
    /// Labels that the worker must show.
    pub requires: std::collections::BTreeMap<String, String>,
}

/// What apply tells the leader to do. Data, not action; delivered after the entry is in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Something becomes due at `entry.key.at`: arm it if that is near.
    ArmDue(DueEntry),
    /// An entry left the index before its time.
    DisarmDue(DueEntry),
    /// An execution entered a ready line.
    OfferReady(Box<ReadyItem>),
    /// An execution left its ready line other than by a grant.
    WithdrawReady {
        /// Its queue.
        queue: QueueNo,
        /// Its tenant.
        tenant: TenantNo,
        /// Its priority.
        priority: u8,
        /// Time in its line key.
        line_at: Timestamp,
        /// Its id.
        execution: ExecutionId,
    },
    /// A lease began or got a new deadline: watch it until `ends_at`.
    WatchLease {
        /// Its tenant.
        tenant: TenantNo,
        /// Its execution.
        execution: ExecutionId,
        /// Its token.
        fencing_token: u64,
        /// When something ends it.
        ends_at: Timestamp,
    },
    /// A lease ended: slots are free.
    ForgetLease {
        /// Its tenant.
        tenant: TenantNo,
        /// Its queue.
        queue: QueueNo,
        /// Its execution.
        execution: ExecutionId,
        /// Its token.
        fencing_token: u64,
        /// Its worker.
        worker: WorkerId,
    },
    /// An execution became final: answer who waits for its result.
    AnnounceFinal {
        /// Its tenant.
        tenant: TenantNo,
        /// Its id.
        execution: ExecutionId,
        /// Its state.
        state: ExecutionState,
        /// The schedule whose execution it was: what comes next of an `after_end` rule, or at an overlap, may change.
        schedule: Option<ScheduleId>,
    },
    /// A pause, limit, weight or queue changed: admission must look again at everything.
    ReviewAdmission,
}
