//! Typed HTTP client: calls are repeated where that is safe, over a list of servers, within a deadline.
//!
//! Purpose: the one way in which the command line, workers and other Rust programs talk to Punctual.
//! Callers: `cli`, `worker`, programs that use this crate. It uses `wire` only.
//! Invariants:
//! 1. A call is repeated only when a repeat cannot do more than the first: GET, PUT and DELETE as they are; a POST
//!    that creates or acts carries an idempotency key, drawn once per call; the worker's calls are repeatable by
//!    the contract.
//! 2. No call outlives its deadline ([`Options::deadline`], plus the wait it asks the server for).
//! 3. The next server of the list is tried when one cannot be reached or has no leader; any node takes any call.
//!
//! ```no_run
//! use punctual::client::{Client, Options};
//! use punctual::wire::SubmitExecution;
//!
//! # async fn example() -> Result<(), punctual::client::Error> {
//! let client = Client::connect("http://127.0.0.1:7070", Options::default())?;
//! let work = SubmitExecution { kind: "mail".into(), ..SubmitExecution::default() };
//! let execution = client.submit_execution(&work, false).await?.value;
//! println!("{} is {}", execution.execution_id, execution.state.as_str());
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

mod call;
mod cluster;
mod error;
mod executions;
mod leases;
mod lists;
mod queues;
mod retry;
mod schedules;
mod servers;
mod transport;

pub use call::{Answer, Call, Method};
pub use error::Error;
pub use executions::ExecutionFilter;
pub use lists::{AuditFilter, ListFilter};
pub use retry::{Backoff, random_id};
pub use schedules::PutCondition;
pub use servers::ServerList;
pub use transport::{HttpTransport, Request, Response, Transport, TransportError};

use call::Verdict;

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Tenant of calls that belong to one.
    pub tenant: String,
    /// Longest time for one call, repeats included; a wait asked of the server comes on top.
    pub deadline: Duration,
    /// Longest time for one try; a wait asked of the server comes on top.
    pub try_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tenant: "default".into(),
            deadline: Duration::from_secs(30),
            try_timeout: Duration::from_secs(10),
        }
    }
}

/// A client; cheap to clone, clones share connections and the choice of server.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    servers: Arc<ServerList>,
    options: Options,
}

impl Client {
    /// A client for one URL or several, separated by commas. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Settings`] when a URL cannot be used.
    pub fn connect(servers: &str, options: Options) -> Result<Self, Error> {
        let servers = servers.parse()?;
        Ok(Self::with_transport(
            servers,
            Arc::new(HttpTransport::new()?),
            options,
        ))
    }

    /// A client over another transport (tests).
    #[must_use]
    pub fn with_transport(
        servers: ServerList,
        transport: Arc<dyn Transport>,
        options: Options,
    ) -> Self {
        Self {
            transport,
            servers: Arc::new(servers),
            options,
        }
    }

    /// The tenant of calls that belong to one.
    #[must_use]
    pub fn tenant(&self) -> &str {
        &self.options.tenant
    }

    /// The servers and which of them is used now.
    #[must_use]
    pub fn servers(&self) -> &ServerList {
        &self.servers
    }

    /// Sends a call, repeating it within the deadline, and reads the answer.
    ///
    /// # Errors
    /// [`Error::Problem`] when the server refuses, [`Error::Unavailable`] when no server answered in time or every
    /// answer was 429 or 503, [`Error::Unreadable`] when an answer is not of the expected form.
    pub async fn call<T: DeserializeOwned>(&self, call: Call) -> Result<Answer<T>, Error> {
        let started = Instant::now();
        let deadline = started + self.options.deadline + call.wait;
        let mut backoff = Backoff::default();
        // Servers that failed since the last pause: when all have, it is time for a pause.
        let mut failed = 0;
        let mut before = None;
        loop {
            let (at, answer) = self.one_try(&call, deadline).await;
            let (error, retry_after, elsewhere) = match answer {
                Verdict::Done(response) => return Answer::read(&response),
                Verdict::Refused(error) => return Err(error),
                Verdict::Again {
                    error,
                    retry_after,
                    elsewhere,
                } => (error, retry_after, elsewhere),
            };
            if elsewhere {
                failed += 1;
                self.servers.leave(at);
            }
            let pause = if elsewhere && failed < self.servers.len() {
                Duration::ZERO
            } else {
                failed = 0;
                backoff.next(retry_after)
            };
            let now = Instant::now();
            if now + pause >= deadline {
                // A try that the deadline cut short says less than the answer before it.
                let said = before.filter(|_| now >= deadline);
                return Err(said.unwrap_or(error));
            }
            before = Some(error);
            tokio::time::sleep(pause).await;
        }
    }

    /// Sends a call once; the caller repeats it. When the server cannot be reached, the next call goes to another.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn call_once<T: DeserializeOwned>(&self, call: Call) -> Result<Answer<T>, Error> {
        let deadline = Instant::now() + self.options.try_timeout + call.wait;
        let (at, answer) = self.one_try(&call, deadline).await;
        match answer {
            Verdict::Done(response) => Answer::read(&response),
            Verdict::Refused(error) => Err(error),
            Verdict::Again {
                error, elsewhere, ..
            } => {
                if elsewhere {
                    self.servers.leave(at);
                }
                Err(error)
            }
        }
    }

    async fn one_try(&self, call: &Call, deadline: Instant) -> (usize, Verdict) {
        let (at, server) = self.servers.current();
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = call.limit.unwrap_or(self.options.try_timeout);
        let timeout = (self.options.try_timeout.min(limit) + call.wait).min(left);
        let request = call.request(server, timeout);
        let answer = match tokio::time::timeout(timeout, self.transport.send(request)).await {
            Ok(answer) => answer,
            Err(_) => Err(TransportError::TimedOut(timeout)),
        };
        (at, call.judge(server, answer))
    }

    /// Reads the object at `path`.
    async fn read<T: DeserializeOwned>(&self, path: String) -> Result<Answer<T>, Error> {
        self.call(Call::new(Method::Get, path)).await
    }

    /// A call with a JSON body.
    fn with_body<B: Serialize + ?Sized>(
        method: Method,
        path: String,
        body: &B,
    ) -> Result<Call, Error> {
        Call::new(method, path).json(body)
    }

    fn tenant_path(&self, rest: &str) -> String {
        format!("/v1/tenants/{}/{rest}", segment(&self.options.tenant))
    }
}

/// A path segment with everything encoded that would end it.
fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests;
