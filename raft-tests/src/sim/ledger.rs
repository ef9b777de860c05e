//! Counts of what happened, and the line that a batch of seeds ends with.
//!
//! Purpose: show that a green batch was not an empty one.
//! Callers: every part of the simulation; `main` prints the line.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// Named counts. Clones share them.
#[derive(Clone, Default)]
pub struct Counters {
    counts: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl Counters {
    /// Adds to a count.
    pub fn add(&self, name: &str, by: u64) {
        let mut counts = self.counts.lock();
        match counts.get_mut(name) {
            Some(count) => *count += by,
            None => {
                counts.insert(name.to_owned(), by);
            }
        }
    }

    /// A count, zero if nothing was added.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        self.counts.lock().get(name).copied().unwrap_or(0)
    }

    /// Adds all of `other`.
    pub fn merge(&self, other: &Self) {
        for (name, count) in other.all() {
            self.add(&name, count);
        }
    }

    /// All counts.
    #[must_use]
    pub fn all(&self) -> BTreeMap<String, u64> {
        self.counts.lock().clone()
    }
}
