//! What was counted in buckets that are no longer kept, as far as a limit has to know it.
//!
//! Buckets are dropped once nobody can ask for them, and then somebody asks: a policy, or a call, with a longer window than any before. What
//! was dropped must count there too. Of each dropped bucket its end and its sum are noted; the longer ago it is, the more of them are put
//! together, under the end of the last one. So what is noted counts as late as it can have happened or later: a limit never
//! admits more than it should, and may admit less, by what happened up to about twice as long ago as the window reaches.
//!
//! A bucket with a negative sum is not noted. What was taken back there would make room in a window that does not reach back
//! to what it was taken back from.

use crate::varint;

/// The most spans that are noted: half a kilobyte. Any two together are longer than the later of them is ago, so that reaches some 60,000 times
/// as far back as buckets are kept; what is older is put together with the oldest.
pub const SPANS_MAX: usize = 32;

/// See the head of this file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// When the last of it may have happened (before this), and how much it was at most; ascending, all of them positive.
    spans: Vec<(u64, i64)>,
}

impl Past {
    /// So much was counted before `end_ms`, and is no longer kept at `now_ms`.
    pub fn note(&mut self, end_ms: u64, sum: i64, now_ms: u64) {
        if sum <= 0 {
            return;
        }
        let end_ms = end_ms.max(1);
        let at = self.spans.partition_point(|(known_ms, _)| *known_ms < end_ms);
        match self.spans.get_mut(at) {
            // What came late belongs to what ends behind it. What does not fit is more than any limit.
            Some((_, known)) => *known = known.saturating_add(sum),
            None => self.spans.push((end_ms, sum)),
        }
        self.thin(now_ms);
    }

    /// At most so much of it was counted at `from_ms` or later.
    pub fn since(&self, from_ms: u64) -> i128 {
        self.reaching(from_ms).iter().map(|(_, sum)| i128::from(*sum)).sum()
    }

    /// Before when the first of that was counted.
    pub fn first_end_ms(&self, from_ms: u64) -> Option<u64> {
        self.reaching(from_ms).first().map(|(end_ms, _)| *end_ms)
    }

    /// Since when everything is kept, if anything is noted.
    pub fn end_ms(&self) -> Option<u64> {
        self.spans.last().map(|(end_ms, _)| *end_ms)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.spans.capacity() * size_of::<(u64, i64)>()
    }

    /// Appends its bytes: how many spans; for each the distance of its end from the one before, and the sum.
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        varint::put(out, self.spans.len() as u64);
        let mut before_ms = 0;
        for (end_ms, sum) in &self.spans {
            varint::put(out, end_ms - before_ms);
            varint::put_signed(out, *sum);
            before_ms = *end_ms;
        }
    }

    /// Takes it off the front. Nothing if [`put`](Past::put) would not write exactly these bytes.
    pub(super) fn read(bytes: &mut &[u8]) -> Option<Past> {
        let count = usize::try_from(varint::read(bytes)?).ok().filter(|count| *count <= SPANS_MAX)?;
        let mut spans: Vec<(u64, i64)> = Vec::with_capacity(count);
        let mut before_ms: u64 = 0;
        for _ in 0..count {
            let end_ms =
                varint::read(bytes).filter(|distance_ms| *distance_ms > 0)?.checked_add(before_ms)?;
            spans.push((end_ms, varint::read_signed(bytes).filter(|sum| *sum > 0)?));
            before_ms = end_ms;
        }
        Some(Past { spans })
    }

    fn reaching(&self, from_ms: u64) -> &[(u64, i64)] {
        &self.spans[self.spans.partition_point(|(end_ms, _)| *end_ms <= from_ms)..]
    }

    /// Puts two spans together where both are no longer than the later of them is ago. When the first of all began nobody knows.
    fn thin(&mut self, now_ms: u64) {
        let mut at = 2;
        while at < self.spans.len() {
            let ((begin_ms, _), (end_ms, _)) = (self.spans[at - 2], self.spans[at]);
            match end_ms - begin_ms <= now_ms.saturating_sub(end_ms) {
                true => self.join(at),
                false => at += 1,
            }
        }
        while self.spans.len() > SPANS_MAX {
            self.join(1);
        }
    }

    /// Puts a span together with the one before it.
    fn join(&mut self, at: usize) {
        let (_, sum) = self.spans.remove(at - 1);
        let joined = &mut self.spans[at - 1].1;
        *joined = joined.saturating_add(sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second for each of ten days: what is asked for is never less than what was, and little more.
    #[test]
    fn what_is_noted_is_never_less_than_there_was() {
        let (mut past, seconds) = (Past::default(), 864_000u64);
        for second in 1..=seconds {
            past.note(second * 1_000, 1, (second + 2) * 1_000);
            assert!(past.spans.len() <= SPANS_MAX);
        }
        for last in [1, 7, 60, 3_600, 86_400, 500_000, seconds] {
            let noted = past.since((seconds - last) * 1_000);
            assert!((i128::from(last)..=3 * i128::from(last) + 3).contains(&noted), "{noted} in {last}");
        }
        assert_eq!(past.since(0), i128::from(seconds));
        assert_eq!(past.since(seconds * 1_000), 0);
    }

    #[test]
    fn what_came_late_or_was_taken_back_makes_no_room() {
        let mut past = Past::default();
        past.note(5_000, 3, 6_000);
        past.note(4_999, 2, 6_000);
        past.note(6_000, -9, 6_000);
        past.note(7_000, i64::MAX, 7_000);
        assert_eq!(past.spans, [(5_000, 5), (7_000, i64::MAX)]);
        assert_eq!((past.first_end_ms(4_999), past.first_end_ms(5_000)), (Some(5_000), Some(7_000)));
    }
}
