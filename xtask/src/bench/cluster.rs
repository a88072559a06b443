//! `cargo xtask bench cluster`: three nodes of quipu and three of etcd on this machine, and a quipu alone, in one run.
//!
//! All answer only what is on disk, of the clusters on a majority of disks. CPU is that of all processes of a cluster.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Bench;
use super::etcd::Etcd;
use super::load::Load;
use super::machine::{said, version_in};
use super::page::Findings;
use super::statistics::{median, ratios};
use super::svg::{Chart, Group};
use super::table::{Table, figure, grouped, times};
use crate::cluster::nodes::{Form, Nodes};
use crate::packages;
use crate::servers::Server;
use crate::workspace::Scratch;

const NODES: usize = 3;
const CONNECTIONS: u32 = 64;
const PIPELINES: [u32; 3] = [64, 16, 1];
const KEYS: u64 = 100_000;
/// Length of a run.
const SECONDS: u64 = 8;

/// Goals: increments per second with the longest pipeline, how many times those of etcd, and p99 at half of the load.
const GOAL_PER_SECOND: f64 = 300_000.0;
const GOAL_OF_ETCD: f64 = 20.0;
const GOAL_P99_MS: f64 = 10.0;

/// What was found.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    rounds: usize,
    etcd_version: String,
    /// By pipeline.
    rows: Vec<Row>,
    /// Of each round.
    etcd: Vec<Figures>,
    etcd_conflicts: u64,
    /// Increments per second that were offered, and what came of it in each round.
    offered: u64,
    at_half: Vec<Figures>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    pipeline: u32,
    /// Of each round.
    cluster: Vec<Figures>,
    alone: Vec<Figures>,
}

/// One run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Figures {
    throughput: f64,
    /// Of all processes together.
    cpu_seconds_per_million: f64,
    p50_ms: f64,
    p99_ms: f64,
}

/// All servers, started.
struct Servers<'a> {
    bench: &'a Bench,
    etcd: Etcd,
    cluster: Nodes,
    alone: Server,
    _folder: Scratch,
}

/// Measures everything.
pub fn measure(bench: &Bench) -> Result<Cluster> {
    packages::require(packages::OF_CLUSTER_BENCH)?;
    let folder = Scratch::new("bench")?;
    let cluster = folder.path().join("cluster");
    std::fs::create_dir_all(&cluster)?;
    let mut servers = Servers {
        bench,
        etcd: Etcd::start(folder.path())?,
        cluster: Nodes::found(&bench.binary, &cluster, NODES, 0, Form::Direct)?,
        alone: Server::quipu(&bench.binary, &folder.path().join("alone"), &["--durability", "sync"])?,
        _folder: folder,
    };
    servers.run()
}

impl Servers<'_> {
    fn run(&mut self) -> Result<Cluster> {
        let rounds = self.bench.rounds(3);
        let seconds = if self.bench.is_quick() { 1 } else { SECONDS };
        let load = |pipeline: u32, seed: usize| {
            Load::new("incr")
                .with("--connections", CONNECTIONS)
                .with("--pipeline", pipeline)
                .with("--keys", KEYS)
                .with("--seconds", seconds)
                .with("--seed", seed)
        };
        // So that nobody's first run is on fresh counters.
        self.on_cluster(&Load::of_keys(KEYS)).context("loading keys into the cluster")?;
        self.on_one_alone(&Load::of_keys(KEYS)).context("loading keys")?;
        let mut rows: Vec<Row> =
            PIPELINES.map(|pipeline| Row { pipeline, cluster: Vec::new(), alone: Vec::new() }).into();
        let (mut etcd, mut etcd_conflicts) = (Vec::new(), 0);
        for round in 1..=rounds {
            for row in &mut rows {
                row.cluster.push(self.on_cluster(&load(row.pipeline, round))?);
                row.alone.push(self.on_one_alone(&load(row.pipeline, round))?);
            }
            let (figures, conflicts) = self.on_etcd(Duration::from_secs(seconds))?;
            self.bench.say(&format!("round {round}: etcd {:.0}/s", figures.throughput));
            etcd.push(figures);
            etcd_conflicts += conflicts;
        }
        let unpipelined = rows.last().map_or(0.0, |row| of(&row.cluster, |run| run.throughput));
        let offered = ((unpipelined / 2.0) as u64).max(1);
        let at_half = (1..=rounds)
            .map(|round| self.on_cluster(&load(1, 100 + round).with("--rate", offered)))
            .collect::<Result<_>>()?;
        Ok(Cluster { rounds, etcd_version: etcd_version()?, rows, etcd, etcd_conflicts, offered, at_half })
    }

    fn on_cluster(&self, load: &Load) -> Result<Figures> {
        let processes = self.cluster.processes();
        let first = self.cluster.addresses()[0];
        with_cpu(&processes, || {
            let run = load.offer_at(&self.bench.binary, first, processes[0])?;
            Ok((run.operations, figures(&run)))
        })
    }

    fn on_one_alone(&self, load: &Load) -> Result<Figures> {
        with_cpu(&[self.alone.process_id()], || {
            let run = load.offer(&self.bench.binary, &self.alone)?;
            Ok((run.operations, figures(&run)))
        })
    }

    fn on_etcd(&self, length: Duration) -> Result<(Figures, u64)> {
        let mut conflicts = 0;
        let figures = with_cpu(&self.etcd.processes(), || {
            let done = self.etcd.increment(CONNECTIONS as usize, length)?;
            conflicts = done.conflicts;
            let wait_ms = |part: usize| {
                let wait = done.waits.get(done.waits.len() * part / 100).copied().unwrap_or_default();
                wait.as_secs_f64() * 1e3
            };
            let figures = Figures {
                throughput: done.throughput,
                p50_ms: wait_ms(50),
                p99_ms: wait_ms(99),
                ..Figures::default()
            };
            Ok((done.waits.len() as u64, figures))
        })?;
        Ok((figures, conflicts))
    }
}

