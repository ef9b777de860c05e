//! RFC 5545 recurrence rules as sets of wall-clock labels.
//!
//! Purpose: `next` and `prev` over the labels that an `RRULE` names, with `RDATE` and `EXDATE`. The
//! zone is the business of `fires`: a removed local time is read with the offset before the gap, a
//! repeated one is the first pass, as the RFC says.
//! Callers: `compiled` through `label_set`. Reading order: `parse` (text), `days` (which days of a
//! period), this file (which labels).
//! Invariants: labels lie between DTSTART and 2199; `COUNT` is turned into a last label when the
//! rule is compiled, so that every question starts near its answer; every call is bounded by the
//! days of the horizon.

pub(crate) mod days;
pub(crate) mod parse;

use super::civil::{DAY, END_LABEL, FIRST_YEAR, civil_from_days, days_from_civil};
use days::DayFilter;

/// `COUNT` at most: it is walked once.
pub(crate) const COUNT_MAX: u64 = 10_000;
/// Day count after the last one of the horizon.
const END_DAY: i64 = END_LABEL / DAY;

/// How often, from the longest period to the shortest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Freq {
    Yearly,
    Monthly,
    Weekly,
    Daily,
    Hourly,
    Minutely,
    Secondly,
}

/// A compiled recurrence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rrule {
    pub(crate) freq: Freq,
    /// At least 1.
    pub(crate) interval: i64,
    /// Label of DTSTART.
    pub(crate) start: i64,
    /// Last label, inclusive.
    pub(crate) last: i64,
    pub(crate) days: DayFilter,
    /// Times of day of a day or longer period, in seconds, sorted.
    pub(crate) times: Vec<i64>,
    /// Limits of the shorter periods: bits of hours, minutes and seconds.
    pub(crate) clock: Clock,
    /// `BYSETPOS`, sorted; never with a period shorter than a day.
    pub(crate) positions: Vec<i32>,
    /// Labels of `RDATE`, sorted.
    pub(crate) extra: Vec<i64>,
    /// Labels of `EXDATE`, sorted.
    pub(crate) removed: Vec<i64>,
    /// The rule as understood, for description.
    pub(crate) text: String,
}

/// Bits of the hours, minutes and seconds that are let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    pub(crate) hours: u64,
    pub(crate) minutes: u64,
    pub(crate) seconds: u64,
}

impl Clock {
    const fn has_hour(self, hour: i64) -> bool {
        self.hours >> hour & 1 == 1
    }

    const fn has_minute(self, time: i64) -> bool {
        self.minutes >> (time / 60 % 60) & 1 == 1
    }

    /// The first time of day of the `length` seconds from `from`, which lie in one hour.
    fn next(self, from: i64, length: i64) -> Option<i64> {
        let mut time = from;
        while time < from + length && self.has_hour(time / 3_600) {
            if self.has_minute(time) {
                // The mask keeps seconds from now on.
                let seconds = self.seconds & (u64::MAX << (time % 60)) & SECONDS;
                let found = time - time % 60 + i64::from(seconds.trailing_zeros());
                if seconds != 0 && found < from + length {
                    return Some(found);
                }
            }
            time += 60 - time % 60;
        }
        None
    }

    /// The last time of day of the `length` seconds up to `last`, which lie in one hour.
    fn prev(self, last: i64, length: i64) -> Option<i64> {
        let mut time = last;
        while time > last - length && self.has_hour(time / 3_600) {
            if self.has_minute(time) {
                let seconds = self.seconds & SECONDS & (u64::MAX >> (63 - time % 60));
                let found = time - time % 60 + 63 - i64::from(seconds.leading_zeros());
                if seconds != 0 && found > last - length {
                    return Some(found);
                }
            }
            time -= time % 60 + 1;
        }
        None
    }
}

/// Bits of the seconds of a minute.
const SECONDS: u64 = (1 << 60) - 1;

impl Rrule {
    /// The first label at or after `from` whose day is not excluded.
    pub(crate) fn next(&self, mut from: i64, excluded: &[i64]) -> Option<i64> {
        loop {
            let ruled = self.next_ruled(from.max(self.start));
            let at = self.extra.partition_point(|l| *l < from);
            let label = match (ruled, self.extra.get(at).copied()) {
                (Some(a), Some(b)) => a.min(b),
                (a, b) => a.or(b)?,
            };
            let day = label.div_euclid(DAY);
            if excluded.binary_search(&day).is_ok() {
                from = (day + 1) * DAY;
            } else if self.removed.binary_search(&label).is_ok() {
                from = label + 1;
            } else {
                return Some(label);
            }
        }
    }

