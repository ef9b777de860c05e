//! Occurrences: one entry each, overlap, quotas, skips, completion, firing by hand (semantics, section 3).

use super::*;
use crate::command::executions::CancelMode;
use crate::command::schedules::{ScheduleCommand, Step};
use crate::command::{Command, Expect};
use crate::ids::{ExecutionId, QueueId};
use crate::model::execution::ExecutionState;
use crate::model::policy::Overlap;
use crate::model::queue::QueueSpec;
use crate::model::rule::When;
use crate::model::schedule::{Planned, SkipReason};
use crate::state::testkit::{
    LEASE, TENANT, World, a_put, complete, create, fail, minute, plan, retry, skip,
};
use crate::time::Millis;

/// A world at minute 1 with schedule `s`, due then.
fn due(overlap: Overlap) -> World {
    let mut world = World::new();
    let mut put = a_put("s");
    put.spec.overlap.policy = overlap;
    world.put_seen(put);
    world.now = minute(1);
    world
}

fn succeed(world: &mut World, id: &ExecutionId) {
    let granted = world.grant("w", id);
    world.report("w", &granted.lease, complete());
    assert!(world.ended(id).is_some());
}

#[test]
fn one_entry_creates_the_occurrence_and_moves_the_cursor() {
    let mut world = due(Overlap::Allow);
    let made = world.fired(
        "s",
        vec![create(minute(1))],
        plan(minute(1), Some(minute(2))),
    );
    let [id] = made.as_slice() else {
        panic!("one execution, not {made:?}")
    };
    let execution = world.must_open(id);
    let occurrence = execution.occurrence.expect("of a schedule");
    assert_eq!(occurrence.nominal_at, Some(minute(1)));
    assert_eq!(occurrence.incarnation, world.seen("s").incarnation);
    assert_eq!(execution.state, ExecutionState::Ready);
    let status = world.status("s");
    assert_eq!(status.cursor, minute(1));
    assert_eq!(status.next.map(|n| n.nominal_at), Some(minute(2)));
    assert_eq!(status.created_count, 1);
    assert_eq!(status.open, made);
}

#[test]
fn firing_moves_neither_generation_nor_revision() {
    let mut world = due(Overlap::Allow);
    let (before, _) = world.schedule("s");
    world.fired(
        "s",
        vec![create(minute(1))],
        plan(minute(1), Some(minute(2))),
    );
    assert_eq!(world.schedule("s").0, before);
}

#[test]
fn the_same_firing_twice_is_superseded_and_moves_nothing() {
    let mut world = due(Overlap::Allow);
    let seen = world.seen("s");
    let (steps, next) = (vec![create(minute(1))], plan(minute(1), Some(minute(2))));
    world.fire_seen("s", seen, steps.clone(), next);
    let again = world.fire_seen("s", seen, steps, next);
    assert_eq!(again, Outcome::Refused(Refusal::Superseded));
    assert_eq!(world.status("s").created_count, 1);
}

#[test]
fn a_firing_planned_before_an_edit_is_superseded() {
    let mut world = due(Overlap::Allow);
    let seen = world.seen("s");
    let mut put = a_put("s");
    put.spec.description = "changed".into();
    world.put_seen(put);
    let answer = world.fire_seen("s", seen, vec![create(minute(1))], plan(minute(1), None));
    assert_eq!(answer, Outcome::Refused(Refusal::Superseded));
}

#[test]
fn a_deleted_paused_or_completed_schedule_does_not_fire() {
    let superseded = Outcome::Refused(Refusal::Superseded);
    let (steps, next) = (vec![create(minute(1))], plan(minute(1), None));
    let mut world = due(Overlap::Allow);
    let seen = world.seen("s");
    world.pause("s", None);
    assert_eq!(world.fire_seen("s", seen, steps.clone(), next), superseded);
    world.delete_schedule("s");
    assert_eq!(world.fire_seen("s", seen, steps, next), superseded);

    let mut world = due(Overlap::Allow);
    world.fire("s", Vec::new(), next);
    assert!(matches!(
        world.status("s").state,
        ScheduleState::Completed { .. }
    ));
    let seen = world.seen("s");
    let later = vec![create(minute(2))];
    assert_eq!(
        world.fire_seen("s", seen, later, plan(minute(2), None)),
        superseded
    );
}

