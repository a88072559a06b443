//! What is asked in these worlds. A key's name says what is mostly asked of it; now and then it is something else.

use quipu_counting::body::{Keeping, Shape, put_frame, read_hashes};
use quipu_counting::kinds::put_restored;
use quipu_counting::rollup::{CellsKept, Declared};
use quipu_counting::series::Retention;
use quipu_counting::unique::hash;
use quipu_counting::window::{Frame, Unit, Zone};
use quipu_counting::{
    Acquire, Action, Add, Batch, Body, Cell, Condition, Ending, Expire, ExpireWhen, Expiry, GroupKind, Kind,
    Policy, Set, Slice, Told, Unique,
};
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;

use super::model::Model;

/// One request.
#[derive(Clone, Debug)]
pub struct Item {
    pub key: Vec<u8>,
    pub action: Action,
    pub payload: Vec<u8>,
}

/// What is decided as one.
#[derive(Clone, Debug)]
pub struct Ask {
    pub items: Vec<Item>,
    /// All or none of them; else there is one.
    pub is_group: bool,
    pub id: Option<u64>,
}

impl Ask {
    /// Adds it to a batch.
    pub fn push(&self, batch: &mut Batch) {
        let start = batch.requests.len();
        for (item, index) in self.items.iter().zip(0..) {
            let action = match item.action.payload() {
                Some(_) => item.action.with_payload(batch.intern(&item.payload)),
                None => item.action,
            };
            match self.id {
                Some(id) => batch.push_with_id(&item.key, action, &id.to_le_bytes(), index),
                None => batch.push(&item.key, action),
            };
        }
        if self.is_group {
            batch.group(start, GroupKind::Atomic);
        }
    }
}

/// The kinds of keys.
const NAMES: [&str; 8] = ["sum", "unique", "window", "hold", "visit", "month", "any", "rolled"];

/// All keys of a world.
pub fn keys(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|n| format!("{}:{n}", NAMES[n % NAMES.len()]).into_bytes()).collect()
}

/// Draws what is asked next.
pub struct Drawing<'a> {
    pub random: &'a mut SmallRng,
    pub model: &'a Model,
    pub keys: &'a [Vec<u8>],
    pub next_id: &'a mut u64,
    pub now_ms: u64,
    /// Items of one observation at most.
    pub items_max: usize,
}

