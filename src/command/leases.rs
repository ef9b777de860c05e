//! Commands about leases: granting, renewing, reporting, ending.

use serde::{Deserialize, Serialize};

use crate::ids::{ExecutionId, QueueNo, TenantNo, WorkerId};
use crate::time::Millis;

/// Most items in one command of this area.
pub const ITEMS_MAX: usize = 250;

/// See each variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseCommand {
    /// Gives ready executions to one worker.
    Grant(GrantLeases),
    /// What a worker says of its leases.
    Report(ReportLeases),
    /// Ends leases whose time is over.
    Expire(ExpireLeases),
    /// Ends leases by an operator's word, or because their answer could not be delivered.
    Revoke(RevokeLeases),
}

/// Grants leases on ready executions, in order. Apply re-checks state, pauses, limits and rates for each; one that no
/// longer fits is answered with why, and is parked at its key when the key is what blocks it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantLeases {
    /// To whom.
    pub worker: WorkerId,
    /// Of the claim.
    pub request_id: Option<String>,
    /// Length of each lease, 1 s – 24 h.
    pub duration: Millis,
    /// The worker must confirm the start within this (≤ 10 s).
    pub start_confirmation: Option<Millis>,
    /// Queue and what to grant of it.
    pub items: Vec<GrantItem>,
}

/// One execution to grant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantItem {
    /// Its queue.
    pub queue: QueueNo,
    /// Its tenant.
    pub tenant: TenantNo,
    /// Its id.
    pub execution: ExecutionId,
}

/// How a worker names a lease: compared in apply, item by item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRef {
    /// The execution.
    pub execution: ExecutionId,
    /// The attempt.
    pub attempt: u32,
    /// The fencing token.
    pub fencing_token: u64,
}

/// A worker's word on its leases. Judged by the envelope's `received_at`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportLeases {
    /// Who says so.
    pub worker: WorkerId,
    /// What; at most [`ITEMS_MAX`].
    pub items: Vec<ReportItem>,
}

/// One item of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportItem {
    /// Which lease.
    pub lease: LeaseRef,
    /// What happened.
    pub action: ReportAction,
}

/// What a worker says of one lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReportAction {
    /// Still at it.
    Renew {
        /// New length from `received_at`; `None`: as before.
        duration: Option<Millis>,
        /// JSON text; `None`: as before.
        progress: Option<Vec<u8>>,
    },
    /// Done.
    Complete {
        /// JSON text; empty: none.
        result: Vec<u8>,
        /// It was cut.
        truncated: bool,
    },
    /// Failed.
    Fail {
        /// JSON text of the error; empty: none.
        error: Vec<u8>,
        /// The error's type, compared with `retry.non_retryable`.
        error_type: Option<String>,
        /// The worker's own word: `false` dead-letters at once.
        retryable: bool,
        /// The worker's own delay, clamped to `max_backoff`.
        retry_in: Option<Millis>,
        /// Uniform draw for the backoff's jitter.
        draw: u32,
        /// It was cut.
        truncated: bool,
    },
    /// Given back; no attempt spent.
    Release {
        /// Before it may be leased again.
        delay: Millis,
        /// Why.
        reason: Option<String>,
        /// Uniform draw, for the release that counts as a failure.
        draw: u32,
    },
}

/// Ends the leases that log time has overtaken (effective deadline, attempt or total time-out, start confirmation);
/// one that was renewed meanwhile is passed over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpireLeases {
    /// Which; at most [`ITEMS_MAX`].
    pub items: Vec<ExpireItem>,
}

/// One lease to expire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpireItem {
    /// Its tenant.
    pub tenant: TenantNo,
    /// Which lease.
    pub lease: LeaseRef,
    /// Uniform draw for the backoff's jitter.
    pub draw: u32,
}

/// Why a lease is taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RevokeCause {
    /// An operator's word: counts as a lease loss.
    Operator,
    /// The claim's answer had nobody to go to: spends no attempt.
    Undelivered,
    /// The worker signed off: spends no attempt.
    SignOff,
}

/// Ends leases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokeLeases {
    /// Why.
    pub cause: RevokeCause,
    /// Which; at most [`ITEMS_MAX`].
    pub items: Vec<ExpireItem>,
}
