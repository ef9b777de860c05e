//! Workers' words: what is accepted, what is stale, what a repeat answers (semantics §5.3, §5.4,
//! §6).

use super::*;
use crate::command::executions::CancelMode;
use crate::command::leases::{GrantLeases, LeaseCommand, LeaseRef, RevokeCause};
use crate::command::{Command, outcome::GrantResult};
use crate::ids::ExecutionId;
use crate::model::execution::{ATTEMPTS_KEPT_MAX, FinalReason};
use crate::state::testkit::*;

fn ok(state: ExecutionState) -> ReportResult {
    ReportResult::Ok {
        replayed: false,
        state,
        expires_in: None,
        cancel_requested: false,
        next_attempt_at: None,
        final_reason: None,
    }
}

const fn lost(reason: LostReason) -> ReportResult {
    ReportResult::LeaseLost { reason }
}

fn as_replay(answer: &ReportResult) -> ReportResult {
    let mut again = answer.clone();
    match &mut again {
        ReportResult::Ok { replayed, .. } => *replayed = true,
        ReportResult::LeaseLost { .. } => panic!("{answer:?} was not accepted"),
    }
    again
}

fn one_leased() -> (World, ExecutionId, Lease) {
    let mut world = World::new();
    let id = world.plain();
    let lease = world.grant("w1", &id).lease;
    (world, id, lease)
}

#[test]
fn a_renewal_gives_a_fresh_duration_from_when_it_was_received() {
    let (mut world, id, lease) = one_leased();
    let granted = world.now;
    world.advance(Millis::secs(5));
    let received = granted.plus(Millis::secs(4));
    let answer = world.report_received("w1", &lease, renew(), received);
    assert_eq!(
        answer,
        ReportResult::Ok {
            replayed: false,
            state: ExecutionState::Leased,
            expires_in: Some(LEASE),
            cancel_requested: false,
            next_attempt_at: None,
            final_reason: None,
        }
    );
    let renewed = world.lease(&id).unwrap();
    assert_eq!(renewed.deadline_at, received.plus(LEASE));
    assert_eq!(renewed.fencing_token, lease.fencing_token);
}

#[test]
fn a_renewal_may_change_the_length_and_only_a_shorter_one_moves_the_deadline_back() {
    let (mut world, id, lease) = one_leased();
    let start = world.now;
    let with = |secs| ReportAction::Renew {
        duration: Some(Millis::secs(secs)),
        progress: None,
    };
    world.report("w1", &lease, with(60));
    assert_eq!(
        world.lease(&id).unwrap().deadline_at,
        start.plus(Millis::secs(60))
    );
    // Received before the last one, applied after it.
    world.report_received("w1", &lease, renew(), start.minus(Millis::secs(1)));
    assert_eq!(
        world.lease(&id).unwrap().deadline_at,
        start.plus(Millis::secs(60))
    );
    world.report("w1", &lease, with(2));
    assert_eq!(
        world.lease(&id).unwrap().deadline_at,
        start.plus(Millis::secs(2))
    );
}

#[test]
fn a_time_out_bounds_what_a_renewal_promises() {
    let mut world = World::new();
    let mut submission = submission(world.now);
    submission.template.timeouts.attempt = Some(Millis::secs(12));
    let id = world.submit(submission);
    let lease = world.grant("w1", &id).lease;
    world.advance(Millis::secs(5));
    let ReportResult::Ok { expires_in, .. } = world.report("w1", &lease, renew()) else {
        panic!("the lease lives");
    };
    assert_eq!(expires_in, Some(Millis::secs(7)));
}

#[test]
fn nothing_said_at_or_after_the_deadline_counts_even_if_nobody_ended_the_lease() {
    let actions = [renew(), complete(), fail(), release(Millis::ZERO)];
    for action in actions {
        let (mut world, id, lease) = one_leased();
        world.advance(LEASE);
        let answer = world.report("w1", &lease, action.clone());
        assert_eq!(answer, lost(LostReason::LeaseExpired), "{action:?}");
        assert!(world.lease(&id).is_some(), "it changed nothing");
        assert_eq!(world.expire(&lease), 1, "exactly one expiry is recorded");
        let answer = world.report("w1", &lease, action.clone());
        assert_eq!(answer, lost(LostReason::LeaseExpired), "{action:?}");
        assert_eq!(world.must_open(&id).attempts.len(), 1);
    }
}

#[test]
fn a_word_received_in_time_counts_although_it_is_applied_late() {
    let (mut world, id, lease) = one_leased();
    let in_time = world.now.plus(Millis(LEASE.0 - 1));
    world.advance(Millis::secs(15));
    let answer = world.report_received("w1", &lease, complete(), in_time);
    assert!(matches!(answer, ReportResult::Ok { .. }), "{answer:?}");
    assert_eq!(world.must_have_ended(&id).execution.attempts_started, 1);
}

