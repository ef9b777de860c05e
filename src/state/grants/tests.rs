//! Grants: one lease, growing tokens, limits at every level, the write budget.

use super::*;
use crate::command::Command;
use crate::command::admin::{AdminCommand, PauseScope, PutKey, PutQueue, PutTenant, SetPause};
use crate::command::leases::LeaseCommand;
use crate::command::{Expect, outcome::GrantResult};
use crate::ids::{ExecutionId, Kind, QueueId, TenantId};
use crate::model::policy::{PauseInfo, RateLimit};
use crate::model::queue::QueueSpec;
use crate::model::tenant::TenantSpec;
use crate::state::testkit::*;
use crate::time::{Millis, Timestamp};

fn why(world: &mut World, id: &ExecutionId) -> Option<GrantRefusal> {
    match world.grant_all("w1", &[id]).pop() {
        Some(GrantResult::Refused { why, .. }) => Some(why),
        _ => None,
    }
}

#[test]
fn a_lease_says_who_what_and_until_when() {
    let mut world = World::new();
    let id = world.plain();
    world.advance(Millis::secs(3));
    let token = world.next_token();
    let granted = world.grant("w1", &id);
    let lease = &granted.lease;
    assert_eq!(lease.fencing_token, token);
    assert_eq!(lease.attempt, 1);
    assert_eq!(lease.worker, worker_id("w1"));
    assert_eq!(lease.granted_at, world.now);
    assert_eq!(lease.deadline_at, world.now.plus(LEASE));
    assert_eq!(granted.execution.template.payload, template().payload);
    assert_eq!(world.lease(&id).as_ref(), Some(lease));
}

#[test]
fn a_grant_writes_the_lease_and_leaves_the_line_only() {
    let mut world = World::new();
    let id = world.plain();
    assert_eq!(world.budget(), 2, "a create: row and line");
    world.grant("w1", &id);
    assert_eq!(world.budget(), 2);
}

#[test]
fn a_leased_execution_is_not_granted_again() {
    let mut world = World::new();
    let id = world.plain();
    world.grant("w1", &id);
    assert_eq!(why(&mut world, &id), Some(GrantRefusal::NotReady));
    // Nor twice by one entry.
    let other = world.plain();
    let results = world.grant_all("w2", &[&other, &other]);
    assert!(matches!(results[0], GrantResult::Granted(_)));
    assert!(matches!(
        results[1],
        GrantResult::Refused {
            why: GrantRefusal::NotReady,
            ..
        }
    ));
}

#[test]
fn an_execution_given_back_and_granted_again_by_one_entry_would_share_a_token_and_is_not() {
    let mut world = World::new();
    let id = world.plain();
    let item = world.grant_item(&id);
    let token = world.next_token();
    let undo = crate::command::leases::RevokeLeases {
        cause: crate::command::leases::RevokeCause::Undelivered,
        items: vec![crate::command::leases::ExpireItem {
            tenant: TENANT,
            lease: crate::command::leases::LeaseRef {
                execution: id.clone(),
                attempt: 1,
                fencing_token: token,
            },
            draw: 0,
        }],
    };
    let commands = [
        grant_command("w1", None, vec![item.clone()]),
        Command::Lease(LeaseCommand::Revoke(undo)),
        grant_command("w2", None, vec![item]),
    ];
    let outcomes = world.apply(commands.map(|c| by_anyone(c, None)).into());
    assert_eq!(outcomes[1], Outcome::Processed { done: 1 });
    assert!(matches!(
        &outcomes[2],
        Outcome::Granted(results) if matches!(
            results[0],
            GrantResult::Refused { why: GrantRefusal::NotReady, .. }
        )
    ));
    let again = world.grant("w2", &id);
    assert!(again.lease.fencing_token > token);
    assert_eq!(
        again.lease.attempt, 1,
        "an undelivered grant spends no attempt"
    );
}

#[test]
fn tokens_grow_and_attempts_count_over_retries() {
    let mut world = World::new();
    let id = world.plain();
    let first = world.grant("w1", &id).lease;
    world.report("w1", &first, fail());
    world.advance(Millis::secs(1));
    assert_eq!(world.process_due(), 1);
    let second = world.grant("w2", &id).lease;
    assert!(second.fencing_token > first.fencing_token);
    assert_eq!(second.attempt, 2);
}

fn pause(world: &mut World, scope: PauseScope, until: Option<Timestamp>) {
    let pause = Some(PauseInfo {
        by: "me".into(),
        reason: None,
        since: world.now,
        until,
    });
    world.one(Command::Admin(AdminCommand::SetPause(SetPause {
        scope,
        pause,
    })));
}

