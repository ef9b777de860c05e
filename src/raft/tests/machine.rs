//! A small machine for tests: it keeps position, membership and a count of batches in a memory store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;

use crate::fault::Fault;
use crate::state::machine::{Applied, CommittedEntry, EntryAnswer, Machine, Payload, Position};
use crate::store::log::fields::{Reader, Writer};
use crate::store::{Checkpoint, Family, MemStore, Staging, StateStore, View, WriteBatch};

const APPLIED: &[u8] = b"applied";

/// What the machine stores.
#[derive(Default)]
struct Row {
    applied: Applied,
    batches: u64,
}

fn put(w: &mut Writer, p: &Position) {
    w.u64(p.term);
    w.u64(p.leader);
    w.u64(p.index);
}

fn take(r: &mut Reader) -> Result<Position, Fault> {
    Ok(Position {
        term: r.u64()?,
        leader: r.u64()?,
        index: r.u64()?,
    })
}

fn read(view: &dyn View) -> Result<Row, Fault> {
    let Some(bytes) = view.get(Family::Meta, APPLIED)? else {
        return Ok(Row::default());
    };
    let mut r = Reader::new(Bytes::from(bytes), "test machine");
    let batches = r.u64()?;
    let position = Some(take(&mut r)?);
    let membership = if r.bool()? {
        Some((take(&mut r)?, r.bytes()?))
    } else {
        None
    };
    let applied = Applied {
        position,
        membership,
    };
    Ok(Row { applied, batches })
}

/// A [`Machine`] whose durable index can be held back and whose apply can be made to fail.
pub(super) struct TestMachine {
    store: Arc<MemStore>,
    durable_max: AtomicU64,
    fails: AtomicBool,
}

impl TestMachine {
    pub(super) fn open(store: Arc<MemStore>) -> Arc<Self> {
        Arc::new(Self {
            store,
            durable_max: AtomicU64::new(u64::MAX),
            fails: AtomicBool::new(false),
        })
    }

    /// From now on nothing above `index` counts as durable.
    pub(super) fn hold_durable(&self, index: u64) {
        self.durable_max.store(index, Ordering::SeqCst);
    }

    /// The next apply fails.
    pub(super) fn fail(&self) {
        self.fails.store(true, Ordering::SeqCst);
    }

    /// How many batches were ever applied.
    pub(super) fn batches(&self) -> Result<u64, Fault> {
        Ok(read(self.store.as_ref())?.batches)
    }
}

impl Machine for TestMachine {
    fn applied(&self) -> Applied {
        read(self.store.as_ref()).unwrap_or_default().applied
    }

    fn durable_index(&self) -> u64 {
        let applied = self.applied().position.map_or(0, |p| p.index);
        applied.min(self.durable_max.load(Ordering::SeqCst))
    }

    fn apply(&self, entries: Vec<CommittedEntry>) -> Result<Vec<EntryAnswer>, Fault> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(Fault::invariant("told to fail"));
        }
        let mut row = read(self.store.as_ref())?;
        let mut answers = Vec::new();
        for entry in entries {
            row.applied.position = Some(entry.position);
            let answer: EntryAnswer = match entry.payload {
                Payload::Blank => None,
                Payload::Membership(bytes) => {
                    row.applied.membership = Some((entry.position, bytes));
                    None
                }
                Payload::Batch(_) => {
                    row.batches += 1;
                    Some(Arc::new(row.batches))
                }
            };
            answers.push(answer);
        }
        let mut w = Writer::default();
        w.u64(row.batches);
        if let Some(position) = &row.applied.position {
            put(&mut w, position);
        }
        w.bool(row.applied.membership.is_some());
        if let Some((position, bytes)) = &row.applied.membership {
            put(&mut w, position);
            w.bytes(bytes);
        }
        let mut batch = WriteBatch::default();
        batch.put(Family::Meta, APPLIED.to_vec(), w.finish());
        self.store.write(batch)?;
        Ok(answers)
    }

    fn flush(&self) -> Result<u64, Fault> {
        self.store.flush()?;
        Ok(self.durable_index())
    }

    fn checkpoint(&self) -> Result<(Applied, Arc<dyn Checkpoint>), Fault> {
        let checkpoint = self.store.checkpoint()?;
        let applied = read(checkpoint.view()?.as_ref())?.applied;
        Ok((applied, checkpoint))
    }

    fn stage(&self) -> Result<Box<dyn Staging>, Fault> {
        self.store.stage()
    }

    fn install(&self, staged: Box<dyn Staging>) -> Result<Applied, Fault> {
        self.store.install(staged)?;
        Ok(self.applied())
    }
}
