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
use quipu_engine::{Engine, SnapshotError, Step};
use quipu_store::LogError;
use quipu_store::cold::ColdError;
use quipu_wire::entry::{Malformed, Reader};

use super::codec::{put_log_id, put_maybe, put_membership, read_log_id, read_maybe, read_membership};
use super::types::{Answer, Entry, LogId, Types};
use crate::blocking::{blocking, in_place};
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
pub const FULL_PAUSE: Duration = Duration::from_millis(200);

fn is_full(error: &io::Error) -> bool {
    let Some(inner) = error.get_ref() else { return false };
    matches!(inner.downcast_ref(), Some(Unavailable::Full(_)))
        || matches!(inner.downcast_ref(), Some(LogError::Full(_)))
        || matches!(inner.downcast_ref(), Some(ColdError::Full { .. }))
        || matches!(inner.downcast_ref(), Some(SnapshotError::Cold(ColdError::Full { .. })))
}

/// What a group and its state know of each other.
#[derive(Default)]
pub struct Ties {
    /// The engine has made a checkpoint that the group has not heard of.
    pub has_news: AtomicBool,
    /// The group ends: nothing more is carried out.
    pub is_over: AtomicBool,
    /// There was no room the last time it was needed.
    pub is_full: AtomicBool,
    /// The state holds this for as long as it may carry something out.
    pub at_work: Arc<tokio::sync::Mutex<()>>,
}

impl Ties {
    /// What was attempted, or nothing if there was no room for it: then it may be attempted again, a little later. A replica that waits so
    /// stands still, as if it were stopped, and goes on by itself; openraft would end it for good.
    pub async fn unless_full<T>(&self, attempted: io::Result<T>) -> io::Result<Option<T>> {
        match attempted {
            Err(error) if is_full(&error) => {
                if !self.is_full.swap(true, Ordering::Relaxed) {
                    tracing::error!("the disk is full, and a replica waits for room: {error}");
                }
                tokio::time::sleep(FULL_PAUSE).await;
                self.check()?;
                Ok(None)
            }
            done => {
                self.is_full.store(false, Ordering::Relaxed);
                done.map(Some)
            }
        }
    }

    /// Nothing more is carried out by a replica that ends.
    pub fn check(&self) -> io::Result<()> {
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

    /// Carries out the next entry. One that was asked for here is somebody's who waits for the answer. If it fails, nothing is done.
    pub fn take(&mut self, entry: Entry, is_asked_here: bool) -> io::Result<Answer> {
        let mut mark = Mark { applied: Some(entry.log_id()), ..self.mark.clone() };
        if let EntryPayload::Membership(membership) = &entry.payload {
            mark.membership = StoredMembership::new(mark.applied, membership.clone());
        }
        let (from, to) = (self.mark.encode(), mark.encode());
        let answer = self.carry_out(entry.payload.clone(), Step { from: &from, to: &to }, is_asked_here)?;
        if std::mem::replace(&mut self.is_fresh, false) && is_planted(Plant::AppliesTwice) {
            self.carry_out(entry.payload, Step { from: &to, to: &to }, false)?;
        }
        self.mark = mark;
        Ok(answer)
    }

    fn carry_out(
        &self,
        payload: EntryPayload<super::types::Command, u64, ()>,
        step: Step<'_>,
        is_asked_here: bool,
    ) -> io::Result<Answer> {
        let partition = self.partition;
        let EntryPayload::Normal(command) = payload else {
            self.engine.apply_nothing(partition, step).map_err(io::Error::other)?;
            return Ok(Answer::default());
        };
        let (time_ms, decoded) = command::decode(&command.0).map_err(malformed)?;
        match decoded {
            Decoded::Batch(mut batch, rules) => {
                let engine = &self.engine;
                let how = (is_asked_here, rules);
                let done = engine.apply_from_memory(partition, &mut batch, time_ms, step, how);
                let done = done.and_then(|is_done| match is_done {
                    true => Ok(()),
                    false => in_place(|| engine.apply(partition, &mut batch, time_ms, step, how)),
                });
                match done {
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
            Decoded::Expire(keys) => in_place(|| self.engine.apply_expiries(partition, &keys, time_ms, step)),
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
            self.ties.check()?;
            let answer = loop {
                let taken = self.take(entry.clone(), responder.is_some());
                if let Some(answer) = self.ties.unless_full(taken).await? {
                    break answer;
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
        let scratch = self.engine.scratch_folder();
        let (file, _) = blocking(move || snapshot.into_file(scratch)).await??;
        let file = Arc::new(file);
        let mark = loop {
            let (engine, partition, file) = (Arc::clone(&self.engine), self.partition, Arc::clone(&file));
            let install = move || -> io::Result<Vec<u8>> {
                (&*file).seek(SeekFrom::Start(0))?;
                engine.install(partition, &mut BufReader::new(&*file)).map_err(io::Error::other)?;
                Ok(engine.mark(partition))
            };
            let installed = blocking(install).await?;
            if let Some(mark) = self.ties.unless_full(installed).await? {
                break mark;
            }
        };
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
            loop {
                let (engine, partition) = (Arc::clone(&self.engine), self.partition);
                let made = blocking(move || engine.checkpoint(partition)).await?;
                if self.ties.unless_full(made.map_err(io::Error::other)).await?.is_some() {
                    break;
                }
            }
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
