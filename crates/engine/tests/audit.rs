//! Trails: every change once, in order, with who and why, through restarts, checkpoints and snapshots, for as long as the policy says.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

use std::path::Path;
use std::sync::Arc;

use quipu_counting::audit::{Deed, Origin};
use quipu_counting::kinds::RULES;
use quipu_counting::slot::{partition, slot};
use quipu_counting::{
    Action, Add, AuditChange, AuditPage, AuditQuery, Batch, Condition, Counters, Ending, Expiry, GroupKind,
    Policy, Refusal, Reply, Set, Told,
};
use quipu_engine::{Engine, Options, Replication, Step};
use quipu_store::cold::{ColdStore, ModelStore, Rows};
use quipu_store::{LogError, SimDisk};
use quipu_wire::audit::put_change;

const NOW: u64 = 2_400_000_000_000;
const DAY_MS: u64 = 86_400_000;
const KEEP_MS: u64 = 30 * DAY_MS;

/// An engine on a machine that outlives it.
struct Server {
    disk: SimDisk,
    cold: Arc<ModelStore>,
    engine: Arc<Engine>,
}

impl Server {
    fn new(seed: u64) -> Server {
        let server = Server::open(SimDisk::new(seed), Arc::new(ModelStore::new(seed)));
        let policy = Policy { audit_ms: Some(KEEP_MS), ..Policy::default() };
        server.engine.set_policy(b"a*", Some(policy), NOW).unwrap();
        server
    }

    fn open(disk: SimDisk, cold: Arc<ModelStore>) -> Server {
        let options = Options { partitions: 2, entropy: Some([7; 40]), ..Options::default() };
        let store = Arc::clone(&cold) as Arc<dyn ColdStore>;
        let engine = Engine::open_on(Arc::new(disk.clone()), store, Path::new("/data"), options).unwrap();
        Server { disk, cold, engine }
    }

    fn kill(self) -> Server {
        let Server { disk, cold, engine } = self;
        disk.kill();
        drop(engine);
        Server::open(disk, Arc::new(cold.reopen()))
    }

    fn checkpoint(&self) {
        (0..2).for_each(|partition| self.engine.checkpoint(partition).unwrap());
    }

    fn run(&self, mut batch: Batch, now_ms: u64) -> Vec<Reply> {
        let offset = self.engine.run(&mut batch, now_ms).unwrap();
        self.engine.settle(offset).unwrap();
        batch.replies
    }

    fn one(&self, key: &str, action: Action) -> Reply {
        let mut batch = Batch::default();
        batch.push(key.as_bytes(), action);
        self.run(batch, NOW).remove(0)
    }

    fn page(&self, key: &str, before: Option<u64>, limit: usize, now_ms: u64) -> AuditPage {
        let query = AuditQuery { key: key.into(), from_ms: 0, to_ms: u64::MAX, before, limit };
        self.engine.audit(&query, now_ms).unwrap()
    }

    /// The whole trail, page by page, the oldest first.
    fn trail(&self, key: &str) -> Vec<AuditChange> {
        let (mut all, mut before) = (Vec::new(), None);
        loop {
            let page = self.page(key, before, 3, NOW);
            before = page.next();
            all.extend(page.changes);
            if before.is_none() {
                all.reverse();
                return all;
            }
        }
    }

    fn shown(&self, key: &str) -> Vec<String> {
        self.trail(key).iter().map(shown).collect()
    }

    fn shelves(&self) -> usize {
        self.cold.spaces().unwrap().iter().filter(|space| space.starts_with("audit-")).count()
    }
}

/// `add +1 = 1 v1`, then what else there is.
fn shown(change: &AuditChange) -> String {
    let mut text =
        format!("{} {:+} = {} v{}", change.deed.name(), change.applied, change.value, change.version);
    if let Some(id) = &change.request_id {
        text.push_str(&format!(" id {}", String::from_utf8_lossy(id)));
    }
    if let Some(reason) = &change.reason {
        text.push_str(&format!(" for {reason}"));
    }
    if let Some(by) = &change.by {
        text.push_str(&format!(" by {} {}", by.name, by.address));
    }
    text
}

fn add(delta: i64) -> Action {
    Action::Add(Add::plain(delta))
}

fn set(value: i64, expiry: Expiry) -> Action {
    Action::Set(Set { value, expiry, condition: Condition::Always })
}

