//! The log and the state of a group, by openraft's own suite, and what they are after the process has ended in between.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

use std::path::Path;
use std::sync::Arc;

use openraft::StorageError;
use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::vote::RaftLeaderId;
use openraft::{EntryPayload, RaftLogReader};
use quipu_cluster::command;
use quipu_cluster::meta::LEVEL;
use quipu_cluster::raft::{
    Command, Entry, GroupLog, Journal, JournalReader, LogId, Machine, Mark, Types, Vote,
};
use quipu_counting::slot::{partition, slot};
use quipu_counting::{Action, Add, Batch};
use quipu_engine::{Engine, Options, Replication, Step};
use quipu_store::LogOptions;

const PARTITION: u16 = 3;

fn options() -> Options {
    let log = LogOptions { segment_bytes: 1 << 20, ..LogOptions::default() };
    Options { partitions: 4, log, ..Options::default() }
}

/// A node that holds one partition.
struct Node {
    engine: Arc<Engine>,
    journal: Arc<Journal>,
}

impl Node {
    fn open(path: &Path) -> Node {
        let mut reader = JournalReader::new(4);
        let mut record = |start: u64, payload: &[u8]| reader.record(start, payload);
        let engine = Engine::open_replicated(path, options(), &mut record).unwrap();
        let applied = |number: usize| Mark::decode(&engine.mark(number as u16)).ok()?.applied;
        let journal = reader.finish(Arc::clone(engine.log()), applied);
        engine.replicate(Arc::clone(&journal) as Arc<dyn Replication>);
        engine.start_threads(&options().clock).unwrap();
        if !engine.holds(PARTITION) {
            engine.begin_to_hold(PARTITION, &Mark::default().encode()).unwrap();
        }
        Node { engine, journal }
    }

    /// Lets go of the folder at once; a thread that is still busy would keep it for a moment.
    fn close(self) {
        self.engine.close().unwrap();
    }

    fn log(&self) -> GroupLog {
        self.journal.group(usize::from(PARTITION))
    }

    fn machine(&self) -> Machine {
        Machine::new(Arc::clone(&self.engine), PARTITION, Arc::default()).unwrap()
    }
}

struct Builder;

