//! A node for tests: the real state machine on a memory store, driven at once by a scheduler without a loop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;

use crate::api::call::Request;
use crate::api::dispatch::Origin;
use crate::api::reply::Reply;
use crate::api::{Api, ApiConfig, DevClock, Parts};
use crate::calendar::{Compiled, ZoneData};
use crate::command::admin::{AdminCommand, TakeOffice};
use crate::command::leases::{GrantItem, GrantLeases, LeaseCommand, ReportItem};
use crate::command::outcome::{LostReason, ReportResult};
use crate::command::schedules::ScheduleCommand;
use crate::command::{Batch, Command, Envelope, codec};
use crate::ids::{ExecutionId, ScheduleId, TenantNo, WorkerId};
use crate::leader::planner;
use crate::leader::{Answer, Claim, Claimed, Figure, Reported, Scheduler, Unavailable, WorkerSeen};
use crate::raft::{
    BarrierError, Committed, Consensus, ConsensusStatus, Forward, ForwardError, MembershipError,
    NodeAddress, PeerClock, ProposeError, Role,
};
use crate::rt::TokioRuntime;
use crate::state::machine::{CommittedEntry, Machine as _, Payload, Position};
use crate::state::replica::{BatchAnswer, Replica};
use crate::store::MemStore;
use crate::time::{Clock, Millis, Timestamp};

/// Time at which every test begins: a Sunday, 2026-03-01T08:00:00Z.
pub(crate) const START: Timestamp = Timestamp::from_millis(1_772_352_000_000);

/// A clock moved by hand.
#[derive(Debug)]
pub(crate) struct HandClock(AtomicI64);

impl Clock for HandClock {
    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Millis {
        self.wall().since(Timestamp::EPOCH)
    }
}

impl DevClock for HandClock {
    fn advance(&self, by: Millis) -> Timestamp {
        let by = i64::try_from(by.0).expect("a bounded step");
        self.0.fetch_add(by, Ordering::SeqCst);
        self.wall()
    }
}

/// Applies what it is given at once.
pub(crate) struct DirectScheduler {
    replica: Arc<Replica>,
    clock: Arc<HandClock>,
    zones: ZoneData,
    index: Mutex<u64>,
    /// Whether it says that it is in office.
    pub(crate) in_office: AtomicBool,
    /// Supersedes this many puts before it carries one out.
    pub(crate) supersede: AtomicU64,
    /// The last claim.
    pub(crate) claims: Mutex<Vec<Claim>>,
}

impl DirectScheduler {
    fn apply(&self, commands: Vec<Envelope>) -> Vec<Answer> {
        let mut index = self.index.lock();
        *index += 1;
        let batch = Batch {
            proposed_at: self.clock.wall(),
            term: 1,
            commands,
        };
        let bytes = codec::encode(&batch).expect("the batch encodes");
        let entry = CommittedEntry {
            position: Position {
                term: 1,
                leader: 1,
                index: *index,
            },
            payload: Payload::Batch(bytes),
        };
        let mut answers = self.replica.apply(vec![entry]).expect("the entry applies");
        let answer = answers.pop().flatten().expect("an answer");
        let answer = answer.downcast::<BatchAnswer>().expect("a batch's answer");
        let outcomes = answer.outcomes.iter();
        outcomes
            .map(|outcome| Answer {
                index: answer.token,
                outcome: outcome.clone(),
            })
            .collect()
    }

    fn fire(&self, tenant: TenantNo, id: &ScheduleId) {
        loop {
            let command = {
                let reader = self.replica.read();
                let Some((row, status)) = reader.schedule(tenant, id).expect("reads") else {
                    return;
                };
                let name = planner::identity(&reader.tenants[&tenant].id, id);
                let compiled = Compiled::new(&row.spec.rule, &self.zones, &name).expect("compiles");
                planner::plan_fire(&row, &status, &compiled, self.clock.wall(), false)
            };
            let Some(command) = command else { return };
            let command = Command::Schedule(ScheduleCommand::Fire(command));
            self.apply(vec![Envelope::leader(command)]);
        }
    }
}

