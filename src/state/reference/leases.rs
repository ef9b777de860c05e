//! Leases: granting, reporting, expiring, revoking.

use super::attempts::{Next, lost, repeat, settle};
use super::executions::Name;
use super::retries::take;
use super::{CLASS_HOURS, DAYS_3, DAYS_30, DAYS_90, Model, class_bucket, class_keeping, timer};
use crate::command::leases::{
    ExpireItem, ExpireLeases, GrantItem, GrantLeases, LeaseRef, ReportAction, ReportItem,
    ReportLeases, RevokeCause, RevokeLeases,
};
use crate::command::outcome::{
    GrantRefusal, GrantResult, Granted, LostReason, Outcome, ReportResult,
};
use crate::ids::WorkerId;
use crate::model::execution::{Attempt, AttemptOutcome, Execution, ExecutionState, FinalReason};
use crate::model::lease::Lease;
use crate::time::{Millis, Timestamp};

/// How a lease ends.
pub(super) struct Ending {
    pub(super) outcome: AttemptOutcome,
    pub(super) error: Vec<u8>,
    pub(super) result: Vec<u8>,
    pub(super) truncated: bool,
    pub(super) retryable: bool,
    pub(super) retry_in: Option<Millis>,
    pub(super) delay: Millis,
    pub(super) draw: u32,
}

impl Ending {
    pub(super) fn plain(outcome: AttemptOutcome, draw: u32) -> Self {
        Self {
            outcome,
            error: Vec::new(),
            result: Vec::new(),
            truncated: false,
            retryable: true,
            retry_in: None,
            delay: Millis::ZERO,
            draw,
        }
    }
}

type Followed = (ExecutionState, Option<Timestamp>, Option<FinalReason>);

impl Model {
    /// When a lease ends by itself, and how.
    fn bound(&self, lease: &Lease) -> (Timestamp, AttemptOutcome) {
        let office = self.cluster.took_office_at;
        let confirm = lease.confirm_by_at.map(|by| {
            let window = by.since(lease.granted_at);
            by.max(office.plus(window))
        });
        let bounds = [
            (lease.total_deadline_at, AttemptOutcome::TotalTimeout),
            (lease.attempt_deadline_at, AttemptOutcome::AttemptTimeout),
            (confirm, AttemptOutcome::StartUnconfirmed),
            (
                Some(lease.deadline_at.max(office.plus(lease.duration))),
                AttemptOutcome::LeaseExpired,
            ),
        ];
        let set = bounds
            .into_iter()
            .filter_map(|(at, outcome)| Some((at?, outcome)));
        set.min_by_key(|(at, _)| *at).expect("a deadline")
    }

    pub(super) fn grant(&mut self, command: &GrantLeases) -> Outcome {
        let items = command.items.iter();
        Outcome::Granted(
            items
                .map(|item| match self.grant_one(command, item) {
                    Ok(granted) => GrantResult::Granted(Box::new(granted)),
                    Err(why) => GrantResult::Refused {
                        tenant: item.tenant,
                        execution: item.execution.clone(),
                        why,
                    },
                })
                .collect(),
        )
    }

    fn grant_one(
        &mut self,
        command: &GrantLeases,
        item: &GrantItem,
    ) -> Result<Granted, GrantRefusal> {
        let name = (item.tenant.0, item.execution.to_string());
        let open = self.open.get(&name).ok_or(GrantRefusal::NotReady)?;
        let row = open.row.clone();
        if open.lease.is_some() || row.state != ExecutionState::Ready || row.queue != item.queue {
            return Err(GrantRefusal::NotReady);
        }
        if row.parked {
            return Err(GrantRefusal::KeyFull);
        }
        let had_one_now = row.attempts.iter().any(|a| a.fencing_token == self.token);
        if had_one_now || row.due_key.is_some_and(|key| key.at <= self.now) {
            return Err(GrantRefusal::NotReady);
        }
        if let Err(why) = self.admit(&row) {
            if why == GrantRefusal::KeyFull {
                self.open.get_mut(&name).expect("there").row.parked = true;
            }
            return Err(why);
        }
        let now = self.now;
        let timeouts = row.template.timeouts;
        let lease = Lease {
            tenant: row.tenant,
            execution: row.id.clone(),
            queue: row.queue,
            attempt: row.attempts_started + 1,
            fencing_token: self.token,
            worker: command.worker.clone(),
            request_id: command.request_id.clone(),
            concurrency_key: row.template.concurrency_key.clone(),
            granted_at: now,
            duration: command.duration,
            deadline_at: now.plus(command.duration),
            attempt_deadline_at: timeouts.attempt.map(|d| now.plus(d)),
            total_deadline_at: timeouts
                .total
                .map(|d| row.started_at.unwrap_or(now).plus(d)),
            confirm_by_at: command.start_confirmation.map(|d| now.plus(d)),
            cancel_requested: false,
            progress: Vec::new(),
        };
        let open = self.open.get_mut(&name).expect("there");
        open.lease = Some(lease.clone());
        open.row.due_key = None;
        Ok(Granted {
            lease,
            execution: open.row.clone(),
        })
    }

