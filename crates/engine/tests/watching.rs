//! What is noted of changes, for those who watch: nothing is missed, nothing else is noted, and it is bounded.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quipu_counting::{Action, Add, Batch, Changes, Condition, Counters, Expiry, GroupKind, Interest, Set};
use quipu_engine::{Engine, Options};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Later than any clock of a machine that runs this, so that the keeper's clock decides nothing.
const NOW: u64 = 2_400_000_000_000;

fn open(folder: &tempfile::TempDir) -> Arc<Engine> {
    Engine::open(folder.path(), Options { memory_bytes: 64 << 20, ..Options::default() }).unwrap()
}

fn interest(keys: &[&str], prefixes: &[&str]) -> Interest {
    let bytes = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
    Interest::new(bytes(keys), bytes(prefixes))
}

fn watch(engine: &Engine, keys: &[&str], prefixes: &[&str]) {
    engine.watch(interest(keys, prefixes), Box::new(|| {}));
}

fn run(engine: &Engine, requests: &[(&str, Action)], now_ms: u64) -> Batch {
    let mut batch = Batch::default();
    for (key, action) in requests {
        batch.push(key.as_bytes(), *action);
    }
    engine.run(&mut batch, now_ms).unwrap();
    batch
}

/// The keys in order.
fn keys(changes: Changes) -> Vec<String> {
    assert!(!changes.cleared && !changes.lost);
    let keys: BTreeSet<String> =
        changes.keys.into_iter().map(|key| String::from_utf8(key).unwrap()).collect();
    keys.into_iter().collect()
}

fn add(delta: i64) -> Action {
    Action::Add(Add::plain(delta))
}

#[test]
fn every_way_to_change_a_counter_is_noted_once() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(&folder);
    let set = |value| Action::Set(Set { value, expiry: Expiry::Keep, condition: Condition::Always });
    run(&engine, &[("a1", add(1)), ("x", add(1))], NOW);
    assert!(engine.changes().is_empty(), "nobody watches");
    watch(&engine, &["x", "never"], &["a", "b:"]);
    assert!(engine.changes().is_empty(), "what was before is not noted");
    let delete = Action::Delete(Condition::Always);
    let refused = Action::Add(Add { max: 0, ..Add::plain(1) });
    for (requests, noted) in [
        (&[("a1", add(1)), ("a1", add(1)), ("a1", add(-2)), ("other", add(1))][..], &["a1"][..]),
        (&[("x", add(1)), ("b:", add(1)), ("b", add(1)), ("xx", add(1))], &["b:", "x"]),
        (&[("x", Action::Read), ("a1", Action::Read), ("a9", Action::Read)], &[]),
        (&[("x", refused), ("a9", delete)], &[]),
        (&[("x", set(5)), ("a2", set(0))], &["a2", "x"]),
        (&[("x", delete), ("a2", delete)], &["a2", "x"]),
        (&[("x", add(1)), ("x", delete)], &["x"]),
    ] {
        run(&engine, requests, NOW);
        assert_eq!(keys(engine.changes()), noted, "{requests:?}");
        assert!(engine.changes().is_empty());
    }
    let mut batch = Batch::default();
    let start = batch.requests.len();
    batch.push(b"a1", add(1));
    batch.push(b"x", add(1));
    batch.group(start, GroupKind::Atomic);
    batch.push_with_id(b"b:1", add(1), b"once", 0);
    batch.push_with_id(b"b:1", add(1), b"once", 0);
    engine.run(&mut batch, NOW).unwrap();
    assert_eq!(keys(engine.changes()), ["a1", "b:1", "x"]);
    watch(&engine, &["y"], &[]);
    run(&engine, &[("a1", add(1)), ("y", add(1))], NOW);
    assert_eq!(keys(engine.changes()), ["y"], "something else is watched");
    watch(&engine, &[], &[]);
    run(&engine, &[("y", add(1))], NOW);
    assert!(engine.changes().is_empty(), "nobody watches");
}

#[test]
fn what_expires_is_noted_when_it_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(&folder);
    watch(&engine, &["soon"], &[]);
    let expiring = Action::Add(Add { expiry: Expiry::In(1_000), ..Add::plain(1) });
    run(&engine, &[("soon", expiring)], NOW);
    assert_eq!(keys(engine.changes()), ["soon"]);
    engine.tend(NOW + 999);
    assert!(engine.changes().is_empty());
    engine.tend(NOW + 1_000);
    assert_eq!(keys(engine.changes()), ["soon"]);
}

