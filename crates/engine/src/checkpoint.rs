//! Checkpoints: a partition as it was at one sequence, written to the cold store as a whole.
//!
//! The cut itself is a moment under the partition's lock: the dirty flag in use is exchanged for the other one.
//! Cells that carry the old flag belong to the cut; they are collected chunk by chunk while the partition goes
//! on serving, and one that is changed before it was collected leaves its pre-image. Only when the log is
//! durable up to the cut does anything reach the cold store: first the request ids and the trail, then, as the one atomic
//! write that makes the checkpoint true, the cells with the totals and the sequence.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use quipu_counting::{Body, Cell, NEVER};
use quipu_store::LogError;
use quipu_store::cold::{ColdError, Rows};
use quipu_wire::entry;

use crate::engine::Engine;
use crate::ids::{Run, Slice, tag};
use crate::partition::CutPhase;
use crate::recent::Recent;
use crate::rows::{self, Cut};
use crate::trail::Notes;

/// Ids in one run: their tags are one row of the cold store, which has its limit.
const IDS_PER_RUN_MAX: usize = 1 << 20;

/// What is taken down at the moment of the cut.
struct Begun {
    cut: Cut,
    mark: Vec<u8>,
    generation: u32,
    /// Request ids remembered since the last cut.
    ids: Arc<Recent>,
    /// Rows of the trail since then.
    trail: Arc<Notes>,
    /// Producers whose session is in it, marked as changed again if the checkpoint fails.
    producers: Vec<Box<[u8]>>,
    /// Rows of the expiry index that go with it, kept for the next one if it fails.
    due_rows: Vec<Vec<u8>>,
    /// Everything but the cells.
    rows: Rows,
}

impl Engine {
    /// Checkpoints one partition. If it fails before its one write, everything stays as it was and it can be tried again;
    /// a failure after that only leaves old spaces and segments to the next one.
    pub fn checkpoint(&self, partition: u16) -> Result<(), ColdError> {
        self.checkpoint_in_steps(partition, &mut || {})
    }

    /// The same, calling `between` wherever no lock of a partition is held: what other threads could do there, a
    /// simulation does. Only batches may run in it, by [`Counters::execute`](quipu_counting::Counters::execute).
    pub fn checkpoint_in_steps(&self, partition: u16, between: &mut dyn FnMut()) -> Result<(), ColdError> {
        let mut cuts = self.cuts.lock();
        let result = self.checkpoint_alone(partition, &mut cuts, between);
        match &result {
            Ok(()) => self.counts.checkpoints.add(1),
            Err(error) => {
                self.counts.checkpoint_failures.add(1);
                if matches!(error, ColdError::Stopped(_)) {
                    self.fail(error.to_string());
                }
            }
        }
        result
    }

    fn checkpoint_alone(
        &self,
        partition: u16,
        cuts: &mut [u64],
        between: &mut dyn FnMut(),
    ) -> Result<(), ColdError> {
        self.check_not_failed()?;
        let offset = match (&self.replication, self.replication()) {
            (None, _) => None,
            // Asked before the cut is made: what is behind an earlier mark is behind this one too.
            (Some(_), Some(replication)) => {
                let needed = replication.needed_from(partition, &self.mark(partition));
                Some(needed.map_err(refused)?)
            }
            (Some(_), None) => return Err(ColdError::Refused("nobody orders this partition yet".into())),
        };
        let Begun { cut, mark, generation, ids, trail, producers, due_rows, rows } =
            self.begin_cut(partition, offset)?;
        let written = self.collect(partition, rows, between).and_then(|rows| match rows {
            Some(rows) => self.write_cut(partition, generation, &cut, (ids, trail), rows, between).map(Some),
            None => Ok(None),
        });
        between();
        let runs = written.as_ref().ok().and_then(Option::as_deref);
        self.end_cut(partition, runs, &producers, between);
        if runs.is_some() {
            cuts[usize::from(partition)] = cut.offset;
            if let Some(replication) = self.replication() {
                let mut held = self.partitions[usize::from(partition)].lock();
                held.durable_mark.clone_from(&mark);
                held.durable_generation = generation;
                drop(held);
                replication.checkpointed(partition);
            }
            self.drop_earlier_lives(partition, generation)?;
            let oldest = self.needed_from(cuts);
            self.oldest_cut.store(oldest, Ordering::Release);
            self.log.free_below(oldest).map_err(refused)?;
        } else {
            let mut held = self.partitions[usize::from(partition)].lock();
            if held.generation == generation {
                held.due_rows.extend(due_rows);
            }
        }
        written.map(|_| ())
    }

