//! The logs of all groups of a node in its one log.
//!
//! ```text
//! record := 0x01 group:v entry*               appended; what stood at the first one's index and behind is gone
//!         | 0x02 group:v vote
//!         | 0x03 group:v index:v              nothing stands at this index and behind any more
//!         | 0x04 group:v log_id               nothing stands up to here any more: a checkpoint has it
//!         | 0x06 group:v                      nothing of it is here any more but its vote
//!         | 0x07 group:v index:v              it begins anew, and takes part once it has all before this
//!         | 0x05 (group:v maybe vote, maybe log_id, index:v)*     votes, purges and 0x07 of all groups again
//! ```
//! The order of records is the order of events, so a torn tail takes away the last of them and never one in the middle. A
//! record of kind 5 comes before the node forgets where older ones are: see [`Journal::stated`].
//!
//! Entries stay in memory until they are purged. Checkpoints come often enough that those are few.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use openraft::entry::RaftEntry;
use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::{OptionalSend, RaftLogReader};
use parking_lot::Mutex;
use quipu_engine::Replication;
use quipu_store::{Appender, Log, LogError};
use quipu_wire::entry::{Malformed, Reader, put_varint};

use super::codec::{
    put_entry, put_log_id, put_maybe, put_vote, read_entry, read_log_id, read_maybe, read_vote,
};
use super::machine::{FULL_PAUSE, Mark};
use super::types::{Entry, LogId, Types, Vote};
use crate::plant::{Plant, is_planted};

/// The most that one record of entries holds, unless one entry alone is larger.
const RECORD_BYTES: usize = 4 << 20;
/// About the most that a reader is given at once.
const READ_BYTES: usize = 1 << 20;

/// The state of one group's log.
#[derive(Default)]
struct Group {
    vote: Option<Vote>,
    purged: Option<LogId>,
    /// A replica that was here before has said things that this one knows nothing of. Until it has every entry before this
    /// one it must not vote or lead, or what was agreed on with its help could be undone with its help.
    complete_at: u64,
    /// Consecutive, behind `purged`.
    entries: VecDeque<Held>,
}

struct Held {
    entry: Entry,
    /// A place in the node's log that is not behind its record.
    start: u64,
    bytes: usize,
}

impl Group {
    fn first_index(&self) -> u64 {
        match self.entries.front() {
            Some(first) => first.entry.log_id().index,
            None => self.purged.map_or(0, |purged| purged.index + 1),
        }
    }

    fn truncate(&mut self, index: u64) {
        let kept = index.saturating_sub(self.first_index()) as usize;
        self.entries.truncate(kept);
    }

    fn append(&mut self, entry: Entry, start: u64, bytes: usize) {
        let index = entry.log_id().index;
        self.truncate(index);
        if self.first_index() + (self.entries.len() as u64) < index {
            // What is agreed on is carried out before it is durable here, so a checkpoint can be ahead of a log whose end was
            // lost. It has what is missing between, and what was before that.
            self.entries.clear();
        }
        self.entries.push_back(Held { entry, start, bytes });
    }

    fn purge(&mut self, log_id: LogId) {
        let count = (log_id.index + 1).saturating_sub(self.first_index()) as usize;
        self.entries.drain(..count.min(self.entries.len()));
        self.purged = self.purged.max(Some(log_id));
    }

    fn forget(&mut self) {
        self.begin_anew(u64::MAX);
    }

    fn begin_anew(&mut self, complete_at: u64) {
        *self = Group { vote: self.vote, complete_at, ..Group::default() };
    }

    fn range(&self, range: &impl RangeBounds<u64>) -> impl Iterator<Item = &Held> {
        let first = self.first_index();
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        let skipped = start.saturating_sub(first);
        let count = end.saturating_sub(start.max(first));
        self.entries.iter().skip(skipped as usize).take(count as usize)
    }
}

/// Reads the records of a node's log at its start.
pub struct JournalReader {
    groups: Vec<Group>,
}

impl JournalReader {
    /// For so many groups.
    pub fn new(groups: usize) -> JournalReader {
        JournalReader { groups: (0..groups).map(|_| Group::default()).collect() }
    }

    /// Takes in the next record, which begins at `start`.
    pub fn record(&mut self, start: u64, payload: &[u8]) -> Result<(), LogError> {
        self.read(start, payload).map_err(|error| LogError::Record(format!("offset {start}: {error}")))
    }

