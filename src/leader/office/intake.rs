//! What comes in: effects of applied entries, calls, results of jobs.

use crate::command::Command;
use crate::command::leases::RevokeLeases;
use crate::command::leases::{ExpireItem, ITEMS_MAX, LeaseCommand, LeaseRef, RevokeCause};
use crate::command::outcome::Effect;
use crate::ids::WorkerId;
use crate::leader::Reported;
use crate::leader::admission::Admission;
use crate::leader::due_index::Page;
use crate::leader::expiry::Expiry;
use crate::leader::figures::Counter;
use crate::leader::inbox::{LeaseName, LinePage, Message};
use crate::leader::office::{Ended, GroupReply, Office, Origin};
use crate::leader::proposer::{Parcel, Queued};
use crate::leader::sweeps::Swept;
use crate::leader::{Answer, inbox::Reply};
use crate::state::resident::Resident;
use std::sync::Arc;

impl Office {
    /// Empties the inbox, effects first.
    pub(super) fn take_mail(&mut self) {
        let mail = self.shared.inbox.take();
        if mail.overflowed {
            self.distrust_everything();
        }
        if !mail.effects.is_empty() {
            self.take_effects(mail.effects);
        }
        for message in mail.messages {
            self.take_message(message);
        }
    }

    /// Effects were lost: what memory knows is read again from the store.
    fn distrust_everything(&mut self) {
        tracing::warn!("effects were lost; reading everything again");
        let replica = Arc::clone(&self.shared.replica);
        let resident = replica.resident();
        self.due.distrust(resident.cluster.due_from);
        self.scans.clear();
        self.admission = Admission::rebuild(&resident);
        self.expiry = Expiry::rebuild(self.now, &resident);
        self.dirty.extend(resident.queues.keys().copied());
        self.next_pause_end = Some(self.now);
        self.shared.count(Counter::Rescans, 1);
    }

    fn take_effects(&mut self, effects: Vec<Effect>) {
        let replica = Arc::clone(&self.shared.replica);
        let resident = replica.resident();
        for effect in effects {
            self.take_effect(&resident, effect);
        }
    }

    fn take_effect(&mut self, resident: &Resident, effect: Effect) {
        match effect {
            Effect::ArmDue(entry) => self.due.arm(entry),
            Effect::DisarmDue(entry) => self.due.disarm(&entry),
            Effect::OfferReady(item) => {
                self.dirty.insert(item.queue);
                self.admission.offer(resident, *item);
            }
            Effect::WithdrawReady {
                queue,
                tenant,
                priority,
                line_at,
                execution,
            } => {
                let order = (9_u8.saturating_sub(priority), line_at, execution);
                self.admission.withdraw(queue, tenant, &order);
            }
            Effect::WatchLease {
                tenant,
                execution,
                fencing_token,
                ends_at,
            } => self
                .expiry
                .watch((execution, tenant), fencing_token, ends_at),
            Effect::ForgetLease {
                tenant,
                queue,
                execution,
                fencing_token,
                worker,
            } => {
                self.expiry.forget(&(execution, tenant), fencing_token);
                self.dirty.extend(self.admission.freed(queue, tenant));
                self.look_again_for(resident, &worker);
            }
            Effect::ReviewAdmission => {
                self.dirty.extend(self.admission.review(resident));
                self.next_pause_end = Some(self.now);
                self.promoting = true;
            }
            // The sink has told the waiters already.
            Effect::AnnounceFinal { .. } => {}
        }
    }

    /// A worker with a bound on slots may take more now: its queues are served again.
    fn look_again_for(&mut self, resident: &Resident, worker: &WorkerId) {
        for id in self.claims.of_worker(worker) {
            let Some(waiter) = self.claims.get(id).filter(|w| w.claim.slots.is_some()) else {
                continue;
            };
            let numbers = waiter
                .claim
                .queues
                .iter()
                .filter_map(|q| resident.queue_numbers.get(q));
            self.dirty.extend(numbers.copied());
        }
    }

    fn take_message(&mut self, message: Message) {
        match message {
            Message::Submit { parcels, reply } => self.submit(parcels, reply),
            Message::Claim(new) => self.claim(*new),
            Message::HangUp(id) => self.hang_up(id),
            Message::Undelivered { worker, leases } => self.give_back(&worker, &leases),
            Message::Report { parcels, reply } => self.report(parcels, reply),
            Message::Settle {
                tenant,
                schedule,
                reply,
            } => self.firing.settle((tenant, schedule), reply),
            Message::CatchUp { until, reply } => self.catching_up.push((until, reply)),
            Message::Drain(worker) => self.end_polls(&worker),
            Message::SignOff { worker, reply } => self.sign_off(&worker, reply),
            Message::DuePage(page) => self.take_due_page(page),
            Message::LinePages(pages) => self.take_line_pages(pages),
            Message::Planned(plotted) => {
                self.plan_jobs = self.plan_jobs.saturating_sub(1);
                for one in plotted {
                    self.take_plot(one);
                }
            }
            Message::Swept(swept) => self.take_sweep(swept),
            Message::Failed(fault) => self.ended = Some(Ended::Unfit(fault.to_string())),
        }
    }