#[test]
fn steps_that_would_decide_a_time_twice_are_refused() {
    let superseded = Outcome::Refused(Refusal::Superseded);
    let mut world = due(Overlap::Allow);
    world.fired(
        "s",
        vec![create(minute(1))],
        plan(minute(1), Some(minute(2))),
    );
    world.now = minute(3);
    let next = plan(minute(3), Some(minute(4)));
    for steps in [
        vec![create(minute(1))],
        vec![create(minute(2)), create(minute(2))],
        vec![create(minute(3)), create(minute(2))],
        vec![create(minute(4))],
    ] {
        assert_eq!(world.fire("s", steps, next), superseded);
    }
    let back = plan(minute(0), Some(minute(2)));
    assert_eq!(world.fire("s", Vec::new(), back), superseded);
    let stuck = plan(minute(3), Some(minute(3)));
    assert_eq!(world.fire("s", vec![create(minute(2))], stuck), superseded);
    assert_eq!(world.status("s").created_count, 1);
}

#[test]
fn jitter_delays_the_due_time_and_keeps_the_nominal_one() {
    let mut world = due(Overlap::Allow);
    let step = Step::Create {
        planned: Planned {
            nominal_at: minute(1),
            due_at: minute(1).plus(Millis(700)),
        },
        cause: Cause::Due,
    };
    let made = world.fired("s", vec![step], plan(minute(1), Some(minute(2))));
    let execution = world.must_open(&made[0]);
    assert_eq!(execution.state, ExecutionState::Waiting);
    assert_eq!(execution.due_at, minute(1).plus(Millis(700)));
    assert_eq!(
        execution.occurrence.and_then(|o| o.nominal_at),
        Some(minute(1))
    );
}

#[test]
fn an_open_execution_makes_the_occurrence_a_skip_that_names_it() {
    let mut world = due(Overlap::Skip);
    let made = world.fired(
        "s",
        vec![create(minute(1))],
        plan(minute(1), Some(minute(2))),
    );
    for n in 2..=4 {
        world.now = minute(n);
        let next = plan(minute(n), Some(minute(n + 1)));
        let answer = world.fire("s", vec![create(minute(n))], next);
        let created = Vec::new();
        assert_eq!(
            answer,
            Outcome::Fired {
                created,
                skipped: 1
            }
        );
    }
    let mut wanted = skip(minute(2), minute(4), 3, SkipReason::Overlap);
    wanted.blocker = Some(made[0].clone());
    assert_eq!(
        world.skips(),
        vec![wanted],
        "equal neighbours are one record"
    );
    assert_eq!(world.status("s").skipped[&SkipReason::Overlap], 3);

    succeed(&mut world, &made[0]);
    world.now = minute(5);
    let made = world.fired(
        "s",
        vec![create(minute(5))],
        plan(minute(5), Some(minute(6))),
    );
    assert_eq!(made.len(), 1, "the first occurrence after the end starts");
}

#[test]
fn allow_stops_at_max_open() {
    let mut world = World::new();
    let mut put = a_put("s");
    put.spec.overlap.max_open = 2;
    world.put_seen(put);
    world.now = minute(3);
    let steps = (1..=3).map(|n| create(minute(n))).collect();
    let made = world.fired("s", steps, plan(minute(3), Some(minute(4))));
    assert_eq!(made.len(), 2);
    let mut wanted = skip(minute(3), minute(3), 1, SkipReason::Overlap);
    wanted.blocker = Some(made[0].clone());
    assert_eq!(world.skips(), vec![wanted]);
}

#[test]
fn an_execution_by_hand_counts_for_overlap() {
    let mut world = due(Overlap::Skip);
    let Outcome::Submitted { execution, .. } = world.trigger("s") else {
        panic!("a trigger creates")
    };
    let made = world.fired(
        "s",
        vec![create(minute(1))],
        plan(minute(1), Some(minute(2))),
    );
    assert!(made.is_empty());
    assert_eq!(world.skips()[0].blocker, Some(execution.clone()));
    succeed(&mut world, &execution);
    world.now = minute(2);
    let made = world.fired(
        "s",
        vec![create(minute(2))],
        plan(minute(2), Some(minute(3))),
    );
    assert_eq!(made.len(), 1);
    assert_eq!(
        world.status("s").created_count,
        1,
        "manual ones are not counted"
    );
}

