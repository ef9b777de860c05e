//! How votes, entries and the purge watermark are written down.
//!
//! Purpose: one envelope (format byte, kind, version, body, checksum) per stored value, independent of the Raft
//! library's own forms.
//! Callers: the implementations of [`super::LogStore`].
//! Invariants:
//! 1. A layout is frozen once released; a change is a new version beside it. Golden bytes are in the tests.
//! 2. The checksum of an entry is seeded with the one before it, so a lost, repeated or reordered entry is found even
//!    when every entry on its own is intact.

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::fields::{Reader, Writer};
use super::{LogBody, LogPosition, LogRecord, LogVote};
use crate::fault::Fault;

/// First byte of every value of the log.
const FORMAT: u8 = 0xA7;
const VERSION: u8 = 1;
const KIND_VOTE: u16 = 1;
const KIND_PURGED: u16 = 2;
const KIND_BLANK: u16 = 16;
const KIND_MEMBERSHIP: u16 = 17;
const KIND_BATCH: u16 = 18;

/// An entry with what this node's log adds to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    /// The entry.
    pub(super) record: LogRecord,
    /// Bytes of the log before it.
    pub(super) offset: u64,
    /// Checksum of the entry before it (or of the watermark).
    pub(super) before: u64,
    /// Its own checksum, seeded with `before`.
    pub(super) chain: u64,
}

/// The purge watermark: where the log begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Watermark {
    /// Last purged entry.
    pub(super) position: LogPosition,
    /// Checksum that the first held entry is chained to.
    pub(super) chain: u64,
    /// Bytes of the log up to and with that entry.
    pub(super) offset: u64,
}

fn envelope(w: &mut Writer, kind: u16) {
    w.u8(FORMAT);
    w.u16(kind);
    w.u8(VERSION);
}

fn open_envelope(r: &mut Reader) -> Result<u16, Fault> {
    let format = r.u8()?;
    let kind = r.u16()?;
    let version = r.u8()?;
    if format != FORMAT || version != VERSION {
        return Err(Fault::UnknownFormat(format!(
            "log value with format {format}, kind {kind}, version {version}"
        )));
    }
    Ok(kind)
}

pub(super) fn put_position(w: &mut Writer, position: &LogPosition) {
    w.u64(position.term);
    w.u64(position.leader);
    w.u64(position.index);
}

pub(super) fn take_position(r: &mut Reader) -> Result<LogPosition, Fault> {
    Ok(LogPosition {
        term: r.u64()?,
        leader: r.u64()?,
        index: r.u64()?,
    })
}

fn seal(mut w: Writer, seed: u64) -> (Vec<u8>, u64) {
    let sum = xxh3_64_with_seed(w.written(), seed);
    w.u64(sum);
    (w.finish(), sum)
}

fn check(bytes: &Bytes, seed: u64, what: &'static str) -> Result<(Bytes, u64), Fault> {
    let Some(split) = bytes.len().checked_sub(8) else {
        return Err(Fault::corrupt(format!("{what}: ends too early")));
    };
    let body = bytes.slice(..split);
    let stored = Reader::new(bytes.slice(split..), what).u64()?;
    if xxh3_64_with_seed(&body, seed) != stored {
        return Err(Fault::corrupt(format!("{what}: wrong checksum")));
    }
    Ok((body, stored))
}

pub(super) fn encode_vote(vote: &LogVote) -> Vec<u8> {
    let mut w = Writer::with_capacity(32);
    envelope(&mut w, KIND_VOTE);
    w.u64(vote.term);
    w.u64(vote.leader);
    w.bool(vote.committed);
    seal(w, 0).0
}

pub(super) fn decode_vote(bytes: &Bytes) -> Result<LogVote, Fault> {
    let (body, _) = check(bytes, 0, "vote")?;
    let mut r = Reader::new(body, "vote");
    if open_envelope(&mut r)? != KIND_VOTE {
        return Err(r.bad("is of another kind"));
    }
    let vote = LogVote {
        term: r.u64()?,
        leader: r.u64()?,
        committed: r.bool()?,
    };
    r.end()?;
    Ok(vote)
}

pub(super) fn encode_watermark(mark: &Watermark) -> Vec<u8> {
    let mut w = Writer::with_capacity(64);
    envelope(&mut w, KIND_PURGED);
    put_position(&mut w, &mark.position);
    w.u64(mark.chain);
    w.u64(mark.offset);
    seal(w, 0).0
}

