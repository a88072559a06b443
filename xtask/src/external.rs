//! `cargo xtask torture external`: whoever brings changes from Redis to PostgreSQL is killed again and again under load, PostgreSQL
//! is restarted in the middle, and changes pile up by the million. In the end every counter in PostgreSQL must have
//! what was acknowledged, no more and no less.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rand::{Rng, SeedableRng, rngs::SmallRng};

use crate::bench::load::Load as Filling;
use crate::drill::load::{Load, values};
use crate::drill::stage::{Postgres, Redis};
use crate::packages;
use crate::servers::Server;
use crate::workspace::{Binary, Scratch};

/// Counters that clients count on all the time, and how many clients do.
const KEYS: usize = 2_000;
const CLIENTS: usize = 8;
/// How long a flusher lives before it is killed.
const LIFE_MS: std::ops::Range<u64> = 20..600;
/// How long everything may take to get into PostgreSQL.
const FLUSH_MAX: Duration = Duration::from_secs(900);
/// Between looks at the lag.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// The lag must be below this again.
const LAG_GOAL: Duration = Duration::from_secs(2);

/// Arguments of `torture external`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// How often a flusher is killed
    #[arg(long, default_value_t = 100)]
    kills: u32,
    /// How many changes pile up while nobody flushes
    #[arg(long, default_value_t = 1_000_000)]
    backlog: u64,
    #[command(flatten)]
    binary: Binary,
}

/// Runs it.
pub fn run(arguments: &Arguments) -> Result<()> {
    packages::require(packages::OF_EXTERNAL_BENCH)?;
    let binary = arguments.binary.get()?;
    let folder = Scratch::new("external")?;
    let stage = Stage {
        began: Instant::now(),
        binary,
        redis: Redis::start(folder.path())?,
        postgres: Postgres::start(folder.path())?,
        folder,
    };
    stage.run(arguments)
}

struct Stage {
    began: Instant,
    binary: PathBuf,
    redis: Redis,
    postgres: Postgres,
    folder: Scratch,
}

impl Stage {
    fn run(mut self, arguments: &Arguments) -> Result<()> {
        let front = self.node("front", false)?;
        let keys: Vec<String> = (0..KEYS).map(|number| format!("torture:{number}")).collect();
        let load = Load::start(&[front.resp], &keys, CLIENTS, "torture");
        let mut draw = SmallRng::from_os_rng();
        for kill in 1..=arguments.kills {
            let flusher = self.node("flusher", true)?;
            thread::sleep(Duration::from_millis(draw.random_range(LIFE_MS)));
            flusher.kill()?;
            if kill == arguments.kills.div_ceil(2) {
                self.postgres.restart()?;
                self.tell("PostgreSQL has crashed and is back");
            }
        }
        let seen = load.look();
        self.tell(&format!("{} kills, {} increments acknowledged meanwhile", arguments.kills, seen.answered));
        let filling = Filling::of_keys(arguments.backlog).with("--key-format", "backlog:{n}");
        filling.offer(&self.binary, &front)?;
        self.tell(&format!("{} changes have piled up", arguments.backlog));
        let flusher = self.node("flusher", true)?;
        let began = Instant::now();
        loop {
            thread::sleep(LOOK_INTERVAL);
            let lag = self.lag(front.resp)?;
            let memory = memory_kib(flusher.process_id())? / 1024;
            self.tell(&format!("lag {:.1} s, the flusher has {memory} MiB at most", lag.as_secs_f64()));
            if lag < LAG_GOAL {
                break;
            }
            ensure!(began.elapsed() < FLUSH_MAX, "the lag does not go");
        }
        self.tell(&format!("the lag is gone after {:.1} s", began.elapsed().as_secs_f64()));
        let mut expected = load.stop()?.counts();
        self.lag(front.resp)?;
        expected.extend((0..arguments.backlog).map(|number| (format!("backlog:{number}"), 1)));
        self.compare(&expected, front.resp)
    }

    fn tell(&self, what: &str) {
        println!("{:7.1} s  {what}", self.began.elapsed().as_secs_f64());
    }

    fn node(&self, name: &str, flushes: bool) -> Result<Server> {
        let mut command = std::process::Command::new(&self.binary);
        command.args([
            "serve",
            "--http",
            "127.0.0.1:0",
            "--resp",
            "127.0.0.1:0",
            "--backend",
            &self.redis.url(),
        ]);
        if flushes {
            command.args(["--archive", &self.postgres.url()]);
        }
        Server::announced(command, &self.folder.path().join(format!("{name}.log")))
    }

    /// How long it takes until a change of now is in PostgreSQL, in every stream.
    fn lag(&self, front: SocketAddr) -> Result<Duration> {
        let began = Instant::now();
        let probe = format!("probe-{}", began.duration_since(self.began).as_nanos());
        let keys: Vec<String> = (0..1_000).map(|number| format!("{probe}:{number}")).collect();
        let mut talk = crate::drill::talk::Talk::open(front)?;
        for key in &keys {
            talk.ask(&["INCR", key])?;
        }
        let asked = Instant::now();
        let there = format!(
            "SELECT count(*) FROM counter_total_snapshot WHERE convert_from(counter_key, 'UTF8') LIKE '{probe}:%'"
        );
        while self.postgres.ask(&there)? != keys.len().to_string() {
            ensure!(asked.elapsed() < FLUSH_MAX, "a change does not get into PostgreSQL");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(asked.elapsed())
    }

    fn compare(&self, expected: &BTreeMap<String, i64>, front: SocketAddr) -> Result<()> {
        let rows = self.postgres.ask(
            "SELECT convert_from(counter_key, 'UTF8'), total_value FROM counter_total_snapshot
             WHERE convert_from(counter_key, 'UTF8') NOT LIKE 'probe-%'",
        )?;
        let mut archived = BTreeMap::new();
        for row in rows.lines() {
            let (key, total) = row.rsplit_once('|').with_context(|| format!("a row {row:?}"))?;
            archived.insert(key.to_string(), total.parse::<i64>()?);
        }
        let served = values(front, expected.keys().cloned())?;
        for (what, found) in [("PostgreSQL", &archived), ("Redis", &served)] {
            let wrong = |(key, count): &(&String, &i64)| found.get(*key) != Some(count);
            if let Some((key, count)) = expected.iter().find(wrong) {
                bail!("{what} has {:?} of {key}, and {count} were acknowledged", found.get(key));
            }
            ensure!(
                found.len() == expected.len(),
                "{what} has {} counters of {}",
                found.len(),
                expected.len()
            );
        }
        let total: i64 = expected.values().sum();
        self.tell(&format!(
            "{total} changes of {} counters, each counted once, in Redis and in PostgreSQL",
            expected.len()
        ));
        Ok(())
    }
}

/// The most memory that a process has had.
fn memory_kib(process: u32) -> Result<u64> {
    let status = std::fs::read_to_string(Path::new("/proc").join(process.to_string()).join("status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    number.with_context(|| format!("VmHWM of {process}"))
}
