//! Arithmetic of retries and rates, from the words of the contract.

use crate::model::policy::{RateLimit, RetryPolicy};
use crate::time::{Millis, Timestamp};

/// min(max, initial × multiplier^(n−1)) in whole milliseconds, jitter of ± a part of it, clamped to the maximum.
pub(super) fn backoff(policy: &RetryPolicy, n: u32, draw: u32) -> Millis {
    let max = u128::from(policy.max_backoff.0);
    let initial = u128::from(policy.initial_backoff.0);
    let multiplier = u128::from(policy.multiplier_milli);
    let mut numerator = initial;
    let mut denominator: u128 = 1;
    for _ in 1..n {
        numerator *= multiplier;
        denominator *= 1_000;
        if numerator / denominator >= max {
            break;
        }
    }
    let base = (numerator / denominator).min(max);
    let reach = base * u128::from(policy.jitter_milli) / 1_000;
    let moved = base - reach + reach * 2 * u128::from(draw) / u128::from(u32::MAX);
    let least = base.min(1);
    Millis(u64::try_from(moved.max(least).min(max)).expect("fits"))
}

/// One grant at `now` under a rate: the new theoretical arrival time, or the first time at which one is admitted.
pub(super) fn take(rate: &RateLimit, tat_ns: u64, now: Timestamp) -> Result<u64, Timestamp> {
    let now_ns = i128::from(now.millis()) * 1_000_000;
    let per_ns = i128::from(rate.per.0) * 1_000_000;
    let count = i128::from(rate.count);
    let interval = (per_ns + count - 1) / count;
    // Up to 100 ms of lateness is kept, so that the delay of entries does not eat into the rate.
    let late = now_ns - i128::from(tat_ns);
    let keeps = (0..=100_000_000).contains(&late);
    let tat = if keeps {
        i128::from(tat_ns)
    } else {
        i128::from(tat_ns).max(now_ns)
    };
    // It conforms when it comes no earlier than `burst` intervals before the arrival time that it leads to.
    let earliest = tat - interval * (i128::from(rate.burst) - 1);
    if now_ns >= earliest {
        return Ok(u64::try_from(tat + interval).expect("fits"));
    }
    let ms = (earliest + 999_999) / 1_000_000;
    Err(Timestamp::from_millis(i64::try_from(ms).expect("fits")))
}
