//! A replicated partition as a stream of bytes, for a replica that is too far behind: its checkpoint, row by row.
//!
//! ```text
//! snapshot := "QUIPUSNP" version:4le item* end
//! item     := 1 key value                         a row of the partition's space
//!           | 2 start_ms:v end_ms:v key value     a row of a run of request ids, of this slice of time
//!           | 4 start_ms:v end_ms:v keep_ms:v key value     a row of a trail, of this slice and time of keeping
//! end      := 3 cut crc:4le                       crc of everything before it
//! key, value, cut := length:v bytes
//! ```
//! Rows are those of `rows.rs`; the cut comes last, here as on disk: without it the rest is nothing.

use std::io::{self, Read, Write};
use std::ops::{Bound, ControlFlow};

use quipu_store::cold::{ColdError, Rows};
use quipu_wire::entry::{put_bytes, put_varint};

use crate::engine::Engine;
use crate::ids::Slice;
use crate::partition::Partition;
use crate::recover::{load_ids, load_partition, runs_in};
use crate::rows::{self, Cut};
use crate::trail::Shelf;

const MAGIC: &[u8; 8] = b"QUIPUSNP";
const VERSION: u32 = 1;
/// Rows are written to the cold store in portions of about so many bytes.
const PORTION_BYTES: usize = 8 << 20;

