//! What becomes due: firing, expiry, housekeeping, and when to wake next.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::command::Command;
use crate::command::executions::{ExecutionCommand, ProcessDue};
use crate::command::leases::{ExpireItem, ExpireLeases, ITEMS_MAX, LeaseCommand, LeaseRef};
use crate::leader::clock::ClockEvent;
use crate::leader::figures::Counter;
use crate::leader::firing;
use crate::leader::inbox::Message;
use crate::leader::office::{
    BEAT, CLOCK_REFUSED, Ended, Office, Origin, QUORUM_LOST, STALL, office_command,
};
use crate::leader::proposer::Queued;
use crate::leader::sweeps;
use crate::state::resident::LeaseKey;
use crate::store::due::{DueEntry, Level};
use crate::time::{Millis, Timestamp};

/// How often a raised limit lets more parked work in.
const PROMOTE_EVERY: Duration = Duration::from_millis(100);
/// Plan jobs at once.
const PLAN_JOBS: usize = 2;

impl Office {
    /// One look at the clock and at everything that hangs on it.
    pub(super) fn beat(&mut self) {
        let monotonic = self.shared.runtime.clock().monotonic();
        if monotonic.0.saturating_sub(self.last_beat.0) > STALL.0 {
            self.renew_wanted = true;
        }
        self.last_beat = monotonic;
        self.read_clock();
        self.watch_quorum();
        self.renew_office();
        for entry in self.due.advance(self.now) {
            if let Err(entry) = self.firing.push(entry) {
                tracing::error!(id = entry.id, "an entry of the due index names nothing");
                self.due.done(&entry);
            }
        }
        self.process_due();
        self.expire();
        self.lift_pauses();
        self.promote_parked();
        self.show_gauges();
    }

    fn read_clock(&mut self) {
        let (now, events) = {
            let mut clock = self.shared.clock.lock();
            (clock.stamp(), clock.take_events())
        };
        self.now = now;
        for event in events {
            match event {
                ClockEvent::Behind(by) => {
                    tracing::warn!(by_ms = by.0, "wall clock is behind; going at half speed");
                }
                ClockEvent::Met => tracing::info!("the wall clock has been met"),
                ClockEvent::Jumped(by) => {
                    tracing::warn!(by_ms = by.0, "clock_jump: the wall clock leapt forward");
                    self.shared.count(Counter::ClockJumps, 1);
                    self.renew_wanted = true;
                }
                ClockEvent::Refused => {
                    self.ended = Some(Ended::Unfit(CLOCK_REFUSED.to_owned()));
                }
            }
        }
    }

    /// Raft itself goes on leading without a majority until it hears of a new term.
    fn watch_quorum(&mut self) {
        let now = Instant::now();
        if now < self.next_quorum_look {
            return;
        }
        self.next_quorum_look = now + BEAT;
        let age = self.shared.consensus.status().quorum_ack_age_ms;
        if let Some(age) = age.filter(|age| *age > QUORUM_LOST.0) {
            tracing::warn!(
                age_ms = age,
                "no majority answers; out of office until one does"
            );
            self.ended = Some(Ended::Deposed);
        }
    }

    /// After a stall, a slow commit or a jump, leases get a fresh duration before any may expire.
    fn renew_office(&mut self) {
        if !self.renew_wanted || self.renewing {
            return;
        }
        self.renew_wanted = false;
        match office_command(self.shared.settings.node) {
            Ok(parcel) => {
                self.renewing = true;
                self.shared.count(Counter::Renewals, 1);
                self.lanes.push_urgent(Queued {
                    parcel,
                    origin: Origin::Renewal,
                    glued: false,
                });
            }
            Err(why) => self.ended = Some(Ended::Unfit(why)),
        }
    }

    fn process_due(&mut self) {
        while let Some(items) = self.firing.next_items() {
            let entries: Vec<DueEntry> = items.iter().map(|e| (**e).clone()).collect();
            let command = ExecutionCommand::ProcessDue(ProcessDue { items: entries });
            self.push_urgent(Command::Execution(command), Origin::Due(items));
        }
    }

    fn expire(&mut self) {
        let mut fired = self.expiry.advance(self.now);
        if self.renewing {
            self.expired.append(&mut fired);
            return;
        }
        fired.append(&mut self.expired);
        if fired.is_empty() {
            return;
        }
        let mut over: Vec<(LeaseKey, ExpireItem)> = Vec::new();
        let replica = Arc::clone(&self.shared.replica);
        let resident = replica.resident();
        for key in fired {
            let Some(lease) = resident.leases.get(&key) else {
                continue;
            };
            let ends_at = resident.lease_ends_at(lease);
            if ends_at > self.now {
                self.expiry.watch(key, lease.fencing_token, ends_at);
                continue;
            }
            let item = ExpireItem {
                tenant: lease.tenant,
                lease: LeaseRef {
                    execution: lease.execution.clone(),
                    attempt: lease.attempt,
                    fencing_token: lease.fencing_token,
                },
                draw: self.draw(),
            };
            over.push((key, item));
        }
        drop(resident);
        for chunk in over.chunks(ITEMS_MAX) {
            let items = chunk.iter().map(|(_, item)| item.clone()).collect();
            let keys = chunk.iter().map(|(key, _)| key.clone()).collect();
            let command = LeaseCommand::Expire(ExpireLeases { items });
            self.push_urgent(Command::Lease(command), Origin::Expire(keys));
        }
    }

