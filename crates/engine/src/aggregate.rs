//! Totals over all counters that a pattern selects, partition by partition.
//!
//! Memory is not sorted, the cold store is. So a partition is counted in two passes that take turns with writers:
//!
//! 1. In memory, the counters of which the cold store may have no row: they lie in chunks that are known to hold some,
//!    and the births of those that were counted are noted.
//! 2. In the cold store, the rows from the pattern's literal prefix on. Memory knows better where it knows.
//!
//! A counter that exists all the time is counted, because what is not shown by the first pass has a row before the second
//! begins. It is counted once, because a birth is given to one counter of the partition only: what the first pass has
//! noted the second leaves out, and so does the first, where a record moved on to a chunk that came later. What is born
//! during the walk need not be counted, and is not: a key that was counted, deleted and made again is there once.
//!
//! A row that memory does not know counts as it is: its value at the time of the scan. It can be older than that only if
//! the counter was in memory then, changed, and has left it since, for which a checkpoint must have come between; then it
//! is looked at once more. Scans are cut into portions, so that files a merge has replaced are not kept for long.
//!
//! When everything was deleted meanwhile (or replaced, as a snapshot does) the partition is counted anew.

use std::collections::HashSet;
use std::num::NonZero;
use std::ops::{Bound, ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use parking_lot::MutexGuard;
use quipu_counting::aggregate::{Aggregate, Part, Selector, Totals};
use quipu_counting::{Body, Cell, Counters, Policies, Unavailable};
use quipu_store::cold::ColdError;
use quipu_wire::entry::Reader;

use crate::engine::{Engine, cold_unavailable};
use crate::fetch::decode_whole;
use crate::list::successor;
use crate::partition::{EvictionStamps, Partition, hash};
use crate::rows;

/// Rows that are compared with memory under one lock: some ten microseconds.
const ROWS_AT_ONCE: usize = 256;
/// Rows of one scan, whether or not the pattern selects them.
const ROWS_PER_SCAN: usize = 1 << 16;
/// How often a partition is counted anew because all of it was deleted, before the caller is told to come again.
const ATTEMPTS_MAX: usize = 100;
/// The most threads that count for one call. More would not finish a selective pattern earlier.
const THREADS_MAX: usize = 4;

impl Engine {
    pub(crate) fn aggregate_all(&self, selector: &Selector, now_ms: u64) -> Result<Aggregate, Unavailable> {
        let partitions = match selector.only_partition(self.partitions.len() as u16) {
            Some(only) => only..only + 1,
            None => 0..self.partitions.len() as u16,
        };
        let (mut parts, reveals) = self.in_parallel(selector, partitions, now_ms)?;
        parts.sort_unstable_by_key(|part| part.partition);
        // What somebody is shown must not be taken back by a crash.
        self.settle(reveals)?;
        Ok(Aggregate { parts, missing: Vec::new() })
    }

    /// The totals of one partition, as it is here. Blocks.
    pub fn aggregate_of(
        &self,
        partition: u16,
        selector: &Selector,
        now_ms: u64,
    ) -> Result<Totals, Unavailable> {
        let (totals, reveals) = self.totals(usize::from(partition), selector, now_ms)?;
        self.settle(reveals)?;
        Ok(totals)
    }

    /// Counts partitions on some threads, each of which takes the next one when it is done with one. Those without a
    /// match are left out.
    fn in_parallel(
        &self,
        selector: &Selector,
        partitions: Range<u16>,
        now_ms: u64,
    ) -> Result<(Vec<Part>, u64), Unavailable> {
        let next = AtomicUsize::new(usize::from(partitions.start));
        let work = || {
            let (mut parts, mut reveals) = (Vec::new(), 0);
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= usize::from(partitions.end) {
                    return Ok((parts, reveals));
                }
                let (totals, reveals_too) = self.totals(index, selector, now_ms)?;
                reveals = reveals_too.max(reveals);
                if totals.count > 0 {
                    parts.push(Part { partition: index as u16, node: None, totals });
                }
            }
        };
        let others = self.threads(selector).min(partitions.len()).saturating_sub(1);
        thread::scope(|scope| {
            let others: Vec<_> = (0..others).map(|_| scope.spawn(work)).collect();
            let (mut parts, mut reveals) = work()?;
            for other in others {
                let stopped = |_| Unavailable::Unreadable("a thread that counted has ended".into());
                let (parts_too, reveals_too) = other.join().map_err(stopped)??;
                parts.extend(parts_too);
                reveals = reveals_too.max(reveals);
            }
            Ok((parts, reveals))
        })
    }

    /// How many threads count. A walk over all counters takes its time, and leaves half of the machine to others.
    fn threads(&self, selector: &Selector) -> usize {
        if self.pool.get().is_none() {
            // A simulation has one.
            return 1;
        }
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let share = if selector.prefix().is_empty() { cores / 2 } else { cores };
        share.clamp(1, THREADS_MAX)
    }

    /// The totals of a partition, and up to where the log must be durable before anybody sees them.
    fn totals(&self, index: usize, selector: &Selector, now_ms: u64) -> Result<(Totals, u64), Unavailable> {
        let mut reveals = 0;
        if selector.is_one_key() {
            let key = selector.prefix();
            let found = self.peek_whole(index, key, &mut reveals).map_err(cold_unavailable)?;
            let policies = Arc::clone(&self.partitions[index].lock().policies);
            let mut totals = Totals::NOTHING;
            if let Some(cell) = found.cell.filter(|cell| cell.is_live(now_ms)) {
                selector.add(&mut totals, (key, cell.value), found.body.as_ref(), &policies);
            }
            return Ok((totals, reveals));
        }
        for _ in 0..ATTEMPTS_MAX {
            let mut walk = Walk::begin(self, index, selector, now_ms);
            let walked = walk.memory().map_or(Ok(None), |()| walk.cold());
            reveals = walk.reveals.max(reveals);
            if let Some(()) = walked.map_err(cold_unavailable)? {
                return Ok((walk.totals, reveals));
            }
        }
        Err(Unavailable::Busy("all counters were deleted again and again while they were added up".into()))
    }
}

