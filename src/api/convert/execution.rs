//! Executions, in both directions.

use crate::api::convert::schedule::{TemplateWire, template};
use crate::api::convert::{execution_name, key, policy, queue_name};
use crate::api::issues::{At, Issues};
use crate::api::unsupported::Feature;
use crate::command::executions::{OnConflict, SubmitExecution, UniqueKey};
use crate::command::outcome::CancelDid;
use crate::ids::{ExecutionId, QueueId, TenantId};
use crate::model::execution::{Attempt, Cause, Execution, ExecutionState};
use crate::model::lease::Lease;
use crate::state::reader::Found;
use crate::time::Timestamp;
use crate::wire::limits;
use crate::wire::{self, Json};

/// Towards the command. `None` when something was noted. `now` is the cluster's clock; `fingerprint` is given by the
/// caller afterwards.
pub fn submission(
    issues: &mut Issues,
    at: &At<'_>,
    wire: wire::SubmitExecution,
    tenant: &TenantId,
    now: Timestamp,
) -> Option<SubmitExecution> {
    let id = wire
        .execution_id
        .as_deref()
        .map(|text| execution_name(issues, &at.key("execution_id"), text));
    let queue = match wire.queue.as_deref() {
        None => Some(QueueId::default_queue()),
        Some(text) => queue_name(issues, &at.key("queue"), text),
    };
    if wire.after.as_ref().is_some_and(|a| !a.is_empty()) {
        Feature::After.refuse(issues, &at.key("after"));
    }
    let due_at = due_at(issues, at, &wire, now);
    let unique = wire.unique.as_ref().map(|u| {
        let place = at.key("unique");
        UniqueKey {
            key: key(issues, &place.key("key"), &u.key),
            on_conflict: match u.on_conflict.unwrap_or_default() {
                wire::OnConflict::Reject => OnConflict::Reject,
                wire::OnConflict::ReturnExisting => OnConflict::ReturnExisting,
                wire::OnConflict::Replace => OnConflict::Replace,
            },
        }
    });
    let template = template(
        issues,
        at,
        TemplateWire {
            kind: &wire.kind,
            payload: &wire.payload,
            priority: wire.priority,
            concurrency_key: wire.concurrency_key.as_deref(),
            labels: wire.labels,
            requires: wire.requires,
            retry: wire.retry,
            timeouts: wire.timeouts,
        },
    );
    if !issues.is_empty() {
        return None;
    }
    Some(SubmitExecution {
        tenant: tenant.clone(),
        queue: queue?,
        id: match id {
            Some(id) => Some(id?),
            None => None,
        },
        template: template?,
        due_at,
        unique,
        traceparent: None,
        fingerprint: 0,
        replay_of: None,
    })
}

fn due_at(
    issues: &mut Issues,
    at: &At<'_>,
    wire: &wire::SubmitExecution,
    now: Timestamp,
) -> Timestamp {
    if wire.due_at.is_some() && wire.delay.is_some() {
        let detail = "give either due_at or delay";
        issues.add(&at.key("delay"), "contradiction", detail);
    }
    if let Some(delay) = wire.delay {
        return now.plus(issues.span(&at.key("delay"), delay, &limits::DELAY_MS));
    }
    let Some(due_at) = wire.due_at else {
        return now;
    };
    let reject = wire.past == Some(wire::PastPolicy::Reject);
    if reject && due_at.0 < now {
        let detail =
            format!("{due_at} is in the past: it is {now} now, and \"past\" is \"reject\"");
        issues.add(&at.key("due_at"), "in_the_past", detail);
    }
    due_at.0
}

/// What an answer needs beside the rows.
pub struct Shown<'a> {
    /// Name of the tenant.
    pub tenant: &'a TenantId,
    /// Name of the queue.
    pub queue: String,
    /// The payload; `None`: leave it out.
    pub payload: Option<Vec<u8>>,
    /// When the live lease ends unless renewed.
    pub lease_ends_at: Option<Timestamp>,
}

/// Towards answers.
#[must_use]
pub fn execution_out(found: &Found, shown: &Shown<'_>) -> wire::Execution {
    let row = found.execution();
    let mut out = base_out(row, found.state(), shown);
    match found {
        Found::Open(_, lease) => {
            if let Some(lease) = lease {
                out.state_since = Some(lease.granted_at.into());
                out.next_attempt_at = None;
                let started = row.started_at.unwrap_or(lease.granted_at);
                out.started_at = Some(started.into());
                out.lateness_ms = Some(started.since(row.due_at).0);
                out.attempts_started = out.attempts_started.max(lease.attempt);
                if !lease.progress.is_empty() {
                    out.progress = Json::from_stored(&lease.progress);
                }
                out.attempts.push(under_way(lease, shown.lease_ends_at));
            }
        }
        Found::Final(done) => {
            out.finished_at = Some(done.finished_at.into());
            out.final_reason = Some(done.reason.as_str().to_owned());
            out.result = Json::from_stored(&done.result);
            out.truncated = done.truncated;
        }
    }
    out
}

