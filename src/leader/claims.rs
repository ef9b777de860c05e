//! Claims that wait for work.
//!
//! Purpose: find the waiter for an item without asking all of them. Callers: the office.
//! Invariants:
//! 1. Claims of one queue and one filter form a line in the order of arrival; only its first is asked, since the others
//!    would take the same.
//! 2. A claim is waiting, or a grant of it is under way, or it is gone: an item goes to one waiter.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::time::Instant;

use crate::command::outcome::ReportResult;
use crate::ids::{ExecutionId, QueueId, WorkerId};
use crate::leader::inbox::Reply;
use crate::leader::lines::Filter;
use crate::leader::proposer::Parcel;
use crate::leader::{Claim, Claimed};

/// A claim as it arrives.
#[derive(Debug)]
pub struct NewClaim {
    /// Its number, in order of arrival.
    pub id: u64,
    /// What is asked.
    pub claim: Claim,
    /// Its reports, encoded; `claim.reports` is empty.
    pub reports: Vec<Parcel>,
    /// Leases that its reports end: execution and token.
    pub over: Vec<(ExecutionId, u64)>,
    /// When it is answered at the latest.
    pub deadline: Instant,
    /// Where the answer goes.
    pub reply: Reply<Claimed>,
}

/// A claim that is being served.
#[derive(Debug)]
pub struct Waiter {
    /// What is asked.
    pub claim: Claim,
    /// What it takes.
    pub filter: Arc<Filter>,
    /// When it is answered at the latest.
    pub deadline: Instant,
    /// Where the answer goes.
    pub reply: Reply<Claimed>,
    /// Leases that its reports end.
    pub over: Vec<(ExecutionId, u64)>,
    /// Answers to its reports, once they are there.
    pub reports: Vec<ReportResult>,
    /// Its reports are under way: no answer before theirs.
    pub reporting: bool,
    /// A grant of it is under way.
    pub granting: bool,
    /// It is answered as soon as nothing of it is under way.
    pub ending: bool,
    filter_no: u32,
    waiting: bool,
}

impl Waiter {
    /// Whether nobody waits for the answer any more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.reply.is_closed()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Claims {
    by_id: BTreeMap<u64, Waiter>,
    lines: BTreeMap<QueueId, BTreeMap<u32, BTreeSet<u64>>>,
    filters: BTreeMap<Arc<Filter>, (u32, u64)>,
    next_filter: u32,
    deadlines: BTreeSet<(Instant, u64)>,
    by_request: BTreeMap<(WorkerId, String), u64>,
    by_worker: BTreeMap<WorkerId, BTreeSet<u64>>,
    waiting: usize,
}

impl Claims {
    /// Takes a claim in; it does not wait yet.
    pub fn admit(&mut self, new: NewClaim) -> Vec<Parcel> {
        let claim = new.claim;
        let filter = Arc::new(Filter {
            kinds: claim.kinds.as_ref().map(|k| k.iter().cloned().collect()),
            labels: claim.labels.clone(),
        });
        let next = &mut self.next_filter;
        let (no, count) = self.filters.entry(Arc::clone(&filter)).or_insert_with(|| {
            *next = next.wrapping_add(1);
            (*next, 0)
        });
        *count += 1;
        let filter_no = *no;
        if let Some(request) = &claim.request_id {
            let name = (claim.worker.clone(), request.clone());
            self.by_request.insert(name, new.id);
        }
        let of_worker = self.by_worker.entry(claim.worker.clone()).or_default();
        of_worker.insert(new.id);
        self.deadlines.insert((new.deadline, new.id));
        let waiter = Waiter {
            claim,
            filter,
            deadline: new.deadline,
            reply: new.reply,
            over: new.over,
            reports: Vec::new(),
            reporting: !new.reports.is_empty(),
            granting: false,
            ending: false,
            filter_no,
            waiting: false,
        };
        self.by_id.insert(new.id, waiter);
        new.reports
    }

    /// One claim.
    #[must_use]
    pub fn get(&self, id: u64) -> Option<&Waiter> {
        self.by_id.get(&id)
    }

