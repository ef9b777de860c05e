//! The leader: the only place that makes things happen by themselves.
//!
//! Purpose: while this node leads, take office, rebuild the wheel, the lines and the waiters from the store, fire what
//! is due, grant leases, expire them, and carry commands into the log in batches.
//! Callers: `api::actions` and `node`, through [`Scheduler`].
//! Invariants:
//! 1. Everything here is volatile and rebuilt from the store; losing it costs latency, never correctness.
//! 2. It makes commands and proposes them in the term in which it took office; it never writes the store.

pub mod admission;
pub mod claims;
pub mod clock;
pub mod due_index;
pub mod expiry;
pub mod fair;
pub mod figures;
pub mod firing;
pub mod handle;
pub mod inbox;
pub mod lines;
mod office;
pub mod peer_clocks;
pub mod planner;
pub mod proposer;
pub mod rules;
pub mod sweeps;
pub mod waiters;
pub mod wheel;
pub mod workers;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use futures::future::BoxFuture;

use crate::command::Envelope;
use crate::command::leases::ReportItem;
use crate::command::outcome::{Granted, Outcome, ReportResult};
use crate::ids::{ExecutionId, Kind, QueueId, ScheduleId, TenantNo, WorkerId};
use crate::time::{Millis, Timestamp};

pub use handle::{Leader, LeaderParts, LeaderSettings};

/// Why the leader of this node cannot answer now. Nothing was applied unless it is [`Unavailable::Unknown`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// This node does not lead (or is still rebuilding).
    #[error("this node is not the leader")]
    NotLeader {
        /// Who leads, as far as it knows.
        leader: Option<u64>,
    },
    /// A queue in front of the log is full.
    #[error("too much work is waiting to be written")]
    Overloaded {
        /// When to try again.
        retry_after: Millis,
    },
    /// Leadership was lost after the command was handed over: it may or may not have been applied.
    #[error("leadership was lost while the command was under way; its fate is unknown")]
    Unknown,
    /// The node stops.
    #[error("the node is stopping")]
    Stopping,
    /// A command is larger than a log entry may be.
    #[error("{0}")]
    TooLarge(String),
}

/// The answer to one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Log index (base included) of the entry that carried it: `X-Log-Index`.
    pub index: u64,
    /// What apply said.
    pub outcome: Outcome,
}

/// A worker's wish for work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Who.
    pub worker: WorkerId,
    /// Id of the claim: a repeat within five minutes gets the same live leases.
    pub request_id: Option<String>,
    /// Queues, in order of preference; 1–32.
    pub queues: Vec<QueueId>,
    /// Most leases, 1–1,000.
    pub max: u32,
    /// Most payload bytes (the first lease is given whatever its size).
    pub max_bytes: u64,
    /// How long to wait for work; zero: do not.
    pub wait: Millis,
    /// Length of each lease.
    pub lease: Millis,
    /// Most leases that this worker may hold; `None`: no bound.
    pub slots: Option<u32>,
    /// Handlers it has; `None`: all.
    pub kinds: Option<Vec<Kind>>,
    /// What it shows to `requires`.
    pub labels: BTreeMap<String, String>,
    /// Must confirm the start within this.
    pub start_confirmation: Option<Millis>,
    /// Applied first, in the same log entry as the grant when one follows at once.
    pub reports: Vec<ReportItem>,
}

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// What was granted, with the remaining time counted from `now`.
    pub leases: Vec<Granted>,
    /// Payloads stored apart, by position in `leases`; `None`: inline.
    pub bodies: Vec<Option<Vec<u8>>>,
    /// Answers to `reports`.
    pub reports: Vec<ReportResult>,
    /// The leases are those of an earlier claim with the same request id.
    pub replayed: bool,
    /// Claim no more.
    pub drain: bool,
    /// How long to wait before the next claim.
    pub poll_after: Millis,
    /// Log time of the answer.
    pub now: Timestamp,
    /// When each lease ends unless renewed (effective deadline), by position.
    pub deadlines: Vec<Timestamp>,
}

/// Answers to a worker's report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reported {
    /// By item.
    pub results: Vec<ReportResult>,
    /// Claim no more.
    pub drain: bool,
    /// Log index of the entry.
    pub index: u64,
}

/// A worker seen by this leader since it took office.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSeen {
    /// Its id.
    pub worker: WorkerId,
    /// Queues of its last claim.
    pub queues: Vec<QueueId>,
    /// First call in this term of office.
    pub first_seen_at: Timestamp,
    /// Last call.
    pub last_seen_at: Timestamp,
    /// Live leases it holds.
    pub leased: u32,
    /// Claims waiting now.
    pub polling: u32,
    /// Told to claim no more.
    pub draining: bool,
    /// Labels of its last claim.
    pub labels: BTreeMap<String, String>,
}

/// What the rest of the node asks of the leader loop. All futures are safe to drop; a dropped command may still commit;
/// leases granted to a dropped claim are given back without spending an attempt.
pub trait Scheduler: Send + Sync + 'static {
    /// Carries commands into the log (API lane), in order, several to an entry where they fit. Answers by position.
    fn submit(
        &self,
        commands: Vec<Envelope>,
    ) -> BoxFuture<'static, Result<Vec<Answer>, Unavailable>>;

    /// Decides what is already due of one schedule and waits for it: called before an edit, pause, resume or delete is
    /// planned. Answers at once when nothing is due.
    fn settle(
        &self,
        tenant: TenantNo,
        schedule: ScheduleId,
    ) -> BoxFuture<'static, Result<(), Unavailable>>;

    /// Resolves when everything that is due at `until` has been decided: fired, skipped, expired. The log's time must reach
    /// `until` first. Meant for the development clock; under a steady stream of due work it may wait for long.
    fn caught_up(&self, until: Timestamp) -> BoxFuture<'static, Result<(), Unavailable>>;

    /// Grants work to a worker, waiting up to `claim.wait`.
    fn claim(&self, claim: Claim) -> BoxFuture<'static, Result<Claimed, Unavailable>>;

    /// Renewals and reports of one worker. Coalesced with others.
    fn report(
        &self,
        worker: WorkerId,
        items: Vec<ReportItem>,
    ) -> BoxFuture<'static, Result<Reported, Unavailable>>;

    /// Resolves when the execution is final, or when `wait` has passed (`false`).
    fn wait_final(
        &self,
        tenant: TenantNo,
        execution: ExecutionId,
        wait: Millis,
    ) -> BoxFuture<'static, Result<bool, Unavailable>>;

    /// Workers seen, by id.
    fn workers(&self) -> Vec<WorkerSeen>;

    /// Tells a worker to claim no more. `false`: not seen.
    fn drain_worker(&self, worker: &WorkerId) -> bool;

    /// Ends a worker's polls and gives its leases back, no attempt spent. Answers how many.
    fn sign_off(&self, worker: WorkerId) -> BoxFuture<'static, Result<u32, Unavailable>>;

    /// Now on the leader's replicated clock (what the next entry would be stamped), for remaining times and previews.
    fn now(&self) -> Timestamp;

    /// Whether this node is in office and has rebuilt.
    fn in_office(&self) -> bool;

    /// Figures for metrics and status: names as in `/metrics`, values now. Bounded in number.
    fn figures(&self) -> Vec<Figure>;
}

/// One figure of the leader.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// Metric name without the `punctual_` prefix.
    pub name: &'static str,
    /// Labels.
    pub labels: Vec<(&'static str, String)>,
    /// Value.
    pub value: f64,
}
