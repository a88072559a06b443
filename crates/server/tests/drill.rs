//! Drills, from the stage to the proof.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{quipu, run, wait_until};

/// The figures in the last line.
fn drill(arguments: &[&str]) -> Value {
    let output = run(&[&["drill"], arguments, &["--json"]].concat(), &[]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(said.lines().last().unwrap()).unwrap()
}

#[test]
fn a_dead_master_stops_its_own_slots_alone() {
    let figures = drill(&["store-down"]);
    assert_eq!(figures["doubled"], 0, "{figures}");
    assert!(figures["recoveredMs"].as_u64().unwrap() > 0, "{figures}");
    // What is lost is up to Redis, and is told.
    assert!(figures["lost"].as_i64().unwrap() <= figures["acknowledged"].as_i64().unwrap() / 10, "{figures}");
}

#[test]
fn a_backlog_is_flushed_once_by_several() {
    let figures = drill(&["backlog", "--changes", "5000"]);
    for at in ["archived", "served"] {
        assert_eq!((&figures[at]["missing"], &figures[at]["tooMany"]), (&0.into(), &0.into()), "{figures}");
    }
    assert!(figures["acknowledged"].as_i64().unwrap() >= 5_000, "{figures}");
}

#[test]
fn lost_ids_come_back_and_no_retry_counts_twice() {
    let figures = drill(&["dedupe-lost"]);
    assert_eq!((&figures["missing"], &figures["tooMany"]), (&0.into(), &0.into()), "{figures}");
    assert!(figures["duplicates"].as_i64().unwrap() > 0, "nothing came back: {figures}");
}

/// Processes that stand, or have files, in a folder.
fn processes_in(folder: &Path) -> Vec<String> {
    let folder = folder.to_str().unwrap();
    let of_process = |entry: std::fs::DirEntry| {
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        // A redis-server says only where it listens.
        let stands_in = std::fs::read_link(entry.path().join("cwd")).is_ok_and(|at| at.starts_with(folder));
        (stands_in || words.contains(folder)).then_some(words)
    };
    std::fs::read_dir("/proc").unwrap().filter_map(|entry| of_process(entry.unwrap())).collect()
}

#[test]
fn a_drill_that_is_ended_leaves_nothing_behind() {
    // By a signal, or because nobody hears what it tells.
    for signal in [Some(Signal::TERM), Some(Signal::INT), None] {
        let folder = tempfile::tempdir().unwrap();
        // PostgreSQL runs as another user, who must get through.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let mut child = quipu()
            .args(["drill", "dedupe-lost"])
            .env("TMPDIR", folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // By the first line that says something was acknowledged everything runs.
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(said.any(|line| line.contains("acknowledged")));
        assert!(processes_in(folder.path()).len() >= 2, "{:?}", processes_in(folder.path()));
        match signal {
            Some(signal) => kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap(),
            None => drop(said),
        }
        assert!(!child.wait().unwrap().success());
        wait_until("redis-server and PostgreSQL are gone", || processes_in(folder.path()).is_empty());
        let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
