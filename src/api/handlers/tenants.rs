//! Calls about tenants and their concurrency keys.

use std::sync::Arc;

use crate::api::Api;
use crate::api::actions::{Purpose, unexpected};
use crate::api::call::Call;
use crate::api::convert::queue::{key_limits, key_out, tenant_out, tenant_spec, usage_out};
use crate::api::cursor::ListQuery;
use crate::api::handlers::{dry_reply, page_of, pauses, precondition, written_reply};
use crate::api::issues::{At, Issues};
use crate::api::problem::{Code, Error};
use crate::api::reads::tenant_no;
use crate::api::reply::Reply;
use crate::api::routes::{Route, handler};
use crate::command::admin::{AdminCommand, PauseScope, PutKey, PutTenant};
use crate::command::outcome::{Outcome, Refusal};
use crate::ids::{Revision, TenantId};
use crate::state::resident::Resident;
use crate::wire;

const ITEM: &str = "/v1/tenants/{tenant}";
const KEY: &str = "/v1/tenants/{tenant}/keys/{key}";

/// The rows.
#[must_use]
pub fn routes() -> Vec<Route> {
    let mut rows = tenants();
    rows.extend(keys());
    rows
}

fn tenants() -> Vec<Route> {
    const NONE: &[Code] = &[Code::TenantNotFound];
    let act = |pattern, id, handler, summary| {
        Route::new("POST", pattern, id, handler)
            .says("tenants", summary)
            .writes()
            .may_take::<wire::Pause>()
            .gives::<wire::Tenant>(200, "The tenant.")
            .refuses(NONE)
    };
    vec![
        Route::new("PUT", ITEM, "putTenant", handler!(put))
            .says(
                "tenants",
                "Creates or replaces a tenant; equal content changes nothing.",
            )
            .writes()
            .conditional()
            .takes::<wire::Tenant>()
            .gives::<wire::Tenant>(201, "Created.")
            .gives::<wire::Tenant>(200, "Updated or unchanged; `X-Outcome` says which.")
            .refuses(&[Code::RevisionMismatch, Code::QuotaReached]),
        Route::new("GET", ITEM, "getTenant", handler!(get))
            .says("tenants", "Reads a tenant.")
            .reads()
            .gives::<wire::Tenant>(200, "The tenant.")
            .refuses(NONE),
        Route::new("GET", "/v1/tenants", "listTenants", handler!(list))
            .says("tenants", "Lists tenants by name.")
            .reads()
            .lists()
            .gives_page::<wire::Tenant>("A page.")
            .refuses(&[Code::InvalidCursor]),
        act(
            "/v1/tenants/{tenant}:pause",
            "pauseTenant",
            handler!(pause),
            "Nothing of it fires or is granted until resumed.",
        ),
        act(
            "/v1/tenants/{tenant}:resume",
            "resumeTenant",
            handler!(resume),
            "Fires and grants again.",
        ),
        Route::new(
            "GET",
            "/v1/tenants/{tenant}/usage",
            "tenantUsage",
            handler!(usage),
        )
        .says("tenants", "What a tenant uses, beside its quotas.")
        .reads()
        .gives::<wire::TenantUsage>(200, "The usage.")
        .refuses(NONE),
    ]
}

fn keys() -> Vec<Route> {
    vec![
        Route::new("PUT", KEY, "putKey", handler!(put_key))
            .says(
                "keys",
                "Sets the limits of a concurrency key, over all queues of the tenant.",
            )
            .writes()
            .takes::<wire::KeyLimits>()
            .gives::<wire::KeyLimits>(200, "The key.")
            .refuses(&[Code::TenantNotFound, Code::QuotaReached]),
        Route::new("GET", KEY, "getKey", handler!(get_key))
            .says("keys", "Limits and usage of a concurrency key.")
            .reads()
            .gives::<wire::KeyLimits>(200, "The key.")
            .refuses(&[Code::TenantNotFound, Code::KeyNotFound]),
    ]
}

fn shown(resident: &Resident, id: &TenantId) -> Result<(wire::Tenant, Revision), Error> {
    let no = tenant_no(resident, id)?;
    let row = resident.tenants.get(&no).ok_or(Refusal::TenantNotFound)?;
    Ok((tenant_out(row), row.revision))
}

