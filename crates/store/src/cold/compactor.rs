//! The thread that merges tables behind the writes, so that a read looks into few of them and replaced rows
//! go.
//!
//! One thread, one space at a time, one merge at a time: merging must not take a core from those who count. A
//! space is queued after each write to it and leaves the queue when nothing is due in it.

use super::space::Space;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

pub(super) struct Compactor {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    merges: AtomicU64,
    failures: AtomicU64,
}

#[derive(Default)]
struct Queue {
    /// Each space at most once. Weak, so that a dropped space is not kept on disk by its place here.
    waiting: VecDeque<Weak<Space>>,
    stopping: bool,
}

impl Compactor {
    pub(super) fn start() -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let thread = std::thread::Builder::new().name("cold-merge".into()).spawn(move || of_thread.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Has the space looked at, soon.
    pub(super) fn enqueue(&self, space: &Arc<Space>) {
        self.shared.enqueue(space);
    }

    /// Merges completed and failed.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.shared.merges.load(Ordering::Relaxed), self.shared.failures.load(Ordering::Relaxed))
    }
}

impl Drop for Compactor {
    /// Waits for the merge that is running; what is queued is found due again after the next start.
    fn drop(&mut self) {
        self.shared.queue.lock().stopping = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // An error means that it panicked, and the panic hook has reported that.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        while let Some(space) = self.next() {
            space.queued.store(false, Ordering::Release);
            match space.merge() {
                // There may be more to do. Others take their turn first.
                Ok(true) => {
                    self.merges.fetch_add(1, Ordering::Relaxed);
                    self.enqueue(&space);
                }
                Ok(false) => {}
                Err(error) => {
                    self.failures.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(space = space.name(), %error, "merge failed; tried again after the next write");
                }
            }
        }
    }

    fn enqueue(&self, space: &Arc<Space>) {
        if !space.queued.swap(true, Ordering::AcqRel) {
            self.queue.lock().waiting.push_back(Arc::downgrade(space));
            self.wake.notify_one();
        }
    }

    /// Waits for a space that still exists, or for the end.
    fn next(&self) -> Option<Arc<Space>> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stopping {
                return None;
            }
            match queue.waiting.pop_front() {
                Some(space) => {
                    if let Some(space) = space.upgrade() {
                        return Some(space);
                    }
                }
                None => self.wake.wait(&mut queue),
            }
        }
    }
}
