//! One of the machines: its groups, and the way of a batch through them.
//!
//! ```text
//! question := 16 partition:v batch          do this, or look, if you lead the partition
//! answer   := 0 replies | 1 (0 | 1 leader:v) | 2 no quorum | 3 unknown | 4 length:v why it has stopped
//! ```
//! The other questions are those of `raft/group.rs`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::RwLock;
use quipu_counting::placement::Placement;
use quipu_counting::{Action, Batch, GroupKind, Refusal, Reply};
use quipu_engine::{Clock, Engine, OpenError, Options, Replication};
use quipu_wire::batch::{put_batch, put_replies, read_batch, read_replies};
use quipu_wire::entry::{Malformed, Reader, put_bytes, put_varint};

use crate::command;
use crate::raft::{Group, Journal, JournalReader, Mark, NodeId, NotDone, Pace};
use crate::split::{Part, Split};
use crate::transport::Transport;

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
}

/// How long somebody waits who found no leader before looking again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long another node may take to answer a batch.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How often leaders look for counters whose time has come, and how many they have removed at once.
const EXPIRY_PAUSE: Duration = Duration::from_secs(1);
const EXPIRIES_MAX: usize = 1_000;

/// See the head of this file.
pub struct Node {
    id: NodeId,
    engine: Arc<Engine>,
    journal: Arc<Journal>,
    transport: Arc<dyn Transport>,
    clock: Clock,
    pace: Pace,
    patience: Duration,
    partitions: u16,
    groups: RwLock<Vec<Option<Arc<Group>>>>,
    placement: RwLock<Placement>,
}

