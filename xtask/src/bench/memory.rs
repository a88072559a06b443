//! `cargo xtask bench memory`: what a counter takes in memory and on disk, and how long a restart takes with many.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::Bench;
use super::load::Load;
use super::page::Findings;
use super::stage::{Durability, Peer, Settings};
use super::svg::{Chart, Group};
use super::table::{Table, figure, grouped};
use crate::servers::{Server, disk_bytes};
use crate::workspace::Scratch;

/// How many counters, unless somebody asks for another number.
pub const KEYS: u64 = 5_000_000;

/// Names as people give them.
const KEY_FORMAT: &str = "counter:post:{n}:like:2026-02-23";

/// Redis shares the objects of small integers between keys, so values below and above 10,000 cost differently.
const VALUES: [i64; 2] = [1, 12_345_678];

/// Increments behind the bytes that one takes in the log.
const INCREMENTS: u64 = 1_000_000;

/// Goals for quipu: resident bytes per counter, log bytes per increment, seconds until it serves again.
const GOAL_RESIDENT_BYTES: f64 = 64.0;
const GOAL_LOG_BYTES: f64 = 24.0;
const GOAL_RESTART_SECONDS: f64 = 1.0;

/// What was found.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    keys: u64,
    key_format: String,
    durability: Settings,
    /// Creates the counters (with the row's value), and increments them.
    commands: [String; 2],
    servers: Vec<String>,
    rows: Vec<Held>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Held {
    server: String,
    value: i64,
    /// Right after the last counter was created.
    resident_bytes: u64,
    /// Of the data folder, then.
    disk_bytes: u64,
    /// By how much the log grew with each of a million increments; nothing if the log was rewritten meanwhile.
    log_bytes_per_increment: Option<f64>,
    /// From the start of the process, after a SIGKILL, until it answers.
    restart_seconds: f64,
}

/// Measures all servers, one after another.
pub fn measure(bench: &Bench, keys: u64) -> Result<Memory> {
    ensure!(keys > 0, "--keys must be above 0");
    let keys = bench.scaled(keys);
    let mut rows = Vec::new();
    for value in VALUES {
        for name in bench.server_names() {
            let peer = bench.peers.iter().find(|peer| peer.name == name);
            bench.say(&format!("{} counters of value {value} in {name}", grouped(keys as i64)));
            let held = measure_server(bench, &name, peer, keys, value);
            rows.push(held.with_context(|| format!("{name}, value {value}"))?);
        }
    }
    Ok(Memory {
        keys,
        key_format: KEY_FORMAT.into(),
        durability: Durability::EverySecond.into(),
        commands: [creating(keys, VALUES[0]).shown(), incrementing(bench, keys).shown()],
        servers: bench.server_names(),
        rows,
    })
}

fn measure_server(bench: &Bench, name: &str, peer: Option<&Peer>, keys: u64, value: i64) -> Result<Held> {
    let folder = Scratch::new("memory")?;
    let data = folder.path().join("data");
    let server = start(bench, peer, &data)?;
    let resident_bytes = creating(keys, value).offer(&bench.binary, &server)?.server.resident_bytes;
    let disk_bytes = disk_bytes(&data)?;
    let log_bytes_per_increment = log_bytes_per_increment(bench, &server, keys)?;
    server.kill()?;
    let started = Instant::now();
    let again = start(bench, peer, &data)?;
    let restart_seconds = started.elapsed().as_secs_f64();
    drop(again);
    let server = name.to_string();
    Ok(Held { server, value, resident_bytes, disk_bytes, log_bytes_per_increment, restart_seconds })
}

fn creating(keys: u64, value: i64) -> Load {
    Load::of_keys(keys).with("--key-format", KEY_FORMAT).with("--value", value)
}

fn incrementing(bench: &Bench, keys: u64) -> Load {
    Load::new("incr")
        .with("--pipeline", 16)
        .with("--keys", keys)
        .with("--key-format", KEY_FORMAT)
        .with("--operations", bench.scaled(INCREMENTS))
}

fn start(bench: &Bench, peer: Option<&Peer>, data: &Path) -> Result<Server> {
    let durability = Durability::EverySecond;
    match peer {
        Some(peer) => Server::redis_like(&peer.program, data, durability.of_peers()),
        None => Server::quipu(&bench.binary, data, &["--durability", durability.of_quipu()]),
    }
}

