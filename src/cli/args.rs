//! The words of the command line.
//!
//! Callers: `cli`. Each noun's verbs are defined beside their code.

use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use super::failure::Failure;
use super::output::{Color, Format};
use super::{audit, cluster, execution, exit, import, preview, queue, schedule, worker, workers};
use crate::calendar::duration;
use crate::client::{Client, Options};

/// A distributed job scheduler.
#[derive(Debug, Parser)]
#[command(
    name = "punctual",
    version,
    about,
    after_help = exit::table(),
    propagate_version = true,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub struct Arguments {
    #[command(flatten)]
    pub(super) connection: Connection,

    /// Form of the output.
    #[arg(
        long,
        short,
        global = true,
        value_enum,
        default_value_t,
        help_heading = "Output"
    )]
    pub(super) output: Format,

    /// When colours are used.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        help_heading = "Output"
    )]
    pub(super) color: Color,

    #[command(subcommand)]
    pub(super) noun: Noun,
}

/// Where the server is.
#[derive(Clone, Debug, Args)]
pub(super) struct Connection {
    /// URL of a node, or of several separated by commas: the next is tried when one fails.
    #[arg(
        long,
        global = true,
        env = "PUNCTUAL_SERVER",
        default_value = "http://127.0.0.1:7070",
        value_name = "URL",
        help_heading = "Server"
    )]
    pub(super) server: String,

    /// Tenant of schedules and executions.
    #[arg(
        long,
        global = true,
        env = "PUNCTUAL_TENANT",
        default_value = "default",
        value_name = "NAME",
        help_heading = "Server"
    )]
    pub(super) tenant: String,

    /// How long a call is tried before it counts as failed.
    #[arg(
        long,
        global = true,
        default_value = "10s",
        value_parser = span,
        value_name = "DURATION",
        help_heading = "Server"
    )]
    pub(super) timeout: Duration,
}

impl Connection {
    pub(super) fn client(&self) -> Result<Client, Failure> {
        let options = Options {
            tenant: self.tenant.clone(),
            deadline: self.timeout,
            try_timeout: Options::default().try_timeout.min(self.timeout),
        };
        Ok(Client::connect(&self.server, options)?)
    }
}

#[derive(Debug, Subcommand)]
pub(super) enum Noun {
    /// Run a node.
    #[cfg(feature = "rocks")]
    Serve(Box<super::serve::Serve>),
    /// Rules that produce executions.
    #[command(subcommand)]
    Schedule(schedule::Verb),
    /// Units of work: submit, watch, cancel.
    #[command(subcommand)]
    Execution(execution::Verb),
    /// Lines of work that workers serve.
    #[command(subcommand)]
    Queue(queue::Verb),
    /// Run a command for every execution of a queue.
    Worker(worker::Run),
    /// Workers that the cluster has seen.
    #[command(subcommand)]
    Workers(workers::Verb),
    /// What people changed, and why.
    #[command(subcommand)]
    Audit(audit::Verb),
    /// The cluster: status and members.
    #[command(subcommand)]
    Cluster(cluster::Verb),
    /// When a rule would fire, without storing it.
    Preview(preview::Preview),
    /// Bring schedules from elsewhere.
    #[command(subcommand)]
    Import(import::What),
    /// Offline work on a node's data.
    #[cfg(feature = "rocks")]
    #[command(subcommand)]
    Store(super::store::Verb),
    /// Print a script that completes words in a shell.
    Completions {
        /// The shell.
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
}

/// Reads a duration for clap.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    duration::parse(text)
        .map(crate::time::Millis::to_duration)
        .map_err(|e| e.to_string())
}

/// Reads `name=value` for clap.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write name=value".into()),
    }
}
