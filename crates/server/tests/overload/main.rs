//! Three times what the server can serve, for a few seconds: it stays up, within its memory, refuses what it cannot do
//! with the error made for that, counts what it acknowledged and nothing else, and serves as before afterwards.
//!
//! `cargo xtask torture overload` does the same for a minute and measures; here nothing depends on how fast it goes.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

#[path = "../support/mod.rs"]
mod support;
mod watch;

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use support::{Server, quipu};
use watch::{Answer, Front, Phase, Question, Watch, Watched, is_served_within, resident_bytes};

/// How much memory an overload may take on top: the buffers of all connections (256 MiB), as much again for what lies
/// around them (batches at work, the allocator's slack, checkpoints).
const GROWTH_BYTES_MAX: u64 = 512 << 20;

/// What is offered, as a multiple of what was served in a closed loop.
const OFFERED_TIMES: f64 = 3.0;

/// How long to wait for something that must happen. Never reached when all is well.
const PATIENCE: Duration = Duration::from_secs(60);

struct Overload {
    front: Front,
    target: String,
    /// The load, but for its pace.
    load: &'static str,
    /// The connections of the flood, which do not wait for replies.
    flood: &'static str,
    /// The only error that may come.
    refusal: &'static str,
}

fn bench(overload: &Overload, line: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("result.json");
    let mut command: Command = quipu();
    command.args(["bench", "--target", &overload.target, "--keys", "1000", "--json"]).arg(&json);
    let output = command.args(line.split_whitespace()).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    // This is also the proof of the sum: the generator fails when it is not what was acknowledged.
    assert!(output.status.success(), "{line}: {complaint}");
    serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap()
}

fn survives(server: &Server, overload: &Overload) {
    let served = bench(overload, &format!("{} --seconds 1", overload.load))["throughput"].as_f64().unwrap();
    let before_bytes = resident_bytes(server.process_id()).unwrap();
    let watch = Watch::start(overload.front, server.process_id());

    let rate = (served * OFFERED_TIMES) as u64;
    let flood = format!("{} {} --rate {rate} --seconds 3", overload.load, overload.flood);
    let result = bench(overload, &format!("{flood} --skip-late --keep-going --verify"));

    let watched = watch.finish();
    let peak_bytes = watched.peak_bytes(0, u64::MAX).unwrap();
    assert!(
        peak_bytes <= before_bytes + GROWTH_BYTES_MAX,
        "memory went from {before_bytes} to {peak_bytes} bytes: {result}"
    );
    let errors = result["errorsByCode"].as_object().unwrap();
    assert!(errors.keys().all(|code| code == overload.refusal), "{result}");
    assert_eq!(result["closedConnections"], 0, "{result}");
    assert!(result["operations"].as_u64() > result["errors"].as_u64(), "something was served: {result}");
    assert!(is_served_within(overload.front, PATIENCE), "whoever comes after the flood is served");
}

#[test]
fn a_flood_over_resp_is_survived() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let overload = Overload {
        front: Front::Resp(server.resp),
        target: format!("resp://{}", server.resp),
        load: "--command incr --pipeline 16",
        flood: "--connections 200 --window 16",
        refusal: "BUSY",
    };
    survives(&server, &overload);
    let (status, log) = server.terminate();
    assert!(status.success(), "{log:?}");
}

#[test]
fn a_flood_over_http_is_survived() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let overload = Overload {
        front: Front::Http(server.http),
        target: format!("http://{}", server.http),
        load: "--command incr --pipeline 1",
        flood: "--connections 200 --window 4",
        refusal: "503",
    };
    survives(&server, &overload);
    let (status, log) = server.terminate();
    assert!(status.success(), "{log:?}");
}

#[test]
fn what_was_seen_is_summed_up_by_time() {
    let question = |due_us, took_us, answer| Question { due_us, took_us, answer };
    let watched = Watched {
        questions: vec![
            question(1_000, 100, Answer::Good),
            question(2_000, 300, Answer::Good),
            question(3_000, 5_000, Answer::Refused),
            question(4_000, 9_000, Answer::Good),
            question(5_000, 200, Answer::Good),
        ],
        memory: vec![(1_000, 10), (3_000, 50), (5_000, 20)],
    };
    let calm = Phase { questions: 2, p50_ms: 0.1, p99_ms: 0.3, max_ms: 0.3, ..Phase::default() };
    assert_eq!(watched.phase(0, 3_000), calm);
    let flood = Phase { questions: 2, refused: 1, p50_ms: 5.0, p99_ms: 9.0, max_ms: 9.0, ..Phase::default() };
    assert_eq!(watched.phase(3_000, 5_000), flood);
    assert_eq!(watched.phase(9_000, 10_000), Phase::default());
    // The question due at 4,000 was answered at 13,000.
    assert_eq!(watched.recovered_after_us(3_500, 1_000), 9_500);
    assert_eq!(watched.recovered_after_us(5_000, 1_000), 0);
    assert_eq!((watched.peak_bytes(0, 2_000), watched.peak_bytes(0, 9_000)), (Some(10), Some(50)));
    assert_eq!(watched.peak_bytes(6_000, 7_000), None);
}
