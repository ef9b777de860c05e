//! Open executions and live leases.

use super::schedules::due_entry;
use super::{Check, row_name};
use crate::fault::Fault;
use crate::ids::{ScheduleId, TenantNo};
use crate::model::execution::{Execution, ExecutionState, StoredPayload};
use crate::model::history::{ChosenId, UniqueHolder};
use crate::model::lease::Lease;
use crate::model::schedule::{Schedule, ScheduleStatus};
use crate::state::context::payload_len;
use crate::store::due::{DueEntry, DueKind};
use crate::store::{Family, keys};

/// The due entry that an open execution's row calls for.
pub(super) fn due_of(execution: &Execution) -> Option<DueEntry> {
    let kind = match execution.state {
        ExecutionState::Ready => DueKind::StartDeadline,
        _ => DueKind::Execution,
    };
    execution.due_key.map(|key| DueEntry {
        key,
        tenant: execution.tenant,
        kind,
        id: execution.id.as_str().to_owned(),
    })
}

/// The key of the line that a ready execution's row says it is in.
pub(super) fn line_of(execution: &Execution) -> Option<Vec<u8>> {
    let at = execution.line_at?;
    let (tenant, priority, id) = (execution.tenant, execution.template.priority, &execution.id);
    if !execution.parked {
        return Some(keys::ready(execution.queue, tenant, priority, at, id));
    }
    let name = execution.template.concurrency_key.as_deref()?;
    Some(keys::parked(tenant, name, priority, at, id))
}

fn name(execution: &Execution) -> String {
    format!("execution {}/{}", execution.tenant.0, execution.id)
}

