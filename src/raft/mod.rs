//! Consensus: the replicated log, who leads, who belongs to the cluster.
//!
//! Purpose: hide openraft behind [`Consensus`]; nothing outside this module names an openraft type.
//! Callers: `leader` (propose, read barrier, status), `node` (start, membership, drain), `api` (forward).
//! Invariants:
//! 1. A proposal that resolves to [`Committed`] is synced on a majority and applied on this node.
//! 2. A proposal that resolves to [`ProposeError::NotLeader`] or [`ProposeError::Overloaded`] is in no log and never
//!    will be. [`ProposeError::Unknown`] and [`ProposeError::Stopped`] promise nothing: it may still commit.
//! 3. The order in which calls of [`Consensus::propose`] are made by one task is their order in the log.
//! 4. [`Consensus::changed`] never misses a change: it compares revisions, it does not wait for an edge.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;

use crate::state::machine::{EntryAnswer, Position};

mod barrier;
mod changes;
mod clocks;
mod consensus;
mod incoming;
mod log;
mod machine;
mod message;
pub mod net;
mod network;
mod node;
mod propose;
mod runtime;
mod server;
mod settings;
#[cfg(test)]
mod tests;
mod transport;
mod types;
mod upkeep;

pub use changes::Changes;
pub use clocks::PeerClock;
pub use node::{NodeParts, RaftNode, StopHook};
pub use runtime::NodeRuntime;

/// A node on the production runtime.
pub type TokioNode = RaftNode<openraft_rt_tokio::TokioRuntime>;

pub use settings::{PROPOSAL_BYTES_MAX, RaftSettings};
pub use transport::{Lane, PeerError, PeerHandler, PeerTransport};

/// A proposal that is committed and applied on this node.
#[derive(Clone, Debug)]
pub struct Committed {
    /// Where it stands in the log.
    pub position: Position,
    /// What apply answered (the outcomes of a batch).
    pub answer: EntryAnswer,
}

/// Why a proposal has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// This node does not lead in the given term (or has lost contact with its majority). Nothing was appended.
    #[error("not the leader of this term")]
    NotLeader {
        /// Who leads, as far as this node knows.
        leader: Option<u64>,
    },
    /// Too many proposals or bytes are in flight. Nothing was appended; try again after some commit.
    #[error("too many proposals in flight")]
    Overloaded,
    /// It was appended, then leadership was lost: it may or may not commit, now or later.
    #[error("leadership was lost after the proposal was appended; its fate is unknown")]
    Unknown,
    /// This node is stopping. The fate of what was in flight is unknown.
    #[error("the node is stopping")]
    Stopped,
}

/// Why a read barrier could not be passed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BarrierError {
    /// No leader is known or reachable now; a retry is safe.
    #[error("no leader is known or reachable")]
    NoLeader,
    /// No majority answered within the deadline; a retry is safe.
    #[error("no majority answered in time")]
    NoQuorum,
    /// This node is stopping.
    #[error("the node is stopping")]
    Stopped,
}

/// Why a change of membership was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipError {
    /// Only the leader changes members.
    #[error("not the leader")]
    NotLeader {
        /// Who leads, as far as this node knows.
        leader: Option<u64>,
    },
    /// Another change has not committed yet; one at a time.
    #[error("another membership change is in progress")]
    InProgress,
    /// The learner has not caught up; promote it later.
    #[error("node {id} is behind: applied {applied:?}, needed {needed}")]
    Behind {
        /// Whom.
        id: u64,
        /// The last index known to be replicated to it.
        applied: Option<u64>,
        /// What it must have reached.
        needed: u64,
    },
    /// The request makes no sense for the present members.
    #[error("refused: {0}")]
    Refused(String),
    /// It was proposed, then leadership was lost: look at the membership again.
    #[error("leadership was lost while the change was under way; its fate is unknown")]
    Unknown,
    /// This node is stopping.
    #[error("the node is stopping")]
    Stopped,
}

/// Where a node can be reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeAddress {
    /// Host and port of its peer listener.
    pub peer: String,
    /// Base URL of its API, as told to clients.
    pub api: String,
}

/// What a node does in the cluster at the moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Receives the log, does not vote.
    #[default]
    Learner,
    /// Votes and follows.
    Follower,
    /// Asks for votes.
    Candidate,
    /// Leads the term in [`ConsensusStatus::term`].
    Leader,
    /// Raft has ended on this node.
    Stopped,
}

/// The members of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Index of the entry that set them; `None` before the cluster exists.
    pub index: Option<u64>,
    /// Who votes. While a change is under way, the union of old and new.
    pub voters: BTreeMap<u64, NodeAddress>,
    /// Who receives the log without a vote.
    pub learners: BTreeMap<u64, NodeAddress>,
    /// Whether a change from one set of voters to another is under way (joint consensus).
    pub joint: bool,
}

