//! Calls about executions.

mod source;

use std::sync::Arc;

use self::source::{Filter, Source};
use crate::api::Api;
use crate::api::actions::{Done, Purpose, unexpected};
use crate::api::call::Call;
use crate::api::convert::execution::{cancelled_out, state_in};
use crate::api::cursor::ListQuery;
use crate::api::handlers::{LabelFilter, instant_filter, words};
use crate::api::issues::{At, Issues};
use crate::api::problem::{Code, Error};
use crate::api::reads::{show_execution, tenant_no};
use crate::api::reply::{Reply, written_word};
use crate::api::routes::{Route, handler};
use crate::command::Command;
use crate::command::executions::{CancelMode, ExecutionCommand};
use crate::command::outcome::{Outcome, Refusal, Written};
use crate::ids::{ExecutionId, Revision, ScheduleId, TenantId, TenantNo};
use crate::model::execution::ExecutionState;
use crate::state::reader::Found;
use crate::state::reader::lists::Listing;
use crate::time::Millis;
use crate::wire;
use crate::wire::limits;

const COLLECTION: &str = "/v1/tenants/{tenant}/executions";
const ITEM: &str = "/v1/tenants/{tenant}/executions/{execution}";
const STATES: &str =
    "waiting, ready, leased, backing_off, succeeded, cancelled, dead_lettered, expired";

/// The rows.
#[must_use]
pub fn routes() -> Vec<Route> {
    let mut rows = writes();
    rows.extend(reads());
    rows
}

fn writes() -> Vec<Route> {
    const SUBMIT: &[Code] = &[
        Code::TenantNotFound,
        Code::IdConflict,
        Code::UniqueKeyHeld,
        Code::NotSupported,
        Code::QuotaExceeded,
        Code::QueueNotAllowed,
    ];
    vec![
        Route::new("POST", COLLECTION, "submitExecution", handler!(submit))
            .says("executions", "Submits work, to run now or later.")
            .writes()
            .takes::<wire::SubmitExecution>()
            .gives::<wire::Execution>(201, "Created.")
            .gives::<wire::Execution>(200, "An existing one answers, or a dry run.")
            .refuses(SUBMIT),
        Route::new(
            "POST",
            "/v1/tenants/{tenant}/executions:batch",
            "submitExecutions",
            handler!(batch),
        )
        .says(
            "executions",
            "Submits up to 1,000 executions, each on its own.",
        )
        .writes()
        .takes::<wire::SubmitBatch>()
        .gives::<wire::SubmitBatchResult>(200, "An answer for each item, in order.")
        .refuses(&[Code::TenantNotFound]),
        Route::new(
            "POST",
            "/v1/tenants/{tenant}/executions/{execution}:cancel",
            "cancelExecution",
            handler!(cancel),
        )
        .says("executions", "Asks for the end of an execution.")
        .writes()
        .conditional()
        .may_take::<wire::Cancel>()
        .gives::<wire::CancelResult>(200, "What it did.")
        .refuses(&[
            Code::TenantNotFound,
            Code::ExecutionNotFound,
            Code::RevisionMismatch,
        ]),
        Route::new("DELETE", ITEM, "deleteExecution", handler!(delete))
            .says("executions", "Deletes a final execution from history.")
            .writes()
            .gives_bare(204, "Deleted.", "")
            .refuses(&[
                Code::TenantNotFound,
                Code::ExecutionNotFound,
                Code::NotFinal,
            ]),
    ]
}

