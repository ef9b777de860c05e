//! Problem answers: the closed list of codes, and how an error of any part becomes one.
//!
//! Callers: every handler and action. Invariant: an answer with status 400 or above carries a code of [`Code::ALL`]; the
//! list is served in the OpenAPI document and on the docs page.

use crate::command::outcome::{Quota, Refusal};
use crate::fault::Fault;
use crate::ids::Revision;
use crate::leader::Unavailable;
use crate::raft::{BarrierError, ForwardError, MembershipError};
use crate::time::Millis;
use crate::wire::{self, FieldError};

macro_rules! codes {
    ($($name:ident: $text:literal, $status:literal, $retryable:literal, $title:literal;)*) => {
        /// What is wrong, as clients are told.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Code { $(#[doc = $title] $name,)* }

        impl Code {
            /// Every code, in the order of the docs page.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The word in answers.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The HTTP status.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            /// Whether the same request may succeed later without a change.
            #[must_use]
            pub const fn retryable(self) -> bool {
                match self { $(Self::$name => $retryable,)* }
            }

            /// What it means, in a few words.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }
        }
    };
}

codes! {
    MalformedRequest: "malformed_request", 400, false, "The request is not well-formed HTTP.";
    MalformedJson: "malformed_json", 400, false, "The body is not JSON.";
    InvalidRequest: "invalid_request", 422, false, "Fields of the request are wrong.";
    InvalidParameter: "invalid_parameter", 400, false, "A query parameter or header is wrong.";
    InvalidCursor: "invalid_cursor", 400, false, "The cursor is not one that this list gave out.";
    NotSupported: "not_supported", 422, false, "A known feature that this version does not have.";
    NotImplemented: "not_implemented", 501, false, "A known call that this version does not have.";
    AuthNotConfigured: "auth_not_configured", 400, false,
        "An Authorization header was sent, but authentication is not configured.";
    OriginRefused: "origin_refused", 403, false, "A web page of another origin may not call this node.";
    RouteNotFound: "route_not_found", 404, false, "There is no such call.";
    MethodNotAllowed: "method_not_allowed", 405, false, "The resource does not know the method.";
    TenantNotFound: "tenant_not_found", 404, false, "The tenant does not exist.";
    QueueNotFound: "queue_not_found", 404, false, "The queue does not exist.";
    KeyNotFound: "key_not_found", 404, false, "The concurrency key has no limits and no work.";
    ScheduleNotFound: "schedule_not_found", 404, false, "The schedule does not exist.";
    ExecutionNotFound: "execution_not_found", 404, false, "The execution does not exist.";
    WorkerNotFound: "worker_not_found", 404, false, "The leader has not seen this worker.";
    MemberNotFound: "member_not_found", 404, false, "The node is not a member.";
    RequestTimeout: "request_timeout", 408, true, "The body did not arrive in time.";
    AlreadyExists: "already_exists", 409, false, "It exists already.";
    IdConflict: "id_conflict", 409, false, "The chosen id belongs to another execution with other content.";
    UniqueKeyHeld: "unique_key_held", 409, false, "An open execution holds the unique key.";
    Overlap: "overlap", 409, false, "An execution of the schedule is open.";
    ScheduleCompleted: "schedule_completed", 409, false, "The schedule is completed.";
    NotFinal: "not_final", 409, false, "The execution is not final.";
    QueueInUse: "queue_in_use", 409, false, "The queue holds work, or a schedule names it.";
    Protected: "protected", 409, false, "It always exists.";
    Contended: "contended", 409, true, "Others kept changing the object; nothing was done.";
    IdempotencyInProgress: "idempotency_in_progress", 409, true,
        "A request with the same idempotency key is under way.";
    MembershipInProgress: "membership_in_progress", 409, true, "Another change of members is under way.";
    MemberBehind: "member_behind", 409, true, "The node has not caught up with the log.";
    MembershipRefused: "membership_refused", 409, false, "The change makes no sense for these members.";
    ClockNotManual: "clock_not_manual", 409, false, "The clock of this node moves by itself.";
    RevisionMismatch: "revision_mismatch", 412, false, "The object has another revision.";
    BodyTooLarge: "body_too_large", 413, false, "The body is larger than allowed.";
    PayloadTooLarge: "payload_too_large", 413, false, "A payload, result or progress is larger than allowed.";
    UnsupportedMediaType: "unsupported_media_type", 415, false, "The body must be plain JSON.";
    IdempotencyConflict: "idempotency_conflict", 422, false,
        "The idempotency key was used with another request.";
    TooLarge: "too_large", 413, false, "The change is larger than the log can carry at once.";
    QuotaExceeded: "quota_exceeded", 429, true, "A quota is used up.";
    QuotaReached: "quota_reached", 403, false, "A quota on stored objects is used up.";
    QueueNotAllowed: "queue_not_allowed", 403, false, "The tenant may not use the queue.";
    TooManyRequests: "too_many_requests", 429, true, "The node has too many requests in hand.";
    Overloaded: "overloaded", 429, true, "Too much work waits to be written.";
    NoLeader: "no_leader", 503, true, "No leader is known or in office now.";
    NoQuorum: "no_quorum", 503, true, "No majority of the nodes answered in time.";
    IndexNotReached: "index_not_reached", 503, true, "This node has not applied the wanted index in time.";
    OutcomeUnknown: "outcome_unknown", 503, true,
        "The request may or may not have been carried out; repeat it with the same idempotency key.";
    Stopping: "stopping", 503, true, "The node is stopping.";
    Internal: "internal", 500, false, "The node met an error of its own.";
}

