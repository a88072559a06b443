//! What happened before it is counted, over HTTP, RESP and from the command line, against the real binary.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod support;

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use serde_json::{Value, json};
use support::Server;
use support::cluster::{ask, found, start_settled};

const HOUR_MS: u64 = 3_600_000;

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn post(server: &Server, path: &str, body: Value) -> (u16, Value) {
    let reply = server.request("POST", &format!("/api/v1/counters/{path}"), &[], &body.to_string());
    (reply.status, reply.json())
}

fn put_policy(server: &Server, pattern: &str, body: Value) {
    let reply = server.request("PUT", &format!("/api/v1/policies/{pattern}"), &[], &body.to_string());
    assert_eq!(reply.status, 201, "{reply:?}");
}

/// The hours in which something was counted, by how long ago they began, and how much.
fn hours(server: &Server, key: &str, now_ms: u64) -> Vec<(u64, i64)> {
    let reply = server.request("GET", &format!("/api/v1/counters/{key}/window?from=0"), &[], "").json();
    let this_hour_ms = now_ms / HOUR_MS * HOUR_MS;
    let bucket = |bucket: &Value| {
        let start: Timestamp = bucket["start"].as_str().unwrap().parse().unwrap();
        ((this_hour_ms - start.as_millisecond() as u64) / HOUR_MS, bucket["sum"].as_i64().unwrap())
    };
    reply["buckets"].as_array().unwrap().iter().map(bucket).collect()
}

/// A time this long before the hour that it is now, so that it stays the same for a while.
fn hours_ago(hours: u64, now_ms: u64) -> u64 {
    now_ms / HOUR_MS * HOUR_MS - hours * HOUR_MS
}

fn by_the_hour() -> Value {
    json!({"kind": "window", "window": {"spanMs": 24 * HOUR_MS, "bucketMs": HOUR_MS, "keepMs": 48 * HOUR_MS}})
}

#[test]
fn what_is_late_counts_for_its_time() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    put_policy(&server, "*", by_the_hour());
    let now_ms = now_ms();
    let text = Timestamp::from_millisecond(hours_ago(3, now_ms) as i64).unwrap().to_string();
    let (status, counted) = post(&server, "views/increment", json!({"delta": 5, "at": text}));
    assert_eq!((status, &counted["value"]), (200, &json!(5)), "{counted}");
    let (status, counted) = post(&server, "views/decrement", json!({"delta": 2, "at": hours_ago(3, now_ms)}));
    assert_eq!((status, &counted["value"]), (200, &json!(3)), "{counted}");
    let items = json!({"items": [{"key": "views", "delta": 7, "at": hours_ago(40, now_ms)}, {"key": "views", "delta": 1}]});
    let (status, counted) = post(&server, "batch-increment", items);
    assert_eq!((status, &counted["results"][1]["value"]), (200, &json!(11)), "{counted}");
    let reply = ask(server.resp, &format!("Q.ADD views 4 AT {} ID once", hours_ago(40, now_ms))).unwrap();
    assert_eq!(reply, ["*4", ":15", ":4", ":5", ":0"]);
    // The same again is the same; for another time it is another request.
    let reply = ask(server.resp, &format!("Q.ADD views 4 AT {} ID once", hours_ago(40, now_ms))).unwrap();
    assert_eq!(reply, ["*4", ":15", ":4", ":5", ":1"]);
    let reply = ask(server.resp, &format!("Q.ADD views 4 AT {} ID once", hours_ago(41, now_ms))).unwrap();
    assert!(reply[0].starts_with("-IDREUSED "), "{reply:?}");
    let at = hours_ago(1, now_ms).to_string();
    let told = server.client(&["add", "views", "10", "--at", &at]);
    assert_eq!(String::from_utf8_lossy(&told.stdout), "25\n", "{told:?}");
    let expected = [(40, 11), (3, 3), (1, 10), (0, 1)];
    assert_eq!(hours(&server, "views", now_ms), expected);
    // Nothing of it is lost in a crash.
    server.kill();
    let server = Server::start(data.path());
    assert_eq!(hours(&server, "views", now_ms), expected);
}

