//! Starting, stopping and refusing to start; settings; checking a folder.

mod support;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};
use support::{Server, run, serve_command};

/// Runs `quipu serve` where it must refuse; returns the exit code and what it said.
fn refused(data: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let output = serve_command(data).args(arguments).output().expect("the binary runs");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn what_cannot_work_is_refused_with_advice() {
    let data = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let file = data.path().join("a-file");
    std::fs::write(&file, "not a folder").unwrap();
    let config = data.path().join("quipu.toml");
    std::fs::write(&config, "memroy = \"1GiB\"").unwrap();
    let config = config.to_str().unwrap();
    let rows: &[(&Path, &[&str], i32, &[&str])] = &[
        (data.path(), &["--http", "0.0.0.0:0"], 2, &["http.listen", "--insecure"]),
        (data.path(), &["--resp", "0.0.0.0:0"], 2, &["resp.listen", "--insecure"]),
        (data.path(), &["--durability", "often"], 2, &["flag --durability", "interval:<ms>"]),
        (data.path(), &["--config", config], 2, &["quipu.toml", "memroy"]),
        (data.path(), &["--config", "/nonexistent.toml"], 2, &["cannot read /nonexistent.toml"]),
        (data.path(), &["--http", &taken], 1, &[&taken, "--http"]),
        (data.path(), &["--resp", &taken], 1, &[&taken, "--resp"]),
        (&file, &[], 1, &["a-file"]),
    ];
    for (data, arguments, code, said) in rows {
        let (found, stderr) = refused(data, arguments);
        assert_eq!(found, Some(*code), "{arguments:?}: {stderr}");
        for part in *said {
            assert!(stderr.contains(part), "{arguments:?} said {stderr:?}, not {part:?}");
        }
        assert!(!stderr.contains(" serves: "), "{stderr}");
    }
}

#[test]
fn a_folder_in_use_is_refused_and_the_first_server_goes_on() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    server.client(&["incr", "a"]);
    let (code, stderr) = refused(data.path(), &[]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("in use by another process"), "{stderr}");
    let check = run(&["check", data.path().to_str().unwrap()], &[]);
    assert!(!check.status.success());
    assert_eq!(server.client(&["incr", "a"]).stdout, b"2\n");
}

#[test]
fn both_signals_end_it_in_order_and_the_line_says_where_it_serves() {
    let data = tempfile::tempdir().unwrap();
    for (signal, count) in [(Signal::TERM, "1\n"), (Signal::INT, "2\n")] {
        let mut server = Server::start_with(data.path(), &["--durability", "interval:1000"]);
        assert_eq!(server.client(&["incr", "a"]).stdout, count.as_bytes());
        // Connections that ask nothing do not hold up the end.
        let silent = TcpStream::connect(server.http).unwrap();
        let mut half = TcpStream::connect(server.http).unwrap();
        half.write_all(b"GET /hea").unwrap();
        let resp = TcpStream::connect(server.resp).unwrap();
        server.signal(signal);
        let (status, log) = server.wait();
        assert!(status.success(), "{status}: {log:?}");
        assert!(!log.iter().any(|line| line.contains("did not end in time")), "{log:?}");
        drop((silent, half, resp));
        let ready = format!("data {}, durability interval:1000", data.path().display());
        let lines: Vec<_> = log.iter().filter(|line| line.contains(" serves: ")).collect();
        assert!(lines.len() == 1 && lines[0].starts_with("quipu ") && lines[0].ends_with(&ready), "{log:?}");
    }
}

#[test]
fn a_healthy_folder_checks_out() {
    let data = tempfile::tempdir().unwrap();
    let folder = data.path().to_str().unwrap();
    let server = Server::start(data.path());
    server.client(&["set", "a", "40"]);
    server.client(&["incr", "b", "2", "--id", "r"]);
    server.kill();
    let output = run(&["check", folder, "--json"], &[]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{report}");
    for (field, expected) in
        [("ok", json!(true)), ("counters", json!(2)), ("sumText", json!("42")), ("requestIds", json!(1))]
    {
        assert_eq!(report[field], expected, "{field}: {report}");
    }
    let output = run(&["check", folder], &[]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("all is well"));
    let output = run(&["check", "/nonexistent"], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent"));
}

#[test]
fn settings_and_where_they_come_from() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("quipu.toml");
    std::fs::write(&file, "memory = \"2GiB\"\npartitions = 8\n[http]\nx_request_id = \"ignore\"\n").unwrap();
    let arguments = ["config", "show", "--json", "--config", file.to_str().unwrap(), "--durability", "none"];
    let output = run(&arguments, &[("QUIPU_MEMORY", "3GiB")]);
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    let file = file.display().to_string();
    for (name, value, source) in [
        ("durability", "none", "flag --durability"),
        ("memory", "3GiB", "environment QUIPU_MEMORY"),
        ("partitions", "8", &file),
        ("http.x_request_id", "ignore", &file),
        ("resp.listen", "127.0.0.1:7071", "default"),
    ] {
        let expected = json!({"name": name, "value": value, "source": source});
        assert!(shown["settings"].as_array().unwrap().contains(&expected), "no {expected} in {shown}");
    }
    let output = run(&["config", "show"], &[]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("data"));
}

#[test]
fn completions_are_written_for_every_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell], &[]);
        assert!(
            output.status.success() && String::from_utf8_lossy(&output.stdout).contains("quipu"),
            "{shell}"
        );
    }
}