    /// One claim, to be changed.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Waiter> {
        self.by_id.get_mut(&id)
    }

    /// The claim with this request id, if it is still being served.
    #[must_use]
    pub fn of_request(&self, worker: &WorkerId, request: &str) -> Option<u64> {
        self.by_request
            .get(&(worker.clone(), request.to_owned()))
            .copied()
    }

    /// Claims of a worker.
    #[must_use]
    pub fn of_worker(&self, worker: &WorkerId) -> Vec<u64> {
        let ids = self.by_worker.get(worker);
        ids.map(|ids| ids.iter().copied().collect())
            .unwrap_or_default()
    }

    /// Puts a claim into the lines of its queues, at its place by arrival.
    pub fn wait(&mut self, id: u64) {
        let Some(waiter) = self.by_id.get_mut(&id).filter(|w| !w.waiting) else {
            return;
        };
        waiter.waiting = true;
        self.waiting += 1;
        for queue in &waiter.claim.queues {
            let filters = self.lines.entry(queue.clone()).or_default();
            filters.entry(waiter.filter_no).or_default().insert(id);
        }
    }

    /// Takes a claim out of the lines; it is still being served.
    pub fn leave(&mut self, id: u64) {
        let Some(waiter) = self.by_id.get_mut(&id).filter(|w| w.waiting) else {
            return;
        };
        waiter.waiting = false;
        self.waiting = self.waiting.saturating_sub(1);
        for queue in &waiter.claim.queues {
            let Some(filters) = self.lines.get_mut(queue) else {
                continue;
            };
            if let Some(line) = filters.get_mut(&waiter.filter_no) {
                line.remove(&id);
                if line.is_empty() {
                    filters.remove(&waiter.filter_no);
                }
            }
            if filters.is_empty() {
                self.lines.remove(queue);
            }
        }
    }

    /// Ends a claim.
    pub fn remove(&mut self, id: u64) -> Option<Waiter> {
        self.leave(id);
        let waiter = self.by_id.remove(&id)?;
        self.deadlines.remove(&(waiter.deadline, id));
        if let Some((_, count)) = self.filters.get_mut(&waiter.filter) {
            *count -= 1;
            if *count == 0 {
                self.filters.remove(&waiter.filter);
            }
        }
        let worker = &waiter.claim.worker;
        if let Some(request) = &waiter.claim.request_id {
            let name = (worker.clone(), request.clone());
            if self.by_request.get(&name) == Some(&id) {
                self.by_request.remove(&name);
            }
        }
        if let Some(ids) = self.by_worker.get_mut(worker) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_worker.remove(worker);
            }
        }
        Some(waiter)
    }

    /// The first waiters of a queue, one for each filter, in order of arrival.
    #[must_use]
    pub fn firsts(&self, queue: &QueueId) -> Vec<u64> {
        let Some(filters) = self.lines.get(queue) else {
            return Vec::new();
        };
        let mut ids: Vec<u64> = filters
            .values()
            .filter_map(|line| line.first().copied())
            .collect();
        ids.sort_unstable();
        ids
    }

    /// The waiter behind `id` in its line of `queue`.
    #[must_use]
    pub fn behind(&self, queue: &QueueId, id: u64, filter: &Filter) -> Option<u64> {
        let (no, _) = self.filters.get(filter)?;
        let line = self.lines.get(queue)?.get(no)?;
        line.range(id + 1..).next().copied()
    }

    /// Whether anybody waits for work of a queue.
    #[must_use]
    pub fn is_awaited(&self, queue: &QueueId) -> bool {
        self.lines.contains_key(queue)
    }

    /// Takes the claims whose time is over; each is told once.
    pub fn overdue(&mut self, now: Instant) -> Vec<u64> {
        let later = self.deadlines.split_off(&(now, u64::MAX));
        let over = std::mem::replace(&mut self.deadlines, later);
        over.into_iter().map(|(_, id)| id).collect()
    }

    /// Gives a claim more time.
    pub fn postpone(&mut self, id: u64, deadline: Instant) {
        if let Some(waiter) = self.by_id.get_mut(&id) {
            self.deadlines.remove(&(waiter.deadline, id));
            waiter.deadline = deadline;
            self.deadlines.insert((deadline, id));
        }
    }

    /// When the next claim's time is over.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Claims waiting.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Ends all of them.
    pub fn drain(&mut self) -> impl Iterator<Item = Waiter> + use<> {
        std::mem::take(self).by_id.into_values()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tokio::sync::oneshot;

    use super::*;
    use crate::ids::Kind;
    use crate::time::Millis;

    fn queue(name: &str) -> QueueId {
        QueueId::new(name).expect("a good name")
    }

    fn claim(id: u64, queues: &[&str], kind: Option<&str>) -> NewClaim {
        let kinds = kind.map(|k| vec![Kind::new(k).expect("a good kind")]);
        NewClaim {
            id,
            claim: Claim {
                worker: WorkerId::new(&format!("w{id}")).expect("a good name"),
                request_id: Some(format!("r{id}")),
                queues: queues.iter().map(|q| queue(q)).collect(),
                max: 1,
                max_bytes: 1 << 20,
                wait: Millis::secs(1),
                lease: Millis::secs(30),
                slots: None,
                kinds,
                labels: BTreeMap::new(),
                start_confirmation: None,
                reports: Vec::new(),
            },
            reports: Vec::new(),
            over: Vec::new(),
            deadline: Instant::now() + std::time::Duration::from_secs(id),
            reply: oneshot::channel().0,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_waiter_a_filter_is_asked_in_order_of_arrival() {
        let mut claims = Claims::default();
        for (id, kind) in [(1, Some("a")), (2, None), (3, Some("a")), (4, None)] {
            claims.admit(claim(id, &["q", "r"], kind));
            claims.wait(id);
        }
        assert_eq!(claims.firsts(&queue("q")), [1, 2]);
        let filter = Arc::clone(&claims.get(1).expect("it waits").filter);
        assert_eq!(claims.behind(&queue("q"), 1, &filter), Some(3));
        claims.leave(1);
        assert_eq!(claims.firsts(&queue("r")), [2, 3]);
        claims.wait(1);
        assert_eq!(claims.firsts(&queue("q")), [1, 2], "it keeps its place");
        assert_eq!(claims.firsts(&queue("none")), Vec::<u64>::new());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_left_of_claims_that_ended() {
        let mut claims = Claims::default();
        for id in 1..5 {
            claims.admit(claim(id, &["q"], Some("a")));
            claims.wait(id);
        }
        assert_eq!(
            claims.of_request(&WorkerId::new("w2").expect("a name"), "r2"),
            Some(2)
        );
        let later = Instant::now() + std::time::Duration::from_secs(2);
        assert_eq!(claims.overdue(later), [1, 2]);
        for id in 1..5 {
            assert!(claims.remove(id).is_some());
        }
        assert_eq!(claims.waiting(), 0);
        assert!(!claims.is_awaited(&queue("q")));
        assert_eq!(claims.next_deadline(), None);
        assert!(claims.filters.is_empty() && claims.by_worker.is_empty());
        assert!(claims.by_request.is_empty());
    }
}
