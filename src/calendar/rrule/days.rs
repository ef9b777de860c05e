//! Which days of a period a recurrence lets through.
//!
//! Purpose: every `BY…` part about days as one question about a day. Callers: the parent module.
//! Invariant: parts that are not given let every day through; those that are given must all agree.

use crate::calendar::civil::{civil_from_days, days_from_civil, weekday};
use crate::model::rule::days_in_month;

/// A weekday with an optional position: `FR`, `2FR`, `-1FR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByDay {
    /// 0 is every one; 1 the first, -1 the last.
    pub(crate) nth: i64,
    /// 0 = Sunday.
    pub(crate) weekday: u8,
}

/// Where the position of a weekday is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Month,
    Year,
}

/// The parts of a rule about days. Empty lists restrict nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DayFilter {
    /// 1 to 12.
    pub(crate) months: Vec<i64>,
    /// 1 to 31, or from -1 for the last.
    pub(crate) month_days: Vec<i64>,
    /// 1 to 366, or from -1 for the last.
    pub(crate) year_days: Vec<i64>,
    /// ISO weeks 1 to 53, or from -1 for the last.
    pub(crate) weeks: Vec<i64>,
    pub(crate) weekdays: Vec<ByDay>,
    pub(crate) scope: Scope,
    /// First day of a week, 0 = Sunday.
    pub(crate) week_starts_on: u8,
}

impl DayFilter {
    /// Whether a day is let through.
    pub(crate) fn has(&self, day: i64) -> bool {
        let (year, month, dom) = civil_from_days(day);
        let from_either_end = |list: &[i64], position: i64, length: i64| {
            list.is_empty() || list.contains(&position) || list.contains(&(position - length - 1))
        };
        let length = i64::from(days_in_month(year, month));
        let (year_day, year_length) = position_in_year(year, day);
        (self.months.is_empty() || self.months.contains(&i64::from(month)))
            && from_either_end(&self.month_days, dom.into(), length)
            && from_either_end(&self.year_days, year_day, year_length)
            && self.has_week(day)
            && self.has_weekday(day, (dom.into(), length), (year_day, year_length))
    }

    /// First day of the week that a day is in.
    pub(crate) fn week_start(&self, day: i64) -> i64 {
        day - i64::from((weekday(day) + 7 - self.week_starts_on) % 7)
    }

    fn has_weekday(&self, day: i64, in_month: (i64, i64), in_year: (i64, i64)) -> bool {
        let (position, length) = match self.scope {
            Scope::Month => in_month,
            Scope::Year => in_year,
        };
        let from_start = (position - 1) / 7 + 1;
        let from_end = -((length - position) / 7 + 1);
        let today = weekday(day);
        let matches = |d: &ByDay| {
            d.weekday == today && (d.nth == 0 || d.nth == from_start || d.nth == from_end)
        };
        self.weekdays.is_empty() || self.weekdays.iter().any(matches)
    }

    fn has_week(&self, day: i64) -> bool {
        if self.weeks.is_empty() {
            return true;
        }
        // A week belongs to the year that has at least four of its days.
        let number = |day: i64| {
            let fourth = self.week_start(day) + 3;
            let year = civil_from_days(fourth).0;
            (year, (position_in_year(year, fourth).0 - 1) / 7 + 1)
        };
        let (year, week) = number(day);
        // 28 December is always in the last week of its year.
        let weeks = number(days_from_civil(year, 12, 28)).1;
        self.weeks.contains(&week) || self.weeks.contains(&(week - weeks - 1))
    }
}

/// Position of a day in its year, from 1, and the length of the year.
fn position_in_year(year: i64, day: i64) -> (i64, i64) {
    let first = days_from_civil(year, 1, 1);
    (day - first + 1, days_from_civil(year + 1, 1, 1) - first)
}
