//! The audit log.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::Instant;

/// One change by a person, or by the server on a person's behalf.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AuditRecord {
    /// When, on the cluster's clock.
    pub at: Instant,
    /// The `X-Log-Index` of the write.
    pub log_index: u64,
    /// Who: a name, `anonymous`, or `leader` for the server itself.
    pub actor: String,
    /// What was done: object and verb, such as `schedule.pause`.
    pub action: String,
    /// Kind of the object: the first half of `action`.
    pub object: String,
    /// Owner of the object, or the tenant itself; `null`: it belongs to none.
    pub tenant: Option<String>,
    /// Name of the object.
    pub id: String,
    /// Why, in their words.
    pub reason: Option<String>,
    /// Id of the request.
    pub request_id: Option<String>,
}
