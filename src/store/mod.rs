//! The store: ordered keys and values in a fixed set of families.
//!
//! Purpose: the narrow interface that the state machine stands on, with two implementations under
//! one conformance suite: memory (separate volatile and durable images, for tests and simulation)
//! and RocksDB.
//! Callers: `state` (through [`Txn`]), `leader` and `api` reads (through [`View`]), `raft`
//! (checkpoints).
//! Invariants:
//! 1. Keys are compared as unsigned bytes; a scan sees each live key of its range once, in order.
//! 2. [`StateStore::write`] is atomic over families and visible at once; it is durable after
//!    [`StateStore::flush`], and after a crash the store holds a prefix of the writes, cut between
//!    two of them.
//! 3. One writer at a time (the apply thread); any number of readers.

pub mod due;
pub mod keys;
pub mod value;

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::fault::Fault;

#[cfg(test)]
mod conformance;
mod family;
pub mod log;
pub mod mem;
#[cfg(feature = "rocks")]
pub mod rocks;
pub mod txn;

pub use family::{Family, PerFamily};
pub use mem::MemStore;
#[cfg(feature = "rocks")]
pub use rocks::{RocksMemory, RocksStore};
pub use txn::Txn;

/// A half-open range of keys: `from` included, `to` excluded (`None`: to the end of the family).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// First key of the range.
    pub from: Vec<u8>,
    /// First key past the range.
    pub to: Option<Vec<u8>>,
}

impl KeyRange {
    /// All keys that begin with `prefix`.
    #[must_use]
    pub fn prefix(prefix: &[u8]) -> Self {
        Self {
            from: prefix.to_vec(),
            to: successor(prefix),
        }
    }

    /// From `from` (included) to `to` (excluded).
    #[must_use]
    pub fn new(from: Vec<u8>, to: Vec<u8>) -> Self {
        Self { from, to: Some(to) }
    }

    /// Whether no key can lie in the range.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.to.as_ref().is_some_and(|to| *to <= self.from)
    }

    /// Whether `key` lies in the range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.from.as_slice() && self.to.as_deref().is_none_or(|to| key < to)
    }
}

/// The smallest key greater than every key that begins with `prefix`; `None` if there is none.
#[must_use]
pub fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let mut next = prefix.to_vec();
    while let Some(last) = next.pop() {
        if last < u8::MAX {
            next.push(last + 1);
            return Some(next);
        }
    }
    None
}

/// Whether `name` can name a file of a checkpoint: letters, digits, `.`, `_`, `-`, not starting
/// with a dot, at most 128 bytes. Nothing that leaves its directory passes.
#[must_use]
pub fn is_plain_file_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    !name.starts_with('.') && (1..=128).contains(&name.len()) && name.bytes().all(plain)
}

/// Which way a scan walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the first key of the range.
    Forward,
    /// From the last key of the range.
    Backward,
}

/// What a scan calls for each pair; `Break` ends it.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Read access to one consistent or current image of the store. Reads may block on the disk.
pub trait View: Send + Sync {
    /// The value of `key`, or `None`.
    ///
    /// # Errors
    /// [`Fault::Storage`] when the engine cannot read.
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, Fault>;

    /// The values of `keys` (sorted ascending, no repeats), in that order.
    ///
    /// # Errors
    /// As [`View::get`].
    fn multi_get(&self, family: Family, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Fault>;

    /// Visits the pairs of `range` in order until the end or `Break`. An engine error is never a
    /// short scan.
    ///
    /// # Errors
    /// As [`View::get`].
    fn scan(
        &self,
        family: Family,
        range: &KeyRange,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), Fault>;
}

/// Ordered puts and deletes that become visible together. A later operation on a key replaces an
/// earlier one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteBatch {
    /// In order of issue; `None` deletes.
    pub ops: Vec<(Family, Vec<u8>, Option<Vec<u8>>)>,
}

