//! `punctual store …`: offline work on a node's data.

use std::path::PathBuf;

use clap::Subcommand;
use serde_json::json;

use super::exit::Code;
use super::failure::Failure;
use super::output::Output;
use crate::node::DataDir;
use crate::state::verify::{Report, verify};
use crate::store::StateStore;
use crate::store::rocks::{RocksMemory, RocksStore};

/// Memory for a check: it reads everything once, so a large cache would not help.
const CACHE_BYTES: usize = 64 << 20;
/// Nothing is written.
const MEMTABLE_BYTES: usize = 8 << 20;

/// Verbs of `store`.
#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Check that every schedule and execution has exactly one next event or owner, and that counters equal a recount.
    /// The node must be stopped.
    Verify {
        /// The node's data directory.
        #[arg(long, value_name = "DIR", default_value = "./punctual-data")]
        data_dir: PathBuf,
    },
}

pub(super) fn run(verb: &Verb, output: &Output) -> Result<Code, Failure> {
    let Verb::Verify { data_dir } = verb;
    if !data_dir.join("state").is_dir() {
        return Err(Failure::usage(format!(
            "{}: holds no store of a node; give its data_dir to --data-dir",
            data_dir.display()
        )));
    }
    let lock = DataDir::lock(data_dir).map_err(|e| Failure::other(e.to_string()))?;
    let report = check(lock.path()).map_err(|e| Failure::other(e.to_string()))?;
    show(&report, output);
    Ok(if report.is_sound() {
        Code::Ok
    } else {
        Code::Failed
    })
}

fn check(data_dir: &std::path::Path) -> Result<Report, crate::fault::Fault> {
    let store = RocksStore::open(data_dir, &RocksMemory::new(CACHE_BYTES, MEMTABLE_BYTES))?;
    verify(store.snapshot().as_ref())
}

fn show(report: &Report, output: &Output) {
    if output.is_json() {
        let problems: Vec<_> = report
            .problems
            .iter()
            .map(|p| json!({"object": p.object, "what": p.what}))
            .collect();
        output.json(&json!({
            "sound": report.is_sound(),
            "applied_index": report.applied_index,
            "checked": report.checked,
            "problem_count": report.problem_count,
            "problems": problems,
        }));
        return;
    }
    let rows: Vec<Vec<String>> = report
        .checked
        .iter()
        .map(|(what, n)| vec![(*what).to_owned(), n.to_string()])
        .collect();
    output.table(&["ROWS", "CHECKED"], &rows);
    for problem in &report.problems {
        output.line(&format!("{}: {}", problem.object, problem.what));
    }
    let listed = report.problems.len() as u64;
    if report.problem_count > listed {
        output.line(&format!("and {} more", report.problem_count - listed));
    }
    let verdict = if report.is_sound() { "ok" } else { "failed" };
    output.line(&format!(
        "{verdict} at index {}: {} problems",
        report.applied_index, report.problem_count
    ));
}
