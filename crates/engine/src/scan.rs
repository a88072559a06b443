//! Walking over all keys in pages.
//!
//! A partition is walked in memory first, in the order of hashes (only what the cold store does not have, unless
//! memory has everything), then in the cold store in the order of keys. In this order nothing that exists all
//! the time is missed: a key that was in the cold store when the walk passed it in memory is still there later.
//!
//! The cursor is `1 + (place << 32 | payload)` with place = 4 * partition + part; it stays below 2^53 for clients
//! that keep it in a double. In memory the payload is the hash to go on from. In the cold store it names a
//! remembered key; when that was forgotten the partition's cold part starts over, which repeats keys but misses
//! none. Only a walk that found everything in memory from its first page on leaves the cold part out: the parts
//! [`WHOLE`] and [`MEMORY`] keep the two apart.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use quipu_counting::service::ScanPage;
use quipu_counting::slot::{partition, slot as slot_of};
use quipu_counting::{Counters, ListOrder, Listing, Unavailable};
use quipu_wire::entry::Reader;

use crate::engine::{Engine, cold_unavailable};
use crate::record::Flags;
use crate::rows;

/// Places remembered, one for every page of every walk; the oldest is forgotten first.
const WALKS_MAX: usize = 1024;
/// Keys per page, whatever the caller asks.
const PAGE_MAX: usize = 10_000;

/// Keys among which a drawn one is chosen.
const DRAWN_FROM: usize = 64;

/// In memory, which had everything on all pages of this partition so far. A walk begins here.
const WHOLE: u64 = 0;
/// In memory, of which only what the cold store lacks is shown.
const MEMORY: u64 = 1;
/// In the cold store.
const COLD: u64 = 2;
const PARTS: u64 = 4;

/// Places in the cold store where walks go on.
#[derive(Default)]
pub struct Scans {
    next: u32,
    places: BTreeMap<u32, Vec<u8>>,
}

impl Scans {
    fn keep(&mut self, row: Vec<u8>) -> u32 {
        self.next = self.next.wrapping_add(1).max(1);
        self.places.insert(self.next, row);
        if self.places.len() > WALKS_MAX {
            self.places.pop_first();
        }
        self.next
    }
}

impl Engine {
    pub(crate) fn scan_page(&self, cursor: u64, count: usize, now_ms: u64) -> Result<ScanPage, Unavailable> {
        let wanted = count.clamp(1, PAGE_MAX);
        let mut page = Gathered { now_ms, keys: Vec::new(), reveals: 0 };
        let mut position = cursor.saturating_sub(1);
        let cursor = loop {
            let (partition, part) = ((position >> 32) / PARTS, (position >> 32) % PARTS);
            let index = partition as usize;
            if index >= self.partitions.len() {
                break 0;
            }
            let payload = position as u32;
            let left = wanted - page.keys.len();
            let next = match part {
                COLD => self.scan_cold(index, payload, left, &mut page)?,
                _ => self.scan_memory(index, part == WHOLE, payload, left, &mut page),
            };
            position = match next {
                Next::Part(part, payload) => (partition * PARTS + part) << 32 | u64::from(payload),
                Next::Partition => ((partition + 1) * PARTS) << 32,
            };
            if page.keys.len() >= wanted {
                // The end may be known only by another, empty page; clients expect that.
                break 1 + position;
            }
        };
        // Keys that somebody is shown must not be taken back by a crash.
        self.settle(page.reveals)?;
        Ok(ScanPage { keys: page.keys, cursor })
    }

    /// Shows the keys of a slot that are here, until it is told to stop. A key that is changed meanwhile may come twice.
    pub fn keys_in_slot(
        &self,
        slot: u16,
        now_ms: u64,
        mut see: impl FnMut(Vec<u8>) -> ControlFlow<()>,
    ) -> Result<(), Unavailable> {
        let partition = u64::from(partition(slot, self.partitions.len() as u16));
        let (mut cursor, end) = (1 + ((partition * PARTS) << 32), 1 + (((partition + 1) * PARTS) << 32));
        while (1..end).contains(&cursor) {
            let page = self.scan_page(cursor, PAGE_MAX, now_ms)?;
            for key in page.keys.into_iter().filter(|key| slot_of(key) == slot) {
                if see(key).is_break() {
                    return Ok(());
                }
            }
            cursor = page.cursor;
        }
        Ok(())
    }

    /// Any key: one near a random place in memory, or where memory has none, one from the cold store. Those in memory are
    /// more likely, as those after a gap are; Redis has the same to say of its own.
    pub(crate) fn draw_key(&self, draw: u64, now_ms: u64) -> Result<Option<Vec<u8>>, Unavailable> {
        let (first, choice) = (draw as usize, choice(draw));
        let count = self.partitions.len();
        for index in (0..count).map(|step| first.wrapping_add(step) % count) {
            if let Some(key) = self.draw_in_memory(index, draw, now_ms)? {
                return Ok(Some(key));
            }
        }
        for cursor in [1 + ((((first % count) as u64) * PARTS + COLD) << 32), 0] {
            let mut keys = self.scan_page(cursor, DRAWN_FROM, now_ms)?.keys;
            if !keys.is_empty() {
                return Ok(Some(keys.swap_remove(choice % keys.len())));
            }
        }
        Ok(None)
    }

