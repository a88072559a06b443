//! The trail of changes of one partition: who changed a counter, when, how and why, for as long as its policy says.
//!
//! It is part of the partition's state, as remembered request ids are: a row is an effect in the same record as its change (or comes
//! of the same entry, at every replica), lies in memory until the next checkpoint, and then in the cold store. There the rows of
//! one time of keeping and one slice of time share a space, which is dropped whole, and those of one counter lie together, the
//! newest first. A row is written again as it was after a crash between it and its checkpoint: its place is the sequence of its change.
//!
//! Deleting a counter leaves its trail alone, and so does deleting all of them, which leaves one row for each partition, under no
//! key: it belongs to the trail of every counter.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use quipu_counting::audit::{AUDIT_PAGE_MAX, AuditChange, AuditPage, AuditQuery, Deed, Origin};
use quipu_counting::slot::{partition, slot};
use quipu_counting::{Cell, Change, Counters, Unavailable};
use quipu_store::cold::{ColdError, Rows};
use quipu_wire::audit::{put_change, read_change};
use quipu_wire::entry::{self, Malformed, Reader};

use crate::engine::{Engine, cold_unavailable};
use crate::ids::Slice;
use crate::partition::Partition;
use crate::rows;
use crate::table::RecordNumber;

/// About what a row takes in memory beside its bytes.
const ROW_BYTES: usize = 96;
/// How the names of their spaces begin.
pub const SPACE_PREFIX: &str = "audit-";
/// The trail that belongs to that of every counter.
const EVERY_KEY: &[u8] = b"";

/// Rows that are dropped together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shelf {
    /// When their changes were.
    pub slice: Slice,
    /// How long each is kept.
    pub keep_ms: u64,
}

impl Shelf {
    /// Where a change of this time goes.
    pub fn of(at_ms: u64, keep_ms: u64) -> Shelf {
        Shelf { slice: Slice::of(at_ms, keep_ms), keep_ms }
    }

    /// Its space in the cold store.
    pub fn space(&self) -> String {
        format!("{SPACE_PREFIX}{:013}-{:013}-{}", self.slice.start_ms, self.slice.end_ms, self.keep_ms)
    }

    /// The shelf of a space.
    pub fn from_space(space: &str) -> Option<Shelf> {
        let mut numbers = space.strip_prefix(SPACE_PREFIX)?.split('-').map(|number| number.parse().ok());
        let mut next = || numbers.next().flatten();
        Some(Shelf { slice: Slice { start_ms: next()?, end_ms: next()? }, keep_ms: next()? })
    }

    /// Whether none of its rows is kept any more.
    pub fn is_over(&self, now_ms: u64) -> bool {
        self.slice.is_over(now_ms, self.keep_ms)
    }
}

/// One row in memory.
#[derive(Clone, Debug)]
struct Noted {
    keep_ms: u64,
    at_ms: u64,
    number: u64,
    /// As it is stored.
    change: Vec<u8>,
}

/// Rows by counter, of each the oldest first.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    by_key: HashMap<Vec<u8>, Vec<Noted>>,
    rows: usize,
    bytes: usize,
}

/// See the head of this file.
#[derive(Default)]
pub struct Trail {
    /// Since the last cut.
    recent: Notes,
    /// Before the running cut, until it is durable.
    cutting: Arc<Notes>,
}

impl Notes {
    fn add(&mut self, key: &[u8], noted: Noted) {
        self.rows += 1;
        self.bytes += ROW_BYTES + noted.change.len();
        if let Some(known) = self.by_key.get_mut(key) {
            return known.push(noted);
        }
        self.bytes += ROW_BYTES + key.len();
        self.by_key.insert(key.to_vec(), vec![noted]);
    }

    fn of<'a>(&'a self, key: &[u8]) -> impl DoubleEndedIterator<Item = &'a Noted> + use<'a> {
        self.by_key.get(key).into_iter().flatten()
    }

    /// The rows of all shelves, each in the order of the cold store.
    pub fn rows(&self, partition: u16) -> Result<BTreeMap<Shelf, Rows>, ColdError> {
        let mut shelves: BTreeMap<Shelf, Rows> = BTreeMap::new();
        for (key, noted) in &self.by_key {
            for noted in noted {
                let shelf = shelves.entry(Shelf::of(noted.at_ms, noted.keep_ms)).or_default();
                shelf.push(&rows::audit_key(partition, key, noted.number), Some(&noted.change))?;
            }
        }
        shelves.values_mut().for_each(Rows::sort);
        Ok(shelves)
    }
}