impl Drawing<'_> {
    /// A new request or group, or one that was asked before.
    pub fn ask(&mut self) -> Ask {
        if self.random.random_ratio(1, 6)
            && let Some(known) = self.model.any_known(self.random)
        {
            let mut again = known.clone();
            if !again.is_group && self.random.random_ratio(1, 8) {
                // The same id for something else.
                again.items[0] = Item { key: again.items[0].key.clone(), ..self.item() };
            }
            return again;
        }
        let is_group = self.random.random_ratio(1, 6);
        let count = if is_group { self.random.random_range(1..4) } else { 1 };
        let items = (0..count).map(|_| self.item()).collect();
        let id = self.random.random_ratio(1, 3).then(|| {
            *self.next_id += 1;
            *self.next_id
        });
        Ask { items, is_group, id }
    }

    fn item(&mut self) -> Item {
        let Some(key) = self.keys.choose(self.random).cloned() else { unreachable!("worlds have keys") };
        let name = match self.random.random_ratio(1, 8) {
            true => NAMES[self.random.random_range(0..NAMES.len())].as_bytes(),
            false => key.split(|byte| *byte == b':').next().unwrap_or_default(),
        };
        let (action, payload) = match (self.random.random_range(0..16), name) {
            (0, _) => (Action::Read, Vec::new()),
            (1, _) if self.random.random_ratio(1, 4) => self.restored(),
            (1, _) => (self.ending(), Vec::new()),
            (2, _) => (Action::Expire(self.expire()), Vec::new()),
            (_, b"sum") => (self.plain(), Vec::new()),
            (3, _) => (self.plain(), Vec::new()),
            (4..14, b"rolled") => self.told(),
            (_, b"rolled") => self.slice(),
            (_, b"unique") => self.seen(),
            (4..6, b"visit") => {
                let at_ms = Some(self.moment());
                (Action::Observe { items: Default::default(), at_ms }, self.items())
            }
            (_, b"visit") => (observed(), self.items()),
            (4..6, b"window" | b"month") => self.late(),
            (_, b"window") => self.acquire(true),
            (_, b"month") => self.acquire(false),
            (4..10, _) => (self.end(&key), Vec::new()),
            _ => (self.reserve(), Vec::new()),
        };
        Item { key, action, payload }
    }

    fn small(&mut self) -> i64 {
        self.random.random_range(-20..30)
    }

    fn add(&mut self) -> Add {
        let mut add = Add::plain(self.small());
        if self.random.random_ratio(1, 3) {
            (add.min, add.max) = (-100, 100);
            add.saturate = self.random.random();
        }
        if self.random.random_ratio(1, 10) {
            add.expiry = Expiry::InIfNone(self.random.random_range(0..20_000));
        }
        add
    }

    fn plain(&mut self) -> Action {
        let value = self.small();
        match self.random.random_range(0..8) {
            0 => Action::Set(Set { value, expiry: Expiry::Clear, condition: Condition::Always }),
            2 => Action::Overwrite(Set { value, expiry: Expiry::Keep, condition: Condition::Exists }),
            1 => Action::Reset(Condition::Always),
            _ => Action::Add(self.add()),
        }
    }

    /// An addition that says what it belongs to.
    fn told(&mut self) -> (Action, Vec<u8>) {
        let users: Vec<String> = (0..self.items_max).map(|user| format!("user {user}")).collect();
        let mut dimensions = Vec::new();
        if self.random.random_ratio(1, 8) {
            dimensions.push(("hour", "1970-01-01T00"));
        }
        if self.random.random_ratio(3, 4) {
            dimensions.push(("tenant", *["a", "b", "c"].choose(self.random).unwrap_or(&"")));
        }
        if let (true, Some(user)) = (self.random.random_ratio(1, 2), users.choose(self.random)) {
            dimensions.push(("user", user.as_str()));
        }
        let mut payload = Vec::new();
        Told { dimensions, ..Told::default() }.put(&mut payload);
        (Action::Told { add: self.add(), told: Default::default() }, payload)
    }

    fn slice(&mut self) -> (Action, Vec<u8>) {
        let texts = ["tenant:a", "tenant:*", "hour:*,tenant:b", "user:user 1", "minute:*"];
        let mut payload = Vec::new();
        let slice = Slice::parse(texts.choose(self.random).unwrap_or(&texts[0])).unwrap_or_default();
        slice.put(&mut payload);
        (Action::Slice { slice: Default::default() }, payload)
    }

    fn rollups(&mut self) -> Option<Declared> {
        let all = [&["tenant"][..], &["user"], &["hour", "tenant"], &["minute", "user", "tenant"]];
        let some = all.into_iter().filter(|_| self.random.random_ratio(3, 4));
        let some: Vec<Vec<String>> =
            some.map(|names| names.iter().map(|name| (*name).to_owned()).collect()).collect();
        Declared::new(&some).unwrap_or_default()
    }

    fn ending(&mut self) -> Action {
        match self.random.random_range(0..3) {
            0 => Action::Delete(Condition::Always),
            1 => Action::Reset(Condition::Exists),
            _ => Action::Check(Condition::Exists),
        }
    }

    fn expire(&mut self) -> Expire {
        let expiry = match self.random.random_range(0..4) {
            0 => Expiry::Clear,
            1 => Expiry::At(5),
            _ => Expiry::In(self.random.random_range(1..30_000)),
        };
        Expire { expiry, when: ExpireWhen::Always }
    }

    fn items(&mut self) -> Vec<u8> {
        let count = match self.random.random_ratio(1, 5) {
            true => self.random.random_range(0..self.items_max),
            false => self.random.random_range(0..8),
        };
        let some = self.random.random_range(1..100_000u64);
        (0..count)
            .flat_map(|_| hash(&self.random.random_range(0..some).to_le_bytes()).to_le_bytes())
            .collect()
    }

    fn seen(&mut self) -> (Action, Vec<u8>) {
        let items = self.items();
        let mut unique = Unique::new();
        for hash in read_hashes(&items) {
            unique.observe(hash);
        }
        let mut sketch = Vec::new();
        unique.put(&mut sketch);
        let expiry = if self.random.random_ratio(1, 10) { Expiry::At(5) } else { Expiry::Keep };
        match self.random.random_range(0..12) {
            0 => (Action::Join { sketch: Default::default() }, sketch),
            1 => {
                let condition = Condition::Always;
                (Action::Replace { sketch: Default::default(), expiry, condition }, sketch)
            }
            _ => (observed(), items),
        }
    }

    fn acquire(&mut self, brings_frame: bool) -> (Action, Vec<u8>) {
        let mut payload = Vec::new();
        if brings_frame && self.random.random_ratio(3, 4) {
            let frame = match self.random.random_range(0..4) {
                0 => Frame::Fixed { span_ms: 60_000 },
                1 => Frame::Sliding { span_ms: 600_000, bucket_ms: 1_000 },
                _ => Frame::Sliding { span_ms: 10_000, bucket_ms: 1_000 },
            };
            put_frame(&mut payload, &frame);
        }
        let acquire = Acquire {
            amount: self.random.random_range(0..10),
            limit: self.random.random_ratio(7, 8).then_some(40),
            frame: Default::default(),
            is_soft: self.random.random_ratio(1, 8),
        };
        (Action::Acquire(acquire), payload)
    }

    /// Mostly not too long ago, now and then ahead.
    fn moment(&mut self) -> u64 {
        let ago_ms = self.random.random_range(0..90_000u64) >> self.random.random_range(0..8);
        let ahead_ms = if self.random.random_ratio(1, 10) { self.random.random_range(0..70_000) } else { 0 };
        (self.now_ms + ahead_ms).saturating_sub(ago_ms)
    }

    /// An addition that happened before.
    fn late(&mut self) -> (Action, Vec<u8>) {
        let told = Told { at_ms: Some(self.moment()), ..Told::default() };
        let mut payload = Vec::new();
        told.put(&mut payload);
        (Action::Told { add: self.add(), told: Default::default() }, payload)
    }

    /// What some counter is, for another or the same.
    fn restored(&mut self) -> (Action, Vec<u8>) {
        let key = self.keys.choose(self.random);
        let whole = key.and_then(|key| self.model.counters.get(key)).cloned().unwrap_or_default();
        let body = whole.body.map_or_else(|| Body::new(Shape::Sum), |body| (*body).clone());
        let (mut bytes, mut payload) = (Vec::new(), Vec::new());
        body.put(&mut bytes);
        let cell = whole.cell.unwrap_or(Cell::ABSENT);
        put_restored(&mut payload, cell.updated_at_ms, cell.value, &bytes);
        let (expiry, condition) = (Expiry::Keep, Condition::Always);
        (Action::Restore { whole: Default::default(), expiry, condition }, payload)
    }

    fn reserve(&mut self) -> Action {
        Action::Reserve(self.add(), self.random.random_range(1..60_000))
    }

    /// Ends a hold that is there, mostly.
    fn end(&mut self, key: &[u8]) -> Action {
        let whole = self.model.counters.get(key);
        let birth = whole.and_then(|whole| whole.cell).map_or(1, |cell| cell.birth);
        let numbers: Vec<u64> = match whole.and_then(|whole| whole.body.as_ref()) {
            Some(body) => body.holds.iter().map(|(number, _)| number).collect(),
            None => Vec::new(),
        };
        let Some(number) = numbers.choose(self.random).copied() else { return self.reserve() };
        let number = if self.random.random_ratio(1, 10) { number + 1 } else { number };
        let ending = match self.random.random_range(0..4) {
            0 => Ending::Void,
            1 => Ending::Commit(Some(self.random.random_range(-3..5))),
            _ => Ending::Commit(None),
        };
        Action::End { birth, number, ending }
    }

    /// A policy for one kind of keys, or none any more.
    pub fn policy(&mut self) -> (Vec<u8>, Option<Policy>) {
        let name = NAMES[self.random.random_range(0..NAMES.len())];
        let pattern = format!("{name}:*").into_bytes();
        if self.random.random_ratio(1, 4) {
            return (pattern, None);
        }
        let mut policy = match name {
            "visit" => by_time(Kind::Unique, self.frame()),
            "month" => by_time(Kind::Window, self.frame()),
            "any" if self.random.random() => by_time(Kind::Window, self.frame()),
            "any" => Policy { kind: Some(Kind::Unique), ..Policy::default() },
            _ => Policy { max: Some(60), min: Some(-60), ..Policy::default() },
        };
        policy.saturate = self.random.random_ratio(1, 4);
        policy.limit = self.random.random_ratio(1, 2).then_some(30);
        policy.soft = self.random.random_ratio(1, 4);
        let retention = Retention { minutes_ms: 600_000, hours_ms: 1 << 40, days_ms: 0 };
        policy.history = self.random.random_ratio(1, 3).then_some(retention);
        policy.ttl_ms = self.random.random_ratio(1, 6).then_some(20_000);
        policy.lateness_ms = self.random.random_ratio(1, 4).then_some(10_000);
        policy.audit_ms = self.random.random_ratio(1, 2).then_some(AUDIT_MS);
        if policy.kind != Some(Kind::Unique) && (name == "rolled" || self.random.random_ratio(1, 4)) {
            policy.rollups = self.rollups();
            let kept = [("minute", 60_000), ("hour", 3_600_000)];
            let kept = kept.into_iter().filter(|_| self.random.random_ratio(1, 2));
            policy.rollups_kept = CellsKept::new(kept).unwrap_or_default();
        }
        (pattern, Some(policy))
    }

    fn frame(&mut self) -> Frame {
        match self.random.random_range(0..4) {
            0 => Frame::Sliding { span_ms: 10_000, bucket_ms: 500 },
            1 => Frame::Sliding { span_ms: 3_600_000, bucket_ms: 60_000 },
            2 => Frame::Fixed { span_ms: 5_000 },
            _ => {
                // Many offsets: such a policy is large.
                let offsets: Vec<(i64, i32)> =
                    (0..300).map(|n| (n * 10_000_000_000, (n % 2) as i32 * 3_600)).collect();
                let zone = Zone::new("Somewhere/Else", offsets).unwrap_or_else(Zone::utc);
                Frame::Calendar { unit: Unit::Month, anchor: 31, zone }
            }
        }
    }
}

fn observed() -> Action {
    Action::Observe { items: Default::default(), at_ms: None }
}

/// Trails are kept for longer than any world lasts.
const AUDIT_MS: u64 = 30 * 86_400_000;

fn by_time(kind: Kind, frame: Frame) -> Policy {
    Policy { kind: Some(kind), window: Some(Keeping { frame, keep_ms: 60_000 }), ..Policy::default() }
}
