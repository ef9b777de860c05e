//! Turning what is due into commands: fair over tenants, bounded in flight, planned away from the office's task.
//!
//! Purpose: executions whose time has come go into few large commands; schedules are read and planned in batches.
//! Callers: the office.
//! Invariants:
//! 1. One command in flight for each schedule.
//! 2. At most [`ITEMS_IN_FLIGHT`] executions and [`SCHEDULES_IN_FLIGHT`] schedules are under way, so that grants and
//!    API calls get their turn however much is due.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::command::executions::DUE_ITEMS_MAX;
use crate::command::schedules::{RemoveSchedule, ResumeSchedule, ScheduleCommand};
use crate::command::{Command, Envelope, Expect};
use crate::fault::Fault;
use crate::ids::{ScheduleId, TenantId, TenantNo};
use crate::leader::fair::FairQueue;
use crate::leader::inbox::Reply;
use crate::leader::planner::{self, CatchUp};
use crate::leader::proposer::Parcel;
use crate::leader::rules::Rules;
use crate::model::policy::PauseInfo;
use crate::model::schedule::{Schedule, ScheduleState, ScheduleStatus};
use crate::state::replica::Replica;
use crate::store::due::{DueEntry, DueKind};
use crate::store::{Family, keys, value};
use crate::time::Timestamp;

/// Executions under way in `ProcessDue` commands.
pub const ITEMS_IN_FLIGHT: usize = 2_000;
/// Schedules being planned or fired.
pub const SCHEDULES_IN_FLIGHT: usize = 512;
/// Schedules of one plan job.
const JOB_MAX: usize = 64;

/// A schedule's name.
pub type Owner = (TenantNo, ScheduleId);

/// A schedule to look at.
#[derive(Clone, Debug)]
pub struct Task {
    /// Which.
    pub owner: Owner,
    /// What became due of it; `None`: somebody wants it settled.
    pub entry: Option<Arc<DueEntry>>,
}

/// What came of looking at a schedule.
#[derive(Debug)]
pub struct Plotted {
    /// Which.
    pub task: Task,
    /// The command to propose; `None`: nothing is due of it.
    pub parcel: Option<Parcel>,
}

#[derive(Debug, Default)]
struct Busy {
    /// Due entries that came while it was busy.
    entries: Vec<Arc<DueEntry>>,
    /// Who waits until nothing is due of it.
    settlers: Vec<Reply<()>>,
    tries: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Firing {
    items: FairQueue<Arc<DueEntry>>,
    items_in_flight: usize,
    schedules: FairQueue<Task>,
    settling: VecDeque<Task>,
    busy: BTreeMap<Owner, Busy>,
}

impl Firing {
    /// Something became due.
    pub fn push(&mut self, entry: Arc<DueEntry>) -> Result<(), Arc<DueEntry>> {
        match entry.kind {
            DueKind::Execution | DueKind::StartDeadline => {
                self.items.push(entry.tenant, entry);
            }
            DueKind::Occurrence | DueKind::Removal | DueKind::PauseEnd => {
                let Ok(id) = ScheduleId::new(&entry.id) else {
                    return Err(entry);
                };
                let owner = (entry.tenant, id);
                if let Some(busy) = self.busy.get_mut(&owner) {
                    busy.entries.push(entry);
                } else {
                    let tenant = entry.tenant;
                    let entry = Some(entry);
                    self.schedules.push(tenant, Task { owner, entry });
                }
            }
        }
        Ok(())
    }

    /// Whether nothing that was due waits or is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.backlog() == 0
            && self.items_in_flight == 0
            && self.settling.is_empty()
            && self.busy.is_empty()
    }

    /// Due things that wait.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.items.len() + self.schedules.len()
    }

    /// The items of the next `ProcessDue`, if one may go.
    pub fn next_items(&mut self) -> Option<Vec<Arc<DueEntry>>> {
        if self.items.is_empty() || self.items_in_flight >= ITEMS_IN_FLIGHT {
            return None;
        }
        let items = self.items.take(DUE_ITEMS_MAX);
        self.items_in_flight += items.len();
        Some(items)
    }

    /// A `ProcessDue` of so many items was answered.
    pub fn items_done(&mut self, count: usize) {
        self.items_in_flight = self.items_in_flight.saturating_sub(count);
    }

    /// Wants `owner` settled: `reply` is told when nothing is due of it.
    pub fn settle(&mut self, owner: Owner, reply: Reply<()>) {
        let task = Task {
            owner: owner.clone(),
            entry: None,
        };
        if let Some(busy) = self.busy.get_mut(&owner) {
            busy.settlers.push(reply);
            return;
        }
        let busy = self.busy.entry(owner).or_default();
        busy.settlers.push(reply);
        self.settling.push_back(task);
    }

    /// Schedules to plan next; each is busy from now on.
    pub fn next_tasks(&mut self) -> Vec<Task> {
        let mut tasks: Vec<Task> = Vec::new();
        while tasks.len() < JOB_MAX {
            let Some(task) = self.settling.pop_front() else {
                break;
            };
            tasks.push(task);
        }
        let room = SCHEDULES_IN_FLIGHT.saturating_sub(self.busy.len());
        let more = JOB_MAX.saturating_sub(tasks.len()).min(room);
        for task in self.schedules.take(more) {
            if let Some(busy) = self.busy.get_mut(&task.owner) {
                busy.entries.extend(task.entry);
            } else {
                self.busy.insert(task.owner.clone(), Busy::default());
                tasks.push(task);
            }
        }
        tasks
    }

    /// A schedule was decided (or nothing was due). `again`: look at it once more because somebody waits for it, or
    /// because the plan came too late. Answers entries that are dealt with.
    pub fn decided(&mut self, task: Task, again: bool) -> Vec<Arc<DueEntry>> {
        let mut done: Vec<Arc<DueEntry>> = task.entry.into_iter().collect();
        let Some(busy) = self.busy.get_mut(&task.owner) else {
            return done;
        };
        busy.tries += 1;
        let entry = busy.entries.pop();
        let wanted = entry.is_some() || (again && !busy.settlers.is_empty());
        if wanted && busy.tries < 100 {
            let owner = task.owner;
            self.settling.push_back(Task { owner, entry });
            return done;
        }
        done.extend(entry);
        if let Some(busy) = self.busy.remove(&task.owner) {
            done.extend(busy.entries);
            for reply in busy.settlers {
                let _gone = reply.send(Ok(()));
            }
        }
        done
    }

    /// Who waits for a schedule, for a last answer.
    pub fn drain_settlers(&mut self) -> impl Iterator<Item = Reply<()>> + use<> {
        std::mem::take(&mut self.busy)
            .into_values()
            .flat_map(|busy| busy.settlers)
    }
}

