//! The rows that a batch will read.
//!
//! Purpose: apply fetches them with one sorted read a family, instead of one by one. Callers:
//! [`crate::state::apply`]. Invariant: it is a hint. Apply reads what is missing here by itself
//! (rows whose keys only other rows tell: the status of a finished execution's schedule, a stored
//! body), and the outcome is the same.

use crate::command::Batch;
use crate::command::Command;
use crate::command::executions::{ExecutionCommand, SubmitExecution};
use crate::command::leases::LeaseCommand;
use crate::command::schedules::ScheduleCommand;
use crate::ids::{ExecutionId, ScheduleId, TenantId, TenantNo};
use crate::state::resident::Resident;
use crate::state::{admin, apply};
use crate::store::due::DueKind;
use crate::store::{Family, keys};

/// Keys that the commands of `batch` read, in any order, perhaps more than once.
pub(super) fn keys_of(state: &Resident, batch: &Batch) -> Vec<(Family, Vec<u8>)> {
    let mut wanted = Wanted {
        state,
        keys: Vec::with_capacity(batch.commands.len()),
    };
    let now = state.applied.now.max(batch.proposed_at);
    let newest = keys::idempotency_bucket(now);
    for envelope in &batch.commands {
        if let Some(key) = envelope.idempotency {
            let tenant = admin::tenant_of(state, &envelope.command);
            for bucket in apply::idempotency_buckets(state, newest) {
                wanted.add(Family::Keys, keys::idempotency(bucket, tenant, &key.hash));
            }
        }
        match &envelope.command {
            Command::Admin(_) => {}
            Command::Schedule(command) => wanted.schedules(command),
            Command::Execution(command) => wanted.executions(command),
            Command::Lease(command) => wanted.leases(command),
        }
    }
    wanted.keys
}

struct Wanted<'a> {
    state: &'a Resident,
    keys: Vec<(Family, Vec<u8>)>,
}

impl Wanted<'_> {
    fn add(&mut self, family: Family, key: Vec<u8>) {
        self.keys.push((family, key));
    }

    fn execution(&mut self, tenant: TenantNo, id: &ExecutionId) {
        self.add(Family::Live, keys::execution(tenant, id));
    }

    fn execution_of(&mut self, tenant: &TenantId, id: &ExecutionId) {
        if let Some(tenant) = self.state.tenant_numbers.get(tenant) {
            self.execution(*tenant, id);
        }
    }

    fn schedule(&mut self, tenant: TenantNo, id: &ScheduleId) {
        self.add(Family::Live, keys::schedule(tenant, id));
        self.add(Family::Live, keys::status(tenant, id));
    }

    fn schedule_of(&mut self, tenant: &TenantId, id: &ScheduleId) {
        if let Some(tenant) = self.state.tenant_numbers.get(tenant) {
            self.schedule(*tenant, id);
        }
    }

    fn schedules(&mut self, command: &ScheduleCommand) {
        match command {
            ScheduleCommand::Put(c) => self.schedule_of(&c.tenant, &c.id),
            ScheduleCommand::Delete(c) => self.schedule_of(&c.tenant, &c.id),
            ScheduleCommand::Pause(c) => self.schedule_of(&c.tenant, &c.id),
            ScheduleCommand::Resume(c) => self.schedule_of(&c.tenant, &c.id),
            ScheduleCommand::Trigger(c) => self.schedule_of(&c.tenant, &c.id),
            ScheduleCommand::Fire(c) => self.schedule(c.tenant, &c.id),
            ScheduleCommand::Remove(c) => self.schedule(c.tenant, &c.id),
        }
    }

    fn executions(&mut self, command: &ExecutionCommand) {
        match command {
            ExecutionCommand::Submit(c) => self.submission(c),
            ExecutionCommand::Cancel(c) => self.execution_of(&c.tenant, &c.id),
            ExecutionCommand::Delete(c) => self.execution_of(&c.tenant, &c.id),
            ExecutionCommand::ProcessDue(c) => {
                for entry in &c.items {
                    let is_mine = matches!(entry.kind, DueKind::Execution | DueKind::StartDeadline);
                    if let (true, Ok(id)) = (is_mine, ExecutionId::new(&entry.id)) {
                        self.execution(entry.tenant, &id);
                    }
                }
            }
        }
    }

    fn submission(&mut self, command: &SubmitExecution) {
        let Some(tenant) = self.state.tenant_numbers.get(&command.tenant) else {
            return;
        };
        if let Some(id) = &command.id {
            self.add(Family::Keys, keys::pointer(id, *tenant));
        }
        if let Some(unique) = &command.unique {
            self.add(Family::Keys, keys::unique(*tenant, &unique.key));
        }
    }

    fn leases(&mut self, command: &LeaseCommand) {
        match command {
            LeaseCommand::Grant(c) => {
                for item in &c.items {
                    self.execution(item.tenant, &item.execution);
                }
            }
            LeaseCommand::Report(c) => {
                for item in &c.items {
                    let id = &item.lease.execution;
                    let state = self.state;
                    for lease in state.leases_on(id) {
                        self.execution(lease.tenant, id);
                    }
                }
            }
            LeaseCommand::Expire(c) => {
                for item in &c.items {
                    self.execution(item.tenant, &item.lease.execution);
                }
            }
            LeaseCommand::Revoke(c) => {
                for item in &c.items {
                    self.execution(item.tenant, &item.lease.execution);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
