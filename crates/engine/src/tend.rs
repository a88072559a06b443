//! The chores: what the keeper does, one round a call. Also what a simulation calls instead of a thread.

use std::ops::{Bound, ControlFlow};
use std::sync::atomic::Ordering;

use quipu_counting::Whole;
use quipu_store::cold::ColdError;
use quipu_wire::audit::CHANGE_BYTES_MAX;
use quipu_wire::entry;

use crate::engine::Engine;
use crate::execute::unavailable;
use crate::fetch::{Fetched, Missing, decode_whole};
use crate::ids::Slice;
use crate::partition::Partition;
use crate::rows;
use crate::trail::Shelf;

/// Expired counters removed per partition and round, so that a wave of expiries never holds a lock for long.
const EXPIRIES_PER_ROUND_MAX: usize = 1_000;
/// The most an expired counter takes in the log.
const EXPIRY_BYTES_MAX: usize =
    entry::EFFECTS_BYTES_MAX + CHANGE_BYTES_MAX + 2 * quipu_counting::KEY_BYTES_MAX;
/// The rest of such a record: the header of its section.
const EXPIRIES_BASE_BYTES: usize = 64;
/// Rows of the expiry index looked at per partition and round.
const DUE_ROWS_PER_ROUND: usize = 1_000;
/// How often the expiry index on disk is looked at.
const DUE_PAUSE_MS: u64 = 1_000;
/// How often it is noted how hot keys are: rates are over seconds.
const HOT_PAUSE_MS: u64 = 1_000;
/// What a change takes in the log at least, unless it is one of a run.
const CHANGE_BYTES: u64 = 4;
/// How long a partition must be left alone, and how many new counters it must have, for a checkpoint that only makes
/// walks over counters faster: those read in memory what the cold store has no row of.
const QUIET_MS: u64 = 2_000;
const QUIET_NEWBORNS_MIN: u64 = 4_096;
/// How long no checkpoint is tried after one that failed.
const CHECKPOINT_RETRY_MS: u64 = 1_000;
/// Counters brought back into memory per partition and round after a restart.
const WARM_ROWS_PER_ROUND: usize = 10_000;
/// Bytes of them read per partition and round, so that a round of large bodies takes no more memory than one of small ones.
const WARM_BYTES_PER_ROUND: usize = 1 << 20;
/// What a counter takes in memory, roughly, for guessing whether all of them fit.
const WARM_BYTES_PER_COUNTER: u64 = 100;

/// As many as one record may hold: half a segment leaves room for its header and frame.
pub fn expiries_per_round(segment_bytes: u64) -> usize {
    let record_bytes = (segment_bytes / 2) as usize;
    (record_bytes.saturating_sub(EXPIRIES_BASE_BYTES) / EXPIRY_BYTES_MAX).clamp(1, EXPIRIES_PER_ROUND_MAX)
}

/// Where the chores stopped last time.
pub struct Chores {
    /// End of the log at the last checkpoint.
    checkpoint_at: u64,
    /// After a failure: when to try again.
    checkpoint_not_before_ms: u64,
    /// Which partitions nobody writes to.
    quiet: Vec<Quiet>,
    /// When the expiry index on disk was looked at.
    due_at_ms: u64,
    /// How far into it, by partition.
    due_from: Vec<Vec<u8>>,
    /// How far bringing counters back into memory is, by partition.
    warm: Vec<Warm>,
    /// When it was last noted how hot keys are.
    hot_at_ms: u64,
    /// The last failure said, so that it is not said twenty times a second.
    complaint: String,
}

/// Since when a partition has not changed.
#[derive(Clone, Default)]
struct Quiet {
    sequence: u64,
    since_ms: u64,
    /// Whether nothing is left to be done about it.
    is_settled: bool,
}

impl Quiet {
    /// Whether it is time to write its new counters out.
    fn is_due(&mut self, held: &Partition, now_ms: u64) -> bool {
        if self.sequence != held.sequence {
            *self = Quiet { sequence: held.sequence, since_ms: now_ms, is_settled: false };
        }
        if self.is_settled || now_ms.saturating_sub(self.since_ms) < QUIET_MS {
            return false;
        }
        self.is_settled = held.table.newborns() < QUIET_NEWBORNS_MIN;
        !self.is_settled
    }
}

#[derive(Clone, Default)]
enum Warm {
    #[default]
    NotStarted,
    /// Everything up to this row is in memory; what was evicted and deleted so far.
    At {
        row: Vec<u8>,
        evicted: u64,
        generation: u32,
    },
    Done,
}

