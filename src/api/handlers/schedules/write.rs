//! Creating and changing definitions.

use std::sync::Arc;

use crate::api::Api;
use crate::api::actions::schedule_batch::Batch;
use crate::api::actions::schedules::{Planned, Put, upcoming};
use crate::api::actions::{Done, Purpose, ROUNDS, unexpected};
use crate::api::body;
use crate::api::call::Call;
use crate::api::convert::rule as rules;
use crate::api::convert::schedule::{Shown, schedule_out};
use crate::api::handlers::precondition;
use crate::api::issues::{At, Issues};
use crate::api::problem::{Code, Error};
use crate::api::reads::{tenant_no, total_open};
use crate::api::reply::Reply;
use crate::command::Expect;
use crate::command::outcome::{Outcome, Written};
use crate::ids::{QueueNo, ScheduleId, TenantId};
use crate::model::schedule::{Schedule, ScheduleStatus};
use crate::wire;
use crate::wire::limits;

/// Members of a schedule that are objects with fixed fields. (Labels and the like hold the caller's own names.)
const OBJECTS: &[&str] = &[
    "rule",
    "misfire",
    "overlap",
    "on_completed",
    "retry",
    "timeouts",
];

/// Occurrences shown by a dry run.
const UPCOMING: usize = 5;

fn put_of(
    call: &Call,
    body: wire::Schedule,
    expect: Expect,
    purpose: Purpose,
) -> Result<Put, Error> {
    let drops_pending = match call.param("pending")? {
        None | Some("keep") => false,
        Some("drop") => true,
        Some(other) => {
            let detail = format!("{other:?} is neither keep nor drop");
            return Err(Error::parameter("query:pending", detail));
        }
    };
    Ok(Put {
        tenant: call.tenant()?,
        id: call.schedule()?,
        body,
        expect,
        drops_pending,
        purpose,
    })
}

pub(super) async fn put(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::Schedule = call.body()?;
    let expect = call.expect(body.revision.as_deref())?;
    put_body(api, call, body, expect).await
}

async fn put_body(
    api: Arc<Api>,
    call: Call,
    body: wire::Schedule,
    expect: Expect,
) -> Result<Reply, Error> {
    let is_dry = call.dry_run()?;
    let keyed = api.keyed(&call)?;
    let purpose = Purpose {
        reason: call.reason(None)?,
        key: keyed.command(),
    };
    let put = put_of(&call, body, expect, purpose)?;
    if is_dry {
        let planned = api.rehearse_put(&call, &put).await;
        let planned = planned.map_err(|e| precondition(&call, e))?;
        return dry_reply(&api, &put, &planned);
    }
    let (tenant, id) = (put.tenant.clone(), put.id.clone());
    let done = api.put_schedule(&call, put).await;
    let done = done.map_err(|e| precondition(&call, e))?;
    written_reply(&api, (&tenant, &id), &done)
}

/// The answer to a write of a schedule: the schedule as it is now.
pub(super) fn written_reply(
    api: &Api,
    (tenant, id): (&TenantId, &ScheduleId),
    done: &Done,
) -> Result<Reply, Error> {
    let Outcome::Schedule {
        written, revision, ..
    } = done.outcome
    else {
        return Err(unexpected(&done.outcome));
    };
    let (shown, now) = match api.read_schedule(tenant, id) {
        Ok((shown, now)) => (shown, now),
        // It was deleted since; a repeat still gets its first answer.
        Err(error) if error.code == Code::ScheduleNotFound => {
            let bare = wire::Schedule {
                schedule_id: Some(id.to_string()),
                tenant: Some(tenant.to_string()),
                revision: Some(revision.to_string()),
                ..wire::Schedule::default()
            };
            (bare, revision)
        }
        Err(error) => return Err(error),
    };
    let status = if written == Written::Created {
        201
    } else {
        200
    };
    Ok(Reply::json(status, &shown)?
        .etag(now)
        .at_index(done.index)
        .outcome(written)
        .replayed(done.is_replayed))
}

fn dry_reply(api: &Api, put: &Put, planned: &Planned) -> Result<Reply, Error> {
    let reader = api.replica.read();
    let no = tenant_no(&reader, &put.tenant)?;
    let present = reader.schedule(no, &put.id)?;
    let revision = present.as_ref().map(|(row, _)| row.revision);
    let compiled = &planned.definition.compiled;
    let mut status = present.as_ref().map_or_else(
        || ScheduleStatus::new(planned.command.plan.cursor),
        |(_, s)| s.clone(),
    );
    status.next = planned.command.plan.next;
    let changes = u64::from(planned.written == Written::Updated);
    let row = Schedule {
        tenant: no,
        id: put.id.clone(),
        incarnation: present.as_ref().map_or(0, |(row, _)| row.incarnation),
        generation: present
            .as_ref()
            .map_or(1, |(row, _)| row.generation + changes),
        revision: revision.unwrap_or_default(),
        queue: QueueNo(0),
        created_at: present
            .as_ref()
            .map_or(planned.now, |(row, _)| row.created_at),
        updated_at: planned.now,
        spec: planned.definition.spec.clone(),
    };
    let next = status.next.map(|next| compiled.local(next.nominal_at));
    let shown = Shown {
        tenant: &put.tenant,
        queue: planned.definition.queue.to_string(),
        basic: false,
        open: total_open(&status),
        local: next,
        warnings: rules::warnings(compiled, planned.now),
    };
    let mut out = schedule_out(&row, &status, shown);
    if let Some(status) = &mut out.status {
        status.upcoming = upcoming(&planned.command.plan, compiled, UPCOMING);
    }
    Ok(Reply::json(200, &out)?
        .outcome(planned.written)
        .with("x-dry-run", "true"))
}

