//! One partition: a range of slots with its counters, ids, sessions and its own order of changes.
//!
//! Every effect takes the next sequence, so that the sequence of a section of the log says whether a checkpoint
//! contains it. Everything here happens under the partition's lock and never waits for anything. A change goes three
//! ways at once: into the table, into the effects of the running batch (which the engine appends to the log before it
//! lets go of the lock), and, while a checkpoint collects, as a pre-image to the checkpoint.

use std::collections::HashMap;
use std::sync::Arc;

use quipu_counting::kinds::Decided;
use quipu_counting::{
    Body, Cell, Change, Identity, Limits, NEVER, Policies, Ranking, Remembered, Session, Whole,
};
use quipu_wire::entry;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::bodies::Bodies;
use crate::expiries::Expiries;
use crate::ids::Ids;
use crate::record::{EPOCHS, Flags};
use crate::table::{Fate, RecordNumber, Table};
use crate::trail::Trail;
use crate::watching::Watch;

/// Evictions are counted in so many groups of keys, so that a cold read can tell whether the key it read may
/// have been changed, written and evicted again behind its back.
const EVICTION_GROUPS: usize = 256;
/// A rough size of a record, for deciding whether sweeping a chunk pays.
const USUAL_RECORD_BYTES: usize = 64;
/// Chunks swept at most per batch, so that one batch never pays for all.
const SWEEPS_PER_BATCH: usize = 2;
/// Bodies the eviction looks at per batch, for the same reason.
const BODIES_PER_BATCH: usize = 16;

/// See the head of this file.
pub struct Partition {
    /// Its number.
    pub index: u16,
    /// Counters in memory.
    pub table: Table,
    /// What some of them have beyond their records.
    pub bodies: Bodies,
    /// Remembered request ids.
    pub ids: Ids,
    /// Who changed what, where policies want it kept.
    pub trail: Trail,
    /// What limits its counters. All partitions have the same.
    pub policies: Arc<Policies>,
    /// Producer sessions, all of them; `true` for those changed since the last cut.
    pub sessions: HashMap<Box<[u8]>, (Session, bool)>,
    /// When counters in memory expire.
    pub expiries: Expiries,
    /// Number of the last change.
    pub sequence: u64,
    /// Entry time of the last batch; never goes back.
    pub time_ms: u64,
    /// Sum of all values, kept by every effect: what the sum of the cells must be.
    pub ledger: i128,
    /// Counters that exist, in memory or not, expired ones included until they are removed.
    pub count: u64,
    /// How often everything was deleted; names the space in the cold store.
    pub generation: u32,
    /// Whether what is not in the table does not exist. Evicting a counter ends it; only warming up after a restart and
    /// deleting everything bring it back.
    pub complete: bool,
    /// End in the log of the last record that touched this partition: what its state may not be shown before.
    pub last_offset: u64,
    /// The sequence when the last checkpoint began, or at the start.
    pub cut_sequence: u64,
    /// How many checkpoints are durable; a look for an id on disk is valid only between two of them.
    pub checkpoints: u64,
    /// How many existing counters were evicted since the start.
    pub evicted: u64,
    /// Rows of the expiry index that are done with and go at the next cut.
    pub due_rows: Vec<Vec<u8>>,
    /// Where replicated: up to where it has carried out what was agreed on; empty while it is not here.
    pub mark: Vec<u8>,
    /// What the mark was at the last durable checkpoint.
    pub durable_mark: Vec<u8>,
    /// Which generation that checkpoint is of: an earlier one from the moment everything is deleted until the next one.
    pub durable_generation: u32,
    /// Effects of the running batch.
    pub effects: Vec<u8>,
    /// The running checkpoint.
    pub cut: CutPhase,
    /// What is noted of changes, for each who watches.
    pub watches: Vec<Watch>,
    /// Which counters are asked for most. Nothing depends on it, and nobody keeps it.
    pub hot: Ranking,
    evictions: Box<[u32; EVICTION_GROUPS]>,
    /// Which of the two dirty flags is the current one.
    odd: bool,
    /// Marks records that the log knows by their numbers. The next one begins with every cut: replay starts at a cut, and
    /// needs every definition after it.
    log_epoch: u8,
    hash_seed: u64,
    /// Next chunk the eviction looks at.
    hand: usize,
}

