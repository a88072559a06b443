//! Request ids since the last cut, whole.
//!
//! ```text
//!   chunk   | length:1 | identity:16 value | pad | length:1 | ...    as in the rows of runs (wire/src/entry.rs)
//!   slot    tag:32  place + 1:32                                     place = chunk << 16 | unit of 4 bytes
//! ```
//!
//! An id is written once, behind the others, and never moves; the index grows without looking at ids. The slot of a tag is
//! `tag * slots / 2^32`, so a walk over the index goes by ascending tags, which is also the order of the set of tags that
//! takes them over when the ids are on disk.

use quipu_counting::{Identity, Remembered};
use quipu_wire::entry::{self, Malformed, Reader};

use crate::ids::tag;
use crate::prefetch::prefetch;

/// A chunk is one allocation, and is freed as one.
const CHUNK_BYTES: usize = 1 << 18;
const UNIT_BYTES: usize = 4;
const SLOTS_MIN: usize = 64;
/// The most an id takes.
const STORED_BYTES_MAX: usize = 1 + entry::REMEMBERED_BYTES_MAX + UNIT_BYTES;

const _: () = assert!(CHUNK_BYTES / UNIT_BYTES == 1 << 16 && entry::REMEMBERED_BYTES_MAX <= u8::MAX as usize);

/// See the head of this file.
#[derive(Clone, Default)]
pub struct Recent {
    chunks: Vec<Vec<u8>>,
    slots: Vec<u64>,
    len: usize,
    /// Empty chunks, of ids that are on disk by now. Memory that goes back to the system has to be cleared again before
    /// it comes from there, which would cost more than writing the ids.
    spare: Vec<Vec<u8>>,
}

/// An id as it is stored; its bytes are those of a row.
#[derive(Clone, Copy)]
pub struct Stored<'a>(pub &'a [u8]);

impl Stored<'_> {
    /// Whose it is.
    pub fn identity(self) -> Identity {
        self.read(|reader| reader.array().map(Identity::from_le_bytes))
    }

    /// When it came.
    pub fn at_ms(self) -> u64 {
        self.read(|reader| reader.remembered_at_ms())
    }

    /// All of it.
    pub fn remembered(self) -> Remembered {
        self.read(|reader| {
            let identity = Identity::from_le_bytes(reader.array()?);
            reader.remembered_value(identity)
        })
    }

    fn read<T>(self, read: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>) -> T {
        // Written by `append`, into memory that nobody else writes.
        #[allow(clippy::expect_used)]
        read(&mut Reader::new(self.0)).expect("what was encoded can be decoded")
    }
}

impl Recent {
    /// With room in the index for so many.
    pub fn with_capacity(ids: usize) -> Recent {
        Recent { slots: vec![0; (ids * 2).max(SLOTS_MIN)], ..Recent::default() }
    }

    /// How many ids.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes allocated.
    pub fn allocated_bytes(&self) -> usize {
        (self.chunks.len() + self.spare.len()) * CHUNK_BYTES + self.slots.len() * 8
    }

    /// Takes over the chunks of ids that are not needed any more, as many as those ids took and no more: what a busy time
    /// left over is let go of after the next quiet one.
    pub fn reuse(&mut self, done: Recent) {
        self.spare = done.chunks;
        self.spare.iter_mut().for_each(Vec::clear);
    }

    /// Starts loading the slot of an identity.
    #[inline]
    pub fn prefetch(&self, identity: Identity) {
        if let Some(slot) = self.slots.get(self.home(tag(identity))) {
            prefetch(slot);
        }
    }

    /// Looks for an identity.
    pub fn find(&self, identity: Identity) -> Option<Remembered> {
        let at = self.slot_of(identity).ok()?;
        Some(self.at(place(self.slots[at])).remembered())
    }

    /// Adds an id, or puts it in the place of an older one of the same identity.
    pub fn insert(&mut self, remembered: &Remembered) {
        if (self.len + 1) * 8 > self.slots.len() * 5 {
            self.grow();
        }
        let (Ok(at) | Err(at)) = match self.slot_of(remembered.identity) {
            // The older one stays where it is: of two in a run, the one further back counts.
            Ok(known) if self.at(place(self.slots[known])).at_ms() > remembered.at_ms => return,
            Ok(known) => Ok(known),
            Err(empty) => {
                self.len += 1;
                Err(empty)
            }
        };
        let place = self.append(remembered);
        self.slots[at] = u64::from(tag(remembered.identity)) << 32 | u64::from(place + 1);
    }

    /// All ids in the order they came, replaced ones included, with their places.
    pub fn iter(&self) -> impl Iterator<Item = (u32, Stored<'_>)> {
        self.chunks.iter().enumerate().flat_map(|(index, chunk)| {
            let mut at = 0;
            std::iter::from_fn(move || {
                (at < chunk.len()).then(|| {
                    let stored = stored_at(chunk, at);
                    let place = ((index << 16) | (at / UNIT_BYTES)) as u32;
                    at += (1 + stored.0.len()).next_multiple_of(UNIT_BYTES);
                    (place, stored)
                })
            })
        })
    }