#[test]
fn nothing_is_granted_under_a_pause_of_any_level_until_it_ends() {
    let scopes = [
        PauseScope::Cluster,
        PauseScope::Tenant(TenantId::default_tenant()),
        PauseScope::Queue(QueueId::default_queue()),
        PauseScope::Kind(Kind::new("mail").unwrap()),
    ];
    for scope in scopes {
        let mut world = World::new();
        let id = world.plain();
        let until = world.now.plus(Millis::secs(5));
        pause(&mut world, scope.clone(), Some(until));
        assert_eq!(
            why(&mut world, &id),
            Some(GrantRefusal::Paused),
            "{scope:?}"
        );
        world.advance(Millis::secs(5));
        assert_eq!(why(&mut world, &id), None, "{scope:?} has ended");
    }
}

#[test]
fn a_pause_lets_leases_live() {
    let mut world = World::new();
    let id = world.plain();
    let lease = world.grant("w1", &id).lease;
    pause(&mut world, PauseScope::Cluster, None);
    let answer = world.report("w1", &lease, complete());
    assert!(matches!(
        answer,
        crate::command::outcome::ReportResult::Ok { .. }
    ));
}

fn put_queue(world: &mut World, spec: QueueSpec) {
    world.one(Command::Admin(AdminCommand::PutQueue(PutQueue {
        queue: QueueId::default_queue(),
        spec,
        expect: Expect::Any,
    })));
}

fn put_key(world: &mut World, max_leased: Option<u32>, rate: Option<RateLimit>) {
    world.one(Command::Admin(AdminCommand::PutKey(PutKey {
        tenant: TenantId::default_tenant(),
        key: "k".into(),
        max_leased,
        rate,
    })));
}

fn keyed(world: &mut World) -> ExecutionId {
    let mut submission = submission(world.now);
    submission.template.concurrency_key = Some("k".into());
    world.submit(submission)
}

#[test]
fn leases_of_a_queue_stay_at_its_limit() {
    let mut world = World::new();
    put_queue(
        &mut world,
        QueueSpec {
            max_leased: Some(1),
            ..QueueSpec::default()
        },
    );
    let (a, b) = (world.plain(), world.plain());
    let lease = world.grant("w1", &a).lease;
    assert_eq!(why(&mut world, &b), Some(GrantRefusal::QueueFull));
    world.report("w1", &lease, complete());
    assert_eq!(why(&mut world, &b), None);
}

#[test]
fn leases_of_a_tenant_stay_at_its_limit() {
    let mut world = World::new();
    world.one(Command::Admin(AdminCommand::PutTenant(PutTenant {
        tenant: TenantId::default_tenant(),
        spec: TenantSpec {
            max_leased: Some(1),
            ..TenantSpec::default()
        },
        expect: Expect::Any,
    })));
    let (a, b) = (world.plain(), world.plain());
    world.grant("w1", &a);
    assert_eq!(why(&mut world, &b), Some(GrantRefusal::TenantFull));
}

#[test]
fn a_tenant_that_a_queue_no_longer_allows_gets_nothing_from_it() {
    let mut world = World::new();
    let id = world.plain();
    put_queue(
        &mut world,
        QueueSpec {
            allowed_tenants: Some([TenantId::new("other").unwrap()].into()),
            ..QueueSpec::default()
        },
    );
    assert_eq!(why(&mut world, &id), Some(GrantRefusal::NotAllowed));
}

#[test]
fn what_a_full_key_blocks_is_parked_and_takes_the_slot_when_it_is_free() {
    let mut world = World::new();
    put_key(&mut world, Some(1), None);
    let (a, b, c) = (keyed(&mut world), keyed(&mut world), keyed(&mut world));
    let lease = world.grant("w1", &a).lease;
    // Both were offered while the key had room.
    assert_eq!(why(&mut world, &b), Some(GrantRefusal::KeyFull));
    assert_eq!(why(&mut world, &c), Some(GrantRefusal::KeyFull));
    assert!(world.must_open(&b).parked && world.must_open(&c).parked);
    // One that comes while it is full is parked at once.
    let d = keyed(&mut world);
    assert!(world.must_open(&d).parked);
    world.report("w1", &lease, complete());
    assert!(!world.must_open(&b).parked, "the head takes the slot");
    assert!(world.must_open(&c).parked);
    let lease = world.grant("w1", &b).lease;
    assert_eq!(world.state.key_leased.get(&(TENANT, "k".into())), Some(&1));
    // A blocked execution is no failure: its first lease is its first attempt.
    assert_eq!(lease.attempt, 1);
}

#[test]
fn an_offered_execution_that_goes_away_leaves_its_slot_to_a_parked_one() {
    let mut world = World::new();
    put_key(&mut world, Some(1), None);
    let (a, b, c) = (keyed(&mut world), keyed(&mut world), keyed(&mut world));
    let lease = world.grant("w1", &a).lease;
    why(&mut world, &b);
    why(&mut world, &c);
    world.report("w1", &lease, complete());
    world.cancel(&b, crate::command::executions::CancelMode::Request);
    assert!(!world.must_open(&c).parked);
    assert!(why(&mut world, &c).is_none());
}

