//! The cluster, tenants, queues, keys and pauses as apply changes them.

use super::*;
use crate::command::admin::{DeleteQueue, PauseScope, PutQueue, SetPause};
use crate::command::outcome::Quota;
use crate::command::{Actor, Envelope, Expect, Idempotency};
use crate::ids::{Kind, QueueNo, Revision};
use crate::model::policy::RateLimit;
use crate::model::queue::QueueSpec;
use crate::model::tenant::TenantSpec;
use crate::state::context::DELETED_QUEUES_MAX;
use crate::state::testkit::{
    START, TENANT, World, a_pause, a_put, complete, minute, queue_id, submission, template,
    tenant_id,
};
use crate::store::due::Level;
use crate::time::{Millis, Timestamp};

fn did(outcome: &Outcome) -> Written {
    match outcome {
        Outcome::Written { written, .. } => *written,
        other => panic!("expected a write, got {other:?}"),
    }
}

fn weight(weight: u32) -> TenantSpec {
    TenantSpec {
        weight,
        ..TenantSpec::default()
    }
}

fn by_leader(command: AdminCommand) -> Envelope {
    Envelope::leader(Command::Admin(command))
}

fn office(world: &mut World, term: u64, node: u64) -> Outcome {
    world.term = term;
    world.admin(AdminCommand::TakeOffice(TakeOffice { node }))
}

#[test]
fn office_is_taken_by_a_term_that_is_not_earlier_and_renewed_by_the_same_one() {
    let mut world = World::new();
    world.now = minute(1);
    assert_eq!(office(&mut world, 3, 2), Outcome::Done);
    let cluster = world.state.cluster.clone();
    assert_eq!((cluster.office_term, cluster.office_node), (3, 2));
    assert_eq!(cluster.took_office_at, minute(1));
    world.now = minute(2);
    assert_eq!(office(&mut world, 3, 2), Outcome::Done, "a renewal");
    assert_eq!(world.state.cluster.took_office_at, minute(2));
    let earlier = office(&mut world, 2, 1);
    assert_eq!(earlier, Outcome::Refused(Refusal::NotInOffice));
    assert_eq!(world.state.cluster.office_term, 3);
}

#[test]
fn a_batch_of_a_term_out_of_office_changes_nothing() {
    let mut world = World::new();
    office(&mut world, 3, 2);
    for term in [2, 4] {
        world.term = term;
        let answer = world.put_tenant("a", weight(1), Expect::Any);
        assert_eq!(answer, Outcome::Refused(Refusal::NotInOffice));
    }
    assert_eq!(world.state.tenants.len(), 1);
}

#[test]
fn an_election_by_itself_expires_nothing() {
    let mut world = World::new();
    let id = world.plain();
    let granted = world.grant("w", &id);
    world.now = minute(10);
    office(&mut world, 2, 2);
    assert_eq!(
        world.expire(&granted.lease),
        0,
        "a fresh duration from here"
    );
    world.advance(granted.lease.duration);
    assert_eq!(world.expire(&granted.lease), 1);
}

#[test]
fn watermarks_only_rise_and_never_above_log_time() {
    let mut world = World::new();
    let mut raise = |level, at| {
        let levels = vec![(level, at)];
        world.admin(AdminCommand::AdvanceWatermarks(AdvanceWatermarks {
            levels,
        }));
        world.state.cluster.due_from[Level::Minute.index()]
    };
    assert_eq!(
        raise(Level::Minute, START.minus(Millis(5))),
        START.minus(Millis(5))
    );
    assert_eq!(
        raise(Level::Minute, START.minus(Millis(9))),
        START.minus(Millis(5))
    );
    assert_eq!(
        raise(Level::Hour, START),
        START.minus(Millis(5)),
        "its own level only"
    );
    assert_eq!(raise(Level::Minute, minute(5)), START, "cut to log time");
}

#[test]
fn retention_only_rises_and_no_further_than_the_span_allows() {
    let mut world = World::new();
    let class = RetentionClass::for_span(Millis::hours(1));
    let newest = keys::idempotency_bucket(START);
    let mut raise = |bucket, idempotency| {
        let command = AdvanceRetention {
            classes: vec![(class.0, bucket), (200, 5)],
            idempotency_from: idempotency,
            forget: Vec::new(),
        };
        world.admin(AdminCommand::AdvanceRetention(command));
        let cluster = &world.state.cluster;
        (
            cluster.history_from[usize::from(class.0)],
            cluster.idempotency_from,
        )
    };
    assert_eq!(raise(7, Some(3)), (7, 3));
    assert_eq!(raise(6, Some(2)), (7, 3));
    let allowed = (class.first_kept(START), newest - IDEMPOTENCY_KEPT);
    assert_eq!(raise(u32::MAX, Some(u32::MAX)), allowed);
}

