//! Raft's messages to other nodes.
//!
//! Purpose: turn the library's calls into [`Request`]s over a [`PeerTransport`], each with a deadline.
//! Callers: the Raft library.
//! Invariants:
//! 1. Every call ends: an answer, or an error within its deadline. A snapshot has a deadline for each piece.
//! 2. Heartbeats, entries and snapshots never share a lane.

use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::OptionalSend;
use openraft::error::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use xxhash_rust::xxh3::xxh3_64;

use super::NodeAddress;
use super::machine::{Image, ImageSnapshot};
use super::message::{Reply, Request};
use super::runtime::NodeRuntime;
use super::settings::RaftSettings;
use super::transport::{Lane, PeerError, PeerTransport};
use super::types::{
    RaftVoteOf, Types, encode_members, from_position, from_vote, to_position, to_record, to_vote,
};
use crate::fault::Fault;

type Rpc<R> = RPCError<Types<R>>;

/// Makes clients for the library.
pub(super) struct Network<R> {
    transport: Arc<dyn PeerTransport>,
    settings: RaftSettings,
    runtime: PhantomData<fn() -> R>,
}

impl<R> Network<R> {
    pub(super) fn new(transport: Arc<dyn PeerTransport>, settings: RaftSettings) -> Self {
        Self {
            transport,
            settings,
            runtime: PhantomData,
        }
    }

    fn client(&self, to: u64, address: &NodeAddress, lane: Lane) -> Client<R> {
        Client {
            to,
            address: address.clone(),
            lane,
            transport: Arc::clone(&self.transport),
            settings: self.settings.clone(),
            runtime: PhantomData,
        }
    }
}

impl<R: NodeRuntime> RaftNetworkFactory<Types<R>> for Network<R> {
    type Network = Client<R>;

    async fn new_client(&mut self, target: u64, node: &NodeAddress) -> Client<R> {
        self.client(target, node, Lane::Log)
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &NodeAddress) -> Client<R> {
        self.client(target, node, Lane::Control)
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &NodeAddress) -> Client<R> {
        self.client(target, node, Lane::Snapshot)
    }
}

/// The library's connection to one node for one purpose.
pub(super) struct Client<R> {
    to: u64,
    address: NodeAddress,
    lane: Lane,
    transport: Arc<dyn PeerTransport>,
    settings: RaftSettings,
    runtime: PhantomData<fn() -> R>,
}

fn failure<R: NodeRuntime>(error: &PeerError) -> Rpc<R> {
    match error {
        PeerError::Unreachable(_) => RPCError::Unreachable(Unreachable::new(error)),
        PeerError::Lost(_) => RPCError::Network(NetworkError::new(error)),
    }
}

fn odd<R: NodeRuntime>(reply: &Reply) -> Rpc<R> {
    RPCError::Network(NetworkError::from_string(format!(
        "unexpected answer: {reply:?}"
    )))
}

impl<R: NodeRuntime> Client<R> {
    async fn call(&self, lane: Lane, request: &Request, within: Duration) -> Result<Reply, Rpc<R>> {
        let answer = self
            .transport
            .call(self.to, &self.address, lane, request.encode(), within);
        let bytes = answer.await.map_err(|e| failure(&e))?;
        Reply::decode(bytes).map_err(|f| RPCError::Network(NetworkError::from_string(f)))
    }

    async fn ask_vote(
        &self,
        rpc: VoteRequest<Types<R>>,
        pre: bool,
    ) -> Result<VoteResponse<Types<R>>, Rpc<R>> {
        let request = Request::Vote {
            vote: to_vote(&rpc.vote),
            last: rpc.last_log_id.as_ref().map(to_position),
            transfer: rpc.leadership_transfer,
            pre,
        };
        let within = self.settings.vote_deadline();
        match self.call(Lane::Control, &request, within).await? {
            Reply::Voted {
                vote,
                granted,
                last,
            } => Ok(VoteResponse {
                vote: from_vote(&vote),
                vote_granted: granted,
                last_log_id: last.map(|p| from_position(&p)),
            }),
            other => Err(odd(&other)),
        }
    }

