//! Work that may block for long, done by a few threads while the connection that asked waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quipu_cluster::walks::Scope;
use quipu_counting::{Counters, Origin, Policy, Selector, Unavailable};
use quipu_wire::refusal::unavailable_line;
use quipu_wire::resp::{Encoder, Protocol};

use super::commands::walks::Keys;
use super::commands::{audit, cluster, kinds, own, totals, walks};
use crate::cluster::map::Map;

/// Two, so that one long KEYS does not stop everyone's SCAN.
const THREADS: usize = 2;
/// The most jobs that wait. A connection has at most one, so this many connections may walk at the same time.
const JOBS_MAX: usize = 1024;

/// What is to be done.
#[derive(Debug)]
pub enum Job {
    /// SCAN.
    Scan {
        /// On the port of the Redis Cluster protocol: what this node leads is walked.
        map: Option<Arc<Map>>,
        /// Where the walk goes on.
        cursor: u64,
        /// Which keys are wanted.
        pattern: Option<Vec<u8>>,
        /// About how many keys to look at.
        count: usize,
        /// Whether the type asked for is the one that counters have.
        matches_type: bool,
    },
    /// KEYS.
    Keys {
        /// As above.
        map: Option<Arc<Map>>,
        /// Which keys are wanted.
        pattern: Vec<u8>,
    },
    /// RANDOMKEY.
    RandomKey {
        /// As above.
        map: Option<Arc<Map>>,
        /// A random number.
        draw: u64,
    },
    /// DBSIZE on the port of the Redis Cluster protocol.
    CountLed {
        /// Knows what this node leads.
        map: Arc<Map>,
    },
    /// CLUSTER COUNTKEYSINSLOT and CLUSTER GETKEYSINSLOT.
    KeysInSlot {
        /// Where they are looked for.
        map: Arc<Map>,
        /// Of which slot.
        slot: u16,
        /// How many are wanted; none only counts them.
        most: Option<usize>,
    },
    /// PFMERGE.
    Merge {
        /// What sees it all.
        destination: Vec<u8>,
        /// What has seen it.
        sources: Vec<Vec<u8>>,
        /// Who asks, where somebody wants to know.
        by: Option<Arc<Origin>>,
    },
    /// Q.SUM.
    Sum {
        /// Which counters are wanted, and which part of them.
        selector: Selector,
    },
    /// Q.TOP.
    Top {
        /// What the keys of the wanted counters begin with.
        prefix: Vec<u8>,
        /// How many are wanted.
        count: usize,
    },
    /// Q.AUDIT.
    Audit {
        /// Of which counter.
        key: Vec<u8>,
        /// How many changes are wanted.
        count: usize,
    },
    /// Q.HOT.
    Hot {
        /// How many keys.
        n: usize,
    },
    /// Q.POLICY SET and Q.POLICY DEL.
    SetPolicy {
        /// For which keys.
        pattern: Vec<u8>,
        /// The policy; none removes it.
        policy: Option<Box<Policy>>,
    },
}