impl WriteBatch {
    /// Sets `key` to `value`.
    pub fn put(&mut self, family: Family, key: Vec<u8>, value: Vec<u8>) {
        self.ops.push((family, key, Some(value)));
    }

    /// Removes `key`, present or not.
    pub fn delete(&mut self, family: Family, key: Vec<u8>) {
        self.ops.push((family, key, None));
    }
}

/// One file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointFile {
    /// Relative name: letters, digits, `.`, `_`, `-` only.
    pub name: String,
    /// Size in bytes.
    pub len: u64,
}

/// An immutable image of the store at one moment, readable file by file while writes go on.
/// Dropping it frees what it pinned.
pub trait Checkpoint: Send + Sync {
    /// The files, sorted by name.
    fn files(&self) -> &[CheckpointFile];

    /// Up to `len` bytes of file `name` at `offset`; shorter only at its end. Memory is bounded by
    /// `len`.
    ///
    /// # Errors
    /// [`Fault::Storage`].
    fn read(&self, name: &str, offset: u64, len: usize) -> Result<Vec<u8>, Fault>;

    /// Reads the image itself (for the applied position that it holds).
    ///
    /// # Errors
    /// [`Fault::Storage`].
    fn view(&self) -> Result<Arc<dyn View>, Fault>;
}

/// A place where the files of a checkpoint from another node are put together. Dropping it removes
/// them.
pub trait Staging: Send + Sync {
    /// Appends `bytes` to file `name` (created at the first call). Bytes arrive in order.
    ///
    /// # Errors
    /// [`Fault::Storage`]; [`Fault::Corrupt`] for a name that is not a plain file name.
    fn append(&mut self, name: &str, bytes: &[u8]) -> Result<(), Fault>;

    /// Syncs what was received, opens it and reads through it (for its applied position).
    ///
    /// # Errors
    /// [`Fault::Storage`]; [`Fault::Corrupt`] when it does not open as a store.
    fn seal(&mut self) -> Result<Arc<dyn View>, Fault>;

    /// For the implementation's own downcast in [`StateStore::install`].
    fn into_any(self: Box<Self>) -> Box<dyn std::any::Any>;
}

/// The replicated state of one node. It holds nothing of the node itself.
pub trait StateStore: View + 'static {
    /// Applies `batch` atomically. Visible at once to every reader; durable after the next flush.
    ///
    /// # Errors
    /// [`Fault::Storage`]; the caller stops the node.
    fn write(&self, batch: WriteBatch) -> Result<(), Fault>;

    /// Makes everything written so far durable. Blocks.
    ///
    /// # Errors
    /// [`Fault::Storage`].
    fn flush(&self) -> Result<(), Fault>;

    /// A consistent image that later writes do not change. Cheap; hold it for seconds, not hours.
    fn snapshot(&self) -> Arc<dyn View>;

    /// An image for sending. One is kept at a time by the caller.
    ///
    /// # Errors
    /// [`Fault::Storage`].
    fn checkpoint(&self) -> Result<Arc<dyn Checkpoint>, Fault>;

    /// An empty staging place. An earlier one that was not installed is removed.
    ///
    /// # Errors
    /// [`Fault::Storage`].
    fn stage(&self) -> Result<Box<dyn Staging>, Fault>;

    /// Makes a sealed staging the content of this store, atomically: a kill at any step leaves the
    /// old or the new content. Durable on return. Snapshots taken before keep the old content.
    ///
    /// # Errors
    /// [`Fault::Storage`].
    fn install(&self, staged: Box<dyn Staging>) -> Result<(), Fault>;

    /// Hint: keys of `family` inside `range` are absent for every reader already (below a
    /// replicated and flushed watermark); whole files of them may be deleted. Does nothing where
    /// that is not worth it.
    ///
    /// # Errors
    /// [`Fault::Storage`].
    fn discard_files(&self, family: Family, range: &KeyRange) -> Result<(), Fault>;
}
