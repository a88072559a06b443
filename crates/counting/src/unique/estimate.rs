//! From registers to a number: the estimator of Otmar Ertl ("New cardinality estimation algorithms for HyperLogLog
//! sketches", 2017), in which only matters how many registers hold which rank.
//!
//! The order of operations is that of Redis, because floating point numbers depend on it and the estimate shall be
//! the same to the last digit.

use super::REGISTERS;
use super::hash::RANK_MAX;

/// 1 / (2 ln 2).
const ALPHA: f64 = 0.721_347_520_444_481_7;

/// The highest estimate: counts are shown as signed integers.
const COUNT_MAX: u64 = i64::MAX as u64;

/// How many registers hold which rank. Whoever changes a register keeps it up, so that an estimate does not look at
/// all of them. As long as six bits can say, so that no rank needs a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Histogram([u16; 64]);

impl Histogram {
    /// Of a sketch whose registers are all 0.
    pub(super) fn new() -> Histogram {
        let mut counts = [0; 64];
        counts[0] = REGISTERS as u16;
        Histogram(counts)
    }

    /// Of all registers, four at a time. Counted apart, so that one count need not wait for the one before.
    pub(super) fn of(quartets: impl Iterator<Item = [u8; 4]>) -> Histogram {
        let mut apart = [[0u16; 64]; 4];
        for quartet in quartets {
            for (counts, rank) in apart.iter_mut().zip(quartet) {
                counts[usize::from(rank & 63)] += 1;
            }
        }
        Histogram(std::array::from_fn(|rank| apart.iter().map(|counts| counts[rank]).sum()))
    }

    /// So many registers have gone from one rank to another.
    pub(super) fn moved(&mut self, registers: u16, from: u8, to: u8) {
        self.0[usize::from(from & 63)] -= registers;
        self.0[usize::from(to & 63)] += registers;
    }

    /// Whether all registers are 0.
    pub(super) fn is_of_nothing(&self) -> bool {
        usize::from(self.0[0]) == REGISTERS
    }

    /// Whether a register holds what no item leads to.
    pub(super) fn is_beyond_ranks(&self) -> bool {
        self.0[usize::from(RANK_MAX) + 1..].iter().any(|count| *count > 0)
    }

    /// How many different items lead to such registers.
    pub(super) fn estimate(&self) -> u64 {
        let registers = REGISTERS as f64;
        let share = |rank: usize| f64::from(self.0[rank]) / registers;
        let highest = usize::from(RANK_MAX);
        let mut z = registers * tau((registers - f64::from(self.0[highest])) / registers);
        // Ranks above all that are held would only halve 0.
        let held = if z == 0.0 { self.0.iter().rposition(|count| *count > 0).unwrap_or(0) } else { highest };
        for count in self.0[1..highest].iter().take(held).rev() {
            z += f64::from(*count);
            z *= 0.5;
        }
        z += registers * sigma(share(0));
        // Registers that no items lead to may say more than fits, or infinity.
        ((ALPHA * registers * registers / z).round() as u64).min(COUNT_MAX)
    }
}

/// What registers at 0 stand for.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if z == before {
            return z;
        }
    }
}

/// What registers at the highest rank stand for.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if z == before {
            return z / 3.0;
        }
    }
}
