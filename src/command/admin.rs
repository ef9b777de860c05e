//! Commands about the cluster, tenants, queues, keys and pauses.

use serde::{Deserialize, Serialize};

use crate::command::Expect;
use crate::ids::{Kind, QueueId, TenantId};
use crate::model::policy::{PauseInfo, RateLimit};
use crate::model::queue::QueueSpec;
use crate::model::tenant::TenantSpec;
use crate::store::due::Level;
use crate::time::Timestamp;

/// See each variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminCommand {
    /// A leader takes office, or renews it after a stall.
    TakeOffice(TakeOffice),
    /// Nothing is due earlier than these times.
    AdvanceWatermarks(AdvanceWatermarks),
    /// History and idempotency buckets whose time has passed.
    AdvanceRetention(AdvanceRetention),
    /// Creates or replaces a tenant.
    PutTenant(PutTenant),
    /// Creates or replaces a queue.
    PutQueue(PutQueue),
    /// Deletes an empty queue.
    DeleteQueue(DeleteQueue),
    /// Sets the limits of a concurrency key.
    PutKey(PutKey),
    /// Pauses or resumes the cluster, a tenant, a queue or a kind.
    SetPause(SetPause),
    /// Sets the zone data release in use, or the index base.
    PutSettings(PutSettings),
}

/// Puts the batch's term in office: `took_office_at` becomes log time, and every live lease lasts at least its
/// duration from there. Refused when a later term is in office already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakeOffice {
    /// Node that leads the term.
    pub node: u64,
}

/// Raises watermarks. A time above log time is cut to it; a lower one than the present changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdvanceWatermarks {
    /// Per level: a view whose log time was at least this held no earlier entry.
    pub levels: Vec<(Level, Timestamp)>,
}

/// Raises the first kept bucket of retention classes (to what log time allows), after which their rows are absent.
/// `forget` deletes pointers of chosen ids whose final executions go with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdvanceRetention {
    /// Class number and first bucket kept.
    pub classes: Vec<(u8, u32)>,
    /// First idempotency bucket kept.
    pub idempotency_from: Option<u32>,
    /// Chosen ids to forget, at most 900.
    pub forget: Vec<(TenantId, String)>,
}

/// Creates or replaces a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutTenant {
    /// Its name.
    pub tenant: TenantId,
    /// Its definition.
    pub spec: TenantSpec,
    /// What must hold.
    pub expect: Expect,
}

/// Creates or replaces a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutQueue {
    /// Its name.
    pub queue: QueueId,
    /// Its definition.
    pub spec: QueueSpec,
    /// What must hold.
    pub expect: Expect,
}

/// Deletes a queue that holds no open execution and that no schedule names (else refused `queue_in_use`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteQueue {
    /// Its name.
    pub queue: QueueId,
    /// What must hold.
    pub expect: Expect,
}

/// Sets the limits of a concurrency key; promotes what a higher limit admits (bounded; the leader repeats it).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutKey {
    /// Its tenant.
    pub tenant: TenantId,
    /// The key.
    pub key: String,
    /// Most live leases; `None`: no bound.
    pub max_leased: Option<u32>,
    /// Grants per span.
    pub rate: Option<RateLimit>,
}

/// What a pause holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PauseScope {
    /// Everything.
    Cluster,
    /// One tenant.
    Tenant(TenantId),
    /// One queue.
    Queue(QueueId),
    /// One kind, in every queue.
    Kind(Kind),
}

/// Sets (`Some`) or lifts (`None`) a pause. A repeat of the present state changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetPause {
    /// What.
    pub scope: PauseScope,
    /// The pause (`since` is set by apply), or `None` to resume.
    pub pause: Option<PauseInfo>,
}

/// Settings of the cluster; `None` leaves one as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PutSettings {
    /// Zone data release used for planning.
    pub zone_release: Option<String>,
    /// Added to log indexes wherever they leave the node; only grows (a multiple of 2^40, set by a restore).
    pub index_base: Option<u64>,
}
