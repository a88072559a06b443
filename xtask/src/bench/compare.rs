//! `cargo xtask bench compare`: the same load on quipu and its peers, on this machine, in one run.
//!
//! All servers run at the same time and get the load in turn, round after round, so that whatever else the machine does
//! meets all of them. The first figure is CPU seconds of the server per million operations, because generator and
//! server share the machine; then throughput, then latency. Ratios are medians over the rounds.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Bench;
use super::load::{Load, Run};
use super::page::Findings;
use super::stage::{Durability, QUIPU, REDIS, Runs, Settings, Stage};
use super::statistics::{median, ratios, spread_percent};
use super::svg::{Chart, Group};
use super::table::{Table, figure, times};

/// Keys that exist before a row begins.
const KEYS: u64 = 1_000_000;

/// How often the operations of a row that writes are doubled until one run of quipu contains a checkpoint.
const DOUBLINGS_MAX: u32 = 5;

/// A run that takes longer than this is long enough, with or without a checkpoint; the notes then say so.
const RUN_SECONDS_MAX: f64 = 60.0;

/// Which figure the goal of a row speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Measure {
    /// CPU seconds of the server per operation.
    Cpu,
    /// Operations per second.
    Throughput,
}

/// One line of the comparison.
struct Row {
    name: &'static str,
    durability: Durability,
    peer_command: &'static str,
    quipu_command: &'static str,
    connections: u32,
    pipeline: u32,
    keys: u64,
    /// Of each run; enough for seconds of CPU time.
    operations: u64,
    measure: Measure,
    /// How many times better than Redis.
    goal: f64,
}

const fn row(name: &'static str, command: &'static str, pipeline: u32, operations: u64, goal: f64) -> Row {
    Row {
        name,
        durability: Durability::EverySecond,
        peer_command: command,
        quipu_command: command,
        connections: 50,
        pipeline,
        keys: KEYS,
        operations,
        measure: Measure::Cpu,
        goal,
    }
}

const fn synced(name: &'static str, connections: u32, pipeline: u32, operations: u64, goal: f64) -> Row {
    let row = row(name, "incr", pipeline, operations, goal);
    Row { durability: Durability::EveryReply, connections, measure: Measure::Throughput, ..row }
}

const fn with_id(name: &'static str, pipeline: u32, operations: u64, goal: f64) -> Row {
    Row { peer_command: "script-id", quipu_command: "add-id", ..row(name, "", pipeline, operations, goal) }
}

/// Different items, in so many sets. They are no counters, so they have names of their own.
const fn unique(name: &'static str, keys: u64, pipeline: u32, operations: u64, goal: f64) -> Row {
    Row { keys, ..row(name, PFADD, pipeline, operations, goal) }
}

const PFADD: &str = "pfadd";
const SETS_FORMAT: &str = "visitors:{n}";

const ROWS: &[Row] = &[
    row("INCR random keys, P=1", "incr", 1, 1_000_000, 1.3),
    row("INCR random keys, P=16", "incr", 16, 4_000_000, 3.5),
    row("INCR random keys, P=64", "incr", 64, 6_000_000, 6.0),
    row("INCR random keys, P=256", "incr", 256, 6_000_000, 8.5),
    row("INCR one hot key, P=64", "hot", 64, 6_000_000, 6.0),
    row("GET random keys, P=16", "get", 16, 4_000_000, 3.5),
    row("GET random keys, P=64", "get", 64, 6_000_000, 6.0),
    row("MGET of 100, P=1", "mget100", 1, 60_000, 5.0),
    with_id("increment with id, P=1", 1, 600_000, 2.5),
    with_id("increment with id, P=16", 16, 1_500_000, 12.0),
    with_id("increment with id, P=64", 64, 1_500_000, 20.0),
    unique("PFADD into 10,000 sets, P=16", 10_000, 16, 2_000_000, 1.0),
    unique("PFADD into 100 sets, P=16", 100, 16, 2_000_000, 1.0),
    synced("synced INCR, 1 connection, P=1", 1, 1, 200_000, 1.4),
    synced("synced INCR, 64 connections, P=1", 64, 1, 600_000, 1.4),
    synced("synced INCR, 64 connections, P=16", 64, 16, 3_000_000, 3.0),
    synced("synced INCR, 64 connections, P=64", 64, 64, 4_000_000, 5.5),
];

