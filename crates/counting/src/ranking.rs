//! Finds the keys that are asked for most, of any number of keys, in memory for a few.
//!
//! *Sample and hold* (Estan and Varghese, 2002): a key that is held is counted exactly, every request of it, which costs one
//! look into a small table. A key that is not held comes in by sample; it takes the place of the one with the least
//! weight and begins with that weight, as in *Space-Saving* (Metwally and others, 2005). So the weights of all keys held are
//! together as many as there were requests, the least is at most their average, and a key that has more than an even share
//! of all requests is held.
//!
//! Two counts are kept apart. The *weight* decides who stays; it fades, and what a key inherited is in it. What is *told*
//! about a key is how often it was seen in the last seconds, second by second: where every batch is counted, never too much, and too little by
//! what came before it was held.
//!
//! In every second the first [`FREE_PER_SECOND`] unknown keys come in, so that nothing is missed where there is little to do; of
//! the rest one of about [`GAP_MEAN`] that are counted. Where the next sample lies is drawn, so that no regular order of requests can hide a key.
//!
//! Who counts may leave batches out where there is much to do ([`Ranking::weigh`]): above [`ALL_COUNTED`] requests in a second one batch of
//! [`BATCHES_PER_SAMPLE`] is counted, as often as it stands for. What is told is then an estimate, whose error is small beside the counts there are.
//!
//! Whether a key is held is a coin's toss for the processor, and a wrong guess costs more than all else. So [`Ranking::count`] has
//! no branch on it: what is not held is counted in the place of nobody.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Keys held. At 200,000 requests a second for one partition, which is about what one can do, a key with a thousand of them
/// has more than an even share.
pub const KEYS_HELD: usize = 255;
/// Whole seconds that are told about; the one under way comes on top.
pub const SECONDS: usize = 10;
/// Unknown keys that come in unsampled in every second: as many as fill the places.
const FREE_PER_SECOND: u32 = 256;
/// How many requests of unknown keys lie between two samples, on average.
const GAP_MEAN: u32 = 64;
/// In every second so many requests are all counted, in whole batches. What is left out beyond that is little beside them: of a key with a
/// 200th of all, what is told errs by some per mille.
pub const ALL_COUNTED: u32 = 65_536;
/// Of how many batches one is counted after that.
pub const BATCHES_PER_SAMPLE: u32 = 4;
/// A quarter of them is taken when all keys are held, so that everybody finds room.
const SLOTS: usize = 1_024;
/// How many keys move to their other slot to make room for one, before one is given up: far more than ever do.
const MOVES_MAX: usize = 64;

/// Where a key is held.
type Place = u8;
/// The place of all keys that are not.
const NOBODY: Place = Place::MAX;
const _: () = assert!(KEYS_HELD == NOBODY as usize);

/// What a second is called: its number since 1970.
type Second = u64;

/// See the head of this file.
#[derive(Debug)]
pub struct Ranking {
    index: Box<Index>,
    /// What is known of the keys held, by place.
    held: Vec<Held>,
    /// Weight of each key held, without this second.
    weights: [u32; KEYS_HELD],
    /// The keys held, the lightest first, by a weight that each had since the second began.
    lightest: BinaryHeap<Reverse<(u32, Place)>>,
    second: Second,
    /// When the first request came after the last seconds had been without any.
    since_ms: u64,
    all: Seconds,
    all_now: u32,
    /// Unknown keys that may still come in unsampled in this second.
    free: u32,
    /// The requests of unknown keys in this second at which the last sample was taken, and at which the next will be.
    sampled_at: u32,
    next_at: u32,
    /// Draws the gaps.
    random: u32,
}

/// What is looked at for every request.
#[derive(Debug)]
struct Index {
    /// Each key held is in one of the two slots that its hash names: the hash without its last byte, and there the place. Keys
    /// with the same hash are taken for one: among a million, none of 255 has such a twin in 15 of 16 cases, and the twin of
    /// a key that is asked for often is hardly ever asked for often.
    slots: [u32; SLOTS],
    /// Requests of this second, by place.
    now: [u32; KEYS_HELD + 1],
}

