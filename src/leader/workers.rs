//! Workers seen in this term of office.
//!
//! Purpose: who claims, from where, and who was told to stop. Volatile: a new leader has seen nobody yet. Callers:
//! [`crate::leader::Leader`]. Invariant: at most [`SEEN_MAX`] are remembered; the one not seen for longest goes.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::{QueueId, WorkerId};
use crate::leader::{Claim, WorkerSeen};
use crate::model::execution::Labels;
use crate::state::resident::Resident;
use crate::time::Timestamp;

/// Workers remembered at most.
pub const SEEN_MAX: usize = 50_000;

#[derive(Debug, Default)]
struct Seen {
    queues: Vec<QueueId>,
    first_seen_at: Timestamp,
    last_seen_at: Timestamp,
    polling: u32,
    draining: bool,
    labels: Labels,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Workers {
    seen: BTreeMap<WorkerId, Seen>,
    by_time: BTreeSet<(Timestamp, WorkerId)>,
}

impl Workers {
    /// A worker called. Answers whether it was told to claim no more.
    pub fn called(&mut self, worker: &WorkerId, now: Timestamp) -> bool {
        if !self.seen.contains_key(worker)
            && self.seen.len() >= SEEN_MAX
            && let Some((_, oldest)) = self.by_time.pop_first()
        {
            self.seen.remove(&oldest);
        }
        let seen = self.seen.entry(worker.clone()).or_insert_with(|| Seen {
            first_seen_at: now,
            last_seen_at: Timestamp::MIN,
            ..Seen::default()
        });
        let draining = seen.draining;
        // Within a second the order of who was seen last does not matter.
        if now.since(seen.last_seen_at).0 >= 1_000 || seen.last_seen_at == Timestamp::MIN {
            self.by_time.remove(&(seen.last_seen_at, worker.clone()));
            seen.last_seen_at = now;
            self.by_time.insert((now, worker.clone()));
        }
        draining
    }

    /// A claim began: [`Workers::called`], and what it asked for.
    pub fn polls(&mut self, claim: &Claim, now: Timestamp) -> bool {
        let draining = self.called(&claim.worker, now);
        if let Some(seen) = self.seen.get_mut(&claim.worker) {
            seen.polling = seen.polling.saturating_add(1);
            if seen.queues != claim.queues {
                seen.queues.clone_from(&claim.queues);
            }
            if seen.labels != claim.labels {
                seen.labels.clone_from(&claim.labels);
            }
        }
        draining
    }

    /// A claim was answered or dropped.
    pub fn polled(&mut self, worker: &WorkerId) {
        if let Some(seen) = self.seen.get_mut(worker) {
            seen.polling = seen.polling.saturating_sub(1);
        }
    }

    /// Tells a worker to claim no more. `false`: not seen.
    pub fn drain(&mut self, worker: &WorkerId) -> bool {
        self.seen
            .get_mut(worker)
            .map(|seen| seen.draining = true)
            .is_some()
    }

    /// Whether a worker was told to claim no more.
    #[must_use]
    pub fn is_draining(&self, worker: &WorkerId) -> bool {
        self.seen.get(worker).is_some_and(|seen| seen.draining)
    }

    /// Forgets a worker that signed off.
    pub fn forget(&mut self, worker: &WorkerId) {
        if let Some(seen) = self.seen.remove(worker) {
            self.by_time.remove(&(seen.last_seen_at, worker.clone()));
        }
    }

    /// Forgets everybody: a new term of office.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Everybody seen, by id, with what they hold.
    #[must_use]
    pub fn list(&self, resident: &Resident) -> Vec<WorkerSeen> {
        let held = |worker: &WorkerId| resident.held.get(worker).map_or(0, BTreeSet::len);
        let one = |(worker, seen): (&WorkerId, &Seen)| WorkerSeen {
            worker: worker.clone(),
            queues: seen.queues.clone(),
            first_seen_at: seen.first_seen_at,
            last_seen_at: seen.last_seen_at,
            leased: u32::try_from(held(worker)).unwrap_or(u32::MAX),
            polling: seen.polling,
            draining: seen.draining,
            labels: seen.labels.clone(),
        };
        self.seen.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Millis;

    fn id(n: usize) -> WorkerId {
        WorkerId::new(&format!("w{n}")).expect("a good name")
    }

    #[test]
    fn the_worker_not_seen_for_longest_is_forgotten() {
        let mut workers = Workers::default();
        for n in 0..SEEN_MAX {
            let at = Timestamp::EPOCH.plus(Millis(2_000 * n as u64));
            workers.called(&id(n), at);
        }
        let late = Timestamp::EPOCH.plus(Millis(2_000 * SEEN_MAX as u64));
        workers.called(&id(0), late);
        workers.called(&id(SEEN_MAX), late);
        assert_eq!(workers.seen.len(), SEEN_MAX);
        assert!(workers.drain(&id(0)));
        assert!(!workers.drain(&id(1)));
        assert!(workers.is_draining(&id(0)));
    }
}
