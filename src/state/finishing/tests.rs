//! What the end of an execution does to history and to its schedule (semantics §3.9, §5.10, §8.1).

use super::*;
use crate::command::executions::CancelMode;
use crate::command::schedules::{
    FireOccurrences, Plan, PutSchedule, ScheduleCommand, Seen, Step, TriggerSchedule,
};
use crate::command::{Command, Expect, outcome::Outcome};
use crate::ids::{ExecutionId, QueueId, ScheduleId, TenantId};
use crate::model::execution::Cause;
use crate::model::policy::{MisfirePolicy, OverlapPolicy, PastPolicy};
use crate::model::rule::{RuleSpec, When};
use crate::model::schedule::{Planned, ScheduleSpec};
use crate::state::testkit::*;
use crate::time::{Millis, Timestamp};

fn daily() -> ScheduleId {
    ScheduleId::new("daily").unwrap()
}

fn spec(when: When) -> ScheduleSpec {
    let mut template = template();
    template.retry.max_attempts = 1;
    ScheduleSpec {
        description: String::new(),
        template,
        rule: RuleSpec::new(when),
        misfire: MisfirePolicy::default(),
        overlap: OverlapPolicy::default(),
        past: PastPolicy::default(),
        keep_for: Millis::days(7),
        pause_after_failures: None,
    }
}

fn planned(at: Timestamp) -> Planned {
    Planned {
        nominal_at: at,
        due_at: at,
    }
}

/// Puts the schedule with its first occurrence now.
fn put(world: &mut World, spec: ScheduleSpec) {
    let now = world.now;
    let outcome = world.one(Command::Schedule(ScheduleCommand::Put(Box::new(
        PutSchedule {
            tenant: TenantId::default_tenant(),
            id: daily(),
            queue: QueueId::default_queue(),
            spec,
            plan: Plan {
                cursor: now.minus(Millis(1)),
                next: Some(planned(now)),
            },
            seen: None,
            expect: Expect::Any,
            dropped: Vec::new(),
        },
    ))));
    assert!(matches!(outcome, Outcome::Schedule { .. }), "{outcome:?}");
}

fn schedule(world: &World) -> Schedule {
    let key = keys::schedule(TENANT, &daily());
    let bytes = world.rows(Family::Live, &key).remove(&key);
    crate::store::value::decode(&bytes.expect("the schedule exists")).unwrap()
}

fn status(world: &World) -> ScheduleStatus {
    let key = keys::status(TENANT, &daily());
    let bytes = world.rows(Family::Live, &key).remove(&key);
    crate::store::value::decode(&bytes.expect("the status exists")).unwrap()
}

/// Fires the planned occurrence; the rule goes on at `next`.
fn fire(world: &mut World, next: Option<Timestamp>) -> ExecutionId {
    let (row, at) = (schedule(world), status(world));
    let planned_now = at.next.expect("something is planned");
    world.now = world.now.max(planned_now.due_at);
    let outcome = world.one(Command::Schedule(ScheduleCommand::Fire(FireOccurrences {
        tenant: TENANT,
        id: daily(),
        seen: Seen {
            incarnation: row.incarnation,
            generation: row.generation,
            cursor: at.cursor,
        },
        steps: vec![Step::Create {
            planned: planned_now,
            cause: Cause::Due,
        }],
        plan: Plan {
            cursor: planned_now.nominal_at,
            next: next.map(planned),
        },
    })));
    match outcome {
        Outcome::Fired { mut created, .. } => created.pop().expect("one was created"),
        other => panic!("{other:?}"),
    }
}

fn run(world: &mut World, id: &ExecutionId, action: crate::command::leases::ReportAction) {
    let lease = world.grant("w1", id).lease;
    world.report("w1", &lease, action);
}

fn ledger(world: &World) -> Vec<LedgerRow> {
    let mut rows = world.rows(Family::History, &[]);
    // class u8, bucket u32, tenant u32, tag.
    rows.retain(|key, _| key.get(9) == Some(&keys::LEDGER));
    let decode = |bytes: Vec<u8>| crate::store::value::decode(&bytes).unwrap();
    rows.into_values().map(decode).collect()
}

