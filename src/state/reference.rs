//! An independent model of the state machine, for tests only.
//!
//! Purpose: say again, in the plainest way, what every command does: maps of whole objects, counts by looking, time-outs
//! by arithmetic of its own. It shares nothing with apply but the public types of commands and rows. The differential
//! test ([`tests`]) feeds both the same random histories and compares outcomes and every stored row after each entry.
//! Callers: its tests. Where the two differ, the contract (`command`, `model`) says who is wrong.

mod admin;
mod attempts;
mod ends;
mod executions;
mod firing;
mod generate;
mod golden;
mod leases;
mod observe;
mod retries;
mod schedules;
mod tests;

use std::collections::BTreeMap;

use crate::command::admin::AdminCommand;
use crate::command::executions::ExecutionCommand;
use crate::command::leases::LeaseCommand;
use crate::command::outcome::{Outcome, Refusal};
use crate::command::schedules::ScheduleCommand;
use crate::command::{Actor, Batch, Command, Envelope, Expect};
use crate::ids::{ExecutionId, QueueId, Revision, ScheduleId, TenantId};
use crate::model::cluster::ClusterState;
use crate::model::execution::{Execution, FinalExecution};
use crate::model::history::{AuditRecord, IdempotencyRecord, LedgerRow};
use crate::model::lease::Lease;
use crate::model::policy::RateLimit;
use crate::model::queue::{DeletedQueue, Queue, QueueSpec};
use crate::model::schedule::{Schedule, ScheduleStatus};
use crate::model::tenant::{Tenant, TenantSpec};
use crate::store::due::{DueKey, Level};
use crate::time::Timestamp;

type Answer = Result<Outcome, Refusal>;

/// Milliseconds between the earliest instant and the epoch.
const BEFORE_EPOCH: i64 = 2_208_988_800_000;
const HOUR: i64 = 3_600_000;
/// Hours that each retention class keeps.
const CLASS_HOURS: [i64; 10] = [1, 6, 24, 72, 168, 336, 720, 2_160, 4_320, 9_600];
/// Classes of the defaults: succeeded 3 d, other ends 30 d, dead letters and audit 90 d.
const DAYS_3: u8 = 3;
const DAYS_30: u8 = 6;
const DAYS_90: u8 = 7;

/// A schedule with everything of it.
#[derive(Clone, Debug)]
struct Planned {
    row: Schedule,
    status: ScheduleStatus,
    former: BTreeMap<u64, Schedule>,
}

/// An open execution with everything of it.
#[derive(Clone, Debug)]
struct Open {
    /// As it is stored, payload apart when it is large.
    row: Execution,
    lease: Option<Lease>,
    /// A payload over a kibibyte.
    body: Option<Vec<u8>>,
}

/// Limits of a concurrency key.
#[derive(Clone, Debug, Default, PartialEq)]
struct Limits {
    max_leased: Option<u32>,
    rate: Option<RateLimit>,
    tat_ns: u64,
}

/// A row of history.
#[derive(Clone, Debug, PartialEq)]
enum Record {
    Final(Box<FinalExecution>),
    Ledger(LedgerRow),
    Audit(AuditRecord),
}

/// Who wants the present command.
#[derive(Clone, Debug, Default)]
struct Caller {
    actor: Actor,
    reason: Option<String>,
    request_id: Option<String>,
    received_at: Timestamp,
}

/// Where a chosen id leads: fingerprint, and the history row once final.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Chosen {
    fingerprint: u64,
    history: Option<(u8, u32)>,
}

/// Named by tenant number and name.
type Named<T> = BTreeMap<(u32, String), T>;

/// The whole state.
struct Model {
    now: Timestamp,
    cluster: ClusterState,
    tenants: BTreeMap<u32, Tenant>,
    queues: BTreeMap<u32, Queue>,
    deleted_queues: BTreeMap<u32, DeletedQueue>,
    limits: Named<Limits>,
    schedules: Named<Planned>,
    open: Named<Open>,
    chosen: Named<Chosen>,
    history: BTreeMap<Vec<u8>, Record>,
    answers: BTreeMap<(u32, u32, [u8; 16]), IdempotencyRecord>,
    token: u64,
    place: u32,
    slot: u32,
    caller: Caller,
}

impl Model {
    fn new() -> Self {
        let tenant = Tenant {
            id: TenantId::new("default").expect("a name"),
            spec: TenantSpec::default(),
            paused: None,
            created_at: Timestamp::EPOCH,
            revision: Revision::default(),
            rate_tat_ns: 0,
        };
        let queue = Queue {
            id: QueueId::new("default").expect("a name"),
            spec: QueueSpec::default(),
            paused: None,
            created_at: Timestamp::EPOCH,
            revision: Revision::default(),
            rate_tat_ns: 0,
        };
        Self {
            now: Timestamp::EPOCH,
            cluster: ClusterState::default(),
            tenants: [(1, tenant)].into(),
            queues: [(1, queue)].into(),
            deleted_queues: BTreeMap::new(),
            limits: Named::new(),
            schedules: Named::new(),
            open: Named::new(),
            chosen: Named::new(),
            history: BTreeMap::new(),
            answers: BTreeMap::new(),
            token: 0,
            place: 0,
            slot: 0,
            caller: Caller::default(),
        }
    }

