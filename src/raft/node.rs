//! One node of the cluster: Raft with its log, state machine and network.
//!
//! Purpose: start and hold everything, and answer for it through [`Consensus`] and [`Forward`].
//! Callers: `node` (production, [`super::start`](super)), `raft-tests`.
//! Invariants:
//! 1. When Raft ends by an error or a panic, the stop hook runs once; the process must not go on without it.
//! 2. Tasks hold the shared part weakly or end with Raft, so that a dropped node leaves nothing running.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::metrics::RaftMetrics;
use openraft::{Config, Instant, Raft, ServerState, SnapshotPolicy};
use parking_lot::Mutex;

use super::changes::Changes;
use super::incoming::Incoming;
use super::log::LogAdapter;
use super::machine::MachineAdapter;
use super::network::Network;
use super::runtime::NodeRuntime;
use super::server::Server;
use super::settings::RaftSettings;
use super::transport::{PeerHandler, PeerTransport};
use super::types::{Types, fault_of, to_members, to_vote};
use super::{ConsensusStatus, ForwardHandler, NodeAddress, Role};
use crate::fault::Fault;
use crate::rt::{AbortOnDrop, Runtime};
use crate::state::machine::Machine;
use crate::store::log::{LogStore, LogVote};

/// Called once when Raft has ended by itself, with the reason. Production ends the process.
pub type StopHook = Arc<dyn Fn(&str) + Send + Sync>;

/// What a node is made of.
pub struct NodeParts {
    /// This node's id: never 0, never used by another node, also not after its removal.
    pub id: u64,
    /// Name for logs.
    pub cluster: String,
    /// Time-outs and bounds.
    pub settings: RaftSettings,
    /// Its log.
    pub log: Arc<dyn LogStore>,
    /// Its state machine.
    pub machine: Arc<dyn Machine>,
    /// The way to other nodes.
    pub transport: Arc<dyn PeerTransport>,
    /// Who answers requests forwarded by other nodes.
    pub forwards: Arc<dyn ForwardHandler>,
    /// Tasks, clock, randomness.
    pub rt: Arc<dyn Runtime>,
    /// What to do when Raft stops by itself.
    pub on_stop: StopHook,
}

pub(super) type RaftOf<R> = Raft<Types<R>, MachineAdapter<R>>;

/// What all parts of one node share.
pub(super) struct Shared<R: NodeRuntime> {
    pub(super) id: u64,
    pub(super) raft: RaftOf<R>,
    pub(super) settings: RaftSettings,
    pub(super) log: Arc<dyn LogStore>,
    pub(super) machine: Arc<dyn Machine>,
    pub(super) transport: Arc<dyn PeerTransport>,
    pub(super) forwards: Arc<dyn ForwardHandler>,
    pub(super) rt: Arc<dyn Runtime>,
    pub(super) changes: Changes,
    pub(super) clocks: super::clocks::Clocks,
    /// The leader that this node follows, and when it was last heard.
    pub(super) heard: Mutex<Option<(u64, tokio::time::Instant)>>,
    recovered: AtomicBool,
    installs: AtomicU64,
}

/// A running node. Clones share it; dropping the last one ends its tasks.
pub struct RaftNode<R: NodeRuntime> {
    pub(super) shared: Arc<Shared<R>>,
    pub(super) proposals: super::propose::Proposals<R>,
    pub(super) barrier: super::barrier::Barrier,
    tasks: Arc<Vec<AbortOnDrop>>,
}

impl<R: NodeRuntime> Clone for RaftNode<R> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            proposals: self.proposals.clone(),
            barrier: self.barrier.clone(),
            tasks: Arc::clone(&self.tasks),
        }
    }
}

fn library_config(cluster: &str, s: &RaftSettings) -> Result<Arc<Config>, Fault> {
    let config = Config {
        cluster_name: cluster.to_owned(),
        heartbeat_interval: s.heartbeat_ms,
        election_timeout_min: s.election_min_ms,
        election_timeout_max: s.election_max_ms,
        max_payload_entries: s.append_entries_max,
        // Snapshots and purges are ours (`upkeep`): by bytes and only below what is flushed.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        // Decides only when a blocking `add_learner` returns, which is not used; promotion has its own check.
        replication_lag_threshold: u64::MAX,
        enable_pre_vote: Some(true),
        // A leader that lost its unsynced tail must not go on in the same term: see `RaftSettings::leader_restore`.
        enable_leader_restore: Some(s.leader_restore),
        ..Config::default()
    };
    config.validate().map(Arc::new).map_err(|e| fault_of(&e))
}

