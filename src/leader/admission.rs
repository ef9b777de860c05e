//! Who is next: across tenants, inside limits, around what is paused.
//!
//! Purpose: pick ready items for a worker so that apply will grant them. Callers: the office.
//! Invariants:
//! 1. Across tenants of a queue: least leased work per weight first; ties by virtual time (each pick costs 1 / weight,
//!    which is deficit round robin with a quantum of one). With `priority_first`, priority is outer.
//! 2. Blocked work is parked as a whole: a tenant or queue that cannot take a lease now has no seat until something
//!    frees it or its time comes; nothing is scanned past.
//! 3. Grants under way count as leases, so that one limit is not spent twice. Apply checks everything again.

mod gates;

use std::collections::{BTreeMap, BTreeSet};

use crate::command::outcome::{GrantRefusal, LineValue, ReadyItem};
use crate::ids::{QueueNo, TenantNo};
use crate::leader::admission::gates::{
    Gate, held_by, is_priority_first, pause_gate, rate_gate, weight,
};
use crate::leader::lines::{Filter, HeldBy, Line, Order};
use crate::model::policy::RateLimit;
use crate::state::resident::Resident;
use crate::time::{Millis, Timestamp};

/// Cost of one lease at weight 1, in the units of ratios and virtual time.
const UNIT: u64 = 1 << 20;
/// How long to leave alone what apply refused for a reason that the leader did not foresee.
const SURPRISE: Millis = Millis(100);

/// Place in the order of a queue's tenants: rank, leased per weight, virtual time, tenant.
type Seat = (u8, u64, u64, TenantNo);

#[derive(Debug, Default)]
struct Sharer {
    line: Line,
    seat: Option<Seat>,
    leased: u64,
    spent: u64,
    weight: u64,
    gated: bool,
}

#[derive(Debug, Default)]
struct QueueLines {
    tenants: BTreeMap<TenantNo, Sharer>,
    seats: BTreeSet<Seat>,
    priority_first: bool,
    granting: u64,
    spent: u64,
    shut_until: Option<Timestamp>,
    /// Tenants whose line wants a page.
    hungry: BTreeSet<TenantNo>,
    /// Lines being read.
    reading: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Wake {
    Queue(QueueNo),
    Tenant(TenantNo),
    Holds(QueueNo, TenantNo),
}

/// What a claim asks of one queue.
#[derive(Debug)]
pub struct Want<'a> {
    /// What the worker takes.
    pub filter: &'a Filter,
    /// Leases still wanted.
    pub max: usize,
    /// Payload bytes still allowed.
    pub bytes: u64,
    /// Nothing was picked for the claim yet: the first lease is given whatever its size.
    pub first: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Admission {
    queues: BTreeMap<QueueNo, QueueLines>,
    tenant_granting: BTreeMap<TenantNo, u64>,
    /// Queues in which a tenant has no seat because of its own gate.
    gated: BTreeMap<TenantNo, BTreeSet<QueueNo>>,
    tenant_shut_until: BTreeMap<TenantNo, Timestamp>,
    wakes: BTreeSet<(Timestamp, Wake)>,
}

impl Admission {
    /// Opens every line that has something ready, by the counters. Nothing is read yet.
    #[must_use]
    pub fn rebuild(resident: &Resident) -> Self {
        let mut new = Self::default();
        for ((queue, tenant), counts) in &resident.counts {
            if counts.ready > 0 {
                new.open(resident, *queue, *tenant, Line::default());
            }
        }
        new
    }

    fn open(&mut self, resident: &Resident, queue: QueueNo, tenant: TenantNo, line: Line) {
        let lines = self.queues.entry(queue).or_insert_with(|| QueueLines {
            priority_first: is_priority_first(resident, queue),
            ..QueueLines::default()
        });
        let counts = resident.counts.get(&(queue, tenant));
        let sharer = Sharer {
            line,
            leased: counts.map_or(0, |c| c.leased),
            spent: lines.spent,
            weight: weight(resident, queue, tenant),
            ..Sharer::default()
        };
        if sharer.line.wants_page() {
            lines.hungry.insert(tenant);
        }
        lines.tenants.insert(tenant, sharer);
    }

