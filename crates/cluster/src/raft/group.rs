//! One group on one node: its replica, and what it answers to the other replicas (they ask by `link.rs`, where the questions are drawn).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use openraft::errors::{ClientWriteError, Fatal, LinearizableReadError, RaftError};
use openraft::raft::{AppendEntriesResponse, ReadPolicy};
use openraft::storage::RaftStateMachine;
use openraft::type_config::alias::SnapshotOf;
use openraft::{ChangeMembers, Raft, SnapshotPolicy};
use parking_lot::Mutex;
use quipu_engine::Engine;
use quipu_wire::entry::{Malformed, Reader, put_bytes};
use tokio::time::Instant;

use super::codec::{put_vote, read_vote};
use super::journal::{GroupLog, Journal};
use super::link::{INSTALL_MAX, Links, kind};
use super::machine::{Machine, Mark, SnapshotSource, Ties, nameless_file};
use super::message;
use super::meta_machine::{MetaMachine, MetaState};
use super::runtime::chance;
use super::types::{Answer, Command, Membership, NodeId, Types};
use crate::plant::{Plant, is_planted};
use crate::transport::Transport;

/// How fast a group notices things.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// How often a leader says that it is there.
    pub heartbeat: Duration,
    /// How long nobody says so before there is an election: a lease of twice this, and a random time between this and twice this.
    pub election: Duration,
    /// Entries that stay in memory behind a checkpoint, for replicas that are a little behind.
    pub entries_kept: u64,
}

impl Pace {
    /// For how long who has answered a leader votes for nobody else. The leader trusts it for a lease since it asked, which is a
    /// fifth less: so much may the speeds of their clocks differ.
    pub fn promise(&self) -> Duration {
        self.election * 5 / 2
    }
}

impl Default for Pace {
    fn default() -> Pace {
        Pace {
            heartbeat: Duration::from_millis(250),
            election: Duration::from_millis(600),
            entries_kept: 512,
        }
    }
}

/// Entries in one message at most.
const ENTRIES_SENT_MAX: u64 = 1_024;
/// Who is further behind does not get the lead: nobody leads until it has caught up.
const HEIR_LAG_MAX: u64 = 100;
/// How long nobody waits any more for another to take the lead.
const STEP_DOWN_MAX: Duration = Duration::from_secs(2);
/// How long the folder of a first node may take to become a snapshot, a partition at a time, and how often it is asked for.
const COMPACT_MAX: Duration = Duration::from_secs(60);
const COMPACT_PAUSE: Duration = Duration::from_secs(1);

/// Why a group did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotDone {
    /// Another leads, perhaps this one; nothing was changed.
    #[error("another node leads")]
    NotLeader(Option<NodeId>),
    /// Too few replicas answer; nothing was changed.
    #[error("too few replicas answer")]
    NoQuorum,
    /// The node that was asked has too much to do; nothing was changed.
    #[error("the node that leads has too much to do")]
    Busy,
    /// The node that asks was removed from the cluster; nothing was changed.
    #[error("this node was removed from the cluster")]
    NotMember,
    /// It may be done or not.
    #[error("nobody knows whether it was done")]
    Unknown,
    /// The node that was asked was not reached; nothing was changed.
    #[error("{0}")]
    NotReached(String),
    /// The replica has stopped, or cannot do that.
    #[error("{0}")]
    Stopped(String),
}

/// How things stand with a replica. Entries are numbered from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Who leads, as far as is known here.
    pub leader: Option<NodeId>,
    /// The term that is known here.
    pub term: u64,
    /// The last entry of its log.
    pub last: Option<u64>,
    /// The last entry it carried out.
    pub applied: Option<u64>,
    /// The last entry that is in its checkpoint only.
    pub purged: Option<u64>,
}

/// See the head of this file.
pub struct Group<M: State = Machine> {
    raft: Raft<Types, M>,
    engine: Arc<Engine>,
    log: GroupLog,
    ties: Arc<Ties>,
    standing: Arc<Standing>,
    /// Snapshots that others are sending, by sender.
    arriving: Mutex<BTreeMap<NodeId, Arriving>>,
}

