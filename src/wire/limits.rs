//! Every bound of the HTTP contract, once.
//!
//! Purpose: validation, `GET /v1/limits` and the docs page read this table. Callers: `api`, `client`, `cli`, `worker`.
//! Invariant: a bound that is enforced is a constant here and a row of [`TABLE`].

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One bound, as served by `GET /v1/limits`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limit {
    /// Its name.
    pub name: String,
    /// Least allowed value; `null`: zero.
    #[serde(default)]
    pub min: Option<u64>,
    /// Greatest allowed value.
    pub max: u64,
    /// What it counts: `bytes`, `items`, `ms`, `characters`.
    pub unit: String,
    /// What it bounds.
    pub description: String,
}

/// Answer of `GET /v1/limits`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Limits {
    /// All of them, by name.
    pub limits: Vec<Limit>,
}

/// A row of [`TABLE`].
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// Its name.
    pub name: &'static str,
    /// Least allowed value.
    pub min: u64,
    /// Greatest allowed value.
    pub max: u64,
    /// What it counts.
    pub unit: &'static str,
    /// What it bounds.
    pub about: &'static str,
}

macro_rules! bounds {
    ($($name:ident: $min:literal ..= $max:literal $unit:literal, $about:literal;)*) => {
        $(#[doc = $about]
        pub const $name: Bound = Bound {
            name: stringify!($name), min: $min, max: $max, unit: $unit, about: $about,
        };)*
        /// Every bound, in the order of the docs page.
        pub const TABLE: &[Bound] = &[$($name,)*];
    };
}

