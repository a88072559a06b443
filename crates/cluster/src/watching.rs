//! Changes of counters that somebody watches at this node, wherever they are.
//!
//! A replica notes what it carries out (`quipu_engine`), so of the partitions that are here a node knows by itself. Of the others it
//! asks, for as long as somebody watches, one node that holds them: which counters have changed since you told me last? Whoever is
//! asked forgets those who have not asked for a while.
//!
//! Nothing is missed without being known: where an answer does not come, another has to be asked, or one that was asked has
//! forgotten, what changed is *lost*, and whoever watches looks at everything.
//!
//! FLUSHALL is carried out by each partition for itself. Here it is one thing: what changes meanwhile waits until it was done by all
//! of them, and if that takes too long, it is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use quipu_counting::slot::{partition as partition_of, slot};
use quipu_counting::{Changes, Interest, KEY_BYTES_MAX};
use quipu_wire::entry::{Malformed, Reader, put_bytes, put_varint};
use tokio::time::Instant;

use crate::node::Node;
use crate::questions::{kind, read_partition};
use crate::raft::{NodeId, NotDone};

/// How often others are asked.
const ASK_PAUSE: Duration = Duration::from_millis(100);
/// How long they may take to answer.
const ASK_MAX: Duration = Duration::from_secs(1);
/// Who has not asked for so long is forgotten.
const FORGET_AFTER: Duration = Duration::from_secs(10);
/// How long FLUSHALL may take to reach all partitions.
const CLEAR_MAX: Duration = Duration::from_secs(2);
/// Keys that are kept for who has not heard of them; with more of them, they are lost.
const KEYS_MAX: usize = 65_536;

const CLEARED: u8 = 1;
const LOST: u8 = 2;
const NOT_HERE: u8 = 4;

/// What a node remembers of all this.
#[derive(Default)]
pub(crate) struct Watching {
    own: Mutex<Own>,
    others: Mutex<BTreeMap<NodeId, Other>>,
}

/// What is watched here.
#[derive(Default)]
struct Own {
    interest: Interest,
    /// Names what is watched now.
    version: u64,
    is_asking: bool,
    /// Who is asked about a partition that is not here, and has answered.
    holders: BTreeMap<u16, NodeId>,
    /// Nobody counts on changes yet: none was promised to anybody.
    is_beginning: bool,
    /// The version of what a node knows to be watched.
    known: BTreeMap<NodeId, u64>,
    /// Who was asked and has not answered yet.
    asked: BTreeSet<NodeId>,
    /// How often somebody was asked in vain: the next one is another.
    failures: usize,
    found: BTreeMap<u16, Changes>,
    clearing: Option<Clearing>,
}

/// A FLUSHALL under way.
struct Clearing {
    since: Instant,
    done: BTreeSet<u16>,
    /// What changed meanwhile.
    keys: Vec<Vec<u8>>,
    /// It is not known what changed meanwhile.
    lost: bool,
}

/// What is noted for another node.
struct Other {
    version: u64,
    asked_at: Instant,
}

/// What another node says.
struct Told {
    /// It notes changes only now.
    is_new: bool,
    /// `None` for a partition that is not there.
    changes: BTreeMap<u16, Option<Changes>>,
}

impl Node {
    /// From now on changes of these counters are noted. Calls back once that is so everywhere, as far as others are reached.
    pub fn watch(&self, interest: Interest, watched: Box<dyn FnOnce() + Send>) {
        self.engine.watch_for(self.id, interest.clone());
        let mut own = self.watching.own.lock();
        own.version += 1;
        if own.interest.is_empty() {
            let Own { version, is_asking, .. } = *own;
            let asked = std::mem::take(&mut own.asked);
            *own = Own { version, is_asking, asked, is_beginning: true, ..Own::default() };
        }
        own.interest = interest;
        let begins = !own.interest.is_empty() && !std::mem::replace(&mut own.is_asking, true);
        drop(own);
        let Some(node) = self.myself.upgrade() else { return watched() };
        tokio::spawn(async move {
            node.ask_holders().await;
            node.watching.own.lock().is_beginning = false;
            watched();
        });
        if begins {
            let weak = self.myself.clone();
            tokio::spawn(async move {
                loop {
                    tokio::time::sleep(ASK_PAUSE).await;
                    let Some(node) = weak.upgrade() else { return };
                    if node.has_nothing_to_ask() {
                        return;
                    }
                    node.ask_idle_holders();
                }
            });
        }
    }

    fn has_nothing_to_ask(&self) -> bool {
        let mut own = self.watching.own.lock();
        own.is_asking = !own.interest.is_empty();
        !own.is_asking
    }

