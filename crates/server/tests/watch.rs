//! Counters while they change, as server-sent events, from the real binary.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;

use support::Server;
use support::cluster::ask;
use support::events::{Event, Events};

fn post(server: &Server, path: &str, body: &str) {
    let reply = server.request("POST", &format!("/api/v1/counters/{path}"), &[], body);
    assert_eq!(reply.status, 200, "{reply:?}");
}

fn increment(server: &Server, key: &str) {
    post(server, &format!("{key}/increment"), "");
}

fn delete(server: &Server, key: &str) {
    let reply = server.request("DELETE", &format!("/api/v1/counters/{key}"), &[], "");
    assert_eq!(reply.status, 200, "{reply:?}");
}

/// Adds one to each of many counters.
fn increment_all(server: &Server, keys: impl Iterator<Item = String>) {
    let items: Vec<String> = keys.map(|key| format!("{{\"key\":\"{key}\"}}")).collect();
    for items in items.chunks(1_000) {
        post(server, "batch-increment", &format!("{{\"items\":[{}]}}", items.join(",")));
    }
}

/// A server on the ports of one that was before, so that clients find it again.
fn start_again(data: &Path, ports: (&str, &str)) -> Server {
    Server::start_with(data, &["--http", ports.0, "--resp", ports.1])
}

#[test]
fn a_counter_from_its_state_to_its_end() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    increment(&server, "known");
    let mut events = Events::open(server.http, "key=known&key=new&intervalMs=10");
    assert_eq!(events.texts_until("ready"), ["known=1", "new gone", "ready"]);
    increment(&server, "new");
    let change = events.next().unwrap();
    let read = server.request("GET", "/api/v1/counters/new", &[], "").json();
    assert_eq!((change.name.as_str(), change.data), ("change", read), "as a read shows it");
    increment(&server, "other");
    increment(&server, "known");
    assert_eq!(events.next().unwrap().text(), "known=2");
    delete(&server, "known");
    assert_eq!(events.next().unwrap().text(), "known gone");
    increment(&server, "known");
    assert_eq!(events.next().unwrap().text(), "known=1");
    // It may be over before anybody has looked.
    post(&server, "known/increment", r#"{"ttlMs":1}"#);
    events.until("known gone");
    increment(&server, "known");
    assert_eq!(events.next().unwrap().text(), "known=1");
    ask(server.resp, "FLUSHALL").unwrap();
    let mut gone = [events.next().unwrap().text(), events.next().unwrap().text()];
    gone.sort();
    assert_eq!(gone, ["known gone", "new gone"]);
}

#[test]
fn a_prefix_for_several_who_watch() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    increment_all(&server, (0..3).map(|number| format!("p:{number}")));
    increment(&server, "q:1");
    let mut silent = Events::open(server.http, "prefix=p:&intervalMs=10");
    let mut all = Events::open(server.http, "prefix=&initial=true&intervalMs=10");
    let mut some = Events::open(server.http, "prefix=p:&prefix=p:1&key=q:1&initial=true&intervalMs=10");
    assert_eq!(silent.texts_until("ready"), ["ready"]);
    let ready = all.until("ready");
    let texts: Vec<String> = ready.iter().map(Event::text).collect();
    assert_eq!(texts, ["p:0=1", "p:1=1", "p:2=1", "q:1=1", "ready"]);
    assert_eq!(ready[4].data["complete"], true);
    assert!(ready[..4].iter().all(|event| event.id.is_none()) && ready[4].id.is_some());
    assert_eq!(some.texts_until("ready"), ["q:1=1", "p:0=1", "p:1=1", "p:2=1", "ready"]);
    increment(&server, "p:1");
    increment(&server, "q:1");
    assert_eq!(silent.next().unwrap().text(), "p:1=2");
    assert_eq!(all.texts_until("q:1=2"), ["p:1=2", "q:1=2"]);
    assert_eq!(some.texts_until("q:1=2"), ["p:1=2", "q:1=2"]);
    ask(server.resp, "FLUSHALL").unwrap();
    increment(&server, "p:1");
    for events in [&mut silent, &mut all] {
        assert_eq!(events.texts_until("p:1=1"), ["clear", "p:1=1"]);
    }
    assert_eq!(some.texts_until("p:1=1"), ["clear", "q:1 gone", "p:1=1"]);
}

