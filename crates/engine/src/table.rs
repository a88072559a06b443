//! The hot table of one partition: every counter that is in memory.
//!
//! An index of 8-byte slots (32 bits of hash, 32 bits of record number) with linear probing points into an
//! arena of chunks that are filled from front to back. There is no allocation per counter. A record that grows
//! or dies leaves dead bytes behind; [`Table::sweep_chunk`] copies what is still wanted out of a chunk and
//! frees it whole, which is also how clean counters are evicted.
//!
//! The slot of a hash is `hash * slots / 2^32`: monotone in the hash, so the index may have any size (it grows
//! by a quarter, not by doubling), and a walk in hash order is a walk over the index that survives growth.

use quipu_counting::Cell;

use crate::prefetch::prefetch;
use crate::record::{self, Flags, RECORD_BYTES_MAX, UNIT};

/// A chunk is one allocation of the arena: large enough that bookkeeping is nothing, small enough that a
/// partition with few counters wastes little. Record numbers are 16 bits of chunk and 16 bits of unit.
pub const CHUNK_BYTES: usize = 1 << 18;
const UNITS_PER_CHUNK: u32 = (CHUNK_BYTES / UNIT) as u32;
const CHUNKS_MAX: usize = 1 << 16;
const SLOTS_MIN: usize = 64;
/// Above 85 % a probe for an absent key gets long; a quarter more slots brings it down to 68 %.
const LOAD_MAX_PERCENT: usize = 85;

const _: () = assert!(CHUNK_BYTES >= 64 * RECORD_BYTES_MAX);
const _: () = assert!(UNITS_PER_CHUNK as usize * CHUNKS_MAX == 1 << 32);

/// The number of a record: its place in the arena. 0 is no record.
pub type RecordNumber = u32;

/// See the head of this file.
pub struct Table {
    /// `hash << 32 | record number`, 0 for empty.
    slots: Vec<u64>,
    /// Occupied slots.
    len: usize,
    chunks: Vec<Chunk>,
    /// The chunk that is being filled.
    current: usize,
    /// Chunks without bytes.
    spare: Vec<usize>,
    /// How often a chunk was opened.
    opened: u64,
}

#[derive(Default)]
struct Chunk {
    /// Empty when the chunk is spare.
    bytes: Box<[u8]>,
    /// Filled up to here.
    used: usize,
    /// Bytes of records that are not dead.
    live: usize,
    /// Records that are dirty.
    dirty: u32,
    /// Records that the cold store may have no row of.
    newborn: u32,
    /// The how-manieth chunk it was when it was opened.
    serial: u64,
}

/// What to do with a record when its chunk is swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Copy it elsewhere.
    Stay,
    /// Copy it elsewhere and forget that it was used.
    StayUnreferenced,
    /// Drop it.
    Leave,
}

impl Table {
    /// An empty table.
    pub fn new() -> Table {
        Table {
            slots: vec![0; SLOTS_MIN],
            len: 0,
            chunks: Vec::new(),
            current: 0,
            spare: Vec::new(),
            opened: 0,
        }
    }

    /// Records that are not dead, tombstones included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes allocated.
    pub fn allocated_bytes(&self) -> usize {
        self.slots.len() * 8 + (self.chunks.len() - self.spare.len()) * CHUNK_BYTES
    }

    /// Number of chunks, spare ones included.
    pub fn chunk_count(&self) -> usize {
        self.chunks.len()
    }

    /// Starts loading the slot of a hash.
    #[inline]
    pub fn prefetch_slot(&self, hash: u32) {
        prefetch(&self.slots[self.home(hash)]);
    }

