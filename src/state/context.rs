//! What apply works with while one entry is applied.
//!
//! Purpose: the primitives that every command is made of: typed rows, the due index, lines, counts, effects. Callers:
//! the command modules beside it, only.
//! Invariants:
//! 1. Whatever changes memory ([`Resident`]) is written to the store by [`Context::finish`], once an entry.
//! 2. A command validates before it changes anything, so that a refusal changes nothing.
//! 3. Nothing here reads a clock or draws a number: time is [`Context::now`], identity is the log position.

use std::collections::BTreeSet;

use crate::command::outcome::{Effect, LineValue, ReadyItem, Refusal};
use crate::command::{Actor, Envelope};
use crate::fault::Fault;
use crate::ids::{ExecutionId, QueueId, QueueNo, Revision, TenantId, TenantNo};
use crate::model::execution::{Execution, ExecutionState, StoredPayload};
use crate::model::queue::{DeletedQueue, KeyState, LineCounts, Queue, QueueSpec};
use crate::model::tenant::TenantUsage;
use crate::state::machine::Position;
use crate::state::resident::{AppliedRow, QueueTotals, Resident};
use crate::store::due::{DueEntry, DueKey, DueKind};
use crate::store::txn::Txn;
use crate::store::value::{self, Stored};
use crate::store::{Family, WriteBatch, keys};
use crate::time::Timestamp;

/// Most queues in a cluster.
pub const QUEUES_MAX: u32 = 10_000;
/// Names of deleted queues that are kept; one more, and the queue that was created first is forgotten.
pub const DELETED_QUEUES_MAX: usize = 10_000;
/// Most tenants in a cluster.
pub const TENANTS_MAX: u32 = 10_000;

/// Rows of memory that the entry changed.
#[derive(Debug, Default)]
struct Dirty {
    cluster: bool,
    tenants: BTreeSet<TenantNo>,
    usage: BTreeSet<TenantNo>,
    queues: BTreeSet<QueueNo>,
    deleted_queues: BTreeSet<QueueNo>,
    counts: BTreeSet<(QueueNo, TenantNo)>,
    keys: BTreeSet<(TenantNo, String)>,
}

/// Who wants the present command.
#[derive(Clone, Debug, Default)]
pub struct Caller {
    /// Who.
    pub actor: Actor,
    /// Why.
    pub reason: Option<String>,
    /// For which request.
    pub request_id: Option<String>,
    /// When it arrived, for workers' calls; at most [`Context::now`].
    pub received_at: Timestamp,
}

/// See the module.
pub struct Context<'a> {
    /// The memory.
    pub state: &'a mut Resident,
    /// The overlay.
    pub txn: Txn<'a>,
    /// Replicated time of this entry.
    pub now: Timestamp,
    /// Log index plus index base: token and incarnation of what this entry makes.
    pub token: u64,
    /// The present command's caller.
    pub caller: Caller,
    /// For the leader.
    pub effects: Vec<Effect>,
    position: Position,
    place: u32,
    slot: u32,
    dirty: Dirty,
}

impl<'a> Context<'a> {
    /// For the entry at `position`, stamped `proposed_at`.
    pub fn new(
        state: &'a mut Resident,
        txn: Txn<'a>,
        position: Position,
        proposed_at: Timestamp,
    ) -> Self {
        let now = state.applied.now.max(proposed_at);
        let token = position.index.saturating_add(state.cluster.index_base);
        Self {
            state,
            txn,
            now,
            token,
            caller: Caller::default(),
            effects: Vec::new(),
            position,
            place: 0,
            slot: 0,
            dirty: Dirty::default(),
        }
    }

    /// Turns to the next command, the one at `place` of the batch.
    pub fn begin(&mut self, place: u32, envelope: &Envelope) {
        self.place = place;
        self.caller = Caller {
            actor: envelope.actor.clone(),
            reason: envelope.reason.clone(),
            request_id: envelope.request_id.clone(),
            received_at: envelope.received_at.map_or(self.now, |at| at.min(self.now)),
        };
    }

