//! A fake cluster for tests of the leader: one log, several replicas on memory stores, leadership that a test moves.
//!
//! Callers: `leader::tests`. Time is tokio's paused clock, every choice comes from a seed, so a run repeats exactly.
//! What it does that Raft may do: commits late and in groups; deposes a leader with entries in flight, of which a prefix
//! survives; leaves an old leader in the belief that it leads; loses effects (and says so, as the inbox does).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::command::codec;
use crate::command::outcome::{GrantResult, Outcome};
use crate::command::schedules::{ScheduleCommand, Step};
use crate::command::{Batch, Command};
use crate::ids::{ExecutionId, ScheduleId, TenantNo};
use crate::leader::clock::NoPeers;
use crate::leader::rules::ZoneReleases;
use crate::leader::{Leader, LeaderParts, LeaderSettings, Scheduler};
use crate::raft::{
    BarrierError, Changes, Committed, Consensus, ConsensusStatus, MembershipError, NodeAddress,
    PeerClock, ProposeError, Role,
};
use crate::rt::{Runtime, TaskHandle};
use crate::state::machine::{CommittedEntry, Machine, Payload, Position};
use crate::state::replica::{BatchAnswer, Replica};
use crate::state::verify;
use crate::store::MemStore;
use crate::time::{Clock, Millis, Timestamp};

/// Wall time at the start of every run.
pub(crate) const START: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// Tokio's paused time as a node's clock, with a wall clock that tests move.
pub(crate) struct PausedClock {
    begin: Instant,
    ahead_ms: Mutex<i64>,
}

impl PausedClock {
    fn new() -> Self {
        Self {
            begin: Instant::now(),
            ahead_ms: Mutex::new(0),
        }
    }

    /// Moves the wall clock.
    pub(crate) fn jump(&self, by_ms: i64) {
        *self.ahead_ms.lock() += by_ms;
    }
}

impl Clock for PausedClock {
    fn wall(&self) -> Timestamp {
        let passed = i64::try_from(self.monotonic().0).expect("a short run");
        Timestamp::from_millis(START.millis() + passed + *self.ahead_ms.lock())
    }

    fn monotonic(&self) -> Millis {
        let passed = self.begin.elapsed().as_millis();
        Millis(u64::try_from(passed).expect("a short run"))
    }
}

/// A seeded source of choices (SplitMix64).
#[derive(Debug)]
pub(crate) struct Dice(Mutex<u64>);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }

    pub(crate) fn next(&self) -> u64 {
        let mut state = self.0.lock();
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}

/// Tasks on the test's own runtime; blocking work in place.
pub(crate) struct TestRuntime {
    clock: Arc<PausedClock>,
    dice: Dice,
}

impl Runtime for TestRuntime {
    fn spawn(&self, _: &'static str, task: BoxFuture<'static, ()>) -> TaskHandle {
        let (handle, body) = TaskHandle::wrap(task);
        tokio::runtime::Handle::current().spawn(body);
        handle
    }

    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send>) {
        // A job takes a moment, as on a real disk: what happens meanwhile must not be lost.
        let wait = Duration::from_micros(self.dice.below(2_000));
        tokio::runtime::Handle::current().spawn(async move {
            tokio::time::sleep(wait).await;
            work();
        });
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock) as Arc<dyn Clock>
    }

    fn random_u64(&self) -> u64 {
        self.dice.next()
    }
}

type Waiting = oneshot::Sender<Result<Committed, ProposeError>>;

/// A node that still believes that it leads.
struct Ghost {
    term: u64,
    waiting: Vec<Waiting>,
    since: Instant,
}

#[derive(Default)]
struct Log {
    /// Appended and not yet committed.
    tail: Vec<(CommittedEntry, Option<Waiting>)>,
    next_index: u64,
    term: u64,
    leader: Option<u64>,
    /// Nodes that still believe in an old term, with proposals that lead nowhere.
    ghosts: BTreeMap<u64, Ghost>,
    committed: u64,
    seen: Witness,
}

/// What went through the log, and the rules that it must keep.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    /// Occurrences created or skipped, with how often.
    pub(crate) created: BTreeMap<(TenantNo, ScheduleId, Timestamp), u32>,
    /// Executions created by occurrences, in order.
    pub(crate) executions: Vec<ExecutionId>,
    /// Last token of each execution.
    tokens: BTreeMap<ExecutionId, u64>,
    /// First grants: execution, and log time.
    pub(crate) granted: Vec<(ExecutionId, Timestamp)>,
    /// Commands that went through, and entries.
    pub(crate) commands: u64,
    pub(crate) entries: u64,
    /// Executions that a lease was taken from because its time was over.
    pub(crate) expired: u32,
    /// Largest entry, in bytes.
    pub(crate) entry_max: usize,
}

