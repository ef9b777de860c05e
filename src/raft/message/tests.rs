//! Every message comes back as it was written, and damage never passes for a message.

use super::*;

fn vote() -> LogVote {
    LogVote {
        term: 4,
        leader: 2,
        committed: true,
    }
}

fn position(index: u64) -> LogPosition {
    LogPosition {
        term: 4,
        leader: 2,
        index,
    }
}

fn requests() -> Vec<Request> {
    let bodies = [
        LogBody::Blank,
        LogBody::Membership(Bytes::from_static(b"members")),
        LogBody::Batch(Bytes::from_static(b"batch")),
    ];
    let records = bodies
        .into_iter()
        .zip(8..)
        .map(|(body, index)| LogRecord {
            position: position(index),
            body,
        })
        .collect();
    vec![
        Request::Append {
            vote: vote(),
            prev: Some(position(7)),
            commit: None,
            records,
        },
        Request::Vote {
            vote: vote(),
            last: None,
            transfer: true,
            pre: false,
        },
        Request::Transfer {
            from: vote(),
            to: 3,
            last: Some(position(1)),
        },
        Request::ReadIndex,
        Request::SnapshotBegin {
            vote: vote(),
            last: Some(position(9)),
            membership: Some((position(1), Bytes::from_static(b"m"))),
            files: vec![("000001.sst".into(), 12), ("CURRENT".into(), 0)],
        },
        Request::SnapshotChunk {
            session: 5,
            file: 1,
            offset: 4096,
            checksum: 99,
            bytes: Bytes::from_static(b"data"),
        },
        Request::SnapshotEnd { session: 5 },
        Request::Forward(Bytes::from_static(b"request")),
        Request::Clock,
    ]
}

fn replies() -> Vec<Reply> {
    vec![
        Reply::Appended(None),
        Reply::Appended(Some(None)),
        Reply::Appended(Some(Some(position(3)))),
        Reply::Conflict,
        Reply::HigherVote(vote()),
        Reply::Voted {
            vote: vote(),
            granted: true,
            last: Some(position(2)),
        },
        Reply::Transferred(false),
        Reply::ReadIndex(77),
        Reply::Clock(-1),
        Reply::NotLeader,
        Reply::NoQuorum,
        Reply::Session(3),
        Reply::Installed(vote()),
        Reply::Forwarded(Bytes::from_static(b"answer")),
        Reply::Failed("why".into()),
    ]
}

#[test]
fn every_message_comes_back_as_written() -> Result<(), Fault> {
    for request in requests() {
        assert_eq!(Request::decode(request.encode())?, request);
    }
    for reply in replies() {
        assert_eq!(Reply::decode(reply.encode())?, reply);
    }
    Ok(())
}

#[test]
fn cut_or_extended_message_is_refused() {
    for bytes in requests().iter().map(Request::encode) {
        for len in 0..bytes.len() {
            assert!(Request::decode(bytes.slice(..len)).is_err());
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert!(Request::decode(Bytes::from(longer)).is_err());
    }
    for bytes in replies().iter().map(Reply::encode) {
        for len in 0..bytes.len() {
            assert!(Reply::decode(bytes.slice(..len)).is_err());
        }
    }
}

#[test]
fn unknown_version_and_kind_are_named() {
    let mut bytes = Request::ReadIndex.encode().to_vec();
    bytes[3] = 9;
    let answer = Request::decode(Bytes::from(bytes.clone()));
    assert!(matches!(answer, Err(Fault::UnknownFormat(_))));
    bytes[3] = 1;
    bytes[1] = 200;
    assert!(matches!(
        Request::decode(Bytes::from(bytes)),
        Err(Fault::UnknownFormat(_))
    ));
}

#[test]
fn heartbeat_bytes_are_frozen() {
    let heartbeat = Request::Append {
        vote: vote(),
        prev: None,
        commit: None,
        records: Vec::new(),
    };
    let expected: &[u8] = &[
        0xB3, 1, 0, 1, 4, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(heartbeat.encode(), expected);
}
