//! Nobody brings changes to PostgreSQL for a while: they pile up in the streams, and are flushed by several at once.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;

use super::ending::Scratch;
use super::load::{Load, values};
use super::stage::{Postgres, Redis};
use super::{Backlog, Difference, Node, Story, archived_totals, wait_until};

/// Counters, and clients that count on them.
const KEYS: usize = 10_000;
const CLIENTS: usize = 32;
/// How long each client rests after an answer once the flood is over: usual traffic, so that one sees the backlog go whatever the machine.
const CALM_PAUSE: Duration = Duration::from_millis(20);
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// Below this the flushers keep up.
const LAG_MS_GOAL: u64 = 2_000;
/// Between lines.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub struct Args {
    /// How many changes pile up
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    changes: u64,
    /// How many nodes flush them
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    flushers: u8,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(&self) -> Result<()> {
        let story = Story::new(self.json);
        let folder = Scratch::new()?;
        let (redis, mut postgres) = (Redis::start(folder.path())?, Postgres::start(folder.path())?);
        let node = Node::start(folder.path(), "node", &["--backend", &redis.url()])?;
        story.tell("a Redis and a node of quipu on it that does not flush, and a PostgreSQL")?;
        let keys: Vec<String> = (0..KEYS).map(|number| format!("drill:{number}")).collect();
        let load = Load::start(&[node.resp], &keys, CLIENTS, "backlog");
        let mut answered = 0;
        wait_until(PATIENCE, "the changes are acknowledged", || {
            answered += load.look().answered;
            Ok(answered >= self.changes)
        })?;
        load.slow_down(CALM_PAUSE);
        story.tell(&format!(
            "{answered} changes wait in the streams; the flood is over, and counting goes on calmly"
        ))?;
        let flushers: Vec<Node> = (1..=self.flushers)
            .map(|number| {
                let arguments = ["--backend", &redis.url(), "--archive", &postgres.url()];
                Node::start(folder.path(), &format!("flusher-{number}"), &arguments)
            })
            .collect::<Result<_>>()?;
        story.tell(&format!("{} nodes flush them", flushers.len()))?;
        let began = Instant::now();
        thread::sleep(LOOK_INTERVAL);
        postgres.restart()?;
        story.tell("PostgreSQL has crashed meanwhile, and is back")?;
        loop {
            thread::sleep(LOOK_INTERVAL);
            let (backlog, answered) = (Backlog::look(redis.address)?, load.look().answered);
            story.tell(&format!(
                "{} entries wait, the oldest for {:.1} s; {answered} changes were acknowledged meanwhile",
                backlog.entries,
                backlog.lag_ms as f64 / 1e3
            ))?;
            if backlog.lag_ms < LAG_MS_GOAL {
                break;
            }
            ensure!(began.elapsed() < PATIENCE, "the lag does not go");
        }
        let recovered_ms = began.elapsed().as_millis() as u64;
        let acknowledged = load.stop()?.counts();
        let total: i64 = acknowledged.values().sum();
        wait_until(PATIENCE, "everything is in PostgreSQL", || {
            Ok(Backlog::look(redis.address)?.entries == 0)
        })?;
        let archived = Difference::between(&acknowledged, &archived_totals(&postgres)?);
        let served = values(node.resp, acknowledged.keys().cloned())?;
        let served = Difference::between(&acknowledged, &served);
        let text = format!(
            "{total} increments acknowledged. The lag was below 2 s again {:.1} s after flushers came. In PostgreSQL \
             {} are missing and {} too many; in Redis {} and {}.",
            recovered_ms as f64 / 1e3,
            archived.missing,
            archived.too_many,
            served.missing,
            served.too_many
        );
        let figures = json!({
            "drill": "backlog", "acknowledged": total, "recoveredMs": recovered_ms, "flushers": self.flushers,
            "archived": { "missing": archived.missing, "tooMany": archived.too_many },
            "served": { "missing": served.missing, "tooMany": served.too_many },
        });
        story.conclude(&text, figures)?;
        let exact = Difference::default();
        ensure!(archived == exact && served == exact, "not everything was counted once");
        Ok(())
    }
}
