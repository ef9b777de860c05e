//! Tenants: isolation and quota boundary.
//!
//! Callers: `state`, `leader::admission`, `api`. Held whole in memory on every node.

use serde::{Deserialize, Serialize};

use crate::ids::{Revision, TenantId};
use crate::model::policy::{PauseInfo, RateLimit};
use crate::time::Timestamp;

/// What a person defines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantSpec {
    /// Share of leased work in a queue, 1–10,000.
    pub weight: u32,
    /// Most live leases; `None`: no bound.
    pub max_leased: Option<u64>,
    /// Grants per span.
    pub rate: Option<RateLimit>,
    /// Most schedules; `None`: no bound.
    pub schedules_max: Option<u64>,
    /// Most open executions; `None`: no bound.
    pub open_executions_max: Option<u64>,
}

impl Default for TenantSpec {
    fn default() -> Self {
        Self {
            weight: 1,
            max_leased: None,
            rate: None,
            schedules_max: None,
            open_executions_max: None,
        }
    }
}

/// A tenant's row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Its name.
    pub id: TenantId,
    /// What a person defined.
    pub spec: TenantSpec,
    /// Paused: nothing of it fires or is granted.
    pub paused: Option<PauseInfo>,
    /// Log time of creation.
    pub created_at: Timestamp,
    /// The last change by a person.
    pub revision: Revision,
    /// GCRA state of `rate`.
    pub rate_tat_ns: u64,
}

/// What a tenant uses. Kept by apply, written once an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantUsage {
    /// Schedules, completed ones too.
    pub schedules: u64,
    /// Open executions.
    pub open: u64,
    /// Live leases.
    pub leased: u64,
}
