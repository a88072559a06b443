//! What is counted comes to PostgreSQL, whatever happens to it meanwhile.

use crate::stores::postgres::Postgres;
use crate::stores::{self, wait_until};
use crate::{Node, query};

const LIKES: &str = "SELECT total_value FROM counter_total_snapshot WHERE counter_key = 'likes'";

#[test]
fn what_is_counted_comes_to_postgresql_and_the_lag_is_shown() {
    let (redis, mut postgres) = (stores::Server::start(), Postgres::start());
    let archive = postgres.url();
    let nodes = [0, 1].map(|_| Node::start(&redis.url(), &["--archive", &archive]));
    nodes[0].add("likes", 5, Some("a"));
    nodes[1].add("likes", 2, None);
    wait_until("it is in the tables", || query(&postgres, LIKES) == "7");
    assert_eq!(query(&postgres, "SELECT count(*) FROM counter_idempotency"), "1");
    wait_until("no lag is shown", || nodes.iter().all(|node| node.fact("archive_lag_ms") == Some(0)));
    let flushed = || nodes.iter().map(|node| node.fact("archive_flushed_events").unwrap()).sum::<u64>();
    assert_eq!(flushed(), 2);
    assert_eq!(nodes[0].fact("archive_up"), Some(1));
    postgres.stop();
    let is_down = || nodes.iter().all(|node| node.fact("archive_up") == Some(0));
    wait_until("that PostgreSQL is gone is shown, though nothing waits for it", is_down);
    for _ in 0..30 {
        assert!(is_down(), "nobody has asked it meanwhile, or heard from it");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    nodes[0].add("likes", 3, None);
    wait_until("the lag is shown", || {
        nodes
            .iter()
            .all(|node| node.fact("archive_lag_ms").unwrap() > 1_000 && node.fact("archive_up") == Some(0))
    });
    assert_eq!(nodes[0].fact("archive_stream_entries"), Some(1));
    assert_eq!(nodes[1].readiness().0, 200, "counting goes on without PostgreSQL");
    let late = Node::start(&redis.url(), &["--archive", &archive]);
    assert_eq!(late.read("likes"), 10, "and a node starts without it");
    postgres.begin();
    wait_until("it has caught up", || query(&postgres, LIKES) == "10");
    wait_until("no lag is shown", || nodes.iter().all(|node| node.fact("archive_lag_ms") == Some(0)));
    assert_eq!(nodes[0].fact("archive_stream_entries"), Some(0));
}

#[test]
fn an_archive_of_other_counters_is_refused() {
    let (redis, other, postgres) = (stores::Server::start(), stores::Server::start(), Postgres::start());
    let archive = postgres.url();
    let node = Node::start(&redis.url(), &["--archive", &archive]);
    node.add("likes", 1, None);
    Node::start(&other.url(), &[]);
    let folder = tempfile::tempdir().unwrap();
    let refused = |backend: &str, archive: &str| {
        let command = crate::support::backed_command(folder.path(), backend, &["--archive", archive]);
        let output = { command }.output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = refused(&other.url(), &archive);
    assert!(said.contains("do not belong together"), "{said}");
    let nowhere = archive.replace("/postgres?", "/nowhere?").replace("/postgres", "/nowhere");
    let said = refused(&redis.url(), &nowhere);
    assert!(said.contains("nowhere") && said.contains("does not exist"), "{said}");
}
