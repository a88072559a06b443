//! What `/openapi.json` says against what the server does.

use serde_json::{Value, json};

use super::Api;
use crate::http::openapi::operations;

#[tokio::test]
async fn every_reference_leads_somewhere() {
    let document =
        Api::new().expect("GET /openapi.json", &[], "", 200, json!({"openapi": "3.1.0"})).await.body;
    let mut references = Vec::new();
    collect(&document, &mut references);
    assert!(references.len() > 100);
    for reference in references {
        let pointer = reference.strip_prefix('#').unwrap();
        assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
    }
}

fn collect<'a>(value: &'a Value, references: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            references.extend(fields.get("$ref").and_then(Value::as_str));
            fields.values().for_each(|field| collect(field, references));
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, references)),
        _ => {}
    }
}

/// The calls with the examples of the document end as it says they end well.
#[tokio::test]
async fn every_call_is_served_as_described() {
    let api = Api::new();
    api.send("PUT policies/stock:*", &[], "{}").await;
    api.send("PUT policies/balance:*", &[], r#"{"audit":"30d"}"#).await;
    // Those of a cluster need one, and a stream has no end; they have tests of their own.
    let document = api.send("GET /openapi.json", &[], "").await.body;
    for operation in operations().filter(|it| it.tag != "cluster" && it.id != "watchCounters") {
        let key = operation.parameters.iter().map(|name| &document["components"]["parameters"][name]);
        let key = key.filter(|parameter| parameter["name"] == "key").find_map(|key| key["example"].as_str());
        let hold =
            match operation.path.contains("{id}") {
                true => api
                    .send("POST counters/held/reserve", &[], r#"{"amount":3,"ttlMs":60000}"#)
                    .await
                    .body["holdId"]
                    .clone(),
                false => Value::Null,
            };
        let path = operation.path.replace("{key}", key.unwrap_or_default()).replace("{pattern}", "stock:*");
        let path = path.replace("{id}", hold.as_str().unwrap_or_default());
        let call = format!("{} {path}", operation.method.to_uppercase());
        let body = operation.body.as_ref().map_or("", |body| body.example);
        let reply = api.send(&call, &[], body).await;
        let status = reply.response.status().as_u16();
        let outcome = operation.outcomes.iter().find(|outcome| outcome.status == status);
        let outcome = outcome.unwrap_or_else(|| panic!("{call} ended with {status}: {}", reply.body));
        assert_eq!(reply.header("content-type").unwrap_or_default(), outcome.media_type, "{call}");
        for name in outcome.headers.iter().filter(|name| **name != "Idempotent-Replayed") {
            let absent_by_right = *name == "ETag" && operation.id == "deleteCounter";
            assert!(reply.header(&name.to_lowercase()).is_some() || absent_by_right, "{name} of {call}");
        }
    }
}

/// The documentation works where nothing else is reached: its page names no other place.
#[tokio::test]
async fn the_page_needs_nobody_else() {
    let api = Api::new();
    for path in ["/docs", "/docs/page.js", "/docs/style.css"] {
        let reply = api.send(&format!("GET {path}"), &[], "").await;
        let text = reply.body.as_str().unwrap();
        assert!(text.len() > 1000, "{path}");
        let elsewhere: Vec<&str> =
            text.match_indices("://").map(|(at, _)| &text[at.saturating_sub(4)..]).collect();
        // The name of a language is not a place.
        assert!(
            elsewhere.iter().all(|place| place.starts_with("http://www.w3.org/2000/svg")),
            "{path}: {elsewhere:?}"
        );
        assert!(reply.header("content-security-policy").unwrap().contains("default-src 'none'"));
    }
}
