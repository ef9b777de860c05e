//! Definition, pause and removal of schedules.

use super::{Answer, Model, Planned, demand, timer};
use crate::command::Actor;
use crate::command::outcome::{Outcome, Quota, Refusal, Written};
use crate::command::schedules::{
    DeleteSchedule, PauseSchedule, Plan, PutSchedule, RemoveSchedule, ResumeSchedule, Seen,
};
use crate::ids::{QueueNo, TenantNo};
use crate::model::policy::PauseInfo;
use crate::model::schedule::{Planned as Next, Schedule, ScheduleState, ScheduleStatus};

impl Planned {
    fn wrote(&self, written: Written) -> Answer {
        Ok(Outcome::Schedule {
            written,
            incarnation: self.row.incarnation,
            generation: self.row.generation,
            revision: self.row.revision,
        })
    }

    pub(super) fn seen(&self) -> Seen {
        Seen {
            incarnation: self.row.incarnation,
            generation: self.row.generation,
            cursor: self.status.cursor,
        }
    }

    pub(super) fn is_used_up(&self) -> bool {
        match self.row.spec.rule.max_occurrences {
            Some(max) => self.status.created_count >= max,
            None => false,
        }
    }
}

/// Whether a plan made from `seen` goes forward only.
pub(super) fn goes_forward(plan: &Plan, seen: Option<Seen>) -> bool {
    let starts = seen.is_none_or(|seen| seen.cursor <= plan.cursor);
    starts && plan.next.is_none_or(|next| plan.cursor < next.nominal_at)
}

impl Model {
    pub(super) fn put(&mut self, command: &PutSchedule) -> Answer {
        let tenant = self.tenant(&command.tenant)?;
        let name = (tenant, command.id.to_string());
        let present = self.schedules.get(&name).cloned();
        demand(command.expect, present.as_ref().map(|p| p.row.revision))?;
        if let Some(present) = &present
            && present.row.spec == command.spec
            && self.queues[&present.row.queue.0].id == command.queue
        {
            return present.wrote(Written::Unchanged);
        }
        let seen = present.as_ref().map(Planned::seen);
        if seen != command.seen || !goes_forward(&command.plan, seen) || command.dropped.len() > 100
        {
            return Err(Refusal::Superseded);
        }
        self.may_put_into(&command.tenant, &command.queue)?;
        let current = self.schedules.keys().filter(|(t, _)| *t == tenant).count() as u64;
        if let (None, Some(limit)) = (&present, self.tenants[&tenant].spec.schedules_max)
            && current >= limit
        {
            return Err(Refusal::QuotaExceeded {
                quota: Quota::Schedules,
                limit,
                current,
            });
        }
        let queue = QueueNo(self.queue_for(&command.queue));
        let (planned, did) = match present {
            None => (self.created(command, tenant, queue), Written::Created),
            Some(former) => (self.replaced(command, former, queue), Written::Updated),
        };
        let target = self.schedule_name(tenant, &command.id);
        if did == Written::Updated {
            self.audit(tenant, "schedule.put", target);
        } else if matches!(self.caller.actor, Actor::Named(_)) || self.caller.reason.is_some() {
            self.audit(tenant, "schedule.create", target);
        }
        let answer = planned.wrote(did);
        self.schedules.insert(name, planned);
        answer
    }

    fn created(&self, command: &PutSchedule, tenant: u32, queue: QueueNo) -> Planned {
        let row = Schedule {
            tenant: TenantNo(tenant),
            id: command.id.clone(),
            incarnation: self.token,
            generation: 1,
            revision: self.revision(),
            queue,
            created_at: self.now,
            updated_at: self.now,
            spec: command.spec.clone(),
        };
        let mut planned = Planned {
            row,
            status: ScheduleStatus::new(command.plan.cursor),
            former: std::collections::BTreeMap::new(),
        };
        self.go_on(&mut planned, &command.plan);
        planned
    }

    fn replaced(&mut self, command: &PutSchedule, mut former: Planned, queue: QueueNo) -> Planned {
        for record in &command.dropped {
            self.skip(&mut former, record);
        }
        let mut planned = former.clone();
        planned.former.insert(former.row.generation, former.row);
        planned.row.generation += 1;
        planned.row.revision = self.revision();
        planned.row.queue = queue;
        planned.row.updated_at = self.now;
        planned.row.spec = command.spec.clone();
        let newest = planned.row.generation;
        planned
            .former
            .retain(|generation, _| generation + 100 > newest);
        planned.status.cursor = command.plan.cursor;
        if let ScheduleState::Completed { .. } = planned.status.state {
            if self.coming(&planned, &command.plan).is_none() {
                self.wake(&mut planned);
                return planned;
            }
            planned.status.state = ScheduleState::Active;
        }
        self.go_on(&mut planned, &command.plan);
        planned
    }

