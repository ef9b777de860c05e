//! What nodes say to each other, in our own binary form.
//!
//! Purpose: requests and answers of the peer protocol, independent of the Raft library's serialised forms.
//! Callers: [`super::network`](super) (sending), [`super::server`](super) (receiving).
//! Invariants: every message begins with a format byte, a kind and a version; an unknown one is an error, never a
//! default; decoding allocates no more than the message holds.

use bytes::Bytes;

use crate::fault::Fault;
use crate::store::log::fields::{Reader, Writer};
use crate::store::log::{LogBody, LogPosition, LogRecord, LogVote};

const FORMAT: u8 = 0xB3;
const VERSION: u8 = 1;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// Entries to append, or a heartbeat when there are none.
    Append {
        vote: LogVote,
        prev: Option<LogPosition>,
        commit: Option<LogPosition>,
        records: Vec<LogRecord>,
    },
    /// A candidate asks for a vote, or (`pre`) whether it would get one.
    Vote {
        vote: LogVote,
        last: Option<LogPosition>,
        transfer: bool,
        pre: bool,
    },
    /// The leader hands over.
    Transfer {
        from: LogVote,
        to: u64,
        last: Option<LogPosition>,
    },
    /// A follower asks for a read index.
    ReadIndex,
    /// A snapshot follows.
    SnapshotBegin {
        vote: LogVote,
        last: Option<LogPosition>,
        membership: Option<(LogPosition, Bytes)>,
        files: Vec<(String, u64)>,
    },
    /// A piece of file number `file`.
    SnapshotChunk {
        session: u64,
        file: u32,
        offset: u64,
        checksum: u64,
        bytes: Bytes,
    },
    /// All pieces were sent: install.
    SnapshotEnd { session: u64 },
    /// A request of another node's API.
    Forward(Bytes),
    /// What does your wall clock show?
    Clock,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Appended up to the end of the request, or to the given entry.
    Appended(Option<Option<LogPosition>>),
    /// The entry before the request is not here.
    Conflict,
    /// The sender's vote is too old.
    HigherVote(LogVote),
    /// Answer to a vote.
    Voted {
        vote: LogVote,
        granted: bool,
        last: Option<LogPosition>,
    },
    /// Answer to a transfer.
    Transferred(bool),
    /// A read index.
    ReadIndex(u64),
    /// Not the leader.
    NotLeader,
    /// No majority answered.
    NoQuorum,
    /// Go on with the snapshot under this session.
    Session(u64),
    /// The snapshot is installed, or refused by a higher vote.
    Installed(LogVote),
    /// Answer to a forwarded request.
    Forwarded(Bytes),
    /// The wall clock, in milliseconds since the epoch.
    Clock(i64),
    /// The node could not answer.
    Failed(String),
}

fn put_vote(w: &mut Writer, vote: &LogVote) {
    w.u64(vote.term);
    w.u64(vote.leader);
    w.bool(vote.committed);
}

fn take_vote(r: &mut Reader) -> Result<LogVote, Fault> {
    Ok(LogVote {
        term: r.u64()?,
        leader: r.u64()?,
        committed: r.bool()?,
    })
}

fn put_position(w: &mut Writer, position: &LogPosition) {
    w.u64(position.term);
    w.u64(position.leader);
    w.u64(position.index);
}

fn take_position(r: &mut Reader) -> Result<LogPosition, Fault> {
    Ok(LogPosition {
        term: r.u64()?,
        leader: r.u64()?,
        index: r.u64()?,
    })
}

fn put_option(w: &mut Writer, position: Option<&LogPosition>) {
    w.bool(position.is_some());
    if let Some(position) = position {
        put_position(w, position);
    }
}

fn take_option(r: &mut Reader) -> Result<Option<LogPosition>, Fault> {
    Ok(if r.bool()? {
        Some(take_position(r)?)
    } else {
        None
    })
}

fn put_record(w: &mut Writer, record: &LogRecord) {
    put_position(w, &record.position);
    w.u8(match record.body {
        LogBody::Blank => 0,
        LogBody::Membership(_) => 1,
        LogBody::Batch(_) => 2,
    });
    w.bytes(record.body.bytes());
}

