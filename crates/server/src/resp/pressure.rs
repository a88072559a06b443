//! What connections may take of a loop's memory and time, and what becomes of those that take more.
//!
//! | what | bound | at the bound |
//! |---|---|---|
//! | bytes read in a wake-up | [`WAKEUP_BYTES`], shared by the connections that are ready | the rest waits in the sockets, and then at the other ends |
//! | connections with a further turn in it | as many as that is enough for | the others wait for theirs in a queue |
//! | replies made in one turn | [`TURN_OUTPUT_BYTES`] | the turn ends, others have theirs, the pipeline goes on after that |
//! | replies a connection does not take | `output_bytes_max` | nothing more is read from it until it does |
//! | how long it takes none | `stalled_ms` | it is closed |
//! | buffers of all connections | `buffer_bytes_max` | those that hold most are closed |
//! | time without a command | `idle_ms`, if set | it is closed |
//!
//! Commands that find everything in memory are never refused: a refusal costs as much as the answer. Their queue is the
//! sockets, which have a bound of their own.

use std::cmp::Reverse;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mio::Token;

use super::connection::Connection;
use super::event_loop::{EventLoop, READ_BYTES, TICK};

/// What a wake-up reads from all connections together, at most and at least. Between them it is what takes about
/// [`WAKEUP_TARGET`]: commands differ a hundredfold in what they cost.
const WAKEUP_BYTES: RangeInclusive<usize> = 64 * 1024..=1024 * 1024;
/// A client with one command waits so long behind those that send without end.
const WAKEUP_TARGET: Duration = Duration::from_millis(10);
/// What a connection may read even so: a read should be worth its system call.
const TURN_BYTES_MIN: usize = 4 * 1024;
/// Replies made in one turn, counted when a draft is full: a pipeline of CLIENT LIST must not become gigabytes before the
/// first of it is sent.
const TURN_OUTPUT_BYTES: usize = 1024 * 1024;
/// How often connections are looked at that may have been idle for too long.
const IDLE_TICK_MS: u64 = 1_000;
/// Those who are closed come back at once; the log need not tell of each.
const COMPLAINT_PAUSE_MS: u64 = 10_000;

/// What a loop knows of its connections' demands.
#[derive(Debug)]
pub struct Pressure {
    /// What the connections of this loop hold in their buffers.
    held_bytes: usize,
    /// How much of that is in the total of all loops.
    published_bytes: usize,
    /// The share of this loop in what all may hold.
    held_bytes_max: usize,
    /// What a wake-up may read.
    wakeup_bytes: usize,
    /// What one connection may read in this wake-up.
    turn_bytes: usize,
    /// When this wake-up began, if it is worth knowing.
    began_at: Option<Instant>,
    /// Connections whose replies are not taken.
    pub blocked: Vec<Token>,
    /// When to look at them again.
    look_at_blocked_ms: u64,
    /// When to look for idle ones again.
    look_for_idle_ms: u64,
    /// When to say again that buffers are full.
    complain_at_ms: u64,
}

/// Connections that were closed because they took too much, by what they took.
#[derive(Debug, Default)]
pub struct Closed {
    /// Memory: buffers were full, and they held most of them.
    pub for_memory: AtomicU64,
    /// They did not take their replies.
    pub stalled: AtomicU64,
    /// They sent nothing for longer than allowed.
    pub idle: AtomicU64,
}

impl Pressure {
    /// For a loop that may let its connections hold so much.
    pub fn new(held_bytes_max: usize) -> Pressure {
        Pressure {
            held_bytes: 0,
            published_bytes: 0,
            held_bytes_max,
            wakeup_bytes: *WAKEUP_BYTES.end(),
            turn_bytes: READ_BYTES,
            began_at: None,
            blocked: Vec::new(),
            look_at_blocked_ms: 0,
            look_for_idle_ms: 0,
            complain_at_ms: 0,
        }
    }

    /// How many of those that always have more to be served have a turn in the next wake-up. Who sends a command now and
    /// then is served in every wake-up.
    pub fn further_turns(&self) -> usize {
        self.wakeup_bytes / TURN_BYTES_MIN
    }

    /// A wake-up begins that serves so many connections.
    #[inline]
    pub fn begin_wakeup(&mut self, connections: usize) {
        self.turn_bytes = (self.wakeup_bytes / connections.max(1)).clamp(TURN_BYTES_MIN, READ_BYTES);
        self.began_at = (self.turn_bytes < READ_BYTES).then(Instant::now);
    }

    /// All have had their turn: the next wake-up may read more or less.
    #[inline]
    pub fn end_turns(&mut self) {
        let Some(began_at) = self.began_at else { return };
        let took = began_at.elapsed();
        if took > WAKEUP_TARGET {
            self.wakeup_bytes = (self.wakeup_bytes / 2).max(*WAKEUP_BYTES.start());
        } else if took < WAKEUP_TARGET / 2 {
            self.wakeup_bytes = (self.wakeup_bytes * 2).min(*WAKEUP_BYTES.end());
        }
    }

    /// What one connection may read now.
    #[inline]
    pub fn turn_bytes(&self) -> usize {
        self.turn_bytes
    }

