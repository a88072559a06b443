//! What differs from world to world: sizes, modes, and what happens how often.

use quipu_engine::Options;
use quipu_store::{Durability, LogOptions};
use rand::Rng;
use rand::rngs::SmallRng;

/// Memory of a partition that has more counters than it can hold: two chunks of records and a bit.
const TIGHT_PARTITION_BYTES: u64 = 600 << 10;
/// Memory of a partition that never evicts.
const ROOMY_PARTITION_BYTES: u64 = 64 << 20;
/// When the worlds begin.
pub const START_MS: u64 = 1_790_000_000_000;

/// What a world is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Few counters and many crashes.
    Usual,
    /// Counters do not fit into memory.
    Tight,
    /// One life of the engine goes through hundreds of segments, so that what is numbered by segments comes around.
    Long,
    /// The clock steps back now and then. Nothing expires then, and nothing crashes: what time it is after a
    /// restart is not part of the contract.
    WanderingClock,
}

/// The choices of one world.
#[derive(Clone, Debug)]
pub struct Config {
    pub kind: Kind,
    pub durability: Durability,
    pub partitions: u16,
    pub segment_bytes: u64,
    pub buffer_limit_bytes: u64,
    pub log_tail_bytes: u64,
    pub window_ms: u64,
    pub keys: usize,
    pub key_bytes_min: usize,
    pub key_bytes_max: usize,
    pub steps: usize,
    /// Whether counters expire.
    pub expires: bool,
    pub producers: u8,
    /// Clients that wait for their replies at the same time.
    pub clients: usize,
}

impl Config {
    /// Draws one.
    pub fn draw(random: &mut SmallRng) -> Config {
        let kind = match random.random_range(0..100) {
            0..10 => Kind::Tight,
            10 if random.random_ratio(1, 3) => Kind::Long,
            11..19 => Kind::WanderingClock,
            _ => Kind::Usual,
        };
        let durability = match random.random_range(0..8) {
            0 => Durability::Interval { ms: 20 },
            1 => Durability::None,
            _ => Durability::Sync,
        };
        let partitions = 1 << random.random_range(0..if kind == Kind::Tight { 2 } else { 4 });
        let segment_kib = match kind {
            Kind::Tight => 64,
            Kind::Long => 4,
            Kind::Usual | Kind::WanderingClock => 4 << random.random_range(0..4),
        };
        let (key_bytes_min, key_bytes_max) = match segment_kib {
            4 => (1, 24),
            8 => (1, 100),
            64 => (400, 512),
            _ => (1, [16, 64, 300][random.random_range(0..3)]),
        };
        let (keys, steps) = match kind {
            Kind::Tight => (1_500 * usize::from(partitions), random.random_range(80..200)),
            Kind::Long => (400, 3_000),
            Kind::Usual | Kind::WanderingClock => (random.random_range(1..41), random.random_range(30..260)),
        };
        let window_ms = match kind {
            Kind::WanderingClock => 1 << 40,
            _ => 1_000 * 10u64.pow(random.random_range(0..5)),
        };
        let segment_bytes = segment_kib << 10;
        Config {
            kind,
            durability,
            partitions,
            segment_bytes,
            buffer_limit_bytes: 1 << random.random_range(8..18),
            log_tail_bytes: segment_bytes * random.random_range(1..8),
            window_ms,
            keys,
            key_bytes_min,
            key_bytes_max,
            steps,
            expires: kind != Kind::WanderingClock && random.random_ratio(1, 2),
            producers: 3,
            clients: random.random_range(1..5),
        }
    }

    /// Whether something may go wrong in this step.
    pub fn has_faults(&self, step: usize) -> bool {
        match self.kind {
            Kind::Usual | Kind::Tight => true,
            Kind::Long => step + 100 > self.steps,
            Kind::WanderingClock => false,
        }
    }

    /// The most a batch may take in the log of such a world; see `record_bytes` in the engine.
    pub fn batch_bytes_max(&self) -> usize {
        let overhead = 1024 + usize::from(self.partitions) * 33;
        self.segment_bytes as usize - 128 - overhead
    }

    /// The engine's options, with secrets and hash seed from `random`.
    pub fn options(&self, random: &mut SmallRng) -> Options {
        let partition_bytes =
            if self.kind == Kind::Tight { TIGHT_PARTITION_BYTES } else { ROOMY_PARTITION_BYTES };
        let mut entropy = [0; 40];
        random.fill(&mut entropy[..]);
        Options {
            durability: self.durability,
            memory_bytes: partition_bytes * u64::from(self.partitions),
            partitions: self.partitions,
            id_window_ms: self.window_ms,
            log_tail_bytes: self.log_tail_bytes,
            log: LogOptions {
                segment_bytes: self.segment_bytes,
                buffer_limit_bytes: self.buffer_limit_bytes,
                ..LogOptions::default()
            },
            entropy: Some(entropy),
            ..Options::default()
        }
    }
}
