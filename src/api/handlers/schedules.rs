//! Calls about schedules.

use std::sync::Arc;

use crate::api::Api;
use crate::api::actions::schedule_batch::Batch;
use crate::api::actions::schedules::{Planned, Put, check_expect, upcoming};
use crate::api::actions::{Done, Purpose, ROUNDS, unexpected};
use crate::api::body;
use crate::api::call::Call;
use crate::api::convert::rule as rules;
use crate::api::convert::rule::{RuleContext, preview_out, rule};
use crate::api::convert::schedule::{Shown, ledger_out, schedule_out};
use crate::api::cursor::ListQuery;
use crate::api::handlers::{LabelFilter, precondition, words};
use crate::api::issues::{At, Issues};
use crate::api::problem::{Code, Error};
use crate::api::reads::{schedule_rows, tenant_no, total_open};
use crate::api::reply::Reply;
use crate::api::routes::{Route, handler};
use crate::command::Expect;
use crate::command::outcome::{Outcome, Written};
use crate::ids::{QueueNo, ScheduleId, TenantId};
use crate::leader::planner::{CatchUp, identity};
use crate::model::schedule::{Schedule, ScheduleState, ScheduleStatus};
use crate::state::reader::lists::{Listing, Size};
use crate::wire;
use crate::wire::limits;

const COLLECTION: &str = "/v1/tenants/{tenant}/schedules";
const ITEM: &str = "/v1/tenants/{tenant}/schedules/{schedule}";
/// Occurrences of a preview unless told otherwise.
const COUNT_DEFAULT: u32 = 10;
/// Occurrences shown by a dry run.
const UPCOMING: usize = 5;

/// The rows.
#[must_use]
pub fn routes() -> Vec<Route> {
    let mut rows = writes();
    rows.extend(reads());
    rows
}

fn writes() -> Vec<Route> {
    const GONE: &[Code] = &[
        Code::TenantNotFound,
        Code::ScheduleNotFound,
        Code::RevisionMismatch,
    ];
    const PUT: &[Code] = &[
        Code::TenantNotFound,
        Code::RevisionMismatch,
        Code::NotSupported,
        Code::QuotaReached,
        Code::QueueNotAllowed,
        Code::Contended,
    ];
    const CREATE: &[Code] = &[
        Code::TenantNotFound,
        Code::AlreadyExists,
        Code::NotSupported,
        Code::QuotaReached,
        Code::QueueNotAllowed,
    ];
    const ACT: &[Code] = &[
        Code::TenantNotFound,
        Code::ScheduleNotFound,
        Code::ScheduleCompleted,
        Code::Overlap,
        Code::RevisionMismatch,
        Code::Contended,
    ];
    let put = Route::new("PUT", ITEM, "putSchedule", handler!(put))
        .says("schedules", "Creates or replaces a schedule; equal content changes nothing.")
        .writes()
        .conditional()
        .param(
            "pending",
            "string",
            "`keep` (default): occurrences already due run first; `drop`: they are recorded as superseded.",
        )
        .takes::<wire::Schedule>()
        .gives::<wire::Schedule>(201, "Created.")
        .gives::<wire::Schedule>(200, "Updated or unchanged; `X-Outcome` says which.")
        .refuses(PUT);
    let mut patch = put.clone();
    patch.method = "PATCH";
    patch.id = "patchSchedule";
    patch.summary = "Changes a schedule by a JSON merge patch (RFC 7396) of what GET answers.";
    patch.handler = handler!(patch_one);
    patch.answers.retain(|(status, ..)| *status == 200);
    let action = |pattern, id, handler, summary| {
        Route::new("POST", pattern, id, handler)
            .says("schedules", summary)
            .writes()
            .conditional()
            .refuses(ACT)
    };
    vec![
        put,
        patch,
        Route::new("POST", COLLECTION, "createSchedule", handler!(create))
            .says(
                "schedules",
                "Creates a schedule; its name is minted when left out.",
            )
            .writes()
            .takes::<wire::Schedule>()
            .gives::<wire::Schedule>(201, "Created.")
            .gives::<wire::Schedule>(200, "What a dry run would create.")
            .refuses(CREATE),
        Route::new(
            "POST",
            "/v1/tenants/{tenant}/schedules:batch",
            "putSchedules",
            handler!(batch),
        )
        .says(
            "schedules",
            "Creates or replaces up to 1,000 schedules, each on its own.",
        )
        .writes()
        .takes::<wire::ScheduleBatch>()
        .gives::<wire::ScheduleBatchResult>(200, "An answer for each item, in order.")
        .refuses(&[Code::TenantNotFound]),
        Route::new("DELETE", ITEM, "deleteSchedule", handler!(delete))
            .says("schedules", "Deletes a schedule; its open executions stay.")
            .writes()
            .conditional()
            .gives_bare(204, "Deleted.", "")
            .refuses(GONE),
        action(
            "/v1/tenants/{tenant}/schedules/{schedule}:pause",
            "pauseSchedule",
            handler!(pause),
            "Stops firing until resumed.",
        )
        .may_take::<wire::PauseSchedule>()
        .gives::<wire::Schedule>(200, "The schedule."),
        action(
            "/v1/tenants/{tenant}/schedules/{schedule}:resume",
            "resumeSchedule",
            handler!(resume),
            "Fires again; a pause is caught up only when asked for.",
        )
        .may_take::<wire::ResumeSchedule>()
        .gives::<wire::ResumeResult>(200, "The schedule, and what was decided about the pause."),
        action(
            "/v1/tenants/{tenant}/schedules/{schedule}:trigger",
            "triggerSchedule",
            handler!(trigger),
            "Creates an execution now, beside the rule.",
        )
        .may_take::<wire::TriggerSchedule>()
        .gives::<wire::TriggerResult>(201, "The execution that was created.")
        .gives::<wire::TriggerResult>(200, "What a dry run would create."),
    ]
}

