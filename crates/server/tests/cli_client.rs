//! The command line against a running server: what is printed, where, and the exit code.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod support;

use std::io::{Read, Write};

use serde_json::{Value, json};
use support::{Server, run};

/// Arguments; exit code; stdout, whole; a part of stderr.
type Row<'a> = (&'a [&'a str], i32, &'a str, &'a str);

#[test]
fn counters_and_policies() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let rows: &[Row] = &[
        (&["get", "a"], 0, "0\n", ""),
        (&["incr", "a"], 0, "1\n", ""),
        (&["incr", "a", "4"], 0, "5\n", ""),
        (&["decr", "a", "2"], 0, "3\n", ""),
        (&["add", "a", "--", "-5"], 0, "-2\n", ""),
        (&["add", "a", "-5"], 0, "-7\n", ""),
        (&["add", "a", "9", "--id", "r1"], 0, "2\n", ""),
        (&["add", "a", "9", "--id", "r1"], 0, "2\n", "nothing was counted again"),
        (&["add", "a", "8", "--id", "r1"], 6, "", "used for another request"),
        (&["incr", "a", "--max", "2"], 3, "", "above the ceiling, nothing was changed; the value is 2"),
        (&["incr", "a", "9", "--max", "5", "--saturate"], 0, "5\n", "the bounds left room for 3 of 9"),
        (&["decr", "a", "9", "--min", "-1"], 3, "", "below the floor"),
        (&["incr", "a", "--if-version", "1"], 4, "", "condition"),
        (&["set", "a", "-3", "--ttl", "1h"], 0, "-3\n", ""),
        (&["set", "b/c d", "7"], 0, "7\n", ""),
        (&["mget", "a", "b/c d", "none"], 0, "a\t-3\nb/c d\t7\nnone\t0\n", ""),
        (&["reset", "a"], 0, "0\n", ""),
        (&["del", "b/c d"], 0, "gone, it was 7\n", ""),
        (&["del", "b/c d"], 0, "there was none\n", ""),
        (&["set", "zero", "0"], 0, "0\n", ""),
        (&["del", "zero"], 0, "gone, it was 0\n", ""),
        (&["set", "low", "-9223372036854775808"], 0, "-9223372036854775808\n", ""),
        (&["del", "low"], 0, "gone, it was -9223372036854775808\n", ""),
        (&["policy", "list"], 0, "", ""),
        (&["policy", "set", "s:*", "--min", "0", "--max", "9"], 0, "s:*  min 0  max 9\n", ""),
        (&["policy", "get", "s:*"], 0, "s:*  min 0  max 9\n", ""),
        (&["decr", "s:1"], 3, "", "below the floor"),
        (&["policy", "set", "s:*", "--disabled"], 0, "s:*  disabled\n", ""),
        (&["incr", "s:1"], 5, "", "a policy disables writes"),
        (&["policy", "list"], 0, "s:*  disabled\n", ""),
        (&["policy", "del", "s:*"], 0, "removed\n", ""),
        (&["policy", "del", "s:*"], 0, "there was none\n", ""),
        (&["policy", "get", "s:*"], 4, "", "there is no policy"),
        (&["incr", ""], 2, "", "a key has 1 to 512 bytes, not 0"),
        (&["get", "a", "--id", "x"], 2, "", "unexpected argument '--id'"),
        (&["incr", "a", "--id", ""], 2, "", "--id has 1 to 255 bytes"),
        (&["incr", "a", "x"], 2, "", "invalid value 'x'"),
        (&["incr", "a", "--ttl", "60"], 2, "", "a duration like"),
    ];
    for (arguments, code, stdout, stderr) in rows {
        let output = server.client(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{arguments:?}: {said}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), *stdout, "{arguments:?}");
        assert!(said.contains(stderr), "{arguments:?} said {said:?}");
    }
}

#[test]
fn json_is_that_of_the_api() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let rows: &[(&[&str], i32, &str, Value)] = &[
        (&["incr", "a", "--json"], 0, "applied", json!(1)),
        (&["get", "a", "--json"], 0, "counterKey", json!("a")),
        (&["incr", "a", "--max", "1", "--json"], 3, "reason", json!("above-ceiling")),
        (&["policy", "list", "--json"], 0, "policies", json!([])),
    ];
    for (arguments, code, field, expected) in rows {
        let output = server.client(arguments);
        let body: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), &body[field]), (Some(*code), expected), "{arguments:?}");
    }
}

