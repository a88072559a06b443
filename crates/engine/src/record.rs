//! How one counter lies in memory: a header, the cell in one of two forms, the key.
//!
//! ```text
//! header  u32   bits 0-8 key length - 1, bits 9-17 flags, bits 18-23 log epoch, bits 24-31 version low (compact)
//! compact       value i32, updated low u32, birth low u32, version high u16, updated high u8, birth high u8
//! wide          value i64, version u64, updated u64, birth u64, expires u64
//! key           1 to 512 bytes, then padding to a multiple of 4
//! ```
//!
//! With the header a compact record takes 20 bytes and its key, a wide one 44 and its key. Times in the compact
//! form are milliseconds since 2020 in 40 bits (until 2054), births are 40 bits, versions 24 bits; a cell that
//! expires or does not fit is wide. Records are written by little-endian copies into a byte slice, which
//! compiles to plain loads and stores.

use quipu_counting::{Cell, KEY_BYTES_MAX, NEVER};

/// Records start at multiples of this.
pub const UNIT: usize = 4;
const COMPACT_BYTES: usize = 20;
const WIDE_BYTES: usize = 44;
/// The smallest record.
pub const RECORD_BYTES_MIN: usize = (COMPACT_BYTES + 1).next_multiple_of(UNIT);
/// The largest record.
pub const RECORD_BYTES_MAX: usize = (WIDE_BYTES + KEY_BYTES_MAX).next_multiple_of(UNIT);
/// 2020-01-01T00:00:00Z.
const COMPACT_TIME_BASE_MS: u64 = 1_577_836_800_000;
const COMPACT_BITS: u32 = 40;
const COMPACT_VERSION_BITS: u32 = 24;

/// The cell of a record whose counter does not exist. Nobody reads it; it must only fit the compact form, which
/// is what most counters that are born in it need.
pub const NO_CELL: Cell = Cell { updated_at_ms: COMPACT_TIME_BASE_MS, ..Cell::ABSENT };

/// What is known of a record beside its cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// No flag.
    pub const NONE: Flags = Flags(0);
    /// The cell is in the wide form. Kept by this file alone.
    pub const WIDE: Flags = Flags(1 << 9);
    /// The counter does not exist: deleted and not yet gone from the cold store, or known to be absent there.
    pub const ABSENT: Flags = Flags(1 << 10);
    /// Changed since the last cut. The two dirty flags take turns, see `Partition::begin_cut`.
    pub const DIRTY_EVEN: Flags = Flags(1 << 11);
    /// The other one.
    pub const DIRTY_ODD: Flags = Flags(1 << 12);
    /// What it was at the running cut is already collected.
    pub const SAVED: Flags = Flags(1 << 13);
    /// The cold store may have no row of it, so a walk must show it from memory. Too often set is harmless.
    pub const NEWBORN: Flags = Flags(1 << 14);
    /// Used since the eviction hand last passed.
    pub const REFERENCED: Flags = Flags(1 << 15);
    /// The bytes are free.
    pub const DEAD: Flags = Flags(1 << 16);
    /// The counter has a body, see `bodies`.
    pub const BODY: Flags = Flags(1 << 17);
    /// Dirty for the running cut or for the next: must not be evicted.
    pub const DIRTY: Flags = Flags(Self::DIRTY_EVEN.0 | Self::DIRTY_ODD.0);
    const ALL: u32 = 0x1ff << 9;

    /// Both.
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// These without those.
    pub const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }

    /// Whether any of those is set.
    pub const fn any(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }
}

const EPOCH_SHIFT: u32 = 18;
const EPOCH_MASK: u32 = 0x3f << EPOCH_SHIFT;
/// Log epochs are 1 to this; 0 is none.
pub const EPOCHS: u8 = 63;
const VERSION_SHIFT: u32 = 24;
const VERSION_MASK: u32 = 0xff << VERSION_SHIFT;
const LENGTH_MASK: u32 = 0x1ff;

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    let mut array = [0; 4];
    array.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(array)
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    let mut array = [0; 8];
    array.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(array)
}

fn write<const N: usize>(bytes: &mut [u8], at: usize, array: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&array);
}