    /// Applies the entry at `index`.
    fn apply(&mut self, index: u64, batch: &Batch) -> Vec<Outcome> {
        self.now = self.now.max(batch.proposed_at);
        self.token = index + self.cluster.index_base;
        self.slot = 0;
        let mut outcomes = Vec::new();
        for (place, envelope) in batch.commands.iter().enumerate() {
            self.place = u32::try_from(place).expect("fits");
            outcomes.push(self.envelope(batch.term, envelope));
        }
        outcomes
    }

    fn revision(&self) -> Revision {
        Revision::new(self.token, self.place)
    }

    fn envelope(&mut self, term: u64, envelope: &Envelope) -> Outcome {
        self.caller = Caller {
            actor: envelope.actor.clone(),
            reason: envelope.reason.clone(),
            request_id: envelope.request_id.clone(),
            received_at: match envelope.received_at {
                Some(at) if at < self.now => at,
                _ => self.now,
            },
        };
        if let Command::Admin(AdminCommand::TakeOffice(office)) = &envelope.command {
            return self.take_office(term, office.node);
        }
        if self.cluster.office_term != term {
            return Outcome::Refused(Refusal::NotInOffice);
        }
        let Some(key) = envelope.idempotency else {
            return self
                .command(&envelope.command)
                .unwrap_or_else(Outcome::Refused);
        };
        let tenant = self.scope(&envelope.command);
        let half_day = half_days(self.now);
        for bucket in [half_day, half_day - 1, half_day - 2] {
            let found = self.answers.get(&(bucket, tenant, key.hash));
            if let Some(found) = found.filter(|_| bucket >= self.cluster.idempotency_from) {
                return if found.fingerprint == key.fingerprint {
                    Outcome::Replayed(Box::new(found.outcome.clone()))
                } else {
                    Outcome::Refused(Refusal::IdempotencyConflict)
                };
            }
        }
        match self.command(&envelope.command) {
            Err(refusal) => Outcome::Refused(refusal),
            Ok(outcome) => {
                let record = IdempotencyRecord {
                    fingerprint: key.fingerprint,
                    outcome: outcome.clone(),
                    index: self.token,
                };
                self.answers.insert((half_day, tenant, key.hash), record);
                outcome
            }
        }
    }

    fn command(&mut self, command: &Command) -> Answer {
        match command {
            Command::Admin(command) => self.admin(command),
            Command::Schedule(command) => match command {
                ScheduleCommand::Put(c) => self.put(c),
                ScheduleCommand::Delete(c) => self.delete_schedule(c),
                ScheduleCommand::Pause(c) => self.pause(c),
                ScheduleCommand::Resume(c) => self.resume(c),
                ScheduleCommand::Trigger(c) => self.trigger(c),
                ScheduleCommand::Fire(c) => self.fire(c),
                ScheduleCommand::Remove(c) => self.remove(c),
            },
            Command::Execution(command) => match command {
                ExecutionCommand::Submit(c) => self.submit(c),
                ExecutionCommand::Cancel(c) => self.cancel(c),
                ExecutionCommand::Delete(c) => self.delete_execution(c),
                ExecutionCommand::ProcessDue(c) => Ok(self.process_due(c)),
            },
            Command::Lease(command) => match command {
                LeaseCommand::Grant(c) => Ok(self.grant(c)),
                LeaseCommand::Report(c) => Ok(self.report(c)),
                LeaseCommand::Expire(c) => Ok(self.expire(c)),
                LeaseCommand::Revoke(c) => Ok(self.revoke(c)),
            },
        }
    }

    /// The tenant under which an idempotency answer is kept; 0 for none.
    fn scope(&self, command: &Command) -> u32 {
        let name = match command {
            Command::Admin(AdminCommand::PutKey(c)) => &c.tenant,
            Command::Schedule(ScheduleCommand::Put(c)) => &c.tenant,
            Command::Schedule(ScheduleCommand::Delete(c)) => &c.tenant,
            Command::Schedule(ScheduleCommand::Pause(c)) => &c.tenant,
            Command::Schedule(ScheduleCommand::Resume(c)) => &c.tenant,
            Command::Schedule(ScheduleCommand::Trigger(c)) => &c.tenant,
            Command::Execution(ExecutionCommand::Submit(c)) => &c.tenant,
            Command::Execution(ExecutionCommand::Cancel(c)) => &c.tenant,
            Command::Execution(ExecutionCommand::Delete(c)) => &c.tenant,
            Command::Schedule(ScheduleCommand::Fire(c)) => return c.tenant.0,
            Command::Schedule(ScheduleCommand::Remove(c)) => return c.tenant.0,
            _ => return 0,
        };
        self.tenant(name).unwrap_or(0)
    }

