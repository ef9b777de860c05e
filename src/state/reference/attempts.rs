//! What follows an attempt, and what a repeated word on it is answered.

use super::Model;
use super::leases::Ending;
use super::retries::backoff;
use crate::command::leases::{ReportAction, ReportItem};
use crate::command::outcome::{LostReason, ReportResult};
use crate::ids::WorkerId;
use crate::model::execution::{AttemptOutcome, Execution, ExecutionState, FinalReason};
use crate::model::lease::Lease;
use crate::time::Millis;

/// What follows the end of a lease.
pub(super) enum Next {
    Final(ExecutionState, FinalReason),
    Again(ExecutionState, Millis),
}

/// The word for a stale call on an attempt that ended so.
pub(super) fn lost(outcome: AttemptOutcome) -> ReportResult {
    let reason = match outcome {
        AttemptOutcome::Succeeded => LostReason::Succeeded,
        AttemptOutcome::Failed => LostReason::Failed,
        AttemptOutcome::Released => LostReason::Released,
        AttemptOutcome::AttemptTimeout => LostReason::AttemptTimeout,
        AttemptOutcome::TotalTimeout => LostReason::TotalTimeout,
        AttemptOutcome::Cancelled => LostReason::Cancelled,
        AttemptOutcome::Revoked => LostReason::Revoked,
        AttemptOutcome::Undelivered
        | AttemptOutcome::LeaseExpired
        | AttemptOutcome::StartUnconfirmed => LostReason::LeaseExpired,
    };
    ReportResult::LeaseLost { reason }
}

impl Model {
    /// Semantics, sections 5 and 6: what follows an attempt.
    pub(super) fn next(&self, row: &Execution, ending: &Ending) -> Next {
        use AttemptOutcome as Did;
        let retry = &row.template.retry;
        let dead = |reason| Next::Final(ExecutionState::DeadLettered, reason);
        let cancelled = Next::Final(ExecutionState::Cancelled, FinalReason::CancelRequested);
        let gave_back = matches!(ending.outcome, Did::Released | Did::Undelivered);
        let total = row.template.timeouts.total.zip(row.started_at);
        let is_over = total.is_some_and(|(total, from)| from.plus(total) <= self.now);
        match ending.outcome {
            Did::Succeeded => {
                return Next::Final(ExecutionState::Succeeded, FinalReason::Completed);
            }
            Did::Cancelled => return cancelled,
            _ if row.cancel.is_some() => return cancelled,
            Did::TotalTimeout => return dead(FinalReason::TotalTimeout),
            Did::Failed if !ending.retryable => return dead(FinalReason::NonRetryable),
            _ if gave_back && row.releases <= 100 => {
                return if is_over {
                    dead(FinalReason::TotalTimeout)
                } else {
                    Next::Again(ExecutionState::Waiting, ending.delay)
                };
            }
            _ => {}
        }
        let was_lost = matches!(
            ending.outcome,
            Did::LeaseExpired | Did::StartUnconfirmed | Did::Revoked
        );
        if row.attempts_started >= retry.max_attempts {
            return dead(FinalReason::AttemptsExhausted);
        }
        if was_lost && row.lease_losses_in_row >= retry.max_lease_losses {
            return dead(FinalReason::Poison);
        }
        let delay = match ending.retry_in {
            Some(own) => own.min(retry.max_backoff),
            None => backoff(retry, row.attempts_started, ending.draw),
        };
        if let (Some(max), Some(from)) = (retry.max_elapsed, row.started_at)
            && self.now.plus(delay) > from.plus(max)
        {
            return dead(FinalReason::MaxElapsed);
        }
        if is_over {
            return dead(FinalReason::TotalTimeout);
        }
        Next::Again(ExecutionState::BackingOff, delay)
    }
}

/// Counts an ended lease into its execution.
pub(super) fn settle(row: &mut Execution, lease: &Lease, outcome: AttemptOutcome) {
    use AttemptOutcome as Did;
    if outcome != Did::Undelivered && row.started_at.is_none() {
        row.started_at = Some(lease.granted_at);
    }
    let gave_back = matches!(outcome, Did::Released | Did::Undelivered);
    row.releases += u32::from(gave_back);
    if !gave_back || row.releases > 100 {
        row.attempts_started = lease.attempt;
    }
    match outcome {
        Did::LeaseExpired | Did::StartUnconfirmed | Did::Revoked => {
            row.lease_losses += 1;
            row.lease_losses_in_row += 1;
        }
        Did::Failed | Did::Released => row.lease_losses_in_row = 0,
        _ => {}
    }
    if !lease.progress.is_empty() {
        row.progress.clone_from(&lease.progress);
    }
}

/// The answer to a repeated word on an attempt that is kept; `None` for one that is not.
pub(super) fn repeat(
    row: &Execution,
    reason: Option<FinalReason>,
    worker: &WorkerId,
    item: &ReportItem,
) -> Option<ReportResult> {
    let place = row.attempts.iter().position(|attempt| {
        attempt.attempt == item.lease.attempt
            && attempt.fencing_token == item.lease.fencing_token
            && attempt.worker == *worker
    })?;
    let attempt = &row.attempts[place];
    let said = match item.action {
        ReportAction::Complete { .. } => AttemptOutcome::Succeeded,
        ReportAction::Fail { .. } => AttemptOutcome::Failed,
        ReportAction::Release { .. } => AttemptOutcome::Released,
        ReportAction::Renew { .. } => return Some(lost(attempt.outcome)),
    };
    if said != attempt.outcome {
        return Some(lost(attempt.outcome));
    }
    let is_last = place == row.attempts.len() - 1;
    let backs_off = is_last && row.state == ExecutionState::BackingOff;
    let (state, next_attempt_at) = match attempt.delay {
        None => (row.state, None),
        Some(Millis::ZERO) => (ExecutionState::Ready, None),
        Some(delay) => {
            let state = if said == AttemptOutcome::Released && !backs_off {
                ExecutionState::Waiting
            } else {
                ExecutionState::BackingOff
            };
            (state, Some(attempt.ended_at.plus(delay)))
        }
    };
    Some(ReportResult::Ok {
        replayed: true,
        state,
        expires_in: None,
        cancel_requested: row.cancel.is_some(),
        next_attempt_at,
        final_reason: reason.filter(|_| attempt.delay.is_none()),
    })
}
