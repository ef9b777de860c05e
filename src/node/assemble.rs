//! Starts the parts of a node in order, and stops them in order.
//!
//! Callers: `node::run`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::runtime::Handle;

use crate::api::forward::{self, Forwarded};
use crate::api::server::{self, ServerConfig};
use crate::api::{Api, ApiConfig, DevClock, Parts};
use crate::calendar::ZoneData;
use crate::config::{ClockMode, ServeConfig};
use crate::fault::Fault;
use crate::leader::peer_clocks::MeasuredClocks;
use crate::leader::rules::ZoneReleases;
use crate::leader::{Leader, LeaderParts, LeaderSettings, Scheduler};
use crate::node::clock::ManualClock;
use crate::node::stop::{Signals, end_process, end_process_because, end_process_replaced};
use crate::node::{DataDir, NodeError, upkeep};
use crate::raft::net::{ListenParts, Presence, TcpTransport, introduce, listen};
use crate::raft::{
    Consensus, Forward, ForwardHandler, NodeAddress, NodeParts, PeerHandler, RaftSettings,
    TokioNode,
};
use crate::rt::{AbortOnDrop, Runtime, SystemClock, TokioRuntime};
use crate::state::machine::Machine;
use crate::state::replica::Replica;
use crate::store::log::LogStore;
use crate::store::log::births::Births;
use crate::store::log::identity::Identity;
use crate::store::log::rocks::RocksLog;
use crate::store::{RocksMemory, RocksStore, StateStore};
use crate::time::{Clock, Millis, Timestamp};

/// How long a planned stop waits for another node to take the lead.
const HAND_OVER: Duration = Duration::from_secs(3);

/// Runs the node until it is told to stop.
pub(super) async fn serve(
    config: ServeConfig,
    data: &DataDir,
    raft_handle: Handle,
) -> Result<(), NodeError> {
    let mut signals = Signals::listen()?;
    let listener = bind(config.listen).await?;
    let replica = open_state(&config, data)?;
    let (clock, dev_clock) = clock_of(&config, &replica);
    let rt: Arc<dyn Runtime> = Arc::new(TokioRuntime::new(Handle::current(), Arc::clone(&clock)));
    let raft_rt: Arc<dyn Runtime> = Arc::new(TokioRuntime::new(raft_handle.clone(), clock));
    let late = Arc::new(LateForwards::default());
    let raft = start_raft(&config, data, &replica, &late, raft_rt, raft_handle).await?;
    let zones = ZoneData::bundled();
    let settings = leader_settings(&config);
    let peers = MeasuredClocks::new(
        Arc::clone(&raft.node) as Arc<dyn Consensus>,
        rt.clock(),
        settings.clock_skew_max,
    );
    let leader = Leader::start(LeaderParts {
        consensus: Arc::clone(&raft.node) as Arc<dyn Consensus>,
        replica: Arc::clone(&replica),
        runtime: Arc::clone(&rt),
        zones: ZoneReleases::bundled(),
        peers: Arc::new(peers),
        settings,
    });
    let on_fault: upkeep::OnFault = Arc::new(|fault| end_process(fault));
    let keeping = upkeep::keep(Arc::clone(&replica), Arc::clone(&rt), on_fault);
    let _upkeep = AbortOnDrop::from(rt.spawn("upkeep", keeping));
    let api = Api::new(Parts {
        scheduler: leader as Arc<dyn Scheduler>,
        consensus: Arc::clone(&raft.node) as Arc<dyn Consensus>,
        replica: Arc::clone(&replica),
        forward: Arc::clone(&raft.node) as Arc<dyn Forward>,
        runtime: Arc::clone(&rt),
        zones,
        dev_clock: dev_clock.map(|c| c as Arc<dyn DevClock>),
        config: api_config(&config),
    });
    late.set(Arc::new(Forwarded::new(Arc::clone(&api))));
    announce(&config);
    if config.join && raft.node.status().members.voters.is_empty() {
        announce_joining(&config);
    }
    let (node, stopping, tasks) = (Arc::clone(&raft.node), Arc::clone(&api), Arc::clone(&rt));
    let stop = async move {
        let signal = signals.next().await;
        tracing::info!(
            signal,
            "stopping: finishing what is in hand (a second signal ends at once)"
        );
        stopping.begin_stop();
        hand_over(node.as_ref()).await;
        let _ends_with_the_process = tasks.spawn("second signal", end_on(signals));
    };
    server::serve(api, listener, server_config(&config), stop).await;
    raft.node.shutdown().await;
    let last = Arc::clone(&replica);
    if let Some(Err(fault)) = crate::rt::blocking(rt.as_ref(), move || last.flush()).await {
        return Err(fault.into());
    }
    tracing::info!("stopped");
    Ok(())
}

async fn hand_over(node: &dyn Consensus) {
    let status = node.status();
    if status.is_leader() && status.members.voters.len() > 1 {
        let taken = tokio::time::timeout(HAND_OVER, node.transfer_leader(None)).await;
        if !matches!(taken, Ok(true)) {
            tracing::info!("no other node took the lead in time; the others will elect one");
        }
    }
}

