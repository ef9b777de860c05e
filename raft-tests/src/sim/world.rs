//! The cluster: nodes that start, crash, return, are replaced; and what a workload may do with them.
//!
//! Purpose: hold everything that outlives a node's life, and give workloads a small interface.
//! Callers: [`super::run`], workloads.
//! Invariants: a node's disk and clock survive its crashes; its tasks, handles and unsynced writes do not. A node that
//! was wiped never returns under its id.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use punctual::fault::Fault;
use punctual::raft::{Consensus, Forward, ForwardHandler, NodeAddress, NodeParts, RaftNode, Role};
use punctual::rt::Runtime;
use punctual::state::machine::Machine;
use punctual::store::log::mem::MemLog;
use punctual::time::{Clock, Timestamp};
use rand::rngs::SmallRng;

use super::clock::SimClock;
use super::disk::SimDisk;
use super::ledger::Counters;
use super::network::SimNetwork;
use super::observe::{Observed, Observer};
use super::options::Options;
use super::runtime::{NodeRt, Scope, SimRuntime, begin_life, end_life, scoped, spawn_in};
use super::seed::Seed;
use super::trace::Trace;

/// What the cluster is used for. One value serves one run; its parts for each node survive crashes inside it.
pub trait Workload: Send + Sync + 'static {
    /// Opens the state machine of a node on that node's own store, at every start. The store must lose in [`Self::crash`]
    /// what was not flushed.
    ///
    /// # Errors
    /// Counted as a violation.
    fn open(&self, node: &NodeContext) -> Result<Arc<dyn Machine>, Fault>;

    /// The node lost power: keep a random prefix (from `rng`) of what its store had not flushed.
    fn crash(&self, node: u64, rng: &mut SmallRng);

    /// The node's store is gone for ever.
    fn wipe(&self, node: u64);

    /// Runs on the node beside Raft for the whole life (a leader loop); ends with it. Must not return early.
    fn node_task(&self, node: NodeContext) -> Option<BoxFuture<'static, ()>>;

    /// Answers what other nodes forward to this one, if the workload forwards anything.
    fn forwards(&self, node: &NodeContext) -> Option<Arc<dyn ForwardHandler>>;

    /// The clients: runs outside the nodes from the start; should end soon after [`World::is_chaos_over`].
    fn clients(&self, world: World) -> BoxFuture<'static, ()>;

    /// After recovery: what is wrong, in words. Every node runs and has applied the same.
    fn check(&self, world: World) -> BoxFuture<'static, Vec<String>>;
}

/// A node in one of its lives, as a workload sees it.
#[derive(Clone)]
pub struct NodeContext {
    /// Which node and life.
    pub scope: Scope,
    /// The whole world.
    pub world: World,
    /// Tasks, clock and randomness of this life. Spawn through it, so that a crash ends the task.
    pub rt: Arc<dyn Runtime>,
}

impl NodeContext {
    /// This life's Raft, once it is started; `None` before, and for a life that has ended.
    #[must_use]
    pub fn raft(&self) -> Option<RaftNode<SimRuntime>> {
        let nodes = self.world.inner.nodes.lock();
        let slot = nodes.get(&self.scope.node)?;
        let running = slot.running.as_ref()?;
        (running.scope == self.scope).then(|| running.raft.clone())
    }
}

pub(super) struct Running {
    pub(super) scope: Scope,
    pub(super) raft: RaftNode<SimRuntime>,
    pub(super) machine: Arc<dyn Machine>,
}

pub(super) struct Slot {
    pub(super) disk: SimDisk,
    pub(super) clock: SimClock,
    life: u64,
    /// An injected disk error excuses the next stop.
    pub(super) may_stop: bool,
    /// Wiped: never starts again.
    pub(super) gone: bool,
    pub(super) running: Option<Running>,
}

pub(super) struct Inner {
    pub(super) seed: Seed,
    pub(super) options: Options,
    pub(super) trace: Trace,
    pub(super) counters: Counters,
    pub(super) observer: Observer,
    pub(super) network: SimNetwork,
    pub(super) nodes: Mutex<BTreeMap<u64, Slot>>,
    pub(super) founders: BTreeMap<u64, NodeAddress>,
    pub(super) workload: Arc<dyn Workload>,
    pub(super) rng: Mutex<SmallRng>,
    pub(super) changing_members: AtomicBool,
    chaos_over: AtomicBool,
    start: tokio::time::Instant,
}

/// The shared world of one run.
#[derive(Clone)]
pub struct World {
    pub(super) inner: Arc<Inner>,
}

/// Addresses mean nothing here; they only have to differ.
pub(super) fn address(node: u64) -> NodeAddress {
    NodeAddress {
        peer: format!("node-{node}"),
        api: format!("http://node-{node}"),
    }
}

struct NoForwards;

impl ForwardHandler for NoForwards {
    fn handle(&self, _from: u64, _request: Bytes) -> BoxFuture<'static, Bytes> {
        Box::pin(std::future::ready(Bytes::new()))
    }
}

