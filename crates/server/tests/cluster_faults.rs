//! Real servers of a cluster that lose each other: who goes on counting, and what the others say.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod support;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quipu_counting::slot::{partition, slot};
use rustix::process::Signal;
use serde_json::Value;
use support::cluster::{add, ask, described, found, start_settled, value, wait_until};
use support::{Response, Server};

const PARTITIONS: u16 = 16;
/// So long nobody waits who does not wait in vain.
const PATIENCE: Duration = Duration::from_secs(120);

/// Three servers, of which each leads what it should.
fn start(data: &[PathBuf]) -> Vec<Server> {
    let servers = start_settled(data);
    let is_led = |partition: &Value| partition["leader"] == partition["replicas"][0];
    wait_until(&servers[0], |cluster| cluster["partitions"].as_array().unwrap().iter().all(is_led));
    servers
}

/// A counter in each partition.
fn keys() -> Vec<String> {
    let of = |wanted: u16| {
        let mut names = (0..).map(|number| format!("counter:{number}"));
        names.find(|name| partition(slot(name.as_bytes()), PARTITIONS) == wanted).unwrap()
    };
    (0..PARTITIONS).map(of).collect()
}

/// Who leads each partition, as a server says.
fn leaders(server: &Server) -> Vec<Option<u64>> {
    let cluster = described(server);
    cluster["partitions"].as_array().unwrap().iter().map(|partition| partition["leader"].as_u64()).collect()
}

/// Adds to these counters in turn, each time once and without an id, until it is over: every answer must be the next value.
/// Returns how often it went around.
fn count(address: SocketAddr, keys: &[&String], is_over: &AtomicBool) -> i64 {
    for round in 1.. {
        for key in keys {
            assert_eq!(ask(address, &format!("INCR {key}")).unwrap(), [format!(":{round}")], "{key}");
        }
        if is_over.load(Ordering::Relaxed) {
            return round;
        }
    }
    unreachable!()
}

#[test]
fn what_a_killed_server_led_is_led_by_others_and_what_others_lead_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut servers = start(&found(folder.path(), 3));
    let keys = keys();
    let leaders = leaders(&servers[0]);
    // The first one may do more than its share for all nodes.
    let victim = 1;
    let is_orphan = |number: &usize| leaders[*number] == Some(victim);
    let (orphans, others): (Vec<usize>, Vec<usize>) = (0..usize::from(PARTITIONS)).partition(is_orphan);
    assert!(!orphans.is_empty() && !others.is_empty(), "{leaders:?}");
    let others: Vec<&String> = others.into_iter().map(|number| &keys[number]).collect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let counting: Vec<_> = servers[1..]
            .iter()
            .zip([&others[..others.len() / 2], &others[others.len() / 2..]])
            .map(|(server, keys)| {
                let (address, is_over) = (server.resp, &is_over);
                scope.spawn(move || count(address, keys, is_over))
            })
            .collect();
        thread::sleep(Duration::from_millis(500));
        servers.remove(0).kill();
        let killed = Instant::now();
        let left: Vec<&Server> = servers.iter().collect();
        for number in orphans {
            add(&left, &keys[number], "after");
            println!("partition {number}: counted {} ms after the kill", killed.elapsed().as_millis());
        }
        is_over.store(true, Ordering::Relaxed);
        let rounds: Vec<i64> = counting.into_iter().map(|counting| counting.join().unwrap()).collect();
        println!("meanwhile others went around {rounds:?} times, and saw no error");
    });
}

/// It knows the address of the one that invited it, and of nobody else.
#[test]
fn a_server_joins_through_one_that_leads_nothing_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let mut data = found(folder.path(), 4);
    let fourth = data.remove(3);
    let mut servers = start(&data);
    servers.remove(0).kill();
    wait_until(&servers[0], |cluster| cluster["leader"].as_u64().is_some_and(|leader| leader != 1));
    servers.insert(0, Server::start(&data[0]));
    let joining = Server::start(&fourth);
    wait_until(&servers[0], |cluster| cluster["nodes"].as_array().unwrap().len() == 4);
    let holds = |partition: &Value| partition["replicas"].as_array().unwrap().contains(&4.into());
    wait_until(&joining, |cluster| cluster["partitions"].as_array().unwrap().iter().any(holds));
}

