//! What is about many counters, or about all of them, over all groups.

use redis::Connection;

use crate::stores::postgres::Postgres;
use crate::stores::{self, Cluster, wait_until};
use crate::{Node, query};

fn resp(node: &Node) -> Connection {
    redis::Client::open(format!("redis://{}", node.server.resp)).unwrap().get_connection().unwrap()
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("key:{number}")).collect()
}

fn count_all(resp: &mut Connection, keys: &[String]) {
    let mut pipeline = redis::pipe();
    keys.iter().for_each(|key| _ = pipeline.incr(key, 1));
    pipeline.exec(resp).unwrap();
}

fn counters_are_deleted(backend: &str) {
    let node = Node::start(backend, &[]);
    let mut resp = resp(&node);
    let keys = keys(2_000);
    count_all(&mut resp, &keys);
    assert_eq!(redis::cmd("DBSIZE").query(&mut resp), Ok(2_000));
    assert_eq!(redis::cmd("DEL").arg(&keys[..1_500]).arg("nobody").query(&mut resp), Ok(1_500));
    let left: Vec<Option<i64>> = redis::cmd("MGET").arg(&keys[1_499..1_501]).query(&mut resp).unwrap();
    assert_eq!(left, [None, Some(1)]);
    // What a policy forbids is found out before anything is deleted.
    node.server.request("PUT", "/api/v1/policies/key:1777", &[], r#"{"disabled":true}"#);
    let refused = redis::cmd("DEL").arg(&keys).query::<i64>(&mut resp).unwrap_err();
    assert_eq!(refused.code(), Some("DISABLED"), "{refused}");
    assert_eq!(redis::cmd("DBSIZE").query(&mut resp), Ok(500));
    let refused = redis::cmd("FLUSHALL").query::<String>(&mut resp).unwrap_err();
    assert!(refused.to_string().contains("nothing was changed"), "{refused}");
    node.server.request("DELETE", "/api/v1/policies/key:1777", &[], "");
    assert_eq!(node.add("once", 5, Some("id")), 5);
    let (before, _, after, first): (i64, String, i64, i64) =
        redis::pipe().cmd("DBSIZE").cmd("FLUSHALL").cmd("DBSIZE").incr("key:1", 1).query(&mut resp).unwrap();
    assert_eq!((before, after, first), (501, 0, 1), "one after the other");
    assert_eq!(node.add("once", 5, Some("id")), 5, "request ids stay");
    assert_eq!(redis::cmd("GET").arg("once").query::<Option<i64>>(&mut resp), Ok(None));
}

#[test]
fn counters_are_deleted_in_a_single_redis() {
    counters_are_deleted(&stores::Server::start().url());
}

#[test]
fn counters_are_deleted_in_a_cluster() {
    counters_are_deleted(&Cluster::start().url());
}

#[test]
fn the_archive_hears_that_all_counters_are_deleted() {
    let (redis, postgres) = (stores::Server::start(), Postgres::start());
    let node = Node::start(&redis.url(), &["--archive", &postgres.url()]);
    let mut resp = resp(&node);
    count_all(&mut resp, &keys(100));
    let there = "SELECT count(*) FROM counter_total_snapshot WHERE total_value = 1";
    wait_until("they are in the tables", || query(&postgres, there) == "100");
    assert_eq!(redis::cmd("FLUSHALL").query(&mut resp), Ok("OK".to_owned()));
    wait_until("they are gone from the tables", || query(&postgres, there) == "0");
    assert_eq!(node.readiness().0, 200, "that is no loss");
}
