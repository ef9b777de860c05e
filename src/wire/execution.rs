//! Executions: submitting, reading and cancelling them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::{Instant, ItemStatus, Json, PastPolicy, RetryPolicy, Span, Timeouts};

/// States of an execution.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum ExecutionState {
    /// Due later.
    Waiting,
    /// May be leased.
    #[default]
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
    /// Whether nothing can change it any more.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(
            self,
            Self::Succeeded | Self::Cancelled | Self::DeadLettered | Self::Expired
        )
    }

    /// The word in JSON.
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
}

/// Why an execution exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
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
    #[default]
    Submitted,
    /// Runs a dead letter again.
    Replay,
}

/// What to do when the unique key is held by an open execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// Refuse with the holder.
    #[default]
    Reject,
    /// Answer the holder as `existing`.
    ReturnExisting,
    /// Cancel the holder if it is not leased (else refuse) and take its place.
    Replace,
}

/// A key that only one open execution of the tenant may hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Unique {
    /// The key.
    pub key: String,
    /// When it is held.
    #[serde(default)]
    #[schema(default = "reject")]
    pub on_conflict: Option<OnConflict>,
}

/// Work submitted directly. Only `kind` is required.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SubmitExecution {
    /// Chosen id, unique in the tenant; left out: minted.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,127}$")]
    pub execution_id: Option<String>,
    /// Handler that a worker must have.
    pub kind: String,
    /// Its line; comes into being when first named.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(default = "default")]
    pub queue: Option<String>,
    /// Given to the worker; at most 256 KiB.
    #[serde(skip_serializing_if = "Json::is_null")]
    pub payload: Json,
    /// When it may run; default: now. Not together with `delay`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_at: Option<Instant>,
    /// How long from now it may run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delay: Option<Span>,
    /// A `due_at` in the past.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(default = "run")]
    pub past: Option<PastPolicy>,
    /// At most one open with the same key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique: Option<Unique>,
    /// 0–9, 9 highest.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(default = 5, minimum = 0, maximum = 9)]
    pub priority: Option<u8>,
    /// Limits how many executions with the same key run together in the tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency_key: Option<String>,
    /// For filters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Labels that a worker must show.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requires: Option<BTreeMap<String, String>>,
    /// Retries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryPolicy>,
    /// Bounds on its duration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<Timeouts>,
    /// Executions that must succeed first; must be empty or left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Vec<String>>,
}

/// Body of `executions:batch`: at most 1,000, each as a submission of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SubmitBatch {
    /// The submissions.
    pub items: Vec<SubmitExecution>,
}

/// What became of one submission of a batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SubmitResult {
    /// The execution: the new one, or the existing one.
    #[serde(default)]
    pub execution_id: Option<String>,
    /// `created`, `existing`, `replaced`; `null` when refused.
    #[serde(default)]
    pub outcome: Option<String>,
    /// Status and, when refused, why.
    pub result: ItemStatus,
}

/// Answer of `executions:batch`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SubmitBatchResult {
    /// One for each submission, in request order.
    pub items: Vec<SubmitResult>,
}

/// One unit of work to finish.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Execution {
    /// Its id.
    pub execution_id: String,
    /// Owner.
    pub tenant: String,
    /// Its schedule.
    pub schedule_id: Option<String>,
    /// Which schedule of that name.
    pub incarnation: Option<u64>,
    /// The definition it was created with.
    pub generation: Option<u64>,
    /// Handler that a worker must have.
    pub kind: String,
    /// Its line.
    pub queue: String,
    /// Why it exists.
    pub cause: Cause,
    /// Given to the worker; left out in the basic view.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Json>,
    /// 0–9, 9 highest.
    pub priority: u8,
    /// Limits how many run together.
    pub concurrency_key: Option<String>,
    /// Forbids a second open one.
    pub unique_key: Option<String>,
    /// For filters.
    pub labels: BTreeMap<String, String>,
    /// Labels that a worker must show.
    pub requires: BTreeMap<String, String>,
    /// Retries.
    pub retry: RetryPolicy,
    /// Bounds on its duration.
    pub timeouts: Timeouts,
    /// Executions that must succeed first.
    pub after: Vec<String>,
    /// W3C trace context of its creator.
    pub traceparent: Option<String>,
    /// Where it stands.
    pub state: ExecutionState,
    /// Since when.
    pub state_since: Option<Instant>,
    /// The occurrence it stands for.
    pub nominal_at: Option<Instant>,
    /// When it may run for the first time.
    pub due_at: Option<Instant>,
    /// When it was created.
    pub created_at: Option<Instant>,
    /// First lease.
    pub started_at: Option<Instant>,
    /// When it became final.
    pub finished_at: Option<Instant>,
    /// First lease minus due time.
    pub lateness_ms: Option<u64>,
    /// End of backoff, when backing off.
    pub next_attempt_at: Option<Instant>,
    /// Attempts spent.
    pub attempts_started: u32,
    /// Leases lost.
    pub lease_losses: u32,
    /// Leases given back or not delivered; they spend no attempt.
    pub releases: u32,
    /// Last progress that a worker gave.
    pub progress: Json,
    /// What the worker returned.
    pub result: Json,
    /// Error, result or progress was cut to its bound.
    pub truncated: bool,
    /// A request to cancel.
    pub cancel: Option<CancelRequested>,
    /// Why it is final.
    pub final_reason: Option<String>,
    /// The dead letter that it runs again.
    pub replay_of: Option<String>,
    /// The execution that runs this dead letter again.
    pub replayed_as: Option<String>,
    /// Opaque; the ETag.
    pub revision: String,
    /// The first attempt and the latest others, oldest first; the last one may be under way.
    pub attempts: Vec<Attempt>,
}

/// One try under one lease.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Attempt {
    /// From 1; a grant that spends none repeats the number.
    pub attempt: u32,
    /// Token of its lease.
    pub fencing_token: u64,
    /// Who had it.
    pub worker_id: String,
    /// When it was granted.
    pub leased_at: Option<Instant>,
    /// When it ended; `null`: under way.
    pub ended_at: Option<Instant>,
    /// How it ended; `null`: under way.
    pub outcome: Option<String>,
    /// The worker's error.
    pub error: Json,
    /// Delay before the next attempt.
    pub delay_ms: Option<u64>,
    /// Ends unless renewed, for the one under way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease_expires_at: Option<Instant>,
}

/// A request to cancel, on record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CancelRequested {
    /// When.
    pub at: Instant,
    /// Who asked.
    pub by: String,
    /// Why.
    #[serde(default)]
    pub reason: Option<String>,
}

/// How a leased execution is cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CancelMode {
    /// The worker is told on its next renewal.
    #[default]
    Request,
    /// The lease ends at once.
    Now,
}

/// Body of `:cancel`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Cancel {
    /// For a leased one.
    #[schema(default = "request")]
    pub mode: Option<CancelMode>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What a cancel did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cancelled {
    /// It is cancelled now.
    #[default]
    Cancelled,
    /// It is leased: the worker will be told.
    Requested,
    /// It was final already.
    AlreadyFinal,
}

/// Answer of `:cancel`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CancelResult {
    /// Which.
    pub execution_id: String,
    /// What the cancel did.
    pub outcome: Cancelled,
    /// Its state now.
    pub state: ExecutionState,
}
