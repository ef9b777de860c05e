//! The store on RocksDB.
//!
//! Purpose: the durable [`StateStore`] of a real node.
//! Callers: `node` opens it; `state` and `raft` use it through the traits.
//! Invariants:
//! 1. No write-ahead log, atomic flush: after a crash every family stands at the same write.
//! 2. The content is the instance that `CURRENT` names; an install switches that one name.
//! 3. An instance with families or a marker that this build does not know is not opened.
//!
//! Order of reading: `options` (memory and tuning), `directory` (layout on disk), `instance`
//! (opening, reading), `transfer` and `listing` (checkpoints, stagings), `statistics`. Tests:
//! `rocks/tests.rs` and the conformance suite.

mod directory;
mod instance;
mod listing;
mod options;
mod statistics;
mod transfer;

use std::path::Path;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

pub use self::options::RocksMemory;
pub use self::statistics::{FamilyStatistics, RocksStatistics};

use self::directory::{Directory, Layout};
use self::instance::{Instance, Snapshot, fault};
use self::transfer::{RocksCheckpoint, RocksStaging};
use super::{
    Checkpoint, Direction, Family, KeyRange, Staging, StateStore, View, Visit, WriteBatch,
};
use crate::fault::Fault;

/// A [`StateStore`] in `<data directory>/state`. One at a time for a directory; the caller's
/// process holds it.
pub struct RocksStore {
    layout: Layout,
    memory: RocksMemory,
    /// The instance in use. Readers clone it and let go of the lock at once.
    live: RwLock<Arc<Instance>>,
    numbers: Mutex<Numbers>,
}

/// Numbers of directories; none is used twice in a process.
struct Numbers {
    /// The last generation that was given out, to a staging or to the live instance.
    generation: u64,
    /// The last checkpoint that was given out.
    checkpoint: u64,
}

impl RocksStore {
    /// Opens the store below `data_dir`, creating an empty one if there has never been one, and
    /// removes what a killed process left behind. Blocks.
    ///
    /// # Errors
    /// [`Fault::UnknownFormat`] when a newer build wrote it; [`Fault::Corrupt`] when
    /// families, the marker or `CURRENT` are missing or damaged; [`Fault::Storage`] for the rest.
    /// Nothing is removed on an error.
    pub fn open(data_dir: &Path, memory: &RocksMemory) -> Result<Self, Fault> {
        let layout = Layout::open(data_dir)?;
        let number = match layout.current()? {
            Some(number) => number,
            None => first_generation(&layout, memory)?,
        };
        let directory = Directory::new(layout.generation(number), false);
        let instance = Instance::open(directory, memory)?;
        layout.remove_leftovers(number)?;
        Ok(Self {
            layout,
            memory: memory.clone(),
            live: RwLock::new(Arc::new(instance)),
            numbers: Mutex::new(Numbers {
                generation: number,
                checkpoint: 0,
            }),
        })
    }

    /// Figures for metrics.
    ///
    /// # Errors
    /// [`Fault::Storage`].
    pub fn statistics(&self) -> Result<RocksStatistics, Fault> {
        statistics::collect(&self.live(), &self.memory)
    }

    fn live(&self) -> Arc<Instance> {
        Arc::clone(&self.live.read())
    }
}

/// The generation of a directory without `CURRENT`: a new empty one, or the only one there, whose
/// creation was cut before `CURRENT` was written (a numbered directory is complete by then).
fn first_generation(layout: &Layout, memory: &RocksMemory) -> Result<u64, Fault> {
    let number = match layout.generations()?.as_slice() {
        [] => {
            Instance::create(&layout.creating()?, memory)?;
            layout.created(1)?;
            1
        }
        [only] => {
            // Opened and closed for its checks alone: CURRENT must never name anything less.
            let directory = Directory::new(layout.generation(*only), false);
            Instance::open(directory, memory)?;
            *only
        }
        several => {
            let what = format!("no CURRENT, and generations {several:?} to choose from");
            return Err(Fault::corrupt(what));
        }
    };
    layout.write_pointer_aside(number)?;
    layout.switch_pointer()?;
    Ok(number)
}

