//! Remembered request ids of one partition.
//!
//! Ids since the last cut are in memory whole. Older ones lie in the cold store, in spaces that each hold one
//! slice of time and are dropped whole when the window has passed; of those only a 32-bit tag each is in
//! memory, which says "certainly not" or "look on disk". Of n tags in a partition, a new id meets one by
//! chance n times in 2^32.
//!
//! Every checkpoint writes its ids as one *run*: bins of about 64 ids, chosen by the first bits of the
//! identity, one row each. A row per id would cost the cold store more than all the rest of a request.

use std::sync::Arc;

use quipu_counting::{Identity, Remembered};

use crate::recent::Recent;

/// A window is as long as so many slices. It touches one more, and one that is over is dropped when all of it is.
pub const SLICES_PER_WINDOW: u64 = 7;

/// One slice of time of remembered ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slice {
    /// First millisecond.
    pub start_ms: u64,
    /// One past the last.
    pub end_ms: u64,
}

impl Slice {
    /// The slice an id of this time goes to. Slices of an earlier, other window keep their own bounds, so a
    /// change of the window forgets nothing.
    pub fn of(at_ms: u64, window_ms: u64) -> Slice {
        let length_ms = (window_ms / SLICES_PER_WINDOW).max(1_000);
        let start_ms = at_ms / length_ms * length_ms;
        Slice { start_ms, end_ms: start_ms + length_ms }
    }

    /// Whether no id of the slice counts any more.
    pub fn is_over(&self, now_ms: u64, window_ms: u64) -> bool {
        self.end_ms.saturating_add(window_ms) <= now_ms
    }

    /// The space of the slice in the cold store.
    pub fn space(&self) -> String {
        format!("ids-{:013}-{:013}", self.start_ms, self.end_ms)
    }

    /// The slice of a space.
    pub fn from_space(space: &str) -> Option<Slice> {
        let (start, end) = space.strip_prefix("ids-")?.split_once('-')?;
        Some(Slice { start_ms: start.parse().ok()?, end_ms: end.parse().ok()? })
    }
}

/// See the head of this file.
#[derive(Default)]
pub struct Ids {
    /// Since the last cut.
    recent: Recent,
    /// Before the running cut, until it is durable. Shared with the checkpoint that writes them.
    cutting: Arc<Recent>,
    /// What the cold store has, oldest first.
    slices: Vec<OnDisk>,
}

/// What is in memory of a slice on disk.
struct OnDisk {
    slice: Slice,
    tags: Tags,
    runs: Vec<Run>,
    /// How many ids those runs hold; more than there are tags, because two ids may share one.
    ids: usize,
}

/// The ids one checkpoint added to a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its name, beside the partition's, above those of earlier ones: where in the log the checkpoint's cut is, or, where
    /// the log is another on every node, the sequence.
    pub number: u64,
    /// There are 2 to the power of this many bins.
    pub bin_bits: u32,
}

/// Bins are numbered by up to so many bits.
pub const BIN_BITS_MAX: u32 = 24;
/// Ids in a bin, on average: a few KiB, so that a row is worth its overhead and quick to search.
const IDS_PER_BIN: usize = 64;

impl Run {
    /// The shape of a run of so many ids.
    pub fn of(number: u64, ids: usize) -> Run {
        let bins = (ids / IDS_PER_BIN).max(1).next_power_of_two();
        Run { number, bin_bits: bins.trailing_zeros().min(BIN_BITS_MAX) }
    }

    /// The bin of an identity.
    pub fn bin(&self, identity: Identity) -> u32 {
        self.bin_of((identity >> 64) as u64)
    }

    /// The bin of the identities whose first 32 bits are those of `first`.
    pub fn bin_of(&self, first: u64) -> u32 {
        (first >> 32 >> (32 - self.bin_bits)) as u32
    }
}

/// What is known of an identity without looking on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Certainly never seen.
    New,
    /// Here it is.
    Here(Remembered),
    /// Perhaps on disk.
    Perhaps,
}

/// The tag of an identity, in memory and on disk.
#[inline]
pub fn tag(identity: Identity) -> u32 {
    (identity as u32).max(1)
}

impl Ids {
    /// Looks for an identity.
    pub fn find(&self, identity: Identity) -> Known {
        if let Some(found) = self.recent.find(identity).or_else(|| self.cutting.find(identity)) {
            return Known::Here(found);
        }
        let tag = tag(identity);
        if self.slices.iter().any(|known| known.tags.contains(tag)) { Known::Perhaps } else { Known::New }
    }

    /// Whether [`Ids::find`] says [`Known::Perhaps`]. Cheaper for the usual id, which is new.
    pub fn is_perhaps_on_disk(&self, identity: Identity) -> bool {
        let tag = tag(identity);
        self.slices.iter().any(|known| known.tags.contains(tag)) && self.find(identity) == Known::Perhaps
    }

