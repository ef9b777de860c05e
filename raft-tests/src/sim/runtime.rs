//! The seeded runtime.
//!
//! Purpose: openraft's [`AsyncRuntime`] and our [`Runtime`] facade on one paused tokio thread, with every task belonging
//! to a node so that a crash can end them all.
//! Callers: the Raft library, the node's own code, [`super::world`].
//! Invariants:
//! 1. A task runs in the scope of its node and life; what it spawns inherits both.
//! 2. Nothing of a dead life is ever polled again, and nothing can be spawned into it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::future::BoxFuture;
use openraft_rt::{AsyncRuntime, OptionalSend};
use openraft_rt_tokio::{TokioInstant, TokioMpsc, TokioMutex, TokioOneshot};
use punctual::raft::NodeRuntime;
use punctual::rt::{Runtime, TaskHandle};
use punctual::time::Clock;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

use super::seed::Seed;
use super::trace::Trace;
use super::watch::SimWatch;

/// A node in one of its lives. `(0, 0)` is the harness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// Node id.
    pub node: u64,
    /// Counts starts.
    pub life: u64,
}

impl Scope {
    /// The harness itself.
    pub const HARNESS: Self = Self { node: 0, life: 0 };
}

struct Local {
    seed: Seed,
    trace: Trace,
    scope: Scope,
    streams: BTreeMap<Scope, SmallRng>,
    /// Abort switches of every task of a living scope.
    living: BTreeMap<Scope, Vec<tokio::task::AbortHandle>>,
    /// Scopes that stand still, with the tasks that wanted to run.
    paused: BTreeMap<Scope, Vec<Waker>>,
    tasks: u64,
    wakes: SmallRng,
}

thread_local! {
    static LOCAL: RefCell<Option<Local>> = const { RefCell::new(None) };
}

fn with<T>(f: impl FnOnce(&mut Local) -> T) -> T {
    LOCAL.with(|local| {
        let mut local = local.borrow_mut();
        let Some(local) = local.as_mut() else {
            panic!("used outside a simulated run");
        };
        f(local)
    })
}

/// Prepares this thread for a run. Ends with [`leave`].
pub fn enter(seed: Seed, trace: Trace) {
    let local = Local {
        seed,
        trace,
        scope: Scope::HARNESS,
        streams: BTreeMap::new(),
        living: BTreeMap::from([(Scope::HARNESS, Vec::new())]),
        paused: BTreeMap::new(),
        tasks: 0,
        wakes: seed.stream("wakes", 0),
    };
    LOCAL.with(|slot| *slot.borrow_mut() = Some(local));
}

/// Forgets the run.
pub fn leave() {
    let old = LOCAL.with(|slot| slot.borrow_mut().take());
    drop(old);
}

/// Opens a life, so that tasks can be spawned into it.
pub fn begin_life(scope: Scope) {
    with(|l| l.living.insert(scope, Vec::new()));
}

/// Ends a life: every task of it is dropped before it is polled again.
pub fn end_life(scope: Scope) {
    let tasks = with(|l| {
        l.paused.remove(&scope);
        l.living.remove(&scope)
    })
    .unwrap_or_default();
    for task in tasks {
        task.abort();
    }
}

/// Makes a scope stand still, as a stopped process does, until [`resume`].
pub fn pause(scope: Scope) {
    with(|l| {
        if l.living.contains_key(&scope) {
            l.paused.entry(scope).or_default();
        }
    });
}

/// Lets a scope go on.
pub fn resume(scope: Scope) {
    let waiting = with(|l| l.paused.remove(&scope)).unwrap_or_default();
    for waker in waiting {
        waker.wake();
    }
}

/// Shuffles by the run's own stream (in place of an order that real threads would give).
pub fn shuffle<T>(items: &mut [T]) {
    if items.len() < 2 {
        return;
    }
    // Outside a run (tests of the channel alone) the order stays.
    LOCAL.with(|local| {
        if let Ok(mut local) = local.try_borrow_mut()
            && let Some(local) = local.as_mut()
        {
            for at in (1..items.len()).rev() {
                items.swap(at, local.wakes.random_range(0..=at));
            }
        }
    });
}

