//! Creating and replacing a schedule: one entry that also re-plans.

use super::{answer, arm, disarm, follow, leads_on, load, seen, store, target, upcoming};
use crate::command::Actor;
use crate::command::outcome::{Quota, Refusal, Written};
use crate::command::schedules::{PutSchedule, STEPS_MAX};
use crate::fault::Fault;
use crate::ids::TenantNo;
use crate::model::schedule::{GENERATIONS_MAX, Schedule, ScheduleState, ScheduleStatus};
use crate::state::apply::Verdict;
use crate::state::checks;
use crate::state::context::Context;
use crate::state::firing::skips;
use crate::store::{Family, keys};

/// Creates or replaces a schedule.
///
/// A creation writes an audit record only when it says more than the schedule's own row does: a named caller or a
/// reason. Every replacement writes one.
pub(in crate::state) fn put(context: &mut Context<'_>, command: &PutSchedule) -> Verdict {
    let tenant = match context.tenant(&command.tenant) {
        Ok(tenant) => tenant,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let present = load(context, tenant, &command.id)?;
    let revision = present.as_ref().map(|(schedule, _)| schedule.revision);
    if let Err(refusal) = checks::expect(command.expect, revision) {
        return Ok(Err(refusal));
    }
    if let Some((schedule, _)) = &present
        && context.queue(&command.queue) == Some(schedule.queue)
        && schedule.spec == command.spec
    {
        return Ok(Ok(answer(Written::Unchanged, schedule)));
    }
    let read = present
        .as_ref()
        .map(|(schedule, status)| seen(schedule, status));
    let sound = leads_on(&command.plan, read) && command.dropped.len() <= STEPS_MAX;
    if command.seen != read || !sound {
        return Ok(Err(Refusal::Superseded));
    }
    if let Err(refusal) = room_for(context, tenant, command, present.is_none()) {
        return Ok(Err(refusal));
    }
    match present {
        None => create(context, tenant, command),
        Some((schedule, status)) => replace(context, command, &schedule, status),
    }
}

fn room_for(
    context: &Context<'_>,
    tenant: TenantNo,
    command: &PutSchedule,
    is_new: bool,
) -> Result<(), Refusal> {
    context.queue_admits(&command.queue, tenant)?;
    let row = context.state.tenants.get(&tenant);
    let limit = row
        .and_then(|row| row.spec.schedules_max)
        .filter(|_| is_new);
    let current = context
        .state
        .usage
        .get(&tenant)
        .map_or(0, |usage| usage.schedules);
    match limit {
        Some(limit) if current >= limit => Err(Refusal::QuotaExceeded {
            quota: Quota::Schedules,
            limit,
            current,
        }),
        _ => Ok(()),
    }
}

fn create(context: &mut Context<'_>, tenant: TenantNo, command: &PutSchedule) -> Verdict {
    let queue = context.ensure_queue(&command.queue);
    let schedule = Schedule {
        tenant,
        id: command.id.clone(),
        incarnation: context.token,
        generation: 1,
        revision: context.revision(),
        queue,
        created_at: context.now,
        updated_at: context.now,
        spec: command.spec.clone(),
    };
    let mut status = ScheduleStatus::new(command.plan.cursor);
    follow(context, &schedule, &mut status, &command.plan);
    store(context, &schedule, &status)?;
    context.count_schedule(queue, tenant, 1)?;
    if matches!(context.caller.actor, Actor::Named(_)) || context.caller.reason.is_some() {
        let target = target(&command.tenant, &command.id);
        context.audit(tenant, "schedule.create", target)?;
    }
    Ok(Ok(answer(Written::Created, &schedule)))
}

fn replace(
    context: &mut Context<'_>,
    command: &PutSchedule,
    former: &Schedule,
    mut status: ScheduleStatus,
) -> Verdict {
    let queue = context.ensure_queue(&command.queue);
    let schedule = Schedule {
        tenant: former.tenant,
        id: former.id.clone(),
        incarnation: former.incarnation,
        generation: former.generation.saturating_add(1),
        revision: context.revision(),
        queue,
        created_at: former.created_at,
        updated_at: context.now,
        spec: command.spec.clone(),
    };
    keep_former(context, former)?;
    for record in &command.dropped {
        skips::record(context, former, &mut status, record)?;
    }
    disarm(context, former, &mut status);
    status.cursor = command.plan.cursor;
    let is_completed = matches!(status.state, ScheduleState::Completed { .. });
    if is_completed && upcoming(context, &schedule, &status, &command.plan).is_none() {
        // It stays completed since then; only how long it is kept may have changed.
        arm(context, &schedule, &mut status);
    } else {
        if is_completed {
            status.state = ScheduleState::Active;
        }
        follow(context, &schedule, &mut status, &command.plan);
    }
    store(context, &schedule, &status)?;
    if queue != former.queue {
        context.move_schedule(former.queue, queue, schedule.tenant)?;
    }
    context.audit(
        schedule.tenant,
        "schedule.put",
        target(&command.tenant, &command.id),
    )?;
    Ok(Ok(answer(Written::Updated, &schedule)))
}

/// Keeps the former definition, and drops the one that is no longer among the last [`GENERATIONS_MAX`].
fn keep_former(context: &mut Context<'_>, former: &Schedule) -> Result<(), Fault> {
    let key =
        |generation| keys::generation(former.tenant, &former.id, former.incarnation, generation);
    context.put(Family::Live, key(former.generation), former)?;
    if let Some(oldest) = (former.generation + 1).checked_sub(GENERATIONS_MAX)
        && oldest > 0
    {
        context.delete(Family::Live, key(oldest));
    }
    Ok(())
}
