//! The thread that writes and syncs, and the one that keeps the record beside the log.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rocksdb::{WriteBatch, WriteOptions};

use super::super::record::{Watermark, encode_entry, encode_vote, encode_watermark};
use super::super::{LogPosition, LogRecord, LogVote, LogWrite, Synced};
use super::{ENTRIES, META, PURGED, Shared, VOTE, family, fault, key};
use crate::fault::Fault;

/// Most bytes of entries written and synced together.
const GROUP_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// How often the record beside the log follows.
const WITNESS_PAUSE: Duration = Duration::from_secs(1);
/// A truncation of more entries than this is written as one range.
const POINT_DELETES_MAX: u64 = 1_024;

/// The end of an entry: its checksum and the bytes of the log up to it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct End {
    pub(super) chain: u64,
    pub(super) offset: u64,
}

/// What is on disk, as far as the next write must know.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OnDisk {
    /// The vote.
    pub(super) vote: Option<LogVote>,
    /// The purge watermark.
    pub(super) mark: Option<Watermark>,
    /// Index of the last entry, or of the watermark when there is none.
    pub(super) last: Option<u64>,
    /// Where the next entry is chained to.
    pub(super) end: End,
}

type Queued = (LogWrite, Synced);

pub(super) fn start(shared: &Arc<Shared>, disk: OnDisk) -> Result<Vec<JoinHandle<()>>, Fault> {
    let thread = |name: &str, body: Box<dyn FnOnce() + Send>| {
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
            .map_err(|e| Fault::storage(format!("start thread {name}"), e))
    };
    let writing = Arc::clone(shared);
    let watching = Arc::clone(shared);
    Ok(vec![
        thread("log-writer", Box::new(move || write_on(&writing, disk)))?,
        thread("log-witness", Box::new(move || watch_on(&watching)))?,
    ])
}

/// What the thread does until the log is closed or fails.
fn write_on(shared: &Shared, mut disk: OnDisk) {
    loop {
        let group = {
            let mut state = shared.state.lock();
            while state.queue.is_empty() && !state.closing {
                shared.work.wait(&mut state);
            }
            if state.queue.is_empty() {
                return;
            }
            take_group(&mut state.queue)
        };
        let (writes, callbacks): (Vec<_>, Vec<_>) = group.into_iter().unzip();
        let outcome = carry_out(shared, &writes, disk).map(|after| disk = after);
        let abandoned = {
            let mut state = shared.state.lock();
            match &outcome {
                Ok(()) => {
                    settle(&mut state, disk.last);
                    Vec::new()
                }
                Err(fault) => {
                    state.failed = Some(fault.clone());
                    state.queue.drain(..).map(|(_, synced)| synced).collect()
                }
            }
        };
        for callback in callbacks.into_iter().chain(abandoned) {
            callback(outcome.clone());
        }
        if outcome.is_err() {
            return;
        }
    }
}

/// Lets memory forget what is on disk now.
fn settle(state: &mut super::State, last: Option<u64>) {
    // Behind a truncation that waits, an index on disk may hold another entry than memory does.
    let truncating = state
        .queue
        .iter()
        .any(|(write, _)| matches!(write, LogWrite::TruncateAfter(_)));
    if !truncating {
        state.synced = last;
        state.shrink();
    }
}

fn take_group(queue: &mut std::collections::VecDeque<Queued>) -> Vec<Queued> {
    let mut group = Vec::new();
    let mut bytes = 0u64;
    while let Some(next) = queue.pop_front() {
        if let LogWrite::Append(records) = &next.0 {
            bytes = bytes.saturating_add(records.iter().map(LogRecord::weight).sum());
        }
        group.push(next);
        if bytes >= GROUP_BYTES_MAX {
            break;
        }
    }
    group
}

/// Writes a group unsynced, syncs once, and tells the record beside the log.
fn carry_out(shared: &Shared, writes: &[LogWrite], disk: OnDisk) -> Result<OnDisk, Fault> {
    for write in writes {
        // Before anything of the group is on disk: the record must never claim what a truncation takes away.
        if let LogWrite::TruncateAfter(after) = write {
            shared.witness.lower(*after)?;
        }
    }
    let mut group = Group {
        shared,
        batch: WriteBatch::default(),
        disk,
        written: Vec::new(),
    };
    for write in writes {
        group.add(write)?;
    }
    let Group { batch, disk, .. } = group;
    let mut options = WriteOptions::default();
    options.set_sync(false);
    shared
        .db
        .write_opt(batch, &options)
        .map_err(|e| fault("write", e))?;
    shared.db.flush_wal(true).map_err(|e| fault("sync", e))?;
    shared.witness.observe(disk.vote, disk.last);
    Ok(disk)
}

struct Group<'a> {
    shared: &'a Shared,
    batch: WriteBatch,
    /// What will be on disk after `batch`.
    disk: OnDisk,
    /// Index and end of entries in `batch`, which the database does not hold yet.
    written: Vec<(u64, End)>,
}

