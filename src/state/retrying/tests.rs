//! What follows an attempt, as tables (semantics §5.6–5.9, §6).

use super::*;
use crate::ids::{ExecutionId, QueueNo, TenantNo};
use crate::model::execution::{CancelRequest, Cause, StoredPayload};
use crate::state::testkit::{START, template, worker_id};

fn execution() -> Execution {
    Execution {
        tenant: TenantNo(1),
        id: ExecutionId::new("e").unwrap(),
        chosen_id: false,
        occurrence: None,
        cause: Cause::Submitted,
        queue: QueueNo(1),
        template: template(),
        payload: StoredPayload::Inline,
        unique_key: None,
        traceparent: None,
        fingerprint: 0,
        created_at: START,
        due_at: START,
        state: ExecutionState::Ready,
        state_since: START,
        next_attempt_at: None,
        due_key: None,
        line_at: Some(START),
        parked: false,
        attempts_started: 0,
        lease_losses: 0,
        lease_losses_in_row: 0,
        releases: 0,
        started_at: None,
        progress: Vec::new(),
        cancel: None,
        replay_of: None,
        attempts: Vec::new(),
        revision: crate::ids::Revision::default(),
    }
}

fn lease(attempt: u32) -> Lease {
    Lease {
        tenant: TenantNo(1),
        execution: ExecutionId::new("e").unwrap(),
        queue: QueueNo(1),
        attempt,
        fencing_token: 9,
        worker: worker_id("w"),
        request_id: None,
        concurrency_key: None,
        granted_at: START,
        duration: Millis::secs(10),
        deadline_at: START.plus(Millis::secs(10)),
        attempt_deadline_at: None,
        total_deadline_at: None,
        confirm_by_at: None,
        cancel_requested: false,
        progress: Vec::new(),
    }
}

/// Ends attempt `attempts_started + 1` of `e` one second after it began.
fn after(e: &mut Execution, outcome: AttemptOutcome, wish: Wish) -> Next {
    let lease = lease(e.attempts_started + 1);
    settle(e, &lease, outcome);
    next(e, outcome, wish, START.plus(Millis::secs(1)))
}

const POLICY: Wish = Wish::policy(u32::MAX / 2);

const fn backing_off(delay: Millis) -> Next {
    Next::Later {
        state: ExecutionState::BackingOff,
        delay,
    }
}

#[test]
fn each_end_of_an_attempt_leads_where_the_table_says() {
    use AttemptOutcome as O;
    let retry = backing_off(Millis::secs(1));
    let cases = [
        (
            O::Succeeded,
            Next::Final(ExecutionState::Succeeded, FinalReason::Completed),
            1,
            0,
        ),
        (O::Failed, retry, 1, 0),
        (O::LeaseExpired, retry, 1, 1),
        (O::StartUnconfirmed, retry, 1, 1),
        (O::Revoked, retry, 1, 1),
        (O::AttemptTimeout, retry, 1, 0),
        (O::TotalTimeout, dead(FinalReason::TotalTimeout), 1, 0),
        (
            O::Cancelled,
            Next::Final(ExecutionState::Cancelled, FinalReason::CancelRequested),
            1,
            0,
        ),
        (O::Released, Next::Ready, 0, 0),
        (O::Undelivered, Next::Ready, 0, 0),
    ];
    for (outcome, expected, spent, lost) in cases {
        let mut e = execution();
        assert_eq!(after(&mut e, outcome, POLICY), expected, "{outcome:?}");
        assert_eq!(e.attempts_started, spent, "attempts after {outcome:?}");
        assert_eq!(e.lease_losses, lost, "losses after {outcome:?}");
        let undelivered = outcome == O::Undelivered;
        assert_eq!(
            e.started_at.is_none(),
            undelivered,
            "start after {outcome:?}"
        );
    }
}

#[test]
fn after_a_request_to_cancel_only_success_is_not_cancelled() {
    use AttemptOutcome as O;
    for outcome in [
        O::Failed,
        O::Released,
        O::Undelivered,
        O::LeaseExpired,
        O::StartUnconfirmed,
        O::AttemptTimeout,
        O::TotalTimeout,
        O::Revoked,
    ] {
        let mut e = execution();
        e.cancel = Some(CancelRequest {
            at: START,
            by: "me".into(),
            reason: None,
        });
        let cancelled = Next::Final(ExecutionState::Cancelled, FinalReason::CancelRequested);
        assert_eq!(after(&mut e, outcome, POLICY), cancelled, "{outcome:?}");
        let completed = Next::Final(ExecutionState::Succeeded, FinalReason::Completed);
        assert_eq!(after(&mut e, O::Succeeded, POLICY), completed);
    }
}

