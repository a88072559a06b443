//! A client that counts with request ids and keeps every answer, and the proof that the server keeps them too.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::{Server, run};

/// A server that says nothing for this long is stuck.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Counters that a ledger counts in.
const KEYS: usize = 7;

/// Ids repeated together.
const PIPELINE: usize = 100;

/// Value, applied, version.
type Answer = [i64; 3];

/// Every id that was sent, and what was answered.
#[derive(Default)]
pub struct Ledger {
    answers: Vec<(usize, Answer)>,
    /// The number of an id that got an error or nothing: it counts once or not at all until it is sent again.
    open: Option<usize>,
}

impl Ledger {
    /// Counts `count` times, each acknowledged. Stops at the first that is not and returns what was said instead.
    pub fn count(&mut self, connection: &mut Connection, count: usize) -> Result<(), String> {
        for _ in 0..count {
            let number = self.open.take().unwrap_or(self.answers.len());
            self.open = Some(number);
            let (answer, _) = connection.add(&key(number), &id(number))?;
            self.open = None;
            self.answers.push((number, answer));
        }
        Ok(())
    }

    /// Every acknowledged id gives the same answer again, an open one is answered now, every counter has the number
    /// of its ids, no version was used twice.
    pub fn prove(&mut self, server: &Server) {
        let mut connection = Connection::open(server.resp).unwrap();
        for chunk in self.answers.chunks(PIPELINE) {
            chunk.iter().for_each(|(number, _)| connection.send(&add(&key(*number), &id(*number))).unwrap());
            for (number, first) in chunk {
                assert_eq!(connection.answer().unwrap(), (*first, true), "{}", id(*number));
            }
        }
        if self.open.is_some() {
            self.count(&mut connection, 1).unwrap();
        }
        let mut values: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for (number, [value, applied, version]) in &self.answers {
            assert_eq!((*applied, value), (1, version), "{}", id(*number));
            values.entry(key(*number)).or_default().push(*value);
        }
        for (key, mut values) in values {
            values.sort_unstable();
            assert_eq!(values, (1..=values.len() as i64).collect::<Vec<_>>(), "{key}");
            assert_eq!(connection.ask(&["GET", &key]).unwrap(), values.len().to_string(), "{key}");
            let body = server.request("GET", &format!("/api/v1/counters/{key}"), &[], "").json();
            assert_eq!(body["value"], values.len(), "{key}");
        }
    }

    /// The same after a start of its own, and after what a check of the folder says.
    pub fn prove_by_restart(&mut self, data: &Path, arguments: &[&str]) {
        let server = Server::start_with(data, arguments);
        self.prove(&server);
        let (status, log) = server.terminate();
        assert!(status.success(), "{log:?}");
        let check = run(&["check", data.to_str().unwrap()], &[]);
        let said = String::from_utf8_lossy(&check.stdout);
        assert!(check.status.success() && said.contains("all is well"), "{said}{check:?}");
    }
}

fn key(number: usize) -> String {
    format!("ledger:{}", number % KEYS)
}

fn id(number: usize) -> String {
    format!("request-{number}")
}

fn add<'a>(key: &'a str, id: &'a str) -> [&'a str; 5] {
    ["Q.ADD", key, "1", "ID", id]
}

/// A connection that speaks just enough RESP.
pub struct Connection {
    stream: TcpStream,
    replies: BufReader<TcpStream>,
}

impl Connection {
    /// Connects.
    pub fn open(address: SocketAddr) -> std::io::Result<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Connection { replies: BufReader::new(stream.try_clone()?), stream })
    }

    /// Sends a command.
    pub fn send(&mut self, words: &[&str]) -> Result<(), String> {
        let mut command = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| command.push_str(&format!("${}\r\n{word}\r\n", word.len())));
        self.stream.write_all(command.as_bytes()).map_err(|error| error.to_string())
    }

    /// The next reply that is not an array, or the error.
    pub fn reply(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.replies.read_line(&mut line).map_err(|error| error.to_string())?;
        let line = line.strip_suffix("\r\n").ok_or("the connection was closed")?;
        match line.split_at_checked(1) {
            Some(("-", error)) => Err(error.to_string()),
            Some(("$", length)) if length != "-1" => self.reply(),
            Some(("+" | ":" | "*", rest)) => Ok(rest.to_string()),
            _ => Ok(line.to_string()),
        }
    }

    /// A command and its reply.
    pub fn ask(&mut self, words: &[&str]) -> Result<String, String> {
        self.send(words)?;
        self.reply()
    }

    fn add(&mut self, key: &str, id: &str) -> Result<(Answer, bool), String> {
        self.send(&add(key, id))?;
        self.answer()
    }

    /// `[value, applied, version, duplicate]`
    fn answer(&mut self) -> Result<(Answer, bool), String> {
        let items = self.reply()?;
        assert_eq!(items, "4");
        let mut integer = || self.reply().map(|text| text.parse::<i64>().expect("an integer"));
        Ok(([integer()?, integer()?, integer()?], integer()? == 1))
    }
}

/// Tries until it comes true.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
