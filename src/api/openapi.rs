//! The OpenAPI 3.1 document, generated from the table of calls and the types of `wire`.
//!
//! Callers: `Api::new`, once. Invariant: what the router knows is in the document, because both read the same rows.

use std::collections::{BTreeMap, BTreeSet};

use utoipa::ToSchema as _;
use utoipa::openapi::path::{
    HttpMethod, OperationBuilder, Parameter, ParameterBuilder, ParameterIn, PathItem, PathsBuilder,
};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, SchemaFormat, SchemaType, Type};
use utoipa::openapi::{
    ComponentsBuilder, ContentBuilder, InfoBuilder, KnownFormat, OpenApiBuilder, Ref, RefOr,
    Required, Schema,
};

use crate::api::problem::Code;
use crate::api::reply::PROBLEM;
use crate::api::routes::{Access, Param, Route, Routes, SchemaUse};
use crate::wire::Problem;

const ABOUT: &str = "JSON, UTF-8, snake_case. Unknown request fields are refused with their place; clients ignore \
    unknown response fields. In a request `null` or a missing field means the default. Instants are RFC 3339 (any \
    offset in, UTC with milliseconds out), durations text such as `1h30m`; integers in milliseconds end in `_ms`. \
    Errors are RFC 9457 problems with a `code` of the closed list below. Any node takes any call.";

/// The document as JSON.
#[must_use]
pub fn document(routes: &Routes, version: &str) -> String {
    let mut schemas = BTreeMap::new();
    let mut paths: BTreeMap<&str, PathItem> = BTreeMap::new();
    add_schema::<Problem>(&mut schemas);
    for route in routes.iter() {
        for used in uses(route) {
            let mut found = Vec::new();
            (used.collect)(&mut found);
            schemas.extend(found);
        }
        let operation = operation(route);
        let item = paths.entry(route.pattern).or_default();
        let slot = match method(route.method) {
            HttpMethod::Get => &mut item.get,
            HttpMethod::Put => &mut item.put,
            HttpMethod::Delete => &mut item.delete,
            HttpMethod::Patch => &mut item.patch,
            _ => &mut item.post,
        };
        *slot = Some(operation);
    }
    let mut builder = PathsBuilder::new();
    for (path, item) in paths {
        builder = builder.path(path, item);
    }
    let components = schemas
        .into_iter()
        .fold(ComponentsBuilder::new(), |c, (name, schema)| {
            c.schema(name, schema)
        })
        .build();
    let info = InfoBuilder::new()
        .title("Punctual")
        .version(version)
        .description(Some(ABOUT))
        .build();
    let document = OpenApiBuilder::new()
        .info(info)
        .paths(builder.build())
        .components(Some(components))
        .build();
    with_codes(&document)
}

/// Adds the list of problem codes, for the docs page and for generators of clients.
fn with_codes(document: &utoipa::openapi::OpenApi) -> String {
    let mut value = serde_json::to_value(document).unwrap_or_default();
    let codes: Vec<serde_json::Value> = Code::ALL
        .iter()
        .map(|code| {
            serde_json::json!({
                "code": code.as_str(), "status": code.status(), "title": code.title(),
                "retryable": code.retryable(),
            })
        })
        .collect();
    any_json_or_null(&mut value);
    if let Some(map) = value.as_object_mut() {
        map.insert("x-problem-codes".to_owned(), codes.into());
    }
    value.to_string()
}

/// An optional field of any JSON is written as one of "null" and "any JSON", and null is both: one would have to be
/// excluded, so that no value of the field would ever be valid when it is null.
fn any_json_or_null(value: &mut serde_json::Value) {
    const ANY: &str = "#/components/schemas/Json";
    match value {
        serde_json::Value::Object(map) => {
            let has = |key: &str, wanted: &str| {
                let branches = map.get("oneOf").and_then(|branches| branches.as_array());
                branches.is_some_and(|all| all.iter().any(|b| b[key] == wanted))
            };
            if has("type", "null")
                && has("$ref", ANY)
                && let Some(branches) = map.remove("oneOf")
            {
                map.insert("anyOf".to_owned(), branches);
            }
            map.values_mut().for_each(any_json_or_null);
        }
        serde_json::Value::Array(list) => list.iter_mut().for_each(any_json_or_null),
        _ => {}
    }
}

fn add_schema<T: utoipa::ToSchema>(schemas: &mut BTreeMap<String, RefOr<Schema>>) {
    schemas.insert(T::name().into_owned(), T::schema());
    let mut found = Vec::new();
    T::schemas(&mut found);
    schemas.extend(found);
}

fn uses(route: &Route) -> impl Iterator<Item = &SchemaUse> {
    let body = route.body.iter().map(|(used, _)| used);
    body.chain(
        route
            .answers
            .iter()
            .filter_map(|(_, _, used)| used.as_ref()),
    )
}

