//! A master that fails again and again is left alone for a while. Time is an argument.

use std::time::{Duration, Instant};

/// When a breaker opens, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct BreakerSettings {
    /// So many failures in a row open it.
    pub failures: u32,
    /// After so long one attempt is let through.
    pub open_for: Duration,
}

impl Default for BreakerSettings {
    fn default() -> BreakerSettings {
        BreakerSettings { failures: 5, open_for: Duration::from_secs(1) }
    }
}

/// What a breaker lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Everything.
    Closed,
    /// Nothing: who asks is refused at once.
    Open,
    /// One attempt, which is under way.
    HalfOpen,
}

/// Decides whether an attempt is worth making.
#[derive(Clone, Copy, Debug)]
pub struct Breaker {
    settings: BreakerSettings,
    /// In a row.
    failures: u32,
    state: BreakerState,
    /// When the next attempt is let through, unless it is closed.
    next: Option<Instant>,
}

impl Breaker {
    /// One that is closed.
    pub fn new(settings: BreakerSettings) -> Breaker {
        Breaker { settings, failures: 0, state: BreakerState::Closed, next: None }
    }

    /// What it lets through.
    pub fn state(&self) -> BreakerState {
        self.state
    }

    /// Whether an attempt may begin now. Each that may has to be followed by what became of it; one that is never heard of
    /// again is taken for a failure.
    pub fn admits(&mut self, now: Instant) -> bool {
        match self.next {
            None => true,
            Some(next) if now < next => false,
            Some(_) => {
                self.state = BreakerState::HalfOpen;
                self.next = Some(now + self.settings.open_for);
                true
            }
        }
    }

    /// An attempt was answered.
    pub fn succeeded(&mut self) {
        *self = Breaker::new(self.settings);
    }

    /// An attempt was not. Returns whether that has opened it.
    pub fn failed(&mut self, now: Instant) -> bool {
        self.failures = self.failures.saturating_add(1);
        if self.state == BreakerState::Closed && self.failures < self.settings.failures {
            return false;
        }
        let has_opened = self.state == BreakerState::Closed;
        self.state = BreakerState::Open;
        self.next = Some(now + self.settings.open_for);
        has_opened
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_failures_in_a_row_and_closes_after_one_success() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let mut breaker = Breaker::new(BreakerSettings { failures: 3, open_for: Duration::from_millis(100) });
        assert!(!breaker.failed(at(0)) && !breaker.failed(at(0)));
        breaker.succeeded();
        assert!(!breaker.failed(at(1)) && !breaker.failed(at(1)), "only those in a row count");
        assert!(breaker.admits(at(1)));
        assert!(breaker.failed(at(2)), "the third");
        assert_eq!(breaker.state(), BreakerState::Open);
        assert!(!breaker.admits(at(101)));
        assert!(breaker.admits(at(102)), "one may try");
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert!(!breaker.admits(at(103)), "but only one");
        assert!(!breaker.failed(at(110)), "it was open before");
        assert!(!breaker.admits(at(209)));
        assert!(breaker.admits(at(210)));
        breaker.succeeded();
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert!(breaker.admits(at(210)) && breaker.admits(at(210)));
    }

    #[test]
    fn an_attempt_that_is_never_heard_of_again_does_not_keep_it_half_open() {
        let begin = Instant::now();
        let mut breaker = Breaker::new(BreakerSettings { failures: 1, open_for: Duration::from_millis(100) });
        assert!(breaker.failed(begin));
        let later = begin + Duration::from_millis(100);
        assert!(breaker.admits(later) && !breaker.admits(later));
        assert!(breaker.admits(later + Duration::from_millis(100)));
    }
}
