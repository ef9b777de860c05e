//! The end of executions, and what it means for their schedules.

use super::executions::Name;
use super::firing::ledger_key_of;
use super::{
    DAYS_3, DAYS_30, DAYS_90, Model, Open, Record, class_bucket, class_keeping, history_key,
};
use crate::model::execution::{ExecutionState, FinalExecution, FinalReason, StoredPayload};
use crate::model::history::LedgerRow;
use crate::model::policy::PauseInfo;
use crate::model::rule::When;
use crate::model::schedule::{Planned as Next, RecentOutcome, ScheduleState};
use crate::time::Millis;

impl Model {
    /// A final execution that is still kept, with its key.
    pub(super) fn find_final(&self, name: &Name) -> Option<(Vec<u8>, FinalExecution)> {
        let place = self.chosen.get(name).map(|chosen| chosen.history);
        let mut rows = self
            .history
            .iter()
            .filter_map(|(key, record)| match record {
                Record::Final(done) => Some((key, done)),
                _ => None,
            });
        let found = rows.find(|(key, done)| {
            let bucket = u32::from_be_bytes(key[1..5].try_into().expect("a bucket"));
            done.execution.tenant.0 == name.0
                && done.execution.id.as_str() == name.1
                && self.is_kept(key[0], bucket)
                && match place {
                    Some(place) => place == Some((key[0], bucket)),
                    // A watermark that lags does not let reads of minted ids go back without bound.
                    None => class_bucket(key[0], self.now) - bucket <= 31,
                }
        });
        found.map(|(key, done)| (key.clone(), (**done).clone()))
    }

    /// Ends one that has no lease and no result.
    pub(super) fn finish(&mut self, name: &Name, state: ExecutionState, reason: FinalReason) {
        let was_offered = {
            let row = &self.open[name].row;
            row.state == ExecutionState::Ready && !row.parked
        };
        let key = self.open[name].row.template.concurrency_key.clone();
        self.finish_with(name, state, reason, (Vec::new(), false));
        if let Some(key) = key.filter(|_| was_offered) {
            self.fill_slot(name.0, &key);
        }
    }

    pub(super) fn fill_slot(&mut self, tenant: u32, key: &str) {
        let free = self.free_slots(tenant, key).min(1);
        self.promote(tenant, key, free, free + 4);
    }

    pub(super) fn finish_with(
        &mut self,
        name: &Name,
        state: ExecutionState,
        reason: FinalReason,
        result: (Vec<u8>, bool),
    ) {
        let Open { mut row, body, .. } = self.open.remove(name).expect("open");
        if let Some(body) = body {
            row.template.payload = body;
            row.payload = StoredPayload::Inline;
        }
        row.state = state;
        row.state_since = self.now;
        row.next_attempt_at = None;
        row.line_at = None;
        row.parked = false;
        row.due_key = None;
        let retention = self.queues[&row.queue.0].spec.retention;
        let (own, default) = match state {
            ExecutionState::Succeeded => (retention.succeeded, DAYS_3),
            ExecutionState::DeadLettered => (retention.dead_lettered, DAYS_90),
            _ => (retention.other, DAYS_30),
        };
        let class = own.map_or(default, |keep| class_keeping(keep.0));
        let bucket = class_bucket(class, self.now);
        let mut key = history_key(class, bucket, name.0, b'E');
        key.extend(name.1.as_bytes());
        if row.chosen_id {
            let chosen = self.chosen.get_mut(name).expect("there");
            chosen.history = Some((class, bucket));
        }
        let done = FinalExecution {
            execution: row,
            reason,
            finished_at: self.now,
            result: result.0,
            truncated: result.1,
        };
        self.tell_schedule(&done, (class, bucket));
        self.history.insert(key, Record::Final(Box::new(done)));
    }

    fn tell_schedule(&mut self, done: &FinalExecution, place: (u8, u32)) {
        let row = &done.execution;
        let Some(occurrence) = &row.occurrence else {
            return;
        };
        let name = (row.tenant.0, occurrence.schedule.to_string());
        let is_manual = occurrence.nominal_at.is_none();
        let nominal_at = occurrence.nominal_at.unwrap_or(row.created_at);
        let ran = LedgerRow::Ran {
            nominal_at,
            incarnation: occurrence.incarnation,
            execution: row.id.clone(),
            cause: row.cause,
            state: row.state,
            reason: done.reason,
            finished_at: done.finished_at,
        };
        let at = (place.0, place.1, nominal_at);
        let mut key = ledger_key_of(name.0, &name.1, occurrence.incarnation, at);
        if is_manual {
            key.push(0xff);
            key.extend(row.id.as_str().as_bytes());
        }
        self.history.insert(key, Record::Ledger(ran));
        let Some(mut planned) = self.schedules.get(&name).cloned() else {
            return;
        };
        let status = &mut planned.status;
        if !status.open.contains(&row.id) {
            return;
        }
        status.open.retain(|id| *id != row.id);
        match row.state {
            ExecutionState::Succeeded => {
                status.succeeded += 1;
                status.failures_in_row = 0;
            }
            ExecutionState::DeadLettered => {
                status.dead_lettered += 1;
                status.failures_in_row += 1;
            }
            ExecutionState::Expired => status.expired += 1,
            _ => status.cancelled += 1,
        }
        status.recent.push(RecentOutcome {
            nominal_at: occurrence.nominal_at,
            execution: row.id.clone(),
            state: row.state,
            finished_at: done.finished_at,
        });
        let excess = status.recent.len().saturating_sub(10);
        status.recent.drain(..excess);
        self.after_an_end(&mut planned, row.state);
        self.schedules.insert(name, planned);
    }

    /// What the end of an execution changes for its active schedule.
    fn after_an_end(&mut self, planned: &mut super::Planned, state: ExecutionState) {
        if planned.status.state != ScheduleState::Active {
            return;
        }
        let failures = planned.status.failures_in_row;
        let is_over = planned.status.next.is_none() && planned.status.open.is_empty();
        let may_pause = state == ExecutionState::DeadLettered || is_over;
        if may_pause
            && planned
                .row
                .spec
                .pause_after_failures
                .is_some_and(|max| failures >= max)
        {
            let pause = PauseInfo {
                by: "schedule".into(),
                reason: Some(format!("{failures} failures in a row")),
                since: self.now,
                until: None,
            };
            self.stop(planned, pause);
            let tenant = planned.row.tenant.0;
            self.audit(
                tenant,
                "schedule.pause",
                self.schedule_name(tenant, &planned.row.id),
            );
            return;
        }
        if !is_over {
            return;
        }
        planned.status.next = self.after_the_end(planned);
        if planned.status.next.is_none() {
            planned.status.state = ScheduleState::Completed { at: self.now };
        }
        self.wake(planned);
    }

    /// The next occurrence of a rule that counts from the end of the last execution.
    pub(super) fn after_the_end(&self, planned: &super::Planned) -> Option<Next> {
        let rule = &planned.row.spec.rule;
        let When::AfterEnd(delay) = rule.when else {
            return None;
        };
        let mut at = self
            .now
            .plus(delay)
            .max(planned.status.cursor.plus(Millis(1)));
        at = at.max(rule.start_at.unwrap_or(at));
        let is_left = !planned.is_used_up() && rule.end_at.is_none_or(|end| at <= end);
        is_left.then_some(Next {
            nominal_at: at,
            due_at: at,
        })
    }
}
