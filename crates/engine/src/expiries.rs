//! When counters in memory expire, without looking at all of them.
//!
//! A heap of (time, hash of the key). Every counter in memory that expires has an entry at or before its
//! expiry; an entry that comes too early is put back at the right time, one whose counter is gone is dropped.
//! So moving an expiry to a later time costs nothing here.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use quipu_counting::NEVER;

/// See the head of this file.
#[derive(Default)]
pub struct Expiries {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Expiries {
    /// A counter's expiry went from `before_ms` to `after_ms` ([`NEVER`] for none).
    pub fn changed(&mut self, hash: u32, before_ms: u64, after_ms: u64) {
        if after_ms < before_ms {
            self.heap.push(Reverse((after_ms, hash)));
        }
    }

    /// The next entry that is due.
    pub fn pop_due(&mut self, now_ms: u64) -> Option<u32> {
        match self.heap.peek() {
            Some(Reverse((at_ms, _))) if *at_ms <= now_ms => self.heap.pop().map(|Reverse((_, hash))| hash),
            _ => None,
        }
    }

    /// An entry came too early: its counter expires later.
    pub fn put_back(&mut self, hash: u32, at_ms: u64) {
        if at_ms != NEVER {
            self.heap.push(Reverse((at_ms, hash)));
        }
    }

    /// Whether so many entries are stale that starting over from the table is cheaper than keeping them.
    pub fn is_bloated(&self, counters: usize) -> bool {
        self.heap.len() > 4 * counters + 1024
    }

    /// Starts over.
    pub fn rebuild(&mut self, entries: impl Iterator<Item = (u64, u32)>) {
        self.heap = entries.map(Reverse).collect();
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.heap.clear();
    }
}
