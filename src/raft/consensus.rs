//! [`Consensus`] and [`Forward`] of a running node.
//!
//! Purpose: the outward face of [`RaftNode`]; members change here.
//! Callers: `leader`, `node`, `api`.
//! Invariants: a learner votes only after this node has seen that it holds everything committed at the time of the call.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use openraft::ChangeMembers;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::error::{ChangeMembershipError, ClientWriteError, RaftError};

use super::message::{Reply, Request};
use super::node::{RaftNode, Shared};
use super::runtime::NodeRuntime;
use super::transport::{Lane, PeerError};
use super::types::{EntryId, Types};
use super::{
    BarrierError, Committed, Consensus, ConsensusStatus, Forward, ForwardError, MembershipError,
    NodeAddress, PeerClock, ProposeError,
};

/// How long a node that is to be added may take to answer.
const GREET: Duration = Duration::from_secs(3);
/// Largest forwarded request or answer.
const FORWARD_BYTES_MAX: usize = 8 * 1024 * 1024 + 64 * 1024;

impl<R: NodeRuntime> Shared<R> {
    /// Waits until this node has applied `index`.
    pub(super) async fn applied_at_least(&self, index: u64) -> Result<u64, BarrierError> {
        let mut watching = self.raft.metrics();
        loop {
            let (applied, running) = {
                let now = watching.borrow_watched();
                let applied = now.last_applied.as_ref().map(|id| id.index());
                (applied, now.running_state.is_ok())
            };
            match applied {
                Some(applied) if applied >= index => return Ok(applied),
                _ if !running => return Err(BarrierError::Stopped),
                _ => {}
            }
            if watching.changed().await.is_err() {
                return Err(BarrierError::Stopped);
            }
        }
    }

