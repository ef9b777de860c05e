//! ISO 8601 repeating intervals: `R5/2026-01-31T09:00:00/P1M`.
//!
//! Purpose: the n-th occurrence is the start plus n periods, counted from the start, so that a 31st
//! that February cut short comes back in March. `R5` means five occurrences; `R` or `R-1` without a
//! number has no end.
//! Callers: `compiled`. Milliseconds for instants, seconds for labels.
//! Invariants: occurrences never decrease with n; no occurrence lies beyond the year 2199.

use std::sync::Arc;

use super::civil::{DAY, END_LABEL, Wall, civil_from_days, days_from_civil};
use super::duration;
use super::error::{Code, RuleError};
use super::instant::{self, Written};
use super::interval::Interval;
use super::zone::{Reading, Zone, offset_text};
use crate::model::rule::days_in_month;
use crate::time::Millis;

const POINTER: &str = "/iso8601";

/// A compiled repeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// The period has a fixed length.
    Elapsed(Interval),
    /// The period has days, weeks, months or years, counted on the wall clock.
    Calendar(CalendarRepeat),
}

/// A period on the wall clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CalendarRepeat {
    /// The first occurrence where an offset fixes it: it may be the second pass of a repeated local
    /// time.
    first: Option<i64>,
    /// Label of the start.
    start: i64,
    millis: i64,
    months: i64,
    days: i64,
    /// Elapsed part of the period, in milliseconds per occurrence.
    elapsed: i64,
    times: u64,
    zone: Arc<Zone>,
}

impl Repeat {
    /// Reads the text. `zone` is the rule's; without one the start's own offset counts.
    pub(crate) fn parse(text: &str, zone: Option<&Arc<Zone>>) -> Result<Self, RuleError> {
        if text.len() > 200 {
            return Err(RuleError::new(
                POINTER,
                Code::TooLong,
                "longer than 200 characters",
            ));
        }
        let mut parts = text.split('/');
        let (Some(count), Some(start), Some(period), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(refuse(
                "write R, a start and a period: R5/2026-01-31T09:00:00Z/P1M",
            ));
        };
        let times = read_count(count)?;
        let start = instant::read(start).ok_or_else(|| instant::not_an_instant(POINTER, start))?;
        let zone = zone_of(start, zone)?;
        let Period {
            months,
            days,
            elapsed,
        } = Period::read(period)?;
        let at = match start.offset {
            Some(offset) => start.label - offset,
            None => zone.read(start.label).instant(),
        };
        let at = at * 1_000 + start.millis;
        if !instant::within_horizon(at) {
            return Err(instant::outside_horizon(POINTER));
        }
        if months == 0 && days == 0 {
            return Ok(Self::Elapsed(Interval {
                anchor: at,
                every: elapsed,
                times,
            }));
        }
        let label = zone.label_at(at.div_euclid(1_000));
        Ok(Self::Calendar(CalendarRepeat {
            first: start.offset.map(|_| at),
            start: if start.offset.is_some() {
                label
            } else {
                start.label
            },
            millis: start.millis,
            months,
            days,
            elapsed,
            times: times.unwrap_or(u64::MAX),
            zone,
        }))
    }
}

impl CalendarRepeat {
    /// The first occurrence at or after `from`, with what its label became.
    pub(crate) fn next(&self, from: i64) -> Option<(i64, Reading)> {
        self.nth(self.index_from(from))
    }

    /// The last occurrence before `before`.
    pub(crate) fn prev(&self, before: i64) -> Option<(i64, Reading)> {
        self.nth(self.index_from(before).checked_sub(1)?)
    }

    /// `Every 1 month, counted from 2026-01-31T09:00:00, 5 times`.
    pub(crate) fn describe(&self) -> String {
        let mut parts = Vec::new();
        for (n, unit) in [
            (self.months / 12, "year"),
            (self.months % 12, "month"),
            (self.days, "day"),
        ] {
            if n > 0 {
                parts.push(format!("{n} {unit}{}", if n == 1 { "" } else { "s" }));
            }
        }
        if self.elapsed > 0 {
            parts.push(duration::format(Millis(self.elapsed.unsigned_abs())));
        }
        let times = match self.times {
            u64::MAX => String::new(),
            n => format!(", {n} times"),
        };
        format!(
            "Every {}, counted from {}{times}",
            parts.join(" "),
            Wall(self.start)
        )
    }

