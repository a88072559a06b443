//! The rules of HTTP that hold for all calls: names of requests, tags and conditions, methods, types of content.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use serde_json::json;

use super::{Api, outages};

#[tokio::test]
async fn every_reply_names_its_request() {
    let api = Api::with(false);
    for (call, given, body) in [
        ("GET counters/a", None, ""),
        ("GET counters/a", Some("trace-7"), ""),
        ("POST counters/a/increment", Some("trace-7"), "{"),
        ("GET nowhere", Some("trace-7"), ""),
        ("GET nowhere", None, ""),
        ("GET /healthz", Some("trace-7"), ""),
        ("OPTIONS counters/a", Some("trace-7"), ""),
        ("GET counters/a", Some("cannot be said again"), ""),
    ] {
        let headers: Vec<_> = given.iter().map(|id| ("x-request-id", *id)).collect();
        let reply = api.send(call, &headers, body).await;
        let name = reply.header("x-request-id").unwrap().to_owned();
        match given {
            Some("trace-7") => assert_eq!(name, "trace-7"),
            _ => assert!(name.len() == 21 && name.contains('-'), "{name}"),
        }
        if reply.response.status().as_u16() >= 400 {
            assert_eq!(reply.body["requestId"], json!(name), "{call}");
        }
    }
    let (one, other) = (api.send("GET /healthz", &[], "").await, api.send("GET /healthz", &[], "").await);
    assert_ne!(one.header("x-request-id"), other.header("x-request-id"));
}

#[tokio::test]
async fn tags_answer_reads() {
    let api = Api::new();
    let tag = api.send("POST counters/a/increment", &[], "").await.header("etag").unwrap().to_owned();
    let weak = format!("W/{tag}");
    let list = format!("\"1-1\", {weak},\"x\"");
    for (call, name, value, status) in [
        ("GET counters/a", "if-none-match", tag.as_str(), 304),
        ("GET counters/a", "if-none-match", &weak, 304),
        ("GET counters/a", "if-none-match", &list, 304),
        ("GET counters/a", "if-none-match", "*", 304),
        ("GET counters/a", "if-none-match", "\"7-7\"", 200),
        ("GET counters/none", "if-none-match", "*", 200),
        ("GET counters/none", "if-none-match", &tag, 200),
        ("HEAD counters/a", "if-none-match", &tag, 304),
        ("GET counters/a", "if-match", &tag, 200),
        ("GET counters/a", "if-match", "*", 200),
        ("GET counters/a", "if-match", &weak, 412),
        ("GET counters/none", "if-match", "*", 412),
        ("GET counters/a", "if-match", "a", 400),
    ] {
        let reply = api.send(call, &[(name, value)], "").await;
        assert_eq!(reply.response.status(), status, "{call} {name}: {value}");
        if status == 304 {
            assert_eq!(
                (reply.body, reply.response.headers()["etag"].to_str().unwrap()),
                (json!(""), &tag[..])
            );
        }
    }
}

