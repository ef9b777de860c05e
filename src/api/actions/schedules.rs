//! Actions on schedules.

use std::sync::Arc;

use crate::api::Api;
use crate::api::actions::{Done, Purpose, ROUNDS};
use crate::api::call::Call;
use crate::api::convert::policy::overlap_kind;
use crate::api::convert::rule::RuleContext;
use crate::api::convert::schedule::{Definition, definition};
use crate::api::convert::stored_json;
use crate::api::issues::{At, Issues};
use crate::api::locks::Held;
use crate::api::problem::{Code, Error};
use crate::api::reads::tenant_no;
use crate::calendar::Compiled;
use crate::command::outcome::{Refusal, Written};
use crate::command::schedules::{
    DeleteSchedule, PauseSchedule, Plan, PutSchedule, ResumeSchedule, ScheduleCommand,
    TriggerSchedule,
};
use crate::command::{Command, Expect};
use crate::ids::{ScheduleId, TenantId, TenantNo};
use crate::leader::planner::{self, CatchUp, Decision, identity};
use crate::model::policy::PastPolicy;
use crate::model::rule::When;
use crate::model::schedule::{Schedule, ScheduleState, ScheduleStatus, SkipReason, SkipRecord};
use crate::time::{Millis, Timestamp};
use crate::wire;
use crate::wire::limits;

/// Where counting of dropped occurrences stops.
const DROPPED_COUNT_MAX: u64 = 1_000_000;

/// What a caller wants a schedule to be.
#[derive(Clone)]
pub struct Put {
    /// Owner.
    pub tenant: TenantId,
    /// Name.
    pub id: ScheduleId,
    /// Definition, as sent.
    pub body: wire::Schedule,
    /// What must hold.
    pub expect: Expect,
    /// Occurrences already due are dropped instead of run.
    pub drops_pending: bool,
    /// Who, why, under which key.
    pub purpose: Purpose,
}

/// A planned put.
pub struct Planned {
    /// The command.
    pub command: PutSchedule,
    /// The definition.
    pub definition: Definition,
    /// What it would do.
    pub written: Written,
    /// When it was planned.
    pub now: Timestamp,
}

/// A schedule as the action read it.
type Present = Option<(Schedule, ScheduleStatus)>;

impl Api {
    /// Waits for the turn of a schedule.
    pub(super) async fn hold_schedule(&self, tenant: &TenantId, id: &ScheduleId) -> Held {
        self.locks.hold(format!("schedule {tenant}/{id}")).await
    }

    fn present(&self, tenant: &TenantId, id: &ScheduleId) -> Result<(TenantNo, Present), Error> {
        let reader = self.replica.read();
        let no = tenant_no(&reader, tenant)?;
        Ok((no, reader.schedule(no, id)?))
    }

    /// Creates or replaces a schedule.
    ///
    /// # Errors
    /// Any.
    pub async fn put_schedule(&self, call: &Call, put: Put) -> Result<Done, Error> {
        let _turn = self.hold_schedule(&put.tenant, &put.id).await;
        if let Some(answer) = self.recall(put.purpose.key, put.tenant.as_str())? {
            return Ok(Done::of(answer)?);
        }
        for _ in 0..ROUNDS {
            let planned = self.plan_put(&put).await?;
            let command = ScheduleCommand::Put(Box::new(planned.command));
            let envelope = self.envelope(call, &put.purpose, Command::Schedule(command));
            match self.carry(envelope).await? {
                Err(Refusal::Superseded) => {}
                answer => return Ok(answer?),
            }
        }
        Err(Refusal::Superseded.into())
    }

    /// Plans a put and finds out what it would do. Nothing changes.
    ///
    /// # Errors
    /// Any.
    pub async fn rehearse_put(self: &Arc<Self>, call: &Call, put: &Put) -> Result<Planned, Error> {
        let planned = self.plan_put(put).await?;
        let command = ScheduleCommand::Put(Box::new(planned.command.clone()));
        let envelope = self.envelope(call, &put.purpose, Command::Schedule(command));
        self.rehearse_one(envelope).await?;
        Ok(planned)
    }