fn log_bytes_per_increment(bench: &Bench, server: &Server, keys: u64) -> Result<Option<f64>> {
    let position = || -> Result<Option<u64>> {
        let of_quipu = server.info_number("log_end")?;
        Ok(if of_quipu.is_some() { of_quipu } else { server.info_number("aof_current_size")? })
    };
    let before = position()?;
    let run = incrementing(bench, keys).offer(&bench.binary, server)?;
    let grown = before.zip(position()?).and_then(|(before, after)| after.checked_sub(before));
    Ok(grown.map(|bytes| bytes as f64 / run.operations as f64))
}

impl Memory {
    fn per_counter(&self, bytes: u64) -> f64 {
        bytes as f64 / self.keys as f64
    }
}

impl Findings for Memory {
    const NAME: &'static str = "memory";

    fn tables(&self) -> Vec<Table> {
        let title = format!("{} counters named {}", grouped(self.keys as i64), self.key_format);
        let columns = [
            "server",
            "value",
            "resident bytes per counter",
            "disk bytes per counter",
            "log bytes per increment",
            "seconds to serve again after SIGKILL",
        ];
        let mut table = Table::new(title, columns);
        for held in &self.rows {
            table.push(vec![
                held.server.clone(),
                held.value.to_string(),
                figure(self.per_counter(held.resident_bytes)),
                figure(self.per_counter(held.disk_bytes)),
                held.log_bytes_per_increment.map_or("-".into(), figure),
                figure(held.restart_seconds),
            ]);
        }
        table.push(
            ["goal for quipu".into(), String::new(), figure(GOAL_RESIDENT_BYTES), String::new()]
                .into_iter()
                .chain([figure(GOAL_LOG_BYTES), format!("below {GOAL_RESTART_SECONDS}")])
                .collect(),
        );
        vec![table]
    }

    fn notes(&self) -> Vec<String> {
        vec![
            "Resident is the whole process, caches of the cold store included; disk is the whole data folder right \
             after loading, with log space that is reserved but not yet used."
                .into(),
            "Increments behind the log bytes: one million over all counters, P=16. A peer that rewrote its log meanwhile \
             has no figure."
                .into(),
        ]
    }

    fn chart(&self) -> Option<Chart> {
        let values: Vec<i64> =
            VALUES.into_iter().filter(|value| self.rows.iter().any(|row| row.value == *value)).collect();
        let group = |value: i64| Group {
            label: format!("value {}", grouped(value)),
            bars: self
                .servers
                .iter()
                .map(|server| {
                    let held = self.rows.iter().find(|row| row.server == *server && row.value == value)?;
                    Some(self.per_counter(held.resident_bytes))
                })
                .collect(),
            goal: Some(GOAL_RESIDENT_BYTES),
        };
        Some(Chart {
            title: "Resident bytes per counter".into(),
            subtitle: format!(
                "{} counters; quipu's hold value, version and time of change; shorter is better",
                grouped(self.keys as i64)
            ),
            unit: " B",
            series: self.servers.clone(),
            accent: self.servers.len() - 1,
            groups: values.into_iter().map(group).collect(),
            reference: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::page::tests::assert_page_has_a_place_for;
    use super::super::stage::QUIPU;
    use super::*;

    #[test]
    fn bytes_are_told_per_counter() {
        let held = |server: &str, resident_bytes, log| Held {
            server: server.into(),
            value: 1,
            resident_bytes,
            disk_bytes: 4_000,
            log_bytes_per_increment: log,
            restart_seconds: 0.5,
        };
        let memory = Memory {
            keys: 100,
            key_format: "k{n}".into(),
            durability: Durability::EverySecond.into(),
            commands: ["create".into(), "increment".into()],
            servers: vec!["redis".into(), QUIPU.into()],
            rows: vec![held("redis", 10_400, None), held(QUIPU, 7_700, Some(22.0))],
        };
        let text = memory.tables()[0].markdown();
        assert!(text.contains("| redis | 1 | 104 | 40.0 | - | 0.500 |"), "{text}");
        assert!(text.contains("| quipu | 1 | 77.0 | 40.0 | 22.0 | 0.500 |"), "{text}");
        let chart = memory.chart().unwrap();
        assert_eq!((chart.groups.len(), chart.groups[0].bars.clone()), (1, vec![Some(104.0), Some(77.0)]));
        let again: Memory = serde_json::from_str(&serde_json::to_string(&memory).unwrap()).unwrap();
        assert_eq!(again.tables()[0].markdown(), text);
        assert_page_has_a_place_for(Memory::NAME);
    }
}
