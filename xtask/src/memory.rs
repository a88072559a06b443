//! `cargo xtask bench memory`: resident bytes per counter of redis-server and quipu.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::packages;
use crate::servers::Server;
use crate::workspace::{Binary, Scratch};

/// Names as people give them.
const KEY_FORMAT: &str = "counter:post:{n}:like:2026-02-23";

/// Redis shares the objects of small integers between keys, so values below and above 10,000 cost differently.
const VALUES: [i64; 2] = [1, 12_345_678];

/// Arguments of `bench memory`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// How many counters
    #[arg(long, default_value_t = 5_000_000)]
    keys: u64,
    #[command(flatten)]
    binary: Binary,
}

/// Loads the keys into fresh servers and prints a line for each.
pub fn run(arguments: &Arguments) -> Result<()> {
    packages::require(packages::OF_BENCH)?;
    ensure!(arguments.keys > 0, "--keys must be above 0");
    let binary = arguments.binary.get()?;
    println!("{} counters named {KEY_FORMAT}", arguments.keys);
    println!("server       | value    | resident MiB | bytes per counter");
    for value in VALUES {
        for name in ["redis-server", "quipu"] {
            let folder = Scratch::new("memory")?;
            let server = match name {
                "quipu" => Server::quipu(&binary, &folder.path().join("quipu"), "interval:1000")?,
                _ => Server::redis(&folder.path().join("redis"), "everysec")?,
            };
            let resident = load(&binary, &server, folder.path(), arguments.keys, value).context(name)?;
            let mebibytes = resident as f64 / f64::from(1 << 20);
            let per_counter = resident as f64 / arguments.keys as f64;
            println!("{name:<12} | {value:<8} | {mebibytes:12.1} | {per_counter:.1}");
        }
    }
    Ok(())
}

/// Creates the keys; returns what the server then has in memory.
fn load(binary: &Path, server: &Server, folder: &Path, keys: u64, value: i64) -> Result<u64> {
    let json = folder.join("result.json");
    let output = Command::new(binary)
        .args([
            "bench",
            "--target",
            &format!("resp://{}", server.resp),
            "--command",
            "load",
            "--pipeline",
            "256",
        ])
        .args([
            "--keys",
            &keys.to_string(),
            "--key-format",
            KEY_FORMAT,
            "--value",
            &value.to_string(),
            "--json",
        ])
        .arg(&json)
        .output()?;
    ensure!(output.status.success(), "quipu bench failed: {}", String::from_utf8_lossy(&output.stderr));
    let result: Value = serde_json::from_slice(&std::fs::read(json)?)?;
    result["server"]["residentBytes"].as_u64().context("the server's memory was not measured")
}
