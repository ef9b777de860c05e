//! The store in memory, with a durable image of its own.
//!
//! Purpose: a store for tests and simulation that loses on a crash what a real one may lose:
//! [`MemStore::crash`] keeps the durable image and a chosen prefix of the writes since the last
//! flush. Faults can be injected.
//! Callers: tests, `raft-tests`.
//! Invariants:
//! 1. Visible content = durable image + every pending write, in order.
//! 2. Everything is deterministic: no clock, randomness, thread or hash order.
//! 3. A handle from before a crash refuses everything, as a dead process would.
//!
//! Images are persistent maps (`imbl`, B-trees shared node by node), so that a snapshot, a flush
//! and a crash copy a few counts however many rows there are; version lists under a lock would need
//! garbage collection and would hold the lock during scans.
//!
//! Tests: `mem/tests.rs` and the conformance suite.

mod image;
mod transfer;

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use self::image::{Image, Op};
use super::{
    Checkpoint, Direction, Family, KeyRange, Staging, StateStore, View, Visit, WriteBatch,
    is_plain_file_name,
};
use crate::fault::Fault;

/// A step that can be made to fail, see [`MemStore::fail`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemStep {
    /// [`StateStore::write`]: nothing is written.
    Write,
    /// [`StateStore::flush`]: nothing becomes durable.
    Flush,
    /// [`StateStore::checkpoint`].
    Checkpoint,
    /// [`StateStore::stage`].
    Stage,
    /// [`Staging::append`]: nothing is appended.
    Append,
    /// [`Staging::seal`].
    Seal,
    /// [`StateStore::install`] before the switch: the old content stays.
    Install,
    /// [`StateStore::install`] between the switch and its sync: a crash then keeps the old or the
    /// new content, as the number of kept writes says (the switch counts as one).
    InstallSync,
}

/// The error inside an injected [`Fault::Storage`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("injected at {0:?}")]
pub struct Injected(pub MemStep);

/// The error inside the [`Fault::Storage`] that a handle from before a crash gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the process that held this store has crashed")]
pub struct Crashed;

/// A change that is visible and not yet durable.
enum Pending {
    Batch(Vec<Op>),
    Replace(Box<Image>),
}

/// What survives the process: both images and the writes between them.
#[derive(Default)]
struct Disk {
    visible: Image,
    durable: Image,
    pending: Vec<Pending>,
    /// Counts crashes; only handles of the current life may work.
    life: u64,
    /// Counts stagings; only the last one may be filled and installed.
    staging: u64,
    /// Steps to fail, each with how many such steps still pass before.
    faults: Vec<(MemStep, usize)>,
}

impl Disk {
    /// Fails if an injected fault of `step` is due; otherwise counts the step.
    fn pass(&mut self, step: MemStep) -> Result<(), Fault> {
        let mut due = None;
        for (place, (kind, left)) in self.faults.iter_mut().enumerate() {
            if *kind == step {
                match left.checked_sub(1) {
                    Some(less) => *left = less,
                    None => due = Some(place),
                }
            }
        }
        match due {
            Some(place) => {
                self.faults.swap_remove(place);
                Err(Fault::storage(format!("{step:?}"), Injected(step)))
            }
            None => Ok(()),
        }
    }
}

/// An in-memory [`StateStore`]. One handle for each life of the simulated process.
pub struct MemStore {
    disk: Arc<Mutex<Disk>>,
    life: u64,
}

impl Default for MemStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemStore {
    /// An empty store on an empty disk.
    #[must_use]
    pub fn new() -> Self {
        Self {
            disk: Arc::default(),
            life: 0,
        }
    }

    /// Power loss: the disk keeps its durable image and the first `keep` writes after it (all of
    /// them if there are fewer). This handle, its stagings and injected faults are dead; the answer
    /// is the store as the next process opens it.
    #[must_use]
    pub fn crash(&self, keep: usize) -> Self {
        let mut disk = self.disk.lock();
        let disk = &mut *disk;
        for pending in disk.pending.drain(..).take(keep) {
            match pending {
                Pending::Batch(ops) => disk.durable.apply(&ops),
                Pending::Replace(image) => disk.durable = *image,
            }
        }
        disk.visible = disk.durable.clone();
        disk.faults.clear();
        disk.life = disk.life.saturating_add(1);
        Self {
            disk: Arc::clone(&self.disk),
            life: disk.life,
        }
    }

    /// How many writes a crash could lose.
    #[must_use]
    pub fn unflushed(&self) -> usize {
        self.disk.lock().pending.len()
    }

    /// Lets `passing` more steps of kind `step` succeed and fails the one after them, once.
    pub fn fail(&self, step: MemStep, passing: usize) {
        self.disk.lock().faults.push((step, passing));
    }

    /// The disk, if this handle's process still lives.
    fn alive(&self) -> Result<MutexGuard<'_, Disk>, Fault> {
        lock_alive(&self.disk, self.life)
    }

    /// The visible image; copying it costs a few counts, so no lock is held while it is read.
    fn visible(&self) -> Result<Image, Fault> {
        Ok(self.alive()?.visible.clone())
    }
}

fn lock_alive(disk: &Mutex<Disk>, life: u64) -> Result<MutexGuard<'_, Disk>, Fault> {
    let guard = disk.lock();
    if guard.life == life {
        Ok(guard)
    } else {
        Err(Fault::storage("use of a memory store", Crashed))
    }
}

