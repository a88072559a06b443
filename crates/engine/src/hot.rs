//! Which counters are asked for most. Every partition has a ranking of its own, under its lock; nothing depends on it.

use std::sync::atomic::{AtomicU64, Ordering};

use quipu_counting::hot::HOT_PER_SECOND;
use quipu_counting::{Batch, HotKeys};

use crate::engine::Engine;
use crate::execute::{Guards, Place};

/// What `/metrics` shows of it, as of about a second ago.
pub struct HotFacts {
    /// How many counters have more than a thousand requests a second.
    pub counters: AtomicU64,
    /// The share that the counter most asked for has of all requests.
    pub top_share_millionths: AtomicU64,
    /// How many times its even share the busiest partition has.
    pub skew_millionths: AtomicU64,
}

/// Facts are whole numbers.
const MILLION: f64 = 1_000_000.0;

impl Default for HotFacts {
    fn default() -> HotFacts {
        HotFacts {
            counters: AtomicU64::new(0),
            top_share_millionths: AtomicU64::new(0),
            skew_millionths: AtomicU64::new(MILLION as u64),
        }
    }
}

/// Counts a batch that has run, in one pass over what is in the nearest cache anyway: all of it, or, where much is asked of all its partitions,
/// one batch of some as often as it stands for.
pub fn count(guards: &mut Guards<'_>, batch: &Batch, places: &[Place], now_ms: u64) {
    let guards = guards.as_mut_slice();
    // Who looks at a replica as it is says no time; the keeper's rounds move such partitions on.
    if now_ms > 0 {
        guards.iter_mut().flatten().for_each(|held| held.hot.turn(now_ms));
    }
    let busy = match guards.iter().flatten().all(|held| !held.hot.counts_all()) {
        true => guards.iter_mut().flatten().next(),
        false => None,
    };
    let weight = busy.map_or(1, |held| held.hot.weigh());
    if weight == 0 {
        return;
    }
    let mut index = 0;
    while let Some(place) = places.get(index) {
        let repeated = places[index + 1..].iter().take_while(|place| place.is_repeated).count();
        if let (true, Some(held)) = (place.has_key, &mut guards[usize::from(place.partition)]) {
            held.hot.count(place.hash, weight * (repeated as u32 + 1), || batch.key(index));
        }
        index += repeated + 1;
    }
}

impl Engine {
    /// What was asked for here in the last seconds: the keys asked for most, so many of them.
    pub fn hot_here(&self, n: usize, now_ms: u64) -> HotKeys {
        let mut all = HotKeys::of(self.partitions.len());
        for (index, partition) in self.partitions.iter().enumerate() {
            all.add_partition(index, &mut partition.lock().hot, n, now_ms);
        }
        all.keep(n);
        all
    }

    /// Notes what `/metrics` shows.
    pub(crate) fn note_hot_facts(&self, now_ms: u64) {
        let mut all = HotKeys::of(self.partitions.len());
        let mut counts: Vec<u64> = Vec::new();
        for (index, partition) in self.partitions.iter().enumerate() {
            let mut held = partition.lock();
            all.add_partition(index, &mut held.hot, 0, now_ms);
            counts.extend(held.hot.keys().map(|(_, requests)| requests));
        }
        if self.replication.is_some() {
            // Those that others lead are not idle: others are asked.
            all.partitions.retain(|requests| *requests > 0);
        }
        let is_hot = |requests: &&u64| all.per_second(**requests) > HOT_PER_SECOND as f64;
        let counters = counts.iter().filter(is_hot).count();
        let top_share = all.share(counts.iter().copied().max().unwrap_or(0));
        let facts = &self.hot_facts;
        facts.counters.store(counters as u64, Ordering::Relaxed);
        facts.top_share_millionths.store((top_share * MILLION) as u64, Ordering::Relaxed);
        facts.skew_millionths.store((all.skew() * MILLION) as u64, Ordering::Relaxed);
    }
}
