//! The world stops before every single operation, in normal work and in recovery, and what comes back is
//! compared with a model: everything that was durable, in order, perhaps some more, nothing else.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::*;

/// What the world outside of the log remembers.
#[derive(Clone, Default)]
struct Model {
    /// Every record that may still be there, in order of appending.
    history: Vec<Record>,
    /// The log said that everything below is durable.
    durable: u64,
    /// The caller's checkpoint: what lies below may be freed.
    from: u64,
    next_id: u64,
}

impl Model {
    /// Compares what was recovered; from then on it is the truth.
    fn check(&mut self, log: &Log, recovered: &[Record], context: &str) {
        let needed = self.history.iter().filter(|(end, _)| *end > self.from);
        let lost = needed.filter(|(end, _)| *end <= self.durable).find(|record| !recovered.contains(record));
        assert!(lost.is_none(), "{context}: lost {:?}", lost.map(|record| record.0));
        if let Some(first) = recovered.first() {
            let start = self.history.iter().position(|record| record == first);
            let start =
                start.unwrap_or_else(|| panic!("{context}: invented the record ending at {}", first.0));
            let expected = &self.history[start..][..recovered.len().min(self.history.len() - start)];
            assert!(recovered == expected, "{context}: not what was appended in that order");
        }
        assert_eq!(log.durable(), log.end(), "{context}: what is revealed is durable");
        self.history = recovered.to_vec();
        self.durable = log.durable();
    }

    /// One step of normal work. Offsets that the log calls durable are noted even when the step fails.
    fn step(&mut self, log: &Log, random: &mut StdRng) -> Result<(), LogError> {
        let result = match random.random_range(0..20) {
            0..10 => self.append(log, random),
            10..14 => log.commit(log.end()),
            14..16 => log.write_out(),
            16 => log.prepare_next(),
            17 => log.close(),
            _ => {
                self.from = log.durable();
                log.free_below(self.from)
            }
        };
        self.durable = self.durable.max(log.durable());
        result
    }

    fn append(&mut self, log: &Log, random: &mut StdRng) -> Result<(), LogError> {
        let length = if random.random_ratio(1, 10) {
            random.random_range(0..3900)
        } else {
            random.random_range(8..400)
        };
        let bytes = record(self.next_id, length);
        self.next_id += 1;
        let appender = log.appender(bytes.len())?;
        let end = appender.append(&[&bytes])?;
        drop(appender);
        self.history.push((end, bytes));
        log.roll_if_full().map(|_| ())
    }

    /// Works until the disk stops or `steps` are done.
    fn work(&mut self, log: &Log, random: &mut StdRng, steps: usize) {
        for _ in 0..steps {
            if self.step(log, random).is_err() {
                return;
            }
        }
    }
}

fn reopen(disk: &SimDisk, model: &mut Model, context: &str) -> Log {
    let (log, recovered) = open_at(disk, model.from).unwrap_or_else(|error| panic!("{context}: {error}"));
    model.check(&log, &recovered, context);
    log
}

/// Starts, works `steps` steps with a stop after `stop` operations, and leaves the disk as it was then.
fn interrupted_run(seed: u64, steps: usize, stop: u64) -> (SimDisk, Model) {
    let disk = SimDisk::new(seed);
    let mut random = StdRng::seed_from_u64(seed);
    let mut model = Model::default();
    disk.crash_after(stop);
    if let Ok((log, recovered)) = open_at(&disk, 0) {
        model.check(&log, &recovered, "start");
        model.work(&log, &mut random, steps);
    }
    (disk, model)
}

#[test]
fn every_operation_of_work_and_of_the_recovery_after_it_may_be_the_last() {
    for seed in 0..6 {
        let (disk, _) = interrupted_run(seed, 60, u64::MAX / 2);
        for stop in 0..disk.operations() {
            let (stopped, model) = interrupted_run(seed, 60, stop);
            stopped.crash();
            let mut recovery_stop = 0;
            loop {
                let context = format!("seed {seed}, stop {stop}, recovery stop {recovery_stop}");
                let disk = stopped.fork(stop);
                disk.crash_after(recovery_stop);
                let outcome = open_at(&disk, model.from);
                let finished = !disk.has_stopped();
                assert_eq!(outcome.is_ok(), finished, "{context}: {:?}", outcome.err());
                drop(outcome);
                disk.crash();
                reopen(&disk, &mut model.clone(), &context);
                if finished {
                    break;
                }
                recovery_stop += 1;
            }
        }
    }
}

