//! Leases that this worker holds, and until when.
//!
//! Callers: `worker::{run, renew, attempt}`, and handlers through [`super::Work`].
//! Invariants: a deadline only moves by a renewal that the server accepted; all instants are monotonic and counted
//! from when the request was sent. A claim may wait long before it is answered, and when in that time the lease began
//! is not known here: such a lease is unconfirmed, and a renewal has to be accepted before its handler starts.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::wire::{Instant as ServerTime, Json, Lease, LeaseRef, RenewItem};

/// Why a handler should stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Somebody asked for a cancel. Success still counts; anything else ends as cancelled.
    CancelRequested,
    /// The lease is over on the server, for this reason; a report would change nothing.
    LeaseLost(String),
    /// The lease could not be renewed and is about to end.
    LeaseEnding,
    /// The attempt's time is up.
    TimedOut,
    /// The worker is being stopped.
    Shutdown,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CancelRequested => f.write_str("a cancel was requested"),
            Self::LeaseLost(reason) => write!(f, "the lease was lost ({reason})"),
            Self::LeaseEnding => f.write_str("the lease could not be renewed and was about to end"),
            Self::TimedOut => f.write_str("the attempt's time is up"),
            Self::Shutdown => f.write_str("the worker was stopped"),
        }
    }
}

/// Where a held lease stands on this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its handler runs.
    Running,
    /// Its handler ended; a report waits to be sent.
    Ended,
    /// The report is under way.
    Reporting,
}

#[derive(Clone, Debug)]
struct State {
    phase: Phase,
    lease: Duration,
    deadline: Instant,
    renew_at: Instant,
    /// Until then, at most, the server may have it as live; `None`: confirmed.
    unconfirmed_until: Option<Instant>,
    stop: Option<Stop>,
    hard_stop_at: Option<Instant>,
    progress: Option<Json>,
}

/// One lease.
pub(super) struct Held {
    lease: Lease,
    reference: LeaseRef,
    stop_grace: Duration,
    began: Instant,
    time_up: Option<Instant>,
    state: watch::Sender<State>,
}

impl Held {
    /// From a claim's answer; `sent` is when the claim was sent.
    pub(super) fn new(
        lease: Lease,
        sent: Instant,
        server_time: Option<ServerTime>,
        stop_grace: Duration,
    ) -> Self {
        let left = Duration::from_millis(lease.expires_in_ms);
        let time_up = lease
            .deadline_at
            .zip(server_time)
            .map(|(deadline, now)| sent + deadline.0.since(now.0).to_duration());
        let received = Instant::now();
        let late = received.duration_since(sent) > left / 3;
        let state = State {
            phase: Phase::Running,
            unconfirmed_until: late.then(|| received + left),
            lease: left,
            deadline: deadline(sent, left),
            renew_at: sent + left / 3,
            stop: None,
            hard_stop_at: None,
            progress: None,
        };
        Self {
            reference: lease.reference(),
            lease,
            stop_grace,
            began: sent,
            time_up,
            state: watch::Sender::new(state),
        }
    }

    pub(super) const fn lease(&self) -> &Lease {
        &self.lease
    }

    pub(super) const fn reference(&self) -> &LeaseRef {
        &self.reference
    }

    pub(super) fn set_progress(&self, progress: Json) {
        self.state.send_modify(|s| s.progress = Some(progress));
    }

    pub(super) fn set_phase(&self, phase: Phase) {
        self.state.send_modify(|s| s.phase = phase);
    }

    pub(super) fn deadline(&self) -> Instant {
        self.state.borrow().deadline
    }

    pub(super) fn time_left(&self) -> Duration {
        let (at, _) = self.hard_stop(&self.state.borrow());
        at.saturating_duration_since(Instant::now())
    }

    /// Tells the handler to stop; it is dropped after the grace unless the reason is a request.
    pub(super) fn stop(&self, why: Stop) {
        let grace = self.grace();
        self.state.send_modify(|s| {
            if why != Stop::CancelRequested {
                let hard = Instant::now() + grace;
                s.hard_stop_at = Some(s.hard_stop_at.map_or(hard, |at| at.min(hard)));
                s.stop = Some(why);
            } else if s.stop.is_none() {
                s.stop = Some(why);
            }
        });
    }

    /// A renewal was accepted.
    pub(super) fn renewed(&self, sent: Instant, left: Duration) {
        self.state.send_modify(|s| {
            s.lease = left;
            s.deadline = s.deadline.max(deadline(sent, left));
            s.renew_at = sent + left / 3;
            s.unconfirmed_until = None;
        });
    }

    /// A renewal failed: try again in a moment.
    pub(super) fn renewal_failed(&self, pause: Duration) {
        self.state
            .send_modify(|s| s.renew_at = Instant::now() + pause.min(s.lease / 6));
    }

    /// When to renew next; `None` while there is nothing to renew.
    fn renew_at(&self) -> Option<Instant> {
        let s = self.state.borrow();
        let end = s.unconfirmed_until.unwrap_or(s.deadline);
        let lives = s.phase != Phase::Reporting && s.renew_at < end;
        let lost = matches!(s.stop, Some(Stop::LeaseLost(_)));
        (lives && !lost).then_some(s.renew_at)
    }

