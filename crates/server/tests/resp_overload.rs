//! More work than the machine can do, against the real binary: refusals are clear and change nothing, memory stays
//! bounded, others are served meanwhile, and afterwards everything is as if nothing had been.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod resp_support;
mod support;

use std::collections::HashMap;
use std::net::TcpStream;
use std::thread;
use std::time::Instant;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use resp_support::{Client, PATIENCE, command};
use support::Server;

/// The smallest memory there is, and counters that take twice as much: their keys are long.
const MEMORY: &str = "32MiB";
const COUNTERS: u32 = 130_000;
/// The counters a storm goes for, few enough to be read one by one afterwards.
const STORMED: u32 = 4_000;
const STORM_CONNECTIONS: u64 = 16;
const STORM_PIPELINE: usize = 50;

/// What the buffers of connections may take in these tests; each of up to four loops has at least this much.
const BUFFERS: &str = "32MiB";
/// What the process may take beyond that and beyond what it took before: allocator, replies under way, log.
const SLACK_BYTES: u64 = 100 << 20;

fn key(number: u32) -> String {
    format!("{number:0>490}")
}

fn fact(client: &mut Client, name: &str) -> u64 {
    let info = client.ask("INFO");
    let start = info.find(&format!("|{name}:")).unwrap_or_else(|| panic!("{name} is not in {info}"));
    let digits = info[start + name.len() + 2..].split('|').next().unwrap();
    digits.parse().unwrap()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        thread::yield_now();
    }
}

/// Creates the counters, each with value 0.
fn load(client: &mut Client) {
    for first in (0..COUNTERS).step_by(1_000) {
        let pairs: Vec<String> =
            (first..COUNTERS.min(first + 1_000)).map(|number| format!("{} 0", key(number))).collect();
        let line = format!("MSET {}", pairs.join(" "));
        // Memory is smaller than what comes in: whoever is told to come back later does.
        wait_until("loading", || match client.ask(&line).as_str() {
            "+OK|" => true,
            busy => {
                assert!(busy.starts_with("-BUSY "), "{busy}");
                false
            }
        });
    }
}

/// What one connection of a storm was told: how many increments of each counter were done, and the refusals.
#[derive(Default)]
struct Told {
    done: HashMap<u32, i64>,
    refusals: Vec<String>,
}

fn storm(address: std::net::SocketAddr, seed: u64, rounds: usize) -> Told {
    let mut client = Client::connect(address);
    let mut random = SmallRng::seed_from_u64(seed);
    let mut told = Told::default();
    for _ in 0..rounds {
        let numbers: Vec<u32> =
            (0..STORM_PIPELINE).map(|_| random.random_range(0..STORMED) * (COUNTERS / STORMED)).collect();
        let frames: Vec<u8> = numbers.iter().flat_map(|n| command(&format!("INCR {}", key(*n)))).collect();
        client.send(&frames);
        for number in numbers {
            match client.reply() {
                reply if reply.starts_with(':') => *told.done.entry(number).or_default() += 1,
                refusal => told.refusals.push(refusal),
            }
        }
    }
    told
}

/// Storms until somebody was refused, and checks that refusals say why, that they changed nothing, and that afterwards
/// nobody is refused.
fn storm_until_refused(setting: &[&str], reason: &str, why: &str) {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [&["--memory", MEMORY, "--durability", "none"], setting].concat();
    let server = Server::start_with(folder.path(), &arguments);
    let mut client = Client::connect(server.resp);
    load(&mut client);
    let mut expected: HashMap<u32, i64> = HashMap::new();
    let mut refusals = Vec::new();
    let mut seed = 0;
    wait_until("a refusal", || {
        let storms: Vec<_> = (0..STORM_CONNECTIONS)
            .map(|connection| {
                let (address, seed) = (server.resp, seed + connection);
                thread::spawn(move || storm(address, seed, 20))
            })
            .collect();
        seed += STORM_CONNECTIONS;
        for told in storms.into_iter().map(|storm| storm.join().unwrap()) {
            told.done.into_iter().for_each(|(number, count)| *expected.entry(number).or_default() += count);
            refusals.extend(told.refusals);
        }
        !refusals.is_empty()
    });
    let line = format!("-BUSY overloaded, nothing was changed: {why}; retry later|");
    assert!(refusals.iter().all(|refusal| *refusal == line), "{:?}", refusals.iter().find(|r| **r != line));

    wait_until("everything is done", || fact(&mut client, "pending_requests") == 0);
    for index in 0..STORMED {
        let number = index * (COUNTERS / STORMED);
        let expected = expected.get(&number).copied().unwrap_or(0).to_string();
        let mut reply = String::new();
        // One at a time is never too much, but a checkpoint of what the storm left may be under way.
        wait_until("a read", || {
            reply = client.ask(&format!("GET {}", key(number)));
            !reply.starts_with("-BUSY ")
        });
        assert_eq!(reply, format!("${}|{expected}|", expected.len()), "counter {number}");
    }
    let metrics = server.request("GET", "/metrics", &[], "").body;
    let shed = format!("quipu_shed_total{{reason=\"{reason}\"}} ");
    let count = metrics.lines().find_map(|line| line.strip_prefix(&shed)).expect("a metric").parse::<usize>();
    assert!(count.unwrap() >= refusals.len(), "{} refusals, {metrics}", refusals.len());
    let (status, log) = server.terminate();
    assert!(status.success(), "{log:?}");
}

