//! Counters that were decided about lately, as they were then: mostly they still are, and then one round trip does.
//!
//! There is a young part and an old one: what is used lies in the young one. When that is full it becomes the old one, and what nobody has
//! used since the last time is forgotten.
//!
//! What is known was true of one master. Another one, or the same after a restart, may have lost some of it, and come to the same
//! version on another way: a version alone does not tell. So every entry has the term in which it was learnt, and is worth nothing in
//! another.

use std::collections::HashMap;

use quipu_counting::Whole;

/// What an entry costs beside its key and its body.
const ENTRY_BYTES: usize = 128;

pub(crate) struct Cache {
    /// The most bytes of a part.
    bytes_max: usize,
    /// Bytes of the young one.
    bytes: usize,
    young: HashMap<Vec<u8>, Entry>,
    old: HashMap<Vec<u8>, Entry>,
}

#[derive(Clone)]
struct Entry {
    whole: Whole,
    term: u64,
}

fn bytes_of(key: &[u8], whole: &Whole) -> usize {
    ENTRY_BYTES + key.len() + whole.body.as_ref().map_or(0, |body| body.memory_bytes())
}

impl Cache {
    /// One that holds about so many bytes.
    pub(crate) fn new(bytes: usize) -> Cache {
        Cache { bytes_max: bytes / 2, bytes: 0, young: HashMap::new(), old: HashMap::new() }
    }

    /// What is known of a counter in this term.
    pub(crate) fn get(&mut self, key: &[u8], term: u64) -> Option<Whole> {
        if !self.young.contains_key(key) {
            let entry = self.old.remove(key)?;
            self.put(key, entry.whole, entry.term);
        }
        self.young.get(key).filter(|entry| entry.term == term).map(|entry| entry.whole.clone())
    }

    /// Whether the counter had a body when it was last heard of.
    pub(crate) fn has_body(&self, key: &[u8]) -> bool {
        let found = self.young.get(key).or_else(|| self.old.get(key));
        found.is_some_and(|entry| entry.whole.body.is_some())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_empty()
    }

    /// The counter is so now. One that does not exist needs no place.
    pub(crate) fn put(&mut self, key: &[u8], whole: Whole, term: u64) {
        self.remove(key);
        if whole.cell.is_none() {
            return;
        }
        let bytes = bytes_of(key, &whole);
        if self.bytes + bytes > self.bytes_max {
            self.old = std::mem::take(&mut self.young);
            self.bytes = 0;
        }
        if bytes <= self.bytes_max {
            self.bytes += bytes;
            self.young.insert(key.to_vec(), Entry { whole, term });
        }
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(entry) = self.young.remove(key) {
            self.bytes = self.bytes.saturating_sub(bytes_of(key, &entry.whole));
        }
        self.old.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use quipu_counting::Cell;

    use super::*;

    fn whole(value: i64) -> Whole {
        Whole { cell: Some(Cell { value, ..Cell::ABSENT }), body: None }
    }

    #[test]
    fn what_is_used_stays_and_the_rest_is_forgotten() {
        let mut cache = Cache::new(20 * (ENTRY_BYTES + 2));
        for number in 0..100 {
            cache.put(format!("{number:02}").as_bytes(), whole(number), 1);
            assert_eq!(cache.get(b"00", 1), Some(whole(0)), "after {number}");
            assert!(cache.young.len() + cache.old.len() <= 20);
        }
        assert_eq!(cache.get(b"99", 1), Some(whole(99)));
        assert_eq!(cache.get(b"50", 1), None);
        assert_eq!(cache.get(b"99", 2), None, "of another term");
        cache.put(b"99", Whole::default(), 1);
        assert_eq!(cache.get(b"99", 1), None, "it is gone");
        let long = vec![b'k'; 10 * (ENTRY_BYTES + 2)];
        cache.put(&long, whole(1), 1);
        assert_eq!(cache.get(&long, 1), None, "one that is too large is not kept");
    }
}
