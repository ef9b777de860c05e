//! Occurrences: deciding those that are due, and firing by hand.
//!
//! Callers: `state::apply`. Write budget of [`fire`] for n executions created: 3 + 2 n (the status row, the old and the
//! new due entry; then a row and a place in a line for each), one more for each run of skips, and what
//! `executions::create` adds for large payloads and start deadlines. Counters are written once an entry.
//! Invariants:
//! 1. The entry that decides an occurrence moves the cursor past it: compared and swapped on what the leader read.
//! 2. Every nominal time that a command names ends in an execution or in a skip record.

pub(super) mod skips;
pub(super) mod steps;

use crate::command::outcome::{Outcome, Refusal, Written};
use crate::command::schedules::{FireOccurrences, TriggerSchedule};
use crate::model::execution::{Cause, OccurrenceRef};
use crate::model::policy::OverlapPolicy;
use crate::model::schedule::ScheduleState;
use crate::state::apply::Verdict;
use crate::state::context::Context;
use crate::state::executions::{self, NewExecution};
use crate::state::schedules;

/// Decides the occurrences of one schedule up to the plan's cursor.
pub(super) fn fire(context: &mut Context<'_>, command: &FireOccurrences) -> Verdict {
    let Some((schedule, mut status)) = schedules::load(context, command.tenant, &command.id)?
    else {
        return Ok(Err(Refusal::Superseded));
    };
    let read = schedules::seen(&schedule, &status);
    let sound = schedules::leads_on(&command.plan, Some(read))
        && steps::lie_between(read.cursor, &command.steps, command.plan.cursor);
    if status.state != ScheduleState::Active || command.seen != read || !sound {
        return Ok(Err(Refusal::Superseded));
    }
    schedules::disarm(context, &schedule, &mut status);
    let decided = steps::decide(context, &schedule, &mut status, &command.steps)?;
    schedules::follow(context, &schedule, &mut status, &command.plan);
    schedules::store_status(context, &schedule, &status)?;
    Ok(Ok(Outcome::Fired {
        created: decided.created,
        skipped: decided.skipped,
    }))
}

/// Creates an execution of a schedule by hand, paused or not. It counts as open for overlap, not as an occurrence.
pub(super) fn trigger(context: &mut Context<'_>, command: &TriggerSchedule) -> Verdict {
    let tenant = match context.tenant(&command.tenant) {
        Ok(tenant) => tenant,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let Some((schedule, mut status)) = schedules::load(context, tenant, &command.id)? else {
        return Ok(Err(Refusal::ScheduleNotFound));
    };
    if matches!(status.state, ScheduleState::Completed { .. }) {
        return Ok(Err(Refusal::ScheduleCompleted));
    }
    let policy = OverlapPolicy {
        policy: command.overlap.unwrap_or(schedule.spec.overlap.policy),
        ..schedule.spec.overlap
    };
    if let Some(blocker) = steps::blocker(policy, &status) {
        return Ok(Err(Refusal::Overlap { blocker }));
    }
    let mut template = schedule.spec.template.clone();
    if let Some(payload) = &command.payload {
        template.payload.clone_from(payload);
    }
    let new = NewExecution {
        tenant,
        queue: schedule.queue,
        id: None,
        occurrence: Some(OccurrenceRef {
            schedule: schedule.id.clone(),
            incarnation: schedule.incarnation,
            generation: schedule.generation,
            nominal_at: None,
        }),
        cause: Cause::Triggered,
        template,
        due_at: context.now,
        unique_key: None,
        traceparent: command.traceparent.clone(),
        fingerprint: 0,
        replay_of: None,
    };
    let execution = match executions::create(context, new)? {
        Ok(execution) => execution,
        Err(refusal) => return Ok(Err(refusal)),
    };
    status.open.push(execution.clone());
    schedules::store_status(context, &schedule, &status)?;
    let target = schedules::target(&command.tenant, &command.id);
    context.audit(tenant, "schedule.trigger", target)?;
    Ok(Ok(Outcome::Submitted {
        written: Written::Created,
        tenant,
        execution,
    }))
}

#[cfg(test)]
mod tests;
