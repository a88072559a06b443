//! One connection of the generator: bytes out, replies in, and the batches that wait for them.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Read, Write};

use anyhow::{Context, Result, bail};
use mio::net::TcpStream;
use quipu_wire::resp::reply::ReplyScanner;

use super::http::ResponseScanner;
use super::tally::Tally;
use super::target::Protocol;

/// Room for replies at the start; a pipeline of 256 small replies fits many times, and thousands of connections fit
/// into memory. It grows when one reply does not fit.
const INPUT_BYTES: usize = 16 * 1024;

/// No reply of any load comes near this; a server that sends more is broken, and memory is bounded.
const INPUT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A pipeline of commands that was, or should have been, sent at one moment.
struct Batch {
    /// Nanoseconds from the start of the run to the intended start of the batch.
    start_ns: u64,
    /// Replies still to come.
    remaining: u32,
}

/// Whether the server is still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// Yes.
    Open,
    /// It closed or reset the connection.
    Closed,
}

/// A connection that is driven by readiness.
pub struct Connection {
    stream: TcpStream,
    output: Vec<u8>,
    /// Bytes of `output` that the kernel has taken.
    written: usize,
    input: Vec<u8>,
    /// Bytes of `input` that hold replies not yet counted.
    filled: usize,
    /// How far the incomplete reply at the head of `input` has been read.
    scanner: Scanner,
    /// Oldest first; replies come in the order of commands.
    batches: VecDeque<Batch>,
}

impl Connection {
    /// Takes over a stream that is connected, logged in and non-blocking.
    pub fn new(stream: TcpStream, protocol: Protocol) -> Connection {
        Connection {
            stream,
            output: Vec::new(),
            written: 0,
            input: vec![0; INPUT_BYTES],
            filled: 0,
            scanner: match protocol {
                Protocol::Resp => Scanner::Resp(ReplyScanner::default()),
                Protocol::Http => Scanner::Http(ResponseScanner::default()),
            },
            batches: VecDeque::new(),
        }
    }

    /// The stream, for registering it.
    pub fn stream_mut(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// How many batches wait for replies.
    pub fn batches_in_flight(&self) -> usize {
        self.batches.len()
    }

    /// Replies still to come.
    pub fn replies_in_flight(&self) -> u64 {
        self.batches.iter().map(|batch| u64::from(batch.remaining)).sum()
    }

    /// Adds a batch of `commands` commands, which `append` writes, and sends what the kernel takes.
    pub fn send(&mut self, start_ns: u64, commands: u32, append: impl FnOnce(&mut Vec<u8>)) -> Result<Link> {
        append(&mut self.output);
        self.batches.push_back(Batch { start_ns, remaining: commands });
        self.flush()
    }

    /// Writes until everything is out or the kernel's buffer is full; readiness then continues it.
    pub fn flush(&mut self) -> Result<Link> {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Link::Open),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if is_closed(&error) => return Ok(Link::Closed),
                Err(error) => return Err(error).context("cannot write to the server"),
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(Link::Open)
    }

    /// Reads what has arrived and counts it. `now_ns` is asked once for everything that one read gave.
    pub fn receive(&mut self, tally: &mut Tally, now_ns: impl Fn() -> u64) -> Result<Link> {
        loop {
            if self.filled == self.input.len() {
                if self.input.len() >= INPUT_BYTES_MAX {
                    bail!("the server sent a reply of more than {INPUT_BYTES_MAX} bytes");
                }
                self.input.resize(self.input.len() * 2, 0);
            }
            let room = self.input.len() - self.filled;
            match self.stream.read(&mut self.input[self.filled..]) {
                Ok(0) => return Ok(Link::Closed),
                Ok(count) => {
                    self.filled += count;
                    self.count_replies(tally, now_ns())?;
                    // A short read means the socket is drained; the next bytes bring a new event. (epoll(7) on
                    // edges.) It saves one system call per batch.
                    if count < room {
                        return Ok(Link::Open);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Link::Open),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if is_closed(&error) => return Ok(Link::Closed),
                Err(error) => return Err(error).context("cannot read from the server"),
            }
        }
    }

    fn count_replies(&mut self, tally: &mut Tally, now_ns: u64) -> Result<()> {
        let mut position = 0;
        let (mut good, mut errors) = (0, 0);
        while let Some((length, is_error)) = self.scanner.scan(&self.input[position..self.filled])? {
            if is_error {
                // Replies are settled in runs of one kind: the latency of a refusal is not the latency of an answer.
                self.settle(tally, now_ns, std::mem::take(&mut good), false)?;
                let (code, text) = self.scanner.error(&self.input[position..position + length]);
                tally.note_error(code, text);
                errors += 1;
            } else {
                self.settle(tally, now_ns, std::mem::take(&mut errors), true)?;
                good += 1;
            }
            position += length;
        }
        self.settle(tally, now_ns, good, false)?;
        self.settle(tally, now_ns, errors, true)?;
        tally.reply_bytes += position as u64;
        self.input.copy_within(position..self.filled, 0);
        self.filled -= position;
        Ok(())
    }

    /// Takes `replies` off the oldest batches and records how long they took.
    fn settle(&mut self, tally: &mut Tally, now_ns: u64, mut replies: u64, are_errors: bool) -> Result<()> {
        while replies > 0 {
            let Some(batch) = self.batches.front_mut() else {
                bail!("the server sent a reply that nobody asked for");
            };
            let taken = replies.min(u64::from(batch.remaining));
            tally.note_replies(taken, now_ns.saturating_sub(batch.start_ns), are_errors);
            batch.remaining -= taken as u32;
            replies -= taken;
            if batch.remaining == 0 {
                self.batches.pop_front();
            }
        }
        Ok(())
    }
}

fn is_closed(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted | ErrorKind::BrokenPipe)
}

/// Finds where replies end, in the protocol of the connection.
enum Scanner {
    Resp(ReplyScanner),
    Http(ResponseScanner),
}

impl Scanner {
    /// The length of the reply at the start of `input`, if it is all there, and whether it is an error.
    fn scan(&mut self, input: &[u8]) -> Result<Option<(usize, bool)>> {
        Ok(match self {
            Scanner::Resp(scanner) => scanner
                .scan(input)
                .context("the server does not speak the Redis protocol")?
                .map(|length| (length, input.first() == Some(&b'-'))),
            Scanner::Http(scanner) => scanner
                .scan(input)
                .context("the server does not speak HTTP as expected")?
                .map(|response| (response.length, response.status >= 300)),
        })
    }

    /// What kind of error a reply is, and its text: `BUSY` and `BUSY come back later`, or `503` and the whole response.
    fn error<'a>(&self, reply: &'a [u8]) -> (&'a str, &'a str) {
        let text = std::str::from_utf8(reply).unwrap_or("not text").trim_end();
        let text = match self {
            Scanner::Resp(_) => text.trim_start_matches('-'),
            Scanner::Http(_) => text.split_once(' ').map_or(text, |(_version, rest)| rest),
        };
        (text.split_whitespace().next().unwrap_or_default(), text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_a_code_and_a_text() {
        let resp = Scanner::Resp(ReplyScanner::default());
        assert_eq!(resp.error(b"-BUSY come back\r\n"), ("BUSY", "BUSY come back"));
        let http = Scanner::Http(ResponseScanner::default());
        let (code, text) = http.error(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}");
        assert_eq!(code, "503");
        assert!(text.starts_with("503 Service Unavailable\r\n"), "{text}");
    }
}
