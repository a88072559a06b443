//! What was counted while time was cut in another way.
//!
//! A policy may cut time anew at any moment: another zone, another day on which months begin, coarser or finer buckets. What was counted
//! stays counted. Of a bucket of the old cut only its sum is known, not when in it things happened; so all of it goes where the latest of
//! them may have happened. A limit then never admits more than it would have, and may admit less, until what was moved has left the window. What
//! was taken back (a bucket with a negative sum) goes where the earliest of it may have happened, for the same reason.

use super::Frame;

/// From one cut to another.
#[derive(Clone, Copy, Debug)]
pub struct Recut<'a> {
    /// How time was cut. Its zone may be a name without offsets.
    pub from: &'a Frame,
    /// How it is cut now.
    pub to: &'a Frame,
    /// Nothing was counted after this.
    pub latest_ms: u64,
}

impl Recut<'_> {
    /// Where the bucket begins that takes in what is in the old one from `start_ms` on, if all of that is taken as late as can be. The
    /// old one ends where the next one begins that something is in, at the latest.
    pub fn latest(&self, start_ms: u64, next_ms: Option<u64>) -> u64 {
        let end_ms = self.from.ended_by(start_ms).min(next_ms.unwrap_or(u64::MAX));
        let last_ms = end_ms.saturating_sub(1).min(self.latest_ms).max(start_ms);
        self.to.bucket(last_ms).start
    }

    /// The same if it is taken as early as can be.
    pub fn earliest(&self, start_ms: u64) -> u64 {
        self.to.bucket(start_ms).start
    }
}
