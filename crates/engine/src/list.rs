//! Lists of counters in the order of keys, of values, or of storage, page by page.
//!
//! The cold store is sorted by key within a partition; memory is not sorted at all. A page is therefore a selection:
//! the first `limit` counters after the place where the last page ended, kept in a small sorted map while memory and
//! then the cold store pass by. Nothing is remembered between two pages, so a cursor costs nothing, outlives a restart,
//! and what is written meanwhile cannot make a list skip or repeat a counter whose place does not change.
//!
//! | order | of memory it reads | of the cold store |
//! |---|---|---|
//! | storage (partition, then key) | what the cold store lacks, of one partition | from the last place on |
//! | key | what the cold store lacks, of all partitions | from the last place on, in all partitions |
//! | value, with a prefix | what the cold store lacks | everything with the prefix, each compared with memory |
//! | value | everything | everything |
//!
//! What the cold store lacks is bounded by the allowed tail of the log and lies in chunks that are known to hold such
//! counters, so a page in the order of storage costs a pass over some megabytes of memory at the worst, and of keys some
//! partitions more.
//!
//! Memory comes first: a counter that it shows as not yet written when the walk passes is shown, and one that is
//! written later is found in the cold store. Writers wait for one chunk at most.

use std::collections::{BTreeMap, HashMap};
use std::ops::{Bound, ControlFlow, Range};

use parking_lot::MutexGuard;
use quipu_counting::slot::{partition, slot};
use quipu_counting::{Body, Cell, Counters, Kind, ListOrder, ListPage, Listed, Listing, Unavailable, Whole};
use quipu_store::cold::ColdError;
use quipu_wire::entry::{Malformed, Reader};

use crate::engine::{Engine, cold_unavailable};
use crate::fetch::read_whole;
use crate::partition::{EvictionStamps, Partition, hash};
use crate::record::Flags;
use crate::rows;
use crate::table::RecordNumber;

/// Counters per page, whatever the caller asks.
const PAGE_MAX: usize = 10_000;
/// Rows of the cold store that are compared with memory under one lock.
const ROWS_AT_ONCE: usize = 1024;

impl Engine {
    pub(crate) fn list_page(&self, listing: &Listing, now_ms: u64) -> Result<ListPage, Unavailable> {
        self.page(listing, now_ms, |walk, wanted| match listing.order {
            ListOrder::Storage => walk.in_storage_order(wanted),
            ListOrder::Key | ListOrder::Value => walk.in_one_order(0..self.partitions.len(), wanted),
        })
    }

    /// One page of the counters of one partition, as it is here. Blocks.
    pub fn list_of(&self, partition: u16, listing: &Listing, now_ms: u64) -> Result<ListPage, Unavailable> {
        let index = usize::from(partition);
        self.page(listing, now_ms, |walk, wanted| walk.in_one_order(index..index + 1, wanted))
    }

    fn page(
        &self,
        listing: &Listing,
        now_ms: u64,
        select: impl FnOnce(&mut Walk<'_>, usize) -> Result<Vec<Listed>, ColdError>,
    ) -> Result<ListPage, Unavailable> {
        let limit = listing.limit.clamp(1, PAGE_MAX);
        let mut walk = Walk { engine: self, listing, now_ms, reveals: 0 };
        // One more than wanted tells whether others follow.
        let mut counters = select(&mut walk, limit + 1).map_err(cold_unavailable)?;
        let more = counters.len() > limit;
        counters.truncate(limit);
        // What somebody is shown must not be taken back by a crash.
        self.settle(walk.reveals)?;
        Ok(ListPage { counters, more })
    }
}

/// What is found of a counter: its numbers, and what it counts if it has more.
type Found = (Cell, Option<Kind>);

/// One page under way.
struct Walk<'a> {
    engine: &'a Engine,
    listing: &'a Listing,
    now_ms: u64,
    /// The log must be durable up to here before anybody sees the page.
    reveals: u64,
}

