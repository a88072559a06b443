//! Clients that ask under ids, ask again until they are answered, and check that everything was counted once.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Node;

/// A request under an id that was acknowledged.
pub struct Acknowledged {
    pub key: String,
    pub id: String,
    pub at_ms: u64,
}

/// Ends the load when it is dropped, also by a test that fails: its clients would go on for ever.
pub struct Over<'a>(pub &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// One addition of 1 under an id. Says whether it was done before.
pub fn add_once(node: &Node, key: &str, id: &str) -> Result<bool, (u16, String)> {
    let path = format!("/api/v1/counters/{key}/increment");
    let reply = node.server.request("POST", &path, &[("Idempotency-Key", id)], "{}");
    match reply.status {
        200 => Ok(reply.json()["duplicate"].as_bool().unwrap()),
        status => Err((status, reply.body)),
    }
}

/// Adds 1 to these keys in turn until it is over. What is refused is told, and asked again under the same id.
pub fn load(
    node: &Node,
    client: &str,
    keys: &[String],
    is_over: &AtomicBool,
    acknowledged: &Mutex<Vec<Acknowledged>>,
    refused: impl Fn(u16, &str),
) {
    for number in 0.. {
        let (key, id) = (keys[number % keys.len()].clone(), format!("{client}-{number}"));
        loop {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            match add_once(node, &key, &id) {
                Ok(_) => break,
                Err((status @ (503 | 504), body)) => refused(status, &body),
                Err(other) => panic!("{other:?}"),
            }
            std::thread::sleep(PAUSE);
        }
        acknowledged.lock().unwrap().push(Acknowledged { key, id, at_ms: now_ms() });
    }
}

/// Once all of these were asked again, each is counted once. Some may be counted that were not acknowledged: a client is
/// stopped in the middle of at most one.
pub fn assert_counted_once(node: &Node, all: &[Acknowledged], clients: usize) {
    let mut asked: BTreeMap<&str, i64> = BTreeMap::new();
    all.iter().for_each(|asking| *asked.entry(&asking.key).or_default() += 1);
    let mut spare = 0;
    for (key, count) in &asked {
        let more = node.read(key) - count;
        assert!(more >= 0, "{key}: {more} of {count}");
        spare += more;
    }
    assert!(spare <= clients as i64, "{spare} were counted that nobody was told of");
}
