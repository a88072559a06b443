//! Trails against real servers: over HTTP, RESP and from the command line, through kill -9, and on a cluster whose leader dies.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod resp_support;
mod support;

use resp_support::Client;
use serde_json::{Value, json};
use support::cluster::{found, start_settled};
use support::{Response, Server};

fn call(server: &Server, line: &str, headers: &[(&str, &str)], body: &str) -> Response {
    let (method, path) = line.split_once(' ').unwrap();
    server.request(method, &format!("/api/v1/{path}"), headers, body)
}

fn done(server: &Server, line: &str, headers: &[(&str, &str)], body: &str) -> Value {
    let reply = call(server, line, headers, body);
    assert!((200..300).contains(&reply.status), "{line}: {reply:?}");
    reply.json()
}

fn run(server: &Server, line: &str) -> String {
    let output = server.client(&line.split(' ').collect::<Vec<_>>());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{line}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn audited(server: &Server, key: &str) -> Vec<Value> {
    done(server, &format!("GET counters/{key}/audit"), &[], "")["changes"].as_array().unwrap().clone()
}

/// `set 5 = 5 v1 id=... because ... by anna`, the newest first.
fn shown(changes: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let one = |change: &Value| {
        let mut line = format!(
            "{} {} = {} v{}",
            change["action"].as_str().unwrap(),
            change["applied"],
            change["value"],
            change["version"]
        );
        line.extend(text(&change["requestId"]).map(|id| format!(" id={id}")));
        line.extend(text(&change["reason"]).map(|reason| format!(" because {reason}")));
        line.extend(text(&change["by"]["name"]).map(|name| format!(" by {name}")));
        line
    };
    changes.iter().map(one).collect()
}

#[test]
fn every_way_of_changing_a_counter_leaves_a_trail_that_a_kill_keeps() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let refused = call(&server, "GET counters/balance:7/audit", &[], "");
    assert_eq!((refused.status, &refused.json()["reason"]), (400, &json!("not-audited")));
    let policy = done(&server, "PUT policies/balance:*", &[], r#"{"audit":"30d","max":1000}"#);
    assert_eq!(policy["audit"], json!("30d"));
    let anna = ("X-Quipu-Actor", "anna");
    done(&server, "PUT counters/balance:7", &[anna], r#"{"value":500}"#);
    let increment = "POST counters/balance:7/increment";
    for _ in 0..2 {
        done(&server, increment, &[("Idempotency-Key", "order-1")], r#"{"delta":7}"#);
    }
    assert_eq!(call(&server, increment, &[], r#"{"delta":1000}"#).status, 409);
    let adjust = r#"{"delta":-120,"reason":"counted twice"}"#;
    done(&server, "POST counters/balance:7/adjust", &[anna, ("Idempotency-Key", "t-88")], adjust);
    let mut client = Client::connect(server.resp);
    client.ask("CLIENT SETNAME billing");
    assert_eq!(client.ask("Q.ADJUST balance:7 -10 refund ID r-1"), "*4|:377|:-10|:4|:0|");
    assert_eq!(client.ask("Q.ADJUST balance:7 -10 refund ID r-1"), "*4|:377|:-10|:4|:1|");
    // The name holds from where it was given, also within a pipeline and a transaction.
    client.send_line("INCR balance:7");
    client.send_line("CLIENT SETNAME nightly");
    client.send_line("INCR balance:7");
    let replies: Vec<String> = (0..3).map(|_| client.reply()).collect();
    assert_eq!(replies, [":378|", "+OK|", ":379|"]);
    for line in ["MULTI", "DECR balance:7", "INCR other", "EXEC"] {
        client.ask(line);
    }
    run(&server, "adjust balance:7 1 --reason why --actor berta");
    run(&server, "del balance:7");
    let expected = [
        "delete -379 = 0 v8",
        "adjust 1 = 379 v8 because why by berta",
        "add -1 = 378 v7 by nightly",
        "add 1 = 379 v6 by nightly",
        "add 1 = 378 v5 by billing",
        "adjust -10 = 377 v4 id=r-1 because refund by billing",
        "adjust -120 = 387 v3 id=t-88 because counted twice by anna",
        "add 7 = 507 v2 id=order-1",
        "set 500 = 500 v1 by anna",
    ];
    let before = audited(&server, "balance:7");
    assert_eq!(shown(&before), expected);
    let address = |change: &Value| change["by"]["address"].as_str().unwrap().starts_with("127.0.0.1:");
    assert!(before.iter().all(address), "{before:?}");
    server.kill();
    let server = Server::start(data.path());
    assert_eq!(audited(&server, "balance:7"), before);
    // Page by page, and by time.
    let mut pages = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = done(&server, &format!("GET counters/balance:7/audit?limit=4&cursor={cursor}"), &[], "");
        assert!(page["since"].is_string());
        pages.extend(page["changes"].as_array().unwrap().clone());
        match page["cursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(pages, before);
    let first = before.last().unwrap()["at"].as_str().unwrap();
    let span = done(&server, &format!("GET counters/balance:7/audit?to={first}"), &[], "");
    assert_eq!(span["changes"].as_array().unwrap().last(), before.last());
    for query in ["limit=0", "limit=1001", "cursor=x", "from=never", "from=2&to=1", "offset=1"] {
        let refused = call(&server, &format!("GET counters/balance:7/audit?{query}"), &[], "");
        assert_eq!(refused.status, 400, "{query}: {refused:?}");
    }
    let long = "x".repeat(129);
    let refused = call(&server, increment, &[("X-Quipu-Actor", &long)], "");
    assert_eq!(refused.status, 400, "{refused:?}");
    // The same over RESP and from the command line.
    let mut client = Client::connect(server.resp);
    let told = client.ask("Q.AUDIT balance:7 COUNT 2");
    assert!(told.starts_with("*2|*20|$2|at|:"), "{told}");
    assert!(
        told.contains("|$6|action|$6|delete|$7|applied|:-379|$4|held|:0|$5|value|:0|$7|version|:8|"),
        "{told}"
    );
    assert!(told.contains("|$6|reason|$3|why|$4|name|$5|berta|$7|address|"), "{told}");
    assert!(client.ask("Q.AUDIT other").starts_with("-ERR no policy"));
    assert!(client.ask("Q.AUDIT balance:7 COUNT 0").starts_with("-ERR COUNT"));
    assert!(client.ask("Q.ADJUST balance:7 1").starts_with("-ERR wrong number"));
    let lines = run(&server, "audit balance:7 --limit 2");
    let fields: Vec<Vec<&str>> = lines.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!((fields.len(), fields[1][1], fields[1][2], fields[1][3]), (2, "adjust", "+1", "379"));
    assert!(fields[1][5].starts_with("berta (127.0.0.1:"), "{lines}");
    assert_eq!(fields[1][6], "why");
    let json: Value = serde_json::from_str(&run(&server, "audit balance:7 --json")).unwrap();
    assert_eq!(json["changes"], Value::Array(before));
    // All counters go, their trails stay.
    client.ask("FLUSHALL");
    assert_eq!(shown(&audited(&server, "balance:7"))[..2], ["clear null = 0 v0", expected[0]]);
    server.terminate();
    let checked = support::run(&["check", data.path().to_str().unwrap(), "--json"], &[]);
    assert!(checked.status.success(), "{checked:?}");
    let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
    // One row for each change, and one in each partition for the deletion of all.
    assert_eq!(checked["trailRows"], json!(expected.len() + 16), "{checked}");
}

fn fact(server: &Server, name: &str) -> u64 {
    let metrics = server.request("GET", "/metrics", &[], "").body;
    let line = |line: &str| line.strip_prefix(name).and_then(|rest| rest.trim().parse().ok());
    metrics.lines().find_map(line).unwrap_or_else(|| panic!("no {name} in {metrics}"))
}

#[test]
fn what_is_set_aside_is_in_the_trail_and_how_much_there_is_of_it_is_measured() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    done(&server, "PUT policies/stock:*", &[], r#"{"audit":"30d","rollups":[["tenant"]]}"#);
    done(&server, "PUT counters/stock:7", &[], r#"{"value":10}"#);
    let reserve = |amount: i64| {
        let body = json!({"amount": amount, "ttlMs": 600_000, "min": 0}).to_string();
        let held = done(&server, "POST counters/stock:7/reserve", &[], &body);
        held["holdId"].as_str().unwrap().to_owned()
    };
    let (first, second) = (reserve(-4), reserve(-3));
    done(&server, &format!("POST holds/{first}/commit"), &[], r#"{"amount":-1}"#);
    done(&server, &format!("POST holds/{second}/void"), &[], "");
    run(&server, "adjust stock:7 5 --reason found --dim tenant=acme");
    reserve(-2);
    run(&server, "del stock:7");
    let rows: Vec<String> = (audited(&server, "stock:7").iter())
        .map(|row| format!("{} {} held {} = {}", row["action"], row["applied"], row["held"], row["value"]))
        .collect();
    let expected = [
        "\"delete\" -14 held 2 = 0",
        "\"reserve\" 0 held -2 = 14",
        "\"adjust\" 5 held null = 14",
        "\"void\" 0 held 3 = 9",
        "\"commit\" -1 held 4 = 9",
        "\"reserve\" 0 held -3 = 10",
        "\"reserve\" 0 held -4 = 10",
        "\"set\" 10 held null = 10",
    ];
    assert_eq!(rows, expected);
    let lines = run(&server, "audit stock:7 --limit 2");
    assert_eq!(lines.lines().nth(1).unwrap().split('\t').nth(2), Some("0 held -2"), "{lines}");
    assert_eq!(fact(&server, "quipu_audit_rows_recent"), expected.len() as u64);
    assert!(fact(&server, "quipu_audit_bytes_recent") > 0);
    // What was said of a dimension counts there.
    run(&server, "adjust stock:8 5 --reason found --dim tenant=acme");
    assert_eq!(run(&server, "get stock:8 --dim tenant=acme"), "5\n");
    server.terminate();
    let server = Server::start(data.path());
    let rows = ["quipu_audit_rows_recent", "quipu_audit_rows_on_disk"].map(|name| fact(&server, name));
    assert_eq!(rows.iter().sum::<u64>(), 1 + expected.len() as u64);
}

#[test]
fn a_cluster_keeps_the_trail_when_a_leader_dies() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 3);
    let mut servers = start_settled(&data);
    done(&servers[0], "PUT policies/balance:*", &[], r#"{"audit":"30d"}"#);
    // Policies are known everywhere, but a node that has not heard of one yet would not say who asks.
    for server in &servers {
        done(server, "GET policies", &[], "");
    }
    let keys: Vec<String> = (0..16).map(|number| format!("balance:{number}")).collect();
    for key in &keys {
        for (number, server) in servers.iter().enumerate() {
            let actor = format!("actor-{number}");
            let headers = [("X-Quipu-Actor", &*actor), ("Idempotency-Key", &*actor)];
            let adjust = format!(r#"{{"delta":1,"reason":"at node {number}"}}"#);
            for _ in 0..2 {
                done(server, &format!("POST counters/{key}/adjust"), &headers, &adjust);
            }
        }
        let mut client = Client::connect(servers[1].resp);
        client.ask("CLIENT SETNAME nightly");
        assert_eq!(client.ask(&format!("INCR {key}")), ":4|");
    }
    let expected = [
        "add 1 = 4 v4 by nightly",
        "adjust 1 = 3 v3 id=actor-2 because at node 2 by actor-2",
        "adjust 1 = 2 v2 id=actor-1 because at node 1 by actor-1",
        "adjust 1 = 1 v1 id=actor-0 because at node 0 by actor-0",
    ];
    let at_first: Vec<Vec<Value>> = keys.iter().map(|key| audited(&servers[0], key)).collect();
    for (key, known) in keys.iter().zip(&at_first) {
        assert_eq!(shown(known), expected, "{key}");
        for server in &servers[1..] {
            assert_eq!(&audited(server, key), known, "{key}");
        }
    }
    // Each node leads some of the partitions.
    servers.remove(0).kill();
    for (key, known) in keys.iter().zip(&at_first) {
        for server in &servers {
            assert_eq!(&audited(server, key), known, "{key}");
        }
        done(&servers[0], &format!("POST counters/{key}/increment"), &[("Idempotency-Key", "more")], "");
        assert_eq!(shown(&audited(&servers[1], key))[0], "add 1 = 5 v5 id=more", "{key}");
    }
    // Who was away has it too.
    let again = Server::start(&data[0]);
    let mut all: Vec<&Server> = servers.iter().collect();
    all.push(&again);
    support::cluster::wait_until_settled(&all);
    for key in &keys {
        assert_eq!(audited(&again, key).len(), 5, "{key}");
    }
}