fn figures(run: &super::load::Run) -> Figures {
    Figures {
        throughput: run.throughput,
        p50_ms: run.latency_us.p50 / 1e3,
        p99_ms: run.latency_us.p99 / 1e3,
        ..Figures::default()
    }
}

/// Adds what the processes used meanwhile, by the number of operations.
fn with_cpu(processes: &[u32], run: impl FnOnce() -> Result<(u64, Figures)>) -> Result<Figures> {
    let before = cpu_seconds(processes)?;
    let (operations, figures) = run()?;
    let used = cpu_seconds(processes)? - before;
    Ok(Figures { cpu_seconds_per_million: used * 1e6 / operations.max(1) as f64, ..figures })
}

/// User and system time of all of them.
pub fn cpu_seconds(processes: &[u32]) -> Result<f64> {
    let per_second: f64 = said(Command::new("getconf").arg("CLK_TCK"))?.parse()?;
    let mut ticks = 0;
    for process in processes {
        let path = format!("/proc/{process}/stat");
        let text = std::fs::read_to_string(Path::new(&path)).with_context(|| path.clone())?;
        ticks += cpu_ticks(&text).with_context(|| format!("{path}: {text}"))?;
    }
    Ok(ticks as f64 / per_second)
}

/// From the line of a process; its name may hold anything, so what counts begins behind the last bracket.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
}

fn etcd_version() -> Result<String> {
    let text = said(Command::new("etcd").arg("--version"))?;
    Ok(text.lines().next().and_then(version_in).unwrap_or("unknown").to_string())
}

fn of(runs: &[Figures], figure: fn(&Figures) -> f64) -> f64 {
    median(&runs.iter().map(figure).collect::<Vec<f64>>())
}

fn ratio(over: &[Figures], under: &[Figures], figure: fn(&Figures) -> f64) -> f64 {
    let of = |runs: &[Figures]| runs.iter().map(figure).collect::<Vec<f64>>();
    median(&ratios(&of(over), &of(under)))
}

impl Cluster {
    fn of_etcd(&self, row: &Row) -> f64 {
        ratio(&row.cluster, &self.etcd, |run| run.throughput)
    }

    fn throughput_table(&self) -> Table {
        let columns = [
            "increments",
            "quipu, 3 nodes/s",
            "of etcd",
            "quipu alone/s",
            "CPU s per M, 3 nodes",
            "alone",
            "3 nodes : alone",
            "p50 / p99 ms, 3 nodes",
        ];
        let mut table = Table::new(format!("Durable increments, {CONNECTIONS} connections"), columns);
        let waits = |runs: &[Figures]| {
            format!("{} / {}", figure(of(runs, |run| run.p50_ms)), figure(of(runs, |run| run.p99_ms)))
        };
        let cpu: fn(&Figures) -> f64 = |run| run.cpu_seconds_per_million;
        for row in &self.rows {
            table.push(vec![
                format!("P={}", row.pipeline),
                grouped(of(&row.cluster, |run| run.throughput) as i64),
                times(self.of_etcd(row)),
                grouped(of(&row.alone, |run| run.throughput) as i64),
                figure(of(&row.cluster, cpu)),
                figure(of(&row.alone, cpu)),
                times(ratio(&row.cluster, &row.alone, cpu)),
                waits(&row.cluster),
            ]);
        }
        table.push(vec![
            "etcd, 3 nodes, a transaction each".into(),
            grouped(of(&self.etcd, |run| run.throughput) as i64),
            String::new(),
            String::new(),
            figure(of(&self.etcd, cpu)),
            String::new(),
            String::new(),
            waits(&self.etcd),
        ]);
        table
    }

