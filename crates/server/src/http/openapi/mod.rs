//! `/openapi.json`: the API described for programs, as OpenAPI 3.1.
//!
//! | file | what it says |
//! |---|---|
//! | `operations`, `kinds` | the table of calls: what each takes, and how it may end |
//! | `windows` | what the types of windows cannot say |
//! | `parts` | what calls share: parameters, headers, problems |
//!
//! Schemas of bodies are made from the types in `quipu_wire::json`, so they cannot say anything else than what is read
//! and written. The document is made once, when somebody first asks for it, from the limits that hold.

mod kinds;
mod operations;
mod parts;
mod windows;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::IntoResponse;
use quipu_counting::rollup::{ROLLUP_NAMES_MAX, ROLLUPS_MAX};
use quipu_counting::told::DIMENSIONS_MAX;
use quipu_wire::json::audit::AuditReply;
use quipu_wire::json::backend::BackendBody;
use quipu_wire::json::buckets::SpanBody;
use quipu_wire::json::cluster::{ClusterBody, NodeLeaving};
use quipu_wire::json::history::HistoryReply;
use quipu_wire::json::hold::{AdjustBody, AdjustedBody, CommitBody, HoldBody, HoldEndBody, ReserveBody};
use quipu_wire::json::hot::HotBody;
use quipu_wire::json::mirror::MirrorBody;
use quipu_wire::json::policy::{PoliciesBody, PolicyRemoved, PolicyReply};
use quipu_wire::json::problem::{PROBLEM_JSON, Problem};
use quipu_wire::json::quota::{AcquireAllBody, AcquireBody, GrantBody, GrantsBody, QuotaBody};
use quipu_wire::json::reply::{
    AggregateBody, ChangeBody, CounterBody, ItemBody, ListBody, RefusedItem, ResultsBody, UnansweredItem,
};
use quipu_wire::json::request::{AddBody, BatchAddBody, BatchGetBody, PolicyBody, SetBody};
use quipu_wire::json::schema::{
    AuditKeptSchema, CountSchema, DifferenceSchema, DurationSchema, HoldTtlSchema, IntegerSchema, ItemSchema,
    KeyBase64Schema, KeyOrBase64Schema, KeySchema, MomentSchema, ReasonSchema, RequestIdSchema, SumSchema,
    TtlSchema, VersionSchema, WindowSchema,
};
use quipu_wire::json::unique::{MergeBody, ObserveBody, SeenBody};
use serde_json::{Map, Value, json};
use utoipa::{PartialSchema, ToSchema};

use super::answer::Answer;
use super::extract::NoQuery;
use super::{App, Limits};
use operations::{Body, Operation, Outcome};

/// All calls.
pub fn operations() -> impl Iterator<Item = &'static Operation> {
    operations::OPERATIONS.iter().chain(kinds::OPERATIONS)
}

/// The document, as a handler.
pub async fn serve(State(app): State<Arc<App>>, NoQuery: NoQuery) -> Answer {
    let bytes = app.openapi.get_or_init(|| Bytes::from(document(&app.load.limits).to_string())).clone();
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    Ok((StatusCode::OK, headers, bytes).into_response())
}

/// The whole document.
pub fn document(limits: &Limits) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for operation in operations() {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = describe(operation);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "quipu",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "Exact counters over HTTP.",
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "this server"}],
        "tags": [
            {"name": "counters", "description": "One counter: count, read, set, delete."},
            {"name": "uniques", "description": "How many different items there were."},
            {"name": "windows", "description": "Sums by time, and limits on them."},
            {"name": "holds", "description": "Amounts set aside until they are counted, given back, or over."},
            {"name": "many", "description": "Many counters in one call."},
            {"name": "policies", "description": "Limits by key pattern, as data."},
            {"name": "cluster", "description": "Who belongs to it, and who holds what; or the Redis that does."},
            {"name": "service", "description": "Is it alive, is it ready, how is it doing."},
        ],
        "paths": paths,
        "components": {
            "schemas": schemas(limits),
            "parameters": parts::parameters(),
            "headers": parts::headers(),
            "responses": parts::problems(),
        },
    })
}

