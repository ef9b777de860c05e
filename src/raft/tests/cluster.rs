//! Three nodes over loopback TCP, with stores in memory: elections, kills, restarts, snapshots, replacement.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use openraft_rt_tokio::TokioRuntime as OnTokio;
use tokio::net::TcpListener;

use super::machine::TestMachine;
use crate::fault::Fault;
use crate::raft::net::{ListenParts, Presence, TcpTransport, listen};
use crate::raft::{
    Consensus, Forward, ForwardHandler, MembershipError, NodeAddress, NodeParts, RaftNode,
    RaftSettings,
};
use crate::rt::{AbortOnDrop, Runtime, SystemClock, TokioRuntime};
use crate::state::machine::Machine;
use crate::store::MemStore;
use crate::store::log::LogStore;
use crate::store::log::births::Births;
use crate::store::log::mem::{InstantSync, MemDisk, MemLog};

/// Answers with the asking node and the request.
struct EchoForwards;

impl ForwardHandler for EchoForwards {
    fn handle(&self, from: u64, request: Bytes) -> BoxFuture<'static, Bytes> {
        let mut answer = from.to_string().into_bytes();
        answer.extend_from_slice(&request);
        Box::pin(std::future::ready(Bytes::from(answer)))
    }
}

struct Running {
    node: RaftNode<OnTokio>,
    machine: Arc<TestMachine>,
    _listener: AbortOnDrop,
}

/// What survives a node's death.
struct Machines {
    disk: MemDisk,
    store: Arc<MemStore>,
}

struct Cluster {
    rt: Arc<dyn Runtime>,
    members: BTreeMap<u64, NodeAddress>,
    machines: BTreeMap<u64, Machines>,
    running: BTreeMap<u64, Running>,
    settings: RaftSettings,
}

fn io(error: std::io::Error) -> Fault {
    Fault::storage("test socket", error)
}

impl Cluster {
    async fn new(nodes: u64, settings: RaftSettings) -> Result<Self, Fault> {
        let rt: Arc<dyn Runtime> = Arc::new(TokioRuntime::new(
            tokio::runtime::Handle::current(),
            Arc::new(SystemClock),
        ));
        let mut cluster = Self {
            rt,
            members: BTreeMap::new(),
            machines: BTreeMap::new(),
            running: BTreeMap::new(),
            settings,
        };
        let mut sockets = Vec::new();
        for id in 1..=nodes {
            let socket = TcpListener::bind("127.0.0.1:0").await.map_err(io)?;
            let peer = socket.local_addr().map_err(io)?.to_string();
            let api = format!("http://node-{id}");
            cluster.members.insert(id, NodeAddress { peer, api });
            sockets.push((id, socket));
        }
        for (id, socket) in sockets {
            cluster.start(id, socket).await?;
            let members = cluster.members.clone();
            cluster.node(id)?.found(members).await?;
        }
        Ok(cluster)
    }

    async fn start(&mut self, id: u64, socket: TcpListener) -> Result<(), Fault> {
        let machines = self.machines.entry(id).or_insert_with(|| Machines {
            disk: MemDisk::new(),
            store: Arc::new(MemStore::new()),
        });
        let machine = TestMachine::open(Arc::clone(&machines.store));
        let log = MemLog::open(&machines.disk, Arc::new(InstantSync));
        let presence = Presence {
            id,
            cluster: "loopback".into(),
            births: Arc::new(Births::in_memory(id)),
            on_replaced: Arc::new(|by| tracing::error!(by, "replaced")),
        };
        let transport = TcpTransport::new(presence.clone(), Arc::clone(&self.rt));
        let (node, handler) = RaftNode::start(NodeParts {
            id,
            cluster: "loopback".into(),
            settings: self.settings.clone(),
            log: Arc::new(log) as Arc<dyn LogStore>,
            machine: Arc::clone(&machine) as Arc<dyn Machine>,
            transport: Arc::new(transport),
            forwards: Arc::new(EchoForwards),
            rt: Arc::clone(&self.rt),
            on_stop: Arc::new(|why| tracing::error!(why, "stopped by itself")),
        })
        .await?;
        let parts = ListenParts {
            presence,
            handler,
            rt: Arc::clone(&self.rt),
        };
        let running = Running {
            node,
            machine,
            _listener: AbortOnDrop::from(listen(socket, parts)),
        };
        self.running.insert(id, running);
        Ok(())
    }

    /// The process dies; what was written stays.
    async fn kill(&mut self, id: u64) {
        if let Some(running) = self.running.remove(&id) {
            running.node.shutdown().await;
        }
        if let Some(machines) = self.machines.get_mut(&id) {
            machines.disk.crash(usize::MAX, 0);
            machines.store = Arc::new(machines.store.crash(usize::MAX));
        }
    }

    async fn restart(&mut self, id: u64) -> Result<(), Fault> {
        let address = self.members.get(&id).cloned().unwrap_or_default();
        let socket = TcpListener::bind(&address.peer).await.map_err(io)?;
        self.start(id, socket).await
    }

    fn node(&self, id: u64) -> Result<&RaftNode<OnTokio>, Fault> {
        let running = self.running.get(&id);
        running
            .map(|r| &r.node)
            .ok_or_else(|| Fault::invariant("not running"))
    }

