//! Clients that count with request ids and never give up, and the proof that nothing was lost or doubled.
//!
//! Each client sends short pipelines of `Q.ADD key 1 ID <id>`. When anything goes wrong (an error reply, a closed
//! connection, a server that is away) it sends what is unanswered again, with the same ids, until every id has an
//! answer. Now and then it repeats an id that was answered long ago. Meanwhile somebody kills the server.
//!
//! Every increment adds 1 and every id is answered in the end, so the proof is short: the values in the answers of one
//! key are exactly 1, 2, ..., n. A lost increment would leave a hole or a smaller end, a doubled one a hole, an
//! answer taken back by a crash a repetition.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Counters that all clients share: few enough for clients to meet on them, enough to have some in many partitions.
const KEYS: u32 = 100;

/// Increments sent together, at most.
const PIPELINE_MAX: usize = 8;

/// One pipeline in this many carries an old id once more.
const REPEAT_ONE_IN: u32 = 20;

/// Ids repeated together in the final proof.
const PROOF_PIPELINE: usize = 256;

/// A server that answers nothing for this long is stuck, and so is the test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between attempts while the server is away.
const RETRY_PAUSE: Duration = Duration::from_millis(2);

/// One increment: which key, and an id that nobody else uses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    key: u32,
    id: String,
}

/// What the server answers to `Q.ADD`, the `duplicate` flag apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The counter after the increment.
    pub value: i64,
    /// By how much it changed.
    pub applied: i64,
    /// The counter's version after the increment.
    pub version: i64,
}

/// All ids that were answered.
pub type Acknowledged = Vec<(Request, Answer)>;

/// Where the server listens at the moment; a restarted server has another port.
#[derive(Clone)]
pub struct Place(Arc<Mutex<SocketAddr>>);

impl Place {
    /// The first place.
    pub fn new(address: SocketAddr) -> Place {
        Place(Arc::new(Mutex::new(address)))
    }

    /// The server has moved.
    pub fn set(&self, address: SocketAddr) {
        *self.0.lock().expect("nobody panics with the lock") = address;
    }

    fn get(&self) -> SocketAddr {
        *self.0.lock().expect("nobody panics with the lock")
    }
}

/// Running clients.
pub struct Clients {
    threads: Vec<JoinHandle<Result<Acknowledged, String>>>,
    shared: Arc<Shared>,
}

struct Shared {
    place: Place,
    is_over: AtomicBool,
    acknowledged: AtomicU64,
    retries: AtomicU64,
}

impl Clients {
    /// Starts `count` clients. `name` makes their ids differ from those of any other run on the same counters.
    pub fn start(place: &Place, count: u64, name: &str, seed: u64) -> Clients {
        let shared = Arc::new(Shared {
            place: place.clone(),
            is_over: AtomicBool::new(false),
            acknowledged: AtomicU64::new(0),
            retries: AtomicU64::new(0),
        });
        let threads = (0..count)
            .map(|index| {
                let mut client = Client {
                    name: format!("{name}-{index}"),
                    random: StdRng::seed_from_u64(seed ^ (index << 48)),
                    shared: Arc::clone(&shared),
                    connection: None,
                    acknowledged: Vec::new(),
                    next_id: 0,
                };
                thread::spawn(move || client.run().map(|()| client.acknowledged))
            })
            .collect();
        Clients { threads, shared }
    }

    /// How many ids have been answered.
    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// Waits until `count` more ids have been answered: proof that the server works again.
    pub fn wait_for_more(&self, count: u64) -> Result<(), String> {
        let enough = self.acknowledged() + count;
        let deadline = Instant::now() + PATIENCE;
        while self.acknowledged() < enough {
            if Instant::now() > deadline {
                return Err(format!("no progress within {PATIENCE:?}"));
            }
            if self.threads.iter().any(JoinHandle::is_finished) {
                return Err("a client gave up".into());
            }
            thread::sleep(Duration::from_micros(200));
        }
        Ok(())
    }

