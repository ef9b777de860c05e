//! Random histories: whatever people, workers and leaders do, the invariants of [`super::check`] hold after each entry,
//! and once everything has ended nothing is left in use.
//!
//! Commands are made from the state before their entry, so that inside an entry they meet one another's effects.

use proptest::prelude::*;

use super::{
    LEASE, TENANT, World, a_put, by_anyone, cancel_command, complete, create, fail, grant_command,
    item_of, minute, plan, reference, release, renew, report_command, submission, submit_command,
    worker_id,
};
use crate::command::admin::{AdminCommand, PauseScope, PutKey, PutQueue, SetPause, TakeOffice};
use crate::command::executions::{
    CancelMode, DeleteExecution, ExecutionCommand, OnConflict, ProcessDue, UniqueKey,
};
use crate::command::leases::{
    ExpireLeases, GrantLeases, LeaseCommand, ReportAction, ReportItem, RevokeCause, RevokeLeases,
};
use crate::command::schedules::{FireOccurrences, ScheduleCommand};
use crate::command::{Command, Envelope, Expect};
use crate::ids::{ExecutionId, Kind, QueueId, ScheduleId, TenantId};
use crate::model::execution::{Execution, ExecutionState};
use crate::model::lease::Lease;
use crate::model::policy::RateLimit;
use crate::model::queue::QueueSpec;
use crate::model::schedule::ScheduleState;
use crate::store::due::DueKind;
use crate::store::{Family, keys, value};
use crate::time::Millis;

/// What somebody wants; numbers choose among what is there.
#[derive(Clone, Debug)]
enum Wish {
    Submit {
        due_in: u64,
        shape: u8,
        key: u8,
    },
    Grant {
        pick: u8,
        worker: u8,
        confirm: bool,
    },
    Report {
        pick: u8,
        action: ReportAction,
        late: u64,
    },
    Stale {
        pick: u8,
    },
    Expire,
    Revoke {
        pick: u8,
        cause: RevokeCause,
    },
    Cancel {
        pick: u8,
        mode: CancelMode,
    },
    Delete {
        pick: u8,
    },
    ProcessDue,
    LimitKey {
        max: Option<u32>,
        rate: bool,
    },
    LimitQueue {
        max_leased: Option<u64>,
        max_pending: Option<u64>,
    },
    Pause {
        kind: bool,
        on: bool,
    },
    Fire,
    Trigger,
    DropSchedule,
}

fn an_action() -> impl Strategy<Value = ReportAction> {
    let progress = prop::option::of(Just(b"{}".to_vec()));
    prop_oneof![
        3 => Just(complete()),
        3 => Just(fail()),
        2 => progress.prop_map(|progress| ReportAction::Renew { duration: None, progress }),
        1 => Just(release(Millis::ZERO)),
        1 => Just(release(Millis::secs(3))),
        1 => any::<bool>().prop_map(|retryable| ReportAction::Fail {
            error: b"{}".to_vec(),
            error_type: Some("Fatal".into()),
            retryable,
            retry_in: Some(Millis::ZERO),
            draw: 1,
            truncated: false,
        }),
    ]
}

fn a_wish() -> impl Strategy<Value = Wish> {
    let cause = prop_oneof![
        Just(RevokeCause::Operator),
        Just(RevokeCause::Undelivered),
        Just(RevokeCause::SignOff)
    ];
    let mode = prop_oneof![Just(CancelMode::Request), Just(CancelMode::Now)];
    let some = |max| prop::option::of(0..max);
    prop_oneof![
        6 => (prop_oneof![Just(0), 0..20_000_u64], any::<u8>(), 0..4_u8)
            .prop_map(|(due_in, shape, key)| Wish::Submit { due_in, shape, key }),
        8 => (any::<u8>(), 0..3_u8, any::<bool>())
            .prop_map(|(pick, worker, confirm)| Wish::Grant { pick, worker, confirm }),
        8 => (any::<u8>(), an_action(), 0..6_000_u64)
            .prop_map(|(pick, action, late)| Wish::Report { pick, action, late }),
        1 => any::<u8>().prop_map(|pick| Wish::Stale { pick }),
        3 => Just(Wish::Expire),
        1 => (any::<u8>(), cause).prop_map(|(pick, cause)| Wish::Revoke { pick, cause }),
        2 => (any::<u8>(), mode).prop_map(|(pick, mode)| Wish::Cancel { pick, mode }),
        1 => any::<u8>().prop_map(|pick| Wish::Delete { pick }),
        5 => Just(Wish::ProcessDue),
        2 => (some(3_u32), any::<bool>()).prop_map(|(max, rate)| Wish::LimitKey { max, rate }),
        1 => (some(4), some(6)).prop_map(|(leased, pending)| Wish::LimitQueue {
            max_leased: leased.map(u64::from),
            max_pending: pending.map(u64::from),
        }),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(kind, on)| Wish::Pause { kind, on }),
        3 => Just(Wish::Fire),
        1 => Just(Wish::Trigger),
        1 => Just(Wish::DropSchedule),
    ]
}

