//! `quipu drill`: causes a failure on a stage of its own, and shows the remedy and the proof.
//!
//! | file | what lives there |
//! |---|---|
//! | here | the commands, how they tell what happens, nodes of quipu |
//! | `ending` | what goes with a drill, also when a signal ends it |
//! | `stage` | Redis, Redis Cluster and PostgreSQL, started from what is installed |
//! | `load`, `talk` | clients that count with ids and never give up |
//! | `store_down` | a master of the hot tier dies |
//! | `backlog` | nobody brings changes to PostgreSQL for a while |
//! | `dedupe_lost` | the hot tier loses everything, ids too |

mod backlog;
mod dedupe_lost;
mod ending;
mod load;
mod stage;
mod store_down;
mod talk;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use quipu_external::{GROUPS, tag};
use serde_json::{Value, json};

use self::stage::Postgres;
use self::talk::{Reply, Talk};
use crate::cli::failure::Failure;
use crate::cli::terminal;

/// What can be drilled.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Kill a master of a Redis Cluster under load, and watch its slots recover
    #[command(after_help = "Examples:
  quipu drill store-down
  quipu drill store-down --wait-replicas 1

Starts a Redis Cluster of six processes and a node of quipu on it, on free ports in a temporary folder. Shows, each half \
second, what is answered on the slots of the dead master and on all others, and at the end what Redis's own replication \
had acknowledged and lost.")]
    StoreDown(store_down::Args),
    /// Let changes pile up that nobody brings to PostgreSQL, and watch the lag go
    #[command(after_help = "Examples:
  quipu drill backlog
  quipu drill backlog --changes 1000000 --flushers 3

Starts a redis-server, a PostgreSQL and nodes of quipu on them, on free ports in a temporary folder. At the end each \
counter in PostgreSQL is compared with what was acknowledged.")]
    Backlog(backlog::Args),
    /// Lose everything in Redis, request ids too, and watch it come back from PostgreSQL
    #[command(after_help = "Example:
  quipu drill dedupe-lost

Starts a redis-server, a PostgreSQL and a node of quipu on them, on free ports in a temporary folder; then FLUSHALL. The ids \
that PostgreSQL has are the standby. Afterwards every request is sent once more, as clients do that had no answer, \
and each must have counted once.")]
    DedupeLost(dedupe_lost::Args),
}

impl Command {
    pub fn run(self) -> Result<(), Failure> {
        ending::watch().map_err(anyhow::Error::from)?;
        match self {
            Command::StoreDown(args) => args.run(),
            Command::Backlog(args) => args.run(),
            Command::DedupeLost(args) => args.run(),
        }
        .map_err(Failure::from)
    }
}

/// What happens, told as it happens.
struct Story {
    is_json: bool,
    began: Instant,
}

impl Story {
    fn new(is_json: bool) -> Story {
        Story { is_json, began: Instant::now() }
    }