    fn leased(&self, counts: impl Fn(&Lease) -> bool) -> u64 {
        let leases = self.open.values().filter_map(|open| open.lease.as_ref());
        leases.filter(|lease| counts(lease)).count() as u64
    }

    /// Whether every level admits it; if so its tokens are spent.
    fn admit(&mut self, row: &Execution) -> Result<(), GrantRefusal> {
        let queue = &self.queues[&row.queue.0];
        let tenant = &self.tenants[&row.tenant.0];
        let pauses = [
            self.cluster.paused.as_ref(),
            tenant.paused.as_ref(),
            queue.paused.as_ref(),
            self.cluster.paused_kinds.get(&row.template.kind),
        ];
        if pauses.into_iter().any(|pause| self.holds(pause)) {
            return Err(GrantRefusal::Paused);
        }
        if !self.is_allowed(row.tenant.0, row.queue.0) {
            return Err(GrantRefusal::NotAllowed);
        }
        let name = row
            .template
            .concurrency_key
            .clone()
            .map(|key| (row.tenant.0, key));
        if name
            .as_ref()
            .is_some_and(|name| self.free_slots(name.0, &name.1) == 0)
        {
            return Err(GrantRefusal::KeyFull);
        }
        let in_queue = self.leased(|lease| lease.queue == row.queue);
        if queue.spec.max_leased.is_some_and(|max| in_queue >= max) {
            return Err(GrantRefusal::QueueFull);
        }
        let of_tenant = self.leased(|lease| lease.tenant == row.tenant);
        if tenant.spec.max_leased.is_some_and(|max| of_tenant >= max) {
            return Err(GrantRefusal::TenantFull);
        }
        let limits = name.and_then(|name| self.limits.get(&name).map(|l| (name, l.clone())));
        let rates = [
            (queue.spec.rate, queue.rate_tat_ns),
            (tenant.spec.rate, tenant.rate_tat_ns),
            limits
                .as_ref()
                .map_or((None, 0), |(_, l)| (l.rate, l.tat_ns)),
        ];
        let asked = rates.map(|(rate, tat)| rate.map(|rate| take(&rate, tat, self.now)));
        let refused = asked
            .iter()
            .flatten()
            .filter_map(|taken| taken.as_ref().err());
        if let Some(until) = refused.max() {
            return Err(GrantRefusal::RateLimited { until: *until });
        }
        let [of_queue, of_tenant, of_key] = asked.map(|taken| taken.and_then(Result::ok));
        if let Some(tat) = of_queue {
            self.queues
                .get_mut(&row.queue.0)
                .expect("there")
                .rate_tat_ns = tat;
        }
        if let Some(tat) = of_tenant {
            self.tenants
                .get_mut(&row.tenant.0)
                .expect("there")
                .rate_tat_ns = tat;
        }
        if let (Some(tat), Some((name, _))) = (of_key, limits) {
            self.limits.get_mut(&name).expect("there").tat_ns = tat;
        }
        Ok(())
    }

    // ---- what workers say -------------------------------------------------------------------------------------

    pub(super) fn report(&mut self, command: &ReportLeases) -> Outcome {
        let items = command.items.iter();
        Outcome::Reported(
            items
                .map(|item| self.judge(&command.worker, item))
                .collect(),
        )
    }

