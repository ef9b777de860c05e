//! The table of calls: router, document and metrics read the same rows.
//!
//! Callers: handler modules fill it, `dispatch` matches against it, `openapi` describes it.
//! Invariants: a path and method lead to at most one row; every row is in the document (a test says so).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::future::BoxFuture;
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::api::Api;
use crate::api::call::{Call, percent_decode};
use crate::api::problem::{Code, Error};
use crate::api::reply::Reply;

/// What a handler is.
pub type Handler = fn(Arc<Api>, Call) -> BoxFuture<'static, Result<Reply, Error>>;

/// Makes a [`Handler`] of an async function.
macro_rules! handler {
    ($function:path) => {
        |api, call| Box::pin($function(api, call))
    };
}
pub(crate) use handler;

/// Who may answer a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Any node, from what it is itself.
    Local,
    /// Any node, from the replicated state, linearizable unless told otherwise.
    Read,
    /// The leader; other nodes forward.
    Leader,
}

/// A query parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name.
    pub name: &'static str,
    /// `string`, `integer`, `boolean`, `instant`.
    pub kind: &'static str,
    /// What it does.
    pub about: &'static str,
}

const fn param(name: &'static str, kind: &'static str, about: &'static str) -> Param {
    Param { name, kind, about }
}

/// Parameters of every read of the replicated state.
pub const READ_PARAMS: &[Param] = &[
    param(
        "consistency",
        "string",
        "`linearizable` (default) or `stale`: served locally, with its applied index and age in headers.",
    ),
    param(
        "min_index",
        "integer",
        "Wait until the answering node has applied this `X-Log-Index`.",
    ),
];

/// Parameters of every write.
pub const WRITE_PARAMS: &[Param] = &[
    param(
        "dry_run",
        "boolean",
        "Validates and answers what would happen; changes nothing.",
    ),
    param("reason", "string", "Why, for the audit log."),
];

/// Parameters of every list.
pub const LIST_PARAMS: &[Param] = &[
    param("page_size", "integer", "Items of a page, 1 to 1,000 (100)."),
    param(
        "cursor",
        "string",
        "`next_cursor` of the page before. Filters are bound into it: give none beside it, or the same.",
    ),
];

/// A schema used by a row.
#[derive(Clone)]
pub struct SchemaUse {
    /// Its name in the document.
    pub name: String,
    /// It is a page of these.
    pub page: bool,
    /// Adds it, and what it refers to.
    pub collect: fn(&mut Vec<(String, RefOr<Schema>)>),
}

fn collect<T: ToSchema>(out: &mut Vec<(String, RefOr<Schema>)>) {
    out.push((T::name().into_owned(), <T as PartialSchema>::schema()));
    T::schemas(out);
}

/// One call.
#[derive(Clone)]
pub struct Route {
    /// `GET`, `PUT`, …
    pub method: &'static str,
    /// Path with `{names}`; the last part may end in `:action`.
    pub pattern: &'static str,
    /// Operation id in the document, route label in metrics.
    pub id: &'static str,
    /// Group in the document.
    pub tag: &'static str,
    /// What it does.
    pub summary: &'static str,
    /// Who may answer.
    pub access: Access,
    /// Query parameters.
    pub params: Vec<Param>,
    /// It takes an `Idempotency-Key`.
    pub keyed: bool,
    /// It takes `If-Match` and `If-None-Match`.
    pub conditional: bool,
    /// Body, and whether it must be there.
    pub body: Option<(SchemaUse, bool)>,
    /// Good answers: status, what it says, body.
    pub answers: Vec<(u16, &'static str, Option<SchemaUse>)>,
    /// Media type of the good answers.
    pub media: &'static str,
    /// Codes of its own, beside the general ones.
    pub problems: &'static [Code],
    /// Who answers.
    pub handler: Handler,
}

impl Route {
    /// A row; `id` names it in the document and in metrics.
    #[must_use]
    pub fn new(
        method: &'static str,
        pattern: &'static str,
        id: &'static str,
        handler: Handler,
    ) -> Self {
        Self {
            method,
            pattern,
            id,
            tag: "system",
            summary: "",
            access: Access::Local,
            params: Vec::new(),
            keyed: false,
            conditional: false,
            body: None,
            answers: Vec::new(),
            media: crate::api::reply::JSON,
            problems: &[],
            handler,
        }
    }

