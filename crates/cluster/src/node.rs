//! One of the machines: its groups, the way of a batch through them, and its part in placing partitions.
//!
//! Questions of one node to another, and answers, beside those of the replicas (`raft/group.rs`, 1 to 6):
//!
//! ```text
//! 16 partition:v batch          do this, or look, if you lead the partition   -> replies
//! 17 partition:v command        have this agreed on, if you lead it           ->
//! 18 change                     have this agreed on by all nodes              -> 0 | 1 why refused
//! 19 partition:v                who belongs to it, if you lead it             -> nodes:v node:v*
//! 20 partition:v nodes:v node:v*    see that these hold it, if you lead it    -> 0 not yet | 1 they do
//! 21 partition:v index:v        hold it: its leader will tell you more; take part once you have what is before this entry ->
//! 22 partition:v node:v         let that node lead, if you do                 ->
//! 23                            who leads what you hold?                      -> count:v (partition:v leader:v)*
//! 24 group:v                    would you lead it?                            -> 0 | 1
//! 25                            up to which entry do all nodes agree, if you lead them? -> index:v
//! 32 count:v partition:v*       up to which entry is agreed on what you lead? -> count:v (partition:v index:v)*
//! 33 partition:v (0 | 1 max_staleness_ms:v) batch    look, if you hold it and are not further behind -> staleness_ms:v replies
//! 34 partition:v listing        a page of its counters, if you lead it        -> more:1 count:v (key cell)*
//! 35 partition:v draw:v         any of its keys, if you lead it               -> 0 | 1 key
//! 36 partition:v place:v        what did you remember under this number?      -> 0 | 1 key
//! listing := prefix order:1 (0 | 1 value:z key) limit:v      order: 0 storage, 1 key, 2 value; only what comes after the place
//! key, prefix := length:v bytes
//! answer := 0 (what stands above) | 1 (0 | 1 leader:v) | 2 no quorum | 3 unknown | 4 length:v why it has stopped
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use quipu_counting::slot::{partition as partition_of, slot};
use quipu_counting::{Action, Batch, Freshness, Group as Bound, GroupKind, Policy, Refusal, Reply, Request};
use quipu_engine::{Clock, Engine, OpenError, Options, Replication};
use quipu_store::Disk;
use quipu_store::cold::ColdStore;
use quipu_wire::batch::{put_batch, put_replies, read_batch, read_replies};
use quipu_wire::entry::{Malformed, Reader, put_bytes, put_varint};
use tokio::time::Instant;

use crate::blocking::blocking;
use crate::command;
use crate::meta::{Change, Member, Meta, removed};
use crate::placing::Placing;
use crate::plant::{Plant, is_planted};
use crate::raft::meta_machine::kept_mark;
use crate::raft::{
    Group, Journal, JournalReader, Mark, MetaMachine, MetaState, NodeId, NotDone, Pace, State, Status,
};
use crate::reads::{self, Reads};
use crate::split::{Part, Split};
use crate::together::{Done, Together};
use crate::transport::Transport;
use crate::walks::Places;

/// What a node is told at its start.
pub struct Settings {
    /// Its number.
    pub id: NodeId,
    /// Its data folder.
    pub path: PathBuf,
    /// Of its engine.
    pub options: Options,
    /// How fast its groups notice things.
    pub pace: Pace,
    /// How long a request may look for a leader.
    pub patience: Duration,
    /// What to open the folder on instead of the machine's disk, for a simulation: nothing happens there by itself.
    pub storage: Option<(Arc<dyn Disk>, Arc<dyn ColdStore>)>,
}

/// How long somebody waits who found no leader before looking again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How often somebody follows what others say about who leads, before waiting until they agree.
const HINTS_MAX: u32 = 3;
/// How long another node may take to answer.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How long somebody who wants to join asks before saying that it does not work.
const JOIN_MAX: Duration = Duration::from_secs(3);
/// How long it waits for one of those it asks.
const JOIN_ASK_MAX: Duration = Duration::from_secs(2);
/// How often nodes look after what is theirs to look after.
const CHORES_PAUSE: Duration = Duration::from_millis(200);
/// How often a node asks who leads the partitions it does not hold, and how long it waits for an answer.
const HEAR_PAUSE: Duration = Duration::from_secs(1);
/// How many of those who may know it asks about a partition.
const REPLICAS_ASKED_MAX: usize = 7;
/// The most requests in one batch: what replicas cannot carry out must not get into their logs.
const REQUESTS_MAX: usize = quipu_engine::REQUESTS_PER_BATCH_MAX;
/// The most bytes of a batch, about: an entry must fit a record of the log.
const BATCH_BYTES_MAX: usize = 12 << 20;
/// About what a request takes beside its key and id.
const REQUEST_BYTES: usize = 48;
/// How long a replica may take to end; one that waits for room on a full disk has nothing to lose.
const STOP_MAX: Duration = Duration::from_secs(5);
/// Counters whose time has come that are removed at once.
const EXPIRIES_MAX: usize = 1_000;
/// The log may grow by so much before what is known of the cluster is written down again.
const META_TAIL_BYTES: u64 = 32 << 20;

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

