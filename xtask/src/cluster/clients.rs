//! Clients that add, look and ask again: every request under an id until it is answered, at whichever node answers.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use quipu_history::{Operation, Outcome};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Counters that everybody wants, counters that must not fall below 0, and many others in all partitions.
const HOT: u32 = 8;
const STOCKS: u32 = 4;
const COLD: u32 = 500;
const FIRST_COLD: u32 = HOT + STOCKS;
const ALL: u32 = FIRST_COLD + COLD;
/// Requests and pauses between them: enough to meet every fault, few enough to remember for half an hour.
const PAUSE_MS_MAX: u64 = 8;
/// How long a node may take to answer before another is asked.
const ANSWER_MAX: Duration = Duration::from_secs(3);
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// How long a request may go without an answer, whatever happens.
const PATIENCE: Duration = Duration::from_secs(120);
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// Answers that a client remembers, to ask for them again.
const REMEMBERED: usize = 2_000;
/// What a server may say when it does not know better: ask again. All else is a bug.
pub const RETRYABLE: [&str; 4] = ["CLUSTERDOWN", "UNAVAILABLE", "BUSY", "FULL"];

/// All clients.
pub struct Clients {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Vec<Operation>>>,
}

struct Shared {
    nodes: RwLock<Vec<SocketAddr>>,
    began: Instant,
    is_over: AtomicBool,
    answers: AtomicU64,
    repetitions: AtomicU64,
    /// What servers said instead of an answer, and how often.
    excuses: Mutex<BTreeMap<String, u64>>,
    violations: Mutex<Vec<String>>,
}

/// What became of it all.
pub struct Recorded {
    /// Every operation of every client.
    pub operations: Vec<Operation>,
    /// What no client may ever see.
    pub violations: Vec<String>,
    /// What servers said instead of an answer, and how often.
    pub excuses: BTreeMap<String, u64>,
    /// Answers asked for once more.
    pub repetitions: u64,
}

impl Clients {
    /// Starts so many.
    pub fn start(nodes: Vec<SocketAddr>, count: u32, seed: u64) -> Clients {
        let shared = Arc::new(Shared {
            nodes: RwLock::new(nodes),
            began: Instant::now(),
            is_over: AtomicBool::new(false),
            answers: AtomicU64::new(0),
            repetitions: AtomicU64::new(0),
            excuses: Mutex::default(),
            violations: Mutex::default(),
        });
        let start = |number: u32| {
            let client = Client {
                number,
                shared: Arc::clone(&shared),
                random: StdRng::seed_from_u64(seed.wrapping_add(u64::from(number))),
                connection: None,
                asked: 0,
                remembered: Vec::new(),
                operations: Vec::new(),
            };
            thread::spawn(move || client.run())
        };
        let threads = (0..count).map(start).collect();
        Clients { shared, threads }
    }

    /// These are the nodes from now on.
    pub fn reach(&self, nodes: Vec<SocketAddr>) {
        *self.shared.nodes.write().unwrap_or_else(PoisonError::into_inner) = nodes;
    }

    /// How many requests were answered.
    pub fn answers(&self) -> u64 {
        self.shared.answers.load(Ordering::Relaxed)
    }

