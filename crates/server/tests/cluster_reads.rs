//! Reads that need not see the newest, from real servers: whoever holds a counter answers, and says how far behind it may be.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod resp_support;
mod support;

use std::time::{Duration, Instant};

use resp_support::Client;
use rustix::process::Signal;
use serde_json::Value;
use support::Server;
use support::cluster::{described, found, start_settled};

/// One of the keys of these tests; they are spread over all partitions.
fn key(number: usize) -> String {
    format!("counter:{number}")
}

const KEYS: usize = 40;

/// Adds one, at any of these servers, until one of them has done it.
fn add(servers: &[&Server], key: &str, id: &str) {
    let until = Instant::now() + Duration::from_secs(60);
    for server in servers.iter().cycle() {
        let path = format!("/api/v1/counters/{key}/increment");
        let reply = server.request("POST", &path, &[("Idempotency-Key", id)], "");
        if reply.status == 200 {
            return;
        }
        assert!(Instant::now() < until, "{reply:?}");
    }
}

fn eventual(server: &Server, key: &str, more: &str) -> Value {
    let path = format!("/api/v1/counters/{key}?consistency=eventual{more}");
    let reply = server.request("GET", &path, &[], "");
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// Value and staleness.
fn told(counter: &Value) -> (i64, u64) {
    (counter["value"].as_i64().unwrap(), counter["stalenessMs"].as_u64().unwrap())
}

/// Whoever does not see what was acknowledged says that it may be as far behind as that.
fn check(server: &Server, key: &str, acknowledged: i64, at: Instant) -> i64 {
    let since_ms = at.elapsed().as_millis() as u64;
    let (value, staleness_ms) = told(&eventual(server, key, ""));
    assert!(
        value >= acknowledged || staleness_ms >= since_ms,
        "{key} was {acknowledged} {since_ms} ms ago, and is told as {value}, at most {staleness_ms} ms old"
    );
    value
}

/// Waits until a server can say of everything how far behind it may be.
fn wait_until_known(server: &Server) {
    let until = Instant::now() + Duration::from_secs(60);
    let is_known = |partition: &Value| partition["stalenessMs"].is_u64();
    while !described(server)["partitions"].as_array().unwrap().iter().all(is_known) {
        assert!(Instant::now() < until, "{:#}", described(server));
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn wait_for_value(server: &Server, key: &str, value: i64) {
    let until = Instant::now() + Duration::from_secs(60);
    while told(&eventual(server, key, "")).0 != value {
        assert!(Instant::now() < until, "{key} at {}", server.http);
    }
}

#[test]
fn every_replica_answers_and_says_how_far_behind_it_may_be() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 3);
    let servers = start_settled(&data);
    let all: Vec<&Server> = servers.iter().collect();
    for round in 1..=5 {
        for number in 0..KEYS {
            add(&all, &key(number), &format!("round-{round}"));
            let at = Instant::now();
            for server in &all {
                check(server, &key(number), round, at);
            }
        }
    }
    let (mut is_any_behind, mut is_any_window_behind) = (false, false);
    for server in &servers {
        (0..KEYS).for_each(|number| wait_for_value(server, &key(number), 5));
        // What is not fresh enough is read from the leader.
        assert_eq!(told(&eventual(server, &key(1), "&maxStalenessMs=0")), (5, 0));
        assert_eq!(told(&eventual(server, "nobody", "&maxStalenessMs=60000")).0, 0);
        let keys: Vec<String> = (0..KEYS).map(key).collect();
        let body = serde_json::json!({ "keys": keys }).to_string();
        let reply = server.request("POST", "/api/v1/counters/batch-get?consistency=eventual", &[], &body);
        let results = reply.json()["results"].clone();
        let results = results.as_array().unwrap();
        assert!(results.len() == KEYS && results.iter().all(|counter| told(counter).0 == 5), "{reply:?}");
        is_any_behind |= results.iter().any(|counter| told(counter).1 > 0);
        for path in ["window", "history"] {
            let behind = |number: usize| {
                let path = format!("/api/v1/counters/by-time:{number}/{path}?consistency=eventual");
                let reply = server.request("GET", &path, &[], "");
                reply.json()["stalenessMs"].as_u64().unwrap_or_else(|| panic!("{reply:?}"))
            };
            is_any_window_behind |= (0..KEYS).map(behind).max() > Some(0);
            let path = format!("/api/v1/counters/by-time:1/{path}?consistency=eventual&maxStalenessMs=0");
            assert_eq!(server.request("GET", &path, &[], "").json()["stalenessMs"], 0);
        }
        for refused in ["consistency=weak", "consistency=eventual&maxStalenessMs=soon"] {
            let reply = server.request("GET", &format!("/api/v1/counters/a?{refused}"), &[], "");
            assert_eq!(
                (reply.status, reply.json()["reason"].as_str()),
                (400, Some("malformed")),
                "{reply:?}"
            );
        }
    }
    assert!(is_any_behind && is_any_window_behind, "of three replicas two follow");
}

#[test]
fn a_node_that_is_left_alone_goes_on_answering_and_says_that_it_is_further_and_further_behind() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 3);
    let mut servers = start_settled(&data);
    let all: Vec<&Server> = servers.iter().collect();
    wait_until_known(&servers[0]);
    (0..KEYS).for_each(|number| add(&all, &key(number), "first"));
    let first_at = Instant::now();
    (0..KEYS).for_each(|number| wait_for_value(&servers[0], &key(number), 1));
    // It sleeps while the others count, and wakes up when they sleep.
    servers[0].signal(Signal::STOP);
    let others = [&servers[1], &servers[2]];
    (0..KEYS).for_each(|number| add(&others, &key(number), "second"));
    let second_at = Instant::now();
    others.iter().for_each(|server| server.signal(Signal::STOP));
    servers[0].signal(Signal::CONT);
    for number in 0..KEYS {
        check(&servers[0], &key(number), 1, first_at);
        check(&servers[0], &key(number), 2, second_at);
    }
    // Who wants to know exactly, or more exactly than can be said, is told that nobody can say.
    let refused = |server: &Server, query: &str| {
        let reply = server.request("GET", &format!("/api/v1/counters/{}{query}", key(0)), &[], "");
        (reply.status, reply.json()["reason"].as_str().unwrap().to_owned())
    };
    assert!(refused(&servers[0], "").0 >= 503);
    // By now it has heard nothing for longer than it could lead without the others: every look is older than the one before.
    for number in 0..KEYS {
        let (value, staleness_ms) = told(&eventual(&servers[0], &key(number), ""));
        let at = Instant::now();
        std::thread::sleep(Duration::from_millis(20));
        let passed_ms = at.elapsed().as_millis() as u64;
        let (later, later_ms) = told(&eventual(&servers[0], &key(number), ""));
        assert_eq!(later, value, "nobody has told it anything");
        assert!(
            later_ms >= staleness_ms + passed_ms,
            "{staleness_ms} ms and {passed_ms} ms later {later_ms} ms"
        );
    }
    // They wake up, and it learns what it has missed.
    others.iter().for_each(|server| server.signal(Signal::CONT));
    (0..KEYS).for_each(|number| wait_for_value(&servers[0], &key(number), 2));
    servers.drain(1..).for_each(Server::kill);
    let gone_at = Instant::now();
    for number in 0..KEYS {
        assert_eq!(check(&servers[0], &key(number), 2, gone_at), 2);
    }
    let mut client = Client::connect(servers[0].resp_cluster.unwrap());
    assert_eq!(client.ask("READONLY"), "+OK|");
    for number in 0..KEYS {
        assert_eq!(client.ask(&format!("GET {}", key(number))), "$1|2|");
    }
    // For a while it is sure that nobody leads in its place.
    let alone = &servers[0];
    while alone.request("GET", &format!("/api/v1/counters/{}", key(0)), &[], "").status == 200 {
        assert!(gone_at.elapsed() < Duration::from_secs(60));
    }
    // All of these look for a leader first.
    std::thread::scope(|scope| {
        for query in ["", "?consistency=eventual&maxStalenessMs=1"] {
            scope.spawn(move || {
                let (status, reason) = refused(alone, query);
                assert!(status == 503 && ["no-leader", "no-quorum"].contains(&&*reason), "{status} {reason}");
            });
        }
        for line in ["GET counter:0", "MGET counter:0 counter:1", "EXISTS counter:0", "SCAN 0", "KEYS *"] {
            scope.spawn(move || {
                let told = Client::connect(alone.resp).ask(line);
                assert!(told.starts_with("-CLUSTERDOWN "), "{line}: {told}");
            });
        }
        scope.spawn(move || {
            let listed = alone.request("GET", "/api/v1/counters", &[], "");
            assert_eq!((listed.status, listed.json()["reason"].as_str()), (503, Some("no-leader")));
        });
    });
    assert_eq!(check(alone, &key(0), 2, gone_at), 2);
}

#[test]
fn who_does_not_hold_a_counter_asks_those_who_do() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 5);
    let mut servers = start_settled(&data);
    let all: Vec<&Server> = servers.iter().collect();
    (0..KEYS).for_each(|number| add(&all, &key(number), "first"));
    let at = Instant::now();
    for server in &servers {
        for number in 0..KEYS {
            check(server, &key(number), 1, at);
        }
        (0..KEYS).for_each(|number| wait_for_value(server, &key(number), 1));
    }
    // Also while one of them is lost, and before anybody leads in its place.
    servers.remove(3).kill();
    for server in &servers {
        (0..KEYS).for_each(|number| wait_for_value(server, &key(number), 1));
    }
}
