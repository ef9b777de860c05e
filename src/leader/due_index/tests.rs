//! Nothing of the index is missed, whatever is written while it is read.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::store::due::{DueKey, DueKind};
use crate::store::{MemStore, StateStore, WriteBatch};

fn t0() -> Timestamp {
    Timestamp::from_millis(1_800_000_007_123)
}

fn entry(inserted: Timestamp, due_at: Timestamp, tenant: u32, id: u64) -> DueEntry {
    DueEntry {
        key: DueKey::new(inserted, due_at),
        tenant: TenantNo(tenant),
        kind: DueKind::Execution,
        id: format!("e{id}"),
    }
}

fn put(store: &MemStore, entry: &DueEntry) {
    let mut batch = WriteBatch::default();
    batch.put(entry.key.level.family(), entry.encode(), Vec::new());
    store.write(batch).expect("memory takes it");
}

fn delete(store: &MemStore, entry: &DueEntry) {
    let mut batch = WriteBatch::default();
    batch.delete(entry.key.level.family(), entry.encode());
    store.write(batch).expect("memory takes it");
}

fn read_all(store: &MemStore, scan: Scan) -> Vec<DueEntry> {
    let mut all = Vec::new();
    let mut next = Some(scan);
    while let Some(scan) = next {
        let page = scan.read(store.snapshot().as_ref()).expect("readable");
        all.extend(page.entries);
        next = page.rest;
    }
    all
}

