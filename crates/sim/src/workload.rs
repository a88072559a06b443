//! What the clients of a world ask, drawn at random: mostly small numbers on few counters, so that bounds, conditions,
//! retries and collisions are met all the time.

use std::rc::Rc;

use quipu_counting::{Action, Add, Condition, Expire, ExpireWhen, Expiry, Policy, Set};
use quipu_wire::entry::EFFECTS_BYTES_MAX;
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

use crate::ask::{Ask, Key, Unit, Universe};
use crate::config::{Config, Kind};
use crate::oracle::model::Model;

/// Recognizable requests kept for retries.
const RETRIES_KEPT: usize = 200;

/// Draws asks and remembers what can be retried.
pub struct Workload {
    config: Config,
    universe: Rc<Universe>,
    /// Requests that were asked under an id or by a producer.
    asked: Vec<Unit>,
    next_id: u64,
    /// Epoch and last sequence of each producer.
    producers: Vec<(u64, u64)>,
    /// The next key that a world of many counters has not used.
    next_key: Key,
}

impl Workload {
    /// For a world.
    pub fn new(config: &Config, universe: Rc<Universe>) -> Workload {
        let producers = vec![(1, 0); usize::from(config.producers)];
        Workload { config: config.clone(), universe, asked: Vec::new(), next_id: 1, producers, next_key: 0 }
    }

    /// The next batch of some client.
    pub fn draw(&mut self, random: &mut SmallRng, model: &Model, now: u64) -> Ask {
        let wanted = match random.random_range(0..10) {
            _ if self.config.kind == Kind::Long => 30,
            0..5 => 1,
            5..9 => random.random_range(2..6),
            _ => random.random_range(6..30),
        };
        let mut ask = Ask::default();
        let mut room = self.config.batch_bytes_max();
        let is_bulk = self.config.kind == Kind::Tight && random.random_ratio(1, 2);
        for _ in 0..if is_bulk { 80 } else { wanted } {
            let unit = if is_bulk { self.bulk(random) } else { self.unit(random, model, now) };
            let cost = unit.bytes(&self.universe) + unit.requests() * EFFECTS_BYTES_MAX;
            if cost > room {
                break;
            }
            room -= cost;
            if unit.is_recognized() {
                self.keep(random, unit.clone());
            }
            ask.units.push(unit);
        }
        if ask.units.is_empty() {
            ask.units.push(Unit::Single { key: 0, action: Action::Read, id: None });
        }
        ask
    }

    fn keep(&mut self, random: &mut SmallRng, unit: Unit) {
        if self.asked.len() < RETRIES_KEPT {
            self.asked.push(unit);
        } else {
            let at = random.random_range(0..RETRIES_KEPT);
            self.asked[at] = unit;
        }
    }

