//! Instants, durations and clocks.
//!
//! Purpose: the one representation of time in commands, stored values and leader state.
//! Callers: everything. It uses nothing else of ours.
//! Invariants:
//! 1. A [`Timestamp`] is whole milliseconds since 1970-01-01T00:00:00Z, so it is equal on every node.
//! 2. Arithmetic saturates at [`Timestamp::MIN`] and [`Timestamp::MAX`]; it never wraps or panics.
//! 3. Nothing here reads a clock except the implementations of [`Clock`].

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// An instant in whole milliseconds since the Unix epoch, UTC.
///
/// Range: 1900-01-01 to 9999-12-31; constructors outside it saturate. Whose clock it comes from is said by
/// the field that holds it (log time, leader wall time).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// 1900-01-01T00:00:00Z.
    pub const MIN: Self = Self(-2_208_988_800_000);
    /// 9999-12-31T23:59:59.999Z minus one day, so that every local rendering stays representable.
    pub const MAX: Self = Self(253_402_214_400_000);
    /// 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self(0);

    /// From milliseconds since the epoch; saturates at the bounds.
    #[must_use]
    pub const fn from_millis(ms: i64) -> Self {
        if ms < Self::MIN.0 {
            Self::MIN
        } else if ms > Self::MAX.0 {
            Self::MAX
        } else {
            Self(ms)
        }
    }

    /// Milliseconds since the epoch.
    #[must_use]
    pub const fn millis(self) -> i64 {
        self.0
    }

    /// Later by `d`; saturates.
    #[must_use]
    pub const fn plus(self, d: Millis) -> Self {
        Self::from_millis(self.0.saturating_add_unsigned(d.0))
    }

    /// Earlier by `d`; saturates.
    #[must_use]
    pub const fn minus(self, d: Millis) -> Self {
        Self::from_millis(self.0.saturating_sub_unsigned(d.0))
    }

    /// How much later `self` is than `earlier`; zero when it is not later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Millis {
        if self.0 <= earlier.0 {
            Millis(0)
        } else {
            Millis(self.0.abs_diff(earlier.0))
        }
    }

    /// RFC 3339 in UTC with milliseconds, the form of every API answer.
    #[must_use]
    pub fn to_rfc3339(self) -> String {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(t) => format!("{t:.3}"),
            Err(_) => self.0.to_string(),
        }
    }

    /// Reads RFC 3339 with any offset; fractions below a millisecond are cut. `None` if it is not one or is
    /// outside the range.
    #[must_use]
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        let t: jiff::Timestamp = text.parse().ok()?;
        let ms = t.as_millisecond();
        (Self::MIN.0..=Self::MAX.0)
            .contains(&ms)
            .then_some(Self(ms))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_rfc3339())
    }
}

/// A length of time in whole milliseconds, never negative.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Millis(pub u64);

impl Millis {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// Whole seconds.
    #[must_use]
    pub const fn secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000))
    }

    /// Whole minutes.
    #[must_use]
    pub const fn minutes(m: u64) -> Self {
        Self(m.saturating_mul(60_000))
    }

    /// Whole hours.
    #[must_use]
    pub const fn hours(h: u64) -> Self {
        Self(h.saturating_mul(3_600_000))
    }

    /// Whole days of 24 hours.
    #[must_use]
    pub const fn days(d: u64) -> Self {
        Self(d.saturating_mul(86_400_000))
    }

    /// As the standard library's duration, for timers.
    #[must_use]
    pub const fn to_duration(self) -> Duration {
        Duration::from_millis(self.0)
    }
}

/// A source of the current time, injected so that tests and the simulation own it.
///
/// Wall time may jump in either direction; monotonic time never goes back and counts time asleep.
pub trait Clock: Send + Sync + 'static {
    /// The node's wall clock.
    fn wall(&self) -> Timestamp;
    /// Milliseconds on a clock that only goes forward, from an arbitrary start (boot time where the system has it).
    fn monotonic(&self) -> Millis;
}
