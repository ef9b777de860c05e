//! The worker's calls: claim, renew, complete, fail, release, report; and an operator's revoke.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::{Cause, ExecutionState, Instant, Json};

/// How a worker names a lease.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
pub struct LeaseRef {
    /// The execution.
    pub execution_id: String,
    /// The attempt.
    pub attempt: u32,
    /// The fencing token.
    pub fencing_token: u64,
}

/// A wish for work. Only `worker_id` is required (and `queues`, where the path names none).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Claim {
    /// Unique per process start.
    pub worker_id: String,
    /// At least 128 random bits as text: a repeat within five minutes answers the leases of the first answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Queues, in order of preference; not where the path names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<Vec<String>>,
    /// Most leases.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(default = 1, minimum = 1, maximum = 1_000)]
    pub max: Option<u32>,
    /// Most payload bytes; the first lease is given whatever its size.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(default = 1_048_576, maximum = 8_388_608)]
    pub max_bytes: Option<u64>,
    /// How long to wait for work.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(default = 20_000, maximum = 60_000)]
    pub wait_ms: Option<u64>,
    /// Length of each lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(default = 30_000, minimum = 1_000, maximum = 86_400_000)]
    pub lease_ms: Option<u64>,
    /// Most leases that the worker may hold in all; `null`: no bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Handlers it has; `null`: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kinds: Option<Vec<String>>,
    /// What it shows to `requires`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// It will confirm the start (by a renewal) within this; `null`: not asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 100, maximum = 10_000)]
    pub start_confirmation_ms: Option<u64>,
    /// Applied first, in the same log entry.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reports: Vec<ReportItem>,
}

/// A granted lease with what its worker is told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Lease {
    /// The execution.
    pub execution_id: String,
    /// The attempt.
    pub attempt: u32,
    /// The fencing token; hand it to every system that the work touches.
    pub fencing_token: u64,
    /// Its schedule.
    pub schedule_id: Option<String>,
    /// The definition it was created with.
    pub generation: Option<u64>,
    /// Owner.
    pub tenant: String,
    /// Its queue.
    pub queue: String,
    /// Handler needed.
    pub kind: String,
    /// Why it exists.
    pub cause: Cause,
    /// What to work on.
    pub payload: Json,
    /// Length of the lease; each renewal gives as much again.
    pub lease_ms: u64,
    /// Time left when the answer was made.
    pub expires_in_ms: u64,
    /// The same as an instant on the cluster's clock.
    pub lease_expires_at: Option<Instant>,
    /// The occurrence it stands for.
    pub nominal_at: Option<Instant>,
    /// When it was to run.
    pub due_at: Option<Instant>,
    /// First lease minus due time.
    pub lateness_ms: u64,
    /// The first of attempt and total time-out.
    pub deadline_at: Option<Instant>,
    /// Attempts in all.
    pub max_attempts: u32,
    /// Error of the attempt before.
    pub previous_error: Json,
    /// Last progress of the attempts before.
    pub progress: Json,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// W3C trace context of its creator.
    pub traceparent: Option<String>,
}

impl Lease {
    /// How later calls name it.
    #[must_use]
    pub fn reference(&self) -> LeaseRef {
        LeaseRef {
            execution_id: self.execution_id.clone(),
            attempt: self.attempt,
            fencing_token: self.fencing_token,
        }
    }
}

/// Answer to a claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ClaimResult {
    /// What was granted; empty when nothing came in time.
    pub leases: Vec<Lease>,
    /// Answers to `reports`, in order.
    pub reports: Vec<ReportResult>,
    /// The leases are those of an earlier claim with the same `request_id`.
    pub replayed: bool,
    /// Claim no more.
    pub drain: bool,
    /// How long to wait before the next claim.
    pub poll_after_ms: u64,
    /// The cluster's clock.
    pub server_time: Option<Instant>,
}

/// Body of `leases:renew`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RenewLeases {
    /// Who.
    pub worker_id: String,
    /// Which; at most 1,000.
    pub leases: Vec<RenewItem>,
}

/// One renewal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RenewItem {
    /// The execution.
    pub execution_id: String,
    /// The attempt.
    pub attempt: u32,
    /// The fencing token.
    pub fencing_token: u64,
    /// New length; `null`: as before.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1_000, maximum = 86_400_000)]
    pub lease_ms: Option<u64>,
    /// Kept with the attempt; `null` or left out: as before. At most 16 KiB.
    #[serde(skip_serializing_if = "Json::is_null")]
    pub progress: Json,
}

/// Body of `leases:complete`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CompleteLeases {
    /// Who.
    pub worker_id: String,
    /// Which; at most 1,000.
    pub leases: Vec<CompleteItem>,
}

