//! Raft's messages from other nodes.
//!
//! Purpose: decode a [`Request`], ask this node's Raft, encode the [`Reply`].
//! Callers: the peer transport (TCP or simulated), through [`PeerHandler`].
//! Invariants:
//! 1. A malformed request is answered with a failure and changes nothing.
//! 2. A follower whose apply lags far behind its log answers appends late, which slows its leader down.
//! 3. An image is installed only when no apply is under way: the Raft library cannot do both at once.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use openraft::ReadPolicy;
use openraft::error::{LinearizableReadError, RaftError};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest,
};

use super::incoming::Incoming;
use super::message::{Reply, Request};
use super::network::failed;
use super::node::Shared;
use super::runtime::NodeRuntime;
use super::transport::{Lane, PeerHandler};
use super::types::{Types, from_position, from_record, from_vote, to_position, to_vote};
use crate::fault::Fault;
use crate::store::log::LogRecord;

/// How long an append may be held back for a lagging apply.
const LAG_PAUSE: Duration = Duration::from_millis(200);

/// The receiving side of one node.
pub(super) struct Server<R: NodeRuntime> {
    shared: Arc<Shared<R>>,
    incoming: Arc<Incoming<R>>,
}

impl<R: NodeRuntime> Server<R> {
    pub(super) fn new(shared: Arc<Shared<R>>, incoming: Arc<Incoming<R>>) -> Self {
        Self { shared, incoming }
    }
}

impl<R: NodeRuntime> PeerHandler for Server<R> {
    fn handle(&self, from: u64, _lane: Lane, request: Bytes) -> BoxFuture<'static, Bytes> {
        let shared = Arc::clone(&self.shared);
        let incoming = Arc::clone(&self.incoming);
        Box::pin(async move {
            let reply = match Request::decode(request) {
                Ok(request) => answer(&shared, &incoming, from, request).await,
                Err(fault) => failed(&fault),
            };
            reply.encode()
        })
    }
}

async fn answer<R: NodeRuntime>(
    shared: &Shared<R>,
    incoming: &Incoming<R>,
    from: u64,
    request: Request,
) -> Reply {
    match request {
        Request::Append {
            vote,
            prev,
            commit,
            records,
        } => {
            let has_entries = !records.is_empty();
            let rpc = entries(records).map(|entries| AppendEntriesRequest::<Types<R>> {
                vote: from_vote(&vote),
                prev_log_id: prev.map(|p| from_position(&p)),
                entries,
                leader_commit: commit.map(|p| from_position(&p)),
            });
            match rpc {
                Ok(rpc) => append(shared, from, rpc, has_entries).await,
                Err(fault) => failed(&fault),
            }
        }
        Request::Vote {
            vote,
            last,
            transfer,
            pre,
        } => {
            let mut rpc = VoteRequest::new(from_vote(&vote), last.map(|p| from_position(&p)));
            rpc.leadership_transfer = transfer;
            vote_on(shared, rpc, pre).await
        }
        Request::Transfer { from, to, last } => {
            let last = last.map(|p| from_position(&p));
            let rpc = TransferLeaderRequest::new(from_vote(&from), to, last);
            match shared.raft.handle_transfer_leader(rpc).await {
                Ok(outcome) => Reply::Transferred(outcome.is_ok()),
                Err(error) => Reply::Failed(error.to_string()),
            }
        }
        Request::ReadIndex => read_index(shared).await,
        Request::Clock => Reply::Clock(shared.rt.clock().wall().millis()),
        Request::SnapshotBegin {
            vote,
            last,
            membership,
            files,
        } => incoming.begin(from, vote, last, membership, files),
        Request::SnapshotChunk {
            session,
            file,
            offset,
            checksum,
            bytes,
        } => incoming.chunk(session, file, offset, checksum, &bytes),
        Request::SnapshotEnd { session } => incoming.end(session).await,
        Request::Forward(bytes) => Reply::Forwarded(shared.forwards.handle(from, bytes).await),
    }
}

fn entries(records: Vec<LogRecord>) -> Result<Vec<super::types::RaftEntryOf>, Fault> {
    records.into_iter().map(from_record).collect()
}

async fn append<R: NodeRuntime>(
    shared: &Shared<R>,
    from: u64,
    rpc: AppendEntriesRequest<Types<R>>,
    has_entries: bool,
) -> Reply {
    let reply = match shared.raft.append_entries(rpc).await {
        Ok(AppendEntriesResponse::Success) => Reply::Appended(None),
        Ok(AppendEntriesResponse::PartialSuccess(upto)) => {
            Reply::Appended(Some(upto.as_ref().map(to_position)))
        }
        Ok(AppendEntriesResponse::Conflict) => Reply::Conflict,
        Ok(AppendEntriesResponse::HigherVote(vote)) => Reply::HigherVote(to_vote(&vote)),
        Err(error) => return Reply::Failed(error.to_string()),
    };
    if !matches!(reply, Reply::HigherVote(_)) {
        *shared.heard.lock() = Some((from, tokio::time::Instant::now()));
    }
    if has_entries && shared.apply_lag() > shared.settings.apply_lag_max {
        shared.wait_for_apply(LAG_PAUSE).await;
    }
    reply
}

async fn vote_on<R: NodeRuntime>(
    shared: &Shared<R>,
    rpc: VoteRequest<Types<R>>,
    pre: bool,
) -> Reply {
    let outcome = if pre {
        shared.raft.pre_vote(rpc).await
    } else {
        shared.raft.vote(rpc).await
    };
    match outcome {
        Ok(response) => Reply::Voted {
            vote: to_vote(&response.vote),
            granted: response.vote_granted,
            last: response.last_log_id.as_ref().map(to_position),
        },
        Err(error) => Reply::Failed(error.to_string()),
    }
}

/// Confirms leadership with a majority and answers the index that a read must wait for.
pub(super) async fn read_index<R: NodeRuntime>(shared: &Shared<R>) -> Reply {
    let asked = shared.raft.get_read_linearizer(ReadPolicy::ReadIndex).await;
    match asked {
        Ok(linearizer) => Reply::ReadIndex(linearizer.read_log_id().index()),
        Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(_))) => Reply::NotLeader,
        Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => Reply::NoQuorum,
        Err(RaftError::Fatal(fatal)) => Reply::Failed(fatal.to_string()),
    }
}
