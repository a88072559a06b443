//! The engine on a real folder: counting, restarts, ids, groups, sessions, expiry, eviction, scans.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use quipu_counting::{
    Action, Add, Batch, Condition, Counters, Expiry, GroupKind, Policy, Refusal, Reply, Set,
};
use quipu_engine::{Engine, Options};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Later than any clock of a machine that runs this, so that the keeper's clock decides nothing.
const NOW: u64 = 2_400_000_000_000;

fn open(path: &Path) -> Arc<Engine> {
    open_with(path, Options { memory_bytes: 64 << 20, ..Options::default() })
}

fn open_with(path: &Path, options: Options) -> Arc<Engine> {
    Engine::open(path, options).unwrap()
}

fn close(engine: Arc<Engine>) {
    engine.close().unwrap();
}

fn run(engine: &Engine, batch: &mut Batch, now_ms: u64) -> Vec<Reply> {
    let offset = engine.run(batch, now_ms).unwrap();
    engine.settle(offset).unwrap();
    batch.replies.clone()
}

fn one(engine: &Engine, key: &str, action: Action) -> Reply {
    let mut batch = Batch::default();
    batch.push(key.as_bytes(), action);
    run(engine, &mut batch, NOW)[0].clone()
}

fn one_with_id(engine: &Engine, key: &str, action: Action, id: &str, now_ms: u64) -> Reply {
    let mut batch = Batch::default();
    batch.push_with_id(key.as_bytes(), action, id.as_bytes(), 0);
    run(engine, &mut batch, now_ms)[0].clone()
}

fn add(delta: i64) -> Action {
    Action::Add(Add::plain(delta))
}

fn value(engine: &Engine, key: &str) -> i64 {
    one(engine, key, Action::Read).cell.value
}

fn checkpoint_all(engine: &Engine) {
    let partitions = engine.facts().into_iter().find(|(name, _)| *name == "partitions").unwrap().1;
    (0..partitions as u16).for_each(|partition| engine.checkpoint(partition).unwrap());
}

fn assert_sound(engine: &Engine) {
    assert_eq!(engine.verify().unwrap().problems, Vec::<String>::new());
}

fn fact(engine: &Engine, name: &str) -> u64 {
    engine.facts().into_iter().find(|(known, _)| *known == name).unwrap().1
}

#[test]
fn counts_survive_restarts_with_and_without_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let mut expected: BTreeMap<String, i64> = BTreeMap::new();
    let mut random = SmallRng::seed_from_u64(1);
    for round in 0..6 {
        let engine = open(folder.path());
        for (key, value) in &expected {
            assert_eq!(self::value(&engine, key), *value, "round {round} {key}");
        }
        for _ in 0..2_000 {
            let key = format!("counter:{}", random.random_range(0..500));
            let delta = random.random_range(-5..50);
            *expected.entry(key.clone()).or_insert(0) += delta;
            assert_eq!(one(&engine, &key, add(delta)).cell.value, expected[&key]);
        }
        if round % 2 == 0 {
            checkpoint_all(&engine);
            let key = "counter:0".to_string();
            *expected.entry(key.clone()).or_insert(0) += 1;
            one(&engine, &key, add(1));
        }
        assert_sound(&engine);
        close(engine);
    }
}

