//! What is decided about a schedule's occurrences, and where it goes on. Pure.
//!
//! Purpose: the one place that turns (schedule, status, compiled rule, now) into steps and a plan. Callers: the
//! leader's firing; `api::actions` for create, edit and resume. Nothing here reads a clock or the store.
//! Invariants:
//! 1. Misfire is judged on the oldest undecided occurrence alone; the policy then takes the whole gap.
//! 2. The work is bounded by [`STEPS_MAX`], not by the gap: neighbours that do not run become one counted record.
//! 3. Every nominal time between the old and the new cursor is in exactly one step; so are excluded dates and wall
//!    times that a clock change removed.

mod after_end;

use crate::calendar::Compiled;
use crate::command::schedules::{FireOccurrences, Plan, STEPS_MAX, Seen, Step};
use crate::ids::{ScheduleId, TenantId};
use crate::model::execution::Cause;
use crate::model::policy::{Misfire, MisfirePolicy, PastPolicy};
use crate::model::rule::When;
use crate::model::schedule::{
    Planned, Schedule, ScheduleSpec, ScheduleState, ScheduleStatus, SkipReason, SkipRecord,
};
use crate::time::{Millis, Timestamp};

/// Occurrences created by one decision.
const CREATES_MAX: usize = 60;
/// Records of excluded dates, and of lost wall times, in one decision; more are joined.
const RECORDS_MAX: usize = 18;
/// Where counting stops.
const COUNT_MAX: u64 = 1_000_000;
/// How far back `fire_all` runs by default.
const FIRE_ALL_WINDOW: Millis = Millis::hours(24);

const _: () = assert!(CREATES_MAX + 2 * RECORDS_MAX + 2 <= STEPS_MAX);

/// What a resume catches up of the pause span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CatchUp {
    /// Nothing.
    #[default]
    None,
    /// The newest occurrence.
    Latest,
    /// The newest so many, at most 60.
    All(u32),
}

/// What to do about a span of undecided occurrences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Oldest first; at most [`STEPS_MAX`].
    pub steps: Vec<Step>,
    /// Where the schedule goes on.
    pub plan: Plan,
}

impl Decision {
    /// Executions that it asks for.
    #[must_use]
    pub fn create_count(&self) -> usize {
        let creates = |step: &&Step| matches!(step, Step::Create { .. });
        self.steps.iter().filter(creates).count()
    }
}

/// The identity that a rule is compiled with: it feeds jitter and `H`.
#[must_use]
pub fn identity(tenant: &TenantId, schedule: &ScheduleId) -> String {
    format!("{tenant}/{schedule}")
}

/// What the planner read of a schedule.
#[must_use]
pub fn seen(schedule: &Schedule, status: &ScheduleStatus) -> Seen {
    Seen {
        incarnation: schedule.incarnation,
        generation: schedule.generation,
        cursor: status.cursor,
    }
}

/// Decides what is due of a schedule at `now`; `None` when nothing is. `held`: its tenant or the cluster is paused, so
/// due occurrences are skipped as `paused`.
#[must_use]
pub fn plan_fire(
    schedule: &Schedule,
    status: &ScheduleStatus,
    compiled: &Compiled,
    now: Timestamp,
    held: bool,
) -> Option<FireOccurrences> {
    let oldest = status.next.filter(|next| next.due_at <= now)?;
    if status.state != ScheduleState::Active {
        return None;
    }
    let misfire = &schedule.spec.misfire;
    let decision = match compiled.after_end() {
        Some(_) => after_end::fire(misfire, compiled, oldest, now, held),
        None => {
            let span = Span {
                compiled,
                cursor: status.cursor,
                oldest,
                now,
            };
            span.fire(misfire, held)
        }
    };
    Some(FireOccurrences {
        tenant: schedule.tenant,
        id: schedule.id.clone(),
        seen: seen(schedule, status),
        steps: decision.steps,
        plan: decision.plan,
    })
}

/// Plans a schedule that is created at `now` (`before`: `None`) or replaced. What is due of the old definition was
/// decided before ([`crate::leader::Scheduler::settle`]); an occurrence whose jittered due time lies ahead survives.
#[must_use]
pub fn plan_put(
    before: Option<&ScheduleStatus>,
    spec: &ScheduleSpec,
    compiled: &Compiled,
    now: Timestamp,
) -> Plan {
    let cursor = before.map_or(Timestamp::MIN, |status| status.cursor);
    if let Some(status) = before {
        if matches!(status.state, ScheduleState::Paused(_)) {
            return Plan { cursor, next: None };
        }
        if compiled.after_end().is_some() {
            return after_end::replan(status, compiled, now);
        }
        let survives = |next: &Planned| next.nominal_at <= now && next.due_at > now;
        if let Some(next) = status.next.filter(survives) {
            return Plan {
                cursor,
                next: Some(next),
            };
        }
    }
    if let When::At(at) = spec.rule.when {
        let is_past = at <= now && at > cursor && spec.past == PastPolicy::Run;
        let fires = || {
            compiled
                .next(at.minus(Millis(1)))
                .is_some_and(|fire| fire.nominal == at)
        };
        if is_past && fires() {
            // It is not late: nobody could have run it before it was known.
            let due_at = compiled.due_at(at).max(now);
            return Plan {
                cursor: cursor.max(at.minus(Millis(1))),
                next: Some(Planned {
                    nominal_at: at,
                    due_at,
                }),
            };
        }
    }
    follow(compiled, cursor.max(now))
}