#[test]
fn more_than_may_wait_for_the_disk_is_refused_and_not_done() {
    storm_until_refused(&["--queue-requests", "100"], "queue_full", "too many requests wait for the disk");
}

#[test]
fn who_waits_too_long_for_the_disk_is_refused_and_nothing_is_done() {
    let why = "the disk is behind, this waited too long for it";
    storm_until_refused(&["--queue-wait", "1ms"], "queue_wait", why);
}

/// The most memory the process ever had.
fn peak_bytes(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.process_id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux says it");
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// Sends without ever reading, until the other end closes or all is sent.
fn pour(socket: &TcpStream, bytes: &[u8], times: usize) {
    use std::io::Write;
    for _ in 0..times {
        if (&mut &*socket).write_all(bytes).is_err() {
            return;
        }
    }
}

#[test]
fn connections_that_hold_memory_are_closed_and_others_are_served() {
    let long = key(7);
    let piece = format!("${}\r\n{}\r\n", 1 << 20, "x".repeat(1 << 20));
    for (what, first, then, times) in [
        ("untaken replies", String::new(), "COMMAND DOCS\r\n".repeat(500), 20),
        ("untaken small replies", String::new(), "PING\r\n".repeat(20_000), 200),
        ("open transactions", "MULTI\r\n".to_owned(), format!("INCR {long}\r\n").repeat(200), 150),
        ("unfinished commands", "*16\r\n$3\r\nDEL\r\n".to_owned(), piece, 13),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let arguments = ["--resp-buffer-limit", BUFFERS, "--resp-threads", "1", "--durability", "none"];
        let server = Server::start_with(folder.path(), &arguments);
        let mut other = Client::connect(server.resp);
        assert_eq!(other.ask("PING"), "+PONG|");
        let before = peak_bytes(&server);
        let hogs: Vec<TcpStream> = (0..16).map(|_| TcpStream::connect(server.resp).unwrap()).collect();
        thread::scope(|scope| {
            for hog in &hogs {
                scope.spawn(|| {
                    pour(hog, first.as_bytes(), 1);
                    pour(hog, then.as_bytes(), times);
                });
            }
            wait_until(what, || fact(&mut other, "client_memory_disconnections") > 0);
            let mut count = 0;
            wait_until("others are served", || {
                count += 1;
                assert_eq!(other.ask("INCR served"), format!(":{count}|"), "{what}");
                count == 100
            });
            hogs.iter().for_each(|hog| drop(hog.shutdown(std::net::Shutdown::Both)));
        });
        let grown = peak_bytes(&server) - before;
        assert!(grown < (32 << 20) + SLACK_BYTES, "{what}: grown by {grown} bytes");
        wait_until("the memory is free", || fact(&mut other, "mem_clients_normal") == 0);
    }
}

#[test]
fn a_pipeline_of_large_replies_is_answered_in_order_in_many_turns() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--resp-output-limit", "1MiB", "--durability", "none"];
    let server = Server::start_with(folder.path(), &arguments);
    let mut client = Client::connect(server.resp);
    let large = client.ask("COMMAND DOCS");
    let frames: Vec<u8> = (0..400)
        .flat_map(|number| [command("COMMAND DOCS"), command(&format!("ECHO {number}"))].concat())
        .chain(command("INFO").repeat(2_000))
        .chain(command("INCR last"))
        .collect();
    let mut sender = client.duplicate();
    let sending = thread::spawn(move || sender.send(&frames));
    for number in 0..400 {
        assert!(client.reply() == large, "reply {number} is not the first one again");
        assert_eq!(client.reply(), format!("${}|{number}|", number.to_string().len()));
    }
    for _ in 0..2_000 {
        assert!(client.reply().starts_with('$'));
    }
    assert_eq!(client.reply(), ":1|");
    sending.join().unwrap();
}

