//! One call: what is sent, how its answer is judged, what the caller gets.
//!
//! Callers: `client`. Invariant: whether a call may be repeated is decided here and nowhere else.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::Error;
use super::retry::random_id;
use super::segment;
use super::transport::{Request, Response, TransportError};
use crate::wire::Problem;

/// The methods of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads.
    Get,
    /// Creates or replaces.
    Put,
    /// Creates or acts.
    Post,
    /// Deletes.
    Delete,
}

impl Method {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Put => "PUT",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }
}

/// A call to send. The idempotency key of a POST is drawn when it is made, so every repeat carries the same.
#[derive(Clone, Debug)]
pub struct Call {
    method: Method,
    path: String,
    query: Vec<(&'static str, String)>,
    headers: Vec<(&'static str, String)>,
    body: Option<Vec<u8>>,
    /// How long the server was asked to wait before it answers.
    pub wait: Duration,
    /// Longest time for one try beside the wait, when shorter than the client's own.
    pub limit: Option<Duration>,
}

impl Call {
    /// A call; a POST gets an idempotency key.
    #[must_use]
    pub fn new(method: Method, path: impl Into<String>) -> Self {
        let mut headers = Vec::new();
        if method == Method::Post {
            headers.push(("idempotency-key", random_id()));
        }
        Self {
            method,
            path: path.into(),
            query: Vec::new(),
            headers,
            body: None,
            wait: Duration::ZERO,
            limit: None,
        }
    }

    /// A POST that is repeatable without a key: the worker's calls.
    #[must_use]
    pub fn repeatable_post(path: impl Into<String>) -> Self {
        let mut call = Self::new(Method::Post, path);
        call.headers.clear();
        call
    }

    /// Adds a JSON body.
    ///
    /// # Errors
    /// [`Error::Settings`] when the value cannot be JSON.
    pub fn json<B: Serialize + ?Sized>(mut self, body: &B) -> Result<Self, Error> {
        let bytes = serde_json::to_vec(body)
            .map_err(|e| Error::Settings(format!("the body cannot be written as JSON: {e}")))?;
        self.body = Some(bytes);
        Ok(self)
    }

    /// Adds a query parameter when there is a value.
    #[must_use]
    pub fn query(mut self, name: &'static str, value: Option<impl ToString>) -> Self {
        if let Some(value) = value {
            self.query.push((name, value.to_string()));
        }
        self
    }

    /// Adds a header when there is a value.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: Option<impl ToString>) -> Self {
        if let Some(value) = value {
            self.headers.retain(|(n, _)| *n != name);
            self.headers.push((name, value.to_string()));
        }
        self
    }

    /// Says how long the server is asked to wait.
    #[must_use]
    pub const fn waiting(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Bounds one try, beside the wait.
    #[must_use]
    pub const fn within(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    pub(super) fn request(&self, server: &str, timeout: Duration) -> Request {
        let mut url = format!("{server}{}", self.path);
        for (i, (name, value)) in self.query.iter().enumerate() {
            url.push(if i == 0 { '?' } else { '&' });
            url.push_str(&format!("{name}={}", segment(value)));
        }
        Request {
            method: self.method,
            url,
            headers: self.headers.clone(),
            body: self.body.clone(),
            timeout,
        }
    }

    pub(super) fn judge(&self, server: &str, answer: Result<Response, TransportError>) -> Verdict {
        let response = match answer {
            Ok(response) => response,
            Err(cause) => {
                return Verdict::Again {
                    error: Error::Unavailable {
                        server: server.to_owned(),
                        cause: cause.to_string(),
                        retry_after: None,
                    },
                    retry_after: None,
                    elsewhere: true,
                };
            }
        };
        if response.status < 400 {
            return Verdict::Done(response);
        }
        let problem = problem_of(server, &response);
        let busy = matches!(response.status, 429 | 502 | 503 | 504);
        // The first sending of the same key is still at work: its answer will be there in a moment.
        let under_way = response.status == 409 && problem.code.starts_with("idempotency");
        if !busy && !under_way {
            return Verdict::Refused(Error::Problem(Box::new(problem)));
        }
        let retry_after = response.retry_after();
        Verdict::Again {
            error: if busy {
                Error::Unavailable {
                    server: server.to_owned(),
                    cause: describe(&problem),
                    retry_after,
                }
            } else {
                Error::Problem(Box::new(problem))
            },
            retry_after,
            // Too much load is the leader's; another way in does not help.
            elsewhere: busy && response.status != 429,
        }
    }
}

/// What to do after one try.
pub(super) enum Verdict {
    Done(Response),
    Refused(Error),
    Again {
        error: Error,
        retry_after: Option<Duration>,
        /// Try another server next.
        elsewhere: bool,
    },
}

fn problem_of(server: &str, response: &Response) -> Problem {
    match serde_json::from_slice::<Problem>(&response.body) {
        Ok(problem) if !problem.code.is_empty() => problem,
        _ => {
            let text = String::from_utf8_lossy(&response.body);
            let shown: String = text.trim().chars().take(200).collect();
            Problem {
                status: response.status,
                code: "not_punctual".into(),
                title: format!("{server} answered {}", response.status),
                detail: format!("not a problem document; is this a Punctual server? {shown}"),
                ..Problem::default()
            }
        }
    }
}

fn describe(problem: &Problem) -> String {
    let what = if problem.detail.is_empty() {
        &problem.title
    } else {
        &problem.detail
    };
    format!("{} {}: {what}", problem.status, problem.code)
}

/// What the server answered.
#[derive(Clone, Debug)]
pub struct Answer<T> {
    /// The body.
    pub value: T,
    /// The body as it was sent, for programs that want all of it.
    pub text: String,
    /// The HTTP status.
    pub status: u16,
    /// Revision of the object (`ETag`).
    pub revision: Option<String>,
    /// `created`, `updated`, `unchanged`, `existing`, `replaced`.
    pub outcome: Option<String>,
    /// Log index of the write, or of the read.
    pub log_index: Option<u64>,
    /// The answer is that of an earlier sending with the same idempotency key.
    pub replayed: bool,
}

impl<T: DeserializeOwned> Answer<T> {
    pub(super) fn read(response: &Response) -> Result<Self, Error> {
        let unreadable = |what: String| Error::Unreadable {
            status: response.status,
            detail: what,
        };
        let text = String::from_utf8(response.body.clone())
            .map_err(|e| unreadable(format!("the answer is not UTF-8: {e}")))?;
        // 204 and an empty 200 read as null, which `()` and `Option` take.
        let source = if text.trim().is_empty() {
            "null"
        } else {
            &text
        };
        let value = serde_json::from_str(source).map_err(|e| unreadable(e.to_string()))?;
        Ok(Self {
            value,
            status: response.status,
            revision: response
                .header("etag")
                .map(|t| t.trim_matches('"').to_owned()),
            outcome: response.header("x-outcome").map(str::to_owned),
            log_index: response.header("x-log-index").and_then(|t| t.parse().ok()),
            replayed: response.header("idempotency-replayed") == Some("true"),
            text,
        })
    }
}