#[test]
fn what_changes_often_is_shown_seldom_and_its_last_value_always() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let mut slow = Events::open(server.http, "prefix=hot&intervalMs=300");
    let mut fast = Events::open(server.http, "key=hot&intervalMs=10");
    slow.until("ready");
    fast.until("ready");
    let mut client = TcpStream::connect(server.resp).unwrap();
    client.write_all("INCR hot\r\n".repeat(5_000).as_bytes()).unwrap();
    for events in [&mut slow, &mut fast] {
        let shown = events.until("hot=5000");
        let values: Vec<i64> = shown.iter().map(|event| event.data["value"].as_i64().unwrap()).collect();
        assert!(values.is_sorted() && values.len() < 5_000, "{values:?}");
    }
    increment(&server, "hot");
    assert_eq!(slow.next().unwrap().text(), "hot=5001");
}

#[test]
fn who_comes_back_misses_nothing_and_hears_nothing_twice() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    increment_all(&server, (0..4).map(|number| format!("p:{number}")));
    let query = "prefix=p:&key=k&intervalMs=10";
    let mut events = Events::open(server.http, query);
    events.until("ready");
    increment(&server, "p:0");
    let heard = events.next().unwrap();
    drop(events);
    for _ in 0..3 {
        increment(&server, "p:1");
    }
    increment(&server, "other");
    increment(&server, "k");
    delete(&server, "p:2");
    let mut events = Events::resume(server.http, query, heard.id.as_deref());
    let ready = events.next().unwrap();
    assert_eq!((ready.text().as_str(), &ready.data["resumed"]), ("ready", &true.into()));
    let missed = events.until("p:2 gone");
    // What is read in one round comes in the order of keys.
    let mut texts: Vec<String> = missed.iter().map(Event::text).collect();
    texts.sort();
    assert_eq!(texts, ["k=1", "p:1=4", "p:2 gone"]);

    // Of something else nothing was noted, not even since the newest event.
    for (id, prefix) in [(&missed[0].id, "o"), (&missed[2].id, "ot")] {
        let mut other = Events::resume(server.http, &format!("prefix={prefix}"), id.as_deref());
        assert_eq!(other.texts_until("ready"), ["reset", "other=1", "ready"]);
    }
    for id in ["0123456789abcdef-7", "nonsense", "-", "\u{e4}"] {
        let mut other = Events::resume(server.http, "key=k&prefix=p:3", Some(id));
        assert_eq!(other.texts_until("ready"), ["reset", "k=1", "p:3=1", "ready"], "{id}");
    }
}

#[test]
fn after_a_restart_everything_is_said_again() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let (http, resp) = (server.http.to_string(), server.resp.to_string());
    increment_all(&server, (0..3).map(|number| format!("p:{number}")));
    let mut events = Events::open(server.http, "prefix=p:&intervalMs=10");
    let id = events.until("ready")[0].id.clone();
    server.kill();
    let server = start_again(data.path(), (&http, &resp));
    increment(&server, "p:2");
    let mut events = Events::resume(server.http, "prefix=p:&intervalMs=10", id.as_deref());
    let again = events.until("ready");
    let texts: Vec<String> = again.iter().map(Event::text).collect();
    assert_eq!(texts, ["reset", "p:0=1", "p:1=1", "p:2=2", "ready"]);
    assert!(again[0].data["reason"].is_string());
    increment(&server, "p:0");
    assert_eq!(events.next().unwrap().text(), "p:0=2");
}

#[test]
fn of_many_counters_a_part_is_said_and_that_it_is_one() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    increment_all(&server, (0..2_500).map(|number| format!("many:{number:04}")));
    let mut events = Events::open(server.http, "prefix=many:&initial=true&intervalMs=10");
    let state = events.until("ready");
    assert_eq!(state.len(), 1_001);
    let ready = state.last().unwrap();
    assert_eq!((&ready.data["complete"], &ready.data["counters"]), (&false.into(), &1_000.into()));
    increment(&server, "many:2499");
    assert_eq!(events.next().unwrap().text(), "many:2499=2");
}

