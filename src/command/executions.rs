//! Commands about executions outside a lease.

use serde::{Deserialize, Serialize};

use crate::command::Expect;
use crate::ids::{ExecutionId, QueueId, TenantId};
use crate::model::schedule::JobTemplate;
use crate::store::due::DueEntry;
use crate::time::Timestamp;

/// Most items in one [`ProcessDue`].
pub const DUE_ITEMS_MAX: usize = 200;

/// See each variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExecutionCommand {
    /// Creates one directly.
    Submit(Box<SubmitExecution>),
    /// Asks for its end.
    Cancel(CancelExecution),
    /// Deletes a final one.
    Delete(DeleteExecution),
    /// Moves executions whose time has come.
    ProcessDue(ProcessDue),
}

/// What to do when the unique key is held by an open execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnConflict {
    /// Refuse with the holder.
    #[default]
    Reject,
    /// Answer the holder as `existing`.
    ReturnExisting,
    /// Cancel the holder if it is not leased (else refuse) and take its place.
    Replace,
}

/// A unique key with what to do when it is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UniqueKey {
    /// The key, unique among open executions of the tenant.
    pub key: String,
    /// When it is held.
    pub on_conflict: OnConflict,
}

/// Creates an execution. With a chosen id that exists: `existing` when the fingerprint is equal, else a conflict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmitExecution {
    /// Owner; must exist.
    pub tenant: TenantId,
    /// Its line; created if it does not exist.
    pub queue: QueueId,
    /// Chosen id; `None`: minted.
    pub id: Option<ExecutionId>,
    /// What to run.
    pub template: JobTemplate,
    /// When it may become ready; at or before log time: at once.
    pub due_at: Timestamp,
    /// At most one open.
    pub unique: Option<UniqueKey>,
    /// W3C trace context of the caller.
    pub traceparent: Option<String>,
    /// Hash of the request's content (canonical JSON).
    pub fingerprint: u64,
    /// The dead letter that it runs again.
    pub replay_of: Option<ExecutionId>,
}

/// How a leased execution is cancelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum CancelMode {
    /// The worker is told on its next renewal.
    #[default]
    Request,
    /// The lease ends at once.
    Now,
}

/// Cancels an execution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelExecution {
    /// Owner.
    pub tenant: TenantId,
    /// Its id.
    pub id: ExecutionId,
    /// For a leased one.
    pub mode: CancelMode,
    /// What must hold.
    pub expect: Expect,
}

/// Deletes a final execution's history row (its ledger row stays).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteExecution {
    /// Owner.
    pub tenant: TenantId,
    /// Its id.
    pub id: ExecutionId,
}

/// Moves what is due: waiting or backing off → ready (or dead-lettered, when `timeouts.total` has passed); deadline of a
/// ready one → expired or dead-lettered. An item whose owner no longer has
/// exactly this entry is passed over (it moved meanwhile). Items later than log time are passed over too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessDue {
    /// Entries of kinds `Execution` and `StartDeadline`; at most [`DUE_ITEMS_MAX`].
    pub items: Vec<DueEntry>,
}
