//! The keys asked for most, as users hear of them: over HTTP and RESP, on the command line, and from any node of a cluster.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod resp_support;
mod support;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use quipu_counting::slot::{partition, slot};
use quipu_wire::resp::encode_command;
use resp_support::{Client, PATIENCE};
use serde_json::{Value, json};
use support::Server;
use support::cluster::{described, found, start_settled};

/// Key, how often it is changed, how often it is read.
const OFFERED: [(&[u8], usize, usize); 4] =
    [(b"first", 300, 0), (b"second", 50, 150), (b"\xff", 0, 100), (b"last", 1, 0)];

fn all_offered() -> usize {
    OFFERED.iter().map(|(_, changes, reads)| changes + reads).sum()
}

/// Sends all of it in one pipeline, and waits for the replies.
fn offer(address: SocketAddr) {
    let mut pipeline = Vec::new();
    for (key, changes, reads) in OFFERED {
        (0..changes).for_each(|_| encode_command(&mut pipeline, &[b"INCR", key]));
        (0..reads).for_each(|_| encode_command(&mut pipeline, &[b"GET", key]));
    }
    let mut client = Client::connect(address);
    client.send(&pipeline);
    (0..all_offered()).for_each(|_| drop(client.reply()));
}

/// What servers tell right after it was offered at one of them, so that nothing of it is too old to be told.
fn told(servers: &[&Server], at: SocketAddr) -> Vec<Value> {
    let until = Instant::now() + PATIENCE;
    loop {
        while servers.iter().any(|server| hot(server, "")["ratePerSec"] != 0.0) {
            std::thread::sleep(Duration::from_millis(100));
        }
        offer(at);
        let told: Vec<Value> = servers.iter().map(|server| hot(server, "")).collect();
        if told.iter().all(|body| body["windowMs"].as_u64().unwrap() < 10_000) {
            return told;
        }
        assert!(Instant::now() < until, "{told:?}");
    }
}