    /// Validates and plans a put, after what is due of the present schedule was decided.
    ///
    /// # Errors
    /// Any.
    pub async fn plan_put(&self, put: &Put) -> Result<Planned, Error> {
        for _ in 0..ROUNDS {
            let (no, present) = self.present(&put.tenant, &put.id)?;
            let now = self.scheduler.now();
            let definition = self.define(put, present.as_ref(), now)?;
            let Some((row, status)) = &present else {
                return self.planned(put, definition, None, now);
            };
            let queue = self
                .replica
                .resident()
                .queue_numbers
                .get(&definition.queue)
                .copied();
            let is_same = row.spec == definition.spec && queue == Some(row.queue);
            let is_due = status.next.is_some_and(|next| next.due_at <= now);
            if is_same || put.drops_pending || !is_due {
                return self.planned(put, definition, Some((row, status, is_same)), now);
            }
            self.scheduler.settle(no, put.id.clone()).await?;
        }
        Err(Refusal::Superseded.into())
    }

    fn define(
        &self,
        put: &Put,
        present: Option<&(Schedule, ScheduleStatus)>,
        now: Timestamp,
    ) -> Result<Definition, Error> {
        let mut issues = Issues::default();
        let name = identity(&put.tenant, &put.id);
        let context = RuleContext {
            zones: &self.zones,
            now,
            previous: present.map(|(row, _)| &row.spec.rule),
            identity: &name,
        };
        let found = definition(
            &mut issues,
            &At::Root,
            put.body.clone(),
            (&put.tenant, &put.id),
            context,
        );
        issues.finish()?;
        found.ok_or_else(|| Error::new(Code::Internal, "a definition without issues is missing"))
    }

    fn planned(
        &self,
        put: &Put,
        definition: Definition,
        present: Option<(&Schedule, &ScheduleStatus, bool)>,
        now: Timestamp,
    ) -> Result<Planned, Error> {
        let mut dropped = Vec::new();
        let (plan, written) = match present {
            Some((_, status, true)) => {
                let (cursor, next) = (status.cursor, status.next);
                (Plan { cursor, next }, Written::Unchanged)
            }
            Some((row, status, false)) => {
                let plan = match self.dropped(put, row, status, now)? {
                    Some(record) => {
                        dropped.push(record);
                        planner::plan_dropped(status, &definition.compiled, now)
                    }
                    None => {
                        planner::plan_put(Some(status), &definition.spec, &definition.compiled, now)
                    }
                };
                if !matches!(status.state, ScheduleState::Paused(_)) {
                    check_future(&definition, &plan, now)?;
                }
                (plan, Written::Updated)
            }
            None => {
                let plan = planner::plan_put(None, &definition.spec, &definition.compiled, now);
                check_future(&definition, &plan, now)?;
                (plan, Written::Created)
            }
        };
        let command = PutSchedule {
            tenant: put.tenant.clone(),
            id: put.id.clone(),
            queue: definition.queue.clone(),
            spec: definition.spec.clone(),
            plan,
            seen: present.map(|(row, status, _)| planner::seen(row, status)),
            expect: put.expect,
            dropped,
        };
        Ok(Planned {
            command,
            definition,
            written,
            now,
        })
    }

    /// The record of undecided occurrences that `pending=drop` gives up.
    fn dropped(
        &self,
        put: &Put,
        row: &Schedule,
        status: &ScheduleStatus,
        now: Timestamp,
    ) -> Result<Option<SkipRecord>, Error> {
        let due = status
            .next
            .filter(|next| put.drops_pending && next.due_at <= now);
        let Some(first) = due else { return Ok(None) };
        let former = self.compiled(&put.tenant, row)?;
        let end = now.plus(Millis(1));
        let count = former.count(first.nominal_at, end, DROPPED_COUNT_MAX);
        let last = former
            .prev(end)
            .map_or(first.nominal_at, |fire| fire.nominal);
        Ok(Some(SkipRecord {
            from: first.nominal_at,
            to: last.max(first.nominal_at),
            count: count.n.max(1),
            at_least: count.at_least,
            reason: SkipReason::Superseded,
            blocker: None,
            local: None,
        }))
    }