/// An error on its way to an answer.
#[derive(Clone, Debug)]
pub struct Error {
    /// What is wrong.
    pub code: Code,
    /// With this request.
    pub detail: String,
    /// Where.
    pub errors: Vec<FieldError>,
    /// When to try again.
    pub retry_after: Option<Millis>,
    /// Revision of the object now.
    pub current_revision: Option<Revision>,
    /// The execution in the way.
    pub blocker: Option<String>,
    /// The limit that was met.
    pub limit: Option<LimitMet>,
    /// Methods that the resource knows, for `method_not_allowed`.
    pub allow: Option<String>,
}

/// A limit that was met.
#[derive(Clone, Debug)]
pub struct LimitMet {
    /// Its name.
    pub name: String,
    /// Its value.
    pub limit: u64,
    /// What is in use, or what was sent.
    pub current: u64,
    /// What it belongs to.
    pub scope: &'static str,
}

impl Error {
    /// With a detail for this request.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            errors: Vec::new(),
            retry_after: None,
            current_revision: None,
            blocker: None,
            limit: None,
            allow: None,
        }
    }

    /// Wrong fields.
    #[must_use]
    pub fn fields(errors: Vec<FieldError>) -> Self {
        let only_unsupported = errors.iter().all(|e| e.code == "not_supported");
        let only_size = errors.iter().all(|e| e.code == "too_large");
        let code = match errors.is_empty() {
            false if only_unsupported => Code::NotSupported,
            false if only_size => Code::PayloadTooLarge,
            _ => Code::InvalidRequest,
        };
        let detail = match errors.as_slice() {
            [] => code.title().to_owned(),
            [one] => format!("{}: {}", one.pointer, one.detail),
            [one, rest @ ..] => {
                format!("{}: {} (and {} more)", one.pointer, one.detail, rest.len())
            }
        };
        Self {
            errors,
            ..Self::new(code, detail)
        }
    }

    /// One wrong query parameter, header or path part; `pointer` such as `query:count`.
    pub fn parameter(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        let error = FieldError {
            pointer: pointer.into(),
            code: "invalid".into(),
            detail: detail.into(),
        };
        let detail = format!("{}: {}", error.pointer, error.detail);
        Self {
            errors: vec![error],
            ..Self::new(Code::InvalidParameter, detail)
        }
    }

    /// With an instant to try again.
    #[must_use]
    pub fn after(mut self, wait: Millis) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// Seconds for `Retry-After`: at least one, for 429, 503 and whatever else may be tried again.
    #[must_use]
    pub fn retry_after_secs(&self) -> Option<u64> {
        match (self.retry_after, self.code.status()) {
            (Some(wait), _) => Some(wait.0.div_ceil(1_000).max(1)),
            (None, 429 | 503) => Some(1),
            (None, _) => None,
        }
    }

    /// The body of the answer.
    #[must_use]
    pub fn to_wire(&self, request_id: &str) -> wire::Problem {
        wire::Problem {
            kind: format!("/docs#problem-{}", self.code.as_str()),
            title: self.code.title().to_owned(),
            status: self.code.status(),
            detail: self.detail.clone(),
            code: self.code.as_str().to_owned(),
            errors: self.errors.clone(),
            retryable: self.code.retryable(),
            request_id: request_id.to_owned(),
            current_revision: self.current_revision.map(|r| r.to_string()),
            blocker: self.blocker.clone(),
            quota: self.limit.as_ref().map(|l| l.name.clone()),
            limit: self.limit.as_ref().map(|l| l.limit),
            current: self.limit.as_ref().map(|l| l.current),
            scope: self.limit.as_ref().map(|l| l.scope.to_owned()),
        }
    }
}

