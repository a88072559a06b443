//! The way in: reserve first, append then.
//!
//! A caller changes its own memory together with the append, so an append must not fail for lack of space.
//! Therefore [`Log::appender`] reserves room in the segment and waits for room in the buffer before it hands
//! out the guard; with the guard in hand only a poisoned log refuses.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use parking_lot::RwLockReadGuard;

use super::frame::{self, RECORD_OVERHEAD_BYTES_MAX};
use super::options::spare_bytes;
use super::roll::{Active, Reason};
use super::{Log, LogError};

/// The right to append. While any lives the segment stays the same: its room is reserved there.
pub struct Appender<'log> {
    log: &'log Log,
    active: RwLockReadGuard<'log, Active>,
    /// Taken from `Log::reserved`, given back in full at the end: what was appended counts in `Log::end` by
    /// then.
    reserved: u64,
    left: Cell<u64>,
}

/// Why there is no appender right now.
pub(super) enum Refused {
    /// The segment of this number has no room for it.
    NoRoom { number: u64 },
    /// There is room, but others reserved it.
    Reserved,
}

impl Log {
    /// Reserves room for one record of `max_bytes`; for each further record the caller adds
    /// [`RECORD_OVERHEAD_BYTES_MAX`].
    ///
    /// Waits while the pending buffer is full, and rolls when the segment has no room; fails with
    /// [`LogError::Full`] when there is no space for another. A thread holds at most one appender at a
    /// time, and drops it before it calls anything that rolls, prepares or frees segments.
    pub fn appender(&self, max_bytes: usize) -> Result<Appender<'_>, LogError> {
        self.appender_within(max_bytes, Log::without_spare)
    }

    /// The same for what must be said before anything can be freed: it may take the last of a segment, which is kept for that.
    pub fn spare_appender(&self, max_bytes: usize) -> Result<Appender<'_>, LogError> {
        self.appender_within(max_bytes, |capacity| capacity)
    }

    /// How much of a segment is kept for [`Log::spare_appender`].
    pub fn spare_bytes(&self) -> u64 {
        spare_bytes(self.options.segment_bytes)
    }

    fn without_spare(capacity: u64) -> u64 {
        capacity - spare_bytes(capacity)
    }

    fn appender_within(
        &self,
        max_bytes: usize,
        usable: impl Fn(u64) -> u64,
    ) -> Result<Appender<'_>, LogError> {
        let limit = self.options.record_bytes_max();
        if max_bytes > limit {
            return Err(LogError::TooLarge { bytes: max_bytes, limit });
        }
        let need = (max_bytes + RECORD_OVERHEAD_BYTES_MAX) as u64;
        loop {
            self.check_poison()?;
            self.wait_for_buffer(need)?;
            match self.try_appender(need, &usable) {
                Ok(appender) => return Ok(appender),
                Err(Refused::NoRoom { number }) => {
                    self.roll(Reason::NoRoom { number })?;
                }
                // Passing the gate once alone is waiting until all of them are used or given back.
                Err(Refused::Reserved) => drop(self.gate.write()),
            }
        }
    }

    pub(super) fn try_appender(
        &self,
        need: u64,
        usable: impl Fn(u64) -> u64,
    ) -> Result<Appender<'_>, Refused> {
        let active = self.gate.read();
        let capacity = usable(active.capacity);
        // First the reservations, then the end: an appender that is gone from the former is in the latter.
        let reserved = self.reserved.fetch_add(need, Ordering::AcqRel) + need;
        let used = frame::align(self.end()) - active.base;
        if used + reserved <= capacity {
            return Ok(Appender { log: self, active, reserved: need, left: Cell::new(need) });
        }
        self.reserved.fetch_sub(need, Ordering::AcqRel);
        if used + need > capacity {
            Err(Refused::NoRoom { number: active.number })
        } else {
            Err(Refused::Reserved)
        }
    }

    fn wait_for_buffer(&self, need: u64) -> Result<(), LogError> {
        let buffered = self.end().saturating_sub(self.pending_start.load(Ordering::Acquire));
        let reserved = self.reserved.load(Ordering::Acquire);
        if buffered > 0 && buffered + reserved + need > self.options.buffer_limit_bytes {
            self.write_out()?;
        }
        Ok(())
    }
}

impl Appender<'_> {
    /// The number of the segment this appends to.
    pub fn segment(&self) -> u64 {
        self.active.number
    }

    /// Appends one record, given in parts, and returns the offset of its end. It is neither written nor
    /// durable yet: see [`Log::commit`].
    pub fn append(&self, parts: &[&[u8]]) -> Result<u64, LogError> {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        let need = (length + RECORD_OVERHEAD_BYTES_MAX) as u64;
        let Some(left) = self.left.get().checked_sub(need) else {
            let limit = (self.left.get() as usize).saturating_sub(RECORD_OVERHEAD_BYTES_MAX);
            return Err(LogError::TooLarge { bytes: length, limit });
        };
        self.log.check_poison()?;
        self.left.set(left);
        let mut pending = self.log.pending.lock();
        let end = pending.push(parts, length);
        self.log.end.store(end, Ordering::Release);
        Ok(end)
    }

    /// Opens a frame without a record, whose testimony covers everything durable when it is written.
    pub(super) fn append_testimony(&self) {
        let mut pending = self.log.pending.lock();
        let end = pending.open_frame();
        self.log.end.store(end, Ordering::Release);
    }
}

impl Drop for Appender<'_> {
    fn drop(&mut self) {
        // Before the gate opens: whoever holds it exclusively sees no reservation.
        self.log.reserved.fetch_sub(self.reserved, Ordering::AcqRel);
    }
}
