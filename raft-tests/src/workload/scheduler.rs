//! The whole scheduler under faults: real state machine, leader loop, schedules, submissions and workers.
//!
//! Purpose: check the promises of the product on top of those of Raft. Callers: `main`.
//! Parts: `clients` (what people and workers do), `witness` (what goes through the log, and the rules it must keep).
//! Invariants checked besides those of [`crate::sim::observe`]:
//! 1. An occurrence is created once; created and skipped ones add up to what the calendar names.
//! 2. An execution has one live lease at a time, its tokens grow, and none ends by deadline before its deadline.
//! 3. A completion is accepted under one token only; a stale one is refused.
//! 4. An acknowledged submission exists in the end and is final once the workers had time.
//! 5. Every node's whole state is sound (`store verify`) and equal to the others'.

mod clients;
mod witness;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use punctual::calendar::{Compiled, ZoneData};
use punctual::fault::Fault;
use punctual::ids::{ScheduleId, TenantNo};
use punctual::leader::peer_clocks::MeasuredClocks;
use punctual::leader::rules::ZoneReleases;
use punctual::leader::{Leader, LeaderParts, LeaderSettings};
use punctual::raft::{Consensus, ForwardHandler};
use punctual::state::machine::{Applied, CommittedEntry, EntryAnswer, Machine};
use punctual::state::replica::Replica;
use punctual::state::verify;
use punctual::store::{Checkpoint, Direction, Family, KeyRange, MemStore, Staging, View};
use punctual::time::{Millis, Timestamp};
use rand::RngExt;
use rand::rngs::SmallRng;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::sim::{NodeContext, Workload, World};
use clients::Promises;
use witness::Witness;

/// Entries between two flushes.
const FLUSH_EVERY: u64 = 60;

/// A node in its present life.
#[derive(Clone)]
struct Member {
    replica: Arc<Replica>,
    leader: Option<Arc<Leader>>,
}

/// What outlives every node.
#[derive(Default)]
struct Shared {
    stores: Mutex<BTreeMap<u64, Arc<MemStore>>>,
    members: Mutex<BTreeMap<u64, Member>>,
    witness: Witness,
    promises: Promises,
}

/// The workload.
#[derive(Clone, Default)]
pub struct SchedulerWorkload {
    shared: Arc<Shared>,
}

impl Workload for SchedulerWorkload {
    fn open(&self, node: &NodeContext) -> Result<Arc<dyn Machine>, Fault> {
        let id = node.scope.node;
        let store = Arc::clone(self.shared.stores.lock().entry(id).or_default());
        let replica = Arc::new(Replica::open(store)?);
        let member = Member {
            replica: Arc::clone(&replica),
            leader: None,
        };
        self.shared.members.lock().insert(id, member);
        Ok(Arc::new(Witnessed {
            replica,
            shared: Arc::clone(&self.shared),
            world: node.world.clone(),
            since_flush: AtomicU64::new(0),
        }))
    }

    fn crash(&self, node: u64, rng: &mut SmallRng) {
        let member = self.shared.members.lock().remove(&node);
        drop(member);
        if let Some(store) = self.shared.stores.lock().get_mut(&node) {
            let keep = rng.random_range(0..=store.unflushed());
            *store = Arc::new(store.crash(keep));
        }
    }

    fn wipe(&self, node: u64) {
        self.shared.stores.lock().remove(&node);
    }

    fn node_task(&self, node: NodeContext) -> Option<BoxFuture<'static, ()>> {
        let shared = Arc::clone(&self.shared);
        Some(Box::pin(async move {
            let replica = {
                let members = shared.members.lock();
                members
                    .get(&node.scope.node)
                    .map(|m| Arc::clone(&m.replica))
            };
            let (Some(raft), Some(replica)) = (node.raft(), replica) else {
                return std::future::pending().await;
            };
            let settings = LeaderSettings::new(node.scope.node);
            let consensus: Arc<dyn Consensus> = Arc::new(raft);
            let peers = MeasuredClocks::new(
                Arc::clone(&consensus),
                node.rt.clock(),
                settings.clock_skew_max,
            );
            let leader = Leader::start(LeaderParts {
                consensus,
                replica,
                runtime: Arc::clone(&node.rt),
                zones: ZoneReleases::bundled(),
                peers: Arc::new(peers),
                settings,
            });
            if let Some(member) = shared.members.lock().get_mut(&node.scope.node) {
                member.leader = Some(leader);
            }
            std::future::pending::<()>().await;
        }))
    }

    fn forwards(&self, _: &NodeContext) -> Option<Arc<dyn ForwardHandler>> {
        None
    }

    fn clients(&self, world: World) -> BoxFuture<'static, ()> {
        Box::pin(clients::run(self.clone(), world))
    }

    fn check(&self, world: World) -> BoxFuture<'static, Vec<String>> {
        let mut wrong = self.shared.witness.finish();
        let mut images = BTreeMap::new();
        for id in world.running() {
            let Some(member) = self.member(id) else {
                wrong.push(format!("node {id} has no state"));
                continue;
            };
            let (view, _, token) = member.replica.view();
            match verify::verify(view.as_ref()) {
                Ok(report) if report.is_sound() => {}
                Ok(report) => {
                    let first = report.problems.first();
                    wrong.push(format!(
                        "node {id}: {} problems, first {first:?}",
                        report.problem_count
                    ));
                }
                Err(fault) => wrong.push(format!("node {id}: {fault}")),
            }
            match image(view.as_ref()) {
                Ok(image) => {
                    let (first, other) = *images.entry(token).or_insert((id, image));
                    if other != image {
                        wrong.push(format!("nodes {first} and {id} differ at {token}"));
                    }
                }
                Err(fault) => wrong.push(format!("node {id}: {fault}")),
            }
        }
        match world.leader().and_then(|id| self.member(id)) {
            Some(member) => {
                wrong.extend(self.shared.promises.broken(&member.replica));
                wrong.extend(uncounted(&member.replica, &self.shared.promises));
                wrong.extend(unchained(&member.replica));
            }
            None => wrong.push("nobody leads in the end".to_owned()),
        }
        Box::pin(async move { wrong })
    }
}

