//! The nodes: real servers, founded by the command line, each where the network puts it.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::clients::Connection;
use super::ways::Ways;
use super::{proxy, switch};
use crate::interrupt::{Pending, Undo};

/// Of a cluster, unless its first folder was used before.
pub const PARTITIONS: usize = 16;
/// How many nodes hold each partition.
const REPLICAS: usize = 3;
/// Room for the data of a node whose disk gets full: more than its log and counters need.
const SMALL_DISK: &str = "size=600m";
/// How long a cluster may take to begin, or a server to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a cluster may take to begin whose first folder has counters.
const BEGIN_MAX: Duration = Duration::from_secs(600);
/// How long it may take to use up what a log has reserved, and how long a log that had more to write stands still then.
const FILL_MAX: Duration = Duration::from_secs(60);
const STANDS_STILL: Duration = Duration::from_secs(2);
/// How long a node may take to describe the cluster.
const HTTP_MAX: Duration = Duration::from_secs(1);
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// How nodes reach each other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Form {
    /// Each in a network namespace, through a switch.
    Namespaces,
    /// All on this machine's loopback, through proxies.
    Proxy,
    /// All on loopback and nothing between them, for measurements: nothing can be done to the network or to a disk.
    Direct,
}

/// All nodes, by their seats: one that left is never followed by another in its seat.
pub struct Nodes {
    binary: PathBuf,
    folder: PathBuf,
    form: Form,
    /// How the ways between them are.
    pub ways: Arc<Ways>,
    nodes: Vec<Node>,
    processes: proxy::Processes,
}

struct Node {
    data: PathBuf,
    log: PathBuf,
    resp: SocketAddr,
    http: SocketAddr,
    running: Option<Running>,
    /// Whether it left for good, and its folder with it.
    is_gone: bool,
    /// A file system of its own, mounted around the data.
    small_disk: Option<Mount>,
}

struct Running {
    child: Child,
    _pending: Pending,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already; there is nothing to learn from a failure here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Mount {
    at: PathBuf,
    _pending: Pending,
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).output();
    }
}

impl Nodes {
    /// Founds a cluster and waits until it serves. So many more nodes may join later.
    pub fn found(binary: &Path, folder: &Path, count: usize, more: usize, form: Form) -> Result<Nodes> {
        let seats = count + more;
        let ways = Arc::new(Ways::new(seats));
        let processes: proxy::Processes = Arc::new((0..seats).map(|_| AtomicU32::new(0)).collect());
        if form == Form::Namespaces {
            switch::start(folder, seats, &ways)?;
        }
        let mut nodes = Nodes {
            binary: binary.to_path_buf(),
            folder: folder.to_path_buf(),
            form,
            ways,
            nodes: Vec::new(),
            processes,
        };
        for node in 0..count {
            nodes.prepare(node, node < 2)?;
        }
        for node in 0..count {
            nodes.start(node)?;
        }
        nodes.wait_until_whole()?;
        Ok(nodes)
    }

    fn prepare(&mut self, node: usize, on_small_disk: bool) -> Result<()> {
        let home = self.folder.join(format!("node-{}", node + 1));
        std::fs::create_dir_all(&home)?;
        // Most nodes keep a real disk: syncing it is part of what may go wrong.
        let small_disk = if on_small_disk && self.form != Form::Direct { mount(&home) } else { None };
        let (peer, address, resp, http) = match self.form {
            Form::Namespaces => {
                let at = |port: u16| SocketAddr::from((switch::address(node), port));
                (at(7072), at(7072), at(7071), at(7070))
            }
            Form::Proxy => {
                let [peer, resp, http] = free_addresses()?;
                (peer, proxy::start(node, peer, &self.processes, &self.ways)?, resp, http)
            }
            Form::Direct => {
                let [peer, resp, http] = free_addresses()?;
                (peer, peer, resp, http)
            }
        };
        let data = home.join("data");
        let place = ["--peer", &peer.to_string(), "--peer-address", &address.to_string()].map(String::from);
        if node == 0 {
            self.call(&["cluster", "init", "--data", text(&data)], &place)?;
        } else {
            let first = self.nodes[0].data.clone();
            let invitation = self.folder.join("invitation.toml");
            std::fs::write(&invitation, self.call(&["cluster", "invite", "--data", text(&first)], &[])?)?;
            self.call(&["cluster", "join", text(&invitation), "--data", text(&data)], &place)?;
        }
        let log = self.folder.join(format!("node-{}.log", node + 1));
        self.nodes.push(Node { data, log, resp, http, small_disk, running: None, is_gone: false });
        Ok(())
    }