/// When a replica may vote and stand for the lead.
///
/// Whoever answers a leader promises to elect nobody else for a while, and the leader answers reads on the strength of that. openraft
/// forgets the promise when the replica is started again, so one that may have promised something before keeps to it from its
/// start. Who was handed the lead by the leader itself gets votes all the same.
struct Standing {
    /// When the last promise was made.
    promised_at: Mutex<Option<Instant>>,
    /// How long it holds.
    promise: Duration,
    /// It does not stand yet. That takes a random time longer than it does not vote: those who were started together must not all
    /// stand together.
    stands_later: AtomicBool,
    /// Whether it stands otherwise.
    may: AtomicBool,
}

impl Standing {
    fn promise(&self) {
        *self.promised_at.lock() = Some(Instant::now());
    }

    /// Whether a leader was answered within so long.
    fn promised_within(&self, time: Duration) -> bool {
        self.promised_at.lock().is_some_and(|at| at.elapsed() < time)
    }

    fn has_promised(&self) -> bool {
        self.left().is_some()
    }

    /// How long a promise still holds.
    fn left(&self) -> Option<Duration> {
        let at = (*self.promised_at.lock())?;
        self.promise.checked_sub(at.elapsed()).filter(|left| !left.is_zero())
    }
}

struct Arriving {
    id: u64,
    file: File,
    length: u64,
}

impl Group {
    /// Starts the replica of a partition that the node holds.
    pub async fn of_partition(
        node: NodeId,
        number: u16,
        engine: Arc<Engine>,
        journal: &Arc<Journal>,
        transport: Arc<dyn Transport>,
        pace: Pace,
        meta: Arc<MetaState>,
    ) -> Result<Group, String> {
        let ties = Arc::new(Ties::default());
        let machine = Machine::new(Arc::clone(&engine), number, Arc::clone(&ties))
            .map_err(|error| format!("the mark of partition {number}: {error}"))?;
        let links = Links { group: number, meta, engine, transport };
        Group::start(node, journal, links, pace, (machine, ties)).await
    }
}

impl Group<MetaMachine> {
    /// Starts the replica of the group of all nodes.
    pub async fn of_nodes(
        node: NodeId,
        number: u16,
        engine: Arc<Engine>,
        journal: &Arc<Journal>,
        transport: Arc<dyn Transport>,
        pace: Pace,
        state: Arc<MetaState>,
    ) -> Result<Group<MetaMachine>, String> {
        let links = Links { group: number, meta: Arc::clone(&state), engine, transport };
        let ties = Arc::new(Ties::default());
        Group::start(node, journal, links, pace, (MetaMachine(state, Arc::clone(&ties)), ties)).await
    }
}

/// The state of a group, in a form that its replicas can send each other.
pub trait State: RaftStateMachine<Types, SnapshotData = SnapshotSource> {}

impl<M: RaftStateMachine<Types, SnapshotData = SnapshotSource>> State for M {}

impl<M: State> Group<M> {
    async fn start(
        node: NodeId,
        journal: &Arc<Journal>,
        links: Links,
        pace: Pace,
        (machine, ties): (M, Arc<Ties>),
    ) -> Result<Group<M>, String> {
        let (number, engine) = (links.group, Arc::clone(&links.engine));
        let log = journal.group(usize::from(number));
        // Not before it is known whether it may have promised something.
        let config = openraft::Config { enable_elect: false, ..config(number, pace) };
        let config = config.validate().map_err(|error| error.to_string())?;
        let raft = Raft::new(node, Arc::new(config), links, log.clone(), machine).await;
        let raft = raft.map_err(|error| format!("group {number}: {error}"))?;
        // One that has never voted has followed nobody, and one that is all there is has followed itself.
        let is_sole_voter = raft
            .with_raft_state(move |state| state.membership_state.effective().voter_ids().eq([node]))
            .await
            .map_err(|error| format!("group {number}: {error}"))?;
        let is_bound = match log.vote() {
            Some(vote) => !(is_sole_voter && vote.leader_id.node_id == node),
            None => false,
        };
        let is_bound = is_bound && !is_planted(Plant::ForgetsPromises);
        let standing = Arc::new(Standing {
            promised_at: Mutex::default(),
            promise: pace.promise(),
            stands_later: AtomicBool::new(is_bound),
            may: AtomicBool::new(false),
        });
        let group = Group { raft, engine, log, ties, standing, arriving: Mutex::default() };
        // Whether it stands is for the node to say, which first compares its clock with those of others.
        if is_bound {
            group.standing.promise();
            let (raft, standing) = (group.raft.clone(), Arc::clone(&group.standing));
            tokio::spawn(async move {
                tokio::time::sleep(pace.promise() + chance(pace.election)).await;
                standing.stands_later.store(false, Ordering::SeqCst);
                raft.runtime_config().elect(standing.may.load(Ordering::SeqCst));
            });
        }
        Ok(group)
    }

