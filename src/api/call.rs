//! One request, read: path, query, headers and body, with who asks.
//!
//! Callers: `dispatch` makes it, handlers read it. It is also what a node forwards to the leader.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::api::body;
use crate::api::issues::{At, Issues};
use crate::api::problem::{Code, Error};
use crate::command::{Actor, Expect};
use crate::ids::{ExecutionId, QueueId, Revision, ScheduleId, TenantId};
use crate::time::{Millis, Timestamp};
use crate::wire::limits::{self, Bound};

/// What a caller sent, before it is routed. Header names are in lower case; only those of [`HEADERS`] are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// `GET`, `PUT`, …
    pub method: String,
    /// Path, still percent-encoded.
    pub path: String,
    /// Query, still percent-encoded, without the question mark.
    pub query: String,
    /// Name and value.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Bytes,
    /// Id of the request: the caller's own or one of ours.
    pub request_id: String,
    /// Time at which the node began to read it, on its own clock; for the log line only.
    pub began: Timestamp,
}

/// Headers that mean something to a handler.
pub const HEADERS: &[&str] = &[
    "idempotency-key",
    "if-match",
    "if-none-match",
    "traceparent",
];

impl Request {
    /// The value of a header that occurs once.
    ///
    /// # Errors
    /// `invalid_parameter` when it occurs twice.
    pub fn header(&self, name: &'static str) -> Result<Option<&str>, Error> {
        let mut values = self.headers.iter().filter(|(n, _)| n == name);
        let first = values.next().map(|(_, v)| v.as_str());
        if values.next().is_some() {
            return Err(Error::parameter(
                format!("header:{name}"),
                "must be sent once",
            ));
        }
        Ok(first)
    }
}

/// A routed request.
#[derive(Clone, Debug)]
pub struct Call {
    /// The request.
    pub request: Request,
    /// Parts of the path by name, decoded.
    pub path: BTreeMap<&'static str, String>,
    /// Query parameters, decoded, in order. Their names are known to the route.
    pub query: Vec<(String, String)>,
    /// Who asks.
    pub actor: Actor,
}

impl Call {
    /// The body, which must be there.
    ///
    /// # Errors
    /// As [`body::read`].
    pub fn body<T: serde::de::DeserializeOwned>(&self) -> Result<T, Error> {
        body::read(&self.request.body)
    }

    /// The body, or its defaults.
    ///
    /// # Errors
    /// As [`body::read`].
    pub fn body_or_default<T: serde::de::DeserializeOwned + Default>(&self) -> Result<T, Error> {
        body::read_or_default(&self.request.body)
    }

    /// A part of the path; empty when the route has no such part.
    #[must_use]
    pub fn part(&self, name: &str) -> &str {
        self.path.get(name).map_or("", String::as_str)
    }

    /// The tenant of the path.
    ///
    /// # Errors
    /// `tenant_not_found`: what is no name cannot exist.
    pub fn tenant(&self) -> Result<TenantId, Error> {
        TenantId::new(self.part("tenant")).map_err(|e| no_name("tenant", Code::TenantNotFound, &e))
    }

    /// The queue of the path.
    ///
    /// # Errors
    /// `invalid_parameter`.
    pub fn queue(&self) -> Result<QueueId, Error> {
        QueueId::new(self.part("queue")).map_err(|e| no_name("queue", Code::InvalidParameter, &e))
    }

    /// The schedule of the path.
    ///
    /// # Errors
    /// `invalid_parameter`.
    pub fn schedule(&self) -> Result<ScheduleId, Error> {
        ScheduleId::new(self.part("schedule"))
            .map_err(|e| no_name("schedule", Code::InvalidParameter, &e))
    }

    /// The execution of the path.
    ///
    /// # Errors
    /// `execution_not_found`: what is no name cannot exist.
    pub fn execution(&self) -> Result<ExecutionId, Error> {
        ExecutionId::new(self.part("execution"))
            .map_err(|e| no_name("execution", Code::ExecutionNotFound, &e))
    }

    /// A query parameter that occurs once.
    ///
    /// # Errors
    /// `invalid_parameter` when it occurs twice.
    pub fn param(&self, name: &str) -> Result<Option<&str>, Error> {
        let mut values = self.query.iter().filter(|(n, _)| n == name);
        let first = values.next().map(|(_, v)| v.as_str());
        if values.next().is_some() {
            return Err(Error::parameter(
                format!("query:{name}"),
                "must be given once",
            ));
        }
        Ok(first)
    }

