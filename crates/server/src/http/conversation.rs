//! One connection as its keeper sees it: what it does and since when, and a socket that can be had back.
//!
//! Timeouts cost nothing on the way of a request: socket and service only note what they do, at the time of a clock
//! that ticks twice a second, and one task for all connections looks for those that do it for too long
//! (see `connections`).
//!
//! hyper answers a head it cannot read by itself, with a status and nothing else. [`Line`] holds that answer back, and
//! whoever serves the connection says the same as a problem.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use super::front::REQUEST_ID;

/// How often connections are looked at; also how precise their timeouts are.
pub const TICK: Duration = Duration::from_millis(500);

/// A reply about one counter with a key of usual length fits.
const JOINED_BYTES_MAX: usize = 1024;

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It has sent nothing since its last reply, or since it came.
    Idle = 0,
    /// It has begun a request.
    Head = 1,
    /// Its request is being served.
    Busy = 2,
    /// It was given up; whatever arrives now is not served.
    Ended = 3,
}

/// How often the clock of connections has ticked.
#[derive(Default)]
pub struct Ticks(AtomicU64);

impl Ticks {
    /// Moves on by one.
    pub fn advance(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// See the head of this file.
pub struct Conversation {
    ticks: Arc<Ticks>,
    /// `tick << 2 | phase`.
    state: AtomicU64,
    /// Whether the other end does not take what is sent to it.
    blocked: AtomicBool,
    /// Tells that it does again.
    unblocked: Notify,
    /// Whether its reply is one without an end, which nobody waits for.
    endless: AtomicBool,
    /// The status to say before the connection is closed.
    last_word: Mutex<Option<u16>>,
    /// The socket, once nobody serves it any more.
    returned: Mutex<Option<TcpStream>>,
}

impl Conversation {
    /// One that begins now.
    pub fn new(ticks: Arc<Ticks>) -> Arc<Conversation> {
        let state = AtomicU64::new(ticks.now() << 2);
        let (blocked, unblocked, endless, last_word, returned) = Default::default();
        Arc::new(Conversation { ticks, state, blocked, unblocked, endless, last_word, returned })
    }

    /// Notes what it does from now on. Returns whether it may: not if it was given up.
    pub fn enter(&self, phase: Phase) -> bool {
        let next = self.ticks.now() << 2 | phase as u64;
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            if state & 3 == Phase::Ended as u64 {
                return false;
            }
            match self.state.compare_exchange_weak(state, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(found) => state = found,
            }
        }
    }

    /// Gives it up if it still does what `is_due` is asked about: its phase, and for how long about.
    pub fn end_if(&self, is_due: impl FnOnce(Phase, Duration) -> bool) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        let (phase, age) = self.describe(state);
        let end = state | Phase::Ended as u64;
        let ended = phase != Phase::Ended
            && is_due(phase, age)
            && self.state.compare_exchange(state, end, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if ended && phase == Phase::Head {
            self.say_last(408);
        }
        ended
    }

    fn describe(&self, state: u64) -> (Phase, Duration) {
        let phase = match state & 3 {
            0 => Phase::Idle,
            1 => Phase::Head,
            2 => Phase::Busy,
            _ => Phase::Ended,
        };
        let ticks = self.ticks.now().saturating_sub(state >> 2);
        (phase, TICK * u32::try_from(ticks).unwrap_or(u32::MAX))
    }

    /// Whether the other end does not take its reply.
    pub fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed)
    }

    /// Waits until the other end takes its reply. There is one who waits: whoever makes the reply.
    pub async fn unblocked(&self) {
        while self.is_blocked() {
            self.unblocked.notified().await;
        }
    }

    /// Its reply is one without an end.
    pub fn never_ends(&self) {
        self.endless.store(true, Ordering::Relaxed);
    }

    /// Whether its reply is one without an end.
    pub fn is_endless(&self) -> bool {
        self.endless.load(Ordering::Relaxed)
    }

    /// What to say before the connection is closed.
    pub fn say_last(&self, status: u16) {
        *self.last_word.lock() = Some(status);
    }

    /// The status to say, and the socket to say it on, once nobody serves it any more.
    pub fn take_last_word(&self) -> Option<(u16, TcpStream)> {
        let status = (*self.last_word.lock())?;
        Some((status, self.returned.lock().take()?))
    }

    fn read_something(&self) {
        if self.state.load(Ordering::Relaxed) & 3 == Phase::Idle as u64 {
            self.enter(Phase::Head);
        }
    }

    /// Notes that the other end took something, or that it takes nothing now.
    fn wrote(&self, took: bool) {
        if took || !self.is_blocked() {
            let was_blocked = self.is_blocked();
            self.blocked.store(!took, Ordering::Relaxed);
            if took && was_blocked {
                self.unblocked.notify_one();
            }
            // How long it is blocked counts from here; a reply that goes on is not idle either.
            let state = self.state.load(Ordering::Relaxed);
            let next = self.ticks.now() << 2 | state & 3;
            if next != state {
                // Whoever changed it in between knows better.
                let _ = self.state.compare_exchange(state, next, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }
}

/// The socket of a conversation.
pub struct Line {
    /// Taken only when this is dropped.
    socket: Option<TcpStream>,
    conversation: Arc<Conversation>,
}

impl Line {
    /// The socket, noting in `conversation` what happens on it.
    pub fn new(socket: TcpStream, conversation: Arc<Conversation>) -> Line {
        Line { socket: Some(socket), conversation }
    }

    fn socket(&mut self) -> io::Result<Pin<&mut TcpStream>> {
        self.socket.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        *self.conversation.returned.lock() = self.socket.take();
    }
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(self.socket()?.poll_read(context, buffer))?;
        if buffer.filled().len() > before {
            self.conversation.read_something();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let bytes = match own_answer(bytes) {
            Some((0, status)) => {
                self.conversation.say_last(status);
                return Poll::Ready(Ok(bytes.len()));
            }
            Some((start, _)) => &bytes[..start],
            None => bytes,
        };
        let written = self.socket()?.poll_write(context, bytes);
        self.conversation.wrote(written.is_ready());
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // Heads come in a slice of their own, so an answer to hold back is the whole of one, or the end of the only one.
        if let [only] = slices {
            return self.poll_write(context, only);
        }
        if let Some(joined) = Joined::of(slices) {
            return self.poll_write(context, joined.bytes());
        }
        let written = self.socket()?.poll_write_vectored(context, slices);
        self.conversation.wrote(written.is_ready());
        written
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket()?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // There is still something to say.
        if self.conversation.last_word.lock().is_some() {
            return Poll::Ready(Ok(()));
        }
        self.socket()?.poll_shutdown(context)
    }
}

/// Head and body of a small reply, joined: for the system one piece is less work than a list of two.
struct Joined {
    bytes: [u8; JOINED_BYTES_MAX],
    length: usize,
}

impl Joined {
    fn of(slices: &[io::IoSlice<'_>]) -> Option<Joined> {
        let mut joined = Joined { bytes: [0; JOINED_BYTES_MAX], length: 0 };
        for slice in slices {
            let end = joined.length + slice.len();
            joined.bytes.get_mut(joined.length..end)?.copy_from_slice(slice);
            joined.length = end;
        }
        Some(joined)
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Where an answer of hyper's own begins in what is written, and its status. It is the last thing on a connection, a
/// head without a body, and the only one without the header that all of ours have. (Our bodies are JSON and other
/// text without an empty line in the manner of heads.)
fn own_answer(bytes: &[u8]) -> Option<(usize, u16)> {
    const START: &[u8] = b"HTTP/1.1 4";
    let head = bytes.strip_suffix(b"\r\n\r\n")?;
    let start = head.windows(START.len()).rposition(|window| window == START)?;
    let head = &head[start..];
    let is_ours =
        head.split(|byte| *byte == b'\n').any(|line| line.starts_with(REQUEST_ID.as_str().as_bytes()));
    let status = std::str::from_utf8(head.get(9..12)?).ok()?.parse().ok()?;
    (!is_ours).then_some((start, status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_library_are_told_from_ours() {
        let own = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        let ours = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\nx-request-id: a\r\n\r\n{}";
        let head = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\nx-request-id: a\r\n\r\n";
        let goes_on = b"HTTP/1.1 100 Continue\r\n\r\n";
        assert_eq!(own_answer(own), Some((0, 431)));
        assert_eq!(own_answer(&[&ours[..], own].concat()), Some((ours.len(), 431)));
        for bytes in [&ours[..], head, goes_on, b"", b"\r\n\r\n", b"HTTP/1.1 4\r\n\r\n"] {
            assert_eq!(own_answer(bytes), None, "{}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn phases_have_an_age_and_an_end() {
        let ticks = Arc::new(Ticks::default());
        let conversation = Conversation::new(Arc::clone(&ticks));
        let phase = || conversation.describe(conversation.state.load(Ordering::Relaxed));
        assert_eq!(phase(), (Phase::Idle, Duration::ZERO));
        conversation.read_something();
        ticks.advance();
        conversation.read_something();
        assert_eq!(phase(), (Phase::Head, TICK));
        assert!(conversation.enter(Phase::Busy));
        conversation.read_something();
        assert_eq!(phase(), (Phase::Busy, Duration::ZERO));
        conversation.wrote(false);
        ticks.advance();
        conversation.wrote(false);
        assert_eq!((conversation.is_blocked(), phase().1), (true, TICK));
        conversation.wrote(true);
        assert_eq!((conversation.is_blocked(), phase().1), (false, Duration::ZERO));
        conversation.enter(Phase::Head);
        assert!(!conversation.end_if(|_, age| age > TICK));
        assert!(conversation.end_if(|phase, _| phase == Phase::Head));
        assert!(!conversation.enter(Phase::Busy) && !conversation.end_if(|_, _| true));
        assert_eq!((phase().0, *conversation.last_word.lock()), (Phase::Ended, Some(408)));
    }
}