#[test]
fn each_bound_is_named_in_the_refusal() {
    let cases = [
        (Some(3), None, LostReason::AttemptTimeout),
        (None, Some(3), LostReason::TotalTimeout),
        (Some(3), Some(3), LostReason::TotalTimeout),
        (Some(5), Some(3), LostReason::TotalTimeout),
    ];
    for (attempt, total, reason) in cases {
        let mut world = World::new();
        let mut submission = submission(world.now);
        submission.template.timeouts.attempt = attempt.map(Millis::secs);
        submission.template.timeouts.total = total.map(Millis::secs);
        let id = world.submit(submission);
        let lease = world.grant("w1", &id).lease;
        world.advance(Millis::secs(3));
        let answer = world.report("w1", &lease, complete());
        assert_eq!(answer, lost(reason), "{attempt:?} {total:?}");
    }
}

#[test]
fn only_the_exact_lease_may_speak() {
    let (mut world, id, lease) = one_leased();
    let strangers = [
        ("w2", lease.clone()),
        (
            "w1",
            Lease {
                attempt: 2,
                ..lease.clone()
            },
        ),
        (
            "w1",
            Lease {
                fencing_token: lease.fencing_token + 1,
                ..lease.clone()
            },
        ),
        (
            "w1",
            Lease {
                execution: ExecutionId::new("nobody").unwrap(),
                ..lease.clone()
            },
        ),
    ];
    for (worker, stranger) in strangers {
        let answer = world.report(worker, &stranger, complete());
        assert_eq!(answer, lost(LostReason::Unknown), "{stranger:?}");
    }
    assert_eq!(world.lease(&id), Some(lease));
}

#[test]
fn a_stale_token_is_rejected_after_a_regrant_and_told_what_ended_it() {
    let (mut world, id, first) = one_leased();
    world.advance(LEASE);
    world.expire(&first);
    world.advance(Millis::secs(1));
    world.process_due();
    let second = world.grant("w2", &id).lease;
    for action in [renew(), complete(), fail(), release(Millis::ZERO)] {
        let answer = world.report("w1", &first, action);
        assert_eq!(answer, lost(LostReason::LeaseExpired));
    }
    assert_eq!(world.lease(&id), Some(second));
}

#[test]
fn a_repeated_report_gets_the_first_answer_and_changes_nothing() {
    let later = ReportAction::Fail {
        error: b"{\"type\":\"Smtp\"}".to_vec(),
        error_type: Some("Smtp".into()),
        retryable: true,
        retry_in: Some(Millis::secs(7)),
        draw: 0,
        truncated: false,
    };
    let fatal = ReportAction::Fail {
        error: Vec::new(),
        error_type: Some("Fatal".into()),
        retryable: true,
        retry_in: None,
        draw: 0,
        truncated: false,
    };
    for action in [
        complete(),
        fail(),
        later,
        fatal,
        release(Millis::ZERO),
        release(Millis::secs(3)),
    ] {
        let (mut world, id, lease) = one_leased();
        let first = world.report("w1", &lease, action.clone());
        let before = (world.open(&id), world.ended(&id));
        world.advance(Millis::hours(2));
        let again = world.report("w1", &lease, action.clone());
        assert_eq!(again, as_replay(&first), "{action:?}");
        assert_eq!(before, (world.open(&id), world.ended(&id)), "{action:?}");
        // Also when the execution has moved on meanwhile.
        if world.open(&id).is_some() {
            world.process_due();
            let next = world.grant("w2", &id).lease;
            let again = world.report("w1", &lease, action.clone());
            assert_eq!(again, as_replay(&first), "{action:?} after a regrant");
            world.report("w2", &next, complete());
            let again = world.report("w1", &lease, action.clone());
            assert_eq!(again, as_replay(&first), "{action:?} after the end");
        }
    }
}

#[test]
fn a_different_report_after_an_accepted_one_is_told_what_ended_the_lease() {
    let cases = [
        (complete(), LostReason::Succeeded),
        (fail(), LostReason::Failed),
        (release(Millis::ZERO), LostReason::Released),
    ];
    for (accepted, reason) in &cases {
        for (other, same) in cases.iter().chain(&[(renew(), LostReason::Unknown)]) {
            if same == reason {
                continue;
            }
            let (mut world, _, lease) = one_leased();
            world.report("w1", &lease, accepted.clone());
            let answer = world.report("w1", &lease, other.clone());
            assert_eq!(answer, lost(*reason), "{other:?} after {accepted:?}");
        }
    }
}