/// See the head of this file.
pub struct Node {
    /// For what it does in the background.
    pub(crate) myself: Weak<Node>,
    pub(crate) id: NodeId,
    pub(crate) engine: Arc<Engine>,
    pub(crate) journal: Arc<Journal>,
    transport: Arc<dyn Transport>,
    clock: Clock,
    pace: Pace,
    patience: Duration,
    pub(crate) partitions: u16,
    pub(crate) groups: RwLock<Vec<Option<Held>>>,
    /// Who leads the partitions that are not here, as others say; 0 where nobody has said.
    heard: Vec<AtomicU64>,
    /// The ways to others who lead a partition; changes and looks go apart.
    ways: Mutex<HashMap<(NodeId, u16, bool), Together>>,
    pub(crate) meta: Arc<MetaState>,
    /// The group of all nodes.
    pub(crate) nodes: Group<MetaMachine>,
    /// One partition is taken up or given up at a time.
    pub(crate) holding: tokio::sync::Mutex<()>,
    pub(crate) placing: Mutex<Placing>,
    /// One change of policies at a time: what is brought late must not undo what is newer.
    bringing: tokio::sync::Mutex<()>,
    /// It is about to end, and leads nothing any more if others can.
    is_stopping: AtomicBool,
    pub(crate) reads: Reads,
    pub(crate) places: Mutex<Places>,
}

/// A partition that is here.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) group: Arc<Group>,
    /// The way into its log.
    changes: Together,
    /// The way to what it has carried out.
    looks: Together,
}