/// Reads and plans schedules. Blocks on the disk.
///
/// # Errors
/// Any [`Fault`] of reading.
pub fn plot(
    replica: &Replica,
    rules: &Rules,
    now: Timestamp,
    mut tasks: Vec<Task>,
) -> Result<Vec<Plotted>, Fault> {
    tasks.sort_by(|a, b| a.owner.cmp(&b.owner));
    let context = PlotContext::read(replica, now, &tasks);
    let (view, _, _) = replica.view();
    let name = |t: &Task| (t.owner.0, t.owner.1.clone());
    let names: Vec<Owner> = tasks.iter().map(name).collect();
    let definitions = names.iter().map(|(tenant, id)| keys::schedule(*tenant, id));
    let statuses = names.iter().map(|(tenant, id)| keys::status(*tenant, id));
    let wanted: Vec<Vec<u8>> = definitions.chain(statuses).collect();
    let wanted: Vec<&[u8]> = wanted.iter().map(Vec::as_slice).collect();
    let mut rows = view.multi_get(Family::Live, &wanted)?;
    let status_rows = rows.split_off(tasks.len().min(rows.len()));
    let mut plotted = Vec::with_capacity(tasks.len());
    for (task, (definition, status)) in tasks.into_iter().zip(rows.into_iter().zip(status_rows)) {
        let mut command = None;
        if let (Some(definition), Some(status)) = (definition, status) {
            let schedule: Schedule = value::decode(&definition)?;
            let status: ScheduleStatus = value::decode(&status)?;
            command = context.command(rules, now, &task, &schedule, &status);
        }
        let parcel = command.and_then(|command| {
            let envelope = Envelope::leader(Command::Schedule(command));
            Parcel::pack(&envelope)
                .inspect_err(|e| tracing::error!(schedule = ?task.owner, "cannot fire: {e}"))
                .ok()
        });
        plotted.push(Plotted { task, parcel });
    }
    Ok(plotted)
}

/// What planning needs of the memory.
struct PlotContext {
    release: String,
    names: BTreeMap<TenantNo, TenantId>,
    held: BTreeSet<TenantNo>,
}

impl PlotContext {
    fn read(replica: &Replica, now: Timestamp, tasks: &[Task]) -> Self {
        let resident = replica.resident();
        let mut new = Self {
            release: resident.cluster.zone_release.clone(),
            names: BTreeMap::new(),
            held: BTreeSet::new(),
        };
        let holds = |pause: Option<&PauseInfo>| pause.is_some_and(|p| p.holds_at(now));
        let everything = holds(resident.cluster.paused.as_ref());
        for task in tasks {
            let no = task.owner.0;
            if let Some(tenant) = resident.tenants.get(&no) {
                new.names.insert(no, tenant.id.clone());
                if everything || holds(tenant.paused.as_ref()) {
                    new.held.insert(no);
                }
            }
        }
        new
    }

    fn command(
        &self,
        rules: &Rules,
        now: Timestamp,
        task: &Task,
        schedule: &Schedule,
        status: &ScheduleStatus,
    ) -> Option<ScheduleCommand> {
        let tenant = self.names.get(&task.owner.0)?;
        let kind = task.entry.as_ref().map_or(DueKind::Occurrence, |e| e.kind);
        if kind == DueKind::Removal {
            let remove = RemoveSchedule {
                tenant: schedule.tenant,
                id: schedule.id.clone(),
                incarnation: schedule.incarnation,
            };
            let is_over = matches!(status.state, ScheduleState::Completed { .. });
            return is_over.then_some(ScheduleCommand::Remove(remove));
        }
        let rule = rules.compiled(&self.release, tenant, schedule);
        let rule = rule
            .inspect_err(|e| {
                tracing::error!(%tenant, schedule = %schedule.id, "its rule cannot be planned: {e}");
            })
            .ok()?;
        if let ScheduleState::Paused(pause) = &status.state {
            pause.until.filter(|until| *until <= now)?;
            let decision = planner::plan_resume(status, &rule, now, CatchUp::None);
            return Some(ScheduleCommand::Resume(ResumeSchedule {
                tenant: tenant.clone(),
                id: schedule.id.clone(),
                expect: Expect::Any,
                seen: planner::seen(schedule, status),
                plan: decision.plan,
                steps: decision.steps,
            }));
        }
        let held = self.held.contains(&schedule.tenant);
        planner::plan_fire(schedule, status, &rule, now, held).map(ScheduleCommand::Fire)
    }
}
