//! Counters of a cluster while they change, watched at nodes that hold them and at nodes that do not.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod support;

use std::collections::BTreeSet;

use support::Server;
use support::cluster::{add, ask, found, start_settled, wait_until_settled};
use support::events::Events;

/// Enough for every partition to have some.
const KEYS: usize = 200;

fn key(number: usize) -> String {
    format!("p:{number}")
}

/// Hears of each of these counters with this value, and of nothing that was not so.
fn hear_all(events: &mut Events, value: i64) {
    let mut missing: BTreeSet<String> = (0..KEYS).map(key).collect();
    while !missing.is_empty() {
        let event = events.next().unwrap_or_else(|| panic!("without {missing:?}"));
        // A node that hears nothing from another for a while begins anew.
        if ["reset", "ready"].contains(&event.name.as_str()) {
            continue;
        }
        assert_eq!(event.name, "change", "{event:?}");
        let heard = event.data["value"].as_i64().unwrap();
        assert!((value - 1..=value).contains(&heard), "{event:?}");
        if heard == value {
            missing.remove(event.data["counterKey"].as_str().unwrap());
        }
    }
}

fn count_all(server: &Server, round: usize) {
    for number in 0..KEYS {
        add(&[server], &key(number), &format!("{round}-{number}"));
    }
}

/// Of four nodes each holds three quarters of the partitions, and asks others about the rest.
#[test]
fn any_node_tells_of_any_counter_wherever_it_was_counted() {
    let folder = tempfile::tempdir().unwrap();
    let servers = start_settled(&found(folder.path(), 4));
    count_all(&servers[0], 1);
    let mut prefixes: Vec<Events> =
        servers.iter().map(|server| Events::open(server.http, "prefix=p:&intervalMs=10")).collect();
    let mut keys: Vec<Events> =
        servers.iter().map(|server| Events::open(server.http, "key=p:0&key=p:1&key=p:2&key=p:3")).collect();
    for events in &mut prefixes {
        assert_eq!(events.texts_until("ready"), ["ready"]);
    }
    for events in &mut keys {
        assert_eq!(events.texts_until("ready"), ["p:0=1", "p:1=1", "p:2=1", "p:3=1", "ready"]);
    }
    count_all(&servers[1], 2);
    for events in &mut prefixes {
        hear_all(events, 2);
    }
    for events in &mut keys {
        let mut heard: BTreeSet<String> = (0..4).map(|_| events.next().unwrap().text()).collect();
        assert!((0..4).all(|number| heard.remove(&format!("p:{number}=2"))), "{heard:?}");
    }
    ask(servers[2].resp, "FLUSHALL").unwrap();
    add(&[&servers[3]], "p:7", "after");
    for events in &mut prefixes {
        let texts = events.texts_until("p:7=1");
        assert!(texts.iter().any(|text| ["clear", "reset"].contains(&text.as_str())), "{texts:?}");
    }
    for events in &mut keys {
        let heard: BTreeSet<String> = (0..4).map(|_| events.next().unwrap().text()).collect();
        assert_eq!(heard, (0..4).map(|number| format!("p:{number} gone")).collect());
    }
}

/// A client whose node is gone goes to another, which does not know what it has heard.
#[test]
fn a_client_of_a_node_that_is_gone_goes_on_at_another() {
    let folder = tempfile::tempdir().unwrap();
    let mut servers = start_settled(&found(folder.path(), 3));
    count_all(&servers[0], 1);
    let query = "prefix=p:&intervalMs=10";
    let mut events = Events::open(servers[2].http, query);
    let mut beside = Events::open(servers[1].http, query);
    let id = events.until("ready")[0].id.clone();
    beside.until("ready");
    servers.remove(2).kill();
    let mut events = Events::resume(servers[0].http, query, id.as_deref());
    let texts = events.texts_until("ready");
    assert_eq!((texts.len(), texts[0].as_str()), (KEYS + 2, "reset"), "{texts:?}");
    // Others lead what the lost one led, once they have noticed.
    for number in 0..KEYS {
        add(&[&servers[0], &servers[1]], &key(number), &format!("2-{number}"));
    }
    hear_all(&mut events, 2);
    hear_all(&mut beside, 2);
}

/// Whoever watches counters by name hears of them also once their partitions have gone to another node, and from there.
#[test]
fn a_watched_counter_is_heard_of_after_its_partition_has_moved() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 4);
    let mut servers = start_settled(&data[..3]);
    count_all(&servers[0], 1);
    let names: Vec<String> = (0..KEYS).map(|number| format!("key={}", key(number))).collect();
    let mut all: Vec<Events> =
        servers.iter().map(|server| Events::open(server.http, &names.join("&"))).collect();
    for events in &mut all {
        events.until("ready");
    }
    servers.push(Server::start(&data[3]));
    wait_until_settled(&servers.iter().collect::<Vec<_>>());
    count_all(&servers[3], 2);
    for events in &mut all {
        hear_all(events, 2);
    }
}
