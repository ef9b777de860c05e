//! The log on RocksDB.
//!
//! Purpose: the durable [`LogStore`] of a real node, in `<data directory>/log`, apart from the state.
//! Callers: `node` opens it; `raft` uses it through the trait.
//! Invariants:
//! 1. One thread writes: it takes everything submitted so far, writes it unsynced in one batch, syncs the write-ahead log
//!    once for all of it, then runs the callbacks.
//! 2. The newest entries are in memory: everything not yet synced, and about [`TAIL_BYTES`] besides. Raft never waits for
//!    a write, and replication rarely reads the disk.
//! 3. An entry on disk is chained to the one before it by its checksum.
//!
//! Order of reading: this file, `rocks/opening.rs`, `rocks/writer.rs`.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use rocksdb::{DB, Direction, IteratorMode};

use super::image::Image;
use super::record::{Stored, decode_entry};
use super::witness::Witness;
use super::{LogRecord, LogStatus, LogStore, LogWrite, Synced};
use crate::fault::Fault;

mod opening;
mod writer;

/// Bytes of synced entries kept in memory.
const TAIL_BYTES: u64 = 16 * 1024 * 1024;
const ENTRIES: &str = "entries";
const META: &str = "meta";
const VOTE: &[u8] = b"vote";
const PURGED: &[u8] = b"purged";

fn key(index: u64) -> [u8; 8] {
    index.to_be_bytes()
}

fn fault(what: &str, error: rocksdb::Error) -> Fault {
    Fault::storage(format!("log: {what}"), error)
}

fn family<'a>(db: &'a DB, name: &str) -> Result<Arc<rocksdb::BoundColumnFamily<'a>>, Fault> {
    db.cf_handle(name)
        .ok_or_else(|| Fault::corrupt(format!("log: family {name} is missing")))
}

struct State {
    /// Vote, purge watermark and the newest entries; older ones are on disk only.
    tail: Image,
    /// Bytes of the entries in `tail`.
    tail_bytes: u64,
    /// The first index that could be held; `tail` starts later when older entries are on disk only.
    first: u64,
    /// The last entry, also when `tail` is empty.
    last: Option<super::LogPosition>,
    /// Everything up to here is synced.
    synced: Option<u64>,
    queue: VecDeque<(LogWrite, Synced)>,
    /// Counts truncations and purges: a read from disk that one overlapped is repeated.
    generation: u64,
    failed: Option<Fault>,
    closing: bool,
}

struct Shared {
    db: DB,
    state: Mutex<State>,
    /// Something is queued, or the log is closing.
    work: Condvar,
    /// The log is closing.
    closing: Condvar,
    witness: Witness,
}

/// A [`LogStore`] on disk. Dropping it writes what was submitted and stops its threads.
pub struct RocksLog {
    shared: Arc<Shared>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl RocksLog {
    /// Opens the log below `data_dir`, creating an empty one if there is none. Checks the newest entries and compares the
    /// log with the record beside it. With `accept_loss` a log that has lost data is taken as it is, once. Blocks.
    ///
    /// # Errors
    /// [`Fault::Corrupt`] for damaged entries or a loss (the text names the way out); [`Fault::Storage`].
    pub fn open(data_dir: &Path, accept_loss: bool) -> Result<Self, Fault> {
        opening::open(data_dir, accept_loss)
    }
}

/// Where a stopped node's log below `data_dir` begins and ends; `None` if there is none. The newest entries are checked,
/// nothing is changed. Blocks.
///
/// # Errors
/// As [`RocksLog::open`].
pub fn survey(data_dir: &Path) -> Result<Option<LogStatus>, Fault> {
    opening::survey(data_dir)
}

impl Drop for RocksLog {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state.lock();
            state.closing = true;
            self.shared.work.notify_all();
            self.shared.closing.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A panic of the writer has already failed the log.
            let _panicked = thread.join();
        }
        self.shared.db.cancel_all_background_work(true);
    }
}

