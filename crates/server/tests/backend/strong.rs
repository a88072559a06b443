//! Strong counters, as people ask for them: by a policy, over every front.

use crate::stores::postgres::Postgres;
use crate::support::wait_until;
use crate::{Node, stores};

#[test]
fn a_policy_makes_counters_strong() {
    let (redis, mut postgres) = (stores::Server::start(), Postgres::start());
    let url = postgres.url();
    let node = Node::start(&redis.url(), &["--archive", &url]);
    let set = node.server.client(&["policy", "set", "credit:*", "--strong", "--min", "0"]);
    assert_eq!(String::from_utf8_lossy(&set.stdout), "credit:*  min 0  strong\n", "{set:?}");
    assert_eq!(node.add("credit:7", 50, Some("a")), 50);
    assert_eq!(node.add("credit:7", 50, Some("a")), 50, "a repetition");
    let refused = node.server.client(&["decr", "credit:7", "51"]);
    assert_eq!(refused.status.code(), Some(3), "{refused:?}");
    let adjusted = node.server.client(&["adjust", "credit:7", "-8", "--reason", "a refund"]);
    assert!(adjusted.status.success(), "{adjusted:?}");
    assert_eq!(node.read("credit:7"), 42);
    // Redis knows nothing of it, and may lose all it has.
    let keys: Vec<String> = redis::cmd("KEYS").arg("*credit*").query(&mut redis.connection()).unwrap();
    assert_eq!(keys, Vec::<String>::new());
    assert!(node.fact("strong_transactions") >= Some(4));
    let uniques = node.server.client(&["observe", "credit:7", "anna"]);
    assert!(!uniques.status.success(), "{uniques:?}");
    // PostgreSQL comes back, and everything is there.
    postgres.restart();
    wait_until("it counts again", || {
        node.server.client(&["incr", "credit:7", "--id", "b", "--quiet"]).status.success()
    });
    assert_eq!(node.read("credit:7"), 43);
}
