//! How a cluster begins, how nodes come to it, and what all of them agree on.

use std::fmt;
use std::time::Duration;

use quipu_counting::{Policies, Policy};
use tokio::time::Instant;

use crate::meta::{Change, Member, check_address};
use crate::node::{ANSWER_MAX, Node, within};
use crate::questions::{LOOK_AGAIN, kind, question, read_refused};
use crate::raft::{NodeId, NotDone};

/// How long somebody who wants to join asks before saying that it does not work.
const JOIN_MAX: Duration = Duration::from_secs(3);
/// How long the first node may take to lead a group, which a slow disk is no reason to give up.
const FOUND_MAX: Duration = Duration::from_secs(60);
/// How long it waits for one of those it asks.
pub(crate) const JOIN_ASK_MAX: Duration = Duration::from_secs(2);

/// Why a node does not belong to its cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotJoined {
    /// Nobody has said yes or no.
    #[error("{0}")]
    NotYet(String),
    /// It is not wanted, for ever.
    #[error("{0}")]
    Refused(String),
}

/// Why all nodes have not agreed on a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotChanged {
    /// It is not possible.
    Refused(String),
    /// It was not done, or nobody knows.
    NotDone(NotDone),
}

impl fmt::Display for NotChanged {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotChanged::Refused(why) => out.write_str(why),
            // Who was asked last may think that another leads; there is none that could be found.
            NotChanged::NotDone(NotDone::NotLeader(_)) => {
                out.write_str("nobody leads the cluster at the moment; too few of its nodes may be reached")
            }
            NotChanged::NotDone(NotDone::NoQuorum) => {
                out.write_str("too few nodes of the cluster are reached to agree on anything")
            }
            NotChanged::NotDone(why) => why.fmt(out),
        }
    }
}

impl std::error::Error for NotChanged {}

impl From<NotDone> for NotChanged {
    fn from(why: NotDone) -> NotChanged {
        NotChanged::NotDone(why)
    }
}

impl Node {
    /// The first node of a new cluster: everything this folder has counted is its beginning.
    pub async fn found(&self, cluster: u128, replicas: u16, member: Member) -> Result<(), String> {
        if self.meta.read(|meta| meta.cluster != 0) {
            return Err("this data folder belongs to a cluster already".into());
        }
        // What an earlier attempt did before it broke off is done.
        for partition in 0..self.partitions {
            let founded = self.found_partition(partition).await;
            founded.map_err(|why| format!("partition {partition}: {why}"))?;
        }
        if !self.nodes.is_founded().await? {
            self.nodes.found(&[self.id]).await?;
        }
        self.nodes.has_leader(FOUND_MAX).await?;
        let (partitions, node) = (self.partitions, self.id);
        // A folder that counted alone keeps its policies with the first partition, whatever the others have.
        let policies = self.engine.policies_of(0);
        let policies = policies.iter().map(|(pattern, policy)| (pattern.to_vec(), policy.clone())).collect();
        let found = Change::Found { cluster, partitions, replicas, node, member, policies };
        self.change(found).await.map_err(|why| why.to_string())
    }

    async fn found_partition(&self, partition: u16) -> Result<(), String> {
        self.hold(partition, 0).await?;
        let Some(group) = self.group(partition) else { return Ok(()) };
        if !group.is_founded().await? {
            group.found(&[self.id]).await?;
        }
        group.has_leader(FOUND_MAX).await?;
        // What was counted before is in no log: whoever joins must begin with a snapshot.
        match group.status().purged {
            Some(_) => Ok(()),
            None => group.compact().await,
        }
    }

