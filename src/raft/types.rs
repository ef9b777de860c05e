//! The Raft library's types, bound to ours, and the conversions between them.
//!
//! Purpose: the only place that knows how a [`LogRecord`] relates to the library's entry.
//! Callers: the adapters of this module.
//! Invariants: conversions lose nothing; a term may have more than one leader one after another (never two at once),
//! so an office is named by term **and** leader.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use openraft::impls::leader_id_adv::LeaderId;
use openraft::storage::SnapshotMeta;
use openraft::vote::RaftVote;
use openraft::{EntryPayload, LogId, Membership, RaftTypeConfig, StoredMembership, Vote};

use super::runtime::NodeRuntime;
use super::{Members, NodeAddress};
use crate::fault::Fault;
use crate::state::machine::{EntryAnswer, Position};
use crate::store::log::fields::{Reader, Writer};
use crate::store::log::{LogBody, LogPosition, LogRecord, LogVote};

/// The type configuration for runtime `R`.
pub(super) struct Types<R>(PhantomData<fn() -> R>);

impl<R> fmt::Debug for Types<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Types")
    }
}
impl<R> Clone for Types<R> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<R> Copy for Types<R> {}
impl<R> Default for Types<R> {
    fn default() -> Self {
        Self(PhantomData)
    }
}
impl<R> PartialEq for Types<R> {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}
impl<R> Eq for Types<R> {}
impl<R> PartialOrd for Types<R> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<R> Ord for Types<R> {
    fn cmp(&self, _other: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

/// An encoded batch, as the library carries it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct BatchBytes(pub(super) Bytes);

impl fmt::Debug for BatchBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "batch of {} bytes", self.0.len())
    }
}
impl fmt::Display for BatchBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What apply answered, as the library carries it.
#[derive(Clone, Default)]
pub(super) struct Answer(pub(super) EntryAnswer);

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "answer"
        } else {
            "nothing"
        })
    }
}

pub(super) type LeaderName = LeaderId<u64, u64>;
pub(super) type EntryId = LogId<LeaderName>;
pub(super) type MemberSet = Membership<u64, NodeAddress>;
pub(super) type StoredMembers = StoredMembership<LeaderName, u64, NodeAddress>;
pub(super) type ImageMeta = SnapshotMeta<LeaderName, u64, NodeAddress>;
pub(super) type Body = EntryPayload<BatchBytes, u64, NodeAddress>;
pub(super) type RaftEntryOf = openraft::Entry<LeaderName, Body>;
pub(super) type RaftVoteOf = Vote<LeaderName>;

