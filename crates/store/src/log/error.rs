//! What can go wrong with the log, told apart by what the caller has to do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Every failure of the log. Cheap to clone: one failed sync answers many waiters.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LogError {
    /// A write or sync failed. Nobody knows what of it reached the disk, so nothing more is acknowledged
    /// until the process starts again and reads what is there.
    #[error("the log stopped after a failed write: {0}; restart to recover what was acknowledged")]
    Poisoned(Arc<str>),

    /// The current segment has no room left and there is no space for the next one.
    #[error(
        "no space left for the log ({0}); free some space: nothing acknowledged was lost, and writing goes \
         on by itself once there is room"
    )]
    Full(Arc<str>),

    /// Bytes that were durable once are not readable any more. Never skipped, never repaired by guessing.
    #[error(
        "the log is damaged: {}, byte {offset}: {what}; restore the data folder from a backup",
        file.display()
    )]
    Damage {
        /// The damaged file.
        file: PathBuf,
        /// Where in that file, in bytes.
        offset: u64,
        /// What was found there.
        what: String,
    },

    /// A file of a format this program does not know.
    #[error(
        "{} has log format {found} and this program reads {supported}: start the version of quipu that wrote \
         it, or export there and import here",
        file.display()
    )]
    Version {
        /// The file.
        file: PathBuf,
        /// Version and feature bits in the file.
        found: String,
        /// Version and feature bits known here.
        supported: String,
    },

    /// Another process has the folder open.
    #[error("{} is in use by another process", .0.display())]
    Locked(PathBuf),

    /// The record is larger than any segment takes, or larger than what the appender reserved.
    #[error("a record of {bytes} bytes does not fit: the limit here is {limit}")]
    TooLarge {
        /// Asked for.
        bytes: usize,
        /// Possible.
        limit: usize,
    },

    /// Somebody waits for an offset that no append returned.
    #[error("offset {offset} is beyond the end of the log at {end}")]
    BeyondEnd {
        /// Asked for.
        offset: u64,
        /// The end of the last record.
        end: u64,
    },

    /// The log was dropped while somebody waited for it.
    #[error("the log was closed")]
    Closed,

    /// Options that cannot work.
    #[error("log options: {0}")]
    Options(String),

    /// The reader of the records, at start, cannot make sense of one. Made by callers of
    /// [`Log::open`](super::Log::open).
    #[error("a record of the log is not understood: {0}")]
    Record(String),

    /// The file system refused, where nothing was lost by it.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The reason.
        source: Arc<io::Error>,
    },
}

impl LogError {
    /// For `map_err`: names the operation and the file, and tells a full disk apart.
    pub(super) fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LogError {
        move |source| {
            use io::ErrorKind::{QuotaExceeded, StorageFull};
            if matches!(source.kind(), StorageFull | QuotaExceeded) {
                LogError::Full(format!("cannot {what} {}: {source}", path.display()).into())
            } else {
                LogError::Io { what, path: path.to_path_buf(), source: Arc::new(source) }
            }
        }
    }
}
