//! The API as a table of calls: what is sent, the status, and the fields that matter in the reply. A real engine
//! counts behind the router; only the sockets are missing.

mod described;
mod limits;
mod outages;
mod protocol;
mod watching;

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Request, Response};
use quipu_counting::Counters;
use quipu_engine::{Engine, Options};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{App, Front, Hub, Limits, Load};
use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::serve::Health;

struct Api {
    front: Front,
    health: Arc<Health>,
    /// Kept as long as the engine needs it.
    _data: Option<TempDir>,
}

struct Reply {
    response: Response<()>,
    /// As JSON, or the text where it is none.
    body: Value,
    bytes: Vec<u8>,
}

impl Api {
    fn new() -> Api {
        Api::with(true)
    }

    fn with(x_request_id: bool) -> Api {
        let data = tempfile::tempdir().unwrap();
        let engine = Engine::open(data.path(), Options::default()).unwrap();
        Api { _data: Some(data), ..Api::over(engine, x_request_id) }
    }

    fn over(counters: Arc<dyn Counters>, x_request_id: bool) -> Api {
        let health = Arc::new(Health::default());
        let load = Arc::new(Load::new(Limits { in_flight_max: 2, ..Limits::default() }));
        let clock = Arc::new(Clock::new());
        let app = App {
            cluster: None,
            external: None,
            counters: Arc::clone(&counters),
            hub: Hub::new(Arc::clone(&counters), Arc::clone(&clock)),
            clock,
            metrics: Arc::new(Metrics::new(counters, None, Some(Arc::clone(&load)), None)),
            health: Arc::clone(&health),
            x_request_id,
            load,
            mirror: Some(Arc::new(crate::mirror::Status::new("postgres://db/shop", 0))),
            openapi: std::sync::OnceLock::new(),
        };
        Api { front: Front::new(Arc::new(app)), health, _data: None }
    }

    /// `call` is `METHOD path`; a path that begins with a slash is taken as it is, others lie under `/api/v1/`.
    async fn send(&self, call: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        self.send_bytes(call, headers, body.into()).await
    }

    async fn send_bytes(&self, call: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Reply {
        let (method, path) = call.split_once(' ').unwrap();
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/api/v1/{path}") };
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "quipu");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body)).unwrap();
        let (parts, body) = self.front.answer(request).await.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let body =
            serde_json::from_slice(&bytes).unwrap_or(Value::String(String::from_utf8_lossy(&bytes).into()));
        Reply { response: Response::from_parts(parts, ()), body, bytes: bytes.to_vec() }
    }

    /// Makes the call and compares the status and each field that is named.
    async fn expect(
        &self,
        call: &str,
        headers: &[(&str, &str)],
        body: &str,
        status: u16,
        fields: Value,
    ) -> Reply {
        let reply = self.send(call, headers, body).await;
        assert_eq!(reply.response.status(), status, "{call} {body}: {}", reply.body);
        for (field, expected) in fields.as_object().unwrap() {
            assert_eq!(&reply.body[field], expected, "{field} of {call} {body}: {}", reply.body);
        }
        let kind = reply.header("content-type").unwrap_or_default();
        if call.contains(" counters") || call.contains(" policies") {
            let expected = if status < 400 { "application/json" } else { "application/problem+json" };
            assert_eq!(kind, expected, "{call} {body}");
        }
        reply
    }
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name).map(|value| value.to_str().unwrap())
    }
}