    /// The last label at or before `from` whose day is not excluded.
    pub(crate) fn prev(&self, mut from: i64, excluded: &[i64]) -> Option<i64> {
        loop {
            let ruled = self.prev_ruled(from.min(self.last));
            let at = self.extra.partition_point(|l| *l <= from);
            let extra = at.checked_sub(1).and_then(|i| self.extra.get(i)).copied();
            let label = match (ruled, extra) {
                (Some(a), Some(b)) => a.max(b),
                (a, b) => a.or(b)?,
            };
            let day = label.div_euclid(DAY);
            if excluded.binary_search(&day).is_ok() {
                from = day * DAY - 1;
            } else if self.removed.binary_search(&label).is_ok() {
                from = label - 1;
            } else {
                return Some(label);
            }
        }
    }

    /// Turns `COUNT` into a last label.
    pub(crate) fn stop_after(&mut self, count: u64) {
        let mut from = self.start;
        for n in 1..=count {
            let Some(label) = self.next_ruled(from) else {
                return;
            };
            if n == count {
                self.last = label;
            }
            from = label + 1;
        }
    }

    fn next_ruled(&self, from: i64) -> Option<i64> {
        if from > self.last {
            return None;
        }
        let label = match self.freq {
            Freq::Hourly | Freq::Minutely | Freq::Secondly => self.next_short(from)?,
            _ => self.next_long(from)?,
        };
        (label <= self.last).then_some(label)
    }

    fn prev_ruled(&self, from: i64) -> Option<i64> {
        let from = from.min(END_LABEL - 1);
        if from < self.start {
            return None;
        }
        let label = match self.freq {
            Freq::Hourly | Freq::Minutely | Freq::Secondly => self.prev_short(from)?,
            _ => self.prev_long(from)?,
        };
        (label >= self.start).then_some(label)
    }

    // Periods of a day or longer.

    fn next_long(&self, from: i64) -> Option<i64> {
        let mut k = self.period_of(from.div_euclid(DAY)).max(0);
        loop {
            let (low, high) = self.period(k)?;
            let labels = self.labels_of(low, high);
            if let Some(label) = labels.next(from) {
                return Some(label);
            }
            k += 1;
        }
    }

    fn prev_long(&self, from: i64) -> Option<i64> {
        let mut k = self.period_of(from.div_euclid(DAY));
        while k >= 0 {
            // A period beyond the horizon has no labels.
            if let Some((low, high)) = self.period(k)
                && let Some(label) = self.labels_of(low, high).prev(from)
            {
                return Some(label);
            }
            k -= 1;
        }
        None
    }

    /// Position of the period that a day is in, or of the one before the day where periods leave
    /// gaps.
    fn period_of(&self, day: i64) -> i64 {
        let origin = self.start.div_euclid(DAY);
        let units = match self.freq {
            Freq::Yearly => civil_from_days(day).0 - civil_from_days(origin).0,
            Freq::Monthly => month_number(day) - month_number(origin),
            Freq::Weekly => {
                self.days.week_start(day).div_euclid(7) - self.days.week_start(origin).div_euclid(7)
            }
            _ => day - origin,
        };
        units.div_euclid(self.interval)
    }

    /// Days `low..high` of the k-th period; `None` beyond the horizon.
    fn period(&self, k: i64) -> Option<(i64, i64)> {
        let origin = self.start.div_euclid(DAY);
        let step = k.checked_mul(self.interval)?;
        let (low, high) = match self.freq {
            Freq::Yearly => {
                let year = civil_from_days(origin)
                    .0
                    .checked_add(step)
                    .filter(|y| *y < 3_000)?;
                (days_from_civil(year, 1, 1), days_from_civil(year + 1, 1, 1))
            }
            Freq::Monthly => {
                let month = month_number(origin)
                    .checked_add(step)
                    .filter(|m| *m < 36_000)?;
                (first_of_month(month), first_of_month(month + 1))
            }
            Freq::Weekly => {
                let low = self
                    .days
                    .week_start(origin)
                    .checked_add(step.checked_mul(7)?)?;
                (low, low + 7)
            }
            _ => {
                let low = origin.checked_add(step)?;
                (low, low.checked_add(1)?)
            }
        };
        (low < END_DAY).then_some((low, high.min(END_DAY)))
    }

