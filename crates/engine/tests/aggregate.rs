//! Totals over memory and disk: against a recount where nothing moves, and of counters that nobody touches while others
//! are created, deleted, made again, expired, written out, evicted and deleted all at once.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod small;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quipu_counting::aggregate::{Selector, Totals};
use quipu_counting::policy::matches;
use quipu_counting::{Action, Add, Condition, Counters, Expiry, Set};
use quipu_engine::{Engine, Options};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use small::{NOW, checkpoint_all, open, run, set};

fn set_until(value: i64, expiry: Expiry) -> Action {
    Action::Set(Set { value, expiry, condition: Condition::Always })
}

const DELETE: Action = Action::Delete(Condition::Always);

fn totals(engine: &Engine, pattern: &str) -> Totals {
    let aggregate = engine.aggregate(&Selector::new(pattern.as_bytes()), NOW).unwrap();
    assert!(!aggregate.is_partial());
    assert!(aggregate.parts.iter().all(|part| part.totals.count > 0 && part.node.is_none()));
    assert!(aggregate.parts.is_sorted_by(|one, next| one.partition < next.partition));
    aggregate.totals()
}

fn of_values(values: impl IntoIterator<Item = i64>) -> Totals {
    let mut totals = Totals::NOTHING;
    values.into_iter().for_each(|value| totals.add(value));
    totals
}

const PATTERNS: &[&str] = &[
    "*", "a:*", "a:1*", "a:1?", "b*", "*7", "*:?", "?:1*5", "a:12", "a:none", "none*", "{tag}*", "{tag}7",
    "\u{7f}*",
];

fn check_all(engine: &Engine, model: &BTreeMap<Vec<u8>, i64>, stage: &str) {
    for pattern in PATTERNS {
        let selected = model.iter().filter(|(key, _)| matches(pattern.as_bytes(), key));
        assert_eq!(
            totals(engine, pattern),
            of_values(selected.map(|(_, value)| *value)),
            "{stage} {pattern}"
        );
    }
}

#[test]
fn totals_are_exact_in_memory_on_disk_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = open(folder.path());
    let mut model = BTreeMap::new();
    let mut random = SmallRng::seed_from_u64(11);
    check_all(&engine, &model, "empty");
    for round in 0..12 {
        let mut actions = Vec::new();
        for _ in 0..400 {
            let name = ["a:", "b:", "c", "{tag}"][random.random_range(0..4)];
            let key = format!("{name}{}", random.random_range(0..200)).into_bytes();
            let value = if random.random_bool(0.1) { random.random() } else { random.random_range(-50..50) };
            let (action, after) = match random.random_range(0..5) {
                0 => (DELETE, None),
                // It has expired at once, and its record waits to be removed or to be made again.
                1 => (set_until(value, Expiry::At(NOW - 1)), None),
                2 => (set_until(value, Expiry::At(NOW + 1)), Some(value)),
                _ => (set(value), Some(value)),
            };
            match after {
                Some(value) => model.insert(key.clone(), value),
                None => model.remove(&key),
            };
            actions.push((key, action));
        }
        run(&engine, actions);
        check_all(&engine, &model, &format!("round {round}, changed"));
        if round % 3 == 1 {
            checkpoint_all(&engine);
            check_all(&engine, &model, &format!("round {round}, written out"));
        }
        if round % 4 == 3 {
            engine.close().unwrap();
            drop(engine);
            engine = open(folder.path());
            check_all(&engine, &model, &format!("round {round}, after a restart"));
        }
    }
    // Later, what expires has expired.
    let later = engine.aggregate(&Selector::new(b"*"), NOW + 1).unwrap().totals();
    assert!(later.count < totals(&engine, "*").count);
    run(&engine, [(Vec::new(), Action::Clear)]);
    check_all(&engine, &BTreeMap::new(), "all deleted");
}

#[test]
fn sums_go_beyond_64_bits() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path());
    run(&engine, (0..20).map(|n| (format!("large:{n}").into_bytes(), set(i64::MAX))));
    run(&engine, (0..10).map(|n| (format!("small:{n}").into_bytes(), set(i64::MIN))));
    assert_eq!(totals(&engine, "large:*"), of_values([i64::MAX; 20]));
    assert_eq!(totals(&engine, "small:*").sum, i128::from(i64::MIN) * 10);
    assert_eq!(totals(&engine, "*").range(), Some((i64::MIN, i64::MAX)));
}

/// Values of counters that come and go are multiples of this, and all others together are less: one sum says both.
const LARGE: i64 = 1 << 40;

/// Counters that nobody touches, in more than memory holds, so that others drive them out.
const FIXED: u32 = 40_000;
/// Counters that are deleted and made again in one batch, so that each exists at every moment, in another life.
const AGAIN: u32 = 2_000;