    fn half_table(&self) -> Table {
        let columns = ["offered/s", "answered/s", "p50 ms", "p99 ms", "goal for p99"];
        let mut table = Table::new("Unpipelined, at half of the most, quipu on 3 nodes", columns);
        table.push(vec![
            grouped(self.offered as i64),
            grouped(of(&self.at_half, |run| run.throughput) as i64),
            figure(of(&self.at_half, |run| run.p50_ms)),
            figure(of(&self.at_half, |run| run.p99_ms)),
            format!("below {GOAL_P99_MS} ms"),
        ]);
        table
    }
}

impl Findings for Cluster {
    const NAME: &'static str = "cluster";

    fn tables(&self) -> Vec<Table> {
        vec![self.throughput_table(), self.half_table()]
    }

    fn notes(&self) -> Vec<String> {
        vec![
            format!(
                "Medians of {} rounds; ratios within a round. Goals with P=64: {} increments/s, {GOAL_OF_ETCD}x those of \
                 etcd {}.",
                self.rounds,
                grouped(GOAL_PER_SECOND as i64),
                self.etcd_version
            ),
            "CPU is that of all processes of a cluster together. All six nodes, the single server and the generator share \
             this machine; those of the others that are not measured idle."
                .into(),
            "All connections go to one node: of quipu any, which passes on what others lead; of etcd the leader.".into(),
            format!(
                "An increment on etcd is a transaction that compares the revision and puts, over kept-alive connections to its \
                 JSON gateway. Each connection has counters of its own; {} transactions, the first on a counter of an earlier \
                 round, had to be repeated. Its gRPC interface would spare it the JSON.",
                self.etcd_conflicts
            ),
        ]
    }

    fn chart(&self) -> Option<Chart> {
        let group = |row: &Row| Group {
            label: format!("P={}", row.pipeline),
            bars: vec![Some(self.of_etcd(row))],
            goal: (row.pipeline == PIPELINES[0]).then_some(GOAL_OF_ETCD),
        };
        Some(Chart {
            title: "Three nodes of quipu beside three of etcd".into(),
            subtitle: "how many times the durable increments per second of etcd".into(),
            unit: "x",
            series: vec!["against etcd".into()],
            accent: 0,
            groups: self.rows.iter().map(group).collect(),
            reference: Some(1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::page::tests::assert_page_has_a_place_for;
    use super::*;

    fn run(throughput: f64, cpu_seconds_per_million: f64) -> Figures {
        Figures { throughput, cpu_seconds_per_million, p50_ms: 1.0, p99_ms: 2.0 }
    }

    #[test]
    fn a_cluster_is_told_as_a_multiple_of_etcd_and_of_one_alone() {
        let row = Row { pipeline: 64, cluster: vec![run(400_000.0, 3.0)], alone: vec![run(900_000.0, 1.5)] };
        let found = Cluster {
            rounds: 1,
            etcd_version: "3.4".into(),
            rows: vec![row],
            etcd: vec![run(4_000.0, 200.0)],
            etcd_conflicts: 0,
            offered: 20_000,
            at_half: vec![run(20_000.0, 9.0)],
        };
        let text = found.tables()[0].markdown();
        assert!(
            text.contains("| P=64 | 400,000 | 100.00x | 900,000 | 3.00 | 1.50 | 2.00x | 1.00 / 2.00 |"),
            "{text}"
        );
        assert_eq!(found.chart().unwrap().groups[0].goal, Some(GOAL_OF_ETCD));
        let again: Cluster = serde_json::from_str(&serde_json::to_string(&found).unwrap()).unwrap();
        assert_eq!(again.tables()[0].markdown(), text);
        assert_page_has_a_place_for(Cluster::NAME);
    }

    #[test]
    fn processor_time_is_read_behind_any_name() {
        let line = "7 (a) b) c) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 1 0 1 1 1";
        assert_eq!(cpu_ticks(line), Some(300));
        assert!(cpu_seconds(&[std::process::id()]).unwrap() >= 0.0);
        assert!(cpu_seconds(&[u32::MAX]).is_err());
    }
}
