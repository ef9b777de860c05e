//! The wall-clock labels that an expression matches.
//!
//! Purpose: `next`, `prev` and `count` over labels, on bit sets: one word per field, one word per
//! month.
//! Callers: `fires` (which adds the zone), `warnings`.
//! Invariants: labels lie in 1970 to 2199; every call looks at each month of those years at most
//! once; dates in `excluded` (sorted day counts) never match.

use super::field::{Field, FieldExpr, Item};
use super::{DayRule, Expr};
use crate::calendar::civil::{
    DAY, END_LABEL, FIRST_LABEL, FIRST_YEAR, LAST_YEAR, civil_from_days, days_from_civil, weekday,
};
use crate::model::rule::{DayMatch, days_in_month};

/// A compiled expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Labels {
    seconds: u64,
    minutes: u64,
    hours: u64,
    /// Bits 1 to 31.
    month_days: u64,
    /// Bits 1 to 12.
    months: u64,
    /// Bits 0 to 6, Sunday first.
    weekdays: u64,
    day_rule: DayRule,
    /// The items that need a month; most expressions have none.
    special: Option<Box<Special>>,
    /// Bit 0 is 1970; `None` is every year.
    years: Option<Box<[u64; 4]>>,
}

/// `L`, `W` and `#`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Special {
    /// Bit n: the day n days before the last.
    before_last: u64,
    /// Bit d: the workday nearest to day d.
    nearest: u64,
    last_workday: bool,
    /// Weekday bits for the first to the fifth.
    nth: [u64; 5],
    /// Weekday bits for the last.
    last_of: u64,
}

/// One month: where it begins and which of its days match (bits 1 to 31).
#[derive(Clone, Copy)]
struct Month {
    /// Day count of the first.
    first: i64,
    days: u64,
}

impl Labels {
    /// Compiles an expression.
    pub(crate) fn of(expr: &Expr, day_match: Option<DayMatch>) -> Self {
        let mut special = Special::default();
        for item in expr
            .day_of_month
            .items
            .iter()
            .chain(&expr.day_of_week.items)
        {
            special.add(*item);
        }
        let years = expr.year.as_ref().filter(|y| !y.is_bare).map(|years| {
            let mut words = [0u64; 4];
            for y in years.items.iter().flat_map(|i| i.values(Field::Year)) {
                let bit = usize::from(y - FIRST_YEAR);
                if let Some(word) = words.get_mut(bit / 64) {
                    *word |= 1 << (bit % 64);
                }
            }
            Box::new(words)
        });
        Self {
            seconds: expr.second.as_ref().map_or(1, |f| bits(f, Field::Second)),
            minutes: bits(&expr.minute, Field::Minute),
            hours: bits(&expr.hour, Field::Hour),
            month_days: bits(&expr.day_of_month, Field::DayOfMonth),
            months: bits(&expr.month, Field::Month),
            weekdays: bits(&expr.day_of_week, Field::DayOfWeek),
            day_rule: expr.day_rule(day_match),
            special: (special != Special::default()).then(|| Box::new(special)),
            years,
        }
    }

    /// Whether every hour of a day matches.
    pub(crate) const fn has_every_hour(&self) -> bool {
        self.hours == (1 << 24) - 1
    }

    /// Bits 1 to 12 of the months.
    pub(crate) const fn month_bits(&self) -> u64 {
        self.months
    }

    /// Bits 1 to 31 of the plain days of the month.
    pub(crate) const fn month_day_bits(&self) -> u64 {
        self.month_days
    }

    /// How many labels a matching day has.
    pub(crate) const fn per_day(&self) -> u64 {
        (self.hours.count_ones() * self.minutes.count_ones() * self.seconds.count_ones()) as u64
    }

