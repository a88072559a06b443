//! Servers that are a cluster, seen from their cluster ports.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use quipu_wire::resp::{ReplyDecoder, Value};

use super::resp_support::{Client, PATIENCE};
use super::support::Server;
use super::support::cluster::found;

/// A range of CLUSTER SLOTS: first and last slot, and the ports of its nodes, the leader's first.
pub type Range = (i64, i64, Vec<u16>);

/// See above.
pub struct Nodes {
    servers: Vec<Option<Server>>,
    data: Vec<PathBuf>,
    _folder: tempfile::TempDir,
}

impl Nodes {
    /// So many nodes that agree on who leads what; of three, each leads something.
    pub fn start(count: usize) -> Nodes {
        let folder = tempfile::tempdir().unwrap();
        let data = found(folder.path(), count);
        let servers = data.iter().map(|data| Some(Server::start(data))).collect();
        let nodes = Nodes { servers, data, _folder: folder };
        eventually(|| {
            let maps: Vec<Vec<Range>> = nodes.addresses().into_iter().map(slots).collect();
            let leaders: BTreeSet<u16> = maps[0].iter().map(|(.., nodes)| nodes[0]).collect();
            // But for those with which each leader is named first.
            let mut wide = maps[0].iter().filter(|(first, last, _)| first < last);
            let is_replicated = wide.all(|(.., nodes)| nodes.len() == 3);
            let is_whole = is_replicated && leaders.len() >= 3 && maps.iter().all(|map| *map == maps[0]);
            is_whole.then_some(()).ok_or(maps)
        });
        nodes
    }

    /// The cluster ports of those that live.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().flatten().map(|server| server.resp_cluster.unwrap()).collect()
    }

    /// A server.
    pub fn server(&self, at: usize) -> &Server {
        self.servers[at].as_ref().unwrap()
    }

    /// A connection to a cluster port.
    pub fn client(&self, at: usize) -> Client {
        Client::connect(self.server(at).resp_cluster.unwrap())
    }

    /// The node of a cluster port.
    pub fn at(&self, port: u16) -> usize {
        let is_it = |server: &Option<Server>| {
            server
                .as_ref()
                .and_then(|server| server.resp_cluster)
                .is_some_and(|address| address.port() == port)
        };
        self.servers.iter().position(is_it).unwrap()
    }

    /// SIGKILL.
    pub fn kill(&mut self, at: usize) {
        self.servers[at].take().unwrap().kill();
    }

    /// Starts a server again, on other ports.
    pub fn restart(&mut self, at: usize) {
        self.servers[at] = Some(Server::start(&self.data[at]));
    }
}

/// What a node says about slots.
pub fn slots(address: SocketAddr) -> Vec<Range> {
    let mut client = Client::connect(address);
    client.send_line("CLUSTER SLOTS");
    let reply = client.reply_bytes().unwrap();
    let (reply, _) = ReplyDecoder::new().decode(&reply).unwrap().unwrap();
    let range = |range: &Value| {
        let fields = range.as_elements().unwrap();
        let port = |node: &Value| node.as_elements().unwrap()[1].as_integer().unwrap() as u16;
        let (first, last) = (fields[0].as_integer().unwrap(), fields[1].as_integer().unwrap());
        (first, last, fields[2..].iter().map(port).collect())
    };
    reply.as_elements().unwrap().iter().map(range).collect()
}

/// Asks until the answer is yes, or for so long that it never will be.
pub fn eventually<T, E: std::fmt::Debug>(mut ask: impl FnMut() -> Result<T, E>) -> T {
    let until = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(told) => assert!(Instant::now() < until, "{told:?}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
