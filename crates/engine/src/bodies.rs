//! What counters of one partition have beyond their records: bodies, by key.
//!
//! A record says by a flag whether its counter has one. Bodies are shared with checkpoints and with whoever looks at them, and lent to the
//! rules while a change is decided, so that it is made in place.

use std::sync::Arc;

use foldhash::quality::RandomState;
use indexmap::IndexMap;
use quipu_counting::Body;

/// What the map takes for each, beside body and key, roughly.
const SLOT_BYTES: usize = 64;

/// See the head of this file.
#[derive(Default)]
pub struct Bodies {
    /// `None` while one is lent. In the order of arrival, nearly, for a hand that goes round.
    by_key: IndexMap<Box<[u8]>, Option<Arc<Body>>, RandomState>,
    bytes: usize,
    hand: usize,
}

impl Bodies {
    /// What they take in memory, roughly.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// The body of a counter, if it has one and it is not lent.
    pub fn get(&self, key: &[u8]) -> Option<&Arc<Body>> {
        self.by_key.get(key).and_then(Option::as_ref)
    }

    /// Takes a body to change it. It must be given back.
    pub fn lend(&mut self, key: &[u8]) -> Option<Arc<Body>> {
        let body = self.by_key.get_mut(key)?.take()?;
        self.bytes -= size(key, &body);
        Some(body)
    }

    /// Gives a body to a counter, or gives one back.
    pub fn put(&mut self, key: &[u8], body: Arc<Body>) {
        self.bytes += size(key, &body);
        let before = match self.by_key.get_mut(key) {
            Some(place) => place.replace(body),
            None => self.by_key.insert(key.into(), Some(body)).flatten(),
        };
        if let Some(before) = before {
            self.bytes -= size(key, &before);
        }
    }

    /// Takes a body away.
    pub fn remove(&mut self, key: &[u8]) {
        if let Some(Some(body)) = self.by_key.swap_remove(key) {
            self.bytes -= size(key, &body);
        }
    }

    /// Takes all away.
    pub fn clear(&mut self) {
        *self = Bodies::default();
    }

    /// The key at which the hand of eviction is, which moves on.
    pub fn next(&mut self) -> Option<Box<[u8]>> {
        self.hand = if self.hand + 1 < self.by_key.len() { self.hand + 1 } else { 0 };
        self.by_key.get_index(self.hand).map(|(key, _)| key.clone())
    }
}

fn size(key: &[u8], body: &Body) -> usize {
    SLOT_BYTES + key.len() + body.memory_bytes()
}
