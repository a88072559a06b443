//! Which watched counters have changed, from the streams: whoever changes a counter, at whatever node, says so there.
//!
//! While somebody watches, all streams are read every 50 ms, from where they ended when watching began; while nobody does, none is. Flushers
//! trim the streams meanwhile. A stream that has become shorter than what was read makes it was trimmed; how many entries it ever had says
//! whether one of those was not read: then it is only known that something has changed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use quipu_counting::{Changes, Interest};
use redis::{Pipeline, RedisResult, Value};
use tokio::task::AbortHandle;

use crate::archive::{key_of, wall_ms};
use crate::external::External;
use crate::groups::{self, GROUPS};
use crate::masters::{Links, Map};

/// Between two looks at the streams.
const PAUSE: Duration = Duration::from_millis(50);
/// The most entries of a stream that are read at once; the rest comes with the next look.
const ENTRIES_MAX: usize = 200;
/// The most counters that are noted for who asks rarely, and the most whose ends are known.
const NOTED_MAX: usize = 65_536;
/// While counters end that are not known, it is said no more often than so that something is lost: who watches looks at everything then.
const UNKNOWN_PAUSE_MS: u64 = 10_000;
/// Where the expiry stands in what a stream tells of a change, if that may have one.
const EXPIRY_FIELD: usize = 6;

/// Who watches, and what was noted for them.
#[derive(Default)]
pub(crate) struct Watching {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    interest: Interest,
    keys: HashSet<Vec<u8>>,
    lost: bool,
    /// When watched counters end by themselves, which nobody tells.
    ends: BTreeSet<(u64, Arc<[u8]>)>,
    /// The same by key.
    ends_of: HashMap<Arc<[u8]>, u64>,
    /// When the first and the last of those end that are not known any more.
    unknown_ends: Option<(u64, u64)>,
    /// Until then nothing is said of them.
    unknown_until_ms: u64,
    task: Option<AbortHandle>,
}

impl State {
    fn note(&mut self, key: &[u8]) {
        if self.keys.len() >= NOTED_MAX {
            self.lose();
        } else if !self.lost {
            self.keys.insert(key.to_vec());
        }
    }

    fn lose(&mut self) {
        self.lost = true;
        self.keys = HashSet::new();
    }

    /// Some changes of counters, as entries of streams have them.
    fn hear<'a>(&mut self, told: impl Iterator<Item = (&'a [u8], &'a [u8])>) {
        for (field, text) in told {
            let Some(key) = key_of(field, text).filter(|key| self.interest.covers(key)) else { continue };
            self.note(key);
            let field = text.split(|byte| *byte == b' ').nth(EXPIRY_FIELD);
            let expires = field.and_then(|field| std::str::from_utf8(field).ok()?.parse::<u64>().ok());
            if let Some(expires) = expires {
                self.note_end(key, expires);
            }
        }
    }

    /// A counter will end then, and not when it was said before.
    fn note_end(&mut self, key: &[u8], expires: u64) {
        let known = match self.ends_of.remove_entry(key) {
            Some((known, former)) => {
                let noted = (former, known);
                self.ends.remove(&noted);
                noted.1
            }
            None if self.ends.len() < NOTED_MAX => Arc::from(key),
            None => {
                let (first, last) = self.unknown_ends.unwrap_or((expires, expires));
                self.unknown_ends = Some((first.min(expires), last.max(expires)));
                return;
            }
        };
        self.ends.insert((expires, Arc::clone(&known)));
        self.ends_of.insert(known, expires);
    }

    /// Notes those that have ended.
    fn end(&mut self, now_ms: u64) {
        while self.ends.first().is_some_and(|(expires, _)| *expires <= now_ms) {
            let Some((_, key)) = self.ends.pop_first() else { break };
            self.ends_of.remove(&key);
            if self.interest.covers(&key) {
                self.note(&key);
            }
        }
        let unknown = self.unknown_ends.filter(|(first, _)| self.unknown_until_ms.max(*first) <= now_ms);
        if let Some((_, last)) = unknown {
            self.lose();
            self.unknown_until_ms = now_ms.saturating_add(UNKNOWN_PAUSE_MS);
            // Of those in between nobody knows when they end.
            self.unknown_ends = (last > now_ms).then_some((now_ms, last));
        }
    }
}

