//! The loop of one generator thread: many connections, one poll, two ways of pacing.
//!
//! Closed loop: a connection sends its next batch when the last one is answered. Open loop: batches are due at
//! fixed moments, whatever the server does, and latency counts from the moment a batch was due. So a server that
//! stalls is charged for all who would have come meanwhile.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token};

use super::connection::{Connection, Tally};
use super::target::Target;
use super::workload::{Generator, Workload};

/// Batches that may wait on one connection in the open loop. Beyond it batches are sent late (and are measured from
/// when they were due): the generator's memory stays bounded in front of a server that has stopped.
const BATCHES_IN_FLIGHT_MAX: usize = 64;

/// A server that is silent for this long with commands outstanding is taken for dead.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// `epoll` waits in whole milliseconds; below that the open loop polls without waiting, to start batches on time.
const POLL_GRANULARITY: Duration = Duration::from_millis(1);

/// Latencies are kept up to a minute with three digits.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// One thread's part of a run.
pub struct Share {
    /// Connections this thread drives.
    pub connections: usize,
    /// Operations this thread issues.
    pub operations: u64,
    /// Number of the first of them in the whole run.
    pub first_operation: u64,
    /// Commands sent together.
    pub pipeline: u32,
    /// Stop issuing after this time even if operations remain.
    pub time_limit: Option<Duration>,
    /// Operations per second of this thread in the open loop; `None` is the closed loop.
    pub rate: Option<f64>,
}

/// What one thread measured.
pub struct Outcome {
    /// Replies and their latencies.
    pub tally: Tally,
    /// When the first command was sent.
    pub started: Instant,
    /// When the last reply had come.
    pub ended: Instant,
}

/// Histogram of latencies in nanoseconds.
pub fn latency_histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3)?)
}

/// Connects, waits until all threads have, and issues the share's operations. `done` is kept current for a
/// progress line.
pub fn drive(
    target: &Target,
    workload: &Workload,
    share: &Share,
    ready: &Barrier,
    done: &AtomicU64,
) -> Result<Outcome> {
    let connected = Driver::connect(target, workload, share);
    // Also after a failure: the others must not wait for this thread.
    ready.wait();
    let mut driver = connected?;
    driver.started = Instant::now();
    driver.run(done)?;
    Ok(Outcome { tally: driver.tally, started: driver.started, ended: Instant::now() })
}

struct Driver<'a> {
    share: &'a Share,
    generator: Generator,
    connections: Vec<Connection>,
    poll: Poll,
    tally: Tally,
    started: Instant,
    /// Operations handed to a connection.
    issued: u64,
    /// Open loop: batches handed to a connection; batch `k` is due at `k * batch_interval`.
    batches_issued: u64,
}

impl<'a> Driver<'a> {
    fn connect(target: &Target, workload: &Workload, share: &'a Share) -> Result<Driver<'a>> {
        let poll = Poll::new()?;
        let mut connections = Vec::with_capacity(share.connections);
        for index in 0..share.connections {
            let mut connection = Connection::new(target.connect()?.into_nonblocking()?);
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(connection.stream_mut(), Token(index), interest)?;
            connections.push(connection);
        }
        Ok(Driver {
            share,
            generator: Generator::new(workload, share.first_operation),
            connections,
            poll,
            tally: Tally { replies: 0, errors: 0, first_error: None, latency_ns: latency_histogram()? },
            started: Instant::now(),
            issued: 0,
            batches_issued: 0,
        })
    }

    fn run(&mut self, done: &AtomicU64) -> Result<()> {
        if self.share.rate.is_none() {
            for index in 0..self.connections.len() {
                self.send_batch(index, 0)?;
            }
        }
        let mut events = Events::with_capacity(self.connections.len().max(1));
        let mut last_reply = Instant::now();
        let mut published = 0;
        loop {
            self.send_due_batches()?;
            if self.tally.replies == self.issued && self.is_all_issued() {
                return Ok(());
            }
            self.poll_for(&mut events)?;
            let replies_before = self.tally.replies;
            for event in &events {
                self.serve(event.token().0, event.is_readable(), event.is_writable())?;
            }
            if self.tally.replies > replies_before || self.tally.replies == self.issued {
                last_reply = Instant::now();
                done.fetch_add(self.tally.replies - published, Ordering::Relaxed);
                published = self.tally.replies;
            } else if last_reply.elapsed() > SILENCE_MAX {
                bail!(
                    "no reply for {} s, {} are missing",
                    SILENCE_MAX.as_secs(),
                    self.issued - self.tally.replies
                );
            }
        }
    }

    fn serve(&mut self, index: usize, readable: bool, writable: bool) -> Result<()> {
        let connection = &mut self.connections[index];
        if writable {
            connection.flush()?;
        }
        if readable {
            let started = self.started;
            connection.receive(&mut self.tally, || nanoseconds(started.elapsed()))?;
            if self.share.rate.is_none() && connection.batches_in_flight() == 0 && !self.is_all_issued() {
                self.send_batch(index, nanoseconds(self.started.elapsed()))?;
            }
        }
        Ok(())
    }

    fn is_all_issued(&self) -> bool {
        self.issued == self.share.operations
            || self.share.time_limit.is_some_and(|limit| self.started.elapsed() >= limit)
    }

    fn send_batch(&mut self, index: usize, start_ns: u64) -> Result<()> {
        let left = self.share.operations - self.issued;
        let commands = self.share.pipeline.min(u32::try_from(left).unwrap_or(u32::MAX));
        if commands == 0 {
            return Ok(());
        }
        self.issued += u64::from(commands);
        let generator = &mut self.generator;
        self.connections[index].send(start_ns, commands, |output| {
            for _ in 0..commands {
                generator.append(output);
            }
        })
    }

    /// Open loop: hands out the batches that are due, to the connections in turn.
    fn send_due_batches(&mut self) -> Result<()> {
        while let Some(due) = self.next_due() {
            let index = (self.batches_issued % self.connections.len() as u64) as usize;
            let is_full = self.connections[index].batches_in_flight() >= BATCHES_IN_FLIGHT_MAX;
            if due > self.started.elapsed() || is_full || self.is_all_issued() {
                break;
            }
            self.batches_issued += 1;
            self.send_batch(index, nanoseconds(due))?;
        }
        Ok(())
    }

    /// When the next batch of the open loop is due, from the start of the run.
    fn next_due(&self) -> Option<Duration> {
        let rate = self.share.rate?;
        Some(Duration::from_secs_f64(self.batches_issued as f64 * f64::from(self.share.pipeline) / rate))
    }

    fn poll_for(&mut self, events: &mut Events) -> Result<()> {
        let wait = match self.next_due() {
            Some(due) if !self.is_all_issued() => match due.checked_sub(self.started.elapsed()) {
                Some(wait) => wait.min(SILENCE_MAX),
                // Overdue, because its connection is full: replies will wake the poll.
                None => POLL_GRANULARITY,
            },
            _ => SILENCE_MAX,
        };
        // Rounded down to what the poll can keep: it must not sleep past the moment a batch is due.
        let timeout = POLL_GRANULARITY.saturating_mul((wait.as_nanos() / POLL_GRANULARITY.as_nanos()) as u32);
        match self.poll.poll(events, Some(timeout)) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
            other => Ok(other?),
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
