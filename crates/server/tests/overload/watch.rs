//! What somebody beside an overload sees: a light client that goes on asking, and the memory of the server.
//!
//! The client increments one counter on one connection, a hundred times a second, one question at a time, and notes how
//! long each answer took. Questions that fall due while it waits are taken to be answered together with the one before
//! them: a server that stalls is charged for everybody it kept waiting, but not for a queue that the client made.
//! `cargo xtask torture overload` uses it for a minute, the server's own test for seconds.
#![allow(dead_code)] // each of the two uses its part of this

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Between two questions: light enough to be no load.
const ASK_INTERVAL: Duration = Duration::from_millis(10);

/// Between two looks at the memory.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// An answer that takes longer is lost.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// All is as before when nothing was slow for so long.
const CALM_US: u64 = 500_000;

/// The counter that the light client increments; no load touches it.
const KEY: &str = "beside-the-overload";

/// Which door of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Front {
    /// The Redis protocol.
    Resp(SocketAddr),
    /// HTTP.
    Http(SocketAddr),
}

/// What came of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The increment was done.
    Good,
    /// It was refused because the server is busy.
    Refused,
    /// The connection failed, or something else came.
    Lost,
}

/// One question.
#[derive(Debug, Clone, Copy)]
pub struct Question {
    /// When it was due, in microseconds since 1970.
    pub due_us: u64,
    /// From then to the answer, or to the answer that it had to wait for, in microseconds.
    pub took_us: u64,
    /// What came of it.
    pub answer: Answer,
}

/// Watches until it is told to stop.
pub struct Watch {
    stop: Arc<AtomicBool>,
    asking: JoinHandle<Vec<Question>>,
    looking: JoinHandle<Vec<(u64, u64)>>,
}

impl Watch {
    /// Starts asking at `front`, and looking at the memory of process `server`.
    pub fn start(front: Front, server: u32) -> Watch {
        let stop = Arc::new(AtomicBool::new(false));
        let (for_asking, for_looking) = (Arc::clone(&stop), Arc::clone(&stop));
        Watch {
            asking: thread::spawn(move || ask(front, &for_asking)),
            looking: thread::spawn(move || look(server, &for_looking)),
            stop,
        }
    }

    /// What was seen.
    pub fn finish(self) -> Watched {
        self.stop.store(true, Ordering::Relaxed);
        // A thread that panicked has seen nothing, which no verdict passes.
        Watched {
            questions: self.asking.join().unwrap_or_default(),
            memory: self.looking.join().unwrap_or_default(),
        }
    }
}

/// What was seen, in order of time.
#[derive(Debug, Default)]
pub struct Watched {
    /// All questions.
    pub questions: Vec<Question>,
    /// Microseconds since 1970, and resident bytes.
    pub memory: Vec<(u64, u64)>,
}

/// What the light client met during a time.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Phase {
    /// Questions due in that time.
    pub questions: usize,
    /// Of these, refused.
    pub refused: usize,
    /// Of these, lost.
    pub lost: usize,
    /// Percentiles of all, refused ones included, in milliseconds.
    pub p50_ms: f64,
    /// One of a hundred took longer.
    pub p99_ms: f64,
    /// None took longer.
    pub max_ms: f64,
}

impl Watched {
    /// What the light client met from one moment to before another.
    pub fn phase(&self, from_us: u64, to_us: u64) -> Phase {
        let met: Vec<&Question> =
            self.questions.iter().filter(|question| (from_us..to_us).contains(&question.due_us)).collect();
        let mut took_us: Vec<u64> = met.iter().map(|question| question.took_us).collect();
        took_us.sort_unstable();
        let at = |part: f64| {
            let place = (took_us.len() as f64 * part).ceil() as usize;
            took_us.get(place.saturating_sub(1)).map_or(0.0, |us| *us as f64 / 1e3)
        };
        let count = |answer| met.iter().filter(|question| question.answer == answer).count();
        Phase {
            questions: met.len(),
            refused: count(Answer::Refused),
            lost: count(Answer::Lost),
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            max_ms: at(1.0),
        }
    }

