//! A client of server-sent events over a plain socket: what a browser would hear.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// How long a test waits for the next event before it has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// What it is.
    pub name: String,
    /// By which a client says that it has heard it.
    pub id: Option<String>,
    /// What it says.
    pub data: Value,
}

impl Event {
    /// `key=value`, `key gone`, or the name of the event.
    pub fn text(&self) -> String {
        let key = self.data["counterKey"].as_str().unwrap_or_default();
        match (self.name.as_str(), self.data["exists"].as_bool()) {
            ("change", Some(true)) => format!("{key}={}", self.data["value"]),
            ("change", _) => format!("{key} gone"),
            (name, _) => name.to_owned(),
        }
    }
}

/// The events of one connection.
pub struct Events {
    lines: BufReader<Chunks>,
    /// The head of the reply.
    pub head: String,
}

impl Events {
    /// Asks for `/api/v1/watch?{query}`.
    pub fn open(address: SocketAddr, query: &str) -> Events {
        Events::resume(address, query, None)
    }

    /// The same for one that has heard something before.
    pub fn resume(address: SocketAddr, query: &str, last_event_id: Option<&str>) -> Events {
        Events::over(TcpStream::connect(address).expect("the server listens"), query, last_event_id)
    }

    /// The same on a connection that is there already.
    pub fn over(mut stream: TcpStream, query: &str, last_event_id: Option<&str>) -> Events {
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket has timeouts");
        let last = last_event_id.map(|id| format!("Last-Event-ID: {id}\r\n")).unwrap_or_default();
        let request = format!(
            "GET /api/v1/watch?{query} HTTP/1.1\r\nHost: quipu\r\nAccept: text/event-stream\r\n{last}\r\n"
        );
        stream.write_all(request.as_bytes()).expect("the server reads");
        let mut lines = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(lines.read_line(&mut head).expect("a head"), 0, "{head}");
        }
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(head.contains("content-type: text/event-stream\r\n"), "{head}");
        Events { lines: BufReader::new(Chunks { stream: lines, left: 0, is_over: false }), head }
    }

    /// The next event; `None` behind the last of a stream that was ended in order.
    pub fn next(&mut self) -> Option<Event> {
        let (mut name, mut id, mut data) = (String::new(), None, String::new());
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line).expect("the stream goes on, or ends in order") == 0 {
                return None;
            }
            match line.trim_end_matches('\n').split_once(": ") {
                Some(("event", value)) => name = value.to_owned(),
                Some(("id", value)) => id = Some(value.to_owned()),
                Some(("data", value)) => data.push_str(value),
                _ if line == "\n" && !name.is_empty() => {
                    let data = serde_json::from_str(&data).expect("data is JSON");
                    return Some(Event { name, id, data });
                }
                _ => {}
            }
        }
    }

    /// Events up to the first of which this is the text.
    pub fn until(&mut self, text: &str) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let next = self.next().unwrap_or_else(|| panic!("{text:?} did not come: {events:?}"));
            let is_it = next.text() == text;
            events.push(next);
            if is_it {
                return events;
            }
        }
    }

    /// The texts of events up to the first of which this is it.
    pub fn texts_until(&mut self, text: &str) -> Vec<String> {
        self.until(text).iter().map(Event::text).collect()
    }
}

/// What is in the chunks of a body.
struct Chunks {
    stream: BufReader<TcpStream>,
    left: usize,
    is_over: bool,
}

impl Read for Chunks {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.is_over {
            return Ok(0);
        }
        if self.left == 0 {
            let mut size = String::new();
            if self.stream.read_line(&mut size)? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            self.left = usize::from_str_radix(size.trim_end(), 16).map_err(std::io::Error::other)?;
            if self.left == 0 {
                self.is_over = true;
                return Ok(0);
            }
        }
        let wanted = buffer.len().min(self.left);
        let count = self.stream.read(&mut buffer[..wanted])?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= count;
        if self.left == 0 {
            self.stream.read_exact(&mut [0; 2])?;
        }
        Ok(count)
    }
}
