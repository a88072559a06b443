//! One connection of the generator: bytes out, replies in, and the batches that wait for them.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use mio::net::TcpStream;
use quipu_wire::resp::reply::ReplyScanner;

/// Room for replies at the start; a pipeline of 256 small replies fits many times. It grows when one reply does not fit.
const INPUT_BYTES: usize = 64 * 1024;

/// No reply of any load comes near this; a server that sends more is broken, and memory is bounded.
const INPUT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A pipeline of commands that was, or should have been, sent at one moment.
struct Batch {
    /// Nanoseconds from the start of the run to the intended start of the batch.
    start_ns: u64,
    /// Replies still to come.
    remaining: u32,
}

/// What came back, over all connections of a thread.
pub struct Tally {
    /// Replies, errors included.
    pub replies: u64,
    /// Error replies.
    pub errors: u64,
    /// Text of the first error reply.
    pub first_error: Option<String>,
    /// Nanoseconds from the intended start of a batch to each of its replies.
    pub latency_ns: Histogram<u64>,
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
    scanner: ReplyScanner,
    /// Oldest first; replies come in the order of commands.
    batches: VecDeque<Batch>,
}

impl Connection {
    /// Takes over a stream that is connected, logged in and non-blocking.
    pub fn new(stream: TcpStream) -> Connection {
        Connection {
            stream,
            output: Vec::new(),
            written: 0,
            input: vec![0; INPUT_BYTES],
            filled: 0,
            scanner: ReplyScanner::default(),
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

    /// Adds a batch of `commands` commands, which `append` writes, and sends what the kernel takes.
    pub fn send(&mut self, start_ns: u64, commands: u32, append: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        append(&mut self.output);
        self.batches.push_back(Batch { start_ns, remaining: commands });
        self.flush()
    }

    /// Writes until everything is out or the kernel's buffer is full; readiness then continues it.
    pub fn flush(&mut self) -> Result<()> {
        while self.written < self.output.len() {
            match self.stream.write(&self.output[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("cannot write to the server"),
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(())
    }

    /// Reads what has arrived and counts it. `now_ns` is asked once for everything that one read gave.
    pub fn receive(&mut self, tally: &mut Tally, now_ns: impl Fn() -> u64) -> Result<()> {
        loop {
            if self.filled == self.input.len() {
                if self.input.len() >= INPUT_BYTES_MAX {
                    bail!("the server sent a reply of more than {INPUT_BYTES_MAX} bytes");
                }
                self.input.resize(self.input.len() * 2, 0);
            }
            let room = self.input.len() - self.filled;
            match self.stream.read(&mut self.input[self.filled..]) {
                Ok(0) => bail!("the server closed a connection"),
                Ok(count) => {
                    self.filled += count;
                    self.count_replies(tally, now_ns())?;
                    // A short read means the socket is drained; the next bytes bring a new event. (epoll(7) on
                    // edges.) It saves one system call per batch.
                    if count < room {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("cannot read from the server"),
            }
        }
    }

    fn count_replies(&mut self, tally: &mut Tally, now_ns: u64) -> Result<()> {
        let mut position = 0;
        let mut replies: u64 = 0;
        while let Some(length) = self
            .scanner
            .scan(&self.input[position..self.filled])
            .context("the server does not speak the Redis protocol")?
        {
            let reply = &self.input[position..position + length];
            if reply.first() == Some(&b'-') {
                tally.errors += 1;
                tally
                    .first_error
                    .get_or_insert_with(|| String::from_utf8_lossy(&reply[1..]).trim_end().to_string());
            }
            replies += 1;
            position += length;
        }
        self.input.copy_within(position..self.filled, 0);
        self.filled -= position;
        tally.replies += replies;
        self.settle(tally, now_ns, replies)
    }

    /// Takes `replies` off the oldest batches and records how long they took.
    fn settle(&mut self, tally: &mut Tally, now_ns: u64, mut replies: u64) -> Result<()> {
        while replies > 0 {
            let Some(batch) = self.batches.front_mut() else {
                bail!("the server sent a reply that nobody asked for");
            };
            let taken = replies.min(u64::from(batch.remaining));
            tally.latency_ns.saturating_record_n(now_ns.saturating_sub(batch.start_ns), taken);
            batch.remaining -= taken as u32;
            replies -= taken;
            if batch.remaining == 0 {
                self.batches.pop_front();
            }
        }
        Ok(())
    }
}
