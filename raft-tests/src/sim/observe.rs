//! The checks that hold for any workload.
//!
//! Purpose: compare what every node applies with what was first applied at that index, and every acknowledged entry with
//! what the nodes hold in the end.
//! Callers: [`super::world`] wraps each machine; workloads report acknowledgements.
//! Invariants checked:
//! 1. Agreement: at one index every node, in every life, applies the same entry (term, leader, content).
//! 2. Order: a life applies consecutive indexes, or jumps forward by an installed image.
//! 3. Durability: an acknowledged entry is what was applied at its index.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use punctual::fault::Fault;
use punctual::state::machine::{Applied, CommittedEntry, EntryAnswer, Machine, Payload, Position};
use punctual::store::{Checkpoint, Staging};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::ledger::Counters;
use super::runtime::Scope;
use super::trace::Trace;

#[derive(Default)]
struct Inner {
    first: BTreeMap<u64, (u64, u64)>,
    acked: BTreeMap<u64, u64>,
    violations: Vec<String>,
}

/// Everything seen so far.
#[derive(Clone)]
pub struct Observer {
    inner: Arc<Mutex<Inner>>,
    trace: Trace,
    counters: Counters,
}

/// Identifies content at a position.
#[must_use]
pub fn entry_hash(position: &Position, payload: &Payload) -> u64 {
    let (kind, bytes): (u64, &[u8]) = match payload {
        Payload::Blank => (0, &[]),
        Payload::Membership(bytes) => (1, bytes),
        Payload::Batch(bytes) => (2, bytes),
    };
    let mut hash = xxh3_64_with_seed(bytes, kind);
    for number in [position.term, position.leader, position.index] {
        hash = xxh3_64_with_seed(&number.to_le_bytes(), hash);
    }
    hash
}

impl Observer {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(trace: Trace, counters: Counters) -> Self {
        Self {
            inner: Arc::default(),
            trace,
            counters,
        }
    }

    /// Records a broken rule. The run goes on, so that more may be seen, and fails in the end.
    pub fn violation(&self, what: String) {
        self.trace.event("violation", 0, &[]);
        let at = self.trace.now_ms();
        self.inner
            .lock()
            .violations
            .push(format!("{at} ms: {what}"));
    }

    /// A client was told that `payload` is committed at `position`.
    pub fn acknowledged(&self, position: &Position, payload: &Bytes) {
        let hash = entry_hash(position, &Payload::Batch(payload.clone()));
        self.trace.event("ack", 0, &[position.index, hash]);
        self.counters.add("acked", 1);
        let other = {
            let mut inner = self.inner.lock();
            inner.acked.insert(position.index, hash)
        };
        if other.is_some_and(|other| other != hash) {
            self.violation(format!("two entries acknowledged at {}", position.index));
        }
    }

    fn applied(&self, scope: Scope, entry: &CommittedEntry) {
        let position = entry.position;
        let hash = entry_hash(&position, &entry.payload);
        self.trace
            .event("apply", scope.node, &[position.index, hash]);
        let first = {
            let mut inner = self.inner.lock();
            *inner
                .first
                .entry(position.index)
                .or_insert((hash, scope.node))
        };
        if first.0 != hash {
            self.violation(format!(
                "node {} applied another entry at {} than node {} did",
                scope.node, position.index, first.1
            ));
        }
    }

    /// Checks every acknowledgement against what was applied, and returns all violations.
    #[must_use]
    pub fn finish(&self) -> Vec<String> {
        let mut inner = self.inner.lock();
        let mut lost = Vec::new();
        for (index, hash) in &inner.acked {
            match inner.first.get(index) {
                Some((applied, _)) if applied == hash => {}
                Some(_) => lost.push(format!(
                    "acknowledged entry {index} is not what was applied there"
                )),
                None => lost.push(format!("acknowledged entry {index} was never applied")),
            }
        }
        inner.violations.append(&mut lost);
        inner.violations.clone()
    }

    /// The highest acknowledged index so far.
    #[must_use]
    pub fn last_acked(&self) -> u64 {
        let inner = self.inner.lock();
        inner.acked.last_key_value().map_or(0, |(index, _)| *index)
    }

    /// How many entries were acknowledged.
    #[must_use]
    pub fn acked(&self) -> u64 {
        self.inner.lock().acked.len() as u64
    }
}

/// A machine that tells the observer what it applies.
pub struct Observed {
    inner: Arc<dyn Machine>,
    observer: Observer,
    scope: Scope,
    next: Mutex<Option<u64>>,
}

impl Observed {
    /// Wraps `inner` for one life.
    #[must_use]
    pub fn new(inner: Arc<dyn Machine>, observer: Observer, scope: Scope) -> Self {
        let next = inner.applied().position.map(|p| p.index + 1);
        Self {
            inner,
            observer,
            scope,
            next: Mutex::new(next),
        }
    }
}

impl Machine for Observed {
    fn applied(&self) -> Applied {
        self.inner.applied()
    }

    fn durable_index(&self) -> u64 {
        self.inner.durable_index()
    }

    fn apply(&self, entries: Vec<CommittedEntry>) -> Result<Vec<EntryAnswer>, Fault> {
        for entry in &entries {
            let expected = self.next.lock().replace(entry.position.index + 1);
            if expected.is_some_and(|e| e != entry.position.index) {
                self.observer.violation(format!(
                    "node {} applied {} after {}",
                    self.scope.node,
                    entry.position.index,
                    expected.unwrap_or(0).saturating_sub(1)
                ));
            }
            self.observer.applied(self.scope, entry);
        }
        self.inner.apply(entries)
    }

    fn flush(&self) -> Result<u64, Fault> {
        self.inner.flush()
    }

    fn checkpoint(&self) -> Result<(Applied, Arc<dyn Checkpoint>), Fault> {
        self.observer.counters.add("checkpoints", 1);
        self.inner.checkpoint()
    }

    fn stage(&self) -> Result<Box<dyn Staging>, Fault> {
        self.inner.stage()
    }

    fn install(&self, staged: Box<dyn Staging>) -> Result<Applied, Fault> {
        let applied = self.inner.install(staged)?;
        let index = applied.position.map_or(0, |p| p.index);
        *self.next.lock() = Some(index + 1);
        self.observer
            .trace
            .event("install", self.scope.node, &[index]);
        self.observer.counters.add("snapshot_installs", 1);
        Ok(applied)
    }
}