impl Scheduler for DirectScheduler {
    fn submit(
        &self,
        commands: Vec<Envelope>,
    ) -> BoxFuture<'static, Result<Vec<Answer>, Unavailable>> {
        if !self.in_office.load(Ordering::SeqCst) {
            return futures::future::ready(Err(Unavailable::NotLeader { leader: None })).boxed();
        }
        let left = self.supersede.load(Ordering::SeqCst);
        if left > 0 {
            self.supersede.store(left - 1, Ordering::SeqCst);
            let refused = commands.iter().map(|_| Answer {
                index: 0,
                outcome: crate::command::outcome::Outcome::Refused(
                    crate::command::outcome::Refusal::Superseded,
                ),
            });
            return futures::future::ready(Ok(refused.collect())).boxed();
        }
        futures::future::ready(Ok(self.apply(commands))).boxed()
    }

    fn settle(
        &self,
        tenant: TenantNo,
        schedule: ScheduleId,
    ) -> BoxFuture<'static, Result<(), Unavailable>> {
        self.fire(tenant, &schedule);
        futures::future::ready(Ok(())).boxed()
    }

    fn caught_up(&self, _: Timestamp) -> BoxFuture<'static, Result<(), Unavailable>> {
        futures::future::ready(Ok(())).boxed()
    }

    fn claim(&self, claim: Claim) -> BoxFuture<'static, Result<Claimed, Unavailable>> {
        let reports = claim.reports.iter().map(|_| ReportResult::LeaseLost {
            reason: LostReason::Unknown,
        });
        let claimed = Claimed {
            leases: Vec::new(),
            bodies: Vec::new(),
            reports: reports.collect(),
            replayed: false,
            drain: false,
            poll_after: Millis::ZERO,
            now: self.now(),
            deadlines: Vec::new(),
        };
        self.claims.lock().push(claim);
        futures::future::ready(Ok(claimed)).boxed()
    }

    fn report(
        &self,
        _: WorkerId,
        items: Vec<ReportItem>,
    ) -> BoxFuture<'static, Result<Reported, Unavailable>> {
        let results = items.iter().map(|_| ReportResult::LeaseLost {
            reason: LostReason::LeaseExpired,
        });
        let reported = Reported {
            results: results.collect(),
            drain: false,
            index: 7,
        };
        futures::future::ready(Ok(reported)).boxed()
    }

    fn wait_final(
        &self,
        _: TenantNo,
        _: ExecutionId,
        wait: Millis,
    ) -> BoxFuture<'static, Result<bool, Unavailable>> {
        async move {
            tokio::time::sleep(wait.to_duration()).await;
            Ok(false)
        }
        .boxed()
    }

    fn workers(&self) -> Vec<WorkerSeen> {
        ["w2", "w1", "w3"].map(seen).into()
    }

    fn drain_worker(&self, worker: &WorkerId) -> bool {
        ["w1", "w2", "w3"].contains(&worker.as_str())
    }

    fn sign_off(&self, _: WorkerId) -> BoxFuture<'static, Result<u32, Unavailable>> {
        futures::future::ready(Ok(2)).boxed()
    }

    fn now(&self) -> Timestamp {
        self.clock.wall()
    }

    fn in_office(&self) -> bool {
        self.in_office.load(Ordering::SeqCst)
    }

    fn figures(&self) -> Vec<Figure> {
        let figure = |name, labels, value| Figure {
            name,
            labels,
            value,
        };
        vec![
            figure("fired_total", vec![("queue", "default".into())], 3.0),
            figure("late_seconds_bucket", vec![("le", "1".into())], 2.0),
            figure("late_seconds_bucket", vec![("le", "+Inf".into())], 4.0),
            figure("late_seconds_sum", Vec::new(), 2.5),
            figure("late_seconds_count", Vec::new(), 4.0),
        ]
    }
}

fn seen(name: &str) -> WorkerSeen {
    WorkerSeen {
        worker: WorkerId::new(name).expect("a name"),
        queues: Vec::new(),
        first_seen_at: START,
        last_seen_at: START,
        leased: 0,
        polling: 1,
        draining: false,
        labels: BTreeMap::new(),
    }
}

/// Consensus whose word is set by the test.
#[derive(Default)]
pub(crate) struct SaidConsensus {
    /// Its status.
    pub(crate) status: Mutex<ConsensusStatus>,
    /// What a read barrier answers instead of passing.
    pub(crate) barrier: Mutex<Option<BarrierError>>,
    /// How often a barrier was asked for.
    pub(crate) barriers: AtomicU64,
}

