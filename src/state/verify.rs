//! Offline check of a whole state: does every object have exactly one next event or owner, and do the counts add up?
//!
//! Purpose: the proof behind `store verify`, also run by tests after random histories. Callers: `cli`, tests. It reads
//! through a [`View`] alone and knows nothing of how apply got there.
//! Bounds: rows are read in pages; what is kept is what every node keeps in memory ([`Resident`]), one recount of the
//! same size, and the first [`PROBLEMS_MAX`] problems.
//! Invariants checked:
//! 1. Each active schedule with a future has exactly one due entry, of its next occurrence; a timed pause and a
//!    completed schedule have theirs; nothing else is in the due index.
//! 2. Each open execution has a live lease, or one place in a line, or one due entry; start deadlines match.
//! 3. Every row has its owner: leases, lines, bodies, unique keys, pointers, earlier definitions.
//! 4. Counters equal a recount. Schedules and their open executions name each other.
//! 5. No live entry lies below its watermark, and no watermark lies above log time.

mod executions;
mod index;
mod records;
mod schedules;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::fault::Fault;
use crate::ids::{QueueNo, TenantNo};
use crate::model::queue::LineCounts;
use crate::model::tenant::TenantUsage;
use crate::state::resident::{Resident, read};
use crate::store::due::{DueEntry, Level};
use crate::store::keys::{self, RetentionClass};
use crate::store::value::{self, Stored};
use crate::store::{Direction, Family, KeyRange, View};

/// Most problems that a report lists; the rest is only counted.
pub const PROBLEMS_MAX: usize = 200;
/// Rows read at a time.
const PAGE_ROWS: usize = 500;
/// Bytes after which a page ends early.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Which object: its kind and name (`schedule 1/daily`).
    pub object: String,
    /// What is wrong with it.
    pub what: String,
}

/// What was looked at and what was wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Index of the last applied entry; 0 for an empty state.
    pub applied_index: u64,
    /// The same; `None` for a state to which nothing was applied.
    pub applied: Option<u64>,
    /// Rows looked at, by what they are.
    pub checked: BTreeMap<&'static str, u64>,
    /// The first [`PROBLEMS_MAX`] problems, in the order in which they were found.
    pub problems: Vec<Problem>,
    /// How many problems there are.
    pub problem_count: u64,
}

impl Report {
    /// Whether nothing is wrong.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        self.problem_count == 0
    }
}

/// Checks everything in `view`. It may take minutes on a large store and blocks on the disk.
///
/// # Errors
/// [`Fault::Storage`] when the store cannot be read; [`Fault::UnknownFormat`] for data of a newer build. Rows that do
/// not decode are problems, except for those that every node must load at start.
pub fn verify(view: &dyn View) -> Result<Report, Fault> {
    let resident = Resident::load(view)?;
    let mut check = Check {
        view,
        resident: &resident,
        report: Report::default(),
        counts: BTreeMap::new(),
        usage: BTreeMap::new(),
        parked: BTreeMap::new(),
    };
    check.report.applied = resident.applied.position.map(|p| p.index);
    check.report.applied_index = check.report.applied.unwrap_or(0);
    check.watermarks();
    check.live()?;
    check.lines()?;
    check.due_index()?;
    check.bodies()?;
    check.keys()?;
    check.history()?;
    check.recount();
    Ok(check.report)
}

/// A key with its value.
type Row = (Vec<u8>, Vec<u8>);

/// Work under way.
struct Check<'a> {
    view: &'a dyn View,
    resident: &'a Resident,
    report: Report,
    counts: BTreeMap<(QueueNo, TenantNo), LineCounts>,
    usage: BTreeMap<TenantNo, TenantUsage>,
    parked: BTreeMap<(TenantNo, String), u64>,
}

