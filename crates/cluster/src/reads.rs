//! Reads that need not see the newest: any replica answers them, and says how far behind it may be.
//!
//! Whoever leads a partition is asked up to which entry it is agreed on. A replica that has carried that entry out was up to date
//! when the question was asked: everything that was acknowledged before is in it. The time of the question is noted before it is
//! sent, by the clock of the one that asks, so the bound depends on one clock, and on no guess about the way.
//!
//! Leaders are asked about all their partitions at once, by every node that holds some of them: often while somebody reads this
//! way, else seldom, so that a node that loses the others can still say how far behind it may be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use quipu_counting::{Batch, Refusal, Reply};
use quipu_wire::batch::{put_batch, put_replies, read_batch, read_replies};
use quipu_wire::entry::{Malformed, Reader, put_varint};
use tokio::time::Instant;

use crate::node::Node;
use crate::questions::{encode_pairs, kind, question, read_pairs, read_partition};
use crate::raft::{Group, NodeId, NotDone};
use crate::routing::{copy, only_looks};
use crate::split::Part;

/// How often leaders are asked while somebody reads this way.
const ASK_PAUSE: Duration = Duration::from_millis(100);
/// How often they are asked otherwise.
const ASK_SELDOM: Duration = Duration::from_secs(1);
/// For how long after such a read they are asked often.
const WANTED_FOR: Duration = Duration::from_secs(10);
/// How long a leader, or another replica, may take to answer.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// For how long after it was sure to lead a leader knows the newest: far less than others wait before they take its place.
const NEWEST_FOR: Duration = Duration::from_millis(100);

/// Everything that was acknowledged before a time is in the entries up to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    at: Instant,
    index: u64,
}

/// What is known of how far behind a replica may be.
#[derive(Debug, Default)]
struct Behind {
    /// The newest that it is known to have carried out.
    reached: Option<Point>,
    /// One that it had not carried out when it was last looked at.
    next: Option<Point>,
}

impl Behind {
    /// A leader has said something about a replica that has carried out everything up to this entry.
    fn learn(&mut self, point: Point, applied: Option<u64>) {
        let is_reached = |point: Point| applied >= Some(point.index);
        if let Some(next) = self.next.filter(|next| is_reached(*next)) {
            self.reached = Some(next);
            self.next = None;
        }
        if self.reached.is_some_and(|reached| reached.at >= point.at) {
            return;
        }
        if is_reached(point) {
            *self = Behind { reached: Some(point), next: None };
        } else if self.next.is_none() {
            // A later one does not take its place: a replica that is always a little behind would never reach any.
            self.next = Some(point);
        }
    }

    /// Since when the replica may be behind; `None` if nobody knows. A replica that began anew has not carried out what the one
    /// before it had, so what was reached once is compared again.
    fn since(&self, applied: Option<u64>) -> Option<Instant> {
        let known = [self.next, self.reached].into_iter().flatten();
        known.filter(|point| applied >= Some(point.index)).map(|point| point.at).max()
    }
}

/// What a node remembers of all this.
pub(crate) struct Reads {
    behind: Vec<Mutex<Behind>>,
    /// Somebody has read this way since leaders were last asked.
    is_wanted: AtomicBool,
    pace: Mutex<Pace>,
    /// Leaders that have not answered yet.
    asked: Mutex<BTreeSet<NodeId>>,
}

#[derive(Default)]
struct Pace {
    wanted_at: Option<Instant>,
    asked_at: Option<Instant>,
}

impl Reads {
    pub(crate) fn of(partitions: u16) -> Reads {
        Reads {
            behind: (0..partitions).map(|_| Mutex::default()).collect(),
            is_wanted: AtomicBool::new(false),
            pace: Mutex::default(),
            asked: Mutex::default(),
        }
    }

    fn is_time(&self) -> bool {
        let mut pace = self.pace.lock();
        if self.is_wanted.swap(false, Ordering::Relaxed) {
            pace.wanted_at = Some(Instant::now());
        }
        let is_wanted = pace.wanted_at.is_some_and(|wanted| wanted.elapsed() < WANTED_FOR);
        let is_due = pace.asked_at.is_none_or(|asked| asked.elapsed() >= ASK_SELDOM);
        if is_wanted || is_due {
            pace.asked_at = Some(Instant::now());
        }
        is_wanted || is_due
    }
}

