//! Proposals on their way into the log.
//!
//! Purpose: give each proposal its place when it is made, and tell exactly what became of it.
//! Callers: [`super::node`](super).
//! Invariants: proposals reach Raft in the order of the calls; count and bytes in flight are bounded. A call hands its
//! proposal to Raft itself when it can do so without waiting and nothing waits before it; otherwise one task does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use openraft::alias::OneshotReceiverOf;
use openraft::error::ClientWriteError;
use openraft::impls::ProgressResponder;
use openraft::impls::leader_id_adv::LeaderId;
use openraft::raft::ClientWriteResult;
use tokio::sync::{Semaphore, mpsc};

use super::node::{RaftOf, Shared};
use super::runtime::NodeRuntime;
use super::settings::PROPOSAL_BYTES_MAX;
use super::types::{BatchBytes, Types, to_machine};
use super::{Committed, ProposeError};
use crate::rt::TaskHandle;

type Outcome<R> = ClientWriteResult<Types<R>>;

struct Queued<R: NodeRuntime> {
    term: u64,
    payload: Bytes,
    responder: ProgressResponder<Types<R>, Outcome<R>>,
}

/// The way in. Clones share it.
pub(super) struct Proposals<R: NodeRuntime> {
    raft: RaftOf<R>,
    node: u64,
    /// Proposals that the task has not handed to Raft yet.
    waiting: Arc<AtomicUsize>,
    queue: mpsc::UnboundedSender<Queued<R>>,
    slots: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

impl<R: NodeRuntime> Clone for Proposals<R> {
    fn clone(&self) -> Self {
        Self {
            raft: self.raft.clone(),
            node: self.node,
            waiting: Arc::clone(&self.waiting),
            queue: self.queue.clone(),
            slots: Arc::clone(&self.slots),
            bytes: Arc::clone(&self.bytes),
        }
    }
}

/// Starts the task that feeds Raft.
pub(super) fn start<R: NodeRuntime>(shared: &Arc<Shared<R>>) -> (Proposals<R>, TaskHandle) {
    // Unbounded in type only: every item holds a slot and its bytes until it is answered or given up.
    let (queue, mut queued) = mpsc::unbounded_channel::<Queued<R>>();
    let raft = shared.raft.clone();
    let node = shared.id;
    let waiting = Arc::new(AtomicUsize::new(0));
    let handed_over = Arc::clone(&waiting);
    let feed = async move {
        while let Some(next) = queued.recv().await {
            let sent = hand_over(&raft, node, next).await;
            handed_over.fetch_sub(1, Ordering::Release);
            if !sent {
                return;
            }
        }
    };
    let task = shared.rt.spawn("raft-propose", Box::pin(feed));
    let bytes = shared
        .settings
        .proposal_bytes_max
        .clamp(PROPOSAL_BYTES_MAX, Semaphore::MAX_PERMITS);
    let proposals = Proposals {
        raft: shared.raft.clone(),
        node,
        waiting,
        queue,
        slots: Arc::new(Semaphore::new(shared.settings.proposals_max.max(1))),
        bytes: Arc::new(Semaphore::new(bytes)),
    };
    (proposals, task)
}

/// Gives a proposal to Raft; `false` when Raft has stopped.
async fn hand_over<R: NodeRuntime>(raft: &RaftOf<R>, node: u64, next: Queued<R>) -> bool {
    let office = LeaderId {
        term: next.term,
        node_id: node,
    };
    raft.write(BatchBytes(next.payload))
        .with_leader(office)
        .responder(next.responder)
        .await
        .is_ok()
}

impl<R: NodeRuntime> Proposals<R> {
    pub(super) fn propose(
        &self,
        term: u64,
        payload: Bytes,
    ) -> BoxFuture<'static, Result<Committed, ProposeError>> {
        let room = u32::try_from(payload.len().max(1))
            .ok()
            .filter(|_| payload.len() <= PROPOSAL_BYTES_MAX)
            .and_then(|len| {
                let slot = Arc::clone(&self.slots).try_acquire_owned().ok()?;
                let bytes = Arc::clone(&self.bytes).try_acquire_many_owned(len).ok()?;
                Some((slot, bytes))
            });
        let Some(room) = room else {
            return Box::pin(std::future::ready(Err(ProposeError::Overloaded)));
        };
        let Some(answer) = self.send(term, payload) else {
            return Box::pin(std::future::ready(Err(ProposeError::Stopped)));
        };
        Box::pin(async move {
            let _room = room;
            settle::<R>(answer).await
        })
    }

    /// Answers where the outcome will come; `None` when Raft has stopped.
    fn send(&self, term: u64, payload: Bytes) -> Option<OneshotReceiverOf<Types<R>, Outcome<R>>> {
        if self.waiting.load(Ordering::Acquire) == 0 {
            let (responder, answer) = ProgressResponder::complete_only();
            let direct = Queued {
                term,
                payload: payload.clone(),
                responder,
            };
            // Not ready: Raft's own queue is full or this task's turn is used up, and nothing was sent.
            match hand_over(&self.raft, self.node, direct).now_or_never() {
                Some(true) => return Some(answer),
                Some(false) => return None,
                None => {}
            }
        }
        let (responder, answer) = ProgressResponder::complete_only();
        let queued = Queued {
            term,
            payload,
            responder,
        };
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.queue.send(queued).ok().map(|()| answer)
    }
}

async fn settle<R: NodeRuntime>(
    answer: OneshotReceiverOf<Types<R>, Outcome<R>>,
) -> Result<Committed, ProposeError> {
    // Raft drops the other end only when it stops.
    let outcome = answer.await.map_err(|_| ProposeError::Stopped)?;
    match outcome {
        Ok(response) => Ok(Committed {
            position: to_machine(&response.log_id),
            answer: response.data.0,
        }),
        // Answered before anything is appended.
        Err(ClientWriteError::ForwardToLeader(to)) => Err(ProposeError::NotLeader {
            leader: to.leader_id,
        }),
        Err(ClientWriteError::PreconditionFailed(_)) => {
            Err(ProposeError::NotLeader { leader: None })
        }
        // Truncated or replaced by a snapshot here; another node may still hold and commit it.
        Err(
            ClientWriteError::LogEntryDiscarded(_) | ClientWriteError::ChangeMembershipError(_),
        ) => Err(ProposeError::Unknown),
    }
}
