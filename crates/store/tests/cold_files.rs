//! What the real cold store makes of its files: wrong, damaged, left over, in use.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

use quipu_store::cold::{ColdError, ColdOptions, ColdStore, LsmStore, Rows};
use std::fs;
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};

const SPACE: &str = "p000.0";
const ROWS: u32 = 2000;

fn open(path: &Path) -> Result<LsmStore, ColdError> {
    LsmStore::open(path, ColdOptions::default())
}

fn checkpoint(round: u32) -> Rows {
    let mut rows = Rows::new();
    for row in 0..ROWS {
        rows.push(&row.to_be_bytes(), Some(&round.to_be_bytes())).unwrap();
    }
    rows
}

/// Opens the store and reads every row both ways; all must hold the round.
fn read_all(path: &Path, round: u32) -> Result<(), ColdError> {
    let store = open(path)?;
    for row in 0..ROWS {
        assert_eq!(store.get(SPACE, &row.to_be_bytes())?.as_deref(), Some(&round.to_be_bytes()[..]));
    }
    let mut seen = 0;
    store.scan(SPACE, Bound::Unbounded, Bound::Unbounded, &mut |_, value| {
        assert_eq!(value, round.to_be_bytes());
        seen += 1;
        ControlFlow::Continue(())
    })?;
    assert_eq!(seen, ROWS);
    Ok(())
}

/// A closed store of one space with one table.
fn closed_store(path: &Path) {
    let store = open(path).unwrap();
    store.write(SPACE, &checkpoint(1)).unwrap();
    store.merge_all().unwrap();
}

