//! The way down: write, sync, and what happens when either fails.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::frame;
use super::pending::Sealed;
use super::segment::{SEGMENT_HEADER_BYTES, Segment, encode_header};
use super::{Log, LogError};

/// What the writer needs; its lock makes a thread the one that writes and syncs for all.
pub(super) struct Io {
    pub(super) segment: Arc<Segment>,
    pub(super) base: u64,
    /// The other half of the double buffer: exchanged for the pending one, written, emptied.
    pub(super) buffer: Vec<u8>,
}

/// Being the one who commits. The others wake when it ends, however it ends.
struct Leader<'log>(&'log Log);

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        *self.0.has_leader.lock() = false;
        self.0.leader_done.notify_all();
    }
}

impl Log {
    /// Returns when everything up to `offset` is durable. One thread at a time writes and syncs, for all who
    /// appended before; the others sleep and mostly find themselves served when they wake.
    pub fn commit(&self, offset: u64) -> Result<(), LogError> {
        let end = self.end();
        if offset > end {
            return Err(LogError::BeyondEnd { offset, end });
        }
        let mut leader = None;
        while leader.is_none() {
            self.check_poison()?;
            if self.durable() >= offset {
                return Ok(());
            }
            leader = self.wait_for_leader(offset);
        }
        let mut io = self.io.lock();
        self.check_poison()?;
        if self.durable() >= offset {
            return Ok(());
        }
        self.flush(&mut io)?;
        self.sync(&io)
    }

    /// Becomes the one who commits, or waits until the one who does is done. Waiting happens here and not
    /// at the lock of `io`: there, those already served would stand in line behind the next sync.
    fn wait_for_leader(&self, offset: u64) -> Option<Leader<'_>> {
        let mut has_leader = self.has_leader.lock();
        if !*has_leader {
            *has_leader = true;
            return Some(Leader(self));
        }
        if self.durable() < offset {
            self.leader_done.wait(&mut has_leader);
        }
        None
    }

    /// Hands everything appended so far to the file system, without syncing it.
    pub fn write_out(&self) -> Result<(), LogError> {
        let mut io = self.io.lock();
        self.check_poison()?;
        self.flush(&mut io)
    }

    /// The same, unless another did so since `offset` was appended: one write serves all who come at the same moment.
    pub fn write_out_to(&self, offset: u64) -> Result<(), LogError> {
        if self.written() >= offset { self.check_poison() } else { self.write_out() }
    }

    /// Commits everything and leaves a last frame that testifies to it, so that at the next start a flipped
    /// bit in any record is known for the damage it is. The log can be used further.
    pub fn close(&self) -> Result<(), LogError> {
        self.commit(self.end())?;
        match self.appender(0) {
            Ok(appender) => appender.append_testimony(),
            // The testimony is a courtesy; without space the log is complete all the same.
            Err(LogError::Full(_)) => return Ok(()),
            Err(error) => return Err(error),
        }
        self.commit(self.end())
    }

    /// Whether a write or sync failed. Nothing is accepted or acknowledged from then on.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    pub(super) fn check_poison(&self) -> Result<(), LogError> {
        if self.is_poisoned() { Err(self.poison_error()) } else { Ok(()) }
    }

    fn poison_error(&self) -> LogError {
        LogError::Poisoned(self.poison.get().cloned().unwrap_or_else(|| "unknown".into()))
    }

    /// Stops the log for good. The first reason stays.
    fn poison(&self, what: &'static str, segment: &Segment, error: &std::io::Error) -> LogError {
        let reason = format!("cannot {what} {}: {error}", segment.path.display());
        tracing::error!("the log stops: {reason}");
        self.poison.get_or_init(|| reason.into());
        self.poisoned.store(true, Ordering::Release);
        self.wake_all();
        self.poison_error()
    }

    fn flush(&self, io: &mut Io) -> Result<(), LogError> {
        let mut bytes = std::mem::take(&mut io.buffer);
        let (sealed, start) = {
            let mut pending = self.pending.lock();
            let sealed = pending.take_sealed();
            let start = pending.take(&mut bytes);
            self.pending_start.store(start + bytes.len() as u64, Ordering::Release);
            (sealed, start)
        };
        if let Some(sealed) = sealed {
            self.finish_segment(io, sealed)?;
        }
        self.write_frames(io, start, &mut bytes)?;
        bytes.clear();
        // One burst must not hold its memory for ever.
        bytes.shrink_to(self.options.buffer_limit_bytes as usize);
        io.buffer = bytes;
        Ok(())
    }

    /// Writes and syncs the rest of a segment, then the header of the next one, synced too: a header proves
    /// all that lies before it, a frame proves its header.
    fn finish_segment(&self, io: &mut Io, mut sealed: Sealed) -> Result<(), LogError> {
        self.write_frames(io, sealed.start, &mut sealed.bytes)?;
        debug_assert_eq!(self.written(), sealed.next_base, "segments are contiguous");
        if self.durable() < sealed.next_base {
            self.sync(io)?;
        }
        let header = encode_header(sealed.next.number, sealed.next_base);
        io.segment = sealed.next;
        io.base = sealed.next_base;
        self.write(io, &header, 0)?;
        self.written.store(io.base + SEGMENT_HEADER_BYTES as u64, Ordering::Release);
        self.sync(io)
    }

    fn write_frames(&self, io: &Io, start: u64, bytes: &mut [u8]) -> Result<(), LogError> {
        if bytes.is_empty() {
            return Ok(());
        }
        debug_assert_eq!(self.written(), start, "frames are contiguous");
        frame::seal(bytes, io.segment.number, start, self.durable());
        self.write(io, bytes, start - io.base)?;
        self.written.store(start + bytes.len() as u64, Ordering::Release);
        Ok(())
    }

    fn write(&self, io: &Io, bytes: &[u8], position: u64) -> Result<(), LogError> {
        debug_assert!(position + bytes.len() as u64 <= io.segment.capacity, "room was reserved");
        let result = io.segment.file.write_at(bytes, position);
        result.map_err(|error| self.poison("write", &io.segment, &error))
    }

    fn sync(&self, io: &Io) -> Result<(), LogError> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        io.segment.file.sync_data().map_err(|error| self.poison("sync", &io.segment, &error))?;
        self.durable.store(self.written(), Ordering::Release);
        Ok(())
    }
}