#[tokio::test]
async fn tags_guard_changes_in_lists() {
    let api = Api::new();
    let call = "POST counters/a/increment";
    let tag = api.send(call, &[], "").await.header("etag").unwrap().to_owned();
    let list = format!("\"7-7\", {tag}");
    let changed = api.expect(call, &[("if-match", &list)], "", 200, json!({"value": 2})).await;
    api.expect(call, &[("if-match", &list)], "", 409, json!({"reason": "condition-unmet", "value": 2})).await;
    api.expect(call, &[("if-match", "W/\"1-1\"")], "", 409, json!({"reason": "condition-unmet"})).await;
    let now = changed.header("etag").unwrap();
    api.expect(call, &[("if-none-match", now)], "", 409, json!({"reason": "condition-unmet"})).await;
    api.expect(call, &[("if-none-match", &tag)], "", 200, json!({"value": 3})).await;
    api.expect("PUT counters/b", &[("if-none-match", &tag)], r#"{"value":5}"#, 200, json!({"value": 5}))
        .await;
    // A retry under an id must be the same request, which a choice among tags is not.
    let with_id = [("if-match", list.as_str()), ("idempotency-key", "i")];
    api.expect(call, &with_id, "", 400, json!({"reason": "malformed"})).await;
}

#[tokio::test]
async fn methods() {
    let api = Api::new();
    api.send("POST counters/a/increment", &[], "").await;
    for (path, allowed) in [
        ("counters", "GET,HEAD"),
        ("counters/a", "GET,HEAD,PUT,DELETE"),
        ("counters/a/increment", "POST"),
        ("counters/batch-get", "GET,HEAD,PUT,DELETE,POST"),
        ("policies/a", "GET,HEAD,PUT,DELETE"),
        ("/metrics", "GET,HEAD"),
    ] {
        for (method, status) in [("OPTIONS", 204), ("PATCH", 405), ("TRACE", 405), ("QUIPU", 405)] {
            let reply = api.send(&format!("{method} {path}"), &[], "").await;
            assert_eq!(reply.response.status(), status, "{method} {path}");
            assert_eq!(reply.header("allow"), Some(allowed), "{method} {path}");
        }
    }
    api.expect("OPTIONS nowhere", &[], "", 404, json!({})).await;
    let (get, head) = (api.send("GET counters/a", &[], "").await, api.send("HEAD counters/a", &[], "").await);
    assert_eq!((head.response.status().as_u16(), head.body.as_str()), (200, Some("")));
    let length = serde_json::to_vec(&get.body).unwrap().len().to_string();
    assert_eq!(head.header("content-length"), Some(&length[..]));
    assert_eq!(head.header("etag"), get.header("etag"));
}

#[tokio::test]
async fn types_of_content() {
    let api = Api::new();
    for (name, value, status, reason) in [
        ("content-type", "application/json; charset=utf-8", 200, json!(null)),
        ("content-type", "application/x-www-form-urlencoded", 200, json!(null)),
        ("content-type", "application/xml", 415, json!("unsupported-media-type")),
        ("content-encoding", "compress", 415, json!("unsupported-encoding")),
        ("accept", "text/html, */*;q=0.1", 200, json!(null)),
        ("accept", "text/html", 406, json!("not-acceptable")),
    ] {
        let call = "POST counters/a/increment";
        api.expect(call, &[(name, value)], "{}", status, json!({ "reason": reason })).await;
    }
    // Without a body its type says nothing.
    api.expect("POST counters/a/increment", &[("content-type", "text/plain")], "", 200, json!({})).await;
}

#[tokio::test]
async fn large_bodies_may_be_packed() {
    let api = Api::new();
    let items: Vec<String> = (0..500).map(|n| format!(r#"{{"key":"k{n:03}","delta":{n}}}"#)).collect();
    let body = format!(r#"{{"items":[{}]}}"#, items.join(","));
    let gzip = |plain: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(plain).unwrap();
        encoder.finish().unwrap()
    };
    let packed = gzip(body.as_bytes());
    let call = "POST counters/batch-increment";
    let reply = api.send_bytes(call, &[("content-encoding", "gzip")], packed.clone()).await;
    assert_eq!(reply.body["results"][499]["value"], json!(499), "{}", reply.body);
    assert_eq!((reply.header("content-encoding"), reply.header("vary")), (None, Some("accept-encoding")));
    for (broken, status) in [(packed[..100].to_vec(), 400), (gzip(&vec![b' '; 2 << 20]), 413)] {
        let reply = api.send_bytes(call, &[("content-encoding", "gzip")], broken).await;
        assert_eq!(reply.response.status(), status);
    }

    let large = api.send("GET counters?limit=500&order=key", &[("accept-encoding", "br, gzip")], "").await;
    assert_eq!(
        (large.header("content-encoding"), large.header("vary")),
        (Some("gzip"), Some("accept-encoding"))
    );
    let mut plain = String::new();
    MultiGzDecoder::new(&large.bytes[..]).read_to_string(&mut plain).unwrap();
    let plain: serde_json::Value = serde_json::from_str(&plain).unwrap();
    assert_eq!(plain["counters"][499]["counterKey"], json!("k499"));
    assert!(large.bytes.len() < 20_000, "{} bytes", large.bytes.len());
    let small = api.send("GET counters/k001", &[("accept-encoding", "gzip")], "").await;
    assert_eq!((small.header("content-encoding"), small.header("vary")), (None, None));
}

#[tokio::test]
async fn a_request_names_one_host() {
    let api = Api::new();
    api.expect("GET counters/a", &[("host", "a"), ("host", "b")], "", 400, json!({"reason": "malformed"}))
        .await;
}

/// Two are in flight and do not end; the third is told to come again, and so on until they end.
#[tokio::test(start_paused = true)]
async fn too_many_requests_in_flight() {
    let api = outages::never_settles();
    let call = |body| api.send("POST counters/a/increment", &[], body);
    let (first, second, third) = tokio::join!(call(""), call(""), async {
        tokio::task::yield_now().await;
        call("{}").await
    });
    assert_eq!((first.response.status().as_u16(), second.response.status().as_u16()), (504, 504));
    assert_eq!(third.response.status(), 503);
    assert_eq!((&third.body["reason"], &third.body["retryAfterMs"]), (&json!("busy"), &json!(1000)));
    assert_eq!(third.header("retry-after"), Some("1"));
    assert_eq!(call("").await.response.status(), 504);
}
