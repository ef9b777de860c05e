//! What goes through the log, seen once an entry, by whoever applies it first.
//!
//! Callers: the wrapped state machine. It looks at the memory before and after an entry and at the outcomes, so a rule
//! is checked against what was, not against what apply believes.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use punctual::command::codec;
use punctual::command::leases::{LeaseCommand, ReportAction};
use punctual::command::outcome::{GrantResult, Outcome, ReportResult};
use punctual::command::schedules::{ScheduleCommand, Step};
use punctual::command::{Batch, Command};
use punctual::ids::{ExecutionId, ScheduleId, TenantNo};
use punctual::model::execution::ExecutionState;
use punctual::model::lease::Lease;
use punctual::state::machine::{CommittedEntry, Payload};
use punctual::state::replica::{BatchAnswer, Replica};
use punctual::time::Timestamp;

use crate::sim::ledger::Counters;

type Occurrence = (TenantNo, ScheduleId, u64, Timestamp);

#[derive(Default)]
struct Seen {
    last_index: u64,
    created: BTreeSet<Occurrence>,
    tokens: BTreeMap<ExecutionId, u64>,
    completed: BTreeMap<ExecutionId, u64>,
    wrong: Vec<String>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Witness(Mutex<Seen>);

/// What an entry found.
pub(super) struct Before {
    index: u64,
    batch: Batch,
    /// Live leases on the executions that the entry names.
    leases: BTreeMap<ExecutionId, Lease>,
    took_office_at: Timestamp,
}

impl Witness {
    /// Call before an entry is applied; `None` when somebody applied it before, or it holds no commands.
    pub(super) fn before(&self, replica: &Replica, entry: &CommittedEntry) -> Option<Before> {
        let index = entry.position.index;
        {
            let mut seen = self.0.lock();
            if index <= seen.last_index {
                return None;
            }
            seen.last_index = index;
        }
        let Payload::Batch(bytes) = &entry.payload else {
            return None;
        };
        let batch = codec::decode(bytes).ok()?;
        let resident = replica.resident();
        let mut leases = BTreeMap::new();
        for envelope in &batch.commands {
            for id in named(&envelope.command) {
                for lease in resident.leases_on(id) {
                    leases.insert(id.clone(), lease.clone());
                }
            }
        }
        Some(Before {
            index,
            leases,
            took_office_at: resident.cluster.took_office_at,
            batch,
        })
    }

    /// Call after it was applied.
    pub(super) fn after(
        &self,
        replica: &Replica,
        before: &Before,
        answer: Option<&Arc<dyn Any + Send + Sync>>,
        counters: &Counters,
    ) {
        let mut seen = self.0.lock();
        let index = before.index;
        let Some(answer) = answer.and_then(|a| a.downcast_ref::<BatchAnswer>()) else {
            seen.wrong.push(format!("entry {index} has no outcomes"));
            return;
        };
        // Leases that live as the entry goes on.
        let mut live = before.leases.clone();
        for (envelope, outcome) in before.batch.commands.iter().zip(&answer.outcomes) {
            seen.command(&mut live, &envelope.command, outcome, counters);
        }
        seen.expiries(replica, before, answer.now);
    }

    /// Every rule that was broken.
    pub(super) fn finish(&self) -> Vec<String> {
        self.0.lock().wrong.clone()
    }
}

impl Seen {
    /// One command with its outcome; `live` is what lives as the entry goes on.
    fn command(
        &mut self,
        live: &mut BTreeMap<ExecutionId, Lease>,
        command: &Command,
        outcome: &Outcome,
        counters: &Counters,
    ) {
        match (command, outcome) {
            (Command::Schedule(ScheduleCommand::Fire(fire)), Outcome::Fired { .. }) => {
                let schedule = (fire.tenant, fire.id.clone(), fire.seen.incarnation);
                self.steps(&schedule, &fire.steps);
                counters.add("fired", 1);
            }
            (Command::Lease(LeaseCommand::Grant(_)), Outcome::Granted(results)) => {
                for result in results {
                    let GrantResult::Granted(granted) = result else {
                        counters.add("grants_refused", 1);
                        continue;
                    };
                    let lease = &granted.lease;
                    counters.add("granted", 1);
                    self.grant(lease, live.insert(lease.execution.clone(), lease.clone()));
                }
            }
            (Command::Lease(LeaseCommand::Report(report)), Outcome::Reported(results)) => {
                for (item, result) in report.items.iter().zip(results) {
                    self.report(
                        item.lease.fencing_token,
                        &item.lease.execution,
                        &item.action,
                        result,
                    );
                    match result {
                        ReportResult::LeaseLost { .. } => counters.add("stale_tokens", 1),
                        ReportResult::Ok { state, .. } if *state != ExecutionState::Leased => {
                            live.remove(&item.lease.execution);
                        }
                        ReportResult::Ok { .. } => {}
                    }
                }
            }
            (Command::Lease(LeaseCommand::Expire(expire)), Outcome::Processed { done }) => {
                counters.add("lease_expiries", u64::from(*done));
                for item in &expire.items {
                    live.remove(&item.lease.execution);
                }
            }
            (Command::Lease(LeaseCommand::Revoke(revoke)), Outcome::Processed { done }) => {
                counters.add("leases_given_back", u64::from(*done));
                for item in &revoke.items {
                    live.remove(&item.lease.execution);
                }
            }
            (Command::Execution(_), _) => {
                // A cancel ends a lease; nothing else of this area touches one.
                for id in named(command) {
                    live.remove(id);
                }
            }
            _ => {}
        }
    }