/// One entry: how much time passes before it, whether a new leader takes office, and what it carries.
type Entry = (u64, bool, Vec<Wish>);

fn an_entry() -> impl Strategy<Value = Entry> {
    let passing = prop_oneof![3 => 0..1_500_u64, 1 => 0..15_000_u64, 1 => Just(0)];
    let office = prop::bool::weighted(0.03);
    (passing, office, prop::collection::vec(a_wish(), 1..5))
}

fn pick<T: Clone>(from: &[T], number: u8) -> Option<T> {
    let at = usize::from(number).checked_rem(from.len())?;
    from.get(at).cloned()
}

fn open(world: &World) -> Vec<Execution> {
    let rows = world.rows(Family::Live, &[keys::EXECUTION]);
    let decode = |bytes: Vec<u8>| value::decode(&bytes).expect("an execution");
    rows.into_values().map(decode).collect()
}

fn leases(world: &World) -> Vec<Lease> {
    world.state.leases.values().cloned().collect()
}

/// Ids of final executions that are still there.
fn ended(world: &World) -> Vec<ExecutionId> {
    let rows = world.rows(Family::History, &[]);
    // class u8, bucket u32, tenant u32, tag, id.
    let id = |key: &Vec<u8>| {
        let is_final = key.get(9) == Some(&keys::FINAL);
        let name = std::str::from_utf8(key.get(10..)?).ok()?;
        is_final.then(|| ExecutionId::new(name).ok()).flatten()
    };
    rows.keys().filter_map(id).collect()
}

fn lease(command: LeaseCommand) -> Command {
    Command::Lease(command)
}

fn a_submission(world: &World, due_in: u64, shape: u8, key: u8) -> Command {
    let mut submission = submission(world.now.plus(Millis(due_in)));
    let template = &mut submission.template;
    template.priority = shape % 10;
    template.concurrency_key = (key > 0).then(|| "k".to_owned());
    let bit = |n: u8| shape & (1 << n) != 0;
    template.timeouts.start = bit(0).then_some(Millis::secs(8));
    template.timeouts.attempt = bit(1).then_some(Millis::secs(7));
    template.timeouts.total = bit(2).then_some(Millis::secs(12));
    template.retry.max_lease_losses = if bit(3) { 1 } else { 3 };
    template.retry.max_elapsed = bit(4).then_some(Millis::secs(5));
    if bit(5) {
        template.payload = vec![b'1'; 2_000];
    }
    if bit(6) {
        submission.id = ExecutionId::new(&format!("chosen-{}", shape % 16)).ok();
    }
    submission.unique = bit(7).then(|| UniqueKey {
        key: format!("u{}", shape % 2),
        on_conflict: match key {
            0 => OnConflict::Reject,
            1 => OnConflict::ReturnExisting,
            _ => OnConflict::Replace,
        },
    });
    submit_command(submission)
}

fn a_grant(world: &World, execution: &Execution, worker: u8, confirm: bool) -> Command {
    lease(LeaseCommand::Grant(GrantLeases {
        worker: worker_id(&format!("w{worker}")),
        request_id: Some(format!("r{worker}")),
        duration: LEASE,
        start_confirmation: confirm.then_some(Millis::secs(2)),
        items: vec![world.grant_item(&execution.id)],
    }))
}

