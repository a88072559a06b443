//! Fetching what a batch needs and memory does not have.
//!
//! A cell that was read is put into the table, if nobody evicted a counter of the same group meanwhile (else the
//! row may have been older than a change that came and went). A request id that was looked up on disk is kept
//! with the batch, and believed only while no checkpoint came in between: one may have moved the id to disk, out of
//! memory, after the look.

use std::collections::HashMap;
use std::sync::Arc;

use quipu_counting::{Body, Identity, Remembered, Whole};
use quipu_store::cold::{ColdError, ColdStore};
use quipu_wire::entry::{Malformed, Reader};

use crate::engine::Engine;
use crate::ids::{Run, Slice};
use crate::partition::Partition;
use crate::rows;

/// What an attempt did not find in memory.
#[derive(Default)]
pub struct Missing {
    cells: Vec<MissingCell>,
    ids: Vec<MissingId>,
}

struct MissingCell {
    partition: u16,
    hash: u32,
    key: Vec<u8>,
}

struct MissingId {
    partition: u16,
    identity: Identity,
    runs: Vec<(Slice, Run)>,
    checkpoints: u64,
}

impl Missing {
    /// A counter that is not in the table.
    pub fn cell(&mut self, held: &Partition, hash: u32, key: &[u8]) {
        self.cells.push(MissingCell { partition: held.index, hash, key: key.to_vec() });
    }

    /// A request id that may be on disk.
    pub fn id(&mut self, held: &Partition, identity: Identity) {
        let (partition, checkpoints) = (held.index, held.checkpoints);
        self.ids.push(MissingId { partition, identity, runs: held.ids.candidates(identity), checkpoints });
    }

    /// Whether everything was there.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty() && self.ids.is_empty()
    }
}

/// Ids that were looked up on disk for one batch.
#[derive(Default)]
pub struct Fetched {
    ids: HashMap<(u16, Identity), (u64, Option<Remembered>)>,
}

impl Fetched {
    /// Whether the id was looked up since the last checkpoint.
    pub fn knows(&self, partition: u16, identity: Identity, checkpoints: u64) -> bool {
        self.ids.get(&(partition, identity)).is_some_and(|(stamp, _)| *stamp == checkpoints)
    }

    /// What was found.
    pub fn remembered(&self, partition: u16, identity: Identity) -> Option<Remembered> {
        self.ids.get(&(partition, identity)).and_then(|(_, found)| *found)
    }
}

impl Engine {
    /// Reads what is missing: cells into the table, ids into `fetched`.
    pub(crate) fn fetch(&self, missing: Missing, fetched: &mut Fetched) -> Result<(), ColdError> {
        for wanted in missing.cells {
            let lock = || self.partitions[usize::from(wanted.partition)].lock();
            let (generation, stamp) = {
                let held = lock();
                if held.complete || held.table.find(wanted.hash, &wanted.key).is_some() {
                    continue;
                }
                (held.generation, held.eviction_stamp(wanted.hash))
            };
            let found = read_whole(&*self.cold, wanted.partition, generation, &wanted.key)?;
            self.counts.cold_reads.add(1);
            // If it is not admitted the next attempt finds it missing again and reads anew.
            lock().admit(wanted.hash, &wanted.key, found, stamp);
        }
        for wanted in missing.ids {
            let found = read_id(&*self.cold, wanted.partition, wanted.identity, &wanted.runs)?;
            self.counts.cold_id_reads.add(1);
            fetched.ids.insert((wanted.partition, wanted.identity), (wanted.checkpoints, found));
        }
        Ok(())
    }
}

/// A counter with all it has in the cold store.
pub fn read_whole(
    cold: &dyn ColdStore,
    partition: u16,
    generation: u32,
    key: &[u8],
) -> Result<Whole, ColdError> {
    let space = rows::partition_space(partition, generation);
    let Some(value) = cold.get(&space, &rows::cell_key(key))? else { return Ok(Whole::default()) };
    decode_whole(&value)
        .map_err(|malformed| ColdError::Damaged(format!("a counter in space {space}: {malformed}")))
}

/// A counter from the value of its row.
pub fn decode_whole(value: &[u8]) -> Result<Whole, Malformed> {
    let mut reader = Reader::new(value);
    let cell = Some(reader.cell()?);
    let body = match &value[value.len() - reader.len()..] {
        [] => None,
        bytes => Some(Arc::new(Body::read(bytes).ok_or(Malformed("body of a counter"))?)),
    };
    Ok(Whole { cell, body })
}

fn read_id(
    cold: &dyn ColdStore,
    partition: u16,
    identity: Identity,
    runs: &[(Slice, Run)],
) -> Result<Option<Remembered>, ColdError> {
    for (slice, run) in runs {
        let space = slice.space();
        let row = rows::bin_key(partition, run.number, run.bin(identity));
        if let Some(bin) = cold.get(&space, &row)? {
            let found = find_in_bin(&bin, identity);
            let found = found
                .map_err(|error| ColdError::Damaged(format!("request ids in space {space}: {error}")))?;
            if found.is_some() {
                return Ok(found);
            }
        }
    }
    Ok(None)
}

fn find_in_bin(bin: &[u8], identity: Identity) -> Result<Option<Remembered>, Malformed> {
    let mut reader = Reader::new(bin);
    let mut found = None;
    while !reader.is_empty() {
        let stored = Identity::from_le_bytes(reader.array()?);
        let remembered = reader.remembered_value(stored)?;
        if stored == identity {
            // One that came back after its window lies behind its earlier self.
            found = Some(remembered);
        }
    }
    Ok(found)
}
