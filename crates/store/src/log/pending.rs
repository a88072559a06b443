//! The pending buffer: whole frames but for their checksums, and the last one still open.
//!
//! ```text
//!   offset start                                              end
//!          | header, records, padding | header, records ...   |      next record goes here
//!            closed                     open, at `open_frame`
//! ```
//! Laying out frames while appending makes offsets exact at once: what `append` returns is where the record
//! will lie in the file. Checksums are left to the writer, outside of the lock.

use std::sync::Arc;

use super::frame::{self, FRAME_HEADER_BYTES, FRAME_SPLIT_BYTES, RECORD_PREFIX_BYTES};
use super::segment::{SEGMENT_HEADER_BYTES, Segment};

/// What was appended and not yet taken by a writer.
pub(super) struct Pending {
    /// Global offset of the first byte of `buffer`.
    start: u64,
    buffer: Vec<u8>,
    /// Where in `buffer` the open frame begins; its end when none is open.
    open_frame: usize,
    /// The rest of the segment before, when the log has rolled and nobody wrote since.
    sealed: Option<Sealed>,
}

/// The last bytes of a segment, and the segment that follows it.
pub(super) struct Sealed {
    pub(super) start: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) next: Arc<Segment>,
    pub(super) next_base: u64,
}

impl Pending {
    pub(super) fn new(start: u64) -> Pending {
        Pending { start, buffer: Vec::new(), open_frame: 0, sealed: None }
    }

    /// Adds a record of `length` bytes and returns the offset of its end.
    pub(super) fn push(&mut self, parts: &[&[u8]], length: usize) -> u64 {
        let cost = RECORD_PREFIX_BYTES + length;
        let payload_len = (self.buffer.len() - self.open_frame).saturating_sub(FRAME_HEADER_BYTES);
        if payload_len > 0 && payload_len + cost > FRAME_SPLIT_BYTES {
            self.close_frame();
        }
        self.open_frame();
        self.buffer.extend_from_slice(&(length as u32).to_le_bytes());
        for part in parts {
            self.buffer.extend_from_slice(part);
        }
        self.end()
    }

    /// Makes sure that a frame is open, even an empty one, and returns the offset of its end.
    pub(super) fn open_frame(&mut self) -> u64 {
        if self.open_frame == self.buffer.len() {
            self.buffer.extend_from_slice(&[0; FRAME_HEADER_BYTES]);
        }
        self.end()
    }

    fn end(&self) -> u64 {
        self.start + self.buffer.len() as u64
    }

    fn close_frame(&mut self) {
        if self.open_frame < self.buffer.len() {
            frame::close(&mut self.buffer, self.open_frame);
            self.open_frame = self.buffer.len();
        }
    }

    /// Gives away the frames so far in exchange for an empty buffer, and returns where they begin.
    pub(super) fn take(&mut self, empty: &mut Vec<u8>) -> u64 {
        debug_assert!(empty.is_empty(), "the writer is done with its buffer");
        self.close_frame();
        let start = self.start;
        self.start = self.end();
        self.open_frame = 0;
        std::mem::swap(&mut self.buffer, empty);
        start
    }

    pub(super) fn take_sealed(&mut self) -> Option<Sealed> {
        self.sealed.take()
    }

    pub(super) fn has_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// Lets everything from here on go to `next`, and returns its base and where its frames begin.
    pub(super) fn seal(&mut self, next: Arc<Segment>) -> (u64, u64) {
        debug_assert!(self.sealed.is_none(), "the segment before was written out first");
        let mut bytes = Vec::new();
        let start = self.take(&mut bytes);
        let next_base = self.start;
        self.start += SEGMENT_HEADER_BYTES as u64;
        self.sealed = Some(Sealed { start, bytes, next, next_base });
        (next_base, self.start)
    }
}