impl Node {
    /// Opens the data folder and starts the replicas of all partitions it holds.
    pub async fn open(settings: Settings, transport: Arc<dyn Transport>) -> Result<Arc<Node>, String> {
        let partitions = settings.options.partitions;
        let (engine, journal) = open_engine(&settings).map_err(|error| error.to_string())?;
        let node = Arc::new(Node {
            id: settings.id,
            clock: Arc::clone(&settings.options.clock),
            pace: settings.pace,
            patience: settings.patience,
            partitions,
            groups: RwLock::new(vec![None; usize::from(partitions)]),
            placement: RwLock::default(),
            engine,
            journal,
            transport,
        });
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        node.journal.on_checkpoint(move |partition| {
            let _ = tell.send(partition);
        });
        let replication = Arc::clone(&node.journal) as Arc<dyn Replication>;
        node.engine.replicate(replication, &settings.options).map_err(|error| error.to_string())?;
        for partition in (0..partitions).filter(|partition| node.engine.holds(*partition)) {
            node.start(partition).await?;
        }
        let weak = Arc::downgrade(&node);
        tokio::spawn(async move {
            while let Some(partition) = told.recv().await {
                let Some(node) = weak.upgrade() else { return };
                if let Some(group) = node.group(partition) {
                    group.checkpointed().await;
                }
            }
        });
        let weak = Arc::downgrade(&node);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(EXPIRY_PAUSE).await;
                let Some(node) = weak.upgrade() else { return };
                node.remove_expired().await;
            }
        });
        Ok(node)
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
        self.groups.read().get(usize::from(partition)).cloned().flatten()
    }

    /// Takes its part in a new cluster: holds what the placement gives it, and founds the groups that it shall lead.
    pub async fn found(&self, placement: Placement) -> Result<(), String> {
        *self.placement.write() = placement.clone();
        for (replicas, partition) in placement.replicas.iter().zip(0u16..) {
            if !replicas.contains(&self.id) {
                continue;
            }
            if !self.engine.holds(partition) {
                let mark = Mark::default().encode();
                self.engine.begin_to_hold(partition, &mark).map_err(|error| error.to_string())?;
            }
            if self.group(partition).is_none() {
                self.start(partition).await?;
            }
            if replicas.first() == Some(&self.id)
                && let Some(group) = self.group(partition)
            {
                group.found(replicas).await?;
            }
        }
        Ok(())
    }

    async fn start(&self, partition: u16) -> Result<(), String> {
        let transport = Arc::clone(&self.transport);
        let engine = Arc::clone(&self.engine);
        let group = Group::start(self.id, partition, engine, &self.journal, transport, self.pace).await?;
        self.groups.write()[usize::from(partition)] = Some(Arc::new(group));
        Ok(())
    }

    /// Ends everything, durably.
    pub async fn stop(&self) {
        let groups: Vec<Arc<Group>> = self.groups.write().iter_mut().filter_map(Option::take).collect();
        for group in groups {
            group.stop().await;
        }
        if let Err(error) = self.engine.close() {
            tracing::error!("closing: {error}");
        }
    }

    /// Answers a question of another node.
    pub async fn receive(&self, from: NodeId, question: &[u8]) -> Bytes {
        match self.answer(from, question).await {
            Ok(answer) => Bytes::from(answer),
            Err(malformed) => {
                let mut out = vec![1];
                put_bytes(&mut out, malformed.to_string().as_bytes());
                Bytes::from(out)
            }
        }
    }

    async fn answer(&self, from: NodeId, question: &[u8]) -> Result<Vec<u8>, Malformed> {
        let mut reader = Reader::new(question);
        let kind = reader.byte()?;
        let partition = u16::try_from(reader.varint()?).map_err(|_| Malformed("partition number"))?;
        let group = self.group(partition);
        if kind != 16 {
            return Ok(match group {
                Some(group) => group.answer(from, kind, &mut reader).await,
                None => {
                    let mut out = vec![1];
                    put_bytes(&mut out, b"this node does not hold the partition");
                    out
                }
            });
        }
        let mut batch = Batch::default();
        read_batch(&mut reader, &mut batch)?;
        let mut out = vec![0];
        match self.do_here(partition, batch).await {
            Ok(replies) => put_replies(&mut out, &replies),
            Err(NotDone::NotLeader(leader)) => {
                out = vec![1, u8::from(leader.is_some())];
                leader.into_iter().for_each(|leader| put_varint(&mut out, leader));
            }
            Err(NotDone::NoQuorum) => out = vec![2],
            Err(NotDone::Unknown) => out = vec![3],
            Err(NotDone::Stopped(why)) => {
                out = vec![4];
                put_bytes(&mut out, why.as_bytes());
            }
        }
        Ok(out)
    }

    /// Runs a batch wherever its counters are, and puts the replies into it.
    pub async fn execute(&self, batch: &mut Batch) {
        let mut split = Split::of(batch, self.partitions);
        let parts = std::mem::take(&mut split.parts);
        let done = parts.into_iter().map(|part| async {
            let done = self.do_part(&part).await;
            (part.places, done)
        });
        for (places, done) in futures_util::future::join_all(done).await {
            match done {
                Ok(replies) => split.answer(&places, &replies),
                Err(refusal) => split.refuse(&places, refusal),
            }
        }
        batch.replies = split.into_replies();
    }

    /// Has a part done by whoever leads its partition, looking for that for as long as patience lasts.
    async fn do_part(&self, part: &Part) -> Result<Vec<Reply>, Refusal> {
        let until = tokio::time::Instant::now() + self.patience;
        let mut hint = None;
        let mut refusal = Refusal::NoLeader;
        loop {
            let target = hint.take().or_else(|| self.leader(part.partition));
            let done = match target {
                Some(target) if target == self.id => self.do_here(part.partition, copy(&part.batch)).await,
                Some(target) => self.do_there(target, part).await,
                None => Err(NotDone::NotLeader(None)),
            };
            match done {
                Ok(replies) => return Ok(replies),
                // Whoever does not know a leader, or was asked before, is not asked again at once.
                Err(NotDone::NotLeader(leader)) if leader != target => hint = leader,
                Err(NotDone::NotLeader(_)) => {}
                Err(NotDone::NoQuorum) => refusal = Refusal::NoQuorum,
                Err(NotDone::Unknown) if !can_repeat(&part.batch) => return Err(Refusal::OutcomeUnknown),
                Err(NotDone::Unknown) => refusal = Refusal::OutcomeUnknown,
                Err(NotDone::Stopped(why)) => {
                    tracing::error!("partition {}: {why}", part.partition);
                    refusal = Refusal::NoLeader;
                }
            }
            if tokio::time::Instant::now() >= until {
                return Err(refusal);
            }
            if hint.is_none() {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        }
    }

    /// Who leads a partition, or at least holds it.
    fn leader(&self, partition: u16) -> Option<NodeId> {
        match self.group(partition) {
            Some(group) => group.leader(),
            None => self.placement.read().replicas.get(usize::from(partition))?.first().copied(),
        }
    }

    async fn do_there(&self, target: NodeId, part: &Part) -> Result<Vec<Reply>, NotDone> {
        let mut question = vec![16];
        put_varint(&mut question, u64::from(part.partition));
        put_batch(&mut question, &part.batch);
        let answering = self.transport.ask(target, Bytes::from(question));
        let Ok(Ok(answer)) = tokio::time::timeout(ANSWER_MAX, answering).await else {
            return Err(NotDone::Unknown);
        };
        read_answer(&answer).unwrap_or(Err(NotDone::Unknown))
    }

    /// Does a part here, if this node leads the partition.
    async fn do_here(&self, partition: u16, mut batch: Batch) -> Result<Vec<Reply>, NotDone> {
        let Some(group) = self.group(partition) else { return Err(NotDone::NotLeader(None)) };
        let now_ms = (self.clock)();
        if !only_looks(&batch) {
            return group.propose(command::batch(now_ms, &batch)).await.map(|answer| answer.0);
        }
        group.confirm().await?;
        let engine = Arc::clone(&self.engine);
        let read = move || engine.read(partition, &mut batch, now_ms).map(|()| batch.replies);
        let read = tokio::task::spawn_blocking(read).await;
        read.map_err(|error| error.to_string())
            .and_then(|read| read.map_err(|error| error.to_string()))
            .map_err(NotDone::Stopped)
    }

    /// Has counters removed whose time has come, in the partitions this node leads.
    async fn remove_expired(&self) {
        for partition in 0..self.partitions {
            let Some(group) = self.group(partition).filter(|group| group.leader() == Some(self.id)) else {
                continue;
            };
            let now_ms = (self.clock)();
            let keys = self.engine.due(partition, now_ms, EXPIRIES_MAX);
            if !keys.is_empty() {
                let _ = group.propose(command::expire(now_ms, &keys)).await;
            }
        }
    }
}

