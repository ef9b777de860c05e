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
use crate::store::log::LogStatus;
use crate::store::log::rocks::survey;
use crate::store::rocks::{RocksMemory, RocksStore};

/// Memory for a check: it reads everything once, so a large cache would not help.
const CACHE_BYTES: usize = 64 << 20;
/// Nothing is written.
const MEMTABLE_BYTES: usize = 8 << 20;

/// Verbs of `store`.
#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Check that every schedule and execution has exactly one next event or owner, that counters equal a recount, and
    /// that the log goes on where the state ends. The node must be stopped.
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
    let (report, log) = check(lock.path()).map_err(|e| Failure::other(e.to_string()))?;
    let replay = Replay::of(log.as_ref(), report.applied);
    show(&report, &replay, output);
    Ok(match report.is_sound() && !replay.has_gap {
        true => Code::Ok,
        false => Code::Failed,
    })
}

fn check(data_dir: &std::path::Path) -> Result<(Report, Option<LogStatus>), crate::fault::Fault> {
    let store = RocksStore::open(data_dir, &RocksMemory::new(CACHE_BYTES, MEMTABLE_BYTES))?;
    let report = verify(store.snapshot().as_ref())?;
    Ok((report, survey(data_dir)?))
}

/// What the log holds beyond the state. The state has no log of its own: after a crash it is a prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Replay {
    /// The first and last entry that are not in the state.
    entries: Option<(u64, u64)>,
    /// Entries between the state and the log are in neither.
    has_gap: bool,
}

impl Replay {
    fn of(log: Option<&LogStatus>, applied: Option<u64>) -> Self {
        let next = applied.map_or(0, |applied| applied.saturating_add(1));
        let Some(log) = log else {
            return Self::default();
        };
        let purged = log.purged.map(|p| p.index);
        let last = log
            .last
            .map(|p| p.index)
            .filter(|last| Some(*last) > purged);
        Self {
            entries: last.filter(|last| *last >= next).map(|last| (next, last)),
            has_gap: purged.is_some_and(|purged| purged >= next),
        }
    }

    fn count(&self) -> u64 {
        self.entries.map_or(0, |(first, last)| last - first + 1)
    }
}

fn show(report: &Report, replay: &Replay, output: &Output) {
    if output.is_json() {
        let problems: Vec<_> = report
            .problems
            .iter()
            .map(|p| json!({"object": p.object, "what": p.what}))
            .collect();
        output.json(&json!({
            "sound": report.is_sound() && !replay.has_gap,
            "applied_index": report.applied_index,
            "entries_to_replay": replay.count(),
            "log_begins_after_gap": replay.has_gap,
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
    if replay.has_gap {
        output.line(&format!(
            "log: it begins after entry {} of the state, and what lies between is in neither; the node needs a snapshot \
             of another one",
            report.applied_index
        ));
    }
    let is_ok = report.is_sound() && !replay.has_gap;
    let verdict = if is_ok { "ok" } else { "failed" };
    output.line(&format!(
        "{verdict} at index {}: {} problems",
        report.applied_index, report.problem_count
    ));
    if let Some((first, last)) = replay.entries {
        output.line(&format!(
            "checked without the last {} entries of the log ({first} to {last}), which are not in the state yet; the \
             node replays those that are committed when it starts",
            replay.count()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::log::LogPosition;

    fn log(purged: Option<u64>, last: Option<u64>) -> LogStatus {
        let at = |index| LogPosition {
            term: 1,
            leader: 1,
            index,
        };
        LogStatus {
            vote: None,
            purged: purged.map(at),
            last: last.map(at),
        }
    }

    #[test]
    fn what_the_log_holds_beyond_the_state_is_counted() {
        let of = |purged, last, applied| {
            let replay = Replay::of(Some(&log(purged, last)), applied);
            (replay.count(), replay.has_gap)
        };
        assert_eq!(of(None, None, None), (0, false));
        assert_eq!(of(None, Some(36), None), (37, false));
        assert_eq!(of(None, Some(36), Some(36)), (0, false));
        assert_eq!(of(Some(10), Some(36), Some(30)), (6, false));
        // The state may be ahead of what the log kept.
        assert_eq!(of(Some(10), Some(36), Some(40)), (0, false));
        // A received image: everything before it is purged, nothing follows.
        assert_eq!(of(Some(36), Some(36), Some(36)), (0, false));
        assert_eq!(of(Some(20), Some(36), Some(10)), (26, true));
        assert_eq!(Replay::of(None, None), Replay::default());
    }
}
