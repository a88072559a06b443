//! The dense form: 16384 registers of six bits, each register's lowest bit first, so that four fill three bytes.

use super::estimate::Histogram;
use super::hash::Trace;
use super::header::{Header, QUARTETS, Quartet};
use super::sparse::Sparse;
use super::{NotASketch, REGISTERS};

const BITS: u32 = 6;
const RANK_MASK: u32 = (1 << BITS) - 1;

/// A sketch in dense form.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Dense {
    pub(super) header: Header,
    /// Of the registers.
    pub(super) histogram: Histogram,
    registers: [Quartet; QUARTETS],
}

impl std::fmt::Debug for Dense {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Dense").field("histogram", &self.histogram).finish_non_exhaustive()
    }
}

impl Dense {
    /// What a sparse sketch becomes. Its count stays until a register changes.
    pub(super) fn of(sparse: &Sparse) -> Dense {
        let mut dense = Dense {
            header: sparse.header,
            histogram: sparse.histogram.clone(),
            registers: [[0; 3]; QUARTETS],
        };
        for trace in sparse.traces() {
            dense.put(trace);
        }
        dense
    }

    pub(super) fn read(header: Header, registers: &[Quartet; QUARTETS]) -> Result<Dense, NotASketch> {
        let histogram = Histogram::of(registers.iter().map(|quartet| ranks(*quartet)));
        if histogram.is_beyond_ranks() {
            return Err(NotASketch::Register);
        }
        Ok(Dense { header, histogram, registers: *registers })
    }

    pub(super) fn registers(&self) -> &[Quartet; QUARTETS] {
        &self.registers
    }

    /// What a register holds.
    pub(super) fn rank(&self, register: u16) -> u8 {
        let (quartet, shift) = place(register);
        (word(self.registers[quartet]) >> shift & RANK_MASK) as u8
    }

    /// Raises a register to a rank, if it is below.
    pub(super) fn raise(&mut self, trace: Trace) -> bool {
        let before = self.rank(trace.register);
        if before >= trace.rank {
            return false;
        }
        self.put(trace);
        self.histogram.moved(1, before, trace.rank);
        self.header.mark_stale();
        true
    }

    /// Raises every register to that of another.
    pub(super) fn merge(&mut self, other: &Dense) -> bool {
        let mut is_altered = false;
        for (quartet, theirs) in (0u16..).zip(&other.registers) {
            if self.registers[usize::from(quartet)] == *theirs {
                continue;
            }
            for (register, rank) in (quartet * 4..).zip(ranks(*theirs)) {
                is_altered |= self.raise(Trace { register, rank });
            }
        }
        is_altered
    }

    /// Writes a register, and nothing else.
    fn put(&mut self, trace: Trace) {
        let (quartet, shift) = place(trace.register);
        let others = word(self.registers[quartet]) & !(RANK_MASK << shift);
        let [first, second, third, _] = (others | u32::from(trace.rank) << shift).to_le_bytes();
        self.registers[quartet] = [first, second, third];
    }
}

/// The quartet of a register, and how far up in it the register stands.
fn place(register: u16) -> (usize, u32) {
    (usize::from(register) % REGISTERS / 4, u32::from(register) % 4 * BITS)
}

fn word([first, second, third]: Quartet) -> u32 {
    u32::from_le_bytes([first, second, third, 0])
}

fn ranks(quartet: Quartet) -> [u8; 4] {
    let word = word(quartet);
    [0, 1, 2, 3].map(|place| (word >> (place * BITS) & RANK_MASK) as u8)
}
