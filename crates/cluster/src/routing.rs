//! The way of a batch: to whoever leads the partitions of its counters, into their logs, and back.

use std::sync::{Arc, Weak};
use std::time::Duration;

use quipu_counting::slot::{partition as partition_of, slot};
use quipu_counting::{Batch, Refusal, Reply, Request};
use quipu_wire::batch::{put_batch, read_replies};
use quipu_wire::entry::Malformed;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::blocking::blocking;
use crate::command;
use crate::gathering::Answered;
use crate::meta::LEVEL_OF_KINDS;
use crate::node::{ANSWER_MAX, Node, within};
use crate::plant::{Plant, is_planted};
use crate::questions::{BUSY_MAX, HINTS_MAX, LOOK_AGAIN, kind, question};
use crate::raft::{Group, NodeId, NotDone};
use crate::split::Part;
use crate::together::{Done, LOOKS_TOGETHER_MAX, REQUESTS_TOGETHER_MAX, Together};

/// The most requests in one batch: what replicas cannot carry out must not get into their logs.
const REQUESTS_MAX: usize = quipu_engine::REQUESTS_PER_BATCH_MAX;
/// The most bytes of a batch, about: an entry must fit a record of the log.
const BATCH_BYTES_MAX: usize = 12 << 20;
/// How many questions about one partition may be under way to a node.
const UNDER_WAY_MAX: usize = 2;
/// A look has no time of its own: it sees what is as of the last entry.
const ENTRY_TIME: u64 = 0;
/// How often somebody who waits for an answer looks whether another leads by now.
const LEADER_PAUSE: Duration = Duration::from_millis(100);
/// About what a request takes beside its key and id.
const REQUEST_BYTES: usize = 48;

impl Node {
    /// Says no to a batch that is too large to be agreed on.
    pub fn check_size(batch: &Batch) -> Result<(), String> {
        let (count, bytes) = (batch.requests.len(), batch.bytes_len() + batch.requests.len() * REQUEST_BYTES);
        match count > REQUESTS_MAX || bytes > BATCH_BYTES_MAX {
            true => Err(format!(
                "{count} requests of about {bytes} bytes together; the limits are {REQUESTS_MAX} and {BATCH_BYTES_MAX}, send several"
            )),
            false => Ok(()),
        }
    }

    /// Says no to a batch that is too large, or that some node would not understand.
    pub fn check(&self, batch: &Batch) -> Result<(), String> {
        if batch.requests.iter().any(|request| request.action.is_for_whole()) {
            self.check_level()?;
        }
        Node::check_size(batch)
    }

    /// Says no while some node does not know counters that are more than a number.
    pub(crate) fn check_level(&self) -> Result<(), String> {
        match self.meta(|meta| meta.level) < LEVEL_OF_KINDS {
            true => Err("some nodes of the cluster run a version that does not know this; restart them with a newer one".into()),
            false => Ok(()),
        }
    }

    /// Runs a batch wherever its counters are, and puts the replies into it.
    pub async fn execute(&self, batch: &mut Batch) {
        let (answer, answered) = oneshot::channel();
        self.begin(
            std::mem::take(batch),
            Box::new(move |batch| {
                // Nobody may be left to hear it.
                let _ = answer.send(batch);
            }),
        );
        if let Ok(done) = answered.await {
            *batch = done;
        }
    }

    /// The same, for who does not wait. A node that ends does not answer.
    pub fn begin(&self, batch: Batch, answered: Answered) {
        self.gathering.add(batch, answered);
    }

    /// Has a part done by whoever leads its partition, looking for that for as long as patience lasts.
    pub(crate) async fn do_part(&self, part: &Part) -> Result<Vec<Reply>, Refusal> {
        self.do_part_until(Instant::now() + self.patience, part).await
    }

