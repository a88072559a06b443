//! `cargo xtask bench latency`: how long an increment takes when all servers get the same load.
//!
//! At full load a fast server has a full queue and bad latencies, which says nothing. So the most that Redis can do is
//! found first, and half of it is offered to everybody, open loop: increments are due at fixed moments and their
//! latency counts from then, whatever the server did meanwhile.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Bench;
use super::load::{Load, Run};
use super::page::Findings;
use super::stage::{Durability, REDIS, Runs, Settings, Stage};
use super::statistics::median;
use super::svg::{Chart, Group};
use super::table::{Table, figure, grouped};

const KEYS: u64 = 1_000_000;
const CONNECTIONS: u32 = 50;

/// Runs whose median is taken for the most that Redis can do, and how long each takes.
const LIMIT_RUNS: usize = 3;
const LIMIT_SECONDS: u64 = 3;

/// Length of a run at the offered load.
const RUN_SECONDS: u64 = 10;

/// What is offered, as a part of the most that Redis can do.
const OFFERED_PART: f64 = 0.5;

struct Workload {
    name: &'static str,
    durability: Durability,
    pipeline: u32,
}

const WORKLOADS: &[Workload] = &[
    Workload { name: "INCR, synced every second, P=1", durability: Durability::EverySecond, pipeline: 1 },
    Workload { name: "INCR, synced every second, P=16", durability: Durability::EverySecond, pipeline: 16 },
    Workload { name: "INCR, every reply synced, P=1", durability: Durability::EveryReply, pipeline: 1 },
    Workload { name: "INCR, every reply synced, P=16", durability: Durability::EveryReply, pipeline: 16 },
];

/// What was found.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Latencies {
    rounds: usize,
    /// Quipu is the last.
    servers: Vec<String>,
    workloads: Vec<Measured>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    name: String,
    durability: Settings,
    /// The most that Redis could do, in operations per second.
    redis_limit: f64,
    /// What everybody got, in operations per second.
    offered: u64,
    command: String,
    summary: BTreeMap<String, Summary>,
    runs: Runs,
}

/// Medians of a server over its runs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    p50_ms: f64,
    p99_ms: f64,
    p999_ms: f64,
    /// Operations answered per second; less than offered means that it did not keep up.
    answered: f64,
    cpu_seconds_per_million: f64,
    /// How late the generator itself was; part of the latencies above.
    send_delay_p99_ms: f64,
}

/// Measures all workloads.
pub fn measure(bench: &Bench) -> Result<Latencies> {
    let rounds = bench.rounds(5);
    let mut workloads = Vec::new();
    for workload in WORKLOADS.iter().filter(|workload| bench.wants(workload.name)) {
        workloads.push(measure_workload(bench, workload, rounds).with_context(|| workload.name.to_string())?);
    }
    Ok(Latencies { rounds, servers: bench.server_names(), workloads })
}

fn measure_workload(bench: &Bench, workload: &Workload, rounds: usize) -> Result<Measured> {
    let stage = Stage::start(bench, workload.durability)?;
    stage.load_keys(KEYS)?;
    let load = |seed: usize| {
        Load::new("incr")
            .with("--connections", CONNECTIONS)
            .with("--pipeline", workload.pipeline)
            .with("--keys", KEYS)
            .with("--seed", seed)
    };
    let seconds = |usual: u64| if bench.is_quick() { 1 } else { usual };
    let limits: Vec<f64> = (1..=if bench.is_quick() { 1 } else { LIMIT_RUNS })
        .map(|seed| Ok(stage.offer(REDIS, &load(seed).with("--seconds", seconds(LIMIT_SECONDS)))?.throughput))
        .collect::<Result<_>>()?;
    let redis_limit = median(&limits);
    let offered = ((redis_limit * OFFERED_PART) as u64).max(1);
    bench.say(&format!("{}: redis can do {redis_limit:.0}/s, all get {offered}/s", workload.name));
    let paced =
        |round: usize| load(100 + round).with("--rate", offered).with("--seconds", seconds(RUN_SECONDS));
    let runs = stage.rounds(rounds, |_, round| paced(round))?;
    Ok(Measured {
        name: workload.name.to_string(),
        durability: workload.durability.into(),
        redis_limit,
        offered,
        command: paced(1).shown(),
        summary: runs.iter().map(|(name, runs)| (name.clone(), summary(runs))).collect(),
        runs,
    })
}