#[derive(Debug, Default)]
struct Held {
    hash: u32,
    key: Vec<u8>,
    seconds: Seconds,
}

/// How often in each of the last whole seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Seconds([u32; SECONDS]);

impl Seconds {
    fn set(&mut self, second: Second, count: u32) {
        self.0[(second % SECONDS as u64) as usize] = count;
    }

    fn sum(&self) -> u64 {
        self.0.iter().map(|count| u64::from(*count)).sum()
    }
}

/// A slot that holds no key.
const EMPTY: u32 = NOBODY as u32;
/// What a slot has of a hash. The number of the slot says the rest.
const HASH_BITS: u32 = !(Place::MAX as u32);

impl Index {
    /// Never the same one twice: two keys that could only be there would push each other out.
    #[inline]
    fn slots_of(hash: u32) -> [usize; 2] {
        [hash as usize % SLOTS, (hash ^ (hash >> 10 | 1)) as usize % SLOTS]
    }

    /// What is left of a slot without the hash is the place, or larger than any.
    #[inline]
    fn find(&self, hash: u32) -> usize {
        let [first, second] = Index::slots_of(hash).map(|slot| self.slots[slot] ^ (hash & HASH_BITS));
        first.min(second).min(EMPTY) as usize
    }

    /// Makes a place found. Returns the place that is not found any more, if there was no room for all.
    fn add(&mut self, place: Place, held: &[Held]) -> Option<Place> {
        let mut place = place;
        let [mut slot, second] = Index::slots_of(held[usize::from(place)].hash);
        if self.slots[slot] != EMPTY {
            slot = second;
        }
        for _ in 0..MOVES_MAX {
            let entry = (held[usize::from(place)].hash & HASH_BITS) | u32::from(place);
            let moved = std::mem::replace(&mut self.slots[slot], entry);
            if moved == EMPTY {
                return None;
            }
            // Whoever was there has another slot.
            place = moved as Place;
            let [first, second] = Index::slots_of(held[usize::from(place)].hash);
            slot = if slot == first { second } else { first };
        }
        Some(place)
    }

    fn remove(&mut self, place: Place, hash: u32) {
        for slot in Index::slots_of(hash) {
            if self.slots[slot] as Place == place {
                self.slots[slot] = EMPTY;
            }
        }
    }
}

impl Ranking {
    /// An empty one. The seed decides which requests are sampled.
    pub fn new(seed: u32) -> Ranking {
        Ranking {
            index: Box::new(Index { slots: [EMPTY; SLOTS], now: [0; KEYS_HELD + 1] }),
            held: Vec::new(),
            weights: [0; KEYS_HELD],
            lightest: BinaryHeap::new(),
            second: 0,
            since_ms: 0,
            all: Seconds::default(),
            all_now: 0,
            free: FREE_PER_SECOND,
            sampled_at: 0,
            next_at: 1,
            random: seed | 1,
        }
    }

    /// Time goes on. To be called before requests are counted, and before anything is told.
    #[inline]
    pub fn turn(&mut self, now_ms: u64) {
        if now_ms / 1_000 != self.second {
            self.turn_to(now_ms / 1_000);
        }
        if self.all_now == 0 && self.requests() == 0 {
            self.since_ms = now_ms;
        }
    }

