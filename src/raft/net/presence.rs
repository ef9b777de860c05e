//! Who a node is to the others, by number and by data directory.
//!
//! Callers: `connect` and `listen` in every handshake; `node` at start. See [`Births`] for why.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::{BoxFuture, join_all};

use super::super::transport::PeerTransport;
use super::super::{Consensus, NodeAddress};
use super::TcpTransport;
use crate::rt::{Runtime, TaskHandle, blocking};
use crate::store::log::births::{Births, Met};

/// Called when node (the argument) knows this node's number by another data directory. Production ends the process.
pub type OnReplaced = Arc<dyn Fn(u64) + Send + Sync>;

/// How often members that were not met are greeted.
const GREET_EVERY: Duration = Duration::from_secs(2);
/// How long one of them may take.
const GREET: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Clone)]
pub struct Presence {
    /// This node.
    pub id: u64,
    /// Its cluster.
    pub cluster: String,
    /// Its data directory, and those of the others.
    pub births: Arc<Births>,
    /// What to do when another node knows this number by another data directory.
    pub on_replaced: OnReplaced,
}

impl Presence {
    /// Whether `birth` is the one that is known of `node`, or the first.
    pub(super) async fn meet(&self, rt: &dyn Runtime, node: u64, birth: u64) -> bool {
        if let Some(known) = self.births.of(node) {
            return known == birth;
        }
        let births = Arc::clone(&self.births);
        match blocking(rt, move || births.meet(node, birth)).await {
            Some(Ok(met)) => met == Met::Same,
            Some(Err(fault)) => {
                tracing::error!(%fault, node, "cannot note a node that was met for the first time");
                false
            }
            None => false,
        }
    }

    pub(super) fn replaced(&self, by: u64) {
        (self.on_replaced)(by);
    }
}

/// Greets every one of `members` once, at the same time. A node that came back without its data learns it here, before
/// it takes part in anything.
pub fn introduce(
    transport: &TcpTransport,
    id: u64,
    members: &BTreeMap<u64, NodeAddress>,
) -> BoxFuture<'static, ()> {
    let others = members.iter().filter(|(node, _)| **node != id);
    let greetings: Vec<_> = others
        .map(|(node, address)| transport.greet(*node, address, GREET))
        .collect();
    Box::pin(async move {
        // Whoever does not answer is met later.
        let _answers = join_all(greetings).await;
    })
}

impl Presence {
    /// Greets members that were not met yet, for as long as `consensus` lives: every node must know every other one
    /// before either loses its disk, not only when it leads.
    #[must_use]
    pub fn get_to_know(
        &self,
        transport: &TcpTransport,
        consensus: Weak<dyn Consensus>,
        rt: &dyn Runtime,
    ) -> TaskHandle {
        let (own, transport) = (self.clone(), transport.clone());
        let task = async move {
            loop {
                tokio::time::sleep(GREET_EVERY).await;
                let Some(consensus) = consensus.upgrade() else {
                    return;
                };
                let mut members = consensus.status().members;
                members.voters.append(&mut members.learners);
                members
                    .voters
                    .retain(|node, _| own.births.of(*node).is_none());
                introduce(&transport, own.id, &members.voters).await;
            }
        };
        rt.spawn("peer greetings", Box::pin(task))
    }
}
