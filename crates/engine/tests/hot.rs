//! The keys asked for most, found among a million by an engine that is asked for all of them.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quipu_counting::{Action, Add, Batch, Counters, HotKeys, Unavailable};
use quipu_engine::{Engine, Options};
use quipu_store::Durability;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Later than any clock of a machine that runs this, so that the keeper's clock decides nothing.
const NOW_MS: u64 = 2_400_000_000_000;
const KEYS: usize = 1_000_000;
/// What a pipeline brings.
const BATCH: usize = 64;

/// An engine and its clock, which stands still unless it is set.
struct World {
    engine: Arc<Engine>,
    now_ms: Arc<AtomicU64>,
}

impl World {
    fn open(path: &Path) -> World {
        World::open_with(path, Options::default())
    }

    fn open_with(path: &Path, options: Options) -> World {
        let now_ms = Arc::new(AtomicU64::new(NOW_MS));
        let clock = Arc::clone(&now_ms);
        let options = Options {
            durability: Durability::None,
            entropy: Some([7; 40]),
            clock: Arc::new(move || clock.load(Ordering::Relaxed)),
            ..options
        };
        World { engine: Engine::open(path, options).unwrap(), now_ms }
    }

    fn hot(&self, n: usize, now_ms: u64) -> HotKeys {
        self.now_ms.store(now_ms, Ordering::Relaxed);
        self.engine.hot(n, now_ms).unwrap()
    }

    /// So many requests of drawn keys in pipelines, spread over some time, every third of them a read.
    fn offer(&self, draw: &mut impl FnMut() -> usize, requests: usize, times_ms: (u64, u64)) -> Counted {
        let mut counted = Counted::new();
        let mut batch = Batch::default();
        for number in 0..requests {
            let rank = draw();
            *counted.entry(rank).or_default() += 1;
            let action = if number % 3 == 0 { Action::Read } else { Action::Add(Add::plain(1)) };
            batch.push(name(rank).as_bytes(), action);
            if batch.requests.len() == BATCH || number + 1 == requests {
                let (from_ms, to_ms) = times_ms;
                let now_ms = from_ms + (to_ms - from_ms) * number as u64 / requests as u64;
                self.now_ms.store(now_ms, Ordering::Relaxed);
                self.engine.run(&mut batch, now_ms).unwrap();
                batch.clear();
            }
        }
        counted
    }
}

/// Draws the ranks of keys, from 0, as often as a Zipf distribution of exponent 1.1 has them.
struct Zipf {
    up_to: Vec<f64>,
    random: SmallRng,
}

impl Zipf {
    fn new(seed: u64) -> Zipf {
        let mut sum = 0.0;
        let weight = |rank: usize| {
            sum += (rank as f64).powf(-1.1);
            sum
        };
        Zipf { up_to: (1..=KEYS).map(weight).collect(), random: SmallRng::seed_from_u64(seed) }
    }

    fn draw(&mut self) -> usize {
        let drawn = self.random.random_range(0.0..self.up_to[KEYS - 1]);
        self.up_to.partition_point(|up_to| *up_to < drawn)
    }
}

fn name(rank: usize) -> String {
    format!("page:{rank}")
}

/// The true count of every key.
type Counted = HashMap<usize, u64>;

fn top(counted: &Counted, n: usize) -> Vec<(String, u64)> {
    let mut all: Vec<(usize, u64)> = counted.iter().map(|(rank, count)| (*rank, *count)).collect();
    all.sort_unstable_by_key(|(rank, count)| (std::cmp::Reverse(*count), name(*rank)));
    all.into_iter().take(n).map(|(rank, count)| (name(rank), count)).collect()
}

fn told(hot: &HotKeys) -> Vec<String> {
    hot.keys.iter().map(|key| String::from_utf8(key.key.clone()).unwrap()).collect()
}

/// In the order of their true counts, of which so many requests may have been missed before a key was held.
fn assert_is_top_20(hot: &HotKeys, counted: &Counted, missed_max: u64) {
    let expected = top(counted, 20);
    let keys: Vec<&str> = expected.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(told(hot), keys, "{hot:?} beside {expected:?}");
    for (key, (name, count)) in hot.keys.iter().zip(&expected) {
        assert!(key.requests <= *count, "{name} was told too often");
        assert!(key.requests + missed_max >= *count, "{name}: {} of {count}", key.requests);
    }
}

