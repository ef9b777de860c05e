//! What every node holds in memory: tenants, queues, limits, counts and live leases.
//!
//! Purpose: admission and apply decide without reading the disk. Rebuilt from the store at start and after a snapshot
//! install; written through by apply (each changed row once an entry). Callers: `state`, `leader`, `api` (reads).
//! Invariants:
//! 1. It equals what [`Resident::load`] would read from the store after the same entry.
//! 2. Derived indexes (`key_leased`, `claims`, `held`) follow from `leases` alone and change only in
//!    [`Resident::insert_lease`] and [`Resident::remove_lease`]; `queue_totals` follows from `counts` and changes only
//!    where an execution is counted.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::ids::{ExecutionId, QueueId, QueueNo, Revision, TenantId, TenantNo, WorkerId};
use crate::model::cluster::ClusterState;
use crate::model::lease::Lease;
use crate::model::queue::{DeletedQueue, KeyState, LineCounts, Queue, QueueSpec};
use crate::model::tenant::{Tenant, TenantSpec, TenantUsage};
use crate::state::machine::{Applied, Position};
use crate::store::keys;
use crate::store::value::{self, Stored};
use crate::store::{Direction, Family, KeyRange, View};
use crate::time::Timestamp;

/// The row written by every entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedRow {
    /// Last entry in the state.
    pub position: Option<Position>,
    /// Replicated time: the largest `proposed_at` applied.
    pub now: Timestamp,
}

/// Sums over the tenants of a queue, for limits that concern the whole queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueTotals {
    /// Waiting, ready and parked: what `max_pending` bounds. Backing off is not: admitted work is never refused.
    pub pending: u64,
    /// Live leases: what `max_leased` bounds.
    pub leased: u64,
}

/// A live lease's place: execution first, so that a worker's call finds it without the tenant.
pub type LeaseKey = (ExecutionId, TenantNo);

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// Last entry and replicated time.
    pub applied: AppliedRow,
    /// Membership with the position of its entry, as raft's own bytes.
    pub membership: Option<(Position, Bytes)>,
    /// The singleton.
    pub cluster: ClusterState,
    /// Tenants by number.
    pub tenants: BTreeMap<TenantNo, Tenant>,
    /// Numbers by name.
    pub tenant_numbers: BTreeMap<TenantId, TenantNo>,
    /// What each tenant uses.
    pub usage: BTreeMap<TenantNo, TenantUsage>,
    /// Queues by number.
    pub queues: BTreeMap<QueueNo, Queue>,
    /// Numbers by name.
    pub queue_numbers: BTreeMap<QueueId, QueueNo>,
    /// Names of queues that were deleted, by number.
    pub deleted_queues: BTreeMap<QueueNo, DeletedQueue>,
    /// Counts by line.
    pub counts: BTreeMap<(QueueNo, TenantNo), LineCounts>,
    /// Concurrency keys with a limit or with something parked.
    pub keys: BTreeMap<(TenantNo, String), KeyState>,
    /// Live leases.
    pub leases: BTreeMap<LeaseKey, Lease>,
    /// Derived: sums of `counts` by queue, without those that are all zero.
    pub queue_totals: BTreeMap<QueueNo, QueueTotals>,
    /// Derived: live leases by concurrency key.
    pub key_leased: BTreeMap<(TenantNo, String), u32>,
    /// Derived: live leases by the claim that got them.
    pub claims: BTreeMap<(WorkerId, String), BTreeSet<LeaseKey>>,
    /// Derived: live leases by worker.
    pub held: BTreeMap<WorkerId, BTreeSet<LeaseKey>>,
}

impl Resident {
    /// Reads everything from `view`. An empty store gives the state before the first entry, with tenant and queue
    /// `default` in memory (written by the first entry that changes them).
    ///
    /// # Errors
    /// Any [`Fault`] of reading or decoding.
    pub fn load(view: &dyn View) -> Result<Self, Fault> {
        let mut state = Self {
            applied: read(view, Family::Meta, keys::APPLIED)?.unwrap_or_default(),
            ..Self::default()
        };
        if let Some(bytes) = view.get(Family::Meta, keys::MEMBERSHIP)? {
            state.membership = Some(decode_membership(&bytes)?);
        }
        state.cluster = read(view, Family::Meta, keys::CLUSTER)?.unwrap_or_default();
        each(view, Family::Meta, keys::TENANT, |key, row: Tenant| {
            state.insert_tenant(TenantNo(number(key, 0)?), row);
            Ok(())
        })?;
        each(view, Family::Meta, keys::QUEUE, |key, row: Queue| {
            state.insert_queue(QueueNo(number(key, 0)?), row);
            Ok(())
        })?;
        let deleted = keys::DELETED_QUEUE;
        each(view, Family::Meta, deleted, |key, row: DeletedQueue| {
            state.deleted_queues.insert(QueueNo(number(key, 0)?), row);
            Ok(())
        })?;
        each(view, Family::Meta, keys::USAGE, |key, row: TenantUsage| {
            state.usage.insert(TenantNo(number(key, 0)?), row);
            Ok(())
        })?;
        each(view, Family::Meta, keys::COUNTS, |key, row: LineCounts| {
            let line = (QueueNo(number(key, 0)?), TenantNo(number(key, 4)?));
            state.add_to_totals(line.0, &row);
            state.counts.insert(line, row);
            Ok(())
        })?;
        each(view, Family::Meta, keys::KEY_STATE, |key, row: KeyState| {
            let name = key.get(4..).and_then(|n| std::str::from_utf8(n).ok());
            let name = name.ok_or_else(|| Fault::corrupt("concurrency key name"))?;
            state
                .keys
                .insert((TenantNo(number(key, 0)?), name.to_owned()), row);
            Ok(())
        })?;
        each(view, Family::Live, keys::LEASE, |_, row: Lease| {
            state.insert_lease(row);
            Ok(())
        })?;
        state.ensure_defaults();
        Ok(state)
    }

