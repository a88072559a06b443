//! The front for Redis clients.
//!
//! | file | what it says |
//! |---|---|
//! | `event_loop` | a thread: wait, serve all that are ready, settle once, write |
//! | `admission` | how a loop gets its connections |
//! | `pressure` | what connections may take of memory and time |
//! | `connection` | one socket with its buffers |
//! | `serve` | one connection's turn: decode, draft, execute, render |
//! | `round` | what the connections of a wake-up asked, executed as one batch |
//! | `interpret` | from a decoded command to its draft |
//! | `transaction` | from MULTI to EXEC |
//! | `answer` | commands that are answered at once |
//! | `commands` | what each command's arguments mean |
//! | `plan`, `render` | how each command will be answered; the answers |
//! | `session` | what a connection has agreed on; the list of connections |
//! | `watch` | the keys a connection watches |
//! | `background` | what may block for long: SCAN, KEYS, policies |
//! | `inbox`, `slots` | how threads reach a loop; names of connections |
//!
//! Several loops share nothing but [`Counters`]. A reply is sent after everything it reveals is settled.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use mio::net::TcpListener;
use mio::{Interest, Poll, Waker};
use parking_lot::Mutex;
use quipu_counting::Counters;
use quipu_wire::commands::{Command, ROW_COUNT};
use quipu_wire::resp::Limits;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rustix::net::sockopt;

use crate::clock::Clock;
use crate::cluster::map::Map;
use crate::metrics::Outcomes;

pub mod admission;
pub mod answer;
pub mod background;
pub mod commands;
pub mod connection;
pub mod event_loop;
pub mod inbox;
pub mod interpret;
pub mod plan;
pub mod pressure;
pub mod render;
mod round;
pub mod serve;
pub mod session;
pub mod slots;
pub mod transaction;
pub mod watch;

use background::Background;
use event_loop::{CLUSTER_LISTENER, EventLoop, INBOX, LISTENER, Listener};
use inbox::{Inbox, Message};
use pressure::Closed;
use session::Registry;

/// The version of Redis whose commands, replies and error texts are spoken: clients choose their features by it.
pub const REDIS_VERSION: &str = "7.0.15";

/// Connections served at the same time unless told otherwise, as in Redis.
pub const CONNECTIONS_MAX_DEFAULT: usize = 10_000;
/// Loops unless told otherwise: one for two cores, at most this many. Connections of one loop share a sync; those
/// of two loops wait for each other's, so a loop too many costs more than it gives.
const EVENT_LOOPS_DEFAULT: usize = 4;
/// Replies a connection may leave untaken before it is no longer served.
const OUTPUT_BYTES_MAX_DEFAULT: usize = 32 * 1024 * 1024;
/// How long it may take none of them before it is closed.
const STALLED_MS_DEFAULT: u64 = 60_000;
/// What the buffers of all connections may hold together.
const BUFFER_BYTES_MAX_DEFAULT: usize = 256 * 1024 * 1024;
/// What the system may keep of a connection's commands and of its replies, each. Unlimited it keeps megabytes of both: work
/// that is still done when those who sent it have stopped, and memory that nobody counts.
const SOCKET_BUFFER_BYTES: usize = 256 * 1024;
/// Bytes of one command. Ten thousand connections may each have one unfinished; the default of the protocol, 64 MiB,
/// is for tools that load data.
const FRAME_BYTES_MAX: u32 = 16 * 1024 * 1024;

/// The shortest time over which a rate means something.
const RATE_INTERVAL_MS: u64 = 100;

/// How the front is set.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of threads that serve connections.
    pub event_loops: usize,
    /// Connections beyond this are refused with an error.
    pub connections_max: usize,
    /// What the limit on open files allows; CONFIG SET maxclients goes no further.
    pub connections_possible: usize,
    /// A connection with more untaken replies than this is not served until it takes them.
    pub output_bytes_max: usize,
    /// A connection that takes nothing for so long is closed.
    pub stalled_ms: u64,
    /// What the buffers of all connections may hold together; those that hold most are closed when it is more.
    pub buffer_bytes_max: usize,
    /// A connection without a command for so long is closed; 0 for never. CONFIG SET timeout changes it.
    pub idle_ms: u64,
    /// What one command may be made of.
    pub limits: Limits,
    /// The durability mode, for INFO and CONFIG GET.
    pub durability: String,
}

