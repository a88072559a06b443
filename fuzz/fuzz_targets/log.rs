//! A log whose bytes were changed anywhere: no panic, and what is read is a beginning of what was written.
//!
//! The input is a list of steps: records to append, and bytes to change in the file afterwards.

#![no_main]

use std::path::Path;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use quipu_store::{Disk, Log, LogOptions, SimDisk, Visit};

const SEGMENT_BYTES: u64 = 4096;

fuzz_target!(|data: &[u8]| {
    let Some((split, data)) = data.split_first() else { return };
    let (records, changes) = data.split_at(usize::from(*split).min(data.len()));
    let disk = SimDisk::new(1);
    let options = LogOptions { segment_bytes: SEGMENT_BYTES, ..LogOptions::default() };
    let dir = Path::new("/log");
    let open = |visit: &mut dyn FnMut(Visit<'_>)| {
        let mut visit = |seen: Visit<'_>| {
            visit(seen);
            Ok(())
        };
        Log::open(Arc::new(disk.clone()) as Arc<dyn Disk>, dir, options, 0, &mut visit)
    };
    let mut written: Vec<Vec<u8>> = Vec::new();
    {
        let Ok(log) = open(&mut |_| {}) else { return };
        for record in records.chunks(9) {
            let length = usize::from(record[0]) * 4;
            let payload: Vec<u8> = record.iter().copied().cycle().take(length).collect();
            let Ok(appender) = log.appender(payload.len()) else { return };
            if appender.append(&[&payload]).is_err() {
                return;
            }
            drop(appender);
            written.push(payload);
            if record[0] % 3 == 0 {
                let _ = log.commit(log.end());
            }
            let _ = log.roll_if_full();
        }
        let _ = log.write_out();
    }
    let Ok(names) = disk.list(dir) else { return };
    let segments: Vec<_> = names.iter().filter(|name| name.ends_with(".log")).collect();
    for change in changes.as_chunks::<4>().0 {
        let Some(name) = segments.get(usize::from(change[0]) % segments.len().max(1)) else { return };
        let position = u64::from(u16::from_le_bytes([change[1], change[2]])) % SEGMENT_BYTES;
        if let Ok(file) = disk.open(&dir.join(name)) {
            let _ = file.write_at(&[change[3]], position);
        }
    }
    let mut read: Vec<Vec<u8>> = Vec::new();
    let opened = open(&mut |seen| {
        if let Visit::Record { payload, .. } = seen {
            read.push(payload.to_vec());
        }
    });
    if opened.is_ok() {
        assert!(written.starts_with(&read), "records were invented or changed");
    }
});