impl Check<'_> {
    /// Every row of the live family.
    pub(super) fn live(&mut self) -> Result<(), Fault> {
        self.each(Family::Live, |check, key, bytes| {
            let family = Family::Live;
            match key.first() {
                Some(&keys::EXECUTION) => match check.decode(family, key, bytes)? {
                    Some(row) => check.execution(key, &row),
                    None => Ok(()),
                },
                Some(&keys::LEASE) => match check.decode(family, key, bytes)? {
                    Some(row) => check.lease(key, &row),
                    None => Ok(()),
                },
                Some(&keys::SCHEDULE) => match check.decode(family, key, bytes)? {
                    Some(row) => check.schedule(key, &row),
                    None => Ok(()),
                },
                Some(&keys::GENERATION) => match check.decode(family, key, bytes)? {
                    Some(row) => check.generation(key, &row),
                    None => Ok(()),
                },
                Some(&keys::STATUS) => check.status(key),
                _ => {
                    check.problem(
                        || row_name(family, key),
                        "nothing of this name is stored here",
                    );
                    Ok(())
                }
            }
        })
    }

    fn execution(&mut self, key: &[u8], execution: &Execution) -> Result<(), Fault> {
        self.count("open executions");
        let name = || name(execution);
        if key != keys::execution(execution.tenant, &execution.id) {
            self.problem(name, "its key is another one's");
        }
        self.usage.entry(execution.tenant).or_default().open += 1;
        if self
            .resident
            .lease(execution.tenant, &execution.id)
            .is_some()
        {
            self.leased(execution)?;
        } else {
            self.waits_somewhere(execution)?;
        }
        self.side_rows(execution)?;
        self.is_known(execution)
    }

    /// A leased one waits for nothing else: its lease's deadline is its next event.
    fn leased(&mut self, execution: &Execution) -> Result<(), Fault> {
        let name = || name(execution);
        let line = (execution.queue, execution.tenant);
        self.counts.entry(line).or_default().leased += 1;
        self.usage.entry(execution.tenant).or_default().leased += 1;
        if let Some(entry) = due_of(execution)
            && self.has_due(&entry)?
        {
            self.problem(name, "it is leased and in the due index");
        }
        if let Some(key) = line_of(execution)
            && self.view.get(Family::Lines, &key)?.is_some()
        {
            self.problem(name, "it is leased and in a line");
        }
        Ok(())
    }

    /// One that is not leased is in exactly one line, or in the due index.
    fn waits_somewhere(&mut self, execution: &Execution) -> Result<(), Fault> {
        let name = || name(execution);
        let counts = self
            .counts
            .entry((execution.queue, execution.tenant))
            .or_default();
        match (execution.state, execution.parked) {
            (ExecutionState::Waiting, false) => counts.waiting += 1,
            (ExecutionState::BackingOff, false) => counts.backing_off += 1,
            (ExecutionState::Ready, true) => counts.parked += 1,
            (ExecutionState::Ready, false) => counts.ready += 1,
            (state, parked) => {
                let parked = if parked { " and parked" } else { "" };
                self.problem(name, format!("it is open and {}{parked}", state.as_str()));
                return Ok(());
            }
        }
        if execution.state == ExecutionState::Ready {
            if execution.parked {
                let key = execution
                    .template
                    .concurrency_key
                    .clone()
                    .unwrap_or_default();
                *self.parked.entry((execution.tenant, key)).or_default() += 1;
            }
            let line = line_of(execution);
            let there = match line {
                Some(key) => self.view.get(Family::Lines, &key)?.is_some(),
                None => false,
            };
            if !there {
                self.problem(name, "it is ready and in no line");
            }
        }
        match due_of(execution) {
            Some(entry) if !self.has_due(&entry)? => {
                self.problem(name, format!("its due entry is missing: {entry:?}"));
            }
            None if execution.state != ExecutionState::Ready => {
                self.problem(name, "nothing will wake it: it has no due entry");
            }
            _ => {}
        }
        Ok(())
    }

    fn side_rows(&mut self, execution: &Execution) -> Result<(), Fault> {
        let name = || name(execution);
        let tenant = execution.tenant;
        if execution.payload != StoredPayload::Inline {
            let body = self
                .view
                .get(Family::Body, &keys::body(tenant, &execution.id))?;
            let len = body.map(|body| body.len() as u64);
            if len != Some(u64::from(payload_len(execution))) {
                self.problem(name, "its body is missing or of another size");
            }
        }
        if let Some(key) = &execution.unique_key {
            let holder: Option<UniqueHolder> =
                self.read(Family::Keys, &keys::unique(tenant, key))?;
            if holder.is_none_or(|holder| holder.execution != execution.id) {
                self.problem(name, "it does not hold its unique key");
            }
        }
        if execution.chosen_id {
            let key = keys::pointer(&execution.id, tenant);
            let pointer: Option<ChosenId> = self.read(Family::Keys, &key)?;
            if pointer.is_none_or(|pointer| pointer.history.is_some()) {
                self.problem(
                    name,
                    "its id was chosen and no pointer says that it is open",
                );
            }
        }
        Ok(())
    }

    /// A schedule of the same incarnation holds it open.
    fn is_known(&mut self, execution: &Execution) -> Result<(), Fault> {
        let Some(occurrence) = &execution.occurrence else {
            return Ok(());
        };
        let (tenant, id) = (execution.tenant, &occurrence.schedule);
        let schedule: Option<Schedule> = self.read(Family::Live, &keys::schedule(tenant, id))?;
        if schedule.is_none_or(|row| row.incarnation != occurrence.incarnation) {
            return Ok(());
        }
        let status: Option<ScheduleStatus> = self.read(Family::Live, &keys::status(tenant, id))?;
        if status.is_none_or(|status| !status.open.contains(&execution.id)) {
            self.problem(|| name(execution), "its schedule does not hold it open");
        }
        Ok(())
    }

    fn lease(&mut self, key: &[u8], lease: &Lease) -> Result<(), Fault> {
        self.count("live leases");
        let name = || format!("lease on {}/{}", lease.tenant.0, lease.execution);
        let row: Option<Execution> = self.read(
            Family::Live,
            &keys::execution(lease.tenant, &lease.execution),
        )?;
        match row {
            None => self.problem(name, "its execution is not open"),
            Some(row) if row.queue != lease.queue => {
                self.problem(name, "its execution is in another queue");
            }
            Some(_) => {}
        }
        if key != keys::lease(lease.tenant, &lease.execution) {
            self.problem(name, "its key is another one's");
        }
        if lease.fencing_token > crate::state::replica::token_of(self.resident) {
            self.problem(name, "its token comes from the future");
        }
        Ok(())
    }

    /// Whether the owner of a due entry calls for exactly this one.
    pub(super) fn is_wanted(&mut self, entry: &DueEntry) -> Result<bool, Fault> {
        let tenant: TenantNo = entry.tenant;
        match entry.kind {
            DueKind::Execution | DueKind::StartDeadline => {
                let key = [
                    &[keys::EXECUTION],
                    &tenant.0.to_be_bytes()[..],
                    entry.id.as_bytes(),
                ];
                let row: Option<Execution> = self.read(Family::Live, &key.concat())?;
                Ok(row.as_ref().and_then(due_of).as_ref() == Some(entry))
            }
            DueKind::Occurrence | DueKind::Removal | DueKind::PauseEnd => {
                let Ok(id) = ScheduleId::new(&entry.id) else {
                    return Ok(false);
                };
                let row: Option<ScheduleStatus> =
                    self.read(Family::Live, &keys::status(tenant, &id))?;
                let wanted = row.and_then(|status| due_entry((tenant, &id), &status));
                Ok(wanted.as_ref() == Some(entry))
            }
        }
    }
}
