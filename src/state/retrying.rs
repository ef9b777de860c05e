//! What follows the end of an attempt: a final state, or another attempt and when.
//!
//! Purpose: the one table of semantics §5.6–5.9 and §6. Callers: [`crate::state::lease_end`]. Pure:
//! rows in, decision out. Invariant: the first bound that is reached decides, in the order
//! attempts, lease losses, elapsed time, total time; a request to cancel and a success go before
//! them all.

use crate::model::execution::{
    AttemptOutcome, Execution, ExecutionState, FREE_RELEASES_MAX, FinalReason,
};
use crate::model::lease::Lease;
use crate::time::{Millis, Timestamp};

/// What a lease's end brings for the retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    /// The worker's word, or its error's type, forbids another attempt.
    pub(super) retryable: bool,
    /// The worker's own delay after a failure.
    pub(super) retry_in: Option<Millis>,
    /// The worker's own delay after a release.
    pub(super) delay: Millis,
    /// Uniform draw for jitter.
    pub(super) draw: u32,
}

impl Wish {
    /// No wish but the policy's.
    pub(super) const fn policy(draw: u32) -> Self {
        Self {
            retryable: true,
            retry_in: None,
            delay: Millis::ZERO,
            draw,
        }
    }
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing.
    Final(ExecutionState, FinalReason),
    /// It may be leased again at once.
    Ready,
    /// It may be leased again after a delay.
    Later {
        /// Backing off after a failure or loss, waiting after a release.
        state: ExecutionState,
        /// How long.
        delay: Millis,
    },
}

impl Next {
    /// The delay before the next attempt; `None` when there is none.
    pub(super) const fn delay(self) -> Option<Millis> {
        match self {
            Self::Final(..) => None,
            Self::Ready => Some(Millis::ZERO),
            Self::Later { delay, .. } => Some(delay),
        }
    }

    const fn after(state: ExecutionState, delay: Millis) -> Self {
        if delay.0 == 0 {
            Self::Ready
        } else {
            Self::Later { state, delay }
        }
    }
}

/// Whether the lease was lost: it ended without a word of its worker, or was taken away.
pub(super) const fn is_loss(outcome: AttemptOutcome) -> bool {
    matches!(
        outcome,
        AttemptOutcome::LeaseExpired | AttemptOutcome::StartUnconfirmed | AttemptOutcome::Revoked
    )
}

const fn is_giving_back(outcome: AttemptOutcome) -> bool {
    matches!(
        outcome,
        AttemptOutcome::Released | AttemptOutcome::Undelivered
    )
}

/// Counts a lease that ends with `outcome` into its execution: attempts, losses, releases, first
/// start, progress.
///
/// A lease given back spends no attempt while such ones are free. A start that nobody heard of is
/// none.
pub(super) fn settle(execution: &mut Execution, lease: &Lease, outcome: AttemptOutcome) {
    if outcome != AttemptOutcome::Undelivered {
        execution.started_at.get_or_insert(lease.granted_at);
    }
    if is_giving_back(outcome) {
        execution.releases = execution.releases.saturating_add(1);
    }
    if !is_free(execution, outcome) {
        execution.attempts_started = lease.attempt;
    }
    if is_loss(outcome) {
        execution.lease_losses = execution.lease_losses.saturating_add(1);
        execution.lease_losses_in_row = execution.lease_losses_in_row.saturating_add(1);
    } else if matches!(outcome, AttemptOutcome::Failed | AttemptOutcome::Released) {
        execution.lease_losses_in_row = 0;
    }
    if !lease.progress.is_empty() {
        execution.progress.clone_from(&lease.progress);
    }
}

/// Whether the end spends no attempt (the release itself is counted already).
fn is_free(execution: &Execution, outcome: AttemptOutcome) -> bool {
    is_giving_back(outcome) && execution.releases <= FREE_RELEASES_MAX
}

/// What follows an attempt that ended with `outcome` at log time `now`; the execution is settled.
pub(super) fn next(
    execution: &Execution,
    outcome: AttemptOutcome,
    wish: Wish,
    now: Timestamp,
) -> Next {
    use AttemptOutcome as Outcome;
    match outcome {
        Outcome::Succeeded => {
            return Next::Final(ExecutionState::Succeeded, FinalReason::Completed);
        }
        Outcome::Cancelled => {
            return Next::Final(ExecutionState::Cancelled, FinalReason::CancelRequested);
        }
        _ if execution.cancel.is_some() => {
            return Next::Final(ExecutionState::Cancelled, FinalReason::CancelRequested);
        }
        Outcome::TotalTimeout => return dead(FinalReason::TotalTimeout),
        Outcome::Failed if !wish.retryable => return dead(FinalReason::NonRetryable),
        _ => {}
    }
    let is_over = execution.total_deadline().is_some_and(|end| end <= now);
    if is_free(execution, outcome) {
        return if is_over {
            dead(FinalReason::TotalTimeout)
        } else {
            Next::after(ExecutionState::Waiting, wish.delay)
        };
    }
    let retry = &execution.template.retry;
    if execution.attempts_started >= retry.max_attempts {
        return dead(FinalReason::AttemptsExhausted);
    }
    if is_loss(outcome) && execution.lease_losses_in_row >= retry.max_lease_losses {
        return dead(FinalReason::Poison);
    }
    let delay = match wish.retry_in {
        Some(wanted) => wanted.min(retry.max_backoff),
        None => retry.jittered_backoff(execution.attempts_started, wish.draw),
    };
    let elapsed_max = retry.max_elapsed.zip(execution.started_at);
    if elapsed_max.is_some_and(|(max, from)| now.plus(delay) > from.plus(max)) {
        return dead(FinalReason::MaxElapsed);
    }
    if is_over {
        return dead(FinalReason::TotalTimeout);
    }
    Next::after(ExecutionState::BackingOff, delay)
}

const fn dead(reason: FinalReason) -> Next {
    Next::Final(ExecutionState::DeadLettered, reason)
}

#[cfg(test)]
mod tests;
