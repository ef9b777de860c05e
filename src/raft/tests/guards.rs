//! The guards against known weaknesses of the Raft library, each with a test.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use openraft_rt_tokio::TokioRuntime as OnTokio;
use parking_lot::Mutex;

use super::machine::TestMachine;
use crate::fault::Fault;
use crate::raft::{
    Consensus, ForwardHandler, Lane, MembershipError, NodeAddress, NodeParts, PeerError,
    PeerTransport, ProposeError, RaftNode, RaftSettings, Role,
};
use crate::rt::{Runtime, SystemClock, TokioRuntime};
use crate::state::machine::Machine;
use crate::store::MemStore;
use crate::store::log::mem::{InstantSync, MemDisk, MemLog, SyncDevice};
use crate::store::log::{LogStore, Synced};

/// Nobody is there: every call waits for its whole deadline, which is noted.
#[derive(Default)]
struct Silence {
    deadlines: Mutex<Vec<Duration>>,
}

impl PeerTransport for Silence {
    fn call(
        &self,
        _to: u64,
        _address: &NodeAddress,
        _lane: Lane,
        _request: Bytes,
        deadline: Duration,
    ) -> BoxFuture<'static, Result<Bytes, PeerError>> {
        self.deadlines.lock().push(deadline);
        Box::pin(async move {
            tokio::time::sleep(deadline).await;
            Err(PeerError::Lost("silence".into()))
        })
    }
}

struct NoForwards;

impl ForwardHandler for NoForwards {
    fn handle(&self, _from: u64, _request: Bytes) -> BoxFuture<'static, Bytes> {
        Box::pin(std::future::ready(Bytes::new()))
    }
}

struct Subject {
    node: RaftNode<OnTokio>,
    machine: Arc<TestMachine>,
    stops: Arc<Mutex<Vec<String>>>,
    silence: Arc<Silence>,
}

fn settings() -> RaftSettings {
    RaftSettings {
        snapshot_log_bytes: 2_000,
        log_tail_bytes: 500,
        upkeep_ms: 50,
        ..RaftSettings::default()
    }
}

async fn start(
    disk: &MemDisk,
    device: Arc<dyn SyncDevice>,
    settings: RaftSettings,
) -> Result<Subject, Fault> {
    let machine = TestMachine::open(Arc::new(MemStore::new()));
    let silence = Arc::new(Silence::default());
    let stops: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&stops);
    let rt: Arc<dyn Runtime> = Arc::new(TokioRuntime::new(
        tokio::runtime::Handle::current(),
        Arc::new(SystemClock),
    ));
    let parts = NodeParts {
        id: 1,
        cluster: "guards".into(),
        settings,
        log: Arc::new(MemLog::open(disk, device)) as Arc<dyn LogStore>,
        machine: Arc::clone(&machine) as Arc<dyn Machine>,
        transport: Arc::clone(&silence) as Arc<dyn PeerTransport>,
        forwards: Arc::new(NoForwards),
        rt,
        on_stop: Arc::new(move |why| noted.lock().push(why.to_owned())),
    };
    let (node, _handler) = RaftNode::start(parts).await?;
    Ok(Subject {
        node,
        machine,
        stops,
        silence,
    })
}

fn members(ids: &[u64]) -> BTreeMap<u64, NodeAddress> {
    let address = |id: &u64| NodeAddress {
        peer: format!("127.0.0.1:{id}"),
        api: String::new(),
    };
    ids.iter().map(|id| (*id, address(id))).collect()
}