fn a_rate() -> RateLimit {
    RateLimit {
        count: 2,
        per: Millis::secs(1),
        burst: 2,
    }
}

/// Decides the planned occurrence of schedule `s` if it is due, else puts the schedule if it is not there.
fn a_firing(world: &World) -> Option<Command> {
    let Some((schedule, status)) = world.find_schedule("s") else {
        let mut put = a_put("s");
        put.spec.pause_after_failures = Some(3);
        put.spec.template.retry.max_attempts = 1;
        put.spec.overlap.max_open = 4;
        let now = world.now;
        put.plan = plan(now, Some(now.plus(Millis::secs(1))));
        return Some(Command::Schedule(ScheduleCommand::Put(Box::new(put))));
    };
    if let ScheduleState::Paused(_) = status.state {
        let now = world.now.max(status.cursor);
        let next = Some(now.plus(Millis::secs(2)));
        return Some(world.a_resume("s", Vec::new(), plan(now, next)));
    }
    let next = status.next.filter(|next| next.due_at <= world.now)?;
    let at = next.nominal_at;
    // After twenty occurrences it is over.
    let goes_on = status.created_count < 20;
    Some(Command::Schedule(ScheduleCommand::Fire(FireOccurrences {
        tenant: TENANT,
        id: schedule.id,
        seen: world.seen("s"),
        steps: vec![create(at)],
        plan: plan(at, goes_on.then(|| at.plus(Millis::secs(1)))),
    })))
}

fn admin_command(wish: &Wish) -> Option<Command> {
    let command = match wish {
        Wish::LimitKey { max, rate } => AdminCommand::PutKey(PutKey {
            tenant: TenantId::default_tenant(),
            key: "k".into(),
            max_leased: *max,
            rate: rate.then(a_rate),
        }),
        Wish::LimitQueue {
            max_leased,
            max_pending,
        } => AdminCommand::PutQueue(PutQueue {
            queue: QueueId::default_queue(),
            spec: QueueSpec {
                max_leased: *max_leased,
                max_pending: *max_pending,
                ..QueueSpec::default()
            },
            expect: Expect::Any,
        }),
        Wish::Pause { kind, on } => AdminCommand::SetPause(SetPause {
            scope: if *kind {
                PauseScope::Kind(Kind::new("mail").expect("a kind"))
            } else {
                PauseScope::Queue(QueueId::default_queue())
            },
            pause: on.then(|| super::admin::a_pause(None)),
        }),
        _ => return None,
    };
    Some(Command::Admin(command))
}

fn lease_command(world: &World, wish: &Wish) -> Option<Envelope> {
    let plain = |command| Some(by_anyone(command, None));
    match wish {
        Wish::Grant {
            pick: at,
            worker,
            confirm,
        } => {
            let mut among = open(world);
            // Mostly what a leader would offer; sometimes anything.
            if *at < 200 {
                among.retain(|e| e.state == ExecutionState::Ready && !e.parked);
                among.retain(|e| world.lease(&e.id).is_none());
            }
            plain(a_grant(world, &pick(&among, *at)?, *worker, *confirm))
        }
        Wish::Report {
            pick: at,
            action,
            late,
        } => {
            let lease = pick(&leases(world), *at)?;
            let item = ReportItem {
                lease: reference(&lease),
                action: action.clone(),
            };
            let received_at = world.now.minus(Millis(*late));
            let command = report_command(lease.worker.as_str(), vec![item]);
            Some(by_anyone(command, Some(received_at)))
        }
        Wish::Stale { pick: at } => {
            let lease = pick(&leases(world), *at)?;
            let mut item = ReportItem {
                lease: reference(&lease),
                action: renew(),
            };
            item.lease.fencing_token -= 1;
            plain(report_command(lease.worker.as_str(), vec![item]))
        }
        Wish::Expire => {
            let items = leases(world).iter().map(item_of).collect();
            plain(lease(LeaseCommand::Expire(ExpireLeases { items })))
        }
        Wish::Revoke { pick: at, cause } => {
            let items = vec![item_of(&pick(&leases(world), *at)?)];
            let cause = *cause;
            plain(lease(LeaseCommand::Revoke(RevokeLeases { cause, items })))
        }
        _ => None,
    }
}