fn open_engine(settings: &Settings) -> Result<(Arc<Engine>, Arc<Journal>), OpenError> {
    let partitions = usize::from(settings.options.partitions);
    let mut reader = JournalReader::new(partitions);
    let mut record = |start: u64, payload: &[u8]| reader.record(start, payload);
    let engine = Engine::open_replicated(&settings.path, settings.options.clone(), &mut record)?;
    let applied = |partition: usize| Mark::decode(&engine.mark(partition as u16)).ok()?.applied;
    let journal = reader.finish(Arc::clone(engine.log()), applied);
    Ok((engine, journal))
}

fn read_answer(answer: &[u8]) -> Result<Result<Vec<Reply>, NotDone>, Malformed> {
    let mut reader = Reader::new(answer);
    Ok(match reader.byte()? {
        0 => Ok(read_replies(&mut reader)?),
        1 => Err(NotDone::NotLeader(if reader.flag()? { Some(reader.varint()?) } else { None })),
        2 => Err(NotDone::NoQuorum),
        3 => Err(NotDone::Unknown),
        4 => Err(NotDone::Stopped(String::from_utf8_lossy(reader.bytes()?).into_owned())),
        _ => return Err(Malformed("unknown answer; sent by a newer version?")),
    })
}

fn copy(batch: &Batch) -> Batch {
    batch.part(quipu_counting::BatchMark::default(), batch.mark())
}

/// Whether nothing of it leaves anything behind.
fn only_looks(batch: &Batch) -> bool {
    let looks = |action: &Action| !action.is_write();
    batch.requests.iter().all(|request| looks(&request.action) && request.id.is_none())
        && !batch.groups.iter().any(|group| matches!(group.kind, GroupKind::Session { .. }))
}

/// Whether it may be asked again when nobody knows what became of it.
fn can_repeat(batch: &Batch) -> bool {
    let in_session = |index: usize| {
        let holds = |group: &quipu_counting::Group| {
            matches!(group.kind, GroupKind::Session { .. }) && (group.start..group.end).contains(&index)
        };
        batch.groups.iter().any(holds)
    };
    batch
        .requests
        .iter()
        .enumerate()
        .all(|(index, request)| !request.action.is_write() || request.id.is_some() || in_session(index))
}
