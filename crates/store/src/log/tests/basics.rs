//! What the log promises while nothing goes wrong.

use std::sync::mpsc;

use super::*;

#[test]
fn records_come_back_in_order_at_the_offsets_that_append_returned() {
    let disk = SimDisk::new(1);
    let mut written = Vec::new();
    for life in 0..6u64 {
        let (log, records) = open(&disk);
        assert_eq!(records, written);
        assert_eq!((log.end(), log.durable()), (log.written(), log.end()));
        for id in 0..20 {
            let bytes = record(life * 100 + id, 5 + (id as usize * 37) % 900);
            written.push((append(&log, &bytes).unwrap(), bytes));
            match id % 4 {
                0 => log.commit(written.last().unwrap().0).unwrap(),
                1 => log.write_out().unwrap(),
                _ => {}
            }
        }
        assert!(log.durable() <= log.written() && log.written() <= log.end());
        log.commit(log.end()).unwrap();
        assert_eq!(log.durable(), log.written());
    }
}

#[test]
fn a_record_in_parts_is_one_record_and_may_be_empty() {
    let disk = SimDisk::new(1);
    let (log, _) = open(&disk);
    let parts: [&[&[u8]]; 4] = [&[b"a", b"", b"bc"], &[], &[b""], &[b"d"]];
    let appender = log.appender(4 + 3 * RECORD_OVERHEAD_BYTES_MAX).unwrap();
    let mut written = Vec::new();
    for parts in parts {
        written.push((appender.append(parts).unwrap(), parts.concat()));
    }
    drop(appender);
    log.commit(log.end()).unwrap();
    drop(log);
    assert_eq!(open(&disk).1, written);
}

#[test]
fn limits_are_told_before_anything_is_accepted() {
    let disk = SimDisk::new(1);
    let (log, _) = open(&disk);
    let limit = small().record_bytes_max();
    assert!(matches!(log.appender(limit + 1), Err(LogError::TooLarge { .. })));
    append(&log, &record(1, limit)).unwrap();
    let appender = log.appender(10).unwrap();
    assert!(matches!(appender.append(&[&[0; 11]]), Err(LogError::TooLarge { bytes: 11, limit: 10 })));
    appender.append(&[&[0; 10]]).unwrap();
    assert!(matches!(appender.append(&[]), Err(LogError::TooLarge { .. })), "the reservation is used up");
    drop(appender);
    let end = log.end();
    assert!(matches!(log.commit(end + 1), Err(LogError::BeyondEnd { .. })));
    log.commit(end).unwrap();
    drop(log);
    assert_eq!(open(&disk).1.len(), 2);
}

#[test]
fn a_large_buffer_becomes_several_frames_and_the_largest_record_fits() {
    let disk = SimDisk::new(1);
    let options =
        LogOptions { segment_bytes: 64 << 20, buffer_limit_bytes: 64 << 20, ..LogOptions::default() };
    let open = || open_in(Arc::new(disk.clone()), Path::new(DIR), options, 0).unwrap();
    let (log, _) = open();
    let lengths = [600_000, 600_000, 10, RECORD_BYTES_MAX, 10, 1_048_572, 1_048_573, 3];
    let written: Vec<Record> = (1..)
        .zip(lengths)
        .map(|(id, length)| record(id, length))
        .map(|bytes| (append(&log, &bytes).unwrap(), bytes))
        .collect();
    log.commit(log.end()).unwrap();
    assert_eq!(log.syncs(), 1);
    drop(log);
    assert!(open().1 == written);
}