fn base_out(row: &Execution, state: ExecutionState, shown: &Shown<'_>) -> wire::Execution {
    let template = &row.template;
    let occurrence = row.occurrence.as_ref();
    wire::Execution {
        execution_id: row.id.to_string(),
        tenant: shown.tenant.to_string(),
        schedule_id: occurrence.map(|o| o.schedule.to_string()),
        incarnation: occurrence.map(|o| o.incarnation),
        generation: occurrence.map(|o| o.generation),
        kind: template.kind.to_string(),
        queue: shown.queue.clone(),
        cause: cause_out(row.cause),
        payload: shown.payload.as_deref().map(Json::from_stored),
        priority: template.priority,
        concurrency_key: template.concurrency_key.clone(),
        unique_key: row.unique_key.clone(),
        labels: template.labels.clone(),
        requires: template.requires.clone(),
        retry: policy::retry_out(&template.retry),
        timeouts: policy::timeouts_out(&template.timeouts),
        traceparent: row.traceparent.clone(),
        state: state_out(state),
        state_since: Some(row.state_since.into()),
        nominal_at: occurrence.and_then(|o| o.nominal_at).map(Into::into),
        due_at: Some(row.due_at.into()),
        created_at: Some(row.created_at.into()),
        started_at: row.started_at.map(Into::into),
        lateness_ms: row.started_at.map(|at| at.since(row.due_at).0),
        next_attempt_at: row.next_attempt_at.map(Into::into),
        attempts_started: row.attempts_started,
        lease_losses: row.lease_losses,
        releases: row.releases,
        progress: Json::from_stored(&row.progress),
        cancel: row.cancel.as_ref().map(|c| wire::CancelRequested {
            at: c.at.into(),
            by: c.by.clone(),
            reason: c.reason.clone(),
        }),
        replay_of: row.replay_of.as_ref().map(ToString::to_string),
        revision: row.revision.to_string(),
        attempts: row.attempts.iter().map(attempt_out).collect(),
        ..wire::Execution::default()
    }
}

fn attempt_out(attempt: &Attempt) -> wire::Attempt {
    wire::Attempt {
        attempt: attempt.attempt,
        fencing_token: attempt.fencing_token,
        worker_id: attempt.worker.to_string(),
        leased_at: Some(attempt.leased_at.into()),
        ended_at: Some(attempt.ended_at.into()),
        outcome: Some(attempt.outcome.as_str().to_owned()),
        error: Json::from_stored(&attempt.error),
        delay_ms: attempt.delay.map(|d| d.0),
        lease_expires_at: None,
    }
}

fn under_way(lease: &Lease, ends_at: Option<Timestamp>) -> wire::Attempt {
    wire::Attempt {
        attempt: lease.attempt,
        fencing_token: lease.fencing_token,
        worker_id: lease.worker.to_string(),
        leased_at: Some(lease.granted_at.into()),
        lease_expires_at: ends_at.map(Into::into),
        ..wire::Attempt::default()
    }
}

/// Towards answers.
#[must_use]
pub fn state_out(state: ExecutionState) -> wire::ExecutionState {
    match state {
        ExecutionState::Waiting => wire::ExecutionState::Waiting,
        ExecutionState::Ready => wire::ExecutionState::Ready,
        ExecutionState::Leased => wire::ExecutionState::Leased,
        ExecutionState::BackingOff => wire::ExecutionState::BackingOff,
        ExecutionState::Succeeded => wire::ExecutionState::Succeeded,
        ExecutionState::Cancelled => wire::ExecutionState::Cancelled,
        ExecutionState::DeadLettered => wire::ExecutionState::DeadLettered,
        ExecutionState::Expired => wire::ExecutionState::Expired,
    }
}

/// Towards answers.
#[must_use]
pub fn cause_out(cause: Cause) -> wire::Cause {
    match cause {
        Cause::Due => wire::Cause::Due,
        Cause::CatchUp => wire::Cause::CatchUp,
        Cause::Backfill => wire::Cause::Backfill,
        Cause::Triggered => wire::Cause::Triggered,
        Cause::Submitted => wire::Cause::Submitted,
        Cause::Replay => wire::Cause::Replay,
    }
}

/// What a cancel did, with the state now; `state` is what a read after it found.
#[must_use]
pub fn cancelled_out(
    id: &ExecutionId,
    did: CancelDid,
    state: Option<ExecutionState>,
) -> wire::CancelResult {
    let (outcome, known) = match did {
        CancelDid::Cancelled => (wire::Cancelled::Cancelled, ExecutionState::Cancelled),
        CancelDid::Requested => (wire::Cancelled::Requested, ExecutionState::Leased),
        CancelDid::AlreadyFinal(state) => (wire::Cancelled::AlreadyFinal, state),
    };
    wire::CancelResult {
        execution_id: id.to_string(),
        outcome,
        state: state_out(state.unwrap_or(known)),
    }
}

/// Reads a state's word.
#[must_use]
pub fn state_in(word: &str) -> Option<ExecutionState> {
    [
        ExecutionState::Waiting,
        ExecutionState::Ready,
        ExecutionState::Leased,
        ExecutionState::BackingOff,
        ExecutionState::Succeeded,
        ExecutionState::Cancelled,
        ExecutionState::DeadLettered,
        ExecutionState::Expired,
    ]
    .into_iter()
    .find(|state| state.as_str() == word)
}