    /// How long after `end_us` it took until questions were answered well, and within `slow_us`, for as long as
    /// [`CALM_US`]. What comes later is other work: whoever made the load reads all counters to add them up.
    pub fn recovered_after_us(&self, end_us: u64, slow_us: u64) -> u64 {
        let mut calm_from_us = end_us;
        for question in self.questions.iter().filter(|question| question.due_us >= end_us) {
            if question.due_us >= calm_from_us + CALM_US {
                break;
            }
            if question.answer != Answer::Good || question.took_us > slow_us {
                calm_from_us = calm_from_us.max(question.due_us + question.took_us);
            }
        }
        calm_from_us - end_us
    }

    /// The most memory from one moment to another.
    pub fn peak_bytes(&self, from_us: u64, to_us: u64) -> Option<u64> {
        let within = self.memory.iter().filter(|(at_us, _)| (from_us..=to_us).contains(at_us));
        within.map(|(_, bytes)| *bytes).max()
    }
}

/// Now, in microseconds since 1970.
pub fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

/// Asks until the answer is good; whether that came in time.
pub fn is_served_within(front: Front, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        if matches!(ask_once(front, &mut None), Ok(Answer::Good)) {
            return true;
        }
        thread::sleep(ASK_INTERVAL);
    }
    false
}

fn ask(front: Front, stop: &AtomicBool) -> Vec<Question> {
    let (started, started_us) = (Instant::now(), now_us());
    let mut questions = Vec::new();
    let mut connection = None;
    let mut due = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(due.saturating_sub(started.elapsed()));
        let answer = ask_once(front, &mut connection).unwrap_or(Answer::Lost);
        if answer == Answer::Lost {
            connection = None;
        }
        let answered = started.elapsed();
        while due <= answered {
            let took_us = (answered - due).as_micros() as u64;
            questions.push(Question { due_us: started_us + due.as_micros() as u64, took_us, answer });
            due += ASK_INTERVAL;
        }
    }
    questions
}

fn ask_once(front: Front, connection: &mut Option<BufReader<TcpStream>>) -> std::io::Result<Answer> {
    let (address, question) = match front {
        Front::Resp(address) => (address, format!("*2\r\n$4\r\nINCR\r\n${}\r\n{KEY}\r\n", KEY.len())),
        Front::Http(address) => (
            address,
            format!(
                "POST /api/v1/counters/{KEY}/increment HTTP/1.1\r\nHost: quipu\r\nContent-Length: 0\r\n\r\n"
            ),
        ),
    };
    if connection.is_none() {
        let stream = TcpStream::connect_timeout(&address, ANSWER_MAX)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.set_write_timeout(Some(ANSWER_MAX))?;
        *connection = Some(BufReader::new(stream));
    }
    let Some(reader) = connection else { return Ok(Answer::Lost) };
    reader.get_mut().write_all(question.as_bytes())?;
    let first = line(reader)?;
    Ok(match front {
        Front::Resp(_) if first.starts_with(':') => Answer::Good,
        Front::Resp(_) if first.starts_with("-BUSY") => Answer::Refused,
        Front::Resp(_) => Answer::Lost,
        Front::Http(_) => {
            skip_rest(reader)?;
            match first.split(' ').nth(1) {
                Some("200") => Answer::Good,
                Some("503") => Answer::Refused,
                _ => Answer::Lost,
            }
        }
    })
}

fn line(reader: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let mut line = String::new();
    match reader.read_line(&mut line)? {
        0 => Err(Error::from(ErrorKind::UnexpectedEof)),
        _ => Ok(line.trim_end().to_string()),
    }
}

/// The headers and the body behind the first line of a response.
fn skip_rest(reader: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    let mut body_bytes = 0;
    loop {
        let header = line(reader)?;
        if header.is_empty() {
            break;
        }
        if let Some((name, value)) = header.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            body_bytes = value.trim().parse().map_err(Error::other)?;
        }
    }
    std::io::copy(&mut reader.take(body_bytes), &mut std::io::sink())?;
    Ok(())
}

fn look(server: u32, stop: &AtomicBool) -> Vec<(u64, u64)> {
    let mut seen = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if let Some(bytes) = resident_bytes(server) {
            seen.push((now_us(), bytes));
        }
        thread::sleep(LOOK_INTERVAL);
    }
    seen
}

/// What a process holds in memory, while it exists.
pub fn resident_bytes(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}
