//! A walk over all keys returns every key that exists during the whole walk, and none that does not exist.

use std::collections::{BTreeMap, BTreeSet};

use quipu_counting::service::ScanPage;

use crate::ask::Key;
use crate::oracle::model::Model;
use crate::oracle::rules::Ticket;
use crate::violation::{Invariant, Violation};

/// A walk under way.
pub struct Walk {
    /// Where to go on.
    pub cursor: u64,
    /// What existed at the start and has existed ever since, as the same life.
    throughout: BTreeMap<Key, Ticket>,
    seen: BTreeSet<Key>,
}

impl Walk {
    /// A walk that begins now.
    pub fn begin(model: &Model, now: u64) -> Walk {
        Walk { cursor: 0, throughout: alive(model, now), seen: BTreeSet::new() }
    }

    /// Takes a page. Returns the keys on it, and whether the walk is complete.
    pub fn page(&mut self, page: &ScanPage, model: &Model, now: u64) -> Result<(Vec<Key>, bool), Violation> {
        let alive = alive(model, now);
        let mut keys = Vec::new();
        for bytes in &page.keys {
            match model.universe.find(bytes).filter(|key| alive.contains_key(key)) {
                Some(key) => keys.push(key),
                None => {
                    let what = format!("returned {:?}, which does not exist", String::from_utf8_lossy(bytes));
                    return Err(Violation::new(Invariant::Scans, what));
                }
            }
        }
        self.seen.extend(&keys);
        self.throughout.retain(|key, born| alive.get(key) == Some(born));
        self.cursor = page.cursor;
        if page.cursor != 0 {
            return Ok((keys, false));
        }
        match self.throughout.keys().find(|key| !self.seen.contains(key)) {
            Some(key) => {
                let what = format!("never returned key {key}, which existed all the time");
                Err(Violation::new(Invariant::Scans, what))
            }
            None => Ok((keys, true)),
        }
    }
}

fn alive(model: &Model, now: u64) -> BTreeMap<Key, Ticket> {
    let living = model.counters.iter().filter(|(_, counter)| counter.is_live(now));
    living.map(|(key, counter)| (*key, counter.born)).collect()
}
