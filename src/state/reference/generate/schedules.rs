//! Commands about schedules.

use super::{Dice, expect, kind, queue, tenant};
use crate::command::schedules::{
    DeleteSchedule, FireOccurrences, PauseSchedule, Plan, PutSchedule, RemoveSchedule,
    ResumeSchedule, ScheduleCommand, Seen, Step, TriggerSchedule,
};
use crate::ids::{ExecutionId, ScheduleId, TenantId, TenantNo};
use crate::model::execution::Cause;
use crate::model::policy::{MisfirePolicy, Overlap, OverlapPolicy, PastPolicy};
use crate::model::rule::{RuleSpec, When};
use crate::model::schedule::{
    Planned as Next, ScheduleSpec, ScheduleState, SkipReason, SkipRecord,
};
use crate::state::reference::{Model, Planned};
use crate::time::{Millis, Timestamp};

const MINUTE: Millis = Millis::minutes(1);

/// A schedule's name with what the model knows of it.
struct Target<'m> {
    tenant: TenantId,
    number: u32,
    id: ScheduleId,
    known: Option<&'m Planned>,
}

fn target<'m>(model: &'m Model, dice: &mut Dice) -> Target<'m> {
    let tenant = tenant(dice);
    let number = model.tenant(&tenant).unwrap_or(99);
    let id = ScheduleId::new(dice.word(&["s1", "s2", "s3"])).expect("a name");
    let known = model.schedules.get(&(number, id.to_string()));
    Target {
        tenant,
        number,
        id,
        known,
    }
}

/// Mostly one that exists.
fn known_target<'m>(model: &'m Model, dice: &mut Dice) -> Target<'m> {
    for _ in 0..4 {
        let target = target(model, dice);
        if target.known.is_some() {
            return target;
        }
    }
    target(model, dice)
}

pub(super) fn command(model: &Model, dice: &mut Dice) -> ScheduleCommand {
    match dice.below(20) {
        0..=5 => put(model, dice),
        6 => {
            let target = known_target(model, dice);
            ScheduleCommand::Delete(DeleteSchedule {
                expect: expect(target.known.map(|p| p.row.revision), dice),
                tenant: target.tenant,
                id: target.id,
            })
        }
        7 => {
            let target = known_target(model, dice);
            ScheduleCommand::Pause(PauseSchedule {
                expect: expect(target.known.map(|p| p.row.revision), dice),
                until: dice.maybe(|dice| model.now.plus(Millis(*dice.pick(&[0, 9_000, 70_000])))),
                tenant: target.tenant,
                id: target.id,
            })
        }
        8 | 9 => resume(model, dice),
        10 | 11 => trigger(model, dice),
        12 => {
            let target = known_target(model, dice);
            let known = target.known.map_or(1, |p| p.row.incarnation);
            ScheduleCommand::Remove(RemoveSchedule {
                tenant: TenantNo(target.number),
                id: target.id,
                incarnation: if dice.once_in(9) { known + 1 } else { known },
            })
        }
        _ => fire(model, dice),
    }
}

/// What a planner read: mostly what is there.
fn seen(known: Option<&Planned>, dice: &mut Dice) -> Option<Seen> {
    let mut seen = known.map(Planned::seen);
    match dice.below(30) {
        0 => seen = None,
        1 => {
            seen = Some(Seen {
                incarnation: 1,
                generation: 1,
                cursor: Timestamp::EPOCH,
            });
        }
        2 => {
            if let Some(seen) = &mut seen {
                seen.generation += 1;
            }
        }
        _ => {}
    }
    seen
}

/// A plan that leads on from `cursor`, or now and then back.
fn plan(cursor: Timestamp, dice: &mut Dice) -> Plan {
    let cursor = if dice.once_in(25) {
        cursor.minus(Millis(1))
    } else {
        cursor
    };
    let next = (!dice.once_in(5)).then(|| {
        let nominal_at = cursor.plus(Millis(*dice.pick(&[
            1,
            1_000,
            60_000,
            8_000_000,
            900_000_000,
        ])));
        let nominal_at = if dice.once_in(25) { cursor } else { nominal_at };
        Next {
            nominal_at,
            due_at: nominal_at.plus(Millis(*dice.pick(&[0, 0, 0, 400]))),
        }
    });
    Plan { cursor, next }
}

fn spec(dice: &mut Dice) -> ScheduleSpec {
    let when = match dice.below(4) {
        0 => When::AfterEnd(Millis(*dice.pick(&[0, 30_000]))),
        1 => When::Cron("* * * * *".into()),
        _ => When::Every {
            every: MINUTE,
            anchor: Timestamp::EPOCH,
        },
    };
    let mut rule = RuleSpec::new(when);
    rule.max_occurrences = dice.once_in(4).then(|| 1 + dice.below(3) as u64);
    ScheduleSpec {
        description: dice.word(&["one", "two"]).to_owned(),
        template: super::work::template(dice),
        rule,
        misfire: MisfirePolicy::default(),
        overlap: OverlapPolicy {
            policy: *dice.pick(&[Overlap::Allow, Overlap::Allow, Overlap::Skip]),
            max_open: *dice.pick(&[0, 1, 2, 1_000]),
        },
        past: PastPolicy::default(),
        keep_for: Millis(*dice.pick(&[0, 60_000, 604_800_000])),
        pause_after_failures: dice.once_in(3).then(|| 1 + dice.small(2)),
    }
}

