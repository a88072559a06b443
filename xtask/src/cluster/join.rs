//! `cargo xtask torture join`: a cluster with many counters grows, loses a disk and replaces it, while clients count.
//!
//! The counters are loaded into one server alone, whose folder is the beginning of the cluster. Every counter has 1 then, and
//! every request of a client adds 1 under an id and is repeated until it is answered: so the sum at the end is known exactly.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::clients::{Connection, RETRYABLE, Reply};
use super::nodes::{Form, Nodes};
use super::{Findings, compare_replicas};
use crate::servers::Server;
use crate::workspace::{Binary, Scratch};

const NODES: usize = 3;
const CLIENTS: u64 = 8;
/// Counters written or read together.
const PIPELINE: u64 = 1_000;
/// A client that was not answered for so long has failed.
const GIVE_UP: Duration = Duration::from_secs(120);
/// How long a node may take to get its share.
const SETTLE_MAX: Duration = Duration::from_secs(1_800);
const RETRY_PAUSE: Duration = Duration::from_millis(20);
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// How long clients count before anything happens, and behind it.
const QUIET: Duration = Duration::from_secs(3);

/// Arguments of `torture join`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// How many counters the cluster has
    #[arg(long, default_value_t = 1_000_000)]
    counters: u64,
    #[command(flatten)]
    binary: Binary,
}

/// Loads, founds, grows, loses, replaces, and adds up.
pub fn run(arguments: &Arguments) -> Result<()> {
    let binary = arguments.binary.get()?;
    let folder = Scratch::new("torture-join")?;
    let counters = arguments.counters;
    let began = Instant::now();
    {
        let alone = Server::quipu(&binary, &folder.path().join("node-1"), &["--durability", "none"])?;
        load(alone.resp, counters)?;
        alone.kill()?;
    }
    say(began, &format!("{counters} counters are in one server alone"));
    let mut nodes = Nodes::found(&binary, folder.path(), NODES, 2, Form::Direct)?;
    settle(&nodes)?;
    say(began, &format!("{NODES} nodes hold them"));

    let clients = Counting::start(&nodes, counters);
    thread::sleep(QUIET);
    say(began, &format!("before anything happens: {}", clients.lap()));

    let fourth = nodes.join(false)?;
    clients.reach(&nodes);
    let joining = Instant::now();
    settle(&nodes)?;
    say(
        began,
        &format!(
            "node {} joined and has its share after {:.1} s",
            fourth + 1,
            joining.elapsed().as_secs_f64()
        ),
    );
    say(began, &format!("meanwhile: {}", clients.lap()));

    // The first alone can invite others.
    let lost = 1;
    nodes.destroy(lost)?;
    let replacing = Instant::now();
    say(began, &format!("node {} is killed and its disk deleted", lost + 1));
    let fifth = nodes.join(false)?;
    clients.reach(&nodes);
    while !nodes.has(fifth) {
        ensure!(replacing.elapsed() < SETTLE_MAX, "node {} does not join", fifth + 1);
        thread::sleep(LOOK_PAUSE);
    }
    ensure!(nodes.remove(lost), "node {} cannot be removed", lost + 1);
    settle(&nodes)?;
    say(
        began,
        &format!("node {} has replaced it after {:.1} s", fifth + 1, replacing.elapsed().as_secs_f64()),
    );
    say(began, &format!("meanwhile: {}", clients.lap()));
    thread::sleep(QUIET);
    say(began, &format!("after all that: {}", clients.lap()));

    let counted = clients.finish()?;
    let sum = sum(nodes.address(fifth), counters)?;
    let expected = counters as i64 + counted as i64;
    ensure!(
        sum == expected,
        "all counters together have {sum}, but {counters} + {counted} = {expected} were counted"
    );
    say(began, &format!("{counted} requests, all answered; all counters together have {sum}, as they must"));
    let mut findings = Findings::default();
    compare_replicas(&mut nodes, &mut findings)?;
    for violation in &findings.violations {
        println!("VIOLATION {violation}");
    }
    ensure!(findings.violations.is_empty(), "replicas are not the same");
    say(began, "replicas are the same");
    Ok(())
}

fn say(began: Instant, what: &str) {
    println!("{:7.1} s  {what}", began.elapsed().as_secs_f64());
}

fn key(number: u64) -> String {
    format!("counter:{number}")
}

fn keys(from: u64, counters: u64) -> Vec<String> {
    (from..(from + PIPELINE).min(counters)).map(key).collect()
}

/// Adds 1 to every counter.
fn load(address: SocketAddr, counters: u64) -> Result<()> {
    let mut connection = Connection::open(address)?;
    for from in (0..counters).step_by(PIPELINE as usize) {
        ensure!(connection.increment(&keys(from, counters))?, "a counter was not made");
    }
    Ok(())
}

