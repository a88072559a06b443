//! Partitions whose changes are ordered elsewhere: what a replica exports, takes over and refuses.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

use std::path::Path;
use std::sync::Arc;

use quipu_counting::kinds::RULES;
use quipu_counting::slot::{partition, slot};
use quipu_counting::{Action, Add, Batch};
use quipu_engine::{Engine, Options, Replication, Step};
use quipu_store::cold::{ColdStore, ModelStore, Rows};
use quipu_store::{LogError, SimDisk};

const NOW: u64 = 2_400_000_000_000;
const PARTITIONS: u16 = 2;
const PARTITION: u16 = 1;

/// Whoever orders: here everything in the log is needed for ever.
struct Orders;

impl Replication for Orders {
    fn needed_from(&self, _partition: u16, _mark: &[u8]) -> Result<u64, LogError> {
        Ok(0)
    }

    fn checkpointed(&self, _partition: u16) {}
}

/// A node that holds one partition, on a machine that outlives it.
struct Node {
    disk: SimDisk,
    cold: Arc<ModelStore>,
    engine: Arc<Engine>,
}

impl Node {
    fn new(seed: u64) -> Node {
        let node = Node::open(SimDisk::new(seed), Arc::new(ModelStore::new(seed)));
        node.engine.begin_to_hold(PARTITION, b"0").unwrap();
        node
    }

    fn open(disk: SimDisk, cold: Arc<ModelStore>) -> Node {
        let options = Options { partitions: PARTITIONS, entropy: Some([7; 40]), ..Options::default() };
        let store = Arc::clone(&cold) as Arc<dyn ColdStore>;
        let mut record = |_: u64, _: &[u8]| Ok(());
        let path = Path::new("/data");
        let engine =
            Engine::open_replicated_on(Arc::new(disk.clone()), store, path, options, &mut record).unwrap();
        engine.replicate(Arc::new(Orders));
        Node { disk, cold, engine }
    }

    fn start_again(self) -> Node {
        let Node { disk, cold, engine } = self;
        drop(engine);
        disk.kill();
        Node::open(disk, Arc::new(cold.reopen()))
    }

    /// Carries out what leads from the mark it has to the next.
    fn apply(&self, key: &[u8], action: Action, to: &[u8]) {
        let mut batch = Batch::default();
        batch.push(key, action);
        let from = self.engine.mark(PARTITION);
        self.engine.apply(PARTITION, &mut batch, NOW, Step { from: &from, to }, (true, RULES)).unwrap();
    }

    fn value(&self, key: &[u8]) -> i64 {
        let mut batch = Batch::default();
        batch.push(key, Action::Read);
        self.engine.read(PARTITION, &mut batch, NOW).unwrap();
        batch.replies[0].cell.value
    }
}

fn keys() -> [Vec<u8>; 2] {
    let keys = (0..).map(|number| format!("counter:{number}").into_bytes());
    let mut keys = keys.filter(|key| partition(slot(key), PARTITIONS) == PARTITION);
    [(); 2].map(|()| keys.next().unwrap())
}

fn add(delta: i64) -> Action {
    Action::Add(Add::plain(delta))
}

/// Between FLUSHALL and the next checkpoint the last one is of another generation: it is what there is to send.
#[test]
fn what_was_deleted_since_the_checkpoint_is_exported_as_the_checkpoint_has_it() {
    let [likes, views] = keys();
    let (node, other) = (Node::new(1), Node::new(2));
    node.apply(&likes, add(5), b"1");
    node.engine.checkpoint(PARTITION).unwrap();
    node.apply(b"", Action::Clear, b"2");
    node.apply(&views, add(7), b"3");
    let mut snapshot = Vec::new();
    let mark = node.engine.export(PARTITION, &mut snapshot).unwrap();
    assert_eq!((&mark[..], node.engine.durable_mark(PARTITION)), (&b"1"[..], b"1".to_vec()));
    // What comes behind it leads to the same, also where the rest was deleted, too.
    other.engine.install(PARTITION, &mut &snapshot[..]).unwrap();
    assert_eq!((other.value(&likes), other.engine.mark(PARTITION)), (5, b"1".to_vec()));
    other.apply(b"", Action::Clear, b"2");
    other.apply(&views, add(7), b"3");
    for node in [&node, &other] {
        assert_eq!((node.value(&likes), node.value(&views)), (0, 7));
        node.engine.checkpoint(PARTITION).unwrap();
    }
    assert_eq!(node.engine.digest(PARTITION).unwrap(), other.engine.digest(PARTITION).unwrap());
    snapshot.clear();
    assert_eq!(node.engine.export(PARTITION, &mut snapshot).unwrap(), b"3");
    // And of what a restart finds.
    let node = node.start_again();
    let mut again = Vec::new();
    assert_eq!(node.engine.export(PARTITION, &mut again).unwrap(), b"3");
    assert!(again == snapshot);
}

/// The process ended while a snapshot was being installed: its rows must not show up in the life of the partition that gets
/// the same number.
#[test]
fn half_a_snapshot_is_nobodys() {
    let [likes, views] = keys();
    let node = Node::new(1);
    node.apply(&views, add(7), b"1");
    node.engine.checkpoint(PARTITION).unwrap();
    let mut row = b"C\0\0\0\0\0".to_vec();
    row.extend_from_slice(&likes);
    let mut cells = Vec::new();
    node.cold
        .scan(&space(0), std::ops::Bound::Unbounded, std::ops::Bound::Unbounded, &mut |key, value| {
            if key.starts_with(b"C") {
                cells.push(value.to_vec());
            }
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    let mut rows = Rows::new();
    rows.push(&row, Some(&cells[0])).unwrap();
    node.cold.write(&space(1), &rows).unwrap();
    let node = node.start_again();
    node.apply(b"", Action::Clear, b"2");
    node.apply(&views, add(1), b"3");
    node.engine.checkpoint(PARTITION).unwrap();
    let node = node.start_again();
    assert_eq!((node.value(&likes), node.value(&views)), (0, 1));
}

fn space(generation: u32) -> String {
    format!("p{PARTITION:03}-{generation}")
}

#[test]
fn what_does_not_follow_is_refused() {
    let [likes, _] = keys();
    let node = Node::new(1);
    node.apply(&likes, add(5), b"1");
    let mut batch = Batch::default();
    batch.push(&likes, add(1));
    let step = Step { from: b"0", to: b"1" };
    assert!(node.engine.apply(PARTITION, &mut batch, NOW, step, (true, RULES)).is_err());
    assert!(node.engine.apply_nothing(PARTITION, step).is_err());
    assert!(node.engine.apply_policy(PARTITION, b"*", None, NOW, step).is_err());
    assert!(node.engine.apply_expiries(PARTITION, std::slice::from_ref(&likes), NOW, step).is_err());
    assert_eq!((node.value(&likes), node.engine.mark(PARTITION)), (5, b"1".to_vec()));
}
