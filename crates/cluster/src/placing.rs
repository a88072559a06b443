//! Who holds what, brought about: nodes get their seat in the group of all nodes, partitions move to whom the placement
//! gives them, those who should lead do, and what is nobody's business any more is let go of.
//!
//! Whoever leads the group of all nodes looks round after round at what is not yet as it should be, and tells whoever can do
//! something about it. Nobody waits for anybody: what was not done in one round is tried in the next, also by the next leader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use quipu_wire::entry::put_varint;
use tokio::time::{Instant, sleep};

use crate::blocking::blocking;
use crate::meta::{Change, Meta};
use crate::node::{ANSWER_MAX, Node, within};
use crate::questions::{HEAR_PAUSE, encode_nodes, encode_pairs, kind, question, read_nodes, read_pairs};
use crate::raft::{Group, NodeId, NotDone};

/// Nodes that have a say about the cluster itself; more would only make it slower.
const VOTERS_MAX: usize = 7;
/// How often the lead is brought back to those who should have it, and strays are looked for.
const BALANCE_PAUSE: Duration = Duration::from_secs(5);
/// Who is so many entries behind gets the rest at once.
const LAG_MAX: u64 = 1_000;
/// Who has not been heard of for so long is given up, for now.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// How often somebody looks whether another has caught up.
const CATCH_UP_PAUSE: Duration = Duration::from_millis(50);
/// How long a change of members may take.
const CHANGE_MAX: Duration = Duration::from_secs(30);

/// What a node remembers of all this.
#[derive(Default)]
pub(crate) struct Placing {
    /// With which partition the next round begins: one that does not get on must not keep the others waiting.
    first: u16,
    balanced_at: Option<Instant>,
    strays_at: Option<Instant>,
    /// The partition led here that is being moved. One at a time: moving costs those who count.
    moving: Option<u16>,
}

impl Placing {
    fn is_time(last: &mut Option<Instant>) -> bool {
        if last.is_some_and(|last| last.elapsed() < BALANCE_PAUSE) {
            return false;
        }
        *last = Some(Instant::now());
        true
    }
}

impl Node {
    /// Sees that everybody holds what the placement says.
    pub(crate) async fn place(&self) {
        let meta = self.meta.read(Meta::clone);
        if meta.cluster == 0 {
            return;
        }
        self.seat(&meta).await;
        let planned = meta.plan();
        if planned != meta.placement {
            if let Err(why) = self.change(Change::Place(meta.epoch, planned)).await {
                tracing::info!("placement: {why}");
            }
            return;
        }
        let first = {
            let mut placing = self.placing.lock();
            placing.first = (placing.first + 1) % self.partitions;
            placing.first
        };
        let all = (first..self.partitions).chain(0..first).map(|partition| {
            let replicas = meta.placement.replicas[usize::from(partition)].iter().copied().collect();
            let asked =
                question(kind::RESHAPE, partition, |out| out.extend_from_slice(&encode_nodes(&replicas)));
            self.ask_leader(partition, asked, |reader| reader.flag())
        });
        let done = futures_util::future::join_all(all).await;
        if done.iter().all(|done| *done == Ok(true)) {
            self.say_goodbye(&meta).await;
        }
        self.balance(&meta).await;
    }

    /// Lets everybody listen to what all nodes agree on, and as many as there is need of have a say.
    async fn seat(&self, meta: &Meta) {
        let members = self.nodes.members();
        for node in meta.nodes.keys().filter(|node| !members.contains(node)) {
            if let Err(why) = in_time(self.nodes.add_listener(*node)).await {
                tracing::info!("node {node} does not listen yet: {why}");
            }
        }
        let voters = self.nodes.voters();
        // What broke off between its two steps would need the consent of both sides for ever.
        if !self.nodes.is_of(&voters)
            && let Err(why) = in_time(self.nodes.set_voters(voters.clone())).await
        {
            tracing::info!("a change of who has a say is not complete yet: {why}");
        }
        let has_caught_up = |node: &&NodeId| {
            !voters.contains(*node) && self.nodes.lag(**node).is_some_and(|lag| lag <= LAG_MAX)
        };
        let stays = meta.nodes.iter().filter(|(_, member)| !member.is_leaving).map(|(node, _)| node);
        if voters.len() < VOTERS_MAX
            && let Some(node) = stays.clone().find(has_caught_up)
        {
            let more = voters.iter().copied().chain([*node]).collect();
            if let Err(why) = in_time(self.nodes.set_voters(more)).await {
                tracing::info!("node {node} has no say yet: {why}");
            }
        }
    }

