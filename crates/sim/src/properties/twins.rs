//! Engines that recover from copies of one disk are alike: every value, version and birth, and every id.

use quipu_engine::CheckReport;

use crate::oracle::history::Found;
use crate::violation::{Invariant, Violation};

/// Compares what two engines say about everything.
pub fn check(first: (&Found, &CheckReport), second: (&Found, &CheckReport)) -> Result<(), Violation> {
    let differs = |what: String| Err(Violation::new(Invariant::Twins, what));
    let cells = first.0.cells.iter().zip(&second.0.cells).enumerate();
    if let Some((key, (one, other))) = cells.into_iter().find(|(_, (one, other))| one != other) {
        return differs(format!("key {key} is {one:?} in one engine and {other:?} in its twin"));
    }
    if first.0.policies != second.0.policies {
        return differs("the policies differ".to_string());
    }
    if first.1 != second.1 {
        return differs(format!("{:?} in one engine, {:?} in its twin", first.1, second.1));
    }
    Ok(())
}