fn end_on(mut signals: Signals) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let signal = signals.next().await;
        tracing::warn!(signal, "stopping at once; nothing acknowledged is lost");
        std::process::exit(130);
    })
}

async fn bind(address: SocketAddr) -> Result<TcpListener, NodeError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| NodeError::Listen { address, source })
}

fn open_state(config: &ServeConfig, data: &DataDir) -> Result<Arc<Replica>, NodeError> {
    let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let memory = RocksMemory::new(
        size(config.store.cache_bytes),
        size(config.store.write_buffer_bytes),
    );
    let store = RocksStore::open(data.path(), &memory)?;
    Ok(Arc::new(Replica::open(
        Arc::new(store) as Arc<dyn StateStore>
    )?))
}

fn clock_of(config: &ServeConfig, replica: &Replica) -> (Arc<dyn Clock>, Option<Arc<ManualClock>>) {
    match config.clock {
        ClockMode::System => (Arc::new(SystemClock), None),
        ClockMode::Manual => {
            // A data directory that has seen a time goes on from there.
            let stored = replica.read().now();
            let fresh = stored <= Timestamp::EPOCH;
            let start = if fresh { SystemClock.wall() } else { stored };
            let clock = Arc::new(ManualClock::new(start));
            (Arc::clone(&clock) as Arc<dyn Clock>, Some(clock))
        }
    }
}

/// Raft and what must live as long as it.
struct Raft {
    node: Arc<TokioNode>,
    _listener: Option<AbortOnDrop>,
    _greetings: AbortOnDrop,
}

async fn start_raft(
    config: &ServeConfig,
    data: &DataDir,
    replica: &Arc<Replica>,
    late: &Arc<LateForwards>,
    rt: Arc<dyn Runtime>,
    handle: Handle,
) -> Result<Raft, NodeError> {
    let identity = Identity {
        cluster: config.cluster_name.clone(),
        node: config.node_id,
    };
    identity.claim(data.path())?;
    let log = RocksLog::open(data.path(), config.accept_data_loss)?;
    let presence = presence(config, data, rt.as_ref())?;
    let transport = TcpTransport::new(presence.clone(), Arc::clone(&rt));
    let parts = NodeParts {
        id: config.node_id,
        cluster: config.cluster_name.clone(),
        settings: raft_settings(config),
        log: Arc::new(log) as Arc<dyn LogStore>,
        machine: Arc::clone(replica) as Arc<dyn Machine>,
        transport: Arc::new(transport.clone()),
        forwards: Arc::clone(late) as Arc<dyn ForwardHandler>,
        rt: Arc::clone(&rt),
        on_stop: Arc::new(|why| end_process_because(why)),
    };
    let members = members(config);
    let (join, id) = (config.join, config.node_id);
    let introduced = match presence.births.is_new() && !join {
        true => introduce(&transport, id, &members),
        false => Box::pin(std::future::ready(())),
    };
    // Inside Raft's own runtime, so that all of its tasks run there.
    let starting = handle.spawn(async move {
        let (node, handler) = TokioNode::start(parts).await?;
        if !join {
            introduced.await;
            node.found(members).await?;
        }
        Ok::<_, Fault>((node, handler))
    });
    let (node, handler) = starting
        .await
        .map_err(|e| NodeError::Config(format!("node {id}: Raft did not start: {e}")))??;
    let node = Arc::new(node);
    let consensus: std::sync::Weak<dyn Consensus> = Arc::downgrade(&node) as _;
    let greetings = presence.get_to_know(&transport, consensus, rt.as_ref());
    let listener = match config.peer_listen {
        Some(address) => Some(listen_for_peers(address, presence, handler, rt).await?),
        None => None,
    };
    Ok(Raft {
        node,
        _listener: listener,
        _greetings: greetings.into(),
    })
}

fn presence(config: &ServeConfig, data: &DataDir, rt: &dyn Runtime) -> Result<Presence, NodeError> {
    let births = Arc::new(Births::open(data.path(), rt.random_u64())?);
    let (told, known) = (config.clone(), Arc::clone(&births));
    Ok(Presence {
        id: config.node_id,
        cluster: config.cluster_name.clone(),
        births,
        on_replaced: Arc::new(move |by| end_process_replaced(&told, by, known.last_node())),
    })
}

async fn listen_for_peers(
    address: SocketAddr,
    presence: Presence,
    handler: Arc<dyn PeerHandler>,
    rt: Arc<dyn Runtime>,
) -> Result<AbortOnDrop, NodeError> {
    let socket = bind(address).await?;
    let parts = ListenParts {
        presence,
        handler,
        rt,
    };
    Ok(listen(socket, parts).into())
}