impl World {
    pub(super) fn new(
        seed: Seed,
        options: Options,
        trace: Trace,
        workload: Arc<dyn Workload>,
    ) -> Self {
        let counters = Counters::default();
        let network = SimNetwork::new(seed.stream("network", 0), options.link, trace.clone());
        let founders = (1..=options.nodes).map(|id| (id, address(id))).collect();
        Self {
            inner: Arc::new(Inner {
                seed,
                observer: Observer::new(trace.clone(), counters.clone()),
                trace,
                counters,
                network,
                nodes: Mutex::default(),
                founders,
                workload,
                rng: Mutex::new(seed.stream("world", 0)),
                changing_members: AtomicBool::new(false),
                chaos_over: AtomicBool::new(false),
                start: tokio::time::Instant::now(),
                options,
            }),
        }
    }

    /// The options of this run.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.inner.options
    }

    /// A stream of randomness for a part of the workload.
    #[must_use]
    pub fn rng(&self, name: &str, number: u64) -> SmallRng {
        self.inner.seed.stream(name, number)
    }

    /// Counts for the ledger.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// Where acknowledgements and violations are reported.
    #[must_use]
    pub fn observer(&self) -> &Observer {
        &self.inner.observer
    }

    /// The trace; add events that show what the workload did.
    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.inner.trace
    }

    /// Whether faults have ended (recovery may still be under way).
    #[must_use]
    pub fn is_chaos_over(&self) -> bool {
        self.inner.chaos_over.load(Ordering::SeqCst)
    }

    pub(super) fn end_chaos(&self) {
        self.inner.chaos_over.store(true, Ordering::SeqCst);
    }

    /// The true time.
    #[must_use]
    pub fn truth(&self) -> Timestamp {
        SimClock::new(self.inner.start).truth()
    }

    /// The wall clocks of the nodes that run now.
    #[must_use]
    pub fn walls(&self) -> Vec<Timestamp> {
        let nodes = self.inner.nodes.lock();
        let running = nodes.values().filter(|slot| slot.running.is_some());
        running.map(|slot| slot.clock.wall()).collect()
    }

    /// Ids of the nodes that run now.
    #[must_use]
    pub fn running(&self) -> Vec<u64> {
        let nodes = self.inner.nodes.lock();
        let running = nodes.iter().filter(|(_, slot)| slot.running.is_some());
        running.map(|(id, _)| *id).collect()
    }

    /// A running node's Raft ([`Consensus`] and [`Forward`]).
    #[must_use]
    pub fn raft(&self, node: u64) -> Option<RaftNode<SimRuntime>> {
        let nodes = self.inner.nodes.lock();
        let running = nodes.get(&node)?.running.as_ref()?;
        Some(running.raft.clone())
    }

    /// A running node as [`Consensus`].
    #[must_use]
    pub fn consensus(&self, node: u64) -> Option<Arc<dyn Consensus>> {
        Some(Arc::new(self.raft(node)?))
    }

    /// A running node as [`Forward`].
    #[must_use]
    pub fn forward(&self, node: u64) -> Option<Arc<dyn Forward>> {
        Some(Arc::new(self.raft(node)?))
    }

    /// A running node's state machine.
    #[must_use]
    pub fn machine(&self, node: u64) -> Option<Arc<dyn Machine>> {
        let nodes = self.inner.nodes.lock();
        let running = nodes.get(&node)?.running.as_ref()?;
        Some(Arc::clone(&running.machine))
    }

    /// The node that says it leads, in the highest term.
    #[must_use]
    pub fn leader(&self) -> Option<u64> {
        let mut best = None;
        for id in self.running() {
            let status = self.raft(id).map(|raft| raft.status());
            if let Some(status) = status
                && status.role == Role::Leader
            {
                best = best.max(Some((status.term, id)));
            }
        }
        best.map(|(_, id)| id)
    }

    /// Spawns outside every node.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(spawn_in(Scope::HARNESS, task));
    }

    pub(super) fn add_slot(&self, id: u64) {
        let stream = self.inner.seed.stream("disk", id);
        let slot = Slot {
            disk: SimDisk::new(stream, self.inner.options.sync_us),
            clock: SimClock::new(self.inner.start),
            life: 0,
            may_stop: false,
            gone: false,
            running: None,
        };
        self.inner.nodes.lock().insert(id, slot);
    }

    fn open_life(&self, id: u64) -> Option<(Scope, SimDisk, SimClock)> {
        let mut nodes = self.inner.nodes.lock();
        let slot = nodes.get_mut(&id)?;
        if slot.running.is_some() || slot.gone {
            return None;
        }
        slot.life += 1;
        let scope = Scope {
            node: id,
            life: slot.life,
        };
        Some((scope, slot.disk.clone(), slot.clock.clone()))
    }

    /// Starts a node that does not run. Does nothing if it runs or is gone.
    pub async fn start(&self, id: u64) {
        let Some((scope, disk, clock)) = self.open_life(id) else {
            return;
        };
        begin_life(scope);
        self.inner.trace.event("start", id, &[scope.life]);
        let clock: Arc<dyn Clock> = Arc::new(clock);
        let rt: Arc<dyn Runtime> = Arc::new(NodeRt { scope, clock });
        let context = NodeContext {
            scope,
            world: self.clone(),
            rt: Arc::clone(&rt),
        };
        let mut log = MemLog::open(&disk.log, disk.device(scope));
        if self.inner.options.acknowledge_early {
            log = log.acknowledging_before_sync();
        }
        let opened = match self.inner.workload.open(&context) {
            Ok(machine) => machine,
            Err(fault) => {
                let observer = &self.inner.observer;
                return observer.violation(format!("node {id} does not open: {fault}"));
            }
        };
        let observed: Arc<dyn Machine> = Arc::new(Observed::new(
            Arc::clone(&opened),
            self.inner.observer.clone(),
            scope,
        ));
        let forwards = self.inner.workload.forwards(&context);
        let parts = NodeParts {
            id,
            cluster: "sim".into(),
            settings: self.inner.options.raft.clone(),
            log: Arc::new(log),
            machine: observed,
            transport: self.inner.network.transport(scope),
            forwards: forwards.unwrap_or_else(|| Arc::new(NoForwards)),
            rt,
            on_stop: self.stop_hook(scope),
        };
        match scoped(scope, RaftNode::<SimRuntime>::start(parts)).await {
            Ok((raft, handler)) => {
                self.inner.network.listen(scope, handler);
                self.adopt(context, raft, opened);
            }
            Err(fault) => {
                let observer = &self.inner.observer;
                observer.violation(format!("node {id} does not start: {fault}"));
            }
        }
    }

    fn adopt(&self, context: NodeContext, raft: RaftNode<SimRuntime>, machine: Arc<dyn Machine>) {
        let scope = context.scope;
        if let Some(slot) = self.inner.nodes.lock().get_mut(&scope.node) {
            slot.running = Some(Running {
                scope,
                raft: raft.clone(),
                machine,
            });
        }
        if self.inner.founders.contains_key(&scope.node) {
            let members = self.inner.founders.clone();
            drop(spawn_in(scope, async move {
                // A stop is reported through the hook.
                let _stopped = raft.found(members).await;
            }));
        }
        if let Some(task) = self.inner.workload.node_task(context) {
            drop(spawn_in(scope, task));
        }
    }

    /// What happens when Raft stops by itself: excused after a disk error, else a violation; the node is restarted.
    fn stop_hook(&self, scope: Scope) -> punctual::raft::StopHook {
        let world = self.clone();
        Arc::new(move |why: &str| {
            world.inner.trace.event("stopped", scope.node, &[]);
            let excused = {
                let mut nodes = world.inner.nodes.lock();
                let slot = nodes.get_mut(&scope.node);
                slot.is_some_and(|slot| std::mem::take(&mut slot.may_stop))
            };
            if !excused {
                let observer = &world.inner.observer;
                observer.violation(format!("node {} stopped by itself: {why}", scope.node));
            }
            let again = world.clone();
            world.spawn(async move {
                again.crash_life(scope);
                tokio::time::sleep(Duration::from_millis(300)).await;
                again.start(scope.node).await;
            });
        })
    }

    fn crash_life(&self, scope: Scope) {
        let current = {
            let nodes = self.inner.nodes.lock();
            let running = nodes.get(&scope.node).and_then(|s| s.running.as_ref());
            running.map(|r| r.scope)
        };
        if current == Some(scope) {
            self.crash(scope.node);
        }
    }

    /// Power loss. `false` if the node did not run.
    pub fn crash(&self, id: u64) -> bool {
        let (running, disk) = {
            let mut nodes = self.inner.nodes.lock();
            let Some(slot) = nodes.get_mut(&id) else {
                return false;
            };
            let Some(running) = slot.running.take() else {
                return false;
            };
            slot.may_stop = false;
            (running, slot.disk.clone())
        };
        self.inner.trace.event("crash", id, &[running.scope.life]);
        self.inner.network.close(id);
        end_life(running.scope);
        disk.crash();
        let rng = &mut *self.inner.rng.lock();
        self.inner.workload.crash(id, rng);
        // Its last handle goes with the lock of `nodes` released: dropping it may run code of the node.
        drop(running);
        true
    }

    /// Power loss, then the disk is destroyed.
    pub(super) fn destroy(&self, id: u64) {
        self.crash(id);
        if let Some(slot) = self.inner.nodes.lock().get_mut(&id) {
            slot.gone = true;
            slot.disk.log.wipe();
        }
        self.inner.workload.wipe(id);
        self.inner.trace.event("destroyed", id, &[]);
    }

    pub(super) fn scope_of(&self, id: u64) -> Option<Scope> {
        let nodes = self.inner.nodes.lock();
        Some(nodes.get(&id)?.running.as_ref()?.scope)
    }
}
