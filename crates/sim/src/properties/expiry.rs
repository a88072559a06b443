//! Expired counters are removed in the end, wherever they lie.

use quipu_counting::{Action, Batch, Unavailable};
use quipu_engine::Engine;

use crate::oracle::model::Model;
use crate::violation::{Invariant, Violation};

/// More than any expiry that a workload asks for.
const LONGEST_LIFE_MS: u64 = 100_000;
/// Rounds of chores within which everything must be gone.
const ROUNDS_MAX: u64 = 500;

/// Lets everything expire that ever will and waits for it to be removed. Returns what time it is then. The outer
/// error is the machine's.
pub fn check(engine: &Engine, model: &Model, now: u64) -> Result<Result<u64, Violation>, Unavailable> {
    let mut now = now + LONGEST_LIFE_MS;
    let eternal = model.counters.values().filter(|counter| counter.is_live(now)).count() as i64;
    let mut counted = 0;
    for _ in 0..ROUNDS_MAX {
        let mut batch = Batch::default();
        batch.push(b"", Action::Count);
        engine.run(&mut batch, now)?;
        counted = batch.replies[0].cell.value;
        if counted == eternal {
            return Ok(Ok(now));
        }
        engine.tend(now);
        now += 1_000;
    }
    let what = format!("{counted} counters are left long after all but {eternal} expired");
    Ok(Err(Violation::new(Invariant::Expiry, what)))
}