proptest! {
    /// A scan of any span finds exactly the entries of that span.
    #[test]
    fn a_scan_finds_exactly_its_span(
        entries in proptest::collection::vec((0_u64..20_000_000, 1_u32..200), 1..80),
        from in 0_u64..20_000_000,
        len in 0_u64..10_000_000,
    ) {
        let store = MemStore::default();
        let mut all = BTreeSet::new();
        for (id, (ahead, tenant)) in (0_u64..).zip(entries) {
            let entry = entry(t0(), t0().plus(Millis(ahead)), tenant, id);
            put(&store, &entry);
            all.insert(entry);
        }
        let (from, to) = (t0().plus(Millis(from)), t0().plus(Millis(from + len)));
        for level in Level::ALL {
            let found: BTreeSet<_> =
                read_all(&store, Scan::new(level, from, to)).into_iter().collect();
            let inside = |e: &&DueEntry| e.key.level == level && e.key.at >= from && e.key.at < to;
            let wanted: BTreeSet<_> = all.iter().filter(inside).cloned().collect();
            prop_assert_eq!(&found, &wanted);
            let tenant = TenantNo(7);
            let scan = Scan::of_tenant(level, tenant, from, to);
            let found: BTreeSet<_> = read_all(&store, scan).into_iter().collect();
            let wanted: BTreeSet<_> =
                wanted.into_iter().filter(|e| e.tenant == tenant).collect();
            prop_assert_eq!(found, wanted);
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// An entry is written, so far ahead, of this tenant.
    Write(u64, u32),
    /// One of the entries is deleted before its time.
    Delete(usize),
    /// Time passes; due entries are handed out and done.
    Pass(u64),
    /// The reader takes a step.
    Read,
    /// An effect is lost on the way to the leader: it distrusts what it has.
    Lose(u64, u32),
}

fn op() -> impl Strategy<Value = Op> {
    let ahead = prop_oneof![0_u64..5_000, 0_u64..400_000, 0_u64..8_000_000];
    prop_oneof![
        6 => (ahead.clone(), 1_u32..4).prop_map(|(a, t)| Op::Write(a, t)),
        1 => any::<usize>().prop_map(Op::Delete),
        3 => (0_u64..60_000).prop_map(Op::Pass),
        6 => Just(Op::Read),
        1 => (ahead, 1_u32..4).prop_map(|(a, t)| Op::Lose(a, t)),
    ]
}

/// A leader's reader over a store, one page at a time.
struct Bench {
    store: MemStore,
    live: BTreeSet<DueEntry>,
    index: DueIndex,
    now: Timestamp,
    scans: Vec<Scan>,
    handed: BTreeSet<DueEntry>,
    made: u64,
}

impl Bench {
    fn new(tenant_max: usize) -> Self {
        Self {
            store: MemStore::default(),
            live: BTreeSet::new(),
            index: DueIndex::new(t0(), [Timestamp::MIN; 4]).with_tenant_max(tenant_max),
            now: t0(),
            scans: Vec::new(),
            handed: BTreeSet::new(),
            made: 0,
        }
    }

    fn write(&mut self, ahead: u64, tenant: u32) -> DueEntry {
        self.made += 1;
        let entry = entry(self.now, self.now.plus(Millis(ahead)), tenant, self.made);
        put(&self.store, &entry);
        self.live.insert(entry.clone());
        entry
    }

    fn read(&mut self) -> bool {
        if self.scans.is_empty() && self.index.is_low(self.now) {
            self.scans = self.index.begin_fill(self.now);
        }
        if self.scans.is_empty() {
            self.scans.extend(self.index.begin_refill());
        }
        let Some(scan) = self.scans.pop() else {
            return false;
        };
        let page = scan.read(self.store.snapshot().as_ref()).expect("readable");
        let last = page.entries.last().map(|e| e.key.at);
        for entry in page.entries {
            self.index.arm(entry);
        }
        let rest = page.rest.filter(|rest| !self.index.is_spilled(rest, last));
        self.scans.extend(rest);
        true
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now.plus(Millis(ms));
        for entry in self.index.advance(self.now) {
            assert!(entry.key.at <= self.now, "never early");
            if self.live.remove(&*entry) {
                assert!(self.handed.insert((*entry).clone()), "handed out once");
                delete(&self.store, &entry);
            }
            self.index.done(&entry);
        }
    }
}

proptest! {
    #[test]
    fn everything_due_is_handed_out_once(
        ops in proptest::collection::vec(op(), 1..150),
        tenant_max in 1_usize..12,
    ) {
        let mut bench = Bench::new(tenant_max);
        for op in ops {
            match op {
                Op::Write(ahead, tenant) => {
                    let entry = bench.write(ahead, tenant);
                    bench.index.arm(entry);
                }
                Op::Delete(n) => {
                    let len = bench.live.len().max(1);
                    if let Some(entry) = bench.live.iter().nth(n % len).cloned() {
                        bench.live.remove(&entry);
                        delete(&bench.store, &entry);
                        bench.index.disarm(&entry);
                    }
                }
                Op::Pass(ms) => bench.pass(ms),
                Op::Read => {
                    bench.read();
                }
                Op::Lose(ahead, tenant) => {
                    bench.write(ahead, tenant);
                    bench.index.distrust([Timestamp::MIN; 4]);
                    bench.scans.clear();
                }
            }
            for held in bench.index.tenants.values() {
                prop_assert!(held.len() <= tenant_max);
            }
            for level in Level::ALL {
                let first = bench.live.iter().find(|e| e.key.level == level);
                if let (Some(first), true) = (first, bench.scans.is_empty()) {
                    prop_assert!(bench.index.floor(level) <= first.key.at);
                }
            }
        }
        // Quiet: read and work everything off; what is due must all have been handed out.
        for _ in 0..2_000 {
            let busy = bench.read();
            bench.pass(10);
            if !busy && !bench.index.is_low(bench.now) && bench.index.spill_count() == 0 {
                break;
            }
        }
        let now = bench.now.minus(Millis(20));
        let missed = bench.live.iter().find(|e| e.key.at < now);
        prop_assert_eq!(missed, None);
    }
}

#[test]
fn an_entry_written_again_under_the_same_key_is_handed_out_again() {
    let mut bench = Bench::new(100);
    while bench.read() {}
    let entry = bench.write(0, 1);
    bench.index.arm(entry.clone());
    assert_eq!(bench.index.advance(t0().plus(Millis(10))).len(), 1);
    bench.index.arm(entry.clone());
    bench.index.done(&entry);
    assert_eq!(bench.index.advance(t0().plus(Millis(20))).len(), 1);
    bench.index.done(&entry);
    assert!(bench.index.is_empty());
}

#[test]
fn a_hundred_thousand_entries_of_one_tenant_are_held_in_bounded_memory() {
    let mut bench = Bench::new(1_000);
    for _ in 0..20_000 {
        bench.write(5_000, 1);
    }
    let other = bench.write(5_000, 2);
    while bench.read() {}
    assert!(bench.index.len() <= 1_001);
    bench.pass(5_010);
    assert!(
        bench.handed.contains(&other),
        "another tenant is not delayed"
    );
    while !bench.live.is_empty() {
        assert!(bench.read(), "the rest is read on");
        bench.pass(10);
        assert!(bench.index.len() <= 1_001);
    }
    assert_eq!(bench.handed.len(), 20_001);
}
