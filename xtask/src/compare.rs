//! `cargo xtask bench compare`: the same load on redis-server and on quipu, on this machine, in one run.
//!
//! Both servers run at the same time and get the load in turn, three rounds each, so that whatever else the machine
//! does meets both. The first figure is CPU seconds of the server per million operations, because generator and
//! server share the machine; then throughput, then latency. Ratios are medians over the rounds.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::packages;
use crate::servers::Server;
use crate::workspace::{Binary, Scratch, target_folder};

/// Keys that exist before a row begins.
const KEYS: u64 = 1_000_000;

/// `--quick` divides operations by this and runs one round: a look, not a measurement.
const QUICK_DIVISOR: u64 = 10;

/// Arguments of `bench compare`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// One round of a tenth of the operations
    #[arg(long)]
    quick: bool,
    /// Only rows whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Rounds per row
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[command(flatten)]
    binary: Binary,
}

/// When a reply may be sent, in the words of both.
#[derive(Clone, Copy)]
struct Durability {
    redis: &'static str,
    quipu: &'static str,
}

const EVERY_SECOND: Durability = Durability { redis: "everysec", quipu: "interval:1000" };
const EVERY_REPLY: Durability = Durability { redis: "always", quipu: "sync" };

/// Which figure the goal of a row speaks of.
#[derive(Clone, Copy, PartialEq)]
enum Goal {
    Cpu(f64),
    Throughput(f64),
}

/// One line of the comparison.
struct Row {
    name: &'static str,
    durability: Durability,
    redis_command: &'static str,
    quipu_command: &'static str,
    connections: u32,
    pipeline: u32,
    /// Of each run; enough for seconds of CPU time, and for a checkpoint of quipu.
    operations: u64,
    goal: Goal,
}

const fn row(name: &'static str, command: &'static str, pipeline: u32, operations: u64, goal: f64) -> Row {
    Row {
        name,
        durability: EVERY_SECOND,
        redis_command: command,
        quipu_command: command,
        connections: 50,
        pipeline,
        operations,
        goal: Goal::Cpu(goal),
    }
}

const fn synced(name: &'static str, connections: u32, pipeline: u32, operations: u64, goal: f64) -> Row {
    let row = row(name, "incr", pipeline, operations, goal);
    Row { durability: EVERY_REPLY, connections, goal: Goal::Throughput(goal), ..row }
}

const fn with_id(name: &'static str, pipeline: u32, operations: u64, goal: f64) -> Row {
    Row { redis_command: "script-id", quipu_command: "add-id", ..row(name, "", pipeline, operations, goal) }
}

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
    synced("synced INCR, 1 connection, P=1", 1, 1, 20_000, 1.4),
    synced("synced INCR, 64 connections, P=1", 64, 1, 600_000, 1.4),
    synced("synced INCR, 64 connections, P=16", 64, 16, 3_000_000, 3.0),
    synced("synced INCR, 64 connections, P=64", 64, 64, 4_000_000, 5.5),
];

/// Measures all rows, prints a line for each, and leaves everything in `target/bench.json`.
pub fn run(arguments: &Arguments) -> Result<()> {
    packages::require(packages::OF_BENCH)?;
    let binary = arguments.binary.get()?;
    let rounds = if arguments.quick { 1 } else { arguments.rounds.max(1) };
    let divisor = if arguments.quick { QUICK_DIVISOR } else { 1 };
    println!("{HEADER}");
    let mut results = Vec::new();
    for row in ROWS {
        if arguments.only.as_ref().is_some_and(|part| !row.name.contains(part.as_str())) {
            continue;
        }
        let result = measure_row(&binary, row, rounds, divisor).with_context(|| row.name.to_string())?;
        println!("{}", line(row, &result));
        results.push(result);
    }
    let path = target_folder()?.join("bench.json");
    let text = serde_json::to_string_pretty(&json!({ "rounds": rounds, "rows": results }))?;
    std::fs::write(&path, text + "\n")?;
    println!("everything measured is in {}", path.display());
    Ok(())
}

const HEADER: &str = concat!(
    "                                  |  server CPU s per M operations |",
    "      thousand operations per s |        p50 / p99 in ms        | check-\n",
    "row                               |    redis    quipu  ratio  goal |",
    "    redis    quipu  ratio  goal |         redis |         quipu | points",
);

/// Fresh servers for every row: no row inherits memory, files or background work from another.
fn measure_row(binary: &Path, row: &Row, rounds: usize, divisor: u64) -> Result<Value> {
    let folder = Scratch::new("bench")?;
    let redis = Server::redis(&folder.path().join("redis"), row.durability.redis)?;
    let quipu = Server::quipu(binary, &folder.path().join("quipu"), row.durability.quipu)?;
    for server in [&redis, &quipu] {
        let load = Load { command: "load", connections: 50, pipeline: 256, operations: KEYS, seed: 0 };
        load.offer(binary, server, folder.path()).context("loading the keys")?;
    }
    let mut measured = Vec::new();
    for round in 1..=rounds as u64 {
        let load = |command| Load {
            command,
            connections: row.connections,
            pipeline: row.pipeline,
            operations: row.operations / divisor,
            seed: round,
        };
        let of_redis = load(row.redis_command).offer(binary, &redis, folder.path()).context("redis")?;
        let of_quipu = load(row.quipu_command).offer(binary, &quipu, folder.path()).context("quipu")?;
        measured.push(json!({ "redis": of_redis, "quipu": of_quipu }));
    }
    Ok(summary(row, measured))
}

