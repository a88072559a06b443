//! Redis loses its data: it is rebuilt from the archive by itself, exact up to the watermark, and what is missing is told.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use serde_json::{Value, json};

use crate::once::{self, Acknowledged, Over, add_once};
use crate::stores::postgres::Postgres;
use crate::stores::{self, wait_until};
use crate::{Node, query};

const KEYS: usize = 20;

fn backend(node: &Node) -> Value {
    node.server.request("GET", "/api/v1/backend", &[], "").json()
}

fn wait_for_recovery(nodes: &[Node], count: u64) {
    wait_until("every node knows that Redis was rebuilt", || {
        nodes.iter().all(|node| node.readiness().0 == 200 && node.fact("archive_recoveries") == Some(count))
    });
}

fn time_ms(value: &Value) -> u64 {
    quipu_wire::json::timestamp::time_ms(value.as_str().unwrap()).unwrap()
}

#[test]
fn flushall_under_load_is_rebuilt_and_the_gap_is_told() {
    let (redis, postgres) = (stores::Server::start(), Postgres::start());
    let archive = postgres.url();
    let nodes = [0, 1].map(|_| Node::start(&redis.url(), &["--archive", &archive]));
    nodes[0].server.request("PUT", "/api/v1/policies/bounded:*", &[], r#"{"max":3}"#);
    let (is_over, acknowledged) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let over = Over(&is_over);
        for client in 0..4 {
            let (node, is_over, acknowledged) = (&nodes[client % 2], &is_over, &acknowledged);
            let keys: Vec<String> =
                (0..KEYS).map(|number| format!("key:{}", (number + client) % KEYS)).collect();
            scope.spawn(move || {
                once::load(node, &client.to_string(), &keys, is_over, acknowledged, |_, _| {})
            });
        }
        let so_many = |count: usize| acknowledged.lock().unwrap().len() >= count;
        wait_until("much is counted", || so_many(500));
        wait_until("some is flushed", || {
            query(&postgres, "SELECT sum(events) > 100 FROM counter_watermark") == "t"
        });
        wait_until("the other node knows the policy", || {
            nodes[1].server.request("GET", "/api/v1/policies", &[], "").body.contains("bounded")
        });
        redis::cmd("FLUSHALL").exec(&mut redis.connection()).unwrap();
        let before = acknowledged.lock().unwrap().len();
        wait_for_recovery(&nodes, 1);
        wait_until("counting goes on", || so_many(before + 200));
        drop(over);
    });
    let told = backend(&nodes[0])["archive"]["recoveries"][0].clone();
    let gap_from_ms = time_ms(&told["gap"]["from"]);
    assert_eq!(told["groupsLost"], 64, "{told}");
    // What came back is exactly what is remembered under ids; asking again for the rest counts it once.
    let acknowledged: Vec<Acknowledged> = acknowledged.into_inner().unwrap();
    let values: BTreeMap<String, i64> =
        (0..KEYS).map(|key| format!("key:{key}")).map(|key| (key.clone(), nodes[1].read(&key))).collect();
    let (mut remembered, mut gone): (BTreeMap<String, i64>, usize) = Default::default();
    for Acknowledged { key, id, at_ms } in &acknowledged {
        if add_once(&nodes[0], key, id).unwrap() {
            *remembered.entry(key.clone()).or_default() += 1;
        } else {
            gone += 1;
            assert!(*at_ms >= gap_from_ms, "{id} was acknowledged before the gap and is gone");
        }
    }
    // A client may have been stopped between the change and its acknowledgement.
    let spare: i64 = values.iter().map(|(key, value)| value - remembered.get(key).unwrap_or(&0)).sum();
    assert!((0..=4).contains(&spare), "{values:?} {remembered:?}");
    once::assert_counted_once(&nodes[0], &acknowledged, 4);
    println!("{} acknowledged, {gone} of them in the gap: {told}", acknowledged.len());
    let bounded =
        (0..5).map(|_| nodes[1].server.request("POST", "/api/v1/counters/bounded:a/increment", &[], "{}"));
    assert_eq!(
        bounded.map(|reply| reply.status).collect::<Vec<_>>(),
        [200, 200, 200, 409, 409],
        "policies are back"
    );
    let said = nodes[1].server.client(&["backend"]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("64 groups were lost") && said.contains("is gone"), "{said}");
    let log = nodes.iter().flat_map(|node| node.server.log()).collect::<Vec<_>>().join("\n");
    assert!(log.contains("Redis was rebuilt from the archive") && log.contains("gap_from_ms"), "{log}");
}

