//! Clocks of the nodes: virtual time with an offset, a drift and jumps.
//!
//! Purpose: let wall clocks disagree while timers stay exact, as on real machines.
//! Callers: [`super::world`]; nodes through [`Clock`].

use std::sync::Arc;

use parking_lot::Mutex;
use punctual::time::{Clock, Millis, Timestamp};

/// Wall time at virtual zero: 2026-03-01T00:00:00Z, before a clock change of most zones.
pub const WALL_START_MS: i64 = 1_772_323_200_000;

#[derive(Debug, Default)]
struct Skew {
    offset_ms: i64,
    drift_ppm: i64,
}

/// One node's clock; survives its crashes.
#[derive(Clone)]
pub struct SimClock {
    start: tokio::time::Instant,
    skew: Arc<Mutex<Skew>>,
}

impl SimClock {
    /// A clock that agrees with virtual time, counted from `start`.
    #[must_use]
    pub fn new(start: tokio::time::Instant) -> Self {
        Self {
            start,
            skew: Arc::default(),
        }
    }

    /// Moves the wall clock by `by_ms`.
    pub fn jump(&self, by_ms: i64) {
        let mut skew = self.skew.lock();
        skew.offset_ms = skew.offset_ms.saturating_add(by_ms);
    }

    /// Makes the wall clock run faster (slower if negative) by this many millionths from the start on.
    pub fn drift(&self, ppm: i64) {
        self.skew.lock().drift_ppm = ppm;
    }

    /// Back to virtual time.
    pub fn heal(&self) {
        *self.skew.lock() = Skew::default();
    }

    fn elapsed_ms(&self) -> i64 {
        i64::try_from(self.start.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// The true time, which no node sees.
    #[must_use]
    pub fn truth(&self) -> Timestamp {
        Timestamp::from_millis(WALL_START_MS.saturating_add(self.elapsed_ms()))
    }
}

impl Clock for SimClock {
    fn wall(&self) -> Timestamp {
        let elapsed = self.elapsed_ms();
        let skew = self.skew.lock();
        let drifted = elapsed.saturating_mul(skew.drift_ppm) / 1_000_000;
        Timestamp::from_millis(
            WALL_START_MS
                .saturating_add(elapsed)
                .saturating_add(drifted)
                .saturating_add(skew.offset_ms),
        )
    }

    fn monotonic(&self) -> Millis {
        Millis(u64::try_from(self.elapsed_ms()).unwrap_or(0))
    }
}
