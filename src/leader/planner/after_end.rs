//! Rules that count from the end of the previous execution.
//!
//! Apply plans the next occurrence itself when the last open execution ends; what is left for the planner is the first one,
//! the one that is due, and edits and pauses in between. Callers: the planner beside it.
//! Invariants:
//! 1. At most one occurrence is undecided, and none is planned while an execution of the schedule is open.
//! 2. A plan without a next occurrence leaves it to apply: after the end of what is open, or counted from now.

use super::Decision;
use crate::calendar::Compiled;
use crate::command::schedules::{Plan, Step};
use crate::model::execution::Cause;
use crate::model::policy::{Misfire, MisfirePolicy};
use crate::model::schedule::{Planned, ScheduleStatus, SkipReason, SkipRecord};
use crate::time::Timestamp;

/// Decides the occurrence that is due. `held`: its tenant or the cluster is paused.
pub(super) fn fire(
    misfire: &MisfirePolicy,
    compiled: &Compiled,
    due: Planned,
    now: Timestamp,
    held: bool,
) -> Decision {
    // Apply counts milliseconds only, so an excluded date is met here.
    let allowed = at_or_after(compiled, due.nominal_at);
    if allowed.is_none_or(|at| at > due.nominal_at) {
        let next = allowed.map(planned);
        return decided(due, skip(due, SkipReason::Calendar), next);
    }
    let late = now.since(due.due_at);
    let step = if held {
        skip(due, SkipReason::Paused)
    } else if late <= misfire.threshold {
        create(due, Cause::Due)
    } else {
        let window = misfire.catch_up_window;
        let is_caught_up = match misfire.policy {
            Misfire::Skip => false,
            Misfire::FireLatest => window.is_none_or(|window| late <= window),
            Misfire::FireAll => late <= window.unwrap_or(super::FIRE_ALL_WINDOW),
        };
        match is_caught_up {
            true => create(due, Cause::CatchUp),
            false => skip(due, SkipReason::Misfire),
        }
    };
    decided(due, step, None)
}

/// Plans a schedule whose definition changed at `now`: from the last end, or from the occurrence decided last, whichever
/// is later; so an edit does not put it off.
pub(super) fn replan(status: &ScheduleStatus, compiled: &Compiled, now: Timestamp) -> Plan {
    let next = expected(status, compiled).and_then(|at| at_or_after(compiled, at.max(now)));
    Plan {
        cursor: status.cursor,
        next: next.map(planned),
    }
}

/// Plans the end of a pause at `now`. The one occurrence that fell into it is skipped, unless it is caught up.
pub(super) fn resume(
    status: &ScheduleStatus,
    compiled: &Compiled,
    now: Timestamp,
    catches_up: bool,
) -> Decision {
    let next = expected(status, compiled).map(planned);
    match next.filter(|next| next.nominal_at <= now) {
        Some(missed) => {
            let step = match catches_up {
                true => create(missed, Cause::CatchUp),
                false => skip(missed, SkipReason::Paused),
            };
            decided(missed, step, None)
        }
        None => Decision {
            steps: Vec::new(),
            plan: Plan {
                cursor: status.cursor,
                next,
            },
        },
    }
}

/// When the next occurrence is, or would have been; `None` while something is open, and when the rule is over.
fn expected(status: &ScheduleStatus, compiled: &Compiled) -> Option<Timestamp> {
    if !status.open.is_empty() {
        return None;
    }
    let ended = status.recent.last().map(|last| last.finished_at);
    let from = ended.map_or(status.cursor, |ended| ended.max(status.cursor));
    compiled.next(from).map(|fire| fire.nominal)
}

/// The first instant at or after `at` that the rule's bounds and excluded dates allow.
fn at_or_after(compiled: &Compiled, at: Timestamp) -> Option<Timestamp> {
    let delay = compiled.after_end()?;
    compiled.next(at.minus(delay)).map(|fire| fire.nominal)
}

const fn planned(at: Timestamp) -> Planned {
    Planned {
        nominal_at: at,
        due_at: at,
    }
}

fn decided(due: Planned, step: Step, next: Option<Planned>) -> Decision {
    Decision {
        steps: vec![step],
        plan: Plan {
            cursor: due.nominal_at,
            next,
        },
    }
}

const fn create(planned: Planned, cause: Cause) -> Step {
    Step::Create { planned, cause }
}

