//! Reading the stored due index in bounded pages.
//!
//! Callers: `leader::due_index`, the office's jobs. Pure over a view; it may block on the disk.

use std::ops::ControlFlow;

use crate::fault::Fault;
use crate::ids::TenantNo;
use crate::store::due::{self, DueEntry, Level, SHARDS};
use crate::store::{Direction, KeyRange, View};
use crate::time::{Millis, Timestamp};

/// Entries of a page.
pub const PAGE_ENTRIES: usize = 2_000;
/// Rows that a page examines at most.
const PAGE_ROWS: usize = 20_000;

/// Where a read of the index goes on.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The level.
    pub level: Level,
    /// Only this tenant's entries; `None`: all.
    pub tenant: Option<TenantNo>,
    /// What is left to read, in reverse order.
    ranges: Vec<KeyRange>,
}

/// What one step of a [`Scan`] found.
#[derive(Debug)]
pub struct Page {
    /// The entries, in the order of their keys.
    pub entries: Vec<DueEntry>,
    /// What is left; `None`: nothing.
    pub rest: Option<Scan>,
}

impl Scan {
    /// Everything of `level` in `from..to`. Whole buckets are one range; a bucket that is cut by a bound is one range a
    /// shard, so that what lies outside (tombstones, mostly) is never walked over.
    #[must_use]
    pub fn new(level: Level, from: Timestamp, to: Timestamp) -> Self {
        let mut ranges = Vec::new();
        let (first, last) = (level.bucket(from), level.bucket(to));
        if from < to {
            let whole = if due::bucket_start(first) == prefix(level, from) {
                first
            } else {
                let end = if first == last { to } else { Timestamp::MAX };
                cut(level, from, end, 0..SHARDS, &mut ranges);
                first + 1
            };
            if whole < last {
                ranges.push(KeyRange::new(
                    due::bucket_start(whole),
                    due::bucket_start(last),
                ));
            }
            if whole <= last {
                let start = Timestamp::MIN.plus(Millis(u64::from(last) * level.width().0));
                cut(level, start, to, 0..SHARDS, &mut ranges);
            }
        }
        ranges.reverse();
        Self {
            level,
            tenant: None,
            ranges,
        }
    }

    /// The entries of one tenant of `level` in `from..to`.
    #[must_use]
    pub fn of_tenant(level: Level, tenant: TenantNo, from: Timestamp, to: Timestamp) -> Self {
        let mut ranges = Vec::new();
        let shard = due::shard(tenant);
        let mut from = from;
        while from < to {
            let next = u64::from(level.bucket(from)) + 1;
            let end = Timestamp::MIN.plus(Millis(next * level.width().0));
            cut(level, from, end.min(to), shard..shard + 1, &mut ranges);
            from = end;
        }
        ranges.reverse();
        Self {
            level,
            tenant: Some(tenant),
            ranges,
        }
    }

    /// Reads on. May block on the disk.
    ///
    /// # Errors
    /// Any [`Fault`] of reading; [`Fault::Corrupt`] for a key that is none of the index.
    pub fn read(mut self, view: &dyn View) -> Result<Page, Fault> {
        let mut entries = Vec::new();
        let mut rows = 0;
        let mut fault = None;
        let family = self.level.family();
        while let Some(range) = self.ranges.pop() {
            let mut stopped = None;
            view.scan(family, &range, Direction::Forward, &mut |key, _| {
                if entries.len() >= PAGE_ENTRIES || rows >= PAGE_ROWS {
                    stopped = Some(key.to_vec());
                    return ControlFlow::Break(());
                }
                rows += 1;
                match DueEntry::decode(self.level, key) {
                    Some(entry) if self.tenant.is_none_or(|t| t == entry.tenant) => {
                        entries.push(entry);
                    }
                    Some(_) => {}
                    None => {
                        fault = Some(Fault::corrupt("a key of the due index"));
                        return ControlFlow::Break(());
                    }
                }
                ControlFlow::Continue(())
            })?;
            if let Some(fault) = fault {
                return Err(fault);
            }
            if let Some(from) = stopped {
                self.ranges.push(KeyRange { from, ..range });
                let rest = Some(self);
                return Ok(Page { entries, rest });
            }
        }
        Ok(Page {
            entries,
            rest: None,
        })
    }
}

/// The bytes of a bucket's start if `at` is exactly that, else something else.
fn prefix(level: Level, at: Timestamp) -> Vec<u8> {
    let offset = at.since(Timestamp::MIN).0;
    if offset.is_multiple_of(level.width().0) {
        due::bucket_start(level.bucket(at))
    } else {
        Vec::new()
    }
}

/// One range a shard for the part of the bucket of `from` that lies before `to`.
fn cut(
    level: Level,
    from: Timestamp,
    to: Timestamp,
    shards: std::ops::Range<u8>,
    out: &mut Vec<KeyRange>,
) {
    let bucket = level.bucket(from);
    for shard in shards {
        let end = if level.bucket(to) == bucket {
            due::seek(level, shard, to)
        } else {
            let mut end = due::bucket_start(bucket);
            end.push(shard + 1);
            end
        };
        let range = KeyRange::new(due::seek(level, shard, from), end);
        if !range.is_empty() {
            out.push(range);
        }
    }
}
