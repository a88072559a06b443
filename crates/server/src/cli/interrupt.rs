//! Ctrl-C in the middle of work that should say how far it came, or that has to restore the terminal.

use std::io::Read;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::serve::ignores_hang_up;

/// Whether somebody asked to stop.
pub struct Interrupt {
    first: Arc<AtomicI32>,
    arrivals: Receiver<()>,
}

/// The signal that has not come.
const NONE: i32 = 0;

impl Interrupt {
    /// From now on SIGINT, SIGTERM and, unless the process was told to ignore it, SIGHUP no longer end the process by themselves; a
    /// second one does.
    pub fn watch() -> std::io::Result<Interrupt> {
        let hang_up = Some(SIGHUP).filter(|_| !ignores_hang_up());
        let mut arriving = Signals::new([SIGINT, SIGTERM].into_iter().chain(hang_up))?;
        let (sender, arrivals) = channel();
        let first = Arc::new(AtomicI32::new(NONE));
        let noted = Arc::clone(&first);
        thread::spawn(move || {
            for signal in &mut arriving {
                if noted.swap(signal, Ordering::SeqCst) != NONE {
                    end_by(signal);
                }
                // Nobody listens any more where the process is about to end.
                let _ = sender.send(());
            }
        });
        Ok(Interrupt { first, arrivals })
    }

    /// Whether there was a signal, and which.
    pub fn received(&self) -> Option<i32> {
        Some(self.first.load(Ordering::SeqCst)).filter(|signal| *signal != NONE)
    }

    /// Waits so long, or until there is a signal.
    pub fn wait(&self, time: Duration) -> Option<i32> {
        if self.received().is_none() {
            let _ = self.arrivals.recv_timeout(time);
        }
        self.received()
    }

    /// `input`, which may have nothing to give for a long time; reading it ends with an error after a signal.
    pub fn guard<R: Read + AsFd>(&self, input: R) -> Guarded<R> {
        Guarded { first: Arc::clone(&self.first), input }
    }
}

/// See [`Interrupt::guard`].
pub struct Guarded<R> {
    first: Arc<AtomicI32>,
    input: R,
}

impl<R: Read + AsFd> Read for Guarded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.first.load(Ordering::SeqCst) == NONE {
            let mut inputs = [PollFd::new(&self.input, PollFlags::IN)];
            match poll(&mut inputs, Some(&LOOK_AROUND)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return self.input.read(buffer),
                Err(error) => return Err(error.into()),
            }
        }
        Err(std::io::Error::other("interrupted"))
    }
}

/// How often a reader that waits looks whether there was a signal.
const LOOK_AROUND: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Ends the process as the signal would have: the shell that started us must see that we were interrupted.
pub fn end_by(signal: i32) -> ! {
    let _ = emulate_default_handler(signal);
    // Only a signal that cannot end a process comes here; those that are watched can.
    std::process::exit(128 + signal);
}

/// When the reader of our output goes away (`quipu list | head -1`), end as `cat` would: silently and at once.
pub fn end_with_the_reader() -> std::io::Result<()> {
    let always = Arc::new(AtomicBool::new(true));
    signal_hook::flag::register_conditional_default(SIGPIPE, always).map(drop)
}
