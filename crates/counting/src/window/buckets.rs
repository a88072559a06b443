//! The buckets of one windowed counter.

use std::ops::Range;

use super::{Frame, Past, Recut};
use crate::varint;

/// The most buckets one windowed counter keeps: 64 KiB, and a sum over all of them takes a few microseconds.
/// That is an hour in seconds, a day in half minutes, or eleven years of days.
pub const BUCKETS_MAX: usize = 4096;

/// Sums by the time their bucket starts. Buckets without a sum are not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buckets {
    /// Start and sum, by start, none with sum 0.
    sums: Vec<(u64, i64)>,
    /// What was counted in buckets that are no longer here. Nothing where it was not noted: before there were limits that had to know it.
    past: Option<Past>,
}

/// Why something was not added. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BucketRefusal {
    /// The sum of the bucket would not fit 64 bits.
    #[error("the sum of the bucket does not fit 64 bits")]
    Overflow,
    /// There are [`BUCKETS_MAX`] buckets, all of them later.
    #[error("the bucket lies before all that are kept, and no more fit")]
    TooOld,
}

impl Buckets {
    /// From here on it is noted what is dropped. So much was before, all of it before `end_ms`.
    pub fn remember(&mut self, end_ms: u64, sum: i64) {
        let mut past = Past::default();
        past.note(end_ms, sum, end_ms);
        self.past = Some(past);
    }

    /// What was dropped, where that is noted.
    pub fn past(&self) -> Option<&Past> {
        self.past.as_ref()
    }

    /// Forgets all that was counted, the dropped as well.
    pub fn empty(&mut self) {
        *self = Buckets { sums: Vec::new(), past: self.past.as_ref().map(|_| Past::default()) };
    }

    /// Adds `delta` to the bucket that starts at `start_ms`. When there are too many, the oldest is dropped;
    /// that is never one that counts, as long as the frame has no [`problem`](super::Frame::problem).
    pub fn add(&mut self, start_ms: u64, delta: i64) -> Result<(), BucketRefusal> {
        match self.sums.binary_search_by_key(&start_ms, |(start_ms, _)| *start_ms) {
            Ok(at) => match self.sums[at].1.checked_add(delta).ok_or(BucketRefusal::Overflow)? {
                0 => {
                    self.sums.remove(at);
                    self.trim();
                }
                sum => self.sums[at].1 = sum,
            },
            Err(_) if delta == 0 => {}
            Err(0) if self.sums.len() == BUCKETS_MAX => return Err(BucketRefusal::TooOld),
            Err(at) if self.sums.len() == BUCKETS_MAX => {
                let (_, dropped) = self.sums[0];
                let next_ms = self.sums.get(1).filter(|_| at > 1).map_or(start_ms, |(next_ms, _)| *next_ms);
                if let Some(past) = &mut self.past {
                    let newest_ms =
                        self.sums.last().map_or(start_ms, |(newest_ms, _)| start_ms.max(*newest_ms));
                    // It ended where the next one begins, at the latest.
                    past.note(next_ms, dropped, newest_ms);
                }
                self.sums[..at].rotate_left(1);
                self.sums[at - 1] = (start_ms, delta);
            }
            Err(at) => {
                if self.sums.len() == self.sums.capacity() {
                    // By a quarter and not to the double: most counters keep as many as their window has.
                    self.sums.reserve_exact((self.sums.len() / 4).max(1));
                }
                self.sums.insert(at, (start_ms, delta));
            }
        }
        Ok(())
    }

    /// Adds `delta` to the bucket of this time. Where time was cut more finely before, what lies in it becomes part of it.
    pub fn gather(&mut self, bucket_ms: Range<u64>, delta: i64) -> Result<(), BucketRefusal> {
        let sum = self.gathered(bucket_ms.clone(), delta)?;
        self.sums.drain(self.places(&bucket_ms));
        self.add(bucket_ms.start, sum)
    }

    /// What the bucket of this time would have then.
    pub fn gathered(&self, bucket_ms: Range<u64>, delta: i64) -> Result<i64, BucketRefusal> {
        let places = self.places(&bucket_ms);
        if places.start == 0 && self.sums.len() - places.len() >= BUCKETS_MAX {
            return Err(BucketRefusal::TooOld);
        }
        i64::try_from(self.sum(bucket_ms) + i128::from(delta)).map_err(|_| BucketRefusal::Overflow)
    }

