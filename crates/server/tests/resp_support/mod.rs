//! Servers and clients for the tests of the Redis protocol: a real quipu in this process, a real Redis beside it, and a
//! client that shows the bytes.

#![allow(dead_code, reason = "each test file uses its part")]

#[allow(clippy::duplicate_mod, reason = "a test may use both supports")]
#[path = "../support/on_redis.rs"]
pub mod on_redis;
pub mod scripted;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quipu_counting::Counters;
use quipu_engine::{Engine, OpenError};
use quipu_external::External;
use quipu_server::clock::Clock;
use quipu_server::resp::{Options, RespServer};
use quipu_store::Durability;
use quipu_wire::resp::{encode_command, skip_reply};

/// How long a test waits for something that must happen. Never reached when all is well.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A quipu on a port of its own with a data folder of its own, or on the Redis that the tests shall run on.
pub struct Quipu {
    server: Option<RespServer>,
    engine: Option<Arc<Engine>>,
    /// The counters in Redis, and who serves them.
    external: Option<(Arc<External>, tokio::runtime::Runtime)>,
    folder: tempfile::TempDir,
}

impl Quipu {
    /// With default settings, without waiting for the disk.
    pub fn start() -> Quipu {
        Quipu::start_with(Durability::None, |_| {})
    }

    /// With settings of the test's choice.
    pub fn start_with(durability: Durability, change: impl FnOnce(&mut Options)) -> Quipu {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let mut quipu = Quipu { server: None, engine: None, external: None, folder };
        quipu.open(durability, change);
        quipu
    }

    fn open(&mut self, durability: Durability, change: impl FnOnce(&mut Options)) {
        if let Some(url) = on_redis::for_folder(self.folder.path()) {
            let runtime = tokio::runtime::Runtime::new().expect("threads");
            let opened = runtime.block_on(External::open(&url, quipu_external::Options::default()));
            let external = opened.unwrap_or_else(|error| panic!("{error}"));
            self.server = Some(start_front(external.clone(), change));
            self.external = Some((external, runtime));
            return;
        }
        let options = quipu_engine::Options { durability, ..quipu_engine::Options::default() };
        // A thread of the one before may still be about to end, and keeps the folder until then.
        let until = Instant::now() + Duration::from_secs(10);
        let engine = loop {
            match Engine::open(self.folder.path(), options.clone()) {
                Err(OpenError::Locked(_)) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(10))
                }
                opened => break opened.expect("an engine"),
            }
        };
        self.server = Some(start_front(engine.clone(), change));
        self.engine = Some(engine);
    }

    /// Stops it in order and starts it again on the same folder.
    pub fn restart(&mut self) {
        self.stop();
        self.open(Durability::None, |_| {});
    }

    fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
        if let Some(engine) = self.engine.take() {
            engine.close().expect("a clean end");
        }
        if let Some((external, runtime)) = self.external.take() {
            let inside = runtime.enter();
            drop(external);
            drop(inside);
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.server.as_ref().expect("it runs").address()
    }

    /// A new connection.
    pub fn client(&self) -> Client {
        Client::connect(self.address())
    }
}

impl Drop for Quipu {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop();
        }
    }
}

/// The front alone, over any counters.
pub fn start_front(counters: Arc<dyn Counters>, change: impl FnOnce(&mut Options)) -> RespServer {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut options = Options::default();
    change(&mut options);
    RespServer::start(options, listener, None, counters, Arc::new(Clock::new())).expect("a front")
}

/// A real Redis that keeps nothing.
pub struct Redis {
    child: Child,
    port: u16,
}

impl Redis {
    /// Starts it; Redis 7.0 or later must be installed.
    pub fn start() -> Redis {
        Redis::start_with(&[])
    }

    /// The same with more arguments.
    pub fn start_with(arguments: &[&str]) -> Redis {
        // The port is free now; should someone take it before Redis does, try another.
        for _ in 0..20 {
            let port = TcpListener::bind("127.0.0.1:0")
                .and_then(|listener| listener.local_addr())
                .expect("a port")
                .port();
            let child = Command::new("redis-server")
                .args([
                    "--port",
                    &port.to_string(),
                    "--save",
                    "",
                    "--appendonly",
                    "no",
                    "--bind",
                    "127.0.0.1",
                ])
                .args(arguments)
                .stdout(Stdio::null())
                .spawn()
                .expect("redis-server is needed to compare with it");
            let mut redis = Redis { child, port };
            let begun = Instant::now();
            while begun.elapsed() < PATIENCE {
                if redis.answers() {
                    return redis;
                }
                if redis.child.try_wait().is_ok_and(|status| status.is_some()) {
                    break;
                }
                std::thread::yield_now();
            }
        }
        panic!("redis-server did not start");
    }