impl Walk<'_> {
    /// Partition by partition, each in the order of keys.
    fn in_storage_order(&mut self, wanted: usize) -> Result<Vec<Listed>, ColdError> {
        let partitions = self.engine.partitions.len();
        let (first, mut after) = match &self.listing.after {
            Some(place) => {
                let index = partition(slot(&place.key), partitions as u16);
                (usize::from(index), Some((0, place.key.clone())))
            }
            None => (0, None),
        };
        let mut counters = Vec::new();
        for index in first..partitions {
            let mut selection = Selection::new(ListOrder::Storage, after.take(), wanted - counters.len());
            self.pass(index, &mut selection)?;
            counters.extend(selection.into_counters());
            if counters.len() >= wanted {
                break;
            }
        }
        Ok(counters)
    }

    /// Several partitions into one order.
    fn in_one_order(&mut self, partitions: Range<usize>, wanted: usize) -> Result<Vec<Listed>, ColdError> {
        let order = self.listing.order;
        let after = self.listing.after.as_ref().map(|place| (rank(order, place.value), place.key.clone()));
        let mut selection = Selection::new(order, after, wanted);
        for index in partitions {
            self.pass(index, &mut selection)?;
        }
        Ok(selection.into_counters().collect())
    }

    fn pass(&mut self, index: usize, selection: &mut Selection) -> Result<(), ColdError> {
        self.pass_memory(index, selection);
        self.pass_cold(index, selection)
    }

    fn lock(&mut self, index: usize) -> MutexGuard<'_, Partition> {
        let held = self.engine.partitions[index].lock();
        self.reveals = held.last_offset.max(self.reveals);
        held
    }

    /// By value, memory decides what is wanted: it is read whole, or asked about every row. Rows of a prefix are mostly
    /// few.
    fn reads_all_memory(&self) -> bool {
        self.listing.order == ListOrder::Value && self.listing.prefix.is_empty()
    }

    fn pass_memory(&mut self, index: usize, selection: &mut Selection) {
        let (now_ms, listing) = (self.now_ms, self.listing);
        let everything = self.reads_all_memory();
        let generation = self.lock(index).generation;
        let mut last_serial = 0;
        let mut chunks = Vec::new().into_iter();
        loop {
            let held = self.lock(index);
            if held.generation != generation {
                // All were deleted: whatever exists throughout this walk is not here.
                return;
            }
            let Some((serial, chunk)) = chunks.next() else {
                chunks = held.table.chunks_after(last_serial).into_iter();
                if chunks.len() == 0 {
                    return;
                }
                continue;
            };
            last_serial = serial;
            // Swept meanwhile: what was in it has moved to a chunk that is still to come.
            let has_moved = held.table.chunk_serial(chunk) != serial;
            if has_moved || !(everything || held.table.chunk_has_newborns(chunk)) {
                continue;
            }
            for number in held.table.chunk_records(chunk) {
                let key = held.table.key(number);
                if !key.starts_with(&listing.prefix)
                    || !(everything || held.table.flags(number).any(Flags::NEWBORN))
                {
                    continue;
                }
                if let Some(found) = held.listed(number).filter(|(cell, _)| cell.is_live(now_ms)) {
                    selection.offer(key, found);
                }
            }
        }
    }

    fn pass_cold(&mut self, index: usize, selection: &mut Selection) -> Result<(), ColdError> {
        let (space, stamps) = {
            let held = self.lock(index);
            (rows::partition_space(held.index, held.generation), held.eviction_stamps())
        };
        let first = rows::cell_key(&self.listing.prefix);
        let end = successor(first.clone());
        let after = selection.after_key().map(rows::cell_key).filter(|after| *after >= first);
        let start = after.as_ref().map_or(Bound::Included(&first[..]), |after| Bound::Excluded(&after[..]));
        let rows_decide = selection.order != ListOrder::Value || self.reads_all_memory();
        let rows_at_once = if rows_decide { ROWS_AT_ONCE.min(selection.capacity) } else { ROWS_AT_ONCE };
        let mut found: Vec<(Vec<u8>, Found)> = Vec::with_capacity(rows_at_once);
        let mut outcome = Ok(());
        let cold = &self.engine.cold;
        cold.scan(&space, start, Bound::Excluded(&end), &mut |row, value| {
            let (Some(key), Ok(on_disk)) = (row.get(rows::CELL_PREFIX.len()..), read_listed(value)) else {
                outcome = Err(ColdError::Damaged(format!("a cell in space {space}")));
                return ControlFlow::Break(());
            };
            if rows_decide && !selection.wants(selection.rank(&on_disk.0), key) {
                // In the order of keys nothing after it is wanted either.
                return if selection.order == ListOrder::Value {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                };
            }
            found.push((key.to_vec(), on_disk));
            if found.len() < rows_at_once {
                return ControlFlow::Continue(());
            }
            outcome = self.offer_rows(index, &mut found, &stamps, selection);
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        outcome?;
        self.offer_rows(index, &mut found, &stamps, selection)
    }

    /// Offers what the rows say, or memory, which knows better where it knows.
    fn offer_rows(
        &mut self,
        index: usize,
        found: &mut Vec<(Vec<u8>, Found)>,
        stamps: &EvictionStamps,
        selection: &mut Selection,
    ) -> Result<(), ColdError> {
        let now_ms = self.now_ms;
        let mut doubtful = Vec::new();
        let held = self.lock(index);
        for (key, on_disk) in found.drain(..) {
            let hash = held.hash(&key);
            let found = match held.table.find(hash, &key) {
                Some(number) => held.listed(number),
                None if held.eviction_stamp(hash) == stamps.of(hash) => Some(on_disk),
                None => {
                    doubtful.push(key);
                    continue;
                }
            };
            if let Some(found) = found.filter(|(cell, _)| cell.is_live(now_ms)) {
                selection.offer(&key, found);
            }
        }
        drop(held);
        for key in doubtful {
            if let Some(found) = self.look(index, &key)?.filter(|(cell, _)| cell.is_live(now_ms)) {
                selection.offer(&key, found);
            }
        }
        Ok(())
    }

    fn look(&mut self, index: usize, key: &[u8]) -> Result<Option<Found>, ColdError> {
        self.engine.peek(index, key, &mut self.reveals)
    }
}

impl Engine {
    /// One counter with all it has as it is now, as [`peek`](Engine::peek) shows its numbers.
    pub(crate) fn peek_whole(&self, index: usize, key: &[u8], reveals: &mut u64) -> Result<Whole, ColdError> {
        let read = |generation| read_whole(&*self.cold, index as u16, generation, key);
        let found = |held: &Partition, number| {
            let body = held.bodies.get(key).cloned();
            Whole { cell: held.table.cell(number), body }
        };
        self.peek_by(index, key, reveals, found, read)
    }

    /// One counter as it is now, without bringing it into memory. `reveals` is raised to where the log must be durable
    /// before anybody sees it.
    pub(crate) fn peek(
        &self,
        index: usize,
        key: &[u8],
        reveals: &mut u64,
    ) -> Result<Option<Found>, ColdError> {
        let read = |generation| {
            let space = rows::partition_space(index as u16, generation);
            let row = self.cold.get(&space, &rows::cell_key(key))?.map(|value| read_listed(&value));
            row.transpose().map_err(|damage| ColdError::Damaged(format!("a cell in space {space}: {damage}")))
        };
        self.peek_by(index, key, reveals, Partition::listed, read)
    }

    /// By what memory has, else by what can be read.
    fn peek_by<T>(
        &self,
        index: usize,
        key: &[u8],
        reveals: &mut u64,
        found: impl Fn(&Partition, RecordNumber) -> T,
        read: impl Fn(u32) -> Result<T, ColdError>,
    ) -> Result<T, ColdError> {
        let hash = hash(key, self.hash_seed);
        let mut lock = || {
            let held = self.partitions[index].lock();
            *reveals = held.last_offset.max(*reveals);
            held
        };
        loop {
            let (generation, stamp) = {
                let held = lock();
                if let Some(number) = held.table.find(hash, key) {
                    return Ok(found(&held, number));
                }
                (held.generation, held.eviction_stamp(hash))
            };
            let there = read(generation)?;
            let held = lock();
            if held.table.find(hash, key).is_none() && held.eviction_stamp(hash) == stamp {
                return Ok(there);
            }
        }
    }
}

impl Partition {
    fn listed(&self, number: RecordNumber) -> Option<Found> {
        let cell = self.table.cell(number)?;
        let has_body = self.table.flags(number).any(Flags::BODY);
        let body = if has_body { self.bodies.get(self.table.key(number)) } else { None };
        Some((cell, body.map(|body| body.kind())))
    }
}

/// What the row of a counter says.
fn read_listed(value: &[u8]) -> Result<Found, Malformed> {
    let mut reader = Reader::new(value);
    let cell = reader.cell()?;
    Ok((cell, Body::kind_of(&value[value.len() - reader.len()..])))
}

/// A number that sorts counters as the order wants it, before their keys do.
fn rank(order: ListOrder, value: i64) -> i64 {
    match order {
        // Turns the order round without overflow.
        ListOrder::Value => !value,
        ListOrder::Storage | ListOrder::Key => 0,
    }
}

/// The first counters of those offered that come after a place.
struct Selection {
    order: ListOrder,
    after: Option<(i64, Vec<u8>)>,
    capacity: usize,
    /// By rank and key.
    found: BTreeMap<(i64, Vec<u8>), Found>,
    /// The rank of each key in `found`: a counter that changes while the walk passes may be offered twice.
    ranks: HashMap<Vec<u8>, i64>,
}

impl Selection {
    fn new(order: ListOrder, after: Option<(i64, Vec<u8>)>, capacity: usize) -> Selection {
        Selection { order, after, capacity, found: BTreeMap::new(), ranks: HashMap::new() }
    }

    fn rank(&self, cell: &Cell) -> i64 {
        rank(self.order, cell.value)
    }

    /// Where keys may begin; in the order of values a later one may have any key.
    fn after_key(&self) -> Option<&[u8]> {
        self.after.as_ref().filter(|_| self.order != ListOrder::Value).map(|(_, key)| &key[..])
    }

    fn wants(&self, rank: i64, key: &[u8]) -> bool {
        fn borrow((rank, key): &(i64, Vec<u8>)) -> (i64, &[u8]) {
            (*rank, key)
        }
        let candidate = (rank, key);
        self.after.as_ref().is_none_or(|after| candidate > borrow(after))
            && (self.found.len() < self.capacity
                || self.found.last_key_value().is_some_and(|(last, _)| candidate <= borrow(last)))
    }

    fn offer(&mut self, key: &[u8], found: Found) {
        let rank = self.rank(&found.0);
        if !self.wants(rank, key) {
            return;
        }
        if let Some(before) = self.ranks.insert(key.to_vec(), rank) {
            self.found.remove(&(before, key.to_vec()));
        }
        self.found.insert((rank, key.to_vec()), found);
        if self.found.len() > self.capacity
            && let Some(((_, key), _)) = self.found.pop_last()
        {
            self.ranks.remove(&key);
        }
    }

    fn into_counters(self) -> impl Iterator<Item = Listed> {
        self.found.into_iter().map(|((_, key), (cell, body))| Listed { key, cell, body })
    }
}

/// The first row after all that begin with `prefix`, which must not be all 0xff.
pub fn successor(mut prefix: Vec<u8>) -> Vec<u8> {
    while let Some(last) = prefix.pop() {
        if last < u8::MAX {
            prefix.push(last + 1);
            break;
        }
    }
    prefix
}