    /// The revision of what the present command changes.
    #[must_use]
    pub const fn revision(&self) -> Revision {
        Revision::new(self.token, self.place)
    }

    /// A number that no other object of this entry has.
    pub fn next_slot(&mut self) -> u32 {
        let slot = self.slot;
        self.slot = self.slot.saturating_add(1);
        slot
    }

    /// A new execution id.
    pub fn mint(&mut self, tenant: TenantNo) -> ExecutionId {
        let slot = self.next_slot();
        ExecutionId::mint(self.token, slot, tenant)
    }

    // ---- rows -------------------------------------------------------------------------------------------------

    /// Reads and decodes a row as the entry so far leaves it.
    ///
    /// # Errors
    /// Any [`Fault`] of reading or decoding.
    pub fn get<T: Stored>(&self, family: Family, key: &[u8]) -> Result<Option<T>, Fault> {
        self.txn
            .get(family, key)?
            .map(|bytes| value::decode(&bytes))
            .transpose()
    }

    /// Encodes and writes a row.
    ///
    /// # Errors
    /// [`Fault::Invariant`] for a value over the bound.
    pub fn put<T: Stored>(&mut self, family: Family, key: Vec<u8>, row: &T) -> Result<(), Fault> {
        self.txn.put(family, key, value::encode(row)?);
        Ok(())
    }

    /// Removes a row.
    pub fn delete(&mut self, family: Family, key: Vec<u8>) {
        self.txn.delete(family, key);
    }

    // ---- names ------------------------------------------------------------------------------------------------

    /// The number of a tenant.
    ///
    /// # Errors
    /// [`Refusal::TenantNotFound`].
    pub fn tenant(&self, id: &TenantId) -> Result<TenantNo, Refusal> {
        self.state
            .tenant_numbers
            .get(id)
            .copied()
            .ok_or(Refusal::TenantNotFound)
    }

    /// The number of a queue, if it exists.
    #[must_use]
    pub fn queue(&self, id: &QueueId) -> Option<QueueNo> {
        self.state.queue_numbers.get(id).copied()
    }

    /// The number of a queue, which is created if it does not exist. Call [`Context::queue_admits`] first.
    pub fn ensure_queue(&mut self, id: &QueueId) -> QueueNo {
        if let Some(no) = self.queue(id) {
            return no;
        }
        let no = QueueNo(self.state.cluster.next_queue);
        self.cluster_mut().next_queue = no.0.saturating_add(1);
        let row = Queue {
            id: id.clone(),
            spec: QueueSpec::default(),
            paused: None,
            created_at: self.now,
            revision: self.revision(),
            rate_tat_ns: 0,
        };
        self.state.insert_queue(no, row);
        self.dirty.queues.insert(no);
        no
    }

    // ---- memory, with write-through ---------------------------------------------------------------------------

    /// The singleton, to be changed.
    pub fn cluster_mut(&mut self) -> &mut crate::model::cluster::ClusterState {
        self.dirty.cluster = true;
        &mut self.state.cluster
    }

    /// A tenant, to be changed.
    pub fn tenant_mut(&mut self, no: TenantNo) -> Option<&mut crate::model::tenant::Tenant> {
        self.dirty.tenants.insert(no);
        self.state.tenants.get_mut(&no)
    }

    /// Marks a tenant that was inserted whole.
    pub fn touch_tenant(&mut self, no: TenantNo) {
        self.dirty.tenants.insert(no);
    }

    /// A queue, to be changed.
    pub fn queue_mut(&mut self, no: QueueNo) -> Option<&mut Queue> {
        self.dirty.queues.insert(no);
        self.state.queues.get_mut(&no)
    }

    /// Removes a queue's row from memory and store; its name stays known to what ran in it.
    pub fn remove_queue(&mut self, no: QueueNo) {
        self.dirty.queues.insert(no);
        let Some(row) = self.state.queues.remove(&no) else {
            return;
        };
        self.state.queue_numbers.remove(&row.id);
        let left = DeletedQueue {
            id: row.id,
            deleted_at: self.now,
        };
        self.state.deleted_queues.insert(no, left);
        self.dirty.deleted_queues.insert(no);
        if self.state.deleted_queues.len() > DELETED_QUEUES_MAX
            && let Some((oldest, _)) = self.state.deleted_queues.pop_first()
        {
            self.dirty.deleted_queues.insert(oldest);
        }
    }

