//! A master of a Redis Cluster is killed under load: other slots never stop, its slots recover, and what Redis's own replication
//! lost is counted, with and without waiting for replicas.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::Node;
use crate::once::{self, Over, add_once};
use crate::stores::{self, Cluster, wait_until};

/// Clients of each master's counters.
const CLIENTS: usize = 2;

/// The places of the masters, and keys of each.
fn keys_by_master(cluster: &Cluster) -> BTreeMap<usize, Vec<String>> {
    let mut keys: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let owners = cluster.owners();
    for number in 0..200 {
        let key = format!("key:{number}");
        let home =
            quipu_counting::slot::slot(quipu_external::tag(quipu_external::group(key.as_bytes())).as_bytes());
        let owner = owners.iter().find(|(first, last, _)| (*first..=*last).contains(&home)).unwrap();
        keys.entry(owner.2).or_default().push(key);
    }
    keys
}

/// What became of the requests.
struct Outcome {
    acknowledged: usize,
    /// Acknowledged, and gone with the master.
    lost: usize,
    /// Of the killed master's counters: answers that said to come again.
    refused: usize,
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Outcome { acknowledged, lost, refused } = self;
        write!(
            out,
            "{acknowledged} acknowledged, {lost} of them lost with the master; {refused} times its clients were told to come again"
        )
    }
}

fn kill_a_master(arguments: &[&str], comes_back: bool) -> Outcome {
    let mut cluster = Cluster::start();
    let node = Node::start(&cluster.url(), arguments);
    let by_master = keys_by_master(&cluster);
    let victim = *by_master.keys().next().unwrap();
    let replica = cluster.replica_of(victim);
    let (is_over, refused) = (AtomicBool::new(false), AtomicUsize::new(0));
    let done: BTreeMap<usize, Mutex<Vec<once::Acknowledged>>> =
        by_master.keys().map(|place| (*place, Mutex::default())).collect();
    let so_many = |place: usize, count: usize| done[&place].lock().unwrap().len() >= count;
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        for (place, keys) in &by_master {
            for client in 0..CLIENTS {
                let (node, is_over, refused, done) = (&node, &is_over, &refused, &done[place]);
                let (is_victim, name) = (*place == victim, format!("{place}-{client}"));
                scope.spawn(move || {
                    once::load(node, &name, keys, is_over, done, |status, body| {
                        assert!(is_victim, "other slots never stop: {status} {body}");
                        refused.fetch_add(1, Ordering::Relaxed);
                    });
                });
            }
        }
        let all = |count| by_master.keys().all(|place| so_many(*place, count));
        wait_until("everybody counts", || all(100));
        // The replica loses its master a moment before it dies: what is acknowledged in between it does not have.
        cluster.servers[replica].signal("STOP");
        let known = done[&victim].lock().unwrap().len();
        let kill = redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("replica").to_owned();
        kill.exec(&mut cluster.servers[victim].connection()).unwrap();
        let until = Instant::now() + Duration::from_millis(400);
        while Instant::now() < until && !so_many(victim, known + 20) {
            std::thread::yield_now();
        }
        cluster.servers[victim].kill();
        cluster.servers[replica].signal("CONT");
        wait_until("the replica takes over", || cluster.is_master(replica));
        if comes_back {
            cluster.servers[victim].revive();
        }
        let before: BTreeMap<usize, usize> =
            done.iter().map(|(place, done)| (*place, done.lock().unwrap().len())).collect();
        wait_until("everybody counts again", || {
            by_master.keys().all(|place| so_many(*place, before[place] + 100))
        });
        drop(over);
    });
    let all: Vec<once::Acknowledged> =
        done.into_values().flat_map(|done| done.into_inner().unwrap()).collect();
    let lost = all.iter().filter(|asked| !add_once(&node, &asked.key, &asked.id).unwrap()).count();
    once::assert_counted_once(&node, &all, by_master.len() * CLIENTS);
    Outcome { acknowledged: all.len(), lost, refused: refused.into_inner() }
}

#[test]
fn a_master_is_killed_under_load() {
    let outcome = kill_a_master(&[], false);
    println!("without waiting for replicas: {outcome}");
}

#[test]
fn a_master_is_killed_under_load_and_replicas_were_waited_for() {
    let outcome = kill_a_master(&["--wait-replicas", "1"], true);
    println!("waiting for a replica: {outcome}");
    assert_eq!(outcome.lost, 0, "{outcome}");
}

#[test]
fn too_few_replicas_are_no_success() {
    let redis = stores::Server::start();
    let node = Node::start(&redis.url(), &["--wait-replicas", "1"]);
    let unknown = node.server.request("POST", "/api/v1/counters/likes/increment", &[], "{}");
    assert_eq!(unknown.status, 504, "{unknown:?}");
    assert!(node.fact("external_unreplicated").unwrap() > 0);
    assert_eq!(node.read("likes"), 1, "it may have been done, and here it was");
    let port = redis.port.to_string();
    let _replica = stores::Server::start_with(stores::free_port(), &["--replicaof", "127.0.0.1", &port]);
    wait_until("the replica is there", || {
        std::thread::sleep(Duration::from_millis(100));
        let info: String = redis::cmd("INFO").arg("replication").query(&mut redis.connection()).unwrap();
        info.contains("state=online")
    });
    assert_eq!(node.add("likes", 1, Some("a")), 2);
    assert_eq!(node.add("likes", 1, Some("a")), 2);
}
