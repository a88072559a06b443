//! The real cold store in a process that is killed at random moments, and on a disk that fills up.
//!
//! The victim is this test binary, started again with an environment variable that tells it which folder to
//! work in.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

use quipu_store::cold::{ColdError, ColdOptions, ColdStore, LsmStore, Rows};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const VICTIM_FOLDER: &str = "QUIPU_COLD_VICTIM_FOLDER";
const SPACE: &str = "p000.0";

fn open(path: &Path) -> LsmStore {
    LsmStore::open(path, ColdOptions::default()).unwrap()
}

fn victim_folder() -> Option<PathBuf> {
    std::env::var_os(VICTIM_FOLDER).map(PathBuf::from)
}

fn all_rows(store: &LsmStore, space: &str) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut rows = BTreeMap::new();
    let mut visit = |key: &[u8], value: &[u8]| {
        rows.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    };
    store.scan(space, Bound::Unbounded, Bound::Unbounded, &mut visit).unwrap();
    rows
}

/// Every round writes all rows of the space: a third of them, another each time, is deleted.
const ROWS: u32 = 3000;
const ROUND_KEY: &[u8] = b"round";

fn row_of_round(row: u32, round: u32) -> Option<[u8; 4]> {
    (!(row + round).is_multiple_of(3)).then_some(round.to_be_bytes())
}

fn checkpoint(round: u32) -> Rows {
    let mut rows = Rows::new();
    for row in 0..ROWS {
        rows.push(&row.to_be_bytes(), row_of_round(row, round).as_ref().map(|value| value.as_slice()))
            .unwrap();
    }
    rows.push(ROUND_KEY, Some(&round.to_be_bytes())).unwrap();
    rows.sort();
    rows
}

fn ids_space(round: u32) -> String {
    format!("ids-{round:08}")
}

/// The last round that is stored, 0 for none.
fn stored_round(store: &LsmStore) -> u32 {
    store.get(SPACE, ROUND_KEY).unwrap().map_or(0, |value| u32::from_be_bytes(value.try_into().unwrap()))
}

/// Writes rounds and reports each on standard output, until killed. Besides the checkpoint a round creates a
/// space and drops those of rounds before the last.
fn write_until_killed(folder: &Path) -> ! {
    let store = open(folder);
    let mut one = Rows::new();
    one.push(b"id", Some(b"1")).unwrap();
    let mut round = stored_round(&store);
    loop {
        round += 1;
        store.write(SPACE, &checkpoint(round)).unwrap();
        store.write(&ids_space(round), &one).unwrap();
        for space in store.spaces().unwrap() {
            if space.starts_with("ids-") && space < ids_space(round - 1) {
                store.drop_space(&space).unwrap();
            }
        }
        let mut out = std::io::stdout().lock();
        writeln!(out, "\nround {round}").and_then(|()| out.flush()).unwrap();
    }
}