    /// An item became ready.
    pub fn offer(&mut self, resident: &Resident, item: ReadyItem) {
        let (queue, tenant) = (item.queue, item.tenant);
        let known = self
            .queues
            .get(&queue)
            .is_some_and(|q| q.tenants.contains_key(&tenant));
        if !known {
            // The line was empty, or it would be open: its window is whole.
            self.open(resident, queue, tenant, Line::empty());
        }
        self.with(queue, tenant, |sharer| {
            sharer.line.offer(order_of(&item), item.hint);
        });
    }

    /// An item left its line.
    pub fn withdraw(&mut self, queue: QueueNo, tenant: TenantNo, order: &Order) {
        self.with(queue, tenant, |sharer| sharer.line.withdraw(order));
    }

    /// Picks up to `want.max` items of `queue`. What it picks counts as under way until [`Admission::granted`] or
    /// [`Admission::refused`].
    pub fn pick(
        &mut self,
        resident: &Resident,
        now: Timestamp,
        queue: QueueNo,
        want: &mut Want<'_>,
    ) -> Vec<ReadyItem> {
        let mut picked = Vec::new();
        let mut after: Option<Seat> = None;
        while want.max > 0 {
            match self.queue_gate(resident, now, queue) {
                Gate::Open => {}
                Gate::Shut => break,
                Gate::Until(at) => {
                    self.wakes.insert((at, Wake::Queue(queue)));
                    break;
                }
            }
            let Some(seat) = self.next_seat(queue, after) else {
                break;
            };
            let tenant = seat.3;
            match self.tenant_gate(resident, now, queue, tenant) {
                Gate::Open => {}
                gate => {
                    self.unseat(queue, tenant, gate);
                    continue;
                }
            }
            match self.take_of(resident, now, (queue, tenant), want) {
                Taken::Item(item) => picked.push(item),
                Taken::Held => {}
                Taken::Nothing => after = Some(seat),
                Taken::TooLarge => break,
            }
        }
        picked
    }

    fn next_seat(&self, queue: QueueNo, after: Option<Seat>) -> Option<Seat> {
        let seats = &self.queues.get(&queue)?.seats;
        match after {
            None => seats.first().copied(),
            Some(seat) => {
                let from = (std::ops::Bound::Excluded(seat), std::ops::Bound::Unbounded);
                seats.range(from).next().copied()
            }
        }
    }

    fn take_of(
        &mut self,
        resident: &Resident,
        now: Timestamp,
        (queue, tenant): (QueueNo, TenantNo),
        want: &mut Want<'_>,
    ) -> Taken {
        let mut taken = Taken::Nothing;
        let mut wake = None;
        self.with(queue, tenant, |sharer| {
            let Some((order, value)) = sharer.line.find(want.filter) else {
                sharer.line.look_deeper();
                return;
            };
            let order = order.clone();
            if let Some((by, until)) = held_by(resident, now, tenant, value) {
                wake = until;
                sharer.line.hold(by, &order);
                taken = Taken::Held;
                return;
            }
            let bytes = u64::from(value.payload_len);
            if bytes > want.bytes && !want.first {
                taken = Taken::TooLarge;
                return;
            }
            let Some(hint) = sharer.line.take(&order) else {
                return;
            };
            want.bytes = want.bytes.saturating_sub(bytes);
            want.first = false;
            want.max -= 1;
            sharer.leased = sharer.leased.saturating_add(1);
            sharer.spent = sharer.spent.saturating_add(UNIT / sharer.weight.max(1));
            taken = Taken::Item(item_of(queue, tenant, order, hint));
        });
        if let Some(at) = wake {
            self.wakes.insert((at, Wake::Holds(queue, tenant)));
        }
        if let (Taken::Item(_), Some(lines)) = (&taken, self.queues.get_mut(&queue)) {
            lines.granting += 1;
            // Virtual time of the queue: a line that comes back starts here and cannot claim the past.
            let spent = lines.tenants.get(&tenant).map_or(0, |s| s.spent);
            lines.spent = lines.spent.max(spent.saturating_sub(UNIT));
            *self.tenant_granting.entry(tenant).or_default() += 1;
        }
        taken
    }

