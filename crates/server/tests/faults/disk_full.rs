//! A full disk: writes are refused, reads go on, and writing goes on by itself once there is space.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::ledger::{Connection, Ledger, wait_until};
use crate::scene::{Mount, Shim, assert_command_refused};
use crate::support::{Server, serve_command};

/// The disk with the first segment of the log (64 MiB) and little else.
const DISK_MEGABYTES: u64 = 176;
/// What stands in the way of the second segment.
const BALLAST_MEGABYTES: usize = 90;

/// A disk that can be full: a real one where this process may mount, otherwise one that says so.
struct SmallDisk {
    folder: tempfile::TempDir,
    mount: Option<Mount>,
    shim: Option<Shim>,
}

impl SmallDisk {
    fn real(megabytes: u64) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().unwrap();
        let mount = Mount::of_megabytes(&folder.path().join("disk"), megabytes)?;
        Some(SmallDisk { folder, mount: Some(mount), shim: None })
    }

    fn pretended() -> SmallDisk {
        let folder = tempfile::tempdir().unwrap();
        let shim = Shim::compile(folder.path());
        SmallDisk { folder, mount: None, shim: Some(shim) }
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("disk/data")
    }

    fn serve(&self) -> Command {
        match &self.shim {
            Some(shim) => shim.serve(&self.data()),
            None => serve_command(&self.data()),
        }
    }

    fn ballast(&self) -> PathBuf {
        self.folder.path().join("disk/ballast")
    }

    /// Leaves room for the first segment and no other.
    fn fill(&self) {
        match &self.shim {
            Some(shim) => shim.fail("full", "2.new"),
            None => fs::write(self.ballast(), vec![1; BALLAST_MEGABYTES << 20]).unwrap(),
        }
    }

    fn free(&self) {
        match &self.shim {
            Some(shim) => shim.heal(),
            None => fs::remove_file(self.ballast()).unwrap(),
        }
    }
}

/// Creates long-named counters until the log has no room for another.
fn fill_log(connection: &mut Connection) -> String {
    const PIPELINE: usize = 500;
    let prefix = "x".repeat(500);
    for round in 0.. {
        for number in 0..PIPELINE {
            connection.send(&["SET", &format!("{prefix}{:010}", round * PIPELINE + number), "1"]).unwrap();
        }
        let mut refusal = None;
        for _ in 0..PIPELINE {
            refusal = connection.reply().err().or(refusal);
        }
        if let Some(refusal) = refusal {
            return refusal;
        }
    }
    unreachable!()
}

#[test]
fn a_full_disk_refuses_writes_serves_reads_and_goes_on_once_there_is_space() {
    let disk = SmallDisk::real(DISK_MEGABYTES).unwrap_or_else(SmallDisk::pretended);
    let mut ledger = Ledger::default();
    disk.fill();
    let server = Server::spawn(disk.serve());
    let mut connection = Connection::open(server.resp).unwrap();
    ledger.count(&mut connection, 300).unwrap();

    let refusal = fill_log(&mut connection);
    println!("{refusal}");
    for word in ["FULL ", "nothing was changed", "free some space"] {
        assert!(refusal.contains(word), "{refusal:?} does not say {word:?}");
    }
    // The room of the last segment may still do for something small.
    let refusal = (0..10_000).find_map(|_| ledger.count(&mut connection, 1).err()).expect("the disk is full");
    assert!(refusal.starts_with("FULL "), "{refusal}");
    assert_http_is_full_and_reads(&server);
    assert_eq!(connection.ask(&["PING"]).unwrap(), "PONG");

    // A start on a full disk serves what is there.
    server.kill();
    let server = Server::spawn(disk.serve());
    assert_http_is_full_and_reads(&server);
    let mut connection = Connection::open(server.resp).unwrap();
    assert!(ledger.count(&mut connection, 1).unwrap_err().starts_with("FULL "));

    disk.free();
    wait_until("writing goes on by itself", || ledger.count(&mut connection, 1).is_ok());
    ledger.count(&mut connection, 300).unwrap();
    ledger.prove(&server);
    server.kill();
    ledger.prove_by_restart(&disk.data(), &[]);
}

fn assert_http_is_full_and_reads(server: &Server) {
    // A shorter request may still fit where a longer one did not.
    let post = |_| server.request("POST", "/api/v1/counters/a/increment", &[], "");
    let response = (0..10_000).map(post).find(|response| response.status != 200).expect("the disk is full");
    assert_eq!(response.status, 503, "{response:?}");
    assert_eq!(response.header("content-type"), Some("application/problem+json"), "{response:?}");
    let problem = response.json();
    assert_eq!(problem["reason"], "disk-full", "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("free some space"), "{problem}");
    assert!(problem["retryAfterMs"].is_number(), "{problem}");
    let response = server.request("GET", "/api/v1/counters/ledger:1", &[], "");
    assert_eq!(response.status, 200, "{response:?}");
    assert!(response.json()["value"].as_i64().unwrap() >= 42, "{response:?}");
    assert_eq!(server.client(&["incr", "a"]).status.code(), Some(9), "the exit code of a full disk");
}

#[test]
fn a_disk_without_room_for_a_folder_refuses_the_start() {
    for disk in SmallDisk::real(32).into_iter().chain([SmallDisk::pretended()]) {
        if let Some(shim) = &disk.shim {
            shim.fail("full", ".new");
        }
        assert_command_refused(disk.serve(), 1, &["no room", "No space left on device", "free some space"]);
        assert!(!disk.data().join("quipu.meta").exists(), "what was not made is not taken for a folder");
        // A start that was refused for lack of space leaves nothing that stands in the way of the next one.
        match (&disk.shim, &disk.mount) {
            (Some(shim), _) => shim.heal(),
            (_, Some(mount)) => mount.remount("size=176m"),
            (None, None) => unreachable!("a small disk is one of both"),
        }
        Ledger::default().prove_by_restart(&disk.data(), &[]);
    }
}