/// Asks leaders how far they are, for as long as the node lives.
pub(crate) fn start(node: &Arc<Node>) {
    let weak = Arc::downgrade(node);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(ASK_PAUSE).await;
            let Some(node) = weak.upgrade() else { return };
            if node.reads.is_time() {
                node.ask_leaders();
            }
        }
    });
}

impl Node {
    /// Asks whoever leads what is here, each by itself: one that does not answer must not make the others seem old.
    fn ask_leaders(&self) {
        let mut led: BTreeMap<NodeId, Vec<u16>> = BTreeMap::new();
        for partition in 0..self.partitions {
            if let Some(leader) = self.group(partition).and_then(|group| group.leader()) {
                led.entry(leader).or_default().push(partition);
            }
        }
        for (leader, partitions) in led {
            let Some(node) = self.myself.upgrade() else { return };
            if !self.reads.asked.lock().insert(leader) {
                continue;
            }
            tokio::spawn(async move {
                let mut asked = vec![kind::AGREED];
                put_varint(&mut asked, partitions.len() as u64);
                partitions.iter().for_each(|partition| put_varint(&mut asked, u64::from(*partition)));
                let at = Instant::now();
                let told = node.ask(leader, asked, LOOK_MAX, read_pairs).await;
                for (partition, index) in told.unwrap_or_default() {
                    node.learn(partition, Point { at, index });
                }
                node.reads.asked.lock().remove(&leader);
            });
        }
    }

    fn learn(&self, partition: u16, point: Point) {
        if let (Some(behind), Some(group)) =
            (self.reads.behind.get(usize::from(partition)), self.group(partition))
        {
            behind.lock().learn(point, group.status().applied);
        }
    }

    /// Looks at a part: here, or where this node does not hold it, at another replica; and at the leader if none of them can say
    /// that it is not too far behind. Also returns how far behind the replies may be.
    pub(crate) async fn look_anywhere(
        &self,
        part: &Part,
        max_staleness_ms: Option<u64>,
    ) -> Result<(u64, Vec<Reply>), Refusal> {
        let until = Instant::now() + self.patience;
        let here = self.look_here(part.partition, &part.batch, max_staleness_ms).await;
        if let Ok(looked) = here {
            return Ok(looked);
        }
        if self.group(part.partition).is_none() {
            let asked = question(kind::LOOK, part.partition, |out| {
                out.push(u8::from(max_staleness_ms.is_some()));
                max_staleness_ms.iter().for_each(|most| put_varint(out, *most));
                put_batch(out, &part.batch);
            });
            for replica in self.replicas(part.partition) {
                if let Ok(looked) = self.ask(replica, asked.clone(), LOOK_MAX, read_looked).await {
                    return Ok(looked);
                }
            }
        }
        self.do_part_until(until, part).await.map(|replies| (0, replies))
    }

    /// Who should hold a partition, not always the same first: what is asked of any of them should not all go to one.
    fn replicas(&self, partition: u16) -> Vec<NodeId> {
        let mut replicas = self
            .meta(|meta| meta.placement.replicas.get(usize::from(partition)).cloned().unwrap_or_default());
        replicas.retain(|node| *node != self.id);
        if !replicas.is_empty() {
            let first = (self.id % replicas.len() as u64) as usize;
            replicas.rotate_left(first);
        }
        replicas
    }

    fn behind_since(&self, partition: u16, group: &Group) -> Option<Instant> {
        self.reads.behind.get(usize::from(partition))?.lock().since(group.status().applied)
    }

    /// How far behind the replica of a partition may be, if it is here and that is known.
    pub fn staleness_ms(&self, partition: u16) -> Option<u64> {
        let group = self.group(partition)?;
        self.behind_since(partition, &group).map(elapsed_ms)
    }

