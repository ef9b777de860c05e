//! Where wall-clock labels meet a zone: which instants a rule fires at.
//!
//! Purpose: the clock-change rules of the product, in one place. Instants and labels are whole
//! seconds.
//! Callers: `compiled`.
//! Invariants:
//! 1. One fire per instant; `next` is strictly later than asked, `prev` strictly earlier, and they
//!    agree.
//! 2. A wildcard rule fires at each real second whose label matches: in both passes of a repeated
//!    hour, and nothing is caught up.
//! 3. Any other rule passes each label once. The label counts when the wall clock first reaches it;
//!    one that the clock jumps over (by at most three hours) counts as the gap policy says.
//! 4. Every call looks at each span of the zone at most once.

use serde::{Deserialize, Serialize};

use super::civil::DAY;
use super::label_set::LabelSet;
use super::zone::{Span, Zone};
use crate::model::rule::{DstGap, DstOverlap};

/// Jumps beyond this are not caught up: a lost day is not a clock change to make up for.
const CAUGHT_UP_MAX: i64 = 3 * 3_600;
/// No two offsets of a zone differ by more.
const OFFSETS_APART_MAX: i64 = 2 * DAY;

/// Why an occurrence is where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FireReason {
    /// The rule names this time.
    Regular,
    /// The named time does not exist that day; it runs at the end of the gap.
    GapEnd,
    /// The named time does not exist that day; it moved by the length of the gap.
    Shifted,
    /// The named time happens twice; this is the first.
    FirstPass,
    /// The named time happens twice; this is the second.
    SecondPass,
}

impl FireReason {
    /// The word shown by the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Regular => "regular",
            Self::GapEnd => "gap_end",
            Self::Shifted => "shifted",
            Self::FirstPass => "first_pass",
            Self::SecondPass => "second_pass",
        }
    }
}

/// One fire, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawFire {
    pub(crate) at: i64,
    /// The label that the rule names: not what the clock shows after a gap.
    pub(crate) label: i64,
    pub(crate) reason: FireReason,
}

/// Labels that a jump of the clock removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RawLost {
    /// The instant of the jump.
    pub(crate) at: i64,
    pub(crate) first: i64,
    pub(crate) last: i64,
    pub(crate) count: u64,
}

/// How a cron rule goes through clock changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockPolicy {
    pub(crate) wildcard: bool,
    pub(crate) gap: DstGap,
    pub(crate) overlap: DstOverlap,
}

/// A rule in a zone, for the length of a call.
#[derive(Clone, Copy)]
pub(crate) struct Fires<'a> {
    pub(crate) labels: LabelSet<'a>,
    pub(crate) zone: &'a Zone,
    pub(crate) policy: ClockPolicy,
    /// Sorted day counts on which nothing fires.
    pub(crate) excluded: &'a [i64],
}

