//! A claim on its way from its caller to the office and back.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use crate::command::outcome::Granted;
use crate::ids::WorkerId;
use crate::leader::handle::Shared;
use crate::leader::inbox::{LeaseName, Message};
use crate::leader::{Claim, Claimed, Unavailable};
use crate::model::execution::StoredPayload;
use crate::store::{Family, keys};
use crate::time::{Millis, Timestamp};

/// A claim on its way: when it is dropped, the office is told, and what was granted meanwhile is given back.
pub(super) struct ClaimCall {
    shared: Arc<Shared>,
    pub(super) id: u64,
    worker: WorkerId,
    receive: Option<oneshot::Receiver<Result<Claimed, Unavailable>>>,
}

impl ClaimCall {
    pub(super) fn begin(
        shared: &Arc<Shared>,
        claim: &Claim,
        receive: oneshot::Receiver<Result<Claimed, Unavailable>>,
        now: Timestamp,
    ) -> Result<Self, Unavailable> {
        let call = Self {
            shared: Arc::clone(shared),
            id: shared.next_claim.fetch_add(1, Ordering::Relaxed),
            worker: claim.worker.clone(),
            receive: Some(receive),
        };
        shared.workers.lock().polls(claim, now);
        if shared.claims.fetch_add(1, Ordering::Relaxed) >= shared.settings.claims_max {
            return Err(Unavailable::Overloaded {
                retry_after: Millis::secs(1),
            });
        }
        Ok(call)
    }

    pub(super) async fn finish(mut self) -> Result<Claimed, Unavailable> {
        let Some(receive) = self.receive.as_mut() else {
            return Err(Unavailable::Unknown);
        };
        let claimed = receive.await.unwrap_or(Err(Unavailable::Unknown));
        self.receive = None;
        let mut claimed = claimed?;
        self.read_bodies(&mut claimed);
        Ok(claimed)
    }

    /// Reads payloads that are stored apart. One that is gone belongs to an execution that has ended meanwhile: its
    /// lease is over and is left out.
    fn read_bodies(&self, claimed: &mut Claimed) {
        let store = self.shared.replica.store();
        let mut bodies = Vec::with_capacity(claimed.leases.len());
        let mut kept = Vec::with_capacity(claimed.leases.len());
        for granted in &claimed.leases {
            let execution = &granted.execution;
            if execution.payload == StoredPayload::Inline {
                bodies.push(None);
                kept.push(true);
                continue;
            }
            let key = keys::body(execution.tenant, &execution.id);
            match store.get(Family::Body, &key) {
                Ok(Some(body)) => {
                    bodies.push(Some(body));
                    kept.push(true);
                }
                Ok(None) => kept.push(false),
                Err(fault) => {
                    tracing::error!(execution = %execution.id, "cannot read a payload: {fault}");
                    kept.push(false);
                }
            }
        }
        let mut keep = kept.iter().copied();
        claimed.leases.retain(|_| keep.next().unwrap_or(true));
        let mut keep = kept.iter().copied();
        claimed.deadlines.retain(|_| keep.next().unwrap_or(true));
        claimed.bodies = bodies;
    }
}

impl Drop for ClaimCall {
    fn drop(&mut self) {
        self.shared.workers.lock().polled(&self.worker);
        self.shared.claims.fetch_sub(1, Ordering::Relaxed);
        let Some(mut receive) = self.receive.take() else {
            return;
        };
        receive.close();
        let message = match receive.try_recv() {
            Ok(Ok(claimed)) => {
                let name = |g: &Granted| -> LeaseName {
                    let lease = &g.lease;
                    (lease.tenant, lease.execution.clone(), lease.fencing_token)
                };
                Message::Undelivered {
                    worker: self.worker.clone(),
                    leases: claimed.leases.iter().map(name).collect(),
                }
            }
            Ok(Err(_)) => return,
            Err(_) => Message::HangUp(self.id),
        };
        let _not_in_office = self.shared.inbox.push(message);
    }
}
