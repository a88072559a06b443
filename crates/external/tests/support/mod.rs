//! Real servers for the tests: a redis-server, a cluster of six, and something in between that loses answers.

#![allow(dead_code, reason = "each test uses its part")]
#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

pub mod postgres;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a test waits for something that must happen. Never reached when all is well.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until it is so.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A port that is free, and so is the one that a cluster's nodes would use beside it.
pub fn free_port() -> u16 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let from = u64::from(std::process::id()) * 37;
    for _ in 0..20_000 {
        let port = 20_000 + ((from + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000) as u16;
        if is_free(port) && is_free(port + 10_000) {
            return port;
        }
    }
    panic!("no port is free");
}

/// A redis-server that keeps nothing, and ends with the test.
pub struct Server {
    child: Child,
    pub port: u16,
    folder: tempfile::TempDir,
    arguments: Vec<String>,
}

impl Server {
    pub fn start() -> Server {
        Server::start_with(free_port(), &[])
    }

    /// The same on this port, with more settings.
    pub fn start_with(port: u16, arguments: &[&str]) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let server = Server { child: serve(&folder, port, &arguments), port, folder, arguments };
        server.wait();
        server
    }

    fn wait(&self) {
        wait_until("redis-server answers", || TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok());
    }

    /// Starts it again in the folder that it had: a node of a cluster is the same one then.
    pub fn revive(&mut self) {
        self.child = serve(&self.folder, self.port, &self.arguments);
        self.wait();
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    /// The same with nothing in it.
    pub fn restart(&mut self) {
        self.kill();
        let arguments: Vec<String> = self.arguments.clone();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        *self = Server::start_with(self.port, &arguments);
    }

    /// Sends a signal by its name, as STOP.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn serve(folder: &tempfile::TempDir, port: u16, arguments: &[String]) -> Child {
    Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"])
        .args(arguments)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is installed")
}

/// Three masters with a replica each.
pub struct Cluster {
    pub servers: Vec<Server>,
    /// What clients are told to go to, where that is something else.
    proxies: Vec<Proxy>,
}

impl Cluster {
    pub fn start() -> Cluster {
        Cluster::start_behind(None)
    }

    /// Clients reach the servers through proxies that lose answers.
    pub fn start_behind(losing: Option<&Arc<Losing>>) -> Cluster {
        let (mut servers, mut proxies) = (Vec::new(), Vec::new());
        for _ in 0..6 {
            let port = free_port();
            let mut arguments: Vec<String> = [
                "--cluster-enabled",
                "yes",
                "--cluster-node-timeout",
                "1500",
                "--cluster-require-full-coverage",
                "no",
            ]
            .map(str::to_owned)
            .to_vec();
            if let Some(losing) = losing {
                let proxy = Proxy::start(port, Arc::clone(losing));
                arguments.extend(["--cluster-announce-port".into(), proxy.port.to_string()]);
                arguments.extend(["--cluster-announce-bus-port".into(), (port + 10_000).to_string()]);
                proxies.push(proxy);
            }
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            servers.push(Server::start_with(port, &arguments));
        }
        let cluster = Cluster { servers, proxies };
        let addresses: Vec<String> =
            cluster.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)).collect();
        let mut create = vec!["--cluster", "create"];
        create.extend(addresses.iter().map(String::as_str));
        create.extend(["--cluster-replicas", "1", "--cluster-yes"]);
        redis_cli(&create);
        for server in &cluster.servers {
            wait_until("everybody knows the cluster", || {
                let info: String = redis::cmd("CLUSTER").arg("INFO").query(&mut server.connection()).unwrap();
                info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:6")
            });
        }
        // Redis makes a master of a replica that has nothing yet.
        (0..6).filter(|place| cluster.is_master(*place)).for_each(|place| cluster.wait_for_replica(place));
        cluster
    }

    /// Where a client begins.
    pub fn url(&self) -> String {
        match self.proxies.first() {
            Some(proxy) => proxy.url(),
            None => self.servers[0].url(),
        }
    }

    /// The places of the masters, as everybody agrees.
    pub fn is_master(&self, place: usize) -> bool {
        let role: redis::Value = redis::cmd("ROLE").query(&mut self.servers[place].connection()).unwrap();
        matches!(role, redis::Value::Array(role) if role[0] == redis::Value::BulkString(b"master".to_vec()))
    }

    /// Waits until the replica of a master has all that the master has.
    pub fn wait_for_replica(&self, place: usize) {
        wait_until("the replica has everything", || {
            let mut connection = self.servers[place].connection();
            let info: String = redis::cmd("INFO").arg("replication").query(&mut connection).unwrap();
            let has = |line: &str, part: String| {
                info.lines().any(|known| known.starts_with(line) && known.contains(&part))
            };
            let offset =
                info.lines().find_map(|line| line.strip_prefix("master_repl_offset:")).unwrap_or_default();
            has("slave0:", "state=online".to_owned()) && has("slave0:", format!("offset={},", offset.trim()))
        });
    }

    /// Ranges of slots, and the place of the master that has them.
    pub fn owners(&self) -> Vec<(u16, u16, usize)> {
        let text = |value: &redis::Value| redis::from_redis_value::<u16>(value.clone()).unwrap();
        let mut connection = self.servers[0].connection();
        let rows: Vec<Vec<redis::Value>> = redis::cmd("CLUSTER").arg("SLOTS").query(&mut connection).unwrap();
        let owner = |row: &Vec<redis::Value>| {
            let master: Vec<redis::Value> = redis::from_redis_value(row[2].clone()).unwrap();
            let place = self.servers.iter().position(|server| server.port == text(&master[1])).unwrap();
            (text(&row[0]), text(&row[1]), place)
        };
        rows.iter().map(owner).collect()
    }

    /// The place of a master's replica.
    pub fn replica_of(&self, master: usize) -> usize {
        let follows = |place: &usize| {
            let mut connection = self.servers[*place].connection();
            let role: Vec<redis::Value> = redis::cmd("ROLE").query(&mut connection).unwrap();
            let port = role.get(2).and_then(|port| redis::from_redis_value::<u16>(port.clone()).ok());
            *place != master && port == Some(self.servers[master].port)
        };
        (0..self.servers.len()).find(follows).expect("every master has a replica")
    }

    pub fn id(&self, place: usize) -> String {
        redis::cmd("CLUSTER").arg("MYID").query(&mut self.servers[place].connection()).unwrap()
    }

    /// Moves so many slots, the lowest of one master to another.
    pub fn reshard(&self, from: usize, to: usize, slots: usize) {
        let (address, from, to) = (format!("127.0.0.1:{}", self.servers[0].port), self.id(from), self.id(to));
        let (slots, from, to) = (slots.to_string(), from.as_str(), to.as_str());
        wait_until("everybody agrees where the slots are", || {
            let check = Command::new("redis-cli").args(["--cluster", "check", &address]).output();
            check.unwrap().status.success()
        });
        redis_cli(&[
            "--cluster",
            "reshard",
            &address,
            "--cluster-from",
            from,
            "--cluster-to",
            to,
            "--cluster-slots",
            &slots,
            "--cluster-yes",
        ]);
    }
}