impl View for RocksStore {
    fn get(&self, family: Family, key: &[u8]) -> Result<Option<Vec<u8>>, Fault> {
        self.live().get(family, key)
    }

    fn multi_get(&self, family: Family, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Fault> {
        self.live().multi_get(family, keys)
    }

    fn scan(
        &self,
        family: Family,
        range: &KeyRange,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), Fault> {
        self.live().scan(family, range, direction, visit)
    }
}

impl StateStore for RocksStore {
    fn write(&self, batch: WriteBatch) -> Result<(), Fault> {
        self.live().write(&batch)
    }

    fn flush(&self) -> Result<(), Fault> {
        self.live().flush()
    }

    fn snapshot(&self) -> Arc<dyn View> {
        Arc::new(Snapshot::new(self.live()))
    }

    fn checkpoint(&self) -> Result<Arc<dyn Checkpoint>, Fault> {
        let number = {
            let mut numbers = self.numbers.lock();
            numbers.checkpoint = numbers.checkpoint.saturating_add(1);
            numbers.checkpoint
        };
        let directory = Directory::new(self.layout.checkpoint(number), true);
        let checkpoint = RocksCheckpoint::take(&self.live(), directory, &self.memory)?;
        Ok(Arc::new(checkpoint))
    }

    fn stage(&self) -> Result<Box<dyn Staging>, Fault> {
        let number = {
            let mut numbers = self.numbers.lock();
            numbers.generation = numbers.generation.saturating_add(1);
            numbers.generation
        };
        let directory = Directory::new(self.layout.generation(number), true);
        let staging = RocksStaging::new(number, directory, &self.memory)?;
        Ok(Box::new(staging))
    }

    fn install(&self, staged: Box<dyn Staging>) -> Result<(), Fault> {
        let staged = staged
            .into_any()
            .downcast::<RocksStaging>()
            .map_err(|_| Fault::invariant("a staging is installed in the store that made it"))?;
        let numbers = self.numbers.lock();
        let RocksStaging { number, sealed, .. } = *staged;
        let Some(next) = sealed else {
            return Err(Fault::invariant("only a sealed staging is installed"));
        };
        let own = next.directory().path() == self.layout.generation(number);
        if !own || number != numbers.generation {
            return Err(Fault::invariant(
                "only the store's last staging is installed",
            ));
        }
        // From the rename on, a start reads the new generation: it must not go with this call's
        // failure.
        next.directory().set_remove(false);
        self.layout.write_pointer_aside(number)?;
        self.layout.switch_pointer()?;
        let old = std::mem::replace(&mut *self.live.write(), next);
        // It goes when the last snapshot of it does.
        old.directory().set_remove(true);
        drop(numbers);
        Ok(())
    }

    /// Files in level 0 and files that reach beyond the range stay, and so does everything of a
    /// range without an end.
    fn discard_files(&self, family: Family, range: &KeyRange) -> Result<(), Fault> {
        let Some(last) = range.to.as_deref().and_then(last_below) else {
            return Ok(());
        };
        if last < range.from {
            return Ok(());
        }
        let live = self.live();
        live.db()
            .delete_file_in_range_cf(live.family(family)?, &range.from, &last)
            .map_err(|e| fault(format!("discard files of {}", family.name()), e))
    }
}

/// A key below `to` with next to nothing between: the engine deletes up to and including its end.
fn last_below(to: &[u8]) -> Option<Vec<u8>> {
    let mut key = to.to_vec();
    if let Some(below) = key.pop()?.checked_sub(1) {
        key.push(below);
        key.resize(key.len() + 64, u8::MAX);
    }
    Some(key)
}

#[cfg(test)]
mod tests;
