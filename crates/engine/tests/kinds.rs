//! Counters that are more than five numbers, in an engine on a real folder: restarts, checkpoints, memory, retries. Random lives of
//! them, with crashes, are the business of the simulator.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

use std::path::Path;
use std::sync::Arc;

use quipu_counting::body::{Keeping, put_frame};
use quipu_counting::rollup::Declared;
use quipu_counting::unique::hash;
use quipu_counting::window::{BUCKETS_MAX, Frame, Unit, Zone};
use quipu_counting::{
    Acquire, Action, Add, Batch, Body, Condition, Counters, Detail, Ending, GroupKind, Kind, Policy, Refusal,
    Reply, Selector, Slice, Told, Totals, Unique,
};
use quipu_engine::{Engine, Options};

/// Later than any clock of a machine that runs this, so that the keeper's clock decides nothing.
const NOW: u64 = 2_400_000_000_000;
const HOUR_MS: u64 = 3_600_000;

/// What is asked, with the bytes that belong to it.
#[derive(Clone)]
struct Ask(Action, Vec<u8>);

fn open(path: &Path) -> Arc<Engine> {
    Engine::open(path, Options { memory_bytes: 32 << 20, partitions: 2, ..Options::default() }).unwrap()
}

fn close(engine: Arc<Engine>) {
    assert_eq!(engine.verify().unwrap().problems, Vec::<String>::new());
    engine.close().unwrap();
}

fn push(batch: &mut Batch, key: &str, ask: &Ask, id: Option<(&str, u32)>) {
    let action = match ask.0.payload() {
        Some(_) => ask.0.with_payload(batch.intern(&ask.1)),
        None => ask.0,
    };
    match id {
        Some((id, index)) => batch.push_with_id(key.as_bytes(), action, id.as_bytes(), index),
        None => batch.push(key.as_bytes(), action),
    };
}

fn run(engine: &Engine, batch: &mut Batch, now_ms: u64) -> Vec<Reply> {
    let offset = engine.run(batch, now_ms).unwrap();
    engine.settle(offset).unwrap();
    batch.replies.clone()
}

fn one_at(engine: &Engine, key: &str, ask: &Ask, id: Option<&str>, now_ms: u64) -> Reply {
    let mut batch = Batch::default();
    push(&mut batch, key, ask, id.map(|id| (id, 0)));
    run(engine, &mut batch, now_ms).remove(0)
}

fn one(engine: &Engine, key: &str, ask: &Ask) -> Reply {
    one_at(engine, key, ask, None, NOW)
}

fn plain(action: Action) -> Ask {
    Ask(action, Vec::new())
}

fn observe(items: &[&str]) -> Ask {
    let hashes = items.iter().flat_map(|item| hash(item.as_bytes()).to_le_bytes()).collect();
    Ask(Action::Observe { items: Default::default(), at_ms: None }, hashes)
}

fn acquire(amount: i64, limit: i64, window: Option<Frame>) -> Ask {
    let mut payload = Vec::new();
    if let Some(frame) = window {
        put_frame(&mut payload, &frame);
    }
    let limit = Some(limit);
    Ask(Action::Acquire(Acquire { amount, limit, frame: Default::default(), is_soft: false }), payload)
}

fn reserve(delta: i64, ttl_ms: u64) -> Ask {
    plain(Action::Reserve(Add { max: 10, ..Add::plain(delta) }, ttl_ms))
}

fn end(reply: &Reply, ending: Ending) -> Ask {
    let Some(Detail::Hold { number, .. }) = reply.detail.as_deref() else { panic!("{reply:?}") };
    plain(Action::End { birth: reply.cell.birth, number: *number, ending })
}

fn body(engine: &Engine, key: &str) -> Arc<Body> {
    let reply = one(engine, key, &plain(Action::Read));
    let Some(Detail::Body(body, _)) = reply.detail.as_deref() else { panic!("{reply:?}") };
    Arc::clone(body)
}

fn checkpoint_all(engine: &Engine) {
    (0..2).for_each(|partition| engine.checkpoint(partition).unwrap());
}