/// A table: what is asked, and what it leaves.
#[test]
fn every_accepted_change_leaves_one_row_and_nothing_else_does() {
    let server = Server::new(1);
    let anna = Arc::new(Origin::new(b"anna", "10.0.0.7:5"));
    let mut told = Vec::new();
    Told { reason: Some("ticket 88"), ..Told::default() }.put(&mut told);
    let mut batch = Batch::default();
    batch.push(b"a", add(1));
    batch.push(b"a", add(1));
    batch.push(b"b", add(1));
    batch.ask_from(Some(&anna));
    batch.push_with_id(b"a", add(5), b"order-1", 0);
    batch.push_with_id(b"a", add(5), b"order-1", 0);
    batch.push_with_id(b"a", add(6), b"order-1", 0);
    batch.push(b"a", Action::Add(Add { max: 3, ..Add::plain(1) }));
    let told = batch.intern(&told);
    batch.push(b"a", Action::Told { add: Add::plain(-2), told });
    batch.ask_from(None);
    batch.push(b"a", Action::Read);
    batch.push(b"a", set(40, Expiry::Keep));
    batch.push(b"a", Action::Reset(Condition::Always));
    batch.push(b"a", Action::Delete(Condition::Always));
    batch.push(b"a", Action::Delete(Condition::Always));
    // All or none: the second group does not fit.
    let start = batch.requests.len();
    batch.push(b"a", add(1));
    batch.push(b"a", add(2));
    batch.group(start, GroupKind::Atomic);
    let start = batch.requests.len();
    batch.push(b"a", add(4));
    batch.push(b"a", Action::Add(Add { max: 0, ..Add::plain(1) }));
    batch.group(start, GroupKind::Atomic);
    let replies = server.run(batch, NOW);
    assert_eq!(replies[5].refusal, Some(Refusal::IdReused));
    let Some(quipu_counting::Detail::Hold { number, .. }) =
        server.one("a", Action::Reserve(Add::plain(5), 60_000)).detail.as_deref().cloned()
    else {
        panic!("no hold")
    };
    let birth = server.one("a", Action::Read).cell.birth;
    server.one("a", Action::End { birth, number, ending: Ending::Commit(Some(4)) });
    let expected = [
        "add +1 = 1 v1",
        "add +1 = 2 v2",
        "add +5 = 7 v3 id order-1 by anna 10.0.0.7:5",
        "adjust -2 = 5 v4 for ticket 88 by anna 10.0.0.7:5",
        "set +35 = 40 v5",
        "reset -40 = 0 v6",
        "delete +0 = 0 v6",
        "add +1 = 1 v1",
        "add +2 = 3 v2",
        "reserve +0 = 3 v3",
        "commit +4 = 7 v4",
    ];
    assert_eq!(server.shown("a"), expected);
    let nothing = server.page("b", None, 5, NOW);
    assert!(nothing.is_of_nothing(), "{nothing:?}");
    let page = server.page("a", None, 5, NOW + 1);
    assert_eq!(page.since_ms, Some(NOW + 1 - KEEP_MS));
    assert!(server.page("a-unknown", None, 5, NOW).changes.is_empty());
    assert_eq!(server.engine.verify().unwrap().problems, Vec::<String>::new());
}

/// Killed after every step, with and without a checkpoint before it.
#[test]
fn a_trail_survives_whatever_the_counter_survives() {
    let mut server = Server::new(2);
    let mut expected = Vec::new();
    for step in 1..=24_i64 {
        let mut batch = Batch::default();
        batch.push_with_id(b"a", add(step), format!("id-{step}").as_bytes(), 0);
        // A repeat of an earlier one leaves nothing, wherever its id is by now.
        batch.push_with_id(b"a", add(1), b"id-1", 0);
        server.run(batch, NOW);
        expected.push(format!("add +{step} = {} v{step} id id-{step}", step * (step + 1) / 2));
        if step % 3 == 0 {
            server.checkpoint();
        }
        if step % 2 == 0 {
            server = server.kill();
        }
        assert_eq!(server.shown("a"), expected);
    }
}