    /// A query parameter that is a whole number inside `bound`.
    ///
    /// # Errors
    /// `invalid_parameter`.
    pub fn number(&self, name: &str, bound: &Bound) -> Result<Option<u64>, Error> {
        let Some(text) = self.param(name)? else {
            return Ok(None);
        };
        let value = text.parse::<u64>().ok();
        match value.filter(|v| (bound.min..=bound.max).contains(v)) {
            Some(value) => Ok(Some(value)),
            None => Err(Error::parameter(
                format!("query:{name}"),
                format!(
                    "{text:?} is not a whole number from {} to {}",
                    bound.min, bound.max
                ),
            )),
        }
    }

    /// A query parameter that is `true` or `false`.
    ///
    /// # Errors
    /// `invalid_parameter`.
    pub fn flag(&self, name: &str) -> Result<bool, Error> {
        match self.param(name)? {
            None | Some("false") => Ok(false),
            Some("true" | "") => Ok(true),
            Some(other) => Err(Error::parameter(
                format!("query:{name}"),
                format!("{other:?} is neither true nor false"),
            )),
        }
    }

    /// A query parameter that is an instant.
    ///
    /// # Errors
    /// `invalid_parameter`.
    pub fn instant(&self, name: &str) -> Result<Option<Timestamp>, Error> {
        self.param(name)?
            .map(|text| {
                text.parse::<crate::wire::Instant>()
                    .map(|at| at.0)
                    .map_err(|detail| Error::parameter(format!("query:{name}"), detail))
            })
            .transpose()
    }

    /// The caller's W3C trace context. One that is none is left out, as that standard asks.
    #[must_use]
    pub fn traceparent(&self) -> Option<String> {
        let text = self.request.header("traceparent").ok().flatten()?;
        let lengths = [2, 32, 16, 2];
        let parts: Vec<&str> = text.split('-').collect();
        let is_hex = |p: &&str| {
            p.bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        };
        let fits = parts.len() == lengths.len()
            && parts.iter().zip(lengths).all(|(p, n)| p.len() == n)
            && parts.iter().all(is_hex);
        fits.then(|| text.to_owned())
    }

    /// Whether the caller only wants to know what would happen.
    ///
    /// # Errors
    /// `invalid_parameter`.
    pub fn dry_run(&self) -> Result<bool, Error> {
        self.flag("dry_run")
    }

    /// How long to wait, from `wait_ms`; zero when not given.
    ///
    /// # Errors
    /// `invalid_parameter`.
    pub fn wait(&self) -> Result<Millis, Error> {
        Ok(Millis(
            self.number("wait_ms", &limits::WAIT_MS)?.unwrap_or(0),
        ))
    }

    /// Why, for the audit log: the body's own reason, else the one in the query.
    ///
    /// # Errors
    /// `invalid_request` for a reason that is too long.
    pub fn reason(&self, of_body: Option<String>) -> Result<Option<String>, Error> {
        let mut issues = Issues::default();
        let of_query = self.param("reason")?.map(str::to_owned);
        if of_query.is_some() && of_body.is_some() && of_query != of_body {
            let detail = "the body has another reason; give one of them";
            return Err(Error::parameter("query:reason", detail));
        }
        let reason = of_body.or(of_query);
        if let Some(reason) = &reason {
            let root = At::Root;
            issues.length(&root.key("reason"), reason.len(), &limits::REASON_BYTES);
        }
        issues.finish()?;
        Ok(reason.filter(|r| !r.is_empty()))
    }

    /// What the request demands of the object, from `If-Match`, `If-None-Match` and the body's `revision`.
    ///
    /// # Errors
    /// `invalid_parameter`, or `invalid_request` when the two revisions differ.
    pub fn expect(&self, of_body: Option<&str>) -> Result<Expect, Error> {
        if_none_match(&self.request)?;
        let none = self.request.header("if-none-match")?.is_some();
        let header = match self.request.header("if-match")? {
            None => None,
            Some("*") => Some(Expect::Present),
            Some(text) => Some(Expect::Revision(revision_tag(text)?)),
        };
        let body = of_body.map(body_revision).transpose()?;
        match (none, header, body) {
            (true, Some(_), _) => Err(Error::parameter(
                "header:if-none-match",
                "contradicts If-Match",
            )),
            (true, None, _) => Ok(Expect::Absent),
            (false, Some(Expect::Revision(a)), Some(b)) if a != b => Err(Error::parameter(
                "header:if-match",
                format!("is {a}, but the body's revision is {b}"),
            )),
            (false, Some(expect), None) => Ok(expect),
            (false, _, Some(revision)) => Ok(Expect::Revision(revision)),
            (false, None, None) => Ok(Expect::Any),
        }
    }
}

fn if_none_match(request: &Request) -> Result<(), Error> {
    match request.header("if-none-match")? {
        None | Some("*") => Ok(()),
        Some(_) => Err(Error::parameter(
            "header:if-none-match",
            "only * is known here: create only",
        )),
    }
}