#[test]
fn bodies_survive_restarts_with_and_without_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let window = Frame::Sliding { span_ms: HOUR_MS, bucket_ms: 60_000 };
    let mut held = None;
    for round in 0..6 {
        let engine = open(folder.path());
        assert_eq!(one(&engine, "u", &observe(&[&round.to_string(), "a"])).cell.value, round + 2);
        assert_eq!(one(&engine, "w", &acquire(2, 100, Some(window.clone()))).cell.value, 2 * (round + 1));
        // A hold of the life before is still there, and only once.
        if let Some(held) = held.replace(one(&engine, "h", &reserve(1, HOUR_MS))) {
            assert_eq!(one(&engine, "h", &end(&held, Ending::Commit(None))).cell.value, round);
            let again = one(&engine, "h", &end(&held, Ending::Void));
            assert_eq!(again.refusal, Some(Refusal::HoldEnded));
        }
        if round % 2 == 0 {
            checkpoint_all(&engine);
        }
        close(engine);
    }
    let engine = open(folder.path());
    assert_eq!(body(&engine, "h").holds.len(), 1);
    one(&engine, "u", &plain(Action::Delete(Condition::Always)));
    assert_eq!(one(&engine, "u", &plain(Action::Add(Add::plain(1)))).cell.value, 1, "a sum in its next life");
    close(engine);
    let engine = open(folder.path());
    assert_eq!(one(&engine, "u", &plain(Action::Read)).detail, None);
}

#[test]
fn retries_are_told_what_happened_then() {
    let folder = tempfile::tempdir().unwrap();
    let window = Frame::Fixed { span_ms: HOUR_MS };
    let asks = [
        ("u", observe(&["a", "b"])),
        ("w", acquire(3, 5, Some(window.clone()))),
        ("h", reserve(4, 2 * HOUR_MS)),
    ];
    let engine = open(folder.path());
    let ask =
        |engine: &Engine, (key, ask): &(&str, Ask), now_ms| one_at(engine, key, ask, Some("id"), now_ms);
    let first: Vec<Reply> = asks.iter().map(|asked| ask(&engine, asked, NOW)).collect();
    for round in 0..3 {
        for (asked, first) in asks.iter().zip(&first) {
            let again = ask(&engine, asked, NOW);
            assert_eq!(again, Reply { duplicate: true, ..first.clone() }, "round {round}");
        }
        checkpoint_all(&engine);
    }
    close(engine);
    let engine = open(folder.path());
    for (asked, first) in asks.iter().zip(&first) {
        assert_eq!(ask(&engine, asked, NOW), Reply { duplicate: true, ..first.clone() });
    }
    // What is used it says as it is now: an hour later nothing is.
    let later = ask(&engine, &asks[1], NOW + HOUR_MS);
    assert_eq!(
        later.detail.as_deref(),
        Some(&Detail::Quota { used: 0, limit: 5, reset_ms: HOUR_MS - NOW % HOUR_MS, window_ms: HOUR_MS })
    );
    // Other items under the same id.
    let other = one_at(&engine, "u", &observe(&["c"]), Some("id"), NOW);
    assert_eq!(other.refusal, Some(Refusal::IdReused));
    assert_eq!(one(&engine, "u", &plain(Action::Read)).cell.value, 2);
    close(engine);
}

#[test]
fn a_group_is_all_or_none_with_all_they_have() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path());
    let limits = |amount| {
        let mut batch = Batch::default();
        push(&mut batch, "user", &acquire(amount, 10, Some(Frame::Fixed { span_ms: HOUR_MS })), None);
        push(&mut batch, "tenant", &acquire(amount, 5, Some(Frame::Fixed { span_ms: HOUR_MS })), None);
        push(&mut batch, "seen", &observe(&["a"]), None);
        batch.group(0, GroupKind::Atomic);
        batch
    };
    assert!(run(&engine, &mut limits(4), NOW).iter().all(|reply| reply.refusal.is_none()));
    let refused = run(&engine, &mut limits(3), NOW);
    assert_eq!(
        refused.iter().map(|reply| reply.refusal).collect::<Vec<_>>(),
        [Some(Refusal::GroupAborted), Some(Refusal::OverQuota), Some(Refusal::GroupAborted)]
    );
    let before: Vec<Arc<Body>> = ["user", "tenant", "seen"].map(|key| body(&engine, key)).to_vec();
    close(engine);
    let engine = open(folder.path());
    assert_eq!(["user", "tenant", "seen"].map(|key| body(&engine, key)).to_vec(), before);
    assert_eq!(one(&engine, "tenant", &acquire(1, 5, None)).cell.value, 5);
    close(engine);
}

