//! What the operator chooses: when a change is durable, and the sizes of the log.

use std::fmt;
use std::str::FromStr;

use super::LogError;
use super::frame::{FRAME_ALIGN_BYTES, RECORD_BYTES_MAX, RECORD_OVERHEAD_BYTES_MAX};
use super::segment::SEGMENT_HEADER_BYTES;

/// Smaller segments would be all header. Tests use this size.
pub const SEGMENT_BYTES_MIN: u64 = 4 << 10;

/// Recovery reads one segment as a whole into memory.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// When a change may be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// After it is on disk.
    Sync,
    /// At once; everything is on disk at the latest this much later.
    Interval {
        /// Milliseconds between two syncs.
        ms: u64,
    },
    /// At once; the operating system writes when it likes.
    None,
}

impl FromStr for Durability {
    type Err = LogError;

    fn from_str(text: &str) -> Result<Durability, LogError> {
        let interval = text.strip_prefix("interval:").and_then(|ms| ms.parse().ok());
        match (text, interval) {
            ("sync", _) => Ok(Durability::Sync),
            ("none", _) => Ok(Durability::None),
            (_, Some(ms @ 1..)) => Ok(Durability::Interval { ms }),
            _ => {
                let expected = "expected sync, interval:<milliseconds from 1> or none";
                Err(LogError::Options(format!("durability {text:?}: {expected}")))
            }
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Durability::Sync => out.write_str("sync"),
            Durability::Interval { ms } => write!(out, "interval:{ms}"),
            Durability::None => out.write_str("none"),
        }
    }
}

/// Sizes of the log.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// The size of a segment file, allocated ahead as a whole. An existing segment keeps its size.
    pub segment_bytes: u64,
    /// Bytes waiting to be written above which [`Log::appender`](super::Log::appender) waits for the disk.
    pub buffer_limit_bytes: u64,
    /// Whether new segments are filled with zeros. A sync of bytes written over others takes half the time of one that
    /// also has to note where they lie; who syncs rarely saves the writing.
    pub prewrites: bool,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions { segment_bytes: 64 << 20, buffer_limit_bytes: 8 << 20, prewrites: true }
    }
}

impl LogOptions {
    /// Refuses sizes that cannot work.
    pub(super) fn check(&self) -> Result<(), LogError> {
        if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&self.segment_bytes) {
            let range = format!("between {SEGMENT_BYTES_MIN} and {SEGMENT_BYTES_MAX}");
            return Err(LogError::Options(format!("segment_bytes {} is not {range}", self.segment_bytes)));
        }
        if !self.segment_bytes.is_multiple_of(FRAME_ALIGN_BYTES as u64) {
            let unit = FRAME_ALIGN_BYTES;
            return Err(LogError::Options(format!("segment_bytes is not a multiple of {unit}")));
        }
        Ok(())
    }

    /// The largest record these sizes allow: it has to fit into an empty segment.
    pub(super) fn record_bytes_max(&self) -> usize {
        let overhead =
            SEGMENT_HEADER_BYTES as u64 + RECORD_OVERHEAD_BYTES_MAX as u64 + spare_bytes(self.segment_bytes);
        (self.segment_bytes - overhead).min(RECORD_BYTES_MAX as u64) as usize
    }
}

/// What is kept of a segment for what must be said before others can be freed: where a log has filled its disk by itself, that has to go on.
pub(super) const fn spare_bytes(segment_bytes: u64) -> u64 {
    let share = segment_bytes / 64;
    if share < SPARE_BYTES_MAX { share } else { SPARE_BYTES_MAX }
}

const SPARE_BYTES_MAX: u64 = 64 << 10;

const _: () = assert!(SEGMENT_BYTES_MIN as usize > SEGMENT_HEADER_BYTES + RECORD_OVERHEAD_BYTES_MAX);
const _: () = assert!(SEGMENT_BYTES_MIN.is_multiple_of(FRAME_ALIGN_BYTES as u64));
const _: () = assert!(RECORD_BYTES_MAX as u64 <= SEGMENT_BYTES_MAX / 2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durability_reads_as_it_prints() {
        let table = [
            ("sync", Durability::Sync),
            ("interval:20", Durability::Interval { ms: 20 }),
            ("none", Durability::None),
        ];
        for (text, durability) in table {
            assert_eq!(text.parse::<Durability>().unwrap(), durability);
            assert_eq!(durability.to_string(), text);
        }
        for text in ["", "Sync", "interval", "interval:", "interval:0", "interval:-1", "interval:1s", "fsync"]
        {
            assert!(text.parse::<Durability>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_that_cannot_work_are_refused() {
        let table =
            [(64 << 20, true), (SEGMENT_BYTES_MIN, true), (0, false), (8192 + 4, false), (2 << 30, false)];
        for (segment_bytes, accepted) in table {
            let options = LogOptions { segment_bytes, ..LogOptions::default() };
            assert_eq!(options.check().is_ok(), accepted, "{segment_bytes}");
        }
    }
}