/// A copy of the eviction counts.
pub struct EvictionStamps(Box<[u32; EVICTION_GROUPS]>);

impl EvictionStamps {
    /// The one for a key.
    pub fn of(&self, hash: u32) -> u32 {
        self.0[eviction_group(hash)]
    }
}

/// How far the checkpoint of a partition is.
pub enum CutPhase {
    /// None is running.
    None,
    /// Cells are being collected; holds what cells that changed meanwhile were at the cut.
    Collecting(Vec<(Vec<u8>, Whole)>),
    /// All is collected and on its way to the cold store.
    Writing,
    /// It is over, durable or failed; marks are being taken off or turned into those of the next one.
    Completing,
    /// The counters were all deleted while it collected: it comes to nothing.
    Overtaken,
}

impl Partition {
    /// An empty partition.
    pub fn new(index: u16, hash_seed: u64) -> Partition {
        Partition {
            index,
            table: Table::new(),
            bodies: Bodies::default(),
            ids: Ids::default(),
            trail: Trail::default(),
            policies: Arc::default(),
            sessions: HashMap::new(),
            expiries: Expiries::default(),
            sequence: 0,
            time_ms: 0,
            ledger: 0,
            count: 0,
            generation: 0,
            complete: true,
            last_offset: 0,
            cut_sequence: 0,
            checkpoints: 0,
            evicted: 0,
            due_rows: Vec::new(),
            mark: Vec::new(),
            durable_mark: Vec::new(),
            durable_generation: 0,
            effects: Vec::new(),
            cut: CutPhase::None,
            watches: Vec::new(),
            hot: Ranking::new(hash_seed as u32 ^ u32::from(index)),
            evictions: Box::new([0; EVICTION_GROUPS]),
            odd: false,
            log_epoch: 1,
            hash_seed,
            hand: 0,
        }
    }

    /// The hash of a key in this process.
    pub fn hash(&self, key: &[u8]) -> u32 {
        hash(key, self.hash_seed)
    }

    /// Starts a batch: time moves on.
    pub fn begin(&mut self, now_ms: u64) {
        self.time_ms = self.time_ms.max(now_ms);
    }

    /// What limits a counter.
    pub fn limits(&self, key: &[u8]) -> Limits {
        if self.policies.is_empty() { Limits::NONE } else { self.policies.limits(key) }
    }

    /// Carries out a change of one counter. `found` is its record, `before` the cell in it.
    #[inline]
    pub fn change(
        &mut self,
        hash: u32,
        key: &[u8],
        found: Option<RecordNumber>,
        before: Option<Cell>,
        change: &Change,
    ) {
        self.change_under(hash, key, found, before, change, None);
    }

    /// The same; with `under`, the log says in one effect that an addition of exactly this was asked for under this
    /// identity, if that is all there is to say. Returns the counter's record, and whether the log has the identity.
    #[inline]
    pub fn change_under(
        &mut self,
        hash: u32,
        key: &[u8],
        found: Option<RecordNumber>,
        before: Option<Cell>,
        change: &Change,
        under: Option<(Identity, i64)>,
    ) -> (Option<RecordNumber>, bool) {
        let after = match change {
            Change::Keep => return (found, false),
            Change::Put(cell) => Some(*cell),
            Change::Remove => None,
        };
        self.sequence += 1;
        let number = found.unwrap_or_else(|| self.table.insert(hash, key, None, Flags::NONE));
        self.touch(hash, number, key, before);
        self.leave_body(number, key, before, after);
        let delta = plain_delta(before, after, self.time_ms);
        let both = under.filter(|(_, asked)| delta == Some(*asked));
        match (delta, both) {
            (Some(delta), Some((identity, _))) => {
                entry::put_add_under(&mut self.effects, number, delta, identity);
            }
            (Some(delta), None) => entry::put_add(&mut self.effects, number, delta, 1),
            (None, _) => entry::put_put(&mut self.effects, number, after.as_ref()),
        }
        self.account(hash, before, after);
        (Some(self.table.set_cell(hash, number, after)), both.is_some())
    }

