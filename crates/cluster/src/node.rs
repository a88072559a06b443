//! One of the machines: what it holds, and how it begins and ends. What it does stands elsewhere: batches in `routing.rs`, what it
//! is asked in `questions.rs`, its part in the cluster in `belonging.rs` and `placing.rs`, and what nobody asks for in `chores.rs`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use quipu_engine::{Clock, Engine, OpenError, Options, Replication};
use quipu_store::Disk;
use quipu_store::cold::ColdStore;
use tokio::time::Instant;

use crate::aggregates::Turns;
use crate::blocking::blocking;
use crate::chores::{CHORES_PAUSE, Chore};
use crate::clocks::Clocks;
use crate::command;
use crate::gathering::Gathering;
use crate::meta::Meta;
use crate::placing::Placing;
use crate::questions::{HEAR_PAUSE, kind, question, read_pairs};
use crate::raft::meta_machine::kept_mark;
use crate::raft::{
    Group, Journal, JournalReader, Mark, MetaMachine, MetaState, NodeId, NotDone, Pace, State, Status,
};
use crate::reads::{self, Reads};
use crate::together::{LOOKS_TOGETHER_MAX, REQUESTS_TOGETHER_MAX, Together};
use crate::transport::Transport;
use crate::walks::Places;
use crate::watching::Watching;

/// What a node is told at its start.
pub struct Settings {
    /// Its number.
    pub id: NodeId,
    /// Its data folder.
    pub path: PathBuf,
    /// Of its engine.
    pub options: Options,
    /// What the machine's clock says, where that of the engine does not follow it at once.
    pub wall_clock: Option<Clock>,
    /// How fast its groups notice things.
    pub pace: Pace,
    /// How long a request may look for a leader.
    pub patience: Duration,
    /// What to open the folder on instead of the machine's disk, for a simulation: nothing happens there by itself.
    pub storage: Option<(Arc<dyn Disk>, Arc<dyn ColdStore>)>,
}

/// How long another node may take to answer.
pub(crate) const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Who leads and has not been heard of for so long is lost: by then others have elected another, if they could.
pub(crate) const LOST_AFTER: Duration = Duration::from_secs(3);
/// A partition without a leader for so long is not between two leaders: too few of its replicas reach each other.
const LEADERLESS_AFTER: Duration = Duration::from_secs(5);
/// How long a replica may take to end; one that waits for room on a full disk has nothing to lose.
const STOP_MAX: Duration = Duration::from_secs(5);

/// How many entries of one partition may be under way into its log: larger ones are worth more than more of them.
const CHANGES_MAX: usize = 1;
/// How many looks at one partition may be under way.
const LOOKS_MAX: usize = 2;

/// See the head of this file.
pub struct Node {
    /// For what it does in the background.
    pub(crate) myself: Weak<Node>,
    pub(crate) id: NodeId,
    pub(crate) engine: Arc<Engine>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) clock: Clock,
    pub(crate) wall_clock: Clock,
    pace: Pace,
    pub(crate) patience: Duration,
    pub(crate) partitions: u16,
    pub(crate) groups: RwLock<Vec<Option<Held>>>,
    /// Who leads the partitions that are not here, or whose replica here stands still, as others say.
    pub(crate) heard: Vec<Heard>,
    /// When each partition last had a leader that could do something, as far as is known here.
    pub(crate) led_at: Vec<Mutex<Instant>>,
    /// Where what clients ask comes together.
    pub(crate) gathering: Gathering,
    /// The ways to others who lead a partition; changes and looks go apart.
    pub(crate) ways: Mutex<HashMap<(NodeId, u16, bool), Together>>,
    pub(crate) meta: Arc<MetaState>,
    /// The group of all nodes.
    pub(crate) nodes: Group<MetaMachine>,
    /// One partition is taken up or given up at a time.
    pub(crate) holding: tokio::sync::Mutex<()>,
    pub(crate) placing: Mutex<Placing>,
    /// For each partition: policies are brought to it by one at a time, since what was looked up before must not undo what is newer.
    pub(crate) bringing: Vec<tokio::sync::Mutex<()>>,
    /// The chores that are under way.
    pub(crate) chores: Mutex<BTreeSet<Chore>>,
    /// It is about to end, and leads nothing any more if others can.
    pub(crate) is_stopping: AtomicBool,
    /// Others have said that it belongs to the cluster no longer; they never take that back.
    is_cast_out: AtomicBool,
    pub(crate) reads: Reads,
    pub(crate) places: Mutex<Places>,
    pub(crate) adding_up: Turns,
    pub(crate) watching: Watching,
    pub(crate) clocks: Mutex<Clocks>,
}

/// What others have said about who leads a partition.
#[derive(Default)]
pub(crate) struct Heard(Mutex<Option<(NodeId, Instant)>>);

impl Heard {
    pub(crate) fn learn(&self, leader: NodeId) {
        *self.0.lock() = Some((leader, Instant::now()));
    }

