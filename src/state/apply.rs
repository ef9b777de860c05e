//! Applies one entry: commands in order, outcomes by position.
//!
//! Purpose: the dispatch of commands, the check of office, and idempotency around every command that carries a key.
//! Callers: [`crate::state::replica`], the reference tests. Invariants:
//! 1. A batch whose term is not in office changes nothing but time (its commands answer `NotInOffice`).
//! 2. An outcome under an idempotency key is stored in the entry that produced it, unless it is a refusal.

use crate::command::admin::AdminCommand;
use crate::command::executions::ExecutionCommand;
use crate::command::leases::LeaseCommand;
use crate::command::outcome::{Effect, Outcome, Refusal};
use crate::command::schedules::ScheduleCommand;
use crate::command::{Batch, Command, Envelope, Idempotency};
use crate::fault::Fault;
use crate::ids::TenantNo;
use crate::model::history::IdempotencyRecord;
use crate::state::context::Context;
use crate::state::machine::Position;
use crate::state::resident::Resident;
use crate::state::{admin, cancel, executions, expiry, firing, grants, reports, schedules};
use crate::store::txn::Txn;
use crate::store::{Family, View, WriteBatch, keys};
use crate::time::Timestamp;

/// What applying one batch gave.
#[derive(Debug)]
pub struct AppliedBatch {
    /// By position of the command.
    pub outcomes: Vec<Outcome>,
    /// For the leader.
    pub effects: Vec<Effect>,
    /// For the store.
    pub writes: WriteBatch,
    /// Replicated time after it.
    pub now: Timestamp,
}

/// Idempotency answers are found in this many buckets of twelve hours back: 24 h and what is left of the present one.
const IDEMPOTENCY_BUCKETS: u32 = 3;

/// Applies `batch`, the entry at `position`. `base` is the store without it. Afterwards `state` holds it, and the caller
/// writes [`AppliedBatch::writes`]; if that fails the node must stop.
///
/// # Errors
/// A [`Fault`]: a broken invariant or an unreadable store. `state` may then be half changed: the node must stop.
pub fn apply_batch(
    state: &mut Resident,
    base: &dyn View,
    position: Position,
    batch: &Batch,
) -> Result<AppliedBatch, Fault> {
    let mut txn = Txn::new(base);
    txn.prefetch(crate::state::prefetch::keys_of(state, batch))?;
    let mut context = Context::new(state, txn, position, batch.proposed_at);
    let mut outcomes = Vec::with_capacity(batch.commands.len());
    for (place, envelope) in (0..).zip(&batch.commands) {
        context.begin(place, envelope);
        outcomes.push(apply_envelope(&mut context, batch.term, envelope)?);
    }
    let now = context.now;
    let (writes, effects) = context.finish()?;
    Ok(AppliedBatch {
        outcomes,
        effects,
        writes,
        now,
    })
}

fn apply_envelope(
    context: &mut Context<'_>,
    term: u64,
    envelope: &Envelope,
) -> Result<Outcome, Fault> {
    if let Command::Admin(AdminCommand::TakeOffice(command)) = &envelope.command {
        return Ok(settle(admin::take_office(context, term, *command)?));
    }
    if context.state.cluster.office_term != term {
        return Ok(Outcome::Refused(Refusal::NotInOffice));
    }
    let Some(key) = envelope.idempotency else {
        return Ok(settle(dispatch(context, &envelope.command)?));
    };
    let tenant = admin::tenant_of(context.state, &envelope.command);
    if let Some(answer) = recall(context, tenant, key)? {
        return Ok(answer);
    }
    let outcome = settle(dispatch(context, &envelope.command)?);
    if !matches!(outcome, Outcome::Refused(_)) {
        remember(context, tenant, key, &outcome)?;
    }
    Ok(outcome)
}

fn settle(result: Result<Outcome, Refusal>) -> Outcome {
    result.unwrap_or_else(Outcome::Refused)
}

/// What a command module answers: a fault stops the node, a refusal changed nothing.
pub type Verdict = Result<Result<Outcome, Refusal>, Fault>;

fn dispatch(context: &mut Context<'_>, command: &Command) -> Verdict {
    match command {
        Command::Admin(command) => match command {
            AdminCommand::TakeOffice(_) => Ok(Ok(Outcome::Done)),
            AdminCommand::AdvanceWatermarks(c) => admin::advance_watermarks(context, c),
            AdminCommand::AdvanceRetention(c) => admin::advance_retention(context, c),
            AdminCommand::PutTenant(c) => admin::put_tenant(context, c),
            AdminCommand::PutQueue(c) => admin::put_queue(context, c),
            AdminCommand::DeleteQueue(c) => admin::delete_queue(context, c),
            AdminCommand::PutKey(c) => admin::put_key(context, c),
            AdminCommand::SetPause(c) => admin::set_pause(context, c),
            AdminCommand::PutSettings(c) => admin::put_settings(context, c),
        },
        Command::Schedule(command) => match command {
            ScheduleCommand::Put(c) => schedules::put(context, c),
            ScheduleCommand::Delete(c) => schedules::delete(context, c),
            ScheduleCommand::Pause(c) => schedules::pause(context, c),
            ScheduleCommand::Resume(c) => schedules::resume(context, c),
            ScheduleCommand::Trigger(c) => firing::trigger(context, c),
            ScheduleCommand::Fire(c) => firing::fire(context, c),
            ScheduleCommand::Remove(c) => schedules::remove(context, c),
        },
        Command::Execution(command) => match command {
            ExecutionCommand::Submit(c) => executions::submit(context, c),
            ExecutionCommand::Cancel(c) => cancel::cancel(context, c),
            ExecutionCommand::Delete(c) => executions::delete(context, c),
            ExecutionCommand::ProcessDue(c) => executions::process_due(context, c),
        },
        Command::Lease(command) => match command {
            LeaseCommand::Grant(c) => grants::grant(context, c),
            LeaseCommand::Report(c) => reports::report(context, c),
            LeaseCommand::Expire(c) => expiry::expire(context, c),
            LeaseCommand::Revoke(c) => expiry::revoke(context, c),
        },
    }
}

/// The buckets in which an answer may be, newest first.
pub(super) fn idempotency_buckets(
    state: &Resident,
    newest: u32,
) -> impl Iterator<Item = u32> + use<> {
    let oldest = newest.saturating_sub(IDEMPOTENCY_BUCKETS - 1);
    (oldest.max(state.cluster.idempotency_from)..=newest).rev()
}

fn recall(
    context: &Context<'_>,
    tenant: TenantNo,
    key: Idempotency,
) -> Result<Option<Outcome>, Fault> {
    let newest = keys::idempotency_bucket(context.now);
    for bucket in idempotency_buckets(context.state, newest) {
        let row = keys::idempotency(bucket, tenant, &key.hash);
        if let Some(record) = context.get::<IdempotencyRecord>(Family::Keys, &row)? {
            return Ok(Some(if record.fingerprint == key.fingerprint {
                Outcome::Replayed(Box::new(record.outcome))
            } else {
                Outcome::Refused(Refusal::IdempotencyConflict)
            }));
        }
    }
    Ok(None)
}

fn remember(
    context: &mut Context<'_>,
    tenant: TenantNo,
    key: Idempotency,
    outcome: &Outcome,
) -> Result<(), Fault> {
    let bucket = keys::idempotency_bucket(context.now);
    let record = IdempotencyRecord {
        fingerprint: key.fingerprint,
        outcome: outcome.clone(),
        index: context.token,
    };
    context.put(
        Family::Keys,
        keys::idempotency(bucket, tenant, &key.hash),
        &record,
    )
}