/// A future that runs in a scope.
struct Scoped<F> {
    scope: Scope,
    task: u64,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let (scope, task) = (self.scope, self.task);
        let outer = with(|l| {
            if let Some(waiting) = l.paused.get_mut(&scope) {
                if !waiting.iter().any(|w| w.will_wake(cx.waker())) {
                    waiting.push(cx.waker().clone());
                }
                return None;
            }
            l.trace.poll(task);
            Some(std::mem::replace(&mut l.scope, scope))
        });
        let Some(outer) = outer else {
            return Poll::Pending;
        };
        let result = self.future.as_mut().poll(cx);
        with(|l| l.scope = outer);
        result
    }
}

/// Runs `future` in `scope` on the caller's task.
pub fn scoped<F: Future>(scope: Scope, future: F) -> impl Future<Output = F::Output> {
    let task = with(|l| {
        l.tasks += 1;
        l.tasks
    });
    Scoped {
        scope,
        task,
        future: Box::pin(future),
    }
}

/// Spawns into `scope`. In a dead scope the task is dropped at once.
pub fn spawn_in<F>(scope: Scope, future: F) -> tokio::task::JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    let task = with(|l| {
        l.tasks += 1;
        l.tasks
    });
    let scoped = Scoped {
        scope,
        task,
        future: Box::pin(future),
    };
    #[allow(
        clippy::disallowed_methods,
        reason = "this is the runtime that others spawn through"
    )]
    let handle = tokio::task::spawn(scoped);
    let abort = handle.abort_handle();
    with(|l| match l.living.get_mut(&scope) {
        Some(tasks) => {
            if tasks.len() >= 512 {
                tasks.retain(|t| !t.is_finished());
            }
            tasks.push(abort);
        }
        None => abort.abort(),
    });
    handle
}

/// The runtime openraft runs on.
#[derive(Debug)]
pub struct SimRuntime {
    tokio: tokio::runtime::Runtime,
}

impl AsyncRuntime for SimRuntime {
    type JoinError = tokio::task::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = tokio::task::JoinHandle<T>;
    type Sleep = tokio::time::Sleep;
    type Instant = TokioInstant;
    type TimeoutError = tokio::time::error::Elapsed;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = tokio::time::Timeout<T>;
    type ThreadLocalRng = SmallRng;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        let scope = with(|l| l.scope);
        spawn_in(scope, future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        tokio::time::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        let now = <TokioInstant as openraft_rt::Instant>::now();
        let wait = openraft_rt::Instant::saturating_duration_since(&deadline, now);
        tokio::time::sleep(wait)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        tokio::time::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        let now = <TokioInstant as openraft_rt::Instant>::now();
        let wait = openraft_rt::Instant::saturating_duration_since(&deadline, now);
        tokio::time::timeout(wait, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        join_error.is_panic()
    }

    fn thread_rng() -> SmallRng {
        let seed = random_u64(with(|l| l.scope));
        SmallRng::seed_from_u64(seed)
    }

    type Mpsc = TokioMpsc;
    type Watch = SimWatch;
    type Oneshot = TokioOneshot;
    type Mutex<T: OptionalSend + 'static> = TokioMutex<T>;

    fn new(_threads: usize) -> Self {
        let tokio = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        match tokio {
            Ok(tokio) => Self { tokio },
            Err(error) => panic!("no runtime: {error}"),
        }
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.tokio.block_on(future)
    }

    async fn spawn_blocking<F, T>(f: F) -> Result<T, io::Error>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        Ok(f())
    }
}

impl NodeRuntime for SimRuntime {
    fn blocking<T>(work: impl FnOnce() -> T) -> T {
        work()
    }
}

/// The next number of `scope`'s own stream.
pub fn random_u64(scope: Scope) -> u64 {
    with(|l| {
        let seed = l.seed;
        let number = scope.node.wrapping_mul(1 << 32).wrapping_add(scope.life);
        l.streams
            .entry(scope)
            .or_insert_with(|| seed.stream("node", number))
            .next_u64()
    })
}

/// The facade that a node in one of its lives is given.
#[derive(Clone)]
pub struct NodeRt {
    /// Whose tasks these are.
    pub scope: Scope,
    /// The node's clock.
    pub clock: Arc<dyn Clock>,
}

impl Runtime for NodeRt {
    fn spawn(&self, _name: &'static str, task: BoxFuture<'static, ()>) -> TaskHandle {
        let (handle, body) = TaskHandle::wrap(task);
        drop(spawn_in(self.scope, body));
        handle
    }

    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        work();
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    fn random_u64(&self) -> u64 {
        random_u64(self.scope)
    }
}
