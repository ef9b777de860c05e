//! When live leases end by themselves.
//!
//! Purpose: a volatile wheel over lease deadlines; the lease row stays the truth. Callers: the office.
//! Invariants:
//! 1. A renewal does not move the timer: when it fires, the lease is looked at, and watched again if it lives on. So
//!    renewals cost nothing here, and nothing expires early.
//! 2. An earlier end than the one watched moves the timer at once.

use std::collections::BTreeMap;

use crate::leader::wheel::{Key, Wheel};
use crate::state::resident::{LeaseKey, Resident};
use crate::time::Timestamp;

#[derive(Debug)]
struct Watched {
    token: u64,
    at: Timestamp,
    key: Key,
}

/// See the module.
#[derive(Debug)]
pub struct Expiry {
    wheel: Wheel<LeaseKey>,
    watched: BTreeMap<LeaseKey, Watched>,
}

impl Expiry {
    /// Watches every live lease.
    #[must_use]
    pub fn rebuild(now: Timestamp, resident: &Resident) -> Self {
        let mut new = Self {
            wheel: Wheel::new(now),
            watched: BTreeMap::new(),
        };
        for (key, lease) in &resident.leases {
            new.watch(
                key.clone(),
                lease.fencing_token,
                resident.lease_ends_at(lease),
            );
        }
        new
    }

    /// Leases watched.
    #[must_use]
    pub fn len(&self) -> usize {
        self.watched.len()
    }

    /// Whether none is watched.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.watched.is_empty()
    }

    /// Watches a lease until `ends_at`, at the latest.
    pub fn watch(&mut self, lease: LeaseKey, token: u64, ends_at: Timestamp) {
        if let Some(watched) = self.watched.get_mut(&lease) {
            if watched.token == token && watched.at <= ends_at {
                return;
            }
            self.wheel.cancel(watched.key);
        }
        let key = self.wheel.insert(ends_at, lease.clone());
        let at = ends_at;
        self.watched.insert(lease, Watched { token, at, key });
    }

    /// A lease ended.
    pub fn forget(&mut self, lease: &LeaseKey, token: u64) {
        if self.watched.get(lease).is_some_and(|w| w.token == token)
            && let Some(watched) = self.watched.remove(lease)
        {
            self.wheel.cancel(watched.key);
        }
    }

    /// Leases whose timer has fired; they are no longer watched.
    pub fn advance(&mut self, now: Timestamp) -> Vec<LeaseKey> {
        let mut fired = Vec::new();
        self.wheel.advance(now, &mut fired);
        for lease in &fired {
            self.watched.remove(lease);
        }
        fired
    }

    /// When to call [`Expiry::advance`] next.
    #[must_use]
    pub fn next_at(&self) -> Option<Timestamp> {
        self.wheel.next_at()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ExecutionId, TenantNo};
    use crate::time::Millis;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_millis(1_800_000_000_000).plus(Millis(ms))
    }

    fn lease(name: &str) -> LeaseKey {
        (ExecutionId::new(name).expect("a good name"), TenantNo(1))
    }

    #[test]
    fn a_later_end_keeps_the_timer_and_an_earlier_one_moves_it() {
        let mut expiry = Expiry::rebuild(at(0), &Resident::default());
        expiry.watch(lease("a"), 1, at(1_000));
        expiry.watch(lease("a"), 1, at(9_000));
        assert_eq!(expiry.advance(at(1_000)), [lease("a")]);
        expiry.watch(lease("a"), 1, at(9_000));
        expiry.watch(lease("a"), 1, at(2_000));
        assert_eq!(expiry.advance(at(2_000)), [lease("a")]);
        assert!(expiry.is_empty());
    }

    #[test]
    fn a_new_lease_on_the_same_execution_replaces_the_old_one() {
        let mut expiry = Expiry::rebuild(at(0), &Resident::default());
        expiry.watch(lease("a"), 1, at(1_000));
        expiry.watch(lease("a"), 2, at(5_000));
        expiry.forget(&lease("a"), 1);
        assert!(expiry.advance(at(4_990)).is_empty());
        assert_eq!(expiry.advance(at(5_000)), [lease("a")]);
        expiry.watch(lease("b"), 3, at(6_000));
        expiry.forget(&lease("b"), 3);
        assert!(expiry.advance(at(9_000)).is_empty());
    }
}