#[test]
fn a_transaction_whose_replies_are_too_large_is_not_done() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_with(folder.path(), &["--resp-output-limit", "1MiB"]);
    let mut client = Client::connect(server.resp);
    assert_eq!(client.ask("MULTI"), "+OK|");
    assert_eq!(client.ask("INCR x"), "+QUEUED|");
    for _ in 0..200 {
        assert_eq!(client.ask("COMMAND DOCS"), "+QUEUED|");
    }
    let refused =
        "-EXECABORT Transaction discarded because of: its replies are too large, ask for less at a time|";
    assert_eq!(client.ask("EXEC"), refused);
    assert_eq!(client.ask("GET x"), "$-1|");
    assert_eq!(client.ask("INCR x"), ":1|");
}

#[test]
fn idle_connections_are_closed_when_that_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start_with(folder.path(), &["--resp-idle-timeout", "1h"]);
    let (mut idle, mut active) = (Client::connect(server.resp), Client::connect(server.resp));
    assert_eq!(idle.ask("PING"), "+PONG|");
    assert_eq!(active.ask("CONFIG GET timeout"), "*2|$7|timeout|$4|3600|");
    assert_eq!(
        active.ask("CONFIG SET timeout x"),
        "-ERR CONFIG SET failed (possibly related to argument 'timeout') - argument couldn't be parsed into an integer|"
    );
    assert_eq!(active.ask("CONFIG SET timeout 1"), "+OK|");
    wait_until("the idle one is closed", || fact(&mut active, "client_idle_disconnections") == 1);
    assert_eq!(idle.rest(), "");
    assert_eq!(active.ask("CONFIG SET timeout 0"), "+OK|");
    assert_eq!(fact(&mut active, "connected_clients"), 1);
}

/// `quipu serve` under a limit on open files, which is given as `ulimit` takes it.
fn serve_with_files(data: &std::path::Path, files: u32, arguments: &[&str]) -> std::process::Command {
    let serve = support::serve_command(data);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &format!("ulimit -n {files}; exec \"$0\" \"$@\"")]);
    command.arg(serve.get_program()).args(serve.get_args()).args(arguments);
    command.envs(serve.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

/// Connections take files, and so does the store: however many come, it has what it needs to write.
#[test]
fn few_open_files_are_fewer_connections_and_no_failed_write() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::spawn(serve_with_files(data.path(), 200, &["--memory", MEMORY]));
    let said = |part: &str| server.log().iter().filter(|line| line.contains(part)).count();
    assert_eq!(said("the limit on open files is 200"), 1, "{:?}", server.log());
    let mut client = Client::connect(server.resp);
    let refusal = client.ask("CONFIG SET maxclients 10000");
    let (form, possible) = refusal.rsplit_once(' ').unwrap();
    assert_eq!(
        form,
        "-ERR CONFIG SET failed (possibly related to argument 'maxclients') - The operating system is not able to \
         handle the specified number of clients, try with"
    );
    let possible: u32 = possible.trim_end_matches('|').parse().unwrap();
    assert_eq!(client.ask(&format!("CONFIG SET maxclients {possible}")), "+OK|");
    assert!(
        client.ask(&format!("CONFIG SET maxclients {}", possible + 1)).starts_with("-ERR CONFIG SET failed")
    );
    let idle: Vec<TcpStream> = (0..400)
        .map(|number| if number % 2 == 0 { server.resp } else { server.http })
        .map(|address| TcpStream::connect(address).unwrap())
        .collect();
    load(&mut client);
    let log = server.log().join("\n");
    assert!(!log.contains("open files (os error"), "{log}");
    assert_eq!(client.ask(&format!("GET {}", key(0))), "$1|0|");
    drop(idle);
}

#[test]
fn too_few_open_files_to_begin_with_are_told() {
    let data = tempfile::tempdir().unwrap();
    let output = serve_with_files(data.path(), 64, &[]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("the limit on open files is 64"), "{said}");
}
