//! Rows on their way to the server: packages of commands, several of them under way on one connection, and what became
//! of each row.
//!
//! Everything sent may be sent again: a value is set to what it was set to, and an addition carries an id. A
//! connection that breaks is therefore replaced, and what was not confirmed is repeated, in order.

use std::collections::VecDeque;
use std::time::Instant;

use indicatif::ProgressBar;
use quipu_counting::kinds::put_restored;
use quipu_wire::dump::write_whole;
use quipu_wire::resp::{Value, encode_command};

use super::connection::{Broken, Connection, Target};
use super::rows::{Expiry, Row};
use super::tally::Tally;
use crate::cli::failure::{Failure, RETRY_PAUSE, RETRY_TIME};
use crate::cli::interrupt::Interrupt;
use crate::cli::progress;

/// Rows of a package: enough that one sync of the disk serves many, few enough that a server's turn stays short.
const PACKAGE_ROWS: usize = 1_000;
/// Bytes of a package, about: counters that are more than a number may be long.
const PACKAGE_BYTES: usize = 1 << 20;
/// Packages under way: the next ones are made and sent while the server works. Their replies are far less than what a
/// server buffers, so that neither side can wait for the other for ever.
const UNDER_WAY_MAX: usize = 4;

/// What is done with a row.
#[derive(Clone, Debug)]
pub enum Mode {
    /// The counter gets the value.
    Set,
    /// The value is added, once, under ids that begin with this; the number of the line follows.
    Add(String),
}

/// Why rows are no longer sent.
#[derive(Debug)]
pub enum Stop {
    /// It makes no sense to go on.
    Failed(Failure),
    /// Somebody asked.
    Signal(i32),
}

/// Sends rows and gathers replies.
pub struct Sender<'a> {
    target: &'a Target,
    mode: Mode,
    interrupt: &'a Interrupt,
    bar: ProgressBar,
    connection: Connection,
    filling: Package,
    /// The oldest at the front.
    under_way: VecDeque<Package>,
    /// When a row was last confirmed.
    progress_at: Instant,
    /// That nothing goes on was already said.
    is_told: bool,
    /// What became of the rows so far.
    pub tally: Tally,
}

/// Commands that are sent together.
#[derive(Default)]
struct Package {
    commands: Vec<u8>,
    rows: Vec<Sent>,
    /// The keys behind each other, for those that are refused.
    keys: Vec<u8>,
    /// Rows at the front whose outcome is known.
    confirmed: usize,
    /// Sent more than once: what the server has seen before, it may have seen from us.
    is_repeated: bool,
}

struct Sent {
    line: u64,
    value: i64,
    key_end: usize,
}

impl<'a> Sender<'a> {
    /// Connects.
    pub fn open(
        target: &'a Target,
        mode: Mode,
        interrupt: &'a Interrupt,
        bar: &ProgressBar,
    ) -> Result<Sender<'a>, Failure> {
        Ok(Sender {
            target,
            mode,
            interrupt,
            bar: bar.clone(),
            connection: Connection::open(target)?,
            filling: Package::default(),
            under_way: VecDeque::new(),
            progress_at: Instant::now(),
            is_told: false,
            tally: Tally::default(),
        })
    }

    /// Takes a row; returns whether a package went out, and replies may have come in.
    pub fn push(&mut self, row: &Row) -> Result<bool, Stop> {
        self.filling.add(row, &self.mode);
        if self.filling.rows.len() < PACKAGE_ROWS && self.filling.commands.len() < PACKAGE_BYTES {
            return Ok(false);
        }
        self.send()?;
        while self.under_way.len() > UNDER_WAY_MAX {
            self.receive()?;
        }
        Ok(true)
    }

    /// Sends what is left and waits for all replies.
    pub fn finish(&mut self) -> Result<(), Stop> {
        if !self.filling.rows.is_empty() {
            self.send()?;
        }
        while !self.under_way.is_empty() {
            self.receive()?;
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), Stop> {
        let package = std::mem::take(&mut self.filling);
        let sent = self.connection.send(&package.commands);
        self.under_way.push_back(package);
        sent.or_else(|broken| self.repeat(&broken.to_string()))
    }

    /// Reads the replies to the oldest package.
    fn receive(&mut self) -> Result<(), Stop> {
        while let Err(trouble) = self.read_replies() {
            match trouble {
                Trouble::Passing(why) => self.repeat(&why)?,
                Trouble::Lasting(failure) => return Err(Stop::Failed(failure)),
            }
        }
        self.under_way.pop_front();
        Ok(())
    }

    fn read_replies(&mut self) -> Result<(), Trouble> {
        let Some(package) = self.under_way.front_mut() else { return Ok(()) };
        let mut key_start = 0;
        for (place, row) in package.rows.iter().enumerate() {
            let key = &package.keys[key_start..row.key_end];
            key_start = row.key_end;
            let reply = self.connection.receive()?;
            let outcome = Outcome::of(&reply, row.value)?;
            // A package that is repeated is answered from its first row on.
            if place < package.confirmed {
                continue;
            }
            match outcome {
                Outcome::Repeated if !package.is_repeated => self.tally.repeated(row.line),
                Outcome::Imported | Outcome::Repeated => self.tally.imported(row.line),
                Outcome::Refused(reason) => self.tally.refused(row.line, key, reason),
            }
            package.confirmed = place + 1;
            (self.progress_at, self.is_told) = (Instant::now(), false);
        }
        Ok(())
    }

    /// Gets a new connection and sends again what was not confirmed.
    fn repeat(&mut self, why: &str) -> Result<(), Stop> {
        if !std::mem::replace(&mut self.is_told, true) {
            progress::note(&self.bar, &format!("{}: {why}; trying again", self.target.shown()));
        }
        loop {
            if let Some(signal) = self.interrupt.wait(RETRY_PAUSE) {
                return Err(Stop::Signal(signal));
            }
            match self.reconnect() {
                Ok(()) if self.progress_at.elapsed() < RETRY_TIME => return Ok(()),
                Ok(()) => {
                    let failure = format!("{}: {why}", self.target.shown());
                    return Err(Stop::Failed(Failure::unreachable(failure)));
                }
                Err(failure) if failure.is_passing() && self.progress_at.elapsed() < RETRY_TIME => {}
                Err(failure) => return Err(Stop::Failed(failure)),
            }
        }
    }

    fn reconnect(&mut self) -> Result<(), Failure> {
        self.connection = Connection::open(self.target)?;
        for package in &mut self.under_way {
            package.is_repeated = true;
            let sent = self.connection.send(&package.commands);
            sent.map_err(|broken| Failure::unreachable(format!("{}: {broken}", self.target.shown())))?;
        }
        Ok(())
    }
}

