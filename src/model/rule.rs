//! The rule of a schedule in its stored, normalised form.
//!
//! Purpose: say *when* a schedule fires, as plain data; `calendar` compiles it, commands and stored
//! schedules carry it. The HTTP form of the same thing lives in `wire`.
//! Callers: `command`, `state`, `calendar`, `wire`.
//! Invariants: bincode-safe (no skipped, untagged or flattened fields); enum variants keep their
//! order for ever, new ones go last.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::time::{Millis, Timestamp};

/// When a schedule fires. Fields that do not apply to a kind of rule keep their default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleSpec {
    /// What names the instants.
    pub when: When,
    /// IANA zone name as the caller wrote it; `None` is UTC, with a warning for rules that read a
    /// wall clock.
    pub time_zone: Option<String>,
    /// How a cron expression counts and reads its fields.
    pub dialect: Dialect,
    /// How the two day fields of a cron expression combine; `None` is the rule of the dialect.
    pub day_match: Option<DayMatch>,
    /// What happens to a local time that a clock change removes.
    pub dst_gap: DstGap,
    /// Which pass of a local time that a clock change repeats fires.
    pub dst_overlap: DstOverlap,
    /// No occurrence before this instant (inclusive).
    pub start_at: Option<Timestamp>,
    /// No occurrence after this instant (inclusive).
    pub end_at: Option<Timestamp>,
    /// Executions to create at most, at least 1; counted in the state, shown by a preview.
    pub max_occurrences: Option<u64>,
    /// Window after the nominal time over which due times are spread.
    pub jitter: Millis,
    /// Names of calendars whose dates are excluded.
    pub calendars: Vec<String>,
    /// Local dates without occurrences, in the rule's zone.
    pub exclude_dates: Vec<CivilDate>,
}

impl RuleSpec {
    /// A rule with every default: UTC, Unix dialect, no bounds, no jitter.
    #[must_use]
    pub const fn new(when: When) -> Self {
        Self {
            when,
            time_zone: None,
            dialect: Dialect::Unix,
            day_match: None,
            dst_gap: DstGap::RunAfter,
            dst_overlap: DstOverlap::First,
            start_at: None,
            end_at: None,
            max_occurrences: None,
            jitter: Millis::ZERO,
            calendars: Vec::new(),
            exclude_dates: Vec::new(),
        }
    }
}

/// The kinds of rule. Exactly one field of the HTTP form names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum When {
    /// Once, at this instant.
    At(Timestamp),
    /// A cron expression in the rule's dialect.
    Cron(String),
    /// Every so often, in elapsed time from a stored anchor that is itself an occurrence.
    Every {
        /// Distance between occurrences.
        every: Millis,
        /// The first occurrence; keeps the phase for ever.
        anchor: Timestamp,
    },
    /// So long after the previous execution ended.
    AfterEnd(Millis),
    /// RFC 5545 recurrence text (`DTSTART`, `RRULE`, `RDATE`, `EXDATE` lines).
    Rrule(String),
    /// ISO 8601 repeating interval, such as `R5/2026-01-31T09:00:00Z/P1M`.
    Iso8601(String),
}

/// How a cron expression is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dialect {
    /// Five fields, six with seconds in front, seven with a year behind; weekday 0 and 7 are
    /// Sunday.
    #[default]
    Unix,
    /// Seconds first, optional year, weekday 1 is Sunday, exactly one day field is `?`.
    Quartz,
    /// As Quartz without seconds, year required; `cron(…)` around it is accepted.
    EventBridge,
}

/// How two restricted day fields combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DayMatch {
    /// Both must match.
    And,
    /// Either may match.
    Or,
}

/// What happens to a local time that does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DstGap {
    /// It runs once at the end of the gap.
    #[default]
    RunAfter,
    /// It moves later by the length of the gap.
    Shift,
    /// It is lost and recorded as such.
    Skip,
}

/// Which pass of a repeated local time fires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DstOverlap {
    /// The earlier one.
    #[default]
    First,
    /// The later one.
    Second,
    /// Both.
    Both,
}

/// A date on a wall calendar (proleptic Gregorian), without a zone. Field order is comparison
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CivilDate {
    /// Year, 1 to 9999.
    pub year: i16,
    /// Month, 1 to 12.
    pub month: u8,
    /// Day of the month, 1 to 31.
    pub day: u8,
}

/// Text that is no date of the form `2026-12-24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a date: write it as 2026-12-24, with a day that exists")]
pub struct NotADate;

impl CivilDate {
    /// The date if it exists, else `None`.
    #[must_use]
    pub fn new(year: i16, month: u8, day: u8) -> Option<Self> {
        let fits = (1..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=days_in_month(i64::from(year), month)).contains(&day);
        fits.then_some(Self { year, month, day })
    }
}

impl fmt::Display for CivilDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

impl FromStr for CivilDate {
    type Err = NotADate;

    fn from_str(text: &str) -> Result<Self, NotADate> {
        let mut parts = text.split('-');
        let mut part = |width: usize| {
            let p = parts.next().filter(|p| p.len() == width)?;
            p.bytes().all(|b| b.is_ascii_digit()).then_some(p)
        };
        let (Some(y), Some(m), Some(d)) = (part(4), part(2), part(2)) else {
            return Err(NotADate);
        };
        if parts.next().is_some() {
            return Err(NotADate);
        }
        match (y.parse(), m.parse(), d.parse()) {
            (Ok(y), Ok(m), Ok(d)) => Self::new(y, m, d).ok_or(NotADate),
            _ => Err(NotADate),
        }
    }
}

/// Days of a month; 0 for a month outside 1 to 12.
#[must_use]
pub const fn days_in_month(year: i64, month: u8) -> u8 {
    match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_read_back_as_they_were_written() {
        for text in ["1970-01-01", "2000-02-29", "2026-12-24", "2199-12-31"] {
            assert_eq!(text.parse::<CivilDate>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn dates_that_do_not_exist_are_refused() {
        for text in [
            "",
            "2026-02-29",
            "2100-02-29",
            "2026-13-01",
            "2026-00-01",
            "2026-1-1",
            "+026-01-01",
            "2026-01-01-",
            "2026-01-32",
            "x",
        ] {
            assert_eq!(text.parse::<CivilDate>(), Err(NotADate), "{text}");
        }
    }

    #[test]
    fn a_rule_round_trips_through_the_stored_form() {
        let mut rule = RuleSpec::new(When::Cron("0 9 * * MON-FRI".into()));
        rule.time_zone = Some("Europe/Berlin".into());
        rule.day_match = Some(DayMatch::And);
        rule.end_at = Some(Timestamp::from_millis(1_800_000_000_000));
        rule.exclude_dates = vec![CivilDate::new(2026, 12, 24).unwrap()];
        let bytes = bincode::serialize(&rule).unwrap();
        assert_eq!(bincode::deserialize::<RuleSpec>(&bytes).unwrap(), rule);
    }
}