/// Lets the victim finish some rounds, kills it somewhere in the next, and returns the last round it
/// reported.
fn run_and_kill(folder: &Path, random: &mut SmallRng) -> u32 {
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_killed_process_leaves_whole_writes", "--nocapture"])
        .env(VICTIM_FOLDER, folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    let mut reported =
        || lines.find_map(|line| line.ok().and_then(|line| line.strip_prefix("round ")?.parse::<u32>().ok()));
    let mut last = reported().expect("the victim works");
    let start = Instant::now();
    let rounds = random.random_range(1..8);
    for _ in 0..rounds {
        last = reported().expect("the victim works");
    }
    // Anywhere within the time that a round takes.
    let round_us = start.elapsed().as_micros() as u64 / rounds;
    std::thread::sleep(Duration::from_micros(random.random_range(0..=round_us)));
    victim.kill().unwrap();
    // What it had reported before the kill counts, read or not.
    while let Some(round) = reported() {
        last = round;
    }
    victim.wait().unwrap();
    last
}

#[test]
fn a_killed_process_leaves_whole_writes() {
    if let Some(folder) = victim_folder() {
        write_until_killed(&folder);
    }
    let folder = tempfile::tempdir().unwrap();
    let mut random = SmallRng::seed_from_u64(7);
    for kill in 0..10 {
        let reported = run_and_kill(folder.path(), &mut random);
        let store = open(folder.path());
        let stored = stored_round(&store);
        assert!(
            stored == reported || stored == reported + 1,
            "kill {kill}: reported {reported}, stored {stored}"
        );
        let mut expected: BTreeMap<Vec<u8>, Vec<u8>> = (0..ROWS)
            .filter_map(|row| Some((row.to_be_bytes().to_vec(), row_of_round(row, stored)?.to_vec())))
            .collect();
        expected.insert(ROUND_KEY.to_vec(), stored.to_be_bytes().to_vec());
        assert!(all_rows(&store, SPACE) == expected, "kill {kill}: rows of another round than {stored}");
        let spaces = store.spaces().unwrap();
        assert!(spaces.contains(&ids_space(reported)), "kill {kill}: {reported} created in vain: {spaces:?}");
        let oldest = spaces.iter().find(|space| space.starts_with("ids-")).unwrap();
        assert!(*oldest >= ids_space(reported - 1), "kill {kill}: {reported} dropped in vain: {spaces:?}");
    }
}

/// Rows with keys of their own in every round, among those of the other rounds, of about `bytes` in all.
fn fresh_rows(round: u32, bytes: usize) -> Rows {
    let mut rows = Rows::new();
    for row in 0..(bytes / 100) as u32 {
        let key = [row.to_be_bytes(), round.to_be_bytes()].concat();
        rows.push(&key, Some(&[b'v'; 92])).unwrap();
    }
    rows
}

fn assert_holds(store: &LsmStore, written: &[(u32, usize)]) {
    let expected: BTreeMap<Vec<u8>, Vec<u8>> = written
        .iter()
        .flat_map(|(round, bytes)| {
            let rows = fresh_rows(*round, *bytes);
            rows.iter().map(|(key, value)| (key.to_vec(), value.unwrap().to_vec())).collect::<Vec<_>>()
        })
        .collect();
    assert!(all_rows(store, SPACE) == expected);
}

/// Under a limit on the size of files: the large write is refused whole, leaves no file behind, and small
/// ones go on until the tables that merging cannot join become too many.
fn meet_file_size_limit(folder: &Path) {
    const SMALL: usize = 4_000;
    const LARGE: usize = 400_000;
    let store = open(folder);
    store.write(SPACE, &fresh_rows(0, SMALL)).unwrap();
    let files = || std::fs::read_dir(folder.join("spaces/p000.0@0/tables")).unwrap().count() as u64;
    let refused = store.write(SPACE, &fresh_rows(1, LARGE));
    assert!(matches!(refused, Err(ColdError::Full { .. })), "{refused:?}");
    let refused = store.write("another", &fresh_rows(1, LARGE));
    assert!(matches!(refused, Err(ColdError::Full { .. })), "{refused:?}");
    assert_eq!(files(), store.stats().tables);
    assert_holds(&store, &[(0, SMALL)]);
    store.write(SPACE, &fresh_rows(2, SMALL)).unwrap();
    let mut written = vec![(0, SMALL), (2, SMALL)];
    let refused = loop {
        let round = written.len() as u32 + 1;
        match store.write(SPACE, &fresh_rows(round, SMALL)) {
            Ok(()) => written.push((round, SMALL)),
            Err(error) => break error,
        }
        assert!(store.stats().tables < 60, "{:?}", store.stats());
    };
    assert!(matches!(refused, ColdError::Full { .. }), "{refused}");
    assert_holds(&store, &written);
    drop(store);
    assert_holds(&open(folder), &written);
}

#[test]
fn a_write_that_finds_no_room_changes_nothing() {
    if let Some(folder) = victim_folder() {
        return meet_file_size_limit(&folder);
    }
    let folder = tempfile::tempdir().unwrap();
    // The limit is in units of 512 or 1024 bytes, depending on the shell. The signal is ignored, so that the
    // write itself fails as on a full disk.
    let run = Command::new("sh")
        .args(["-c", r#"trap '' XFSZ; ulimit -f 128; exec "$0" --exact "$1" --nocapture"#])
        .arg(std::env::current_exe().unwrap())
        .arg("a_write_that_finds_no_room_changes_nothing")
        .env(VICTIM_FOLDER, folder.path())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
    assert!(run.status.success() && output.contains("1 passed"), "{output}");
}

/// A small file system in memory. Only root may mount one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=4m", "tmpfs"])
            .arg(folder.path())
            .stderr(Stdio::null())
            .status();
        mounted.is_ok_and(|status| status.success()).then_some(Self(folder))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

/// Where mounting is allowed, a disk that is really full. Elsewhere the limit on file sizes above has to do.
#[test]
fn a_full_disk_keeps_what_it_has_and_takes_more_when_there_is_room() {
    const BALLAST: &str = "ids-00000001";
    const ROUND: usize = 500_000;
    let Some(disk) = SmallDisk::mount() else { return };
    let folder = disk.0.path().join("cold");
    let store = open(&folder);
    store.write(BALLAST, &fresh_rows(0, 2 * ROUND)).unwrap();
    let mut written = Vec::new();
    let refused = loop {
        let round = written.len() as u32;
        match store.write(SPACE, &fresh_rows(round, ROUND)) {
            Ok(()) => written.push((round, ROUND)),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(refused, ColdError::Full { .. }) && refused.to_string().contains("disk full"),
        "{refused}"
    );
    assert!(written.len() >= 2, "{written:?}");
    assert_holds(&store, &written);
    drop(store);
    let store = open(&folder);
    assert_holds(&store, &written);
    store.drop_space(BALLAST).unwrap();
    let round = written.len() as u32;
    store.write(SPACE, &fresh_rows(round, ROUND)).unwrap();
    written.push((round, ROUND));
    drop(store);
    assert_holds(&open(&folder), &written);
}