    /// Whether it belongs to a group at all.
    pub async fn is_founded(&self) -> Result<bool, String> {
        self.raft.is_initialized().await.map_err(|error| error.to_string())
    }

    /// Who has a say in the group, as far as is known here.
    pub fn voters(&self) -> BTreeSet<NodeId> {
        self.raft.voter_ids().collect()
    }

    /// Waits until somebody leads.
    pub async fn has_leader(&self, within: Duration) -> Result<(), String> {
        let waited =
            self.raft.wait(Some(within)).metrics(|metrics| leader(metrics).is_some(), "a leader").await;
        waited.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Who belongs to the group, with a say or without, as far as is known here.
    pub fn members(&self) -> BTreeSet<NodeId> {
        self.metrics(|metrics| metrics.membership_config.nodes().map(|(node, ())| *node).collect())
    }

    /// The same, with those who belonged to it before a change that is not agreed on yet.
    pub fn all_members(&self) -> BTreeSet<NodeId> {
        let agreed = self.metrics(|metrics| {
            metrics.committed_membership_config.nodes().map(|(node, ())| *node).collect::<BTreeSet<_>>()
        });
        &self.members() | &agreed
    }

    /// Whether exactly these have a say, for certain and with no change under way.
    pub fn is_of(&self, nodes: &BTreeSet<NodeId>) -> bool {
        self.metrics(|metrics| {
            let is_of = |membership: &Membership| {
                matches!(&membership.get_joint_config()[..], [only] if only == nodes)
            };
            is_of(metrics.membership_config.membership())
                && is_of(metrics.committed_membership_config.membership())
        })
    }

    /// Lets a node listen. Only a leader can.
    pub async fn add_listener(&self, node: NodeId) -> Result<(), String> {
        if self.members().contains(&node) {
            return Ok(());
        }
        self.may_change_members()?;
        self.raft.add_learner(node, (), false).await.map(|_| ()).map_err(|error| error.to_string())
    }

    /// How many entries another is behind; `None` while nobody knows. Only a leader does.
    pub fn lag(&self, node: NodeId) -> Option<u64> {
        self.metrics(|metrics| {
            let has = metrics.replication.as_ref()?.get(&node)?.as_ref()?.index;
            Some(metrics.last_log_index.unwrap_or(0).saturating_sub(has))
        })
    }

    /// How long nothing has been heard of another; `None` if nothing ever was. Only a leader knows.
    pub fn silence(&self, node: NodeId) -> Option<Duration> {
        use openraft::Instant;
        self.metrics(|metrics| metrics.heartbeat.as_ref()?.get(&node)?.as_ref().map(|heard| heard.elapsed()))
    }

    fn metrics<T>(&self, look: impl FnOnce(&openraft::RaftMetrics<Types>) -> T) -> T {
        use openraft::async_runtime::WatchReceiver;
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        look(&metrics)
    }

    /// Lets exactly these nodes have a say; who had one and has none now is let go of. Only a leader can.
    pub async fn set_voters(&self, nodes: BTreeSet<NodeId>) -> Result<(), String> {
        self.may_change_members()?;
        self.raft.change_membership(nodes, false).await.map(|_| ()).map_err(|error| error.to_string())
    }

    /// Lets go of those who only listen. Only a leader can.
    pub async fn drop_listeners(&self, nodes: BTreeSet<NodeId>) -> Result<(), String> {
        self.may_change_members()?;
        let change = ChangeMembers::RemoveNodes(nodes);
        self.raft.change_membership(change, false).await.map(|_| ()).map_err(|error| error.to_string())
    }

    /// One who leads on for a moment after being let go of leaves the next change to who leads then: openraft forbids it.
    fn may_change_members(&self) -> Result<(), String> {
        match self.metrics(|metrics| metrics.membership_config.nodes().any(|(node, ())| *node == metrics.id))
        {
            true => Ok(()),
            false => Err("this node does not belong to it any more; who leads next goes on".into()),
        }
    }

    /// Makes everything up to here part of a snapshot and nothing else: whoever joins later starts from that.
    pub async fn compact(&self) -> Result<(), String> {
        let written = tokio::time::timeout(COMPACT_MAX, self.raft.write_blank()).await;
        let written = written.map_err(|_| "nothing is agreed on")?.map_err(|error| error.to_string())?;
        let index = written.log_id.index;
        let begun = Instant::now();
        loop {
            self.raft.trigger().snapshot().await.map_err(|error| error.to_string())?;
            let has_snapshot = |metrics: &openraft::RaftMetrics<Types>| {
                metrics.snapshot.is_some_and(|last| last.index >= index)
            };
            // One that was begun before may end without this entry, and whoever asked meanwhile was not heard.
            match self.raft.wait(Some(COMPACT_PAUSE)).metrics(has_snapshot, "a snapshot").await {
                Ok(_) => break,
                Err(error) if begun.elapsed() >= COMPACT_MAX => return Err(error.to_string()),
                Err(_) => {}
            }
        }
        self.raft.trigger().purge_log(index).await.map_err(|error| error.to_string())?;
        let is_purged =
            |metrics: &openraft::RaftMetrics<Types>| metrics.purged.is_some_and(|last| last.index >= index);
        let waited = self.raft.wait(Some(COMPACT_MAX)).metrics(is_purged, "a purge").await;
        waited.map(|_| ()).map_err(|error| error.to_string())
    }

    /// The first replicas of all, told to one of them once.
    pub async fn found(&self, nodes: &[NodeId]) -> Result<(), String> {
        let members: BTreeMap<NodeId, ()> = nodes.iter().map(|node| (*node, ())).collect();
        self.raft.initialize(members).await.map_err(|error| error.to_string())
    }

    /// Who leads, as far as is known here.
    pub fn leader(&self) -> Option<NodeId> {
        self.metrics(leader)
    }

    /// Who leads, if that has been heard of within so long; if it is this node, by enough of the others to agree on something.
    pub fn leader_heard_within(&self, time: Duration) -> Option<NodeId> {
        use openraft::Instant;
        self.metrics(|metrics| {
            let leader = leader(metrics)?;
            let is_heard = match leader == metrics.id {
                true => {
                    let is_alone = metrics.membership_config.voter_ids().eq([metrics.id]);
                    let acked = metrics.last_quorum_acked.as_ref();
                    is_alone || acked.is_some_and(|acked| acked.elapsed() < time)
                }
                false => self.standing.promised_within(time),
            };
            is_heard.then_some(leader)
        })
    }

    /// How things stand.
    pub fn status(&self) -> Status {
        self.metrics(|metrics| Status {
            leader: leader(metrics),
            term: metrics.current_term,
            last: metrics.last_log_index,
            applied: metrics.last_applied.map(|applied| applied.index),
            purged: metrics.purged.map(|purged| purged.index),
        })
    }

    /// Has a command agreed on and carried out.
    pub async fn propose(&self, command: Vec<u8>) -> Result<Answer, NotDone> {
        if let Some(left) = self.bound_alone() {
            tokio::time::sleep(left).await;
        }
        match self.raft.client_write(Command(Bytes::from(command))).await {
            Ok(written) => Ok(written.data),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))) => {
                Err(NotDone::NotLeader(forward.leader_id))
            }
            // Also of a replica that has ended nobody knows whether others have the entry.
            Err(RaftError::APIError(_) | RaftError::Fatal(_)) => Err(NotDone::Unknown),
        }
    }

    /// Returns when everything that was acknowledged before the call is carried out here, and this node leads: what is read
    /// now is the truth.
    pub async fn confirm(&self) -> Result<(), NotDone> {
        if let Some(left) = self.bound_alone() {
            tokio::time::sleep(left).await;
        }
        if self.is_confirmed().await {
            return Ok(());
        }
        match self.raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
            Ok(_) => Ok(()),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
                Err(NotDone::NotLeader(forward.leader_id))
            }
            Err(RaftError::APIError(_)) => Err(NotDone::NoQuorum),
            Err(RaftError::Fatal(fatal)) => Err(stopped(&fatal)),
        }
    }

    /// The same without asking the others: says no where they have not been heard of lately enough.
    pub async fn is_confirmed(&self) -> bool {
        self.bound_alone().is_none() && self.raft.ensure_linearizable(ReadPolicy::LeaseRead).await.is_ok()
    }

    /// One that is all there is elects itself at once, and asks nobody who may have promised something to another leader. If it has done so
    /// itself, that one may still answer reads: for so long it neither acknowledges nor shows anything.
    fn bound_alone(&self) -> Option<Duration> {
        let left = self.standing.left()?;
        let is_alone = self.metrics(|metrics| metrics.membership_config.voter_ids().eq([metrics.id]));
        is_alone.then_some(left)
    }

    /// The entry up to which everything is agreed on that was acknowledged before the call; `None` if this node does not lead, or
    /// the others have not been heard of lately enough.
    pub async fn agreed(&self) -> Option<u64> {
        if self.bound_alone().is_some() {
            return None;
        }
        let (entry, _) = self.raft.get_read_log_id(ReadPolicy::LeaseRead).await.ok()?;
        Some(entry.index())
    }

    /// The engine has made a checkpoint: what it contains may leave the log.
    pub async fn checkpointed(&self) {
        self.ties.has_news.store(true, Ordering::Release);
        let _ = self.raft.trigger().snapshot().await;
    }

    /// Lets it stand for the lead or not.
    pub fn stand(&self, may: bool) {
        self.standing.may.store(may, Ordering::SeqCst);
        self.raft.runtime_config().elect(may && !self.standing.stands_later.load(Ordering::SeqCst));
    }

    /// Hands the lead to another replica, if this one has it. From then on it does nothing as a leader, whether the other takes it
    /// or not: whoever calls this has asked it.
    pub async fn hand_over(&self, to: NodeId) {
        let _ = self.raft.trigger().transfer_leader(to).await;
    }

    /// Those who could take the lead by what they have, the least behind first. Only a leader knows.
    pub fn heirs(&self, node: NodeId) -> Vec<NodeId> {
        let others = self.voters().into_iter().filter(|other| *other != node);
        let mut heirs: Vec<(u64, NodeId)> =
            others.filter_map(|other| Some((self.lag(other)?, other))).collect();
        heirs.retain(|(lag, _)| *lag <= HEIR_LAG_MAX);
        heirs.sort_unstable();
        heirs.into_iter().map(|(_, heir)| heir).collect()
    }

    /// Waits a little until another leads.
    pub async fn has_other_leader(&self, node: NodeId) {
        let has_another =
            |metrics: &openraft::RaftMetrics<Types>| leader(metrics).is_some_and(|leader| leader != node);
        let _ = self.raft.wait(Some(STEP_DOWN_MAX)).metrics(has_another, "another leader").await;
    }

    /// Whether it has all it must have to vote and lead.
    pub fn is_complete(&self) -> bool {
        self.log.is_complete()
    }

    /// Whether it stands still because the disk is full.
    pub fn waits_for_room(&self) -> bool {
        self.ties.is_full.load(Ordering::Relaxed) || self.log.waits_for_room()
    }

    /// Why the replica has ended by itself, if it has.
    pub fn failed(&self) -> Option<String> {
        let failed = self.metrics(|metrics| metrics.running_state.as_ref().err().map(Fatal::to_string));
        failed.filter(|_| self.ties.check().is_ok())
    }

    /// Ends the replica: when this returns, nothing more is carried out.
    pub async fn stop(&self) {
        self.ties.is_over.store(true, Ordering::Release);
        let _ = self.raft.shutdown().await;
        // openraft leaves behind whoever carries things out, who may have more to do, or wait for room on a full disk.
        drop(self.ties.at_work.lock().await);
    }

    /// Answers another replica.
    pub async fn answer(&self, from: NodeId, kind: u8, reader: &mut Reader<'_>) -> Vec<u8> {
        let mut out = vec![0];
        match self.answer_to(from, kind, reader, &mut out).await {
            Ok(()) => out,
            Err(why) => refusal(&why),
        }
    }

    async fn answer_to(
        &self,
        from: NodeId,
        kind: u8,
        reader: &mut Reader<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let malformed = |error: Malformed| error.to_string();
        match kind {
            kind::APPEND => {
                let request = message::read_append(reader).map_err(malformed)?;
                if !request.entries.is_empty() && self.log.waits_for_room() {
                    // Behind what waits already, all that the leader sends again and again would gather in memory.
                    return Err("the disk is full".into());
                }
                let response = self.raft.append_entries(request).await.map_err(|error| error.to_string())?;
                if !matches!(response, AppendEntriesResponse::HigherVote(_)) {
                    self.standing.promise();
                }
                message::put_appended(out, &response);
            }
            kind::VOTE | kind::PRE_VOTE | kind::TRANSFER if !self.log.is_complete() => {
                return Err("this replica is not complete yet".into());
            }
            kind::VOTE | kind::PRE_VOTE => {
                let request = message::read_ask(reader).map_err(malformed)?;
                if self.standing.has_promised() && !request.leadership_transfer {
                    return Err(
                        "this replica has answered another leader just now, or may have before its start"
                            .into(),
                    );
                }
                let response = match kind {
                    kind::VOTE => self.raft.vote(request).await,
                    _ => self.raft.pre_vote(request).await,
                };
                message::put_given(out, &response.map_err(|error| error.to_string())?);
            }
            kind::TRANSFER => {
                let request = message::read_transfer(reader).map_err(malformed)?;
                let is_heir = self.metrics(|metrics| *request.to_node_id() == metrics.id);
                // Who leaves a group gives the lead away without asking.
                if is_heir && !self.standing.may.load(Ordering::SeqCst) {
                    return Err("this replica would not lead".into());
                }
                let response = self.raft.handle_transfer_leader(request).await;
                out.push(u8::from(!matches!(response, Ok(Ok(())))));
            }
            kind::PIECE => self.take_piece(from, reader)?,
            kind::INSTALL => {
                let (id, length) = (reader.varint().map_err(malformed)?, reader.varint().map_err(malformed)?);
                let vote = read_vote(reader).map_err(malformed)?;
                let mark = Mark::decode(reader.bytes().map_err(malformed)?).map_err(malformed)?;
                let arrived = self.arriving.lock().remove(&from);
                let file = arrived.filter(|arrived| arrived.id == id && arrived.length == length);
                let file = file.ok_or("a snapshot of which pieces are missing")?.file;
                let snapshot =
                    SnapshotOf::<Types, _> { meta: mark.meta(), snapshot: SnapshotSource::Received(file) };
                let installed = self.raft.install_full_snapshot(vote, snapshot).await;
                self.standing.promise();
                put_vote(out, &installed.map_err(|error| error.to_string())?.vote);
            }
            _ => return Err("a question that this version does not know".into()),
        }
        Ok(())
    }

    fn take_piece(&self, from: NodeId, reader: &mut Reader<'_>) -> Result<(), String> {
        let malformed = |error: Malformed| error.to_string();
        let (id, offset) = (reader.varint().map_err(malformed)?, reader.varint().map_err(malformed)?);
        let bytes = reader.bytes().map_err(malformed)?;
        let mut arriving = self.arriving.lock();
        if offset == 0 {
            let file = nameless_file(&self.engine.scratch_folder()).map_err(|error| error.to_string())?;
            arriving.insert(from, Arriving { id, file, length: 0 });
        }
        match arriving.get_mut(&from) {
            Some(known) if known.id == id && known.length == offset => {
                known.file.write_all(bytes).map_err(|error| error.to_string())?;
                known.length += bytes.len() as u64;
                Ok(())
            }
            _ => Err("a piece of a snapshot out of order".into()),
        }
    }
}