/// What all counters have together.
fn sum(address: SocketAddr, counters: u64) -> Result<i64> {
    let mut connection = Connection::open(address)?;
    let mut sum = 0;
    for from in (0..counters).step_by(PIPELINE as usize) {
        let words = [vec!["MGET".to_string()], keys(from, counters)].concat();
        connection.send(&words)?;
        let reply = connection.receive()?;
        let Reply::Array(values) = &reply else { bail!("MGET was answered {reply:?}") };
        for value in values {
            match value {
                Reply::Text(text) => sum += text.parse::<i64>()?,
                other => bail!("a counter is {other:?}"),
            }
        }
    }
    Ok(sum)
}

/// Waits until those that are there hold what they should.
fn settle(nodes: &Nodes) -> Result<()> {
    let began = Instant::now();
    while !nodes.is_settled(&nodes.seats()) {
        ensure!(began.elapsed() < SETTLE_MAX, "partitions do not get where they should be");
        thread::sleep(LOOK_PAUSE);
    }
    Ok(())
}

/// Clients that count on counters at random.
struct Counting {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    counters: u64,
    nodes: RwLock<Vec<SocketAddr>>,
    is_over: AtomicBool,
    answers: AtomicU64,
    lap: Mutex<Lap>,
    /// Those that were not answered for too long.
    failed: Mutex<Vec<String>>,
}

/// What happened since the last look.
#[derive(Default)]
struct Lap {
    answers: u64,
    longest: Duration,
    /// What was said instead of an answer, and how often.
    excuses: BTreeMap<String, u64>,
}

impl Counting {
    fn start(nodes: &Nodes, counters: u64) -> Counting {
        let shared = Arc::new(Shared {
            counters,
            nodes: RwLock::new(nodes.addresses()),
            is_over: AtomicBool::new(false),
            answers: AtomicU64::new(0),
            lap: Mutex::default(),
            failed: Mutex::default(),
        });
        let start = |number: u64| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.count(number))
        };
        let threads = (0..CLIENTS).map(start).collect();
        Counting { shared, threads }
    }

    /// Those that are there now are asked from now on.
    fn reach(&self, nodes: &Nodes) {
        *self.shared.nodes.write().unwrap_or_else(PoisonError::into_inner) = nodes.addresses();
    }

    /// What happened since the last look.
    fn lap(&self) -> String {
        let lap = std::mem::take(&mut *self.shared.lap.lock().unwrap_or_else(PoisonError::into_inner));
        let retries: u64 = lap.excuses.values().sum();
        let excuses: String = lap
            .excuses
            .iter()
            .map(|(excuse, count)| format!("\n             {count} times: {excuse}"))
            .collect();
        format!(
            "{} answers, {retries} retries, the longest wait {:.0} ms{excuses}",
            lap.answers,
            lap.longest.as_secs_f64() * 1_000.0
        )
    }

    /// Lets all come to an end. How many requests there were.
    fn finish(self) -> Result<u64> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            ensure!(thread.join().is_ok(), "a client has panicked");
        }
        let failed = self.shared.failed.lock().unwrap_or_else(PoisonError::into_inner);
        ensure!(failed.is_empty(), "clients failed for good: {failed:?}");
        Ok(self.shared.answers.load(Ordering::Relaxed))
    }
}

impl Shared {
    fn count(&self, client: u64) {
        let mut random = StdRng::seed_from_u64(client);
        let mut connection = None;
        for request in 0.. {
            let key = key(random.random_range(0..self.counters));
            let words = ["Q.ADD", &key, "1", "ID", &format!("{client}-{request}")].map(String::from);
            let asked = Instant::now();
            while let Err(excuse) = self.attempt(&mut connection, &words, &mut random) {
                connection = None;
                *self.lap().excuses.entry(excuse.clone()).or_default() += 1;
                if asked.elapsed() > GIVE_UP {
                    let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                    return failed.push(format!("{words:?}: {excuse}"));
                }
                thread::sleep(RETRY_PAUSE);
            }
            self.answers.fetch_add(1, Ordering::Relaxed);
            let mut lap = self.lap();
            lap.answers += 1;
            lap.longest = lap.longest.max(asked.elapsed());
            drop(lap);
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    fn lap(&self) -> std::sync::MutexGuard<'_, Lap> {
        self.lap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks a node once; why there was no answer.
    fn attempt(
        &self,
        connection: &mut Option<Connection>,
        words: &[String],
        random: &mut StdRng,
    ) -> Result<(), String> {
        let open = match connection {
            Some(open) => open,
            empty => {
                let nodes = self.nodes.read().unwrap_or_else(PoisonError::into_inner).clone();
                let node = nodes[random.random_range(0..nodes.len())];
                empty.insert(Connection::open(node).map_err(|error| error.kind().to_string())?)
            }
        };
        open.send(words).map_err(|error| error.kind().to_string())?;
        match open.receive().map_err(|error| error.kind().to_string())? {
            Reply::Array(_) => Ok(()),
            Reply::Error(line) if RETRYABLE.iter().any(|code| line.starts_with(code)) => Err(line),
            other => Err(format!("no answer to this: {other:?}")),
        }
    }
}
