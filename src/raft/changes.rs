//! A revision counter that tasks can wait on.
//!
//! Purpose: a deterministic stand-in for a watch channel, whose wake order in tokio is drawn from an unseeded source.
//! Callers: `raft`; `leader` and `node` for their own revisions.
//! Invariants: a waiter that asks for more than it has seen is never left asleep; waiters wake in the order they came.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

#[derive(Debug, Default)]
struct Inner {
    revision: u64,
    waiters: Vec<Waker>,
}

/// A shared counter that only grows. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    inner: Arc<Mutex<Inner>>,
}

impl Changes {
    /// The present revision.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.inner.lock().revision
    }

    /// Raises the revision by one and wakes everybody.
    pub fn bump(&self) {
        let waiters = {
            let mut inner = self.inner.lock();
            inner.revision = inner.revision.saturating_add(1);
            std::mem::take(&mut inner.waiters)
        };
        for waiter in waiters {
            waiter.wake();
        }
    }

    /// Resolves to the revision once it is above `seen`.
    pub fn above(&self, seen: u64) -> impl Future<Output = u64> + Send + use<> + 'static {
        Above {
            inner: Arc::clone(&self.inner),
            seen,
        }
    }
}

struct Above {
    inner: Arc<Mutex<Inner>>,
    seen: u64,
}

impl Future for Above {
    type Output = u64;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<u64> {
        let mut inner = self.inner.lock();
        if inner.revision > self.seen {
            return Poll::Ready(inner.revision);
        }
        if !inner.waiters.iter().any(|w| w.will_wake(cx.waker())) {
            inner.waiters.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiter_that_came_late_returns_at_once() {
        let changes = Changes::default();
        changes.bump();
        assert_eq!(changes.above(0).await, 1);
    }

    #[tokio::test]
    async fn bump_wakes_every_waiter() {
        let changes = Changes::default();
        let mut waiters: Vec<_> = (0..3).map(|_| Box::pin(changes.above(0))).collect();
        for waiter in &mut waiters {
            assert!(futures::poll!(waiter).is_pending());
        }
        changes.bump();
        assert_eq!(futures::future::join_all(waiters).await, [1, 1, 1]);
    }
}
