//! Ends without a word of the worker (semantics §5.4–5.6, §5.8).

use super::*;
use crate::command::admin::{AdminCommand, TakeOffice};
use crate::command::leases::{GrantLeases, LeaseCommand, LeaseRef};
use crate::command::outcome::Effect;
use crate::command::{Command, Envelope};
use crate::ids::ExecutionId;
use crate::model::execution::{ExecutionState, FinalReason};
use crate::state::testkit::*;
use crate::time::Millis;

fn granted_with(world: &mut World, id: &ExecutionId, confirm: Option<Millis>) -> Lease {
    let items = vec![world.grant_item(id)];
    world.one(Command::Lease(LeaseCommand::Grant(GrantLeases {
        worker: worker_id("w1"),
        request_id: Some("r1".into()),
        duration: LEASE,
        start_confirmation: confirm,
        items,
    })));
    world.lease(id).expect("it was granted")
}

#[test]
fn a_lease_ends_at_its_deadline_and_not_before() {
    let mut world = World::new();
    let id = world.plain();
    let lease = world.grant("w1", &id).lease;
    world.advance(Millis(LEASE.0 - 1));
    assert_eq!(world.expire(&lease), 0);
    world.advance(Millis(1));
    assert_eq!(world.expire(&lease), 1);
    assert_eq!(world.expire(&lease), 0, "it has ended");
    let row = world.must_open(&id);
    assert_eq!(row.state, ExecutionState::BackingOff);
    assert_eq!(row.attempts[0].outcome, AttemptOutcome::LeaseExpired);
    assert_eq!((row.lease_losses, row.attempts_started), (1, 1));
    let freed = world
        .effects
        .iter()
        .any(|e| matches!(e, Effect::DisarmDue(_)));
    assert!(!freed);
}

#[test]
fn the_leader_is_told_that_slots_are_free() {
    let mut world = World::new();
    let id = world.plain();
    let lease = world.grant("w1", &id).lease;
    world.advance(LEASE);
    world.expire(&lease);
    assert!(world.effects.contains(&Effect::ForgetLease {
        tenant: TENANT,
        queue: lease.queue,
        execution: id,
        fencing_token: lease.fencing_token,
        worker: lease.worker,
    }));
}

#[test]
fn a_renewed_lease_is_passed_over() {
    let mut world = World::new();
    let id = world.plain();
    let lease = world.grant("w1", &id).lease;
    world.advance(Millis::secs(9));
    world.report("w1", &lease, renew());
    world.advance(Millis::secs(1));
    assert_eq!(world.expire(&lease), 0);
    assert!(world.lease(&id).is_some());
}

#[test]
fn an_election_gives_every_lease_a_fresh_duration() {
    let mut world = World::new();
    let (a, b) = (world.plain(), world.plain());
    let plain = world.grant("w1", &a).lease;
    let unconfirmed = granted_with(&mut world, &b, Some(Millis::secs(2)));
    // Nobody leads for longer than either could live.
    world.advance(Millis::secs(60));
    world.term = 2;
    world.one(Command::Admin(AdminCommand::TakeOffice(TakeOffice {
        node: 2,
    })));
    assert_eq!(world.expire(&plain), 0);
    assert_eq!(world.expire(&unconfirmed), 0);
    world.advance(Millis::secs(2));
    assert_eq!(world.expire(&unconfirmed), 1, "a fresh time to confirm");
    world.report("w1", &plain, renew());
    world.advance(Millis(LEASE.0 - 1));
    assert_eq!(world.expire(&plain), 0);
    world.advance(Millis(1));
    assert_eq!(world.expire(&plain), 1);
}

#[test]
fn an_unconfirmed_start_ends_the_lease_as_a_loss() {
    let mut world = World::new();
    let id = world.plain();
    let lease = granted_with(&mut world, &id, Some(Millis::secs(2)));
    world.advance(Millis::secs(2));
    assert_eq!(world.expire(&lease), 1);
    let row = world.must_open(&id);
    assert_eq!(row.attempts[0].outcome, AttemptOutcome::StartUnconfirmed);
    assert_eq!(row.lease_losses, 1);
}

#[test]
fn an_attempt_time_out_stops_a_worker_that_renews_and_is_retried() {
    let mut world = World::new();
    let mut submission = submission(world.now);
    submission.template.timeouts.attempt = Some(Millis::secs(12));
    let id = world.submit(submission);
    let lease = world.grant("w1", &id).lease;
    world.advance(Millis::secs(8));
    world.report("w1", &lease, renew());
    world.advance(Millis::secs(4));
    assert_eq!(world.expire(&lease), 1);
    let row = world.must_open(&id);
    assert_eq!(row.attempts[0].outcome, AttemptOutcome::AttemptTimeout);
    assert_eq!(row.state, ExecutionState::BackingOff);
    assert_eq!(row.lease_losses, 0, "the worker was there");
}

#[test]
fn a_total_time_out_stops_a_running_attempt_for_good() {
    let mut world = World::new();
    let mut submission = submission(world.now);
    submission.template.timeouts.total = Some(Millis::secs(5));
    let id = world.submit(submission);
    let lease = world.grant("w1", &id).lease;
    world.advance(Millis::secs(5));
    assert_eq!(world.expire(&lease), 1);
    let done = world.must_have_ended(&id);
    assert_eq!(done.execution.state, ExecutionState::DeadLettered);
    assert_eq!(done.reason, FinalReason::TotalTimeout);
}

