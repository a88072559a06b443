//! The command line against a running server: what is printed, where, and the exit code.

mod support;

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
        (&["incr", "a", "9", "--max", "5", "--saturate"], 0, "5\n", ""),
        (&["decr", "a", "9", "--min", "-1"], 3, "", "below the floor"),
        (&["incr", "a", "--if-version", "1"], 4, "", "condition"),
        (&["set", "a", "-3", "--ttl", "1h"], 0, "-3\n", ""),
        (&["set", "b/c d", "7"], 0, "7\n", ""),
        (&["mget", "a", "b/c d", "none"], 0, "a\t-3\nb/c d\t7\nnone\t0\n", ""),
        (&["reset", "a"], 0, "0\n", ""),
        (&["del", "b/c d"], 0, "gone, it was 7\n", ""),
        (&["policy", "list"], 0, "", ""),
        (&["policy", "set", "s:*", "--min", "0", "--max", "9"], 0, "s:*  min 0  max 9\n", ""),
        (&["policy", "get", "s:*"], 0, "s:*  min 0  max 9\n", ""),
        (&["decr", "s:1"], 3, "", "below the floor"),
        (&["policy", "set", "s:*", "--disabled"], 0, "s:*  disabled\n", ""),
        (&["incr", "s:1"], 5, "", "a policy disables writes"),
        (&["policy", "list"], 0, "s:*  disabled\n", ""),
        (&["policy", "del", "s:*"], 0, "removed\n", ""),
        (&["policy", "del", "s:*"], 0, "there was none\n", ""),
        (&["policy", "get", "s:*"], 2, "", "there is no policy"),
        (&["incr", ""], 2, "", ""),
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
fn without_a_server_it_says_what_to_do() {
    // A port that was free a moment ago, and that nobody listens on.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let rows: &[(&str, &str)] = &[
        (&format!("http://{free}"), "is `quipu serve` running?"),
        ("https://127.0.0.1:1", "https is not spoken here"),
        ("http://", "expected http://host:port"),
    ];
    for (server, said) in rows {
        let output = run(&["incr", "a", "--server", server], &[]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{server}: {stderr}");
        assert!(stderr.contains(said), "{server}: {stderr}");
    }
}
