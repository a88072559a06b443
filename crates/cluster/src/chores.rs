//! What a node looks after without being asked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quipu_counting::Policy;

use crate::blocking::blocking;
use crate::command;
use crate::node::{ANSWER_MAX, Node, addresses, within};
use crate::questions::{HEAR_PAUSE, kind, read_leaders};
use crate::raft::{Group, NodeId};

/// How often nodes look after what is theirs to look after.
pub(crate) const CHORES_PAUSE: Duration = Duration::from_millis(200);
/// How many of those who may know it asks about a partition.
const REPLICAS_ASKED_MAX: usize = 7;
/// Counters whose time has come that are removed at once.
const EXPIRIES_MAX: usize = 1_000;
/// The log may grow by so much before what is known of the cluster is written down again.
const META_TAIL_BYTES: u64 = 32 << 20;

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

    /// What a node looks after without being asked.
    pub(crate) async fn tend(&self) {
        self.transport.learn(&addresses(&self.meta));
        for partition in 0..self.partitions {
            let Some(group) = self.group(partition) else { continue };
            group.stand(group.is_complete() && !self.is_stopping.load(Ordering::Acquire));
            if group.leader() == Some(self.id) {
                self.remove_expired(partition, &group).await;
                self.bring_policies(partition, &group).await;
            }
        }
        if self.nodes.leader() == Some(self.id) {
            self.place().await;
        }
        self.let_go_of_strays().await;
    }

    /// Asks others who leads what is not here: first those who should know best.
    pub(crate) async fn hear(&self) {
        let mut unheard: BTreeMap<u16, Vec<NodeId>> = (0..self.partitions)
            .filter(|partition| self.group(*partition).is_none())
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
                asked.into_iter().map(|node| self.ask(node, vec![kind::LEADERS], HEAR_PAUSE, read_leaders));
            for (partition, leader) in
                futures_util::future::join_all(answers).await.into_iter().flatten().flatten()
            {
                if let Some(heard) = self.heard.get(usize::from(partition)) {
                    heard.store(leader, Ordering::Relaxed);
                    unheard.remove(&partition);
                }
            }
            if unheard.is_empty() {
                return;
            }
        }
    }

    /// Has counters removed whose time has come.
    async fn remove_expired(&self, partition: u16, group: &Group) {
        let now_ms = (self.clock)();
        let keys = self.engine.due(partition, now_ms, EXPIRIES_MAX);
        if !keys.is_empty() {
            let _ = within(ANSWER_MAX, group.propose(command::expire(now_ms, &keys))).await;
        }
    }

    /// Brings a partition the policies that all nodes agreed on.
    async fn bring_policies(&self, partition: u16, group: &Group) {
        if self.missing_policies(partition).is_empty() {
            return;
        }
        let _one = self.bringing.lock().await;
        if !self.knows_all().await {
            return;
        }
        for (pattern, policy) in self.missing_policies(partition) {
            let command = command::policy((self.clock)(), &pattern, policy.as_ref());
            let _ = within(ANSWER_MAX, group.propose(command)).await;
        }
    }

    /// The policies of a partition that are not those that are known here.
    fn missing_policies(&self, partition: u16) -> Vec<(Vec<u8>, Option<Policy>)> {
        let here = self.engine.policies_of(partition);
        self.meta.read(|meta| {
            let new = meta.policies.iter().filter(|(pattern, policy)| here.get(pattern) != Some(policy));
            let old = here.iter().filter(|(pattern, _)| meta.policies.get(pattern).is_none());
            let new = new.map(|(pattern, policy)| (pattern.to_vec(), Some(policy.clone())));
            new.chain(old.map(|(pattern, _)| (pattern.to_vec(), None))).collect()
        })
    }

    /// Whether everything that all nodes had agreed on before the call is known here.
    async fn knows_all(&self) -> bool {
        let agreed = match self.nodes.leader() {
            Some(leader) => {
                self.ask(leader, vec![kind::AGREED_BY_ALL], HEAR_PAUSE, |reader| reader.varint()).await.ok()
            }
            None => None,
        };
        agreed.is_some_and(|agreed| self.nodes.status().applied >= Some(agreed))
    }
}
