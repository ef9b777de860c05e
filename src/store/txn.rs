//! The overlay through which apply reads and writes.
//!
//! Purpose: a command sees what the commands before it in the same entry wrote, ranges included,
//! and the whole entry becomes one [`WriteBatch`].
//! Callers: `state` (one `Txn` per log entry), the leader's planning on top of a snapshot.
//! Invariants:
//! 1. Reads equal those of a store in which every put and delete so far had been written.
//! 2. The base must not change while the overlay lives (one writer: the apply thread);
//!    [`Txn::prefetch`] therefore never gives a stale value.
//! 3. Order comes from sorted maps only, so that the same calls give the same batch on every node.
//!
//! Tests: `txn/tests.rs`, and the conformance suite runs a `Txn` over every store.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Range;
use std::iter::Peekable;
use std::ops::{Bound, ControlFlow};

use super::{Direction, Family, KeyRange, PerFamily, View, Visit, WriteBatch};
use crate::fault::Fault;

/// Pending writes of one family; `None` is a delete.
type Pending = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// Base values read ahead, sorted by key without repeats; `None` is a known absence. A sorted
/// vector: filled in one go, read many times, and never iterated for anything that is replicated.
type Fetched = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// Uncommitted puts and deletes over a base [`View`].
///
/// Dropping it forgets the writes. It blocks where the base blocks: on the disk, unless the key was
/// prefetched.
pub struct Txn<'a> {
    base: &'a dyn View,
    pending: PerFamily<Pending>,
    fetched: PerFamily<Fetched>,
}

impl<'a> Txn<'a> {
    /// An empty overlay over `base`.
    #[must_use]
    pub fn new(base: &'a dyn View) -> Self {
        Self {
            base,
            pending: PerFamily::default(),
            fetched: PerFamily::default(),
        }
    }

    /// Reads the base values of `keys` (any order, repeats allowed) with one sorted read per
    /// family, so that [`Txn::get`] finds them in memory. Keys written or prefetched before are not
    /// read again.
    ///
    /// # Errors
    /// [`Fault::Storage`] when the engine cannot read; nothing of the failing family is kept.
    pub fn prefetch(&mut self, mut keys: Vec<(Family, Vec<u8>)>) -> Result<(), Fault> {
        keys.retain(|(family, key)| self.known(*family, key).is_none());
        keys.sort_unstable();
        keys.dedup();
        for group in keys.chunk_by_mut(|a, b| a.0 == b.0) {
            let Some(family) = group.first().map(|(family, _)| *family) else {
                continue;
            };
            let wanted: Vec<&[u8]> = group.iter().map(|(_, key)| key.as_slice()).collect();
            let values = self.base.multi_get(family, &wanted)?;
            if values.len() != group.len() {
                return Err(Fault::invariant("multi_get answers each key"));
            }
            let found = group
                .iter_mut()
                .map(|(_, key)| std::mem::take(key))
                .zip(values);
            let fetched = self.fetched.get_mut(family);
            let sorted = fetched.is_empty();
            fetched.extend(found);
            if !sorted {
                // Two sorted runs: a stable sort merges them in linear time.
                fetched.sort_by(|a, b| a.0.cmp(&b.0));
            }
        }
        Ok(())
    }

    /// The value of `key` as the writes so far leave it. Borrowed when it is in memory.
    ///
    /// # Errors
    /// [`Fault::Storage`] when the engine cannot read.
    pub fn get(&self, family: Family, key: &[u8]) -> Result<Option<Cow<'_, [u8]>>, Fault> {
        match self.known(family, key) {
            Some(known) => Ok(known.map(Cow::Borrowed)),
            None => Ok(self.base.get(family, key)?.map(Cow::Owned)),
        }
    }

    /// Whether `key` is present as the writes so far leave it.
    ///
    /// # Errors
    /// As [`Txn::get`].
    pub fn contains(&self, family: Family, key: &[u8]) -> Result<bool, Fault> {
        Ok(self.get(family, key)?.is_some())
    }

    /// Sets `key` to `value`. The base is not read.
    pub fn put(&mut self, family: Family, key: Vec<u8>, value: Vec<u8>) {
        self.pending.get_mut(family).insert(key, Some(value));
    }

    /// Removes `key`, present or not. The base is not read, so a delete of an absent key is written
    /// too.
    pub fn delete(&mut self, family: Family, key: Vec<u8>) {
        self.pending.get_mut(family).insert(key, None);
    }

    /// How many keys the batch would touch: what the write budget of a command counts.
    #[must_use]
    pub fn touched_count(&self) -> usize {
        self.pending.iter().map(|(_, pending)| pending.len()).sum()
    }

    /// The writes, each key once with its final value, sorted by family and key.
    #[must_use]
    pub fn into_batch(self) -> WriteBatch {
        let mut ops = Vec::with_capacity(self.touched_count());
        for (family, pending) in self.pending {
            ops.extend(pending.into_iter().map(|(key, value)| (family, key, value)));
        }
        WriteBatch { ops }
    }

    /// What memory says of `key`: `None` when the base must be asked, `Some(None)` when it is
    /// absent.
    fn known(&self, family: Family, key: &[u8]) -> Option<Option<&[u8]>> {
        if let Some(pending) = self.pending.get(family).get(key) {
            return Some(pending.as_deref());
        }
        let fetched = self.fetched.get(family);
        let place = fetched
            .binary_search_by(|(known, _)| known.as_slice().cmp(key))
            .ok()?;
        fetched.get(place).map(|(_, value)| value.as_deref())
    }
}

