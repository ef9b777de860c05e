//! The invariants that hold after every entry, recounted from the store alone.
//!
//! Callers: [`super::World::apply`]. A broken one fails the test with its own words.

use std::collections::BTreeMap;

use super::{World, rows};
use crate::ids::{ExecutionId, QueueNo, TenantNo};
use crate::model::execution::{ATTEMPTS_KEPT_MAX, Execution, ExecutionState, StoredPayload};
use crate::model::history::{ChosenId, UniqueHolder};
use crate::model::queue::LineCounts;
use crate::model::schedule::{Schedule, ScheduleState, ScheduleStatus};
use crate::state::resident::Resident;
use crate::state::verify::verify;
use crate::store::due::{DueEntry, DueKind};
use crate::store::{Family, keys, value};

/// What earlier entries showed, to compare later ones with.
#[derive(Debug, Default)]
pub(super) struct Witness {
    /// Largest token seen by execution.
    tokens: BTreeMap<(TenantNo, ExecutionId), u64>,
    /// Final rows: they never change.
    finals: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Checks everything; panics with the broken invariant.
pub(super) fn holds(world: &mut World) {
    let loaded = Resident::load(&world.store).expect("the store loads");
    assert_eq!(
        world.state, loaded,
        "memory equals what the store would load"
    );
    let executions = executions(world);
    let schedules = schedules(world);
    each_has_one_place(world, &executions);
    due_index_has_nothing_else(world, &executions, &schedules);
    counts_equal_a_recount(world, &executions, &schedules);
    keys_are_full_or_empty_of_parked(world, &executions);
    side_rows_belong_to_open_executions(world, &executions);
    schedules_know_their_executions(&executions, &schedules);
    bounds_hold(world, &executions);
    tokens_grow(world);
    finals_stay(world);
    let report = verify(&world.store).expect("the store verifies");
    assert_eq!(report.problems, Vec::new(), "the state is sound");
}

fn executions(world: &World) -> Vec<Execution> {
    let rows = world.rows(Family::Live, &[keys::EXECUTION]);
    let decode = |bytes: Vec<u8>| value::decode(&bytes).expect("an execution");
    rows.into_values().map(decode).collect()
}

fn schedules(world: &World) -> Vec<(Schedule, ScheduleStatus)> {
    let rows = world.rows(Family::Live, &[keys::SCHEDULE]);
    rows.into_values()
        .map(|bytes| {
            let schedule: Schedule = value::decode(&bytes).expect("a schedule");
            let key = keys::status(schedule.tenant, &schedule.id);
            let status = world.rows(Family::Live, &key).remove(&key);
            let status = status.unwrap_or_else(|| panic!("{} has no status", schedule.id));
            (schedule, value::decode(&status).expect("a status"))
        })
        .collect()
}

fn due_of(execution: &Execution) -> Option<DueEntry> {
    let kind = match execution.state {
        ExecutionState::Ready => DueKind::StartDeadline,
        _ => DueKind::Execution,
    };
    execution.due_key.map(|key| DueEntry {
        key,
        tenant: execution.tenant,
        kind,
        id: execution.id.as_str().to_owned(),
    })
}

/// Leased, or in exactly one line, or in the due index.
fn each_has_one_place(world: &World, executions: &[Execution]) {
    let lines = world.rows(Family::Lines, &[]);
    let mut in_lines = 0;
    for e in executions {
        let id = &e.id;
        let leased = world.state.lease(e.tenant, id).is_some();
        if leased {
            assert_eq!(e.due_key, None, "{id} is leased and has a due entry");
            continue;
        }
        match e.state {
            ExecutionState::Waiting | ExecutionState::BackingOff => {
                assert!(e.due_key.is_some(), "{id} waits for nothing");
                assert!(!e.parked, "{id} waits and is parked");
            }
            ExecutionState::Ready => {
                let at = e.line_at.expect("a ready execution has a place");
                let priority = e.template.priority;
                let key = if e.parked {
                    let name = e.template.concurrency_key.as_deref().expect("a key");
                    keys::parked(e.tenant, name, priority, at, id)
                } else {
                    keys::ready(e.queue, e.tenant, priority, at, id)
                };
                assert!(lines.contains_key(&key), "{id} is in no line");
                in_lines += 1;
            }
            other => panic!("{id} is open and {other:?}"),
        }
    }
    assert_eq!(
        lines.len(),
        in_lines,
        "a line holds something that is not ready"
    );
    for lease in world.state.leases.values() {
        let known = |e: &Execution| e.tenant == lease.tenant && e.id == lease.execution;
        assert!(
            executions.iter().any(known),
            "a lease without an execution: {lease:?}"
        );
    }
}

/// The due index is exactly what its owners say.
fn due_index_has_nothing_else(
    world: &World,
    executions: &[Execution],
    schedules: &[(Schedule, ScheduleStatus)],
) {
    let mut wanted: Vec<DueEntry> = executions.iter().filter_map(due_of).collect();
    for (schedule, status) in schedules {
        let Some(key) = status.due_key else {
            assert_eq!(
                status.next, None,
                "{} has a next without entry",
                schedule.id
            );
            continue;
        };
        let kind = match (&status.state, status.next) {
            (ScheduleState::Active, Some(_)) => DueKind::Occurrence,
            (ScheduleState::Paused(_), None) => DueKind::PauseEnd,
            (ScheduleState::Completed { .. }, None) => DueKind::Removal,
            other => panic!("{} has an entry while {other:?}", schedule.id),
        };
        wanted.push(DueEntry {
            key,
            tenant: schedule.tenant,
            kind,
            id: schedule.id.as_str().to_owned(),
        });
    }
    wanted.sort();
    let mut found = world.due_entries();
    found.sort();
    assert_eq!(found, wanted, "the due index is what its owners say");
}

fn counts_equal_a_recount(
    world: &World,
    executions: &[Execution],
    schedules: &[(Schedule, ScheduleStatus)],
) {
    let mut counts: BTreeMap<(QueueNo, TenantNo), LineCounts> = BTreeMap::new();
    let mut usage: BTreeMap<TenantNo, (u64, u64, u64)> = BTreeMap::new();
    for e in executions {
        let line = counts.entry((e.queue, e.tenant)).or_default();
        let used = usage.entry(e.tenant).or_default();
        used.0 += 1;
        if world.state.lease(e.tenant, &e.id).is_some() {
            used.1 += 1;
            line.leased += 1;
            continue;
        }
        match (e.state, e.parked) {
            (ExecutionState::Waiting, _) => line.waiting += 1,
            (ExecutionState::BackingOff, _) => line.backing_off += 1,
            (_, true) => line.parked += 1,
            (_, false) => line.ready += 1,
        }
    }
    for (schedule, _) in schedules {
        let line = (schedule.queue, schedule.tenant);
        counts.entry(line).or_default().schedules += 1;
        usage.entry(schedule.tenant).or_default().2 += 1;
    }
    assert_eq!(world.state.counts, counts, "counts equal a recount");
    let mut kept = BTreeMap::new();
    for (tenant, row) in &world.state.usage {
        kept.insert(*tenant, (row.open, row.leased, row.schedules));
    }
    kept.retain(|_, row| *row != (0, 0, 0));
    assert_eq!(kept, usage, "usage equals a recount");
}

/// What is parked has a full key in front of it: leases plus offered executions fill its limit.
fn keys_are_full_or_empty_of_parked(world: &World, executions: &[Execution]) {
    let mut offered: BTreeMap<(TenantNo, String), (u64, u64)> = BTreeMap::new();
    for e in executions {
        let Some(name) = e.template.concurrency_key.clone() else {
            continue;
        };
        let leased = world.state.lease(e.tenant, &e.id).is_some();
        let entry = offered.entry((e.tenant, name)).or_default();
        match (leased, e.state, e.parked) {
            (true, _, _) | (false, ExecutionState::Ready, false) => entry.0 += 1,
            (false, ExecutionState::Ready, true) => entry.1 += 1,
            _ => {}
        }
    }
    for (name, (taking, parked)) in offered {
        let key = world.state.keys.get(&name).cloned().unwrap_or_default();
        assert_eq!(key.parked, parked, "parked at {name:?}");
        if parked > 0 {
            let limit = key.max_leased.expect("only a limit parks");
            assert!(
                taking >= u64::from(limit),
                "{parked} parked at {name:?} while {taking} of {limit} slots are taken"
            );
        }
    }
}

fn side_rows_belong_to_open_executions(world: &World, executions: &[Execution]) {
    let bodies: Vec<_> = executions
        .iter()
        .filter(|e| e.payload != StoredPayload::Inline)
        .map(|e| keys::body(e.tenant, &e.id))
        .collect();
    let stored: Vec<_> = world.rows(Family::Body, &[]).into_keys().collect();
    assert_eq!(stored, bodies, "bodies are those of open executions");

    let mut holders = BTreeMap::new();
    for e in executions {
        if let Some(key) = &e.unique_key {
            let before = holders.insert(keys::unique(e.tenant, key), e.id.clone());
            assert_eq!(before, None, "unique key {key} has two open holders");
        }
    }
    let stored = world.rows(Family::Keys, &[keys::UNIQUE]);
    assert_eq!(stored.len(), holders.len(), "unique keys are those held");
    for (key, bytes) in stored {
        let row: UniqueHolder = value::decode(&bytes).expect("a holder");
        assert_eq!(
            holders.get(&key),
            Some(&row.execution),
            "the holder is open"
        );
    }

    let open: Vec<_> = executions
        .iter()
        .filter(|e| e.chosen_id)
        .map(|e| keys::pointer(&e.id, e.tenant))
        .collect();
    let pointers = world.rows(Family::Keys, &[keys::POINTER]);
    let unfinished = |bytes: &Vec<u8>| {
        let row: ChosenId = value::decode(bytes).expect("a pointer");
        row.history.is_none()
    };
    let stored: Vec<_> = pointers
        .into_iter()
        .filter(|(_, bytes)| unfinished(bytes))
        .map(|(key, _)| key)
        .collect();
    let mut open = open;
    open.sort();
    assert_eq!(
        stored, open,
        "pointers without history are those of open ones"
    );
}

fn schedules_know_their_executions(
    executions: &[Execution],
    schedules: &[(Schedule, ScheduleStatus)],
) {
    for (schedule, status) in schedules {
        let mut open: Vec<_> = status.open.clone();
        open.sort();
        let of = |e: &&Execution| {
            e.tenant == schedule.tenant
                && e.occurrence.as_ref().is_some_and(|o| {
                    o.schedule == schedule.id && o.incarnation == schedule.incarnation
                })
        };
        let mut real: Vec<_> = executions.iter().filter(of).map(|e| e.id.clone()).collect();
        real.sort();
        assert_eq!(open, real, "{} knows its open executions", schedule.id);
        if matches!(status.state, ScheduleState::Completed { .. }) {
            assert!(
                open.is_empty(),
                "{} is completed with open ones",
                schedule.id
            );
        }
    }
}

fn bounds_hold(world: &World, executions: &[Execution]) {
    for e in executions {
        let leased = u32::from(world.state.lease(e.tenant, &e.id).is_some());
        let max = e.template.retry.max_attempts;
        assert!(
            e.attempts_started + leased <= max,
            "{} has {} attempts of {max}",
            e.id,
            e.attempts_started + leased
        );
        assert!(e.attempts.len() <= ATTEMPTS_KEPT_MAX, "{}", e.id);
        let grows =
            |w: &[crate::model::execution::Attempt]| w[0].fencing_token < w[1].fencing_token;
        assert!(e.attempts.windows(2).all(grows), "tokens of {} grow", e.id);
    }
}

/// A lease of this entry has a larger token than any before it on the execution; one of an earlier
/// entry keeps its own.
fn tokens_grow(world: &mut World) {
    let token_now = crate::state::replica::token_of(&world.state);
    for lease in world.state.leases.values() {
        let name = (lease.tenant, lease.execution.clone());
        let token = lease.fencing_token;
        let before = world.witness.tokens.insert(name, token);
        if token == token_now {
            assert!(before.is_none_or(|b| b < token), "token of {lease:?}");
        } else {
            assert_eq!(before, Some(token), "a lease changed its token: {lease:?}");
        }
    }
}

fn finals_stay(world: &mut World) {
    let mut found = rows(&world.store, Family::History, &[]);
    // class u8, bucket u32, tenant u32, tag.
    found.retain(|key, _| key.get(9) == Some(&keys::FINAL));
    for (key, bytes) in &found {
        if let Some(before) = world.witness.finals.get(key) {
            assert_eq!(before, bytes, "a final execution changed");
        }
    }
    world.witness.finals = found;
}
