//! Fairness, limits, rates and pauses, against a memory that the tests change as apply would.

use super::*;
use crate::ids::{ExecutionId, Kind, QueueId, TenantId};
use crate::model::policy::PauseInfo;
use crate::model::queue::{KeyState, Queue, QueueOrder, QueueSpec};
use crate::model::tenant::{Tenant, TenantSpec};
use crate::store::MemStore;

const Q: QueueNo = QueueNo(7);

fn now() -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000)
}

fn pause() -> Option<PauseInfo> {
    Some(PauseInfo {
        by: "ops".into(),
        reason: None,
        since: now(),
        until: None,
    })
}

struct Bench {
    resident: Resident,
    admission: Admission,
    made: u64,
}

impl Bench {
    fn new(weights: &[u32]) -> Self {
        let mut resident = Resident::load(&MemStore::default()).expect("an empty store loads");
        let queue = Queue {
            id: QueueId::new("q").expect("a good name"),
            spec: QueueSpec::default(),
            paused: None,
            created_at: now(),
            revision: crate::ids::Revision::default(),
            rate_tat_ns: 0,
        };
        resident.insert_queue(Q, queue);
        for (no, weight) in (2_u32..).zip(weights) {
            let tenant = Tenant {
                id: TenantId::new(&format!("t{no}")).expect("a good name"),
                spec: TenantSpec {
                    weight: *weight,
                    ..TenantSpec::default()
                },
                paused: None,
                created_at: now(),
                revision: crate::ids::Revision::default(),
                rate_tat_ns: 0,
            };
            resident.insert_tenant(TenantNo(no), tenant);
        }
        let admission = Admission::rebuild(&resident);
        Self {
            resident,
            admission,
            made: 0,
        }
    }

    fn offer(&mut self, tenant: u32, count: u64) {
        for _ in 0..count {
            self.offer_as(tenant, 5, "k", None);
        }
    }

    fn offer_as(&mut self, tenant: u32, priority: u8, kind: &str, key: Option<&str>) {
        self.made += 1;
        let item = ReadyItem {
            queue: Q,
            tenant: TenantNo(tenant),
            priority,
            line_at: now().plus(Millis(self.made)),
            execution: ExecutionId::new(&format!("e{}", self.made)).expect("a good name"),
            hint: LineValue {
                kind: Kind::new(kind).expect("a good kind"),
                payload_len: 100,
                concurrency_key: key.map(str::to_owned),
                requires: std::collections::BTreeMap::new(),
            },
        };
        self.admission.offer(&self.resident, item);
    }

    fn pick(&mut self, max: usize) -> Vec<ReadyItem> {
        self.pick_at(now(), max, 1 << 20)
    }

    fn pick_at(&mut self, at: Timestamp, max: usize, bytes: u64) -> Vec<ReadyItem> {
        let filter = Filter::default();
        let mut want = Want {
            filter: &filter,
            max,
            bytes,
            first: true,
        };
        self.admission.pick(&self.resident, at, Q, &mut want)
    }

    /// What apply would do with grants: count them.
    fn grant(&mut self, items: &[ReadyItem]) {
        for item in items {
            let usage = self.resident.usage.entry(item.tenant).or_default();
            usage.leased += 1;
            self.admission.granted(Q, item.tenant);
        }
    }

    fn end(&mut self, tenant: u32) -> BTreeSet<QueueNo> {
        if let Some(usage) = self.resident.usage.get_mut(&TenantNo(tenant)) {
            usage.leased -= 1;
        }
        self.admission.freed(Q, TenantNo(tenant))
    }
}

fn shares(items: &[ReadyItem]) -> BTreeMap<u32, usize> {
    let mut shares = BTreeMap::new();
    for item in items {
        *shares.entry(item.tenant.0).or_default() += 1;
    }
    shares
}

#[test]
fn leases_held_are_shared_by_weight() {
    let mut bench = Bench::new(&[1, 3]);
    bench.offer(2, 100);
    bench.offer(3, 100);
    let picked = bench.pick(40);
    assert_eq!(shares(&picked), [(2, 10), (3, 30)].into());
}

