//! Schedules: definition, pause, removal, and where a schedule goes on.
//!
//! Callers: `state::apply`; `state::firing` and the commands that end an execution use what is public in `state`.
//! Invariants:
//! 1. A schedule has one entry in the due index, or none: active with a future → its next occurrence; paused with an
//!    end → that end; completed → its removal. `due_key` is that entry. `next` is `Some` only for an active one.
//! 2. The cursor never goes back, and no plan leads behind it: an occurrence is decided by one entry only.
//! 3. An active schedule without a future completes in the entry that ends its last open execution.

mod pausing;
mod put;
mod removal;

pub(super) use pausing::{pause, pause_itself, resume};
pub(super) use put::put;
pub(super) use removal::{delete, remove};

use crate::command::outcome::{Outcome, Written};
use crate::command::schedules::{Plan, Seen};
use crate::fault::Fault;
use crate::ids::{ScheduleId, TenantId, TenantNo};
use crate::model::rule::When;
use crate::model::schedule::{Planned, Schedule, ScheduleState, ScheduleStatus};
use crate::state::context::Context;
use crate::store::due::DueKind;
use crate::store::{Family, keys};
use crate::time::{Millis, Timestamp};

/// A schedule with its status; `None` when there is none of that name.
///
/// # Errors
/// Any [`Fault`]; [`Fault::Invariant`] when only one of the two rows exists.
pub(super) fn load(
    context: &Context<'_>,
    tenant: TenantNo,
    id: &ScheduleId,
) -> Result<Option<(Schedule, ScheduleStatus)>, Fault> {
    let Some(schedule) = context.get(Family::Live, &keys::schedule(tenant, id))? else {
        return Ok(None);
    };
    let status = context
        .get(Family::Live, &keys::status(tenant, id))?
        .ok_or_else(|| Fault::invariant(format!("schedule {id} has no status row")))?;
    Ok(Some((schedule, status)))
}

/// Writes both rows of a schedule.
fn store(
    context: &mut Context<'_>,
    schedule: &Schedule,
    status: &ScheduleStatus,
) -> Result<(), Fault> {
    let key = keys::schedule(schedule.tenant, &schedule.id);
    context.put(Family::Live, key, schedule)?;
    store_status(context, schedule, status)
}

/// Writes the status row of a schedule.
///
/// # Errors
/// [`Fault::Invariant`] for a value over the bound.
pub(super) fn store_status(
    context: &mut Context<'_>,
    schedule: &Schedule,
    status: &ScheduleStatus,
) -> Result<(), Fault> {
    let key = keys::status(schedule.tenant, &schedule.id);
    context.put(Family::Live, key, status)
}

/// What a planner must have read to plan from the present state.
pub(super) const fn seen(schedule: &Schedule, status: &ScheduleStatus) -> Seen {
    Seen {
        incarnation: schedule.incarnation,
        generation: schedule.generation,
        cursor: status.cursor,
    }
}

/// Whether `plan` leads on from `seen`: never back, and to nothing that is decided.
pub(super) fn leads_on(plan: &Plan, seen: Option<Seen>) -> bool {
    let ahead = plan.next.is_none_or(|next| next.nominal_at > plan.cursor);
    ahead && seen.is_none_or(|seen| plan.cursor >= seen.cursor)
}

/// Takes the schedule's entry out of the due index. Call it before `state` changes: the state tells the entry's kind.
pub(super) fn disarm(context: &mut Context<'_>, schedule: &Schedule, status: &mut ScheduleStatus) {
    let Some(key) = status.due_key.take() else {
        return;
    };
    let kind = match status.state {
        ScheduleState::Active => DueKind::Occurrence,
        ScheduleState::Paused(_) => DueKind::PauseEnd,
        ScheduleState::Completed { .. } => DueKind::Removal,
    };
    context.disarm(schedule.tenant, kind, schedule.id.as_str(), key);
}

