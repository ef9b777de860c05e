//! Executions whose time has come.

use crate::command::executions::ProcessDue;
use crate::command::outcome::Outcome;
use crate::fault::Fault;
use crate::ids::ExecutionId;
use crate::model::execution::{Execution, ExecutionState, FinalReason};
use crate::state::apply::Verdict;
use crate::state::context::{Context, Counted};
use crate::state::finishing::{self, Final};
use crate::store::due::{DueEntry, DueKind};
use crate::store::{Family, keys};

/// Carries out each entry that its owner still has and whose time has come; passes over the rest.
/// The entry leaves the index either way: one whose owner does not have it was deleted when the
/// owner moved.
pub(in crate::state) fn process_due(context: &mut Context<'_>, command: &ProcessDue) -> Verdict {
    let mut done = 0_u32;
    for entry in &command.items {
        if process(context, entry)? {
            done = done.saturating_add(1);
        }
    }
    Ok(Ok(Outcome::Processed { done }))
}

fn process(context: &mut Context<'_>, entry: &DueEntry) -> Result<bool, Fault> {
    if entry.key.at > context.now {
        return Ok(false);
    }
    let Ok(id) = ExecutionId::new(&entry.id) else {
        return Ok(false);
    };
    let row = keys::execution(entry.tenant, &id);
    let Some(execution) = context.get::<Execution>(Family::Live, &row)? else {
        return Ok(false);
    };
    if execution.due_key != Some(entry.key) {
        return Ok(false);
    }
    match (execution.state, entry.kind) {
        (ExecutionState::Waiting | ExecutionState::BackingOff, DueKind::Execution) => {
            ripen(context, execution)?;
        }
        (ExecutionState::Ready, DueKind::StartDeadline) => {
            let end = match execution.started_at {
                None => Final::plain(ExecutionState::Expired, FinalReason::StartTimeout),
                Some(_) => out_of_time(),
            };
            finishing::finish(context, execution, end)?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

const fn out_of_time() -> Final {
    Final::plain(ExecutionState::DeadLettered, FinalReason::TotalTimeout)
}

/// Makes a waiting or backing-off execution ready, unless all its time has passed.
fn ripen(context: &mut Context<'_>, mut execution: Execution) -> Result<(), Fault> {
    let is_over = |end| end <= context.now;
    if execution.total_deadline().is_some_and(is_over) {
        return finishing::finish(context, execution, out_of_time());
    }
    let counted = match execution.state {
        ExecutionState::BackingOff => Counted::BackingOff,
        _ => Counted::Waiting,
    };
    context.count(execution.queue, execution.tenant, counted, -1)?;
    if let Some(key) = execution.due_key.take() {
        let id = execution.id.as_str();
        context.disarm(execution.tenant, DueKind::Execution, id, key);
    }
    let line_at = execution.next_attempt_at.unwrap_or(execution.due_at);
    context.offer(&mut execution, line_at)?;
    let row = keys::execution(execution.tenant, &execution.id);
    context.put(Family::Live, row, &execution)
}