    fn call(&self, words: &[&str], more: &[String]) -> Result<String> {
        let output = Command::new(&self.binary).args(words).args(more).output()?;
        ensure!(
            output.status.success(),
            "quipu {}: {}",
            words.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The seats of those that have not left.
    pub fn seats(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|seat| !self.nodes[*seat].is_gone).collect()
    }

    /// Where clients reach them.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().filter(|node| !node.is_gone).map(|node| node.resp).collect()
    }

    /// Where clients reach one of them.
    pub fn address(&self, number: usize) -> SocketAddr {
        self.nodes[number].resp
    }

    /// Whether another can join.
    pub fn has_room(&self) -> bool {
        self.nodes.len() < self.processes.len()
    }

    /// A new node joins by an invitation of the first. Returns its seat.
    pub fn join(&mut self, on_small_disk: bool) -> Result<usize> {
        ensure!(self.has_room(), "no seats are left");
        let number = self.nodes.len();
        self.prepare(number, on_small_disk)?;
        self.start(number)?;
        Ok(number)
    }

    /// Tells the cluster that a node shall leave; whether it has heard that.
    pub fn remove(&self, number: usize) -> bool {
        let path = format!("/api/v1/cluster/nodes/{}", number + 1);
        let others = self.nodes.iter().enumerate().filter(|(other, _)| *other != number);
        let mut running = others.map(|(_, node)| node).filter(|node| node.running.is_some());
        running.any(|node| http(node.http, "DELETE", &path).is_some())
    }

    /// Kills a node and deletes all it had.
    pub fn destroy(&mut self, number: usize) -> Result<()> {
        self.kill(number)?;
        let node = &mut self.nodes[number];
        std::fs::remove_dir_all(&node.data)?;
        node.small_disk = None;
        node.is_gone = true;
        Ok(())
    }

    /// The cluster as these nodes describe it, if they can.
    fn described(&self, seats: &[usize]) -> Vec<Option<Value>> {
        seats.iter().map(|seat| http(self.nodes[*seat].http, "GET", "/api/v1/cluster")).collect()
    }

    /// Whether somebody else says that a node belongs to the cluster.
    pub fn has(&self, number: usize) -> bool {
        let has = |told: Value| told["nodes"].as_array().is_some_and(|nodes| has_seat(nodes, number));
        let others: Vec<usize> = self.seats().into_iter().filter(|seat| *seat != number).collect();
        self.described(&others).into_iter().flatten().any(has)
    }

    /// Whether all others say that a node does not belong to the cluster.
    pub fn lacks(&self, number: usize) -> bool {
        let others: Vec<usize> = self.seats().into_iter().filter(|seat| *seat != number).collect();
        let lacks = |told: Option<Value>| {
            told.is_some_and(|told| told["nodes"].as_array().is_some_and(|nodes| !has_seat(nodes, number)))
        };
        self.described(&others).into_iter().all(lacks)
    }

    /// Whether these and nobody else belong to the cluster and are given partitions, and whoever leads one finds it where it
    /// should be.
    pub fn is_settled(&self, seats: &[usize]) -> bool {
        let mut settled = BTreeSet::new();
        for told in self.described(seats) {
            let Some(told) = told else { return false };
            let nodes = told["nodes"].as_array().cloned().unwrap_or_default();
            if nodes.len() != seats.len() || !seats.iter().all(|seat| has_seat(&nodes, *seat)) {
                return false;
            }
            let mut holders = BTreeSet::new();
            for partition in told["partitions"].as_array().into_iter().flatten() {
                holders
                    .extend(partition["replicas"].as_array().into_iter().flatten().filter_map(Value::as_u64));
                match &partition["settled"] {
                    Value::Bool(true) => drop(settled.insert(partition["partition"].as_u64())),
                    Value::Bool(false) => return false,
                    _ => {}
                }
            }
            // Who has joined is given its share a moment later.
            if holders != seats.iter().map(|seat| *seat as u64 + 1).collect() {
                return false;
            }
        }
        settled.len() == PARTITIONS
    }

    /// The replicas that their leaders find behind, or have not heard of: partition, seat.
    pub fn behind(&self) -> Vec<(u64, usize)> {
        let told = self.described(&self.seats());
        let partitions =
            told.iter().flatten().flat_map(|told| told["partitions"].as_array().into_iter().flatten());
        let mut behind = Vec::new();
        for partition in partitions {
            let others = partition["behind"].as_array().into_iter().flatten();
            for other in others.filter(|other| other["entries"].as_u64() != Some(0)) {
                let seat = other["node"].as_u64().unwrap_or_default() as usize - 1;
                behind.push((partition["partition"].as_u64().unwrap_or_default(), seat));
            }
        }
        behind
    }

