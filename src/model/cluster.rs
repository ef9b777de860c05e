//! The cluster's singleton state.
//!
//! Callers: `state`, `leader`, `api`. One row in the meta family, written when it changes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ids::{Kind, Revision};
use crate::model::policy::PauseInfo;
use crate::store::due::Level;
use crate::store::keys::RetentionClass;
use crate::time::Timestamp;

/// What the whole cluster shares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterState {
    /// Term in office; only its batches change anything. Moved by `TakeOffice`.
    pub office_term: u64,
    /// Node that leads it.
    pub office_node: u64,
    /// Log time of the last taking or renewal of office: the grace of every live lease starts here.
    pub took_office_at: Timestamp,
    /// Added to log indexes wherever they leave the node.
    pub index_base: u64,
    /// Next number for a tenant.
    pub next_tenant: u32,
    /// Next number for a queue.
    pub next_queue: u32,
    /// Per level of the due index: no live entry is earlier.
    pub due_from: [Timestamp; Level::ALL.len()],
    /// Per retention class: first bucket kept; rows of earlier ones are absent, bytes present or not.
    pub history_from: [u32; RetentionClass::SPANS.len()],
    /// First idempotency bucket kept.
    pub idempotency_from: u32,
    /// Everything is paused.
    pub paused: Option<PauseInfo>,
    /// Kinds that are paused.
    pub paused_kinds: BTreeMap<Kind, PauseInfo>,
    /// Zone data release used for planning.
    pub zone_release: String,
    /// The last change by a person.
    pub revision: Revision,
}

impl Default for ClusterState {
    fn default() -> Self {
        Self {
            office_term: 0,
            office_node: 0,
            took_office_at: Timestamp::EPOCH,
            index_base: 0,
            next_tenant: 2,
            next_queue: 2,
            due_from: [Timestamp::MIN; Level::ALL.len()],
            history_from: [0; RetentionClass::SPANS.len()],
            idempotency_from: 0,
            paused: None,
            paused_kinds: BTreeMap::new(),
            zone_release: String::new(),
            revision: Revision::default(),
        }
    }
}
