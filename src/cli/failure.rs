//! Why a command failed, for people and for the exit code.

use crate::client::Error;
use crate::config::ConfigError;

use super::exit::Code;

/// A command that failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// What the user gave is wrong.
    Usage(String),
    /// The configuration of a node is wrong.
    Config(ConfigError),
    /// A call failed.
    Call(Error),
    /// Anything else.
    Other(String),
}

impl Failure {
    pub(super) fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    pub(super) fn other(text: impl Into<String>) -> Self {
        Self::Other(text.into())
    }

    pub(super) fn code(&self) -> Code {
        match self {
            Self::Usage(_) | Self::Config(_) | Self::Call(Error::Settings(_)) => Code::Usage,
            Self::Call(Error::Unavailable { .. }) => Code::Unavailable,
            Self::Call(error) => match error.status() {
                Some(404) => Code::NotFound,
                Some(409 | 412) => Code::Conflict,
                Some(408 | 429 | 503) => Code::Unavailable,
                _ => Code::Failed,
            },
            Self::Other(_) => Code::Failed,
        }
    }

    /// The message, in lines: what, then where and how to mend it.
    pub(super) fn lines(&self) -> Vec<String> {
        match self {
            Self::Usage(text) | Self::Other(text) => text.lines().map(str::to_owned).collect(),
            Self::Config(error) => error.to_string().lines().map(str::to_owned).collect(),
            Self::Call(Error::Problem(problem)) => {
                let what = if problem.detail.is_empty() {
                    &problem.title
                } else {
                    &problem.detail
                };
                let mut lines = vec![format!("{what} ({} {})", problem.status, problem.code)];
                // With one place the detail usually is the place's own.
                for place in problem.errors.iter().filter(|p| !what.contains(&p.detail)) {
                    lines.push(format!("  at {}: {}", place.pointer, place.detail));
                }
                if let Some(revision) = &problem.current_revision {
                    lines.push(format!("  the revision now is {revision}"));
                }
                if let Some(blocker) = &problem.blocker {
                    lines.push(format!("  in the way: execution {blocker}"));
                }
                if !problem.request_id.is_empty() {
                    lines.push(format!("  request {}", problem.request_id));
                }
                lines
            }
            Self::Call(error @ Error::Unavailable { .. }) => vec![
                format!("no server could be used: {error}"),
                "  check that it runs, and --server or PUNCTUAL_SERVER; if one was reached, a write may have happened"
                    .into(),
            ],
            Self::Call(error) => vec![error.to_string()],
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Call(error)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}
