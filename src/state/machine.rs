//! What Raft needs of a state machine, in our own words.
//!
//! Purpose: keep openraft's types out of `state` and the state's types out of `raft`.
//! Callers: `raft` drives a [`Machine`]; `state` implements it over a store; tests implement toy ones.

use std::any::Any;
use std::sync::Arc;

use bytes::Bytes;

use crate::fault::Fault;
use crate::store::{Checkpoint, Staging};

/// Where an entry stands in the log.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct Position {
    /// Raft term in which the entry was proposed.
    pub term: u64,
    /// Node that led that term.
    pub leader: u64,
    /// Index in the log, from 1 (0 is the entry that initialises the cluster).
    pub index: u64,
}

/// What a committed entry carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// A leader's first entry of its term. Moves the position only.
    Blank,
    /// A membership, as opaque bytes of `raft`'s own format; stored and handed back by [`Machine::applied`].
    Membership(Bytes),
    /// An encoded batch of commands (`command::codec`).
    Batch(Bytes),
}

/// One committed entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedEntry {
    /// Its place.
    pub position: Position,
    /// Its content.
    pub payload: Payload,
}

/// What applying one entry answers: for a batch, its outcomes by position (opaque to `raft`); else `None`.
pub type EntryAnswer = Option<Arc<dyn Any + Send + Sync>>;

/// How far a state goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Last entry in the state; `None` for an empty one.
    pub position: Option<Position>,
    /// Last applied membership with the position of its entry; `None` before the first.
    pub membership: Option<(Position, Bytes)>,
}

/// A replicated state machine. Calls come from one task, in log order; each may block on the disk.
pub trait Machine: Send + Sync + 'static {
    /// How far the current state goes (visible, perhaps not yet durable).
    fn applied(&self) -> Applied;

    /// The index up to which the state is durable on this node: the log may be purged only up to here.
    fn durable_index(&self) -> u64;

    /// Applies `entries` in order, atomically each, and answers each. On an error nothing later was applied and
    /// the node must stop.
    ///
    /// # Errors
    /// Any [`Fault`].
    fn apply(&self, entries: Vec<CommittedEntry>) -> Result<Vec<EntryAnswer>, Fault>;

    /// Makes the state durable and returns the durable index.
    ///
    /// # Errors
    /// [`Fault::Storage`].
    fn flush(&self) -> Result<u64, Fault>;

    /// An image to send, with how far it goes, read from the image itself.
    ///
    /// # Errors
    /// Any [`Fault`].
    fn checkpoint(&self) -> Result<(Applied, Arc<dyn Checkpoint>), Fault>;

    /// A place to receive an image.
    ///
    /// # Errors
    /// [`Fault::Storage`].
    fn stage(&self) -> Result<Box<dyn Staging>, Fault>;

    /// Replaces the whole state by a received image, and says how far it goes.
    ///
    /// # Errors
    /// Any [`Fault`]; the old state is kept unless the new one is complete.
    fn install(&self, staged: Box<dyn Staging>) -> Result<Applied, Fault>;
}
