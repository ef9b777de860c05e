//! Reading bodies: strict, with the place of what is wrong.
//!
//! Purpose: JSON into the types of `wire`, unknown fields refused (those types are lenient, for clients); merge patches;
//! the canonical form that idempotency compares. Callers: handlers, `api::idempotency`.
//! Invariants: nothing here recurses deeper than [`DEPTH_MAX`]; raw values keep their text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::de::{Deserialize, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::api::issues::{At, Issues, escape};
use crate::api::problem::{Code, Error};
use crate::api::strict::{Notes, Strict};
use crate::wire::FieldError;

/// Deepest nesting that merge and canonical form look into; below it text is compared as it is.
const DEPTH_MAX: usize = 64;

/// Reads a body that must be there.
///
/// # Errors
/// `malformed_json` for bytes that are no JSON, else `invalid_request` with a pointer.
pub fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(Error::new(Code::MalformedJson, "a JSON body is required"));
    }
    let notes = Notes::default();
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let read = T::deserialize(Strict::new(&mut reader, &notes));
    let value = match read.and_then(|value| reader.end().map(|()| value)) {
        Ok(value) => value,
        Err(error) => {
            let mut refused = unreadable(&error, &notes.failed_at());
            if refused.code == Code::InvalidRequest {
                refused.errors.extend(notes.into_unknown());
            }
            return Err(refused);
        }
    };
    match notes.into_unknown() {
        unknown if unknown.is_empty() => Ok(value),
        unknown => Err(Error::fields(unknown)),
    }
}

/// Reads a body that may be left out; an empty one is `{}`.
///
/// # Errors
/// As [`read`].
pub fn read_or_default<T: DeserializeOwned + Default>(bytes: &[u8]) -> Result<T, Error> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(T::default());
    }
    read(bytes)
}

fn unreadable(error: &serde_json::Error, pointer: &str) -> Error {
    match error.classify() {
        serde_json::error::Category::Data => {
            let detail = without_position(&error.to_string());
            let missing = detail.strip_prefix("missing field `");
            Error::fields(vec![
                match missing.and_then(|rest| rest.strip_suffix('`')) {
                    Some(name) => FieldError {
                        pointer: format!("{pointer}/{}", escape(name)),
                        code: "required".into(),
                        detail: "is required".into(),
                    },
                    None => FieldError {
                        pointer: pointer.to_owned(),
                        code: "invalid".into(),
                        detail,
                    },
                },
            ])
        }
        _ => Error::new(
            Code::MalformedJson,
            format!("the body is not JSON: {error}"),
        ),
    }
}

/// serde_json ends data errors with a position in the text; the pointer says it better.
fn without_position(text: &str) -> String {
    match text.rfind(" at line ") {
        Some(at) => text.get(..at).unwrap_or(text).to_owned(),
        None => text.to_owned(),
    }
}

type Members<'a> = BTreeMap<String, &'a RawValue>;

/// Members of an object as they were sent, a name that is there twice included.
struct MemberList<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for MemberList<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut list = Vec::new();
                while let Some(member) = map.next_entry()? {
                    list.push(member);
                }
                Ok(list)
            }
        }
        deserializer.deserialize_map(List).map(Self)
    }
}

/// Applies a JSON merge patch (RFC 7396). Values that the patch does not touch keep their text.
///
/// # Errors
/// `malformed_json` when one of them is no JSON.
pub fn merge_patch(target: &[u8], patch: &[u8]) -> Result<Vec<u8>, Error> {
    let malformed = |e: serde_json::Error| {
        Error::new(Code::MalformedJson, format!("the body is not JSON: {e}"))
    };
    let target: &RawValue = serde_json::from_slice(target).map_err(malformed)?;
    let patch: &RawValue = serde_json::from_slice(patch).map_err(malformed)?;
    if !is_object(patch) {
        return Err(Error::fields(vec![FieldError {
            pointer: String::new(),
            code: "invalid".into(),
            detail: "a merge patch is a JSON object with the fields to change".into(),
        }]));
    }
    let mut issues = Issues::default();
    refuse_twice(patch, &At::Root, DEPTH_MAX, &mut issues);
    issues.finish()?;
    let mut out = String::with_capacity(target.get().len() + patch.get().len());
    merge(Some(target), patch, DEPTH_MAX, &mut out);
    Ok(out.into_bytes())
}

/// Notes the names that an object has twice: merging would keep one of the two values and drop the other.
fn refuse_twice(value: &RawValue, at: &At<'_>, depth: usize, issues: &mut Issues) {
    if depth == 0 || !is_object(value) {
        return;
    }
    let list = serde_json::from_str::<MemberList<'_>>(value.get());
    let mut names = BTreeSet::new();
    for (name, member) in list.map(|l| l.0).unwrap_or_default() {
        let place = at.key(&name);
        refuse_twice(member, &place, depth - 1, issues);
        if !names.insert(name.clone()) {
            issues.add(&place, "invalid", "is there twice");
        }
    }
}