#[test]
fn a_schedule_learns_how_its_executions_end() {
    let mut world = World::new();
    put(&mut world, spec(When::Cron("* * * * *".into())));
    let minute = |n| START.plus(Millis::minutes(n));
    let good = fire(&mut world, Some(minute(1)));
    assert_eq!(status(&world).open, std::slice::from_ref(&good));
    run(&mut world, &good, complete());
    assert_eq!(world.budget(), 5, "lease, row, history, ledger, status");
    let bad = fire(&mut world, Some(minute(2)));
    run(&mut world, &bad, fail());
    let dropped = fire(&mut world, Some(minute(3)));
    world.cancel(&dropped, CancelMode::Request);
    let at = status(&world);
    assert!(at.open.is_empty());
    assert_eq!(
        (at.succeeded, at.dead_lettered, at.cancelled, at.expired),
        (1, 1, 1, 0)
    );
    assert_eq!(at.failures_in_row, 1);
    let recent: Vec<_> = at.recent.iter().map(|r| (&r.execution, r.state)).collect();
    assert_eq!(
        recent,
        [
            (&good, ExecutionState::Succeeded),
            (&bad, ExecutionState::DeadLettered),
            (&dropped, ExecutionState::Cancelled),
        ]
    );
    let outcomes: Vec<_> = ledger(&world)
        .into_iter()
        .map(|row| match row {
            LedgerRow::Ran {
                nominal_at,
                execution,
                ..
            } => (nominal_at, execution),
            LedgerRow::Skipped { .. } => panic!("{row:?}"),
        })
        .collect();
    assert!(outcomes.contains(&(START, good)));
    assert!(outcomes.contains(&(minute(1), bad)));
    assert!(outcomes.contains(&(minute(2), dropped)));
}

#[test]
fn the_last_ten_outcomes_are_kept() {
    let mut world = World::new();
    put(&mut world, spec(When::Cron("* * * * *".into())));
    let mut ids = Vec::new();
    for n in 1..=13 {
        let id = fire(&mut world, Some(START.plus(Millis::minutes(n))));
        run(&mut world, &id, complete());
        ids.push(id);
    }
    let recent: Vec<_> = status(&world)
        .recent
        .into_iter()
        .map(|r| r.execution)
        .collect();
    assert_eq!(recent, ids[3..]);
    assert_eq!(status(&world).succeeded, 13);
}

#[test]
fn a_schedule_without_a_future_completes_when_its_last_execution_ends() {
    let mut world = World::new();
    put(&mut world, spec(When::At(START)));
    let id = fire(&mut world, None);
    assert_eq!(status(&world).state, ScheduleState::Active);
    run(&mut world, &id, complete());
    let at = status(&world);
    assert_eq!(at.state, ScheduleState::Completed { at: world.now });
    let key = at.due_key.expect("its removal is armed");
    assert_eq!(key.at, world.now.plus(Millis::days(7)));
}

#[test]
fn failures_in_a_row_pause_the_schedule_and_a_success_between_them_does_not() {
    let mut world = World::new();
    let mut definition = spec(When::Cron("* * * * *".into()));
    definition.pause_after_failures = Some(2);
    put(&mut world, definition);
    let mut next = 0;
    let mut fire_next = |world: &mut World, action| {
        next += 1;
        let id = fire(world, Some(START.plus(Millis::minutes(next))));
        run(world, &id, action);
    };
    fire_next(&mut world, fail());
    fire_next(&mut world, complete());
    fire_next(&mut world, fail());
    assert_eq!(status(&world).state, ScheduleState::Active);
    fire_next(&mut world, fail());
    let at = status(&world);
    assert!(
        matches!(at.state, ScheduleState::Paused(_)),
        "{:?}",
        at.state
    );
    assert_eq!((at.next, at.due_key, at.failures_in_row), (None, None, 2));
    assert!(world.audits().contains(&"schedule.pause".to_owned()));
}

#[test]
fn an_expired_or_cancelled_execution_is_no_failure_of_the_work() {
    let mut world = World::new();
    let mut definition = spec(When::Cron("* * * * *".into()));
    definition.pause_after_failures = Some(1);
    definition.template.timeouts.start = Some(Millis::secs(5));
    put(&mut world, definition);
    let id = fire(&mut world, Some(START.plus(Millis::minutes(1))));
    world.cancel(&id, CancelMode::Request);
    fire(&mut world, Some(START.plus(Millis::minutes(2))));
    world.advance(Millis::secs(5));
    assert_eq!(world.process_due(), 1);
    let at = status(&world);
    assert_eq!((at.cancelled, at.expired), (1, 1));
    assert_eq!(at.state, ScheduleState::Active);
}

#[test]
fn an_after_end_rule_plans_from_the_end_of_what_ran() {
    let mut world = World::new();
    let mut definition = spec(When::AfterEnd(Millis::minutes(10)));
    definition.rule.end_at = Some(START.plus(Millis::minutes(40)));
    put(&mut world, definition);
    let id = fire(&mut world, None);
    let lease = world.grant("w1", &id).lease;
    world.advance(Millis::secs(8));
    world.report("w1", &lease, complete());
    let expected = START.plus(Millis::secs(608));
    assert_eq!(status(&world).next, Some(planned(expected)));
    // The next one ends after the rule does.
    let id = fire(&mut world, None);
    let lease = world.grant("w1", &id).lease;
    world.advance(Millis::secs(9));
    world.report("w1", &lease, complete());
    assert!(status(&world).next.is_some());
    let id = fire(&mut world, None);
    let lease = world.grant("w1", &id).lease;
    world.advance(Millis::secs(9));
    world.report("w1", &lease, complete());
    assert!(status(&world).next.is_some());
    let id = fire(&mut world, None);
    world.advance(Millis::minutes(20));
    world.cancel(&id, CancelMode::Request);
    assert!(matches!(
        status(&world).state,
        ScheduleState::Completed { .. }
    ));
}

