//! Nodes that keep nothing: all fronts, several nodes, a Redis that goes away.

use std::net::TcpListener;

use crate::Node;
use crate::stores::{self, wait_until};
use crate::support::{Server, backed_command};

#[test]
fn every_front_counts_in_redis_and_nothing_is_kept_here() {
    let redis = stores::Server::start();
    let (one, other) = (Node::start(&redis.url(), &[]), Node::start(&redis.url(), &[]));
    assert_eq!(one.readiness().0, 200);
    assert_eq!(one.add("likes", 5, Some("a")), 5);
    assert_eq!(other.add("likes", 5, Some("a")), 5, "the same request at another node");
    let resp = redis::Client::open(format!("redis://{}", other.server.resp)).unwrap();
    let mut resp = resp.get_connection().unwrap();
    assert_eq!(redis::cmd("INCRBY").arg("likes").arg(2).query::<i64>(&mut resp), Ok(7));
    assert_eq!(
        redis::pipe().incr("likes", 1).incr("views", 1).get("likes").query::<(i64, i64, i64)>(&mut resp),
        Ok((8, 1, 8)),
        "a pipeline sees its own changes"
    );
    let said = one.server.client(&["get", "likes"]);
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "8");
    let info: String = redis::cmd("INFO").query(&mut resp).unwrap();
    assert!(info.contains("durability:backend") && info.contains("external_calls:"), "{info}");
    assert!(one.server.log().iter().any(|line| line.contains(&format!("backend {}", redis.url()))));
    assert_eq!(std::fs::read_dir(one.folder.path()).unwrap().count(), 0, "no data folder");
    let (status, log) = one.server.terminate();
    assert!(status.success(), "{log:?}");
    assert_eq!(Node::start(&redis.url(), &[]).read("likes"), 8, "after a restart");
}

#[test]
fn a_node_waits_for_a_redis_that_is_not_there_yet() {
    let (port, folder) = (stores::free_port(), tempfile::tempdir().unwrap());
    let somebody_else = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let starting = {
        let command = backed_command(folder.path(), &format!("redis://127.0.0.1:{port}"), &[]);
        std::thread::spawn(move || Server::spawn(command))
    };
    drop(somebody_else.accept().expect("the first attempt"));
    drop(somebody_else);
    let _redis = stores::Server::start_with(port, &[]);
    let node = Node { server: starting.join().unwrap(), folder };
    assert_eq!(node.add("likes", 1, None), 1);
    assert!(node.server.log().iter().any(|line| line.contains("waiting up to")), "{:?}", node.server.log());
}

#[test]
fn readiness_is_the_truth() {
    let mut redis = stores::Server::start();
    let node = Node::start(&redis.url(), &[]);
    node.add("likes", 1, None);
    redis.kill();
    wait_until("it says that Redis is away", || {
        let (status, why) = node.readiness();
        status == 503 && why.contains("no server of Redis answers")
    });
    redis.restart();
    wait_until("it says that Redis has lost everything", || {
        let (status, why) = node.readiness();
        status == 503 && why.contains("lost all counters")
    });
    let refused = node.server.request("POST", "/api/v1/counters/likes/increment", &[], "{}");
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.header("retry-after").is_some() && refused.body.contains("lost"), "{refused:?}");
}
