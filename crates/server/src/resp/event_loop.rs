//! One thread that serves many connections: wait, read and execute for all that are ready, settle once, write.
//!
//! ```text
//!   poll -> for every ready connection: one read; the commands of all go into one batch, executed here
//!        -> settle(newest offset any reply reveals)      one write and sync of the log for everyone
//!        -> for every connection served: one write
//! ```
//!
//! Interests are registered once and edge-triggered; a read that leaves room in the buffer has emptied the socket. So
//! a wake-up costs one poll, and one read and one write for each connection.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mio::net::TcpListener;
use mio::{Events, Poll, Token};
use quipu_counting::Unavailable;
use quipu_wire::refusal::unavailable_line;
use quipu_wire::resp::{Encoder, Pipeline};

use super::Shared;
use super::connection::{Connection, Received};
use super::inbox::Message;
use super::pressure::Pressure;
use super::round::Round;
use super::serve::Turn;
use super::slots::Slots;

/// The token of the listener; connections have smaller ones.
pub const LISTENER: Token = Token(usize::MAX);
/// The token of the listener of the Redis Cluster protocol.
pub const CLUSTER_LISTENER: Token = Token(usize::MAX - 2);
/// The token of the inbox.
pub const INBOX: Token = Token(usize::MAX - 1);

/// What one read takes at most. A connection that sends faster gets its next turn after the others.
pub(super) const READ_BYTES: usize = 64 * 1024;
/// Ready connections one wake-up serves: bounds the time until the first of them is answered.
const EVENTS_PER_WAKEUP: usize = 1024;
/// Output buffers kept for connections that become active, and the largest worth keeping.
const SPARE_BUFFERS: usize = 256;
const SPARE_BUFFER_BYTES: usize = 64 * 1024;
/// How often connections that take no replies are looked at, and accepting is tried again after a failure.
pub(super) const TICK: Duration = Duration::from_millis(250);
/// How long a stopping loop waits for replies to be taken and pending work to be done.
const DRAIN_MS: u64 = 5_000;

/// Where connections come from.
pub struct Listener {
    /// The socket.
    pub socket: TcpListener,
    /// Whether those who come speak the Redis Cluster protocol.
    pub is_of_cluster: bool,
}

/// The state of one thread.
pub struct EventLoop {
    pub(super) index: usize,
    pub(super) shared: Arc<Shared>,
    pub(super) poll: Poll,
    /// The first loop accepts for all.
    pub(super) listeners: Vec<Listener>,
    /// Whether there may be connections to accept.
    pub(super) acceptable: bool,
    /// The last attempt failed: wait before the next.
    pub(super) accept_failed: bool,
    /// The loop that gets the next connection.
    pub(super) next_loop: usize,
    pub(super) connections: Slots<Box<Connection>>,
    pipeline: Pipeline,
    round: Round,
    read_buffer: Box<[u8]>,
    spare_outputs: Vec<Vec<u8>>,
    /// Connections served in this wake-up.
    touched: Vec<Token>,
    /// Connections that have more to be served, and wait for their next turn.
    again: VecDeque<Token>,
    pub(super) pressure: Pressure,
    revealed: Option<u64>,
    commands: u64,
    pub(super) now_ms: u64,
    /// When to end at the latest, once stopping.
    pub(super) stop_at_ms: Option<u64>,
}

impl EventLoop {
    /// A loop that is ready to run.
    pub fn new(index: usize, shared: Arc<Shared>, poll: Poll, listeners: Vec<Listener>) -> EventLoop {
        let pressure = Pressure::new(shared.options.buffer_bytes_of_loop());
        EventLoop {
            index,
            shared,
            poll,
            listeners,
            acceptable: false,
            accept_failed: false,
            next_loop: 0,
            connections: Slots::default(),
            pipeline: Pipeline::new(),
            round: Round::default(),
            read_buffer: vec![0; READ_BYTES].into_boxed_slice(),
            spare_outputs: Vec::new(),
            touched: Vec::new(),
            again: VecDeque::new(),
            pressure,
            revealed: None,
            commands: 0,
            now_ms: 0,
            stop_at_ms: None,
        }
    }

