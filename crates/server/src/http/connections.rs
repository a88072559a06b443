//! HTTP connections: accepted up to a limit, ended when they only hold a place, drained at the end.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use quipu_wire::json::problem::{PROBLEM_JSON, Problem};
use rustix::net::sockopt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, MissedTickBehavior};

use super::Front;
use super::audit::Peer;
use super::conversation::{Conversation, Line, Phase, TICK, Ticks};
use super::front::REQUEST_ID;
use super::watch;

/// After so long a silence the other end is asked whether it is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(300);
/// How long requests in flight may take to end when the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an idle connection may still send a request when the server stops: one that is on its way shall not meet a
/// closed door.
const DRAIN_GRACE: Duration = Duration::from_millis(200);
/// How often a drain looks whether it is done.
const DRAIN_POLL: Duration = Duration::from_millis(10);
/// How long to wait when the system has no descriptor left for a new connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long the last word on a connection may take to be heard.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);
/// How many hear one at a time; in a flood of connections the rest is closed without a word.
pub const FAREWELLS_MAX: usize = 128;

/// The running front.
pub struct Server {
    address: SocketAddr,
    stop: tokio::sync::watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Serves `front` on what `listener` accepts.
    pub fn start(runtime: &Runtime, listener: TcpListener, front: Front) -> std::io::Result<Server> {
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let _inside = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let accepting = runtime.spawn(accept(listener, Connections::new(front), stopped));
        Ok(Server { address, stop, accepting })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts nothing more, lets what is in flight end, and returns.
    pub async fn drain(self) {
        // If the accepting task is gone there is nothing left to stop.
        let _ = self.stop.send(true);
        let _ = self.accepting.await;
    }
}

/// All connections.
struct Connections {
    front: Arc<Front>,
    builder: http1::Builder,
    ticks: Arc<Ticks>,
    open: Mutex<HashMap<u64, Open>>,
    farewells: Arc<Semaphore>,
}

/// A connection that is served.
struct Open {
    conversation: Arc<Conversation>,
    /// Known a moment after it begins.
    task: Option<AbortHandle>,
}

impl Connections {
    fn new(front: Front) -> Arc<Connections> {
        let mut builder = http1::Builder::new();
        // Timeouts are kept here, see `tend`. Who has sent a request and closes its half still hears the answer.
        builder
            .header_read_timeout(None)
            .half_close(true)
            .max_header_size(front.load().limits.head_bytes_max);
        let farewells_max = FAREWELLS_MAX.min(front.load().limits.connections_max);
        Arc::new(Connections {
            front: Arc::new(front),
            builder,
            ticks: Arc::default(),
            open: Mutex::default(),
            farewells: Arc::new(Semaphore::new(farewells_max)),
        })
    }

    /// Serves a new connection, or tells it that there are too many.
    fn welcome(self: &Arc<Connections>, number: u64, socket: TcpStream) {
        let load = self.front.load();
        if load.connections.load(Ordering::Relaxed) >= load.limits.connections_max {
            load.connections_rejected.fetch_add(1, Ordering::Relaxed);
            return self.say(socket, Problem::new(503, "busy", "too many connections; retry later"));
        }
        load.connections.fetch_add(1, Ordering::Relaxed);
        let conversation = Conversation::new(Arc::clone(&self.ticks));
        let serving = Arc::clone(self).serve(number, socket, Arc::clone(&conversation));
        self.open.lock().insert(number, Open { conversation, task: None });
        let task = tokio::spawn(serving).abort_handle();
        // It may have ended already.
        if let Some(open) = self.open.lock().get_mut(&number) {
            open.task = Some(task);
        }
    }