    fn lift_pauses(&mut self) {
        if self.next_pause_end.is_none_or(|at| at > self.now) {
            return;
        }
        let (next, over) = sweeps::timed_pauses(&self.shared.replica.resident(), self.now);
        // What is being lifted is looked at again: the command may be refused.
        let retry = (!over.is_empty()).then(|| self.now.plus(Millis::secs(5)));
        self.next_pause_end = match (next, retry) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        for scope in over {
            self.push_urgent(Command::Admin(sweeps::lift(scope)), Origin::Nobody);
        }
    }

    /// Promotes parked work that a raised limit lets in: apply does so in bounded steps, and this repeats them.
    fn promote_parked(&mut self) {
        let now = Instant::now();
        if !self.promoting || now < self.next_promotion {
            return;
        }
        self.next_promotion = now + PROMOTE_EVERY;
        let commands = sweeps::promotions(&self.shared.replica.resident());
        self.promoting = !commands.is_empty();
        for command in commands {
            self.push_urgent(Command::Admin(command), Origin::Nobody);
        }
    }

    /// Starts what reads the store.
    /// Answers those who wait until what is due is decided.
    pub(super) fn tell_caught_up(&mut self) {
        if self.catching_up.is_empty() || !self.has_caught_up() {
            return;
        }
        let now = self.now;
        for (until, reply) in std::mem::take(&mut self.catching_up) {
            if until > now {
                self.catching_up.push((until, reply));
            } else {
                let _gone = reply.send(Ok(()));
            }
        }
    }

    /// Whether everything due by now is decided and its entries are applied.
    fn has_caught_up(&self) -> bool {
        let is_later = |at: Option<Timestamp>| at.is_none_or(|at| at > self.now);
        let is_read = !self.reading
            && self.scans.is_empty()
            && !self.due.is_low(self.now)
            && self.due.spill_count() == 0;
        is_read
            && is_later(self.due.next_at())
            && is_later(self.expiry.next_at())
            && self.firing.is_idle()
            && self.expired.is_empty()
            && self.plan_jobs == 0
            && self.flights.is_empty()
            && self.lanes.is_empty()
    }

    pub(super) fn start_jobs(&mut self) {
        self.read_lines();
        self.plan_schedules();
        self.read_ahead();
        self.sweep();
    }

    fn plan_schedules(&mut self) {
        while self.plan_jobs < PLAN_JOBS {
            let tasks = self.firing.next_tasks();
            if tasks.is_empty() {
                return;
            }
            self.plan_jobs += 1;
            let replica = Arc::clone(&self.shared.replica);
            let rules = Arc::clone(&self.shared.rules);
            let now = self.now;
            self.job(move || firing::plot(&replica, &rules, now, tasks).map(Message::Planned));
        }
    }

    fn read_ahead(&mut self) {
        if self.reading {
            return;
        }
        if self.scans.is_empty() && self.due.is_low(self.now) {
            self.scans = self.due.begin_fill(self.now);
            // The nearest level first.
            self.scans.reverse();
        }
        if self.scans.is_empty() {
            self.scans.extend(self.due.begin_refill());
        }
        let Some(scan) = self.scans.pop() else {
            return;
        };
        self.reading = true;
        let replica = Arc::clone(&self.shared.replica);
        self.job(move || {
            let (view, _, _) = replica.view();
            scan.read(view.as_ref()).map(Message::DuePage)
        });
    }

    fn sweep(&mut self) {
        let now = Instant::now();
        if self.sweeping {
            return;
        }
        let replica = Arc::clone(&self.shared.replica);
        if now >= self.next_watermarks && self.scans.is_empty() && !self.reading {
            self.next_watermarks = now + sweeps::WATERMARK_EVERY.to_duration();
            // What was promoted may have found no worker: then others of its key may take the slot.
            self.promoting = true;
            self.sweeping = true;
            let floors = Level::ALL.map(|level| self.due.floor(level));
            self.job(move || sweeps::check_watermarks(&replica, floors).map(Message::Swept));
        } else if now >= self.next_retention {
            self.next_retention = now + sweeps::RETENTION_EVERY.to_duration();
            self.sweeping = true;
            let (resume, now) = (self.retention_resume.take(), self.now);
            self.job(move || {
                sweeps::check_retention(&replica, now, resume.as_ref()).map(Message::Swept)
            });
        }
    }

    /// When the loop must look again although nothing arrives.
    pub(super) fn next_wake(&self) -> Instant {
        let now = Instant::now();
        let mut wake = now + BEAT;
        let mut look = |at: Instant| wake = wake.min(at);
        let timers = [
            self.due.next_at(),
            self.expiry.next_at(),
            self.admission.next_wake(),
            self.next_pause_end,
        ];
        for at in timers.into_iter().flatten() {
            look(now + self.until(at));
        }
        for at in [self.claims.next_deadline(), self.hold_until] {
            look(at.unwrap_or(now + BEAT));
        }
        wake.max(now)
    }

    /// How long until the stamps reach `at`; at least a millisecond, since clocks are cut to whole ones.
    fn until(&self, at: Timestamp) -> std::time::Duration {
        at.since(self.now).max(Millis(1)).to_duration()
    }
}
