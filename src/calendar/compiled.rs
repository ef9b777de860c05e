//! A rule made ready to be asked.
//!
//! Purpose: check a [`RuleSpec`] once, completely, and keep what the questions need; the questions
//! are in `query`.
//! Callers: leader (planning), API (validation, preview), CLI.
//! Invariants: pure; a compiled rule has at least one occurrence at some time (`after_end`
//! excepted, which has them when executions end); compiling the same spec with the same release and
//! identity gives an equal rule.

use std::sync::Arc;

use super::civil::{Wall, day_of_date};
use super::cron::labels::Labels;
use super::cron::{Expr, parse};
use super::error::{Code, RuleError};
use super::fires::ClockPolicy;
use super::instant;
use super::interval::Interval;
use super::repeat::{CalendarRepeat, Repeat};
use super::rrule::{self, Rrule};
use super::stable_hash::Seed;
use super::unsupported::Feature;
use super::zone::Zone;
use super::zone_data::ZoneData;
use crate::calendar::duration;
use crate::model::rule::{CivilDate, DayMatch, Dialect, RuleSpec, When};
use crate::time::{Millis, Timestamp};

/// Shortest distance of an interval and shortest delay after an execution.
pub const EVERY_MIN: Millis = Millis(1_000);
/// Longest jitter window.
pub const JITTER_MAX: Millis = Millis(7 * 86_400_000);
/// Excluded dates of one rule at most, those of its calendars included.
pub const EXCLUDED_MAX: usize = 10_000;

/// A rule, checked and bound to a zone and to the identity of its schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    pub(super) kind: Kind,
    pub(super) zone: Arc<Zone>,
    /// Release that the zone came from, for [`super::Preview`].
    pub(super) zone_is_named: bool,
    /// No occurrence before this instant, in milliseconds.
    pub(super) from: i64,
    /// No occurrence after this instant, in milliseconds.
    pub(super) until: i64,
    /// Sorted day counts.
    pub(super) excluded: Box<[i64]>,
    pub(super) jitter: i64,
    pub(super) seed: Seed,
    pub(super) max_occurrences: Option<u64>,
}

/// What names the instants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    At(i64),
    Cron(Box<CronRule>),
    Every(Interval),
    Repeat(Box<CalendarRepeat>),
    Rrule(Box<Rrule>),
    /// Milliseconds after the previous execution ended.
    AfterEnd(i64),
}

/// A cron expression with its clock-change policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CronRule {
    pub(super) labels: Labels,
    pub(super) policy: ClockPolicy,
    /// Read again for description, echo and warnings: compiled rules are kept by the million.
    text: Box<str>,
    dialect: Dialect,
    pub(super) day_match: Option<DayMatch>,
}

impl CronRule {
    /// The expression, read again; it was readable when the rule was compiled.
    pub(super) fn expr(&self, seed: Seed) -> Option<Expr> {
        parse::parse(&self.text, self.dialect, seed).ok()
    }
}

/// The dates of a named calendar, if the tenant has it.
pub type CalendarDates<'a> = dyn Fn(&str) -> Option<Vec<CivilDate>> + 'a;

impl Compiled {
    /// Checks and compiles a rule. `identity` is `tenant/schedule`; it feeds `H` and jitter.
    ///
    /// # Errors Everything found wrong, never empty. A rule that is merely over is no error; one
    /// that has no occurrence at any time is (`no_future_occurrence`).
    pub fn new(spec: &RuleSpec, zones: &ZoneData, identity: &str) -> Result<Self, Vec<RuleError>> {
        if !spec.calendars.is_empty() {
            return Err(vec![Feature::NamedCalendars.refuse("/calendars")]);
        }
        Self::with_calendars(spec, zones, identity, &|_| None)
    }

