//! `cargo xtask torture overload`: three times what quipu can serve, and what that does to it and to whoever is beside.
//!
//! What it can serve is found first, in a closed loop. Then three times that is offered from many connections that do
//! not wait for replies; what finds its connection full is counted and not sent, because a generator that queues would
//! only move the queue. A light client on a connection of its own goes on asking all the while, and the server's memory
//! is watched. The server's test of the same name does this for seconds.

#[path = "../../crates/server/tests/overload/watch.rs"]
mod watch;

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use self::watch::{Front, Phase, Watch};
use crate::bench::Bench;
use crate::bench::load::{Load, Run};
use crate::bench::page::Findings;
use crate::bench::svg::Chart;
use crate::bench::table::{Table, figure, grouped};
use crate::servers::Server;
use crate::workspace::Scratch;

/// What is offered, as a multiple of what can be served.
const OFFERED_TIMES: f64 = 3.0;

/// How long the flood lasts, unless somebody asks for another time; and in a quick look.
const SECONDS: u64 = 60;
const QUICK_SECONDS: u64 = 3;

/// How long each look at what can be served takes, and with how many connections besides those of the flood.
const CAPACITY_SECONDS: u64 = 5;
const CALM_CONNECTIONS: u32 = 50;

/// How long the light client asks before the flood, and after it.
const CALM: Duration = Duration::from_secs(3);

/// After the end of the flood everything must be as before within this time.
const RECOVERY_MAX_US: u64 = 1_000_000;

/// A probe that takes more than its usual p99 times this is slow, and one below the second figure never is.
const SLOW_TIMES: f64 = 3.0;
const SLOW_MS_MIN: f64 = 5.0;

/// How much memory the flood may take on top: the buffers of all connections (256 MiB), as much again for what lies
/// around them (batches at work, the allocator's slack, checkpoints).
const GROWTH_BYTES_MAX: u64 = 512 << 20;

/// The default, and the hardest.
const DURABILITY: &str = "sync";

/// Few, so that their sum is quickly verified.
const KEYS: u64 = 100_000;

/// Arguments of `torture overload`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Arguments {
    /// How long the flood lasts [default: 60]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
}

/// A door of the server, and the flood that comes to it.
struct Door {
    name: &'static str,
    pipeline: u32,
    /// In the flood.
    connections: u32,
    /// Pipelines that each of them sends without waiting for replies.
    window: u32,
    /// The only error that may come.
    refusal: &'static str,
}

const DOORS: [Door; 2] = [
    Door { name: "RESP", pipeline: 16, connections: 500, window: 16, refusal: "BUSY" },
    Door { name: "HTTP", pipeline: 1, connections: 500, window: 8, refusal: "503" },
];

