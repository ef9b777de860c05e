//! The fields of an expression and the items in them.
//!
//! Callers: the siblings in `cron`. Invariant: an [`Item`] is already checked against its field;
//! expanding it cannot fail.

use crate::calendar::civil::{FIRST_YEAR, LAST_YEAR};

/// Which field of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    Second,
    Minute,
    Hour,
    DayOfMonth,
    Month,
    DayOfWeek,
    Year,
}

/// Names of months, from January.
pub(crate) const MONTHS: [&str; 12] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];
/// Names of weekdays, from Sunday.
pub(crate) const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

impl Field {
    /// For messages, and the name under which `H` is hashed: it must never change.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::DayOfMonth => "day of month",
            Self::Month => "month",
            Self::DayOfWeek => "day of week",
            Self::Year => "year",
        }
    }

    /// Smallest value.
    pub(crate) const fn min(self) -> u16 {
        match self {
            Self::Second | Self::Minute | Self::Hour | Self::DayOfWeek => 0,
            Self::DayOfMonth | Self::Month => 1,
            Self::Year => FIRST_YEAR,
        }
    }

    /// Largest value of `*`; a weekday may also be written 7.
    pub(crate) const fn max(self) -> u16 {
        match self {
            Self::Second | Self::Minute => 59,
            Self::Hour => 23,
            Self::DayOfMonth => 31,
            Self::Month => 12,
            Self::DayOfWeek => 6,
            Self::Year => LAST_YEAR,
        }
    }

    /// How many values.
    pub(crate) const fn size(self) -> u16 {
        self.max() - self.min() + 1
    }

    /// Names of values, from the smallest; empty where there are none.
    pub(crate) const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Month => &MONTHS,
            Self::DayOfWeek => &WEEKDAYS,
            _ => &[],
        }
    }
}

/// One field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldExpr {
    /// At least one.
    pub(crate) items: Vec<Item>,
    /// The text starts with `*`, or is `?`: the sign of a wildcard and of the AND rule.
    pub(crate) starts_with_star: bool,
    /// The text is exactly `*` or `?`: no restriction at all.
    pub(crate) is_bare: bool,
}

/// One item of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// `*` or `*/step`.
    Star { step: u16 },
    /// `?`: any day.
    Question,
    /// Values from `from` to `to` by `step`. `to` beyond the field's maximum wraps around
    /// (`FRI-MON` is 5 to 8).
    Range { from: u16, to: u16, step: u16 },
    /// `L`, `L-n`: the last day of the month, or `before` days before it.
    LastDay { before: u8 },
    /// `LW`: the last Monday-to-Friday day of the month.
    LastWorkday,
    /// `nW`: the Monday-to-Friday day nearest to this one, within the month.
    NearestWorkday(u8),
    /// `d#n`: the n-th such weekday of the month.
    Nth { weekday: u8, n: u8 },
    /// `dL`: the last such weekday of the month.
    LastOf { weekday: u8 },
}

impl Item {
    /// One value.
    pub(crate) const fn value(v: u16) -> Self {
        Self::Range {
            from: v,
            to: v,
            step: 1,
        }
    }

    /// The plain values of the item, wrapped into the field. Empty for the items that need a month.
    pub(crate) fn values(self, field: Field) -> impl Iterator<Item = u16> {
        let (from, to, step) = match self {
            Self::Star { step } => (field.min(), field.max(), step),
            Self::Question => (field.min(), field.max(), 1),
            Self::Range { from, to, step } => (from, to, step),
            // An empty range.
            _ => (1, 0, 1),
        };
        let (min, size) = (field.min(), field.size());
        (from..=to)
            .step_by(usize::from(step.max(1)))
            .map(move |v| (v - min) % size + min)
    }
}