#[test]
fn the_top_twenty_of_a_million_keys_are_told_in_their_order() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::open(folder.path());
    let mut zipf = Zipf::new(1);
    // Ten seconds of the usual, all of which is told.
    let counted = world.offer(&mut || zipf.draw(), 1_000_000, (NOW_MS, NOW_MS + 10_000));
    let hot = world.hot(20, NOW_MS + 10_000);
    assert_is_top_20(&hot, &counted, 10);
    assert_eq!((hot.requests(), hot.window_ms, hot.is_partial), (1_000_000, 10_000, false));
    assert_eq!(hot.per_second(hot.requests()), 100_000.0);
    let share = hot.share(hot.keys[0].requests);
    assert!((0.12..0.13).contains(&share), "the first has an eighth, not {share}");
    // One partition of sixteen has the first key, with twice what each has of the rest.
    assert!((2.0..5.0).contains(&hot.skew()), "{}", hot.skew());
    assert_eq!(world.hot(1, NOW_MS + 10_000).keys, hot.keys[..1]);
    assert_eq!(world.hot(100, NOW_MS + 10_000).keys.len(), 100);
    // It is quiet: what was hot is not.
    let later = world.hot(20, NOW_MS + 15_000);
    assert!(later.requests() < hot.requests() && later.requests() > 0, "{}", later.requests());
    let idle = world.hot(20, NOW_MS + 22_000);
    assert_eq!((idle.keys.len(), idle.requests(), idle.skew()), (0, 0, 1.0));
}

/// In a second that is busy with other keys already, keys come in by sample alone, and not every batch is counted.
#[test]
fn they_are_found_among_keys_that_nobody_asks_for_twice() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::open(folder.path());
    let mut fresh = KEYS;
    let mut next = || {
        fresh += 1;
        fresh
    };
    let mut counted = world.offer(&mut next, 200_000, (NOW_MS, NOW_MS + 100));
    let (mut zipf, mut turn) = (Zipf::new(2), 0);
    let mut mixed = || {
        turn += 1;
        if turn % 2 == 0 { zipf.draw() } else { next() }
    };
    counted.extend(world.offer(&mut mixed, 1_500_000, (NOW_MS + 100, NOW_MS + 990)));
    let hot = world.hot(20, NOW_MS + 999);
    let expected: HashMap<String, u64> = top(&counted, 20).into_iter().collect();
    for key in &hot.keys {
        let name = String::from_utf8(key.key.clone()).unwrap();
        let count = *expected.get(&name).unwrap_or_else(|| panic!("{name} is not of {expected:?}"));
        assert!(key.requests.abs_diff(count) <= 400 + count / 20, "{name}: {} of {count}", key.requests);
    }
    assert_eq!(hot.keys.len(), 20);
    assert!(hot.requests().abs_diff(1_700_000) < 50_000, "{}", hot.requests());
}

#[test]
fn one_key_takes_the_place_of_another() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::open(folder.path());
    for (rank, from_ms) in [(1, NOW_MS), (2, NOW_MS + 11_000), (3, NOW_MS + 22_000)] {
        world.offer(&mut || rank, 5_000, (from_ms, from_ms + 5_000));
        let hot = world.hot(20, from_ms + 5_000);
        assert_eq!(told(&hot), [name(rank)]);
        assert_eq!((hot.keys[0].requests, hot.skew()), (5_000, 16.0));
        // The first pipeline is full a moment after the beginning.
        assert!((1_000.0..1_020.0).contains(&hot.per_second(5_000)), "{hot:?}");
    }
}

#[test]
fn what_metrics_show_is_noted_once_a_second() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::open(folder.path());
    let fact = |name: &str| world.engine.facts().into_iter().find(|(known, _)| *known == name).unwrap().1;
    assert_eq!((fact("hot_counters"), fact("partition_skew_millionths")), (0, 1_000_000));
    let mut turn = 0;
    // Three of four for one key, the rest for a hundred.
    let mut draw = || {
        turn += 1;
        if turn % 4 == 0 { 1 + turn / 4 % 100 } else { 0 }
    };
    world.offer(&mut draw, 40_000, (NOW_MS, NOW_MS + 10_000));
    // A second later than the keeper, if that has been here: it would not do it again so soon.
    world.engine.tend(NOW_MS + 11_000);
    assert_eq!((fact("hot_counters"), fact("hot_top_share_millionths")), (1, 750_000));
    assert!(fact("partition_skew_millionths") > 12_000_000);
    world.now_ms.store(NOW_MS + 30_000, Ordering::Relaxed);
    world.engine.tend(NOW_MS + 31_000);
    assert_eq!((fact("hot_counters"), fact("hot_top_share_millionths")), (0, 0));
}

#[test]
fn who_does_not_want_it_is_told_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let world = World::open_with(folder.path(), Options { finds_hot_keys: false, ..Options::default() });
    world.offer(&mut || 1, 1_000, (NOW_MS, NOW_MS + 1_000));
    let refused = world.engine.hot(20, NOW_MS + 1_000).unwrap_err();
    assert!(matches!(refused, Unavailable::Unsupported(_)), "{refused}");
}
