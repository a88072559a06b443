//! Windows: sums in buckets of time, and how much of a limit is used.
//!
//! A [`Frame`] says how time is cut, [`Buckets`] are what a windowed counter keeps, [`usage`] puts both together.
//!
//! | frame | what counts at a time | who never gets more than the limit |
//! |---|---|---|
//! | sliding | the buckets of the last `span_ms`, the one that is leaving included | any interval of `span_ms` |
//! | fixed | since the last multiple of `span_ms` after 1970 | each window; around a boundary twice the limit |
//! | calendar | since the local day, week or month began | each window; around a boundary twice the limit |
//!
//! A sliding window is thus cautious: a bucket counts in full until all of it is older than the span, so
//! what it counts is the sum over the span and at most one bucket more. Smaller buckets are more exact and
//! cost more memory.

mod buckets;
mod calendar;
mod past;
mod recut;

use std::ops::Range;

pub use buckets::{BUCKETS_MAX, BucketRefusal, Buckets};
pub use calendar::{OFFSETS_MAX, Unit, ZONE_NAME_BYTES_MAX, Zone};
pub use past::{Past, SPANS_MAX};
pub use recut::Recut;

const HOUR_MS: u64 = 3_600_000;

/// How time is cut. Times are UTC milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The last `span_ms`, in buckets of `bucket_ms`.
    Sliding {
        /// How far back events count.
        span_ms: u64,
        /// How finely that is cut.
        bucket_ms: u64,
    },
    /// Windows of `span_ms`, one after the other.
    Fixed {
        /// How long a window is.
        span_ms: u64,
    },
    /// Days, weeks or months of a place on earth.
    Calendar {
        /// Which of them.
        unit: Unit,
        /// Where they begin. Month: the day, 1 to 31, or the last one of a shorter month. Week: 1 (Monday) to 7.
        /// Day: 0.
        anchor: u8,
        /// Whose clocks count.
        zone: Zone,
    },
}

