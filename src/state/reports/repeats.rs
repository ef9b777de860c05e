//! Words on leases that are over: repeats of an accepted one, and stale ones.
//!
//! Callers: [`super::report`]. Invariant: what is answered comes from the recorded attempt, so a
//! repeat gets the first answer however often it comes. Limits: the attempts kept with an execution
//! ([`crate::model::execution`]), and for a final execution with a minted id one that ended within
//! [`LOOK_BACK`]; what is older is `unknown`.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use super::lost_by;
use crate::command::leases::{ReportAction, ReportItem};
use crate::command::outcome::{LostReason, ReportResult};
use crate::fault::Fault;
use crate::ids::{ExecutionId, TenantNo, WorkerId};
use crate::model::execution::{
    Attempt, AttemptOutcome, Execution, ExecutionState, FinalExecution, FinalReason,
};
use crate::state::context::Context;
use crate::state::history;
use crate::store::keys::RetentionClass;
use crate::store::{Direction, Family, KeyRange, View, keys};
use crate::time::Millis;

/// How far back ended executions are looked for. A worker repeats a report within minutes.
const LOOK_BACK: Millis = Millis::days(1);
/// Tenants looked through for one chosen id.
const NAMESAKES_MAX: usize = 16;

/// Answers words on leases that are over; made once a command.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// Retention classes that hold rows, found when first needed.
    classes: Option<BTreeSet<RetentionClass>>,
}

/// The execution that a stale word names, as it is now.
struct Past {
    execution: Execution,
    reason: Option<FinalReason>,
}

impl Repeats {
    /// The answer to `item`.
    ///
    /// # Errors
    /// Any [`Fault`] of reading.
    pub(super) fn answer(
        &mut self,
        context: &Context<'_>,
        worker: &WorkerId,
        item: &ReportItem,
    ) -> Result<ReportResult, Fault> {
        let id = &item.lease.execution;
        // A chosen id is looked up first: it may look like a minted one of another tenant.
        for tenant in namesakes(context, id)? {
            if let Some(answer) = self.answer_in(context, tenant, worker, item)? {
                return Ok(answer);
            }
        }
        if let Some(tenant) = id.minted_tenant()
            && let Some(answer) = self.answer_in(context, tenant, worker, item)?
        {
            return Ok(answer);
        }
        Ok(ReportResult::LeaseLost {
            reason: LostReason::Unknown,
        })
    }

    fn answer_in(
        &mut self,
        context: &Context<'_>,
        tenant: TenantNo,
        worker: &WorkerId,
        item: &ReportItem,
    ) -> Result<Option<ReportResult>, Fault> {
        let Some(past) = self.find(context, tenant, &item.lease.execution)? else {
            return Ok(None);
        };
        let named = &item.lease;
        let is_meant = |a: &Attempt| {
            a.fencing_token == named.fencing_token
                && a.attempt == named.attempt
                && a.worker == *worker
        };
        let attempts = &past.execution.attempts;
        let Some(at) = attempts.iter().position(is_meant) else {
            return Ok(None);
        };
        let is_last = at + 1 == attempts.len();
        let attempt = attempts.get(at);
        Ok(attempt.map(|attempt| judge(&past, attempt, is_last, &item.action)))
    }

    fn find(
        &mut self,
        context: &Context<'_>,
        tenant: TenantNo,
        id: &ExecutionId,
    ) -> Result<Option<Past>, Fault> {
        let row = keys::execution(tenant, id);
        if let Some(execution) = context.get(Family::Live, &row)? {
            let reason = None;
            return Ok(Some(Past { execution, reason }));
        }
        let classes = self
            .classes
            .get_or_insert_with(|| history::classes_in_use(context.state));
        let done = history::find_recent(
            &mut |family, key| View::get(&context.txn, family, key),
            &context.state.cluster,
            history::Recent {
                classes,
                now: context.now,
                back: LOOK_BACK,
            },
            tenant,
            id,
        )?;
        let past = |done: FinalExecution| Past {
            execution: done.execution,
            reason: Some(done.reason),
        };
        Ok(done.map(past))
    }
}

/// Tenants in which somebody chose this id.
fn namesakes(context: &Context<'_>, id: &ExecutionId) -> Result<Vec<TenantNo>, Fault> {
    let prefix = keys::pointer_prefix(id);
    let mut found = Vec::new();
    context.txn.scan(
        Family::Keys,
        &KeyRange::prefix(&prefix),
        Direction::Forward,
        &mut |key, _| {
            let number = key.get(prefix.len()..).and_then(|b| b.try_into().ok());
            found.extend(number.map(|bytes| TenantNo(u32::from_be_bytes(bytes))));
            if found.len() < NAMESAKES_MAX {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        },
    )?;
    Ok(found)
}

fn judge(past: &Past, attempt: &Attempt, is_last: bool, action: &ReportAction) -> ReportResult {
    let is_repeat = matches!(
        (action, attempt.outcome),
        (ReportAction::Complete { .. }, AttemptOutcome::Succeeded)
            | (ReportAction::Fail { .. }, AttemptOutcome::Failed)
            | (ReportAction::Release { .. }, AttemptOutcome::Released)
    );
    if !is_repeat {
        let reason = lost_by(attempt.outcome);
        return ReportResult::LeaseLost { reason };
    }
    let delay = attempt.delay.filter(|delay| delay.0 > 0);
    let state = match attempt.delay {
        None => past.execution.state,
        Some(Millis::ZERO) => ExecutionState::Ready,
        // A release over the free ones backs off like a failure, which only the row itself can
        // tell.
        Some(_) if is_last && past.execution.state == ExecutionState::BackingOff => {
            ExecutionState::BackingOff
        }
        Some(_) if attempt.outcome == AttemptOutcome::Released => ExecutionState::Waiting,
        Some(_) => ExecutionState::BackingOff,
    };
    ReportResult::Ok {
        replayed: true,
        state,
        expires_in: None,
        cancel_requested: past.execution.cancel.is_some(),
        next_attempt_at: delay.map(|delay| attempt.ended_at.plus(delay)),
        final_reason: past.reason.filter(|_| attempt.delay.is_none()),
    }
}
