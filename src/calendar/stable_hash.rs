//! The hash behind `H` and jitter, fixed for ever.
//!
//! Purpose: spread schedules over fields and windows the same way on every node and in every
//! release.
//! Callers: `cron::parse` (`H`), `compiled` (jitter).
//! Invariant: a value returned here is a promise to users; it never changes (golden test below).
//! XXH3-64 is a published, frozen algorithm.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// What is kept of a schedule's identity (`tenant/schedule`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(u64);

impl Seed {
    /// From `tenant/schedule`.
    pub(crate) fn of(identity: &str) -> Self {
        Self(xxh3_64(identity.as_bytes()))
    }

    /// A number for a named purpose, such as the field that holds an `H`.
    pub(crate) fn for_name(self, name: &str) -> u64 {
        xxh3_64_with_seed(name.as_bytes(), self.0)
    }

    /// A number for an instant in milliseconds.
    pub(crate) fn for_instant(self, ms: i64) -> u64 {
        xxh3_64_with_seed(&ms.to_le_bytes(), self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_never_change_between_releases() {
        // The published value for no input.
        assert_eq!(Seed::of(""), Seed(0x2d06_8005_38d3_94c2));
        let seed = Seed::of("default/daily");
        assert_eq!(seed, Seed(3_613_087_532_180_983_179));
        assert_eq!(seed.for_name("minute"), 14_755_454_321_434_511_158);
        assert_eq!(
            seed.for_instant(1_800_000_000_000),
            10_079_930_552_310_870_821
        );
    }
}
