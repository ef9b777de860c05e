//! The worker's calls, in both directions.

use crate::api::convert::execution::{cause_out, state_out};
use crate::api::convert::{execution_name, kind, labels, queue_name, stored_json, worker};
use crate::api::issues::{At, Issues};
use crate::command::leases::{LeaseRef, ReportAction, ReportItem};
use crate::command::outcome::{Granted, LostReason, ReportResult};
use crate::ids::{QueueId, WorkerId};
use crate::leader::{Claim, Claimed};
use crate::state::resident::Resident;
use crate::time::{Millis, Timestamp};
use crate::wire::limits::{self, Bound};
use crate::wire::{self, Json};

/// A draw for backoff jitter, one an item.
pub type Draw<'a> = &'a mut dyn FnMut() -> u32;

/// Towards the leader. `None` when something was noted. `queue` is that of the path.
pub fn claim(
    issues: &mut Issues,
    wire: wire::Claim,
    queue: Option<QueueId>,
    draw: Draw<'_>,
) -> Option<Claim> {
    let root = At::Root;
    let worker = required_worker(issues, &wire.worker_id);
    if let Some(id) = &wire.request_id {
        let place = root.key("request_id");
        issues.length(&place, id.len(), &limits::REQUEST_ID_CHARACTERS);
        if !id.bytes().all(|b| b.is_ascii_graphic()) {
            issues.add(&place, "invalid", "must be printable ASCII without blanks");
        }
    }
    let queues = queues(issues, queue, wire.queues);
    let mut number = |name: &str, value: Option<u64>, default: u64, bound: &Bound| {
        value.map_or(default, |v| issues.number(&root.key(name), v, bound))
    };
    let max = number("max", wire.max.map(u64::from), 1, &limits::CLAIM_LEASES);
    let max_bytes = number("max_bytes", wire.max_bytes, 1_048_576, &limits::CLAIM_BYTES);
    let wait = number("wait_ms", wire.wait_ms, 20_000, &limits::WAIT_MS);
    let lease = number("lease_ms", wire.lease_ms, 30_000, &limits::LEASE_MS);
    let slots = wire
        .slots
        .map(|n| issues.count(&root.key("slots"), n, &limits::CLAIM_SLOTS));
    let kinds = wire.kinds.map(|list| {
        let place = root.key("kinds");
        issues.length(&place, list.len(), &limits::CLAIM_KINDS);
        list.iter()
            .enumerate()
            .filter_map(|(i, text)| kind(issues, &place.index(i), text))
            .collect()
    });
    let start_confirmation = wire.start_confirmation_ms.map(|v| {
        let place = root.key("start_confirmation_ms");
        Millis(issues.number(&place, v, &limits::START_CONFIRMATION_MS))
    });
    let labels = labels(issues, &root.key("labels"), wire.labels);
    let reports = report_items(issues, &root.key("reports"), wire.reports, draw);
    if !issues.is_empty() {
        return None;
    }
    Some(Claim {
        worker: worker?,
        request_id: wire.request_id,
        queues,
        max: u32::try_from(max).unwrap_or(1),
        max_bytes,
        wait: Millis(wait),
        lease: Millis(lease),
        slots,
        kinds,
        labels,
        start_confirmation,
        reports,
    })
}

/// The worker of a call, which must be there.
pub fn required_worker(issues: &mut Issues, text: &str) -> Option<WorkerId> {
    let root = At::Root;
    let place = root.key("worker_id");
    if text.is_empty() {
        issues.add(&place, "required", "is required");
        return None;
    }
    worker(issues, &place, text)
}

fn queues(issues: &mut Issues, path: Option<QueueId>, body: Option<Vec<String>>) -> Vec<QueueId> {
    let root = At::Root;
    let place = root.key("queues");
    match (path, body) {
        (Some(_), Some(_)) => {
            let detail = "the path names the queue; use /v1/leases:claim for several";
            issues.add(&place, "contradicts_path", detail);
            Vec::new()
        }
        (Some(queue), None) => vec![queue],
        (None, None) => {
            issues.add(
                &place,
                "required",
                "is required where the path names no queue",
            );
            Vec::new()
        }
        (None, Some(list)) => {
            issues.length(&place, list.len(), &limits::CLAIM_QUEUES);
            list.iter()
                .enumerate()
                .filter_map(|(i, text)| queue_name(issues, &place.index(i), text))
                .collect()
        }
    }
}

