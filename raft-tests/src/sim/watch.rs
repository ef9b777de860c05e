//! A watch channel that wakes in an order drawn from the seed.
//!
//! Purpose: tokio's own spreads its waiters by an unseeded random number, which makes runs differ.
//! Callers: [`super::runtime`].
//! Invariants: no waiter misses a change that came after its last look.

use std::sync::Arc;
use std::task::{Poll, Waker};

use openraft_rt::watch::{RecvError, SendError, Watch, WatchReceiver, WatchSender};
use openraft_rt::{OptionalSend, OptionalSync};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};

use super::runtime::shuffle;

struct Shared<T> {
    value: RwLock<T>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    version: u64,
    senders: usize,
    receivers: usize,
    waiters: Vec<Waker>,
}

impl<T> Shared<T> {
    fn changed(&self) {
        self.state.lock().version += 1;
        self.wake();
    }

    fn wake(&self) {
        let mut waiters = std::mem::take(&mut self.state.lock().waiters);
        shuffle(&mut waiters);
        for waiter in waiters {
            waiter.wake();
        }
    }
}

/// The family of channels.
pub struct SimWatch;

/// Sending side.
pub struct SimSender<T>(Arc<Shared<T>>);

/// Receiving side.
pub struct SimReceiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

/// A look at the value.
pub struct SimRef<'a, T>(RwLockReadGuard<'a, T>);

impl<T> std::ops::Deref for SimRef<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl Watch for SimWatch {
    type Sender<T: OptionalSend + OptionalSync> = SimSender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = SimReceiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = SimRef<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (SimSender<T>, SimReceiver<T>) {
        let shared = Arc::new(Shared {
            value: RwLock::new(init),
            state: Mutex::new(State {
                senders: 1,
                receivers: 1,
                ..State::default()
            }),
        });
        let receiver = SimReceiver {
            shared: Arc::clone(&shared),
            seen: 0,
        };
        (SimSender(shared), receiver)
    }
}

impl<T> Clone for SimSender<T> {
    fn clone(&self) -> Self {
        self.0.state.lock().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for SimSender<T> {
    fn drop(&mut self) {
        let last = {
            let mut state = self.0.state.lock();
            state.senders -= 1;
            state.senders == 0
        };
        if last {
            self.0.wake();
        }
    }
}

impl<T> Clone for SimReceiver<T> {
    fn clone(&self) -> Self {
        self.shared.state.lock().receivers += 1;
        Self {
            shared: Arc::clone(&self.shared),
            seen: self.seen,
        }
    }
}

impl<T> Drop for SimReceiver<T> {
    fn drop(&mut self) {
        self.shared.state.lock().receivers -= 1;
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<SimWatch, T> for SimSender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.state.lock().receivers == 0 {
            return Err(SendError(value));
        }
        *self.0.value.write() = value;
        self.0.changed();
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        let modified = modify(&mut self.0.value.write());
        if modified {
            self.0.changed();
        }
        modified
    }

    fn borrow_watched(&self) -> SimRef<'_, T> {
        SimRef(self.0.value.read_recursive())
    }

    fn subscribe(&self) -> SimReceiver<T> {
        let seen = {
            let mut state = self.0.state.lock();
            state.receivers += 1;
            state.version
        };
        SimReceiver {
            shared: Arc::clone(&self.0),
            seen,
        }
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<SimWatch, T> for SimReceiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        std::future::poll_fn(|cx| {
            let mut state = self.shared.state.lock();
            if state.version > self.seen {
                self.seen = state.version;
                return Poll::Ready(Ok(()));
            }
            if state.senders == 0 {
                return Poll::Ready(Err(RecvError(())));
            }
            if !state.waiters.iter().any(|w| w.will_wake(cx.waker())) {
                state.waiters.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    fn borrow_watched(&self) -> SimRef<'_, T> {
        SimRef(self.shared.value.read_recursive())
    }

    fn borrow_and_update(&mut self) -> SimRef<'_, T> {
        self.seen = self.shared.state.lock().version;
        SimRef(self.shared.value.read_recursive())
    }
}