    /// Tenant and queue `default` exist in every state.
    fn ensure_defaults(&mut self) {
        if !self.tenants.contains_key(&TenantNo::DEFAULT) {
            let row = Tenant {
                id: TenantId::default_tenant(),
                spec: TenantSpec::default(),
                paused: None,
                created_at: Timestamp::EPOCH,
                revision: Revision::default(),
                rate_tat_ns: 0,
            };
            self.insert_tenant(TenantNo::DEFAULT, row);
        }
        if !self.queues.contains_key(&QueueNo::DEFAULT) {
            let row = Queue {
                id: QueueId::default_queue(),
                spec: QueueSpec::default(),
                paused: None,
                created_at: Timestamp::EPOCH,
                revision: Revision::default(),
                rate_tat_ns: 0,
            };
            self.insert_queue(QueueNo::DEFAULT, row);
        }
    }

    /// Adds or replaces a tenant.
    pub fn insert_tenant(&mut self, no: TenantNo, row: Tenant) {
        self.tenant_numbers.insert(row.id.clone(), no);
        self.tenants.insert(no, row);
    }

    /// Adds or replaces a queue.
    pub fn insert_queue(&mut self, no: QueueNo, row: Queue) {
        self.queue_numbers.insert(row.id.clone(), no);
        self.queues.insert(no, row);
    }

    /// The name of a queue, also of one that was deleted. `None`: it was deleted so long ago that its name is forgotten.
    #[must_use]
    pub fn queue_name(&self, no: QueueNo) -> Option<&QueueId> {
        let present = self.queues.get(&no).map(|row| &row.id);
        present.or_else(|| self.deleted_queues.get(&no).map(|row| &row.id))
    }

    /// The numbers of all queues that have or had a name: the present one and deleted ones.
    #[must_use]
    pub fn queues_named(&self, name: &str) -> BTreeSet<QueueNo> {
        let deleted = self.deleted_queues.iter();
        let deleted = deleted.filter(|(_, row)| row.id.as_str() == name);
        let present = self.queue_numbers.get(name);
        deleted.map(|(no, _)| no).chain(present).copied().collect()
    }

    fn add_to_totals(&mut self, queue: QueueNo, row: &LineCounts) {
        let totals = self.queue_totals.entry(queue).or_default();
        totals.pending += row.waiting + row.ready + row.parked;
        totals.leased += row.leased;
        if *totals == QueueTotals::default() {
            self.queue_totals.remove(&queue);
        }
    }

    /// Adds or replaces a live lease, derived indexes included.
    pub fn insert_lease(&mut self, lease: Lease) {
        let key = (lease.execution.clone(), lease.tenant);
        self.remove_lease(&key);
        if let Some(name) = &lease.concurrency_key {
            *self
                .key_leased
                .entry((lease.tenant, name.clone()))
                .or_default() += 1;
        }
        if let Some(request) = &lease.request_id {
            let claim = (lease.worker.clone(), request.clone());
            self.claims.entry(claim).or_default().insert(key.clone());
        }
        self.held
            .entry(lease.worker.clone())
            .or_default()
            .insert(key.clone());
        self.leases.insert(key, lease);
    }

