//! Finding and placing rows of the history family.
//!
//! Purpose: one rule for where a final execution is, for apply and for reads. Callers: `state`, `api` reads.
//! Invariant: a row in a bucket below its class's watermark is absent, bytes present or not.

use std::collections::BTreeSet;

use crate::fault::Fault;
use crate::ids::{ExecutionId, QueueNo, TenantNo};
use crate::model::cluster::ClusterState;
use crate::model::execution::{ExecutionState, FinalExecution};
use crate::model::history::ChosenId;
use crate::state::resident::Resident;
use crate::store::Family;
use crate::store::keys::{self, RetentionClass};
use crate::store::value;
use crate::time::{Millis, Timestamp};

/// Reads one row: apply reads through its overlay, everybody else through a view.
pub type GetRow<'a> = dyn FnMut(Family, &[u8]) -> Result<Option<Vec<u8>>, Fault> + 'a;

/// Default retention of succeeded executions.
pub const KEEP_SUCCEEDED: Millis = Millis::days(3);
/// Default retention of cancelled and expired executions.
pub const KEEP_OTHER: Millis = Millis::days(30);
/// Default retention of dead letters and audit records.
pub const KEEP_DEAD: Millis = Millis::days(90);

/// The retention class of an execution of `queue` that ends in `state`.
#[must_use]
pub fn class_for(resident: &Resident, queue: QueueNo, state: ExecutionState) -> RetentionClass {
    let spec = resident
        .queues
        .get(&queue)
        .map(|q| q.spec.retention)
        .unwrap_or_default();
    RetentionClass::for_span(match state {
        ExecutionState::Succeeded => spec.succeeded.unwrap_or(KEEP_SUCCEEDED),
        ExecutionState::DeadLettered => spec.dead_lettered.unwrap_or(KEEP_DEAD),
        _ => spec.other.unwrap_or(KEEP_OTHER),
    })
}

/// Whether rows of this bucket are still there.
#[must_use]
pub fn is_kept(cluster: &ClusterState, class: RetentionClass, bucket: u32) -> bool {
    cluster
        .history_from
        .get(usize::from(class.0))
        .is_none_or(|from| bucket >= *from)
}

/// The buckets of a class that may hold rows at `now`, newest first; at most 32.
pub fn kept_buckets(
    cluster: &ClusterState,
    class: RetentionClass,
    now: Timestamp,
) -> impl Iterator<Item = u32> + use<> {
    let first = cluster
        .history_from
        .get(usize::from(class.0))
        .copied()
        .unwrap_or(0);
    // A watermark that lags (no leader for long) must not make reads probe without bound.
    let newest = class.bucket(now);
    let oldest = first.max(newest.saturating_sub(31));
    (oldest..=newest).rev()
}

/// Finds a final execution. `get` reads one key. A chosen id costs two reads, a minted one probes the kept buckets,
/// newest first (absent keys are answered by filters).
///
/// # Errors
/// Any [`Fault`] of `get` or of decoding.
pub fn find_final(
    get: &mut GetRow<'_>,
    cluster: &ClusterState,
    now: Timestamp,
    tenant: TenantNo,
    id: &ExecutionId,
) -> Result<Option<(RetentionClass, u32, FinalExecution)>, Fault> {
    if let Some(bytes) = get(Family::Keys, &keys::pointer(id, tenant))? {
        let chosen: ChosenId = value::decode(&bytes)?;
        let Some((class, bucket)) = chosen.history else {
            return Ok(None);
        };
        return probe(get, cluster, RetentionClass(class), bucket, tenant, id);
    }
    for class in RetentionClass::all() {
        for bucket in kept_buckets(cluster, class, now) {
            let found = probe(get, cluster, class, bucket, tenant, id)?;
            if found.is_some() {
                return Ok(found);
            }
        }
    }
    Ok(None)
}

/// Retention classes in which the queues of now put final executions.
#[must_use]
pub fn classes_in_use(resident: &Resident) -> BTreeSet<RetentionClass> {
    let of = |queue: &QueueNo| {
        [
            ExecutionState::Succeeded,
            ExecutionState::Cancelled,
            ExecutionState::DeadLettered,
        ]
        .map(|state| class_for(resident, *queue, state))
    };
    resident.queues.keys().flat_map(of).collect()
}

/// Where [`find_recent`] looks.
#[derive(Clone, Copy, Debug)]
pub struct Recent<'a> {
    /// In these classes.
    pub classes: &'a BTreeSet<RetentionClass>,
    /// Log time.
    pub now: Timestamp,
    /// This far back.
    pub back: Millis,
}

/// As [`find_final`], for one that ended lately: a chosen id is always found, a minted one costs a few reads a class.
///
/// # Errors
/// Any [`Fault`] of `get` or of decoding.
pub fn find_recent(
    get: &mut GetRow<'_>,
    cluster: &ClusterState,
    recent: Recent<'_>,
    tenant: TenantNo,
    id: &ExecutionId,
) -> Result<Option<FinalExecution>, Fault> {
    if let Some(bytes) = get(Family::Keys, &keys::pointer(id, tenant))? {
        let chosen: ChosenId = value::decode(&bytes)?;
        let Some((class, bucket)) = chosen.history else {
            return Ok(None);
        };
        let found = probe(get, cluster, RetentionClass(class), bucket, tenant, id)?;
        return Ok(found.map(|(_, _, done)| done));
    }
    for class in recent.classes {
        let oldest = class.bucket(recent.now.minus(recent.back));
        for bucket in kept_buckets(cluster, *class, recent.now) {
            if bucket < oldest {
                break;
            }
            if let Some((_, _, done)) = probe(get, cluster, *class, bucket, tenant, id)? {
                return Ok(Some(done));
            }
        }
    }
    Ok(None)
}

fn probe(
    get: &mut GetRow<'_>,
    cluster: &ClusterState,
    class: RetentionClass,
    bucket: u32,
    tenant: TenantNo,
    id: &ExecutionId,
) -> Result<Option<(RetentionClass, u32, FinalExecution)>, Fault> {
    if !is_kept(cluster, class, bucket) {
        return Ok(None);
    }
    let key = keys::final_execution(class, bucket, tenant, id);
    let Some(bytes) = get(Family::History, &key)? else {
        return Ok(None);
    };
    Ok(Some((class, bucket, value::decode(&bytes)?)))
}
