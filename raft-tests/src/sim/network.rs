//! The network between the nodes.
//!
//! Purpose: carry peer messages with delay, loss, cuts in one or both directions and slow links.
//! Callers: nodes through [`PeerTransport`]; [`super::world`] for faults.
//! Invariants:
//! 1. Messages of one lane from one node to another arrive in the order they were sent.
//! 2. What is lost is lost silently: only the caller's deadline ends the call.
//! 3. A handler runs in its node's present life; its answer reaches only the life that asked.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use punctual::raft::{Lane, NodeAddress, PeerError, PeerHandler, PeerTransport};
use rand::RngExt;
use rand::rngs::SmallRng;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::runtime::{Scope, spawn_in};
use super::trace::Trace;

/// How one direction of a link behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkQuality {
    /// Nothing passes.
    pub cut: bool,
    /// Shortest and longest delay, in microseconds.
    pub delay_us: (u64, u64),
    /// Lost messages in a thousand.
    pub loss_permille: u32,
}

struct Inner {
    rng: SmallRng,
    usual: LinkQuality,
    links: BTreeMap<(u64, u64), LinkQuality>,
    handlers: BTreeMap<u64, (Scope, Arc<dyn PeerHandler>)>,
    last_arrival: BTreeMap<(u64, u64, Lane), Instant>,
    sent: u64,
    lost: u64,
}

/// All links.
#[derive(Clone)]
pub struct SimNetwork {
    inner: Arc<Mutex<Inner>>,
    trace: Trace,
}

impl SimNetwork {
    /// A network whose links all have quality `usual`.
    #[must_use]
    pub fn new(rng: SmallRng, usual: LinkQuality, trace: Trace) -> Self {
        Self {
            inner: Arc::new(Mutex::new(Inner {
                rng,
                usual,
                links: BTreeMap::new(),
                handlers: BTreeMap::new(),
                last_arrival: BTreeMap::new(),
                sent: 0,
                lost: 0,
            })),
            trace,
        }
    }

    /// Cuts or restores the direction `from` → `to`.
    pub fn set_cut(&self, from: u64, to: u64, cut: bool) {
        let mut inner = self.inner.lock();
        let usual = inner.usual;
        inner.links.entry((from, to)).or_insert(usual).cut = cut;
    }

    /// Gives the direction `from` → `to` another quality.
    pub fn set_quality(&self, from: u64, to: u64, quality: LinkQuality) {
        self.inner.lock().links.insert((from, to), quality);
    }

    /// Every link back to its usual quality.
    pub fn heal(&self) {
        self.inner.lock().links.clear();
    }

    /// Links back to usual, and no losses any more.
    pub fn heal_for_good(&self) {
        let mut inner = self.inner.lock();
        inner.links.clear();
        inner.usual.loss_permille = 0;
    }

    /// Node `node` listens.
    pub fn listen(&self, scope: Scope, handler: Arc<dyn PeerHandler>) {
        self.inner
            .lock()
            .handlers
            .insert(scope.node, (scope, handler));
    }

    /// Node `node` is gone.
    pub fn close(&self, node: u64) {
        let old = self.inner.lock().handlers.remove(&node);
        drop(old);
    }

    /// Messages sent and lost so far.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.sent, inner.lost)
    }

    /// The sending side of a node's life.
    #[must_use]
    pub fn transport(&self, scope: Scope) -> Arc<dyn PeerTransport> {
        Arc::new(Endpoint {
            network: self.clone(),
            scope,
        })
    }

    /// When a message sent now arrives; `None` if it never does.
    fn arrival(&self, from: u64, to: u64, lane: Lane) -> Option<Instant> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        inner.sent += 1;
        let link = *inner.links.get(&(from, to)).unwrap_or(&inner.usual);
        let lost = inner.rng.random_range(0..1_000) < link.loss_permille;
        let (min, max) = link.delay_us;
        let delay = Duration::from_micros(inner.rng.random_range(min..=max));
        if link.cut || lost {
            inner.lost += 1;
            return None;
        }
        let now = Instant::now();
        let before = inner.last_arrival.get(&(from, to, lane)).copied();
        let at = (now + delay).max(before.unwrap_or(now));
        inner.last_arrival.insert((from, to, lane), at);
        Some(at)
    }

    fn is_cut(&self, from: u64, to: u64) -> bool {
        let inner = self.inner.lock();
        inner.links.get(&(from, to)).is_some_and(|l| l.cut)
    }

    fn handler(&self, node: u64) -> Option<(Scope, Arc<dyn PeerHandler>)> {
        self.inner.lock().handlers.get(&node).cloned()
    }
}

struct Endpoint {
    network: SimNetwork,
    scope: Scope,
}

/// What became of a request at the other end.
enum Outcome {
    Refused,
    Answer(Bytes),
}

/// Carries one request there and its answer back; silence if either is lost.
async fn carry(
    network: SimNetwork,
    from: u64,
    to: u64,
    lane: Lane,
    request: Bytes,
    mut reply: oneshot::Sender<Outcome>,
) {
    let Some(at) = network.arrival(from, to, lane) else {
        return reply.closed().await;
    };
    tokio::time::sleep_until(at).await;
    if network.is_cut(from, to) {
        return reply.closed().await;
    }
    let Some((scope, handler)) = network.handler(to) else {
        // A dead process on a living machine refuses the connection.
        if network.arrival(to, from, lane).is_some() {
            let _caller_gone = reply.send(Outcome::Refused);
        }
        return;
    };
    let size = request.len() as u64;
    network
        .trace
        .event("deliver", to, &[from, lane as u64, size]);
    let (done_tx, done) = oneshot::channel();
    let work = spawn_in(scope, async move {
        let answer = handler.handle(from, lane, request).await;
        let _carrier_gone = done_tx.send(answer);
    });
    let answer = tokio::select! {
        biased;
        answer = done => answer,
        () = reply.closed() => {
            // The caller hung up: the other side notices after one more trip.
            if lane == Lane::Forward && network.arrival(from, to, lane).is_some() {
                work.abort();
            }
            return;
        }
    };
    // The node died while it worked: nobody answers.
    let Ok(answer) = answer else {
        return reply.closed().await;
    };
    let Some(at) = network.arrival(to, from, lane) else {
        return reply.closed().await;
    };
    tokio::time::sleep_until(at).await;
    if network.is_cut(to, from) {
        return reply.closed().await;
    }
    let _caller_gone = reply.send(Outcome::Answer(answer));
}

impl PeerTransport for Endpoint {
    fn call(
        &self,
        to: u64,
        _address: &NodeAddress,
        lane: Lane,
        request: Bytes,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Bytes, PeerError>> {
        let (network, from) = (self.network.clone(), self.scope.node);
        Box::pin(async move {
            let (tx, rx) = oneshot::channel();
            // The message is on the wire once sent: it travels in the harness's scope, whatever becomes of its sender.
            drop(spawn_in(
                Scope::HARNESS,
                carry(network, from, to, lane, request, tx),
            ));
            match tokio::time::timeout(deadline, rx).await {
                Ok(Ok(Outcome::Answer(answer))) => Ok(answer),
                Ok(Ok(Outcome::Refused)) => Err(PeerError::Unreachable("refused".into())),
                Ok(Err(_)) => Err(PeerError::Lost("connection broke".into())),
                Err(_) => Err(PeerError::Lost("no answer in time".into())),
            }
        })
    }
}
