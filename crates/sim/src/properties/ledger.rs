//! The sum of all counters is what the ledger says, in every partition.

use quipu_engine::{CheckReport, Engine};
use quipu_store::cold::ColdError;

use crate::violation::{Invariant, Violation};

/// Compares sums and numbers with the ledger. The outer error is the machine's, the inner one the engine's.
pub fn check(engine: &Engine) -> Result<Result<CheckReport, Violation>, ColdError> {
    let report = engine.verify()?;
    Ok(match report.problems.is_empty() {
        true => Ok(report),
        false => Err(Violation::new(Invariant::Ledger, report.problems.join("; "))),
    })
}
