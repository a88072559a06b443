//! A timer that wakes a poll when the next batch is due: `epoll` itself waits in whole milliseconds only, and a
//! generator that spins instead would take a core from the server it measures.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Poll, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

/// A file descriptor that becomes readable when the time has come.
pub struct Timer {
    descriptor: OwnedFd,
}

impl Timer {
    /// A timer that wakes `poll` with `token`.
    pub fn new(poll: &Poll, token: Token) -> io::Result<Timer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let descriptor = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        poll.registry().register(&mut SourceFd(&descriptor.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Timer { descriptor })
    }

    /// Wakes the poll after `wait`, instead of whatever was set before. It need not be read: setting it anew makes
    /// the next edge.
    pub fn set(&self, wait: Duration) -> io::Result<()> {
        // Zero would switch it off.
        let wait = wait.max(Duration::from_nanos(1));
        let it_value =
            Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) as _ };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval, it_value };
        timerfd_settime(&self.descriptor, TimerfdTimerFlags::empty(), &spec)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use mio::Events;

    use super::*;

    #[test]
    fn every_setting_wakes_the_poll() {
        let mut poll = Poll::new().unwrap();
        let timer = Timer::new(&poll, Token(7)).unwrap();
        let mut events = Events::with_capacity(4);
        for wait in [Duration::from_micros(300), Duration::ZERO, Duration::from_millis(2)] {
            let started = std::time::Instant::now();
            timer.set(wait).unwrap();
            // Not bounded: if the timer does not fire, the test hangs and is seen.
            poll.poll(&mut events, None).unwrap();
            assert!(events.iter().any(|event| event.token() == Token(7)));
            assert!(started.elapsed() >= wait);
        }
    }
}
