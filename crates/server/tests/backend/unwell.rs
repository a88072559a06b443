//! A Redis that hangs, has no memory, or is no Redis; a PostgreSQL that says nothing.

use std::io::{Read, Write};
use std::net::TcpListener;

use serde_json::json;

use crate::stores::postgres::Postgres;
use crate::stores::{self, wait_until};
use crate::support::backed_command;
use crate::{Node, query};

/// What nobody waits for: more reads than there would be patience for one after the other.
const READS: u64 = 30;

#[test]
fn reads_do_not_wait_for_a_redis_that_hangs() {
    let (redis, postgres) = (stores::Server::start(), Postgres::start());
    let node = Node::start(&redis.url(), &["--archive", &postgres.url()]);
    node.add("likes", 7, None);
    let total = "SELECT max(total_value) FROM counter_total_snapshot";
    wait_until("it is in the tables", || query(&postgres, total) == "7");
    redis.signal("STOP");
    let retries = node.fact("external_retries").unwrap();
    for _ in 0..READS {
        let read = node.server.request("GET", "/api/v1/counters/likes", &[], "").json();
        assert_eq!(read["value"], 7, "{read}");
        assert!(read["stalenessMs"].as_u64().unwrap() > 0, "{read}");
    }
    assert_eq!(node.fact("external_retries"), Some(retries), "none of them was asked twice");
    redis.signal("CONT");
    wait_until("Redis is asked again", || {
        let read = node.server.request("GET", "/api/v1/counters/likes", &[], "").json();
        read["stalenessMs"] == 0
    });
    assert_eq!(node.add("likes", 1, None), 8);
}

#[test]
fn a_redis_without_memory_is_read_and_deleted_from() {
    let redis = stores::Server::start();
    let node = Node::start(&redis.url(), &[]);
    node.add("likes", 7, None);
    node.add("views", 2, None);
    let observe = r#"{"items":["anna"]}"#;
    node.server.request("POST", "/api/v1/counters/visitors/observe", &[], observe);
    redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(1).exec(&mut redis.connection()).unwrap();
    let write =
        |key: &str| node.server.request("POST", &format!("/api/v1/counters/{key}/increment"), &[], "");
    assert_ne!(write("likes").status, 200);
    assert_eq!(node.read("likes"), 7);
    assert_eq!(node.server.request("DELETE", "/api/v1/counters/views", &[], "").status, 200);
    assert_eq!(node.server.request("DELETE", "/api/v1/counters/visitors", &[], "").status, 200);
    // In one batch with what is refused.
    let mut resp =
        redis::Client::open(format!("redis://{}", node.server.resp)).unwrap().get_connection().unwrap();
    let mut pipeline = redis::pipe();
    pipeline.ignore_errors().incr("likes", 1).get("likes").del("likes").get("likes");
    let told: Vec<redis::Value> = pipeline.query(&mut resp).unwrap();
    assert!(matches!(told[0], redis::Value::ServerError(_)), "{told:?}");
    assert_eq!(told[1..], [redis::Value::BulkString(b"7".into()), redis::Value::Int(1), redis::Value::Nil]);
    redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(0).exec(&mut redis.connection()).unwrap();
    assert_eq!(node.add("likes", 1, None), 1);
}

#[test]
fn who_throws_counters_away_is_warned_of() {
    let settings = ["--maxmemory", "64mb", "--maxmemory-policy", "volatile-lru"];
    let redis = stores::Server::start_with(stores::free_port(), &settings);
    let node = Node::start(&redis.url(), &[]);
    let log = node.server.log().join("\n");
    assert!(log.contains("volatile-lru") && log.contains("noeviction"), "{log}");
    let (status, ready) = node.readiness();
    assert!(status == 200 && ready.contains("volatile-lru"), "{ready}");
    let said = node.server.client(&["backend"]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("warning   ") && said.contains("noeviction"), "{said}");
    let set = ["SET", "maxmemory-policy", "noeviction"];
    redis::cmd("CONFIG").arg(&set).exec(&mut redis.connection()).unwrap();
    wait_until("the warning is gone", || node.readiness() == (200, "ready\n".to_owned()));
    assert_eq!(node.server.request("GET", "/api/v1/backend", &[], "").json().get("warning"), None);
}

/// Somebody who answers every connection with an error of HTTP.
fn web_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            let mut some = [0; 1024];
            let _ = socket.read(&mut some);
            let _ = socket.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
            // Until the other end has had enough.
            let _ = socket.read_to_end(&mut Vec::new());
        }
    });
    port
}

#[test]
fn what_is_no_redis_and_no_postgresql_is_said_to_be_none() {
    let (redis, folder) = (stores::Server::start(), tempfile::tempdir().unwrap());
    let refused = |backend: &str, arguments: &[&str]| {
        let output = backed_command(folder.path(), backend, arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{said}");
        said
    };
    let said = refused(&format!("redis://127.0.0.1:{}", web_server()), &[]);
    assert!(said.contains("check that it is a Redis") && !said.contains("waiting up to"), "{said}");
    let archive = format!("postgres://quipu:geheim@127.0.0.1:{}/postgres", web_server());
    let said = refused(&redis.url(), &["--archive", &archive]);
    assert!(said.contains("check that it is a PostgreSQL") && !said.contains("geheim"), "{said}");
}

#[test]
fn a_node_starts_while_postgresql_says_nothing() {
    let (redis, postgres) = (stores::Server::start(), Postgres::start());
    let archive = postgres.url();
    let node = Node::start(&redis.url(), &["--archive", &archive]);
    node.add("likes", 7, None);
    node.server.terminate();
    postgres.signal("STOP");
    let node = Node::start(&redis.url(), &["--archive", &archive]);
    assert_eq!(node.add("likes", 1, None), 8);
    let log = node.server.log().join("\n");
    assert!(log.contains("changes wait in the streams"), "{log}");
    postgres.signal("CONT");
    let total = "SELECT max(total_value) FROM counter_total_snapshot";
    wait_until("what waited is in the tables", || query(&postgres, total) == "8");
    let backend = node.server.request("GET", "/api/v1/backend", &[], "").json();
    assert_eq!(backend["ready"], json!(true));
}