bounds! {
    BODY_BYTES: 0 ..= 8_388_608 "bytes", "Body of a request.";
    PAYLOAD_BYTES: 0 ..= 262_144 "bytes", "Payload of a schedule or execution, as JSON text.";
    RESULT_BYTES: 0 ..= 65_536 "bytes", "Result of an execution, as JSON text.";
    PROGRESS_BYTES: 0 ..= 16_384 "bytes", "Progress of an attempt, as JSON text.";
    ERROR_BYTES: 0 ..= 16_384 "bytes", "Error of an attempt, as JSON text; longer ones are cut and marked.";
    BATCH_ITEMS: 1 ..= 1_000 "items", "Items of a batch call, and leases of one worker call.";
    PAGE_SIZE: 1 ..= 1_000 "items", "Items of a page.";
    WAIT_MS: 0 ..= 60_000 "ms", "How long a call may wait (claims, results).";
    LEASE_MS: 1_000 ..= 86_400_000 "ms", "Length of a lease.";
    START_CONFIRMATION_MS: 100 ..= 10_000 "ms", "Time to confirm a start.";
    RELEASE_DELAY_MS: 0 ..= 86_400_000 "ms", "Delay of a lease that is given back.";
    CLAIM_LEASES: 1 ..= 1_000 "items", "Leases of one claim.";
    CLAIM_BYTES: 1 ..= 8_388_608 "bytes", "Payload bytes of one claim; the first lease is given whatever its size.";
    CLAIM_QUEUES: 1 ..= 32 "items", "Queues of one claim.";
    CLAIM_KINDS: 1 ..= 256 "items", "Kinds of one claim.";
    CLAIM_SLOTS: 1 ..= 100_000 "items", "Leases that a worker may hold.";
    REQUEST_ID_CHARACTERS: 1 ..= 200 "characters", "`request_id` of a claim; give it 128 random bits.";
    NAME_CHARACTERS: 1 ..= 128 "characters", "Name of a tenant, queue, schedule or execution; also a kind.";
    WORKER_ID_CHARACTERS: 1 ..= 200 "characters", "Name of a worker.";
    KEY_BYTES: 1 ..= 256 "bytes", "Concurrency, unique and idempotency keys.";
    DESCRIPTION_BYTES: 0 ..= 1_024 "bytes", "Description of a schedule.";
    REASON_BYTES: 0 ..= 1_024 "bytes", "Reason of a change.";
    LABELS: 0 ..= 32 "items", "Labels, and requirements, of one object.";
    LABEL_KEY_BYTES: 1 ..= 63 "bytes", "Key of a label.";
    LABEL_VALUE_BYTES: 0 ..= 255 "bytes", "Value of a label.";
    PRIORITY: 0 ..= 9 "items", "Priority; 9 is highest.";
    MAX_ATTEMPTS: 1 ..= 100_000 "items", "Attempts of an execution.";
    BACKOFF_MS: 0 ..= 2_592_000_000 "ms", "Delay between attempts.";
    MAX_ELAPSED_MS: 1 ..= 34_560_000_000 "ms", "`retry.max_elapsed`.";
    LEASE_LOSSES: 1 ..= 1_000 "items", "`retry.max_lease_losses`.";
    NON_RETRYABLE: 0 ..= 64 "items", "Error types in `retry.non_retryable`.";
    ERROR_TYPE_BYTES: 1 ..= 128 "bytes", "Type of an error.";
    TIMEOUT_MS: 1 ..= 34_560_000_000 "ms", "Time-outs of an execution.";
    DELAY_MS: 0 ..= 315_360_000_000 "ms", "`delay` of a submission.";
    MISFIRE_THRESHOLD_MS: 3_000 ..= 31_536_000_000 "ms", "`misfire.threshold`; not below the failover bound.";
    CATCH_UP_MAX: 1 ..= 10_000 "items", "`misfire.catch_up_max`.";
    CATCH_UP_WINDOW_MS: 0 ..= 31_536_000_000 "ms", "`misfire.catch_up_window`.";
    CATCH_UP_RATE: 1 ..= 1_000 "items", "Count in `misfire.catch_up_rate`.";
    RESUME_CATCH_UP: 1 ..= 60 "items", "`catch_up_max` of a resume.";
    MAX_OPEN: 1 ..= 1_000 "items", "Open executions of a schedule.";
    MAX_OCCURRENCES: 1 ..= 9_007_199_254_740_991 "items", "`rule.max_occurrences`.";
    JITTER_MS: 0 ..= 604_800_000 "ms", "`rule.jitter`.";
    EXCLUDE_DATES: 0 ..= 1_000 "items", "`rule.exclude_dates`.";
    EVERY_MS: 1_000 ..= 315_360_000_000 "ms", "`rule.every`.";
    CRON_CHARACTERS: 1 ..= 1_000 "characters", "A cron expression.";
    KEEP_FOR_MS: 0 ..= 34_560_000_000 "ms", "`on_completed.keep_for`.";
    PAUSE_AFTER_FAILURES: 1 ..= 1_000_000 "items", "`pause_after_failures`.";
    WEIGHT: 1 ..= 10_000 "items", "Weight of a tenant.";
    WEIGHTS: 0 ..= 1_000 "items", "Weights, and allowed tenants, of a queue.";
    LIMIT_VALUE: 0 ..= 9_007_199_254_740_991 "items", "Any limit or quota.";
    RATE_COUNT: 1 ..= 1_000_000 "items", "Count and burst of a rate.";
    RATE_PER_MS: 1 ..= 86_400_000 "ms", "Span of a rate.";
    RETENTION_MS: 3_600_000 ..= 34_560_000_000 "ms", "Retention of final executions.";
    PREVIEW_COUNT: 1 ..= 1_000 "items", "Occurrences, or delays, of a preview.";
    CURSOR_BYTES: 0 ..= 4_096 "bytes", "A cursor.";
    CLOCK_ADVANCE_MS: 1 ..= 34_560_000_000 "ms", "One step of the development clock.";
}

/// The table as it is served.
#[must_use]
pub fn served() -> Limits {
    let mut limits: Vec<Limit> = TABLE
        .iter()
        .map(|bound| Limit {
            name: bound.name.to_ascii_lowercase(),
            min: (bound.min > 0).then_some(bound.min),
            max: bound.max,
            unit: bound.unit.to_owned(),
            description: bound.about.to_owned(),
        })
        .collect();
    limits.sort_by(|a, b| a.name.cmp(&b.name));
    Limits { limits }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_bounds_are_those_of_the_contract() {
        let served = served();
        let max = |name: &str| served.limits.iter().find(|l| l.name == name).map(|l| l.max);
        assert_eq!(max("payload_bytes"), Some(256 * 1024));
        assert_eq!(max("result_bytes"), Some(64 * 1024));
        assert_eq!(max("progress_bytes"), Some(16 * 1024));
        assert_eq!(max("body_bytes"), Some(8 * 1024 * 1024));
        assert_eq!(max("batch_items"), Some(1_000));
        assert_eq!(max("wait_ms"), Some(60_000));
        assert_eq!(max("lease_ms"), Some(86_400_000));
        assert!(TABLE.iter().all(|b| b.min <= b.max && b.max < (1 << 53)));
    }

    #[test]
    fn no_bound_is_listed_twice() {
        let names: std::collections::BTreeSet<_> = TABLE.iter().map(|b| b.name).collect();
        assert_eq!(names.len(), TABLE.len());
    }
}
