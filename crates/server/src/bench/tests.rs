//! Runs against a real redis-server: what the report says must be what the server holds.

use std::io::Read;
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
        while redis.target().connect().is_err() {
            assert!(Instant::now() < deadline, "redis-server does not answer");
            thread::sleep(Duration::from_millis(10));
        }
        redis
    }

    fn target(&self) -> Target {
        Target::parse(&format!("resp://127.0.0.1:{}", self.port)).unwrap()
    }

    fn session(&self) -> resp::Session {
        match self.target().connect().unwrap() {
            Session::Resp(session) => session,
            Session::Http(_) => unreachable!("the target is resp"),
        }
    }

    fn keys(&self) -> i64 {
        self.session().command(&["DBSIZE"]).unwrap().as_integer().unwrap()
    }

    fn args(&self, line: &str) -> Args {
        parse(&format!("resp://127.0.0.1:{}", self.port), line)
    }
}

fn parse(target: &str, line: &str) -> Args {
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }
    Line::parse_from(["bench", "--target", target].into_iter().chain(line.split_whitespace())).args
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
        assert_eq!((report.tally.replies, report.tally.error_count()), (20_000, 0));
        assert_eq!(report.tally.latency_ns.len(), 20_000);
        let sum = report.sum.unwrap();
        assert_eq!((sum.expected, sum.found), (20_000, 20_000));
        let server = report.server.expect("a local server names its process");
        assert_eq!(server.pid, redis.child.id());
        let mut session = redis.target().connect().unwrap();
        let workload = prepare_workload(&redis.args(line), &redis.target(), &mut session).unwrap();
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
        assert_eq!((report.tally.replies, report.tally.first_error), (operations, None), "{line}");
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
    assert!(report.tally.replies > 0);
    assert_eq!(report.sum.unwrap().found, i128::from(report.tally.replies));
}

#[test]
fn error_replies_are_counted_and_fail_the_run() {
    let redis = Redis::start();
    let args = redis.args("--command add-id --operations 100 --keys 10");
    let report = measure(&args).unwrap();
    assert_eq!((report.tally.replies, report.tally.errors["ERR"]), (100, 100));
    assert!(report.tally.first_error.unwrap().starts_with("ERR unknown command 'Q.ADD'"));
    assert!(run(args.clone()).is_err());
    assert!(run(Args { keep_going: true, ..args }).is_ok());
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

#[test]
fn an_overload_goes_on_without_waiting() {
    let redis = Redis::start();
    // Far more than anything can do: nearly all of it finds its connection full.
    let line = "--rate 1000000000 --seconds 1 --window 2 --skip-late --pipeline 4 --connections 3 --keys 10 --verify";
    let report = measure(&redis.args(line)).unwrap();
    let Tally { replies, skipped, .. } = report.tally;
    assert!(replies > 0 && skipped > replies, "{replies} replies, {skipped} skipped");
    assert!(report.sum.unwrap().holds());
    assert_eq!(report.tally.send_delay_ns.len() * 4, replies);
}

/// Answers the first `answers` commands of every connection, then closes it. Returns where it listens.
fn start_closing_server(answers: usize) -> Target {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                let mut input = [0; 64 * 1024];
                let mut answered = 0;
                while let Ok(count @ 1..) = stream.read(&mut input) {
                    let commands = input[..count].windows(4).filter(|window| window == b"INCR").count();
                    let left = (answers - answered).min(commands);
                    let _ = stream.write_all(b":1\r\n".repeat(left).as_slice());
                    answered += left;
                    // `INFO` is not understood here.
                    if answered == answers || commands == 0 {
                        break;
                    }
                }
            });
        }
    });
    Target::parse(&format!("resp://{address}")).unwrap()
}

#[test]
fn closed_connections_end_a_run_unless_it_keeps_going() {
    let target = start_closing_server(10);
    let args = |line: &str| parse(&target.shown(), line);
    let line = "--operations 100 --connections 2 --pipeline 4 --keys 10";
    let error = measure(&args(line)).err().unwrap().to_string();
    assert_eq!(error, "the server closed a connection");

    for pace in ["", " --rate 1000000"] {
        let report = measure(&args(&format!("{line} --keep-going{pace}"))).unwrap();
        let Tally { replies, unanswered, closed_connections, .. } = report.tally;
        assert_eq!(replies + unanswered, 100, "every operation is accounted for");
        // A connection gives ten replies at most, and the two that are open at the end may be closed unseen.
        assert!(
            closed_connections + 2 >= replies.div_ceil(10) && closed_connections > 0,
            "{closed_connections}"
        );
    }
}