    /// The processes of those that run.
    pub fn processes(&self) -> Vec<u32> {
        self.nodes.iter().filter_map(|node| Some(node.running.as_ref()?.child.id())).collect()
    }

    /// What they said.
    pub fn logs(&self) -> Vec<PathBuf> {
        self.nodes.iter().map(|node| node.log.clone()).collect()
    }

    /// Whether the disk of a node can be filled without harm to anybody else.
    pub fn has_small_disk(&self, number: usize) -> bool {
        self.nodes[number].small_disk.is_some()
    }

    /// Starts a node that does not run.
    pub fn start(&mut self, number: usize) -> Result<()> {
        let node = &mut self.nodes[number];
        if node.running.is_some() {
            return Ok(());
        }
        let mut command = match self.form {
            Form::Namespaces => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={}", switch::namespace(&self.folder, number).display()));
                command.arg(&self.binary);
                command
            }
            Form::Proxy | Form::Direct => Command::new(&self.binary),
        };
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("QUIPU_"))
        {
            command.env_remove(name);
        }
        let log = OpenOptions::new().create(true).append(true).open(&node.log)?;
        command
            .args([
                "serve",
                "--insecure",
                "--http",
                &node.http.to_string(),
                // Nobody asks there, but two nodes on one machine cannot have the same.
                "--resp-cluster",
                "127.0.0.1:0",
                "--resp",
                &node.resp.to_string(),
                "--data",
            ])
            .arg(&node.data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        self.processes[number].store(child.id(), Ordering::Relaxed);
        let pending = Pending::new(Undo::Kill(child.id()));
        node.running = Some(Running { child, _pending: pending });
        Ok(())
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self, number: usize) -> Result<()> {
        self.processes[number].store(0, Ordering::Relaxed);
        if let Some(mut running) = self.nodes[number].running.take() {
            running.child.kill()?;
            running.child.wait()?;
        }
        Ok(())
    }

    /// SIGSTOP, SIGCONT and their like. What does not run does not care.
    pub fn signal(&self, number: usize, signal: Signal) -> Result<()> {
        let process = self.nodes[number].running.as_ref().map(|running| running.child.id() as i32);
        if let Some(process) = process.and_then(Pid::from_raw) {
            kill_process(process, signal)?;
        }
        Ok(())
    }

    /// Nodes that have ended without being told to, since the last look.
    pub fn ended(&mut self) -> Result<Vec<(usize, ExitStatus)>> {
        let mut ended = Vec::new();
        for (number, node) in self.nodes.iter_mut().enumerate() {
            if let Some(running) = &mut node.running
                && let Some(status) = running.child.try_wait()?
            {
                node.running = None;
                self.processes[number].store(0, Ordering::Relaxed);
                ended.push((number, status));
            }
        }
        Ok(ended)
    }

    /// Fills the small disk of a node to the last byte.
    pub fn fill_disk(&self, number: usize) -> Result<()> {
        let mut ballast = File::create(self.ballast(number))?;
        for size in [1 << 20, 4096, 1] {
            let piece = vec![0xff; size];
            while ballast.write_all(&piece).is_ok() {}
        }
        Ok(())
    }

    /// Waits until the log of a node on a full disk has used up what it had reserved: it stands still although there is more to
    /// write. Returns whether that came to pass in time; a node that ended over it counts too.
    pub fn wait_until_log_is_full(&mut self, number: usize) -> Result<bool> {
        let began = Instant::now();
        let (mut end, mut moved) = (None, Instant::now());
        while began.elapsed() < FILL_MAX {
            let node = &mut self.nodes[number];
            if let Some(running) = &mut node.running
                && running.child.try_wait()?.is_some()
            {
                return Ok(true);
            }
            let now = fact(node.resp, "log_end");
            if now.is_some() && now != end {
                (end, moved) = (now, Instant::now());
            }
            if now.is_some() && moved.elapsed() > STANDS_STILL {
                return Ok(true);
            }
            thread::sleep(LOOK_PAUSE);
        }
        Ok(false)
    }

    /// Makes room again.
    pub fn empty_disk(&self, number: usize) -> Result<()> {
        Ok(std::fs::remove_file(self.ballast(number))?)
    }

    fn ballast(&self, number: usize) -> PathBuf {
        self.folder.join(format!("node-{}/ballast", number + 1))
    }

    /// Waits until all know each other and every partition is where it shall be.
    pub fn wait_until_whole(&mut self) -> Result<()> {
        let until = Instant::now() + BEGIN_MAX;
        let count = self.seats().len();
        loop {
            let facts: Vec<Option<(usize, usize)>> = self.addresses().into_iter().map(facts).collect();
            let knows_all = facts.iter().all(|facts| facts.is_some_and(|(nodes, _)| nodes == count));
            let held: usize = facts.iter().flatten().map(|(_, held)| held).sum();
            if knows_all && held == PARTITIONS * REPLICAS.min(count) {
                return Ok(());
            }
            if let Some((node, status)) = self.ended()?.first() {
                bail!("node {} ended: {status}: {}", node + 1, self.last_words(*node));
            }
            if Instant::now() >= until {
                let words: Vec<String> = (0..self.nodes.len()).map(|node| self.last_words(node)).collect();
                bail!("the cluster is not whole: {facts:?}\n{}", words.join("\n"));
            }
            thread::sleep(LOOK_PAUSE);
        }
    }

    /// The end of what a node said.
    pub fn last_words(&self, number: usize) -> String {
        let log = std::fs::read_to_string(&self.nodes[number].log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// SIGTERM to all, and waits for their orderly ends.
    pub fn stop(&mut self) -> Result<()> {
        for number in 0..self.nodes.len() {
            self.signal(number, Signal::TERM)?;
        }
        let until = Instant::now() + PATIENCE;
        while self.nodes.iter().any(|node| node.running.is_some()) {
            for (number, status) in self.ended()? {
                ensure!(status.success(), "node {}: {status}: {}", number + 1, self.last_words(number));
            }
            ensure!(Instant::now() < until, "a node does not end on SIGTERM");
            thread::sleep(LOOK_PAUSE);
        }
        Ok(())
    }

    /// Of nodes that were stopped: by node, the digests of its partitions.
    pub fn digests(&self) -> Result<Vec<Vec<Digest>>> {
        let digest = |node: &Node| {
            let printed = self.call(&["cluster", "digest", "--json", "--data", text(&node.data)], &[])?;
            let printed: Value = serde_json::from_str(&printed)?;
            let partitions = printed["partitions"].as_array().context("no partitions")?;
            Ok(partitions
                .iter()
                .map(|partition| Digest {
                    partition: partition["partition"].as_u64().unwrap_or_default(),
                    sequence: partition["sequence"].as_u64().unwrap_or_default(),
                    digest: partition["digest"].as_str().unwrap_or_default().to_string(),
                })
                .collect())
        };
        self.nodes.iter().filter(|node| !node.is_gone).map(digest).collect()
    }

    /// Whether the folders of all stopped nodes are whole.
    pub fn check_folders(&self) -> Result<()> {
        for node in self.nodes.iter().filter(|node| !node.is_gone) {
            self.call(&["check", "--quiet", text(&node.data)], &[])?;
        }
        Ok(())
    }
}

/// What a replica of a partition holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Digest {
    /// Which partition.
    pub partition: u64,
    /// Its last change.
    pub sequence: u64,
    /// All that is in it.
    pub digest: String,
}

