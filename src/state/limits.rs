//! Admission of one lease: pauses, concurrency limits, rate limits.
//!
//! Purpose: whether an execution may be leased now, and the spending of its rate tokens. Callers:
//! `state::grants`; the GCRA itself also answers "when" to the leader and to reads. Invariants:
//! 1. Every level must admit before anything is spent, so a refusal changes nothing.
//! 2. Usage is read where leases begin and end (live leases and their counts); there is no counter
//!    beside them.
//! 3. Rates are decided on log time alone, with one u64 of nanoseconds a limit.

use crate::command::outcome::GrantRefusal;
use crate::model::execution::Execution;
use crate::model::policy::{PauseInfo, RateLimit};
use crate::state::context::Context;
use crate::time::{Millis, Timestamp};

const NANOS_PER_MILLI: u64 = 1_000_000;
/// A grant that comes this much later than its rate allows does not push the following ones back:
/// log time moves with the entries, and their delay must not eat into the rate. Older room than
/// this is not kept.
const LATENESS_NS: u64 = 100 * NANOS_PER_MILLI;

/// What a grant spends: the new theoretical arrival times, by level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Spending {
    queue: Option<u64>,
    tenant: Option<u64>,
    key: Option<u64>,
}

/// Whether `execution` may be leased now, by everything but its own state.
///
/// # Errors
/// Why not; the first of pause, permission, concurrency key, queue, tenant, rates that refuses.
pub(super) fn admit(
    context: &Context<'_>,
    execution: &Execution,
) -> Result<Spending, GrantRefusal> {
    if is_paused(context, execution) {
        return Err(GrantRefusal::Paused);
    }
    if !context.tenant_may_use(execution.queue, execution.tenant) {
        return Err(GrantRefusal::NotAllowed);
    }
    if context.key_is_full(execution) {
        return Err(GrantRefusal::KeyFull);
    }
    if queue_is_full(context, execution) {
        return Err(GrantRefusal::QueueFull);
    }
    let state = &*context.state;
    let tenant = state.tenants.get(&execution.tenant);
    let limit = tenant.and_then(|t| t.spec.max_leased);
    let leased = || state.usage.get(&execution.tenant).map_or(0, |u| u.leased);
    if limit.is_some_and(|limit| leased() >= limit) {
        return Err(GrantRefusal::TenantFull);
    }
    admit_rates(context, execution)
}

fn is_paused(context: &Context<'_>, execution: &Execution) -> bool {
    let state = &*context.state;
    let holds = |pause: Option<&PauseInfo>| pause.is_some_and(|p| p.holds_at(context.now));
    let tenant = state.tenants.get(&execution.tenant);
    let queue = state.queues.get(&execution.queue);
    holds(state.cluster.paused.as_ref())
        || holds(tenant.and_then(|t| t.paused.as_ref()))
        || holds(queue.and_then(|q| q.paused.as_ref()))
        || holds(state.cluster.paused_kinds.get(&execution.template.kind))
}

/// Whether something holds `execution` back that need not hold others of its concurrency key: its queue (paused, full, or
/// closed to the tenant) or its kind.
pub(super) fn is_held(context: &Context<'_>, execution: &Execution) -> bool {
    let state = &*context.state;
    let holds = |pause: Option<&PauseInfo>| pause.is_some_and(|p| p.holds_at(context.now));
    let queue = state.queues.get(&execution.queue);
    holds(queue.and_then(|q| q.paused.as_ref()))
        || holds(state.cluster.paused_kinds.get(&execution.template.kind))
        || !context.tenant_may_use(execution.queue, execution.tenant)
        || queue_is_full(context, execution)
}

fn queue_is_full(context: &Context<'_>, execution: &Execution) -> bool {
    let queue = context.state.queues.get(&execution.queue);
    let limit = queue.and_then(|q| q.spec.max_leased);
    limit.is_some_and(|limit| context.state.queue_leased(execution.queue) >= limit)
}

fn admit_rates(context: &Context<'_>, execution: &Execution) -> Result<Spending, GrantRefusal> {
    let state = &*context.state;
    let queue = state.queues.get(&execution.queue);
    let tenant = state.tenants.get(&execution.tenant);
    let name = execution.template.concurrency_key.as_ref();
    let key = name.and_then(|name| state.keys.get(&(execution.tenant, name.clone())));
    let levels = [
        queue.and_then(|q| Some((q.spec.rate?, q.rate_tat_ns))),
        tenant.and_then(|t| Some((t.spec.rate?, t.rate_tat_ns))),
        key.and_then(|k| Some((k.rate?, k.rate_tat_ns))),
    ];
    let mut spent = [None; 3];
    let mut blocked_until: Option<Timestamp> = None;
    for (level, place) in levels.into_iter().zip(&mut spent) {
        let Some((rate, tat_ns)) = level else {
            continue;
        };
        match take(&rate, tat_ns, context.now) {
            Ok(next) => *place = Some(next),
            Err(until) => blocked_until = blocked_until.max(Some(until)),
        }
    }
    if let Some(until) = blocked_until {
        return Err(GrantRefusal::RateLimited { until });
    }
    let [queue, tenant, key] = spent;
    Ok(Spending { queue, tenant, key })
}

/// Spends what [`admit`] found.
pub(super) fn spend(context: &mut Context<'_>, execution: &Execution, spending: Spending) {
    if let Some(tat_ns) = spending.queue
        && let Some(row) = context.queue_mut(execution.queue)
    {
        row.rate_tat_ns = tat_ns;
    }
    if let Some(tat_ns) = spending.tenant
        && let Some(row) = context.tenant_mut(execution.tenant)
    {
        row.rate_tat_ns = tat_ns;
    }
    if let Some(tat_ns) = spending.key
        && let Some(name) = &execution.template.concurrency_key
    {
        context.key_mut(execution.tenant, name).rate_tat_ns = tat_ns;
    }
}

/// The generic cell rate algorithm: takes one grant at `now` from a limit whose theoretical arrival
/// time is `tat_ns` (nanoseconds since the epoch; 0 at rest), and answers the new one.
///
/// After a rest at most `burst` grants at one instant, then one every `per / count` (rounded up to
/// whole nanoseconds) on a grid: under constant demand a late entry admits what came due since the
/// last one, up to [`LATENESS_NS`].
///
/// # Errors
/// The first log time at which one more is admitted, if nothing is taken before.
pub(super) fn take(rate: &RateLimit, tat_ns: u64, now: Timestamp) -> Result<u64, Timestamp> {
    let now_ns = now
        .since(Timestamp::EPOCH)
        .0
        .saturating_mul(NANOS_PER_MILLI);
    let per_ns = rate.per.0.max(1).saturating_mul(NANOS_PER_MILLI);
    let interval = per_ns.div_ceil(u64::from(rate.count.max(1)));
    let room = interval.saturating_mul(u64::from(rate.burst.max(1)));
    let is_late = tat_ns < now_ns && now_ns - tat_ns <= LATENESS_NS;
    let from = if is_late { tat_ns } else { tat_ns.max(now_ns) };
    let next = from.saturating_add(interval);
    let admitted_from = next.saturating_sub(room);
    if admitted_from <= now_ns {
        return Ok(next);
    }
    let until = Millis(admitted_from.div_ceil(NANOS_PER_MILLI));
    Err(Timestamp::EPOCH.plus(until))
}

#[cfg(test)]
mod tests;
