//! Tenants and queues.

use super::{NO_TENANT, review, written};
use crate::command::admin::{DeleteQueue, PutQueue, PutTenant};
use crate::command::outcome::{Outcome, Quota, Refusal, Written};
use crate::ids::{QueueNo, TenantNo};
use crate::model::tenant::Tenant;
use crate::state::apply::Verdict;
use crate::state::checks;
use crate::state::context::{Context, QUEUES_MAX, TENANTS_MAX};

/// Creates or replaces a tenant. A changed rate starts with its whole burst.
pub(in crate::state) fn put_tenant(context: &mut Context<'_>, command: &PutTenant) -> Verdict {
    let no = context.tenant(&command.tenant).ok();
    let present = no.and_then(|no| context.state.tenants.get(&no));
    if let Err(refusal) = checks::expect(command.expect, present.map(|row| row.revision)) {
        return Ok(Err(refusal));
    }
    if let Some(row) = present.filter(|row| row.spec == command.spec) {
        return Ok(Ok(written(Written::Unchanged, row.revision)));
    }
    let revision = context.revision();
    let did = match no {
        Some(no) => {
            if let Some(row) = context.tenant_mut(no) {
                if row.spec.rate != command.spec.rate {
                    row.rate_tat_ns = 0;
                }
                row.spec = command.spec.clone();
                row.revision = revision;
            }
            Written::Updated
        }
        None => {
            let count = context.state.tenants.len() as u64;
            if let Err(refusal) = below(Quota::Tenants, TENANTS_MAX, count) {
                return Ok(Err(refusal));
            }
            create_tenant(context, command);
            Written::Created
        }
    };
    context.audit(NO_TENANT, "tenant.put", command.tenant.to_string())?;
    review(context);
    Ok(Ok(written(did, revision)))
}

fn create_tenant(context: &mut Context<'_>, command: &PutTenant) {
    let no = TenantNo(context.state.cluster.next_tenant);
    context.cluster_mut().next_tenant = no.0.saturating_add(1);
    let row = Tenant {
        id: command.tenant.clone(),
        spec: command.spec.clone(),
        paused: None,
        created_at: context.now,
        revision: context.revision(),
        rate_tat_ns: 0,
    };
    context.state.insert_tenant(no, row);
    context.touch_tenant(no);
}

/// Creates or replaces a queue. A changed rate starts with its whole burst.
pub(in crate::state) fn put_queue(context: &mut Context<'_>, command: &PutQueue) -> Verdict {
    let present = context
        .queue(&command.queue)
        .and_then(|no| context.state.queues.get(&no));
    if let Err(refusal) = checks::expect(command.expect, present.map(|row| row.revision)) {
        return Ok(Err(refusal));
    }
    if let Some(row) = present.filter(|row| row.spec == command.spec) {
        return Ok(Ok(written(Written::Unchanged, row.revision)));
    }
    let did = if present.is_some() {
        Written::Updated
    } else {
        let count = context.state.queues.len() as u64;
        if let Err(refusal) = below(Quota::Queues, QUEUES_MAX, count) {
            return Ok(Err(refusal));
        }
        Written::Created
    };
    let revision = context.revision();
    let no = context.ensure_queue(&command.queue);
    if let Some(row) = context.queue_mut(no) {
        if row.spec.rate != command.spec.rate {
            row.rate_tat_ns = 0;
        }
        row.spec = command.spec.clone();
        row.revision = revision;
    }
    context.audit(NO_TENANT, "queue.put", command.queue.to_string())?;
    review(context);
    Ok(Ok(written(did, revision)))
}

/// Deletes a queue that nothing uses.
pub(in crate::state) fn delete_queue(context: &mut Context<'_>, command: &DeleteQueue) -> Verdict {
    let Some(no) = context.queue(&command.queue) else {
        return Ok(Err(Refusal::QueueNotFound));
    };
    let revision = context.state.queues.get(&no).map(|row| row.revision);
    if let Err(refusal) = checks::expect(command.expect, revision) {
        return Ok(Err(refusal));
    }
    if no == QueueNo::DEFAULT {
        return Ok(Err(Refusal::Protected));
    }
    let (open, schedules) = context
        .state
        .lines_of(no)
        .fold((0, 0), |(open, named), (_, line)| {
            (
                line.open().saturating_add(open),
                line.schedules.saturating_add(named),
            )
        });
    if open > 0 || schedules > 0 {
        return Ok(Err(Refusal::QueueInUse { open }));
    }
    context.remove_queue(no);
    context.audit(NO_TENANT, "queue.delete", command.queue.to_string())?;
    review(context);
    Ok(Ok(Outcome::Written {
        written: Written::Deleted,
        revision: context.revision(),
    }))
}

/// Whether one more object fits below a bound of the cluster.
fn below(quota: Quota, limit: u32, current: u64) -> Result<(), Refusal> {
    let limit = u64::from(limit);
    if current < limit {
        return Ok(());
    }
    Err(Refusal::QuotaExceeded {
        quota,
        limit,
        current,
    })
}
