//! `cargo xtask bench growth`: what an increment costs as there are more counters, or more connections.
//!
//! Each step is measured on quipu and on its peers. What matters is not the figure of a step but by how much an operation
//! becomes dearer when the size doubles, and where that jumps: the knee.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Bench;
use super::load::Load;
use super::page::Findings;
use super::stage::{Durability, Runs, Settings, Stage};
use super::statistics::{KNEE_PERCENT, Step, knee, median, percent_per_doubling};
use super::svg::{Chart, Group};
use super::table::{Table, figure, grouped};

/// Counters of each step; all of them fit into memory.
const COUNTERS: [u64; 4] = [1_000_000, 2_000_000, 4_000_000, 8_000_000];

/// Connections of each step.
const CONNECTIONS: [u64; 8] = [50, 100, 200, 400, 800, 1_600, 3_200, 5_000];

/// Counters while connections grow, and connections while counters grow.
const FIXED_COUNTERS: u64 = 1_000_000;
const FIXED_CONNECTIONS: u64 = 50;

/// A long pipeline, so that looking counters up is most of the work; and none, so that connections are.
const COUNTERS_PIPELINE: u32 = 64;
const CONNECTIONS_PIPELINE: u32 = 1;

const COUNTERS_OPERATIONS: u64 = 5_000_000;
const CONNECTIONS_OPERATIONS: u64 = 600_000;

/// What was found.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Growth {
    rounds: usize,
    durability: Settings,
    /// Quipu is the last.
    servers: Vec<String>,
    /// One for each thing that grew.
    series: Vec<Series>,
}

/// One thing that grew.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Series {
    /// What grew: `counters` or `connections`.
    what: String,
    pipeline: u32,
    steps: Vec<Measured>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Measured {
    size: u64,
    command: String,
    /// Medians by server: CPU seconds per million operations, and operations per second.
    summary: BTreeMap<String, (f64, f64)>,
    runs: Runs,
}

/// Measures both.
pub fn measure(bench: &Bench) -> Result<Growth> {
    let rounds = bench.rounds(3);
    let mut series = Vec::new();
    if bench.wants("counters") {
        let mut steps = Vec::new();
        for counters in COUNTERS.map(|counters| bench.scaled(counters)) {
            let stage = Stage::start(bench, Durability::EverySecond)?;
            stage.load_keys(counters).with_context(|| format!("{counters} counters"))?;
            let load =
                load(counters, FIXED_CONNECTIONS, COUNTERS_PIPELINE, bench.scaled(COUNTERS_OPERATIONS));
            steps.push(
                step(bench, &stage, counters, rounds, &load)
                    .with_context(|| format!("{counters} counters"))?,
            );
        }
        series.push(Series { what: "counters".into(), pipeline: COUNTERS_PIPELINE, steps });
    }
    if bench.wants("connections") {
        let stage = Stage::start(bench, Durability::EverySecond)?;
        let counters = bench.scaled(FIXED_COUNTERS);
        stage.load_keys(counters)?;
        let mut steps = Vec::new();
        for connections in CONNECTIONS {
            let load =
                load(counters, connections, CONNECTIONS_PIPELINE, bench.scaled(CONNECTIONS_OPERATIONS));
            let found = step(bench, &stage, connections, rounds, &load);
            steps.push(found.with_context(|| format!("{connections} connections"))?);
        }
        series.push(Series { what: "connections".into(), pipeline: CONNECTIONS_PIPELINE, steps });
    }
    let durability = Durability::EverySecond.into();
    Ok(Growth { rounds, durability, servers: bench.server_names(), series })
}

fn load(counters: u64, connections: u64, pipeline: u32, operations: u64) -> Load {
    Load::new("incr")
        .with("--keys", counters)
        .with("--connections", connections)
        .with("--pipeline", pipeline)
        .with("--operations", operations)
}

fn step(bench: &Bench, stage: &Stage, size: u64, rounds: usize, load: &Load) -> Result<Measured> {
    let runs = stage.rounds(rounds, |_, round| load.clone().with("--seed", round))?;
    let summary: BTreeMap<String, (f64, f64)> = runs
        .iter()
        .map(|(name, runs)| {
            let cpu: Vec<f64> = runs.iter().map(|run| run.server.cpu_seconds_per_million).collect();
            let throughput: Vec<f64> = runs.iter().map(|run| run.throughput).collect();
            (name.clone(), (median(&cpu), median(&throughput)))
        })
        .collect();
    let shown: Vec<String> =
        summary.iter().map(|(name, (cpu, _))| format!("{name} {}", figure(*cpu))).collect();
    bench.say(&format!("{}: CPU s per M: {}", grouped(size as i64), shown.join(", ")));
    Ok(Measured { size, command: load.shown(), summary, runs })
}

impl Series {
    fn steps_of(&self, server: &str) -> Vec<Step> {
        let found = self.steps.iter().filter_map(|step| {
            let (cost, _) = step.summary.get(server)?;
            Some(Step { size: step.size as f64, cost: *cost })
        });
        found.collect()
    }

