//! The replica: memory and store together, driven by Raft, read by everybody.
//!
//! Purpose: implements [`Machine`] over a [`StateStore`] and a [`Resident`]; hands outcomes to the proposer and effects
//! to the leader. Callers: `raft` (apply), `leader`, `api`, `node` (reads, flush).
//! Invariants:
//! 1. Memory and store change together under the write lock, so a [`Reader`] sees both at one entry.
//! 2. Effects are delivered after the entry is in the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{RwLock, RwLockReadGuard};

use crate::command::outcome::{Effect, Outcome};
use crate::command::{Batch, Envelope, codec};
use crate::fault::Fault;
use crate::state::apply::apply_batch;
use crate::state::machine::{Applied, CommittedEntry, EntryAnswer, Machine, Payload, Position};
use crate::state::reader::Reader;
use crate::state::resident::{AppliedRow, Resident, encode_membership};
use crate::store::value;
use crate::store::{Checkpoint, Family, Staging, StateStore, View, WriteBatch, keys};
use crate::time::Timestamp;

/// What the proposer gets for a batch, inside [`EntryAnswer`].
#[derive(Debug)]
pub struct BatchAnswer {
    /// Log index of the entry plus the index base.
    pub token: u64,
    /// Replicated time after it.
    pub now: Timestamp,
    /// By position of the command.
    pub outcomes: Vec<Outcome>,
}

/// Takes effects after the entry that caused them is in the store. Called on the apply thread: it must not block.
pub trait EffectSink: Send + Sync + 'static {
    /// Effects of the entry with this token, applied at log time `now`. May be dropped: they are hints.
    fn deliver(&self, token: u64, now: Timestamp, effects: Vec<Effect>);

    /// The whole state was replaced by a snapshot: everything volatile is stale.
    fn replaced(&self);
}

/// A sink for nodes (and tests) without a leader loop.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoEffects;

impl EffectSink for NoEffects {
    fn deliver(&self, _: u64, _: Timestamp, _: Vec<Effect>) {}

    fn replaced(&self) {}
}

/// See the module.
pub struct Replica {
    store: Arc<dyn StateStore>,
    resident: RwLock<Resident>,
    sink: RwLock<Arc<dyn EffectSink>>,
    durable: AtomicU64,
    unflushed_commands: AtomicU64,
}

impl Replica {
    /// Opens the state in `store`. What the store holds at this moment counts as durable (it was just opened).
    ///
    /// # Errors
    /// Any [`Fault`] of reading or decoding.
    pub fn open(store: Arc<dyn StateStore>) -> Result<Self, Fault> {
        let resident = Resident::load(store.as_ref() as &dyn View)?;
        let durable = resident.applied.position.map_or(0, |p| p.index);
        Ok(Self {
            store,
            resident: RwLock::new(resident),
            sink: RwLock::new(Arc::new(NoEffects)),
            durable: AtomicU64::new(durable),
            unflushed_commands: AtomicU64::new(0),
        })
    }

    /// Sends effects to `sink` from now on.
    pub fn set_sink(&self, sink: Arc<dyn EffectSink>) {
        *self.sink.write() = sink;
    }

