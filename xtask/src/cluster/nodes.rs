//! The nodes: real servers, founded by the command line, each where the network puts it.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
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

/// All nodes.
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
    running: Option<Running>,
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
    /// Founds a cluster and waits until it serves.
    pub fn found(binary: &Path, folder: &Path, count: usize, form: Form) -> Result<Nodes> {
        let ways = Arc::new(Ways::new(count));
        let processes: proxy::Processes = Arc::new((0..count).map(|_| AtomicU32::new(0)).collect());
        if form == Form::Namespaces {
            switch::start(folder, count, &ways)?;
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
            nodes.prepare(node)?;
        }
        for node in 0..count {
            nodes.start(node)?;
        }
        nodes.wait_until_whole()?;
        Ok(nodes)
    }

    fn prepare(&mut self, node: usize) -> Result<()> {
        let home = self.folder.join(format!("node-{}", node + 1));
        std::fs::create_dir_all(&home)?;
        // Most nodes keep a real disk: syncing it is part of what may go wrong.
        let small_disk = if node < 2 && self.form != Form::Direct { mount(&home) } else { None };
        let (peer, address, resp) = match self.form {
            Form::Namespaces => {
                let at = |port: u16| SocketAddr::from((switch::address(node), port));
                (at(7074), at(7074), at(7071))
            }
            Form::Proxy => {
                let [peer, resp] = two_free_addresses()?;
                (peer, proxy::start(node, peer, &self.processes, &self.ways)?, resp)
            }
            Form::Direct => {
                let [peer, resp] = two_free_addresses()?;
                (peer, peer, resp)
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
        self.nodes.push(Node { data, log, resp, small_disk, running: None });
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

    /// How many.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Where clients reach them.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| node.resp).collect()
    }

    /// The processes of those that run.
    pub fn processes(&self) -> Vec<u32> {
        self.nodes.iter().filter_map(|node| Some(node.running.as_ref()?.child.id())).collect()
    }

    /// What they said.
    pub fn logs(&self) -> Vec<PathBuf> {
        self.nodes.iter().map(|node| node.log.clone()).collect()
    }

    /// The nodes whose disk can be filled without harm to anybody else.
    pub fn with_small_disk(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|node| self.nodes[*node].small_disk.is_some()).collect()
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

    /// Makes room again.
    pub fn empty_disk(&self, number: usize) -> Result<()> {
        Ok(std::fs::remove_file(self.ballast(number))?)
    }

    fn ballast(&self, number: usize) -> PathBuf {
        self.folder.join(format!("node-{}/ballast", number + 1))
    }

    /// Waits until all know each other and every partition is where it shall be.
    pub fn wait_until_whole(&mut self) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        let count = self.nodes.len();
        loop {
            let facts: Vec<Option<(usize, usize)>> = self.nodes.iter().map(|node| facts(node.resp)).collect();
            let knows_all = facts.iter().all(|facts| facts.is_some_and(|(nodes, _)| nodes == count));
            let held: usize = facts.iter().flatten().map(|(_, held)| held).sum();
            if knows_all && held == PARTITIONS * REPLICAS.min(count) {
                return Ok(());
            }
            if let Some((node, status)) = self.ended()?.first() {
                bail!("node {} ended: {status}: {}", node + 1, self.last_words(*node));
            }
            ensure!(Instant::now() < until, "the cluster is not whole: {facts:?}");
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
        self.nodes.iter().map(digest).collect()
    }

    /// Whether the folders of all stopped nodes are whole.
    pub fn check_folders(&self) -> Result<()> {
        for node in &self.nodes {
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
fn two_free_addresses() -> Result<[SocketAddr; 2]> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = (std::process::id() % 997) * 11 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 12_000 + (number % 9_000) as u16 * 2;
        let addresses = [port, port + 1].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        if addresses.iter().all(|address| TcpListener::bind(address).is_ok()) {
            return Ok(addresses);
        }
    }
}

/// How many nodes a server knows, and how many partitions it holds.
fn facts(address: SocketAddr) -> Option<(usize, usize)> {
    let info = Connection::open(address).ok()?.info().ok()?;
    let fact = |name: &str| {
        info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse::<usize>().ok())
    };
    Some((fact("cluster_nodes")?, fact("cluster_partitions_held")?))
}
