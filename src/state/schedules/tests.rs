//! Definition, pause, resume and removal of schedules (semantics, sections 1.5, 3.6, 3.8 and 3.9).

use super::*;
use crate::command::outcome::{Quota, Refusal};
use crate::command::schedules::{RemoveSchedule, ScheduleCommand, Step};
use crate::command::{Actor, Command, Envelope, Expect};
use crate::ids::{QueueNo, Revision};
use crate::model::policy::PauseInfo;
use crate::model::queue::QueueSpec;
use crate::model::schedule::{GENERATIONS_MAX, SkipReason};
use crate::model::tenant::TenantSpec;
use crate::state::testkit::{
    START, TENANT, World, a_put, complete, create, minute, plan, queue_id, skip, tenant_id,
};
use crate::store::due::DueEntry;
use crate::time::{Millis, Timestamp};

const SUPERSEDED: Outcome = Outcome::Refused(Refusal::Superseded);

fn did(outcome: &Outcome) -> Written {
    match outcome {
        Outcome::Schedule { written, .. } => *written,
        other => panic!("expected a schedule, got {other:?}"),
    }
}

fn with_schedule() -> World {
    let mut world = World::new();
    assert_eq!(did(&world.put_seen(a_put("s"))), Written::Created);
    world
}

/// Kind and time of the only due entry, if there is one.
fn due(world: &World) -> Option<(DueKind, Timestamp)> {
    let entries: Vec<DueEntry> = world.due_entries();
    assert!(entries.len() <= 1, "{entries:?}");
    entries.first().map(|entry| (entry.kind, entry.key.at))
}

fn changed(text: &str) -> crate::command::schedules::PutSchedule {
    let mut put = a_put("s");
    put.spec.description = text.to_owned();
    put
}

fn is_completed(world: &World) -> bool {
    matches!(world.status("s").state, ScheduleState::Completed { .. })
}

#[test]
fn a_new_schedule_is_active_with_its_next_occurrence_in_the_due_index() {
    let world = with_schedule();
    let (schedule, status) = world.schedule("s");
    assert_eq!(schedule.generation, 1);
    assert_eq!(schedule.revision, Revision::new(schedule.incarnation, 0));
    assert_eq!((schedule.created_at, schedule.updated_at), (START, START));
    assert_eq!(status.state, ScheduleState::Active);
    assert_eq!(due(&world), Some((DueKind::Occurrence, minute(1))));
    assert_eq!(world.state.usage[&TENANT].schedules, 1);
    assert_eq!(world.state.counts[&(QueueNo::DEFAULT, TENANT)].schedules, 1);
}

#[test]
fn equal_content_is_unchanged_whatever_was_seen_and_planned() {
    let mut world = with_schedule();
    let before = world.schedule("s");
    world.now = minute(1);
    let mut again = a_put("s");
    again.plan = plan(minute(1), Some(minute(2)));
    let command = Command::Schedule(ScheduleCommand::Put(Box::new(again)));
    assert_eq!(did(&world.one(command)), Written::Unchanged);
    assert_eq!(world.schedule("s"), before, "an interval keeps its phase");
    assert_eq!(
        world.writes.ops.len(),
        1,
        "only the applied position is written"
    );
}

#[test]
fn an_edit_counts_a_generation_keeps_the_incarnation_and_plans_again() {
    let mut world = with_schedule();
    let (before, _) = world.schedule("s");
    world.now = minute(1).minus(Millis::secs(30));
    let mut put = changed("two");
    put.plan = plan(world.now, Some(minute(10)));
    let outcome = world.put_seen(put);
    assert_eq!(did(&outcome), Written::Updated);
    let (after, status) = world.schedule("s");
    assert_eq!(after.generation, 2);
    assert_eq!(after.incarnation, before.incarnation);
    assert!(after.revision > before.revision);
    assert_eq!((after.created_at, after.updated_at), (START, world.now));
    assert_eq!(status.cursor, world.now);
    assert_eq!(due(&world), Some((DueKind::Occurrence, minute(10))));
    let key = keys::generation(TENANT, &after.id, after.incarnation, 1);
    let kept: Option<Schedule> =
        crate::state::resident::read(&world.store, Family::Live, &key).expect("reads");
    assert_eq!(kept, Some(before), "the former definition is kept");
}

#[test]
fn the_last_hundred_definitions_are_kept_and_go_with_the_schedule() {
    let mut world = with_schedule();
    for n in 0..GENERATIONS_MAX + 20 {
        world.put_seen(changed(&n.to_string()));
    }
    let kept = world.rows(Family::Live, &[keys::GENERATION]).len() as u64;
    assert_eq!(kept + 1, GENERATIONS_MAX, "with the present one");
    world.delete_schedule("s");
    assert!(world.rows(Family::Live, &[]).is_empty());
}