    // ---- names and numbers ------------------------------------------------------------------------------------

    fn tenant(&self, id: &TenantId) -> Result<u32, Refusal> {
        let mut rows = self.tenants.iter();
        let found = rows.find(|(_, row)| row.id == *id);
        found.map(|(no, _)| *no).ok_or(Refusal::TenantNotFound)
    }

    fn queue(&self, id: &QueueId) -> Option<u32> {
        let mut rows = self.queues.iter();
        rows.find(|(_, row)| row.id == *id).map(|(no, _)| *no)
    }

    /// Finds or creates a queue.
    fn queue_for(&mut self, id: &QueueId) -> u32 {
        if let Some(no) = self.queue(id) {
            return no;
        }
        let no = self.cluster.next_queue;
        self.cluster.next_queue += 1;
        let row = Queue {
            id: id.clone(),
            spec: QueueSpec::default(),
            paused: None,
            created_at: self.now,
            revision: self.revision(),
            rate_tat_ns: 0,
        };
        self.queues.insert(no, row);
        no
    }

    fn is_allowed(&self, tenant: u32, queue: u32) -> bool {
        let allowed = self.queues[&queue].spec.allowed_tenants.as_ref();
        allowed.is_none_or(|names| names.contains(&self.tenants[&tenant].id))
    }

    fn slot(&mut self) -> u32 {
        self.slot += 1;
        self.slot - 1
    }

    fn audit(&mut self, tenant: u32, action: &str, target: String) {
        let slot = self.slot();
        let bucket = class_bucket(DAYS_90, self.now);
        let mut key = history_key(DAYS_90, bucket, tenant, b'A');
        key.extend(self.token.to_be_bytes());
        key.extend(slot.to_be_bytes());
        let record = AuditRecord {
            at: self.now,
            actor: self.caller.actor.clone(),
            reason: self.caller.reason.clone(),
            request_id: self.caller.request_id.clone(),
            action: action.to_owned(),
            target,
        };
        self.history.insert(key, Record::Audit(record));
    }

    /// Whether rows of this bucket are still there.
    fn is_kept(&self, class: u8, bucket: u32) -> bool {
        bucket >= self.cluster.history_from[usize::from(class)]
    }

    fn execution_name(&self, tenant: u32, id: &ExecutionId) -> String {
        format!("{}/{id}", self.tenants[&tenant].id)
    }

    fn schedule_name(&self, tenant: u32, id: &ScheduleId) -> String {
        format!("{}/{id}", self.tenants[&tenant].id)
    }
}

/// What a write demands of the present revision.
fn demand(expect: Expect, current: Option<Revision>) -> Result<(), Refusal> {
    match expect {
        Expect::Any => Ok(()),
        Expect::Absent => match current {
            None => Ok(()),
            Some(revision) => Err(Refusal::AlreadyExists { revision }),
        },
        Expect::Present if current.is_some() => Ok(()),
        Expect::Revision(wanted) if current == Some(wanted) => Ok(()),
        Expect::Present | Expect::Revision(_) => Err(Refusal::RevisionMismatch {
            current: current.unwrap_or_default(),
        }),
    }
}

fn since_start(at: Timestamp) -> i64 {
    at.millis() + BEFORE_EPOCH
}

fn half_days(at: Timestamp) -> u32 {
    u32::try_from(since_start(at) / (12 * HOUR)).expect("fits")
}

/// The bucket of `at` in a retention class: a thirtieth of its span.
fn class_bucket(class: u8, at: Timestamp) -> u32 {
    let width = CLASS_HOURS[usize::from(class)] * HOUR / 30;
    u32::try_from(since_start(at) / width).expect("fits")
}

/// The shortest class that keeps rows for `ms`.
fn class_keeping(ms: u64) -> u8 {
    let hour = u64::try_from(HOUR).expect("fits");
    let mut class = 0;
    for (place, hours) in (0_u8..).zip(CLASS_HOURS) {
        class = place;
        if u64::try_from(hours).expect("fits") * hour >= ms {
            break;
        }
    }
    class
}

fn history_key(class: u8, bucket: u32, tenant: u32, tag: u8) -> Vec<u8> {
    let mut key = vec![class];
    key.extend(bucket.to_be_bytes());
    key.extend(tenant.to_be_bytes());
    key.push(tag);
    key
}

/// Where an event that is due at `at` stands in the index when it is put there at `now`.
fn timer(now: Timestamp, at: Timestamp) -> DueKey {
    let at = at.max(now);
    let hours = |n: i64| now.millis() + n * HOUR >= at.millis();
    let level = if hours(1) {
        Level::Minute
    } else if hours(48) {
        Level::Hour
    } else if hours(60 * 24) {
        Level::Day
    } else {
        Level::Far
    };
    DueKey { level, at }
}