#[test]
fn a_rate_admits_its_burst_and_then_one_every_interval() {
    let rate = RateLimit {
        count: 2,
        per: Millis::secs(1),
        burst: 2,
    };
    let mut world = World::new();
    put_queue(
        &mut world,
        QueueSpec {
            rate: Some(rate),
            ..QueueSpec::default()
        },
    );
    let ids: Vec<_> = (0..4).map(|_| world.plain()).collect();
    assert_eq!(why(&mut world, &ids[0]), None);
    assert_eq!(why(&mut world, &ids[1]), None);
    let until = world.now.plus(Millis(500));
    let limited = Some(GrantRefusal::RateLimited { until });
    assert_eq!(why(&mut world, &ids[2]), limited);
    world.advance(Millis(499));
    assert_eq!(why(&mut world, &ids[2]), limited);
    world.advance(Millis(1));
    assert_eq!(why(&mut world, &ids[2]), None);
    assert!(why(&mut world, &ids[3]).is_some());
}

#[test]
fn a_grant_that_one_rate_refuses_spends_nothing_of_the_others() {
    let hourly = RateLimit {
        count: 1,
        per: Millis::hours(1),
        burst: 1,
    };
    let mut world = World::new();
    put_key(&mut world, None, Some(hourly));
    put_queue(
        &mut world,
        QueueSpec {
            rate: Some(hourly),
            ..QueueSpec::default()
        },
    );
    let (a, b) = (keyed(&mut world), keyed(&mut world));
    // The queue's token goes to a plain one, so that the key's is refused with the queue's.
    let plain = world.plain();
    assert_eq!(why(&mut world, &plain), None);
    assert!(why(&mut world, &a).is_some());
    let key = &world.state.keys[&(TENANT, "k".to_owned())];
    assert_eq!(key.rate_tat_ns, 0, "the key's token is not spent");
    world.advance(Millis::hours(1));
    assert_eq!(why(&mut world, &a), None);
    world.advance(Millis::hours(1));
    assert_eq!(why(&mut world, &b), None);
}

#[test]
fn a_start_deadline_is_let_go_of_by_the_first_lease() {
    let mut world = World::new();
    let mut submission = submission(world.now);
    submission.template.timeouts.start = Some(Millis::secs(5));
    let id = world.submit(submission);
    assert!(world.must_open(&id).due_key.is_some());
    world.grant("w1", &id);
    assert_eq!(world.budget(), 4, "line, lease, due entry, row");
    assert_eq!(world.must_open(&id).due_key, None);
}

#[test]
fn an_execution_whose_start_deadline_has_come_is_not_granted() {
    let mut world = World::new();
    let mut submission = submission(world.now);
    submission.template.timeouts.start = Some(Millis::secs(5));
    let id = world.submit(submission);
    world.advance(Millis::secs(5));
    assert_eq!(why(&mut world, &id), Some(GrantRefusal::NotReady));
}

#[test]
fn time_outs_bound_the_lease() {
    let mut world = World::new();
    let mut submission = submission(world.now);
    submission.template.timeouts.attempt = Some(Millis::secs(60));
    submission.template.timeouts.total = Some(Millis::secs(90));
    let id = world.submit(submission);
    let start = world.now;
    let lease = world.grant("w1", &id).lease;
    assert_eq!(
        lease.attempt_deadline_at,
        Some(start.plus(Millis::secs(60)))
    );
    assert_eq!(lease.total_deadline_at, Some(start.plus(Millis::secs(90))));
    world.report("w1", &lease, fail());
    world.advance(Millis::secs(9));
    world.process_due();
    let again = world.grant("w1", &id).lease;
    assert_eq!(
        again.attempt_deadline_at,
        Some(start.plus(Millis::secs(69)))
    );
    assert_eq!(
        again.total_deadline_at,
        Some(start.plus(Millis::secs(90))),
        "the total counts from the first lease"
    );
}

#[test]
fn what_is_gone_waiting_or_elsewhere_is_refused() {
    let mut world = World::new();
    let gone = ExecutionId::new("gone").unwrap();
    assert_eq!(why(&mut world, &gone), Some(GrantRefusal::NotReady));
    let later = world.now.plus(Millis::secs(1));
    let waiting = world.submit(submission(later));
    assert_eq!(why(&mut world, &waiting), Some(GrantRefusal::NotReady));
    let id = world.plain();
    let mut item = world.grant_item(&id);
    item.queue = crate::ids::QueueNo(9);
    let outcome = world.one(grant_command("w1", None, vec![item]));
    assert!(matches!(
        outcome,
        Outcome::Granted(results) if matches!(
            results[0],
            GrantResult::Refused { why: GrantRefusal::NotReady, .. }
        )
    ));
}
