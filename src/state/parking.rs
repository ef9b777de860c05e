//! Parked lines: what waits for a slot of its concurrency key.
//!
//! Callers: `state::admin` (a limit rises) and the commands that end a lease. Invariants:
//! 1. Promoting too many is harmless (a grant that finds the key full parks it again); promoting none that may run while
//!    slots are free would leave work standing.
//! 2. What is held by something of its own waits there, in its ready line, and not in front of others at the key.

use std::ops::ControlFlow;

use crate::command::outcome::Effect;
use crate::fault::Fault;
use crate::ids::{ExecutionId, TenantNo};
use crate::model::execution::Execution;
use crate::state::context::Context;
use crate::state::limits;
use crate::store::{Direction, Family, KeyRange, View, keys};

impl Context<'_> {
    /// Slots of a concurrency key that no live lease uses; `u32::MAX` without a limit.
    #[must_use]
    pub fn free_slots(&self, tenant: TenantNo, key: &str) -> u32 {
        let name = (tenant, key.to_owned());
        let Some(limit) = self.state.keys.get(&name).and_then(|row| row.max_leased) else {
            return u32::MAX;
        };
        let used = self.state.key_leased.get(&name).copied().unwrap_or(0);
        limit.saturating_sub(used)
    }
}

/// Executions that are held by something of their own and pass on to their lines for the sake of one slot.
const HELD_MAX: u32 = 4;

/// Lets the first of a parked line that may run take a slot that has come free. Called when a lease of the key ends, or
/// when an execution that was offered leaves its line without one.
///
/// # Errors
/// As [`promote_heads`].
pub(super) fn fill_slot(
    context: &mut Context<'_>,
    tenant: TenantNo,
    key: &str,
) -> Result<(), Fault> {
    let wanted = context.free_slots(tenant, key).min(1);
    if !promote_heads(context, tenant, key, (wanted, wanted + HELD_MAX))? {
        // A command ends many leases, so the walk is short; the leader repeats the key's limits, which goes on with it.
        context.effects.push(Effect::ReviewAdmission);
    }
    Ok(())
}

/// Moves heads of a parked line to their ready lines, in the line's order, until `wanted` of them may run. One that is
/// held by something of its own (a paused or full queue, a paused kind) goes too, so that it waits at what holds it and
/// not in front of others; it counts only to `most`, the bound of all. Answers whether `wanted` was reached or nothing
/// is left.
///
/// # Errors
/// Any [`Fault`]; [`Fault::Invariant`] when a parked execution has no row.
pub(super) fn promote_heads(
    context: &mut Context<'_>,
    tenant: TenantNo,
    key: &str,
    (wanted, most): (u32, u32),
) -> Result<bool, Fault> {
    let name = (tenant, key.to_owned());
    let parked = |context: &Context<'_>| context.state.keys.get(&name).map_or(0, |row| row.parked);
    if wanted == 0 || parked(context) == 0 {
        return Ok(true);
    }
    let mut left = wanted;
    for id in heads(context, tenant, key, most)? {
        if left == 0 {
            break;
        }
        let row = keys::execution(tenant, &id);
        let mut execution: Execution = context
            .get(Family::Live, &row)?
            .ok_or_else(|| Fault::invariant(format!("parked execution {id} has no row")))?;
        if !limits::is_held(context, &execution) {
            left -= 1;
        }
        context.promote(&mut execution)?;
        context.put(Family::Live, row, &execution)?;
    }
    Ok(left == 0 || parked(context) == 0)
}

/// The first executions of a parked line.
fn heads(
    context: &Context<'_>,
    tenant: TenantNo,
    key: &str,
    most: u32,
) -> Result<Vec<ExecutionId>, Fault> {
    let prefix = keys::parked_line(tenant, key);
    let mut heads = Vec::new();
    let mut foreign = false;
    context.txn.scan(
        Family::Lines,
        &KeyRange::prefix(&prefix),
        Direction::Forward,
        &mut |row, _| {
            let order = row.get(prefix.len()..).unwrap_or_default();
            let Some((_, _, id)) = keys::decode_line_order(order) else {
                foreign = true;
                return ControlFlow::Break(());
            };
            heads.push(id);
            if heads.len() as u64 >= u64::from(most) {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        },
    )?;
    if foreign {
        return Err(Fault::corrupt("a key of a parked line"));
    }
    Ok(heads)
}

#[cfg(test)]
mod tests;
