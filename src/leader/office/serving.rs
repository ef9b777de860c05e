//! Claims: finding work for a worker, and a worker for work.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::command::Command;
use crate::command::Envelope;
use crate::command::leases::{GrantItem, GrantLeases, ITEMS_MAX, LeaseCommand};
use crate::command::outcome::{Granted, LineValue, ReadyItem};
use crate::fault::Fault;
use crate::ids::{ExecutionId, QueueNo, TenantNo, WorkerId};
use crate::leader::admission::Want;
use crate::leader::claims::{NewClaim, Waiter};
use crate::leader::inbox::{LeaseName, LinePage, Message};
use crate::leader::lines::{Order, PAGE};
use crate::leader::office::{GroupReply, Office, Origin, no_leases};
use crate::state::reader::Found;
use crate::state::resident::Resident;
use crate::store::{Direction, Family, KeyRange, View, keys, value};
use crate::time::Millis;

/// Line pages being read at once, in jobs.
const PAGE_JOBS: usize = 4;
/// Lines that one job reads.
const LINES_OF_JOB: usize = 16;
/// Payload bytes of one answer at most; the HTTP body has a bound too.
const ANSWER_BYTES: u64 = 6 * 1024 * 1024;
/// How long a claim that would not wait does so while the lines of its queues are being opened.
const OPENING: Duration = Duration::from_millis(250);
/// When to ask again after an empty answer to a claim that would not wait.
const POLL_AFTER: Millis = Millis(500);

/// What came of trying to serve a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tried {
    /// A grant is under way.
    Granting,
    /// Nothing in its queues is for it.
    Nothing,
    /// Its worker holds as much as it may.
    NoSlot,
}

impl Office {
    /// A claim arrives.
    pub(super) fn claim(&mut self, new: NewClaim) {
        let id = new.id;
        let worker = new.claim.worker.clone();
        if let Some(request) = &new.claim.request_id
            && let Some(earlier) = self.claims.of_request(&worker, request)
        {
            if self.claims.get(earlier).is_some_and(|w| w.granting) {
                // It gets the same leases, once they are granted.
                self.deferred.entry(earlier).or_default().push(new);
                return;
            }
            self.finish(earlier, Vec::new(), false);
        }
        let reports = self.claims.admit(new);
        let reporting = !reports.is_empty();
        if reporting {
            let group = self.new_group(reports.len(), GroupReply::Claim(id));
            self.push_parts(group, reports);
        }
        let draining = self.shared.workers.lock().is_draining(&worker);
        if self.has_replay(id) || draining {
            self.finish_when_reported(id);
            return;
        }
        let replica = Arc::clone(&self.shared.replica);
        let resident = replica.resident();
        if self.try_grant(&resident, id, reporting) == Tried::Granting {
            return;
        }
        let opening = self.note_hunger(&resident, id);
        drop(resident);
        let Some(waiter) = self.claims.get(id) else {
            return;
        };
        let now = Instant::now();
        if waiter.deadline > now {
            self.claims.wait(id);
        } else if opening {
            self.claims.postpone(id, now + OPENING);
            self.claims.wait(id);
        } else {
            self.finish_when_reported(id);
        }
    }

    /// Whether leases of an earlier claim with the same request id live.
    fn has_replay(&self, id: u64) -> bool {
        let Some((worker, request)) = self.request_of(id) else {
            return false;
        };
        self.shared
            .replica
            .resident()
            .claims
            .contains_key(&(worker, request))
    }

    fn request_of(&self, id: u64) -> Option<(WorkerId, String)> {
        let claim = &self.claims.get(id)?.claim;
        Some((claim.worker.clone(), claim.request_id.clone()?))
    }

    /// Notes the queues of a claim whose lines must be read further. Answers whether there are any.
    fn note_hunger(&mut self, resident: &Resident, id: u64) -> bool {
        let Some(waiter) = self.claims.get(id) else {
            return false;
        };
        let mut opening = false;
        for queue in &waiter.claim.queues {
            if let Some(no) = resident.queue_numbers.get(queue)
                && self.admission.is_hungry(*no)
            {
                opening = true;
                self.hungry.insert(*no);
            }
        }
        opening
    }

    /// Serves the waiters of every queue in which something changed.
    pub(super) fn serve(&mut self) {
        for id in self.claims.overdue(Instant::now()) {
            self.finish_when_reported(id);
        }
        self.dirty.extend(self.admission.wake(self.now));
        if self.dirty.is_empty() {
            return;
        }
        let replica = Arc::clone(&self.shared.replica);
        let resident = replica.resident();
        for queue in std::mem::take(&mut self.dirty) {
            self.serve_queue(&resident, queue);
        }
    }

