//! Answers that are swallowed on the way, between quipu and Redis and between clients and quipu: nothing is counted twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Node;
use crate::stores::{self, Losing, Proxy};

/// So many answers are lost at each of the two places.
const LOST: i64 = 1_000;
const CLIENTS: u64 = 8;
const KEYS: u64 = 50;

fn losing() -> Arc<Losing> {
    let losing = Arc::new(Losing::default());
    losing.left.store(LOST, Ordering::Relaxed);
    losing
}

/// Asks until it is answered, on new connections where the old one ends. Says how often it had to.
fn add_until_answered(url: &str, connection: &mut Option<redis::Connection>, key: &str, id: &str) -> u64 {
    for attempts in 0.. {
        let open = || redis::Client::open(url).unwrap().get_connection();
        let known = match connection.take().map_or_else(open, Ok) {
            Ok(known) => connection.insert(known),
            Err(_) => continue,
        };
        let asked: redis::RedisResult<(i64, i64, i64, i64)> =
            redis::cmd("Q.ADD").arg(key).arg(1).arg("ID").arg(id).query(known);
        match asked {
            Ok(_) => return attempts,
            // What quipu says is an answer too: Redis cannot be asked just now.
            Err(error) if matches!(error.code(), Some("CLUSTERDOWN" | "UNAVAILABLE" | "BUSY")) => {}
            Err(error) => {
                assert!(error.is_io_error() || error.is_connection_dropped(), "{error:?}");
                *connection = None;
            }
        }
    }
    unreachable!("it is asked for ever")
}

#[test]
fn a_thousand_answers_are_swallowed_on_each_side_and_nothing_is_counted_twice() {
    let redis = stores::Server::start();
    let (behind, before) = (losing(), losing());
    let backend = Proxy::start(redis.port, Arc::clone(&behind));
    let node = Node::start(&backend.url(), &[]);
    let front = Proxy::start(node.server.resp.port(), Arc::clone(&before));
    let (asked, again) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (url, asked, again, behind, before) = (front.url(), &asked, &again, &behind, &before);
            scope.spawn(move || {
                let mut connection = None;
                let has_more = |losing: &Losing| losing.lost.load(Ordering::Relaxed) < LOST as u64;
                for number in 0.. {
                    if !has_more(behind) && !has_more(before) {
                        return;
                    }
                    let (key, id) = (format!("key:{}", number % KEYS), format!("{client}-{number}"));
                    again.fetch_add(add_until_answered(&url, &mut connection, &key, &id), Ordering::Relaxed);
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let counted: i64 = (0..KEYS).map(|key| node.read(&format!("key:{key}"))).sum();
    let (asked, again) = (asked.into_inner(), again.into_inner());
    let lost = [&behind, &before].map(|losing| losing.lost.load(Ordering::Relaxed));
    println!("{asked} asked, {again} asked again by clients, {lost:?} answers lost, {counted} counted");
    assert_eq!((counted as u64, lost), (asked, [LOST as u64; 2]));
    assert!(node.fact("external_retries").unwrap() > 0);
}
