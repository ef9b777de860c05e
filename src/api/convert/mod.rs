//! Between the types of `wire` and those of `model` and `command`.
//!
//! Purpose: validation with the place of every wrong field (towards the model), and concrete values for every default
//! (towards answers). Callers: `api::actions`, handlers. Invariants:
//! 1. Bounds come from `wire::limits` only.
//! 2. What goes out reads back: a `PUT` of what a `GET` answered is the same definition.

pub mod audit;
pub mod execution;
pub mod lease;
pub mod policy;
pub mod queue;
pub mod rule;
pub mod schedule;

use std::collections::BTreeMap;

use crate::api::issues::{At, Issues};
use crate::ids::{ExecutionId, InvalidName, Kind, QueueId, ScheduleId, TenantId, WorkerId};
use crate::model::policy::PauseInfo;
use crate::wire::limits::{self, Bound};
use crate::wire::{self, Json};

/// A name, noted when it is none.
fn name<T>(
    issues: &mut Issues,
    at: &At<'_>,
    text: &str,
    make: fn(&str) -> Result<T, InvalidName>,
) -> Option<T> {
    match make(text) {
        Ok(name) => Some(name),
        Err(why) => {
            issues.add(at, "invalid_name", why.to_string());
            None
        }
    }
}

/// A tenant's name.
pub fn tenant(issues: &mut Issues, at: &At<'_>, text: &str) -> Option<TenantId> {
    name(issues, at, text, TenantId::new)
}

/// A queue's name.
pub fn queue_name(issues: &mut Issues, at: &At<'_>, text: &str) -> Option<QueueId> {
    name(issues, at, text, QueueId::new)
}

/// A schedule's name.
pub fn schedule_name(issues: &mut Issues, at: &At<'_>, text: &str) -> Option<ScheduleId> {
    name(issues, at, text, ScheduleId::new)
}

/// An execution's name.
pub fn execution_name(issues: &mut Issues, at: &At<'_>, text: &str) -> Option<ExecutionId> {
    name(issues, at, text, ExecutionId::new)
}

/// A kind.
pub fn kind(issues: &mut Issues, at: &At<'_>, text: &str) -> Option<Kind> {
    name(issues, at, text, Kind::new)
}

/// A worker's name.
pub fn worker(issues: &mut Issues, at: &At<'_>, text: &str) -> Option<WorkerId> {
    name(issues, at, text, WorkerId::new)
}

/// A value given twice, in path and body, must be the same.
pub fn same_as_path(issues: &mut Issues, at: &At<'_>, body: Option<&str>, path: &str) {
    if let Some(body) = body.filter(|b| *b != path) {
        let detail = format!("is {body:?}, but the path says {path:?}");
        issues.add(at, "contradicts_path", detail);
    }
}

/// A key of the caller's own: not empty, no control characters, bounded.
pub fn key(issues: &mut Issues, at: &At<'_>, text: &str) -> String {
    issues.length(at, text.len(), &limits::KEY_BYTES);
    if let Some(bad) = text.chars().find(|c| c.is_control()) {
        issues.add(at, "invalid", format!("has the control character {bad:?}"));
    }
    text.to_owned()
}

/// Labels or requirements.
pub fn labels(
    issues: &mut Issues,
    at: &At<'_>,
    labels: Option<BTreeMap<String, String>>,
) -> BTreeMap<String, String> {
    let labels = labels.unwrap_or_default();
    issues.length(at, labels.len(), &limits::LABELS);
    for (name, value) in &labels {
        let place = at.key(name);
        issues.length(&place, name.len(), &limits::LABEL_KEY_BYTES);
        issues.length(&place, value.len(), &limits::LABEL_VALUE_BYTES);
        if let Some(bad) = name.chars().chain(value.chars()).find(|c| c.is_control()) {
            issues.add(
                &place,
                "invalid",
                format!("has the control character {bad:?}"),
            );
        }
        if name.contains('=') {
            issues.add(&place, "invalid", "a label's name may not hold \"=\"");
        }
    }
    labels
}

/// JSON text to be stored; `null` is stored as nothing. Too long is noted as `too_large`.
pub fn stored_json(issues: &mut Issues, at: &At<'_>, json: &Json, bound: &Bound) -> Vec<u8> {
    if json.is_null() {
        return Vec::new();
    }
    let text = json.text();
    let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
    if length > bound.max {
        let detail = format!(
            "has {length} bytes; the maximum is {} ({} of /v1/limits)",
            bound.max,
            bound.name.to_ascii_lowercase()
        );
        issues.add(at, "too_large", detail);
        return Vec::new();
    }
    text.as_bytes().to_vec()
}

/// A pause, as answered.
#[must_use]
pub fn paused(pause: &PauseInfo) -> wire::Paused {
    wire::Paused {
        by: pause.by.clone(),
        reason: pause.reason.clone(),
        since: pause.since.into(),
        until: pause.until.map(Into::into),
    }
}