    async fn serve(self: Arc<Connections>, number: u64, socket: TcpStream, conversation: Arc<Conversation>) {
        // Replies are small and one write each; waiting for more to send would only delay them.
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "no TCP_NODELAY");
        }
        let asked = sockopt::set_socket_keepalive(&socket, true)
            .and_then(|()| sockopt::set_tcp_keepidle(&socket, KEEP_ALIVE));
        if let Err(error) = asked {
            tracing::debug!(%error, "no TCP keep-alive");
        }
        // Dropped last, however this ends.
        let _place =
            Place { connections: Arc::clone(&self), number, conversation: Arc::clone(&conversation) };
        // One reference for both, and not one that all connections share.
        let peer = socket.peer_addr().ok();
        let both = Arc::new((Arc::clone(&self.front), Arc::clone(&conversation), peer));
        let service = service_fn(move |mut request: Request<Incoming>| {
            let both = Arc::clone(&both);
            async move {
                let (front, conversation, peer) = &*both;
                if !conversation.enter(Phase::Busy) {
                    // Given up a moment ago, and about to be dropped.
                    std::future::pending::<()>().await;
                }
                if request.uri().path() == watch::PATH {
                    request.extensions_mut().insert(Arc::clone(conversation));
                }
                if let Some(peer) = peer
                    && front.audits()
                {
                    request.extensions_mut().insert(Peer(*peer));
                }
                let response = front.answer(request.map(Body::new)).await;
                conversation.enter(Phase::Idle);
                Ok::<_, Infallible>(response)
            }
        });
        let line = Line::new(socket, Arc::clone(&conversation));
        if let Err(error) = self.builder.serve_connection(TokioIo::new(line), service).await {
            tracing::debug!(%error, "an HTTP connection ended early");
            if error.is_parse_version_h2() {
                conversation.say_last(505);
            }
        }
    }

    /// The last word on a connection.
    fn say(&self, socket: TcpStream, mut problem: Problem) {
        // None where the whole server is being torn down.
        let Ok(runtime) = Handle::try_current() else { return };
        if let Ok(permit) = Arc::clone(&self.farewells).try_acquire_owned() {
            problem.request_id = Some(self.front.new_request_id());
            runtime.spawn(farewell(socket, problem, permit));
        }
    }

    /// Gives up connections that are due.
    fn end_those(&self, is_due: impl Fn(&Conversation, Phase, Duration) -> bool) {
        for Open { conversation, task } in self.open.lock().values() {
            if conversation.end_if(|phase, age| is_due(conversation, phase, age))
                && let Some(task) = task
            {
                task.abort();
            }
        }
    }

    /// Ends connections that have done the same for too long.
    fn tend(&self) {
        let limits = &self.front.load().limits;
        self.end_those(|conversation, phase, age| match phase {
            Phase::Busy | Phase::Ended => false,
            _ if conversation.is_blocked() => age > limits.write_timeout,
            Phase::Idle => age > limits.idle_timeout,
            Phase::Head => age > limits.head_timeout,
        });
    }

    /// Lets what is in flight end. Every reply from now on is the last on its connection.
    async fn drain(&self) {
        self.front.stop();
        let begin = Instant::now();
        while !self.open.lock().is_empty() {
            tokio::time::sleep(DRAIN_POLL).await;
            if begin.elapsed() > DRAIN_GRACE {
                self.end_those(|conversation, phase, _| {
                    phase != Phase::Busy && (!conversation.is_blocked() || conversation.is_endless())
                });
            }
            if begin.elapsed() > DRAIN_TIMEOUT {
                tracing::warn!("some HTTP requests did not end in time and are cut");
                return;
            }
        }
    }
}

/// A connection's place among all.
struct Place {
    connections: Arc<Connections>,
    number: u64,
    conversation: Arc<Conversation>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.open.lock().remove(&self.number);
        self.connections.front.load().connections.fetch_sub(1, Ordering::Relaxed);
        if let Some((status, socket)) = self.conversation.take_last_word() {
            self.connections.say(socket, unreadable(status));
        }
    }
}

/// Why a request did not get as far as a route.
fn unreadable(status: u16) -> Problem {
    match status {
        408 => Problem::new(
            408,
            "too-slow",
            "the head of the request did not arrive in time; nothing was changed",
        ),
        414 => Problem::new(414, "too-large", "the address of the request is too long"),
        // hyper says so of lengths that it cannot count, too.
        431 => Problem::new(
            431,
            "too-large",
            "the head of the request has too many headers, too large ones, or announces a body beyond all limits",
        ),
        505 => Problem::new(505, "http-version", "HTTP/2 is not spoken here; use HTTP/1.1"),
        _ => Problem::malformed("the head of the request is not HTTP/1.1"),
    }
}

async fn accept(
    listener: tokio::net::TcpListener,
    connections: Arc<Connections>,
    mut stopped: tokio::sync::watch::Receiver<bool>,
) {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut number = 0;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = tick.tick() => {
                connections.ticks.advance();
                connections.tend();
                continue;
            }
            _ = stopped.changed() => break,
        };
        match accepted {
            Ok((socket, _)) => {
                number += 1;
                connections.welcome(number, socket);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept an HTTP connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.drain().await;
}

/// Tells the other end why it is not served. One that does not take the answer in time goes without.
async fn farewell(mut socket: TcpStream, problem: Problem, permit: OwnedSemaphorePermit) {
    let tell = async {
        socket.write_all(&last_response(&problem)).await?;
        socket.shutdown().await?;
        // Closing while a request lies unread would reset the connection, and the answer with it.
        while socket.read(&mut [0; 1024]).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = tokio::time::timeout(FAREWELL_TIMEOUT, tell).await;
    drop(permit);
}

/// A whole response, for where there is no framework any more.
fn last_response(problem: &Problem) -> Vec<u8> {
    let body = serde_json::to_vec(problem).unwrap_or_default();
    let mut head = format!(
        "HTTP/1.1 {} {}\r\ncontent-type: {PROBLEM_JSON}\r\nconnection: close\r\ncontent-length: {}\r\n",
        problem.status,
        problem.title,
        body.len()
    );
    if let Some(id) = &problem.request_id {
        head.push_str(&format!("{}: {id}\r\n", REQUEST_ID));
    }
    if let Some(ms) = problem.retry_after_ms {
        head.push_str(&format!("retry-after: {}\r\n", ms.div_ceil(1000)));
    }
    [head.as_bytes(), b"\r\n", &body].concat()
}
