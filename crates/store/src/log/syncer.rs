//! The threads behind a log: one syncs for those who do not want to wait, one makes segments ready.
//!
//! They are two because filling 64 MiB with zeros takes longer than anybody should wait for a reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::{Durability, Log, LogError};

/// More than every connection a process can have; whoever comes when all places are taken commits by itself.
const WAITERS_MAX: usize = 65_536;

/// Without durability, how often what nobody waits for (expiries, say) is handed to the system.
const WRITE_OUT_INTERVAL: Duration = Duration::from_millis(100);

/// How soon after a failure the next segment is tried again.
const PREPARATION_RETRY: Duration = Duration::from_secs(1);

type Callback = Box<dyn FnOnce(Result<(), LogError>) + Send>;

/// Somebody who wants to know when an offset is durable.
pub(super) struct Waiter {
    offset: u64,
    callback: Callback,
}

/// Whether the next segment should be made ready.
#[derive(Default)]
pub(super) struct Preparation {
    wanted: bool,
}

impl Log {
    /// Calls `callback` once the log is durable up to `offset`, or has failed: at once when that is already
    /// known, otherwise from the syncer's thread, so it has to be quick.
    pub fn when_durable(&self, offset: u64, callback: Callback) {
        if self.durable() >= offset {
            return callback(Ok(()));
        }
        let end = self.end();
        if offset > end {
            return callback(Err(LogError::BeyondEnd { offset, end }));
        }
        let mut waiters = self.waiters.lock();
        if waiters.len() < WAITERS_MAX && !self.is_poisoned() {
            waiters.push(Waiter { offset, callback });
            drop(waiters);
            self.waiters_changed.notify_one();
        } else {
            drop(waiters);
            callback(self.commit(offset));
        }
    }

    /// Commits for all who wait and calls them. The syncer does this; a simulation without threads does it
    /// itself.
    pub fn serve_waiters(&self) {
        let waiting = std::mem::take(&mut *self.waiters.lock());
        let Some(highest) = waiting.iter().map(|waiter| waiter.offset).max() else { return };
        let result = self.commit(highest);
        for waiter in waiting {
            // What became durable before the failure is durable.
            let reached = waiter.offset <= self.durable();
            (waiter.callback)(if reached { Ok(()) } else { result.clone() });
        }
    }

    pub(super) fn want_preparation(&self) {
        self.preparation.lock().wanted = true;
        self.preparation_changed.notify_one();
    }

    /// Wakes both threads. The locks make sure that nobody is between looking and waiting.
    pub(super) fn wake_all(&self) {
        drop(self.waiters.lock());
        self.waiters_changed.notify_all();
        drop(self.preparation.lock());
        self.preparation_changed.notify_all();
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        for waiter in self.waiters.get_mut().drain(..) {
            (waiter.callback)(Err(LogError::Closed));
        }
    }
}

/// The running threads. Dropping it serves everybody who waits, closes the log and joins them.
pub struct Syncer {
    log: Arc<Log>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// Starts the threads behind a log; at most one set per log.
pub fn spawn_syncer(log: &Arc<Log>, durability: Durability) -> Result<Syncer, LogError> {
    let mut syncer = Syncer { log: log.clone(), stop: Arc::default(), threads: Vec::new() };
    syncer.spawn("quipu-sync", move |log, stop| sync_loop(log, durability, stop))?;
    syncer.spawn("quipu-segments", prepare_loop)?;
    log.has_preparer.store(true, Ordering::Release);
    log.want_preparation();
    Ok(syncer)
}

impl Syncer {
    fn spawn(
        &mut self,
        name: &str,
        run: impl FnOnce(&Log, &AtomicBool) + Send + 'static,
    ) -> Result<(), LogError> {
        let (log, stop) = (self.log.clone(), self.stop.clone());
        let spawned = Builder::new().name(name.into()).spawn(move || run(&log, &stop));
        self.threads.push(spawned.map_err(LogError::io("start thread", name.as_ref()))?);
        Ok(())
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.log.has_preparer.store(false, Ordering::Release);
        self.stop.store(true, Ordering::Release);
        self.log.wake_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the log panicked");
            }
        }
        self.log.serve_waiters();
        if let Err(error) = self.log.close() {
            tracing::error!("the log was not closed properly: {error}");
        }
    }
}

fn sync_loop(log: &Log, durability: Durability, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        {
            let mut waiters = log.waiters.lock();
            if waiters.is_empty() && !stop.load(Ordering::Acquire) {
                match durability {
                    Durability::Sync => log.waiters_changed.wait(&mut waiters),
                    Durability::Interval { ms } => {
                        log.waiters_changed.wait_for(&mut waiters, Duration::from_millis(ms));
                    }
                    Durability::None => {
                        log.waiters_changed.wait_for(&mut waiters, WRITE_OUT_INTERVAL);
                    }
                }
            }
        }
        log.serve_waiters();
        // A failure poisons the log, which tells everybody; there is nothing to add here.
        let _ = match durability {
            Durability::Sync => Ok(()),
            Durability::Interval { .. } => log.commit(log.end()),
            Durability::None => log.write_out(),
        };
    }
}

fn prepare_loop(log: &Log, stop: &AtomicBool) {
    let mut failing = false;
    loop {
        {
            let mut preparation = log.preparation.lock();
            while !preparation.wanted && !stop.load(Ordering::Acquire) {
                if !failing {
                    log.preparation_changed.wait(&mut preparation);
                } else if log.preparation_changed.wait_for(&mut preparation, PREPARATION_RETRY).timed_out() {
                    preparation.wanted = true;
                }
            }
            if stop.load(Ordering::Acquire) {
                return;
            }
            preparation.wanted = false;
        }
        match log.prepare_next() {
            Ok(()) => failing = false,
            Err(error) => {
                if !failing {
                    tracing::warn!("the next log segment cannot be made ready: {error}");
                }
                failing = true;
            }
        }
    }
}
