//! What apply said: answers to callers, and what the leader makes of its own commands.

use std::sync::Arc;

use crate::command::outcome::{GrantResult, Granted, Outcome, ReadyItem, Refusal, ReportResult};
use crate::ids::WorkerId;
use crate::leader::figures::Counter;
use crate::leader::firing::Plotted;
use crate::leader::office::{Ended, Group, GroupReply, Office, Origin, outcomes_of};
use crate::leader::proposer::Queued;
use crate::leader::{Answer, Reported, Unavailable};
use crate::raft::Committed;
use crate::state::resident::LeaseKey;
use crate::time::Millis;

impl Office {
    /// An entry is applied.
    pub(super) fn committed(&mut self, committed: Committed, entry: Vec<Queued<Origin>>) {
        let (token, outcomes, _) = match outcomes_of(committed) {
            Ok(answer) => answer,
            Err(fault) => {
                self.fail_entry(entry, &Unavailable::Unknown);
                self.ended = Some(Ended::Unfit(fault.to_string()));
                return;
            }
        };
        self.shared.count(Counter::Entries, 1);
        self.shared.count(Counter::Commands, outcomes.len());
        for (queued, outcome) in entry.into_iter().zip(outcomes) {
            if outcome == Outcome::Refused(Refusal::NotInOffice) {
                let why = self.shared.not_leader();
                self.fail(queued.origin, &why);
                self.ended = Some(Ended::Deposed);
            } else {
                self.answered(queued.origin, token, outcome);
            }
        }
    }

    fn answered(&mut self, origin: Origin, token: u64, outcome: Outcome) {
        match origin {
            Origin::Part { group, position } => self.part_answered(group, position, token, outcome),
            Origin::Grant {
                claim,
                worker,
                items,
            } => self.grant_answered(claim, &worker, items, outcome),
            Origin::Due(items) => {
                self.firing.items_done(items.len());
                for entry in &items {
                    self.due.done(entry);
                }
                if let Outcome::Processed { done } = outcome {
                    self.shared.count(Counter::Processed, done as usize);
                }
            }
            Origin::Fire(task) => {
                if let Outcome::Fired { created, skipped } = &outcome {
                    let skipped = usize::try_from(*skipped).unwrap_or(usize::MAX);
                    self.shared.count(Counter::Fired, created.len());
                    self.shared.count(Counter::Skipped, skipped);
                }
                if matches!(outcome, Outcome::Refused(_)) {
                    self.shared.count(Counter::Superseded, 1);
                }
                for entry in self.firing.decided(task, true) {
                    self.due.done(&entry);
                }
            }
            Origin::Expire(keys) => self.expire_answered(keys, &outcome),
            Origin::Renewal => self.renewing = false,
            Origin::Nobody => {}
        }
    }

    /// A schedule was planned.
    pub(super) fn take_plot(&mut self, plotted: Plotted) {
        let Plotted { task, parcel } = plotted;
        match parcel {
            Some(parcel) => self.lanes.push_urgent(Queued {
                parcel,
                origin: Origin::Fire(task),
                glued: false,
            }),
            None => {
                for entry in self.firing.decided(task, false) {
                    self.due.done(&entry);
                }
            }
        }
    }

    /// Leases that live on (renewed meanwhile) are watched again.
    fn expire_answered(&mut self, keys: Vec<LeaseKey>, outcome: &Outcome) {
        if let Outcome::Processed { done } = outcome {
            self.shared.count(Counter::Expired, *done as usize);
        }
        let replica = Arc::clone(&self.shared.replica);
        let resident = replica.resident();
        for key in keys {
            if let Some(lease) = resident.leases.get(&key) {
                let soon = self.now.plus(Millis(50));
                let ends_at = resident.lease_ends_at(lease).max(soon);
                self.expiry.watch(key, lease.fencing_token, ends_at);
            }
        }
    }

    fn grant_answered(
        &mut self,
        claim: u64,
        worker: &WorkerId,
        items: Vec<ReadyItem>,
        outcome: Outcome,
    ) {
        self.grant_landed(worker, items.len());
        let mut granted = Vec::new();
        let results = match outcome {
            Outcome::Granted(results) => results,
            _ => Vec::new(),
        };
        let mut results = results.into_iter();
        let replica = Arc::clone(&self.shared.replica);
        let resident = replica.resident();
        let mut refused = 0;
        for item in items {
            let (queue, tenant) = (item.queue, item.tenant);
            self.dirty.insert(queue);
            match results.next() {
                Some(GrantResult::Granted(one)) => {
                    self.dirty.extend(self.admission.granted(queue, tenant));
                    granted.push(*one);
                }
                Some(GrantResult::Refused { why, .. }) => {
                    refused += 1;
                    let free = self.admission.refused(&resident, self.now, item, Some(why));
                    self.dirty.extend(free);
                }
                None => {
                    let free = self.admission.refused(&resident, self.now, item, None);
                    self.dirty.extend(free);
                }
            }
        }
        drop(resident);
        self.shared.count(Counter::Granted, granted.len());
        self.shared.count(Counter::GrantsRefused, refused);
        self.note_lateness(&granted);
        let Some(waiter) = self.claims.get_mut(claim) else {
            return;
        };
        waiter.granting = false;
        if !granted.is_empty() {
            self.finish(claim, granted, false);
        } else if waiter.ending || waiter.is_gone() {
            self.finish_when_reported(claim);
        } else {
            self.claims.wait(claim);
            self.rerun_deferred(claim);
        }
    }

