//! Uniques, windows, quotas, holds and adjustments over HTTP and from the command line, against the real binary: tables of calls and
//! replies, retries, kill -9 in between, clients that race, and a cluster.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use serde_json::{Value, json};
use support::cluster::{found, start_settled};
use support::{Response, Server};

/// Fields whose values are times, and the name of the request.
const VOLATILE: &[&str] = &[
    "updatedAt",
    "expiresAt",
    "resetMs",
    "retryAfterMs",
    "from",
    "to",
    "start",
    "end",
    "requestId",
    "holdId",
];

/// One call: method and path below `/api/v1/`, body, status, and the fields of the reply.
type Row = (&'static str, &'static str, u16, Value);

fn call(server: &Server, call: &str, id: Option<&str>, body: &str) -> Response {
    let (method, path) = call.split_once(' ').unwrap();
    let headers: Vec<(&str, &str)> = id.iter().map(|id| ("Idempotency-Key", *id)).collect();
    server.request(method, &format!("/api/v1/{path}"), &headers, body)
}

/// Makes the calls, and compares the fields that are named; of a reply that is no problem, there must be no others.
fn expect(server: &Server, rows: &[Row]) {
    for (line, body, status, expected) in rows {
        let reply = call(server, line, None, body);
        assert_eq!(reply.status, *status, "{line} {body}: {}", reply.body);
        check(&format!("{line} {body}"), &reply, expected);
    }
}

fn check(line: &str, reply: &Response, expected: &Value) {
    let mut found = reply.json();
    strip(&mut found);
    let kind = reply.header("content-type").unwrap();
    if reply.status == 200 {
        assert_eq!(kind, "application/json", "{line}");
        assert_eq!(&found, expected, "{line}");
        return;
    }
    assert_eq!(kind, "application/problem+json", "{line}");
    for (field, value) in expected.as_object().unwrap() {
        assert_eq!(&found[field], value, "{field} of {line}: {found}");
    }
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !VOLATILE.contains(&name.as_str()));
            fields.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// What a read says, without what differs from moment to moment.
fn counter(key: &str, kind: &str, value: i64, version: u64) -> Value {
    json!({"counterKey": key, "value": value, "version": version, "exists": true, "kind": kind, "mode": "strong",
        "exact": true, "stalenessMs": 0})
}

fn changed(key: &str, value: i64, version: u64, applied: i64) -> Value {
    let mut changed = counter(key, "sum", value, version);
    changed["accepted"] = json!(true);
    changed["existed"] = json!(version > 1);
    changed["applied"] = json!(applied);
    changed["duplicate"] = json!(false);
    changed
}

fn seen(key: &str, changed: bool, estimate: i64, version: u64) -> Value {
    json!({"counterKey": key, "changed": changed, "estimate": estimate, "exact": true, "version": version,
        "duplicate": false})
}

fn granted(key: &str, (used, limit): (i64, i64), value: i64, version: u64) -> Value {
    json!({"counterKey": key, "allowed": true, "limit": limit, "used": used, "remaining": (limit - used).max(0),
        "overLimit": used > limit, "value": value, "version": version, "duplicate": false})
}

/// What a list says that a counter counts, and whether it is more than a number.
fn listed(server: &Server, key: &str, order: &str) -> (String, bool) {
    let page = call(server, &format!("GET counters?prefix={key}{order}"), None, "").json();
    let counters = page["counters"].as_array().unwrap();
    let found = counters.iter().find(|counter| counter["counterKey"] == key).unwrap();
    (found["kind"].as_str().unwrap().to_owned(), found["hasBody"] == true)
}

