//! What is known of counters that are watched, ready for any number of clients to take.
//!
//! A topic is one key or one prefix, shared by all who watch it. Every event has a number, and a topic keeps each counter's
//! newest event only. A client is nothing but the number up to which it has heard everything: what is above it is what it has
//! to hear, whether it waits for the next event, is slow, or comes back after a while. So a slow client costs no memory and
//! makes nobody wait, and a client that comes back misses nothing.
//!
//! The topic of a key keeps one event. That of a prefix keeps as many as there is room for, and knows up to which number it has
//! forgotten some (its floor): whoever is behind that begins anew with the counters as they are.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use quipu_counting::{Cell, Interest};
use tokio::sync::Notify;
use tokio::time::Instant;

/// Different keys watched at a time.
const KEYS_MAX: usize = 65_536;
/// Different prefixes watched at a time. Every change is compared with each of them.
const PREFIXES_MAX: usize = 256;
/// What the topics of prefixes keep together, about.
const KEPT_BYTES_MAX: usize = 32 << 20;
/// About what an event takes beside its key and its JSON.
const EVENT_BYTES: usize = 256;
/// For how long a topic is kept up that nobody watches any more: long enough for a client to come back.
const LINGER: Duration = Duration::from_secs(60);

/// A counter after a change.
#[derive(Debug)]
pub struct Change {
    /// Which.
    pub key: Arc<[u8]>,
    /// What it is; `None` if it does not exist.
    pub cell: Option<Cell>,
    /// The same for clients.
    pub json: Bytes,
}

impl Change {
    fn bytes(&self) -> usize {
        self.key.len() + self.json.len() + EVENT_BYTES
    }
}

/// What clients hear.
#[derive(Clone, Debug)]
pub enum Event {
    /// A counter changed.
    Change(Arc<Change>),
    /// Everything is gone.
    Clear,
}

/// What one client watches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// These counters; none twice.
    pub keys: Vec<Arc<[u8]>>,
    /// And all that begin with one of these; none twice.
    pub prefixes: Vec<Arc<[u8]>>,
}

/// Who watches a topic, and since when it is kept up.
#[derive(Default)]
struct Life {
    /// Whom to wake, by number.
    watchers: BTreeMap<u64, Arc<Notify>>,
    /// Since when nobody watches it.
    idle_since: Option<Instant>,
    /// Every event above this is here; `None` until changes are noted.
    floor: Option<u64>,
}

impl Life {
    fn wake(&self) {
        self.watchers.values().for_each(|watcher| watcher.notify_one());
    }

    fn is_over(&self, now: Instant, linger: Duration) -> bool {
        self.idle_since.is_some_and(|since| now.saturating_duration_since(since) >= linger)
    }

    fn covers(&self, since: u64) -> bool {
        self.floor.is_some_and(|floor| floor <= since)
    }
}

#[derive(Default)]
struct KeyTopic {
    life: Life,
    newest: Option<(u64, Arc<Change>)>,
}

impl KeyTopic {
    fn lacks(&self, cell: Option<&Cell>) -> bool {
        self.life.floor.is_some()
            && self.newest.as_ref().is_none_or(|(_, change)| change.cell.as_ref() != cell)
    }
}

#[derive(Default)]
struct PrefixTopic {
    life: Life,
    events: BTreeMap<u64, Event>,
    /// The number of each counter's event.
    numbers: HashMap<Arc<[u8]>, u64>,
    bytes: usize,
}

impl PrefixTopic {
    fn put(&mut self, number: u64, change: &Arc<Change>) {
        if let Some(before) = self.numbers.insert(Arc::clone(&change.key), number) {
            self.remove(before);
        }
        self.events.insert(number, Event::Change(Arc::clone(change)));
        self.bytes += change.bytes();
    }

    fn remove(&mut self, number: u64) {
        if let Some(Event::Change(change)) = self.events.remove(&number) {
            self.bytes -= change.bytes();
        }
    }

    fn knows(&self, key: &[u8], cell: Option<&Cell>) -> bool {
        let event = self.numbers.get(key).and_then(|number| self.events.get(number));
        matches!(event, Some(Event::Change(change)) if change.cell.as_ref() == cell)
    }

    fn forget_all(&mut self) {
        self.events.clear();
        self.numbers.clear();
        self.bytes = 0;
    }

    fn forget_older_half(&mut self) {
        let half: Vec<u64> = self.events.keys().copied().take(self.events.len().div_ceil(2)).collect();
        for number in &half {
            self.remove(*number);
        }
        if let Some(last) = half.last() {
            self.numbers.retain(|_, number| *number > *last);
            self.life.floor = Some(*last);
        }
    }
}

/// There is no room for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// See the head of this file.
#[derive(Default)]
pub struct Topics {
    /// Of the newest event.
    number: u64,
    keys: HashMap<Arc<[u8]>, KeyTopic>,
    prefixes: BTreeMap<Arc<[u8]>, PrefixTopic>,
    last_watcher: u64,
    /// What is watched is not what it was when somebody last asked.
    is_changed: bool,
}