    /// Its group and what it does.
    #[must_use]
    pub fn says(mut self, tag: &'static str, summary: &'static str) -> Self {
        self.tag = tag;
        self.summary = summary;
        self
    }

    /// Reads the replicated state.
    #[must_use]
    pub fn reads(mut self) -> Self {
        self.access = Access::Read;
        self.params.extend_from_slice(READ_PARAMS);
        self
    }

    /// Reads what only the leader knows.
    #[must_use]
    pub fn asks_leader(mut self) -> Self {
        self.access = Access::Leader;
        self
    }

    /// Writes, through the leader.
    #[must_use]
    pub fn writes(mut self) -> Self {
        self.access = Access::Leader;
        self.params.extend_from_slice(WRITE_PARAMS);
        self.keyed = true;
        self
    }

    /// Takes `If-Match` and `If-None-Match`.
    #[must_use]
    pub fn conditional(mut self) -> Self {
        self.conditional = true;
        self
    }

    /// Lists, in pages.
    #[must_use]
    pub fn lists(mut self) -> Self {
        self.params.extend_from_slice(LIST_PARAMS);
        self
    }

    /// One more query parameter.
    #[must_use]
    pub fn param(mut self, name: &'static str, kind: &'static str, about: &'static str) -> Self {
        self.params.push(param(name, kind, about));
        self
    }

    /// A body that must be there.
    #[must_use]
    pub fn takes<T: ToSchema>(mut self) -> Self {
        self.body = Some((schema_use::<T>(false), true));
        self
    }

    /// A body that may be left out.
    #[must_use]
    pub fn may_take<T: ToSchema>(mut self) -> Self {
        self.body = Some((schema_use::<T>(false), false));
        self
    }

    /// A good answer with a body.
    #[must_use]
    pub fn gives<T: ToSchema>(mut self, status: u16, about: &'static str) -> Self {
        self.answers
            .push((status, about, Some(schema_use::<T>(false))));
        self
    }

    /// A page of items.
    #[must_use]
    pub fn gives_page<T: ToSchema>(mut self, about: &'static str) -> Self {
        self.answers.push((200, about, Some(schema_use::<T>(true))));
        self
    }

    /// A good answer without a described body.
    #[must_use]
    pub fn gives_bare(mut self, status: u16, about: &'static str, media: &'static str) -> Self {
        self.answers.push((status, about, None));
        self.media = media;
        self
    }

    /// Codes of its own.
    #[must_use]
    pub fn refuses(mut self, problems: &'static [Code]) -> Self {
        self.problems = problems;
        self
    }

    /// Names in the pattern, in order.
    pub fn path_names(&self) -> impl Iterator<Item = &'static str> {
        self.pattern.split('/').filter_map(|part| {
            let (name, _) = part.strip_prefix('{')?.split_once('}')?;
            Some(name)
        })
    }
}

fn schema_use<T: ToSchema>(page: bool) -> SchemaUse {
    SchemaUse {
        name: T::name().into_owned(),
        page,
        collect: collect::<T>,
    }
}

/// One part of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Literal(&'static str),
    /// Name, and the `:action` behind it.
    Named(&'static str, &'static str),
}

fn parts(pattern: &'static str) -> Vec<Part> {
    let part = |text: &'static str| {
        text.strip_prefix('{')
            .and_then(|rest| rest.split_once('}'))
            .map_or(Part::Literal(text), |(name, action)| {
                Part::Named(name, action)
            })
    };
    pattern.split('/').skip(1).map(part).collect()
}

/// What a path leads to.
#[derive(Debug)]
pub enum Matched<'a> {
    /// A row, with the decoded parts of the path.
    Route(&'a Route, BTreeMap<&'static str, String>),
    /// The path is known, with these methods.
    OtherMethods(BTreeSet<&'static str>),
    /// A known call that this version does not have: what it would be.
    Later(&'static str),
    /// Nothing.
    Nothing,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.method, self.pattern)
    }
}

/// All rows, ready to match.
#[derive(Debug)]
pub struct Routes {
    rows: Vec<(Vec<Part>, Route)>,
    later: Vec<(&'static str, Vec<Part>, &'static str)>,
}

