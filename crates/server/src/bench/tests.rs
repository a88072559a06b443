//! Runs against a real redis-server: what the report says must be what the server holds.

use std::net::TcpListener;
use std::process::{Child, Command as Program, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;

use super::*;

/// A redis-server without files on a free port; killed when dropped.
struct Redis {
    child: Child,
    port: u16,
}

impl Redis {
    fn start() -> Redis {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Program::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let redis = Redis { child, port };
        let deadline = Instant::now() + Duration::from_secs(20);
        while redis.target().connect().and_then(|mut session| session.command(&["PING"])).is_err() {
            assert!(Instant::now() < deadline, "redis-server does not answer");
            thread::sleep(Duration::from_millis(10));
        }
        redis
    }

    fn target(&self) -> Target {
        Target::parse(&format!("resp://127.0.0.1:{}", self.port)).unwrap()
    }

    fn keys(&self) -> i64 {
        self.target().connect().unwrap().command(&["DBSIZE"]).unwrap().as_integer().unwrap()
    }

    fn args(&self, line: &str) -> Args {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        let target = format!("resp://127.0.0.1:{}", self.port);
        Line::parse_from(["bench", "--target", &target].into_iter().chain(line.split_whitespace())).args
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn increments_arrive_once_each() {
    let redis = Redis::start();
    let line = "--command incr --operations 20000 --keys 500 --connections 7 --threads 2 --seed 1 --verify";
    for (pipeline, total) in [(1, 20_000), (16, 40_000), (300, 60_000)] {
        let report = measure(&redis.args(&format!("{line} --pipeline {pipeline}"))).unwrap();
        assert_eq!((report.operations, report.errors), (20_000, 0));
        assert_eq!(report.latency_ns.len(), 20_000);
        let sum = report.sum.unwrap();
        assert_eq!((sum.expected, sum.found), (20_000, 20_000));
        let server = report.server.expect("a local server names its process");
        assert_eq!(server.pid, redis.child.id());
        let mut session = redis.target().connect().unwrap();
        let workload = prepare_workload(&redis.args(line), &mut session).unwrap();
        assert_eq!(sum_of_keys(&mut session, &workload).unwrap(), total);
    }
    assert_eq!(redis.keys(), 500);
}

#[test]
fn every_load_runs_without_errors() {
    let redis = Redis::start();
    let cases = [
        ("--command load --keys 5000 --threads 2 --value 12345", 5_000, 5_000 * 12_345),
        ("--command hot --operations 3000", 3_000, 3_000),
        ("--command get --operations 3000 --keys 5000", 3_000, 0),
        ("--command mget100 --operations 300 --keys 5000", 300, 0),
        ("--command incr --operations 2000 --keys 5000 --rate 40000 --pipeline 4", 2_000, 2_000),
        ("--command script-id --operations 2000 --keys 5000 --seed 3", 2_000, 2_000),
    ];
    for (line, operations, growth) in cases {
        let report = measure(&redis.args(&format!("{line} --verify"))).unwrap();
        assert_eq!((report.operations, report.first_error), (operations, None), "{line}");
        assert_eq!(report.sum.unwrap().found, growth, "{line}");
    }
    assert_eq!(redis.keys(), 5_000 + 2_000, "counters and remembered ids");
}

#[test]
fn the_same_seed_sends_the_same_ids() {
    let redis = Redis::start();
    let line = "--command script-id --operations 1000 --keys 10 --seed 3 --verify";
    assert!(run(redis.args(line)).is_ok());
    let again = run(redis.args(line)).unwrap_err().to_string();
    assert_eq!(again, "the sum of all keys grew by 0, but 1000 was acknowledged");
}

#[test]
fn time_limits_end_a_run() {
    let redis = Redis::start();
    let report = measure(&redis.args("--command incr --seconds 1 --keys 10 --verify")).unwrap();
    assert!(report.operations > 0);
    assert_eq!(report.sum.unwrap().found, i128::from(report.operations));
}

#[test]
fn error_replies_are_counted_and_fail_the_run() {
    let redis = Redis::start();
    let args = redis.args("--command add-id --operations 100 --keys 10");
    let report = measure(&args).unwrap();
    assert_eq!((report.operations, report.errors), (100, 100));
    assert!(report.first_error.unwrap().starts_with("ERR unknown command 'Q.ADD'"));
    assert!(run(args).is_err());
}

#[test]
fn results_can_be_written_as_json() {
    let redis = Redis::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("result.json");
    let args = Args { json: Some(path.clone()), ..redis.args("--operations 1000 --keys 10 --seed 5") };
    run(args).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    assert_eq!((json["operations"].as_u64(), json["seed"].as_u64()), (Some(1_000), Some(5)));
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let target = Target::parse(&format!("resp://127.0.0.1:{port}")).unwrap();
    let error = format!("{:#}", target.connect().err().unwrap());
    assert!(error.contains(&format!("cannot connect to resp://127.0.0.1:{port}")), "{error}");
}
