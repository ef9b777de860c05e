//! Answers on their way out.
//!
//! Callers: handlers make them, `server` and `forward` carry them.

use bytes::Bytes;
use serde::Serialize;

use crate::api::problem::{Code, Error};
use crate::command::outcome::Written;
use crate::ids::Revision;

/// The media type of almost every answer.
pub const JSON: &str = "application/json";
/// The media type of problem answers.
pub const PROBLEM: &str = "application/problem+json";

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Media type of the body.
    pub content_type: String,
    /// Further headers, by lower-case name.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Bytes,
}

impl Reply {
    /// `value` as JSON.
    ///
    /// # Errors
    /// `internal`, when it does not serialise (no type of `wire` does that).
    pub fn json<T: Serialize>(status: u16, value: &T) -> Result<Self, Error> {
        let body = serde_json::to_vec(value).map_err(|e| {
            Error::new(
                Code::Internal,
                format!("the answer does not serialise: {e}"),
            )
        })?;
        Ok(Self::raw(status, JSON, body))
    }

    /// Bytes of some media type.
    pub fn raw(status: u16, content_type: &str, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            content_type: content_type.to_owned(),
            headers: Vec::new(),
            body: body.into(),
        }
    }

    /// No body (204).
    #[must_use]
    pub fn empty() -> Self {
        Self::raw(204, "", Bytes::new())
    }

    /// A problem.
    #[must_use]
    pub fn problem(error: &Error, request_id: &str) -> Self {
        let body = serde_json::to_vec(&error.to_wire(request_id)).unwrap_or_default();
        let mut reply = Self::raw(error.code.status(), PROBLEM, body);
        if let Some(secs) = error.retry_after_secs() {
            reply = reply.with("retry-after", secs.to_string());
        }
        if let Some(methods) = &error.allow {
            reply = reply.with("allow", methods.clone());
        }
        if let Some(revision) = error.current_revision.filter(|r| !r.is_none()) {
            reply = reply.with("etag", format!("\"{revision}\""));
        }
        reply
    }

    /// With one more header.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<String>) -> Self {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    /// With the revision as `ETag`.
    #[must_use]
    pub fn etag(self, revision: Revision) -> Self {
        self.with("etag", format!("\"{revision}\""))
    }

    /// With `X-Log-Index`.
    #[must_use]
    pub fn at_index(self, index: u64) -> Self {
        self.with("x-log-index", index.to_string())
    }

    /// With `X-Outcome`.
    #[must_use]
    pub fn outcome(self, written: Written) -> Self {
        self.with("x-outcome", written_word(written))
    }

    /// With `Idempotency-Replayed`, when it is one.
    #[must_use]
    pub fn replayed(self, replayed: bool) -> Self {
        if replayed {
            self.with("idempotency-replayed", "true")
        } else {
            self
        }
    }

    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }
}

/// The word of `X-Outcome`.
#[must_use]
pub const fn written_word(written: Written) -> &'static str {
    match written {
        Written::Created => "created",
        Written::Updated => "updated",
        Written::Unchanged => "unchanged",
        Written::Existing => "existing",
        Written::Replaced => "replaced",
        Written::Deleted => "deleted",
    }
}
