//! Work that may block for long, done by a few threads while the connection that asked waits.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

use parking_lot::Mutex;
use quipu_counting::{Counters, Policy, Unavailable};
use quipu_wire::refusal::unavailable_line;
use quipu_wire::resp::{Encoder, Protocol};

use super::commands::walks;

/// Two, so that one long KEYS does not stop everyone's SCAN.
const THREADS: usize = 2;
/// The most jobs that wait. A connection has at most one, so this many connections may walk at the same time.
const JOBS_MAX: usize = 1024;

/// What is to be done.
#[derive(Debug)]
pub enum Job {
    /// SCAN.
    Scan {
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
        /// Which keys are wanted.
        pattern: Vec<u8>,
    },
    /// Q.POLICY SET and Q.POLICY DEL.
    SetPolicy {
        /// For which keys.
        pattern: Vec<u8>,
        /// The policy; none removes it.
        policy: Option<Policy>,
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
            Job::Scan { cursor, pattern, count, .. } => {
                walks::answer_scan(counters, *cursor, pattern.as_deref(), *count, now_ms, &mut encoder)
            }
            Job::Keys { pattern } => walks::answer_keys(counters, pattern, now_ms, &mut encoder),
            Job::SetPolicy { pattern, policy } => {
                let stores = policy.is_some();
                counters
                    .set_policy(pattern, policy.clone(), now_ms)
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

struct Task {
    job: Job,
    now_ms: u64,
    protocol: Protocol,
    answered: Answered,
}

/// The threads and their queue. They end when it is dropped and the queue is empty.
pub struct Background {
    queue: SyncSender<Task>,
}

impl Background {
    /// Starts the threads.
    pub fn start(counters: &Arc<dyn Counters>) -> std::io::Result<Background> {
        let (queue, tasks) = sync_channel(JOBS_MAX);
        let tasks = Arc::new(Mutex::new(tasks));
        for number in 0..THREADS {
            let (counters, tasks) = (Arc::clone(counters), Arc::clone(&tasks));
            thread::Builder::new()
                .name(format!("resp-job-{number}"))
                .spawn(move || work(&*counters, &tasks))?;
        }
        Ok(Background { queue })
    }

    /// Queues a job; `answered` is called on another thread, or here at once when there are too many.
    pub fn submit(&self, job: Job, now_ms: u64, protocol: Protocol, answered: Answered) {
        let task = Task { job, now_ms, protocol, answered };
        if let Err(TrySendError::Full(task) | TrySendError::Disconnected(task)) = self.queue.try_send(task) {
            let reason = Unavailable::Busy(format!("more than {JOBS_MAX} walks over keys are waiting"));
            let mut out = Vec::new();
            Encoder::new(&mut out, protocol).error(unavailable_line(&reason));
            (task.answered)(out);
        }
    }
}

fn work(counters: &dyn Counters, tasks: &Mutex<Receiver<Task>>) {
    loop {
        // One thread waits in `recv` with the lock held; the others wait for the lock.
        let received = tasks.lock().recv();
        let Ok(task) = received else { return };
        let reply = task.job.run(counters, task.now_ms, task.protocol);
        (task.answered)(reply);
    }
}
