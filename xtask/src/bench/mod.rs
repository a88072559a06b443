//! `cargo xtask bench`: everything that `docs/benchmarks.md` says, measured on this machine in one go.
//!
//! | file | what lives there |
//! |---|---|
//! | here | arguments, and the sections one after another |
//! | `compare` | CPU per operation, throughput and latency of quipu and its peers |
//! | `latency` | latency at the same load for all, below what Redis can do |
//! | `growth` | what more counters and connections cost |
//! | `capacity` | more counters than memory, and many request ids |
//! | `aggregate` | the sum of some counters among many |
//! | `memory` | bytes per counter, in memory and on disk, and restarts |
//! | `cluster`, `etcd` | three nodes beside three of etcd, and beside one server alone |
//! | `external` | quipu on a Redis Cluster beside the usual script, and the way into PostgreSQL |
//! | `http` | the HTTP API beside a bare axum handler |
//! | `hot` | what finding hot keys costs |
//! | `stage` | the servers that run beside each other |
//! | `load` | one call of `quipu bench` |
//! | `statistics` | medians, ratios, growth |
//! | `table`, `svg`, `page` | results on the terminal, as pictures, as JSON and in the docs |
//! | `machine` | on what was measured |

mod aggregate;
mod capacity;
mod cluster;
mod compare;
mod etcd;
mod external;
mod growth;
mod hot;
mod http;
mod latency;
pub mod load;
mod machine;
mod memory;
pub mod page;
mod stage;
mod statistics;
pub mod svg;
pub mod table;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail, ensure};

use self::machine::{Machine, said, version_in};
use self::page::{Circumstances, Findings};
use self::stage::{Peer, QUIPU};
use crate::workspace::{Binary, target_folder, top};
use crate::{overload, packages};

/// `--quick` divides operations by this and runs one round: a look, not a measurement.
const QUICK_DIVISOR: u64 = 20;

/// Arguments of `bench`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    section: Option<Section>,
    #[command(flatten)]
    options: Options,
}

/// What to measure; without it, everything.
#[derive(Debug, Clone, clap::Subcommand)]
enum Section {
    /// CPU per operation, throughput and latency of quipu and its peers, in interleaved rounds
    Compare,
    /// Latency at half of what Redis can do, the same load for all
    Latency,
    /// What an increment costs as there are more counters and connections
    Growth,
    /// More counters than memory, and tens of millions of request ids, on quipu alone
    Capacity,
    /// Three nodes beside three of etcd, and beside one server alone
    Cluster,
    /// quipu on a Redis Cluster beside the usual script on it, and how fast changes get into PostgreSQL
    External,
    /// The HTTP API beside a bare axum handler
    Http {
        /// Use this bare handler instead of building it
        #[arg(long, value_name = "FILE")]
        bare: Option<PathBuf>,
    },
    /// The sum of 10,000 counters among many, beside Redis's SCAN MATCH and MGET
    Aggregate {
        /// How many counters
        #[arg(long, default_value_t = aggregate::KEYS)]
        keys: u64,
    },
    /// What finding hot keys costs: the same server with and without it, in interleaved rounds
    Hot,
    /// Resident bytes per counter, bytes on disk, and restarts
    Memory {
        /// How many counters
        #[arg(long, default_value_t = memory::KEYS)]
        keys: u64,
    },
    /// Three times the load that quipu can serve; the same as `cargo xtask torture overload`
    Overload(overload::Arguments),
    /// Measure nothing; write what was measured last into docs/benchmarks.md
    Docs,
}

impl Section {
    fn name(&self) -> &'static str {
        match self {
            Section::Compare => compare::Compared::NAME,
            Section::Latency => latency::Latencies::NAME,
            Section::Growth => growth::Growth::NAME,
            Section::Capacity => capacity::Capacity::NAME,
            Section::Cluster => cluster::Cluster::NAME,
            Section::External => external::OnRedis::NAME,
            Section::Http { .. } => http::Http::NAME,
            Section::Aggregate { .. } => aggregate::Sums::NAME,
            Section::Hot => hot::Hot::NAME,
            Section::Memory { .. } => memory::Memory::NAME,
            Section::Overload(_) => overload::Overloads::NAME,
            Section::Docs => "docs",
        }
    }
}

