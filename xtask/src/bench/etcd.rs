//! Three etcd servers that are one, and increments on them: each a transaction that compares and puts.
//!
//! Every connection has counters of its own and knows what it wrote last, so one round trip is enough and none conflicts:
//! the best that increments on etcd can be. They go through the gateway that speaks JSON over HTTP, to the leader, which
//! spares the servers a way.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::interrupt::{Pending, Undo};

/// How long they may take to agree on a leader, and to answer anything.
const PATIENCE: Duration = Duration::from_secs(60);
/// Counters of each connection.
const KEYS: usize = 16;

/// Three servers, killed when dropped.
pub struct Etcd {
    members: Vec<Member>,
}

struct Member {
    child: Child,
    client: SocketAddr,
    _pending: Pending,
}

impl Drop for Member {
    fn drop(&mut self) {
        // It may have ended already; there is nothing to learn from a failure here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a load came to.
pub struct Done {
    /// Increments per second.
    pub throughput: f64,
    /// How long each took, sorted.
    pub waits: Vec<Duration>,
    /// Transactions that found another value and were repeated.
    pub conflicts: u64,
}

impl Etcd {
    /// Starts them with default settings and waits until one leads.
    pub fn start(folder: &Path) -> Result<Etcd> {
        let addresses = free_addresses(6)?;
        let (peers, clients) = addresses.split_at(3);
        let url = |address: &SocketAddr| format!("http://{address}");
        let all: Vec<String> =
            peers.iter().enumerate().map(|(number, peer)| format!("n{number}={}", url(peer))).collect();
        let mut members = Vec::new();
        for (number, (peer, client)) in peers.iter().zip(clients).enumerate() {
            let home = folder.join(format!("etcd-{number}"));
            std::fs::create_dir_all(&home)?;
            let child = Command::new("etcd")
                .args(["--name", &format!("n{number}"), "--initial-cluster", &all.join(",")])
                .args(["--listen-peer-urls", &url(peer), "--initial-advertise-peer-urls", &url(peer)])
                .args(["--listen-client-urls", &url(client), "--advertise-client-urls", &url(client)])
                .arg("--data-dir")
                .arg(home.join("data"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(std::fs::File::create(home.join("log"))?)
                .spawn()
                .context("cannot start etcd")?;
            let pending = Pending::new(Undo::Kill(child.id()));
            members.push(Member { child, client: *client, _pending: pending });
        }
        let etcd = Etcd { members };
        etcd.leader()?;
        Ok(etcd)
    }

    /// Their processes.
    pub fn processes(&self) -> Vec<u32> {
        self.members.iter().map(|member| member.child.id()).collect()
    }

    /// Where the leader is.
    fn leader(&self) -> Result<SocketAddr> {
        let until = Instant::now() + PATIENCE;
        let leads = |client: &SocketAddr| -> Result<bool> {
            let status = Connection::open(*client)?.call("/v3/maintenance/status", &json!({}))?;
            let leader = &status["leader"];
            Ok(leader.as_str().is_some_and(|id| id != "0") && *leader == status["header"]["member_id"])
        };
        loop {
            let clients = self.members.iter().map(|member| member.client);
            if let Some(leader) = clients.into_iter().find(|client| leads(client).unwrap_or(false)) {
                return Ok(leader);
            }
            ensure!(Instant::now() < until, "no etcd leads after {} s", PATIENCE.as_secs());
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Increments on so many connections for so long.
    pub fn increment(&self, connections: usize, length: Duration) -> Result<Done> {
        let leader = self.leader()?;
        let began = Instant::now();
        let start =
            |connection: usize| thread::spawn(move || increment_alone(leader, connection, began + length));
        let threads: Vec<_> = (0..connections).map(start).collect();
        let mut done = Done { throughput: 0.0, waits: Vec::new(), conflicts: 0 };
        for thread in threads {
            let Ok(result) = thread.join() else { bail!("a connection to etcd has panicked") };
            let (waits, conflicts) = result?;
            done.waits.extend(waits);
            done.conflicts += conflicts;
        }
        done.throughput = done.waits.len() as f64 / began.elapsed().as_secs_f64();
        done.waits.sort_unstable();
        Ok(done)
    }
}

fn increment_alone(leader: SocketAddr, number: usize, until: Instant) -> Result<(Vec<Duration>, u64)> {
    let mut connection = Connection::open(leader)?;
    // Value and revision of each counter, as known here.
    let mut known: Vec<(i64, i64)> = vec![(0, 0); KEYS];
    let (mut waits, mut conflicts) = (Vec::new(), 0);
    for turn in 0.. {
        let began = Instant::now();
        if began >= until {
            break;
        }
        let key = format!("counter:{number}:{}", turn % KEYS);
        let known = &mut known[turn % KEYS];
        while !increment_once(&mut connection, &key, known)? {
            conflicts += 1;
        }
        waits.push(began.elapsed());
    }
    Ok((waits, conflicts))
}

/// One transaction; whether it went through. In any case the counter is known afterwards.
fn increment_once(connection: &mut Connection, key: &str, known: &mut (i64, i64)) -> Result<bool> {
    let (value, revision) = *known;
    let (key, next) = (BASE64_STANDARD.encode(key), BASE64_STANDARD.encode((value + 1).to_string()));
    let answer = connection.call(
        "/v3/kv/txn",
        &json!({
            "compare": [{ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string() }],
            "success": [{ "request_put": { "key": key, "value": next } }],
            "failure": [{ "request_range": { "key": key } }],
        }),
    )?;
    let number = |value: &Value| value.as_str().and_then(|text| text.parse::<i64>().ok());
    if answer["succeeded"] == json!(true) {
        let revision = number(&answer["header"]["revision"]);
        *known = (value + 1, revision.with_context(|| format!("etcd said {answer}"))?);
        return Ok(true);
    }
    let found = &answer["responses"][0]["response_range"]["kvs"][0];
    let read = || {
        let text = BASE64_STANDARD.decode(found["value"].as_str()?).ok()?;
        Some((String::from_utf8(text).ok()?.parse().ok()?, number(&found["mod_revision"])?))
    };
    *known = read().with_context(|| format!("etcd said {answer}"))?;
    Ok(false)
}

/// HTTP that is kept alive.
struct Connection {
    stream: TcpStream,
    replies: BufReader<TcpStream>,
}

impl Connection {
    fn open(address: SocketAddr) -> Result<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Connection { replies: BufReader::new(stream.try_clone()?), stream })
    }

    fn call(&mut self, path: &str, body: &Value) -> Result<Value> {
        let body = body.to_string();
        let head = format!("POST {path} HTTP/1.1\r\nHost: etcd\r\nContent-Length: {}\r\n\r\n", body.len());
        self.stream.write_all((head + &body).as_bytes())?;
        let status = self.line()?;
        let mut length = 0;
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
        }
        let mut body = vec![0; length];
        self.replies.read_exact(&mut body)?;
        ensure!(status.contains(" 200 "), "etcd said {status}: {}", String::from_utf8_lossy(&body));
        Ok(serde_json::from_slice(&body)?)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.replies.read_line(&mut line)? > 0, "etcd has closed the connection");
        Ok(line.trim_end().to_string())
    }
}

/// Ports that were free a moment ago, all different.
fn free_addresses(count: usize) -> Result<Vec<SocketAddr>> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<std::io::Result<_>>()?;
    Ok(listeners.iter().map(TcpListener::local_addr).collect::<std::io::Result<_>>()?)
}
