//! Callers that wait for an execution to become final.
//!
//! Purpose: answer `wait_ms` the moment the final state is applied, on whatever node the caller is. Callers:
//! [`crate::leader::Leader`]; the apply thread tells it what became final.
//! Invariants: a caller registers before it looks at the state, so no end falls between; at most [`WAITERS_MAX`] wait.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::ids::{ExecutionId, TenantNo};

/// Callers that may wait at once on one node.
pub const WAITERS_MAX: usize = 50_000;

type Name = (ExecutionId, TenantNo);

#[derive(Debug, Default)]
struct Waiting {
    by_name: BTreeMap<Name, BTreeMap<u64, oneshot::Sender<()>>>,
    next: u64,
    count: usize,
}

/// See the module. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct FinalWaiters(Arc<Mutex<Waiting>>);

/// One caller's place; leaving it unregisters.
#[derive(Debug)]
pub struct Place {
    waiters: FinalWaiters,
    name: Name,
    number: u64,
    told: oneshot::Receiver<()>,
}

impl FinalWaiters {
    /// Takes a place, or `None` when too many wait already. Look at the state after this call, not before.
    #[must_use]
    pub fn register(&self, tenant: TenantNo, execution: ExecutionId) -> Option<Place> {
        let (tell, told) = oneshot::channel();
        let name = (execution, tenant);
        let mut waiting = self.0.lock();
        if waiting.count >= WAITERS_MAX {
            return None;
        }
        let number = waiting.next;
        waiting.next += 1;
        waiting.count += 1;
        let places = waiting.by_name.entry(name.clone()).or_default();
        places.insert(number, tell);
        Some(Place {
            waiters: self.clone(),
            name,
            number,
            told,
        })
    }

    /// Tells those who wait for it that an execution is final.
    pub fn announce(&self, tenant: TenantNo, execution: &ExecutionId) {
        let mut waiting = self.0.lock();
        if waiting.count == 0 {
            return;
        }
        let places = waiting.by_name.remove(&(execution.clone(), tenant));
        let places = places.unwrap_or_default();
        waiting.count -= places.len();
        drop(waiting);
        for tell in places.into_values() {
            let _gone = tell.send(());
        }
    }

    /// Tells everybody to look again.
    pub fn announce_all(&self) {
        let all = std::mem::take(&mut *self.0.lock()).by_name;
        for tell in all.into_values().flat_map(BTreeMap::into_values) {
            let _gone = tell.send(());
        }
    }

    /// Callers waiting.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().count
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Place {
    /// Resolves when the execution is final, or when everybody is to look again.
    pub async fn told(&mut self) {
        let _told_or_dropped = (&mut self.told).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut waiting = self.waiters.0.lock();
        let Some(places) = waiting.by_name.get_mut(&self.name) else {
            return;
        };
        let was_there = places.remove(&self.number).is_some();
        let is_empty = places.is_empty();
        if is_empty {
            waiting.by_name.remove(&self.name);
        }
        if was_there {
            waiting.count = waiting.count.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn everybody_who_waits_for_it_is_told_and_nobody_else() {
        let waiters = FinalWaiters::default();
        let id = |name: &str| ExecutionId::new(name).expect("a good name");
        let mut a = waiters.register(TenantNo(1), id("a")).expect("a place");
        let mut b = waiters.register(TenantNo(1), id("a")).expect("a place");
        let other = waiters.register(TenantNo(2), id("a")).expect("a place");
        waiters.announce(TenantNo(1), &id("a"));
        a.told().await;
        b.told().await;
        assert_eq!(waiters.len(), 1);
        drop(other);
        assert!(waiters.is_empty());
    }
}