    /// Lets a node leave, which may be lost: others take over what it holds.
    pub async fn let_leave(&self, node: NodeId) -> Result<(), NotChanged> {
        if self.meta.read(|meta| meta.nodes.get(&node).is_none_or(|member| member.is_leaving)) {
            return Ok(());
        }
        let until = Instant::now() + self.patience;
        let reached = loop {
            let reached = self.reached().await;
            if reached.len() * 2 > self.meta.read(|meta| meta.nodes.len()) {
                break reached;
            }
            // Who has just come may not be reached yet.
            if Instant::now() >= until {
                return Err(NotDone::NoQuorum.into());
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        };
        // A change of members needs a majority of those who are and of those who will be: who is lost goes first.
        let lost = self.meta.read(|meta| {
            let mut stay = meta.nodes.iter().filter(|(id, member)| **id != node && !member.is_leaving);
            stay.find(|(id, _)| !reached.contains(id)).map(|(id, _)| *id)
        });
        match lost {
            Some(lost) if reached.contains(&node) => Err(NotChanged::Refused(format!(
                "node {node} cannot leave now: node {lost} does not answer, and too few would be left to agree on anything. \
                 Start node {lost}, or remove it first"
            ))),
            _ => self.change(Change::Leave(node)).await.map_err(|why| match why {
                NotChanged::Refused(why) => NotChanged::Refused(format!("node {node} cannot leave: {why}")),
                other => other,
            }),
        }
    }

    /// Joins a cluster through one of these nodes, or says again where it is. It has its share once it is told so.
    pub async fn join(&self, through: &[NodeId], member: &Member) -> Result<(), NotJoined> {
        self.ask_through(through, Change::Join(self.id, member.clone())).await
    }

    /// Lets a node leave that is lost, and whose address this one has now: it cannot join before that.
    pub async fn let_leave_first(&self, through: &[NodeId], lost: NodeId) -> Result<(), NotJoined> {
        self.ask_through(through, Change::Leave(lost)).await
    }

    /// Has a change agreed on by a cluster to which this node does not belong yet.
    async fn ask_through(&self, through: &[NodeId], change: Change) -> Result<(), NotJoined> {
        let question = [&[kind::CHANGE], &change.encode()[..]].concat();
        let until = Instant::now() + JOIN_MAX;
        let mut others = through.iter().cycle();
        let mut hint = None;
        loop {
            let Some(asked) = hint.take().or_else(|| others.next().copied()) else {
                return Err(NotJoined::NotYet("there is nobody to ask".into()));
            };
            match self.ask(asked, question.clone(), JOIN_ASK_MAX, read_refused).await {
                Ok(None) => return Ok(()),
                Ok(Some(why)) => return Err(NotJoined::Refused(why)),
                Err(NotDone::NotLeader(Some(leader))) if leader != asked => hint = Some(leader),
                Err(error) if Instant::now() >= until => return Err(NotJoined::NotYet(error.to_string())),
                Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    /// Has a change agreed on by all nodes.
    pub async fn change(&self, change: Change) -> Result<(), NotChanged> {
        let until = Instant::now() + self.patience;
        let (mut hint, mut may_be_done) = (None, false);
        loop {
            let target = hint.take().or_else(|| self.nodes.leader());
            let done = match target {
                Some(target) if target == self.id => self.change_here(&change).await,
                Some(target) => {
                    let question = [&[kind::CHANGE], &change.encode()[..]].concat();
                    self.ask(target, question, ANSWER_MAX, read_refused).await
                }
                None => Err(NotDone::NotLeader(None)),
            };
            match done {
                Ok(None) => return Ok(()),
                Ok(Some(why)) => return Err(NotChanged::Refused(why)),
                Err(NotDone::NotMember) => return Err(NotDone::NotMember.into()),
                Err(NotDone::NotLeader(Some(leader))) if Some(leader) != target => hint = Some(leader),
                Err(error) => {
                    may_be_done |= matches!(error, NotDone::Unknown);
                    if Instant::now() >= until {
                        return Err(if may_be_done { NotDone::Unknown } else { error }.into());
                    }
                    tokio::time::sleep(LOOK_AGAIN).await;
                }
            }
        }
    }

    pub(crate) async fn change_here(&self, change: &Change) -> Result<Option<String>, NotDone> {
        // Founding makes everything new: what came before it would be forgotten.
        if !matches!(change, Change::Found { .. }) && self.meta.read(|meta| meta.cluster == 0) {
            return Err(NotDone::NotLeader(None));
        }
        if let Change::Join(node, member) = change {
            // Before it is agreed on, so that replicas of all versions decide alike.
            if let Err(why) = check_address(&member.address) {
                return Ok(Some(why));
            }
            let known = self.meta.read(|meta| meta.nodes.get(node).cloned());
            // Nodes say again and again that they are there.
            if known.is_some_and(|known| Member { is_leaving: member.is_leaving, ..known } == *member) {
                return within(ANSWER_MAX, self.nodes.confirm()).await.map(|()| None);
            }
        }
        within(ANSWER_MAX, self.nodes.propose(change.encode())).await.map(|answer| answer.refused)
    }

    /// All policies, with every change of them that was acknowledged before the call.
    pub async fn policies(&self) -> Result<Policies, NotDone> {
        self.learn_all(self.patience).await?;
        Ok(self.meta.read(|meta| meta.policies.clone()))
    }

    /// Stores or removes a policy everywhere.
    pub async fn set_policy(&self, pattern: &[u8], policy: Option<Policy>) -> Result<bool, NotChanged> {
        let needs_level =
            |policy: &Policy| policy.kind.is_some() || policy.audit_ms.is_some() || policy.rollups.is_some();
        if policy.as_ref().is_some_and(needs_level) {
            self.check_level().map_err(NotChanged::Refused)?;
        }
        let existed = self.policies().await?.get(pattern).is_some();
        self.change(Change::Policy(pattern.to_vec(), policy)).await?;
        let all = (0..self.partitions).map(|partition| {
            self.ask_leader(partition, question(kind::BRING, partition, |_| {}), |_| Ok(()))
        });
        // Leaders bring what is missing in time; here it is about not answering too early. It is agreed on: who hears that something went
        // wrong must not take it for undone.
        for told in futures_util::future::join_all(all).await {
            told.map_err(|_| NotDone::Unknown)?;
        }
        Ok(existed)
    }
}
