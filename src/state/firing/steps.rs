//! Carrying out decisions about nominal times: creating, or skipping with a reason.

use super::skips;
use crate::command::outcome::Refusal;
use crate::command::schedules::{STEPS_MAX, Step};
use crate::fault::Fault;
use crate::ids::ExecutionId;
use crate::model::execution::{Cause, OccurrenceRef};
use crate::model::policy::{Overlap, OverlapPolicy};
use crate::model::schedule::{Planned, Schedule, ScheduleStatus, SkipReason, SkipRecord};
use crate::state::context::Context;
use crate::state::executions::{self, NewExecution};
use crate::state::schedules;
use crate::time::Timestamp;

/// What a list of steps came to.
#[derive(Debug, Default)]
pub(in crate::state) struct Decided {
    /// Executions created, oldest first.
    pub(in crate::state) created: Vec<ExecutionId>,
    /// Nominal times skipped.
    pub(in crate::state) skipped: u64,
}

/// Whether the occurrences to create are later than `after`, not later than `upto`, and in order without repeats:
/// what keeps an occurrence from being created twice. At most [`STEPS_MAX`] steps.
pub(in crate::state) fn lie_between(after: Timestamp, steps: &[Step], upto: Timestamp) -> bool {
    let mut last = after;
    let ordered = steps.iter().all(|step| match step {
        Step::Skip(record) => record.from <= record.to,
        Step::Create { planned, .. } => {
            let later = planned.nominal_at > last;
            last = planned.nominal_at;
            later
        }
    });
    ordered && last <= upto.max(after) && steps.len() <= STEPS_MAX
}

/// Carries out `steps` in order, changing `status` (open, counts, skips); the caller writes it. Occurrences beyond
/// `max_occurrences` are none of the schedule's: the rest is passed over.
///
/// # Errors
/// Any [`Fault`].
pub(in crate::state) fn decide(
    context: &mut Context<'_>,
    schedule: &Schedule,
    status: &mut ScheduleStatus,
    steps: &[Step],
) -> Result<Decided, Fault> {
    let mut decided = Decided::default();
    for step in steps {
        if schedules::is_used_up(schedule, status) {
            break;
        }
        let skipped = match step {
            Step::Skip(record) => record.clone(),
            Step::Create { planned, cause } => {
                match create(context, schedule, status, *planned, *cause)? {
                    Ok(execution) => {
                        decided.created.push(execution);
                        continue;
                    }
                    Err(record) => record,
                }
            }
        };
        decided.skipped = decided.skipped.saturating_add(skipped.count);
        skips::record(context, schedule, status, &skipped)?;
    }
    Ok(decided)
}

/// The open execution that forbids one more: any under `skip`, the oldest when `max_open` are open.
pub(in crate::state) fn blocker(
    policy: OverlapPolicy,
    status: &ScheduleStatus,
) -> Option<ExecutionId> {
    let most = match policy.policy {
        Overlap::Allow => usize::try_from(policy.max_open)
            .unwrap_or(usize::MAX)
            .max(1),
        Overlap::Skip => 1,
    };
    status
        .open
        .first()
        .filter(|_| status.open.len() >= most)
        .cloned()
}

fn create(
    context: &mut Context<'_>,
    schedule: &Schedule,
    status: &mut ScheduleStatus,
    planned: Planned,
    cause: Cause,
) -> Result<Result<ExecutionId, SkipRecord>, Fault> {
    let skip = |reason, blocker| SkipRecord {
        from: planned.nominal_at,
        to: planned.nominal_at,
        count: 1,
        at_least: false,
        reason,
        blocker,
        local: None,
    };
    if let Some(blocker) = blocker(schedule.spec.overlap, status) {
        return Ok(Err(skip(SkipReason::Overlap, Some(blocker))));
    }
    let new = NewExecution {
        tenant: schedule.tenant,
        queue: schedule.queue,
        id: None,
        occurrence: Some(OccurrenceRef {
            schedule: schedule.id.clone(),
            incarnation: schedule.incarnation,
            generation: schedule.generation,
            nominal_at: Some(planned.nominal_at),
        }),
        cause,
        template: schedule.spec.template.clone(),
        due_at: planned.due_at,
        unique_key: None,
        traceparent: None,
        fingerprint: 0,
        replay_of: None,
    };
    match executions::create(context, new)? {
        Ok(execution) => {
            status.open.push(execution.clone());
            status.created_count = status.created_count.saturating_add(1);
            status.last_skip = None;
            Ok(Ok(execution))
        }
        Err(Refusal::QuotaExceeded { .. } | Refusal::QueueNotAllowed) => {
            Ok(Err(skip(SkipReason::Quota, None)))
        }
        Err(refusal) => Err(Fault::invariant(format!(
            "an occurrence of {} cannot be created: {refusal:?}",
            schedule.id
        ))),
    }
}
