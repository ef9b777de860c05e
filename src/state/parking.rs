//! Parked lines: what waits for a slot of its concurrency key.
//!
//! Callers: `state::admin` (a limit rises) and the commands that end a lease. Invariant: an execution is promoted at
//! most once for a slot; promoting too many is harmless (a grant that finds the key full parks it again), promoting
//! none while slots are free would leave work standing.

use std::ops::ControlFlow;

use crate::fault::Fault;
use crate::ids::{ExecutionId, TenantNo};
use crate::model::execution::Execution;
use crate::state::context::Context;
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

/// Lets the head of a parked line take a slot that has come free. Called when a lease of the key ends, or when an
/// execution that was offered leaves its line without one.
///
/// # Errors
/// As [`promote_heads`].
pub(super) fn fill_slot(
    context: &mut Context<'_>,
    tenant: TenantNo,
    key: &str,
) -> Result<(), Fault> {
    let most = context.free_slots(tenant, key).min(1);
    promote_heads(context, tenant, key, most)?;
    Ok(())
}

/// Moves up to `most` heads of a parked line to their ready lines, in the line's order. Answers how many.
///
/// # Errors
/// Any [`Fault`]; [`Fault::Invariant`] when a parked execution has no row.
pub(super) fn promote_heads(
    context: &mut Context<'_>,
    tenant: TenantNo,
    key: &str,
    most: u32,
) -> Result<u32, Fault> {
    let name = (tenant, key.to_owned());
    if most == 0
        || context
            .state
            .keys
            .get(&name)
            .is_none_or(|row| row.parked == 0)
    {
        return Ok(0);
    }
    let heads = heads(context, tenant, key, most)?;
    for id in &heads {
        let row = keys::execution(tenant, id);
        let mut execution: Execution = context
            .get(Family::Live, &row)?
            .ok_or_else(|| Fault::invariant(format!("parked execution {id} has no row")))?;
        context.promote(&mut execution)?;
        context.put(Family::Live, row, &execution)?;
    }
    Ok(u32::try_from(heads.len()).unwrap_or(u32::MAX))
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