#[test]
fn short_leases_are_shared_by_weight_too() {
    let mut bench = Bench::new(&[1, 4]);
    bench.offer(2, 200);
    bench.offer(3, 200);
    let mut all = Vec::new();
    for _ in 0..100 {
        let picked = bench.pick(1);
        bench.grant(&picked);
        for item in &picked {
            bench.end(item.tenant.0);
        }
        all.extend(picked);
    }
    assert_eq!(shares(&all), [(2, 20), (3, 80)].into());
}

#[test]
fn a_tenant_with_little_work_is_not_delayed_by_one_with_much() {
    let mut bench = Bench::new(&[1, 1]);
    bench.offer(2, 1_000);
    let busy = bench.pick(50);
    bench.grant(&busy);
    bench.offer(3, 10);
    assert_eq!(shares(&bench.pick(10)), [(3, 10)].into());
}

#[test]
fn a_tenant_that_comes_back_cannot_claim_the_past() {
    let mut bench = Bench::new(&[1, 1]);
    bench.offer(2, 600);
    for _ in 0..500 {
        let picked = bench.pick(1);
        bench.grant(&picked);
        bench.end(2);
    }
    bench.offer(3, 100);
    let mut all = Vec::new();
    for _ in 0..40 {
        let picked = bench.pick(1);
        bench.grant(&picked);
        bench.end(picked[0].tenant.0);
        all.extend(picked);
    }
    let shares = shares(&all);
    assert!(shares[&2] >= 19 && shares[&3] >= 19, "{shares:?}");
}

#[test]
fn inside_a_tenant_priority_then_due_time_decide() {
    let mut bench = Bench::new(&[1]);
    bench.offer_as(2, 5, "k", None);
    bench.offer_as(2, 9, "k", None);
    bench.offer_as(2, 5, "k", None);
    let order: Vec<String> = bench
        .pick(3)
        .iter()
        .map(|i| i.execution.as_str().to_owned())
        .collect();
    assert_eq!(order, ["e2", "e1", "e3"]);
}

#[test]
fn priority_first_puts_priority_outside_of_fairness() {
    let mut bench = Bench::new(&[1, 1]);
    if let Some(queue) = bench.resident.queues.get_mut(&Q) {
        queue.spec.order = QueueOrder::PriorityFirst;
    }
    bench.offer_as(2, 1, "k", None);
    for _ in 0..3 {
        bench.offer_as(3, 8, "k", None);
    }
    bench.admission.review(&bench.resident);
    assert_eq!(shares(&bench.pick(3)), [(3, 3)].into());
}

#[test]
fn a_full_tenant_has_no_seat_until_a_lease_of_it_ends() {
    let mut bench = Bench::new(&[1, 1]);
    if let Some(tenant) = bench.resident.tenants.get_mut(&TenantNo(2)) {
        tenant.spec.max_leased = Some(2);
    }
    bench.offer(2, 10);
    let picked = bench.pick(10);
    assert_eq!(picked.len(), 2, "grants under way count");
    bench.grant(&picked);
    assert!(bench.pick(10).is_empty());
    assert!(bench.end(2).contains(&Q));
    assert_eq!(bench.pick(10).len(), 1);
}

#[test]
fn a_full_queue_gives_nothing_to_anybody() {
    let mut bench = Bench::new(&[1, 1]);
    if let Some(queue) = bench.resident.queues.get_mut(&Q) {
        queue.spec.max_leased = Some(3);
    }
    bench.offer(2, 10);
    bench.offer(3, 10);
    assert_eq!(bench.pick(10).len(), 3);
    assert!(bench.pick(10).is_empty());
}

