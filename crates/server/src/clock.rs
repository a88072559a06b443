//! The time of day as counting sees it: UTC milliseconds that never go back and never leap.
//!
//! Expiry and the windows of request ids are decided by these times, so a wall clock that someone sets to next year
//! would delete every counter with an expiry, for good. Therefore the wall clock is believed only as far as the monotonic
//! clock bears it out:
//!
//! | the wall clock, against the monotonic clock | what [`Timeline`] does |
//! |---|---|
//! | agrees, or is ahead by at most an hour | follows it |
//! | is ahead by more than an hour | refuses the jump, logs it once, goes on by the monotonic clock; a restart confirms the new time |
//! | is behind | advances at half speed until the wall clock has caught up: time neither stops nor goes back |

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

/// The largest forward jump that is believed: daylight-saving mistakes and slow time synchronization stay below it,
/// a wrong year or a wrong time zone does not.
pub const FORWARD_JUMP_MAX_NS: u64 = 3_600 * 1_000_000_000;

/// A clock that is behind the data by less than this is nothing to speak of.
const CLOCK_BEHIND_WARN_NS: u64 = 10 * 1_000_000_000;

/// Reads the real clocks. One is shared by all fronts.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    timeline: Mutex<Timeline>,
}

impl Clock {
    /// A clock that begins with what the wall clock says now.
    pub fn new() -> Clock {
        Clock { start: Instant::now(), timeline: Mutex::new(Timeline::new(wall_ns(), 0)) }
    }

    /// Makes sure that time goes on after what the data folder has seen. A machine without a battery for its
    /// clock may start in the past; what it counts must not expire by another time than the clients are told.
    pub fn begin_after(&self, newest_ms: u64) {
        let mut timeline = self.timeline.lock();
        let newest_ns = newest_ms.saturating_mul(1_000_000);
        let behind_ns = newest_ns.saturating_sub(timeline.now_ns);
        timeline.now_ns = timeline.now_ns.max(newest_ns);
        drop(timeline);
        if behind_ns > CLOCK_BEHIND_WARN_NS {
            tracing::warn!(
                behind_s = behind_ns / 1_000_000_000,
                "the wall clock is behind the newest change in the data folder; time goes on from that change, at half \
                 speed until the clock has caught up: set the clock"
            );
        }
    }

    /// UTC milliseconds.
    pub fn now_ms(&self) -> u64 {
        let mut timeline = self.timeline.lock();
        // Both clocks are read under the lock: readings reach the timeline in the order they were taken.
        let monotonic_ns = self.start.elapsed().as_nanos() as u64;
        let reading = timeline.advance(wall_ns(), monotonic_ns);
        drop(timeline);
        if let Some(ahead_ns) = reading.newly_refused_ns {
            tracing::warn!(
                ahead_s = ahead_ns / 1_000_000_000,
                "the wall clock jumped forward by more than an hour; the jump is refused, restart to confirm it"
            );
        }
        reading.now_ns / 1_000_000
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

/// What the machine's clock says, whether it is believed or not: UTC milliseconds.
pub fn wall_ms() -> u64 {
    wall_ns() / 1_000_000
}

fn wall_ns() -> u64 {
    // A wall clock before 1970 reads as 1970.
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// What one look at both clocks gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The time that holds, UTC nanoseconds.
    pub now_ns: u64,
    /// How far the wall clock is ahead, if its jump was refused and was not refused before.
    pub newly_refused_ns: Option<u64>,
}

/// The rules of the table above, without a clock.
#[derive(Clone, Copy, Debug)]
pub struct Timeline {
    now_ns: u64,
    monotonic_ns: u64,
    refusing: bool,
}

impl Timeline {
    /// Begins with the wall clock, whatever it says.
    pub fn new(wall_ns: u64, monotonic_ns: u64) -> Timeline {
        Timeline { now_ns: wall_ns, monotonic_ns, refusing: false }
    }

    /// The time that holds when the two clocks read this.
    pub fn advance(&mut self, wall_ns: u64, monotonic_ns: u64) -> Reading {
        let elapsed_ns = monotonic_ns.saturating_sub(self.monotonic_ns);
        let expected_ns = self.now_ns.saturating_add(elapsed_ns);
        let ahead_ns = wall_ns.saturating_sub(expected_ns);
        let refused = ahead_ns > FORWARD_JUMP_MAX_NS;
        self.now_ns =
            if refused { expected_ns } else { wall_ns.max(self.now_ns.saturating_add(elapsed_ns / 2)) };
        self.monotonic_ns = self.monotonic_ns.max(monotonic_ns);
        let newly_refused_ns = (refused && !self.refusing).then_some(ahead_ns);
        self.refusing = refused;
        Reading { now_ns: self.now_ns, newly_refused_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::{Clock, FORWARD_JUMP_MAX_NS, Timeline};

    const HOUR: u64 = FORWARD_JUMP_MAX_NS;

    /// What the wall and the monotonic clock read, the time that holds, and whether the jump is reported.
    type Step = (u64, u64, u64, bool);

    #[test]
    fn timelines() {
        let day = 24 * HOUR;
        let stories: &[(&str, &[Step])] = &[
            ("both agree", &[(day + 10, 10, day + 10, false), (day + 20, 20, day + 20, false)]),
            (
                "a small jump is followed",
                &[(day + HOUR, 0, day + HOUR, false), (day + HOUR + 5, 5, day + HOUR + 5, false)],
            ),
            (
                "a large jump is refused, reported once, and undone",
                &[
                    (day + HOUR + 11, 10, day + 10, true),
                    (day + HOUR + 21, 20, day + 20, false),
                    (day + 30, 30, day + 30, false),
                    (2 * day, 40, day + 40, true),
                ],
            ),
            (
                "a clock set back is waited for at half speed",
                &[
                    (day - 100, 10, day + 5, false),
                    (day - 90, 20, day + 10, false),
                    (day + 50, 160, day + 80, false),
                    (day + 110, 220, day + 110, false),
                ],
            ),
            ("the same instant twice", &[(day, 0, day, false), (day, 0, day, false)]),
        ];
        for (story, steps) in stories {
            let mut timeline = Timeline::new(day, 0);
            let mut last_ns = 0;
            for (step, (wall_ns, monotonic_ns, now_ns, reported)) in steps.iter().enumerate() {
                let reading = timeline.advance(*wall_ns, *monotonic_ns);
                assert_eq!(reading.now_ns, *now_ns, "{story}, step {step}");
                assert_eq!(reading.newly_refused_ns.is_some(), *reported, "{story}, step {step}");
                assert!(reading.now_ns >= last_ns, "{story}, step {step}");
                last_ns = reading.now_ns;
            }
        }
    }

    #[test]
    fn the_real_clock_never_goes_back() {
        let clock = Clock::new();
        let readings: Vec<u64> = (0..1000).map(|_| clock.now_ms()).collect();
        assert!(readings.is_sorted() && readings[0] > 1_600_000_000_000);
    }
}