const fn skip(due: Planned, reason: SkipReason) -> Step {
    Step::Skip(SkipRecord {
        from: due.nominal_at,
        to: due.nominal_at,
        count: 1,
        at_least: false,
        reason,
        blocker: None,
        local: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calendar::ZoneData;
    use crate::ids::ExecutionId;
    use crate::model::execution::ExecutionState;
    use crate::model::rule::{CivilDate, RuleSpec, When};
    use crate::model::schedule::RecentOutcome;
    use crate::time::Millis;

    const HOUR: Millis = Millis::hours(1);

    fn at(text: &str) -> Timestamp {
        Timestamp::parse_rfc3339(text).expect("an instant")
    }

    fn rule() -> RuleSpec {
        RuleSpec::new(When::AfterEnd(HOUR))
    }

    fn compile(rule: &RuleSpec) -> Compiled {
        Compiled::new(rule, &ZoneData::bundled(), "default/s").expect("a good rule")
    }

    fn ended(status: &mut ScheduleStatus, at: Timestamp) {
        status.recent.push(RecentOutcome {
            nominal_at: None,
            execution: ExecutionId::new("e").expect("a name"),
            state: ExecutionState::Succeeded,
            finished_at: at,
        });
    }

    #[test]
    fn an_edit_keeps_the_distance_from_the_last_end() {
        let born = at("2026-03-01T08:00:00Z");
        let mut status = ScheduleStatus::new(born);
        let hourly = compile(&rule());
        let next = |status: &ScheduleStatus, now: &str| {
            replan(status, &hourly, at(now)).next.map(|n| n.nominal_at)
        };
        let first = at("2026-03-01T09:00:00Z");
        assert_eq!(next(&status, "2026-03-01T08:30:00Z"), Some(first));
        assert_eq!(next(&status, "2026-03-01T08:59:00Z"), Some(first));
        ended(&mut status, at("2026-03-01T09:20:00Z"));
        let second = at("2026-03-01T10:20:00Z");
        assert_eq!(next(&status, "2026-03-01T09:30:00Z"), Some(second));
        // A shorter delay has passed already: now.
        let now = at("2026-03-01T12:00:00Z");
        assert_eq!(next(&status, "2026-03-01T12:00:00Z"), Some(now));
        status.open.push(ExecutionId::new("f").expect("a name"));
        assert_eq!(next(&status, "2026-03-01T12:00:00Z"), None);
    }

    #[test]
    fn excluded_dates_and_bounds_are_stepped_over() {
        let mut rule = rule();
        rule.exclude_dates = vec![CivilDate::new(2026, 3, 2).expect("a date")];
        rule.end_at = Some(at("2026-03-03T12:00:00Z"));
        let compiled = compile(&rule);
        let on = planned(at("2026-03-02T00:30:00Z"));
        let policy = MisfirePolicy::default();
        let decision = fire(&policy, &compiled, on, on.due_at, false);
        assert_eq!(decision.steps, [skip(on, SkipReason::Calendar)]);
        let next = decision.plan.next.map(|n| n.nominal_at);
        assert_eq!(next, Some(at("2026-03-03T00:00:00Z")));
        let status = ScheduleStatus::new(at("2026-03-03T11:30:00Z"));
        let over = replan(&status, &compiled, status.cursor);
        assert_eq!(over.next, None);
    }

    #[test]
    fn a_late_one_follows_the_misfire_policy_once() {
        let due = planned(at("2026-03-01T09:00:00Z"));
        let compiled = compile(&rule());
        let decide = |policy: &MisfirePolicy, late: Millis, held| {
            let now = due.due_at.plus(late);
            let decision = fire(policy, &compiled, due, now, held);
            assert_eq!(decision.plan.next, None, "the end decides");
            assert_eq!(decision.plan.cursor, due.nominal_at);
            decision.steps
        };
        let mut policy = MisfirePolicy::default();
        let minute = Millis::minutes(1);
        assert_eq!(decide(&policy, minute, false), [create(due, Cause::Due)]);
        assert_eq!(
            decide(&policy, minute, true),
            [skip(due, SkipReason::Paused)]
        );
        assert_eq!(decide(&policy, HOUR, false), [create(due, Cause::CatchUp)]);
        policy.catch_up_window = Some(minute);
        assert_eq!(
            decide(&policy, HOUR, false),
            [skip(due, SkipReason::Misfire)]
        );
        policy.catch_up_window = None;
        policy.policy = Misfire::Skip;
        assert_eq!(
            decide(&policy, HOUR, false),
            [skip(due, SkipReason::Misfire)]
        );
    }

    #[test]
    fn a_pause_skips_the_one_occurrence_that_falls_into_it() {
        let mut status = ScheduleStatus::new(at("2026-03-01T08:00:00Z"));
        let compiled = compile(&rule());
        let early = resume(&status, &compiled, at("2026-03-01T08:10:00Z"), true);
        assert!(early.steps.is_empty());
        let missed = planned(at("2026-03-01T09:00:00Z"));
        assert_eq!(early.plan.next, Some(missed));
        let now = at("2026-03-02T08:00:00Z");
        let late = resume(&status, &compiled, now, false);
        assert_eq!(late.steps, [skip(missed, SkipReason::Paused)]);
        let caught_up = resume(&status, &compiled, now, true);
        assert_eq!(caught_up.steps, [create(missed, Cause::CatchUp)]);
        assert_eq!(caught_up.plan.next, None);
        status.open.push(ExecutionId::new("e").expect("a name"));
        let running = resume(&status, &compiled, now, true);
        assert_eq!((running.steps.len(), running.plan.next), (0, None));
    }
}
