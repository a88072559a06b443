//! Looking at an engine from outside: everything it would tell a client.

use std::collections::BTreeMap;

use quipu_counting::{Action, Batch, Cell, Counters, Unavailable};
use quipu_engine::Engine;

use crate::ask::Universe;
use crate::oracle::history::Found;

/// Keys read in one batch.
const KEYS_PER_BATCH: usize = 200;

/// Reads every key and all policies.
pub fn everything(engine: &Engine, universe: &Universe, now: u64) -> Result<Found, Unavailable> {
    let mut cells: Vec<Option<Cell>> = Vec::with_capacity(universe.keys.len());
    for keys in universe.keys.chunks(KEYS_PER_BATCH) {
        let mut batch = Batch::default();
        for key in keys {
            batch.push(key, Action::Read);
        }
        engine.run(&mut batch, now)?;
        cells.extend(batch.replies.iter().map(|reply| reply.exists.then_some(reply.cell)));
    }
    let policies: BTreeMap<_, _> =
        engine.policies()?.iter().map(|(pattern, policy)| (pattern.to_vec(), policy.clone())).collect();
    Ok(Found { cells, policies })
}