    /// Carries out what was decided about a counter with all it has; `body` is what it has now.
    pub fn change_whole(
        &mut self,
        hash: u32,
        key: &[u8],
        (found, before): (Option<RecordNumber>, Option<Cell>),
        decided: &Decided,
        body: Option<Arc<Body>>,
    ) {
        let cell = match decided.change {
            Change::Put(cell) if !decided.events.is_empty() => cell,
            _ => {
                // What it was lent comes back, unless it is left behind at once.
                if let Some(body) = body {
                    self.bodies.put(key, body);
                }
                self.change_under(hash, key, found, before, &decided.change, None);
                return;
            }
        };
        self.sequence += 1;
        let number = found.unwrap_or_else(|| self.table.insert(hash, key, None, Flags::NONE));
        self.touch(hash, number, key, before);
        entry::put_whole(&mut self.effects, number, &cell, &decided.events);
        self.account(hash, before, Some(cell));
        let number = self.table.set_cell(hash, number, Some(cell));
        self.set_body(number, key, body);
    }

    /// The counter of a record has this body from now on.
    pub fn set_body(&mut self, number: RecordNumber, key: &[u8], body: Option<Arc<Body>>) {
        let flags = self.table.flags(number);
        match body {
            Some(body) => {
                self.bodies.put(key, body);
                self.table.set_flags(number, flags.with(Flags::BODY));
            }
            None if flags.any(Flags::BODY) => {
                self.bodies.remove(key);
                self.table.set_flags(number, flags.without(Flags::BODY));
            }
            None => {}
        }
    }

    /// A body belongs to one life of a counter.
    #[inline]
    pub fn leave_body(
        &mut self,
        number: RecordNumber,
        key: &[u8],
        before: Option<Cell>,
        after: Option<Cell>,
    ) {
        let is_another = before.map(|cell| cell.birth) != after.map(|cell| cell.birth);
        if is_another && self.table.flags(number).any(Flags::BODY) {
            self.set_body(number, key, None);
        }
    }

    /// Appends what was done since [`Partition::begin`] to a record, if anything was.
    pub fn put_section(&self, record: &mut Vec<u8>) {
        if !self.effects.is_empty() {
            entry::put_section(record, self.index, self.time_ms, self.sequence, &self.effects);
        }
    }

    /// The log has that record now, up to `end`: what this partition shows must not be shown before it is durable.
    pub fn appended(&mut self, end: u64) {
        if !self.effects.is_empty() {
            self.effects.clear();
            self.effects.shrink_to(1 << 20);
            self.last_offset = end;
        }
    }

    /// Carries out so many plain additions at once: memory and log hear of their sum. Returns the counter's record.
    pub fn add_times(
        &mut self,
        hash: u32,
        key: &[u8],
        number: RecordNumber,
        (before, after): (Cell, Cell),
        times: u64,
    ) -> RecordNumber {
        self.sequence += times;
        self.touch(hash, number, key, Some(before));
        entry::put_add(&mut self.effects, number, after.value.wrapping_sub(before.value), times);
        self.account(hash, Some(before), Some(after));
        self.table.set_cell(hash, number, Some(after))
    }

    /// A record is about to change: it is dirty, the log knows it by its number, and who watches it hears of it.
    #[inline]
    fn touch(&mut self, hash: u32, number: RecordNumber, key: &[u8], before: Option<Cell>) {
        if !self.watches.is_empty() {
            self.note(hash, key);
        }
        self.mark_dirty(number, before);
        if self.table.epoch(number) != self.log_epoch {
            let has_body = self.table.flags(number).any(Flags::BODY);
            entry::put_define(&mut self.effects, number, key, before.as_ref(), has_body);
            self.table.set_epoch(number, self.log_epoch);
        }
    }

    /// The totals after a change.
    pub fn account(&mut self, hash: u32, before: Option<Cell>, after: Option<Cell>) {
        let value = |cell: Option<Cell>| cell.map_or(0, |cell| i128::from(cell.value));
        let expiry = |cell: Option<Cell>| cell.map_or(NEVER, |cell| cell.expires_at_ms);
        self.ledger += value(after) - value(before);
        self.count = self.count + u64::from(after.is_some()) - u64::from(before.is_some());
        self.expiries.changed(hash, expiry(before), expiry(after));
    }