#[test]
fn an_after_end_rule_waits_for_everything_open() {
    let mut world = World::new();
    put(&mut world, spec(When::AfterEnd(Millis::minutes(10))));
    let ruled = fire(&mut world, None);
    let outcome = world.one(Command::Schedule(ScheduleCommand::Trigger(
        TriggerSchedule {
            tenant: TenantId::default_tenant(),
            id: daily(),
            payload: None,
            overlap: None,
            traceparent: None,
        },
    )));
    assert!(matches!(outcome, Outcome::Submitted { .. }), "{outcome:?}");
    run(&mut world, &ruled, complete());
    assert_eq!(status(&world).next, None);
    let manual = status(&world).open[0].clone();
    run(&mut world, &manual, complete());
    assert_eq!(ledger(&world).len(), 2);
    let expected = world.now.plus(Millis::minutes(10));
    assert_eq!(status(&world).next, Some(planned(expected)));
}

#[test]
fn what_was_fired_by_hand_is_in_the_ledger_and_counts_to_no_bound() {
    let mut world = World::new();
    put(&mut world, spec(When::Cron("* * * * *".into())));
    let nominal_at = world.now;
    // Two by hand at the very instant of an occurrence: none takes the place of another.
    let by_rule = fire(&mut world, Some(START.plus(Millis::minutes(1))));
    world.trigger(daily().as_str());
    world.trigger(daily().as_str());
    let open = status(&world).open;
    assert_eq!(open.len(), 3);
    for id in &open {
        run(&mut world, id, complete());
    }
    let mut ran: Vec<_> = ledger(&world)
        .into_iter()
        .map(|row| match row {
            LedgerRow::Ran {
                nominal_at,
                execution,
                cause,
                ..
            } => (execution, cause, nominal_at),
            LedgerRow::Skipped { .. } => panic!("nothing was skipped"),
        })
        .collect();
    ran.sort_by_key(|(id, ..)| open.iter().position(|o| o == id));
    let row = |at: usize, cause| (open[at].clone(), cause, nominal_at);
    let expected = [
        row(0, Cause::Due),
        row(1, Cause::Triggered),
        row(2, Cause::Triggered),
    ];
    assert_eq!(ran, expected);
    assert_eq!(open[0], by_rule);
    assert_eq!(status(&world).created_count, 1);
    assert_eq!(status(&world).succeeded, 3);
}

#[test]
fn executions_outlive_their_schedule() {
    let mut world = World::new();
    put(&mut world, spec(When::Cron("* * * * *".into())));
    let id = fire(&mut world, Some(START.plus(Millis::minutes(1))));
    let old = schedule(&world).incarnation;
    world.one(Command::Schedule(ScheduleCommand::Delete(
        crate::command::schedules::DeleteSchedule {
            tenant: TenantId::default_tenant(),
            id: daily(),
            expect: Expect::Any,
        },
    )));
    // Another of the name must not count it.
    put(&mut world, spec(When::Cron("* * * * *".into())));
    assert_ne!(schedule(&world).incarnation, old);
    run(&mut world, &id, complete());
    assert_eq!(status(&world).succeeded, 0);
    assert_eq!(ledger(&world).len(), 1);
}

#[test]
fn retention_follows_the_final_state() {
    let mut world = World::new();
    let (good, bad) = (world.plain(), world.plain());
    run(&mut world, &good, complete());
    let lease = world.grant("w1", &bad).lease;
    let fatal = crate::command::leases::ReportAction::Fail {
        error: Vec::new(),
        error_type: Some("Fatal".into()),
        retryable: true,
        retry_in: None,
        draw: 0,
        truncated: false,
    };
    world.report("w1", &lease, fatal);
    assert_eq!(
        world.must_have_ended(&bad).reason,
        FinalReason::NonRetryable
    );
    let mut rows = world.rows(Family::History, &[]);
    rows.retain(|key, _| key.get(9) == Some(&keys::FINAL));
    let classes: Vec<_> = rows
        .keys()
        .map(|key| RetentionClass(key[0]).span())
        .collect();
    assert_eq!(classes, [Millis::days(3), Millis::days(90)]);
}
