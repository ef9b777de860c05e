//! Schedules and their rules.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::{
    CatchUp, Cause, Instant, ItemStatus, Json, MisfirePolicy, OnCompleted, Overlap, OverlapPolicy,
    PastPolicy, Paused, RetryPolicy, Span, Timeouts,
};

/// A rule that produces executions. In a request only `rule` is required; what the server sets (`status`,
/// `incarnation`, `generation`) is ignored there, and `revision` is checked if present.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Schedule {
    /// Name, unique in the tenant; must equal the one in the path. Minted by `POST` when left out.
    #[schema(pattern = "^[a-z0-9][a-z0-9._-]{0,127}$")]
    pub schedule_id: Option<String>,
    /// Owner; must equal the one in the path.
    pub tenant: Option<String>,
    /// Free text, at most 1 KiB.
    pub description: Option<String>,
    /// Handler that a worker must have; default: the schedule's id.
    pub kind: Option<String>,
    /// Queue of its executions; comes into being when first named.
    #[schema(default = "default")]
    pub queue: Option<String>,
    /// Given to the worker; at most 256 KiB.
    pub payload: Json,
    /// 0–9, 9 highest.
    #[schema(default = 5, minimum = 0, maximum = 9)]
    pub priority: Option<u8>,
    /// Limits how many executions with the same key run together in the tenant.
    pub concurrency_key: Option<String>,
    /// For filters.
    pub labels: Option<BTreeMap<String, String>>,
    /// Labels that a worker must show.
    pub requires: Option<BTreeMap<String, String>>,
    /// When it fires.
    pub rule: Rule,
    /// Late occurrences.
    pub misfire: Option<MisfirePolicy>,
    /// Occurrences beside an open execution.
    pub overlap: Option<OverlapPolicy>,
    /// A one-time instant in the past.
    #[schema(default = "run")]
    pub past: Option<PastPolicy>,
    /// What happens when it will never fire again.
    pub on_completed: Option<OnCompleted>,
    /// Final failures in a row after which it pauses itself; `null`: never.
    pub pause_after_failures: Option<u32>,
    /// Retries of its executions.
    pub retry: Option<RetryPolicy>,
    /// Bounds on the duration of its executions.
    pub timeouts: Option<Timeouts>,
    /// Notices; must be empty or left out.
    #[schema(value_type = Option<Object>)]
    pub notify: Option<BTreeMap<String, Json>>,
    /// Tells it from an earlier schedule of the same name. Set by the server.
    #[schema(read_only)]
    pub incarnation: Option<u64>,
    /// Accepted changes of the definition, from 1. Set by the server.
    #[schema(read_only)]
    pub generation: Option<u64>,
    /// Opaque; the ETag. Checked in a request if present.
    pub revision: Option<String>,
    /// Set by the server.
    #[schema(read_only)]
    pub status: Option<ScheduleStatus>,
}

/// When a schedule fires: exactly one of `at`, `cron`, `every`, `after_end`, `rrule`, `iso8601`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Rule {
    /// Once: an instant (RFC 3339), or a local time (`2026-03-29T02:30:00`) with `time_zone`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// A cron expression of five, six or seven fields, or an alias such as `@daily`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Every so often, in elapsed time from `anchor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Span>,
    /// The first occurrence of `every`; default: the creation instant in whole seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anchor: Option<Instant>,
    /// So long after the last open execution ended; the first one so long after the creation. Without jitter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_end: Option<Span>,
    /// RFC 5545 recurrence text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rrule: Option<String>,
    /// ISO 8601 repeating interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iso8601: Option<String>,
    /// IANA zone name.
    #[schema(default = "UTC")]
    pub time_zone: Option<String>,
    /// How the cron expression counts and reads its fields.
    #[schema(default = "unix")]
    pub dialect: Option<Dialect>,
    /// How two restricted day fields combine; `null`: the rule of the dialect.
    pub day_match: Option<DayMatch>,
    /// What happens to a local time that a clock change removes.
    #[schema(default = "run_after")]
    pub dst_gap: Option<DstGap>,
    /// Which pass of a local time that a clock change repeats fires.
    #[schema(default = "first")]
    pub dst_overlap: Option<DstOverlap>,
    /// No occurrence before it (inclusive).
    pub start_at: Option<Instant>,
    /// No occurrence after it (inclusive).
    pub end_at: Option<Instant>,
    /// Executions to create at most.
    #[schema(minimum = 1)]
    pub max_occurrences: Option<u64>,
    /// Window after the nominal time over which due times are spread.
    #[schema(default = "0s")]
    pub jitter: Option<Span>,
    /// Names of calendars whose dates are excluded.
    pub calendars: Option<Vec<String>>,
    /// Local dates (`2026-12-24`) without occurrences.
    pub exclude_dates: Option<Vec<String>>,
}