    /// A tenant's usage, to be changed.
    pub fn usage_mut(&mut self, no: TenantNo) -> &mut TenantUsage {
        self.dirty.usage.insert(no);
        self.state.usage.entry(no).or_default()
    }

    /// A concurrency key's state, to be changed.
    pub fn key_mut(&mut self, tenant: TenantNo, key: &str) -> &mut KeyState {
        let name = (tenant, key.to_owned());
        self.dirty.keys.insert(name.clone());
        self.state.keys.entry(name).or_default()
    }

    /// The counts of one line, to be changed.
    pub fn counts_mut(&mut self, queue: QueueNo, tenant: TenantNo) -> &mut LineCounts {
        self.dirty.counts.insert((queue, tenant));
        self.state.counts.entry((queue, tenant)).or_default()
    }

    /// Counts an execution into `to` or out of it (`by` is 1 or −1): the line and, for leased, the tenant's usage.
    ///
    /// # Errors
    /// [`Fault::Invariant`] when a count would fall below zero: something was counted twice.
    pub fn count(
        &mut self,
        queue: QueueNo,
        tenant: TenantNo,
        to: Counted,
        by: i64,
    ) -> Result<(), Fault> {
        shift(to.field(self.counts_mut(queue, tenant)), by)?;
        let totals = self.state.queue_totals.entry(queue).or_default();
        match to {
            Counted::Waiting | Counted::Ready | Counted::Parked => shift(&mut totals.pending, by)?,
            Counted::Leased => shift(&mut totals.leased, by)?,
            Counted::BackingOff => {}
        }
        if to == Counted::Leased {
            shift(&mut self.usage_mut(tenant).leased, by)?;
        }
        Ok(())
    }

    // ---- due index --------------------------------------------------------------------------------------------

    /// Puts an entry into the due index and tells the leader. The owner stores the answer.
    pub fn arm(&mut self, tenant: TenantNo, kind: DueKind, id: &str, due_at: Timestamp) -> DueKey {
        let key = DueKey::new(self.now, due_at);
        let entry = DueEntry {
            key,
            tenant,
            kind,
            id: id.to_owned(),
        };
        self.txn.put(key.level.family(), entry.encode(), Vec::new());
        self.effects.push(Effect::ArmDue(entry));
        key
    }

    /// Takes an entry out of the due index. `early`: before its time, so the leader must be told.
    pub fn disarm(&mut self, tenant: TenantNo, kind: DueKind, id: &str, key: DueKey) {
        let entry = DueEntry {
            key,
            tenant,
            kind,
            id: id.to_owned(),
        };
        self.txn.delete(key.level.family(), entry.encode());
        if key.at > self.now {
            self.effects.push(Effect::DisarmDue(entry));
        }
    }

    // ---- lines ------------------------------------------------------------------------------------------------

    /// Puts a ready execution into its ready line, or parks it at its concurrency key when that is full. Sets `state`,
    /// `state_since`, `line_at` and `parked`, counts it, and arms the deadline that ends it while ready, if it has one. Its
    /// former due entry is out of the index. The caller writes the row.
    ///
    /// # Errors
    /// Any [`Fault`].
    pub fn offer(&mut self, execution: &mut Execution, line_at: Timestamp) -> Result<(), Fault> {
        execution.state = ExecutionState::Ready;
        execution.state_since = self.now;
        execution.next_attempt_at = None;
        execution.line_at = Some(line_at);
        execution.parked = self.key_is_full(execution);
        execution.due_key = execution.ready_deadline().map(|deadline| {
            let id = execution.id.as_str();
            self.arm(execution.tenant, DueKind::StartDeadline, id, deadline)
        });
        if execution.parked {
            self.park(execution)
        } else {
            self.enter_line(execution)
        }
    }

