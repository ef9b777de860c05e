//! Executions outside a lease: creation, lines, due times, cancellation.

use super::{Answer, Chosen, Model, Open, timer};
use crate::command::executions::{
    CancelExecution, CancelMode, DeleteExecution, OnConflict, ProcessDue, SubmitExecution,
};
use crate::command::outcome::{CancelDid, Outcome, Quota, Refusal, Written};
use crate::ids::{ExecutionId, Kind, QueueNo, TenantNo};
use crate::model::execution::{
    AttemptOutcome, CancelRequest, Cause, Execution, ExecutionState, FinalReason, OccurrenceRef,
    StoredPayload,
};
use crate::model::policy::{RetryPolicy, Timeouts};
use crate::model::schedule::JobTemplate;
use crate::store::due::DueKind;
use crate::time::Timestamp;

/// Tenant number and id.
pub(super) type Name = (u32, String);

/// What a new execution is made of.
pub(super) struct New {
    pub(super) tenant: u32,
    pub(super) queue: u32,
    pub(super) id: Option<ExecutionId>,
    pub(super) occurrence: Option<OccurrenceRef>,
    pub(super) cause: Cause,
    pub(super) template: JobTemplate,
    pub(super) due_at: Timestamp,
    pub(super) unique_key: Option<String>,
    pub(super) traceparent: Option<String>,
    pub(super) fingerprint: u64,
    pub(super) replay_of: Option<ExecutionId>,
}

impl Default for New {
    fn default() -> Self {
        Self {
            tenant: 0,
            queue: 0,
            id: None,
            occurrence: None,
            cause: Cause::Submitted,
            template: JobTemplate {
                kind: Kind::new("none").expect("a kind"),
                payload: Vec::new(),
                priority: 0,
                concurrency_key: None,
                labels: std::collections::BTreeMap::new(),
                requires: std::collections::BTreeMap::new(),
                retry: RetryPolicy::default(),
                timeouts: Timeouts::default(),
            },
            due_at: Timestamp::EPOCH,
            unique_key: None,
            traceparent: None,
            fingerprint: 0,
            replay_of: None,
        }
    }
}

fn total_deadline(row: &Execution) -> Option<Timestamp> {
    Some(row.started_at?.plus(row.template.timeouts.total?))
}

impl Model {
    // ---- creation ---------------------------------------------------------------------------------------------

    pub(super) fn create(&mut self, new: New) -> Result<ExecutionId, Refusal> {
        self.room(new.tenant, Some(new.queue), None)?;
        let minted = new.id.is_none();
        let id = match new.id {
            Some(id) => id,
            None => ExecutionId::mint(self.token, self.slot(), TenantNo(new.tenant)),
        };
        let mut row = Execution {
            tenant: TenantNo(new.tenant),
            id: id.clone(),
            chosen_id: !minted,
            occurrence: new.occurrence,
            cause: new.cause,
            queue: QueueNo(new.queue),
            template: new.template,
            payload: StoredPayload::Inline,
            unique_key: new.unique_key,
            traceparent: new.traceparent,
            fingerprint: new.fingerprint,
            created_at: self.now,
            due_at: new.due_at,
            state: ExecutionState::Waiting,
            state_since: self.now,
            next_attempt_at: None,
            due_key: None,
            line_at: None,
            parked: false,
            attempts_started: 0,
            lease_losses: 0,
            lease_losses_in_row: 0,
            releases: 0,
            started_at: None,
            progress: Vec::new(),
            cancel: None,
            replay_of: new.replay_of,
            attempts: Vec::new(),
            revision: self.revision(),
        };
        let mut body = None;
        if row.template.payload.len() > 1_024 {
            let payload = std::mem::take(&mut row.template.payload);
            let len = u32::try_from(payload.len()).expect("fits");
            row.payload = StoredPayload::Body { len };
            body = Some(payload);
        }
        let name = (new.tenant, id.to_string());
        if !minted {
            let chosen = Chosen {
                fingerprint: row.fingerprint,
                history: None,
            };
            self.chosen.insert(name.clone(), chosen);
        }
        if row.due_at > self.now {
            row.due_key = Some(timer(self.now, row.due_at));
        } else {
            let line_at = row.due_at;
            self.offer(&mut row, line_at);
        }
        let open = Open {
            row,
            lease: None,
            body,
        };
        self.open.insert(name, open);
        Ok(id)
    }

