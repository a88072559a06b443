//! Failing syncs and full disks.

use std::sync::mpsc;

use super::*;

#[test]
fn a_failed_sync_poisons_the_log_for_good() {
    for seed in 0..40 {
        let disk = SimDisk::new(seed);
        let (log, _) = open(&disk);
        let first = append(&log, &record(1, 100)).unwrap();
        log.commit(first).unwrap();
        let second = append(&log, &record(2, 1500)).unwrap();
        let (sender, receiver) = mpsc::channel();
        log.when_durable(second, Box::new(move |result| sender.send(result).unwrap()));
        disk.fail_sync(1);
        assert!(matches!(log.commit(second), Err(LogError::Poisoned(_))));
        log.serve_waiters();
        assert!(matches!(receiver.recv().unwrap(), Err(LogError::Poisoned(_))));
        assert!(log.is_poisoned());
        let syncs = log.syncs();
        let outcomes = [log.commit(second), log.write_out(), log.appender(1).map(|_| ()), log.close()];
        for outcome in outcomes {
            let message = outcome.unwrap_err().to_string();
            assert!(message.contains("cannot sync") && message.contains("000000000001.log"), "{message}");
        }
        assert_eq!((log.durable(), log.syncs()), (frame::align(first), syncs), "no sync is tried twice");
        drop(log);

        // The process starts again and still sees the second record. Having shown it, the log keeps it.
        disk.kill();
        let shown = open(&disk).1;
        assert_eq!(shown.len(), 2);
        disk.crash();
        assert!(open(&disk).1 == shown, "seed {seed}: a record was revealed and lost");
    }
}

#[test]
fn a_failed_write_poisons_the_log() {
    let disk = SimDisk::new(1);
    let (log, _) = open(&disk);
    append(&log, b"x").unwrap();
    disk.crash_after(0);
    assert!(matches!(log.write_out(), Err(LogError::Poisoned(_))));
    let appender = log.appender(1);
    assert!(matches!(appender.map(|_| ()), Err(LogError::Poisoned(_))));
}

#[test]
fn a_full_disk_refuses_before_anything_is_accepted_and_goes_on_when_there_is_space() {
    let disk = SimDisk::new(1);
    let (log, _) = open(&disk);
    disk.set_capacity(Some(SEGMENT_BYTES_MIN + SEGMENT_BYTES_MIN / 2));
    let mut written = Vec::new();
    let fill = |written: &mut Vec<Record>| loop {
        let bytes = record(written.len() as u64, 200);
        match append(&log, &bytes) {
            Ok(end) => written.push((end, bytes)),
            Err(error) => return error,
        }
    };
    let error = fill(&mut written);
    assert!(matches!(error, LogError::Full(_)) && error.to_string().contains("free some space"), "{error}");
    assert!(written.len() > 10, "the segment was used to its end: {} records", written.len());
    assert!(matches!(log.prepare_next(), Err(LogError::Full(_))));
    assert!(!log.is_poisoned());
    let kept = ["000000000001.log", "000000000001.newest", "lock"];
    assert_eq!(files(&disk), kept, "no half-filled file keeps the space");
    log.commit(log.end()).unwrap();
    assert!(log.appender(200).is_err());

    disk.set_capacity(Some(2 * SEGMENT_BYTES_MIN));
    let before = written.len();
    assert!(matches!(fill(&mut written), LogError::Full(_)));
    assert!(written.len() > before + 10);
    // A freed segment is space as well, and none has to be found for it.
    log.commit(log.end()).unwrap();
    let from = log.durable();
    log.free_below(from).unwrap();
    let before = written.len();
    assert!(matches!(fill(&mut written), LogError::Full(_)));
    assert!(written.len() > before + 10);
    log.commit(log.end()).unwrap();
    log.close().unwrap();
    drop(log);
    disk.crash();
    let (_, records) = open_at(&disk, from).unwrap();
    assert!(written.ends_with(&records) && records.len() > 10);
}

#[test]
fn a_small_record_still_fits_where_a_large_one_is_refused() {
    let disk = SimDisk::new(1);
    let (log, _) = open(&disk);
    disk.set_capacity(Some(SEGMENT_BYTES_MIN));
    append(&log, &record(1, 3000)).unwrap();
    assert!(matches!(log.appender(2000).map(|_| ()), Err(LogError::Full(_))));
    append(&log, &record(2, 500)).unwrap();
    log.commit(log.end()).unwrap();
}

/// Nothing is freed before it was said what is needed no more: that must be possible on a disk that the log itself has filled.
#[test]
fn a_last_word_fits_where_nothing_else_does() {
    let disk = SimDisk::new(1);
    let (log, _) = open(&disk);
    disk.set_capacity(Some(SEGMENT_BYTES_MIN));
    while append(&log, &record(1, 1)).is_ok() {}
    let last_word = [9; 16];
    assert!(matches!(log.appender(last_word.len()).map(|_| ()), Err(LogError::Full(_))));
    log.spare_appender(last_word.len()).unwrap().append(&[&last_word]).unwrap();
    log.commit(log.end()).unwrap();
    while let Ok(appender) = log.spare_appender(1) {
        appender.append(&[&[1]]).unwrap();
    }
    log.commit(log.end()).unwrap();
}

#[test]
fn living_reservations_are_never_broken() {
    let disk = SimDisk::new(1);
    let (log, _) = open(&disk);
    disk.set_capacity(Some(SEGMENT_BYTES_MIN));
    // Three reservations fill the segment; each is used in the worst way: one frame per record.
    let appenders: Vec<Appender<'_>> = (0..3).map(|_| log.appender(1200).unwrap()).collect();
    assert!(matches!(log.try_appender(1200, |capacity| capacity), Err(append::Refused::Reserved)));
    for appender in &appenders {
        appender.append(&[&[7; 1200]]).unwrap();
        log.write_out().unwrap();
    }
    drop(appenders);
    assert!(matches!(
        log.try_appender(1200, |capacity| capacity),
        Err(append::Refused::NoRoom { number: 1 })
    ));
    log.commit(log.end()).unwrap();
}
