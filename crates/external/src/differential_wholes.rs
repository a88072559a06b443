//! Counters of every kind, asked of two nodes in turn, against the rules of counting alone: every field of every reply must be the
//! same. Births are given out in other orders, so each stands for one of the other side.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use quipu_counting::body::{Keeping, put_frame};
use quipu_counting::identity::{group_fingerprint, request_fingerprint};
use quipu_counting::kinds::{
    Asked, RULES, Ruled, WholeItem, decide_whole, decide_whole_group, put_join, put_restored, recall,
};
use quipu_counting::rollup::{Declared, Slice};
use quipu_counting::rules::GroupItem;
use quipu_counting::series::Retention;
use quipu_counting::session::admit;
use quipu_counting::window::{Frame, Unit as CalendarUnit, Zone};
use quipu_counting::{
    Acquire, Action, Add, Batch, Body, Cell, Change, Condition, Ending, Expire, ExpireWhen, Expiry, Group,
    GroupKind, Kind, Outcome, Policies, Policy, Refusal, Remembered, Reply, Session, SessionVerdict, Set,
    Told, Unique, Whole, decide, decide_group,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use redis::Value;

use crate::call::{self, Answered, Terms};
use crate::differential::{BEGIN_MS, EPOCH, WINDOW_MS, condition, expiry, number, open};
use crate::groups;
use crate::support::Server;
use crate::units::{Unit, guarded_until, split};
use crate::wholes::{Heard, OwnTerms, Wholes};

/// Replies and counters in the end; or which was refused, and the replies.
type Decided = Result<(Vec<Reply>, Vec<Whole>), (usize, Vec<Reply>)>;

/// A group of counters as counting understands it.
#[derive(Default)]
struct Model {
    counters: BTreeMap<Vec<u8>, Whole>,
    ids: HashMap<(Vec<u8>, u32, Vec<u8>), Remembered>,
    producers: HashMap<Vec<u8>, Session>,
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

    fn whole(&self, key: &[u8]) -> Whole {
        self.counters.get(key).cloned().unwrap_or_default()
    }

    fn put(&mut self, key: &[u8], whole: Whole) {
        match whole.cell {
            Some(_) => _ = self.counters.insert(key.to_vec(), whole),
            None => _ = self.counters.remove(key),
        }
    }

    fn is_whole(&self, batch: &Batch, index: usize, policies: &Policies) -> bool {
        let key = batch.key(index);
        batch.requests[index].action.is_for_whole()
            || policies.limits(key).is_for_whole
            || self.whole(key).body.is_some()
    }

    fn single(&mut self, batch: &Batch, index: usize, policies: &Policies) -> Reply {
        let fingerprint = request_fingerprint(batch, index);
        if let Some(known) = self.known(batch, index) {
            return self.again(batch, index, &known, fingerprint, policies);
        }
        let (key, action) = (batch.key(index), &batch.requests[index].action);
        let (limits, sequence) = (policies.limits(key), self.births + 1);
        let mut whole = self.whole(key);
        let (change, reply) = if self.is_whole(batch, index, policies) {
            let ruled = Ruled { limits, policy: policies.policy_for(key), rules: RULES };
            let asked = Asked { action, payload: batch.payload(index) };
            let decided = decide_whole(&mut whole, asked, ruled, self.now_ms, sequence);
            (decided.change, decided.reply)
        } else {
            let verdict = decide(whole.cell, action, &limits, self.now_ms, sequence);
            match verdict.change {
                Change::Keep => {}
                Change::Put(cell) => whole.cell = Some(cell),
                Change::Remove => whole = Whole::default(),
            }
            (verdict.change, verdict.reply)
        };
        if matches!(change, Change::Put(cell) if cell.birth == sequence) {
            self.births += 1;
        }
        self.put(key, whole);
        self.remember(batch, index, fingerprint, &reply);
        reply
    }

    fn again(
        &self,
        batch: &Batch,
        index: usize,
        known: &Remembered,
        print: u64,
        policies: &Policies,
    ) -> Reply {
        let mut reply = known.answer(print);
        let (key, action) = (batch.key(index), &batch.requests[index].action);
        let mut whole = self.whole(key);
        if whole.body.is_none() && !action.is_for_whole() {
            return reply;
        }
        if !whole.cell.is_some_and(|cell| cell.is_live(self.now_ms)) {
            whole.body = None;
        }
        reply.kind = whole.body.as_ref().map_or(Kind::Sum, |body| body.kind());
        if action.is_for_whole() && reply.refusal.is_none() {
            let ruled =
                Ruled { limits: policies.limits(key), policy: policies.policy_for(key), rules: RULES };
            let asked = Asked { action, payload: batch.payload(index) };
            reply.detail = recall(&whole, asked, ruled, (&reply, known.at_ms), self.now_ms);
        }
        reply
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
                Some(known) if is_same => self.again(batch, index, known, print(index), policies),
                _ => any.answer(!any.fingerprint),
            };
            return known.iter().zip(places).map(answer).collect();
        }
        let (replies, refusal) = self.all_or_none(batch, group, policies);
        if refusal.is_none_or(Refusal::is_remembered) {
            for (index, reply) in places.zip(&replies) {
                self.remember(batch, index, print(index), reply);
            }
        }
        replies
    }

    fn all_or_none(
        &mut self,
        batch: &Batch,
        group: &Group,
        policies: &Policies,
    ) -> (Vec<Reply>, Option<Refusal>) {
        let places = group.start..group.end;
        let mut keys: Vec<&[u8]> = Vec::new();
        let numbers: Vec<usize> = places
            .clone()
            .map(|index| {
                let key = batch.key(index);
                keys.iter().position(|known| *known == key).unwrap_or_else(|| {
                    keys.push(key);
                    keys.len() - 1
                })
            })
            .collect();
        let counters: Vec<Whole> = keys.iter().map(|key| self.whole(key)).collect();
        let numbered = || places.clone().zip(self.births + 1..).zip(&numbers);
        let now_ms = self.now_ms;
        let decided: Decided = if places.clone().any(|index| self.is_whole(batch, index, policies)) {
            let items: Vec<WholeItem<'_>> = numbered()
                .map(|((index, sequence), counter)| {
                    let key = batch.key(index);
                    let ruled = Ruled {
                        limits: policies.limits(key),
                        policy: policies.policy_for(key),
                        rules: RULES,
                    };
                    let action = &batch.requests[index].action;
                    let asked = Asked { action, payload: batch.payload(index) };
                    WholeItem { counter: *counter, asked, ruled, sequence, now_ms }
                })
                .collect();
            decide_whole_group(&items, &counters)
                .map(|(decided, after)| (decided.into_iter().map(|decided| decided.reply).collect(), after))
        } else {
            let items: Vec<GroupItem<'_>> = numbered()
                .map(|((index, sequence), cell)| {
                    let (action, limits) = (&batch.requests[index].action, policies.limits(batch.key(index)));
                    GroupItem { cell: *cell, action, limits, sequence, now_ms }
                })
                .collect();
            let mut cells: Vec<Option<Cell>> = counters.iter().map(|whole| whole.cell).collect();
            decide_group(&items, &mut cells).map(|verdicts| {
                let after = cells.into_iter().map(|cell| Whole { cell, body: None }).collect();
                (verdicts.into_iter().map(|verdict| verdict.reply).collect(), after)
            })
        };
        match decided {
            Ok((replies, after)) => {
                self.births += numbers.len() as u64;
                let keys: Vec<Vec<u8>> = keys.into_iter().map(<[u8]>::to_vec).collect();
                keys.iter().zip(after).for_each(|(key, whole)| self.put(key, whole));
                (replies, None)
            }
            Err((refused, replies)) => {
                let refusal = replies[refused].refusal;
                (replies, refusal)
            }
        }
    }

    fn session(&mut self, batch: &Batch, group: &Group, policies: &Policies) -> Vec<Reply> {
        let GroupKind::Session { producer, epoch, sequence } = group.kind else { unreachable!() };
        let producer = batch.bytes(producer);
        let (last, duplicate, refusal) = match admit(self.producers.get(producer), epoch, sequence) {
            SessionVerdict::Fenced { epoch } => (epoch, false, Some(Refusal::Fenced)),
            SessionVerdict::Duplicate { last, refusal } => (last, true, refusal),
            SessionVerdict::Fresh => {
                let (_, refusal) = self.all_or_none(batch, group, policies);
                if refusal.is_none_or(Refusal::is_remembered) {
                    self.producers.insert(producer.to_vec(), Session { epoch, sequence, refusal });
                }
                (sequence, false, refusal)
            }
        };
        let cell = Cell { version: last, ..Cell::ABSENT };
        vec![Reply { refusal, duplicate, cell, ..Reply::state(None) }; group.end - group.start]
    }

    fn run(&mut self, batch: &Batch, policies: &Policies) -> Vec<Reply> {
        let mut replies = Vec::new();
        let mut groups = batch.groups.iter().peekable();
        while replies.len() < batch.requests.len() {
            let index = replies.len();
            match groups.next_if(|group| group.start == index) {
                None => replies.push(self.single(batch, index, policies)),
                Some(group) => match group.kind {
                    GroupKind::Atomic => replies.extend(self.atomic(batch, group, policies)),
                    GroupKind::Session { .. } => replies.extend(self.session(batch, group, policies)),
                    GroupKind::Guard { .. } => {
                        for check in group.start..group.end {
                            replies.push(self.single(batch, check, policies));
                        }
                        if replies[index..].iter().any(|reply| reply.refusal.is_some()) {
                            let until = guarded_until(batch, group);
                            let aborted =
                                Reply { refusal: Some(Refusal::GroupAborted), ..Reply::state(None) };
                            replies.resize(until, aborted);
                            while groups.next_if(|group| group.start < until).is_some() {}
                        }
                    }
                },
            }
        }
        replies
    }
}