/// How to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// One round of a twentieth of the operations: to see that it works
    #[arg(long, global = true)]
    quick: bool,
    /// Only rows whose name contains this
    #[arg(long, global = true, value_name = "TEXT")]
    only: Option<String>,
    /// Rounds per row [default: 3; latency: 5]
    #[arg(long, global = true, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    rounds: Option<u16>,
    /// Also compare with this server, which must take redis-server's arguments; may be repeated [default: valkey,
    /// redict and keydb where they are installed]
    #[arg(long = "peer", global = true, value_name = "NAME=FILE", value_parser = Peer::parse)]
    peers: Vec<Peer>,
    /// Write what was measured into docs/benchmarks.md
    #[arg(long, global = true)]
    write_docs: bool,
    /// Where JSON and pictures go [default: target/bench]
    #[arg(long, global = true, value_name = "FOLDER")]
    output: Option<PathBuf>,
    #[command(flatten)]
    binary: Binary,
}

/// What all sections need.
pub struct Bench {
    options: Options,
    /// The quipu that is measured, and that generates the load.
    pub binary: PathBuf,
    /// redis is the first.
    pub peers: Vec<Peer>,
    /// Where results go.
    pub folder: PathBuf,
    machine: Machine,
}

/// Runs `torture overload`.
pub fn run_overload(overload: overload::Arguments, options: Options) -> Result<()> {
    run(Arguments { section: Some(Section::Overload(overload)), options })
}