fn hot(server: &Server, query: &str) -> Value {
    let reply = server.request("GET", &format!("/api/v1/hot{query}"), &[], "");
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// How many requests a rate is made of. Times of a test are what they are; numbers of requests are not.
fn requests(body: &Value, rate: &Value) -> f64 {
    let window_s = body["windowMs"].as_f64().unwrap().max(1_000.0) / 1_000.0;
    (rate.as_f64().unwrap() * window_s).round()
}

fn names(body: &Value) -> Vec<String> {
    let name = |key: &Value| key["key"].as_str().or(key["keyBase64"].as_str()).unwrap().to_owned();
    body["keys"].as_array().unwrap().iter().map(name).collect()
}

#[test]
fn over_http_and_resp_and_on_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let nothing = hot(&server, "");
    assert_eq!(
        nothing,
        json!({"keys": [], "skew": 1.0, "ratePerSec": 0.0, "windowMs": 0, "partitions": [], "partial": false})
    );
    assert_eq!(server.client(&["hot"]).stdout, b"");

    let body = told(&[&server], server.resp).remove(0);
    assert_eq!(names(&body), ["first", "second", "/w==", "last"]);
    assert_eq!(body["keys"][2]["keyBase64"], "/w==");
    let all = all_offered() as f64;
    assert_eq!(requests(&body, &body["ratePerSec"]), all);
    for (key, (_, changes, reads)) in body["keys"].as_array().unwrap().iter().zip(OFFERED) {
        let expected = (changes + reads) as f64;
        assert_eq!(requests(&body, &key["ratePerSec"]), expected, "{body}");
        assert!((key["share"].as_f64().unwrap() - expected / all).abs() < 1e-5, "{body}");
    }
    let partitions = body["partitions"].as_array().unwrap();
    let busiest =
        partitions.iter().map(|partition| partition["ratePerSec"].as_f64().unwrap()).fold(0.0, f64::max);
    let skew = busiest / body["ratePerSec"].as_f64().unwrap() * 16.0;
    assert!((body["skew"].as_f64().unwrap() - skew).abs() < 0.01, "{body}");
    assert_eq!(names(&hot(&server, "?n=2")), ["first", "second"]);

    let mut client = Client::connect(server.resp);
    let reply = client.ask("Q.HOT 2");
    assert!(reply.starts_with("*10|$4|keys|*2|*3|$5|first|$"), "{reply}");
    assert!(reply.contains("|*3|$6|second|$") && reply.ends_with("|$7|partial|:0|"), "{reply}");
    assert!(client.ask("Q.HOT").contains("$4|last|"));
    assert!(client.ask("HELLO 3").contains("proto"));
    let reply = client.ask("Q.HOT 1");
    assert!(reply.starts_with("%5|$4|keys|*1|*3|$5|first|,"), "{reply}");
    assert!(reply.contains("|$4|skew|,") && reply.ends_with("|$7|partial|#f|"), "{reply}");
    assert_eq!((client.ask("MULTI"), client.ask("Q.HOT 1")), ("+OK|".into(), "+QUEUED|".into()));
    assert!(client.ask("EXEC").starts_with("*1|%5|$4|keys|*1|"));

    let output = server.client(&["hot", "-n", "3"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let columns: Vec<Vec<&str>> = text.lines().map(|line| line.split('\t').collect()).collect();
    let keys: Vec<&str> = columns.iter().map(|line| line[0]).collect();
    assert_eq!(keys, ["first", "second", "\\xff"], "{text}");
    assert!(columns.iter().all(|line| line.len() == 3 && line[1].parse::<f64>().is_ok()), "{text}");
    let output = server.client(&["hot", "--json"]);
    assert_eq!(names(&serde_json::from_slice(&output.stdout).unwrap()).len(), 4);
}

#[test]
fn what_cannot_be_asked_for_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    for query in ["?n=0", "?n=101", "?n=x", "?limit=5"] {
        let reply = server.request("GET", &format!("/api/v1/hot{query}"), &[], "");
        assert_eq!((reply.status, &reply.json()["reason"]), (400, &json!("malformed")), "{query}");
    }
    assert!(server.request("GET", "/api/v1/hot?n=0", &[], "").body.contains("a number from 1 to 100"));
    let mut client = Client::connect(server.resp);
    for (line, expected) in [
        ("Q.HOT 0", "-ERR the number of keys must be from 1 to 100|"),
        ("Q.HOT 101", "-ERR the number of keys must be from 1 to 100|"),
        ("Q.HOT -1", "-ERR the number of keys must be from 1 to 100|"),
        ("Q.HOT x", "-ERR value is not an integer or out of range|"),
        ("Q.HOT 1 2", "-ERR syntax error|"),
        ("Q.HOT 100", "*10|$4|keys|*0|$4|skew|$1|1|$10|ratePerSec|$1|0|$8|windowMs|:0|$7|partial|:0|"),
    ] {
        assert_eq!(client.ask(line), expected, "{line}");
    }
    assert_eq!(server.client(&["hot", "-n", "101"]).status.code(), Some(2));
}

#[test]
fn metrics_say_how_hot_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let number = |name: &str| -> f64 {
        let metrics = server.request("GET", "/metrics", &[], "").body;
        let line =
            metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{name} in {metrics}")).parse().unwrap()
    };
    assert_eq!((number("quipu_hot_counters"), number("quipu_hot_top_share")), (0.0, 0.0));
    assert_eq!(number("quipu_partition_skew"), 1.0);
    let until = Instant::now() + PATIENCE;
    let mut client = Client::connect(server.resp);
    let mut pipeline = Vec::new();
    (0..2_000).for_each(|_| encode_command(&mut pipeline, &[b"INCR", b"hot"]));
    while number("quipu_hot_counters") == 0.0 {
        client.send(&pipeline);
        (0..2_000).for_each(|_| drop(client.reply()));
        assert!(Instant::now() < until, "a counter with many thousand requests a second is not hot");
    }
    assert_eq!(number("quipu_hot_counters"), 1.0);
    assert_eq!((number("quipu_hot_top_share"), number("quipu_partition_skew")), (1.0, 16.0));
}

#[test]
fn every_node_of_a_cluster_knows_what_others_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 3);
    let mut servers = start_settled(&data);
    let cluster = described(&servers[0]);
    let leader_of = |key: &[u8]| {
        let partition = partition(slot(key), 16);
        cluster["partitions"][usize::from(partition)]["leader"].as_u64().unwrap() as usize
    };
    // At a node that does not lead the first key.
    let at = (1..=3).find(|node| *node != leader_of(b"first")).unwrap();
    let is_led_elsewhere = OFFERED.iter().any(|(key, ..)| leader_of(key) != at);
    assert!(is_led_elsewhere);
    let all: Vec<&Server> = servers.iter().collect();
    for body in told(&all, servers[at - 1].resp) {
        assert_eq!(names(&body), ["first", "second", "/w==", "last"], "{body}");
        assert_eq!(body["partial"], false);
        for (key, (_, changes, reads)) in body["keys"].as_array().unwrap().iter().zip(OFFERED) {
            // Three replicas carry a change out; it is one request.
            assert_eq!(requests(&body, &key["ratePerSec"]), (changes + reads) as f64, "{body}");
        }
        assert_eq!(requests(&body, &body["ratePerSec"]), all_offered() as f64);
    }
    for server in &all {
        assert!(Client::connect(server.resp).ask("Q.HOT 1").contains("$5|first|"));
    }
    // What a node has counted is missing when it is gone, and it is said so.
    servers.remove(2).kill();
    assert_eq!(hot(&servers[0], "")["partial"], true);
}
