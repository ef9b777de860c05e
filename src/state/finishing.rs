//! The end of an execution: from the live family to history, once, for good.
//!
//! Callers: [`crate::state::lease_end`], `cancel`, `executions` (deadlines, a replaced unique key).
//! Invariants:
//! 1. A final row is written once and never changed; it holds the payload whatever its size, so
//!    that it goes with its bucket and nothing is left behind.
//! 2. Write budget: the live row and the history row, beside what the caller lets go of (lease,
//!    line or due entry). One key more for each of: a stored body, a chosen id, a unique key; two
//!    for one of a schedule (status and ledger), two more when the schedule completes, plans again
//!    or pauses by it; three when a parked execution takes its slot.
//! 3. The schedule learns of it in the same entry: open list, totals, recent outcomes, self-pause,
//!    completion.

use crate::command::outcome::Effect;
use crate::fault::Fault;
use crate::model::execution::{
    Execution, ExecutionState, FinalExecution, FinalReason, RESULT_MAX, StoredPayload,
};
use crate::model::history::{ChosenId, LedgerRow};
use crate::model::schedule::{RECENT_MAX, RecentOutcome, Schedule, ScheduleState, ScheduleStatus};
use crate::state::context::{Context, Counted};
use crate::state::history;
use crate::state::{parking, schedules};
use crate::store::due::DueKind;
use crate::store::keys::RetentionClass;
use crate::store::{Family, keys};

/// How an execution ends.
#[derive(Debug)]
pub(super) struct Final {
    /// Its final state.
    pub(super) state: ExecutionState,
    /// Why.
    pub(super) reason: FinalReason,
    /// JSON text that the worker returned; empty: none.
    pub(super) result: Vec<u8>,
    /// Error, result or progress was cut.
    pub(super) truncated: bool,
}

impl Final {
    /// Without a result.
    pub(super) const fn plain(state: ExecutionState, reason: FinalReason) -> Self {
        Self {
            state,
            reason,
            result: Vec::new(),
            truncated: false,
        }
    }
}

/// Where the history row is.
#[derive(Clone, Copy)]
struct Place {
    class: RetentionClass,
    bucket: u32,
}

/// Ends an open execution that has no live lease: it leaves its line or the due index, its row
/// becomes history, and whoever it held back goes on. Rewrites the status row of its schedule: hold
/// no copy of that over this call.
///
/// # Errors
/// Any [`Fault`]; [`Fault::Invariant`] for one that is leased or final.
pub(super) fn finish(
    context: &mut Context<'_>,
    mut execution: Execution,
    mut end: Final,
) -> Result<(), Fault> {
    let was_offered = execution.state == ExecutionState::Ready && !execution.parked;
    take_out(context, &mut execution)?;
    let open = &mut context.usage_mut(execution.tenant).open;
    crate::state::context::shift(open, -1)?;
    let class = history::class_for(context.state, execution.queue, end.state);
    let bucket = class.bucket(context.now);
    let place = Place { class, bucket };
    take_in_payload(context, &mut execution)?;
    execution.state = end.state;
    execution.state_since = context.now;
    execution.next_attempt_at = None;
    execution.line_at = None;
    execution.parked = false;
    if end.result.len() > RESULT_MAX {
        end.result = Vec::new();
        end.truncated = true;
    }
    let done = FinalExecution {
        execution,
        reason: end.reason,
        finished_at: context.now,
        result: end.result,
        truncated: end.truncated,
    };
    let execution = &done.execution;
    context.delete(
        Family::Live,
        keys::execution(execution.tenant, &execution.id),
    );
    let key = keys::final_execution(class, bucket, execution.tenant, &execution.id);
    context.put(Family::History, key, &done)?;
    let_go_of_keys(context, execution, place)?;
    tell_schedule(context, &done, place)?;
    announce(context, &done);
    match &done.execution.template.concurrency_key {
        Some(name) if was_offered => parking::fill_slot(context, done.execution.tenant, name),
        _ => Ok(()),
    }
}

/// Takes it out of wherever its state says it is.
fn take_out(context: &mut Context<'_>, execution: &mut Execution) -> Result<(), Fault> {
    let kind = match execution.state {
        // Its lease has just ended: it is nowhere.
        ExecutionState::Leased => return Ok(()),
        ExecutionState::Ready => {
            let lease = context.state.lease(execution.tenant, &execution.id);
            if lease.is_some() {
                return Err(Fault::invariant(format!("{} is leased", execution.id)));
            }
            context.withdraw(execution, false)?;
            DueKind::StartDeadline
        }
        ExecutionState::Waiting => {
            context.count(execution.queue, execution.tenant, Counted::Waiting, -1)?;
            DueKind::Execution
        }
        ExecutionState::BackingOff => {
            context.count(execution.queue, execution.tenant, Counted::BackingOff, -1)?;
            DueKind::Execution
        }
        state => {
            let id = &execution.id;
            return Err(Fault::invariant(format!(
                "{id} is {} already",
                state.as_str()
            )));
        }
    };
    if let Some(key) = execution.due_key.take() {
        context.disarm(execution.tenant, kind, execution.id.as_str(), key);
    }
    Ok(())
}

