//! JSON types of the HTTP contract.
//!
//! Purpose: one set of types for server, client, worker and command line; the OpenAPI document is generated from
//! them. Callers: `api`, `client`, `worker`, `cli`. They use nothing of ours but `time`.
//! Invariants:
//! 1. Reading is lenient here (a client ignores unknown fields); the server refuses unknown fields of requests on
//!    top of it (`api::body`).
//! 2. In a request, a field that is `null` or left out means its documented default; zero means zero. An answer
//!    shows the concrete value.
//! 3. Instants are RFC 3339 (any offset in, UTC with milliseconds out), durations are text such as `1h30m`, and
//!    integers in milliseconds have names that end in `_ms`. Integers stay below 2^53.
//!
//! ```
//! use punctual::wire::{Rule, Schedule};
//!
//! let schedule = Schedule {
//!     rule: Rule { cron: Some("0 9 * * MON-FRI".into()), ..Rule::default() },
//!     ..Schedule::default()
//! };
//! let text = serde_json::to_string(&schedule)?;
//! assert!(text.contains("0 9 * * MON-FRI"));
//! # Ok::<(), serde_json::Error>(())
//! ```

mod audit;
mod cluster;
mod execution;
mod lease;
pub mod limits;
mod page;
mod policy;
mod preview;
mod problem;
mod queue;
mod scalar;
mod schedule;
mod tenant;
mod worker;

pub use audit::AuditRecord;
pub use cluster::{
    AddMember, AdvanceClock, ClockNow, Cluster, ClusterLimits, Figure, Health, HealthCheck, Member,
    TransferLeadership, Transferred,
};
pub use execution::{
    Attempt, Cancel, CancelMode, CancelRequested, CancelResult, Cancelled, Cause, Execution,
    ExecutionState, OnConflict, SubmitBatch, SubmitBatchResult, SubmitExecution, SubmitResult,
    Unique,
};
pub use lease::{
    Claim, ClaimResult, CompleteItem, CompleteLeases, FailItem, FailLeases, Lease, LeaseRef,
    ReleaseItem, ReleaseLeases, RenewItem, RenewLeases, ReportAction, ReportItem, ReportLeases,
    ReportResult, ReportResults, ReportStatus, RevokeItem, RevokeLeases, RevokeResult, WorkerError,
};
pub use page::{ItemStatus, Page};
pub use policy::{
    CatchUp, Misfire, MisfirePolicy, OnCompleted, Overlap, OverlapPolicy, PastPolicy, Paused, Rate,
    RetryPolicy, Timeouts,
};
pub use preview::{
    NextOccurrences, PlannedOccurrence, Preview, PreviewResult, PreviewedOccurrence, RetryDelay,
    RetryPreview, RetryPreviewResult, ZoneChange,
};
pub use problem::{FieldError, Problem};
pub use queue::{
    Backlog, KeyLimits, KindPause, Pause, Queue, QueueOrder, QueueRetention, QueueStats,
    QueueStatus, TenantStats,
};
pub use scalar::{Instant, Json, Span};
pub use schedule::{
    DayMatch, Dialect, DstGap, DstOverlap, Generation, LastOutcome, NextOccurrence, OccurrenceKind,
    OccurrenceRecord, OpenCounts, PauseSchedule, ResumeResult, ResumeSchedule, Rule, Schedule,
    ScheduleBatch, ScheduleBatchResult, ScheduleResult, ScheduleState, ScheduleStatus, Totals,
    TriggerResult, TriggerSchedule, Warning,
};
pub use tenant::{Tenant, TenantStatus, TenantUsage};
pub use worker::{SignedOff, Worker};