impl Witness {
    fn entry(&mut self, bytes: &Bytes, answer: &BatchAnswer) {
        let Batch { commands, .. } = codec::decode(bytes).expect("it was encoded by us");
        self.entries += 1;
        self.commands += commands.len() as u64;
        self.entry_max = self.entry_max.max(bytes.len());
        assert!(commands.len() <= 256, "an entry is bounded");
        for (envelope, outcome) in commands.iter().zip(&answer.outcomes) {
            match (&envelope.command, outcome) {
                (
                    Command::Schedule(ScheduleCommand::Fire(fire)),
                    Outcome::Fired { created, .. },
                ) => {
                    self.executions.extend(created.iter().cloned());
                    for step in &fire.steps {
                        if let Step::Create { planned, .. } = step {
                            let name = (fire.tenant, fire.id.clone(), planned.nominal_at);
                            let times = self.created.entry(name).or_default();
                            *times += 1;
                            assert_eq!(*times, 1, "an occurrence is decided once");
                        }
                    }
                }
                (_, Outcome::Granted(results)) => self.grants(results, answer),
                (
                    Command::Lease(crate::command::leases::LeaseCommand::Expire(_)),
                    Outcome::Processed { done },
                ) => self.expired += done,
                _ => {}
            }
        }
    }

    fn grants(&mut self, results: &[GrantResult], answer: &BatchAnswer) {
        for result in results {
            let GrantResult::Granted(granted) = result else {
                continue;
            };
            let id = granted.lease.execution.clone();
            let token = granted.lease.fencing_token;
            let last = self.tokens.insert(id.clone(), token);
            assert!(last.is_none_or(|last| last < token), "tokens grow");
            if last.is_none() {
                self.granted.push((id, answer.now));
            }
        }
    }
}

struct Shared {
    log: Mutex<Log>,
    replicas: Vec<Arc<Replica>>,
    changes: Vec<Changes>,
    appended: Notify,
    dice: Dice,
    commit_ms: Mutex<u64>,
}

/// One node's view of the fake log.
struct FakeConsensus {
    id: u64,
    shared: Arc<Shared>,
}

impl Consensus for FakeConsensus {
    fn propose(
        &self,
        term: u64,
        payload: Bytes,
    ) -> BoxFuture<'static, Result<Committed, ProposeError>> {
        let (tell, told) = oneshot::channel();
        let mut log = self.shared.log.lock();
        if let Some(ghost) = log.ghosts.get_mut(&self.id).filter(|g| g.term == term) {
            ghost.waiting.push(tell);
        } else if log.leader == Some(self.id) && log.term == term {
            log.append(self.id, Payload::Batch(payload), Some(tell));
            self.shared.appended.notify_one();
        } else {
            let leader = log.leader;
            return Box::pin(async move { Err(ProposeError::NotLeader { leader }) });
        }
        Box::pin(async move { told.await.unwrap_or(Err(ProposeError::Unknown)) })
    }

    fn read_barrier(&self) -> BoxFuture<'static, Result<u64, BarrierError>> {
        let committed = self.shared.log.lock().committed;
        Box::pin(async move { Ok(committed) })
    }

    fn peer_clocks(&self) -> Vec<PeerClock> {
        Vec::new()
    }

    fn status(&self) -> ConsensusStatus {
        let log = self.shared.log.lock();
        let ghost = log.ghosts.get(&self.id).map(|g| g.term);
        let age = log
            .ghosts
            .get(&self.id)
            .map(|g| g.since.elapsed().as_millis());
        let leads = ghost.is_some() || log.leader == Some(self.id);
        ConsensusStatus {
            revision: self.shared.changes[self.id as usize].revision(),
            id: self.id,
            term: ghost.unwrap_or(log.term),
            role: if leads { Role::Leader } else { Role::Follower },
            leader: if leads { Some(self.id) } else { log.leader },
            committed: Some(log.committed),
            applied: Some(log.committed),
            running: true,
            recovered: true,
            quorum_ack_age_ms: age.and_then(|age| u64::try_from(age).ok()),
            ..ConsensusStatus::default()
        }
    }

    fn changed(&self, seen: u64) -> BoxFuture<'static, u64> {
        Box::pin(self.shared.changes[self.id as usize].above(seen))
    }

    fn applied(&self, index: u64) -> BoxFuture<'static, Result<u64, BarrierError>> {
        Box::pin(async move { Ok(index) })
    }

    fn add_learner(
        &self,
        _: u64,
        _: NodeAddress,
    ) -> BoxFuture<'static, Result<(), MembershipError>> {
        Box::pin(async { Err(MembershipError::Stopped) })
    }

    fn promote(&self, _: u64) -> BoxFuture<'static, Result<(), MembershipError>> {
        Box::pin(async { Err(MembershipError::Stopped) })
    }

    fn remove(&self, _: u64) -> BoxFuture<'static, Result<(), MembershipError>> {
        Box::pin(async { Err(MembershipError::Stopped) })
    }

    fn transfer_leader(&self, _: Option<u64>) -> BoxFuture<'static, bool> {
        Box::pin(async { false })
    }

    fn trigger_snapshot(&self) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }

    fn shutdown(&self) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}