    /// The id at a place that [`Recent::iter`] gave.
    pub fn at(&self, place: u32) -> Stored<'_> {
        stored_at(&self.chunks[(place >> 16) as usize], (place & 0xffff) as usize * UNIT_BYTES)
    }

    /// Starts loading the id at such a place.
    pub fn prefetch_at(&self, place: u32) {
        let chunk = &self.chunks[(place >> 16) as usize];
        prefetch(&chunk[(place & 0xffff) as usize * UNIT_BYTES]);
    }

    /// All tags, nearly in ascending order.
    pub fn tags(&self) -> impl Iterator<Item = u32> {
        self.slots.iter().filter(|slot| **slot != 0).map(|slot| (slot >> 32) as u32)
    }

    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.slots.len() as u64) >> 32) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    /// The slot of an identity, or the empty one where it would be. There is one, unless there are no slots at all.
    fn slot_of(&self, identity: Identity) -> Result<usize, usize> {
        if self.len == 0 {
            return Err(self.home(tag(identity)));
        }
        let tag = tag(identity);
        let mut at = self.home(tag);
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return Err(at);
            }
            if (slot >> 32) as u32 == tag && self.at(place(slot)).identity() == identity {
                return Ok(at);
            }
            at = self.after(at);
        }
    }

    fn append(&mut self, remembered: &Remembered) -> u32 {
        let full = |chunk: &Vec<u8>| chunk.len() + STORED_BYTES_MAX > CHUNK_BYTES;
        if self.chunks.last().is_none_or(full) {
            assert!(self.chunks.len() < 1 << 16, "checkpoints come long before 16 GiB of request ids");
            self.chunks.push(self.spare.pop().unwrap_or_else(|| Vec::with_capacity(CHUNK_BYTES)));
        }
        let index = self.chunks.len() - 1;
        let chunk = &mut self.chunks[index];
        let start = chunk.len();
        chunk.push(0);
        entry::put_remembered(chunk, remembered);
        chunk[start] = (chunk.len() - start - 1) as u8;
        chunk.resize(chunk.len().next_multiple_of(UNIT_BYTES), 0);
        ((index << 16) | (start / UNIT_BYTES)) as u32
    }

    fn grow(&mut self) {
        let size = (self.slots.len() * 2).max(SLOTS_MIN);
        let old = std::mem::replace(&mut self.slots, vec![0; size]);
        old.into_iter().filter(|slot| *slot != 0).for_each(|slot| self.occupy(slot));
    }

    fn occupy(&mut self, slot: u64) {
        let mut at = self.home((slot >> 32) as u32);
        while self.slots[at] != 0 {
            at = self.after(at);
        }
        self.slots[at] = slot;
    }
}

fn place(slot: u64) -> u32 {
    slot as u32 - 1
}

fn stored_at(chunk: &[u8], start: usize) -> Stored<'_> {
    Stored(&chunk[start + 1..][..usize::from(chunk[start])])
}

#[cfg(test)]
mod tests {
    use quipu_counting::Outcome;

    use super::*;

    fn remembered(identity: Identity, at_ms: u64) -> Remembered {
        let outcome = Outcome {
            refusal: None,
            existed: at_ms.is_multiple_of(2),
            exists: true,
            value: at_ms as i64 * 77,
            previous: -3,
            version: at_ms,
            birth: 1 + at_ms * at_ms,
        };
        Remembered { identity, fingerprint: identity as u64 ^ 5, at_ms, outcome }
    }

    #[test]
    fn every_id_is_found_and_listed() {
        let mut recent = Recent::default();
        let number = |n: u64| u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64 | u128::from(n / 3);
        for n in 0..20_000 {
            assert_eq!(recent.find(number(n)), None);
            recent.insert(&remembered(number(n), n));
        }
        assert!((0..20_000).all(|n| recent.find(number(n)) == Some(remembered(number(n), n))));
        assert_eq!(recent.len(), 20_000);
        assert_eq!(recent.tags().count(), 20_000);
        for ((place, stored), n) in recent.iter().zip(0..) {
            assert_eq!(stored.remembered(), remembered(number(n), n));
            assert_eq!((stored.identity(), stored.at_ms()), (number(n), n));
            assert_eq!(recent.at(place).0, stored.0);
        }
        assert_eq!(recent.iter().count(), 20_000);
    }

    #[test]
    fn a_newer_one_takes_the_place_of_an_older_one() {
        let mut recent = Recent::with_capacity(1);
        recent.insert(&remembered(7, 10));
        recent.insert(&remembered(7, 30));
        recent.insert(&remembered(7, 20));
        assert_eq!(recent.find(7), Some(remembered(7, 30)));
        assert_eq!(recent.len(), 1);
        assert_eq!(recent.iter().last().map(|(_, stored)| stored.at_ms()), Some(30));
    }
}