    /// Marks a record as changed since the last cut; saves what it was for a checkpoint that needs it.
    pub fn mark_dirty(&mut self, number: RecordNumber, before: Option<Cell>) {
        let flags = self.table.flags(number);
        let mut marked = flags.with(self.dirty_now()).with(Flags::REFERENCED);
        if before.is_none() {
            // The cold store has no row of it, or will have none once a running checkpoint is through.
            marked = marked.with(Flags::NEWBORN);
        } else if !flags.any(Flags::DIRTY) {
            // A clean record says what the cold store has.
            marked = marked.without(Flags::NEWBORN);
        }
        if self.save_image(number, before) {
            marked = marked.with(Flags::SAVED);
        }
        if matches!(self.cut, CutPhase::Completing) {
            marked = marked.without(dirty_flag(!self.odd)).without(Flags::SAVED);
        }
        if marked != flags {
            self.table.set_flags(number, marked);
        }
    }

    /// Saves what a counter is for a running checkpoint that has not collected it yet, and says whether that was needed. Must be asked
    /// before its body changes.
    #[inline]
    pub fn save_image(&mut self, number: RecordNumber, before: Option<Cell>) -> bool {
        matches!(self.cut, CutPhase::Collecting(_)) && self.save_for_cut(number, before)
    }

    fn save_for_cut(&mut self, number: RecordNumber, before: Option<Cell>) -> bool {
        let flags = self.table.flags(number);
        if let CutPhase::Collecting(before_images) = &mut self.cut
            && flags.any(dirty_flag(!self.odd))
            && !flags.any(Flags::SAVED)
        {
            let key = self.table.key(number);
            let body = if flags.any(Flags::BODY) { self.bodies.get(key).cloned() } else { None };
            before_images.push((key.to_vec(), Whole { cell: before, body }));
            self.table.set_flags(number, flags.with(Flags::SAVED));
            return true;
        }
        false
    }

    fn dirty_now(&self) -> Flags {
        dirty_flag(self.odd)
    }

    /// Remembers a request id, in memory and, unless it is there, in the log.
    pub fn remember(&mut self, remembered: Remembered, is_in_log: bool) {
        self.sequence += 1;
        if !is_in_log {
            entry::put_remember(&mut self.effects, &remembered);
        }
        self.ids.remember(remembered);
    }

    /// Moves a producer session on, in memory and in the log.
    pub fn set_session(&mut self, producer: &[u8], session: Session) {
        self.sequence += 1;
        entry::put_session(&mut self.effects, producer, &session);
        self.sessions.insert(producer.into(), (session, true));
    }

    /// Deletes every counter.
    pub fn clear(&mut self) {
        self.sequence += 1;
        entry::put_clear(&mut self.effects);
        self.clear_cells();
        self.note_clear();
        self.generation += 1;
        self.complete = true;
        // Their rows lie in the space that is left behind.
        self.sessions.values_mut().for_each(|(_, dirty)| *dirty = true);
    }

    /// Takes every counter out of memory and out of the totals.
    pub fn clear_cells(&mut self) {
        self.table = Table::new();
        self.bodies.clear();
        self.expiries.clear();
        self.due_rows.clear();
        self.ledger = 0;
        self.count = 0;
        self.hand = 0;
        self.evictions.iter_mut().for_each(|stamp| *stamp = stamp.wrapping_add(1));
        if matches!(self.cut, CutPhase::Collecting(_)) {
            self.cut = CutPhase::Overtaken;
        }
    }

    /// Becomes another. What somebody read from the cold store for the one it was must not be believed.
    pub fn replace(&mut self, by: Partition) {
        let before = std::mem::replace(self, by);
        self.checkpoints = before.checkpoints + 1;
        self.evicted = before.evicted + 1;
        self.evictions = before.evictions;
        self.watches = before.watches;
        self.note_loss();
        self.hot = before.hot;
        self.evictions.iter_mut().for_each(|stamp| *stamp = stamp.wrapping_add(1));
    }

