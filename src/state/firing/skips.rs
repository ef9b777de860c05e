//! Skip records: nominal times that did not run, run-length compressed.

use crate::fault::Fault;
use crate::model::history::LedgerRow;
use crate::model::schedule::{LastSkip, Schedule, ScheduleStatus, SkipRecord};
use crate::state::context::Context;
use crate::state::history::KEEP_OTHER;
use crate::store::Family;
use crate::store::keys::{self, RetentionClass};

/// Writes a skip record to the ledger and counts it. It extends the latest one when that is its equal neighbour:
/// same reason, blocker and lost wall time, no occurrence created between them, and the same bucket of history (so
/// that a run that goes on for ever has a row a day and each row is kept its full time).
///
/// # Errors
/// [`Fault::Invariant`] for a value over the bound.
pub(in crate::state) fn record(
    context: &mut Context<'_>,
    schedule: &Schedule,
    status: &mut ScheduleStatus,
    record: &SkipRecord,
) -> Result<(), Fault> {
    let total = status.skipped.entry(record.reason).or_default();
    *total = total.saturating_add(record.count);
    let (whole, key) = match status.last_skip.take() {
        Some(last)
            if key_of(context, schedule, &last.record) == last.key
                && are_neighbours(&last.record, record) =>
        {
            (joined(last.record, record), last.key)
        }
        _ => (record.clone(), key_of(context, schedule, record)),
    };
    let row = LedgerRow::Skipped {
        incarnation: schedule.incarnation,
        record: whole.clone(),
    };
    context.put(Family::History, key.clone(), &row)?;
    status.last_skip = Some(LastSkip { key, record: whole });
    Ok(())
}

/// Where a record that is first written now belongs.
fn key_of(context: &Context<'_>, schedule: &Schedule, record: &SkipRecord) -> Vec<u8> {
    let class = RetentionClass::for_span(KEEP_OTHER);
    keys::ledger_skip(
        class,
        class.bucket(context.now),
        schedule,
        record.from,
        record.reason,
    )
}

fn are_neighbours(last: &SkipRecord, next: &SkipRecord) -> bool {
    last.reason == next.reason
        && last.blocker == next.blocker
        && last.local == next.local
        && last.to < next.from
}

fn joined(last: SkipRecord, next: &SkipRecord) -> SkipRecord {
    SkipRecord {
        to: next.to,
        count: last.count.saturating_add(next.count),
        at_least: last.at_least || next.at_least,
        ..last
    }
}
