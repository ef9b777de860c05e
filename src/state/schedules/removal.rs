//! The end of a schedule, by a person or by its own `keep_for`.

use super::{answer, disarm, load, target};
use crate::command::outcome::{Outcome, Refusal, Written};
use crate::command::schedules::{DeleteSchedule, RemoveSchedule};
use crate::fault::Fault;
use crate::model::schedule::{GENERATIONS_MAX, Schedule, ScheduleState, ScheduleStatus};
use crate::state::apply::Verdict;
use crate::state::checks;
use crate::state::context::Context;
use crate::store::{Family, keys};

/// Deletes a schedule; its open executions and its history stay. One that was created by this very entry answers
/// `Superseded`: a later schedule of the name would have the same incarnation.
pub(in crate::state) fn delete(context: &mut Context<'_>, command: &DeleteSchedule) -> Verdict {
    let tenant = match context.tenant(&command.tenant) {
        Ok(tenant) => tenant,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let Some((mut schedule, status)) = load(context, tenant, &command.id)? else {
        return Ok(Err(Refusal::ScheduleNotFound));
    };
    if let Err(refusal) = checks::expect(command.expect, Some(schedule.revision)) {
        return Ok(Err(refusal));
    }
    if schedule.incarnation == context.token {
        return Ok(Err(Refusal::Superseded));
    }
    erase(context, &schedule, status)?;
    context.audit(
        tenant,
        "schedule.delete",
        target(&command.tenant, &command.id),
    )?;
    schedule.revision = context.revision();
    Ok(Ok(answer(Written::Deleted, &schedule)))
}

/// Removes a completed schedule whose time to be kept has passed. No audit record: nobody asked for it now.
pub(in crate::state) fn remove(context: &mut Context<'_>, command: &RemoveSchedule) -> Verdict {
    let Some((schedule, status)) = load(context, command.tenant, &command.id)? else {
        return Ok(Err(Refusal::Superseded));
    };
    let ScheduleState::Completed { at } = status.state else {
        return Ok(Err(Refusal::Superseded));
    };
    let is_over = at.plus(schedule.spec.keep_for) <= context.now;
    if schedule.incarnation != command.incarnation || !is_over {
        return Ok(Err(Refusal::Superseded));
    }
    erase(context, &schedule, status)?;
    Ok(Ok(Outcome::Done))
}

/// Removes every row of a schedule but its ledger: at most 3 and one for each earlier definition.
fn erase(
    context: &mut Context<'_>,
    schedule: &Schedule,
    mut status: ScheduleStatus,
) -> Result<(), Fault> {
    disarm(context, schedule, &mut status);
    let (tenant, id) = (schedule.tenant, &schedule.id);
    context.delete(Family::Live, keys::schedule(tenant, id));
    context.delete(Family::Live, keys::status(tenant, id));
    let oldest = (schedule.generation + 1)
        .saturating_sub(GENERATIONS_MAX)
        .max(1);
    for generation in oldest..schedule.generation {
        let key = keys::generation(tenant, id, schedule.incarnation, generation);
        context.delete(Family::Live, key);
    }
    context.count_schedule(schedule.queue, tenant, -1)
}