    async fn send_image(
        &self,
        vote: RaftVoteOf,
        snapshot: ImageSnapshot,
    ) -> Result<RaftVoteOf, Rpc<R>> {
        let Image::Local(checkpoint) = snapshot.snapshot else {
            let why = "a received image is not sent on";
            return Err(RPCError::Network(NetworkError::from_string(why)));
        };
        let members = &snapshot.meta.last_membership;
        let begin = Request::SnapshotBegin {
            vote: to_vote(&vote),
            last: snapshot.meta.last_log_id.as_ref().map(to_position),
            membership: members
                .log_id()
                .as_ref()
                .map(|id| (to_position(id), encode_members(members.membership()))),
            files: checkpoint
                .files()
                .iter()
                .map(|f| (f.name.clone(), f.len))
                .collect(),
        };
        let idle = self.settings.snapshot_idle();
        let session = match self.call(self.lane, &begin, idle).await? {
            Reply::Session(session) => session,
            Reply::Installed(vote) => return Ok(from_vote(&vote)),
            other => return Err(odd(&other)),
        };
        let piece = self.settings.snapshot_piece_bytes;
        for (number, file) in checkpoint.files().iter().enumerate() {
            let mut offset = 0u64;
            while offset < file.len {
                let bytes = R::blocking(|| checkpoint.read(&file.name, offset, piece))
                    .map_err(|f| RPCError::Network(NetworkError::from_string(f)))?;
                let sent = bytes.len() as u64;
                let chunk = Request::SnapshotChunk {
                    session,
                    file: u32::try_from(number).unwrap_or(u32::MAX),
                    offset,
                    checksum: xxh3_64(&bytes),
                    bytes: Bytes::from(bytes),
                };
                match self.call(self.lane, &chunk, idle).await? {
                    Reply::Session(same) if same == session && sent > 0 => offset += sent,
                    other => return Err(odd(&other)),
                }
            }
        }
        let end = Request::SnapshotEnd { session };
        let within = self.settings.snapshot_install();
        match self.call(self.lane, &end, within).await? {
            Reply::Installed(vote) => Ok(from_vote(&vote)),
            other => Err(odd(&other)),
        }
    }
}

impl<R: NodeRuntime> RaftNetworkV2<Types<R>> for Client<R> {
    type SnapshotData = Image;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types<R>>,
        _option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types<R>>, Rpc<R>> {
        let request = Request::Append {
            vote: to_vote(&rpc.vote),
            prev: rpc.prev_log_id.as_ref().map(to_position),
            commit: rpc.leader_commit.as_ref().map(to_position),
            records: rpc.entries.into_iter().map(to_record).collect(),
        };
        let within = match self.lane {
            Lane::Control => self.settings.heartbeat_deadline(),
            _ => self.settings.append_deadline(),
        };
        match self.call(self.lane, &request, within).await? {
            Reply::Appended(None) => Ok(AppendEntriesResponse::Success),
            Reply::Appended(Some(upto)) => Ok(AppendEntriesResponse::PartialSuccess(
                upto.map(|p| from_position(&p)),
            )),
            Reply::Conflict => Ok(AppendEntriesResponse::Conflict),
            Reply::HigherVote(vote) => Ok(AppendEntriesResponse::HigherVote(from_vote(&vote))),
            other => Err(odd(&other)),
        }
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Types<R>>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types<R>>, Rpc<R>> {
        self.ask_vote(rpc, false).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Types<R>>,
        _option: RPCOption,
    ) -> Result<VoteResponse<Types<R>>, Rpc<R>> {
        self.ask_vote(rpc, true).await
    }

    async fn full_snapshot(
        &mut self,
        vote: RaftVoteOf,
        snapshot: ImageSnapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types<R>>, StreamingError<Types<R>>> {
        // Polled in this order: a cancelled transfer must not be kept alive by a slow piece.
        let sending = R::select2(cancel, self.send_image(vote, snapshot)).await;
        match sending {
            openraft::async_runtime::Select2::First(closed) => Err(StreamingError::Closed(closed)),
            openraft::async_runtime::Select2::Second(Ok(vote)) => Ok(SnapshotResponse { vote }),
            openraft::async_runtime::Select2::Second(Err(error)) => Err(match error {
                RPCError::Unreachable(e) => StreamingError::Unreachable(e),
                RPCError::Network(e) => StreamingError::Network(e),
                RPCError::Timeout(e) => StreamingError::Timeout(e),
            }),
        }
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<Types<R>>,
        _option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types<R>>, Rpc<R>> {
        let request = Request::Transfer {
            from: to_vote(req.from_leader()),
            to: *req.to_node_id(),
            last: req.last_log_id().map(to_position),
        };
        let within = self.settings.vote_deadline();
        match self.call(Lane::Control, &request, within).await? {
            // The library only logs a refusal; the next election settles it either way.
            Reply::Transferred(_) => Ok(Ok(())),
            other => Err(odd(&other)),
        }
    }

    fn backoff(&self) -> Option<Backoff> {
        let pause = self.settings.retry_pause();
        Some(Backoff::new(std::iter::repeat(pause)))
    }
}

/// A fault in words, for answers to other nodes.
pub(super) fn failed(fault: &Fault) -> Reply {
    Reply::Failed(fault.to_string())
}
