//! The threads that wait for the cold store so that nobody else has to.
//!
//! A batch that did not find everything in memory comes here with the one who wants its replies. Which of them is next
//! and which is refused is decided in `queue.rs`.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use quipu_counting::service::Finished;
use quipu_counting::{Batch, Unavailable};

use crate::engine::{Count, Engine, cold_unavailable};
use crate::execute::Progress;
use crate::fetch::Fetched;
use crate::queue::{Admitted, Bounds, Next, Queue};

/// Reads of cold counters wait for a disk, not for a processor.
const THREADS: usize = 4;
/// So many bytes of keys and ids count as one more request: the bound of the queue is one of memory too.
const BYTES_PER_REQUEST: usize = 256;

/// A batch that has to wait, and who is told what became of it.
struct Pending {
    batch: Batch,
    now_ms: u64,
    fetched: Fetched,
    /// So many checkpoints of whichever partition are waited for: where they do not help, more of them do not either.
    reliefs_left: usize,
    finished: Finished,
}

impl Pending {
    fn finish(self, result: Result<u64, Unavailable>) {
        (self.finished)(self.batch, result);
    }
}

/// See the head of this file.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    engine: Weak<Engine>,
    queue: Mutex<Queue<Pending>>,
    changed: Condvar,
    refused: Refused,
}

/// How many requests were told to come back later, and why.
#[derive(Default)]
pub struct Refused {
    /// There was no room in the queue.
    pub full: Count,
    /// They waited too long.
    pub late: Count,
}

impl Pool {
    /// Starts the threads.
    pub fn start(engine: Weak<Engine>, requests_max: usize, wait_max: Duration) -> std::io::Result<Pool> {
        let bounds = Bounds { requests_max, wait_max, long_running_max: THREADS - 1 };
        let shared = Arc::new(Shared {
            engine,
            queue: Mutex::new(Queue::new(bounds)),
            changed: Condvar::new(),
            refused: Refused::default(),
        });
        let mut threads = Vec::new();
        for number in 0..THREADS {
            let shared = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name(format!("quipu-fetch-{number}"));
            threads.push(builder.spawn(move || shared.work())?);
        }
        Ok(Pool { shared, threads: Mutex::new(threads) })
    }

    /// Takes a batch in; it is finished by another thread, or here at once when there is no room.
    pub fn submit(&self, batch: Batch, now_ms: u64, reliefs_left: usize, finished: Finished) {
        let requests = batch.requests.len();
        let size = requests + batch.bytes_len() / BYTES_PER_REQUEST;
        let pending = Pending { batch, now_ms, fetched: Fetched::default(), reliefs_left, finished };
        let (admitted, is_closed) = {
            let mut queue = self.shared.queue.lock();
            (queue.admit(pending, size, Instant::now()), queue.is_closed())
        };
        match admitted {
            Ok(()) => {
                self.shared.changed.notify_one();
            }
            Err(pending) if is_closed => pending.finish(Err(closing())),
            Err(pending) => {
                self.shared.refused.full.add(requests as u64);
                pending.finish(Err(busy("too many requests wait for the disk")));
            }
        }
    }

    /// Requests that wait or are seen to.
    pub fn requests(&self) -> usize {
        self.shared.queue.lock().requests()
    }

    /// How many requests were told to come back later.
    pub fn refused(&self) -> &Refused {
        &self.shared.refused
    }

    /// Refuses what waits, lets what runs finish, ends the threads.
    pub fn stop(&self) {
        let waiting = self.shared.queue.lock().close();
        self.shared.changed.notify_all();
        waiting.into_iter().for_each(|pending| pending.finish(Err(closing())));
        let this = std::thread::current().id();
        for thread in self.threads.lock().drain(..) {
            // The last owner of an engine may be one of its own threads.
            if thread.thread().id() != this {
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
    fn work(&self) {
        loop {
            let mut queue = self.queue.lock();
            let next = loop {
                match queue.next(Instant::now()) {
                    Next::Sleep(Some(until)) => {
                        self.changed.wait_until(&mut queue, until);
                    }
                    Next::Sleep(None) => self.changed.wait(&mut queue),
                    next => break next,
                }
            };
            drop(queue);
            match next {
                Next::Run(admitted) => self.run(admitted),
                Next::Relieve(partition) => self.relieve(partition),
                Next::GiveUp(pending) => {
                    self.refused.late.add(pending.batch.requests.len() as u64);
                    pending.finish(Err(busy("the disk is behind, this waited too long for it")));
                }
                Next::Stop => return,
                Next::Sleep(_) => {}
            }
        }
    }

    fn run(&self, mut admitted: Admitted<Pending>) {
        let Pending { batch, now_ms, fetched, reliefs_left, .. } = &mut admitted.work;
        let result = match self.engine.upgrade() {
            Some(engine) => engine.advance(batch, *now_ms, fetched, *reliefs_left > 0),
            None => Err(closing()),
        };
        let result = match result {
            Ok(Progress::Crowded(partition)) => {
                return self.queue.lock().wait_for_checkpoint(partition, admitted);
            }
            Ok(Progress::Done(offset)) => Ok(offset),
            Err(reason) => Err(reason),
        };
        self.queue.lock().leave(&admitted);
        admitted.work.finish(result);
    }

    fn relieve(&self, partition: u16) {
        let relieved = match self.engine.upgrade() {
            Some(engine) => engine.relieve(partition).map_err(cold_unavailable),
            None => Err(closing()),
        };
        match relieved {
            Ok(()) => {
                let count =
                    |pending: &mut Pending| pending.reliefs_left = pending.reliefs_left.saturating_sub(1);
                self.queue.lock().relieved(partition, count);
            }
            Err(reason) => {
                let waiting = self.queue.lock().not_relieved();
                waiting.into_iter().for_each(|pending| pending.finish(Err(reason.clone())));
            }
        }
        self.changed.notify_all();
    }
}

fn busy(why: &str) -> Unavailable {
    Unavailable::Busy(why.to_string())
}

fn closing() -> Unavailable {
    busy("the engine is closing")
}