pub(super) async fn patch_one(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    for _ in 1..ROUNDS {
        // `None`: somebody else changed it and the caller did not ask about that: merge into what it is now.
        if let Some(reply) = patch_once(Arc::clone(&api), call.clone()).await? {
            return Ok(reply);
        }
    }
    Err(crate::command::outcome::Refusal::Superseded.into())
}

async fn patch_once(api: Arc<Api>, call: Call) -> Result<Option<Reply>, Error> {
    let (tenant, id) = (call.tenant()?, call.schedule()?);
    let (shown, revision) = api.read_schedule(&tenant, &id)?;
    let base = serde_json::to_vec(&shown).map_err(|e| {
        Error::new(
            Code::Internal,
            format!("a schedule does not serialise: {e}"),
        )
    })?;
    let merged = body::merge_patch(&base, &call.request.body)?;
    body::read::<wire::Schedule>(&body::removals(&call.request.body, OBJECTS))?;
    // The places in its errors are places in the merged document, which has the patch's own.
    let mut body: wire::Schedule = body::read(&merged)?;
    let asked = body::member(&call.request.body, "revision");
    let asked = asked.and(body.revision.take());
    let expect = call.expect(asked.as_deref())?;
    let is_unconditional = matches!(expect, Expect::Any | Expect::Present);
    let expect = match is_unconditional {
        // Nobody else's change may be undone by fields that were merged from an older image.
        true => Expect::Revision(revision),
        false => expect,
    };
    match put_body(api, call, body, expect).await {
        Err(error) if is_unconditional && error.code == Code::RevisionMismatch => Ok(None),
        other => other.map(Some),
    }
}

pub(super) async fn create(api: Arc<Api>, mut call: Call) -> Result<Reply, Error> {
    let body: wire::Schedule = call.body()?;
    let mut issues = Issues::default();
    let root = At::Root;
    if body.revision.is_some() {
        let detail = "what is created has none yet; use PUT to change what exists";
        issues.add(&root.key("revision"), "invalid", detail);
    }
    if let Some(id) = &body.schedule_id {
        crate::api::convert::schedule_name(&mut issues, &root.key("schedule_id"), id);
    }
    issues.finish()?;
    let keyed = api.keyed(&call)?;
    let key = keyed.command();
    let id = match &body.schedule_id {
        Some(id) => id.clone(),
        // The same key mints the same name, so that a repeat finds the first one.
        None => match key {
            Some(key) => format!("s-{:032x}", u128::from_be_bytes(key.hash)),
            None => format!(
                "s-{:016x}{:016x}",
                api.runtime.random_u64(),
                api.runtime.random_u64()
            ),
        },
    };
    call.path.insert("schedule", id);
    let purpose = Purpose {
        reason: call.reason(None)?,
        key,
    };
    let put = put_of(&call, body, Expect::Absent, purpose)?;
    if call.dry_run()? {
        let planned = api.rehearse_put(&call, &put).await?;
        return dry_reply(&api, &put, &planned);
    }
    let (tenant, id) = (put.tenant.clone(), put.id.clone());
    let done = api.put_schedule(&call, put).await?;
    written_reply(&api, (&tenant, &id), &done)
}

pub(super) async fn batch(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::ScheduleBatch = call.body()?;
    let mut issues = Issues::default();
    let root = At::Root;
    issues.length(&root.key("items"), body.items.len(), &limits::BATCH_ITEMS);
    issues.finish()?;
    let keyed = api.keyed(&call)?;
    let tenant = call.tenant()?;
    tenant_no(&api.replica.resident(), &tenant)?;
    api.check_batch(&keyed, tenant.as_str(), body.items.len())?;
    let is_dry = call.dry_run()?;
    let batch = Batch {
        call: &call,
        tenant,
        reason: call.reason(None)?,
        keyed: &keyed,
        is_dry,
    };
    let items = api.put_schedules(&batch, body.items).await?;
    let reply = Reply::json(200, &wire::ScheduleBatchResult { items })?;
    Ok(match is_dry {
        true => reply.with("x-dry-run", "true"),
        false => reply,
    })
}