impl<R: NodeRuntime> RaftNode<R> {
    /// Opens log and state, and starts Raft. Call it inside the runtime that Raft shall run on. The returned handler
    /// must be given to the peer listener.
    ///
    /// # Errors
    /// Bad settings; a log or state that cannot be read or that contradict each other.
    pub async fn start(parts: NodeParts) -> Result<(Self, Arc<dyn PeerHandler>), Fault> {
        parts.settings.check()?;
        if parts.id == 0 {
            return Err(Fault::invariant("node ids begin at 1"));
        }
        let config = library_config(&parts.cluster, &parts.settings)?;
        let network = Network::new(Arc::clone(&parts.transport), parts.settings.clone());
        let log = LogAdapter::new(Arc::clone(&parts.log));
        let machine = MachineAdapter::new(Arc::clone(&parts.machine));
        let raft = RaftOf::<R>::new(parts.id, config, network, log, machine)
            .await
            .map_err(|e| fault_of(&e))?;
        let shared = Arc::new(Shared {
            id: parts.id,
            raft,
            settings: parts.settings,
            log: parts.log,
            machine: parts.machine,
            transport: parts.transport,
            forwards: parts.forwards,
            rt: parts.rt,
            changes: Changes::default(),
            clocks: super::clocks::Clocks::default(),
            heard: Mutex::new(None),
            recovered: AtomicBool::new(false),
            installs: AtomicU64::new(0),
        });
        let incoming = Arc::new(Incoming::new(Arc::clone(&shared)));
        let sweeping = super::incoming::sweep(&incoming);
        let server: Arc<dyn PeerHandler> = Arc::new(Server::new(Arc::clone(&shared), incoming));
        let (proposals, proposing) = super::propose::start(&shared);
        let (barrier, reading) = super::barrier::start(&shared);
        let tasks = vec![
            proposing,
            reading,
            watch(&shared, parts.on_stop),
            recover(&shared),
            super::upkeep::start(&shared),
            super::clocks::start(&shared),
            sweeping,
        ];
        let node = Self {
            shared,
            proposals,
            barrier,
            tasks: Arc::new(tasks.into_iter().map(AbortOnDrop::from).collect()),
        };
        Ok((node, server))
    }

    /// Makes a new cluster of `members` if this node is empty. Every founding node may call it, with the same members
    /// in any order: the founding entry is the same everywhere. Does nothing on a node that has a log or a vote.
    ///
    /// # Errors
    /// Raft refuses the members, or stops.
    pub async fn found(&self, members: BTreeMap<u64, NodeAddress>) -> Result<(), Fault> {
        let fresh = {
            let status = self.shared.log.status()?;
            status.vote.is_none() && status.last.is_none()
        };
        if !fresh {
            return Ok(());
        }
        match self.shared.raft.initialize(members).await {
            Ok(()) => Ok(()),
            // Another founder was faster: its vote or log is already here.
            Err(error) if error.api_error().is_some_and(is_not_allowed) => Ok(()),
            Err(error) => Err(fault_of(&error)),
        }
    }

    /// How many snapshots this node has installed since it started.
    #[must_use]
    pub fn installed_snapshots(&self) -> u64 {
        self.shared.installs.load(Ordering::Relaxed)
    }
}

fn is_not_allowed<R: NodeRuntime>(e: &openraft::error::InitializeError<Types<R>>) -> bool {
    matches!(e, openraft::error::InitializeError::NotAllowed(_))
}

impl<R: NodeRuntime> Shared<R> {
    pub(super) fn metrics(&self) -> RaftMetrics<Types<R>> {
        self.raft.metrics().borrow_watched().clone()
    }

    /// The vote this node has seen last.
    pub(super) fn vote(&self) -> LogVote {
        to_vote(&self.raft.metrics().borrow_watched().vote)
    }

    /// Committed entries that are not applied.
    pub(super) fn apply_lag(&self) -> u64 {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let next = |id: &Option<super::types::EntryId>| id.as_ref().map_or(0, |id| id.index() + 1);
        next(&metrics.local_committed).saturating_sub(next(&metrics.last_applied))
    }

