//! The runtime facade: tasks, blocking work, clock and randomness, all injected.
//!
//! Purpose: leader, node and Raft code runs unchanged on the production runtime ([`TokioRuntime`]) and inside the
//! seeded simulation of `raft-tests`, which implements [`Runtime`] itself.
//! Callers: `raft`, `leader`, `node`, `api`.
//! Invariants:
//! 1. Nothing outside implementations of [`Runtime`] spawns a task, reads a clock or draws a random number.
//! 2. `tokio::time::{sleep, timeout}`, tokio's mpsc, oneshot, `Notify` and `Semaphore` are deterministic on a paused
//!    current-thread runtime and may be used directly. Not so `tokio::sync::watch` and `broadcast` (they wake in an
//!    order drawn from an unseeded generator: use [`crate::raft::Changes`] or `Notify`), `select!` without `biased;`,
//!    `std::thread`, and hash maps whose order is seen.

use std::future::Future;
use std::sync::Arc;

use futures::future::{AbortHandle, Abortable, BoxFuture};
use tokio::sync::oneshot;

use crate::time::{Clock, Millis, Timestamp};

/// What a component needs of the machine it runs on.
pub trait Runtime: Send + Sync + 'static {
    /// Starts `task`; `name` is for logs and traces. The handle does not abort when dropped.
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) -> TaskHandle;

    /// Runs `work`, which may block on the disk, away from the async threads (inline in the simulation).
    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>);

    /// The node's clock.
    fn clock(&self) -> Arc<dyn Clock>;

    /// A random number from this node's source (seeded in the simulation).
    fn random_u64(&self) -> u64;
}

/// A started task.
#[derive(Debug)]
pub struct TaskHandle {
    abort: AbortHandle,
    ended: oneshot::Receiver<()>,
}

impl TaskHandle {
    /// Wraps `task` so that it can be aborted and waited for, for implementations of [`Runtime::spawn`].
    pub fn wrap(
        task: BoxFuture<'static, ()>,
    ) -> (Self, impl Future<Output = ()> + Send + use<> + 'static) {
        let (abort, registration) = AbortHandle::new_pair();
        let (ended_tx, ended) = oneshot::channel();
        let body = async move {
            // An abort is an ordinary way to end; whoever waits is told the same.
            let _aborted = Abortable::new(task, registration).await;
            let _no_waiter = ended_tx.send(());
        };
        (Self { abort, ended }, body)
    }

    /// Ends the task at its next await; what it owns is dropped there.
    pub fn abort(&self) {
        self.abort.abort();
    }

    /// A detached switch for [`Self::abort`].
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        self.abort.clone()
    }

    /// Waits until the task has ended, however it ended.
    pub async fn ended(self) {
        let _dropped_is_ended = self.ended.await;
    }
}

/// Aborts its task when dropped.
#[derive(Debug)]
pub struct AbortOnDrop(AbortHandle);

impl From<TaskHandle> for AbortOnDrop {
    fn from(task: TaskHandle) -> Self {
        Self(task.abort_handle())
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs `work` through [`Runtime::spawn_blocking`] and waits for its result.
///
/// `None` only when the runtime is shutting down or `work` panicked. Dropping the future does not stop `work`.
pub async fn blocking<T, F>(runtime: &dyn Runtime, work: F) -> Option<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let (tx, rx) = oneshot::channel();
    runtime.spawn_blocking(Box::new(move || {
        let _caller_gone = tx.send(work());
    }));
    rx.await.ok()
}

/// The production runtime: the tokio runtime it was made in, the system's clocks and its random source.
#[derive(Clone)]
pub struct TokioRuntime {
    handle: tokio::runtime::Handle,
    clock: Arc<dyn Clock>,
}

impl TokioRuntime {
    /// Tasks go to `handle`, time comes from `clock` ([`SystemClock`] unless `--clock manual`).
    #[must_use]
    pub fn new(handle: tokio::runtime::Handle, clock: Arc<dyn Clock>) -> Self {
        Self { handle, clock }
    }
}

impl Runtime for TokioRuntime {
    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) -> TaskHandle {
        let (handle, body) = TaskHandle::wrap(task);
        self.handle.spawn(body);
        handle
    }

    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        self.handle.spawn_blocking(work);
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "this is the injected source itself"
    )]
    fn random_u64(&self) -> u64 {
        rand::random()
    }
}

/// The system's wall clock and its boot-time clock (which counts suspended time).
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[allow(
    clippy::disallowed_methods,
    reason = "this is the injected clock itself"
)]
impl Clock for SystemClock {
    fn wall(&self) -> Timestamp {
        let ms = match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_millis()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_millis())
                .map_or(i64::MIN, |ms| ms.saturating_neg()),
        };
        Timestamp::from_millis(ms)
    }

    fn monotonic(&self) -> Millis {
        match nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME) {
            Ok(t) => {
                let secs = u64::try_from(t.tv_sec()).unwrap_or(0);
                let millis = u64::try_from(t.tv_nsec()).unwrap_or(0) / 1_000_000;
                Millis(secs.saturating_mul(1_000).saturating_add(millis))
            }
            // Linux has had this clock since 2.6.39; elsewhere the process start is a sound origin too.
            Err(_) => {
                static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
                let start = START.get_or_init(std::time::Instant::now);
                Millis(u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn here() -> TokioRuntime {
        TokioRuntime::new(tokio::runtime::Handle::current(), Arc::new(SystemClock))
    }

    #[tokio::test]
    async fn aborted_task_drops_what_it_owns_and_counts_as_ended() {
        struct Flag(Arc<AtomicBool>);
        impl Drop for Flag {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let dropped = Arc::new(AtomicBool::new(false));
        let flag = Flag(Arc::clone(&dropped));
        let task = here().spawn(
            "waits",
            Box::pin(async move {
                let _owned = flag;
                std::future::pending::<()>().await;
            }),
        );
        tokio::task::yield_now().await;
        task.abort();
        task.ended().await;
        assert!(dropped.load(Ordering::SeqCst));
    }

    #[tokio::test]
    async fn blocking_work_returns_its_value() {
        let rt = here();
        assert_eq!(blocking(&rt, || 6 * 7).await, Some(42));
    }

    #[test]
    fn system_clock_goes_forward() {
        let clock = SystemClock;
        let first = clock.monotonic();
        assert!(clock.monotonic() >= first);
        assert!(clock.wall() > Timestamp::EPOCH);
    }
}