/// The flags of the record that starts `bytes`.
#[inline]
pub fn flags(bytes: &[u8]) -> Flags {
    Flags(read_u32(bytes, 0) & Flags::ALL)
}

/// Replaces the flags, except the form.
#[inline]
pub fn set_flags(bytes: &mut [u8], flags: Flags) {
    let kept = LENGTH_MASK | EPOCH_MASK | VERSION_MASK | Flags::WIDE.0;
    let header = read_u32(bytes, 0) & kept | flags.0 & !Flags::WIDE.0;
    write(bytes, 0, header.to_le_bytes());
}

/// The log epoch in which the record's id was last defined; 0 for none.
#[inline]
pub fn epoch(bytes: &[u8]) -> u8 {
    ((read_u32(bytes, 0) & EPOCH_MASK) >> EPOCH_SHIFT) as u8
}

/// Marks the id as defined in a log epoch.
#[inline]
pub fn set_epoch(bytes: &mut [u8], epoch: u8) {
    let header = read_u32(bytes, 0) & !EPOCH_MASK | u32::from(epoch) << EPOCH_SHIFT;
    write(bytes, 0, header.to_le_bytes());
}

fn key_start(header: u32) -> usize {
    if header & Flags::WIDE.0 != 0 { WIDE_BYTES } else { COMPACT_BYTES }
}

/// The key.
#[inline]
pub fn key(bytes: &[u8]) -> &[u8] {
    let header = read_u32(bytes, 0);
    let start = key_start(header);
    &bytes[start..start + (header & LENGTH_MASK) as usize + 1]
}

/// How many bytes the record takes, padding included.
pub fn size(bytes: &[u8]) -> usize {
    let header = read_u32(bytes, 0);
    (key_start(header) + (header & LENGTH_MASK) as usize + 1).next_multiple_of(UNIT)
}

/// How many bytes a record of this key and cell takes.
pub fn size_for(key_bytes: usize, cell: &Cell) -> usize {
    let fixed = if fits_compact(cell) { COMPACT_BYTES } else { WIDE_BYTES };
    (fixed + key_bytes).next_multiple_of(UNIT)
}

fn fits_compact(cell: &Cell) -> bool {
    i32::try_from(cell.value).is_ok()
        && cell.version >> COMPACT_VERSION_BITS == 0
        && (cell.updated_at_ms.wrapping_sub(COMPACT_TIME_BASE_MS) >> COMPACT_BITS == 0)
        && cell.birth >> COMPACT_BITS == 0
        && cell.expires_at_ms == NEVER
}

/// The cell, whether or not the counter exists.
#[inline]
pub fn cell(bytes: &[u8]) -> Cell {
    if read_u32(bytes, 0) & Flags::WIDE.0 != 0 {
        Cell {
            value: read_u64(bytes, 4) as i64,
            version: read_u64(bytes, 12),
            updated_at_ms: read_u64(bytes, 20),
            birth: read_u64(bytes, 28),
            expires_at_ms: read_u64(bytes, 36),
        }
    } else {
        Cell {
            value: i64::from(read_u32(bytes, 4) as i32),
            version: u64::from(bytes[3]) | u64::from(bytes[16]) << 8 | u64::from(bytes[17]) << 16,
            updated_at_ms: COMPACT_TIME_BASE_MS
                + (u64::from(read_u32(bytes, 8)) | u64::from(bytes[18]) << 32),
            birth: u64::from(read_u32(bytes, 12)) | u64::from(bytes[19]) << 32,
            expires_at_ms: NEVER,
        }
    }
}

/// Writes a new record. `bytes` must be at least [`size_for`] long.
pub fn create(bytes: &mut [u8], key: &[u8], new: &Cell, flags: Flags) {
    debug_assert!((1..=KEY_BYTES_MAX).contains(&key.len()));
    let form = if fits_compact(new) { 0 } else { Flags::WIDE.0 };
    let header = (key.len() as u32 - 1) | flags.0 & !Flags::WIDE.0 | form;
    write(bytes, 0, header.to_le_bytes());
    let start = key_start(header);
    bytes[start..start + key.len()].copy_from_slice(key);
    write_cell(bytes, new);
}