/// Its offsets for a century are more than a policy used to take in the log.
#[test]
fn a_policy_with_a_time_zone() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path());
    let offsets: Vec<(i64, i32)> = (0..1_000).map(|n| (n * 15_000_000_000, (n % 2) as i32 * 3_600)).collect();
    let zone = Zone::new("Europe/Berlin", offsets).unwrap();
    let frame = Frame::Calendar { unit: Unit::Month, anchor: 31, zone };
    let window = Some(Keeping { frame, keep_ms: 99 * HOUR_MS });
    let policy = Policy { kind: Some(Kind::Window), window, limit: Some(3), ..Policy::default() };
    assert_eq!(engine.set_policy(b"quota:*", Some(policy.clone()), NOW), Ok(false));
    let mine = acquire(3, 3, None);
    assert_eq!(one(&engine, "quota:1", &mine).refusal, None);
    assert_eq!(one(&engine, "quota:1", &mine).refusal, Some(Refusal::OverQuota));
    close(engine);
    let engine = open(folder.path());
    assert_eq!(engine.policies().unwrap().get(b"quota:*"), Some(&policy));
    assert_eq!(one(&engine, "quota:1", &mine).refusal, Some(Refusal::OverQuota));
    close(engine);
}

/// What was decided under a policy that cuts time in larger pieces must be understood by the next start.
#[test]
fn a_policy_that_cuts_time_in_larger_pieces() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path());
    let policy = |frame| Policy {
        kind: Some(Kind::Window),
        window: Some(Keeping { frame, keep_ms: 48 * HOUR_MS }),
        ..Policy::default()
    };
    let seconds = policy(Frame::Sliding { span_ms: 1_000, bucket_ms: 1_000 });
    let days = policy(Frame::Fixed { span_ms: 24 * HOUR_MS });
    engine.set_policy(b"w", Some(seconds), NOW).unwrap();
    let begin_ms = NOW - NOW % (24 * HOUR_MS) + 24 * HOUR_MS;
    let count = BUCKETS_MAX as u64 + 5;
    for second in 0..count {
        // Each at its own time, and many unsettled at once.
        let mut batch = Batch::default();
        push(&mut batch, "w", &plain(Action::Add(Add::plain(1))), None);
        engine.run(&mut batch, begin_ms + second * 1_000).unwrap();
    }
    let now_ms = begin_ms + count * 1_000;
    engine.set_policy(b"w", Some(days), now_ms).unwrap();
    assert_eq!(one_at(&engine, "w", &plain(Action::Add(Add::plain(1))), None, now_ms).refusal, None);
    let before = body(&engine, "w");
    close(engine);
    let engine = open(folder.path());
    assert_eq!(body(&engine, "w"), before);
    let all = acquire(0, i64::MAX, None);
    let reply = one_at(&engine, "w", &all, None, now_ms);
    let Some(Detail::Quota { used, .. }) = reply.detail.as_deref() else { panic!("{reply:?}") };
    assert_eq!(
        *used,
        count as i64 + 1,
        "and all of it still counts, also what found no room in so many buckets"
    );
    close(engine);
}

#[test]
fn more_bodies_than_memory() {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(folder.path());
    // As large as sketches get: 12 KiB each, in all more than there is memory.
    let mut large = Unique::new();
    (0..5_000u64).for_each(|item| {
        large.observe(hash(&item.to_le_bytes()));
    });
    let mut sketch = Vec::new();
    large.put(&mut sketch);
    let keys = || (0..4_000).map(|number| format!("visitors:{number}"));
    for keys in keys().collect::<Vec<_>>().chunks(50) {
        let mut batch = Batch::default();
        for key in keys {
            push(&mut batch, key, &Ask(Action::Join { sketch: Default::default() }, sketch.clone()), None);
            push(&mut batch, key, &observe(&[key]), None);
        }
        engine.run(&mut batch, NOW).unwrap();
    }
    let facts =
        |engine: &Engine, name: &str| engine.facts().into_iter().find(|(known, _)| *known == name).unwrap().1;
    assert!(facts(&engine, "evicted") > 0 && facts(&engine, "checkpoints") > 0);
    let check = |engine: &Engine| {
        for key in keys().step_by(37) {
            let mut expected = large.clone();
            expected.observe(hash(key.as_bytes()));
            assert_eq!(body(engine, &key).state, quipu_counting::body::State::Unique(expected), "{key}");
        }
    };
    check(&engine);
    close(engine);
    let engine = open(folder.path());
    check(&engine);
    close(engine);
}