fn summary(runs: &[Run]) -> Summary {
    let of = |figure: fn(&Run) -> f64| median(&runs.iter().map(figure).collect::<Vec<f64>>());
    Summary {
        p50_ms: of(|run| run.latency_us.p50 / 1e3),
        p99_ms: of(|run| run.latency_us.p99 / 1e3),
        p999_ms: of(|run| run.latency_us.p999 / 1e3),
        answered: of(|run| run.throughput),
        cpu_seconds_per_million: of(|run| run.server.cpu_seconds_per_million),
        send_delay_p99_ms: of(|run| run.number("/sendDelayUs/p99").unwrap_or(0.0) / 1e3),
    }
}

impl Findings for Latencies {
    const NAME: &'static str = "latency";

    fn tables(&self) -> Vec<Table> {
        let columns =
            ["load", "server", "offered/s", "answered/s", "p50 ms", "p99 ms", "p99.9 ms", "CPU s per M"];
        let mut table = Table::new("Latency at the same load for all", columns);
        for workload in &self.workloads {
            for server in &self.servers {
                let Some(summary) = workload.summary.get(server) else { continue };
                table.push(vec![
                    workload.name.clone(),
                    server.clone(),
                    grouped(workload.offered as i64),
                    grouped(summary.answered as i64),
                    figure(summary.p50_ms),
                    figure(summary.p99_ms),
                    figure(summary.p999_ms),
                    figure(summary.cpu_seconds_per_million),
                ]);
            }
        }
        vec![table]
    }

    fn notes(&self) -> Vec<String> {
        let delays = self.workloads.iter().flat_map(|workload| workload.summary.values());
        let largest = delays.map(|summary| summary.send_delay_p99_ms).fold(0.0, f64::max);
        vec![
            format!(
                "Medians of {} runs each, in turn. Offered is half of what Redis can do; latency counts from when an \
                 increment was due.",
                self.rounds
            ),
            format!(
                "The generator itself was late by up to {} ms (p99); that is part of everybody's latency.",
                figure(largest)
            ),
        ]
    }

    fn chart(&self) -> Option<Chart> {
        let group = |workload: &Measured, what: &str, value: fn(&Summary) -> f64| Group {
            label: format!("{}: {what}", workload.name),
            bars: self.servers.iter().map(|server| workload.summary.get(server).map(value)).collect(),
            goal: None,
        };
        let groups = self.workloads.iter().flat_map(|workload| {
            [
                group(workload, "p50", |summary| summary.p50_ms),
                group(workload, "p99", |summary| summary.p99_ms),
            ]
        });
        Some(Chart {
            title: "Latency at half of what Redis can do".into(),
            subtitle: "milliseconds from when an increment was due to its reply; shorter is better".into(),
            unit: " ms",
            series: self.servers.clone(),
            accent: self.servers.len() - 1,
            groups: groups.collect(),
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
    fn medians_of_percentiles_are_shown_for_each_server() {
        let runs = Runs::from([
            ("redis".to_string(), [1_000.0, 9_000.0, 2_000.0].map(|p99| run(8.0, 50_000.0, p99)).to_vec()),
            ("quipu".to_string(), [500.0, 600.0, 700.0].map(|p99| run(7.0, 50_000.0, p99)).to_vec()),
        ]);
        let workload = Measured {
            name: "INCR".into(),
            durability: Durability::EveryReply.into(),
            redis_limit: 100_000.0,
            offered: 50_000,
            command: String::new(),
            summary: runs.iter().map(|(name, runs)| (name.clone(), summary(runs))).collect(),
            runs,
        };
        let found =
            Latencies { rounds: 3, servers: vec!["redis".into(), "quipu".into()], workloads: vec![workload] };
        let text = found.tables()[0].markdown();
        assert!(text.contains("| INCR | redis | 50,000 | 50,000 | 1.00 | 2.00 | 4.00 | 8.00 |"), "{text}");
        assert!(text.contains("| INCR | quipu | 50,000 | 50,000 | 0.300 | 0.600 | 1.20 | 7.00 |"), "{text}");
        assert_eq!(found.chart().unwrap().groups[1].bars, [Some(2.0), Some(0.6)]);
        assert!(
            found.notes()[1].contains("0.007 ms") || found.notes()[1].contains("0.008 ms"),
            "{:?}",
            found.notes()
        );
        let again: Latencies = serde_json::from_str(&serde_json::to_string(&found).unwrap()).unwrap();
        assert_eq!(again.tables()[0].markdown(), text);
        assert_page_has_a_place_for(Latencies::NAME);
    }
}