    /// Whether nothing more may be read before somebody gives memory back.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.held_bytes > self.held_bytes_max
    }

    /// Keeps the total of all buffers.
    #[inline]
    pub fn count(&mut self, connection: &mut Connection) {
        let bytes = connection.held_bytes();
        self.held_bytes = self.held_bytes - connection.counted_bytes + bytes;
        connection.counted_bytes = bytes;
    }

    /// A connection is gone.
    pub fn discount(&mut self, connection: &Connection) {
        self.held_bytes -= connection.counted_bytes;
    }
}

impl Connection {
    /// Whether this wake-up made so many replies that others should have their turn first.
    pub fn has_had_its_turn(&self) -> bool {
        self.output.len().saturating_sub(self.unsettled_from) > TURN_OUTPUT_BYTES
    }

    /// What it takes of the memory for buffers.
    #[inline]
    fn held_bytes(&self) -> usize {
        let queued = self.session.transaction.as_ref().map_or(0, |transaction| transaction.frames.len());
        let staged = self.session.staged.as_ref().map_or(0, |staged| staged.held_bytes());
        self.output.len() + self.input.len() + queued + staged + self.session.watched.held_bytes()
    }
}

impl EventLoop {
    /// Closes those that may not go on, at the end of a wake-up.
    pub(super) fn relieve(&mut self) {
        if self.pressure.is_over() {
            self.close_largest();
        }
        if !self.pressure.blocked.is_empty() && self.now_ms >= self.pressure.look_at_blocked_ms {
            self.close_stalled();
        }
        let idle_ms = self.shared.idle_ms.load(Ordering::Relaxed);
        if idle_ms > 0 && self.now_ms >= self.pressure.look_for_idle_ms {
            self.close_idle(idle_ms);
        }
        let Pressure { held_bytes, published_bytes, .. } = &mut self.pressure;
        if held_bytes != published_bytes {
            let total = &self.shared.buffered_bytes;
            // One of them is nothing.
            total.fetch_add(held_bytes.saturating_sub(*published_bytes), Ordering::Relaxed);
            total.fetch_sub(published_bytes.saturating_sub(*held_bytes), Ordering::Relaxed);
            *published_bytes = *held_bytes;
        }
    }

    /// Whether connections must be looked at although nothing happens.
    pub(super) fn has_to_look(&self) -> bool {
        !self.pressure.blocked.is_empty() || self.shared.idle_ms.load(Ordering::Relaxed) > 0
    }

    /// Replies of healthy connections are sent by now, so what is held is held by those that do not take theirs, or do
    /// not end their commands. Memory belongs to counters.
    fn close_largest(&mut self) {
        let mut holders: Vec<(usize, Token)> = Vec::new();
        for token in self.connections.tokens() {
            if let Some(connection) = self.connections.get_mut(token) {
                holders.push((connection.counted_bytes, token));
            }
        }
        holders.sort_unstable_by_key(|(bytes, _)| Reverse(*bytes));
        for (_, token) in holders {
            if !self.pressure.is_over() {
                break;
            }
            self.shared.statistics.closed.for_memory.fetch_add(1, Ordering::Relaxed);
            self.drop_connection(token);
        }
        if self.now_ms >= self.pressure.complain_at_ms {
            self.pressure.complain_at_ms = self.now_ms + COMPLAINT_PAUSE_MS;
            let closed = self.shared.statistics.closed.for_memory.load(Ordering::Relaxed);
            tracing::warn!(
                closed,
                "buffers are full: connections that do not take their replies or end their commands are closed"
            );
        }
    }

    /// Closes connections that do not take their replies. Memory must not wait for them for ever.
    fn close_stalled(&mut self) {
        let (now_ms, stalled_ms) = (self.now_ms, self.shared.options.stalled_ms);
        self.pressure.look_at_blocked_ms = now_ms + TICK.as_millis() as u64;
        for token in std::mem::take(&mut self.pressure.blocked) {
            let Some(connection) = self.connections.get_mut(token) else { continue };
            match connection.blocked_since_ms {
                Some(since_ms) if now_ms.saturating_sub(since_ms) >= stalled_ms => {
                    tracing::info!(peer = %connection.session.card.peer, "closed: it does not take its replies");
                    self.shared.statistics.closed.stalled.fetch_add(1, Ordering::Relaxed);
                    self.drop_connection(token);
                }
                Some(_) => self.pressure.blocked.push(token),
                None => connection.listed_as_blocked = false,
            }
        }
    }

    /// Closes connections that have sent nothing for so long. One that waits for its reply is not idle.
    fn close_idle(&mut self, idle_ms: u64) {
        self.pressure.look_for_idle_ms = self.now_ms + IDLE_TICK_MS;
        for token in self.connections.tokens() {
            let Some(connection) = self.connections.get_mut(token) else { continue };
            let last_active_ms = connection.session.card.profile.lock().last_active_ms;
            if !connection.is_waiting() && self.now_ms.saturating_sub(last_active_ms) >= idle_ms {
                self.shared.statistics.closed.idle.fetch_add(1, Ordering::Relaxed);
                self.drop_connection(token);
            }
        }
    }

    fn drop_connection(&mut self, token: Token) {
        if let Some(connection) = self.connections.take(token) {
            self.forget(token, &connection);
        }
    }
}
