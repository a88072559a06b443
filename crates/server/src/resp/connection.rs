//! One socket with its buffers. Bytes go in and out here; what they mean is decided elsewhere.

use std::io::{self, ErrorKind, Read, Write};

use mio::net::TcpStream;
use quipu_wire::resp::{Decoder, Limits, Pipeline, ProtocolError};

use super::plan::Draft;
use super::session::Session;

/// A connection. An idle one owns no buffers: they are lent by its loop.
#[derive(Debug)]
pub struct Connection {
    socket: TcpStream,
    /// How far an unfinished command was read.
    pub decoder: Decoder,
    /// Received and not yet understood: an unfinished command, or what came behind a command that is waited for.
    pub input: Vec<u8>,
    /// Replies. Everything in it at the beginning of a wake-up may be sent.
    pub output: Vec<u8>,
    /// How much of `output` was sent.
    written: usize,
    /// Where the replies of this wake-up begin in `output`: what lies behind may not be sent before it is settled.
    pub unsettled_from: usize,
    /// What was agreed on.
    pub session: Session,
    /// What the connection waits for; until then nothing is read from it.
    pub waiting: Option<Waiting>,
    /// These bytes are no commands: to be said after the replies to the commands before them.
    pub protocol_error: Option<ProtocolError>,
    /// The socket may have something to read.
    pub readable: bool,
    /// The socket may take something.
    pub writable: bool,
    /// The other end will send no more: read to the end, which no further event will announce.
    pub ended: bool,
    /// `input` holds complete commands.
    pub backlog: bool,
    /// Nothing more is served; the connection ends when `output` is sent.
    pub closing: bool,
    /// Already in the list of connections of this wake-up.
    pub touched: bool,
    /// Already in the queue for a further turn.
    pub queued: bool,
    /// Since when the other end has taken nothing of what waits for it.
    pub blocked_since_ms: Option<u64>,
    /// Already in the loop's list of blocked connections.
    pub listed_as_blocked: bool,
    /// How much of the buffers is counted in the total of its loop.
    pub counted_bytes: usize,
}

/// A buffer that is mostly empty gives memory back if it holds more than this.
const RETAINED_BYTES: usize = 128 * 1024;

/// The middle of a pipeline, kept until a batch or a job is done.
#[derive(Debug, Default)]
pub struct Waiting {
    /// The commands, at the head of the connection's `input`.
    pub pipeline: Pipeline,
    /// How many bytes of `input` they take.
    pub taken: usize,
    /// The first command that is not in the draft yet.
    pub next: usize,
    /// How the batch that is being finished will be answered. The batch itself is away.
    pub draft: Draft,
    /// When it was begun.
    pub now_ms: u64,
    /// The reply of the job is not wanted.
    pub muted: bool,
    /// Nothing is waited for but the connection's next turn.
    pub paused: bool,
}

/// What a read gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// The other end is gone.
    End,
}

impl Connection {
    /// A connection that was just accepted.
    pub fn new(socket: TcpStream, session: Session, limits: Limits) -> Connection {
        Connection {
            socket,
            decoder: Decoder::new(limits),
            input: Vec::new(),
            output: Vec::new(),
            written: 0,
            unsettled_from: 0,
            session,
            waiting: None,
            protocol_error: None,
            readable: false,
            writable: true,
            ended: false,
            backlog: false,
            closing: false,
            touched: false,
            queued: false,
            blocked_since_ms: None,
            listed_as_blocked: false,
            counted_bytes: 0,
        }
    }

    /// The socket, for registration.
    pub fn socket_mut(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// Bytes that wait for the other end.
    pub fn unsent(&self) -> usize {
        self.output.len() - self.written
    }

    /// Whether something is done for it elsewhere.
    pub fn is_waiting(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| !waiting.paused)
    }

    /// Whether it would be served without further events: it has something to serve, and room for the replies.
    pub fn has_more_to_serve(&self, output_bytes_max: usize) -> bool {
        let has_more = match &self.waiting {
            Some(waiting) => waiting.paused,
            None => self.readable || self.backlog,
        };
        has_more && !self.closing && self.unsent() <= output_bytes_max
    }

    /// The rest of a pipeline that was interrupted for others, if there is one and room for its replies.
    pub fn take_paused(&mut self, output_bytes_max: usize) -> Option<Waiting> {
        let has_room = self.unsent() <= output_bytes_max;
        self.waiting.take_if(|waiting| waiting.paused && has_room)
    }

    /// Leaves the rest of a pipeline to the next turn, if there is a rest.
    pub fn pause(&mut self, rest: Waiting) {
        let is_last = rest.next == rest.pipeline.len() && self.input.len() == rest.taken;
        if is_last && self.protocol_error.is_none() {
            self.input = Vec::new();
        } else {
            self.waiting = Some(Waiting { paused: true, draft: Draft::default(), ..rest });
        }
    }

    /// Keeps what is not `done` of its input.
    pub fn keep_input(&mut self, mut input: Vec<u8>, done: usize) {
        let_go(&mut input, done);
        if !input.is_empty() {
            self.input = input;
        }
    }

    /// Reads once. A read that leaves room in `buffer` has emptied the socket, so no second one is needed to learn
    /// that there is nothing more.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Received> {
        match self.socket.read(buffer) {
            Ok(0) => Ok(Received::End),
            Ok(length) => {
                self.readable = length == buffer.len() || self.ended;
                Ok(Received::Bytes(length))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(Received::Nothing)
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Received::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Sends what the socket takes. Only called when everything in `output` may be sent.
    pub fn send(&mut self, now_ms: u64) -> io::Result<()> {
        while self.writable && self.unsent() > 0 {
            match self.socket.write(&self.output[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(length) => {
                    // A short write is followed by one that would block: that one arms the event.
                    self.written += length;
                    self.blocked_since_ms = None;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.written > 0 && self.written >= self.output.len() / 2 && self.unsent() > 0 {
            // What was sent is let go of also when the rest never is all sent.
            let_go(&mut self.output, self.written);
            self.written = 0;
        }
        if self.unsent() == 0 {
            self.output.clear();
            self.written = 0;
            self.blocked_since_ms = None;
        } else if self.blocked_since_ms.is_none() {
            self.blocked_since_ms = Some(now_ms);
        }
        Ok(())
    }

    /// Takes back the replies of this wake-up, because they may never be sent.
    pub fn retract(&mut self) {
        self.output.truncate(self.unsettled_from.max(self.written));
    }
}

/// Forgets the beginning of a buffer, and does not keep the memory of a large one for the little that is left.
fn let_go(buffer: &mut Vec<u8>, length: usize) {
    buffer.drain(..length);
    if buffer.capacity() > RETAINED_BYTES && buffer.len() < buffer.capacity() / 4 {
        buffer.shrink_to(buffer.len() * 2);
    }
}