fn put(model: &Model, dice: &mut Dice) -> ScheduleCommand {
    let target = target(model, dice);
    let mut wanted = spec(dice);
    if let Some(known) = target.known.filter(|_| dice.once_in(2)) {
        wanted = known.row.spec.clone();
        if !dice.once_in(3) {
            wanted.description.push('x');
        }
        wanted.description.truncate(12);
    }
    wanted.template.kind = kind(dice);
    let from = target
        .known
        .map_or(model.now, |p| p.status.cursor.max(model.now));
    let dropped = (0..dice.below(4).saturating_sub(1)).map(|n| {
        let at = from.minus(Millis(10 - n as u64));
        skip(at, at, SkipReason::Superseded, dice)
    });
    let dropped = dropped.collect();
    let seen = seen(target.known, dice);
    ScheduleCommand::Put(Box::new(PutSchedule {
        queue: queue(dice),
        plan: plan(from, dice),
        seen,
        expect: expect(target.known.map(|p| p.row.revision), dice),
        tenant: target.tenant,
        id: target.id,
        spec: wanted,
        dropped,
    }))
}

fn skip(from: Timestamp, to: Timestamp, reason: SkipReason, dice: &mut Dice) -> SkipRecord {
    SkipRecord {
        from,
        to,
        count: 1 + dice.below(3) as u64,
        at_least: dice.once_in(9),
        reason,
        blocker: dice
            .once_in(9)
            .then(|| ExecutionId::new("blocker").expect("an id")),
        local: (reason == SkipReason::DstGap).then(|| "02:30".to_owned()),
    }
}

/// Decisions after `from`, mostly in order, and where they end.
fn steps(from: Timestamp, dice: &mut Dice) -> (Vec<Step>, Timestamp) {
    let mut at = from;
    let mut steps = Vec::new();
    for _ in 0..dice.below(4) {
        let stride = *dice.pick(&[1_000, 60_000, 60_000, 60_000]);
        let stride = if dice.once_in(25) { 0 } else { stride };
        at = at.plus(Millis(stride));
        if dice.once_in(3) {
            let reasons = [
                SkipReason::Misfire,
                SkipReason::Calendar,
                SkipReason::Calendar,
                SkipReason::DstGap,
            ];
            let reason = *dice.pick(&reasons);
            let end = at.plus(Millis(*dice.pick(&[0, 500])));
            steps.push(Step::Skip(skip(at, end, reason, dice)));
            at = end;
        } else {
            let planned = Next {
                nominal_at: at,
                due_at: at.plus(Millis(*dice.pick(&[0, 0, 250]))),
            };
            let cause = *dice.pick(&[Cause::Due, Cause::CatchUp]);
            steps.push(Step::Create { planned, cause });
        }
    }
    (steps, at)
}

fn fire(model: &Model, dice: &mut Dice) -> ScheduleCommand {
    let target = known_target(model, dice);
    let cursor = target.known.map_or(model.now, |p| p.status.cursor);
    let (steps, end) = steps(cursor, dice);
    ScheduleCommand::Fire(FireOccurrences {
        tenant: TenantNo(target.number),
        id: target.id,
        seen: seen(target.known, dice).unwrap_or(Seen {
            incarnation: 0,
            generation: 0,
            cursor,
        }),
        steps,
        plan: plan(end, dice),
    })
}

fn resume(model: &Model, dice: &mut Dice) -> ScheduleCommand {
    let is_paused = |p: &&Planned| matches!(p.status.state, ScheduleState::Paused(_));
    let mut target = known_target(model, dice);
    if let Some(paused) = model.schedules.values().find(is_paused) {
        let number = paused.row.tenant.0;
        target = Target {
            tenant: model.tenants[&number].id.clone(),
            number,
            id: paused.row.id.clone(),
            known: Some(paused),
        };
    }
    let cursor = target.known.map_or(model.now, |p| p.status.cursor);
    let (steps, end) = steps(cursor, dice);
    ScheduleCommand::Resume(ResumeSchedule {
        expect: expect(target.known.map(|p| p.row.revision), dice),
        seen: seen(target.known, dice).unwrap_or(Seen {
            incarnation: 0,
            generation: 0,
            cursor,
        }),
        plan: plan(end, dice),
        steps,
        tenant: target.tenant,
        id: target.id,
    })
}

fn trigger(model: &Model, dice: &mut Dice) -> ScheduleCommand {
    let target = known_target(model, dice);
    ScheduleCommand::Trigger(TriggerSchedule {
        tenant: target.tenant,
        id: target.id,
        payload: dice.maybe(|_| b"{}".to_vec()),
        overlap: dice.maybe(|dice| *dice.pick(&[Overlap::Allow, Overlap::Skip])),
        traceparent: dice.maybe(|_| "00-trace".to_owned()),
    })
}
