//! Queues, concurrency keys and pauses.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::{Instant, Paused, Rate, Span};

/// What comes first inside a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum QueueOrder {
    /// Tenants share by weight, then priority inside each.
    #[default]
    FairFirst,
    /// Priority over all tenants, then fair inside each priority.
    PriorityFirst,
}

/// How long final executions are kept at least; `null`: the cluster's default. History is dropped in whole classes, so a
/// span counts as the next of 1 h, 6 h, 1 d, 3 d, 7 d, 14 d, 30 d, 90 d, 180 d and 400 d.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct QueueRetention {
    /// Succeeded ones.
    #[schema(default = "3d")]
    pub succeeded: Option<Span>,
    /// Cancelled and expired ones.
    #[schema(default = "30d")]
    pub other: Option<Span>,
    /// Dead letters.
    #[schema(default = "90d")]
    pub dead_lettered: Option<Span>,
}

/// A named line of work, served by workers of every tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Queue {
    /// Its name; must equal the one in the path.
    pub queue: Option<String>,
    /// Most executions waiting or ready; `null`: no bound.
    pub max_pending: Option<u64>,
    /// Most live leases; `null`: no bound.
    pub max_leased: Option<u64>,
    /// Grants per span; `null`: no bound.
    pub rate: Option<Rate>,
    /// What comes first.
    #[schema(default = "fair_first")]
    pub order: Option<QueueOrder>,
    /// Weight by tenant in this queue; others have their own.
    pub weights: Option<BTreeMap<String, u32>>,
    /// Tenants that may use it; `null`: all.
    pub allowed_tenants: Option<Vec<String>>,
    /// How long final executions are kept.
    pub retention: Option<QueueRetention>,
    /// Opaque; the ETag. Checked in a request if present.
    pub revision: Option<String>,
    /// Set by the server.
    #[schema(read_only)]
    pub status: Option<QueueStatus>,
}

/// What the server knows of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct QueueStatus {
    /// The pause, when paused.
    pub paused: Option<Paused>,
    /// When it came into being.
    pub created_at: Option<Instant>,
    /// Open executions.
    pub backlog: Backlog,
}

/// Open executions by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Backlog {
    /// Due later.
    pub waiting: u64,
    /// May be leased.
    pub ready: u64,
    /// Ready, but held back by a concurrency key.
    pub parked: u64,
    /// A worker has it.
    pub leased: u64,
    /// Waiting for the next attempt.
    pub backing_off: u64,
}

/// Answer of `…/stats`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct QueueStats {
    /// The queue.
    pub queue: String,
    /// Over all tenants.
    pub backlog: Backlog,
    /// Due time of the ready execution that has waited longest.
    pub oldest_due_at: Option<Instant>,
    /// How long it has waited.
    pub oldest_wait_ms: Option<u64>,
    /// Tenants with open executions, at most 1,000 by name.
    pub tenants: Vec<TenantStats>,
}

/// A tenant's share of a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TenantStats {
    /// The tenant.
    pub tenant: String,
    /// Its weight here.
    pub weight: u32,
    /// Its open executions.
    pub backlog: Backlog,
}

/// Limits of a concurrency key, over all queues of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct KeyLimits {
    /// The key; must equal the one in the path.
    pub key: Option<String>,
    /// Most live leases; `null`: no bound.
    pub max_leased: Option<u32>,
    /// Grants per span; `null`: no bound.
    pub rate: Option<Rate>,
    /// Live leases now. Set by the server.
    #[schema(read_only)]
    pub leased: Option<u64>,
    /// Executions held back now. Set by the server.
    #[schema(read_only)]
    pub parked: Option<u64>,
}

/// Whether a kind is paused, in every queue and for every tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct KindPause {
    /// The kind.
    pub kind: String,
    /// The pause, when paused.
    pub paused: Option<Paused>,
}

/// Body of `:pause` and `:resume` of a queue, tenant, kind or the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Pause {
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Ends by itself then; not with `:resume`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Instant>,
}