/// One partition being counted.
struct Walk<'a> {
    engine: &'a Engine,
    index: usize,
    selector: &'a Selector,
    now_ms: u64,
    /// Of which life of the partition this is a walk.
    generation: u32,
    /// The sequence when it began: what is born later is not counted.
    born_until: u64,
    /// Births of counters that were counted in memory. Bounded as they are: by what may lie in memory without a row.
    counted: HashSet<u64>,
    totals: Totals,
    /// What holds for the counters, as the walk began.
    policies: Arc<Policies>,
    /// The log must be durable up to here before anybody sees the totals.
    reveals: u64,
}

/// What came of a step; nothing where its partition has become another one.
type StillThere<T> = Option<T>;

impl<'a> Walk<'a> {
    fn begin(engine: &'a Engine, index: usize, selector: &'a Selector, now_ms: u64) -> Walk<'a> {
        let held = engine.partitions[index].lock();
        Walk {
            engine,
            index,
            selector,
            now_ms,
            generation: held.generation,
            born_until: held.sequence,
            counted: HashSet::new(),
            totals: Totals::NOTHING,
            policies: Arc::clone(&held.policies),
            reveals: held.last_offset,
        }
    }

    fn lock(&mut self) -> StillThere<MutexGuard<'a, Partition>> {
        let held = self.engine.partitions[self.index].lock();
        self.reveals = held.last_offset.max(self.reveals);
        (held.generation == self.generation).then_some(held)
    }

    fn is_wanted(&self, cell: &Cell) -> bool {
        cell.is_live(self.now_ms) && cell.birth <= self.born_until
    }

    /// The body of a counter in memory, where a part of its value is asked for.
    fn body(&self, held: &Partition, key: &[u8]) -> Option<Arc<Body>> {
        self.selector.slice().and_then(|_| held.bodies.get(key).cloned())
    }

    fn count(&mut self, key: &[u8], cell: &Cell, body: Option<&Arc<Body>>) {
        self.selector.add(&mut self.totals, (key, cell.value), body, &self.policies);
    }

    /// The first pass. Writers wait for the copying of one chunk at most; patterns can be slow to compare, which is done
    /// without the lock.
    fn memory(&mut self) -> StillThere<()> {
        let mut chunks = Vec::new().into_iter();
        let mut last_serial = 0;
        let mut found = Found::default();
        loop {
            let held = self.lock()?;
            let Some((serial, chunk)) = chunks.next() else {
                let mut later = held.table.chunks_after(last_serial);
                later.retain(|(_, chunk)| held.table.chunk_has_newborns(*chunk));
                if later.is_empty() {
                    return Some(());
                }
                chunks = later.into_iter();
                continue;
            };
            last_serial = serial;
            // Swept meanwhile: what was in it has moved to a chunk that is still to come.
            if held.table.chunk_serial(chunk) == serial {
                let prefix = self.selector.prefix();
                held.table.visit_newborns(chunk, |key, cell| {
                    if key.starts_with(prefix) {
                        found.push(key, cell, self.body(&held, key));
                    }
                });
            }
            drop(held);
            for (key, cell, body) in found.iter() {
                if self.is_wanted(&cell) && self.selector.selects(key) && self.counted.insert(cell.birth) {
                    self.count(key, &cell, body);
                }
            }
            found.clear();
        }
    }

    /// The second pass, portion by portion.
    fn cold(&mut self) -> Result<StillThere<()>, ColdError> {
        let first = rows::cell_key(self.selector.prefix());
        let end = successor(first.clone());
        let mut from = Bound::Included(first);
        loop {
            match self.portion(from.as_ref().map(Vec::as_slice), &end)? {
                Some(Some(last_row)) => from = Bound::Excluded(last_row),
                Some(None) => return Ok(Some(())),
                None => return Ok(None),
            }
        }
    }

    /// Returns the row to go on behind, if this was not the last.
    fn portion(&mut self, from: Bound<&[u8]>, end: &[u8]) -> Result<StillThere<Option<Vec<u8>>>, ColdError> {
        let Some(held) = self.lock() else { return Ok(None) };
        let before = Before { checkpoints: held.checkpoints, stamps: held.eviction_stamps() };
        let space = rows::partition_space(held.index, held.generation);
        drop(held);
        let (mut found, mut rows_left, mut last_row) = (Found::default(), ROWS_PER_SCAN, None);
        let mut compared = Ok(Some(()));
        let engine = self.engine;
        engine.cold.scan(&space, from, Bound::Excluded(end), &mut |row, value| {
            let whole = match self.selector.slice() {
                None => Reader::new(value).cell().map(|cell| (cell, None)),
                Some(_) => decode_whole(value).map(|whole| (whole.cell.unwrap_or(Cell::ABSENT), whole.body)),
            };
            let (Some(key), Ok((cell, body))) = (row.get(rows::CELL_PREFIX.len()..), whole) else {
                compared = Err(ColdError::Damaged(format!("a cell in space {space}")));
                return ControlFlow::Break(());
            };
            // Where the row says so already, memory need not be asked.
            let may_count = cell.birth <= self.born_until && !self.counted.contains(&cell.birth);
            if may_count && self.selector.selects(key) {
                found.push(key, cell, body);
            }
            if found.cells.len() >= ROWS_AT_ONCE {
                compared = self.compare(&mut found, &before);
            }
            rows_left -= 1;
            if rows_left == 0 {
                last_row = Some(row.to_vec());
            }
            match compared {
                Ok(Some(())) if rows_left > 0 => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        })?;
        match compared? {
            Some(()) => Ok(self.compare(&mut found, &before)?.map(|()| last_row)),
            None => Ok(None),
        }
    }

    /// Counts what the rows say, or memory.
    fn compare(&mut self, found: &mut Found, before: &Before) -> Result<StillThere<()>, ColdError> {
        let hashes: Vec<u32> = found.iter().map(|(key, ..)| hash(key, self.engine.hash_seed)).collect();
        let Some(held) = self.lock() else { return Ok(None) };
        hashes.iter().for_each(|hash| held.table.prefetch_slot(*hash));
        hashes.iter().for_each(|hash| held.table.prefetch_record(*hash));
        let mut doubtful: Vec<&[u8]> = Vec::new();
        let mut cells: Vec<(_, Cell, Option<_>)> = Vec::with_capacity(hashes.len());
        for ((key, on_disk, body), hash) in found.iter().zip(hashes) {
            match held.table.find(hash, key) {
                Some(number) => {
                    cells.extend(held.table.cell(number).map(|cell| (key, cell, self.body(&held, key))));
                }
                None if before.is_overtaken(&held, hash) => doubtful.push(key),
                None => cells.push((key, on_disk, body.cloned())),
            }
        }
        drop(held);
        for key in doubtful {
            let whole = self.engine.peek_whole(self.index, key, &mut self.reveals)?;
            cells.extend(whole.cell.map(|cell| (key, cell, whole.body)));
        }
        for (key, cell, body) in cells {
            if self.is_wanted(&cell) && !self.counted.contains(&cell.birth) {
                self.count(key, &cell, body.as_ref());
            }
        }
        found.clear();
        Ok(Some(()))
    }
}

/// What was so before a scan began.
struct Before {
    checkpoints: u64,
    stamps: EvictionStamps,
}

impl Before {
    /// Whether a counter that is not in memory may have been there, changed, when the scan began.
    fn is_overtaken(&self, held: &Partition, hash: u32) -> bool {
        held.checkpoints != self.checkpoints && held.eviction_stamp(hash) != self.stamps.of(hash)
    }
}

/// Keys and cells, copied, with bodies where they are asked for.
#[derive(Default)]
struct Found {
    keys: Vec<u8>,
    /// Each with the end of its key.
    cells: Vec<(usize, Cell, Option<Arc<Body>>)>,
}

impl Found {
    fn push(&mut self, key: &[u8], cell: Cell, body: Option<Arc<Body>>) {
        self.keys.extend_from_slice(key);
        self.cells.push((self.keys.len(), cell, body));
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], Cell, Option<&Arc<Body>>)> {
        let mut start = 0;
        self.cells.iter().map(move |(end, cell, body)| {
            (&self.keys[std::mem::replace(&mut start, *end)..*end], *cell, body.as_ref())
        })
    }

    fn clear(&mut self) {
        self.keys.clear();
        self.cells.clear();
    }
}