impl Node {
    /// Opens the data folder and starts the replicas of all partitions it holds.
    pub async fn open(settings: Settings, transport: Arc<dyn Transport>) -> Result<Arc<Node>, String> {
        let Settings { id, path, options, pace, patience, storage } = settings;
        let partitions = options.partitions;
        let is_simulated = storage.is_some();
        let (engine, journal) = open_engine(path, &options, storage).map_err(|error| error.to_string())?;
        let meta = MetaState::load(Arc::clone(&engine), Arc::clone(&journal), usize::from(partitions))?;
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        journal.on_checkpoint(move |partition| {
            let _ = tell.send(partition);
        });
        let replication = Arc::clone(&journal) as Arc<dyn Replication>;
        engine.replicate(replication);
        if !is_simulated {
            engine.start_threads(&options.clock).map_err(|error| error.to_string())?;
        }
        transport.learn(&addresses(&meta));
        let (state, link) = (Arc::clone(&meta), Arc::clone(&transport));
        let nodes = Group::of_nodes(id, partitions, Arc::clone(&engine), &journal, link, pace, state).await?;
        let node = Arc::new_cyclic(|myself| Node {
            myself: Weak::clone(myself),
            id,
            reads: Reads::of(partitions),
            places: Places::new((options.clock)()),
            clock: options.clock,
            pace,
            patience,
            partitions,
            groups: RwLock::new(vec![None; usize::from(partitions)]),
            heard: (0..partitions).map(|_| AtomicU64::new(0)).collect(),
            ways: Mutex::default(),
            nodes,
            meta,
            engine,
            journal,
            transport,
            holding: tokio::sync::Mutex::default(),
            placing: Mutex::default(),
            bringing: tokio::sync::Mutex::default(),
            is_stopping: AtomicBool::new(false),
        });
        for partition in (0..partitions).filter(|partition| node.engine.holds(*partition)) {
            match node.journal.is_forgotten(usize::from(partition)) {
                // It was being let go of when the process ended.
                true => node.engine.let_go(partition).map_err(|error| error.to_string())?,
                false => node.start(partition).await?,
            }
        }
        let weak = Arc::downgrade(&node);
        tokio::spawn(async move {
            while let Some(partition) = told.recv().await {
                let Some(node) = weak.upgrade() else { return };
                node.checkpointed(partition).await;
            }
        });
        let weak = Arc::downgrade(&node);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(CHORES_PAUSE).await;
                let Some(node) = weak.upgrade() else { return };
                node.tend().await;
            }
        });
        let weak = Arc::downgrade(&node);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(HEAR_PAUSE).await;
                let Some(node) = weak.upgrade() else { return };
                node.hear().await;
            }
        });
        reads::start(&node);
        Ok(node)
    }

    pub(crate) fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    /// Its number.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// What it counts with.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The replica of a partition, if it is here.
    pub fn group(&self, partition: u16) -> Option<Arc<Group>> {
        self.held(partition).map(|held| held.group)
    }

    /// How many partitions there are.
    pub fn partitions(&self) -> u16 {
        self.partitions
    }

    /// Who leads a partition, as far as is known here.
    pub fn leader(&self, partition: u16) -> Option<NodeId> {
        match self.groups.read().get(usize::from(partition))? {
            Some(held) => held.group.leader(),
            None => {
                let heard = self.heard[usize::from(partition)].load(Ordering::Relaxed);
                (heard != 0).then_some(heard)
            }
        }
    }

    fn held(&self, partition: u16) -> Option<Held> {
        self.groups.read().get(usize::from(partition)).cloned().flatten()
    }

    /// How things stand with the group of all nodes.
    pub fn nodes_status(&self) -> Status {
        self.nodes.status()
    }

    /// Looks at what all nodes agree on, as far as it is known here.
    pub fn meta<T>(&self, look: impl FnOnce(&Meta) -> T) -> T {
        self.meta.read(look)
    }

    /// The first node of a new cluster: everything this folder has counted is its beginning.
    pub async fn found(&self, cluster: u128, replicas: u16, member: Member) -> Result<(), String> {
        if self.meta.read(|meta| meta.cluster != 0) {
            return Err("this data folder belongs to a cluster already".into());
        }
        for partition in 0..self.partitions {
            self.hold(partition, 0).await?;
            let Some(group) = self.group(partition) else { continue };
            if !group.is_founded().await? {
                group.found(&[self.id]).await?;
            }
            group.has_leader(ANSWER_MAX).await?;
            // What was counted before is in no log: whoever joins must begin with a snapshot.
            group.compact().await?;
        }
        // What an earlier attempt did before it broke off is done.
        if !self.nodes.is_founded().await? {
            self.nodes.found(&[self.id]).await?;
        }
        self.nodes.has_leader(ANSWER_MAX).await?;
        let (partitions, node) = (self.partitions, self.id);
        self.change(Change::Found { cluster, partitions, replicas, node, member }).await
    }

    /// Joins a cluster through one of these nodes, or says again where it is. It has its share once it is told so.
    pub async fn join(&self, through: &[NodeId], member: &Member) -> Result<(), NotJoined> {
        let question = [&[18], &Change::Join(self.id, member.clone()).encode()[..]].concat();
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
    pub async fn change(&self, change: Change) -> Result<(), String> {
        let until = Instant::now() + self.patience;
        let mut hint = None;
        loop {
            let target = hint.take().or_else(|| self.nodes.leader());
            let done = match target {
                Some(target) if target == self.id => self.change_here(&change).await,
                Some(target) => {
                    let question = [&[18], &change.encode()[..]].concat();
                    self.ask(target, question, ANSWER_MAX, read_refused).await
                }
                None => Err(NotDone::NotLeader(None)),
            };
            match done {
                Ok(None) => return Ok(()),
                Ok(Some(why)) => return Err(why),
                Err(NotDone::NotLeader(Some(leader))) if Some(leader) != target => hint = Some(leader),
                Err(error) if Instant::now() >= until => return Err(error.to_string()),
                Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
            }
        }
    }

    async fn change_here(&self, change: &Change) -> Result<Option<String>, NotDone> {
        // Founding makes everything new: what came before it would be forgotten.
        if !matches!(change, Change::Found { .. }) && self.meta.read(|meta| meta.cluster == 0) {
            return Err(NotDone::NotLeader(None));
        }
        if let Change::Join(node, member) = change {
            let known = self.meta.read(|meta| meta.nodes.get(node).cloned());
            // Nodes say again and again that they are there.
            if known.is_some_and(|known| Member { is_leaving: member.is_leaving, ..known } == *member) {
                return within(ANSWER_MAX, self.nodes.confirm()).await.map(|()| None);
            }
        }
        within(ANSWER_MAX, self.nodes.propose(change.encode())).await.map(|answer| answer.refused)
    }

    /// Stores or removes a policy everywhere.
    pub async fn set_policy(&self, pattern: &[u8], policy: Option<Policy>) -> Result<bool, String> {
        let existed = self.meta.read(|meta| meta.policies.get(pattern).is_some());
        self.change(Change::Policy(pattern.to_vec(), policy.clone())).await?;
        let command = command::policy((self.clock)(), pattern, policy.as_ref());
        let all = (0..self.partitions).map(|partition| {
            let question = question(17, partition, |out| out.extend_from_slice(&command));
            self.ask_leader(partition, question, |_| Ok(()))
        });
        // Leaders bring what is missing in time; here it is about not answering too early.
        for told in futures_util::future::join_all(all).await {
            told.map_err(|error| error.to_string())?;
        }
        Ok(existed)
    }

    /// Those of the others who answer.
    pub async fn reached(&self) -> BTreeSet<NodeId> {
        let others = self.meta.read(|meta| meta.nodes.keys().copied().collect::<Vec<_>>());
        let all = others.into_iter().map(|node| async move {
            let answers = self.ask(node, vec![23], HEAR_PAUSE, read_leaders).await.is_ok();
            answers.then_some(node)
        });
        futures_util::future::join_all(all).await.into_iter().flatten().collect()
    }

    /// Lets others lead what this node leads, as far as they can: who asks then waits for a message, not for an election.
    pub async fn step_down(&self) {
        self.is_stopping.store(true, Ordering::Release);
        let led: Vec<(u16, Arc<Group>)> = (0..self.partitions)
            .filter_map(|partition| Some((partition, self.leading(partition).ok()?)))
            .collect();
        let all = led.iter().map(|(partition, group)| self.hand_over(*partition, group));
        futures_util::future::join_all(all).await;
        if self.nodes.leader() == Some(self.id) {
            self.hand_over(self.partitions, &self.nodes).await;
        }
    }

    /// Hands the lead to the first of those who could take it that says it would.
    async fn hand_over<M: State>(&self, number: u16, group: &Group<M>) {
        group.stand(false);
        for heir in group.heirs(self.id) {
            if self.would_lead(number, heir).await {
                group.hand_over(heir).await;
                group.has_other_leader(self.id).await;
                return;
            }
        }
    }

    /// Whether another says that it would lead a group.
    pub(crate) async fn would_lead(&self, number: u16, node: NodeId) -> bool {
        self.ask(node, question(24, number, |_| {}), HEAR_PAUSE, |reader| reader.flag()).await == Ok(true)
    }

    /// Ends everything, durably.
    pub async fn stop(&self) {
        self.journal.close();
        let groups: Vec<Held> = self.groups.write().iter_mut().filter_map(Option::take).collect();
        let all = groups.iter().map(|held| tokio::time::timeout(STOP_MAX, held.group.stop()));
        futures_util::future::join_all(all).await;
        let _ = tokio::time::timeout(STOP_MAX, self.nodes.stop()).await;
        if let Err(error) = self.engine.close() {
            tracing::error!("closing: {error}");
        }
    }

    /// Holds a partition, if it does not yet. It takes part once it has everything before this entry.
    async fn hold(&self, partition: u16, complete_at: u64) -> Result<(), String> {
        let _one = self.holding.lock().await;
        if partition >= self.partitions {
            return Err(format!("there is no partition {partition}"));
        }
        if !self.engine.holds(partition) {
            let (engine, journal) = (Arc::clone(&self.engine), Arc::clone(&self.journal));
            let hold = move || {
                journal.begin_anew(usize::from(partition), complete_at).map_err(|error| error.to_string())?;
                engine.begin_to_hold(partition, &Mark::default().encode()).map_err(|error| error.to_string())
            };
            blocking(hold).await.map_err(|error| error.to_string())??;
        }
        if self.group(partition).is_none() {
            self.start(partition).await?;
        }
        Ok(())
    }

    pub(crate) async fn start(&self, partition: u16) -> Result<(), String> {
        let transport = Arc::clone(&self.transport);
        let (engine, meta) = (Arc::clone(&self.engine), Arc::clone(&self.meta));
        let group =
            Group::of_partition(self.id, partition, engine, &self.journal, transport, self.pace, meta)
                .await?;
        let group = Arc::new(group);
        let (changed, clock) = (Arc::downgrade(&group), Arc::clone(&self.clock));
        let changes = Together::new(move |batch| {
            let (group, command) = (changed.upgrade()?, command::batch(clock(), &batch));
            Some(Box::pin(async move { group.propose(command).await.map(|answer| answer.replies) }))
        });
        let (looked, node) = (Arc::downgrade(&group), Weak::clone(&self.myself));
        let looks = Together::new(move |batch| {
            let (group, node) = (looked.upgrade()?, node.upgrade()?);
            Some(Box::pin(async move { node.look(partition, &group, batch).await }))
        });
        self.groups.write()[usize::from(partition)] = Some(Held { group, changes, looks });
        Ok(())
    }

    /// The engine has made a checkpoint.
    async fn checkpointed(&self, partition: u16) {
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
    async fn tend(&self) {
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
    async fn hear(&self) {
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
            let answers = asked.into_iter().map(|node| self.ask(node, vec![23], HEAR_PAUSE, read_leaders));
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
            Some(leader) => self.ask(leader, vec![25], HEAR_PAUSE, |reader| reader.varint()).await.ok(),
            None => None,
        };
        agreed.is_some_and(|agreed| self.nodes.status().applied >= Some(agreed))
    }

    /// The replica of a partition, if it leads.
    pub(crate) fn leading(&self, partition: u16) -> Result<Arc<Group>, NotDone> {
        let group = self.group(partition).ok_or(NotDone::NotLeader(None))?;
        match group.leader() {
            Some(leader) if leader == self.id => Ok(group),
            other => Err(NotDone::NotLeader(other)),
        }
    }

    /// Answers a question of another node.
    pub async fn receive(&self, from: NodeId, asked: &[u8]) -> Bytes {
        let answer = self.answer(from, asked).await;
        Bytes::from(answer.unwrap_or_else(|malformed| not_done(&NotDone::Stopped(malformed.to_string()))))
    }

    async fn answer(&self, from: NodeId, asked: &[u8]) -> Result<Vec<u8>, Malformed> {
        let mut reader = Reader::new(asked);
        let kind = reader.byte()?;
        if self.meta.read(|meta| meta.removed.contains(&from)) {
            let why = removed(from);
            return Ok(match kind {
                0..16 => crate::raft::group::refusal(&why),
                18 => [&[0], &encode_refused(Some(why))[..]].concat(),
                _ => not_done(&NotDone::Stopped(why)),
            });
        }
        if kind < 16 {
            let number = u16::try_from(reader.varint()?).map_err(|_| Malformed("group number"))?;
            let theirs = u128::from_le_bytes(reader.array()?);
            let wanted = u128::from_le_bytes(reader.array()?);
            if wanted != 0 && wanted != self.engine.folder_number() {
                return Ok(crate::raft::group::refusal("this node has lost the data folder it had"));
            }
            if self.meta.folder(from).is_some_and(|known| known != theirs) {
                return Ok(crate::raft::group::refusal("this is not the data folder that node had"));
            }
            return Ok(match self.group(number) {
                _ if number == self.partitions => self.nodes.answer(from, kind, &mut reader).await,
                Some(group) => group.answer(from, kind, &mut reader).await,
                None => crate::raft::group::refusal("this node does not hold the partition"),
            });
        }
        let done = match kind {
            16 => {
                let partition = read_partition(&mut reader)?;
                let mut batch = Batch::default();
                read_batch(&mut reader, &mut batch)?;
                self.check_partition(partition, &batch)?;
                Node::check_size(&batch).map_err(|_| Malformed("a batch beyond all limits"))?;
                self.do_here(partition, batch).await.map(|replies| {
                    let mut out = Vec::new();
                    put_replies(&mut out, &replies);
                    out
                })
            }
            17 => {
                let partition = read_partition(&mut reader)?;
                let command = asked[asked.len() - reader.len()..].to_vec();
                command::decode(&command)?;
                let _one = self.bringing.lock().await;
                match self.group(partition) {
                    Some(group) => within(ANSWER_MAX, group.propose(command)).await.map(|_| Vec::new()),
                    None => Err(NotDone::NotLeader(None)),
                }
            }
            18 => {
                let change = Change::decode(&asked[1..])?;
                match self.change_here(&change).await {
                    // A stranger does not know where the leader is; whoever knows that asks for itself.
                    Err(NotDone::NotLeader(Some(leader)))
                        if leader != self.id && !self.meta.read(|meta| meta.nodes.contains_key(&from)) =>
                    {
                        self.ask(leader, asked.to_vec(), JOIN_ASK_MAX, read_refused).await
                    }
                    done => done,
                }
                .map(encode_refused)
            }
            19 => {
                let partition = read_partition(&mut reader)?;
                self.members(partition).await.map(|members| encode_nodes(&members))
            }
            20 => {
                let partition = read_partition(&mut reader)?;
                let replicas = read_nodes(&mut reader)?;
                self.reshape(partition, replicas).map(|is_done| vec![u8::from(is_done)])
            }
            21 => {
                let (partition, complete_at) = (read_partition(&mut reader)?, reader.varint()?);
                self.hold(partition, complete_at).await.map(|()| Vec::new()).map_err(NotDone::Stopped)
            }
            22 => {
                let (partition, node) = (read_partition(&mut reader)?, reader.varint()?);
                match self.leading(partition) {
                    Ok(group)
                        if group.heirs(self.id).contains(&node) && self.would_lead(partition, node).await =>
                    {
                        group.hand_over(node).await;
                        Ok(Vec::new())
                    }
                    other => other.map(|_| Vec::new()),
                }
            }
            23 => {
                let known = |partition| Some((partition, self.group(partition)?.leader()?));
                let leaders: Vec<(u16, NodeId)> = (0..self.partitions).filter_map(known).collect();
                let mut out = Vec::new();
                put_varint(&mut out, leaders.len() as u64);
                for (partition, leader) in leaders {
                    put_varint(&mut out, u64::from(partition));
                    put_varint(&mut out, leader);
                }
                Ok(out)
            }
            24 => {
                let number = read_partition(&mut reader)?;
                let can = match self.group(number) {
                    _ if number == self.partitions => self.nodes.is_complete(),
                    Some(group) => group.is_complete(),
                    None => false,
                };
                Ok(vec![u8::from(can && !self.is_stopping.load(Ordering::Acquire))])
            }
            25 => self.nodes.agreed().await.map(encode_number).ok_or(NotDone::NotLeader(None)),
            32 | 33 => self.answer_look(kind, &mut reader).await?,
            34..=36 => self.answer_walk(kind, &mut reader).await?,
            _ => return Err(Malformed("a question that this version does not know")),
        };
        Ok(match done {
            Ok(body) => [&[0], &body[..]].concat(),
            Err(why) => not_done(&why),
        })
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

    pub(crate) async fn ask<T>(
        &self,
        node: NodeId,
        asked: Vec<u8>,
        within: Duration,
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
    ) -> Result<T, NotDone> {
        let answer = if node == self.id {
            // Boxed, because answering may ask on.
            Box::pin(self.receive(node, &asked)).await
        } else {
            match tokio::time::timeout(within, self.transport.ask(node, Bytes::from(asked))).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(unreached)) if !unreached.was_sent => return Err(NotDone::NotReached(unreached.why)),
                _ => return Err(NotDone::Unknown),
            }
        };
        let mut reader = Reader::new(&answer);
        let read = match reader.byte() {
            Ok(0) => read(&mut reader).map(Ok),
            Ok(kind) => read_not_done(kind, &mut reader).map(Err),
            Err(malformed) => Err(malformed),
        };
        // What was answered was heard, and perhaps done.
        read.unwrap_or(Err(NotDone::Unknown))
    }

    /// Asks whoever leads a partition something that may be asked again.
    pub(crate) async fn ask_leader<T>(
        &self,
        partition: u16,
        asked: Vec<u8>,
        read: impl Fn(&mut Reader<'_>) -> Result<T, Malformed>,
    ) -> Result<T, NotDone> {
        let until = Instant::now() + self.patience;
        let (mut hint, mut hints) = (None, 0);
        loop {
            for target in hint.take().map_or_else(|| self.candidates(partition), |hint| vec![hint]) {
                match self.ask(target, asked.clone(), ANSWER_MAX, &read).await {
                    Err(NotDone::NotLeader(Some(leader))) if leader != target && hints < HINTS_MAX => {
                        hints += 1;
                        hint = Some(leader);
                        break;
                    }
                    Err(
                        NotDone::NotLeader(_) | NotDone::NotReached(_) | NotDone::Unknown | NotDone::NoQuorum,
                    ) => {}
                    done => return done,
                }
            }
            if Instant::now() >= until {
                return Err(NotDone::NotLeader(None));
            }
            if hint.is_none() {
                tokio::time::sleep(LOOK_AGAIN).await;
                hints = 0;
            }
        }
    }

    /// Who may lead a partition, likeliest first.
    fn candidates(&self, partition: u16) -> Vec<NodeId> {
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

    /// Runs a batch wherever its counters are, and puts the replies into it.
    pub async fn execute(&self, batch: &mut Batch) {
        let mut split = Split::of(batch, self.partitions);
        let parts = std::mem::take(&mut split.parts);
        let freshness = batch.freshness;
        let done = parts.into_iter().map(|part| async move {
            let done = match freshness {
                Freshness::Eventual { max_staleness_ms } if only_looks(&part.batch) => {
                    self.look_anywhere(&part, max_staleness_ms).await
                }
                _ => self.do_part(&part).await.map(|replies| (0, replies)),
            };
            (part.places, done)
        });
        for (places, done) in futures_util::future::join_all(done).await {
            match done {
                Ok((staleness_ms, replies)) => {
                    batch.note_staleness(&places, staleness_ms);
                    split.answer(&places, &replies);
                }
                Err(refusal) => split.refuse(&places, refusal),
            }
        }
        batch.replies = split.into_replies();
    }

    /// Has a part done by whoever leads its partition, looking for that for as long as patience lasts.
    pub(crate) async fn do_part(&self, part: &Part) -> Result<Vec<Reply>, Refusal> {
        let until = Instant::now() + self.patience;
        let mut refusal = Refusal::NoLeader;
        let mut hints = 0;
        let mut candidates = self.candidates(part.partition);
        candidates.reverse();
        loop {
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
            let done = match target == self.id {
                true => self.do_here(part.partition, copy(&part.batch)).await,
                false => self.do_there(target, part).await,
            };
            match done {
                Ok(replies) => return Ok(replies),
                Err(NotDone::NotLeader(Some(leader))) if leader != target && hints < HINTS_MAX => {
                    hints += 1;
                    candidates = vec![leader];
                }
                Err(NotDone::NotLeader(_) | NotDone::NotReached(_)) => {}
                Err(NotDone::NoQuorum) => refusal = Refusal::NoQuorum,
                // A look that was lost has changed nothing.
                Err(NotDone::Unknown) if only_looks(&part.batch) => {}
                Err(NotDone::Unknown) if !can_repeat(&part.batch) => return Err(Refusal::OutcomeUnknown),
                Err(NotDone::Unknown) => refusal = Refusal::OutcomeUnknown,
                Err(NotDone::Stopped(why)) => {
                    tracing::warn!("partition {} at node {target}: {why}", part.partition);
                }
            }
            if Instant::now() >= until {
                return Err(refusal);
            }
        }
    }

    /// Has a part done by another node, if that leads the partition.
    async fn do_there(&self, target: NodeId, part: &Part) -> Done {
        let (partition, looks) = (part.partition, only_looks(&part.batch));
        let way = || {
            let node = Weak::clone(&self.myself);
            Together::new(move |batch| {
                let node = node.upgrade()?;
                let asked = question(16, partition, |out| put_batch(out, &batch));
                Some(Box::pin(async move { node.ask(target, asked, ANSWER_MAX, read_replies).await }))
            })
        };
        let way = self.ways.lock().entry((target, partition, looks)).or_insert_with(way).clone();
        within(ANSWER_MAX, way.go(copy(&part.batch))).await
    }

    /// Does a part here, if this node leads the partition.
    pub(crate) async fn do_here(&self, partition: u16, batch: Batch) -> Done {
        let held = self.held(partition).ok_or(NotDone::NotLeader(None))?;
        let way = if only_looks(&batch) { held.looks } else { held.changes };
        within(ANSWER_MAX, way.go(batch)).await
    }

    /// Looks at counters, if this node leads their partition for certain.
    async fn look(&self, partition: u16, group: &Group, batch: Batch) -> Done {
        if !(is_planted(Plant::ReadsWithoutAsking) && group.leader() == Some(self.id)) {
            within(ANSWER_MAX, group.confirm()).await?;
        }
        let replies = self.read(partition, batch).await?;
        self.is_still(partition, group)?;
        Ok(replies)
    }

    /// A replica that was let go of while it was looked at has shown something that nobody knows.
    pub(crate) fn is_still(&self, partition: u16, group: &Group) -> Result<(), NotDone> {
        match self.group(partition) {
            Some(still) if std::ptr::eq(&*still, group) => Ok(()),
            _ => Err(NotDone::NotLeader(None)),
        }
    }

    /// Looks at the replica that is here.
    pub(crate) async fn read(&self, partition: u16, mut batch: Batch) -> Done {
        let now_ms = (self.clock)();
        let engine = Arc::clone(&self.engine);
        let failed = |error: &dyn std::fmt::Display| NotDone::Stopped(error.to_string());
        if engine.read_from_memory(partition, &mut batch, now_ms).map_err(|error| failed(&error))? {
            return Ok(batch.replies);
        }
        let read = move || engine.read(partition, &mut batch, now_ms).map(|()| batch.replies);
        let read = blocking(read).await.map_err(|error| failed(&error))?;
        read.map_err(|error| failed(&error))
    }
}

pub(crate) fn open_engine(
    path: PathBuf,
    options: &Options,
    storage: Option<(Arc<dyn Disk>, Arc<dyn ColdStore>)>,
) -> Result<(Arc<Engine>, Arc<Journal>), OpenError> {
    let partitions = usize::from(options.partitions);
    let mut reader = JournalReader::new(partitions + 1);
    let mut record = |start: u64, payload: &[u8]| reader.record(start, payload);
    let engine = match storage {
        None => Engine::open_replicated(path, options.clone(), &mut record)?,
        Some((disk, cold)) => Engine::open_replicated_on(disk, cold, &path, options.clone(), &mut record)?,
    };
    let applied = |number: usize| match number == partitions {
        true => kept_mark(&engine)?.applied,
        false => Mark::decode(&engine.mark(number as u16)).ok()?.applied,
    };
    let journal = reader.finish(Arc::clone(engine.log()), applied);
    Ok((engine, journal))
}

/// A leader that has lost the others waits for them, and whoever asked it must not wait for ever.
pub(crate) async fn within<T>(
    most: Duration,
    done: impl Future<Output = Result<T, NotDone>>,
) -> Result<T, NotDone> {
    tokio::time::timeout(most, done).await.unwrap_or(Err(NotDone::Unknown))
}

fn addresses(meta: &MetaState) -> BTreeMap<NodeId, String> {
    meta.read(|meta| meta.nodes.iter().map(|(node, member)| (*node, member.address.clone())).collect())
}

pub(crate) fn question(kind: u8, partition: u16, put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![kind];
    put_varint(&mut out, u64::from(partition));
    put(&mut out);
    out
}

pub(crate) fn read_partition(reader: &mut Reader<'_>) -> Result<u16, Malformed> {
    u16::try_from(reader.varint()?).map_err(|_| Malformed("partition number"))
}

/// A number of nodes, as they are asked for and told.
pub(crate) fn encode_nodes(nodes: &BTreeSet<NodeId>) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, nodes.len() as u64);
    nodes.iter().for_each(|node| put_varint(&mut out, *node));
    out
}