fn reads() -> Vec<Route> {
    let list = |pattern, id, handler, summary| {
        Route::new("GET", pattern, id, handler)
            .says("executions", summary)
            .reads()
            .lists()
            .param(
                "view",
                "string",
                "`basic` (default) leaves payloads out; `full`.",
            )
            .param("schedule", "string", "Only those of this schedule.")
            .param("queue", "string", "Only those of this queue.")
            .param("kind", "string", "Only those of this kind.")
            .param("label", "string", "`name=value`, or `name` for any value.")
            .param("due_from", "instant", "Due at or after it.")
            .param("due_to", "instant", "Due before it.")
            .gives_page::<wire::Execution>("A page: open ones, then final ones, newest id first.")
            .refuses(&[Code::TenantNotFound, Code::InvalidCursor])
    };
    let states = "One of the execution states; several with commas.";
    vec![
        Route::new("GET", ITEM, "getExecution", handler!(get))
            .says(
                "executions",
                "Reads an execution with its attempts, or waits for its result.",
            )
            .reads()
            .param(
                "wait_ms",
                "integer",
                "Answer when it is final, or after this long (60,000 at most).",
            )
            .param(
                "view",
                "string",
                "`full` (default) or `basic`, which leaves the payload out.",
            )
            .gives::<wire::Execution>(200, "The execution.")
            .refuses(&[Code::TenantNotFound, Code::ExecutionNotFound]),
        list(
            COLLECTION,
            "listExecutions",
            handler!(list_all),
            "Lists executions.",
        )
        .param("state", "string", states),
        list(
            "/v1/tenants/{tenant}/dead-letters",
            "listDeadLetters",
            handler!(list_dead),
            "Lists dead letters.",
        ),
    ]
}

async fn submit(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::SubmitExecution = call.body()?;
    let tenant = call.tenant()?;
    let keyed = api.keyed(&call)?;
    let purpose = Purpose {
        reason: call.reason(None)?,
        key: keyed.command(),
    };
    if call.dry_run()? {
        return dry_submit(&api, &call, &tenant, (body, purpose)).await;
    }
    let done = api.submit_execution(&call, &tenant, body, purpose).await?;
    let (written, id) = submitted(&done)?;
    let status = if written == Written::Existing {
        200
    } else {
        201
    };
    let (shown, revision) = match api.read_execution(&tenant, &id, false) {
        Ok(found) => found,
        // It has ended and was deleted since; a repeat still gets its first answer.
        Err(error) if error.code == Code::ExecutionNotFound => {
            let bare = wire::Execution {
                execution_id: id.to_string(),
                tenant: tenant.to_string(),
                ..wire::Execution::default()
            };
            (bare, Revision::new(done.index, 0))
        }
        Err(error) => return Err(error),
    };
    Ok(Reply::json(status, &shown)?
        .etag(revision)
        .at_index(done.index)
        .outcome(written)
        .replayed(done.is_replayed))
}

fn submitted(done: &Done) -> Result<(Written, ExecutionId), Error> {
    match &done.outcome {
        Outcome::Submitted {
            written, execution, ..
        } => Ok((*written, execution.clone())),
        other => Err(unexpected(other)),
    }
}

async fn dry_submit(
    api: &Arc<Api>,
    call: &Call,
    tenant: &TenantId,
    (body, purpose): (wire::SubmitExecution, Purpose),
) -> Result<Reply, Error> {
    let now = api.scheduler.now();
    let command = api.submission(call, &At::Root, body, (tenant, now))?;
    let submit = ExecutionCommand::Submit(Box::new(command.clone()));
    let envelope = api.envelope(call, &purpose, Command::Execution(submit));
    let (written, id) = submitted(&api.rehearse_one(envelope).await?)?;
    let template = &command.template;
    let would_be = wire::Execution {
        // A minted id is not known before.
        execution_id: match (written, &command.id) {
            (Written::Existing, _) => id.to_string(),
            (_, id) => id.as_ref().map(ToString::to_string).unwrap_or_default(),
        },
        tenant: tenant.to_string(),
        kind: template.kind.to_string(),
        queue: command.queue.to_string(),
        priority: template.priority,
        concurrency_key: template.concurrency_key.clone(),
        unique_key: command.unique.as_ref().map(|u| u.key.clone()),
        labels: template.labels.clone(),
        requires: template.requires.clone(),
        retry: crate::api::convert::policy::retry_out(&template.retry),
        timeouts: crate::api::convert::policy::timeouts_out(&template.timeouts),
        state: match command.due_at > now {
            true => wire::ExecutionState::Waiting,
            false => wire::ExecutionState::Ready,
        },
        due_at: Some(command.due_at.into()),
        ..wire::Execution::default()
    };
    Ok(Reply::json(200, &would_be)?
        .outcome(written)
        .with("x-dry-run", "true"))
}

