//! Three nodes in one process that count together, through cuts, ends and restarts.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use quipu_cluster::meta::{Change, LEVEL, Member};
use quipu_cluster::node::{Node, Settings};
use quipu_cluster::raft::{NodeId, Pace, Status};
use quipu_cluster::transport::{Answering, Transport, Unreached};
use quipu_cluster::walks::Scope;
use quipu_counting::slot::{partition, slot};
use quipu_counting::{
    Action, Add, Batch, Cell, Counters, Freshness, GroupKind, Listing, Policy, Refusal, Reply,
};
use quipu_engine::{Engine, Options};
use quipu_store::LogOptions;

const PARTITIONS: u16 = 4;

/// What lies between the nodes.
#[derive(Default)]
struct Net {
    nodes: Mutex<BTreeMap<NodeId, Weak<Node>>>,
    /// From one to another, not the other way.
    cuts: Mutex<BTreeSet<(NodeId, NodeId)>>,
    /// Who has too much to do for what clients want, as `peers.rs` says it.
    busy: Mutex<BTreeSet<NodeId>>,
}

/// "Do this, or look, if you lead the partition", and the answer of who has too much to do.
const DO: u8 = 16;
const TOO_MUCH_TO_DO: &[u8] = &[5];

impl Net {
    fn is_cut(&self, from: NodeId, to: NodeId) -> bool {
        self.cuts.lock().unwrap().contains(&(from, to))
    }

    /// Cuts a node off from all others.
    fn isolate(&self, node: NodeId) {
        let mut cuts = self.cuts.lock().unwrap();
        for other in (1..=5).filter(|other| *other != node) {
            cuts.extend([(node, other), (other, node)]);
        }
    }

    fn heal(&self) {
        self.cuts.lock().unwrap().clear();
    }
}

struct Wire {
    from: NodeId,
    net: Arc<Net>,
}

impl Transport for Wire {
    fn ask(&self, to: NodeId, question: Bytes) -> Answering {
        let (from, net) = (self.from, Arc::clone(&self.net));
        Box::pin(async move {
            tokio::task::yield_now().await;
            let why = format!("node {to} cannot be reached from {from}");
            let node = net.nodes.lock().unwrap().get(&to).and_then(Weak::upgrade);
            let node = node.filter(|_| !net.is_cut(from, to)).ok_or_else(|| Unreached::not_sent(&*why))?;
            if question.first() == Some(&DO) && net.busy.lock().unwrap().contains(&to) {
                return Ok(Bytes::from_static(TOO_MUCH_TO_DO));
            }
            let answer = node.receive(from, &question).await;
            if net.is_cut(to, from) { Err(Unreached::lost(why)) } else { Ok(answer) }
        })
    }
}

struct Cluster {
    net: Arc<Net>,
    folder: tempfile::TempDir,
    nodes: BTreeMap<NodeId, Arc<Node>>,
}

impl Cluster {
    async fn start() -> Cluster {
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Cluster { net: Arc::default(), folder, nodes: BTreeMap::new() };
        cluster.begin(3).await;
        cluster
    }

    /// Founds the cluster with node 1, and lets the others join.
    async fn begin(&mut self, nodes: NodeId) {
        self.open(1).await;
        self.nodes[&1].found(0xc1, 3, self.member(1)).await.unwrap();
        for id in 2..=nodes {
            self.open(id).await;
            self.nodes[&id].join(&[1], &self.member(id)).await.unwrap();
        }
        self.settle(&(1..=nodes).collect::<Vec<_>>()).await;
    }

    fn member(&self, id: NodeId) -> Member {
        let folder = self.nodes[&id].engine().folder_number();
        Member {
            level: LEVEL,
            address: format!("node-{id}:7072"),
            zone: None,
            folder,
            is_leaving: false,
            resp: String::new(),
            http: String::new(),
        }
    }