    fn read(&mut self, start: u64, payload: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(payload);
        let kind = reader.byte()?;
        if kind == 0x05 {
            while !reader.is_empty() {
                let group = self.group(&mut reader)?;
                group.vote = read_maybe(&mut reader, read_vote)?;
                if let Some(purged) = read_maybe(&mut reader, read_log_id)? {
                    group.purge(purged);
                }
                group.complete_at = reader.varint()?;
            }
            return Ok(());
        }
        let group = self.group(&mut reader)?;
        match kind {
            0x01 => {
                while !reader.is_empty() {
                    let before = reader.len();
                    let entry = read_entry(&mut reader)?;
                    group.append(entry, start, before - reader.len());
                }
            }
            0x02 => group.vote = Some(read_vote(&mut reader)?),
            0x03 => group.truncate(reader.varint()?),
            0x04 => group.purge(read_log_id(&mut reader)?),
            0x06 => group.forget(),
            0x07 => group.begin_anew(reader.varint()?),
            _ => return Err(Malformed("unknown record; written by a newer version?")),
        }
        if reader.is_empty() { Ok(()) } else { Err(Malformed("more than a record")) }
    }

    fn group(&mut self, reader: &mut Reader<'_>) -> Result<&mut Group, Malformed> {
        let number = usize::try_from(reader.varint()?).map_err(|_| Malformed("group number"))?;
        self.groups.get_mut(number).ok_or(Malformed("group number"))
    }

    /// The log was read to its end. `applied` says up to where each group's state is on disk: older entries may be gone with
    /// their segments.
    pub fn finish(mut self, log: Arc<Log>, applied: impl Fn(usize) -> Option<LogId>) -> Arc<Journal> {
        for (number, group) in self.groups.iter_mut().enumerate() {
            // Of a group that was given up a checkpoint may be left, if that broke off.
            if let Some(applied) = applied(number).filter(|_| group.complete_at != u64::MAX) {
                group.purge(applied);
            }
        }
        let groups = self.groups.into_iter().map(|group| Arc::new(Mutex::new(group))).collect();
        let (is_closing, waiting) = (AtomicBool::new(false), AtomicUsize::new(0));
        let restated_from = AtomicU64::new(0);
        Arc::new(Journal { log, groups, tell: OnceLock::new(), is_closing, waiting, restated_from })
    }
}

/// See the head of this file.
pub struct Journal {
    log: Arc<Log>,
    groups: Vec<Arc<Mutex<Group>>>,
    tell: OnceLock<Box<dyn Fn(u16) + Send + Sync>>,
    /// Nobody waits for room any more.
    is_closing: AtomicBool,
    /// How many replicas wait for room in the log.
    waiting: AtomicUsize,
    /// A place from which on votes and purges were last said again, durably; 0 if they were not yet.
    restated_from: AtomicU64,
}

impl Replication for Journal {
    fn needed_from(&self, partition: u16, mark: &[u8]) -> Result<u64, LogError> {
        let mark = Mark::decode(mark)
            .map_err(|error| LogError::Record(format!("the mark of partition {partition}: {error}")))?;
        self.stated(self.needed_behind(usize::from(partition), mark.applied.map(|applied| applied.index)))
    }

    fn checkpointed(&self, partition: u16) {
        if let Some(tell) = self.tell.get() {
            tell(partition);
        }
    }
}

impl Journal {
    /// The log of one group.
    pub fn group(self: &Arc<Journal>, number: usize) -> GroupLog {
        GroupLog { journal: Arc::clone(self), number, group: Arc::clone(&self.groups[number]) }
    }

    /// All entries of a group that are in the log and in no checkpoint.
    pub fn entries(&self, number: usize) -> Vec<Entry> {
        self.groups[number].lock().entries.iter().map(|held| held.entry.clone()).collect()
    }

    /// Where the first record begins that a group needs if it has everything up to `index`, or a place before it.
    pub fn needed_behind(&self, number: usize, index: Option<u64>) -> u64 {
        let group = self.groups[number].lock();
        // Under the lock: what is appended afterwards lies behind the end.
        let end = self.log.end();
        let next = index.map_or(0, |index| index + 1);
        group.range(&(next..)).next().map_or(end, |first| first.start)
    }

    /// What is called with the number of a partition when the engine has made a checkpoint of it.
    pub fn on_checkpoint(&self, tell: impl Fn(u16) + Send + Sync + 'static) {
        let _ = self.tell.set(Box::new(tell));
    }