    /// As [`Compiled::new`], with the tenant's named calendars.
    ///
    /// # Errors
    /// As [`Compiled::new`], and `calendar_unknown`.
    pub fn with_calendars(
        spec: &RuleSpec,
        zones: &ZoneData,
        identity: &str,
        calendars: &CalendarDates<'_>,
    ) -> Result<Self, Vec<RuleError>> {
        let mut errors = check_bounds(spec);
        let excluded = excluded_days(spec, calendars).unwrap_or_else(|e| {
            errors.push(e);
            Box::default()
        });
        let seed = Seed::of(identity);
        let named = spec.time_zone.as_deref();
        let zone = named.map(|name| zones.zone(name, "/time_zone")).transpose();
        let zone = zone.unwrap_or_else(|e| {
            errors.push(e);
            None
        });
        let kind = match build(spec, zones, zone.as_ref(), seed) {
            Ok(built) if errors.is_empty() => built,
            Ok(_) => return Err(errors),
            Err(more) => {
                errors.extend(more);
                return Err(errors);
            }
        };
        let (kind, zone) = kind;
        let zone_is_named = zone.is_some();
        let zone = match zone {
            Some(zone) => zone,
            None => zones.zone("UTC", "/time_zone").map_err(|e| vec![e])?,
        };
        let bound = |t: Option<Timestamp>, none| t.map_or(none, Timestamp::millis);
        let compiled = Self {
            kind,
            zone,
            zone_is_named,
            from: bound(spec.start_at, i64::MIN),
            until: bound(spec.end_at, i64::MAX),
            excluded,
            jitter: i64::try_from(spec.jitter.0).unwrap_or(0),
            seed,
            max_occurrences: spec.max_occurrences,
        };
        compiled.check_it_fires().map_err(|e| vec![e])?;
        Ok(compiled)
    }

    /// The delay of a rule that counts from the end of each execution; `None`: the rule has times of its own.
    #[must_use]
    pub const fn after_end(&self) -> Option<Millis> {
        match self.kind {
            Kind::AfterEnd(delay) => Some(Millis(delay.unsigned_abs())),
            _ => None,
        }
    }

    /// The zone in which the rule reads wall clocks.
    #[must_use]
    pub fn time_zone(&self) -> &str {
        self.zone.name()
    }

    /// Refuses a rule without any occurrence, saying which part of it is to blame.
    fn check_it_fires(&self) -> Result<(), RuleError> {
        if self.next(Timestamp::MIN).is_some() {
            return Ok(());
        }
        let refuse =
            |pointer: &str, why: &str| Err(RuleError::new(pointer, Code::NoFutureOccurrence, why));
        if let Kind::Cron(rule) = &self.kind
            && rule.labels.next(0, &[]).is_none()
        {
            let why = "never fires between 1970 and 2199: no month of those years has such a day \
                       (day 30 or 31 of a shorter month, or a date that never falls on the weekday)";
            return refuse("/cron", why);
        }
        if let Kind::Rrule(rule) = &self.kind
            && rule.next(0, &[]).is_none()
        {
            let why = "the recurrence names no date between DTSTART and 2199";
            return refuse("/rrule", why);
        }
        if self.from != i64::MIN || self.until != i64::MAX {
            let why = "no occurrence lies between start_at and end_at";
            let pointer = if self.until == i64::MAX {
                "/start_at"
            } else {
                "/end_at"
            };
            return refuse(pointer, why);
        }
        if self.excluded.is_empty() {
            let why = "every occurrence falls into a clock change and dst_gap is skip";
            return refuse("/dst_gap", why);
        }
        refuse(
            "/exclude_dates",
            "every occurrence falls on an excluded date",
        )
    }
}

/// The kind of rule and its zone, which a prefix of the expression may name.
fn build(
    spec: &RuleSpec,
    zones: &ZoneData,
    zone: Option<&Arc<Zone>>,
    seed: Seed,
) -> Result<(Kind, Option<Arc<Zone>>), Vec<RuleError>> {
    let keep = |kind| Ok((kind, zone.cloned()));
    let one = |e| vec![e];
    match &spec.when {
        When::At(at) if !instant::within_horizon(at.millis()) => {
            Err(one(instant::outside_horizon("/at")))
        }
        When::At(at) => keep(Kind::At(at.millis())),
        When::Cron(text) => {
            let expr = parse::parse(text, spec.dialect, seed)?;
            let zone = prefixed_zone(&expr, zones, spec.time_zone.is_some(), zone).map_err(one)?;
            let policy = ClockPolicy {
                wildcard: expr.is_wildcard(),
                gap: spec.dst_gap,
                overlap: spec.dst_overlap,
            };
            let rule = CronRule {
                labels: Labels::of(&expr, spec.day_match),
                policy,
                text: text.as_str().into(),
                dialect: spec.dialect,
                day_match: spec.day_match,
            };
            Ok((Kind::Cron(Box::new(rule)), zone))
        }
        When::Every { every, anchor } => {
            if !instant::within_horizon(anchor.millis()) {
                return Err(one(instant::outside_horizon("/anchor")));
            }
            keep(Kind::Every(Interval {
                anchor: anchor.millis(),
                every: length(*every, "/every").map_err(one)?,
                times: None,
            }))
        }
        When::AfterEnd(delay) => keep(Kind::AfterEnd(length(*delay, "/after_end").map_err(one)?)),
        When::Iso8601(text) => match Repeat::parse(text, zone).map_err(one)? {
            Repeat::Elapsed(interval) => keep(Kind::Every(interval)),
            Repeat::Calendar(repeat) => keep(Kind::Repeat(Box::new(repeat))),
        },
        When::Rrule(text) => {
            let given = rrule::parse::Given {
                zones,
                zone,
                start: spec.start_at.map(|t| t.millis().div_euclid(1_000)),
            };
            let parsed = rrule::parse::parse(text, given).map_err(one)?;
            parsed.rule.check_reachable().map_err(one)?;
            Ok((Kind::Rrule(Box::new(parsed.rule)), parsed.zone))
        }
    }
}