    /// Whether a client saw what it must not see.
    pub fn have_violations(&self) -> bool {
        !self.shared.violations.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Lets all come to an end, and each look at every counter once more.
    pub fn finish(self) -> Recorded {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let mut operations = Vec::new();
        for thread in self.threads {
            match thread.join() {
                Ok(of_one) => operations.extend(of_one),
                Err(_) => self.shared.violate("a client has panicked".into()),
            }
        }
        let take = |violations: &Mutex<Vec<String>>| {
            std::mem::take(&mut *violations.lock().unwrap_or_else(PoisonError::into_inner))
        };
        Recorded {
            operations,
            violations: take(&self.shared.violations),
            excuses: self.shared.excuses.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            repetitions: self.shared.repetitions.load(Ordering::Relaxed),
        }
    }
}

impl Shared {
    fn violate(&self, what: String) {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    fn excuse(&self, what: String) {
        *self.excuses.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_default() += 1;
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }
}

/// The name of a counter.
pub fn key_name(key: u32) -> String {
    match key {
        0..HOT => format!("hot:{key}"),
        HOT..FIRST_COLD => format!("stock:{key}"),
        _ => format!("cold:{key}"),
    }
}

/// An addition under an id.
#[derive(Debug, Clone)]
struct Addition {
    key: u32,
    delta: i64,
    min: Option<i64>,
    id: String,
}

impl Addition {
    fn words(&self) -> Vec<String> {
        let mut words = vec!["Q.ADD".into(), key_name(self.key), self.delta.to_string()];
        words.extend(["ID".into(), self.id.clone()]);
        if let Some(min) = self.min {
            words.extend(["MIN".into(), min.to_string()]);
        }
        words
    }
}

struct Client {
    number: u32,
    shared: Arc<Shared>,
    random: StdRng,
    connection: Option<Connection>,
    asked: u64,
    remembered: Vec<(Addition, Outcome)>,
    operations: Vec<Operation>,
}

/// No use to go on: said where everybody reads it.
struct GivenUp;

impl Client {
    fn run(mut self) -> Vec<Operation> {
        while !self.shared.is_over.load(Ordering::Relaxed) {
            if self.step().is_err() {
                return self.operations;
            }
            self.shared.answers.fetch_add(1, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(self.random.random_range(0..=PAUSE_MS_MAX)));
        }
        let _ = (0..ALL).try_for_each(|key| self.look(key));
        self.operations
    }

    fn step(&mut self) -> Result<(), GivenUp> {
        if self.random.random_range(0..50) == 0 {
            // Others serve as well.
            self.connection = None;
        }
        match self.random.random_range(0..100) {
            0..20 => {
                let key = self.any_key();
                self.look(key)
            }
            20..27 if !self.remembered.is_empty() => self.repeat(),
            20..50 => {
                let delta = [-3, -2, -1, 1, 2][self.random.random_range(0..5)];
                let key = self.random.random_range(HOT..FIRST_COLD);
                self.add(key, delta, Some(0))
            }
            _ => {
                let delta = [-3, -2, -1, 1, 2, 3, 4, 5][self.random.random_range(0..8)];
                match self.any_key() {
                    // A stock is never changed without its bound.
                    HOT..FIRST_COLD => self.add(0, delta, None),
                    key => self.add(key, delta, None),
                }
            }
        }
    }

    fn any_key(&mut self) -> u32 {
        match self.random.random_range(0..2) {
            0 => self.random.random_range(0..FIRST_COLD),
            _ => self.random.random_range(FIRST_COLD..ALL),
        }
    }

    fn add(&mut self, key: u32, delta: i64, min: Option<i64>) -> Result<(), GivenUp> {
        self.asked += 1;
        let addition = Addition { key, delta, min, id: format!("{}-{}", self.number, self.asked) };
        let asked_us = self.shared.now_us();
        let (outcome, _) = self.insist(&addition)?;
        self.record(key, asked_us, outcome);
        if self.remembered.len() < REMEMBERED {
            self.remembered.push((addition, outcome));
        } else {
            let place = self.random.random_range(0..REMEMBERED);
            self.remembered[place] = (addition, outcome);
        }
        Ok(())
    }

    /// Asks once more for something that was answered.
    fn repeat(&mut self) -> Result<(), GivenUp> {
        let (addition, first) = self.remembered[self.random.random_range(0..self.remembered.len())].clone();
        let (again, is_duplicate) = self.insist(&addition)?;
        self.shared.repetitions.fetch_add(1, Ordering::Relaxed);
        if again != first || !is_duplicate {
            let at_ms = self.shared.now_us() / 1_000;
            self.shared.violate(format!(
                "at {at_ms} ms: {addition:?} was answered {first:?} and, repeated, {again:?}, duplicate: {is_duplicate}"
            ));
        }
        Ok(())
    }

    fn look(&mut self, key: u32) -> Result<(), GivenUp> {
        let words = ["Q.STAT".to_string(), key_name(key)];
        let until = Instant::now() + PATIENCE;
        loop {
            // A look that failed has changed nothing, so only the last one counts.
            let asked_us = self.shared.now_us();
            let Some(reply) = self.ask(&words, until)? else { continue };
            let (Some(value), Some(version)) = (reply.field("value"), reply.field("version")) else {
                self.shared.violate(format!("Q.STAT {} was answered {reply:?}", key_name(key)));
                return Err(GivenUp);
            };
            self.record(key, asked_us, Outcome::Read { value, version: version as u64 });
            return Ok(());
        }
    }

