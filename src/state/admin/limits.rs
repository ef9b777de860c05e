//! Limits of concurrency keys.

use super::{review, written};
use crate::command::admin::PutKey;
use crate::command::outcome::{Quota, Refusal, Written};
use crate::fault::Fault;
use crate::ids::TenantNo;
use crate::state::apply::Verdict;
use crate::state::context::Context;
use crate::state::parking;

/// Most concurrency keys with limits or parked work, over all tenants: they are held in memory.
pub(in crate::state) const KEYS_MAX: u64 = 100_000;
/// Most executions promoted by one command. The leader repeats it while some are parked and slots are free.
const PROMOTED_MAX: u32 = 100;

/// Sets the limits of a key. A changed rate starts with its whole burst. A repeat changes no limit but goes on
/// promoting. A key has no revision: the answer carries the command's.
pub(in crate::state) fn put_key(context: &mut Context<'_>, command: &PutKey) -> Verdict {
    let tenant = match context.tenant(&command.tenant) {
        Ok(tenant) => tenant,
        Err(refusal) => return Ok(Err(refusal)),
    };
    let present = context.state.keys.get(&(tenant, command.key.clone()));
    let limits = present
        .map(|row| (row.max_leased, row.rate))
        .unwrap_or_default();
    let did = if limits == (command.max_leased, command.rate) {
        Written::Unchanged
    } else if limits == (None, None) {
        Written::Created
    } else {
        Written::Updated
    };
    let current = context.state.keys.len() as u64;
    if present.is_none() && did != Written::Unchanged && current >= KEYS_MAX {
        return Ok(Err(Refusal::QuotaExceeded {
            quota: Quota::Keys,
            limit: KEYS_MAX,
            current,
        }));
    }
    if did != Written::Unchanged {
        let row = context.key_mut(tenant, &command.key);
        if row.rate != command.rate {
            row.rate_tat_ns = 0;
        }
        row.rate = command.rate;
        row.max_leased = command.max_leased;
        context.audit(
            tenant,
            "key.put",
            format!("{}/{}", command.tenant, command.key),
        )?;
        review(context);
    }
    promote(context, tenant, &command.key)?;
    Ok(Ok(written(did, context.revision())))
}

/// Promotes as many parked heads as slots are free.
fn promote(context: &mut Context<'_>, tenant: TenantNo, key: &str) -> Result<(), Fault> {
    let free = context.free_slots(tenant, key).min(PROMOTED_MAX);
    parking::promote_heads(context, tenant, key, (free, PROMOTED_MAX)).map(drop)
}