    /// Whether the concurrency key of `execution` has no free slot.
    #[must_use]
    pub fn key_is_full(&self, execution: &Execution) -> bool {
        let Some(name) = &execution.template.concurrency_key else {
            return false;
        };
        let key = (execution.tenant, name.clone());
        let Some(limit) = self.state.keys.get(&key).and_then(|k| k.max_leased) else {
            return false;
        };
        self.state.key_leased.get(&key).copied().unwrap_or(0) >= limit
    }

    fn enter_line(&mut self, execution: &Execution) -> Result<(), Fault> {
        let hint = LineValue {
            kind: execution.template.kind.clone(),
            payload_len: payload_len(execution),
            concurrency_key: execution.template.concurrency_key.clone(),
            requires: execution.template.requires.clone(),
        };
        let line_at = execution.line_at.unwrap_or(self.now);
        self.put(Family::Lines, ready_key(execution, line_at), &hint)?;
        self.count(execution.queue, execution.tenant, Counted::Ready, 1)?;
        self.effects.push(Effect::OfferReady(Box::new(ReadyItem {
            queue: execution.queue,
            tenant: execution.tenant,
            priority: execution.template.priority,
            line_at,
            execution: execution.id.clone(),
            hint,
        })));
        Ok(())
    }

    fn park(&mut self, execution: &Execution) -> Result<(), Fault> {
        let name = execution
            .template
            .concurrency_key
            .clone()
            .unwrap_or_default();
        let line_at = execution.line_at.unwrap_or(self.now);
        self.txn.put(
            Family::Lines,
            parked_key(execution, &name, line_at),
            Vec::new(),
        );
        self.key_mut(execution.tenant, &name).parked += 1;
        self.count(execution.queue, execution.tenant, Counted::Parked, 1)
    }

    /// Takes a ready execution out of its line (ready or parked), uncounted. `granted`: the leader knows already. The
    /// start deadline stays for the caller to disarm.
    ///
    /// # Errors
    /// [`Fault::Invariant`] when the counts do not know it.
    pub fn withdraw(&mut self, execution: &Execution, granted: bool) -> Result<(), Fault> {
        let line_at = execution.line_at.unwrap_or(self.now);
        if execution.parked {
            let name = execution
                .template
                .concurrency_key
                .clone()
                .unwrap_or_default();
            self.delete(Family::Lines, parked_key(execution, &name, line_at));
            shift(&mut self.key_mut(execution.tenant, &name).parked, -1)?;
            return self.count(execution.queue, execution.tenant, Counted::Parked, -1);
        }
        self.delete(Family::Lines, ready_key(execution, line_at));
        if !granted {
            self.effects.push(Effect::WithdrawReady {
                queue: execution.queue,
                tenant: execution.tenant,
                priority: execution.template.priority,
                line_at,
                execution: execution.id.clone(),
            });
        }
        self.count(execution.queue, execution.tenant, Counted::Ready, -1)
    }

    /// Moves an execution from its ready line to the parked line of its key (it was offered while the key had room).
    ///
    /// # Errors
    /// Any [`Fault`].
    pub fn park_ready(&mut self, execution: &mut Execution) -> Result<(), Fault> {
        self.withdraw(execution, true)?;
        execution.parked = true;
        self.park(execution)
    }

    /// Moves a parked execution into its ready line; the caller writes the row.
    ///
    /// # Errors
    /// Any [`Fault`].
    pub fn promote(&mut self, execution: &mut Execution) -> Result<(), Fault> {
        self.withdraw(execution, true)?;
        execution.parked = false;
        self.enter_line(execution)
    }

    // ---- the end ----------------------------------------------------------------------------------------------

    /// Writes what memory changed and the applied position. Answers the batch for the store and the effects.
    ///
    /// # Errors
    /// Any [`Fault`].
    pub fn finish(mut self) -> Result<(WriteBatch, Vec<Effect>), Fault> {
        let row = AppliedRow {
            position: Some(self.position),
            now: self.now,
        };
        self.state.applied = row;
        self.put(Family::Meta, keys::APPLIED.to_vec(), &row)?;
        self.write_dirty()?;
        Ok((self.txn.into_batch(), self.effects))
    }