fn take_record(r: &mut Reader) -> Result<LogRecord, Fault> {
    let position = take_position(r)?;
    let kind = r.u8()?;
    let bytes = r.bytes()?;
    let body = match kind {
        0 => LogBody::Blank,
        1 => LogBody::Membership(bytes),
        2 => LogBody::Batch(bytes),
        other => return Err(Fault::UnknownFormat(format!("entry of kind {other}"))),
    };
    Ok(LogRecord { position, body })
}

fn begin(kind: u16, capacity: usize) -> Writer {
    let mut w = Writer::with_capacity(capacity + 64);
    w.u8(FORMAT);
    w.u16(kind);
    w.u8(VERSION);
    w
}

fn open(bytes: Bytes, what: &'static str) -> Result<(u16, Reader), Fault> {
    let mut r = Reader::new(bytes, what);
    let (format, kind, version) = (r.u8()?, r.u16()?, r.u8()?);
    if format != FORMAT || version != VERSION {
        return Err(Fault::UnknownFormat(format!(
            "{what} with format {format}, kind {kind}, version {version}"
        )));
    }
    Ok((kind, r))
}

impl Request {
    /// The bytes to send.
    pub(super) fn encode(&self) -> Bytes {
        let w = match self {
            Self::Append {
                vote,
                prev,
                commit,
                records,
            } => {
                let size: u64 = records.iter().map(LogRecord::weight).sum();
                let mut w = begin(1, usize::try_from(size).unwrap_or(0));
                put_vote(&mut w, vote);
                put_option(&mut w, prev.as_ref());
                put_option(&mut w, commit.as_ref());
                w.count(records.len());
                for record in records {
                    put_record(&mut w, record);
                }
                w
            }
            Self::Vote {
                vote,
                last,
                transfer,
                pre,
            } => {
                let mut w = begin(2, 0);
                put_vote(&mut w, vote);
                put_option(&mut w, last.as_ref());
                w.bool(*transfer);
                w.bool(*pre);
                w
            }
            Self::Transfer { from, to, last } => {
                let mut w = begin(3, 0);
                put_vote(&mut w, from);
                w.u64(*to);
                put_option(&mut w, last.as_ref());
                w
            }
            Self::ReadIndex => begin(4, 0),
            Self::SnapshotBegin { .. } => self.encode_snapshot_begin(),
            Self::SnapshotChunk {
                session,
                file,
                offset,
                checksum,
                bytes,
            } => {
                let mut w = begin(6, bytes.len());
                w.u64(*session);
                w.u32(*file);
                w.u64(*offset);
                w.u64(*checksum);
                w.bytes(bytes);
                w
            }
            Self::SnapshotEnd { session } => {
                let mut w = begin(7, 0);
                w.u64(*session);
                w
            }
            Self::Forward(bytes) => {
                let mut w = begin(8, bytes.len());
                w.bytes(bytes);
                w
            }
            Self::Clock => begin(9, 0),
        };
        Bytes::from(w.finish())
    }

    fn encode_snapshot_begin(&self) -> Writer {
        let mut w = begin(5, 256);
        if let Self::SnapshotBegin {
            vote,
            last,
            membership,
            files,
        } = self
        {
            put_vote(&mut w, vote);
            put_option(&mut w, last.as_ref());
            w.bool(membership.is_some());
            if let Some((position, bytes)) = membership {
                put_position(&mut w, position);
                w.bytes(bytes);
            }
            w.count(files.len());
            for (name, len) in files {
                w.text(name);
                w.u64(*len);
            }
        }
        w
    }

    /// Reads what [`Self::encode`] wrote.
    pub(super) fn decode(bytes: Bytes) -> Result<Self, Fault> {
        let (kind, mut r) = open(bytes, "peer request")?;
        let request = match kind {
            1 => {
                let vote = take_vote(&mut r)?;
                let prev = take_option(&mut r)?;
                let commit = take_option(&mut r)?;
                let mut records = Vec::new();
                for _ in 0..r.count(29)? {
                    records.push(take_record(&mut r)?);
                }
                Self::Append {
                    vote,
                    prev,
                    commit,
                    records,
                }
            }
            2 => Self::Vote {
                vote: take_vote(&mut r)?,
                last: take_option(&mut r)?,
                transfer: r.bool()?,
                pre: r.bool()?,
            },
            3 => Self::Transfer {
                from: take_vote(&mut r)?,
                to: r.u64()?,
                last: take_option(&mut r)?,
            },
            4 => Self::ReadIndex,
            5 => Self::decode_snapshot_begin(&mut r)?,
            6 => Self::SnapshotChunk {
                session: r.u64()?,
                file: r.u32()?,
                offset: r.u64()?,
                checksum: r.u64()?,
                bytes: r.bytes()?,
            },
            7 => Self::SnapshotEnd { session: r.u64()? },
            8 => Self::Forward(r.bytes()?),
            9 => Self::Clock,
            other => return Err(Fault::UnknownFormat(format!("peer request {other}"))),
        };
        r.end()?;
        Ok(request)
    }

