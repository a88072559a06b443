//! What clients ask: batches in the words of the simulation, with keys and ids as numbers.

use quipu_counting::slot::{partition, slot};
use quipu_counting::{Action, Batch, Condition, GroupKind};

/// Index of a key in the [`Universe`].
pub type Key = usize;
/// A request id.
pub type Id = u64;
/// A producer.
pub type Producer = u8;

/// All keys a world may use.
#[derive(Debug)]
pub struct Universe {
    /// Their bytes.
    pub keys: Vec<Vec<u8>>,
    /// How many partitions there are.
    pub partitions: u16,
}

impl Universe {
    /// `count` keys of `shortest` to `longest` bytes.
    pub fn new(count: usize, shortest: usize, longest: usize, partitions: u16) -> Universe {
        let key = |n: usize| {
            let mut key = format!("k{n}:").into_bytes();
            let length = shortest + n.wrapping_mul(7919) % (longest - shortest + 1);
            key.resize(length.max(key.len()), b'x');
            key
        };
        Universe { keys: (0..count).map(key).collect(), partitions }
    }

    /// The partition of a key.
    pub fn partition(&self, key: Key) -> u16 {
        partition(slot(&self.keys[key]), self.partitions)
    }

    /// The partition of a producer's session.
    pub fn producer_partition(&self, producer: Producer) -> u16 {
        partition(slot(&producer_name(producer)), self.partitions)
    }

    /// The number of a key.
    pub fn find(&self, bytes: &[u8]) -> Option<Key> {
        let digits = bytes.strip_prefix(b"k")?.split(|byte| *byte == b':').next()?;
        let key: Key = std::str::from_utf8(digits).ok()?.parse().ok()?;
        (self.keys.get(key).map(Vec::as_slice) == Some(bytes)).then_some(key)
    }
}

/// The name of a producer.
pub fn producer_name(producer: Producer) -> Vec<u8> {
    format!("producer-{producer}").into_bytes()
}

fn id_name(id: Id) -> Vec<u8> {
    format!("request-{id}").into_bytes()
}

/// One item of a batch: what is decided as one.
#[derive(Clone, Debug, PartialEq)]
pub enum Unit {
    /// One request.
    Single { key: Key, action: Action, id: Option<Id> },
    /// An all-or-none group.
    Atomic { items: Vec<(Key, Action)>, id: Option<Id> },
    /// An all-or-none group of a producer.
    Session { producer: Producer, epoch: u64, sequence: u64, items: Vec<(Key, Action)> },
    /// Requests that run only if all of these conditions hold.
    Guarded { checks: Vec<(Key, Condition)>, items: Vec<(Key, Action)> },
    /// How many counters there are.
    Count,
    /// Delete all counters.
    Clear,
}

impl Unit {
    /// How many requests it consists of, hence replies.
    pub fn requests(&self) -> usize {
        match self {
            Unit::Single { .. } | Unit::Count | Unit::Clear => 1,
            Unit::Atomic { items, .. } | Unit::Session { items, .. } => items.len(),
            Unit::Guarded { checks, items } => checks.len() + items.len(),
        }
    }

    /// Whether a retry of it is recognized.
    pub fn is_recognized(&self) -> bool {
        match self {
            Unit::Single { id, .. } | Unit::Atomic { id, .. } => id.is_some(),
            Unit::Session { .. } => true,
            Unit::Guarded { .. } | Unit::Count | Unit::Clear => false,
        }
    }

    /// The partitions it touches.
    pub fn touched(&self, universe: &Universe) -> Touched {
        let of_items = |items: &[(Key, Action)]| {
            items.iter().fold(Touched::default(), |touched, (key, _)| touched.with(universe.partition(*key)))
        };
        match self {
            Unit::Single { key, .. } => Touched::default().with(universe.partition(*key)),
            Unit::Atomic { items, .. } => of_items(items),
            Unit::Session { producer, items, .. } => {
                of_items(items).with(universe.producer_partition(*producer))
            }
            Unit::Guarded { checks, items } => {
                let with =
                    |touched: Touched, (key, _): &(Key, Condition)| touched.with(universe.partition(*key));
                checks.iter().fold(of_items(items), with)
            }
            Unit::Count | Unit::Clear => (0..universe.partitions).fold(Touched::default(), Touched::with),
        }
    }

    /// An upper bound of what it takes in a batch's bytes.
    pub fn bytes(&self, universe: &Universe) -> usize {
        let key = |key: &Key| universe.keys[*key].len() + 32;
        match self {
            Unit::Single { key: one, .. } => key(one),
            Unit::Atomic { items, .. } | Unit::Session { items, .. } => {
                items.iter().map(|(one, _)| key(one)).sum::<usize>() + 32
            }
            Unit::Guarded { checks, items } => {
                checks.iter().map(|(one, _)| key(one)).chain(items.iter().map(|(one, _)| key(one))).sum()
            }
            Unit::Count | Unit::Clear => 0,
        }
    }
}

/// A set of partitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched(u64);

impl Touched {
    /// With this one.
    #[must_use]
    pub fn with(self, partition: u16) -> Touched {
        Touched(self.0 | 1 << partition)
    }

    /// With those.
    #[must_use]
    pub fn and(self, other: Touched) -> Touched {
        Touched(self.0 | other.0)
    }

    /// Whether they have one in common.
    pub fn meets(self, other: Touched) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether this one is in it.
    pub fn has(self, partition: u16) -> bool {
        self.0 >> partition & 1 == 1
    }
}

/// One batch of one client.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ask {
    /// In command order.
    pub units: Vec<Unit>,
}

impl Ask {
    /// In the engine's form.
    pub fn batch(&self, universe: &Universe) -> Batch {
        let mut batch = Batch::default();
        for unit in &self.units {
            push(&mut batch, unit, universe);
        }
        batch
    }

    /// The partitions it touches.
    pub fn touched(&self, universe: &Universe) -> Touched {
        self.units.iter().fold(Touched::default(), |touched, unit| touched.and(unit.touched(universe)))
    }
}

fn push(batch: &mut Batch, unit: &Unit, universe: &Universe) {
    let start = batch.requests.len();
    match unit {
        Unit::Single { key, action, id: Some(id) } => {
            batch.push_with_id(&universe.keys[*key], *action, &id_name(*id), 0);
        }
        Unit::Single { key, action, id: None } => {
            batch.push(&universe.keys[*key], *action);
        }
        Unit::Atomic { items, id } => {
            for (index, (key, action)) in items.iter().enumerate() {
                match id {
                    Some(id) => {
                        batch.push_with_id(&universe.keys[*key], *action, &id_name(*id), index as u32)
                    }
                    None => batch.push(&universe.keys[*key], *action),
                };
            }
            batch.group(start, GroupKind::Atomic);
        }
        Unit::Session { producer, epoch, sequence, items } => {
            for (key, action) in items {
                batch.push(&universe.keys[*key], *action);
            }
            let producer = batch.intern(&producer_name(*producer));
            batch.group(start, GroupKind::Session { producer, epoch: *epoch, sequence: *sequence });
        }
        Unit::Guarded { checks, items } => {
            for (key, condition) in checks {
                batch.push(&universe.keys[*key], Action::Check(*condition));
            }
            batch.group(start, GroupKind::Guard { until: start + unit.requests() });
            for (key, action) in items {
                batch.push(&universe.keys[*key], *action);
            }
        }
        Unit::Count => {
            batch.push(b"", Action::Count);
        }
        Unit::Clear => {
            batch.push(b"", Action::Clear);
        }
    }
}