impl SchedulerWorkload {
    fn member(&self, node: u64) -> Option<Member> {
        self.shared.members.lock().get(&node).cloned()
    }
}

/// Hash of everything stored.
fn image(view: &dyn View) -> Result<u64, Fault> {
    let mut hash = 0;
    for (no, family) in (0_u64..).zip(Family::ALL) {
        let everything = KeyRange {
            from: Vec::new(),
            to: None,
        };
        view.scan(
            family,
            &everything,
            Direction::Forward,
            &mut |key, value| {
                hash = xxh3_64_with_seed(key, hash ^ no);
                hash = xxh3_64_with_seed(value, hash);
                ControlFlow::Continue(())
            },
        )?;
    }
    Ok(hash)
}

/// Names of the schedules that nobody edits: their occurrences must add up.
fn steady(n: u64) -> String {
    format!("steady-{n}")
}

/// How many steady schedules there are.
const STEADY: u64 = 3;

/// Steady schedules whose created and skipped occurrences are not those that the calendar names.
fn uncounted(replica: &Replica, promises: &Promises) -> Vec<String> {
    let mut wrong = Vec::new();
    for n in 0..STEADY {
        let name = steady(n);
        let Ok(id) = ScheduleId::new(&name) else {
            continue;
        };
        let found = replica.read().schedule(TenantNo::DEFAULT, &id);
        let Ok(Some((schedule, status))) = found else {
            wrong.push(format!("schedule {name} is gone"));
            continue;
        };
        let plans = promises.plans(&name);
        let identity = format!("default/{name}");
        match Compiled::new(&schedule.spec.rule, &ZoneData::bundled(), &identity) {
            Ok(rule) => {
                let upto = status.cursor.plus(Millis(1));
                let all = |cursor: &Timestamp| rule.count(cursor.plus(Millis(1)), upto, 1 << 40).n;
                let skipped: u64 = status.skipped.values().sum();
                let decided = status.created_count + skipped;
                // An answer may have been lost, so any of the plans may be the one that counts.
                if !plans.iter().any(|cursor| all(cursor) == decided) {
                    let wanted: Vec<u64> = plans.iter().map(all).collect();
                    wrong.push(format!(
                        "{name}: {decided} occurrences decided, named {wanted:?}"
                    ));
                }
            }
            Err(errors) => wrong.push(format!("{name} does not compile: {errors:?}")),
        }
    }
    wrong
}

/// The schedule that counts from the ends of its executions.
const CHAINED: &str = "chained";
/// How long after each end its next occurrence is.
const CHAIN_DELAY: Millis = Millis::secs(1);

/// What is wrong with it: it had two open at once, or an occurrence came too soon after the end before it.
fn unchained(replica: &Replica) -> Option<String> {
    let id = ScheduleId::new(CHAINED).ok()?;
    let found = replica.read().schedule(TenantNo::DEFAULT, &id);
    let Ok(Some((_, status))) = found else {
        return Some(format!("schedule {CHAINED} is gone"));
    };
    let ended = status.succeeded + status.dead_lettered + status.cancelled + status.expired;
    let open = status.open.len() as u64;
    if open > 1 || ended + open != status.created_count {
        return Some(format!(
            "{CHAINED}: {open} open, {ended} ended, of {}",
            status.created_count
        ));
    }
    let mut links = status.recent.windows(2);
    let broken = links.find(|link| {
        let (before, after) = (&link[0], &link[1]);
        let earliest = before.finished_at.plus(CHAIN_DELAY);
        after.nominal_at.is_none_or(|at| at < earliest)
    });
    broken.map(|link| format!("{CHAINED}: too soon after the end before: {link:?}"))
}

/// A replica that shows the witness what it applies.
struct Witnessed {
    replica: Arc<Replica>,
    shared: Arc<Shared>,
    world: World,
    since_flush: AtomicU64,
}

impl Machine for Witnessed {
    fn applied(&self) -> Applied {
        self.replica.applied()
    }

    fn durable_index(&self) -> u64 {
        self.replica.durable_index()
    }

    fn apply(&self, entries: Vec<CommittedEntry>) -> Result<Vec<EntryAnswer>, Fault> {
        let mut answers = Vec::with_capacity(entries.len());
        for entry in entries {
            let before = self.shared.witness.before(&self.replica, &entry);
            let mut answer = self.replica.apply(vec![entry])?;
            let answer = answer.pop().flatten();
            if let Some(before) = before {
                let witness = &self.shared.witness;
                witness.after(
                    &self.replica,
                    &before,
                    answer.as_ref(),
                    self.world.counters(),
                );
            }
            answers.push(answer);
        }
        if self.since_flush.fetch_add(1, Ordering::Relaxed) + 1 >= FLUSH_EVERY {
            self.flush()?;
        }
        Ok(answers)
    }

    fn flush(&self) -> Result<u64, Fault> {
        self.since_flush.store(0, Ordering::Relaxed);
        self.replica.flush()
    }

    fn checkpoint(&self) -> Result<(Applied, Arc<dyn Checkpoint>), Fault> {
        self.replica.checkpoint()
    }

    fn stage(&self) -> Result<Box<dyn Staging>, Fault> {
        self.replica.stage()
    }

    fn install(&self, staged: Box<dyn Staging>) -> Result<Applied, Fault> {
        self.replica.install(staged)
    }
}
