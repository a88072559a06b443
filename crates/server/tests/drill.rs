//! Drills, from the stage to the proof.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod support;

use serde_json::Value;
use support::run;

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
