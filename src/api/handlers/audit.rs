//! The audit log: who changed what, and why.

use std::sync::Arc;

use crate::api::Api;
use crate::api::call::Call;
use crate::api::convert::audit::{OBJECTS, audit_out, parts_of};
use crate::api::cursor::ListQuery;
use crate::api::handlers::{instant_filter, words};
use crate::api::problem::{Code, Error};
use crate::api::reads::tenant_no;
use crate::api::reply::Reply;
use crate::api::routes::{Route, handler};
use crate::ids::{TenantId, TenantNo};
use crate::model::history::AuditRecord;
use crate::state::reader::lists::{AuditRange, Listing, Size};
use crate::wire;

/// Owner of records about the cluster, tenants, queues and kinds.
const NOBODY: TenantNo = TenantNo(0);

/// The rows.
#[must_use]
pub fn routes() -> Vec<Route> {
    vec![
        Route::new("GET", "/v1/audit", "listAudit", handler!(list))
            .says(
                "audit",
                "Lists what people changed, newest first; records are kept for 90 days.",
            )
            .reads()
            .lists()
            .param("tenant", "string", "Only this tenant and what belongs to it.")
            .param(
                "object",
                "string",
                "Kind of the object: `schedule`, `execution`, `lease`, `queue`, `tenant`, `key`, `kind`, `cluster`, \
                 `settings`; several with commas.",
            )
            .param("id", "string", "Only objects of this name.")
            .param("since", "instant", "At or after it.")
            .param("until", "instant", "Before it.")
            .gives_page::<wire::AuditRecord>("A page.")
            .refuses(&[Code::TenantNotFound, Code::InvalidCursor]),
    ]
}

/// What a record must be about to be listed.
struct Filter {
    tenant: Option<String>,
    objects: Option<Vec<&'static str>>,
    id: Option<String>,
}

impl Filter {
    fn keeps(&self, record: &AuditRecord) -> bool {
        let parts = parts_of(record);
        self.objects
            .as_ref()
            .is_none_or(|wanted| wanted.contains(&parts.object))
            && self.id.as_deref().is_none_or(|id| id == parts.id)
            && self
                .tenant
                .as_deref()
                .is_none_or(|tenant| parts.tenant == Some(tenant))
    }
}

async fn list(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let query = ListQuery::of(&call)?;
    let known = || OBJECTS.join(", ");
    let objects = words(&query, "object", &known(), |word| {
        OBJECTS.iter().copied().find(|object| *object == word)
    })?;
    let filter = Filter {
        tenant: query.filter("tenant").map(str::to_owned),
        objects,
        id: query.filter("id").map(str::to_owned),
    };
    let range = AuditRange {
        owners: owners(&api, filter.tenant.as_deref())?,
        since: instant_filter(&query, "since")?,
        until: instant_filter(&query, "until")?,
    };
    let page = api.long_read(move |api| {
        let listing = Listing::of(&api.replica);
        let start = query.position.as_deref();
        let size = Size::of(query.page_size);
        let found = listing.audit(&range, start, size, |record| filter.keeps(record))?;
        Ok(wire::Page {
            items: found.items.iter().map(audit_out).collect(),
            next_cursor: query.next(found.next),
        })
    });
    Reply::json(200, &page.await?)
}

/// Whose records are looked through. What is done to a tenant itself is filed under nobody.
fn owners(api: &Api, tenant: Option<&str>) -> Result<Vec<TenantNo>, Error> {
    let resident = api.replica.resident();
    let Some(name) = tenant else {
        let all = resident.tenants.keys().copied();
        return Ok([NOBODY].into_iter().chain(all).collect());
    };
    let id = TenantId::new(name)
        .map_err(|why| Error::parameter("query:tenant", format!("the name {why}")))?;
    Ok(vec![NOBODY, tenant_no(&resident, &id)?])
}