impl Group<'_> {
    fn add(&mut self, write: &LogWrite) -> Result<(), Fault> {
        match write {
            LogWrite::Vote(vote) => {
                let meta = family(&self.shared.db, META)?;
                self.batch.put_cf(&meta, VOTE, encode_vote(vote));
                self.disk.vote = Some(*vote);
                Ok(())
            }
            LogWrite::Append(records) => self.append(records),
            LogWrite::TruncateAfter(after) => self.truncate(*after),
            LogWrite::Purge(upto) => self.purge(upto),
        }
    }

    fn append(&mut self, records: &[LogRecord]) -> Result<(), Fault> {
        let entries = family(&self.shared.db, ENTRIES)?;
        for record in records {
            let End { chain, offset } = self.disk.end;
            let (bytes, chain) = encode_entry(record, offset, chain);
            let index = record.position.index;
            self.batch.put_cf(&entries, key(index), bytes);
            self.disk.end = End {
                chain,
                offset: offset.saturating_add(record.weight()),
            };
            self.disk.last = Some(index);
            self.written.push((index, self.disk.end));
        }
        Ok(())
    }

    /// The end of entry `index`, from this batch or the database.
    fn end_of(&self, index: u64) -> Result<Option<End>, Fault> {
        if let Some((_, end)) = self.written.iter().rev().find(|(at, _)| *at == index) {
            return Ok(Some(*end));
        }
        let stored = self.shared.stored(index)?;
        Ok(stored.map(|stored| End {
            chain: stored.chain,
            offset: stored.offset.saturating_add(stored.record.weight()),
        }))
    }

    fn truncate(&mut self, after: Option<u64>) -> Result<(), Fault> {
        let purged = self.disk.mark.map(|mark| mark.position.index);
        let after = after.max(purged);
        let from = after.map_or(0, |after| after.saturating_add(1));
        let Some(last) = self.disk.last.filter(|last| *last >= from) else {
            return Ok(());
        };
        let entries = family(&self.shared.db, ENTRIES)?;
        if last - from < POINT_DELETES_MAX {
            for index in from..=last {
                self.batch.delete_cf(&entries, key(index));
            }
        } else {
            let end = key(last.saturating_add(1));
            self.batch.delete_range_cf(&entries, key(from), end);
        }
        let marked = self.disk.mark.map(|mark| End {
            chain: mark.chain,
            offset: mark.offset,
        });
        self.disk.end = match after {
            None => End::default(),
            Some(after) if Some(after) == purged => marked.unwrap_or_default(),
            Some(after) => self
                .end_of(after)?
                .ok_or_else(|| Fault::corrupt(format!("log: entry {after} is missing")))?,
        };
        self.disk.last = after;
        self.written.retain(|(at, _)| *at < from);
        Ok(())
    }

    fn purge(&mut self, upto: &LogPosition) -> Result<(), Fault> {
        let index = upto.index;
        if self.disk.mark.is_some_and(|m| m.position.index >= index) {
            return Ok(());
        }
        let held = self.disk.last.is_some_and(|last| last >= index);
        let end = if held { self.end_of(index)? } else { None };
        // Beyond the last entry (an installed snapshot) the chain begins anew.
        let end = end.unwrap_or(End {
            chain: index,
            offset: self.disk.end.offset,
        });
        let mark = Watermark {
            position: *upto,
            chain: end.chain,
            offset: end.offset,
        };
        let meta = family(&self.shared.db, META)?;
        let entries = family(&self.shared.db, ENTRIES)?;
        self.batch.put_cf(&meta, PURGED, encode_watermark(&mark));
        let past = key(index.saturating_add(1));
        self.batch.delete_range_cf(&entries, key(0), past);
        self.disk.mark = Some(mark);
        if !held {
            self.disk.end = end;
            self.disk.last = Some(index);
        }
        Ok(())
    }
}

/// Raises the record beside the log once a second, and drops files that a purge has emptied.
fn watch_on(shared: &Shared) {
    let mut dropped = None;
    loop {
        let (closing, purged) = {
            let mut state = shared.state.lock();
            if !state.closing && state.failed.is_none() {
                shared.closing.wait_for(&mut state, WITNESS_PAUSE);
            }
            let ended = state.closing || state.failed.is_some();
            (ended, state.tail.purged.map(|p| p.index))
        };
        if closing {
            // The last group may still be under way; what it adds is witnessed at the next start.
            let _closing = shared.witness.raise();
            return;
        }
        if let Err(fault) = shared.witness.raise() {
            shared.state.lock().failed = Some(fault);
            return;
        }
        if purged > dropped {
            dropped = purged;
            drop_files(shared, purged);
        }
    }
}

/// Whole files below the watermark; what the range deletion left is only space.
fn drop_files(shared: &Shared, purged: Option<u64>) {
    let (Some(upto), Ok(entries)) = (purged, family(&shared.db, ENTRIES)) else {
        return;
    };
    let done = shared
        .db
        .delete_file_in_range_cf(&entries, key(0), key(upto));
    if let Err(error) = done {
        tracing::warn!(%error, "files of purged log entries are kept for now");
    }
}