    /// Waits until these, and nobody else, hold partitions, each of them by three if there are so many.
    async fn settle(&self, ids: &[NodeId]) {
        for _ in 0..3_000 {
            let held: Vec<BTreeSet<NodeId>> = (0..PARTITIONS).map(|number| self.voters(number)).collect();
            let all: BTreeSet<NodeId> = held.iter().flatten().copied().collect();
            let is_full = held.iter().all(|voters| voters.len() == ids.len().min(3));
            if is_full && all == ids.iter().copied().collect() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("partitions are not where they should be");
    }

    /// Who has a say about a partition, asked of one who leads it.
    fn voters(&self, number: u16) -> BTreeSet<NodeId> {
        let leads =
            |node: &&Arc<Node>| node.group(number).is_some_and(|group| group.leader() == Some(node.id()));
        self.nodes
            .values()
            .find(leads)
            .map_or_else(BTreeSet::new, |node| node.group(number).unwrap().voters())
    }

    /// How many partitions a node leads.
    fn led(&self, id: NodeId) -> usize {
        let leads =
            |number: &u16| self.nodes[&id].group(*number).is_some_and(|group| group.leader() == Some(id));
        (0..PARTITIONS).filter(leads).count()
    }

    fn path(&self, id: NodeId) -> PathBuf {
        self.folder.path().join(id.to_string())
    }

    async fn open(&mut self, id: NodeId) {
        self.open_with(id, options(id)).await;
    }

    async fn open_with(&mut self, id: NodeId, options: Options) {
        let settings = || Settings {
            id,
            path: self.path(id),
            options: options.clone(),
            wall_clock: None,
            pace: Pace {
                heartbeat: Duration::from_millis(50),
                election: Duration::from_millis(200),
                entries_kept: 4,
            },
            patience: Duration::from_secs(20),
            storage: None,
        };
        let until = Instant::now() + Duration::from_secs(20);
        let node = loop {
            let wire = Arc::new(Wire { from: id, net: Arc::clone(&self.net) });
            match Node::open(settings(), wire).await {
                // A thread of who was stopped may be about to end.
                Err(why) if why.contains("is in use by another process") && Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                opened => break opened.unwrap(),
            }
        };
        self.net.nodes.lock().unwrap().insert(id, Arc::downgrade(&node));
        self.nodes.insert(id, node);
    }

    async fn stop(&mut self, id: NodeId) {
        self.net.nodes.lock().unwrap().remove(&id);
        let node = self.nodes.remove(&id).unwrap();
        node.stop().await;
        let engine = Arc::downgrade(node.engine());
        drop(node);
        // Whoever still asks it something, or carries something out, keeps its folder for a moment.
        while engine.strong_count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn run(&self, id: NodeId, batch: &mut Batch) -> Vec<Reply> {
        self.nodes[&id].execute(batch).await;
        batch.replies.clone()
    }

    /// Adds one, under an id of its own: a leader may go at any moment.
    async fn add(&self, id: NodeId, key: &str) -> Reply {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let request = format!("add {}", NEXT.fetch_add(1, Ordering::Relaxed));
        self.add_under(id, key, &request).await
    }

    async fn add_under(&self, id: NodeId, key: &str, request: &str) -> Reply {
        let mut batch = Batch::default();
        batch.push_with_id(key.as_bytes(), Action::Add(Add::plain(1)), request.as_bytes(), 0);
        self.run(id, &mut batch).await[0].clone()
    }

    async fn read(&self, id: NodeId, key: &str) -> Reply {
        let mut batch = Batch::default();
        batch.push(key.as_bytes(), Action::Read);
        self.run(id, &mut batch).await[0].clone()
    }

    /// What a node itself has of a counter, however far it is.
    fn local(&self, id: NodeId, key: &str) -> Cell {
        let mut batch = Batch::default();
        batch.push(key.as_bytes(), Action::Read);
        self.nodes[&id].engine().read(of(key), &mut batch, 0).unwrap();
        batch.replies[0].cell
    }

    fn leader(&self, asked: NodeId, partition: u16) -> Option<NodeId> {
        self.nodes[&asked].group(partition)?.leader()
    }

    fn status(&self, id: NodeId) -> Vec<Status> {
        (0..PARTITIONS).map(|number| self.nodes[&id].group(number).unwrap().status()).collect()
    }

    /// Whether these entries and some behind them have left the logs of a node.
    fn has_purged(&self, id: NodeId, entries: &[u64]) -> bool {
        self.status(id).iter().zip(entries).all(|(status, entry)| status.purged > Some(*entry))
    }

    /// Waits until all nodes have carried out the same.
    async fn agree(&self, keys: &[String]) {
        for _ in 0..1_000 {
            let is_same = |key: &String| {
                let cells: Vec<Cell> = self.nodes.keys().map(|id| self.local(*id, key)).collect();
                cells.windows(2).all(|pair| pair[0] == pair[1])
            };
            if keys.iter().all(is_same) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the replicas differ");
    }
}

fn options(id: NodeId) -> Options {
    let log = LogOptions { segment_bytes: 1 << 20, ..LogOptions::default() };
    // The same secret on every node: request ids must be the same everywhere. Not so the number of the folder.
    let mut entropy = [7; 40];
    entropy[16] = id as u8;
    Options { partitions: PARTITIONS, log, entropy: Some(entropy), ..Options::default() }
}

fn of(key: &str) -> u16 {
    partition(slot(key.as_bytes()), PARTITIONS)
}

fn keys() -> Vec<String> {
    (0..20).map(|number| format!("counter:{number}")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_node_counts_and_reads_any_counter() {
    let cluster = Cluster::start().await;
    for round in 1..=3 {
        for key in keys() {
            assert_eq!(cluster.add(round, &key).await.cell.value, round as i64, "{key}");
        }
    }
    for id in 1..=3 {
        for key in keys() {
            assert_eq!(cluster.read(id, &key).await.cell.value, 3);
        }
    }
    let mut batch = Batch::default();
    for key in keys() {
        batch.push(key.as_bytes(), Action::Add(Add::plain(10)));
        batch.push(key.as_bytes(), Action::Read);
    }
    batch.push(b"", Action::Count);
    let replies = cluster.run(2, &mut batch).await;
    assert!(replies[..40].iter().all(|reply| reply.refusal.is_none() && reply.cell.value == 13));
    assert_eq!(replies[40].cell.value, 20);
    cluster.agree(&keys()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_the_end_of_a_leader_and_is_counted_once() {
    let mut cluster = Cluster::start().await;
    let key = "stock";
    for request in 0..20 {
        assert_eq!(cluster.add_under(1, key, &format!("r{request}")).await.refusal, None);
    }
    let leader = cluster.leader(1, of(key)).unwrap();
    cluster.stop(leader).await;
    let other = *cluster.nodes.keys().next().unwrap();
    // Some new, some asked again: each counts once.
    for request in 10..40 {
        let reply = cluster.add_under(other, key, &format!("r{request}")).await;
        assert_eq!((reply.refusal, reply.duplicate), (None, request < 20), "r{request}");
    }
    assert_eq!(cluster.read(other, key).await.cell.value, 40);
    cluster.open(leader).await;
    for request in 35..50 {
        assert_eq!(cluster.add_under(leader, key, &format!("r{request}")).await.refusal, None);
    }
    assert_eq!(cluster.read(leader, key).await.cell.value, 50);
    cluster.agree(&[key.to_string()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_with_too_much_to_do_is_not_taken_for_none() {
    let cluster = Cluster::start().await;
    let key = "stock";
    assert_eq!(cluster.add(1, key).await.refusal, None);
    let leader = cluster.leader(1, of(key)).unwrap();
    let other = *cluster.nodes.keys().find(|id| **id != leader).unwrap();
    cluster.net.busy.lock().unwrap().insert(leader);
    for reply in [cluster.add(other, key).await, cluster.read(other, key).await] {
        assert_eq!(reply.refusal, Some(Refusal::Overloaded));
    }
    assert_eq!(cluster.add(leader, key).await.cell.value, 2, "who is there is served");
    cluster.net.busy.lock().unwrap().clear();
    assert_eq!(cluster.add(other, key).await.cell.value, 3, "nothing of it was done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_there_after_all_have_ended() {
    let mut cluster = Cluster::start().await;
    for key in keys() {
        cluster.add_under(1, &key, "once").await;
        cluster.add(2, &key).await;
    }
    // One with a checkpoint, one without: it carries out the log again.
    for number in 0..PARTITIONS {
        cluster.nodes[&1].engine().checkpoint(number).unwrap();
    }
    for key in keys() {
        cluster.add(3, &key).await;
    }
    for id in 1..=3 {
        cluster.stop(id).await;
    }
    for id in 1..=3 {
        cluster.open(id).await;
    }
    for key in keys() {
        assert!(cluster.add_under(2, &key, "once").await.duplicate);
        assert_eq!(cluster.read(3, &key).await.cell.value, 3);
    }
    cluster.agree(&keys()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minority_acknowledges_nothing_and_a_replica_far_behind_gets_a_snapshot() {
    let mut cluster = Cluster::start().await;
    for key in keys() {
        cluster.add_under(1, &key, "first").await;
    }
    cluster.agree(&keys()).await;
    cluster.net.isolate(3);
    // Far more entries than are kept, and checkpoints on both others: what 3 lacks is nowhere in a log.
    for round in 0..40 {
        let mut batch = Batch::default();
        for key in keys() {
            for request in 0..2 {
                let id = format!("{round}.{request}");
                batch.push_with_id(key.as_bytes(), Action::Add(Add::plain(1)), id.as_bytes(), 0);
            }
        }
        let replies = cluster.run(1, &mut batch).await;
        assert!(replies.iter().all(|reply| reply.refusal.is_none()), "{replies:?}");
    }
    for number in 0..PARTITIONS {
        for id in [1, 2] {
            cluster.nodes[&id].engine().checkpoint(number).unwrap();
        }
    }
    let behind: Vec<u64> = cluster.status(3).iter().map(|status| status.last.unwrap()).collect();
    while !cluster.has_purged(1, &behind) || !cluster.has_purged(2, &behind) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for key in keys() {
        assert_eq!(cluster.read(2, &key).await.cell.value, 81);
        assert!(cluster.local(3, &key).value < 81, "it cannot have heard of it");
    }
    cluster.net.heal();
    cluster.agree(&keys()).await;
    // By snapshots: nobody has sent what is in no log.
    while !cluster.has_purged(3, &behind) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // The ids came along.
    cluster.stop(1).await;
    for key in keys() {
        assert!(cluster.add_under(3, &key, "first").await.duplicate);
        assert!(cluster.add_under(3, &key, "39.1").await.duplicate);
        assert_eq!(cluster.read(3, &key).await.cell.value, 81);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_join_and_leave_while_everybody_counts() {
    let mut cluster = Cluster::start().await;
    let counted = Arc::new(Mutex::new(BTreeMap::<String, i64>::new()));
    let busy = {
        let (node, counted) = (Arc::clone(&cluster.nodes[&1]), Arc::clone(&counted));
        tokio::spawn(async move {
            for number in 0.. {
                let key = format!("counter:{}", number % 20);
                let mut batch = Batch::default();
                batch.push_with_id(
                    key.as_bytes(),
                    Action::Add(Add::plain(1)),
                    format!("busy {number}").as_bytes(),
                    0,
                );
                node.execute(&mut batch).await;
                assert_eq!(batch.replies[0].refusal, None, "request {number}");
                let mut counted = counted.lock().unwrap();
                *counted.entry(key).or_default() += 1;
                if counted.contains_key("stop") {
                    return;
                }
            }
        })
    };
    for id in [4, 5] {
        cluster.open(id).await;
        cluster.nodes[&id].join(&[1], &cluster.member(id)).await.unwrap();
        cluster.settle(&(1..=id).collect::<Vec<_>>()).await;
    }
    cluster.nodes[&3].change(Change::Leave(2)).await.unwrap();
    cluster.settle(&[1, 3, 4, 5]).await;
    while cluster.nodes[&1].meta(|meta| meta.nodes.contains_key(&2)) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    cluster.stop(2).await;
    counted.lock().unwrap().insert("stop".into(), 0);
    busy.await.unwrap();
    let counted = counted.lock().unwrap().clone();
    for (key, value) in counted.iter().filter(|(key, _)| *key != "stop") {
        assert_eq!(cluster.read(5, key).await.cell.value, *value, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_holds_in_every_partition_and_for_those_who_join_later() {
    let mut cluster = Cluster::start().await;
    let policy = Policy { max: Some(1), ..Policy::default() };
    assert!(!cluster.nodes[&2].set_policy(b"counter:*", Some(policy)).await.unwrap());
    for key in keys() {
        assert_eq!(cluster.add(1, &key).await.refusal, None);
        assert_eq!(cluster.add(3, &key).await.refusal, Some(Refusal::AboveCeiling));
    }
    cluster.open(4).await;
    cluster.nodes[&4].join(&[3], &cluster.member(4)).await.unwrap();
    cluster.settle(&[1, 2, 3, 4]).await;
    for key in keys() {
        assert_eq!(cluster.add(4, &key).await.refusal, Some(Refusal::AboveCeiling));
    }
    cluster.nodes[&4].set_policy(b"counter:*", None).await.unwrap();
    for key in keys() {
        assert_eq!(cluster.add(4, &key).await.cell.value, 2);
    }
}

/// Changed at one node after the other: once a change is acknowledged, all nodes tell of it, and every partition goes by it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_policy_is_the_one_that_holds() {
    let cluster = Cluster::start().await;
    let pattern = b"counter:*";
    for round in 1..=20 {
        let policy = Policy { max: Some(round), ..Policy::default() };
        let asked = &cluster.nodes[&(round as u64 % 3 + 1)];
        assert_eq!(asked.set_policy(pattern, Some(policy)).await.unwrap(), round > 1, "round {round}");
        for node in cluster.nodes.values() {
            let told = node.policies().await.unwrap();
            assert_eq!(told.get(pattern).and_then(|policy| policy.max), Some(round), "at node {}", node.id());
        }
        for number in 0..PARTITIONS {
            let leader = &cluster.nodes[&cluster.leader(1, number).unwrap()];
            let held = leader.engine().policies_of(number);
            assert_eq!(held.get(pattern).and_then(|policy| policy.max), Some(round), "partition {number}");
        }
    }
}

async fn becomes(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Also where nobody else could, who then would wait for ever if others were away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_up_far_ahead_of_others_leads_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster { net: Arc::default(), folder, nodes: BTreeMap::new() };
    cluster.open(1).await;
    cluster.nodes[&1].found(0xc1, 1, cluster.member(1)).await.unwrap();
    cluster.open(2).await;
    cluster.nodes[&2].join(&[1], &cluster.member(2)).await.unwrap();
    let share = usize::from(PARTITIONS / 2);
    becomes("each has its share", || cluster.led(1) == share && cluster.led(2) == share).await;
    cluster.stop(2).await;
    let right = options(2).clock;
    let ahead = Options { clock: Arc::new(move || right() + 10 * 3_600_000), ..options(2) };
    cluster.open_with(2, ahead).await;
    becomes("it is told", || {
        assert_eq!(cluster.led(2), 0);
        cluster.nodes[&2].problem().is_some_and(|why| why.contains("ahead of most others"))
    })
    .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(cluster.led(2), 0);
    cluster.stop(2).await;
    cluster.net.isolate(1);
    cluster.open(2).await;
    becomes("it leads what nobody else holds", || cluster.led(2) == share).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_refused() {
    let mut cluster = Cluster::start().await;
    cluster.open(4).await;
    let nonsense = Member { address: "node-4".into(), ..cluster.member(4) };
    let why = cluster.nodes[&4].join(&[1], &nonsense).await.unwrap_err();
    assert!(why.to_string().contains("is no address of a node"), "{why}");
    let taken = Member { address: "node-2:7072".into(), ..cluster.member(4) };
    let why = cluster.nodes[&4].join(&[1], &taken).await.unwrap_err();
    assert!(why.to_string().contains("node 2 has the address node-2"), "{why}");
    // Garbage is answered with an error, and nothing happens.
    for garbage in [&b""[..], b"\xff", b"\x01", b"\x10\x00", b"\x12\x09", b"\x14\x00\xff\xff\xff\xff\x0f"] {
        cluster.nodes[&1].receive(9, garbage).await;
    }
    assert_eq!(cluster.add(2, "still").await.cell.value, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_folder_that_counted_alone_is_the_beginning_of_a_cluster() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster { net: Arc::default(), folder, nodes: BTreeMap::new() };
    let path = cluster.path(1);
    {
        let alone = Engine::open(&path, options(1)).unwrap();
        for key in keys() {
            let mut batch = Batch::default();
            batch.push_with_id(key.as_bytes(), Action::Add(Add::plain(7)), b"alone", 0);
            let offset = alone.run(&mut batch, (options(1).clock)()).unwrap();
            alone.settle(offset).unwrap();
        }
        for (sequence, key) in (1..).zip(keys()) {
            let mut batch = of_producer(&key, sequence);
            let offset = alone.run(&mut batch, (options(1).clock)()).unwrap();
            alone.settle(offset).unwrap();
            assert!(!batch.replies[0].duplicate, "{key}");
        }
        alone.close().unwrap();
    }
    Engine::make_replicated(&path, options(1)).unwrap();
    assert!(Engine::open(&path, options(1)).is_err(), "it is that of a node now");
    cluster.begin(3).await;
    for (sequence, key) in (1..).zip(keys()) {
        assert_eq!(cluster.add(2, &key).await.cell.value, 9);
        let again = cluster.run(3, &mut of_producer(&key, sequence)).await;
        assert!(again[0].duplicate, "{key}: what a producer had acknowledged alone");
    }
    cluster.stop(1).await;
    for key in keys() {
        let mut batch = Batch::default();
        batch.push_with_id(key.as_bytes(), Action::Add(Add::plain(7)), b"alone", 0);
        assert!(cluster.run(3, &mut batch).await[0].duplicate, "{key}");
        assert_eq!(cluster.read(2, &key).await.cell.value, 9);
    }
}

/// One more, as a producer counts it.
fn of_producer(key: &str, sequence: u64) -> Batch {
    let mut batch = Batch::default();
    batch.push(key.as_bytes(), Action::Add(Add::plain(1)));
    let producer = batch.intern(b"producer");
    batch.group(0, GroupKind::Session { producer, epoch: 1, sequence });
    batch
}

/// Whoever wanted a counter never to fall below zero wants that of the cluster too, from its first moment on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_begins_with_the_policies_of_the_folder_that_counted_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster { net: Arc::default(), folder, nodes: BTreeMap::new() };
    let path = cluster.path(1);
    let policy = Policy { min: Some(0), audit_ms: Some(3_600_000), ..Policy::default() };
    {
        let alone = Engine::open(&path, options(1)).unwrap();
        alone.set_policy(b"counter:*", Some(policy.clone()), (options(1).clock)()).unwrap();
        alone.close().unwrap();
    }
    Engine::make_replicated(&path, options(1)).unwrap();
    cluster.open(1).await;
    for partition in 0..PARTITIONS {
        let here = cluster.nodes[&1].engine().policies_of(partition);
        assert_eq!(
            here.get(b"counter:*"),
            Some(&policy),
            "partition {partition}, before anything is founded"
        );
    }
    cluster.stop(1).await;
    cluster.begin(3).await;
    for (id, key) in [1, 2, 3].into_iter().cycle().zip(keys()) {
        let mut batch = Batch::default();
        batch.push(key.as_bytes(), Action::Add(Add::plain(-1)));
        assert_eq!(cluster.run(id, &mut batch).await[0].refusal, Some(Refusal::BelowFloor), "{key}");
    }
    let known = cluster.nodes[&3].policies().await.unwrap();
    assert_eq!(known.iter().collect::<Vec<_>>(), [(&b"counter:*"[..], &policy)]);
}

/// A crash after the request ids of a checkpoint were written and before its counters were: what the log has is decided again,
/// and must not find its own ids.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_of_half_a_checkpoint_keep_nothing_from_being_counted() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster { net: Arc::default(), folder, nodes: BTreeMap::new() };
    cluster.begin(1).await;
    let checkpoint = |cluster: &Cluster| {
        (0..PARTITIONS).for_each(|number| cluster.nodes[&1].engine().checkpoint(number).unwrap());
    };
    for key in keys() {
        cluster.add_under(1, &key, "first").await;
    }
    checkpoint(&cluster);
    for key in keys() {
        cluster.add_under(1, &key, "second").await;
    }
    cluster.stop(1).await;
    let (path, before) = (cluster.path(1), cluster.folder.path().join("before"));
    copy(&path, &before);
    cluster.open(1).await;
    assert_eq!(cluster.read(1, "counter:1").await.cell.value, 2);
    checkpoint(&cluster);
    cluster.stop(1).await;
    // As it was before the second checkpoint, but for the ids.
    let spaces =
        |data: &Path| std::fs::read_dir(data.join("cold/spaces")).unwrap().map(|entry| entry.unwrap().path());
    let is_of_ids = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("ids-");
    for ids in spaces(&path).filter(is_of_ids) {
        let place = before.join("cold/spaces").join(ids.file_name().unwrap());
        std::fs::remove_dir_all(&place).unwrap();
        copy(&ids, &place);
    }
    std::fs::remove_dir_all(&path).unwrap();
    std::fs::rename(&before, &path).unwrap();
    cluster.open(1).await;
    for key in keys() {
        assert_eq!(cluster.read(1, &key).await.cell.value, 2, "{key}");
        assert!(cluster.add_under(1, &key, "second").await.duplicate);
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let place = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &place),
            false => drop(std::fs::copy(entry.path(), place).unwrap()),
        }
    }
}

/// Time is agreed on like everything else: a replica that was looked at with another clock must not differ from the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn looking_at_one_replica_changes_none_of_them() {
    let cluster = Cluster::start().await;
    for key in keys() {
        cluster.add(1, &key).await;
    }
    cluster.agree(&keys()).await;
    let in_a_year_ms = (options(1).clock)() + 365 * 24 * 3_600_000;
    for key in keys() {
        let mut batch = Batch::default();
        batch.push(key.as_bytes(), Action::Read);
        cluster.nodes[&1].engine().read(of(&key), &mut batch, in_a_year_ms).unwrap();
    }
    for key in keys() {
        cluster.add(2, &key).await;
    }
    cluster.agree(&keys()).await;
}

impl Cluster {
    /// What a node says of a counter where that need not be the newest, and how far behind it may be.
    async fn look(&self, id: NodeId, key: &str, max_staleness_ms: Option<u64>) -> (Reply, u64) {
        let mut batch = Batch::default();
        batch.freshness = Freshness::Eventual { max_staleness_ms };
        batch.push(key.as_bytes(), Action::Read);
        let reply = self.run(id, &mut batch).await[0].clone();
        (reply, batch.staleness_ms(0))
    }

    /// Waits until a node says that of a counter.
    async fn learns(&self, id: NodeId, key: &str, value: i64) {
        for _ in 0..1_000 {
            if self.look(id, key, None).await.0.cell.value == value {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("node {id} does not learn of {key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_cut_off_says_how_far_behind_it_is() {
    let cluster = Cluster::start().await;
    for key in keys() {
        cluster.add(1, &key).await;
        for id in 1..=3 {
            cluster.learns(id, &key, 1).await;
        }
    }
    while (0..PARTITIONS).any(|number| cluster.nodes[&3].staleness_ms(number).is_none()) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    cluster.net.isolate(3);
    let cut_at = Instant::now();
    for key in keys() {
        assert_eq!(cluster.add(1, &key).await.cell.value, 2);
        let at = Instant::now();
        for id in 1..=3 {
            let since_ms = at.elapsed().as_millis() as u64;
            let (reply, staleness_ms) = cluster.look(id, &key, None).await;
            assert_eq!(reply.refusal, None);
            assert!(
                reply.cell.value == 2 || staleness_ms >= since_ms,
                "{key} at node {id}, {since_ms} ms: {staleness_ms} ms"
            );
        }
    }
    for key in keys() {
        let cut_for_ms = cut_at.elapsed().as_millis() as u64;
        let (reply, staleness_ms) = cluster.look(3, &key, None).await;
        assert_eq!((reply.refusal, reply.cell.value), (None, 1));
        // Of what it led it may have been sure for as long as others would not lead in its place.
        let lease_ms = 400;
        assert!(staleness_ms + lease_ms >= cut_for_ms, "{staleness_ms} ms of {cut_for_ms} ms");
        let (newest, behind_ms) = cluster.look(2, &key, Some(0)).await;
        assert_eq!((newest.cell.value, behind_ms), (2, 0));
    }
    cluster.net.heal();
    for key in keys() {
        cluster.learns(3, &key, 2).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn walks_go_on_at_other_nodes_and_under_other_leaders() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster { net: Arc::default(), folder, nodes: BTreeMap::new() };
    cluster.begin(5).await;
    let wanted: BTreeSet<String> = (0..500).map(|number| format!("counter:{number:03}")).collect();
    let mut batch = Batch::default();
    for key in &wanted {
        batch.push_with_id(key.as_bytes(), Action::Add(Add::plain(1)), b"once", 0);
    }
    assert!(cluster.run(1, &mut batch).await.iter().all(|reply| reply.refusal.is_none()));
    let text = |key: Vec<u8>| String::from_utf8(key).unwrap();
    // Without a loss each key is shown once; a node that is lost forgets where it was, and the walk repeats some.
    for lost in [None, Some(2)] {
        let (mut found, mut cursor, mut pages) = (Vec::new(), 0, 0);
        let mut listed = Vec::new();
        let mut listing = Listing { limit: 50, ..Listing::default() };
        loop {
            let ids: Vec<NodeId> = cluster.nodes.keys().copied().collect();
            let node = Arc::clone(&cluster.nodes[&ids[pages % ids.len()]]);
            pages += 1;
            let page = node.scan(cursor, 10, Scope::All).await.unwrap();
            found.extend(page.keys.into_iter().map(text));
            cursor = page.cursor;
            let page = node.list(&listing).await.unwrap();
            listing.after = page.next().or(listing.after);
            listed.extend(page.counters.into_iter().map(|listed| text(listed.key)));
            drop(node);
            if let Some(lost) = lost.filter(|lost| pages == 2 && cluster.nodes.contains_key(lost)) {
                cluster.stop(lost).await;
            }
            if cursor == 0 {
                break;
            }
        }
        assert!(lost.is_some() || found.len() == wanted.len(), "{} keys", found.len());
        assert!(found.into_iter().collect::<BTreeSet<_>>() == wanted, "all of them");
        loop {
            let page = cluster.nodes[&1].list(&listing).await.unwrap();
            listed.extend(page.counters.iter().map(|listed| text(listed.key.clone())));
            match page.next() {
                Some(next) => listing.after = Some(next),
                None => break,
            }
        }
        assert_eq!(listed.len(), wanted.len(), "each of them once");
        assert!(listed.into_iter().collect::<BTreeSet<_>>() == wanted);
    }
    let drawn = cluster.nodes[&3].random_key(7, Scope::All).await.unwrap().unwrap();
    assert!(wanted.contains(&text(drawn)));
    // What each leads is all of it together, unless the lead moves meanwhile.
    for _ in 0..1_000 {
        let mut count = 0;
        for node in cluster.nodes.values() {
            count += node.count_led().await.unwrap_or(0);
        }
        if count == 500 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("those who lead do not count everything");
}