    /// Whether one more may be created, when `leaving` goes first.
    fn room(&self, tenant: u32, queue: Option<u32>, leaving: Option<&Name>) -> Result<(), Refusal> {
        let stays = || self.open.iter().filter(|(name, _)| Some(*name) != leaving);
        let check = |quota, limit: Option<u64>, current: usize| match limit {
            Some(limit) if current as u64 >= limit => Err(Refusal::QuotaExceeded {
                quota,
                limit,
                current: current as u64,
            }),
            _ => Ok(()),
        };
        let open = stays().filter(|(name, _)| name.0 == tenant).count();
        let max = self.tenants[&tenant].spec.open_executions_max;
        check(Quota::OpenExecutions, max, open)?;
        let Some(queue) = queue else {
            return Ok(());
        };
        if !self.is_allowed(tenant, queue) {
            return Err(Refusal::QueueNotAllowed);
        }
        let pending = |open: &Open| {
            open.row.queue.0 == queue
                && open.lease.is_none()
                && open.row.state != ExecutionState::BackingOff
        };
        let pending = stays().filter(|(_, open)| pending(open)).count();
        check(
            Quota::MaxPending,
            self.queues[&queue].spec.max_pending,
            pending,
        )
    }

    pub(super) fn submit(&mut self, command: &SubmitExecution) -> Answer {
        let tenant = self.tenant(&command.tenant)?;
        let answer = |written, execution| {
            Ok(Outcome::Submitted {
                written,
                tenant: TenantNo(tenant),
                execution,
            })
        };
        if let Some(id) = &command.id {
            if id.minted_tenant() == Some(TenantNo(tenant)) {
                return Err(Refusal::IdConflict);
            }
            if let Some(chosen) = self.chosen.get(&(tenant, id.to_string()))
                && chosen
                    .history
                    .is_none_or(|(class, bucket)| self.is_kept(class, bucket))
            {
                return if chosen.fingerprint == command.fingerprint {
                    answer(Written::Existing, id.clone())
                } else {
                    Err(Refusal::IdConflict)
                };
            }
        }
        let leaving = match self.held_by(tenant, command)? {
            Some((_, holder, false)) => return answer(Written::Existing, holder),
            Some((name, _, true)) => Some(name),
            None => None,
        };
        self.may_put_into(&command.tenant, &command.queue)?;
        self.room(tenant, self.queue(&command.queue), leaving.as_ref())?;
        let written = match &leaving {
            Some(name) => {
                self.cancel_waiting(name);
                Written::Replaced
            }
            None => Written::Created,
        };
        let queue = self.queue_for(&command.queue);
        let replay = command.replay_of.is_some();
        let id = self.create(New {
            tenant,
            queue,
            id: command.id.clone(),
            occurrence: None,
            cause: if replay {
                Cause::Replay
            } else {
                Cause::Submitted
            },
            template: command.template.clone(),
            due_at: command.due_at,
            unique_key: command.unique.as_ref().map(|unique| unique.key.clone()),
            traceparent: command.traceparent.clone(),
            fingerprint: command.fingerprint,
            replay_of: command.replay_of.clone(),
        })?;
        answer(written, id)
    }