#[test]
fn a_total_time_out_ends_what_backs_off_or_is_ready_through_its_one_due_entry() {
    // Backing off past the bound.
    let mut world = World::new();
    let mut first = submission(world.now);
    first.template.timeouts.total = Some(Millis::secs(5));
    first.template.retry.initial_backoff = Millis::secs(30);
    let id = world.submit(first);
    let lease = world.grant("w1", &id).lease;
    world.report("w1", &lease, fail());
    world.advance(Millis::secs(5));
    assert_eq!(world.process_due(), 1);
    assert_eq!(world.must_have_ended(&id).reason, FinalReason::TotalTimeout);

    // Ready again before the bound, and nobody takes it.
    let mut world = World::new();
    let mut second = submission(world.now);
    second.template.timeouts.total = Some(Millis::secs(5));
    let id = world.submit(second);
    let lease = world.grant("w1", &id).lease;
    world.report("w1", &lease, fail());
    world.advance(Millis::secs(1));
    assert_eq!(world.process_due(), 1);
    assert_eq!(world.must_open(&id).state, ExecutionState::Ready);
    world.advance(Millis::secs(3));
    assert_eq!(world.process_due(), 0);
    world.advance(Millis::secs(1));
    assert_eq!(world.process_due(), 1);
    let done = world.must_have_ended(&id);
    assert_eq!(done.execution.state, ExecutionState::DeadLettered);
    assert_eq!(done.reason, FinalReason::TotalTimeout);
}

#[test]
fn a_crash_loop_ends_as_a_dead_letter_that_names_its_workers() {
    let mut world = World::new();
    let id = world.plain();
    for (n, worker) in ["w1", "w2", "w3"].into_iter().enumerate() {
        let lease = world.grant(worker, &id).lease;
        assert_eq!(lease.attempt as usize, n + 1, "counted at the grant");
        world.advance(LEASE);
        world.expire(&lease);
        if n < 2 {
            let row = world.must_open(&id);
            assert_eq!(
                row.state,
                ExecutionState::BackingOff,
                "never dead with attempts left"
            );
            world.advance(Millis::secs(2));
            world.process_due();
        }
    }
    let done = world.must_have_ended(&id);
    assert_eq!(done.execution.state, ExecutionState::DeadLettered);
    assert_eq!(done.reason, FinalReason::AttemptsExhausted);
    let workers: Vec<_> = done
        .execution
        .attempts
        .iter()
        .map(|a| (a.worker.as_str(), a.outcome))
        .collect();
    let expired = AttemptOutcome::LeaseExpired;
    assert_eq!(workers, [("w1", expired), ("w2", expired), ("w3", expired)]);
}

#[test]
fn losses_in_a_row_are_poison() {
    let mut world = World::new();
    let mut submission = submission(world.now);
    submission.template.retry.max_attempts = 15;
    submission.template.retry.max_lease_losses = 3;
    let id = world.submit(submission);
    for _ in 0..3 {
        let lease = world.grant("w1", &id).lease;
        world.advance(LEASE);
        world.expire(&lease);
        world.advance(Millis::secs(5));
        world.process_due();
    }
    assert_eq!(world.must_have_ended(&id).reason, FinalReason::Poison);
}

#[test]
fn a_revoked_lease_is_a_loss_and_is_audited() {
    let mut world = World::new();
    let id = world.plain();
    let lease = world.grant("w1", &id).lease;
    assert_eq!(world.revoke(RevokeCause::Operator, &lease), 1);
    assert_eq!(world.must_open(&id).lease_losses, 1);
    assert_eq!(world.audits(), ["lease.revoke"]);
    assert_eq!(world.revoke(RevokeCause::Operator, &lease), 0);
}

#[test]
fn the_reason_of_a_revocation_is_kept_with_the_attempt() {
    let mut world = World::new();
    let id = world.plain();
    let granted = world.grant("w1", &id).lease;
    let lease = LeaseRef {
        execution: id.clone(),
        attempt: granted.attempt,
        fencing_token: granted.fencing_token,
    };
    let command = RevokeLeases {
        cause: RevokeCause::Operator,
        items: vec![ExpireItem {
            tenant: TENANT,
            lease,
            draw: 0,
        }],
    };
    world.apply(vec![Envelope {
        reason: Some("it hangs".into()),
        ..by_anyone(Command::Lease(LeaseCommand::Revoke(command)), None)
    }]);
    let attempt = world.must_open(&id).attempts.remove(0);
    assert_eq!(attempt.outcome, AttemptOutcome::Revoked);
    assert_eq!(attempt.error, b"\"it hangs\"");
}

#[test]
fn undelivered_and_signed_off_leases_spend_no_attempt_and_are_ready_at_once() {
    for cause in [RevokeCause::Undelivered, RevokeCause::SignOff] {
        let mut world = World::new();
        let id = world.plain();
        let lease = world.grant("w1", &id).lease;
        assert_eq!(world.revoke(cause, &lease), 1);
        let row = world.must_open(&id);
        assert_eq!(row.state, ExecutionState::Ready, "{cause:?}");
        assert_eq!((row.attempts_started, row.releases), (0, 1), "{cause:?}");
        assert!(world.audits().is_empty(), "{cause:?}");
    }
}

#[test]
fn an_undelivered_first_lease_is_no_start() {
    let mut world = World::new();
    let mut submission = submission(world.now);
    submission.template.timeouts.start = Some(Millis::secs(5));
    let id = world.submit(submission);
    let lease = world.grant("w1", &id).lease;
    world.revoke(RevokeCause::Undelivered, &lease);
    world.advance(Millis::secs(5));
    assert_eq!(world.process_due(), 1, "the start deadline holds again");
    assert_eq!(world.must_have_ended(&id).reason, FinalReason::StartTimeout);
}