fn files_under(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(files_under(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

#[test]
fn folders_that_are_not_ours_are_refused() {
    let format = |magic: &[u8], version: u16, features: u16| {
        let mut bytes = magic.to_vec();
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&features.to_le_bytes());
        let checksum = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    };
    let mut flipped = format(b"quipucld", 1, 0);
    flipped[9] ^= 1;
    for (marker, message) in [
        (format(b"quipucld", 2, 0), "version 2"),
        (format(b"quipucld", 1, 4), "features 0x0004"),
        (format(b"rocksdb!", 1, 0), "not the format marker"),
        (Vec::new(), "not the format marker"),
        (flipped, "damaged"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        closed_store(folder.path());
        fs::write(folder.path().join("FORMAT"), &marker).unwrap();
        let error = open(folder.path()).err().expect("must be refused").to_string();
        assert!(error.contains(message), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    closed_store(folder.path());
    fs::remove_file(folder.path().join("FORMAT")).unwrap();
    assert!(matches!(open(folder.path()), Err(ColdError::Format(_))), "spaces without a marker");
    let folder = tempfile::tempdir().unwrap();
    closed_store(folder.path());
    fs::create_dir(folder.path().join("spaces/lost+found")).unwrap();
    assert!(matches!(open(folder.path()), Err(ColdError::Format(_))), "a stranger among the spaces");
}

#[test]
fn one_process_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    assert!(matches!(open(folder.path()), Err(ColdError::Locked(_))));
    drop(store);
    open(folder.path()).unwrap();
}

/// Whatever single byte is flipped in whatever file: either it is noticed, or all rows read as written.
#[test]
fn damage_is_noticed_or_harmless() {
    let folder = tempfile::tempdir().unwrap();
    closed_store(folder.path());
    let mut noticed = 0;
    let mut tried = 0;
    for file in files_under(folder.path()) {
        let original = fs::read(&file).unwrap();
        let positions = (0..original.len()).step_by(1 + original.len() / 40);
        for position in positions {
            let mut damaged = original.clone();
            damaged[position] ^= 0x10;
            fs::write(&file, &damaged).unwrap();
            tried += 1;
            match read_all(folder.path(), 1) {
                Ok(()) => {}
                Err(ColdError::Damaged(_) | ColdError::Format(_)) => noticed += 1,
                Err(other) => panic!("{} at {position}: {other}", file.display()),
            }
            // Opening removes what it takes for left over. Nothing of worth may be among it.
            fs::write(&file, &original).unwrap();
        }
    }
    read_all(folder.path(), 1).unwrap();
    assert!(noticed > tried / 2, "{noticed} of {tried}");
}

#[test]
fn files_cut_short_or_missing_are_damage() {
    for pattern in ["/tables/", "/v", "/current"] {
        for cut in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            closed_store(folder.path());
            let files = files_under(&folder.path().join("spaces"));
            let file = files.iter().find(|file| file.to_string_lossy().contains(pattern)).unwrap();
            let bytes = fs::read(file).unwrap();
            if cut {
                fs::write(file, &bytes[..bytes.len() / 2]).unwrap()
            } else {
                fs::remove_file(file).unwrap()
            }
            let result = read_all(folder.path(), 1);
            assert!(matches!(result, Err(ColdError::Damaged(_))), "{pattern} cut {cut}: {result:?}");
        }
    }
}

#[test]
fn leftovers_of_a_crash_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    closed_store(folder.path());
    let space = folder.path().join("spaces").join(format!("{SPACE}@0"));
    let before = files_under(folder.path());
    // A table of an unfinished write, a manifest not committed, a `current` not renamed, a space half created
    // and one half dropped.
    fs::write(space.join("tables/77"), b"half a table").unwrap();
    fs::write(space.join("v99"), b"half a manifest").unwrap();
    fs::write(space.join(".tmpAbCdEf"), b"half").unwrap();
    fs::create_dir_all(folder.path().join("spaces/p001.0@5/tables")).unwrap();
    fs::write(folder.path().join("spaces/p001.0@5/v0"), b"half").unwrap();
    fs::create_dir_all(folder.path().join("spaces/p001.0@4/tables")).unwrap();
    fs::write(folder.path().join("spaces/p001.0@4/tables/3"), b"a table").unwrap();
    fs::write(folder.path().join("spaces/p001.0@4/dropped"), b"").unwrap();
    read_all(folder.path(), 1).unwrap();
    assert_eq!(files_under(folder.path()), before);
}

#[test]
fn the_younger_of_two_spaces_of_one_name_counts() {
    let folder = tempfile::tempdir().unwrap();
    let spaces = folder.path().join("spaces");
    let store = open(folder.path()).unwrap();
    store.write(SPACE, &checkpoint(1)).unwrap();
    store.write("other", &checkpoint(2)).unwrap();
    drop(store);
    for folder in [&spaces, &folder.path().join("names")] {
        fs::rename(folder.join("other@1"), folder.join(format!("{SPACE}@1"))).unwrap();
    }
    read_all(folder.path(), 2).unwrap();
    assert!(!spaces.join(format!("{SPACE}@0")).exists());
}

#[test]
fn a_missing_space_is_told_and_one_caught_without_its_name_gets_it_back() {
    let folder = tempfile::tempdir().unwrap();
    closed_store(folder.path());
    let [space, name] = ["spaces", "names"].map(|part| folder.path().join(part).join(format!("{SPACE}@0")));
    fs::remove_file(&name).unwrap();
    read_all(folder.path(), 1).unwrap();
    assert!(name.exists());
    fs::rename(&space, folder.path().join("aside")).unwrap();
    let error = open(folder.path()).err().unwrap().to_string();
    assert!(error.contains(space.to_str().unwrap()) && error.contains("missing"), "{error}");
    fs::rename(folder.path().join("aside"), &space).unwrap();
    read_all(folder.path(), 1).unwrap();
}

/// Many writes of the same rows: merges keep the number of tables and the room taken small, and old manifests
/// go.
#[test]
fn room_is_given_back() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).unwrap();
    store.write(SPACE, &checkpoint(0)).unwrap();
    let one_table: u64 = store.stats().disk_bytes;
    for round in 1..=60 {
        store.write(SPACE, &checkpoint(round)).unwrap();
        assert!(store.stats().tables <= 13, "{:?}", store.stats());
    }
    store.merge_all().unwrap();
    assert_eq!(store.get(SPACE, &7u32.to_be_bytes()).unwrap().as_deref(), Some(&60u32.to_be_bytes()[..]));
    let stats = store.stats();
    assert!(stats.tables <= 4 && stats.disk_bytes <= 4 * one_table, "{stats:?}");
    let files = files_under(&folder.path().join("spaces"));
    assert!(files.len() as u64 <= stats.tables + 2, "tables, one manifest and current: {files:?}");
    store.drop_space(SPACE).unwrap();
    // The merging thread may hold the space for a moment longer; without it nothing does.
    drop(store);
    assert_eq!(files_under(&folder.path().join("spaces")), Vec::<PathBuf>::new());
}
