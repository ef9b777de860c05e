//! How far the other nodes' wall clocks are from this one's.
//!
//! Purpose: ask every other member for its wall clock once a second and keep the last answers, as evidence for the
//! leader's clock and figures for operators. Callers: [`super::node`](super) starts it; read through
//! [`Consensus::peer_clocks`](super::Consensus::peer_clocks).
//! Invariants:
//! 1. A measurement is tied to this node's monotonic clock, so it stays true when this node's wall clock leaps.
//! 2. At most one measurement a member is kept, and only of members; an old one says how old it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::NodeAddress;
use super::message::{Reply, Request};
use super::node::Shared;
use super::runtime::NodeRuntime;
use super::transport::Lane;
use crate::rt::TaskHandle;
use crate::time::{Millis, Timestamp};

/// Pause between rounds.
const PAUSE: Duration = Duration::from_secs(1);
/// How long an answer may take; a slower one says too little.
const DEADLINE: Duration = Duration::from_millis(500);

/// What another node's wall clock showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerClock {
    /// Whose.
    pub node: u64,
    /// What it showed.
    pub wall: Timestamp,
    /// When, on this node's monotonic clock.
    pub at: Millis,
    /// How far off `at` may be, either way.
    pub uncertainty: Millis,
}

impl PeerClock {
    /// Milliseconds by which the other clock is ahead of `wall`, which this node's clock shows at monotonic `now`.
    #[must_use]
    pub fn ahead_ms(&self, wall: Timestamp, now: Millis) -> i64 {
        let since = i64::try_from(now.0.saturating_sub(self.at.0)).unwrap_or(i64::MAX);
        let expected = self.wall.millis().saturating_add(since);
        expected.saturating_sub(wall.millis())
    }

    /// How long ago it was measured, at monotonic `now`.
    #[must_use]
    pub fn age(&self, now: Millis) -> Millis {
        Millis(now.0.saturating_sub(self.at.0))
    }
}

/// The last measurements, by node.
#[derive(Default)]
pub(super) struct Clocks(Mutex<BTreeMap<u64, PeerClock>>);

impl Clocks {
    pub(super) fn all(&self) -> Vec<PeerClock> {
        self.0.lock().values().copied().collect()
    }

    fn keep(&self, members: &BTreeMap<u64, NodeAddress>, measured: Vec<PeerClock>) {
        let mut table = self.0.lock();
        table.retain(|node, _| members.contains_key(node));
        table.extend(measured.into_iter().map(|clock| (clock.node, clock)));
    }
}

/// Starts the task.
pub(super) fn start<R: NodeRuntime>(shared: &Arc<Shared<R>>) -> TaskHandle {
    let weak = Arc::downgrade(shared);
    let task = async move {
        let mut off = BTreeSet::new();
        loop {
            let Some(shared) = weak.upgrade() else {
                return;
            };
            round(&shared).await;
            tell(&shared, &mut off);
            drop(shared);
            tokio::time::sleep(PAUSE).await;
        }
    };
    shared.rt.spawn("raft-clocks", Box::pin(task))
}

async fn round<R: NodeRuntime>(shared: &Shared<R>) {
    let members = shared.status().members;
    let mut others = members.learners;
    others.extend(members.voters);
    others.remove(&shared.id);
    let asked = others.iter().map(|(id, address)| ask(shared, *id, address));
    let answers = futures::future::join_all(asked).await;
    shared
        .clocks
        .keep(&others, answers.into_iter().flatten().collect());
}

/// Says once when a clock goes off, and once when it is right again. `off`: those told of.
fn tell<R: NodeRuntime>(shared: &Shared<R>, off: &mut BTreeSet<u64>) {
    let clock = shared.rt.clock();
    let (wall, now) = (clock.wall(), clock.monotonic());
    let measured = shared.clocks.all();
    off.retain(|node| measured.iter().any(|c| c.node == *node));
    for peer in measured {
        let ahead_ms = peer.ahead_ms(wall, now);
        let bound = shared.settings.clock_skew_max_ms;
        if ahead_ms.unsigned_abs() <= bound.saturating_add(peer.uncertainty.0) {
            if off.remove(&peer.node) {
                tracing::info!(node = peer.node, ahead_ms, "wall clocks agree again");
            }
        } else if off.insert(peer.node) {
            tracing::warn!(
                node = peer.node,
                ahead_ms,
                "wall clocks are further apart than max_clock_skew: check time synchronisation on both"
            );
        }
    }
}

async fn ask<R: NodeRuntime>(
    shared: &Shared<R>,
    node: u64,
    address: &NodeAddress,
) -> Option<PeerClock> {
    let clock = shared.rt.clock();
    let sent = clock.monotonic();
    let request = Request::Clock.encode();
    let answer = shared
        .transport
        .call(node, address, Lane::Control, request, DEADLINE);
    let reply = Reply::decode(answer.await.ok()?).ok()?;
    let Reply::Clock(wall) = reply else {
        return None;
    };
    let took = clock.monotonic().0.saturating_sub(sent.0);
    Some(PeerClock {
        node,
        wall: Timestamp::from_millis(wall),
        at: Millis(sent.0.saturating_add(took / 2)),
        // Half the way there and back, and what whole milliseconds cut off.
        uncertainty: Millis(took / 2 + 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_outlives_a_leap_of_the_own_clock() {
        let measured = PeerClock {
            node: 2,
            wall: Timestamp::from_millis(1_000_000),
            at: Millis(500),
            uncertainty: Millis(1),
        };
        let at = |wall, now| measured.ahead_ms(Timestamp::from_millis(wall), Millis(now));
        assert_eq!(at(1_000_000, 500), 0);
        assert_eq!(at(1_002_000, 2_500), 0);
        assert_eq!(at(1_062_000, 2_500), -60_000);
        assert_eq!(at(999_000, 2_500), 3_000);
        assert_eq!(measured.age(Millis(2_500)), Millis(2_000));
    }

    #[test]
    fn who_is_no_member_any_more_is_forgotten() {
        let clock = |node| PeerClock {
            node,
            wall: Timestamp::EPOCH,
            at: Millis(0),
            uncertainty: Millis(0),
        };
        let of = |ids: &[u64]| ids.iter().map(|id| (*id, NodeAddress::default())).collect();
        let table = Clocks::default();
        table.keep(&of(&[2, 3]), vec![clock(2), clock(3)]);
        table.keep(&of(&[3, 4]), vec![clock(4)]);
        let nodes: Vec<u64> = table.all().iter().map(|c| c.node).collect();
        assert_eq!(nodes, [3, 4]);
    }
}