async fn put(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::Tenant = call.body()?;
    let tenant = TenantId::new(call.part("tenant"))
        .map_err(|why| Error::parameter("path:tenant", format!("the name {why}")))?;
    let expect = call.expect(body.revision.as_deref())?;
    let mut issues = Issues::default();
    let spec = tenant_spec(&mut issues, &body, &tenant);
    issues.finish()?;
    if call.dry_run()? {
        let command = PutTenant {
            tenant: tenant.clone(),
            spec: spec.clone(),
            expect,
        };
        let done = api.rehearse_admin(&call, AdminCommand::PutTenant(command));
        let done = done.await.map_err(|e| precondition(&call, e))?;
        let present = shown(&api.replica.resident(), &tenant).ok();
        let revision = present.map(|(_, revision)| revision);
        let would_be = wire::Tenant {
            revision: revision.map(|r| r.to_string()),
            ..tenant_out(&crate::model::tenant::Tenant {
                id: tenant,
                spec,
                paused: None,
                created_at: api.scheduler.now(),
                revision: Revision::default(),
                rate_tat_ns: 0,
            })
        };
        return dry_reply(&would_be, &done);
    }
    let keyed = api.keyed(&call)?;
    let purpose = Purpose {
        reason: call.reason(None)?,
        key: keyed.command(),
    };
    let command = AdminCommand::PutTenant(PutTenant {
        tenant: tenant.clone(),
        spec,
        expect,
    });
    let object = format!("tenant {tenant}");
    let done = api.administer(&call, object, &purpose, command).await;
    let done = done.map_err(|e| precondition(&call, e))?;
    written_reply(&done, &shown(&api.replica.resident(), &tenant)?)
}

async fn get(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let (shown, revision) = shown(&api.replica.resident(), &call.tenant()?)?;
    Ok(Reply::json(200, &shown)?.etag(revision))
}

async fn list(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let query = ListQuery::of(&call)?;
    let resident = api.replica.resident();
    let all = resident.tenant_numbers.iter().filter_map(|(id, no)| {
        let row = resident.tenants.get(no)?;
        Some((id.as_str(), tenant_out(row)))
    });
    Reply::json(200, &page_of(&query, all))
}

async fn pause(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    set_pause(api, call, true).await
}

async fn resume(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    set_pause(api, call, false).await
}

async fn set_pause(api: Arc<Api>, call: Call, is_paused: bool) -> Result<Reply, Error> {
    let tenant = call.tenant()?;
    let scope = PauseScope::Tenant(tenant.clone());
    let shown = || shown(&api.replica.resident(), &tenant);
    pauses::set_pause(&api, &call, scope, is_paused, shown).await
}

async fn usage(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let resident = api.replica.resident();
    let no = tenant_no(&resident, &call.tenant()?)?;
    let row = resident.tenants.get(&no).ok_or(Refusal::TenantNotFound)?;
    let used = resident.usage.get(&no).copied().unwrap_or_default();
    Reply::json(200, &usage_out(row, &used))
}

fn key_name(call: &Call) -> Result<String, Error> {
    let mut issues = Issues::default();
    let root = At::Root;
    let key = crate::api::convert::key(&mut issues, &root, call.part("key"));
    issues
        .finish()
        .map_err(|error| Error::parameter("path:key", error.detail))?;
    Ok(key)
}

fn shown_key(
    resident: &Resident,
    tenant: &TenantId,
    key: &str,
) -> Result<Option<wire::KeyLimits>, Error> {
    let no = tenant_no(resident, tenant)?;
    let slot = (no, key.to_owned());
    let leased = resident.key_leased.get(&slot).copied();
    let state = resident.keys.get(&slot);
    if state.is_none() && leased.is_none() {
        return Ok(None);
    }
    let state = state.cloned().unwrap_or_default();
    Ok(Some(key_out(key, &state, leased.unwrap_or(0).into())))
}

async fn put_key(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::KeyLimits = call.body()?;
    let (tenant, key) = (call.tenant()?, key_name(&call)?);
    let mut issues = Issues::default();
    let (max_leased, rate) = key_limits(&mut issues, &body, &key);
    issues.finish()?;
    let would_be = crate::model::queue::KeyState {
        max_leased,
        rate,
        ..crate::model::queue::KeyState::default()
    };
    let command = AdminCommand::PutKey(PutKey {
        tenant: tenant.clone(),
        key: key.clone(),
        max_leased,
        rate,
    });
    if call.dry_run()? {
        let done = api.rehearse_admin(&call, command).await?;
        return dry_reply(&key_out(&key, &would_be, 0), &done);
    }
    let keyed = api.keyed(&call)?;
    let purpose = Purpose {
        reason: call.reason(None)?,
        key: keyed.command(),
    };
    let object = format!("key {tenant}/{key}");
    let done = api.administer(&call, object, &purpose, command).await?;
    let Outcome::Written { written, .. } = done.outcome else {
        return Err(unexpected(&done.outcome));
    };
    let shown = shown_key(&api.replica.resident(), &tenant, &key)?;
    let shown = shown.unwrap_or_else(|| key_out(&key, &would_be, 0));
    Ok(Reply::json(200, &shown)?
        .at_index(done.index)
        .outcome(written)
        .replayed(done.is_replayed))
}

async fn get_key(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let (tenant, key) = (call.tenant()?, key_name(&call)?);
    match shown_key(&api.replica.resident(), &tenant, &key)? {
        Some(shown) => Reply::json(200, &shown),
        None => Err(Error::new(
            Code::KeyNotFound,
            "the key has no limits, and nothing of it is leased or waits",
        )),
    }
}
