//! The bytes of a run of neighbouring registers that hold the same.
//!
//! ```text
//! 00llllll            l + 1 registers hold 0          at most 64
//! 01llllll llllllll   l + 1 registers hold 0          at most 16384
//! 1vvvvvll            l + 1 registers hold v + 1      at most 4, at most 32
//! ```

/// How many zeros fit into one byte.
const SHORT_ZEROS_MAX: usize = 64;
/// How many registers that do not hold 0 fit into a run.
pub(super) const RANKS_MAX: usize = 4;
/// The highest rank a run can say.
pub(super) const RANK_MAX: u8 = 32;

/// Where a run begins.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Start {
    /// Its first byte.
    pub(super) at: u16,
    /// Its first register.
    pub(super) register: u16,
}

/// A run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) at: usize,
    pub(super) first: usize,
    /// How many registers.
    pub(super) length: usize,
    /// What they hold.
    pub(super) rank: u8,
    /// How many bytes it takes.
    pub(super) width: usize,
}

impl Run {
    /// The run that begins at a byte, if it is all there.
    pub(super) fn read(bytes: &[u8], at: usize, first: usize) -> Option<Run> {
        let byte = *bytes.get(at)?;
        let (length, rank, width) = match byte {
            0x00..=0x3f => (usize::from(byte) + 1, 0, 1),
            0x40..=0x7f => (usize::from(u16::from_be_bytes([byte & 0x3f, *bytes.get(at + 1)?])) + 1, 0, 2),
            0x80.. => (usize::from(byte & 3) + 1, (byte >> 2 & 31) + 1, 1),
        };
        Some(Run { at, first, length, rank, width })
    }

    pub(super) fn end(&self) -> usize {
        self.first + self.length
    }

    pub(super) fn start(&self) -> Start {
        Start { at: self.at as u16, register: self.first as u16 }
    }
}

/// A run of registers that do not hold 0.
pub(super) fn ranks(length: usize, rank: u8) -> u8 {
    0x80 | (rank - 1) << 2 | (length - 1) as u8
}

/// The runs that one is cut into: zeros, a rank, zeros.
#[derive(Default)]
pub(super) struct Cut {
    bytes: [u8; 5],
    length: usize,
}

impl Cut {
    /// Adds a run, unless it is empty.
    pub(super) fn push_run(&mut self, length: usize, rank: u8) {
        match (length, rank) {
            (0, _) => {}
            (1..=SHORT_ZEROS_MAX, 0) => self.push(length as u8 - 1),
            (_, 0) => {
                let [high, low] = (length as u16 - 1).to_be_bytes();
                self.push(0x40 | high);
                self.push(low);
            }
            _ => self.push(ranks(length, rank)),
        }
    }

    fn push(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}