    /// Nodes that wanted to leave and hold nothing any more are let go.
    async fn say_goodbye(&self, meta: &Meta) {
        for (node, _) in meta.nodes.iter().filter(|(_, member)| member.is_leaving) {
            let mut voters = self.nodes.voters();
            let gone = match voters.remove(node) {
                true => in_time(self.nodes.set_voters(voters)).await,
                false if self.nodes.members().contains(node) => {
                    in_time(self.nodes.drop_listeners(BTreeSet::from([*node]))).await
                }
                false => Ok(()),
            };
            let gone = match gone {
                Ok(()) => self.change(Change::Remove(*node)).await.map_err(|why| why.to_string()),
                failed => failed,
            };
            if let Err(why) = gone {
                tracing::info!("node {node} stays: {why}");
            }
        }
    }

    /// Lets those lead who should.
    async fn balance(&self, meta: &Meta) {
        if !Placing::is_time(&mut self.placing.lock().balanced_at) {
            return;
        }
        let all = meta.placement.replicas.iter().zip(0u16..).filter_map(|(replicas, partition)| {
            let first = *replicas.first()?;
            let asked = question(kind::LET_LEAD, partition, |out| put_varint(out, first));
            Some(self.ask_leader(partition, asked, |_| Ok(())))
        });
        futures_util::future::join_all(all).await;
    }

    /// Sees that exactly these hold a partition that this node leads. Returns whether they do; if not, something is being
    /// done about it.
    pub(crate) fn reshape(&self, partition: u16, replicas: BTreeSet<NodeId>) -> Result<bool, NotDone> {
        let group = self.leading(partition)?;
        if group.is_of(&replicas) && group.members() == replicas {
            return Ok(true);
        }
        let mut placing = self.placing.lock();
        if placing.moving.is_none()
            && let Some(node) = self.myself.upgrade()
        {
            placing.moving = Some(partition);
            tokio::spawn(async move {
                if let Err(why) = node.move_to(partition, &group, replicas).await {
                    tracing::info!("partition {partition} is not yet where it should be: {why}");
                }
                node.placing.lock().moving = None;
            });
        }
        Ok(false)
    }

    async fn move_to(
        &self,
        partition: u16,
        group: &Group,
        replicas: BTreeSet<NodeId>,
    ) -> Result<(), NotDone> {
        let voters = group.voters();
        let new: Vec<NodeId> = replicas.difference(&voters).copied().collect();
        // All that was ever agreed on with the help of those who come, should they have been here before.
        within(ANSWER_MAX, group.confirm()).await?;
        let complete_at = group.status().applied.map_or(0, |applied| applied + 1);
        for node in &new {
            let asked = question(kind::HOLD, partition, |out| put_varint(out, complete_at));
            self.ask(*node, asked, ANSWER_MAX, |_| Ok(())).await?;
            in_time(group.add_listener(*node)).await.map_err(NotDone::Stopped)?;
        }
        for node in &new {
            self.catch_up(group, *node).await?;
        }
        // Before the voters: this node may not be one of them after that.
        let listeners = &group.members() - &group.voters();
        let strangers = &listeners - &replicas;
        if !strangers.is_empty() {
            in_time(group.drop_listeners(strangers)).await.map_err(NotDone::Stopped)?;
        }
        if !group.is_of(&replicas) {
            in_time(group.set_voters(replicas)).await.map_err(NotDone::Stopped)?;
        }
        Ok(())
    }

    /// Waits until another has nearly everything.
    async fn catch_up(&self, group: &Group, node: NodeId) -> Result<(), NotDone> {
        let began = Instant::now();
        loop {
            if group.leader() != Some(self.id) {
                return Err(NotDone::NotLeader(group.leader()));
            }
            if group.lag(node).is_some_and(|lag| lag <= LAG_MAX) {
                return Ok(());
            }
            // A snapshot may take its time; what counts is that somebody is there.
            if group.silence(node).unwrap_or_else(|| began.elapsed()) > SILENCE_MAX {
                return Err(NotDone::Stopped(format!("node {node} does not answer")));
            }
            sleep(CATCH_UP_PAUSE).await;
        }
    }