const DESCRIPTION: &str = "\
An increment that was acknowledged is on disk and is counted exactly once, however often it is retried.

**Keys** are any 1 to 512 bytes, percent-encoded in paths (`/` as `%2F`). A key that is not UTF-8 is shown as `keyBase64`.

**Numbers** are whole and have 64 bits. JavaScript loses integers beyond 2^53, so such a number is given as text too \
(`valueText`), and any number may be sent as text.

**Retries**: give a change the header `Idempotency-Key` (or `X-Request-Id`, unless the server ignores it). The same request \
under the same id is done once; the first outcome comes back with `Idempotent-Replayed: true`.

**Large bodies**: replies are packed for those who send `Accept-Encoding: gzip`, and bodies of requests may come packed with \
`Content-Encoding: gzip`.

**Errors** are `application/problem+json`: `detail` for people, `reason` for programs, `requestId` for logs. 503 means \
that nothing was changed and the same request may be sent again; 504 that the outcome is unknown: repeat it under the same \
id.";

fn describe(operation: &Operation) -> Value {
    let mut described = json!({
        "operationId": operation.id,
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": operation.description,
        "parameters": operation.parameters.iter().map(|name| reference("parameters", name)).collect::<Vec<_>>(),
        "responses": responses(operation),
    });
    if let Some(Body { schema, is_required, example }) = &operation.body {
        described["requestBody"] = json!({
            "required": is_required,
            "content": {"application/json": {
                "schema": reference("schemas", schema),
                "example": serde_json::from_str::<Value>(example).unwrap_or_default(),
            }},
        });
    }
    described
}

fn responses(operation: &Operation) -> Map<String, Value> {
    let mut responses = Map::new();
    for Outcome { status, description, media_type, schema, example, headers } in operation.outcomes {
        let mut response = json!({ "description": description });
        response["headers"] = parts::header_references(headers.iter().copied().chain(["X-Request-Id"]));
        if !media_type.is_empty() {
            let schema = match schema.strip_prefix("text") {
                Some(_) => json!({"type": "string"}),
                None if schema.is_empty() => json!({"type": "object"}),
                None => reference("schemas", schema),
            };
            let mut content = json!({ "schema": schema });
            if !example.is_empty() {
                content["example"] = serde_json::from_str(example).unwrap_or_else(|_| json!(example));
            }
            response["content"] = json!({ *media_type: content });
        }
        if let Some(links) = links(operation, *status) {
            response["links"] = links;
        }
        responses.insert(status.to_string(), response);
    }
    for status in operation.problems {
        let name = match (operation.id, status) {
            ("batchIncrement", 409 | 422) => parts::batch_problem_name(*status),
            ("commitHold" | "voidHold", 409) => parts::hold_problem_name(*status),
            _ => parts::problem_name(*status),
        };
        responses.insert(status.to_string(), reference("responses", &name));
    }
    responses
}

/// What can be asked next about the same counter or policy.
fn links(operation: &Operation, status: u16) -> Option<Value> {
    if status >= 300 {
        return None;
    }
    if operation.id == "reserve" {
        let link = |target: &str| json!({"operationId": target, "parameters": {"path.id": "$response.body#/holdId"}});
        return Some(json!({"commitHold": link("commitHold"), "voidHold": link("voidHold")}));
    }
    let targets: &[&str] = match operation.id {
        "incrementCounter" | "decrementCounter" | "setCounter" | "resetCounter" => {
            &["getCounter", "incrementCounter", "decrementCounter", "resetCounter", "deleteCounter"]
        }
        "setPolicy" => &["getPolicy", "deletePolicy"],
        _ => return None,
    };
    let name = if operation.tag == "policies" { "pattern" } else { "key" };
    let link = |target: &&str| {
        let parameters = json!({ format!("path.{name}"): format!("$request.path.{name}") });
        ((*target).to_owned(), json!({"operationId": target, "parameters": parameters}))
    };
    Some(Value::Object(targets.iter().map(link).collect()))
}

fn reference(kind: &str, name: &str) -> Value {
    json!({ "$ref": format!("#/components/{kind}/{name}") })
}