    fn steps(&mut self, schedule: &(TenantNo, ScheduleId, u64), steps: &[Step]) {
        for step in steps {
            if let Step::Create { planned, .. } = step {
                let (tenant, id, incarnation) = schedule.clone();
                let occurrence = (tenant, id, incarnation, planned.nominal_at);
                if !self.created.insert(occurrence.clone()) {
                    self.wrong
                        .push(format!("occurrence decided twice: {occurrence:?}"));
                }
            }
        }
    }

    fn grant(&mut self, lease: &Lease, live: Option<Lease>) {
        let (id, token) = (&lease.execution, lease.fencing_token);
        if let Some(other) = live {
            self.wrong.push(format!(
                "{id} was leased under {token} while {} lived",
                other.fencing_token
            ));
        }
        let last = self.tokens.insert(id.clone(), token);
        if last.is_some_and(|last| last >= token) {
            self.wrong
                .push(format!("the token of {id} did not grow: {last:?}, {token}"));
        }
    }

    fn report(
        &mut self,
        token: u64,
        id: &ExecutionId,
        action: &ReportAction,
        result: &ReportResult,
    ) {
        let is_complete = matches!(action, ReportAction::Complete { .. });
        if !is_complete || matches!(result, ReportResult::LeaseLost { .. }) {
            return;
        }
        let first = *self.completed.entry(id.clone()).or_insert(token);
        if first != token {
            self.wrong
                .push(format!("{id} was completed under {first} and {token}"));
        }
        let newest = self.tokens.get(id).copied();
        if newest != Some(token) {
            self.wrong.push(format!(
                "{id} was completed under {token}, newest is {newest:?}"
            ));
        }
    }

    /// A lease that an expiry ended was over.
    fn expiries(&mut self, replica: &Replica, before: &Before, now: Timestamp) {
        let resident = replica.resident();
        for envelope in &before.batch.commands {
            let Command::Lease(LeaseCommand::Expire(expire)) = &envelope.command else {
                continue;
            };
            for item in &expire.items {
                let id = &item.lease.execution;
                let Some(lease) = before.leases.get(id) else {
                    continue;
                };
                let ended = resident.lease(item.tenant, id).is_none();
                let meant = lease.fencing_token == item.lease.fencing_token;
                // Another command of the entry may have ended it first.
                let alone = before.batch.commands.iter().all(|other| {
                    matches!(&other.command, Command::Lease(LeaseCommand::Expire(_)))
                        || !named(&other.command).contains(&id)
                });
                if ended && meant && alone && now < lease.ends_at(before.took_office_at) {
                    self.wrong.push(format!("the lease on {id} expired early"));
                }
            }
        }
    }
}

/// Executions whose lease a command may touch.
fn named(command: &Command) -> Vec<&ExecutionId> {
    match command {
        Command::Lease(LeaseCommand::Grant(c)) => c.items.iter().map(|i| &i.execution).collect(),
        Command::Lease(LeaseCommand::Report(c)) => {
            c.items.iter().map(|i| &i.lease.execution).collect()
        }
        Command::Lease(LeaseCommand::Expire(c)) => {
            c.items.iter().map(|i| &i.lease.execution).collect()
        }
        Command::Lease(LeaseCommand::Revoke(c)) => {
            c.items.iter().map(|i| &i.lease.execution).collect()
        }
        Command::Execution(punctual::command::executions::ExecutionCommand::Cancel(c)) => {
            vec![&c.id]
        }
        Command::Admin(_) | Command::Schedule(_) | Command::Execution(_) => Vec::new(),
    }
}