    /// Deletes a schedule.
    ///
    /// # Errors
    /// Any.
    pub async fn delete_schedule(
        self: &Arc<Self>,
        call: &Call,
        (tenant, id): (TenantId, ScheduleId),
        purpose: Purpose,
        is_dry: bool,
    ) -> Result<Option<Done>, Error> {
        let _turn = self.hold_schedule(&tenant, &id).await;
        if let Some(answer) = self.recall(purpose.key, tenant.as_str())? {
            return Ok(Some(Done::of(answer)?));
        }
        let expect = call.expect(None)?;
        let (no, present) = self.present(&tenant, &id)?;
        if present.is_some() && !is_dry {
            self.scheduler.settle(no, id.clone()).await?;
        }
        let command = ScheduleCommand::Delete(DeleteSchedule { tenant, id, expect });
        let envelope = self.envelope(call, &purpose, Command::Schedule(command));
        match is_dry {
            true => self.rehearse_one(envelope).await.map(|_| None),
            false => self.carry_or_refuse(envelope).await.map(Some),
        }
    }

    /// Pauses a schedule, after what is due was decided.
    ///
    /// # Errors
    /// Any.
    pub async fn pause_schedule(
        self: &Arc<Self>,
        call: &Call,
        (tenant, id): (TenantId, ScheduleId),
        until: Option<Timestamp>,
        purpose: Purpose,
        is_dry: bool,
    ) -> Result<Option<Done>, Error> {
        let _turn = self.hold_schedule(&tenant, &id).await;
        if let Some(answer) = self.recall(purpose.key, tenant.as_str())? {
            return Ok(Some(Done::of(answer)?));
        }
        let now = self.scheduler.now();
        if let Some(until) = until.filter(|until| *until <= now) {
            return Err(in_the_past("/until", until, now));
        }
        let expect = call.expect(None)?;
        let (no, present) = self.present(&tenant, &id)?;
        if present.is_some() && !is_dry {
            self.scheduler.settle(no, id.clone()).await?;
        }
        let command = ScheduleCommand::Pause(PauseSchedule {
            tenant,
            id,
            expect,
            until,
        });
        let envelope = self.envelope(call, &purpose, Command::Schedule(command));
        match is_dry {
            true => self.rehearse_one(envelope).await.map(|_| None),
            false => self.carry_or_refuse(envelope).await.map(Some),
        }
    }

    /// Lets a schedule go on. Answers what was decided about the pause.
    ///
    /// # Errors
    /// Any.
    pub async fn resume_schedule(
        self: &Arc<Self>,
        call: &Call,
        (tenant, id): (TenantId, ScheduleId),
        catch_up: CatchUp,
        purpose: Purpose,
        is_dry: bool,
    ) -> Result<(Option<Done>, Decision), Error> {
        let _turn = self.hold_schedule(&tenant, &id).await;
        if let Some(answer) = self.recall(purpose.key, tenant.as_str())? {
            return Ok((Some(Done::of(answer)?), nothing_decided()));
        }
        let expect = call.expect(None)?;
        for _ in 0..ROUNDS {
            let (_, present) = self.present(&tenant, &id)?;
            let (row, status) = present.ok_or(Refusal::ScheduleNotFound)?;
            let compiled = self.compiled(&tenant, &row)?;
            let decision = match status.state {
                ScheduleState::Paused(_) => {
                    planner::plan_resume(&status, &compiled, self.scheduler.now(), catch_up)
                }
                _ => nothing_decided(),
            };
            let command = ScheduleCommand::Resume(ResumeSchedule {
                tenant: tenant.clone(),
                id: id.clone(),
                expect,
                seen: planner::seen(&row, &status),
                plan: decision.plan,
                steps: decision.steps.clone(),
            });
            let envelope = self.envelope(call, &purpose, Command::Schedule(command));
            if is_dry {
                self.rehearse_one(envelope).await?;
                return Ok((None, decision));
            }
            match self.carry(envelope).await? {
                Err(Refusal::Superseded) => {}
                answer => return Ok((Some(answer?), decision)),
            }
        }
        Err(Refusal::Superseded.into())
    }