    /// One line, with the time.
    fn tell(&self, what: &str) -> Result<()> {
        let second = (self.began.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        let line = match self.is_json {
            true => json!({ "second": second, "what": what }).to_string(),
            false => format!("{second:6.1} s  {what}"),
        };
        terminal::print(line).map_err(|failure| anyhow::anyhow!("{failure}"))
    }

    /// The end: whether the proof holds, and the figures.
    fn conclude(&self, text: &str, figures: Value) -> Result<()> {
        match self.is_json {
            true => terminal::print(figures),
            false => terminal::print(format!("\n{text}")),
        }
        .map_err(|failure| anyhow::anyhow!("{failure}"))
    }
}

/// A node of quipu on somebody else's engine, killed when dropped.
struct Node {
    child: Child,
    resp: SocketAddr,
}

impl Node {
    /// Starts one with these arguments of `serve`; what it says goes to a file in `folder`.
    fn start(folder: &Path, name: &str, arguments: &[&str]) -> Result<Node> {
        let program = std::env::current_exe().context("where this program is")?;
        let mut command = std::process::Command::new(program);
        command.args(["serve", "--json", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
        command.args(["--parent", &std::process::id().to_string()]).args(arguments);
        let log = folder.join(format!("{name}.log"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let mut child = command.spawn()?;
        let mut line = String::new();
        if let Some(said) = child.stdout.take() {
            BufReader::new(said).read_line(&mut line)?;
        }
        let announced: Option<Value> = serde_json::from_str(&line).ok();
        let resp = announced.and_then(|said| said["resp"].as_str()?.parse().ok());
        match resp {
            Some(resp) => Ok(Node { child, resp }),
            None => {
                // It has ended, or is about to.
                let _ = child.wait();
                anyhow::bail!(
                    "quipu did not start: {}",
                    std::fs::read_to_string(&log).unwrap_or_default().trim()
                )
            }
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended already; there is nothing to learn from a failure here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How what is there differs from what was acknowledged: too little, and too much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Difference {
    missing: i64,
    too_many: i64,
}

impl Difference {
    fn between(acknowledged: &BTreeMap<String, i64>, there: &BTreeMap<String, i64>) -> Difference {
        let mut difference = Difference::default();
        for (key, count) in acknowledged {
            let off = there.get(key).copied().unwrap_or(0) - count;
            difference.missing += (-off).max(0);
            difference.too_many += off.max(0);
        }
        difference
    }
}

/// What waits in the streams of a Redis until it is flushed.
#[derive(Clone, Copy, Debug, Default)]
struct Backlog {
    entries: i64,
    /// How long the oldest has waited.
    lag_ms: u64,
}

impl Backlog {
    fn look(redis: SocketAddr) -> Result<Backlog> {
        let mut talk = Talk::open(redis)?;
        let mut backlog = Backlog::default();
        let Reply::Array(time) = talk.ask(&["TIME"])? else { anyhow::bail!("TIME was refused") };
        let now_ms = match time.first() {
            Some(Reply::Text(seconds)) => seconds.parse::<u64>()? * 1000,
            _ => anyhow::bail!("TIME answered {time:?}"),
        };
        for group in 0..GROUPS {
            let stream = format!("{{{}}}:s", tag(group));
            backlog.entries += talk.number(&["XLEN", &stream])?;
            let first = talk.ask(&["XRANGE", &stream, "-", "+", "COUNT", "1"])?;
            if let Some(ms) = entry_ms(&first) {
                backlog.lag_ms = backlog.lag_ms.max(now_ms.saturating_sub(ms));
            }
        }
        Ok(backlog)
    }
}

/// When the first of some entries of a stream was made.
fn entry_ms(entries: &Reply) -> Option<u64> {
    let Reply::Array(entries) = entries else { return None };
    let Reply::Array(entry) = entries.first()? else { return None };
    let Reply::Text(id) = entry.first()? else { return None };
    id.split('-').next()?.parse().ok()
}

/// The totals that PostgreSQL has.
fn archived_totals(postgres: &Postgres) -> Result<BTreeMap<String, i64>> {
    let rows =
        postgres.ask("SELECT convert_from(counter_key, 'UTF8'), total_value FROM counter_total_snapshot")?;
    rows.lines()
        .map(|row| {
            let (key, total) = row.rsplit_once('|').with_context(|| format!("a row {row:?}"))?;
            Ok((key.to_string(), total.parse()?))
        })
        .collect()
}

/// Looks again and again until it is so, or fails after so long.
fn wait_until(patience: Duration, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<Duration> {
    let began = Instant::now();
    while !is_so()? {
        anyhow::ensure!(began.elapsed() < patience, "waited {} s until {what}", patience.as_secs());
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(began.elapsed())
}

#[cfg(test)]
mod tests {
    use super::Difference;
    use std::collections::BTreeMap;

    #[test]
    fn too_little_does_not_make_up_for_too_much() {
        let of = |values: [i64; 3]| -> BTreeMap<String, i64> {
            ["a", "b", "c"].iter().map(ToString::to_string).zip(values).collect()
        };
        let difference = Difference::between(&of([5, 5, 5]), &of([3, 9, 5]));
        assert_eq!(difference, Difference { missing: 2, too_many: 4 });
        assert_eq!(Difference::between(&of([1, 0, 2]), &BTreeMap::new()).missing, 3);
    }
}
