//! The HTTP API.
//!
//! Purpose: thin handlers over [`actions`] (writes) and reads of the replica; problem answers; the OpenAPI document and
//! the docs page. Callers: `node` starts [`server`]; the console uses the same actions.
//! Reading order: [`routes`] (the table that router and document share), [`call`] (one request), [`dispatch`] (which
//! node answers), then the handlers by area.

pub mod actions;
pub mod body;
pub mod call;
pub mod convert;
pub mod cursor;
pub mod dispatch;
pub mod forward;
pub mod handlers;
pub mod idempotency;
pub mod issues;
pub mod locks;
pub mod metrics;
pub mod openapi;
pub mod problem;
pub mod reads;
pub mod reply;
pub mod routes;
pub mod server;
pub mod strict;
pub mod unsupported;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::api::idempotency::UnderWay;
use crate::api::locks::Locks;
use crate::api::metrics::Metrics;
use crate::api::routes::Routes;
use crate::calendar::ZoneData;
use crate::leader::Scheduler;
use crate::raft::{Consensus, Forward};
use crate::rt::Runtime;
use crate::state::replica::Replica;
use crate::time::{Millis, Timestamp};

/// The clock of `serve --dev --clock manual`, moved by hand.
pub trait DevClock: Send + Sync + 'static {
    /// Moves the clock forward and answers the new time.
    fn advance(&self, by: Millis) -> Timestamp;
}

/// What the API is told at its start.
#[derive(Clone, Debug)]
pub struct ApiConfig {
    /// This node.
    pub node: u64,
    /// Version of the program, for answers.
    pub version: &'static str,
    /// Only names of this machine are accepted in `Host`: set when the node listens on loopback without
    /// authentication, so that a web page cannot reach it under a name of its own.
    pub loopback_only: bool,
    /// Most requests in hand that do not wait; more are answered 429.
    pub in_flight_max: usize,
    /// Most requests that wait for work or results; more are answered 429.
    pub waiting_max: usize,
}

/// What the API stands on.
pub struct Parts {
    /// Writes, and what only the leader knows.
    pub scheduler: Arc<dyn Scheduler>,
    /// Who leads; read barriers; members.
    pub consensus: Arc<dyn Consensus>,
    /// The replicated state of this node.
    pub replica: Arc<Replica>,
    /// To the other nodes.
    pub forward: Arc<dyn Forward>,
    /// Tasks, clock, randomness.
    pub runtime: Arc<dyn Runtime>,
    /// Zone data in use.
    pub zones: ZoneData,
    /// The manual clock, in development.
    pub dev_clock: Option<Arc<dyn DevClock>>,
    /// Settings.
    pub config: ApiConfig,
}

/// The API of one node.
pub struct Api {
    parts: Parts,
    routes: Routes,
    document: Bytes,
    metrics: Metrics,
    under_way: UnderWay,
    locks: Locks,
    stopping: AtomicBool,
    stop_told: Notify,
}

impl std::ops::Deref for Api {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

impl Api {
    /// Over its parts.
    #[must_use]
    pub fn new(parts: Parts) -> Arc<Self> {
        let routes = Routes::new(handlers::all(), unsupported::CALLS);
        let document = openapi::document(&routes, parts.config.version);
        Arc::new(Self {
            parts,
            routes,
            document: Bytes::from(document),
            metrics: Metrics::default(),
            under_way: UnderWay::default(),
            locks: Locks::default(),
            stopping: AtomicBool::new(false),
            stop_told: Notify::new(),
        })
    }

    /// The calls that it knows.
    #[must_use]
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// From now on `/readyz` says that the node stops, and requests that wait for work or a result are told to go
    /// elsewhere. Others in hand are finished.
    pub fn begin_stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.stop_told.notify_waiters();
    }

    /// Resolves when the stop has begun.
    async fn stop_begun(&self) {
        let mut told = std::pin::pin!(self.stop_told.notified());
        // Listening before looking, so that a stop between the two is not missed.
        told.as_mut().enable();
        if !self.is_stopping() {
            told.await;
        }
    }

    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// A draw for backoff jitter.
    fn draw(&self) -> u32 {
        // The low half: the result is uniform over u32 whatever the upper bits are.
        u32::try_from(self.runtime.random_u64() & u64::from(u32::MAX)).unwrap_or(0)
    }
}