/// One completion.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct CompleteItem {
    /// The execution.
    pub execution_id: String,
    /// The attempt.
    pub attempt: u32,
    /// The fencing token.
    pub fencing_token: u64,
    /// Kept with the execution; at most 64 KiB.
    #[serde(skip_serializing_if = "Json::is_null")]
    pub result: Json,
}

/// A worker's error. Its text is cut to 16 KiB and marked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct WorkerError {
    /// What kind of error; compared with `retry.non_retryable`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// Anything more.
    #[serde(skip_serializing_if = "Json::is_null")]
    pub details: Json,
}

/// Body of `leases:fail`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct FailLeases {
    /// Who.
    pub worker_id: String,
    /// Which; at most 1,000.
    pub leases: Vec<FailItem>,
}

/// One failure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct FailItem {
    /// The execution.
    pub execution_id: String,
    /// The attempt.
    pub attempt: u32,
    /// The fencing token.
    pub fencing_token: u64,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<WorkerError>,
    /// `false`: dead-letter at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(default = true)]
    pub retryable: Option<bool>,
    /// The worker's own delay, clamped to `max_backoff`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(maximum = 2_592_000_000_u64)]
    pub retry_in_ms: Option<u64>,
}

/// Body of `leases:release`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ReleaseLeases {
    /// Who.
    pub worker_id: String,
    /// Which; at most 1,000.
    pub leases: Vec<ReleaseItem>,
}

/// One lease given back; no attempt is spent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ReleaseItem {
    /// The execution.
    pub execution_id: String,
    /// The attempt.
    pub attempt: u32,
    /// The fencing token.
    pub fencing_token: u64,
    /// Before it may be leased again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(default = 0, maximum = 86_400_000)]
    pub delay_ms: Option<u64>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What an item of a report says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReportAction {
    /// Done.
    #[default]
    Complete,
    /// Failed.
    Fail,
    /// Given back.
    Release,
}

/// Body of `leases:report`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ReportLeases {
    /// Who.
    pub worker_id: String,
    /// What; at most 1,000.
    pub leases: Vec<ReportItem>,
}

/// One item of a report: `action` says which of the other fields may be there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ReportItem {
    /// What happened. Required.
    pub action: Option<ReportAction>,
    /// The execution.
    pub execution_id: String,
    /// The attempt.
    pub attempt: u32,
    /// The fencing token.
    pub fencing_token: u64,
    /// For `complete`.
    #[serde(skip_serializing_if = "Json::is_null")]
    pub result: Json,
    /// For `fail`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<WorkerError>,
    /// For `fail`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(default = true)]
    pub retryable: Option<bool>,
    /// For `fail`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_in_ms: Option<u64>,
    /// For `release`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay_ms: Option<u64>,
    /// For `release`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Whether a call on a lease was accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReportStatus {
    /// Accepted, now or the first time.
    Ok,
    /// The lease is over: nothing changed. Stop the work.
    #[default]
    LeaseLost,
}

/// The answer to one item of renew, complete, fail, release or report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ReportResult {
    /// The execution.
    pub execution_id: String,
    /// The attempt.
    pub attempt: u32,
    /// The fencing token.
    pub fencing_token: u64,
    /// Accepted or not.
    pub status: ReportStatus,
    /// A repeat of an accepted report. Only with `ok`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed: Option<bool>,
    /// State of the execution now. Only with `ok`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<ExecutionState>,
    /// Time left of the lease, after a renewal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in_ms: Option<u64>,
    /// A cancel was requested: stop if you can. Only with `ok`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel_requested: Option<bool>,
    /// Next attempt, for `backing_off` or a delayed release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<Instant>,
    /// Why it is final.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_reason: Option<String>,
    /// What ended the lease. Only with `lease_lost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Answer of renew, complete, fail, release and report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ReportResults {
    /// In request order.
    pub results: Vec<ReportResult>,
    /// Claim no more.
    pub drain: bool,
    /// The cluster's clock.
    pub server_time: Option<Instant>,
}

/// Body of `leases:revoke`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RevokeLeases {
    /// Which; at most 1,000.
    pub leases: Vec<RevokeItem>,
    /// Why: for the audit log, and kept as the error of the attempts that end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// One lease to take away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RevokeItem {
    /// Owner of the execution.
    #[schema(default = "default")]
    pub tenant: Option<String>,
    /// The execution.
    pub execution_id: String,
    /// Only if this is its token; `null`: whatever lease it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
}

/// Answer of `leases:revoke`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RevokeResult {
    /// Leases that were live and have ended.
    pub revoked: u32,
}