    /// Whether exactly those hold a partition who shall, and as many as there can be; `None` where another leads it.
    pub fn is_placed(&self, partition: u16) -> Option<bool> {
        let group = self.leading(partition).ok()?;
        self.meta.read(|meta| {
            let replicas = meta.placement.replicas.get(usize::from(partition))?;
            let stay = meta.nodes.values().filter(|member| !member.is_leaving).count();
            let is_full = replicas.len() == stay.min(usize::from(meta.replicas));
            Some(is_full && group.is_of(&replicas.iter().copied().collect()))
        })
    }

    /// The same of all partitions, from those who lead them; whom nobody reaches says nothing.
    pub async fn placed(&self) -> BTreeMap<u16, bool> {
        let others = self.meta.read(|meta| meta.nodes.keys().copied().collect::<Vec<_>>());
        let all = others.into_iter().map(|node| self.ask(node, vec![kind::PLACED], HEAR_PAUSE, read_pairs));
        let answers = futures_util::future::join_all(all).await;
        answers
            .into_iter()
            .flatten()
            .flatten()
            .map(|(partition, is_placed)| (partition, is_placed == 1))
            .collect()
    }

    pub(crate) fn answer_placed(&self) -> Vec<u8> {
        let known = |partition| Some((partition, u64::from(self.is_placed(partition)?)));
        encode_pairs(&(0..self.partitions).filter_map(known).collect::<Vec<_>>())
    }

    /// Who belongs to a partition that this node leads, for certain.
    pub(crate) async fn members(&self, partition: u16) -> Result<BTreeSet<NodeId>, NotDone> {
        let group = self.leading(partition)?;
        within(ANSWER_MAX, group.confirm()).await?;
        Ok(group.all_members())
    }

    /// Lets go of partitions that others hold by now; what an earlier attempt left half way is brought to an end, or taken up again.
    pub(crate) async fn let_go_of_strays(&self) {
        if !Placing::is_time(&mut self.placing.lock().strays_at) {
            return;
        }
        let placed = self.meta.read(|meta| meta.placement.replicas.clone());
        for (replicas, partition) in placed.iter().zip(0u16..) {
            let (is_placed, is_here) = (replicas.contains(&self.id), self.group(partition).is_some());
            if is_here == is_placed && self.engine.holds(partition) == is_here {
                continue;
            }
            let done = match is_placed || !self.is_stray(partition).await {
                true => self.take_up(partition).await,
                false => self.let_go(partition).await,
            };
            if let Err(why) = done {
                tracing::warn!("partition {partition} is neither here nor gone: {why}");
            }
        }
    }

    /// Starts the replica of a partition that is here, unless it runs.
    async fn take_up(&self, partition: u16) -> Result<(), String> {
        let _one = self.holding.lock().await;
        let is_given_up = self.journal.is_forgotten(usize::from(partition));
        match self.group(partition).is_none() && self.engine.holds(partition) && !is_given_up {
            true => self.start(partition).await,
            false => Ok(()),
        }
    }

    /// Whether whoever leads a partition says that this node is none of its own.
    async fn is_stray(&self, partition: u16) -> bool {
        let members =
            self.ask_leader(partition, question(kind::MEMBERS, partition, |_| {}), read_nodes).await;
        members.is_ok_and(|members| !members.contains(&self.id))
    }

    async fn let_go(&self, partition: u16) -> Result<(), String> {
        let _one = self.holding.lock().await;
        let held = self.groups.write().get_mut(usize::from(partition)).and_then(Option::take);
        if let Some(held) = held {
            held.group.stop().await;
        }
        // Asked again now that it has stopped: what is taken away must not be what somebody has come to count on.
        if !self.journal.is_forgotten(usize::from(partition)) && !self.is_stray(partition).await {
            return self.start(partition).await;
        }
        let (engine, journal) = (Arc::clone(&self.engine), Arc::clone(&self.journal));
        let forget = move || {
            // First the log: what is left if this breaks off takes part in nothing, and goes the next time.
            journal.forget(usize::from(partition)).map_err(|error| error.to_string())?;
            engine.let_go(partition).map_err(|error| error.to_string())
        };
        blocking(forget).await.map_err(|error| error.to_string())?
    }
}

/// A change of members that does not come about leaves things as they are, or half way, and is tried again.
async fn in_time(change: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let changed = tokio::time::timeout(CHANGE_MAX, change).await;
    changed.unwrap_or_else(|_| Err("too few nodes answer".into()))
}
