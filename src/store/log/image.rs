//! The log as plain data: what one sequence of writes leads to.
//!
//! Purpose: the rules of the log (no holes, what a truncate and a purge mean) in one place for all implementations.
//! Callers: [`super::mem`], [`super::rocks`](super).
//! Invariants: `records` are consecutive and begin right after `purged`.

use std::collections::VecDeque;

use super::{LogPosition, LogRecord, LogStatus, LogVote, LogWrite};
use crate::fault::Fault;

/// One record and the bytes of the log before it.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) record: LogRecord,
    pub(super) offset: u64,
}

/// A whole log in memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Image {
    pub(super) vote: Option<LogVote>,
    pub(super) purged: Option<LogPosition>,
    pub(super) records: VecDeque<Placed>,
    /// Bytes of the log after the last record.
    pub(super) end_offset: u64,
}

impl Image {
    pub(super) fn status(&self) -> LogStatus {
        LogStatus {
            vote: self.vote,
            purged: self.purged,
            last: self
                .records
                .back()
                .map(|p| p.record.position)
                .or(self.purged),
        }
    }

    /// The index of the first record that could be held.
    pub(super) fn first_index(&self) -> u64 {
        match self.records.front() {
            Some(first) => first.record.position.index,
            None => self.purged.map_or(0, |p| p.index.saturating_add(1)),
        }
    }

    fn next_index(&self) -> u64 {
        self.status()
            .last
            .map_or(0, |last| last.index.saturating_add(1))
    }

    pub(super) fn get(&self, index: u64) -> Option<&Placed> {
        let at = index.checked_sub(self.first_index())?;
        self.records.get(usize::try_from(at).ok()?)
    }

    /// Checks `write` without applying it.
    pub(super) fn check(&self, write: &LogWrite) -> Result<(), Fault> {
        if let LogWrite::Append(records) = write {
            // An empty log accepts any first index: the first entry of a cluster is 0, and a restored one starts
            // after its snapshot.
            let mut expected = match records.first() {
                Some(first) if self.status().last.is_none() => first.position.index,
                _ => self.next_index(),
            };
            for record in records {
                if record.position.index != expected {
                    return Err(Fault::invariant(format!(
                        "append of entry {} to a log whose next index is {expected}",
                        record.position.index
                    )));
                }
                expected = expected.saturating_add(1);
            }
        }
        Ok(())
    }

    pub(super) fn apply(&mut self, write: &LogWrite) {
        match write {
            LogWrite::Vote(vote) => self.vote = Some(*vote),
            LogWrite::Append(records) => {
                for record in records {
                    self.push(record.clone());
                }
            }
            LogWrite::TruncateAfter(after) => self.truncate_after(*after),
            LogWrite::Purge(upto) => self.purge(*upto),
        }
    }

    pub(super) fn push(&mut self, record: LogRecord) {
        let offset = self.end_offset;
        self.end_offset = offset.saturating_add(record.weight());
        self.records.push_back(Placed { record, offset });
    }

    pub(super) fn truncate_after(&mut self, after: Option<u64>) {
        while let Some(last) = self.records.back() {
            if after.is_some_and(|after| last.record.position.index <= after) {
                break;
            }
            self.end_offset = last.offset;
            self.records.pop_back();
        }
    }

    pub(super) fn purge(&mut self, upto: LogPosition) {
        if self.purged.is_some_and(|purged| purged.index >= upto.index) {
            return;
        }
        self.purged = Some(upto);
        while self
            .records
            .front()
            .is_some_and(|first| first.record.position.index <= upto.index)
        {
            self.records.pop_front();
        }
    }

    pub(super) fn read(&self, from: u64, to: u64, max_bytes: u64) -> Vec<LogRecord> {
        let mut taken = Vec::new();
        let mut bytes = 0u64;
        let start = from.max(self.first_index());
        for index in start..to {
            let Some(placed) = self.get(index) else {
                break;
            };
            bytes = bytes.saturating_add(placed.record.weight());
            if bytes > max_bytes && !taken.is_empty() {
                break;
            }
            taken.push(placed.record.clone());
        }
        taken
    }
}