#[test]
fn reading_begins_with_the_segment_that_contains_the_offset() {
    let disk = SimDisk::new(1);
    let (log, _) = open(&disk);
    let mut segments: Vec<(u64, Vec<u64>)> = Vec::new();
    for id in 0..40 {
        let appender = log.appender(300).unwrap();
        let number = appender.segment();
        let end = appender.append(&[&record(id, 300)]).unwrap();
        drop(appender);
        log.roll_if_full().unwrap();
        match segments.last_mut() {
            Some((last, ends)) if *last == number => ends.push(end),
            _ => segments.push((number, vec![end])),
        }
    }
    log.commit(log.end()).unwrap();
    drop(log);
    assert!(segments.len() > 3);
    for (index, (_, ends)) in segments.iter().enumerate() {
        let expected: Vec<u64> = segments[index..].iter().flat_map(|(_, ends)| ends.clone()).collect();
        for from in [ends[0], ends[ends.len() - 1] - 1] {
            let (_, records) = open_at(&disk, from).unwrap();
            assert_eq!(records.iter().map(|record| record.0).collect::<Vec<_>>(), expected, "from {from}");
        }
    }
}

#[test]
fn freed_segments_are_used_again_and_the_rest_is_deleted() {
    let disk = SimDisk::new(1);
    let (log, _) = open(&disk);
    for id in 0..60 {
        append(&log, &record(id, 300)).unwrap();
    }
    log.commit(log.end()).unwrap();
    log.free_below(log.durable()).unwrap();
    let number = log.appender(0).unwrap().segment();
    let spares = ["000000000001.spare", "000000000002.spare"];
    let [segment, newest] = ["log", "newest"].map(|role| format!("{number:012}.{role}"));
    assert_eq!(files(&disk), [spares[0], spares[1], &segment, &newest, "lock"]);
    log.prepare_next().unwrap();
    log.prepare_next().unwrap();
    assert_eq!(
        files(&disk),
        [
            spares[0],
            &segment,
            &format!("{:012}.log", number + 1),
            &format!("{:012}.newest", number + 1),
            "lock"
        ]
    );
    let used = disk.used_bytes();
    for id in 100..112 {
        append(&log, &record(id, 300)).unwrap();
    }
    assert_eq!(disk.used_bytes(), used, "no space was needed");
    log.commit(log.end()).unwrap();
    let from = log.durable();
    drop(log);
    let (_, records) = open_at(&disk, from).unwrap();
    assert_eq!(records.last().unwrap().1, record(111, 300));
    assert!(records.iter().all(|(_, bytes)| bytes[0] >= 50), "nothing of what the file held before");
}

#[test]
fn two_cannot_open_the_same_log() {
    let disk = SimDisk::new(1);
    let (log, _) = open(&disk);
    assert!(matches!(open_at(&disk, 0), Err(LogError::Locked(_))));
    drop(log);
    open(&disk);
}

#[test]
fn a_visitor_that_cannot_read_a_record_stops_the_start() {
    let disk = SimDisk::new(1);
    let (log, _) = open(&disk);
    append(&log, b"?").unwrap();
    log.commit(log.end()).unwrap();
    drop(log);
    let mut visit = |visit: Visit<'_>| match visit {
        Visit::Segment { .. } | Visit::End => Ok(()),
        Visit::Record { .. } => Err(LogError::Record("what is this".into())),
    };
    let result = Log::open(Arc::new(disk), Path::new(DIR), small(), 0, &mut visit);
    assert!(matches!(result, Err(LogError::Record(_))));
}

#[test]
fn those_who_wait_are_called_once_their_offset_is_durable() {
    let disk = SimDisk::new(1);
    let (log, _) = open(&disk);
    let (sender, receiver) = mpsc::channel();
    let wait = |offset: u64| {
        let sender = sender.clone();
        log.when_durable(offset, Box::new(move |result| sender.send((offset, result.is_ok())).unwrap()));
    };
    wait(log.end());
    let first = append(&log, b"first").unwrap();
    wait(first);
    let second = append(&log, b"second").unwrap();
    wait(second);
    wait(second + 1);
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [(64, true), (second + 1, false)]);
    log.serve_waiters();
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [(first, true), (second, true)]);
    assert_eq!(log.syncs(), 1);
    let third = append(&log, b"third").unwrap();
    wait(third);
    drop(log);
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [(third, false)], "nobody is forgotten");
}
