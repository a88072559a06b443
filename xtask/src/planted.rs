//! The proof of `exactly_once` is trusted because it finds planted bugs: a small server of its own, honest or not.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::exactly_once::{Clients, Place, Proof, prove};

/// The server closes a connection instead of answering every so many requests; the increment is done by then.
const ANSWERS_UNTIL_CLOSE: u64 = 50;

/// Bugs show at every so many requests.
const REQUESTS_UNTIL_BUG: u64 = 40;

/// Answers that the clients wait for before the proof.
const ANSWERS: u64 = 2_000;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Bug {
    None,
    /// A repeated id counts again.
    ForgetsIds,
    /// An answered increment is not kept.
    LosesIncrements,
    /// An increment counts twice.
    DoublesIncrements,
    /// A repeated id is answered with the value of now.
    AnswersAnew,
    /// A repeated id is answered well, but as if it were new.
    HidesDuplicates,
}

#[derive(Default)]
struct State {
    counters: HashMap<String, i64>,
    answers: HashMap<String, i64>,
    requests: u64,
}

impl State {
    /// The answer to `Q.ADD key 1 ID id`.
    fn add(&mut self, bug: Bug, key: &str, id: &str) -> String {
        self.requests += 1;
        let is_buggy = self.requests.is_multiple_of(REQUESTS_UNTIL_BUG);
        let counter = self.counters.entry(key.to_string()).or_default();
        let known = self.answers.get(id).copied().filter(|_| bug != Bug::ForgetsIds);
        let value = match known {
            Some(_) if bug == Bug::AnswersAnew => *counter,
            Some(value) => value,
            None => {
                *counter += if bug == Bug::DoublesIncrements && is_buggy { 2 } else { 1 };
                *counter
            }
        };
        if known.is_none() && bug == Bug::LosesIncrements && is_buggy {
            *counter -= 1;
        }
        self.answers.insert(id.to_string(), value);
        let duplicate = i32::from(known.is_some() && bug != Bug::HidesDuplicates);
        format!("*4\r\n:{value}\r\n:1\r\n:{value}\r\n:{duplicate}\r\n")
    }
}

fn start(bug: Bug) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let state = Arc::new(Mutex::new(State::default()));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let state = Arc::clone(&state);
            thread::spawn(move || serve(bug, stream?, &state));
        }
    });
    address
}

/// Ends with an error when the client goes away; nobody looks at it.
fn serve(bug: Bug, stream: TcpStream, state: &Mutex<State>) -> std::io::Result<()> {
    let mut output = stream.try_clone()?;
    let mut lines = BufReader::new(stream).lines();
    while let Some(header) = lines.next() {
        let arguments: usize = header?.trim_start_matches('*').parse().unwrap();
        let words: Vec<String> =
            (&mut lines).take(arguments * 2).skip(1).step_by(2).collect::<Result<_, _>>()?;
        let mut state = state.lock().unwrap();
        let (answer, is_add) = match words[0].as_str() {
            "GET" => (format!("$-\r\n{}\r\n", state.counters[&words[1]]), false),
            _ => (state.add(bug, &words[1], &words[4]), true),
        };
        if is_add && state.requests < ANSWERS && state.requests.is_multiple_of(ANSWERS_UNTIL_CLOSE) {
            return Ok(());
        }
        output.write_all(answer.as_bytes())?;
    }
    Ok(())
}

fn outcome(bug: Bug) -> Result<Proof, String> {
    let address = start(bug);
    let clients = Clients::start(&Place::new(address), 4, "planted", 1);
    // A client that has found the bug by itself ends early and says so in `finish`.
    let _ = clients.wait_for_more(ANSWERS);
    let (acknowledged, retries) = clients.finish()?;
    assert!(retries > 0, "closed connections were not felt");
    prove(address, &acknowledged)
}

#[test]
fn an_honest_server_passes() {
    let proof = outcome(Bug::None).unwrap();
    assert!(proof.ids as u64 >= ANSWERS);
    assert_eq!(proof.values.values().sum::<i64>(), proof.ids as i64);
}

#[test]
fn planted_bugs_are_found() {
    for bug in [
        Bug::ForgetsIds,
        Bug::LosesIncrements,
        Bug::DoublesIncrements,
        Bug::AnswersAnew,
        Bug::HidesDuplicates,
    ] {
        assert!(outcome(bug).is_err(), "{bug:?} was not found");
    }
}
