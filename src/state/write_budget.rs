//! The write budget, measured: what `STORAGE.md` says each command writes is what it writes.
//!
//! Counted are the keys outside `meta`, whose rows (position, counts, usage, limits) are written once an entry whatever
//! it holds. The table in `STORAGE.md` is read here, so neither it nor apply can change alone.

use std::collections::BTreeMap;

use crate::command::executions::{CancelMode, OnConflict, SubmitExecution, UniqueKey};
use crate::command::schedules::{RemoveSchedule, ScheduleCommand, Step};
use crate::command::{Actor, Command, Envelope, Idempotency};
use crate::ids::{ExecutionId, ScheduleId};
use crate::model::execution::INLINE_PAYLOAD_MAX;
use crate::model::schedule::SkipReason;
use crate::state::testkit::{
    LEASE, START, TENANT, World, a_put, complete, create, fail, minute, plan, release, renew, skip,
    submission, submit_command,
};
use crate::time::Millis;

/// Keys by name of what was done.
#[derive(Default)]
struct Measured(BTreeMap<&'static str, usize>);

impl Measured {
    fn note(&mut self, what: &'static str, world: &World) {
        assert_eq!(self.0.insert(what, world.budget()), None, "{what} twice");
    }
}

/// `| name | keys | …` lines under the heading of the budget.
fn documented() -> BTreeMap<String, usize> {
    let text = include_str!("../../STORAGE.md");
    let (_, rest) = text.split_once("## Write budget").expect("a heading");
    let section = rest.split("\n## ").next().unwrap_or(rest);
    let rows = section.lines().filter_map(|line| {
        let mut cells = line.strip_prefix('|')?.split('|').map(str::trim);
        let (name, keys) = (cells.next()?, cells.next()?);
        Some((name.to_owned(), keys.parse().ok()?))
    });
    rows.collect()
}

fn submissions(measured: &mut Measured) {
    let mut world = World::new();
    let mut one = |what, change: &dyn Fn(&mut SubmitExecution)| {
        let mut wanted = submission(START);
        change(&mut wanted);
        world.submit(wanted);
        measured.note(what, &world);
    };
    one("submit", &|_| {});
    one("submit, due later", &|s| s.due_at = minute(5));
    one("submit, payload over 1 KiB", &|s| {
        s.template.payload = vec![b'1'; INLINE_PAYLOAD_MAX + 1];
    });
    one("submit, chosen id", &|s| {
        s.id = ExecutionId::new("order-1").ok()
    });
    one("submit, unique key", &|s| {
        s.unique = Some(UniqueKey {
            key: "u".into(),
            on_conflict: OnConflict::Reject,
        });
    });
    one("submit, start time-out", &|s| {
        s.template.timeouts.start = Some(Millis::minutes(1));
    });
    let key = Idempotency {
        hash: [1; 16],
        fingerprint: 1,
    };
    let envelope = Envelope {
        idempotency: Some(key),
        ..Envelope::leader(submit_command(submission(START)))
    };
    world.apply(vec![envelope]);
    measured.note("submit, idempotency key", &world);
}

fn leases(measured: &mut Measured) {
    let mut world = World::new();
    let id = world.plain();
    let granted = world.grant("w", &id);
    measured.note("grant", &world);
    world.report("w", &granted.lease, renew());
    measured.note("renew", &world);
    world.report("w", &granted.lease, release(Millis::ZERO));
    measured.note("release", &world);
    let granted = world.grant("w", &id);
    world.report("w", &granted.lease, fail());
    measured.note("fail, to be retried", &world);
    world.advance(Millis::secs(2));
    world.process_due();
    measured.note("due execution becomes ready", &world);
    let granted = world.grant("w", &id);
    world.advance(LEASE);
    world.expire(&granted.lease);
    measured.note("lease expires, to be retried", &world);
    world.advance(Millis::minutes(1));
    world.process_due();
    let granted = world.grant("w", &id);
    world.report("w", &granted.lease, complete());
    measured.note("complete", &world);

    let mut wanted = submission(world.now);
    wanted.template.timeouts.start = Some(Millis::minutes(1));
    let id = world.submit(wanted);
    world.grant("w", &id);
    measured.note("grant, start time-out", &world);

    world.put_key("k", Some(1));
    let mut keyed = submission(world.now);
    keyed.template.concurrency_key = Some("k".into());
    let first = world.submit(keyed.clone());
    let granted = world.grant("w", &first);
    world.submit(keyed);
    measured.note("submit, parked at its key", &world);
    world.report("w", &granted.lease, complete());
    measured.note("complete, parked one takes the slot", &world);
}

fn cancels(measured: &mut Measured) {
    let mut world = World::new();
    let id = world.plain();
    world.cancel(&id, CancelMode::Request);
    measured.note("cancel, not leased", &world);
    let id = world.plain();
    world.grant("w", &id);
    world.cancel(&id, CancelMode::Request);
    measured.note("cancel, leased", &world);
    world.cancel(&id, CancelMode::Now);
    measured.note("cancel now, leased", &world);
}

fn schedules(measured: &mut Measured) {
    let mut world = World::new();
    world.put_seen(a_put("s"));
    measured.note("schedule created", &world);
    let put = Command::Schedule(ScheduleCommand::Put(Box::new(a_put("t"))));
    let named = Envelope {
        actor: Actor::Named("ada".into()),
        ..Envelope::leader(put)
    };
    world.apply(vec![named]);
    measured.note("schedule created by a named caller", &world);
    let mut edited = a_put("s");
    edited.spec.description = "two".into();
    edited.plan = plan(START, Some(minute(2)));
    world.put_seen(edited);
    measured.note("schedule replaced", &world);
    world.pause("s", None);
    measured.note("schedule paused", &world);
    world.resume("s", Vec::new(), plan(START, Some(minute(1))));
    measured.note("schedule resumed", &world);
    world.trigger("s");
    measured.note("trigger", &world);
    world.delete_schedule("s");
    measured.note("schedule deleted, one earlier definition", &world);
}

fn firing(measured: &mut Measured) {
    let mut world = World::new();
    world.put_seen(a_put("s"));
    world.now = minute(1);
    let made = world.fired(
        "s",
        vec![create(minute(1))],
        plan(minute(1), Some(minute(2))),
    );
    measured.note("fire, one occurrence", &world);
    let granted = world.grant("w", &made[0]);
    world.report("w", &granted.lease, complete());
    measured.note("complete, of a schedule", &world);
    world.now = minute(11);
    let ten = (2..=11).map(|n| create(minute(n))).collect();
    world.fired("s", ten, plan(minute(11), Some(minute(12))));
    measured.note("fire, ten occurrences", &world);
    world.now = minute(12);
    let record = skip(minute(12), minute(12), 1, SkipReason::Calendar);
    world.fire(
        "s",
        vec![Step::Skip(record)],
        plan(minute(12), Some(minute(13))),
    );
    measured.note("fire, a skip", &world);

    world.put_seen(a_put("once"));
    let made = world.fired("once", vec![create(minute(1))], plan(minute(1), None));
    let granted = world.grant("w", &made[0]);
    world.report("w", &granted.lease, complete());
    measured.note("complete, the schedule completes", &world);
    let (once, _) = world.schedule("once");
    world.advance(Millis::days(7));
    world.one(Command::Schedule(ScheduleCommand::Remove(RemoveSchedule {
        tenant: TENANT,
        id: ScheduleId::new("once").expect("a name"),
        incarnation: once.incarnation,
    })));
    measured.note("completed schedule removed", &world);
}

#[test]
fn every_command_writes_what_storage_md_says() {
    let mut measured = Measured::default();
    submissions(&mut measured);
    leases(&mut measured);
    cancels(&mut measured);
    schedules(&mut measured);
    firing(&mut measured);
    let measured: BTreeMap<String, usize> = measured
        .0
        .into_iter()
        .map(|(what, keys)| (what.to_owned(), keys))
        .collect();
    assert_eq!(measured, documented());
}

#[test]
fn the_common_path_stays_within_its_bounds() {
    let documented = documented();
    for (what, bound) in [
        ("submit", 3),
        ("grant", 2),
        ("complete", 3),
        ("schedule created", 3),
    ] {
        assert!(
            documented[what] <= bound,
            "{what} takes {}",
            documented[what]
        );
    }
}
