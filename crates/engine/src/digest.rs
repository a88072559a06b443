//! A partition as one number: replicas that came to the same have the same.
//!
//! Where counters and ids lie (in memory, in which run on disk) is another on every node and does not count; nor does the mark,
//! which moves on without a change. What counts is summed up row by row, so the order does not matter.

use std::collections::HashMap;
use std::ops::{Bound, ControlFlow};

use quipu_counting::{Identity, Remembered};
use quipu_store::cold::ColdError;
use quipu_wire::entry::{self, Malformed, Reader};
use xxhash_rust::xxh3::xxh3_128;

use crate::engine::Engine;
use crate::fetch::decode_whole;
use crate::partition::Partition;
use crate::rows;

/// What a partition holds, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Its last change: digests of one partition at the same sequence can be compared.
    pub sequence: u64,
    /// Counters in it.
    pub counters: u64,
    /// Request ids it remembers.
    pub request_ids: u64,
    /// All of it.
    pub sum: u128,
}

impl Engine {
    /// The digest of a partition. It is locked meanwhile, and its request ids are held in memory: for a folder that does
    /// not serve.
    pub fn digest(&self, partition: u16) -> Result<Digest, ColdError> {
        let held = self.partitions[usize::from(partition)].lock();
        let mut rows = Rows::default();
        let mut totals = held.ledger.to_le_bytes().to_vec();
        totals.extend_from_slice(&held.time_ms.to_le_bytes());
        rows.add(b'T', &totals, &[]);
        rows.add(b'P', &rows::encode_policies(&held.policies), &[]);
        for (producer, (session, _)) in &held.sessions {
            let mut value = Vec::new();
            entry::put_session_value(&mut value, session);
            rows.add(b'S', producer, &value);
        }
        let counters = self.digest_cells(&held, &mut rows)?;
        let ids = self.all_ids(&held)?;
        for remembered in ids.values() {
            let mut value = Vec::new();
            entry::put_remembered(&mut value, remembered);
            rows.add(b'I', &[], &value);
        }
        self.for_each_change(&held, |row, change| rows.add(b'A', row, change))?;
        Ok(Digest { sequence: held.sequence, counters, request_ids: ids.len() as u64, sum: rows.0 })
    }

    fn digest_cells(&self, held: &Partition, rows: &mut Rows) -> Result<u64, ColdError> {
        let mut counters = 0;
        let mut add = |key: &[u8], value: &[u8]| {
            rows.add(b'C', key, value);
            counters += 1;
        };
        for chunk in 0..held.table.chunk_count() {
            for number in held.table.chunk_records(chunk) {
                if let Some(cell) = held.table.cell(number) {
                    let key = held.table.key(number);
                    let mut value = Vec::new();
                    entry::put_cell(&mut value, &cell);
                    if let Some(body) = held.bodies.get(key) {
                        body.put(&mut value);
                    }
                    add(key, &value);
                }
            }
        }
        let space = rows::partition_space(held.index, held.generation);
        let mut malformed = Ok(());
        let range = (Bound::Included(rows::CELL_PREFIX), Bound::Excluded(&b"D"[..]));
        self.cold.scan(&space, range.0, range.1, &mut |row, value| {
            let key = row.get(rows::CELL_PREFIX.len()..).unwrap_or_default();
            if held.table.find(held.hash(key), key).is_none() {
                match decode_whole(value) {
                    Ok(_) => add(key, value),
                    Err(error) => malformed = Err(damaged(&space, error)),
                }
            }
            ControlFlow::Continue(())
        })?;
        malformed.map(|()| counters)
    }

    /// Every id once: a crash and a snapshot may leave one in several runs.
    fn all_ids(&self, held: &Partition) -> Result<HashMap<Identity, Remembered>, ColdError> {
        let mut ids: HashMap<Identity, Remembered> = HashMap::new();
        let mut add = |remembered: Remembered| {
            let known = ids.entry(remembered.identity).or_insert(remembered);
            if known.at_ms < remembered.at_ms {
                *known = remembered;
            }
        };
        held.ids.for_each_recent(&mut add);
        for (slice, run) in held.ids.runs() {
            let space = slice.space();
            let from = rows::bin_key(held.index, run.number, 0);
            let to = rows::run_key(held.index, run.number);
            let mut malformed = Ok(());
            self.cold.scan(
                &space,
                Bound::Included(&from),
                Bound::Excluded(&to),
                &mut |_, bin| match read_bin(bin, &mut add) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(error) => {
                        malformed = Err(damaged(&space, error));
                        ControlFlow::Break(())
                    }
                },
            )?;
            malformed?;
        }
        Ok(ids)
    }
}

fn read_bin(bin: &[u8], add: &mut impl FnMut(Remembered)) -> Result<(), Malformed> {
    let mut reader = Reader::new(bin);
    while !reader.is_empty() {
        let identity = Identity::from_le_bytes(reader.array()?);
        add(reader.remembered_value(identity)?);
    }
    Ok(())
}

fn damaged(space: &str, error: Malformed) -> ColdError {
    ColdError::Damaged(format!("space {space}: {error}"))
}

/// A sum over rows, whatever their order.
#[derive(Default)]
struct Rows(u128);

impl Rows {
    fn add(&mut self, kind: u8, key: &[u8], value: &[u8]) {
        let mut row = vec![kind];
        entry::put_bytes(&mut row, key);
        row.extend_from_slice(value);
        self.0 = self.0.wrapping_add(xxh3_128(&row));
    }
}
