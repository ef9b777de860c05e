//! Policies that schedules, executions and queues carry. Every field is optional in a request; `null` is the default.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::{Instant, Span};

/// When and how often a failed attempt is tried again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RetryPolicy {
    /// Attempts in all.
    #[schema(default = 15, minimum = 1, maximum = 100_000)]
    pub max_attempts: Option<u32>,
    /// Delay after the first failure.
    #[schema(default = "5s")]
    pub initial_backoff: Option<Span>,
    /// Growth of the delay with each attempt.
    #[schema(default = 2.0, minimum = 1.0, maximum = 100.0)]
    pub multiplier: Option<f64>,
    /// Bound of the delay, jitter included; at most 30 days.
    #[schema(default = "1h")]
    pub max_backoff: Option<Span>,
    /// Part of the delay that jitter may take off or add.
    #[schema(default = 0.2, minimum = 0.0, maximum = 1.0)]
    pub jitter: Option<f64>,
    /// No new attempt later than this after the first lease; `null`: no bound.
    pub max_elapsed: Option<Span>,
    /// Lease losses in a row that make the execution `poison`.
    #[schema(default = 3, minimum = 1, maximum = 1_000)]
    pub max_lease_losses: Option<u32>,
    /// Error types that are never retried.
    pub non_retryable: Option<Vec<String>>,
}

/// Bounds on how long an execution may take; the first one reached decides. `null`: no bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Timeouts {
    /// From due time to first lease; then `expired`.
    pub start: Option<Span>,
    /// From grant to report, each attempt.
    pub attempt: Option<Span>,
    /// From first lease to final state.
    pub total: Option<Span>,
}

/// What to do with occurrences that are later than the threshold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct MisfirePolicy {
    /// What runs of a gap.
    #[schema(default = "fire_latest")]
    pub policy: Option<Misfire>,
    /// Lateness of the oldest undecided occurrence above which the policy takes the gap; not below the failover bound.
    #[schema(default = "60s")]
    pub threshold: Option<Span>,
    /// How far back misfires still run; `null`: no bound for `fire_latest`, 24 hours for `fire_all`.
    pub catch_up_window: Option<Span>,
    /// Most executions created for one gap.
    #[schema(default = 100)]
    pub catch_up_max: Option<u32>,
    /// Occurrences created in a span while catching up, as `count/unit` with unit `s`, `m` or `h`.
    #[schema(default = "10/s")]
    pub catch_up_rate: Option<String>,
}

/// What to do when an occurrence arrives while an execution of its schedule is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// Create it beside the open ones, up to `max_open`.
    #[default]
    Allow,
    /// Record a skip with the blocker.
    Skip,
    /// Keep the first one for later.
    BufferOne,
    /// Keep a bounded number for later.
    Buffer,
    /// Ask the open one to stop.
    CancelRunning,
}

/// The overlap policy of a schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct OverlapPolicy {
    /// What happens.
    #[schema(default = "allow")]
    pub policy: Option<Overlap>,
    /// Most open executions of the schedule; one more is skipped as `overlap`.
    #[schema(default = 1_000, minimum = 1, maximum = 1_000)]
    pub max_open: Option<u32>,
    /// Size of the buffer, for `buffer`.
    pub buffer: Option<u32>,
}

/// What to do with a one-time instant that is already past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PastPolicy {
    /// Run it now.
    #[default]
    Run,
    /// Refuse it.
    Reject,
}

/// What happens to a schedule that will never fire again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct OnCompleted {
    /// Deleted after this long.
    #[schema(default = "7d")]
    pub keep_for: Option<Span>,
}

/// What is caught up of a pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CatchUp {
    /// Nothing.
    #[default]
    None,
    /// The newest occurrence.
    Latest,
    /// All of them, up to `catch_up_max`.
    All,
}

/// A pause: who, why, since and until when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Paused {
    /// Who asked.
    pub by: String,
    /// Why, in their words.
    #[serde(default)]
    pub reason: Option<String>,
    /// Since when.
    pub since: Instant,
    /// Ends by itself then; `null`: on resume only.
    #[serde(default)]
    pub until: Option<Instant>,
}

/// A rate: `count` grants per `per`, with at most `burst` at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Rate {
    /// Grants allowed in `per`.
    #[schema(minimum = 1)]
    pub count: u32,
    /// The span.
    pub per: Span,
    /// Grants allowed at one instant.
    #[serde(default)]
    #[schema(default = 1, minimum = 1)]
    pub burst: Option<u32>,
}