/// The schemas of all bodies, from their types.
fn schemas(limits: &Limits) -> Value {
    let mut found = Vec::new();
    add::<AddBody>(&mut found);
    add::<SetBody>(&mut found);
    add::<BatchAddBody>(&mut found);
    add::<BatchGetBody>(&mut found);
    add::<PolicyBody>(&mut found);
    add::<AdjustBody>(&mut found);
    add::<AdjustedBody>(&mut found);
    add::<ObserveBody>(&mut found);
    add::<MergeBody>(&mut found);
    add::<SeenBody>(&mut found);
    add::<AcquireBody>(&mut found);
    add::<AcquireAllBody>(&mut found);
    add::<QuotaBody>(&mut found);
    add::<GrantBody>(&mut found);
    add::<GrantsBody>(&mut found);
    add::<SpanBody>(&mut found);
    add::<ReserveBody>(&mut found);
    add::<CommitBody>(&mut found);
    add::<HoldBody>(&mut found);
    add::<HoldEndBody>(&mut found);
    add::<CounterBody>(&mut found);
    add::<ChangeBody>(&mut found);
    add::<RefusedItem>(&mut found);
    add::<UnansweredItem>(&mut found);
    add::<ItemBody>(&mut found);
    found.push(("BatchIncrementReply".to_owned(), ResultsBody::<ItemBody>::schema()));
    found.push(("BatchGetReply".to_owned(), ResultsBody::<CounterBody>::schema()));
    add::<ListBody>(&mut found);
    add::<AggregateBody>(&mut found);
    add::<HotBody>(&mut found);
    add::<MirrorBody>(&mut found);
    add::<HistoryReply>(&mut found);
    add::<AuditReply>(&mut found);
    add::<AuditKeptSchema>(&mut found);
    add::<PolicyReply>(&mut found);
    add::<PoliciesBody>(&mut found);
    add::<PolicyRemoved>(&mut found);
    add::<BackendBody>(&mut found);
    add::<ClusterBody>(&mut found);
    add::<NodeLeaving>(&mut found);
    add::<Problem>(&mut found);
    add::<CountSchema>(&mut found);
    add::<DifferenceSchema>(&mut found);
    add::<HoldTtlSchema>(&mut found);
    add::<ItemSchema>(&mut found);
    add::<ReasonSchema>(&mut found);
    add::<SumSchema>(&mut found);
    add::<WindowSchema>(&mut found);
    add::<IntegerSchema>(&mut found);
    add::<MomentSchema>(&mut found);
    add::<DurationSchema>(&mut found);
    add::<KeySchema>(&mut found);
    add::<KeyBase64Schema>(&mut found);
    add::<KeyOrBase64Schema>(&mut found);
    add::<RequestIdSchema>(&mut found);
    add::<TtlSchema>(&mut found);
    add::<VersionSchema>(&mut found);
    let schemas: BTreeMap<String, _> = found.into_iter().collect();
    let mut schemas = json!(schemas);
    hoist_descriptions(&mut schemas);
    refine(&mut schemas, limits);
    schemas
}

fn add<T: ToSchema>(found: &mut Vec<(String, utoipa::openapi::RefOr<utoipa::openapi::Schema>)>) {
    found.push((T::name().into_owned(), <T as PartialSchema>::schema()));
    T::schemas(found);
}

/// Of a field that may be `null`, what it is about stands in one of the alternatives; people and programs look for it in
/// the field itself.
fn hoist_descriptions(schemas: &mut Value) {
    let all = schemas.as_object_mut().into_iter().flat_map(Map::values_mut);
    let objects = all.filter_map(|schema| schema.get_mut("properties")?.as_object_mut());
    for field in objects.flat_map(Map::values_mut) {
        let alternatives = field.get_mut("oneOf").and_then(Value::as_array_mut).into_iter().flatten();
        let mut found = None;
        for alternative in alternatives.filter_map(Value::as_object_mut) {
            if alternative.contains_key("$ref") {
                found = found.or(alternative.remove("description"));
            }
        }
        if let Some(description) = found {
            field["description"] = description;
        }
    }
}

