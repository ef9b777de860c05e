//! Schedules, in both directions.

use std::collections::BTreeMap;

use crate::api::convert::execution::cause_out;
use crate::api::convert::rule::{RuleContext, rule, rule_out};
use crate::api::convert::{
    key, kind, labels, paused, policy, queue_name, same_as_path, stored_json,
};
use crate::api::issues::{At, Issues};
use crate::api::unsupported::Feature;
use crate::calendar::Compiled;
use crate::ids::{Kind, QueueId, ScheduleId, TenantId};
use crate::leader::planner::local_ends;
use crate::model::execution::{Cause, ExecutionState};
use crate::model::history::LedgerRow;
use crate::model::schedule::{
    JobTemplate, RecentOutcome, Schedule, ScheduleSpec, ScheduleState, ScheduleStatus, SkipRecord,
};
use crate::time::{Millis, Timestamp};
use crate::wire::limits;
use crate::wire::{self, Json};

/// How long a completed schedule is kept unless told otherwise.
const KEEP_FOR: Millis = Millis::days(7);

/// A schedule as a person defined it, checked.
#[derive(Clone, Debug)]
pub struct Definition {
    /// Queue of its executions.
    pub queue: QueueId,
    /// What is stored.
    pub spec: ScheduleSpec,
    /// Its rule, ready to be asked.
    pub compiled: Compiled,
}

/// Towards the model. `None` when something was noted.
pub fn definition(
    issues: &mut Issues,
    at: &At<'_>,
    wire: wire::Schedule,
    (tenant, id): (&TenantId, &ScheduleId),
    context: RuleContext<'_>,
) -> Option<Definition> {
    let (named, owner) = (wire.schedule_id.as_deref(), wire.tenant.as_deref());
    same_as_path(issues, &at.key("schedule_id"), named, id.as_str());
    same_as_path(issues, &at.key("tenant"), owner, tenant.as_str());
    if wire.notify.is_some_and(|n| !n.is_empty()) {
        Feature::Notify.refuse(issues, &at.key("notify"));
    }
    let queue = match wire.queue.as_deref() {
        None => Some(QueueId::default_queue()),
        Some(text) => queue_name(issues, &at.key("queue"), text),
    };
    let description = wire.description.unwrap_or_default();
    let (place, bound) = (at.key("description"), &limits::DESCRIPTION_BYTES);
    issues.length(&place, description.len(), bound);
    let template = template(
        issues,
        at,
        TemplateWire {
            kind: wire.kind.as_deref().unwrap_or(id.as_str()),
            payload: &wire.payload,
            priority: wire.priority,
            concurrency_key: wire.concurrency_key.as_deref(),
            labels: wire.labels,
            requires: wire.requires,
            retry: wire.retry,
            timeouts: wire.timeouts,
        },
    );
    let misfire = policy::misfire(issues, &at.key("misfire"), wire.misfire);
    let overlap = policy::overlap(issues, &at.key("overlap"), wire.overlap);
    let completed = at.key("on_completed");
    let keep_for = wire
        .on_completed
        .and_then(|c| c.keep_for)
        .map_or(KEEP_FOR, |v| {
            issues.span(&completed.key("keep_for"), v, &limits::KEEP_FOR_MS)
        });
    let pause_after_failures = wire.pause_after_failures.map(|n| {
        issues.count(
            &at.key("pause_after_failures"),
            n,
            &limits::PAUSE_AFTER_FAILURES,
        )
    });
    let rule = rule(issues, &at.key("rule"), wire.rule, context);
    if !issues.is_empty() {
        return None;
    }
    let (rule, compiled) = rule?;
    Some(Definition {
        queue: queue?,
        spec: ScheduleSpec {
            description,
            template: template?,
            rule,
            misfire,
            overlap,
            past: policy::past(wire.past),
            keep_for,
            pause_after_failures,
        },
        compiled,
    })
}

/// The part of a schedule or submission that says what to run.
pub struct TemplateWire<'a> {
    /// Handler.
    pub kind: &'a str,
    /// Payload.
    pub payload: &'a Json,
    /// 0–9.
    pub priority: Option<u8>,
    /// Concurrency key.
    pub concurrency_key: Option<&'a str>,
    /// Labels.
    pub labels: Option<BTreeMap<String, String>>,
    /// Requirements.
    pub requires: Option<BTreeMap<String, String>>,
    /// Retries.
    pub retry: Option<wire::RetryPolicy>,
    /// Time-outs.
    pub timeouts: Option<wire::Timeouts>,
}

