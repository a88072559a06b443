//! Counters to files and from files, with the real binary: round trips, repetitions, interruptions, bad rows.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod support;

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Output, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use quipu_counting::Body;
use quipu_counting::body::Shape;
use serde_json::{Value, json};
use support::cluster::{ask, found, start_settled};
use support::terminal::Terminal;
use support::{Server, quipu, run};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The value of a counter.
fn value(server: &Server, key: &str) -> i64 {
    text(&server.client(&["get", key]).stdout).trim().parse().unwrap()
}

/// Every counter by key: value and expiry, as the server itself lists them.
fn all(server: &Server) -> Vec<Value> {
    let reply = server.request("GET", "/api/v1/counters?order=key&limit=10000", &[], "").json();
    let counters = reply["counters"].as_array().unwrap();
    let fields = ["counterKey", "keyBase64", "value", "expiresAt"];
    counters.iter().map(|counter| fields.iter().map(|field| counter[field].clone()).collect()).collect()
}

/// Runs the client with `input` on stdin.
fn piped(server: &Server, arguments: &[&str], input: &str) -> Output {
    let mut child = server
        .client_command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may stop reading before the end.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

#[test]
fn what_was_exported_is_imported_as_it_was() {
    let (data, other_data, files) = (folder(), folder(), folder());
    let server = Server::start(data.path());
    for (key, body) in [
        ("plain", r#"{"value":7}"#),
        ("a%2Cb%22c%22", r#"{"value":-7}"#),
        ("two%0Alines%0D%0A", r#"{"value":1}"#),
        ("%20blank%20", r#"{"value":0}"#),
        ("%FF%00", r#"{"value":3,"ttlMs":3600000}"#),
        ("%E6%95%B0", r#"{"value":9223372036854775807,"ttlMs":86400000}"#),
        ("min", r#"{"value":"-9223372036854775808"}"#),
        ("beyond-9999", r#"{"value":1,"ttlMs":253402300800000}"#),
    ] {
        let reply = server.request("PUT", &format!("/api/v1/counters/{key}"), &[], body);
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    let original = all(&server);
    assert_eq!(original.len(), 8);
    let other = Server::start(other_data.path());
    for name in ["all.csv", "all.ndjson", "all.csv.gz", "all.jsonl.gz"] {
        let file = files.path().join(name);
        let file = file.to_str().unwrap();
        let exported = server.client(&["export", "--output", file]);
        assert!(text(&exported.stderr).starts_with("exported 8 counters to "), "{exported:?}");
        let imported = other.client(&["import", file]);
        assert!(text(&imported.stdout).starts_with("imported 8 rows into resp://"), "{imported:?}");
        assert_eq!(all(&other), original, "{name}");
        assert!(other.request("DELETE", "/api/v1/counters/plain", &[], "").status == 200);
    }
    for format in ["csv", "ndjson"] {
        let exported = server.client(&["export", "--format", format]);
        assert!(exported.status.success() && exported.stderr.is_empty(), "{exported:?}");
        let imported = piped(&other, &["import", "-"], &text(&exported.stdout));
        assert!(imported.status.success(), "{imported:?}");
        assert_eq!(all(&other), original, "{format}");
    }
    let listed = server.client(&["list", "--json"]);
    assert!(
        piped(&other, &["import", "-", "-q"], &text(&listed.stdout)).status.success(),
        "lists can be imported too"
    );
    let some = server.client(&["export", "--prefix", "p"]);
    assert_eq!(text(&some.stdout).lines().count(), 2, "a header and one counter");
}

/// A row of a counter that has changed half an hour ago, and has kept nothing of what it was.
fn changed_before() -> String {
    let mut body = Vec::new();
    Body::new(Shape::Sum).put(&mut body);
    let updated_at = Timestamp::from_millisecond((now_ms() - 1_800_000) as i64).unwrap().to_string();
    json!({"key": "past", "value": 3, "updatedAt": updated_at, "body": STANDARD.encode(body)}).to_string()
}

/// Policies and counters of every kind.
fn count_all_kinds(server: &Server) {
    for (line, body) in [
        ("PUT policies/views", r#"{"kind":"window","window":{"spanMs":86400000,"bucketMs":3600000}}"#),
        ("PUT policies/daily", r#"{"kind":"unique","window":{"spanMs":86400000,"bucketMs":3600000}}"#),
        ("PUT policies/past", r#"{"history":{"minutesMs":3600000}}"#),
        ("POST counters/likes/increment", r#"{"delta":7}"#),
        ("POST counters/views/increment", r#"{"delta":5}"#),
        ("POST counters/daily/observe", r#"{"items":["anna","bert"]}"#),
        ("POST counters/few/observe", r#"{"items":["anna","bert","carl"]}"#),
        ("POST counters/limit/acquire", r#"{"amount":4,"limit":10,"window":"1h"}"#),
        ("POST counters/stock/increment", r#"{"delta":10,"ttlMs":3600000}"#),
        ("POST counters/stock/reserve", r#"{"amount":2,"ttlMs":3600000}"#),
    ] {
        let (method, path) = line.split_once(' ').unwrap();
        let reply = server.request(method, &format!("/api/v1/{path}"), &[], body);
        assert!([200, 201].contains(&reply.status), "{line}: {reply:?}");
    }
    assert!(piped(server, &["import", "-"], &changed_before()).status.success());
    let changed = server.request("POST", "/api/v1/counters/past/increment", &[], r#"{"delta":4}"#);
    assert_eq!(changed.json()["value"], 7);
    let history = server.request("GET", "/api/v1/counters/past/history?step=minute", &[], "").json();
    assert!(!history["points"].as_array().unwrap().is_empty(), "{history}");
    let late = format!(r#"{{"delta":2,"at":{}}}"#, now_ms() - 5 * 3_600_000);
    assert_eq!(server.request("POST", "/api/v1/counters/views/increment", &[], &late).status, 200);
    // So many that they are estimated.
    let items: Vec<String> = (0..5_000).map(|number| format!("user-{number}")).collect();
    let items = json!({ "items": items }).to_string();
    assert_eq!(server.request("POST", "/api/v1/counters/many/observe", &[], &items).status, 200);
}

fn now_ms() -> u64 {
    std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64
}

/// What a server says of them, from every side; of history what was before this time.
fn seen(server: &Server, to_ms: u64) -> Vec<Value> {
    let history = format!("counters/past/history?step=minute&from={}&to={to_ms}", to_ms - 3_600_000);
    let mut seen: Vec<Value> = [
        "counters/likes",
        "counters/views",
        "counters/views/window?from=0",
        "counters/daily",
        "counters/daily/window?from=0",
        "counters/few",
        "counters/many",
        "counters/past",
        &*history,
        "counters/limit/window",
        "counters/stock",
    ]
    .iter()
    .map(|path| server.request("GET", &format!("/api/v1/{path}"), &[], "").json())
    .collect();
    for counter in &mut seen {
        // A number is set anew, and holds stay where they are.
        for field in ["version", "updatedAt", "held", "holds", "from", "to"] {
            counter.as_object_mut().unwrap().remove(field);
        }
    }
    for key in ["daily", "few", "many"] {
        seen.push(json!(ask(server.resp, &format!("PFCOUNT {key}")).unwrap()));
    }
    seen
}

/// From one server to another, twice.
fn move_all(from: &Server, to: &Server, file: &str) {
    let exported = from.client(&["export", "--output", file]);
    assert!(text(&exported.stderr).starts_with("exported 8 counters to "), "{exported:?}");
    for _ in 0..2 {
        let imported = to.client(&["import", file]);
        assert!(text(&imported.stdout).starts_with("imported 8 rows into resp://"), "{imported:?}");
    }
}

#[test]
fn counters_of_every_kind_are_imported_as_they_were() {
    let (data, other_data, files) = (folder(), folder(), folder());
    let (server, other) = (Server::start(data.path()), Server::start(other_data.path()));
    let to_ms = now_ms();
    count_all_kinds(&server);
    let original = seen(&server, to_ms);
    let file = files.path().join("all.ndjson.gz");
    let file = file.to_str().unwrap();
    move_all(&server, &other, file);
    assert_eq!(seen(&other, to_ms), original);
    // A crash takes nothing back, and they count on.
    other.kill();
    let other = Server::start(other_data.path());
    assert_eq!(seen(&other, to_ms), original);
    let body = r#"{"items":["anna","dora"]}"#;
    let more = other.request("POST", "/api/v1/counters/few/observe", &[], body).json();
    assert_eq!((&more["estimate"], &more["exact"]), (&json!(4), &json!(true)), "{more}");
    let held = server.request("GET", "/api/v1/counters/stock", &[], "").json();
    let free = other.request("GET", "/api/v1/counters/stock", &[], "").json();
    assert_eq!((&held["held"], &free["held"]), (&json!(2), &Value::Null));
    // Numbers alone, and that is said.
    let csv = server.client(&["export", "--format", "csv"]);
    assert!(csv.status.success(), "{csv:?}");
    assert_eq!(text(&csv.stdout).lines().count(), 9);
    assert!(text(&csv.stderr).contains("7 counters are more than a number"), "{csv:?}");
    // What cannot be meant is refused, and changes nothing.
    let added = other.client(&["import", file, "--mode", "add"]);
    assert_eq!(added.status.code(), Some(2), "{added:?}");
    assert!(text(&added.stderr).contains("needs --mode set"), "{added:?}");
    let listed = server.client(&["list", "--json"]);
    let imported = piped(&other, &["import", "-", "--skip-bad"], &text(&listed.stdout));
    assert!(text(&imported.stderr).contains("`body` is missing"), "{imported:?}");
    let broken = write(files.path(), "broken.ndjson", r#"{"key":"few","value":1,"body":"AQEB"}"#);
    let imported = other.client(&["import", &broken]);
    assert!(text(&imported.stderr).contains("Bad data format"), "{imported:?}");
    assert_eq!(ask(other.resp, "PFCOUNT few").unwrap(), [":4"]);
}

#[test]
fn a_cluster_gives_and_takes_counters_of_every_kind() {
    let (nodes, data, files) = (folder(), folder(), folder());
    let servers = start_settled(&found(nodes.path(), 3));
    let alone = Server::start(data.path());
    let to_ms = now_ms();
    count_all_kinds(&servers[0]);
    let original = seen(&servers[1], to_ms);
    move_all(&servers[1], &alone, files.path().join("all.ndjson").to_str().unwrap());
    assert_eq!(seen(&alone, to_ms), original);
    for key in ["likes", "views", "daily", "few", "many", "past", "limit", "stock"] {
        assert_eq!(servers[2].request("DELETE", &format!("/api/v1/counters/{key}"), &[], "").status, 200);
    }
    move_all(&alone, &servers[2], files.path().join("back.ndjson").to_str().unwrap());
    assert_eq!(seen(&servers[0], to_ms), original);
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn an_addition_that_is_repeated_counts_once() {
    let (data, files) = (folder(), folder());
    let server = Server::start(data.path());
    let rows: String = (0..2500).map(|number| format!("k{},{}\n", number % 10, 1)).collect();
    let file = write(files.path(), "visits.csv", &format!("key,value\n{rows}"));
    let copy = write(files.path(), "copy.csv", &format!("key,value\n{rows}"));
    for (arguments, imported, repeated, total) in [
        (&["import", "--mode", "add", &file][..], 2500, 0, 250),
        (&["import", "--mode", "add", &file], 0, 2500, 250),
        (&["import", "--mode", "add", &copy], 0, 2500, 250),
        (&["import", "--mode", "add", &file, "--run-id", "monday"], 2500, 0, 500),
        (&["import", "--mode", "add", &file, "--run-id", "monday", "--from-line", "2402"], 0, 100, 500),
        (&["import", "--mode", "add", &file, "--run-id", "tuesday", "--from-line", "2402"], 100, 0, 510),
        (&["import", "--mode", "set", &file], 2500, 0, 1),
    ] {
        let output = server.client(&[arguments, &["--json"]].concat());
        let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
        let found = (output.status.code(), &summary["imported"], &summary["repeated"]);
        assert_eq!(found, (Some(0), &json!(imported), &json!(repeated)), "{arguments:?}: {summary}");
        assert_eq!(value(&server, "k3"), total, "{arguments:?}");
    }
    let again = server.client(&["import", "--mode", "add", &file]);
    assert!(text(&again.stdout).contains("2500 rows were counted by an earlier import"), "{again:?}");
}

#[test]
fn a_file_with_a_bad_row_changes_nothing() {
    let (data, files) = (folder(), folder());
    let server = Server::start(data.path());
    let many = format!("key,value\n{}oops\n", "a,1\n".repeat(5000));
    for (name, content, said) in [
        ("late.csv", many.as_str(), "line 5002: 1 fields, where the header names 2"),
        ("header.csv", "a,1\n", "line 1: the first line names the columns: key,value"),
        ("empty.csv", "", "line 1: the file is empty"),
        ("a.ndjson", "{\"key\":\"a\",\"value\":1}\n{\"key\":\"a\"}\n", "line 2: missing field `value`"),
        ("detected", "{\"key\":\"a\",\"value\":1}\nx\n", "line 2: a JSON object like"),
        ("not.csv", "\u{1f}\u{0}", "line 1: the first line names"),
    ] {
        let file = write(files.path(), name, content);
        let output = server.client(&["import", &file]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}: {stderr}");
        assert!(stderr.contains(said) && output.stdout.is_empty(), "{name}: {stderr}");
        assert_eq!(all(&server), Vec::<Value>::new(), "{name}");
    }
    let file = files.path().join("late.csv");
    let output = server.client(&["import", "--skip-bad", file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(13));
    assert!(text(&output.stderr).contains("1 rows were passed over, all others are imported"), "{output:?}");
    assert!(text(&output.stdout).starts_with("imported 5000 rows"), "{output:?}");
    let expiring = write(files.path(), "at.csv", "key,value,expiresAt\na,1,2100-01-01T00:00:00Z\n");
    let output = server.client(&["import", "--mode", "add", &expiring]);
    assert!(text(&output.stderr).contains("line 2: expiresAt needs --mode set"), "{output:?}");
}

#[test]
fn a_dry_run_looks_and_touches_nothing() {
    let files = folder();
    let (good, bad) = (
        write(files.path(), "good.csv", "key,value\na,1\n"),
        write(files.path(), "bad.csv", "key,value\na,1\na,x\n"),
    );
    // Nobody listens there, and nobody has to.
    let nobody = [("QUIPU_TARGET", "resp://127.0.0.1:1")];
    for (arguments, code, stdout, stderr) in [
        (&["import", "--dry-run", &good][..], 0, "1 rows would be imported, 0 are bad\n", ""),
        (&["import", "--dry-run", &bad], 2, "", "line 3: value: \"x\" is not a whole number"),
        (&["import", "--dry-run", "--skip-bad", &bad], 0, "1 rows would be imported, 1 are bad\n", "line 3"),
    ] {
        let output = run(arguments, &nobody);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(code), stdout), "{output:?}");
        assert!(text(&output.stderr).contains(stderr), "{output:?}");
    }
}

#[test]
fn a_pipe_stops_at_a_bad_row_and_says_what_is_done() {
    let data = folder();
    let server = Server::start(data.path());
    let output = piped(&server, &["import", "-"], "key,value\na,1\nb,2\nc,x\nd,4\n");
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(13), "{stderr}");
    for part in ["line 4: value: \"x\"", "2 rows are imported, up to line 3", "--from-line 4"] {
        assert!(stderr.contains(part), "{stderr}");
    }
    assert_eq!((value(&server, "b"), value(&server, "d")), (2, 0));
    let output = piped(&server, &["import", "--mode", "add", "-"], "key,value\na,1\n");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("give --run-id NAME"), "{output:?}");
    let output = piped(&server, &["import", "-"], "{\"key\":\"e\",\"value\":5}\n");
    assert!(output.status.success(), "the format is recognized: {output:?}");
    assert_eq!(value(&server, "e"), 5);
}

#[test]
fn rows_that_the_server_refuses_are_told_with_their_reason() {
    let (data, files) = (folder(), folder());
    let server = Server::start(data.path());
    server.client(&["policy", "set", "stock:*", "--min", "0", "--max", "10"]);
    server.client(&["policy", "set", "part:*", "--max", "10", "--saturate"]);
    let file = write(files.path(), "rows.csv", "key,value\na,1\nstock:1,11\npart:1,15\nb,2\n");
    for (mode, reasons) in [
        ("set", &["line 3, stock:1: LIMIT the result would be above the ceiling"][..]),
        (
            "add",
            &[
                "line 3, stock:1: refused by a bound; the value is 0",
                "line 4, part:1: a bound left room for 10 of 15",
            ],
        ),
    ] {
        let output = server.client(&["import", "--skip-bad", "--mode", mode, &file]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(13), "{mode}: {stderr}");
        reasons.iter().for_each(|reason| assert!(stderr.contains(reason), "{mode}: {stderr}"));
        server.client(&["del", "part:1"]);
    }
    assert_eq!((value(&server, "a"), value(&server, "b"), value(&server, "stock:1")), (2, 4, 0));
    let output = server.client(&["import", &file]);
    assert_eq!(output.status.code(), Some(13));
    assert!(
        text(&output.stderr).contains("2 rows were refused, all others are imported; --from-line 3"),
        "{output:?}"
    );
}

/// Rows are under way when the server refuses one before them: they are done, and said to be.
#[test]
fn an_import_that_stops_at_a_refused_row_says_what_is_done_and_where_to_begin() {
    let (data, files) = (folder(), folder());
    let server = Server::start(data.path());
    server.client(&["policy", "set", "stock:*", "--max", "10"]);
    let rest: String = (0..100_000).map(|number| format!("k{number},1\n")).collect();
    let file = write(files.path(), "rows.csv", &format!("key,value\na,1\nstock:1,11\nb,2\n{rest}"));
    let output = server.client(&["import", &file]);
    let stderr = text(&output.stderr);
    assert_eq!((output.status.code(), value(&server, "b")), (Some(13), 2), "{stderr}");
    for part in
        ["stopped because of line 3: ", "but for those that were refused", "--from-line 3 begins with"]
    {
        assert!(stderr.contains(part), "{stderr}");
    }
    server.client(&["policy", "del", "stock:*"]);
    let output = server.client(&["import", &file, "--from-line", "3"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!((value(&server, "stock:1"), value(&server, "k99999")), (11, 1));
}

/// An import that reads from us, so that we decide when it is in the middle.
fn feeding(server: &Server, run_id: &str) -> Child {
    server
        .client_command(&["import", "--mode", "add", "--run-id", run_id, "--json", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

const HALF: usize = 20_000;

fn half(from: usize) -> String {
    (from..from + HALF).map(|number| format!("{{\"key\":\"k{}\",\"value\":1}}\n", number % 100)).collect()
}

fn sum(server: &Server) -> i64 {
    all(server).iter().map(|counter| counter[2].as_i64().unwrap()).sum()
}

/// Waits until some rows have arrived; fails with the test's time limit otherwise.
fn wait_for_rows(server: &Server) {
    while sum(server) == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn a_server_that_dies_in_the_middle_is_waited_for_and_nothing_counts_twice() {
    let data = folder();
    let server = Server::start(data.path());
    let (http, resp) = (server.http.to_string(), server.resp.to_string());
    let mut import = feeding(&server, "r");
    let mut input = import.stdin.take().unwrap();
    input.write_all(half(0).as_bytes()).unwrap();
    wait_for_rows(&server);
    server.kill();
    let server = Server::start_with(data.path(), &["--http", &http, "--resp", &resp]);
    input.write_all(half(HALF).as_bytes()).unwrap();
    drop(input);
    let output = import.wait_with_output().unwrap();
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!((&summary["imported"], sum(&server)), (&json!(2 * HALF), 2 * HALF as i64), "{summary}");
    assert!(text(&output.stderr).contains("trying again"), "{output:?}");
}

#[test]
fn an_interrupted_import_says_how_far_it_came_and_can_be_repeated() {
    let data = folder();
    let server = Server::start(data.path());
    let mut import = feeding(&server, "r");
    let mut input = import.stdin.take().unwrap();
    input.write_all(half(0).as_bytes()).unwrap();
    wait_for_rows(&server);
    let id = rustix::process::Pid::from_raw(import.id() as i32).unwrap();
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let output = import.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(2), "{output:?}");
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["imported"].as_i64(), Some(sum(&server)), "what it says is what is there");
    assert!(text(&output.stderr).contains("counts nothing twice"), "{output:?}");
    drop(input);
    let again = piped(&server, &["import", "--mode", "add", "--run-id", "r", "-"], &(half(0) + &half(HALF)));
    assert!(again.status.success(), "{again:?}");
    assert_eq!(sum(&server), 2 * HALF as i64);
}

#[test]
fn a_wrong_target_is_recognized() {
    let (data, files) = (folder(), folder());
    let server = Server::start(data.path());
    let file = write(files.path(), "a.csv", "key,value\na,1\n");
    let (http, resp) = (format!("http://{}", server.http), format!("resp://{}", server.http));
    for (environment, code, said) in [
        (("QUIPU_TARGET", resp.as_str()), 12, "it speaks HTTP; RESP listens on port 7071"),
        (("QUIPU_TARGET", "resp://127.0.0.1:1"), 12, "Connection refused; is `quipu serve` running there?"),
        (("QUIPU_TARGET", "http://127.0.0.1:7070"), 2, "this command speaks the Redis protocol, not http"),
        // Importing into a server on this machine instead of the one that is named would be worse.
        (("QUIPU_SERVER", http.as_str()), 2, "give --target resp://host:port"),
        (("QUIPU_SERVER", "http://127.0.0.2:7070"), 12, "cannot reach resp://127.0.0.2:7071"),
    ] {
        let output = run(&["import", &file], &[environment]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{environment:?}: {stderr}");
        assert!(stderr.contains(said), "{environment:?}: {stderr}");
    }
    for (path, said) in
        [("/nonexistent.csv", "cannot read /nonexistent.csv: No such file"), ("/tmp", "it is a folder")]
    {
        let output = server.client(&["import", path]);
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(said), "{output:?}");
    }
}

#[test]
fn an_exported_file_appears_whole_or_not_at_all() {
    let (data, files) = (folder(), folder());
    let server = Server::start(data.path());
    server.client(&["set", "a", "1"]);
    let file = write(files.path(), "out.csv", "old");
    let output = run(&["export", "-o", &file, "--server", "http://127.0.0.1:1"], &[]);
    assert_eq!(output.status.code(), Some(12));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "old");
    let missing = files.path().join("none/out.csv");
    let output = server.client(&["export", "-o", missing.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write"), "{output:?}");
    let output = server.client(&["export", "-o", &file, "--json"]);
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&summary["counters"], &summary["format"]), (&json!(1), &json!("csv")));
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(written.starts_with("key,keyBase64,value,expiresAt,version,updatedAt\na,,1,,1,2"), "{written}");
    assert_eq!(summary["bytes"], json!(written.len()));
    let names: Vec<_> = files.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["out.csv"], "nothing else is left");
    assert!(
        server.client(&["export", "-o", "/dev/null", "-q"]).status.success(),
        "a device is no file to replace"
    );
    assert!(Path::new("/dev/null").metadata().is_ok_and(|found| !found.is_file()));
}

#[test]
fn lists_and_tops() {
    let data = folder();
    let server = Server::start(data.path());
    let rows: String = (0..1500).map(|number| format!("k{number:04},{number}\n")).collect();
    assert!(piped(&server, &["import", "-q", "-"], &format!("key,value\n{rows}other,-5\n")).status.success());
    let expected: String = (0..1500).map(|number| format!("k{number:04}\t{number}\n")).collect();
    for (arguments, stdout) in [
        (&["list"][..], expected.clone() + "other\t-5\n"),
        (&["ls", "--prefix", "k"], expected.clone()),
        (&["list", "--limit", "2"], "k0000\t0\nk0001\t1\n".to_owned()),
        (
            &["list", "-n", "1400", "-p", "k"],
            expected.lines().take(1400).map(|line| format!("{line}\n")).collect(),
        ),
        (&["list", "--prefix", "none"], String::new()),
        (&["top", "-n", "2"], "k1499\t1499\nk1498\t1498\n".to_owned()),
        (&["top", "o", "-n", "1"], "other\t-5\n".to_owned()),
        (&["top", "--prefix", "k00", "--number", "1"], "k0099\t99\n".to_owned()),
    ] {
        let output = server.client(arguments);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), stdout), "{arguments:?}");
    }
    let output = server.client(&["top", "--json"]);
    let lines: Vec<Value> =
        text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((lines.len(), &lines[0]["counterKey"]), (10, &json!("k1499")));
    let (status, shown) = Terminal::spawn(server.client_command(&["list", "-p", "k", "-n", "1200"])).finish();
    assert!(status.success());
    assert_eq!(shown.lines().filter(|line| line.contains("KEY")).count(), 1, "one header for all pages");
    assert!(shown.contains("k1199  1,199"), "{shown}");
    let (_, shown) = Terminal::spawn(server.client_command(&["list", "-p", "none"])).finish();
    assert!(shown.contains("there are no counters here"), "{shown}");
}

#[test]
fn long_work_shows_progress_on_a_terminal_only() {
    let (data, files) = (folder(), folder());
    let server = Server::start(data.path());
    let rows: String = (0..50_000).map(|number| format!("k{number},{number}\n")).collect();
    let file = write(files.path(), "rows.csv", &format!("key,value\n{rows}"));
    let out = files.path().join("out.csv");
    let out = out.to_str().unwrap();
    let data_path = data.path().to_str().unwrap().to_owned();
    for (arguments, drawn, said) in [
        (&["import", &file][..], "importing [", "imported 50,000 rows"),
        (&["export", "-o", out], "exporting: ", "exported 50,000 counters"),
    ] {
        let (status, shown) = Terminal::spawn(server.client_command(arguments)).finish();
        assert!(
            status.success() && shown.contains(drawn) && shown.contains(said),
            "{arguments:?}: {shown:?}"
        );
        let quiet = [arguments, &["--quiet"]].concat();
        let (status, shown) = Terminal::spawn(server.client_command(&quiet)).finish();
        assert!(status.success() && shown.is_empty(), "{quiet:?}: {shown:?}");
        let output = server.client(arguments);
        assert!(!text(&output.stderr).contains(drawn), "{output:?}");
    }
    server.kill();
    let mut check = quipu();
    check.args(["check", &data_path]);
    let (status, shown) = Terminal::spawn(check).finish();
    assert!(
        status.success() && shown.contains("checking ") && shown.contains("counters     50,000"),
        "{shown:?}"
    );
}