    fn serve_queue(&mut self, resident: &Resident, no: QueueNo) {
        let Some(row) = resident.queues.get(&no) else {
            return;
        };
        let mut asked: BTreeSet<u64> = self.claims.firsts(&row.id).into_iter().collect();
        while let Some(id) = asked.pop_first() {
            if !self.admission.has_work(no) {
                break;
            }
            let Some(waiter) = self.claims.get(id) else {
                continue;
            };
            let behind = self.claims.behind(&row.id, id, &waiter.filter);
            if waiter.is_gone() {
                self.claims.remove(id);
                asked.extend(behind);
                continue;
            }
            match self.try_grant(resident, id, false) {
                Tried::Granting | Tried::NoSlot => asked.extend(behind),
                // Those behind it take the same.
                Tried::Nothing => {}
            }
        }
        if self.claims.is_awaited(&row.id) || self.admission.has_work(no) {
            self.hungry.insert(no);
        }
    }

    /// Picks work for a claim and puts the grant into the lane. `glued`: into the entry of its reports.
    fn try_grant(&mut self, resident: &Resident, id: u64, glued: bool) -> Tried {
        let Some(waiter) = self.claims.get(id) else {
            return Tried::Nothing;
        };
        let filter = Arc::clone(&waiter.filter);
        let Some(max) = self.room_of(resident, waiter) else {
            return Tried::NoSlot;
        };
        let queues = waiter.claim.queues.clone();
        let max_bytes = waiter.claim.max_bytes;
        let mut want = Want {
            filter: &filter,
            max,
            bytes: max_bytes.min(ANSWER_BYTES),
            first: true,
        };
        let mut items = Vec::new();
        for queue in &queues {
            if let Some(no) = resident.queue_numbers.get(queue) {
                items.extend(self.admission.pick(resident, self.now, *no, &mut want));
            }
            if want.max == 0 {
                break;
            }
        }
        if items.is_empty() {
            return Tried::Nothing;
        }
        self.claims.leave(id);
        self.push_grant(id, items, glued);
        Tried::Granting
    }

    fn push_grant(&mut self, id: u64, items: Vec<ReadyItem>, glued: bool) {
        let Some(waiter) = self.claims.get_mut(id) else {
            return;
        };
        waiter.granting = true;
        let claim = &waiter.claim;
        let worker = claim.worker.clone();
        let grant = GrantLeases {
            worker: worker.clone(),
            request_id: claim.request_id.clone(),
            duration: claim.lease,
            start_confirmation: claim.start_confirmation,
            items: items
                .iter()
                .map(|item| GrantItem {
                    queue: item.queue,
                    tenant: item.tenant,
                    execution: item.execution.clone(),
                })
                .collect(),
        };
        let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
        *self.granting.entry(worker.clone()).or_default() += count;
        let envelope = Envelope::leader(Command::Lease(LeaseCommand::Grant(grant)));
        let origin = Origin::Grant {
            claim: id,
            worker,
            items,
        };
        self.push_envelope(&envelope, origin, glued);
    }

    /// How many leases a claim may get now; `None`: its worker has no slot.
    fn room_of(&self, resident: &Resident, waiter: &Waiter) -> Option<usize> {
        let claim = &waiter.claim;
        let max = usize::try_from(claim.max)
            .unwrap_or(ITEMS_MAX)
            .clamp(1, ITEMS_MAX);
        let Some(slots) = claim.slots else {
            return Some(max);
        };
        let held = resident.held.get(&claim.worker).map_or(0, BTreeSet::len);
        let granting = self.granting.get(&claim.worker).copied().unwrap_or(0);
        // What the claim itself reports as over is so before the grant: both are in one entry.
        let is_live = |(execution, token): &&(ExecutionId, u64)| {
            resident
                .leases_on(execution)
                .any(|lease| lease.fencing_token == *token)
        };
        let over = match waiter.reporting {
            true => waiter.over.iter().filter(is_live).count(),
            false => 0,
        };
        let slots = usize::try_from(slots).unwrap_or(usize::MAX);
        let taken = held.saturating_sub(over) + usize::try_from(granting).unwrap_or(usize::MAX);
        let free = slots.saturating_sub(taken).min(max);
        (free > 0).then_some(free)
    }

    /// Answers a claim without new work as soon as nothing of it is under way; with the leases of an earlier claim
    /// with the same request id, if they live.
    pub(super) fn finish_when_reported(&mut self, id: u64) {
        self.claims.leave(id);
        let Some(waiter) = self.claims.get_mut(id) else {
            return;
        };
        if waiter.reporting || waiter.granting {
            waiter.ending = true;
            return;
        }
        let leases = self.replay(id);
        let replayed = !leases.is_empty();
        self.finish(id, leases, replayed);
    }

    /// The live leases that an earlier claim with the same request id got.
    fn replay(&self, id: u64) -> Vec<Granted> {
        let Some(name) = self.request_of(id) else {
            return Vec::new();
        };
        let reader = self.shared.replica.read();
        let mut leases = Vec::new();
        for key in reader.claims.get(&name).into_iter().flatten() {
            match reader.execution(key.1, &key.0) {
                Ok(Some(Found::Open(execution, Some(lease)))) => leases.push(Granted {
                    lease: *lease,
                    execution: *execution,
                }),
                Ok(_) => {}
                Err(fault) => tracing::error!(execution = %key.0, "cannot be read: {fault}"),
            }
        }
        leases
    }

