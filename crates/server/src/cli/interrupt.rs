//! Ctrl-C in the middle of work that should say how far it came, or that has to restore the terminal.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGPIPE, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// Whether somebody asked to stop.
pub struct Interrupt {
    signals: Receiver<i32>,
}

impl Interrupt {
    /// From now on SIGINT and SIGTERM no longer end the process by themselves; a second one does.
    pub fn watch() -> std::io::Result<Interrupt> {
        let mut arriving = Signals::new([SIGINT, SIGTERM])?;
        let (sender, signals) = sync_channel(1);
        thread::spawn(move || {
            for signal in &mut arriving {
                if sender.try_send(signal).is_err() {
                    end_by(signal);
                }
            }
        });
        Ok(Interrupt { signals })
    }

    /// Whether there was a signal, and which.
    pub fn received(&self) -> Option<i32> {
        self.signals.try_recv().ok()
    }

    /// Waits so long, or until there is a signal.
    pub fn wait(&self, time: Duration) -> Option<i32> {
        match self.signals.recv_timeout(time) {
            Ok(signal) => Some(signal),
            Err(RecvTimeoutError::Timeout) => None,
            // The thread above lives as long as the process.
            Err(RecvTimeoutError::Disconnected) => Some(SIGTERM),
        }
    }
}

/// Ends the process as the signal would have: the shell that started us must see that we were interrupted.
pub fn end_by(signal: i32) -> ! {
    let _ = emulate_default_handler(signal);
    // Only a signal that cannot end a process comes here; SIGINT and SIGTERM can.
    std::process::exit(128 + signal);
}

/// When the reader of our output goes away (`quipu list | head -1`), end as `cat` would: silently and at once.
pub fn end_with_the_reader() -> std::io::Result<()> {
    let always = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    signal_hook::flag::register_conditional_default(SIGPIPE, always).map(drop)
}