/// What a client that does not read would have to hear is more than all buffers on the way hold.
#[test]
fn a_slow_reader_holds_up_nobody_and_has_everything_in_the_end() {
    const KEYS: usize = 8_000;
    const ROUNDS: i64 = 2;
    let data = tempfile::tempdir().unwrap();
    let mut command = support::serve_command(data.path());
    // Who takes nothing for so long is cut off, and has to come back.
    command.env("QUIPU_HTTP_WRITE_TIMEOUT", "1h");
    let server = Server::spawn(command);
    let key = |number: usize| format!("{}{number:05}", "long-".repeat(80));
    let stream = TcpStream::connect(server.http).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 64 << 10).unwrap();
    let mut slow = Events::over(stream, "prefix=long-&intervalMs=10", None);
    slow.until("ready");
    let mut fast = Events::open(server.http, "key=beside&intervalMs=10");
    fast.until("ready");
    for round in 1..=ROUNDS {
        increment_all(&server, (0..KEYS).map(key));
        increment(&server, "beside");
        assert_eq!(fast.until(&format!("beside={round}")).len(), 1, "nobody else waits");
    }
    increment(&server, "long-last");
    let mut values: BTreeMap<String, i64> = BTreeMap::new();
    for event in slow.until("long-last=1") {
        match event.name.as_str() {
            "change" => {
                let value = event.data["value"].as_i64().unwrap();
                let before = values.insert(event.data["counterKey"].as_str().unwrap().to_owned(), value);
                assert!(before.is_none_or(|before| before <= value));
            }
            // All but the values of the last round may have been passed over, never those.
            name => assert!(["reset", "ready"].contains(&name), "{name}"),
        }
    }
    let heard = values.iter().filter(|(key, value)| key.len() > 100 && **value == ROUNDS).count();
    assert_eq!(heard, KEYS, "of {}", values.len());
}

#[test]
fn streams_end_in_order_when_the_server_stops() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let mut events = Events::open(server.http, "key=a&intervalMs=10");
    events.until("ready");
    let stuck = TcpStream::connect(server.http).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&stuck, 4096).unwrap();
    let mut stuck = Events::over(stuck, "prefix=&intervalMs=10", None);
    stuck.until("ready");
    increment_all(&server, (0..20_000).map(|number| format!("{}{number}", "x".repeat(400))));
    let (status, log) = server.terminate();
    assert!(status.success(), "{log:?}");
    assert!(!log.iter().any(|line| line.contains("did not end in time")), "{log:?}");
    assert_eq!(events.next(), None, "with the end that chunks have");
}

#[test]
fn who_watches_takes_no_place_from_others() {
    let data = tempfile::tempdir().unwrap();
    let mut command = support::serve_command(data.path());
    command.env("QUIPU_HTTP_MAX_IN_FLIGHT", "1").env("QUIPU_MAX_CONNECTIONS", "4");
    let server = Server::spawn(command);
    let mut first = Events::open(server.http, "key=a&intervalMs=10");
    let mut second = Events::open(server.http, "key=a&intervalMs=10");
    first.until("ready");
    second.until("ready");
    increment(&server, "a");
    let reply = server.request("GET", "/api/v1/watch?key=a", &[("Accept", "text/event-stream")], "");
    assert_eq!((reply.status, &reply.json()["reason"]), (503, &"busy".into()), "half of the connections");
    assert!(reply.header("retry-after").is_some());
    assert_eq!(first.next().unwrap().text(), "a=1");
    let metrics = server.request("GET", "/metrics", &[], "").body;
    assert!(metrics.contains("quipu_http_watching 2\n"), "{metrics}");
}

#[test]
fn what_cannot_be_watched_is_refused() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    for (method, query, accept, status) in [
        ("GET", "", "*/*", 400),
        ("GET", "?key=", "*/*", 400),
        ("GET", "?prefix=a&intervalMs=5", "*/*", 400),
        ("GET", "?keys=a", "*/*", 400),
        ("GET", "?key=a", "application/json", 406),
        ("POST", "?key=a", "*/*", 405),
    ] {
        let reply = server.request(method, &format!("/api/v1/watch{query}"), &[("Accept", accept)], "");
        assert_eq!(reply.status, status, "{method} {query}: {reply:?}");
        assert_eq!(reply.header("content-type"), Some("application/problem+json"));
    }
    let head = server.request("HEAD", "/api/v1/watch?key=a", &[], "");
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")));
}

/// HTTP/1.0 knows no chunks: there the end of the connection is the end of the stream.
#[test]
fn the_oldest_clients_hear_events_too() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let mut stream = TcpStream::connect(server.http).unwrap();
    stream.write_all(b"GET /api/v1/watch?key=a HTTP/1.0\r\n\r\n").unwrap();
    let mut reply = String::new();
    while !reply.contains("event: ready\n") {
        let mut some = [0; 1024];
        let count = stream.read(&mut some).unwrap();
        assert!(count > 0, "{reply}");
        reply.push_str(&String::from_utf8_lossy(&some[..count]));
    }
    assert!(reply.contains("\r\n\r\nretry: 1000\n\nevent: change\ndata: {\"counterKey\":\"a\""), "{reply}");
}