impl Log {
    fn append(&mut self, leader: u64, payload: Payload, waiting: Option<Waiting>) {
        self.next_index += 1;
        let position = Position {
            term: self.term,
            leader,
            index: self.next_index,
        };
        self.tail
            .push((CommittedEntry { position, payload }, waiting));
    }
}

impl Shared {
    /// Commits the whole tail, on every node.
    fn commit(&self) {
        let tail = std::mem::take(&mut self.log.lock().tail);
        for (entry, waiting) in tail {
            let answer = self.apply(entry.clone());
            let committed = Committed {
                position: entry.position,
                answer,
            };
            if let Some(waiting) = waiting {
                let _gone = waiting.send(Ok(committed));
            }
        }
    }

    fn apply(&self, entry: CommittedEntry) -> crate::state::machine::EntryAnswer {
        let leader = usize::try_from(entry.position.leader).expect("a small id");
        let mut own = None;
        for (no, replica) in self.replicas.iter().enumerate() {
            let mut answers = replica.apply(vec![entry.clone()]).expect("it applies");
            let answer = answers.pop().flatten();
            if no == leader {
                own = answer;
            }
        }
        let mut log = self.log.lock();
        log.committed = entry.position.index;
        if let (Payload::Batch(bytes), Some(answer)) = (&entry.payload, &own) {
            let answer = Arc::clone(answer)
                .downcast::<BatchAnswer>()
                .expect("outcomes");
            log.seen.entry(bytes, &answer);
        }
        own
    }
}

/// See the module.
pub(crate) struct Cluster {
    shared: Arc<Shared>,
    /// One on each node.
    pub(crate) leaders: Vec<Arc<Leader>>,
    /// The clock that all nodes share.
    pub(crate) clock: Arc<PausedClock>,
    /// For the test's own choices.
    pub(crate) dice: Dice,
}

impl Cluster {
    /// `nodes` nodes, nobody leads.
    pub(crate) fn new(seed: u64, nodes: usize) -> Self {
        let clock = Arc::new(PausedClock::new());
        let open = |_| {
            let store = Arc::new(MemStore::default());
            Arc::new(Replica::open(store).expect("an empty store opens"))
        };
        let shared = Arc::new(Shared {
            log: Mutex::new(Log::default()),
            replicas: (0..nodes).map(open).collect(),
            changes: (0..nodes).map(|_| Changes::default()).collect(),
            appended: Notify::new(),
            dice: Dice::new(seed ^ 0xC0),
            commit_ms: Mutex::new(3),
        });
        let start = |id: usize| {
            let id = id as u64;
            let consensus = FakeConsensus {
                id,
                shared: Arc::clone(&shared),
            };
            let runtime = TestRuntime {
                clock: Arc::clone(&clock),
                dice: Dice::new(seed.wrapping_mul(31).wrapping_add(id)),
            };
            Leader::start(LeaderParts {
                consensus: Arc::new(consensus),
                replica: Arc::clone(&shared.replicas[id as usize]),
                runtime: Arc::new(runtime),
                zones: ZoneReleases::bundled(),
                peers: Arc::new(NoPeers),
                settings: LeaderSettings::new(id),
            })
        };
        let leaders = (0..nodes).map(start).collect();
        let committer = Arc::clone(&shared);
        tokio::runtime::Handle::current().spawn(async move {
            loop {
                committer.appended.notified().await;
                let most = *committer.commit_ms.lock() * 1_000;
                let wait = committer.dice.below(most + 1);
                tokio::time::sleep(Duration::from_micros(wait)).await;
                committer.commit();
            }
        });
        Self {
            shared,
            leaders,
            clock,
            dice: Dice::new(seed ^ 0xD1CE),
        }
    }

