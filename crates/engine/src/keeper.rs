//! The thread that keeps house: expiry, checkpoints, eviction, old request ids.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::engine::Engine;
use crate::options::Clock;

/// How often it looks. Short enough that expired counters are gone soon, long enough to cost nothing.
const PAUSE: Duration = Duration::from_millis(50);

/// See the head of this file.
pub struct Keeper {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Keeper {
    /// Starts the thread; it ends when the engine is gone or [`Keeper::stop`] is called.
    pub fn start(engine: Weak<Engine>, clock: Clock) -> std::io::Result<Keeper> {
        let shared = Arc::new(Shared::default());
        let thread = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("quipu-keeper".to_string())
                .spawn(move || work(&engine, &shared, &clock))?
        };
        Ok(Keeper { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Ends the thread, after the checkpoint it may be busy with.
    pub fn stop(&self) {
        *self.shared.stopped.lock() = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

fn work(engine: &Weak<Engine>, shared: &Shared, clock: &Clock) {
    loop {
        {
            let mut stopped = shared.stopped.lock();
            if !*stopped {
                shared.changed.wait_for(&mut stopped, PAUSE);
            }
            if *stopped {
                return;
            }
        }
        let Some(engine) = engine.upgrade() else { return };
        engine.tend(clock());
    }
}
