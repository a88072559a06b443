//! Bytes that were durable and are not readable any more: always told, with file and place.

use super::*;

/// A log over several segments, closed properly, and its records.
fn closed_log(disk: &SimDisk) -> Vec<Record> {
    let (log, _) = open(disk);
    let mut written = Vec::new();
    for id in 0..40 {
        let bytes = record(id, 250);
        written.push((append(&log, &bytes).unwrap(), bytes));
        if id % 3 == 0 {
            log.commit(log.end()).unwrap();
        }
    }
    log.close().unwrap();
    written
}

fn log_files(disk: &SimDisk) -> Vec<std::path::PathBuf> {
    let names = files(disk).into_iter().filter(|name| name.ends_with(".log"));
    names.map(|name| Path::new(DIR).join(name)).collect()
}

#[test]
fn a_flipped_byte_below_the_durable_offset_is_damage_with_file_and_place() {
    let intact = SimDisk::new(1);
    let written = closed_log(&intact);
    let end = written.last().unwrap().0;
    let paths = log_files(&intact);
    assert!(paths.len() > 2);
    let mut base = 0;
    for (index, path) in paths.iter().enumerate() {
        let is_last = index + 1 == paths.len();
        // The end of this file's frames, from the offsets: the next base, or the end of the last record.
        let used = if is_last { end - base } else { next_base(&intact, &paths[index + 1]) - base };
        for position in (0..used).step_by(13) {
            let disk = intact.fork(1);
            disk.kill();
            disk.flip_byte(path, position);
            match open_at(&disk, 0) {
                Err(LogError::Damage { file, offset, what }) => {
                    assert_eq!(&file, path, "byte {position}: {what}");
                    assert!(offset <= position && !what.is_empty());
                }
                // Padding is covered by nothing, and holds nothing.
                Ok((_, records)) => assert!(records == written, "byte {position} of {}", path.display()),
                Err(error) => panic!("byte {position} of {}: {error}", path.display()),
            }
        }
        base += used;
    }
}

fn next_base(disk: &SimDisk, path: &Path) -> u64 {
    let mut header = [0; 64];
    disk.open(path).unwrap().read_at(&mut header, 0).unwrap();
    u64::from_le_bytes(header[24..32].try_into().unwrap())
}

#[test]
fn a_missing_file_is_damage() {
    let intact = SimDisk::new(1);
    closed_log(&intact);
    let paths = log_files(&intact);
    for (index, path) in paths.iter().enumerate() {
        // One in the middle, and everything from there to the end.
        for removed in [&paths[index..=index], &paths[index..]] {
            let disk = intact.fork(1);
            disk.kill();
            removed.iter().for_each(|path| disk.remove(path).unwrap());
            let error = open_at(&disk, 0).err().unwrap();
            assert!(
                matches!(&error, LogError::Damage { file, .. } if removed.contains(file)),
                "{}: {error}",
                path.display()
            );
        }
    }
    // What tells about a missing segment must be there itself.
    let marker = files(&intact).into_iter().find(|name| name.ends_with(".newest")).unwrap();
    intact.remove(&Path::new(DIR).join(marker)).unwrap();
    assert!(matches!(open_at(&intact, 0), Err(LogError::Damage { .. })));
}

#[test]
fn a_log_that_ends_before_the_callers_checkpoint_is_damage() {
    let disk = SimDisk::new(1);
    let end = closed_log(&disk).last().unwrap().0;
    assert!(matches!(open_at(&disk, end + 1000), Err(LogError::Damage { .. })));
    for name in files(&disk).iter().filter(|name| *name != "lock") {
        disk.remove(&Path::new(DIR).join(name)).unwrap();
    }
    assert!(matches!(open_at(&disk, 1), Err(LogError::Damage { .. })), "an empty folder is no excuse");
    open(&disk);
}

#[test]
fn the_last_frame_without_a_witness_is_a_torn_tail() {
    let disk = SimDisk::new(1);
    let (log, _) = open(&disk);
    let first = append(&log, b"first").unwrap();
    log.commit(first).unwrap();
    let second = append(&log, b"second").unwrap();
    log.commit(second).unwrap();
    drop(log);
    let path = Path::new(DIR).join("000000000001.log");
    disk.flip_byte(&path, second - 1);
    let (log, records) = open(&disk);
    assert_eq!(records, [(first, b"first".to_vec())]);
    assert_eq!(log.recovery().torn_at, Some(frame::align(first)));
    drop(log);
    disk.flip_byte(&path, first - 1);
    let (log, records) = open(&disk);
    assert!(records.is_empty() && log.recovery().torn_at.is_some());
}

#[test]
fn a_file_of_an_unknown_version_is_refused_and_left_alone() {
    let disk = SimDisk::new(1);
    drop(open(&disk));
    let path = Path::new(DIR).join("000000000001.log");
    let file = disk.open(&path).unwrap();
    let mut header = segment::encode_header(1, 0, 0);
    header[8] = 9;
    let checksum = crc32fast::hash(&header[..60]);
    header[60..].copy_from_slice(&checksum.to_le_bytes());
    file.write_at(&header, 0).unwrap();
    let operations = disk.operations();
    let error = open_at(&disk, 0).err().unwrap();
    assert!(matches!(error, LogError::Version { .. }), "{error}");
    assert!(disk.operations() - operations <= 1, "nothing but the folder was touched");
}

#[test]
fn a_file_that_was_cut_is_damage_wherever_it_was_cut() {
    let intact = SimDisk::new(1);
    closed_log(&intact);
    for path in log_files(&intact) {
        let mut bytes = vec![0; intact.open(&path).unwrap().len().unwrap() as usize];
        intact.open(&path).unwrap().read_at(&mut bytes, 0).unwrap();
        let is_in_use = bytes.starts_with(b"QUIPULOG");
        for length in (segment::SEGMENT_HEADER_BYTES..bytes.len()).step_by(61) {
            let disk = intact.fork(1);
            disk.kill();
            disk.create(&path).unwrap().write_at(&bytes[..length], 0).unwrap();
            match open_at(&disk, 0) {
                Err(LogError::Damage { file, offset, .. }) => {
                    assert_eq!((file, offset), (path.clone(), length as u64))
                }
                Err(error) => panic!("{length} bytes of {}: {error}", path.display()),
                Ok(_) => assert!(!is_in_use, "{length} bytes of {}", path.display()),
            }
        }
    }
}
