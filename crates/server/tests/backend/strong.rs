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
    // It is seen with all others.
    assert_eq!(node.add("likes", 3, None), 3);
    let sum = node.server.request("GET", "/api/v1/counters/*/aggregate", &[], "").json();
    assert_eq!((&sum["sum"], &sum["count"]), (&45.into(), &2.into()), "{sum}");
    let client = redis::Client::open(format!("redis://{}", node.server.resp)).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    keys.sort();
    assert_eq!(keys, ["credit:7", "likes"]);
    assert_eq!(redis::cmd("DBSIZE").query::<i64>(&mut connection).unwrap(), 2);
    let uniques = node.server.client(&["observe", "credit:7", "anna"]);
    assert!(!uniques.status.success(), "{uniques:?}");
    // PostgreSQL comes back, and everything is there.
    postgres.restart();
    wait_until("it counts again", || {
        node.server.client(&["incr", "credit:7", "--id", "b", "--quiet"]).status.success()
    });
    assert_eq!(node.read("credit:7"), 43);
}

/// Without an id, a value that the caller gives says the stripe.
#[test]
fn the_caller_may_say_the_stripe() {
    let redis = stores::Server::start();
    let node = Node::start(&redis.url(), &[]);
    let set = node.server.client(&["policy", "set", "views:*", "--stripes", "64"]);
    assert!(set.status.success(), "{set:?}");
    let item = |_| serde_json::json!({ "key": "views:2", "stripeBy": "user-7" });
    let items: Vec<serde_json::Value> = (0..30).map(item).collect();
    let mut stale_ms = Vec::new();
    for _ in 0..15 {
        let body = r#"{"delta":2,"stripeBy":"user-7"}"#;
        let reply = node.server.request("POST", "/api/v1/counters/views:1/increment", &[], body);
        assert_eq!(reply.status, 200, "{reply:?}");
        stale_ms.extend(reply.json()["stalenessMs"].as_u64());
    }
    assert!(stale_ms.len() == 15 && stale_ms.iter().any(|ms| (1..=251).contains(ms)), "{stale_ms:?}");
    let body = serde_json::json!({ "items": items }).to_string();
    let reply = node.server.request("POST", "/api/v1/counters/batch-increment", &[], &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    for key in ["views:1", "views:2"] {
        assert_eq!(node.read(key), 30);
        let cells = redis::cmd("KEYS").arg(format!("*:c:{key}")).to_owned();
        assert_eq!(cells.query::<Vec<String>>(&mut redis.connection()).unwrap().len(), 1, "{key}");
    }
}