impl From<Fault> for Error {
    /// Logged here, once; the caller is told nothing of the inside.
    fn from(fault: Fault) -> Self {
        tracing::error!(%fault, "a request met a fault");
        Self::new(
            Code::Internal,
            "the node met an error of its own; its log has the cause",
        )
    }
}

impl From<Unavailable> for Error {
    fn from(why: Unavailable) -> Self {
        let detail = why.to_string();
        match why {
            Unavailable::NotLeader { .. } => Self::new(Code::NoLeader, detail),
            Unavailable::Overloaded { retry_after } => {
                Self::new(Code::Overloaded, detail).after(retry_after)
            }
            Unavailable::Unknown => Self::new(Code::OutcomeUnknown, detail),
            Unavailable::Stopping => Self::new(Code::Stopping, detail),
            Unavailable::TooLarge(_) => Self::new(Code::TooLarge, detail),
        }
    }
}

impl From<BarrierError> for Error {
    fn from(why: BarrierError) -> Self {
        let code = match why {
            BarrierError::NoLeader => Code::NoLeader,
            BarrierError::NoQuorum => Code::NoQuorum,
            BarrierError::Stopped => Code::Stopping,
        };
        Self::new(code, why.to_string())
    }
}

impl From<ForwardError> for Error {
    fn from(why: ForwardError) -> Self {
        let code = match why {
            ForwardError::Unreachable(_) => Code::NoLeader,
            ForwardError::Unknown(_) => Code::OutcomeUnknown,
            ForwardError::TooLarge => Code::BodyTooLarge,
        };
        Self::new(code, why.to_string())
    }
}

impl From<MembershipError> for Error {
    fn from(why: MembershipError) -> Self {
        let code = match why {
            MembershipError::NotLeader { .. } => Code::NoLeader,
            MembershipError::InProgress => Code::MembershipInProgress,
            MembershipError::Behind { .. } => Code::MemberBehind,
            MembershipError::Refused(_) => Code::MembershipRefused,
            MembershipError::Unknown => Code::OutcomeUnknown,
            MembershipError::Stopped => Code::Stopping,
        };
        Self::new(code, why.to_string())
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotInOffice => {
                Self::new(Code::NoLeader, "leadership changed; nothing was done")
            }
            Refusal::Superseded => Self::new(
                Code::Contended,
                "others kept changing the object while this request was planned; nothing was done",
            )
            .after(Millis::secs(1)),
            Refusal::RevisionMismatch { current } => Self {
                current_revision: Some(current),
                ..Self::new(
                    Code::RevisionMismatch,
                    match current.is_none() {
                        true => "it does not exist".to_owned(),
                        false => {
                            format!("its revision is \"{current}\" now; read it again and decide")
                        }
                    },
                )
            },
            Refusal::AlreadyExists { revision } => Self {
                current_revision: Some(revision),
                ..Self::new(Code::AlreadyExists, "it exists already")
            },
            Refusal::UniqueKeyHeld { holder } => Self {
                blocker: Some(holder.to_string()),
                ..Self::new(
                    Code::UniqueKeyHeld,
                    format!("execution {holder} holds the unique key"),
                )
            },
            Refusal::Overlap { blocker } => Self {
                blocker: Some(blocker.to_string()),
                ..Self::new(
                    Code::Overlap,
                    format!(
                        "execution {blocker} is open; trigger with \"overlap\": \"allow\" to run beside it"
                    ),
                )
            },
            Refusal::QuotaExceeded {
                quota,
                limit,
                current,
            } => quota_met(quota, limit, current),
            Refusal::QueueInUse { open } => Self::new(
                Code::QueueInUse,
                match open {
                    0 => "a schedule names the queue".to_owned(),
                    n => format!("the queue holds {n} open executions"),
                },
            ),
            plain => plain_refusal(&plain),
        }
    }
}