/// What comes while a checkpoint is made, and one that fails, lose nothing and tell nothing twice.
#[test]
fn a_trail_goes_on_while_a_checkpoint_is_made() {
    let server = Server::new(3);
    let mut expected = 0;
    for round in 0..5 {
        let mut steps = 0;
        server.one("a", add(1));
        let between = &mut || {
            steps += 1;
            server.one("a", add(1));
            if round == 4 && steps == 2 {
                // It comes to nothing.
                server.one("", Action::Clear);
            }
            let trail = server.trail("a");
            assert!(trail.is_sorted_by(|a, b| a.number < b.number), "{trail:?}");
            assert_eq!(trail.len(), expected + 1 + steps + usize::from(round == 4 && steps >= 2));
        };
        server.engine.checkpoint_in_steps(partition(slot(b"a"), 2), between).unwrap();
        assert!(steps > 3, "{steps}");
        expected += 1 + steps;
    }
    let trail = server.trail("a");
    assert_eq!(trail.len(), expected + 1);
    assert_eq!(trail.iter().filter(|change| change.deed.name() == "clear").count(), 1);
    let server = server.kill();
    assert_eq!(server.trail("a"), trail);
}

#[test]
fn what_is_gone_leaves_its_trail() {
    let server = Server::new(4);
    server.one("a", set(7, Expiry::In(1_000)));
    // It expired, and nobody had removed it yet when it began anew.
    let mut batch = Batch::default();
    batch.push(b"a", set(1, Expiry::In(1_000)));
    server.run(batch, NOW + 5_000);
    // It expired, and the keeper removed it.
    server.engine.tend(NOW + 60_000);
    server.one("a", add(3));
    server.checkpoint();
    server.one("", Action::Clear);
    let server = server.kill();
    server.checkpoint();
    server.one("a", add(2));
    let expected = [
        "set +7 = 7 v1",
        "expired -7 = 0 v1",
        "set +1 = 1 v1",
        "expired -1 = 0 v1",
        "add +3 = 3 v1",
        "clear +0 = 0 v0",
        "add +2 = 2 v1",
    ];
    assert_eq!(server.shown("a"), expected);
    assert_eq!(server.kill().shown("a"), expected);
}

#[test]
fn what_is_too_old_is_neither_shown_nor_kept() {
    let server = Server::new(5);
    for day in 0..90 {
        let mut batch = Batch::default();
        batch.push(b"a", add(1));
        server.run(batch, NOW + day * DAY_MS);
        server.checkpoint();
        let now_ms = NOW + day * DAY_MS;
        server.engine.tend(now_ms);
        let page = server.page("a", None, 1_000, now_ms);
        let shown = page.changes.len() as u64;
        assert_eq!(shown, (day + 1).min(30), "on day {day}");
        assert!(page.changes.iter().all(|change| change.at_ms > page.since_ms.unwrap()));
        assert!(server.shelves() <= 9, "{} on day {day}", server.shelves());
    }
    // The span that is asked for, wherever it lies.
    let now_ms = NOW + 89 * DAY_MS;
    let query = AuditQuery {
        key: b"a".to_vec(),
        from_ms: NOW + 70 * DAY_MS,
        to_ms: NOW + 80 * DAY_MS,
        before: None,
        limit: 4,
    };
    let page = server.engine.audit(&query, now_ms).unwrap();
    let days: Vec<u64> = page.changes.iter().map(|change| (change.at_ms - NOW) / DAY_MS).collect();
    assert_eq!((days, page.more), (vec![80, 79, 78, 77], true));
    let rest = AuditQuery { before: page.next(), limit: 100, ..query };
    assert_eq!(server.engine.audit(&rest, now_ms).unwrap().changes.len(), 7);
    // Another policy is for what comes; without one what there is stays readable.
    let policy = Policy { audit_ms: Some(KEEP_MS * 4), ..Policy::default() };
    server.engine.set_policy(b"a*", Some(policy), now_ms).unwrap();
    let mut batch = Batch::default();
    batch.push(b"a", add(1));
    server.run(batch, now_ms);
    server.engine.set_policy(b"a*", None, now_ms).unwrap();
    server.one("a", add(1));
    let server = server.kill();
    assert!(!server.engine.audits());
    assert_eq!(server.page("a", None, 100, now_ms).changes.len(), 31);
    let later_ms = now_ms + 2 * KEEP_MS;
    server.checkpoint();
    server.engine.tend(later_ms);
    let page = server.page("a", None, 100, later_ms);
    assert_eq!((page.changes.len(), page.since_ms), (1, None));
    assert_eq!(server.shelves(), 1);
}

