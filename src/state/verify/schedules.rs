//! Schedules, their status and their earlier definitions.

use super::Check;
use crate::fault::Fault;
use crate::ids::{ExecutionId, ScheduleId, TenantNo};
use crate::model::execution::Execution;
use crate::model::schedule::{
    GENERATIONS_MAX, RECENT_MAX, Schedule, ScheduleState, ScheduleStatus,
};
use crate::store::due::{DueEntry, DueKind};
use crate::store::{Family, keys};

/// The entry that a schedule's status calls for.
pub(super) fn due_entry(
    schedule: (TenantNo, &ScheduleId),
    status: &ScheduleStatus,
) -> Option<DueEntry> {
    let kind = match status.state {
        ScheduleState::Active => DueKind::Occurrence,
        ScheduleState::Paused(_) => DueKind::PauseEnd,
        ScheduleState::Completed { .. } => DueKind::Removal,
    };
    status.due_key.map(|key| DueEntry {
        key,
        tenant: schedule.0,
        kind,
        id: schedule.1.as_str().to_owned(),
    })
}

impl Check<'_> {
    /// The row of a schedule's definition, with its status.
    pub(super) fn schedule(&mut self, key: &[u8], schedule: &Schedule) -> Result<(), Fault> {
        self.count("schedules");
        let (tenant, id) = (schedule.tenant, &schedule.id);
        let name = || format!("schedule {}/{id}", tenant.0);
        if key != keys::schedule(tenant, id) {
            self.problem(name, "its key is another one's");
        }
        if !self.resident.tenants.contains_key(&tenant) {
            self.problem(name, "its tenant does not exist");
        }
        if !self.resident.queues.contains_key(&schedule.queue) {
            self.problem(name, "its queue does not exist");
        }
        self.counts
            .entry((schedule.queue, tenant))
            .or_default()
            .schedules += 1;
        self.usage.entry(tenant).or_default().schedules += 1;
        match self.read::<ScheduleStatus>(Family::Live, &keys::status(tenant, id))? {
            None => self.problem(name, "it has no status"),
            Some(status) => {
                self.next_event(schedule, &status)?;
                for execution in &status.open {
                    self.knows(schedule, execution)?;
                }
                if status.recent.len() > RECENT_MAX {
                    self.problem(name, "it keeps too many outcomes");
                }
            }
        }
        Ok(())
    }

    /// Exactly the one due entry that its state calls for.
    fn next_event(&mut self, schedule: &Schedule, status: &ScheduleStatus) -> Result<(), Fault> {
        let (tenant, id) = (schedule.tenant, &schedule.id);
        let name = || format!("schedule {}/{id}", tenant.0);
        let wanted = match &status.state {
            ScheduleState::Active => {
                if status.next.is_none() && status.open.is_empty() {
                    self.problem(name, "it is active with nothing to come and nothing open");
                }
                status.next.is_some()
            }
            ScheduleState::Paused(pause) => pause.until.is_some(),
            ScheduleState::Completed { .. } => {
                if !status.open.is_empty() {
                    self.problem(name, "it is completed with open executions");
                }
                true
            }
        };
        let is_active = status.state == ScheduleState::Active;
        if !is_active && status.next.is_some() {
            self.problem(name, "it is not active and has a next occurrence");
        }
        if status
            .next
            .is_some_and(|next| next.nominal_at <= status.cursor)
        {
            self.problem(name, "its next occurrence is decided already");
        }
        match due_entry((tenant, id), status) {
            None if wanted => self.problem(name, "nothing will wake it: it has no due entry"),
            Some(_) if !wanted => self.problem(name, "it has a due entry without a cause"),
            Some(entry) if !self.has_due(&entry)? => {
                self.problem(name, format!("its due entry is missing: {entry:?}"));
            }
            None | Some(_) => {}
        }
        Ok(())
    }

    /// An execution that the schedule holds open is open and is its own.
    fn knows(&mut self, schedule: &Schedule, id: &ExecutionId) -> Result<(), Fault> {
        let tenant = schedule.tenant;
        let row: Option<Execution> = self.read(Family::Live, &keys::execution(tenant, id))?;
        let is_own = row
            .and_then(|row| row.occurrence)
            .is_some_and(|o| o.schedule == schedule.id && o.incarnation == schedule.incarnation);
        if !is_own {
            let name = || format!("schedule {}/{}", tenant.0, schedule.id);
            self.problem(
                name,
                format!("it holds {id} open, which is not an open one of it"),
            );
        }
        Ok(())
    }

    /// A status row has a definition. `rest` is the key without its tag.
    pub(super) fn status(&mut self, key: &[u8]) -> Result<(), Fault> {
        let definition = [&[keys::SCHEDULE], key.get(1..).unwrap_or_default()].concat();
        if self.view.get(Family::Live, &definition)?.is_none() {
            self.problem(
                || super::row_name(Family::Live, key),
                "a status without a schedule",
            );
        }
        Ok(())
    }

    /// An earlier definition belongs to a schedule of that incarnation and is one of the last.
    pub(super) fn generation(&mut self, key: &[u8], former: &Schedule) -> Result<(), Fault> {
        self.count("earlier definitions");
        let (tenant, id) = (former.tenant, &former.id);
        let own = keys::generation(tenant, id, former.incarnation, former.generation);
        let now: Option<Schedule> = self.read(Family::Live, &keys::schedule(tenant, id))?;
        let belongs = now.is_some_and(|now| {
            now.incarnation == former.incarnation
                && former.generation < now.generation
                && former.generation + GENERATIONS_MAX > now.generation
        });
        if !belongs || key != own {
            let name = || format!("definition {} of {}/{id}", former.generation, tenant.0);
            self.problem(name, "it belongs to no schedule");
        }
        Ok(())
    }
}
