//! What may take one more lease: rates, pauses, weights, read from memory.
//!
//! Callers: `leader::admission`. Apply judges again by the same rules.

use crate::command::outcome::LineValue;
use crate::ids::{QueueNo, TenantNo};
use crate::leader::lines::HeldBy;
use crate::model::policy::{PauseInfo, RateLimit};
use crate::model::queue::QueueOrder;
use crate::state::resident::Resident;
use crate::time::{Millis, Timestamp};

/// Whether something may take one more lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Open,
    /// Until something is freed or changed.
    Shut,
    /// Until then.
    Until(Timestamp),
}

/// Whether GCRA admits one more grant at `now`, when `under_way` others have not been applied yet.
pub(super) fn rate_gate(
    rate: Option<RateLimit>,
    tat_ns: u64,
    under_way: u64,
    now: Timestamp,
) -> Gate {
    let Some(rate) = rate else {
        return Gate::Open;
    };
    let per_ns = u128::from(rate.per.0.max(1)) * 1_000_000;
    let step = per_ns.div_ceil(u128::from(rate.count.max(1)));
    let now_ns = u128::from(now.since(Timestamp::EPOCH).0) * 1_000_000;
    let next = u128::from(tat_ns).max(now_ns) + step * (u128::from(under_way) + 1);
    let free_ns = next.saturating_sub(step * u128::from(rate.burst.max(1)));
    if free_ns <= now_ns {
        return Gate::Open;
    }
    let free_ms = u64::try_from(free_ns.div_ceil(1_000_000)).unwrap_or(u64::MAX);
    Gate::Until(Timestamp::EPOCH.plus(Millis(free_ms)))
}

/// Whether a pause lets grants through at `now`.
pub(super) fn pause_gate(pause: Option<&PauseInfo>, now: Timestamp) -> Gate {
    match pause {
        Some(pause) if pause.holds_at(now) => pause.until.map_or(Gate::Shut, Gate::Until),
        Some(_) | None => Gate::Open,
    }
}

/// What holds an item back while others of its line may go, and until when.
pub(super) fn held_by(
    resident: &Resident,
    now: Timestamp,
    tenant: TenantNo,
    item: &LineValue,
) -> Option<(HeldBy, Option<Timestamp>)> {
    let kinds = &resident.cluster.paused_kinds;
    if !kinds.is_empty() {
        match pause_gate(kinds.get(&item.kind), now) {
            Gate::Open => {}
            Gate::Shut => return Some((HeldBy::Kind(item.kind.clone()), None)),
            Gate::Until(at) => return Some((HeldBy::Kind(item.kind.clone()), Some(at))),
        }
    }
    let key = item.concurrency_key.as_ref()?;
    let state = resident.keys.get(&(tenant, key.clone()))?;
    match rate_gate(state.rate, state.rate_tat_ns, 0, now) {
        Gate::Until(at) => Some((HeldBy::Key(key.clone()), Some(at))),
        Gate::Open | Gate::Shut => None,
    }
}

pub(super) fn weight(resident: &Resident, queue: QueueNo, tenant: TenantNo) -> u64 {
    let Some(row) = resident.tenants.get(&tenant) else {
        return 1;
    };
    let own = resident
        .queues
        .get(&queue)
        .and_then(|q| q.spec.weights.get(&row.id));
    u64::from(own.copied().unwrap_or(row.spec.weight)).max(1)
}

pub(super) fn is_priority_first(resident: &Resident, queue: QueueNo) -> bool {
    let order = resident.queues.get(&queue).map(|q| q.spec.order);
    order == Some(QueueOrder::PriorityFirst)
}