fn increment(server: &Server, key: &str, id: &str) -> Response {
    server.request("POST", &format!("/api/v1/counters/{key}/increment"), &[("Idempotency-Key", id)], "")
}

/// What a server says over HTTP that could not do it, and whether it knows that nothing was done.
fn assert_refused(reply: &Response) {
    let body = reply.json();
    let reason = body["reason"].as_str().unwrap();
    assert_eq!(body["type"], format!("urn:quipu:problem:{reason}"), "{reply:?}");
    assert_eq!(reply.header("content-type"), Some("application/problem+json"), "{reply:?}");
    match reason {
        "no-leader" | "no-quorum" => {
            assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")), "{reply:?}");
        }
        "outcome-unknown" => assert_eq!(reply.status, 504, "{reply:?}"),
        _ => panic!("{reply:?}"),
    }
}

#[test]
fn who_is_left_alone_says_that_nobody_leads() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 3);
    let mut servers = start(&data);
    let keys = keys();
    keys.iter().for_each(|key| add(&[&servers[0]], key, "before"));
    servers.drain(1..).for_each(Server::kill);
    let until = Instant::now() + PATIENCE;
    thread::scope(|scope| {
        for key in &keys {
            let server = &servers[0];
            scope.spawn(move || {
                // It takes a moment to find out that nobody follows any more: until then nobody knows what becomes of it.
                loop {
                    let reply = increment(server, key, "first");
                    assert_refused(&reply);
                    if reply.json()["reason"] == "no-leader" {
                        break;
                    }
                    assert!(Instant::now() < until, "{reply:?}");
                }
                // What cannot be read must not look as if it did not exist.
                let looks = ["GET", "MGET", "EXISTS", "STRLEN", "TTL", "WATCH", "Q.STAT", "OBJECT FREQ"];
                let looks = looks.map(|look| (format!("{look} {key}"), "-CLUSTERDOWN "));
                let writes = [format!("Q.ADD {key} 1 ID second"), format!("INCR {key}")];
                let writes = writes.map(|write| (write, "-CLUSTERDOWN nobody leads"));
                // Each of them is patient for some seconds.
                thread::scope(|scope| {
                    for (command, expected) in looks.into_iter().chain(writes) {
                        scope.spawn(move || {
                            let reply = ask(server.resp, &command).unwrap();
                            assert!(reply[0].starts_with(expected), "{command}: {reply:?}");
                        });
                    }
                });
                let one = server.request("GET", &format!("/api/v1/counters/{key}"), &[], "");
                let keys = format!(r#"{{"keys":["{key}"]}}"#);
                let many = server.request("POST", "/api/v1/counters/batch-get", &[], &keys);
                for reply in [one, many] {
                    assert_refused(&reply);
                    assert_eq!(reply.status, 503, "{reply:?}");
                }
            });
        }
    });
    // What had an id counts once, what had none was not done.
    servers.extend(data[1..].iter().map(|data| Server::start(data)));
    for key in &keys {
        ["first", "second"].iter().for_each(|id| add(&[&servers[0]], key, id));
        assert_eq!(value(&servers[1], key), 3, "{key}");
    }
}

/// Asks until it is so.
fn until_is<T: std::fmt::Debug>(ask: impl Fn() -> T, is_so: impl Fn(&T) -> bool) {
    let until = Instant::now() + PATIENCE;
    loop {
        let answer = ask();
        if is_so(&answer) {
            return;
        }
        assert!(Instant::now() < until, "{answer:?}");
        thread::sleep(Duration::from_millis(100));
    }
}