impl Row {
    fn writes(&self) -> bool {
        !matches!(self.quipu_command, "get" | "mget100")
    }

    fn load(&self, server: &str, operations: u64, seed: usize) -> Load {
        let command = if server == QUIPU { self.quipu_command } else { self.peer_command };
        let load = Load::new(command)
            .with("--connections", self.connections)
            .with("--pipeline", self.pipeline)
            .with("--operations", operations)
            .with("--keys", self.keys)
            .with("--seed", seed);
        if command == PFADD { load.with("--key-format", SETS_FORMAT) } else { load }
    }
}

/// What was found.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Compared {
    /// Of each row.
    rounds: usize,
    /// In the order of columns; quipu is the last.
    servers: Vec<String>,
    rows: Vec<ComparedRow>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ComparedRow {
    name: String,
    durability: Settings,
    writes: bool,
    measure: Measure,
    goal: f64,
    /// Of each run.
    operations: u64,
    /// What the generator was called with in the first round.
    commands: BTreeMap<String, String>,
    summary: BTreeMap<String, Summary>,
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
    /// How many times quipu is better than this server, as the median of the rounds; of quipu itself 1.
    quipu_cpu_ratio: f64,
    quipu_throughput_ratio: f64,
    /// By how much the rounds' ratios of CPU differ, in percent.
    ratio_spread_percent: f64,
}

/// Measures all rows.
pub fn measure(bench: &Bench) -> Result<Compared> {
    let rounds = bench.rounds(3);
    let mut rows = Vec::new();
    for row in ROWS.iter().filter(|row| bench.wants(row.name)) {
        let measured = measure_row(bench, row, rounds).with_context(|| row.name.to_string())?;
        bench.say(&measured.line());
        rows.push(measured);
    }
    Ok(Compared { rounds, servers: bench.server_names(), rows })
}

fn measure_row(bench: &Bench, row: &Row, rounds: usize) -> Result<ComparedRow> {
    let stage = Stage::start(bench, row.durability)?;
    stage.load_keys(KEYS)?;
    let operations = warm_up(bench, row, &stage)?;
    let runs = stage.rounds(rounds, |server, round| row.load(server, operations, round))?;
    let shown = |server: &String| (server.clone(), row.load(server, operations, 1).shown());
    Ok(ComparedRow {
        name: row.name.to_string(),
        durability: row.durability.into(),
        writes: row.writes(),
        measure: row.measure,
        goal: row.goal,
        operations,
        commands: runs.keys().map(shown).collect(),
        summary: summaries(&runs),
        runs,
    })
}

/// One run of each that does not count. Where quipu writes, its run is repeated with more operations until it contains
/// a checkpoint: the work that a short run would only put off belongs into the figures.
fn warm_up(bench: &Bench, row: &Row, stage: &Stage) -> Result<u64> {
    let mut operations = bench.scaled(row.operations);
    if bench.is_quick() {
        return Ok(operations);
    }
    stage.rounds(1, |server, _| row.load(server, operations, 0))?;
    // The first run on fresh keys names every key in the log once; what follows is shorter.
    for doubling in 1..=DOUBLINGS_MAX {
        let run = stage.offer(QUIPU, &row.load(QUIPU, operations, 1_000 + doubling as usize))?;
        let took_seconds = run.operations as f64 / run.throughput;
        if !row.writes() || run.server.checkpoints != Some(0) || took_seconds > RUN_SECONDS_MAX {
            break;
        }
        operations *= 2;
    }
    Ok(operations)
}

fn of(runs: &[Run], figure: fn(&Run) -> f64) -> Vec<f64> {
    runs.iter().map(figure).collect()
}

fn summaries(runs: &Runs) -> BTreeMap<String, Summary> {
    let cpu: fn(&Run) -> f64 = |run| run.server.cpu_seconds_per_million;
    let throughput: fn(&Run) -> f64 = |run| run.throughput;
    let quipu = runs.get(QUIPU).map(Vec::as_slice).unwrap_or_default();
    let summary = |peer: &[Run]| {
        let cpu_ratios = ratios(&of(peer, cpu), &of(quipu, cpu));
        Summary {
            cpu_seconds_per_million: median(&of(peer, cpu)),
            throughput: median(&of(peer, throughput)),
            p50_ms: median(&of(peer, |run| run.latency_us.p50)) / 1e3,
            p99_ms: median(&of(peer, |run| run.latency_us.p99)) / 1e3,
            quipu_cpu_ratio: median(&cpu_ratios),
            quipu_throughput_ratio: median(&ratios(&of(quipu, throughput), &of(peer, throughput))),
            ratio_spread_percent: spread_percent(&cpu_ratios),
        }
    };
    runs.iter().map(|(name, runs)| (name.clone(), summary(runs))).collect()
}