    fn renewal(&self) -> (RenewItem, Duration) {
        let mut progress = Json::null();
        let mut lease = Duration::ZERO;
        self.state.send_if_modified(|s| {
            progress = s.progress.take().unwrap_or_default();
            lease = s.lease;
            false
        });
        let item = RenewItem {
            execution_id: self.reference.execution_id.clone(),
            attempt: self.reference.attempt,
            fencing_token: self.reference.fencing_token,
            lease_ms: None,
            progress,
        };
        (item, lease)
    }

    fn grace(&self) -> Duration {
        self.stop_grace.min(self.state.borrow().lease / 5)
    }

    fn hard_stop(&self, s: &State) -> (Instant, Stop) {
        let mut first = (s.deadline, Stop::LeaseEnding);
        if let Some(at) = self.time_up.filter(|at| *at < first.0) {
            first = (at, Stop::TimedOut);
        }
        if let Some(at) = s.hard_stop_at.filter(|at| *at < first.0) {
            first = (at, s.stop.clone().unwrap_or(Stop::Shutdown));
        }
        first
    }

    /// When the handler is told to stop if nothing changes.
    fn soft_stop(&self, s: &State) -> (Instant, Stop) {
        let grace = self.stop_grace.min(s.lease / 5);
        let ending = (
            s.deadline.checked_sub(grace).unwrap_or(s.deadline),
            Stop::LeaseEnding,
        );
        let Some(time_up) = self.time_up else {
            return ending;
        };
        // A time-out was chosen by a person: at most a tenth of it goes to the notice.
        let tenth = time_up.saturating_duration_since(self.began) / 10;
        let notice = time_up.checked_sub(grace.min(tenth)).unwrap_or(time_up);
        if notice < ending.0 {
            (notice, Stop::TimedOut)
        } else {
            ending
        }
    }

    pub(super) async fn stopped(&self) -> Stop {
        let mut watch = self.state.subscribe();
        loop {
            let (at, why) = {
                let s = watch.borrow_and_update();
                if let Some(stop) = &s.stop {
                    return stop.clone();
                }
                self.soft_stop(&s)
            };
            tokio::select! {
                biased;
                _ = watch.changed() => {}
                () = tokio::time::sleep_until(at) => return why,
            }
        }
    }

    /// Resolves when the lease is known to live (`true`), or will never be (`false`).
    pub(super) async fn confirmed(&self) -> bool {
        let mut watch = self.state.subscribe();
        loop {
            let until = {
                let s = watch.borrow_and_update();
                if s.stop
                    .as_ref()
                    .is_some_and(|stop| *stop != Stop::CancelRequested)
                {
                    return false;
                }
                match s.unconfirmed_until {
                    Some(until) => until,
                    None => return true,
                }
            };
            tokio::select! {
                biased;
                _ = watch.changed() => {}
                () = tokio::time::sleep_until(until) => return false,
            }
        }
    }

    /// Resolves when the handler must be gone.
    pub(super) async fn must_end(&self) -> Stop {
        let mut watch = self.state.subscribe();
        loop {
            let (at, why) = self.hard_stop(&watch.borrow_and_update());
            tokio::select! {
                biased;
                _ = watch.changed() => {}
                () = tokio::time::sleep_until(at) => return why,
            }
        }
    }
}

/// Nine tenths of what was left, from when the request was sent.
fn deadline(sent: Instant, left: Duration) -> Instant {
    sent + left - left / 10
}

/// All leases held.
#[derive(Default)]
pub(super) struct Table {
    leases: Mutex<BTreeMap<LeaseRef, Arc<Held>>>,
    /// The renewal task looks again.
    changed: Notify,
}

impl Table {
    /// `false` when it is held already.
    pub(super) fn insert(&self, held: Arc<Held>) -> bool {
        let mut leases = self.leases.lock();
        if leases.contains_key(held.reference()) {
            return false;
        }
        leases.insert(held.reference().clone(), held);
        self.changed.notify_one();
        true
    }

    pub(super) fn get(&self, reference: &LeaseRef) -> Option<Arc<Held>> {
        self.leases.lock().get(reference).cloned()
    }

    pub(super) fn remove(&self, reference: &LeaseRef) -> Option<Arc<Held>> {
        self.leases.lock().remove(reference)
    }

    pub(super) fn all(&self) -> Vec<Arc<Held>> {
        self.leases.lock().values().cloned().collect()
    }

    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// The renewal task looks again, because a lease has become renewable.
    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }

    /// The earliest instant at which a lease wants to be renewed.
    pub(super) fn next_renewal(&self) -> Option<Instant> {
        self.leases
            .lock()
            .values()
            .filter_map(|h| h.renew_at())
            .min()
    }

    /// Renewals that are due by `now`, with those that will be within a tenth of their lease; and the shortest lease.
    pub(super) fn due_renewals(&self, now: Instant, max: usize) -> Option<DueRenewals> {
        let mut due = DueRenewals {
            leases: Vec::new(),
            items: Vec::new(),
            shortest: Duration::MAX,
        };
        for held in self.all() {
            let Some(at) = held.renew_at() else { continue };
            let slack = held.state.borrow().lease / 10;
            if at <= now + slack && due.items.len() < max {
                let (item, lease) = held.renewal();
                due.items.push(item);
                due.shortest = due.shortest.min(lease);
                due.leases.push(held);
            }
        }
        (!due.items.is_empty()).then_some(due)
    }
}

/// One call's worth of renewals; `leases` and `items` go together.
pub(super) struct DueRenewals {
    pub(super) leases: Vec<Arc<Held>>,
    pub(super) items: Vec<RenewItem>,
    pub(super) shortest: Duration,
}
