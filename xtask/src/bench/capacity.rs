//! `cargo xtask bench capacity`: more counters than memory, and very many remembered request ids, on quipu alone.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::Bench;
use super::load::{Load, Run};
use super::page::Findings;
use super::stage::{QUIPU, Stage};
use super::svg::Chart;
use super::table::{Table, figure, grouped};

const DURABILITY: &str = "interval:1000";

/// Counters, and the memory they may take, which is a third of what they would.
const COUNTERS: u64 = 20_000_000;
const COUNTERS_MEMORY_MIB: u64 = 512;
const COUNTERS_KEY_FORMAT: &str = "counter:post:{n}:like:2026-02-23";

/// Increments of random counters once they are there; most of them are on disk.
const COUNTERS_OPERATIONS: u64 = 2_000_000;

/// Request ids, and the memory in which they and a million counters must fit.
const IDS: u64 = 50_000_000;
const IDS_MEMORY_MIB: u64 = 1_024;

/// Ids that are sent once more.
const IDS_REPEATED: u64 = 1_000_000;

/// The least that quipu accepts for `--memory`; a quick look stays above it.
const MEMORY_MIB_MIN: u64 = 32;

/// What was found.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Capacity {
    /// The `--durability` of quipu.
    durability: String,
    counters: Option<Counters>,
    ids: Option<Ids>,
}

/// More counters than memory.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Counters {
    counters: u64,
    memory_mib: u64,
    /// Creates them, and increments them.
    commands: [String; 2],
    loading: Run,
    incrementing: Run,
    restart_seconds: f64,
    /// What `quipu check` said of the folder in the end.
    check: String,
}

/// Many remembered request ids.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Ids {
    ids: u64,
    memory_mib: u64,
    command: String,
    counting: Run,
    restart_seconds: f64,
    /// The first of them, sent again.
    repeating: Run,
    /// By how much counts changed then; it must be nothing.
    counted_again: i64,
}

/// Measures both.
pub fn measure(bench: &Bench) -> Result<Capacity> {
    let counters =
        bench.wants("counters").then(|| measure_counters(bench).context("more counters than memory"));
    let ids = bench.wants("ids").then(|| measure_ids(bench).context("request ids"));
    Ok(Capacity { durability: DURABILITY.into(), counters: counters.transpose()?, ids: ids.transpose()? })
}

fn measure_counters(bench: &Bench) -> Result<Counters> {
    let (counters, memory_mib) =
        (bench.scaled(COUNTERS), bench.scaled(COUNTERS_MEMORY_MIB).max(MEMORY_MIB_MIN));
    let memory = format!("{memory_mib}MiB");
    let arguments = ["--durability", DURABILITY, "--memory", &memory];
    let mut stage = Stage::quipu_alone(bench, &arguments)?;
    bench.say(&format!("{} counters in {memory}", grouped(counters as i64)));
    let loading = Load::of_keys(counters).with("--key-format", COUNTERS_KEY_FORMAT);
    let incrementing = Load::new("incr")
        .with("--keys", counters)
        .with("--key-format", COUNTERS_KEY_FORMAT)
        .with("--pipeline", 64)
        .with("--operations", bench.scaled(COUNTERS_OPERATIONS));
    let commands = [loading.shown(), incrementing.shown()];
    let loading = stage.offer(QUIPU, &loading)?;
    let incrementing = stage.offer(QUIPU, &incrementing)?;
    let restart_seconds = seconds_to_restart(&mut stage, &arguments)?;
    let data = stage.quipu_data();
    stage.stop_quipu()?;
    let check = Command::new(&bench.binary).arg("check").arg(data).output()?;
    ensure!(check.status.success(), "quipu check: {}", String::from_utf8_lossy(&check.stderr));
    let check = String::from_utf8_lossy(&check.stdout).trim().lines().last().unwrap_or_default().to_string();
    Ok(Counters { counters, memory_mib, commands, loading, incrementing, restart_seconds, check })
}

