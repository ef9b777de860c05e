//! The command line: noun, then verb.
//!
//! Purpose: everything that `punctual …` does, on top of `client`, `worker`, `crontab`, `config` and `node`.
//! Callers: `main`. Invariants:
//! 1. Only `output` prints; everything else hands it values.
//! 2. Every way to fail has an exit code of [`exit::Code`], and a message that names the place and the fix.
//! 3. With `--output json` standard output holds JSON only: for one object what the server sent, unchanged.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

mod args;
mod audit;
mod body;
mod cluster;
mod execution;
pub mod exit;
mod failure;
mod import;
mod logging;
mod occurrence;
mod output;
mod paging;
mod preview;
mod queue;
mod schedule;
#[cfg(feature = "rocks")]
mod serve;
#[cfg(feature = "rocks")]
mod store;
mod worker;
mod workers;

pub use args::Arguments;
use args::{Connection, Noun};
use failure::Failure;
use output::Output;

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    run(std::env::args_os())
}

fn run(words: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match Arguments::try_parse_from(words) {
        Ok(arguments) => arguments,
        // Help and version are "errors" of clap that belong on standard output.
        Err(error) => return output::usage(&error),
    };
    let output = Output::to_terminal(arguments.output, arguments.color);
    match dispatch(arguments, &output) {
        Ok(code) => code.into(),
        Err(failure) => {
            output.failure(&failure);
            failure.code().into()
        }
    }
}

fn dispatch(arguments: Arguments, output: &Output) -> Result<exit::Code, Failure> {
    let connection = arguments.connection;
    match arguments.noun {
        Noun::Completions { shell } => {
            output.completions(shell, &mut Arguments::command());
            Ok(exit::Code::Ok)
        }
        #[cfg(feature = "rocks")]
        Noun::Serve(serve) => serve::run(&serve, output),
        #[cfg(feature = "rocks")]
        Noun::Store(verb) => store::run(&verb, output),
        Noun::Worker(run) => block_on(worker::run(run, &connection, output)),
        noun => block_on(call(noun, &connection, output)),
    }
}

async fn call(noun: Noun, connection: &Connection, output: &Output) -> Result<exit::Code, Failure> {
    let client = connection.client()?;
    match noun {
        Noun::Schedule(verb) => schedule::run(verb, &client, output).await,
        Noun::Execution(verb) => execution::run(verb, &client, output).await,
        Noun::Queue(verb) => queue::run(verb, &client, output).await,
        Noun::Workers(verb) => workers::run(verb, &client, output).await,
        Noun::Audit(verb) => audit::run(verb, &client, output).await,
        Noun::Cluster(verb) => cluster::run(verb, &client, output).await,
        Noun::Preview(rule) => preview::run(rule, &client, output).await,
        Noun::Import(what) => import::run(what, connection, output).await,
        // These need no client: `dispatch` has taken them.
        _ => Ok(exit::Code::Ok),
    }
}

fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Failure::other(format!("the runtime cannot start: {e}")))?;
    runtime.block_on(work)
}

#[cfg(test)]
mod tests;
