//! How nodes reach each other, as an interface.
//!
//! Purpose: Raft's messages over anything that carries bytes: TCP ([`super::net`](super)) or the simulated network.
//! Callers: `raft`; `raft-tests` implements it.
//! Invariants: an answer belongs to its request; a request is delivered at most once; calls of one lane to one node are
//! handed to its handler in the order they were made, unless the connection broke between them.

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;

use super::NodeAddress;

/// What a connection is for, so that one kind never queues behind another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Entries of the log.
    Log,
    /// Heartbeats, votes, read-index, transfer of leadership: small and urgent.
    Control,
    /// Snapshots.
    Snapshot,
    /// Requests forwarded between APIs.
    Forward,
}

impl Lane {
    /// Every lane.
    pub const ALL: [Self; 4] = [Self::Log, Self::Control, Self::Snapshot, Self::Forward];
}

/// Why a call has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The request was not sent.
    #[error("unreachable: {0}")]
    Unreachable(String),
    /// It was sent, and no answer came within the deadline or before the connection broke.
    #[error("no answer: {0}")]
    Lost(String),
}

/// The sending side.
pub trait PeerTransport: Send + Sync + 'static {
    /// Sends `request` to node `to` and waits up to `deadline` for the answer. Dropping the future drops the handler's
    /// future on the other side, if the network allows.
    fn call(
        &self,
        to: u64,
        address: &NodeAddress,
        lane: Lane,
        request: Bytes,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Bytes, PeerError>>;

    /// Whether node `to` answers at `address` and may be talked to: the right cluster, number and data directory. The
    /// error says what is wrong there. A network that cannot tell says yes.
    fn greet(
        &self,
        _to: u64,
        _address: &NodeAddress,
        _deadline: Duration,
    ) -> BoxFuture<'static, Result<(), PeerError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// The receiving side.
pub trait PeerHandler: Send + Sync + 'static {
    /// Answers `request` of node `from`.
    fn handle(&self, from: u64, lane: Lane, request: Bytes) -> BoxFuture<'static, Bytes>;
}