/// Holds the lock under which Redis is rebuilt.
struct Lock(Child);

impl Lock {
    fn take(postgres: &Postgres) -> Lock {
        let mut child = Command::new("psql")
            .args(["-AtX", &postgres.url()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lock = "SELECT pg_advisory_lock(487301148790); SELECT 'locked';";
        writeln!(child.stdin.as_mut().unwrap(), "{lock}").unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(said.any(|line| line.unwrap() == "locked"));
        Lock(child)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
fn meanwhile_reads_say_how_stale_they_are_and_writes_are_told_to_come_again() {
    let (mut redis, postgres) = (stores::Server::start(), Postgres::start());
    let archive = postgres.url();
    let node = Node::start(&redis.url(), &["--archive", &archive]);
    node.add("likes", 7, Some("a"));
    wait_until("it is flushed", || {
        query(&postgres, "SELECT max(total_value) FROM counter_total_snapshot") == "7"
    });
    let lock = Lock::take(&postgres);
    // Too late to be flushed by then, most of the time.
    node.server.request("PUT", "/api/v1/policies/bounded:*", &[], r#"{"max":3}"#);
    redis.restart();
    let read = |query: &str| node.server.request("GET", &format!("/api/v1/counters/likes{query}"), &[], "");
    wait_until("the loss is noticed", || {
        read("").json()["stalenessMs"].as_u64().is_some_and(|stale| stale > 0)
    });
    assert_eq!(read("").json()["value"], 7);
    assert_eq!(read("?consistency=strong").status, 503);
    assert_eq!(read("?consistency=eventual&maxStalenessMs=0").status, 503);
    let many =
        node.server.request("POST", "/api/v1/counters/batch-get", &[], r#"{"keys":["likes","none"]}"#).json();
    assert_eq!((&many["results"][0]["value"], &many["results"][1]["exists"]), (&json!(7), &json!(false)));
    let write =
        node.server.request("POST", "/api/v1/counters/likes/increment", &[("Idempotency-Key", "b")], "{}");
    assert_eq!(write.status, 503, "{write:?}");
    assert!(write.header("retry-after").is_some() && write.body.contains("lost"), "{write:?}");
    let resp = redis::Client::open(format!("redis://{}", node.server.resp)).unwrap();
    let mut resp = resp.get_connection().unwrap();
    let get = redis::cmd("GET").arg("likes").to_owned();
    assert!(get.query::<i64>(&mut resp).is_err(), "over RESP nobody could say how old it is");
    redis::cmd("READONLY").exec(&mut resp).unwrap();
    assert_eq!(get.query::<i64>(&mut resp), Ok(7), "unless that was allowed");
    redis::cmd("READWRITE").exec(&mut resp).unwrap();
    assert!(get.query::<i64>(&mut resp).is_err());
    assert_eq!(node.readiness().0, 503);
    let cells: Vec<String> = redis::cmd("KEYS").arg("*:c:*").query(&mut redis.connection()).unwrap();
    assert!(cells.is_empty(), "a read never fills Redis: {cells:?}");
    drop(lock);
    let nodes = [node];
    wait_for_recovery(&nodes, 1);
    assert_eq!(nodes[0].add("likes", 7, Some("a")), 7, "the id is remembered");
    assert_eq!(nodes[0].add("likes", 1, Some("b")), 8);
    let beyond =
        nodes[0].server.request("POST", "/api/v1/counters/bounded:a/increment", &[], r#"{"delta":4}"#);
    assert_eq!(beyond.status, 409, "what a node knows of policies is not lost with Redis");
    let read = nodes[0].server.request("GET", "/api/v1/counters/likes", &[], "").json();
    assert_eq!((&read["value"], &read["stalenessMs"]), (&json!(8), &json!(0)));
    wait_until("flushing goes on", || {
        query(&postgres, "SELECT max(total_value) FROM counter_total_snapshot") == "8"
    });
}

#[test]
fn a_node_that_finds_redis_empty_and_the_archive_not_rebuilds_it() {
    let (mut redis, postgres) = (stores::Server::start(), Postgres::start());
    let archive = postgres.url();
    let node = Node::start(&redis.url(), &["--archive", &archive]);
    let tag = node.server.request("POST", "/api/v1/counters/likes/increment", &[], r#"{"delta":7}"#);
    let tag = tag.header("etag").unwrap().to_owned();
    let observe = |node: &Node, items: &str| {
        let body = format!(r#"{{"items":{items}}}"#);
        node.server.request("POST", "/api/v1/counters/visitors/observe", &[], &body).json()
    };
    observe(&node, r#"["anna","bert"]"#);
    node.server.request("PUT", "/api/v1/policies/likes", &[], r#"{"max":9}"#);
    let kept = "SELECT count(*) FROM counter_policies WHERE version > 0";
    wait_until("it is flushed", || query(&postgres, kept) == "1" && node.fact("archive_lag_ms") == Some(0));
    wait_until("it is in the tables", || query(&postgres, "SELECT count(*) FROM counter_meta") == "2");
    node.server.terminate();
    redis.restart();
    let nodes = [Node::start(&redis.url(), &["--archive", &archive])];
    wait_for_recovery(&nodes, 1);
    assert_eq!(nodes[0].read("likes"), 7);
    let seen = observe(&nodes[0], r#"["anna","carl"]"#);
    assert_eq!((&seen["changed"], &seen["estimate"]), (&json!(true), &json!(3)), "who was seen is known");
    let refused = nodes[0].server.request("POST", "/api/v1/counters/likes/increment", &[], r#"{"delta":3}"#);
    assert_eq!(refused.status, 409, "the policy is back");
    let again = nodes[0].server.request("GET", "/api/v1/counters/likes", &[], "");
    assert_eq!(again.header("etag"), Some(&*tag), "it is the same counter");
    nodes[0].server.request("DELETE", "/api/v1/counters/likes", &[], "");
    nodes[0].add("likes", 7, None);
    let born = nodes[0].server.request("GET", "/api/v1/counters/likes", &[], "");
    assert_ne!(born.header("etag"), Some(&*tag), "and this is another");
}

#[test]
fn a_group_that_lost_its_marker_alone_loses_nothing() {
    let (redis, postgres) = (stores::Server::start(), Postgres::start());
    let archive = postgres.url();
    let nodes = [Node::start(&redis.url(), &["--archive", &archive])];
    nodes[0].add("likes", 7, None);
    wait_until("it is in the tables", || query(&postgres, "SELECT count(*) FROM counter_meta") == "1");
    let lock = Lock::take(&postgres);
    nodes[0].add("likes", 2, None);
    let tag = quipu_external::tag(quipu_external::group(b"likes"));
    redis::cmd("DEL").arg(format!("{{{tag}}}:m")).exec(&mut redis.connection()).unwrap();
    nodes[0].add("other-key-of-another-group", 1, None);
    drop(lock);
    wait_for_recovery(&nodes, 1);
    let told = backend(&nodes[0])["archive"]["recoveries"][0].clone();
    assert_eq!((&told["groupsLost"], &told["gap"]), (&json!(1), &Value::Null), "{told}");
    assert_eq!(nodes[0].add("likes", 1, None), 10);
}