/// Why a snapshot was not made or taken over. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The stream broke, or what it goes to is full.
    #[error("the stream of a snapshot: {0}")]
    Io(#[from] io::Error),
    /// The bytes are not a snapshot, or not all of it.
    #[error("not a snapshot: {0}")]
    Malformed(&'static str),
    /// The cold store refused.
    #[error(transparent)]
    Cold(#[from] ColdError),
}

impl Engine {
    /// Writes a partition as its last checkpoint has it, and returns the mark of that. Goes on while the partition changes.
    pub fn export(&self, partition: u16, out: &mut dyn Write) -> Result<Vec<u8>, SnapshotError> {
        let mut out = Summed { inner: out, crc: crc32fast::Hasher::new() };
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        let generation = self.partitions[usize::from(partition)].lock().durable_generation;
        let space = rows::partition_space(partition, generation);
        let (mut cut, mut mark) = (None, Vec::new());
        // One scan, so all rows are of one checkpoint.
        self.copy_rows(&space, (Bound::Unbounded, Bound::Unbounded), &mut out, |key, value| {
            if key == rows::CUT_KEY {
                cut = Some(value.to_vec());
                return None;
            }
            if key == rows::MARK_KEY {
                mark = value.to_vec();
            }
            Some(vec![1])
        })?;
        let cut = cut.ok_or(SnapshotError::Malformed("the partition has no checkpoint"))?;
        let sequence =
            Cut::decode(&cut).map_err(|_| SnapshotError::Malformed("the cut of its checkpoint"))?.sequence;
        self.export_ids(partition, sequence, &mut out)?;
        self.export_trail(partition, sequence, &mut out)?;
        let mut end = vec![3];
        put_bytes(&mut end, &cut);
        out.write_all(&end)?;
        let crc = out.crc.clone().finalize();
        out.write_all(&crc.to_le_bytes())?;
        Ok(mark)
    }

    /// The runs of a partition's request ids up to this sequence.
    fn export_ids(&self, partition: u16, sequence: u64, out: &mut dyn Write) -> Result<(), SnapshotError> {
        for space in self.cold.spaces()? {
            let Some(slice) = Slice::from_space(&space) else { continue };
            for (of, number) in runs_in(&*self.cold, &space)? {
                if of != partition || number > sequence {
                    continue;
                }
                let (from, to) = (rows::bin_key(of, number, 0), rows::after_run(of, number));
                self.copy_rows(&space, (Bound::Included(&from), Bound::Excluded(&to)), out, |_, _| {
                    let mut head = vec![2];
                    put_varint(&mut head, slice.start_ms);
                    put_varint(&mut head, slice.end_ms);
                    Some(head)
                })?;
            }
        }
        Ok(())
    }

    /// The rows of a partition's trail up to this sequence.
    fn export_trail(&self, partition: u16, sequence: u64, out: &mut dyn Write) -> Result<(), SnapshotError> {
        let (from, to) = rows::audit_rows(partition);
        for space in self.cold.spaces()? {
            let Some(shelf) = Shelf::from_space(&space) else { continue };
            self.copy_rows(&space, (Bound::Included(&from), Bound::Excluded(&to)), out, |row, _| {
                rows::audit_number(row).filter(|number| number >> 1 <= sequence)?;
                let mut head = vec![4];
                put_varint(&mut head, shelf.slice.start_ms);
                put_varint(&mut head, shelf.slice.end_ms);
                put_varint(&mut head, shelf.keep_ms);
                Some(head)
            })?;
        }
        Ok(())
    }

    /// Writes rows of a space as items, each behind what `head` says of it; without that, not at all.
    fn copy_rows(
        &self,
        space: &str,
        (from, to): (Bound<&[u8]>, Bound<&[u8]>),
        out: &mut dyn Write,
        mut head: impl FnMut(&[u8], &[u8]) -> Option<Vec<u8>>,
    ) -> Result<(), SnapshotError> {
        let mut written = Ok(());
        self.cold.scan(space, from, to, &mut |key, value| {
            if let Some(mut item) = head(key, value) {
                put_bytes(&mut item, key);
                put_bytes(&mut item, value);
                written = out.write_all(&item);
            }
            if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(written?)
    }

    /// Takes over a partition as a snapshot has it, durably, in place of what is here. Nothing of the partition may be
    /// carried out meanwhile. If it fails, the partition is as it was.
    pub fn install(&self, partition: u16, from: &mut dyn Read) -> Result<(), SnapshotError> {
        let mut cuts = self.cuts.lock();
        let generation = self.next_generation(partition)?;
        let space = rows::partition_space(partition, generation);
        let cut = match self.write_rows(partition, &space, from) {
            Ok(cut) => cut,
            Err(error) => {
                // What came before it broke off is nobody's.
                self.cold.drop_space(&space)?;
                return Err(error);
            }
        };
        let mut fresh = Partition::new(partition, self.hash_seed);
        load_partition(&*self.cold, &space, &cut, generation, &mut fresh)?;
        let wants = |of: u16, number: u64| of == partition && number <= cut.sequence;
        load_ids(&*self.cold, wants, |_, slice, run, tags| {
            fresh.ids.add_run(slice, run, tags.iter().map(|tag| u32::from_le_bytes(*tag)));
        })?;
        fresh.last_offset = self.log.end();
        fresh.cut_sequence = fresh.sequence;
        self.partitions[usize::from(partition)].lock().replace(fresh);
        cuts[usize::from(partition)] = cut.offset;
        self.drop_earlier_lives(partition, generation)?;
        Ok(())
    }

    /// Writes what a snapshot has into a new space, and its cut last.
    fn write_rows(&self, partition: u16, space: &str, from: &mut dyn Read) -> Result<Cut, SnapshotError> {
        let mut reader = Reading { inner: from, crc: crc32fast::Hasher::new() };
        let mut portions = Portions::new(self);
        if &reader.array::<8>()? != MAGIC {
            return Err(SnapshotError::Malformed("it begins with something else"));
        }
        if u32::from_le_bytes(reader.array()?) != VERSION {
            return Err(SnapshotError::Malformed("made by another version"));
        }
        let cut = loop {
            match reader.array::<1>()? {
                [1] => {
                    let (key, value) = (reader.bytes()?, reader.bytes()?);
                    if key == rows::CUT_KEY {
                        return Err(SnapshotError::Malformed("a cut among the rows"));
                    }
                    portions.push(space, &key, &value)?;
                }
                [2] => {
                    let slice = Slice { start_ms: reader.varint()?, end_ms: reader.varint()? };
                    let (key, value) = (reader.bytes()?, reader.bytes()?);
                    match rows::parse_run(&key) {
                        // A run is nothing without its last row, so it is written as a whole.
                        Some((of, number)) if of == partition => {
                            portions.push_all_of(number, &slice.space(), &key, &value)?;
                        }
                        _ => return Err(SnapshotError::Malformed("request ids of another partition")),
                    }
                }
                [4] => {
                    let slice = Slice { start_ms: reader.varint()?, end_ms: reader.varint()? };
                    let shelf = Shelf { slice, keep_ms: reader.varint()? };
                    let (key, value) = (reader.bytes()?, reader.bytes()?);
                    if !key.starts_with(&partition.to_be_bytes()) {
                        return Err(SnapshotError::Malformed("a trail of another partition"));
                    }
                    portions.push(&shelf.space(), &key, &value)?;
                }
                [3] => {
                    let cut = reader.bytes()?;
                    let crc = reader.crc.clone().finalize();
                    if u32::from_le_bytes(reader.array()?) != crc {
                        return Err(SnapshotError::Malformed("its checksum is not that of its bytes"));
                    }
                    break Cut::decode(&cut).map_err(|_| SnapshotError::Malformed("its cut"))?;
                }
                _ => return Err(SnapshotError::Malformed("an unknown item")),
            }
        };
        portions.write()?;
        // Where the other node's log stands means nothing here; nothing before the end of ours is needed.
        let cut = Cut { offset: self.log.end(), ..cut };
        let mut last = Rows::new();
        last.push(rows::CUT_KEY, Some(&cut.encode()))?;
        self.cold.write(space, &last)?;
        Ok(cut)
    }

    fn next_generation(&self, partition: u16) -> Result<u32, ColdError> {
        let known = self.partitions[usize::from(partition)].lock().generation;
        let on_disk = self
            .cold
            .spaces()?
            .iter()
            .filter_map(|space| rows::parse_partition_space(space))
            .filter(|(of, _)| *of == partition)
            .map(|(_, generation)| generation)
            .max();
        Ok(known.max(on_disk.unwrap_or(0)) + 1)
    }
}

/// Rows on their way to the cold store.
struct Portions<'a> {
    engine: &'a Engine,
    space: String,
    /// The run of request ids that the last row is of.
    run: Option<u64>,
    rows: Rows,
    bytes: usize,
}

impl<'a> Portions<'a> {
    fn new(engine: &'a Engine) -> Portions<'a> {
        Portions { engine, space: String::new(), run: None, rows: Rows::new(), bytes: 0 }
    }

    fn push(&mut self, space: &str, key: &[u8], value: &[u8]) -> Result<(), ColdError> {
        if self.space != space || self.bytes > PORTION_BYTES {
            self.write()?;
            self.space = space.to_string();
        }
        self.add(key, value)
    }

    fn push_all_of(&mut self, run: u64, space: &str, key: &[u8], value: &[u8]) -> Result<(), ColdError> {
        if self.space != space || self.run != Some(run) {
            self.write()?;
            self.space = space.to_string();
            self.run = Some(run);
        }
        self.add(key, value)
    }

    fn add(&mut self, key: &[u8], value: &[u8]) -> Result<(), ColdError> {
        self.bytes += key.len() + value.len();
        self.rows.push(key, Some(value))
    }

    fn write(&mut self) -> Result<(), ColdError> {
        self.bytes = 0;
        let mut rows = std::mem::take(&mut self.rows);
        if rows.is_empty() {
            return Ok(());
        }
        rows.sort();
        self.engine.cold.write(&self.space, &rows)
    }
}

struct Summed<'a> {
    inner: &'a mut dyn Write,
    crc: crc32fast::Hasher,
}

impl Write for Summed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.crc.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

struct Reading<'a> {
    inner: &'a mut dyn Read,
    crc: crc32fast::Hasher,
}

impl Reading<'_> {
    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes)?;
        self.crc.update(&bytes);
        Ok(bytes)
    }

    fn varint(&mut self) -> Result<u64, SnapshotError> {
        let mut bytes = Vec::new();
        loop {
            let [byte] = self.array::<1>()?;
            bytes.push(byte);
            if byte < 0x80 {
                let number = quipu_wire::entry::Reader::new(&bytes).varint();
                return number.map_err(|_| SnapshotError::Malformed("a number"));
            }
            if bytes.len() > 10 {
                return Err(SnapshotError::Malformed("a number"));
            }
        }
    }

    fn bytes(&mut self) -> Result<Vec<u8>, SnapshotError> {
        let length = self.varint()?;
        if length > quipu_store::cold::VALUE_BYTES_MAX as u64 {
            return Err(SnapshotError::Malformed("a length"));
        }
        // As much as there is, not as much as is announced.
        let mut bytes = Vec::new();
        (&mut *self.inner).take(length).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != length {
            return Err(SnapshotError::Malformed("it ends too early"));
        }
        self.crc.update(&bytes);
        Ok(bytes)
    }
}