impl View for MemStore {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.alive()?.visible.get(family, key)
    }

    fn multi_get(&self, family: Family, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        self.alive()?.visible.multi_get(family, keys)
    }

    fn scan(
        &self,
        family: Family,
        range: &KeyRange,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), Fault> {
        self.visible()?.scan(family, range, direction, visit)
    }
}

impl StateStore for MemStore {
    fn write(&self, batch: WriteBatch) -> Result<(), Fault> {
        let mut disk = self.alive()?;
        disk.pass(MemStep::Write)?;
        let ops = image::share(batch);
        disk.visible.apply(&ops);
        disk.pending.push(Pending::Batch(ops));
        Ok(())
    }

    fn flush(&self) -> Result<(), Fault> {
        let mut disk = self.alive()?;
        disk.pass(MemStep::Flush)?;
        disk.durable = disk.visible.clone();
        disk.pending.clear();
        Ok(())
    }

    fn snapshot(&self) -> Arc<dyn View> {
        match self.visible() {
            Ok(image) => Arc::new(image),
            Err(fault) => Arc::new(Dead(fault)),
        }
    }

    fn checkpoint(&self) -> Result<Arc<dyn Checkpoint>, Fault> {
        let mut disk = self.alive()?;
        disk.pass(MemStep::Checkpoint)?;
        let image = disk.visible.clone();
        drop(disk);
        Ok(Arc::new(transfer::MemCheckpoint::new(image)?))
    }

    fn stage(&self) -> Result<Box<dyn Staging>, Fault> {
        let mut disk = self.alive()?;
        disk.pass(MemStep::Stage)?;
        disk.staging = disk.staging.saturating_add(1);
        Ok(Box::new(MemStaging {
            disk: Arc::clone(&self.disk),
            life: self.life,
            number: disk.staging,
            files: BTreeMap::new(),
            sealed: None,
        }))
    }

    fn install(&self, staged: Box<dyn Staging>) -> Result<(), Fault> {
        let staged = staged
            .into_any()
            .downcast::<MemStaging>()
            .map_err(|_| Fault::invariant("a staging is installed in the store that made it"))?;
        let mut disk = self.alive()?;
        let own = Arc::ptr_eq(&self.disk, &staged.disk) && disk.staging == staged.number;
        let (true, Some(image)) = (own, staged.sealed) else {
            return Err(Fault::invariant("the last staging, sealed, is installed"));
        };
        disk.pass(MemStep::Install)?;
        disk.visible = image.clone();
        disk.pending.push(Pending::Replace(Box::new(image)));
        disk.pass(MemStep::InstallSync)?;
        disk.durable = disk.visible.clone();
        disk.pending.clear();
        disk.staging = disk.staging.saturating_add(1);
        Ok(())
    }

    /// As whole files would go: at once and for good, whatever a crash undoes later; only rows that
    /// were flushed and not written since; never the outermost rows of the range, as if their files
    /// reached beyond it.
    fn discard_files(&self, family: Family, range: &KeyRange) -> Result<(), Fault> {
        let mut disk = self.alive()?;
        let mut inner = Vec::new();
        let durable = disk.durable.rows(family).clone();
        image::scan(&durable, range, Direction::Forward, &mut |key, _| {
            inner.push(image::Bytes::from(key));
            ControlFlow::Continue(())
        });
        inner.pop();
        for key in inner.iter().skip(1) {
            let written = disk.durable.rows_mut(family).remove(&**key);
            let visible = disk.visible.rows_mut(family);
            let same = match (&written, visible.get(&**key)) {
                (Some(old), Some(now)) => Arc::ptr_eq(old, now),
                _ => false,
            };
            if same {
                visible.remove(&**key);
            }
        }
        Ok(())
    }
}

/// What a dead handle's snapshot is: every read says so.
struct Dead(Fault);

impl View for Dead {
    fn get(&self, _: Family, _: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        Err(self.0.clone())
    }

    fn multi_get(&self, _: Family, _: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        Err(self.0.clone())
    }

    fn scan(&self, _: Family, _: &KeyRange, _: Direction, _: &mut Visit<'_>) -> Result<(), Fault> {
        Err(self.0.clone())
    }
}

/// Received files in memory. They do not survive a crash.
struct MemStaging {
    disk: Arc<Mutex<Disk>>,
    life: u64,
    number: u64,
    files: BTreeMap<String, Vec<u8>>,
    sealed: Option<Image>,
}

impl MemStaging {
    /// Passes `step` if this is still the staging of a living process.
    fn step(&self, step: MemStep) -> Result<(), Fault> {
        let mut disk = lock_alive(&self.disk, self.life)?;
        if disk.staging != self.number {
            return Err(Fault::invariant("only the last staging is used"));
        }
        disk.pass(step)
    }
}

impl Staging for MemStaging {
    fn append(&mut self, name: &str, bytes: &[u8]) -> Result<(), Fault> {
        if !is_plain_file_name(name) {
            return Err(Fault::corrupt(format!("{name:?} is no plain file name")));
        }
        self.step(MemStep::Append)?;
        if self.sealed.is_some() {
            return Err(Fault::invariant("nothing is appended to a sealed staging"));
        }
        let file = self.files.entry(name.to_owned()).or_default();
        file.extend_from_slice(bytes);
        Ok(())
    }

    fn seal(&mut self) -> Result<Arc<dyn View>, Fault> {
        self.step(MemStep::Seal)?;
        let image = transfer::decode_all(&self.files)?;
        self.sealed = Some(image.clone());
        Ok(Arc::new(image))
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests;
