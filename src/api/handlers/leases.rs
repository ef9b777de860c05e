//! The worker's calls, and an operator's revoke.

use std::sync::Arc;

use crate::api::Api;
use crate::api::actions::Purpose;
use crate::api::call::Call;
use crate::api::convert::{execution_name, lease, tenant};
use crate::api::issues::{At, Issues};
use crate::api::problem::{Code, Error};
use crate::api::reads::tenant_no;
use crate::api::reply::Reply;
use crate::api::routes::{Handler, Route, handler};
use crate::command::leases::{ExpireItem, ITEMS_MAX, LeaseRef, ReportItem};
use crate::ids::{QueueId, TenantId, WorkerId};
use crate::wire;
use crate::wire::limits;

/// The rows.
#[must_use]
pub fn routes() -> Vec<Route> {
    let mut rows = claims();
    rows.extend(reports());
    rows
}

fn row(pattern: &'static str, id: &'static str, handler: Handler, summary: &'static str) -> Route {
    Route::new("POST", pattern, id, handler)
        .says("leases", summary)
        .asks_leader()
}

fn claims() -> Vec<Route> {
    vec![
        row(
            "/v1/queues/{queue}/leases:claim",
            "claimFromQueue",
            handler!(claim_one),
            "Asks for work of one queue, waiting for it if need be.",
        )
        .takes::<wire::Claim>()
        .gives::<wire::ClaimResult>(200, "Leases, perhaps none."),
        row(
            "/v1/leases:claim",
            "claim",
            handler!(claim_several),
            "Asks for work of several queues, in order of preference.",
        )
        .takes::<wire::Claim>()
        .gives::<wire::ClaimResult>(200, "Leases, perhaps none."),
    ]
}

fn reports() -> Vec<Route> {
    let results = "An answer for each item, in order; a stale token is an item's `lease_lost`.";
    vec![
        row(
            "/v1/leases:renew",
            "renewLeases",
            handler!(renew),
            "Renews leases.",
        )
        .takes::<wire::RenewLeases>()
        .gives::<wire::ReportResults>(200, results),
        row(
            "/v1/leases:complete",
            "completeLeases",
            handler!(complete),
            "Reports success.",
        )
        .takes::<wire::CompleteLeases>()
        .gives::<wire::ReportResults>(200, results)
        .refuses(&[Code::PayloadTooLarge]),
        row(
            "/v1/leases:fail",
            "failLeases",
            handler!(fail),
            "Reports failure.",
        )
        .takes::<wire::FailLeases>()
        .gives::<wire::ReportResults>(200, results),
        row(
            "/v1/leases:release",
            "releaseLeases",
            handler!(release),
            "Gives leases back; no attempt is spent.",
        )
        .takes::<wire::ReleaseLeases>()
        .gives::<wire::ReportResults>(200, results),
        row(
            "/v1/leases:report",
            "reportLeases",
            handler!(report),
            "Reports completions, failures and releases together.",
        )
        .takes::<wire::ReportLeases>()
        .gives::<wire::ReportResults>(200, results)
        .refuses(&[Code::PayloadTooLarge]),
        row(
            "/v1/leases:revoke",
            "revokeLeases",
            handler!(revoke),
            "Takes leases away, by an operator's word; each counts as a lease loss.",
        )
        .param("reason", "string", "Why, for the audit log.")
        .takes::<wire::RevokeLeases>()
        .gives::<wire::RevokeResult>(200, "How many were live.")
        .refuses(&[Code::TenantNotFound]),
    ]
}

async fn claim_one(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let queue = call.queue()?;
    claim(api, call, Some(queue)).await
}

async fn claim_several(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    claim(api, call, None).await
}

async fn claim(api: Arc<Api>, call: Call, queue: Option<QueueId>) -> Result<Reply, Error> {
    let body: wire::Claim = call.body()?;
    let mut issues = Issues::default();
    let claim = lease::claim(&mut issues, body, queue, &mut || api.draw());
    issues.finish()?;
    let claim =
        claim.ok_or_else(|| Error::new(Code::Internal, "a claim without issues is missing"))?;
    let items: Vec<LeaseRef> = claim.reports.iter().map(|r| r.lease.clone()).collect();
    let claimed = api.scheduler.claim(claim).await?;
    let answer = lease::claimed_out(&claimed, &items, &api.replica.resident());
    Reply::json(200, &answer)
}