    /// The holder of the unique key, and whether it gives way.
    fn held_by(
        &self,
        tenant: u32,
        command: &SubmitExecution,
    ) -> Result<Option<(Name, ExecutionId, bool)>, Refusal> {
        let Some(unique) = &command.unique else {
            return Ok(None);
        };
        let mut holders = self.open.iter().filter(|(name, open)| {
            name.0 == tenant && open.row.unique_key.as_ref() == Some(&unique.key)
        });
        let Some((name, open)) = holders.next() else {
            return Ok(None);
        };
        let holder = open.row.id.clone();
        match unique.on_conflict {
            OnConflict::ReturnExisting => Ok(Some((name.clone(), holder, false))),
            OnConflict::Replace if open.lease.is_none() => Ok(Some((name.clone(), holder, true))),
            OnConflict::Reject | OnConflict::Replace => Err(Refusal::UniqueKeyHeld { holder }),
        }
    }

    // ---- lines and due times ----------------------------------------------------------------------------------

    /// Makes it ready, in its line or parked at its key.
    pub(super) fn offer(&self, row: &mut Execution, line_at: Timestamp) {
        row.state = ExecutionState::Ready;
        row.state_since = self.now;
        row.next_attempt_at = None;
        row.line_at = Some(line_at);
        let key = row.template.concurrency_key.as_ref();
        row.parked = key.is_some_and(|key| self.free_slots(row.tenant.0, key) == 0);
        let deadline = match row.started_at {
            None => row
                .template
                .timeouts
                .start
                .map(|start| row.due_at.plus(start)),
            Some(_) => total_deadline(row),
        };
        row.due_key = deadline.map(|at| timer(self.now, at));
    }

    pub(super) fn free_slots(&self, tenant: u32, key: &str) -> u32 {
        let Some(limits) = self.limits.get(&(tenant, key.to_owned())) else {
            return u32::MAX;
        };
        let Some(max) = limits.max_leased else {
            return u32::MAX;
        };
        let uses = |open: &&Open| {
            open.row.tenant.0 == tenant
                && open.lease.is_some()
                && open.row.template.concurrency_key.as_deref() == Some(key)
        };
        let used = self.open.values().filter(uses).count();
        max.saturating_sub(u32::try_from(used).expect("fits"))
    }

    /// Lets the first parked ones of a key into their lines: until `wanted` of them are not held by their queue or kind,
    /// and `most` in all.
    pub(super) fn promote(&mut self, tenant: u32, key: &str, mut wanted: u32, most: u32) {
        let mut parked: Vec<_> = self
            .open
            .iter()
            .filter(|(name, open)| {
                name.0 == tenant
                    && open.lease.is_none()
                    && open.row.parked
                    && open.row.template.concurrency_key.as_deref() == Some(key)
            })
            .map(|(name, open)| {
                let row = &open.row;
                (
                    std::cmp::Reverse(row.template.priority),
                    row.line_at,
                    name.clone(),
                )
            })
            .collect();
        parked.sort();
        for (_, _, name) in parked.into_iter().take(most as usize) {
            if wanted == 0 {
                return;
            }
            if !self.is_held(&self.open[&name].row) {
                wanted -= 1;
            }
            self.open.get_mut(&name).expect("there").row.parked = false;
        }
    }

    /// Whether its queue or its kind lets it not run.
    fn is_held(&self, row: &Execution) -> bool {
        let queue = &self.queues[&row.queue.0];
        let leases = self.open.values().filter_map(|open| open.lease.as_ref());
        let leased = leases.filter(|lease| lease.queue == row.queue).count() as u64;
        self.holds(queue.paused.as_ref())
            || self.holds(self.cluster.paused_kinds.get(&row.template.kind))
            || !self.is_allowed(row.tenant.0, row.queue.0)
            || queue.spec.max_leased.is_some_and(|max| leased >= max)
    }

