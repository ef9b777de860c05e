//! `punctual execution …`

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use tokio::time::Instant;

use super::args::{pair, span};
use super::body::{Body, PayloadArgs};
use super::exit::Code;
use super::failure::Failure;
use super::occurrence::{brief, millis, shown};
use super::output::Output;
use super::paging::{self, ListArgs};
use crate::client::{Answer, Client, ExecutionFilter};
use crate::wire::{Attempt, Cancel, CancelMode, Cancelled, Execution, ExecutionState};

/// Wait of a bare `--wait`.
const WAIT: &str = "5m";

/// Verbs of `execution`.
#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Submit work, for now or for later.
    Submit(Box<Submit>),
    /// Show many, in order of creation.
    List(List),
    /// Show one with its attempts.
    Get {
        /// Its id.
        execution: String,
        /// Wait until it is final, at most so long.
        #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true,
              default_missing_value = WAIT, value_parser = span)]
        wait: Option<Duration>,
    },
    /// Cancel one.
    Cancel {
        /// Its id.
        execution: String,
        /// End the lease of a running one at once, instead of asking its worker.
        #[arg(long)]
        now: bool,
        /// Why.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
}

/// What `execution submit` is given.
#[derive(Debug, Args)]
pub(super) struct Submit {
    /// Handler that a worker must have.
    #[arg(long, required_unless_present = "file")]
    kind: Option<String>,
    /// The execution as JSON; `-` is standard input. Flags stand over it.
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Its queue.
    #[arg(long)]
    queue: Option<String>,
    #[command(flatten)]
    payload: PayloadArgs,
    /// Its id, unique in the tenant (default: minted).
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Run so long from now.
    #[arg(long, value_name = "DURATION", conflicts_with = "due_at")]
    delay: Option<String>,
    /// Run at this instant.
    #[arg(long, value_name = "TIME")]
    due_at: Option<String>,
    /// 0 to 9, 9 is highest.
    #[arg(long, value_name = "N")]
    priority: Option<u8>,
    /// Attempts in all.
    #[arg(long, value_name = "N")]
    max_attempts: Option<u32>,
    /// Only one open execution may hold this key.
    #[arg(long, value_name = "KEY")]
    unique_key: Option<String>,
    /// A label, name=value; may be given several times.
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// Wait until it is final, at most so long; exit 0 only when it succeeded.
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true,
          default_missing_value = WAIT, value_parser = span)]
    wait: Option<Duration>,
    /// Show what would happen; change nothing.
    #[arg(long, conflicts_with = "wait")]
    dry_run: bool,
}

/// Filters of `execution list`.
#[derive(Debug, Args)]
pub(super) struct List {
    /// Only of this schedule.
    #[arg(long)]
    schedule: Option<String>,
    #[command(flatten)]
    list: ListArgs,
}

pub(super) async fn run(verb: Verb, client: &Client, output: &Output) -> Result<Code, Failure> {
    match verb {
        Verb::Submit(submit) => self::submit(*submit, client, output).await,
        Verb::List(list) => self::list(list, client, output).await.map(|()| Code::Ok),
        Verb::Get { execution, wait } => match wait {
            Some(wait) => wait_for(&execution, wait, client, output).await,
            None => {
                let answer = client.get_execution(&execution, Duration::ZERO).await?;
                output.answer(&answer, |e| show(e, output));
                Ok(Code::Ok)
            }
        },
        Verb::Cancel {
            execution,
            now,
            reason,
        } => {
            let body = Cancel {
                mode: now.then_some(CancelMode::Now),
                reason,
            };
            let answer = client.cancel_execution(&execution, &body).await?;
            output.answer(&answer, |r| {
                let what = match r.outcome {
                    Cancelled::Cancelled => "is cancelled",
                    Cancelled::Requested => "is running; its worker will be told",
                    Cancelled::AlreadyFinal => "was final already",
                };
                output.line(&format!("{execution} {what} ({})", r.state.as_str()));
            });
            Ok(Code::Ok)
        }
    }
}

async fn submit(submit: Submit, client: &Client, output: &Output) -> Result<Code, Failure> {
    let mut body = Body::from_file(submit.file.as_deref())?;
    body.set("kind", submit.kind);
    body.set("queue", submit.queue);
    body.set("payload", submit.payload.read()?);
    body.set("execution_id", submit.id);
    body.set("delay", submit.delay);
    body.set("due_at", submit.due_at);
    body.set("priority", submit.priority);
    body.set_in("retry", "max_attempts", submit.max_attempts);
    body.set_in("unique", "key", submit.unique_key);
    body.add_pairs("labels", &submit.labels);
    let answer = client
        .submit_execution(&body.value(), submit.dry_run)
        .await?;
    if let Some(wait) = submit.wait {
        let id = answer.value.execution_id.clone();
        output.note(&format!("submitted {id}; waiting"));
        return wait_for(&id, wait, client, output).await;
    }
    output.answer(&answer, |e| {
        let outcome = answer.outcome.as_deref().unwrap_or("created");
        output.line(&format!(
            "{outcome} {} ({})",
            e.execution_id,
            e.state.as_str()
        ));
    });
    Ok(Code::Ok)
}

