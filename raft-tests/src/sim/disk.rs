//! The disk under each node's log.
//!
//! Purpose: syncs that take time, stall, fail, and a crash that loses what was not synced.
//! Callers: [`super::world`].
//! Invariants: as `punctual::store::log::mem`; a sync ends in the life in which it began or not at all.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use punctual::fault::Fault;
use punctual::store::log::Synced;
use punctual::store::log::mem::{MemDisk, SyncDevice};
use rand::RngExt;
use rand::rngs::SmallRng;

use super::runtime::{Scope, spawn_in};

struct Inner {
    rng: SmallRng,
    /// Shortest and longest sync, in microseconds.
    sync_us: (u64, u64),
    usual_us: (u64, u64),
    fail_next: bool,
    syncs: u64,
}

/// One node's disk; survives its crashes.
#[derive(Clone)]
pub struct SimDisk {
    /// What the log wrote.
    pub log: MemDisk,
    inner: Arc<Mutex<Inner>>,
}

impl SimDisk {
    /// An empty disk whose syncs take between the two bounds, in microseconds.
    #[must_use]
    pub fn new(rng: SmallRng, sync_us: (u64, u64)) -> Self {
        Self {
            log: MemDisk::new(),
            inner: Arc::new(Mutex::new(Inner {
                rng,
                sync_us,
                usual_us: sync_us,
                fail_next: false,
                syncs: 0,
            })),
        }
    }

    /// From now on syncs take about `ms` milliseconds.
    pub fn slow(&self, ms: u64) {
        self.inner.lock().sync_us = (ms * 1_000, ms * 1_500 + 1);
    }

    /// Back to the usual speed.
    pub fn heal(&self) {
        let mut inner = self.inner.lock();
        inner.sync_us = inner.usual_us;
        inner.fail_next = false;
    }

    /// The next sync fails with an input/output error.
    pub fn fail_next(&self) {
        self.inner.lock().fail_next = true;
    }

    /// How many syncs were done.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.inner.lock().syncs
    }

    /// Power loss: a random part of what was not synced survives, cut anywhere.
    pub fn crash(&self) {
        let unsynced = self.log.unsynced();
        let (keep, torn) = {
            let mut inner = self.inner.lock();
            inner.fail_next = false;
            let rng = &mut inner.rng;
            (rng.random_range(0..=unsynced), rng.random_range(0..3usize))
        };
        self.log.crash(keep, torn);
    }

    /// The device for a node's life.
    #[must_use]
    pub fn device(&self, scope: Scope) -> Arc<dyn SyncDevice> {
        Arc::new(Device {
            disk: self.clone(),
            scope,
        })
    }
}

struct Device {
    disk: SimDisk,
    scope: Scope,
}

impl SyncDevice for Device {
    fn sync(&self, _bytes: u64, done: Synced) {
        let (wait, fails) = {
            let mut inner = self.disk.inner.lock();
            inner.syncs += 1;
            let (min, max) = inner.sync_us;
            let wait = inner.rng.random_range(min..=max);
            (wait, std::mem::take(&mut inner.fail_next))
        };
        drop(spawn_in(self.scope, async move {
            tokio::time::sleep(Duration::from_micros(wait)).await;
            done(if fails {
                let eio = std::io::Error::from_raw_os_error(5);
                Err(Fault::storage("fdatasync of the log", eio))
            } else {
                Ok(())
            });
        }));
    }
}
