//! The manual clock of `serve --dev --clock manual`.
//!
//! Purpose: people test a month-end run in a second. Wall and monotonic time move together, only when told, so the
//! leader sees an ordinary passing of time and not a jump. Callers: `node`; the API moves it.

use parking_lot::Mutex;

use crate::api::DevClock;
use crate::time::{Clock, Millis, Timestamp};

/// See the module.
pub(super) struct ManualClock {
    now: Mutex<(Timestamp, Millis)>,
}

impl ManualClock {
    /// Standing still at `start`.
    #[must_use]
    pub(super) fn new(start: Timestamp) -> Self {
        // Not zero: a monotonic clock of zero would look like a machine that has just started.
        Self {
            now: Mutex::new((start, Millis::days(1))),
        }
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> Timestamp {
        self.now.lock().0
    }

    fn monotonic(&self) -> Millis {
        self.now.lock().1
    }
}

impl DevClock for ManualClock {
    fn advance(&self, by: Millis) -> Timestamp {
        let mut now = self.now.lock();
        now.0 = now.0.plus(by);
        now.1 = Millis(now.1.0.saturating_add(by.0));
        now.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_times_move_together_and_only_when_told() {
        let clock = ManualClock::new(Timestamp::from_millis(1_000));
        let (wall, monotonic) = (clock.wall(), clock.monotonic());
        assert_eq!((clock.wall(), clock.monotonic()), (wall, monotonic));
        assert_eq!(clock.advance(Millis::days(3)), wall.plus(Millis::days(3)));
        assert_eq!(clock.monotonic().0 - monotonic.0, Millis::days(3).0);
    }
}