/// One of the others is gone, and the other one hears everything and answers nothing.
#[test]
fn a_minority_says_that_it_is_one_and_nothing_about_counters() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 3);
    let mut servers = start(&data);
    let keys = keys();
    keys.iter().for_each(|key| add(&[&servers[0]], key, "before"));
    servers.remove(1).kill();
    servers[1].signal(Signal::STOP);
    let server = &servers[0];
    thread::scope(|scope| {
        for key in &keys {
            // A look has no outcome, at whatever moment it is asked for.
            for query in ["", "?consistency=eventual&maxStalenessMs=0"] {
                scope.spawn(move || {
                    let reply = server.request("GET", &format!("/api/v1/counters/{key}{query}"), &[], "");
                    // Who leads may trust that for a moment yet.
                    if reply.status != 200 {
                        assert_refused(&reply);
                        assert_eq!(reply.status, 503, "{key}{query}: {reply:?}");
                    }
                });
            }
            scope.spawn(move || {
                let reply = increment(server, key, "lost");
                assert_refused(&reply);
                let body = reply.json();
                let told = ["value", "version", "exists", "exact", "stalenessMs", "accepted"];
                assert!(told.iter().all(|field| body[field].is_null()), "{reply:?}");
            });
        }
    });
    until_is(
        || server.request("GET", "/readyz", &[], ""),
        |reply| reply.status == 503 && reply.body.contains("16 of 16 partitions have no leader"),
    );
    let info = converse(server.resp_cluster.unwrap(), "CLUSTER INFO\r\nQUIT\r\n");
    assert!(info.contains("cluster_state:fail") && info.contains("cluster_slots_ok:0"), "{info}");
    let status = String::from_utf8(server.client(&["cluster", "status"]).stdout).unwrap();
    assert!(status.contains("16 partitions have no leader"), "{status}");
    assert!(status.contains("node 1, which was asked: 16 of 16 partitions"), "{status}");
    // Who is sent to a node that does not answer learns less than who is told.
    let moved = ask(server.resp_cluster.unwrap(), &format!("GET {}", keys[0])).unwrap();
    assert!(moved[0].starts_with("-CLUSTERDOWN"), "{moved:?}");
    let removed = server.client(&["cluster", "remove", "2"]);
    let told = String::from_utf8_lossy(&removed.stderr).into_owned();
    assert_eq!(removed.status.code(), Some(8), "{told}");
    assert!(told.contains("too few nodes of the cluster are reached"), "{told}");
    servers[1].signal(Signal::CONT);
    until_is(|| server.request("GET", "/readyz", &[], ""), |reply| reply.status == 200);
    keys.iter().for_each(|key| add(&[server], key, "after"));
}

/// All that is answered on a connection of its own.
fn converse(address: SocketAddr, lines: &str) -> String {
    String::from_utf8(support::exchange(address, lines.as_bytes())).unwrap()
}

#[test]
fn a_server_whose_others_stand_still_acknowledges_nothing_and_counts_it_once_later() {
    let folder = tempfile::tempdir().unwrap();
    let servers = start(&found(folder.path(), 3));
    let keys = keys();
    servers[1..].iter().for_each(|server| server.signal(Signal::STOP));
    thread::scope(|scope| {
        for key in &keys {
            let server = &servers[0];
            scope.spawn(move || assert_refused(&increment(server, key, "stopped")));
            scope.spawn(move || {
                let reply = ask(server.resp, &format!("Q.ADD {key} 1 ID stopped-too")).unwrap();
                let is_right = ["-CLUSTERDOWN ", "-UNAVAILABLE outcome unknown"]
                    .iter()
                    .any(|right| reply[0].starts_with(right));
                assert!(is_right, "{key}: {reply:?}");
            });
        }
    });
    servers[1..].iter().for_each(|server| server.signal(Signal::CONT));
    let all: Vec<&Server> = servers.iter().collect();
    let until = Instant::now() + PATIENCE;
    for key in &keys {
        while increment(&servers[0], key, "stopped").status != 200 {
            assert!(Instant::now() < until, "{key} is not counted");
        }
        add(&all, key, "stopped-too");
        assert_eq!(value(&servers[1], key), 2, "{key}");
    }
}