/// Whether the node of a seat is among these.
fn has_seat(nodes: &[Value], seat: usize) -> bool {
    nodes.iter().any(|node| node["node"].as_u64() == Some(seat as u64 + 1))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// A small disk at a folder, where we may.
fn mount(home: &Path) -> Option<Mount> {
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", SMALL_DISK, "none"]).arg(home).output();
    let at = home.to_path_buf();
    let mounted = mounted.is_ok_and(|output| output.status.success());
    mounted.then(|| Mount { _pending: Pending::new(Undo::Unmount(at.clone())), at })
}

/// Below the ports that the system gives out by itself: a node that is down for a while must find its own free.
fn free_addresses() -> Result<[SocketAddr; 3]> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = (std::process::id() % 997) * 11 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 12_000 + (number % 6_000) as u16 * 3;
        let addresses = [port, port + 1, port + 2].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        if addresses.iter().all(|address| TcpListener::bind(address).is_ok()) {
            return Ok(addresses);
        }
    }
}

/// A request without a body, and its answer if it is a good one. Who stands still is not waited for.
fn http(address: SocketAddr, method: &str, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect_timeout(&address, HTTP_MAX).ok()?;
    stream.set_read_timeout(Some(HTTP_MAX)).ok()?;
    let request =
        format!("{method} {path} HTTP/1.1\r\nHost: quipu\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    let (head, body) = reply.split_once("\r\n\r\n")?;
    let is_good = head.split(' ').nth(1) == Some("200");
    is_good.then(|| serde_json::from_str(body).ok())?
}

/// How many nodes a server knows, and how many partitions it holds.
fn facts(address: SocketAddr) -> Option<(usize, usize)> {
    Some((fact(address, "cluster_nodes")?, fact(address, "cluster_partitions_held")?))
}

/// A number that a server tells of itself.
fn fact(address: SocketAddr, name: &str) -> Option<usize> {
    let info = Connection::open(address).ok()?.info().ok()?;
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok())
}
