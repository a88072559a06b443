//! One simulated file: what readers see, what the platter holds, and the changes in between.
//!
//! ```text
//!   write ──> cached  (readers see it)            sync ──> durable = durable + unsynced
//!        └──> unsynced, in order                  power loss ──> durable + some of unsynced
//! ```
//! What survives is decided per 512-byte sector, the unit a drive writes whole: each sector ends at some
//! moment of its own history, so one write tears, and two writes to different sectors are reordered freely.

use std::collections::BTreeMap;

use rand::Rng;
use rand::rngs::StdRng;

/// The unit a drive writes as a whole.
const SECTOR_BYTES: usize = 512;

/// How much of what was not synced survives a power loss.
#[derive(Clone, Copy, Debug)]
pub(super) enum Survival {
    Nothing,
    Everything,
    /// Each sector and folder operation for itself.
    Chance,
}

impl Survival {
    /// Mostly chance; the two extremes often enough to be met by short runs.
    pub(super) fn draw(random: &mut StdRng) -> Survival {
        match random.random_range(0..8) {
            0 => Survival::Nothing,
            1 => Survival::Everything,
            _ => Survival::Chance,
        }
    }
}

#[derive(Clone, Debug)]
enum Change {
    Write { position: usize, bytes: Vec<u8> },
    SetLength(usize),
}

/// One file, whatever its names.
#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    pub(super) cached: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Change>,
    pub(super) locked: bool,
}

impl Inode {
    pub(super) fn write(&mut self, position: usize, bytes: &[u8]) {
        overlay(&mut self.cached, position, bytes);
        self.unsynced.push(Change::Write { position, bytes: bytes.to_vec() });
    }

    pub(super) fn set_length(&mut self, length: usize) {
        self.cached.resize(length, 0);
        self.unsynced.push(Change::SetLength(length));
    }

    pub(super) fn sync(&mut self) {
        for change in self.unsynced.drain(..) {
            match change {
                Change::Write { position, bytes } => overlay(&mut self.durable, position, &bytes),
                Change::SetLength(length) => self.durable.resize(length, 0),
            }
        }
    }

    /// A sync that fails, as on Linux: some sectors reached the platter, the rest is marked clean all the
    /// same. Readers still see it, later syncs succeed without it, and a power loss takes it away.
    pub(super) fn fail_sync(&mut self, random: &mut StdRng) {
        self.settle(random, Survival::Chance);
    }

    /// The power is gone: readers see what the platter holds.
    pub(super) fn lose_power(&mut self, random: &mut StdRng, survival: Survival) {
        self.settle(random, survival);
        self.cached.clone_from(&self.durable);
        self.locked = false;
    }

    /// Changes one byte where it lies, behind everybody's back.
    pub(super) fn flip(&mut self, position: usize) {
        self.cached[position] ^= 0x40;
        if let Some(byte) = self.durable.get_mut(position) {
            *byte ^= 0x40;
        }
    }

    fn settle(&mut self, random: &mut StdRng, survival: Survival) {
        match survival {
            Survival::Nothing => self.unsynced.clear(),
            Survival::Everything => self.sync(),
            Survival::Chance => self.settle_by_chance(random),
        }
    }

    fn settle_by_chance(&mut self, random: &mut StdRng) {
        let mut writes_left: BTreeMap<usize, usize> = BTreeMap::new();
        for change in &self.unsynced {
            if let Change::Write { position, bytes } = change {
                for sector in sectors(*position, bytes.len()) {
                    *writes_left.entry(sector).or_default() += 1;
                }
            }
        }
        // A page in memory holds all writes before it: a sector keeps the first few, never only a late one.
        for count in writes_left.values_mut() {
            *count = random.random_range(0..=*count);
        }
        for change in std::mem::take(&mut self.unsynced) {
            match change {
                Change::SetLength(length) if random.random() => self.durable.resize(length, 0),
                Change::SetLength(_) => {}
                Change::Write { position, bytes } => {
                    for sector in sectors(position, bytes.len()) {
                        let Some(left @ 1..) = writes_left.get_mut(&sector) else { continue };
                        *left -= 1;
                        let start = (sector * SECTOR_BYTES).max(position);
                        let end = ((sector + 1) * SECTOR_BYTES).min(position + bytes.len());
                        overlay(&mut self.durable, start, &bytes[start - position..end - position]);
                    }
                }
            }
        }
    }
}

fn sectors(position: usize, length: usize) -> std::ops::Range<usize> {
    position / SECTOR_BYTES..(position + length).div_ceil(SECTOR_BYTES)
}

fn overlay(content: &mut Vec<u8>, position: usize, bytes: &[u8]) {
    let end = position + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[position..end].copy_from_slice(bytes);
}
