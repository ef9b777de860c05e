//! The worker's side of the lease protocol: claim, run, renew, report, drain.
//!
//! Purpose: a loop that runs a [`Handler`] for each lease and keeps the promises a worker makes; `punctual worker`
//! is this loop with a handler that starts processes ([`process`]).
//! Callers: `cli::worker`, programs that use this crate. It uses `client` and `wire` only.
//! Invariants:
//! 1. A handler runs only while the lease is known to live: its time is counted on the monotonic clock from when the
//!    request was **sent**, less a tenth. At that moment, at the latest, the handler's future is dropped. A lease that
//!    came late in a long poll is renewed before its handler starts.
//! 2. Leases are renewed every third of their length by a task of their own, which neither claims nor handlers delay. (On
//!    a runtime with one thread, a handler that blocks that thread does: run blocking work elsewhere.)
//! 3. Every handler that ends is reported until the server has answered or a minute after the lease is over; while
//!    no report of it is under way, its lease is renewed.
//! 4. At most [`Settings::slots`] handlers run at a time.
//! 5. A claim without an answer is repeated with the same request id, so a lease in a lost answer is not lost.
//!
//! ```text
//! claim ──► handler runs ──► report ──► claim carries the reports of those that ended
//!   ▲          │  ▲
//!   │   renew task: lease/3, progress up, cancel notice down
//!   └── free slots
//! ```
//!
//! A worker that sends mail:
//!
//! ```no_run
//! use punctual::client::{Client, Options};
//! use punctual::worker::{self, Outcome, Settings, Work, Worker};
//!
//! async fn send(work: Work) -> Outcome {
//!     let to: String = match work.payload() {
//!         Ok(to) => to,
//!         // The same payload will not become right by trying again.
//!         Err(error) => return Outcome::fail_for_good("Payload", error.to_string()),
//!     };
//!     tokio::select! {
//!         sent = mail(&to, work.lease().fencing_token) => match sent {
//!             Ok(()) => Outcome::success(),
//!             Err(error) => Outcome::fail("Smtp", error),
//!         },
//!         // A cancel was asked for, or the lease is about to end.
//!         stop = work.stopped() => Outcome::fail("Stopped", stop.to_string()),
//!     }
//! }
//! # async fn mail(_: &str, _: u64) -> Result<(), String> { Ok(()) }
//!
//! # async fn example() -> Result<(), punctual::client::Error> {
//! let client = Client::connect("http://127.0.0.1:7070", Options::default())?;
//! let settings = Settings { slots: 4, ..Settings::for_queues(["email"]) };
//! let (shutdown, drain) = worker::shutdown();
//! tokio::spawn(async move {
//!     let _ = tokio::signal::ctrl_c().await;
//!     shutdown.drain();
//! });
//! let summary = Worker::new(settings, client, send).run(drain).await?;
//! println!("{} succeeded", summary.succeeded);
//! # Ok(())
//! # }
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::client::{Error, random_id};
use crate::wire::{Json, Lease, WorkerError};

mod attempt;
mod calls;
mod held;
pub mod process;
mod renew;
mod report;
mod run;

pub use calls::LeaseCalls;
use held::Held;
pub use held::Stop;

/// Longest result that is kept, in bytes of JSON.
pub const RESULT_MAX: usize = 64 << 10;

/// What a worker is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Unique per process start; drawn by [`Settings::for_queues`].
    pub worker_id: String,
    /// Queues in order of preference; at least one.
    pub queues: Vec<String>,
    /// Handlers at a time, 1 to 1,000.
    pub slots: u32,
    /// Length of each lease, 1 s to 24 h.
    pub lease: Duration,
    /// How long a claim waits for work, at most 60 s; cut to a third of the lease, because a lease counts from when its
    /// claim was sent.
    pub wait: Duration,
    /// Kinds that the handler can do; `None`: all.
    pub kinds: Option<Vec<String>>,
    /// What it shows to `requires`.
    pub labels: BTreeMap<String, String>,
    /// Time between the notice to stop and the end of a handler, at most a fifth of the lease.
    pub stop_grace: Duration,
    /// After a drain began, handlers are stopped when this has passed; `None`: they finish.
    pub drain_timeout: Option<Duration>,
}