/// Puts the entry that the schedule's state calls for into the due index. The former one is out.
pub(super) fn arm(context: &mut Context<'_>, schedule: &Schedule, status: &mut ScheduleStatus) {
    let (kind, at) = match &status.state {
        ScheduleState::Active => (DueKind::Occurrence, status.next.map(|next| next.due_at)),
        ScheduleState::Paused(pause) => (DueKind::PauseEnd, pause.until),
        ScheduleState::Completed { at } => {
            (DueKind::Removal, Some(at.plus(schedule.spec.keep_for)))
        }
    };
    status.due_key = at.map(|at| context.arm(schedule.tenant, kind, schedule.id.as_str(), at));
}

/// Moves the cursor to where `plan` goes on, completes the schedule if nothing is left to come, and
/// arms what its state calls for. The former entry is out of the due index.
pub(super) fn follow(
    context: &mut Context<'_>,
    schedule: &Schedule,
    status: &mut ScheduleStatus,
    plan: &Plan,
) {
    status.cursor = plan.cursor;
    let active = status.state == ScheduleState::Active;
    status.next = if active {
        upcoming(context, schedule, status, plan)
    } else {
        None
    };
    if active && status.next.is_none() && status.open.is_empty() {
        status.state = ScheduleState::Completed { at: context.now };
    }
    arm(context, schedule, status);
}

/// What comes next by `plan`, whose cursor `status` has already.
fn upcoming(
    context: &Context<'_>,
    schedule: &Schedule,
    status: &ScheduleStatus,
    plan: &Plan,
) -> Option<Planned> {
    if is_used_up(schedule, status) {
        return None;
    }
    let waits = status.open.is_empty();
    let after_end = || after_end(context, schedule, status).filter(|_| waits);
    plan.next.or_else(after_end)
}

/// The next occurrence of an `after_end` rule of which nothing is open, counted from now. Elapsed time needs no zone, so
/// apply plans it itself and nothing is lost with a leader; excluded dates are stepped over when it
/// fires. It has no jitter.
pub(super) fn after_end(
    context: &Context<'_>,
    schedule: &Schedule,
    status: &ScheduleStatus,
) -> Option<Planned> {
    let rule = &schedule.spec.rule;
    let When::AfterEnd(delay) = rule.when else {
        return None;
    };
    if is_used_up(schedule, status) {
        return None;
    }
    let earliest = rule.start_at.unwrap_or(Timestamp::MIN);
    // Nominal times only grow, even when the last one lies ahead of now.
    let nominal_at = context
        .now
        .plus(delay)
        .max(earliest)
        .max(status.cursor.plus(Millis(1)));
    let is_over = rule.end_at.is_some_and(|end| nominal_at > end);
    (!is_over).then_some(Planned {
        nominal_at,
        due_at: nominal_at,
    })
}

/// Whether the rule has created as many executions as `max_occurrences` allows.
pub(super) fn is_used_up(schedule: &Schedule, status: &ScheduleStatus) -> bool {
    let max = schedule.spec.rule.max_occurrences;
    max.is_some_and(|max| status.created_count >= max)
}

/// Completes an active schedule without a future when its last open execution has ended (which is out of `open`
/// already). Called by whatever ends an execution; the caller writes the status row.
pub(super) fn complete_if_over(
    context: &mut Context<'_>,
    schedule: &Schedule,
    status: &mut ScheduleStatus,
) {
    let over = status.next.is_none() && status.open.is_empty();
    if over && status.state == ScheduleState::Active {
        status.state = ScheduleState::Completed { at: context.now };
        arm(context, schedule, status);
    }
}

/// The answer to a write of a schedule.
fn answer(written: Written, schedule: &Schedule) -> Outcome {
    Outcome::Schedule {
        written,
        incarnation: schedule.incarnation,
        generation: schedule.generation,
        revision: schedule.revision,
    }
}

/// Name of a schedule in audit records.
pub(super) fn target(tenant: &TenantId, id: &ScheduleId) -> String {
    format!("{tenant}/{id}")
}

#[cfg(test)]
mod tests;