    /// The same for who has waited for others before. A part that only looks is not waited for any longer: it has no outcome that
    /// would be worth it.
    pub(crate) async fn do_part_until(&self, until: Instant, part: &Part) -> Result<Vec<Reply>, Refusal> {
        let busy_until = Instant::now() + BUSY_MAX;
        let looks = only_looks(&part.batch);
        let mut refusal = Refusal::NoLeader;
        let (mut hints, mut is_said) = (0, false);
        let mut candidates = self.candidates(part.partition);
        candidates.reverse();
        loop {
            if self.is_cast_out() {
                return Err(if refusal == Refusal::OutcomeUnknown { refusal } else { Refusal::NotMember });
            }
            let Some(target) = candidates.pop() else {
                if Instant::now() >= until {
                    return Err(refusal);
                }
                tokio::time::sleep(LOOK_AGAIN).await;
                hints = 0;
                candidates = self.candidates(part.partition);
                candidates.reverse();
                continue;
            };
            let doing = async {
                match target == self.id {
                    true => self.do_here(part.partition, copy(&part.batch)).await,
                    false => self.do_there(target, part).await,
                }
            };
            let done = match can_repeat(&part.batch) {
                true if looks => {
                    let looking = self.while_it_leads(part.partition, target, doing);
                    match tokio::time::timeout_at(until, looking).await {
                        Ok(done) => done,
                        // Who leads waits in vain for those who follow; of another nobody knows whether it leads.
                        Err(_) if target == self.id => return Err(Refusal::NoQuorum),
                        Err(_) => return Err(refusal),
                    }
                }
                true => self.while_it_leads(part.partition, target, doing).await,
                false => doing.await,
            };
            match done {
                Ok(replies) => return Ok(replies),
                Err(NotDone::NotLeader(Some(leader))) if leader != target && hints < HINTS_MAX => {
                    hints += 1;
                    candidates = vec![leader];
                }
                Err(NotDone::NotLeader(_) | NotDone::NotReached(_) | NotDone::NotMember) => {}
                // Whether an earlier attempt was carried out is not known any better by a later one that was not.
                Err(NotDone::NoQuorum | NotDone::Busy) if refusal == Refusal::OutcomeUnknown => {}
                Err(NotDone::NoQuorum) => refusal = Refusal::NoQuorum,
                Err(NotDone::Busy) if Instant::now() >= busy_until => return Err(Refusal::Overloaded),
                Err(NotDone::Busy) => {
                    refusal = Refusal::Overloaded;
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
                // A look that was lost has changed nothing.
                Err(NotDone::Unknown) if looks => {}
                Err(NotDone::Unknown) if !can_repeat(&part.batch) => return Err(Refusal::OutcomeUnknown),
                Err(NotDone::Unknown) => refusal = Refusal::OutcomeUnknown,
                Err(NotDone::Stopped(why)) => {
                    if !is_said {
                        tracing::warn!("partition {} at node {target}: {why}", part.partition);
                    }
                    is_said = true;
                }
            }
            if Instant::now() >= until {
                return Err(refusal);
            }
        }
    }

    /// Waits for an answer to something that may be asked again, but not once somebody else is known to lead: who was asked may hang.
    pub(crate) async fn while_it_leads<T>(
        &self,
        partition: u16,
        target: NodeId,
        answering: impl Future<Output = Result<T, NotDone>>,
    ) -> Result<T, NotDone> {
        let before = self.leader(partition);
        let is_another = |leader: NodeId| leader != target && Some(leader) != before;
        tokio::pin!(answering);
        loop {
            tokio::select! {
                biased;
                answer = &mut answering => return answer,
                () = tokio::time::sleep(LEADER_PAUSE) => {
                    if self.leader(partition).is_some_and(is_another) {
                        return Err(NotDone::Unknown);
                    }
                }
            }
        }
    }

    /// Has a part done by another node, if that leads the partition.
    async fn do_there(&self, target: NodeId, part: &Part) -> Done {
        let (partition, looks) = (part.partition, only_looks(&part.batch));
        let way = || {
            let node = Weak::clone(&self.myself);
            let requests_max = if looks { LOOKS_TOGETHER_MAX } else { REQUESTS_TOGETHER_MAX };
            Together::new(UNDER_WAY_MAX, requests_max, move |batch| {
                let node = node.upgrade()?;
                let asked = question(kind::DO, partition, |out| put_batch(out, &batch));
                Some(Box::pin(async move { node.ask(target, asked, ANSWER_MAX, read_replies).await }))
            })
        };
        let way = self.ways.lock().entry((target, partition, looks)).or_insert_with(way).clone();
        within(ANSWER_MAX, way.go(copy(&part.batch))).await
    }

    /// Does a part here, if this node leads the partition.
    pub(crate) async fn do_here(&self, partition: u16, batch: Batch) -> Done {
        let held = self.held(partition).ok_or(NotDone::NotLeader(None))?;
        if held.group.waits_for_room() {
            // Others have another leader by now, or soon will; what was never proposed may be asked of that.
            return Err(NotDone::NotLeader(self.leader(partition).filter(|leader| *leader != self.id)));
        }
        let way = if only_looks(&batch) { held.looks } else { held.changes };
        within(ANSWER_MAX, way.go(batch)).await
    }

    /// Looks at counters, if this node leads their partition for certain.
    pub(crate) async fn look(&self, partition: u16, group: &Group, batch: Batch) -> Done {
        if !(is_planted(Plant::ReadsWithoutAsking) && group.leader() == Some(self.id)) {
            within(ANSWER_MAX, group.confirm()).await?;
        }
        let now_ms = self.now_ms();
        let mut batch = self.read(partition, batch, ENTRY_TIME).await?;
        // Only the log tells time. A counter that has expired by the clock here, and not by the last entry, would come back with the next
        // leader, whose clock is behind: its end is agreed on before it is shown.
        let expired = |(index, reply): (usize, &Reply)| {
            (reply.cell.expires_at_ms <= now_ms).then(|| batch.key(index).to_vec())
        };
        let keys: Vec<Vec<u8>> = batch.replies.iter().enumerate().filter_map(expired).collect();
        if !keys.is_empty() {
            within(ANSWER_MAX, group.propose(command::expire(now_ms, &keys))).await?;
            batch = self.read(partition, batch, ENTRY_TIME).await?;
        }
        self.is_still(partition, group)?;
        Ok(batch.replies)
    }

    /// A replica that was let go of while it was looked at has shown something that nobody knows.
    pub(crate) fn is_still(&self, partition: u16, group: &Group) -> Result<(), NotDone> {
        match self.group(partition) {
            Some(still) if std::ptr::eq(&*still, group) => Ok(()),
            _ => Err(NotDone::NotLeader(None)),
        }
    }

    /// Looks at the replica that is here, as it is at this time, or at that of its last entry if that is later.
    pub(crate) async fn read(&self, partition: u16, mut batch: Batch, now_ms: u64) -> Result<Batch, NotDone> {
        let engine = Arc::clone(&self.engine);
        let failed = |error: &dyn std::fmt::Display| NotDone::Stopped(error.to_string());
        if engine.read_from_memory(partition, &mut batch, now_ms).map_err(|error| failed(&error))? {
            return Ok(batch);
        }
        let read = move || engine.read(partition, &mut batch, now_ms).map(|()| batch);
        let read = blocking(read).await.map_err(|error| failed(&error))?;
        read.map_err(|error| failed(&error))
    }

    /// Who may lead a partition, likeliest first.
    pub(crate) fn candidates(&self, partition: u16) -> Vec<NodeId> {
        let known = self.leader(partition);
        let placed = self.meta.read(|meta| {
            let replicas = meta.placement.replicas.get(usize::from(partition)).cloned().unwrap_or_default();
            let others: Vec<NodeId> =
                meta.nodes.keys().copied().filter(|node| !replicas.contains(node)).collect();
            [replicas, others].concat()
        });
        let others = placed.into_iter().filter(|node| Some(*node) != known).collect::<Vec<_>>();
        known.into_iter().chain(others).collect()
    }

    /// What is not for a partition must not reach its log: no replica could carry it out.
    pub(crate) fn check_partition(&self, partition: u16, batch: &Batch) -> Result<(), Malformed> {
        let is_for_it = |(index, request): (usize, &Request)| {
            request.action.is_global() || partition_of(slot(batch.key(index)), self.partitions) == partition
        };
        match batch.requests.iter().enumerate().all(is_for_it) {
            true => Ok(()),
            false => Err(Malformed("a request for another partition")),
        }
    }
}

pub(crate) fn copy(batch: &Batch) -> Batch {
    batch.part(quipu_counting::BatchMark::default(), batch.mark())
}

/// Whether nothing of it leaves anything behind.
pub(crate) fn only_looks(batch: &Batch) -> bool {
    batch.only_looks(0..batch.requests.len())
}

/// Whether it may be asked again when nobody knows what became of it.
pub(crate) fn can_repeat(batch: &Batch) -> bool {
    batch.can_repeat(0..batch.requests.len())
}
