//! Pauses between repeats, and random ids.
//!
//! Callers: `client`, `worker`.

use std::time::Duration;

/// First pause.
const FIRST: Duration = Duration::from_millis(100);
/// Longest pause, also when a server asks for more: the caller's deadline is not the server's to spend.
const LONGEST: Duration = Duration::from_secs(10);

/// Growing pauses: what the server asks for, else 100 ms · 2ⁿ up to 10 s, of which a random half is jitter.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The next pause; `asked` is `Retry-After`, to which up to a tenth is added so that clients spread.
    pub fn next(&mut self, asked: Option<Duration>) -> Duration {
        let grown = FIRST
            .saturating_mul(1 << self.failures.min(16))
            .min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let draw = unit_draw();
        match asked {
            Some(asked) => asked.mul_f64(0.1f64.mul_add(draw, 1.0)).min(LONGEST),
            None => grown.mul_f64(0.5f64.mul_add(draw, 0.5)),
        }
    }

    /// Begins again, after a success.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }

    /// Failures since the last success.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }
}

/// Uniform in [0, 1).
#[allow(
    clippy::disallowed_methods,
    reason = "a client runs outside the simulation; jitter must differ between processes"
)]
fn unit_draw() -> f64 {
    rand::random()
}

/// 128 random bits in hexadecimal, for idempotency keys and request ids.
#[must_use]
#[allow(
    clippy::disallowed_methods,
    reason = "a client runs outside the simulation; ids must never repeat"
)]
pub fn random_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_ten_seconds_with_jitter_below() {
        let mut backoff = Backoff::default();
        for n in 0..40 {
            let base = Duration::from_millis(100 << n.min(7)).min(LONGEST);
            let pause = backoff.next(None);
            assert!(pause >= base / 2 && pause <= base, "{n}: {pause:?}");
        }
        backoff.reset();
        assert!(backoff.next(None) <= FIRST);
    }

    #[test]
    fn what_the_server_asks_for_is_kept_within_bounds() {
        let mut backoff = Backoff::default();
        let pause = backoff.next(Some(Duration::from_secs(2)));
        assert!((2.0..=2.2).contains(&pause.as_secs_f64()), "{pause:?}");
        assert_eq!(backoff.next(Some(Duration::from_secs(3_600))), LONGEST);
    }

    #[test]
    fn random_ids_have_128_bits_and_differ() {
        let (a, b) = (random_id(), random_id());
        assert_eq!(a.len(), 32);
        assert_ne!(a, b);
    }
}
