//! Schedules: the definition that people write and the status that firing moves.
//!
//! Callers: `state::schedules`, `state::firing`, `leader`, `api`. Two rows each, so that firing rewrites the small
//! one only. Invariant: `ScheduleStatus::next` is `Some` exactly when the schedule is active and has a future, and
//! then `due_key` is its one entry in the due index.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{ExecutionId, Kind, QueueNo, Revision, ScheduleId, TenantNo};
use crate::model::execution::ExecutionState;
use crate::model::policy::{
    MisfirePolicy, OverlapPolicy, PastPolicy, PauseInfo, RetryPolicy, Timeouts,
};
use crate::model::rule::RuleSpec;
use crate::store::due::DueKey;
use crate::time::{Millis, Timestamp};

/// Most outcomes kept in [`ScheduleStatus::recent`].
pub const RECENT_MAX: usize = 10;
/// Most specifications kept for `…/generations`.
pub const GENERATIONS_MAX: u64 = 100;

/// What to run: the template of a schedule's executions and the body of a submitted one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobTemplate {
    /// Handler that a worker must have.
    pub kind: Kind,
    /// JSON text of the payload; empty means `null`. At most 256 KiB.
    #[serde(with = "serde_bytes")]
    pub payload: Vec<u8>,
    /// 0–9, 9 highest.
    pub priority: u8,
    /// Limits how many run together.
    pub concurrency_key: Option<String>,
    /// For filters; at most 32 pairs.
    pub labels: BTreeMap<String, String>,
    /// Labels that a worker must show.
    pub requires: BTreeMap<String, String>,
    /// Retries.
    pub retry: RetryPolicy,
    /// Bounds on its duration.
    pub timeouts: Timeouts,
}

/// What a person defines. Counted by `generation`; firing never changes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleSpec {
    /// Free text, at most 1 KiB.
    pub description: String,
    /// What to run.
    pub template: JobTemplate,
    /// When.
    pub rule: RuleSpec,
    /// Late occurrences.
    pub misfire: MisfirePolicy,
    /// Occurrences beside an open execution.
    pub overlap: OverlapPolicy,
    /// A one-time instant in the past.
    pub past: PastPolicy,
    /// How long a completed schedule is kept.
    pub keep_for: Millis,
    /// Final failures in a row after which the schedule pauses itself.
    pub pause_after_failures: Option<u32>,
}

/// The definition row of a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// Owner.
    pub tenant: TenantNo,
    /// Name, unique in the tenant.
    pub id: ScheduleId,
    /// Tells it from an earlier schedule of the same name: token (index with base) of the entry that created it.
    pub incarnation: u64,
    /// Accepted changes of the definition, from 1.
    pub generation: u64,
    /// The last change of definition or state by a person.
    pub revision: Revision,
    /// Queue of its executions.
    pub queue: QueueNo,
    /// Log time of creation. Nothing before it is ever caught up.
    pub created_at: Timestamp,
    /// Log time of the last change of definition.
    pub updated_at: Timestamp,
    /// What a person defined.
    pub spec: ScheduleSpec,
}

/// Where a schedule stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScheduleState {
    /// It fires.
    Active,
    /// It does not fire until resumed. Nominal times of the span are skipped as `paused` at resume.
    Paused(PauseInfo),
    /// It will never fire again; deleted when `keep_for` has passed.
    Completed {
        /// Log time of completion.
        at: Timestamp,
    },
}

/// A planned occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// The instant that the calendar gives.
    pub nominal_at: Timestamp,
    /// Nominal time plus jitter.
    pub due_at: Timestamp,
}

/// One of the last outcomes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecentOutcome {
    /// Which occurrence (`None`: triggered by hand).
    pub nominal_at: Option<Timestamp>,
    /// Its execution.
    pub execution: ExecutionId,
    /// Final state.
    pub state: ExecutionState,
    /// Log time at which it became final.
    pub finished_at: Timestamp,
}

/// The status row of a schedule: what firing and finishing move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleStatus {
    /// Where it stands.
    pub state: ScheduleState,
    /// Every nominal time up to here (included) is decided. Moved only by the entry that decides.
    pub cursor: Timestamp,
    /// The next occurrence, planned by the leader. `None` while paused, completed, or without a future.
    pub next: Option<Planned>,
    /// Its one entry in the due index: of `next`, of the end of a timed pause, or of the removal of a completed schedule.
    pub due_key: Option<DueKey>,
    /// Executions created by the rule (not manual ones, not backfill); counts to `max_occurrences`.
    pub created_count: u64,
    /// Open executions, oldest first, manual ones too; at most `max_open` (1,000).
    pub open: Vec<ExecutionId>,
    /// Dead letters since the last success or resume.
    pub failures_in_row: u32,
    /// The last outcomes, oldest first; at most [`RECENT_MAX`].
    pub recent: Vec<RecentOutcome>,
    /// Executions that ended `succeeded`.
    pub succeeded: u64,
    /// Executions that ended `dead_lettered`.
    pub dead_lettered: u64,
    /// Executions that ended `cancelled`.
    pub cancelled: u64,
    /// Executions that ended `expired`.
    pub expired: u64,
    /// Skipped nominal times by reason.
    pub skipped: BTreeMap<SkipReason, u64>,
    /// The latest skip record, extended in place while its neighbours are equal; `None` once the rule has created an
    /// execution after it.
    pub last_skip: Option<LastSkip>,
}

impl ScheduleStatus {
    /// The status of a schedule for which nothing is decided after `cursor` and nothing is planned.
    #[must_use]
    pub const fn new(cursor: Timestamp) -> Self {
        Self {
            state: ScheduleState::Active,
            cursor,
            next: None,
            due_key: None,
            created_count: 0,
            open: Vec::new(),
            failures_in_row: 0,
            recent: Vec::new(),
            succeeded: 0,
            dead_lettered: 0,
            cancelled: 0,
            expired: 0,
            skipped: BTreeMap::new(),
            last_skip: None,
        }
    }
}

/// Where the latest skip record is stored, with its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastSkip {
    /// Key of the ledger row in the history family.
    #[serde(with = "serde_bytes")]
    pub key: Vec<u8>,
    /// The record.
    pub record: SkipRecord,
}

/// Why a nominal time did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SkipReason {
    /// The schedule, or what it belongs to, was paused.
    Paused,
    /// An execution of it was open.
    Overlap,
    /// Too late, by its misfire policy.
    Misfire,
    /// The local date is excluded.
    Calendar,
    /// The wall time did not exist that day.
    DstGap,
    /// A quota refused the execution.
    Quota,
    /// An edit dropped it.
    Superseded,
}

impl SkipReason {
    /// The word in answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Paused => "paused",
            Self::Overlap => "overlap",
            Self::Misfire => "misfire",
            Self::Calendar => "calendar",
            Self::DstGap => "dst_gap",
            Self::Quota => "quota",
            Self::Superseded => "superseded",
        }
    }
}

/// A run of neighbouring nominal times that did not run for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkipRecord {
    /// First nominal time of the run.
    pub from: Timestamp,
    /// Last nominal time of the run.
    pub to: Timestamp,
    /// How many.
    pub count: u64,
    /// `count` is a lower bound (counting stopped at a million steps).
    pub at_least: bool,
    /// Why.
    pub reason: SkipReason,
    /// The open execution in the way, for `overlap`.
    pub blocker: Option<ExecutionId>,
    /// The lost wall time, for `dst_gap`; of several, the first and the last with a slash between them.
    pub local: Option<String>,
}