/// Long enough that several threads carry it out.
#[test]
fn a_long_log_says_the_same_to_several_threads() {
    let folder = tempfile::tempdir().unwrap();
    let options = || Options { partitions: 8, ..Options::default() };
    let engine = open_with(folder.path(), options());
    let mut expected: Vec<(String, Reply)> = Vec::new();
    for round in 0..3 {
        engine
            .set_policy(b"counter:*", Some(Policy { max: Some(1_000 + round), ..Policy::default() }), NOW)
            .unwrap();
        expected.clear();
        for part in 0..10 {
            let keys: Vec<String> = (0..2_000).map(|number| format!("counter:{part}:{number:040}")).collect();
            let mut batch = Batch::default();
            for key in &keys {
                batch.push_with_id(key.as_bytes(), add(round + 1), format!("{round}").as_bytes(), 0);
            }
            let replies = run(&engine, &mut batch, NOW + round as u64);
            expected.extend(keys.into_iter().zip(replies));
        }
    }
    one(&engine, "counter:3:0", add(7));
    close(engine);
    let engine = open_with(folder.path(), options());
    assert!(fact(&engine, "log_tail_bytes") > 2 << 20, "it was replayed");
    assert_eq!(engine.policies().unwrap().get(b"counter:*").unwrap().max, Some(1_002));
    for (key, reply) in &expected {
        let mut batch = Batch::default();
        batch.push_with_id(key.as_bytes(), add(3), b"2", 0);
        batch.push(key.as_bytes(), Action::Read);
        let replies = run(&engine, &mut batch, NOW + 9);
        assert!(replies[0].duplicate, "{key}");
        assert_eq!(replies[1].cell, reply.cell, "{key}");
    }
    assert_eq!(value(&engine, "counter:3:0"), 7);
    assert_sound(&engine);
}

#[test]
fn version_birth_and_time_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path());
    let first = one(&engine, "a", add(5));
    assert_eq!(
        (first.cell.version, first.cell.updated_at_ms, first.existed, first.exists),
        (1, NOW, false, true)
    );
    let second = one(&engine, "a", add(-2));
    assert_eq!((second.cell.version, second.cell.birth), (2, first.cell.birth));
    one(&engine, "a", Action::Delete(Condition::Always));
    let reborn = one(&engine, "a", add(1));
    assert_eq!(reborn.cell.version, 1);
    assert!(reborn.cell.birth > first.cell.birth);
    close(engine);
    let engine = open(folder.path());
    assert_eq!(one(&engine, "a", Action::Read).cell, reborn.cell);
}

#[test]
fn ids_are_remembered_through_checkpoints_and_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path());
    let bounded = Action::Add(Add { max: 10, ..Add::plain(100) });
    let first = one_with_id(&engine, "a", add(3), "id-1", NOW);
    let refused = one_with_id(&engine, "a", bounded, "id-2", NOW);
    assert_eq!(refused.refusal, Some(Refusal::AboveCeiling));
    one(&engine, "a", add(10));
    let check = |engine: &Engine, stage: &str| {
        let again = one_with_id(engine, "a", add(3), "id-1", NOW + 1);
        assert_eq!((again.cell.value, again.applied, again.cell.version), (3, 3, 1), "{stage}");
        assert!(again.duplicate && !first.duplicate);
        let refused = one_with_id(engine, "a", bounded, "id-2", NOW + 1);
        assert_eq!((refused.refusal, refused.duplicate), (Some(Refusal::AboveCeiling), true), "{stage}");
        let reused = one_with_id(engine, "a", add(4), "id-1", NOW + 1);
        assert_eq!((reused.refusal, reused.duplicate), (Some(Refusal::IdReused), false), "{stage}");
        assert_eq!(value(engine, "a"), 13, "{stage}");
    };
    check(&engine, "recent");
    close(engine);
    let engine = open(folder.path());
    check(&engine, "replayed");
    checkpoint_all(&engine);
    check(&engine, "on disk");
    close(engine);
    let engine = open(folder.path());
    check(&engine, "on disk after a restart");
    one(&engine, "", Action::Clear);
    let again = one_with_id(&engine, "a", add(3), "id-1", NOW + 1);
    assert!(again.duplicate, "deleting counters does not forget ids");
    let later = one_with_id(&engine, "a", add(3), "id-1", NOW + 24 * 3_600_000 + 1);
    assert!(!later.duplicate, "the window is over");
    assert_eq!(later.cell.value, 3);
    assert_sound(&engine);
}

