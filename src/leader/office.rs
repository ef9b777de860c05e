//! A term of office: the one task that owns everything volatile of the leader.
//!
//! Purpose: take office when this node leads, rebuild from the store, serve until leadership ends, and leave nobody
//! without an answer. Callers: [`crate::leader::Leader`] spawns [`follow`].
//! Invariants:
//! 1. Nothing is proposed in a term before its `TakeOffice` is applied here; every earlier entry is applied by then.
//! 2. One task owns wheel, lines, claims and lanes: no locks, and the same order of events gives the same commands.
//! 3. An answer is handled after the effects of its entry; entries are answered in log order.
//! 4. Expiry waits while office is being renewed (after a stall, a slow commit or a jump of the clock).
//!
//! ```text
//! follower ──leads──► taking ──applied──► rebuilding ──► leading ──other term, fault, clock──► follower
//! ```
//! Reading order: here (life cycle and loop), `intake` (calls and effects), `serving` (claims and grants), `timing`
//! (what becomes due), `answers` (what apply said). Tests: `leader::tests`.

mod answers;
mod intake;
mod serving;
mod timing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::Instant;

use crate::command::admin::{AdminCommand, TakeOffice};
use crate::command::codec::{self, Frame};
use crate::command::outcome::{Outcome, ReadyItem};
use crate::command::{Command, Envelope};
use crate::fault::Fault;
use crate::ids::{QueueNo, WorkerId};
use crate::leader::admission::Admission;
use crate::leader::claims::{Claims, NewClaim};
use crate::leader::due_index::{DueIndex, Scan};
use crate::leader::expiry::Expiry;
use crate::leader::figures::{Counter, Gauge};
use crate::leader::firing::{Firing, Task};
use crate::leader::handle::Shared;
use crate::leader::inbox::Reply;
use crate::leader::proposer::{Lanes, Parcel, Queued};
use crate::leader::sweeps::Resume;
use crate::leader::{Answer, Claimed, Reported, Unavailable};
use crate::raft::{Committed, ProposeError};
use crate::state::replica::BatchAnswer;
use crate::state::resident::LeaseKey;
use crate::store::due::DueEntry;
use crate::time::{Millis, Timestamp};

/// The loop looks at clock and leadership at least this often.
const BEAT: Duration = Duration::from_millis(250);
/// A leader that has not ticked or committed for so long renews its office before it expires anything.
const STALL: Millis = Millis::secs(1);
/// A leader that no majority has confirmed for so long leaves office: others have elected one, or soon will, and whoever
/// waits here is told so instead of waiting for the network. Far above an election time-out, so that a busy machine keeps
/// its office.
const QUORUM_LOST: Millis = Millis::secs(2);
/// Why a node with a bad clock does not lead.
const CLOCK_REFUSED: &str = "a majority of the cluster's clocks is against this node's";
/// Pause before office is tried again in a term that it could not be held in.
const RETRY: Duration = Duration::from_millis(200);

/// Who waits for the outcome of a command.
#[derive(Debug)]
pub(super) enum Origin {
    /// A part of a call with several commands.
    Part { group: u64, position: usize },
    /// A claim.
    Grant {
        claim: u64,
        worker: WorkerId,
        items: Vec<ReadyItem>,
    },
    /// Executions whose time came.
    Due(Vec<Arc<DueEntry>>),
    /// A schedule.
    Fire(Task),
    /// Leases whose time is over.
    Expire(Vec<LeaseKey>),
    /// A renewal of office.
    Renewal,
    /// Nobody.
    Nobody,
}

/// Where the answer of a call goes when all its parts are there.
#[derive(Debug)]
pub(super) enum GroupReply {
    Submit(Reply<Vec<Answer>>),
    Report(Reply<Reported>),
    Count(Reply<u32>),
    /// The reports of a claim.
    Claim(u64),
}

