//! How a loop gets its connections: the first one accepts for all and deals them out in turn.

use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mio::Interest;
use parking_lot::Mutex;
use rustix::net::sockopt;

use super::connection::Connection;
use super::event_loop::{EventLoop, Listener};
use super::inbox::{Arrival, Message};
use super::session::{Card, Profile, Session};

/// Connections accepted in one wake-up: those that are there already shall not wait for all who come.
const ACCEPTS_PER_WAKEUP: usize = 256;
/// After so long a silence the other end is asked whether it is still there, as in Redis: the dead must not fill the
/// list of connections.
pub const KEEP_ALIVE: Duration = Duration::from_secs(300);
/// Who does not answer is asked again so often, a third of that apart, and is then taken for dead: after ten minutes in all,
/// not after the quarter of an hour of the system's own choice.
const KEEP_ALIVE_QUESTIONS: u32 = 3;

impl EventLoop {
    /// Accepts those who wait.
    pub(super) fn accept(&mut self) {
        self.accept_failed = false;
        self.acceptable = false;
        for at in 0..self.listeners.len() {
            self.acceptable |= self.accept_at(at);
        }
    }

    /// The same at one listener. Says whether there may be more.
    fn accept_at(&mut self, at: usize) -> bool {
        for _ in 0..ACCEPTS_PER_WAKEUP {
            let Listener { socket, is_of_cluster } = &self.listeners[at];
            match socket.accept() {
                Ok((socket, peer)) => {
                    let is_of_cluster = *is_of_cluster;
                    self.welcome(Arrival { socket, peer, is_of_cluster });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error)
                    if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(error) => {
                    // Out of descriptors, most likely: tried again with the next tick.
                    tracing::warn!(%error, "a connection cannot be accepted");
                    self.accept_failed = true;
                    return true;
                }
            }
        }
        true
    }

    /// Hands a new connection to the loop whose turn it is, unless there are too many.
    fn welcome(&mut self, mut arrival: Arrival) {
        let statistics = &self.shared.statistics;
        // Only this thread adds, so nobody can come in between.
        if self.shared.connections.load(Ordering::Relaxed)
            >= self.shared.connections_max.load(Ordering::Relaxed)
        {
            statistics.connections_rejected.fetch_add(1, Ordering::Relaxed);
            // Fits any empty socket buffer; whether it arrives does not matter.
            let _ = arrival.socket.write(b"-ERR max number of clients reached\r\n");
            return;
        }
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        statistics.connections_accepted.fetch_add(1, Ordering::Relaxed);
        let chosen = self.next_loop;
        self.next_loop = (self.next_loop + 1) % self.shared.inboxes.len();
        if chosen == self.index {
            self.adopt(arrival);
        } else {
            self.shared.inboxes[chosen].push(Message::Accepted(arrival));
        }
    }

    /// Serves a connection from now on.
    pub(super) fn adopt(&mut self, arrival: Arrival) {
        let peer = arrival.peer;
        if let Err(error) = self.try_adopt(arrival) {
            tracing::debug!(%error, %peer, "a connection is lost before it began");
            self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn try_adopt(&mut self, arrival: Arrival) -> io::Result<()> {
        let Arrival { socket, peer, is_of_cluster } = arrival;
        if self.stop_at_ms.is_some() {
            return Err(io::Error::other("the server is stopping"));
        }
        let local = socket.local_addr()?;
        socket.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, KEEP_ALIVE)?;
        sockopt::set_tcp_keepintvl(&socket, KEEP_ALIVE / KEEP_ALIVE_QUESTIONS)?;
        sockopt::set_tcp_keepcnt(&socket, KEEP_ALIVE_QUESTIONS)?;
        let token = self.connections.reserve();
        let card = Arc::new(Card {
            id: self.shared.registry.next_id(),
            peer,
            local,
            is_of_cluster,
            event_loop: self.index,
            token,
            connected_at_ms: self.now_ms,
            profile: Mutex::new(Profile {
                last_active_ms: self.now_ms,
                last_command: "NULL",
                ..Profile::default()
            }),
        });
        let session = Session::new(Arc::clone(&card));
        let mut connection = Box::new(Connection::new(socket, session, self.shared.options.limits));
        let interests = Interest::READABLE | Interest::WRITABLE;
        let registered = self.poll.registry().register(connection.socket_mut(), token, interests);
        registered.inspect_err(|_| self.connections.release(token))?;
        self.shared.registry.add(&card);
        self.connections.put_back(token, connection);
        Ok(())
    }
}