#[test]
fn a_chosen_id_is_forgotten_only_with_its_history() {
    let mut world = World::new();
    let mut wanted = submission(START);
    wanted.id = ExecutionId::new("order-1").ok();
    let id = world.submit(wanted.clone());
    let class = RetentionClass::for_span(crate::state::history::KEEP_SUCCEEDED);
    let forget = |world: &mut World| {
        let command = AdvanceRetention {
            classes: vec![(class.0, u32::MAX)],
            idempotency_from: None,
            forget: vec![
                (TenantId::default_tenant(), "order-1".into()),
                (tenant_id("nobody"), "order-1".into()),
                (TenantId::default_tenant(), "Not An Id".into()),
            ],
        };
        world.admin(AdminCommand::AdvanceRetention(command));
        !world.rows(Family::Keys, &[keys::POINTER]).is_empty()
    };
    assert!(forget(&mut world), "it is open");
    let granted = world.grant("w", &id);
    world.report("w", &granted.lease, complete());
    assert!(forget(&mut world), "its history is kept");
    world.advance(Millis::days(4));
    assert!(!forget(&mut world), "its history is gone");
    world.submit(wanted);
}

#[test]
fn two_changes_in_one_entry_have_revisions_of_their_own() {
    let mut world = World::new();
    let put = |max_leased, expect| {
        let spec = QueueSpec {
            max_leased: Some(max_leased),
            ..QueueSpec::default()
        };
        let queue = queue_id("q");
        let put = AdminCommand::PutQueue(PutQueue {
            queue,
            spec,
            expect,
        });
        Envelope {
            actor: Actor::Anonymous,
            ..by_leader(put)
        }
    };
    let outcomes = world.apply(vec![put(1, Expect::Any), put(2, Expect::Any)]);
    let [
        Outcome::Written {
            revision: first, ..
        },
        Outcome::Written {
            revision: second, ..
        },
    ] = outcomes.as_slice()
    else {
        panic!("two writes, got {outcomes:?}");
    };
    assert!(first < second);
    // Whoever read the first one must not overwrite what the second one did.
    let refused = world.apply(vec![put(3, Expect::Revision(*first))]);
    let current = *second;
    assert_eq!(
        refused,
        [Outcome::Refused(Refusal::RevisionMismatch { current })]
    );
    world.apply(vec![put(3, Expect::Revision(*second))]);
    let no = world.state.queue_numbers["q"];
    assert_eq!(world.state.queues[&no].spec.max_leased, Some(3));
}

#[test]
fn a_tenant_is_created_replaced_and_left_alone() {
    let mut world = World::new();
    let created = world.put_tenant("a", weight(2), Expect::Absent);
    assert_eq!(did(&created), Written::Created);
    let again = world.put_tenant("a", weight(2), Expect::Any);
    assert_eq!(did(&again), Written::Unchanged);
    let Outcome::Written { revision, .. } = again else {
        panic!("a write")
    };
    let refused = world.put_tenant("a", weight(3), Expect::Revision(Revision::new(99, 0)));
    let current = revision;
    assert_eq!(
        refused,
        Outcome::Refused(Refusal::RevisionMismatch { current })
    );
    let updated = world.put_tenant("a", weight(3), Expect::Revision(revision));
    assert_eq!(did(&updated), Written::Updated);
    let refused = world.put_tenant("a", weight(4), Expect::Absent);
    assert!(matches!(
        refused,
        Outcome::Refused(Refusal::AlreadyExists { .. })
    ));
    let refused = world.put_tenant("b", weight(4), Expect::Present);
    assert_eq!(
        refused,
        Outcome::Refused(Refusal::RevisionMismatch {
            current: crate::ids::Revision::default()
        })
    );
    assert_eq!(world.audited(), vec!["tenant.put a", "tenant.put a"]);
    assert_eq!(world.state.tenant_numbers[&tenant_id("a")], TenantNo(2));
    assert_eq!(world.effects, Vec::new(), "a refusal has no effect");
}