    /// The label and instant of the n-th occurrence, from 0.
    fn nth(&self, n: u64) -> Option<(i64, Reading)> {
        if n >= self.times {
            return None;
        }
        if let Some(at) = self.first.filter(|_| n == 0) {
            return Some((at, Reading::At(at)));
        }
        let n = i64::try_from(n).ok()?;
        let (day, time) = (self.start.div_euclid(DAY), self.start.rem_euclid(DAY));
        let (y, m, d) = civil_from_days(day);
        let months = n.checked_mul(self.months)?.checked_add(i64::from(m) - 1)?;
        let year = y
            .checked_add(months.div_euclid(12))
            .filter(|y| *y < 2_201)?;
        let month = u8::try_from(months.rem_euclid(12) + 1).ok()?;
        let clamped = d.min(days_in_month(year, month));
        let days = days_from_civil(year, month, clamped).checked_add(n.checked_mul(self.days)?)?;
        let label = days
            .checked_mul(DAY)?
            .checked_add(time)
            .filter(|l| *l < END_LABEL)?;
        let reading = self.zone.read(label);
        let at = reading.instant() * 1_000 + self.millis;
        let at = at.checked_add(n.checked_mul(self.elapsed)?)?;
        instant::within_horizon(at).then_some((at, reading))
    }

    /// Position of the first occurrence at or after `t`. Those that do not exist count as later.
    fn index_from(&self, t: i64) -> u64 {
        // Every occurrence but the first lies at least a day on, and the horizon has fewer days
        // than this.
        let (mut low, mut high) = (0, 1 << 17);
        while low < high {
            let middle = (low + high) / 2;
            match self.nth(middle) {
                Some((at, _)) if at < t => low = middle + 1,
                _ => high = middle,
            }
        }
        low
    }
}

#[derive(Clone, Copy)]
struct Period {
    months: i64,
    days: i64,
    elapsed: i64,
}

impl Period {
    fn read(text: &str) -> Result<Self, RuleError> {
        let bad = || refuse("the period must look like P1M, P2W, P1DT12H or PT15M");
        let rest = text.strip_prefix(['P', 'p']).ok_or_else(bad)?;
        let (date, time) = match rest.split_once(['T', 't']) {
            Some((_, "")) => return Err(bad()),
            Some((date, time)) => (date, Some(time)),
            None => (rest, None),
        };
        let mut period = Self {
            months: 0,
            days: 0,
            elapsed: 0,
        };
        let mut last = 0;
        for part in date.split_inclusive(|c: char| !c.is_ascii_digit()) {
            let (number, unit) = part
                .split_at_checked(part.len().saturating_sub(1))
                .ok_or_else(bad)?;
            // Five digits reach beyond the horizon in any unit and keep the products small.
            let n: i64 = number
                .parse()
                .ok()
                .filter(|_| number.len() <= 5)
                .ok_or_else(bad)?;
            let order = match unit {
                "Y" | "y" => (1, &mut period.months, 12),
                "M" | "m" => (2, &mut period.months, 1),
                "W" | "w" => (3, &mut period.days, 7),
                "D" | "d" => (4, &mut period.days, 1),
                _ => return Err(bad()),
            };
            if order.0 <= last {
                return Err(bad());
            }
            last = order.0;
            *order.1 += n * order.2;
        }
        if let Some(time) = time {
            let parsed = duration::parse(&format!("PT{time}")).map_err(|_| bad())?;
            period.elapsed = i64::try_from(parsed.0).map_err(|_| bad())?;
        }
        if period.months == 0 && period.days == 0 && period.elapsed < 1_000 {
            return Err(refuse("the period must be at least one second"));
        }
        Ok(period)
    }
}

/// `R`, `R-1`: no end. `R5`: five occurrences.
fn read_count(text: &str) -> Result<Option<u64>, RuleError> {
    let bad = || refuse("the first part must be R, or R with a number from 1: R5/…");
    let number = text.strip_prefix(['R', 'r']).ok_or_else(bad)?;
    if number.is_empty() || number == "-1" {
        return Ok(None);
    }
    let plain = number.len() <= 9 && number.bytes().all(|b| b.is_ascii_digit());
    match number.parse() {
        Ok(n) if plain && n > 0 => Ok(Some(n)),
        _ => Err(bad()),
    }
}

fn zone_of(start: Written, zone: Option<&Arc<Zone>>) -> Result<Arc<Zone>, RuleError> {
    match (zone, start.offset) {
        (Some(zone), _) => Ok(Arc::clone(zone)),
        (None, Some(0)) => Ok(Arc::new(Zone::from_changes("UTC", 0, &[]))),
        (None, Some(offset)) => {
            let name = offset_text(offset);
            Ok(Arc::new(Zone::from_changes(&name, offset, &[])))
        }
        (None, None) => Err(refuse(
            "a local start needs a zone: end it with Z or an offset, or give time_zone",
        )),
    }
}

fn refuse(why: &str) -> RuleError {
    RuleError::new(POINTER, Code::RepeatSyntax, why)
}
