//! What the simulated disk promises, and that it takes away the rest.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::*;

const DIR: &str = "/data";

fn path(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

fn content(disk: &SimDisk, name: &str) -> Vec<u8> {
    let file = disk.open(&path(name)).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn what_was_synced_survives_and_the_rest_is_torn_by_sector() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..100 {
        let disk = SimDisk::new(seed);
        let file = disk.create(&path("file")).unwrap();
        file.write_at(&[1; 1024], 0).unwrap();
        file.sync_data().unwrap();
        disk.sync_dir(Path::new(DIR)).unwrap();
        file.write_at(&[2; 1024], 0).unwrap();
        disk.crash();
        assert!(file.len().is_err(), "a handle from before the crash is dead");
        let bytes = content(&disk, "file");
        assert!(bytes[..512].iter().all(|byte| *byte == bytes[0]), "a sector is written whole");
        assert!(bytes[512..].iter().all(|byte| *byte == bytes[512]), "a sector is written whole");
        outcomes.insert((bytes[0], bytes[512]));
    }
    assert_eq!(outcomes, BTreeSet::from([(1, 1), (1, 2), (2, 1), (2, 2)]), "every tearing happens");
}

#[test]
fn a_name_is_certain_only_after_its_folder_was_synced() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..100 {
        let disk = SimDisk::new(seed);
        disk.create(&path("a")).unwrap();
        disk.sync_dir(Path::new(DIR)).unwrap();
        disk.rename(&path("a"), &path("b")).unwrap();
        disk.create(&path("c")).unwrap();
        disk.crash();
        outcomes.insert(disk.list(Path::new(DIR)).unwrap().join(" "));
    }
    assert_eq!(outcomes, ["a", "a c", "b", "b c"].map(String::from).into());
}

#[test]
fn the_same_seed_gives_the_same_disk() {
    let run = |seed| {
        let disk = SimDisk::new(seed);
        let file = disk.create(&path("file")).unwrap();
        disk.sync_dir(Path::new(DIR)).unwrap();
        for round in 0..40 {
            file.write_at(&[round; 700], u64::from(round) * 300).unwrap();
        }
        disk.crash();
        content(&disk, "file")
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn after_a_failed_sync_readers_see_what_a_crash_takes() {
    let mut lost = 0;
    for seed in 0..50 {
        let disk = SimDisk::new(seed);
        let file = disk.create(&path("file")).unwrap();
        disk.sync_dir(Path::new(DIR)).unwrap();
        file.write_at(&[1; 100], 0).unwrap();
        disk.fail_sync(1);
        assert!(file.sync_data().is_err());
        assert!(file.sync_data().is_ok(), "the next sync claims success");
        disk.kill();
        assert_eq!(content(&disk, "file"), [1; 100]);
        disk.crash();
        lost += u32::from(content(&disk, "file").is_empty());
    }
    assert!(lost > 0);
}

#[test]
fn the_world_stops_at_the_chosen_operation() {
    let disk = SimDisk::new(1);
    disk.crash_after(2);
    let file = disk.create(&path("file")).unwrap();
    file.write_at(b"one", 0).unwrap();
    assert!(!disk.has_stopped());
    assert!(file.write_at(b"two", 0).is_err());
    assert!(disk.has_stopped());
    assert!(file.len().is_err() && file.sync_data().is_err() && disk.list(Path::new(DIR)).is_err());
    disk.crash();
    disk.create(&path("file")).unwrap();
}

#[test]
fn a_full_disk_refuses_growth_only() {
    let disk = SimDisk::new(1);
    let file = disk.create(&path("file")).unwrap();
    file.write_at(&[0; 100], 0).unwrap();
    disk.set_capacity(Some(150));
    assert_eq!(file.write_at(&[0; 100], 100).unwrap_err().kind(), io::ErrorKind::StorageFull);
    file.write_at(&[1; 100], 0).unwrap();
    disk.set_capacity(Some(200));
    file.write_at(&[0; 100], 100).unwrap();
    assert_eq!(disk.used_bytes(), 200);
}

#[test]
fn a_lock_is_exclusive_until_its_holder_is_gone() {
    let disk = SimDisk::new(1);
    let first = disk.create(&path("lock")).unwrap();
    let second = disk.open(&path("lock")).unwrap();
    assert!(first.try_lock().unwrap());
    assert!(!second.try_lock().unwrap());
    drop(first);
    assert!(second.try_lock().unwrap());
    disk.kill();
    assert!(disk.open(&path("lock")).unwrap().try_lock().unwrap());
}
