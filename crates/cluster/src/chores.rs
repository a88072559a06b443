//! What a node looks after without being asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use quipu_counting::Policy;
use tokio::time::Instant;

use crate::blocking::blocking;
use crate::command;
use crate::node::{ANSWER_MAX, Node, addresses, within};
use crate::questions::{HEAR_PAUSE, kind, read_pairs};
use crate::raft::{Group, NodeId, NotDone, State};

/// How often nodes look after what is theirs to look after.
pub(crate) const CHORES_PAUSE: Duration = Duration::from_millis(200);
/// How many of those who may know it asks about a partition.
const REPLICAS_ASKED_MAX: usize = 7;
/// Counters whose time has come that are removed at once.
const EXPIRIES_MAX: usize = 1_000;
/// How often somebody looks whether what all nodes agreed on has come here.
const LEARN_PAUSE: Duration = Duration::from_millis(5);
/// The log may grow by so much before what is known of the cluster is written down again.
const META_TAIL_BYTES: u64 = 32 << 20;

/// One of the things that a node looks after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Chore {
    /// The group of all nodes, and who holds what.
    Nodes,
    /// What others hold in its place.
    Strays,
    /// Whether it knows what time it is.
    Clock,
    /// A partition that is here.
    Partition(u16),
}

impl Node {
    /// The engine has made a checkpoint.
    pub(crate) async fn checkpointed(&self, partition: u16) {
        if let Some(group) = self.group(partition) {
            group.checkpointed().await;
        }
        if self.engine.log().end().saturating_sub(self.engine.meta_needed_from()) > META_TAIL_BYTES {
            let meta = Arc::clone(&self.meta);
            match blocking(move || meta.save()).await {
                Ok(Ok(())) => {}
                failed => tracing::warn!("what is known of the cluster was not written down: {failed:?}"),
            }
        }
    }

    /// What a node looks after without being asked. Each chore goes on by itself: one that waits, because a partition has no leader or a disk is
    /// full, holds up no other, and is not begun again before it is done.
    pub(crate) fn tend(&self) {
        let addresses = addresses(&self.meta);
        self.transport.learn(&addresses);
        self.ways.lock().retain(|(node, ..), _| addresses.contains_key(node));
        self.forget_watchers();
        for (partition, led_at) in (0u16..).zip(&self.led_at) {
            if self.leader_heard_of(partition).is_some() {
                *led_at.lock() = Instant::now();
            }
        }
        let partitions = (0..self.partitions).filter(|partition| self.group(*partition).is_some());
        let others = [Chore::Nodes, Chore::Strays, Chore::Clock];
        for chore in others.into_iter().chain(partitions.map(Chore::Partition)) {
            let Some(node) = self.myself.upgrade() else { return };
            if self.chores.lock().insert(chore) {
                tokio::spawn(async move {
                    node.carry_out(chore).await;
                    node.chores.lock().remove(&chore);
                });
            }
        }
    }

    async fn carry_out(&self, chore: Chore) {
        match chore {
            Chore::Nodes => {
                self.stand_or_hand_over(self.partitions, &self.nodes).await;
                if self.nodes.leader() == Some(self.id) && !self.nodes.waits_for_room() {
                    self.place().await;
                }
            }
            Chore::Strays => self.let_go_of_strays().await,
            Chore::Clock => self.compare_clocks().await,
            Chore::Partition(partition) => {
                if let Some(group) = self.group(partition) {
                    self.tend_partition(partition, &group).await;
                }
            }
        }
    }

    async fn tend_partition(&self, partition: u16, group: &Group) {
        self.stand_or_hand_over(partition, group).await;
        if group.leader() == Some(self.id) && !group.waits_for_room() && !self.is_ahead() {
            self.remove_expired(partition, group).await;
            if !self.missing_policies(partition).is_empty() {
                // What was not done now is done the next time.
                let _ = self.bring_policies(partition, group, HEAR_PAUSE).await;
            }
        }
    }

    /// Lets a replica stand for the lead, if it could lead; what is led by one that waits for room on a full disk hangs, and who does not know
    /// the time must not say it, so others shall have it.
    async fn stand_or_hand_over<M: State>(&self, number: u16, group: &Group<M>) {
        group.stand(self.may_lead(group));
        if (group.waits_for_room() || self.is_ahead()) && group.leader() == Some(self.id) {
            self.hand_over(number, group).await;
        }
    }