impl Default for Options {
    fn default() -> Options {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        Options {
            event_loops: (cores / 2).clamp(1, EVENT_LOOPS_DEFAULT),
            connections_max: CONNECTIONS_MAX_DEFAULT,
            connections_possible: usize::MAX,
            output_bytes_max: OUTPUT_BYTES_MAX_DEFAULT,
            stalled_ms: STALLED_MS_DEFAULT,
            buffer_bytes_max: BUFFER_BYTES_MAX_DEFAULT,
            idle_ms: 0,
            limits: Limits { frame_bytes: FRAME_BYTES_MAX, ..Limits::DEFAULT },
            durability: "sync".to_owned(),
        }
    }
}

impl Options {
    /// What the buffers of one loop's connections may hold. One command of the largest size must be possible.
    fn buffer_bytes_of_loop(&self) -> usize {
        (self.buffer_bytes_max / self.event_loops.max(1)).max(2 * self.limits.frame_bytes as usize)
    }
}

/// What all loops share.
pub struct Shared {
    /// Where counting happens.
    pub counters: Arc<dyn Counters>,
    /// The time.
    pub clock: Arc<Clock>,
    /// How the front is set.
    pub options: Options,
    /// Where it listens.
    pub address: SocketAddr,
    /// What those are told who speak the Redis Cluster protocol.
    pub map: Option<Arc<Map>>,
    /// When it began.
    pub started_at_ms: u64,
    /// Tells two lives of the server apart: forty hexadecimal digits, as clients expect.
    pub run_id: String,
    /// The limit that CONFIG SET maxclients changes.
    pub connections_max: AtomicUsize,
    /// The limit that CONFIG SET timeout changes; 0 for none.
    pub idle_ms: AtomicU64,
    /// Connections accepted and not yet ended.
    pub connections: AtomicUsize,
    /// Bytes that all connections hold in their buffers.
    pub buffered_bytes: AtomicUsize,
    /// All connections that are served.
    pub registry: Registry,
    /// What happened.
    pub statistics: Statistics,
    /// What this front has told of limits and holds.
    pub outcomes: Outcomes,
    /// Calls by command, one for each loop.
    pub calls: Vec<Calls>,
    /// One for each loop.
    pub inboxes: Vec<Inbox>,
    /// For what may block.
    pub background: Background,
}

impl Shared {
    /// CONFIG RESETSTAT.
    pub fn reset_statistics(&self) {
        self.statistics.reset();
        self.calls.iter().for_each(Calls::reset);
    }
}

/// How often each command was called, kept by one loop.
#[derive(Debug)]
pub struct Calls([AtomicU64; ROW_COUNT]);

impl Default for Calls {
    fn default() -> Calls {
        Calls([const { AtomicU64::new(0) }; ROW_COUNT])
    }
}