#[test]
fn a_deletion_of_all_forgets_what_was_noted_before() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(&folder);
    watch(&engine, &["k"], &["p"]);
    run(&engine, &[("k", add(1)), ("p1", add(1)), ("p2", add(1))], NOW);
    run(&engine, &[("", Action::Clear), ("p2", add(1))], NOW);
    let changes = engine.changes();
    assert_eq!(changes, Changes { cleared: true, keys: vec![b"p2".to_vec()], lost: false });
    assert!(engine.changes().is_empty());
}

#[test]
fn too_many_changes_are_lost_together_and_the_next_are_noted_again() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(&folder);
    watch(&engine, &[], &[""]);
    let long = "x".repeat(400);
    for start in (0..50_000).step_by(1_000) {
        let mut batch = Batch::default();
        for number in start..start + 1_000 {
            batch.push(format!("{long}{number}").as_bytes(), add(1));
        }
        engine.run(&mut batch, NOW).unwrap();
    }
    let changes = engine.changes();
    assert!(changes.lost && !changes.cleared);
    let bytes: usize = changes.keys.iter().map(Vec::len).sum();
    assert!(bytes <= 16 << 20, "{bytes} bytes were noted");
    run(&engine, &[("a", add(1))], NOW);
    assert_eq!(keys(engine.changes()), ["a"]);
    run(&engine, &[("b", add(1)), ("", Action::Clear)], NOW);
    assert!(engine.changes().cleared);
}

#[test]
fn each_who_watches_has_notes_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(&folder);
    engine.watch_for(7, interest(&[], &["a"]));
    engine.watch_for(8, interest(&["a1"], &["b"]));
    run(&engine, &[("a1", add(1)), ("a2", add(1)), ("b1", add(1))], NOW);
    assert_eq!(keys(engine.take_changes(7)), ["a1", "a2"]);
    engine.watch_for(7, Interest::default());
    run(&engine, &[("a1", add(1)), ("a2", add(1))], NOW);
    assert_eq!(keys(engine.take_changes(8)), ["a1", "b1"]);
    assert!(engine.take_changes(7).is_empty());
    assert_eq!(engine.take_changes_of(7, 0), None);
}

/// Whoever reads what is noted, and goes on until the writers are done and nothing more is noted, has seen the last of every
/// counter.
#[test]
fn nothing_is_missed_while_many_write() {
    const WRITERS: usize = 4;
    const ROUNDS: usize = 300;
    let folder = tempfile::tempdir().unwrap();
    let engine = open(&folder);
    watch(&engine, &["hot", "cold"], &["p:"]);
    let done = AtomicUsize::new(0);
    let mut seen: BTreeMap<String, (i64, bool)> = BTreeMap::new();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (engine, done) = (&engine, &done);
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(writer as u64);
                for _ in 0..ROUNDS {
                    let mut batch = Batch::default();
                    for _ in 0..random.random_range(1..20) {
                        let key = match random.random_range(0..10) {
                            0 => "hot".to_owned(),
                            1 => "unwatched".to_owned(),
                            _ => format!("p:{}", random.random_range(0..200)),
                        };
                        match random.random_range(0..8) {
                            0 => batch.push(key.as_bytes(), Action::Delete(Condition::Always)),
                            _ => batch.push(key.as_bytes(), add(random.random_range(-3..9))),
                        };
                    }
                    engine.run(&mut batch, NOW).unwrap();
                }
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        loop {
            let is_last = done.load(Ordering::SeqCst) == WRITERS;
            for key in keys(engine.changes()) {
                let reply = run(&engine, &[(&key, Action::Read)], NOW).replies[0].clone();
                seen.insert(key, (reply.cell.value, reply.exists));
            }
            if is_last {
                break;
            }
        }
    });
    assert!(seen.len() > 100 && seen.contains_key("hot") && !seen.contains_key("unwatched"), "{seen:?}");
    for (key, seen) in &seen {
        let reply = run(&engine, &[(key, Action::Read)], NOW).replies[0].clone();
        assert_eq!(*seen, (reply.cell.value, reply.exists), "{key}");
    }
}
