//! The leader as the rest of the node sees it, on every node, in office or not.
//!
//! Purpose: implements [`Scheduler`] for callers and [`crate::state::replica::EffectSink`] for the apply thread; starts the task that follows
//! consensus. Callers: `node` starts it; `api` calls it.
//! Invariants:
//! 1. Work that needs no office (encoding, waiting, reading bodies) is done in the caller's task.
//! 2. Everything that waits in front of the office is bounded: commands, bytes, claims.

mod call;
mod sink;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::command::leases::{ITEMS_MAX, LeaseCommand, ReportAction, ReportItem, ReportLeases};
use crate::command::{Actor, Command, Envelope};
use crate::ids::{ExecutionId, ScheduleId, TenantNo, WorkerId};
use crate::leader::claims::NewClaim;
use crate::leader::clock::{PeerClocks, StampClock};
use crate::leader::figures::{Board, Counter, Gauge};
use crate::leader::handle::call::ClaimCall;
use crate::leader::handle::sink::Sink;
use crate::leader::inbox::{Inbox, Message, Reply};
use crate::leader::office;
use crate::leader::proposer::Parcel;
use crate::leader::rules::{Rules, ZoneReleases};
use crate::leader::waiters::FinalWaiters;
use crate::leader::workers::Workers;
use crate::leader::{Answer, Claim, Claimed, Figure, Reported, Scheduler, Unavailable, WorkerSeen};
use crate::raft::Consensus;
use crate::rt::{AbortOnDrop, Runtime};
use crate::state::reader::Found;
use crate::state::replica::Replica;
use crate::time::{Millis, Timestamp};

/// Longest that a claim or a result is waited for.
pub const WAIT_MAX: Millis = Millis::secs(60);

/// Bounds of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderSettings {
    /// This node's id.
    pub node: u64,
    /// `max_clock_skew`: leaps of the wall clock up to this are believed.
    pub clock_skew_max: Millis,
    /// Commands of callers that may wait for their answer at once.
    pub commands_max: usize,
    /// Their bytes.
    pub bytes_max: usize,
    /// Claims that may wait at once.
    pub claims_max: usize,
    /// Log entries under way at once.
    pub in_flight_max: usize,
}

impl LeaderSettings {
    /// The defaults for a node.
    #[must_use]
    pub const fn new(node: u64) -> Self {
        Self {
            node,
            clock_skew_max: Millis(500),
            commands_max: 50_000,
            bytes_max: 64 * 1024 * 1024,
            claims_max: 20_000,
            in_flight_max: 4,
        }
    }
}

/// What a leader is made of.
pub struct LeaderParts {
    /// The log.
    pub consensus: Arc<dyn Consensus>,
    /// The state. Its effects go to the leader from [`Leader::start`] on.
    pub replica: Arc<Replica>,
    /// Tasks, clock, randomness.
    pub runtime: Arc<dyn Runtime>,
    /// Zone data that this node can load.
    pub zones: ZoneReleases,
    /// What the other nodes' clocks say.
    pub peers: Arc<dyn PeerClocks>,
    /// Bounds.
    pub settings: LeaderSettings,
}

/// What office and handle share.
pub(super) struct Shared {
    pub(super) consensus: Arc<dyn Consensus>,
    pub(super) replica: Arc<Replica>,
    pub(super) runtime: Arc<dyn Runtime>,
    pub(super) rules: Arc<Rules>,
    pub(super) settings: LeaderSettings,
    pub(super) inbox: Inbox,
    pub(super) clock: Mutex<StampClock>,
    pub(super) board: Mutex<Board>,
    pub(super) workers: Mutex<Workers>,
    pub(super) finals: FinalWaiters,
    pub(super) in_office: AtomicBool,
    commands: AtomicUsize,
    bytes: AtomicUsize,
    claims: AtomicUsize,
    next_claim: AtomicU64,
}

impl Shared {
    pub(super) fn not_leader(&self) -> Unavailable {
        Unavailable::NotLeader {
            leader: self.consensus.status().leader,
        }
    }

    fn send<T>(
        &self,
        message: Message,
        answer: oneshot::Receiver<Result<T, Unavailable>>,
    ) -> Sent<T> {
        match self.inbox.push(message) {
            Ok(()) => Ok(answer),
            Err(_) => Err(self.not_leader()),
        }
    }
}