    fn decode_snapshot_begin(r: &mut Reader) -> Result<Self, Fault> {
        let vote = take_vote(r)?;
        let last = take_option(r)?;
        let membership = if r.bool()? {
            Some((take_position(r)?, r.bytes()?))
        } else {
            None
        };
        let mut files = Vec::new();
        for _ in 0..r.count(12)? {
            files.push((r.text()?, r.u64()?));
        }
        Ok(Self::SnapshotBegin {
            vote,
            last,
            membership,
            files,
        })
    }
}

impl Reply {
    /// The bytes to send.
    pub(super) fn encode(&self) -> Bytes {
        let w = match self {
            Self::Appended(partial) => {
                let mut w = begin(101, 0);
                w.bool(partial.is_some());
                if let Some(upto) = partial {
                    put_option(&mut w, upto.as_ref());
                }
                w
            }
            Self::Conflict => begin(102, 0),
            Self::HigherVote(vote) => {
                let mut w = begin(103, 0);
                put_vote(&mut w, vote);
                w
            }
            Self::Voted {
                vote,
                granted,
                last,
            } => {
                let mut w = begin(104, 0);
                put_vote(&mut w, vote);
                w.bool(*granted);
                put_option(&mut w, last.as_ref());
                w
            }
            Self::Transferred(accepted) => {
                let mut w = begin(105, 0);
                w.bool(*accepted);
                w
            }
            Self::ReadIndex(index) => {
                let mut w = begin(106, 0);
                w.u64(*index);
                w
            }
            Self::NotLeader => begin(107, 0),
            Self::NoQuorum => begin(108, 0),
            Self::Session(session) => {
                let mut w = begin(109, 0);
                w.u64(*session);
                w
            }
            Self::Installed(vote) => {
                let mut w = begin(110, 0);
                put_vote(&mut w, vote);
                w
            }
            Self::Forwarded(bytes) => {
                let mut w = begin(111, bytes.len());
                w.bytes(bytes);
                w
            }
            Self::Clock(wall) => {
                let mut w = begin(113, 0);
                w.u64(wall.cast_unsigned());
                w
            }
            Self::Failed(why) => {
                let mut w = begin(112, why.len());
                w.text(why);
                w
            }
        };
        Bytes::from(w.finish())
    }

    /// Reads what [`Self::encode`] wrote.
    pub(super) fn decode(bytes: Bytes) -> Result<Self, Fault> {
        let (kind, mut r) = open(bytes, "peer answer")?;
        let reply = match kind {
            101 => Self::Appended(if r.bool()? {
                Some(take_option(&mut r)?)
            } else {
                None
            }),
            102 => Self::Conflict,
            103 => Self::HigherVote(take_vote(&mut r)?),
            104 => Self::Voted {
                vote: take_vote(&mut r)?,
                granted: r.bool()?,
                last: take_option(&mut r)?,
            },
            105 => Self::Transferred(r.bool()?),
            106 => Self::ReadIndex(r.u64()?),
            107 => Self::NotLeader,
            108 => Self::NoQuorum,
            109 => Self::Session(r.u64()?),
            110 => Self::Installed(take_vote(&mut r)?),
            111 => Self::Forwarded(r.bytes()?),
            112 => Self::Failed(r.text()?),
            113 => Self::Clock(r.u64()?.cast_signed()),
            other => return Err(Fault::UnknownFormat(format!("peer answer {other}"))),
        };
        r.end()?;
        Ok(reply)
    }
}

#[cfg(test)]
mod tests;