    /// Fires a schedule by hand.
    ///
    /// # Errors
    /// Any.
    pub async fn trigger_schedule(
        self: &Arc<Self>,
        call: &Call,
        (tenant, id): (TenantId, ScheduleId),
        body: wire::TriggerSchedule,
        purpose: Purpose,
        is_dry: bool,
    ) -> Result<Option<Done>, Error> {
        let mut issues = Issues::default();
        let root = At::Root;
        let payload = body.payload.map(|json| {
            stored_json(
                &mut issues,
                &root.key("payload"),
                &json,
                &limits::PAYLOAD_BYTES,
            )
        });
        let overlap = body
            .overlap
            .map(|policy| overlap_kind(&mut issues, &root.key("overlap"), policy));
        issues.finish()?;
        if let Some(answer) = self.recall(purpose.key, tenant.as_str())? {
            return Ok(Some(Done::of(answer)?));
        }
        let command = ScheduleCommand::Trigger(TriggerSchedule {
            tenant,
            id,
            payload,
            overlap,
            traceparent: call.traceparent(),
        });
        let envelope = self.envelope(call, &purpose, Command::Schedule(command));
        match is_dry {
            true => self.rehearse_one(envelope).await.map(|_| None),
            false => self.carry_or_refuse(envelope).await.map(Some),
        }
    }
}

fn nothing_decided() -> Decision {
    Decision {
        steps: Vec::new(),
        plan: Plan {
            cursor: Timestamp::MIN,
            next: None,
        },
    }
}

/// A rule without a future is refused at create and update.
fn check_future(definition: &Definition, plan: &Plan, now: Timestamp) -> Result<(), Error> {
    // A rule that counts from ends has no next occurrence while something is open.
    let compiled = &definition.compiled;
    let waits = compiled.after_end().is_some() && compiled.next(now).is_some();
    if plan.next.is_some() || waits {
        return Ok(());
    }
    let spec = &definition.spec;
    if let When::At(at) = spec.rule.when
        && spec.past == PastPolicy::Reject
        && at <= now
    {
        return Err(in_the_past("/rule/at", at, now));
    }
    let mut issues = Issues::default();
    let detail =
        format!("the rule has no occurrence after {now}, which is now: it would never fire");
    issues.add_at("/rule".into(), "no_future_occurrence", detail);
    issues.finish()
}

fn in_the_past(pointer: &str, at: Timestamp, now: Timestamp) -> Error {
    let mut issues = Issues::default();
    let detail = format!("{at} is in the past: it is {now} now");
    issues.add_at(pointer.into(), "in_the_past", detail);
    match issues.finish() {
        Err(error) => error,
        Ok(()) => Error::new(Code::InvalidRequest, "in the past"),
    }
}

/// The next occurrences of a plan, for dry runs; of a rule that counts from ends only the one that is planned.
#[must_use]
pub fn upcoming(plan: &Plan, compiled: &Compiled, count: usize) -> Vec<wire::NextOccurrence> {
    let mut out = Vec::new();
    let mut next = plan.next;
    while let Some(planned) = next.filter(|_| out.len() < count) {
        out.push(wire::NextOccurrence {
            nominal_at: planned.nominal_at.into(),
            due_at: planned.due_at.into(),
            local: compiled.local(planned.nominal_at),
        });
        next = match compiled.after_end() {
            Some(_) => None,
            None => planner::follow(compiled, planned.nominal_at).next,
        };
    }
    out
}
