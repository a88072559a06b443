//! What a counter is: five numbers.

/// The expiry of a counter that does not expire. The largest time, so that "expired" is one comparison.
pub const NEVER: u64 = u64::MAX;

/// One sum counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The count itself.
    pub value: i64,
    /// How many changes made this counter what it is, from 1 at its birth.
    pub version: u64,
    /// Entry time of the last change, UTC milliseconds.
    pub updated_at_ms: u64,
    /// Sequence of the partition at creation: a deleted and recreated counter has another birth, so a tag made
    /// of birth and version never matches a counter of the same name that lived before.
    pub birth: u64,
    /// When it stops existing, UTC milliseconds, or [`NEVER`].
    pub expires_at_ms: u64,
}

impl Cell {
    /// A counter that does not exist reads as this.
    pub const ABSENT: Cell = Cell { value: 0, version: 0, updated_at_ms: 0, birth: 0, expires_at_ms: NEVER };

    /// Whether the counter still exists at `now_ms`. Expiry is a function of the cell and the entry time alone;
    /// removing the bytes happens later and changes no answer.
    pub fn is_live(&self, now_ms: u64) -> bool {
        self.expires_at_ms > now_ms
    }
}