fn reads() -> Vec<Route> {
    const NONE: &[Code] = &[Code::TenantNotFound, Code::ScheduleNotFound];
    vec![
        Route::new("GET", ITEM, "getSchedule", handler!(get))
            .says("schedules", "Reads a schedule.")
            .reads()
            .gives::<wire::Schedule>(200, "The schedule.")
            .refuses(NONE),
        Route::new("GET", COLLECTION, "listSchedules", handler!(list))
            .says("schedules", "Lists schedules by name.")
            .reads()
            .lists()
            .param(
                "view",
                "string",
                "`basic` (default) leaves payloads out; `full`.",
            )
            .param(
                "state",
                "string",
                "`active`, `paused`, `completed`; several with commas.",
            )
            .param("queue", "string", "Only those of this queue.")
            .param("kind", "string", "Only those of this kind.")
            .param("label", "string", "`name=value`, or `name` for any value.")
            .param(
                "last_outcome",
                "string",
                "State in which the last execution ended.",
            )
            .gives_page::<wire::Schedule>("A page.")
            .refuses(&[Code::TenantNotFound, Code::InvalidCursor]),
        Route::new(
            "GET",
            "/v1/tenants/{tenant}/schedules/{schedule}/next",
            "nextOccurrences",
            handler!(next),
        )
        .says(
            "schedules",
            "The next occurrences of a schedule as it is defined now.",
        )
        .reads()
        .param("count", "integer", "How many, 1 to 1,000 (10).")
        .gives::<wire::NextOccurrences>(200, "The occurrences.")
        .refuses(NONE),
        Route::new(
            "GET",
            "/v1/tenants/{tenant}/schedules/{schedule}/occurrences",
            "listOccurrences",
            handler!(occurrences),
        )
        .says(
            "schedules",
            "The ledger: what became of each nominal time, newest first.",
        )
        .reads()
        .lists()
        .gives_page::<wire::OccurrenceRecord>("A page; open executions come first.")
        .refuses(&[
            Code::TenantNotFound,
            Code::ScheduleNotFound,
            Code::InvalidCursor,
        ]),
        Route::new(
            "POST",
            "/v1/schedules:preview",
            "previewSchedule",
            handler!(preview),
        )
        .says("schedules", "Times of a rule that is not stored.")
        .takes::<wire::Preview>()
        .gives::<wire::PreviewResult>(200, "The occurrences, and what may surprise.")
        .refuses(&[Code::NotSupported]),
    ]
}

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

async fn put(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
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
        let planned = api.plan_put(&put).await?;
        return dry_reply(&api, &put, &planned).map_err(|e| precondition(&call, e));
    }
    let (tenant, id) = (put.tenant.clone(), put.id.clone());
    let done = api.put_schedule(&call, put).await;
    let done = done.map_err(|e| precondition(&call, e))?;
    written_reply(&api, (&tenant, &id), &done)
}