#[test]
fn an_atomic_group_is_all_or_none_and_replays_whole() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path());
    one(&engine, "stock", add(5));
    let order = |amount: i64, id: &str| {
        let mut batch = Batch::default();
        batch.push_with_id(b"sold", add(amount), id.as_bytes(), 0);
        batch.push_with_id(b"stock", Action::Add(Add { min: 0, ..Add::plain(-amount) }), id.as_bytes(), 1);
        batch.push_with_id(b"sold", add(0), id.as_bytes(), 2);
        batch.group(0, GroupKind::Atomic);
        batch
    };
    let first = run(&engine, &mut order(3, "o1"), NOW);
    assert_eq!(first.iter().map(|reply| reply.cell.value).collect::<Vec<_>>(), [3, 2, 3]);
    let refused = run(&engine, &mut order(3, "o2"), NOW);
    let refusals = |replies: &[Reply]| replies.iter().map(|reply| reply.refusal).collect::<Vec<_>>();
    let aborted = Some(Refusal::GroupAborted);
    assert_eq!(refusals(&refused), [aborted, Some(Refusal::BelowFloor), aborted]);
    assert_eq!((value(&engine, "sold"), value(&engine, "stock")), (3, 2));
    checkpoint_all(&engine);
    let again = run(&engine, &mut order(3, "o1"), NOW);
    assert!(again.iter().all(|reply| reply.duplicate));
    assert_eq!(again.iter().map(|reply| reply.cell.value).collect::<Vec<_>>(), [3, 2, 3]);
    assert_eq!(
        refusals(&run(&engine, &mut order(3, "o2"), NOW)),
        [aborted, Some(Refusal::BelowFloor), aborted]
    );
    assert_eq!(refusals(&run(&engine, &mut order(2, "o1"), NOW)), [Some(Refusal::IdReused); 3]);
    assert_eq!((value(&engine, "sold"), value(&engine, "stock")), (3, 2));
    assert_sound(&engine);
}

#[test]
fn a_guard_stops_what_it_guards_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path());
    let seen = one(&engine, "seen", add(1)).cell;
    let tag = Condition::Tag { birth: seen.birth, version: seen.version };
    let transaction = |last: Condition| {
        let mut batch = Batch::default();
        batch.push(b"before", add(1));
        batch.push(b"seen", Action::Check(tag));
        batch.push(b"other", Action::Check(last));
        batch.group(1, GroupKind::Guard { until: 7 });
        batch.push(b"seen", add(10));
        // What is guarded may be refused and may form groups of its own.
        batch.push(b"bounded", Action::Add(Add { max: 0, ..Add::plain(1) }));
        batch.push(b"seen", add(100));
        batch.push(b"pair", add(1));
        batch.group(5, GroupKind::Atomic);
        batch.push(b"after", add(1));
        batch
    };
    let refusals = |replies: &[Reply]| replies.iter().map(|reply| reply.refusal).collect::<Vec<_>>();
    let (aborted, unmet) = (Some(Refusal::GroupAborted), Some(Refusal::ConditionUnmet));
    let stopped = run(&engine, &mut transaction(Condition::Exists), NOW);
    assert_eq!(refusals(&stopped), [None, None, unmet, aborted, aborted, aborted, aborted, None]);
    let values = |engine: &Engine| ["before", "seen", "pair", "after"].map(|key| value(engine, key));
    assert_eq!(values(&engine), [1, 1, 0, 1]);
    let ran = run(&engine, &mut transaction(Condition::Absent), NOW);
    assert_eq!(refusals(&ran), [None, None, None, None, Some(Refusal::AboveCeiling), None, None, None]);
    assert_eq!(values(&engine), [2, 111, 1, 2]);
    // It is no longer what was seen.
    let again = run(&engine, &mut transaction(Condition::Absent), NOW);
    assert_eq!(refusals(&again), [None, unmet, None, aborted, aborted, aborted, aborted, None]);
    // A guard that claims more than there is guards what there is.
    let mut batch = Batch::default();
    batch.push(b"seen", Action::Check(Condition::Absent));
    batch.group(0, GroupKind::Guard { until: 99 });
    batch.push(b"seen", add(1));
    assert_eq!(refusals(&run(&engine, &mut batch, NOW)), [unmet, aborted]);
    assert_eq!(values(&engine), [3, 111, 1, 3]);
    // Behind what was skipped comes the counter of the last that was.
    let mut batch = Batch::default();
    batch.push(b"seen", Action::Check(Condition::Absent));
    batch.group(0, GroupKind::Guard { until: 2 });
    batch.push(b"after", add(1));
    batch.push(b"after", add(1));
    assert_eq!(refusals(&run(&engine, &mut batch, NOW)), [unmet, aborted, None]);
    assert_eq!(values(&engine), [3, 111, 1, 4]);
    assert_sound(&engine);
}