#[tokio::test]
async fn one_counter() {
    let api = Api::new();
    for (call, body, status, fields) in [
        (
            "GET counters/a",
            "",
            200,
            json!({"counterKey": "a", "value": 0, "version": 0, "exists": false,
            "kind": "sum", "mode": "strong", "exact": true, "stalenessMs": 0, "updatedAt": null}),
        ),
        (
            "POST counters/a/increment",
            "",
            200,
            json!({"counterKey": "a", "accepted": true, "applied": 1, "value": 1,
            "version": 1, "mode": "strong", "duplicate": false}),
        ),
        (
            "POST counters/a/increment",
            r#"{"delta":9}"#,
            200,
            json!({"applied": 9, "value": 10, "version": 2}),
        ),
        ("POST counters/a/decrement", r#"{"delta":3}"#, 200, json!({"applied": -3, "value": 7})),
        ("POST counters/a/decrement", "", 200, json!({"applied": -1, "value": 6})),
        (
            "POST counters/a/increment",
            r#"{"max":6}"#,
            409,
            json!({"accepted": false, "applied": 0, "value": 6,
            "reason": "above-ceiling", "status": 409, "title": "Conflict", "counterKey": "a"}),
        ),
        (
            "POST counters/a/increment",
            r#"{"delta":9,"max":8,"saturate":true}"#,
            200,
            json!({"applied": 2, "value": 8}),
        ),
        (
            "POST counters/a/decrement",
            r#"{"delta":9,"min":0}"#,
            409,
            json!({"reason": "below-floor", "value": 8}),
        ),
        ("POST counters/a/increment", r#"{"delta":9223372036854775807}"#, 409, json!({"reason": "overflow"})),
        (
            "POST counters/a/increment",
            r#"{"ifVersion":1}"#,
            409,
            json!({"reason": "condition-unmet", "value": 8}),
        ),
        ("GET counters/a?consistency=strong", "", 200, json!({"value": 8, "version": 5, "exists": true})),
        (
            "GET counters/a?consistency=eventual&maxStalenessMs=50",
            "",
            200,
            json!({"value": 8, "stalenessMs": 0}),
        ),
        (
            "PUT counters/a",
            r#"{"value":5}"#,
            200,
            json!({"value": 5, "applied": -3, "accepted": true, "version": 6}),
        ),
        ("POST counters/a/reset", "", 200, json!({"value": 0, "applied": -5, "exists": true})),
        (
            "DELETE counters/a",
            "",
            200,
            json!({"value": 0, "exists": false, "existed": true, "accepted": true}),
        ),
        (
            "DELETE counters/a",
            "",
            200,
            json!({"applied": 0, "exists": false, "existed": false, "accepted": true}),
        ),
        ("PUT counters/w", r#"{"value":"-9223372036854775808"}"#, 200, json!({"applied": i64::MIN})),
        (
            "PUT counters/w",
            r#"{"value":9223372036854775807}"#,
            200,
            json!({"applied": u64::MAX, "appliedText": "18446744073709551615"}),
        ),
        // Beyond what this reader of JSON takes for a whole number.
        (
            "PUT counters/w",
            r#"{"value":"-9223372036854775808"}"#,
            200,
            json!({"applied": -18446744073709551615.0, "appliedText": "-18446744073709551615"}),
        ),
        (
            "DELETE counters/w",
            "",
            200,
            json!({"applied": 9223372036854775808u64, "appliedText": "9223372036854775808"}),
        ),
        ("GET counters/a", "", 200, json!({"exists": false})),
        (
            "POST counters/b/increment",
            r#"{"delta":9007199254740993}"#,
            200,
            json!({"value": 9007199254740993i64, "valueText": "9007199254740993", "appliedText": "9007199254740993"}),
        ),
    ] {
        api.expect(call, &[], body, status, fields).await;
    }
}

#[tokio::test]
async fn expiry_is_shown() {
    let api = Api::new();
    let reply =
        api.expect("POST counters/a/increment", &[], r#"{"ttlMs":60000}"#, 200, json!({"value": 1})).await;
    assert!(reply.body["expiresAt"].as_str().unwrap().ends_with('Z'));
    assert!(reply.body["updatedAt"].as_str() < reply.body["expiresAt"].as_str());
    let reply =
        api.expect("PUT counters/a", &[], r#"{"value":2,"persist":true}"#, 200, json!({"value": 2})).await;
    assert_eq!(reply.body["expiresAt"], Value::Null);
}

/// Keys are bytes: slashes, blanks, things that are not UTF-8, and the names of our own routes.
#[tokio::test]
async fn keys_of_all_kinds() {
    let api = Api::new();
    let long = "k".repeat(512);
    for (encoded, field, shown) in [
        ("a%2Fb", "counterKey", "a/b"),
        ("a%20b", "counterKey", "a b"),
        ("caf%C3%A9", "counterKey", "café"),
        ("%FF%00", "keyBase64", "/wA="),
        (long.as_str(), "counterKey", long.as_str()),
        ("counter:{shop}:7:stock:2026-02-23", "counterKey", "counter:{shop}:7:stock:2026-02-23"),
        ("batch-get", "counterKey", "batch-get"),
    ] {
        let encoded = encoded.replace('{', "%7B").replace('}', "%7D");
        api.expect(
            &format!("POST counters/{encoded}/increment"),
            &[],
            "",
            200,
            json!({ field: shown, "value": 1 }),
        )
        .await;
        api.expect(&format!("PUT counters/{encoded}"), &[], r#"{"value":7}"#, 200, json!({ field: shown }))
            .await;
        api.expect(&format!("GET counters/{encoded}"), &[], "", 200, json!({ field: shown, "value": 7 }))
            .await;
    }
    for encoded in [format!("{long}k"), "50%".to_owned(), "%zz".to_owned()] {
        api.expect(&format!("GET counters/{encoded}"), &[], "", 400, json!({"reason": "malformed"})).await;
    }
}

#[tokio::test]
async fn retries_count_once() {
    let api = Api::new();
    let id = |id| [("idempotency-key", id)];
    let call = "POST counters/a/increment";
    let first =
        api.expect(call, &id("r1"), r#"{"delta":5}"#, 200, json!({"value": 5, "duplicate": false})).await;
    assert_eq!(first.header("idempotent-replayed"), None);
    api.expect(call, &[], r#"{"delta":1}"#, 200, json!({"value": 6})).await;
    let again = api
        .expect(call, &id("r1"), r#"{"delta":5}"#, 200, json!({"value": 5, "applied": 5, "duplicate": true}))
        .await;
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    api.expect(call, &id("r1"), r#"{"delta":6}"#, 422, json!({"reason": "id-reused", "status": 422})).await;
    // A refusal is an outcome too: it stays one, although by now the bound would allow it.
    api.expect(call, &id("r2"), r#"{"max":6}"#, 409, json!({"duplicate": false})).await;
    api.expect("PUT counters/a", &[], r#"{"value":0}"#, 200, json!({})).await;
    let again =
        api.expect(call, &id("r2"), r#"{"max":6}"#, 409, json!({"duplicate": true, "value": 6})).await;
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    // The other verbs.
    for (call, body) in
        [("PUT counters/a", r#"{"value":3}"#), ("POST counters/a/reset", ""), ("DELETE counters/a", "")]
    {
        let id = [("idempotency-key", call)];
        api.expect(call, &id, body, 200, json!({"duplicate": false})).await;
        api.expect(call, &id, body, 200, json!({"duplicate": true})).await;
    }
}

#[tokio::test]
async fn x_request_id_is_the_second_choice() {
    let both = [("idempotency-key", "a"), ("x-request-id", "b")];
    let second = [("x-request-id", "b")];
    let api = Api::new();
    let call = "POST counters/a/increment";
    api.expect(call, &both, "", 200, json!({"value": 1})).await;
    api.expect(call, &second, "", 200, json!({"value": 2, "duplicate": false})).await;
    api.expect(call, &second, "", 200, json!({"value": 2, "duplicate": true})).await;
    let api = Api::with(false);
    api.expect(call, &second, "", 200, json!({"value": 1})).await;
    api.expect(call, &second, "", 200, json!({"value": 2, "duplicate": false})).await;
}

#[tokio::test]
async fn tags_guard_changes() {
    let api = Api::new();
    let absent = [("if-none-match", "*")];
    let created = api.expect("PUT counters/a", &absent, r#"{"value":1}"#, 200, json!({"value": 1})).await;
    let tag = created.header("etag").unwrap().to_owned();
    api.expect("PUT counters/a", &absent, r#"{"value":2}"#, 409, json!({"reason": "condition-unmet"})).await;
    let matching = [("if-match", tag.as_str())];
    let changed = api.expect("POST counters/a/increment", &matching, "", 200, json!({"value": 2})).await;
    assert_ne!(changed.header("etag"), Some(tag.as_str()));
    for call in ["POST counters/a/increment", "POST counters/a/reset", "DELETE counters/a"] {
        api.expect(call, &matching, "", 409, json!({"reason": "condition-unmet", "value": 2})).await;
    }
    // A counter deleted and made anew has the same version and yet another tag.
    api.expect("DELETE counters/a", &[("if-match", "*")], "", 200, json!({"exists": false})).await;
    let reborn = api.expect("PUT counters/a", &[], r#"{"value":1}"#, 200, json!({"version": 1})).await;
    assert_ne!(reborn.header("etag"), Some(tag.as_str()));
    assert_eq!(api.send("GET counters/none", &[], "").await.header("etag"), None);
}

#[tokio::test]
async fn independent_batches() {
    let api = Api::new();
    let body = r#"{"items":[{"key":"a","delta":2},{"key":"b","max":0},{"key":"a","requestId":"r"},{"keyBase64":"/w=="}]}"#;
    let reply = api.expect("POST counters/batch-increment", &[], body, 200, json!({})).await;
    let results = reply.body["results"].as_array().unwrap();
    for (index, fields) in [
        json!({"counterKey": "a", "accepted": true, "value": 2}),
        json!({"counterKey": "b", "accepted": false, "reason": "above-ceiling", "applied": 0, "status": 409}),
        json!({"counterKey": "a", "accepted": true, "value": 3, "duplicate": false}),
        json!({"keyBase64": "/w==", "value": 1}),
    ]
    .iter()
    .enumerate()
    {
        for (field, expected) in fields.as_object().unwrap() {
            assert_eq!(&results[index][field], expected, "{field} of result {index}: {}", reply.body);
        }
    }
    // An item's id is the same as that of a call of its own.
    let alone = [("idempotency-key", "r")];
    api.expect("POST counters/a/increment", &alone, "", 200, json!({"value": 3, "duplicate": true})).await;
    // One id for the whole batch tells items on the same key apart, in whatever order the keys come.
    let id = [("idempotency-key", "batch-1")];
    for (keys, last, replayed) in [("cccd", 1, None), ("cccd", 1, Some("true")), ("dccc", 3, Some("true"))] {
        let items: Vec<_> = keys.chars().map(|key| json!({"key": key.to_string()})).collect();
        let body = json!({"items": items}).to_string();
        let reply = api.expect("POST counters/batch-increment", &id, &body, 200, json!({})).await;
        assert_eq!(reply.body["results"][3]["value"], json!(last));
        assert_eq!(reply.header("idempotent-replayed"), replayed);
    }
    // Whole or not at all: another batch that shares a counter with one of this id is another request.
    let atomic =
        |keys: [&str; 2]| json!({"atomic": true, "items": keys.map(|key| json!({"key": key}))}).to_string();
    let id = [("idempotency-key", "batch-2")];
    for (keys, status) in [(["x", "y"], 200), (["y", "x"], 422), (["z", "x"], 422), (["x", "y"], 200)] {
        api.expect("POST counters/batch-increment", &id, &atomic(keys), status, json!({})).await;
    }
    api.expect("GET counters/x", &[], "", 200, json!({"value": 1})).await;
    let body = r#"{"keys":["c",{"keyBase64":"/w=="},"none"]}"#;
    let reply = api.expect("POST counters/batch-get", &[], body, 200, json!({})).await;
    let values: Vec<_> =
        reply.body["results"].as_array().unwrap().iter().map(|item| item["value"].clone()).collect();
    assert_eq!(values, [json!(3), json!(1), json!(0)]);
}

#[tokio::test]
async fn atomic_batches() {
    let api = Api::new();
    let call = "POST counters/batch-increment";
    let body = r#"{"atomic":true,"items":[{"key":"a"},{"key":"b","max":0},{"key":"c"}]}"#;
    let fields = json!({"reason": "above-ceiling", "status": 409});
    let reply = api.expect(call, &[], body, 409, fields).await;
    let reasons: Vec<_> =
        reply.body["results"].as_array().unwrap().iter().map(|item| item["reason"].clone()).collect();
    assert_eq!(reasons, [json!("group-aborted"), json!("above-ceiling"), json!("group-aborted")]);
    assert!(reply.body["detail"].as_str().unwrap().starts_with("items[1]: "), "{}", reply.body);
    api.expect("GET counters/a", &[], "", 200, json!({"exists": false})).await;
    let id = [("idempotency-key", "batch-1")];
    let body = r#"{"atomic":true,"items":[{"key":"a","delta":2},{"key":"b","delta":-2}]}"#;
    for replayed in [None, Some("true")] {
        let reply = api.expect(call, &id, body, 200, json!({})).await;
        assert_eq!(reply.body["results"][1]["value"], json!(-2));
        assert_eq!(reply.header("idempotent-replayed"), replayed);
    }
    let body = r#"{"atomic":true,"items":[{"key":"a","delta":2},{"key":"b","delta":-3}]}"#;
    api.expect(call, &id, body, 422, json!({"reason": "id-reused"})).await;
    let body = r#"{"atomic":true,"items":[{"key":"a","requestId":"r"}]}"#;
    api.expect(call, &[], body, 400, json!({"reason": "malformed"})).await;
}

#[tokio::test]
async fn lists() {
    let api = Api::new();
    let body = r#"{"items":[{"key":"a/1","delta":5},{"key":"a/2","delta":9},{"key":"b","delta":9007199254740993},{"keyBase64":"YS//","delta":-1}]}"#;
    api.expect("POST counters/batch-increment", &[], body, 200, json!({})).await;
    let names = |reply: &Reply| -> Vec<String> {
        let name = |counter: &Value| {
            assert_eq!((&counter["exists"], &counter["exact"]), (&json!(true), &json!(true)), "{counter}");
            counter["counterKey"].as_str().or(counter["keyBase64"].as_str()).unwrap().to_owned()
        };
        reply.body["counters"].as_array().unwrap().iter().map(name).collect()
    };
    for (query, expected) in [
        ("?order=key", &["a/1", "a/2", "YS//", "b"][..]),
        ("?order=value", &["b", "a/2", "a/1", "YS//"]),
        ("?order=key&prefix=a%2F", &["a/1", "a/2", "YS//"]),
        ("?order=value&prefix=a/&limit=1", &["a/2"]),
        ("?order=key&prefix=a/%ff", &["YS//"]),
        ("?prefix=c", &[]),
    ] {
        let reply = api.expect(&format!("GET counters{query}"), &[], "", 200, json!({})).await;
        assert_eq!(names(&reply), expected, "{query}");
        assert_eq!(reply.body["cursor"].is_null(), !query.contains("limit=1"), "{query}");
    }
    for order in ["", "&order=key", "&order=value"] {
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        loop {
            let call = format!("GET counters?limit=1{order}&cursor={cursor}");
            let reply = api.expect(&call, &[], "", 200, json!({})).await;
            seen.extend(names(&reply));
            match reply.body["cursor"].as_str() {
                Some(next) => cursor = next.to_owned(),
                None => break,
            }
        }
        seen.sort();
        assert_eq!(seen, ["YS//", "a/1", "a/2", "b"], "{order}");
    }
    let large = api.send("GET counters?prefix=b", &[], "").await;
    assert_eq!(large.body["counters"][0]["valueText"], json!("9007199254740993"));
    for query in
        ["?order=age", "?limit=0", "?limit=10001", "?cursor=nonsense", "?offset=3", "?limit=1&limit=2"]
    {
        api.expect(&format!("GET counters{query}"), &[], "", 400, json!({"reason": "malformed"})).await;
    }
    api.expect("POST counters", &[], "{}", 405, json!({})).await;
}

#[tokio::test]
async fn policies_hold() {
    let api = Api::new();
    for (call, body, status, fields) in [
        ("GET policies", "", 200, json!({"policies": []})),
        ("GET policies/stock:*", "", 404, json!({"reason": "no-such-policy"})),
        (
            "PUT policies/stock:*",
            r#"{"min":0,"max":10}"#,
            201,
            json!({"pattern": "stock:*", "min": 0, "max": 10,
            "saturate": false, "ttlMs": null, "disabled": false}),
        ),
        ("PUT policies/stock:*", r#"{"min":0,"max":5}"#, 200, json!({"max": 5})),
        ("GET policies/stock:%2A", "", 200, json!({"pattern": "stock:*", "max": 5})),
        ("POST counters/stock:7/increment", r#"{"delta":6}"#, 409, json!({"reason": "above-ceiling"})),
        ("POST counters/stock:7/increment", r#"{"delta":5}"#, 200, json!({"value": 5})),
        ("PUT policies/stock:7", r#"{"disabled":true}"#, 201, json!({"disabled": true})),
        ("POST counters/stock:7/decrement", "", 409, json!({"reason": "disabled", "value": 5})),
        ("GET counters/stock:7", "", 200, json!({"value": 5})),
        ("DELETE policies/stock:7", "", 200, json!({"pattern": "stock:7", "existed": true})),
        ("DELETE policies/stock:7", "", 200, json!({"existed": false})),
        ("POST counters/stock:7/decrement", "", 200, json!({"value": 4})),
        (
            "DELETE policies/%2",
            "",
            400,
            json!({"detail": "the pattern in the path: the % at byte 0 is not followed by two hex digits"}),
        ),
        ("PUT policies/x", r#"{"min":2,"max":1}"#, 400, json!({"reason": "malformed"})),
        ("PUT policies/x", r#"{"mode":"eventual"}"#, 400, json!({"reason": "malformed"})),
    ] {
        api.expect(call, &[], body, status, fields).await;
    }
    let list = api.send("GET policies", &[], "").await;
    assert_eq!(list.body["policies"].as_array().unwrap().len(), 1);
}

/// Whatever is wrong with a request, the answer is a problem that names it, and nothing changes.
#[tokio::test]
async fn refused_requests_say_why() {
    let api = Api::new();
    let items = |count: usize| format!(r#"{{"items":[{}]}}"#, vec![r#"{"key":"a"}"#; count].join(","));
    let large = format!(r#"{{"delta":{}1}}"#, " ".repeat(1 << 20));
    for (call, body, status, named) in [
        ("POST counters/a/increment", r#"{"detla":1}"#, 400, "unknown field `detla`"),
        ("POST counters/a/increment", r#"{"dims":{"a":"b"}}"#, 409, "declare it with `rollups`"),
        ("POST counters/a/increment", r#"{"dims":{"a:":"b"}}"#, 400, "`dims`: the name of a dimension"),
        ("POST counters/a/increment", r#"{"dims":{"a":"*"}}"#, 400, "`dims`: the value of a cannot be *"),
        ("POST counters/a/increment", r#"{"dims":{"a":1}}"#, 400, "`dims.a`"),
        ("GET counters/a?dims=a", "", 400, "dims: \"a\" has no value"),
        ("GET counters/a?dims=a:b", "", 400, "declare it with `rollups`"),
        ("GET counters/a*/aggregate?dims=a:b", "", 400, "no policy declares roll-ups"),
        (
            "PUT policies/a",
            r#"{"rollups":[["a"],["a"]]}"#,
            400,
            "`rollups`: a name or a roll-up comes twice: a",
        ),
        (
            "PUT policies/a",
            r#"{"rollups":[["a"]],"kind":"unique"}"#,
            400,
            "`rollups`: are for sums and windows",
        ),
        ("POST counters/a/increment", r#"{"stripeBy":""}"#, 400, "`stripeBy`: must have 1 to 255 bytes"),
        ("PUT policies/a", r#"{"stripes":3}"#, 400, "`stripes`: is a power of two"),
        ("PUT policies/a", r#"{"stripes":4}"#, 400, "striped counters need a deployment on Redis"),
        ("POST counters/a/increment", r#"{"delta":9223372036854775808}"#, 400, "`delta`"),
        ("POST counters/a/increment", "{", 400, "EOF"),
        ("POST counters/a/increment?delta=5", "", 400, "query"),
        ("POST counters/a/increment", &large, 413, "more than 1048576 bytes"),
        ("POST counters/a/reset", r#"{"value":1}"#, 400, "unknown field `value`"),
        ("PUT counters/a", "", 400, "empty"),
        ("PUT counters/a", "{}", 400, "missing field `value`"),
        ("GET counters/a?consistency=weak", "", 400, "consistency"),
        ("GET counters/a?consistency=eventual&maxStalenessMs=soon", "", 400, "maxStalenessMs"),
        ("GET counters/a?consistency=eventual&maxStalenessMs=-1", "", 400, "maxStalenessMs"),
        ("POST counters/batch-get?consistency=weak", r#"{"keys":["a"]}"#, 400, "consistency"),
        ("GET counters/a?fresh=1", "", 400, "fresh"),
        (
            "POST counters/batch-increment",
            r#"{"items":[]}"#,
            400,
            "`items`: must have 1 to 10000 entries, not 0",
        ),
        ("POST counters/batch-increment", &items(10_001), 400, "not 10001"),
        ("POST counters/batch-increment", r#"{"items":[{"key":"a"},{"key":""}]}"#, 400, "items[1]: `key`"),
        ("POST counters/batch-get", r#"{"keys":[]}"#, 400, "`keys`"),
        ("GET counters/a/b", "", 404, "%2F"),
        ("GET counter", "", 404, "there is nothing at"),
        ("POST counters/a", "", 405, "POST is not possible"),
        ("GET counters/a/increment", "", 405, "GET is not possible"),
        ("PATCH counters/a", "", 405, "PATCH"),
    ] {
        let reply = api.expect(call, &[], body, status, json!({ "status": status })).await;
        let detail = reply.body["detail"].as_str().unwrap();
        assert!(detail.contains(named), "{call} is refused with {detail:?}, which does not say {named:?}");
        assert_eq!(reply.header("allow").is_some(), status == 405, "{call}");
    }
    for (headers, named) in
        [([("idempotency-key", "")], "idempotency-key"), ([("if-match", "7")], "If-Match")]
    {
        let reply = api.expect("POST counters/a/increment", &headers, "", 400, json!({})).await;
        assert!(reply.body["detail"].as_str().unwrap().contains(named));
    }
    let page = [("host", "localhost:7070"), ("origin", "https://example.com")];
    api.expect("POST counters/a/increment", &page, "", 403, json!({"reason": "cross-origin"})).await;
    api.expect("GET counters/a", &page, "", 200, json!({"exists": false})).await;
}

#[tokio::test]
async fn operators_see_how_it_is() {
    let api = Api::new();
    api.send("POST counters/a/increment", &[], "").await;
    api.send("POST counters/a/increment", &[], r#"{"max":0}"#).await;
    assert_eq!(api.send("GET /healthz", &[], "").await.body, json!("ok\n"));
    assert_eq!(api.send("GET /readyz", &[], "").await.body, json!("ready\n"));
    let metrics = api.send("GET /metrics", &[], "").await;
    let text = metrics.body.as_str().unwrap();
    for line in [
        "quipu_http_requests_total{operation=\"increment\",result=\"ok\"} 1",
        "quipu_http_requests_total{operation=\"increment\",result=\"refused\"} 1",
        "quipu_http_request_duration_seconds_count{operation=\"increment\"} 2",
        "quipu_counters 1",
        "# TYPE quipu_log_syncs counter",
        "# EOF",
    ] {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
}