    /// A picked item was granted. Answers the queues that may serve again.
    pub fn granted(&mut self, queue: QueueNo, tenant: TenantNo) -> BTreeSet<QueueNo> {
        self.settle_one(queue, tenant)
    }

    /// A picked item was not granted; it goes back to its line unless it has left it. Answers the queues that may serve
    /// again.
    pub fn refused(
        &mut self,
        resident: &Resident,
        now: Timestamp,
        item: ReadyItem,
        why: Option<GrantRefusal>,
    ) -> BTreeSet<QueueNo> {
        let (queue, tenant) = (item.queue, item.tenant);
        let mut queues = self.settle_one(queue, tenant);
        queues.insert(queue);
        let gone = matches!(why, Some(GrantRefusal::NotReady | GrantRefusal::KeyFull));
        let key = item.hint.concurrency_key.clone();
        let order = order_of(&item);
        self.with(queue, tenant, |sharer| {
            sharer.leased = sharer.leased.saturating_sub(1);
            if !gone {
                sharer.line.put_back(order.clone(), item.hint);
            }
        });
        let soon = now.plus(SURPRISE);
        match why {
            None | Some(GrantRefusal::NotReady | GrantRefusal::KeyFull) => {}
            Some(GrantRefusal::QueueFull) => self.shut_queue(queue, soon),
            Some(GrantRefusal::TenantFull) => self.shut_tenant(queue, tenant, soon),
            Some(GrantRefusal::NotAllowed | GrantRefusal::Paused) => {
                self.shut_tenant(queue, tenant, soon);
            }
            Some(GrantRefusal::RateLimited { until }) => {
                let until = until.max(now.plus(Millis(1)));
                let has_rate = |limit: Option<RateLimit>| limit.is_some();
                if resident
                    .queues
                    .get(&queue)
                    .is_some_and(|q| has_rate(q.spec.rate))
                {
                    self.shut_queue(queue, until);
                } else if resident
                    .tenants
                    .get(&tenant)
                    .is_some_and(|t| has_rate(t.spec.rate))
                {
                    self.shut_tenant(queue, tenant, until);
                } else if let Some(key) = key {
                    self.with(queue, tenant, |s| s.line.hold(HeldBy::Key(key), &order));
                    self.wakes.insert((until, Wake::Holds(queue, tenant)));
                }
            }
        }
        queues
    }

    fn settle_one(&mut self, queue: QueueNo, tenant: TenantNo) -> BTreeSet<QueueNo> {
        if let Some(lines) = self.queues.get_mut(&queue) {
            lines.granting = lines.granting.saturating_sub(1);
        }
        if let Some(granting) = self.tenant_granting.get_mut(&tenant) {
            *granting = granting.saturating_sub(1);
            if *granting == 0 {
                self.tenant_granting.remove(&tenant);
            }
        }
        // Between apply and this call the grant counted twice: whoever was shut out by that gets another look.
        self.free_tenant(tenant)
    }

    /// A lease ended. Answers the queues that may serve again.
    pub fn freed(&mut self, queue: QueueNo, tenant: TenantNo) -> BTreeSet<QueueNo> {
        self.with(queue, tenant, |s| s.leased = s.leased.saturating_sub(1));
        let mut queues = self.free_tenant(tenant);
        queues.insert(queue);
        queues
    }

    /// Limits, weights, pauses or queues changed: looks again at everything. Answers all queues with work.
    pub fn review(&mut self, resident: &Resident) -> BTreeSet<QueueNo> {
        self.gated.clear();
        self.tenant_shut_until.clear();
        self.wakes.clear();
        for (queue, lines) in &mut self.queues {
            lines.shut_until = None;
            lines.priority_first = is_priority_first(resident, *queue);
            lines.seats.clear();
            for (tenant, sharer) in &mut lines.tenants {
                sharer.gated = false;
                sharer.seat = None;
                sharer.weight = weight(resident, *queue, *tenant);
                sharer.line.release_all();
                sharer.take_seat(*tenant, lines.priority_first, &mut lines.seats);
            }
        }
        self.queues.keys().copied().collect()
    }