impl Check<'_> {
    fn problem(&mut self, object: impl FnOnce() -> String, what: impl Into<String>) {
        self.report.problem_count += 1;
        if self.report.problems.len() < PROBLEMS_MAX {
            self.report.problems.push(Problem {
                object: object(),
                what: what.into(),
            });
        }
    }

    fn count(&mut self, what: &'static str) {
        *self.report.checked.entry(what).or_default() += 1;
    }

    fn read<T: Stored>(&mut self, family: Family, key: &[u8]) -> Result<Option<T>, Fault> {
        match read(self.view, family, key) {
            Err(Fault::Corrupt(why)) => {
                self.problem(|| row_name(family, key), why);
                Ok(None)
            }
            other => other,
        }
    }

    fn decode<T: Stored>(
        &mut self,
        family: Family,
        key: &[u8],
        bytes: &[u8],
    ) -> Result<Option<T>, Fault> {
        match value::decode(bytes) {
            Ok(row) => Ok(Some(row)),
            Err(Fault::Corrupt(why)) => {
                self.problem(|| row_name(family, key), why);
                Ok(None)
            }
            Err(fault) => Err(fault),
        }
    }

    /// Calls `visit` for every row of a family, page by page, so that `visit` may read.
    fn each(
        &mut self,
        family: Family,
        mut visit: impl FnMut(&mut Self, &[u8], &[u8]) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut range = KeyRange::prefix(&[]);
        loop {
            let page = self.page(family, &range)?;
            let Some((last, _)) = page.last() else {
                return Ok(());
            };
            range.from = [last.as_slice(), &[0]].concat();
            for (key, bytes) in &page {
                visit(self, key, bytes)?;
            }
        }
    }

    fn page(&self, family: Family, range: &KeyRange) -> Result<Vec<Row>, Fault> {
        let mut page = Vec::new();
        let mut bytes = 0;
        let view = self.view;
        view.scan(family, range, Direction::Forward, &mut |key, row| {
            bytes += key.len() + row.len();
            page.push((key.to_vec(), row.to_vec()));
            if page.len() >= PAGE_ROWS || bytes >= PAGE_BYTES {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        Ok(page)
    }

    /// Whether `entry` is in the due index and not below its level's watermark.
    fn has_due(&self, entry: &DueEntry) -> Result<bool, Fault> {
        let from = self.resident.cluster.due_from.get(entry.key.level.index());
        let above = from.is_none_or(|from| entry.key.at >= *from);
        let there = self.view.get(entry.key.level.family(), &entry.encode())?;
        Ok(above && there.is_some())
    }

    fn watermarks(&mut self) {
        let now = self.resident.applied.now;
        let cluster = &self.resident.cluster;
        for (level, from) in Level::ALL.into_iter().zip(cluster.due_from) {
            if from > now {
                let name = || format!("watermark of {level:?}");
                self.problem(name, format!("{from} is above log time {now}"));
            }
        }
        for class in RetentionClass::all() {
            let from = cluster.history_from.get(usize::from(class.0)).copied();
            if from.is_some_and(|from| from > class.first_kept(now)) {
                let name = || format!("watermark of retention class {}", class.0);
                self.problem(name, "rows younger than the span are absent");
            }
        }
        if cluster.idempotency_from > keys::idempotency_bucket(now) {
            let name = || "watermark of idempotency answers".to_owned();
            self.problem(name, "it is above log time");
        }
    }

    /// Compares the kept counters with what was found.
    fn recount(&mut self) {
        let resident = self.resident;
        let none = LineCounts::default();
        let lines: Vec<_> = resident
            .counts
            .keys()
            .chain(self.counts.keys())
            .copied()
            .collect();
        for line in lines {
            let kept = resident.counts.get(&line).unwrap_or(&none);
            let found = *self.counts.entry(line).or_default();
            if *kept != found {
                let name = || format!("counts of queue {} tenant {}", line.0.0, line.1.0);
                self.problem(name, format!("kept {kept:?}, found {found:?}"));
                self.counts.insert(line, *kept);
            }
        }
        let tenants: Vec<_> = resident
            .usage
            .keys()
            .chain(self.usage.keys())
            .copied()
            .collect();
        for tenant in tenants {
            let kept = resident.usage.get(&tenant).copied().unwrap_or_default();
            let found = *self.usage.entry(tenant).or_default();
            if kept != found {
                let name = || format!("usage of tenant {}", tenant.0);
                self.problem(name, format!("kept {kept:?}, found {found:?}"));
                self.usage.insert(tenant, kept);
            }
        }
        let names: Vec<_> = resident
            .keys
            .keys()
            .chain(self.parked.keys())
            .cloned()
            .collect();
        for name in names {
            let kept = resident.keys.get(&name).map_or(0, |row| row.parked);
            let found = self.parked.get(&name).copied().unwrap_or(0);
            if kept != found {
                let object = || format!("concurrency key {}/{}", name.0.0, name.1);
                self.problem(object, format!("kept {kept} parked, found {found}"));
                self.parked.insert(name, kept);
            }
        }
    }
}

/// A row that cannot be named better.
fn row_name(family: Family, key: &[u8]) -> String {
    let text: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("row {text} of {}", family.name())
}

#[cfg(test)]
mod tests;