/// One item of any of the five calls, with the fields that its call has.
#[derive(Debug, Default)]
struct Item {
    execution_id: String,
    attempt: u32,
    fencing_token: u64,
}

fn reference(issues: &mut Issues, at: &At<'_>, item: &Item) -> Option<LeaseRef> {
    if item.execution_id.is_empty() {
        issues.add(&at.key("execution_id"), "required", "is required");
    }
    if item.attempt == 0 {
        issues.add(&at.key("attempt"), "required", "is required, from 1");
    }
    if item.fencing_token == 0 {
        issues.add(&at.key("fencing_token"), "required", "is required, above 0");
    }
    let execution = match item.execution_id.as_str() {
        "" => None,
        text => execution_name(issues, &at.key("execution_id"), text),
    };
    Some(LeaseRef {
        execution: execution?,
        attempt: item.attempt,
        fencing_token: item.fencing_token,
    })
}

/// Converts every item of a list that is not empty and not too long.
fn each<T>(
    issues: &mut Issues,
    at: &At<'_>,
    items: Vec<T>,
    mut convert: impl FnMut(&mut Issues, &At<'_>, T) -> (Item, ReportAction),
) -> Vec<ReportItem> {
    issues.length(at, items.len(), &limits::BATCH_ITEMS);
    let mut out = Vec::with_capacity(items.len());
    for (i, item) in items.into_iter().enumerate() {
        let place = at.index(i);
        let (item, action) = convert(issues, &place, item);
        if let Some(lease) = reference(issues, &place, &item) {
            out.push(ReportItem { lease, action });
        }
    }
    out
}

/// Items of a renewal.
pub fn renewals(issues: &mut Issues, wire: Vec<wire::RenewItem>) -> Vec<ReportItem> {
    let root = At::Root;
    each(issues, &root.key("leases"), wire, |issues, at, wire| {
        let progress = stored_json(
            issues,
            &at.key("progress"),
            &wire.progress,
            &limits::PROGRESS_BYTES,
        );
        let action = ReportAction::Renew {
            duration: wire
                .lease_ms
                .map(|ms| Millis(issues.number(&at.key("lease_ms"), ms, &limits::LEASE_MS))),
            progress: (!wire.progress.is_null()).then_some(progress),
        };
        (
            item(wire.execution_id, wire.attempt, wire.fencing_token),
            action,
        )
    })
}

fn item(execution_id: String, attempt: u32, fencing_token: u64) -> Item {
    Item {
        execution_id,
        attempt,
        fencing_token,
    }
}

/// Items of a completion.
pub fn completions(issues: &mut Issues, wire: Vec<wire::CompleteItem>) -> Vec<ReportItem> {
    let root = At::Root;
    each(issues, &root.key("leases"), wire, |issues, at, wire| {
        let action = complete(issues, at, &wire.result);
        (
            item(wire.execution_id, wire.attempt, wire.fencing_token),
            action,
        )
    })
}

fn complete(issues: &mut Issues, at: &At<'_>, result: &Json) -> ReportAction {
    ReportAction::Complete {
        result: stored_json(issues, &at.key("result"), result, &limits::RESULT_BYTES),
        truncated: false,
    }
}

/// Items of a failure.
pub fn failures(issues: &mut Issues, wire: Vec<wire::FailItem>, draw: Draw<'_>) -> Vec<ReportItem> {
    let root = At::Root;
    each(issues, &root.key("leases"), wire, |issues, at, wire| {
        let action = fail(
            issues,
            at,
            wire.error,
            (wire.retryable, wire.retry_in_ms),
            draw(),
        );
        (
            item(wire.execution_id, wire.attempt, wire.fencing_token),
            action,
        )
    })
}

fn fail(
    issues: &mut Issues,
    at: &At<'_>,
    error: Option<wire::WorkerError>,
    (retryable, retry_in_ms): (Option<bool>, Option<u64>),
    draw: u32,
) -> ReportAction {
    let error_type = error.as_ref().and_then(|e| e.kind.clone());
    if let Some(kind) = &error_type {
        let place = at.key("error");
        issues.length(&place.key("type"), kind.len(), &limits::ERROR_TYPE_BYTES);
    }
    let retry_in = retry_in_ms
        .map(|ms| Millis(issues.number(&at.key("retry_in_ms"), ms, &limits::BACKOFF_MS)));
    let (error, truncated) = error.map(stored_error).unwrap_or_default();
    ReportAction::Fail {
        error,
        error_type,
        retryable: retryable.unwrap_or(true),
        retry_in,
        draw,
        truncated,
    }
}

/// The stored text of a worker's error, cut to its bound: details go first, then the end of the message.
fn stored_error(mut error: wire::WorkerError) -> (Vec<u8>, bool) {
    let max = usize::try_from(limits::ERROR_BYTES.max).unwrap_or(usize::MAX);
    let text = |error: &wire::WorkerError| serde_json::to_vec(error).unwrap_or_default();
    let whole = text(&error);
    if whole.len() <= max {
        return (whole, false);
    }
    error.details = Json::null();
    let mut cut = text(&error);
    while cut.len() > max {
        let message = error.message.take().unwrap_or_default();
        // Escapes make the text up to six times longer than the message, so cut in proportion.
        let keep = message.len().saturating_mul(max) / cut.len().max(1);
        let keep = keep.saturating_sub(16);
        let end = (0..=keep)
            .rev()
            .find(|at| message.is_char_boundary(*at))
            .unwrap_or(0);
        error.message = Some(message.get(..end).unwrap_or_default().to_owned());
        cut = text(&error);
        if end == 0 {
            break;
        }
    }
    (cut, true)
}

/// Items of a release.
pub fn releases(
    issues: &mut Issues,
    wire: Vec<wire::ReleaseItem>,
    draw: Draw<'_>,
) -> Vec<ReportItem> {
    let root = At::Root;
    each(issues, &root.key("leases"), wire, |issues, at, wire| {
        let action = release(issues, at, (wire.delay_ms, wire.reason), draw());
        (
            item(wire.execution_id, wire.attempt, wire.fencing_token),
            action,
        )
    })
}

fn release(
    issues: &mut Issues,
    at: &At<'_>,
    (delay_ms, reason): (Option<u64>, Option<String>),
    draw: u32,
) -> ReportAction {
    if let Some(reason) = &reason {
        issues.length(&at.key("reason"), reason.len(), &limits::REASON_BYTES);
    }
    ReportAction::Release {
        delay: Millis(delay_ms.map_or(0, |ms| {
            issues.number(&at.key("delay_ms"), ms, &limits::RELEASE_DELAY_MS)
        })),
        reason,
        draw,
    }
}

/// Items of a report, inside a claim (`reports`) or alone (`leases`). An empty list inside a claim is no error.
pub fn report_items(
    issues: &mut Issues,
    at: &At<'_>,
    wire: Vec<wire::ReportItem>,
    draw: Draw<'_>,
) -> Vec<ReportItem> {
    if wire.is_empty() && matches!(at, At::Key(_, "reports")) {
        return Vec::new();
    }
    each(issues, at, wire, |issues, at, wire| {
        let action = match wire.action {
            Some(wire::ReportAction::Complete) => complete(issues, at, &wire.result),
            Some(wire::ReportAction::Fail) => {
                let hints = (wire.retryable, wire.retry_in_ms);
                fail(issues, at, wire.error.clone(), hints, draw())
            }
            Some(wire::ReportAction::Release) => {
                release(issues, at, (wire.delay_ms, wire.reason.clone()), draw())
            }
            None => {
                let detail = "is required: complete, fail or release";
                issues.add(&at.key("action"), "required", detail);
                complete(issues, at, &Json::null())
            }
        };
        only_own_fields(issues, at, &wire);
        (
            item(wire.execution_id, wire.attempt, wire.fencing_token),
            action,
        )
    })
}

/// A field of another action is a mistake that would otherwise be ignored.
fn only_own_fields(issues: &mut Issues, at: &At<'_>, wire: &wire::ReportItem) {
    use wire::ReportAction::{Complete, Fail, Release};
    let Some(action) = wire.action else { return };
    let given = [
        ("result", !wire.result.is_null(), Complete),
        ("error", wire.error.is_some(), Fail),
        ("retryable", wire.retryable.is_some(), Fail),
        ("retry_in_ms", wire.retry_in_ms.is_some(), Fail),
        ("delay_ms", wire.delay_ms.is_some(), Release),
        ("reason", wire.reason.is_some(), Release),
    ];
    for (name, given, belongs) in given {
        if given && belongs != action {
            let detail = format!("belongs to {belongs:?}, not to {action:?}").to_lowercase();
            issues.add(&at.key(name), "invalid", detail);
        }
    }
}

/// The answer to a claim.
#[must_use]
pub fn claimed_out(
    claimed: &Claimed,
    reports: &[LeaseRef],
    resident: &Resident,
) -> wire::ClaimResult {
    let leases = claimed.leases.iter().enumerate().map(|(i, granted)| {
        let body = claimed.bodies.get(i).and_then(Option::as_deref);
        let ends_at = claimed.deadlines.get(i).copied();
        lease_out(granted, body, (claimed.now, ends_at), resident)
    });
    wire::ClaimResult {
        leases: leases.collect(),
        reports: results_out(reports, &claimed.reports),
        replayed: claimed.replayed,
        drain: claimed.drain,
        poll_after_ms: claimed.poll_after.0,
        server_time: Some(claimed.now.into()),
    }
}

fn lease_out(
    granted: &Granted,
    body: Option<&[u8]>,
    (now, ends_at): (Timestamp, Option<Timestamp>),
    resident: &Resident,
) -> wire::Lease {
    let (lease, row) = (&granted.lease, &granted.execution);
    let template = &row.template;
    let occurrence = row.occurrence.as_ref();
    let ends_at = ends_at.unwrap_or(lease.deadline_at);
    let deadline_at = match (lease.attempt_deadline_at, lease.total_deadline_at) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    let started = row.started_at.unwrap_or(lease.granted_at);
    wire::Lease {
        execution_id: row.id.to_string(),
        attempt: lease.attempt,
        fencing_token: lease.fencing_token,
        schedule_id: occurrence.map(|o| o.schedule.to_string()),
        generation: occurrence.map(|o| o.generation),
        tenant: tenant_name(resident, row.tenant),
        queue: queue_name_of(resident, row.queue),
        kind: template.kind.to_string(),
        cause: cause_out(row.cause),
        payload: Json::from_stored(body.unwrap_or(&template.payload)),
        lease_ms: lease.duration.0,
        expires_in_ms: ends_at.since(now).0,
        lease_expires_at: Some(ends_at.into()),
        nominal_at: occurrence.and_then(|o| o.nominal_at).map(Into::into),
        due_at: Some(row.due_at.into()),
        lateness_ms: started.since(row.due_at).0,
        deadline_at: deadline_at.map(Into::into),
        max_attempts: template.retry.max_attempts,
        previous_error: row
            .attempts
            .last()
            .map_or_else(Json::null, |a| Json::from_stored(&a.error)),
        progress: Json::from_stored(&row.progress),
        labels: template.labels.clone(),
        traceparent: row.traceparent.clone(),
    }
}

/// Name of a tenant; its number for one that is gone.
#[must_use]
pub fn tenant_name(resident: &Resident, no: crate::ids::TenantNo) -> String {
    let row = resident.tenants.get(&no);
    row.map_or_else(|| no.0.to_string(), |t| t.id.to_string())
}

/// Name of a queue; its number for one that is gone.
#[must_use]
pub fn queue_name_of(resident: &Resident, no: crate::ids::QueueNo) -> String {
    let name = resident.queue_name(no);
    name.map_or_else(|| no.0.to_string(), ToString::to_string)
}

/// Answers to items, in request order.
#[must_use]
pub fn results_out(items: &[LeaseRef], results: &[ReportResult]) -> Vec<wire::ReportResult> {
    let lost = ReportResult::LeaseLost {
        reason: LostReason::Unknown,
    };
    items
        .iter()
        .enumerate()
        .map(|(i, item)| result_out(item, results.get(i).unwrap_or(&lost)))
        .collect()
}

fn result_out(item: &LeaseRef, result: &ReportResult) -> wire::ReportResult {
    let base = wire::ReportResult {
        execution_id: item.execution.to_string(),
        attempt: item.attempt,
        fencing_token: item.fencing_token,
        ..wire::ReportResult::default()
    };
    match result {
        ReportResult::Ok {
            replayed,
            state,
            expires_in,
            cancel_requested,
            next_attempt_at,
            final_reason,
        } => wire::ReportResult {
            status: wire::ReportStatus::Ok,
            replayed: Some(*replayed),
            state: Some(state_out(*state)),
            expires_in_ms: expires_in.map(|m| m.0),
            cancel_requested: Some(*cancel_requested),
            next_attempt_at: next_attempt_at.map(Into::into),
            final_reason: final_reason.map(|r| r.as_str().to_owned()),
            ..base
        },
        ReportResult::LeaseLost { reason } => wire::ReportResult {
            status: wire::ReportStatus::LeaseLost,
            reason: Some(reason.as_str().to_owned()),
            ..base
        },
    }
}

#[cfg(test)]
mod tests;
