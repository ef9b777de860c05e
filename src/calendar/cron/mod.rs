//! Cron expressions: reading them, what they match, and saying them in words.
//!
//! Purpose: from text in one of three dialects to [`labels::Labels`], a set of wall-clock labels
//! with `next`, `prev` and `count`. Nothing here knows a zone; clock changes are the business of
//! `fires`.
//! Callers: `compiled`, `preview`.
//! Reading order: `parse` (text to [`Expr`]), `labels` (what it matches), `echo` (back to text),
//! `describe` (to English).

pub(crate) mod describe;
pub(crate) mod echo;
pub(crate) mod field;
pub(crate) mod labels;
pub(crate) mod parse;
mod parse_item;

use crate::model::rule::{DayMatch, Dialect};

use field::FieldExpr;

/// A cron expression, read. `H` is already a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expr {
    /// The dialect it was read in.
    pub(crate) dialect: Dialect,
    /// Zone of a `CRON_TZ=` or `TZ=` prefix.
    pub(crate) zone_prefix: Option<String>,
    /// `None` when the expression has no such field: it fires at second 0.
    pub(crate) second: Option<FieldExpr>,
    pub(crate) minute: FieldExpr,
    pub(crate) hour: FieldExpr,
    pub(crate) day_of_month: FieldExpr,
    pub(crate) month: FieldExpr,
    pub(crate) day_of_week: FieldExpr,
    /// `None` when the expression has no such field: every year.
    pub(crate) year: Option<FieldExpr>,
}

/// How the two day fields combine in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DayRule {
    /// A day must be in both (one of them is often "every day").
    Both,
    /// A day must be in one of them.
    Either,
    /// Only the day of the month counts.
    MonthDayOnly,
    /// Only the day of the week counts.
    WeekdayOnly,
}

impl Expr {
    /// Whether the rule follows real time through clock changes: second, minute or hour starts with
    /// `*`.
    pub(crate) fn is_wildcard(&self) -> bool {
        self.second.as_ref().is_some_and(|f| f.starts_with_star)
            || self.minute.starts_with_star
            || self.hour.starts_with_star
    }

    /// Whether both day fields restrict, so that the way they combine matters.
    pub(crate) const fn restricts_both_day_fields(&self) -> bool {
        !self.day_of_month.is_bare && !self.day_of_week.is_bare
    }

    /// How the day fields combine, given an explicit wish.
    pub(crate) fn day_rule(&self, wish: Option<DayMatch>) -> DayRule {
        let star = self.day_of_month.starts_with_star || self.day_of_week.starts_with_star;
        match wish {
            Some(DayMatch::And) => DayRule::Both,
            None if star || !self.restricts_both_day_fields() => DayRule::Both,
            // A bare star restricts nothing, and "every day or Monday" is not what anybody means.
            Some(DayMatch::Or) if self.day_of_month.is_bare => DayRule::WeekdayOnly,
            Some(DayMatch::Or) if self.day_of_week.is_bare => DayRule::MonthDayOnly,
            Some(DayMatch::Or) | None => DayRule::Either,
        }
    }
}