    /// Reads memory and store at one entry. Apply waits while the reader lives: hold it for point reads only.
    #[must_use]
    pub fn read(&self) -> Reader<'_> {
        Reader::new(self.resident.read(), self.store.as_ref() as &dyn View)
    }

    /// The memory alone.
    pub fn resident(&self) -> RwLockReadGuard<'_, Resident> {
        self.resident.read()
    }

    /// A consistent store view with its log time and applied token, for scans. Cheap.
    #[must_use]
    pub fn view(&self) -> (Arc<dyn View>, Timestamp, u64) {
        let resident = self.resident.read();
        let token = token_of(&resident);
        (self.store.snapshot(), resident.applied.now, token)
    }

    /// Commands applied since the last flush.
    #[must_use]
    pub fn unflushed_commands(&self) -> u64 {
        self.unflushed_commands.load(Ordering::Relaxed)
    }

    /// The store, for figures and file clean-up.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn StateStore> {
        &self.store
    }

    /// What `commands` would answer as the next entry, stamped `now`: applied to an overlay that is thrown away. Reads all
    /// of the resident rows from a snapshot, so that apply does not wait; away from the async threads, please.
    ///
    /// # Errors
    /// Any [`Fault`] of reading, or of a command that breaks an invariant.
    pub fn rehearse(&self, commands: Vec<Envelope>, now: Timestamp) -> Result<Vec<Outcome>, Fault> {
        let (view, _, _) = self.view();
        let mut resident = Resident::load(view.as_ref())?;
        let last = resident.applied.position;
        let term = resident.cluster.office_term;
        let position = Position {
            term,
            leader: last.map_or(0, |p| p.leader),
            index: last.map_or(0, |p| p.index).saturating_add(1),
        };
        let batch = Batch {
            proposed_at: now,
            term,
            commands,
        };
        let applied = apply_batch(&mut resident, view.as_ref(), position, &batch)?;
        Ok(applied.outcomes)
    }

    fn apply_one(&self, entry: CommittedEntry) -> Result<EntryAnswer, Fault> {
        match entry.payload {
            Payload::Blank => self.apply_bare(entry.position, None),
            Payload::Membership(bytes) => self.apply_bare(entry.position, Some(bytes)),
            Payload::Batch(bytes) => self.apply_commands(entry.position, &bytes),
        }
    }

    fn apply_bare(
        &self,
        position: Position,
        membership: Option<Bytes>,
    ) -> Result<EntryAnswer, Fault> {
        let mut resident = self.resident.write();
        check_order(&resident, position)?;
        let row = AppliedRow {
            position: Some(position),
            now: resident.applied.now,
        };
        let mut writes = WriteBatch::default();
        if let Some(bytes) = membership {
            let value = encode_membership(position, &bytes);
            writes.put(Family::Meta, keys::MEMBERSHIP.to_vec(), value);
            resident.membership = Some((position, bytes));
        }
        writes.put(Family::Meta, keys::APPLIED.to_vec(), value::encode(&row)?);
        self.store.write(writes)?;
        resident.applied = row;
        Ok(None)
    }

    fn apply_commands(&self, position: Position, bytes: &[u8]) -> Result<EntryAnswer, Fault> {
        let batch = codec::decode(bytes)?;
        let mut resident = self.resident.write();
        check_order(&resident, position)?;
        let base = self.store.as_ref() as &dyn View;
        let applied = apply_batch(&mut resident, base, position, &batch)?;
        self.store.write(applied.writes)?;
        let token = token_of(&resident);
        drop(resident);
        let count = u64::try_from(batch.commands.len()).unwrap_or(u64::MAX);
        self.unflushed_commands.fetch_add(count, Ordering::Relaxed);
        if !applied.effects.is_empty() {
            let sink = Arc::clone(&*self.sink.read());
            sink.deliver(token, applied.now, applied.effects);
        }
        let answer = BatchAnswer {
            token,
            now: applied.now,
            outcomes: applied.outcomes,
        };
        Ok(Some(Arc::new(answer)))
    }
}

fn check_order(resident: &Resident, position: Position) -> Result<(), Fault> {
    match resident.applied.position {
        Some(last) if position.index != last.index + 1 => Err(Fault::invariant(format!(
            "entry {} applied after entry {}",
            position.index, last.index
        ))),
        _ => Ok(()),
    }
}

/// Token of the last applied entry: log index plus index base.
#[must_use]
pub fn token_of(resident: &Resident) -> u64 {
    let index = resident.applied.position.map_or(0, |p| p.index);
    index.saturating_add(resident.cluster.index_base)
}

impl Machine for Replica {
    fn applied(&self) -> Applied {
        self.resident.read().as_applied()
    }

    fn durable_index(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    fn apply(&self, entries: Vec<CommittedEntry>) -> Result<Vec<EntryAnswer>, Fault> {
        entries
            .into_iter()
            .map(|entry| self.apply_one(entry))
            .collect()
    }

    fn flush(&self) -> Result<u64, Fault> {
        let index = self.resident.read().applied.position.map_or(0, |p| p.index);
        self.unflushed_commands.store(0, Ordering::Relaxed);
        self.store.flush()?;
        // An install may have moved it further meanwhile.
        Ok(self.durable.fetch_max(index, Ordering::AcqRel).max(index))
    }

    fn checkpoint(&self) -> Result<(Applied, Arc<dyn Checkpoint>), Fault> {
        let checkpoint = self.store.checkpoint()?;
        let view = checkpoint.view()?;
        let applied = Resident::load(view.as_ref())?.as_applied();
        Ok((applied, checkpoint))
    }

    fn stage(&self) -> Result<Box<dyn Staging>, Fault> {
        self.store.stage()
    }

    fn install(&self, staged: Box<dyn Staging>) -> Result<Applied, Fault> {
        let mut resident = self.resident.write();
        self.store.install(staged)?;
        *resident = Resident::load(self.store.as_ref() as &dyn View)?;
        let applied = resident.as_applied();
        drop(resident);
        self.durable
            .store(applied.position.map_or(0, |p| p.index), Ordering::Release);
        self.sink.read().replaced();
        Ok(applied)
    }
}
