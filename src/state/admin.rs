//! Commands about the cluster: office, watermarks, retention, settings.
//!
//! Callers: `state::apply`. Tenants and queues are in `admin::objects`, keys in `admin::limits`, pauses in
//! `admin::pauses`. Invariants:
//! 1. Term, watermarks and index base only grow.
//! 2. Everything a person changes leaves an audit record; what the leader does for itself leaves none.

mod limits;
mod objects;
mod pauses;

pub(super) use limits::put_key;
pub(super) use objects::{delete_queue, put_queue, put_tenant};
pub(super) use pauses::{may_lift, set_pause};

use crate::command::Command;
use crate::command::admin::{
    AdminCommand, AdvanceRetention, AdvanceWatermarks, PutSettings, TakeOffice,
};
use crate::command::executions::ExecutionCommand;
use crate::command::outcome::{Effect, Outcome, Refusal, Written};
use crate::command::schedules::ScheduleCommand;
use crate::fault::Fault;
use crate::ids::{ExecutionId, Revision, TenantId, TenantNo};
use crate::model::history::ChosenId;
use crate::state::apply::Verdict;
use crate::state::context::Context;
use crate::state::history::is_kept;
use crate::state::resident::Resident;
use crate::store::Family;
use crate::store::keys::{self, RetentionClass};

/// Most chosen ids forgotten by one [`AdvanceRetention`]; the rest of a longer list is passed over.
const FORGET_MAX: usize = 900;
/// Idempotency buckets before the present one that are always kept: answers live at least 24 h.
const IDEMPOTENCY_KEPT: u32 = 2;
/// An index base is a multiple of this, so that a restore leaves every earlier token behind.
const INDEX_BASE_STEP: u64 = 1 << 40;
/// Every number in an answer stays below this.
const INTEGER_END: u64 = 1 << 53;

/// Puts `term` in office, or renews it.
pub(super) fn take_office(context: &mut Context<'_>, term: u64, command: TakeOffice) -> Verdict {
    if term < context.state.cluster.office_term {
        return Ok(Err(Refusal::NotInOffice));
    }
    let now = context.now;
    let cluster = context.cluster_mut();
    cluster.office_term = term;
    cluster.office_node = command.node;
    cluster.took_office_at = now;
    Ok(Ok(Outcome::Done))
}

/// Raises watermarks of the due index, never above log time.
pub(super) fn advance_watermarks(
    context: &mut Context<'_>,
    command: &AdvanceWatermarks,
) -> Verdict {
    for (level, at) in &command.levels {
        let at = (*at).min(context.now);
        let place = level.index();
        let present = context.state.cluster.due_from.get(place).copied();
        if present.is_some_and(|present| at > present)
            && let Some(from) = context.cluster_mut().due_from.get_mut(place)
        {
            *from = at;
        }
    }
    Ok(Ok(Outcome::Done))
}

/// Raises the first kept buckets, never above what log time allows, and forgets pointers to rows below them.
pub(super) fn advance_retention(context: &mut Context<'_>, command: &AdvanceRetention) -> Verdict {
    for (class, first) in &command.classes {
        let first = (*first).min(RetentionClass(*class).first_kept(context.now));
        let place = usize::from(*class);
        let present = context.state.cluster.history_from.get(place).copied();
        if present.is_some_and(|present| first > present)
            && let Some(from) = context.cluster_mut().history_from.get_mut(place)
        {
            *from = first;
        }
    }
    if let Some(first) = command.idempotency_from {
        let newest = keys::idempotency_bucket(context.now);
        let first = first.min(newest.saturating_sub(IDEMPOTENCY_KEPT));
        if first > context.state.cluster.idempotency_from {
            context.cluster_mut().idempotency_from = first;
        }
    }
    for (tenant, id) in command.forget.iter().take(FORGET_MAX) {
        forget(context, tenant, id)?;
    }
    Ok(Ok(Outcome::Done))
}

/// Deletes the pointer of a chosen id when the history row that it points at is below its watermark.
fn forget(context: &mut Context<'_>, tenant: &TenantId, id: &str) -> Result<(), Fault> {
    let (Ok(tenant), Ok(id)) = (context.tenant(tenant), ExecutionId::new(id)) else {
        return Ok(());
    };
    let key = keys::pointer(&id, tenant);
    let chosen: Option<ChosenId> = context.get(Family::Keys, &key)?;
    if let Some((class, bucket)) = chosen.and_then(|chosen| chosen.history)
        && !is_kept(&context.state.cluster, RetentionClass(class), bucket)
    {
        context.delete(Family::Keys, key);
    }
    Ok(())
}

/// Sets the zone data release or the index base. A base that is no multiple of 2^40, is not larger than the present
/// one, or would carry tokens past 2^53 changes nothing.
pub(super) fn put_settings(context: &mut Context<'_>, command: &PutSettings) -> Verdict {
    let present = &context.state.cluster;
    let release = command
        .zone_release
        .clone()
        .filter(|r| *r != present.zone_release);
    let base = command.index_base.filter(|base| {
        base % INDEX_BASE_STEP == 0 && *base > present.index_base && *base < INTEGER_END
    });
    if release.is_none() && base.is_none() {
        let revision = present.revision;
        return Ok(Ok(written(Written::Unchanged, revision)));
    }
    let revision = context.revision();
    let cluster = context.cluster_mut();
    if let Some(release) = release {
        cluster.zone_release = release;
    }
    if let Some(base) = base {
        cluster.index_base = base;
    }
    cluster.revision = revision;
    context.audit(NO_TENANT, "settings.put", "cluster".to_owned())?;
    Ok(Ok(written(Written::Updated, revision)))
}

/// Stands for "no tenant" in keys of audit records and idempotency answers: tenants are numbered from 1.
const NO_TENANT: TenantNo = TenantNo(0);

/// The tenant under which a command's idempotency answer is kept: 0 for a command about no tenant, about one that
/// does not exist, or about the tenant itself (it may come into being by this very command).
pub(super) fn tenant_of(state: &Resident, command: &Command) -> TenantNo {
    let name = match command {
        Command::Admin(AdminCommand::PutKey(c)) => &c.tenant,
        Command::Admin(_) | Command::Lease(_) => return NO_TENANT,
        Command::Schedule(command) => match command {
            ScheduleCommand::Put(c) => &c.tenant,
            ScheduleCommand::Delete(c) => &c.tenant,
            ScheduleCommand::Pause(c) => &c.tenant,
            ScheduleCommand::Resume(c) => &c.tenant,
            ScheduleCommand::Trigger(c) => &c.tenant,
            ScheduleCommand::Fire(c) => return c.tenant,
            ScheduleCommand::Remove(c) => return c.tenant,
        },
        Command::Execution(command) => match command {
            ExecutionCommand::Submit(c) => &c.tenant,
            ExecutionCommand::Cancel(c) => &c.tenant,
            ExecutionCommand::Delete(c) => &c.tenant,
            ExecutionCommand::ProcessDue(_) => return NO_TENANT,
        },
    };
    state.tenant_numbers.get(name).copied().unwrap_or(NO_TENANT)
}

/// The answer to a write of anything but a schedule or an execution.
const fn written(written: Written, revision: Revision) -> Outcome {
    Outcome::Written { written, revision }
}

/// Tells the leader that limits, pauses or weights are not what they were.
fn review(context: &mut Context<'_>) {
    context.effects.push(Effect::ReviewAdmission);
}

#[cfg(test)]
mod tests;