/// Waits until `holds`; an error after five seconds.
async fn until(what: &str, holds: impl Fn() -> bool) -> Result<(), Fault> {
    for _ in 0..500 {
        if holds() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err(Fault::invariant(format!("never: {what}")))
}

async fn alone() -> Result<Subject, Fault> {
    let subject = start(&MemDisk::new(), Arc::new(InstantSync), settings()).await?;
    subject.node.found(members(&[1])).await?;
    until("leads", || subject.node.status().role == Role::Leader).await?;
    Ok(subject)
}

async fn write(subject: &Subject, count: u64) -> Result<(), Fault> {
    let term = subject.node.status().term;
    for _ in 0..count {
        let proposal = subject.node.propose(term, Bytes::from(vec![1; 100]));
        let committed = proposal.await;
        committed.map_err(|e| Fault::invariant(e.to_string()))?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_node_commits_answers_and_reads() -> Result<(), Fault> {
    let subject = alone().await?;
    write(&subject, 20).await?;
    assert_eq!(subject.machine.batches()?, 20);
    let index = subject.node.read_barrier().await;
    assert!(index.is_ok_and(|index| index >= 20));
    assert_eq!(subject.node.status().quorum_ack_age_ms, Some(0));
    assert!(subject.node.status().recovered);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proposal_of_another_term_is_not_appended() -> Result<(), Fault> {
    let subject = alone().await?;
    let before = subject.node.status();
    let stale = subject
        .node
        .propose(before.term + 1, Bytes::from_static(b"x"));
    assert!(matches!(stale.await, Err(ProposeError::NotLeader { .. })));
    assert_eq!(subject.node.status().last_log, before.last_log);
    let large = Bytes::from(vec![0; 2 * 1024 * 1024]);
    let refused = subject.node.propose(before.term, large).await;
    assert!(matches!(refused, Err(ProposeError::Overloaded)));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_is_purged_only_below_what_is_durable() -> Result<(), Fault> {
    let subject = alone().await?;
    subject.machine.hold_durable(30);
    write(&subject, 120).await?;
    until("a purge", || subject.node.status().purged.is_some()).await?;
    write(&subject, 60).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let status = subject.node.status();
    assert!(status.purged <= Some(30), "purged {:?}", status.purged);
    assert!(status.snapshot > Some(60));
    subject.machine.hold_durable(u64::MAX);
    let purged = || subject.node.status().purged;
    until("a purge beyond", || purged() > Some(60)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn empty_learner_is_not_promoted() -> Result<(), Fault> {
    let subject = alone().await?;
    write(&subject, 5).await?;
    let address = NodeAddress::default();
    let added = subject.node.add_learner(2, address.clone()).await;
    assert_eq!(added, Ok(()));
    assert_eq!(subject.node.add_learner(2, address).await, Ok(()));
    let promoted = subject.node.promote(2).await;
    assert!(matches!(
        promoted,
        Err(MembershipError::Behind { id: 2, .. })
    ));
    assert!(matches!(
        subject.node.promote(9).await,
        Err(MembershipError::Refused(_))
    ));
    assert_eq!(subject.node.remove(2).await, Ok(()));
    assert!(subject.node.status().members.learners.is_empty());
    let last = subject.node.remove(1).await;
    assert!(matches!(last, Err(MembershipError::Refused(_))));
    Ok(())
}

/// Fails every sync after the first few.
struct Failing(Mutex<u32>);

impl SyncDevice for Failing {
    fn sync(&self, _bytes: u64, done: Synced) {
        let good = {
            let mut left = self.0.lock();
            *left = left.saturating_sub(1);
            *left > 0
        };
        done(if good {
            Ok(())
        } else {
            let eio = std::io::Error::from_raw_os_error(5);
            Err(Fault::storage("fdatasync", eio))
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_sync_stops_the_node_and_says_so() -> Result<(), Fault> {
    let device = Arc::new(Failing(Mutex::new(8)));
    let subject = start(&MemDisk::new(), device, settings()).await?;
    subject.node.found(members(&[1])).await?;
    until("leads", || subject.node.status().role == Role::Leader).await?;
    assert!(write(&subject, 50).await.is_err());
    until("the stop hook", || !subject.stops.lock().is_empty()).await?;
    assert!(!subject.node.status().running);
    assert_eq!(subject.stops.lock().len(), 1);
    let after = subject.node.propose(1, Bytes::from_static(b"x")).await;
    assert!(matches!(after, Err(ProposeError::Stopped)));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_apply_stops_the_node_and_says_so() -> Result<(), Fault> {
    let subject = alone().await?;
    subject.machine.fail();
    assert!(write(&subject, 1).await.is_err());
    until("the stop hook", || !subject.stops.lock().is_empty()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_without_a_majority_keeps_asking_with_deadlines_and_is_not_recovered()
-> Result<(), Fault> {
    let subject = start(&MemDisk::new(), Arc::new(InstantSync), settings()).await?;
    subject.node.found(members(&[1, 2, 3])).await?;
    let asked = || subject.silence.deadlines.lock().len();
    until("several rounds of votes", || asked() >= 6).await?;
    let longest = subject.silence.deadlines.lock().iter().max().copied();
    assert!(longest.is_some_and(|d| d <= Duration::from_secs(2)));
    let status = subject.node.status();
    assert!(!status.recovered && !status.is_leader());
    let early = subject
        .node
        .propose(status.term, Bytes::from_static(b"x"))
        .await;
    assert!(matches!(early, Err(ProposeError::NotLeader { .. })));
    assert!(subject.node.read_barrier().await.is_err());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn founding_again_changes_nothing() -> Result<(), Fault> {
    let subject = alone().await?;
    write(&subject, 3).await?;
    subject.node.found(members(&[1, 2, 3])).await?;
    assert_eq!(subject.node.status().members.voters.len(), 1);
    Ok(())
}
