//! Reports that wait to be sent.
//!
//! Callers: `worker::run`. Invariant: an item leaves the queue only when the server has answered it, or when its
//! lease has been over for [`KEPT_AFTER`].

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::{Outcome, RESULT_MAX};
use crate::wire::limits::{self, Bound};
use crate::wire::{Json, LeaseRef, ReportAction, ReportItem, WorkerError};

/// Most reports in one call.
const BATCH_MAX: usize = 500;
/// Most bytes of them; far below the body's bound of 8 MiB.
const BATCH_BYTES: usize = 2 << 20;
/// How long after the end of its lease a report is still tried: a repeat of one that arrived is answered with `ok`.
const KEPT_AFTER: Duration = Duration::from_secs(60);

struct Waiting {
    item: ReportItem,
    bytes: usize,
    until: Instant,
}

/// Reports in the order in which handlers ended.
#[derive(Default)]
pub(super) struct Reports {
    waiting: VecDeque<Waiting>,
    /// Send one at a time: a batch was refused, and the others must not suffer for one bad item.
    one_by_one: usize,
}

/// Reports on their way.
#[derive(Default)]
pub(super) struct Sent(Vec<Waiting>);

impl Sent {
    pub(super) fn items(&self) -> Vec<ReportItem> {
        self.0.iter().map(|w| w.item.clone()).collect()
    }

    pub(super) fn references(&self) -> impl Iterator<Item = LeaseRef> + '_ {
        self.0.iter().map(|w| reference(&w.item))
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Reports {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn push(&mut self, lease: &LeaseRef, outcome: Outcome, deadline: Instant) {
        let item = item(lease, outcome);
        self.waiting.push_back(Waiting {
            bytes: item.result.text().len() + item.error.as_ref().map_or(0, error_bytes) + 512,
            item,
            until: deadline + KEPT_AFTER,
        });
    }

    /// What one call takes.
    pub(super) fn take(&mut self) -> Sent {
        let max = if self.one_by_one > 0 { 1 } else { BATCH_MAX };
        let mut sent = Vec::new();
        let mut bytes = 0;
        while sent.len() < max {
            let Some(next) = self.waiting.pop_front() else {
                break;
            };
            bytes += next.bytes;
            if bytes > BATCH_BYTES && !sent.is_empty() {
                self.waiting.push_front(next);
                break;
            }
            sent.push(next);
        }
        self.one_by_one = self.one_by_one.saturating_sub(sent.len());
        Sent(sent)
    }

    /// There was no answer: they wait again, except those whose time is over, which are given back.
    pub(super) fn put_back(&mut self, sent: Sent, now: Instant) -> Vec<LeaseRef> {
        let mut dropped = Vec::new();
        for waiting in sent.0.into_iter().rev() {
            if waiting.until > now {
                self.waiting.push_front(waiting);
            } else {
                dropped.push(reference(&waiting.item));
            }
        }
        dropped
    }

    /// The server refused the call as malformed. A single item is given back as hopeless; several are tried one by one.
    pub(super) fn refused(&mut self, sent: Sent, now: Instant) -> Vec<LeaseRef> {
        if sent.len() == 1 {
            return sent.references().collect();
        }
        self.one_by_one = sent.len();
        self.put_back(sent, now)
    }
}

/// Room that an error takes in a body; escapes may make its message up to six times longer.
fn error_bytes(error: &WorkerError) -> usize {
    6 * error.message.as_ref().map_or(0, String::len) + error.details.text().len()
}

pub(super) fn reference(item: &ReportItem) -> LeaseRef {
    LeaseRef {
        execution_id: item.execution_id.clone(),
        attempt: item.attempt,
        fencing_token: item.fencing_token,
    }
}

fn item(lease: &LeaseRef, outcome: Outcome) -> ReportItem {
    let blank = ReportItem {
        execution_id: lease.execution_id.clone(),
        attempt: lease.attempt,
        fencing_token: lease.fencing_token,
        ..ReportItem::default()
    };
    match outcome {
        Outcome::Success { result } => ReportItem {
            action: Some(ReportAction::Complete),
            result: bounded(result),
            ..blank
        },
        Outcome::Failure {
            error,
            retryable,
            retry_in,
        } => ReportItem {
            action: Some(ReportAction::Fail),
            error: Some(bounded_error(error)),
            retryable: Some(retryable),
            retry_in_ms: retry_in.map(|d| millis(d).min(limits::BACKOFF_MS.max)),
            ..blank
        },
        Outcome::Release { delay, reason } => ReportItem {
            action: Some(ReportAction::Release),
            delay_ms: Some(millis(delay).min(limits::RELEASE_DELAY_MS.max)),
            reason: Some(cut(reason, &limits::REASON_BYTES)),
            ..blank
        },
    }
}

/// The work is done: a result that is too long must not turn it into a failure, so a note takes its place.
fn bounded(result: Json) -> Json {
    let bytes = result.text().len();
    if bytes <= RESULT_MAX {
        return result;
    }
    let note = serde_json::json!({"result_left_out": true, "bytes": bytes, "max": RESULT_MAX});
    Json::from_value(&note).unwrap_or_default()
}

/// An error that the server takes. A report that is refused would leave the lease to expire, and the work would be done
/// again although how it ended is known.
fn bounded_error(error: WorkerError) -> WorkerError {
    let details = match fits(error.details.text(), &limits::ERROR_BYTES) {
        true => error.details,
        false => Json::null(),
    };
    WorkerError {
        kind: error
            .kind
            .filter(|kind| !kind.is_empty())
            .map(|kind| cut(kind, &limits::ERROR_TYPE_BYTES)),
        message: error
            .message
            .map(|message| cut(message, &limits::ERROR_BYTES)),
        details,
    }
}

fn fits(text: &str, bound: &Bound) -> bool {
    u64::try_from(text.len()).is_ok_and(|length| length <= bound.max)
}

/// The beginning of a text that is too long, with a mark at its end.
fn cut(mut text: String, bound: &Bound) -> String {
    const MARK: &str = "…";
    if fits(&text, bound) {
        return text;
    }
    let max = usize::try_from(bound.max).unwrap_or(usize::MAX) - MARK.len();
    let end = (0..=max).rev().find(|at| text.is_char_boundary(*at));
    text.truncate(end.unwrap_or(0));
    text.push_str(MARK);
    text
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}
