//! The two kinds of rule that name wall-clock labels, behind one face.
//!
//! Purpose: `fires` adds clock changes to cron expressions and recurrence rules alike.
//! Callers: `fires`, `query`. Invariant: labels come in order, none lies on an excluded day.

use super::cron::labels::Labels;
use super::rrule::Rrule;

/// A set of labels, borrowed for the length of a call.
#[derive(Clone, Copy)]
pub(crate) enum LabelSet<'a> {
    /// A cron expression.
    Cron(&'a Labels),
    /// An RFC 5545 recurrence.
    Rrule(&'a Rrule),
}

impl LabelSet<'_> {
    /// The first label at or after `from`.
    pub(crate) fn next(self, from: i64, excluded: &[i64]) -> Option<i64> {
        match self {
            Self::Cron(labels) => labels.next(from, excluded),
            Self::Rrule(rule) => rule.next(from, excluded),
        }
    }

    /// The last label at or before `from`.
    pub(crate) fn prev(self, from: i64, excluded: &[i64]) -> Option<i64> {
        match self {
            Self::Cron(labels) => labels.prev(from, excluded),
            Self::Rrule(rule) => rule.prev(from, excluded),
        }
    }

    /// Whether a label is in the set.
    pub(crate) fn matches(self, label: i64, excluded: &[i64]) -> bool {
        self.next(label, excluded) == Some(label)
    }

    /// How many labels lie in `from..to`. A recurrence is walked: callers bound it.
    pub(crate) fn count(self, from: i64, to: i64, excluded: &[i64]) -> u64 {
        match self {
            Self::Cron(labels) => labels.count(from, to, excluded),
            Self::Rrule(rule) => {
                let mut n = 0;
                let mut at = rule.next(from, excluded);
                while let Some(label) = at.filter(|l| *l < to) {
                    n += 1;
                    at = rule.next(label + 1, excluded);
                }
                n
            }
        }
    }

    /// Whether it has labels in every hour of a day, so that a jump of the clock cannot break its
    /// rhythm.
    pub(crate) const fn has_every_hour(self) -> bool {
        match self {
            Self::Cron(labels) => labels.has_every_hour(),
            Self::Rrule(_) => false,
        }
    }
}