    fn record(&mut self, key: u32, asked_us: u64, outcome: Outcome) {
        let answered_us = self.shared.now_us();
        self.operations.push(Operation { key, client: self.number, asked_us, answered_us, outcome });
    }

    /// Asks until there is an answer: the outcome, and whether it was known before.
    fn insist(&mut self, addition: &Addition) -> Result<(Outcome, bool), GivenUp> {
        let until = Instant::now() + PATIENCE;
        loop {
            let Some(reply) = self.ask(&addition.words(), until)? else { continue };
            match outcome(addition, &reply) {
                Some(outcome) => return Ok(outcome),
                None => {
                    self.shared.violate(format!("{addition:?} was answered {reply:?}"));
                    return Err(GivenUp);
                }
            }
        }
    }

    /// One attempt; nothing if there was no answer, but one may come yet.
    fn ask(&mut self, words: &[String], until: Instant) -> Result<Option<Reply>, GivenUp> {
        let excuse = match self.attempt(words) {
            Ok(Reply::Error(line)) if RETRYABLE.iter().any(|code| line.starts_with(code)) => line,
            Ok(reply) => return Ok(Some(reply)),
            Err(error) => {
                self.connection = None;
                error.kind().to_string()
            }
        };
        self.shared.excuse(excuse.clone());
        if Instant::now() > until {
            self.shared.violate(format!("{words:?}: no answer within {PATIENCE:?}: {excuse}"));
            return Err(GivenUp);
        }
        self.connection = None;
        thread::sleep(RETRY_PAUSE);
        Ok(None)
    }

    fn attempt(&mut self, words: &[String]) -> io::Result<Reply> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            empty => {
                let nodes = self.shared.nodes.read().unwrap_or_else(PoisonError::into_inner).clone();
                empty.insert(Connection::open(nodes[self.random.random_range(0..nodes.len())])?)
            }
        };
        connection.send(words)?;
        connection.receive()
    }
}

/// What an answer to an addition says, and whether it says so again; nothing if it is no such answer.
fn outcome(addition: &Addition, reply: &Reply) -> Option<(Outcome, bool)> {
    let Reply::Array(fields) = reply else { return None };
    let [Reply::Number(value), Reply::Number(applied), Reply::Number(version), Reply::Number(known)] =
        fields[..]
    else {
        return None;
    };
    let version = u64::try_from(version).ok()?;
    let delta = addition.delta;
    let outcome = match addition.min {
        _ if applied == delta => Outcome::Added { delta, value, version },
        Some(min) if applied == 0 => Outcome::Refused { delta, min, value, version },
        _ => return None,
    };
    Some((outcome, known == 1))
}

/// What a server answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// An integer.
    Number(i64),
    /// Text of either kind.
    Text(String),
    /// An error, without its sign.
    Error(String),
    /// Several.
    Array(Vec<Reply>),
}

impl Reply {
    /// A number by its name, in an array of names and values.
    fn field(&self, name: &str) -> Option<i64> {
        let Reply::Array(fields) = self else { return None };
        fields.as_chunks().0.iter().find_map(|[key, value]| match (key, value) {
            (Reply::Text(key), Reply::Number(value)) if key == name => Some(*value),
            _ => None,
        })
    }
}

/// Counters with names so long that the log grows fast, and so few that nothing else does.
const FLOOD_KEYS: usize = 640;
const FLOOD_KEY_BYTES: usize = 500;
const FLOOD_THREADS: usize = 6;

/// Makes the log of a node grow, whatever it says, for as long as this lives: the log has reserved some space, and as long as
/// that lasts nobody notices that the disk is full.
pub struct Flood {
    is_over: Arc<AtomicBool>,
}

impl Flood {
    /// On this node.
    pub fn start(node: SocketAddr) -> Flood {
        let is_over = Arc::new(AtomicBool::new(false));
        let key = |number: usize| format!("flood:{number:0>FLOOD_KEY_BYTES$}");
        let keys: Arc<Vec<String>> = Arc::new((0..FLOOD_KEYS).map(key).collect());
        for _ in 0..FLOOD_THREADS {
            let (is_over, keys) = (Arc::clone(&is_over), Arc::clone(&keys));
            thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    // Until it breaks, or the node says nothing for too long.
                    let flood = || -> io::Result<()> {
                        let mut connection = Connection::open(node)?;
                        while !is_over.load(Ordering::Relaxed) {
                            connection.increment(&keys)?;
                        }
                        Ok(())
                    };
                    if flood().is_err() {
                        thread::sleep(RETRY_PAUSE);
                    }
                }
            });
        }
        Flood { is_over }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// A connection that speaks just enough RESP.