#[test]
fn a_changed_weight_makes_the_leader_look_again() {
    let mut world = World::new();
    world.put_tenant("default", weight(2), Expect::Any);
    assert_eq!(world.effects, vec![Effect::ReviewAdmission]);
}

#[test]
fn a_changed_rate_starts_with_its_burst() {
    let mut world = World::new();
    let slow = RateLimit {
        count: 1,
        per: Millis::hours(1),
        burst: 1,
    };
    let mut spec = QueueSpec {
        rate: Some(slow),
        ..QueueSpec::default()
    };
    world.put_queue(queue_id("default"), spec.clone(), Expect::Any);
    let id = world.plain();
    world.grant("w", &id);
    assert_ne!(world.state.queues[&QueueNo::DEFAULT].rate_tat_ns, 0);
    spec.max_leased = Some(7);
    world.put_queue(queue_id("default"), spec.clone(), Expect::Any);
    assert_ne!(
        world.state.queues[&QueueNo::DEFAULT].rate_tat_ns,
        0,
        "the rate is the same"
    );
    spec.rate = Some(RateLimit { count: 2, ..slow });
    world.put_queue(queue_id("default"), spec, Expect::Any);
    assert_eq!(world.state.queues[&QueueNo::DEFAULT].rate_tat_ns, 0);
}

#[test]
fn a_queue_in_use_or_protected_is_not_deleted() {
    let mut world = World::new();
    assert_eq!(
        world.delete_queue("q"),
        Outcome::Refused(Refusal::QueueNotFound)
    );
    assert_eq!(
        world.delete_queue("default"),
        Outcome::Refused(Refusal::Protected)
    );
    let mut put = a_put("s");
    put.queue = queue_id("q");
    world.put_seen(put);
    let named = Outcome::Refused(Refusal::QueueInUse { open: 0 });
    assert_eq!(world.delete_queue("q"), named, "a schedule names it");
    let mut moved = a_put("s");
    moved.queue = queue_id("r");
    world.put_seen(moved);
    let mut wanted = submission(START);
    wanted.queue = queue_id("q");
    let id = world.submit(wanted);
    let held = Outcome::Refused(Refusal::QueueInUse { open: 1 });
    assert_eq!(world.delete_queue("q"), held, "an execution is in it");
    let granted = world.grant("w", &id);
    world.report("w", &granted.lease, complete());
    assert_eq!(did(&world.delete_queue("q")), Written::Deleted);
    assert_eq!(
        world.delete_queue("q"),
        Outcome::Refused(Refusal::QueueNotFound)
    );
    world.put_queue(queue_id("q"), QueueSpec::default(), Expect::Absent);
    let number = world.state.queue_numbers[&queue_id("q")];
    assert_eq!(number, QueueNo(4), "a number is never used again");
    let ran_in = world.must_have_ended(&id).execution.queue;
    assert_ne!(ran_in, number);
    assert_eq!(world.state.queue_name(ran_in), Some(&queue_id("q")));
    let both = world.state.queues_named("q");
    assert_eq!(both, [ran_in, number].into());
}

#[test]
fn names_of_deleted_queues_are_bounded() {
    let mut world = World::new();
    let put = |n: usize| {
        AdminCommand::PutQueue(PutQueue {
            queue: queue_id(&format!("q{n}")),
            spec: QueueSpec {
                max_leased: Some(1),
                ..QueueSpec::default()
            },
            expect: Expect::Any,
        })
    };
    let delete = |n: usize| {
        AdminCommand::DeleteQueue(DeleteQueue {
            queue: queue_id(&format!("q{n}")),
            expect: Expect::Any,
        })
    };
    let all: Vec<_> = (0..=DELETED_QUEUES_MAX).collect();
    for some in all.chunks(1_000) {
        let pair = |n: &usize| [by_leader(put(*n)), by_leader(delete(*n))];
        world.apply(some.iter().flat_map(pair).collect());
    }
    assert_eq!(world.state.deleted_queues.len(), DELETED_QUEUES_MAX);
    assert_eq!(world.state.queue_name(QueueNo(2)), None, "the first one");
    assert_eq!(world.state.queue_name(QueueNo(3)), Some(&queue_id("q1")));
}

