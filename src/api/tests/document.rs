//! The OpenAPI document describes exactly what the router knows.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::api::testing::Node;

async fn document() -> Value {
    Node::leading()
        .ask("GET", "/openapi.json", "")
        .await
        .must(200)
        .body
}

#[tokio::test]
async fn every_route_is_in_the_document_and_nothing_else() {
    let node = Node::leading();
    let document = document().await;
    let mut described = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            described.insert(format!("{} {path}", method.to_uppercase()));
        }
    }
    let routed: BTreeSet<_> = node
        .api
        .routes()
        .iter()
        .map(|r| format!("{} {}", r.method, r.pattern))
        .collect();
    assert_eq!(described, routed);
    assert!(routed.len() > 60, "{}", routed.len());
}

fn references(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::String(name)) = map.get("$ref") {
                into.insert(name.clone());
            }
            map.values().for_each(|v| references(v, into));
        }
        Value::Array(list) => list.iter().for_each(|v| references(v, into)),
        _ => {}
    }
}

#[tokio::test]
async fn every_reference_leads_to_a_schema_and_every_operation_is_named_once() {
    let document = document().await;
    assert_eq!(document["openapi"], "3.1.0");
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(found.len() > 50, "{}", found.len());
    for reference in found {
        let name = reference.strip_prefix("#/components/schemas/").unwrap();
        assert!(schemas.contains_key(name), "{name} is missing");
    }
    let mut ids = BTreeSet::new();
    for item in document["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values() {
            let id = operation["operationId"].as_str().unwrap().to_owned();
            assert!(ids.insert(id.clone()), "{id} twice");
            assert!(!operation["summary"].as_str().unwrap().is_empty(), "{id}");
            assert!(
                operation["responses"].as_object().unwrap().len() > 1,
                "{id}"
            );
        }
    }
}

#[tokio::test]
async fn every_field_of_every_type_says_what_it_means() {
    let document = document().await;
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        let properties = schema["properties"].as_object();
        for (field, property) in properties.into_iter().flatten() {
            // An optional reference carries it beside the reference.
            let inside = ["oneOf", "anyOf"].map(|key| property[key].as_array());
            let mut said = inside
                .into_iter()
                .flatten()
                .flatten()
                .chain([property])
                .map(|p| p["description"].is_string());
            assert!(said.any(|said| said), "{name}.{field} has no description");
        }
    }
}

/// Null is any JSON too: a choice of exactly one of them would leave null to neither.
#[tokio::test]
async fn fields_of_any_json_may_be_null() {
    let document = document().await;
    assert!(document.to_string().contains("anyOf"));
    let mut left = vec![&document];
    while let Some(value) = left.pop() {
        if let Some(branches) = value["oneOf"].as_array() {
            let names: Vec<&str> = branches.iter().filter_map(|b| b["$ref"].as_str()).collect();
            let has_null = branches.iter().any(|b| b["type"] == "null");
            assert!(
                !has_null || names != ["#/components/schemas/Json"],
                "{value}"
            );
        }
        match value {
            Value::Object(map) => left.extend(map.values()),
            Value::Array(list) => left.extend(list),
            _ => {}
        }
    }
}

#[tokio::test]
async fn the_document_lists_every_problem_code() {
    let document = document().await;
    let codes = document["x-problem-codes"].as_array().unwrap();
    assert_eq!(codes.len(), crate::api::problem::Code::ALL.len());
}

#[tokio::test]
async fn the_docs_page_loads_nothing_from_elsewhere() {
    let node = Node::leading();
    for (path, media) in [
        ("/docs", "text/html"),
        ("/docs/docs.css", "text/css"),
        ("/docs/docs.js", "text/javascript"),
    ] {
        let answer = node.ask("GET", path, "").await.must(200);
        let text = String::from_utf8(answer.reply.body.to_vec()).unwrap();
        assert!(answer.reply.content_type.starts_with(media));
        assert!(
            answer
                .header("content-security-policy")
                .starts_with("default-src 'self'")
        );
        for sign in [
            "http://",
            "https://",
            "//cdn",
            "@import",
            "innerHTML",
            "eval(",
        ] {
            assert!(!text.contains(sign), "{path} has {sign}");
        }
    }
    assert_eq!(node.ask("GET", "/", "").await.header("location"), "/docs");
}