    /// One node that leads and is in office.
    pub(crate) async fn one(seed: u64) -> Self {
        let cluster = Self::new(seed, 1);
        cluster.elect(0);
        cluster.leader().await;
        cluster
    }

    /// A commit takes up to so long.
    pub(crate) fn commit_within(&self, ms: u64) {
        *self.shared.commit_ms.lock() = ms;
    }

    /// Makes `node` the leader of a new term. Of what was in flight a random prefix survives.
    pub(crate) fn elect(&self, node: u64) {
        self.depose();
        let mut log = self.shared.log.lock();
        log.leader = Some(node);
        log.ghosts.remove(&node);
        log.append(node, Payload::Blank, None);
        drop(log);
        self.shared.appended.notify_one();
        for changes in &self.shared.changes {
            changes.bump();
        }
    }

    /// Ends the present term; nobody leads.
    pub(crate) fn depose(&self) {
        let mut log = self.shared.log.lock();
        log.term += 1;
        log.leader = None;
        let kept = self.shared.dice.below(log.tail.len() as u64 + 1);
        let lost = log.tail.split_off(usize::try_from(kept).expect("few"));
        log.next_index -= lost.len() as u64;
        // Nobody is told of what survives either: it commits under the next leader.
        let mut unknown: Vec<Waiting> = lost.into_iter().filter_map(|(_, w)| w).collect();
        unknown.extend(log.tail.iter_mut().filter_map(|(_, w)| w.take()));
        drop(log);
        for waiting in unknown {
            let _gone = waiting.send(Err(ProposeError::Unknown));
        }
        for changes in &self.shared.changes {
            changes.bump();
        }
    }

    /// Elects `node` while the old leader goes on believing in its term, until [`Cluster::exorcise`].
    pub(crate) fn elect_unseen(&self, node: u64) {
        let mut log = self.shared.log.lock();
        if let Some(old) = log.leader.filter(|old| *old != node) {
            let term = log.term;
            let ghost = Ghost {
                term,
                waiting: Vec::new(),
                since: Instant::now(),
            };
            log.ghosts.insert(old, ghost);
        }
        drop(log);
        self.elect(node);
    }

    /// Old leaders learn that they lead no more.
    pub(crate) fn exorcise(&self) {
        let ghosts = std::mem::take(&mut self.shared.log.lock().ghosts);
        for waiting in ghosts.into_values().flat_map(|ghost| ghost.waiting) {
            let _gone = waiting.send(Err(ProposeError::Unknown));
        }
        for changes in &self.shared.changes {
            changes.bump();
        }
    }

    /// Effects to the leader's office are lost, as by an overflow.
    pub(crate) fn lose_effects(&self, node: usize) {
        self.leaders[node].lose_effects();
    }

    /// The leader that is in office, waiting for one.
    pub(crate) async fn leader(&self) -> Arc<Leader> {
        loop {
            let leads = self.shared.log.lock().leader;
            let leader = leads.map(|id| &self.leaders[id as usize]);
            if let Some(leader) = leader.filter(|l| l.in_office()) {
                return Arc::clone(leader);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The present leader's state.
    pub(crate) fn replica(&self) -> Arc<Replica> {
        let leads = self.shared.log.lock().leader.unwrap_or(0);
        Arc::clone(&self.shared.replicas[leads as usize])
    }

    /// What an API of `node` stands on.
    pub(crate) fn node_parts(
        &self,
        node: usize,
    ) -> (Arc<dyn Consensus>, Arc<Replica>, Arc<dyn Runtime>) {
        let id = node as u64;
        let consensus = FakeConsensus {
            id,
            shared: Arc::clone(&self.shared),
        };
        let runtime = TestRuntime {
            clock: Arc::clone(&self.clock),
            dice: Dice::new(self.dice.next()),
        };
        let replica = Arc::clone(&self.shared.replicas[node]);
        (Arc::new(consensus), replica, Arc::new(runtime))
    }

    /// Looks at what went through the log.
    pub(crate) fn witness<T>(&self, look: impl FnOnce(&Witness) -> T) -> T {
        look(&self.shared.log.lock().seen)
    }

    /// Every node's state is sound and all are equal.
    pub(crate) fn check(&self) {
        let mut images = BTreeSet::new();
        for replica in &self.shared.replicas {
            let (view, _, _) = replica.view();
            let report = verify::verify(view.as_ref()).expect("readable");
            assert!(report.is_sound(), "{:#?}", report.problems);
            images.insert(format!("{:?}", *replica.resident()));
        }
        assert_eq!(images.len(), 1, "all replicas are equal");
    }

    /// Lets time pass.
    pub(crate) async fn pass(&self, ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}
