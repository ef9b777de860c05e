//! Schedules in a [`World`]: what the leader and the actions would propose.

use super::{START, TENANT, World, template};
use crate::command::outcome::Outcome;
use crate::command::schedules::{
    DeleteSchedule, FireOccurrences, PauseSchedule, Plan, PutSchedule, ResumeSchedule,
    ScheduleCommand, Seen, Step, TriggerSchedule,
};
use crate::command::{Command, Expect};
use crate::ids::{ExecutionId, QueueId, ScheduleId, TenantId};
use crate::model::execution::Cause;
use crate::model::history::{AuditRecord, LedgerRow};
use crate::model::policy::{MisfirePolicy, OverlapPolicy, PastPolicy};
use crate::model::rule::{RuleSpec, When};
use crate::model::schedule::{
    Planned, Schedule, ScheduleSpec, ScheduleStatus, SkipReason, SkipRecord,
};
use crate::state::resident::read;
use crate::store::{Family, keys, value};
use crate::time::{Millis, Timestamp};

/// The `n`-th whole minute after the start of the test.
pub(crate) const fn minute(n: u64) -> Timestamp {
    START.plus(Millis::minutes(n))
}

/// Everything up to `cursor` is decided; `next` comes next, without jitter.
pub(crate) fn plan(cursor: Timestamp, next: Option<Timestamp>) -> Plan {
    Plan {
        cursor,
        next: next.map(planned),
    }
}

/// An occurrence without jitter.
fn planned(nominal_at: Timestamp) -> Planned {
    Planned {
        nominal_at,
        due_at: nominal_at,
    }
}

/// Create the occurrence of `nominal_at`.
pub(crate) fn create(nominal_at: Timestamp) -> Step {
    Step::Create {
        planned: planned(nominal_at),
        cause: Cause::Due,
    }
}

/// `count` nominal times were skipped.
pub(crate) fn skip(from: Timestamp, to: Timestamp, count: u64, reason: SkipReason) -> SkipRecord {
    SkipRecord {
        from,
        to,
        count,
        at_least: false,
        reason,
        blocker: None,
        local: None,
    }
}

/// A schedule of tenant and queue `default`, every minute, planned from the start of the test, that nobody has seen.
pub(crate) fn a_put(id: &str) -> PutSchedule {
    let every = When::Every {
        every: Millis::minutes(1),
        anchor: START,
    };
    PutSchedule {
        tenant: TenantId::default_tenant(),
        id: schedule_id(id),
        queue: QueueId::default_queue(),
        spec: ScheduleSpec {
            description: String::new(),
            template: template(),
            rule: RuleSpec::new(every),
            misfire: MisfirePolicy::default(),
            overlap: OverlapPolicy::default(),
            past: PastPolicy::default(),
            keep_for: Millis::days(7),
            pause_after_failures: None,
        },
        plan: plan(START, Some(minute(1))),
        seen: None,
        expect: Expect::Any,
        dropped: Vec::new(),
    }
}

fn schedule_id(id: &str) -> ScheduleId {
    ScheduleId::new(id).expect("a schedule id")
}

impl World {
    /// A schedule of tenant `default`, if there is one.
    pub(crate) fn find_schedule(&self, id: &str) -> Option<(Schedule, ScheduleStatus)> {
        let id = schedule_id(id);
        let row = read(&self.store, Family::Live, &keys::schedule(TENANT, &id));
        let status = read(&self.store, Family::Live, &keys::status(TENANT, &id));
        row.expect("reads").zip(status.expect("reads"))
    }

    /// A schedule of tenant `default` that must be there.
    pub(crate) fn schedule(&self, id: &str) -> (Schedule, ScheduleStatus) {
        self.find_schedule(id)
            .unwrap_or_else(|| panic!("there is no schedule {id}"))
    }

    /// The status of a schedule that must be there.
    pub(crate) fn status(&self, id: &str) -> ScheduleStatus {
        self.schedule(id).1
    }

    /// What a planner reads of it now.
    pub(crate) fn seen(&self, id: &str) -> Seen {
        let (schedule, status) = self.schedule(id);
        Seen {
            incarnation: schedule.incarnation,
            generation: schedule.generation,
            cursor: status.cursor,
        }
    }