pub(super) fn decode_watermark(bytes: &Bytes) -> Result<Watermark, Fault> {
    let (body, _) = check(bytes, 0, "purge watermark")?;
    let mut r = Reader::new(body, "purge watermark");
    if open_envelope(&mut r)? != KIND_PURGED {
        return Err(r.bad("is of another kind"));
    }
    let mark = Watermark {
        position: take_position(&mut r)?,
        chain: r.u64()?,
        offset: r.u64()?,
    };
    r.end()?;
    Ok(mark)
}

/// Encodes `record` after an entry with checksum `before`, at byte `offset` of the log; also returns its checksum.
pub(super) fn encode_entry(record: &LogRecord, offset: u64, before: u64) -> (Vec<u8>, u64) {
    let body = record.body.bytes();
    let mut w = Writer::with_capacity(body.len() + 64);
    envelope(
        &mut w,
        match record.body {
            LogBody::Blank => KIND_BLANK,
            LogBody::Membership(_) => KIND_MEMBERSHIP,
            LogBody::Batch(_) => KIND_BATCH,
        },
    );
    put_position(&mut w, &record.position);
    w.u64(offset);
    w.u64(before);
    w.bytes(body);
    seal(w, before)
}

/// Decodes and verifies one entry.
pub(super) fn decode_entry(bytes: &Bytes) -> Result<Stored, Fault> {
    let mut r = Reader::new(bytes.clone(), "log entry");
    let kind = open_envelope(&mut r)?;
    let position = take_position(&mut r)?;
    let offset = r.u64()?;
    let before = r.u64()?;
    let payload = r.bytes()?;
    let (_, chain) = check(bytes, before, "log entry")?;
    if r.remaining() != 8 {
        return Err(r.bad("has trailing bytes"));
    }
    let body = match kind {
        KIND_BLANK if payload.is_empty() => LogBody::Blank,
        KIND_MEMBERSHIP => LogBody::Membership(payload),
        KIND_BATCH => LogBody::Batch(payload),
        other => return Err(Fault::UnknownFormat(format!("log entry of kind {other}"))),
    };
    Ok(Stored {
        record: LogRecord { position, body },
        offset,
        before,
        chain,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> LogRecord {
        LogRecord {
            position: LogPosition {
                term: 3,
                leader: 2,
                index: 9,
            },
            body: LogBody::Batch(Bytes::from_static(b"xy")),
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn golden_bytes_of_every_kind_stay_the_same() {
        let vote = LogVote {
            term: 5,
            leader: 1,
            committed: true,
        };
        assert_eq!(
            hex(&encode_vote(&vote)),
            "a7010001050000000000000001000000000000000186f3da3281880be7"
        );
        let (bytes, _) = encode_entry(&sample(), 100, 77);
        assert_eq!(
            hex(&bytes),
            "a71200010300000000000000020000000000000009000000000000006400000000000000\
             4d00000000000000020000007879a7d5aae4a0a5ad51"
        );
        let mark = Watermark {
            position: sample().position,
            chain: 7,
            offset: 8,
        };
        assert_eq!(
            hex(&encode_watermark(&mark)),
            "a702000103000000000000000200000000000000090000000000000007000000000000000800000000000000\
             39d474cae774156c"
        );
    }

    #[test]
    fn values_come_back_as_written() -> Result<(), Fault> {
        let (bytes, chain) = encode_entry(&sample(), 100, 77);
        let stored = decode_entry(&Bytes::from(bytes))?;
        assert_eq!(stored.record, sample());
        assert_eq!(
            (stored.offset, stored.before, stored.chain),
            (100, 77, chain)
        );
        let vote = LogVote {
            term: 5,
            leader: 1,
            committed: false,
        };
        assert_eq!(decode_vote(&Bytes::from(encode_vote(&vote)))?, vote);
        let mark = Watermark {
            position: sample().position,
            chain: 7,
            offset: 8,
        };
        assert_eq!(
            decode_watermark(&Bytes::from(encode_watermark(&mark)))?,
            mark
        );
        let weight = encode_entry(&sample(), 0, 0).0.len() as u64;
        assert_eq!(weight, sample().weight());
        Ok(())
    }

    #[test]
    fn any_flipped_bit_is_found() {
        let (bytes, _) = encode_entry(&sample(), 100, 77);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut bad = bytes.clone();
                bad[at] ^= 1 << bit;
                assert!(
                    decode_entry(&Bytes::from(bad)).is_err(),
                    "byte {at} bit {bit}"
                );
            }
        }
    }

    #[test]
    fn unknown_version_is_named_and_refused() {
        let (mut bytes, _) = encode_entry(&sample(), 0, 0);
        bytes[3] = 2;
        let answer = decode_entry(&Bytes::from(bytes));
        assert!(matches!(answer, Err(Fault::UnknownFormat(_))));
    }
}