    /// Lets every client get an answer for what it has sent, and stops them. Also says how often they had to
    /// try again.
    pub fn finish(self) -> Result<(Acknowledged, u64), String> {
        self.shared.is_over.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for thread in self.threads {
            all.extend(thread.join().map_err(|_| "a client panicked".to_string())??);
        }
        Ok((all, self.shared.retries.load(Ordering::Relaxed)))
    }
}

struct Client {
    name: String,
    random: StdRng,
    shared: Arc<Shared>,
    connection: Option<Connection>,
    acknowledged: Acknowledged,
    next_id: u64,
}

impl Client {
    fn run(&mut self) -> Result<(), String> {
        while !self.shared.is_over.load(Ordering::Relaxed) {
            let count = self.random.random_range(1..=PIPELINE_MAX);
            let requests = (0..count).map(|_| self.new_request()).collect();
            let answered = self.insist(requests)?;
            self.shared.acknowledged.fetch_add(count as u64, Ordering::Relaxed);
            self.acknowledged.extend(answered.into_iter().map(|(request, answer, _)| (request, answer)));
            if self.random.random_ratio(1, REPEAT_ONE_IN) {
                self.repeat_an_old_one()?;
            }
        }
        Ok(())
    }

    fn new_request(&mut self) -> Request {
        self.next_id += 1;
        Request { key: self.random.random_range(0..KEYS), id: format!("{}-{}", self.name, self.next_id) }
    }

    fn repeat_an_old_one(&mut self) -> Result<(), String> {
        let index = self.random.random_range(0..self.acknowledged.len());
        let (request, first) = self.acknowledged[index].clone();
        for (request, answer, is_duplicate) in self.insist(vec![request])? {
            check_repetition(&request, first, answer, is_duplicate)?;
        }
        Ok(())
    }

    /// Sends until every request has an answer.
    fn insist(&mut self, requests: Vec<Request>) -> Result<Vec<(Request, Answer, bool)>, String> {
        let deadline = Instant::now() + PATIENCE;
        let mut answered = Vec::with_capacity(requests.len());
        let mut waiting = requests;
        loop {
            let failure = match self.attempt(&mut waiting, &mut answered) {
                Ok(()) => return Ok(answered),
                Err(failure) => failure,
            };
            // What the server did with the rest is unknown, so the connection is of no use and the ids go out again.
            self.connection = None;
            self.shared.retries.fetch_add(1, Ordering::Relaxed);
            if Instant::now() > deadline {
                return Err(format!("{}: no answer within {PATIENCE:?}: {failure}", waiting[0].id));
            }
            thread::sleep(RETRY_PAUSE);
        }
    }

    /// One attempt; moves what was answered from `waiting` to `answered`.
    fn attempt(
        &mut self,
        waiting: &mut Vec<Request>,
        answered: &mut Vec<(Request, Answer, bool)>,
    ) -> Result<(), String> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            empty => empty.insert(Connection::open(self.shared.place.get())?),
        };
        connection.send(waiting.iter())?;
        while !waiting.is_empty() {
            let (answer, is_duplicate) = connection.receive()?;
            answered.push((waiting.remove(0), answer, is_duplicate));
        }
        Ok(())
    }
}

/// What the final proof found.
pub struct Proof {
    /// Distinct ids.
    pub ids: usize,
    /// Final value of each key.
    pub values: BTreeMap<u32, i64>,
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ids counted once each in {} counters, every answer repeated",
            self.ids,
            self.values.len()
        )
    }
}