impl Package {
    fn add(&mut self, row: &Row, mode: &Mode) {
        let (mut value, mut time) = (itoa::Buffer::new(), itoa::Buffer::new());
        let value = value.format(row.value).as_bytes();
        let id = match mode {
            Mode::Set => String::new(),
            Mode::Add(prefix) => format!("{prefix}{}", row.line),
        };
        // What the protocol can say; later than that is for ever to everybody.
        let (option, ms) = match row.expiry {
            Expiry::Never => ("", 0),
            Expiry::In(ms) => ("PX", ms),
            Expiry::At(ms) => ("PXAT", ms.min(i64::MAX as u64)),
        };
        let ms = time.format(ms).as_bytes();
        let mut payload = Vec::new();
        let mut words: Vec<&[u8]> = match (mode, &row.body) {
            (_, Some(body)) => {
                let mut whole = Vec::new();
                put_restored(&mut whole, body.updated_at_ms, row.value, &body.bytes);
                write_whole(&mut payload, &whole);
                vec![b"RESTORE", &row.key, ms, &payload, b"REPLACE"]
            }
            (Mode::Set, None) => vec![b"SET", &row.key, value],
            (Mode::Add(_), None) => vec![b"Q.ADD", &row.key, value, b"ID", id.as_bytes()],
        };
        match (row.expiry, &row.body) {
            (Expiry::Never, _) | (Expiry::In(_), Some(_)) => {}
            (Expiry::At(_), Some(_)) => words.push(b"ABSTTL"),
            (_, None) => words.extend([option.as_bytes(), ms]),
        }
        encode_command(&mut self.commands, &words);
        self.keys.extend_from_slice(&row.key);
        self.rows.push(Sent { line: row.line, value: row.value, key_end: self.keys.len() });
    }
}

/// Why a reply says nothing about its row.
enum Trouble {
    /// Trying again may help.
    Passing(String),
    /// It will not.
    Lasting(Failure),
}

impl From<Broken> for Trouble {
    fn from(broken: Broken) -> Trouble {
        Trouble::Passing(broken.to_string())
    }
}

/// What a reply says about its row.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Imported,
    /// The id was used before; it was done then.
    Repeated,
    Refused(String),
}

impl Outcome {
    fn of(reply: &Value, asked: i64) -> Result<Outcome, Trouble> {
        if let Some(text) = reply.as_error() {
            return Outcome::of_error(&String::from_utf8_lossy(text));
        }
        let Some(addition) = reply.as_elements() else { return Ok(Outcome::Imported) };
        let number = |place: usize| addition.get(place).and_then(Value::as_integer).unwrap_or_default();
        let (value, applied, is_duplicate) = (number(0), number(1), number(3) != 0);
        Ok(match (applied == asked, is_duplicate) {
            (true, false) => Outcome::Imported,
            (true, true) => Outcome::Repeated,
            (false, _) if applied == 0 => {
                Outcome::Refused(format!("refused by a bound; the value is {value}"))
            }
            (false, _) => Outcome::Refused(format!("a bound left room for {applied} of {asked}")),
        })
    }

    /// Most errors are about the row. Some are about the server, and some of these pass.
    fn of_error(text: &str) -> Result<Outcome, Trouble> {
        match text.split(' ').next().unwrap_or_default() {
            "BUSY" | "UNAVAILABLE" | "LOADING" | "TRYAGAIN" | "MASTERDOWN" => {
                Err(Trouble::Passing(text.to_owned()))
            }
            "FULL" | "NOAUTH" | "NOPERM" | "READONLY" | "MISCONF" | "OOM" => {
                Err(Trouble::Lasting(Failure::from_error_reply(text)))
            }
            _ if text.starts_with("ERR unknown command") => Err(Trouble::Lasting(Failure::general(format!(
                "the server is no quipu server ({text}); with --mode set any Redis server will do"
            )))),
            _ => Ok(Outcome::Refused(text.to_owned())),
        }
    }
}
