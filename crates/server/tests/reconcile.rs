//! `quipu reconcile` with the real binary: what is found, what is corrected, what is refused.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod support;

use std::path::Path;
use std::process::Output;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use support::cluster::{found, start_settled};
use support::postgres::Postgres;
use support::terminal::Terminal;
use support::{Server, wait_until};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn set(server: &Server, counters: &[(&str, &str)]) {
    for (key, value) in counters {
        let reply =
            server.request("PUT", &format!("/api/v1/counters/{key}"), &[], &format!("{{\"value\":{value}}}"));
        assert_eq!(reply.status, 200, "{reply:?}");
    }
}

fn value(server: &Server, key: &str) -> i64 {
    text(&server.client(&["get", key]).stdout).trim().parse().unwrap()
}

fn now() -> String {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis().to_string()
}

/// Runs it until no counter is too fresh to be judged.
fn settled(server: &Server, source: &Path, more: &[&str]) -> Output {
    let run = |more: &[&str]| {
        let fixed = ["reconcile", "--source", source.to_str().unwrap(), "--as-of", &now(), "--settle", "1ms"];
        server.client(&[&fixed[..], more].concat())
    };
    wait_until("all counters rest", || {
        let output = run(&["--json"]);
        let lines = text(&output.stdout);
        let summary: Value =
            serde_json::from_str(lines.lines().last().unwrap_or_default()).unwrap_or_default();
        summary["summary"]["busy"] == 0
    });
    run(more)
}

fn file(folder: &Path, name: &str, content: &str) -> std::path::PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

#[test]
fn a_file_is_compared_and_what_differs_is_corrected_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let policy = server.client(&["policy", "set", "stock:*", "--audit", "1h"]);
    assert!(policy.status.success(), "{policy:?}");
    set(
        &server,
        &[("stock:1", "5"), ("stock:2", "7"), ("stock:3", "9"), ("stock:extra", "4"), ("other", "1")],
    );
    let truth = file(
        folder.path(),
        "truth.csv",
        "key,value\nstock:1,5\nstock:2,10\nstock:3,8\nstock:new,2\nstock:none,0\n",
    );

    let output = settled(&server, &truth, &[]);
    assert_eq!(output.status.code(), Some(16), "{output:?}");
    assert_eq!(
        text(&output.stdout),
        "stock:2\t10\t7\t3\tdrift\nstock:3\t8\t9\t-1\tdrift\nstock:new\t2\t-\t2\tmissing\n"
    );
    assert!(text(&output.stderr).contains("5 rows compared"), "{output:?}");
    assert!(
        text(&output.stderr).contains("2 drifts (sum 2, size 4), 1 missing, 0 unlisted, 0 busy"),
        "{output:?}"
    );
    // Nothing was changed, and nothing is with --prefix, which also tells what the source lacks.
    let output = settled(&server, &truth, &["--prefix", "stock:"]);
    assert!(text(&output.stdout).ends_with("stock:extra\t-\t4\t-4\tunlisted\n"), "{output:?}");
    assert_eq!((value(&server, "stock:2"), value(&server, "stock:extra")), (7, 4));

    let report = folder.path().join("report.ndjson");
    let apply = ["--prefix", "stock:", "--apply", "--report", report.to_str().unwrap(), "--actor", "anna"];
    let output = settled(&server, &truth, &apply);
    // What is missing and what is unlisted is left, and that is said.
    assert_eq!(output.status.code(), Some(16), "{output:?}");
    assert!(text(&output.stderr).contains("2 counters were left alone"), "{output:?}");
    assert_eq!(
        (value(&server, "stock:2"), value(&server, "stock:3"), value(&server, "stock:new")),
        (10, 8, 0)
    );
    let trail = text(&server.client(&["audit", "stock:2"]).stdout);
    assert!(trail.contains("adjust\t+3\t10"), "{trail}");
    assert!(
        trail.contains("anna") && trail.contains("reconcile: the source has 10, the counter had 7"),
        "{trail}"
    );

    let all = [&apply[..], &["--create-missing", "--zero-unlisted"]].concat();
    let output = settled(&server, &truth, &all);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(
        (value(&server, "stock:new"), value(&server, "stock:extra"), value(&server, "other")),
        (2, 0, 1)
    );
    let output = settled(&server, &truth, &all);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), String::new()), "{output:?}");
    // Three runs with --report, each from a `run` to a `summary`.
    let rows: Vec<Value> = std::fs::read_to_string(report)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let runs = rows.iter().filter(|row| row["run"]["apply"] == true).count();
    let applied: u64 = rows.iter().filter_map(|row| row["summary"]["applied"].as_u64()).sum();
    assert_eq!((runs, applied), (3, 4), "{rows:?}");
    // What was made and is missing again is made again.
    for _ in 0..2 {
        let deleted = server.request("DELETE", "/api/v1/counters/stock:new", &[], "");
        assert_eq!(deleted.status, 200, "{deleted:?}");
        let output = settled(&server, &truth, &["--apply", "--create-missing"]);
        assert_eq!((output.status.code(), value(&server, "stock:new")), (Some(0), 2), "{output:?}");
    }
}