impl State {
    fn alive(&self) -> Result<(), Fault> {
        match &self.failed {
            Some(fault) => Err(fault.clone()),
            None if self.closing => Err(Fault::invariant("the log is closed")),
            None => Ok(()),
        }
    }

    fn status(&self) -> LogStatus {
        LogStatus {
            vote: self.tail.vote,
            purged: self.tail.purged,
            last: self.last,
        }
    }

    /// Refuses a hole. (The image's own check would not do: it does not know what is on disk only.)
    fn check(&self, write: &LogWrite) -> Result<(), Fault> {
        let LogWrite::Append(records) = write else {
            return Ok(());
        };
        let mut before = self.last.map(|last| last.index);
        for record in records {
            let index = record.position.index;
            if before.is_some_and(|before| before.saturating_add(1) != index) {
                return Err(Fault::invariant(format!(
                    "append of entry {index} to a log that ends at {before:?}"
                )));
            }
            before = Some(index);
        }
        Ok(())
    }

    fn recount(&mut self) {
        self.tail_bytes = self
            .tail
            .records
            .iter()
            .map(|placed| placed.record.weight())
            .sum();
    }

    /// Drops the oldest synced entries from memory.
    fn shrink(&mut self) {
        while self.tail_bytes > TAIL_BYTES {
            let Some(oldest) = self.tail.records.front() else {
                return;
            };
            let index = oldest.record.position.index;
            if self.synced.is_none_or(|synced| index > synced) || self.tail.records.len() == 1 {
                return;
            }
            self.tail_bytes = self.tail_bytes.saturating_sub(oldest.record.weight());
            self.tail.records.pop_front();
        }
    }
}

impl Shared {
    fn stored(&self, index: u64) -> Result<Option<Stored>, Fault> {
        let entries = family(&self.db, ENTRIES)?;
        let bytes = self
            .db
            .get_cf(&entries, key(index))
            .map_err(|e| fault("read an entry", e))?;
        bytes.map(|b| decode_entry(&Bytes::from(b))).transpose()
    }

    /// Entries of `[from, to)` on disk, chained and without holes.
    fn scan(&self, from: u64, to: u64, max_bytes: u64) -> Result<Vec<LogRecord>, Fault> {
        let entries = family(&self.db, ENTRIES)?;
        let start = key(from);
        let mode = IteratorMode::From(&start, Direction::Forward);
        let mut taken: Vec<LogRecord> = Vec::new();
        let (mut bytes, mut chain) = (0u64, None);
        for pair in self.db.iterator_cf(&entries, mode) {
            let (_, value) = pair.map_err(|e| fault("scan entries", e))?;
            let stored = decode_entry(&Bytes::from(value.into_vec()))?;
            let index = stored.record.position.index;
            if index >= to {
                break;
            }
            let expected = from.saturating_add(taken.len() as u64);
            if index != expected || chain.is_some_and(|chain| chain != stored.before) {
                return Err(Fault::corrupt(format!(
                    "log: entry {expected} is missing or does not follow the one before it"
                )));
            }
            bytes = bytes.saturating_add(stored.record.weight());
            if bytes > max_bytes && !taken.is_empty() {
                break;
            }
            chain = Some(stored.chain);
            taken.push(stored.record);
        }
        Ok(taken)
    }

    fn truncate(&self, state: &mut State, after: Option<u64>) -> Result<(), Fault> {
        let reaches_disk = match (after, state.tail.records.front()) {
            (Some(after), Some(first)) => after < first.record.position.index,
            (Some(after), None) => state.last.is_some_and(|last| after < last.index),
            (None, _) => false,
        };
        state.generation += 1;
        state.tail.truncate_after(after);
        state.last = match after {
            // What is left is synced and no queued write touches it, else it would be in memory.
            Some(after) if reaches_disk && after >= state.first => {
                let stored = self.stored(after)?;
                let Some(stored) = stored else {
                    return Err(Fault::corrupt(format!("log: entry {after} is missing")));
                };
                state.tail.end_offset = stored.offset + stored.record.weight();
                Some(stored.record.position)
            }
            _ => {
                let newest = state.tail.records.back().map(|p| p.record.position);
                newest.or(state.tail.purged)
            }
        };
        state.synced = state.synced.min(state.last.map(|p| p.index));
        state.recount();
        Ok(())
    }