    /// Forgets the log of a group that is not here any more. Its vote is kept: nobody votes twice in a term, whatever
    /// happens between.
    pub fn forget(&self, number: usize) -> Result<(), LogError> {
        let mut record = vec![0x06];
        put_varint(&mut record, number as u64);
        let mut group = self.groups[number].lock();
        let end = self.append(&record)?;
        group.forget();
        drop(group);
        self.log.commit(end)
    }

    /// The node is about to end: what waits for room on a full disk fails.
    pub fn close(&self) {
        self.is_closing.store(true, Ordering::Release);
    }

    /// Does something that needs room in the log. While the disk is full the replica stands still, as if it were stopped, and goes on
    /// by itself: openraft would end it for good.
    pub async fn when_there_is_room<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, LogError>,
    ) -> io::Result<T> {
        let mut waits = None;
        loop {
            match attempt() {
                Err(LogError::Full(why)) if !self.is_closing.load(Ordering::Acquire) => {
                    waits.get_or_insert_with(|| {
                        tracing::error!("the disk is full, and a replica waits for room: {why}");
                        Waits::new(&self.waiting)
                    });
                    tokio::time::sleep(FULL_PAUSE).await;
                }
                done => return done.map_err(failed),
            }
        }
    }

    /// Whether a replica waits for room in the log, which is that of all of them.
    pub fn waits_for_room(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Whether a group was given up here, and has not begun anew since.
    pub fn is_forgotten(&self, number: usize) -> bool {
        self.groups[number].lock().complete_at == u64::MAX
    }

    /// A group begins anew here, and takes part once it has everything before this entry.
    pub fn begin_anew(&self, number: usize, complete_at: u64) -> Result<(), LogError> {
        let mut record = vec![0x07];
        put_varint(&mut record, number as u64);
        put_varint(&mut record, complete_at);
        let mut group = self.groups[number].lock();
        let end = self.append(&record)?;
        group.begin_anew(complete_at);
        drop(group);
        self.log.commit(end)
    }

    /// Sees to it that whoever reads from a place that [`Journal::needed_behind`] gave learns all there is to know, and gives back that place,
    /// or one a little before it. What was said again just before serves once more: a log whose disk is full has no room to say it for every
    /// checkpoint, and without checkpoints there is never any.
    pub fn stated(&self, needed: u64) -> Result<u64, LogError> {
        let last = self.restated_from.load(Ordering::Acquire);
        if last > 0 && self.log.end().saturating_sub(last) < self.log.spare_bytes() {
            return Ok(needed.min(last));
        }
        self.restate()?;
        Ok(needed)
    }

    /// Says votes and purges of all groups again, durably.
    pub fn restate(&self) -> Result<(), LogError> {
        // Held together with the append: a vote that is saved later comes later.
        let groups: Vec<_> = self.groups.iter().map(|group| group.lock()).collect();
        let from = self.log.end();
        let mut record = vec![0x05];
        for (number, group) in groups.iter().enumerate() {
            put_varint(&mut record, number as u64);
            put_maybe(&mut record, group.vote.as_ref(), put_vote);
            put_maybe(&mut record, group.purged.as_ref(), put_log_id);
            put_varint(&mut record, group.complete_at);
        }
        let end = self.append_by(self.log.spare_appender(record.len())?, &record)?;
        drop(groups);
        self.log.commit(end)?;
        self.restated_from.store(from, Ordering::Release);
        Ok(())
    }

    fn append(&self, record: &[u8]) -> Result<u64, LogError> {
        self.append_by(self.log.appender(record.len())?, record)
    }

    fn append_by(&self, appender: Appender<'_>, record: &[u8]) -> Result<u64, LogError> {
        let end = appender.append(&[record])?;
        drop(appender);
        // The record is in: a segment that cannot be had now is the next appender's error.
        let _ = self.log.roll_if_full();
        Ok(end)
    }
}

/// The log of one group. Clones are the same log.
#[derive(Clone)]
pub struct GroupLog {
    journal: Arc<Journal>,
    number: usize,
    group: Arc<Mutex<Group>>,
}

/// One who waits for room, until it is dropped.
struct Waits<'a>(&'a AtomicUsize);

