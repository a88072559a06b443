//! Starts that cannot work: folders that cannot be written or are in use, ports in use, wrong settings.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use crate::ledger::{Connection, Ledger};
use crate::scene::{Mount, assert_refused, snapshot};
use crate::support::{Server, run};

#[test]
fn a_folder_that_cannot_be_written_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "not a folder").unwrap();
    let advice = "a folder that quipu may write to";
    assert_refused(&file, &[], 1, &["cannot use", "file", advice]);
    assert_refused(&file.join("below"), &[], 1, &["cannot use", "file/below", "Not a directory", advice]);
    assert_refused(Path::new("/proc/quipu"), &[], 1, &["cannot use /proc/quipu", advice]);
    assert_eq!(fs::read(&file).unwrap(), b"not a folder");

    // A disk that became read-only, as file systems do after an error: refused, and all there once it is writable.
    let disk = folder.path().join("disk");
    let Some(mount) = Mount::of_megabytes(&disk, 192) else { return };
    let data = disk.join("data");
    let mut ledger = Ledger::default();
    let server = Server::start(&data);
    ledger.count(&mut Connection::open(server.resp).unwrap(), 50).unwrap();
    server.kill();
    mount.remount("ro");
    assert_refused(&data, &[], 1, &["cannot use", "Read-only file system", advice]);
    assert_refused(&disk.join("another"), &[], 1, &["cannot use", "Read-only file system", advice]);
    mount.remount("rw");
    ledger.prove_by_restart(&data, &[]);
}

#[test]
fn a_folder_in_use_is_refused_and_its_server_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let mut ledger = Ledger::default();
    let server = Server::start(&data);
    let mut connection = Connection::open(server.resp).unwrap();
    ledger.count(&mut connection, 50).unwrap();
    // The server makes its next segment ready meanwhile; this is the last step of it.
    while !data.join("log/000000000002.newest").exists() {
        std::thread::yield_now();
    }
    let before = snapshot(&data);
    assert_refused(&data, &[], 1, &["in use by another process", "stop it", "--data"]);
    let check = run(&["check", data.to_str().unwrap()], &[]);
    assert_eq!(check.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&check.stderr).contains("in use by another process"), "{check:?}");
    assert_eq!(snapshot(&data).keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    ledger.count(&mut connection, 50).unwrap();
    ledger.prove(&server);
    server.kill();
    ledger.prove_by_restart(&data, &[]);
}

#[test]
fn wrong_settings_and_ports_in_use_are_refused_and_touch_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().to_string();
    let config = folder.path().join("quipu.toml");
    fs::write(&config, "durabilty = \"sync\"\n").unwrap();
    let (config, config_folder) = (config.to_str().unwrap(), folder.path().to_str().unwrap());
    let rows: &[(&[&str], i32, &[&str])] = &[
        (&["--http", &port], 1, &["cannot listen on", &port, "another process", "--http"]),
        (&["--resp", &port], 1, &["cannot listen on", &port, "another process", "--resp"]),
        (&["--http", "0.0.0.0:0"], 2, &["http.listen", "--insecure"]),
        (&["--resp", "0.0.0.0:0"], 2, &["resp.listen", "--insecure"]),
        (&["--resp", "nowhere"], 2, &["--resp", "nowhere", "127.0.0.1:"]),
        (&["--memory", "plenty"], 2, &["--memory", "plenty"]),
        (&["--partitions", "3"], 2, &["--partitions", "power of two"]),
        (&["--durability", "often"], 2, &["--durability", "interval:<ms>"]),
        (&["--memory", "1MiB"], 2, &["--memory", "at least 32MiB"]),
        (&["--id-window", "1ms"], 2, &["--id-window", "at least 1s"]),
        (&["--no-such-flag"], 2, &["--no-such-flag", "--help"]),
        (&["--config", config], 2, &["quipu.toml", "durabilty"]),
        (&["--config", config_folder], 2, &["cannot read", config_folder]),
        (&["--config", "/nonexistent/quipu.toml"], 2, &["cannot read /nonexistent/quipu.toml"]),
    ];
    for (arguments, code, words) in rows {
        assert_refused(&data, arguments, *code, words);
        assert!(!data.exists(), "{arguments:?} made a folder");
    }
    Ledger::default().prove_by_restart(&data, &[]);
}