#[test]
fn a_trigger_against_a_skip_names_the_blocker_unless_told_allow() {
    let mut world = due(Overlap::Skip);
    let Outcome::Submitted { execution, .. } = world.trigger("s") else {
        panic!("a trigger creates")
    };
    let blocker = execution;
    assert_eq!(
        world.trigger("s"),
        Outcome::Refused(Refusal::Overlap { blocker })
    );
    let mut told = World::a_trigger("s");
    told.overlap = Some(Overlap::Allow);
    told.payload = Some(b"{\"by\":\"hand\"}".to_vec());
    told.traceparent = Some("00-aa-bb-01".into());
    let answer = world.one(Command::Schedule(ScheduleCommand::Trigger(told)));
    let Outcome::Submitted { execution, .. } = answer else {
        panic!("allowed: {answer:?}")
    };
    let execution = world.must_open(&execution);
    assert_eq!(execution.template.payload, b"{\"by\":\"hand\"}");
    assert_eq!(execution.traceparent.as_deref(), Some("00-aa-bb-01"));
    assert_eq!(execution.cause, Cause::Triggered);
    assert_eq!(execution.occurrence.and_then(|o| o.nominal_at), None);
    assert_eq!(world.status("s").open.len(), 2);
}

#[test]
fn a_trigger_works_while_paused_and_leaves_the_schedule_as_it_is() {
    let mut world = due(Overlap::Skip);
    world.pause("s", None);
    let (before, paused) = world.schedule("s");
    assert!(matches!(world.trigger("s"), Outcome::Submitted { .. }));
    let (after, status) = world.schedule("s");
    assert_eq!(before, after);
    assert_eq!((status.state, status.cursor), (paused.state, paused.cursor));
}

#[test]
fn a_trigger_of_what_is_not_there_or_over_is_refused() {
    let mut world = due(Overlap::Skip);
    assert_eq!(
        world.trigger("t"),
        Outcome::Refused(Refusal::ScheduleNotFound)
    );
    world.fire("s", Vec::new(), plan(minute(1), None));
    assert_eq!(
        world.trigger("s"),
        Outcome::Refused(Refusal::ScheduleCompleted)
    );
}

#[test]
fn an_occurrence_over_a_quota_is_a_skip_and_a_trigger_a_refusal() {
    let mut world = due(Overlap::Allow);
    let spec = QueueSpec {
        max_pending: Some(1),
        ..QueueSpec::default()
    };
    world.put_queue(QueueId::default_queue(), spec, Expect::Any);
    let steps = vec![create(minute(1)), create(minute(2))];
    world.now = minute(2);
    let made = world.fired("s", steps, plan(minute(2), Some(minute(3))));
    assert_eq!(made.len(), 1);
    assert_eq!(
        world.skips(),
        vec![skip(minute(2), minute(2), 1, SkipReason::Quota)]
    );
    let answer = world.trigger("s");
    assert!(matches!(
        answer,
        Outcome::Refused(Refusal::QuotaExceeded { limit: 1, .. })
    ));
}

#[test]
fn skips_of_other_reasons_are_other_records() {
    let mut world = due(Overlap::Allow);
    let steps = vec![
        Step::Skip(skip(minute(1), minute(3), 3, SkipReason::Misfire)),
        Step::Skip(skip(minute(4), minute(4), 1, SkipReason::Calendar)),
        Step::Skip(skip(minute(5), minute(5), 1, SkipReason::Calendar)),
        create(minute(6)),
        Step::Skip(skip(minute(7), minute(7), 1, SkipReason::Calendar)),
    ];
    world.now = minute(7);
    let answer = world.fire("s", steps, plan(minute(7), Some(minute(8))));
    assert!(
        matches!(answer, Outcome::Fired { skipped: 6, .. }),
        "{answer:?}"
    );
    let wanted = vec![
        skip(minute(1), minute(3), 3, SkipReason::Misfire),
        skip(minute(4), minute(5), 2, SkipReason::Calendar),
        skip(minute(7), minute(7), 1, SkipReason::Calendar),
    ];
    assert_eq!(
        world.skips(),
        wanted,
        "what ran lies between two runs of skips"
    );
    let totals = world.status("s").skipped;
    assert_eq!(
        (totals[&SkipReason::Misfire], totals[&SkipReason::Calendar]),
        (3, 3)
    );
}

