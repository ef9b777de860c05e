//! Requests between nodes: the whole request goes to the leader, the whole answer comes back.
//!
//! Purpose: the bytes that travel over [`crate::raft::Forward`], and the side that answers them. Callers: `dispatch`
//! sends; `raft` calls [`Forwarded`]. Invariant: a forwarded request is never forwarded again.

use std::sync::Arc;
use std::time::Duration;

use bincode::Options;
use bytes::Bytes;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::api::Api;
use crate::api::call::Request;
use crate::api::dispatch::Origin;
use crate::api::problem::{Code, Error};
use crate::api::reply::Reply;
use crate::command::codec::bincode;
use crate::raft::ForwardHandler;
use crate::time::Timestamp;

/// First byte of both messages; a change of their layout is a new number.
const FORMAT: u8 = 1;
/// Longest message: a body at its bound, and headers.
const MESSAGE_MAX: u64 = 9 * 1024 * 1024;
/// How long the leader may take for a call that does not wait.
pub const DEADLINE: Duration = Duration::from_secs(20);
/// How long it may take for one that waits for work or a result (60 s at most).
pub const WAITING_DEADLINE: Duration = Duration::from_secs(75);

#[derive(Serialize, Deserialize)]
struct RequestMessage {
    method: String,
    path: String,
    query: String,
    headers: Vec<(String, String)>,
    #[serde(with = "serde_bytes")]
    body: Vec<u8>,
    request_id: String,
}

#[derive(Serialize, Deserialize)]
struct ReplyMessage {
    status: u16,
    content_type: String,
    headers: Vec<(String, String)>,
    #[serde(with = "serde_bytes")]
    body: Vec<u8>,
}

fn encode<T: Serialize>(message: &T) -> Result<Bytes, Error> {
    let mut out = vec![FORMAT];
    bincode(MESSAGE_MAX)
        .serialize_into(&mut out, message)
        .map_err(|_| {
            Error::new(
                Code::BodyTooLarge,
                "the request is too large to be forwarded",
            )
        })?;
    Ok(Bytes::from(out))
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Option<T> {
    let (format, rest) = bytes.split_first()?;
    if *format != FORMAT {
        return None;
    }
    bincode(MESSAGE_MAX).deserialize(rest).ok()
}

/// The bytes of a request.
///
/// # Errors
/// `body_too_large`.
pub fn encode_request(request: &Request) -> Result<Bytes, Error> {
    encode(&RequestMessage {
        method: request.method.clone(),
        path: request.path.clone(),
        query: request.query.clone(),
        headers: request.headers.clone(),
        body: request.body.to_vec(),
        request_id: request.request_id.clone(),
    })
}

/// Reads an answer of the leader.
///
/// # Errors
/// `internal` for bytes that are none (another version of the program).
pub fn decode_reply(bytes: &[u8]) -> Result<Reply, Error> {
    let message: ReplyMessage = decode(bytes).ok_or_else(|| {
        Error::new(
            Code::Internal,
            "the leader's answer cannot be read: do both nodes run the same version?",
        )
    })?;
    Ok(Reply {
        status: message.status,
        content_type: message.content_type,
        headers: message.headers,
        body: Bytes::from(message.body),
    })
}

fn encode_reply(reply: &Reply) -> Bytes {
    let message = ReplyMessage {
        status: reply.status,
        content_type: reply.content_type.clone(),
        headers: reply.headers.clone(),
        body: reply.body.to_vec(),
    };
    encode(&message).unwrap_or_default()
}

/// What a node answers while its API is not up yet.
#[must_use]
pub fn not_yet() -> Bytes {
    let error = Error::new(
        Code::NoLeader,
        "the node that leads is just starting; nothing was done",
    );
    encode_reply(&Reply::problem(&error, ""))
}

/// Answers what other nodes forward.
pub struct Forwarded(Arc<Api>);

impl Forwarded {
    /// Over the API of this node.
    #[must_use]
    pub fn new(api: Arc<Api>) -> Self {
        Self(api)
    }
}

impl ForwardHandler for Forwarded {
    fn handle(&self, from: u64, request: Bytes) -> BoxFuture<'static, Bytes> {
        let api = Arc::clone(&self.0);
        Box::pin(async move {
            let Some(message) = decode::<RequestMessage>(&request) else {
                let error = Error::new(
                    Code::Internal,
                    format!("node {from} speaks another version"),
                );
                return encode_reply(&Reply::problem(&error, ""));
            };
            let request = Request {
                method: message.method,
                path: message.path,
                query: message.query,
                headers: message.headers,
                body: Bytes::from(message.body),
                request_id: message.request_id,
                began: Timestamp::EPOCH,
            };
            encode_reply(&api.answer(request, Origin::Peer).await)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_survive_the_way_between_nodes() {
        let request = Request {
            method: "PUT".into(),
            path: "/v1/x".into(),
            headers: vec![("if-match".into(), "\"1\"".into())],
            body: Bytes::from_static(b"{}"),
            ..Request::default()
        };
        let bytes = encode_request(&request).unwrap();
        let message: RequestMessage = decode(&bytes).unwrap();
        assert_eq!(
            (message.method.as_str(), message.body.as_slice()),
            ("PUT", b"{}" as &[u8])
        );
        let reply = Reply::raw(412, "text/plain", "no").etag(crate::ids::Revision::new(7, 0));
        assert_eq!(decode_reply(&encode_reply(&reply)).unwrap(), reply);
        let early = decode_reply(&not_yet()).unwrap();
        assert_eq!(
            (early.status, early.header("retry-after")),
            (503, Some("1"))
        );
        assert!(decode_reply(b"\x02nonsense").is_err());
    }
}