impl Settings {
    /// One slot, leases of 30 s, polls of 20 s, five seconds to stop, a fresh worker id.
    pub fn for_queues<Q: Into<String>>(queues: impl IntoIterator<Item = Q>) -> Self {
        Self {
            worker_id: fresh_worker_id(),
            queues: queues.into_iter().map(Into::into).collect(),
            slots: 1,
            lease: Duration::from_secs(30),
            wait: Duration::from_secs(20),
            kinds: None,
            labels: BTreeMap::new(),
            stop_grace: Duration::from_secs(5),
            drain_timeout: None,
        }
    }
}

/// Host name, process id and random bits: for people to recognise, and unique per process start.
#[must_use]
pub fn fresh_worker_id() -> String {
    let name = nix::sys::utsname::uname()
        .map(|u| u.nodename().to_string_lossy().into_owned())
        .unwrap_or_default();
    let mut host: String = name
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'))
        .take(60)
        .collect();
    if host.is_empty() {
        host.push_str("worker");
    }
    let random = random_id();
    format!(
        "{host}-{}-{}",
        std::process::id(),
        random.get(..8).unwrap_or(&random)
    )
}

/// Does the work of one lease.
pub trait Handler: Send + Sync + 'static {
    /// Runs until done. The future is dropped when the lease ends first; [`Work::stopped`] tells a little earlier.
    fn run(&self, work: Work) -> impl Future<Output = Outcome> + Send;
}

impl<F, Fut> Handler for F
where
    F: Fn(Work) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Outcome> + Send,
{
    fn run(&self, work: Work) -> impl Future<Output = Outcome> + Send {
        self(work)
    }
}

/// One lease as its handler sees it; cheap to clone.
#[derive(Clone)]
pub struct Work {
    held: Arc<Held>,
}

impl Work {
    /// What the server told about it. Pass `fencing_token` to every system that the work touches.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        self.held.lease()
    }

    /// The payload as the wanted type.
    ///
    /// # Errors
    /// What does not fit.
    pub fn payload<'a, T: serde::Deserialize<'a>>(&'a self) -> Result<T, serde_json::Error> {
        self.lease().payload.parse()
    }

    /// Sends progress along with the next renewal; a worker that takes over finds it in its lease. At most 16 KiB.
    pub fn set_progress(&self, progress: Json) {
        self.held.set_progress(progress);
    }

    /// Resolves when the handler should stop, and says why. After [`Stop::CancelRequested`] it may still finish;
    /// after any other reason it is dropped within [`Settings::stop_grace`].
    pub async fn stopped(&self) -> Stop {
        self.held.stopped().await
    }

    /// Time until the handler is dropped unless the lease is renewed.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        self.held.time_left()
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Work").field(self.lease()).finish()
    }
}

/// How a handler ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Done; the result is kept with the execution.
    Success {
        /// At most [`RESULT_MAX`] bytes of JSON.
        result: Json,
    },
    /// Failed; an attempt is spent.
    Failure {
        /// Why. Its `type` is compared with `retry.non_retryable`.
        error: WorkerError,
        /// `false`: dead-letter at once.
        retryable: bool,
        /// The worker's own delay before the next attempt.
        retry_in: Option<Duration>,
    },
    /// Given back unspent; at most 100 times.
    Release {
        /// Before it may be leased again.
        delay: Duration,
        /// Why.
        reason: String,
    },
}

impl Outcome {
    /// Done, nothing to tell.
    #[must_use]
    pub fn success() -> Self {
        Self::Success {
            result: Json::null(),
        }
    }

