//! Who takes a slot of a concurrency key that comes free (semantics §7.1, §7.2).

use super::*;
use crate::command::Expect;
use crate::command::admin::PauseScope;
use crate::command::outcome::{GrantRefusal, GrantResult};
use crate::ids::Kind;
use crate::model::queue::QueueSpec;
use crate::state::testkit::*;
use crate::time::Millis;

/// Submits an execution of key `k` to a queue, a millisecond after the one before.
fn keyed(world: &mut World, queue: &str) -> ExecutionId {
    world.advance(Millis(1));
    let mut wanted = submission(world.now);
    wanted.queue = queue_id(queue);
    wanted.template.kind = Kind::new(queue).expect("a kind");
    wanted.template.concurrency_key = Some("k".into());
    world.submit(wanted)
}

fn refusal(world: &mut World, id: &ExecutionId) -> GrantRefusal {
    match world.grant_all("w1", &[id]).pop() {
        Some(GrantResult::Refused { why, .. }) => why,
        other => panic!("grant of {id} answered {other:?}"),
    }
}

fn parked(world: &World, id: &ExecutionId) -> bool {
    world.must_open(id).parked
}

/// One holder of the only slot; behind it one of queue `a`, then one of queue `b`.
fn a_line_of_two(world: &mut World) -> (crate::model::lease::Lease, ExecutionId, ExecutionId) {
    world.put_key("k", Some(1));
    let holder = keyed(world, "default");
    let lease = world.grant("w1", &holder).lease;
    let (first, second) = (keyed(world, "a"), keyed(world, "b"));
    assert!(parked(world, &first) && parked(world, &second));
    (lease, first, second)
}

#[test]
fn a_head_that_its_queue_or_kind_holds_back_does_not_block_those_behind_it() {
    let hold: [fn(&mut World); 4] = [
        |w| drop(w.set_pause(PauseScope::Queue(queue_id("a")), Some(a_pause(None)))),
        |w| {
            let kind = PauseScope::Kind(Kind::new("a").expect("a kind"));
            w.set_pause(kind, Some(a_pause(None)));
        },
        |w| {
            let spec = QueueSpec {
                max_leased: Some(0),
                ..QueueSpec::default()
            };
            w.put_queue(queue_id("a"), spec, Expect::Any);
        },
        |w| {
            let spec = QueueSpec {
                allowed_tenants: Some([tenant_id("other")].into()),
                ..QueueSpec::default()
            };
            w.put_queue(queue_id("a"), spec, Expect::Any);
        },
    ];
    for (n, hold) in hold.into_iter().enumerate() {
        let mut world = World::new();
        let (lease, first, second) = a_line_of_two(&mut world);
        hold(&mut world);
        world.report("w1", &lease, complete());
        assert!(!parked(&world, &second), "case {n}: it takes the slot");
        assert!(!parked(&world, &first), "case {n}: it waits at its queue");
        assert_ne!(refusal(&mut world, &first), GrantRefusal::KeyFull);
        let lease = world.grant("w1", &second).lease;
        world.report("w1", &lease, complete());
    }
}

#[test]
fn a_head_that_was_let_by_finds_the_key_full_and_parks_again() {
    let mut world = World::new();
    let (lease, first, second) = a_line_of_two(&mut world);
    let queue = PauseScope::Queue(queue_id("a"));
    world.set_pause(queue.clone(), Some(a_pause(None)));
    world.report("w1", &lease, complete());
    let lease = world.grant("w1", &second).lease;
    world.set_pause(queue, None);
    assert_eq!(refusal(&mut world, &first), GrantRefusal::KeyFull);
    assert!(parked(&world, &first));
    world.report("w1", &lease, complete());
    world.grant("w1", &first);
}

#[test]
fn a_pause_that_holds_everybody_of_the_key_lets_nobody_by() {
    let mut world = World::new();
    let (lease, first, second) = a_line_of_two(&mut world);
    let tenant = PauseScope::Tenant(tenant_id("default"));
    world.set_pause(tenant, Some(a_pause(None)));
    world.report("w1", &lease, complete());
    assert!(!parked(&world, &first));
    assert!(parked(&world, &second));
}

#[test]
fn many_held_heads_are_let_by_in_bounded_steps() {
    let mut world = World::new();
    world.put_key("k", Some(1));
    let holder = keyed(&mut world, "default");
    let lease = world.grant("w1", &holder).lease;
    let held: Vec<_> = (0..20).map(|_| keyed(&mut world, "a")).collect();
    let last = keyed(&mut world, "b");
    world.set_pause(PauseScope::Queue(queue_id("a")), Some(a_pause(None)));
    world.report("w1", &lease, complete());
    let passed = |world: &World| held.iter().filter(|id| !parked(world, id)).count();
    assert_eq!(passed(&world), 5);
    assert!(world.effects.contains(&Effect::ReviewAdmission));
    // The leader repeats the limits of a key with free slots and parked work.
    world.put_key("k", Some(1));
    assert_eq!(passed(&world), 20);
    world.grant("w1", &last);
}
