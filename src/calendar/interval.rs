//! Occurrences at a fixed distance of elapsed time from an anchor.
//!
//! Callers: `compiled` for `every`, and for ISO 8601 repeats whose period has a fixed length.
//! Invariants: the phase never moves; all arithmetic is closed-form, no matter how far away the
//! anchor is. Milliseconds throughout.

/// A grid of instants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interval {
    /// The first occurrence.
    pub(crate) anchor: i64,
    /// Distance, at least 1.
    pub(crate) every: i64,
    /// How many occurrences there are; `None` is no end.
    pub(crate) times: Option<u64>,
}

impl Interval {
    /// The first occurrence at or after `from`.
    pub(crate) fn next(&self, from: i64) -> Option<i64> {
        self.nth(self.index_from(from))
    }

    /// The last occurrence before `before`.
    pub(crate) fn prev(&self, before: i64) -> Option<i64> {
        let n = self.index_from(before).checked_sub(1)?;
        let last = self.times.map(|t| t.saturating_sub(1));
        self.nth(last.map_or(n, |last| n.min(last)))
    }

    /// How many occurrences lie in `from..to`.
    pub(crate) fn count(&self, from: i64, to: i64) -> u64 {
        let cut = |n: u64| self.times.map_or(n, |t| n.min(t));
        cut(self.index_from(to)).saturating_sub(cut(self.index_from(from)))
    }

    /// Position of the first occurrence at or after `t`, if there were no last one.
    fn index_from(&self, t: i64) -> u64 {
        if t <= self.anchor {
            return 0;
        }
        t.abs_diff(self.anchor)
            .div_ceil(self.every.unsigned_abs().max(1))
    }

    fn nth(&self, n: u64) -> Option<i64> {
        if self.times.is_some_and(|t| n >= t) {
            return None;
        }
        let distance = i64::try_from(n).ok()?.checked_mul(self.every)?;
        self.anchor.checked_add(distance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GRID: Interval = Interval {
        anchor: 1_000,
        every: 250,
        times: Some(4),
    };

    #[test]
    fn the_grid_begins_at_its_anchor_and_ends_at_its_last() {
        let all: Vec<i64> =
            std::iter::successors(GRID.next(i64::MIN), |t| GRID.next(t + 1)).collect();
        assert_eq!(all, [1_000, 1_250, 1_500, 1_750]);
        assert_eq!(GRID.prev(1_000), None);
        assert_eq!(GRID.prev(i64::MAX), Some(1_750));
        assert_eq!(GRID.count(i64::MIN, i64::MAX), 4);
    }

    proptest! {
        #[test]
        fn next_prev_and_count_agree(
            anchor in -5_000i64..5_000,
            every in 1i64..900,
            times in proptest::option::of(0u64..9),
            from in -9_000i64..9_000,
            length in 0i64..9_000,
        ) {
            let grid = Interval { anchor, every, times };
            let walked = std::iter::successors(grid.next(from), |t| grid.next(t + 1))
                .take_while(|t| *t < from + length);
            prop_assert_eq!(grid.count(from, from + length), walked.count() as u64);
            if let Some(t) = grid.next(from) {
                prop_assert!(t >= from && (t - anchor) % every == 0);
                prop_assert_eq!(grid.prev(t + 1), Some(t));
                prop_assert!(grid.prev(t).is_none_or(|p| p < from));
            }
        }
    }
}
