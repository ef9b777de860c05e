//! Direct submissions: chosen ids, unique keys, quotas, then [`super::create`].

use super::{NewExecution, create, room_for};
use crate::command::executions::{OnConflict, SubmitExecution};
use crate::command::outcome::{Outcome, Refusal, Written};
use crate::fault::Fault;
use crate::ids::{ExecutionId, TenantNo};
use crate::model::execution::{Cause, Execution};
use crate::model::history::{ChosenId, UniqueHolder};
use crate::state::apply::Verdict;
use crate::state::cancel;
use crate::state::context::Context;
use crate::state::history;
use crate::store::keys::RetentionClass;
use crate::store::{Family, keys};

/// Creates an execution, or answers the one that stands for it already: by its chosen id (open, or
/// final and still kept) or by its unique key. What exists is answered whatever the quotas say.
pub(in crate::state) fn submit(context: &mut Context<'_>, command: &SubmitExecution) -> Verdict {
    let tenant = match context.tenant(&command.tenant) {
        Ok(tenant) => tenant,
        Err(refusal) => return Ok(Err(refusal)),
    };
    if let Some(id) = &command.id
        && let Some(known) = by_chosen_id(context, tenant, id, command.fingerprint)?
    {
        return Ok(known.map(|()| submitted(Written::Existing, tenant, id.clone())));
    }
    let replaced = match by_unique_key(context, tenant, command)? {
        Taken::Free => None,
        Taken::Refused(refusal) => return Ok(Err(refusal)),
        Taken::Existing(id) => return Ok(Ok(submitted(Written::Existing, tenant, id))),
        Taken::Replaceable(holder) => Some(*holder),
    };
    if let Err(refusal) = context.queue_admits(&command.queue, tenant) {
        return Ok(Err(refusal));
    }
    let queue = context.queue(&command.queue);
    if let Err(refusal) = room_for(context, tenant, queue, replaced.as_ref()) {
        return Ok(Err(refusal));
    }
    let written = match replaced {
        Some(holder) => {
            cancel::withdraw(context, holder)?;
            Written::Replaced
        }
        None => Written::Created,
    };
    let new = NewExecution {
        tenant,
        queue: context.ensure_queue(&command.queue),
        id: command.id.clone(),
        occurrence: None,
        cause: match command.replay_of {
            Some(_) => Cause::Replay,
            None => Cause::Submitted,
        },
        template: command.template.clone(),
        due_at: command.due_at,
        unique_key: command.unique.as_ref().map(|u| u.key.clone()),
        traceparent: command.traceparent.clone(),
        fingerprint: command.fingerprint,
        replay_of: command.replay_of.clone(),
    };
    // The room was found above, and nothing has taken it since.
    Ok(create(context, new)?.map(|id| submitted(written, tenant, id)))
}

const fn submitted(written: Written, tenant: TenantNo, execution: ExecutionId) -> Outcome {
    Outcome::Submitted {
        written,
        tenant,
        execution,
    }
}

/// Whether the chosen id is taken: `Some(Ok)` by the same content, `Some(Err)` by something else,
/// `None`: free.
///
/// An id that could be a minted one of the tenant is never free: it belongs to an execution that
/// was, is or will be.
fn by_chosen_id(
    context: &Context<'_>,
    tenant: TenantNo,
    id: &ExecutionId,
    fingerprint: u64,
) -> Result<Option<Result<(), Refusal>>, Fault> {
    if id.minted_tenant() == Some(tenant) {
        return Ok(Some(Err(Refusal::IdConflict)));
    }
    let key = keys::pointer(id, tenant);
    let Some(row) = context.get::<ChosenId>(Family::Keys, &key)? else {
        return Ok(None);
    };
    if let Some((class, bucket)) = row.history
        && !history::is_kept(&context.state.cluster, RetentionClass(class), bucket)
    {
        return Ok(None);
    }
    Ok(Some(if row.fingerprint == fingerprint {
        Ok(())
    } else {
        Err(Refusal::IdConflict)
    }))
}

enum Taken {
    /// No unique key, or nobody holds it.
    Free,
    /// The holder answers.
    Existing(ExecutionId),
    /// The holder gives way.
    Replaceable(Box<Execution>),
    /// The holder stays.
    Refused(Refusal),
}

fn by_unique_key(
    context: &Context<'_>,
    tenant: TenantNo,
    command: &SubmitExecution,
) -> Result<Taken, Fault> {
    let Some(unique) = &command.unique else {
        return Ok(Taken::Free);
    };
    let row = keys::unique(tenant, &unique.key);
    let Some(UniqueHolder { execution: holder }) = context.get(Family::Keys, &row)? else {
        return Ok(Taken::Free);
    };
    let is_leased = context.state.lease(tenant, &holder).is_some();
    match unique.on_conflict {
        OnConflict::ReturnExisting => Ok(Taken::Existing(holder)),
        OnConflict::Replace if !is_leased => {
            let row = keys::execution(tenant, &holder);
            let execution: Execution = context.get(Family::Live, &row)?.ok_or_else(|| {
                Fault::invariant(format!("holder {holder} of a unique key is not open"))
            })?;
            Ok(Taken::Replaceable(Box::new(execution)))
        }
        OnConflict::Reject | OnConflict::Replace => {
            Ok(Taken::Refused(Refusal::UniqueKeyHeld { holder }))
        }
    }
}
