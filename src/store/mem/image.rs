//! One immutable-by-sharing image of all families in memory.
//!
//! Purpose: the content of a [`MemStore`](super::MemStore): visible, durable, snapshots and
//! checkpoints are all images, and copying one costs a few reference counts.
//! Callers: `store::mem` only.
//! Invariant: an image never changes through a clone of it (persistent maps, copied node by node on
//! write).

use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdMap;

use crate::fault::Fault;
use crate::store::{Direction, Family, KeyRange, PerFamily, View, Visit, WriteBatch};

/// Shared bytes: a node of the map that is copied copies counts, not contents.
pub(super) type Bytes = Arc<[u8]>;

/// The rows of one family.
pub(super) type Rows = OrdMap<Bytes, Bytes>;

/// One put (`Some`) or delete (`None`).
pub(super) type Op = (Family, Bytes, Option<Bytes>);

/// A batch whose bytes can be shared between the pending list and the image.
pub(super) fn share(batch: WriteBatch) -> Vec<Op> {
    batch
        .ops
        .into_iter()
        .map(|(family, key, value)| (family, key.into(), value.map(Bytes::from)))
        .collect()
}

/// All rows of a store at one moment.
#[derive(Clone, Default)]
pub(super) struct Image {
    rows: PerFamily<Rows>,
}

impl Image {
    /// Writes `ops` in order.
    pub(super) fn apply(&mut self, ops: &[Op]) {
        for (family, key, value) in ops {
            let rows = self.rows.get_mut(*family);
            match value {
                Some(value) => rows.insert(Arc::clone(key), Arc::clone(value)),
                None => rows.remove(&**key),
            };
        }
    }

    /// The rows of `family`.
    pub(super) fn rows(&self, family: Family) -> &Rows {
        self.rows.get(family)
    }

    /// The rows of `family`, to change.
    pub(super) fn rows_mut(&mut self, family: Family) -> &mut Rows {
        self.rows.get_mut(family)
    }
}

/// Visits the pairs of `rows` that lie in `range`.
pub(super) fn scan(rows: &Rows, range: &KeyRange, direction: Direction, visit: &mut Visit<'_>) {
    if range.is_empty() {
        return;
    }
    let from = Bound::Included(range.from.as_slice());
    let to = match &range.to {
        Some(to) => Bound::Excluded(to.as_slice()),
        None => Bound::Unbounded,
    };
    let mut found = rows.range::<_, [u8]>((from, to));
    loop {
        let next = match direction {
            Direction::Forward => found.next(),
            Direction::Backward => found.next_back(),
        };
        let Some((key, value)) = next else { return };
        if visit(key, value).is_break() {
            return;
        }
    }
}

impl View for Image {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        Ok(self.rows.get(family).get(key).map(|value| value.to_vec()))
    }

    fn multi_get(&self, family: Family, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        let rows = self.rows.get(family);
        let found = keys.iter().map(|key| rows.get(*key).map(|v| v.to_vec()));
        Ok(found.collect())
    }

    fn scan(
        &self,
        family: Family,
        range: &KeyRange,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), Fault> {
        scan(self.rows.get(family), range, direction, visit);
        Ok(())
    }
}