/// Plans the end of a pause at `now`: the span's nominal times are skipped as `paused`, except what `catch_up` asks
/// for.
#[must_use]
pub fn plan_resume(
    status: &ScheduleStatus,
    compiled: &Compiled,
    now: Timestamp,
    catch_up: CatchUp,
) -> Decision {
    let max = match catch_up {
        CatchUp::None => 0,
        CatchUp::Latest => 1,
        CatchUp::All(max) => usize::try_from(max).unwrap_or(usize::MAX),
    };
    if compiled.after_end().is_some() {
        return after_end::resume(status, compiled, now, max > 0);
    }
    let plan = follow(compiled, status.cursor);
    let Some(oldest) = plan.next.filter(|next| next.due_at <= now) else {
        return Decision {
            steps: Vec::new(),
            plan,
        };
    };
    let span = Span {
        compiled,
        cursor: status.cursor,
        oldest,
        now,
    };
    let kept = span.newest(max, None);
    span.decide(&kept, SkipReason::Paused, Cause::CatchUp)
}

/// Plans a schedule whose undecided occurrences up to `now` were given up.
#[must_use]
pub fn plan_dropped(status: &ScheduleStatus, compiled: &Compiled, now: Timestamp) -> Plan {
    let plan = follow(compiled, status.cursor.max(now));
    let waits = compiled.after_end().is_some() && !status.open.is_empty();
    Plan {
        next: plan.next.filter(|_| !waits),
        ..plan
    }
}

/// The plan of a schedule whose nominal times up to `cursor` are decided, and of which nothing is open if it counts from
/// ends.
#[must_use]
pub fn follow(compiled: &Compiled, cursor: Timestamp) -> Plan {
    let next = compiled
        .next(cursor)
        .map(|fire| planned(compiled, fire.nominal));
    Plan { cursor, next }
}

fn planned(compiled: &Compiled, nominal_at: Timestamp) -> Planned {
    Planned {
        nominal_at,
        due_at: compiled.due_at(nominal_at),
    }
}

/// The undecided occurrences that are due.
struct Span<'a> {
    compiled: &'a Compiled,
    cursor: Timestamp,
    oldest: Planned,
    now: Timestamp,
}