#[test]
fn a_repeat_in_one_entry_is_a_repeat() {
    let (mut world, _, lease) = one_leased();
    let item = ReportItem {
        lease: reference(&lease),
        action: complete(),
    };
    let command = report_command("w1", vec![item.clone(), item]);
    let Outcome::Reported(results) = world.one(command) else {
        panic!("a report is answered by items");
    };
    assert_eq!(results[1], as_replay(&results[0]));
}

#[test]
fn items_of_one_report_stand_alone_and_are_answered_in_order() {
    let mut world = World::new();
    let ids: Vec<_> = (0..10).map(|_| world.plain()).collect();
    let refs: Vec<_> = ids.iter().collect();
    let leases: Vec<_> = world
        .grant_all("w1", &refs)
        .into_iter()
        .map(|result| match result {
            GrantResult::Granted(granted) => granted.lease,
            other => panic!("{other:?}"),
        })
        .collect();
    let items = leases.iter().enumerate().map(|(at, lease)| ReportItem {
        lease: match at {
            9 => LeaseRef {
                fencing_token: lease.fencing_token - 1,
                ..reference(lease)
            },
            _ => reference(lease),
        },
        action: if at == 8 { fail() } else { complete() },
    });
    let Outcome::Reported(results) = world.one(report_command("w1", items.collect())) else {
        panic!("a report is answered by items");
    };
    for (at, result) in results.iter().enumerate() {
        match at {
            8 => assert!(matches!(
                result,
                ReportResult::Ok {
                    state: ExecutionState::BackingOff,
                    next_attempt_at: Some(_),
                    ..
                }
            )),
            9 => assert_eq!(*result, lost(LostReason::Unknown)),
            _ => assert!(matches!(
                result,
                ReportResult::Ok {
                    state: ExecutionState::Succeeded,
                    ..
                }
            )),
        }
    }
    assert!(
        world.lease(&ids[9]).is_some(),
        "the stale one changed nothing"
    );
}

#[test]
fn completing_takes_three_keys() {
    let (mut world, id, lease) = one_leased();
    let result = ReportAction::Complete {
        result: b"{\"sent\":1}".to_vec(),
        truncated: true,
    };
    let answer = world.report("w1", &lease, result);
    assert_eq!(world.budget(), 3, "lease, row, history");
    let mut expected = ok(ExecutionState::Succeeded);
    if let ReportResult::Ok { final_reason, .. } = &mut expected {
        *final_reason = Some(FinalReason::Completed);
    }
    assert_eq!(answer, expected);
    let done = world.must_have_ended(&id);
    assert_eq!(done.result, b"{\"sent\":1}");
    assert!(done.truncated);
    assert_eq!(done.finished_at, world.now);
    assert_eq!(done.execution.started_at, Some(lease.granted_at));
    assert_eq!(done.execution.attempts.len(), 1);
    assert_eq!(done.execution.attempts[0].worker, lease.worker);
    assert_eq!(world.state.usage[&TENANT].open, 0);
}

#[test]
fn a_failure_backs_off_and_comes_back_at_its_time() {
    let (mut world, id, lease) = one_leased();
    let answer = world.report("w1", &lease, fail());
    let at = world.now.plus(Millis::secs(1));
    let mut expected = ok(ExecutionState::BackingOff);
    if let ReportResult::Ok {
        next_attempt_at, ..
    } = &mut expected
    {
        *next_attempt_at = Some(at);
    }
    assert_eq!(answer, expected);
    world.advance(Millis(999));
    assert_eq!(world.process_due(), 0);
    world.advance(Millis(1));
    assert_eq!(world.process_due(), 1);
    let row = world.must_open(&id);
    assert_eq!(row.state, ExecutionState::Ready);
    assert_eq!(row.line_at, Some(at), "its place is the end of its backoff");
    assert_eq!(row.attempts[0].delay, Some(Millis::secs(1)));
}

#[test]
fn work_given_back_is_ready_at_once_in_its_old_place() {
    let (mut world, id, lease) = one_leased();
    world.advance(Millis::secs(2));
    assert_eq!(
        world.report("w1", &lease, release(Millis::ZERO)),
        ok(ExecutionState::Ready)
    );
    let row = world.must_open(&id);
    assert_eq!(row.line_at, Some(START));
    assert_eq!((row.attempts_started, row.releases), (0, 1));
    assert_eq!(world.grant("w2", &id).lease.attempt, 1);
}

#[test]
fn a_release_keeps_its_reason_with_the_attempt() {
    let (mut world, id, lease) = one_leased();
    let action = ReportAction::Release {
        delay: Millis::ZERO,
        reason: Some("shut\"down".into()),
        draw: 0,
    };
    world.report("w1", &lease, action);
    let error = &world.must_open(&id).attempts[0].error;
    assert_eq!(error, b"\"shut\\\"down\"");
}