#[test]
fn what_changed_since_is_not_judged() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    set(&server, &[("a", "5"), ("b", "7")]);
    let truth =
        file(folder.path(), "truth.ndjson", "{\"key\":\"a\",\"value\":50}\n{\"key\":\"b\",\"value\":7}\n");
    let source = truth.to_str().unwrap();
    let past =
        server.client(&["reconcile", "--source", source, "--as-of", "2026-02-23T10:00:00Z", "--apply"]);
    assert_eq!(past.status.code(), Some(0), "{past:?}");
    assert_eq!(text(&past.stdout), "a\t50\t5\t45\tbusy\n");
    assert!(
        text(&past.stderr).contains("2 counters changed all the time and were not judged (1 of them"),
        "{past:?}"
    );
    assert_eq!(value(&server, "a"), 5);
    let judged = settled(&server, &truth, &["--apply"]);
    assert_eq!((judged.status.code(), value(&server, "a")), (Some(0), 50), "{judged:?}");
}

#[test]
fn what_is_right_in_the_future_only_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    set(&server, &[("a", "5")]);
    let truth = file(folder.path(), "truth.csv", "key,value\na,3\n");
    let run = |more: &[&str]| {
        let fixed = ["reconcile", "--source", truth.to_str().unwrap(), "--settle", "1ms", "--apply"];
        let output = server.client(&[&fixed[..], more].concat());
        (output.status.code(), text(&output.stderr))
    };
    let (code, said) = run(&["--as-of", "2999-01-01T00:00:00Z"]);
    assert!(code == Some(2) && said.contains("--as-of lies in the future"), "{code:?} {said}");
    let later = SystemTime::now() + Duration::from_secs(60);
    std::fs::File::options().append(true).open(&truth).unwrap().set_modified(later).unwrap();
    let (code, said) = run(&[]);
    assert!(code == Some(2) && said.contains("was last written in the future"), "{code:?} {said}");
    assert_eq!(value(&server, "a"), 5);
}

#[test]
fn a_bad_row_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    set(&server, &[("a", "5")]);
    for (content, expected) in [
        (
            "key,value\na,6\nb,9223372036854775808\n",
            "line 3: value: \"9223372036854775808\" is not a whole number in range",
        ),
        ("key,value\na,6\nb\n", "line 3: 1 fields, where the header names 2"),
        ("key,value\na,6\na,6\n", "line 3: a second row for a"),
        ("key,values\na,6\n", "there is no column \"values\""),
        ("key,value\na,6\nz,6\n", "the source has z, which does not begin with a"),
    ] {
        let truth = file(folder.path(), "bad.csv", content);
        let arguments =
            ["reconcile", "--source", truth.to_str().unwrap(), "--apply", "--settle", "1ms", "--prefix", "a"];
        let output = server.client(&arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        assert!(text(&output.stderr).contains(expected), "{output:?}");
        assert_eq!(value(&server, "a"), 5);
    }
    let absent = server.client(&["reconcile", "--source", "/nowhere.csv"]);
    assert_eq!(absent.status.code(), Some(2), "{absent:?}");
}

#[test]
fn a_refused_correction_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    set(&server, &[("stock:1", "5"), ("stock:2", "5"), ("far", "-9223372036854775808")]);
    let policy = server.client(&["policy", "set", "stock:*", "--max", "9"]);
    assert!(policy.status.success(), "{policy:?}");
    let truth = file(folder.path(), "t.csv", "key,value\nstock:1,10\nstock:2,9\nfar,9223372036854775807\n");
    let output = settled(&server, &truth, &["--apply"]);
    assert_eq!(output.status.code(), Some(13), "{output:?}");
    assert!(text(&output.stderr).contains("2 corrections were refused; the first: stock:1"), "{output:?}");
    assert_eq!(
        (value(&server, "stock:1"), value(&server, "stock:2"), value(&server, "far")),
        (5, 9, i64::MIN)
    );
}

