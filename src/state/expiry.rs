//! Leases that end without a word of their worker: overtaken by log time, or taken away.
//!
//! Callers: [`crate::state::apply`]. Invariant: an item that is not the live lease (ended, or
//! granted again) or whose lease was renewed meanwhile is passed over.

use crate::command::leases::{ExpireItem, ExpireLeases, RevokeCause, RevokeLeases};
use crate::command::outcome::Outcome;
use crate::fault::Fault;
use crate::model::execution::AttemptOutcome;
use crate::model::lease::Lease;
use crate::state::apply::Verdict;
use crate::state::context::Context;
use crate::state::lease_end::{self, End};

/// Ends each lease whose first bound has come; the bound says how its attempt ends.
pub(super) fn expire(context: &mut Context<'_>, command: &ExpireLeases) -> Verdict {
    let mut done = 0_u32;
    for item in &command.items {
        let Some(lease) = live(context, item) else {
            continue;
        };
        let (ends_at, outcome) = lease.first_bound(context.state.cluster.took_office_at);
        if ends_at <= context.now {
            end(context, item, End::plain(outcome, item.draw))?;
            done = done.saturating_add(1);
        }
    }
    Ok(Ok(Outcome::Processed { done }))
}

/// Ends each lease that is still live. An operator's reason is kept with the attempt.
pub(super) fn revoke(context: &mut Context<'_>, command: &RevokeLeases) -> Verdict {
    let outcome = match command.cause {
        RevokeCause::Operator => AttemptOutcome::Revoked,
        RevokeCause::Undelivered => AttemptOutcome::Undelivered,
        RevokeCause::SignOff => AttemptOutcome::Released,
    };
    let mut done = 0_u32;
    for item in &command.items {
        if live(context, item).is_none() {
            continue;
        }
        let mut how = End::plain(outcome, item.draw);
        if command.cause == RevokeCause::Operator {
            how.error = lease_end::noted(context.caller.reason.as_deref());
            audit(context, item)?;
        }
        end(context, item, how)?;
        done = done.saturating_add(1);
    }
    Ok(Ok(Outcome::Processed { done }))
}

fn live<'a>(context: &'a Context<'_>, item: &ExpireItem) -> Option<&'a Lease> {
    let named = &item.lease;
    let lease = context.state.lease(item.tenant, &named.execution)?;
    let is_meant = lease.fencing_token == named.fencing_token && lease.attempt == named.attempt;
    is_meant.then_some(lease)
}

fn end(context: &mut Context<'_>, item: &ExpireItem, how: End) -> Result<(), Fault> {
    let execution = lease_end::leased_row(context, item.tenant, &item.lease.execution)?;
    lease_end::end(context, execution, how)?;
    Ok(())
}

fn audit(context: &mut Context<'_>, item: &ExpireItem) -> Result<(), Fault> {
    let target = context.execution_name(item.tenant, &item.lease.execution);
    context.audit(item.tenant, "lease.revoke", target)
}

#[cfg(test)]
mod tests;
