//! `punctual audit …`

use clap::{Args, Subcommand};

use super::exit::Code;
use super::failure::Failure;
use super::occurrence::shown;
use super::output::Output;
use super::paging::{self, PageArgs};
use crate::client::{AuditFilter, Client};
use crate::wire::AuditRecord;

/// Verbs of `audit`.
#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Show what people changed, newest first.
    List(List),
}

/// Filters of `audit list`.
#[derive(Debug, Args)]
pub(super) struct List {
    /// Only this tenant and what belongs to it (--tenant does not count here).
    #[arg(long, value_name = "NAME")]
    of_tenant: Option<String>,
    /// Only this kind of object, such as schedule or queue; several with commas.
    #[arg(long, value_name = "KIND")]
    object: Option<String>,
    /// Only objects of this name.
    #[arg(long, value_name = "NAME")]
    id: Option<String>,
    /// At or after this instant.
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Before this instant.
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

pub(super) async fn run(verb: Verb, client: &Client, output: &Output) -> Result<Code, Failure> {
    let Verb::List(list) = verb;
    let fetch = |size, cursor| {
        let filter = AuditFilter {
            tenant: list.of_tenant.clone(),
            object: list.object.clone(),
            id: list.id.clone(),
            since: list.since.clone(),
            until: list.until.clone(),
            page_size: Some(size),
            cursor,
        };
        async move { client.list_audit(&filter).await }
    };
    let headings = ["AT", "WHO", "ACTION", "TENANT", "ID", "WHY"];
    paging::list(&list.page, output, &headings, fetch, |r: &AuditRecord| {
        vec![
            shown(Some(r.at)),
            r.actor.clone(),
            r.action.clone(),
            r.tenant.clone().unwrap_or_default(),
            r.id.clone(),
            r.reason.clone().unwrap_or_default(),
        ]
    })
    .await?;
    Ok(Code::Ok)
}