    /// Asks others who leads what is not here, or stands still here: first those who should know best.
    pub(crate) async fn hear(&self) {
        let mut unheard: BTreeMap<u16, Vec<NodeId>> = (0..self.partitions)
            .filter(|partition| self.moving(*partition).is_none())
            .map(|partition| (partition, self.candidates(partition)))
            .collect();
        for rank in 0..REPLICAS_ASKED_MAX {
            let asked: BTreeSet<NodeId> = unheard
                .values()
                .filter_map(|nodes| nodes.get(rank))
                .filter(|node| **node != self.id)
                .copied()
                .collect();
            let answers =
                asked.into_iter().map(|node| self.ask(node, vec![kind::LEADERS], HEAR_PAUSE, read_pairs));
            for (partition, leader) in
                futures_util::future::join_all(answers).await.into_iter().flatten().flatten()
            {
                if let Some(heard) = self.heard.get(usize::from(partition)) {
                    heard.learn(leader);
                    unheard.remove(&partition);
                }
            }
            if unheard.is_empty() {
                return;
            }
        }
    }

    /// Has counters removed whose time has come. Where nobody changes anything, that also says from time to time what time it is.
    async fn remove_expired(&self, partition: u16, group: &Group) {
        let now_ms = (self.clock)();
        let keys = self.engine.due(partition, now_ms, EXPIRIES_MAX);
        if !keys.is_empty() || self.engine.lags(partition, now_ms) {
            let _ = within(ANSWER_MAX, group.propose(command::expire(now_ms, &keys))).await;
        }
    }

    /// Brings a partition that this node leads the policies that all nodes had agreed on before the call. What they are is asked
    /// here and now, so nothing that comes late undoes what is newer.
    pub(crate) async fn bring_policies(
        &self,
        partition: u16,
        group: &Group,
        patience: Duration,
    ) -> Result<(), NotDone> {
        let Some(one) = self.bringing.get(usize::from(partition)) else {
            return Err(NotDone::NotLeader(None));
        };
        let _one = one.lock().await;
        self.learn_all(patience).await?;
        // What an earlier leader left behind is carried out first.
        within(ANSWER_MAX, group.confirm()).await?;
        for (pattern, policy) in self.missing_policies(partition) {
            let command = command::policy((self.clock)(), &pattern, policy.as_ref());
            within(ANSWER_MAX, group.propose(command)).await?;
        }
        Ok(())
    }

    /// The policies of a partition that are not those that are known here.
    fn missing_policies(&self, partition: u16) -> Vec<(Vec<u8>, Option<Policy>)> {
        let here = self.engine.policies_of(partition);
        self.meta.read(|meta| {
            // Before the cluster is founded it knows no policies, and those that are here are what it shall begin with.
            if meta.cluster == 0 {
                return Vec::new();
            }
            let new = meta.policies.iter().filter(|(pattern, policy)| here.get(pattern) != Some(policy));
            let old = here.iter().filter(|(pattern, _)| meta.policies.get(pattern).is_none());
            let new = new.map(|(pattern, policy)| (pattern.to_vec(), Some(policy.clone())));
            new.chain(old.map(|(pattern, _)| (pattern.to_vec(), None))).collect()
        })
    }

    /// Waits until everything is known here that all nodes had agreed on before the call, for so long at most.
    pub(crate) async fn learn_all(&self, patience: Duration) -> Result<(), NotDone> {
        let until = Instant::now() + patience;
        let mut agreed = None;
        loop {
            if self.is_cast_out() {
                return Err(NotDone::NotMember);
            }
            if agreed.is_none()
                && let Some(leader) = self.nodes.leader()
            {
                let asked = self.ask(leader, vec![kind::AGREED_BY_ALL], HEAR_PAUSE, |reader| reader.varint());
                agreed = asked.await.ok();
            }
            if agreed.is_some() && self.nodes.status().applied >= agreed {
                return Ok(());
            }
            if Instant::now() >= until {
                return Err(NotDone::NotLeader(None));
            }
            tokio::time::sleep(LEARN_PAUSE).await;
        }
    }
}