impl Frame {
    /// What is wrong with it and what to do, if anything. A frame with a problem still answers every question
    /// below without a panic: no time is taken for one millisecond, an anchor out of range for the nearest.
    pub fn problem(&self) -> Option<&'static str> {
        match self {
            Frame::Sliding { span_ms: 0, .. } | Frame::Fixed { span_ms: 0 } => {
                Some("a window must last at least a millisecond")
            }
            Frame::Sliding { bucket_ms: 0, .. } => Some("a bucket must last at least a millisecond"),
            Frame::Sliding { span_ms, bucket_ms } if bucket_ms > span_ms => {
                Some("a bucket must not last longer than its window")
            }
            // One more than fit the span: the oldest and the newest are partly in it.
            Frame::Sliding { span_ms, bucket_ms } if span_ms.div_ceil(*bucket_ms) >= BUCKETS_MAX as u64 => {
                Some("a window must have fewer than 4096 buckets: choose longer ones")
            }
            Frame::Calendar { unit: Unit::Day, anchor: 1.., .. } => {
                Some("days begin at midnight: their anchor must be 0")
            }
            Frame::Calendar { unit: Unit::Week, anchor: 0 | 8.., .. } => {
                Some("a week begins on a day from 1 (Monday) to 7 (Sunday)")
            }
            Frame::Calendar { unit: Unit::Month, anchor: 0 | 32.., .. } => {
                Some("a month begins on a day from 1 to 31")
            }
            _ => None,
        }
    }

    /// Whether both cut time at the same places. Zones of the same name are the same: a counter does not keep their offsets.
    pub fn cuts_like(&self, other: &Frame) -> bool {
        match (self, other) {
            (
                Frame::Calendar { unit, anchor, zone },
                Frame::Calendar { unit: unit_too, anchor: anchor_too, zone: zone_too },
            ) => (unit, anchor, zone.name()) == (unit_too, anchor_too, zone_too.name()),
            (Frame::Calendar { .. }, _) | (_, Frame::Calendar { .. }) => false,
            (
                Frame::Sliding { bucket_ms: length_ms, .. } | Frame::Fixed { span_ms: length_ms },
                Frame::Sliding { bucket_ms: length_too, .. } | Frame::Fixed { span_ms: length_too },
            ) => length_ms == length_too,
        }
    }

    /// The same with a zone that tells what its clocks show around `at_ms`, in the years before, and no more.
    pub fn around(&self, at_ms: u64) -> Frame {
        match self {
            Frame::Calendar { unit, anchor, zone } => {
                Frame::Calendar { unit: *unit, anchor: *anchor, zone: zone.around(at_ms) }
            }
            other => other.clone(),
        }
    }

    /// The bucket that `at_ms` counts into; of fixed and calendar frames, the whole window. Buckets lie side by
    /// side and together cover all times; the one that time begins in is cut off at 0.
    pub fn bucket(&self, at_ms: u64) -> Range<u64> {
        match self {
            Frame::Sliding { bucket_ms: length_ms, .. } | Frame::Fixed { span_ms: length_ms } => {
                let length_ms = (*length_ms).max(1);
                let start_ms = at_ms - at_ms % length_ms;
                start_ms..start_ms.saturating_add(length_ms)
            }
            Frame::Calendar { unit, anchor, zone } => calendar::period(*unit, *anchor, zone, at_ms),
        }
    }

    /// By when a bucket that begins at `start_ms` has ended. Where the zone is known by name alone, that is the longest that such a bucket can
    /// be: clocks are put back by an hour or two, and weeks and months have 7 and 31 days at most.
    pub fn ended_by(&self, start_ms: u64) -> u64 {
        let longest_ms = match self {
            Frame::Calendar { unit, zone, .. } if zone.name() != "UTC" => match unit {
                Unit::Day => 26 * HOUR_MS,
                Unit::Week => (7 * 24 + 2) * HOUR_MS,
                Unit::Month => (31 * 24 + 2) * HOUR_MS,
            },
            exactly => return exactly.bucket(start_ms).end,
        };
        start_ms.saturating_add(longest_ms)
    }

    /// What counts at `now_ms`, as the starts of buckets. Sliding: every bucket of which any part lies within the
    /// last `span_ms`, so that no interval of that length holds more than a limit. Fixed and calendar: the
    /// current one.
    pub fn window(&self, now_ms: u64) -> Range<u64> {
        match self {
            Frame::Sliding { span_ms, .. } => self.last(*span_ms, now_ms),
            Frame::Fixed { .. } | Frame::Calendar { .. } => self.bucket(now_ms),
        }
    }

    /// The buckets of which any part lies within the last `span_ms`: after `now_ms - span_ms`, up to and
    /// including `now_ms`.
    pub fn last(&self, span_ms: u64, now_ms: u64) -> Range<u64> {
        let first_ms = now_ms.saturating_sub(span_ms.max(1) - 1);
        self.bucket(first_ms).start..self.bucket(now_ms).end
    }

    /// How long until less is used: until the bucket that begins at `oldest_ms`, the oldest of the window, leaves
    /// it; of fixed and calendar frames, until the window ends. A sliding window without buckets says its span.
    pub fn reset_ms(&self, oldest_ms: Option<u64>, now_ms: u64) -> u64 {
        match (self, oldest_ms) {
            (Frame::Sliding { span_ms, .. }, None) => *span_ms,
            (Frame::Sliding { span_ms, .. }, Some(oldest_ms)) => {
                let last_ms = self.bucket(oldest_ms).end - 1;
                last_ms.saturating_add(*span_ms).saturating_sub(now_ms)
            }
            (Frame::Fixed { .. } | Frame::Calendar { .. }, _) => {
                self.bucket(now_ms).end.saturating_sub(now_ms)
            }
        }
    }
}

/// How much of a limit is used, and until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// What counts now.
    pub used: i128,
    /// See [`Frame::reset_ms`].
    pub reset_ms: u64,
}

/// What counts at `now_ms`: what is in the buckets of the window, and as much as can have been in those of them that were dropped.
pub fn usage(frame: &Frame, buckets: &Buckets, now_ms: u64) -> Usage {
    let window = frame.window(now_ms);
    let dropped = buckets.past().map_or(0, |past| past.since(window.start));
    let dropped_ms = buckets.past().and_then(|past| past.first_end_ms(window.start));
    let oldest_ms = dropped_ms
        .map(|end_ms| end_ms.saturating_sub(1))
        .or_else(|| buckets.iter(window.clone()).next().map(|(start_ms, _)| start_ms));
    Usage { used: buckets.sum(window) + dropped, reset_ms: frame.reset_ms(oldest_ms, now_ms) }
}
