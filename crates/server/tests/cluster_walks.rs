//! Walks over all counters of a cluster whose nodes hold a part of them each, from real servers.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod resp_support;
mod support;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use quipu_wire::resp::{ReplyDecoder, Value};
use resp_support::Client;
use support::Server;
use support::cluster::{found, start_settled};

const KEYS: usize = 3_000;

fn keys() -> BTreeSet<String> {
    (0..KEYS).map(|number| format!("counter:{number:04}")).collect()
}

fn ask(address: SocketAddr, command: &str) -> Value {
    let mut client = Client::connect(address);
    client.send_line(command);
    let reply = client.reply_bytes().unwrap();
    ReplyDecoder::new().decode(&reply).unwrap().unwrap().0
}

fn texts(value: &Value) -> Vec<String> {
    let text = |value: &Value| String::from_utf8(value.as_bytes().unwrap().to_vec()).unwrap();
    value.as_elements().unwrap().iter().map(text).collect()
}

/// One page of SCAN: the cursor behind it and its keys.
fn page(address: SocketAddr, cursor: &str) -> (String, Vec<String>) {
    let reply = ask(address, &format!("SCAN {cursor} COUNT 50"));
    let fields = reply.as_elements().unwrap_or_else(|| panic!("{reply:?}"));
    (String::from_utf8(fields[0].as_bytes().unwrap().to_vec()).unwrap(), texts(&fields[1]))
}

/// A walk, each page at the next of these servers.
fn walk(addresses: &[SocketAddr]) -> Vec<String> {
    let mut found = Vec::new();
    let mut cursor = "0".to_owned();
    for address in addresses.iter().cycle() {
        let (next, keys) = page(*address, &cursor);
        found.extend(keys);
        cursor = next;
        if cursor == "0" {
            break;
        }
    }
    found
}

/// Values by key, of all pages of a list, each from the next of these servers.
fn list(servers: &[&Server], query: &str) -> Vec<(String, i64)> {
    let mut found = Vec::new();
    let mut cursor = String::new();
    for server in servers.iter().cycle() {
        let path = format!("/api/v1/counters?limit=250&cursor={cursor}{query}");
        let reply = server.request("GET", &path, &[], "");
        assert_eq!(reply.status, 200, "{reply:?}");
        let page = reply.json();
        let counter = |counter: &serde_json::Value| {
            (counter["counterKey"].as_str().unwrap().to_owned(), counter["value"].as_i64().unwrap())
        };
        found.extend(page["counters"].as_array().unwrap().iter().map(counter));
        match page["cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    found
}

fn value_of(key: &str) -> i64 {
    key["counter:".len()..].parse::<i64>().unwrap() * 7 % 100
}

#[test]
fn every_node_shows_all_counters_also_those_it_does_not_hold() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 5);
    let mut servers = start_settled(&data);
    let wanted = keys();
    let mut writer = Client::connect(servers[0].resp);
    for key in &wanted {
        assert_eq!(writer.ask(&format!("SET {key} {}", value_of(key))), "+OK|");
    }
    let all: Vec<&Server> = servers.iter().collect();
    let addresses: Vec<SocketAddr> = servers.iter().map(|server| server.resp).collect();
    let once = |found: Vec<String>| {
        assert_eq!(found.len(), wanted.len(), "each of them once");
        assert!(found.into_iter().collect::<BTreeSet<_>>() == wanted);
    };
    for server in &all {
        // What was acknowledged a moment ago is shown, wherever it is asked.
        assert_eq!(ask(server.resp, "DBSIZE").as_integer(), Some(KEYS as i64));
        once(walk(&[server.resp]));
        once(texts(&ask(server.resp, "KEYS *")));
        let drawn = ask(server.resp, "RANDOMKEY");
        assert!(wanted.contains(std::str::from_utf8(drawn.as_bytes().unwrap()).unwrap()), "{drawn:?}");
    }
    // A walk goes on at any node.
    once(walk(&addresses));
    let mut by_key: Vec<(String, i64)> = wanted.iter().map(|key| (key.clone(), value_of(key))).collect();
    assert_eq!(list(&all, "&order=key"), by_key);
    let mut stored = list(&all, "");
    stored.sort();
    assert_eq!(stored, by_key);
    by_key.sort_by_key(|(key, value)| (-value, key.clone()));
    assert_eq!(list(&all, "&order=value"), by_key);
    assert_eq!(list(&all, "&order=key&prefix=counter:00").len(), 100);
    let exported = all[4].client(&["export", "--format", "csv"]);
    let exported = String::from_utf8(exported.stdout).unwrap();
    assert!(wanted.iter().all(|key| exported.contains(key)), "{exported}");

    // On the cluster port each node speaks of what it leads.
    let ports: Vec<SocketAddr> = servers.iter().map(|server| server.resp_cluster.unwrap()).collect();
    let sizes: Vec<i64> = ports.iter().map(|port| ask(*port, "DBSIZE").as_integer().unwrap()).collect();
    assert!(
        sizes.iter().sum::<i64>() == KEYS as i64 && sizes.iter().all(|size| *size < KEYS as i64),
        "{sizes:?}"
    );
    once(ports.iter().flat_map(|port| walk(&[*port])).collect());
    let mut transaction = Client::connect(ports[0]);
    assert_eq!(transaction.ask("MULTI"), "+OK|");
    assert_eq!(transaction.ask("DBSIZE"), "+QUEUED|");
    assert_eq!(transaction.ask("EXEC"), format!("*1|:{}|", sizes[0]));

    // In the middle of walks a node is lost, whose partitions others lead then. The walk that it was asked for goes on elsewhere.
    let (cursor, mut scanned) = page(addresses[1], "0");
    let listed = list_half(&servers[1]);
    servers.remove(1).kill();
    let mut cursor = cursor;
    while cursor != "0" {
        let (next, keys) = page(servers[1].resp, &cursor);
        scanned.extend(keys);
        cursor = next;
    }
    assert!(scanned.into_iter().collect::<BTreeSet<_>>() == wanted);
    let (mut rest, cursor) = listed;
    let path = format!("/api/v1/counters?limit=10000&cursor={cursor}");
    let reply = servers[2].request("GET", &path, &[], "").json();
    let more = reply["counters"].as_array().unwrap().iter();
    rest.extend(more.map(|counter| counter["counterKey"].as_str().unwrap().to_owned()));
    once(rest);
}

/// Half of a list, and its cursor.
fn list_half(server: &Server) -> (Vec<String>, String) {
    let page = server.request("GET", &format!("/api/v1/counters?limit={}", KEYS / 2), &[], "").json();
    let counters = page["counters"].as_array().unwrap().iter();
    let keys = counters.map(|counter| counter["counterKey"].as_str().unwrap().to_owned()).collect();
    (keys, page["cursor"].as_str().unwrap().to_owned())
}