    /// The first label at or after `from`.
    pub(crate) fn next(&self, from: i64, excluded: &[i64]) -> Option<i64> {
        let from = from.max(FIRST_LABEL);
        if from >= END_LABEL {
            return None;
        }
        let (day, time) = (from.div_euclid(DAY), from.rem_euclid(DAY));
        let (year, month, dom) = civil_from_days(day);
        let here = self.month(year, month, excluded);
        if has(here.days, dom.into())
            && let Some(t) = self.next_time(time)
        {
            return Some(day * DAY + t);
        }
        let found = match next_bit(here.days, u32::from(dom) + 1) {
            Some(d) => here.first + i64::from(d) - 1,
            None => self.next_day(year, month, excluded)?,
        };
        Some(found * DAY + self.first_time())
    }

    /// The last label at or before `from`.
    pub(crate) fn prev(&self, from: i64, excluded: &[i64]) -> Option<i64> {
        let from = from.min(END_LABEL - 1);
        if from < FIRST_LABEL {
            return None;
        }
        let (day, time) = (from.div_euclid(DAY), from.rem_euclid(DAY));
        let (year, month, dom) = civil_from_days(day);
        let here = self.month(year, month, excluded);
        if has(here.days, dom.into())
            && let Some(t) = self.prev_time(time)
        {
            return Some(day * DAY + t);
        }
        let found = match prev_bit(here.days, u32::from(dom).checked_sub(1)) {
            Some(d) => here.first + i64::from(d) - 1,
            None => self.prev_day(year, month, excluded)?,
        };
        Some(found * DAY + self.last_time())
    }

    /// How many labels lie in `from..to`. Exact, and as cheap as looking at each month once.
    pub(crate) fn count(&self, from: i64, to: i64, excluded: &[i64]) -> u64 {
        let (from, to) = (from.max(FIRST_LABEL), to.min(END_LABEL));
        if from >= to {
            return 0;
        }
        let (first_day, last_day) = (from.div_euclid(DAY), to.div_euclid(DAY));
        let on = |day: i64| self.count_days(day, day + 1, excluded);
        let skipped = on(first_day) * self.times_before(from.rem_euclid(DAY));
        let tail = on(last_day) * self.times_before(to.rem_euclid(DAY));
        let whole = self.count_days(first_day, last_day, excluded) * self.per_day();
        (whole + tail).saturating_sub(skipped)
    }

    /// How many days in `from..to` match.
    fn count_days(&self, from: i64, to: i64, excluded: &[i64]) -> u64 {
        let mut n = 0;
        let (mut year, mut month, _) = civil_from_days(from);
        while year <= i64::from(LAST_YEAR) {
            let here = self.month(year, month, excluded);
            if here.first >= to {
                break;
            }
            // Bits of the days in the range; the first of the month is bit 1.
            let low = (from - here.first + 1).clamp(1, 32);
            let high = (to - here.first + 1).clamp(1, 32);
            let window = (1u64 << high) - (1u64 << low.min(high));
            n += u64::from((here.days & window).count_ones());
            (year, month) = match self.month_after(year, month) {
                Some(next) => next,
                None => break,
            };
        }
        n
    }

    fn next_day(&self, mut year: i64, mut month: u8, excluded: &[i64]) -> Option<i64> {
        loop {
            (year, month) = self.month_after(year, month)?;
            let here = self.month(year, month, excluded);
            if let Some(d) = next_bit(here.days, 1) {
                return Some(here.first + i64::from(d) - 1);
            }
        }
    }

    fn prev_day(&self, mut year: i64, mut month: u8, excluded: &[i64]) -> Option<i64> {
        loop {
            (year, month) = self.month_before(year, month)?;
            let here = self.month(year, month, excluded);
            if let Some(d) = prev_bit(here.days, Some(31)) {
                return Some(here.first + i64::from(d) - 1);
            }
        }
    }

    /// The next month that the month and year fields allow.
    fn month_after(&self, year: i64, month: u8) -> Option<(i64, u8)> {
        let later = next_bit(self.months, u32::from(month) + 1).filter(|_| self.has_year(year));
        if let Some(m) = later {
            return Some((year, u8::try_from(m).ok()?));
        }
        let first = u8::try_from(next_bit(self.months, 1)?).ok()?;
        let year = (year + 1..=i64::from(LAST_YEAR)).find(|y| self.has_year(*y))?;
        Some((year, first))
    }

