//! The next times of a rule, explained.
//!
//! Purpose: everything that `POST /v1/schedules:preview` and `punctual preview` show. Pure and
//! bounded.
//! Callers: API, CLI.
//! Invariant: the occurrences are exactly those that a schedule with this rule and identity would
//! have.

use super::civil::Wall;
use super::compiled::{Compiled, Kind};
use super::cron::{describe, echo};
use super::duration;
use super::error::RuleError;
use super::fires::FireReason;
use super::warnings::Warning;
use super::zone::offset_text;
use super::zone_data::ZoneData;
use crate::model::rule::RuleSpec;
use crate::time::{Millis, Timestamp};

/// Occurrences of one preview at most.
pub const COUNT_MAX: usize = 1_000;
/// Clock changes of one preview at most.
const CHANGES_MAX: usize = 20;

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    /// In order.
    pub occurrences: Vec<Occurrence>,
    /// There is no further occurrence after these.
    pub exhausted: bool,
    /// The rule in plain English.
    pub description: String,
    /// The cron expression as understood, weekdays by name and `H` resolved; `None` for other
    /// rules.
    pub expression: Option<String>,
    /// Sorted by code; of clock changes after the question. Who knows the time asks [`Compiled::warnings_from`].
    pub warnings: Vec<Warning>,
    /// Clock changes of the zone from the question to the last occurrence, at most 20.
    pub zone_changes: Vec<ZoneChange>,
    /// Zone data release.
    pub tzdata: String,
}

/// One occurrence of a preview.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occurrence {
    /// Its nominal time.
    pub nominal_at: Timestamp,
    /// Its due time, jitter included.
    pub due_at: Timestamp,
    /// The nominal time on the rule's wall clock.
    pub local: String,
    /// Why it is there.
    pub reason: FireReason,
}

/// A clock change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneChange {
    /// First instant of the new offset.
    pub at: Timestamp,
    /// Local time before, as `2026-03-29T02:00:00+01:00`.
    pub from: String,
    /// Local time after.
    pub to: String,
}

/// The first `count` (at most 1,000) occurrences strictly later than `after`.
///
/// # Errors
/// As [`Compiled::new`].
pub fn preview(
    spec: &RuleSpec,
    zones: &ZoneData,
    identity: &str,
    after: Timestamp,
    count: usize,
) -> Result<Preview, Vec<RuleError>> {
    Ok(Compiled::new(spec, zones, identity)?.preview(zones.release(), after, count))
}

impl Compiled {
    /// As [`preview`], for a rule that is compiled already. `release` is the zone data it was
    /// compiled with.
    #[must_use]
    pub fn preview(&self, release: &str, after: Timestamp, count: usize) -> Preview {
        let most = self.max_occurrences.and_then(|n| usize::try_from(n).ok());
        let count = count.min(COUNT_MAX);
        let limit = most.map_or(count, |m| m.min(count));
        let mut occurrences = Vec::new();
        let mut at = after;
        let mut exhausted = false;
        // `after_end` has no times of its own to list.
        let listable = !matches!(self.kind, Kind::AfterEnd(_));
        while listable && occurrences.len() < limit {
            let Some(fire) = self.next(at) else {
                exhausted = true;
                break;
            };
            at = fire.nominal;
            occurrences.push(Occurrence {
                nominal_at: at,
                due_at: self.due_at(at),
                local: self.local(at),
                reason: fire.reason,
            });
        }
        let spent = most.is_some_and(|m| occurrences.len() >= m);
        exhausted |= listable && (spent || self.next(at).is_none());
        Preview {
            occurrences,
            exhausted,
            description: self.describe(),
            expression: self.expression(),
            warnings: self.warnings_from(after),
            zone_changes: self.zone_changes(after, at),
            tzdata: release.to_owned(),
        }
    }

    /// The cron expression as understood: weekdays by name, `H` resolved. `None` for other rules.
    #[must_use]
    pub fn expression(&self) -> Option<String> {
        match &self.kind {
            Kind::Cron(rule) => rule.expr(self.seed).map(|e| echo::expr(&e)),
            _ => None,
        }
    }

    /// The rule in plain English, with its zone.
    #[must_use]
    pub fn describe(&self) -> String {
        let zone = self.zone.name();
        let mut text = match &self.kind {
            Kind::At(at) => format!("Once, at {}", self.local(Timestamp::from_millis(*at))),
            Kind::Cron(rule) => {
                let expr = rule.expr(self.seed);
                let text = expr.map(|e| describe::expr(&e, rule.day_match));
                format!("{} ({zone})", text.unwrap_or_default())
            }
            Kind::Every(grid) => {
                let every = duration::format(Millis(grid.every.unsigned_abs()));
                let anchor = Timestamp::from_millis(grid.anchor);
                let times = grid.times.map_or(String::new(), |n| format!(", {n} times"));
                format!("Every {every}, counted from {anchor}{times}")
            }
            Kind::Repeat(repeat) => format!("{} ({zone})", repeat.describe()),
            Kind::Rrule(rule) => {
                let (text, start) = (&rule.text, Wall(rule.start));
                format!("By the recurrence {text}, counted from {start} ({zone})")
            }
            Kind::AfterEnd(delay) => {
                let delay = duration::format(Millis(delay.unsigned_abs()));
                format!("{delay} after the previous execution ended")
            }
        };
        if self.from != i64::MIN {
            text.push_str(&format!(", from {}", Timestamp::from_millis(self.from)));
        }
        if self.until != i64::MAX {
            text.push_str(&format!(", until {}", Timestamp::from_millis(self.until)));
        }
        match self.excluded.len() {
            0 => {}
            1 => text.push_str(", except on 1 date"),
            n => text.push_str(&format!(", except on {n} dates")),
        }
        text
    }

    /// The zone's clock changes in `from..=to`.
    fn zone_changes(&self, from: Timestamp, to: Timestamp) -> Vec<ZoneChange> {
        let (low, high) = (
            from.millis().div_euclid(1_000),
            to.millis().div_euclid(1_000),
        );
        let spans = self.zone.spans().iter();
        let within = spans.filter(|s| (low..=high).contains(&s.start));
        let side = |label: i64, offset: i64| format!("{}{}", Wall(label), offset_text(offset));
        within
            .take(CHANGES_MAX)
            .map(|s| ZoneChange {
                at: Timestamp::from_millis(s.start * 1_000),
                from: side(s.start + s.offset_before, s.offset_before),
                to: side(s.first_label(), s.offset),
            })
            .collect()
    }
}
