//! Carries out planned faults.
//!
//! Purpose: resolve targets when their time comes, apply the fault, and undo it when its time is over.
//! Callers: [`super::run`].
//! Invariants: undoing is scheduled with the fault, so nothing depends on who is running then.

use std::sync::atomic::Ordering;
use std::time::Duration;

use punctual::raft::{Consensus, MembershipError, RaftNode};
use rand::RngExt;
use tokio::time::{Instant, sleep, sleep_until};

use super::faults::{Event, Planned, Target};
use super::network::LinkQuality;
use super::runtime::{SimRuntime, pause, resume};
use super::world::{World, address};

/// Carries out `planned` in order, at their times.
pub async fn drive(world: &World, planned: Vec<Planned>) {
    let start = Instant::now();
    for Planned { at_ms, event } in planned {
        sleep_until(start + Duration::from_millis(at_ms)).await;
        let counters = world.counters();
        if carry_out(world, event) {
            counters.add("faults", 1);
            counters.add(&format!("fault_{}", event.name()), 1);
        } else {
            counters.add("faults_without_target", 1);
        }
    }
}

fn resolve(world: &World, target: Target) -> Option<u64> {
    let running = world.running();
    match target {
        Target::Leader => world.leader().or_else(|| running.first().copied()),
        Target::Nth(n) => {
            let len = u64::try_from(running.len()).ok().filter(|len| *len > 0)?;
            running.get(usize::try_from(n % len).ok()?).copied()
        }
    }
}

fn after(world: &World, ms: u64, what: impl FnOnce(World) + Send + 'static) {
    let later = world.clone();
    world.spawn(async move {
        sleep(Duration::from_millis(ms)).await;
        what(later);
    });
}

fn restart_after(world: &World, node: u64, ms: u64) {
    let later = world.clone();
    world.spawn(async move {
        sleep(Duration::from_millis(ms)).await;
        later.start(node).await;
    });
}

/// Cuts or restores everything between `node` and the others.
fn cut(world: &World, node: u64, outward: bool, inward: bool, cut: bool) {
    let ids: Vec<u64> = world.inner.nodes.lock().keys().copied().collect();
    for other in ids.into_iter().filter(|id| *id != node) {
        if outward {
            world.inner.network.set_cut(node, other, cut);
        }
        if inward {
            world.inner.network.set_cut(other, node, cut);
        }
    }
}

/// Applies `event`; `false` if there was nobody to hit.
fn carry_out(world: &World, event: Event) -> bool {
    world.trace().event(event.name(), 0, &[]);
    match event {
        Event::CrashAll { down_ms } => {
            for node in world.running() {
                world.crash(node);
                restart_after(world, node, down_ms + node);
            }
            true
        }
        Event::Split { mask, for_ms } => {
            split(world, mask, true);
            after(world, for_ms, move |world| split(&world, mask, false));
            true
        }
        Event::Transfer => {
            let Some(raft) = world.leader().and_then(|id| world.raft(id)) else {
                return false;
            };
            world.spawn(async move {
                let _moved_or_not = raft.transfer_leader(None).await;
            });
            true
        }
        Event::Replace { target } => replace(world, target),
        Event::Crash { target, .. }
        | Event::Isolate { target, .. }
        | Event::OneWay { target, .. }
        | Event::SlowLinks { target, .. }
        | Event::SlowDisk { target, .. }
        | Event::DiskError { target }
        | Event::ClockJump { target, .. }
        | Event::ClockDrift { target, .. }
        | Event::Snapshot { target }
        | Event::LongOutage { target, .. }
        | Event::Pause { target, .. } => {
            let Some(node) = resolve(world, target) else {
                return false;
            };
            hit(world, node, event);
            true
        }
        Event::FastReturn { slow_ms, down_ms } => fast_return(world, slow_ms, down_ms),
    }
}

fn hit(world: &World, node: u64, event: Event) {
    match event {
        Event::Crash { down_ms, .. } => {
            world.crash(node);
            restart_after(world, node, down_ms);
        }
        Event::LongOutage { down_ms, .. } => {
            world.crash(node);
            // Those who stay take a snapshot, so that the log the node needs is gone when it returns.
            after(world, down_ms * 3 / 4, |world| {
                for raft in world.running().into_iter().filter_map(|id| world.raft(id)) {
                    world.spawn(async move { raft.trigger_snapshot().await });
                }
            });
            restart_after(world, node, down_ms);
        }
        Event::Isolate { for_ms, .. } => {
            cut(world, node, true, true, true);
            after(world, for_ms, move |w| cut(&w, node, true, true, false));
        }
        Event::OneWay {
            outward, for_ms, ..
        } => {
            cut(world, node, outward, !outward, true);
            after(world, for_ms, move |w| {
                cut(&w, node, outward, !outward, false);
            });
        }
        Event::SlowLinks {
            delay_ms, for_ms, ..
        } => {
            slow_links(world, node, delay_ms);
            after(world, for_ms, |w| w.inner.network.heal());
        }
        Event::SlowDisk {
            sync_ms, for_ms, ..
        } => {
            with_slot(world, node, |slot| slot.disk.slow(sync_ms));
            after(world, for_ms, move |w| {
                with_slot(&w, node, |slot| slot.disk.heal());
            });
        }
        Event::DiskError { .. } => with_slot(world, node, |slot| {
            slot.may_stop = true;
            slot.disk.fail_next();
        }),
        Event::ClockJump { by_ms, .. } => with_slot(world, node, |slot| slot.clock.jump(by_ms)),
        Event::ClockDrift { ppm, .. } => with_slot(world, node, |slot| slot.clock.drift(ppm)),
        Event::Snapshot { .. } => {
            if let Some(raft) = world.raft(node) {
                world.spawn(async move { raft.trigger_snapshot().await });
            }
        }
        Event::Pause { for_ms, .. } => {
            if let Some(scope) = world.scope_of(node) {
                pause(scope);
                after(world, for_ms, move |_| resume(scope));
            }
        }
        Event::FastReturn { .. }
        | Event::CrashAll { .. }
        | Event::Split { .. }
        | Event::Transfer
        | Event::Replace { .. } => {}
    }
}