    /// Resolves when node `leader` has not been heard as the leader for so long that others have elected one. A machine
    /// that vanished, or is stopped, breaks no connection: without this, callers would wait for their whole deadline.
    async fn silence_of(&self, leader: u64) {
        let allowed = Duration::from_millis(self.settings.election_max_ms.saturating_mul(4));
        let asked = tokio::time::Instant::now();
        loop {
            let heard = *self.heard.lock();
            let last = match heard {
                Some((who, at)) if who == leader => at.max(asked),
                _ => asked,
            };
            let until = last + allowed;
            if tokio::time::Instant::now() >= until {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    async fn change(
        &self,
        change: ChangeMembers<u64, NodeAddress>,
        keep_as_learner: bool,
    ) -> Result<(), MembershipError> {
        match self.raft.change_membership(change, keep_as_learner).await {
            Ok(changed) => {
                self.shown(&changed.log_id).await;
                Ok(())
            }
            Err(error) => Err(refusal(&error)),
        }
    }

    /// Waits until the status shows members at least as new as entry `id`: the answer to a change may come first.
    async fn shown(&self, id: &EntryId) {
        let mut watching = self.raft.metrics();
        while watching
            .borrow_watched()
            .membership_config
            .log_id()
            .as_ref()
            < Some(id)
        {
            if watching.changed().await.is_err() {
                return;
            }
        }
    }
}

impl<R: NodeRuntime> Shared<R> {
    /// Ends a change from one set of voters to another that is half done. Those who voted only before it leave.
    pub(super) async fn settle_members(&self) -> Result<(), MembershipError> {
        let nothing_more = ChangeMembers::AddVoterIds(BTreeSet::new());
        self.change(nothing_more, false).await
    }
}

fn refusal<R: NodeRuntime>(
    error: &RaftError<Types<R>, ClientWriteError<Types<R>>>,
) -> MembershipError {
    match error {
        RaftError::Fatal(_) => MembershipError::Stopped,
        RaftError::APIError(ClientWriteError::ForwardToLeader(to)) => MembershipError::NotLeader {
            leader: to.leader_id,
        },
        RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) => MembershipError::Unknown,
        RaftError::APIError(ClientWriteError::PreconditionFailed(_)) => MembershipError::InProgress,
        RaftError::APIError(ClientWriteError::ChangeMembershipError(why)) => match why {
            ChangeMembershipError::InProgress(_)
            | ChangeMembershipError::UncommittedLeaderLog(_) => MembershipError::InProgress,
            other => MembershipError::Refused(other.to_string()),
        },
    }
}

async fn promote<R: NodeRuntime>(shared: &Shared<R>, id: u64) -> Result<(), MembershipError> {
    if shared.status().members.joint {
        shared.settle_members().await?;
    }
    let status = shared.status();
    if status.members.voters.contains_key(&id) {
        return Ok(());
    }
    if !status.members.learners.contains_key(&id) {
        let why = format!("node {id} is not a learner");
        return Err(MembershipError::Refused(why));
    }
    let needed = status.committed.unwrap_or(0);
    let held = status.replicated.get(&id).copied().flatten();
    if !status.is_leader() {
        return Err(MembershipError::NotLeader {
            leader: status.leader,
        });
    }
    if held.is_none_or(|held| held < needed) {
        return Err(MembershipError::Behind {
            id,
            applied: held,
            needed,
        });
    }
    let change = ChangeMembers::AddVoterIds(BTreeSet::from([id]));
    shared.change(change, true).await
}

async fn remove<R: NodeRuntime>(shared: &Shared<R>, id: u64) -> Result<(), MembershipError> {
    if shared.status().members.joint {
        shared.settle_members().await?;
    }
    let status = shared.status();
    let members = &status.members;
    if members.voters.contains_key(&id) {
        if members.voters.len() == 1 {
            let why = "the last voter cannot be removed";
            return Err(MembershipError::Refused(why.into()));
        }
        // Not kept as a learner: the node is gone from the membership in the same change.
        let change = ChangeMembers::RemoveVoters(BTreeSet::from([id]));
        return shared.change(change, false).await;
    }
    if members.learners.contains_key(&id) {
        let change = ChangeMembers::RemoveNodes(BTreeSet::from([id]));
        return shared.change(change, false).await;
    }
    Ok(())
}

/// The voter with the most of this leader's log, besides the leader.
fn successor(status: &ConsensusStatus) -> Option<u64> {
    let others = status
        .members
        .voters
        .keys()
        .filter(|id| **id != status.id)
        .copied();
    others.max_by_key(|id| {
        let held = status.replicated.get(id).copied().flatten();
        (held, std::cmp::Reverse(*id))
    })
}

async fn transfer<R: NodeRuntime>(shared: &Shared<R>, to: Option<u64>) -> bool {
    let status = shared.status();
    if !status.is_leader() {
        return true;
    }
    let Some(to) = to.or_else(|| successor(&status)) else {
        return false;
    };
    if to == shared.id || !status.members.voters.contains_key(&to) {
        return false;
    }
    if shared.raft.trigger().transfer_leader(to).await.is_err() {
        return false;
    }
    let within = Duration::from_millis(shared.settings.election_max_ms.saturating_mul(2));
    let moved = async {
        let mut seen = status.revision;
        loop {
            let now = shared.status();
            if now.leader.is_some_and(|leader| leader != shared.id) {
                return;
            }
            seen = shared.changes.above(seen.max(now.revision)).await;
        }
    };
    tokio::time::timeout(within, moved).await.is_ok()
}

impl<R: NodeRuntime> Consensus for RaftNode<R> {
    fn propose(
        &self,
        term: u64,
        payload: Bytes,
    ) -> BoxFuture<'static, Result<Committed, ProposeError>> {
        self.proposals.propose(term, payload)
    }

    fn read_barrier(&self) -> BoxFuture<'static, Result<u64, BarrierError>> {
        Box::pin(self.barrier.clone().pass())
    }