impl Consensus for SaidConsensus {
    fn propose(&self, _: u64, _: Bytes) -> BoxFuture<'static, Result<Committed, ProposeError>> {
        futures::future::ready(Err(ProposeError::Stopped)).boxed()
    }

    fn read_barrier(&self) -> BoxFuture<'static, Result<u64, BarrierError>> {
        self.barriers.fetch_add(1, Ordering::SeqCst);
        let said = self.barrier.lock().clone();
        futures::future::ready(said.map_or(Ok(1), Err)).boxed()
    }

    fn peer_clocks(&self) -> Vec<PeerClock> {
        Vec::new()
    }

    fn status(&self) -> ConsensusStatus {
        self.status.lock().clone()
    }

    fn changed(&self, _: u64) -> BoxFuture<'static, u64> {
        futures::future::pending().boxed()
    }

    fn applied(&self, index: u64) -> BoxFuture<'static, Result<u64, BarrierError>> {
        match index < 1_000 {
            true => futures::future::ready(Ok(index)).boxed(),
            false => futures::future::pending().boxed(),
        }
    }

    fn add_learner(
        &self,
        _: u64,
        _: NodeAddress,
    ) -> BoxFuture<'static, Result<(), MembershipError>> {
        futures::future::ready(Ok(())).boxed()
    }

    fn promote(&self, _: u64) -> BoxFuture<'static, Result<(), MembershipError>> {
        futures::future::ready(Ok(())).boxed()
    }

    fn remove(&self, id: u64) -> BoxFuture<'static, Result<(), MembershipError>> {
        let refused = || Err(MembershipError::Refused("it is the last voter".into()));
        futures::future::ready(if id == 1 { refused() } else { Ok(()) }).boxed()
    }

    fn transfer_leader(&self, _: Option<u64>) -> BoxFuture<'static, bool> {
        futures::future::ready(true).boxed()
    }

    fn trigger_snapshot(&self) -> BoxFuture<'static, ()> {
        futures::future::ready(()).boxed()
    }

    fn shutdown(&self) -> BoxFuture<'static, ()> {
        futures::future::ready(()).boxed()
    }
}

/// Forwards to the node that is set, or nowhere.
#[derive(Default)]
pub(crate) struct Wire {
    /// The other side.
    pub(crate) to: Mutex<Option<Arc<dyn crate::raft::ForwardHandler>>>,
}

impl Forward for Wire {
    fn forward(
        &self,
        to: u64,
        request: Bytes,
        _: Duration,
    ) -> BoxFuture<'static, Result<Bytes, ForwardError>> {
        match self.to.lock().clone() {
            Some(handler) => async move { Ok(handler.handle(1, request).await) }.boxed(),
            None => futures::future::ready(Err(ForwardError::Unreachable(to))).boxed(),
        }
    }
}

/// A node with its levers.
pub(crate) struct Node {
    pub(crate) api: Arc<Api>,
    pub(crate) scheduler: Arc<DirectScheduler>,
    pub(crate) consensus: Arc<SaidConsensus>,
    pub(crate) wire: Arc<Wire>,
    pub(crate) clock: Arc<HandClock>,
}

impl Node {
    /// A leader in office.
    pub(crate) fn leading() -> Self {
        let store = Arc::new(MemStore::new());
        let replica = Arc::new(Replica::open(store).expect("an empty store opens"));
        let clock = Arc::new(HandClock(AtomicI64::new(START.millis())));
        let zones = ZoneData::bundled();
        let scheduler = Arc::new(DirectScheduler {
            replica: Arc::clone(&replica),
            clock: Arc::clone(&clock),
            zones: zones.clone(),
            index: Mutex::new(0),
            in_office: AtomicBool::new(true),
            supersede: AtomicU64::new(0),
            claims: Mutex::default(),
        });
        let office = Command::Admin(AdminCommand::TakeOffice(TakeOffice { node: 1 }));
        scheduler.apply(vec![Envelope::leader(office)]);
        let consensus = Arc::new(SaidConsensus::default());
        *consensus.status.lock() = leader_status();
        let wire = Arc::new(Wire::default());
        let runtime = TokioRuntime::new(
            tokio::runtime::Handle::current(),
            Arc::<HandClock>::clone(&clock),
        );
        let api = Api::new(Parts {
            scheduler: Arc::<DirectScheduler>::clone(&scheduler),
            consensus: Arc::<SaidConsensus>::clone(&consensus),
            replica,
            forward: Arc::<Wire>::clone(&wire),
            runtime: Arc::new(runtime),
            zones,
            dev_clock: Some(Arc::<HandClock>::clone(&clock)),
            config: ApiConfig {
                node: 1,
                version: "0.0.0",
                loopback_only: true,
                in_flight_max: 64,
                waiting_max: 64,
            },
        });
        Self {
            api,
            scheduler,
            consensus,
            wire,
            clock,
        }
    }