/// Up to where a stream was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Place {
    id: String,
    /// How many entries it had then.
    length: u64,
    /// How many it had ever had.
    added: u64,
}

type Places = BTreeMap<u16, Place>;

impl External {
    /// From now on changes of these counters are noted.
    pub(crate) fn watch_streams(&self, interest: Interest, watched: Box<dyn FnOnce() + Send>) {
        let mut state = self.watching.state.lock();
        if interest.is_empty() {
            if let Some(task) = std::mem::take(&mut *state).task {
                task.abort();
            }
            return watched();
        }
        state.interest = interest;
        if state.task.is_some() {
            // What it has passed by was there before.
            return watched();
        }
        let own = Weak::clone(&self.own);
        state.task = Some(self.handle.spawn(follow(own, watched)).abort_handle());
    }

    /// What was noted since the last call.
    pub(crate) fn watched_changes(&self) -> Changes {
        let mut state = self.watching.state.lock();
        state.end(u64::try_from(wall_ms()).unwrap_or(0));
        let keys = std::mem::take(&mut state.keys).into_iter().collect();
        Changes { cleared: false, keys, lost: std::mem::take(&mut state.lost) }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.state.get_mut().task.take().inspect(AbortHandle::abort);
    }
}

async fn follow(own: Weak<External>, watched: Box<dyn FnOnce() + Send>) {
    let (mut places, mut watched) = (Places::new(), Some(watched));
    loop {
        let Some(external) = own.upgrade() else { return };
        let (links, map) = (external.links(), external.map());
        drop(external);
        let mut lost = false;
        let mut told: Vec<Value> = Vec::new();
        for address in map.masters() {
            match look(&links, &map, &address, &mut places, &mut told).await {
                Ok(is_whole) => lost |= !is_whole,
                // The places stay; what is missing then is found out when it answers again.
                Err(error) => tracing::debug!(address, %error, "streams cannot be read"),
            }
        }
        let Some(external) = own.upgrade() else { return };
        {
            let mut state = external.watching.state.lock();
            state.hear(told.iter().flat_map(changes));
            if lost {
                state.lose();
            }
        }
        if places.len() == usize::from(GROUPS)
            && let Some(watched) = watched.take()
        {
            watched();
        }
        drop(external);
        tokio::time::sleep(PAUSE).await;
    }
}

/// Reads what is new in the streams of a master. Says no if something was not read.
async fn look(
    links: &Links,
    map: &Map,
    address: &str,
    places: &mut Places,
    told: &mut Vec<Value>,
) -> RedisResult<bool> {
    let here: Vec<u16> = map.groups_of(address).collect();
    let mut pipeline = Pipeline::new();
    for group in &here {
        let stream = groups::stream(*group);
        let from = places.get(group).map_or("+".to_owned(), |place| format!("({}", place.id));
        // Of one moment.
        pipeline.cmd("MULTI");
        pipeline.cmd("XLEN").arg(&stream);
        pipeline.cmd("XRANGE").arg(&stream).arg(from).arg("+").arg("COUNT").arg(ENTRIES_MAX);
        pipeline.cmd("EXEC");
    }
    let answers = links.ask_all(address, &pipeline, here.len() * 4).await?;
    let mut doubtful = Vec::new();
    for (group, answer) in here.iter().zip(answers.into_iter().skip(3).step_by(4)) {
        let (length, entries): (u64, Vec<(String, Value)>) = redis::from_redis_value(answer)?;
        let count = entries.len() as u64;
        match places.get_mut(group) {
            Some(place) if length == place.length + count || count == ENTRIES_MAX as u64 => {
                place.length += count;
                place.added += count;
                place.id = entries.last().map_or(std::mem::take(&mut place.id), |(id, _)| id.clone());
                told.extend(entries.into_iter().map(|(_, fields)| fields));
            }
            _ => doubtful.push(*group),
        }
    }
    look_closely(links, address, &doubtful, places, told).await
}