pub struct Connection {
    stream: TcpStream,
    replies: BufReader<TcpStream>,
}

impl Connection {
    /// To a server.
    pub fn open(address: SocketAddr) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&address, CONNECT_MAX)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        Ok(Connection { replies: BufReader::new(stream.try_clone()?), stream })
    }

    /// Everything the server tells of itself.
    pub fn info(&mut self) -> io::Result<String> {
        self.send(&["INFO".into()])?;
        match self.receive()? {
            Reply::Text(text) => Ok(text),
            other => Err(io::Error::other(format!("INFO was answered {other:?}"))),
        }
    }

    /// Adds one to each of these counters; whether all were answered.
    pub fn increment(&mut self, keys: &[String]) -> io::Result<bool> {
        let commands = keys.iter().map(|key| format!("*2\r\n$4\r\nINCR\r\n${}\r\n{key}\r\n", key.len()));
        self.stream.write_all(commands.collect::<String>().as_bytes())?;
        let mut all = true;
        for _ in keys {
            all &= matches!(self.receive()?, Reply::Number(_));
        }
        Ok(all)
    }

    /// One command.
    pub fn send(&mut self, words: &[String]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.write_all(bytes.as_bytes())
    }

    /// One reply.
    pub fn receive(&mut self) -> io::Result<Reply> {
        let malformed = |line: &str| io::Error::other(format!("a reply that begins with {line:?}"));
        let line = self.line()?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| malformed(&line))?;
        let number = || rest.parse::<i64>().map_err(|_| malformed(&line));
        match kind {
            ":" => Ok(Reply::Number(number()?)),
            "+" => Ok(Reply::Text(rest.to_string())),
            "-" => Ok(Reply::Error(rest.to_string())),
            "$" => {
                let mut text = vec![0; number()?.max(0) as usize + 2];
                self.replies.read_exact(&mut text)?;
                text.truncate(text.len() - 2);
                Ok(Reply::Text(String::from_utf8_lossy(&text).into_owned()))
            }
            "*" => (0..number()?).map(|_| self.receive()).collect::<io::Result<_>>().map(Reply::Array),
            _ => Err(malformed(&line)),
        }
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.replies.read_line(&mut line)?;
        // What a crash cut short must not pass for a whole line: `:12` may have been `:123`.
        let whole = line.strip_suffix("\r\n").map(str::to_string);
        whole.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(numbers: &[i64]) -> Reply {
        Reply::Array(numbers.iter().map(|number| Reply::Number(*number)).collect())
    }

    #[test]
    fn answers_to_additions_are_understood_or_refused() {
        let addition = Addition { key: 1, delta: -2, min: Some(0), id: "a".into() };
        let added = Outcome::Added { delta: -2, value: 5, version: 9 };
        assert_eq!(outcome(&addition, &numbers(&[5, -2, 9, 0])), Some((added, false)));
        assert_eq!(outcome(&addition, &numbers(&[5, -2, 9, 1])), Some((added, true)));
        let refused = Outcome::Refused { delta: -2, min: 0, value: 1, version: 9 };
        assert_eq!(outcome(&addition, &numbers(&[1, 0, 9, 0])), Some((refused, false)));
        for wrong in [numbers(&[5, -1, 9, 0]), numbers(&[5, -2, 9]), Reply::Error("ERR".into())] {
            assert_eq!(outcome(&addition, &wrong), None, "{wrong:?}");
        }
        let unbound = Addition { min: None, ..addition };
        assert_eq!(outcome(&unbound, &numbers(&[1, 0, 9, 0])), None);
    }

    #[test]
    fn every_kind_of_counter_has_names_of_its_own() {
        let names: std::collections::BTreeSet<String> = (0..ALL).map(key_name).collect();
        assert_eq!(names.len() as u32, ALL);
        assert_eq!([key_name(0), key_name(HOT), key_name(FIRST_COLD)], ["hot:0", "stock:8", "cold:12"]);
    }
}
