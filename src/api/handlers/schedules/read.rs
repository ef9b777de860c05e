//! Reading, listing, the ledger, and times that are still to come.

use std::sync::Arc;

use crate::api::Api;
use crate::api::actions::schedules::upcoming;
use crate::api::call::Call;
use crate::api::convert::lease::queue_name_of;
use crate::api::convert::rule::{RuleContext, preview_out, rule, warnings};
use crate::api::convert::schedule::{created_out, generation_out, ledger_out};
use crate::api::convert::{schedule_name, tenant as tenant_name};
use crate::api::cursor::ListQuery;
use crate::api::handlers::{LabelFilter, words};
use crate::api::issues::{At, Issues};
use crate::api::problem::{Code, Error};
use crate::api::reads::{schedule_rows, tenant_no, total_open};
use crate::api::reply::Reply;
use crate::calendar::Preview;
use crate::command::outcome::Refusal;
use crate::ids::{ExecutionId, TenantId};
use crate::leader::planner::identity;
use crate::model::schedule::{Schedule, ScheduleState, ScheduleStatus};
use crate::state::reader::lists::{Listing, Size};
use crate::wire;
use crate::wire::limits;

/// Occurrences of a preview unless told otherwise.
const COUNT_DEFAULT: u32 = 10;

pub(super) async fn get(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let (shown, revision) = api.read_schedule(&call.tenant()?, &call.schedule()?)?;
    Ok(Reply::json(200, &shown)?.etag(revision))
}

pub(super) async fn list(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
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

pub(super) async fn next(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
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
    let is_over = match compiled.after_end() {
        // The one that is planned follows an end; those after it have no time yet.
        Some(_) => compiled.next(now).is_none(),
        None => occurrences.len() <= count,
    };
    let exhausted = is_over || left.is_some_and(|left| left <= most.min(occurrences.len()));
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
        warnings: warnings(&compiled, now),
        tzdata: api.zones.release().to_owned(),
    };
    Reply::json(200, &answer)
}

pub(super) async fn occurrences(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let query = ListQuery::of(&call)?;
    let (tenant, id) = (call.tenant()?, call.schedule()?);
    let page = api.long_read(move |api| {
        let (row, status) = {
            let reader = api.replica.read();
            schedule_rows(&reader, &tenant, &id)?
        };
        let listing = Listing::of(&api.replica);
        let position = query.position.as_deref().and_then(|p| p.split_first());
        let (is_open, place) = match position {
            None => (true, None),
            Some((part, place)) => (*part == OPEN, (!place.is_empty()).then_some(place)),
        };
        let mut items = Vec::new();
        if is_open {
            let (page, rest) = open_page(status.open, place, query.page_size);
            let found = listing.open_by_id(row.tenant, &page)?;
            items.extend(found.iter().filter_map(open_record));
            if rest || items.len() >= query.page_size {
                let next = match page.last().filter(|_| rest) {
                    Some(last) => [&[OPEN], last.as_str().as_bytes()].concat(),
                    None => vec![ENDED],
                };
                let next_cursor = query.next(Some(next));
                return Ok(wire::Page { items, next_cursor });
            }
        }
        let size = Size::of(query.page_size - items.len());
        let start = place.filter(|_| !is_open);
        let found = listing.ledger(row.tenant, &id, start, size, |_| true)?;
        items.extend(found.items.iter().map(ledger_out));
        let next = found.next.map(|next| [&[ENDED], next.as_slice()].concat());
        Ok(wire::Page {
            items,
            next_cursor: query.next(next),
        })
    });
    Reply::json(200, &page.await?)
}

pub(super) async fn generations(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let query = ListQuery::of(&call)?;
    let (tenant, id) = (call.tenant()?, call.schedule()?);
    let page = api.long_read(move |api| {
        let no = tenant_no(&api.replica.resident(), &tenant)?;
        let listing = Listing::of(&api.replica);
        let start = query.position.as_deref();
        let found = listing.generations(no, &id, start, Size::of(query.page_size))?;
        let found = found.ok_or(Refusal::ScheduleNotFound)?;
        let resident = api.replica.resident();
        let is_first = query.position.is_none();
        let items = found.items.iter().enumerate().map(|(i, row)| {
            let queue = queue_name_of(&resident, row.queue);
            wire::Generation {
                current: is_first && i == 0,
                ..generation_out(row, &tenant, queue, !query.is_full)
            }
        });
        Ok(wire::Page {
            items: items.collect(),
            next_cursor: query.next(found.next),
        })
    });
    Reply::json(200, &page.await?)
}

/// First byte of a position among open executions, followed by the id of the last one shown.
const OPEN: u8 = b'o';
/// First byte of a position in the ledger.
const ENDED: u8 = b'f';

/// Open executions newest first, at most a page of them after `place`, and whether there are more.
fn open_page(
    mut open: Vec<ExecutionId>,
    place: Option<&[u8]>,
    page_size: usize,
) -> (Vec<ExecutionId>, bool) {
    open.sort_unstable_by(|a, b| b.cmp(a));
    open.retain(|id| place.is_none_or(|place| id.as_str().as_bytes() < place));
    let more = open.len() > page_size;
    open.truncate(page_size);
    (open, more)
}

fn open_record(found: &crate::state::reader::Found) -> Option<wire::OccurrenceRecord> {
    let row = found.execution();
    let occurrence = row.occurrence.as_ref()?;
    let at = occurrence.nominal_at.unwrap_or(row.created_at);
    Some(wire::OccurrenceRecord {
        execution_id: Some(row.id.to_string()),
        state: Some(found.state().as_str().to_owned()),
        ..created_out(row.cause, occurrence.incarnation, at)
    })
}

pub(super) async fn preview(api: Arc<Api>, call: Call) -> Result<Reply, Error> {
    let body: wire::Preview = call.body()?;
    let mut issues = Issues::default();
    let root = At::Root;
    let count = body.count.unwrap_or(COUNT_DEFAULT);
    let count = issues.count(&root.key("count"), count, &limits::PREVIEW_COUNT);
    let owner = match &body.tenant {
        Some(text) => tenant_name(&mut issues, &root.key("tenant"), text),
        None => Some(TenantId::default_tenant()),
    };
    let name = body.schedule_id.as_deref();
    let name = name.and_then(|text| schedule_name(&mut issues, &root.key("schedule_id"), text));
    if body.tenant.is_some() && body.schedule_id.is_none() {
        issues.add(&root.key("tenant"), "invalid", "belongs to schedule_id");
    }
    let identity = owner.zip(name).map(|(owner, id)| identity(&owner, &id));
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
        .long_read(move |_| {
            // Warnings are about what is to come, wherever the times begin.
            let preview = Preview {
                warnings: compiled.warnings_from(now),
                ..compiled.preview(&release, after, count)
            };
            Ok(preview_out(preview))
        })
        .await?;
    Reply::json(200, &shown)
}