    /// What became of watched counters since the last call.
    pub fn changes(&self) -> Changes {
        let mut all: BTreeMap<u16, Changes> = std::mem::take(&mut self.watching.own.lock().found);
        for partition in 0..self.partitions {
            if let Some(here) =
                self.engine.take_changes_of(self.id, partition).filter(|here| !here.is_empty())
            {
                all.entry(partition).or_default().then(here);
            }
        }
        self.watching.own.lock().put_together(all, self.partitions)
    }

    /// Asks about all partitions that are not here, and waits for all answers.
    async fn ask_holders(&self) {
        let asked = self.by_holder().into_iter();
        join_all(asked.map(|(holder, partitions)| self.ask_holder(holder, partitions))).await;
    }

    /// Asks those who have answered the last time, each by itself: what one of them knows does not wait for another, which may hang.
    fn ask_idle_holders(&self) {
        for (holder, partitions) in self.by_holder() {
            let Some(node) = self.myself.upgrade() else { return };
            if self.watching.own.lock().asked.insert(holder) {
                tokio::spawn(async move {
                    node.ask_holder(holder, partitions).await;
                    node.watching.own.lock().asked.remove(&holder);
                });
            }
        }
    }

    /// Whom to ask about which partitions that are not here.
    fn by_holder(&self) -> BTreeMap<NodeId, Vec<u16>> {
        let mut partitions: BTreeMap<NodeId, Vec<u16>> = BTreeMap::new();
        let elsewhere: Vec<u16> =
            (0..self.partitions).filter(|partition| self.group(*partition).is_none()).collect();
        {
            let mut own = self.watching.own.lock();
            if own.interest.is_empty() {
                return partitions;
            }
            own.holders.retain(|partition, _| elsewhere.contains(partition));
            for partition in elsewhere {
                let known = own.holders.get(&partition).copied();
                if let Some(holder) = known.or_else(|| self.holder(partition, own.failures)) {
                    if known.is_none() {
                        // It was not told what is watched there.
                        own.known.remove(&holder);
                    }
                    partitions.entry(holder).or_default().push(partition);
                }
            }
        }
        partitions
    }

    /// Another that should hold a partition; not always the same.
    fn holder(&self, partition: u16, failures: usize) -> Option<NodeId> {
        let mut others = self.candidates(partition);
        others.retain(|node| *node != self.id);
        others.get(failures % others.len().max(1)).copied()
    }

    async fn ask_holder(&self, holder: NodeId, partitions: Vec<u16>) {
        let (asked, version) = {
            let own = self.watching.own.lock();
            let is_known = own.known.get(&holder) == Some(&own.version);
            let news = (!is_known).then(|| self.elsewhere(&own.interest));
            (put_question(own.version, news.as_ref(), &partitions), own.version)
        };
        let told = self.ask(holder, asked, ASK_MAX, read_answer).await;
        let mut own = self.watching.own.lock();
        match told {
            Ok(Some(told)) => {
                own.known.insert(holder, version);
                own.hear(holder, told);
            }
            // It does not know what is watched, or what it said is lost.
            Ok(None) | Err(_) => own.forget(holder),
        }
    }

    /// What is watched of the counters that are not here.
    fn elsewhere(&self, interest: &Interest) -> Interest {
        let is_elsewhere = |key: &&[u8]| self.group(partition_of(slot(key), self.partitions)).is_none();
        let keys = interest.keys().filter(is_elsewhere).map(<[u8]>::to_vec);
        Interest::new(keys, interest.prefixes().iter().cloned())
    }

    /// Answers another node.
    pub(crate) fn answer_watch(
        &self,
        from: NodeId,
        reader: &mut Reader<'_>,
    ) -> Result<Result<Vec<u8>, NotDone>, Malformed> {
        let version = reader.varint()?;
        let interest = if reader.flag()? { Some(read_interest(reader)?) } else { None };
        let partitions = (0..reader.count()?).map(|_| read_partition(reader));
        let partitions = partitions.collect::<Result<BTreeSet<u16>, _>>()?;
        let mut others = self.watching.others.lock();
        let is_new = !others.contains_key(&from);
        if let Some(interest) = interest {
            self.engine.watch_for(from, interest);
            others.insert(from, Other { version, asked_at: Instant::now() });
        }
        let Some(other) = others.get_mut(&from).filter(|other| other.version == version) else {
            return Ok(Ok(vec![0]));
        };
        other.asked_at = Instant::now();
        let mut out = vec![1, u8::from(is_new)];
        put_varint(&mut out, partitions.len() as u64);
        for partition in partitions {
            let is_here = partition < self.partitions && self.engine.holds(partition);
            put_varint(&mut out, u64::from(partition));
            put_changes(&mut out, self.engine.take_changes_of(from, partition).filter(|_| is_here));
        }
        Ok(Ok(out))
    }

