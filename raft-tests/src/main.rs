//! Runs batches of seeds.
//!
//! Purpose: the command line of the simulation. It prints failures with the command that replays them, and one JSON line
//! for the ledger at the end; it exits with 1 if a rule was broken or the batch was empty of what it must contain.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Parser;
use parking_lot::Mutex;
use raft_tests::sim::ledger::Counters;
use raft_tests::sim::options::Overrides;
use raft_tests::sim::seed::Seed;
use raft_tests::sim::{SeedReport, run_seed};
use raft_tests::workload::Kind;

/// Simulates clusters from seeds.
#[derive(Clone, Debug, Parser)]
struct Args {
    /// A seed, or a range `from..to` (`to` excluded).
    #[arg(long, default_value = "0..100")]
    seeds: String,
    /// What the cluster is used for.
    #[arg(long, value_enum, default_value_t = Kind::Scheduler)]
    workload: Kind,
    /// Number of voters, instead of one drawn from the seed.
    #[arg(long)]
    nodes: Option<u64>,
    /// Virtual milliseconds under faults.
    #[arg(long)]
    chaos_ms: Option<u64>,
    /// Print what happened.
    #[arg(long)]
    trace: bool,
    /// Log of the nodes on standard error, such as `openraft=debug`; for one seed.
    #[arg(long)]
    log: Option<String>,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    jobs: u64,
    /// Run the seeds in reverse order.
    #[arg(long)]
    reverse: bool,
    /// Print each seed with its hash.
    #[arg(long)]
    hashes: bool,
    /// Run everything again in a second process, in reverse order, and compare the hashes.
    #[arg(long)]
    twice: bool,
    /// Plant bugs (leader restore, acknowledgement before sync) and succeed only if they are found.
    #[arg(long)]
    canary: bool,
    /// Of the two, plant only the first: a crashed leader resumes its term.
    #[arg(long)]
    leader_restore: bool,
    /// Only crash leaders with slow disks and bring them back at once.
    #[arg(long)]
    only_fast_returns: bool,
}

impl Args {
    fn range(&self) -> Option<(u64, u64)> {
        match self.seeds.split_once("..") {
            Some((from, to)) => Some((from.parse().ok()?, to.parse().ok()?)),
            None => {
                let one: u64 = self.seeds.parse().ok()?;
                Some((one, one.checked_add(1)?))
            }
        }
    }

    fn overrides(&self) -> Overrides {
        Overrides {
            nodes: self.nodes,
            chaos_ms: self.chaos_ms,
            leader_restore: self.leader_restore || self.canary,
            acknowledge_early: self.canary,
            only_fast_returns: self.only_fast_returns || self.canary,
            verbose: self.trace,
        }
    }

    fn replay(&self, seed: u64) -> String {
        let workload = self.workload.name();
        let mut command = format!("scripts/sim --workload {workload} --seeds {seed}");
        if let Some(nodes) = self.nodes {
            command.push_str(&format!(" --nodes {nodes}"));
        }
        if let Some(ms) = self.chaos_ms {
            command.push_str(&format!(" --chaos-ms {ms}"));
        }
        for (set, name) in [
            (self.canary, " --canary"),
            (self.leader_restore, " --leader-restore"),
            (self.only_fast_returns, " --only-fast-returns"),
        ] {
            if set {
                command.push_str(name);
            }
        }
        command.push_str(" --trace");
        command
    }
}

fn one(workload: Kind, seed: u64, overrides: &Overrides) -> SeedReport {
    run_seed(Seed(seed), overrides, &|seed, options| {
        workload.make(seed, options)
    })
}

/// Runs all seeds on `jobs` threads; reports come in the order of the seeds.
fn batch(args: &Args, from: u64, to: u64) -> Vec<SeedReport> {
    let overrides = args.overrides();
    let next = AtomicU64::new(0);
    let reports = Mutex::new(Vec::new());
    std::thread::scope(|threads| {
        for _ in 0..args.jobs.max(1) {
            threads.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= to.saturating_sub(from) {
                        return;
                    }
                    let seed = if args.reverse { to - 1 - at } else { from + at };
                    let report = one(args.workload, seed, &overrides);
                    reports.lock().push(report);
                }
            });
        }
    });
    let mut reports = reports.into_inner();
    reports.sort_by_key(|r| r.seed);
    reports
}

