//! The command line as a person sees it: on a terminal, with colours, tables and things that are redrawn; and that
//! none of it gets into a pipe.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod support;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use support::terminal::Terminal;
use support::{Server, quipu};

/// What is shown, and the exit code.
fn shown(command: Command) -> (Option<i32>, String) {
    let (status, text) = Terminal::spawn(command).finish();
    (status.code(), text)
}

#[test]
fn numbers_are_grouped_and_counters_are_a_table() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    server.client(&["set", "likes", "1234567"]);
    server.client(&["set", "stock", "-1000", "--ttl", "90m"]);
    let plain = |arguments: &[&str]| {
        let mut command = server.client_command(arguments);
        command.env("NO_COLOR", "1");
        shown(command)
    };
    for (arguments, expected) in [
        (&["get", "likes"][..], &["1,234,567  (version 1, changed "][..]),
        (&["get", "stock"], &["-1,000  (version 1, changed ", "expires in 1h "]),
        (&["get", "nothing"], &["0  (does not exist)\n"]),
        (&["incr", "likes"], &["1,234,568\n"]),
        (&["del", "likes"], &["gone, it was 1,234,568\n"]),
        (
            &["mget", "stock", "none"],
            &[
                "KEY     VALUE  VERSION  CHANGED  EXPIRES\n",
                "stock  -1,000        1  ",
                "none        0        -  -        -\n",
            ],
        ),
        (
            &["policy", "set", "s:*", "--max", "1000000", "--ttl", "1h"],
            &[
                "PATTERN  MIN        MAX  BEYOND  TTL  WRITES   COUNTS  LIMIT\n",
                "s:*        -  1,000,000  refuse  1h   allowed  sum     -\n",
            ],
        ),
        (
            &["config", "show"],
            &["SETTING               VALUE", "FROM\n", "memory                1GiB            default\n"],
        ),
    ] {
        let (code, text) = plain(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {text}");
        for part in expected {
            assert!(text.contains(part), "{arguments:?} shows {text:?}, not {part:?}");
        }
        assert!(!text.contains('\u{1b}'), "NO_COLOR is respected: {text:?}");
    }
}

#[test]
fn colours_are_for_terminals_only() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    for (arguments, coloured) in [
        (&["mget", "a"][..], "\u{1b}[1mKEY"),
        (&["get", "a"], "\u{1b}[2m(does not exist)"),
        (&["decr", "a", "--min", "0"], "\u{1b}[31merror:"),
        (&["incr", "a", "x"], "\u{1b}[31merror:"),
        (&["--help"], "\u{1b}[1mCount"),
    ] {
        let (_, text) = shown(server.client_command(arguments));
        assert!(text.contains(coloured), "{arguments:?} shows {text:?}");
        let piped = server.client(arguments);
        assert!(![piped.stdout, piped.stderr].concat().contains(&0x1b), "{arguments:?}");
        let mut dumb = server.client_command(arguments);
        dumb.env("NO_COLOR", "1");
        assert!(!shown(dumb).1.contains('\u{1b}'), "{arguments:?}");
    }
}

#[test]
fn help_fits_the_screen() {
    let mut command = quipu();
    command.arg("--help").env("NO_COLOR", "1");
    let (code, text) = shown(command);
    assert_eq!(code, Some(0));
    assert!(text.lines().count() <= 24 && text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    // More than a pipe holds, so that it must notice.
    let keys: Vec<String> = (0..5_000).map(|number| format!("a-rather-long-key-{number}")).collect();
    let arguments: Vec<&str> = ["mget"].into_iter().chain(keys.iter().map(String::as_str)).collect();
    let mut child =
        server.client_command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"a-rather-l");
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    // By the signal, as `cat` would; a shell shows 141.
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(13));
}

