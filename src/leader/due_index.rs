//! The near part of the due index in memory, and reading it ahead from the store.
//!
//! Purpose: know what becomes due in the next minutes without touching the rest. Callers: the office.
//! Invariants:
//! 1. Every stored entry of a level earlier than [`DueIndex::loaded_until`] is in memory, or at or past its tenant's
//!    spill, or in a page that is being read. The bound is raised before the page's snapshot is taken, and effects arm
//!    what lies below it: an entry written meanwhile is seen by one of the two.
//! 2. Arming is idempotent: an entry is its own identity (level, time, tenant, kind, id).
//! 3. At most [`DueIndex::tenant_max`] entries of a tenant are held, and those are its earliest: past that the reader
//!    keeps a cursor for it (its spill) and goes on from there when the tenant's entries have been worked off.

mod scan;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::ids::TenantNo;
use crate::leader::wheel::{Key, Wheel};
use crate::store::due::{DueEntry, DueKey, DueKind, Level};
use crate::time::{Millis, Timestamp};

pub use scan::{PAGE_ENTRIES, Page, Scan};

/// How far ahead the index is read; below the wheel's horizon.
pub const AHEAD: Millis = Millis::minutes(5);
/// When less than this is read ahead, more is.
pub const AHEAD_LOW: Millis = Millis::minutes(4);
/// Entries of a tenant in memory at most.
const TENANT_MAX: usize = 50_000;
/// Entries of a tenant that are allowed in any case.
const TENANT_MIN: usize = 500;
/// Entries over all tenants that the bound for each aims at.
const TOTAL_MAX: usize = 1_000_000;

/// Spills looked at in one step.
const SPILLS_STEP: usize = 16;

#[derive(Debug)]
enum Armed {
    /// In the wheel.
    Waiting(Key),
    /// Handed out; `again`: written anew under the same key meanwhile.
    InHand { again: bool },
}

type Held = BTreeMap<Arc<DueEntry>, Armed>;

/// See the module.
#[derive(Debug)]
pub struct DueIndex {
    wheel: Wheel<Arc<DueEntry>>,
    tenants: BTreeMap<TenantNo, Held>,
    len: usize,
    loaded_until: [Timestamp; Level::ALL.len()],
    spills: BTreeMap<(TenantNo, Level), Timestamp>,
    /// After which spill to look next.
    spill_turn: (TenantNo, Level),
    tenant_max: usize,
}

impl DueIndex {
    /// An index of which nothing is read; `watermarks`: no live entry of a level is earlier.
    #[must_use]
    pub fn new(now: Timestamp, watermarks: [Timestamp; Level::ALL.len()]) -> Self {
        Self {
            wheel: Wheel::new(now),
            tenants: BTreeMap::new(),
            len: 0,
            loaded_until: watermarks,
            spills: BTreeMap::new(),
            spill_turn: (TenantNo(0), Level::Minute),
            tenant_max: TENANT_MAX,
        }
    }

    /// The same with another bound a tenant, for tests.
    #[cfg(test)]
    pub(crate) fn with_tenant_max(mut self, max: usize) -> Self {
        self.tenant_max = max;
        self
    }

    /// Entries of one tenant that may be held now.
    #[must_use]
    pub fn tenant_max(&self) -> usize {
        let fair = TOTAL_MAX / self.tenants.len().max(1);
        self.tenant_max.min(fair.max(TENANT_MIN))
    }

    /// Entries in memory.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tenants and levels with more than is held.
    #[must_use]
    pub fn spill_count(&self) -> usize {
        self.spills.len()
    }

    /// Up to where `level` is read.
    #[must_use]
    pub fn loaded_until(&self, level: Level) -> Timestamp {
        self.loaded_until
            .get(level.index())
            .copied()
            .unwrap_or(Timestamp::MIN)
    }

    /// Whether more should be read ahead at `now`.
    #[must_use]
    pub fn is_low(&self, now: Timestamp) -> bool {
        let wanted = now.plus(AHEAD_LOW);
        self.loaded_until.iter().any(|until| *until < wanted)
    }

    /// Raises the bounds to `now` + [`AHEAD`] and says what to read. Take snapshots only after this call.
    pub fn begin_fill(&mut self, now: Timestamp) -> Vec<Scan> {
        let to = now.plus(AHEAD);
        let mut scans = Vec::new();
        for level in Level::ALL {
            if let Some(until) = self.loaded_until.get_mut(level.index())
                && *until < to
            {
                scans.push(Scan::new(level, *until, to));
                *until = to;
            }
        }
        scans
    }

    /// Forgets how far it was read: the next fill reads again from the watermarks (effects were lost).
    pub fn distrust(&mut self, watermarks: [Timestamp; Level::ALL.len()]) {
        self.loaded_until = watermarks;
        self.spills.clear();
    }

    /// Looks at some of the tenants that spilled for one that has worked off enough to read on, or that holds later
    /// entries than those it spilled. Answers what to read; take the snapshot only after this call.
    pub fn begin_refill(&mut self) -> Option<Scan> {
        for _ in 0..SPILLS_STEP.min(self.spills.len()) {
            let after = (Bound::Excluded(self.spill_turn), Bound::Unbounded);
            let next = self
                .spills
                .range(after)
                .next()
                .or_else(|| self.spills.first_key_value());
            let (turn, from) = next.map(|(turn, from)| (*turn, *from))?;
            self.spill_turn = turn;
            let (tenant, level) = turn;
            let held = self.tenants.get(&tenant);
            let is_low = held.map_or(0, BTreeMap::len) <= self.tenant_max() / 2;
            let holds_later = held.and_then(last_waiting).is_some_and(|e| e.key.at > from);
            if is_low || holds_later {
                self.spills.remove(&turn);
                return Some(Scan::of_tenant(
                    level,
                    tenant,
                    from,
                    self.loaded_until(level),
                ));
            }
        }
        None
    }

