//! Servers that are a cluster, seen from their cluster ports.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use quipu_wire::resp::{ReplyDecoder, Value};

use super::resp_support::{Client, PATIENCE};
use super::support::Server;
use super::support::cluster::{found, wait_for};

/// A range of CLUSTER SLOTS: first and last slot, and the ports of its nodes, the leader's first.
pub type Range = (i64, i64, Vec<u16>);

/// See above.
pub struct Nodes {
    servers: Vec<Option<Server>>,
    data: Vec<PathBuf>,
    _folder: tempfile::TempDir,
}

impl Nodes {
    /// So many nodes, each of which leads something.
    pub fn start(count: usize) -> Nodes {
        let folder = tempfile::tempdir().unwrap();
        let data = found(folder.path(), count);
        let servers: Vec<Server> = data.iter().map(|data| Server::start(data)).collect();
        if count <= 3 {
            servers.iter().for_each(|server| wait_for(server, count as u64, 16));
        }
        let nodes = Nodes { servers: servers.into_iter().map(Some).collect(), data, _folder: folder };
        eventually(|| {
            let maps: Vec<Vec<Range>> = nodes.addresses().into_iter().map(slots).collect();
            let mut leaders: Vec<u16> = maps[0].iter().map(|(.., nodes)| nodes[0]).collect();
            leaders.sort_unstable();
            leaders.dedup();
            let is_whole = leaders.len() == count && maps.iter().all(|map| *map == maps[0]);
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