/// How a cron expression is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// Five fields, six with seconds in front, seven with a year behind; weekday 0 and 7 are Sunday.
    #[default]
    Unix,
    /// Seconds first, optional year, weekday 1 is Sunday.
    Quartz,
    /// As Quartz without seconds, year required.
    EventBridge,
}

/// How two restricted day fields combine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DayMatch {
    /// Both must match.
    And,
    /// Either may match.
    Or,
}

/// What happens to a local time that does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DstGap {
    /// It runs once at the end of the gap.
    #[default]
    RunAfter,
    /// It moves later by the length of the gap.
    Shift,
    /// It is lost and recorded as such.
    Skip,
}

/// Which pass of a repeated local time fires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DstOverlap {
    /// The earlier one.
    #[default]
    First,
    /// The later one.
    Second,
    /// Both.
    Both,
}

/// Where a schedule stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleState {
    /// It fires.
    #[default]
    Active,
    /// It does not fire until resumed.
    Paused,
    /// It will never fire again.
    Completed,
}

/// What the server knows of a schedule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ScheduleStatus {
    /// Where it stands.
    pub state: ScheduleState,
    /// The pause, when paused.
    pub paused: Option<Paused>,
    /// When it was completed.
    pub completed_at: Option<Instant>,
    /// The next occurrence; `null`: none is planned.
    pub next: Option<NextOccurrence>,
    /// The last outcome.
    pub last: Option<LastOutcome>,
    /// The last ten outcomes, newest first.
    pub recent: Vec<LastOutcome>,
    /// Open executions by state.
    pub open: OpenCounts,
    /// Counts since creation.
    pub totals: Totals,
    /// Executions that the rule created.
    pub created_count: u64,
    /// Final failures since the last success.
    pub failures_in_row: u32,
    /// When it was created.
    pub created_at: Option<Instant>,
    /// Last change of the definition.
    pub updated_at: Option<Instant>,
    /// What may surprise.
    pub warnings: Vec<Warning>,
    /// The next five occurrences, in the answer to a dry run only.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub upcoming: Vec<NextOccurrence>,
}

/// A planned occurrence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NextOccurrence {
    /// The instant that the calendar gives.
    pub nominal_at: Instant,
    /// Nominal time plus jitter.
    pub due_at: Instant,
    /// The nominal time on the wall clock of the rule's zone.
    #[serde(default)]
    pub local: String,
}

/// One of the last outcomes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LastOutcome {
    /// Which occurrence; `null`: triggered by hand.
    #[serde(default)]
    pub nominal_at: Option<Instant>,
    /// Its execution.
    pub execution_id: String,
    /// Its final state.
    pub state: String,
    /// When it became final.
    #[serde(default)]
    pub finished_at: Option<Instant>,
}

/// Open executions by state. They are shown for at most the first hundred; `total` is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct OpenCounts {
    /// All of them.
    pub total: u64,
    /// Due later.
    pub waiting: u64,
    /// May be leased.
    pub ready: u64,
    /// A worker has it.
    pub leased: u64,
    /// Waiting for the next attempt.
    pub backing_off: u64,
}

/// Counts since creation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Totals {
    /// Executions that ended `succeeded`.
    pub succeeded: u64,
    /// Executions that ended `dead_lettered`.
    pub dead_lettered: u64,
    /// Executions that ended `cancelled`.
    pub cancelled: u64,
    /// Executions that ended `expired`.
    pub expired: u64,
    /// Nominal times that did not run, by reason.
    pub skipped: BTreeMap<String, u64>,
}