    /// What a cold read of this key must find unchanged before its result is believed.
    pub fn eviction_stamp(&self, hash: u32) -> u32 {
        self.evictions[eviction_group(hash)]
    }

    /// All of those, for many keys at once.
    pub fn eviction_stamps(&self) -> EvictionStamps {
        EvictionStamps(self.evictions.clone())
    }

    /// Puts what a cold read found into the table, unless somebody was faster or the read may be stale.
    /// Returns whether the key is in the table now.
    pub fn admit(&mut self, hash: u32, key: &[u8], found: Whole, stamp: u32) -> bool {
        if self.table.find(hash, key).is_some() {
            return true;
        }
        if self.eviction_stamp(hash) != stamp {
            return false;
        }
        let number = self.table.insert(hash, key, found.cell, Flags::REFERENCED);
        self.set_body(number, key, found.body);
        if let Some(cell) = found.cell {
            self.expiries.changed(hash, NEVER, cell.expires_at_ms);
        }
        true
    }

    /// The other dirty flag becomes the current one: everything marked so far belongs to the cut.
    pub fn begin_cut(&mut self) {
        debug_assert!(matches!(self.cut, CutPhase::None));
        self.odd = !self.odd;
        self.cut_sequence = self.sequence;
        self.cut = CutPhase::Collecting(Vec::new());
        self.log_epoch = self.log_epoch % EPOCHS + 1;
        if self.log_epoch == 1 {
            // At a new round of epochs old marks would look fresh.
            self.table.reset_epochs();
        }
    }

    /// Visits the cells of a chunk that belong to the cut and are not yet collected.
    pub fn collect(&mut self, chunk: usize, mut visit: impl FnMut(&[u8], Option<Cell>, Option<&Body>)) {
        if !self.table.chunk_is_dirty(chunk) {
            return;
        }
        let wanted = dirty_flag(!self.odd);
        for number in self.table.chunk_records(chunk) {
            let flags = self.table.flags(number);
            if flags.any(wanted) && !flags.any(Flags::SAVED) {
                let key = self.table.key(number);
                let body =
                    if flags.any(Flags::BODY) { self.bodies.get(key).map(|body| &**body) } else { None };
                visit(key, self.table.cell(number), body);
                self.table.set_flags(number, flags.with(Flags::SAVED));
            }
        }
    }

    /// Takes the marks of the cut off a chunk. With `durable` the cold store has the cells now, and tombstones
    /// that nobody touched since are gone for good; without it they stay as dirty as before.
    pub fn complete_chunk(&mut self, chunk: usize, durable: bool) {
        if !self.table.chunk_is_dirty(chunk) {
            return;
        }
        let (past, now) = (dirty_flag(!self.odd), self.dirty_now());
        for number in self.table.chunk_records(chunk) {
            let flags = self.table.flags(number);
            if !flags.any(past) {
                continue;
            }
            let mut left = flags.without(past).without(Flags::SAVED);
            if !durable {
                left = left.with(now);
            } else if !flags.any(now) {
                left = left.without(Flags::NEWBORN);
            }
            self.table.set_flags(number, left);
            if left.any(Flags::ABSENT) && !left.any(Flags::DIRTY) {
                let hash = self.hash(self.table.key(number));
                self.bump_evictions(hash);
                self.table.remove(hash, number);
            }
        }
    }

    fn bump_evictions(&mut self, hash: u32) {
        let stamp = &mut self.evictions[eviction_group(hash)];
        *stamp = stamp.wrapping_add(1);
    }

    /// Bytes this partition holds in memory.
    pub fn allocated_bytes(&self) -> usize {
        self.table.allocated_bytes()
            + self.bodies.bytes()
            + self.ids.recent_bytes()
            + self.ids.tag_bytes()
            + self.trail.bytes()
    }

    /// By how many bytes what a checkpoint and eviction can free is above its share. Tags of old ids can only
    /// be waited out; at the worst they leave a quarter of the budget to everything else.
    pub fn excess_bytes(&self, budget_bytes: usize) -> usize {
        let share = budget_bytes.saturating_sub(self.ids.tag_bytes()).max(budget_bytes / 4);
        (self.table.allocated_bytes() + self.bodies.bytes() + self.ids.recent_bytes() + self.trail.bytes())
            .saturating_sub(share)
    }

