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

/// Whatever arrives, the answer is a problem, and nobody else notices.
#[test]
fn garbage_and_oversize_are_answered_and_harm_nobody() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let long_key = "k".repeat(200_000);
    let many_headers: String = (0..200).map(|n| format!("X-{n}: y\r\n")).collect();
    let good = "GET /healthz HTTP/1.1\r\nHost: q\r\n\r\n";
    for (bytes, status, reason) in [
        ("garbage\r\n\r\n".to_owned(), 400, "malformed"),
        ("GET / HTTP/9.9\r\n\r\n".to_owned(), 400, "malformed"),
        ("GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(), 400, "malformed"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), 505, "http-version"),
        (format!("GET /api/v1/counters/{long_key} HTTP/1.1\r\nConnection: close\r\n\r\n"), 431, "too-large"),
        (format!("GET /healthz HTTP/1.1\r\nHost: q\r\n{many_headers}\r\n"), 431, "too-large"),
        (
            "PUT /api/v1/counters/a HTTP/1.1\r\nHost: q\r\nConnection: close\r\nContent-Length: 2000000\r\n\r\n".to_owned(),
            413,
            "too-large",
        ),
        (
            "PUT /api/v1/counters/a HTTP/1.1\r\nHost: q\r\nContent-Length: 18446744073709551615\r\n\r\n".to_owned(),
            431,
            "too-large",
        ),
        (
            "PUT /api/v1/counters/a HTTP/1.1\r\nHost: q\r\nTransfer-Encoding: gzip, chunked\r\n\r\nb\r\n{\"value\":1}\r\n0\r\n\r\n"
                .to_owned(),
            501,
            "unsupported-coding",
        ),
        (
            "PUT /api/v1/counters/a HTTP/1.1\r\nHost: q\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
                .to_owned(),
            501,
            "unsupported-coding",
        ),
        ("POST /api/v1/counters/a/increment HTTP/1.1\r\nHost: q\r\nContent-Length: -1\r\n\r\n".to_owned(), 400, "malformed"),
        (
            "POST /api/v1/counters/a/increment HTTP/1.1\r\nHost: q\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n".to_owned(),
            400,
            "malformed",
        ),
        (
            "POST /api/v1/counters/a/increment HTTP/1.1\r\nHost: q\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n".to_owned(),
            400,
            "malformed",
        ),
    ] {
        // Alone, and behind a request that is answered first.
        for before in ["", good] {
            let answers = exchange(server.http, format!("{before}{bytes}").as_bytes());
            let last = answers.windows(10).rposition(|window| window == b"HTTP/1.1 4" || window == b"HTTP/1.1 5").unwrap_or_default();
            let (first, reply) = (&answers[..last], Response::parse(&answers[last..]));
            let shown = &bytes[..bytes.len().min(60)];
            assert_eq!(first.starts_with(b"HTTP/1.1 200"), !before.is_empty(), "{shown}");
            assert_eq!((reply.status, &reply.json()["reason"]), (status, &json!(reason)), "{shown}");
            assert_eq!(reply.header("content-type"), Some("application/problem+json"), "{shown}");
            assert_eq!(reply.json()["requestId"].as_str(), reply.header("x-request-id"), "{shown}");
        }
    }
    assert_eq!(server.request("GET", "/api/v1/counters/a", &[], "").json()["exists"], json!(false));
}

#[test]
fn who_only_holds_a_place_is_given_up() {
    let data = tempfile::tempdir().unwrap();
    let timeouts = ["--http-head-timeout", "1s", "--http-body-timeout", "1s", "--http-idle-timeout", "2s"];
    let server = Server::start_with(data.path(), &timeouts);
    let answer = |sent: &str| {
        let reply = exchange(server.http, sent.as_bytes());
        (!reply.is_empty()).then(|| Response::parse(&reply))
    };
    let whole = "GET /healthz HTTP/1.1\r\nHost: q\r\n\r\n";
    assert!(answer("").is_none(), "an idle connection is closed without a word");
    assert_eq!(answer(whole).unwrap().status, 200, "so is one that was idle after its request");
    for (sent, status) in [
        ("GET /healthz HTTP/1.1\r\nHost:", 408),
        ("PUT /api/v1/counters/a HTTP/1.1\r\nHost: q\r\nContent-Length: 9\r\n\r\n{", 408),
    ] {
        let reply = answer(sent).unwrap();
        assert_eq!((reply.status, &reply.json()["reason"]), (status, &json!("too-slow")), "{sent}");
    }
}

/// A client that asks for much and takes nothing loses its connection, not the server its memory.
#[test]
fn who_takes_nothing_is_given_up() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start_with(data.path(), &["--http-write-timeout", "1s"]);
    let keys = vec!["\"k\""; 10_000].join(",");
    let body = format!("{{\"keys\":[{keys}]}}");
    let one = format!(
        "POST /api/v1/counters/batch-get HTTP/1.1\r\nHost: q\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(server.http).unwrap();
    // Until the server stops reading, because it cannot write; then it must end the connection.
    while stream.write_all(one.as_bytes()).is_ok() {}
}

/// What is in flight when the server is told to stop ends; connections are told to close.
#[test]
fn a_stopping_server_answers_what_it_has_begun() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let mut idle = TcpStream::connect(server.http).unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: q\r\n\r\n").unwrap();
    let mut seen = [0; 15];
    idle.read_exact(&mut seen).unwrap();
    let mut begun = TcpStream::connect(server.http).unwrap();
    let head = "POST /api/v1/counters/a/increment HTTP/1.1\r\nHost: q\r\nContent-Length: 11\r\nExpect: 100-continue\r\n\r\n";
    begun.write_all(head.as_bytes()).unwrap();
    let mut goes_on = [0; 25];
    begun.read_exact(&mut goes_on).unwrap();
    assert_eq!(&goes_on, b"HTTP/1.1 100 Continue\r\n\r\n");

    server.signal(rustix::process::Signal::TERM);
    // The idle one is closed, which shows that draining has begun.
    idle.read_to_end(&mut Vec::new()).unwrap();
    begun.write_all(b"{\"delta\":5}").unwrap();
    let mut reply = Vec::new();
    begun.read_to_end(&mut reply).unwrap();
    let reply = Response::parse(&reply);
    assert_eq!((reply.status, &reply.json()["value"]), (200, &json!(5)));
    assert_eq!(reply.header("connection"), Some("close"));
    let (status, log) = {
        let mut server = server;
        server.wait()
    };
    assert!(status.success(), "{status} {log:?}");
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
