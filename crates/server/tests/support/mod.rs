//! Starts the real binary on free ports, finds out where it listens, and talks to it over plain sockets.
#![allow(dead_code, clippy::unwrap_used)] // each test file uses its own part of this; a panic here is a failed test

pub mod cluster;
pub mod events;
#[allow(clippy::duplicate_mod, reason = "a test may use both supports")]
pub mod on_redis;
#[allow(clippy::duplicate_mod, reason = "a test may use both supports")]
#[path = "../../../external/tests/support/postgres.rs"]
pub mod postgres;
pub mod terminal;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The binary under test.
pub const QUIPU: &str = env!("CARGO_BIN_EXE_quipu");

/// A running server. Killed when dropped.
pub struct Server {
    child: Child,
    /// Where HTTP listens.
    pub http: SocketAddr,
    /// Where RESP listens.
    pub resp: SocketAddr,
    /// Where a node of a cluster speaks the Redis Cluster protocol.
    pub resp_cluster: Option<SocketAddr>,
    log: Arc<Mutex<Vec<String>>>,
    log_reader: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts on free ports over the folder `data` and returns when the server says that it serves.
    pub fn start(data: &Path) -> Server {
        Server::start_with(data, &[])
    }

    /// The same with more arguments of `quipu serve`.
    pub fn start_with(data: &Path, arguments: &[&str]) -> Server {
        let mut command = serve_command(data);
        match on_redis::for_folder(data) {
            Some(_) => command.args(on_redis::without_folder(arguments)),
            None => command.args(arguments),
        };
        Server::spawn(command)
    }

    /// The same from a command made ready elsewhere.
    pub fn spawn(mut command: Command) -> Server {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let log = Arc::new(Mutex::new(Vec::new()));
        let (http, resp, resp_cluster) = loop {
            let mut line = String::new();
            if stderr.read_line(&mut line).expect("stderr is text") == 0 {
                panic!("the server ended before it served: {:?}", log.lock().unwrap());
            }
            log.lock().unwrap().push(line.trim_end().to_owned());
            if let Some(addresses) = parse_ready_line(&line) {
                break addresses;
            }
        };
        // Somebody must go on reading, or a talkative server would block on a full pipe.
        let sink = Arc::clone(&log);
        let log_reader = std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                sink.lock().unwrap().push(line);
            }
        });
        Server { child, http, resp, resp_cluster, log, log_reader: Some(log_reader) }
    }

    /// The id of the process.
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// What the server has said on stderr so far.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// SIGKILL: what a crash of the process does.
    pub fn kill(mut self) {
        self.child.kill().expect("the server was running");
        self.child.wait().expect("the server ends");
    }

    /// SIGTERM, and waits for the end. Returns how it ended and everything it said.
    pub fn terminate(mut self) -> (ExitStatus, Vec<String>) {
        self.signal(rustix::process::Signal::TERM);
        self.wait()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let id = rustix::process::Pid::from_raw(self.child.id() as i32).expect("a process id is not 0");
        rustix::process::kill_process(id, signal).expect("the server was running");
    }

    /// Waits until the server ends by itself.
    pub fn wait(&mut self) -> (ExitStatus, Vec<String>) {
        let status = self.child.wait().expect("the server ends");
        if let Some(reader) = self.log_reader.take() {
            reader.join().expect("the reader of stderr does not panic");
        }
        (status, self.log())
    }

    /// One HTTP request on a connection of its own.
    pub fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: quipu\r\nConnection: close\r\n");
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        Response::parse(&exchange(self.http, request.as_bytes()))
    }

    /// The command line client of this server.
    pub fn client(&self, arguments: &[&str]) -> Output {
        self.client_command(arguments).output().expect("the binary runs")
    }

    /// The same, not yet started.
    pub fn client_command(&self, arguments: &[&str]) -> Command {
        let mut command = quipu();
        command
            .env("QUIPU_SERVER", format!("http://{}", self.http))
            .env("QUIPU_TARGET", format!("resp://{}", self.resp))
            .args(arguments);
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already; there is nothing to learn from a failure here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `quipu serve` on free ports, not yet started. The ports stand in the environment, so that flags may override them.
pub fn serve_command(data: &Path) -> Command {
    let mut command = quipu();
    command.envs(["QUIPU_HTTP", "QUIPU_RESP", "QUIPU_RESP_CLUSTER"].map(|name| (name, "127.0.0.1:0")));
    match on_redis::for_folder(data) {
        Some(backend) => command.args(["serve", "--backend", &backend]),
        None => command.args(["serve", "--data"]).arg(data),
    };
    command
}

/// The same on counters in Redis, without a data folder. `folder` is where the process stands, and stays empty.
pub fn backed_command(folder: &Path, backend: &str, arguments: &[&str]) -> Command {
    let mut command = quipu();
    command
        .current_dir(folder)
        .envs(["QUIPU_HTTP", "QUIPU_RESP"].map(|name| (name, "127.0.0.1:0")))
        .args(["serve", "--backend", backend])
        .args(arguments);
    command
}

/// The binary with an environment that holds no setting of whoever runs the tests.
pub fn quipu() -> Command {
    let mut command = Command::new(QUIPU);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("QUIPU_") {
            command.env_remove(name);
        }
    }
    command
}

/// Waits until something holds; the longest that anything takes here is far below.
pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < give_up, "it never came to this: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Runs the binary to its end.
pub fn run(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    quipu().args(arguments).envs(environment.iter().copied()).output().expect("the binary runs")
}

/// The addresses in `quipu 0.1.0 serves: http 127.0.0.1:7070, resp 127.0.0.1:7071, data ...`.
fn parse_ready_line(line: &str) -> Option<(SocketAddr, SocketAddr, Option<SocketAddr>)> {
    let facts = line.split_once(" serves: ")?.1;
    let address = |front: &str| {
        facts.split(", ").find_map(|fact| fact.trim().strip_prefix(front)?.trim().parse::<SocketAddr>().ok())
    };
    Some((address("http ")?, address("resp ")?, address("resp-cluster ")))
}

/// Writes `bytes`, then reads until the server closes the connection.
pub fn exchange(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    // A server that refuses early may close before it has read everything; what it said still counts.
    let _ = stream.write_all(bytes);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    reply
}

/// An HTTP response, taken apart.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, which is always text here.
    pub body: String,
}

impl Response {
    /// From the bytes of a connection that carried one response and was closed.
    pub fn parse(bytes: &[u8]) -> Response {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) =
            text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP response: {text:?}"));
        let mut lines = head.split("\r\n");
        let status = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status line");
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        Response { status: status.parse().expect("a status is a number"), headers, body: body.to_owned() }
    }

    /// A header by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}