#[test]
fn a_plan_made_from_an_older_state_is_superseded() {
    let mut world = with_schedule();
    let mut stale = changed("two");
    stale.seen = Some(world.seen("s"));
    world.now = minute(1);
    world.fired(
        "s",
        vec![create(minute(1))],
        plan(minute(1), Some(minute(2))),
    );
    let put = |put| Command::Schedule(ScheduleCommand::Put(Box::new(put)));
    assert_eq!(
        world.one(put(stale.clone())),
        SUPERSEDED,
        "it fired meanwhile"
    );
    stale.seen = None;
    assert_eq!(world.one(put(stale)), SUPERSEDED, "it exists");
    let mut absent = a_put("t");
    absent.seen = Some(world.seen("s"));
    assert_eq!(world.one(put(absent)), SUPERSEDED, "it does not exist");
    let mut back = changed("two");
    back.plan = plan(START, Some(minute(1)));
    assert_eq!(
        world.put_seen(back),
        SUPERSEDED,
        "it would decide minute 1 again"
    );
}

#[test]
fn a_conditional_edit_is_not_disturbed_by_firing_but_by_an_edit() {
    let mut world = with_schedule();
    let (before, _) = world.schedule("s");
    world.now = minute(1);
    world.fired(
        "s",
        vec![create(minute(1))],
        plan(minute(1), Some(minute(2))),
    );
    let mut conditional = changed("two");
    conditional.expect = Expect::Revision(before.revision);
    conditional.plan = plan(minute(1), Some(minute(2)));
    assert_eq!(did(&world.put_seen(conditional.clone())), Written::Updated);
    conditional.spec.description = "three".into();
    let (now, _) = world.schedule("s");
    let current = now.revision;
    let refused = world.put_seen(conditional);
    assert_eq!(
        refused,
        Outcome::Refused(Refusal::RevisionMismatch { current })
    );
    let mut absent = changed("three");
    absent.expect = Expect::Absent;
    let refused = world.put_seen(absent);
    let revision = current;
    assert_eq!(
        refused,
        Outcome::Refused(Refusal::AlreadyExists { revision })
    );
}

#[test]
fn what_an_edit_drops_is_recorded_as_superseded() {
    let mut world = with_schedule();
    world.now = minute(3);
    let mut put = changed("two");
    put.plan = plan(minute(3), Some(minute(60)));
    put.dropped = vec![skip(minute(1), minute(3), 3, SkipReason::Superseded)];
    world.put_seen(put.clone());
    assert_eq!(world.skips(), put.dropped);
    assert_eq!(world.status("s").skipped[&SkipReason::Superseded], 3);
}

#[test]
fn schedules_are_bounded_by_the_tenants_quota() {
    let mut world = World::new();
    let spec = TenantSpec {
        schedules_max: Some(1),
        ..TenantSpec::default()
    };
    world.put_tenant("default", spec, Expect::Any);
    world.put_seen(a_put("s"));
    let refused = world.put_seen(a_put("t"));
    let (quota, limit, current) = (Quota::Schedules, 1, 1);
    let wanted = Refusal::QuotaExceeded {
        quota,
        limit,
        current,
    };
    assert_eq!(refused, Outcome::Refused(wanted));
    assert_eq!(
        did(&world.put_seen(changed("edits go on"))),
        Written::Updated
    );
    world.delete_schedule("s");
    assert_eq!(did(&world.put_seen(a_put("t"))), Written::Created);
}

#[test]
fn a_schedule_needs_a_tenant_and_a_queue_that_admits_it() {
    let mut world = World::new();
    let mut put = a_put("s");
    put.tenant = tenant_id("nobody");
    let command = Command::Schedule(ScheduleCommand::Put(Box::new(put)));
    assert_eq!(
        world.one(command),
        Outcome::Refused(Refusal::TenantNotFound)
    );
    let spec = QueueSpec {
        allowed_tenants: Some([tenant_id("other")].into()),
        ..QueueSpec::default()
    };
    world.put_queue(queue_id("closed"), spec, Expect::Any);
    let mut put = a_put("s");
    put.queue = queue_id("closed");
    assert_eq!(
        world.put_seen(put),
        Outcome::Refused(Refusal::QueueNotAllowed)
    );
    let mut put = a_put("s");
    put.queue = queue_id("new");
    world.put_seen(put);
    let number = world.state.queue_numbers[&queue_id("new")];
    assert_eq!(world.schedule("s").0.queue, number, "it came into being");
}

