//! redis-benchmark: what it measures by itself, and what it can be told to measure.

use std::process::{Command, Output};

use super::host::{Host, succeeds};

const LOAD: &[&str] = &["-n", "20000", "-r", "1000", "-P", "16", "-c", "50"];

fn benchmark(host: &Host) -> Command {
    let mut command = Command::new("redis-benchmark");
    command.args(["-p", &host.port()]).args(LOAD);
    command
}

/// The sum of the counters `<prefix>:000000000000` and so on.
fn sum(host: &Host, prefix: &str) -> i64 {
    let keys: Vec<String> = (0..1000).map(|number| format!("{prefix}:{number:012}")).collect();
    let values = succeeds(Command::new("redis-cli").args(["-p", &host.port(), "mget"]).args(keys));
    values.lines().filter_map(|line| line.parse::<i64>().ok()).sum()
}

#[test]
fn its_own_tests() {
    let host = Host::start();
    for (options, rows) in
        [(&["--csv"][..], 4), (&["--csv", "--threads", "2"], 4), (&["--csv", "-k", "0", "-n", "512"], 4)]
    {
        let said = succeeds(benchmark(&host).args(["-t", "ping,get,incr"]).args(options));
        // A title, two forms of PING, GET, INCR.
        assert_eq!(said.lines().count(), rows + 1, "{said}");
        assert!(said.contains("\"INCR\""), "{said}");
    }
    assert_eq!(sum(&host, "counter"), 20_000 + 20_000 + 512);
}

#[test]
fn commands_of_ones_own() {
    let host = Host::start();
    for command in [
        &["set", "key:__rand_int__", "5"][..],
        &["mset", "key:{m}:__rand_int__", "5", "key:{m}:__rand_int__", "5"],
        &["incrby", "own:__rand_int__", "2"],
        &["q.add", "own:__rand_int__", "1", "ID", "__rand_int__"],
    ] {
        let said = succeeds(benchmark(&host).arg("-q").args(command));
        assert!(said.contains("requests per second"), "{said}");
    }
    assert_eq!(sum(&host, "key") % 5, 0);
    // Each id counts once for each key it was used with.
    assert!(sum(&host, "own") > 40_000);
}

/// Its SET and MSET store letters, which are refused here, and it looks for a cluster when told so: both end with a word of
/// why, and the server goes on.
#[test]
fn what_it_cannot_do() {
    let host = Host::start();
    let refused = |arguments: &[&str]| -> (bool, String) {
        let Output { status, stdout, stderr } = benchmark(&host).args(arguments).output().unwrap();
        (status.success(), [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat())
    };
    for (arguments, reason) in [
        (&["-t", "set"][..], "ERR value is not an integer or out of range"),
        (&["-t", "mset"], "ERR value is not an integer or out of range"),
        (&["-t", "incr", "--cluster"], "Failed to fetch cluster configuration"),
    ] {
        let (is_success, said) = refused(arguments);
        assert!(!is_success && said.contains(reason), "{arguments:?}: {said}");
    }
    assert!(succeeds(benchmark(&host).args(["-q", "-t", "incr"])).contains("INCR:"));
}
