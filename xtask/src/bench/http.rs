//! `cargo xtask bench http`: the HTTP API beside a bare axum handler that reads the same requests and answers with as many
//! bytes. What is above the handler is what counting over HTTP costs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::Bench;
use super::load::{Load, Run};
use super::page::Findings;
use super::stage::{QUIPU, Runs, Stage};
use super::statistics::{median, ratios};
use super::svg::{Chart, Group};
use super::table::{Table, figure, grouped, times};
use crate::servers::Server;
use crate::workspace::{cargo, target_folder};

/// The bare handler in tables.
const BARE: &str = "bare axum";

const KEYS: u64 = 1_000_000;
const CONNECTIONS: u32 = 50;

/// Requests behind the size of a reply.
const SAMPLE_REQUESTS: u64 = 200;

/// How many times the CPU of the bare handler a durable increment may take.
const GOAL_CPU_RATIO: f64 = 1.25;

/// Increments per second in batches of a thousand, at least.
const GOAL_BATCHED_PER_SECOND: f64 = 1e6;

struct Row {
    name: &'static str,
    durability: &'static str,
    command: &'static str,
    /// Counters in one request.
    batch: u64,
    requests: u64,
    has_cpu_goal: bool,
}

const ROWS: &[Row] = &[
    Row {
        name: "POST increment, durable",
        durability: "sync",
        command: "incr",
        batch: 1,
        requests: 400_000,
        has_cpu_goal: true,
    },
    Row {
        name: "POST increment, synced every second",
        durability: "interval:1000",
        command: "incr",
        batch: 1,
        requests: 400_000,
        has_cpu_goal: false,
    },
    Row { name: "GET", durability: "sync", command: "get", batch: 1, requests: 400_000, has_cpu_goal: false },
    Row {
        name: "POST batch-increment of 1,000, durable",
        durability: "sync",
        command: "batch",
        batch: 1_000,
        requests: 4_000,
        has_cpu_goal: false,
    },
];

impl Row {
    fn load(&self, requests: u64, seed: usize) -> Load {
        Load::new(self.command)
            .over_http()
            .with("--connections", CONNECTIONS)
            .with("--operations", requests)
            .with("--batch", self.batch)
            .with("--keys", KEYS)
            .with("--seed", seed)
    }
}

/// What was found.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Http {
    rounds: usize,
    rows: Vec<Measured>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    name: String,
    durability: String,
    /// Counters in one request.
    batch: u64,
    has_cpu_goal: bool,
    command: String,
    summary: BTreeMap<String, Summary>,
    /// CPU of quipu as a multiple of the bare handler's, as the median of the rounds.
    cpu_ratio: f64,
    runs: Runs,
}

/// Medians of a server over the rounds of a row.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    cpu_seconds_per_million: f64,
    throughput: f64,
    p50_ms: f64,
    p99_ms: f64,
    reply_bytes: f64,
}

/// Measures all rows. `bare` is the bare handler's program; built where nobody gives it.
pub fn measure(bench: &Bench, bare: Option<&Path>) -> Result<Http> {
    let bare = match bare {
        Some(bare) => bare.to_path_buf(),
        None => build_bare()?,
    };
    let rounds = bench.rounds(3);
    let mut rows = Vec::new();
    for row in ROWS.iter().filter(|row| bench.wants(row.name)) {
        let measured = measure_row(bench, &bare, row, rounds).with_context(|| row.name.to_string())?;
        bench.say(&format!("{}: {} of the bare handler's CPU", measured.name, times(measured.cpu_ratio)));
        rows.push(measured);
    }
    Ok(Http { rounds, rows })
}

/// An example of the server's crate, so that it has the same libraries in the same build.
fn build_bare() -> Result<PathBuf> {
    let arguments = ["build", "--release", "--package", "quipu-server", "--example", "bare_axum"];
    ensure!(cargo().args(arguments).status()?.success(), "the bare handler does not build");
    Ok(target_folder()?.join("release/examples/bare_axum"))
}

fn measure_row(bench: &Bench, bare: &Path, row: &Row, rounds: usize) -> Result<Measured> {
    let mut stage = Stage::quipu_alone(bench, &["--durability", row.durability])?;
    stage.load_keys(bench.scaled(KEYS))?;
    let sample = stage.offer(QUIPU, &row.load(SAMPLE_REQUESTS, 0))?;
    let mut command = Command::new(bare);
    command.args(["--reply-bytes", &format!("{:.0}", reply_bytes(&sample))]);
    stage.add(BARE, Server::announced(command, &stage.path("bare.log"))?);
    let requests = bench.scaled(row.requests);
    if !bench.is_quick() {
        stage.rounds(1, |_, _| row.load(requests, 0))?;
    }
    let runs = stage.rounds(rounds, |_, round| row.load(requests, round))?;
    Ok(summarized(row, row.load(requests, 1).shown(), runs))
}

