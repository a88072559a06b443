//! The exact form: the hashes of the items, in the order in which they came, from which a sketch can be made as
//! Redis would have made it.

use std::cmp::Reverse;

use super::estimate::Histogram;
use super::hash::{REGISTER_MASK, Trace};
use super::{EXACT_MAX, REGISTERS, Seen};

/// A small set of hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Exact {
    /// No two are equal.
    hashes: Vec<u64>,
}

impl Exact {
    /// From hashes as they were stored; `None` if they are too many, or not different.
    pub(super) fn read(hashes: impl ExactSizeIterator<Item = u64>) -> Option<Exact> {
        if hashes.len() > EXACT_MAX {
            return None;
        }
        let hashes: Vec<u64> = hashes.collect();
        let mut sorted = hashes.clone();
        sorted.sort_unstable();
        sorted.is_sorted_by(|one, next| one < next).then_some(Exact { hashes })
    }

    pub(super) fn hashes(&self) -> &[u64] {
        &self.hashes
    }

    pub(super) fn len(&self) -> usize {
        self.hashes.len()
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.hashes.capacity() * size_of::<u64>()
    }

    /// Adds what [`Exact::look`] said is new.
    pub(super) fn push(&mut self, hash: u64) {
        self.hashes.push(hash);
    }

    /// Whether an item is new, to the set and to the sketch that would come of it.
    pub(super) fn look(&self, hash: u64) -> Seen {
        match rank_beside(&self.hashes, hash) {
            Beside::Itself => Seen::default(),
            Beside::Rank(rank) => Seen { is_new: true, is_altered: Trace::of(hash).rank > rank },
        }
    }

    /// The set with another's items behind its own, and whether one of those raises a register. May have more than
    /// [`EXACT_MAX`].
    pub(super) fn union(&self, other: &Exact) -> (Exact, bool) {
        let mut united = self.clone();
        let mut is_altered = false;
        for hash in &other.hashes {
            let seen = united.look(*hash);
            is_altered |= seen.is_altered;
            if seen.is_new {
                united.push(*hash);
            }
        }
        (united, is_altered)
    }

    /// What the items come to in a sketch, the lowest register first.
    pub(super) fn traces(&self) -> Vec<Trace> {
        let mut traces: Vec<Trace> = self.hashes.iter().map(|hash| Trace::of(*hash)).collect();
        traces.sort_unstable_by_key(|trace| (trace.register, Reverse(trace.rank)));
        traces.dedup_by_key(|trace| trace.register);
        traces
    }

    /// That of the sketch that would come of the items.
    pub(super) fn histogram(&self) -> Histogram {
        let mut histogram = Histogram::new();
        // Two items in one register are rare, and only then the others are looked at.
        let mut taken = [0u64; REGISTERS / 64];
        for (at, hash) in self.hashes.iter().enumerate() {
            let trace = Trace::of(*hash);
            let word = &mut taken[usize::from(trace.register) / 64];
            let bit = 1 << (trace.register % 64);
            let before = match *word & bit {
                0 => 0,
                _ => match rank_beside(&self.hashes[..at], *hash) {
                    Beside::Rank(rank) => rank,
                    Beside::Itself => continue,
                },
            };
            *word |= bit;
            if trace.rank > before {
                histogram.moved(1, before, trace.rank);
            }
        }
        histogram
    }
}

/// What of some hashes falls into the register of a hash.
enum Beside {
    /// The hash is one of them.
    Itself,
    /// It is not; the others in its register lead to this rank.
    Rank(u8),
}

fn rank_beside(hashes: &[u64], hash: u64) -> Beside {
    let mut rank = 0;
    for known in hashes {
        if (known ^ hash) & REGISTER_MASK == 0 {
            if *known == hash {
                return Beside::Itself;
            }
            rank = rank.max(Trace::of(*known).rank);
        }
    }
    Beside::Rank(rank)
}