#[test]
fn a_rate_spaces_grants_and_says_when_to_look_again() {
    let mut bench = Bench::new(&[1]);
    if let Some(queue) = bench.resident.queues.get_mut(&Q) {
        queue.spec.rate = Some(RateLimit {
            count: 10,
            per: Millis::secs(1),
            burst: 3,
        });
    }
    bench.offer(2, 10);
    assert_eq!(bench.pick(10).len(), 3);
    let wake = bench.admission.next_wake().expect("a time to look again");
    assert_eq!(wake, now().plus(Millis(100)));
    assert!(bench.admission.wake(wake).contains(&Q));
}

#[test]
fn pauses_hold_exactly_what_they_name() {
    let mut bench = Bench::new(&[1, 1]);
    bench.offer(2, 2);
    bench.offer_as(3, 5, "mail", None);
    bench.offer_as(3, 5, "k", None);
    if let Some(tenant) = bench.resident.tenants.get_mut(&TenantNo(2)) {
        tenant.paused = pause();
    }
    let kind = Kind::new("mail").expect("a good kind");
    let info = pause().expect("a pause");
    bench.resident.cluster.paused_kinds.insert(kind, info);
    let picked = bench.pick(10);
    assert_eq!(picked.len(), 1);
    assert_eq!(picked[0].hint.kind.as_str(), "k");
    bench.resident.cluster.paused_kinds.clear();
    if let Some(tenant) = bench.resident.tenants.get_mut(&TenantNo(2)) {
        tenant.paused = None;
    }
    assert!(bench.admission.review(&bench.resident).contains(&Q));
    assert_eq!(bench.pick(10).len(), 3);
}

#[test]
fn the_rate_of_a_key_holds_its_items_and_lets_others_pass() {
    let mut bench = Bench::new(&[1]);
    let tat_ns = (u64::try_from(now().millis()).expect("after 1970") + 400) * 1_000_000;
    let state = KeyState {
        rate: Some(RateLimit {
            count: 1,
            per: Millis(400),
            burst: 1,
        }),
        rate_tat_ns: tat_ns,
        ..KeyState::default()
    };
    bench
        .resident
        .keys
        .insert((TenantNo(2), "slow".into()), state);
    bench.offer_as(2, 9, "k", Some("slow"));
    bench.offer_as(2, 5, "k", None);
    assert_eq!(bench.pick(10).len(), 1);
    let wake = bench.admission.next_wake().expect("a time to look again");
    assert_eq!(wake, now().plus(Millis(400)));
    bench.admission.wake(wake);
    assert_eq!(bench.pick_at(wake, 10, 1 << 20).len(), 1);
}

#[test]
fn the_byte_budget_stops_a_claim_but_never_its_first_lease() {
    let mut bench = Bench::new(&[1]);
    bench.offer(2, 10);
    assert_eq!(bench.pick_at(now(), 10, 250).len(), 2);
    assert_eq!(bench.pick_at(now(), 10, 0).len(), 1);
}

#[test]
fn a_refused_item_goes_back_unless_it_has_left_its_line() {
    let mut bench = Bench::new(&[1]);
    bench.offer(2, 2);
    let picked = bench.pick(2);
    for (item, why) in picked.into_iter().zip([None, Some(GrantRefusal::NotReady)]) {
        bench.admission.refused(&bench.resident, now(), item, why);
    }
    let again = bench.pick(2);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].execution.as_str(), "e1");
    bench.grant(&again);
    bench.end(2);
    assert_eq!(
        bench.admission.size(),
        (0, 0),
        "nothing is kept of an empty line"
    );
}

#[test]
fn an_unforeseen_refusal_is_not_tried_in_a_hot_loop() {
    let mut bench = Bench::new(&[1]);
    bench.offer(2, 1);
    let item = bench.pick(1).remove(0);
    let why = Some(GrantRefusal::TenantFull);
    bench.admission.refused(&bench.resident, now(), item, why);
    assert!(bench.pick(1).is_empty());
    let wake = bench.admission.next_wake().expect("a time to look again");
    bench.admission.wake(wake);
    assert_eq!(bench.pick_at(wake, 1, 1 << 20).len(), 1);
}
