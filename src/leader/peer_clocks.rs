//! The cluster's clocks as evidence about this node's.
//!
//! Purpose: turn measurements of the other voters' wall clocks into a verdict. Callers: `node` and the simulation give
//! it to [`StampClock`](crate::leader::clock::StampClock).
//! Invariants: a verdict needs a majority of the cluster's clocks, this node's among those that agree; a measurement
//! older than [`FRESH`] says nothing; nothing here blocks.

use std::sync::Arc;

use crate::leader::clock::{PeerClocks, PeerVerdict};
use crate::raft::{Consensus, PeerClock};
use crate::time::{Clock, Millis, Timestamp};

/// Age at which a measurement no longer counts. They are taken once a second.
const FRESH: Millis = Millis::secs(5);

/// See the module.
pub struct MeasuredClocks {
    consensus: Arc<dyn Consensus>,
    clock: Arc<dyn Clock>,
    bound: Millis,
}

impl MeasuredClocks {
    /// Judges by clocks further than `bound` from this node's (`max_clock_skew`).
    #[must_use]
    pub fn new(consensus: Arc<dyn Consensus>, clock: Arc<dyn Clock>, bound: Millis) -> Self {
        Self {
            consensus,
            clock,
            bound,
        }
    }
}

impl PeerClocks for MeasuredClocks {
    fn judge(&self, wall: Timestamp) -> PeerVerdict {
        let status = self.consensus.status();
        let others = status
            .members
            .voters
            .keys()
            .filter(|id| **id != status.id)
            .copied()
            .collect::<Vec<_>>();
        let measured: Vec<PeerClock> = self
            .consensus
            .peer_clocks()
            .into_iter()
            .filter(|clock| others.contains(&clock.node))
            .collect();
        verdict(
            others.len(),
            &measured,
            wall,
            self.clock.monotonic(),
            self.bound,
        )
    }
}

/// What `measured` of `others` voters says about a clock that shows `wall` at monotonic `now`.
fn verdict(
    others: usize,
    measured: &[PeerClock],
    wall: Timestamp,
    now: Millis,
    bound: Millis,
) -> PeerVerdict {
    if others == 0 {
        return PeerVerdict::Alone;
    }
    let majority = others.div_ceil(2) + 1;
    let (mut within, mut outside) = (1, 0);
    for clock in measured.iter().filter(|c| c.age(now) <= FRESH) {
        let off = clock.ahead_ms(wall, now).unsigned_abs();
        if off <= bound.0.saturating_add(clock.uncertainty.0) {
            within += 1;
        } else {
            outside += 1;
        }
    }
    if within >= majority {
        PeerVerdict::Agree
    } else if outside >= majority {
        PeerVerdict::Disagree
    } else {
        PeerVerdict::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Millis = Millis(100_000);

    /// Measurements of this moment: (how far ahead, age).
    fn measured(clocks: &[(i64, u64)]) -> Vec<PeerClock> {
        let one = |(node, (ahead, age)): (u64, &(i64, u64))| PeerClock {
            node,
            wall: Timestamp::from_millis(
                1_800_000_000_000 + ahead - i64::try_from(*age).expect("small"),
            ),
            at: Millis(NOW.0 - age),
            uncertainty: Millis(2),
        };
        (2..).zip(clocks).map(one).collect()
    }

    fn judge(others: usize, clocks: &[(i64, u64)]) -> PeerVerdict {
        let wall = Timestamp::from_millis(1_800_000_000_000);
        verdict(others, &measured(clocks), wall, NOW, Millis(500))
    }

    /// Other voters, what was measured of them, the verdict.
    type Case = (usize, &'static [(i64, u64)], PeerVerdict);

    #[test]
    fn a_majority_of_the_clocks_decides() {
        use PeerVerdict::{Agree, Alone, Disagree, Unknown};
        let cases: [Case; 12] = [
            (0, &[], Alone),
            (2, &[], Unknown),
            (2, &[(0, 0)], Agree),
            (2, &[(9_000, 0)], Unknown),
            (2, &[(9_000, 0), (-9_000, 0)], Disagree),
            (2, &[(502, 0), (9_000, 0)], Agree),
            (2, &[(503, 0), (9_000, 0)], Disagree),
            (1, &[(100, 4_000)], Agree),
            (1, &[(9_000, 0)], Unknown),
            (4, &[(0, 0), (9_000, 0), (9_000, 0)], Unknown),
            (4, &[(0, 0), (0, 0), (9_000, 0), (9_000, 0)], Agree),
            (4, &[(0, 0), (9_000, 0), (9_000, 0), (9_000, 0)], Disagree),
        ];
        for (others, clocks, expected) in cases {
            assert_eq!(judge(others, clocks), expected, "{others} {clocks:?}");
        }
    }

    #[test]
    fn old_measurements_say_nothing() {
        assert_eq!(judge(2, &[(0, 5_000)]), PeerVerdict::Agree);
        assert_eq!(judge(2, &[(0, 5_001)]), PeerVerdict::Unknown);
        let stale = [(9_000, 5_001), (9_000, 5_001)];
        assert_eq!(judge(2, &stale), PeerVerdict::Unknown);
    }
}
