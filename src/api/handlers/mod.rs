//! Handlers: thin; each file begins with the rows of its calls.

pub mod audit;
pub mod cluster;
pub mod executions;
pub mod kinds;
pub mod leases;
mod pauses;
pub mod queues;
pub mod schedules;
pub mod system;
pub mod tenants;
pub mod workers;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::api::actions::{Done, unexpected};
use crate::api::call::Call;
use crate::api::cursor::ListQuery;
use crate::api::problem::{Code, Error};
use crate::api::reply::Reply;
use crate::api::routes::Route;
use crate::command::outcome::{Outcome, Written};
use crate::ids::Revision;
use crate::time::Timestamp;
use crate::wire::{Instant, Page};

/// Every call.
#[must_use]
pub fn all() -> Vec<Route> {
    let mut rows = schedules::routes();
    rows.extend(executions::routes());
    rows.extend(queues::routes());
    rows.extend(kinds::routes());
    rows.extend(tenants::routes());
    rows.extend(leases::routes());
    rows.extend(workers::routes());
    rows.extend(audit::routes());
    rows.extend(cluster::routes());
    rows.extend(system::routes());
    rows
}

/// The answer to a write of a queue or a tenant: the object as it is now.
fn written_reply<T: Serialize>(done: &Done, shown: &(T, Revision)) -> Result<Reply, Error> {
    let Outcome::Written { written, .. } = done.outcome else {
        return Err(unexpected(&done.outcome));
    };
    let status = match written {
        Written::Created => 201,
        _ => 200,
    };
    Ok(Reply::json(status, &shown.0)?
        .etag(shown.1)
        .at_index(done.index)
        .outcome(written)
        .replayed(done.is_replayed))
}

/// The answer to a dry run of such a write.
fn dry_reply<T: Serialize>(would_be: &T, done: &Done) -> Result<Reply, Error> {
    let Outcome::Written { written, .. } = done.outcome else {
        return Err(unexpected(&done.outcome));
    };
    Ok(Reply::json(200, would_be)?
        .outcome(written)
        .with("x-dry-run", "true"))
}

/// A page of what is held in memory, in the order of its names.
fn page_of<K: AsRef<str>, T>(query: &ListQuery, all: impl Iterator<Item = (K, T)>) -> Page<T> {
    let start = query
        .position
        .as_deref()
        .and_then(|p| std::str::from_utf8(p).ok())
        .map(str::to_owned);
    let mut items = Vec::new();
    let mut last = None;
    for (name, item) in all {
        if start.as_deref().is_some_and(|start| name.as_ref() <= start) {
            continue;
        }
        if items.len() >= query.page_size {
            return Page {
                items,
                next_cursor: query.next(last),
            };
        }
        last = Some(name.as_ref().as_bytes().to_vec());
        items.push(item);
    }
    Page {
        items,
        next_cursor: None,
    }
}

/// A label filter: `name=value`, or `name` for any value.
struct LabelFilter {
    name: String,
    value: Option<String>,
}

impl LabelFilter {
    fn of(query: &ListQuery) -> Option<Self> {
        let text = query.filter("label")?;
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        Some(Self {
            name: name.to_owned(),
            value,
        })
    }

    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        labels
            .get(&self.name)
            .is_some_and(|v| self.value.as_ref().is_none_or(|wanted| wanted == v))
    }
}

/// Reads a filter that is an instant.
fn instant_filter(query: &ListQuery, name: &str) -> Result<Option<Timestamp>, Error> {
    let read = |text: &str| {
        text.parse::<Instant>()
            .map(|i| i.0)
            .map_err(|detail| Error::parameter(format!("query:{name}"), detail))
    };
    query.filter(name).map(read).transpose()
}

/// Reads a filter that is one of some words, or several of them separated by commas.
fn words<T>(
    query: &ListQuery,
    name: &str,
    known: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Result<Option<Vec<T>>, Error> {
    let Some(text) = query.filter(name) else {
        return Ok(None);
    };
    let words = text.split(',').map(|word| {
        read(word).ok_or_else(|| {
            Error::parameter(
                format!("query:{name}"),
                format!("{word:?} is not one of {known}"),
            )
        })
    });
    words.collect::<Result<Vec<_>, _>>().map(Some)
}

/// For `If-None-Match: *`: what exists is a failed precondition, not a conflict.
fn precondition(call: &Call, error: Error) -> Error {
    let asked = call.request.header("if-none-match").ok().flatten();
    match error.code {
        Code::AlreadyExists if asked.is_some() => Error {
            code: Code::RevisionMismatch,
            ..error
        },
        _ => error,
    }
}
