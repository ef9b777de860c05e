//! Calls about queues.

use std::sync::Arc;

use crate::api::Api;
use crate::api::actions::Purpose;
use crate::api::call::Call;
use crate::api::convert::queue::{add_counts, queue_out, queue_spec};
use crate::api::cursor::ListQuery;
use crate::api::handlers::{dry_reply, page_of, pauses, precondition, written_reply};
use crate::api::issues::Issues;
use crate::api::problem::{Code, Error};
use crate::api::reads::{backlog, queue_no};
use crate::api::reply::Reply;
use crate::api::routes::{Route, handler};
use crate::command::admin::{AdminCommand, DeleteQueue, PauseScope, PutQueue};
use crate::command::outcome::{Refusal, Written};
use crate::ids::{QueueId, QueueNo, Revision};
use crate::state::reader::Reader;
use crate::store::{Direction, Family, KeyRange, keys};
use crate::time::{Millis, Timestamp};
use crate::wire;

const ITEM: &str = "/v1/queues/{queue}";
/// Tenants shown in statistics.
const TENANTS_SHOWN: usize = 1_000;
/// Lines whose head is read for the oldest due time.
const HEADS_READ: usize = 1_000;

/// The rows.
#[must_use]
pub fn routes() -> Vec<Route> {
    let mut rows = definitions();
    rows.extend(pauses());
    rows
}

fn pauses() -> Vec<Route> {
    const NONE: &[Code] = &[Code::QueueNotFound];
    let act = |pattern, id, handler, summary| {
        Route::new("POST", pattern, id, handler)
            .says("queues", summary)
            .writes()
            .may_take::<wire::Pause>()
            .gives::<wire::Queue>(200, "The queue.")
            .refuses(NONE)
    };
    vec![
        act(
            "/v1/queues/{queue}:pause",
            "pauseQueue",
            handler!(pause),
            "Grants nothing from it until resumed.",
        ),
        act(
            "/v1/queues/{queue}:resume",
            "resumeQueue",
            handler!(resume),
            "Grants from it again.",
        ),
    ]
}

fn definitions() -> Vec<Route> {
    const NONE: &[Code] = &[Code::QueueNotFound];
    vec![
        Route::new("PUT", ITEM, "putQueue", handler!(put))
            .says(
                "queues",
                "Creates or replaces a queue; equal content changes nothing.",
            )
            .writes()
            .conditional()
            .takes::<wire::Queue>()
            .gives::<wire::Queue>(201, "Created.")
            .gives::<wire::Queue>(200, "Updated or unchanged; `X-Outcome` says which.")
            .refuses(&[Code::RevisionMismatch, Code::QuotaReached]),
        Route::new("GET", ITEM, "getQueue", handler!(get))
            .says("queues", "Reads a queue.")
            .reads()
            .gives::<wire::Queue>(200, "The queue.")
            .refuses(NONE),
        Route::new("GET", "/v1/queues", "listQueues", handler!(list))
            .says("queues", "Lists queues by name.")
            .reads()
            .lists()
            .gives_page::<wire::Queue>("A page.")
            .refuses(&[Code::InvalidCursor]),
        Route::new("DELETE", ITEM, "deleteQueue", handler!(delete))
            .says(
                "queues",
                "Deletes a queue that holds no open execution and that no schedule names.",
            )
            .writes()
            .conditional()
            .gives_bare(204, "Deleted.", "")
            .refuses(&[
                Code::QueueNotFound,
                Code::QueueInUse,
                Code::Protected,
                Code::RevisionMismatch,
            ]),
        Route::new(
            "GET",
            "/v1/queues/{queue}/stats",
            "queueStats",
            handler!(stats),
        )
        .says(
            "queues",
            "Depth by state and tenant, and the oldest due time.",
        )
        .reads()
        .gives::<wire::QueueStats>(200, "The figures.")
        .refuses(NONE),
    ]
}

fn shown(reader: &Reader<'_>, id: &QueueId) -> Result<(wire::Queue, Revision), Error> {
    let no = queue_no(reader, id)?;
    let row = reader.queues.get(&no).ok_or(Refusal::QueueNotFound)?;
    Ok((queue_out(row, backlog(reader, no)), row.revision))
}