#[test]
fn producer_sessions_count_once_and_fence() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = open(folder.path());
    let send = |engine: &Engine, epoch: u64, sequence: u64| {
        let mut batch = Batch::default();
        batch.push(b"x", add(1));
        batch.push(b"y", add(2));
        let producer = batch.intern(b"worker-1");
        batch.group(0, GroupKind::Session { producer, epoch, sequence });
        let reply = run(engine, &mut batch, NOW)[0].clone();
        (reply.cell.version, reply.duplicate, reply.refusal)
    };
    assert_eq!(send(&engine, 1, 1), (1, false, None));
    assert_eq!(send(&engine, 1, 5), (5, false, None));
    for stage in 0..3 {
        assert_eq!(send(&engine, 1, 5), (5, true, None), "stage {stage}");
        assert_eq!(send(&engine, 1, 2), (5, true, None), "stage {stage}");
        assert_eq!((value(&engine, "x"), value(&engine, "y")), (2, 4));
        close(engine);
        engine = open(folder.path());
        checkpoint_all(&engine);
    }
    assert_eq!(send(&engine, 2, 1), (1, false, None));
    assert_eq!(send(&engine, 1, 6).2, Some(Refusal::Fenced));
    assert_eq!(value(&engine, "x"), 3);
}

#[test]
fn policies_hold_on_every_path_and_survive() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = open(folder.path());
    let capped = Policy { min: Some(0), max: Some(10), ..Policy::default() };
    assert!(!engine.set_policy(b"stock:*", Some(capped.clone()), NOW).unwrap());
    for stage in ["fresh", "replayed", "from a checkpoint"] {
        assert_eq!(engine.policies().unwrap().get(b"stock:*"), Some(&capped), "{stage}");
        assert_eq!(one(&engine, "stock:1", add(11)).refusal, Some(Refusal::AboveCeiling), "{stage}");
        let set = Action::Set(Set { value: -1, expiry: Expiry::Keep, condition: Condition::Always });
        assert_eq!(one(&engine, "stock:1", set).refusal, Some(Refusal::BelowFloor), "{stage}");
        assert_eq!(one(&engine, "other", add(11)).refusal, None);
        if stage == "replayed" {
            checkpoint_all(&engine);
        }
        close(engine);
        engine = open(folder.path());
    }
    assert!(engine.set_policy(b"stock:*", None, NOW).unwrap());
    assert_eq!(one(&engine, "stock:1", add(11)).refusal, None);
}

#[test]
fn counters_expire_in_memory_and_on_disk() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path());
    let expiring = |ms| Action::Add(Add { expiry: Expiry::In(ms), ..Add::plain(1) });
    for n in 0..100 {
        one(&engine, &format!("soon:{n}"), expiring(1_000));
        one(&engine, &format!("late:{n}"), expiring(1_000_000_000));
    }
    checkpoint_all(&engine);
    close(engine);
    let engine = Engine::open(folder.path(), Options::default()).unwrap();
    assert_eq!(one(&engine, "", Action::Count).cell.value, 200);
    for _ in 0..3 {
        engine.tend(NOW + 5_000);
    }
    assert_eq!(one(&engine, "", Action::Count).cell.value, 100);
    let mut batch = Batch::default();
    batch.push(b"soon:1", Action::Read);
    batch.push(b"late:1", Action::Read);
    let replies = run(&engine, &mut batch, NOW + 5_000);
    assert_eq!((replies[0].exists, replies[1].exists), (false, true));
    assert_sound(&engine);
}

