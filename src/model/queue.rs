//! Queues, their limits and their counts.
//!
//! Callers: `state`, `leader::admission`, `api`. Held whole in memory on every node.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::ids::{QueueId, Revision, TenantId};
use crate::model::policy::{PauseInfo, RateLimit};
use crate::time::{Millis, Timestamp};

/// What comes first inside a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueueOrder {
    /// Tenants share by weight, then priority inside each.
    #[default]
    FairFirst,
    /// Priority over all tenants, then fair inside each priority.
    PriorityFirst,
}

/// What a person defines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueSpec {
    /// Most executions ready or waiting in it; `None`: no bound.
    pub max_pending: Option<u64>,
    /// Most live leases; `None`: no bound.
    pub max_leased: Option<u64>,
    /// Grants per span.
    pub rate: Option<RateLimit>,
    /// What comes first.
    pub order: QueueOrder,
    /// Weight by tenant here; others have their own.
    pub weights: BTreeMap<TenantId, u32>,
    /// Who may use it; `None`: everybody.
    pub allowed_tenants: Option<BTreeSet<TenantId>>,
    /// How long final executions are kept: succeeded ones, others, dead letters. `None`: the cluster's default.
    pub retention: QueueRetention,
}

/// Retention of final executions; `None`: the cluster's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRetention {
    /// Of succeeded ones.
    pub succeeded: Option<Millis>,
    /// Of cancelled and expired ones.
    pub other: Option<Millis>,
    /// Of dead letters.
    pub dead_lettered: Option<Millis>,
}

/// A queue's row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Queue {
    /// Its name.
    pub id: QueueId,
    /// What a person defined.
    pub spec: QueueSpec,
    /// Paused: nothing is granted from it.
    pub paused: Option<PauseInfo>,
    /// Log time of creation.
    pub created_at: Timestamp,
    /// The last change by a person.
    pub revision: Revision,
    /// GCRA state of `rate`: theoretical arrival time in nanoseconds since the epoch.
    pub rate_tat_ns: u64,
}

/// What is left of a deleted queue: its name, for executions in history that ran in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletedQueue {
    /// Its name. Another queue may have it now, under another number.
    pub id: QueueId,
    /// Log time of the deletion.
    pub deleted_at: Timestamp,
}

/// Counts of open executions (and of schedules) of one tenant in one queue. Kept by apply, written once an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LineCounts {
    /// Due later.
    pub waiting: u64,
    /// In the ready line.
    pub ready: u64,
    /// Ready, but parked at a concurrency key.
    pub parked: u64,
    /// Leased.
    pub leased: u64,
    /// Backing off.
    pub backing_off: u64,
    /// Schedules of the tenant that name the queue, completed ones too. Not executions: not in [`LineCounts::open`].
    pub schedules: u64,
}

impl LineCounts {
    /// Open executions in all.
    #[must_use]
    pub const fn open(&self) -> u64 {
        self.waiting
            .saturating_add(self.ready)
            .saturating_add(self.parked)
            .saturating_add(self.leased)
            .saturating_add(self.backing_off)
    }
}

/// A concurrency key's limits and usage (per tenant, over queues).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyState {
    /// Most live leases; `None`: no bound (then nothing is parked).
    pub max_leased: Option<u32>,
    /// Grants per span.
    pub rate: Option<RateLimit>,
    /// GCRA state of `rate`.
    pub rate_tat_ns: u64,
    /// Executions parked. (Leases of the key are counted from the live leases, not here.)
    pub parked: u64,
}