/// Runs what was asked for. A section that fails does not keep the others from running.
pub fn run(arguments: Arguments) -> Result<()> {
    let Arguments { section, options } = arguments;
    if matches!(section, Some(Section::Docs)) {
        return write_all_docs(&options.results_folder()?);
    }
    let bench = Bench::prepare(options)?;
    let sections = match section {
        Some(section) => vec![section],
        None => vec![
            Section::Compare,
            Section::Latency,
            Section::Growth,
            Section::Capacity,
            Section::Cluster,
            Section::External,
            Section::Http { bare: None },
            Section::Aggregate { keys: aggregate::KEYS },
            Section::Hot,
            Section::Memory { keys: memory::KEYS },
            Section::Overload(overload::Arguments::default()),
        ],
    };
    let mut failed = Vec::new();
    for section in &sections {
        bench.say(&format!("== {}", section.name()));
        if let Err(error) = bench.measure(section) {
            failed.push(format!("{}: {error:#}", section.name()));
        }
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    Ok(())
}

/// Brings every section of the page up to date that was measured.
fn write_all_docs(folder: &Path) -> Result<()> {
    let written = [
        page::write_docs::<compare::Compared>(folder),
        page::write_docs::<latency::Latencies>(folder),
        page::write_docs::<growth::Growth>(folder),
        page::write_docs::<capacity::Capacity>(folder),
        page::write_docs::<cluster::Cluster>(folder),
        page::write_docs::<external::OnRedis>(folder),
        page::write_docs::<http::Http>(folder),
        page::write_docs::<aggregate::Sums>(folder),
        page::write_docs::<hot::Hot>(folder),
        page::write_docs::<memory::Memory>(folder),
        page::write_docs::<overload::Overloads>(folder),
    ];
    let left_alone: Vec<String> =
        written.into_iter().filter_map(|result| Some(format!("{:#}", result.err()?))).collect();
    if !left_alone.is_empty() {
        bail!("some sections stay as they were:\n  {}", left_alone.join("\n  "));
    }
    Ok(())
}

impl Bench {
    fn prepare(options: Options) -> Result<Bench> {
        packages::require(packages::OF_BENCH)?;
        let peers = Peer::all(&options.peers)?;
        let binary = options.binary.get()?;
        let target = target_folder()?;
        std::fs::create_dir_all(&target)?;
        let machine = Machine::look(&target)?;
        let folder = options.results_folder()?;
        Ok(Bench { options, binary, peers, folder, machine })
    }

    fn measure(&self, section: &Section) -> Result<()> {
        match section {
            Section::Compare => self.publish(compare::measure(self)?),
            Section::Latency => self.publish(latency::measure(self)?),
            Section::Growth => self.publish(growth::measure(self)?),
            Section::Capacity => self.publish(capacity::measure(self)?),
            Section::Cluster => self.publish(cluster::measure(self)?),
            Section::External => self.publish(external::measure(self)?),
            Section::Http { bare } => self.publish(http::measure(self, bare.as_deref())?),
            Section::Aggregate { keys } => self.publish(aggregate::measure(self, *keys)?),
            Section::Hot => self.publish(hot::measure(self)?),
            Section::Memory { keys } => self.publish(memory::measure(self, *keys)?),
            Section::Overload(arguments) => self.publish(overload::measure(self, arguments)?),
            Section::Docs => write_all_docs(&self.folder),
        }
    }

    fn publish<F: Findings>(&self, findings: F) -> Result<()> {
        page::publish(&self.folder, self.circumstances(F::NAME)?, &findings)?;
        if self.options.write_docs {
            page::write_docs::<F>(&self.folder)?;
        }
        // The last, so that what does not hold is written down too.
        let failures = findings.failures();
        ensure!(failures.is_empty(), "what must hold does not: {}", failures.join("; "));
        Ok(())
    }

    fn circumstances(&self, name: &str) -> Result<Circumstances> {
        let mut command = format!("cargo xtask bench {name}");
        if let Some(rounds) = self.options.rounds {
            command.push_str(&format!(" --rounds {rounds}"));
        }
        let mut versions: Vec<(String, String)> = Vec::new();
        for peer in &self.peers {
            versions.push((peer.name.clone(), peer.version()?));
        }
        let quipu = said(Command::new(&self.binary).arg("--version"))?;
        versions.push((QUIPU.to_string(), version_in(&quipu).unwrap_or("unknown").to_string()));
        Ok(Circumstances {
            command,
            measured_on: said(Command::new("date").args(["-u", "+%Y-%m-%d"]))?,
            incomplete_by: self.options.incomplete_by().map(str::to_string),
            machine: self.machine.clone(),
            versions,
            revision: self.revision()?,
        })
    }

    fn revision(&self) -> Result<String> {
        if self.options.binary.is_given() {
            return Ok("an unknown revision".into());
        }
        said(Command::new("git").args(["describe", "--always", "--dirty"]).current_dir(top()))
    }

    /// Whether this is only a look.
    pub fn is_quick(&self) -> bool {
        self.options.quick
    }

    /// Rounds of a row, where nobody asked for another number.
    pub fn rounds(&self, usual: usize) -> usize {
        match self.options.rounds {
            Some(rounds) => rounds.into(),
            None if self.is_quick() => 1,
            None => usual,
        }
    }

    /// Operations or keys, fewer in a look.
    pub fn scaled(&self, number: u64) -> u64 {
        if self.is_quick() { (number / QUICK_DIVISOR).max(1) } else { number }
    }

    /// Whether a row was asked for.
    pub fn wants(&self, row: &str) -> bool {
        self.options.only.as_ref().is_none_or(|part| row.contains(part.as_str()))
    }

    /// All servers; quipu is the last.
    pub fn server_names(&self) -> Vec<String> {
        self.peers.iter().map(|peer| peer.name.clone()).chain([QUIPU.to_string()]).collect()
    }

    /// Tells whoever watches.
    pub fn say(&self, line: &str) {
        eprintln!("{line}");
    }
}

impl Options {
    fn results_folder(&self) -> Result<PathBuf> {
        match &self.output {
            Some(folder) => Ok(folder.clone()),
            None => Ok(target_folder()?.join("bench")),
        }
    }

    fn incomplete_by(&self) -> Option<&'static str> {
        match (self.quick, &self.only) {
            (true, _) => Some("--quick"),
            (_, Some(_)) => Some("--only"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Line::try_parse_from(["bench"].into_iter().chain(line.split_whitespace())).map(|line| line.arguments)
    }

    #[test]
    fn flags_may_stand_before_and_behind_the_section() {
        for line in ["--quick --only INCR --rounds 2 compare", "compare --quick --only INCR --rounds 2"] {
            let Arguments { section, options } = parse(line).unwrap();
            assert!(matches!(section, Some(Section::Compare)), "{line}");
            assert_eq!(
                (options.quick, options.only.as_deref(), options.rounds),
                (true, Some("INCR"), Some(2))
            );
        }
        assert!(parse("").unwrap().section.is_none());
        let memory = parse("memory --keys 1000 --peer other=/bin/sh --write-docs").unwrap();
        assert!(matches!(memory.section, Some(Section::Memory { keys: 1_000 })));
        assert_eq!((memory.options.peers.len(), memory.options.write_docs), (1, true));
    }

    #[test]
    fn mistakes_are_refused() {
        for line in
            ["compete", "--rounds 0", "--peer valkey", "compare --keys 7", "--peer valkey=/no/such/file"]
        {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn parts_and_looks_are_not_measurements() {
        let incomplete = |line: &str| parse(line).unwrap().options.incomplete_by();
        assert_eq!(incomplete("compare"), None);
        assert_eq!(incomplete("compare --quick"), Some("--quick"));
        assert_eq!(incomplete("compare --only GET"), Some("--only"));
    }
}
