//! Lists over memory and disk, while counters change, are written out and are evicted between pages and during them.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod small;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use quipu_counting::{Action, Add, Cell, Condition, Counters, ListOrder, Listing};
use quipu_engine::Engine;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use small::{NOW, checkpoint_all, open, run, set};

const ORDERS: [ListOrder; 3] = [ListOrder::Storage, ListOrder::Key, ListOrder::Value];

type Counter = (Vec<u8>, Cell);

/// All pages, with `between` called after each.
fn pages(engine: &Engine, listing: Listing, mut between: impl FnMut()) -> Vec<Counter> {
    let mut listing = listing;
    let mut all: Vec<Counter> = Vec::new();
    loop {
        let page = engine.list(&listing, NOW).unwrap();
        assert!(page.counters.len() == listing.limit || !page.more);
        assert_eq!(page.next().is_some(), page.more);
        listing.after = page.next();
        all.extend(page.counters.into_iter().map(|listed| (listed.key, listed.cell)));
        if listing.after.is_none() {
            return all;
        }
        between();
    }
}

fn listing(order: ListOrder, prefix: &str, limit: usize) -> Listing {
    Listing { order, prefix: prefix.into(), limit, after: None }
}

fn values(counters: &[Counter]) -> Vec<(Vec<u8>, i64)> {
    counters.iter().map(|(key, cell)| (key.clone(), cell.value)).collect()
}

/// What the list must be, from what was counted.
fn expected(model: &BTreeMap<Vec<u8>, i64>, order: ListOrder, prefix: &str) -> Vec<(Vec<u8>, i64)> {
    let mut all: Vec<_> = model.iter().filter(|(key, _)| key.starts_with(prefix.as_bytes())).collect();
    if order == ListOrder::Value {
        all.sort_by_key(|(_, value)| std::cmp::Reverse(**value));
    }
    all.into_iter().map(|(key, value)| (key.clone(), *value)).collect()
}

fn check_all(engine: &Engine, model: &BTreeMap<Vec<u8>, i64>, stage: &str) {
    for order in ORDERS {
        for (prefix, limit) in [("", 37), ("", 10_000), ("a:", 5), ("b", 5), ("none", 5), ("\u{7f}", 5)] {
            let mut found = values(&pages(engine, listing(order, prefix, limit), || ()));
            if order == ListOrder::Storage {
                found.sort();
            }
            assert_eq!(found, expected(model, order, prefix), "{stage} {order:?} {prefix:?} {limit}");
        }
    }
}

#[test]
fn lists_are_exact_in_memory_on_disk_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = open(folder.path());
    let mut random = SmallRng::seed_from_u64(3);
    let mut model = BTreeMap::new();
    check_all(&engine, &model, "empty");
    for round in 0..4 {
        for _ in 0..300 {
            let prefix = [&b"a:"[..], b"b:", b"b", b"\xff\xff"][random.random_range(0..4)];
            let key = [prefix, random.random_range(0..200).to_string().as_bytes()].concat();
            if random.random_range(0..5) == 0 {
                model.remove(&key);
                run(&engine, [(key, Action::Delete(Condition::Always))]);
            } else {
                let value = random.random_range(-20..20) * random.random_range(0..i64::MAX / 20);
                model.insert(key.clone(), value);
                run(&engine, [(key, set(value))]);
            }
        }
        check_all(&engine, &model, &format!("round {round}, written to the log"));
        checkpoint_all(&engine);
        check_all(&engine, &model, &format!("round {round}, written out"));
        if round % 2 == 1 {
            engine.close().unwrap();
            drop(engine);
            engine = open(folder.path());
            check_all(&engine, &model, &format!("round {round}, restarted"));
        }
    }
    run(&engine, [(Vec::new(), Action::Clear)]);
    check_all(&engine, &BTreeMap::new(), "cleared");
}

/// Counters that are not touched are on exactly one page and right, whatever happens to others between two pages.
#[test]
fn pages_survive_writes_between_them() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path());
    let key = |n: u32| format!("k{:03}", n % 1_000).into_bytes();
    run(&engine, (0..1_000).map(|n| (key(n), set(i64::from(n % 7)))));
    checkpoint_all(&engine);
    for order in ORDERS {
        let mut random = SmallRng::seed_from_u64(11);
        let found = pages(&engine, listing(order, "", 17), || {
            // Odd ones only: deleted, raised, lowered, born anew; now and then all is written out.
            for _ in 0..20 {
                let odd = random.random_range(0..500) * 2 + 1;
                let action = match random.random_range(0..3) {
                    0 => Action::Delete(Condition::Always),
                    1 => set(random.random_range(-9..9)),
                    _ => Action::Add(Add::plain(random.random_range(-9..9))),
                };
                run(&engine, [(key(odd), action)]);
            }
            if random.random_range(0..4) == 0 {
                checkpoint_all(&engine);
            }
        });
        let mut even: Vec<_> = values(&found).into_iter().filter(|(key, _)| key[3] % 2 == 0).collect();
        even.sort();
        let all: Vec<_> = (0..1_000).step_by(2).map(|n| (key(n), i64::from(n % 7))).collect();
        assert_eq!(even, all, "{order:?}");
        if order != ListOrder::Value {
            let mut keys: Vec<_> = found.iter().map(|(key, _)| key).collect();
            keys.sort();
            assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "{order:?} repeats a key");
        }
    }
}

/// More counters than memory holds, while other threads bring them in, change and evict them.
#[test]
fn pages_survive_eviction_under_way() {
    // Enough that writers have to wait for a checkpoint, however late the keeper's thread comes.
    const COUNT: u32 = 120_000;
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path());
    let key = |n: u32| format!("counter:{n:0500}").into_bytes();
    for start in (0..COUNT).step_by(1_000) {
        run(&engine, (start..start + 1_000).map(|n| (key(n), set(i64::from(n)))));
    }
    let facts: BTreeMap<_, _> = engine.facts().into_iter().collect();
    assert!(facts["evicted"] > 0, "the test must need more than memory: {facts:?}");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = SmallRng::seed_from_u64(5);
            while !done.load(Ordering::Relaxed) {
                let odd = || key(random.random_range(0..COUNT / 2) * 2 + 1);
                let keys: Vec<_> = std::iter::repeat_with(odd).take(200).collect();
                run(&engine, keys.into_iter().map(|key| (key, Action::Add(Add::plain(1)))));
            }
        });
        for (order, limit) in
            [(ListOrder::Storage, 1_000), (ListOrder::Key, 10_000), (ListOrder::Value, 10_000)]
        {
            let found = pages(&engine, listing(order, "", limit), || ());
            let mut even: Vec<_> = found.iter().filter(|(key, _)| key[key.len() - 1] % 2 == 0).collect();
            even.sort_by(|(one, _), (other, _)| one.cmp(other));
            assert_eq!(even.len(), COUNT as usize / 2, "{order:?}");
            for (n, (found, cell)) in (0..COUNT).step_by(2).zip(even) {
                assert_eq!((found, cell.value), (&key(n), i64::from(n)), "{order:?}");
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}