/// The founding members: all that the file names, or this node alone.
fn members(config: &ServeConfig) -> BTreeMap<u64, NodeAddress> {
    if config.peers.is_empty() {
        let peer = config
            .peer_listen
            .map(|a| a.to_string())
            .unwrap_or_default();
        let own = NodeAddress {
            peer,
            api: config.own_api_url(),
        };
        return BTreeMap::from([(config.node_id, own)]);
    }
    let address = |peer: &crate::config::PeerConfig| NodeAddress {
        peer: peer.peer_addr.clone(),
        api: peer.api_url.clone(),
    };
    config
        .peers
        .iter()
        .map(|peer| (peer.id, address(peer)))
        .collect()
}

fn raft_settings(config: &ServeConfig) -> RaftSettings {
    let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    RaftSettings {
        heartbeat_ms: ms(config.raft.heartbeat),
        election_min_ms: ms(config.raft.election_min),
        election_max_ms: ms(config.raft.election_max),
        snapshot_log_bytes: config.snapshot.log_bytes,
        snapshot_interval_ms: ms(config.snapshot.interval),
        log_tail_bytes: config.snapshot.log_tail_bytes,
        clock_skew_max_ms: ms(config.max_clock_skew),
        ..RaftSettings::default()
    }
}

fn leader_settings(config: &ServeConfig) -> LeaderSettings {
    let count = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    LeaderSettings {
        commands_max: count(config.bounds.queued_commands_max),
        claims_max: count(config.bounds.waiting_claims_max),
        clock_skew_max: Millis(
            u64::try_from(config.max_clock_skew.as_millis()).unwrap_or(u64::MAX),
        ),
        ..LeaderSettings::new(config.node_id)
    }
}

fn api_config(config: &ServeConfig) -> ApiConfig {
    let count = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    ApiConfig {
        node: config.node_id,
        version: env!("CARGO_PKG_VERSION"),
        loopback_only: config.listen.ip().is_loopback() && !config.insecure_no_auth,
        in_flight_max: 1_024,
        waiting_max: count(config.bounds.waiting_claims_max),
    }
}

fn server_config(config: &ServeConfig) -> ServerConfig {
    ServerConfig {
        connections_max: usize::try_from(config.bounds.connections_max).unwrap_or(usize::MAX),
        ..ServerConfig::default()
    }
}

fn announce(config: &ServeConfig) {
    let url = config.own_api_url();
    tracing::info!(
        node = config.node_id,
        version = env!("CARGO_PKG_VERSION"),
        url,
        data_dir = %config.data_dir.display(),
        "serving; API page at {url}/docs"
    );
    if config.listen.ip().is_loopback() {
        tracing::info!("no authentication: only this machine can reach the API");
    } else {
        tracing::warn!(
            "no authentication and not on loopback: anybody who reaches {} can do everything",
            config.listen
        );
    }
}

fn announce_joining(config: &ServeConfig) {
    let peer = config.peer_listen.map(|a| a.to_string());
    tracing::info!(
        "empty, and waits to be added. On any machine: punctual --server URL-OF-A-MEMBER cluster add-member --node {} \
         --peer {} --api {}",
        config.node_id,
        peer.unwrap_or_default(),
        config.own_api_url()
    );
}

/// Forwards arrive as soon as Raft runs; the API comes a moment later.
#[derive(Default)]
struct LateForwards(OnceLock<Arc<dyn ForwardHandler>>);

impl LateForwards {
    fn set(&self, handler: Arc<dyn ForwardHandler>) {
        let _set_once = self.0.set(handler);
    }
}

impl ForwardHandler for LateForwards {
    fn handle(&self, from: u64, request: Bytes) -> BoxFuture<'static, Bytes> {
        match self.0.get() {
            Some(handler) => handler.handle(from, request),
            None => Box::pin(std::future::ready(forward::not_yet())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_file_says_reaches_the_part_that_it_is_about() {
        let text = "[raft]\nheartbeat = \"60ms\"\nelection_min = \"300ms\"\nelection_max = \"700ms\"\n\
                    [snapshot]\nlog_bytes = \"2MiB\"\ninterval = \"11s\"\nlog_tail_bytes = \"3MiB\"\n\
                    [bounds]\nconnections_max = 17\nwaiting_claims_max = 18\nqueued_commands_max = 99\n";
        let config = ServeConfig::parse(text).expect("a good file");
        let raft = raft_settings(&config);
        let elections = (
            raft.heartbeat_ms,
            raft.election_min_ms,
            raft.election_max_ms,
        );
        assert_eq!(elections, (60, 300, 700));
        let log = (
            raft.snapshot_log_bytes,
            raft.snapshot_interval_ms,
            raft.log_tail_bytes,
        );
        assert_eq!(log, (2 << 20, 11_000, 3 << 20));
        let leader = leader_settings(&config);
        assert_eq!((leader.commands_max, leader.claims_max), (99, 18));
        assert_eq!(api_config(&config).waiting_max, 18);
        assert_eq!(server_config(&config).connections_max, 17);
    }
}
