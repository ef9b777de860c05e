//! Policies that schedules, executions and queues carry.
//!
//! Callers: `model::{schedule, execution, queue}`, `state`, `leader`, `api`. Defaults are those of the HTTP contract.

use serde::{Deserialize, Serialize};

use crate::time::{Millis, Timestamp};

/// When and how often a failed attempt is tried again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetryPolicy {
    /// Attempts in all, 1–100,000.
    pub max_attempts: u32,
    /// Delay after the first failure.
    pub initial_backoff: Millis,
    /// Thousandths by which the delay grows per attempt: 1,000–100,000 (1.0–100.0).
    pub multiplier_milli: u32,
    /// Bound of the delay, jitter included; at most 30 days.
    pub max_backoff: Millis,
    /// Thousandths of the delay that jitter may take off or add, 0–1,000.
    pub jitter_milli: u32,
    /// No new attempt later than this after the first lease; `None`: no bound.
    pub max_elapsed: Option<Millis>,
    /// Lease losses in a row that make the execution poison, 1–1,000.
    pub max_lease_losses: u32,
    /// Error types that are never retried.
    pub non_retryable: Vec<String>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 15,
            initial_backoff: Millis::secs(5),
            multiplier_milli: 2_000,
            max_backoff: Millis::hours(1),
            jitter_milli: 200,
            max_elapsed: None,
            max_lease_losses: 3,
            non_retryable: Vec::new(),
        }
    }
}

impl RetryPolicy {
    /// The delay after failure number `n` (1 or more), before jitter: min(max, initial × multiplier^(n−1)),
    /// saturating, in whole milliseconds.
    #[must_use]
    pub fn backoff(&self, n: u32) -> Millis {
        let max = u128::from(self.max_backoff.0);
        let mut delay = u128::from(self.initial_backoff.0).min(max);
        if self.multiplier_milli <= 1_000 {
            return self.initial_backoff.min(self.max_backoff);
        }
        for _ in 1..n {
            if delay == 0 || delay >= max {
                break;
            }
            let grown = delay * u128::from(self.multiplier_milli) / 1_000;
            // A tiny delay whose growth rounds away would loop without moving.
            delay = if grown == delay {
                delay + 1
            } else {
                grown.min(max)
            };
        }
        Millis(u64::try_from(delay.min(max)).unwrap_or(u64::MAX))
    }

    /// [`RetryPolicy::backoff`] moved by jitter: `draw` is uniform over all of `u32` and chosen by the leader
    /// before proposing, so that every node computes the same. The result never exceeds `max_backoff`, and is zero only when the
    /// backoff is.
    #[must_use]
    pub fn jittered_backoff(&self, n: u32, draw: u32) -> Millis {
        let base = self.backoff(n).0;
        let reach = u128::from(base) * u128::from(self.jitter_milli.min(1_000)) / 1_000;
        let offset = reach * 2 * u128::from(draw) / u128::from(u32::MAX);
        let moved = u128::from(base) + offset - reach;
        let least = base.min(1);
        Millis(u64::try_from(moved).unwrap_or(u64::MAX).max(least)).min(self.max_backoff)
    }
}

/// Bounds on how long an execution may take. The first one reached decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeouts {
    /// From due time to first lease; then `expired`.
    pub start: Option<Millis>,
    /// From grant to report, each attempt.
    pub attempt: Option<Millis>,
    /// From first lease to final state.
    pub total: Option<Millis>,
}

/// What to do with occurrences that are later than the threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Misfire {
    /// None of the gap runs.
    Skip,
    /// The newest one runs.
    #[default]
    FireLatest,
    /// All of it runs, up to a cap.
    FireAll,
}

/// The misfire policy of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MisfirePolicy {
    /// What runs of a gap.
    pub policy: Misfire,
    /// Lateness of the oldest undecided occurrence above which the policy takes the gap.
    pub threshold: Millis,
    /// How far back misfires still run; `None`: the policy's own default.
    pub catch_up_window: Option<Millis>,
    /// Most executions that `fire_all` creates for one gap.
    pub catch_up_max: u32,
    /// Occurrences created per `catch_up_rate_per` while catching up.
    pub catch_up_rate: u32,
    /// See `catch_up_rate`.
    pub catch_up_rate_per: Millis,
}

impl Default for MisfirePolicy {
    fn default() -> Self {
        Self {
            policy: Misfire::FireLatest,
            threshold: Millis::secs(60),
            catch_up_window: None,
            catch_up_max: 100,
            catch_up_rate: 10,
            catch_up_rate_per: Millis::secs(1),
        }
    }
}

