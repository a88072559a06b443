//! Tests of the log as a whole, on the simulated disk and on the real one.

mod basics;
mod crashes;
mod damage;
mod faults;
mod threads;

use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::disk_sim::SimDisk;

const DIR: &str = "/data/log";

/// The smallest segments, so that a few records roll.
fn small() -> LogOptions {
    LogOptions { segment_bytes: SEGMENT_BYTES_MIN, buffer_limit_bytes: 64 << 10, ..LogOptions::default() }
}

/// Offset of the end, and content.
type Record = (u64, Vec<u8>);

fn open_at(disk: &SimDisk, from: u64) -> Result<(Log, Vec<Record>), LogError> {
    open_in(Arc::new(disk.clone()), Path::new(DIR), small(), from)
}

fn open(disk: &SimDisk) -> (Log, Vec<Record>) {
    open_at(disk, 0).unwrap()
}

fn open_in(
    disk: Arc<dyn Disk>,
    dir: &Path,
    options: LogOptions,
    from: u64,
) -> Result<(Log, Vec<Record>), LogError> {
    let mut records = Vec::new();
    let mut last_end = 0;
    let mut segment = None;
    let log = Log::open(disk, dir, options, from, &mut |visit| {
        match visit {
            Visit::Segment { number, base } => {
                assert!(segment.is_none_or(|last| number == last + 1), "segments come in order");
                assert!(base >= last_end);
                segment = Some(number);
            }
            Visit::Record { start, end, payload } => {
                assert!(start >= last_end && end == start + 4 + payload.len() as u64);
                last_end = end;
                records.push((end, payload.to_vec()));
            }
            Visit::End => {}
        }
        Ok(())
    })?;
    assert_eq!(segment, Some(log.gate.read().number), "appending goes on in the last segment visited");
    Ok((log, records))
}

fn append(log: &Log, record: &[u8]) -> Result<u64, LogError> {
    let end = log.appender(record.len())?.append(&[record])?;
    log.roll_if_full()?;
    Ok(end)
}

/// A record that no other resembles.
fn record(id: u64, length: usize) -> Vec<u8> {
    let mut bytes = id.to_le_bytes().to_vec();
    bytes.extend((8..length.max(8)).map(|index| (id as usize * 31 + index) as u8));
    bytes
}

fn files(disk: &SimDisk) -> Vec<String> {
    disk.list(Path::new(DIR)).unwrap()
}