    /// Removes a live lease, derived indexes included.
    pub fn remove_lease(&mut self, key: &LeaseKey) -> Option<Lease> {
        let lease = self.leases.remove(key)?;
        if let Some(name) = &lease.concurrency_key {
            let slot = (lease.tenant, name.clone());
            if let Some(count) = self.key_leased.get_mut(&slot) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.key_leased.remove(&slot);
                }
            }
        }
        if let Some(request) = &lease.request_id {
            let claim = (lease.worker.clone(), request.clone());
            remove_from(&mut self.claims, &claim, key);
        }
        remove_from(&mut self.held, &lease.worker, key);
        Some(lease)
    }

    /// A live lease, to change what no derived index follows: deadlines, progress, the request to cancel. The caller
    /// writes the row.
    pub fn lease_mut(&mut self, key: &LeaseKey) -> Option<&mut Lease> {
        self.leases.get_mut(key)
    }

    /// The live lease on an execution.
    #[must_use]
    pub fn lease(&self, tenant: TenantNo, id: &ExecutionId) -> Option<&Lease> {
        self.leases.get(&(id.clone(), tenant))
    }

    /// Live leases on executions of this id, over tenants (almost always none or one).
    pub fn leases_on<'a>(&'a self, id: &'a ExecutionId) -> impl Iterator<Item = &'a Lease> {
        let from = (id.clone(), TenantNo(0));
        let to = (id.clone(), TenantNo(u32::MAX));
        self.leases.range(from..=to).map(|(_, lease)| lease)
    }

    /// Log time at which something ends `lease` by itself.
    #[must_use]
    pub fn lease_ends_at(&self, lease: &Lease) -> Timestamp {
        lease.ends_at(self.cluster.took_office_at)
    }

    /// Live leases in a queue, over tenants.
    #[must_use]
    pub fn queue_leased(&self, queue: QueueNo) -> u64 {
        self.queue_totals.get(&queue).map_or(0, |t| t.leased)
    }

    /// Executions waiting, ready or parked in a queue, over tenants.
    #[must_use]
    pub fn queue_pending(&self, queue: QueueNo) -> u64 {
        self.queue_totals.get(&queue).map_or(0, |t| t.pending)
    }

    /// Counts of every tenant in a queue.
    pub fn lines_of(&self, queue: QueueNo) -> impl Iterator<Item = (TenantNo, &LineCounts)> {
        let range = (queue, TenantNo(0))..=(queue, TenantNo(u32::MAX));
        self.counts
            .range(range)
            .map(|((_, tenant), counts)| (*tenant, counts))
    }

    /// How far this state goes, in raft's words.
    #[must_use]
    pub fn as_applied(&self) -> Applied {
        Applied {
            position: self.applied.position,
            membership: self.membership.clone(),
        }
    }
}

fn remove_from<K: Ord, V: Ord>(map: &mut BTreeMap<K, BTreeSet<V>>, key: &K, value: &V) {
    if let Some(set) = map.get_mut(key) {
        set.remove(value);
        if set.is_empty() {
            map.remove(key);
        }
    }
}

/// Reads and decodes one row.
///
/// # Errors
/// Any [`Fault`] of reading or decoding.
pub fn read<T: Stored>(view: &dyn View, family: Family, key: &[u8]) -> Result<Option<T>, Fault> {
    view.get(family, key)?
        .map(|bytes| value::decode(&bytes))
        .transpose()
}

fn each<T: Stored>(
    view: &dyn View,
    family: Family,
    tag: u8,
    mut visit: impl FnMut(&[u8], T) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let mut failed = None;
    view.scan(
        family,
        &KeyRange::prefix(&[tag]),
        Direction::Forward,
        &mut |key, bytes| {
            let rest = key.get(1..).unwrap_or_default();
            match value::decode(bytes).and_then(|row| visit(rest, row)) {
                Ok(()) => ControlFlow::Continue(()),
                Err(fault) => {
                    failed = Some(fault);
                    ControlFlow::Break(())
                }
            }
        },
    )?;
    failed.map_or(Ok(()), Err)
}

fn number(key: &[u8], at: usize) -> Result<u32, Fault> {
    let bytes = key.get(at..at + 4).and_then(|b| b.try_into().ok());
    bytes
        .map(u32::from_be_bytes)
        .ok_or_else(|| Fault::corrupt("a short key in meta"))
}

/// The membership row: position (three u64, little-endian), then raft's bytes.
#[must_use]
pub fn encode_membership(position: Position, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(24 + bytes.len());
    for part in [position.term, position.leader, position.index] {
        out.extend_from_slice(&part.to_le_bytes());
    }
    out.extend_from_slice(bytes);
    out
}

fn decode_membership(row: &[u8]) -> Result<(Position, Bytes), Fault> {
    let part = |at: usize| {
        let bytes = row.get(at..at + 8).and_then(|b| b.try_into().ok());
        bytes
            .map(u64::from_le_bytes)
            .ok_or_else(|| Fault::corrupt("membership row"))
    };
    let position = Position {
        term: part(0)?,
        leader: part(8)?,
        index: part(16)?,
    };
    Ok((
        position,
        Bytes::copy_from_slice(row.get(24..).unwrap_or_default()),
    ))
}