fn told(delta: i64, dimensions: &[(&str, &str)]) -> Ask {
    let mut payload = Vec::new();
    Told { dimensions: dimensions.to_vec(), ..Told::default() }.put(&mut payload);
    Ask(Action::Told { add: Add::plain(delta), told: Default::default() }, payload)
}

fn part(engine: &Engine, key: &str, text: &str) -> i64 {
    let mut payload = Vec::new();
    Slice::parse(text).unwrap().put(&mut payload);
    let reply = one(engine, key, &Ask(Action::Slice { slice: Default::default() }, payload));
    reply.detail.unwrap().sliced().unwrap().value
}

/// The log has room for the largest declarations and the longest values, of many counters that are born at once.
#[test]
fn roll_ups_of_any_size_fit_into_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = open(folder.path());
    let mut names: Vec<String> = (0..10).map(|number| format!("{number}{}", "n".repeat(63))).collect();
    names.extend(["minute", "hour", "day", "week", "month", "year"].map(str::to_owned));
    let rollups: Vec<Vec<String>> =
        (0..16).map(|from| (0..4).map(|step| names[(from + step) % 16].clone()).collect()).collect();
    let policy = Policy { rollups: Declared::new(&rollups).unwrap(), ..Policy::default() };
    engine.set_policy(b"large:*", Some(policy), NOW).unwrap();
    let value = "v".repeat(128);
    let dimensions: Vec<(&str, &str)> =
        names[..8].iter().map(|name| (name.as_str(), value.as_str())).collect();
    let asks = [plain(Action::Add(Add::plain(1))), told(1, &dimensions)];
    for round in 1..=2 {
        let mut batch = Batch::default();
        for number in 0..2_000 {
            push(
                &mut batch,
                &format!("large:{number}"),
                &asks[number % 2],
                Some((&format!("{round}/{number}"), 0)),
            );
        }
        assert!(run(&engine, &mut batch, NOW).iter().all(|reply| reply.refusal.is_none()));
    }
    for is_checkpointed in [false, true] {
        if is_checkpointed {
            close(engine);
            engine = open(folder.path());
        }
        assert_eq!(engine.verify().unwrap().problems, Vec::<String>::new());
        for (number, dims) in
            [(0, format!("{}:", names[0])), (1, format!("{}:{value}", names[0])), (1, "year:2046".to_owned())]
        {
            assert_eq!(part(&engine, &format!("large:{number}"), &dims), 2, "{dims} of {number}");
        }
    }
    close(engine);
}

/// Parts of many counters, in memory and on disk, are those that one adds up by hand.
#[test]
fn parts_of_many_counters_add_up() {
    let folder = tempfile::tempdir().unwrap();
    let mut engine = open(folder.path());
    let rollups = Declared::new(&[vec!["tenant".to_owned()]]).unwrap();
    engine.set_policy(b"rolled:*", Some(Policy { rollups, ..Policy::default() }), NOW).unwrap();
    let tenants = ["a", "b", "c"];
    let mut expected = [Totals::NOTHING; 3];
    for number in 0..600 {
        let key = format!("rolled:{number}");
        for (place, tenant) in tenants.iter().enumerate() {
            let amount = (number * (place as i64 + 3)) % 17 - 5;
            one(&engine, &key, &told(amount, &[("tenant", tenant)]));
            expected[place].add(amount);
        }
        if number == 300 {
            close(engine);
            engine = open(folder.path());
        }
    }
    one(&engine, "plain:1", &plain(Action::Add(Add::plain(1_000))));
    for is_on_disk in [false, true] {
        if is_on_disk {
            close(engine);
            engine = open(folder.path());
        }
        for (tenant, expected) in tenants.iter().zip(&expected) {
            let slice = Slice::parse(&format!("tenant:{tenant}")).unwrap();
            for pattern in ["rolled:*", "*"] {
                let selector = Selector::new(pattern.as_bytes()).of_part(Some(slice.clone()));
                assert_eq!(engine.aggregate(&selector, NOW).unwrap().totals(), *expected);
            }
            let one = Selector::new(b"rolled:7").of_part(Some(slice));
            assert_eq!(engine.aggregate(&one, NOW).unwrap().totals().count, 1);
        }
        assert_eq!(engine.aggregate(&Selector::new(b"*"), NOW).unwrap().totals().count, 601);
    }
    close(engine);
}
