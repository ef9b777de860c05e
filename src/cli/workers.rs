//! `punctual workers …`

use clap::Subcommand;

use super::exit::Code;
use super::failure::Failure;
use super::occurrence::shown;
use super::output::Output;
use super::paging::{self, PageArgs};
use crate::client::Client;
use crate::wire::Worker;

/// Verbs of `workers`.
#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Show the workers that the leader has seen, and what they hold.
    List(PageArgs),
    /// Tell one to claim no more and to end when it has finished.
    Drain {
        /// Its id.
        worker: String,
    },
    /// Sign one off: its leases are given back, no attempt is spent. For workers that are gone.
    Remove {
        /// Its id.
        worker: String,
    },
}

pub(super) async fn run(verb: Verb, client: &Client, output: &Output) -> Result<Code, Failure> {
    match verb {
        Verb::List(page) => {
            let fetch = |_, cursor: Option<String>| async move {
                client.list_workers(cursor.as_deref()).await
            };
            let headings = ["WORKER", "STATE", "QUEUES", "LEASED", "POLLING", "SEEN"];
            paging::list(&page, output, &headings, fetch, |w: &Worker| {
                let state = if w.draining { "draining" } else { "active" };
                vec![
                    w.worker_id.clone(),
                    state.to_owned(),
                    w.queues.join(","),
                    w.leased.to_string(),
                    w.polling.to_string(),
                    shown(w.last_seen_at),
                ]
            })
            .await?;
        }
        Verb::Drain { worker } => {
            let answer = client.drain_worker(&worker).await?;
            output.answer(&answer, |_| {
                output.line(&format!("{worker} will claim no more"))
            });
        }
        Verb::Remove { worker } => {
            let answer = client.remove_worker(&worker).await?;
            output.answer(&answer, |off| {
                let released = off.as_ref().map_or(0, |o| o.released);
                output.line(&format!(
                    "signed {worker} off; {released} leases given back"
                ));
            });
        }
    }
    Ok(Code::Ok)
}
