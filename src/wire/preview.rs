//! Previews: times of a rule and delays of a retry policy, without storing anything.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::{Instant, RetryPolicy, Rule, Warning};

/// Body of `schedules:preview`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Preview {
    /// The rule.
    pub rule: Rule,
    /// Occurrences strictly later than this; default: now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Instant>,
    /// How many.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(default = 10, minimum = 1, maximum = 1_000)]
    pub count: Option<u32>,
    /// Resolves `H` and jitter as for the schedule of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule_id: Option<String>,
    /// Owner of that schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(default = "default")]
    pub tenant: Option<String>,
}

/// Answer of `schedules:preview`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PreviewResult {
    /// In order.
    pub occurrences: Vec<PreviewedOccurrence>,
    /// The rule has none after these.
    pub exhausted: bool,
    /// The rule in words.
    pub description: String,
    /// What may surprise.
    pub warnings: Vec<Warning>,
    /// The cron expression as understood: weekdays by name, `H` resolved. `null` for other rules.
    pub expression: Option<String>,
    /// Clock changes of the zone inside the range shown; at most 20.
    pub zone_changes: Vec<ZoneChange>,
    /// Zone data release used.
    pub tzdata: String,
}

/// One previewed occurrence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PreviewedOccurrence {
    /// The instant that the calendar gives.
    pub nominal_at: Instant,
    /// Nominal time plus jitter.
    pub due_at: Instant,
    /// The nominal time on the wall clock of the rule's zone.
    pub local: String,
    /// Why it is where it is: `regular`, `gap_end`, `shifted`, `first_pass`, `second_pass`.
    pub reason: String,
}

/// A clock change of the rule's zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ZoneChange {
    /// First instant of the new offset.
    pub at: Instant,
    /// Local time before it.
    pub from: String,
    /// Local time after it.
    pub to: String,
}

/// Answer of `…/{schedule}/next`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct NextOccurrences {
    /// In order; what lies in the future of the cluster's clock.
    pub occurrences: Vec<PlannedOccurrence>,
    /// The rule has none after these.
    pub exhausted: bool,
    /// What may surprise; `depends_on_executions`: later times follow the ends of executions and are not known yet.
    pub warnings: Vec<Warning>,
    /// Zone data release used.
    pub tzdata: String,
}

/// One occurrence of a stored schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PlannedOccurrence {
    /// The instant that the calendar gives.
    pub nominal_at: Instant,
    /// Nominal time plus jitter.
    pub due_at: Instant,
    /// The nominal time on the wall clock of the rule's zone.
    pub local: String,
}

/// Body of `retries:preview`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RetryPreview {
    /// The policy.
    pub retry: RetryPolicy,
    /// How many delays to show.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(default = 20, minimum = 1, maximum = 1_000)]
    pub count: Option<u32>,
}

/// Answer of `retries:preview`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RetryPreviewResult {
    /// The policy with its defaults filled in.
    pub retry: RetryPolicy,
    /// In order; shorter than asked for when attempts run out.
    pub delays: Vec<RetryDelay>,
}

/// The delay after one failed attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RetryDelay {
    /// The attempt that failed.
    pub attempt: u32,
    /// Before jitter.
    pub delay_ms: u64,
    /// Least delay that jitter leaves.
    pub min_ms: u64,
    /// Greatest delay that jitter leaves.
    pub max_ms: u64,
    /// Sum of `delay_ms` up to here.
    pub total_ms: u64,
}