#[test]
fn a_higher_key_limit_promotes_what_it_admits() {
    let mut world = World::new();
    world.put_key("k", Some(1));
    let ids: Vec<_> = (0..6)
        .map(|n| {
            let mut wanted = submission(START.plus(Millis(n)));
            wanted.template.concurrency_key = Some("k".into());
            world.now = START.plus(Millis(n));
            let id = world.submit(wanted);
            if n == 0 {
                world.grant("w", &id);
            }
            id
        })
        .collect();
    let parked = |world: &World| {
        let is_parked = |id: &&ExecutionId| world.open(id).is_some_and(|e| e.parked);
        ids.iter().filter(is_parked).count()
    };
    assert_eq!(parked(&world), 5);
    assert_eq!(did(&world.put_key("k", Some(3))), Written::Updated);
    assert_eq!(parked(&world), 3, "two slots are free");
    assert!(
        !world.must_open(&ids[1]).parked,
        "the head of the line goes first"
    );
    assert_eq!(did(&world.put_key("k", None)), Written::Updated);
    assert_eq!(parked(&world), 0);
    assert!(
        world.state.keys.is_empty(),
        "a key without limits leaves nothing behind"
    );
}

#[test]
fn a_repeat_promotes_the_rest_of_a_long_line() {
    let mut world = World::new();
    world.put_key("k", Some(0));
    let mut wanted = submission(START);
    wanted.template.concurrency_key = Some("k".into());
    for _ in 0..120 {
        world.submit(wanted.clone());
    }
    let line = (QueueNo::DEFAULT, TENANT);
    assert_eq!(world.state.counts[&line].parked, 120);
    world.put_key("k", Some(100));
    assert_eq!(world.state.counts[&line].parked, 20);
    assert_eq!(did(&world.put_key("k", Some(100))), Written::Unchanged);
    assert_eq!(world.state.counts[&line].parked, 0);
}

#[test]
fn a_pause_of_every_level_says_who_why_and_since_and_stops_grants() {
    let kind = template().kind;
    let scopes = [
        PauseScope::Cluster,
        PauseScope::Tenant(TenantId::default_tenant()),
        PauseScope::Queue(queue_id("default")),
        PauseScope::Kind(kind),
    ];
    for scope in scopes {
        let mut world = World::new();
        let id = world.plain();
        world.now = minute(1);
        assert_eq!(
            did(&world.set_pause(scope.clone(), Some(a_pause(None)))),
            Written::Updated
        );
        assert_eq!(world.effects, vec![Effect::ReviewAdmission]);
        let pause = in_force(&world, &scope).expect("a pause");
        assert_eq!((pause.by.as_str(), pause.since), ("ops", minute(1)));
        let refused = world.grant_all("w", &[&id]);
        assert!(
            matches!(
                refused[0],
                crate::command::outcome::GrantResult::Refused {
                    why: crate::command::outcome::GrantRefusal::Paused,
                    ..
                }
            ),
            "{scope:?}: {refused:?}"
        );
        world.now = minute(2);
        let again = world.set_pause(scope.clone(), Some(a_pause(None)));
        assert_eq!(did(&again), Written::Unchanged, "a repeat changes nothing");
        world.set_pause(scope.clone(), Some(a_pause(Some(minute(9)))));
        let pause = in_force(&world, &scope).expect("a pause");
        assert_eq!((pause.since, pause.until), (minute(1), Some(minute(9))));
        assert_eq!(did(&world.set_pause(scope.clone(), None)), Written::Updated);
        assert_eq!(
            did(&world.set_pause(scope.clone(), None)),
            Written::Unchanged
        );
        assert_eq!(in_force(&world, &scope), None);
        world.grant("w", &id);
        assert_eq!(world.audited().len(), 3);
    }
}

fn in_force(world: &World, scope: &PauseScope) -> Option<crate::model::policy::PauseInfo> {
    let state = &world.state;
    match scope {
        PauseScope::Cluster => state.cluster.paused.clone(),
        PauseScope::Tenant(_) => state.tenants[&TENANT].paused.clone(),
        PauseScope::Queue(_) => state.queues[&QueueNo::DEFAULT].paused.clone(),
        PauseScope::Kind(kind) => state.cluster.paused_kinds.get(kind).cloned(),
    }
}

