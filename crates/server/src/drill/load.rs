//! Clients that count with request ids and never give up: what they were told is what must be there.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::talk::{Reply, Talk};

/// Between attempts of one request.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// How long one attempt may take.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);

/// Some clients at work.
pub struct Load {
    is_over: Arc<AtomicBool>,
    pause_ms: Arc<AtomicU64>,
    seen: Arc<Seen>,
    clients: Vec<JoinHandle<u64>>,
    keys: Arc<Vec<String>>,
    name: String,
}

/// What happened since somebody looked.
#[derive(Default)]
struct Seen {
    answered: AtomicU64,
    retries: AtomicU64,
    longest_wait_ms: AtomicU64,
}

/// What happened in a while.
#[derive(Clone, Copy, Debug, Default)]
pub struct Looked {
    pub answered: u64,
    /// Attempts that were refused or had no answer.
    pub retries: u64,
    pub longest_wait_ms: u64,
}

impl Load {
    /// So many clients, each of which counts on all of these keys in turn, at any of these nodes. `name` tells their
    /// ids from those of others.
    pub fn start(nodes: &[SocketAddr], keys: &[String], clients: usize, name: &str) -> Load {
        let (is_over, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Seen::default()));
        let (keys, pause_ms) = (Arc::new(keys.to_vec()), Arc::new(AtomicU64::new(0)));
        let start = |number: usize| {
            let client = Client {
                nodes: nodes.to_vec(),
                number,
                node: number,
                keys: Arc::clone(&keys),
                name: name.to_string(),
                talk: None,
                is_over: Arc::clone(&is_over),
                pause_ms: Arc::clone(&pause_ms),
                seen: Arc::clone(&seen),
            };
            thread::spawn(move || client.run())
        };
        let clients = (0..clients).map(start).collect();
        Load { is_over, pause_ms, seen, clients, keys, name: name.to_string() }
    }

    /// From now on each client rests so long after every answer.
    pub fn slow_down(&self, pause: Duration) {
        self.pause_ms.store(pause.as_millis() as u64, Ordering::Relaxed);
    }

    /// What happened since the last look.
    pub fn look(&self) -> Looked {
        let take = |number: &AtomicU64| number.swap(0, Ordering::Relaxed);
        Looked {
            answered: take(&self.seen.answered),
            retries: take(&self.seen.retries),
            longest_wait_ms: take(&self.seen.longest_wait_ms),
        }
    }

    /// Ends it. Everything that was begun is answered, and is told.
    pub fn stop(self) -> Result<Acknowledged> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut turns = Vec::new();
        for client in self.clients {
            let Ok(done) = client.join() else { bail!("a client has panicked") };
            turns.push(done);
        }
        Ok(Acknowledged { keys: self.keys, name: self.name, turns })
    }
}

/// Every request that was acknowledged.
pub struct Acknowledged {
    keys: Arc<Vec<String>>,
    name: String,
    /// How many requests each client has made.
    turns: Vec<u64>,
}

impl Acknowledged {
    /// Key and id of each.
    pub fn requests(&self) -> impl Iterator<Item = (&str, String)> {
        let of_client = move |(number, turns): (usize, &u64)| {
            (0..*turns).map(move |turn| request(&self.keys, &self.name, number, turn))
        };
        self.turns.iter().enumerate().flat_map(of_client)
    }

    /// What each counter must have.
    pub fn counts(&self) -> BTreeMap<String, i64> {
        let mut counts = BTreeMap::new();
        for (key, _) in self.requests() {
            *counts.entry(key.to_string()).or_insert(0) += 1;
        }
        counts
    }
}

/// What a client asks in a turn.
fn request<'a>(keys: &'a [String], name: &str, number: usize, turn: u64) -> (&'a str, String) {
    (&keys[(turn as usize + number) % keys.len()], format!("{name}-{number}-{turn}"))
}

struct Client {
    number: usize,
    nodes: Vec<SocketAddr>,
    /// Which of them is asked.
    node: usize,
    keys: Arc<Vec<String>>,
    name: String,
    talk: Option<Talk>,
    is_over: Arc<AtomicBool>,
    pause_ms: Arc<AtomicU64>,
    seen: Arc<Seen>,
}

impl Client {
    /// Returns how many requests were acknowledged.
    fn run(mut self) -> u64 {
        let keys = Arc::clone(&self.keys);
        let mut turn = 0;
        while !self.is_over.load(Ordering::Relaxed) {
            let (key, id) = request(&keys, &self.name, self.number, turn);
            let asked = Instant::now();
            while self.attempt(key, &id).is_none() {
                self.seen.retries.fetch_add(1, Ordering::Relaxed);
                self.talk = None;
                self.node += 1;
                thread::sleep(RETRY_PAUSE);
            }
            let wait_ms = asked.elapsed().as_millis() as u64;
            self.seen.longest_wait_ms.fetch_max(wait_ms, Ordering::Relaxed);
            self.seen.answered.fetch_add(1, Ordering::Relaxed);
            turn += 1;
            thread::sleep(Duration::from_millis(self.pause_ms.load(Ordering::Relaxed)));
        }
        turn
    }

    /// Whether it is counted, now or before.
    fn attempt(&mut self, key: &str, id: &str) -> Option<()> {
        if self.talk.is_none() {
            let mut talk = Talk::open(self.nodes[self.node % self.nodes.len()]).ok()?;
            talk.set_patience(ATTEMPT_MAX).ok()?;
            self.talk = Some(talk);
        }
        match self.talk.as_mut()?.ask(&["Q.ADD", key, "1", "ID", id]).ok()? {
            Reply::Array(_) => Some(()),
            _ => None,
        }
    }
}

/// The values of counters at a node, as soon as it can say them.
pub fn values(node: SocketAddr, keys: impl IntoIterator<Item = String>) -> Result<BTreeMap<String, i64>> {
    let keys: Vec<String> = keys.into_iter().collect();
    let mut all = BTreeMap::new();
    let mut talk = Talk::open(node)?;
    for some in keys.chunks(1_000) {
        let mut words = vec!["MGET"];
        words.extend(some.iter().map(String::as_str));
        let Reply::Array(found) = talk.ask(&words)? else { bail!("MGET was refused") };
        for (key, value) in some.iter().zip(found) {
            let value = match value {
                Reply::Text(value) => value.parse()?,
                Reply::Integer(value) => value,
                _ => 0,
            };
            all.insert(key.clone(), value);
        }
    }
    Ok(all)
}