fn uniques() -> Vec<Row> {
    let wrong = json!({"reason": "wrong-kind", "status": 409, "accepted": false});
    vec![
        ("POST counters/u/observe", r#"{"items":["u1","u2"]}"#, 200, seen("u", true, 2, 1)),
        ("POST counters/u/observe", r#"{"items":["u2","u1","u2"]}"#, 200, seen("u", false, 2, 1)),
        ("POST counters/u/observe", r#"{"items":["u2","u3",{"base64":"/w=="}]}"#, 200, seen("u", true, 4, 2)),
        ("GET counters/u", "", 200, counter("u", "unique", 4, 2)),
        ("POST counters/u/increment", "", 409, wrong.clone()),
        ("POST counters/u/decrement", "", 409, wrong.clone()),
        ("POST counters/u/adjust", r#"{"delta":1,"reason":"x"}"#, 409, wrong.clone()),
        ("POST counters/u/acquire", r#"{"limit":5}"#, 409, wrong.clone()),
        ("POST counters/u/reserve", r#"{"ttlMs":5}"#, 409, wrong.clone()),
        ("PUT counters/u", r#"{"value":1}"#, 409, wrong.clone()),
        ("GET counters/u/window", "", 409, wrong.clone()),
        ("POST counters/v/observe", r#"{"items":["u3","u9"]}"#, 200, seen("v", true, 2, 1)),
        ("POST counters/all/merge", r#"{"sources":["u","v","absent"]}"#, 200, seen("all", true, 5, 1)),
        ("POST counters/all/merge", r#"{"sources":["v","u"]}"#, 200, seen("all", false, 5, 1)),
        ("POST counters/plain/increment", "", 200, changed("plain", 1, 1, 1)),
        (
            "POST counters/all/merge",
            r#"{"sources":["u","plain"]}"#,
            409,
            json!({"reason": "wrong-kind", "counterKey": "plain",
                "detail": "the source plain is not a counter of uniques, nothing was merged"}),
        ),
        ("POST counters/plain/merge", r#"{"sources":["u"]}"#, 409, wrong.clone()),
        ("POST counters/plain/observe", r#"{"items":["a"]}"#, 409, wrong),
        ("GET counters/all", "", 200, counter("all", "unique", 5, 1)),
    ]
}

fn quotas() -> Vec<Row> {
    let refused = |limit: i64, used: i64| {
        json!({"reason": "over-quota", "status": 429, "title": "Too Many Requests", "allowed": false, "limit": limit,
            "used": used, "remaining": limit - used, "overLimit": false})
    };
    vec![
        (
            "POST counters/q/acquire",
            r#"{"amount":3,"limit":5,"window":"1h"}"#,
            200,
            granted("q", (3, 5), 3, 1),
        ),
        ("POST counters/q/acquire", r#"{"amount":3,"limit":5,"window":"1h"}"#, 429, refused(5, 3)),
        (
            "POST counters/q/acquire",
            r#"{"amount":2,"limit":5,"window":3600000}"#,
            200,
            granted("q", (5, 5), 5, 2),
        ),
        ("POST counters/q/acquire", r#"{"limit":5}"#, 429, refused(5, 5)),
        (
            "POST counters/q/acquire",
            r#"{"amount":4,"limit":5,"window":"1h","soft":true}"#,
            200,
            granted("q", (9, 5), 9, 3),
        ),
        // Another length of a sliding window, on the same buckets.
        ("POST counters/q/acquire", r#"{"limit":9,"window":"30m"}"#, 429, refused(9, 9)),
        ("POST counters/q/acquire", r#"{"limit":10,"window":"30m"}"#, 200, granted("q", (10, 10), 10, 4)),
        (
            "POST counters/q/acquire",
            r#"{"limit":99,"window":{"type":"fixed","spanMs":3600000}}"#,
            409,
            json!({"reason": "wrong-kind"}),
        ),
        ("POST counters/q/acquire", r#"{"window":"1h"}"#, 400, json!({"reason": "no-limit"})),
        ("GET counters/q", "", 200, counter("q", "window", 10, 4)),
        (
            "POST counters/nobody/acquire",
            r#"{"amount":9,"limit":5,"window":"1h"}"#,
            429,
            json!({"exists": false, "used": 0, "remaining": 5,
                "detail": "the limit 5 leaves room for 5, not for 9; nothing was counted; so much never fits"}),
        ),
        (
            "GET counters/nobody/window?last=15m",
            "",
            200,
            json!({"counterKey": "nobody", "exists": false, "kind": "sum", "sum": 0, "complete": true, "buckets": [], "stalenessMs": 0}),
        ),
        // Without a window, the value is what counts.
        ("POST counters/w/acquire", r#"{"amount":5,"limit":5}"#, 200, granted("w", (5, 5), 5, 1)),
        ("POST counters/w/acquire", r#"{"limit":5}"#, 429, refused(5, 5)),
        ("GET counters/w/window", "", 409, json!({"reason": "wrong-kind"})),
        ("POST counters/w/acquire", r#"{"limit":9,"window":"1h"}"#, 409, json!({"reason": "wrong-kind"})),
        (
            "POST acquire",
            r#"{"items":[{"key":"{m}1","limit":1,"window":"1h"},{"key":"{m}2","amount":2,"limit":9,"window":"1d"}]}"#,
            200,
            json!({"allowed": true, "results": [granted("{m}1", (1, 1), 1, 1), granted("{m}2", (2, 9), 2, 1)]}),
        ),
        (
            "POST acquire",
            r#"{"items":[{"key":"{m}2","limit":9,"window":"1d"},{"key":"{m}1","limit":1,"window":"2h"}]}"#,
            429,
            json!({"reason": "over-quota", "item": 1, "counterKey": "{m}1", "limit": 1, "used": 1, "remaining": 0,
                "allowed": false, "kind": "window", "detail": "items[1]: the limit 1 leaves room for 0, not for 1; nothing was counted"}),
        ),
        ("GET counters/%7Bm%7D2", "", 200, counter("{m}2", "window", 2, 1)),
        // What a policy says, calls need not.
        ("PUT policies/p:*", r#"{"kind":"window","window":{"spanMs":3600000},"limit":2}"#, 201, json!({})),
        ("POST counters/p:1/acquire", "", 200, granted("p:1", (1, 2), 1, 1)),
        ("POST counters/p:1/acquire", "{}", 200, granted("p:1", (2, 2), 2, 2)),
        ("POST counters/p:1/acquire", "", 429, refused(2, 2)),
        ("GET counters/p:1", "", 200, counter("p:1", "window", 2, 2)),
    ]
}

#[test]
fn uniques_are_counted_once() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    expect(&server, &uniques());
    // So many that they are estimated.
    let items: Vec<String> = (0..3_000).map(|number| format!("item-{number}")).collect();
    let reply =
        call(&server, "POST counters/many/observe", None, &json!({ "items": items }).to_string()).json();
    let estimate = reply["estimate"].as_i64().unwrap();
    assert!((2_900..3_100).contains(&estimate) && reply["exact"] == false, "{reply}");
    assert_eq!(reply["standardError"], json!(0.008125));
    let read = call(&server, "GET counters/many", None, "").json();
    assert_eq!(
        (&read["value"], &read["exact"], &read["kind"]),
        (&json!(estimate), &json!(false), &json!("unique"))
    );
    assert_eq!(read["standardError"], json!(0.008125));
    // Lists say it too, also of what is on disk alone.
    let page =
        |server: &Server| call(server, "GET counters?prefix=many", None, "").json()["counters"][0].clone();
    let (mut expected, now) = (read.clone(), page(&server));
    expected["hasBody"] = json!(true);
    assert_eq!(now, expected);
    assert_eq!(
        (listed(&server, "plain", ""), listed(&server, "u", "&order=value")),
        (("sum".into(), false), ("unique".into(), true))
    );
    assert!(server.terminate().0.success());
    let server = Server::start(data.path());
    assert_eq!(page(&server), expected);
    let too_many = json!({ "items": vec!["x"; 10_001] }).to_string();
    let refused = call(&server, "POST counters/many/observe", None, &too_many);
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["detail"], json!("`items`: must have 1 to 10000 entries, not 10001"));
}

#[test]
fn limits_hold_and_replies_say_what_is_left() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    for row in quotas() {
        match row.2 {
            201 => assert_eq!(call(&server, row.0, None, row.1).status, 201),
            _ => expect(&server, &[row]),
        }
    }
    let window = call(&server, "GET counters/q/window?last=1h", None, "").json();
    assert_eq!(
        (&window["sum"], &window["kind"], &window["exists"]),
        (&json!(10), &json!("window"), &json!(true))
    );
    let buckets = window["buckets"].as_array().unwrap();
    assert_eq!(buckets.iter().map(|bucket| bucket["sum"].as_i64().unwrap()).sum::<i64>(), 10);
    for bucket in buckets {
        let at = |field: &str| bucket[field].as_str().unwrap().parse::<Timestamp>().unwrap().as_millisecond();
        assert_eq!(at("end") - at("start"), 60_000);
    }
    let past = call(&server, "GET counters/q/window?from=0&to=2026-01-01T00:00:00Z", None, "").json();
    assert_eq!((&past["sum"], &past["buckets"]), (&json!(0), &json!([])));

    // What is left stands in headers too.
    let body = r#"{"limit":20,"window":"1h"}"#;
    let reply = call(&server, "POST counters/q/acquire", None, body);
    assert_eq!(reply.header("ratelimit-policy"), Some("\"default\";q=20;w=3600"));
    let reset_ms = reply.json()["resetMs"].as_u64().unwrap();
    assert!((1..=3_660_000).contains(&reset_ms));
    let reset = reset_ms.div_ceil(1000).to_string();
    assert_eq!(reply.header("ratelimit"), Some(format!("\"default\";r=9;t={reset}").as_str()));
    let headers =
        ["limit", "remaining", "reset"].map(|name| reply.header(&format!("ratelimit-{name}")).unwrap());
    assert_eq!(headers, ["20", "9", reset.as_str()]);
    assert_eq!(reply.header("retry-after"), None);
    let refused = call(&server, "POST counters/q/acquire", None, r#"{"limit":11,"window":"1h"}"#);
    assert_eq!(refused.status, 429);
    let problem = refused.json();
    assert_eq!(problem["retryAfterMs"], problem["resetMs"]);
    let seconds = problem["resetMs"].as_u64().unwrap().div_ceil(1000).to_string();
    assert_eq!(refused.header("retry-after"), Some(seconds.as_str()));
    assert_eq!(refused.header("ratelimit-remaining"), Some("0"));
    // The window is the counter's own where the call names none, and the current one of a calendar.
    let reply = call(&server, "POST counters/q/acquire", None, r#"{"limit":20}"#);
    assert_eq!(reply.header("ratelimit-policy"), Some("\"default\";q=20;w=3600"));
    let day = r#"{"kind":"window","window":{"type":"calendar","unit":"day"},"limit":5}"#;
    assert_eq!(call(&server, "PUT policies/by-day", None, day).status, 201);
    let reply = call(&server, "POST counters/by-day/acquire", None, "");
    assert_eq!(reply.header("ratelimit-policy"), Some("\"default\";q=5;w=86400"));
    // Nothing comes back by itself where there is no window.
    let never = call(&server, "POST counters/w/acquire", None, r#"{"limit":5}"#);
    assert_eq!((never.status, never.header("retry-after")), (429, None));
    assert_eq!(never.header("ratelimit"), Some("\"default\";r=0"));
}

#[test]
fn uniques_by_time() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let policy = r#"{"kind":"unique","window":{"type":"sliding","spanMs":604800000,"bucketMs":86400000}}"#;
    assert_eq!(call(&server, "PUT policies/week:*", None, policy).status, 201);
    let empty = call(&server, "GET counters/week:1/window", None, "").json();
    assert_eq!(
        (&empty["kind"], &empty["estimate"], &empty["exists"]),
        (&json!("unique"), &json!(0), &json!(false))
    );
    assert_eq!(call(&server, "POST counters/week:1/observe", None, r#"{"items":["a","b"]}"#).status, 200);
    assert_eq!(call(&server, "POST counters/week:1/observe", None, r#"{"items":["b","c"]}"#).status, 200);
    let window = call(&server, "GET counters/week:1/window?last=7d", None, "").json();
    assert_eq!(
        (&window["estimate"], &window["exact"], &window["kind"]),
        (&json!(3), &json!(true), &json!("unique"))
    );
    assert_eq!(window["sum"], Value::Null);
    assert!(!window["buckets"].as_array().unwrap().is_empty());
    let read = call(&server, "GET counters/week:1", None, "").json();
    assert_eq!((&read["value"], &read["kind"], &read["exact"]), (&json!(3), &json!("unique"), &json!(true)));
    // It fades without being changed, so nobody may think to know it.
    let tag = call(&server, "GET counters/week:1", None, "").header("etag").unwrap().to_owned();
    let known = [("If-None-Match", tag.as_str())];
    assert_eq!(server.request("GET", "/api/v1/counters/week:1", &known, "").status, 200);
    // What others merge of it is what it shows.
    let merged = call(&server, "POST counters/merged/merge", None, r#"{"sources":["week:1"]}"#).json();
    assert_eq!(merged["estimate"], json!(3));
}

/// Sets aside and returns the name of the hold.
fn hold(server: &Server, key: &str, body: &str, expected: Value) -> String {
    let reply = call(server, &format!("POST counters/{key}/reserve"), None, body);
    assert_eq!(reply.status, 200, "{reply:?}");
    check(key, &reply, &expected);
    reply.json()["holdId"].as_str().unwrap().to_owned()
}

#[test]
fn holds_end_once() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let held = |amount: i64, value: i64, version: u64| json!({"counterKey": "stock", "amount": amount, "value": value, "version": version, "duplicate": false});
    let one = hold(&server, "stock", r#"{"amount":3,"ttlMs":600000,"max":10}"#, held(3, 0, 1));
    let mut read = counter("stock", "sum", 0, 1);
    (read["held"], read["holds"]) = (json!(3), json!(1));
    let above = json!({"reason": "above-ceiling", "value": 0});
    expect(
        &server,
        &[
            ("POST counters/stock/reserve", r#"{"amount":8,"ttlMs":600000,"max":10}"#, 409, above.clone()),
            ("POST counters/stock/increment", r#"{"delta":8,"max":10}"#, 409, above),
            ("GET counters/stock", "", 200, read),
        ],
    );
    let end = |hold: &str, verb: &str, body: &str, status: u16, fields: Value| {
        let reply = call(&server, &format!("POST holds/{hold}/{verb}"), None, body);
        assert_eq!(reply.status, status, "{verb} {body}: {reply:?}");
        for (field, value) in fields.as_object().unwrap() {
            assert_eq!(&reply.json()[field], value, "{field} of {verb} {body}: {}", reply.body);
        }
        reply
    };
    end(&one, "commit", r#"{"amount":4}"#, 409, json!({"reason": "beyond-hold", "value": 0}));
    end(&one, "commit", r#"{"amount":-1}"#, 409, json!({"reason": "beyond-hold"}));
    end(
        &one,
        "commit",
        r#"{"amount":2}"#,
        200,
        json!({"value": 2, "applied": 2, "duplicate": false, "holdId": one}),
    );
    let again =
        end(&one, "commit", r#"{"amount":2}"#, 200, json!({"value": 2, "applied": 2, "duplicate": true}));
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    end(&one, "void", "", 409, json!({"reason": "hold-ended", "accepted": false}));
    end(&one, "commit", "", 409, json!({"reason": "hold-ended"}));
    let two = hold(&server, "stock", r#"{"amount":8,"ttlMs":600000,"max":10}"#, held(8, 2, 3));
    end(&two, "void", "", 200, json!({"value": 2, "applied": 0, "duplicate": false}));
    end(&two, "void", "{}", 200, json!({"value": 2, "applied": 0, "duplicate": true}));
    end(&two, "commit", "", 409, json!({"reason": "hold-ended"}));
    expect(&server, &[("GET counters/stock", "", 200, counter("stock", "sum", 2, 4))]);
    for id in ["x", "AQ", "%ff", &format!("{two}="), &"A".repeat(4000)] {
        end(id, "commit", "", 404, json!({"reason": "no-such-hold"}));
    }
    // For a decrement.
    expect(&server, &[("PUT counters/left", r#"{"value":5}"#, 200, changed("left", 5, 1, 5))]);
    let three =
        call(&server, "POST counters/left/reserve", None, r#"{"amount":-3,"ttlMs":600000,"min":0}"#).json();
    end(
        three["holdId"].as_str().unwrap(),
        "commit",
        r#"{"amount":1}"#,
        409,
        json!({"reason": "beyond-hold"}),
    );
    expect(
        &server,
        &[("POST counters/left/decrement", r#"{"delta":3,"min":0}"#, 409, json!({"reason": "below-floor"}))],
    );
    end(three["holdId"].as_str().unwrap(), "commit", "", 200, json!({"value": 2, "applied": -3}));
    // A counter of the same name that came later has none of the holds.
    let four = hold(
        &server,
        "again",
        r#"{"ttlMs":600000}"#,
        json!({"counterKey": "again", "amount": 1, "value": 0, "version": 1, "duplicate": false}),
    );
    assert_eq!(call(&server, "DELETE counters/again", None, "").status, 200);
    assert_eq!(call(&server, "POST counters/again/increment", None, "").status, 200);
    end(&four, "commit", "", 404, json!({"reason": "no-such-hold"}));
}

#[test]
fn retries_are_told_the_first_outcome() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    call(&server, "POST counters/from/observe", None, r#"{"items":["a","b"]}"#);
    let calls = [
        ("POST counters/into/merge", r#"{"sources":["from","absent"]}"#, r#"{"sources":["from"]}"#),
        ("POST counters/u/observe", r#"{"items":["a"]}"#, r#"{"items":["b"]}"#),
        ("POST counters/q/acquire", r#"{"limit":5,"window":"1h"}"#, r#"{"limit":6,"window":"1h"}"#),
        ("POST counters/h/reserve", r#"{"amount":3,"ttlMs":600000}"#, r#"{"amount":4,"ttlMs":600000}"#),
        ("POST counters/a/adjust", r#"{"delta":-120,"reason":"x"}"#, r#"{"delta":-121,"reason":"x"}"#),
        (
            "POST acquire",
            r#"{"items":[{"key":"m","limit":5,"window":"1h"}]}"#,
            r#"{"items":[{"key":"m","limit":6,"window":"1h"}]}"#,
        ),
    ];
    let first: Vec<Value> =
        calls.iter().map(|(line, body, _)| call(&server, line, Some("id-1"), body).json()).collect();
    let again = |server: &Server| {
        for ((line, body, other), first) in calls.iter().zip(&first) {
            let reply = call(server, line, Some("id-1"), body);
            assert_eq!(reply.status, 200, "{line}: {reply:?}");
            assert_eq!(reply.header("idempotent-replayed"), Some("true"), "{line}");
            let (mut expected, mut found) = (first.clone(), reply.json());
            for value in [&mut expected, &mut found] {
                let value = match value.get_mut("results") {
                    Some(results) => &mut results[0],
                    None => value,
                };
                value["duplicate"] = json!(true);
                // These are said as of now.
                value
                    .as_object_mut()
                    .unwrap()
                    .retain(|name, _| !["resetMs", "updatedAt"].contains(&name.as_str()));
            }
            assert_eq!(found, expected, "{line}");
            assert_eq!(call(server, line, Some("id-1"), other).status, 422, "{line}");
        }
    };
    again(&server);
    // A source has seen more, or is another counter by now.
    call(&server, "POST counters/from/observe", None, r#"{"items":["c"]}"#);
    again(&server);
    call(&server, "DELETE counters/from", None, "");
    call(&server, "POST counters/from/increment", None, "");
    again(&server);
    let merge = |id| call(&server, "POST counters/into/merge", id, r#"{"sources":["absent","from"]}"#).status;
    assert_eq!([merge(Some("id-1")), merge(Some("id-2")), merge(None)], [200, 409, 409]);
    server.kill();
    again(&Server::start(data.path()));
}

#[test]
fn a_crash_changes_nothing() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    expect(&server, &uniques());
    for row in quotas() {
        assert_eq!(call(&server, row.0, None, row.1).status, row.2);
    }
    let kept =
        call(&server, "POST counters/stock/reserve", None, r#"{"amount":3,"ttlMs":3600000,"max":10}"#).json();
    let short =
        call(&server, "POST counters/stock/reserve", None, r#"{"amount":7,"ttlMs":300,"max":10}"#).json();
    let adjusted =
        call(&server, "POST counters/balance/adjust", None, r#"{"delta":-120,"reason":"reconcile-fix"}"#);
    let mut expected = changed("balance", -120, 1, -120);
    expected["reason"] = json!("reconcile-fix");
    check("adjust", &adjusted, &expected);
    let reads = ["u", "v", "all", "plain", "q", "w", "%7Bm%7D1", "%7Bm%7D2", "p:1", "balance"];
    let all = |server: &Server| -> Vec<Value> {
        let mut replies: Vec<Value> =
            reads.iter().map(|key| call(server, &format!("GET counters/{key}"), None, "").json()).collect();
        replies.push(call(server, "GET counters/q/window?from=0", None, "").json());
        replies.iter_mut().for_each(|reply| drop(reply.as_object_mut().unwrap().remove("to")));
        replies
    };
    let before = all(&server);
    server.kill();
    // One of the holds ends while nobody is there.
    let expires_at =
        short["expiresAt"].as_str().unwrap().parse::<Timestamp>().unwrap().as_millisecond() as u64;
    while now_ms() <= expires_at {
        std::thread::yield_now();
    }
    let server = Server::start(data.path());
    assert_eq!(all(&server), before);
    let stock = call(&server, "GET counters/stock", None, "").json();
    assert_eq!((&stock["held"], &stock["holds"], &stock["value"]), (&json!(3), &json!(1), &json!(0)));
    let late = call(&server, &format!("POST holds/{}/commit", short["holdId"].as_str().unwrap()), None, "");
    assert_eq!((late.status, &late.json()["reason"]), (409, &json!("hold-ended")));
    assert_eq!(
        call(&server, "POST counters/stock/reserve", None, r#"{"amount":7,"ttlMs":60000,"max":10}"#).status,
        200
    );
    let committed =
        call(&server, &format!("POST holds/{}/commit", kept["holdId"].as_str().unwrap()), None, "").json();
    assert_eq!((&committed["value"], &committed["applied"]), (&json!(3), &json!(3)));
    assert_eq!(call(&server, "POST counters/p:1/acquire", None, "").status, 429);
    // And a clean stop keeps it too; the log says who was adjusted, and why.
    let before = all(&server);
    server.terminate();
    let server = Server::start(data.path());
    assert_eq!(all(&server), before);
    assert_eq!(
        call(&server, "POST counters/balance/adjust", None, r#"{"delta":1,"reason":"the-reason"}"#).status,
        200
    );
    let (_, log) = server.terminate();
    assert!(log.iter().any(|line| line.contains("balance") && line.contains("the-reason")), "{log:?}");
}

#[test]
fn what_is_wrong_is_refused_by_name() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    for (line, body, named) in [
        ("POST counters/a/observe", "", "the body is empty"),
        ("POST counters/a/observe", r#"{"items":[]}"#, "`items`: must have 1 to 10000 entries, not 0"),
        ("POST counters/a/observe", r#"{"items":[7]}"#, "`items[0]`: "),
        ("POST counters/a/observe", r#"{"item":["a"]}"#, "unknown field `item`"),
        ("POST counters/a/observe?x=1", r#"{"items":["a"]}"#, "takes no query parameters"),
        ("POST counters/a/merge", r#"{"sources":[]}"#, "`sources`: must have 1 to 1000 entries"),
        ("POST counters/a/acquire", r#"{"limit":-1}"#, "`limit`: must not be negative"),
        ("POST counters/a/acquire", r#"{"amount":-1,"limit":1}"#, "`amount`: must not be negative"),
        ("POST counters/a/acquire", r#"{"limit":1,"window":"1 hour"}"#, "`window`: "),
        ("POST counters/a/acquire", "", "no limit: give one, or store it in a policy"),
        ("POST acquire", r#"{"items":[]}"#, "`items`: must have 1 to 100 entries, not 0"),
        ("POST acquire", r#"{"items":[{"limit":1}]}"#, "items[0]: `key`: is missing"),
        ("POST counters/a/reserve", r#"{"amount":1}"#, "missing field `ttlMs`"),
        ("POST counters/a/reserve", r#"{"amount":1,"ttlMs":2592000001}"#, "`ttlMs`: must be 1 to 2592000000"),
        ("POST counters/a/reserve", r#"{"amount":0,"ttlMs":5}"#, "`amount`: must not be 0"),
        ("POST counters/a/adjust", r#"{"delta":1}"#, "missing field `reason`"),
        ("POST counters/a/adjust", r#"{"delta":1,"reason":""}"#, "`reason`: must have 1 to 512 bytes, not 0"),
        ("GET counters/a/window?last=1", "", "the query parameter last must be a duration like"),
        ("GET counters/a/window?last=1h&from=0", "", "the query parameter last excludes from and to"),
        ("GET counters/a/window?from=5&to=5", "", "to must be later than from"),
        ("PUT policies/x", r#"{"kind":"window","window":["fixed",5]}"#, "or an object with a `type`"),
        ("PUT policies/x", r#"{"window":{"spanMs":5}}"#, "`window`: is for `kind` window or unique"),
    ] {
        let reply = call(&server, line, None, body);
        assert_eq!(reply.status, 400, "{line} {body}: {}", reply.body);
        assert!(reply.json()["detail"].as_str().unwrap().contains(named), "{line} {body}: {}", reply.body);
    }
    let conditional =
        server.request("POST", "/api/v1/counters/a/acquire", &[("If-Match", "*")], r#"{"limit":1}"#);
    assert_eq!(conditional.status, 400, "{conditional:?}");
    assert_eq!(call(&server, "GET counters/a", None, "").json()["exists"], json!(false));
}

/// So many acquires over one connection, some at a time; how many were admitted.
fn race(address: SocketAddr, attempts: usize) -> usize {
    const AT_A_TIME: usize = 50;
    let body = r#"{"limit":10000,"window":"1h"}"#;
    let request = format!(
        "POST /api/v1/counters/race/acquire HTTP/1.1\r\nHost: quipu\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).unwrap();
    let mut replies = BufReader::new(stream.try_clone().unwrap());
    let mut admitted = 0;
    for _ in 0..attempts / AT_A_TIME {
        stream.write_all(request.repeat(AT_A_TIME).as_bytes()).unwrap();
        for _ in 0..AT_A_TIME {
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert!(replies.read_line(&mut head).unwrap() > 0, "{head}");
            }
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            replies.read_exact(&mut body).unwrap();
            match head.split(' ').nth(1) {
                Some("200") => admitted += 1,
                Some("429") => {}
                _ => panic!("{head}{}", String::from_utf8_lossy(&body)),
            }
        }
    }
    admitted
}

/// The same over RESP, on another counter.
fn race_in_pipelines(address: SocketAddr, attempts: usize) -> usize {
    const AT_A_TIME: usize = 500;
    let mut stream = TcpStream::connect(address).unwrap();
    let mut replies = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut admitted = 0;
    for _ in 0..attempts / AT_A_TIME {
        stream.write_all("Q.ACQUIRE run 1 50000 3600000\r\n".repeat(AT_A_TIME).as_bytes()).unwrap();
        for _ in 0..AT_A_TIME {
            // Whether it was admitted, what is left, and when more is free.
            let reply: Vec<String> = replies.by_ref().take(4).map(Result::unwrap).collect();
            match [&*reply[0], &*reply[1]] {
                ["*3", ":1"] => admitted += 1,
                ["*3", ":0"] => {}
                _ => panic!("{reply:?}"),
            }
        }
    }
    admitted
}

#[test]
fn a_limit_admits_exactly_what_it_says() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start_with(data.path(), &["--durability", "interval:100"]);
    type Race = fn(SocketAddr, usize) -> usize;
    for (race, address, key, limit) in
        [(race as Race, server.http, "race", 10_000), (race_in_pipelines, server.resp, "run", 50_000)]
    {
        let racers: Vec<_> = (0..2).map(|_| std::thread::spawn(move || race(address, limit))).collect();
        let admitted: usize = racers.into_iter().map(|racer| racer.join().unwrap()).sum();
        assert_eq!(admitted, limit, "{key}");
        let read = call(&server, &format!("GET counters/{key}/window?last=1h"), None, "").json();
        assert_eq!(read["sum"], json!(limit), "{key}");
    }
}

#[test]
fn a_cluster_counts_them_at_every_node() {
    let folder = tempfile::tempdir().unwrap();
    let servers = start_settled(&found(folder.path(), 3));
    // Each call goes to the next node: no counter is led by all three.
    let mut turn = 0;
    let mut rows = uniques();
    rows.extend(quotas());
    for (line, body, status, expected) in rows {
        turn += 1;
        let reply = call(&servers[turn % 3], line, None, body);
        assert_eq!(reply.status, status, "{line} {body}: {}", reply.body);
        if status != 201 {
            check(line, &reply, &expected);
        }
    }
    for (number, server) in servers.iter().enumerate() {
        let read = call(server, "GET counters/u", None, "").json();
        assert_eq!((&read["kind"], &read["value"]), (&json!("unique"), &json!(4)));
        let window = call(server, "GET counters/q/window", None, "").json();
        assert_eq!(window["sum"], json!(10));
        for order in ["", "&order=key", "&order=value"] {
            let kinds = [("u", "unique", true), ("q", "window", true), ("plain", "sum", false)];
            assert_eq!(
                kinds.map(|(key, ..)| listed(server, key, order)),
                kinds.map(|(_, kind, more)| (kind.into(), more))
            );
        }
        // Held at one node, known at the next, ended at the one after.
        let key = format!("stock:{number}");
        let [next, after] = [1, 2].map(|step| &servers[(number + step) % 3]);
        let held = call(
            server,
            &format!("POST counters/{key}/reserve"),
            None,
            r#"{"amount":3,"ttlMs":600000,"max":3}"#,
        )
        .json();
        assert_eq!(call(next, &format!("GET counters/{key}"), None, "").json()["held"], json!(3));
        assert_eq!(call(next, &format!("POST counters/{key}/increment"), None, r#"{"max":3}"#).status, 409);
        let commit = format!("POST holds/{}/commit", held["holdId"].as_str().unwrap());
        let ended = call(after, &commit, None, r#"{"amount":2}"#).json();
        assert_eq!((&ended["value"], &ended["duplicate"]), (&json!(2), &json!(false)));
        let again = call(server, &commit, None, r#"{"amount":2}"#).json();
        assert_eq!((&again["value"], &again["duplicate"]), (&json!(2), &json!(true)));
    }
    let apart = r#"{"items":[{"key":"a","limit":1,"window":"1m"},{"key":"b","limit":1,"window":"1m"}]}"#;
    let refused = call(&servers[0], "POST acquire", None, apart);
    assert_eq!((refused.status, &refused.json()["reason"]), (400, &json!("cross-slot")), "{refused:?}");
}

#[test]
fn the_command_line_knows_them_too() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let run = |line: &str, code: i32, expected: &str| {
        let output = server.client(&line.split(' ').collect::<Vec<_>>());
        let (told, error) =
            (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert_eq!(output.status.code(), Some(code), "{line}: {told}{error}");
        let found = if code == 0 { told.trim_end() } else { error.trim_end() };
        assert!(found == expected || (code != 0 && found.contains(expected)), "{line}: {found:?}");
        told.trim_end().to_owned()
    };
    run("observe visitors u1 u2", 0, "2");
    run("observe visitors u2 u3 --id o-1", 0, "3");
    run("observe others u3 u4 --quiet", 0, "");
    run("merge all visitors others none", 0, "4");
    run("incr visitors", 3, "the counter counts something else");
    run("acquire calls --limit 2 --window 1h", 0, "1");
    run("acquire calls --limit 2 --window 1h", 0, "0");
    run(
        "acquire calls --limit 2 --window 1h",
        15,
        "the limit 2 leaves room for 0, not for 1; nothing was counted",
    );
    run("acquire calls --limit 2 --window 1h --amount 3 --soft", 0, "0");
    run("window calls", 0, "5");
    run("window calls --last 15m", 0, "5");
    run("window visitors", 3, "does not count by time");
    run("window calls --last 1", 2, "a duration like");
    run("adjust balance -120 --reason why", 0, "-120");
    let noted = |line: &str| {
        let output = server.client(&line.split(' ').collect::<Vec<_>>());
        assert!(output.status.success() && output.stdout.is_empty(), "{line}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let told = noted("history balance --at 2026-01-01T00:00:00Z");
    assert!(told.contains("nothing is known of that time") && told.contains("--history-minutes"), "{told}");
    assert!(noted("history nobody --at 2026-01-01T00:00:00Z").contains("there is no such counter"));
    run("adjust balance -120", 2, "--reason");
    let json: Value =
        serde_json::from_str(&server_json(&server, "hold stock 3 --ttl 10m --max 10 --json")).unwrap();
    run("hold stock 8 --ttl 10m --max 10", 3, "above the ceiling");
    let id = json["holdId"].as_str().unwrap();
    run(&format!("hold commit {id} 4"), 3, "more than the hold has set aside");
    run(&format!("hold commit {id} 2"), 0, "2");
    run(&format!("hold void {id}"), 4, "the hold was committed, voided or has expired");
    run("hold commit nonsense", 4, "there is no such hold");
    run("hold stock 3", 2, "--ttl");
    run(
        "policy set p:* --window 1h --bucket 1m --limit 1 --soft",
        0,
        "p:*  kind window  window sliding 1h in 1m  keep 2h  limit 1  soft",
    );
    run(
        "policy set d:* --kind unique --calendar day --zone Europe/Berlin --keep 30d",
        0,
        "d:*  kind unique  window day Europe/Berlin  keep 30d",
    );
    run(
        "policy set m:* --calendar month --anchor 15",
        0,
        "m:*  kind window  window month from 15 UTC  keep 64d",
    );
    run("policy get p:*", 0, "p:*  kind window  window sliding 1h in 1m  keep 2h  limit 1  soft");
    run("policy set q:* --zone Europe/Berlin", 2, "--calendar");
    run("acquire p:1", 0, "0");
    run("acquire p:1", 0, "0");
    // Items from a pipe, more than one call takes.
    let mut command = server.client_command(&["observe", "piped", "-", "--json"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines: String = (0..10_100).map(|number| format!("item-{}\n", number % 200)).collect();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let last: Value =
        serde_json::from_slice(output.stdout.split(|byte| *byte == b'\n').nth(1).unwrap()).unwrap();
    assert_eq!((&last["estimate"], &last["changed"]), (&json!(200), &json!(false)));
}

fn server_json(server: &Server, line: &str) -> String {
    let output = server.client(&line.split(' ').collect::<Vec<_>>());
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