async fn batch(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::SubmitBatch = call.body()?;
    let mut issues = Issues::default();
    let root = At::Root;
    issues.length(&root.key("items"), body.items.len(), &limits::BATCH_ITEMS);
    issues.finish()?;
    let keyed = api.keyed(&call)?;
    let tenant = call.tenant()?;
    tenant_no(&api.replica.resident(), &tenant)?;
    api.check_batch(&keyed, tenant.as_str(), body.items.len())?;
    let reason = call.reason(None)?;
    let is_dry = call.dry_run()?;
    let how = (&keyed, reason, is_dry);
    let results = api
        .submit_executions(&call, &tenant, body.items, how)
        .await?;
    let done = results.iter().flatten().flatten();
    let index = done.map(|done| done.index).max();
    let shown = |result| shown_result(result, is_dry);
    let items = results.into_iter().map(shown).collect();
    let reply = Reply::json(200, &wire::SubmitBatchResult { items })?;
    Ok(match index {
        _ if is_dry => reply.with("x-dry-run", "true"),
        Some(index) => reply.at_index(index),
        None => reply,
    })
}

fn shown_result(result: Result<Option<Done>, Error>, is_dry: bool) -> wire::SubmitResult {
    let result = match result {
        Ok(done) => done.map_or(Err(Refusal::Superseded.into()), |done| submitted(&done)),
        Err(error) => Err(error),
    };
    match result {
        Ok((written, id)) => wire::SubmitResult {
            // What a dry run would create has no id yet, unless it was chosen.
            execution_id: (!is_dry || written == Written::Existing || id.minted_tenant().is_none())
                .then(|| id.to_string()),
            outcome: Some(written_word(written).to_owned()),
            result: wire::ItemStatus {
                status: match written {
                    Written::Existing => 200,
                    _ if is_dry => 200,
                    _ => 201,
                },
                problem: None,
            },
        },
        Err(error) => wire::SubmitResult {
            execution_id: None,
            outcome: None,
            result: wire::ItemStatus {
                status: error.code.status(),
                problem: Some(error.to_wire("")),
            },
        },
    }
}

async fn get(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let (tenant, id) = (call.tenant()?, call.execution()?);
    let is_full = match call.param("view")? {
        None | Some("full") => true,
        Some("basic") => false,
        Some(other) => {
            let detail = format!("{other:?} is neither basic nor full");
            return Err(Error::parameter("query:view", detail));
        }
    };
    let wait = call.wait()?;
    if wait > Millis::ZERO {
        let is_open = {
            let reader = api.replica.read();
            let no = tenant_no(&reader, &tenant)?;
            match reader.execution(no, &id)? {
                Some(Found::Open(..)) => Some(no),
                _ => None,
            }
        };
        if let Some(no) = is_open {
            api.scheduler.wait_final(no, id.clone(), wait).await?;
        }
        // The wait was long enough for this node to have been deposed.
        api.consensus.read_barrier().await?;
    }
    let (shown, revision) = api.read_execution(&tenant, &id, is_full)?;
    Ok(Reply::json(200, &shown)?.etag(revision))
}

async fn list_all(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let query = ListQuery::of(&call)?;
    let states = words(&query, "state", STATES, state_in)?;
    list(api, call, query, states).await
}

async fn list_dead(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let query = ListQuery::of(&call)?;
    list(api, call, query, Some(vec![ExecutionState::DeadLettered])).await
}