/// Long polls until the execution is final or the time is over.
async fn wait_for(
    execution: &str,
    wait: Duration,
    client: &Client,
    output: &Output,
) -> Result<Code, Failure> {
    let until = Instant::now() + wait;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let answer: Answer<Execution> = client.get_execution(execution, left).await?;
        let state = answer.value.state;
        if state.is_final() || left.is_zero() {
            output.answer(&answer, |e| show(e, output));
            return Ok(match state {
                ExecutionState::Succeeded => Code::Ok,
                s if s.is_final() => Code::Unsuccessful,
                _ => Code::StillOpen,
            });
        }
    }
}

async fn list(list: List, client: &Client, output: &Output) -> Result<(), Failure> {
    let fetch = |size, cursor| {
        let filter = ExecutionFilter {
            schedule: list.schedule.clone(),
            list: list.list.filter(size, cursor),
        };
        async move { client.list_executions(&filter).await }
    };
    let headings = [
        "EXECUTION",
        "STATE",
        "SCHEDULE",
        "KIND",
        "QUEUE",
        "DUE",
        "ATTEMPTS",
        "LATE",
    ];
    paging::list(
        &list.list.page,
        output,
        &headings,
        fetch,
        |e: &Execution| {
            vec![
                e.execution_id.clone(),
                e.state.as_str().to_owned(),
                e.schedule_id.clone().unwrap_or_default(),
                e.kind.clone(),
                e.queue.clone(),
                shown(e.due_at),
                e.attempts_started.to_string(),
                e.lateness_ms.map(millis).unwrap_or_default(),
            ]
        },
    )
    .await
}

fn show(e: &Execution, output: &Output) {
    let cancel = e.cancel.as_ref().map(|c| {
        format!(
            "asked by {} at {} {}",
            c.by,
            c.at,
            c.reason.as_deref().unwrap_or_default()
        )
    });
    output.record(&[
        ("execution", e.execution_id.clone()),
        ("state", e.state.as_str().to_owned()),
        ("why", e.final_reason.clone().unwrap_or_default()),
        ("schedule", e.schedule_id.clone().unwrap_or_default()),
        ("kind", e.kind.clone()),
        ("queue", e.queue.clone()),
        ("payload", e.payload.as_ref().map(brief).unwrap_or_default()),
        ("nominal", shown(e.nominal_at)),
        ("due", shown(e.due_at)),
        ("started", shown(e.started_at)),
        ("finished", shown(e.finished_at)),
        ("late by", e.lateness_ms.map(millis).unwrap_or_default()),
        ("next attempt", shown(e.next_attempt_at)),
        ("cancel", cancel.unwrap_or_default()),
        ("progress", brief(&e.progress)),
        ("replay of", e.replay_of.clone().unwrap_or_default()),
        ("replayed as", e.replayed_as.clone().unwrap_or_default()),
        ("result", brief(&without_output(&e.result))),
    ]);
    show_output(&e.result, output);
    for attempt in &e.attempts {
        show_attempt(attempt, output);
    }
}

fn show_attempt(a: &Attempt, output: &Output) {
    let outcome = a.outcome.as_deref().unwrap_or("under way");
    let ended = shown(a.ended_at);
    output.line(&format!(
        "attempt {}  {outcome}  token {}  {} … {ended}  {}",
        a.attempt,
        a.fencing_token,
        shown(a.leased_at),
        a.worker_id,
    ));
    let Ok(error) = a.error.parse::<crate::wire::WorkerError>() else {
        return;
    };
    if let Some(message) = &error.message {
        let kind = error.kind.as_deref().unwrap_or("error");
        output.line(&format!("    {kind}: {message}"));
    }
    show_output(&error.details, output);
}

/// The output of a process that `punctual worker` kept, for people.
fn show_output(json: &crate::wire::Json, output: &Output) {
    let Ok(value) = json.parse::<serde_json::Value>() else {
        return;
    };
    if let Some(text) = value
        .get("output")
        .and_then(|o| o.as_str())
        .filter(|t| !t.is_empty())
    {
        output.block(text);
    }
}

fn without_output(json: &crate::wire::Json) -> crate::wire::Json {
    let Ok(mut value) = json.parse::<serde_json::Value>() else {
        return json.clone();
    };
    match value.as_object_mut().and_then(|o| o.remove("output")) {
        Some(_) => crate::wire::Json::from_value(&value).unwrap_or_default(),
        None => json.clone(),
    }
}
