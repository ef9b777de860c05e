//! From a lease to a command line, its environment and its input.
//!
//! Callers: `worker::process`. Pure but for the name of the user that this process runs as.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Source;
use crate::wire::{Instant, Lease};

/// A command in a payload, as `import crontab` writes it. Unknown fields are refused: what is not understood must not
/// run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PayloadCommand {
    /// Program and arguments; exactly one of `argv` and `shell`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv: Option<Vec<String>>,
    /// Text for a shell: `$SHELL -c`, by `env`, else `/bin/sh -c`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// Added to the worker's environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Standard input; nothing when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// User that the command was written for. A worker does not change its user: it refuses other ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// What to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Program and arguments, never empty.
    pub argv: Vec<String>,
    /// Added to this process's own environment.
    pub env: BTreeMap<String, String>,
    /// Standard input.
    pub stdin: Vec<u8>,
}

/// What a lease runs; the error says why it can never run here.
pub(super) fn for_lease(source: &Source, lease: &Lease) -> Result<Command, String> {
    let mut command = match source {
        Source::Argv(argv) => with_payload(argv.clone(), lease),
        Source::Shell(text) => with_payload(shell("/bin/sh", text), lease),
        Source::Payload { ignore_user } => from_payload(lease, *ignore_user)?,
    };
    if command.argv.first().is_none_or(String::is_empty) {
        return Err("there is no program to run".into());
    }
    let nul = |text: &String| text.contains('\0');
    if command.argv.iter().any(nul) || command.env.iter().any(|(n, v)| nul(n) || nul(v)) {
        return Err("the command or its environment has a NUL byte".into());
    }
    if let Some(name) = command.env.keys().find(|n| n.is_empty() || n.contains('=')) {
        return Err(format!("{name:?} is no name for the environment"));
    }
    command.env.extend(context(lease));
    Ok(command)
}

fn shell(program: &str, text: &str) -> Vec<String> {
    vec![program.to_owned(), "-c".to_owned(), text.to_owned()]
}

fn with_payload(argv: Vec<String>, lease: &Lease) -> Command {
    // With a line end, so that `read line` works; JSON readers do not mind.
    let mut stdin = lease.payload.text().as_bytes().to_vec();
    stdin.push(b'\n');
    Command {
        argv,
        env: BTreeMap::new(),
        stdin,
    }
}

fn from_payload(lease: &Lease, ignore_user: bool) -> Result<Command, String> {
    let payload: PayloadCommand = lease.payload.parse().map_err(|e| {
        format!("the payload is no command: {e}; it holds \"argv\" or \"shell\", and \"env\", \"stdin\", \"user\"")
    })?;
    if let Some(wanted) = payload.user.filter(|_| !ignore_user) {
        let own = own_user();
        if own.as_deref() != Some(wanted.as_str()) {
            return Err(format!(
                "the command is for user {wanted:?} and this worker runs as {:?}; start a worker as \
                 that user, or with --ignore-payload-user",
                own.unwrap_or_else(|| "unknown".into())
            ));
        }
    }
    let argv = match (payload.argv, payload.shell) {
        (Some(argv), None) => argv,
        (None, Some(text)) => {
            let program = payload.env.get("SHELL").filter(|s| !s.is_empty());
            shell(program.map_or("/bin/sh", String::as_str), &text)
        }
        _ => return Err("the payload needs exactly one of \"argv\" and \"shell\"".into()),
    };
    Ok(Command {
        argv,
        env: payload.env,
        stdin: payload.stdin.unwrap_or_default().into_bytes(),
    })
}

/// Name of the user that this process runs as.
fn own_user() -> Option<String> {
    let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok()??;
    Some(user.name)
}

/// What the child is told about its lease, `PUNCTUAL_…`; a value that does not exist is not set.
fn context(lease: &Lease) -> BTreeMap<String, String> {
    let instant = |at: Option<Instant>| at.map(|t| t.to_string());
    let pairs = [
        ("EXECUTION_ID", Some(lease.execution_id.clone())),
        ("ATTEMPT", Some(lease.attempt.to_string())),
        ("MAX_ATTEMPTS", Some(lease.max_attempts.to_string())),
        ("FENCING_TOKEN", Some(lease.fencing_token.to_string())),
        ("TENANT", Some(lease.tenant.clone())),
        ("QUEUE", Some(lease.queue.clone())),
        ("KIND", Some(lease.kind.clone())),
        ("SCHEDULE_ID", lease.schedule_id.clone()),
        ("NOMINAL_AT", instant(lease.nominal_at)),
        ("DUE_AT", instant(lease.due_at)),
        ("DEADLINE_AT", instant(lease.deadline_at)),
        ("LATENESS_MS", Some(lease.lateness_ms.to_string())),
        ("TRACEPARENT", lease.traceparent.clone()),
    ];
    let set = pairs.into_iter();
    set.filter_map(|(name, value)| Some((format!("PUNCTUAL_{name}"), value?)))
        .collect()
}
