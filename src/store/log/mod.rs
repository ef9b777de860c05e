//! The Raft log of one node: votes and entries in one ordered stream.
//!
//! Purpose: what `raft` needs of durable storage, with two implementations: [`mem::MemLog`] (separate volatile and
//! durable images, for tests and simulation) and, behind the `rocks` feature, `rocks::RocksLog`.
//! Callers: `raft` only.
//! Invariants:
//! 1. Writes take effect in the order of [`LogStore::submit`]; each is visible to every reader when it returns.
//! 2. A [`Synced`] callback runs after its write and all before it are on stable storage, never earlier. After a crash
//!    the log holds a prefix of the submitted writes that includes every write whose callback ran.
//! 3. The log has no holes: it holds exactly the indexes above the purge watermark up to the last.
//! 4. A failed write or sync is final: every later call answers an error, and the node must stop.

use bytes::Bytes;

use crate::fault::Fault;

pub mod births;
mod durable;
pub mod fields;
pub mod identity;
mod image;
pub mod mem;
#[cfg(any(feature = "rocks", test))]
mod record;
#[cfg(feature = "rocks")]
pub mod rocks;
pub mod witness;

/// Where an entry stands. Ordered as Raft orders logs: term, then leader, then index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition {
    /// Term of the leader that proposed it.
    pub term: u64,
    /// That leader's node id.
    pub leader: u64,
    /// Index in the log.
    pub index: u64,
}

/// A node's vote: for whom, and whether that candidate is known to have won.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogVote {
    /// Term voted in.
    pub term: u64,
    /// Candidate or leader voted for.
    pub leader: u64,
    /// Whether a majority has granted it.
    pub committed: bool,
}

/// What an entry carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogBody {
    /// A leader's first entry.
    Blank,
    /// A membership in `raft`'s own format.
    Membership(Bytes),
    /// An encoded batch of commands.
    Batch(Bytes),
}

impl LogBody {
    /// The bytes carried; empty for [`LogBody::Blank`].
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Blank => &[],
            Self::Membership(bytes) | Self::Batch(bytes) => bytes,
        }
    }
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Its place.
    pub position: LogPosition,
    /// Its content.
    pub body: LogBody,
}

impl LogRecord {
    /// Bytes it takes in memory, on disk and on the wire, headers included (approximate by a few bytes).
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.body.bytes().len() as u64 + ENTRY_OVERHEAD
    }
}

/// Bytes of a stored entry besides its body: envelope, position, offset, two checksums, length.
const ENTRY_OVERHEAD: u64 = 4 + 24 + 8 + 8 + 4 + 8;

/// Where the log begins and ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStatus {
    /// The last vote.
    pub vote: Option<LogVote>,
    /// The last entry purged; entries begin after it.
    pub purged: Option<LogPosition>,
    /// The last entry; equal to `purged` when no entry is held.
    pub last: Option<LogPosition>,
}

/// One write to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogWrite {
    /// Replaces the vote.
    Vote(LogVote),
    /// Adds consecutive entries after the last.
    Append(Vec<LogRecord>),
    /// Removes every entry with an index above this one (`None`: all entries).
    TruncateAfter(Option<u64>),
    /// Removes every entry up to this one, which may lie beyond the last.
    Purge(LogPosition),
}

/// Runs once, after the write is durable or has failed; on any thread; must not block.
pub type Synced = Box<dyn FnOnce(Result<(), Fault>) + Send>;

/// The log of one node. One writer at a time, any number of readers.
pub trait LogStore: Send + Sync + 'static {
    /// Where the log begins and ends, all submitted writes included.
    ///
    /// # Errors
    /// The fault that stopped the log.
    fn status(&self) -> Result<LogStatus, Fault>;

    /// Puts `write` next in the stream.
    ///
    /// # Errors
    /// [`Fault::Invariant`] if it would leave a hole; the fault that stopped the log. `synced` is then never called.
    fn submit(&self, write: LogWrite, synced: Synced) -> Result<(), Fault>;

    /// Entries of `[from, to)` from `from` on, until `max_bytes` of them are read, at least one if `from` is held.
    /// Starts at the first held entry when `from` is purged; empty when nothing of the range is held.
    ///
    /// # Errors
    /// [`Fault::Storage`], [`Fault::Corrupt`].
    fn read(&self, from: u64, to: u64, max_bytes: u64) -> Result<Vec<LogRecord>, Fault>;

    /// Bytes written to this log before entry `index`, counted from its beginning: the difference of two is the size
    /// of the entries between. `None` if the entry is not held.
    ///
    /// # Errors
    /// As [`LogStore::read`].
    fn offset(&self, index: u64) -> Result<Option<u64>, Fault>;
}
