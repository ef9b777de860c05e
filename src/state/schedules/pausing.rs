//! Pausing and resuming a schedule. A pause is not an outage: what falls into it is skipped as `paused` at resume.

use super::{answer, arm, disarm, follow, leads_on, load, seen, store, target};
use crate::command::outcome::{Refusal, Written};
use crate::command::schedules::{PauseSchedule, ResumeSchedule};
use crate::fault::Fault;
use crate::model::policy::PauseInfo;
use crate::model::schedule::{Schedule, ScheduleState, ScheduleStatus};
use crate::state::admin;
use crate::state::apply::Verdict;
use crate::state::checks;
use crate::state::context::Context;
use crate::state::firing::steps;

/// Stops a schedule. One that is paused already keeps its `since`, name and reason; another `until` takes effect.
pub(in crate::state) fn pause(context: &mut Context<'_>, command: &PauseSchedule) -> Verdict {
    let tenant = match context.tenant(&command.tenant) {
        Ok(tenant) => tenant,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let Some((mut schedule, mut status)) = load(context, tenant, &command.id)? else {
        return Ok(Err(Refusal::ScheduleNotFound));
    };
    if let Err(refusal) = checks::expect(command.expect, Some(schedule.revision)) {
        return Ok(Err(refusal));
    }
    let pause = match &status.state {
        ScheduleState::Completed { .. } => return Ok(Err(Refusal::ScheduleCompleted)),
        ScheduleState::Paused(present) if present.until == command.until => {
            return Ok(Ok(answer(Written::Unchanged, &schedule)));
        }
        ScheduleState::Paused(present) => PauseInfo {
            until: command.until,
            ..present.clone()
        },
        ScheduleState::Active => PauseInfo {
            by: context.caller.actor.as_str().to_owned(),
            reason: context.caller.reason.clone(),
            since: context.now,
            until: command.until,
        },
    };
    enter(context, &schedule, &mut status, pause);
    schedule.revision = context.revision();
    store(context, &schedule, &status)?;
    context.audit(
        tenant,
        "schedule.pause",
        target(&command.tenant, &command.id),
    )?;
    Ok(Ok(answer(Written::Updated, &schedule)))
}

fn enter(
    context: &mut Context<'_>,
    schedule: &Schedule,
    status: &mut ScheduleStatus,
    pause: PauseInfo,
) {
    disarm(context, schedule, status);
    status.state = ScheduleState::Paused(pause);
    status.next = None;
    arm(context, schedule, status);
}

/// Pauses an active schedule by its own rule (`pause_after_failures`), with an audit record. Its revision stays: no
/// person changed it. The caller writes the status row.
///
/// # Errors
/// Any [`Fault`].
pub(in crate::state) fn pause_itself(
    context: &mut Context<'_>,
    schedule: &Schedule,
    status: &mut ScheduleStatus,
) -> Result<(), Fault> {
    if status.state != ScheduleState::Active {
        return Ok(());
    }
    let pause = PauseInfo {
        by: "schedule".to_owned(),
        reason: Some(format!("{} failures in a row", status.failures_in_row)),
        since: context.now,
        until: None,
    };
    enter(context, schedule, status, pause);
    let Some(row) = context.state.tenants.get(&schedule.tenant) else {
        return Err(Fault::invariant(format!(
            "schedule {} has no tenant",
            schedule.id
        )));
    };
    let target = target(&row.id, &schedule.id);
    context.audit(schedule.tenant, "schedule.pause", target)
}

/// Lets a schedule go on. The leader's own resume (the end of a timed pause) counts only when `until` has passed.
pub(in crate::state) fn resume(context: &mut Context<'_>, command: &ResumeSchedule) -> Verdict {
    let tenant = match context.tenant(&command.tenant) {
        Ok(tenant) => tenant,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let Some((mut schedule, mut status)) = load(context, tenant, &command.id)? else {
        return Ok(Err(Refusal::ScheduleNotFound));
    };
    if let Err(refusal) = checks::expect(command.expect, Some(schedule.revision)) {
        return Ok(Err(refusal));
    }
    match &status.state {
        ScheduleState::Completed { .. } => return Ok(Err(Refusal::ScheduleCompleted)),
        ScheduleState::Active => return Ok(Ok(answer(Written::Unchanged, &schedule))),
        ScheduleState::Paused(pause) => {
            if !admin::may_lift(context, Some(pause)) {
                return Ok(Err(Refusal::Superseded));
            }
        }
    }
    let read = seen(&schedule, &status);
    let sound = leads_on(&command.plan, Some(read))
        && steps::lie_between(read.cursor, &command.steps, command.plan.cursor);
    if command.seen != read || !sound {
        return Ok(Err(Refusal::Superseded));
    }
    disarm(context, &schedule, &mut status);
    status.state = ScheduleState::Active;
    // Whoever resumes it gives it the whole row of failures again.
    status.failures_in_row = 0;
    steps::decide(context, &schedule, &mut status, &command.steps)?;
    follow(context, &schedule, &mut status, &command.plan);
    schedule.revision = context.revision();
    store(context, &schedule, &status)?;
    context.audit(
        tenant,
        "schedule.resume",
        target(&command.tenant, &command.id),
    )?;
    Ok(Ok(answer(Written::Updated, &schedule)))
}