#[test]
fn the_delay_grows_with_the_attempts_spent() {
    let mut e = execution();
    e.template.retry.max_attempts = 10;
    let mut delays = Vec::new();
    for _ in 0..8 {
        match after(&mut e, AttemptOutcome::Failed, POLICY) {
            Next::Later { delay, .. } => delays.push(delay.0 / 1_000),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
}

#[test]
fn the_last_attempt_ends_as_a_dead_letter_whatever_ended_it() {
    use AttemptOutcome as O;
    for outcome in [O::Failed, O::LeaseExpired, O::AttemptTimeout, O::Revoked] {
        let mut e = execution();
        e.attempts_started = 2;
        assert_eq!(
            after(&mut e, outcome, POLICY),
            dead(FinalReason::AttemptsExhausted),
            "{outcome:?}"
        );
    }
    // One given back is not the last.
    let mut e = execution();
    e.attempts_started = 2;
    assert_eq!(after(&mut e, AttemptOutcome::Released, POLICY), Next::Ready);
}

#[test]
fn a_failure_is_not_retried_against_the_workers_word() {
    let mut e = execution();
    let wish = Wish {
        retryable: false,
        ..POLICY
    };
    let end = after(&mut e, AttemptOutcome::Failed, wish);
    assert_eq!(end, dead(FinalReason::NonRetryable));
}

#[test]
fn a_workers_own_delay_is_clamped_and_zero_means_at_once() {
    let mut e = execution();
    e.template.retry.max_attempts = 10;
    let mut wish = |ms| {
        let wish = Wish {
            retry_in: Some(Millis(ms)),
            ..POLICY
        };
        after(&mut e, AttemptOutcome::Failed, wish)
    };
    assert_eq!(wish(0), Next::Ready);
    assert_eq!(wish(1), backing_off(Millis(1)));
    assert_eq!(wish(u64::MAX), backing_off(Millis::minutes(1)));
}

#[test]
fn lease_losses_in_a_row_make_poison_and_a_report_ends_the_row() {
    use AttemptOutcome as O;
    let mut e = execution();
    e.template.retry.max_attempts = 100;
    e.template.retry.max_lease_losses = 3;
    for outcome in [
        O::LeaseExpired,
        O::StartUnconfirmed,
        O::Failed,
        O::Revoked,
        O::LeaseExpired,
    ] {
        let next = after(&mut e, outcome, POLICY);
        assert!(matches!(next, Next::Later { .. }), "{outcome:?}: {next:?}");
    }
    let last = after(&mut e, O::LeaseExpired, POLICY);
    assert_eq!(last, dead(FinalReason::Poison));
    assert_eq!(e.lease_losses, 5);
}

#[test]
fn max_elapsed_only_forbids_a_new_attempt_later_than_it() {
    let mut e = execution();
    e.template.retry.max_elapsed = Some(Millis::secs(2));
    // Started at 0, fails at 1 s, the next one at 2 s is allowed.
    let next = after(&mut e, AttemptOutcome::Failed, POLICY);
    assert_eq!(next, backing_off(Millis::secs(1)));
    // The second backs off for 2 s: 3 s is too late.
    let next = after(&mut e, AttemptOutcome::Failed, POLICY);
    assert_eq!(next, dead(FinalReason::MaxElapsed));
}

#[test]
fn a_passed_total_time_out_forbids_everything_but_success() {
    use AttemptOutcome as O;
    for outcome in [O::Failed, O::LeaseExpired, O::Released] {
        let mut e = execution();
        e.template.timeouts.total = Some(Millis::secs(1));
        let end = after(&mut e, outcome, POLICY);
        assert_eq!(end, dead(FinalReason::TotalTimeout), "{outcome:?}");
    }
    let mut e = execution();
    e.template.timeouts.total = Some(Millis::secs(1));
    let end = after(&mut e, O::Succeeded, POLICY);
    assert!(matches!(end, Next::Final(ExecutionState::Succeeded, _)));
}

#[test]
fn a_hundred_leases_given_back_are_free_and_the_next_one_is_a_failure() {
    let mut e = execution();
    for _ in 0..FREE_RELEASES_MAX {
        assert_eq!(after(&mut e, AttemptOutcome::Released, POLICY), Next::Ready);
        assert_eq!(e.attempts_started, 0);
    }
    let next = after(&mut e, AttemptOutcome::Released, POLICY);
    assert_eq!(next, backing_off(Millis::secs(1)));
    assert_eq!(e.attempts_started, 1);
    let next = after(&mut e, AttemptOutcome::Undelivered, POLICY);
    assert_eq!(next, backing_off(Millis::secs(2)));
}

#[test]
fn a_delayed_release_waits_and_does_not_back_off() {
    let mut e = execution();
    let wish = Wish {
        delay: Millis::secs(9),
        ..POLICY
    };
    let next = after(&mut e, AttemptOutcome::Released, wish);
    assert_eq!(
        next,
        Next::Later {
            state: ExecutionState::Waiting,
            delay: Millis::secs(9)
        }
    );
}