fn envelope(world: &World, wish: &Wish) -> Option<Envelope> {
    let command = match wish {
        Wish::Submit { due_in, shape, key } => a_submission(world, *due_in, *shape, *key),
        Wish::Cancel { pick: at, mode } => cancel_command(&pick(&open(world), *at)?.id, *mode),
        Wish::Delete { pick: at } => {
            Command::Execution(ExecutionCommand::Delete(DeleteExecution {
                tenant: TenantId::default_tenant(),
                id: pick(&ended(world), *at)?,
            }))
        }
        Wish::ProcessDue => {
            let mut items = world.due_entries();
            items.retain(|e| matches!(e.kind, DueKind::Execution | DueKind::StartDeadline));
            Command::Execution(ExecutionCommand::ProcessDue(ProcessDue { items }))
        }
        Wish::Fire => a_firing(world)?,
        Wish::Trigger => {
            world.find_schedule("s")?;
            Command::Schedule(ScheduleCommand::Trigger(World::a_trigger("s")))
        }
        Wish::DropSchedule => {
            let id = ScheduleId::new("s").expect("a name");
            let tenant = TenantId::default_tenant();
            let expect = Expect::Any;
            Command::Schedule(ScheduleCommand::Delete(
                crate::command::schedules::DeleteSchedule { tenant, id, expect },
            ))
        }
        _ => match admin_command(wish) {
            Some(command) => command,
            None => return lease_command(world, wish),
        },
    };
    Some(by_anyone(command, None))
}

fn play(world: &mut World, (passing, office, wishes): &Entry) {
    world.advance(Millis(*passing));
    let mut envelopes = Vec::new();
    if *office {
        world.term += 1;
        let take = AdminCommand::TakeOffice(TakeOffice { node: 2 });
        envelopes.push(by_anyone(Command::Admin(take), None));
    }
    envelopes.extend(wishes.iter().filter_map(|wish| envelope(world, wish)));
    if !envelopes.is_empty() {
        world.apply(envelopes);
    }
}

/// Lifts every limit and lets workers finish everything.
fn drain(world: &mut World) {
    let lift = [
        Wish::LimitKey {
            max: None,
            rate: false,
        },
        Wish::LimitQueue {
            max_leased: None,
            max_pending: None,
        },
        Wish::Pause {
            kind: true,
            on: false,
        },
        Wish::Pause {
            kind: false,
            on: false,
        },
        Wish::DropSchedule,
    ];
    let lift: Vec<_> = lift
        .iter()
        .filter_map(|wish| envelope(world, wish))
        .collect();
    world.apply(lift);
    for _ in 0..200 {
        if open(world).is_empty() {
            return;
        }
        world.advance(Millis::secs(1));
        world.process_due();
        for execution in open(world) {
            let items = vec![world.grant_item(&execution.id)];
            world.one(grant_command("w", None, items));
        }
        for lease in leases(world) {
            let worker = lease.worker.as_str().to_owned();
            world.report(&worker, &lease, complete());
            world.expire(&lease);
        }
    }
    panic!("{:?} never ended", open(world));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn any_history_keeps_every_invariant_and_leaves_nothing_in_use(
        limit in 1..4_u32,
        entries in prop::collection::vec(an_entry(), 1..60)
    ) {
        let mut world = World::new();
        world.put_key("k", Some(limit));
        for entry in &entries {
            play(&mut world, entry);
        }
        drain(&mut world);
        prop_assert!(world.state.leases.is_empty());
        prop_assert!(world.state.counts.is_empty());
        prop_assert!(world.state.queue_totals.is_empty());
        prop_assert!(world.state.key_leased.is_empty());
        prop_assert!(world.state.keys.values().all(|key| key.parked == 0));
        let usage = world.state.usage.get(&TENANT).copied().unwrap_or_default();
        prop_assert_eq!((usage.open, usage.leased), (0, 0));
        let first = minute(0);
        prop_assert!(world.state.applied.now >= first);
    }
}