    pub(super) fn process_due(&mut self, command: &ProcessDue) -> Outcome {
        let mut done = 0;
        for entry in &command.items {
            let name = (entry.tenant.0, entry.id.clone());
            let Some(open) = self.open.get(&name).cloned() else {
                continue;
            };
            if entry.key.at > self.now || open.row.due_key != Some(entry.key) {
                continue;
            }
            let is_over = total_deadline(&open.row).is_some_and(|at| at <= self.now);
            match (open.row.state, entry.kind) {
                (ExecutionState::Waiting | ExecutionState::BackingOff, DueKind::Execution) => {
                    if is_over {
                        self.finish(
                            &name,
                            ExecutionState::DeadLettered,
                            FinalReason::TotalTimeout,
                        );
                    } else {
                        let mut row = open.row;
                        let line_at = row.next_attempt_at.unwrap_or(row.due_at);
                        self.offer(&mut row, line_at);
                        self.open.get_mut(&name).expect("there").row = row;
                    }
                }
                (ExecutionState::Ready, DueKind::StartDeadline) => {
                    if open.row.started_at.is_none() {
                        self.finish(&name, ExecutionState::Expired, FinalReason::StartTimeout);
                    } else {
                        self.finish(
                            &name,
                            ExecutionState::DeadLettered,
                            FinalReason::TotalTimeout,
                        );
                    }
                }
                _ => continue,
            }
            done += 1;
        }
        Outcome::Processed { done }
    }

    // ---- cancellation, deletion -------------------------------------------------------------------------------

    pub(super) fn cancel(&mut self, command: &CancelExecution) -> Answer {
        let tenant = self.tenant(&command.tenant)?;
        let name = (tenant, command.id.to_string());
        let Some(open) = self.open.get(&name).cloned() else {
            let (_, done) = self.find_final(&name).ok_or(Refusal::ExecutionNotFound)?;
            let state = done.execution.state;
            return Ok(Outcome::Cancelled(CancelDid::AlreadyFinal(state)));
        };
        super::demand(command.expect, Some(open.row.revision))?;
        let did = match (open.lease.is_some(), command.mode) {
            (false, _) => {
                self.cancel_waiting(&name);
                CancelDid::Cancelled
            }
            (true, CancelMode::Request) => {
                if open.row.cancel.is_some() {
                    return Ok(Outcome::Cancelled(CancelDid::Requested));
                }
                self.request_cancel(&name);
                let open = self.open.get_mut(&name).expect("there");
                open.lease.as_mut().expect("leased").cancel_requested = true;
                CancelDid::Requested
            }
            (true, CancelMode::Now) => {
                self.request_cancel(&name);
                self.end_lease(
                    &name,
                    super::leases::Ending::plain(AttemptOutcome::Cancelled, 0),
                );
                CancelDid::Cancelled
            }
        };
        self.audit(
            tenant,
            "execution.cancel",
            self.execution_name(tenant, &command.id),
        );
        Ok(Outcome::Cancelled(did))
    }

    fn request_cancel(&mut self, name: &Name) {
        let request = CancelRequest {
            at: self.now,
            by: self.caller.actor.as_str().to_owned(),
            reason: self.caller.reason.clone(),
        };
        let revision = self.revision();
        let row = &mut self.open.get_mut(name).expect("open").row;
        row.revision = revision;
        if row.cancel.is_none() {
            row.cancel = Some(request);
        }
    }

    fn cancel_waiting(&mut self, name: &Name) {
        self.request_cancel(name);
        self.finish(
            name,
            ExecutionState::Cancelled,
            FinalReason::CancelRequested,
        );
    }

    pub(super) fn delete_execution(&mut self, command: &DeleteExecution) -> Answer {
        let tenant = self.tenant(&command.tenant)?;
        let name = (tenant, command.id.to_string());
        if self.open.contains_key(&name) {
            return Err(Refusal::NotFinal);
        }
        let (key, done) = self.find_final(&name).ok_or(Refusal::ExecutionNotFound)?;
        self.history.remove(&key);
        if done.execution.chosen_id {
            self.chosen.remove(&name);
        }
        self.audit(
            tenant,
            "execution.delete",
            self.execution_name(tenant, &command.id),
        );
        Ok(Outcome::Written {
            written: Written::Deleted,
            revision: self.revision(),
        })
    }
}
