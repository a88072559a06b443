//! The state a group agrees on: a partition of the engine.
//!
//! The engine's checkpoint of the partition is the group's snapshot. It is on disk anyway, so "building" one is at most a
//! checkpoint, and only when a replica is too far behind is it read out and sent.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{Stream, TryStreamExt};
use openraft::entry::RaftEntry;
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::type_config::alias::{SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::{EntryPayload, OptionalSend};
use quipu_counting::{Refusal, Reply, Unavailable};
use quipu_engine::{Engine, Step};
use quipu_wire::entry::{Malformed, Reader};

use super::codec::{put_log_id, put_maybe, put_membership, read_log_id, read_maybe, read_membership};
use super::types::{Answer, Entry, LogId, Types};
use crate::blocking::blocking;
use crate::command::{self, Decoded};
use crate::plant::{Plant, is_planted};

/// Who belongs to a group, and since when.
pub type StoredMembership = StoredMembershipOf<Types>;

/// Up to where a partition has carried out what was agreed on, and who belonged to its group by then: the mark that the
/// engine keeps with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The last entry.
    pub applied: Option<LogId>,
    /// Who belonged to the group.
    pub membership: StoredMembership,
}

impl Mark {
    /// As bytes: maybe the log id, maybe that of the membership, the membership.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        put_maybe(&mut out, self.applied.as_ref(), put_log_id);
        put_maybe(&mut out, self.membership.log_id().as_ref(), put_log_id);
        put_membership(&mut out, self.membership.membership());
        out
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Result<Mark, Malformed> {
        let mut reader = Reader::new(bytes);
        let applied = read_maybe(&mut reader, read_log_id)?;
        let since = read_maybe(&mut reader, read_log_id)?;
        let membership = StoredMembership::new(since, read_membership(&mut reader)?);
        Ok(Mark { applied, membership })
    }

    /// What it says of a snapshot.
    pub fn meta(&self) -> SnapshotMetaOf<Types> {
        SnapshotMetaOf::<Types> { last_log_id: self.applied, last_membership: self.membership.clone() }
    }
}

/// What cannot be read, as an error of storage.
pub fn malformed(error: Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// How often somebody looks whether a full disk has room again.
const FULL_PAUSE: Duration = Duration::from_millis(200);

fn is_full(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(Unavailable::Full(_)))
}

/// What a group and its state know of each other.
#[derive(Default)]
pub struct Ties {
    /// The engine has made a checkpoint that the group has not heard of.
    pub has_news: AtomicBool,
    /// The group ends: nothing more is carried out.
    pub is_over: AtomicBool,
    /// The state holds this for as long as it may carry something out.
    pub at_work: Arc<tokio::sync::Mutex<()>>,
}

impl Ties {
    fn check(&self) -> io::Result<()> {
        match self.is_over.load(Ordering::Acquire) {
            true => Err(io::Error::other("this replica ends")),
            false => Ok(()),
        }
    }
}

/// The state of one group.
pub struct Machine {
    engine: Arc<Engine>,
    partition: u16,
    mark: Mark,
    ties: Arc<Ties>,
    _at_work: tokio::sync::OwnedMutexGuard<()>,
    /// Nothing has been carried out since the start.
    is_fresh: bool,
}

impl Machine {
    /// The state of a partition that the node holds.
    pub fn new(engine: Arc<Engine>, partition: u16, ties: Arc<Ties>) -> Result<Machine, String> {
        let mark = Mark::decode(&engine.mark(partition)).map_err(|error| error.to_string())?;
        let at_work = Arc::clone(&ties.at_work).try_lock_owned().map_err(|error| error.to_string())?;
        Ok(Machine { engine, partition, mark, ties, _at_work: at_work, is_fresh: true })
    }

    /// Carries out the next entry. If it fails, nothing is done.
    pub fn take(&mut self, entry: Entry) -> io::Result<Answer> {
        let mut mark = Mark { applied: Some(entry.log_id()), ..self.mark.clone() };
        if let EntryPayload::Membership(membership) = &entry.payload {
            mark.membership = StoredMembership::new(mark.applied, membership.clone());
        }
        let (from, to) = (self.mark.encode(), mark.encode());
        let answer = self.carry_out(entry.payload.clone(), Step { from: &from, to: &to })?;
        if std::mem::replace(&mut self.is_fresh, false) && is_planted(Plant::AppliesTwice) {
            self.carry_out(entry.payload, Step { from: &to, to: &to })?;
        }
        self.mark = mark;
        Ok(answer)
    }

