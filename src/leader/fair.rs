//! A queue that is fair over tenants.
//!
//! Purpose: a million due things of one tenant never delay ten of another. Callers: the office's firing.
//! Invariant: each tenant's things come out in the order they went in; tenants take turns.

use std::collections::{BTreeMap, VecDeque};

use crate::ids::TenantNo;

/// Things that one tenant gets out in its turn.
const TURN: usize = 10;

/// See the module.
#[derive(Debug)]
pub struct FairQueue<T> {
    lanes: BTreeMap<TenantNo, VecDeque<T>>,
    ring: VecDeque<TenantNo>,
    len: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            lanes: BTreeMap::new(),
            ring: VecDeque::new(),
            len: 0,
        }
    }
}

impl<T> FairQueue<T> {
    /// Things in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds at the end of its tenant's lane.
    pub fn push(&mut self, tenant: TenantNo, item: T) {
        let lane = self.lanes.entry(tenant).or_default();
        if lane.is_empty() {
            self.ring.push_back(tenant);
        }
        lane.push_back(item);
        self.len += 1;
    }

    /// Takes up to `max` things, tenants in turn.
    pub fn take(&mut self, max: usize) -> Vec<T> {
        let mut taken = Vec::with_capacity(max.min(self.len));
        while taken.len() < max {
            let Some(tenant) = self.ring.pop_front() else {
                break;
            };
            let Some(lane) = self.lanes.get_mut(&tenant) else {
                continue;
            };
            let turn = TURN.min(max - taken.len()).min(lane.len());
            taken.extend(lane.drain(..turn));
            if lane.is_empty() {
                self.lanes.remove(&tenant);
            } else {
                self.ring.push_back(tenant);
            }
        }
        self.len -= taken.len();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_tenant_comes_out_beside_a_large_one() {
        let mut queue = FairQueue::default();
        for n in 0..1_000 {
            queue.push(TenantNo(1), (1, n));
        }
        for n in 0..10 {
            queue.push(TenantNo(2), (2, n));
        }
        let taken = queue.take(40);
        assert_eq!(taken.iter().filter(|(t, _)| *t == 2).count(), 10);
        let first: Vec<i32> = taken
            .iter()
            .filter(|(t, _)| *t == 1)
            .map(|(_, n)| *n)
            .collect();
        assert_eq!(first, (0..30).collect::<Vec<_>>());
        assert_eq!(queue.len(), 970);
        assert_eq!(queue.take(5_000).len(), 970);
        assert!(queue.is_empty());
    }
}