fn fixed(n: u32) -> Vec<u8> {
    format!("fixed:{n:0400}").into_bytes()
}

fn again(n: u32) -> Vec<u8> {
    format!("again:{n:0200}").into_bytes()
}

/// Creates, deletes, lets expire and changes, until told to stop.
fn disturb(engine: &Engine, seed: u64, done: &AtomicBool) {
    let mut random = SmallRng::seed_from_u64(seed);
    while !done.load(Ordering::Relaxed) {
        let mut actions = Vec::new();
        for _ in 0..100 {
            let key = format!("moving:{:0300}", random.random_range(0..60_000)).into_bytes();
            actions.push(match random.random_range(0..6) {
                0 | 1 => (key, DELETE),
                2 => (key, set_until(LARGE, Expiry::At(NOW + random.random_range(0..2)))),
                // A record that grows moves.
                3 => (key, set_until(LARGE << 20, Expiry::Clear)),
                _ => (key, Action::Add(Add::plain(LARGE))),
            });
            let key = again(random.random_range(0..AGAIN));
            actions.extend([(key.clone(), DELETE), (key, set(LARGE))]);
        }
        run(engine, actions);
    }
}

#[test]
fn what_nobody_touches_is_counted_once_whatever_others_do() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path());
    for start in (0..FIXED).step_by(1_000) {
        run(&engine, (start..start + 1_000).map(|n| (fixed(n), set(i64::from(n) + 1))));
    }
    run(&engine, (0..AGAIN).map(|n| (again(n), set(LARGE))));
    let expected = of_values((0..FIXED).map(|n| i64::from(n) + 1));
    assert!(expected.sum < i128::from(LARGE));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (engine, done) = (&engine, &done);
            scope.spawn(move || disturb(engine, seed, done));
        }
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                checkpoint_all(&engine);
            }
        });
        for round in 0..12 {
            assert_eq!(totals(&engine, "fixed:*"), expected, "round {round}");
            // The pattern has no prefix: all of memory and disk passes by.
            let all = totals(&engine, "*:*");
            assert_eq!(all.sum % i128::from(LARGE), expected.sum, "round {round}");
            assert_eq!(all.min, 1, "round {round}");
            let made_again = totals(&engine, "again:*");
            assert!(made_again.count <= u64::from(AGAIN), "round {round}: {made_again:?}");
            assert_eq!(made_again.sum, i128::from(LARGE) * i128::from(made_again.count), "round {round}");
        }
        done.store(true, Ordering::Relaxed);
    });
    let facts: BTreeMap<_, _> = engine.facts().into_iter().collect();
    assert!(facts["evicted"] > 0, "the test must need more than memory: {facts:?}");
}

/// Everything is deleted and made again in one batch, so at every moment all of it is there.
#[test]
fn deleting_everything_begins_the_count_anew() {
    const COUNT: u32 = 3_000;
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path());
    let refill = || {
        let clear = [(Vec::new(), Action::Clear)];
        let counters = (0..COUNT).map(|n| (format!("n:{n}").into_bytes(), set(i64::from(n))));
        run(&engine, clear.into_iter().chain(counters));
    };
    refill();
    let expected = of_values((0..COUNT).map(i64::from));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                refill();
                checkpoint_all(&engine);
                std::thread::yield_now();
            }
        });
        for round in 0..200 {
            assert_eq!(totals(&engine, ["n:*", "*"][round % 2]), expected, "round {round}");
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// What only memory has is written out when a partition is left alone, so that the next walk finds it sorted.
#[test]
fn new_counters_are_written_out_when_nobody_writes() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { partitions: 1, memory_bytes: 64 << 20, ..Options::default() };
    let disk = Arc::new(quipu_store::RealDisk);
    let cold = Arc::new(quipu_store::cold::ModelStore::new(1));
    let engine = Engine::open_on(disk, cold, folder.path(), options).unwrap();
    let checkpoints = || engine.facts().into_iter().find(|(name, _)| *name == "checkpoints").unwrap().1;
    let create = |range: std::ops::Range<u32>| run(&engine, range.map(|n| (fixed(n), set(1))));
    create(0..5_000);
    engine.tend(NOW);
    engine.tend(NOW + 1_999);
    assert_eq!(checkpoints(), 0, "too early");
    create(5_000..5_001);
    engine.tend(NOW + 2_000);
    assert_eq!(checkpoints(), 0, "somebody has written");
    engine.tend(NOW + 4_000);
    engine.tend(NOW + 9_000);
    assert_eq!(checkpoints(), 1, "once is enough");
    create(6_000..6_100);
    engine.tend(NOW + 20_000);
    engine.tend(NOW + 30_000);
    assert_eq!(checkpoints(), 1, "a few are not worth it");
    assert_eq!(totals(&engine, "fixed:*"), of_values([1; 5_101]));
}