    fn month_before(&self, year: i64, month: u8) -> Option<(i64, u8)> {
        let earlier = prev_bit(self.months, u32::from(month).checked_sub(1));
        if let Some(m) = earlier.filter(|_| self.has_year(year)) {
            return Some((year, u8::try_from(m).ok()?));
        }
        let last = u8::try_from(prev_bit(self.months, Some(12))?).ok()?;
        let year = (i64::from(FIRST_YEAR)..year)
            .rev()
            .find(|y| self.has_year(*y))?;
        Some((year, last))
    }

    fn has_year(&self, year: i64) -> bool {
        let Some(words) = &self.years else {
            return true;
        };
        let bit = usize::try_from(year - i64::from(FIRST_YEAR)).unwrap_or(usize::MAX);
        words
            .get(bit / 64)
            .is_some_and(|w| w >> (bit % 64) & 1 == 1)
    }

    /// The matching days of one month.
    fn month(&self, year: i64, month: u8, excluded: &[i64]) -> Month {
        let first = days_from_civil(year, month, 1);
        if !has(self.months, month.into()) || !self.has_year(year) {
            return Month { first, days: 0 };
        }
        let length = u32::from(days_in_month(year, month));
        let starts_on = u32::from(weekday(first));
        let all = (1u64 << (length + 1)) - 2;
        let mut by_month = self.month_days & all;
        let mut by_week = weekdays_of_month(self.weekdays, starts_on) & all;
        if let Some(special) = &self.special {
            by_month |= special.month_days(length, starts_on);
            by_week |= special.week_days(length, starts_on) & all;
        }
        let mut days = match self.day_rule {
            DayRule::Both => by_month & by_week,
            DayRule::Either => by_month | by_week,
            DayRule::MonthDayOnly => by_month,
            DayRule::WeekdayOnly => by_week,
        };
        let begin = excluded.partition_point(|d| *d < first);
        for day in excluded
            .iter()
            .skip(begin)
            .take_while(|d| **d < first + i64::from(length))
        {
            days &= !(1 << (day - first + 1));
        }
        Month { first, days }
    }

    fn next_time(&self, time: i64) -> Option<i64> {
        let (h, m, s) = split_time(time);
        let first_second = next_bit(self.seconds, 0)?;
        let first_minute = next_bit(self.minutes, 0)?;
        if has(self.hours, h) {
            if has(self.minutes, m)
                && let Some(s) = next_bit(self.seconds, s)
            {
                return Some(join_time(h, m, s));
            }
            if let Some(m) = next_bit(self.minutes, m + 1) {
                return Some(join_time(h, m, first_second));
            }
        }
        let h = next_bit(self.hours, h + 1)?;
        Some(join_time(h, first_minute, first_second))
    }

    fn prev_time(&self, time: i64) -> Option<i64> {
        let (h, m, s) = split_time(time);
        let last_second = prev_bit(self.seconds, Some(59))?;
        let last_minute = prev_bit(self.minutes, Some(59))?;
        if has(self.hours, h) {
            if has(self.minutes, m)
                && let Some(s) = prev_bit(self.seconds, Some(s))
            {
                return Some(join_time(h, m, s));
            }
            if let Some(m) = prev_bit(self.minutes, m.checked_sub(1)) {
                return Some(join_time(h, m, last_second));
            }
        }
        let h = prev_bit(self.hours, h.checked_sub(1))?;
        Some(join_time(h, last_minute, last_second))
    }

    /// How many times of a matching day lie before `time`.
    fn times_before(&self, time: i64) -> u64 {
        let (h, m, s) = split_time(time);
        let below = |bits: u64, n: u32| u64::from((bits & ((1 << n) - 1)).count_ones());
        let (per_minute, minutes) = (self.seconds.count_ones(), self.minutes.count_ones());
        let mut n = below(self.hours, h) * u64::from(minutes) * u64::from(per_minute);
        if has(self.hours, h) {
            n += below(self.minutes, m) * u64::from(per_minute);
            if has(self.minutes, m) {
                n += below(self.seconds, s);
            }
        }
        n
    }