/// Replaces the cell if it fits the record's form. A wide record takes any cell.
#[inline]
#[must_use]
pub fn try_set_cell(bytes: &mut [u8], new: &Cell) -> bool {
    if read_u32(bytes, 0) & Flags::WIDE.0 == 0 && !fits_compact(new) {
        return false;
    }
    write_cell(bytes, new);
    true
}

fn write_cell(bytes: &mut [u8], new: &Cell) {
    if read_u32(bytes, 0) & Flags::WIDE.0 != 0 {
        write(bytes, 4, new.value.to_le_bytes());
        write(bytes, 12, new.version.to_le_bytes());
        write(bytes, 20, new.updated_at_ms.to_le_bytes());
        write(bytes, 28, new.birth.to_le_bytes());
        write(bytes, 36, new.expires_at_ms.to_le_bytes());
    } else {
        let updated = new.updated_at_ms.wrapping_sub(COMPACT_TIME_BASE_MS);
        let version = (new.version as u32).to_le_bytes();
        bytes[3] = version[0];
        write(bytes, 4, (new.value as i32).to_le_bytes());
        write(bytes, 8, (updated as u32).to_le_bytes());
        write(bytes, 12, (new.birth as u32).to_le_bytes());
        write(bytes, 16, [version[1], version[2], (updated >> 32) as u8, (new.birth >> 32) as u8]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_790_000_000_000;

    #[test]
    fn cells_come_back_in_either_form() {
        let small = Cell { value: -7, version: 1, updated_at_ms: NOW, birth: 9, expires_at_ms: NEVER };
        for (cell, wide) in [
            (small, false),
            (
                Cell { value: i64::from(i32::MAX), version: (1 << 24) - 1, birth: (1 << 40) - 1, ..small },
                false,
            ),
            (Cell { value: i64::from(i32::MAX) + 1, ..small }, true),
            (Cell { version: 1 << 24, ..small }, true),
            (Cell { birth: 1 << 40, ..small }, true),
            (Cell { updated_at_ms: 5, ..small }, true),
            (Cell { updated_at_ms: COMPACT_TIME_BASE_MS + (1 << 40), ..small }, true),
            (Cell { expires_at_ms: NOW + 1, ..small }, true),
            (
                Cell {
                    value: i64::MIN,
                    version: u64::MAX,
                    birth: u64::MAX,
                    updated_at_ms: u64::MAX,
                    expires_at_ms: 0,
                },
                true,
            ),
        ] {
            let mut bytes = vec![0xaa; RECORD_BYTES_MAX];
            create(&mut bytes, b"counter:post:1234567:like:2026-02-23", &cell, Flags::NEWBORN);
            assert_eq!(super::cell(&bytes), cell);
            assert_eq!(flags(&bytes).any(Flags::WIDE), wide, "{cell:?}");
            assert!(flags(&bytes).any(Flags::NEWBORN) && !flags(&bytes).any(Flags::DEAD));
            assert_eq!(size(&bytes), if wide { 80 } else { 56 });
            assert_eq!(size(&bytes), size_for(36, &cell));
            set_epoch(&mut bytes, 63);
            set_flags(&mut bytes, Flags::DIRTY_ODD.with(Flags::ABSENT));
            assert_eq!((epoch(&bytes), super::cell(&bytes)), (63, cell));
            assert_eq!(key(&bytes), b"counter:post:1234567:like:2026-02-23");
            assert_eq!(try_set_cell(&mut bytes, &Cell { expires_at_ms: NOW, ..small }), wide);
            assert!(try_set_cell(&mut bytes, &small));
            assert_eq!(super::cell(&bytes), small);
        }
    }

    #[test]
    fn a_record_without_counter_is_compact() {
        assert!(fits_compact(&NO_CELL));
    }

    #[test]
    fn keys_of_every_length() {
        for length in 1..=KEY_BYTES_MAX {
            let key = vec![length as u8; length];
            let mut bytes = vec![0; RECORD_BYTES_MAX];
            create(&mut bytes, &key, &Cell::ABSENT, Flags::ABSENT);
            assert_eq!(super::key(&bytes), key);
            assert!(size(&bytes) <= RECORD_BYTES_MAX);
        }
    }
}