    /// Puts a schedule, having seen what is there.
    pub(crate) fn put_seen(&mut self, mut put: PutSchedule) -> Outcome {
        put.seen = self
            .find_schedule(put.id.as_str())
            .map(|_| self.seen(put.id.as_str()));
        self.one(Command::Schedule(ScheduleCommand::Put(Box::new(put))))
    }

    /// Fires, having seen what is there.
    pub(crate) fn fire(&mut self, id: &str, steps: Vec<Step>, plan: Plan) -> Outcome {
        let seen = self.seen(id);
        self.fire_seen(id, seen, steps, plan)
    }

    /// Fires with what the leader read.
    pub(crate) fn fire_seen(
        &mut self,
        id: &str,
        seen: Seen,
        steps: Vec<Step>,
        plan: Plan,
    ) -> Outcome {
        self.one(Command::Schedule(ScheduleCommand::Fire(FireOccurrences {
            tenant: TENANT,
            id: schedule_id(id),
            seen,
            steps,
            plan,
        })))
    }

    /// Fires and answers the executions created.
    pub(crate) fn fired(&mut self, id: &str, steps: Vec<Step>, plan: Plan) -> Vec<ExecutionId> {
        match self.fire(id, steps, plan) {
            Outcome::Fired { created, .. } => created,
            other => panic!("fire answered {other:?}"),
        }
    }

    /// Pauses a schedule.
    pub(crate) fn pause(&mut self, id: &str, until: Option<Timestamp>) -> Outcome {
        self.one(Command::Schedule(ScheduleCommand::Pause(PauseSchedule {
            tenant: TenantId::default_tenant(),
            id: schedule_id(id),
            expect: Expect::Any,
            until,
        })))
    }

    /// Resumes a schedule, having seen what is there.
    pub(crate) fn resume(&mut self, id: &str, steps: Vec<Step>, plan: Plan) -> Outcome {
        let command = self.a_resume(id, steps, plan);
        self.one(command)
    }

    /// A resume that has seen what is there.
    pub(crate) fn a_resume(&self, id: &str, steps: Vec<Step>, plan: Plan) -> Command {
        Command::Schedule(ScheduleCommand::Resume(ResumeSchedule {
            tenant: TenantId::default_tenant(),
            id: schedule_id(id),
            expect: Expect::Any,
            seen: self.seen(id),
            plan,
            steps,
        }))
    }

    /// Deletes a schedule.
    pub(crate) fn delete_schedule(&mut self, id: &str) -> Outcome {
        self.one(Command::Schedule(ScheduleCommand::Delete(DeleteSchedule {
            tenant: TenantId::default_tenant(),
            id: schedule_id(id),
            expect: Expect::Any,
        })))
    }

    /// Fires by hand, with the schedule's own policies and payload.
    pub(crate) fn trigger(&mut self, id: &str) -> Outcome {
        let command = Self::a_trigger(id);
        self.one(Command::Schedule(ScheduleCommand::Trigger(command)))
    }

    /// A trigger without a wish.
    pub(crate) fn a_trigger(id: &str) -> TriggerSchedule {
        TriggerSchedule {
            tenant: TenantId::default_tenant(),
            id: schedule_id(id),
            payload: None,
            overlap: None,
            traceparent: None,
        }
    }

    /// The skip records of the ledger, over all schedules, oldest bucket first.
    pub(crate) fn skips(&self) -> Vec<SkipRecord> {
        let tagged = |key: &[u8]| key.get(9) == Some(&keys::LEDGER);
        let rows = self.rows(Family::History, &[]).into_iter();
        rows.filter(|(key, _)| tagged(key))
            .filter_map(|(_, bytes)| match value::decode(&bytes) {
                Ok(LedgerRow::Skipped { record, .. }) => Some(record),
                Ok(LedgerRow::Ran { .. }) => None,
                Err(fault) => panic!("a ledger row: {fault}"),
            })
            .collect()
    }

    /// The actions of all audit records, by log position.
    pub(crate) fn audited(&self) -> Vec<String> {
        let mut found: Vec<(Vec<u8>, String)> = Vec::new();
        for (key, bytes) in self.rows(Family::History, &[]) {
            if key.get(9) == Some(&keys::AUDIT) {
                let record: AuditRecord = value::decode(&bytes).expect("an audit record");
                let place = key.get(10..).expect("an audit key").to_vec();
                found.push((place, format!("{} {}", record.action, record.target)));
            }
        }
        found.sort();
        found.into_iter().map(|(_, what)| what).collect()
    }
}