#[test]
fn the_first_renewal_confirms_the_start() {
    let mut world = World::new();
    let id = world.plain();
    let items = vec![world.grant_item(&id)];
    world.one(Command::Lease(LeaseCommand::Grant(GrantLeases {
        worker: worker_id("w1"),
        request_id: None,
        duration: LEASE,
        start_confirmation: Some(Millis::secs(2)),
        items,
    })));
    let lease = world.lease(&id).unwrap();
    world.advance(Millis::secs(1));
    world.report("w1", &lease, renew());
    assert_eq!(world.lease(&id).unwrap().confirm_by_at, None);
    world.advance(Millis::secs(5));
    assert_eq!(world.expire(&lease), 0);
}

#[test]
fn progress_stays_with_the_execution_after_the_lease() {
    let (mut world, id, lease) = one_leased();
    let action = ReportAction::Renew {
        duration: None,
        progress: Some(b"{\"page\":3}".to_vec()),
    };
    world.report("w1", &lease, action);
    assert_eq!(world.lease(&id).unwrap().progress, b"{\"page\":3}");
    world.report("w1", &lease, renew());
    world.report("w1", &lease, fail());
    assert_eq!(world.must_open(&id).progress, b"{\"page\":3}");
}

#[test]
fn a_cancel_is_told_with_the_next_renewal_and_a_success_still_counts() {
    let (mut world, id, lease) = one_leased();
    world.cancel(&id, CancelMode::Request);
    let answer = world.report("w1", &lease, renew());
    assert!(matches!(
        answer,
        ReportResult::Ok {
            cancel_requested: true,
            ..
        }
    ));
    world.report("w1", &lease, complete());
    let done = world.must_have_ended(&id);
    assert_eq!(done.execution.state, ExecutionState::Succeeded);
    assert!(done.execution.cancel.is_some(), "the request is on record");
}

#[test]
fn failure_release_and_expiry_after_a_request_end_cancelled() {
    let ways: [fn(&mut World, &Lease); 4] = [
        |world, lease| {
            world.report("w1", lease, fail());
        },
        |world, lease| {
            world.report("w1", lease, release(Millis::ZERO));
        },
        |world, lease| {
            world.advance(LEASE);
            world.expire(lease);
        },
        |world, lease| {
            world.revoke(RevokeCause::Undelivered, lease);
        },
    ];
    for way in ways {
        let (mut world, id, lease) = one_leased();
        world.cancel(&id, CancelMode::Request);
        way(&mut world, &lease);
        let done = world.must_have_ended(&id);
        assert_eq!(done.execution.state, ExecutionState::Cancelled);
        assert_eq!(done.reason, FinalReason::CancelRequested);
    }
}

#[test]
fn the_attempts_kept_are_the_first_and_the_latest() {
    let mut world = World::new();
    let mut submission = submission(world.now);
    submission.template.retry.max_attempts = 100;
    submission.template.retry.max_backoff = Millis::ZERO;
    let id = world.submit(submission);
    let mut first = None;
    for _ in 0..30 {
        let lease = world.grant("w1", &id).lease;
        world.report("w1", &lease, fail());
        first.get_or_insert(lease);
    }
    let row = world.must_open(&id);
    assert_eq!(row.attempts.len(), ATTEMPTS_KEPT_MAX);
    let numbers: Vec<_> = row.attempts.iter().map(|a| a.attempt).collect();
    let latest: Vec<u32> = (12..=30).collect();
    assert_eq!(numbers[0], 1);
    assert_eq!(numbers[1..], latest);
    let again = world.report("w1", &first.unwrap(), fail());
    assert!(matches!(again, ReportResult::Ok { replayed: true, .. }));
}

#[test]
fn an_error_over_the_bound_is_dropped_and_marked() {
    let mut world = World::new();
    let mut submission = submission(world.now);
    submission.template.retry.max_attempts = 1;
    let id = world.submit(submission);
    let lease = world.grant("w1", &id).lease;
    let action = ReportAction::Fail {
        error: vec![b'x'; NOTE_MAX + 1],
        error_type: None,
        retryable: true,
        retry_in: None,
        draw: 0,
        truncated: false,
    };
    world.report("w1", &lease, action);
    let done = world.must_have_ended(&id);
    assert!(done.truncated && done.execution.attempts[0].error.is_empty());
}

#[test]
fn a_word_on_a_chosen_id_finds_its_tenant() {
    let mut world = World::new();
    let mut submission = submission(world.now);
    submission.id = Some(ExecutionId::new("order-77").unwrap());
    let id = world.submit(submission);
    let lease = world.grant("w1", &id).lease;
    let first = world.report("w1", &lease, complete());
    assert!(matches!(
        first,
        ReportResult::Ok {
            replayed: false,
            ..
        }
    ));
    let again = world.report("w1", &lease, complete());
    assert_eq!(again, as_replay(&first));
}