    /// Starts loading the record a hash most likely belongs to.
    #[inline]
    pub fn prefetch_record(&self, hash: u32) {
        let mut at = self.home(hash);
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return;
            }
            if (slot >> 32) as u32 == hash {
                return self.prefetch_number(slot as u32);
            }
            at = self.after(at);
        }
    }

    /// Starts loading a record.
    #[inline]
    pub fn prefetch_number(&self, number: RecordNumber) {
        let (chunk, start) = place(number);
        let bytes = &self.chunks[chunk].bytes;
        prefetch(&bytes[start]);
        // A record of a usual key spans two lines.
        if let Some(next) = bytes.get(start + 56) {
            prefetch(next);
        }
    }

    #[inline]
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.slots.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    /// The record of a key.
    #[inline]
    pub fn find(&self, hash: u32, key: &[u8]) -> Option<RecordNumber> {
        let mut at = self.home(hash);
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return None;
            }
            if (slot >> 32) as u32 == hash && self.key(slot as u32) == key {
                return Some(slot as u32);
            }
            at = self.after(at);
        }
    }

    /// Calls `visit` with every record of a hash (nearly always one).
    pub fn find_by_hash(&self, hash: u32, mut visit: impl FnMut(RecordNumber)) {
        let mut at = self.home(hash);
        while self.slots[at] != 0 {
            if (self.slots[at] >> 32) as u32 == hash {
                visit(self.slots[at] as u32);
            }
            at = self.after(at);
        }
    }

    #[inline]
    fn bytes(&self, number: RecordNumber) -> &[u8] {
        let (chunk, start) = place(number);
        &self.chunks[chunk].bytes[start..]
    }

    #[inline]
    fn bytes_mut(&mut self, number: RecordNumber) -> &mut [u8] {
        let (chunk, start) = place(number);
        &mut self.chunks[chunk].bytes[start..]
    }

    /// The key of a record.
    #[inline]
    pub fn key(&self, number: RecordNumber) -> &[u8] {
        record::key(self.bytes(number))
    }

    /// The flags of a record.
    #[inline]
    pub fn flags(&self, number: RecordNumber) -> Flags {
        record::flags(self.bytes(number))
    }

    /// The cell of a record, `None` for a tombstone.
    #[inline]
    pub fn cell(&self, number: RecordNumber) -> Option<Cell> {
        let bytes = self.bytes(number);
        if record::flags(bytes).any(Flags::ABSENT) { None } else { Some(record::cell(bytes)) }
    }

    /// Replaces flags; keeps the counts of dirty and of newborn records.
    #[inline]
    pub fn set_flags(&mut self, number: RecordNumber, flags: Flags) {
        let (chunk, start) = place(number);
        let chunk = &mut self.chunks[chunk];
        let bytes = &mut chunk.bytes[start..];
        let before = record::flags(bytes);
        record::set_flags(bytes, flags);
        let now_in = |count: u32, counted: Flags| {
            count + u32::from(flags.any(counted)) - u32::from(before.any(counted))
        };
        chunk.dirty = now_in(chunk.dirty, Flags::DIRTY);
        chunk.newborn = now_in(chunk.newborn, Flags::NEWBORN);
    }

    /// The log epoch in which the record's number was last defined.
    #[inline]
    pub fn epoch(&self, number: RecordNumber) -> u8 {
        record::epoch(self.bytes(number))
    }

    /// See [`Table::epoch`].
    #[inline]
    pub fn set_epoch(&mut self, number: RecordNumber, epoch: u8) {
        record::set_epoch(self.bytes_mut(number), epoch);
    }

    /// Adds a record for a key that has none.
    pub fn insert(&mut self, hash: u32, key: &[u8], cell: Option<Cell>, flags: Flags) -> RecordNumber {
        if (self.len + 1) * 100 > self.slots.len() * LOAD_MAX_PERCENT {
            self.grow();
        }
        let flags = if cell.is_none() { flags.with(Flags::ABSENT) } else { flags };
        let number = self.create(key, &cell.unwrap_or(record::NO_CELL), flags);
        let mut at = self.home(hash);
        while self.slots[at] != 0 {
            at = self.after(at);
        }
        self.slots[at] = u64::from(hash) << 32 | u64::from(number);
        self.len += 1;
        number
    }

    /// Makes the record's cell this one (or a tombstone). The record moves if the cell needs the wide form;
    /// the number it has then is returned.
    #[inline]
    pub fn set_cell(&mut self, hash: u32, number: RecordNumber, cell: Option<Cell>) -> RecordNumber {
        let flags = self.flags(number);
        let Some(cell) = cell else {
            self.set_flags(number, flags.with(Flags::ABSENT));
            return number;
        };
        if !record::try_set_cell(self.bytes_mut(number), &cell) {
            return self.relocate(hash, number, &cell, flags.without(Flags::ABSENT));
        }
        if flags.any(Flags::ABSENT) {
            self.set_flags(number, flags.without(Flags::ABSENT));
        }
        number
    }

    fn relocate(&mut self, hash: u32, number: RecordNumber, cell: &Cell, flags: Flags) -> RecordNumber {
        let key = self.key(number).to_vec();
        let moved = self.create(&key, cell, flags);
        let at = self.slot_of(hash, number);
        self.slots[at] = u64::from(hash) << 32 | u64::from(moved);
        self.bury(number);
        moved
    }

    fn slot_of(&self, hash: u32, number: RecordNumber) -> usize {
        let wanted = u64::from(hash) << 32 | u64::from(number);
        let mut at = self.home(hash);
        while self.slots[at] != wanted {
            debug_assert_ne!(self.slots[at], 0, "record {number} has no slot");
            at = self.after(at);
        }
        at
    }

    /// Takes a record out of the table.
    pub fn remove(&mut self, hash: u32, number: RecordNumber) {
        let mut hole = self.slot_of(hash, number);
        self.bury(number);
        self.len -= 1;
        // Close the gap: whatever was pushed behind its home by the removed one moves up.
        let mut at = hole;
        loop {
            at = self.after(at);
            let slot = self.slots[at];
            if slot == 0 {
                break;
            }
            let home = self.home((slot >> 32) as u32);
            let stays = if hole <= at { hole < home && home <= at } else { hole < home || home <= at };
            if !stays {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = 0;
    }

    fn bury(&mut self, number: RecordNumber) {
        let flags = self.flags(number);
        self.set_flags(number, flags.without(Flags::DIRTY).without(Flags::NEWBORN).with(Flags::DEAD));
        let (chunk, start) = place(number);
        let chunk = &mut self.chunks[chunk];
        chunk.live -= record::size(&chunk.bytes[start..]);
    }

    fn grow(&mut self) {
        let size = self.slots.len() + self.slots.len() / 4;
        let old = std::mem::replace(&mut self.slots, vec![0; size]);
        for slot in old {
            if slot != 0 {
                let mut at = self.home((slot >> 32) as u32);
                while self.slots[at] != 0 {
                    at = self.after(at);
                }
                self.slots[at] = slot;
            }
        }
    }

    fn create(&mut self, key: &[u8], cell: &Cell, flags: Flags) -> RecordNumber {
        let size = record::size_for(key.len(), cell);
        if self.chunks.get(self.current).is_none_or(|chunk| chunk.used + size > chunk.bytes.len()) {
            self.current = self.open_chunk();
        }
        let chunk = &mut self.chunks[self.current];
        let start = chunk.used;
        record::create(&mut chunk.bytes[start..], key, cell, flags);
        chunk.used += size;
        chunk.live += size;
        chunk.dirty += u32::from(flags.any(Flags::DIRTY));
        chunk.newborn += u32::from(flags.any(Flags::NEWBORN));
        (self.current as u32) * UNITS_PER_CHUNK + (start / UNIT) as u32
    }

    fn open_chunk(&mut self) -> usize {
        let index = self.spare.pop().unwrap_or_else(|| {
            self.chunks.push(Chunk::default());
            self.chunks.len() - 1
        });
        assert!(
            index < CHUNKS_MAX,
            "a partition's arena is limited to 16 GiB; the memory budget keeps it below"
        );
        self.opened += 1;
        let chunk = &mut self.chunks[index];
        chunk.bytes = vec![0; CHUNK_BYTES].into_boxed_slice();
        chunk.serial = self.opened;
        // Number 0 means "no record", so the first unit of the first chunk stays unused.
        chunk.used = if index == 0 { UNIT } else { 0 };
        index
    }

    /// The chunks opened after the one of this serial, oldest first, with their serials. A record only ever moves to
    /// the newest chunk, so a walk in this order that takes turns with writers sees every record that is there all
    /// the time; one that moves may be seen twice.
    pub fn chunks_after(&self, serial: u64) -> Vec<(u64, usize)> {
        let in_use = self.chunks.iter().enumerate().filter(|(_, chunk)| !chunk.bytes.is_empty());
        let mut found: Vec<(u64, usize)> =
            in_use.map(|(index, chunk)| (chunk.serial, index)).filter(|(found, _)| *found > serial).collect();
        found.sort_unstable();
        found
    }

    /// Which chunk this is by the order of opening; another one once it was swept and opened again.
    pub fn chunk_serial(&self, chunk: usize) -> u64 {
        self.chunks[chunk].serial
    }

    /// Whether any record of the chunk is dirty.
    pub fn chunk_is_dirty(&self, chunk: usize) -> bool {
        self.chunks[chunk].dirty > 0
    }

    /// Whether the cold store may have no row of some record of the chunk.
    pub fn chunk_has_newborns(&self, chunk: usize) -> bool {
        self.chunks[chunk].newborn > 0
    }

    /// Of how many records the cold store may have no row.
    pub fn newborns(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.newborn)).sum()
    }

    /// Shows the counters of a chunk that exist and of which the cold store may have no row.
    pub fn visit_newborns(&self, chunk: usize, mut visit: impl FnMut(&[u8], Cell)) {
        if self.chunk_has_newborns(chunk) {
            self.walk_chunk(chunk, |_, flags, bytes| {
                // The dead are not newborn.
                if flags.any(Flags::NEWBORN) && !flags.any(Flags::ABSENT) {
                    visit(record::key(bytes), record::cell(bytes));
                }
            });
        }
    }

    /// Bytes that sweeping this chunk could free at most if every clean record left, or `None` for the chunk
    /// that is being filled and for spare ones.
    pub fn chunk_reclaimable(&self, chunk: usize, record_bytes: usize) -> Option<usize> {
        let state = &self.chunks[chunk];
        if chunk == self.current || state.bytes.is_empty() {
            return None;
        }
        Some(state.used - state.live.min(state.dirty as usize * record_bytes))
    }

    /// Every record of a chunk that is not dead, in the order of its bytes. A list, because whoever asks changes them.
    pub fn chunk_records(&self, chunk: usize) -> Vec<RecordNumber> {
        let mut records = Vec::new();
        self.walk_chunk(chunk, |number, flags, _| {
            if !flags.any(Flags::DEAD) {
                records.push(number);
            }
        });
        records
    }

    fn walk_chunk(&self, index: usize, mut visit: impl FnMut(RecordNumber, Flags, &[u8])) {
        let chunk = &self.chunks[index];
        let mut at = if index == 0 { UNIT } else { 0 };
        while at < chunk.used {
            let bytes = &chunk.bytes[at..];
            visit((index as u32) * UNITS_PER_CHUNK + (at / UNIT) as u32, record::flags(bytes), bytes);
            at += record::size(bytes);
        }
    }

    /// Copies what stays out of the chunk and frees it. Record numbers of what stays change. `hash` gives the
    /// hash of a key; `fate` is asked with flags, key and expiry. Returns how many records left.
    pub fn sweep_chunk(
        &mut self,
        index: usize,
        hash: impl Fn(&[u8]) -> u32,
        mut fate: impl FnMut(Flags, &[u8], u64) -> Fate,
    ) -> usize {
        debug_assert_ne!(index, self.current);
        let mut left = 0;
        for number in self.chunk_records(index) {
            let flags = self.flags(number);
            let key_hash = hash(self.key(number));
            match fate(flags, self.key(number), record::cell(self.bytes(number)).expires_at_ms) {
                Fate::Leave => {
                    self.remove(key_hash, number);
                    left += 1;
                }
                Fate::Stay => self.carry_over(key_hash, number, flags),
                Fate::StayUnreferenced => self.carry_over(key_hash, number, flags.without(Flags::REFERENCED)),
            }
        }
        let chunk = &mut self.chunks[index];
        debug_assert_eq!((chunk.live, chunk.dirty, chunk.newborn), (0, 0, 0));
        *chunk = Chunk::default();
        self.spare.push(index);
        left
    }

    fn carry_over(&mut self, hash: u32, number: RecordNumber, flags: Flags) {
        let cell = record::cell(self.bytes(number));
        self.relocate(hash, number, &cell, flags);
    }

    /// Forgets every id of the log: the next use of each record defines it again.
    pub fn reset_epochs(&mut self) {
        for chunk in 0..self.chunks.len() {
            for number in self.chunk_records(chunk) {
                self.set_epoch(number, 0);
            }
        }
    }

    /// Visits records in about the order of their hashes from `from` on, at least `count` of them if there are
    /// so many; returns the hash to go on from, or `None` at the end. Whatever happens to the table between two
    /// calls, a record that is there all the time is visited.
    pub fn walk_from(&self, from: u32, count: usize, mut visit: impl FnMut(RecordNumber)) -> Option<u32> {
        let steps_max = (count * 16).max(4096);
        let (mut visited, mut steps) = (0, 0);
        for at in self.home(from)..self.slots.len() {
            let slot = self.slots[at];
            let hash = (slot >> 32) as u32;
            if slot == 0 {
                // Everything whose home is here or before has been seen: a run never crosses an empty slot.
                if (visited >= count || steps >= steps_max) && at + 1 < self.slots.len() {
                    let next = ((at as u64 + 1) << 32).div_ceil(self.slots.len() as u64);
                    return Some(next as u32);
                }
            } else if hash >= from && self.home(hash) <= at {
                visit(slot as u32);
                visited += 1;
            }
            steps += 1;
        }
        // The last run may go on at the front.
        for (at, slot) in self.slots.iter().enumerate().take_while(|(_, slot)| **slot != 0) {
            if self.home((slot >> 32) as u32) > at {
                visit(*slot as u32);
            }
        }
        None
    }
}