/// Repeats every id and checks its answer, then checks that the answers of each key are exactly 1, 2, ..., n.
/// `acknowledged` must be all increments that these counters ever had.
pub fn prove(address: SocketAddr, acknowledged: &Acknowledged) -> Result<Proof, String> {
    let mut connection = Connection::open(address)?;
    for chunk in acknowledged.chunks(PROOF_PIPELINE) {
        connection.send(chunk.iter().map(|(request, _)| request))?;
        for (request, first) in chunk {
            let (answer, is_duplicate) = connection.receive()?;
            check_repetition(request, *first, answer, is_duplicate)?;
        }
    }
    let mut answers: BTreeMap<u32, Vec<Answer>> = BTreeMap::new();
    for (request, answer) in acknowledged {
        answers.entry(request.key).or_default().push(*answer);
    }
    let mut values = BTreeMap::new();
    for (key, mut answers) in answers {
        answers.sort_by_key(|answer| answer.value);
        for (expected, answer) in (1..).zip(&answers) {
            if *answer != (Answer { value: expected, applied: 1, version: expected }) {
                return Err(format!(
                    "{}: expected value and version {expected}, got {answer:?}",
                    key_name(key)
                ));
            }
        }
        let value = connection.get(key)?;
        if value != answers.len() as i64 {
            return Err(format!("{} is {value} after {} increments", key_name(key), answers.len()));
        }
        values.insert(key, value);
    }
    Ok(Proof { ids: acknowledged.len(), values })
}

fn check_repetition(
    request: &Request,
    first: Answer,
    again: Answer,
    is_duplicate: bool,
) -> Result<(), String> {
    if again == first && is_duplicate {
        return Ok(());
    }
    Err(format!("{request:?} was answered {first:?} and, repeated, {again:?} with duplicate {is_duplicate}"))
}

fn key_name(key: u32) -> String {
    format!("torture:{key}")
}

/// A connection that speaks just enough RESP.
struct Connection {
    stream: TcpStream,
    replies: BufReader<TcpStream>,
}

impl Connection {
    fn open(address: SocketAddr) -> Result<Connection, String> {
        let open = || {
            let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            Ok(Connection { replies: BufReader::new(stream.try_clone()?), stream })
        };
        open().map_err(|error: std::io::Error| format!("cannot connect to {address}: {error}"))
    }

    fn send<'r>(&mut self, requests: impl Iterator<Item = &'r Request>) -> Result<(), String> {
        let mut bytes = Vec::new();
        for Request { key, id } in requests {
            let words = ["Q.ADD", &key_name(*key), "1", "ID", id].map(bulk).concat();
            bytes.extend_from_slice(format!("*5\r\n{words}").as_bytes());
        }
        self.stream.write_all(&bytes).map_err(|error| format!("cannot send: {error}"))
    }

    /// `[value, applied, version, duplicate]`
    fn receive(&mut self) -> Result<(Answer, bool), String> {
        let header = self.line()?;
        if header != "*4" {
            return Err(format!("the answer to Q.ADD begins with {header:?}"));
        }
        let [value, applied, version, duplicate] =
            [self.integer()?, self.integer()?, self.integer()?, self.integer()?];
        Ok((Answer { value, applied, version }, duplicate == 1))
    }

    fn get(&mut self, key: u32) -> Result<i64, String> {
        let command = format!("*2\r\n{}{}", bulk("GET"), bulk(&key_name(key)));
        self.stream.write_all(command.as_bytes()).map_err(|error| format!("cannot send: {error}"))?;
        let header = self.line()?;
        let text = if header.starts_with('$') { self.line()? } else { header };
        text.parse().map_err(|_| format!("GET of {} answered {text:?}", key_name(key)))
    }

    fn integer(&mut self) -> Result<i64, String> {
        let line = self.line()?;
        let number = line.strip_prefix(':').and_then(|text| text.parse().ok());
        number.ok_or_else(|| format!("expected an integer, got {line:?}"))
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.replies.read_line(&mut line).map_err(|error| format!("cannot receive: {error}"))?;
        // A line that a crash cut short must not pass for a whole one: `:12` may have been `:123`.
        line.strip_suffix("\r\n").map(str::to_string).ok_or_else(|| "the connection was closed".to_string())
    }
}

fn bulk(word: &str) -> String {
    format!("${}\r\n{word}\r\n", word.len())
}