    fn submit(&mut self, parcels: Vec<Parcel>, reply: Reply<Vec<Answer>>) {
        let group = self.new_group(parcels.len(), GroupReply::Submit(reply));
        for (position, parcel) in parcels.into_iter().enumerate() {
            self.lanes.push_api(Queued {
                parcel,
                origin: Origin::Part { group, position },
                glued: false,
            });
        }
    }

    fn report(&mut self, parcels: Vec<Parcel>, reply: Reply<Reported>) {
        let group = self.new_group(parcels.len(), GroupReply::Report(reply));
        self.push_parts(group, parcels);
    }

    pub(super) fn push_parts(&mut self, group: u64, parcels: Vec<Parcel>) {
        for (position, parcel) in parcels.into_iter().enumerate() {
            self.lanes.push_urgent(Queued {
                parcel,
                origin: Origin::Part { group, position },
                glued: false,
            });
        }
    }

    /// Gives leases back that were granted to nobody, no attempt spent.
    pub(super) fn give_back(&mut self, worker: &WorkerId, leases: &[LeaseName]) {
        if leases.is_empty() {
            return;
        }
        tracing::debug!(%worker, count = leases.len(), "leases could not be delivered");
        self.shared.count(Counter::Undelivered, leases.len());
        for command in self.revocations(RevokeCause::Undelivered, leases) {
            self.push_urgent(command, Origin::Nobody);
        }
    }

    /// Commands that end those of `leases` which live.
    fn revocations(&self, cause: RevokeCause, leases: &[LeaseName]) -> Vec<Command> {
        let resident = self.shared.replica.resident();
        let mut items = Vec::new();
        for (tenant, execution, token) in leases {
            let live = resident.lease(*tenant, execution);
            let Some(lease) = live.filter(|lease| lease.fencing_token == *token) else {
                continue;
            };
            items.push(ExpireItem {
                tenant: *tenant,
                lease: LeaseRef {
                    execution: execution.clone(),
                    attempt: lease.attempt,
                    fencing_token: *token,
                },
                draw: self.draw(),
            });
        }
        let revoke = |items: &[ExpireItem]| {
            Command::Lease(LeaseCommand::Revoke(RevokeLeases {
                cause,
                items: items.to_vec(),
            }))
        };
        items.chunks(ITEMS_MAX).map(revoke).collect()
    }

    fn sign_off(&mut self, worker: &WorkerId, reply: Reply<u32>) {
        self.end_polls(worker);
        let names: Vec<LeaseName> = {
            let resident = self.shared.replica.resident();
            let held = resident.held.get(worker).into_iter().flatten();
            let name = |key| {
                let lease = resident.leases.get(key)?;
                Some((lease.tenant, lease.execution.clone(), lease.fencing_token))
            };
            held.filter_map(name).collect()
        };
        let commands = self.revocations(RevokeCause::SignOff, &names);
        if commands.is_empty() {
            let _gone = reply.send(Ok(0));
            return;
        }
        let group = self.new_group(commands.len(), GroupReply::Count(reply));
        for (position, command) in commands.into_iter().enumerate() {
            self.push_urgent(command, Origin::Part { group, position });
        }
    }

    /// A number for the jitter of one backoff.
    #[allow(clippy::cast_possible_truncation, reason = "any 32 bits of it will do")]
    pub(super) fn draw(&self) -> u32 {
        self.shared.runtime.random_u64() as u32
    }

    fn take_due_page(&mut self, page: Page) {
        self.reading = false;
        let last = page.entries.last().map(|e| e.key.at);
        for entry in page.entries {
            self.due.arm(entry);
        }
        let rest = page.rest.filter(|rest| !self.due.is_spilled(rest, last));
        self.scans.extend(rest);
    }

    fn take_line_pages(&mut self, pages: Vec<LinePage>) {
        self.page_jobs = self.page_jobs.saturating_sub(1);
        for page in pages {
            self.dirty.insert(page.queue);
            self.admission
                .page(page.queue, page.tenant, page.items, page.whole);
        }
    }

    fn take_sweep(&mut self, swept: Swept) {
        self.sweeping = false;
        for entry in swept.found {
            self.due.arm(entry);
        }
        for command in swept.commands {
            self.push_urgent(Command::Admin(command), Origin::Nobody);
        }
        if swept.retention {
            self.retention_resume = swept.resume;
            if self.retention_resume.is_some() {
                self.next_retention = tokio::time::Instant::now();
            }
        }
    }
}