impl Job {
    /// Does it and encodes the reply.
    fn run(&self, counters: &dyn Counters, now_ms: u64, protocol: Protocol) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = Encoder::new(&mut out, protocol);
        let outcome = match self {
            Job::Scan { matches_type: false, .. } => {
                // Counters have one type: another one finds nothing, and there is nothing to go on with.
                encoder.array(2);
                encoder.bulk(b"0");
                encoder.array(0);
                Ok(())
            }
            Job::Scan { map, cursor, pattern, count, .. } => {
                let keys = Keys { counters, map: map.as_deref(), now_ms };
                walks::answer_scan(&keys, *cursor, pattern.as_deref(), *count, &mut encoder)
            }
            Job::Keys { map, pattern } => {
                let keys = Keys { counters, map: map.as_deref(), now_ms };
                walks::answer_keys(&keys, pattern, &mut encoder)
            }
            Job::RandomKey { map, draw } => {
                let key = match map {
                    Some(map) => map.led().random_key_in(Scope::Led, *draw),
                    None => counters.random_key(*draw, now_ms),
                };
                key.map(|key| match key {
                    Some(key) => encoder.bulk(&key),
                    None => encoder.null(),
                })
            }
            Job::CountLed { map } => {
                map.led().count_led().map(|count| encoder.integer(i64::try_from(count).unwrap_or(i64::MAX)))
            }
            Job::KeysInSlot { map, slot, most } => {
                cluster::answer_keys_in_slot(map, *slot, *most, now_ms, &mut encoder)
            }
            Job::Audit { key, count } => audit::answer_audit(counters, (key, *count), now_ms, &mut encoder),
            Job::Merge { destination, sources, by } => {
                kinds::answer_merge(counters, (destination, sources, by.as_ref()), now_ms, &mut encoder)
            }
            Job::Sum { selector } => totals::answer_sum(counters, selector, now_ms, &mut encoder),
            Job::Top { prefix, count } => {
                totals::answer_top(counters, (prefix, *count), now_ms, protocol, &mut encoder)
            }
            Job::Hot { n } => counters.hot(*n, now_ms).map(|told| own::encode_hot(&told, &mut encoder)),
            Job::SetPolicy { pattern, policy } => {
                let stores = policy.is_some();
                counters
                    .set_policy(pattern, policy.as_deref().cloned(), now_ms)
                    .map(|existed| if stores { encoder.ok() } else { encoder.integer(existed.into()) })
            }
        };
        if let Err(reason) = outcome {
            Encoder::new(&mut out, protocol).error(unavailable_line(&reason));
        }
        out
    }
}

/// Called with the encoded reply.
type Answered = Box<dyn FnOnce(Vec<u8>) + Send>;

/// How long a job may wait for its turn: clients have given up by then, and two long KEYS are not worth waiting for.
const WAIT_MAX: Duration = Duration::from_secs(10);

struct Task {
    submitted_at: Instant,
    job: Job,
    now_ms: u64,
    protocol: Protocol,
    answered: Answered,
}

/// The threads and their queue. They end when it is dropped and the queue is empty.
pub struct Background {
    queue: SyncSender<Task>,
    refused: Arc<AtomicU64>,
}

impl Background {
    /// Starts the threads.
    pub fn start(counters: &Arc<dyn Counters>) -> std::io::Result<Background> {
        let (queue, tasks) = sync_channel(JOBS_MAX);
        let tasks = Arc::new(Mutex::new(tasks));
        let refused = Arc::new(AtomicU64::new(0));
        for number in 0..THREADS {
            let (counters, tasks, refused) = (Arc::clone(counters), Arc::clone(&tasks), Arc::clone(&refused));
            thread::Builder::new()
                .name(format!("resp-job-{number}"))
                .spawn(move || work(&*counters, &tasks, &refused))?;
        }
        Ok(Background { queue, refused })
    }

    /// How many jobs were told to come back later.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Queues a job; `answered` is called on another thread, or here at once when there are too many.
    pub fn submit(&self, job: Job, now_ms: u64, protocol: Protocol, answered: Answered) {
        let task = Task { submitted_at: Instant::now(), job, now_ms, protocol, answered };
        if let Err(TrySendError::Full(task) | TrySendError::Disconnected(task)) = self.queue.try_send(task) {
            task.refuse(&self.refused, format!("more than {JOBS_MAX} walks over keys are waiting"));
        }
    }
}

impl Task {
    fn refuse(self, refused: &AtomicU64, why: String) {
        refused.fetch_add(1, Ordering::Relaxed);
        let mut out = Vec::new();
        Encoder::new(&mut out, self.protocol).error(unavailable_line(&Unavailable::Busy(why)));
        (self.answered)(out);
    }
}

fn work(counters: &dyn Counters, tasks: &Mutex<Receiver<Task>>, refused: &AtomicU64) {
    loop {
        // One thread waits in `recv` with the lock held; the others wait for the lock.
        let received = tasks.lock().recv();
        let Ok(task) = received else { return };
        if task.submitted_at.elapsed() >= WAIT_MAX {
            task.refuse(refused, "other walks over keys take too long".to_owned());
            continue;
        }
        let reply = task.job.run(counters, task.now_ms, task.protocol);
        (task.answered)(reply);
    }
}