    fn apply(&self, state: &mut State, write: &LogWrite) -> Result<(), Fault> {
        match write {
            LogWrite::Vote(_) => state.tail.apply(write),
            LogWrite::Append(records) => {
                if state.last.is_none()
                    && let Some(first) = records.first()
                {
                    state.first = first.position.index;
                }
                state.tail.apply(write);
                state.last = records.last().map(|r| r.position).or(state.last);
                let added: u64 = records.iter().map(LogRecord::weight).sum();
                state.tail_bytes = state.tail_bytes.saturating_add(added);
                state.shrink();
            }
            LogWrite::TruncateAfter(after) => self.truncate(state, *after)?,
            LogWrite::Purge(upto) => {
                state.generation += 1;
                state.tail.purge(*upto);
                state.first = state.first.max(upto.index.saturating_add(1));
                if state.last.is_none_or(|last| last.index <= upto.index) {
                    state.last = state.tail.purged;
                }
                state.recount();
            }
        }
        Ok(())
    }
}

impl LogStore for RocksLog {
    fn status(&self) -> Result<LogStatus, Fault> {
        let state = self.shared.state.lock();
        state.alive()?;
        Ok(state.status())
    }

    fn submit(&self, write: LogWrite, synced: Synced) -> Result<(), Fault> {
        let mut state = self.shared.state.lock();
        state.alive()?;
        state.check(&write)?;
        self.shared.apply(&mut state, &write)?;
        state.queue.push_back((write, synced));
        self.shared.work.notify_one();
        Ok(())
    }

    fn read(&self, from: u64, to: u64, max_bytes: u64) -> Result<Vec<LogRecord>, Fault> {
        loop {
            let (start, on_disk_to, generation) = {
                let state = self.shared.state.lock();
                state.alive()?;
                let start = from.max(state.first);
                let tail_from = state
                    .tail
                    .records
                    .front()
                    .map(|placed| placed.record.position.index);
                let disk_to = tail_from
                    .or(state.last.map(|last| last.index.saturating_add(1)))
                    .unwrap_or(0);
                if start >= disk_to {
                    return Ok(state.tail.read(start, to, max_bytes));
                }
                (start, disk_to.min(to), state.generation)
            };
            let mut taken = match self.shared.scan(start, on_disk_to, max_bytes) {
                Ok(taken) => taken,
                Err(fault) => {
                    // Perhaps only the effect of a purge that ran meanwhile.
                    if self.shared.state.lock().generation != generation {
                        continue;
                    }
                    return Err(fault);
                }
            };
            let state = self.shared.state.lock();
            if state.generation != generation {
                continue;
            }
            let next = start.saturating_add(taken.len() as u64);
            let bytes: u64 = taken.iter().map(LogRecord::weight).sum();
            if next >= on_disk_to && next < to && bytes < max_bytes {
                taken.extend(state.tail.read(next, to, max_bytes - bytes));
            }
            return Ok(taken);
        }
    }

    fn offset(&self, index: u64) -> Result<Option<u64>, Fault> {
        {
            let state = self.shared.state.lock();
            state.alive()?;
            if let Some(placed) = state.tail.get(index) {
                return Ok(Some(placed.offset));
            }
            let held = index >= state.first && state.last.is_some_and(|last| index <= last.index);
            if !held {
                return Ok(None);
            }
        }
        Ok(self.shared.stored(index)?.map(|stored| stored.offset))
    }
}

#[cfg(test)]
mod tests;