impl Calls {
    /// Counts one. Only the loop itself does, so this need not be one step.
    #[inline]
    pub fn count(&self, command: Command) {
        let calls = &self.0[command as usize];
        calls.store(calls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// How often the command was called.
    pub fn of(&self, command: Command) -> u64 {
        self.0[command as usize].load(Ordering::Relaxed)
    }

    fn reset(&self) {
        self.0.iter().for_each(|calls| calls.store(0, Ordering::Relaxed));
    }
}

/// Numbers since the start or the last CONFIG RESETSTAT.
#[derive(Debug, Default)]
pub struct Statistics {
    /// Commands understood.
    pub commands: AtomicU64,
    /// Connections accepted.
    pub connections_accepted: AtomicU64,
    /// Connections refused because there were too many.
    pub connections_rejected: AtomicU64,
    /// Connections closed because they took too much.
    pub closed: Closed,
    /// Connections that wait for a batch or a job, now.
    pub waiting: AtomicU64,
    /// For the commands per second of INFO.
    pub rate: Mutex<Rate>,
}

/// How fast a number grows from look to look.
#[derive(Debug, Default)]
pub struct Rate {
    at_ms: u64,
    number: u64,
    per_second: u64,
}

impl Rate {
    /// By how much it grew in a second since the last look, or since the one before if that was just now.
    pub fn since_last(&mut self, number: u64, now_ms: u64) -> u64 {
        let passed_ms = now_ms.saturating_sub(self.at_ms);
        if passed_ms >= RATE_INTERVAL_MS {
            self.per_second = number.saturating_sub(self.number) * 1000 / passed_ms;
            (self.number, self.at_ms) = (number, now_ms);
        }
        self.per_second
    }
}

impl Statistics {
    /// Begins anew.
    pub fn reset(&self) {
        let Closed { for_memory, stalled, idle } = &self.closed;
        let connections = [&self.connections_accepted, &self.connections_rejected, for_memory, stalled, idle];
        for number in connections.into_iter().chain([&self.commands]) {
            number.store(0, Ordering::Relaxed);
        }
    }
}

/// The port of a node of a cluster that speaks the Redis Cluster protocol.
pub struct ClusterPort {
    /// Where it listens.
    pub listener: std::net::TcpListener,
    /// What clients are told there.
    pub map: Arc<Map>,
}

/// A running front.
pub struct RespServer {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl RespServer {
    /// Serves those who connect to `listener`, and of a node of a cluster those who connect to its other port.
    pub fn start(
        options: Options,
        listener: std::net::TcpListener,
        cluster: Option<ClusterPort>,
        counters: Arc<dyn Counters>,
        clock: Arc<Clock>,
    ) -> io::Result<RespServer> {
        let address = listener.local_addr()?;
        let (cluster, map) = cluster.map(|cluster| (cluster.listener, cluster.map)).unzip();
        let mut listeners = vec![Listener { socket: ready(listener)?, is_of_cluster: false }];
        if let Some(listener) = cluster {
            listeners.push(Listener { socket: ready(listener)?, is_of_cluster: true });
        }
        let polls =
            (0..options.event_loops.max(1)).map(|_| Poll::new()).collect::<io::Result<Vec<Poll>>>()?;
        let inbox = |poll: &Poll| Ok(Inbox::new(Waker::new(poll.registry(), INBOX)?));
        let inboxes = polls.iter().map(inbox).collect::<io::Result<Vec<Inbox>>>()?;
        for Listener { socket, is_of_cluster } in &mut listeners {
            let token = if *is_of_cluster { CLUSTER_LISTENER } else { LISTENER };
            polls[0].registry().register(socket, token, Interest::READABLE)?;
        }
        let mut random = SmallRng::from_os_rng();
        let shared = Arc::new(Shared {
            started_at_ms: clock.now_ms(),
            run_id: format!("{:032x}{:08x}", random.random::<u128>(), random.random::<u32>()),
            connections_max: AtomicUsize::new(options.connections_max),
            idle_ms: AtomicU64::new(options.idle_ms),
            connections: AtomicUsize::new(0),
            buffered_bytes: AtomicUsize::new(0),
            registry: Registry::default(),
            statistics: Statistics::default(),
            outcomes: Outcomes::default(),
            calls: polls.iter().map(|_| Calls::default()).collect(),
            background: Background::start(&counters)?,
            counters,
            clock,
            options,
            address,
            map,
            inboxes,
        });
        let mut server = RespServer { shared: Arc::clone(&shared), threads: Vec::new() };
        for (index, poll) in polls.into_iter().enumerate() {
            let event_loop = EventLoop::new(index, Arc::clone(&shared), poll, std::mem::take(&mut listeners));
            let thread = thread::Builder::new().name(format!("resp-{index}")).spawn(move || {
                if let Err(error) = event_loop.run() {
                    tracing::error!(%error, "an event loop failed");
                }
            })?;
            server.threads.push(thread);
        }
        Ok(server)
    }

    /// Where it listens, but for the port of a cluster.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// What it shares with its threads: statistics and the list of connections.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Answers what was received, waits for what is pending, closes all connections and returns.
    pub fn stop(self) {
        for inbox in &self.shared.inboxes {
            inbox.push(Message::Stop);
        }
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("an event loop panicked");
            }
        }
    }
}

/// A listener for a loop.
fn ready(listener: std::net::TcpListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    // Those who are accepted inherit it.
    sockopt::set_socket_recv_buffer_size(&listener, SOCKET_BUFFER_BYTES)?;
    sockopt::set_socket_send_buffer_size(&listener, SOCKET_BUFFER_BYTES)?;
    Ok(TcpListener::from_std(listener))
}
