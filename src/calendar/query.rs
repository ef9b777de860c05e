//! The questions a compiled rule answers.
//!
//! Purpose: `next`, `prev`, `count`, due times, lost and excluded times, each in bounded time.
//! Callers: leader and API through [`Compiled`].
//! Invariants:
//! 1. `next` is strictly later than asked and `prev` strictly earlier; both skip excluded dates.
//! 2. Ranges are half-open: `from` counts, `to` does not.
//! 3. No call reads a clock; equal questions have equal answers.

use super::civil::{DAY, END_LABEL, Wall, day_of};
use super::compiled::{Compiled, Kind, wall_at};
use super::fires::{ClockPolicy, FireReason, Fires, RawFire, RawLost};
use super::label_set::LabelSet;
use super::zone::{Reading, Zone, offset_text};
use crate::model::rule::{DstGap, DstOverlap};
use crate::time::{Millis, Timestamp};

/// Steps at most that a count takes where it has to walk.
const STEPS_MAX: u64 = 1_000_000;
/// Entries at most in an answer about lost or excluded times.
const RECORDS_MAX: usize = 1_000;

/// RFC 5545: a removed local time is read with the offset before the gap, a repeated one is the
/// first pass.
const RFC_5545: ClockPolicy = ClockPolicy {
    wildcard: false,
    gap: DstGap::Shift,
    overlap: DstOverlap::First,
};

/// One occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fire {
    /// The instant, which is part of the occurrence's name.
    pub nominal: Timestamp,
    /// The wall-clock time that the rule names; differs from the local time of `nominal` after a
    /// gap.
    pub wall: Wall,
    /// Why it is there.
    pub reason: FireReason,
}

/// How many occurrences a range has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// The number, at most the cap.
    pub n: u64,
    /// There are more than `n`.
    pub at_least: bool,
}

/// Wall-clock times that one clock change removed and that no occurrence of their own stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The instant of the clock change.
    pub at: Timestamp,
    /// First lost time, as `2026-03-08T02:30:00`.
    pub local: String,
    /// Last lost time; equal to `local` when there is one.
    pub local_last: String,
    /// How many.
    pub count: u64,
    /// The zone.
    pub zone: String,
}

/// Occurrences that an excluded date took away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excluded {
    /// First nominal time.
    pub from: Timestamp,
    /// Last nominal time.
    pub to: Timestamp,
    /// How many.
    pub count: u64,
    /// There are more than `count`.
    pub at_least: bool,
    /// The excluded local date, as `2026-12-24`.
    pub date: String,
}

impl Compiled {
    /// The first occurrence strictly later than `after`.
    ///
    /// For `after_end` this is the occurrence that follows an execution which ended at `after`.
    #[must_use]
    pub fn next(&self, after: Timestamp) -> Option<Fire> {
        self.next_in(after, &self.excluded)
    }

    /// The last occurrence strictly earlier than `before`; none for `after_end`.
    #[must_use]
    pub fn prev(&self, before: Timestamp) -> Option<Fire> {
        let before = before.millis().min(self.until.saturating_add(1));
        let fire = match &self.kind {
            Kind::At(at) => self
                .plain(*at)
                .filter(|_| *at < before && !self.excludes(*at))?,
            Kind::Cron(_) | Kind::Rrule(_) => {
                fire(self.fires(&self.excluded)?.prev(ceil_seconds(before))?)
            }
            Kind::Every(_) | Kind::Repeat(_) => {
                let mut bound = before;
                loop {
                    let found = self.grid_prev(bound)?;
                    let at = found.nominal.millis();
                    if !self.excludes(at) {
                        break found;
                    }
                    bound = self.stretch(at).0.min(at);
                }
            }
            Kind::AfterEnd(_) => return None,
        };
        (fire.nominal.millis() >= self.from).then_some(fire)
    }

    /// As [`Compiled::next`], but stops at excluded dates too and says so: what the ledger needs.
    #[must_use]
    pub fn next_with_excluded(&self, after: Timestamp) -> Option<(Fire, bool)> {
        let fire = self.next_in(after, &[])?;
        Some((
            fire,
            self.excluded.binary_search(&day_of(fire.wall.0)).is_ok(),
        ))
    }

    /// How many occurrences lie in `from..to`, up to `cap`. Exact below it, except that recurrence
    /// rules and ISO 8601 repeats in days or months are walked for at most a million steps. Always
    /// zero for `after_end`.
    #[must_use]
    pub fn count(&self, from: Timestamp, to: Timestamp, cap: u64) -> Count {
        let n = self.count_in(from, to, cap, &self.excluded);
        Count {
            n: n.min(cap),
            at_least: n > cap,
        }
    }

    /// When an occurrence may become ready: its nominal time plus its share of the jitter window.
    ///
    /// The share is a stable hash of identity and nominal time, spread evenly over the window,
    /// which ends before the next nominal time.
    #[must_use]
    pub fn due_at(&self, nominal: Timestamp) -> Timestamp {
        if self.jitter == 0 {
            return nominal;
        }
        let at = nominal.millis();
        let room = self
            .next(nominal)
            .map_or(i64::MAX, |f| f.nominal.millis() - at);
        let window = self.jitter.min(room).max(1).unsigned_abs();
        let share = self.seed.for_instant(at) % window;
        Timestamp::from_millis(at.saturating_add_unsigned(share))
    }