/// Priority of what names none.
const PRIORITY_DEFAULT: u8 = 5;

/// Towards the model. `None` when the kind is none.
pub fn template(issues: &mut Issues, at: &At<'_>, wire: TemplateWire<'_>) -> Option<JobTemplate> {
    let kind: Option<Kind> = match wire.kind {
        "" => {
            issues.add(&at.key("kind"), "required", "is required");
            None
        }
        text => kind(issues, &at.key("kind"), text),
    };
    let priority = wire.priority.map_or(PRIORITY_DEFAULT, |p| {
        let p = issues.number(&at.key("priority"), u64::from(p), &limits::PRIORITY);
        u8::try_from(p).unwrap_or(PRIORITY_DEFAULT)
    });
    let payload = stored_json(
        issues,
        &at.key("payload"),
        wire.payload,
        &limits::PAYLOAD_BYTES,
    );
    let concurrency_key = wire
        .concurrency_key
        .map(|k| key(issues, &at.key("concurrency_key"), k));
    let labels_model = labels(issues, &at.key("labels"), wire.labels);
    let requires = labels(issues, &at.key("requires"), wire.requires);
    let retry = policy::retry(issues, &at.key("retry"), wire.retry);
    let timeouts = policy::timeouts(issues, &at.key("timeouts"), wire.timeouts);
    Some(JobTemplate {
        kind: kind?,
        payload,
        priority,
        concurrency_key,
        labels: labels_model,
        requires,
        retry,
        timeouts,
    })
}

/// What an answer needs beside the rows.
pub struct Shown<'a> {
    /// Name of the tenant.
    pub tenant: &'a TenantId,
    /// Name of the queue.
    pub queue: String,
    /// Leave the payload out.
    pub basic: bool,
    /// States of open executions, as far as they were read.
    pub open: wire::OpenCounts,
    /// Local time of the next occurrence.
    pub local: Option<String>,
    /// Warnings about the rule.
    pub warnings: Vec<wire::Warning>,
}

/// Towards answers.
#[must_use]
pub fn schedule_out(row: &Schedule, status: &ScheduleStatus, shown: Shown<'_>) -> wire::Schedule {
    wire::Schedule {
        incarnation: Some(row.incarnation),
        generation: Some(row.generation),
        revision: Some(row.revision.to_string()),
        status: Some(status_out(
            row,
            status,
            shown.open,
            shown.local,
            shown.warnings,
        )),
        ..definition_out(row, shown.tenant, shown.queue, shown.basic)
    }
}

/// One definition of a schedule, towards answers; whoever knows says whether it is in force.
#[must_use]
pub fn generation_out(
    row: &Schedule,
    tenant: &TenantId,
    queue: String,
    is_basic: bool,
) -> wire::Generation {
    wire::Generation {
        generation: row.generation,
        current: false,
        since: Some(row.updated_at.into()),
        revision: row.revision.to_string(),
        schedule: definition_out(row, tenant, queue, is_basic),
    }
}

/// What a person defined, without what the server sets.
fn definition_out(
    row: &Schedule,
    tenant: &TenantId,
    queue: String,
    is_basic: bool,
) -> wire::Schedule {
    let spec = &row.spec;
    let template = &spec.template;
    wire::Schedule {
        schedule_id: Some(row.id.to_string()),
        tenant: Some(tenant.to_string()),
        description: Some(spec.description.clone()),
        kind: Some(template.kind.to_string()),
        queue: Some(queue),
        payload: match is_basic {
            true => Json::null(),
            false => Json::from_stored(&template.payload),
        },
        priority: Some(template.priority),
        concurrency_key: template.concurrency_key.clone(),
        labels: Some(template.labels.clone()),
        requires: Some(template.requires.clone()),
        rule: rule_out(&spec.rule),
        misfire: Some(policy::misfire_out(&spec.misfire)),
        overlap: Some(policy::overlap_out(&spec.overlap)),
        past: Some(policy::past_out(spec.past)),
        on_completed: Some(wire::OnCompleted {
            keep_for: Some(spec.keep_for.into()),
        }),
        pause_after_failures: spec.pause_after_failures,
        retry: Some(policy::retry_out(&template.retry)),
        timeouts: Some(policy::timeouts_out(&template.timeouts)),
        notify: Some(BTreeMap::new()),
        ..wire::Schedule::default()
    }
}