/// A lone prefix gives the zone; beside `time_zone` it must mean the same one.
fn prefixed_zone(
    expr: &Expr,
    zones: &ZoneData,
    rule_names_one: bool,
    zone: Option<&Arc<Zone>>,
) -> Result<Option<Arc<Zone>>, RuleError> {
    let Some(name) = &expr.zone_prefix else {
        return Ok(zone.cloned());
    };
    let prefixed = zones.zone(name, parse::POINTER)?;
    match zone {
        Some(zone) if !zone.same_time(&prefixed) => {
            let (a, b) = (prefixed.name(), zone.name());
            let detail = format!(
                "the prefix names {a} but time_zone is {b}: keep one of them, or make them agree"
            );
            Err(RuleError::new(parse::POINTER, Code::ZoneConflict, detail))
        }
        Some(zone) => Ok(Some(Arc::clone(zone))),
        // An unknown time_zone is reported already; the prefix must not hide it.
        None if rule_names_one => Ok(None),
        None => Ok(Some(prefixed)),
    }
}

fn check_bounds(spec: &RuleSpec) -> Vec<RuleError> {
    let mut errors = Vec::new();
    let mut refuse = |pointer: &str, code, why: &str| {
        errors.push(RuleError::new(pointer, code, why));
    };
    if spec.jitter > JITTER_MAX {
        refuse("/jitter", Code::Length, "jitter is at most 7d");
    }
    if spec.max_occurrences == Some(0) {
        refuse(
            "/max_occurrences",
            Code::OutOfRange,
            "max_occurrences is at least 1, or null",
        );
    }
    if let (Some(start), Some(end)) = (spec.start_at, spec.end_at)
        && end < start
    {
        let why = "end_at lies before start_at: swap them, or remove one";
        refuse("/end_at", Code::NoFutureOccurrence, why);
    }
    errors
}

fn excluded_days(spec: &RuleSpec, calendars: &CalendarDates<'_>) -> Result<Box<[i64]>, RuleError> {
    let mut days: Vec<i64> = spec.exclude_dates.iter().map(|d| day_of_date(*d)).collect();
    for (i, name) in spec.calendars.iter().enumerate() {
        let Some(dates) = calendars(name) else {
            let shown: String = name
                .chars()
                .take(80)
                .flat_map(char::escape_default)
                .collect();
            let detail = format!("there is no calendar \"{shown}\": create it first");
            return Err(RuleError::new(
                format!("/calendars/{i}"),
                Code::UnknownCalendar,
                detail,
            ));
        };
        days.extend(dates.iter().map(|d| day_of_date(*d)));
    }
    days.sort_unstable();
    days.dedup();
    if days.len() > EXCLUDED_MAX {
        let detail = format!("more than {EXCLUDED_MAX} excluded dates");
        return Err(RuleError::new("/exclude_dates", Code::TooMany, detail));
    }
    Ok(days.into())
}

fn length(d: Millis, pointer: &str) -> Result<i64, RuleError> {
    let fits = (EVERY_MIN..=duration::MAX).contains(&d);
    match i64::try_from(d.0) {
        Ok(ms) if fits => Ok(ms),
        _ => {
            let detail = "at least 1s and at most 100 years";
            Err(RuleError::new(pointer, Code::Length, detail))
        }
    }
}

/// Wall-clock reading of an instant in milliseconds.
pub(super) fn wall_at(zone: &Zone, ms: i64) -> Wall {
    Wall(zone.label_at(ms.div_euclid(1_000)))
}