async fn list(
    api: Arc<Api>,
    call: Call,
    query: ListQuery,
    states: Option<Vec<ExecutionState>>,
) -> Result<Reply, Error> {
    let tenant = call.tenant()?;
    let schedule = match query.filter("schedule") {
        None => None,
        Some(text) => Some(
            ScheduleId::new(text)
                .map_err(|why| Error::parameter("query:schedule", format!("the name {why}")))?,
        ),
    };
    let (no, queue) = {
        let resident = api.replica.resident();
        let queue = query
            .filter("queue")
            .map(|name| resident.queues_named(name));
        (tenant_no(&resident, &tenant)?, queue)
    };
    let filter = Filter {
        states,
        queue,
        kind: query.filter("kind").map(str::to_owned),
        label: LabelFilter::of(&query),
        due_from: instant_filter(&query, "due_from")?,
        due_to: instant_filter(&query, "due_to")?,
    };
    let page = api.long_read(move |api| {
        let listing = Listing::of(&api.replica);
        let source = Source {
            listing: &listing,
            tenant: no,
            schedule: schedule.as_ref(),
            filter: &filter,
        };
        let found = source.page(query.position.as_deref(), query.page_size)?;
        let mut items = Vec::with_capacity(found.items.len());
        for found in &found.items {
            let payload = payload(&listing, no, found, query.is_full)?;
            items.push(show_execution(
                &api.replica.resident(),
                &tenant,
                found,
                payload,
            ));
        }
        Ok(wire::Page {
            items,
            next_cursor: query.next(found.next),
        })
    });
    Reply::json(200, &page.await?)
}

fn payload(
    listing: &Listing,
    tenant: TenantNo,
    found: &Found,
    is_full: bool,
) -> Result<Option<Vec<u8>>, Error> {
    if !is_full {
        return Ok(None);
    }
    let row = found.execution();
    let apart = match row.payload {
        crate::model::execution::StoredPayload::Inline => None,
        crate::model::execution::StoredPayload::Body { .. } => listing.body(tenant, &row.id)?,
    };
    Ok(Some(apart.unwrap_or_else(|| row.template.payload.clone())))
}

async fn cancel(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::Cancel = call.body_or_default()?;
    let keyed = api.keyed(&call)?;
    let purpose = Purpose {
        reason: call.reason(body.reason)?,
        key: keyed.command(),
    };
    let mode = match body.mode.unwrap_or_default() {
        wire::CancelMode::Request => CancelMode::Request,
        wire::CancelMode::Now => CancelMode::Now,
    };
    let (tenant, id) = (call.tenant()?, call.execution()?);
    let target = (tenant.clone(), id.clone());
    let is_dry = call.dry_run()?;
    let done = api
        .cancel_execution(&call, target, mode, purpose, is_dry)
        .await?;
    let Outcome::Cancelled(did) = done.outcome else {
        return Err(unexpected(&done.outcome));
    };
    if is_dry {
        let answer = cancelled_out(&id, did, None);
        return Ok(Reply::json(200, &answer)?.with("x-dry-run", "true"));
    }
    let state = {
        let reader = api.replica.read();
        let no = tenant_no(&reader, &tenant)?;
        reader.execution(no, &id)?.map(|found| found.state())
    };
    let answer = cancelled_out(&id, did, state);
    Ok(Reply::json(200, &answer)?
        .at_index(done.index)
        .replayed(done.is_replayed))
}

async fn delete(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let target = (call.tenant()?, call.execution()?);
    let keyed = api.keyed(&call)?;
    let purpose = Purpose {
        reason: call.reason(None)?,
        key: keyed.command(),
    };
    let done = api
        .delete_execution(&call, target, purpose, call.dry_run()?)
        .await?;
    let reply = Reply::empty().outcome(Written::Deleted);
    Ok(match done {
        Some(done) => reply.at_index(done.index).replayed(done.is_replayed),
        None => reply.with("x-dry-run", "true"),
    })
}