fn status_out(
    row: &Schedule,
    status: &ScheduleStatus,
    open: wire::OpenCounts,
    local: Option<String>,
    warnings: Vec<wire::Warning>,
) -> wire::ScheduleStatus {
    let (state, pause, completed_at) = match &status.state {
        ScheduleState::Active => (wire::ScheduleState::Active, None, None),
        ScheduleState::Paused(pause) => (wire::ScheduleState::Paused, Some(paused(pause)), None),
        ScheduleState::Completed { at } => (wire::ScheduleState::Completed, None, Some(*at)),
    };
    let recent: Vec<_> = status.recent.iter().rev().map(outcome_out).collect();
    wire::ScheduleStatus {
        state,
        paused: pause,
        completed_at: completed_at.map(Into::into),
        next: status.next.map(|p| wire::NextOccurrence {
            nominal_at: p.nominal_at.into(),
            due_at: p.due_at.into(),
            local: local.unwrap_or_default(),
        }),
        last: recent.first().cloned(),
        recent,
        open,
        totals: wire::Totals {
            succeeded: status.succeeded,
            dead_lettered: status.dead_lettered,
            cancelled: status.cancelled,
            expired: status.expired,
            skipped: status
                .skipped
                .iter()
                .map(|(reason, n)| (reason.as_str().to_owned(), *n))
                .collect(),
        },
        created_count: status.created_count,
        failures_in_row: status.failures_in_row,
        created_at: Some(row.created_at.into()),
        updated_at: Some(row.updated_at.into()),
        warnings,
        upcoming: Vec::new(),
    }
}

fn outcome_out(outcome: &RecentOutcome) -> wire::LastOutcome {
    wire::LastOutcome {
        nominal_at: outcome.nominal_at.map(Into::into),
        execution_id: outcome.execution.to_string(),
        state: outcome.state.as_str().to_owned(),
        finished_at: Some(outcome.finished_at.into()),
    }
}

/// Adds one open execution to the counts by state.
pub fn count_open(counts: &mut wire::OpenCounts, state: ExecutionState) {
    match state {
        ExecutionState::Waiting => counts.waiting += 1,
        ExecutionState::Ready => counts.ready += 1,
        ExecutionState::Leased => counts.leased += 1,
        ExecutionState::BackingOff => counts.backing_off += 1,
        _ => {}
    }
}

/// What the ledger says of any execution, open or final. `at`: its nominal time; of one fired by hand, when that was.
#[must_use]
pub fn created_out(cause: Cause, incarnation: u64, at: Timestamp) -> wire::OccurrenceRecord {
    let is_manual = cause == Cause::Triggered;
    wire::OccurrenceRecord {
        kind: wire::OccurrenceKind::Execution,
        nominal_at: (!is_manual).then(|| at.into()),
        triggered_at: is_manual.then(|| at.into()),
        count: 1,
        incarnation: Some(incarnation),
        cause: Some(cause_out(cause)),
        ..wire::OccurrenceRecord::default()
    }
}

/// A row of the ledger, towards answers.
#[must_use]
pub fn ledger_out(row: &LedgerRow) -> wire::OccurrenceRecord {
    match row {
        LedgerRow::Ran {
            nominal_at,
            incarnation,
            execution,
            cause,
            state,
            reason,
            ..
        } => wire::OccurrenceRecord {
            execution_id: Some(execution.to_string()),
            state: Some(state.as_str().to_owned()),
            reason: Some(reason.as_str().to_owned()),
            ..created_out(*cause, *incarnation, *nominal_at)
        },
        LedgerRow::Skipped {
            incarnation,
            record,
        } => skipped_out(*incarnation, record),
    }
}

fn skipped_out(incarnation: u64, record: &SkipRecord) -> wire::OccurrenceRecord {
    let ends = record.local.as_deref().map(local_ends);
    wire::OccurrenceRecord {
        kind: wire::OccurrenceKind::Skipped,
        nominal_at: Some(record.from.into()),
        to: Some(record.to.into()),
        count: record.count,
        at_least: record.at_least,
        incarnation: Some(incarnation),
        reason: Some(record.reason.as_str().to_owned()),
        blocker: record.blocker.as_ref().map(ToString::to_string),
        local: ends.map(|(first, _)| first.to_owned()),
        local_last: ends
            .filter(|(a, b)| a != b)
            .map(|(_, last)| last.to_owned()),
        ..wire::OccurrenceRecord::default()
    }
}