    fn table(&self, servers: &[String]) -> Table {
        let title = format!("More {}: INCR of random keys, P={}", self.what, self.pipeline);
        let mut columns = vec![self.what.clone()];
        for server in servers {
            columns.extend(
                ["CPU s per M", "per doubling", "thousand/s"].map(|what| format!("{server}: {what}")),
            );
        }
        let mut table = Table::new(title, columns);
        let doublings: BTreeMap<&String, Vec<f64>> =
            servers.iter().map(|server| (server, percent_per_doubling(&self.steps_of(server)))).collect();
        for (index, step) in self.steps.iter().enumerate() {
            let mut cells = vec![grouped(step.size as i64)];
            for server in servers {
                let (cpu, throughput) = step.summary.get(server).copied().unwrap_or((f64::NAN, f64::NAN));
                let percent = index.checked_sub(1).and_then(|before| doublings[server].get(before));
                cells.push(figure(cpu));
                cells.push(percent.map_or(String::new(), |percent| format!("{percent:+.0} %")));
                cells.push(figure(throughput / 1e3));
            }
            table.push(cells);
        }
        table
    }

    /// Where it begins to cost, for every server.
    fn knees(&self, servers: &[String]) -> String {
        let of = |server: &String| {
            let steps = self.steps_of(server);
            match knee(&steps) {
                Some(place) => {
                    let percent = percent_per_doubling(&steps)[place - 1];
                    let (from, to) = (steps[place - 1].size as i64, steps[place].size as i64);
                    let (from, to) = (grouped(from), grouped(to));
                    format!("{server} from {from} to {to} ({percent:+.0} % per doubling)")
                }
                None => format!("{server} none"),
            }
        };
        let knees: Vec<String> = servers.iter().map(of).collect();
        format!("Knees with more {} (a doubling above {KNEE_PERCENT} %): {}.", self.what, knees.join("; "))
    }
}

impl Findings for Growth {
    const NAME: &'static str = "growth";

    fn tables(&self) -> Vec<Table> {
        self.series.iter().map(|series| series.table(&self.servers)).collect()
    }

    fn notes(&self) -> Vec<String> {
        let knees = self.series.iter().map(|series| series.knees(&self.servers));
        knees.chain([format!("Medians of {} rounds.", self.rounds)]).collect()
    }

    fn chart(&self) -> Option<Chart> {
        let groups = self.series.iter().flat_map(|series| {
            let first = |server: &String| Some(series.steps.first()?.summary.get(server)?.0);
            series.steps.iter().map(move |step| Group {
                label: format!("{} {}, P={}", grouped(step.size as i64), series.what, series.pipeline),
                bars: self
                    .servers
                    .iter()
                    .map(|server| Some(step.summary.get(server)?.0 / first(server)?))
                    .collect(),
                goal: None,
            })
        });
        Some(Chart {
            title: "How much dearer an increment becomes as there is more".into(),
            subtitle: "server CPU per operation as a multiple of the first step of the same server; shorter is better".into(),
            unit: "x",
            series: self.servers.clone(),
            accent: self.servers.len() - 1,
            groups: groups.collect(),
            reference: Some(1.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::page::tests::assert_page_has_a_place_for;
    use super::*;

    #[test]
    fn steps_are_told_per_doubling_with_their_knee() {
        let step = |size, redis: f64, quipu: f64| Measured {
            size,
            command: String::new(),
            summary: [("redis", redis), ("quipu", quipu)]
                .map(|(name, cpu)| (name.to_string(), (cpu, 1e6 / cpu)))
                .into(),
            runs: Runs::new(),
        };
        let steps = vec![step(1_000, 1.0, 0.5), step(2_000, 1.5, 0.55), step(8_000, 1.5, 0.55)];
        let growth = Growth {
            rounds: 3,
            durability: Durability::EverySecond.into(),
            servers: vec!["redis".into(), "quipu".into()],
            series: vec![Series { what: "counters".into(), pipeline: 64, steps }],
        };
        let text = growth.tables()[0].markdown();
        assert!(text.contains("| 1,000 | 1.00 |  | 1,000 | 0.500 |  | 2,000 |"), "{text}");
        assert!(text.contains("| 2,000 | 1.50 | +50 % | 667 | 0.550 | +10 % | 1,818 |"), "{text}");
        assert_eq!(growth.chart().unwrap().groups[1].bars, [Some(1.5), Some(0.55 / 0.5)]);
        assert_eq!(
            growth.notes()[0],
            "Knees with more counters (a doubling above 20 %): redis from 1,000 to 2,000 (+50 % per doubling); quipu none."
        );
        let again: Growth = serde_json::from_str(&serde_json::to_string(&growth).unwrap()).unwrap();
        assert_eq!(again.tables()[0].markdown(), text);
        assert_page_has_a_place_for(Growth::NAME);
    }

    #[test]
    fn sizes_grow() {
        assert!(COUNTERS.is_sorted() && CONNECTIONS.is_sorted());
    }
}
