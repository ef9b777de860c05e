//! What workers say of their leases: renew, complete, fail, release.
//!
//! Callers: [`crate::state::apply`]. Invariants:
//! 1. A word counts only for the live lease of exactly this execution, attempt, token and worker,
//!    and only if the leader received it before the lease's effective end, whether or not anything
//!    has ended it since.
//! 2. A refused word changes nothing. A repeated one that was accepted answers as the first time.

mod repeats;

use crate::command::leases::{ReportAction, ReportItem, ReportLeases};
use crate::command::outcome::{Effect, LostReason, Outcome, ReportResult};
use crate::fault::Fault;
use crate::ids::WorkerId;
use crate::model::execution::{AttemptOutcome, ExecutionState, NOTE_MAX};
use crate::model::lease::Lease;
use crate::state::apply::Verdict;
use crate::state::context::Context;
use crate::state::lease_end::{self, After, End};
use crate::state::resident::LeaseKey;
use crate::state::retrying::Wish;
use crate::store::{Family, keys, value};
use crate::time::{Millis, Timestamp};

/// Judges each item.
pub(super) fn report(context: &mut Context<'_>, command: &ReportLeases) -> Verdict {
    let mut repeats = repeats::Repeats::default();
    let mut results = Vec::with_capacity(command.items.len());
    for item in &command.items {
        results.push(match find(context, &command.worker, item) {
            Some(live) => judge(context, &live, item)?,
            None => repeats.answer(context, &command.worker, item)?,
        });
    }
    Ok(Ok(Outcome::Reported(results)))
}

/// What judging needs of a live lease.
struct Live {
    place: LeaseKey,
    ends: (Timestamp, AttemptOutcome),
    cancel_requested: bool,
}

fn find(context: &Context<'_>, worker: &WorkerId, item: &ReportItem) -> Option<Live> {
    let named = &item.lease;
    let is_meant = |lease: &&Lease| {
        lease.fencing_token == named.fencing_token
            && lease.attempt == named.attempt
            && lease.worker == *worker
    };
    let mut live = context.state.leases_on(&named.execution);
    let lease = live.find(is_meant)?;
    Some(Live {
        place: (lease.execution.clone(), lease.tenant),
        ends: lease.first_bound(context.state.cluster.took_office_at),
        cancel_requested: lease.cancel_requested,
    })
}

/// The word of a `lease_lost` for an attempt that ended so.
const fn lost_by(outcome: AttemptOutcome) -> LostReason {
    match outcome {
        AttemptOutcome::Succeeded => LostReason::Succeeded,
        AttemptOutcome::Failed => LostReason::Failed,
        AttemptOutcome::Released => LostReason::Released,
        AttemptOutcome::Undelivered
        | AttemptOutcome::LeaseExpired
        | AttemptOutcome::StartUnconfirmed => LostReason::LeaseExpired,
        AttemptOutcome::AttemptTimeout => LostReason::AttemptTimeout,
        AttemptOutcome::TotalTimeout => LostReason::TotalTimeout,
        AttemptOutcome::Cancelled => LostReason::Cancelled,
        AttemptOutcome::Revoked => LostReason::Revoked,
    }
}

fn judge(context: &mut Context<'_>, live: &Live, item: &ReportItem) -> Result<ReportResult, Fault> {
    let (ends_at, bound) = live.ends;
    if context.caller.received_at >= ends_at {
        let reason = lost_by(bound);
        return Ok(ReportResult::LeaseLost { reason });
    }
    if let ReportAction::Renew { duration, progress } = &item.action {
        return extend(context, &live.place, *duration, progress.as_deref());
    }
    let (id, tenant) = &live.place;
    let execution = lease_end::leased_row(context, *tenant, id)?;
    let end = end_of(&item.action, &execution.template.retry.non_retryable);
    let after = lease_end::end(context, execution, end)?;
    Ok(accepted(after, live.cancel_requested))
}

/// Moves the deadline to `received_at` plus the length asked for (an earlier deadline only when a
/// shorter length is asked for), confirms the start, keeps the progress.
fn extend(
    context: &mut Context<'_>,
    place: &LeaseKey,
    duration: Option<Millis>,
    progress: Option<&[u8]>,
) -> Result<ReportResult, Fault> {
    let received_at = context.caller.received_at;
    let took_office_at = context.state.cluster.took_office_at;
    let Some(lease) = context.state.lease_mut(place) else {
        return Err(Fault::invariant(format!("{} has no lease", place.0)));
    };
    let duration = duration.unwrap_or(lease.duration);
    let deadline_at = received_at.plus(duration);
    lease.deadline_at = if duration < lease.duration {
        deadline_at
    } else {
        deadline_at.max(lease.deadline_at)
    };
    lease.duration = duration;
    lease.confirm_by_at = None;
    if let Some(progress) = progress.filter(|p| p.len() <= NOTE_MAX) {
        lease.progress = progress.to_vec();
    }
    let ends_at = lease.ends_at(took_office_at);
    let watch = Effect::WatchLease {
        tenant: lease.tenant,
        execution: lease.execution.clone(),
        fencing_token: lease.fencing_token,
        ends_at,
    };
    let answer = ReportResult::Ok {
        replayed: false,
        state: ExecutionState::Leased,
        expires_in: Some(ends_at.since(received_at)),
        cancel_requested: lease.cancel_requested,
        next_attempt_at: None,
        final_reason: None,
    };
    let row = value::encode(&*lease)?;
    context
        .txn
        .put(Family::Live, keys::lease(place.1, &place.0), row);
    context.effects.push(watch);
    Ok(answer)
}

/// How the lease ends by a worker's word; `fatal` are the error types that are never retried.
fn end_of(action: &ReportAction, fatal: &[String]) -> End {
    match action {
        ReportAction::Fail {
            error,
            error_type,
            retryable,
            retry_in,
            draw,
            truncated,
        } => {
            let is_fatal = error_type.as_ref().is_some_and(|t| fatal.contains(t));
            End {
                error: error.clone(),
                truncated: *truncated,
                wish: Wish {
                    retryable: *retryable && !is_fatal,
                    retry_in: *retry_in,
                    ..Wish::policy(*draw)
                },
                ..End::plain(AttemptOutcome::Failed, *draw)
            }
        }
        ReportAction::Release {
            delay,
            reason,
            draw,
        } => End {
            error: lease_end::noted(reason.as_deref()),
            wish: Wish {
                delay: *delay,
                ..Wish::policy(*draw)
            },
            ..End::plain(AttemptOutcome::Released, *draw)
        },
        ReportAction::Complete { result, truncated } => End {
            result: result.clone(),
            truncated: *truncated,
            ..End::plain(AttemptOutcome::Succeeded, 0)
        },
        ReportAction::Renew { .. } => End::plain(AttemptOutcome::Released, 0),
    }
}

const fn accepted(after: After, cancel_requested: bool) -> ReportResult {
    ReportResult::Ok {
        replayed: false,
        state: after.state,
        expires_in: None,
        cancel_requested,
        next_attempt_at: after.next_attempt_at,
        final_reason: after.reason,
    }
}

#[cfg(test)]
mod tests;
