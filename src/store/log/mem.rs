//! The log in memory, with what is durable kept apart from what is only written.
//!
//! Purpose: tests and simulation. A crash keeps everything synced and a chosen prefix of the rest, cut inside an append
//! too, as a torn write would.
//! Callers: tests, `raft-tests`, `serve` never.
//! Invariants: as [`super`]; in addition the durable image is always a prefix of the submitted writes.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

use super::image::Image;
use super::{LogRecord, LogStatus, LogStore, LogWrite, Synced};
use crate::fault::Fault;

/// Decides when, and whether, a sync succeeds. `done` must be called exactly once, at any time, on any thread.
pub trait SyncDevice: Send + Sync + 'static {
    /// Syncs `bytes` bytes.
    fn sync(&self, bytes: u64, done: Synced);
}

/// A device that syncs at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct InstantSync;

impl SyncDevice for InstantSync {
    fn sync(&self, _bytes: u64, done: Synced) {
        done(Ok(()));
    }
}

#[derive(Default)]
struct Inner {
    /// All submitted writes.
    current: Image,
    /// What survives a crash.
    durable: Image,
    /// Submitted, not yet durable.
    pending: VecDeque<LogWrite>,
    waiting: VecDeque<Synced>,
    syncing: bool,
    failed: Option<Fault>,
    /// Counts crashes: a sync that began before one has no say after it.
    life: u64,
}

/// The disk under a [`MemLog`]; outlives the node that writes to it.
#[derive(Clone)]
pub struct MemDisk {
    inner: Arc<Mutex<Inner>>,
}

impl Default for MemDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl MemDisk {
    /// An empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self {
            inner: Arc::new(Mutex::new(Inner::default())),
        }
    }

    /// How many writes are not durable yet.
    #[must_use]
    pub fn unsynced(&self) -> usize {
        self.inner.lock().pending.len()
    }

    /// Power loss: keeps the first `keep` unsynced writes and, if the next one is an append, its first `torn` entries.
    /// Handles opened before are dead from here on, their callbacks never run.
    pub fn crash(&self, keep: usize, torn: usize) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let pending = std::mem::take(&mut inner.pending);
        for (at, write) in pending.into_iter().enumerate() {
            if at < keep {
                inner.durable.apply(&write);
                continue;
            }
            if let LogWrite::Append(records) = write {
                for record in records.into_iter().take(torn) {
                    inner.durable.push(record);
                }
            }
            break;
        }
        inner.current = inner.durable.clone();
        inner.syncing = false;
        inner.failed = None;
        inner.life += 1;
        let callbacks = std::mem::take(&mut inner.waiting);
        drop(guard);
        drop(callbacks);
    }

    /// Everything is gone, as on a new disk.
    pub fn wipe(&self) {
        let callbacks = {
            let mut inner = self.inner.lock();
            let life = inner.life + 1;
            let callbacks = std::mem::take(&mut inner.waiting);
            *inner = Inner {
                life,
                ..Inner::default()
            };
            callbacks
        };
        drop(callbacks);
    }

    /// The durable entries, for checks after the fact.
    #[must_use]
    pub fn durable(&self) -> (LogStatus, Vec<LogRecord>) {
        let inner = self.inner.lock();
        (
            inner.durable.status(),
            inner.durable.read(0, u64::MAX, u64::MAX),
        )
    }
}

/// A [`LogStore`] on a [`MemDisk`].
pub struct MemLog {
    disk: MemDisk,
    device: Arc<dyn SyncDevice>,
    life: u64,
    acknowledge_early: bool,
}

impl MemLog {
    /// Opens what is durable on `disk`.
    #[must_use]
    pub fn open(disk: &MemDisk, device: Arc<dyn SyncDevice>) -> Self {
        let life = disk.inner.lock().life;
        Self {
            disk: disk.clone(),
            device,
            life,
            acknowledge_early: false,
        }
    }

    /// A planted bug for a harness to find: callbacks run when the write is submitted, before any sync.
    #[must_use]
    pub fn acknowledging_before_sync(mut self) -> Self {
        self.acknowledge_early = true;
        self
    }

    fn live<'a>(&self, inner: &'a mut Inner) -> Result<&'a mut Inner, Fault> {
        if inner.life != self.life {
            return Err(Fault::invariant("a log handle outlived its node"));
        }
        match &inner.failed {
            Some(fault) => Err(fault.clone()),
            None => Ok(inner),
        }
    }

    /// Starts a sync of everything pending, unless one is under way.
    fn start_sync(disk: &MemDisk, device: &Arc<dyn SyncDevice>, life: u64) {
        let (count, bytes) = {
            let mut inner = disk.inner.lock();
            if inner.life != life
                || inner.syncing
                || inner.pending.is_empty()
                || inner.failed.is_some()
            {
                return;
            }
            inner.syncing = true;
            let bytes = inner.pending.iter().map(write_weight).sum();
            (inner.pending.len(), bytes)
        };
        let (disk, next) = (disk.clone(), Arc::clone(device));
        device.sync(
            bytes,
            Box::new(move |outcome| Self::finish_sync(&disk, &next, life, count, &outcome)),
        );
    }

    fn finish_sync(
        disk: &MemDisk,
        device: &Arc<dyn SyncDevice>,
        life: u64,
        count: usize,
        outcome: &Result<(), Fault>,
    ) {
        let (callbacks, again) = {
            let mut guard = disk.inner.lock();
            let inner = &mut *guard;
            if inner.life != life {
                return;
            }
            inner.syncing = false;
            match outcome {
                Ok(()) => {
                    for write in inner.pending.drain(..count) {
                        inner.durable.apply(&write);
                    }
                    (
                        inner.waiting.drain(..count).collect::<Vec<_>>(),
                        !inner.pending.is_empty(),
                    )
                }
                Err(fault) => {
                    inner.failed = Some(fault.clone());
                    (inner.waiting.drain(..).collect(), false)
                }
            }
        };
        for callback in callbacks {
            callback(outcome.clone());
        }
        if again {
            Self::start_sync(disk, device, life);
        }
    }
}

fn write_weight(write: &LogWrite) -> u64 {
    match write {
        LogWrite::Append(records) => records.iter().map(LogRecord::weight).sum(),
        _ => 64,
    }
}

impl LogStore for MemLog {
    fn status(&self) -> Result<LogStatus, Fault> {
        let mut inner = self.disk.inner.lock();
        Ok(self.live(&mut inner)?.current.status())
    }

    fn submit(&self, write: LogWrite, synced: Synced) -> Result<(), Fault> {
        let early = {
            let mut guard = self.disk.inner.lock();
            let inner = self.live(&mut guard)?;
            inner.current.check(&write)?;
            inner.current.apply(&write);
            inner.pending.push_back(write);
            if self.acknowledge_early {
                inner.waiting.push_back(Box::new(|_| {}));
                Some(synced)
            } else {
                inner.waiting.push_back(synced);
                None
            }
        };
        if let Some(synced) = early {
            synced(Ok(()));
        }
        Self::start_sync(&self.disk, &self.device, self.life);
        Ok(())
    }

    fn read(&self, from: u64, to: u64, max_bytes: u64) -> Result<Vec<LogRecord>, Fault> {
        let mut inner = self.disk.inner.lock();
        Ok(self.live(&mut inner)?.current.read(from, to, max_bytes))
    }

    fn offset(&self, index: u64) -> Result<Option<u64>, Fault> {
        let mut inner = self.disk.inner.lock();
        Ok(self.live(&mut inner)?.current.get(index).map(|p| p.offset))
    }
}

#[cfg(test)]
mod tests;
