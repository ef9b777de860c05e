//! Executions outside a lease: creating, deleting, and moving those whose time has come.
//!
//! Callers: [`crate::state::apply`]; `firing` creates through [`create`]. Invariants:
//! 1. Write budget of [`create`]: the execution's row and its place in a line or in the due index;
//!    one row more for a chosen id, a unique key, a payload over [`INLINE_PAYLOAD_MAX`], a start
//!    deadline.
//! 2. An open execution that is not leased has exactly one next event: a due entry, or a place in a
//!    line.

mod due;
mod submit;

pub(super) use due::process_due;
pub(super) use submit::submit;

use crate::command::executions::DeleteExecution;
use crate::command::outcome::{Outcome, Quota, Refusal, Written};
use crate::fault::Fault;
use crate::ids::{ExecutionId, QueueNo, TenantNo};
use crate::model::execution::{
    Cause, Execution, ExecutionState, INLINE_PAYLOAD_MAX, OccurrenceRef, StoredPayload,
};
use crate::model::history::{ChosenId, UniqueHolder};
use crate::model::schedule::JobTemplate;
use crate::state::apply::Verdict;
use crate::state::context::{Context, Counted};
use crate::state::history;
use crate::store::due::DueKind;
use crate::store::{Family, View, keys};
use crate::time::Timestamp;

/// What a new execution is made of.
#[derive(Debug)]
pub(super) struct NewExecution {
    /// Owner.
    pub(super) tenant: TenantNo,
    /// Its line; it exists.
    pub(super) queue: QueueNo,
    /// Chosen id, which the caller has found to be free; `None`: minted.
    pub(super) id: Option<ExecutionId>,
    /// Its occurrence, for one of a schedule.
    pub(super) occurrence: Option<OccurrenceRef>,
    /// Why it exists.
    pub(super) cause: Cause,
    /// What to run, payload inside whatever its size.
    pub(super) template: JobTemplate,
    /// When it may become ready; at or before log time: at once.
    pub(super) due_at: Timestamp,
    /// Unique key, which the caller has found to be free.
    pub(super) unique_key: Option<String>,
    /// W3C trace context of the creator.
    pub(super) traceparent: Option<String>,
    /// Hash of what the creator sent; 0 where nobody compares it.
    pub(super) fingerprint: u64,
    /// The dead letter that it runs again.
    pub(super) replay_of: Option<ExecutionId>,
}

/// Creates an execution and puts it where its time says: into its line, or into the due index.
/// Counts it into the tenant's usage. It does not touch the schedule's status row: the caller adds
/// the id to `open` itself.
///
/// The refusals are those of [`room_for`]; a refusal changed nothing.
///
/// # Errors
/// Any [`Fault`].
pub(super) fn create(
    context: &mut Context<'_>,
    new: NewExecution,
) -> Result<Result<ExecutionId, Refusal>, Fault> {
    if let Err(refusal) = room_for(context, new.tenant, Some(new.queue), None) {
        return Ok(Err(refusal));
    }
    let mut execution = assemble(context, new);
    store_apart(context, &mut execution)?;
    context.usage_mut(execution.tenant).open += 1;
    if execution.due_at > context.now {
        let id = execution.id.as_str();
        let key = context.arm(execution.tenant, DueKind::Execution, id, execution.due_at);
        execution.due_key = Some(key);
        context.count(execution.queue, execution.tenant, Counted::Waiting, 1)?;
    } else {
        let line_at = execution.due_at;
        context.offer(&mut execution, line_at)?;
    }
    let key = keys::execution(execution.tenant, &execution.id);
    context.put(Family::Live, key, &execution)?;
    Ok(Ok(execution.id))
}