/// The answer to a write of a schedule: the schedule as it is now.
fn written_reply(
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
    match (revision, put.expect) {
        (Some(revision), expect) => {
            check_expect(expect, revision)?;
        }
        (None, Expect::Revision(_) | Expect::Present) => {
            return Err(crate::command::outcome::Refusal::RevisionMismatch { current: 0 }.into());
        }
        (None, _) => {}
    }
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
        revision: revision.unwrap_or(0),
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

async fn patch_one(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    for _ in 1..ROUNDS {
        match patch_once(Arc::clone(&api), call.clone()).await? {
            Some(reply) => return Ok(reply),
            // Somebody else changed it and the caller did not ask about that: merge into what it is now.
            None => {}
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

async fn create(api: Arc<Api>, mut call: Call) -> Result<Reply, Error> {
    let body: wire::Schedule = call.body()?;
    let keyed = api.keyed(&call)?;
    let key = keyed.command();
    let id = match &body.schedule_id {
        Some(id) => {
            let mut issues = Issues::default();
            let root = At::Root;
            crate::api::convert::schedule_name(&mut issues, &root.key("schedule_id"), id);
            issues.finish()?;
            id.clone()
        }
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
        let planned = api.plan_put(&put).await?;
        return dry_reply(&api, &put, &planned);
    }
    let (tenant, id) = (put.tenant.clone(), put.id.clone());
    let done = api.put_schedule(&call, put).await?;
    written_reply(&api, (&tenant, &id), &done)
}

async fn batch(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::ScheduleBatch = call.body()?;
    let mut issues = Issues::default();
    let root = At::Root;
    issues.length(&root.key("items"), body.items.len(), &limits::BATCH_ITEMS);
    issues.finish()?;
    let keyed = api.keyed(&call)?;
    let tenant = call.tenant()?;
    tenant_no(&api.replica.resident(), &tenant)?;
    api.check_batch(&keyed, tenant.as_str(), body.items.len())?;
    let batch = Batch {
        call: &call,
        tenant,
        reason: call.reason(None)?,
        keyed: &keyed,
        is_dry: call.dry_run()?,
    };
    let items = api.put_schedules(&batch, body.items).await?;
    Reply::json(200, &wire::ScheduleBatchResult { items })
}

async fn delete(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let target = (call.tenant()?, call.schedule()?);
    let purpose = Purpose {
        reason: call.reason(None)?,
        key: None,
    };
    let done = api
        .delete_schedule(&call, target, purpose, call.dry_run()?)
        .await?;
    let reply = Reply::empty();
    Ok(match done {
        Some(done) => reply.at_index(done.index).outcome(Written::Deleted),
        None => reply.outcome(Written::Deleted).with("x-dry-run", "true"),
    })
}

async fn pause(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
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

async fn resume(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::ResumeSchedule = call.body_or_default()?;
    let keyed = api.keyed(&call)?;
    let mut issues = Issues::default();
    let root = At::Root;
    let max = body
        .catch_up_max
        .map(|n| issues.count(&root.key("catch_up_max"), n, &limits::RESUME_CATCH_UP));
    let catch_up = match body.catch_up.unwrap_or_default() {
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

async fn trigger(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
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

async fn get(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let (shown, revision) = api.read_schedule(&call.tenant()?, &call.schedule()?)?;
    Ok(Reply::json(200, &shown)?.etag(revision))
}

async fn list(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let query = ListQuery::of(&call)?;
    let tenant = call.tenant()?;
    let states = words(&query, "state", "active, paused, completed", |w| {
        ["active", "paused", "completed"]
            .into_iter()
            .find(|s| *s == w)
    })?;
    let last = words(
        &query,
        "last_outcome",
        "succeeded, cancelled, dead_lettered, expired",
        |w| crate::api::convert::execution::state_in(w).filter(|s| s.is_final()),
    )?;
    let label = LabelFilter::of(&query);
    let page = api.long_read(move |api| {
        let no = tenant_no(&api.replica.resident(), &tenant)?;
        let listing = Listing::of(&api.replica);
        let queue = query.filter("queue").map(str::to_owned);
        let kind = query.filter("kind").map(str::to_owned);
        let numbers = api.replica.resident().queue_numbers.clone();
        let queue = queue.map(|name| numbers.get(name.as_str()).copied());
        let keep = |row: &Schedule, status: &ScheduleStatus| {
            let template = &row.spec.template;
            states
                .as_ref()
                .is_none_or(|s| s.contains(&state_word(&status.state)))
                && last.as_ref().is_none_or(|wanted| {
                    status
                        .recent
                        .last()
                        .is_some_and(|r| wanted.contains(&r.state))
                })
                && queue.is_none_or(|no| no == Some(row.queue))
                && kind.as_deref().is_none_or(|k| k == template.kind.as_str())
                && label.as_ref().is_none_or(|l| l.matches(&template.labels))
        };
        let start = query.position.as_deref();
        let found = listing.schedules(no, start, Size::of(query.page_size), keep)?;
        let resident = api.replica.resident();
        let items = found.items.iter().map(|(row, status)| {
            let open = total_open(status);
            api.show_schedule(&resident, &tenant, (row, status), open, !query.is_full)
        });
        Ok(wire::Page {
            items: items.collect(),
            next_cursor: query.next(found.next),
        })
    });
    Reply::json(200, &page.await?)
}

fn state_word(state: &ScheduleState) -> &'static str {
    match state {
        ScheduleState::Active => "active",
        ScheduleState::Paused(_) => "paused",
        ScheduleState::Completed { .. } => "completed",
    }
}

async fn next(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let count = call.number("count", &limits::PREVIEW_COUNT)?;
    let count = count.unwrap_or(u64::from(COUNT_DEFAULT));
    let count = usize::try_from(count).unwrap_or(1);
    let tenant = call.tenant()?;
    let (row, status, now) = {
        let reader = api.replica.read();
        let (row, status) = schedule_rows(&reader, &tenant, &call.schedule()?)?;
        (row, status, reader.now())
    };
    let compiled = api.compiled(&tenant, &row)?;
    // A paused schedule shows what it would do if it were resumed now.
    let now = now.max(api.scheduler.now());
    let plan = match (&status.state, status.next) {
        (ScheduleState::Active, next) => crate::command::schedules::Plan {
            cursor: status.cursor,
            next,
        },
        _ => crate::leader::planner::follow(&compiled, status.cursor.max(now)),
    };
    let mut occurrences = upcoming(&plan, &compiled, count + 1);
    let left =
        row.spec.rule.max_occurrences.map(|max| {
            usize::try_from(max.saturating_sub(status.created_count)).unwrap_or(usize::MAX)
        });
    let most = left.map_or(count, |left| left.min(count));
    let exhausted = occurrences.len() <= count || left.is_some_and(|left| left <= count);
    occurrences.truncate(most);
    let answer = wire::NextOccurrences {
        occurrences: occurrences
            .into_iter()
            .map(|o| wire::PlannedOccurrence {
                nominal_at: o.nominal_at,
                due_at: o.due_at,
                local: o.local,
            })
            .collect(),
        exhausted,
        tzdata: api.zones.release().to_owned(),
    };
    Reply::json(200, &answer)
}

async fn occurrences(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let query = ListQuery::of(&call)?;
    let (tenant, id) = (call.tenant()?, call.schedule()?);
    let page = api.long_read(move |api| {
        let (row, status) = {
            let reader = api.replica.read();
            schedule_rows(&reader, &tenant, &id)?
        };
        let listing = Listing::of(&api.replica);
        let mut items = Vec::new();
        if query.position.is_none() {
            for found in listing.open_by_id(row.tenant, &status.open)?.iter().rev() {
                items.extend(open_record(found));
            }
        }
        let size = Size::of(query.page_size);
        let start = query.position.as_deref();
        let found = listing.ledger(row.tenant, &id, start, size, |_| true)?;
        items.extend(found.items.iter().map(ledger_out));
        Ok(wire::Page {
            items,
            next_cursor: query.next(found.next),
        })
    });
    Reply::json(200, &page.await?)
}

fn open_record(found: &crate::state::reader::Found) -> Option<wire::OccurrenceRecord> {
    let row = found.execution();
    let occurrence = row.occurrence.as_ref()?;
    Some(wire::OccurrenceRecord {
        kind: wire::OccurrenceKind::Execution,
        nominal_at: occurrence.nominal_at.map(Into::into),
        count: 1,
        incarnation: Some(occurrence.incarnation),
        execution_id: Some(row.id.to_string()),
        state: Some(found.state().as_str().to_owned()),
        ..wire::OccurrenceRecord::default()
    })
}

async fn preview(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::Preview = call.body()?;
    let mut issues = Issues::default();
    let root = At::Root;
    let count = body.count.unwrap_or(COUNT_DEFAULT);
    let count = issues.count(&root.key("count"), count, &limits::PREVIEW_COUNT);
    let identity = match &body.schedule_id {
        Some(text) => {
            let name =
                crate::api::convert::schedule_name(&mut issues, &root.key("schedule_id"), text);
            name.map(|id| identity(&TenantId::default_tenant(), &id))
        }
        None => None,
    };
    let now = api.runtime.clock().wall();
    let context = RuleContext {
        zones: &api.zones,
        now,
        previous: None,
        identity: identity.as_deref().unwrap_or("default/preview"),
    };
    let found = rule(&mut issues, &root.key("rule"), body.rule, context);
    issues.finish()?;
    let (_, compiled) =
        found.ok_or_else(|| Error::new(Code::Internal, "a rule without issues is missing"))?;
    let after = body.after.map_or(now, |i| i.0);
    let count = usize::try_from(count).unwrap_or(1);
    let release = api.zones.release().to_owned();
    // A thousand occurrences of an awkward rule take milliseconds.
    let shown = api
        .long_read(move |_| Ok(preview_out(compiled.preview(&release, after, count))))
        .await?;
    Reply::json(200, &shown)
}
