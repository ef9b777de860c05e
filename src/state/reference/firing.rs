//! Deciding occurrences, and firing by hand.

use super::executions::New;
use super::schedules::goes_forward;
use super::{Answer, DAYS_30, Model, Planned, Record, class_bucket, history_key, since_start};
use crate::command::outcome::{Outcome, Refusal, Written};
use crate::command::schedules::{FireOccurrences, Plan, Seen, Step, TriggerSchedule};
use crate::ids::ExecutionId;
use crate::model::execution::{Cause, OccurrenceRef};
use crate::model::history::LedgerRow;
use crate::model::policy::Overlap;
use crate::model::schedule::{LastSkip, ScheduleState, SkipReason, SkipRecord};
use crate::time::Timestamp;

impl Planned {
    fn occurrence(&self, nominal_at: Option<Timestamp>) -> OccurrenceRef {
        OccurrenceRef {
            schedule: self.row.id.clone(),
            incarnation: self.row.incarnation,
            generation: self.row.generation,
            nominal_at,
        }
    }

    /// The open execution in the way, under an overlap policy.
    fn in_the_way(&self, policy: Overlap) -> Option<ExecutionId> {
        let room = match policy {
            Overlap::Skip => 1,
            Overlap::Allow => self.row.spec.overlap.max_open.max(1) as usize,
        };
        let open = &self.status.open;
        (open.len() >= room).then(|| open[0].clone())
    }
}

impl Model {
    pub(super) fn fire(&mut self, command: &FireOccurrences) -> Answer {
        let name = (command.tenant.0, command.id.to_string());
        let mut planned = self
            .schedules
            .get(&name)
            .cloned()
            .ok_or(Refusal::Superseded)?;
        if planned.status.state != ScheduleState::Active
            || !self.may_decide(&planned, command.seen, &command.steps, &command.plan)
        {
            return Err(Refusal::Superseded);
        }
        let (created, skipped) = self.decide(&mut planned, &command.steps);
        self.go_on(&mut planned, &command.plan);
        self.schedules.insert(name, planned);
        Ok(Outcome::Fired { created, skipped })
    }

    /// Whether a decision was made from the present state and decides nothing twice.
    pub(super) fn may_decide(
        &self,
        planned: &Planned,
        seen: Seen,
        steps: &[Step],
        plan: &Plan,
    ) -> bool {
        let mut times = vec![planned.status.cursor];
        for step in steps {
            match step {
                Step::Create { planned, .. } => times.push(planned.nominal_at),
                Step::Skip(record) if record.to < record.from => return false,
                Step::Skip(_) => {}
            }
        }
        let in_order = times.windows(2).all(|pair| pair[0] < pair[1]);
        let in_bounds = times.iter().all(|at| *at <= plan.cursor);
        seen == planned.seen()
            && goes_forward(plan, Some(seen))
            && in_order
            && in_bounds
            && steps.len() <= 100
    }

    pub(super) fn decide(
        &mut self,
        planned: &mut Planned,
        steps: &[Step],
    ) -> (Vec<ExecutionId>, u64) {
        let mut created = Vec::new();
        let mut skipped = 0;
        for step in steps {
            if planned.is_used_up() {
                break;
            }
            let record = match step {
                Step::Skip(record) => record.clone(),
                Step::Create {
                    planned: when,
                    cause,
                } => match self.occur(planned, when.nominal_at, when.due_at, *cause) {
                    Ok(id) => {
                        created.push(id);
                        continue;
                    }
                    Err(record) => record,
                },
            };
            skipped += record.count;
            self.skip(planned, &record);
        }
        (created, skipped)
    }

    fn occur(
        &mut self,
        planned: &mut Planned,
        nominal_at: Timestamp,
        due_at: Timestamp,
        cause: Cause,
    ) -> Result<ExecutionId, SkipRecord> {
        let skipped = |reason, blocker| SkipRecord {
            from: nominal_at,
            to: nominal_at,
            count: 1,
            at_least: false,
            reason,
            blocker,
            local: None,
        };
        if let Some(blocker) = planned.in_the_way(planned.row.spec.overlap.policy) {
            return Err(skipped(SkipReason::Overlap, Some(blocker)));
        }
        let new = New {
            tenant: planned.row.tenant.0,
            queue: planned.row.queue.0,
            occurrence: Some(planned.occurrence(Some(nominal_at))),
            cause,
            template: planned.row.spec.template.clone(),
            due_at,
            ..New::default()
        };
        let id = self
            .create(new)
            .map_err(|_| skipped(SkipReason::Quota, None))?;
        planned.status.open.push(id.clone());
        planned.status.created_count += 1;
        planned.status.last_skip = None;
        Ok(id)
    }