const KEYS: [&str; 12] = [
    "any", "other", "bounded", "short", "off", "unique", "visitors", "window", "month", "quota", "past",
    "rolled",
];

fn policies() -> Policies {
    let mut policies = Policies::default();
    let mut set = |pattern: &str, policy| _ = policies.set(format!("{pattern}*").as_bytes(), Some(policy));
    let keeping = |frame, keep_ms| Some(Keeping { frame, keep_ms });
    let of = |kind| Policy { kind: Some(kind), ..Policy::default() };
    let sliding = Frame::Sliding { span_ms: 200, bucket_ms: 20 };
    set("bounded", Policy { min: Some(-10), max: Some(25), saturate: true, ..Policy::default() });
    set("short", Policy { ttl_ms: Some(120), ..Policy::default() });
    set("off", Policy { disabled: true, ..Policy::default() });
    set("unique", of(Kind::Unique));
    set("visitors", Policy { window: keeping(Frame::Fixed { span_ms: 100 }, 300), ..of(Kind::Unique) });
    let window = Policy { window: keeping(sliding.clone(), 400), ..of(Kind::Window) };
    set("window", Policy { lateness_ms: Some(150), max: Some(500), ..window.clone() });
    let zone = Zone::new("Somewhere", vec![(0, 3_600), (BEGIN_MS as i64 + 2_000, 7_200)]).unwrap();
    let month = Frame::Calendar { unit: CalendarUnit::Day, anchor: 0, zone };
    set("month", Policy { window: keeping(month, 1_000_000), limit: Some(30), ..of(Kind::Window) });
    set("quota", Policy { limit: Some(20), soft: true, ..window });
    let history = Retention { minutes_ms: 600_000, hours_ms: 7_200_000, days_ms: 0 };
    set("past", Policy { history: Some(history), ..Policy::default() });
    let rollups = [vec!["day".to_owned()], vec!["tenant".to_owned(), "day".to_owned()]];
    let rollups = Declared::new(&rollups).unwrap();
    set("rolled", Policy { rollups, ..Policy::default() });
    policies
}