    fn labels_of(&self, low: i64, high: i64) -> PeriodLabels<'_> {
        let days = (low..high).filter(|d| self.days.has(*d)).collect();
        let mut labels = PeriodLabels {
            days,
            times: &self.times,
            chosen: None,
        };
        if !self.positions.is_empty() {
            labels.choose(&self.positions);
        }
        labels
    }

    // Periods shorter than a day: one step of the clock each, and the labels within it.

    /// Seconds of a step.
    const fn unit(&self) -> i64 {
        match self.freq {
            Freq::Hourly => 3_600,
            Freq::Minutely => 60,
            _ => 1,
        }
    }

    fn next_short(&self, from: i64) -> Option<i64> {
        let unit = self.unit();
        let origin = self.start.div_euclid(unit);
        let align = |n: i64| origin + div_ceil(n - origin, self.interval).max(0) * self.interval;
        // The step that `from` lies in may still have a label.
        let mut n = align(from.div_euclid(unit));
        while n * unit < END_LABEL {
            let day = (n * unit).div_euclid(DAY);
            if !self.days.has(day) {
                let next = (day + 1..END_DAY).find(|d| self.days.has(*d))?;
                n = align(div_ceil(next * DAY, unit));
                continue;
            }
            let hour = (n * unit).div_euclid(3_600);
            if !self.clock.has_hour(hour.rem_euclid(24)) {
                n = align((hour + 1) * 3_600 / unit);
                continue;
            }
            let from = (n * unit).max(from).rem_euclid(DAY);
            if let Some(time) = self.clock.next(from, unit - from % unit) {
                return Some(day * DAY + time);
            }
            n += self.interval;
        }
        None
    }

    fn prev_short(&self, from: i64) -> Option<i64> {
        let unit = self.unit();
        let origin = self.start.div_euclid(unit);
        let align = |n: i64| origin + (n - origin).div_euclid(self.interval) * self.interval;
        let first_day = self.start.div_euclid(DAY);
        let mut n = align(from.div_euclid(unit));
        while n >= origin {
            let day = (n * unit).div_euclid(DAY);
            if !self.days.has(day) {
                let previous = (first_day..day).rev().find(|d| self.days.has(*d))?;
                n = align(((previous + 1) * DAY - 1).div_euclid(unit));
                continue;
            }
            let hour = (n * unit).div_euclid(3_600);
            if !self.clock.has_hour(hour.rem_euclid(24)) {
                n = align((hour * 3_600 - 1).div_euclid(unit));
                continue;
            }
            let last = from.min((n + 1) * unit - 1).rem_euclid(DAY);
            if let Some(time) = self.clock.prev(last, last % unit + 1) {
                return Some(day * DAY + time);
            }
            n -= self.interval;
        }
        None
    }
}

/// The labels of one period: some days, each with the same times; or those that `BYSETPOS` chose of
/// them.
struct PeriodLabels<'a> {
    days: Vec<i64>,
    times: &'a [i64],
    chosen: Option<Vec<i64>>,
}

impl PeriodLabels<'_> {
    fn choose(&mut self, positions: &[i32]) {
        let (days, times) = (self.days.len(), self.times.len());
        let total = i64::try_from(days * times).unwrap_or(0);
        let at = |position: i32| -> Option<i64> {
            let i = i64::from(position);
            let i = usize::try_from(if i > 0 { i - 1 } else { total + i }).ok()?;
            Some(self.days.get(i / times)? * DAY + self.times.get(i % times)?)
        };
        let mut chosen: Vec<i64> = positions.iter().filter_map(|p| at(*p)).collect();
        chosen.sort_unstable();
        self.chosen = Some(chosen);
    }

    fn next(&self, from: i64) -> Option<i64> {
        if let Some(chosen) = &self.chosen {
            return chosen.iter().copied().find(|l| *l >= from);
        }
        let today = from.div_euclid(DAY);
        let mut days = self
            .days
            .iter()
            .skip(self.days.partition_point(|d| *d < today));
        days.find_map(|d| {
            let at = self.times.partition_point(|t| d * DAY + t < from);
            self.times.get(at).map(|t| d * DAY + t)
        })
    }

    fn prev(&self, from: i64) -> Option<i64> {
        if let Some(chosen) = &self.chosen {
            return chosen.iter().rev().copied().find(|l| *l <= from);
        }
        let today = from.div_euclid(DAY);
        let mut days = self
            .days
            .iter()
            .take(self.days.partition_point(|d| *d <= today))
            .rev();
        days.find_map(|d| {
            let at = self
                .times
                .partition_point(|t| d * DAY + t <= from)
                .checked_sub(1)?;
            self.times.get(at).map(|t| d * DAY + t)
        })
    }
}

/// Months since January of year 0.
fn month_number(day: i64) -> i64 {
    let (y, m, _) = civil_from_days(day);
    y * 12 + i64::from(m) - 1
}

fn first_of_month(number: i64) -> i64 {
    let month = u8::try_from(number.rem_euclid(12) + 1).unwrap_or(1);
    days_from_civil(number.div_euclid(12), month, 1)
}

const fn div_ceil(a: i64, b: i64) -> i64 {
    let q = a.div_euclid(b);
    if a.rem_euclid(b) == 0 { q } else { q + 1 }
}

/// The first label that a recurrence may start at.
pub(crate) const FIRST_START: i64 = days_from_civil(FIRST_YEAR as i64, 1, 1) * DAY;
