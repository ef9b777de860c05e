//! One writer at a time for each named object, on the leader.
//!
//! Purpose: edits of one schedule, queue or tenant queue up here instead of superseding each other.
//! Callers: `api::actions`.
//! Invariant: correctness never rests on a lock (another node may lead at the same time for a moment): apply compares
//! and swaps. A lock that nobody holds or waits for takes no memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

type Slot = Arc<tokio::sync::Mutex<()>>;

/// See the module.
#[derive(Debug, Default)]
pub struct Locks {
    slots: Arc<Mutex<BTreeMap<String, Slot>>>,
}

/// Holds one object until dropped.
#[derive(Debug)]
pub struct Held {
    slots: Arc<Mutex<BTreeMap<String, Slot>>>,
    name: String,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Locks {
    /// Waits for the object's turn. First come, first served. Dropping the future leaves the queue.
    pub async fn hold(&self, name: String) -> Held {
        let slot = {
            let mut slots = self.slots.lock();
            Arc::clone(slots.entry(name.clone()).or_default())
        };
        // Made before the wait, so that a dropped waiter tidies up as well.
        let mut held = Held {
            slots: Arc::clone(&self.slots),
            name,
            guard: None,
        };
        held.guard = Some(slot.lock_owned().await);
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.guard.take());
        let mut slots = self.slots.lock();
        // Nobody can take a new clone while the map is locked, so one reference means nobody is left.
        if slots
            .get(&self.name)
            .is_some_and(|slot| Arc::strong_count(slot) == 1)
        {
            slots.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn holders_of_one_name_take_turns_and_leave_nothing_behind() {
        let locks = Arc::new(Locks::default());
        let first = locks.hold("a".into()).await;
        let other = locks.hold("b".into()).await;
        let waiting = {
            let locks = Arc::clone(&locks);
            async move { drop(locks.hold("a".into()).await) }
        };
        let mut waiting = Box::pin(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(first);
        waiting.await;
        drop(other);
        assert!(locks.slots.lock().is_empty());
    }

    #[tokio::test]
    async fn a_waiter_that_gives_up_is_forgotten() {
        let locks = Locks::default();
        let first = locks.hold("a".into()).await;
        {
            let mut waiting = Box::pin(locks.hold("a".into()));
            assert!(futures::poll!(&mut waiting).is_pending());
        }
        drop(first);
        assert!(locks.slots.lock().is_empty());
    }
}