/// Whether the tenant may create one more execution in the queue (`None`: one that does not exist
/// yet). `leaving` is an open one of the tenant that goes first.
///
/// # Errors
/// [`Refusal::QueueNotAllowed`]; [`Refusal::QuotaExceeded`] for `open_executions_max` and
/// `max_pending`.
pub(super) fn room_for(
    context: &Context<'_>,
    tenant: TenantNo,
    queue: Option<QueueNo>,
    leaving: Option<&Execution>,
) -> Result<(), Refusal> {
    let open_max = context
        .state
        .tenants
        .get(&tenant)
        .and_then(|row| row.spec.open_executions_max);
    if let Some(limit) = open_max {
        let current = context.state.usage.get(&tenant).map_or(0, |u| u.open);
        let leaving = u64::from(leaving.is_some());
        within(
            Quota::OpenExecutions,
            limit,
            current.saturating_sub(leaving),
        )?;
    }
    let Some(no) = queue else { return Ok(()) };
    if !context.tenant_may_use(no, tenant) {
        return Err(Refusal::QueueNotAllowed);
    }
    let queue = context.state.queues.get(&no);
    if let Some(limit) = queue.and_then(|q| q.spec.max_pending) {
        let is_pending = |e: &Execution| e.queue == no && e.state != ExecutionState::BackingOff;
        let leaving = u64::from(leaving.is_some_and(is_pending));
        let current = context.state.queue_pending(no);
        within(Quota::MaxPending, limit, current.saturating_sub(leaving))?;
    }
    Ok(())
}

fn within(quota: Quota, limit: u64, current: u64) -> Result<(), Refusal> {
    if current < limit {
        return Ok(());
    }
    Err(Refusal::QuotaExceeded {
        quota,
        limit,
        current,
    })
}

fn assemble(context: &mut Context<'_>, new: NewExecution) -> Execution {
    let chosen_id = new.id.is_some();
    let id = new.id.unwrap_or_else(|| context.mint(new.tenant));
    Execution {
        tenant: new.tenant,
        id,
        chosen_id,
        occurrence: new.occurrence,
        cause: new.cause,
        queue: new.queue,
        template: new.template,
        payload: StoredPayload::Inline,
        unique_key: new.unique_key,
        traceparent: new.traceparent,
        fingerprint: new.fingerprint,
        created_at: context.now,
        due_at: new.due_at,
        state: ExecutionState::Waiting,
        state_since: context.now,
        next_attempt_at: None,
        due_key: None,
        line_at: None,
        parked: false,
        attempts_started: 0,
        lease_losses: 0,
        lease_losses_in_row: 0,
        releases: 0,
        started_at: None,
        progress: Vec::new(),
        cancel: None,
        replay_of: new.replay_of,
        attempts: Vec::new(),
        revision: context.revision(),
    }
}

/// Writes what is stored beside the row: a large payload, the pointer of a chosen id, the holder of
/// a unique key.
fn store_apart(context: &mut Context<'_>, execution: &mut Execution) -> Result<(), Fault> {
    let payload = &mut execution.template.payload;
    if payload.len() > INLINE_PAYLOAD_MAX {
        let bytes = std::mem::take(payload);
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        execution.payload = StoredPayload::Body { len };
        let key = keys::body(execution.tenant, &execution.id);
        context.txn.put(Family::Body, key, bytes);
    }
    if execution.chosen_id {
        let row = ChosenId {
            fingerprint: execution.fingerprint,
            history: None,
        };
        let key = keys::pointer(&execution.id, execution.tenant);
        context.put(Family::Keys, key, &row)?;
    }
    if let Some(unique) = &execution.unique_key {
        let row = UniqueHolder {
            execution: execution.id.clone(),
        };
        let key = keys::unique(execution.tenant, unique);
        context.put(Family::Keys, key, &row)?;
    }
    Ok(())
}

/// Deletes a final execution: its history row and the pointer of a chosen id. Its ledger row stays.
pub(super) fn delete(context: &mut Context<'_>, command: &DeleteExecution) -> Verdict {
    let tenant = match context.tenant(&command.tenant) {
        Ok(tenant) => tenant,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let row = keys::execution(tenant, &command.id);
    if context.txn.contains(Family::Live, &row)? {
        return Ok(Err(Refusal::NotFinal));
    }
    let found = history::find_final(
        &mut |family, key| View::get(&context.txn, family, key),
        &context.state.cluster,
        context.now,
        tenant,
        &command.id,
    )?;
    let Some((class, bucket, done)) = found else {
        return Ok(Err(Refusal::ExecutionNotFound));
    };
    let key = keys::final_execution(class, bucket, tenant, &command.id);
    context.delete(Family::History, key);
    if done.execution.chosen_id {
        context.delete(Family::Keys, keys::pointer(&command.id, tenant));
    }
    let target = context.execution_name(tenant, &command.id);
    context.audit(tenant, "execution.delete", target)?;
    Ok(Ok(Outcome::Written {
        written: Written::Deleted,
        revision: context.revision(),
    }))
}

#[cfg(test)]
mod tests;