#[test]
fn more_counters_than_memory() {
    let folder = tempfile::tempdir().unwrap();
    let options =
        Options { memory_bytes: 32 << 20, partitions: 4, log_tail_bytes: 16 << 20, ..Options::default() };
    let engine = open_with(folder.path(), options.clone());
    let key = |n: u32| format!("counter:post:{n:0400}:like:2026-02-23");
    let count = 150_000;
    for start in (0..count).step_by(1_000) {
        let mut batch = Batch::default();
        (start..start + 1_000).for_each(|n| {
            batch.push(key(n).as_bytes(), add(i64::from(n)));
        });
        run(&engine, &mut batch, NOW);
    }
    assert!(fact(&engine, "evicted") > 0, "the test must need more than memory");
    let mut random = SmallRng::seed_from_u64(7);
    let mut added = BTreeMap::new();
    for _ in 0..300 {
        let mut batch = Batch::default();
        let keys: Vec<u32> = (0..50).map(|_| random.random_range(0..count)).collect();
        for n in &keys {
            batch.push(key(*n).as_bytes(), add(1));
            *added.entry(*n).or_insert(0) += 1;
        }
        run(&engine, &mut batch, NOW);
    }
    assert!(fact(&engine, "memory_bytes") < 64 << 20, "{}", fact(&engine, "memory_bytes"));
    assert_sound(&engine);
    close(engine);
    let engine = open_with(folder.path(), options);
    assert_eq!(one(&engine, "", Action::Count).cell.value, i64::from(count));
    for (n, extra) in &added {
        assert_eq!(value(&engine, &key(*n)), i64::from(*n) + extra);
    }
    for n in (0..count).step_by(1_000) {
        one(&engine, &key(n), Action::Delete(Condition::Always));
        one(&engine, &key(n), add(1));
    }
    let seen = loop {
        let checkpoints = fact(&engine, "checkpoints");
        let mut keys = Vec::new();
        let mut cursor = 0;
        loop {
            let page = engine.scan(cursor, 5_000, NOW).unwrap();
            keys.extend(page.keys);
            cursor = page.cursor;
            if cursor == 0 {
                break;
            }
        }
        let seen: BTreeSet<_> = keys.iter().cloned().collect();
        // What a checkpoint brings to disk while the walk is between memory and disk may be shown by both.
        if fact(&engine, "checkpoints") == checkpoints {
            assert_eq!(keys.len(), seen.len(), "a key that was made again is shown once");
            break seen;
        }
    };
    assert_eq!(seen.len(), count as usize);
    assert_sound(&engine);
}

#[test]
fn deleting_everything_is_durable_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path());
    (0..500).for_each(|n| assert!(one(&engine, &format!("k{n}"), add(1)).exists));
    checkpoint_all(&engine);
    (0..500).for_each(|n| assert!(one(&engine, &format!("k{n}"), add(1)).exists));
    assert_eq!(one(&engine, "", Action::Clear).cell.value, 500);
    one(&engine, "k1", add(7));
    close(engine);
    for _ in 0..2 {
        let engine = open(folder.path());
        assert_eq!(one(&engine, "", Action::Count).cell.value, 1);
        assert_eq!((value(&engine, "k1"), value(&engine, "k2")), (7, 0));
        checkpoint_all(&engine);
        assert_eq!(engine.scan(0, 100, NOW).unwrap().keys, [b"k1".to_vec()]);
        assert_sound(&engine);
        close(engine);
    }
}