fn measure_ids(bench: &Bench) -> Result<Ids> {
    let (ids, memory_mib) = (bench.scaled(IDS), bench.scaled(IDS_MEMORY_MIB).max(MEMORY_MIB_MIN));
    let memory = format!("{memory_mib}MiB");
    let arguments = ["--durability", DURABILITY, "--memory", &memory];
    let mut stage = Stage::quipu_alone(bench, &arguments)?;
    bench.say(&format!("{} request ids in {memory}", grouped(ids as i64)));
    // The same seed and one thread send the same keys and ids in the same order.
    let load = |operations| {
        Load::new("add-id").with("--pipeline", 64).with("--operations", operations).with("--seed", 1)
    };
    let counting = stage.offer(QUIPU, &load(ids))?;
    let restart_seconds = seconds_to_restart(&mut stage, &arguments)?;
    // The generator expects its increments to count, and complains that they did not.
    let again = load(bench.scaled(IDS_REPEATED)).with_flag("--verify");
    let (repeating, _) = again.offer_anyway(&bench.binary, stage.server(QUIPU)?)?;
    let counted_again = repeating.text("/sum/found").and_then(|sum| sum.parse().ok());
    let counted_again = counted_again.context("the sum was not verified")?;
    ensure!(counted_again == 0, "{counted_again} increments counted again");
    let command = load(ids).shown();
    Ok(Ids { ids, memory_mib, command, counting, restart_seconds, repeating, counted_again })
}

fn seconds_to_restart(stage: &mut Stage, arguments: &[&str]) -> Result<f64> {
    stage.stop_quipu()?;
    let started = Instant::now();
    stage.start_quipu(arguments)?;
    Ok(started.elapsed().as_secs_f64())
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

impl Findings for Capacity {
    const NAME: &'static str = "capacity";

    fn tables(&self) -> Vec<Table> {
        let columns = [
            "work",
            "thousand/s",
            "CPU s per M",
            "p99 ms",
            "resident MiB",
            "seconds to serve again after SIGKILL",
        ];
        let mut table = Table::new("quipu alone", columns);
        let mut push = |work: String, run: &Run, restart_seconds: Option<f64>| {
            table.push(vec![
                work,
                figure(run.throughput / 1e3),
                figure(run.server.cpu_seconds_per_million),
                figure(run.latency_us.p99 / 1e3),
                figure(mebibytes(run.server.resident_bytes)),
                restart_seconds.map_or(String::new(), figure),
            ]);
        };
        if let Some(found) = &self.counters {
            let what =
                format!("{} counters, --memory {}MiB", grouped(found.counters as i64), found.memory_mib);
            push(format!("{what}: created in order"), &found.loading, None);
            push(format!("{what}: incremented at random"), &found.incrementing, Some(found.restart_seconds));
        }
        if let Some(found) = &self.ids {
            let what = format!("{} request ids, --memory {}MiB", grouped(found.ids as i64), found.memory_mib);
            push(format!("{what}: counted"), &found.counting, Some(found.restart_seconds));
            let repeated = grouped(found.repeating.operations as i64);
            push(format!("the first {repeated} of them, sent again"), &found.repeating, None);
        }
        vec![table]
    }

    fn notes(&self) -> Vec<String> {
        let counters =
            self.counters.as_ref().map(|found| format!("`quipu check` afterwards: {}.", found.check));
        let ids = self
            .ids
            .as_ref()
            .map(|found| format!("Ids sent again changed counts by {}.", found.counted_again));
        counters.into_iter().chain(ids).collect()
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
    fn both_parts_have_their_lines() {
        let capacity = Capacity {
            durability: DURABILITY.into(),
            counters: Some(Counters {
                counters: 20_000_000,
                memory_mib: 512,
                commands: ["create".into(), "increment".into()],
                loading: run(1.0, 500_000.0, 1_000.0),
                incrementing: run(5.0, 200_000.0, 4_000.0),
                restart_seconds: 0.75,
                check: "all is well".into(),
            }),
            ids: Some(Ids {
                ids: 50_000_000,
                memory_mib: 1_024,
                command: "count".into(),
                counting: run(2.0, 500_000.0, 1_000.0),
                restart_seconds: 4.0,
                repeating: run(100.0, 9_000.0, 1_000.0),
                counted_again: 0,
            }),
        };
        let text = capacity.tables()[0].markdown();
        for line in [
            "| 20,000,000 counters, --memory 512MiB: incremented at random | 200 | 5.00 | 4.00 | 1.00 | 0.750 |",
            "| the first 1,000,000 of them, sent again | 9.00 | 100 | 1.00 | 1.00 |  |",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert_eq!(
            capacity.notes(),
            ["`quipu check` afterwards: all is well.", "Ids sent again changed counts by 0."]
        );
        let again: Capacity = serde_json::from_str(&serde_json::to_string(&capacity).unwrap()).unwrap();
        assert_eq!(again.tables()[0].markdown(), text);
        assert_page_has_a_place_for(Capacity::NAME);
    }
}