async fn put(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::Queue = call.body()?;
    let queue = call.queue()?;
    let expect = call.expect(body.revision.as_deref())?;
    let mut issues = Issues::default();
    let spec = queue_spec(&mut issues, body, &queue);
    issues.finish()?;
    if call.dry_run()? {
        let command = PutQueue {
            queue: queue.clone(),
            spec: spec.clone(),
            expect,
        };
        let done = api.rehearse_admin(&call, AdminCommand::PutQueue(command));
        let done = done.await.map_err(|e| precondition(&call, e))?;
        let reader = api.replica.read();
        let present = shown(&reader, &queue).ok();
        let revision = present.as_ref().map(|(_, revision)| *revision);
        let row = crate::model::queue::Queue {
            id: queue,
            spec,
            paused: None,
            created_at: reader.now(),
            revision: revision.unwrap_or_default(),
            rate_tat_ns: 0,
        };
        let would_be = queue_out(&row, wire::Backlog::default());
        return dry_reply(&would_be, &done);
    }
    let command = AdminCommand::PutQueue(PutQueue {
        queue: queue.clone(),
        spec,
        expect,
    });
    let keyed = api.keyed(&call)?;
    let purpose = Purpose {
        reason: call.reason(None)?,
        key: keyed.command(),
    };
    let object = format!("queue {queue}");
    let done = api.administer(&call, object, &purpose, command).await;
    let done = done.map_err(|e| precondition(&call, e))?;
    written_reply(&done, &shown(&api.replica.read(), &queue)?)
}

async fn get(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let (shown, revision) = shown(&api.replica.read(), &call.queue()?)?;
    Ok(Reply::json(200, &shown)?.etag(revision))
}

async fn list(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let query = ListQuery::of(&call)?;
    let resident = api.replica.resident();
    let all = resident.queue_numbers.iter().filter_map(|(id, no)| {
        let row = resident.queues.get(no)?;
        Some((id.as_str(), queue_out(row, backlog(&resident, *no))))
    });
    Reply::json(200, &page_of(&query, all))
}

async fn delete(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let queue = call.queue()?;
    let expect = call.expect(None)?;
    let deleted = Reply::empty().outcome(Written::Deleted);
    if call.dry_run()? {
        let command = AdminCommand::DeleteQueue(DeleteQueue { queue, expect });
        api.rehearse_admin(&call, command).await?;
        return Ok(deleted.with("x-dry-run", "true"));
    }
    let keyed = api.keyed(&call)?;
    let purpose = Purpose {
        reason: call.reason(None)?,
        key: keyed.command(),
    };
    let object = format!("queue {queue}");
    let command = AdminCommand::DeleteQueue(DeleteQueue { queue, expect });
    let done = api.administer(&call, object, &purpose, command).await?;
    Ok(deleted.at_index(done.index).replayed(done.is_replayed))
}

async fn pause(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    set_pause(api, call, true).await
}

async fn resume(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    set_pause(api, call, false).await
}

async fn set_pause(api: Arc<Api>, call: Call, is_paused: bool) -> Result<Reply, Error> {
    let queue = call.queue()?;
    let scope = PauseScope::Queue(queue.clone());
    let shown = || shown(&api.replica.read(), &queue);
    pauses::set_pause(&api, &call, scope, is_paused, shown).await
}

async fn stats(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let queue = call.queue()?;
    // Log time stands still while nothing happens; what waits grows older all the same.
    let now = api.scheduler.now();
    let figures = api.long_read(move |api| {
        let reader = api.replica.read();
        let now = now.max(reader.now());
        let no = queue_no(&reader, &queue)?;
        let oldest = oldest_due(&reader, no)?;
        let tenants = reader.lines_of(no).filter(|(_, c)| c.open() > 0);
        let tenants = tenants.take(TENANTS_SHOWN).filter_map(|(tenant, counts)| {
            let row = reader.tenants.get(&tenant)?;
            let own = reader.queues.get(&no)?.spec.weights.get(&row.id).copied();
            let mut backlog = wire::Backlog::default();
            add_counts(&mut backlog, counts);
            Some(wire::TenantStats {
                tenant: row.id.to_string(),
                weight: own.unwrap_or(row.spec.weight),
                backlog,
            })
        });
        Ok(wire::QueueStats {
            queue: queue.to_string(),
            backlog: backlog(&reader, no),
            oldest_due_at: oldest.map(Into::into),
            oldest_wait_ms: oldest.map(|at| now.since(at)).map(|Millis(ms)| ms),
            tenants: tenants.collect(),
        })
    });
    Reply::json(200, &figures.await?)
}

/// The earliest line time over the heads of a queue's ready lines: one seek a tenant and priority.
fn oldest_due(reader: &Reader<'_>, no: QueueNo) -> Result<Option<Timestamp>, Error> {
    let mut oldest: Option<Timestamp> = None;
    let mut read = 0;
    for (tenant, counts) in reader.lines_of(no) {
        if counts.ready == 0 {
            continue;
        }
        let line = keys::ready_line(no, tenant);
        for rank in 0..=9_u8 {
            read += 1;
            if read > HEADS_READ {
                return Ok(oldest);
            }
            let prefix = [line.as_slice(), &[rank]].concat();
            let range = KeyRange::prefix(&prefix);
            let mut head = None;
            reader
                .store()
                .scan(Family::Lines, &range, Direction::Forward, &mut |key, _| {
                    let order = key.get(line.len()..).unwrap_or_default();
                    head = keys::decode_line_order(order).map(|(_, at, _)| at);
                    std::ops::ControlFlow::Break(())
                })?;
            oldest = match (oldest, head) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
    }
    Ok(oldest)
}
