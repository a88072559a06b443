//! What the simulation looks for.

use std::fmt;

/// The invariants, one property each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// Every acknowledged change survives, as the durability mode promises.
    Survival,
    /// A retry is answered as the first time and changes nothing.
    ExactlyOnce,
    /// The sum of the counters is what the ledger says, in every partition.
    Ledger,
    /// Bounds are never crossed.
    Bounds,
    /// Engines that recover from copies of one disk are alike.
    Twins,
    /// What was shown is not taken back.
    NothingShownIsTakenBack,
    /// A batch happened as a whole or not at all.
    Atomicity,
    /// A scan returns every key that exists all the time, and none that does not.
    Scans,
    /// Damage is reported, never skipped.
    Damage,
    /// Replies are those of the model.
    Answers,
    /// Expired counters are removed in the end.
    Expiry,
    /// What needs no luck succeeds: opening after a crash, batches on a healthy machine.
    Progress,
}

/// An invariant that was broken, and how it showed.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// What was seen.
    pub what: String,
}

impl Violation {
    /// A violation.
    pub fn new(invariant: Invariant, what: impl Into<String>) -> Violation {
        Violation { invariant, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?}: {}", self.invariant, self.what)
    }
}
