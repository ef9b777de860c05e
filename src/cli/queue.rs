//! `punctual queue …`

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::args::pair;
use super::body::Body;
use super::exit::Code;
use super::failure::Failure;
use super::occurrence::{millis, shown};
use super::output::Output;
use super::paging::{self, PageArgs};
use crate::client::{Client, PutCondition};
use crate::wire::{Backlog, Instant, Pause, Queue};

/// Verbs of `queue`.
#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Create a queue or replace its settings.
    Put(Put),
    /// Show one.
    Get {
        /// Its name.
        queue: String,
    },
    /// Show all.
    List(PageArgs),
    /// Grant nothing from it until resumed.
    Pause {
        /// Its name.
        queue: String,
        /// Why.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// Resume by itself at this instant.
        #[arg(long, value_name = "TIME")]
        until: Option<Instant>,
    },
    /// Grant from it again.
    Resume {
        /// Its name.
        queue: String,
        /// Why.
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Depth, oldest due execution, shares of tenants.
    Stats {
        /// Its name.
        queue: String,
    },
}

/// What `queue put` is given.
#[derive(Debug, Args)]
pub(super) struct Put {
    /// Its name.
    queue: String,
    /// The queue as JSON; `-` is standard input. Flags stand over it.
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Most executions waiting or ready.
    #[arg(long, value_name = "N")]
    max_pending: Option<u64>,
    /// Most live leases.
    #[arg(long, value_name = "N")]
    max_leased: Option<u64>,
    /// fair_first or priority_first.
    #[arg(long)]
    order: Option<String>,
    /// Weight of a tenant here, TENANT=N; may be given several times.
    #[arg(long = "weight", value_name = "TENANT=N", value_parser = pair)]
    weights: Vec<(String, String)>,
    /// Only if it still has this revision.
    #[arg(long, value_name = "REVISION")]
    if_revision: Option<String>,
    /// Show what would happen; change nothing.
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn run(verb: Verb, client: &Client, output: &Output) -> Result<Code, Failure> {
    match verb {
        Verb::Put(put) => self::put(put, client, output).await?,
        Verb::Get { queue } => {
            let answer = client.get_queue(&queue).await?;
            output.answer(&answer, |q| show(q, output));
        }
        Verb::List(page) => list(&page, client, output).await?,
        Verb::Pause {
            queue,
            reason,
            until,
        } => {
            let answer = client.pause_queue(&queue, &Pause { reason, until }).await?;
            output.answer(&answer, |_| output.line(&format!("paused {queue}")));
        }
        Verb::Resume { queue, reason } => {
            let body = Pause {
                reason,
                until: None,
            };
            let answer = client.resume_queue(&queue, &body).await?;
            output.answer(&answer, |_| output.line(&format!("resumed {queue}")));
        }
        Verb::Stats { queue } => stats(&queue, client, output).await?,
    }
    Ok(Code::Ok)
}

async fn put(put: Put, client: &Client, output: &Output) -> Result<(), Failure> {
    let mut body = Body::from_file(put.file.as_deref())?;
    body.set("max_pending", put.max_pending);
    body.set("max_leased", put.max_leased);
    body.set("order", put.order);
    for (tenant, weight) in &put.weights {
        let weight: u32 = weight.parse().map_err(|_| {
            Failure::usage(format!(
                "--weight {tenant}={weight}: the weight is no whole number"
            ))
        })?;
        body.set_in("weights", tenant, Some(weight));
    }
    let condition = put
        .if_revision
        .map_or(PutCondition::None, PutCondition::Revision);
    let answer = client
        .put_queue(&put.queue, &body.value(), &condition, put.dry_run)
        .await?;
    output.answer(&answer, |_| {
        let outcome = answer.outcome.as_deref().unwrap_or("stored");
        output.line(&format!("{outcome} {}", put.queue));
    });
    Ok(())
}

async fn list(page: &PageArgs, client: &Client, output: &Output) -> Result<(), Failure> {
    let fetch = |size, cursor: Option<String>| async move {
        client.list_queues(Some(size), cursor.as_deref()).await
    };
    let headings = [
        "QUEUE",
        "STATE",
        "WAITING",
        "READY",
        "LEASED",
        "BACKING OFF",
    ];
    paging::list(page, output, &headings, fetch, |q: &Queue| {
        let status = q.status.clone().unwrap_or_default();
        let b = status.backlog;
        let state = if status.paused.is_some() {
            "paused"
        } else {
            "active"
        };
        vec![
            q.queue.clone().unwrap_or_default(),
            state.to_owned(),
            b.waiting.to_string(),
            b.ready.to_string(),
            b.leased.to_string(),
            b.backing_off.to_string(),
        ]
    })
    .await
}

fn show(queue: &Queue, output: &Output) {
    let status = queue.status.clone().unwrap_or_default();
    let bound = |n: Option<u64>| n.map_or_else(|| "no bound".into(), |n| n.to_string());
    let rate = queue
        .rate
        .as_ref()
        .map(|r| serde_json::to_string(r).unwrap_or_default());
    let paused = status
        .paused
        .as_ref()
        .map(|p| serde_json::to_string(p).unwrap_or_default());
    output.record(&[
        ("queue", queue.queue.clone().unwrap_or_default()),
        ("paused", paused.unwrap_or_default()),
        ("max pending", bound(queue.max_pending)),
        ("max leased", bound(queue.max_leased)),
        ("rate", rate.unwrap_or_default()),
        ("open", backlog(&status.backlog)),
        ("revision", queue.revision.clone().unwrap_or_default()),
    ]);
}

fn backlog(b: &Backlog) -> String {
    format!(
        "{} waiting, {} ready, {} parked, {} leased, {} backing_off",
        b.waiting, b.ready, b.parked, b.leased, b.backing_off
    )
}

async fn stats(queue: &str, client: &Client, output: &Output) -> Result<(), Failure> {
    let answer = client.queue_stats(queue).await?;
    output.answer(&answer, |s| {
        output.record(&[
            ("queue", s.queue.clone()),
            ("open", backlog(&s.backlog)),
            ("oldest due", shown(s.oldest_due_at)),
            ("waited", s.oldest_wait_ms.map(millis).unwrap_or_default()),
        ]);
        let rows: Vec<_> = s
            .tenants
            .iter()
            .map(|t| vec![t.tenant.clone(), t.weight.to_string(), backlog(&t.backlog)])
            .collect();
        if !rows.is_empty() {
            output.table(&["TENANT", "WEIGHT", "OPEN"], &rows);
        }
    });
    Ok(())
}