    /// Serves until told to stop.
    pub fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_PER_WAKEUP);
        loop {
            match self.poll.poll(&mut events, self.timeout()) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            self.now_ms = self.shared.clock.now_ms();
            self.touch_queued();
            for event in &events {
                match event.token() {
                    LISTENER | CLUSTER_LISTENER => self.acceptable = true,
                    INBOX => {}
                    token => {
                        if let Some(connection) = self.connections.get_mut(token) {
                            connection.readable |= event.is_readable() || event.is_error();
                            connection.writable |= event.is_writable();
                            connection.ended |= event.is_read_closed() || event.is_error();
                            if !connection.queued {
                                self.touch(token);
                            }
                        }
                    }
                }
            }
            self.wake_up();
            if self.stop_at_ms.is_some_and(|at_ms| self.connections.is_empty() || self.now_ms >= at_ms) {
                return Ok(());
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.again.is_empty() || (self.acceptable && !self.accept_failed) {
            return Some(Duration::ZERO);
        }
        (self.acceptable || self.has_to_look() || self.stop_at_ms.is_some()).then_some(TICK)
    }

    fn wake_up(&mut self) {
        let to_serve = self.touched.len();
        for message in self.shared.inboxes[self.index].take() {
            self.receive_message(message);
        }
        if self.acceptable {
            self.accept();
        }
        self.pressure.begin_wakeup(to_serve);
        for at in 0..to_serve {
            self.serve(self.touched[at]);
        }
        self.turn().execute_rest();
        self.round.end_wakeup();
        self.pressure.end_turns();
        let settled = match self.revealed.take() {
            Some(offset) => self.shared.counters.settle(offset),
            None => Ok(()),
        };
        if let Err(reason) = &settled {
            tracing::error!(%reason, "replies are withheld");
        }
        for token in std::mem::take(&mut self.touched) {
            self.conclude(token, settled.as_ref().err());
        }
        self.relieve();
        if self.commands > 0 {
            self.shared.statistics.commands.fetch_add(self.commands, Ordering::Relaxed);
            self.commands = 0;
        }
    }

    /// Some of those that wait for their next turn have it now.
    fn touch_queued(&mut self) {
        let turns = self.again.len().min(self.pressure.further_turns());
        for _ in 0..turns {
            let Some(token) = self.again.pop_front() else { return };
            if let Some(connection) = self.connections.get_mut(token) {
                connection.queued = false;
                self.touch(token);
            }
        }
    }

    /// Puts a connection on the list of this wake-up, once.
    fn touch(&mut self, token: Token) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        if !connection.touched {
            connection.touched = true;
            connection.unsettled_from = connection.output.len();
            self.touched.push(token);
        }
    }

    fn receive_message(&mut self, message: Message) {
        match message {
            Message::Accepted(arrival) => self.adopt(arrival),
            Message::Finished { token, batch, result } => {
                self.resume(token, |turn, connection| turn.finish(connection, batch, result));
            }
            Message::Answered { token, reply } => {
                self.resume(token, |_, connection| Turn::answer(connection, &reply));
            }
            Message::Close(token) => {
                self.touch(token);
                if let Some(connection) = self.connections.get_mut(token) {
                    connection.closing = true;
                    // Nobody will hear the answer.
                    connection.waiting = None;
                }
            }
            Message::Look => {}
            Message::Stop => self.begin_stop(),
        }
    }

    /// What a connection waited for is there. It is sent in this wake-up, and the rest of its pipeline has a turn of its
    /// own. The connection may be gone.
    fn resume(&mut self, token: Token, answer: impl FnOnce(&mut Turn<'_>, &mut Connection)) {
        self.touch(token);
        let Some(mut connection) = self.connections.take(token) else { return };
        answer(&mut self.turn(), &mut connection);
        connection.closing |= self.stop_at_ms.is_some() && connection.waiting.is_none();
        self.connections.put_back(token, connection);
    }

    fn turn(&mut self) -> Turn<'_> {
        Turn {
            shared: &self.shared,
            event_loop: self.index,
            now_ms: self.now_ms,
            pipeline: &mut self.pipeline,
            round: &mut self.round,
            connections: &mut self.connections,
            revealed: &mut self.revealed,
            commands: &mut self.commands,
        }
    }

    /// Reads once and serves what came.
    fn serve(&mut self, token: Token) {
        let Some(mut connection) = self.connections.take(token) else { return };
        let mut buffer = std::mem::take(&mut self.read_buffer);
        let served = self.serve_with(&mut connection, token, &mut buffer);
        self.read_buffer = buffer;
        self.pressure.count(&mut connection);
        match served {
            Ok(()) => self.connections.put_back(token, connection),
            Err(error) => {
                tracing::debug!(%error, peer = %connection.session.card.peer, "a connection is lost");
                self.forget(token, &connection);
            }
        }
    }

    fn serve_with(&mut self, connection: &mut Connection, token: Token, buffer: &mut [u8]) -> io::Result<()> {
        if connection.closing || self.pressure.is_over() {
            return Ok(());
        }
        if let Some(rest) = connection.take_paused(self.shared.options.output_bytes_max) {
            self.turn().go_on(connection, token, rest);
            connection.closing |= self.stop_at_ms.is_some() && connection.waiting.is_none();
        }
        if connection.waiting.is_some() || connection.closing {
            return Ok(());
        }
        if connection.output.capacity() == 0 {
            connection.output = self.spare_outputs.pop().unwrap_or_default();
        }
        if connection.backlog {
            self.digest_input(connection, token);
        }
        if !connection.readable || connection.backlog || connection.waiting.is_some() || connection.closing {
            return Ok(());
        }
        let length = match connection.receive(&mut buffer[..self.pressure.turn_bytes()])? {
            Received::Nothing => return Ok(()),
            Received::End => {
                connection.closing = true;
                return Ok(());
            }
            Received::Bytes(length) => length,
        };
        if connection.input.is_empty() {
            let done = self.turn().digest(connection, token, &mut buffer[..length]);
            if done < length {
                connection.input.extend_from_slice(&buffer[done..length]);
            }
        } else {
            connection.input.extend_from_slice(&buffer[..length]);
            self.digest_input(connection, token);
        }
        Ok(())
    }

    fn digest_input(&mut self, connection: &mut Connection, token: Token) {
        let mut input = std::mem::take(&mut connection.input);
        let done = self.turn().digest(connection, token, &mut input);
        connection.keep_input(input, done);
    }

    /// Sends the replies of this wake-up, or what is said in their place, and decides what becomes of the connection.
    fn conclude(&mut self, token: Token, failure: Option<&Unavailable>) {
        let Some(mut connection) = self.connections.take(token) else { return };
        connection.touched = false;
        if let Some(reason) = failure {
            connection.retract();
            let protocol = connection.session.protocol;
            Encoder::new(&mut connection.output, protocol).error(unavailable_line(reason));
            connection.closing = true;
        }
        let sent = connection.send(self.now_ms);
        connection.session.publish(self.now_ms);
        self.pressure.count(&mut connection);
        let drained = connection.unsent() == 0;
        if sent.is_err() || (drained && connection.closing && !connection.is_waiting()) {
            return self.forget(token, &connection);
        }
        if drained {
            self.reclaim(&mut connection);
        } else if !connection.listed_as_blocked {
            connection.listed_as_blocked = true;
            self.pressure.blocked.push(token);
        }
        if connection.has_more_to_serve(self.shared.options.output_bytes_max) {
            connection.queued = true;
            self.again.push_back(token);
        }
        self.connections.put_back(token, connection);
    }

    /// Takes the buffer of a connection that has nothing to send.
    fn reclaim(&mut self, connection: &mut Connection) {
        let output = std::mem::take(&mut connection.output);
        if (1..=SPARE_BUFFER_BYTES).contains(&output.capacity()) && self.spare_outputs.len() < SPARE_BUFFERS {
            self.spare_outputs.push(output);
        }
    }

    /// A connection ends; dropping the socket closes it and ends its registration.
    pub(super) fn forget(&mut self, token: Token, connection: &Connection) {
        self.shared.registry.remove(connection.session.card.id);
        self.pressure.discount(connection);
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        self.connections.release(token);
    }

    /// Accepts and reads no more. What was received is answered, what is pending is waited for.
    fn begin_stop(&mut self) {
        self.listeners.clear();
        self.stop_at_ms = Some(self.now_ms + DRAIN_MS);
        for token in self.connections.tokens() {
            self.touch(token);
            if let Some(connection) = self.connections.get_mut(token)
                && connection.waiting.is_none()
            {
                connection.closing = true;
            }
        }
    }
}
