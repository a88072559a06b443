//! Uniques by time: a sketch for each bucket, and the number of different items of several.

use std::borrow::Cow;
use std::ops::Range;

use crate::unique::Unique;
use crate::window::Recut;

/// Sketches by time are large: so many buckets of them are kept at most.
pub const VISITOR_BUCKETS_MAX: usize = 400;

/// What was seen when.
#[derive(Clone, Debug, Default)]
pub struct Visitors {
    /// By the start of the bucket, ascending.
    sketches: Vec<(u64, Unique)>,
    /// All that was seen in the buckets from this start on, for who asks again for the same ones. No part of what is counted: it is made of
    /// the sketches, and not stored.
    united: Option<Box<(u64, Unique)>>,
}

impl PartialEq for Visitors {
    fn eq(&self, other: &Visitors) -> bool {
        self.sketches == other.sketches
    }
}

impl Eq for Visitors {}

impl Visitors {
    /// Of sketches by the start of their bucket, ascending. Nothing if they are not, or too many.
    pub fn new(sketches: Vec<(u64, Unique)>) -> Option<Visitors> {
        let is_ordered = sketches.is_sorted_by(|(a_ms, _), (b_ms, _)| a_ms < b_ms);
        let fits = sketches.len() <= VISITOR_BUCKETS_MAX;
        (is_ordered && fits).then_some(Visitors { sketches, united: None })
    }

    /// The buckets with their sketches.
    pub fn iter(&self) -> std::slice::Iter<'_, (u64, Unique)> {
        self.sketches.iter()
    }

    /// The buckets that start within `range_ms`.
    pub fn within(&self, range_ms: &Range<u64>) -> &[(u64, Unique)] {
        &self.sketches[self.places(range_ms)]
    }

    /// What was seen within `range_ms`.
    pub fn seen(&self, range_ms: &Range<u64>) -> Cow<'_, Unique> {
        match self.within(range_ms) {
            [] => Cow::Owned(Unique::new()),
            [(_, unique)] => Cow::Borrowed(unique),
            several => Cow::Owned(unite(several)),
        }
    }

    /// What was seen from `from_ms` on. Many buckets are added up once, and kept so for who asks again.
    pub fn seen_since(&mut self, from_ms: u64) -> &Unique {
        let known = self.united.take().filter(|united| united.0 == from_ms);
        let united = known.unwrap_or_else(|| Box::new((from_ms, unite(self.within(&(from_ms..u64::MAX))))));
        &self.united.insert(united).1
    }

    /// The same, where it is known already.
    pub fn known_since(&self, from_ms: u64) -> Option<&Unique> {
        self.united.as_deref().filter(|united| united.0 == from_ms).map(|united| &united.1)
    }

    /// Whether what is seen in this bucket finds room.
    pub fn has_room_for(&self, bucket_ms: &Range<u64>) -> bool {
        let places = self.places(bucket_ms);
        places.start > 0 || self.sketches.len() - places.len() < VISITOR_BUCKETS_MAX
    }

    /// These were seen in a bucket. Where time was cut more finely before, what lies in it becomes part of it. What lies before `from_ms` is
    /// forgotten, and the oldest where there are too many.
    pub fn observe(&mut self, bucket_ms: Range<u64>, from_ms: u64, hashes: &[u64]) {
        let places = self.places(&bucket_ms);
        let at = places.start;
        let mut before = self.sketches.drain(places).map(|(_, unique)| unique);
        let mut unique = before.next().unwrap_or_default();
        before.for_each(|other| {
            unique.merge(&other);
        });
        show(&mut unique, hashes);
        self.sketches.insert(at, (bucket_ms.start, unique));
        if let Some(united) = &mut self.united
            && bucket_ms.start >= united.0
        {
            show(&mut united.1, hashes);
        }
        self.forget(from_ms);
    }

    /// The same in buckets of another cut. They are never more.
    pub fn recut(&self, recut: &Recut<'_>) -> Visitors {
        let mut sketches: Vec<(u64, Unique)> = Vec::with_capacity(self.sketches.len());
        for (index, (start_ms, unique)) in self.sketches.iter().enumerate() {
            let next_ms = self.sketches.get(index + 1).map(|(next_ms, _)| *next_ms);
            let start_ms = recut.latest(*start_ms, next_ms);
            match sketches.last_mut() {
                Some((last_ms, last)) if *last_ms >= start_ms => {
                    last.merge(unique);
                }
                _ => sketches.push((start_ms, unique.clone())),
            }
        }
        Visitors { sketches, united: None }
    }

    /// What they take in memory.
    pub fn memory_bytes(&self) -> usize {
        let united = self.united.as_ref().map_or(0, |united| united.1.memory_bytes() + size_of::<u64>());
        united
            + self.sketches.iter().map(|(_, unique)| unique.memory_bytes() + size_of::<u64>()).sum::<usize>()
    }

    fn forget(&mut self, from_ms: u64) {
        let many = self.sketches.len().saturating_sub(VISITOR_BUCKETS_MAX);
        let old = self.sketches.partition_point(|(start_ms, _)| *start_ms < from_ms);
        let is_known = |start_ms: u64| self.united.as_ref().is_some_and(|united| start_ms >= united.0);
        if self.sketches[..old.max(many)].last().is_some_and(|(start_ms, _)| is_known(*start_ms)) {
            self.united = None;
        }
        self.sketches.drain(..old.max(many));
    }

    fn places(&self, range_ms: &Range<u64>) -> Range<usize> {
        let place = |at_ms| self.sketches.partition_point(|(start_ms, _)| *start_ms < at_ms);
        let end = place(range_ms.end);
        place(range_ms.start).min(end)..end
    }
}

fn unite(sketches: &[(u64, Unique)]) -> Unique {
    let Some(((_, first), others)) = sketches.split_first() else { return Unique::new() };
    let mut all = first.clone();
    for (_, unique) in others {
        all.merge(unique);
    }
    all
}

fn show(unique: &mut Unique, hashes: &[u64]) {
    for hash in hashes {
        unique.observe(*hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unique::hash;

    /// Replicas that have added up and replicas that have not must come to the same.
    #[test]
    fn what_was_kept_added_up_is_what_adding_up_gives() {
        let mut kept = Visitors::default();
        for item in 0..20_000u64 {
            let start_ms = 10 * (item % 7);
            kept.seen_since(20);
            let hashes = [hash(&item.to_le_bytes()), hash(&(item / 3).to_le_bytes())];
            kept.observe(start_ms..start_ms + 10, 0, &hashes);
            if item.is_multiple_of(97) || item < 400 {
                let mut anew = Visitors::new(kept.sketches.clone()).unwrap_or_default();
                let (known, again) = (kept.seen_since(20), anew.seen_since(20));
                assert_eq!((known.count(), known.is_exact()), (again.count(), again.is_exact()), "{item}");
            }
        }
    }

    #[test]
    fn what_is_forgotten_is_not_added_up() {
        let mut visitors = Visitors::default();
        for second in 0..VISITOR_BUCKETS_MAX as u64 + 5 {
            visitors.seen_since(0);
            visitors.observe(second..second + 1, 0, &[hash(&second.to_le_bytes())]);
        }
        let anew = Visitors::new(visitors.sketches.clone()).unwrap_or_default();
        assert_eq!(visitors.seen_since(0).count(), anew.seen(&(0..u64::MAX)).count());
    }
}
