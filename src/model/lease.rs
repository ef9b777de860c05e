//! Leases: the time-limited exclusive right of one worker to one attempt.
//!
//! Callers: `state`, `leader` (deadline wheel), `api`. One row each in the live family, all held in memory on
//! every node. Invariant: at most one per execution; its token is larger than that of any earlier one.

use serde::{Deserialize, Serialize};

use crate::ids::{ExecutionId, QueueNo, TenantNo, WorkerId};
use crate::model::execution::AttemptOutcome;
use crate::time::{Millis, Timestamp};

/// A live lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Owner of the execution.
    pub tenant: TenantNo,
    /// The execution.
    pub execution: ExecutionId,
    /// Its queue.
    pub queue: QueueNo,
    /// Attempt number, from 1.
    pub attempt: u32,
    /// Log index of the granting entry plus the index base.
    pub fencing_token: u64,
    /// Who has it.
    pub worker: WorkerId,
    /// The claim that got it: a repeated claim finds it again.
    pub request_id: Option<String>,
    /// Concurrency key whose slot it uses.
    pub concurrency_key: Option<String>,
    /// Log time of the grant.
    pub granted_at: Timestamp,
    /// Length asked for; each renewal gives at least this again.
    pub duration: Millis,
    /// Log time at which it ends unless renewed. The effective deadline is
    /// max(this, took_office_at + duration): an election by itself expires nothing.
    pub deadline_at: Timestamp,
    /// Log time at which `timeouts.attempt` ends it; `None`: never.
    pub attempt_deadline_at: Option<Timestamp>,
    /// Log time at which `timeouts.total` ends it; `None`: never.
    pub total_deadline_at: Option<Timestamp>,
    /// Log time by which the worker must confirm the start (first renewal); `None`: confirmed or not asked for.
    pub confirm_by_at: Option<Timestamp>,
    /// A cancel was requested: told on the next renewal answer.
    pub cancel_requested: bool,
    /// Last progress (JSON text, at most 16 KiB); empty: none yet under this lease.
    #[serde(with = "serde_bytes")]
    pub progress: Vec<u8>,
}

impl Lease {
    /// The deadline with the grace that the last taking of office gives.
    #[must_use]
    pub fn effective_deadline(&self, took_office_at: Timestamp) -> Timestamp {
        self.deadline_at.max(took_office_at.plus(self.duration))
    }

    /// The start confirmation's deadline, with a fresh window after the last taking of office.
    fn effective_confirm_by(&self, took_office_at: Timestamp) -> Option<Timestamp> {
        let by = self.confirm_by_at?;
        Some(by.max(took_office_at.plus(by.since(self.granted_at))))
    }

    /// The first instant at which something ends this lease without a call from its worker.
    #[must_use]
    pub fn ends_at(&self, took_office_at: Timestamp) -> Timestamp {
        self.first_bound(took_office_at).0
    }

    /// The first instant at which something ends this lease without a call from its worker, and how its attempt ends
    /// then. The lease lives strictly before it. Of bounds at one instant, the wider one decides: total, attempt,
    /// start confirmation, deadline.
    #[must_use]
    pub fn first_bound(&self, took_office_at: Timestamp) -> (Timestamp, AttemptOutcome) {
        let mut first = (
            self.effective_deadline(took_office_at),
            AttemptOutcome::LeaseExpired,
        );
        let bounds = [
            (
                self.effective_confirm_by(took_office_at),
                AttemptOutcome::StartUnconfirmed,
            ),
            (self.attempt_deadline_at, AttemptOutcome::AttemptTimeout),
            (self.total_deadline_at, AttemptOutcome::TotalTimeout),
        ];
        for (at, outcome) in bounds {
            if let Some(at) = at.filter(|at| *at <= first.0) {
                first = (at, outcome);
            }
        }
        first
    }
}