impl Waits<'_> {
    fn new(waiting: &AtomicUsize) -> Waits<'_> {
        waiting.fetch_add(1, Ordering::Relaxed);
        Waits(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl GroupLog {
    /// Whether it stands still, or soon will, because there is no room in the node's log.
    pub fn waits_for_room(&self) -> bool {
        self.journal.waits_for_room()
    }

    /// Whether it has all it must have to vote and lead.
    pub fn is_complete(&self) -> bool {
        let group = self.group.lock();
        group.first_index() + group.entries.len() as u64 >= group.complete_at
    }

    /// Whom the node follows, if it has ever followed anybody.
    pub fn vote(&self) -> Option<Vote> {
        self.group.lock().vote
    }

    fn record(&self, kind: u8) -> Vec<u8> {
        let mut record = vec![kind];
        put_varint(&mut record, self.number as u64);
        record
    }
}

fn failed(error: LogError) -> io::Error {
    io::Error::other(error)
}

impl RaftLogReader<Types> for GroupLog {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry>, io::Error> {
        Ok(self.group.lock().range(&range).map(|held| held.entry.clone()).collect())
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> Result<Vec<Entry>, io::Error> {
        let group = self.group.lock();
        let mut bytes = 0;
        let fits = |held: &&Held| {
            let is_first = bytes == 0;
            bytes += held.bytes;
            is_first || bytes <= READ_BYTES
        };
        Ok(group.range(&(start..end)).take_while(fits).map(|held| held.entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote>, io::Error> {
        Ok(self.group.lock().vote)
    }
}

impl RaftLogStorage<Types> for GroupLog {
    type LogReader = GroupLog;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, io::Error> {
        let group = self.group.lock();
        let last = group.entries.back().map(|held| held.entry.log_id());
        Ok(LogState { last_purged_log_id: group.purged, last_log_id: last.or(group.purged) })
    }

    async fn get_log_reader(&mut self) -> GroupLog {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote) -> Result<(), io::Error> {
        if is_planted(Plant::ForgetsVotes) {
            self.group.lock().vote = Some(*vote);
            return Ok(());
        }
        let mut record = self.record(0x02);
        put_vote(&mut record, vote);
        let attempt = || {
            let mut group = self.group.lock();
            let end = self.journal.append(&record)?;
            group.vote = Some(*vote);
            Ok(end)
        };
        let end = self.journal.when_there_is_room(attempt).await?;
        let (done, durable) = tokio::sync::oneshot::channel();
        self.journal.log.when_durable(
            end,
            Box::new(move |result| {
                let _ = done.send(result);
            }),
        );
        durable.await.map_err(io::Error::other)?.map_err(failed)
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> Result<(), io::Error>
    where
        I: IntoIterator<Item = Entry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut end = self.journal.log.end();
        let encoded = |entry: Entry| {
            let mut bytes = Vec::new();
            put_entry(&mut bytes, &entry);
            (entry, bytes)
        };
        let mut entries = entries.into_iter().map(encoded).peekable();
        while let Some(first) = entries.next() {
            let mut record = self.record(0x01);
            let mut appended = Vec::new();
            let mut next = Some(first);
            while let Some((entry, bytes)) = next {
                record.extend_from_slice(&bytes);
                appended.push((entry, bytes.len()));
                let length = record.len();
                next = entries.next_if(|(_, bytes)| length + bytes.len() <= RECORD_BYTES);
            }
            let attempt = || {
                let mut group = self.group.lock();
                let start = self.journal.log.end();
                let end = self.journal.append(&record)?;
                for (entry, bytes) in appended.drain(..) {
                    group.append(entry, start, bytes);
                }
                Ok(end)
            };
            end = self.journal.when_there_is_room(attempt).await?;
        }
        if is_planted(Plant::AcknowledgesBeforeSync) {
            callback.io_completed(Ok(()));
            return Ok(());
        }
        let flushed = move |result: Result<(), LogError>| callback.io_completed(result.map_err(failed));
        self.journal.log.when_durable(end, Box::new(flushed));
        Ok(())
    }

    async fn truncate_after(&mut self, last_log_id: Option<LogId>) -> Result<(), io::Error> {
        let index = last_log_id.map_or(0, |last| last.index + 1);
        let mut record = self.record(0x03);
        put_varint(&mut record, index);
        let attempt = || {
            let mut group = self.group.lock();
            self.journal.append(&record)?;
            group.truncate(index);
            Ok(())
        };
        self.journal.when_there_is_room(attempt).await
    }

    async fn purge(&mut self, log_id: LogId) -> Result<(), io::Error> {
        let mut record = self.record(0x04);
        put_log_id(&mut record, &log_id);
        let attempt = || {
            let mut group = self.group.lock();
            self.journal.append(&record)?;
            group.purge(log_id);
            Ok(())
        };
        self.journal.when_there_is_room(attempt).await
    }
}