/// One node's local view of consensus; every field may be stale the moment it is read.
#[derive(Clone, Debug, Default)]
pub struct ConsensusStatus {
    /// Counts changes of role, term, leader, members and `running`; pass it to [`Consensus::changed`].
    pub revision: u64,
    /// This node.
    pub id: u64,
    /// Current term of this node.
    pub term: u64,
    /// Its role.
    pub role: Role,
    /// Who leads, as far as this node knows.
    pub leader: Option<u64>,
    /// Last index in this node's log.
    pub last_log: Option<u64>,
    /// Last index known to be committed.
    pub committed: Option<u64>,
    /// Last index applied here.
    pub applied: Option<u64>,
    /// Last index of the snapshot kept for sending.
    pub snapshot: Option<u64>,
    /// Last index purged from the log.
    pub purged: Option<u64>,
    /// Members as of the last entry in this node's log (committed or not, as Raft demands).
    pub members: Members,
    /// Last index known to be on each member (leader only, empty elsewhere).
    pub replicated: BTreeMap<u64, Option<u64>>,
    /// `false` once Raft has stopped by an error: the process must end.
    pub running: bool,
    /// Milliseconds since a majority last confirmed this leader; `None` elsewhere or before the first time.
    pub quorum_ack_age_ms: Option<u64>,
    /// Whether this node has applied everything that it may have served before its last restart. No read is served
    /// before.
    pub recovered: bool,
}

impl ConsensusStatus {
    /// Whether this node leads, as far as it knows.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.role == Role::Leader
    }

    /// The address of the node that leads, if both are known.
    #[must_use]
    pub fn leader_address(&self) -> Option<&NodeAddress> {
        let id = self.leader?;
        self.members
            .voters
            .get(&id)
            .or_else(|| self.members.learners.get(&id))
    }
}

/// The replicated log as one node sees it. All futures are safe to drop; a dropped proposal may still commit.
pub trait Consensus: Send + Sync + 'static {
    /// Proposes an encoded batch, if this node leads in `term` at the moment of appending.
    ///
    /// The proposal takes its place in the log when the call is made, not when the future is first polled: calls of
    /// one task are appended in order. Resolves once the entry is committed and applied here. `payload` is at most
    /// 1 MiB; a larger one is refused as [`ProposeError::Overloaded`].
    fn propose(
        &self,
        term: u64,
        payload: Bytes,
    ) -> BoxFuture<'static, Result<Committed, ProposeError>>;

    /// A linearizable read barrier by read-index: resolves to an index that covers every write acknowledged before the
    /// call, once this node has applied it. Concurrent calls share one round. A follower asks the leader.
    fn read_barrier(&self) -> BoxFuture<'static, Result<u64, BarrierError>>;

    /// The local view.
    fn status(&self) -> ConsensusStatus;

    /// Resolves to the new revision once it is above `seen` (at once if it already is), and when Raft stops.
    fn changed(&self, seen: u64) -> BoxFuture<'static, u64>;

    /// Resolves to the applied index once it is at least `index`.
    fn applied(&self, index: u64) -> BoxFuture<'static, Result<u64, BarrierError>>;

    /// The other members' wall clocks as measured last, by node; the newest at most seconds old when they answer.
    fn peer_clocks(&self) -> Vec<PeerClock>;

    /// Adds an empty node as a learner. Repeating it with the same address changes nothing.
    fn add_learner(
        &self,
        id: u64,
        address: NodeAddress,
    ) -> BoxFuture<'static, Result<(), MembershipError>>;

    /// Makes a learner a voter, once it has the log up to what is committed now.
    fn promote(&self, id: u64) -> BoxFuture<'static, Result<(), MembershipError>>;

    /// Removes a voter or learner, dead or alive. Its id is never used again. Removing an absent one changes nothing.
    fn remove(&self, id: u64) -> BoxFuture<'static, Result<(), MembershipError>>;

    /// Hands leadership to the voter `to`, or to the most advanced one. Resolves when another node leads, or with
    /// `false` after two election time-outs.
    fn transfer_leader(&self, to: Option<u64>) -> BoxFuture<'static, bool>;

    /// Builds a snapshot now, and purges the log as far as the settings allow.
    fn trigger_snapshot(&self) -> BoxFuture<'static, ()>;

    /// Stops Raft on this node; resolves when nothing of it runs any more. Leadership is not handed over.
    fn shutdown(&self) -> BoxFuture<'static, ()>;
}

/// Why a forwarded request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// The request never left this node: a retry is safe.
    #[error("node {0} is unreachable")]
    Unreachable(u64),
    /// It was sent, and no answer came: it may have been carried out.
    #[error("no answer from node {0}; the request may have been carried out")]
    Unknown(u64),
    /// The request or answer is larger than 8 MiB.
    #[error("message too large")]
    TooLarge,
}

/// Requests from one node's API to another's, over the peer network; their content is opaque to `raft`.
pub trait Forward: Send + Sync + 'static {
    /// Sends `request` to node `to` and waits up to `deadline` for the answer. Dropping the future tells the other side
    /// (its handler's future is dropped too).
    fn forward(
        &self,
        to: u64,
        request: Bytes,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Bytes, ForwardError>>;
}

/// The receiving side of [`Forward`], given to `raft` at start.
pub trait ForwardHandler: Send + Sync + 'static {
    /// Answers `request` of node `from`. The future is dropped when the caller hangs up.
    fn handle(&self, from: u64, request: Bytes) -> BoxFuture<'static, Bytes>;
}
