//! From an item to its hash, and from the hash to the trace it leaves in a sketch: MurmurHash64A with the seed and
//! the split of bits that Redis has.

/// How many bits of a hash say the register, the lowest ones.
pub(super) const REGISTER_BITS: u32 = 14;
/// The same as a mask.
pub(super) const REGISTER_MASK: u64 = (1 << REGISTER_BITS) - 1;
/// The highest rank: no bit but the one that ends the count is set.
pub(super) const RANK_MAX: u8 = (64 - REGISTER_BITS + 1) as u8;

const SEED: u64 = 0xadc8_3b19;
const MULTIPLIER: u64 = 0xc6a4_a793_5bd1_e995;
const SHIFT: u32 = 47;

/// The hash by which an item is known. It is public and has no key: who wants to can find items that collide.
pub fn hash(item: &[u8]) -> u64 {
    let (words, rest) = item.as_chunks::<8>();
    let mut hash = SEED ^ (item.len() as u64).wrapping_mul(MULTIPLIER);
    for word in words {
        let mixed = u64::from_le_bytes(*word).wrapping_mul(MULTIPLIER);
        hash ^= (mixed ^ mixed >> SHIFT).wrapping_mul(MULTIPLIER);
        hash = hash.wrapping_mul(MULTIPLIER);
    }
    if !rest.is_empty() {
        let word = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        hash = (hash ^ word).wrapping_mul(MULTIPLIER);
    }
    hash = (hash ^ hash >> SHIFT).wrapping_mul(MULTIPLIER);
    hash ^ hash >> SHIFT
}

/// What a sketch keeps of an item: that this register is at least this high.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trace {
    /// Which register; below 16384.
    pub(super) register: u16,
    /// The place of the lowest bit that is set in the rest of the hash: 1 for half of all items, 2 for a quarter.
    pub(super) rank: u8,
}

impl Trace {
    pub(super) fn of(hash: u64) -> Trace {
        let rest = hash >> REGISTER_BITS | 1 << (64 - REGISTER_BITS);
        Trace { register: (hash & REGISTER_MASK) as u16, rank: rest.trailing_zeros() as u8 + 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::{RANK_MAX, Trace, hash};

    /// Where a running Redis puts these: lengths around those of a word.
    #[test]
    fn items_go_where_redis_puts_them() {
        for (item, register, rank) in [
            ("", 5938, 2),
            ("a", 12711, 2),
            ("ab", 719, 1),
            ("abcdefg", 5634, 2),
            ("abcdefgh", 1383, 1),
            ("abcdefghi", 6903, 1),
        ] {
            assert_eq!(Trace::of(hash(item.as_bytes())), Trace { register, rank }, "{item}");
        }
    }

    #[test]
    fn hashes_leave_traces() {
        for (hash, register, rank) in [
            (0, 0, RANK_MAX),
            (u64::MAX, 16383, 1),
            (1 << 14, 0, 1),
            (1 << 15 | 5, 5, 2),
            (1 << 63, 0, 50),
            (0x3fff, 16383, RANK_MAX),
        ] {
            assert_eq!(Trace::of(hash), Trace { register, rank }, "{hash:#x}");
        }
    }
}