    /// Records a skip, joined to an equal neighbour of the same day.
    pub(super) fn skip(&mut self, planned: &mut Planned, record: &SkipRecord) {
        *planned.status.skipped.entry(record.reason).or_default() += record.count;
        let today = class_bucket(DAYS_30, self.now);
        let mut whole = record.clone();
        if let Some(LastSkip { key, record: last }) = &planned.status.last_skip {
            let day = u32::from_be_bytes(key[1..5].try_into().expect("a bucket"));
            let equal = last.reason == record.reason
                && last.blocker == record.blocker
                && last.local == record.local;
            if equal && day == today && last.to < record.from {
                whole.from = last.from;
                whole.count += last.count;
                whole.at_least |= last.at_least;
            }
        }
        let mut key = ledger_key(planned, DAYS_30, today, whole.from);
        key.push(match record.reason {
            SkipReason::Paused => 0,
            SkipReason::Overlap => 1,
            SkipReason::Misfire => 2,
            SkipReason::Calendar => 3,
            SkipReason::DstGap => 4,
            SkipReason::Quota => 5,
            SkipReason::Superseded => 6,
        });
        let row = LedgerRow::Skipped {
            incarnation: planned.row.incarnation,
            record: whole.clone(),
        };
        self.history.insert(key.clone(), Record::Ledger(row));
        planned.status.last_skip = Some(LastSkip { key, record: whole });
    }

    pub(super) fn trigger(&mut self, command: &TriggerSchedule) -> Answer {
        let tenant = self.tenant(&command.tenant)?;
        let name = (tenant, command.id.to_string());
        let planned = self
            .schedules
            .get(&name)
            .cloned()
            .ok_or(Refusal::ScheduleNotFound)?;
        if let ScheduleState::Completed { .. } = planned.status.state {
            return Err(Refusal::ScheduleCompleted);
        }
        let policy = command.overlap.unwrap_or(planned.row.spec.overlap.policy);
        if let Some(blocker) = planned.in_the_way(policy) {
            return Err(Refusal::Overlap { blocker });
        }
        let mut template = planned.row.spec.template.clone();
        if let Some(payload) = &command.payload {
            template.payload.clone_from(payload);
        }
        let new = New {
            tenant,
            queue: planned.row.queue.0,
            occurrence: Some(planned.occurrence(None)),
            cause: Cause::Triggered,
            template,
            due_at: self.now,
            traceparent: command.traceparent.clone(),
            ..New::default()
        };
        let execution = self.create(new)?;
        let planned = self.schedules.get_mut(&name).expect("there");
        planned.status.open.push(execution.clone());
        self.audit(
            tenant,
            "schedule.trigger",
            self.schedule_name(tenant, &command.id),
        );
        Ok(Outcome::Submitted {
            written: Written::Created,
            tenant: crate::ids::TenantNo(tenant),
            execution,
        })
    }
}

/// The ledger's key of an execution that ended; a skip appends its reason.
pub(super) fn ledger_key(planned: &Planned, class: u8, bucket: u32, at: Timestamp) -> Vec<u8> {
    let row = &planned.row;
    ledger_key_of(
        row.tenant.0,
        row.id.as_str(),
        row.incarnation,
        (class, bucket, at),
    )
}

/// As [`ledger_key`], for a schedule that may be gone.
pub(super) fn ledger_key_of(
    tenant: u32,
    id: &str,
    incarnation: u64,
    place: (u8, u32, Timestamp),
) -> Vec<u8> {
    let (class, bucket, at) = place;
    let mut key = history_key(class, bucket, tenant, b'O');
    key.extend(id.as_bytes());
    key.push(0);
    key.extend(
        u64::try_from(since_start(at))
            .expect("not negative")
            .to_be_bytes(),
    );
    key.extend(incarnation.to_be_bytes());
    key
}