/// A trail that waits for a checkpoint counts as memory, so that writers wait for one before it grows without end.
#[test]
fn a_trail_is_bounded_in_memory() {
    let disk = SimDisk::new(6);
    let cold = Arc::new(ModelStore::new(6));
    let options =
        Options { partitions: 1, memory_bytes: 4 << 20, entropy: Some([7; 40]), ..Options::default() };
    let store = Arc::clone(&cold) as Arc<dyn ColdStore>;
    let engine = Engine::open_on(Arc::new(disk), store, Path::new("/data"), options).unwrap();
    let policy = Policy { audit_ms: Some(KEEP_MS), ..Policy::default() };
    engine.set_policy(b"*", Some(policy), NOW).unwrap();
    for _ in 0..100 {
        let mut batch = Batch::default();
        for _ in 0..1_000 {
            batch.push(b"hot", add(1));
        }
        engine.run(&mut batch, NOW).unwrap();
    }
    assert!(cold.spaces().unwrap().iter().any(|space| space.starts_with("audit-")));
    let query = AuditQuery { key: b"hot".into(), from_ms: 0, to_ms: NOW, before: None, limit: 1_000 };
    let page = engine.audit(&query, NOW).unwrap();
    let versions: Vec<u64> = page.changes.iter().map(|change| change.version).collect();
    assert_eq!(versions, (99_001..=100_000).rev().collect::<Vec<u64>>());
}

/// Whoever orders: here everything in the log is needed for ever.
struct Orders;

impl Replication for Orders {
    fn needed_from(&self, _partition: u16, _mark: &[u8]) -> Result<u64, LogError> {
        Ok(0)
    }

    fn checkpointed(&self, _partition: u16) {}
}

struct Replica {
    disk: SimDisk,
    cold: Arc<ModelStore>,
    engine: Arc<Engine>,
}

impl Replica {
    fn open(disk: SimDisk, cold: Arc<ModelStore>) -> Replica {
        let options = Options { partitions: 1, entropy: Some([7; 40]), ..Options::default() };
        let store = Arc::clone(&cold) as Arc<dyn ColdStore>;
        let mut record = |_: u64, _: &[u8]| Ok(());
        let path = Path::new("/data");
        let engine =
            Engine::open_replicated_on(Arc::new(disk.clone()), store, path, options, &mut record).unwrap();
        engine.replicate(Arc::new(Orders));
        Replica { disk, cold, engine }
    }

    fn new(seed: u64) -> Replica {
        let replica = Replica::open(SimDisk::new(seed), Arc::new(ModelStore::new(seed)));
        replica.engine.begin_to_hold(0, b"0").unwrap();
        replica
    }

    fn step(&self, number: u64, action: Action) {
        let (from, to) = (self.engine.mark(0), number.to_string().into_bytes());
        let step = Step { from: &from, to: &to };
        if number == 1 {
            let policy = Policy { audit_ms: Some(KEEP_MS), ..Policy::default() };
            return self.engine.apply_policy(0, b"*", Some(policy), NOW, step).unwrap();
        }
        let mut batch = Batch::default();
        batch.ask_from(Some(&Arc::new(Origin::new(b"bert", "10.0.0.8:9"))));
        batch.push(if action.is_global() { b"" } else { b"a" }, action);
        self.engine.apply(0, &mut batch, NOW, step, (true, RULES)).unwrap();
    }

    fn trail(&self) -> Vec<AuditChange> {
        let query = AuditQuery { key: b"a".into(), from_ms: 0, to_ms: NOW, before: None, limit: 100 };
        self.engine.audit_of(0, &query, NOW).unwrap().changes
    }
}

