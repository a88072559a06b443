//! The real binary over real sockets: what the router alone cannot show.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::json;
use support::{Response, Server, exchange};

#[test]
fn acknowledged_counts_survive_a_kill_and_an_orderly_end() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let id = [("Idempotency-Key", "order-1")];
    for expected in 1..=3 {
        let reply = server.request("POST", "/api/v1/counters/likes%2F7/increment", &[], "");
        assert_eq!((reply.status, &reply.json()["value"]), (200, &json!(expected)));
    }
    server.request("POST", "/api/v1/counters/stock/increment", &id, r#"{"delta":10}"#);
    server.request("PUT", "/api/v1/policies/stock", &[], r#"{"max":10}"#);
    server.kill();

    let server = Server::start(data.path());
    assert_eq!(server.request("GET", "/api/v1/counters/likes%2F7", &[], "").json()["value"], json!(3));
    let replay = server.request("POST", "/api/v1/counters/stock/increment", &id, r#"{"delta":10}"#);
    assert_eq!((replay.header("idempotent-replayed"), &replay.json()["value"]), (Some("true"), &json!(10)));
    assert_eq!(server.request("POST", "/api/v1/counters/stock/increment", &[], "").status, 409);
    let (status, log) = server.terminate();
    assert!(status.success(), "{status} {log:?}");

    let server = Server::start(data.path());
    assert_eq!(server.request("GET", "/api/v1/counters/stock", &[], "").json()["value"], json!(10));
}

#[test]
fn a_connection_carries_many_requests_and_pipelines_keep_order() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let one = "POST /api/v1/counters/a/increment HTTP/1.1\r\nHost: q\r\nContent-Length: 0\r\n\r\n";
    let last = "GET /api/v1/counters/a HTTP/1.1\r\nHost: q\r\nConnection: close\r\n\r\n";
    let replies =
        String::from_utf8(exchange(server.http, format!("{one}{one}{one}{last}").as_bytes())).unwrap();
    let values: Vec<&str> =
        replies.split("\"value\":").skip(1).map(|rest| &rest[..rest.find([',', '}']).unwrap()]).collect();
    assert_eq!(values, ["1", "2", "3", "3"], "{replies}");
}

/// Concurrent clients on one counter: no increment is lost, and no value is given twice.
#[test]
fn concurrent_clients_add_up() {
    const CLIENTS: i64 = 8;
    const EACH: i64 = 25;
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let mut values: Vec<i64> = std::thread::scope(|scope| {
        let client = || -> Vec<i64> {
            let call =
                || server.request("POST", "/api/v1/counters/a/increment", &[], "").json()["value"].as_i64();
            (0..EACH).map(|_| call().unwrap()).collect()
        };
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    values.sort_unstable();
    assert_eq!(values, (1..=CLIENTS * EACH).collect::<Vec<_>>());
}

#[test]
fn garbage_and_oversize_are_answered_and_harm_nobody() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let long_key = "k".repeat(200_000);
    let many_headers: String = (0..200).map(|n| format!("X-{n}: y\r\n")).collect();
    for (bytes, statuses) in [
        ("garbage\r\n\r\n".to_owned(), &[400][..]),
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), &[400, 505]),
        (format!("GET /api/v1/counters/{long_key} HTTP/1.1\r\nConnection: close\r\n\r\n"), &[414, 431]),
        (format!("GET /healthz HTTP/1.1\r\nHost: q\r\nConnection: close\r\n{many_headers}\r\n"), &[431]),
        (
            "PUT /api/v1/counters/a HTTP/1.1\r\nHost: q\r\nConnection: close\r\nContent-Length: 2000000\r\n\r\n".to_owned(),
            &[413],
        ),
        ("POST /api/v1/counters/a/increment HTTP/1.1\r\nHost: q\r\nContent-Length: -1\r\n\r\n".to_owned(), &[400]),
    ] {
        let reply = Response::parse(&exchange(server.http, bytes.as_bytes()));
        assert!(statuses.contains(&reply.status), "{} for {}", reply.status, &bytes[..bytes.len().min(60)]);
    }
    assert_eq!(server.request("GET", "/api/v1/counters/a", &[], "").json()["exists"], json!(false));
}

#[test]
fn connections_above_the_limit_are_told_to_come_later() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start_with(data.path(), &["--max-connections", "2"]);
    let held: Vec<TcpStream> = (0..2)
        .map(|_| {
            // A reply proves that the connection has its place.
            let mut stream = TcpStream::connect(server.http).unwrap();
            stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: q\r\n\r\n").unwrap();
            let mut first = [0; 15];
            stream.read_exact(&mut first).unwrap();
            assert_eq!(&first, b"HTTP/1.1 200 OK");
            stream
        })
        .collect();
    let mut refused = TcpStream::connect(server.http).unwrap();
    let mut reply = Vec::new();
    refused.read_to_end(&mut reply).unwrap();
    let reply = Response::parse(&reply);
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
    assert_eq!(reply.json()["reason"], json!("busy"));
    drop(held);
}
