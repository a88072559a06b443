//! Nodes that reach each other by TCP and TLS, and strangers that do not.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use quipu_cluster::certificates::Authority;
use quipu_cluster::meta::{LEVEL, Member};
use quipu_cluster::node::{Node, Settings};
use quipu_cluster::peers::{Peers, Tls};
use quipu_cluster::raft::{NodeId, Pace};
use quipu_cluster::transport::Transport;
use quipu_counting::{Action, Add, Batch, Reply};
use quipu_engine::Options;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const CLUSTER: u128 = 0xabc;

fn tls(authority: &Authority, folder: &Path, node: NodeId) -> Tls {
    let issued = authority.issue(node).unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.join(format!("{node}-{name}.pem"));
        std::fs::write(&path, text).unwrap();
        path
    };
    let root = file("authority", authority.certificate());
    Tls::from_files(&root, &file("certificate", &issued.certificate), &file("key", &issued.key)).unwrap()
}

struct Running {
    node: Arc<Node>,
    peers: Arc<Peers>,
    address: String,
}

async fn start(id: NodeId, tls: Tls, folder: &Path) -> Running {
    let peers = Peers::new(id, 1, Some(tls));
    let mut entropy = [9; 40];
    entropy[16] = id as u8;
    let options = Options { partitions: 4, entropy: Some(entropy), ..Options::default() };
    let pace = Pace {
        heartbeat: Duration::from_millis(50),
        election: Duration::from_millis(300),
        ..Pace::default()
    };
    let path = folder.join(id.to_string());
    let settings = Settings {
        id,
        path,
        options,
        wall_clock: None,
        pace,
        patience: Duration::from_secs(20),
        storage: None,
    };
    let node = Node::open(settings, Arc::new(Arc::clone(&peers))).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(Arc::clone(&peers).serve(listener, Arc::downgrade(&node)));
    Running { node, peers, address }
}

impl Running {
    fn member(&self) -> Member {
        let folder = self.node.engine().folder_number();
        Member {
            level: LEVEL,
            address: self.address.clone(),
            zone: None,
            folder,
            is_leaving: false,
            resp: String::new(),
            http: String::new(),
        }
    }

    async fn add(&self, key: &str) -> Reply {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let request = format!("add {}", NEXT.fetch_add(1, Ordering::Relaxed));
        let mut batch = Batch::default();
        batch.push_with_id(key.as_bytes(), Action::Add(Add::plain(1)), request.as_bytes(), 0);
        self.node.execute(&mut batch).await;
        batch.replies[0].clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_count_over_tls_and_strangers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, _) = Authority::new().unwrap();
    let one = start(1, tls(&authority, folder.path(), 1), folder.path()).await;
    one.peers.belong_to(CLUSTER);
    one.node.found(CLUSTER, 3, one.member()).await.unwrap();
    let seed = BTreeMap::from([(1, one.address.clone())]);
    let mut others = Vec::new();
    for id in 2..=3 {
        let other = start(id, tls(&authority, folder.path(), id), folder.path()).await;
        other.peers.learn(&seed);
        other.node.join(&[1], &other.member()).await.unwrap();
        others.push(other);
    }
    let [two, three] = &others[..] else { panic!("two others") };
    for value in 1..=10 {
        for key in ["a", "b", "c", "d", "e"] {
            let node = [&one, two, three][value % 3];
            let reply = node.add(key).await;
            assert_eq!((reply.refusal, reply.cell.value), (None, value as i64));
        }
    }

    // Of another authority.
    let (strange, _) = Authority::new().unwrap();
    std::fs::create_dir(folder.path().join("strange")).unwrap();
    let stranger = Peers::new(2, 2, Some(tls(&strange, &folder.path().join("strange"), 2)));
    stranger.learn(&seed);
    assert!(stranger.ask(1, Bytes::from_static(b"\x01")).await.is_err());
    // A node that says to be another.
    let liar = Peers::new(2, 1, Some(tls(&authority, folder.path(), 7)));
    liar.learn(&seed);
    assert!(liar.ask(1, Bytes::from_static(b"\x01\x00")).await.is_err());
    // A node of another cluster.
    let foreign = Peers::new(7, 2, Some(tls(&authority, folder.path(), 7)));
    foreign.belong_to(CLUSTER + 1);
    foreign.learn(&seed);
    let why = foreign.ask(1, Bytes::from_static(b"\x01\x00")).await.unwrap_err();
    assert!(why.why.contains("belongs to cluster"), "{why}");
    // A copy of a node that runs.
    let copy = Peers::new(2, 2, Some(tls(&authority, folder.path(), 2)));
    copy.learn(&seed);
    let why = copy.ask(1, Bytes::from_static(b"\x01\x00")).await.unwrap_err();
    assert!(why.why.contains("another process with the data folder of node 2"), "{why}");
    assert_eq!(copy.refused_as_twin_by().map(|(by, _)| by), Some(1));
    // Somebody at the address of node 2 who is node 1.
    let confused = Peers::new(3, 1, Some(tls(&authority, folder.path(), 3)));
    confused.learn(&BTreeMap::from([(2, one.address.clone())]));
    assert!(confused.ask(2, Bytes::from_static(b"\x01\x00")).await.is_err());
    // Nothing that is TLS at all.
    let mut garbage = TcpStream::connect(&one.address).await.unwrap();
    garbage.write_all(&[0x5a; 4096]).await.unwrap();
    let _ = garbage.read_to_end(&mut Vec::new()).await;

    assert_eq!(three.add("a").await.cell.value, 11);
}