    fn begin_cut(&self, partition: u16, offset: Option<u64>) -> Result<Begun, ColdError> {
        let mut held = self.partitions[usize::from(partition)].lock();
        let cut = Cut {
            sequence: held.sequence,
            time_ms: held.time_ms,
            // Every record of this partition so far ends at or before this.
            offset: offset.unwrap_or_else(|| self.log.end()),
            count: held.count,
            ledger: held.ledger,
        };
        let counters = held.table.len().min(ROWS_AT_FIRST_MAX);
        let mut rows = Rows::with_capacity(counters, counters * ROW_BYTES);
        rows.push(rows::CUT_KEY, Some(&cut.encode()))?;
        // Of a folder that counts alone those of the first partition hold for all; once it is that of a node, each has its own.
        rows.push(rows::POLICIES_KEY, Some(&rows::encode_policies(&held.policies)))?;
        if self.replication.is_some() {
            rows.push(rows::MARK_KEY, Some(&held.mark))?;
        }
        let mut producers = Vec::new();
        for (producer, (session, dirty)) in &mut held.sessions {
            if std::mem::take(dirty) {
                producers.push(producer.clone());
                let mut value = Vec::new();
                entry::put_session_value(&mut value, session);
                rows.push(&rows::session_key(producer), Some(&value))?;
            }
        }
        let due_rows = std::mem::take(&mut held.due_rows);
        for row in &due_rows {
            rows.push(row, None)?;
        }
        held.begin_cut();
        let mark = held.mark.clone();
        Ok(Begun {
            cut,
            mark,
            generation: held.generation,
            ids: held.ids.begin_cut(),
            trail: held.trail.begin_cut(),
            producers,
            due_rows,
            rows,
        })
    }

    /// The cells of the cut; `None` when all counters were deleted meanwhile.
    fn collect(
        &self,
        partition: u16,
        mut rows: Rows,
        between: &mut dyn FnMut(),
    ) -> Result<Option<Rows>, ColdError> {
        let lock = || self.partitions[usize::from(partition)].lock();
        let mut row = CellRow::default();
        let mut failed = Ok(());
        let mut push = |key: &[u8], cell: Option<Cell>, body: Option<&Body>, rows: &mut Rows| {
            if failed.is_ok() {
                failed = row.push(key, cell, body, rows);
            }
        };
        let mut chunk = 0;
        loop {
            between();
            let mut held = lock();
            if matches!(held.cut, CutPhase::Overtaken) {
                return Ok(None);
            }
            if chunk >= held.table.chunk_count() {
                let phase = std::mem::replace(&mut held.cut, CutPhase::Writing);
                drop(held);
                if let CutPhase::Collecting(before_images) = phase {
                    for (key, image) in before_images {
                        push(&key, image.cell, image.body.as_deref(), &mut rows);
                    }
                }
                break;
            }
            held.collect(chunk, |key, cell, body| push(key, cell, body, &mut rows));
            chunk += 1;
        }
        failed?;
        rows.sort();
        Ok(Some(rows))
    }

    fn write_cut(
        &self,
        partition: u16,
        generation: u32,
        cut: &Cut,
        (ids, trail): (Arc<Recent>, Arc<Notes>),
        rows: Rows,
        between: &mut dyn FnMut(),
    ) -> Result<Vec<(Slice, Run)>, ColdError> {
        // Write-ahead: nothing reaches the cold store that the log could still lose.
        self.log.commit(cut.offset).map_err(refused)?;
        let mut runs = Vec::new();
        for (slice, mut places) in by_slice(&ids, self.id_window_ms) {
            for (part, places) in places.chunks_mut(IDS_PER_RUN_MAX).enumerate() {
                between();
                // Every id took a sequence and some bytes of the log, so the last cut is further back than there are parts.
                let number = if self.replication.is_some() { cut.sequence } else { cut.offset };
                let run = Run::of(number - part as u64, places.len());
                self.cold.write(&slice.space(), &run_rows(partition, run, &ids, places)?)?;
                runs.push((slice, run));
            }
        }
        for (shelf, rows) in trail.rows(partition)? {
            between();
            self.cold.write(&shelf.space(), &rows)?;
        }
        // Asked again: what was collected may be of a batch that the log did not take.
        self.check_not_failed()?;
        between();
        self.cold.write(&rows::partition_space(partition, generation), &rows)?;
        self.counts.checkpoint_rows.add(rows.len() as u64);
        Ok(runs)
    }

    /// With `runs` the checkpoint is durable and these are its ids on disk.
    fn end_cut(
        &self,
        partition: u16,
        runs: Option<&[(Slice, Run)]>,
        producers: &[Box<[u8]>],
        between: &mut dyn FnMut(),
    ) {
        let lock = || self.partitions[usize::from(partition)].lock();
        {
            let mut held = lock();
            held.cut = CutPhase::Completing;
            match runs {
                Some(runs) => {
                    held.ids.end_cut(runs, self.id_window_ms);
                    held.trail.end_cut();
                    held.checkpoints += 1;
                }
                None => {
                    held.ids.abort_cut();
                    held.trail.abort_cut();
                    for producer in producers {
                        if let Some((_, dirty)) = held.sessions.get_mut(producer) {
                            *dirty = true;
                        }
                    }
                }
            }
        }
        let mut chunk = 0;
        loop {
            between();
            let mut held = lock();
            if chunk >= held.table.chunk_count() {
                held.cut = CutPhase::None;
                held.make_room(self.partition_budget_bytes);
                return;
            }
            held.complete_chunk(chunk, runs.is_some());
            chunk += 1;
        }
    }