#[test]
fn a_put_never_resumes_a_paused_schedule() {
    let mut world = with_schedule();
    world.pause("s", Some(minute(30)));
    assert_eq!(due(&world), Some((DueKind::PauseEnd, minute(30))));
    let mut put = changed("two");
    put.plan = plan(START, Some(minute(5)));
    assert_eq!(did(&world.put_seen(put)), Written::Updated);
    let status = world.status("s");
    assert!(matches!(status.state, ScheduleState::Paused(_)));
    assert_eq!(status.next, None);
    assert_eq!(due(&world), Some((DueKind::PauseEnd, minute(30))));
}

#[test]
fn a_pause_says_who_why_since_and_until_and_is_idempotent() {
    let mut world = with_schedule();
    world.now = minute(1);
    let envelope = |command| Envelope {
        actor: Actor::Named("ada".into()),
        reason: Some("deploy".into()),
        ..Envelope::leader(command)
    };
    let pause = |until| {
        Command::Schedule(ScheduleCommand::Pause(
            crate::command::schedules::PauseSchedule {
                tenant: TenantId::default_tenant(),
                id: ScheduleId::new("s").expect("a name"),
                expect: Expect::Any,
                until,
            },
        ))
    };
    world.apply(vec![envelope(pause(None))]);
    let info = PauseInfo {
        by: "ada".into(),
        reason: Some("deploy".into()),
        since: minute(1),
        until: None,
    };
    assert_eq!(world.status("s").state, ScheduleState::Paused(info.clone()));
    assert_eq!(due(&world), None);
    world.now = minute(2);
    assert_eq!(did(&world.pause("s", None)), Written::Unchanged);
    assert_eq!(did(&world.pause("s", Some(minute(9)))), Written::Updated);
    let until = Some(minute(9));
    let longer = PauseInfo { until, ..info };
    assert_eq!(world.status("s").state, ScheduleState::Paused(longer));
    assert_eq!(due(&world), Some((DueKind::PauseEnd, minute(9))));
    let wanted = vec!["schedule.pause default/s", "schedule.pause default/s"];
    assert_eq!(world.audited(), wanted);
}

#[test]
fn a_resume_catches_up_only_what_it_is_told() {
    let mut world = with_schedule();
    world.pause("s", None);
    world.now = minute(10);
    let span = Step::Skip(skip(minute(1), minute(8), 8, SkipReason::Paused));
    let steps = vec![span, create(minute(9)), create(minute(10))];
    let outcome = world.resume("s", steps, plan(minute(10), Some(minute(11))));
    assert_eq!(did(&outcome), Written::Updated);
    let status = world.status("s");
    assert_eq!(status.state, ScheduleState::Active);
    assert_eq!(status.open.len(), 2);
    assert_eq!(status.skipped[&SkipReason::Paused], 8);
    assert_eq!(
        world.skips()[0],
        skip(minute(1), minute(8), 8, SkipReason::Paused)
    );
    assert_eq!(due(&world), Some((DueKind::Occurrence, minute(11))));
    let again = world.resume("s", Vec::new(), plan(minute(10), Some(minute(11))));
    assert_eq!(
        did(&again),
        Written::Unchanged,
        "an active one stays as it is"
    );
}

#[test]
fn a_resume_planned_before_an_edit_is_superseded() {
    let mut world = with_schedule();
    world.pause("s", None);
    let stale = world.a_resume("s", Vec::new(), plan(minute(1), Some(minute(2))));
    let mut put = changed("two");
    put.plan = plan(START, Some(minute(5)));
    world.put_seen(put);
    assert_eq!(world.one(stale), SUPERSEDED);
    assert!(matches!(world.status("s").state, ScheduleState::Paused(_)));
}

#[test]
fn the_leader_ends_a_timed_pause_only_when_its_time_has_come() {
    let mut world = with_schedule();
    world.pause("s", Some(minute(5)));
    world.now = minute(4);
    let resume = |world: &mut World| {
        let command = world.a_resume("s", Vec::new(), plan(minute(5), Some(minute(6))));
        world.apply(vec![Envelope::leader(command)]).remove(0)
    };
    assert_eq!(resume(&mut world), SUPERSEDED);
    world.pause("s", Some(minute(7)));
    world.now = minute(5);
    assert_eq!(resume(&mut world), SUPERSEDED, "it was prolonged");
    world.now = minute(7);
    assert_eq!(did(&resume(&mut world)), Written::Updated);
}