    /// Starts loading what [`Ids::find`] will touch.
    #[inline]
    pub fn prefetch(&self, identity: Identity) {
        self.recent.prefetch(identity);
        self.cutting.prefetch(identity);
        self.slices.iter().for_each(|known| known.tags.prefetch(tag(identity)));
    }

    /// Remembers a request. A newer one of the same identity (the old one is past its window) replaces it.
    pub fn remember(&mut self, remembered: Remembered) {
        self.recent.insert(&remembered);
    }

    /// The cut begins: what was remembered up to here.
    pub fn begin_cut(&mut self) -> Arc<Recent> {
        debug_assert!(self.cutting.is_empty());
        let next = match self.recent.is_empty() {
            true => Recent::default(),
            false => Recent::with_capacity(self.recent.len()),
        };
        self.cutting = Arc::new(std::mem::replace(&mut self.recent, next));
        Arc::clone(&self.cutting)
    }

    /// The cut is durable: its ids are on disk now, in these runs.
    pub fn end_cut(&mut self, runs: &[(Slice, Run)], window_ms: u64) {
        for (slice, run) in runs {
            on_disk(&mut self.slices, *slice).runs.push(*run);
        }
        let cutting = std::mem::take(&mut self.cutting);
        match runs {
            [(slice, _), rest @ ..] if rest.iter().all(|(other, _)| other == slice) => {
                on_disk(&mut self.slices, *slice).add(cutting.len(), cutting.tags());
            }
            _ => {
                for (_, stored) in cutting.iter() {
                    let slice = Slice::of(stored.at_ms(), window_ms);
                    on_disk(&mut self.slices, slice).add(1, [tag(stored.identity())]);
                }
            }
        }
        if let Ok(done) = Arc::try_unwrap(cutting) {
            self.recent.reuse(done);
        }
    }

    /// The cut failed: nothing of it is on disk for certain.
    pub fn abort_cut(&mut self) {
        let mut whole = Arc::unwrap_or_clone(std::mem::take(&mut self.cutting));
        self.recent.iter().for_each(|(_, stored)| whole.insert(&stored.remembered()));
        self.recent = whole;
    }

    /// A run that the cold store has, read at the start.
    pub fn add_run(&mut self, slice: Slice, run: Run, tags: impl ExactSizeIterator<Item = u32>) {
        let known = on_disk(&mut self.slices, slice);
        known.runs.push(run);
        known.add(tags.len(), tags);
    }

    /// Forgets slices whose time is over.
    pub fn drop_slices(&mut self, now_ms: u64, window_ms: u64) {
        self.slices.retain(|known| !known.slice.is_over(now_ms, window_ms));
    }

    /// The runs in which an identity may lie, newest first: an id that came back after its window is in two.
    pub fn candidates(&self, identity: Identity) -> Vec<(Slice, Run)> {
        let tag = tag(identity);
        let slices = self.slices.iter().rev().filter(|known| known.tags.contains(tag));
        slices.flat_map(|known| known.runs.iter().rev().map(|run| (known.slice, *run))).collect()
    }

    /// Shows the ids in memory whole.
    pub fn for_each_recent(&self, add: &mut impl FnMut(Remembered)) {
        self.cutting.iter().chain(self.recent.iter()).for_each(|(_, stored)| add(stored.remembered()));
    }

    /// All runs on disk.
    pub fn runs(&self) -> impl Iterator<Item = (Slice, Run)> {
        self.slices.iter().flat_map(|known| known.runs.iter().map(|run| (known.slice, *run)))
    }

    /// Ids in memory whole, and ids of which the tag is in memory.
    pub fn counts(&self) -> (usize, usize) {
        (self.recent.len() + self.cutting.len(), self.slices.iter().map(|known| known.ids).sum())
    }

    /// Bytes that the next checkpoint frees.
    pub fn recent_bytes(&self) -> usize {
        self.recent.allocated_bytes() + self.cutting.allocated_bytes()
    }

    /// Bytes that stay until the window has passed.
    pub fn tag_bytes(&self) -> usize {
        self.slices.iter().map(|known| known.tags.slots.len() * 4).sum()
    }
}

impl OnDisk {
    fn add(&mut self, count: usize, tags: impl IntoIterator<Item = u32>) {
        self.tags.reserve(count);
        tags.into_iter().for_each(|tag| self.tags.place(tag));
        self.ids += count;
    }
}

fn on_disk(slices: &mut Vec<OnDisk>, slice: Slice) -> &mut OnDisk {
    let at = match slices.binary_search_by_key(&slice, |known| known.slice) {
        Ok(at) => at,
        Err(at) => {
            slices.insert(at, OnDisk { slice, tags: Tags::default(), runs: Vec::new(), ids: 0 });
            at
        }
    };
    &mut slices[at]
}

/// A set of 32-bit tags; linear probing, 0 is empty. The tag is its own hash: identities are already random.
#[derive(Default)]
struct Tags {
    slots: Vec<u32>,
    len: usize,
}

