//! `quipu cluster`: data folders that belong to nodes of a cluster, and a cluster for trying it out.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use quipu_engine::{Digest, Options};
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::{Call, Client};
use super::failure::Failure;
use super::interrupt::{Interrupt, end_by};
use super::terminal;
use crate::cluster::folder::{self, Place, REPLICAS_DEFAULT};
use crate::config;

/// How long a cluster for trying it out may take to begin.
const BEGIN_MAX: Duration = Duration::from_secs(60);

/// cluster
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Make a data folder that of the first node of a new cluster
    #[command(after_help = "Example:
  quipu cluster init --data one --peer 10.0.0.1:7072
  quipu serve --data one

What the folder has counted so far is the beginning of the cluster. The folder keeps the key that invites other nodes.")]
    Init {
        /// The data folder; no server may be using it
        #[arg(long)]
        data: PathBuf,
        #[command(flatten)]
        place: Place,
        /// How many nodes shall hold each counter
        #[arg(long, default_value_t = REPLICAS_DEFAULT, value_parser = clap::value_parser!(u16).range(1..=7))]
        replicas: u16,
        /// How long request ids are remembered, on all nodes
        #[arg(long, default_value = "24h", value_parser = config::id_window)]
        id_window: u64,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Invite another node: prints its invitation
    #[command(after_help = "Example:
  quipu cluster invite --data one > two.toml

An invitation is a secret: whoever has it can join, and read and change everything. It is for one node.")]
    Invite {
        /// The data folder of the first node
        #[arg(long)]
        data: PathBuf,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Invite a node that takes the place of another, which may be lost with its disk: prints its invitation
    #[command(after_help = "Example:
  quipu cluster replace 3 --data one > four.toml  # and on the new machine
  quipu cluster join four.toml --data four --peer 10.0.0.4:7072
  quipu serve --data four

When the new node has joined, the other one leaves: the new one takes over its share from the nodes that are left.
One that has the address of the other joins when that has left. A node that was replaced cannot come back.")]
    Replace {
        /// The number of the node that is replaced
        node: u64,
        /// The data folder of the first node
        #[arg(long)]
        data: PathBuf,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Make a new data folder that of the node an invitation is for
    #[command(after_help = "Example:
  quipu cluster join two.toml --data two --peer 10.0.0.2:7072
  quipu serve --data two

The server joins when it starts, takes over its share of the counters, and goes on from there after every restart.")]
    Join {
        /// The invitation
        invitation: PathBuf,
        /// The data folder; it must be new
        #[arg(long)]
        data: PathBuf,
        #[command(flatten)]
        place: Place,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Compare replicas: what a stopped node holds, a number for each partition
    #[command(after_help = "Example:
  quipu cluster digest --data one

Nodes that were stopped while nobody counted have the same digest of a partition, if they hold it.")]
    Digest {
        /// The data folder; no server may be using it
        #[arg(long)]
        data: PathBuf,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Show who belongs to the cluster and who holds what
    #[command(after_help = "Example:\n  quipu cluster status --server http://10.0.0.1:7070")]
    Status {
        #[command(flatten)]
        client: Client,
    },
    /// Let a node leave: others take over what it holds, then it is gone
    #[command(after_help = "Example:
  quipu cluster remove 3

The node may be lost already, with its disk; `quipu cluster replace` puts another in its place.
A node that was removed cannot come back.")]
    Remove {
        /// Its number
        node: u64,
        #[command(flatten)]
        client: Client,
    },
    /// Run a cluster on this machine, for trying it out
    #[command(after_help = "Example:
  quipu cluster dev --nodes 3
  redis-cli -p 7081 incr likes     # any node will do
  redis-cli -c -p 7073 incr likes  # or one that sends you to the leader
  curl localhost:7090/api/v1/counters/likes

Ctrl-C ends it, and removes all it counted.")]
    Dev {
        /// How many nodes
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=9))]
        nodes: u16,
        /// The ports of node n: HTTP at this plus ten times n - 1, RESP one above, other nodes two above, Redis Cluster three above
        #[arg(long, default_value_t = 7070, value_parser = clap::value_parser!(u16).range(1..))]
        port: u16,
        /// Print JSON, for programs: one line once it serves
        #[arg(long)]
        json: bool,
    },
}

impl Command {
    /// Does it.
    pub fn run(&self) -> Result<(), Failure> {
        match self {
            Command::Init { data, place, replicas, id_window, json } => {
                let identity = folder::init(data, place, *replicas, PARTITIONS, *id_window)?;
                match json {
                    true => terminal::print(json!({ "node": identity.node, "cluster": identity.cluster })),
                    false => terminal::print(format!(
                        "{} is that of node 1 of cluster {} now; start it with: quipu serve --data {}",
                        data.display(),
                        identity.cluster,
                        data.display()
                    )),
                }
            }
            Command::Invite { data, json } => invite(data, None, *json),
            Command::Replace { node, data, json } => invite(data, Some(*node), *json),
            Command::Join { invitation, data, place, json } => {
                let text = std::fs::read_to_string(invitation)
                    .with_context(|| format!("cannot read {}", invitation.display()))?;
                let identity = folder::join(&text, data, place)?;
                match json {
                    true => terminal::print(json!({ "node": identity.node, "cluster": identity.cluster })),
                    false => terminal::print(format!(
                        "{} is that of node {} now; start it with: quipu serve --data {}",
                        data.display(),
                        identity.node,
                        data.display()
                    )),
                }
            }
            Command::Digest { data, json } => digest(data, *json),
            Command::Status { client } => status(client),
            Command::Remove { node, client } => {
                let path = format!("cluster/nodes/{node}");
                let call = Call { method: "DELETE", path, id: None, body: None };
                let leaving: Option<Value> = client.call(&call)?;
                match leaving {
                    Some(_) => terminal::print(format!(
                        "node {node} is leaving; `quipu cluster status` shows it until it holds nothing any more"
                    )),
                    None => Ok(()),
                }
            }
            Command::Dev { nodes, port, json } => dev(*nodes, *port, *json),
        }
    }
}

fn invite(data: &Path, replaces: Option<u64>, json: bool) -> Result<(), Failure> {
    let (node, invitation) = folder::invite(data, replaces)?;
    match json {
        true => terminal::print(json!({ "node": node, "invitation": invitation })),
        false => terminal::print(invitation.trim_end()),
    }
}

fn digest(data: &Path, json: bool) -> Result<(), Failure> {
    let digests = quipu_cluster::digest::digests(data).map_err(anyhow::Error::msg)?;
    if json {
        let shown: Vec<Value> = digests
            .iter()
            .map(|(partition, digest)| {
                json!({
                    "partition": partition,
                    "sequence": digest.sequence,
                    "counters": digest.counters,
                    "requestIds": digest.request_ids,
                    "digest": format!("{:032x}", digest.sum),
                })
            })
            .collect();
        return terminal::print(json!({ "partitions": shown }));
    }
    let lines: Vec<String> = digests
        .iter()
        .map(|(partition, Digest { sequence, counters, request_ids, sum })| {
            format!("partition {partition:>2}   {sum:032x}   {sequence} changes, {counters} counters, {request_ids} request ids")
        })
        .collect();
    terminal::print(lines.join("\n"))
}

/// Of a cluster whose first folder is new.
const PARTITIONS: u16 = 16;

/// As a server describes it, as far as people are shown.
#[derive(Deserialize)]
struct Cluster {
    cluster: String,
    epoch: u64,
    node: u64,
    problem: Option<String>,
    nodes: Vec<ClusterNode>,
    partitions: Vec<ClusterPartition>,
}

#[derive(Deserialize)]
struct ClusterNode {
    node: u64,
    address: String,
    http: String,
    zone: Option<String>,
    leaving: bool,
    reached: bool,
}

#[derive(Deserialize)]
struct ClusterPartition {
    leader: Option<u64>,
    replicas: Vec<u64>,
    settled: Option<bool>,
}

fn status(client: &Client) -> Result<(), Failure> {
    let Some(found) = client.call::<Cluster>(&Call::get("cluster"))? else { return Ok(()) };
    let mut text =
        format!("cluster {}, epoch {}, {} partitions\n", found.cluster, found.epoch, found.partitions.len());
    for node in &found.nodes {
        let holds =
            found.partitions.iter().filter(|partition| partition.replicas.contains(&node.node)).count();
        let leads = found.partitions.iter().filter(|partition| partition.leader == Some(node.node)).count();
        let zone = node.zone.as_ref().map_or_else(String::new, |zone| format!("   zone {zone}"));
        let leaving = if node.leaving { "   leaving" } else { "" };
        let reached = if node.reached { "" } else { "   NOT REACHED" };
        text.push_str(&format!(
            "  node {}   holds {holds}   leads {leads}   nodes {}   http {}{zone}{leaving}{reached}\n",
            node.node, node.address, node.http
        ));
    }
    let leaderless = found.partitions.iter().filter(|partition| partition.leader.is_none()).count();
    if leaderless > 0 {
        text.push_str(&format!("  {leaderless} partitions have no leader at the moment\n"));
    }
    let unsettled = found.partitions.iter().filter(|partition| partition.settled == Some(false)).count();
    if unsettled > 0 {
        text.push_str(&format!(
            "  {unsettled} partitions are not yet held by all who shall: a node that is lost now may take them along\n"
        ));
    }
    if let Some(problem) = &found.problem {
        text.push_str(&format!("  node {}, which was asked: {problem}\n", found.node));
    }
    terminal::print(text.trim_end())
}

/// A server of the cluster for trying it out.
struct Server {
    child: Child,
    http: SocketAddr,
    resp: SocketAddr,
    resp_cluster: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        // The folder goes with it, so nothing is lost by not waiting for a last flush.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn dev(nodes: u16, port: u16, json: bool) -> Result<(), Failure> {
    if u32::from(port) + 10 * u32::from(nodes) > u32::from(u16::MAX) {
        return Err(Failure::usage(anyhow::anyhow!("--port {port} leaves no ports for {nodes} nodes")));
    }
    let interrupt = Interrupt::watch().context("cannot watch for Ctrl-C")?;
    let folder = tempfile::Builder::new().prefix("quipu-dev").tempdir().context("cannot make a folder")?;
    let first = folder.path().join("1");
    let mut servers: Vec<Server> = Vec::new();
    for node in 1..=nodes {
        let base = port + 10 * (node - 1);
        let local = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let place = Place { peer: local(base + 2), peer_address: None, zone: None };
        let data = folder.path().join(node.to_string());
        match node {
            1 => {
                let id_window_ms = Options::default().id_window_ms;
                folder::init(&data, &place, REPLICAS_DEFAULT, PARTITIONS, id_window_ms)?;
            }
            _ => {
                let (_, invitation) = folder::invite(&first, None)?;
                folder::join(&invitation, &data, &place)?;
            }
        }
        servers.push(start(&data, local(base), local(base + 1), local(base + 3))?);
    }
    if let Some(signal) = wait_until_whole(&servers, &interrupt)? {
        drop((servers, folder));
        end_by(signal);
    }
    if json {
        let shown: Vec<Value> = servers
            .iter()
            .map(|server| {
                json!({
                    "http": server.http, "resp": server.resp, "respCluster": server.resp_cluster,
                    "pid": server.child.id(),
                })
            })
            .collect();
        terminal::print(json!({ "nodes": shown }))?;
    } else {
        let mut text = match nodes {
            1 => "1 node serves. Ctrl-C ends it.\n".to_owned(),
            _ => format!("{nodes} nodes serve; any of them counts. Ctrl-C ends them.\n"),
        };
        for (server, node) in servers.iter().zip(1..) {
            let Server { http, resp, resp_cluster, .. } = server;
            text.push_str(&format!(
                "  node {node}   resp {resp}   http {http}   redis cluster {resp_cluster}\n"
            ));
        }
        terminal::print(text.trim_end())?;
    }
    let mut ended = vec![false; servers.len()];
    while interrupt.received().is_none() {
        interrupt.wait(Duration::from_secs(1));
        for ((server, ended), node) in servers.iter_mut().zip(&mut ended).zip(1..) {
            if let (false, Ok(Some(status))) = (*ended, server.child.try_wait()) {
                *ended = true;
                terminal::print_note(&format!(
                    "node {node} (process {}) has ended: {status}",
                    server.child.id()
                ));
            }
        }
    }
    drop(servers);
    Ok(())
}

fn start(
    data: &Path,
    http: SocketAddr,
    resp: SocketAddr,
    resp_cluster: SocketAddr,
) -> anyhow::Result<Server> {
    let program = std::env::current_exe().context("where is this program?")?;
    // Settings of this shell are about other servers: a backend or another durability would make these something else.
    let foreign = std::env::vars_os().map(|(name, _)| name);
    let foreign = foreign.filter(|name| name.to_string_lossy().starts_with("QUIPU_"));
    let mut process = Process::new(program);
    for name in foreign {
        process.env_remove(name);
    }
    let mut child = process
        .args(["serve", "--json", "--data"])
        .arg(data)
        .args(["--http", &http.to_string(), "--resp", &resp.to_string()])
        .args(["--resp-cluster", &resp_cluster.to_string()])
        .args(["--parent", &std::process::id().to_string()])
        .env("QUIPU_LOG", "error")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .context("cannot start a server")?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line).context("a server says nothing")?;
    }
    let server = Server { child, http, resp, resp_cluster };
    if line.is_empty() {
        bail!("a server did not start; what it said stands above");
    }
    Ok(server)
}

/// Waits until all know each other, and exactly those hold each partition who shall; or until there is a signal.
fn wait_until_whole(servers: &[Server], interrupt: &Interrupt) -> anyhow::Result<Option<i32>> {
    let until = Instant::now() + BEGIN_MAX;
    while !is_whole(servers).unwrap_or(false) {
        if let Some(signal) = interrupt.wait(Duration::from_millis(100)) {
            return Ok(Some(signal));
        }
        if Instant::now() > until {
            bail!("the cluster did not begin to serve");
        }
    }
    Ok(None)
}

fn is_whole(servers: &[Server]) -> std::io::Result<bool> {
    let mut settled = 0;
    for server in servers {
        let facts = facts(server)?;
        let fact = |name: &str| {
            let value = |line: &str| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse::<usize>().ok();
            facts.lines().find_map(value)
        };
        if fact("cluster_nodes") != Some(servers.len()) {
            return Ok(false);
        }
        settled += fact("cluster_partitions_settled").unwrap_or(0);
    }
    Ok(settled == usize::from(PARTITIONS))
}

/// What a server says about itself.
fn facts(server: &Server) -> std::io::Result<String> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(server.resp)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"INFO stats\r\nQUIT\r\n")?;
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    Ok(text)
}