#[test]
fn a_run_of_skips_has_a_row_in_each_bucket_of_history() {
    let mut world = due(Overlap::Allow);
    for day in 0..3_u64 {
        world.now = minute(1 + day * 1_440);
        let record = skip(world.now, world.now, 1, SkipReason::Calendar);
        let next = plan(world.now, Some(world.now.plus(Millis::days(1))));
        world.fire("s", vec![Step::Skip(record)], next);
    }
    assert_eq!(world.skips().len(), 3);
    assert_eq!(world.status("s").skipped[&SkipReason::Calendar], 3);
}

#[test]
fn a_lower_bound_stays_one_when_runs_join() {
    let mut world = due(Overlap::Allow);
    let mut first = skip(minute(1), minute(2), 1_000_000, SkipReason::Misfire);
    first.at_least = true;
    let second = skip(minute(3), minute(3), 1, SkipReason::Misfire);
    world.now = minute(3);
    let steps = vec![Step::Skip(first), Step::Skip(second)];
    world.fire("s", steps, plan(minute(3), Some(minute(4))));
    let records = world.skips();
    let [record] = records.as_slice() else {
        panic!("one record, not {records:?}")
    };
    assert!(record.at_least);
    assert_eq!(record.count, 1_000_001);
}

#[test]
fn max_occurrences_ends_the_schedule_and_it_completes_with_its_last_execution() {
    let mut world = World::new();
    let mut put = a_put("s");
    put.spec.rule.max_occurrences = Some(2);
    world.put_seen(put);
    world.now = minute(3);
    let steps = (1..=3).map(|n| create(minute(n))).collect();
    let made = world.fired("s", steps, plan(minute(3), Some(minute(4))));
    assert_eq!(made.len(), 2, "the third is none of the schedule's");
    let status = world.status("s");
    assert_eq!((status.next, status.due_key), (None, None));
    assert_eq!(status.state, ScheduleState::Active, "something is open");
    succeed(&mut world, &made[0]);
    assert_eq!(world.status("s").state, ScheduleState::Active);
    succeed(&mut world, &made[1]);
    let at = world.now;
    assert_eq!(world.status("s").state, ScheduleState::Completed { at });
}

#[test]
fn an_execution_keeps_the_payload_and_generation_it_was_created_with() {
    let mut world = due(Overlap::Allow);
    let made = world.fired(
        "s",
        vec![create(minute(1))],
        plan(minute(1), Some(minute(2))),
    );
    let mut put = a_put("s");
    put.spec.template.payload = b"{\"new\":1}".to_vec();
    put.plan = plan(minute(1), Some(minute(2)));
    world.put_seen(put);
    let old = world.must_open(&made[0]);
    assert_eq!(old.occurrence.map(|o| o.generation), Some(1));
    assert_eq!(old.template.payload, b"{\"to\":\"you\"}");
    world.now = minute(2);
    let made = world.fired(
        "s",
        vec![create(minute(2))],
        plan(minute(2), Some(minute(3))),
    );
    let new = world.must_open(&made[0]);
    assert_eq!(new.occurrence.map(|o| o.generation), Some(2));
    assert_eq!(new.template.payload, b"{\"new\":1}");
}

#[test]
fn failures_in_a_row_pause_the_schedule_by_its_own_rule() {
    let mut world = World::new();
    let mut put = a_put("s");
    put.spec.pause_after_failures = Some(2);
    put.spec.template.retry.max_attempts = 1;
    assert_eq!(retry().max_lease_losses, 5);
    world.put_seen(put);
    for n in 1..=2 {
        world.now = minute(n);
        let next = plan(minute(n), Some(minute(n + 1)));
        let made = world.fired("s", vec![create(minute(n))], next);
        let granted = world.grant("w", &made[0]);
        world.advance(LEASE);
        world.expire(&granted.lease);
    }
    let (_, status) = world.schedule("s");
    assert_eq!(status.failures_in_row, 2);
    let ScheduleState::Paused(pause) = status.state else {
        panic!("not paused: {:?}", status.state)
    };
    assert_eq!((pause.since, pause.until), (world.now, None));
    assert_eq!(world.audited(), vec!["schedule.pause default/s"]);
    assert_eq!(world.state.usage[&TENANT].open, 0);
}