fn hashes(chance: &mut SmallRng) -> Vec<u64> {
    let many = if chance.random_range(0..12) == 0 { 400 } else { 4 };
    (0..chance.random_range(0..many))
        .map(|_| chance.random_range(0..900_u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .collect()
}

fn sketch(chance: &mut SmallRng) -> Unique {
    let mut unique = Unique::new();
    hashes(chance).into_iter().for_each(|hash| _ = unique.observe(hash));
    unique
}

fn add(chance: &mut SmallRng, condition: Condition, expiry: Expiry) -> Add {
    let delta = if chance.random_range(0..8) == 0 { number(chance) } else { chance.random_range(-9..=12) };
    match chance.random_range(0..3) {
        0 => Add { delta, min: -20, max: 60, saturate: chance.random(), expiry, condition },
        _ => Add::plain(delta),
    }
}

fn told(chance: &mut SmallRng, now_ms: u64, batch: &mut Batch, add: Add) -> Action {
    let tenant = ["a", "b", "c"][chance.random_range(0..3)];
    let mut told = Told::default();
    if chance.random() {
        told.at_ms = Some(now_ms + 20 - chance.random_range(0..300));
    }
    if chance.random() {
        told.dimensions = vec![(if chance.random_range(0..6) > 0 { "tenant" } else { "color" }, tenant)];
    }
    if chance.random() {
        told.reason = Some("because");
    }
    batch.addition(add, &told)
}

/// Something that only whole counters know.
fn whole_action(chance: &mut SmallRng, model: &Model, key: &[u8], batch: &mut Batch) -> Action {
    let found = model.counters.get(key);
    let condition = condition(chance, found.and_then(|whole| whole.cell.as_ref()));
    let expiry = expiry(chance, model.now_ms);
    let mut bytes = Vec::new();
    match chance.random_range(0..18) {
        0..4 => {
            hashes(chance).iter().for_each(|hash| bytes.extend(hash.to_le_bytes()));
            Action::Observe { items: batch.intern(&bytes), at_ms: None }
        }
        4 => {
            match chance.random_range(0..3) {
                0 => sketch(chance).put(&mut bytes),
                1 => put_join(&mut bytes, chance.random_range(0..2), Some(&sketch(chance))),
                _ => put_join(&mut bytes, chance.random_range(0..2), None),
            }
            Action::Join { sketch: batch.intern(&bytes) }
        }
        5 => {
            sketch(chance).put(&mut bytes);
            Action::Replace { sketch: batch.intern(&bytes), expiry, condition }
        }
        6 => {
            let from: Vec<&Whole> = model.counters.values().collect();
            let body =
                from.get(chance.random_range(0..from.len().max(1))).and_then(|whole| whole.body.clone());
            let body = body.unwrap_or_else(|| Arc::new(Body::new(quipu_counting::body::Shape::Sum)));
            let mut of_body = Vec::new();
            body.put(&mut of_body);
            put_restored(&mut bytes, model.now_ms - 50, 17, &of_body);
            Action::Restore { whole: batch.intern(&bytes), expiry, condition }
        }
        7..11 => {
            match chance.random_range(0..5) {
                0 => put_frame(&mut bytes, &Frame::Sliding { span_ms: 200, bucket_ms: 20 }),
                1 => put_frame(&mut bytes, &Frame::Fixed { span_ms: 100 }),
                2 => put_frame(&mut bytes, &Frame::Sliding { span_ms: 800, bucket_ms: 20 }),
                _ => {}
            }
            Action::Acquire(Acquire {
                amount: chance.random_range(0..9),
                limit: chance.random::<bool>().then(|| chance.random_range(0..60)),
                frame: batch.intern(&bytes),
                is_soft: chance.random_range(0..4) == 0,
            })
        }
        11..13 => Action::Reserve(add(chance, Condition::Always, expiry), chance.random_range(1..200)),
        13..15 => {
            let birth = found.and_then(|whole| whole.cell).map_or(0, |cell| cell.birth);
            let holds = found.and_then(|whole| whole.body.as_ref());
            let numbers: Vec<u64> =
                holds.map_or(Vec::new(), |body| body.holds.iter().map(|(number, _)| number).collect());
            let number = match numbers.is_empty() {
                true => 3,
                false => numbers[chance.random_range(0..numbers.len())],
            };
            let ending = match chance.random_range(0..3) {
                0 => Ending::Void,
                1 => Ending::Commit(None),
                _ => Ending::Commit(Some(chance.random_range(-2..4))),
            };
            Action::End { birth, number, ending }
        }
        15 => {
            let day = if chance.random() { "*" } else { "2096-10-02" };
            let dimensions = match chance.random() {
                true => vec![("day".to_owned(), day.to_owned())],
                false => vec![("tenant".to_owned(), "*".to_owned())],
            };
            Slice::new(dimensions).unwrap().action(batch)
        }
        _ => {
            let add = add(chance, condition, expiry);
            told(chance, model.now_ms, batch, add)
        }
    }
}

fn action(chance: &mut SmallRng, model: &Model, key: &[u8], batch: &mut Batch) -> Action {
    let condition = condition(chance, model.counters.get(key).and_then(|whole| whole.cell.as_ref()));
    let expiry = expiry(chance, model.now_ms);
    let set = Set { value: chance.random_range(-5..40), expiry, condition };
    match chance.random_range(0..24) {
        0..3 => Action::Read,
        3 => Action::Check(condition),
        4..8 => Action::Add(add(chance, condition, expiry)),
        8 => Action::Set(set),
        9 => Action::Overwrite(set),
        10 => Action::Reset(condition),
        11 => Action::Delete(condition),
        12 => {
            let when = ExpireWhen::ALL[chance.random_range(0..ExpireWhen::ALL.len())];
            Action::Expire(Expire { expiry, when })
        }
        _ => whole_action(chance, model, key, batch),
    }
}

fn push(chance: &mut SmallRng, model: &Model, tag: &str, batch: &mut Batch) {
    let key = format!("{}{{{tag}}}", KEYS[chance.random_range(0..KEYS.len())]);
    let action = action(chance, model, key.as_bytes(), batch);
    if chance.random_range(0..3) > 0 {
        batch.push(key.as_bytes(), action);
        return;
    }
    let id = format!("id {}", chance.random_range(0..6));
    let action = match chance.random_range(0..4) {
        0 => Action::Add(Add::plain(3)),
        1 => Action::Reserve(Add::plain(2), 150),
        2 => {
            Action::Acquire(Acquire { amount: 2, limit: Some(50), frame: batch.intern(b""), is_soft: false })
        }
        _ => action,
    };
    batch.push_with_id(key.as_bytes(), action, id.as_bytes(), chance.random_range(0..2));
}

fn batch(chance: &mut SmallRng, model: &Model, tag: &str) -> Batch {
    let mut batch = Batch::default();
    for _ in 0..chance.random_range(1..5) {
        let start = batch.requests.len();
        match chance.random_range(0..7) {
            0 => {
                (0..chance.random_range(1..4)).for_each(|_| push(chance, model, tag, &mut batch));
                batch.group(start, GroupKind::Atomic);
            }
            1 => {
                let key = format!("{}{{{tag}}}", KEYS[chance.random_range(0..KEYS.len())]);
                let cell = model.counters.get(key.as_bytes()).and_then(|whole| whole.cell.as_ref());
                batch.push(key.as_bytes(), Action::Check(condition(chance, cell)));
                let guarded = chance.random_range(0..4);
                batch.group(start, GroupKind::Guard { until: start + 1 + guarded });
                (0..guarded).for_each(|_| push(chance, model, tag, &mut batch));
                if guarded > 1 {
                    batch.group(start + 2, GroupKind::Atomic);
                }
            }
            2 => {
                let producer = format!("producer {} of {tag}", chance.random_range(0..3));
                let (epoch, sequence) = (chance.random_range(0..3), chance.random_range(1..400));
                for _ in 0..chance.random_range(1..4) {
                    let key = format!("{}{{{tag}}}", KEYS[chance.random_range(0..KEYS.len())]);
                    batch.push(key.as_bytes(), Action::Add(Add::plain(1)));
                }
                let producer = batch.intern(producer.as_bytes());
                batch.group(start, GroupKind::Session { producer, epoch, sequence });
            }
            _ => push(chance, model, tag, &mut batch),
        }
    }
    batch
}

/// Which birth here is which birth there.
#[derive(Default)]
struct Births {
    real: HashMap<u64, u64>,
    ours: HashMap<u64, u64>,
}

impl Births {
    /// What is asked, in births of Redis.
    fn translated(&self, batch: &Batch) -> Batch {
        let mut copy = Batch::default();
        copy.append(batch);
        let real = |birth: &mut u64| *birth = self.real.get(birth).copied().unwrap_or(*birth);
        let real_condition = |condition: &mut Condition| {
            if let Condition::Tag { birth, .. } = condition {
                real(birth);
            }
        };
        for request in &mut copy.requests {
            match &mut request.action {
                Action::Check(condition) | Action::Reset(condition) | Action::Delete(condition) => {
                    real_condition(condition);
                }
                Action::Add(add) | Action::Told { add, .. } | Action::Reserve(add, _) => {
                    real_condition(&mut add.condition);
                }
                Action::Set(set) | Action::Overwrite(set) => real_condition(&mut set.condition),
                Action::Replace { condition, .. } | Action::Restore { condition, .. } => {
                    real_condition(condition);
                }
                Action::End { birth, .. } => real(birth),
                _ => {}
            }
        }
        copy
    }

    /// Those that no reply has shown: a producer is not told of its counters.
    fn learn(&mut self, connection: &mut redis::Connection, group: u16, model: &Model) {
        for (key, whole) in &model.counters {
            let Some(cell) = whole.cell.filter(|cell| !self.real.contains_key(&cell.birth)) else { continue };
            let stored: Vec<u8> = redis::cmd("GET").arg(groups::cell(group, key)).query(connection).unwrap();
            let (real, _) = call::stored_parts(&stored).unwrap();
            assert_eq!(self.ours.insert(real.birth, cell.birth), None);
            self.real.insert(cell.birth, real.birth);
        }
    }

    /// A reply in our births; those of what does not exist mean nothing.
    fn ours(&mut self, mut told: Reply, expected: &mut Reply) -> Reply {
        if !(told.exists && expected.exists) || told.cell.birth == 0 {
            expected.cell.birth = 0;
            told.cell.birth = 0;
            return told;
        }
        let (real, ours) = (told.cell.birth, expected.cell.birth);
        let known = (*self.ours.entry(real).or_insert(ours), *self.real.entry(ours).or_insert(real));
        assert_eq!(known, (ours, real), "a birth stands for one counter's life");
        told.cell.birth = ours;
        told
    }
}

/// Asks as a lane would: Redis where it can decide, else the node.
fn ask(
    node: &Wholes,
    connection: &mut redis::Connection,
    group: u16,
    batch: Batch,
    policies: &Arc<Policies>,
    now_ms: u64,
) -> Vec<Reply> {
    let requests = batch.requests.len();
    let mut units = split(batch, now_ms, Box::new(|_, _| {}));
    node.mark(&mut units, policies);
    let mut replies: Vec<Option<Reply>> = vec![None; requests];
    let mut note = |unit: &Unit, told: Vec<Reply>| {
        unit.range().zip(told).for_each(|(place, reply)| replies[place] = Some(reply));
    };
    let (wholes, mut plain): (Vec<Unit>, Vec<Unit>) = units.into_iter().partition(|unit| unit.is_for_whole);
    assert!(wholes.is_empty() || plain.is_empty(), "a client's requests of a group go one way");
    wholes.into_iter().for_each(|unit| node.push(unit));
    if !plain.is_empty() {
        let terms = Terms { group, epoch: EPOCH, time_ms: now_ms, id_window_ms: WINDOW_MS, policies };
        let answer: Value = call::command(&terms, &mut plain).query(connection).unwrap();
        let Some(Answered::Replies(told)) = call::answered(&answer, &plain) else {
            panic!("not understood: {answer:?}")
        };
        for (unit, told) in plain.into_iter().zip(told) {
            match told {
                Some(told) => note(&unit, told),
                None => node.push(unit),
            }
        }
    }
    for _ in 0..4 {
        let terms = |_: &[Unit]| OwnTerms {
            epoch: EPOCH.into(),
            time_ms: now_ms,
            id_window_ms: WINDOW_MS,
            policies: Arc::clone(policies),
        };
        let Some(call) = node.take(group, |units| units.len(), terms) else { break };
        let answer: Value = call.command().query(connection).unwrap();
        match node.hear(call, &answer) {
            Heard::Pieces { answered, again } => {
                answered.into_iter().for_each(|(unit, told)| note(&unit, told));
                node.push_first(again);
            }
            Heard::Lost(_, found) => panic!("lost, found {found:?}"),
            Heard::Unknown(_) => panic!("not understood: {answer:?}"),
        }
    }
    replies.into_iter().map(|reply| reply.expect("nobody competes, so the third attempt does it")).collect()
}

#[test]
fn every_kind_is_decided_as_counting_does() {
    let server = Server::start();
    let policies = Arc::new(policies());
    let mut seen: BTreeSet<String> = BTreeSet::new();
    for seed in 0..8 {
        let (mut chance, tag) = (SmallRng::seed_from_u64(seed), format!("t{seed}"));
        let group = groups::group(format!("{{{tag}}}").as_bytes());
        let mut connection = open(&server, group);
        // One of them forgets nearly at once.
        let nodes = [Wholes::new(64 << 20), Wholes::new(5_000)];
        let (mut model, mut births) = (Model { now_ms: BEGIN_MS, ..Model::default() }, Births::default());
        for step in 0..1_500 {
            model.now_ms += chance.random_range(0..20);
            let batch = batch(&mut chance, &model, &tag);
            let now_ms = model.now_ms;
            let asked = births.translated(&batch);
            let expected = model.run(&batch, &policies);
            let node = &nodes[chance.random_range(0..2)];
            let told = ask(node, &mut connection, group, asked, &policies, now_ms);
            for (index, (told, mut expected)) in told.into_iter().zip(expected).enumerate() {
                let told = births.ours(told, &mut expected);
                assert_eq!(
                    told,
                    expected,
                    "seed {seed} step {step} request {index}: {} {:?} at {now_ms}, groups {:?}",
                    String::from_utf8_lossy(batch.key(index)),
                    batch.requests[index],
                    batch.groups
                );
                seen.insert(format!("{:?} duplicate {} {:?}", told.refusal, told.duplicate, told.kind));
            }
            births.learn(&mut connection, group, &model);
        }
        for (key, whole) in &model.counters {
            let stored: Option<Vec<u8>> =
                redis::cmd("GET").arg(groups::cell(group, key)).query(&mut connection).unwrap();
            let mut stored = stored.and_then(|stored| call::stored_whole(&stored)).unwrap();
            if let Some(cell) = &mut stored.cell {
                cell.birth = births.ours[&cell.birth];
            }
            assert_eq!(stored, *whole, "{}", String::from_utf8_lossy(key));
        }
    }
    for refusal in [
        "BelowFloor",
        "AboveCeiling",
        "ConditionUnmet",
        "Disabled",
        "GroupAborted",
        "IdReused",
        "Fenced",
        "WrongKind",
        "OverQuota",
        "NoLimit",
        "HoldEnded",
        "BeyondHold",
        "OutOfTime",
        "Timeless",
        "UndeclaredDimension",
        "None duplicate true Sum",
        "None duplicate true Unique",
        "None duplicate true Window",
    ] {
        assert!(seen.iter().any(|seen| seen.contains(refusal)), "{refusal} has not come up: {seen:?}");
    }
}