    /// The same sums in buckets of another cut. They are never more.
    pub fn recut(&self, recut: &Recut<'_>) -> Buckets {
        let mut sums: Vec<(u64, i64)> = Vec::with_capacity(self.sums.len());
        for (index, &(start_ms, sum)) in self.sums.iter().enumerate() {
            let next_ms = self.sums.get(index + 1).map(|(next_ms, _)| *next_ms);
            let start_ms = if sum < 0 { recut.earliest(start_ms) } else { recut.latest(start_ms, next_ms) };
            match sums.last_mut() {
                // What does not fit is more than any limit.
                Some((last_ms, last)) if *last_ms >= start_ms => *last = last.saturating_add(sum),
                _ => sums.push((start_ms, sum)),
            }
        }
        sums.retain(|(_, sum)| *sum != 0);
        Buckets { sums, past: self.past.clone() }
    }

    /// The sum of all buckets that start within `range_ms`.
    pub fn sum(&self, range_ms: Range<u64>) -> i128 {
        self.within(range_ms).iter().map(|(_, sum)| i128::from(*sum)).sum()
    }

    /// Start and sum of the buckets that start within `range_ms`, the oldest first; those without a sum are left
    /// out.
    pub fn iter(&self, range_ms: Range<u64>) -> impl DoubleEndedIterator<Item = (u64, i64)> + '_ {
        self.within(range_ms).iter().copied()
    }

    /// Drops all buckets that start before `at_ms`; `frame` is how they are cut.
    pub fn forget_before(&mut self, at_ms: u64, frame: &Frame) {
        let old = self.sums.partition_point(|(start_ms, _)| *start_ms < at_ms);
        if old == 0 {
            return;
        }
        if let Some(past) = &mut self.past {
            let newest_ms = self.sums.last().map_or(at_ms, |(newest_ms, _)| at_ms.max(*newest_ms));
            for (index, (start_ms, sum)) in self.sums[..old].iter().enumerate() {
                let next_ms = self.sums.get(index + 1).map_or(u64::MAX, |(next_ms, _)| *next_ms);
                past.note(frame.ended_by(*start_ms).min(next_ms), *sum, newest_ms);
            }
        }
        self.sums.drain(..old);
        self.trim();
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.sums.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.sums.is_empty()
    }

    /// What they cost, themselves included.
    pub fn memory_bytes(&self) -> usize {
        let past = self.past.as_ref().map_or(0, Past::memory_bytes);
        size_of::<Buckets>() + self.sums.capacity() * size_of::<(u64, i64)>() + past
    }

    /// Appends their bytes: how many; for each the distance from the one before, less one (of the first: from
    /// 1970), and the sum. Behind them, where it is noted, what was dropped.
    pub fn put(&self, out: &mut Vec<u8>) {
        varint::put(out, self.sums.len() as u64);
        let mut next_ms = 0;
        for (start_ms, sum) in &self.sums {
            varint::put(out, start_ms - next_ms);
            varint::put_signed(out, *sum);
            next_ms = start_ms.saturating_add(1);
        }
        if let Some(past) = &self.past {
            past.put(out);
        }
    }

    /// From all of `bytes`. Nothing if [`put`](Buckets::put) would not write exactly these.
    pub fn read(mut bytes: &[u8]) -> Option<Buckets> {
        let bytes = &mut bytes;
        let count = usize::try_from(varint::read(bytes)?).ok().filter(|count| *count <= BUCKETS_MAX)?;
        // A bucket has two bytes at least: a count that lies takes no memory.
        let mut sums: Vec<(u64, i64)> = Vec::with_capacity(count.min(bytes.len() / 2));
        let mut next_ms = Some(0);
        for _ in 0..count {
            let start_ms = varint::read(bytes)?.checked_add(next_ms?)?;
            let sum = varint::read_signed(bytes).filter(|sum| *sum != 0)?;
            sums.push((start_ms, sum));
            next_ms = start_ms.checked_add(1);
        }
        let past = if bytes.is_empty() { None } else { Some(Past::read(bytes)?) };
        bytes.is_empty().then_some(Buckets { sums, past })
    }

    fn within(&self, range_ms: Range<u64>) -> &[(u64, i64)] {
        &self.sums[self.places(&range_ms)]
    }

    fn places(&self, range_ms: &Range<u64>) -> Range<usize> {
        let place = |at_ms| self.sums.partition_point(|(start_ms, _)| *start_ms < at_ms);
        let end = place(range_ms.end);
        place(range_ms.start).min(end)..end
    }

    /// Gives back memory when more than a third of it is free.
    fn trim(&mut self) {
        if self.sums.capacity() > self.sums.len() + self.sums.len() / 2 {
            self.sums.shrink_to(self.sums.len() + self.sums.len() / 4);
        }
    }
}
