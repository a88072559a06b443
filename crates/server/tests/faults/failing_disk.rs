//! A disk that fails to write or to sync: nothing is acknowledged from then on, and the process says so and stops.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::ledger::{Connection, Ledger};
use crate::scene::{Shim, log_end};
use crate::support::Server;

/// How the failure is met: over RESP or over HTTP.
#[derive(Clone, Copy, PartialEq)]
enum Front {
    Resp,
    Http,
}

/// Counts until the disk fails; returns with the server ended.
fn fail_under(data: &Path, folder: &Path, fault: &str, front: Front, ledger: &mut Ledger) {
    let shim = Shim::compile(folder);
    let mut server = Server::spawn(shim.serve(data));
    let mut others: Vec<_> = (0..3).map(|_| Connection::open(server.resp).unwrap()).collect();
    let mut connection = Connection::open(server.resp).unwrap();
    ledger.count(&mut connection, 200).unwrap();
    shim.fail(fault, ".log");
    let said = match front {
        Front::Resp => ledger.count(&mut connection, 1).unwrap_err(),
        Front::Http => {
            let response = server.request("POST", "/api/v1/counters/other/increment", &[], "");
            assert_eq!(response.status, 504, "{response:?}");
            assert_eq!(response.json()["reason"], "outcome-unknown", "{response:?}");
            response.body
        }
    };
    println!("{said}");
    for word in ["outcome unknown", "same request id", fault] {
        assert!(said.contains(word), "{said:?} does not say {word:?}");
    }
    for other in &mut others {
        // Refused, or the process is gone already.
        assert!(other.ask(&["INCR", "other"]).is_err(), "acknowledged after a failed {fault}");
    }
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(1), "{log:?}");
    let last = log.last().unwrap();
    println!("{last}");
    for word in [fault, "Input/output error", "Everything acknowledged is safe", "start quipu again"] {
        assert!(last.contains(word), "{last:?} does not say {word:?}");
    }
}

#[test]
fn a_failed_sync_or_write_stops_everything_and_loses_nothing() {
    for (fault, front) in
        [("sync", Front::Resp), ("write", Front::Resp), ("sync", Front::Http), ("write", Front::Http)]
    {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let mut ledger = Ledger::default();
        fail_under(&data, folder.path(), fault, front, &mut ledger);
        ledger.prove_by_restart(&data, &[]);
    }
}

/// What was written and never synced may be there in part: a torn tail is cut, whatever is left of it.
#[test]
fn a_torn_tail_is_cut_and_everything_acknowledged_is_there() {
    type Tear = fn(&fs::File, u64);
    let tears: &[(&str, Tear)] = &[
        ("its last bytes are zeros", |file, end| file.write_all_at(&[0; 9], end - 8).unwrap()),
        ("a byte of it is another", |file, end| file.write_all_at(&[0xa5], end - 3).unwrap()),
        ("garbage follows it", |file, end| file.write_all_at(&[0x5a; 3000], end + 1).unwrap()),
    ];
    for (name, tear) in tears {
        println!("{name}");
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let mut ledger = Ledger::default();
        fail_under(&data, folder.path(), "sync", Front::Resp, &mut ledger);
        let (segment, end) = log_end(&data);
        tear(&fs::File::options().write(true).open(segment).unwrap(), end);
        ledger.prove_by_restart(&data, &[]);
    }
}