impl Fires<'_> {
    /// The first fire at or after `from`.
    pub(crate) fn next(&self, from: i64) -> Option<RawFire> {
        let spans = self.zone.spans();
        let mut i = self.zone.index_at(from);
        loop {
            let span = spans.get(i)?;
            let (found, label) = self.first_in(span, from);
            if found.is_some() {
                return found;
            }
            i += 1;
            // Seen two days or more of this span, nothing before `label` can match later: go to
            // where it is.
            if span.end - from.max(span.start) > OFFSETS_APART_MAX {
                i = i.max(self.zone.index_at(label? - OFFSETS_APART_MAX));
            }
        }
    }

    /// The last fire before `before`.
    pub(crate) fn prev(&self, before: i64) -> Option<RawFire> {
        let spans = self.zone.spans();
        let mut i = self.zone.index_at(before.saturating_sub(1));
        loop {
            let span = spans.get(i)?;
            let (found, label) = self.last_in(span, before);
            if found.is_some() {
                return found;
            }
            i = i.checked_sub(1)?;
            if before.min(span.end) - span.start > OFFSETS_APART_MAX {
                i = i.min(self.zone.index_at(label? + OFFSETS_APART_MAX));
            }
        }
    }

    /// How many fires lie in `from..to`.
    pub(crate) fn count(&self, from: i64, to: i64) -> u64 {
        if from >= to {
            return 0;
        }
        let first = self.zone.index_at(from);
        let spans = self.zone.spans().iter().skip(first);
        spans
            .take_while(|s| s.start < to)
            .map(|s| self.count_in(s, from, to))
            .sum()
    }

    /// What the jumps in `from..to` removed and nothing made up for, one entry per jump, at most
    /// `max`.
    pub(crate) fn lost(&self, from: i64, to: i64, max: usize) -> Vec<RawLost> {
        // A rule for every hour keeps its rhythm in real time: it loses nothing by a jump.
        if from >= to || self.policy.wildcard && self.labels.has_every_hour() {
            return Vec::new();
        }
        let first = self.zone.index_at(from);
        let spans = self.zone.spans().iter().skip(first);
        spans
            .take_while(|s| s.start < to)
            .filter(|s| s.start >= from)
            .filter_map(|s| self.lost_at(s))
            .take(max)
            .collect()
    }

    /// The first fire of a span at or after `from`, and the first label at or after that point.
    fn first_in(&self, span: &Span, from: i64) -> (Option<RawFire>, Option<i64>) {
        let (low, high) = self.window(span);
        let from = from.max(span.start);
        let label = self.labels.next(low.max(from + span.offset), self.excluded);
        let regular = label.filter(|l| *l < high).map(|l| regular(span, l));
        let made_up = self.made_up_for(span, from);
        (earlier(regular, made_up), label)
    }

    fn last_in(&self, span: &Span, before: i64) -> (Option<RawFire>, Option<i64>) {
        let (low, high) = self.window(span);
        let before = before.min(span.end);
        let label = self
            .labels
            .prev(high.min(before + span.offset) - 1, self.excluded);
        let regular = label.filter(|l| *l >= low).map(|l| regular(span, l));
        let made_up = self.last_made_up_for(span, before);
        let found = match (regular, made_up) {
            (Some(a), Some(b)) => Some(if b.at > a.at { b } else { a }),
            (a, b) => a.or(b),
        };
        (found, label)
    }

    /// The labels of a span that fire in it.
    fn window(&self, span: &Span) -> (i64, i64) {
        let (mut low, mut high) = (span.first_label(), span.end_label());
        if !self.policy.wildcard {
            match self.policy.overlap {
                DstOverlap::First => low = low.max(span.seen_until),
                DstOverlap::Second => high = high.min(span.repeats_from),
                DstOverlap::Both => {}
            }
        }
        (low, high)
    }

    /// The labels that the jump into a span removed and the policy makes up for; empty if there are
    /// none.
    fn made_up_labels(&self, span: &Span) -> (i64, i64) {
        let (low, high) = (span.seen_until, span.first_label());
        let caught_up =
            !self.policy.wildcard && self.policy.gap != DstGap::Skip && high - low <= CAUGHT_UP_MAX;
        if caught_up { (low, high) } else { (high, high) }
    }

    /// The first fire at or after `from` that stands for a removed label.
    fn made_up_for(&self, span: &Span, from: i64) -> Option<RawFire> {
        let (low, high) = self.made_up_labels(span);
        if low >= high {
            return None;
        }
        if self.policy.gap == DstGap::Shift {
            let low = low.max(from + span.offset_before);
            let label = self.labels.next(low, self.excluded).filter(|l| *l < high)?;
            return Some(shifted(span, label)).filter(|f| f.at < span.end);
        }
        if from > span.start {
            return None;
        }
        let label = self.labels.next(low, self.excluded).filter(|l| *l < high)?;
        Some(gap_end(span, label))
    }

    fn last_made_up_for(&self, span: &Span, before: i64) -> Option<RawFire> {
        let (low, high) = self.made_up_labels(span);
        if low >= high || before <= span.start {
            return None;
        }
        if self.policy.gap == DstGap::Shift {
            let last = high.min(before + span.offset_before) - 1;
            let label = self
                .labels
                .prev(last, self.excluded)
                .filter(|l| *l >= low)?;
            return Some(shifted(span, label));
        }
        let label = self.labels.next(low, self.excluded).filter(|l| *l < high)?;
        Some(gap_end(span, label))
    }

    fn count_in(&self, span: &Span, from: i64, to: i64) -> u64 {
        let (low, high) = self.window(span);
        let (from, to) = (from.max(span.start), to.min(span.end));
        let (low, high) = (low.max(from + span.offset), high.min(to + span.offset));
        let mut n = self.labels.count(low, high, self.excluded);
        // Made-up fires are few: at most the labels of three hours. Those on top of a regular one
        // are not counted.
        let mut at = from;
        while let Some(f) = self.made_up_for(span, at).filter(|f| f.at < to) {
            let label = f.at + span.offset;
            if !(low..high).contains(&label) || !self.labels.matches(label, self.excluded) {
                n += 1;
            }
            at = f.at + 1;
        }
        n
    }

    fn lost_at(&self, span: &Span) -> Option<RawLost> {
        let (mut low, high) = (span.seen_until, span.first_label());
        let stands_in = self.made_up_for(span, span.start);
        match stands_in {
            Some(_) if self.policy.gap == DstGap::Shift => return self.lost_by_shift(span),
            // The first one runs at the end of the gap, unless another occurrence is there already.
            Some(f) if !self.labels.matches(high, self.excluded) => low = f.label + 1,
            _ => {}
        }
        let first = self.labels.next(low, self.excluded).filter(|l| *l < high)?;
        let last = self.labels.prev(high - 1, self.excluded)?;
        Some(RawLost {
            at: span.start,
            first,
            last,
            count: self.labels.count(first, high, self.excluded),
        })
    }

    /// Each removed label has its own instant, except where another occurrence is there already.
    fn lost_by_shift(&self, span: &Span) -> Option<RawLost> {
        let high = span.first_label();
        let moved = span.offset - span.offset_before;
        let mut lost: Option<RawLost> = None;
        let mut label = self.labels.next(span.seen_until, self.excluded);
        while let Some(l) = label.filter(|l| *l < high) {
            if self.labels.matches(l + moved, self.excluded) {
                let so_far = lost.get_or_insert(RawLost {
                    at: span.start,
                    first: l,
                    last: l,
                    count: 0,
                });
                so_far.last = l;
                so_far.count += 1;
            }
            label = self.labels.next(l + 1, self.excluded);
        }
        lost
    }
}

fn regular(span: &Span, label: i64) -> RawFire {
    let reason = if label < span.seen_until {
        FireReason::SecondPass
    } else if label >= span.repeats_from {
        FireReason::FirstPass
    } else {
        FireReason::Regular
    };
    RawFire {
        at: label - span.offset,
        label,
        reason,
    }
}

const fn gap_end(span: &Span, label: i64) -> RawFire {
    RawFire {
        at: span.start,
        label,
        reason: FireReason::GapEnd,
    }
}

const fn shifted(span: &Span, label: i64) -> RawFire {
    RawFire {
        at: label - span.offset_before,
        label,
        reason: FireReason::Shifted,
    }
}

/// The earlier of two; at one instant the regular one.
const fn earlier(regular: Option<RawFire>, made_up: Option<RawFire>) -> Option<RawFire> {
    match (regular, made_up) {
        (Some(a), Some(b)) if b.at < a.at => Some(b),
        (None, b) => b,
        (a, _) => a,
    }
}