    /// The wall-clock times that clock changes in `from..to` removed without an occurrence of their
    /// own, one entry per change, at most 1,000. Only cron rules lose times.
    #[must_use]
    pub fn lost_between(&self, from: Timestamp, to: Timestamp) -> Vec<Lost> {
        let Some(fires) = self.fires(&self.excluded) else {
            return Vec::new();
        };
        let from = from.millis().max(self.from);
        let to = to.millis().min(self.until.saturating_add(1));
        let lost = fires.lost(ceil_seconds(from), ceil_seconds(to), RECORDS_MAX);
        let entry = |l: RawLost| Lost {
            at: seconds(l.at),
            local: Wall(l.first).to_string(),
            local_last: Wall(l.last).to_string(),
            count: l.count,
            zone: self.zone.name().to_owned(),
        };
        lost.into_iter().map(entry).collect()
    }

    /// The occurrences in `from..to` that excluded dates took away, one entry per date, at most
    /// 1,000 entries and a million steps (`at_least` in the last one then).
    #[must_use]
    pub fn excluded_between(&self, from: Timestamp, to: Timestamp) -> Vec<Excluded> {
        let mut out: Vec<Excluded> = Vec::new();
        // Asked at every firing, mostly of rules that exclude nothing.
        if self.excluded.is_empty() {
            return out;
        }
        let mut on = i64::MIN;
        let mut at = from.minus(Millis(1));
        let mut is_whole = false;
        for _ in 0..STEPS_MAX {
            let next = self.next_with_excluded(at);
            let Some((fire, excluded)) = next.filter(|(fire, _)| fire.nominal < to) else {
                is_whole = true;
                break;
            };
            at = fire.nominal;
            let day = day_of(fire.wall.0);
            let full = out.len() >= RECORDS_MAX;
            match out.last_mut() {
                _ if !excluded => at = at.max(self.before_excluded_day(day)),
                Some(record) if on == day => {
                    record.to = at;
                    record.count += 1;
                }
                _ if full => break,
                _ => {
                    on = day;
                    out.push(Excluded {
                        from: at,
                        to: at,
                        count: 1,
                        at_least: false,
                        date: Wall(day * DAY).to_string().chars().take(10).collect(),
                    });
                }
            }
        }
        if let Some(last) = out.last_mut() {
            last.at_least = !is_whole;
        }
        out
    }

    /// An instant safely before the next excluded date after `day`.
    fn before_excluded_day(&self, day: i64) -> Timestamp {
        let next = self.excluded.partition_point(|d| *d <= day);
        let Some(next) = self.excluded.get(next) else {
            return Timestamp::MAX;
        };
        // A clock change may put the date's first instant up to three hours before where its
        // midnight is read.
        seconds(self.zone.read(next * DAY).instant() - 3 * 3_600 - 1)
    }

    /// An instant on the rule's wall clock, as `2026-03-29T03:00:00+02:00[Europe/Berlin]`.
    #[must_use]
    pub fn local(&self, at: Timestamp) -> String {
        let ms = at.millis();
        let offset = self.zone.offset_at(ms.div_euclid(1_000));
        let wall = wall_at(&self.zone, ms);
        let fraction = match ms.rem_euclid(1_000) {
            0 => String::new(),
            n => format!(".{n:03}"),
        };
        format!(
            "{wall}{fraction}{}[{}]",
            offset_text(offset),
            self.zone.name()
        )
    }

    pub(super) fn next_in(&self, after: Timestamp, excluded: &[i64]) -> Option<Fire> {
        let from = after.millis().saturating_add(1).max(self.from);
        let found = match &self.kind {
            Kind::At(at) => self.plain(*at).filter(|_| *at >= from)?,
            Kind::Cron(_) | Kind::Rrule(_) => fire(self.fires(excluded)?.next(ceil_seconds(from))?),
            Kind::Every(_) | Kind::Repeat(_) => self.grid_next(from)?,
            Kind::AfterEnd(delay) => {
                self.plain(after.millis().saturating_add(*delay).max(self.from).max(0))?
            }
        };
        let at = found.nominal.millis();
        if at > self.until {
            return None;
        }
        // Cron rules leave out excluded dates while they search; the others step over them here.
        if matches!(self.kind, Kind::Cron(_) | Kind::Rrule(_))
            || !excludes(&self.zone, excluded, at)
        {
            return Some(found);
        }
        self.next_past(at, excluded)
    }