/// Case overlap-forbid-after-crash-recovers: a run whose end was never reported does not block its schedule for ever.
#[test]
fn a_crashed_run_blocks_its_schedule_only_until_its_lease_is_over() {
    let mut world = World::new();
    let mut put = a_put("s");
    put.spec.overlap.policy = Overlap::Skip;
    put.spec.template.retry.max_attempts = 1;
    world.put_seen(put);
    world.now = minute(1);
    let next = |n| plan(minute(n), Some(minute(n + 1)));
    let made = world.fired("s", vec![create(minute(1))], next(1));
    let granted = world.grant("w", &made[0]);
    world.now = minute(2);
    assert!(
        world
            .fired("s", vec![create(minute(2))], next(2))
            .is_empty()
    );
    assert_eq!(world.expire(&granted.lease), 1);
    let done = world.must_have_ended(&made[0]);
    assert_eq!(done.execution.state, ExecutionState::DeadLettered);
    world.now = minute(3);
    assert_eq!(
        world.fired("s", vec![create(minute(3))], next(3)).len(),
        1,
        "nothing is in the way any more"
    );
}

/// Case forced-run-blocks-next-tick: a forced run is seen by later occurrences, and leaves nothing behind.
#[test]
fn a_cancelled_forced_run_lets_the_next_occurrence_start() {
    let mut world = due(Overlap::Skip);
    let Outcome::Submitted { execution, .. } = world.trigger("s") else {
        panic!("a trigger creates")
    };
    world.grant("w", &execution);
    let next = |n| plan(minute(n), Some(minute(n + 1)));
    for n in 1..=2 {
        world.now = minute(n);
        let made = world.fired("s", vec![create(minute(n))], next(n));
        assert!(made.is_empty(), "minute {n} is skipped");
    }
    world.cancel(&execution, CancelMode::Now);
    world.now = minute(3);
    let made = world.fired("s", vec![create(minute(3))], next(3));
    assert_eq!(world.status("s").open, made, "only the new one is open");
}

/// Case queue-cap-counts-all-keys: occurrences over the cap are skips, retries of admitted work are not refused.
#[test]
fn a_retry_is_not_refused_by_the_cap_that_skips_an_occurrence() {
    let mut world = due(Overlap::Allow);
    let next = |n| plan(minute(n), Some(minute(n + 1)));
    let made = world.fired("s", vec![create(minute(1))], next(1));
    let granted = world.grant("w", &made[0]);
    let spec = QueueSpec {
        max_pending: Some(1),
        ..QueueSpec::default()
    };
    world.put_queue(QueueId::default_queue(), spec, Expect::Any);
    world.plain();
    world.report("w", &granted.lease, fail());
    world.now = minute(2);
    world.process_due();
    assert_eq!(world.must_open(&made[0]).state, ExecutionState::Ready);
    assert!(
        world
            .fired("s", vec![create(minute(2))], next(2))
            .is_empty()
    );
    assert_eq!(world.status("s").skipped[&SkipReason::Quota], 1);
}

#[test]
fn an_after_end_rule_goes_on_when_its_only_occurrence_was_skipped() {
    let mut world = World::new();
    let mut put = a_put("s");
    put.spec.rule.when = When::AfterEnd(Millis::minutes(10));
    world.put_seen(put);
    world.now = minute(1);
    let record = skip(minute(1), minute(1), 1, SkipReason::Misfire);
    world.fire("s", vec![Step::Skip(record)], plan(minute(1), None));
    let status = world.status("s");
    assert_eq!(status.state, ScheduleState::Active);
    assert_eq!(status.next.map(|next| next.nominal_at), Some(minute(11)));
}
