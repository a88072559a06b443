//! How other threads reach an event loop.

use std::net::SocketAddr;

use mio::net::TcpStream;
use mio::{Token, Waker};
use parking_lot::Mutex;
use quipu_counting::{Batch, Unavailable};

/// A connection that was accepted.
#[derive(Debug)]
pub struct Arrival {
    /// The socket.
    pub socket: TcpStream,
    /// The other end.
    pub peer: SocketAddr,
    /// Whether it came to the port of the Redis Cluster protocol.
    pub is_of_cluster: bool,
}

/// Everything another thread can tell an event loop. At most one finished piece of work per connection is under way, and
/// connections are limited, so the inbox is bounded.
#[derive(Debug)]
pub enum Message {
    /// A connection to serve.
    Accepted(Arrival),
    /// A batch that was pending has run.
    Finished {
        /// The connection that waits for it.
        token: Token,
        /// With its replies.
        batch: Batch,
        /// The offset the replies reveal.
        result: Result<u64, Unavailable>,
    },
    /// A job of the background is done.
    Answered {
        /// The connection that waits for it.
        token: Token,
        /// The encoded reply; what it reveals is durable.
        reply: Vec<u8>,
    },
    /// CLIENT KILL.
    Close(Token),
    /// A setting has changed that decides for how long a loop may sleep.
    Look,
    /// Answer what was received, then end.
    Stop,
}

/// The messages for one loop.
#[derive(Debug)]
pub struct Inbox {
    messages: Mutex<Vec<Message>>,
    waker: Waker,
}

impl Inbox {
    /// An inbox that wakes its loop through `waker`.
    pub fn new(waker: Waker) -> Inbox {
        Inbox { messages: Mutex::new(Vec::new()), waker }
    }

    /// Leaves a message.
    pub fn push(&self, message: Message) {
        let mut messages = self.messages.lock();
        let first = messages.is_empty();
        messages.push(message);
        drop(messages);
        // Whoever found it empty wakes the loop; it takes all messages at once.
        if first && let Err(error) = self.waker.wake() {
            tracing::error!(%error, "an event loop cannot be woken");
        }
    }

    /// Takes all messages, in the order they came.
    pub fn take(&self) -> Vec<Message> {
        std::mem::take(&mut *self.messages.lock())
    }
}
