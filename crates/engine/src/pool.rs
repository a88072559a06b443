//! The threads that wait for the cold store so that nobody else has to.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

/// Reads of cold counters wait for a disk, not for a processor.
const THREADS: usize = 4;
/// Batches that may wait. Each connection has at most one, so this is also the most connections that wait.
const WAITING_MAX: usize = 4096;

/// Told whether it was admitted; when not, it must say so and return.
type Job = Box<dyn FnOnce(bool) + Send>;

/// See the head of this file.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    stopped: bool,
}

impl Pool {
    /// Starts the threads.
    pub fn start() -> std::io::Result<Pool> {
        let shared = Arc::new(Shared::default());
        let mut threads = Vec::new();
        for number in 0..THREADS {
            let shared = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name(format!("quipu-fetch-{number}"));
            threads.push(builder.spawn(move || shared.work())?);
        }
        Ok(Pool { shared, threads: Mutex::new(threads) })
    }

    /// Queues a job; one that finds no room is called at once with `false`.
    pub fn submit(&self, job: impl FnOnce(bool) + Send + 'static) {
        let mut jobs = self.shared.jobs.lock();
        if jobs.stopped || jobs.waiting.len() >= WAITING_MAX {
            drop(jobs);
            return job(false);
        }
        jobs.waiting.push_back(Box::new(job));
        drop(jobs);
        self.shared.changed.notify_one();
    }

    /// Refuses what waits, lets what runs finish, ends the threads.
    pub fn stop(&self) {
        let refused = {
            let mut jobs = self.shared.jobs.lock();
            jobs.stopped = true;
            std::mem::take(&mut jobs.waiting)
        };
        self.shared.changed.notify_all();
        refused.into_iter().for_each(|job| job(false));
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
            let mut jobs = self.jobs.lock();
            let job = loop {
                match jobs.waiting.pop_front() {
                    Some(job) => break job,
                    None if jobs.stopped => return,
                    None => self.changed.wait(&mut jobs),
                }
            };
            drop(jobs);
            job(true);
        }
    }
}