    fn leader(&self) -> Option<NodeId> {
        self.0.lock().map(|(leader, _)| leader)
    }

    fn leader_within(&self, time: Duration) -> Option<NodeId> {
        self.0.lock().filter(|(_, at)| at.elapsed() < time).map(|(leader, _)| leader)
    }
}

/// A partition that is here.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) group: Arc<Group>,
    /// The way into its log.
    pub(crate) changes: Together,
    /// The way to what it has carried out.
    pub(crate) looks: Together,
}

impl Node {
    /// Opens the data folder and starts the replicas of all partitions it holds.
    pub async fn open(settings: Settings, transport: Arc<dyn Transport>) -> Result<Arc<Node>, String> {
        let Settings { id, path, options, wall_clock, pace, patience, storage } = settings;
        let partitions = options.partitions;
        let is_simulated = storage.is_some();
        let (engine, journal) = open_engine(path, &options, storage).map_err(|error| error.to_string())?;
        let meta = MetaState::load(Arc::clone(&engine), Arc::clone(&journal), usize::from(partitions))?;
        // Bounded by the pace of checkpoints: one number for each, and a partition has one at a time.
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
            adding_up: Turns::default(),
            watching: Watching::default(),
            clocks: Mutex::default(),
            wall_clock: wall_clock.unwrap_or_else(|| Arc::clone(&options.clock)),
            clock: options.clock,
            pace,
            patience,
            partitions,
            groups: RwLock::new(vec![None; usize::from(partitions)]),
            heard: (0..partitions).map(|_| Heard::default()).collect(),
            led_at: (0..partitions).map(|_| Mutex::new(Instant::now())).collect(),
            gathering: Gathering::new(Weak::clone(myself)),
            ways: Mutex::default(),
            nodes,
            meta,
            engine,
            journal,
            transport,
            holding: tokio::sync::Mutex::default(),
            placing: Mutex::default(),
            bringing: (0..partitions).map(|_| tokio::sync::Mutex::default()).collect(),
            chores: Mutex::default(),
            is_stopping: AtomicBool::new(false),
            is_cast_out: AtomicBool::new(false),
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
                node.tend();
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

    /// Who leads a partition, as far as is known here. A replica that waits for room does not learn who leads by now.
    pub fn leader(&self, partition: u16) -> Option<NodeId> {
        match self.moving(partition) {
            Some(group) => group.leader(),
            None => self.heard.get(usize::from(partition))?.leader(),
        }
    }

    /// The same, but only who has been heard of in the last seconds: a minority remembers leaders that it has lost.
    pub fn leader_heard_of(&self, partition: u16) -> Option<NodeId> {
        match self.moving(partition) {
            Some(group) => group.leader_heard_within(LOST_AFTER),
            None => self.heard.get(usize::from(partition))?.leader_within(LOST_AFTER),
        }
    }

    /// Who leads the group of all nodes, and has been heard of in the last seconds.
    pub fn leader_of_nodes(&self) -> Option<NodeId> {
        self.nodes.leader_heard_within(LOST_AFTER)
    }

    /// The replica of a partition that is here, unless it stands still because the disk is full.
    pub(crate) fn moving(&self, partition: u16) -> Option<Arc<Group>> {
        let groups = self.groups.read();
        let group = &groups.get(usize::from(partition))?.as_ref()?.group;
        (!group.waits_for_room()).then(|| Arc::clone(group))
    }

    /// Partitions that have had no leader for longer than it takes to elect one, as far as is known here.
    pub fn leaderless(&self) -> Vec<u16> {
        let is_lost =
            |partition: &u16| self.led_at[usize::from(*partition)].lock().elapsed() > LEADERLESS_AFTER;
        (0..self.partitions).filter(is_lost).collect()
    }

    /// Why this node cannot do what it should, if it cannot.
    pub fn problem(&self) -> Option<String> {
        let id = self.id;
        if self.is_cast_out() {
            return Some(format!("node {id} was removed from its cluster"));
        }
        if self.meta.read(|meta| !meta.nodes.contains_key(&id)) {
            return Some(format!("node {id} does not belong to its cluster yet"));
        }
        if self.nodes.waits_for_room() || (0..self.partitions).any(|partition| self.is_full(partition)) {
            return Some(format!("the disk of node {id} is full, and its replicas wait for room"));
        }
        if self.is_ahead() {
            return Some(format!(
                "the clock of node {id} is more than an hour ahead of most others: set it right, and restart the node"
            ));
        }
        let (leaderless, partitions) = (self.leaderless().len(), self.partitions);
        (leaderless > 0).then(|| {
            format!("{leaderless} of {partitions} partitions have no leader: too few nodes that hold them are reached")
        })
    }

    fn is_full(&self, partition: u16) -> bool {
        self.group(partition).is_some_and(|group| group.waits_for_room())
    }

    pub(crate) fn held(&self, partition: u16) -> Option<Held> {
        self.groups.read().get(usize::from(partition)).cloned().flatten()
    }

    /// How things stand with the group of all nodes.
    pub fn nodes_status(&self) -> Status {
        self.nodes.status()
    }

    /// Why the node cannot go on: its disk, or one of its replicas, has failed. The process should say it and stop; started again, it
    /// reads what is there.
    pub fn failed(&self) -> Option<String> {
        let of_partition = |partition: u16| {
            let why = self.group(partition)?.failed()?;
            Some(format!("the replica of partition {partition} has ended: {why}"))
        };
        let of_nodes =
            || self.nodes.failed().map(|why| format!("the replica of the cluster itself has ended: {why}"));
        let of_partitions = || (0..self.partitions).find_map(of_partition);
        self.engine.failed().or_else(of_nodes).or_else(of_partitions)
    }

    /// Looks at what all nodes agree on, as far as it is known here.
    pub fn meta<T>(&self, look: impl FnOnce(&Meta) -> T) -> T {
        self.meta.read(look)
    }

    /// Those of the others who answer.
    pub async fn reached(&self) -> BTreeSet<NodeId> {
        let others = self.meta.read(|meta| meta.nodes.keys().copied().collect::<Vec<_>>());
        let all = others.into_iter().map(|node| async move {
            let answers = self.ask(node, vec![kind::LEADERS], HEAR_PAUSE, read_pairs).await.is_ok();
            answers.then_some(node)
        });
        futures_util::future::join_all(all).await.into_iter().flatten().collect()
    }

    /// The cluster wants this node no longer: from now on whoever asks it is told so at once, instead of waiting for others who
    /// will not answer it.
    pub fn cast_out(&self) {
        self.is_cast_out.store(true, Ordering::Release);
    }

    /// Whether the cluster has said that it wants this node no longer.
    pub fn is_cast_out(&self) -> bool {
        self.is_cast_out.load(Ordering::Acquire)
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
    pub(crate) async fn hand_over<M: State>(&self, number: u16, group: &Group<M>) {
        group.stand(false);
        for heir in group.heirs(self.id) {
            if self.would_lead(number, heir).await {
                group.hand_over(heir).await;
                group.has_other_leader(self.id).await;
                return;
            }
        }
    }

    /// Whether a replica that is here could lead, and would.
    pub(crate) fn may_lead<M: State>(&self, group: &Group<M>) -> bool {
        group.is_complete()
            && !group.waits_for_room()
            && (self.keeps_time() || (group.voters().iter().eq([&self.id]) && self.keeps_time_alone()))
            && !self.is_stopping.load(Ordering::Acquire)
    }

    /// Whether another says that it would lead a group.
    pub(crate) async fn would_lead(&self, number: u16, node: NodeId) -> bool {
        self.ask(node, question(kind::WOULD_LEAD, number, |_| {}), HEAR_PAUSE, |reader| reader.flag()).await
            == Ok(true)
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
    pub(crate) async fn hold(&self, partition: u16, complete_at: u64) -> Result<(), String> {
        let _one = self.holding.lock().await;
        if partition >= self.partitions {
            return Err(format!("there is no partition {partition}"));
        }
        let is_given_up = self.journal.is_forgotten(usize::from(partition));
        if !self.engine.holds(partition) || is_given_up {
            let (engine, journal) = (Arc::clone(&self.engine), Arc::clone(&self.journal));
            let hold = move || {
                if is_given_up {
                    // Perhaps not all of it is gone yet.
                    engine.let_go(partition).map_err(|error| error.to_string())?;
                }
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
        let (changed, clock, agreed) =
            (Arc::downgrade(&group), Arc::clone(&self.clock), Arc::clone(&self.meta));
        let changes = Together::new(CHANGES_MAX, REQUESTS_TOGETHER_MAX, move |batch| {
            let level = agreed.read(|meta| meta.level);
            let (group, command) = (changed.upgrade()?, command::batch(clock(), level, &batch));
            Some(Box::pin(async move {
                within(ANSWER_MAX, group.propose(command)).await.map(|answer| answer.replies)
            }))
        });
        let (looked, node) = (Arc::downgrade(&group), Weak::clone(&self.myself));
        let looks = Together::new(LOOKS_MAX, LOOKS_TOGETHER_MAX, move |batch| {
            let (group, node) = (looked.upgrade()?, node.upgrade()?);
            Some(Box::pin(async move { node.look(partition, &group, batch).await }))
        });
        self.groups.write()[usize::from(partition)] = Some(Held { group, changes, looks });
        Ok(())
    }

    /// The replica of a partition, if it leads.
    pub(crate) fn leading(&self, partition: u16) -> Result<Arc<Group>, NotDone> {
        let group = self.group(partition).ok_or(NotDone::NotLeader(None))?;
        match group.leader() {
            Some(leader) if leader == self.id => Ok(group),
            other => Err(NotDone::NotLeader(other)),
        }
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

pub(crate) fn addresses(meta: &MetaState) -> BTreeMap<NodeId, String> {
    meta.read(|meta| meta.nodes.iter().map(|(node, member)| (*node, member.address.clone())).collect())
}