    /// After a failure memory may show what the log does not have; none of it may reach the cold store.
    fn check_not_failed(&self) -> Result<(), ColdError> {
        self.failed().map_or(Ok(()), |reason| Err(ColdError::Refused(reason)))
    }

    pub(crate) fn drop_earlier_lives(&self, partition: u16, generation: u32) -> Result<(), ColdError> {
        for space in self.cold.spaces()? {
            if rows::parse_partition_space(&space)
                .is_some_and(|(of, life)| of == partition && life < generation)
            {
                self.cold.drop_space(&space)?;
            }
        }
        Ok(())
    }
}

/// Why the log does not let a checkpoint be made. That it has no room is no more than that: there will be some again.
fn refused(error: LogError) -> ColdError {
    match error {
        LogError::Full(why) => {
            let source = io::Error::new(io::ErrorKind::StorageFull, why.to_string());
            ColdError::Full { action: "write what the log must say before a checkpoint".into(), source }
        }
        other => ColdError::Refused(other.to_string()),
    }
}

/// Buffers of the row being written.
#[derive(Default)]
struct CellRow {
    key: Vec<u8>,
    value: Vec<u8>,
}

impl CellRow {
    fn push(
        &mut self,
        key: &[u8],
        cell: Option<Cell>,
        body: Option<&Body>,
        rows: &mut Rows,
    ) -> Result<(), ColdError> {
        self.key.clear();
        rows::put_cell_key(&mut self.key, key);
        let Some(cell) = cell else { return rows.push(&self.key, None) };
        self.value.clear();
        entry::put_cell(&mut self.value, &cell);
        if let Some(body) = body {
            body.put(&mut self.value);
        }
        rows.push(&self.key, Some(&self.value))?;
        if cell.expires_at_ms != NEVER {
            rows.push(&rows::expiry_key(cell.expires_at_ms, key), Some(&[]))?;
        }
        Ok(())
    }
}

/// A checkpoint begins with room for so many counters at most, of about so many bytes.
const ROWS_AT_FIRST_MAX: usize = 1 << 17;
const ROW_BYTES: usize = 64;
/// About what an id takes in a row, its tag included.
const ID_BYTES: usize = 48;
/// Ids lie in memory in the order they came, and are written in another: each is a wait for memory, unless it is asked for
/// so many ids before its turn.
const LOOK_AHEAD: usize = 16;

/// An id of the cut: the first bits of its identity, then its place.
type ByBucket = u64;

fn by_slice(ids: &Recent, window_ms: u64) -> BTreeMap<Slice, Vec<ByBucket>> {
    let mut slices: BTreeMap<Slice, Vec<ByBucket>> = BTreeMap::new();
    for (place, stored) in ids.iter() {
        let first_bits = (stored.identity() >> 96) as u64;
        let slice = Slice::of(stored.at_ms(), window_ms);
        let places = slices.entry(slice).or_insert_with(|| Vec::with_capacity(ids.len()));
        places.push(first_bits << 32 | u64::from(place));
    }
    slices
}

/// The rows of a run, in order: its ids in bins, and its tags.
fn run_rows(partition: u16, run: Run, ids: &Recent, places: &mut [ByBucket]) -> Result<Rows, ColdError> {
    // Bins are the first bits of the identity, so this is the order of bins too, and within one of time.
    places.sort_unstable();
    let mut rows = Rows::with_capacity((1 << run.bin_bits) + 1, places.len() * ID_BYTES);
    let mut tags = Vec::with_capacity(places.len());
    let mut value = Vec::new();
    let mut ahead = places.iter().skip(LOOK_AHEAD);
    for bin in places.chunk_by(|a, b| run.bin_of(*a) == run.bin_of(*b)) {
        value.clear();
        for place in bin {
            if let Some(later) = ahead.next() {
                ids.prefetch_at(*later as u32);
            }
            let stored = ids.at(*place as u32);
            value.extend_from_slice(stored.0);
            tags.push(tag(stored.identity()));
        }
        rows.push(&rows::bin_key(partition, run.number, run.bin_of(bin[0])), Some(&value))?;
    }
    // In the order in which they lie in memory: taking them over again at the next start is one walk.
    tags.sort_unstable();
    let mut description = Vec::with_capacity(1 + tags.len() * 4);
    description.push(run.bin_bits as u8);
    tags.iter().for_each(|tag| description.extend_from_slice(&tag.to_le_bytes()));
    rows.push(&rows::run_key(partition, run.number), Some(&description))?;
    Ok(rows)
}
