//! Creating, finding again, refusing, deleting, and what time does to executions outside a lease.

use super::*;
use crate::command::admin::{AdminCommand, PutQueue, PutTenant};
use crate::command::executions::{
    CancelMode, DeleteExecution, ExecutionCommand, OnConflict, ProcessDue, SubmitExecution,
    UniqueKey,
};
use crate::command::outcome::Effect;
use crate::command::{Command, Expect, Idempotency};
use crate::ids::{QueueId, TenantId};
use crate::model::execution::FinalReason;
use crate::model::queue::QueueSpec;
use crate::model::tenant::TenantSpec;
use crate::state::testkit::*;
use crate::time::Millis;

fn created(world: &mut World, submission: SubmitExecution) -> Written {
    match world.one(submit_command(submission)) {
        Outcome::Submitted { written, .. } => written,
        other => panic!("{other:?}"),
    }
}

fn refused(world: &mut World, submission: SubmitExecution) -> Refusal {
    match world.one(submit_command(submission)) {
        Outcome::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

fn delete_command(id: &ExecutionId) -> Command {
    Command::Execution(ExecutionCommand::Delete(DeleteExecution {
        tenant: TenantId::default_tenant(),
        id: id.clone(),
    }))
}

#[test]
fn what_is_due_is_ready_and_what_is_not_waits() {
    let mut world = World::new();
    let now = world.now;
    for (due_at, state) in [
        (now.minus(Millis::days(20_000)), ExecutionState::Ready),
        (now, ExecutionState::Ready),
        (now.plus(Millis(1)), ExecutionState::Waiting),
        (now.plus(Millis::days(400)), ExecutionState::Waiting),
    ] {
        let id = world.submit(submission(due_at));
        assert_eq!(world.budget(), 2, "row and place");
        let row = world.must_open(&id);
        assert_eq!((row.state, row.due_at), (state, due_at));
    }
}

#[test]
fn a_waiting_one_becomes_ready_at_its_time_and_keeps_it_as_its_place() {
    let mut world = World::new();
    let due_at = world.now.plus(Millis::secs(5));
    let id = world.submit(submission(due_at));
    world.advance(Millis::secs(60));
    assert_eq!(world.process_due(), 1);
    let row = world.must_open(&id);
    assert_eq!(
        (row.state, row.line_at),
        (ExecutionState::Ready, Some(due_at))
    );
    assert_eq!(row.due_key, None);
    let offered = |e: &Effect| matches!(e, Effect::OfferReady(item) if item.execution == id);
    assert!(world.effects.iter().any(offered));
}

#[test]
fn due_entries_that_are_early_moved_or_of_another_kind_are_passed_over() {
    let mut world = World::new();
    let due_at = world.now.plus(Millis::secs(5));
    let id = world.submit(submission(due_at));
    let entry = world.due_entries().remove(0);
    let process = |items| Command::Execution(ExecutionCommand::ProcessDue(ProcessDue { items }));
    let early = world.one(process(vec![entry.clone()]));
    assert_eq!(early, Outcome::Processed { done: 0 });
    world.advance(Millis::secs(5));
    let mut other_kind = entry.clone();
    other_kind.kind = DueKind::StartDeadline;
    let mut stranger = entry.clone();
    stranger.id = "nobody".into();
    let mut moved = entry.clone();
    moved.key.at = moved.key.at.minus(Millis(1));
    let outcome = world.one(process(vec![other_kind, stranger, moved]));
    assert_eq!(outcome, Outcome::Processed { done: 0 });
    let twice = world.one(process(vec![entry.clone(), entry]));
    assert_eq!(twice, Outcome::Processed { done: 1 });
    assert_eq!(world.must_open(&id).state, ExecutionState::Ready);
}

#[test]
fn a_start_deadline_counts_from_the_due_time_and_expires() {
    let mut world = World::new();
    let due_at = world.now.plus(Millis::secs(10));
    let mut late = submission(due_at);
    late.template.timeouts.start = Some(Millis::secs(5));
    let id = world.submit(late);
    world.advance(Millis::secs(10));
    world.process_due();
    world.advance(Millis(4_999));
    assert_eq!(world.process_due(), 0);
    world.advance(Millis(1));
    assert_eq!(world.process_due(), 1);
    let done = world.must_have_ended(&id);
    assert_eq!(done.execution.state, ExecutionState::Expired);
    assert_eq!(done.reason, FinalReason::StartTimeout);
    assert_eq!(done.execution.started_at, None);
}

#[test]
fn a_large_payload_is_stored_apart_while_open_and_inside_when_final() {
    let mut world = World::new();
    for (len, apart) in [(INLINE_PAYLOAD_MAX, false), (INLINE_PAYLOAD_MAX + 1, true)] {
        let mut large = submission(world.now);
        large.template.payload = vec![b'7'; len];
        let id = world.submit(large);
        let row = world.must_open(&id);
        let body = StoredPayload::Body {
            len: u32::try_from(len).unwrap(),
        };
        assert_eq!(row.payload == body, apart);
        assert_eq!(world.rows(Family::Body, &[]).len(), usize::from(apart));
        world.cancel(&id, CancelMode::Request);
        let done = world.must_have_ended(&id).execution;
        assert_eq!(done.payload, StoredPayload::Inline);
        assert_eq!(done.template.payload.len(), len);
        assert!(world.rows(Family::Body, &[]).is_empty());
    }
}

#[test]
fn a_chosen_id_names_one_execution_for_as_long_as_it_is_kept() {
    let mut world = World::new();
    let id = ExecutionId::new("order-77").unwrap();
    let mine = SubmitExecution {
        id: Some(id.clone()),
        ..submission(world.now)
    };
    let other = SubmitExecution {
        fingerprint: 8,
        ..mine.clone()
    };
    assert_eq!(created(&mut world, mine.clone()), Written::Created);
    assert_eq!(world.budget(), 3, "row, line, pointer");
    assert_eq!(created(&mut world, mine.clone()), Written::Existing);
    assert_eq!(refused(&mut world, other.clone()), Refusal::IdConflict);
    // In one entry, too.
    let second = SubmitExecution {
        id: Some(ExecutionId::new("order-78").unwrap()),
        ..mine.clone()
    };
    let commands = vec![second.clone(), second];
    let outcomes = world.apply(
        commands
            .into_iter()
            .map(|s| by_anyone(submit_command(s), None))
            .collect(),
    );
    let existing = |o: &Outcome| {
        matches!(
            o,
            Outcome::Submitted {
                written: Written::Existing,
                ..
            }
        )
    };
    assert!(!existing(&outcomes[0]) && existing(&outcomes[1]));
    // After the end it still answers.
    let lease = world.grant("w1", &id).lease;
    world.report("w1", &lease, complete());
    assert_eq!(created(&mut world, mine), Written::Existing);
    assert_eq!(refused(&mut world, other.clone()), Refusal::IdConflict);
    // Deleted, it is free again.
    world.one(delete_command(&id));
    assert_eq!(created(&mut world, other), Written::Created);
}

#[test]
fn a_chosen_id_whose_history_has_passed_is_free() {
    let mut world = World::new();
    let mine = SubmitExecution {
        id: Some(ExecutionId::new("order-77").unwrap()),
        ..submission(world.now)
    };
    let id = world.submit(mine.clone());
    let lease = world.grant("w1", &id).lease;
    world.report("w1", &lease, complete());
    world.advance(Millis::days(5));
    let class = history::class_for(&world.state, QueueNo::DEFAULT, ExecutionState::Succeeded);
    world.one(Command::Admin(AdminCommand::AdvanceRetention(
        crate::command::admin::AdvanceRetention {
            classes: vec![(class.0, class.first_kept(world.now))],
            idempotency_from: None,
            forget: Vec::new(),
        },
    )));
    assert_eq!(world.ended(&id), None);
    assert_eq!(created(&mut world, mine), Written::Created);
}

#[test]
fn an_id_that_could_be_minted_cannot_be_chosen() {
    let mut world = World::new();
    let minted = world.plain();
    let future = ExecutionId::mint(world.next_token() + 5, 0, TENANT);
    for id in [minted, future] {
        let mine = SubmitExecution {
            id: Some(id),
            ..submission(world.now)
        };
        assert_eq!(refused(&mut world, mine), Refusal::IdConflict);
    }
}

fn unique(world: &World, on_conflict: OnConflict) -> SubmitExecution {
    SubmitExecution {
        unique: Some(UniqueKey {
            key: "u".into(),
            on_conflict,
        }),
        ..submission(world.now)
    }
}

#[test]
fn a_unique_key_has_one_open_holder() {
    let mut world = World::new();
    let first = unique(&world, OnConflict::Reject);
    let holder = world.submit(first.clone());
    assert_eq!(world.budget(), 3, "row, line, holder");
    let held = Refusal::UniqueKeyHeld {
        holder: holder.clone(),
    };
    assert_eq!(refused(&mut world, first.clone()), held);
    let existing = unique(&world, OnConflict::ReturnExisting);
    let outcome = world.one(submit_command(existing));
    let answer = Outcome::Submitted {
        written: Written::Existing,
        tenant: TENANT,
        execution: holder.clone(),
    };
    assert_eq!(outcome, answer);
    let lease = world.grant("w1", &holder).lease;
    world.report("w1", &lease, complete());
    assert_eq!(created(&mut world, first), Written::Created);
}

#[test]
fn a_replacement_cancels_a_holder_that_is_not_leased_and_only_such() {
    let mut world = World::new();
    let first = world.submit(unique(&world, OnConflict::Reject));
    let replacement = unique(&world, OnConflict::Replace);
    assert_eq!(created(&mut world, replacement.clone()), Written::Replaced);
    let done = world.must_have_ended(&first);
    assert_eq!(done.execution.state, ExecutionState::Cancelled);
    let Outcome::Submitted { execution, .. } = world.one(submit_command(replacement.clone()))
    else {
        panic!("it is replaced again");
    };
    world.grant("w1", &execution);
    let held = Refusal::UniqueKeyHeld { holder: execution };
    assert_eq!(refused(&mut world, replacement), held);
}

#[test]
fn a_unique_key_is_free_after_its_holders_crash_and_not_before() {
    let mut world = World::new();
    let mut first = unique(&world, OnConflict::Reject);
    first.template.retry.max_attempts = 1;
    let holder = world.submit(first.clone());
    let lease = world.grant("w1", &holder).lease;
    world.advance(Millis::secs(5));
    let held = Refusal::UniqueKeyHeld {
        holder: holder.clone(),
    };
    assert_eq!(refused(&mut world, first.clone()), held);
    world.advance(LEASE);
    world.expire(&lease);
    assert_eq!(created(&mut world, first), Written::Created);
    let done = world.must_have_ended(&holder);
    assert_eq!(done.execution.attempts[0].outcome.as_str(), "lease_expired");
}

fn put_tenant(world: &mut World, open_executions_max: Option<u64>) {
    world.one(Command::Admin(AdminCommand::PutTenant(PutTenant {
        tenant: TenantId::default_tenant(),
        spec: TenantSpec {
            open_executions_max,
            ..TenantSpec::default()
        },
        expect: Expect::Any,
    })));
}

fn put_queue(world: &mut World, spec: QueueSpec) {
    world.one(Command::Admin(AdminCommand::PutQueue(PutQueue {
        queue: QueueId::default_queue(),
        spec,
        expect: Expect::Any,
    })));
}

#[test]
fn a_tenant_opens_no_more_than_its_quota() {
    let mut world = World::new();
    put_tenant(&mut world, Some(2));
    let first = world.plain();
    world.plain();
    let full = Refusal::QuotaExceeded {
        quota: Quota::OpenExecutions,
        limit: 2,
        current: 2,
    };
    let more = submission(world.now);
    assert_eq!(refused(&mut world, more.clone()), full);
    // A leased one is open.
    let lease = world.grant("w1", &first).lease;
    assert_eq!(refused(&mut world, more.clone()), full);
    world.report("w1", &lease, complete());
    assert_eq!(created(&mut world, more), Written::Created);
}

#[test]
fn a_queue_holds_no_more_pending_than_its_bound_and_retries_come_back_over_it() {
    let mut world = World::new();
    put_queue(
        &mut world,
        QueueSpec {
            max_pending: Some(2),
            ..QueueSpec::default()
        },
    );
    let first = world.plain();
    let later = world.now.plus(Millis::secs(9));
    world.submit(submission(later));
    let full = Refusal::QuotaExceeded {
        quota: Quota::MaxPending,
        limit: 2,
        current: 2,
    };
    let more = submission(world.now);
    assert_eq!(refused(&mut world, more.clone()), full);
    let lease = world.grant("w1", &first).lease;
    assert_eq!(created(&mut world, more.clone()), Written::Created);
    world.report("w1", &lease, fail());
    world.advance(Millis::secs(1));
    assert_eq!(world.process_due(), 1, "admitted work comes back");
    let over = Refusal::QuotaExceeded {
        quota: Quota::MaxPending,
        limit: 2,
        current: 3,
    };
    assert_eq!(refused(&mut world, more), over);
}

#[test]
fn a_replacement_needs_no_room_of_its_own() {
    let mut world = World::new();
    put_tenant(&mut world, Some(1));
    put_queue(
        &mut world,
        QueueSpec {
            max_pending: Some(1),
            ..QueueSpec::default()
        },
    );
    world.submit(unique(&world, OnConflict::Reject));
    let replacement = unique(&world, OnConflict::Replace);
    assert_eq!(created(&mut world, replacement), Written::Replaced);
}

#[test]
fn a_queue_that_names_its_tenants_refuses_others() {
    let mut world = World::new();
    put_queue(
        &mut world,
        QueueSpec {
            allowed_tenants: Some([TenantId::new("other").unwrap()].into()),
            ..QueueSpec::default()
        },
    );
    let mine = submission(world.now);
    assert_eq!(refused(&mut world, mine), Refusal::QueueNotAllowed);
}

#[test]
fn the_queue_comes_into_being_and_the_tenant_does_not() {
    let mut world = World::new();
    let mut mine = submission(world.now);
    mine.queue = QueueId::new("mail").unwrap();
    assert_eq!(created(&mut world, mine.clone()), Written::Created);
    assert!(world.state.queue_numbers.contains_key("mail"));
    mine.tenant = TenantId::new("nobody").unwrap();
    mine.queue = QueueId::new("other").unwrap();
    assert_eq!(refused(&mut world, mine), Refusal::TenantNotFound);
    assert!(!world.state.queue_numbers.contains_key("other"));
}

#[test]
fn a_final_one_is_deleted_with_one_record_and_an_open_one_is_not() {
    let mut world = World::new();
    let id = world.plain();
    let refused = Outcome::Refused(Refusal::NotFinal);
    assert_eq!(world.one(delete_command(&id)), refused);
    let lease = world.grant("w1", &id).lease;
    assert_eq!(world.one(delete_command(&id)), refused);
    world.report("w1", &lease, complete());
    let outcome = world.one(delete_command(&id));
    assert!(matches!(
        outcome,
        Outcome::Written {
            written: Written::Deleted,
            ..
        }
    ));
    assert_eq!(world.ended(&id), None);
    let gone = Outcome::Refused(Refusal::ExecutionNotFound);
    assert_eq!(world.one(delete_command(&id)), gone);
    assert_eq!(world.audits(), ["execution.delete"]);
}

#[test]
fn an_idempotency_key_answers_the_first_outcome_for_a_day() {
    let mut world = World::new();
    let keyed = |world: &World, fingerprint| {
        let mut envelope = by_anyone(submit_command(submission(world.now)), None);
        envelope.idempotency = Some(Idempotency {
            hash: [7; 16],
            fingerprint,
        });
        vec![envelope]
    };
    let first = world.apply(keyed(&world, 1)).remove(0);
    world.advance(Millis::hours(24));
    let again = world.apply(keyed(&world, 1)).remove(0);
    assert_eq!(again, Outcome::Replayed(Box::new(first)));
    let other = world.apply(keyed(&world, 2)).remove(0);
    assert_eq!(other, Outcome::Refused(Refusal::IdempotencyConflict));
    assert_eq!(world.state.usage[&TENANT].open, 1);
}

#[test]
fn a_replay_points_at_its_dead_letter() {
    let mut world = World::new();
    let mut first = submission(world.now);
    first.template.retry.max_attempts = 1;
    let id = world.submit(first.clone());
    let lease = world.grant("w1", &id).lease;
    world.report("w1", &lease, fail());
    first.replay_of = Some(id.clone());
    let again = world.submit(first);
    let row = world.must_open(&again);
    assert_eq!((row.cause, row.replay_of), (Cause::Replay, Some(id)));
}