impl Span<'_> {
    /// Decides what is due, by the misfire policy when the oldest of it is late.
    fn fire(&self, misfire: &MisfirePolicy, held: bool) -> Decision {
        if held {
            return self.decide(&[], SkipReason::Paused, Cause::Due);
        }
        if self.now.since(self.oldest.due_at) <= misfire.threshold {
            let due = self.oldest_first(CREATES_MAX);
            return self.decide_upto(&due, Cause::Due);
        }
        let window = misfire.catch_up_window;
        let kept = match misfire.policy {
            Misfire::Skip => Vec::new(),
            Misfire::FireLatest => self.newest(1, window),
            Misfire::FireAll => {
                let max = usize::try_from(misfire.catch_up_max).unwrap_or(usize::MAX);
                let mut kept = self.newest(max, Some(window.unwrap_or(FIRE_ALL_WINDOW)));
                let per = misfire.catch_up_rate_per.0 / u64::from(misfire.catch_up_rate.max(1));
                for (n, planned) in (0_u64..).zip(&mut kept) {
                    planned.due_at = self.now.plus(Millis(per.saturating_mul(n)));
                }
                kept
            }
        };
        self.decide(&kept, SkipReason::Misfire, Cause::CatchUp)
    }

    /// The due occurrences from the oldest on, at most `max`.
    fn oldest_first(&self, max: usize) -> Vec<Planned> {
        let mut due = vec![self.oldest];
        let mut last = self.oldest.nominal_at;
        while due.len() < max {
            let Some(fire) = self.compiled.next(last) else {
                break;
            };
            let next = planned(self.compiled, fire.nominal);
            if next.due_at > self.now {
                break;
            }
            last = next.nominal_at;
            due.push(next);
        }
        due
    }

    /// The newest due occurrence; the oldest one when there is no other.
    fn last(&self) -> Planned {
        let mut before = self.now.plus(Millis(1));
        // Jitter ends before the next nominal time, so at most one occurrence at or before now is not due yet.
        for _ in 0..2 {
            let Some(fire) = self.compiled.prev(before) else {
                break;
            };
            if fire.nominal <= self.oldest.nominal_at {
                break;
            }
            let last = planned(self.compiled, fire.nominal);
            if last.due_at <= self.now {
                return last;
            }
            before = fire.nominal;
        }
        self.oldest
    }

    /// The newest `max` due occurrences (at most [`CREATES_MAX`]) that are not older than `window`, oldest first.
    fn newest(&self, max: usize, window: Option<Millis>) -> Vec<Planned> {
        let max = max.min(CREATES_MAX);
        let in_window = |p: &Planned| window.is_none_or(|w| self.now.since(p.due_at) <= w);
        let mut kept = Vec::new();
        let mut candidate = Some(self.last());
        while let Some(found) = candidate.filter(in_window) {
            if kept.len() >= max {
                break;
            }
            kept.push(found);
            candidate = self
                .compiled
                .prev(found.nominal_at)
                .map(|fire| planned(self.compiled, fire.nominal))
                .filter(|earlier| earlier.nominal_at >= self.oldest.nominal_at);
        }
        kept.reverse();
        kept
    }

    /// Decides the whole span: creates `kept` (its newest ones, or none) and skips what is before them.
    fn decide(&self, kept: &[Planned], reason: SkipReason, cause: Cause) -> Decision {
        let last = kept.last().copied().unwrap_or_else(|| self.last());
        let run = match kept.first() {
            Some(first) if first.nominal_at <= self.oldest.nominal_at => None,
            Some(first) => self.run(first.nominal_at, reason),
            None => self.run(last.nominal_at.plus(Millis(1)), reason),
        };
        let skips = run.into_iter().collect();
        self.assemble(skips, kept, last.nominal_at, cause)
    }

    /// Creates `due`, the oldest of the span.
    fn decide_upto(&self, due: &[Planned], cause: Cause) -> Decision {
        let last = due.last().copied().unwrap_or(self.oldest);
        self.assemble(Vec::new(), due, last.nominal_at, cause)
    }

    /// One record for the occurrences from the oldest one to before `end`.
    fn run(&self, end: Timestamp, reason: SkipReason) -> Option<SkipRecord> {
        let from = self.oldest.nominal_at;
        if from >= end {
            return None;
        }
        let count = self.compiled.count(from, end, COUNT_MAX);
        let to = self.compiled.prev(end).map_or(from, |fire| fire.nominal);
        Some(SkipRecord {
            from,
            to: to.max(from),
            count: count.n.max(1),
            at_least: count.at_least,
            reason,
            blocker: None,
            local: None,
        })
    }

    fn assemble(
        &self,
        mut skips: Vec<SkipRecord>,
        creates: &[Planned],
        cursor: Timestamp,
        cause: Cause,
    ) -> Decision {
        let (from, to) = (self.cursor.plus(Millis(1)), cursor.plus(Millis(1)));
        skips.extend(joined(self.excluded(from, to)));
        skips.extend(joined(self.lost(from, to)));
        let mut steps: Vec<(Timestamp, Step)> = skips
            .into_iter()
            .map(|skip| (skip.from, Step::Skip(skip)))
            .collect();
        steps.extend(creates.iter().map(|planned| {
            let planned = *planned;
            (planned.nominal_at, Step::Create { planned, cause })
        }));
        // A stable sort: a record that begins where an occurrence is stays before it.
        steps.sort_by_key(|(at, _)| *at);
        Decision {
            steps: steps.into_iter().map(|(_, step)| step).collect(),
            plan: follow(self.compiled, cursor),
        }
    }

    fn excluded(&self, from: Timestamp, to: Timestamp) -> Vec<SkipRecord> {
        let record = |e: crate::calendar::Excluded| SkipRecord {
            from: e.from,
            to: e.to,
            count: e.count,
            at_least: e.at_least,
            reason: SkipReason::Calendar,
            blocker: None,
            local: None,
        };
        self.compiled
            .excluded_between(from, to)
            .into_iter()
            .map(record)
            .collect()
    }

    fn lost(&self, from: Timestamp, to: Timestamp) -> Vec<SkipRecord> {
        let record = |lost: crate::calendar::Lost| SkipRecord {
            from: lost.at,
            to: lost.at,
            count: lost.count,
            at_least: false,
            reason: SkipReason::DstGap,
            blocker: None,
            local: Some(local_span(&lost.local, &lost.local_last)),
        };
        self.compiled
            .lost_between(from, to)
            .into_iter()
            .map(record)
            .collect()
    }
}

/// Lost wall times as a skip record keeps them: one, or the first and the last with a slash between them.
fn local_span(first: &str, last: &str) -> String {
    if first == last {
        return first.to_owned();
    }
    format!("{first}/{last}")
}

/// The first and the last of lost wall times that a skip record keeps as one text.
#[must_use]
pub fn local_ends(local: &str) -> (&str, &str) {
    local.split_once('/').unwrap_or((local, local))
}

/// Joins the records beyond the bound into the last one, so that their number never grows with the gap.
fn joined(mut records: Vec<SkipRecord>) -> Vec<SkipRecord> {
    let rest = records.split_off(records.len().min(RECORDS_MAX));
    if let Some(last) = records.last_mut() {
        for record in rest {
            last.to = last.to.max(record.to);
            last.count = last.count.saturating_add(record.count);
            last.at_least |= record.at_least;
            if let (Some(from), Some(to)) = (&last.local, &record.local) {
                last.local = Some(local_span(local_ends(from).0, local_ends(to).1));
            }
        }
    }
    records
}

#[cfg(test)]
mod tests;