impl View for Txn<'_> {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        Ok(Txn::get(self, family, key)?.map(Cow::into_owned))
    }

    fn multi_get(&self, family: Family, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        let mut missing = Vec::new();
        for key in keys {
            if self.known(family, key).is_none() {
                missing.push(*key);
            }
        }
        let mut read = self.base.multi_get(family, &missing)?.into_iter();
        let found = keys.iter().map(|key| match self.known(family, key) {
            Some(known) => Ok(known.map(<[u8]>::to_vec)),
            None => read
                .next()
                .ok_or_else(|| Fault::invariant("multi_get answers each key")),
        });
        found.collect()
    }

    fn scan(
        &self,
        family: Family,
        range: &KeyRange,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), Fault> {
        if range.is_empty() {
            return Ok(());
        }
        let to = match &range.to {
            Some(to) => Bound::Excluded(to.as_slice()),
            None => Bound::Unbounded,
        };
        let from = Bound::Included(range.from.as_slice());
        let local = self.pending.get(family).range::<[u8], _>((from, to));
        let mut merge = Merge {
            local: Walk { local, direction }.peekable(),
            direction,
            visit,
        };
        if merge.local.peek().is_none() {
            return self.base.scan(family, range, direction, merge.visit);
        }
        let mut ended = false;
        self.base
            .scan(family, range, direction, &mut |key, value| {
                let flow = merge.base_row(key, value);
                ended = flow.is_break();
                flow
            })?;
        if !ended {
            // Whoever asked for the end has it already: nothing is left to stop.
            let _ = merge.rest();
        }
        Ok(())
    }
}

/// The pending rows of a range, in the direction of a scan.
struct Walk<'t> {
    local: Range<'t, Vec<u8>, Option<Vec<u8>>>,
    direction: Direction,
}

impl<'t> Iterator for Walk<'t> {
    type Item = (&'t Vec<u8>, &'t Option<Vec<u8>>);

    fn next(&mut self) -> Option<Self::Item> {
        match self.direction {
            Direction::Forward => self.local.next(),
            Direction::Backward => self.local.next_back(),
        }
    }
}

/// Weaves pending rows between the rows of the base.
struct Merge<'t, 'v, 'c> {
    local: Peekable<Walk<'t>>,
    direction: Direction,
    visit: &'v mut Visit<'c>,
}

impl Merge<'_, '_, '_> {
    /// Visits the pending rows before `key`, then `key` itself unless a pending row replaces or
    /// removes it.
    fn base_row(&mut self, key: &[u8], value: &[u8]) -> ControlFlow<()> {
        while let Some((pending, _)) = self.local.peek() {
            let before = match self.direction {
                Direction::Forward => pending.as_slice() < key,
                Direction::Backward => pending.as_slice() > key,
            };
            let same = pending.as_slice() == key;
            if !before && !same {
                break;
            }
            self.pending_row()?;
            if same {
                return ControlFlow::Continue(());
            }
        }
        (self.visit)(key, value)
    }

    /// Visits every pending row that is left.
    fn rest(&mut self) -> ControlFlow<()> {
        while self.local.peek().is_some() {
            self.pending_row()?;
        }
        ControlFlow::Continue(())
    }

    /// Takes the next pending row and visits it unless it is a delete.
    fn pending_row(&mut self) -> ControlFlow<()> {
        match self.local.next() {
            Some((key, Some(value))) => (self.visit)(key, value),
            Some((_, None)) | None => ControlFlow::Continue(()),
        }
    }
}

#[cfg(test)]
mod tests;