    /// Whether it listens: it and no other, which may have taken the port and will end with another test.
    fn answers(&self) -> bool {
        let Ok(socket) = TcpStream::connect(self.address()) else { return false };
        let mut client = Client::over(socket);
        client.try_send(&command("INFO server"));
        let process = format!("|process_id:{}|", self.child.id());
        client.reply_bytes().is_some_and(|reply| show(&reply).contains(&process))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// A new connection.
    pub fn client(&self) -> Client {
        Client::connect(self.address())
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection that shows replies as the bytes they are.
pub struct Client {
    socket: TcpStream,
    unread: Vec<u8>,
}

impl Client {
    /// Connects.
    pub fn connect(address: SocketAddr) -> Client {
        Client::over(TcpStream::connect(address).expect("a connection"))
    }

    fn over(socket: TcpStream) -> Client {
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        socket.set_nodelay(true).expect("no delay");
        Client { socket, unread: Vec::new() }
    }

    /// The same connection, for sending while another thread reads.
    pub fn duplicate(&self) -> Client {
        Client { socket: self.socket.try_clone().expect("a duplicate"), unread: Vec::new() }
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).expect("to send");
    }

    /// Sends bytes to someone who may close.
    pub fn try_send(&mut self, bytes: &[u8]) {
        let _ = self.socket.write_all(bytes);
    }

    /// Says that nothing more will be sent.
    pub fn end(&mut self) {
        self.socket.shutdown(std::net::Shutdown::Write).expect("to end");
    }

    /// Says that nothing more will be sent, to someone who may have closed.
    pub fn try_end(&mut self) {
        let _ = self.socket.shutdown(std::net::Shutdown::Write);
    }

    /// Sends a command written as a line of words.
    pub fn send_line(&mut self, line: &str) {
        self.send(&command(line));
    }

    /// Sends a line and answers its reply, with line ends shown as `|`.
    pub fn ask(&mut self, line: &str) -> String {
        self.send_line(line);
        self.reply()
    }

    /// The next reply, with line ends shown as `|`.
    pub fn reply(&mut self) -> String {
        match self.reply_bytes() {
            Some(reply) => show(&reply),
            None => panic!("the connection ended within a reply: {}", show(&self.unread)),
        }
    }

    /// The next reply as it is; none if the other end has closed.
    pub fn reply_bytes(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(length) = skip_reply(&self.unread).expect("a reply") {
                return Some(self.unread.drain(..length).collect());
            }
            if !self.receive() {
                return None;
            }
        }
    }

    /// All bytes until the other end closes.
    pub fn rest(&mut self) -> String {
        show(&self.rest_bytes())
    }

    /// The same as they are.
    pub fn rest_bytes(&mut self) -> Vec<u8> {
        while self.receive() {}
        std::mem::take(&mut self.unread)
    }

    /// Reads once; no at the end.
    fn receive(&mut self) -> bool {
        let mut buffer = vec![0; 64 * 1024];
        match self.socket.read(&mut buffer) {
            Ok(0) => false,
            Ok(length) => {
                self.unread.extend_from_slice(&buffer[..length]);
                true
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) => panic!("no reply: {error}"),
        }
    }
}

/// Whether two replies to a line mean the same. Time passes between a command and a question for the time left, so those
/// answers may differ by that.
pub fn same_reply(line: &str, one: &str, other: &str) -> bool {
    let seconds = |reply: &str| {
        reply.strip_prefix(':')?.strip_suffix('|')?.parse::<i64>().ok().filter(|time| *time > 0)
    };
    match (line.starts_with("TTL "), seconds(one), seconds(other)) {
        (true, Some(one), Some(other)) => (one - other).unsigned_abs() < PATIENCE.as_secs(),
        _ => one == other,
    }
}

/// Bytes for people: line ends as `|`.
pub fn show(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace("\r\n", "|")
}

/// A line of words as a frame. `''` is the empty word, `_` within quotes a blank.
pub fn command(line: &str) -> Vec<u8> {
    let words: Vec<String> = line
        .split_whitespace()
        .map(|word| match word.strip_prefix('\'').and_then(|word| word.strip_suffix('\'')) {
            Some(quoted) => quoted.replace('_', " "),
            None => word.to_owned(),
        })
        .collect();
    let words: Vec<&[u8]> = words.iter().map(String::as_bytes).collect();
    let mut frame = Vec::new();
    encode_command(&mut frame, &words);
    frame
}