#[derive(Debug)]
pub(super) struct Group {
    outcomes: Vec<Option<(u64, Outcome)>>,
    left: usize,
    reply: GroupReply,
}

struct Flight {
    future: BoxFuture<'static, Result<Committed, ProposeError>>,
    entry: Vec<Queued<Origin>>,
    since: Instant,
}

/// Why a term of office ended.
#[derive(Debug)]
enum Ended {
    /// Another term, another leader, or no majority.
    Deposed,
    /// This node cannot lead, in words; it asks another one to.
    Unfit(String),
    /// Raft has stopped here.
    Stopping,
}

/// Follows consensus for the life of the node, holding office whenever this node leads.
pub(super) async fn follow(shared: Arc<Shared>) {
    loop {
        let status = shared.consensus.status();
        if !status.running {
            return;
        }
        if !status.is_leader() {
            shared.consensus.changed(status.revision).await;
            continue;
        }
        let ended = hold(&shared, status.term).await;
        match ended {
            Ended::Stopping => return,
            Ended::Deposed => {
                tracing::info!(term = status.term, "out of office");
            }
            Ended::Unfit(why) => {
                tracing::error!(term = status.term, "cannot lead: {why}");
                let _moved = shared.consensus.transfer_leader(None).await;
            }
        }
        // The same term may go on (a lost answer, a fault that passes): not in a hot loop.
        tokio::time::sleep(RETRY).await;
    }
}

/// Takes office in `term`, holds it as long as possible, and answers everybody at its end.
async fn hold(shared: &Arc<Shared>, term: u64) -> Ended {
    shared.inbox.open();
    shared.workers.lock().clear();
    let ended = match take_office(shared, term).await {
        Ok(()) => match Office::rebuild(shared, term) {
            Ok(mut office) => {
                shared.in_office.store(true, Ordering::Release);
                let ended = office.lead().await;
                shared.in_office.store(false, Ordering::Release);
                office.leave(&ended);
                ended
            }
            Err(fault) => Ended::Unfit(fault.to_string()),
        },
        Err(ended) => ended,
    };
    let mail = shared.inbox.close();
    let why = match ended {
        Ended::Stopping => Unavailable::Stopping,
        Ended::Deposed | Ended::Unfit(_) => shared.not_leader(),
    };
    for message in mail.messages {
        shared.turn_away(message, &why);
    }
    ended
}

