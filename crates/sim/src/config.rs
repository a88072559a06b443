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

/// The choices of one world.
#[derive(Clone, Debug)]
pub struct Config {
    pub durability: Durability,
    pub partitions: u16,
    pub segment_bytes: u64,
    pub buffer_limit_bytes: u64,
    pub log_tail_bytes: u64,
    pub window_ms: u64,
    /// Whether counters do not fit into memory.
    pub is_tight: bool,
    pub keys: usize,
    pub key_bytes_min: usize,
    pub key_bytes_max: usize,
    pub steps: usize,
    /// Whether counters expire.
    pub expires: bool,
    /// Whether the clock steps back now and then. Nothing expires then, and nothing crashes: what time it is
    /// after a restart is not part of the contract.
    pub clock_wanders: bool,
    pub producers: u8,
    /// Clients that wait for their replies at the same time.
    pub clients: usize,
}

impl Config {
    /// Draws one.
    pub fn draw(random: &mut SmallRng) -> Config {
        let is_tight = random.random_ratio(1, 10);
        let clock_wanders = !is_tight && random.random_ratio(1, 12);
        let partitions =
            if is_tight { 1 << random.random_range(0..2) } else { 1 << random.random_range(0..4) };
        let segment_kib = if is_tight { 64 } else { 4 << random.random_range(0..4) };
        let segment_bytes = segment_kib << 10;
        let key_bytes_max = match segment_kib {
            _ if is_tight => 512,
            4 => 24,
            8 => 100,
            _ => [16, 64, 300][random.random_range(0..3)],
        };
        let durability = match random.random_range(0..8) {
            0 => Durability::Interval { ms: 20 },
            1 => Durability::None,
            _ => Durability::Sync,
        };
        Config {
            durability,
            partitions,
            segment_bytes,
            buffer_limit_bytes: 1 << random.random_range(8..18),
            log_tail_bytes: segment_bytes * random.random_range(1..8),
            window_ms: if clock_wanders { 1 << 40 } else { 1_000 * 10u64.pow(random.random_range(0..5)) },
            is_tight,
            keys: if is_tight { 1_500 * usize::from(partitions) } else { 1 + random.random_range(0..40) },
            key_bytes_min: if is_tight { 400 } else { 1 },
            key_bytes_max,
            steps: if is_tight { random.random_range(80..200) } else { random.random_range(30..260) },
            expires: !clock_wanders && random.random_ratio(1, 2),
            clock_wanders,
            producers: 3,
            clients: random.random_range(1..5),
        }
    }

    /// The most a batch may take in the log of such a world; see `record_bytes` in the engine.
    pub fn batch_bytes_max(&self) -> usize {
        let overhead = 1024 + usize::from(self.partitions) * 33;
        self.segment_bytes as usize - 128 - overhead
    }

    /// The engine's options, with secrets and hash seed from `random`.
    pub fn options(&self, random: &mut SmallRng) -> Options {
        let partition_bytes = if self.is_tight { TIGHT_PARTITION_BYTES } else { ROOMY_PARTITION_BYTES };
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
            },
            entropy: Some(entropy),
            ..Options::default()
        }
    }
}
