//! Workers that the leader has seen.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::wire::Instant;

/// A worker seen since the present leader took office.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct Worker {
    /// Its id.
    pub worker_id: String,
    /// Queues of its last claim.
    pub queues: Vec<String>,
    /// First call.
    pub first_seen_at: Option<Instant>,
    /// Last call.
    pub last_seen_at: Option<Instant>,
    /// Live leases it holds.
    pub leased: u32,
    /// Claims that wait for work now.
    pub polling: u32,
    /// Told to claim no more.
    pub draining: bool,
    /// Labels of its last claim.
    pub labels: BTreeMap<String, String>,
}

/// Answer to a sign-off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SignedOff {
    /// The worker.
    pub worker_id: String,
    /// Leases given back; they spend no attempt.
    pub released: u32,
}