/// Proposes `TakeOffice` until it is applied or the term is over.
async fn take_office(shared: &Arc<Shared>, term: u64) -> Result<(), Ended> {
    let replicated = shared.replica.resident().applied.now;
    shared.clock.lock().start_from(replicated);
    if shared.clock.lock().is_refused() {
        return Err(Ended::Unfit(CLOCK_REFUSED.to_owned()));
    }
    let parcel = office_command(shared.settings.node).map_err(Ended::Unfit)?;
    loop {
        let status = shared.consensus.status();
        if !status.running {
            return Err(Ended::Stopping);
        }
        if !status.is_leader() || status.term != term {
            return Err(Ended::Deposed);
        }
        let stamp = shared.clock.lock().stamp();
        let batch = codec::join(stamp, term, std::slice::from_ref(&parcel.frame));
        let proposed = shared.consensus.propose(term, batch);
        match proposed.await {
            Ok(committed) => {
                let mut outcomes = outcomes_of(committed).map_err(unfit)?.1;
                return match outcomes.pop() {
                    Some(Outcome::Refused(_)) | None => Err(Ended::Deposed),
                    Some(_) => {
                        let replicated = shared.replica.resident().applied.now;
                        shared.clock.lock().raise(replicated);
                        Ok(())
                    }
                };
            }
            Err(ProposeError::Stopped) => return Err(Ended::Stopping),
            Err(ProposeError::NotLeader { .. } | ProposeError::Unknown) => {
                return Err(Ended::Deposed);
            }
            Err(ProposeError::Overloaded) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

fn office_command(node: u64) -> Result<Parcel, String> {
    let command = AdminCommand::TakeOffice(TakeOffice { node });
    Parcel::pack(&Envelope::leader(Command::Admin(command)))
}

#[allow(clippy::needless_pass_by_value, reason = "used to map an error")]
fn unfit(fault: Fault) -> Ended {
    Ended::Unfit(fault.to_string())
}

/// Token, outcomes and log time of a committed batch.
fn outcomes_of(committed: Committed) -> Result<(u64, Vec<Outcome>, Timestamp), Fault> {
    let answer = committed
        .answer
        .and_then(|answer| answer.downcast::<BatchAnswer>().ok());
    let answer = answer.ok_or_else(|| Fault::invariant("a batch is answered with outcomes"))?;
    Ok(match Arc::try_unwrap(answer) {
        Ok(answer) => (answer.token, answer.outcomes, answer.now),
        Err(shared) => (shared.token, shared.outcomes.clone(), shared.now),
    })
}

/// See the module.
pub(super) struct Office {
    shared: Arc<Shared>,
    term: u64,
    /// The last stamp.
    now: Timestamp,
    ended: Option<Ended>,

    lanes: Lanes<Origin>,
    flights: VecDeque<Flight>,
    groups: BTreeMap<u64, Group>,
    next_group: u64,
    /// No entry before then (the log was full).
    hold_until: Option<Instant>,

    due: DueIndex,
    scans: Vec<Scan>,
    reading: bool,
    firing: Firing,
    plan_jobs: usize,

    admission: Admission,
    claims: Claims,
    /// Claims with the request id of one whose grant is under way.
    deferred: BTreeMap<u64, Vec<NewClaim>>,
    granting: BTreeMap<WorkerId, u32>,
    /// Who waits until everything due at a time is decided; each is an API request in hand.
    catching_up: Vec<(Timestamp, Reply<()>)>,
    dirty: BTreeSet<QueueNo>,
    hungry: BTreeSet<QueueNo>,
    page_jobs: usize,

    expiry: Expiry,
    /// Leases that ran out while office was being renewed.
    expired: Vec<LeaseKey>,
    renewing: bool,
    renew_wanted: bool,
    last_beat: Millis,
    last_commit: Instant,
    next_gauges: Instant,
    next_quorum_look: Instant,

    next_watermarks: Instant,
    next_retention: Instant,
    retention_resume: Option<Resume>,
    sweeping: bool,
    next_pause_end: Option<Timestamp>,
    /// Parked work may be waiting although its key has free slots (a limit rose, or office changed in between).
    promoting: bool,
    next_promotion: Instant,
}

impl Office {
    fn rebuild(shared: &Arc<Shared>, term: u64) -> Result<Self, Fault> {
        let resident = shared.replica.resident();
        let release = &resident.cluster.zone_release;
        if !shared.rules.can_load(release) {
            return Err(Fault::invariant(format!(
                "zone data {release} is in use, and this node does not have it"
            )));
        }
        let now = shared.clock.lock().stamp();
        let begin = Instant::now();
        shared.board.lock().add(Counter::Offices, 1);
        tracing::info!(term, leases = resident.leases.len(), "in office");
        Ok(Self {
            shared: Arc::clone(shared),
            term,
            now,
            ended: None,
            lanes: Lanes::default(),
            flights: VecDeque::new(),
            groups: BTreeMap::new(),
            next_group: 0,
            hold_until: None,
            due: DueIndex::new(now, resident.cluster.due_from),
            scans: Vec::new(),
            reading: false,
            firing: Firing::default(),
            plan_jobs: 0,
            admission: Admission::rebuild(&resident),
            claims: Claims::default(),
            deferred: BTreeMap::new(),
            granting: BTreeMap::new(),
            catching_up: Vec::new(),
            dirty: BTreeSet::new(),
            hungry: BTreeSet::new(),
            page_jobs: 0,
            expiry: Expiry::rebuild(now, &resident),
            expired: Vec::new(),
            renewing: false,
            renew_wanted: false,
            last_beat: shared.runtime.clock().monotonic(),
            last_commit: begin,
            next_gauges: begin,
            next_quorum_look: begin,
            next_watermarks: begin,
            next_retention: begin,
            retention_resume: None,
            sweeping: false,
            next_pause_end: Some(now),
            promoting: true,
            next_promotion: begin,
        })
    }

    /// The loop. Answers why it ended.
    async fn lead(&mut self) -> Ended {
        let shared = Arc::clone(&self.shared);
        let mut changed = shared.consensus.changed(shared.consensus.status().revision);
        // What changed before that is seen here, what changes later through it.
        self.ended = self.is_deposed();
        loop {
            self.take_mail();
            self.take_answers();
            self.beat();
            self.serve();
            self.start_jobs();
            self.propose();
            self.tell_caught_up();
            if let Some(ended) = self.ended.take() {
                return ended;
            }
            let wake = self.next_wake();
            tokio::select! {
                biased;
                () = self.first_answer() => {}
                revision = &mut changed => {
                    changed = shared.consensus.changed(revision);
                    self.ended = self.is_deposed();
                }
                // Calls come in bursts: those whose tasks are ready now shall be in the same entry as the first.
                () = shared.inbox.added() => tokio::task::yield_now().await,
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    fn is_deposed(&self) -> Option<Ended> {
        let status = self.shared.consensus.status();
        if !status.running {
            return Some(Ended::Stopping);
        }
        (!status.is_leader() || status.term != self.term).then_some(Ended::Deposed)
    }

    /// Resolves when the first entry under way has an answer. The answer stays with the entry.
    async fn first_answer(&mut self) {
        let Some(flight) = self.flights.front_mut() else {
            return std::future::pending().await;
        };
        let result = (&mut flight.future).await;
        flight.future = Box::pin(std::future::ready(result));
    }

    /// Handles every answer that is there, in log order, each after the effects of its entry.
    fn take_answers(&mut self) {
        while let Some(result) = self.poll_first() {
            let Some(flight) = self.flights.pop_front() else {
                return;
            };
            // The effects of this entry are in the inbox by now.
            self.take_mail();
            // Commits that each take long but follow each other closely are no stall.
            if elapsed_since(flight.since.max(self.last_commit)) > STALL {
                self.renew_wanted = true;
            }
            self.last_commit = Instant::now();
            match result {
                Ok(committed) => self.committed(committed, flight.entry),
                Err(ProposeError::Overloaded) => {
                    self.lanes.put_back(flight.entry);
                    self.hold_until = Some(Instant::now() + Duration::from_millis(5));
                }
                Err(ProposeError::NotLeader { .. }) => {
                    // It is in no log: whoever asked may safely ask again.
                    let why = self.shared.not_leader();
                    self.fail_entry(flight.entry, &why);
                    self.ended = Some(Ended::Deposed);
                }
                Err(ProposeError::Unknown) => {
                    self.fail_entry(flight.entry, &Unavailable::Unknown);
                    self.ended = Some(Ended::Deposed);
                }
                Err(ProposeError::Stopped) => {
                    self.fail_entry(flight.entry, &Unavailable::Unknown);
                    self.ended = Some(Ended::Stopping);
                }
            }
        }
    }

    fn poll_first(&mut self) -> Option<Result<Committed, ProposeError>> {
        let flight = self.flights.front_mut()?;
        let waker = futures::task::noop_waker_ref();
        let mut context = std::task::Context::from_waker(waker);
        match Pin::new(&mut flight.future).poll(&mut context) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    /// Proposes entries while some are ripe.
    fn propose(&mut self) {
        if self.hold_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        self.hold_until = None;
        let max = self.shared.settings.in_flight_max.max(1);
        while self.ended.is_none() && self.lanes.is_ripe(self.flights.len(), max) {
            let entry = self.lanes.compose();
            let frames: Vec<&Frame> = entry.iter().map(|q| &q.parcel.frame).collect();
            let stamp = self.shared.clock.lock().stamp();
            let batch = codec::join(stamp, self.term, &frames);
            let future = self.shared.consensus.propose(self.term, batch);
            self.flights.push_back(Flight {
                future,
                entry,
                since: Instant::now(),
            });
        }
    }

    fn push_urgent(&mut self, command: Command, origin: Origin) {
        self.push_envelope(&Envelope::leader(command), origin, false);
    }

    fn push_envelope(&mut self, envelope: &Envelope, origin: Origin, glued: bool) {
        match Parcel::pack(envelope) {
            Ok(parcel) => self.lanes.push_urgent(Queued {
                parcel,
                origin,
                glued,
            }),
            Err(why) => {
                // The bounds on items keep our own commands far below the limit.
                tracing::error!("a command of the leader cannot be encoded: {why}");
                self.fail(origin, &Unavailable::TooLarge(why));
            }
        }
    }

    fn new_group(&mut self, parts: usize, reply: GroupReply) -> u64 {
        let number = self.next_group;
        self.next_group += 1;
        let group = Group {
            outcomes: (0..parts).map(|_| None).collect(),
            left: parts,
            reply,
        };
        self.groups.insert(number, group);
        number
    }

    /// Everything that waits is told that the term is over.
    fn leave(&mut self, ended: &Ended) {
        let not_leader = match ended {
            Ended::Stopping => Unavailable::Stopping,
            Ended::Deposed | Ended::Unfit(_) => self.shared.not_leader(),
        };
        for flight in std::mem::take(&mut self.flights) {
            self.fail_entry(flight.entry, &Unavailable::Unknown);
        }
        let queued: Vec<_> = self.lanes.drain().collect();
        self.fail_entry(queued, &not_leader);
        for waiter in self.claims.drain() {
            let _gone = waiter.reply.send(Err(not_leader.clone()));
        }
        for new in std::mem::take(&mut self.deferred).into_values().flatten() {
            let _gone = new.reply.send(Err(not_leader.clone()));
        }
        let waiting = std::mem::take(&mut self.catching_up).into_iter();
        let waiting = waiting.map(|(_, reply)| reply);
        for reply in self.firing.drain_settlers().chain(waiting) {
            let _gone = reply.send(Err(not_leader.clone()));
        }
    }

    /// Counting lines takes a walk over them: not at every look.
    fn show_gauges(&mut self) {
        let now = Instant::now();
        if now < self.next_gauges {
            return;
        }
        self.next_gauges = now + BEAT;
        let (items, lines) = self.admission.size();
        let mut board = self.shared.board.lock();
        for (gauge, value) in [
            (Gauge::Queued, self.lanes.len()),
            (Gauge::InFlight, self.flights.len()),
            (Gauge::DueHeld, self.due.len()),
            (Gauge::DueSpilled, self.due.spill_count()),
            (Gauge::DueBacklog, self.firing.backlog()),
            (Gauge::LeasesWatched, self.expiry.len()),
            (Gauge::LineItems, items),
            (Gauge::Lines, lines),
            (Gauge::ClaimsWaiting, self.claims.waiting()),
        ] {
            board.set(gauge, value);
        }
    }
}

fn elapsed_since(at: Instant) -> Millis {
    Millis(u64::try_from(at.elapsed().as_millis()).unwrap_or(u64::MAX))
}

/// An empty answer to a claim of `worker` at log time `now`.
fn no_leases(now: Timestamp, drain: bool, poll_after: Millis) -> Claimed {
    Claimed {
        leases: Vec::new(),
        bodies: Vec::new(),
        reports: Vec::new(),
        replayed: false,
        drain,
        poll_after,
        now,
        deadlines: Vec::new(),
    }
}