type Sent<T> = Result<oneshot::Receiver<Result<T, Unavailable>>, Unavailable>;

/// Waits for an answer; a dropped sender means that the term of office ended without one.
async fn answer<T>(sent: Sent<T>) -> Result<T, Unavailable> {
    sent?.await.unwrap_or(Err(Unavailable::Unknown))
}

/// Room taken in front of the office; given back when dropped.
struct Room {
    shared: Arc<Shared>,
    commands: usize,
    bytes: usize,
}

impl Room {
    fn take(shared: &Arc<Shared>, parcels: &[Parcel]) -> Result<Self, Unavailable> {
        let room = Self {
            shared: Arc::clone(shared),
            commands: parcels.len(),
            bytes: parcels.iter().map(|p| p.frame.len()).sum(),
        };
        let commands = shared.commands.fetch_add(room.commands, Ordering::Relaxed) + room.commands;
        let bytes = shared.bytes.fetch_add(room.bytes, Ordering::Relaxed) + room.bytes;
        // A single request is let in whatever its size when nothing else is there.
        let is_alone = commands == room.commands;
        let settings = &shared.settings;
        if !is_alone && (commands > settings.commands_max || bytes > settings.bytes_max) {
            return Err(Unavailable::Overloaded {
                retry_after: Millis(200),
            });
        }
        Ok(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.shared
            .commands
            .fetch_sub(self.commands, Ordering::Relaxed);
        self.shared.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// See the module.
pub struct Leader {
    shared: Arc<Shared>,
    _follows: AbortOnDrop,
}

impl Leader {
    /// Starts following consensus. In office whenever this node leads; effects of `replica` go to the leader.
    #[must_use]
    pub fn start(parts: LeaderParts) -> Arc<Self> {
        let clock = StampClock::new(
            parts.runtime.clock(),
            parts.peers,
            parts.settings.clock_skew_max,
        );
        let shared = Arc::new(Shared {
            consensus: parts.consensus,
            replica: parts.replica,
            runtime: parts.runtime,
            rules: Arc::new(Rules::new(parts.zones)),
            settings: parts.settings,
            inbox: Inbox::default(),
            clock: Mutex::new(clock),
            board: Mutex::new(Board::default()),
            workers: Mutex::new(Workers::default()),
            finals: FinalWaiters::default(),
            in_office: AtomicBool::new(false),
            commands: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            claims: AtomicUsize::new(0),
            next_claim: AtomicU64::new(1),
        });
        let sink = Sink {
            inbox: shared.inbox.clone(),
            finals: shared.finals.clone(),
        };
        shared.replica.set_sink(Arc::new(sink));
        let follow = office::follow(Arc::clone(&shared));
        let task = shared.runtime.spawn("leader", Box::pin(follow));
        Arc::new(Self {
            shared,
            _follows: task.into(),
        })
    }

    /// Makes the office believe that effects were lost.
    #[cfg(test)]
    pub(super) fn lose_effects(&self) {
        self.shared.inbox.lose_effects();
    }

    fn stamp(&self) -> Timestamp {
        self.shared.clock.lock().stamp()
    }

    /// Encodes the reports of one worker, stamped with their arrival.
    fn pack_reports(
        &self,
        worker: &WorkerId,
        items: Vec<ReportItem>,
    ) -> Result<Vec<Parcel>, Unavailable> {
        if items.is_empty() {
            return Ok(Vec::new());
        }
        let received_at = Some(self.stamp());
        let one = |items: Vec<ReportItem>| {
            let report = ReportLeases {
                worker: worker.clone(),
                items,
            };
            let envelope = Envelope {
                actor: Actor::Leader,
                reason: None,
                request_id: None,
                received_at,
                idempotency: None,
                command: Command::Lease(LeaseCommand::Report(report)),
            };
            Parcel::pack(&envelope).map_err(Unavailable::TooLarge)
        };
        chunked(items).into_iter().map(one).collect()
    }
}

/// Bytes of results and errors that one report command carries beside everything else.
const REPORT_BYTES: usize = 200 * 1024;

/// Splits reports so that each command stays below the bounds on items and bytes.
fn chunked(items: Vec<ReportItem>) -> Vec<Vec<ReportItem>> {
    let mut chunks = Vec::new();
    let mut chunk = Vec::new();
    let mut bytes = 0;
    for item in items {
        let len = report_len(&item);
        if chunk.len() >= ITEMS_MAX || (bytes + len > REPORT_BYTES && !chunk.is_empty()) {
            chunks.push(std::mem::take(&mut chunk));
            bytes = 0;
        }
        bytes += len;
        chunk.push(item);
    }
    chunks.push(chunk);
    chunks
}

/// Leases that reports end: execution and token.
fn ended_by(items: &[ReportItem]) -> Vec<(ExecutionId, u64)> {
    let ends = |item: &&ReportItem| !matches!(item.action, ReportAction::Renew { .. });
    let name = |item: &ReportItem| (item.lease.execution.clone(), item.lease.fencing_token);
    items.iter().filter(ends).map(name).collect()
}

fn report_len(item: &ReportItem) -> usize {
    256 + match &item.action {
        ReportAction::Renew { progress, .. } => progress.as_ref().map_or(0, Vec::len),
        ReportAction::Complete { result, .. } => result.len(),
        ReportAction::Fail { error, .. } => error.len(),
        ReportAction::Release { reason, .. } => reason.as_ref().map_or(0, String::len),
    }
}

impl Scheduler for Leader {
    fn submit(
        &self,
        commands: Vec<Envelope>,
    ) -> BoxFuture<'static, Result<Vec<Answer>, Unavailable>> {
        let shared = Arc::clone(&self.shared);
        let packed: Result<Vec<Parcel>, String> = commands.iter().map(Parcel::pack).collect();
        Box::pin(async move {
            let parcels = packed.map_err(Unavailable::TooLarge)?;
            if parcels.is_empty() {
                return Ok(Vec::new());
            }
            let _room = Room::take(&shared, &parcels)?;
            let (reply, receive) = oneshot::channel();
            answer(shared.send(Message::Submit { parcels, reply }, receive)).await
        })
    }

    fn settle(
        &self,
        tenant: TenantNo,
        schedule: ScheduleId,
    ) -> BoxFuture<'static, Result<(), Unavailable>> {
        let shared = Arc::clone(&self.shared);
        let now = self.stamp();
        Box::pin(async move {
            let next = match shared.replica.read().schedule(tenant, &schedule) {
                Ok(found) => found.and_then(|(_, status)| status.next),
                Err(fault) => {
                    tracing::error!(%schedule, "cannot read a schedule: {fault}");
                    return Err(Unavailable::Stopping);
                }
            };
            if next.is_none_or(|next| next.due_at > now) {
                return Ok(());
            }
            let (reply, receive) = oneshot::channel();
            let message = Message::Settle {
                tenant,
                schedule,
                reply,
            };
            answer(shared.send(message, receive)).await
        })
    }

    fn caught_up(&self, until: Timestamp) -> BoxFuture<'static, Result<(), Unavailable>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let (reply, receive) = oneshot::channel();
            answer(shared.send(Message::CatchUp { until, reply }, receive)).await
        })
    }

    fn claim(&self, mut claim: Claim) -> BoxFuture<'static, Result<Claimed, Unavailable>> {
        let shared = Arc::clone(&self.shared);
        let items = std::mem::take(&mut claim.reports);
        let over = ended_by(&items);
        let packed = self.pack_reports(&claim.worker, items);
        let now = self.stamp();
        Box::pin(async move {
            let reports = packed?;
            let _room = Room::take(&shared, &reports)?;
            let (reply, receive) = oneshot::channel();
            let call = ClaimCall::begin(&shared, &claim, receive, now)?;
            let deadline = Instant::now() + claim.wait.min(WAIT_MAX).to_duration();
            let new = NewClaim {
                id: call.id,
                claim,
                reports,
                over,
                deadline,
                reply,
            };
            if shared.inbox.push(Message::Claim(Box::new(new))).is_err() {
                return Err(shared.not_leader());
            }
            call.finish().await
        })
    }

    fn report(
        &self,
        worker: WorkerId,
        items: Vec<ReportItem>,
    ) -> BoxFuture<'static, Result<Reported, Unavailable>> {
        let shared = Arc::clone(&self.shared);
        let packed = self.pack_reports(&worker, items);
        let now = self.stamp();
        Box::pin(async move {
            let parcels = packed?;
            let drain = shared.workers.lock().called(&worker, now);
            if parcels.is_empty() {
                return Ok(Reported {
                    results: Vec::new(),
                    drain,
                    index: shared.replica.read().token(),
                });
            }
            let _room = Room::take(&shared, &parcels)?;
            let (reply, receive) = oneshot::channel();
            let mut reported =
                answer(shared.send(Message::Report { parcels, reply }, receive)).await?;
            reported.drain = drain;
            Ok(reported)
        })
    }

    fn wait_final(
        &self,
        tenant: TenantNo,
        execution: ExecutionId,
        wait: Millis,
    ) -> BoxFuture<'static, Result<bool, Unavailable>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let deadline = Instant::now() + wait.min(WAIT_MAX).to_duration();
            loop {
                let place = shared.finals.register(tenant, execution.clone());
                let mut place = place.ok_or(Unavailable::Overloaded {
                    retry_after: Millis::secs(1),
                })?;
                let found = shared.replica.read().execution(tenant, &execution);
                match found {
                    Ok(Some(Found::Open(..))) => {}
                    Ok(_) => return Ok(true),
                    Err(fault) => {
                        tracing::error!(%execution, "cannot read an execution: {fault}");
                        return Err(Unavailable::Stopping);
                    }
                }
                if tokio::time::timeout_at(deadline, place.told())
                    .await
                    .is_err()
                {
                    return Ok(false);
                }
            }
        })
    }

    fn workers(&self) -> Vec<WorkerSeen> {
        let resident = self.shared.replica.resident();
        self.shared.workers.lock().list(&resident)
    }

    fn drain_worker(&self, worker: &WorkerId) -> bool {
        let seen = self.shared.workers.lock().drain(worker);
        if seen {
            let _not_in_office = self.shared.inbox.push(Message::Drain(worker.clone()));
        }
        seen
    }

    fn sign_off(&self, worker: WorkerId) -> BoxFuture<'static, Result<u32, Unavailable>> {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            shared.workers.lock().forget(&worker);
            let (reply, receive) = oneshot::channel();
            answer(shared.send(Message::SignOff { worker, reply }, receive)).await
        })
    }

    fn now(&self) -> Timestamp {
        let replicated = self.shared.replica.resident().applied.now;
        let mut clock = self.shared.clock.lock();
        clock.raise(replicated);
        clock.stamp()
    }

    fn in_office(&self) -> bool {
        self.shared.in_office.load(Ordering::Acquire)
    }

    fn figures(&self) -> Vec<Figure> {
        let behind = self.shared.clock.lock().behind();
        let mut board = self.shared.board.lock();
        board.set(
            Gauge::ClockBehind,
            usize::try_from(behind.0).unwrap_or(usize::MAX),
        );
        board.list()
    }
}

impl Shared {
    pub(super) fn count(&self, counter: Counter, by: usize) {
        self.board
            .lock()
            .add(counter, u64::try_from(by).unwrap_or(u64::MAX));
    }

    /// Answers a message that will not be served.
    pub(super) fn turn_away(&self, message: Message, why: &Unavailable) {
        fn refuse<T>(reply: Reply<T>, why: &Unavailable) {
            let _gone = reply.send(Err(why.clone()));
        }
        match message {
            Message::Submit { reply, .. } => refuse(reply, why),
            Message::Claim(new) => refuse(new.reply, why),
            Message::Report { reply, .. } => refuse(reply, why),
            Message::SignOff { reply, .. } => refuse(reply, why),
            Message::Settle { reply, .. } | Message::CatchUp { reply, .. } => refuse(reply, why),
            Message::HangUp(_)
            | Message::Undelivered { .. }
            | Message::Drain(_)
            | Message::DuePage(_)
            | Message::LinePages(_)
            | Message::Planned(_)
            | Message::Swept(_)
            | Message::Failed(_) => {}
        }
    }
}