    /// Moves on to a plan: what comes next, or completion.
    pub(super) fn go_on(&self, planned: &mut Planned, plan: &Plan) {
        let is_active = planned.status.state == ScheduleState::Active;
        planned.status.cursor = plan.cursor;
        planned.status.next = self.coming(planned, plan).filter(|_| is_active);
        if is_active && planned.status.next.is_none() && planned.status.open.is_empty() {
            planned.status.state = ScheduleState::Completed { at: self.now };
        }
        self.wake(planned);
    }

    /// What a plan brings next; a rule that counts from the end counts from now when nothing is open.
    fn coming(&self, planned: &Planned, plan: &Plan) -> Option<Next> {
        match plan.next {
            _ if planned.is_used_up() => None,
            None if planned.status.open.is_empty() => self.after_the_end(planned),
            next => next,
        }
    }

    /// Sets the one timer that the state calls for.
    pub(super) fn wake(&self, planned: &mut Planned) {
        let at = match &planned.status.state {
            ScheduleState::Active => planned.status.next.map(|next| next.due_at),
            ScheduleState::Paused(pause) => pause.until,
            ScheduleState::Completed { at } => Some(at.plus(planned.row.spec.keep_for)),
        };
        planned.status.due_key = at.map(|at| timer(self.now, at));
    }

    pub(super) fn delete_schedule(&mut self, command: &DeleteSchedule) -> Answer {
        let tenant = self.tenant(&command.tenant)?;
        let name = (tenant, command.id.to_string());
        let present = self.schedules.get(&name).ok_or(Refusal::ScheduleNotFound)?;
        demand(command.expect, Some(present.row.revision))?;
        if present.row.incarnation == self.token {
            return Err(Refusal::Superseded);
        }
        let mut gone = self.schedules.remove(&name).expect("there");
        self.audit(
            tenant,
            "schedule.delete",
            self.schedule_name(tenant, &command.id),
        );
        gone.row.revision = self.revision();
        gone.wrote(Written::Deleted)
    }

    pub(super) fn remove(&mut self, command: &RemoveSchedule) -> Answer {
        let name = (command.tenant.0, command.id.to_string());
        let present = self.schedules.get(&name).ok_or(Refusal::Superseded)?;
        match present.status.state {
            ScheduleState::Completed { at }
                if present.row.incarnation == command.incarnation
                    && at.plus(present.row.spec.keep_for) <= self.now =>
            {
                self.schedules.remove(&name);
                Ok(Outcome::Done)
            }
            _ => Err(Refusal::Superseded),
        }
    }

    pub(super) fn pause(&mut self, command: &PauseSchedule) -> Answer {
        let tenant = self.tenant(&command.tenant)?;
        let name = (tenant, command.id.to_string());
        let mut planned = self
            .schedules
            .get(&name)
            .cloned()
            .ok_or(Refusal::ScheduleNotFound)?;
        demand(command.expect, Some(planned.row.revision))?;
        let mut pause = match planned.status.state.clone() {
            ScheduleState::Completed { .. } => return Err(Refusal::ScheduleCompleted),
            ScheduleState::Paused(pause) if pause.until == command.until => {
                return planned.wrote(Written::Unchanged);
            }
            ScheduleState::Paused(pause) => pause,
            ScheduleState::Active => PauseInfo {
                by: self.caller.actor.as_str().to_owned(),
                reason: self.caller.reason.clone(),
                since: self.now,
                until: None,
            },
        };
        pause.until = command.until;
        self.stop(&mut planned, pause);
        planned.row.revision = self.revision();
        self.audit(
            tenant,
            "schedule.pause",
            self.schedule_name(tenant, &command.id),
        );
        let answer = planned.wrote(Written::Updated);
        self.schedules.insert(name, planned);
        answer
    }

    pub(super) fn stop(&self, planned: &mut Planned, pause: PauseInfo) {
        planned.status.state = ScheduleState::Paused(pause);
        planned.status.next = None;
        self.wake(planned);
    }

    pub(super) fn resume(&mut self, command: &ResumeSchedule) -> Answer {
        let tenant = self.tenant(&command.tenant)?;
        let name = (tenant, command.id.to_string());
        let mut planned = self
            .schedules
            .get(&name)
            .cloned()
            .ok_or(Refusal::ScheduleNotFound)?;
        demand(command.expect, Some(planned.row.revision))?;
        match &planned.status.state {
            ScheduleState::Completed { .. } => return Err(Refusal::ScheduleCompleted),
            ScheduleState::Active => return planned.wrote(Written::Unchanged),
            ScheduleState::Paused(pause) if self.is_too_early_for_the_leader(pause) => {
                return Err(Refusal::Superseded);
            }
            ScheduleState::Paused(_) => {}
        }
        if !self.may_decide(&planned, command.seen, &command.steps, &command.plan) {
            return Err(Refusal::Superseded);
        }
        planned.status.state = ScheduleState::Active;
        planned.status.failures_in_row = 0;
        self.decide(&mut planned, &command.steps);
        self.go_on(&mut planned, &command.plan);
        planned.row.revision = self.revision();
        self.audit(
            tenant,
            "schedule.resume",
            self.schedule_name(tenant, &command.id),
        );
        let answer = planned.wrote(Written::Updated);
        self.schedules.insert(name, planned);
        answer
    }
}
