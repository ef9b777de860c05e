//! Tenants.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::{Instant, Paused, Rate};

/// An isolation and quota boundary.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Tenant {
    /// Its name; must equal the one in the path.
    pub tenant: Option<String>,
    /// Share of leased work in a queue.
    #[schema(default = 1, minimum = 1, maximum = 10_000)]
    pub weight: Option<u32>,
    /// Most live leases; `null`: no bound.
    pub max_leased: Option<u64>,
    /// Grants per span; `null`: no bound.
    pub rate: Option<Rate>,
    /// Most schedules; `null`: no bound.
    pub schedules_max: Option<u64>,
    /// Most open executions; `null`: no bound.
    pub open_executions_max: Option<u64>,
    /// Opaque; the ETag. Checked in a request if present.
    pub revision: Option<String>,
    /// Set by the server.
    #[schema(read_only)]
    pub status: Option<TenantStatus>,
}

/// What the server knows of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TenantStatus {
    /// The pause, when paused.
    pub paused: Option<Paused>,
    /// When it came into being.
    pub created_at: Option<Instant>,
}

/// What a tenant uses, beside its quotas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TenantUsage {
    /// The tenant.
    pub tenant: String,
    /// Schedules, completed ones too.
    pub schedules: u64,
    /// Quota of `schedules`.
    pub schedules_max: Option<u64>,
    /// Open executions.
    pub open_executions: u64,
    /// Quota of `open_executions`.
    pub open_executions_max: Option<u64>,
    /// Live leases.
    pub leased: u64,
    /// Limit of `leased`.
    pub max_leased: Option<u64>,
}