#[test]
fn many_lives_of_one_log_with_crashes_and_kills() {
    for seed in 1000..1300 {
        let mut random = StdRng::seed_from_u64(seed);
        let disk = SimDisk::new(seed);
        let mut model = Model::default();
        for life in 0..12 {
            let context = format!("seed {seed}, life {life}");
            let log = reopen(&disk, &mut model, &context);
            disk.crash_after(random.random_range(0..60));
            if random.random_ratio(1, 4) {
                disk.fail_sync(random.random_range(1..15));
            }
            model.work(&log, &mut random, 100);
            drop(log);
            // A start that is itself interrupted, now and then.
            for _ in 0..random.random_range(0..3) {
                stop_world(&disk, &mut random);
                disk.crash_after(random.random_range(0..12));
                if let Ok((log, recovered)) = open_at(&disk, model.from) {
                    model.check(&log, &recovered, &context);
                }
            }
            stop_world(&disk, &mut random);
        }
    }
}

/// Fills the current segment until the log has rolled.
fn fill_and_roll(log: &Log, model: &mut Model) {
    let number = log.appender(0).unwrap().segment();
    while log.appender(0).unwrap().segment() == number {
        let bytes = record(model.next_id, 400);
        model.next_id += 1;
        model.history.push((append(log, &bytes).unwrap(), bytes));
    }
}

#[test]
fn a_segment_whose_name_was_not_certain_when_the_process_died_is_made_certain() {
    for seed in 0..30 {
        for stop in 0..6 {
            let disk = SimDisk::new(seed);
            let mut model = Model::default();
            let log = reopen(&disk, &mut model, "start");
            disk.crash_after(stop);
            let _ = log.prepare_next();
            drop(log);
            disk.kill();
            let context = format!("seed {seed}, stop {stop}");
            let log = reopen(&disk, &mut model, &context);
            fill_and_roll(&log, &mut model);
            log.commit(log.end()).unwrap();
            model.durable = log.durable();
            drop(log);
            disk.crash();
            reopen(&disk, &mut model, &context);
        }
    }
}

#[test]
fn frames_that_nobody_synced_in_a_new_segment_are_no_damage() {
    for seed in 0..100 {
        let disk = SimDisk::new(seed);
        let mut model = Model::default();
        let log = reopen(&disk, &mut model, "start");
        fill_and_roll(&log, &mut model);
        for _ in 0..4 {
            let bytes = record(model.next_id, 400);
            model.next_id += 1;
            model.history.push((append(&log, &bytes).unwrap(), bytes));
            log.write_out().unwrap();
        }
        model.durable = log.durable();
        drop(log);
        disk.crash();
        reopen(&disk, &mut model, &format!("seed {seed}"));
    }
}

fn stop_world(disk: &SimDisk, random: &mut StdRng) {
    if random.random_ratio(1, 3) { disk.kill() } else { disk.crash() }
}

#[test]
fn a_frame_behind_the_cut_never_follows_a_new_one() {
    // Frame A is lost and frame B, behind it, survives the crash. A new frame of the length of A then ends
    // where B begins; B must stay gone.
    let mut met = 0;
    for seed in 0..200 {
        let disk = SimDisk::new(seed);
        let (log, _) = open(&disk);
        for id in 0..3 {
            append(&log, &record(id, 600)).unwrap();
            log.write_out().unwrap();
        }
        drop(log);
        disk.crash();
        let (log, records) = open(&disk);
        met += u32::from(records.is_empty() && log.recovery().torn_at.is_some());
        let mut expected = records;
        let bytes = record(100, 600);
        expected.push((append(&log, &bytes).unwrap(), bytes));
        log.commit(log.end()).unwrap();
        drop(log);
        disk.crash();
        assert!(open(&disk).1 == expected, "seed {seed}");
    }
    assert!(met > 10, "the case was met {met} times only");
}
