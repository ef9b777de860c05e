//! `scripts/bench`: measures real nodes and prints one JSON line a result.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "its output is its purpose"
)]

use std::process::{Command, ExitCode};

use clap::Parser;
use jepsen::bench::report::{Setting, line};
use jepsen::bench::{resting, workloads};
use jepsen::cluster::{Cluster, binary};
use serde_json::Value;

/// Added to each node's configuration; everything else is the default.
const SETTINGS: &str = "[store]\ncache_bytes = \"64MiB\"\n";

/// Measures a punctual release build on this machine.
#[derive(Debug, Parser)]
struct Options {
    /// Nodes: 1 or 3.
    #[arg(long, default_value_t = 1)]
    nodes: usize,
    /// Workloads, by comma: w1 (with w2), w3, w4, w5, w6.
    #[arg(long, value_delimiter = ',', default_value = "w1,w3,w4,w5,w6")]
    only: Vec<String>,
    /// A tenth of the work, for a quick look.
    #[arg(long)]
    quick: bool,
    /// Also the large sizes: 100,000 due at one instant and 5,000,000 resting schedules.
    #[arg(long)]
    full: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn version() -> String {
    let out = Command::new(binary()).arg("--version").output();
    out.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
        .unwrap_or_default()
}

async fn run(options: &Options) -> Result<(), String> {
    let setting = Setting {
        nodes: options.nodes,
        version: version(),
        config: "store.cache_bytes = 64MiB, else defaults; payload 100 bytes",
    };
    let print = |(name, figures): (String, Value)| println!("{}", line(&setting, &name, figures));
    let scale = if options.quick { 10 } else { 1 };
    for workload in &options.only {
        // Each workload on a fresh cluster, so that none pays for another's data.
        let mut cluster = Cluster::start(options.nodes, SETTINGS).await?;
        match workload.as_str() {
            "w1" => {
                let lines = workloads::create_and_drain(&cluster, 50_000 / scale).await?;
                lines.into_iter().for_each(print);
            }
            "w3" => {
                print(workloads::burst(&cluster, 20_000 / scale).await?);
                if options.full {
                    print(workloads::burst(&cluster, 100_000 / scale).await?);
                }
            }
            "w4" => print(workloads::steady(&cluster, 200, 60 / scale).await?),
            "w5" => {
                print(resting::resting(&mut cluster, 500_000 / scale).await?);
                if options.full {
                    let mut fresh = Cluster::start(options.nodes, SETTINGS).await?;
                    print(resting::resting(&mut fresh, 5_000_000 / scale).await?);
                }
            }
            "w6" => print(workloads::every_minute(&cluster, 10_000 / scale, 3).await?),
            other => return Err(format!("no workload {other:?}: w1, w3, w4, w5, w6")),
        }
    }
    Ok(())
}