/// One schema of the call about one counter, which the path names, and one of an item among several.
fn split_item(schemas: &mut Value, call: &str, item: &str, description: &str) {
    let mut of_item = schemas[call].clone();
    of_item["description"] = json!(description);
    of_item["oneOf"] = json!([{"required": ["key"], "properties": {"key": {"type": "string"}, "keyBase64": {"type": "null"}}},
        {"required": ["keyBase64"], "properties": {"keyBase64": {"type": "string"}, "key": {"type": "null"}}}]);
    schemas[item] = of_item;
    if let Some(properties) = schemas[call]["properties"].as_object_mut() {
        properties.retain(|name, _| !["key", "keyBase64", "requestId"].contains(&name.as_str()));
    }
}

/// What the types cannot say.
fn refine(schemas: &mut Value, limits: &Limits) {
    // One type reads both forms, so that each can say what belongs into the other.
    split_item(schemas, "Addition", "BatchItem", "One addition of a batch.");
    split_item(schemas, "Acquisition", "AcquireItem", "One limit of several.");
    schemas["Acquisition"]["description"] = json!("How much to count, within which limit.");
    schemas["AcquireAll"]["properties"]["items"]["items"] = reference("schemas", "AcquireItem");
    schemas["Reservation"]["not"] =
        json!({"required": ["amount"], "properties": {"amount": {"enum": [0, "0"]}}});
    windows::refine(schemas);
    for name in ["Addition", "BatchItem", "Adjustment"] {
        schemas[name]["properties"]["dims"]["maxProperties"] = json!(DIMENSIONS_MAX);
        schemas[name]["properties"]["dims"]["propertyNames"] = json!({"pattern": "^[^:,=*\\s]{1,64}$"});
    }
    let rollups = &mut schemas["PolicySettings"]["properties"]["rollups"];
    rollups["maxItems"] = json!(ROLLUPS_MAX);
    rollups["items"]["minItems"] = json!(1);
    rollups["items"]["maxItems"] = json!(ROLLUP_NAMES_MAX);
    schemas["Addition"]["description"] = json!("How much to add, and what must hold of the result.");
    for name in ["Addition", "BatchItem"] {
        // Only with a time to live can it matter whether there is one already.
        schemas[name]["if"] =
            json!({"required": ["ttlIfNone"], "properties": {"ttlIfNone": {"const": true}}});
        schemas[name]["then"] = json!({"required": ["ttlMs"], "properties": {"ttlMs": {"type": "integer"}}});
    }
    schemas["Replacement"]["if"] =
        json!({"required": ["persist"], "properties": {"persist": {"const": true}}});
    schemas["Replacement"]["then"] = json!({"properties": {"ttlMs": {"type": "null"}}});
    schemas["BatchIncrement"]["properties"]["items"]["items"] = reference("schemas", "BatchItem");
    // In an atomic batch, the batch has the id.
    schemas["BatchIncrement"]["if"] =
        json!({"required": ["atomic"], "properties": {"atomic": {"const": true}}});
    schemas["BatchIncrement"]["then"] =
        json!({"properties": {"items": {"items": {"properties": {"requestId": {"type": "null"}}}}}});
    schemas["BatchIncrement"]["properties"]["items"]["maxItems"] = json!(limits.batch_items_max);
    schemas["BatchGet"]["properties"]["keys"]["maxItems"] = json!(limits.batch_items_max);
    // What was refused is a change too.
    if let Some(result) = schemas["BatchResult"].as_object_mut()
        && let Some(either) = result.remove("oneOf")
    {
        result.insert("anyOf".to_owned(), either);
    }
    schemas["Refusal"] = json!({
        "description": "A change that a rule of counting refused: why, and the counter as it stands.",
        "allOf": [reference("schemas", "Problem"), reference("schemas", "Change")],
    });
    schemas["OverQuota"] = json!({
        "description": "A limit that left no room: how much of it is used, and the counter as it stands.",
        "allOf": [reference("schemas", "Refusal"), reference("schemas", "Quota")],
    });
    schemas["BatchRefusal"] = json!({
        "description": "An all-or-none batch that was refused: why, and the items.",
        "allOf": [
            reference("schemas", "Problem"),
            {"type": "object", "required": ["results"], "properties":
                {"results": {"type": "array", "items": reference("schemas", "BatchResult")}}},
        ],
    });
}