    fn carry_out(
        &self,
        payload: EntryPayload<super::types::Command, u64, ()>,
        step: Step<'_>,
    ) -> io::Result<Answer> {
        let partition = self.partition;
        let EntryPayload::Normal(command) = payload else {
            self.engine.apply_nothing(partition, step).map_err(io::Error::other)?;
            return Ok(Answer::default());
        };
        let (time_ms, decoded) = command::decode(&command.0).map_err(malformed)?;
        match decoded {
            Decoded::Batch(mut batch) => {
                match self.engine.apply(partition, &mut batch, time_ms, step) {
                    Ok(()) => return Ok(Answer { replies: batch.replies, refused: None }),
                    // All replicas say so alike. It should have been refused before, and must not end them.
                    Err(Unavailable::Unsupported(why)) => {
                        self.engine.apply_nothing(partition, step).map_err(io::Error::other)?;
                        tracing::error!("partition {partition} cannot carry out an entry: {why}");
                        let refused = Reply { refusal: Some(Refusal::GroupAborted), ..Reply::state(None) };
                        return Ok(Answer { replies: vec![refused; batch.requests.len()], refused: None });
                    }
                    Err(error) => return Err(io::Error::other(error)),
                }
            }
            Decoded::Policy(pattern, policy) => {
                self.engine.apply_policy(partition, &pattern, policy, time_ms, step)
            }
            Decoded::Expire(keys) => self.engine.apply_expiries(partition, &keys, time_ms, step),
        }
        .map(|()| Answer::default())
        .map_err(io::Error::other)
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = SnapshotSource;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok((self.mark.applied, self.mark.membership.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let answer = loop {
                self.ties.check()?;
                match self.take(entry.clone()) {
                    // Nothing of it is done. Others go on meanwhile.
                    Err(error) if is_full(&error) => tokio::time::sleep(FULL_PAUSE).await,
                    done => break done?,
                }
            };
            if let Some(responder) = responder {
                responder.send(answer);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder { engine: Arc::clone(&self.engine), partition: self.partition, ties: Arc::clone(&self.ties) }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<Types>,
        snapshot: SnapshotSource,
    ) -> Result<(), io::Error> {
        self.ties.check()?;
        let (engine, partition) = (Arc::clone(&self.engine), self.partition);
        let install = move || -> io::Result<Vec<u8>> {
            let (file, _) = snapshot.into_file(engine.scratch_folder())?;
            engine.install(partition, &mut BufReader::new(file)).map_err(io::Error::other)?;
            Ok(engine.mark(partition))
        };
        let mark = blocking(install).await??;
        self.mark = Mark::decode(&mark).map_err(malformed)?;
        if self.mark.applied < meta.last_log_id {
            return Err(io::Error::other("a snapshot that is older than it says"));
        }
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf<Types, SnapshotSource>>, io::Error> {
        let current = current(&self.engine, self.partition)?;
        Ok(Some(current).filter(|snapshot| snapshot.meta.last_log_id.is_some()))
    }
}

/// The last checkpoint of a partition as a snapshot.
fn current(engine: &Arc<Engine>, partition: u16) -> io::Result<SnapshotOf<Types, SnapshotSource>> {
    let mark = Mark::decode(&engine.durable_mark(partition)).map_err(malformed)?;
    let snapshot = SnapshotSource::Here(Arc::clone(engine), partition);
    Ok(SnapshotOf::<Types, SnapshotSource> { meta: mark.meta(), snapshot })
}

/// Builds snapshots.
pub struct Builder {
    engine: Arc<Engine>,
    partition: u16,
    ties: Arc<Ties>,
}

impl RaftSnapshotBuilder<Types> for Builder {
    type SnapshotData = SnapshotSource;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<Types, SnapshotSource>, io::Error> {
        if !self.ties.has_news.swap(false, Ordering::AcqRel) {
            let (engine, partition) = (Arc::clone(&self.engine), self.partition);
            blocking(move || engine.checkpoint(partition)).await?.map_err(io::Error::other)?;
        }
        current(&self.engine, self.partition)
    }
}

/// Where a snapshot is.
pub enum SnapshotSource {
    /// In this engine: the last checkpoint of this partition, whichever that is when it is read.
    Here(Arc<Engine>, u16),
    /// In this file, which has no name any more.
    Received(File),
    /// These bytes, with this mark.
    Bytes(Vec<u8>, Vec<u8>),
}

impl std::fmt::Debug for SnapshotSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SnapshotSource::Here(_, partition) => write!(f, "the checkpoint of partition {partition}"),
            SnapshotSource::Received(_) => write!(f, "a file"),
            SnapshotSource::Bytes(bytes, _) => write!(f, "{} bytes", bytes.len()),
        }
    }
}

impl SnapshotSource {
    /// As a file to read from its beginning, with its mark where that is known. Blocks.
    pub fn into_file(self, scratch: PathBuf) -> io::Result<(File, Vec<u8>)> {
        let (mut file, mark) = match self {
            SnapshotSource::Here(engine, partition) => {
                let file = nameless_file(&scratch)?;
                let mut out = BufWriter::new(file);
                let mark = engine.export(partition, &mut out).map_err(io::Error::other)?;
                (out.into_inner().map_err(|error| error.into_error())?, mark)
            }
            SnapshotSource::Received(file) => (file, Vec::new()),
            SnapshotSource::Bytes(bytes, mark) => {
                let mut file = nameless_file(&scratch)?;
                file.write_all(&bytes)?;
                (file, mark)
            }
        };
        file.seek(SeekFrom::Start(0))?;
        Ok((file, mark))
    }
}

/// A file that is gone when it is closed.
pub fn nameless_file(folder: &Path) -> io::Result<File> {
    std::fs::create_dir_all(folder)?;
    tempfile::tempfile_in(folder)
}