fn redis_cli(arguments: &[&str]) {
    let output = Command::new("redis-cli").args(arguments).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{arguments:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
}

/// How many answers to calls are lost, of all that pass through any proxy.
#[derive(Default)]
pub struct Losing {
    pub left: AtomicI64,
    pub lost: AtomicU64,
    passed: AtomicU64,
}

impl Losing {
    /// Whether this answer is lost: one of four, as long as some are to be lost, and in no rhythm.
    fn loses(&self) -> bool {
        let passed = self.passed.fetch_add(1, Ordering::Relaxed);
        let is_chosen = passed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 == 0;
        if self.left.load(Ordering::Relaxed) <= 0 || !is_chosen {
            return false;
        }
        let is_one = self.left.fetch_sub(1, Ordering::Relaxed) > 0;
        self.lost.fetch_add(u64::from(is_one), Ordering::Relaxed);
        is_one
    }
}

/// Stands before a server. When it loses an answer, the connection ends, and what was asked has been done.
pub struct Proxy {
    pub port: u16,
    is_over: Arc<AtomicBool>,
}

impl Proxy {
    pub fn start(server: u16, losing: Arc<Losing>) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(client), losing) = (client, Arc::clone(&losing)) else { continue };
                std::thread::spawn(move || pass(client, server, &losing));
            }
        });
        Proxy { port, is_over }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

fn pass(mut client: TcpStream, server: u16, losing: &Losing) {
    let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, server)) else { return };
    let (Ok(mut from_client), Ok(mut to_server)) = (client.try_clone(), server.try_clone()) else { return };
    let has_called = Arc::new(AtomicBool::new(false));
    let calls = Arc::clone(&has_called);
    // Of PostgreSQL only the answers to commits are lost: those to anything else mean that nothing was done.
    let is_committing = Arc::new(AtomicBool::new(false));
    let commits = Arc::clone(&is_committing);
    std::thread::spawn(move || {
        let mut bytes = [0; 65_536];
        while let Ok(length @ 1..) = from_client.read(&mut bytes) {
            let has = |word: &[u8]| bytes[..length].windows(word.len()).any(|found| found == word);
            // A call of quipu in Redis, or of a client in quipu. What asks for rights does nothing.
            if has(b"FCALL") && !has(b"_rights") || has(b"Q.ADD") {
                calls.store(true, Ordering::Release);
            }
            if has(b"COMMIT") {
                commits.store(true, Ordering::Release);
            }
            if to_server.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        let _ = to_server.shutdown(Shutdown::Both);
    });
    let mut bytes = [0; 65_536];
    while let Ok(length @ 1..) = server.read(&mut bytes) {
        let is_answer = has_called.load(Ordering::Acquire) || is_committing.swap(false, Ordering::AcqRel);
        if is_answer && losing.loses() {
            break;
        }
        if client.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}
