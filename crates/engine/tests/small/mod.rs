//! An engine whose memory is soon full, and what is asked of it.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

use std::path::Path;
use std::sync::Arc;

use quipu_counting::{Action, Batch, Condition, Counters, Expiry, Set};
use quipu_engine::{Engine, Options};
use quipu_store::Durability;

/// Later than any clock of a machine that runs this, so that the keeper's clock decides nothing.
pub const NOW: u64 = 2_400_000_000_000;
pub const PARTITIONS: u16 = 4;

pub fn open(path: &Path) -> Arc<Engine> {
    let options = Options {
        memory_bytes: 32 << 20,
        partitions: PARTITIONS,
        log_tail_bytes: 16 << 20,
        durability: Durability::None,
        ..Options::default()
    };
    Engine::open(path, options).unwrap()
}

pub fn run(engine: &Engine, actions: impl IntoIterator<Item = (Vec<u8>, Action)>) {
    let mut batch = Batch::default();
    for (key, action) in actions {
        batch.push(&key, action);
    }
    let offset = engine.run(&mut batch, NOW).unwrap();
    engine.settle(offset).unwrap();
}

pub fn set(value: i64) -> Action {
    Action::Set(Set { value, expiry: Expiry::Keep, condition: Condition::Always })
}

pub fn checkpoint_all(engine: &Engine) {
    (0..PARTITIONS).for_each(|partition| engine.checkpoint(partition).unwrap());
}
