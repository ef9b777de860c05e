//! What apply makes is sound, and any row that is missing or too many is noticed.

use super::*;
use crate::command::executions::{OnConflict, UniqueKey};
use crate::ids::ExecutionId;
use crate::model::execution::INLINE_PAYLOAD_MAX;
use crate::state::testkit::{
    START, World, a_put, complete, create, fail, minute, plan, submission,
};
use crate::store::{StateStore, WriteBatch};
use crate::time::Millis;

/// One of everything that can be stored, at minute 1.
fn a_full_world() -> World {
    let mut world = World::new();
    for id in ["active", "paused", "timed", "busy"] {
        world.put_seen(a_put(id));
    }
    let mut over = a_put("completed");
    over.plan = plan(START, None);
    world.put_seen(over);
    let mut edited = a_put("active");
    edited.spec.description = "edited".into();
    world.put_seen(edited);
    world.pause("paused", None);
    world.pause("timed", Some(minute(30)));
    world.put_key("k", Some(1));

    let waiting = submission(minute(9));
    world.submit(waiting);
    let mut large = submission(START);
    large.template.payload = vec![b'1'; INLINE_PAYLOAD_MAX + 1];
    large.template.timeouts.start = Some(Millis::minutes(5));
    world.submit(large);
    let mut unique = submission(START);
    unique.unique = Some(UniqueKey {
        key: "u".into(),
        on_conflict: OnConflict::Reject,
    });
    unique.id = ExecutionId::new("order-1").ok();
    world.submit(unique);
    let mut keyed = submission(START);
    keyed.template.concurrency_key = Some("k".into());
    let leased = world.submit(keyed.clone());
    world.grant("w", &leased);
    world.submit(keyed);
    let mut chosen = submission(START);
    chosen.id = ExecutionId::new("order-2").ok();
    let done = world.submit(chosen);
    let granted = world.grant("w", &done);
    world.report("w", &granted.lease, complete());
    let backing_off = world.plain();
    let granted = world.grant("w", &backing_off);
    world.report("w", &granted.lease, fail());
    world.now = minute(1);
    let next = plan(minute(1), Some(minute(2)));
    world.fired("busy", vec![create(minute(1))], next);
    world
}

fn problems(world: &World) -> Vec<String> {
    let report = verify(&world.store).expect("verifies");
    assert_eq!(report.problem_count, report.problems.len() as u64);
    let told = |p: Problem| format!("{}: {}", p.object, p.what);
    report.problems.into_iter().map(told).collect()
}

fn write(world: &World, family: Family, key: &[u8], row: Option<Vec<u8>>) {
    let mut batch = WriteBatch::default();
    batch.ops.push((family, key.to_vec(), row));
    world.store.write(batch).expect("writes");
}

#[test]
fn a_state_that_apply_made_is_sound() {
    let world = a_full_world();
    assert_eq!(problems(&world), Vec::<String>::new());
    let report = verify(&world.store).expect("verifies");
    assert!(report.is_sound());
    let checked: Vec<_> = report.checked.into_iter().collect();
    let wanted = vec![
        ("bodies", 1),
        ("chosen ids", 2),
        ("due entries", 7),
        ("earlier definitions", 1),
        ("final executions", 1),
        ("live leases", 1),
        ("open executions", 7),
        ("parked places", 1),
        ("ready places", 3),
        ("schedules", 5),
        ("unique keys", 1),
    ];
    let seen: Vec<_> = checked
        .into_iter()
        .filter(|(what, _)| !what.starts_with("audit"))
        .collect();
    assert_eq!(seen, wanted);
}

#[test]
fn an_empty_state_is_sound() {
    assert_eq!(problems(&World::new()), Vec::<String>::new());
}