    /// Done, with a result. A value that cannot be JSON is a failure for good.
    #[must_use]
    pub fn success_with<T: serde::Serialize + ?Sized>(result: &T) -> Self {
        match Json::from_value(result) {
            Ok(result) => Self::Success { result },
            Err(error) => Self::fail_for_good("Result", error.to_string()),
        }
    }

    /// Failed; to be tried again as the retry policy says.
    pub fn fail(kind: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Failure {
            error: WorkerError {
                kind: Some(kind.into()),
                message: Some(message.into()),
                details: Json::null(),
            },
            retryable: true,
            retry_in: None,
        }
    }

    /// Failed; trying again is useless.
    pub fn fail_for_good(kind: impl Into<String>, message: impl Into<String>) -> Self {
        match Self::fail(kind, message) {
            Self::Failure {
                error, retry_in, ..
            } => Self::Failure {
                error,
                retryable: false,
                retry_in,
            },
            other => other,
        }
    }
}

/// What a worker did from start to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Leases taken.
    pub claimed: u64,
    /// Completions accepted.
    pub succeeded: u64,
    /// Failures accepted.
    pub failed: u64,
    /// Leases given back.
    pub released: u64,
    /// Leases that were over before they could be reported.
    pub lost: u64,
}

/// The loop; see the module's example.
pub struct Worker<H> {
    settings: Settings,
    calls: Arc<dyn LeaseCalls>,
    handler: Arc<H>,
}

impl<H: Handler> Worker<H> {
    /// A worker that has not begun.
    pub fn new(settings: Settings, calls: impl LeaseCalls, handler: H) -> Self {
        Self {
            settings,
            calls: Arc::new(calls),
            handler: Arc::new(handler),
        }
    }

    /// Works until it is told to drain (by `shutdown`, or by an operator) and all that it holds is reported; then
    /// signs off. Needs a tokio runtime. Dropping the future drops the handlers; their leases then expire.
    ///
    /// # Errors
    /// [`Error::Settings`] for settings out of range; [`Error::Problem`] when the server refuses the claims for good.
    pub async fn run(self, shutdown: Drain) -> Result<Summary, Error> {
        check(&self.settings)?;
        run::run(self.settings, self.calls, self.handler, shutdown).await
    }
}

fn check(settings: &Settings) -> Result<(), Error> {
    let wrong = |text: &str| Err(Error::Settings(text.to_owned()));
    if settings.queues.is_empty() {
        return wrong("a worker needs at least one queue");
    }
    if !(1..=1_000).contains(&settings.slots) {
        return wrong("slots must be 1 to 1,000");
    }
    let lease = Duration::from_secs(1)..=Duration::from_secs(86_400);
    if !lease.contains(&settings.lease) {
        return wrong("a lease lasts 1s to 24h");
    }
    if settings.wait > Duration::from_secs(60) {
        return wrong("a claim waits at most 60s");
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Work,
    Drain,
    Stop,
}

/// Ends a worker; clones end the same one.
#[derive(Clone, Debug)]
pub struct Shutdown(Arc<watch::Sender<Level>>);

/// The worker's end of a [`Shutdown`].
#[derive(Clone, Debug)]
pub struct Drain(watch::Receiver<Level>);

/// A switch and the worker's end of it.
#[must_use]
pub fn shutdown() -> (Shutdown, Drain) {
    let (tx, rx) = watch::channel(Level::Work);
    (Shutdown(Arc::new(tx)), Drain(rx))
}

impl Shutdown {
    /// Claim no more, finish what is held, sign off.
    pub fn drain(&self) {
        self.raise(Level::Drain);
    }

    /// Stop the handlers too and give their leases back.
    pub fn stop(&self) {
        self.raise(Level::Stop);
    }

    fn raise(&self, to: Level) {
        self.0.send_if_modified(|level| {
            let rises = to > *level;
            *level = to.max(*level);
            rises
        });
    }
}

#[cfg(test)]
mod tests;
