//! Cancellation in every state (semantics §6).

use super::*;
use crate::command::admin::{AdminCommand, PutKey};
use crate::command::executions::ExecutionCommand;
use crate::command::outcome::{Effect, LostReason, ReportResult};
use crate::command::{Command, Expect};
use crate::ids::{ExecutionId, TenantId};
use crate::state::testkit::*;
use crate::time::Millis;

const fn did(what: CancelDid) -> Outcome {
    Outcome::Cancelled(what)
}

/// Makes one execution in each state that is not leased.
fn one_in_each_state(world: &mut World) -> Vec<(&'static str, ExecutionId)> {
    world.one(Command::Admin(AdminCommand::PutKey(PutKey {
        tenant: TenantId::default_tenant(),
        key: "k".into(),
        max_leased: Some(1),
        rate: None,
    })));
    let mut keyed = || {
        let mut submission = submission(world.now);
        submission.template.concurrency_key = Some("k".into());
        world.submit(submission)
    };
    let holder = keyed();
    world.grant("w9", &holder);
    let mut submission_k = submission(world.now);
    submission_k.template.concurrency_key = Some("k".into());
    let parked = world.submit(submission_k);
    let later = world.now.plus(Millis::hours(1));
    let waiting = world.submit(submission(later));
    let ready = world.plain();
    let backing_off = world.plain();
    let lease = world.grant("w8", &backing_off).lease;
    world.report("w8", &lease, fail());
    let released = world.plain();
    let lease = world.grant("w8", &released).lease;
    world.report("w8", &lease, release(Millis::secs(30)));
    vec![
        ("waiting", waiting),
        ("ready", ready),
        ("parked", parked),
        ("backing off", backing_off),
        ("released with a delay", released),
    ]
}

#[test]
fn whatever_is_not_leased_is_cancelled_at_once_and_never_granted() {
    for mode in [CancelMode::Request, CancelMode::Now] {
        let mut world = World::new();
        for (state, id) in one_in_each_state(&mut world) {
            assert_eq!(
                world.cancel(&id, mode),
                did(CancelDid::Cancelled),
                "{state}"
            );
            let done = world.must_have_ended(&id);
            assert_eq!(done.execution.state, ExecutionState::Cancelled, "{state}");
            assert_eq!(done.reason, FinalReason::CancelRequested, "{state}");
            assert!(done.execution.cancel.is_some(), "{state}");
            let again = did(CancelDid::AlreadyFinal(ExecutionState::Cancelled));
            assert_eq!(world.cancel(&id, mode), again, "{state}");
            let grant = world.grant_all("w1", &[&id]);
            let refused = crate::command::outcome::GrantResult::Refused {
                tenant: TENANT,
                execution: id,
                why: crate::command::outcome::GrantRefusal::NotReady,
            };
            assert_eq!(grant, [refused], "{state}");
        }
    }
}

#[test]
fn a_leased_one_is_asked_once() {
    let mut world = World::new();
    let id = world.plain();
    world.grant("w1", &id);
    assert_eq!(
        world.cancel(&id, CancelMode::Request),
        did(CancelDid::Requested)
    );
    let asked = world.must_open(&id).cancel.expect("it is on record");
    assert_eq!((asked.at, asked.by.as_str()), (world.now, "anonymous"));
    assert!(world.lease(&id).unwrap().cancel_requested);
    world.advance(Millis::secs(1));
    assert_eq!(
        world.cancel(&id, CancelMode::Request),
        did(CancelDid::Requested)
    );
    assert_eq!(
        world.must_open(&id).cancel,
        Some(asked),
        "the first request stays"
    );
    assert_eq!(
        world.audits(),
        ["execution.cancel"],
        "one record for one change"
    );
}

#[test]
fn mode_now_ends_the_lease_also_after_a_request() {
    for asked_before in [false, true] {
        let mut world = World::new();
        let id = world.plain();
        let lease = world.grant("w1", &id).lease;
        if asked_before {
            world.cancel(&id, CancelMode::Request);
        }
        assert_eq!(
            world.cancel(&id, CancelMode::Now),
            did(CancelDid::Cancelled)
        );
        assert_eq!(world.lease(&id), None);
        let done = world.must_have_ended(&id);
        assert_eq!(done.execution.state, ExecutionState::Cancelled);
        assert_eq!(
            done.execution.attempts[0].outcome,
            AttemptOutcome::Cancelled
        );
        let lost = ReportResult::LeaseLost {
            reason: LostReason::Cancelled,
        };
        for action in [renew(), complete(), fail()] {
            assert_eq!(world.report("w1", &lease, action), lost);
        }
    }
}

#[test]
fn a_final_one_stays_as_it_is() {
    let mut world = World::new();
    let id = world.plain();
    let lease = world.grant("w1", &id).lease;
    world.report("w1", &lease, complete());
    let before = world.must_have_ended(&id);
    let outcome = world.cancel(&id, CancelMode::Now);
    assert_eq!(
        outcome,
        did(CancelDid::AlreadyFinal(ExecutionState::Succeeded))
    );
    assert_eq!(world.must_have_ended(&id), before);
    assert!(world.audits().is_empty(), "nothing was changed");
}

#[test]
fn what_does_not_exist_or_is_not_as_expected_is_refused() {
    let mut world = World::new();
    let nobody = ExecutionId::new("nobody").unwrap();
    assert_eq!(
        world.cancel(&nobody, CancelMode::Now),
        Outcome::Refused(Refusal::ExecutionNotFound)
    );
    let id = world.plain();
    let current = world.must_open(&id).revision;
    let outcome = world.one(Command::Execution(ExecutionCommand::Cancel(
        CancelExecution {
            tenant: TenantId::default_tenant(),
            id,
            mode: CancelMode::Request,
            expect: Expect::Revision(crate::ids::Revision::new(99, 0)),
        },
    )));
    let mismatch = Refusal::RevisionMismatch { current };
    assert_eq!(outcome, Outcome::Refused(mismatch));
}

#[test]
fn the_leader_is_told_to_withdraw_what_it_holds() {
    let mut world = World::new();
    let ready = world.plain();
    world.cancel(&ready, CancelMode::Request);
    let withdrawn = |e: &Effect| matches!(e, Effect::WithdrawReady { .. });
    let announced = |e: &Effect| matches!(e, Effect::AnnounceFinal { .. });
    assert!(world.effects.iter().any(withdrawn));
    assert!(world.effects.iter().any(announced));
    let later = world.now.plus(Millis::secs(1));
    let waiting = world.submit(submission(later));
    world.cancel(&waiting, CancelMode::Request);
    let disarmed = |e: &Effect| matches!(e, Effect::DisarmDue(_));
    assert!(world.effects.iter().any(disarmed));
}