    /// Evicts clean counters until the partition fits its budget again or enough was done for now.
    pub fn make_room(&mut self, budget_bytes: usize) {
        if !matches!(self.cut, CutPhase::None) {
            return;
        }
        self.evict_bodies(budget_bytes);
        let mut looked_at = 0;
        let mut sweeps = 0;
        let chunks = self.table.chunk_count();
        while sweeps < SWEEPS_PER_BATCH && looked_at < chunks && self.excess_bytes(budget_bytes) > 0 {
            let chunk = self.hand % chunks;
            self.hand = chunk + 1;
            looked_at += 1;
            // Copying dirty records around frees nothing: a chunk must promise at least half of itself.
            let promise = self.table.chunk_reclaimable(chunk, USUAL_RECORD_BYTES).unwrap_or(0);
            if promise * 2 < crate::table::CHUNK_BYTES {
                continue;
            }
            self.sweep(chunk);
            sweeps += 1;
        }
    }

    /// Evicts clean counters with bodies, each larger than many without.
    fn evict_bodies(&mut self, budget_bytes: usize) {
        for _ in 0..BODIES_PER_BATCH {
            if self.excess_bytes(budget_bytes) == 0 {
                return;
            }
            let Some(key) = self.bodies.next() else { return };
            let hash = self.hash(&key);
            let Some(number) = self.table.find(hash, &key) else { continue };
            let flags = self.table.flags(number);
            let has_expired = self.table.cell(number).is_some_and(|cell| !cell.is_live(self.time_ms));
            if flags.any(Flags::DIRTY) || has_expired {
                continue;
            }
            if flags.any(Flags::REFERENCED) {
                self.table.set_flags(number, flags.without(Flags::REFERENCED));
                continue;
            }
            self.bodies.remove(&key);
            self.bump_evictions(hash);
            self.evicted += 1;
            self.complete = false;
            self.table.remove(hash, number);
        }
    }

    fn sweep(&mut self, chunk: usize) {
        let mut left_bodies: Vec<Vec<u8>> = Vec::new();
        let (seed, time_ms) = (self.hash_seed, self.time_ms);
        let (evictions, evicted, complete) = (&mut self.evictions, &mut self.evicted, &mut self.complete);
        self.table.sweep_chunk(
            chunk,
            |key| hash(key, seed),
            |flags, key, expires_at_ms| {
                // What has expired is about to be removed, which takes the counter in memory.
                let has_expired = expires_at_ms <= time_ms && !flags.any(Flags::ABSENT);
                if flags.any(Flags::DIRTY) || has_expired {
                    Fate::Stay
                } else if flags.any(Flags::REFERENCED) {
                    Fate::StayUnreferenced
                } else {
                    let stamp = &mut evictions[eviction_group(hash(key, seed))];
                    *stamp = stamp.wrapping_add(1);
                    if flags.any(Flags::BODY) {
                        left_bodies.push(key.to_vec());
                    }
                    if !flags.any(Flags::ABSENT) {
                        *evicted += 1;
                        *complete = false;
                    }
                    Fate::Leave
                }
            },
        );
        left_bodies.iter().for_each(|key| self.bodies.remove(key));
    }
}

/// The hash of a key in a process whose seed is `seed`.
#[inline]
pub fn hash(key: &[u8], seed: u64) -> u32 {
    xxh3_64_with_seed(key, seed) as u32
}

fn eviction_group(hash: u32) -> usize {
    (hash >> 24) as usize
}

fn dirty_flag(odd: bool) -> Flags {
    if odd { Flags::DIRTY_ODD } else { Flags::DIRTY_EVEN }
}

/// The delta, if the change is nothing but an addition at the batch's time.
#[inline]
pub fn plain_delta(before: Option<Cell>, after: Option<Cell>, time_ms: u64) -> Option<i64> {
    let (before, after) = (before?, after?);
    let is_plain = after.birth == before.birth
        && after.expires_at_ms == before.expires_at_ms
        && after.version == before.version.wrapping_add(1)
        && after.updated_at_ms == time_ms;
    if is_plain { after.value.checked_sub(before.value) } else { None }
}