#[test]
fn replicas_have_the_same_trail_and_send_it() {
    let (one, two, late) = (Replica::new(1), Replica::new(2), Replica::new(3));
    let actions = [add(1), add(1), add(5), Action::Delete(Condition::Always), Action::Clear, add(2), add(3)];
    for (number, action) in (1..).zip(actions) {
        one.step(number, action);
        two.step(number, action);
        if number == 5 {
            one.engine.checkpoint(0).unwrap();
        }
    }
    assert_eq!(one.trail().len(), 6);
    assert_eq!(one.trail(), two.trail());
    assert_eq!(one.engine.digest(0).unwrap(), two.engine.digest(0).unwrap());
    // Who is too far behind gets what the checkpoint has, and carries out the rest.
    let mut snapshot = Vec::new();
    assert_eq!(one.engine.export(0, &mut snapshot).unwrap(), b"5");
    late.engine.install(0, &mut &snapshot[..]).unwrap();
    late.step(6, add(2));
    late.step(7, add(3));
    assert_eq!(late.trail(), one.trail());
    assert_eq!(late.engine.digest(0).unwrap(), one.engine.digest(0).unwrap());
    // A restart begins at the checkpoint; what is carried out again leaves the same rows, also where they were on disk already.
    two.engine.checkpoint(0).unwrap();
    let Replica { disk, cold, engine } = one;
    disk.kill();
    drop(engine);
    let again = Replica::open(disk, Arc::new(cold.reopen()));
    assert_eq!(again.trail().len(), 4, "what is behind the mark is not there yet");
    again.step(6, add(2));
    again.step(7, add(3));
    assert_eq!(again.trail(), two.trail());
    // A trail that a snapshot lacks is noticed.
    let lacks = Replica::new(4);
    lacks.engine.install(0, &mut &snapshot[..]).unwrap();
    let shelf = lacks.cold.spaces().unwrap().into_iter().find(|space| space.starts_with("audit-")).unwrap();
    lacks.cold.drop_space(&shelf).unwrap();
    lacks.step(6, add(2));
    lacks.step(7, add(3));
    assert_ne!(lacks.engine.digest(0).unwrap(), two.engine.digest(0).unwrap());
}

fn fact(server: &Server, name: &str) -> u64 {
    server.engine.facts().into_iter().find(|(known, _)| *known == name).unwrap().1
}

/// Says what a check finds wrong with a row that lies in the space of trails.
fn checked_with(key: &[u8], value: &[u8]) -> Vec<String> {
    let server = Server::new(11);
    for _ in 0..3 {
        server.one("a1", Action::Add(Add::plain(1)));
    }
    assert_eq!((fact(&server, "audit_rows_recent"), fact(&server, "audit_rows_on_disk")), (3, 0));
    server.checkpoint();
    assert_eq!((fact(&server, "audit_rows_recent"), fact(&server, "audit_rows_on_disk")), (0, 3));
    assert!(fact(&server, "audit_bytes_on_disk") > 0);
    server.one("a1", Action::Add(Add::plain(1)));
    let report = server.engine.verify().unwrap();
    assert_eq!((report.trail_rows, report.problems), (4, Vec::new()));
    let space = server.cold.spaces().unwrap().into_iter().find(|space| space.starts_with("audit-")).unwrap();
    let mut rows = Rows::new();
    rows.push(key, Some(value)).unwrap();
    server.cold.write(&space, &rows).unwrap();
    server.engine.verify().unwrap().problems
}

#[test]
fn a_check_reads_trails_too() {
    let index = partition(slot(b"a1"), 2);
    let row = |index: u16, number: u64| {
        [&index.to_be_bytes()[..], &2u16.to_be_bytes(), b"a1", &(!number).to_be_bytes()].concat()
    };
    let change = |number: u64, at_ms: u64| {
        let mut bytes = Vec::new();
        let (deed, held) = (Deed::Add, 0);
        let (applied, value, version) = (1, 1, 1);
        let (request_id, reason, by) = (None, None, None);
        let change =
            AuditChange { number, at_ms, deed, applied, held, value, version, request_id, reason, by };
        put_change(&mut bytes, &change);
        bytes
    };
    assert_eq!(checked_with(&row(index, 1), &change(1, NOW)), Vec::<String>::new());
    for (key, value, what) in [
        (row(index, 1), b"not a change".to_vec(), "malformed record"),
        (row(index, 1), [change(1, NOW), vec![0]].concat(), "bytes behind its end"),
        (row(index, 1), change(2, NOW), "lies where it does not belong"),
        (row(index, 1), change(1, NOW - 90 * DAY_MS), "lies where it does not belong"),
        (row(1 - index, 1), change(1, NOW), "lies where it does not belong"),
    ] {
        let problems = checked_with(&key, &value);
        assert!(problems.len() == 1 && problems[0].contains(what), "{what}: {problems:?}");
    }
}
