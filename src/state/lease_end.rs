//! The end of a lease, whatever ends it.
//!
//! Purpose: the one way out of a lease: its row and memory go, the attempt is recorded, its slots
//! are free, and the execution goes on (final, backing off, waiting, or ready again). Callers:
//! `state::{reports, expiry, cancel}`. Invariants:
//! 1. A slot is free in the entry that ends its lease, and a parked execution of the key takes its
//!    place there.
//! 2. Write budget: the lease's row and the execution's row, and where the execution goes next
//!    (history, due index or line). What a concurrency key with parked work, a schedule, a chosen
//!    id, a unique key or a stored body add is said in [`crate::state::finishing`].

use crate::command::outcome::Effect;
use crate::fault::Fault;
use crate::ids::{ExecutionId, TenantNo};
use crate::model::execution::{
    ATTEMPTS_KEPT_MAX, Attempt, AttemptOutcome, Execution, ExecutionState, FinalReason, NOTE_MAX,
};
use crate::model::lease::Lease;
use crate::state::context::{Context, Counted};
use crate::state::finishing::{self, Final};
use crate::state::parking;
use crate::state::retrying::{self, Next, Wish};
use crate::store::due::DueKind;
use crate::store::{Family, keys};
use crate::time::{Millis, Timestamp};

/// How a lease ends.
#[derive(Debug)]
pub(super) struct End {
    /// What becomes of the attempt.
    pub(super) outcome: AttemptOutcome,
    /// JSON text of an error or a release's reason; empty: none.
    pub(super) error: Vec<u8>,
    /// JSON text of a result; empty: none.
    pub(super) result: Vec<u8>,
    /// Something of these was cut.
    pub(super) truncated: bool,
    /// What it brings for the retry.
    pub(super) wish: Wish,
}

impl End {
    /// Without error, result or wish.
    pub(super) const fn plain(outcome: AttemptOutcome, draw: u32) -> Self {
        Self {
            outcome,
            error: Vec::new(),
            result: Vec::new(),
            truncated: false,
            wish: Wish::policy(draw),
        }
    }
}

/// A person's or a worker's words, as the error of an attempt.
pub(super) fn noted(words: Option<&str>) -> Vec<u8> {
    // A text always encodes.
    words
        .and_then(|text| serde_json::to_vec(text).ok())
        .unwrap_or_default()
}

/// Where the execution is after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct After {
    /// Its state.
    pub(super) state: ExecutionState,
    /// End of backoff or delay.
    pub(super) next_attempt_at: Option<Timestamp>,
    /// Why it is final.
    pub(super) reason: Option<FinalReason>,
}

/// The row of an execution that has a live lease.
///
/// # Errors
/// Any [`Fault`]; [`Fault::Invariant`] when there is no row: a lease never outlives its execution.
pub(super) fn leased_row(
    context: &Context<'_>,
    tenant: TenantNo,
    id: &ExecutionId,
) -> Result<Execution, Fault> {
    context
        .get(Family::Live, &keys::execution(tenant, id))?
        .ok_or_else(|| Fault::invariant(format!("leased execution {id} has no row")))
}

/// Ends the live lease of `execution` and lets it go on.
///
/// # Errors
/// Any [`Fault`]; [`Fault::Invariant`] when it has no lease.
pub(super) fn end(
    context: &mut Context<'_>,
    mut execution: Execution,
    end: End,
) -> Result<After, Fault> {
    let tenant = execution.tenant;
    let place = (execution.id.clone(), tenant);
    let Some(lease) = context.state.remove_lease(&place) else {
        return Err(Fault::invariant(format!("{} has no lease", execution.id)));
    };
    context.delete(Family::Live, keys::lease(tenant, &lease.execution));
    context.count(lease.queue, tenant, Counted::Leased, -1)?;
    retrying::settle(&mut execution, &lease, end.outcome);
    let next = retrying::next(&execution, end.outcome, end.wish, context.now);
    let is_cut = record_attempt(context.now, &mut execution, &lease, &end, next);
    context.effects.push(Effect::ForgetLease {
        tenant,
        queue: lease.queue,
        execution: lease.execution,
        fencing_token: lease.fencing_token,
        worker: lease.worker,
    });
    execution.state = ExecutionState::Leased;
    let after = match next {
        Next::Final(state, reason) => {
            let done = Final {
                state,
                reason,
                result: end.result,
                truncated: end.truncated || is_cut,
            };
            finishing::finish(context, execution, done)?;
            After {
                state,
                next_attempt_at: None,
                reason: Some(reason),
            }
        }
        Next::Ready => {
            // It takes the slot that it frees: nothing parked is promoted.
            return offer_again(context, execution);
        }
        Next::Later { state, delay } => wait(context, execution, state, delay)?,
    };
    if let Some(name) = &lease.concurrency_key {
        parking::fill_slot(context, tenant, name)?;
    }
    Ok(after)
}

/// Appends the attempt; answers whether its error was dropped for its size.
fn record_attempt(
    now: Timestamp,
    execution: &mut Execution,
    lease: &Lease,
    end: &End,
    next: Next,
) -> bool {
    let is_cut = end.error.len() > NOTE_MAX;
    if execution.attempts.len() >= ATTEMPTS_KEPT_MAX {
        // The first one stays; the oldest of the others makes room.
        execution.attempts.remove(1);
    }
    execution.attempts.push(Attempt {
        attempt: lease.attempt,
        fencing_token: lease.fencing_token,
        worker: lease.worker.clone(),
        leased_at: lease.granted_at,
        ended_at: now,
        outcome: end.outcome,
        error: if is_cut {
            Vec::new()
        } else {
            end.error.clone()
        },
        delay: next.delay(),
    });
    is_cut
}

fn offer_again(context: &mut Context<'_>, mut execution: Execution) -> Result<After, Fault> {
    let line_at = execution.line_at.unwrap_or(execution.due_at);
    context.offer(&mut execution, line_at)?;
    let row = keys::execution(execution.tenant, &execution.id);
    context.put(Family::Live, row, &execution)?;
    Ok(After {
        state: ExecutionState::Ready,
        next_attempt_at: None,
        reason: None,
    })
}

/// Arms the next event: the end of the delay, or of all time that it has, if that comes first.
fn wait(
    context: &mut Context<'_>,
    mut execution: Execution,
    state: ExecutionState,
    delay: Millis,
) -> Result<After, Fault> {
    let at = context.now.plus(delay);
    let due_at = execution.total_deadline().map_or(at, |end| end.min(at));
    let tenant = execution.tenant;
    let key = context.arm(tenant, DueKind::Execution, execution.id.as_str(), due_at);
    execution.state = state;
    execution.state_since = context.now;
    execution.next_attempt_at = Some(at);
    execution.line_at = None;
    execution.parked = false;
    execution.due_key = Some(key);
    let counted = match state {
        ExecutionState::BackingOff => Counted::BackingOff,
        _ => Counted::Waiting,
    };
    context.count(execution.queue, tenant, counted, 1)?;
    let row = keys::execution(tenant, &execution.id);
    context.put(Family::Live, row, &execution)?;
    Ok(After {
        state,
        next_attempt_at: Some(at),
        reason: None,
    })
}
