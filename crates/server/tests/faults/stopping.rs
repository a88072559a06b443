//! SIGTERM under load: requests under way are answered, the exit code is 0, everything acknowledged is there.

use std::thread;

use rustix::process::Signal;

use crate::ledger::{Connection, Ledger};
use crate::support::{Server, run};

#[test]
fn a_signal_under_load_drains_and_loses_nothing() {
    for arguments in [&["--durability", "sync"][..], &["--durability", "interval:1000"]] {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let mut server = Server::start_with(&data, arguments);
        let mut connection = Connection::open(server.resp).unwrap();
        let mut ledger = Ledger::default();
        ledger.count(&mut connection, 100).unwrap();
        let loads: Vec<_> = (0..3).map(|load| (load, Connection::open(server.resp).unwrap())).collect();
        let loads: Vec<_> = loads
            .into_iter()
            .map(|(load, mut connection)| {
                let key = format!("load:{load}");
                // Ends when the server closes the connection; returns the last value it was told.
                let told = move || (0..).map_while(|_| connection.ask(&["INCR", &key]).ok()).last();
                thread::spawn(told)
            })
            .collect();
        ledger.count(&mut connection, 100).unwrap();
        server.signal(Signal::TERM);
        while ledger.count(&mut connection, 1).is_ok() {}
        let told: Vec<_> = loads.into_iter().map(|load| load.join().unwrap().unwrap()).collect();
        let (status, log) = server.wait();
        assert!(status.success(), "{status}: {log:?}");
        assert!(!log.iter().any(|line| line.contains("did not end in time")), "{log:?}");

        let server = Server::start_with(&data, arguments);
        let mut connection = Connection::open(server.resp).unwrap();
        for (load, told) in told.iter().enumerate() {
            let value: i64 = connection.ask(&["GET", &format!("load:{load}")]).unwrap().parse().unwrap();
            // At most the one request that was under way came on top.
            assert!((0..=1).contains(&(value - told.parse::<i64>().unwrap())), "{value} after {told}");
        }
        ledger.prove(&server);
        server.terminate();
        assert!(run(&["check", data.to_str().unwrap()], &[]).status.success());
    }
}