    /// Looks at what is here, if that is not too far behind.
    async fn look_here(
        &self,
        partition: u16,
        batch: &Batch,
        max_staleness_ms: Option<u64>,
    ) -> Result<(u64, Vec<Reply>), NotDone> {
        let group = self.group(partition).ok_or(NotDone::NotLeader(None))?;
        self.reads.is_wanted.store(true, Ordering::Relaxed);
        let asked_at = Instant::now();
        let is_newest = group.leader() == Some(self.id)
            && tokio::time::timeout(LOOK_MAX, group.is_confirmed()).await.unwrap_or(false);
        let since = self.behind_since(partition, &group);
        let staleness_ms = || match is_newest {
            true if asked_at.elapsed() < NEWEST_FOR => Some(0),
            // The process may have stood still since.
            true => Some(elapsed_ms(asked_at)),
            false => since.map(elapsed_ms),
        };
        let is_enough = |staleness_ms: &u64| max_staleness_ms.is_none_or(|most| *staleness_ms <= most);
        let leader = group.leader();
        let too_old = || NotDone::NotLeader(leader);
        staleness_ms().filter(is_enough).ok_or_else(too_old)?;
        let replies = self.read(partition, copy(batch), self.now_ms()).await?.replies;
        self.is_still(partition, &group)?;
        let staleness_ms = staleness_ms().filter(is_enough).ok_or_else(too_old)?;
        Ok((staleness_ms, replies))
    }

    /// Answers the questions of this file.
    pub(crate) async fn answer_look(
        &self,
        asked_for: u8,
        reader: &mut Reader<'_>,
    ) -> Result<Result<Vec<u8>, NotDone>, Malformed> {
        if asked_for == kind::AGREED {
            let partitions = (0..reader.count()?).map(|_| read_partition(reader));
            let partitions = partitions.collect::<Result<BTreeSet<u16>, _>>()?;
            return Ok(Ok(self.points(partitions).await));
        }
        let partition = read_partition(reader)?;
        let max_staleness_ms = if reader.flag()? { Some(reader.varint()?) } else { None };
        let mut batch = Batch::default();
        read_batch(reader, &mut batch)?;
        self.check_partition(partition, &batch)?;
        if !only_looks(&batch) {
            return Err(Malformed("a look that does more"));
        }
        let looked = self.look_here(partition, &batch, max_staleness_ms).await;
        Ok(looked.map(|(staleness_ms, replies)| {
            let mut out = Vec::new();
            put_varint(&mut out, staleness_ms);
            put_replies(&mut out, &replies, batch.wants_whole);
            out
        }))
    }

    /// Up to where those of these partitions are agreed on that this node leads for certain.
    async fn points(&self, partitions: BTreeSet<u16>) -> Vec<u8> {
        let known = partitions
            .into_iter()
            .map(|partition| async move { Some((partition, self.group(partition)?.agreed().await?)) });
        let known: Vec<(u16, u64)> =
            futures_util::future::join_all(known).await.into_iter().flatten().collect();
        encode_pairs(&known)
    }
}

/// A part of a millisecond counts as one.
fn elapsed_ms(since: Instant) -> u64 {
    (since.elapsed().as_millis() as u64).saturating_add(1)
}

fn read_looked(reader: &mut Reader<'_>) -> Result<(u64, Vec<Reply>), Malformed> {
    Ok((reader.varint()?, read_replies(reader)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_known_is_what_was_carried_out() {
        let began = Instant::now();
        let point = |seconds: u64, index: u64| Point { at: began + Duration::from_secs(seconds), index };
        let since =
            |behind: &Behind, applied: u64| behind.since(Some(applied)).map(|at| (at - began).as_secs());
        let mut behind = Behind::default();
        assert_eq!(behind.since(Some(9)), None);
        behind.learn(point(1, 5), Some(5));
        assert_eq!(since(&behind, 5), Some(1));
        // The replica is behind: what it reached holds, until it reaches the next.
        behind.learn(point(2, 8), Some(6));
        assert_eq!(since(&behind, 7), Some(1));
        behind.learn(point(3, 12), Some(7));
        assert_eq!(since(&behind, 8), Some(2), "the first that it did not have is kept");
        behind.learn(point(4, 12), Some(9));
        assert_eq!(since(&behind, 9), Some(2));
        assert_eq!(since(&behind, 12), Some(4));
        // An answer that was long on its way takes nothing back.
        behind.learn(point(5, 12), Some(12));
        behind.learn(point(3, 12), Some(12));
        assert_eq!(since(&behind, 12), Some(5));
        // One that began anew has nothing yet.
        assert_eq!(behind.since(Some(3)), None);
        assert_eq!(behind.since(None), None);
    }
}