    fn write_dirty(&mut self) -> Result<(), Fault> {
        let dirty = std::mem::take(&mut self.dirty);
        if dirty.cluster {
            let row = value::encode(&self.state.cluster)?;
            self.txn.put(Family::Meta, keys::CLUSTER.to_vec(), row);
        }
        for no in dirty.tenants {
            write_or_delete(&mut self.txn, keys::tenant(no), self.state.tenants.get(&no))?;
        }
        for no in dirty.usage {
            write_or_delete(&mut self.txn, keys::usage(no), self.state.usage.get(&no))?;
        }
        for no in dirty.queues {
            write_or_delete(&mut self.txn, keys::queue(no), self.state.queues.get(&no))?;
        }
        for no in dirty.deleted_queues {
            let row = self.state.deleted_queues.get(&no);
            write_or_delete(&mut self.txn, keys::deleted_queue(no), row)?;
        }
        for (queue, tenant) in dirty.counts {
            let counts = self
                .state
                .counts
                .get(&(queue, tenant))
                .copied()
                .unwrap_or_default();
            if counts == LineCounts::default() {
                self.state.counts.remove(&(queue, tenant));
            }
            let row = self.state.counts.get(&(queue, tenant));
            write_or_delete(&mut self.txn, keys::counts(queue, tenant), row)?;
            if self.state.queue_totals.get(&queue) == Some(&QueueTotals::default()) {
                self.state.queue_totals.remove(&queue);
            }
        }
        for name in dirty.keys {
            if self.state.keys.get(&name) == Some(&KeyState::default()) {
                self.state.keys.remove(&name);
            }
            let key = keys::key_state(name.0, &name.1);
            write_or_delete(&mut self.txn, key, self.state.keys.get(&name))?;
        }
        Ok(())
    }
}

fn write_or_delete<T: Stored>(
    txn: &mut Txn<'_>,
    key: Vec<u8>,
    row: Option<&T>,
) -> Result<(), Fault> {
    match row {
        Some(row) => txn.put(Family::Meta, key, value::encode(row)?),
        None => txn.delete(Family::Meta, key),
    }
    Ok(())
}

/// Where an open execution is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Due later.
    Waiting,
    /// In the ready line.
    Ready,
    /// Parked at its key.
    Parked,
    /// Leased.
    Leased,
    /// Backing off.
    BackingOff,
}

impl Counted {
    fn field(self, counts: &mut LineCounts) -> &mut u64 {
        match self {
            Self::Waiting => &mut counts.waiting,
            Self::Ready => &mut counts.ready,
            Self::Parked => &mut counts.parked,
            Self::Leased => &mut counts.leased,
            Self::BackingOff => &mut counts.backing_off,
        }
    }
}

/// Adds `by` to a count.
///
/// # Errors
/// [`Fault::Invariant`] below zero.
pub fn shift(count: &mut u64, by: i64) -> Result<(), Fault> {
    *count = count
        .checked_add_signed(by)
        .ok_or_else(|| Fault::invariant(format!("a count of {count} cannot move by {by}")))?;
    Ok(())
}

/// Bytes of an execution's payload.
#[must_use]
pub fn payload_len(execution: &Execution) -> u32 {
    match execution.payload {
        StoredPayload::Inline => {
            u32::try_from(execution.template.payload.len()).unwrap_or(u32::MAX)
        }
        StoredPayload::Body { len } => len,
    }
}

fn ready_key(execution: &Execution, line_at: Timestamp) -> Vec<u8> {
    keys::ready(
        execution.queue,
        execution.tenant,
        execution.template.priority,
        line_at,
        &execution.id,
    )
}

fn parked_key(execution: &Execution, name: &str, line_at: Timestamp) -> Vec<u8> {
    keys::parked(
        execution.tenant,
        name,
        execution.template.priority,
        line_at,
        &execution.id,
    )
}
