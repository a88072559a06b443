//! The state of the group of all nodes: what `crate::meta` says, on disk as a whole after every change.

use std::io::{self, Read};
use std::sync::Arc;

use futures_util::{Stream, TryStreamExt};
use openraft::entry::RaftEntry;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::type_config::alias::{SnapshotMetaOf, SnapshotOf};
use openraft::{EntryPayload, OptionalSend};
use parking_lot::Mutex;
use quipu_engine::Engine;
use quipu_wire::entry::{Malformed, Reader, put_bytes};

use super::journal::Journal;
use super::machine::{Mark, SnapshotSource, StoredMembership, Ties, malformed};
use super::types::{Answer, LogId, NodeId, Types};
use crate::blocking::blocking;
use crate::meta::{Change, LEVEL, Meta, too_old};

/// What a node knows of the cluster, shared between those who ask and the group that changes it.
pub struct MetaState {
    engine: Arc<Engine>,
    journal: Arc<Journal>,
    /// The group's number.
    number: usize,
    known: Mutex<(Mark, Meta)>,
    /// Held while it is written down: those who look must not wait for a disk.
    saving: Mutex<()>,
}

impl MetaState {
    /// As the engine kept it, or nothing at all.
    pub fn load(engine: Arc<Engine>, journal: Arc<Journal>, number: usize) -> Result<Arc<MetaState>, String> {
        let kept = engine.meta().map_err(|error| error.to_string())?.unwrap_or_default();
        let known = match kept.is_empty() {
            true => (Mark::default(), Meta::default()),
            false => decode(&kept).map_err(|error| format!("what is kept of the cluster: {error}"))?,
        };
        if known.1.level > LEVEL {
            return Err(too_old(known.1.level, LEVEL));
        }
        Ok(Arc::new(MetaState {
            engine,
            journal,
            number,
            known: Mutex::new(known),
            saving: Mutex::default(),
        }))
    }

    /// Looks at what is known.
    pub fn read<T>(&self, look: impl FnOnce(&Meta) -> T) -> T {
        look(&self.known.lock().1)
    }

    /// The number of a node's data folder.
    pub fn folder(&self, node: NodeId) -> Option<u128> {
        self.read(|meta| meta.nodes.get(&node).map(|member| member.folder))
    }

    /// Writes it down, so that the log before this is not needed for it.
    pub fn save(&self) -> io::Result<()> {
        let _one = self.saving.lock();
        let (applied, encoded) = {
            let known = self.known.lock();
            (known.0.applied.map(|applied| applied.index), encode(&known))
        };
        let needed = self.journal.needed_behind(self.number, applied);
        let needed = self.journal.stated(needed).map_err(io::Error::other)?;
        self.engine.save_meta(needed, &encoded).map_err(io::Error::other)
    }
}

fn encode((mark, meta): &(Mark, Meta)) -> Vec<u8> {
    let mut out = Vec::new();
    put_bytes(&mut out, &mark.encode());
    out.extend_from_slice(&meta.encode());
    out
}

fn decode(bytes: &[u8]) -> Result<(Mark, Meta), Malformed> {
    let mut reader = Reader::new(bytes);
    let mark = Mark::decode(reader.bytes()?)?;
    Ok((mark, Meta::decode(&mut reader)?))
}

/// Where the state of the group stands on disk: what its log need not have.
pub fn kept_mark(engine: &Engine) -> Option<Mark> {
    let kept = engine.meta().ok()??;
    decode(&kept).ok().map(|(mark, _)| mark)
}

/// The state as the group sees it.
pub struct MetaMachine(pub Arc<MetaState>, pub Arc<Ties>);

impl MetaMachine {
    /// Writes down what is known, once there is room for it.
    async fn save(&self) -> io::Result<()> {
        loop {
            let state = Arc::clone(&self.0);
            let saved = blocking(move || state.save()).await?;
            if self.1.unless_full(saved).await?.is_some() {
                return Ok(());
            }
        }
    }
}

impl RaftStateMachine<Types> for MetaMachine {
    type SnapshotData = SnapshotSource;
    type SnapshotBuilder = MetaBuilder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        let known = self.0.known.lock();
        Ok((known.0.applied, known.0.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        let mut answered = Vec::new();
        while let Some((entry, responder)) = entries.try_next().await? {
            let mut known = self.0.known.lock();
            known.0.applied = Some(entry.log_id());
            let mut answer = Answer::default();
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Normal(command) => {
                    let change = Change::decode(&command.0).map_err(malformed)?;
                    answer.refused = known.1.apply(change).err();
                }
                EntryPayload::Membership(membership) => {
                    known.0.membership = StoredMembership::new(known.0.applied, membership);
                }
            }
            answered.extend(responder.map(|responder| (responder, answer)));
        }
        self.save().await?;
        answered.into_iter().for_each(|(responder, answer)| responder.send(answer));
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> MetaBuilder {
        MetaBuilder(Arc::clone(&self.0))
    }

    async fn install_snapshot(
        &mut self,
        _meta: &SnapshotMetaOf<Types>,
        snapshot: SnapshotSource,
    ) -> Result<(), io::Error> {
        let state = Arc::clone(&self.0);
        let install = move || -> io::Result<()> {
            let (mut file, _) = snapshot.into_file(state.engine.scratch_folder())?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            *state.known.lock() = decode(&bytes).map_err(malformed)?;
            Ok(())
        };
        blocking(install).await??;
        self.save().await
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf<Types, SnapshotSource>>, io::Error> {
        Ok(Some(current(&self.0)).filter(|snapshot| snapshot.meta.last_log_id.is_some()))
    }
}

fn current(state: &MetaState) -> SnapshotOf<Types, SnapshotSource> {
    let known = state.known.lock();
    let snapshot = SnapshotSource::Bytes(encode(&known), known.0.encode());
    SnapshotOf::<Types, SnapshotSource> { meta: known.0.meta(), snapshot }
}

/// Builds snapshots of it.
pub struct MetaBuilder(Arc<MetaState>);

impl RaftSnapshotBuilder<Types> for MetaBuilder {
    type SnapshotData = SnapshotSource;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<Types, SnapshotSource>, io::Error> {
        Ok(current(&self.0))
    }
}