#[test]
fn a_pause_of_what_does_not_exist_is_refused() {
    let mut world = World::new();
    let answer = world.set_pause(PauseScope::Tenant(tenant_id("a")), Some(a_pause(None)));
    assert_eq!(answer, Outcome::Refused(Refusal::TenantNotFound));
    let answer = world.set_pause(PauseScope::Queue(queue_id("a")), Some(a_pause(None)));
    assert_eq!(answer, Outcome::Refused(Refusal::QueueNotFound));
}

#[test]
fn the_leader_lifts_a_timed_pause_only_when_its_time_has_come() {
    let mut world = World::new();
    world.set_pause(PauseScope::Cluster, Some(a_pause(Some(minute(5)))));
    let lift = |world: &mut World| {
        let lift = SetPause {
            scope: PauseScope::Cluster,
            pause: None,
        };
        world.apply(vec![by_leader(AdminCommand::SetPause(lift))]);
        world.state.cluster.paused.is_none()
    };
    world.now = minute(4);
    assert!(!lift(&mut world));
    world.set_pause(PauseScope::Cluster, Some(a_pause(Some(minute(7)))));
    world.now = minute(5);
    assert!(!lift(&mut world), "it was prolonged");
    world.now = minute(7);
    assert!(lift(&mut world));
}

#[test]
fn paused_kinds_are_bounded() {
    let mut world = World::new();
    for n in 0..super::pauses::PAUSED_KINDS_MAX {
        let kind = Kind::new(&format!("k{n}")).expect("a kind");
        world.state.cluster.paused_kinds.insert(kind, a_pause(None));
    }
    // Written by the next change of the cluster's row.
    world.set_pause(PauseScope::Cluster, Some(a_pause(None)));
    let kind = Kind::new("one-more").expect("a kind");
    let answer = world.set_pause(PauseScope::Kind(kind), Some(a_pause(None)));
    let quota = Quota::PausedKinds;
    assert!(matches!(
        answer,
        Outcome::Refused(Refusal::QuotaExceeded { quota: q, .. }) if q == quota
    ));
}

#[test]
fn the_index_base_grows_in_steps_and_moves_every_later_token() {
    let mut world = World::new();
    let mut set = |base| {
        let outcome = world.admin(AdminCommand::PutSettings(PutSettings {
            zone_release: None,
            index_base: Some(base),
        }));
        did(&outcome)
    };
    assert_eq!(set(5), Written::Unchanged, "no multiple of 2^40");
    assert_eq!(set(1 << 40), Written::Updated);
    assert_eq!(set(1 << 40), Written::Unchanged);
    assert_eq!(set(0), Written::Unchanged, "it only grows");
    assert_eq!(set(1 << 53), Written::Unchanged, "tokens stay below 2^53");
    let id = world.plain();
    let granted = world.grant("w", &id);
    assert!(granted.lease.fencing_token > 1 << 40);
}

#[test]
fn settings_say_which_zone_data_is_used() {
    let mut world = World::new();
    let mut set = |release: &str| {
        let outcome = world.admin(AdminCommand::PutSettings(PutSettings {
            zone_release: Some(release.to_owned()),
            index_base: None,
        }));
        did(&outcome)
    };
    assert_eq!(set("2026a"), Written::Updated);
    assert_eq!(set("2026a"), Written::Unchanged);
    assert_eq!(world.state.cluster.zone_release, "2026a");
}

#[test]
fn a_repeat_with_the_same_key_answers_the_first_outcome_even_for_a_new_tenant() {
    let mut world = World::new();
    let key = Idempotency {
        hash: [7; 16],
        fingerprint: 1,
    };
    let put = |fingerprint| Envelope {
        actor: Actor::Anonymous,
        reason: None,
        request_id: None,
        received_at: None,
        idempotency: Some(Idempotency { fingerprint, ..key }),
        command: Command::Admin(AdminCommand::PutTenant(crate::command::admin::PutTenant {
            tenant: tenant_id("a"),
            spec: weight(2),
            expect: Expect::Any,
        })),
    };
    let first = world.apply(vec![put(1)]).remove(0);
    assert_eq!(did(&first), Written::Created);
    let again = world.apply(vec![put(1)]).remove(0);
    assert_eq!(again, Outcome::Replayed(Box::new(first)));
    let other = world.apply(vec![put(2)]).remove(0);
    assert_eq!(other, Outcome::Refused(Refusal::IdempotencyConflict));
    assert_eq!(world.now, START);
    assert!(Timestamp::EPOCH < world.now);
}