/// What was found.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Overloads {
    seconds: u64,
    /// The `--durability` of quipu.
    durability: String,
    doors: Vec<Overload>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Overload {
    door: String,
    command: String,
    /// Operations per second in a closed loop.
    capacity: f64,
    offered: u64,
    flood: Run,
    /// What the light client met: before, during, and in the first second after the end.
    probe: [Probe; 3],
    /// From the end of the flood until the light client's last slow or refused answer.
    recovered_after_ms: f64,
    resident_before_bytes: u64,
    resident_peak_bytes: u64,
    resident_after_bytes: u64,
    checks: Vec<Check>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Probe {
    questions: usize,
    refused: usize,
    lost: usize,
    p50_ms: f64,
    p99_ms: f64,
    max_ms: f64,
}

impl From<Phase> for Probe {
    fn from(phase: Phase) -> Probe {
        let Phase { questions, refused, lost, p50_ms, p99_ms, max_ms } = phase;
        Probe { questions, refused, lost, p50_ms, p99_ms, max_ms }
    }
}

/// Something that must hold.
#[derive(Debug, Serialize, Deserialize)]
struct Check {
    what: String,
    holds: bool,
    found: String,
}

/// Floods one door after the other, each of a fresh server.
pub fn measure(bench: &Bench, arguments: &Arguments) -> Result<Overloads> {
    let usual = if bench.is_quick() { QUICK_SECONDS } else { SECONDS };
    let seconds = arguments.seconds.unwrap_or(usual);
    let mut doors = Vec::new();
    for door in DOORS.iter().filter(|door| bench.wants(door.name)) {
        doors.push(flood(bench, door, seconds).with_context(|| door.name.to_string())?);
    }
    Ok(Overloads { seconds, durability: DURABILITY.into(), doors })
}

fn flood(bench: &Bench, door: &Door, seconds: u64) -> Result<Overload> {
    let folder = Scratch::new("overload")?;
    let mut server =
        Server::quipu(&bench.binary, &folder.path().join("quipu"), &["--durability", DURABILITY])?;
    Load::of_keys(KEYS).offer(&bench.binary, &server)?;
    let load = || {
        let load = Load::new("incr").with("--pipeline", door.pipeline).with("--keys", KEYS);
        if door.name == "HTTP" { load.over_http() } else { load }
    };
    let mut capacity: f64 = 0.0;
    // More connections make larger groups for each sync, up to a point; the best counts.
    for connections in [CALM_CONNECTIONS, door.connections].repeat(2) {
        let closed =
            load().with("--connections", connections).with("--seconds", CAPACITY_SECONDS.min(seconds));
        capacity = capacity.max(closed.offer(&bench.binary, &server)?.throughput);
    }
    let offered = (capacity * OFFERED_TIMES) as u64;
    bench.say(&format!("{}: serves {capacity:.0}/s; {offered}/s for {seconds} s", door.name));

    let front = match server.http {
        Some(address) if door.name == "HTTP" => Front::Http(address),
        _ => Front::Resp(server.resp),
    };
    let watch = Watch::start(front, server.process_id());
    thread::sleep(CALM);
    let flood = load()
        .with("--connections", door.connections)
        .with("--window", door.window)
        .with("--rate", offered)
        .with("--seconds", seconds)
        .with_flag("--skip-late")
        .with_flag("--keep-going")
        .with_flag("--verify");
    let (run, complaint) = flood.offer_anyway(&bench.binary, &server)?;
    thread::sleep(CALM);
    let watched = watch.finish();

    let started_us = run.number("/startedAtMs").unwrap_or(0.0) as u64 * 1_000;
    let ended_us = started_us + seconds * 1_000_000;
    let probe = [(0, started_us), (started_us, ended_us), (ended_us, ended_us + RECOVERY_MAX_US)]
        .map(|(from_us, to_us)| Probe::from(watched.phase(from_us, to_us)));
    let slow_ms = (probe[0].p99_ms * SLOW_TIMES).max(SLOW_MS_MIN);
    let last_bytes = watched.memory.last().map_or(0, |(_, bytes)| *bytes);
    let mut overload = Overload {
        door: door.name.into(),
        command: flood.shown(),
        capacity,
        offered,
        probe,
        recovered_after_ms: watched.recovered_after_us(ended_us, (slow_ms * 1e3) as u64) as f64 / 1e3,
        resident_before_bytes: watched.peak_bytes(0, started_us).unwrap_or(0),
        resident_peak_bytes: watched.peak_bytes(started_us, u64::MAX).unwrap_or(0),
        resident_after_bytes: last_bytes,
        flood: run,
        checks: Vec::new(),
    };
    overload.checks = checks(&overload, door, server.is_running(), &complaint);
    Ok(overload)
}

fn checks(overload: &Overload, door: &Door, is_running: bool, complaint: &str) -> Vec<Check> {
    let check = |what: &str, holds: bool, found: String| Check { what: what.into(), holds, found };
    let growth = overload.resident_peak_bytes.saturating_sub(overload.resident_before_bytes);
    let codes = overload.flood.codes();
    let [_, during, after] = &overload.probe;
    vec![
        check("the process stays up", is_running, if is_running { "up".into() } else { "ended".into() }),
        check(
            &format!("memory grows by no more than {} MiB", GROWTH_BYTES_MAX >> 20),
            growth <= GROWTH_BYTES_MAX && overload.resident_peak_bytes > 0,
            format!("{:.0} MiB", mebibytes(growth)),
        ),
        check(
            &format!("what is refused is refused with {}", door.refusal),
            codes.iter().all(|code| code == door.refusal),
            if codes.is_empty() { "nothing refused".into() } else { codes.join(", ") },
        ),
        check(
            "what was acknowledged was counted, and nothing else",
            complaint.is_empty(),
            if complaint.is_empty() { "the sum agrees".into() } else { complaint.into() },
        ),
        check(
            "the light client is always answered",
            during.questions > 0 && during.lost + after.lost == 0,
            format!("{} of {} lost", during.lost + after.lost, during.questions + after.questions),
        ),
        check(
            "all is as before within 1 s",
            after.questions > 0 && overload.recovered_after_ms * 1e3 <= RECOVERY_MAX_US as f64,
            format!("after {:.0} ms", overload.recovered_after_ms),
        ),
    ]
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl Overload {
    /// Operations per second of the flood, by what came of them: sent, done, refused, not sent.
    fn rates(&self, seconds: u64) -> [f64; 4] {
        let number = |pointer: &str| self.flood.number(pointer).unwrap_or(0.0);
        let (answered, errors) = (self.flood.operations as f64, number("/errors"));
        [answered + number("/unanswered"), answered - errors, errors, number("/skipped")]
            .map(|operations| operations / seconds as f64)
    }
}

impl Findings for Overloads {
    const NAME: &'static str = "overload";

    fn tables(&self) -> Vec<Table> {
        let what = [
            "door",
            "can serve/s",
            "offered/s",
            "sent/s",
            "done/s",
            "refused/s",
            "connection full/s",
            "closed connections",
            "resident MiB before",
            "peak",
            "after",
        ];
        let mut load = Table::new(format!("The flood, {} s", self.seconds), what);
        let columns = ["light client", "asked", "refused", "lost", "p50 ms", "p99 ms", "max ms"];
        let mut probes = Table::new("Beside the flood", columns);
        let mut verdict = Table::new("Verdict", ["what must hold", "found", "holds"]);
        for overload in &self.doors {
            let rates = overload.rates(self.seconds).map(|rate| grouped(rate as i64));
            let mut cells = vec![
                overload.door.clone(),
                grouped(overload.capacity as i64),
                grouped(overload.offered as i64),
            ];
            cells.extend(rates);
            cells.push(
                figure(overload.flood.number("/closedConnections").unwrap_or(0.0)).replace("0.000", "0"),
            );
            let resident =
                [overload.resident_before_bytes, overload.resident_peak_bytes, overload.resident_after_bytes];
            cells.extend(resident.map(|bytes| format!("{:.0}", mebibytes(bytes))));
            load.push(cells);
            for (when, probe) in ["before", "during", "in the second after"].iter().zip(&overload.probe) {
                let counts = [probe.questions, probe.refused, probe.lost].map(|count| count.to_string());
                let times = [probe.p50_ms, probe.p99_ms, probe.max_ms].map(figure);
                probes.push(
                    [format!("{}, {when}", overload.door)].into_iter().chain(counts).chain(times).collect(),
                );
            }
            for check in &overload.checks {
                let holds = if check.holds { "yes" } else { "NO" };
                verdict.push(vec![
                    format!("{}: {}", overload.door, check.what),
                    check.found.clone(),
                    holds.into(),
                ]);
            }
        }
        vec![load, probes, verdict]
    }

    fn notes(&self) -> Vec<String> {
        vec![
            "Server, generator and light client share the cores, so the generator cannot send all that it offers; what \
             finds its connection full is not sent."
                .into(),
        ]
    }

    fn chart(&self) -> Option<Chart> {
        None
    }

    fn failures(&self) -> Vec<String> {
        let failed = |overload: &Overload| {
            let failed = overload.checks.iter().filter(|check| !check.holds);
            failed
                .map(|check| format!("{}: {}: {}", overload.door, check.what, check.found))
                .collect::<Vec<_>>()
        };
        self.doors.iter().flat_map(failed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::load::tests::run_with;
    use crate::bench::page::tests::assert_page_has_a_place_for;

    fn overload(flood: serde_json::Value) -> Overload {
        let calm = Probe { questions: 100, refused: 0, lost: 0, p50_ms: 0.2, p99_ms: 1.0, max_ms: 2.0 };
        Overload {
            door: "RESP".into(),
            command: String::new(),
            capacity: 100_000.0,
            offered: 300_000,
            flood: run_with(flood),
            probe: [calm; 3],
            recovered_after_ms: 250.0,
            resident_before_bytes: 100 << 20,
            resident_peak_bytes: 200 << 20,
            resident_after_bytes: 120 << 20,
            checks: Vec::new(),
        }
    }

    fn failed(overload: &Overload, is_running: bool, complaint: &str) -> Vec<usize> {
        let checks = checks(overload, &DOORS[0], is_running, complaint);
        checks.iter().enumerate().filter(|(_, check)| !check.holds).map(|(place, _)| place).collect()
    }

    #[test]
    fn every_check_can_fail() {
        let good = || overload(serde_json::json!({ "errorsByCode": { "BUSY": 7 }, "errors": 7 }));
        assert_eq!(failed(&good(), true, ""), [0_usize; 0]);
        assert_eq!(failed(&good(), false, ""), [0]);
        let fat = Overload { resident_peak_bytes: 700 << 20, ..good() };
        assert_eq!(failed(&fat, true, ""), [1]);
        let strange = overload(serde_json::json!({ "errorsByCode": { "BUSY": 7, "OOM": 1 } }));
        assert_eq!(failed(&strange, true, ""), [2]);
        assert_eq!(failed(&good(), true, "the sum is wrong"), [3]);
        let mut deaf = good();
        deaf.probe[1].lost = 1;
        assert_eq!(failed(&deaf, true, ""), [4]);
        let slow = Overload { recovered_after_ms: 1_001.0, ..good() };
        assert_eq!(failed(&slow, true, ""), [5]);
    }

    #[test]
    fn tables_say_what_came_of_the_flood() {
        let result = serde_json::json!({ "errors": 400_000, "errorsByCode": { "BUSY": 400_000 }, "skipped": 5_000_000, "closedConnections": 0 });
        let mut overload = overload(result);
        overload.checks = checks(&overload, &DOORS[0], true, "");
        overload.checks[0].holds = false;
        let found = Overloads { seconds: 10, durability: DURABILITY.into(), doors: vec![overload] };
        let tables = found.tables();
        assert!(
            tables[0].markdown().contains(
                "| RESP | 100,000 | 300,000 | 100,000 | 60,000 | 40,000 | 500,000 | 0 | 100 | 200 | 120 |"
            ),
            "{}",
            tables[0].markdown()
        );
        assert!(
            tables[1]
                .markdown()
                .contains("| RESP, in the second after | 100 | 0 | 0 | 0.200 | 1.00 | 2.00 |")
        );
        assert_eq!(found.failures(), ["RESP: the process stays up: up"]);
        let again: Overloads = serde_json::from_str(&serde_json::to_string(&found).unwrap()).unwrap();
        assert_eq!(again.tables()[2].markdown(), tables[2].markdown());
        assert_page_has_a_place_for(Overloads::NAME);
    }
}