impl StoreBuilder<Types, GroupLog, Machine, tempfile::TempDir> for Builder {
    async fn build(&self) -> Result<(tempfile::TempDir, GroupLog, Machine), StorageError<Types>> {
        let folder = tempfile::tempdir().unwrap();
        let node = Node::open(&folder.path().join("data"));
        Ok((folder, node.log(), node.machine()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openrafts_own_suite() {
    Suite::test_all(Builder).await.unwrap();
}

fn of(key: &str) -> u16 {
    partition(slot(key.as_bytes()), options().partitions)
}

fn log_id(term: u64, index: u64) -> LogId {
    LogId::new(RaftLeaderId::new(term, 1), index)
}

fn entry(term: u64, index: u64) -> Entry {
    let command = Command(format!("entry {term}.{index}").into_bytes().into());
    Entry::new(log_id(term, index), EntryPayload::Normal(command))
}

async fn append(log: &mut GroupLog, entries: impl IntoIterator<Item = Entry> + Send) {
    let entries: Vec<Entry> = entries.into_iter().collect();
    let (done, durable) = <Types as openraft::type_config::TypeConfigExt>::oneshot();
    log.append(entries, IOFlushed::signal(done)).await.unwrap();
    durable.await.unwrap().unwrap();
}

async fn held(log: &mut GroupLog) -> Vec<Entry> {
    log.try_get_log_entries(..).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_finds_votes_entries_truncations_and_purges() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let vote = Vote { leader_id: RaftLeaderId::new(7, 2), committed: true };
    {
        let node = Node::open(&path);
        let mut log = node.log();
        log.save_vote(&vote).await.unwrap();
        append(&mut log, (0..10).map(|index| entry(1, index))).await;
        log.truncate_after(Some(log_id(1, 6))).await.unwrap();
        append(&mut log, (7..9).map(|index| entry(2, index))).await;
        log.purge(log_id(1, 3)).await.unwrap();
        append(&mut log, [entry(2, 9)]).await;
        drop(log);
        node.close();
    }
    let node = Node::open(&path);
    let mut log = node.log();
    assert_eq!(log.read_vote().await.unwrap(), Some(vote));
    let state = log.get_log_state().await.unwrap();
    assert_eq!((state.last_purged_log_id, state.last_log_id), (Some(log_id(1, 3)), Some(log_id(2, 9))));
    let expected: Vec<Entry> =
        (4..7).map(|index| entry(1, index)).chain((7..10).map(|index| entry(2, index))).collect();
    assert_eq!(held(&mut log).await, expected);
    // Another group of the same node knows nothing of it.
    assert_eq!(node.journal.group(0).read_vote().await.unwrap(), None);
}

/// Checkpoints free segments of the log; a vote and a purge that were in them are known all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_freed_segments_said_is_said_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let vote = Vote { leader_id: RaftLeaderId::new(9, 3), committed: false };
    let first_segment = path.join("log/000000000001.log");
    {
        let node = Node::open(&path);
        let mut log = node.log();
        log.save_vote(&vote).await.unwrap();
        let large = |index| {
            let command = Command(vec![0x5a; 300_000].into());
            Entry::new(log_id(9, index), EntryPayload::Normal(command))
        };
        for index in 0..20 {
            append(&mut log, [large(index)]).await;
        }
        assert!(first_segment.exists());
        // As if everything up to entry 17 were carried out.
        let mark = Mark { applied: Some(log_id(9, 17)), ..Mark::default() };
        let (from, to) = (node.engine.mark(PARTITION), mark.encode());
        node.engine.apply_nothing(PARTITION, Step { from: &from, to: &to }).unwrap();
        node.engine.checkpoint(PARTITION).unwrap();
        log.purge(log_id(9, 17)).await.unwrap();
        assert!(!first_segment.exists(), "nobody needs it");
        drop(log);
        node.close();
    }
    let node = Node::open(&path);
    let mut log = node.log();
    assert_eq!(log.read_vote().await.unwrap(), Some(vote));
    let indexes: Vec<u64> = held(&mut log).await.iter().map(|entry| entry.log_id().index).collect();
    assert_eq!(indexes, [18, 19]);
    let state = log.get_log_state().await.unwrap();
    assert_eq!((state.last_purged_log_id, state.last_log_id), (Some(log_id(9, 17)), Some(log_id(9, 19))));
    assert_eq!(Mark::decode(&node.engine.mark(PARTITION)).unwrap().applied, Some(log_id(9, 17)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_begins_anew_takes_part_once_it_has_all_it_may_have_agreed_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let vote = Vote { leader_id: RaftLeaderId::new(7, 2), committed: false };
    let group = usize::from(PARTITION);
    {
        let node = Node::open(&path);
        let mut log = node.log();
        assert!(log.is_complete(), "nothing was here before");
        log.save_vote(&vote).await.unwrap();
        append(&mut log, (0..10).map(|index| entry(1, index))).await;
        node.journal.forget(group).unwrap();
        assert!(!log.is_complete() && held(&mut log).await.is_empty());
        drop(log);
        node.close();
    }
    {
        let node = Node::open(&path);
        let mut log = node.log();
        assert!(!log.is_complete() && held(&mut log).await.is_empty(), "what was given up stays so");
        assert_eq!(log.read_vote().await.unwrap(), Some(vote), "nobody votes twice in a term");
        node.journal.begin_anew(group, 5).unwrap();
        append(&mut log, (0..4).map(|index| entry(2, index))).await;
        assert!(!log.is_complete());
        drop(log);
        node.close();
    }
    {
        let node = Node::open(&path);
        assert!(!node.log().is_complete(), "0 to 3 are not everything before 5");
        // From here on it is only known from what is said of all groups again.
        node.journal.restate().unwrap();
        let end = node.engine.log().end();
        let from = node.journal.stated(end).unwrap();
        assert!(from < end && node.engine.log().end() == end, "what was just said is not said again");
        node.close();
    }
    let node = Node::open(&path);
    let mut log = node.log();
    assert!(!log.is_complete());
    append(&mut log, [entry(2, 4)]).await;
    assert!(log.is_complete());
    drop(log);
    node.close();
}

/// Two that take themselves for the state of one partition: what one has carried out, the other does not carry out again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_follow_is_not_carried_out() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::open(&folder.path().join("data"));
    let key = (0..).map(|number| format!("counter:{number}")).find(|key| of(key) == PARTITION).unwrap();
    let add = |index| {
        let mut batch = Batch::default();
        batch.push(key.as_bytes(), Action::Add(Add::plain(1)));
        Entry::new(log_id(1, index), EntryPayload::Normal(Command(command::batch(7, LEVEL, &batch).into())))
    };
    let value = || {
        let mut batch = Batch::default();
        batch.push(key.as_bytes(), Action::Read);
        node.engine.read(PARTITION, &mut batch, 7).unwrap();
        batch.replies[0].cell.value
    };
    let (mut first, mut second) = (node.machine(), node.machine());
    first.take(add(0), true).unwrap();
    let blank = Entry::new(log_id(1, 0), EntryPayload::Blank);
    for entry in [add(0), blank] {
        assert!(second.take(entry, true).is_err());
    }
    assert_eq!(value(), 1);
    first.take(add(1), true).unwrap();
    assert_eq!(value(), 2);
    // It was let go of, and is none of theirs any more.
    node.engine.let_go(PARTITION).unwrap();
    assert!(first.take(add(2), true).is_err());
    assert!(!node.engine.holds(PARTITION));
    drop((first, second));
    node.close();
}