#[test]
fn many_threads_and_checkpoints_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { log_tail_bytes: 1 << 20, memory_bytes: 64 << 20, ..Options::default() };
    let engine = open_with(folder.path(), options);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let engine = &engine;
            scope.spawn(move || {
                let mut random = SmallRng::seed_from_u64(thread);
                for _ in 0..200 {
                    let mut batch = Batch::default();
                    for _ in 0..50 {
                        batch.push(format!("k{}", random.random_range(0..2_000)).as_bytes(), add(1));
                    }
                    run(engine, &mut batch, NOW);
                }
            });
        }
        scope.spawn(|| (0..10).for_each(|_| checkpoint_all(&engine)));
    });
    let report = engine.verify().unwrap();
    assert_eq!((report.problems, report.sum), (Vec::new(), 40_000));
    close(engine);
    let engine = open(folder.path());
    assert_eq!(engine.verify().unwrap().sum, 40_000);
}

#[test]
fn a_folder_has_one_user() {
    let folder = tempfile::tempdir().unwrap();
    let _engine = open(folder.path());
    let error = Engine::open(folder.path(), Options::default()).err().unwrap();
    assert!(error.to_string().contains("in use by another process"), "{error}");
}

/// A batch that asks for one counter again and again is carried out in runs; nobody may see a difference.
#[test]
fn many_at_once_are_as_one_by_one() {
    let folders = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (together, alone) = (open(folders.0.path()), open(folders.1.path()));
    let bounded = Policy { min: None, max: Some(40), saturate: true, ..Policy::default() };
    for engine in [&together, &alone] {
        engine.set_policy(b"bounded*", Some(bounded.clone()), NOW).unwrap();
    }
    let mut random = SmallRng::seed_from_u64(7);
    let keys = ["hot", "bounded:1", "other"];
    for round in 0..300 {
        let mut key = keys[0];
        let asked = Vec::from_iter((0..50).map(|number| {
            if random.random_ratio(1, 8) {
                key = keys[random.random_range(0..keys.len())];
            }
            let extreme = [2, -1, 0, i64::MAX, i64::MIN][random.random_range(0..5)];
            let action = match random.random_range(0..20) {
                0 => Action::Read,
                1 => Action::Set(Set { value: extreme, expiry: Expiry::Keep, condition: Condition::Always }),
                2 => Action::Delete(Condition::Always),
                3 => Action::Add(Add { expiry: Expiry::In(5), ..Add::plain(1) }),
                4 => add(extreme),
                _ => add(1),
            };
            (key, action, random.random_ratio(1, 30).then(|| format!("{round}-{number}")))
        }));
        let now_ms = NOW + round;
        let batch_of = |asked: &[(&str, Action, Option<String>)]| {
            let mut batch = Batch::default();
            for (key, action, id) in asked {
                match id {
                    Some(id) => batch.push_with_id(key.as_bytes(), *action, id.as_bytes(), 0),
                    None => batch.push(key.as_bytes(), *action),
                };
            }
            batch
        };
        let replies = run(&together, &mut batch_of(&asked), now_ms);
        let one_by_one =
            asked.iter().map(|one| run(&alone, &mut batch_of(std::slice::from_ref(one)), now_ms)[0].clone());
        assert_eq!(replies, Vec::from_iter(one_by_one), "round {round}");
    }
    let states = |engine: &Engine| keys.map(|key| one(engine, key, Action::Read));
    let expected = states(&alone);
    assert_eq!(states(&together), expected);
    close(together);
    let reopened = open(folders.0.path());
    assert_eq!(states(&reopened), expected, "the log says the same");
    assert_sound(&reopened);
}

/// The log says a run of additions in a few bytes, so the length of the log is no measure of what was counted.
#[test]
fn a_hot_counter_reaches_the_cold_store() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options { log_tail_bytes: 16 << 20, memory_bytes: 64 << 20, ..Options::default() };
    let engine = open_with(folder.path(), options);
    for _ in 0..30 {
        let mut batch = Batch::default();
        for _ in 0..10_000 {
            batch.push(b"hot", add(1));
        }
        run(&engine, &mut batch, NOW);
    }
    engine.tend(NOW);
    assert!(fact(&engine, "checkpoints") >= 1);
}
