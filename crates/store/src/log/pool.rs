//! The segment files: those in use, the one made ready, the spares.
//!
//! ```text
//!            zero-filled .new ──rename──┐
//!                                       v
//!   .spare ────────────rename──────> .log, ready ──header──> .log, in use ──free──> .spare, or removed
//! ```
//! Space is allocated here, mostly by writing zeros, long before it is needed: that a disk is full shows here, where
//! nothing is lost by it, and not in the middle of a commit.
//!
//! Nothing in a segment tells that another follows it. So that one deleted at the end of the log is missed, an empty
//! file has the number of the newest segment for its name: renamed after the segment has its name, and before the
//! segment is used. A name takes no space, so this works on a full disk too.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::segment::{Role, Segment, file_path};
use super::{LogError, LogOptions};
use crate::disk::{Disk, DiskFile};

/// Freed segments kept to be used again: the next one, and one in reserve for a burst.
const SPARES_MAX: usize = 2;

/// Zeros are written and synced in slices, so that commits meanwhile wait for one slice at most.
const ZERO_SLICE_BYTES: u64 = 4 << 20;

/// A segment in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live {
    pub(super) number: u64,
    pub(super) base: u64,
}

/// All files of the log.
pub(super) struct Pool {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    segment_bytes: u64,
    prewrites: bool,
    /// In order; the last takes appends.
    live: VecDeque<Live>,
    /// The file of the number after the last live one, without a header yet.
    prepared: Option<Arc<Segment>>,
    spares: Vec<PathBuf>,
    /// The number in the marker's name; none before the first segment.
    newest: Option<u64>,
}

impl Pool {
    pub(super) fn new(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: &LogOptions,
        live: VecDeque<Live>,
        spares: Vec<PathBuf>,
        newest: Option<u64>,
    ) -> Pool {
        let LogOptions { segment_bytes, prewrites, .. } = *options;
        Pool { disk, dir: dir.to_path_buf(), segment_bytes, prewrites, live, prepared: None, spares, newest }
    }

    pub(super) fn active_number(&self) -> u64 {
        self.live.back().map_or(0, |live| live.number)
    }

    /// The highest number that has a file.
    pub(super) fn newest_file(&self) -> u64 {
        self.active_number() + u64::from(self.has_prepared())
    }

    pub(super) fn push_live(&mut self, number: u64, base: u64) {
        self.live.push_back(Live { number, base });
    }

    pub(super) fn has_prepared(&self) -> bool {
        self.prepared.is_some()
    }

    /// Takes a file that was made ready in an earlier life, or removes it when it is of no use.
    pub(super) fn adopt(
        &mut self,
        number: u64,
        path: &Path,
        file: Arc<dyn DiskFile>,
        length: u64,
    ) -> Result<(), LogError> {
        if number == self.active_number() + 1 && length == self.segment_bytes {
            let path = path.to_path_buf();
            self.prepared = Some(Arc::new(Segment { number, path, file, capacity: length }));
            return Ok(());
        }
        self.mark_newest(number - 1)?;
        self.disk.remove(path).map_err(LogError::io("remove", path))
    }

    /// Makes it durable that segments up to this number are there.
    pub(super) fn mark_newest(&mut self, number: u64) -> Result<(), LogError> {
        let path = file_path(&self.dir, number, Role::Newest);
        match self.newest {
            Some(marked) if marked == number => return Ok(()),
            Some(marked) => {
                let old = file_path(&self.dir, marked, Role::Newest);
                self.disk.rename(&old, &path).map_err(LogError::io("rename", &old))?;
            }
            None => drop(self.disk.create(&path).map_err(LogError::io("create", &path))?),
        }
        self.newest = Some(number);
        self.sync_dir()
    }

    /// Makes the next segment ready, when it is not.
    pub(super) fn prepare(&mut self) -> Result<(), LogError> {
        self.prepared = Some(self.take_next()?);
        Ok(())
    }