/// What a merge patch removes, as a document of its own: members that are `null`, at the top and in the members of it
/// that `objects` names. A removal leaves nothing behind in the merged document, so a misspelt one is found only here.
#[must_use]
pub fn removals(patch: &[u8], objects: &[&str]) -> Vec<u8> {
    let top: Option<&RawValue> = serde_json::from_slice(patch).ok();
    let mut out = String::from("{");
    for (name, member) in top.and_then(members).unwrap_or_default() {
        let is_null = member.get() == "null";
        let inner = members(member).filter(|_| objects.contains(&name.as_str()));
        if (!is_null || objects.contains(&name.as_str())) && inner.is_none() {
            continue;
        }
        if out.len() > 1 {
            out.push(',');
        }
        push_name(&name, &mut out);
        let Some(inner) = inner else {
            out.push_str("null");
            continue;
        };
        let nulls = inner.into_iter().filter(|(_, v)| v.get() == "null");
        let nulls: Vec<String> = nulls.map(|(n, _)| format!("{}:null", quoted(&n))).collect();
        out.push_str(&format!("{{{}}}", nulls.join(",")));
    }
    out.push('}');
    out.into_bytes()
}

fn merge(target: Option<&RawValue>, patch: &RawValue, depth: usize, out: &mut String) {
    let Some(changes) = members(patch).filter(|_| depth > 0) else {
        out.push_str(patch.get());
        return;
    };
    let kept = target.and_then(members).unwrap_or_default();
    let names: std::collections::BTreeSet<&String> = kept.keys().chain(changes.keys()).collect();
    out.push('{');
    let mut first = true;
    for name in names {
        let (old, new) = (kept.get(name).copied(), changes.get(name).copied());
        if new.is_some_and(|v| v.get() == "null") {
            continue;
        }
        if !first {
            out.push(',');
        }
        first = false;
        push_name(name, out);
        match (old, new) {
            (_, Some(new)) => merge(old, new, depth - 1, out),
            (Some(old), None) => out.push_str(old.get()),
            (None, None) => out.push_str("null"),
        }
    }
    out.push('}');
}

/// The text of a member of a JSON object, if it is there and not `null`.
#[must_use]
pub fn member(bytes: &[u8], name: &str) -> Option<String> {
    let object: &RawValue = serde_json::from_slice(bytes).ok()?;
    let member = members(object)?.get(name)?.get().to_owned();
    (member != "null").then_some(member)
}

/// The canonical text of JSON: members sorted by name, no blanks. Numbers keep their text.
#[must_use]
pub fn canonical(bytes: &[u8]) -> Vec<u8> {
    match serde_json::from_slice::<&RawValue>(bytes) {
        Ok(value) => {
            let mut out = String::with_capacity(bytes.len());
            write_canonical(value, DEPTH_MAX, &mut out);
            out.into_bytes()
        }
        Err(_) => bytes.to_vec(),
    }
}

fn write_canonical(value: &RawValue, depth: usize, out: &mut String) {
    if depth > 0 {
        if let Some(members) = members(value) {
            out.push('{');
            for (at, (name, member)) in members.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                push_name(name, out);
                write_canonical(member, depth - 1, out);
            }
            out.push('}');
            return;
        }
        if value.get().starts_with('[')
            && let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(value.get())
        {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                write_canonical(item, depth - 1, out);
            }
            out.push(']');
            return;
        }
        // The same text may be written with different escapes.
        if value.get().starts_with('"')
            && let Ok(text) = serde_json::from_str::<String>(value.get())
        {
            out.push_str(&quoted(&text));
            return;
        }
    }
    out.push_str(value.get());
}

fn is_object(value: &RawValue) -> bool {
    value.get().starts_with('{')
}

fn members(value: &RawValue) -> Option<Members<'_>> {
    is_object(value)
        .then(|| serde_json::from_str(value.get()).ok())
        .flatten()
}