    /// The same of one partition, as it is here.
    pub fn draw_key_of(
        &self,
        partition: u16,
        draw: u64,
        now_ms: u64,
    ) -> Result<Option<Vec<u8>>, Unavailable> {
        if let Some(key) = self.draw_in_memory(usize::from(partition), draw, now_ms)? {
            return Ok(Some(key));
        }
        let listing = Listing { order: ListOrder::Key, limit: DRAWN_FROM, ..Listing::default() };
        let mut counters = self.list_of(partition, &listing, now_ms)?.counters;
        let chosen = choice(draw) % counters.len().max(1);
        Ok((!counters.is_empty()).then(|| counters.swap_remove(chosen).key))
    }

    fn draw_in_memory(&self, index: usize, draw: u64, now_ms: u64) -> Result<Option<Vec<u8>>, Unavailable> {
        let (mut keys, mut reveals) = (Vec::new(), 0);
        for mut from in [Some((draw >> 32) as u32), Some(0)] {
            while let (Some(place), true) = (from, keys.is_empty()) {
                let held = self.partitions[index].lock();
                reveals = held.last_offset;
                from = held.table.walk_from(place, DRAWN_FROM, |number| {
                    if held.table.cell(number).is_some_and(|cell| cell.is_live(now_ms)) {
                        keys.push(held.table.key(number).to_vec());
                    }
                });
            }
        }
        if keys.is_empty() {
            return Ok(None);
        }
        // A key that somebody is shown must not be taken back by a crash.
        self.settle(reveals)?;
        let chosen = choice(draw) % keys.len();
        Ok(Some(keys.swap_remove(chosen)))
    }

    fn scan_memory(
        &self,
        index: usize,
        was_whole: bool,
        from: u32,
        count: usize,
        page: &mut Gathered,
    ) -> Next {
        let held = self.partitions[index].lock();
        page.reveals = held.last_offset.max(page.reveals);
        let is_whole = was_whole && held.complete;
        let next = held.table.walk_from(from, count, |number| {
            let wanted = is_whole || held.table.flags(number).any(Flags::NEWBORN);
            if wanted && held.table.cell(number).is_some_and(|cell| cell.is_live(page.now_ms)) {
                page.keys.push(held.table.key(number).to_vec());
            }
        });
        match next {
            Some(hash) => Next::Part(if is_whole { WHOLE } else { MEMORY }, hash),
            None if is_whole => Next::Partition,
            None => Next::Part(COLD, 0),
        }
    }

    fn scan_cold(
        &self,
        index: usize,
        payload: u32,
        count: usize,
        page: &mut Gathered,
    ) -> Result<Next, Unavailable> {
        let now_ms = page.now_ms;
        let from = self.scans.lock().places.get(&payload).cloned();
        let start = match &from {
            Some(row) => Bound::Excluded(&row[..]),
            None => Bound::Included(rows::CELL_PREFIX),
        };
        let space = {
            let held = self.partitions[index].lock();
            rows::partition_space(held.index, held.generation)
        };
        let mut found: Vec<(Vec<u8>, bool)> = Vec::new();
        let mut rows_seen = 0;
        let visit = &mut |row: &[u8], value: &[u8]| {
            let live = Reader::new(value).cell().is_ok_and(|cell| cell.is_live(now_ms));
            found.push((row.to_vec(), live));
            rows_seen += 1;
            if rows_seen < count.max(16) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        self.cold.scan(&space, start, Bound::Excluded(b"D"), visit).map_err(cold_unavailable)?;
        let last = found.last().map(|(row, _)| row.clone());
        let is_page = found.len() >= count.max(16);
        let held = self.partitions[index].lock();
        page.reveals = held.last_offset.max(page.reveals);
        for (row, live_on_disk) in found {
            let Some(key) = row.get(rows::CELL_PREFIX.len()..) else { continue };
            // Memory knows better where it knows. What was made again is shown by the walk in memory, also while the
            // row of its former life is still there.
            let live = match held.table.find(held.hash(key), key) {
                Some(number) if held.table.flags(number).any(Flags::NEWBORN) => false,
                Some(number) => held.table.cell(number).is_some_and(|cell| cell.is_live(now_ms)),
                None => live_on_disk,
            };
            if live {
                page.keys.push(key.to_vec());
            }
        }
        drop(held);
        match last {
            Some(row) if is_page => Ok(Next::Part(COLD, self.scans.lock().keep(row))),
            _ => Ok(Next::Partition),
        }
    }
}

/// Which of some keys a random number chooses.
fn choice(draw: u64) -> usize {
    (draw >> 16) as usize
}

/// What a page shows.
struct Gathered {
    now_ms: u64,
    keys: Vec<Vec<u8>>,
    /// The log must be durable up to here before anybody sees it.
    reveals: u64,
}

enum Next {
    /// Go on in this part of the partition, from this payload.
    Part(u64, u32),
    /// Go on with the next partition.
    Partition,
}