impl ComparedRow {
    /// The ratio that the goal speaks of.
    fn ratio_to(&self, peer: &str) -> Option<f64> {
        let summary = self.summary.get(peer)?;
        Some(match self.measure {
            Measure::Cpu => summary.quipu_cpu_ratio,
            Measure::Throughput => summary.quipu_throughput_ratio,
        })
    }

    /// Checkpoints of quipu in each round.
    fn checkpoints(&self) -> Vec<Option<u64>> {
        let runs = self.runs.get(QUIPU).map(Vec::as_slice).unwrap_or_default();
        runs.iter().map(|run| run.server.checkpoints).collect()
    }

    /// Whether every round of a row that writes had its share of checkpoints.
    fn lacks_checkpoints(&self) -> bool {
        self.writes && self.checkpoints().iter().any(|count| count.unwrap_or(0) == 0)
    }

    /// For whoever watches.
    fn line(&self) -> String {
        let ratio = self.ratio_to(REDIS).map(times).unwrap_or_default();
        let what = match self.measure {
            Measure::Cpu => "CPU",
            Measure::Throughput => "throughput",
        };
        format!("{:<34} redis : quipu {ratio:>7} ({what}), goal {:?}x", self.name, self.goal)
    }
}

impl Compared {
    fn peers(&self) -> impl Iterator<Item = &String> {
        self.servers.iter().filter(|name| *name != QUIPU)
    }

    /// A table of one figure, with ratios to every peer.
    fn table(
        &self,
        title: &str,
        measure: Measure,
        value: fn(&Summary) -> f64,
        ratio: fn(&Summary) -> f64,
    ) -> Table {
        let ratio_titles = self.peers().map(|peer| format!("{peer} : quipu"));
        let columns =
            ["work".to_string()].into_iter().chain(self.servers.iter().cloned()).chain(ratio_titles);
        let mut table = Table::new(title, columns.chain(["goal".to_string()]));
        for row in &self.rows {
            let of =
                |name: &String, value: fn(&Summary) -> f64| row.summary.get(name).map_or(f64::NAN, value);
            let mut cells = vec![row.name.clone()];
            cells.extend(self.servers.iter().map(|name| figure(of(name, value))));
            cells.extend(self.peers().map(|name| times(of(name, ratio))));
            cells.push(if row.measure == measure { format!("{:?}x", row.goal) } else { String::new() });
            table.push(cells);
        }
        table
    }

    fn latency_table(&self) -> Table {
        let columns = ["work".to_string()].into_iter().chain(self.servers.iter().cloned());
        let columns = columns.chain(["checkpoints of quipu".to_string()]);
        let mut table = Table::new("Latency in ms at full load, p50 / p99", columns);
        for row in &self.rows {
            let shown = |name: &String| {
                let summary = row.summary.get(name);
                summary.map_or("-".into(), |s| format!("{} / {}", figure(s.p50_ms), figure(s.p99_ms)))
            };
            let counts = row
                .checkpoints()
                .into_iter()
                .map(|count: Option<u64>| count.map_or("?".into(), |count| count.to_string()));
            let mut cells = vec![row.name.clone()];
            cells.extend(self.servers.iter().map(shown));
            cells.push(if row.writes { counts.collect::<Vec<String>>().join(" ") } else { "reads".into() });
            table.push(cells);
        }
        table
    }
}

impl Findings for Compared {
    const NAME: &'static str = "compare";

    fn tables(&self) -> Vec<Table> {
        vec![
            self.table(
                "Server CPU seconds per million operations",
                Measure::Cpu,
                |summary| summary.cpu_seconds_per_million,
                |summary| summary.quipu_cpu_ratio,
            ),
            self.table(
                "Operations per second, in thousands",
                Measure::Throughput,
                |summary| summary.throughput / 1e3,
                |summary| summary.quipu_throughput_ratio,
            ),
            self.latency_table(),
        ]
    }