fn method(name: &str) -> HttpMethod {
    match name {
        "PUT" => HttpMethod::Put,
        "POST" => HttpMethod::Post,
        "DELETE" => HttpMethod::Delete,
        "PATCH" => HttpMethod::Patch,
        _ => HttpMethod::Get,
    }
}

fn operation(route: &Route) -> utoipa::openapi::path::Operation {
    let mut builder = OperationBuilder::new()
        .operation_id(Some(route.id))
        .tag(route.tag)
        .summary(Some(route.summary))
        .description(Some(description(route)));
    for name in route.path_names() {
        builder = builder.parameter(path_parameter(name));
    }
    for param in &route.params {
        builder = builder.parameter(query_parameter(*param));
    }
    for (name, about) in headers(route) {
        builder = builder.parameter(
            ParameterBuilder::new()
                .name(name)
                .parameter_in(ParameterIn::Header)
                .description(Some(about))
                .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
                .build(),
        );
    }
    if let Some((used, is_required)) = &route.body {
        let content = ContentBuilder::new().schema(Some(reference(used))).build();
        let required = if *is_required {
            Required::True
        } else {
            Required::False
        };
        let body = RequestBodyBuilder::new()
            .content(crate::api::reply::JSON, content)
            .required(Some(required))
            .build();
        builder = builder.request_body(Some(body));
    }
    for (status, about, used) in &route.answers {
        let mut response = ResponseBuilder::new().description(*about);
        if let Some(used) = used {
            let content = ContentBuilder::new().schema(Some(reference(used))).build();
            response = response.content(crate::api::reply::JSON, content);
        } else if !route.media.is_empty() {
            let kind = match route.media == crate::api::reply::JSON {
                true => Type::Object,
                false => Type::String,
            };
            let bare = ObjectBuilder::new().schema_type(kind);
            let content = ContentBuilder::new().schema(Some(bare)).build();
            response = response.content(route.media, content);
        }
        builder = builder.response(status.to_string(), response.build());
    }
    let problem = Ref::from_schema_name(Problem::name());
    let content = ContentBuilder::new().schema(Some(problem)).build();
    let response = ResponseBuilder::new()
        .description("A problem; `code` says which.")
        .content(PROBLEM, content)
        .build();
    builder.response("default", response).build()
}

fn description(route: &Route) -> String {
    let who = match route.access {
        Access::Local => "Answered by the node that is asked.",
        Access::Read => "Answered by any node, linearizable unless told otherwise.",
        Access::Leader => "Answered by the leader; any node passes it on.",
    };
    let codes: BTreeSet<String> = route
        .problems
        .iter()
        .map(|code| format!("`{}` ({})", code.as_str(), code.status()))
        .collect();
    match codes.is_empty() {
        true => who.to_owned(),
        false => {
            let list = codes.into_iter().collect::<Vec<_>>().join(", ");
            format!("{who} Problems of its own: {list}.")
        }
    }
}

fn headers(route: &Route) -> Vec<(&'static str, &'static str)> {
    let mut out = Vec::new();
    if route.keyed {
        out.push((
            "Idempotency-Key",
            "Makes a repeat within 24 hours answer the first result (`Idempotency-Replayed: true`). Scope: tenant, \
             method and path; bodies are compared as canonical JSON.",
        ));
    }
    if route.conditional {
        out.push((
            "If-Match",
            "Only if the object has this ETag, or exists at all (`*`); else 412.",
        ));
        if matches!(route.method, "PUT") {
            out.push(("If-None-Match", "`*`: create only; else 412."));
        }
    }
    out
}

fn path_parameter(name: &str) -> Parameter {
    ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
        .build()
}

fn query_parameter(param: Param) -> Parameter {
    let kind = match param.kind {
        "integer" => Type::Integer,
        "boolean" => Type::Boolean,
        _ => Type::String,
    };
    let mut schema = ObjectBuilder::new().schema_type(SchemaType::Type(kind));
    if param.kind == "instant" {
        schema = schema.format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)));
    }
    ParameterBuilder::new()
        .name(param.name)
        .parameter_in(ParameterIn::Query)
        .required(Required::False)
        .description(Some(param.about))
        .schema(Some(schema))
        .build()
}

fn reference(used: &SchemaUse) -> RefOr<Schema> {
    let item = Ref::from_schema_name(used.name.as_str());
    if !used.page {
        return RefOr::Ref(item);
    }
    let cursor = ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .description(Some(
            "Give it back as `cursor`; `null`: this was the last page.",
        ));
    RefOr::T(Schema::Object(
        ObjectBuilder::new()
            .property("items", ArrayBuilder::new().items(item))
            .property("next_cursor", cursor)
            .required("items")
            .build(),
    ))
}