impl Topics {
    /// The number of the newest event.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether nobody watches anything, and nobody did lately.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.prefixes.is_empty()
    }

    /// One more who watches, and is woken when there is something new. Returns its number.
    pub fn subscribe(
        &mut self,
        selection: &Selection,
        wake: &Arc<Notify>,
        now: Instant,
    ) -> Result<u64, Full> {
        if !self.has_room_for(selection) {
            self.forget_idle(now, Duration::ZERO);
            if !self.has_room_for(selection) {
                return Err(Full);
            }
        }
        self.last_watcher += 1;
        let before = self.keys.len() + self.prefixes.len();
        for key in &selection.keys {
            let topic = self.keys.entry(Arc::clone(key)).or_default();
            topic.life.watchers.insert(self.last_watcher, Arc::clone(wake));
            topic.life.idle_since = None;
        }
        for prefix in &selection.prefixes {
            let topic = self.prefixes.entry(Arc::clone(prefix)).or_default();
            topic.life.watchers.insert(self.last_watcher, Arc::clone(wake));
            topic.life.idle_since = None;
        }
        self.is_changed |= self.keys.len() + self.prefixes.len() > before;
        Ok(self.last_watcher)
    }

    fn has_room_for(&self, selection: &Selection) -> bool {
        let new_keys = selection.keys.iter().filter(|key| !self.keys.contains_key(*key)).count();
        let new_prefixes =
            selection.prefixes.iter().filter(|prefix| !self.prefixes.contains_key(*prefix)).count();
        self.keys.len() + new_keys <= KEYS_MAX && self.prefixes.len() + new_prefixes <= PREFIXES_MAX
    }

    /// It watches no more.
    pub fn unsubscribe(&mut self, watcher: u64, selection: &Selection, now: Instant) {
        let leave = |life: &mut Life| {
            life.watchers.remove(&watcher);
            if life.watchers.is_empty() {
                life.idle_since = Some(now);
            }
        };
        for key in &selection.keys {
            if let Some(topic) = self.keys.get_mut(key) {
                leave(&mut topic.life);
            }
        }
        for prefix in &selection.prefixes {
            if let Some(topic) = self.prefixes.get_mut(prefix) {
                leave(&mut topic.life);
            }
        }
    }

    /// Gives up what nobody has watched for a while.
    pub fn forget_lingering(&mut self, now: Instant) {
        self.forget_idle(now, LINGER);
    }

    fn forget_idle(&mut self, now: Instant, linger: Duration) {
        let before = self.keys.len() + self.prefixes.len();
        self.keys.retain(|_, topic| !topic.life.is_over(now, linger));
        self.prefixes.retain(|_, topic| !topic.life.is_over(now, linger));
        self.is_changed |= self.keys.len() + self.prefixes.len() < before;
    }

    /// What is watched, if that is something else than when this was last called.
    pub fn take_interest(&mut self) -> Option<Interest> {
        let keys = self.keys.keys().map(|key| key.to_vec());
        let prefixes = self.prefixes.keys().map(|prefix| prefix.to_vec());
        std::mem::take(&mut self.is_changed).then(|| Interest::new(keys, prefixes))
    }

    /// Changes of all this are noted by now. Returns the keys of which nothing is known yet.
    pub fn are_noted(&mut self, interest: &Interest) -> Vec<Vec<u8>> {
        let number = self.number;
        let mut unknown = Vec::new();
        for key in interest.keys() {
            if let Some(topic) = self.keys.get_mut(key)
                && topic.life.floor.is_none()
            {
                topic.life.floor = Some(number);
                unknown.push(key.to_vec());
            }
        }
        for (prefix, topic) in &mut self.prefixes {
            if topic.life.floor.is_none() && interest.covers_by_prefix(prefix) {
                // Above every number that was ever told: who comes back with one of those has missed what happened meanwhile. (What is
                // true of keys is read anew, and told.)
                self.number = number + 1;
                topic.life.floor = Some(self.number);
                topic.life.wake();
            }
        }
        unknown
    }

    /// Whether anybody wants to hear of this counter.
    pub fn wants(&self, key: &[u8]) -> bool {
        self.keys.contains_key(key) || self.prefixes.keys().any(|prefix| key.starts_with(prefix))
    }

    /// All keys that are watched by name.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<[u8]>> {
        self.keys.keys()
    }

    /// A counter has changed and is so now. Tells those who do not know it.
    pub fn publish(&mut self, key: &[u8], cell: Option<Cell>, json: impl FnOnce() -> Bytes) {
        let wants = |(prefix, topic): &(&Arc<[u8]>, &mut PrefixTopic)| {
            key.starts_with(prefix) && topic.life.floor.is_some() && !topic.knows(key, cell.as_ref())
        };
        let of_prefixes: Vec<&mut PrefixTopic> =
            self.prefixes.iter_mut().filter(wants).map(|(_, topic)| topic).collect();
        if of_prefixes.is_empty() {
            return self.learn(key, cell, json);
        }
        self.number += 1;
        let change = Arc::new(Change { key: key.into(), cell, json: json() });
        for topic in of_prefixes {
            topic.put(self.number, &change);
            topic.life.wake();
        }
        if let Some(topic) = self.keys.get_mut(key).filter(|topic| topic.lacks(cell.as_ref())) {
            topic.newest = Some((self.number, change));
            topic.life.wake();
        }
        self.keep_within_bounds();
    }

    /// A counter is so, as far as nobody knew, and may have been so for long. Tells those who watch it by name.
    pub fn learn(&mut self, key: &[u8], cell: Option<Cell>, json: impl FnOnce() -> Bytes) {
        if let Some(topic) = self.keys.get_mut(key).filter(|topic| topic.lacks(cell.as_ref())) {
            self.number += 1;
            topic.newest = Some((self.number, Arc::new(Change { key: key.into(), cell, json: json() })));
            topic.life.wake();
        }
    }

    fn keep_within_bounds(&mut self) {
        while self.prefixes.values().map(|topic| topic.bytes).sum::<usize>() > KEPT_BYTES_MAX {
            // Who keeps most gives up most: who watches little is not disturbed by who watches much.
            let Some(largest) = self.prefixes.values_mut().max_by_key(|topic| topic.bytes) else { return };
            largest.forget_older_half();
            largest.life.wake();
        }
    }

    /// All counters are gone. `json` says of one that it does not exist.
    pub fn clear(&mut self, json: impl Fn(&[u8]) -> Bytes) {
        self.number += 1;
        for topic in self.prefixes.values_mut().filter(|topic| topic.life.floor.is_some()) {
            topic.forget_all();
            topic.events.insert(self.number, Event::Clear);
            topic.life.wake();
        }
        for (key, topic) in &mut self.keys {
            if let Some((number, change)) = &mut topic.newest
                && change.cell.is_some()
            {
                self.number += 1;
                *number = self.number;
                *change = Arc::new(Change { key: Arc::clone(key), cell: None, json: json(key) });
                topic.life.wake();
            }
        }
    }

    /// Nobody knows what changed: whoever watches a prefix begins anew.
    pub fn lose(&mut self) {
        self.number += 1;
        for topic in self.prefixes.values_mut().filter(|topic| topic.life.floor.is_some()) {
            topic.forget_all();
            topic.life.floor = Some(self.number);
            topic.life.wake();
        }
    }

    /// Whether changes of all this are noted, and its counters known.
    pub fn is_known(&self, selection: &Selection) -> bool {
        let is_known = |key| self.keys.get(key).is_some_and(|topic: &KeyTopic| topic.newest.is_some());
        let is_noted = |prefix| self.prefixes.get(prefix).is_some_and(|topic| topic.life.floor.is_some());
        selection.keys.iter().all(is_known) && selection.prefixes.iter().all(is_noted)
    }

    /// Whether everything that happened after an event is here.
    pub fn covers(&self, selection: &Selection, since: u64) -> bool {
        let of_key = |key| self.keys.get(key).is_some_and(|topic: &KeyTopic| topic.life.covers(since));
        let of_prefix = |prefix| self.prefixes.get(prefix).is_some_and(|topic| topic.life.covers(since));
        since <= self.number && selection.keys.iter().all(of_key) && selection.prefixes.iter().all(of_prefix)
    }

    /// The first events after `since`, up to `until`, as many as `most`; `None` if some of them were forgotten.
    pub fn events(
        &self,
        selection: &Selection,
        since: u64,
        until: u64,
        most: usize,
    ) -> Option<Vec<(u64, Event)>> {
        if !self.covers(selection, since) {
            return None;
        }
        let wanted = since.saturating_add(1)..=until;
        let mut events: Vec<(u64, Event)> = (selection.keys.iter())
            .filter_map(|key| self.keys.get(key)?.newest.as_ref())
            .filter(|(number, _)| wanted.contains(number))
            .map(|(number, change)| (*number, Event::Change(Arc::clone(change))))
            .collect();
        if !wanted.is_empty() {
            for topic in selection.prefixes.iter().filter_map(|prefix| self.prefixes.get(prefix)) {
                let of_prefix = topic.events.range(wanted.clone()).take(most);
                events.extend(of_prefix.map(|(number, event)| (*number, event.clone())));
            }
        }
        events.sort_unstable_by_key(|(number, _)| *number);
        events.dedup_by_key(|(number, _)| *number);
        events.truncate(most);
        Some(events)
    }

    /// The counters watched by name as they were after this event, as far as they have not changed since.
    pub fn known(&self, selection: &Selection, at: u64) -> Vec<Arc<Change>> {
        let newest = selection.keys.iter().filter_map(|key| self.keys.get(key)?.newest.as_ref());
        newest.filter(|(number, _)| *number <= at).map(|(_, change)| Arc::clone(change)).collect()
    }

    /// Whether there is an event of this counter after that one.
    pub fn has_changed(&self, selection: &Selection, key: &[u8], since: u64) -> bool {
        let topics = selection.prefixes.iter().filter_map(|prefix| self.prefixes.get(prefix));
        topics.filter_map(|topic| topic.numbers.get(key)).any(|number| *number > since)
    }
}