pub(crate) fn read_nodes(reader: &mut Reader<'_>) -> Result<BTreeSet<NodeId>, Malformed> {
    (0..reader.count()?).map(|_| reader.varint()).collect()
}

fn encode_number(number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, number);
    out
}

fn read_leaders(reader: &mut Reader<'_>) -> Result<Vec<(u16, NodeId)>, Malformed> {
    (0..reader.count()?).map(|_| Ok((read_partition(reader)?, reader.varint()?))).collect()
}

fn encode_refused(refused: Option<String>) -> Vec<u8> {
    let mut out = vec![u8::from(refused.is_some())];
    if let Some(why) = refused {
        put_bytes(&mut out, why.as_bytes());
    }
    out
}

fn read_refused(reader: &mut Reader<'_>) -> Result<Option<String>, Malformed> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if reader.flag()? { reader.bytes().map(|why| Some(text(why))) } else { Ok(None) }
}

fn not_done(why: &NotDone) -> Vec<u8> {
    match why {
        NotDone::NotLeader(leader) => {
            let mut out = vec![1, u8::from(leader.is_some())];
            leader.iter().for_each(|leader| put_varint(&mut out, *leader));
            out
        }
        NotDone::NoQuorum => vec![2],
        NotDone::Unknown => vec![3],
        NotDone::NotReached(why) | NotDone::Stopped(why) => {
            let mut out = vec![4];
            put_bytes(&mut out, why.as_bytes());
            out
        }
    }
}

