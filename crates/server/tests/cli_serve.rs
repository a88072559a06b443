//! Starting, stopping and refusing to start; settings; checking a folder.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod support;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
    // Whose number of partitions holds over the setting.
    let large = tempfile::tempdir().unwrap();
    Server::start_with(large.path(), &["--partitions", "256"]).kill();
    let rows: &[(&Path, &[&str], i32, &[&str])] = &[
        (data.path(), &["--http", "0.0.0.0:0"], 2, &["http.listen", "--insecure"]),
        (data.path(), &["--resp", "0.0.0.0:0"], 2, &["resp.listen", "--insecure"]),
        (data.path(), &["--durability", "often"], 2, &["flag --durability", "interval:<ms>"]),
        (data.path(), &["--config", config], 2, &["quipu.toml", "memroy"]),
        (data.path(), &["--config", "/nonexistent.toml"], 2, &["cannot read /nonexistent.toml"]),
        (data.path(), &["--memory", "1"], 2, &["flag --memory", "at least 32MiB"]),
        (data.path(), &["--id-window", "1ms"], 2, &["flag --id-window", "at least 1s"]),
        (data.path(), &["--memory", "64MiB", "--partitions", "256"], 2, &["memory: ", "at least 512MiB"]),
        (large.path(), &["--memory", "64MiB"], 2, &["at least 512MiB"]),
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
    assert_eq!(check.status.code(), Some(1));
    assert_eq!(server.client(&["incr", "a"]).stdout, b"2\n");
}

#[test]
fn signals_end_it_in_order_and_the_line_says_where_it_serves() {
    let data = tempfile::tempdir().unwrap();
    for (signal, times, count) in
        [(Signal::TERM, 1, "1\n"), (Signal::INT, 1, "2\n"), (Signal::HUP, 2, "3\n"), (Signal::TERM, 3, "4\n")]
    {
        let mut server = Server::start_with(data.path(), &["--durability", "interval:1000"]);
        assert_eq!(server.client(&["incr", "a"]).stdout, count.as_bytes());
        // Connections that ask nothing do not hold up the end.
        let silent = TcpStream::connect(server.http).unwrap();
        let mut half = TcpStream::connect(server.http).unwrap();
        half.write_all(b"GET /hea").unwrap();
        let resp = TcpStream::connect(server.resp).unwrap();
        (0..times).for_each(|_| server.signal(signal));
        let (status, log) = server.wait();
        assert!(status.success(), "{status}: {log:?}");
        assert!(!log.iter().any(|line| line.contains("did not end in time")), "{log:?}");
        drop((silent, half, resp));
        let ready = format!("data {}, durability interval:1000", data.path().display());
        let lines: Vec<_> = log.iter().filter(|line| line.contains(" serves: ")).collect();
        assert!(lines.len() == 1 && lines[0].starts_with("quipu ") && lines[0].ends_with(&ready), "{log:?}");
    }
}

/// As a person at a terminal would: pressed again and again while a request that does not end holds up the drain.
#[test]
fn ctrl_c_again_ends_it_at_once() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    let mut half = TcpStream::connect(server.http).unwrap();
    half.write_all(b"PUT /api/v1/counters/a HTTP/1.1\r\nHost: q\r\nContent-Length: 9\r\n\r\n{").unwrap();
    let in_flight = |server: &Server| server.request("GET", "/metrics", &[], "").body.contains("in_flight 2");
    while !in_flight(&server) {
        std::thread::yield_now();
    }
    let id = rustix::process::Pid::from_raw(server.process_id() as i32).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&is_over);
    let pressing = std::thread::spawn(move || {
        while !told.load(Ordering::Relaxed) && rustix::process::kill_process(id, Signal::INT).is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    });
    let (status, log) = server.wait();
    is_over.store(true, Ordering::Relaxed);
    pressing.join().unwrap();
    assert_eq!(status.code(), Some(130), "{log:?}");
    assert!(log.iter().any(|line| line.contains("stopping at once")), "{log:?}");
}

