//! Faults: what stops a node.
//!
//! Purpose: the one error type of storage, codec and apply. A [`Fault`] is never an answer to a client; it means
//! that this node cannot go on safely. Whoever receives one on the Raft path stops the process loudly.
//! Callers: `store`, `state`, `raft`, `leader`, `node`.

use std::sync::Arc;

/// Why a node must stop (on the Raft path) or a read must be refused (elsewhere).
#[derive(Clone, Debug, thiserror::Error)]
pub enum Fault {
    /// The disk or the storage engine refused an operation.
    #[error("storage: {context}: {source}")]
    Storage {
        /// What was being done, with the path or family.
        context: String,
        /// The engine's own words.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
    /// Stored or logged bytes do not decode or fail their checksum.
    #[error("corrupt data: {0}")]
    Corrupt(String),
    /// Bytes carry a kind or version that this build does not know; they are kept, never dropped.
    #[error("unknown format: {0}; a newer build wrote it: upgrade this node")]
    UnknownFormat(String),
    /// A rule that apply relies on does not hold.
    #[error("broken invariant: {0}")]
    Invariant(String),
}

impl Fault {
    /// Wraps an engine error with what was being done.
    pub fn storage<E>(context: impl Into<String>, source: E) -> Self
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        Self::Storage {
            context: context.into(),
            source: Arc::new(source),
        }
    }

    /// A broken invariant, in words.
    pub fn invariant(what: impl Into<String>) -> Self {
        Self::Invariant(what.into())
    }

    /// Undecodable bytes, in words.
    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt(what.into())
    }
}
