//! Reading crontab files: each line becomes a schedule, or a refusal with its reason.
//!
//! Purpose: what `punctual import crontab` shows and writes. Pure: no file, clock, network or zone data; whether an
//! expression and a zone are good is asked of a [`Check`] that the caller brings.
//! Callers: `cli::import`.
//! Invariants:
//! 1. Every line of the file is accounted for: blank, comment, setting, job or refusal.
//! 2. The same file gives the same ids, so that a second import changes nothing. An id depends on the line's own
//!    expression, user, command and input, and on how many equal lines stand above it; never on its place.
//! 3. Environment lines count for the lines below them, as cron reads them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

mod line;
mod plan;

pub use plan::plan;

/// The kind of every imported schedule: a worker with `--run-payload-commands` runs it.
pub const KIND: &str = "command";
/// Label that every imported schedule carries, and its value.
pub const SOURCE_LABEL: (&str, &str) = ("source", "crontab");

/// Whether the word after the time fields is a user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UserColumn {
    /// Decide from the path and the lines; see [`Plan::user_column_reason`].
    #[default]
    Auto,
    /// `/etc/crontab`, `/etc/cron.d/*`.
    Yes,
    /// `crontab -l` of a user.
    No,
}

/// What the reader is told about the file.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// Whether there is a user column.
    pub user_column: UserColumn,
    /// Where the file lies, when that is known; only its name is looked at.
    pub path: Option<&'a str>,
    /// Names of users on this machine, to recognise the user column.
    pub known_users: &'a BTreeSet<String>,
    /// IANA zone of lines without `CRON_TZ` or `TZ`.
    pub time_zone: &'a str,
}

/// Judges an expression in a zone: `Err` holds the reason for a refusal.
pub type Check<'a> = dyn Fn(&str, &str) -> Result<(), String> + 'a;

/// What a crontab becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Whether the word after the time fields was read as a user.
    pub user_column: bool,
    /// Why.
    pub user_column_reason: &'static str,
    /// The lines that become schedules, in order.
    pub jobs: Vec<Job>,
    /// The lines that cannot, in order.
    pub refusals: Vec<Refusal>,
    /// What a person should know about the file as a whole.
    pub notes: Vec<String>,
}

/// A line that becomes a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Number of the line, from 1.
    pub line: usize,
    /// Name of the schedule.
    pub schedule_id: String,
    /// The expression, as the file has it with single blanks.
    pub cron: String,
    /// IANA zone in which it is read.
    pub time_zone: String,
    /// User column, if there is one.
    pub user: Option<String>,
    /// The command for the shell.
    pub command: String,
    /// What cron would feed the command (after `%`).
    pub stdin: Option<String>,
    /// Environment lines in force.
    pub env: BTreeMap<String, String>,
    /// What a person should know about this line.
    pub notes: Vec<String>,
}

/// A line that cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Number of the line, from 1.
    pub line: usize,
    /// The line, shortened.
    pub text: String,
    /// Why, and what to do.
    pub reason: String,
}

/// Longest description that a schedule may have, in bytes.
const DESCRIPTION_MAX: usize = 1_000;

impl Job {
    /// What the execution carries: `{"shell", "env", "stdin"?, "user"?}`. The worker runs
    /// `$SHELL -c <shell>` (`/bin/sh` when `env` has no `SHELL`).
    #[must_use]
    pub fn payload(&self) -> Value {
        let mut payload = serde_json::Map::new();
        payload.insert("shell".into(), json!(self.command));
        payload.insert("env".into(), json!(self.env));
        if let Some(stdin) = &self.stdin {
            payload.insert("stdin".into(), json!(stdin));
        }
        if let Some(user) = &self.user {
            payload.insert("user".into(), json!(user));
        }
        Value::Object(payload)
    }

    /// The schedule as the API takes it. As cron would: one attempt, nothing caught up, runs may overlap.
    #[must_use]
    pub fn schedule(&self, queue: &str) -> Value {
        let (label, value) = SOURCE_LABEL;
        json!({
            "schedule_id": self.schedule_id,
            "description": self.description(),
            "kind": KIND,
            "queue": queue,
            "payload": self.payload(),
            "labels": {label: value},
            "rule": {"cron": self.cron, "time_zone": self.time_zone},
            "misfire": {"policy": "skip"},
            "overlap": {"policy": "allow"},
            "retry": {"max_attempts": 1},
        })
    }

    fn description(&self) -> String {
        let user = self
            .user
            .as_deref()
            .map(|u| format!(" {u}"))
            .unwrap_or_default();
        shorten(
            &format!("{}{user} {}", self.cron, self.command),
            DESCRIPTION_MAX,
        )
    }
}

/// Cuts at a letter boundary and marks the cut.
fn shorten(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let end = (0..=max)
        .rev()
        .find(|i| text.is_char_boundary(*i))
        .unwrap_or(0);
    format!("{}…", text.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests;