fn read_not_done(kind: u8, reader: &mut Reader<'_>) -> Result<NotDone, Malformed> {
    Ok(match kind {
        1 => NotDone::NotLeader(if reader.flag()? { Some(reader.varint()?) } else { None }),
        2 => NotDone::NoQuorum,
        3 => NotDone::Unknown,
        4 => NotDone::Stopped(String::from_utf8_lossy(reader.bytes()?).into_owned()),
        _ => return Err(Malformed("unknown answer; sent by a newer version?")),
    })
}

pub(crate) fn copy(batch: &Batch) -> Batch {
    batch.part(quipu_counting::BatchMark::default(), batch.mark())
}

/// Whether nothing of it leaves anything behind.
pub(crate) fn only_looks(batch: &Batch) -> bool {
    let looks = |action: &Action| !action.is_write();
    batch.requests.iter().all(|request| looks(&request.action) && request.id.is_none())
        && !batch.groups.iter().any(|group| matches!(group.kind, GroupKind::Session { .. }))
}

/// Whether it may be asked again when nobody knows what became of it.
fn can_repeat(batch: &Batch) -> bool {
    let in_session = |index: usize| {
        let holds = |group: &Bound| {
            matches!(group.kind, GroupKind::Session { .. }) && (group.start..group.end).contains(&index)
        };
        batch.groups.iter().any(holds)
    };
    let is_safe = |(index, request): (usize, &Request)| {
        !request.action.is_write() || request.id.is_some() || in_session(index)
    };
    batch.requests.iter().enumerate().all(is_safe)
}