    fn status(&self) -> ConsensusStatus {
        self.shared.status()
    }

    fn peer_clocks(&self) -> Vec<PeerClock> {
        self.shared.clocks.all()
    }

    fn changed(&self, seen: u64) -> BoxFuture<'static, u64> {
        Box::pin(self.shared.changes.above(seen))
    }

    fn applied(&self, index: u64) -> BoxFuture<'static, Result<u64, BarrierError>> {
        let shared = self.shared.clone();
        Box::pin(async move { shared.applied_at_least(index).await })
    }

    fn add_learner(
        &self,
        id: u64,
        address: NodeAddress,
    ) -> BoxFuture<'static, Result<(), MembershipError>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let members = shared.status().members;
            let known = members.learners.get(&id).or(members.voters.get(&id));
            match known {
                Some(same) if *same == address => return Ok(()),
                Some(_) => {
                    let why = format!("node {id} is a member with another address");
                    return Err(MembershipError::Refused(why));
                }
                None => {}
            }
            // Found out now, and not by a learner that never catches up.
            if let Err(error) = shared.transport.greet(id, &address, GREET).await {
                let why = format!(
                    "node {id} cannot be added ({error}); start it empty, with --join and a node_id that was never used"
                );
                return Err(MembershipError::Refused(why));
            }
            let nodes = BTreeMap::from([(id, address)]);
            shared.change(ChangeMembers::AddNodes(nodes), true).await
        })
    }

    fn promote(&self, id: u64) -> BoxFuture<'static, Result<(), MembershipError>> {
        let shared = self.shared.clone();
        Box::pin(async move { promote(&shared, id).await })
    }

    fn remove(&self, id: u64) -> BoxFuture<'static, Result<(), MembershipError>> {
        let shared = self.shared.clone();
        Box::pin(async move { remove(&shared, id).await })
    }

    fn transfer_leader(&self, to: Option<u64>) -> BoxFuture<'static, bool> {
        let shared = self.shared.clone();
        Box::pin(async move { transfer(&shared, to).await })
    }

    fn trigger_snapshot(&self) -> BoxFuture<'static, ()> {
        let shared = self.shared.clone();
        Box::pin(async move {
            let done = super::upkeep::snapshot_now(&shared).await;
            if let Err(fault) = done {
                tracing::error!(%fault, "snapshot on request failed");
            }
        })
    }

    fn shutdown(&self) -> BoxFuture<'static, ()> {
        let shared = self.shared.clone();
        Box::pin(async move {
            // An error means that the core task panicked, which the watch task has reported.
            let _panicked = shared.raft.shutdown().await;
        })
    }
}

impl<R: NodeRuntime> Forward for RaftNode<R> {
    fn forward(
        &self,
        to: u64,
        request: Bytes,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Bytes, ForwardError>> {
        let shared = self.shared.clone();
        Box::pin(async move {
            if request.len() > FORWARD_BYTES_MAX {
                return Err(ForwardError::TooLarge);
            }
            let members = shared.status().members;
            let address = members.voters.get(&to).or(members.learners.get(&to));
            let Some(address) = address else {
                return Err(ForwardError::Unreachable(to));
            };
            let bytes = Request::Forward(request).encode();
            let call = shared
                .transport
                .call(to, address, Lane::Forward, bytes, deadline);
            let answered = tokio::select! {
                biased;
                answered = call => answered,
                () = shared.silence_of(to) => Err(PeerError::Lost("it leads no more".into())),
            };
            match answered {
                Ok(bytes) => match Reply::decode(bytes) {
                    Ok(Reply::Forwarded(answer)) => Ok(answer),
                    Ok(_) | Err(_) => Err(ForwardError::Unknown(to)),
                },
                Err(PeerError::Unreachable(_)) => Err(ForwardError::Unreachable(to)),
                Err(PeerError::Lost(_)) => Err(ForwardError::Unknown(to)),
            }
        })
    }
}