#[test]
fn quiet_says_nothing_and_the_exit_code_says_how_it_went() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    for (arguments, code) in [
        (&["incr", "a", "-q"][..], 0),
        (&["set", "a", "7", "--quiet"], 0),
        (&["incr", "a", "-q", "--id", "r"], 0),
        (&["incr", "a", "-q", "--id", "r"], 0),
        (&["policy", "set", "s:*", "--min", "0", "-q"], 0),
        (&["policy", "del", "s:*", "-q"], 0),
        (&["del", "a", "-q"], 0),
    ] {
        let output = server.client(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
    let refused = server.client(&["decr", "a", "--min", "0", "-q"]);
    assert_eq!(refused.status.code(), Some(3));
    assert!(!refused.stderr.is_empty(), "an error is never silent");
}

#[test]
fn keys_that_would_break_lines_are_escaped_and_exact_in_json() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    server.client(&["set", "a\nb", "1"]);
    let output = server.client(&["mget", "a\nb", "\u{1b}[2J"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "a\\nb\t1\n\\u{1b}[2J\t0\n");
    let output = server.client(&["mget", "a\nb", "--json"]);
    let body: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(body["results"][0]["counterKey"], json!("a\nb"));
}

#[test]
fn a_wrong_address_is_recognized_and_says_what_to_do() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    // A port that was free a moment ago, and that nobody listens on.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (page, json) = (foreign("text/html", "<h1>hello</h1>"), foreign("application/json", "{\"ok\":1}"));
    let rows: &[(&str, i32, &str)] = &[
        (&format!("http://{free}"), 12, "is `quipu serve` running? (another address: --server"),
        (&format!("http://{}", server.resp), 12, "does not speak HTTP; is it the RESP port?"),
        (&format!("http://{page}"), 12, "not as quipu does; is it a quipu server?"),
        (&format!("http://{json}"), 12, "not as quipu does; is it a quipu server?"),
        ("http://no-such-host.invalid:1", 12, "cannot reach http://no-such-host.invalid:1"),
        ("https://127.0.0.1:1", 2, "https is not spoken here"),
        ("resp://127.0.0.1:7071", 2, "this command speaks HTTP"),
        ("http://", 2, "write http://host:7070"),
        ("http://127.0.0.1:7070/api/v1", 2, "write http://host:7070"),
    ];
    for command in ["incr", "get"] {
        for (address, code, said) in rows {
            let output = run(&[command, "a", "--server", address], &[]);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(*code), "{command} {address}: {stderr}");
            assert!(stderr.contains(said) && output.stdout.is_empty(), "{command} {address}: {stderr}");
        }
    }
    let output = run(&["bench", "--target", &format!("resp://{free}")], &[]);
    assert_eq!(output.status.code(), Some(12), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("is the server running?"), "{output:?}");
    assert_eq!(server.client(&["get", "a"]).stdout, b"0\n", "nobody counted");
}

/// A server that is none of ours and answers everything with the same page.
fn foreign(media_type: &str, body: &str) -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let reply = format!(
        "HTTP/1.0 200 OK\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 4096];
            if stream.read(&mut request).is_ok() {
                let _ = stream.write_all(reply.as_bytes());
            }
        }
    });
    address
}

/// A server that takes a request and dies: a change may have been made, a read has not.
#[test]
fn a_lost_reply_is_an_unknown_outcome_of_a_change_only() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.unwrap().read(&mut [0; 4096]);
        }
    });
    for (arguments, code, said) in [
        (&["incr", "a"][..], 10, "the outcome is unknown: with --id"),
        (&["set", "a", "1"], 10, "the outcome is unknown"),
        (&["get", "a"], 12, "try again"),
        (&["mget", "a"], 12, "try again"),
    ] {
        let output = run(arguments, &[("QUIPU_SERVER", &address)]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
        assert!(stderr.contains(said), "{arguments:?}: {stderr}");
    }
}