/// Removing any one row that something else relies on is noticed.
#[test]
fn a_missing_row_is_noticed_whatever_it_is() {
    let world = a_full_world();
    for family in Family::ALL {
        for (key, row) in world.rows(family, &[]) {
            let tag = key.first().copied().unwrap_or(0);
            let is_alone = match family {
                Family::Meta => !matches!(tag, keys::USAGE | keys::COUNTS | keys::KEY_STATE),
                // An earlier definition, or history, is missed by nobody but its reader.
                Family::Live => tag == keys::GENERATION,
                Family::History => key.get(9) != Some(&keys::FINAL),
                _ => false,
            };
            if is_alone {
                continue;
            }
            write(&world, family, &key, None);
            let found = problems(&world);
            assert!(
                !found.is_empty(),
                "nobody missed {}",
                row_name(family, &key)
            );
            write(&world, family, &key, Some(row));
        }
    }
    assert_eq!(problems(&world), Vec::<String>::new());
}

/// A copy of any row under a key that nobody calls for is noticed.
#[test]
fn an_orphan_row_is_noticed_whatever_it_is() {
    let world = a_full_world();
    for family in Family::ALL {
        for (key, row) in world.rows(family, &[]) {
            let tag = key.first().copied().unwrap_or(0);
            let may_be = match family {
                Family::Meta => !matches!(tag, keys::USAGE | keys::COUNTS),
                Family::History => true,
                _ => false,
            };
            if may_be {
                continue;
            }
            let mut orphan = key.clone();
            match family {
                // Numbers of a tenant that does not exist.
                Family::Meta => *orphan.last_mut().expect("a byte") = 77,
                _ => orphan.push(b'z'),
            }
            write(&world, family, &orphan, Some(row));
            let found = problems(&world);
            assert!(
                !found.is_empty(),
                "nobody saw a copy of {}",
                row_name(family, &key)
            );
            write(&world, family, &orphan, None);
        }
    }
}

#[test]
fn an_entry_below_its_watermark_counts_as_absent() {
    let world = a_full_world();
    let mut cluster = world.state.cluster.clone();
    cluster.due_from[Level::Minute.index()] = minute(1);
    let row = value::encode(&cluster).expect("encodes");
    write(&world, Family::Meta, keys::CLUSTER, Some(row));
    let found = problems(&world);
    assert!(
        found.iter().any(|p| p.contains("its due entry is missing")),
        "the one that backs off is due before minute 1: {found:?}"
    );
}

#[test]
fn a_watermark_above_log_time_is_noticed() {
    let world = a_full_world();
    let mut cluster = world.state.cluster.clone();
    cluster.due_from[Level::Far.index()] = minute(2);
    cluster.history_from[3] = u32::MAX;
    let row = value::encode(&cluster).expect("encodes");
    write(&world, Family::Meta, keys::CLUSTER, Some(row));
    let found = problems(&world);
    assert!(
        found.iter().any(|p| p.contains("above log time")),
        "{found:?}"
    );
    assert!(
        found.iter().any(|p| p.contains("retention class 3")),
        "{found:?}"
    );
}

#[test]
fn the_list_of_problems_is_bounded_and_the_count_is_not() {
    let mut world = World::new();
    for _ in 0..PROBLEMS_MAX + 50 {
        world.plain();
    }
    for (key, _) in world.rows(Family::Lines, &[]) {
        write(&world, Family::Lines, &key, None);
    }
    let report = verify(&world.store).expect("verifies");
    assert_eq!(report.problems.len(), PROBLEMS_MAX);
    assert_eq!(report.problem_count, PROBLEMS_MAX as u64 + 50);
}

#[test]
fn data_of_a_newer_build_stops_the_check() {
    let world = a_full_world();
    let (key, mut row) = world
        .rows(Family::Live, &[keys::EXECUTION])
        .pop_first()
        .expect("a row");
    row[3] += 1;
    write(&world, Family::Live, &key, Some(row));
    assert!(matches!(verify(&world.store), Err(Fault::UnknownFormat(_))));
}
