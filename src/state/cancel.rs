//! Requests to cancel an execution.
//!
//! Callers: [`crate::state::apply`]. Invariants: log order decides between a request and a worker's
//! word; a request that is on record is not made again; a final execution stays as it is.

use crate::command::executions::{CancelExecution, CancelMode};
use crate::command::outcome::{CancelDid, Outcome, Refusal};
use crate::fault::Fault;
use crate::ids::TenantNo;
use crate::model::execution::{
    AttemptOutcome, CancelRequest, Execution, ExecutionState, FinalReason,
};
use crate::state::apply::Verdict;
use crate::state::checks;
use crate::state::context::Context;
use crate::state::finishing::{self, Final};
use crate::state::history;
use crate::state::lease_end::{self, End};
use crate::store::{Family, View, keys, value};

/// Cancels what is not leased; asks the worker of what is, or ends the lease (`mode: now`).
pub(super) fn cancel(context: &mut Context<'_>, command: &CancelExecution) -> Verdict {
    let tenant = match context.tenant(&command.tenant) {
        Ok(tenant) => tenant,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let row = keys::execution(tenant, &command.id);
    let Some(execution) = context.get::<Execution>(Family::Live, &row)? else {
        return answer_final(context, tenant, command);
    };
    if let Err(refusal) = checks::expect(command.expect, Some(execution.revision)) {
        return Ok(Err(refusal));
    }
    let is_leased = context.state.lease(tenant, &command.id).is_some();
    let did = match (is_leased, command.mode) {
        (false, _) => withdraw(context, execution)?,
        (true, CancelMode::Request) if execution.cancel.is_some() => {
            return Ok(Ok(Outcome::Cancelled(CancelDid::Requested)));
        }
        (true, CancelMode::Request) => ask(context, execution)?,
        (true, CancelMode::Now) => end_now(context, execution)?,
    };
    let target = context.execution_name(tenant, &command.id);
    context.audit(tenant, "execution.cancel", target)?;
    Ok(Ok(Outcome::Cancelled(did)))
}

fn answer_final(context: &Context<'_>, tenant: TenantNo, command: &CancelExecution) -> Verdict {
    let found = history::find_final(
        &mut |family, key| View::get(&context.txn, family, key),
        &context.state.cluster,
        context.now,
        tenant,
        &command.id,
    )?;
    let Some((_, _, done)) = found else {
        return Ok(Err(Refusal::ExecutionNotFound));
    };
    let did = CancelDid::AlreadyFinal(done.execution.state);
    Ok(Ok(Outcome::Cancelled(did)))
}

/// Puts the request on record, once.
fn record(context: &Context<'_>, execution: &mut Execution) {
    execution.revision = context.revision();
    execution.cancel.get_or_insert_with(|| CancelRequest {
        at: context.now,
        by: context.caller.actor.as_str().to_owned(),
        reason: context.caller.reason.clone(),
    });
}

/// Cancels an execution that has no lease, by the present caller's word.
///
/// # Errors
/// Any [`Fault`].
pub(super) fn withdraw(
    context: &mut Context<'_>,
    mut execution: Execution,
) -> Result<CancelDid, Fault> {
    record(context, &mut execution);
    let end = Final::plain(ExecutionState::Cancelled, FinalReason::CancelRequested);
    finishing::finish(context, execution, end)?;
    Ok(CancelDid::Cancelled)
}

fn ask(context: &mut Context<'_>, mut execution: Execution) -> Result<CancelDid, Fault> {
    record(context, &mut execution);
    let place = (execution.id.clone(), execution.tenant);
    if let Some(lease) = context.state.lease_mut(&place) {
        lease.cancel_requested = true;
        let row = value::encode(&*lease)?;
        let key = keys::lease(execution.tenant, &execution.id);
        context.txn.put(Family::Live, key, row);
    }
    let row = keys::execution(execution.tenant, &execution.id);
    context.put(Family::Live, row, &execution)?;
    Ok(CancelDid::Requested)
}

fn end_now(context: &mut Context<'_>, mut execution: Execution) -> Result<CancelDid, Fault> {
    record(context, &mut execution);
    lease_end::end(context, execution, End::plain(AttemptOutcome::Cancelled, 0))?;
    Ok(CancelDid::Cancelled)
}

#[cfg(test)]
mod tests;