    /// The first occurrence after the excluded dates that begin at `at`.
    fn next_past(&self, mut at: i64, excluded: &[i64]) -> Option<Fire> {
        loop {
            let resume = self.stretch(at).1;
            let found = match &self.kind {
                Kind::Every(_) | Kind::Repeat(_) => self.grid_next(resume)?,
                Kind::AfterEnd(_) => self.plain(resume)?,
                Kind::At(_) | Kind::Cron(_) | Kind::Rrule(_) => return None,
            };
            at = found.nominal.millis();
            if at > self.until {
                return None;
            }
            if !excludes(&self.zone, excluded, at) {
                return Some(found);
            }
        }
    }

    pub(super) fn fires<'a>(&'a self, excluded: &'a [i64]) -> Option<Fires<'a>> {
        let (labels, policy) = match &self.kind {
            Kind::Cron(rule) => (LabelSet::Cron(&rule.labels), rule.policy),
            Kind::Rrule(rule) => (LabelSet::Rrule(rule), RFC_5545),
            _ => return None,
        };
        Some(Fires {
            labels,
            zone: &self.zone,
            policy,
            excluded,
        })
    }

    /// The first occurrence of an interval or repeat at or after `from`.
    fn grid_next(&self, from: i64) -> Option<Fire> {
        match &self.kind {
            Kind::Every(grid) => self.plain(grid.next(from)?),
            Kind::Repeat(repeat) => repeat.next(from).map(|f| self.read(f)),
            _ => None,
        }
    }

    fn grid_prev(&self, before: i64) -> Option<Fire> {
        match &self.kind {
            Kind::Every(grid) => self.plain(grid.prev(before.min(HORIZON_END))?),
            Kind::Repeat(repeat) => repeat.prev(before).map(|f| self.read(f)),
            _ => None,
        }
    }

    /// An occurrence at an instant that no wall clock had to be asked for; none beyond the horizon.
    fn plain(&self, at: i64) -> Option<Fire> {
        (0..HORIZON_END).contains(&at).then(|| Fire {
            nominal: Timestamp::from_millis(at),
            wall: wall_at(&self.zone, at),
            reason: FireReason::Regular,
        })
    }

    fn read(&self, (at, reading): (i64, Reading)) -> Fire {
        let reason = match reading {
            Reading::At(_) => FireReason::Regular,
            Reading::Gap(_) => FireReason::Shifted,
        };
        Fire {
            nominal: Timestamp::from_millis(at),
            wall: wall_at(&self.zone, at),
            reason,
        }
    }

    fn excludes(&self, at: i64) -> bool {
        excludes(&self.zone, &self.excluded, at)
    }

    /// The stretch of real time around an instant in which the wall clock shows one date, in
    /// milliseconds.
    fn stretch(&self, at: i64) -> (i64, i64) {
        let t = at.div_euclid(1_000);
        let day = day_of(self.zone.label_at(t));
        let mut stretches = self.zone.stretches_of_day(day);
        let around = stretches.find(|(a, b)| (*a..*b).contains(&t));
        around.map_or((at, at + 1), |(a, b)| (a * 1_000, b * 1_000))
    }

    fn count_in(&self, from: Timestamp, to: Timestamp, cap: u64, excluded: &[i64]) -> u64 {
        let low = from.millis().max(self.from);
        let high = to
            .millis()
            .min(self.until.saturating_add(1))
            .min(HORIZON_END);
        match &self.kind {
            _ if low >= high => 0,
            Kind::AfterEnd(_) => 0,
            Kind::Cron(_) => self
                .fires(excluded)
                .map_or(0, |f| f.count(ceil_seconds(low), ceil_seconds(high))),
            Kind::Every(grid) => {
                let days = excluded.iter().flat_map(|d| self.zone.stretches_of_day(*d));
                let gone =
                    days.map(|(a, b)| grid.count((a * 1_000).max(low), (b * 1_000).min(high)));
                grid.count(low, high).saturating_sub(gone.sum())
            }
            Kind::At(_) | Kind::Repeat(_) | Kind::Rrule(_) => {
                let max = cap.saturating_add(1).min(STEPS_MAX);
                let mut n = 0;
                let mut at = Timestamp::from_millis(low - 1);
                while n < max
                    && let Some(f) = self
                        .next_in(at, excluded)
                        .filter(|f| f.nominal.millis() < high)
                {
                    n += 1;
                    at = f.nominal;
                }
                n
            }
        }
    }
}

/// End of the last supported year in UTC, in milliseconds, exclusive.
const HORIZON_END: i64 = END_LABEL * 1_000;

fn excludes(zone: &Zone, excluded: &[i64], at: i64) -> bool {
    !excluded.is_empty() && excluded.binary_search(&day_of(wall_at(zone, at).0)).is_ok()
}

fn fire(raw: RawFire) -> Fire {
    Fire {
        nominal: seconds(raw.at),
        wall: Wall(raw.label),
        reason: raw.reason,
    }
}

const fn seconds(t: i64) -> Timestamp {
    Timestamp::from_millis(t.saturating_mul(1_000))
}

/// The first whole second at or after an instant in milliseconds.
const fn ceil_seconds(ms: i64) -> i64 {
    let (whole, rest) = (ms.div_euclid(1_000), ms.rem_euclid(1_000));
    if rest == 0 { whole } else { whole + 1 }
}