fn revision_tag(text: &str) -> Result<Revision, Error> {
    text.strip_prefix('"')
        .and_then(|t| t.strip_suffix('"'))
        .and_then(|t| t.parse().ok())
        .ok_or_else(|| {
            Error::parameter(
                "header:if-match",
                format!("{text:?} is not one ETag as this API gives them, such as \"8123.0\""),
            )
        })
}

fn body_revision(text: &str) -> Result<Revision, Error> {
    text.parse().map_err(|why| {
        let mut issues = Issues::default();
        let root = At::Root;
        let detail = format!("{text:?} is {why}");
        issues.add(&root.key("revision"), "invalid", detail);
        issues
            .finish()
            .err()
            .unwrap_or_else(|| Error::new(Code::InvalidRequest, ""))
    })
}

fn no_name(what: &str, code: Code, why: &crate::ids::InvalidName) -> Error {
    Error {
        code,
        ..Error::parameter(format!("path:{what}"), format!("the name {why}"))
    }
}

/// Splits and decodes a query string.
///
/// # Errors
/// `invalid_parameter` for text that is no percent-encoded UTF-8.
pub fn parse_query(text: &str) -> Result<Vec<(String, String)>, Error> {
    let mut out = Vec::new();
    for part in text.split('&').filter(|p| !p.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let decode = |t: &str| {
            percent_decode(&t.replace('+', " ")).ok_or_else(|| {
                Error::parameter("query", format!("{part:?} is not percent-encoded UTF-8"))
            })
        };
        out.push((decode(name)?, decode(value)?));
    }
    Ok(out)
}

/// Decodes `%41` and the like. `None` for a broken escape or bytes that are no UTF-8.
#[must_use]
pub fn percent_decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let high = char::from(bytes.next()?).to_digit(16)?;
        let low = char::from(bytes.next()?).to_digit(16)?;
        out.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(headers: &[(&str, &str)], query: &str) -> Call {
        Call {
            request: Request {
                headers: headers
                    .iter()
                    .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                    .collect(),
                ..Request::default()
            },
            path: BTreeMap::new(),
            query: parse_query(query).unwrap(),
            actor: Actor::Anonymous,
        }
    }

    #[test]
    fn conditions_come_from_headers_or_the_body() {
        let expect = |headers: &[(&str, &str)], body| call(headers, "").expect(body);
        assert_eq!(expect(&[], None).unwrap(), Expect::Any);
        let revision = |token| Expect::Revision(Revision::new(token, 3));
        assert_eq!(expect(&[], Some("9.3")).unwrap(), revision(9));
        assert_eq!(
            expect(&[("if-match", "\"7.3\"")], None).unwrap(),
            revision(7)
        );
        assert_eq!(expect(&[("if-match", "*")], None).unwrap(), Expect::Present);
        assert_eq!(
            expect(&[("if-none-match", "*")], None).unwrap(),
            Expect::Absent
        );
        for bad in [
            expect(&[("if-match", "7")], None),
            expect(&[("if-match", "7.3")], None),
            expect(&[("if-match", "W/\"7.3\"")], None),
            expect(&[("if-match", "\"7.3\"")], Some("7.4")),
            expect(&[("if-none-match", "\"7\"")], None),
            expect(&[("if-match", "*"), ("if-none-match", "*")], None),
            expect(&[("if-match", "\"7.3\""), ("if-match", "\"8.3\"")], None),
            expect(&[], Some("x")),
        ] {
            assert!(bad.unwrap_err().code.status() < 500);
        }
    }

    #[test]
    fn a_trace_context_is_kept_only_when_it_is_one() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        assert_eq!(
            call(&[("traceparent", good)], "").traceparent().as_deref(),
            Some(good)
        );
        for bad in [
            "",
            "x",
            &good[1..],
            &good.to_uppercase(),
            &"a".repeat(5_000),
        ] {
            assert_eq!(
                call(&[("traceparent", bad)], "").traceparent(),
                None,
                "{bad}"
            );
        }
    }

    #[test]
    fn parameters_are_decoded_and_bounded() {
        let call = call(&[], "label=a%3Db&wait_ms=5&dry_run=true&x=a+b");
        assert_eq!(call.param("label").unwrap(), Some("a=b"));
        assert_eq!(call.param("x").unwrap(), Some("a b"));
        assert_eq!(call.wait().unwrap(), Millis(5));
        assert!(call.dry_run().unwrap());
        assert!(parse_query("a=%zz").is_err());
        assert!(parse_query("a=%ff").is_err());
        let many = super::tests::call(&[], "wait_ms=1&wait_ms=2");
        assert!(many.wait().is_err());
        let far = super::tests::call(&[], "wait_ms=60001");
        assert!(far.wait().unwrap_err().detail.contains("60000"));
    }
}