    /// Notes nothing more for those who have not asked for a while.
    pub(crate) fn forget_watchers(&self) {
        let mut others = self.watching.others.lock();
        others.retain(|node, other| {
            let asks = other.asked_at.elapsed() < FORGET_AFTER;
            if !asks {
                self.engine.watch_for(*node, Interest::default());
            }
            asks
        });
    }
}

impl Own {
    /// Another node has said what changed.
    fn hear(&mut self, holder: NodeId, told: Told) {
        for (partition, changes) in told.changes {
            let Some(mut changes) = changes else {
                self.failures += 1;
                self.holders.remove(&partition);
                continue;
            };
            let is_known = self.holders.insert(partition, holder) == Some(holder) && !told.is_new;
            changes.lost |= !is_known && !self.is_beginning;
            let found = self.found.entry(partition).or_default();
            found.then(changes);
            if found.keys.len() > KEYS_MAX {
                found.keys.clear();
                found.lost = true;
            }
        }
    }

    /// From now on it, or another, is asked from the beginning.
    fn forget(&mut self, holder: NodeId) {
        self.failures += 1;
        self.known.remove(&holder);
        self.holders.retain(|_, known| *known != holder);
    }

    /// Makes one of what became of each partition.
    fn put_together(&mut self, all: BTreeMap<u16, Changes>, partitions: u16) -> Changes {
        let mut whole = Changes::default();
        for (partition, changes) in all {
            whole.lost |= changes.lost;
            whole.keys.extend(changes.keys);
            if changes.cleared {
                let begins = || Clearing {
                    since: Instant::now(),
                    done: BTreeSet::new(),
                    keys: Vec::new(),
                    lost: false,
                };
                self.clearing.get_or_insert_with(begins).done.insert(partition);
            }
        }
        let Some(clearing) = &mut self.clearing else { return whole };
        clearing.keys.append(&mut whole.keys);
        // Who begins anew before all is cleared would hear afterwards that everything is gone.
        clearing.lost |= std::mem::take(&mut whole.lost);
        let is_cleared = clearing.done.len() == usize::from(partitions);
        let is_late = clearing.since.elapsed() > CLEAR_MAX || clearing.keys.len() > KEYS_MAX;
        if is_cleared || is_late {
            whole.cleared = is_cleared;
            whole.lost = clearing.lost || !is_cleared;
            whole.keys = self.clearing.take().map(|clearing| clearing.keys).unwrap_or_default();
        }
        whole
    }
}

fn put_question(version: u64, interest: Option<&Interest>, partitions: &[u16]) -> Vec<u8> {
    let mut out = vec![kind::CHANGES];
    put_varint(&mut out, version);
    out.push(u8::from(interest.is_some()));
    if let Some(interest) = interest {
        put_varint(&mut out, interest.keys().len() as u64);
        interest.keys().for_each(|key| put_bytes(&mut out, key));
        put_varint(&mut out, interest.prefixes().len() as u64);
        interest.prefixes().iter().for_each(|prefix| put_bytes(&mut out, prefix));
    }
    put_varint(&mut out, partitions.len() as u64);
    partitions.iter().for_each(|partition| put_varint(&mut out, u64::from(*partition)));
    out
}

fn read_interest(reader: &mut Reader<'_>) -> Result<Interest, Malformed> {
    let keys = read_keys(reader)?;
    Ok(Interest::new(keys, read_keys(reader)?))
}

fn read_keys(reader: &mut Reader<'_>) -> Result<Vec<Vec<u8>>, Malformed> {
    (0..reader.count()?).map(|_| Ok(reader.bytes_up_to(KEY_BYTES_MAX)?.to_vec())).collect()
}

fn put_changes(out: &mut Vec<u8>, changes: Option<Changes>) {
    let Some(changes) = changes else { return out.push(NOT_HERE) };
    let bits = [(changes.cleared, CLEARED), (changes.lost, LOST)];
    out.push(bits.iter().map(|(is_so, bit)| u8::from(*is_so) * bit).sum());
    put_varint(out, changes.keys.len() as u64);
    changes.keys.iter().for_each(|key| put_bytes(out, key));
}