    /// Answers a claim. What cannot be delivered is given back.
    pub(super) fn finish(&mut self, id: u64, leases: Vec<Granted>, replayed: bool) {
        let Some(waiter) = self.claims.remove(id) else {
            return;
        };
        let worker = waiter.claim.worker.clone();
        let took_office_at = self.shared.replica.resident().cluster.took_office_at;
        let drain = self.shared.workers.lock().is_draining(&worker);
        let is_short = waiter.claim.wait == Millis::ZERO && leases.is_empty();
        let poll_after = if is_short { POLL_AFTER } else { Millis::ZERO };
        let mut claimed = no_leases(self.now, drain, poll_after);
        claimed.deadlines = leases
            .iter()
            .map(|g| g.lease.effective_deadline(took_office_at))
            .collect();
        claimed.leases = leases;
        claimed.reports = waiter.reports;
        claimed.replayed = replayed;
        let unsent = waiter.reply.send(Ok(claimed)).err();
        let followers = self.deferred.remove(&id).unwrap_or_default();
        if let (Some(Ok(claimed)), true) = (unsent, followers.is_empty()) {
            let names: Vec<LeaseName> = claimed.leases.iter().map(name_of).collect();
            self.give_back(&worker, &names);
        }
        for new in followers {
            self.claim(new);
        }
    }

    /// The caller of a claim is gone.
    pub(super) fn hang_up(&mut self, id: u64) {
        let busy = self
            .claims
            .get(id)
            .is_some_and(|w| w.granting || w.reporting);
        if busy {
            // Its grant is given back when it is answered.
            self.claims.leave(id);
        } else {
            self.claims.remove(id);
        }
    }

    /// Ends the polls of a worker that is told to claim no more.
    pub(super) fn end_polls(&mut self, worker: &WorkerId) {
        for id in self.claims.of_worker(worker) {
            self.finish_when_reported(id);
        }
    }

    /// Starts reading the lines that waiters need.
    pub(super) fn read_lines(&mut self) {
        while self.page_jobs < PAGE_JOBS {
            let Some(queue) = self.hungry.pop_first() else {
                return;
            };
            let wanted = self.admission.pages_wanted(queue, LINES_OF_JOB);
            if wanted.is_empty() {
                continue;
            }
            if self.admission.is_hungry(queue) {
                self.hungry.insert(queue);
            }
            self.page_jobs += 1;
            let replica = Arc::clone(&self.shared.replica);
            self.job(move || {
                let (view, _, _) = replica.view();
                let pages: Result<Vec<LinePage>, Fault> = wanted
                    .into_iter()
                    .map(|(tenant, after)| read_line(view.as_ref(), queue, tenant, after))
                    .collect();
                pages.map(Message::LinePages)
            });
        }
    }

    /// Runs `work` away from the async threads and puts its result into the inbox.
    pub(super) fn job(&self, work: impl FnOnce() -> Result<Message, Fault> + Send + 'static) {
        let inbox = self.shared.inbox.clone();
        self.shared.runtime.spawn_blocking(Box::new(move || {
            let message = work().unwrap_or_else(Message::Failed);
            let _term_over = inbox.push(message);
        }));
    }
}

fn name_of(granted: &Granted) -> LeaseName {
    let lease = &granted.lease;
    (lease.tenant, lease.execution.clone(), lease.fencing_token)
}

/// Reads a page of a stored line. Blocks on the disk.
fn read_line(
    view: &dyn View,
    queue: QueueNo,
    tenant: TenantNo,
    after: Option<Order>,
) -> Result<LinePage, Fault> {
    let prefix = keys::ready_line(queue, tenant);
    let mut range = KeyRange::prefix(&prefix);
    if let Some((rank, at, id)) = after {
        range.from = keys::ready(queue, tenant, 9_u8.saturating_sub(rank), at, &id);
        range.from.push(0);
    }
    let mut items: Vec<(Order, LineValue)> = Vec::new();
    let (mut whole, mut fault) = (true, None);
    view.scan(
        Family::Lines,
        &range,
        Direction::Forward,
        &mut |key, bytes| {
            if items.len() >= PAGE {
                whole = false;
                return ControlFlow::Break(());
            }
            let order = key.get(prefix.len()..).and_then(keys::decode_line_order);
            let decoded = order
                .ok_or_else(|| Fault::corrupt("a key of a ready line"))
                .and_then(|order| Ok((order, value::decode::<LineValue>(bytes)?)));
            match decoded {
                Ok(((priority, at, id), hint)) => {
                    items.push(((9_u8.saturating_sub(priority), at, id), hint));
                    ControlFlow::Continue(())
                }
                Err(e) => {
                    fault = Some(e);
                    ControlFlow::Break(())
                }
            }
        },
    )?;
    if let Some(fault) = fault {
        return Err(fault);
    }
    Ok(LinePage {
        queue,
        tenant,
        items,
        whole,
    })
}
