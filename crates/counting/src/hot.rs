//! Which keys are asked for most, as it is told: by one partition, by a node, by a cluster.
//!
//! A request is counted once, by whoever answers it: a change where it was asked for, a look where it was looked. So what
//! several nodes tell can simply be added up, also while the lead of a partition moves.

use crate::ranking::Ranking;

/// The most keys that can be asked for. Each partition holds more than twice as many.
pub const HOT_KEYS_MAX: usize = 100;
/// How many are told where nobody says how many.
pub const HOT_KEYS_DEFAULT: usize = 20;
/// A counter with more requests than this in a second is called hot.
pub const HOT_PER_SECOND: u64 = 1_000;
/// Rates are never over less than this: a few requests at once are not thousands a second.
const WINDOW_MS_MIN: u64 = 1_000;

/// A key and how often it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotKey {
    /// The key.
    pub key: Vec<u8>,
    /// Requests of it, whatever they asked for and were told.
    pub requests: u64,
}

/// What was asked for in the last seconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotKeys {
    /// The most asked for first.
    pub keys: Vec<HotKey>,
    /// All requests, by partition.
    pub partitions: Vec<u64>,
    /// The time in which they came.
    pub window_ms: u64,
    /// Somebody who may have counted some was not reached.
    pub is_partial: bool,
}

impl HotKeys {
    /// Nothing of so many partitions.
    pub fn of(partitions: usize) -> HotKeys {
        HotKeys { partitions: vec![0; partitions], ..HotKeys::default() }
    }

    /// Adds what a partition has seen, as many keys of it as these at most. Keys come in order with [`HotKeys::keep`].
    pub fn add_partition(&mut self, partition: usize, ranking: &mut Ranking, most: usize, now_ms: u64) {
        ranking.turn(now_ms);
        self.partitions[partition] += ranking.requests();
        if let Some(since_ms) = ranking.since_ms() {
            self.window_ms = self.window_ms.max(now_ms.saturating_sub(since_ms));
        }
        let mut keys: Vec<(&[u8], u64)> = ranking.keys().collect();
        keys.sort_unstable_by(|(key, requests), (other, others)| (others, key).cmp(&(requests, other)));
        keys.truncate(most);
        self.keys.extend(keys.into_iter().map(|(key, requests)| HotKey { key: key.to_vec(), requests }));
    }

    /// Adds what another node tells. Keys come in order with [`HotKeys::keep`].
    pub fn add(&mut self, other: HotKeys) {
        self.window_ms = self.window_ms.max(other.window_ms);
        self.is_partial |= other.is_partial;
        self.partitions.resize(self.partitions.len().max(other.partitions.len()), 0);
        for (requests, others) in self.partitions.iter_mut().zip(other.partitions) {
            *requests = requests.saturating_add(others);
        }
        self.keys.extend(other.keys);
        self.keys.sort_unstable_by(|key, other| key.key.cmp(&other.key));
        self.keys.dedup_by(|later, first| {
            let is_same = later.key == first.key;
            if is_same {
                first.requests = first.requests.saturating_add(later.requests);
            }
            is_same
        });
    }

    /// Puts the keys in order and keeps the first.
    pub fn keep(&mut self, most: usize) {
        self.keys.sort_unstable_by(|key, other| (other.requests, &key.key).cmp(&(key.requests, &other.key)));
        self.keys.truncate(most);
    }

    /// All requests.
    pub fn requests(&self) -> u64 {
        self.partitions.iter().fold(0, |sum, requests| sum.saturating_add(*requests))
    }

    /// So many requests as a rate.
    pub fn per_second(&self, requests: u64) -> f64 {
        requests as f64 * 1_000.0 / self.window_ms.max(WINDOW_MS_MIN) as f64
    }

    /// So many of all requests, from 0 to 1.
    pub fn share(&self, requests: u64) -> f64 {
        requests as f64 / self.requests().max(1) as f64
    }

    /// How many times its even share the busiest partition has: 1 where all have the same, or nothing was asked for.
    pub fn skew(&self) -> f64 {
        match self.requests() {
            0 => 1.0,
            _ => {
                let busiest = self.partitions.iter().copied().max().unwrap_or(0);
                self.share(busiest) * self.partitions.len() as f64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(keys: &[(&str, u64)], partitions: &[u64], window_ms: u64) -> HotKeys {
        let keys =
            keys.iter().map(|(key, requests)| HotKey { key: key.as_bytes().to_vec(), requests: *requests });
        HotKeys { keys: keys.collect(), partitions: partitions.to_vec(), window_ms, is_partial: false }
    }

    #[test]
    fn what_nodes_tell_is_added_up() {
        let mut all = HotKeys::of(2);
        all.add(told(&[("a", 50), ("b", 60)], &[110, 0], 10_500));
        all.add(told(&[("c", 55), ("a", 20)], &[20, 70], 9_000));
        all.keep(3);
        assert_eq!(all, told(&[("a", 70), ("b", 60), ("c", 55)], &[130, 70], 10_500));
        all.keep(1);
        assert_eq!(all.keys[0].key, b"a");
        assert_eq!(all.share(50), 0.25);
        assert_eq!(all.skew(), 1.3);
        assert_eq!(all.per_second(21), 2.0);
    }

    #[test]
    fn equals_come_in_the_order_of_keys_and_nothing_is_even() {
        let mut all = told(&[("c", 5), ("a", 5), ("b", 9)], &[19], 1);
        all.keep(9);
        let keys: Vec<&[u8]> = all.keys.iter().map(|key| &key.key[..]).collect();
        assert_eq!(keys, [b"b", b"a", b"c"]);
        assert_eq!(all.per_second(5), 5.0, "a moment is not a second");
        assert_eq!((HotKeys::of(4).skew(), HotKeys::of(4).share(0)), (1.0, 0.0));
    }
}