impl Tags {
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.slots.len() as u64) >> 32) as usize
    }

    fn prefetch(&self, tag: u32) {
        if let Some(slot) = self.slots.get(self.home(tag)) {
            crate::prefetch::prefetch(slot);
        }
    }

    fn contains(&self, tag: u32) -> bool {
        if self.len == 0 {
            return false;
        }
        let mut at = self.home(tag);
        loop {
            match self.slots[at] {
                0 => return false,
                found if found == tag => return true,
                _ => at = (at + 1) % self.slots.len(),
            }
        }
    }

    /// Makes room before many come: tags in ascending order would pile up at the front of a table that grows meanwhile.
    fn reserve(&mut self, count: usize) {
        let wanted = self.len + count;
        if wanted * 4 > self.slots.len() * 3 {
            let size = (self.slots.len() + self.slots.len() / 2).max(wanted + wanted / 2).max(64);
            let old = std::mem::replace(&mut self.slots, vec![0; size]);
            self.len = 0;
            old.into_iter().filter(|tag| *tag != 0).for_each(|tag| self.place(tag));
        }
    }

    /// Adds a tag for which there is room.
    fn place(&mut self, tag: u32) {
        let mut at = self.home(tag);
        while self.slots[at] != 0 {
            if self.slots[at] == tag {
                return;
            }
            at = (at + 1) % self.slots.len();
        }
        self.slots[at] = tag;
        self.len += 1;
    }
}

#[cfg(test)]
mod tests {
    use quipu_counting::{Outcome, Remembered};

    use super::*;

    const WINDOW_MS: u64 = 24 * 3_600_000;

    fn remembered(identity: u128, at_ms: u64) -> Remembered {
        let outcome = Outcome {
            refusal: None,
            existed: false,
            exists: true,
            value: 1,
            previous: 0,
            version: 1,
            birth: 1,
        };
        Remembered { identity, fingerprint: 5, at_ms, outcome }
    }

    #[test]
    fn an_id_goes_from_recent_through_the_cut_to_disk() {
        let mut ids = Ids::default();
        let one = 7u128 << 64 | 9;
        assert_eq!(ids.find(one), Known::New);
        ids.remember(remembered(one, 1_000));
        assert_eq!(ids.find(one), Known::Here(remembered(one, 1_000)));
        assert_eq!(ids.begin_cut().find(one), Some(remembered(one, 1_000)));
        assert_eq!(ids.find(one), Known::Here(remembered(one, 1_000)), "until the cut is durable");
        let run = (Slice::of(1_000, WINDOW_MS), Run::of(5, 1));
        ids.end_cut(&[run], WINDOW_MS);
        assert_eq!(ids.find(one), Known::Perhaps);
        assert_eq!(ids.candidates(one), [run]);
        ids.drop_slices(2 * WINDOW_MS + 1, WINDOW_MS);
        assert_eq!(ids.find(one), Known::New);
    }

    #[test]
    fn a_failed_cut_loses_nothing() {
        let mut ids = Ids::default();
        ids.remember(remembered(1, 1));
        ids.begin_cut();
        ids.remember(remembered(2, 2));
        ids.remember(remembered(1, 3));
        ids.abort_cut();
        assert_eq!(ids.find(1), Known::Here(remembered(1, 3)), "the newer one");
        assert_eq!(ids.begin_cut().len(), 2);
    }

    #[test]
    fn bins_are_even_and_within_range() {
        for (ids, bits) in [(0, 0), (1, 0), (64, 0), (128, 1), (10_000, 8), (usize::MAX / 2, BIN_BITS_MAX)] {
            let run = Run::of(1, ids);
            assert_eq!(run.bin_bits, bits, "{ids}");
            assert_eq!(run.bin(0), 0);
            assert_eq!(run.bin(u128::MAX), (1u64 << bits) as u32 - 1, "{ids}");
        }
    }

    #[test]
    fn tags_hold_many() {
        let mut tags = Tags::default();
        let numbers = || (0..50_000u32).map(|n| n.wrapping_mul(0x9e37_79b1));
        for tag in numbers() {
            tags.reserve(1);
            tags.place(tag.max(1));
        }
        assert!(numbers().all(|tag| tags.contains(tag.max(1))));
        let false_hits = (1..50_000u32).filter(|n| tags.contains(n.wrapping_mul(0x85eb_ca6b) | 1)).count();
        assert!(false_hits < 50, "{false_hits}");
        assert!(tags.slots.len() * 4 < 50_000 * 9);
    }

    #[test]
    fn slices_cover_the_window_and_are_named() {
        let slice = Slice::of(1_790_000_000_000, WINDOW_MS);
        assert!(slice.start_ms <= 1_790_000_000_000 && 1_790_000_000_000 < slice.end_ms);
        assert_eq!(Slice::from_space(&slice.space()), Some(slice));
        assert_eq!(Slice::from_space("p001-0"), None);
        assert!(!slice.is_over(slice.end_ms + WINDOW_MS - 1, WINDOW_MS));
        assert!(slice.is_over(slice.end_ms + WINDOW_MS, WINDOW_MS));
    }
}