    fn judge(&mut self, worker: &WorkerId, item: &ReportItem) -> ReportResult {
        let means = |lease: &Lease| {
            lease.execution == item.lease.execution
                && lease.attempt == item.lease.attempt
                && lease.fencing_token == item.lease.fencing_token
                && lease.worker == *worker
        };
        let found = self
            .open
            .iter()
            .find(|(_, open)| open.lease.as_ref().is_some_and(means));
        let Some((name, open)) = found else {
            return self.judge_past(worker, item);
        };
        let (name, lease) = (name.clone(), open.lease.clone().expect("leased"));
        let fatal = open.row.template.retry.non_retryable.clone();
        let (ends_at, outcome) = self.bound(&lease);
        if self.caller.received_at >= ends_at {
            return lost(outcome);
        }
        let ending = match &item.action {
            ReportAction::Renew { duration, progress } => {
                return self.renew(&name, *duration, progress.clone());
            }
            ReportAction::Complete { result, truncated } => Ending {
                result: result.clone(),
                truncated: *truncated,
                ..Ending::plain(AttemptOutcome::Succeeded, 0)
            },
            ReportAction::Fail {
                error,
                error_type,
                retryable,
                retry_in,
                draw,
                truncated,
            } => Ending {
                error: error.clone(),
                truncated: *truncated,
                retryable: *retryable
                    && !fatal.iter().any(|fatal| Some(fatal) == error_type.as_ref()),
                retry_in: *retry_in,
                ..Ending::plain(AttemptOutcome::Failed, *draw)
            },
            ReportAction::Release {
                delay,
                reason,
                draw,
            } => Ending {
                error: reason
                    .as_ref()
                    .map(|text| format!("{text:?}").into())
                    .unwrap_or_default(),
                delay: *delay,
                ..Ending::plain(AttemptOutcome::Released, *draw)
            },
        };
        let (state, next_attempt_at, final_reason) = self.end_lease(&name, ending);
        ReportResult::Ok {
            replayed: false,
            state,
            expires_in: None,
            cancel_requested: lease.cancel_requested,
            next_attempt_at,
            final_reason,
        }
    }

    fn renew(
        &mut self,
        name: &Name,
        duration: Option<Millis>,
        progress: Option<Vec<u8>>,
    ) -> ReportResult {
        let received_at = self.caller.received_at;
        let mut lease = self.open[name].lease.clone().expect("leased");
        let before = (lease.duration, lease.deadline_at);
        lease.duration = duration.unwrap_or(lease.duration);
        lease.deadline_at = received_at.plus(lease.duration);
        if lease.duration >= before.0 && before.1 > lease.deadline_at {
            lease.deadline_at = before.1;
        }
        lease.confirm_by_at = None;
        lease.progress = progress.unwrap_or(lease.progress);
        let (ends_at, _) = self.bound(&lease);
        let cancel_requested = lease.cancel_requested;
        self.open.get_mut(name).expect("there").lease = Some(lease);
        ReportResult::Ok {
            replayed: false,
            state: ExecutionState::Leased,
            expires_in: Some(ends_at.since(received_at)),
            cancel_requested,
            next_attempt_at: None,
            final_reason: None,
        }
    }

    /// A word on a lease that is over: a repeat, or stale.
    fn judge_past(&self, worker: &WorkerId, item: &ReportItem) -> ReportResult {
        let id = item.lease.execution.as_str();
        let chose = self
            .chosen
            .keys()
            .filter(|(_, name)| name == id)
            .map(|(no, _)| *no);
        let minted = item.lease.execution.minted_tenant().map(|no| no.0);
        for tenant in chose.chain(minted) {
            let name = (tenant, id.to_owned());
            let known = match self.open.get(&name) {
                Some(open) => Some((open.row.clone(), None)),
                None => self.find_lately_ended(&name),
            };
            if let Some((row, reason)) = known
                && let Some(answer) = repeat(&row, reason, worker, item)
            {
                return answer;
            }
        }
        ReportResult::LeaseLost {
            reason: LostReason::Unknown,
        }
    }