fn summarized(row: &Row, command: String, runs: Runs) -> Measured {
    let cpu = |name: &str| -> Vec<f64> {
        let runs = runs.get(name).map(Vec::as_slice).unwrap_or_default();
        runs.iter().map(|run| run.server.cpu_seconds_per_million).collect()
    };
    Measured {
        name: row.name.into(),
        durability: row.durability.into(),
        batch: row.batch,
        has_cpu_goal: row.has_cpu_goal,
        command,
        summary: runs.iter().map(|(name, runs)| (name.clone(), summary(runs))).collect(),
        cpu_ratio: median(&ratios(&cpu(QUIPU), &cpu(BARE))),
        runs,
    }
}

fn summary(runs: &[Run]) -> Summary {
    let of = |figure: fn(&Run) -> f64| median(&runs.iter().map(figure).collect::<Vec<f64>>());
    Summary {
        cpu_seconds_per_million: of(|run| run.server.cpu_seconds_per_million),
        throughput: of(|run| run.throughput),
        p50_ms: of(|run| run.latency_us.p50 / 1e3),
        p99_ms: of(|run| run.latency_us.p99 / 1e3),
        reply_bytes: of(reply_bytes),
    }
}

/// Bytes of a reply, head and body, on average.
fn reply_bytes(run: &Run) -> f64 {
    run.number("/replyBytes").unwrap_or(0.0) / run.operations.max(1) as f64
}

impl Findings for Http {
    const NAME: &'static str = "http";

    fn tables(&self) -> Vec<Table> {
        let columns = [
            "request",
            "server",
            "CPU s per M",
            "of bare",
            "goal",
            "requests/s",
            "increments/s",
            "p50 ms",
            "p99 ms",
            "reply bytes",
        ];
        let mut table = Table::new(format!("HTTP, {CONNECTIONS} keep-alive connections"), columns);
        for row in &self.rows {
            for name in [BARE, QUIPU] {
                let Some(summary) = row.summary.get(name) else { continue };
                let is_quipu = name == QUIPU;
                let shown = |text: String, is_shown: bool| if is_shown { text } else { String::new() };
                table.push(vec![
                    row.name.clone(),
                    name.into(),
                    figure(summary.cpu_seconds_per_million),
                    shown(times(row.cpu_ratio), is_quipu),
                    shown(format!("{GOAL_CPU_RATIO}x"), is_quipu && row.has_cpu_goal),
                    grouped(summary.throughput as i64),
                    shown(grouped((summary.throughput * row.batch as f64) as i64), is_quipu && row.batch > 1),
                    figure(summary.p50_ms),
                    figure(summary.p99_ms),
                    grouped(summary.reply_bytes as i64),
                ]);
            }
        }
        vec![table]
    }

    fn notes(&self) -> Vec<String> {
        vec![
            format!(
                "The bare handler reads the same requests and answers with as many bytes; medians of {} rounds.",
                self.rounds
            ),
            format!(
                "Goals: a durable increment at no more than {GOAL_CPU_RATIO}x the CPU of the bare handler; {} increments/s \
                 in batches of 1,000.",
                grouped(GOAL_BATCHED_PER_SECOND as i64)
            ),
        ]
    }

    fn chart(&self) -> Option<Chart> {
        // One request of a batch costs hundreds of the others; its bars would leave them nothing.
        let single = self.rows.iter().filter(|row| row.batch == 1);
        let group = |row: &Measured| Group {
            label: row.name.clone(),
            bars: [BARE, QUIPU].map(|name| Some(row.summary.get(name)?.cpu_seconds_per_million)).into(),
            goal: row
                .summary
                .get(BARE)
                .filter(|_| row.has_cpu_goal)
                .map(|bare| bare.cpu_seconds_per_million * GOAL_CPU_RATIO),
        };
        Some(Chart {
            title: "HTTP beside a bare axum handler".into(),
            subtitle: "server CPU seconds per million requests; shorter is better".into(),
            unit: " s",
            series: vec![BARE.into(), QUIPU.into()],
            accent: 1,
            groups: single.map(group).collect(),
            reference: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::tests::run;
    use super::super::page::tests::assert_page_has_a_place_for;
    use super::*;

    #[test]
    fn quipu_is_told_as_a_multiple_of_the_bare_handler() {
        let runs = |bare: f64, quipu: f64, rate| {
            Runs::from([
                (BARE.to_string(), vec![run(bare, rate, 900.0)]),
                (QUIPU.to_string(), vec![run(quipu, rate, 900.0)]),
            ])
        };
        let found = Http {
            rounds: 1,
            rows: vec![
                summarized(&ROWS[0], String::new(), runs(8.0, 10.0, 50_000.0)),
                summarized(&ROWS[3], String::new(), runs(100.0, 400.0, 2_000.0)),
            ],
        };
        let text = found.tables()[0].markdown();
        for line in [
            "| POST increment, durable | quipu | 10.0 | 1.25x | 1.25x | 50,000 |  | 0.450 | 0.900 | 4 |",
            "| POST batch-increment of 1,000, durable | quipu | 400 | 4.00x |  | 2,000 | 2,000,000 |",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let chart = found.chart().unwrap();
        assert_eq!((chart.groups.len(), chart.groups[0].goal), (1, Some(10.0)));
        let again: Http = serde_json::from_str(&serde_json::to_string(&found).unwrap()).unwrap();
        assert_eq!(again.tables()[0].markdown(), text);
        assert_page_has_a_place_for(Http::NAME);
    }
}