fn push_name(name: &str, out: &mut String) {
    out.push_str(&quoted(name));
    out.push(':');
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire;

    fn refused(text: &str) -> Error {
        read::<wire::Schedule>(text.as_bytes()).expect_err(text)
    }

    #[test]
    fn wrong_types_unknown_fields_and_bad_durations_name_their_place() {
        for (text, pointer, word) in [
            (r#"{"priority":"high"}"#, "/priority", "invalid type"),
            (r#"{"rule":{"cron":5}}"#, "/rule/cron", "expected a string"),
            (
                r#"{"rule":{"crn":"* * * * *"}}"#,
                "/rule/crn",
                "there is no field \"crn\"",
            ),
            (
                r#"{"retry":{"max_backoff":"1x"}}"#,
                "/retry/max_backoff",
                "not a duration",
            ),
            (
                r#"{"rule":{"start_at":"soon"}}"#,
                "/rule/start_at",
                "RFC 3339",
            ),
            (
                r#"{"misfire":{"policy":"sometimes"}}"#,
                "/misfire/policy",
                "fire_latest",
            ),
            (
                r#"{"labels":{"a/b":1}}"#,
                "/labels/a~1b",
                "expected a string",
            ),
            (r#"[]"#, "", "expected struct Schedule"),
            (r#"{"retry":[3]}"#, "/retry", "expected struct RetryPolicy"),
            (r#"{"labels":["a"]}"#, "/labels", "expected a map"),
            (
                r#"{"rule":{"exclude_dates":["2026-01-01",7]}}"#,
                "/rule/exclude_dates/1",
                "expected a string",
            ),
        ] {
            let error = refused(text);
            assert_eq!(error.code, Code::InvalidRequest, "{text}: {error:?}");
            assert_eq!(error.errors[0].pointer, pointer, "{text}: {error:?}");
            assert!(error.errors[0].detail.contains(word), "{text}: {error:?}");
        }
    }

    #[test]
    fn places_inside_batches_carry_the_index() {
        let text = r#"{"items":[{"kind":"a"},{"kind":"b","prio":1}]}"#;
        let error = read::<wire::SubmitBatch>(text.as_bytes()).unwrap_err();
        assert_eq!(error.errors[0].pointer, "/items/1/prio");
    }

    #[test]
    fn what_is_no_json_is_malformed() {
        for text in [
            "",
            "  ",
            "{",
            "{\"a\":1}}",
            "nonsense",
            "{\"rule\":}",
            "\u{1}",
        ] {
            assert_eq!(refused(text).code, Code::MalformedJson, "{text:?}");
        }
        let deep = format!(
            "{{\"labels\":{}{}}}",
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        assert!(refused(&deep).code.status() < 500);
    }

    #[test]
    fn a_payload_keeps_its_text() {
        let text = r#"{"payload": {"z": 1.10, "a": 12345678901234567890123} }"#;
        let schedule: wire::Schedule = read(text.as_bytes()).unwrap();
        assert_eq!(
            schedule.payload.text(),
            r#"{"z": 1.10, "a": 12345678901234567890123}"#
        );
    }

    #[test]
    fn a_merge_patch_changes_removes_and_keeps() {
        let target = br#"{"a":{"b":1.0,"c":2},"d":[1],"e":10000000000000000000001}"#;
        let patch = br#"{"a":{"c":null,"x":{"y":null,"z":1}},"d":"new"}"#;
        let merged = merge_patch(target, patch).unwrap();
        assert_eq!(
            String::from_utf8(merged).unwrap(),
            r#"{"a":{"b":1.0,"x":{"z":1}},"d":"new","e":10000000000000000000001}"#
        );
        assert_eq!(
            merge_patch(target, b"[]").unwrap_err().code,
            Code::InvalidRequest
        );
        for (twice, pointer) in [
            (r#"{"d":1,"d":2}"#, "/d"),
            (r#"{"a":{"x":null,"x":1}}"#, "/a/x"),
        ] {
            let error = merge_patch(target, twice.as_bytes()).unwrap_err();
            assert_eq!(error.errors[0].pointer, pointer, "{error:?}");
        }
    }

    #[test]
    fn what_a_patch_removes_is_told_apart_from_what_it_sets() {
        let patch = br#"{"gone":null,"rule":{"cron":null,"every":"1h"},"retry":null,"labels":{"x":null},"payload":1}"#;
        let removed = removals(patch, &["rule", "retry"]);
        let text = String::from_utf8(removed).unwrap();
        assert_eq!(text, r#"{"gone":null,"rule":{"cron":null}}"#);
        assert_eq!(removals(b"nonsense", &[]), b"{}");
    }

    #[test]
    fn a_name_that_is_there_twice_is_refused_in_maps_as_in_structs() {
        for (text, pointer) in [
            (r#"{"labels":{"a":"1","a":"1"}}"#, "/labels/a"),
            (r#"{"requires":{"a":"1","b":"","a":"2"}}"#, "/requires/a"),
            (r#"{"priority":1,"priority":1}"#, ""),
        ] {
            let error = refused(text);
            assert_eq!(error.code, Code::InvalidRequest, "{text}: {error:?}");
            assert_eq!(error.errors[0].pointer, pointer, "{text}: {error:?}");
        }
    }

    #[test]
    fn canonical_form_ignores_order_blanks_and_escapes() {
        let a = canonical(br#"{ "b" : [1, {"y":2,"x":"\u0041"}], "a":null }"#);
        let b = canonical(br#"{"a":null,"b":[1,{"x":"A","y":2}]}"#);
        assert_eq!(a, b);
        assert_ne!(a, canonical(br#"{"a":null,"b":[1,{"x":"B","y":2}]}"#));
    }

    proptest! {
        #[test]
        fn no_bytes_make_reading_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = read::<wire::Schedule>(&bytes);
            let _ = canonical(&bytes);
            let _ = merge_patch(b"{}", &bytes);
        }
    }
}