/// What to do when an occurrence arrives while an execution of its schedule is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Overlap {
    /// Create it beside the open ones, up to `max_open`.
    #[default]
    Allow,
    /// Record a skip with the blocker.
    Skip,
}

/// The overlap policy of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OverlapPolicy {
    /// What happens.
    pub policy: Overlap,
    /// Most open executions of the schedule, 1–1,000; one more is skipped as `overlap`.
    pub max_open: u32,
}

impl Default for OverlapPolicy {
    fn default() -> Self {
        Self {
            policy: Overlap::Allow,
            max_open: 1_000,
        }
    }
}

/// What to do with a one-time instant that is already past at creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PastPolicy {
    /// Run it now.
    #[default]
    Run,
    /// Refuse it.
    Reject,
}

/// A durable pause: who, why, since and until when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseInfo {
    /// Who asked.
    pub by: String,
    /// Why, in their words.
    pub reason: Option<String>,
    /// Log time of the pause.
    pub since: Timestamp,
    /// Log time at which it ends by itself; `None`: on resume only.
    pub until: Option<Timestamp>,
}

impl PauseInfo {
    /// Whether it still holds at log time `now`: a timed pause ends at `until` even before anybody removes it.
    #[must_use]
    pub fn holds_at(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
    }
}

/// A rate: `count` per `per`, with at most `burst` at once. Decided by GCRA on log time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RateLimit {
    /// Grants allowed in `per`, 1 or more.
    pub count: u32,
    /// The span, at least 1 ms.
    pub per: Millis,
    /// Grants allowed at one instant after a rest, 1 or more (default 1).
    pub burst: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(initial: Millis, multiplier_milli: u32, max: Millis) -> RetryPolicy {
        RetryPolicy {
            initial_backoff: initial,
            multiplier_milli,
            max_backoff: max,
            jitter_milli: 0,
            ..RetryPolicy::default()
        }
    }

    #[test]
    fn the_backoff_doubles_up_to_its_bound_for_every_later_attempt() {
        let policy = policy(Millis::secs(1), 2_000, Millis::hours(1));
        for n in 1..=12 {
            assert_eq!(policy.backoff(n), Millis::secs(1 << (n - 1)), "attempt {n}");
        }
        for n in [13, 30, 34, 62, 63, 64, 65, 66, 100, 1_024, 65_536, u32::MAX] {
            assert_eq!(policy.backoff(n), Millis::secs(3_600), "attempt {n}");
        }
    }

    #[test]
    fn the_backoff_saturates_and_is_never_zero_by_overflow() {
        let steep = policy(Millis::hours(1), 100_000, Millis::days(30));
        let tiny = policy(Millis(1), 2_000, Millis(20));
        let flat = policy(Millis(7), 1_000, Millis(20));
        let creeping = policy(Millis(1), 1_001, Millis::days(30));
        for policy in [&steep, &tiny, &flat, &creeping] {
            let mut before = Millis::ZERO;
            for n in 1..=1_200 {
                let delay = policy.backoff(n);
                assert!(delay.0 > 0 && delay <= policy.max_backoff, "{policy:?} {n}");
                assert!(delay >= before, "{policy:?} {n}");
                before = delay;
            }
        }
        assert_eq!(flat.backoff(1_000), Millis(7));
    }

    #[test]
    fn jitter_stays_within_its_share_and_below_the_bound() {
        let mut policy = policy(Millis::secs(10), 2_000, Millis::secs(15));
        policy.jitter_milli = 200;
        assert_eq!(policy.jittered_backoff(1, 0), Millis::secs(8));
        assert_eq!(policy.jittered_backoff(1, u32::MAX), Millis::secs(12));
        assert_eq!(policy.jittered_backoff(2, u32::MAX), Millis::secs(15));
        policy.jitter_milli = 1_000;
        assert_eq!(policy.jittered_backoff(1, 0), Millis(1), "never at once");
        policy.initial_backoff = Millis::ZERO;
        assert_eq!(policy.jittered_backoff(1, 0), Millis::ZERO);
    }

    #[test]
    fn a_timed_pause_ends_by_itself() {
        let at = Timestamp::from_millis(1_000);
        let mut pause = PauseInfo {
            by: "me".into(),
            reason: None,
            since: Timestamp::EPOCH,
            until: Some(at),
        };
        assert!(pause.holds_at(at.minus(Millis(1))));
        assert!(!pause.holds_at(at));
        pause.until = None;
        assert!(pause.holds_at(Timestamp::MAX));
    }
}