    /// Claims that repeated the request id of one that got nothing take its place.
    fn rerun_deferred(&mut self, claim: u64) {
        for new in self.deferred.remove(&claim).unwrap_or_default() {
            self.claim(new);
        }
    }

    fn grant_landed(&mut self, worker: &WorkerId, count: usize) {
        if let Some(granting) = self.granting.get_mut(worker) {
            *granting = granting.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX));
            if *granting == 0 {
                self.granting.remove(worker);
            }
        }
    }

    fn note_lateness(&self, granted: &[Granted]) {
        let resident = self.shared.replica.resident();
        let mut board = self.shared.board.lock();
        for one in granted {
            let (lease, execution) = (&one.lease, &one.execution);
            let is_first = lease.attempt == 1 && execution.attempts.is_empty();
            let queue = resident.queues.get(&lease.queue);
            let tenant = resident.tenants.get(&lease.tenant);
            if let (true, Some(queue), Some(tenant)) = (is_first, queue, tenant) {
                board.late(
                    &queue.id,
                    &tenant.id,
                    lease.granted_at.since(execution.due_at),
                );
            }
        }
    }

    fn part_answered(&mut self, group: u64, position: usize, token: u64, outcome: Outcome) {
        let Some(waiting) = self.groups.get_mut(&group) else {
            return;
        };
        if let Some(slot) = waiting.outcomes.get_mut(position)
            && slot.replace((token, outcome)).is_none()
        {
            waiting.left = waiting.left.saturating_sub(1);
        }
        if waiting.left == 0
            && let Some(whole) = self.groups.remove(&group)
        {
            self.group_answered(whole);
        }
    }

    fn group_answered(&mut self, group: Group) {
        let outcomes = group.outcomes.into_iter().flatten();
        match group.reply {
            GroupReply::Submit(reply) => {
                let answers = outcomes.map(|(index, outcome)| Answer { index, outcome });
                let _gone = reply.send(Ok(answers.collect()));
            }
            GroupReply::Report(reply) => {
                let (index, results) = self.results_of(outcomes);
                let reported = Reported {
                    results,
                    drain: false,
                    index,
                };
                let _gone = reply.send(Ok(reported));
            }
            GroupReply::Count(reply) => {
                let done = outcomes.map(|(_, outcome)| match outcome {
                    Outcome::Processed { done } => done,
                    _ => 0,
                });
                let _gone = reply.send(Ok(done.fold(0, u32::saturating_add)));
            }
            GroupReply::Claim(id) => {
                let (_, results) = self.results_of(outcomes);
                let Some(waiter) = self.claims.get_mut(id) else {
                    return;
                };
                waiter.reports = results;
                waiter.reporting = false;
                if waiter.ending || (waiter.is_gone() && !waiter.granting) {
                    self.finish_when_reported(id);
                }
            }
        }
    }

    fn results_of(
        &self,
        outcomes: impl Iterator<Item = (u64, Outcome)>,
    ) -> (u64, Vec<ReportResult>) {
        let (mut index, mut all) = (0, Vec::new());
        for (token, outcome) in outcomes {
            index = token;
            if let Outcome::Reported(results) = outcome {
                all.extend(results);
            }
        }
        let is_lost = |r: &&ReportResult| matches!(r, ReportResult::LeaseLost { .. });
        let lost = all.iter().filter(is_lost).count();
        if lost > 0 {
            self.shared.count(Counter::LeaseLost, lost);
        }
        (index, all)
    }

    // ---- without an outcome -----------------------------------------------------------------------------------

    /// The commands of an entry have no outcome.
    pub(super) fn fail_entry(&mut self, entry: Vec<Queued<Origin>>, why: &Unavailable) {
        for queued in entry {
            self.fail(queued.origin, why);
        }
    }

    /// A command has no outcome: its caller is told why; the leader's own are planned again by whoever leads next.
    pub(super) fn fail(&mut self, origin: Origin, why: &Unavailable) {
        match origin {
            Origin::Part { group, .. } => {
                let Some(group) = self.groups.remove(&group) else {
                    return;
                };
                // A part that was applied makes the fate of the whole unknown to the caller.
                let partly = group.outcomes.iter().any(Option::is_some);
                let why = if partly {
                    Unavailable::Unknown
                } else {
                    why.clone()
                };
                match group.reply {
                    GroupReply::Submit(reply) => drop(reply.send(Err(why))),
                    GroupReply::Report(reply) => drop(reply.send(Err(why))),
                    GroupReply::Count(reply) => drop(reply.send(Err(why))),
                    GroupReply::Claim(id) => self.fail_claim(id, why),
                }
            }
            Origin::Grant {
                claim,
                worker,
                items,
            } => {
                self.grant_landed(&worker, items.len());
                self.fail_claim(claim, why.clone());
            }
            Origin::Renewal => self.renewing = false,
            Origin::Due(_) | Origin::Fire(_) | Origin::Expire(_) | Origin::Nobody => {}
        }
    }

    fn fail_claim(&mut self, id: u64, why: Unavailable) {
        if let Some(waiter) = self.claims.remove(id) {
            let _gone = waiter.reply.send(Err(why));
        }
    }
}