#[test]
fn a_query_is_a_source() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let postgres = Postgres::start();
    set(&server, &[("1", "3"), ("2", "1"), ("3", "9")]);
    let url = postgres.url();
    let run = |source: &str, more: &[&str]| {
        let fixed = ["reconcile", "--source", source, "--settle", "20ms", "--rounds", "100"];
        server.client(&[&fixed[..], more].concat())
    };
    // A sum of NUMERIC, keys that are numbers, one counter that is missing.
    let rows = "(VALUES (1, 2.0), (1, 1.0), (2, 5.0), (3, 9.0), (4, 4.0)) AS sold (item, amount)";
    let query = format!("{url}?query=SELECT item AS key, sum(amount) AS value FROM {rows} GROUP BY item; ");
    let output = run(&query, &["--prefix", ""]);
    assert_eq!(output.status.code(), Some(16), "{output:?}");
    let mut lines: Vec<String> = text(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["2\t5\t1\t4\tdrift", "4\t4\t-\t4\tmissing"]);
    let output = run(&query, &["--apply", "--create-missing", "--reason", "counted anew"]);
    assert_eq!(
        (output.status.code(), value(&server, "2"), value(&server, "4")),
        (Some(0), 5, 4),
        "{output:?}"
    );
    let output = run(&query, &["--apply", "--create-missing"]);
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), String::new()), "{output:?}");
    for (query, code, expected) in [
        ("SELECT 1", 2, "name one key and one value"),
        ("SELECT nothing", 2, "column \"nothing\" does not exist"),
        ("DELETE FROM pg_class", 2, "syntax error"),
        (
            "SELECT 'a', 1 UNION ALL SELECT 'a', 2",
            2,
            "row 2 of the query, in the order of keys: a second row for \"a\"",
        ),
        ("SELECT 'a', NULL::int", 2, "the value of \"a\" is null; write coalesce(..., 0)"),
        ("SELECT NULL, 1", 2, "the key is null"),
        ("SELECT 'a', 1.5", 2, "1.5, is not a whole number"),
        ("SELECT '', 1", 2, "a key has 1 to 512 bytes, not 0"),
    ] {
        let output = run(&url, &["--query", query, "--apply"]);
        assert_eq!(output.status.code(), Some(code), "{query}: {output:?}");
        assert!(text(&output.stderr).contains(expected), "{query}: {output:?}");
    }
    let nobody = run("postgres://quipu:secret@127.0.0.1:1/x", &["--query", "SELECT 1, 2"]);
    assert_eq!(nobody.status.code(), Some(1), "{nobody:?}");
    assert!(!text(&nobody.stderr).contains("secret"), "{nobody:?}");
}

#[test]
fn a_cluster_is_reconciled_like_one_server() {
    let folder = tempfile::tempdir().unwrap();
    let servers = start_settled(&found(folder.path(), 3));
    set(&servers[0], &[("a", "5"), ("b", "7"), ("c", "9")]);
    let truth = file(folder.path(), "t.csv", "key,value\na,6\nb,7\nc,0\n");
    let output = settled(&servers[1], &truth, &["--apply"]);
    assert_eq!(text(&output.stdout), "a\t6\t5\t1\tdrift\tapplied\nc\t0\t9\t-9\tdrift\tapplied\n");
    assert_eq!((output.status.code(), value(&servers[2], "a"), value(&servers[0], "c")), (Some(0), 6, 0));
}

#[test]
fn a_person_sees_a_table() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    set(&server, &[("likes", "1234")]);
    let truth = file(folder.path(), "t.csv", "key,value\nlikes,2000\n");
    settled(&server, &truth, &[]);
    let source = truth.to_str().unwrap().to_owned();
    let arguments = ["reconcile", "--source", &source, "--as-of", &now(), "--settle", "1ms"];
    let mut command = server.client_command(&arguments);
    command.env("NO_COLOR", "1");
    let mut terminal = Terminal::spawn(command);
    terminal.wait_for("KEY    SOURCE  QUIPU  DRIFT  FINDING");
    terminal.wait_for("likes   2,000  1,234    766  drift");
    terminal.wait_for("1 counters differ from the source; --apply corrects them");
}