impl<R: NodeRuntime> RaftTypeConfig for Types<R> {
    type D = BatchBytes;
    type R = Answer;
    type NodeId = u64;
    type Node = NodeAddress;
    type Term = u64;
    type LeaderId = LeaderName;
    type Vote = RaftVoteOf;
    type Payload = Body;
    type Entry = RaftEntryOf;
    type AsyncRuntime = R;
    type Responder<T>
        = openraft::impls::ProgressResponder<Self, T>
    where
        T: openraft::OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: openraft::OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// A fault as the library wants storage errors.
pub(super) fn io_error(fault: &Fault) -> io::Error {
    io::Error::other(fault.to_string())
}

pub(super) fn to_position(id: &EntryId) -> LogPosition {
    LogPosition {
        term: id.committed_leader_id().term,
        leader: id.committed_leader_id().node_id,
        index: id.index(),
    }
}

pub(super) fn from_position(p: &LogPosition) -> EntryId {
    LogId::new(
        LeaderId {
            term: p.term,
            node_id: p.leader,
        },
        p.index,
    )
}

pub(super) fn to_machine(id: &EntryId) -> Position {
    let LogPosition {
        term,
        leader,
        index,
    } = to_position(id);
    Position {
        term,
        leader,
        index,
    }
}

pub(super) fn from_machine(p: &Position) -> EntryId {
    from_position(&LogPosition {
        term: p.term,
        leader: p.leader,
        index: p.index,
    })
}

pub(super) fn to_vote(vote: &RaftVoteOf) -> LogVote {
    LogVote {
        term: vote.leader_id().term,
        leader: vote.leader_id().node_id,
        committed: vote.is_committed(),
    }
}

pub(super) fn from_vote(vote: &LogVote) -> RaftVoteOf {
    RaftVoteOf::from_leader_id(
        LeaderId {
            term: vote.term,
            node_id: vote.leader,
        },
        vote.committed,
    )
}

pub(super) fn to_record(entry: RaftEntryOf) -> LogRecord {
    LogRecord {
        position: to_position(&entry.log_id),
        body: match entry.payload {
            EntryPayload::Blank => LogBody::Blank,
            EntryPayload::Normal(batch) => LogBody::Batch(batch.0),
            EntryPayload::Membership(members) => LogBody::Membership(encode_members(&members)),
        },
    }
}

pub(super) fn from_record(record: LogRecord) -> Result<RaftEntryOf, Fault> {
    Ok(RaftEntryOf {
        log_id: from_position(&record.position),
        payload: match record.body {
            LogBody::Blank => EntryPayload::Blank,
            LogBody::Batch(bytes) => EntryPayload::Normal(BatchBytes(bytes)),
            LogBody::Membership(bytes) => EntryPayload::Membership(decode_members(bytes)?),
        },
    })
}

const MEMBERS_FORMAT: u8 = 0xA8;
const MEMBERS_VERSION: u8 = 1;

/// Members in our own format: the sets of voters (two while a change is under way), then every node's addresses.
pub(super) fn encode_members(members: &MemberSet) -> Bytes {
    let mut w = Writer::default();
    w.u8(MEMBERS_FORMAT);
    w.u8(MEMBERS_VERSION);
    w.count(members.get_joint_config().len());
    for voters in members.get_joint_config() {
        w.count(voters.len());
        for voter in voters {
            w.u64(*voter);
        }
    }
    w.count(members.nodes().count());
    for (id, address) in members.nodes() {
        w.u64(*id);
        w.text(&address.peer);
        w.text(&address.api);
    }
    Bytes::from(w.finish())
}

pub(super) fn decode_members(bytes: Bytes) -> Result<MemberSet, Fault> {
    let mut r = Reader::new(bytes, "membership");
    let (format, version) = (r.u8()?, r.u8()?);
    if format != MEMBERS_FORMAT || version != MEMBERS_VERSION {
        return Err(Fault::UnknownFormat(format!(
            "membership with format {format}, version {version}"
        )));
    }
    let mut configs = Vec::new();
    for _ in 0..r.count(4)? {
        let mut voters = BTreeSet::new();
        for _ in 0..r.count(8)? {
            voters.insert(r.u64()?);
        }
        configs.push(voters);
    }
    let mut nodes = BTreeMap::new();
    for _ in 0..r.count(16)? {
        let id = r.u64()?;
        let peer = r.text()?;
        let api = r.text()?;
        nodes.insert(id, NodeAddress { peer, api });
    }
    let broken = r.bad("names a voter without an address or an empty set of voters");
    r.end()?;
    if configs.is_empty() && nodes.is_empty() {
        return Ok(MemberSet::default());
    }
    MemberSet::new(configs, nodes).map_err(|_| broken)
}

pub(super) fn to_members(stored: &StoredMembers) -> Members {
    let set = stored.membership();
    let mut members = Members {
        index: stored.log_id().as_ref().map(LogId::index),
        joint: set.get_joint_config().len() > 1,
        ..Members::default()
    };
    let voters: BTreeSet<u64> = set.voter_ids().collect();
    for (id, address) in set.nodes() {
        let side = if voters.contains(id) {
            &mut members.voters
        } else {
            &mut members.learners
        };
        side.insert(*id, address.clone());
    }
    members
}

/// The membership that a [`crate::state::machine::Applied`] holds, as the library wants it.
pub(super) fn stored_members(applied: Option<&(Position, Bytes)>) -> Result<StoredMembers, Fault> {
    match applied {
        None => Ok(StoredMembers::default()),
        Some((position, bytes)) => Ok(StoredMembers::new(
            Some(from_machine(position)),
            decode_members(bytes.clone())?,
        )),
    }
}

/// An error that carries a fault through the library and back.
pub(super) fn fault_of(error: &(impl std::error::Error + ?Sized)) -> Fault {
    Fault::Storage {
        context: "raft".to_owned(),
        source: Arc::new(io::Error::other(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u64) -> NodeAddress {
        NodeAddress {
            peer: format!("10.0.0.{n}:7071"),
            api: format!("http://10.0.0.{n}:7070"),
        }
    }

    #[test]
    fn members_come_back_as_written_joint_and_learners_included() -> Result<(), Fault> {
        let nodes: BTreeMap<u64, NodeAddress> = (1..=4).map(|n| (n, address(n))).collect();
        let configs = vec![BTreeSet::from([1, 2, 3]), BTreeSet::from([1, 2])];
        let members = MemberSet::new(configs, nodes).map_err(|e| fault_of(&e))?;
        assert_eq!(decode_members(encode_members(&members))?, members);
        assert_eq!(
            decode_members(encode_members(&MemberSet::default()))?,
            MemberSet::default()
        );
        Ok(())
    }

    #[test]
    fn membership_bytes_are_frozen() -> Result<(), Fault> {
        let nodes = BTreeMap::from([(
            7,
            NodeAddress {
                peer: "p".into(),
                api: "a".into(),
            },
        )]);
        let members = MemberSet::new(vec![BTreeSet::from([7])], nodes).map_err(|e| fault_of(&e))?;
        let expected: &[u8] = &[
            0xA8, 1, 1, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0,
            0, 0, 1, 0, 0, 0, b'p', 1, 0, 0, 0, b'a',
        ];
        assert_eq!(encode_members(&members), expected);
        Ok(())
    }
}