impl Trail {
    /// A row that the log has.
    pub fn add(&mut self, key: &[u8], keep_ms: u64, change: &[u8]) -> Result<(), Malformed> {
        let AuditChange { number, at_ms, .. } = read_change(&mut Reader::new(change))?;
        self.recent.add(key, Noted { keep_ms, at_ms, number, change: change.to_vec() });
        Ok(())
    }

    /// The cut begins: the rows up to here.
    pub fn begin_cut(&mut self) -> Arc<Notes> {
        self.cutting = Arc::new(std::mem::take(&mut self.recent));
        Arc::clone(&self.cutting)
    }

    /// The cut is durable: its rows are on disk now.
    pub fn end_cut(&mut self) {
        self.cutting = Arc::default();
    }

    /// The cut failed: nothing of it is on disk for certain.
    pub fn abort_cut(&mut self) {
        let mut whole = Arc::unwrap_or_clone(std::mem::take(&mut self.cutting));
        for (key, noted) in std::mem::take(&mut self.recent).by_key {
            noted.into_iter().for_each(|noted| whole.add(&key, noted));
        }
        self.recent = whole;
    }

    /// How many rows wait for a checkpoint.
    pub fn len(&self) -> usize {
        self.recent.rows + self.cutting.rows
    }

    /// Bytes that the next checkpoint frees.
    pub fn bytes(&self) -> usize {
        self.recent.bytes + self.cutting.bytes
    }
}

/// What is noted of a request beside what came of it.
#[derive(Clone, Copy)]
pub struct Told<'a> {
    /// What was done.
    pub deed: Deed,
    /// Why.
    pub reason: Option<&'a str>,
    /// Under which id.
    pub request_id: Option<&'a [u8]>,
    /// By whom.
    pub by: Option<&'a Origin>,
    /// By how much what is set aside has changed.
    pub held: i64,
}

impl Told<'_> {
    /// What nobody asked for.
    pub fn by_nobody(deed: Deed) -> Told<'static> {
        Told { deed, reason: None, request_id: None, by: None, held: 0 }
    }
}

impl Partition {
    /// Notes a change that was just carried out, in memory and in the log. A counter that had expired ended before it.
    pub fn trace_change(
        &mut self,
        key: &[u8],
        keep_ms: u64,
        before: Option<Cell>,
        change: &Change,
        told: Told<'_>,
    ) {
        let after = match change {
            Change::Keep => return,
            Change::Put(cell) => Some(*cell),
            Change::Remove => None,
        };
        let live = before.filter(|cell| cell.is_live(self.time_ms));
        if let (Some(gone), None, false) = (before, live, told.deed == Deed::Expired) {
            self.trace(key, keep_ms, self.sequence << 1, (Some(gone), None), Told::by_nobody(Deed::Expired));
        }
        let before = if told.deed == Deed::Expired { before } else { live };
        if before.is_some() || after.is_some() {
            self.trace(key, keep_ms, self.sequence << 1 | 1, (before, after), told);
        }
    }

    /// Removes a counter whose time has come.
    pub fn expire(&mut self, hash: u32, key: &[u8], number: RecordNumber, cell: Cell) {
        self.change(hash, key, Some(number), Some(cell), &Change::Remove);
        let keep_ms = self.limits(key).audit_ms;
        if keep_ms > 0 {
            self.trace_change(key, keep_ms, Some(cell), &Change::Remove, Told::by_nobody(Deed::Expired));
        }
    }

    /// Notes that all counters were deleted, if some policy has trails kept.
    pub fn trace_clear(&mut self, told: Told<'_>) {
        if let Some(keep_ms) = self.policies.longest_audit_ms() {
            self.trace(EVERY_KEY, keep_ms, self.sequence << 1 | 1, (None, None), told);
        }
    }

    fn trace(
        &mut self,
        key: &[u8],
        keep_ms: u64,
        number: u64,
        (before, after): (Option<Cell>, Option<Cell>),
        told: Told<'_>,
    ) {
        let value = |cell: Option<Cell>| cell.map_or(0, |cell| cell.value);
        let change = AuditChange {
            number,
            at_ms: self.time_ms,
            deed: told.deed,
            applied: value(after).saturating_sub(value(before)),
            held: told.held,
            value: value(after),
            version: after.or(before).map_or(0, |cell| cell.version),
            request_id: told.request_id.map(<[u8]>::to_vec),
            reason: told.reason.map(str::to_owned),
            by: told.by.cloned(),
        };
        let mut bytes = Vec::new();
        put_change(&mut bytes, &change);
        entry::put_audit(&mut self.effects, key, keep_ms, &bytes);
        self.trail.recent.add(key, Noted { keep_ms, at_ms: self.time_ms, number, change: bytes });
    }
}