/// Reads streams that are new here, or were trimmed, with how many entries they ever had.
async fn look_closely(
    links: &Links,
    address: &str,
    groups: &[u16],
    places: &mut Places,
    told: &mut Vec<Value>,
) -> RedisResult<bool> {
    let mut is_whole = true;
    for group in groups {
        let stream = groups::stream(*group);
        let from = places.get(group).map_or("+".to_owned(), |place| format!("({}", place.id));
        let mut pipeline = Pipeline::new();
        pipeline.cmd("MULTI");
        pipeline.cmd("XINFO").arg("STREAM").arg(&stream);
        pipeline.cmd("XRANGE").arg(&stream).arg(from).arg("+");
        pipeline.cmd("EXEC");
        let answer = links.ask_all(address, &pipeline, 4).await?.pop().unwrap_or(Value::Nil);
        let (info, entries): (BTreeMap<String, Value>, Vec<(String, Value)>) =
            redis::from_redis_value(answer)?;
        let field = |name: &str| info.get(name).cloned().unwrap_or(Value::Nil);
        let now = Place {
            id: redis::from_redis_value(field("last-generated-id"))?,
            length: redis::from_redis_value(field("length"))?,
            added: redis::from_redis_value(field("entries-added"))?,
        };
        if let Some(before) = places.insert(*group, now.clone()) {
            is_whole &= before.added + entries.len() as u64 == now.added;
            told.extend(entries.into_iter().map(|(_, fields)| fields));
        }
    }
    Ok(is_whole)
}

/// Keys and what is told of them, from the fields of an entry.
fn changes(fields: &Value) -> impl Iterator<Item = (&[u8], &[u8])> {
    let fields: &[Value] = match fields {
        Value::Array(fields) => fields,
        _ => &[],
    };
    fields.chunks_exact(2).filter_map(|pair| match pair {
        [Value::BulkString(key), Value::BulkString(text)] => Some((&key[..], &text[..])),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watching() -> State {
        State { interest: Interest::new([], [b"key:".to_vec()]), ..State::default() }
    }

    fn hear(state: &mut State, number: usize, expires: u64) {
        let (key, text) = (format!("key:{number}"), format!("s 5 7 3 1000 9 {expires}"));
        state.hear([(key.as_bytes(), text.as_bytes())].into_iter());
    }

    fn noted(state: &mut State, now_ms: u64) -> (usize, bool) {
        state.end(now_ms);
        (std::mem::take(&mut state.keys).len(), std::mem::take(&mut state.lost))
    }

    #[test]
    fn no_more_ends_are_noted_than_may_be() {
        let mut state = watching();
        for _ in 0..2 {
            (0..NOTED_MAX).for_each(|number| hear(&mut state, number, 5_000));
            assert_eq!((state.ends.len(), state.ends_of.len()), (NOTED_MAX, NOTED_MAX));
        }
        // It is not known of these, but that they end is told.
        for (number, expires) in [(0, 7_000), (1, 6_000), (2, 30_000)] {
            hear(&mut state, NOTED_MAX + number, expires);
        }
        assert_eq!(state.ends.len(), NOTED_MAX);
        (state.keys, state.lost) = (HashSet::new(), false);
        assert_eq!(noted(&mut state, 4_999), (0, false));
        assert_eq!(noted(&mut state, 5_000), (NOTED_MAX, false));
        assert_eq!((state.ends.len(), state.ends_of.len()), (0, 0));
        let lost = [5_999, 6_000, 6_001, 15_999, 16_000, 26_000, 30_000, 36_000, 99_000];
        let lost = lost.map(|now_ms| noted(&mut state, now_ms).1);
        assert_eq!(lost, [false, true, false, false, true, true, false, true, false]);
    }

    #[test]
    fn a_counter_ends_when_it_was_last_said() {
        let mut state = watching();
        hear(&mut state, 1, 5_000);
        hear(&mut state, 1, 7_000);
        state.keys.clear();
        assert_eq!([5_000, 7_000, 9_000].map(|now_ms| noted(&mut state, now_ms).0), [0, 1, 0]);
    }
}
