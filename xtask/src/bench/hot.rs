//! `cargo xtask bench hot`: what finding hot keys costs. The same server runs twice, once with `--hot-keys false`, and both get the
//! same load in turn.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Bench;
use super::load::{Load, Run};
use super::page::Findings;
use super::stage::{QUIPU, Runs, Stage};
use super::statistics::{median, ratios};
use super::svg::Chart;
use super::table::{Table, figure, grouped, times};
use crate::servers::Server;

/// The server that does not find them.
const WITHOUT: &str = "without";

const KEYS: u64 = 1_000_000;
const CONNECTIONS: u32 = 50;
/// Rounds where nobody says how many: the difference is smaller than what rounds differ by.
const ROUNDS: usize = 9;
/// Not synced by every reply, so that nothing hides behind a disk.
const DURABILITY: [&str; 2] = ["--durability", "interval:1000"];

/// How many times the CPU it may take.
const GOAL_CPU_RATIO: f64 = 1.03;

struct Row {
    name: &'static str,
    command: &'static str,
    pipeline: u32,
    operations: u64,
}

const ROWS: &[Row] = &[
    // Keys that are all alike: hardly any is held, and most that come in were not worth it.
    Row { name: "INCR, P=64", command: "incr", pipeline: 64, operations: 20_000_000 },
    Row { name: "GET, P=64", command: "get", pipeline: 64, operations: 20_000_000 },
    Row { name: "INCR one hot key, P=64", command: "hot", pipeline: 64, operations: 40_000_000 },
    Row { name: "INCR, P=1", command: "incr", pipeline: 1, operations: 1_000_000 },
];

impl Row {
    fn load(&self, operations: u64, seed: usize) -> Load {
        Load::new(self.command)
            .with("--connections", CONNECTIONS)
            .with("--pipeline", self.pipeline)
            .with("--operations", operations)
            .with("--keys", KEYS)
            .with("--seed", seed)
    }
}

/// What was found.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hot {
    rounds: usize,
    rows: Vec<Measured>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    name: String,
    command: String,
    summary: BTreeMap<String, Summary>,
    /// CPU with as a multiple of that without, as the median of the rounds.
    cpu_ratio: f64,
    /// The same of operations per second.
    throughput_ratio: f64,
    runs: Runs,
}

/// Medians of a server over the rounds of a row.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    cpu_seconds_per_million: f64,
    throughput: f64,
}

/// Measures all rows.
pub fn measure(bench: &Bench) -> Result<Hot> {
    let rounds = bench.rounds(ROUNDS);
    let mut rows = Vec::new();
    for row in ROWS.iter().filter(|row| bench.wants(row.name)) {
        let measured = measure_row(bench, row, rounds).with_context(|| row.name.to_string())?;
        bench.say(&format!("{}: {} of the CPU without", measured.name, times(measured.cpu_ratio)));
        rows.push(measured);
    }
    Ok(Hot { rounds, rows })
}

fn measure_row(bench: &Bench, row: &Row, rounds: usize) -> Result<Measured> {
    let mut stage = Stage::quipu_alone(bench, &DURABILITY)?;
    let arguments = [&DURABILITY[..], &["--hot-keys", "false"]].concat();
    let without = Server::quipu(&bench.binary, &stage.path(WITHOUT), &arguments)?;
    stage.add(WITHOUT, without);
    stage.load_keys(bench.scaled(KEYS))?;
    let operations = bench.scaled(row.operations);
    if !bench.is_quick() {
        stage.rounds(1, |_, _| row.load(operations, 0))?;
    }
    let runs = stage.rounds(rounds, |_, round| row.load(operations, round))?;
    Ok(summarized(row, row.load(operations, 1).shown(), runs))
}

fn summarized(row: &Row, command: String, runs: Runs) -> Measured {
    let of = |name: &str, figure: fn(&Run) -> f64| -> Vec<f64> {
        runs.get(name).map(Vec::as_slice).unwrap_or_default().iter().map(figure).collect()
    };
    let ratio = |figure: fn(&Run) -> f64| median(&ratios(&of(QUIPU, figure), &of(WITHOUT, figure)));
    let summary = |name: &String| Summary {
        cpu_seconds_per_million: median(&of(name, cpu)),
        throughput: median(&of(name, throughput)),
    };
    Measured {
        name: row.name.into(),
        command,
        summary: runs.keys().map(|name| (name.clone(), summary(name))).collect(),
        cpu_ratio: ratio(cpu),
        throughput_ratio: ratio(throughput),
        runs,
    }
}

fn cpu(run: &Run) -> f64 {
    run.server.cpu_seconds_per_million
}

fn throughput(run: &Run) -> f64 {
    run.throughput
}

impl Findings for Hot {
    const NAME: &'static str = "hot";

    fn tables(&self) -> Vec<Table> {
        let columns = [
            "work",
            "CPU s per M without",
            "with",
            "CPU ratio",
            "goal",
            "operations/s without",
            "with",
            "operations ratio",
        ];
        let mut table = Table::new("What finding hot keys costs", columns);
        for row in &self.rows {
            let (Some(with), Some(without)) = (row.summary.get(QUIPU), row.summary.get(WITHOUT)) else {
                continue;
            };
            table.push(vec![
                row.name.clone(),
                figure(without.cpu_seconds_per_million),
                figure(with.cpu_seconds_per_million),
                format!("{:.3}x", row.cpu_ratio),
                format!("{GOAL_CPU_RATIO}x"),
                grouped(without.throughput as i64),
                grouped(with.throughput as i64),
                format!("{:.3}x", row.throughput_ratio),
            ]);
        }
        vec![table]
    }

    fn notes(&self) -> Vec<String> {
        vec![format!(
            "The same program with `--hot-keys false` and without it, {CONNECTIONS} connections, {} keys, in turn; ratios are \
             medians of the ratios of {} rounds.",
            grouped(KEYS as i64),
            self.rounds
        )]
    }

    fn chart(&self) -> Option<Chart> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::tests::run;
    use super::super::page::tests::assert_page_has_a_place_for;
    use super::*;

    #[test]
    fn rounds_are_compared_one_by_one() {
        let rounds = |cpu: [f64; 3], rate: f64| cpu.map(|cpu| run(cpu, rate, 900.0)).to_vec();
        let runs = Runs::from([
            (WITHOUT.to_string(), rounds([0.40, 0.80, 0.40], 2e6)),
            (QUIPU.to_string(), rounds([0.408, 0.816, 0.42], 1.96e6)),
        ]);
        let found = Hot { rounds: 3, rows: vec![summarized(&ROWS[0], String::new(), runs)] };
        let text = found.tables()[0].markdown();
        let line = "| INCR, P=64 | 0.400 | 0.420 | 1.020x | 1.03x | 2,000,000 | 1,960,000 | 0.980x |";
        assert!(text.contains(line), "{text}");
        let again: Hot = serde_json::from_str(&serde_json::to_string(&found).unwrap()).unwrap();
        assert_eq!(again.tables()[0].markdown(), text);
        assert_page_has_a_place_for(Hot::NAME);
    }
}
