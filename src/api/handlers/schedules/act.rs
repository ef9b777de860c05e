//! Deleting, pausing, resuming and triggering.

use std::sync::Arc;

use super::write::written_reply;
use crate::api::Api;
use crate::api::actions::{Purpose, unexpected};
use crate::api::call::Call;
use crate::api::issues::{At, Issues};
use crate::api::problem::Error;
use crate::api::reply::Reply;
use crate::command::outcome::{Outcome, Written};
use crate::leader::planner::CatchUp;
use crate::wire;
use crate::wire::limits;

pub(super) async fn delete(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let target = (call.tenant()?, call.schedule()?);
    let keyed = api.keyed(&call)?;
    let purpose = Purpose {
        reason: call.reason(None)?,
        key: keyed.command(),
    };
    let done = api
        .delete_schedule(&call, target, purpose, call.dry_run()?)
        .await?;
    let reply = Reply::empty();
    Ok(match done {
        Some(done) => reply
            .at_index(done.index)
            .outcome(Written::Deleted)
            .replayed(done.is_replayed),
        None => reply.outcome(Written::Deleted).with("x-dry-run", "true"),
    })
}

pub(super) async fn pause(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::PauseSchedule = call.body_or_default()?;
    let keyed = api.keyed(&call)?;
    let purpose = Purpose {
        reason: call.reason(body.reason)?,
        key: keyed.command(),
    };
    let (tenant, id) = (call.tenant()?, call.schedule()?);
    let until = body.until.map(|i| i.0);
    let target = (tenant.clone(), id.clone());
    let done = api
        .pause_schedule(&call, target, until, purpose, call.dry_run()?)
        .await?;
    match done {
        Some(done) => written_reply(&api, (&tenant, &id), &done),
        None => {
            let (shown, revision) = api.read_schedule(&tenant, &id)?;
            Ok(Reply::json(200, &shown)?
                .etag(revision)
                .with("x-dry-run", "true"))
        }
    }
}

pub(super) async fn resume(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::ResumeSchedule = call.body_or_default()?;
    let keyed = api.keyed(&call)?;
    let mut issues = Issues::default();
    let root = At::Root;
    let max = body
        .catch_up_max
        .map(|n| issues.count(&root.key("catch_up_max"), n, &limits::RESUME_CATCH_UP));
    let asked = body.catch_up.unwrap_or_default();
    if max.is_some() && asked != wire::CatchUp::All {
        let detail = "belongs to \"catch_up\": \"all\"";
        issues.add(&root.key("catch_up_max"), "invalid", detail);
    }
    let catch_up = match asked {
        wire::CatchUp::None => CatchUp::None,
        wire::CatchUp::Latest => CatchUp::Latest,
        wire::CatchUp::All => {
            let most = u32::try_from(limits::RESUME_CATCH_UP.max).unwrap_or(1);
            CatchUp::All(max.unwrap_or(most))
        }
    };
    issues.finish()?;
    let purpose = Purpose {
        reason: call.reason(body.reason)?,
        key: keyed.command(),
    };
    let (tenant, id) = (call.tenant()?, call.schedule()?);
    let target = (tenant.clone(), id.clone());
    let is_dry = call.dry_run()?;
    let (done, decision) = api
        .resume_schedule(&call, target, catch_up, purpose, is_dry)
        .await?;
    let caught_up = u64::try_from(decision.create_count()).unwrap_or(u64::MAX);
    let skipped = decision.steps.iter().map(|step| match step {
        crate::command::schedules::Step::Skip(record) => record.count,
        crate::command::schedules::Step::Create { .. } => 0,
    });
    let skipped = skipped.fold(0_u64, u64::saturating_add);
    let (schedule, revision) = api.read_schedule(&tenant, &id)?;
    let answer = wire::ResumeResult {
        schedule,
        caught_up,
        skipped,
    };
    let reply = Reply::json(200, &answer)?.etag(revision);
    Ok(match done {
        Some(done) => reply.at_index(done.index).replayed(done.is_replayed),
        None => reply.with("x-dry-run", "true"),
    })
}

pub(super) async fn trigger(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let mut body: wire::TriggerSchedule = call.body_or_default()?;
    let keyed = api.keyed(&call)?;
    let purpose = Purpose {
        reason: call.reason(body.reason.take())?,
        key: keyed.command(),
    };
    let target = (call.tenant()?, call.schedule()?);
    let is_dry = call.dry_run()?;
    let done = api
        .trigger_schedule(&call, target, body, purpose, is_dry)
        .await?;
    let Some(done) = done else {
        let answer = wire::TriggerResult::default();
        return Ok(Reply::json(200, &answer)?.with("x-dry-run", "true"));
    };
    let execution_id = match &done.outcome {
        Outcome::Submitted { execution, .. } => execution.to_string(),
        Outcome::Fired { created, .. } => {
            created.first().map(ToString::to_string).unwrap_or_default()
        }
        other => return Err(unexpected(other)),
    };
    let answer = wire::TriggerResult {
        execution_id: Some(execution_id),
    };
    Ok(Reply::json(201, &answer)?
        .at_index(done.index)
        .outcome(Written::Created)
        .replayed(done.is_replayed))
}
