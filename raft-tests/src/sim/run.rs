//! One run: start, faults, recovery, checks.
//!
//! Purpose: turn a seed into a [`SeedReport`].
//! Callers: `main`, tests.
//! Invariants: the run leaves nothing behind on its thread, so that the next seed does not depend on it.

use std::cell::RefCell;
use std::sync::{Arc, Once};
use std::time::Duration;

use openraft_rt::AsyncRuntime;
use punctual::raft::{Consensus, ConsensusStatus, Role};
use tokio::time::{Instant, sleep};

use super::chaos;
use super::faults::plan;
use super::ledger::Counters;
use super::options::{Options, Overrides};
use super::runtime::{SimRuntime, enter, leave, resume};
use super::seed::Seed;
use super::trace::Trace;
use super::world::{Workload, World};

/// What one seed led to.
pub struct SeedReport {
    /// The seed.
    pub seed: u64,
    /// Hash of everything that happened and of the order of polls.
    pub hash: u64,
    /// Broken rules; empty for a good run.
    pub violations: Vec<String>,
    /// What happened, in numbers.
    pub counters: Counters,
    /// The trace as text, if asked for.
    pub lines: Vec<String>,
}

/// Makes the workload of a run.
pub type MakeWorkload<'a> = &'a dyn Fn(Seed, &Options) -> Arc<dyn Workload>;

thread_local! {
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Tokio swallows the panics of tasks; this keeps them for the report.
fn note_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            let text = info.to_string();
            PANICS.with(|panics| panics.borrow_mut().push(text));
        }));
    });
}

/// Runs one seed to its end.
#[must_use]
pub fn run_seed(seed: Seed, overrides: &Overrides, make: MakeWorkload<'_>) -> SeedReport {
    note_panics();
    PANICS.with(|panics| panics.borrow_mut().clear());
    let options = Options::draw(seed, overrides);
    let mut runtime = SimRuntime::new(1);
    let workload = make(seed, &options);
    let (world, ended) = runtime.block_on(async {
        let trace = Trace::new(options.verbose);
        enter(seed, trace.clone());
        let world = World::new(seed, options, trace, workload);
        let ended = life_of(&world).await;
        (world, ended)
    });
    let hash = world.trace().hash();
    let mut violations = world.observer().finish();
    violations.extend(ended);
    for panic in PANICS.with(|panics| panics.borrow().clone()) {
        violations.push(format!("panic: {panic}"));
    }
    let counters = world.counters().clone();
    let (sent, lost) = world.inner.network.counts();
    counters.add("messages", sent);
    counters.add("messages_lost", lost);
    counters.add("virtual_ms", world.trace().now_ms_at_end());
    let lines = world.trace().lines();
    // Nodes first: dropping them may still wake tasks of this runtime.
    for node in world.running() {
        world.crash(node);
    }
    drop(world);
    drop(runtime);
    leave();
    SeedReport {
        seed: seed.0,
        hash,
        violations,
        counters,
        lines,
    }
}

async fn life_of(world: &World) -> Vec<String> {
    let founders: Vec<u64> = world.inner.founders.keys().copied().collect();
    for id in founders {
        world.add_slot(id);
        world.start(id).await;
    }
    let clients = world.inner.workload.clients(world.clone());
    let clients = super::runtime::spawn_in(super::runtime::Scope::HARNESS, clients);
    let planned = plan(world.inner.seed, world.options());
    chaos::drive(world, planned).await;
    let chaos_ms = world.options().chaos_ms;
    let rest = chaos_ms.saturating_sub(world.trace().now_ms());
    sleep(Duration::from_millis(rest)).await;
    heal(world).await;
    world.end_chaos();
    let recovery = Duration::from_millis(world.options().recovery_ms);
    let mut wrong = Vec::new();
    if tokio::time::timeout(recovery, clients).await.is_err() {
        wrong.push("the clients did not end after recovery".to_owned());
    }
    match converge(world, recovery).await {
        Ok(()) => wrong.extend(world.inner.workload.check(world.clone()).await),
        Err(why) => wrong.push(why),
    }
    world.trace().stop();
    wrong
}

/// Ends every fault and brings every node back.
async fn heal(world: &World) {
    world.trace().event("heal", 0, &[]);
    world.inner.network.heal_for_good();
    let (ids, gone) = {
        let mut nodes = world.inner.nodes.lock();
        for slot in nodes.values_mut() {
            slot.disk.heal();
            slot.clock.heal();
            if let Some(running) = &slot.running {
                resume(running.scope);
            }
        }
        let ids: Vec<u64> = nodes.keys().copied().collect();
        let gone: Vec<u64> = nodes
            .iter()
            .filter(|(_, slot)| slot.gone)
            .map(|(id, _)| *id)
            .collect();
        (ids, gone)
    };
    for id in ids {
        world.start(id).await;
    }
    // A destroyed node whose removal was interrupted would count as a dead voter for ever.
    for id in gone {
        let world = world.clone();
        world.clone().spawn(async move {
            let _removed = chaos::remove(&world, id).await;
        });
    }
}

/// Waits until one node leads and every member runs and has applied the leader's whole log.
async fn converge(world: &World, within: Duration) -> Result<(), String> {
    let give_up = Instant::now() + within;
    loop {
        let statuses: Vec<ConsensusStatus> = world
            .running()
            .into_iter()
            .filter_map(|id| world.raft(id).map(|raft| raft.status()))
            .collect();
        let problem = match unsettled(world, &statuses) {
            None => return Ok(()),
            Some(problem) => problem,
        };
        if Instant::now() >= give_up {
            let states: Vec<String> = statuses.iter().map(brief).collect();
            return Err(format!("no recovery: {problem}; {}", states.join("; ")));
        }
        sleep(Duration::from_millis(100)).await;
    }
}

fn brief(s: &ConsensusStatus) -> String {
    format!(
        "n{} term {} {:?} leader {:?} last {:?} committed {:?} applied {:?} snapshot {:?} purged {:?} voters {:?}",
        s.id,
        s.term,
        s.role,
        s.leader,
        s.last_log,
        s.committed,
        s.applied,
        s.snapshot,
        s.purged,
        s.members.voters.keys().collect::<Vec<_>>()
    )
}

fn unsettled(world: &World, statuses: &[ConsensusStatus]) -> Option<String> {
    let leaders: Vec<&ConsensusStatus> =
        statuses.iter().filter(|s| s.role == Role::Leader).collect();
    let [leader] = leaders.as_slice() else {
        return Some(format!("{} leaders", leaders.len()));
    };
    let changing = world
        .inner
        .changing_members
        .load(std::sync::atomic::Ordering::SeqCst);
    if leader.members.joint || changing {
        return Some("members are changing".to_owned());
    }
    for id in leader.members.voters.keys() {
        let Some(status) = statuses.iter().find(|s| s.id == *id) else {
            return Some(format!("voter {id} does not run"));
        };
        if status.applied != leader.last_log || !status.recovered {
            return Some(format!("node {id} has not applied everything"));
        }
    }
    None
}
