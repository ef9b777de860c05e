//! What happened, as a hash and, on request, as text.
//!
//! Purpose: compare two runs of one seed, and read one that failed.
//! Callers: every part of the simulation.
//! Invariants: only values that follow from the seed enter: virtual milliseconds, ids, indexes, hashes of content. Never
//! `Debug` output of library types, addresses or real time.

use std::sync::Arc;

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64_with_seed;

struct Inner {
    start: tokio::time::Instant,
    events: u64,
    polls: u64,
    lines: Option<Vec<String>>,
    ended_ms: Option<u64>,
}

/// The shared record of one run.
#[derive(Clone)]
pub struct Trace {
    inner: Arc<Mutex<Inner>>,
}

impl Trace {
    /// Starts at the current virtual instant; keeps lines if `verbose`.
    #[must_use]
    pub fn new(verbose: bool) -> Self {
        Self {
            inner: Arc::new(Mutex::new(Inner {
                start: tokio::time::Instant::now(),
                events: 0,
                polls: 0,
                lines: verbose.then(Vec::new),
                ended_ms: None,
            })),
        }
    }

    /// Virtual milliseconds since the start.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        let start = self.inner.lock().start;
        u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Notes the end of the run; the virtual clock is gone with its runtime.
    pub fn stop(&self) {
        let now = self.now_ms();
        self.inner.lock().ended_ms = Some(now);
    }

    /// Virtual milliseconds from start to [`Self::stop`].
    #[must_use]
    pub fn now_ms_at_end(&self) -> u64 {
        self.inner.lock().ended_ms.unwrap_or(0)
    }

    /// Adds an event: what, where (0: the harness), and numbers that describe it.
    pub fn event(&self, what: &str, node: u64, numbers: &[u64]) {
        let now = self.now_ms();
        let mut inner = self.inner.lock();
        let mut hash = xxh3_64_with_seed(what.as_bytes(), inner.events);
        for number in [now, node].iter().chain(numbers) {
            hash = xxh3_64_with_seed(&number.to_le_bytes(), hash);
        }
        inner.events = hash;
        if let Some(lines) = &mut inner.lines {
            lines.push(format!("{now:>7} n{node} {what} {numbers:?}"));
        }
    }

    /// Adds one poll of task number `task`.
    pub fn poll(&self, task: u64) {
        let mut inner = self.inner.lock();
        inner.polls = xxh3_64_with_seed(&task.to_le_bytes(), inner.polls);
    }

    /// Hash of the events and of the order of polls.
    #[must_use]
    pub fn hash(&self) -> u64 {
        let inner = self.inner.lock();
        xxh3_64_with_seed(&inner.polls.to_le_bytes(), inner.events)
    }

    /// The lines kept so far.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.inner.lock().lines.clone().unwrap_or_default()
    }
}
