//! The loop of one generator thread: many connections, one poll, two ways of pacing.
//!
//! Closed loop: a connection sends its next batch when the last one is answered. Open loop: batches are due at
//! fixed moments, whatever the server does, and latency counts from the moment a batch was due. So a server that
//! stalls is charged for all who would have come meanwhile.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mio::event::Event;
use mio::{Events, Interest, Poll, Token};

use super::connection::{Connection, Link};
use super::tally::Tally;
use super::target::Target;
use super::timer::Timer;
use super::workload::{Generator, Workload};

/// A server that is silent for this long with commands outstanding is taken for dead.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// How long to wait for replies when a batch is overdue because its connection's window is full.
const FULL_WINDOW_WAIT: Duration = Duration::from_millis(1);

/// The timer among the connections.
const TIMER: Token = Token(usize::MAX - 1);

/// When batches are sent.
#[derive(Debug, Clone, Copy)]
pub enum Pace {
    /// When the connection's last batch is answered.
    Closed,
    /// At fixed moments.
    Open {
        /// Operations per second of this thread.
        per_second: f64,
        /// Batches that may wait on one connection. Beyond it batches are sent late (and are measured from when they
        /// were due): the generator's memory stays bounded in front of a server that has stopped.
        window: usize,
        /// Beyond the window batches are not sent at all.
        skip_late: bool,
    },
}

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
    /// Closed or open loop.
    pub pace: Pace,
    /// A closed connection is opened again instead of ending the run.
    pub keep_going: bool,
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
    target: &'a Target,
    share: &'a Share,
    generator: Generator,
    connections: Vec<Connection>,
    poll: Poll,
    timer: Timer,
    tally: Tally,
    started: Instant,
    /// Operations handed to a connection.
    issued: u64,
    /// Open loop: batches that were due and are sent or skipped; batch `k` is due at `k * pipeline / per_second`.
    batches_handled: u64,
}