/// One call of `quipu bench`.
struct Load {
    command: &'static str,
    connections: u32,
    pipeline: u32,
    operations: u64,
    seed: u64,
}

impl Load {
    fn offer(&self, binary: &Path, server: &Server, folder: &Path) -> Result<Value> {
        let json = folder.join("result.json");
        let output = Command::new(binary)
            .args(["bench", "--target", &format!("resp://{}", server.resp), "--command", self.command])
            .args(["--connections", &self.connections.to_string(), "--pipeline", &self.pipeline.to_string()])
            .args(["--operations", &self.operations.to_string(), "--keys", &KEYS.to_string()])
            .args(["--seed", &self.seed.to_string(), "--json"])
            .arg(&json)
            .output()?;
        ensure!(output.status.success(), "quipu bench failed: {}", String::from_utf8_lossy(&output.stderr));
        Ok(serde_json::from_slice(&std::fs::read(json)?)?)
    }
}

fn summary(row: &Row, measured: Vec<Value>) -> Value {
    let of = |server: &str, pointer: &str| -> Vec<f64> {
        let pointer = format!("/{server}{pointer}");
        measured
            .iter()
            .map(|round| round.pointer(&pointer).and_then(Value::as_f64).unwrap_or(f64::NAN))
            .collect()
    };
    let (redis_cpu, quipu_cpu) = (of("redis", CPU), of("quipu", CPU));
    let (redis_rate, quipu_rate) = (of("redis", "/throughput"), of("quipu", "/throughput"));
    let latency = |server: &str| {
        let at = |percentile: &str| median(of(server, &format!("/latencyUs/{percentile}"))) / 1e3;
        json!({ "p50Ms": at("p50"), "p99Ms": at("p99") })
    };
    json!({
        "row": row.name,
        "cpuSecondsPerMillion": {
            "redis": median(redis_cpu.clone()),
            "quipu": median(quipu_cpu.clone()),
            "ratio": median(ratios(&redis_cpu, &quipu_cpu)),
        },
        "throughput": {
            "redis": median(redis_rate.clone()),
            "quipu": median(quipu_rate.clone()),
            "ratio": median(ratios(&quipu_rate, &redis_rate)),
        },
        "latency": { "redis": latency("redis"), "quipu": latency("quipu") },
        "checkpointsOfQuipu": of("quipu", "/server/checkpoints"),
        "rounds": measured,
    })
}

const CPU: &str = "/server/cpuSecondsPerMillion";

fn ratios(over: &[f64], under: &[f64]) -> Vec<f64> {
    over.iter().zip(under).map(|(over, under)| over / under).collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn line(row: &Row, result: &Value) -> String {
    let number = |pointer: &str| result.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let goal = |goal: Option<f64>| goal.map(|goal| format!("{goal}x")).unwrap_or_default();
    let (cpu_goal, throughput_goal) = match row.goal {
        Goal::Cpu(goal) => (Some(goal), None),
        Goal::Throughput(goal) => (None, Some(goal)),
    };
    let checkpoints: Vec<String> = result["checkpointsOfQuipu"]
        .as_array()
        .map(|counts| {
            counts.iter().map(|count| count.as_f64().map_or("?".into(), |n| n.to_string())).collect()
        })
        .unwrap_or_default();
    format!(
        "{:<33} | {:8.3} {:8.3} {:5.2}x {:>5} | {:8.1} {:8.1} {:5.2}x {:>5} | {:5.2} / {:5.2} | {:5.2} / {:5.2} | {}",
        row.name,
        number("/cpuSecondsPerMillion/redis"),
        number("/cpuSecondsPerMillion/quipu"),
        number("/cpuSecondsPerMillion/ratio"),
        goal(cpu_goal),
        number("/throughput/redis") / 1e3,
        number("/throughput/quipu") / 1e3,
        number("/throughput/ratio"),
        goal(throughput_goal),
        number("/latency/redis/p50Ms"),
        number("/latency/redis/p99Ms"),
        number("/latency/quipu/p50Ms"),
        number("/latency/quipu/p99Ms"),
        checkpoints.join(" "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(cpu: f64, throughput: f64) -> Value {
        json!({
            "throughput": throughput,
            "latencyUs": { "p50": 1500.0, "p99": 2500.0 },
            "server": { "cpuSecondsPerMillion": cpu, "checkpoints": 1 },
        })
    }

    #[test]
    fn ratios_are_medians_of_rounds_and_above_one_when_quipu_is_better() {
        // The rounds' ratios are 2, 8 and 4; the ratio of the medians would be another number.
        let rounds = [(2.0, 1.0), (8.0, 1.0), (8.0, 2.0)]
            .map(|(redis, quipu)| json!({ "redis": measured(redis, 10_000.0), "quipu": measured(quipu, 30_000.0) }));
        let result = summary(&ROWS[0], rounds.to_vec());
        assert_eq!(result["cpuSecondsPerMillion"]["ratio"], 4.0);
        assert_eq!(result["cpuSecondsPerMillion"]["redis"], 8.0);
        assert_eq!(result["throughput"]["ratio"], 3.0);
        let text = line(&ROWS[0], &result);
        for expected in [" 4.00x  1.3x ", "    10.0     30.0  3.00x ", "1.50 /  2.50", "| 1 1 1"] {
            assert!(text.contains(expected), "{expected:?} is missing in {text:?}");
        }
    }

    #[test]
    fn rows_have_names_of_their_own() {
        let names: std::collections::BTreeSet<&str> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ROWS.len());
    }
}