#[test]
fn a_result_that_cannot_be_written_is_a_failure() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    server.client(&["set", "a", "1"]);
    let target = format!("resp://{}", server.resp);
    for arguments in [
        &["get", "a"][..],
        &["get", "a", "--json"],
        &["list"],
        &["export"],
        &["watch", "a"],
        &["config", "show"],
        &["manual"],
        &["bench", "--target", &target, "--command", "get", "--operations", "10", "--connections", "1"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = server.client_command(arguments).stdout(full).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(stderr.contains("stdout: No space left on device"), "{arguments:?}: {stderr}");
    }
}

#[test]
fn watching_redraws_in_place_survives_a_restart_and_restores_the_terminal() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let (http, resp) = (server.http.to_string(), server.resp.to_string());
    server.client(&["set", "likes", "1000"]);
    let mut terminal =
        Terminal::spawn(server.client_command(&["watch", "likes", "none", "--interval", "20ms"]));
    terminal.wait_for("likes  1,000");
    terminal.wait_for("\u{1b}[3A\r\u{1b}[J");
    server.client(&["incr", "likes", "500"]);
    terminal.wait_for("likes  1,500");
    terminal.forget();
    server.kill();
    terminal.wait_for("does not answer; waiting for it");
    let server = Server::start_with(data.path(), &["--http", &http, "--resp", &resp]);
    terminal.wait_for("answers again");
    server.client(&["incr", "likes", "500"]);
    terminal.wait_for("likes  2,000");
    terminal.interrupt();
    let (status, text) = terminal.finish();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(2), "{text:?}");
    assert!(text.ends_with("\u{1b}[?7h\u{1b}[?25h"), "the cursor is back: {text:?}");
}

#[test]
fn watching_behind_a_pipe_prints_changes() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    server.client(&["set", "a", "5"]);
    let output = server.client(&["watch", "a", "b", "--count", "3", "--interval", "1ms"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "a\t5\t0.0\nb\t0\t0.0\n");
    let output = server.client(&["watch", "a", "--count", "1", "--json"]);
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&line["counterKey"], &line["value"]), (&"a".into(), &5.into()));
    server.kill();
    let output = support::run(&["watch", "a", "--server", "http://127.0.0.1:1"], &[]);
    assert_eq!(output.status.code(), Some(12), "nobody was ever there");
}

#[test]
fn changes_are_printed_as_they_come() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    server.client(&["set", "p:a", "5"]);
    // With so long an interval, nothing would be seen by looking.
    let mut child = server
        .client_command(&["watch", "--prefix", "p:", "--interval", "10m", "--json"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || {
        let line: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        (
            line["counterKey"].as_str().unwrap().to_owned(),
            line["value"].as_i64().unwrap(),
            line["exists"] == true,
        )
    };
    assert_eq!(next(), ("p:a".to_owned(), 5, true));
    server.client(&["incr", "p:b"]);
    assert_eq!(next(), ("p:b".to_owned(), 1, true));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_restart_while_watching_misses_nothing() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let (http, resp) = (server.http.to_string(), server.resp.to_string());
    for key in ["p:a", "p:b", "p:c"] {
        server.client(&["set", key, "5"]);
    }
    let mut child = server
        .client_command(&["watch", "p:c", "--prefix", "p:", "--interval", "10ms"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut key_and_value = || {
        let line = lines.next().unwrap().unwrap();
        line.rsplit_once('\t').unwrap().0.to_owned()
    };
    let mut first = [key_and_value(), key_and_value(), key_and_value()];
    first.sort();
    assert_eq!(first, ["p:a\t5", "p:b\t5", "p:c\t5"]);
    server.kill();
    let server = Server::start_with(data.path(), &["--http", &http, "--resp", &resp]);
    server.client(&["del", "p:a"]);
    server.client(&["incr", "p:b"]);
    let mut then = [key_and_value(), key_and_value()];
    then.sort();
    assert_eq!(then, ["p:a\t0", "p:b\t6"]);
    child.kill().unwrap();
    child.wait().unwrap();
}
