//! From one segment to the next. The switch itself touches memory only: the rest of the old segment and the
//! header of the new one are left to whoever writes next, so appenders never wait for a sync here.

use std::sync::atomic::Ordering;

use super::{Log, LogError};

/// The share of a segment that is left free by a roll in time, so that appenders rarely find no room.
const HEADROOM_SHARE: u64 = 16;

/// The segment that takes appends.
#[derive(Clone, Copy)]
pub(super) struct Active {
    pub(super) number: u64,
    pub(super) base: u64,
    pub(super) capacity: u64,
}

/// Why to roll; checked again once it is this thread's turn.
pub(super) enum Reason {
    /// The end passed the threshold.
    NearlyFull,
    /// A reservation does not fit into the segment of this number.
    NoRoom { number: u64 },
}

/// The end from which on a segment is nearly full.
pub(super) fn threshold(base: u64, capacity: u64) -> u64 {
    base + capacity - capacity / HEADROOM_SHARE
}

impl Log {
    /// Goes on to the next segment when the current one is nearly full, and says whether it did. Callers do
    /// this after dropping their appender. Lack of space for the next segment is no error yet: the current
    /// one is used to its end, and [`Log::appender`] refuses then.
    pub fn roll_if_full(&self) -> Result<bool, LogError> {
        if self.end() < self.roll_at.load(Ordering::Acquire) {
            return Ok(false);
        }
        match self.roll(Reason::NearlyFull) {
            Err(LogError::Full(_)) => Ok(false),
            result => result,
        }
    }

    /// Makes the next segment ready ahead of time: an old one again, or a new one filled with zeros. A
    /// failure loses nothing.
    pub fn prepare_next(&self) -> Result<(), LogError> {
        let mut pool = self.pool.lock();
        let result = pool.prepare();
        self.full.store(matches!(result, Err(LogError::Full(_))), Ordering::Release);
        result
    }

    /// Frees the segments that lie wholly below `offset`. The few next to be needed are kept, the others
    /// deleted.
    pub fn free_below(&self, offset: u64) -> Result<(), LogError> {
        let result = self.pool.lock().free_below(offset, self.durable());
        if result.as_ref().is_ok_and(|freed| *freed > 0) {
            // What was kept, or the space of what was deleted, makes the next one possible.
            self.full.store(false, Ordering::Release);
            self.want_preparation();
        }
        result.map(|_| ())
    }

    pub(super) fn roll(&self, reason: Reason) -> Result<bool, LogError> {
        let has_preparer = self.has_preparer.load(Ordering::Acquire);
        if has_preparer && self.full.load(Ordering::Acquire) {
            // Tried again once a second in the background: not by every request that is refused.
            let mebibytes = self.options.segment_bytes.div_ceil(1 << 20);
            return Err(LogError::Full(format!("the log needs {mebibytes} MiB for its next segment").into()));
        }
        let mut pool = match reason {
            // Whoever is at it rolls, or makes the next segment ready for the one who comes then.
            Reason::NearlyFull => match self.pool.try_lock() {
                Some(pool) => pool,
                None => return Ok(false),
            },
            Reason::NoRoom { .. } => self.pool.lock(),
        };
        self.check_poison()?;
        let due = match reason {
            Reason::NearlyFull => self.end() >= self.roll_at.load(Ordering::Acquire),
            Reason::NoRoom { number } => pool.active_number() == number,
        };
        if !due {
            return Ok(false);
        }
        if !pool.has_prepared() && has_preparer && matches!(reason, Reason::NearlyFull) {
            self.want_preparation();
            return Ok(false);
        }
        let next = pool.take_next();
        self.full.store(matches!(next, Err(LogError::Full(_))), Ordering::Release);
        let next = next?;
        // One sealed rest at a time. No other comes to be before the switch: that takes the pool.
        if self.pending.lock().has_sealed() {
            self.write_out()?;
        }
        let (number, capacity) = (next.number, next.capacity);

        let mut active = self.gate.write();
        let mut pending = self.pending.lock();
        let (base, start) = pending.seal(next);
        *active = Active { number, base, capacity };
        self.end.store(start, Ordering::Release);
        self.pending_start.store(start, Ordering::Release);
        self.roll_at.store(threshold(base, capacity), Ordering::Release);
        drop(pending);
        drop(active);

        pool.push_live(number, base);
        self.want_preparation();
        Ok(true)
    }
}
