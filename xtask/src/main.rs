//! All tooling of the project, behind `cargo xtask`.
//!
//! | command | what it does |
//! |---|---|
//! | `cargo xtask test` | everything a change must pass; a person and CI run the same; it writes no source |
//! | `cargo xtask fix` | formats, applies what the linter can fix by itself, writes generated pages anew |
//! | `cargo xtask bench` | everything in docs/benchmarks.md, quipu and its peers side by side; parts by name |
//! | `cargo xtask torture kill` | SIGKILL at random moments: nothing lost, nothing doubled |
//! | `cargo xtask torture reconcile` | a million counters beside PostgreSQL, a thousand of them wrong, under load |
//! | `cargo xtask on-redis` | the tests of the server once more, on counters in Redis: a single one, and a cluster |
//! | `cargo xtask schemathesis` | the HTTP API against its own description, for as long as one likes |
//! | `cargo xtask fuzz` | the fuzz targets, some minutes each (needs cargo-fuzz) |
//! | `cargo xtask torture overload` | three times what the server can serve, for a minute |
//! | `cargo xtask torture cluster` | a cluster whose nodes die and lose each other: one order of events, nothing lost or doubled |
//! | `cargo xtask torture join` | a cluster with many counters grows, and replaces a node that lost its disk |
//! | `cargo xtask torture external` | who flushes to PostgreSQL is killed again and again: every change once in its tables |
//! | `cargo xtask torture power` | the file system taken away under load, as a power cut does (needs root) |

#[cfg(test)]
mod arrows;
mod bench;
mod cluster;
mod drill;
mod external;
mod interrupt;
mod on_redis;
mod overload;
mod packages;
#[cfg(test)]
mod planted;
mod power;
mod schemathesis;
mod servers;
mod steps;
mod workspace;

// The clients that count with request ids and never give up; the server's own kill test uses them too.
#[path = "../../crates/server/tests/exactly_once/mod.rs"]
mod exactly_once;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Tooling of quipu
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything a change must pass: format, lints, tests, documentation tests
    Test,
    /// Format the sources, apply what the linter can fix by itself, write generated pages anew
    Fix,
    /// Measure quipu and its peers on this machine: everything, or one section
    Bench(bench::Arguments),
    /// Run every fuzz target for a while (needs `cargo install cargo-fuzz`)
    Fuzz {
        /// Minutes for each target
        #[arg(long, default_value_t = 10)]
        minutes: u64,
        /// Only this target
        #[arg(long)]
        target: Option<String>,
    },
    /// Run the tests of the server on counters in Redis, on a single redis-server and on a Redis Cluster of six
    OnRedis(on_redis::Arguments),
    /// Hold the HTTP API against its own /openapi.json with made-up requests
    Schemathesis(schemathesis::Arguments),
    /// Try to make quipu lose or double an increment
    #[command(subcommand)]
    Torture(Torture),
}

#[derive(Subcommand)]
enum Torture {
    /// Kill the server with SIGKILL at random moments under load
    Kill {
        /// How many kills
        #[arg(long, default_value_t = 100)]
        rounds: u32,
    },
    /// Compare many counters with PostgreSQL while both count, and correct those that were made wrong
    Reconcile {
        /// How many counters; every thousandth is wrong
        #[arg(long, default_value_t = 1_000_000)]
        rows: u32,
    },
    /// Offer three times what the server can serve, over RESP and over HTTP, and watch what becomes of it
    Overload {
        #[command(flatten)]
        arguments: overload::Arguments,
        #[command(flatten)]
        options: bench::Options,
    },
    /// Kill, stop and cut off nodes of a cluster under load, and check that all clients saw one order of events
    Cluster(cluster::Arguments),
    /// Let nodes join a cluster with many counters, and one lose its disk and be replaced, under load
    Join(cluster::join::Arguments),
    /// Kill whoever brings changes from Redis to PostgreSQL, and let a million pile up
    External(external::Arguments),
    /// Shut the file system down under load without flushing its log, on ext4 and xfs (needs root)
    Power(power::Arguments),
}

fn main() -> Result<()> {
    let task = Arguments::parse().task;
    interrupt::watch()?;
    match task {
        Task::Test => steps::test(),
        Task::Fix => steps::fix(),
        Task::Fuzz { minutes, target } => steps::fuzz(minutes, target.as_deref()),
        Task::Bench(arguments) => bench::run(arguments),
        Task::OnRedis(arguments) => on_redis::run(&arguments),
        Task::Schemathesis(arguments) => schemathesis::run(&arguments),
        Task::Torture(Torture::Kill { rounds }) => steps::torture_kill(rounds),
        Task::Torture(Torture::Reconcile { rows }) => steps::torture_reconcile(rows),
        Task::Torture(Torture::Overload { arguments, options }) => bench::run_overload(arguments, options),
        Task::Torture(Torture::Cluster(arguments)) => cluster::run(&arguments),
        Task::Torture(Torture::Join(arguments)) => cluster::join::run(&arguments),
        Task::Torture(Torture::External(arguments)) => external::run(&arguments),
        Task::Torture(Torture::Power(arguments)) => power::run(&arguments),
    }
}