    fn notes(&self) -> Vec<String> {
        let spreads = self.rows.iter().filter_map(|row| Some(row.summary.get(REDIS)?.ratio_spread_percent));
        let largest = spreads.fold(0.0, f64::max);
        let mut notes = vec![format!(
            "Ratios are medians of {} rounds; the rounds of a row differ by up to {largest:.0} %.",
            self.rounds
        )];
        let lacking: Vec<&str> =
            self.rows.iter().filter(|row| row.lacks_checkpoints()).map(|row| row.name.as_str()).collect();
        notes.push(if lacking.is_empty() {
            "Every run of quipu that writes contains at least one checkpoint at default settings.".to_string()
        } else {
            format!("Not every run of quipu contains a checkpoint in: {}.", lacking.join("; "))
        });
        notes
    }

    fn chart(&self) -> Option<Chart> {
        let group = |row: &ComparedRow| Group {
            label: row.name.clone(),
            bars: self.peers().map(|peer| row.ratio_to(peer)).collect(),
            goal: Some(row.goal),
        };
        Some(Chart {
            title: "How many times quipu is ahead".into(),
            subtitle:
                "operations per CPU second of the server; in synced rows operations per second; dashed: equal"
                    .into(),
            unit: "x",
            series: self.peers().map(|peer| format!("against {peer}")).collect(),
            accent: 0,
            groups: self.rows.iter().map(group).collect(),
            reference: Some(1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::load::tests::run;
    use super::super::page::tests::assert_page_has_a_place_for;
    use super::*;

    fn compared() -> Compared {
        // The rounds' ratios of CPU are 2, 8 and 4; the ratio of the medians would be another number.
        let rounds = |cpus: [f64; 3], rate| cpus.map(|cpu| run(cpu, rate, 2_000.0)).to_vec();
        let runs = Runs::from([
            ("redis".to_string(), rounds([2.0, 8.0, 8.0], 10_000.0)),
            ("valkey".to_string(), rounds([1.0, 1.0, 1.0], 20_000.0)),
            ("quipu".to_string(), rounds([1.0, 1.0, 2.0], 30_000.0)),
        ]);
        let row = ComparedRow {
            name: "INCR".into(),
            durability: Durability::EverySecond.into(),
            writes: true,
            measure: Measure::Cpu,
            goal: 6.0,
            operations: 1_000,
            commands: BTreeMap::new(),
            summary: summaries(&runs),
            runs,
        };
        Compared {
            rounds: 3,
            servers: ["redis", "valkey", "quipu"].map(String::from).into(),
            rows: vec![row],
        }
    }

    #[test]
    fn ratios_are_medians_of_rounds_and_above_one_when_quipu_is_better() {
        let compared = compared();
        let redis = &compared.rows[0].summary["redis"];
        assert_eq!((redis.quipu_cpu_ratio, redis.cpu_seconds_per_million), (4.0, 8.0));
        assert_eq!((redis.quipu_throughput_ratio, redis.ratio_spread_percent), (3.0, 300.0));
        assert_eq!(compared.rows[0].ratio_to("redis"), Some(4.0));
        let cpu = compared.tables()[0].text();
        let line = cpu.lines().last().unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(line, "INCR 8.00 1.00 1.00 4.00x 1.00x 6.0x");
        assert!(compared.tables()[2].text().contains("1.00 / 2.00"), "{}", compared.tables()[2].text());
        let chart = compared.chart().unwrap();
        assert_eq!(chart.groups[0].bars, [Some(4.0), Some(1.0)]);
    }

    #[test]
    fn runs_without_checkpoints_are_named() {
        let mut compared = compared();
        assert!(compared.notes()[1].starts_with("Every run"), "{:?}", compared.notes());
        compared.rows[0].runs.get_mut(QUIPU).unwrap()[1].server.checkpoints = Some(0);
        assert_eq!(compared.notes()[1], "Not every run of quipu contains a checkpoint in: INCR.");
        compared.rows[0].writes = false;
        assert!(compared.notes()[1].starts_with("Every run"), "reading needs none");
    }

    #[test]
    fn rows_have_names_of_their_own_and_the_page_has_their_place() {
        let names: std::collections::BTreeSet<&str> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ROWS.len());
        assert_page_has_a_place_for(Compared::NAME);
    }

    #[test]
    fn what_is_written_can_be_read() {
        let text = serde_json::to_string(&compared()).unwrap();
        let again: Compared = serde_json::from_str(&text).unwrap();
        assert_eq!(again.tables()[0].text(), compared().tables()[0].text());
    }
}
