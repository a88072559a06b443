//! Several threads on the real disk: group commit, back-pressure, the syncer, many lives.

use std::sync::mpsc;
use std::thread;

use super::*;
use crate::disk::RealDisk;

fn open_real(dir: &Path, options: LogOptions) -> (Arc<Log>, Vec<Record>) {
    let (log, records) = open_in(Arc::new(RealDisk), dir, options, 0).unwrap();
    (Arc::new(log), records)
}

#[test]
fn group_commit_serves_many_threads_and_keeps_each_ones_order() {
    const THREADS: u64 = 8;
    const RECORDS: u64 = 200;
    let folder = tempfile::tempdir().unwrap();
    let options =
        LogOptions { segment_bytes: 64 << 10, buffer_limit_bytes: 4 << 10, ..LogOptions::default() };
    for life in 0..3 {
        let (log, before) = open_real(folder.path(), options);
        assert_eq!(before.len() as u64, life * THREADS * RECORDS);
        let syncer = spawn_syncer(&log, Durability::Sync).unwrap();
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let log = &log;
                scope.spawn(move || {
                    for index in 0..RECORDS {
                        let id = life << 32 | thread << 16 | index;
                        let end = append(log, &record(id, 8 + (index as usize * 7) % 300)).unwrap();
                        if index % 5 == 4 {
                            log.commit(end).unwrap();
                            assert!(log.durable() >= end);
                        }
                    }
                });
            }
        });
        drop(syncer);
        assert_eq!(log.durable(), log.end(), "the syncer closed the log");
        drop(log);
    }
    let (_, records) = open_real(folder.path(), options);
    let mut next = std::collections::BTreeMap::new();
    for (_, bytes) in &records {
        let id = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(bytes, &record(id, bytes.len()));
        let index = next.entry(id >> 16).or_insert(0);
        assert_eq!(id & 0xffff, *index, "each thread's records are in its order");
        *index += 1;
    }
    assert!(next.len() as u64 == 3 * THREADS && next.values().all(|count| *count == RECORDS));
}

#[test]
fn a_failed_sync_fails_everybody_who_waits_for_it() {
    let disk = SimDisk::new(1);
    let (log, _) = open(&disk);
    disk.fail_sync(30);
    thread::scope(|scope| {
        for thread in 0..6u64 {
            let log = &log;
            scope.spawn(move || {
                let error = (0..).find_map(|index| {
                    let end = append(log, &record(thread << 32 | index, 20));
                    end.and_then(|end| log.commit(end)).err()
                });
                assert!(matches!(error, Some(LogError::Poisoned(_))));
            });
        }
    });
    assert!(log.is_poisoned());
}

#[test]
fn the_syncer_calls_everybody_in_every_mode() {
    for durability in [Durability::Sync, Durability::Interval { ms: 1 }, Durability::None] {
        let folder = tempfile::tempdir().unwrap();
        let (log, _) = open_real(folder.path(), small());
        let syncer = spawn_syncer(&log, durability).unwrap();
        let (sender, receiver) = mpsc::channel();
        for id in 0..100 {
            let end = append(&log, &record(id, 100)).unwrap();
            let (sender, weak) = (sender.clone(), Arc::downgrade(&log));
            let callback = move |result: Result<(), LogError>| {
                let durable = weak.upgrade().map(|log| log.durable());
                sender.send((id, result.is_ok() && durable.is_some_and(|durable| durable >= end))).unwrap();
            };
            log.when_durable(end, Box::new(callback));
        }
        let mut called: Vec<(u64, bool)> = receiver.iter().take(100).collect();
        called.sort_unstable();
        assert_eq!(called, (0..100).map(|id| (id, true)).collect::<Vec<_>>(), "{durability}");
        drop(syncer);
    }
}

#[test]
fn segments_roll_while_many_hold_appenders_and_old_ones_are_freed() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _) = open_real(folder.path(), small());
    let syncer = spawn_syncer(&log, Durability::Interval { ms: 1 }).unwrap();
    thread::scope(|scope| {
        for thread in 0..4u64 {
            let log = &log;
            scope.spawn(move || {
                for index in 0..300 {
                    let appender = log.appender(100 + RECORD_OVERHEAD_BYTES_MAX).unwrap();
                    let segment = appender.segment();
                    appender.append(&[&record(thread << 32 | index, 50)]).unwrap();
                    appender.append(&[&record(thread << 32 | index, 50)]).unwrap();
                    assert_eq!(appender.segment(), segment);
                    drop(appender);
                    log.roll_if_full().unwrap();
                    if index % 50 == 0 {
                        log.free_below(log.durable()).unwrap();
                    }
                }
            });
        }
    });
    log.commit(log.end()).unwrap();
    log.free_below(log.durable()).unwrap();
    drop(syncer);
    let from = log.durable();
    drop(log);
    let names = RealDisk.list(folder.path()).unwrap();
    assert!(names.iter().filter(|name| name.ends_with(".log")).count() <= 3, "{names:?}");
    open_in(Arc::new(RealDisk), folder.path(), small(), from).unwrap();
}