    #[cold]
    fn turn_to(&mut self, second: Second) {
        let (behind, ahead) = (self.second.saturating_sub(second), second.saturating_sub(self.second));
        if behind > 0 && behind <= SECONDS as u64 {
            // Clocks of several threads: what comes a little late belongs to now.
            return;
        }
        if behind > 0 || ahead > SECONDS as u64 {
            *self = Ranking { second, ..Ranking::new(self.random) };
            return;
        }
        let places = self.held.iter_mut().zip(&mut self.index.now).zip(&mut self.weights);
        for ((held, now), weight) in places {
            held.seconds.set(self.second, *now);
            (self.second + 1..second).for_each(|quiet| held.seconds.set(quiet, 0));
            *weight = weight.saturating_add(*now);
            // A quarter less every second: what is ten seconds ago hardly counts.
            (0..ahead).for_each(|_| *weight = (u64::from(*weight) * 3 / 4) as u32);
            *now = 0;
        }
        self.all.set(self.second, self.all_now);
        (self.second + 1..second).for_each(|quiet| self.all.set(quiet, 0));
        self.all_now = 0;
        self.second = second;
        self.lightest = (0..self.held.len() as Place)
            .map(|place| Reverse((self.weights[usize::from(place)], place)))
            .collect();
        self.index.now[usize::from(NOBODY)] = 0;
        self.free = FREE_PER_SECOND;
        (self.sampled_at, self.next_at) = (0, 1);
    }

    /// Whether everything is still counted in this second.
    #[inline]
    pub fn counts_all(&self) -> bool {
        self.all_now < ALL_COUNTED
    }

    /// How often a batch counts for which nobody counts all: as one of several, or not.
    #[inline]
    pub fn weigh(&mut self) -> u32 {
        // The lowest bits of this generator are its worst.
        if (self.draw() >> 16).is_multiple_of(BATCHES_PER_SAMPLE) { BATCHES_PER_SAMPLE } else { 0 }
    }