fn with_slot(world: &World, node: u64, f: impl FnOnce(&mut super::world::Slot)) {
    if let Some(slot) = world.inner.nodes.lock().get_mut(&node) {
        f(slot);
    }
}

fn slow_links(world: &World, node: u64, delay_ms: u64) {
    let ids: Vec<u64> = world.inner.nodes.lock().keys().copied().collect();
    let quality = LinkQuality {
        delay_us: (delay_ms * 500, delay_ms * 1_500),
        ..world.options().link
    };
    for other in ids.into_iter().filter(|id| *id != node) {
        world.inner.network.set_quality(node, other, quality);
        world.inner.network.set_quality(other, node, quality);
    }
}

fn split(world: &World, mask: u64, cut: bool) {
    let ids: Vec<u64> = world.inner.nodes.lock().keys().copied().collect();
    for a in &ids {
        for b in &ids {
            let apart = (mask >> (a % 64)) & 1 != (mask >> (b % 64)) & 1;
            if a != b && apart {
                world.inner.network.set_cut(*a, *b, cut);
            }
        }
    }
}

/// The leader's disk slows down, it loses power with a tail that the others may already have, and is back before
/// anybody stands for election.
fn fast_return(world: &World, slow_ms: u64, down_ms: u64) -> bool {
    let Some(leader) = world.leader() else {
        return false;
    };
    with_slot(world, leader, |slot| slot.disk.slow(slow_ms * 2));
    let world = world.clone();
    world.clone().spawn(async move {
        sleep(Duration::from_millis(slow_ms)).await;
        let led = world.leader() == Some(leader);
        with_slot(&world, leader, |slot| slot.disk.heal());
        if !world.crash(leader) {
            return;
        }
        sleep(Duration::from_millis(down_ms)).await;
        let vacant = world.leader().is_none();
        world.start(leader).await;
        if led && vacant {
            world.counters().add("fast_leader_returns", 1);
        }
    });
    true
}

/// Destroys a follower's disk, removes it, and lets an empty node join under a new id.
fn replace(world: &World, target: Target) -> bool {
    let Some(node) = resolve(world, target).filter(|node| world.leader() != Some(*node)) else {
        return false;
    };
    if world.running().len() < 3 || world.inner.changing_members.swap(true, Ordering::SeqCst) {
        return false;
    }
    world.destroy(node);
    let world = world.clone();
    world.clone().spawn(async move {
        let fresh = {
            let nodes = world.inner.nodes.lock();
            nodes.keys().next_back().copied().unwrap_or(0) + 1
        };
        if remove(&world, node).await && join(&world, fresh).await {
            world.counters().add("nodes_replaced", 1);
        }
        world.inner.changing_members.store(false, Ordering::SeqCst);
    });
    true
}

/// A change of members that the harness wants.
#[derive(Clone, Copy)]
enum Wish {
    Gone(u64),
    Voting(u64),
}

impl Wish {
    async fn ask(self, raft: RaftNode<SimRuntime>) -> Result<(), MembershipError> {
        match self {
            Self::Gone(node) => raft.remove(node).await,
            Self::Voting(node) => {
                raft.add_learner(node, address(node)).await?;
                raft.promote(node).await
            }
        }
    }

    fn came_true(self, raft: &RaftNode<SimRuntime>) -> bool {
        let members = raft.status().members;
        !members.joint
            && match self {
                Self::Gone(node) => {
                    !members.voters.contains_key(&node) && !members.learners.contains_key(&node)
                }
                Self::Voting(node) => members.voters.contains_key(&node),
            }
    }
}

/// Asks whoever leads, again and again, until the wish has come true.
async fn persist(world: &World, wish: Wish) -> bool {
    let give_up = Instant::now() + Duration::from_secs(20);
    while Instant::now() < give_up {
        if let Some(raft) = world.leader().and_then(|id| world.raft(id)) {
            let asking = wish.ask(raft.clone());
            let asked = tokio::time::timeout(Duration::from_secs(3), asking).await;
            if matches!(asked, Ok(Ok(()))) && wish.came_true(&raft) {
                return true;
            }
        }
        let pause = world.inner.rng.lock().random_range(50..200);
        sleep(Duration::from_millis(pause)).await;
    }
    false
}

pub(super) async fn remove(world: &World, node: u64) -> bool {
    persist(world, Wish::Gone(node)).await
}

async fn join(world: &World, fresh: u64) -> bool {
    world.add_slot(fresh);
    world.start(fresh).await;
    persist(world, Wish::Voting(fresh)).await
}
