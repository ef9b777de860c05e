//! `punctual serve`: runs a node.
//!
//! Callers: `cli`. Flags and file become a [`ServeConfig`]; everything after that is `node`'s.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::exit::Code;
use super::failure::Failure;
use super::output::Output;
use crate::config::{ClockMode, LogFormat, Overrides, ServeConfig, reference};

/// What `serve` is given.
#[derive(Debug, Args)]
pub(super) struct Serve {
    /// Configuration file (TOML); config/reference.toml lists every key.
    #[arg(long, short, value_name = "FILE", required_unless_present_any = ["dev", "print_reference"])]
    config: Option<PathBuf>,
    /// Development: one node on loopback, without authentication.
    #[arg(long)]
    dev: bool,
    /// Where the API listens.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Directory of everything the node stores.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Where time comes from; manual (only with --dev): POST /v1/dev/clock:advance moves it.
    #[arg(long, value_enum)]
    clock: Option<Clock>,
    /// Wait to be added to a running cluster instead of founding one.
    #[arg(long)]
    join: bool,
    /// Start a node that is alone although its log lost acknowledged entries.
    #[arg(long)]
    accept_data_loss: bool,
    /// Listen beyond loopback although there is no authentication.
    #[arg(long)]
    insecure_no_auth: bool,
    /// What is logged: error, warn, info, debug, trace, or per module.
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// Form of a log line.
    #[arg(long, value_enum)]
    log_format: Option<Log>,
    /// Print every configuration key with its meaning and default, and end.
    #[arg(long)]
    print_reference: bool,
}

/// `config::ClockMode` for clap.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Clock {
    /// The machine's clock.
    System,
    /// It stands still until moved.
    Manual,
}

/// `config::LogFormat` for clap.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Log {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl Serve {
    fn overrides(&self) -> Overrides {
        Overrides {
            dev: self.dev,
            listen: self.listen,
            data_dir: self.data_dir.clone(),
            clock: self.clock.map(|clock| match clock {
                Clock::System => ClockMode::System,
                Clock::Manual => ClockMode::Manual,
            }),
            join: self.join,
            accept_data_loss: self.accept_data_loss,
            insecure_no_auth: self.insecure_no_auth,
            log_level: self.log_level.clone(),
            log_format: self.log_format.map(|format| match format {
                Log::Text => LogFormat::Text,
                Log::Json => LogFormat::Json,
            }),
        }
    }
}

pub(super) fn run(args: &Serve, output: &Output) -> Result<Code, Failure> {
    if args.print_reference {
        output.pass_on(false, reference::render().as_bytes());
        return Ok(Code::Ok);
    }
    let config = ServeConfig::load(args.config.as_deref(), &args.overrides())?;
    announce(&config, output);
    crate::node::run(config).map_err(|e| Failure::other(e.to_string()))?;
    Ok(Code::Ok)
}

fn announce(config: &ServeConfig, output: &Output) {
    let url = format!("http://{}", config.listen);
    output.note(&format!(
        "node {} serves {url}; API page {url}/docs; data in {}",
        config.node_id,
        config.data_dir.display()
    ));
    if config.dev {
        output.note("development: one node, loopback only, no authentication");
    } else if config.insecure_no_auth {
        output.note("warning: insecure_no_auth: whoever reaches this address may do everything");
    }
    if config.clock == ClockMode::Manual {
        output.note(&format!(
            "the clock stands still: POST {url}/v1/dev/clock:advance {{\"by\": \"1h\"}}"
        ));
    }
}