/// Who leads. Whoever led before it was started again has not forgotten that, but leads no longer.
fn leader(metrics: &openraft::RaftMetrics<Types>) -> Option<NodeId> {
    metrics.current_leader.filter(|leader| *leader != metrics.id || metrics.state.is_leader())
}

/// The answer of somebody who cannot answer.
pub fn refusal(why: &str) -> Vec<u8> {
    let mut out = vec![1];
    put_bytes(&mut out, why.as_bytes());
    out
}

fn stopped(fatal: &Fatal<Types>) -> NotDone {
    NotDone::Stopped(fatal.to_string())
}

fn config(number: u16, pace: Pace) -> openraft::Config {
    let election = pace.election.as_millis() as u64;
    openraft::Config {
        cluster_name: format!("partition {number}"),
        heartbeat_interval: pace.heartbeat.as_millis() as u64,
        election_timeout_min: election,
        election_timeout_max: election * 2,
        install_snapshot_timeout: INSTALL_MAX.as_millis() as u64,
        max_payload_entries: ENTRIES_SENT_MAX,
        // Checkpoints are the engine's business.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: pace.entries_kept,
        purge_batch_size: pace.entries_kept.div_ceil(2).max(1),
        enable_pre_vote: Some(true),
        // At least a lease and an election, each of up to twice the time.
        quorum_loss_probe_interval: Some(election * 4),
        // Whoever led before a restart does not know what happened meanwhile.
        enable_leader_restore: Some(false),
        ..openraft::Config::default()
    }
}