    /// Lets time pass.
    pub(crate) fn wait(&self, by: Millis) {
        self.clock.advance(by);
    }

    /// Leases an execution of the tenant `default` to worker `w` for a minute. Answers its token.
    pub(crate) fn lease(&self, execution: &str) -> u64 {
        let id = ExecutionId::new(execution).expect("a name");
        let tenant = TenantNo::DEFAULT;
        let found = self.api.replica.read().execution(tenant, &id);
        let found = found.expect("reads").expect("it is there");
        let grant = LeaseCommand::Grant(GrantLeases {
            worker: WorkerId::new("w").expect("a name"),
            request_id: None,
            duration: Millis::minutes(1),
            start_confirmation: None,
            items: vec![GrantItem {
                queue: found.execution().queue,
                tenant,
                execution: id.clone(),
            }],
        });
        let grant = Envelope::leader(Command::Lease(grant));
        self.scheduler.apply(vec![grant]);
        let resident = self.api.replica.resident();
        let lease = resident.lease(tenant, &id).expect("it was granted");
        lease.fencing_token
    }

    /// Asks the node.
    pub(crate) async fn ask(&self, method: &str, target: &str, body: &str) -> Answered {
        self.ask_with(method, target, body, &[]).await
    }

    /// Every item of a list, fetched in pages of at most `size`.
    pub(crate) async fn pages(&self, target: &str, size: usize) -> Vec<Value> {
        let sign = if target.contains('?') { '&' } else { '?' };
        let first = format!("{target}{sign}page_size={size}");
        let mut page = first.clone();
        let mut items = Vec::new();
        for _ in 0..10_000 {
            let mut answer = self.ask("GET", &page, "").await.must(200);
            let found = answer.body["items"].as_array_mut().expect("items");
            assert!(found.len() <= size, "{page}");
            items.append(found);
            match answer.body["next_cursor"].as_str() {
                Some(next) => page = format!("{first}&cursor={next}"),
                None => return items,
            }
        }
        panic!("a list without an end");
    }

    /// Asks the node, with headers.
    pub(crate) async fn ask_with(
        &self,
        method: &str,
        target: &str,
        body: &str,
        headers: &[(&str, &str)],
    ) -> Answered {
        let request = request(method, target, body.as_bytes(), headers);
        Answered::of(self.api.answer(request, Origin::Client).await)
    }
}

fn leader_status() -> ConsensusStatus {
    ConsensusStatus {
        id: 1,
        term: 1,
        role: Role::Leader,
        leader: Some(1),
        running: true,
        recovered: true,
        ..ConsensusStatus::default()
    }
}

/// A request as the server would read it.
pub(crate) fn request(
    method: &str,
    target: &str,
    body: &[u8],
    headers: &[(&str, &str)],
) -> Request {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let owned = |(n, v): &(&str, &str)| ((*n).to_owned(), (*v).to_owned());
    Request {
        method: method.into(),
        path: path.into(),
        query: query.into(),
        headers: headers.iter().map(owned).collect(),
        body: Bytes::copy_from_slice(body),
        request_id: "test".into(),
        began: START,
    }
}

/// An answer, read.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) body: Value,
    pub(crate) reply: Reply,
}

impl Answered {
    pub(crate) fn of(reply: Reply) -> Self {
        Self {
            status: reply.status,
            body: serde_json::from_slice(&reply.body).unwrap_or(Value::Null),
            reply,
        }
    }

    /// A header's value; empty when it is not there.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.reply.header(name).unwrap_or_default()
    }

    /// The first wrong field of a problem.
    pub(crate) fn pointer(&self) -> &str {
        self.body["errors"][0]["pointer"].as_str().unwrap_or("-")
    }

    /// The code of a problem; empty when it is none.
    pub(crate) fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }

    /// Fails unless the status is `status`.
    #[track_caller]
    pub(crate) fn must(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{:#}", self.body);
        self
    }
}

/// One field of every item, as text.
pub(crate) fn each<'a>(items: &'a [Value], field: &str) -> Vec<&'a str> {
    let text = |item: &'a Value| item[field].as_str().unwrap_or_default();
    items.iter().map(text).collect()
}