    async fn leader(&self) -> Result<u64, Fault> {
        for _ in 0..800 {
            for (id, running) in &self.running {
                let status = running.node.status();
                if status.is_leader() && status.quorum_ack_age_ms.is_some_and(|ms| ms < 300) {
                    return Ok(*id);
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err(Fault::invariant("no leader"))
    }

    /// Writes `count` batches through whoever leads, trying again when leadership moves.
    async fn write(&self, count: u64) -> Result<(), Fault> {
        let mut left = count;
        for _ in 0..count * 20 {
            if left == 0 {
                return Ok(());
            }
            let leader = self.node(self.leader().await?)?;
            let proposal = leader.propose(leader.status().term, Bytes::from(vec![3; 200]));
            match proposal.await {
                Ok(_) => left -= 1,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
        Err(Fault::invariant("writes do not get through"))
    }

    /// Waits until every running node has applied what the leader has committed.
    async fn settle(&self) -> Result<(), Fault> {
        let leader = self.leader().await?;
        let committed = self.node(leader)?.status().committed.unwrap_or(0);
        for running in self.running.values() {
            let applied = running.node.applied(committed);
            let waited = tokio::time::timeout(Duration::from_secs(15), applied).await;
            if !matches!(waited, Ok(Ok(_))) {
                return Err(Fault::invariant("a node does not catch up"));
            }
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_dies_writes_go_on_and_it_catches_up() -> Result<(), Fault> {
    let mut cluster = Cluster::new(3, RaftSettings::default()).await?;
    cluster.write(30).await?;
    for _ in 0..2 {
        let leader = cluster.leader().await?;
        cluster.kill(leader).await;
        cluster.write(30).await?;
        cluster.restart(leader).await?;
        cluster.write(10).await?;
        cluster.settle().await?;
    }
    for running in cluster.running.values() {
        assert!(running.machine.batches()? >= 110);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_read_and_forward_through_the_leader() -> Result<(), Fault> {
    let cluster = Cluster::new(3, RaftSettings::default()).await?;
    cluster.write(10).await?;
    let leader = cluster.leader().await?;
    for (id, running) in &cluster.running {
        let index = running.node.read_barrier().await;
        assert!(index.is_ok_and(|index| index >= 10));
        assert!(running.machine.batches()? >= 10);
        if *id != leader {
            let request = Bytes::from_static(b" asks");
            let answer = running
                .node
                .forward(leader, request, Duration::from_secs(2));
            assert_eq!(answer.await, Ok(Bytes::from(format!("{id} asks"))));
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_moves_on_request() -> Result<(), Fault> {
    let cluster = Cluster::new(3, RaftSettings::default()).await?;
    cluster.write(5).await?;
    let first = cluster.leader().await?;
    let mut moved = false;
    for _ in 0..5 {
        moved = cluster.node(first)?.transfer_leader(None).await;
        if moved {
            break;
        }
    }
    assert!(moved);
    cluster.write(5).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_node_is_replaced_by_an_empty_one_through_a_snapshot() -> Result<(), Fault> {
    let settings = RaftSettings {
        snapshot_log_bytes: 4_000,
        log_tail_bytes: 1_000,
        upkeep_ms: 50,
        ..RaftSettings::default()
    };
    let mut cluster = Cluster::new(3, settings).await?;
    cluster.write(20).await?;
    let leader = cluster.leader().await?;
    let dead = cluster.members.keys().copied().find(|id| *id != leader);
    let dead = dead.ok_or_else(|| Fault::invariant("no follower"))?;
    cluster.kill(dead).await;
    cluster.write(60).await?;
    let leading = cluster.node(cluster.leader().await?)?;
    assert_eq!(leading.remove(dead).await, Ok(()));
    for _ in 0..300 {
        if leading.status().purged > Some(20) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(
        leading.status().purged > Some(20),
        "the start of the log is gone"
    );

    let socket = TcpListener::bind("127.0.0.1:0").await.map_err(io)?;
    let fresh = NodeAddress {
        peer: socket.local_addr().map_err(io)?.to_string(),
        api: "http://node-4".into(),
    };
    cluster.members.insert(4, fresh.clone());
    cluster.start(4, socket).await?;
    let leading = cluster.node(cluster.leader().await?)?;
    assert_eq!(leading.add_learner(4, fresh).await, Ok(()));
    let mut promoted = leading.promote(4).await;
    for _ in 0..300 {
        if !matches!(promoted, Err(MembershipError::Behind { .. })) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        promoted = leading.promote(4).await;
    }
    assert_eq!(promoted, Ok(()));
    let voters: Vec<u64> = leading.status().members.voters.keys().copied().collect();
    assert!(voters.contains(&4) && !voters.contains(&dead) && voters.len() == 3);
    cluster.write(10).await?;
    cluster.settle().await?;
    assert!(cluster.node(4)?.installed_snapshots() >= 1);
    assert!(
        cluster
            .running
            .get(&4)
            .is_some_and(|r| r.machine.batches().is_ok_and(|n| n >= 90))
    );
    Ok(())
}
