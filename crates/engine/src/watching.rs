//! What is noted of changes, for those who watch counters.
//!
//! A partition notes the keys of watched counters that it changes, under its lock, at the place where every change passes
//! (`Partition::touch`). While nobody watches that is one look at an empty list. A note says that a counter changed and nothing
//! else, so a hot counter is noted once, however often it changes before somebody asks. What is noted is bounded: above the
//! bound it is only known that too much has changed.
//!
//! There may be several who watch: the server's own fronts, and other nodes for theirs. Each has notes of its own, and takes
//! them.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use quipu_counting::{Changes, Interest};

use crate::engine::Engine;
use crate::partition::{Partition, hash};

/// What may be noted for one who watches, over all partitions: many times what somebody who asks every few milliseconds ever
/// finds, and still no burden.
const NOTES_BYTES_MAX: usize = 16 << 20;
/// About what a note takes beside its key.
const NOTE_BYTES: usize = 48;

/// Tells what is watched.
struct Filter {
    interest: Interest,
    /// Of the keys watched by name. Two keys may have the same: then something is noted that nobody asked for.
    hashes: HashSet<u32>,
    /// A bit for the first half of each of them: one look spares nearly every other counter the rest.
    bits: Vec<u64>,
}

/// Bits of a filter.
const BITS: usize = 1 << 16;

impl Filter {
    fn new(interest: Interest, hash_seed: u64) -> Filter {
        let hashes: HashSet<u32> = interest.keys().map(|key| hash(key, hash_seed)).collect();
        let mut bits = vec![0; BITS / 64];
        for hash in &hashes {
            let (word, bit) = place(*hash);
            bits[word] |= bit;
        }
        Filter { interest, hashes, bits }
    }

    fn wants(&self, hash: u32, key: &[u8]) -> bool {
        let (word, bit) = place(hash);
        (self.bits[word] & bit != 0 && self.hashes.contains(&hash)) || self.interest.covers_by_prefix(key)
    }
}

fn place(hash: u32) -> (usize, u64) {
    let number = hash as usize >> (u32::BITS - BITS.ilog2());
    (number / 64, 1 << (number % 64))
}

/// The notes of one partition for one who watches.
pub struct Watch {
    watcher: u64,
    filter: Arc<Filter>,
    bytes_max: usize,
    keys: HashSet<Box<[u8]>>,
    bytes: usize,
    cleared: bool,
    lost: bool,
}

impl Watch {
    fn note(&mut self, hash: u32, key: &[u8]) {
        if self.lost || !self.filter.wants(hash, key) || self.keys.contains(key) {
            return;
        }
        self.bytes += key.len() + NOTE_BYTES;
        if self.bytes > self.bytes_max {
            self.lose();
        } else {
            self.keys.insert(key.into());
        }
    }

    fn lose(&mut self) {
        self.lost = true;
        self.forget();
    }

    fn forget(&mut self) {
        self.keys = HashSet::new();
        self.bytes = 0;
    }

    fn take(&mut self) -> Changes {
        self.bytes = 0;
        Changes {
            cleared: std::mem::take(&mut self.cleared),
            keys: std::mem::take(&mut self.keys).into_iter().map(Vec::from).collect(),
            lost: std::mem::take(&mut self.lost),
        }
    }
}

impl Partition {
    /// A counter is about to change.
    #[cold]
    pub(crate) fn note(&mut self, hash: u32, key: &[u8]) {
        self.watches.iter_mut().for_each(|watch| watch.note(hash, key));
    }

    /// All counters are gone, and what was noted of them is of no interest.
    pub(crate) fn note_clear(&mut self) {
        for watch in &mut self.watches {
            watch.forget();
            // That much was lost is of no interest either: nothing of it is left.
            (watch.cleared, watch.lost) = (true, false);
        }
    }

    /// It became another, and nobody knows what changed.
    pub(crate) fn note_loss(&mut self) {
        self.watches.iter_mut().for_each(Watch::lose);
    }

    fn watch(&mut self, watcher: u64, filter: Option<&Arc<Filter>>, bytes_max: usize) {
        let known = self.watches.iter().position(|watch| watch.watcher == watcher);
        match (known, filter) {
            (Some(at), Some(filter)) => self.watches[at].filter = Arc::clone(filter),
            (Some(at), None) => {
                self.watches.swap_remove(at);
            }
            (None, Some(filter)) => self.watches.push(Watch {
                watcher,
                filter: Arc::clone(filter),
                bytes_max,
                keys: HashSet::new(),
                bytes: 0,
                cleared: false,
                lost: false,
            }),
            (None, None) => {}
        }
    }

    fn take_changes(&mut self, watcher: u64) -> Option<Changes> {
        self.watches.iter_mut().find(|watch| watch.watcher == watcher).map(Watch::take)
    }
}

impl Engine {
    /// From now on notes, for this one who watches, which of these counters change; nothing more where there are none. What is
    /// noted stays until it is taken.
    pub fn watch_for(&self, watcher: u64, interest: Interest) {
        let bytes_max = NOTES_BYTES_MAX / self.partitions.len();
        let filter = (!interest.is_empty()).then(|| Arc::new(Filter::new(interest, self.hash_seed)));
        for partition in &self.partitions {
            partition.lock().watch(watcher, filter.as_ref(), bytes_max);
        }
    }

    /// What was noted of all partitions since it was last taken.
    pub fn take_changes(&self, watcher: u64) -> Changes {
        // All at once, because counters are deleted in all of them at once.
        let mut all: Vec<_> = self.partitions.iter().map(Mutex::lock).collect();
        let taken: Vec<Changes> = all.iter_mut().filter_map(|held| held.take_changes(watcher)).collect();
        drop(all);
        let cleared = taken.iter().filter(|of| of.cleared).count();
        let is_cleared = cleared > 0 && cleared == taken.len();
        let mut changes = Changes { cleared: is_cleared, ..Changes::default() };
        for of in taken {
            // A part was deleted by somebody who came while the others were not yet watched.
            changes.lost |= of.lost || of.cleared && !is_cleared;
            changes.keys.extend(of.keys);
        }
        changes
    }

    /// The same of one partition; `None` for one who does not watch.
    pub fn take_changes_of(&self, watcher: u64, partition: u16) -> Option<Changes> {
        self.partitions.get(usize::from(partition))?.lock().take_changes(watcher)
    }
}