/// A page while it is collected.
struct Selection<'a> {
    query: &'a AuditQuery,
    now_ms: u64,
    /// Nothing above this is shown: it came later than the look at memory.
    newest: u64,
    limit: usize,
    /// By number; one more than is wanted, to know whether others follow.
    found: BTreeMap<u64, AuditChange>,
}

impl Selection<'_> {
    /// Takes a row if it is wanted, and says whether later ones of the same counter, which are older, may be.
    fn take(&mut self, keep_ms: u64, change: &[u8]) -> Result<bool, Malformed> {
        let change = read_change(&mut Reader::new(change))?;
        if change.at_ms < self.query.from_ms {
            return Ok(false);
        }
        let is_elsewhere = change.number > self.newest
            || change.at_ms > self.query.to_ms
            || self.query.before.is_some_and(|before| change.number >= before);
        // It is still there because its slice is not over. An older one may be kept for longer, by an earlier policy.
        let is_over = change.at_ms.saturating_add(keep_ms) <= self.now_ms;
        if is_elsewhere || is_over {
            return Ok(true);
        }
        let number = change.number;
        self.found.insert(number, change);
        if self.found.len() > self.limit + 1 {
            self.found.pop_first();
        }
        // What is older than all that are kept is not wanted any more.
        Ok(self.oldest().is_none_or(|oldest| oldest.number <= number))
    }

    /// The oldest of as many as are wanted.
    fn oldest(&self) -> Option<&AuditChange> {
        self.found.first_key_value().filter(|_| self.found.len() > self.limit).map(|(_, change)| change)
    }
}

impl Engine {
    pub(crate) fn audit_page(&self, query: &AuditQuery, now_ms: u64) -> Result<AuditPage, Unavailable> {
        let index = partition(slot(&query.key), self.partitions.len() as u16);
        let page = self.audit_of(index, query, now_ms)?;
        let offset = self.partitions[usize::from(index)].lock().last_offset;
        self.settle(offset.max(self.policies_offset.load(Ordering::Acquire)))?;
        Ok(page)
    }

    /// One page of the trail of a counter of this partition, as it is here. Blocks.
    pub fn audit_of(&self, index: u16, query: &AuditQuery, now_ms: u64) -> Result<AuditPage, Unavailable> {
        self.collect_page(index, query, now_ms).map_err(cold_unavailable)
    }

    fn collect_page(&self, index: u16, query: &AuditQuery, now_ms: u64) -> Result<AuditPage, ColdError> {
        let keys = [&query.key[..], EVERY_KEY];
        // Memory first: what goes to the cold store meanwhile is found there again.
        let (mut page, keep_ms) = {
            let held = self.partitions[usize::from(index)].lock();
            let mut page = Selection {
                query,
                now_ms: now_ms.max(held.time_ms),
                newest: held.sequence << 1 | 1,
                limit: query.limit.clamp(1, AUDIT_PAGE_MAX),
                found: BTreeMap::new(),
            };
            for key in keys {
                for notes in [&held.trail.recent, &*held.trail.cutting] {
                    for noted in notes.of(key).rev() {
                        if !page.take(noted.keep_ms, &noted.change).map_err(damaged("memory"))? {
                            break;
                        }
                    }
                }
            }
            (page, held.limits(&query.key).audit_ms)
        };
        let mut shelves: Vec<Shelf> =
            self.cold.spaces()?.iter().filter_map(|space| Shelf::from_space(space)).collect();
        shelves.sort_by_key(|shelf| std::cmp::Reverse(shelf.slice.end_ms));
        for shelf in shelves {
            if page.oldest().is_some_and(|oldest| oldest.at_ms >= shelf.slice.end_ms) {
                break;
            }
            if shelf.slice.end_ms <= query.from_ms || shelf.slice.start_ms > query.to_ms {
                continue;
            }
            for key in keys {
                self.collect_shelf(index, key, shelf, &mut page)?;
            }
        }
        let mut changes: Vec<AuditChange> = page.found.into_values().rev().collect();
        let more = changes.len() > page.limit;
        changes.truncate(page.limit);
        let since_ms = Some(page.now_ms.saturating_sub(keep_ms)).filter(|_| keep_ms > 0);
        Ok(AuditPage { changes, more, since_ms })
    }

    fn collect_shelf(
        &self,
        index: u16,
        key: &[u8],
        shelf: Shelf,
        page: &mut Selection<'_>,
    ) -> Result<(), ColdError> {
        let space = shelf.space();
        let newest = page.query.before.map_or(page.newest, |before| before.min(page.newest));
        let (from, to) = (rows::audit_key(index, key, newest), rows::audit_key(index, key, 0));
        let mut failed = Ok(());
        self.cold.scan(&space, Bound::Included(&from), Bound::Included(&to), &mut |_, change| {
            match page.take(shelf.keep_ms, change) {
                Ok(true) => return ControlFlow::Continue(()),
                Ok(false) => {}
                Err(malformed) => failed = Err(damaged(&space)(malformed)),
            }
            ControlFlow::Break(())
        })?;
        failed
    }

