//! Linearizable read barriers.
//!
//! Purpose: confirm with a majority, once for many readers, up to which index a read must be applied.
//! Callers: [`super::node`](super).
//! Invariants: a reader is served by a round that began after it asked; one round is under way at a time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::BarrierError;
use super::message::{Reply, Request};
use super::node::Shared;
use super::runtime::NodeRuntime;
use super::server::read_index;
use super::transport::Lane;
use crate::rt::TaskHandle;

type Answer = Result<u64, BarrierError>;

/// Pause before a round is tried again while no leader is known.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// The way to ask. Clones share it.
#[derive(Clone)]
pub(super) struct Barrier {
    ask: mpsc::UnboundedSender<oneshot::Sender<Answer>>,
}

impl Barrier {
    pub(super) async fn pass(self) -> Answer {
        let (tx, rx) = oneshot::channel();
        if self.ask.send(tx).is_err() {
            return Err(BarrierError::Stopped);
        }
        rx.await.unwrap_or(Err(BarrierError::Stopped))
    }
}

/// Starts the task that runs rounds.
pub(super) fn start<R: NodeRuntime>(shared: &Arc<Shared<R>>) -> (Barrier, TaskHandle) {
    let (ask, mut asked) = mpsc::unbounded_channel::<oneshot::Sender<Answer>>();
    let weak = Arc::downgrade(shared);
    let rounds = async move {
        while let Some(first) = asked.recv().await {
            let mut readers = vec![first];
            while let Ok(next) = asked.try_recv() {
                readers.push(next);
            }
            let Some(shared) = weak.upgrade() else {
                return;
            };
            let answer = round(&shared).await;
            for reader in readers {
                let _reader_gone = reader.send(answer.clone());
            }
        }
    };
    let task = shared.rt.spawn("raft-barrier", Box::pin(rounds));
    (Barrier { ask }, task)
}

async fn round<R: NodeRuntime>(shared: &Shared<R>) -> Answer {
    let within = shared.settings.barrier_deadline();
    let attempts = async {
        loop {
            match ask_index(shared, within).await {
                Ok(index) => return shared.applied_at_least(index).await,
                Err(BarrierError::NoLeader) => tokio::time::sleep(RETRY_PAUSE).await,
                Err(other) => return Err(other),
            }
        }
    };
    match tokio::time::timeout(within, attempts).await {
        Ok(answer) => answer,
        Err(_) if shared.status().leader.is_none() => Err(BarrierError::NoLeader),
        Err(_) => Err(BarrierError::NoQuorum),
    }
}

/// The read index, from this node if it leads, else from the leader.
async fn ask_index<R: NodeRuntime>(
    shared: &Shared<R>,
    within: Duration,
) -> Result<u64, BarrierError> {
    let status = shared.status();
    if !status.running {
        return Err(BarrierError::Stopped);
    }
    let reply = match status.leader {
        None => return Err(BarrierError::NoLeader),
        Some(leader) if leader == shared.id => read_index(shared).await,
        Some(leader) => {
            let Some(address) = status.leader_address() else {
                return Err(BarrierError::NoLeader);
            };
            let request = Request::ReadIndex.encode();
            let call = shared
                .transport
                .call(leader, address, Lane::Control, request, within);
            match call.await.map(Reply::decode) {
                Ok(Ok(reply)) => reply,
                Ok(Err(_)) | Err(_) => return Err(BarrierError::NoLeader),
            }
        }
    };
    match reply {
        Reply::ReadIndex(index) => Ok(index),
        Reply::NoQuorum => Err(BarrierError::NoQuorum),
        _ => Err(BarrierError::NoLeader),
    }
}