    /// One of many counters, most of them new: fills the memory.
    fn bulk(&mut self, random: &mut SmallRng) -> Unit {
        self.next_key = (self.next_key + 1) % self.universe.keys.len();
        let action = Action::Add(Add::plain(random.random_range(-3..9)));
        let id = random.random_ratio(1, 10).then(|| self.new_id());
        Unit::Single { key: self.next_key, action, id }
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn key(&self, random: &mut SmallRng) -> Key {
        let all = self.universe.keys.len();
        // Half of all requests meet on a few counters.
        if random.random() { random.random_range(0..all.min(4)) } else { random.random_range(0..all) }
    }

    fn unit(&mut self, random: &mut SmallRng, model: &Model, now: u64) -> Unit {
        match random.random_range(0..100) {
            0..12 => {
                let key = self.key(random);
                let id = random.random_ratio(1, 8).then(|| self.new_id());
                Unit::Single { key, action: Action::Read, id }
            }
            12..16 => self.guarded(random, model, now),
            16..55 => {
                let (key, action) = self.item(random, model, now);
                let id = random.random_ratio(1, 2).then(|| self.new_id());
                Unit::Single { key, action, id }
            }
            55..75 => self.retry(random, model, now),
            75..86 => {
                let items = self.items(random, model, now);
                let id = random.random_ratio(2, 3).then(|| self.new_id());
                Unit::Atomic { items, id }
            }
            86..96 => self.session(random, model, now),
            96..99 => Unit::Count,
            // Where everything is cleared, nothing grows old.
            _ if self.config.kind != Kind::Long && random.random_ratio(1, 3) => Unit::Clear,
            _ => Unit::Count,
        }
    }

    /// An earlier request again: the same, or with other arguments under the same id.
    fn retry(&mut self, random: &mut SmallRng, model: &Model, now: u64) -> Unit {
        let Some(mut unit) = self.asked.choose(random).cloned() else {
            return Unit::Count;
        };
        if random.random_ratio(1, 8) {
            match &mut unit {
                Unit::Single { action, .. } => *action = self.item(random, model, now).1,
                Unit::Atomic { items, .. } if items.len() > 1 && random.random() => drop(items.pop()),
                Unit::Atomic { items, .. } => {
                    let at = random.random_range(0..items.len());
                    items[at] = self.item(random, model, now);
                }
                Unit::Session { items, .. } => *items = self.items(random, model, now),
                Unit::Guarded { .. } | Unit::Count | Unit::Clear => {}
            }
        }
        unit
    }

    fn session(&mut self, random: &mut SmallRng, model: &Model, now: u64) -> Unit {
        let producer = random.random_range(0..self.config.producers);
        let items = self.items(random, model, now);
        let (last_epoch, last) = self.producers[usize::from(producer)];
        let (epoch, sequence) = match random.random_range(0..10) {
            // A new incarnation, an old one, a retry out of order, a gap, and mostly the next one.
            0 => (last_epoch + 1, 1),
            1 => (last_epoch.saturating_sub(1), last + 1),
            2 | 3 => (last_epoch, random.random_range(0..=last)),
            4 => (last_epoch, last + random.random_range(2..5)),
            _ => (last_epoch, last + 1),
        };
        if (epoch, sequence) > (last_epoch, last) {
            self.producers[usize::from(producer)] = (epoch, sequence);
        }
        Unit::Session { producer, epoch, sequence, items }
    }

    /// A transaction with watched counters: mostly they are as they were.
    fn guarded(&self, random: &mut SmallRng, model: &Model, now: u64) -> Unit {
        let check = |random: &mut SmallRng| {
            let key = self.key(random);
            let condition = match model.counters.get(&key) {
                _ if random.random_ratio(1, 5) => self.condition(random, model, key),
                None => Condition::Absent,
                Some(counter) => match model.births.number(counter.born) {
                    Some(birth) => Condition::Tag { birth, version: counter.changes },
                    None => Condition::Version(counter.changes),
                },
            };
            (key, condition)
        };
        let checks = (0..random.random_range(1..4)).map(|_| check(random)).collect();
        Unit::Guarded { checks, items: self.items(random, model, now) }
    }

    fn items(&self, random: &mut SmallRng, model: &Model, now: u64) -> Vec<(Key, Action)> {
        let count = random.random_range(1..5);
        let with_reads = random.random_ratio(1, 3);
        let read = |random: &mut SmallRng| (self.key(random), Action::Read);
        let one = |random: &mut SmallRng| match with_reads && random.random() {
            true => read(random),
            false => self.item(random, model, now),
        };
        (0..count).map(|_| one(random)).collect()
    }

    fn item(&self, random: &mut SmallRng, model: &Model, now: u64) -> (Key, Action) {
        let key = self.key(random);
        let condition = self.condition(random, model, key);
        let action = match random.random_range(0..20) {
            0..12 => {
                let bound = |none, random: &mut SmallRng| {
                    if random.random_ratio(1, 4) { number(random) } else { none }
                };
                Action::Add(Add {
                    delta: number(random),
                    min: bound(i64::MIN, random),
                    max: bound(i64::MAX, random),
                    saturate: random.random_ratio(1, 4),
                    expiry: self.expiry(random, now),
                    condition,
                })
            }
            12..15 => Action::Set(Set { value: number(random), expiry: self.expiry(random, now), condition }),
            15 => Action::Reset(condition),
            16 | 17 => Action::Delete(condition),
            _ => Action::Expire(Expire { expiry: self.expiry(random, now), when: when(random) }),
        };
        (key, action)
    }

    fn condition(&self, random: &mut SmallRng, model: &Model, key: Key) -> Condition {
        let counter = model.counters.get(&key);
        match (random.random_range(0..24), counter) {
            (0, _) => Condition::Exists,
            (1, _) => Condition::Absent,
            (2, _) => Condition::Version(random.random_range(0..4)),
            (3, Some(counter)) => Condition::Version(counter.changes),
            (4, Some(counter)) => match model.births.number(counter.born) {
                Some(birth) => Condition::Tag { birth, version: counter.changes },
                None => Condition::Always,
            },
            // No counter is ever born so late.
            (5, _) => Condition::Tag { birth: 1 << 60, version: random.random_range(0..3) },
            _ => Condition::Always,
        }
    }

    fn expiry(&self, random: &mut SmallRng, now: u64) -> Expiry {
        if !self.config.expires {
            return if random.random_ratio(1, 8) { Expiry::Clear } else { Expiry::Keep };
        }
        let ms = |random: &mut SmallRng| random.random_range(0..4) * random.random_range(1..900);
        match random.random_range(0..12) {
            0 => Expiry::Clear,
            1 => Expiry::In(ms(random)),
            2 => Expiry::At((now + ms(random)).saturating_sub(300)),
            3 => Expiry::InIfNone(ms(random)),
            4 => Expiry::AtIfNone(now + ms(random)),
            _ => Expiry::Keep,
        }
    }

    /// A change of the policies.
    pub fn policy(&self, random: &mut SmallRng) -> (Vec<u8>, Option<Policy>) {
        let pattern = match random.random_range(0..4) {
            0 => b"*".to_vec(),
            1 => b"k?:*".to_vec(),
            2 => b"k1*".to_vec(),
            _ => self.universe.keys[self.key(random)].clone(),
        };
        if random.random_ratio(2, 5) {
            return (pattern, None);
        }
        let policy = Policy {
            min: random.random_ratio(1, 3).then(|| number(random).min(3)),
            max: random.random_ratio(1, 3).then(|| number(random).max(-3)),
            saturate: random.random_ratio(1, 5),
            ttl_ms: (self.config.expires && random.random_ratio(1, 4)).then(|| random.random_range(1..3_000)),
            disabled: random.random_ratio(1, 6),
            ..Policy::default()
        };
        (pattern, Some(policy))
    }
}

fn number(random: &mut SmallRng) -> i64 {
    const EDGES: [i64; 6] = [i64::MIN, i64::MIN + 1, -i64::MAX / 2, i64::MAX / 2, i64::MAX - 1, i64::MAX];
    if random.random_ratio(1, 40) { EDGES[random.random_range(0..6)] } else { random.random_range(-9..=12) }
}

fn when(random: &mut SmallRng) -> ExpireWhen {
    ExpireWhen::ALL[random.random_range(0..7)]
}