/// Something in a rule that may surprise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Warning {
    /// What it is about, in snake_case.
    pub code: String,
    /// For people.
    pub detail: String,
}

/// Body of `:pause` of a schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct PauseSchedule {
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Ends by itself then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Instant>,
}

/// Body of `:resume` of a schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ResumeSchedule {
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What is caught up of the pause.
    #[schema(default = "none")]
    pub catch_up: Option<CatchUp>,
    /// Most executions created for the pause, for `catch_up: all`.
    #[schema(default = 60, minimum = 1, maximum = 60)]
    pub catch_up_max: Option<u32>,
}

/// Answer of `:resume`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResumeResult {
    /// The schedule now.
    pub schedule: Schedule,
    /// Executions created for the pause (with `dry_run`: that would be).
    pub caught_up: u64,
    /// Nominal times of the pause recorded as skipped.
    pub skipped: u64,
}

/// Body of `:trigger`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TriggerSchedule {
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Instead of the schedule's payload; left out: the schedule's own.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub payload: Option<Json>,
    /// Instead of the schedule's overlap policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlap: Option<Overlap>,
}

/// A field that was sent, `null` included, is `Some`.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}

/// Answer of `:trigger`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TriggerResult {
    /// The new execution; `null` in a dry run.
    #[serde(default)]
    pub execution_id: Option<String>,
}

/// Body of `schedules:batch`: at most 1,000, each as a `PUT` of its own (`schedule_id` required).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleBatch {
    /// The schedules.
    pub items: Vec<Schedule>,
}

/// What became of one schedule of a batch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleResult {
    /// Its name.
    #[serde(default)]
    pub schedule_id: Option<String>,
    /// `created`, `updated`, `unchanged`; `null` when refused.
    #[serde(default)]
    pub outcome: Option<String>,
    /// Its revision now.
    #[serde(default)]
    pub revision: Option<String>,
    /// Status and, when refused, why.
    pub result: ItemStatus,
}

/// Answer of `schedules:batch`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ScheduleBatchResult {
    /// One for each schedule, in request order.
    pub items: Vec<ScheduleResult>,
}

/// One definition of a schedule, present or earlier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Generation {
    /// Its number, from 1.
    pub generation: u64,
    /// It is the definition in force.
    pub current: bool,
    /// When it came into force.
    pub since: Option<Instant>,
    /// The schedule's revision under it, as it last was.
    pub revision: String,
    /// The definition. It has neither `status` nor `revision`, so that a `PUT` of it brings it back.
    pub schedule: Schedule,
}

/// What became of a nominal time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OccurrenceKind {
    /// An execution was created.
    #[default]
    Execution,
    /// It did not run.
    Skipped,
}

/// One record of a schedule's ledger: an execution, or a run of nominal times that did not run for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct OccurrenceRecord {
    /// What became of it.
    pub kind: OccurrenceKind,
    /// The nominal time, or the first one of a run of skips; `null`: triggered by hand.
    pub nominal_at: Option<Instant>,
    /// Last nominal time of a run of skips.
    pub to: Option<Instant>,
    /// How many nominal times the record stands for.
    pub count: u64,
    /// `count` is a lower bound.
    pub at_least: bool,
    /// Which schedule of that name.
    pub incarnation: Option<u64>,
    /// Why its execution was created; `triggered`: by hand.
    pub cause: Option<Cause>,
    /// When it was fired by hand.
    pub triggered_at: Option<Instant>,
    /// Its execution.
    pub execution_id: Option<String>,
    /// State of the execution (`open` until it is final).
    pub state: Option<String>,
    /// Why it did not run.
    pub reason: Option<String>,
    /// The open execution in the way, for `overlap`.
    pub blocker: Option<String>,
    /// The lost wall time, for `dst_gap`; of several, the first one.
    pub local: Option<String>,
    /// The last one of several lost wall times.
    pub local_last: Option<String>,
}