#[test]
fn what_is_too_late_is_refused_with_the_bound() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let mut policy = by_the_hour();
    policy["lateness"] = json!("6h");
    put_policy(&server, "views", policy);
    let stored = server.request("GET", "/api/v1/policies/views", &[], "").json();
    assert_eq!(stored["lateness"], 6 * HOUR_MS);
    let now_ms = now_ms();
    for at in [hours_ago(7, now_ms), now_ms + HOUR_MS] {
        let (status, refused) = post(&server, "views/increment", json!({"at": at}));
        assert_eq!((status, &refused["reason"]), (409, &json!("out-of-time")), "{refused}");
        let time_ms = |field: &str| {
            let time: Timestamp = refused[field].as_str().unwrap().parse().unwrap();
            time.as_millisecond() as u64
        };
        assert_eq!(time_ms("latest") - time_ms("earliest"), 6 * HOUR_MS + 60_000);
        assert!(
            refused["detail"].as_str().unwrap().contains(refused["earliest"].as_str().unwrap()),
            "{refused}"
        );
        let reply = ask(server.resp, &format!("Q.ADD views 1 AT {at}")).unwrap();
        assert!(reply[0].starts_with("-TIME it happened too long ago"), "{reply:?}");
        assert!(reply[0].contains("; times from 2"), "{reply:?}");
        let told = server.client(&["incr", "views", "--at", &at.to_string()]);
        assert_eq!(told.status.code(), Some(3), "{told:?}");
        assert!(String::from_utf8_lossy(&told.stderr).contains("; times from 2"), "{told:?}");
        let items = json!({"items": [{"key": "views"}, {"key": "views", "at": at}], "atomic": true});
        let (status, refused) = post(&server, "batch-increment", items);
        assert_eq!(status, 409);
        let detail = refused["detail"].as_str().unwrap();
        assert!(detail.starts_with("items[1]: ") && detail.contains("; times from 2"), "{refused}");
    }
    // Who does not count by time says so.
    let (status, refused) = post(&server, "likes/increment", json!({"at": now_ms}));
    assert_eq!((status, &refused["reason"]), (409, &json!("no-window")), "{refused}");
    let reply = ask(server.resp, &format!("Q.ADD likes 1 AT {now_ms}")).unwrap();
    assert!(reply[0].starts_with("-WRONGTYPE the counter does not count by time"), "{reply:?}");
    for (line, expected) in [
        ("Q.ADD likes 1 AT", "-ERR syntax error"),
        ("Q.ADD likes 1 AT -1", "-ERR the time is negative"),
        ("Q.ADD likes 1 AT 1 AT 1", "-ERR syntax error"),
    ] {
        assert_eq!(ask(server.resp, line).unwrap(), [expected], "{line}");
    }
    let (status, refused) = post(&server, "views/increment", json!({"at": "yesterday"}));
    assert_eq!(status, 400);
    assert!(refused["detail"].as_str().unwrap().contains("`at`: "), "{refused}");
    assert_eq!(server.request("GET", "/api/v1/counters/views", &[], "").json()["exists"], false);
}

/// How many different visitors there were in each hour, by how long ago it began.
fn visitors(server: &Server, key: &str, now_ms: u64) -> Vec<(u64, u64)> {
    let reply = server.request("GET", &format!("/api/v1/counters/{key}/window?from=0"), &[], "").json();
    let bucket = |bucket: &Value| {
        let start: Timestamp = bucket["start"].as_str().unwrap().parse().unwrap();
        let start_ms = start.as_millisecond() as u64;
        ((now_ms / HOUR_MS * HOUR_MS - start_ms) / HOUR_MS, bucket["estimate"].as_u64().unwrap())
    };
    reply["buckets"].as_array().unwrap().iter().map(bucket).collect()
}