/// `nohup` makes a process ignore the end of its terminal, and that holds.
#[test]
fn a_hang_up_is_ignored_where_it_was() {
    let data = tempfile::tempdir().unwrap();
    let serve = serve_command(data.path());
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(serve.get_program()).args(serve.get_args());
    command.envs(serve.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let server = Server::spawn(command);
    server.signal(Signal::HUP);
    assert_eq!(server.client(&["incr", "a"]).stdout, b"1\n");
    let (status, log) = server.terminate();
    assert!(status.success() && log.iter().any(|line| line.contains("draining after SIGTERM")), "{log:?}");
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

/// Damage met while the folder is opened is told like damage met later.
#[test]
fn damage_is_found_and_told() {
    for (part, said) in [("log/000000000001.log", "the log is damaged"), ("quipu.meta", "is damaged")] {
        let data = tempfile::tempdir().unwrap();
        let folder = data.path().to_str().unwrap();
        let server = Server::start(data.path());
        for number in 0..100 {
            server.client(&["set", &format!("k{number}"), "1"]);
        }
        server.terminate();
        let path = data.path().join(part);
        let mut bytes = std::fs::read(&path).unwrap();
        // In a log: among records, of which the last is not the one that suffers.
        let middle = bytes.iter().rposition(|byte| *byte != 0).unwrap() / 2;
        bytes[middle..middle + 3].iter_mut().for_each(|byte| *byte ^= 0x5a);
        std::fs::write(&path, bytes).unwrap();

        let output = run(&["check", folder, "--json"], &[]);
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((output.status.code(), &report["ok"]), (Some(14), &json!(false)), "{part}: {report}");
        let problem = report["problems"][0].as_str().unwrap();
        assert!(problem.contains(said) && report["counters"].is_null(), "{part}: {report}");
        let output = run(&["check", folder], &[]);
        assert_eq!(output.status.code(), Some(14), "{part}");
        let shown = String::from_utf8_lossy(&output.stdout);
        assert_eq!(shown, format!("PROBLEM      {problem}\n"), "{part}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("restore it from a backup"), "{part}");
    }
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
    for (name, value, source, origin, line) in [
        ("durability", "none", "flag", json!("--durability"), json!(null)),
        ("memory", "3GiB", "environment", json!("QUIPU_MEMORY"), json!(null)),
        ("partitions", "8", "file", json!(file), json!(2)),
        ("http.x_request_id", "ignore", "file", json!(file), json!(4)),
        ("resp.listen", "127.0.0.1:7071", "default", json!(null), json!(null)),
    ] {
        let settings = shown["settings"].as_array().unwrap();
        let found = settings.iter().find(|setting| setting["name"] == name).unwrap();
        let expected = (json!(value), json!(source), origin, line);
        let fields = ["value", "source", "origin", "line"].map(|field| found[field].clone());
        assert_eq!(fields, <[Value; 4]>::from(expected), "{name}");
    }
    let output = run(&["config", "show", "--config", &file], &[("QUIPU_MEMROY", "1GiB")]);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(stdout.contains(&format!("partitions\t8\t{file}:2\n")), "{stdout}");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("QUIPU_MEMROY is no setting") && stderr.contains("QUIPU_MEMORY?"), "{stderr}");
}

#[test]
fn a_configuration_file_is_checked_with_the_line_of_the_fault() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("quipu.toml");
    let template = run(&["config", "template"], &[]).stdout;
    for (text, code, stdout, stderr) in [
        ("memory = \"2GiB\"\n", 0, "makes sense; it holds 1 settings", ""),
        (std::str::from_utf8(&template).unwrap(), 0, "it holds 0 settings", ""),
        (
            "\n\nmemroy = \"2GiB\"\n",
            2,
            "",
            "quipu.toml:3: memroy: there is no such setting; did you mean memory?",
        ),
        ("[http]\nlisten = \"nowhere\"\n", 2, "", "quipu.toml:2: http.listen: \"nowhere\" is not an address"),
        ("memory = \n", 2, "", "quipu.toml:1: "),
        ("memory = \"1\"\n", 2, "", "quipu.toml:1: memory: \"1\" is not a size of at least 32MiB"),
        (
            "\nid_window = \"1ms\"\n",
            2,
            "",
            "quipu.toml:2: id_window: \"1ms\" is not a duration of at least 1s",
        ),
        ("memory = \"64MiB\"\npartitions = 256\n", 2, "", "memory: 256 partitions need at least 512MiB"),
    ] {
        std::fs::write(&file, text).unwrap();
        let output = run(&["config", "check", file.to_str().unwrap()], &[]);
        let (said, complained) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{text:?}: {complained}");
        assert!(said.contains(stdout) && complained.contains(stderr), "{text:?}: {said} {complained}");
    }
}

/// Starts a server that says as JSON where it serves, and counts there once.
fn serve_and_count(data: &Path, arguments: &[&str], stderr: Stdio) -> (Child, Value) {
    let mut command = serve_command(data);
    let command = command.arg("--json").args(arguments).stdout(Stdio::piped()).stderr(stderr);
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    let http = format!("http://{}", ready["http"].as_str().unwrap());
    assert_eq!(run(&["incr", "a", "--server", &http], &[]).stdout, b"1\n");
    (child, ready)
}

#[test]
fn where_it_serves_is_told_as_json_too() {
    let data = tempfile::tempdir().unwrap();
    let (mut child, ready) = serve_and_count(data.path(), &[], Stdio::null());
    assert_eq!((&ready["pid"], &ready["durability"]), (&json!(child.id()), &json!("sync")));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The disk with the server's log may be as full as the one with its data, which is when there is most to say.
#[test]
fn a_stderr_that_cannot_be_written_to_does_not_end_it() {
    let data = tempfile::tempdir().unwrap();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let (mut child, _) = serve_and_count(data.path(), &["--log", "trace"], full.into());
    let id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(id, Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn completions_are_written_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(&["completions", shell], &[]);
        assert!(
            output.status.success() && String::from_utf8_lossy(&output.stdout).contains("quipu"),
            "{shell}"
        );
    }
}

/// As a person would: the script is sourced, and the shell is asked what could follow.
#[test]
fn bash_completes_commands_and_options() {
    let script = r#"
        source <("$QUIPU" completions bash)
        complete_line() {
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
            _quipu quipu "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
            echo "${COMPREPLY[*]}"
        }
        complete_line quipu wa
        complete_line quipu incr --sat
        complete_line quipu policy de
        complete_line quipu completions zs"#;
    let output = std::process::Command::new("bash")
        .args(["-c", script])
        .env("QUIPU", support::QUIPU)
        .output()
        .expect("there is bash");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "watch\n--saturate\ndel\nzsh\n", "{stderr}");
}