impl<'a> Driver<'a> {
    fn connect(target: &'a Target, workload: &Workload, share: &'a Share) -> Result<Driver<'a>> {
        let poll = Poll::new()?;
        let mut connections = Vec::with_capacity(share.connections);
        for index in 0..share.connections {
            connections.push(open(target, &poll, index)?);
        }
        Ok(Driver {
            target,
            share,
            generator: Generator::new(workload, share.first_operation),
            connections,
            timer: Timer::new(&poll, TIMER).context("cannot make a timer")?,
            poll,
            tally: Tally::new()?,
            started: Instant::now(),
            issued: 0,
            batches_handled: 0,
        })
    }

    fn run(&mut self, done: &AtomicU64) -> Result<()> {
        if matches!(self.share.pace, Pace::Closed) {
            for index in 0..self.connections.len() {
                self.send_batch(index, 0)?;
            }
        }
        let mut events = Events::with_capacity(self.connections.len() + 1);
        let mut last_reply = Instant::now();
        let mut published = 0;
        loop {
            self.send_due_batches()?;
            if self.outstanding() == 0 && self.is_all_issued() {
                return Ok(());
            }
            self.poll_for(&mut events)?;
            let replies_before = self.tally.replies;
            for event in events.iter().filter(|event| event.token() != TIMER) {
                self.serve(event)?;
            }
            if self.tally.replies > replies_before || self.outstanding() == 0 {
                last_reply = Instant::now();
                done.fetch_add(self.tally.replies - published, Ordering::Relaxed);
                published = self.tally.replies;
            } else if last_reply.elapsed() > SILENCE_MAX {
                bail!("no reply for {} s, {} are missing", SILENCE_MAX.as_secs(), self.outstanding());
            }
        }
    }

    fn serve(&mut self, event: &Event) -> Result<()> {
        let index = event.token().0;
        let connection = &mut self.connections[index];
        let mut is_closed = event.is_read_closed();
        if event.is_writable() {
            is_closed |= connection.flush()? == Link::Closed;
        }
        // Also from a connection that was closed: its last replies may still be there.
        if event.is_readable() {
            let started = self.started;
            is_closed |=
                connection.receive(&mut self.tally, || nanoseconds(started.elapsed()))? == Link::Closed;
        }
        if is_closed {
            self.reopen(index)?;
        }
        self.continue_closed_loop(index)
    }

    /// Closed loop: the next batch, once the last one is answered.
    fn continue_closed_loop(&mut self, index: usize) -> Result<()> {
        let is_free = self.connections[index].batches_in_flight() == 0;
        if matches!(self.share.pace, Pace::Closed) && is_free && !self.is_all_issued() {
            self.send_batch(index, nanoseconds(self.started.elapsed()))?;
        }
        Ok(())
    }

    /// The server closed a connection: the end of a run that does not want that, a count in one that does.
    fn reopen(&mut self, index: usize) -> Result<()> {
        if !self.share.keep_going {
            bail!("the server closed a connection");
        }
        self.tally.closed_connections += 1;
        self.tally.unanswered += self.connections[index].replies_in_flight();
        // Dropping the old stream takes it out of the poll.
        self.connections[index] = open(self.target, &self.poll, index)?;
        Ok(())
    }

    /// Operations that have neither a reply nor lost their connection.
    fn outstanding(&self) -> u64 {
        self.issued - self.tally.replies - self.tally.unanswered
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
        // Should the connection be closed by now, an event will say so.
        self.connections[index].send(start_ns, commands, |output| {
            for _ in 0..commands {
                generator.append(output);
            }
        })?;
        Ok(())
    }

    /// Open loop: hands out the batches that are due, to the connections in turn.
    fn send_due_batches(&mut self) -> Result<()> {
        let Pace::Open { window, skip_late, .. } = self.share.pace else { return Ok(()) };
        let mut full_connections = 0;
        while let Some(due) = self.next_due() {
            let now = self.started.elapsed();
            if due > now || self.is_all_issued() {
                break;
            }
            let index = (self.batches_handled % self.connections.len() as u64) as usize;
            if self.connections[index].batches_in_flight() < window {
                full_connections = 0;
                self.tally.send_delay_ns.saturating_record(nanoseconds(now - due));
                self.batches_handled += 1;
                self.send_batch(index, nanoseconds(due))?;
            } else if !skip_late {
                break;
            } else if full_connections < self.connections.len() {
                full_connections += 1;
                self.skip_batches(1);
            } else {
                // All are full: whatever is due by now has no place, and counting it one by one could take longer
                // than it takes to become due.
                let due_by_now = (now.as_secs_f64() * self.batches_handled as f64 / due.as_secs_f64()) as u64;
                self.skip_batches(due_by_now.saturating_sub(self.batches_handled).max(1));
                break;
            }
        }
        Ok(())
    }

    fn skip_batches(&mut self, batches: u64) {
        self.batches_handled += batches;
        self.tally.skipped += batches * u64::from(self.share.pipeline);
    }

    /// When the next batch of the open loop is due, from the start of the run.
    fn next_due(&self) -> Option<Duration> {
        let Pace::Open { per_second, .. } = self.share.pace else { return None };
        let seconds = self.batches_handled as f64 * f64::from(self.share.pipeline) / per_second;
        // A rate so low that its next batch is beyond the clock's end is a batch that never comes.
        Duration::try_from_secs_f64(seconds).ok()
    }

    fn poll_for(&mut self, events: &mut Events) -> Result<()> {
        let timeout = match self.next_due() {
            Some(due) if !self.is_all_issued() => match due.checked_sub(self.started.elapsed()) {
                Some(wait) => {
                    self.timer.set(wait)?;
                    SILENCE_MAX
                }
                // Overdue: its connection is full, and replies will wake the poll.
                None => FULL_WINDOW_WAIT,
            },
            _ => SILENCE_MAX,
        };
        match self.poll.poll(events, Some(timeout)) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
            other => Ok(other?),
        }
    }
}

fn open(target: &Target, poll: &Poll, index: usize) -> Result<Connection> {
    let mut connection = Connection::new(target.connect()?.into_nonblocking()?, target.protocol);
    let interest = Interest::READABLE | Interest::WRITABLE;
    poll.registry().register(connection.stream_mut(), Token(index), interest)?;
    Ok(connection)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