/// Runs the same seeds in another process, in reverse, and returns the seeds whose hashes differ.
fn repeat(args: &Args, first: &[SeedReport]) -> Result<Vec<u64>, String> {
    let program = std::env::args().next().unwrap_or_default();
    let mut again = std::process::Command::new(program);
    for arg in std::env::args().skip(1).filter(|a| a != "--twice") {
        again.arg(arg);
    }
    if !args.reverse {
        again.arg("--reverse");
    }
    if !args.hashes {
        again.arg("--hashes");
    }
    let output = again.output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut second = std::collections::BTreeMap::new();
    for line in text.lines() {
        if let Some((seed, hash)) = line.strip_prefix("hash ").and_then(|l| l.split_once(' ')) {
            second.insert(seed.to_owned(), hash.to_owned());
        }
    }
    let differs =
        |r: &&SeedReport| second.get(&r.seed.to_string()) != Some(&format!("{:016x}", r.hash));
    Ok(first.iter().filter(differs).map(|r| r.seed).collect())
}

fn missing(required: &[&'static str], counters: &Counters, seeds: usize) -> Vec<&'static str> {
    if seeds < 100 {
        return Vec::new();
    }
    let absent = |name: &&&'static str| counters.get(name) == 0;
    required.iter().filter(absent).copied().collect()
}

/// What a batch came to.
#[derive(Default)]
struct Verdict {
    total: Counters,
    failed: Vec<u64>,
    /// Seeds with less than 200 acknowledged writes, 20 virtual seconds or 5 faults.
    thin: u64,
    hash: u64,
}

impl Verdict {
    fn add(&mut self, args: &Args, report: &SeedReport) {
        self.total.merge(&report.counters);
        self.hash = self.hash.rotate_left(1) ^ report.hash;
        let counted = |name: &str| report.counters.get(name);
        if counted("acked") < 200 || counted("virtual_ms") < 20_000 || counted("faults") < 5 {
            self.thin += 1;
        }
        if args.hashes {
            println!("hash {} {:016x}", report.seed, report.hash);
        }
        for line in &report.lines {
            println!("{line}");
        }
        if report.violations.is_empty() {
            return;
        }
        self.failed.push(report.seed);
        if !args.canary {
            eprintln!("seed {} failed:", report.seed);
            for violation in report.violations.iter().take(8) {
                eprintln!("  {violation}");
            }
            eprintln!("  replay: {}", args.replay(report.seed));
        }
    }
}

fn differing(args: &Args, reports: &[SeedReport]) -> Result<Vec<u64>, String> {
    if !args.twice {
        return Ok(Vec::new());
    }
    let seeds = repeat(args, reports)?;
    for seed in &seeds {
        eprintln!("seed {seed} gave another hash in the second process");
    }
    Ok(seeds)
}

fn main() -> ExitCode {
    let args = Args::parse();
    let Some((from, to)) = args.range() else {
        eprintln!("--seeds takes a number or a range such as 0..500");
        return ExitCode::from(2);
    };
    if let Some(filter) = &args.log {
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .without_time()
            .init();
    }
    #[allow(
        clippy::disallowed_methods,
        reason = "the ledger says how long the batch took"
    )]
    let started = std::time::Instant::now();
    let reports = batch(&args, from, to);
    let mut verdict = Verdict::default();
    for report in &reports {
        verdict.add(&args, report);
    }
    let differing = match differing(&args, &reports) {
        Ok(seeds) => seeds,
        Err(why) => {
            eprintln!("the second process did not run: {why}");
            return ExitCode::from(2);
        }
    };
    let missing = if args.canary || args.only_fast_returns {
        Vec::new()
    } else {
        missing(args.workload.required(), &verdict.total, reports.len())
    };
    for name in &missing {
        eprintln!("nothing was counted under {name}: the batch proves nothing about it");
    }
    let ledger = serde_json::json!({
        "seeds": format!("{from}..{to}"),
        "workload": args.workload.name(),
        "failed": verdict.failed.len(),
        "thin": verdict.thin,
        "differing": differing.len(),
        "compared": args.twice,
        "hash": format!("{:016x}", verdict.hash),
        "wall_ms": u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        "counters": verdict.total.all(),
    });
    println!("{ledger}");
    let good = if args.canary {
        !verdict.failed.is_empty()
    } else {
        verdict.failed.is_empty() && missing.is_empty() && verdict.thin == 0
    };
    if good && differing.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(1)
    }
}