fn quota_met(quota: Quota, limit: u64, current: u64) -> Error {
    let (code, scope) = match quota {
        Quota::OpenExecutions => (Code::QuotaExceeded, "tenant"),
        Quota::MaxPending => (Code::QuotaExceeded, "queue"),
        Quota::Schedules => (Code::QuotaReached, "tenant"),
        Quota::Tenants | Quota::Queues | Quota::Keys | Quota::PausedKinds => {
            (Code::QuotaReached, "cluster")
        }
    };
    let name = quota.as_str();
    Error {
        limit: Some(LimitMet {
            name: name.to_owned(),
            limit,
            current,
            scope,
        }),
        ..Error::new(
            code,
            format!("{name} of the {scope} is {limit}; {current} are in use"),
        )
    }
}

fn plain_refusal(refusal: &Refusal) -> Error {
    let (code, detail) = match refusal {
        Refusal::TenantNotFound => (
            Code::TenantNotFound,
            "the tenant does not exist; create it with PUT /v1/tenants/{tenant}",
        ),
        Refusal::QueueNotFound => (Code::QueueNotFound, "the queue does not exist"),
        Refusal::ScheduleNotFound => (Code::ScheduleNotFound, "the schedule does not exist"),
        Refusal::ExecutionNotFound => (Code::ExecutionNotFound, "the execution does not exist"),
        Refusal::IdConflict => (
            Code::IdConflict,
            "the execution_id belongs to another execution with other content",
        ),
        Refusal::IdempotencyConflict => (
            Code::IdempotencyConflict,
            "the Idempotency-Key was used with another body; use a new key for a new request",
        ),
        Refusal::QueueNotAllowed => (
            Code::QueueNotAllowed,
            "the tenant is not among the queue's allowed_tenants",
        ),
        Refusal::NotFinal => (
            Code::NotFinal,
            "the execution is not final; cancel it first",
        ),
        Refusal::ScheduleCompleted => (
            Code::ScheduleCompleted,
            "the schedule is completed; give it a new rule with PUT",
        ),
        Refusal::Protected => (Code::Protected, "\"default\" always exists"),
        _ => (Code::Contended, "nothing was done"),
    };
    Error::new(code, detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_a_code_of_its_own_meaning() {
        let overlap = Error::from(Refusal::UniqueKeyHeld {
            holder: crate::ids::ExecutionId::new("e1").unwrap(),
        });
        assert_eq!(overlap.code, Code::UniqueKeyHeld);
        assert_eq!(overlap.blocker.as_deref(), Some("e1"));
        let stale = Error::from(Refusal::RevisionMismatch {
            current: Revision::new(7, 1),
        });
        assert_eq!(stale.to_wire("r").current_revision.as_deref(), Some("7.1"));
        let quota = Error::from(Refusal::QuotaExceeded {
            quota: Quota::MaxPending,
            limit: 5,
            current: 5,
        });
        assert_eq!(
            (quota.code.status(), quota.retry_after_secs()),
            (429, Some(1))
        );
    }

    #[test]
    fn codes_are_distinct_and_every_5xx_but_internal_says_when_to_retry() {
        let words: std::collections::BTreeSet<_> = Code::ALL.iter().map(|c| c.as_str()).collect();
        assert_eq!(words.len(), Code::ALL.len());
        for code in Code::ALL {
            let retry = Error::new(*code, "").retry_after_secs();
            if matches!(code.status(), 429 | 503) {
                assert!(code.retryable() && retry.is_some(), "{code:?}");
            }
        }
    }
}