    /// The next segment: the one made ready, or else made now.
    pub(super) fn take_next(&mut self) -> Result<Arc<Segment>, LogError> {
        if let Some(segment) = self.prepared.take() {
            return Ok(segment);
        }
        match self.recycle()? {
            Some(segment) => Ok(Arc::new(segment)),
            None => self.create().map(Arc::new),
        }
    }

    /// A spare under its new name. Its old content needs no erasing: the checksums are seeded with the
    /// number.
    fn recycle(&mut self) -> Result<Option<Segment>, LogError> {
        while let Some(spare) = self.spares.pop() {
            let file = self.disk.open(&spare).map_err(LogError::io("open", &spare))?;
            let length = file.len().map_err(LogError::io("measure", &spare))?;
            if length == self.segment_bytes {
                return self.promote(&spare, file).map(Some);
            }
            // From before the size was changed.
            drop(file);
            self.disk.remove(&spare).map_err(LogError::io("remove", &spare))?;
        }
        Ok(None)
    }

    fn create(&mut self) -> Result<Segment, LogError> {
        let path = file_path(&self.dir, self.active_number() + 1, Role::New);
        let created = self.disk.create(&path).map_err(LogError::io("create", &path));
        let filled = created.and_then(|file| {
            let allocate = || file.allocate(self.segment_bytes).map_err(LogError::io("allocate", &path));
            if !self.prewrites && allocate()? {
                file.sync_data().map_err(LogError::io("allocate", &path))?;
                return Ok(file);
            }
            let slice = vec![0; self.segment_bytes.min(ZERO_SLICE_BYTES) as usize];
            let mut position = 0;
            while position < self.segment_bytes {
                let length = (self.segment_bytes - position).min(ZERO_SLICE_BYTES);
                file.write_at(&slice[..length as usize], position)
                    .map_err(LogError::io("allocate", &path))?;
                file.sync_data().map_err(LogError::io("allocate", &path))?;
                position += length;
            }
            Ok(file)
        });
        match filled.and_then(|file| self.promote(&path, file)) {
            Ok(segment) => Ok(segment),
            Err(error) => {
                // A file half filled must not keep the last space from those who could free some. A failure
                // to remove it is told by the error that led here.
                let _ = self.disk.remove(&path);
                Err(error)
            }
        }
    }

    fn promote(&mut self, from: &Path, file: Arc<dyn DiskFile>) -> Result<Segment, LogError> {
        let number = self.active_number() + 1;
        let path = file_path(&self.dir, number, Role::Log);
        self.disk.rename(from, &path).map_err(LogError::io("rename", from))?;
        self.sync_dir()?;
        self.mark_newest(number)?;
        Ok(Segment { number, path, file, capacity: self.segment_bytes })
    }

    /// Frees the segments below `offset`, as far as the log is durable, and returns how many.
    pub(super) fn free_below(&mut self, offset: u64, durable: u64) -> Result<usize, LogError> {
        let mut freed = 0;
        while let Some(next) = self.live.get(1)
            && next.base <= offset
            // The next header is durable: without it the folder would hold no log at all.
            && next.base < durable
            && let Some(first) = self.live.front()
        {
            let path = file_path(&self.dir, first.number, Role::Log);
            if self.spares.len() < SPARES_MAX {
                let spare = file_path(&self.dir, first.number, Role::Spare);
                self.disk.rename(&path, &spare).map_err(LogError::io("rename", &path))?;
                self.spares.push(spare);
            } else {
                self.disk.remove(&path).map_err(LogError::io("remove", &path))?;
            }
            self.live.pop_front();
            freed += 1;
        }
        if freed > 0 {
            // Once for all: recovery understands a gap in the numbers below the caller's checkpoint.
            self.sync_dir()?;
        }
        Ok(freed)
    }

    pub(super) fn sync_dir(&self) -> Result<(), LogError> {
        self.disk.sync_dir(&self.dir).map_err(LogError::io("sync", &self.dir))
    }
}