impl Routes {
    /// From rows and from the list of calls that are known but missing (method, pattern, what).
    #[must_use]
    pub fn new(rows: Vec<Route>, later: &[(&'static str, &'static str, &'static str)]) -> Self {
        let mut rows: Vec<_> = rows.into_iter().map(|r| (parts(r.pattern), r)).collect();
        // Literal parts win over actions, actions over bare names.
        let rank = |part: &Part| match part {
            Part::Literal(_) => 0_u8,
            Part::Named(_, action) if !action.is_empty() => 1,
            Part::Named(..) => 2,
        };
        rows.sort_by_key(|(parts, _)| parts.iter().map(rank).collect::<Vec<_>>());
        let later = later
            .iter()
            .map(|(m, p, what)| (*m, parts(p), *what))
            .collect();
        Self { rows, later }
    }

    /// The rows.
    pub fn iter(&self) -> impl Iterator<Item = &Route> {
        self.rows.iter().map(|(_, route)| route)
    }

    /// Finds the row for a method and a path (percent-encoded, without query).
    #[must_use]
    pub fn find(&self, method: &str, path: &str) -> Matched<'_> {
        let method = if method == "HEAD" { "GET" } else { method };
        let segments: Vec<&str> = path.split('/').skip(1).collect();
        let mut methods = BTreeSet::new();
        for (parts, route) in &self.rows {
            let Some(names) = fit(parts, &segments) else {
                continue;
            };
            if route.method == method {
                return Matched::Route(route, names);
            }
            methods.insert(route.method);
        }
        for (later_method, parts, what) in &self.later {
            if *later_method == method && fit(parts, &segments).is_some() {
                return Matched::Later(what);
            }
        }
        if methods.is_empty() {
            Matched::Nothing
        } else {
            Matched::OtherMethods(methods)
        }
    }
}

fn fit(parts: &[Part], segments: &[&str]) -> Option<BTreeMap<&'static str, String>> {
    if parts.len() != segments.len() {
        return None;
    }
    let mut names = BTreeMap::new();
    for (part, segment) in parts.iter().zip(segments) {
        match part {
            Part::Literal(text) => {
                if text != segment {
                    return None;
                }
            }
            Part::Named(name, action) => {
                let value = segment.strip_suffix(action)?;
                // A name that holds a colon could only be an unknown action; keys, kinds and workers may hold one.
                let colon_allowed = matches!(*name, "key" | "kind" | "worker");
                if value.is_empty() || (value.contains(':') && !colon_allowed) {
                    return None;
                }
                names.insert(*name, percent_decode(value)?);
            }
        }
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn nothing(_: Arc<Api>, _: Call) -> Result<Reply, Error> {
        Ok(Reply::empty())
    }

    fn routes() -> Routes {
        let row = |method, pattern| Route::new(method, pattern, pattern, handler!(nothing));
        Routes::new(
            vec![
                row("GET", "/v1/q/{queue}"),
                row("POST", "/v1/q/{queue}:pause"),
                row("POST", "/v1/q:batch"),
                row("GET", "/v1/keys/{key}"),
                row("PUT", "/v1/q/{queue}"),
                row("GET", "/"),
            ],
            &[("POST", "/v1/q/{queue}:explain", "explanations")],
        )
    }

    #[test]
    fn names_actions_and_methods_are_told_apart() {
        let routes = routes();
        let found = |method, path| match routes.find(method, path) {
            Matched::Route(route, names) => {
                let names: Vec<_> = names.into_values().collect();
                format!("{} {}", route.pattern, names.join(","))
            }
            Matched::OtherMethods(methods) => format!("{methods:?}"),
            Matched::Later(what) => what.to_owned(),
            Matched::Nothing => "-".to_owned(),
        };
        assert_eq!(found("GET", "/v1/q/a"), "/v1/q/{queue} a");
        assert_eq!(found("HEAD", "/v1/q/a"), "/v1/q/{queue} a");
        assert_eq!(found("POST", "/v1/q/a:pause"), "/v1/q/{queue}:pause a");
        assert_eq!(found("POST", "/v1/q:batch"), "/v1/q:batch ");
        assert_eq!(found("POST", "/v1/q/a:explain"), "explanations");
        assert_eq!(found("POST", "/v1/q/a:fly"), "-");
        assert_eq!(found("POST", "/v1/q/:pause"), "-");
        assert_eq!(found("GET", "/v1/keys/a%2Fb:c"), "/v1/keys/{key} a/b:c");
        assert_eq!(found("DELETE", "/v1/q/a"), r#"{"GET", "PUT"}"#);
        assert_eq!(found("GET", "/"), "/ ");
        assert_eq!(found("GET", "/v1/q/a/"), "-");
        assert_eq!(found("GET", "/v1/q/%zz"), "-");
    }
}