    fn find_lately_ended(&self, name: &Name) -> Option<(Execution, Option<FinalReason>)> {
        let (key, done) = self.find_final(name)?;
        let bucket = u32::from_be_bytes(key[1..5].try_into().expect("a bucket"));
        if !self.chosen.contains_key(name) {
            let yesterday = class_bucket(key[0], self.now.minus(Millis::days(1)));
            let in_use = self.queues.values().any(|queue| {
                let kept = queue.spec.retention;
                let class = |own: Option<Millis>, other| own.map_or(other, |d| class_keeping(d.0));
                key[0] == class(kept.succeeded, DAYS_3)
                    || key[0] == class(kept.other, DAYS_30)
                    || key[0] == class(kept.dead_lettered, DAYS_90)
            });
            assert!(usize::from(key[0]) < CLASS_HOURS.len());
            if bucket < yesterday || !in_use {
                return None;
            }
        }
        Some((done.execution, Some(done.reason)))
    }

    // ---- leases that end without a word -----------------------------------------------------------------------

    fn live(&self, item: &ExpireItem) -> Option<(Name, Lease)> {
        let LeaseRef {
            execution,
            attempt,
            fencing_token,
        } = &item.lease;
        let name = (item.tenant.0, execution.to_string());
        let lease = self.open.get(&name)?.lease.clone()?;
        let is_it = lease.attempt == *attempt && lease.fencing_token == *fencing_token;
        is_it.then_some((name, lease))
    }

    pub(super) fn expire(&mut self, command: &ExpireLeases) -> Outcome {
        let mut done = 0;
        for item in &command.items {
            let Some((name, lease)) = self.live(item) else {
                continue;
            };
            let (ends_at, outcome) = self.bound(&lease);
            if ends_at <= self.now {
                self.end_lease(&name, Ending::plain(outcome, item.draw));
                done += 1;
            }
        }
        Outcome::Processed { done }
    }

    pub(super) fn revoke(&mut self, command: &RevokeLeases) -> Outcome {
        let mut done = 0;
        for item in &command.items {
            let Some((name, lease)) = self.live(item) else {
                continue;
            };
            let outcome = match command.cause {
                RevokeCause::Operator => {
                    let target = self.execution_name(name.0, &lease.execution);
                    self.audit(name.0, "lease.revoke", target);
                    AttemptOutcome::Revoked
                }
                RevokeCause::Undelivered => AttemptOutcome::Undelivered,
                RevokeCause::SignOff => AttemptOutcome::Released,
            };
            let mut ending = Ending::plain(outcome, item.draw);
            if let (RevokeCause::Operator, Some(why)) = (command.cause, &self.caller.reason) {
                ending.error = format!("{why:?}").into();
            }
            self.end_lease(&name, ending);
            done += 1;
        }
        Outcome::Processed { done }
    }

    pub(super) fn end_lease(&mut self, name: &Name, ending: Ending) -> Followed {
        let open = self.open.get_mut(name).expect("open");
        let lease = open.lease.take().expect("leased");
        let mut row = open.row.clone();
        settle(&mut row, &lease, ending.outcome);
        let next = self.next(&row, &ending);
        if row.attempts.len() == 20 {
            row.attempts.remove(1);
        }
        row.attempts.push(Attempt {
            attempt: lease.attempt,
            fencing_token: lease.fencing_token,
            worker: lease.worker,
            leased_at: lease.granted_at,
            ended_at: self.now,
            outcome: ending.outcome,
            error: ending.error,
            delay: match next {
                Next::Final(..) => None,
                Next::Again(_, delay) => Some(delay),
            },
        });
        let followed = match next {
            Next::Final(state, reason) => {
                self.open.get_mut(name).expect("open").row = row;
                let result = (ending.result, ending.truncated);
                self.finish_with(name, state, reason, result);
                (state, None, Some(reason))
            }
            Next::Again(_, Millis::ZERO) => {
                let line_at = row.line_at.unwrap_or(row.due_at);
                self.offer(&mut row, line_at);
                self.open.get_mut(name).expect("open").row = row;
                return (ExecutionState::Ready, None, None);
            }
            Next::Again(state, delay) => {
                let at = self.now.plus(delay);
                row.state = state;
                row.state_since = self.now;
                row.next_attempt_at = Some(at);
                row.line_at = None;
                row.parked = false;
                let total = row.template.timeouts.total.zip(row.started_at);
                let end = total.map_or(at, |(total, from)| from.plus(total).min(at));
                row.due_key = Some(timer(self.now, end));
                self.open.get_mut(name).expect("open").row = row;
                (state, Some(at), None)
            }
        };
        if let Some(key) = &lease.concurrency_key {
            self.fill_slot(name.0, key);
        }
        followed
    }
}
