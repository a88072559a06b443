//! Totals over patterns from real servers: over HTTP and RESP, by the command line, and of a cluster whose nodes hold a part of
//! the counters each.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::Server;
use support::cluster::{ask, described, found, found_with, start_settled};
use support::terminal::Terminal;

fn set(server: &Server, key: &str, value: i64) {
    let reply = server.request(
        "PUT",
        &format!("/api/v1/counters/{key}"),
        &[],
        &json!({ "value": value }).to_string(),
    );
    assert_eq!(reply.status, 200, "{reply:?}");
}

fn aggregate(server: &Server, pattern: &str) -> Value {
    let reply = server.request("GET", &format!("/api/v1/counters/{pattern}/aggregate"), &[], "");
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// What every answer must keep to: its parts add up.
fn check_parts(answer: &Value) {
    let parts = answer["parts"].as_array().unwrap();
    let total = |field: &str| parts.iter().map(|part| part[field].as_i64().unwrap()).sum::<i64>();
    assert_eq!(
        (&json!(total("sum")), &json!(total("count"))),
        (&answer["sum"], &answer["count"]),
        "{answer}"
    );
}

fn printed(server: &Server, arguments: &[&str]) -> String {
    let output = server.client(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn one_server_adds_up() {
    let data = tempfile::tempdir().unwrap();
    let mut server = Server::start(data.path());
    for number in 1..=100 {
        set(&server, &format!("views:{number}"), number);
        set(&server, &format!("likes:{number}:day"), -number);
    }
    // Once from memory, once from what a restart finds.
    for _ in 0..2 {
        for (pattern, sum, count, min, max) in [
            ("views:*", 5_050, 100, json!(1), json!(100)),
            ("*%3A1", 1, 1, json!(1), json!(1)),
            ("likes:%3F:day", -45, 9, json!(-9), json!(-1)),
            ("*", 0, 200, json!(-100), json!(100)),
            ("views:7", 7, 1, json!(7), json!(7)),
            ("none*", 0, 0, Value::Null, Value::Null),
        ] {
            let answer = aggregate(&server, pattern);
            let found =
                [&answer["sum"], &answer["count"], &answer["min"], &answer["max"], &answer["partial"]];
            assert_eq!(found, [&json!(sum), &json!(count), &min, &max, &json!(false)], "{pattern}");
            assert!(answer.get("missing").is_none() && answer.get("sumText").is_none(), "{answer}");
            check_parts(&answer);
            let decoded = pattern.replace("%3A", ":").replace("%3F", "?");
            assert_eq!(answer["pattern"], json!(decoded));
            assert_eq!(ask(server.resp, &format!("Q.SUM {decoded}")).unwrap(), [format!(":{sum}")]);
            assert_eq!(printed(&server, &["sum", &decoded]), format!("{sum}\n"));
        }
        assert!(server.terminate().0.success());
        server = Server::start(data.path());
    }
    let too_long = format!("/api/v1/counters/{}/aggregate", "k".repeat(513));
    let refused = server.request("GET", &too_long, &[], "");
    assert_eq!(
        (refused.status, &refused.json()["detail"]),
        (400, &json!("a pattern has 1 to 512 bytes, not 513"))
    );
    let refused = server.request("GET", "/api/v1/counters/a/aggregate?whole=1", &[], "");
    assert_eq!(refused.status, 400, "{refused:?}");
}

#[test]
fn sums_beyond_64_bits_keep_their_digits() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    for number in 0..3 {
        set(&server, &format!("large:{number}"), i64::MAX);
    }
    let sum = (i128::from(i64::MAX) * 3).to_string();
    let reply = server.request("GET", "/api/v1/counters/large:*/aggregate", &[], "");
    assert!(reply.body.contains(&format!("\"sum\":{sum},\"sumText\":\"{sum}\"")), "{}", reply.body);
    assert_eq!(reply.json()["minText"], json!(i64::MAX.to_string()));
    assert_eq!(printed(&server, &["sum", "large:*"]), format!("{sum}\n"));
    assert!(printed(&server, &["sum", "large:*", "--json"]).contains(&format!("\"sum\":{sum},")));
}

#[test]
fn people_see_a_table() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    for (key, value) in [("a:1", 1_500), ("a:2", -20), ("b", 7)] {
        set(&server, key, value);
    }
    let shown = |arguments: &[&str]| {
        let mut command = server.client_command(arguments);
        command.env("NO_COLOR", "1");
        Terminal::spawn(command).finish().1
    };
    assert_eq!(shown(&["sum", "a:*"]), "  SUM  COUNT  MIN    MAX\n1,480      2  -20  1,500\n");
    assert_eq!(shown(&["sum", "none:*"]), "SUM  COUNT  MIN  MAX\n  0      0    -    -\n");
    assert_eq!(shown(&["sum", "b", "--parts"]), "PARTITION  NODE  SUM  COUNT\n        3     -    7      1\n");
    assert!(shown(&["top", "a:", "-n", "1"]).contains("a:1  1,500"));
}

#[test]
fn every_node_adds_up_all_counters() {
    let folder = tempfile::tempdir().unwrap();
    let servers = start_settled(&found(folder.path(), 3));
    for number in 1..=300 {
        set(&servers[number as usize % 3], &format!("views:{number}"), number);
    }
    for server in &servers {
        let answer = aggregate(server, "views:*");
        assert_eq!(
            (&answer["sum"], &answer["count"], &answer["partial"]),
            (&json!(45_150), &json!(300), &json!(false))
        );
        check_parts(&answer);
        let leaders = described(server)["partitions"].clone();
        for part in answer["parts"].as_array().unwrap() {
            assert_eq!(
                part["node"],
                leaders[part["partition"].as_u64().unwrap() as usize]["leader"],
                "{part}"
            );
        }
        assert_eq!(aggregate(server, "*:3%3F")["count"], json!(10));
        // On both ports it is about all counters, not those that the node leads.
        for port in [server.resp, server.resp_cluster.unwrap()] {
            assert_eq!(ask(port, "Q.SUM views:*").unwrap(), [":45150"]);
            let top = ask(port, "Q.TOP views: 1").unwrap();
            assert_eq!(top[0], "*2", "{top:?}");
        }
        assert_eq!(printed(server, &["sum", "views:*"]), "45150\n");
        assert_eq!(printed(server, &["top", "views:", "-n", "2"]), "views:300\t300\nviews:299\t299\n");
    }
}

/// Each partition is at one node alone, so with the node its counters are gone for a while.
#[test]
fn what_a_lost_node_held_is_named_as_missing() {
    let folder = tempfile::tempdir().unwrap();
    let data = found_with(folder.path(), 3, &["--replicas", "1"]);
    let mut servers: Vec<Server> = data.iter().map(|data| Server::start(data)).collect();
    let led_by = |server: &Server, node: u64| {
        let partitions = described(server)["partitions"].as_array().unwrap().clone();
        let led = partitions.into_iter().filter(|partition| partition["leader"] == node);
        led.map(|partition| partition["partition"].as_u64().unwrap()).collect::<Vec<u64>>()
    };
    let until = Instant::now() + Duration::from_secs(60);
    while !(1..=3).all(|node| (5..=6).contains(&led_by(&servers[0], node).len())) {
        assert!(Instant::now() < until, "{:#}", described(&servers[0]));
        std::thread::sleep(Duration::from_millis(100));
    }
    for number in 1..=300 {
        set(&servers[0], &format!("views:{number}"), number);
    }
    let whole = aggregate(&servers[0], "views:*");
    assert_eq!((&whole["sum"], &whole["partial"]), (&json!(45_150), &json!(false)));
    let lost = led_by(&servers[0], 3);
    servers.pop().unwrap().kill();

    let answer = aggregate(&servers[0], "views:*");
    assert_eq!(answer["partial"], json!(true), "{answer}");
    check_parts(&answer);
    let partitions = |field: &str| -> Vec<u64> {
        let all = answer[field].as_array().unwrap().iter();
        all.map(|part| part["partition"].as_u64().unwrap()).collect()
    };
    assert_eq!(partitions("missing"), lost, "{answer}");
    let of_others = whole["parts"].as_array().unwrap().iter().filter(|part| part["node"] != 3);
    assert_eq!(answer["parts"], of_others.cloned().collect::<Value>());
    // Who wants all or nothing is told so, in every language. Each waits a while for somebody to lead, so they do it together.
    let servers = &servers;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let path = "/api/v1/counters/views:*/aggregate?partial=false";
            let refused = servers[1].request("GET", path, &[], "");
            assert_eq!(
                (refused.status, &refused.json()["reason"]),
                (503, &json!("no-leader")),
                "{refused:?}"
            );
        });
        scope.spawn(|| {
            let refused = ask(servers[0].resp, "Q.SUM views:*").unwrap();
            assert!(refused[0].starts_with('-') && refused[0].contains("nobody leads it"), "{refused:?}");
        });
        scope.spawn(|| assert!(!servers[0].client(&["sum", "views:*"]).status.success()));
        scope.spawn(|| {
            let output = servers[1].client(&["sum", "views:*", "--partial"]);
            assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{}\n", answer["sum"]));
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(said.contains("is not in it: nobody leads it"), "{said}");
        });
    });
    // What is certainly elsewhere is not missed.
    let port = servers[0].resp_cluster.unwrap();
    let partition = |number: &i64| -> u64 {
        let slot = ask(port, &format!("CLUSTER KEYSLOT views:{number}")).unwrap()[0][1..].parse::<u64>();
        slot.unwrap() / 1024
    };
    let number = (1..=300).find(|number| !lost.contains(&partition(number))).unwrap();
    for (pattern, count) in [(format!("views:{number}"), 1), (format!("%7Bviews:{number}%7D*"), 0)] {
        let answer = aggregate(&servers[0], &pattern);
        assert_eq!((&answer["partial"], &answer["count"]), (&json!(false), &json!(count)), "{answer}");
    }
}