impl Chores {
    /// For so many partitions.
    pub fn new(partitions: usize) -> Chores {
        Chores {
            checkpoint_at: 0,
            checkpoint_not_before_ms: 0,
            quiet: vec![Quiet::default(); partitions],
            due_at_ms: 0,
            due_from: vec![Vec::new(); partitions],
            warm: vec![Warm::NotStarted; partitions],
            hot_at_ms: 0,
            complaint: String::new(),
        }
    }
}

impl Engine {
    /// One round of everything that is due. Failures are said in the log of the process and tried again.
    pub fn tend(&self, now_ms: u64) {
        let mut chores = self.chores.lock();
        let result = self.tend_with(&mut chores, now_ms);
        let complaint = result.err().unwrap_or_default();
        if complaint != chores.complaint {
            if !complaint.is_empty() {
                tracing::warn!("housekeeping: {complaint}");
            }
            chores.complaint = complaint;
        }
    }

    fn tend_with(&self, chores: &mut Chores, now_ms: u64) -> Result<(), String> {
        if now_ms >= chores.hot_at_ms + HOT_PAUSE_MS || now_ms < chores.hot_at_ms {
            chores.hot_at_ms = now_ms;
            self.note_hot_facts(now_ms);
        }
        if self.replication.is_some() && self.replication().is_none() {
            return Ok(());
        }
        // First what can free a full log, then what needs room in it.
        if now_ms >= chores.checkpoint_not_before_ms {
            // A failure (a full disk, mostly) does not go away within a round.
            chores.checkpoint_not_before_ms = now_ms + CHECKPOINT_RETRY_MS;
            self.checkpoint_where_due(chores, now_ms).map_err(|error| error.to_string())?;
            chores.checkpoint_not_before_ms = 0;
        }
        for index in 0..self.partitions.len() {
            match self.replication {
                None => self.expire_due(index, now_ms)?,
                // Leaders have counters removed; what followers noted about those must go too.
                Some(_) => rebuild_if_bloated(&mut self.partitions[index].lock()),
            }
        }
        if now_ms >= chores.due_at_ms + DUE_PAUSE_MS || now_ms < chores.due_at_ms {
            chores.due_at_ms = now_ms;
            for (index, from) in chores.due_from.iter_mut().enumerate() {
                self.fetch_due(index, from, now_ms).map_err(|error| error.to_string())?;
            }
            self.forget_ids(now_ms).map_err(|error| error.to_string())?;
        }
        for (index, warm) in chores.warm.iter_mut().enumerate() {
            self.warm_up(index, warm).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Removes counters in memory whose time has come.
    fn expire_due(&self, index: usize, now_ms: u64) -> Result<(), String> {
        let room = self.expiries_per_round * EXPIRY_BYTES_MAX + EXPIRIES_BASE_BYTES;
        let has_due = {
            let mut held = self.partitions[index].lock();
            rebuild_if_bloated(&mut held);
            match held.expiries.pop_due(now_ms) {
                Some(hash) => {
                    held.expiries.put_back(hash, now_ms);
                    true
                }
                None => false,
            }
        };
        if !has_due {
            return Ok(());
        }
        let appender = self.log.appender(room).map_err(|error| unavailable(error).to_string())?;
        let mut held = self.partitions[index].lock();
        if let Some(reason) = self.failed() {
            return Err(reason);
        }
        held.begin(now_ms);
        let time_ms = held.time_ms;
        let (mut removed, mut looked_at) = (0, 0);
        while looked_at < self.expiries_per_round
            && let Some(hash) = held.expiries.pop_due(time_ms)
        {
            looked_at += 1;
            let mut numbers = Vec::new();
            held.table.find_by_hash(hash, |number| numbers.push(number));
            for number in numbers {
                match held.table.cell(number) {
                    Some(cell) if !cell.is_live(time_ms) => {
                        let key = held.table.key(number).to_vec();
                        held.expire(hash, &key, number, cell);
                        removed += 1;
                    }
                    Some(cell) => held.expiries.put_back(hash, cell.expires_at_ms),
                    None => {}
                }
            }
        }
        let mut record = Vec::new();
        held.put_section(&mut record);
        if !record.is_empty() {
            let end = appender.append(&[&record]).map_err(|error| self.poison(error).to_string())?;
            held.appended(end);
        }
        self.counts.expired.add(removed as u64);
        drop((held, appender));
        self.log.roll_if_full().map(|_| ()).map_err(|error| error.to_string())
    }

    /// A checkpoint for every share of the tail that was written, of the partition whose last one is oldest; one for
    /// every partition with as many changes as would fill a share, if the log says them in less (hot counters come to
    /// the cold store as often as others); one for every partition that cannot fit its memory because of what is not yet
    /// in the cold store; and one for a partition that was left alone with many new counters, one a round.
    fn checkpoint_where_due(&self, chores: &mut Chores, now_ms: u64) -> Result<(), ColdError> {
        let share = self.log_tail_bytes / self.partitions.len() as u64;
        let end = self.log.end();
        let start = self.oldest_cut.load(Ordering::Acquire).max(chores.checkpoint_at);
        if end.saturating_sub(start) >= share {
            let oldest = self.oldest(&self.cuts.lock());
            if let Some((oldest, _)) = oldest {
                self.checkpoint(oldest)?;
            }
            // Only part of the way, so that a backlog is worked off one by one.
            chores.checkpoint_at = start + share;
        }
        let mut is_quiet_done = false;
        for (index, quiet) in chores.quiet.iter_mut().enumerate() {
            let (crowded, changed, quiet) = {
                let mut held = self.partitions[index].lock();
                held.make_room(self.partition_budget_bytes);
                let excess_bytes = held.excess_bytes(self.partition_budget_bytes);
                let changed = held.sequence - held.cut_sequence;
                (excess_bytes > self.partition_budget_bytes / 8, changed, quiet.is_due(&held, now_ms))
            };
            if crowded {
                self.relieve(index as u16)?;
            } else if changed >= share / CHANGE_BYTES || quiet && !std::mem::replace(&mut is_quiet_done, true)
            {
                self.checkpoint(index as u16)?;
            }
        }
        Ok(())
    }

    /// The partition whose last cut is furthest back, of those that need the log at all.
    fn oldest(&self, cuts: &[u64]) -> Option<(u16, u64)> {
        let all = cuts.iter().enumerate().map(|(index, offset)| (index as u16, *offset));
        all.filter(|(index, _)| self.replication.is_none() || self.holds(*index))
            .min_by_key(|(_, offset)| *offset)
    }

    /// Checkpoints a partition and evicts what that made evictable. Where the log is what is too long, the
    /// partition that holds it back is checkpointed.
    pub(crate) fn relieve(&self, partition: u16) -> Result<(), ColdError> {
        let holds_back = {
            let cuts = self.cuts.lock();
            let is_behind =
                |(_, offset): &(u16, u64)| self.log.end().saturating_sub(*offset) > self.log_tail_bytes;
            self.oldest(&cuts).filter(is_behind).map(|(index, _)| index)
        };
        if let Some(oldest) = holds_back {
            self.checkpoint(oldest)?;
        }
        let over = || {
            let held = self.partitions[usize::from(partition)].lock();
            held.excess_bytes(self.partition_budget_bytes) > 0
        };
        if over() {
            self.checkpoint(partition)?;
        }
        // A sweep first takes marks of use away, then evicts: two rounds over all chunks are enough.
        let rounds = {
            let held = self.partitions[usize::from(partition)].lock();
            held.table.chunk_count() * 2 + held.bodies.len() / 8
        };
        for _ in 0..rounds {
            if !over() {
                break;
            }
            self.partitions[usize::from(partition)].lock().make_room(self.partition_budget_bytes);
        }
        Ok(())
    }

    /// Brings counters on disk whose time has come into memory, where [`Engine::expire_due`] removes them. A row
    /// of the index is done with when its counter is gone or expires at another time; only over such rows does
    /// `from` move on, so that a counter that was evicted again before its turn is found again.
    fn fetch_due(&self, index: usize, from: &mut Vec<u8>, now_ms: u64) -> Result<(), ColdError> {
        let (space, generation) = {
            let held = self.partitions[index].lock();
            (rows::partition_space(held.index, held.generation), held.generation)
        };
        let mut due: Vec<Vec<u8>> = Vec::new();
        let start = if from.is_empty() { Bound::Included(&b"E"[..]) } else { Bound::Excluded(&from[..]) };
        let end = rows::expiry_key(now_ms.saturating_add(1), &[]);
        self.cold.scan(&space, start, Bound::Excluded(&end), &mut |row, _| {
            due.push(row.to_vec());
            if due.len() < DUE_ROWS_PER_ROUND { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        let mut missing = Missing::default();
        {
            let mut held = self.partitions[index].lock();
            if held.generation != generation {
                from.clear();
                return Ok(());
            }
            let mut all_done = true;
            for row in due {
                let (expires_at_ms, key) = rows::parse_expiry_key(&row);
                let hash = held.hash(key);
                let is_done = match held.table.find(hash, key) {
                    Some(number) => {
                        held.table.cell(number).is_none_or(|cell| cell.expires_at_ms != expires_at_ms)
                    }
                    None if held.complete || key.is_empty() => true,
                    None => {
                        missing.cell(&held, hash, key);
                        false
                    }
                };
                all_done &= is_done;
                if all_done {
                    from.clone_from(&row);
                    held.due_rows.push(row);
                }
            }
        }
        self.fetch(missing, &mut Fetched::default())
    }

    /// Drops slices of request ids whose window has passed, and those of trails. Where partitions are replicated that is for their own time to
    /// say, which is the same on all nodes.
    fn forget_ids(&self, mut now_ms: u64) -> Result<(), ColdError> {
        for partition in &self.partitions {
            let mut held = partition.lock();
            if self.replication.is_some() && !held.mark.is_empty() {
                now_ms = now_ms.min(held.time_ms);
            }
            let time_ms = if self.replication.is_some() { held.time_ms } else { now_ms };
            held.ids.drop_slices(time_ms, self.id_window_ms);
        }
        for space in self.cold.spaces()? {
            let is_over = match (Slice::from_space(&space), Shelf::from_space(&space)) {
                (Some(slice), _) => slice.is_over(now_ms, self.id_window_ms),
                (None, Some(shelf)) => shelf.is_over(now_ms),
                (None, None) => false,
            };
            if is_over {
                self.cold.drop_space(&space)?;
            }
        }
        Ok(())
    }

    /// After a restart: brings counters back into memory behind the traffic, as long as all of them fit. Once
    /// all are there, a key that is not in memory is known not to exist.
    fn warm_up(&self, index: usize, warm: &mut Warm) -> Result<(), ColdError> {
        let (space, stamps) = {
            let held = self.partitions[index].lock();
            let fits = held.count * WARM_BYTES_PER_COUNTER < self.partition_budget_bytes as u64 * 3 / 4;
            if held.complete || !fits {
                *warm = Warm::Done;
            }
            if let Warm::NotStarted = warm {
                *warm = Warm::At { row: Vec::new(), evicted: held.evicted, generation: held.generation };
            }
            (rows::partition_space(held.index, held.generation), held.eviction_stamps())
        };
        let Warm::At { row, evicted, generation } = warm else { return Ok(()) };
        let start =
            if row.is_empty() { Bound::Included(rows::CELL_PREFIX) } else { Bound::Excluded(&row[..]) };
        let mut found: Vec<(Vec<u8>, Whole)> = Vec::new();
        let (mut damage, mut bytes, mut is_all) = (Ok(()), 0, true);
        self.cold.scan(&space, start, Bound::Excluded(b"D"), &mut |row, value| {
            bytes += value.len();
            match (row.get(rows::CELL_PREFIX.len()..), decode_whole(value)) {
                (Some(key), Ok(whole)) => found.push((key.to_vec(), whole)),
                _ => damage = Err(ColdError::Damaged(format!("a cell in space {space}"))),
            }
            is_all = found.len() < WARM_ROWS_PER_ROUND && bytes < WARM_BYTES_PER_ROUND;
            if is_all { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        damage?;
        let mut held = self.partitions[index].lock();
        if held.evicted != *evicted || held.generation != *generation {
            *warm = Warm::Done;
            return Ok(());
        }
        for (key, whole) in found {
            let hash = held.hash(&key);
            if !held.admit(hash, &key, whole, stamps.of(hash)) {
                // It may have changed since it was read: the next round begins here again.
                return Ok(());
            }
            *row = rows::cell_key(&key);
        }
        if is_all {
            held.complete = true;
            *warm = Warm::Done;
        }
        Ok(())
    }
}

fn rebuild_if_bloated(held: &mut Partition) {
    if !held.expiries.is_bloated(held.table.len()) {
        return;
    }
    let mut entries = Vec::new();
    for chunk in 0..held.table.chunk_count() {
        for number in held.table.chunk_records(chunk) {
            if let Some(cell) = held.table.cell(number)
                && cell.expires_at_ms != quipu_counting::NEVER
            {
                entries.push((cell.expires_at_ms, held.hash(held.table.key(number))));
            }
        }
    }
    held.expiries.rebuild(entries.into_iter());
}