#[test]
fn visitors_that_are_late_count_for_their_time_and_all_are_shown_alike() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let window = json!({"spanMs": 24 * HOUR_MS, "bucketMs": HOUR_MS, "keepMs": 48 * HOUR_MS});
    put_policy(&server, "*", json!({"kind": "unique", "window": window, "lateness": "40h"}));
    let now_ms = now_ms();
    let (status, seen) =
        post(&server, "who/observe", json!({"items": ["a", "b"], "at": hours_ago(5, now_ms)}));
    assert_eq!((status, &seen["estimate"], &seen["changed"]), (200, &json!(2), &json!(true)), "{seen}");
    let told = server.client(&["observe", "who", "b", "c", "--at", &hours_ago(3, now_ms).to_string()]);
    assert_eq!(String::from_utf8_lossy(&told.stdout), "3\n", "{told:?}");
    let late = format!("Q.OBSERVE who AT {} ID once ITEMS d e", hours_ago(30, now_ms));
    // Before the window: kept, and not in the number.
    assert_eq!(ask(server.resp, &late).unwrap(), ["*4", ":3", ":1", ":1", ":0"]);
    assert_eq!(ask(server.resp, &late).unwrap(), ["*4", ":3", ":1", ":1", ":1"]);
    assert_eq!(ask(server.resp, "PFADD who c f").unwrap(), [":1"]);
    let too_late = format!("Q.OBSERVE who AT {} ITEMS x", hours_ago(41, now_ms));
    assert!(ask(server.resp, &too_late).unwrap()[0].starts_with("-TIME it happened too long ago"));
    for (line, expected) in [
        ("Q.OBSERVE who ITEMS", "-ERR wrong number of arguments for 'q.observe' command"),
        ("Q.OBSERVE who AT 5 x y", "-ERR syntax error"),
        ("Q.OBSERVE who AT soon ITEMS x", "-ERR value is not an integer or out of range"),
    ] {
        assert_eq!(ask(server.resp, line).unwrap(), [expected], "{line}");
    }
    let expected = [(30, 2), (5, 2), (3, 2), (0, 2)];
    let shown_alike = |server: &Server| {
        assert_eq!(visitors(server, "who", now_ms), expected);
        let read = server.request("GET", "/api/v1/counters/who", &[], "").json();
        let listed = server.request("GET", "/api/v1/counters?prefix=who", &[], "").json();
        let sum = server.request("GET", "/api/v1/counters/who*/aggregate", &[], "").json();
        assert_eq!(
            (&read["value"], &listed["counters"][0]["value"], &sum["sum"]),
            (&json!(4), &json!(4), &json!(4)),
            "{read} {listed} {sum}"
        );
        assert_eq!(ask(server.resp, "PFCOUNT who").unwrap(), [":4"]);
        assert_eq!(String::from_utf8_lossy(&server.client(&["top", "who", "-n", "1"]).stdout), "who\t4\n");
    };
    shown_alike(&server);
    server.kill();
    shown_alike(&Server::start(data.path()));
}

#[test]
fn what_was_used_stays_used_when_time_is_cut_anew() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let acquire = |server: &Server, limit: u64| post(server, "calls/acquire", json!({"limit": limit}));
    let cut = |server: &Server, window: Value| {
        let body = json!({"kind": "window", "window": window}).to_string();
        let reply = server.request("PUT", "/api/v1/policies/calls", &[], &body);
        assert!((200..300).contains(&reply.status), "{reply:?}");
    };
    cut(&server, json!({"type": "calendar", "unit": "month"}));
    for used in 1..=3 {
        assert_eq!(acquire(&server, 9).1["used"], used);
    }
    // Wherever in the day, the week and the month it is now.
    let mut used = 3;
    for window in [
        json!({"type": "calendar", "unit": "day", "zone": "America/New_York"}),
        json!({"type": "calendar", "unit": "day", "zone": "Pacific/Auckland"}),
        json!({"type": "calendar", "unit": "week", "anchor": 4}),
        json!({"spanMs": HOUR_MS, "bucketMs": 60_000}),
        json!({"type": "fixed", "spanMs": 7 * 24 * HOUR_MS}),
        json!({"spanMs": HOUR_MS, "bucketMs": 420_000}),
    ] {
        cut(&server, window.clone());
        let sum = server.request("GET", "/api/v1/counters/calls/window", &[], "").json();
        assert_eq!(sum["sum"], used, "who looks sees what is used: {window}");
        let (status, refused) = acquire(&server, used);
        assert_eq!((status, &refused["used"]), (429, &json!(used)), "{window}: {refused}");
        used += 1;
        assert_eq!(acquire(&server, 9).1["used"], used, "{window}");
    }
    server.kill();
    let server = Server::start(data.path());
    assert_eq!(acquire(&server, used).0, 429);
    assert_eq!(server.request("GET", "/api/v1/counters/calls/window", &[], "").json()["sum"], used);
}

#[test]
fn a_cluster_counts_it_alike_at_every_node() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 3);
    let servers = start_settled(&data);
    put_policy(&servers[0], "*", by_the_hour());
    let now_ms = now_ms();
    for (number, server) in servers.iter().enumerate() {
        let at = hours_ago(2 * number as u64, now_ms);
        let (status, counted) = post(server, "views/increment", json!({"delta": 1 + number, "at": at}));
        assert_eq!(status, 200, "{counted}");
    }
    for server in &servers {
        assert_eq!(hours(server, "views", now_ms), [(4, 3), (2, 2), (0, 1)]);
        let (status, refused) = post(server, "views/increment", json!({"at": 5}));
        assert_eq!((status, &refused["reason"]), (409, &json!("out-of-time")), "{refused}");
        assert!(refused["earliest"].is_string(), "{refused}");
    }
}
