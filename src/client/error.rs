//! Why a call has no answer.

use std::time::Duration;

use crate::wire::Problem;

/// A call that failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// What the caller gave cannot be used; nothing was sent.
    #[error("{0}")]
    Settings(String),
    /// The server refused the call; the problem says why and what to do.
    #[error("{}: {}", .0.code, .0.detail)]
    Problem(Box<Problem>),
    /// No server answered, or every answer was 429 or 503. A write may or may not have happened; the same call may
    /// be repeated.
    #[error("{server}: {cause}")]
    Unavailable {
        /// The server tried last.
        server: String,
        /// What happened there.
        cause: String,
        /// When the server wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// An answer that is not of the expected form.
    #[error("answer {status} cannot be read: {detail}")]
    Unreadable {
        /// Its HTTP status.
        status: u16,
        /// What does not fit.
        detail: String,
    },
}

impl Error {
    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable { .. } => true,
            Self::Problem(problem) => problem.retryable,
            Self::Settings(_) | Self::Unreadable { .. } => false,
        }
    }

    /// When the server wants to be asked again.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Unavailable { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// The HTTP status of a refusal.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Problem(problem) => Some(problem.status),
            Self::Unreadable { status, .. } => Some(*status),
            _ => None,
        }
    }
}