async fn renew(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::RenewLeases = call.body()?;
    let mut issues = Issues::default();
    let worker = lease::required_worker(&mut issues, &body.worker_id);
    let items = lease::renewals(&mut issues, body.leases);
    said(api, issues, worker, items).await
}

async fn complete(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::CompleteLeases = call.body()?;
    let mut issues = Issues::default();
    let worker = lease::required_worker(&mut issues, &body.worker_id);
    let items = lease::completions(&mut issues, body.leases);
    said(api, issues, worker, items).await
}

async fn fail(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::FailLeases = call.body()?;
    let mut issues = Issues::default();
    let worker = lease::required_worker(&mut issues, &body.worker_id);
    let items = lease::failures(&mut issues, body.leases, &mut || api.draw());
    said(api, issues, worker, items).await
}

async fn release(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::ReleaseLeases = call.body()?;
    let mut issues = Issues::default();
    let worker = lease::required_worker(&mut issues, &body.worker_id);
    let items = lease::releases(&mut issues, body.leases, &mut || api.draw());
    said(api, issues, worker, items).await
}

async fn report(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::ReportLeases = call.body()?;
    let mut issues = Issues::default();
    let worker = lease::required_worker(&mut issues, &body.worker_id);
    let root = At::Root;
    let place = root.key("leases");
    let items = lease::report_items(&mut issues, &place, body.leases, &mut || api.draw());
    said(api, issues, worker, items).await
}

/// Hands what a worker said to the leader, in commands of bounded size, and answers by position.
async fn said(
    api: Arc<Api>,
    issues: Issues,
    worker: Option<WorkerId>,
    items: Vec<ReportItem>,
) -> Result<Reply, Error> {
    issues.finish()?;
    let worker =
        worker.ok_or_else(|| Error::new(Code::Internal, "a worker without issues is missing"))?;
    let references: Vec<LeaseRef> = items.iter().map(|item| item.lease.clone()).collect();
    let calls = items
        .chunks(ITEMS_MAX)
        .map(|chunk| api.scheduler.report(worker.clone(), chunk.to_vec()));
    let mut results = Vec::with_capacity(references.len());
    let (mut drain, mut index) = (false, 0);
    for reported in futures::future::join_all(calls).await {
        let reported = reported?;
        results.extend(reported.results);
        drain |= reported.drain;
        index = index.max(reported.index);
    }
    let answer = wire::ReportResults {
        results: lease::results_out(&references, &results),
        drain,
        server_time: Some(api.scheduler.now().into()),
    };
    Ok(Reply::json(200, &answer)?.at_index(index))
}

async fn revoke(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::RevokeLeases = call.body()?;
    let mut issues = Issues::default();
    let root = At::Root;
    let place = root.key("leases");
    issues.length(&place, body.leases.len(), &limits::BATCH_ITEMS);
    let mut wanted = Vec::new();
    for (i, item) in body.leases.iter().enumerate() {
        let at = place.index(i);
        let owner = match item.tenant.as_deref() {
            None => Some(TenantId::default_tenant()),
            Some(text) => tenant(&mut issues, &at.key("tenant"), text),
        };
        let id = execution_name(&mut issues, &at.key("execution_id"), &item.execution_id);
        wanted.push((owner.zip(id), item.fencing_token));
    }
    issues.finish()?;
    let purpose = Purpose {
        reason: call.reason(body.reason)?,
        key: None,
    };
    let leases = {
        let resident = api.replica.resident();
        let mut leases = Vec::with_capacity(wanted.len());
        for (name, token) in wanted {
            let Some((owner, id)) = name else { continue };
            let tenant = tenant_no(&resident, &owner)?;
            let live = resident.lease(tenant, &id);
            let Some(lease) = live.filter(|l| token.is_none_or(|t| t == l.fencing_token)) else {
                continue;
            };
            let lease = LeaseRef {
                execution: id,
                attempt: lease.attempt,
                fencing_token: lease.fencing_token,
            };
            let draw = api.draw();
            leases.push(ExpireItem {
                tenant,
                lease,
                draw,
            });
        }
        leases
    };
    let revoked = api.revoke_leases(&call, &leases, &purpose).await?;
    let answer = wire::RevokeResult {
        revoked: revoked.count,
    };
    let reply = Reply::json(200, &answer)?;
    Ok(match revoked.index {
        0 => reply,
        index => reply.at_index(index),
    })
}
