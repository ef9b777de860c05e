//! One time zone as a table of spans with a constant offset.
//!
//! Purpose: map instants to wall-clock labels and back in tens of nanoseconds. The table is
//! expanded once from TZif bytes, the recurring rule of the future included, up to the end of the
//! year 2199.
//! Callers: `zone_data` builds it; `fires`, `instant`, `repeat`, `compiled` read it.
//! Invariants:
//! 1. Spans are in order, the first begins before 1970, neighbours have different offsets.
//! 2. `seen_until` grows from span to span: it is the highest label that the clock reached before
//!    the span.
//! 3. `repeats_from` is the lowest label that a later span shows again.

use super::civil::{DAY, END_LABEL};

/// Spans of one zone at most; a hostile table is refused, the busiest real zone has under 500.
const SPANS_MAX: usize = 5_000;
/// First instant of the table: a month before the first label, so that 1970 has a past.
const TABLE_FROM: i64 = -31 * DAY;
/// End of the table: a month after the last label.
const TABLE_TO: i64 = END_LABEL + 31 * DAY;

/// A stretch of time with one offset. Seconds throughout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// First instant; `i64::MIN / 4` in the first span.
    pub(crate) start: i64,
    /// First instant of the next span; `i64::MAX / 4` in the last.
    pub(crate) end: i64,
    /// Local minus UTC.
    pub(crate) offset: i64,
    /// Offset of the span before (its own in the first).
    pub(crate) offset_before: i64,
    /// Highest label that an earlier span reached, exclusive.
    pub(crate) seen_until: i64,
    /// Lowest label that a later span shows.
    pub(crate) repeats_from: i64,
}

impl Span {
    /// Label at the start.
    pub(crate) const fn first_label(&self) -> i64 {
        self.start.saturating_add(self.offset)
    }

    /// Label at the end, exclusive.
    pub(crate) const fn end_label(&self) -> i64 {
        self.end.saturating_add(self.offset)
    }
}

/// What a label means in a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// One instant, or the first of several.
    At(i64),
    /// None: the clock jumped over it. Read with the offset before the jump.
    Gap(i64),
}

impl Reading {
    /// The instant under the rule for single local times: lost ones move on by the gap, repeated
    /// ones are the first.
    pub(crate) const fn instant(self) -> i64 {
        match self {
            Self::At(t) | Self::Gap(t) => t,
        }
    }
}

/// Bytes that are no usable zone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Unreadable(pub(crate) String);

/// A zone of a release. Cheap to share, never changes.
#[derive(Debug, PartialEq, Eq)]
pub struct Zone {
    name: String,
    spans: Box<[Span]>,
}

impl Zone {
    /// Expands TZif bytes (RFC 8536).
    pub(crate) fn from_tzif(name: &str, bytes: &[u8]) -> Result<Self, Unreadable> {
        let tz = jiff::tz::TimeZone::tzif(name, bytes).map_err(|e| Unreadable(e.to_string()))?;
        let from =
            jiff::Timestamp::from_second(TABLE_FROM).map_err(|e| Unreadable(e.to_string()))?;
        let first = i64::from(tz.to_offset(from).seconds());
        let mut changes: Vec<(i64, i64)> = Vec::new();
        let mut last = first;
        for change in tz.following(from) {
            let at = change.timestamp().as_second();
            if at >= TABLE_TO {
                break;
            }
            let offset = i64::from(change.offset().seconds());
            // Changes of name only do not matter to a clock.
            if offset == last {
                continue;
            }
            if changes.len() >= SPANS_MAX {
                return Err(Unreadable(format!("more than {SPANS_MAX} clock changes")));
            }
            changes.push((at, offset));
            last = offset;
        }
        Ok(Self::from_changes(name, first, &changes))
    }

    /// From a first offset and (instant, new offset) pairs in order.
    pub(crate) fn from_changes(name: &str, first: i64, changes: &[(i64, i64)]) -> Self {
        let mut spans = Vec::with_capacity(changes.len() + 1);
        let mut span = Span {
            start: i64::MIN / 4,
            end: i64::MAX / 4,
            offset: first,
            offset_before: first,
            seen_until: i64::MIN / 4 + first,
            repeats_from: i64::MAX / 4,
        };
        for &(at, offset) in changes {
            let seen = span.seen_until.max(at.saturating_add(span.offset));
            let before = span.offset;
            span.end = at;
            spans.push(span);
            span = Span {
                start: at,
                end: i64::MAX / 4,
                offset,
                offset_before: before,
                seen_until: seen,
                repeats_from: i64::MAX / 4,
            };
        }
        spans.push(span);
        let mut lowest = i64::MAX / 4;
        for span in spans.iter_mut().rev() {
            span.repeats_from = lowest;
            lowest = lowest.min(span.first_label());
        }
        Self {
            name: name.to_owned(),
            spans: spans.into(),
        }
    }

    /// The name as the release spells it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All spans, in order; at least one.
    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Position of the span that holds an instant.
    pub(crate) fn index_at(&self, t: i64) -> usize {
        self.spans
            .partition_point(|s| s.start <= t)
            .saturating_sub(1)
    }

    /// Local minus UTC at an instant, in seconds.
    pub(crate) fn offset_at(&self, t: i64) -> i64 {
        self.spans.get(self.index_at(t)).map_or(0, |s| s.offset)
    }

    /// What the wall clock shows at an instant.
    pub(crate) fn label_at(&self, t: i64) -> i64 {
        t.saturating_add(self.offset_at(t))
    }

    /// The instant of a label: the first pass of a repeated one, the reading before the jump of a
    /// lost one.
    pub(crate) fn read(&self, label: i64) -> Reading {
        // Offsets stay within 26 hours, so two days around the label hold every candidate.
        let from = self.index_at(label.saturating_sub(2 * DAY));
        let to = self.index_at(label.saturating_add(2 * DAY));
        let near = self.spans.get(from..=to).unwrap_or(&[]);
        if let Some(s) = near
            .iter()
            .find(|s| (s.first_label()..s.end_label()).contains(&label))
        {
            return Reading::At(label - s.offset);
        }
        let lost = |s: &&Span| label >= s.start + s.offset_before && label < s.first_label();
        match near.iter().find(lost) {
            Some(s) => Reading::Gap(label - s.offset_before),
            None => Reading::At(label - near.first().map_or(0, |s| s.offset)),
        }
    }

    /// The stretches of real time, in order, in which the wall clock shows a date.
    pub(crate) fn stretches_of_day(&self, day: i64) -> impl Iterator<Item = (i64, i64)> {
        let (from, to) = (day * DAY, (day + 1) * DAY);
        let low = self.index_at(from - 2 * DAY);
        let high = self.index_at(to + 2 * DAY);
        let near = self.spans.get(low..=high).unwrap_or(&[]).iter();
        near.map(move |s| ((from - s.offset).max(s.start), (to - s.offset).min(s.end)))
            .filter(|(a, b)| a < b)
    }

    /// Whether two zones keep the same time throughout (aliases do).
    pub(crate) fn same_time(&self, other: &Self) -> bool {
        self.spans == other.spans
    }
}

/// Renders an offset as `+02:00`, with seconds only where a zone has them.
pub(crate) fn offset_text(offset: i64) -> String {
    let sign = if offset < 0 { '-' } else { '+' };
    let n = offset.unsigned_abs();
    let (h, m, s) = (n / 3_600, n / 60 % 60, n % 60);
    if s == 0 {
        format!("{sign}{h:02}:{m:02}")
    } else {
        format!("{sign}{h:02}:{m:02}:{s:02}")
    }
}