    /// Opens what was shut until `now`. Answers the queues that may serve again.
    pub fn wake(&mut self, now: Timestamp) -> BTreeSet<QueueNo> {
        let mut queues = BTreeSet::new();
        while self.wakes.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, wake)) = self.wakes.pop_first() else {
                break;
            };
            match wake {
                Wake::Queue(queue) => {
                    queues.insert(queue);
                }
                Wake::Tenant(tenant) => queues.extend(self.free_tenant(tenant)),
                Wake::Holds(queue, tenant) => {
                    self.with(queue, tenant, |s| s.line.release_all());
                    queues.insert(queue);
                }
            }
        }
        queues
    }

    /// When to call [`Admission::wake`] next.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        self.wakes.first().map(|(at, _)| *at)
    }

    /// Lines of `queue` that want a page, each with the item to read after; their notes begin now.
    pub fn pages_wanted(&mut self, queue: QueueNo, max: usize) -> Vec<(TenantNo, Option<Order>)> {
        let Some(lines) = self.queues.get_mut(&queue) else {
            return Vec::new();
        };
        let mut wanted = Vec::new();
        while wanted.len() < max {
            let Some(tenant) = lines.hungry.pop_first() else {
                break;
            };
            let sharer = lines.tenants.get_mut(&tenant);
            if let Some(sharer) = sharer.filter(|s| s.line.wants_page()) {
                wanted.push((tenant, sharer.line.begin_page()));
                lines.reading += 1;
            }
        }
        wanted
    }

    /// Whether lines of `queue` want a page, or are being read.
    #[must_use]
    pub fn is_hungry(&self, queue: QueueNo) -> bool {
        self.queues
            .get(&queue)
            .is_some_and(|q| !q.hungry.is_empty() || q.reading > 0)
    }

    /// Merges a page.
    pub fn page(
        &mut self,
        queue: QueueNo,
        tenant: TenantNo,
        page: Vec<(Order, LineValue)>,
        whole: bool,
    ) {
        if let Some(lines) = self.queues.get_mut(&queue) {
            lines.reading = lines.reading.saturating_sub(1);
        }
        self.with(queue, tenant, |sharer| sharer.line.end_page(page, whole));
    }

    /// Whether `queue` has a tenant with a seat.
    #[must_use]
    pub fn has_work(&self, queue: QueueNo) -> bool {
        self.queues.get(&queue).is_some_and(|q| !q.seats.is_empty())
    }

    /// Items, and lines, in memory.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        let lines = self.queues.values().flat_map(|q| q.tenants.values());
        lines.fold((0, 0), |(items, count), s| {
            (items + s.line.len(), count + 1)
        })
    }

    // ---- seats and gates --------------------------------------------------------------------------------------

    /// Changes a line and gives it the seat that follows; forgets it when nothing of it is left.
    fn with(&mut self, queue: QueueNo, tenant: TenantNo, change: impl FnOnce(&mut Sharer)) {
        let Some(lines) = self.queues.get_mut(&queue) else {
            return;
        };
        let Some(sharer) = lines.tenants.get_mut(&tenant) else {
            return;
        };
        change(sharer);
        sharer.take_seat(tenant, lines.priority_first, &mut lines.seats);
        if sharer.line.wants_page() {
            lines.hungry.insert(tenant);
        }
        let unused = sharer.line.is_idle() && !sharer.gated && lines.granting == 0;
        if unused && sharer.leased == 0 {
            lines.tenants.remove(&tenant);
        }
    }

    fn unseat(&mut self, queue: QueueNo, tenant: TenantNo, gate: Gate) {
        self.with(queue, tenant, |sharer| sharer.gated = true);
        self.gated.entry(tenant).or_default().insert(queue);
        if let Gate::Until(at) = gate {
            self.wakes.insert((at, Wake::Tenant(tenant)));
        }
    }

    fn free_tenant(&mut self, tenant: TenantNo) -> BTreeSet<QueueNo> {
        let queues = self.gated.remove(&tenant).unwrap_or_default();
        for queue in &queues {
            self.with(*queue, tenant, |sharer| sharer.gated = false);
        }
        queues
    }

    fn shut_queue(&mut self, queue: QueueNo, until: Timestamp) {
        if let Some(lines) = self.queues.get_mut(&queue) {
            lines.shut_until = Some(until);
        }
        self.wakes.insert((until, Wake::Queue(queue)));
    }

    fn shut_tenant(&mut self, queue: QueueNo, tenant: TenantNo, until: Timestamp) {
        self.tenant_shut_until.insert(tenant, until);
        self.unseat(queue, tenant, Gate::Until(until));
    }

    fn queue_gate(&mut self, resident: &Resident, now: Timestamp, queue: QueueNo) -> Gate {
        let Some(lines) = self.queues.get_mut(&queue) else {
            return Gate::Shut;
        };
        if let Some(until) = lines.shut_until {
            if until > now {
                return Gate::Until(until);
            }
            lines.shut_until = None;
        }
        let Some(row) = resident.queues.get(&queue) else {
            return Gate::Shut;
        };
        for pause in [resident.cluster.paused.as_ref(), row.paused.as_ref()] {
            match pause_gate(pause, now) {
                Gate::Open => {}
                shut => return shut,
            }
        }
        let leased = resident.queue_leased(queue).saturating_add(lines.granting);
        if row.spec.max_leased.is_some_and(|max| leased >= max) {
            return Gate::Shut;
        }
        rate_gate(row.spec.rate, row.rate_tat_ns, lines.granting, now)
    }

    fn tenant_gate(
        &mut self,
        resident: &Resident,
        now: Timestamp,
        queue: QueueNo,
        tenant: TenantNo,
    ) -> Gate {
        if let Some(until) = self.tenant_shut_until.get(&tenant).copied() {
            if until > now {
                return Gate::Until(until);
            }
            self.tenant_shut_until.remove(&tenant);
        }
        let (Some(row), Some(queue)) = (resident.tenants.get(&tenant), resident.queues.get(&queue))
        else {
            return Gate::Shut;
        };
        let allowed = queue.spec.allowed_tenants.as_ref();
        if allowed.is_some_and(|a| !a.contains(&row.id)) {
            return Gate::Shut;
        }
        match pause_gate(row.paused.as_ref(), now) {
            Gate::Open => {}
            shut => return shut,
        }
        let granting = self.tenant_granting.get(&tenant).copied().unwrap_or(0);
        let leased = resident.usage.get(&tenant).map_or(0, |u| u.leased);
        let full = |max| leased.saturating_add(granting) >= max;
        if row.spec.max_leased.is_some_and(full) {
            return Gate::Shut;
        }
        rate_gate(row.spec.rate, row.rate_tat_ns, granting, now)
    }
}

