//! Granting leases.
//!
//! Callers: [`crate::state::apply`]. Invariants:
//! 1. An execution has at most one live lease, whatever a leader proposes.
//! 2. The token of a lease is the entry's, and larger than that of any earlier lease of the
//!    execution: one entry grants an execution once.
//! 3. Write budget of a grant: the lease's row and the place in the ready line. The execution's row
//!    is not rewritten, except to let go of a deadline that was armed for its time in the line
//!    (`timeouts.start`, or `timeouts.total` after a retry): its due entry and its row are two keys
//!    more.

use crate::command::leases::{GrantItem, GrantLeases};
use crate::command::outcome::{Effect, GrantRefusal, GrantResult, Granted, Outcome};
use crate::fault::Fault;
use crate::model::execution::{Execution, ExecutionState};
use crate::model::lease::Lease;
use crate::state::apply::Verdict;
use crate::state::context::{Context, Counted};
use crate::state::limits;
use crate::store::due::DueKind;
use crate::store::{Family, keys};

/// Grants each item that still fits.
pub(super) fn grant(context: &mut Context<'_>, command: &GrantLeases) -> Verdict {
    let mut results = Vec::with_capacity(command.items.len());
    for item in &command.items {
        results.push(match grant_one(context, command, item)? {
            Ok(granted) => GrantResult::Granted(granted),
            Err(why) => GrantResult::Refused {
                tenant: item.tenant,
                execution: item.execution.clone(),
                why,
            },
        });
    }
    Ok(Ok(Outcome::Granted(results)))
}

fn grant_one(
    context: &mut Context<'_>,
    command: &GrantLeases,
    item: &GrantItem,
) -> Result<Result<Box<Granted>, GrantRefusal>, Fault> {
    if context.state.lease(item.tenant, &item.execution).is_some() {
        return Ok(Err(GrantRefusal::NotReady));
    }
    let row = keys::execution(item.tenant, &item.execution);
    let Some(mut execution) = context.get::<Execution>(Family::Live, &row)? else {
        return Ok(Err(GrantRefusal::NotReady));
    };
    if let Err(why) = fits(context, item, &execution) {
        return Ok(Err(why));
    }
    let spending = match limits::admit(context, &execution) {
        Ok(spending) => spending,
        Err(why) => {
            if why == GrantRefusal::KeyFull {
                context.park_ready(&mut execution)?;
                context.put(Family::Live, row, &execution)?;
            }
            return Ok(Err(why));
        }
    };
    limits::spend(context, &execution, spending);
    context.withdraw(&execution, true)?;
    context.count(execution.queue, execution.tenant, Counted::Leased, 1)?;
    if let Some(key) = execution.due_key.take() {
        let id = execution.id.as_str();
        context.disarm(execution.tenant, DueKind::StartDeadline, id, key);
        context.put(Family::Live, row, &execution)?;
    }
    let lease = lease_for(context, command, &execution);
    let row = keys::lease(lease.tenant, &lease.execution);
    context.put(Family::Live, row, &lease)?;
    context.effects.push(Effect::WatchLease {
        tenant: lease.tenant,
        execution: lease.execution.clone(),
        fencing_token: lease.fencing_token,
        ends_at: context.state.lease_ends_at(&lease),
    });
    context.state.insert_lease(lease.clone());
    Ok(Ok(Box::new(Granted { lease, execution })))
}

/// Whether the execution is where the leader believes it to be.
fn fits(
    context: &Context<'_>,
    item: &GrantItem,
    execution: &Execution,
) -> Result<(), GrantRefusal> {
    if execution.state != ExecutionState::Ready || execution.queue != item.queue {
        return Err(GrantRefusal::NotReady);
    }
    if execution.parked {
        return Err(GrantRefusal::KeyFull);
    }
    // Its deadline has come: the entry that ends it is on its way.
    if execution.due_key.is_some_and(|key| key.at <= context.now) {
        return Err(GrantRefusal::NotReady);
    }
    let last = execution.attempts.last();
    if last.is_some_and(|attempt| attempt.fencing_token >= context.token) {
        return Err(GrantRefusal::NotReady);
    }
    Ok(())
}

fn lease_for(context: &Context<'_>, command: &GrantLeases, execution: &Execution) -> Lease {
    let now = context.now;
    let timeouts = &execution.template.timeouts;
    let started_at = execution.started_at.unwrap_or(now);
    Lease {
        tenant: execution.tenant,
        execution: execution.id.clone(),
        queue: execution.queue,
        attempt: execution.attempts_started.saturating_add(1),
        fencing_token: context.token,
        worker: command.worker.clone(),
        request_id: command.request_id.clone(),
        concurrency_key: execution.template.concurrency_key.clone(),
        granted_at: now,
        duration: command.duration,
        deadline_at: now.plus(command.duration),
        attempt_deadline_at: timeouts.attempt.map(|d| now.plus(d)),
        total_deadline_at: timeouts.total.map(|d| started_at.plus(d)),
        confirm_by_at: command.start_confirmation.map(|d| now.plus(d)),
        cancel_requested: false,
        progress: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