    /// Waits until nothing committed is left to apply; `false` when `within` has passed or Raft has stopped.
    pub(super) async fn wait_for_apply(&self, within: Duration) -> bool {
        let mut watching = self.raft.metrics();
        let drained = async {
            while self.apply_lag() > 0 {
                if watching.changed().await.is_err() {
                    return false;
                }
            }
            true
        };
        tokio::time::timeout(within, drained).await.unwrap_or(false)
    }

    pub(super) fn count_install(&self) {
        self.installs.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn status(&self) -> ConsensusStatus {
        let revision = self.changes.revision();
        let metrics = self.metrics();
        let members = to_members(&metrics.membership_config);
        let running = metrics.running_state.is_ok();
        let is_leader = metrics.state == ServerState::Leader;
        let alone = members.voters.len() == 1;
        ConsensusStatus {
            revision,
            id: self.id,
            term: metrics.current_term,
            role: role(&metrics),
            leader: metrics.current_leader,
            last_log: metrics.last_log_index,
            committed: metrics.local_committed.map(|id| id.index()),
            applied: metrics.last_applied.map(|id| id.index()),
            snapshot: metrics.snapshot.map(|id| id.index()),
            purged: metrics.purged.map(|id| id.index()),
            members,
            replicated: metrics
                .replication
                .map(|r| {
                    r.iter()
                        .map(|(id, upto)| (*id, upto.map(|u| u.index())))
                        .collect()
                })
                .unwrap_or_default(),
            running,
            quorum_ack_age_ms: if !is_leader {
                None
            } else if alone {
                Some(0)
            } else {
                metrics
                    .last_quorum_acked
                    .map(|at| u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX))
            },
            recovered: self.recovered.load(Ordering::Acquire),
        }
    }
}

fn role<R: NodeRuntime>(metrics: &RaftMetrics<Types<R>>) -> Role {
    if metrics.running_state.is_err() {
        return Role::Stopped;
    }
    match metrics.state {
        ServerState::Learner => Role::Learner,
        ServerState::Follower => Role::Follower,
        ServerState::Candidate => Role::Candidate,
        ServerState::Leader => Role::Leader,
        ServerState::Shutdown => Role::Stopped,
    }
}

/// Counts changes that others wait for, and calls the hook when Raft is gone.
///
/// The full metrics change several times an entry, those of the server only with what matters here: this task sleeps on
/// the latter. Raft sends them first and the full ones, which [`Shared::status`] reads, right after.
fn watch<R: NodeRuntime>(shared: &Arc<Shared<R>>, on_stop: StopHook) -> crate::rt::TaskHandle {
    let mut full = shared.raft.metrics();
    let mut server = shared.raft.server_metrics();
    let changes = shared.changes.clone();
    let task = async move {
        let mut seen = None;
        loop {
            let (now, stopped) = {
                let metrics = full.borrow_watched();
                (
                    (
                        metrics.state,
                        metrics.vote,
                        metrics.current_leader,
                        metrics.membership_config.clone(),
                    ),
                    metrics.running_state.clone().err(),
                )
            };
            let in_step = {
                let metrics = server.borrow_watched();
                metrics.state == now.0
                    && metrics.vote == now.1
                    && metrics.current_leader == now.2
                    && metrics.membership_config == now.3
            };
            if seen.as_ref() != Some(&now) {
                seen = Some(now);
                changes.bump();
            }
            if let Some(fatal) = stopped {
                changes.bump();
                if !matches!(fatal, openraft::error::Fatal::Stopped) {
                    on_stop(&fatal.to_string());
                }
                return;
            }
            let gone = if in_step {
                server.changed().await.is_err()
            } else {
                full.changed().await.is_err()
            };
            // Both senders go together, after a last word on the full metrics unless the core has panicked.
            if gone && full.borrow_watched().running_state.is_ok() {
                changes.bump();
                on_stop("raft has panicked");
                return;
            }
        }
    };
    shared.rt.spawn("raft-watch", Box::pin(task))
}

/// Notes when this node has applied all that it may have served before it was restarted.
fn recover<R: NodeRuntime>(shared: &Arc<Shared<R>>) -> crate::rt::TaskHandle {
    let weak = Arc::downgrade(shared);
    let raft = shared.raft.clone();
    let task = async move {
        if raft.wait_for_recovery(None).await.is_err() {
            return;
        }
        if let Some(shared) = weak.upgrade() {
            shared.recovered.store(true, Ordering::Release);
            shared.changes.bump();
        }
    };
    shared.rt.spawn("raft-recovery", Box::pin(task))
}