fn read_answer(reader: &mut Reader<'_>) -> Result<Option<Told>, Malformed> {
    if !reader.flag()? {
        return Ok(None);
    }
    let is_new = reader.flag()?;
    let mut changes = BTreeMap::new();
    for _ in 0..reader.count()? {
        let partition = read_partition(reader)?;
        let bits = reader.byte()?;
        let of_it = match bits & NOT_HERE != 0 {
            true => None,
            false => Some(Changes {
                cleared: bits & CLEARED != 0,
                lost: bits & LOST != 0,
                keys: read_keys(reader)?,
            }),
        };
        changes.insert(partition, of_it);
    }
    Ok(Some(Told { is_new, changes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(names: &[&str]) -> Vec<Vec<u8>> {
        names.iter().map(|name| name.as_bytes().to_vec()).collect()
    }

    fn of(cleared: bool, names: &[&str]) -> Changes {
        Changes { cleared, keys: keys(names), lost: false }
    }

    #[test]
    fn answers_are_read_as_written() {
        let changes = Changes { cleared: true, keys: keys(&["a", ""]), lost: true };
        let mut out = vec![1, 1];
        put_varint(&mut out, 2);
        put_varint(&mut out, 300);
        put_changes(&mut out, Some(changes.clone()));
        put_varint(&mut out, 7);
        put_changes(&mut out, None);
        let told = read_answer(&mut Reader::new(&out)).unwrap().unwrap();
        assert!(told.is_new);
        assert_eq!(told.changes, BTreeMap::from([(300, Some(changes)), (7, None)]));
        for length in 0..out.len() {
            assert!(read_answer(&mut Reader::new(&out[..length])).is_err());
        }
        assert!(read_answer(&mut Reader::new(&[0])).unwrap().is_none());

        let interest = Interest::new(keys(&["b", "a"]), keys(&["p", ""]));
        let asked = put_question(3, Some(&interest), &[]);
        assert_eq!(read_interest(&mut Reader::new(&asked[3..])).unwrap(), interest);
    }

    #[test]
    fn what_nobody_was_asked_about_all_the_time_is_lost() {
        let mut own = Own { is_beginning: true, ..Own::default() };
        let told =
            |is_new, changes: Option<Changes>| Told { is_new, changes: BTreeMap::from([(5, changes)]) };
        let lost = |own: &mut Own| std::mem::take(&mut own.found).remove(&5).map(|changes| changes.lost);
        own.hear(2, told(true, Some(of(false, &["a"]))));
        assert_eq!(lost(&mut own), Some(false), "nobody counted on it before");
        own.is_beginning = false;
        own.hear(2, told(false, Some(of(false, &[]))));
        assert_eq!(lost(&mut own), Some(false));
        own.hear(2, told(true, Some(of(false, &[]))));
        assert_eq!(lost(&mut own), Some(true), "it has forgotten");
        own.hear(2, told(false, None));
        assert_eq!(lost(&mut own), None, "it does not hold it any more");
        own.hear(3, told(false, Some(of(false, &[]))));
        assert_eq!(lost(&mut own), Some(true), "another is asked");
        own.forget(3);
        own.hear(3, told(false, Some(of(false, &[]))));
        assert_eq!(lost(&mut own), Some(true), "an answer did not come");
    }

    #[tokio::test(start_paused = true)]
    async fn all_are_gone_when_they_are_in_every_partition() {
        let mut own = Own::default();
        let mut put = |all: &[(u16, Changes)]| own.put_together(all.iter().cloned().collect(), 2);
        assert_eq!(put(&[(0, of(false, &["a"]))]), of(false, &["a"]));
        assert_eq!(put(&[(0, of(true, &["b"]))]), of(false, &[]), "what comes after it waits");
        assert_eq!(put(&[(1, of(false, &["c"]))]), of(false, &[]));
        assert_eq!(put(&[(1, of(true, &["d"]))]), of(true, &["b", "c", "d"]));
        assert_eq!(put(&[(1, of(true, &[])), (0, of(true, &[]))]), of(true, &[]));
        let lost = Changes { lost: true, ..of(true, &["x"]) };
        assert!(put(&[(0, lost.clone())]).is_empty(), "nobody begins anew before all is cleared");
        assert_eq!(put(&[(1, of(true, &[]))]), lost);
        assert!(put(&[(1, of(true, &["e"]))]).is_empty());
        tokio::time::advance(CLEAR_MAX * 2).await;
        assert_eq!(put(&[]), Changes { cleared: false, keys: keys(&["e"]), lost: true });
        assert!(put(&[]).is_empty());
    }
}