/// Moves a payload that is stored apart into the row.
fn take_in_payload(context: &mut Context<'_>, execution: &mut Execution) -> Result<(), Fault> {
    if execution.payload == StoredPayload::Inline {
        return Ok(());
    }
    let key = keys::body(execution.tenant, &execution.id);
    let Some(bytes) = context.txn.get(Family::Body, &key)? else {
        let id = &execution.id;
        return Err(Fault::invariant(format!("execution {id} has no body")));
    };
    execution.template.payload = bytes.into_owned();
    execution.payload = StoredPayload::Inline;
    context.delete(Family::Body, key);
    Ok(())
}

fn let_go_of_keys(
    context: &mut Context<'_>,
    execution: &Execution,
    place: Place,
) -> Result<(), Fault> {
    if let Some(unique) = &execution.unique_key {
        context.delete(Family::Keys, keys::unique(execution.tenant, unique));
    }
    if execution.chosen_id {
        let row = ChosenId {
            fingerprint: execution.fingerprint,
            history: Some((place.class.0, place.bucket)),
        };
        let key = keys::pointer(&execution.id, execution.tenant);
        context.put(Family::Keys, key, &row)?;
    }
    Ok(())
}

fn announce(context: &mut Context<'_>, done: &FinalExecution) {
    let execution = &done.execution;
    context.effects.push(Effect::AnnounceFinal {
        tenant: execution.tenant,
        execution: execution.id.clone(),
        state: execution.state,
        schedule: execution.occurrence.as_ref().map(|o| o.schedule.clone()),
    });
}

/// The ledger row of its nominal time (fired by hand: of its creation), and the schedule's status. A schedule that was deleted, or
/// replaced by another of the name, does not know the execution any more: then only the ledger is
/// written.
fn tell_schedule(
    context: &mut Context<'_>,
    done: &FinalExecution,
    place: Place,
) -> Result<(), Fault> {
    let execution = &done.execution;
    let Some(occurrence) = &execution.occurrence else {
        return Ok(());
    };
    let (tenant, id) = (execution.tenant, &occurrence.schedule);
    let incarnation = occurrence.incarnation;
    let row = LedgerRow::Ran {
        nominal_at: occurrence.nominal_at.unwrap_or(execution.created_at),
        incarnation,
        execution: execution.id.clone(),
        cause: execution.cause,
        state: execution.state,
        reason: done.reason,
        finished_at: done.finished_at,
    };
    let Place { class, bucket } = place;
    let key = match occurrence.nominal_at {
        Some(nominal_at) => keys::ledger(class, bucket, tenant, id, nominal_at, incarnation),
        None => {
            let fired = (execution.created_at, incarnation);
            keys::ledger_manual((class, bucket), tenant, id, fired, &execution.id)
        }
    };
    context.put(Family::History, key, &row)?;
    let key = keys::status(tenant, id);
    let Some(mut status) = context.get::<ScheduleStatus>(Family::Live, &key)? else {
        return Ok(());
    };
    let Some(at) = status.open.iter().position(|open| *open == execution.id) else {
        return Ok(());
    };
    status.open.remove(at);
    count_outcome(&mut status, done);
    let failed = execution.state == ExecutionState::DeadLettered;
    let may_be_over = status.next.is_none() && status.open.is_empty();
    if status.state == ScheduleState::Active && (failed || may_be_over) {
        let row = keys::schedule(tenant, id);
        let schedule: Schedule = context
            .get(Family::Live, &row)?
            .ok_or_else(|| Fault::invariant(format!("status of {id} without a schedule")))?;
        go_on(context, &schedule, &mut status)?;
    }
    context.put(Family::Live, key, &status)
}

/// Totals and recent outcomes. Only a dead letter is a failure, and only a success ends a row of
/// them: cancelled and expired executions say nothing about the work itself.
fn count_outcome(status: &mut ScheduleStatus, done: &FinalExecution) {
    let total = match done.execution.state {
        ExecutionState::Succeeded => &mut status.succeeded,
        ExecutionState::DeadLettered => &mut status.dead_lettered,
        ExecutionState::Expired => &mut status.expired,
        _ => &mut status.cancelled,
    };
    *total = total.saturating_add(1);
    match done.execution.state {
        ExecutionState::Succeeded => status.failures_in_row = 0,
        ExecutionState::DeadLettered => {
            status.failures_in_row = status.failures_in_row.saturating_add(1);
        }
        _ => {}
    }
    if status.recent.len() >= RECENT_MAX {
        status.recent.remove(0);
    }
    let occurrence = done.execution.occurrence.as_ref();
    status.recent.push(RecentOutcome {
        nominal_at: occurrence.and_then(|o| o.nominal_at),
        execution: done.execution.id.clone(),
        state: done.execution.state,
        finished_at: done.finished_at,
    });
}

/// What the end of an execution changes for an active schedule: it pauses itself, plans the next
/// occurrence of an `after_end` rule, or completes.
fn go_on(
    context: &mut Context<'_>,
    schedule: &Schedule,
    status: &mut ScheduleStatus,
) -> Result<(), Fault> {
    let bound = schedule.spec.pause_after_failures;
    if bound.is_some_and(|bound| status.failures_in_row >= bound) {
        return schedules::pause_itself(context, schedule, status);
    }
    if status.next.is_some() || !status.open.is_empty() {
        return Ok(());
    }
    status.next = schedules::after_end(context, schedule, status);
    if status.next.is_some() {
        schedules::arm(context, schedule, status);
    } else {
        schedules::complete_if_over(context, schedule, status);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