    /// So many requests of a key in a row.
    #[inline]
    pub fn count<'k>(&mut self, hash: u32, times: u32, key: impl FnOnce() -> &'k [u8]) {
        self.all_now = self.all_now.saturating_add(times);
        let place = self.index.find(hash);
        let now = &mut self.index.now[place];
        *now = now.saturating_add(times);
        if self.index.now[usize::from(NOBODY)] >= self.next_at {
            self.take_in(hash, times, key());
        }
    }

    /// Holds a key from now on.
    #[cold]
    fn take_in(&mut self, hash: u32, times: u32, key: &[u8]) {
        if self.index.find(hash) != usize::from(NOBODY) {
            // Time stands still, and counts are at their end.
            return;
        }
        let unknown = self.index.now[usize::from(NOBODY)];
        let stands_for = unknown - self.sampled_at;
        self.sampled_at = unknown;
        self.next_at = unknown.saturating_add(self.draw_gap());
        let place = self.make_room(stands_for);
        let at = usize::from(place);
        self.weights[at] = self.weight(place).saturating_add(stands_for - times.min(stands_for));
        self.index.now[at] = times;
        // It inherits the weight, not what is told.
        let held = &mut self.held[at];
        held.hash = hash;
        held.key.clear();
        held.key.extend_from_slice(key);
        held.seconds = Seconds::default();
        if let Some(lost) = self.index.add(place, &self.held) {
            let lost = usize::from(lost);
            (self.weights[lost], self.index.now[lost]) = (0, 0);
            self.held[lost].seconds = Seconds::default();
        }
    }

    /// A place for a key that stands for so many requests: a new one, or that of the lightest, whose weight stays there.
    fn make_room(&mut self, stands_for: u32) -> Place {
        let free = self.held.len();
        if free < KEYS_HELD {
            self.held.push(Held::default());
            self.lightest.push(Reverse((stands_for, free as Place)));
            return free as Place;
        }
        // Within a second weights only grow: who is first by the weight it had, and still has it, is the lightest.
        loop {
            let Some(Reverse((known, place))) = self.lightest.peek().copied() else { return 0 };
            let weight = self.weight(place);
            let weight_then = if weight > known { weight } else { weight.saturating_add(stands_for) };
            if let Some(mut first) = self.lightest.peek_mut() {
                *first = Reverse((weight_then, place));
            }
            if weight <= known {
                self.index.remove(place, self.held[usize::from(place)].hash);
                return place;
            }
        }
    }

    fn weight(&self, place: Place) -> u32 {
        let at = usize::from(place);
        self.weights[at].saturating_add(self.index.now[at])
    }

    fn draw_gap(&mut self) -> u32 {
        self.free = self.free.saturating_sub(1);
        let drawn = self.draw();
        // Of batches that count several times, a sample comes as seldom as of those that count once.
        let weight = if self.counts_all() { 1 } else { BATCHES_PER_SAMPLE };
        if self.free > 0 { 1 } else { weight * (1 + drawn % (2 * GAP_MEAN - 1)) }
    }

    /// Marsaglia's xorshift, never zero.
    fn draw(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 17;
        self.random ^= self.random << 5;
        self.random
    }

    /// All requests of the last seconds.
    pub fn requests(&self) -> u64 {
        self.all.sum() + u64::from(self.all_now)
    }

    /// Since when the requests of the last seconds are told, if there were any.
    pub fn since_ms(&self) -> Option<u64> {
        let window_ms = self.second.saturating_sub(SECONDS as u64) * 1_000;
        (self.requests() > 0).then_some(self.since_ms.max(window_ms))
    }

    /// How often each key held was asked for in the last seconds, in no order.
    pub fn keys(&self) -> impl Iterator<Item = (&[u8], u64)> {
        let counts = self.held.iter().zip(&self.index.now);
        counts
            .map(|(held, now)| (&held.key[..], held.seconds.sum() + u64::from(*now)))
            .filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A few keys often, many seldom, alone and in a row.
    fn requests() -> impl Strategy<Value = Vec<(u32, u32)>> {
        let key = prop_oneof![0..4u32, 0..50u32, 0..5_000u32];
        let times = prop_oneof![4 => Just(1u32), 1 => 2..9u32];
        proptest::collection::vec((key, times), 0..3_000)
    }

    proptest! {
        /// Where unknown keys come in unsampled this is Space-Saving, with its bounds.
        #[test]
        fn who_has_more_than_a_share_is_held_and_told_nearly_exactly(requests in requests(), seed: u32) {
            let mut ranking = Ranking::new(seed);
            ranking.turn(1_790_000_000_000);
            ranking.free = u32::MAX;
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            for (number, times) in requests {
                let key = number.to_be_bytes();
                ranking.count(number.wrapping_mul(0x9E37_79B1), times, || &key);
                *model.entry(number).or_default() += u64::from(times);
            }
            let all: u64 = model.values().sum();
            prop_assert_eq!(ranking.requests(), all);
            let told: BTreeMap<u32, u64> =
                ranking.keys().map(|(key, count)| (u32::from_be_bytes(key.try_into().unwrap()), count)).collect();
            prop_assert_eq!(told.len(), ranking.keys().count(), "nobody is told twice");
            for (number, count) in &told {
                prop_assert!(*count <= model[number], "{} was told too often", number);
            }
            let share = all / KEYS_HELD as u64;
            for (number, count) in model.iter().filter(|(_, count)| **count > share) {
                let missed = count - told.get(number).copied().unwrap_or(0);
                prop_assert!(told.contains_key(number), "{} with {} of {} is not held", number, count, all);
                prop_assert!(missed <= share, "{} requests of {} were missed, of {}", missed, number, all);
            }
        }
    }

    #[test]
    fn of_many_batches_some_are_counted_for_all() {
        let mut ranking = Ranking::new(7);
        ranking.turn(1_790_000_000_000);
        let (mut batches, mut left_out) = (0_u64, 0);
        while batches < 400_000 {
            batches += 1;
            let weight = if ranking.counts_all() { 1 } else { ranking.weigh() };
            if weight == 0 {
                left_out += 1;
                continue;
            }
            ranking.count(1, 3 * weight, || b"hot");
            ranking.count((batches as u32).wrapping_mul(0x9E37_79B1), weight, || b"other");
        }
        let near = |told: u64, asked: u64| told.abs_diff(asked) * 50 < asked;
        assert!(near(left_out, 3 * (batches - u64::from(ALL_COUNTED) / 4) / 4), "{left_out} of {batches}");
        assert!(near(ranking.requests(), 4 * batches), "{}", ranking.requests());
        let told = ranking.keys().find(|(key, _)| *key == b"hot").map(|(_, count)| count);
        assert!(told.is_some_and(|told| near(told, 3 * batches)), "{told:?}");
    }
}