enum Taken {
    Item(ReadyItem),
    Held,
    Nothing,
    TooLarge,
}

impl Sharer {
    fn take_seat(&mut self, tenant: TenantNo, priority_first: bool, seats: &mut BTreeSet<Seat>) {
        let rank = self.line.head_rank().filter(|_| !self.gated);
        let seat = rank.map(|rank| {
            let outer = if priority_first { rank } else { 0 };
            let ratio = self.leased.saturating_mul(UNIT) / self.weight.max(1);
            (outer, ratio, self.spent, tenant)
        });
        if seat == self.seat {
            return;
        }
        if let Some(old) = self.seat.take() {
            seats.remove(&old);
        }
        if let Some(new) = seat {
            seats.insert(new);
        }
        self.seat = seat;
    }
}

/// Where an item stands in its line.
#[must_use]
pub fn order_of(item: &ReadyItem) -> Order {
    let rank = 9_u8.saturating_sub(item.priority);
    (rank, item.line_at, item.execution.clone())
}

fn item_of(queue: QueueNo, tenant: TenantNo, order: Order, hint: LineValue) -> ReadyItem {
    ReadyItem {
        queue,
        tenant,
        priority: 9_u8.saturating_sub(order.0),
        line_at: order.1,
        execution: order.2,
        hint,
    }
}

#[cfg(test)]
mod tests;