    /// Reads every row of a partition's trail, and whether it lies where it belongs. The partition is locked.
    pub(crate) fn verify_trail(&self, held: &Partition) -> Result<CheckedTrail, ColdError> {
        let mut recent: BTreeSet<Vec<u8>> = BTreeSet::new();
        for notes in [&held.trail.recent, &*held.trail.cutting] {
            for (key, noted) in &notes.by_key {
                recent.extend(noted.iter().map(|noted| rows::audit_key(held.index, key, noted.number)));
            }
        }
        let mut checked = CheckedTrail { rows: recent.len() as u64, problem: None };
        for space in self.cold.spaces()? {
            let Some(shelf) = Shelf::from_space(&space) else { continue };
            let (from, to) = rows::audit_rows(held.index);
            self.cold.scan(&space, Bound::Included(&from), Bound::Excluded(&to), &mut |row, change| {
                checked.rows += u64::from(!recent.contains(row));
                match self.misplaced(held.index, shelf, row, change) {
                    None => return ControlFlow::Continue(()),
                    Some(why) => checked.problem = Some(format!("a trail in space {space}: {why}")),
                }
                ControlFlow::Break(())
            })?;
        }
        Ok(checked)
    }

    /// Why a row of a shelf cannot be what was written there.
    fn misplaced(&self, index: u16, shelf: Shelf, row: &[u8], change: &[u8]) -> Option<String> {
        let mut reader = Reader::new(change);
        let change = match read_change(&mut reader) {
            Ok(change) if reader.is_empty() => change,
            Ok(_) => return Some("a row with bytes behind its end".to_owned()),
            Err(malformed) => return Some(malformed.to_string()),
        };
        let is_here = Shelf::of(change.at_ms, shelf.keep_ms) == shelf
            && rows::audit_number(row) == Some(change.number)
            && rows::audit_trail(row).is_some_and(|key| {
                key.is_empty() || partition(slot(key), self.partitions.len() as u16) == index
            });
        (!is_here).then(|| format!("the row of change {} lies where it does not belong", change.number))
    }

    /// Shows every row of a partition's trail once, with its key: those of which none is dropped yet, at any replica. The partition
    /// is locked.
    pub(crate) fn for_each_change(
        &self,
        held: &Partition,
        mut show: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), ColdError> {
        let mut seen: BTreeSet<Vec<u8>> = BTreeSet::new();
        let mut add = |row: Vec<u8>, change: &[u8]| {
            let is_known = rows::audit_number(&row).is_some_and(|number| number <= held.sequence << 1 | 1);
            if is_known && seen.insert(row.clone()) {
                show(&row, change);
            }
        };
        for notes in [&held.trail.recent, &*held.trail.cutting] {
            for (key, noted) in &notes.by_key {
                for noted in noted {
                    if !Shelf::of(noted.at_ms, noted.keep_ms).is_over(held.time_ms) {
                        add(rows::audit_key(held.index, key, noted.number), &noted.change);
                    }
                }
            }
        }
        for space in self.cold.spaces()? {
            if Shelf::from_space(&space).is_some_and(|shelf| !shelf.is_over(held.time_ms)) {
                let (from, to) = rows::audit_rows(held.index);
                self.cold.scan(
                    &space,
                    Bound::Included(&from),
                    Bound::Excluded(&to),
                    &mut |row, change| {
                        add(row.to_vec(), change);
                        ControlFlow::Continue(())
                    },
                )?;
            }
        }
        Ok(())
    }
}

/// What a check found of a trail.
pub struct CheckedTrail {
    /// How many rows it has.
    pub rows: u64,
    /// What is wrong with the first that is.
    pub problem: Option<String>,
}

fn damaged(space: &str) -> impl Fn(Malformed) -> ColdError {
    move |malformed| ColdError::Damaged(format!("a trail in space {space}: {malformed}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shelves_are_named() {
        let shelf = Shelf::of(1_790_000_000_000, 30 * 86_400_000);
        assert_eq!(Shelf::from_space(&shelf.space()), Some(shelf));
        assert_eq!(Shelf::from_space("ids-0000000000001-0000000000002"), None);
        assert!(!shelf.is_over(shelf.slice.end_ms + shelf.keep_ms - 1));
        assert!(shelf.is_over(shelf.slice.end_ms + shelf.keep_ms));
        assert!(Shelf::of(u64::MAX / 1_000, u64::MAX / 7).space().len() <= 64);
    }
}