    /// Whether the rest of a tenant's scan, read up to `last`, is of no use: the tenant is full up to there.
    #[must_use]
    pub fn is_spilled(&self, scan: &Scan, last: Option<Timestamp>) -> bool {
        let spill = scan.tenant.and_then(|t| self.spills.get(&(t, scan.level)));
        spill.zip(last).is_some_and(|(from, last)| *from <= last)
    }

    /// Arms an entry that an effect or a page told of. Later ones than what is read are left to a later page.
    pub fn arm(&mut self, entry: DueEntry) {
        let level = entry.key.level;
        let (tenant, at) = (entry.tenant, entry.key.at);
        if at >= self.loaded_until(level) {
            return;
        }
        let max = self.tenant_max();
        let held = self.tenants.get_mut(&tenant);
        if let Some(armed) = held.and_then(|held| held.get_mut(&entry)) {
            if let Armed::InHand { again } = armed {
                *again = true;
            }
            return;
        }
        let spill = self.spills.get(&(tenant, level));
        if spill.is_some_and(|from| at >= *from) {
            return;
        }
        let held = self.tenants.entry(tenant).or_default();
        if held.len() >= max {
            let last = last_waiting(held).filter(|last| last.key.at > at);
            let Some(last) = last else {
                self.spill(tenant, level, at);
                return;
            };
            self.disarm(&last);
            self.spill(tenant, last.key.level, last.key.at);
        }
        let entry = Arc::new(entry);
        let key = self.wheel.insert(at, Arc::clone(&entry));
        let held = self.tenants.entry(tenant).or_default();
        held.insert(entry, Armed::Waiting(key));
        self.len += 1;
    }

    fn spill(&mut self, tenant: TenantNo, level: Level, at: Timestamp) {
        let from = self.spills.entry((tenant, level)).or_insert(at);
        *from = at.min(*from);
    }

    /// Forgets an entry that left the index before its time.
    pub fn disarm(&mut self, entry: &DueEntry) {
        let armed = self
            .tenants
            .get(&entry.tenant)
            .and_then(|held| held.get(entry));
        if let Some(Armed::Waiting(key)) = armed {
            self.wheel.cancel(*key);
            self.remove(entry);
        }
    }

    /// Hands out what is due; each stays in hand until [`DueIndex::done`].
    pub fn advance(&mut self, now: Timestamp) -> Vec<Arc<DueEntry>> {
        let mut due = Vec::new();
        self.wheel.advance(now, &mut due);
        for entry in &due {
            let held = self.tenants.get_mut(&entry.tenant);
            if let Some(armed) = held.and_then(|held| held.get_mut(entry)) {
                *armed = Armed::InHand { again: false };
            }
        }
        due
    }

    /// An entry in hand was dealt with: it is out of the store, or was never worth keeping.
    pub fn done(&mut self, entry: &DueEntry) {
        let armed = self
            .tenants
            .get(&entry.tenant)
            .and_then(|held| held.get(entry));
        if let Some(Armed::InHand { again }) = armed {
            let again = *again;
            self.remove(entry);
            if again {
                self.arm(entry.clone());
            }
        }
    }

    fn remove(&mut self, entry: &DueEntry) {
        if let Some(held) = self.tenants.get_mut(&entry.tenant) {
            if held.remove(entry).is_some() {
                self.len = self.len.saturating_sub(1);
            }
            if held.is_empty() {
                self.tenants.remove(&entry.tenant);
            }
        }
    }

    /// When to call [`DueIndex::advance`] next.
    #[must_use]
    pub fn next_at(&self) -> Option<Timestamp> {
        self.wheel.next_at()
    }

    /// How high the watermark of `level` may be at most, as far as memory knows; the store is asked before it moves.
    #[must_use]
    pub fn floor(&self, level: Level) -> Timestamp {
        let mut floor = self.loaded_until(level);
        let bound = bound_of(level, Timestamp::MIN);
        for held in self.tenants.values() {
            let first = held.range::<DueEntry, _>((Bound::Included(&bound), Bound::Unbounded));
            let first = first.map(|(e, _)| e.key).next();
            if let Some(key) = first.filter(|key| key.level == level) {
                floor = floor.min(key.at);
            }
        }
        for ((_, spilled), from) in &self.spills {
            if *spilled == level {
                floor = floor.min(*from);
            }
        }
        floor
    }
}

/// The smallest possible entry of a level at or after `at`.
fn bound_of(level: Level, at: Timestamp) -> DueEntry {
    DueEntry {
        key: DueKey { level, at },
        tenant: TenantNo(0),
        kind: DueKind::Occurrence,
        id: String::new(),
    }
}

/// The latest entry that is still in the wheel.
fn last_waiting(held: &Held) -> Option<Arc<DueEntry>> {
    let mut last: Option<&Arc<DueEntry>> = None;
    for level in Level::ALL {
        let (from, to) = (
            bound_of(level, Timestamp::MIN),
            bound_of(level, Timestamp::MAX),
        );
        let range = (Bound::Included(&from), Bound::Included(&to));
        // In-hand entries are the earliest: the last one of a level tells whether any waits.
        let of_level = held.range::<DueEntry, _>(range).next_back();
        if let Some((entry, Armed::Waiting(_))) = of_level
            && last.is_none_or(|l| entry.key.at > l.key.at)
        {
            last = Some(entry);
        }
    }
    last.cloned()
}

#[cfg(test)]
mod tests;