#[inline]
fn place(number: RecordNumber) -> (usize, usize) {
    ((number / UNITS_PER_CHUNK) as usize, (number % UNITS_PER_CHUNK) as usize * UNIT)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rand::rngs::SmallRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// A poor hash on purpose: long runs, equal hashes, wrap-around.
    fn hash(key: &[u8]) -> u32 {
        let sum = key.iter().fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
        if sum % 3 == 0 { u32::MAX - sum % 4 } else { sum.wrapping_mul(0x9e37_79b1) }
    }

    fn cell(value: i64) -> Cell {
        Cell {
            value,
            version: 1,
            updated_at_ms: 1_790_000_000_000,
            birth: 1,
            expires_at_ms: quipu_counting::NEVER,
        }
    }

    #[test]
    fn behaves_like_a_map_through_growth_removal_relocation_and_sweeps() {
        for seed in 0..20 {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut table = Table::new();
            let mut model: HashMap<Vec<u8>, i64> = HashMap::new();
            for step in 0..6_000 {
                let key = format!("k{}", random.random_range(0..1_500)).into_bytes();
                let found = table.find(hash(&key), &key);
                assert_eq!(found.is_some(), model.contains_key(&key), "seed {seed} step {step}");
                let value = if random.random_bool(0.1) { i64::MAX - step } else { step };
                match (found, random.random_range(0..10)) {
                    (Some(number), 0..3) => {
                        table.remove(hash(&key), number);
                        model.remove(&key);
                    }
                    (Some(number), _) => {
                        assert_eq!(table.cell(number), Some(cell(model[&key])));
                        table.set_cell(hash(&key), number, Some(cell(value)));
                        model.insert(key, value);
                    }
                    (None, _) => {
                        table.insert(hash(&key), &key, Some(cell(value)), Flags::NONE);
                        model.insert(key, value);
                    }
                }
                if step % 500 == 499 && table.chunk_count() > 1 {
                    let chunk = random.random_range(0..table.chunk_count());
                    if table.chunk_reclaimable(chunk, 64).is_some() {
                        table.sweep_chunk(chunk, hash, |_, key, _| {
                            if key.len() % 2 == 0 {
                                model.remove(key);
                                Fate::Leave
                            } else {
                                Fate::Stay
                            }
                        });
                    }
                }
            }
            assert_eq!(table.len(), model.len());
            let mut walked = HashMap::new();
            let mut from = Some(0);
            while let Some(next) = from {
                from = table.walk_from(next, 10, |number| {
                    let value = table.cell(number).unwrap().value;
                    assert_eq!(walked.insert(table.key(number).to_vec(), value), None, "visited twice");
                });
            }
            assert_eq!(walked, model);
        }
    }

    #[test]
    fn newborns_are_counted_wherever_they_lie() {
        let mut table = Table::new();
        let mut random = SmallRng::seed_from_u64(7);
        let mut model: HashMap<Vec<u8>, bool> = HashMap::new();
        for step in 0..60_000 {
            let key = format!("counter:{:040}", random.random_range(0..20_000)).into_bytes();
            let is_newborn = random.random_bool(0.3);
            let flags = if is_newborn { Flags::NEWBORN } else { Flags::NONE };
            match table.find(hash(&key), &key) {
                None => drop(table.insert(hash(&key), &key, Some(cell(step)), flags)),
                Some(number) if step % 5 == 0 => {
                    table.remove(hash(&key), number);
                    model.remove(&key);
                    continue;
                }
                Some(number) => {
                    table.set_flags(number, flags);
                    // A large one moves.
                    table.set_cell(hash(&key), number, Some(cell(step << (step % 40))));
                }
            }
            model.insert(key, is_newborn);
            let chunk = random.random_range(0..table.chunk_count());
            if step % 1_000 == 999 && table.chunk_reclaimable(chunk, 64).is_some() {
                table.sweep_chunk(chunk, hash, |flags, key, _| match flags.any(Flags::NEWBORN) {
                    true => Fate::Stay,
                    false => {
                        model.remove(key);
                        Fate::Leave
                    }
                });
            }
        }
        let mut found = Vec::new();
        (0..table.chunk_count())
            .for_each(|chunk| table.visit_newborns(chunk, |key, _| found.push(key.to_vec())));
        found.sort();
        let mut expected: Vec<_> =
            model.into_iter().filter(|(_, is_newborn)| *is_newborn).map(|(key, _)| key).collect();
        expected.sort();
        assert_eq!(table.newborns(), found.len() as u64);
        assert!(table.chunk_count() > 2 && found == expected);
    }

    #[test]
    fn sweeping_frees_chunks_and_keeps_what_stays() {
        let mut table = Table::new();
        let key = |n: u32| format!("counter:{n:032}").into_bytes();
        for n in 0..40_000 {
            table.insert(hash(&key(n)), &key(n), Some(cell(i64::from(n))), Flags::NONE);
        }
        let before = table.allocated_bytes();
        for chunk in 0..table.chunk_count() {
            if table.chunk_reclaimable(chunk, 64).is_some() {
                table.sweep_chunk(
                    chunk,
                    hash,
                    |_, key, _| if key[39] == b'7' { Fate::Stay } else { Fate::Leave },
                );
            }
        }
        assert!(table.allocated_bytes() < before / 2);
        for n in (7..30_000).step_by(10) {
            let number = table.find(hash(&key(n)), &key(n)).unwrap();
            assert_eq!(table.cell(number), Some(cell(i64::from(n))));
        }
    }
}