#[test]
fn a_schedule_without_a_future_completes_and_is_removed_when_its_time_is_over() {
    let mut world = World::new();
    let mut put = a_put("s");
    put.plan = plan(START, None);
    put.spec.keep_for = Millis::days(2);
    world.put_seen(put);
    assert!(is_completed(&world));
    let end = START.plus(Millis::days(2));
    assert_eq!(due(&world), Some((DueKind::Removal, end)));
    for refused in [
        world.pause("s", None),
        world.resume("s", Vec::new(), plan(START, None)),
    ] {
        assert_eq!(refused, Outcome::Refused(Refusal::ScheduleCompleted));
    }
    let (schedule, _) = world.schedule("s");
    let remove = |world: &mut World, incarnation| {
        let remove = RemoveSchedule {
            tenant: TENANT,
            id: ScheduleId::new("s").expect("a name"),
            incarnation,
        };
        world.one(Command::Schedule(ScheduleCommand::Remove(remove)))
    };
    world.now = end.minus(Millis(1));
    assert_eq!(
        remove(&mut world, schedule.incarnation),
        SUPERSEDED,
        "too early"
    );
    world.now = end;
    assert_eq!(
        remove(&mut world, schedule.incarnation + 1),
        SUPERSEDED,
        "another one"
    );
    assert_eq!(remove(&mut world, schedule.incarnation), Outcome::Done);
    assert_eq!(remove(&mut world, schedule.incarnation), SUPERSEDED, "gone");
    assert!(world.rows(Family::Live, &[]).is_empty());
    assert_eq!(world.state.usage[&TENANT].schedules, 0);
}

#[test]
fn an_edit_gives_a_completed_schedule_a_future_again() {
    let mut world = World::new();
    let mut put = a_put("s");
    put.plan = plan(START, None);
    world.put_seen(put);
    world.now = minute(1);
    let mut longer = changed("kept longer");
    longer.plan = plan(minute(1), None);
    longer.spec.keep_for = Millis::days(30);
    world.put_seen(longer);
    let end = START.plus(Millis::days(30));
    assert_eq!(
        due(&world),
        Some((DueKind::Removal, end)),
        "completed since then"
    );
    let mut again = changed("again");
    again.plan = plan(minute(1), Some(minute(2)));
    world.put_seen(again);
    assert_eq!(world.status("s").state, ScheduleState::Active);
    assert_eq!(due(&world), Some((DueKind::Occurrence, minute(2))));
}

#[test]
fn a_one_time_schedule_completes_when_its_execution_has_ended() {
    let mut world = with_schedule();
    world.now = minute(1);
    let made = world.fired("s", vec![create(minute(1))], plan(minute(1), None));
    assert!(!is_completed(&world));
    let granted = world.grant("w", &made[0]);
    world.report("w", &granted.lease, complete());
    assert!(is_completed(&world));
    assert_eq!(world.status("s").succeeded, 1);
}

#[test]
fn a_deleted_schedule_leaves_its_open_executions_and_can_be_made_anew() {
    let mut world = with_schedule();
    world.now = minute(1);
    let made = world.fired(
        "s",
        vec![create(minute(1))],
        plan(minute(1), Some(minute(2))),
    );
    let (first, _) = world.schedule("s");
    assert_eq!(did(&world.delete_schedule("s")), Written::Deleted);
    assert_eq!(
        world.delete_schedule("s"),
        Outcome::Refused(Refusal::ScheduleNotFound)
    );
    assert!(world.open(&made[0]).is_some());
    assert_eq!(due(&world), None);
    let mut put = a_put("s");
    put.plan = plan(minute(1), Some(minute(2)));
    world.put_seen(put);
    let (second, status) = world.schedule("s");
    assert!(second.incarnation > first.incarnation);
    assert_eq!(second.generation, 1);
    assert!(
        status.open.is_empty(),
        "the open one is of another incarnation"
    );
    let granted = world.grant("w", &made[0]);
    world.report("w", &granted.lease, complete());
    assert_eq!(world.status("s").succeeded, 0);
}

#[test]
fn an_entry_does_not_delete_what_it_created() {
    let mut world = World::new();
    let put = Envelope::leader(Command::Schedule(ScheduleCommand::Put(Box::new(a_put(
        "s",
    )))));
    let delete = Envelope::leader(Command::Schedule(ScheduleCommand::Delete(
        crate::command::schedules::DeleteSchedule {
            tenant: TenantId::default_tenant(),
            id: ScheduleId::new("s").expect("a name"),
            expect: Expect::Any,
        },
    )));
    let outcomes = world.apply(vec![put.clone(), delete, put]);
    assert_eq!(did(&outcomes[0]), Written::Created);
    assert_eq!(outcomes[1], SUPERSEDED);
    assert_eq!(did(&outcomes[2]), Written::Unchanged);
}

#[test]
fn a_creation_is_audited_when_it_says_more_than_the_row() {
    let mut world = with_schedule();
    assert!(world.audited().is_empty(), "nobody said who or why");
    let put = Command::Schedule(ScheduleCommand::Put(Box::new(a_put("t"))));
    let named = Envelope {
        actor: Actor::Named("ada".into()),
        ..Envelope::leader(put)
    };
    world.apply(vec![named]);
    assert_eq!(world.audited(), vec!["schedule.create default/t"]);
    world.put_seen(changed("two"));
    assert_eq!(world.audited().len(), 2, "every replacement is");
}
