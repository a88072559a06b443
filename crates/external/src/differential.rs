//! The function in Redis against `decide`: the same requests to both, and every field of every reply must be the same.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use quipu_counting::identity::{group_fingerprint, request_fingerprint};
use quipu_counting::rules::GroupItem;
use quipu_counting::{
    Action, Add, Batch, Cell, Change, Condition, Expire, ExpireWhen, Expiry, Group, GroupKind, Outcome,
    Policies, Policy, Refusal, Remembered, Reply, Set, decide, decide_group,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use redis::Value;

use crate::archive;
use crate::call::{self, Answered, LIBRARY, Terms};
use crate::groups;
use crate::support::Server;
use crate::units::{Unit, guarded_until, split};

pub(crate) const EPOCH: &str = "test";
pub(crate) const WINDOW_MS: u64 = 400;
/// Far ahead of Redis's clock, which so removes nothing while a test runs.
pub(crate) const BEGIN_MS: u64 = 4_000_000_000_000;

/// A group of counters as counting understands it.
#[derive(Default)]
struct Model {
    cells: BTreeMap<Vec<u8>, Cell>,
    ids: HashMap<(Vec<u8>, u32, Vec<u8>), Remembered>,
    births: u64,
    now_ms: u64,
}

impl Model {
    fn name(batch: &Batch, index: usize) -> Option<(Vec<u8>, u32, Vec<u8>)> {
        let id = batch.requests[index].id?;
        Some((batch.key(index).to_vec(), id.index, batch.bytes(id.span).to_vec()))
    }

    fn known(&self, batch: &Batch, index: usize) -> Option<Remembered> {
        let known = self.ids.get(&Model::name(batch, index)?)?;
        known.is_current(self.now_ms, WINDOW_MS).then_some(*known)
    }

    fn remember(&mut self, batch: &Batch, index: usize, fingerprint: u64, reply: &Reply) {
        if let Some(name) = Model::name(batch, index)
            && reply.refusal.is_none_or(Refusal::is_remembered)
        {
            let outcome = Outcome::of(reply);
            self.ids.insert(name, Remembered { identity: 0, fingerprint, at_ms: self.now_ms, outcome });
        }
    }

    fn change(&mut self, key: &[u8], change: &Change) {
        match change {
            Change::Keep => {}
            Change::Put(cell) => _ = self.cells.insert(key.to_vec(), *cell),
            Change::Remove => _ = self.cells.remove(key),
        }
    }

    fn single(&mut self, batch: &Batch, index: usize, policies: &Policies) -> Reply {
        let fingerprint = request_fingerprint(batch, index);
        if let Some(known) = self.known(batch, index) {
            return known.answer(fingerprint);
        }
        let key = batch.key(index);
        let before = self.cells.get(key).copied();
        let limits = policies.limits(key);
        let verdict = decide(before, &batch.requests[index].action, &limits, self.now_ms, self.births + 1);
        if matches!(verdict.change, Change::Put(cell) if cell.birth == self.births + 1) {
            self.births += 1;
        }
        self.change(key, &verdict.change);
        self.remember(batch, index, fingerprint, &verdict.reply);
        verdict.reply
    }

    fn atomic(&mut self, batch: &Batch, group: &Group, policies: &Policies) -> Vec<Reply> {
        let places = group.start..group.end;
        let print = |index: usize| match index == group.start {
            true => group_fingerprint(batch, group),
            false => request_fingerprint(batch, index),
        };
        let known: Vec<Option<Remembered>> = places.clone().map(|index| self.known(batch, index)).collect();
        if let Some(any) = known.iter().flatten().next() {
            let is_same = known[0].is_some_and(|first| first.fingerprint == print(group.start));
            let answer = |(known, index): (&Option<Remembered>, usize)| match known {
                Some(known) if is_same => known.answer(print(index)),
                _ => any.answer(!any.fingerprint),
            };
            return known.iter().zip(places).map(answer).collect();
        }
        let mut keys: Vec<&[u8]> = Vec::new();
        let mut items = Vec::new();
        for (index, sequence) in places.clone().zip(self.births + 1..) {
            let key = batch.key(index);
            let cell = keys.iter().position(|known| *known == key).unwrap_or_else(|| {
                keys.push(key);
                keys.len() - 1
            });
            let action = &batch.requests[index].action;
            items.push(GroupItem {
                cell,
                action,
                limits: policies.limits(key),
                sequence,
                now_ms: self.now_ms,
            });
        }
        let mut cells: Vec<Option<Cell>> = keys.iter().map(|key| self.cells.get(*key).copied()).collect();
        let (replies, refusal) = match decide_group(&items, &mut cells) {
            Ok(verdicts) => {
                self.births += items.len() as u64;
                for (index, verdict) in places.clone().zip(&verdicts) {
                    self.change(batch.key(index), &verdict.change);
                }
                (verdicts.into_iter().map(|verdict| verdict.reply).collect(), None)
            }
            Err((refused, replies)) => {
                let refusal = replies[refused].refusal;
                (replies, refusal)
            }
        };
        if refusal.is_none_or(Refusal::is_remembered) {
            for (index, reply) in places.zip(&replies) {
                self.remember(batch, index, print(index), reply);
            }
        }
        replies
    }

    fn run(&mut self, batch: &Batch, policies: &Policies) -> Vec<Reply> {
        let mut replies = Vec::new();
        let mut groups = batch.groups.iter().peekable();
        while replies.len() < batch.requests.len() {
            let index = replies.len();
            match groups.next_if(|group| group.start == index) {
                None => replies.push(self.single(batch, index, policies)),
                Some(group) if matches!(group.kind, GroupKind::Atomic) => {
                    replies.extend(self.atomic(batch, group, policies));
                }
                Some(guard) => {
                    for check in guard.start..guard.end {
                        replies.push(self.single(batch, check, policies));
                    }
                    if replies[index..].iter().any(|reply| reply.refusal.is_some()) {
                        let until = guarded_until(batch, guard);
                        let aborted = Reply { refusal: Some(Refusal::GroupAborted), ..Reply::state(None) };
                        replies.resize(until, aborted);
                        while groups.next_if(|group| group.start < until).is_some() {}
                    }
                }
            }
        }
        replies
    }
}

/// Numbers at which something happens: small, around what a double can hold, around the halves, and at the ends.
pub(crate) fn number(chance: &mut SmallRng) -> i64 {
    let near = [
        0,
        1 << 53,
        -(1 << 53),
        999_999_999_999_999,
        -99_999_999_999_999,
        10_000_000_000,
        -10_000_000_000,
        i64::MAX,
        i64::MIN,
        i64::MAX / 2,
        9_000_000_000_000_000_000,
        -9_000_000_000_000_000_000,
    ];
    match chance.random_range(0..10) {
        0..5 => chance.random_range(-20..=20),
        5..8 => {
            let near: i64 = near[chance.random_range(0..near.len())];
            near.saturating_add(chance.random_range(-3..=3))
        }
        8 => chance.random_range(-100_000_000_000..=100_000_000_000),
        _ => chance.random(),
    }
}

pub(crate) fn expiry(chance: &mut SmallRng, now_ms: u64) -> Expiry {
    let ms = match chance.random_range(0..8) {
        0 => 0,
        1 => u64::MAX,
        2 => u64::MAX - BEGIN_MS,
        _ => chance.random_range(1..300),
    };
    let at_ms = match chance.random_range(0..8) {
        0 => chance.random(),
        1 => u64::MAX,
        2 => now_ms,
        3 => 1,
        _ => now_ms + chance.random_range(0..300) - 50,
    };
    match chance.random_range(0..12) {
        0 => Expiry::Clear,
        1 | 2 => Expiry::In(ms),
        3 | 4 => Expiry::At(at_ms),
        5 => Expiry::InIfNone(ms),
        6 => Expiry::AtIfNone(at_ms),
        _ => Expiry::Keep,
    }
}

pub(crate) fn condition(chance: &mut SmallRng, cell: Option<&Cell>) -> Condition {
    let (birth, version) = cell.map_or((0, 0), |cell| (cell.birth, cell.version));
    match chance.random_range(0..14) {
        0 => Condition::Exists,
        1 => Condition::Absent,
        2 | 3 => Condition::Version(version),
        4 => Condition::Version(version + 1),
        5 | 6 => Condition::Tag { birth, version },
        7 => Condition::Tag { birth: birth + 1, version },
        _ => Condition::Always,
    }
}

fn action(chance: &mut SmallRng, model: &Model, key: &[u8]) -> Action {
    let condition = condition(chance, model.cells.get(key));
    let expiry = expiry(chance, model.now_ms);
    let value = number(chance);
    match chance.random_range(0..20) {
        0 | 1 => Action::Read,
        2 => Action::Check(condition),
        3..7 => Action::Add(Add::plain(value)),
        7..13 => {
            let (one, other) = (number(chance), number(chance));
            let (min, max) = match chance.random_range(0..4) {
                0 => (i64::MIN, i64::MAX),
                1 => (one, i64::MAX),
                2 => (i64::MIN, one),
                _ => (one.min(other), one.max(other)),
            };
            Action::Add(Add { delta: value, min, max, saturate: chance.random(), expiry, condition })
        }
        13 => Action::Set(Set { value, expiry, condition }),
        14 => Action::Overwrite(Set { value, expiry, condition }),
        15 => Action::Reset(condition),
        16 => Action::Delete(condition),
        _ => {
            let when = ExpireWhen::ALL[chance.random_range(0..ExpireWhen::ALL.len())];
            Action::Expire(Expire { expiry, when })
        }
    }
}

/// Some requests for counters of one group, in groups and under guards.
fn batch(chance: &mut SmallRng, model: &Model, tag: &str) -> Batch {
    let mut batch = Batch::default();
    let push = |chance: &mut SmallRng, batch: &mut Batch| {
        let key =
            format!("{}{{{tag}}}", ["free", "bounded", "short", "full", "off"][chance.random_range(0..5)]);
        let action = action(chance, model, key.as_bytes());
        if chance.random_range(0..3) > 0 {
            batch.push(key.as_bytes(), action);
            return;
        }
        let id = format!("id {}", chance.random_range(0..6));
        // Often the very same request again, which a random one would hardly be.
        let action = if chance.random() { Action::Add(Add::plain(3)) } else { action };
        batch.push_with_id(key.as_bytes(), action, id.as_bytes(), chance.random_range(0..2));
    };
    for _ in 0..chance.random_range(1..4) {
        let start = batch.requests.len();
        match chance.random_range(0..4) {
            0 => {
                (0..chance.random_range(1..4)).for_each(|_| push(chance, &mut batch));
                batch.group(start, GroupKind::Atomic);
            }
            1 => {
                let checks = chance.random_range(1..3);
                for _ in 0..checks {
                    let key = format!("free{{{tag}}}");
                    let condition = condition(chance, model.cells.get(key.as_bytes()));
                    batch.push(key.as_bytes(), Action::Check(condition));
                }
                let guarded = chance.random_range(0..4);
                batch.group(start, GroupKind::Guard { until: start + checks + guarded });
                (0..guarded).for_each(|_| push(chance, &mut batch));
                if guarded > 1 {
                    batch.group(start + checks + 1, GroupKind::Atomic);
                }
            }
            _ => push(chance, &mut batch),
        }
    }
    batch
}

fn limits() -> Policies {
    let mut policies = Policies::default();
    let mut set = |pattern: &str, policy| _ = policies.set(pattern.as_bytes(), Some(policy));
    set("bounded*", Policy { min: Some(-10), max: Some(25), ..Policy::default() });
    set("short*", Policy { ttl_ms: Some(120), max: Some(i64::MAX - 1), ..Policy::default() });
    set(
        "full*",
        Policy { min: Some(5), max: Some(9_007_199_254_740_993), saturate: true, ..Policy::default() },
    );
    set("off*", Policy { disabled: true, ..Policy::default() });
    policies
}

fn unit_split(batch: &Batch) -> Vec<Unit> {
    let mut copy = Batch::default();
    copy.append(batch);
    split(copy, 0, Box::new(|_, _| {}))
}

/// What clients ask at the same time, and what each was answered, in the order in which that was done.
fn ask(
    connection: &mut redis::Connection,
    group: u16,
    batches: &[Batch],
    policies: &Policies,
    now_ms: u64,
) -> Vec<(usize, Vec<Reply>)> {
    let clients: Vec<Vec<Unit>> = batches.iter().map(unit_split).collect();
    let asked: Vec<*const Batch> = clients.iter().map(|units| std::ptr::from_ref(units[0].batch())).collect();
    let mut units: Vec<Unit> = clients.into_iter().flatten().collect();
    let terms = Terms { group, epoch: EPOCH, time_ms: now_ms, id_window_ms: WINDOW_MS, policies };
    let answer: Value = call::command(&terms, &mut units).query(connection).unwrap();
    let replies = match call::answered(&answer, &units) {
        Some(Answered::Replies(replies)) => replies,
        Some(Answered::Lost(found)) => panic!("lost, found {found:?}"),
        None => panic!("not understood: {answer:?}"),
    };
    let mut told: Vec<(usize, Vec<Reply>)> = Vec::new();
    for (unit, replies) in units.iter().zip(replies) {
        let client = asked.iter().position(|batch| std::ptr::eq(*batch, unit.batch())).unwrap();
        if told.last().is_none_or(|(last, _)| *last != client) {
            told.push((client, Vec::new()));
        }
        told.last_mut().unwrap().1.extend(replies.into_iter().flatten());
    }
    told
}

/// Additions as most clients ask for them.
fn additions(chance: &mut SmallRng, tag: &str) -> Batch {
    let mut batch = Batch::default();
    for _ in 0..[1, 1, 1, 3][chance.random_range(0..4)] {
        let key = format!("{}{{{tag}}}", ["free", "other", "third"][chance.random_range(0..3)]);
        let add = Action::Add(Add::plain(if chance.random() { 3 } else { number(chance) }));
        match chance.random_range(0..3) {
            0 => _ = batch.push(key.as_bytes(), add),
            _ => {
                let id = format!("id {}", chance.random_range(0..60));
                _ = batch.push_with_id(key.as_bytes(), add, id.as_bytes(), 0);
            }
        }
    }
    batch
}

pub(crate) fn open(server: &Server, group: u16) -> redis::Connection {
    let mut connection = server.connection();
    let load = redis::cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(LIBRARY).to_owned();
    load.exec(&mut connection).unwrap();
    let mark = redis::cmd("HSET").arg(groups::marker(group)).arg("epoch").arg(EPOCH).to_owned();
    mark.exec(&mut connection).unwrap();
    connection
}

#[test]
fn the_function_decides_as_counting_does() {
    let server = Server::start();
    let policies = limits();
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for seed in 0..8 {
        let (mut chance, tag) = (SmallRng::seed_from_u64(seed), format!("t{seed}"));
        let group = groups::group(format!("{{{tag}}}").as_bytes());
        let mut connection = open(&server, group);
        redis::cmd("HDEL").arg(groups::marker(group)).arg("births").exec(&mut connection).unwrap();
        let mut model = Model { now_ms: BEGIN_MS, ..Model::default() };
        for step in 0..1_500 {
            model.now_ms += chance.random_range(0..20);
            let batches: Vec<Batch> = (0..chance.random_range(1..6))
                .map(|_| match chance.random_range(0..3) {
                    0 => batch(&mut chance, &model, &tag),
                    _ => additions(&mut chance, &tag),
                })
                .collect();
            let now_ms = model.now_ms;
            let told = ask(&mut connection, group, &batches, &policies, now_ms);
            assert_eq!(told.len(), batches.len());
            for (client, told) in told {
                let batch = &batches[client];
                let expected = model.run(batch, &policies);
                assert_eq!(told.len(), expected.len());
                for (index, (told, expected)) in told.iter().zip(&expected).enumerate() {
                    let key = String::from_utf8_lossy(batch.key(index));
                    assert_eq!(
                        told,
                        expected,
                        "seed {seed} step {step} request {index}: {key} {:?} at {now_ms}, limits {:?}, groups {:?}",
                        batch.requests[index],
                        policies.limits(batch.key(index)),
                        batch.groups
                    );
                    seen.insert(format!("{:?} duplicate {}", told.refusal, told.duplicate));
                }
            }
        }
        let (told, last) = changes(&mut connection, group, &tag);
        for (key, cell) in &model.cells {
            let text: Option<String> =
                redis::cmd("GET").arg(groups::cell(group, key)).query(&mut connection).unwrap();
            assert_eq!(text.and_then(|text| call::stored_cell(&text)), Some(*cell));
            assert_eq!(last.get(key), Some(cell), "the last change of {}", String::from_utf8_lossy(key));
            let sum: i128 = told.get(&(key.clone(), cell.birth)).copied().unwrap_or(0);
            assert_eq!(sum, i128::from(cell.value), "the differences add up");
        }
    }
    for refusal in
        ["Overflow", "BelowFloor", "AboveCeiling", "ConditionUnmet", "Disabled", "GroupAborted", "IdReused"]
    {
        assert!(seen.iter().any(|seen| seen.contains(refusal)), "{refusal} has not come up: {seen:?}");
    }
    assert!(seen.contains("None duplicate true"), "no request was recognized: {seen:?}");
}

type Sums = BTreeMap<(Vec<u8>, u64), i128>;

/// What the stream tells: the sum of the differences of each life, and what each counter was at last.
fn changes(connection: &mut redis::Connection, group: u16, tag: &str) -> (Sums, BTreeMap<Vec<u8>, Cell>) {
    type Entry = (String, Vec<(Vec<u8>, Vec<u8>)>);
    let range = redis::cmd("XRANGE").arg(groups::stream(group)).arg("-").arg("+").to_owned();
    let entries: Vec<Entry> = range.query(connection).unwrap();
    let (mut sums, mut last) = (Sums::new(), BTreeMap::new());
    for (field, told) in entries.into_iter().flat_map(|(_, changes)| changes) {
        let change = archive::Change::of(&field, &told).expect("a change");
        if !change.key.ends_with(format!("{{{tag}}}").as_bytes()) {
            continue;
        }
        if change.has_ended() {
            last.remove(&change.key);
        } else {
            *sums.entry((change.key.clone(), change.cell.birth)).or_default() += change.difference;
            last.insert(change.key, change.cell);
        }
    }
    (sums, last)
}

/// Every pair of numbers around the edges of what doubles, halves and 64 bits hold.
#[test]
fn arithmetic_is_exact_at_the_edges() {
    let server = Server::start();
    let (key, policies) = (b"likes", Policies::default());
    let group = groups::group(key);
    let mut connection = open(&server, group);
    let mut numbers: Vec<i64> = vec![0];
    for edge in [1, 10_i64.pow(10), 10_i64.pow(14), 10_i64.pow(15), 1 << 52, 1 << 53, 1 << 62, i64::MAX] {
        for near in edge.saturating_sub(2)..=edge.saturating_add(1) {
            numbers.extend([near, near.wrapping_neg(), !near]);
        }
    }
    numbers.sort();
    numbers.dedup();
    let mut model = Model { now_ms: BEGIN_MS, ..Model::default() };
    for &value in &numbers {
        let mut batch = Batch::default();
        for &delta in &numbers {
            let set = Set { value, expiry: Expiry::Keep, condition: Condition::Always };
            batch.push(key, Action::Set(set));
            batch.push(key, Action::Add(Add::plain(delta)));
            batch.push(key, Action::Add(Add { min: -5, max: 5, saturate: true, ..Add::plain(delta) }));
        }
        let expected = model.run(&batch, &policies);
        let told = ask(&mut connection, group, &[batch], &policies, BEGIN_MS);
        assert_eq!(told, [(0, expected)], "from {value}");
    }
}

#[test]
fn another_epoch_changes_nothing() {
    let server = Server::start();
    let group = groups::group(b"likes");
    let mut connection = open(&server, group);
    redis::cmd("HSET").arg(groups::marker(group)).arg("epoch").arg("other").exec(&mut connection).unwrap();
    let mut batch = Batch::default();
    batch.push_with_id(b"likes", Action::Add(Add::plain(1)), b"id", 0);
    let mut units = unit_split(&batch);
    let policies = Policies::default();
    let terms =
        Terms { group, epoch: EPOCH, time_ms: BEGIN_MS, id_window_ms: WINDOW_MS, policies: &policies };
    let answer: Value = call::command(&terms, &mut units).query(&mut connection).unwrap();
    assert!(matches!(call::answered(&answer, &units), Some(Answered::Lost(found)) if found == "other"));
    redis::cmd("DEL").arg(groups::marker(group)).exec(&mut connection).unwrap();
    let answer: Value = call::command(&terms, &mut units).query(&mut connection).unwrap();
    assert!(matches!(call::answered(&answer, &units), Some(Answered::Lost(found)) if found.is_empty()));
    let keys: u64 = redis::cmd("DBSIZE").query(&mut connection).unwrap();
    assert_eq!(keys, 0, "neither counted nor remembered");
}