    fn first_time(&self) -> i64 {
        self.next_time(0).unwrap_or(0)
    }

    fn last_time(&self) -> i64 {
        self.prev_time(DAY - 1).unwrap_or(0)
    }
}

impl Special {
    fn add(&mut self, item: Item) {
        match item {
            Item::LastDay { before } => self.before_last |= 1 << before,
            Item::LastWorkday => self.last_workday = true,
            Item::NearestWorkday(day) => self.nearest |= 1 << day,
            Item::Nth { weekday, n } => {
                if let Some(bits) = self.nth.get_mut(usize::from(n).saturating_sub(1)) {
                    *bits |= 1 << weekday;
                }
            }
            Item::LastOf { weekday } => self.last_of |= 1 << weekday,
            Item::Star { .. } | Item::Question | Item::Range { .. } => {}
        }
    }

    fn month_days(&self, length: u32, starts_on: u32) -> u64 {
        let mut days = 0;
        for before in each_bit(self.before_last).filter(|b| *b < length) {
            days |= 1 << (length - before);
        }
        // A day that the month lacks has no nearest workday: short months are skipped, not clamped.
        for day in each_bit(self.nearest).filter(|d| *d <= length) {
            days |= 1 << nearest_workday(day, length, starts_on);
        }
        if self.last_workday {
            days |= 1 << nearest_workday(length, length, starts_on);
        }
        days
    }

    fn week_days(&self, length: u32, starts_on: u32) -> u64 {
        let mut days = 0;
        for (week, bits) in (0u32..).zip(self.nth) {
            days |= weekdays_of_month(bits, starts_on) & (0b1111_1110 << (7 * week));
        }
        // The last seven days of the month hold each weekday once.
        days | weekdays_of_month(self.last_of, starts_on) & (0b1111_1110 << (length - 7))
    }
}

/// The Monday-to-Friday day nearest to `day`, not leaving the month.
fn nearest_workday(day: u32, length: u32, starts_on: u32) -> u32 {
    match (starts_on + day - 1) % 7 {
        // Sunday: Monday, or back to Friday at the end of the month.
        0 if day == length => day - 2,
        0 => day + 1,
        // Saturday: Friday, or on to Monday at the start.
        6 if day == 1 => day + 2,
        6 => day - 1,
        _ => day,
    }
}

/// Bits 1 to 35 of the days that fall on the given weekdays.
fn weekdays_of_month(weekdays: u64, starts_on: u32) -> u64 {
    let turned = (weekdays >> starts_on | weekdays << (7 - starts_on)) & 0x7f;
    // Five copies, seven bits apart.
    (turned * 0x1020_4081) << 1
}

fn bits(field: &FieldExpr, kind: Field) -> u64 {
    let values = field.items.iter().flat_map(|i| i.values(kind));
    values.fold(0, |bits, v| bits | 1 << v.min(63))
}

const fn has(bits: u64, n: u32) -> bool {
    bits >> n & 1 == 1
}

const fn next_bit(bits: u64, from: u32) -> Option<u32> {
    if from >= 64 {
        return None;
    }
    let rest = bits >> from;
    if rest == 0 {
        None
    } else {
        Some(from + rest.trailing_zeros())
    }
}

fn prev_bit(bits: u64, from: Option<u32>) -> Option<u32> {
    let rest = bits << (63 - from?.min(63));
    if rest == 0 {
        None
    } else {
        Some(from?.min(63) - rest.leading_zeros())
    }
}

fn each_bit(bits: u64) -> impl Iterator<Item = u32> {
    (0..64).filter(move |n| has(bits, *n))
}

fn split_time(time: i64) -> (u32, u32, u32) {
    // In range by construction: a time of day is below 86,400.
    let time = u32::try_from(time).unwrap_or(0);
    (time / 3_600, time / 60 % 60, time % 60)
}

const fn join_time(h: u32, m: u32, s: u32) -> i64 {
    (h * 3_600 + m * 60 + s) as i64
}
