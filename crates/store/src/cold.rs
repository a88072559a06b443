//! The cold store: rows of bytes on disk, ordered by key, in named spaces.
//!
//! It is written in whole checkpoints and read a row or a range at a time. The trait [`ColdStore`] is narrow
//! on purpose: one sorted write that is atomic and durable when it returns, and no transactions, snapshots or
//! single-row writes, because the log in front of it already does that work.
//!
//! | file | what lives there |
//! |---|---|
//! | `rows.rs` | [`Rows`], the buffer a checkpoint is gathered in |
//! | `lsm.rs` | [`LsmStore`], the real store, and why it is built the way it is |
//! | `space.rs` | one space of it: one LSM tree, its writes, merges and clean-up after failures |
//! | `compactor.rs` | the thread that merges tables behind the writes |
//! | `folder.rs` | the layout of the folder: format marker, lock, names |
//! | `model.rs` | [`ModelStore`], the simulated store, which crashes when told to |

use std::io;
use std::ops::{Bound, ControlFlow};
use std::path::PathBuf;

mod compactor;
mod folder;
mod lsm;
mod model;
mod rows;
mod space;

pub use lsm::{ColdOptions, LsmStore, OPEN_TABLES_MAX_DEFAULT};
pub use model::ModelStore;
pub use rows::Rows;

/// Longest key in bytes: the table format stores the length in 16 bits.
pub const KEY_BYTES_MAX: usize = u16::MAX as usize;

/// Longest value in bytes. The format allows 4 GiB; a row this large is a mistake of the caller, and a block
/// holds at least one row whole in memory.
pub const VALUE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Longest name of a space. It becomes the name of a folder, with a generation behind it.
pub const SPACE_NAME_BYTES_MAX: usize = 64;

/// Called for each row of a scan, with key and value; `Break` ends the scan.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// The two ends of a scan.
type Range<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// Ordered rows on disk, in named spaces.
///
/// Readers and writers of any spaces may run at the same time. A reader sees the state between two writes,
/// never a part of one.
pub trait ColdStore: Send + Sync {
    /// The names of all spaces that hold rows, in order. A space without rows may or may not be among them.
    fn spaces(&self) -> Result<Vec<String>, ColdError>;

    /// The value of one row. A space that does not exist reads as empty.
    fn get(&self, space: &str, key: &[u8]) -> Result<Option<Vec<u8>>, ColdError>;

    /// Visits the rows between two bounds in ascending order of keys, all as of one moment.
    fn scan(
        &self,
        space: &str,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: &mut Visit<'_>,
    ) -> Result<(), ColdError>;

    /// Writes all rows or none, creating the space when it is missing. The rows must be sorted (see
    /// [`Rows::sort`]). After `Ok` they survive a power loss; after a crash in the middle they are all there
    /// or none is; after an error other than [`ColdError::Stopped`] none is.
    fn write(&self, space: &str, rows: &Rows) -> Result<(), ColdError>;

    /// Removes a space with all its rows, without reading them. Durable when it returns; a space that does
    /// not exist is removed already. Waits for a write or merge that is running in this space.
    fn drop_space(&self, space: &str) -> Result<(), ColdError>;

    /// What the store holds and does, for metrics.
    fn stats(&self) -> ColdStats;

    /// How many rows lie in the spaces whose names begin so, and how many bytes they take; about, as in [`ColdStats`].
    fn sizes(&self, prefix: &str) -> (u64, u64);
}

/// What a store holds and does. Sizes are approximate: they count rows that later ones have replaced until a
/// merge removes them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ColdStats {
    /// Spaces that exist.
    pub spaces: u64,
    /// Rows stored, deletions and replaced rows included.
    pub rows: u64,
    /// Bytes of rows on disk.
    pub disk_bytes: u64,
    /// Table files.
    pub tables: u64,
    /// Bytes in the cache of blocks.
    pub cache_bytes: u64,
    /// Merges of tables completed since the store was opened.
    pub merges: u64,
    /// Merges that failed since the store was opened; they are tried again after the next write to the space.
    pub merge_failures: u64,
}

/// Why the cold store could not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum ColdError {
    /// The system refused. Nothing of the write it happened in is stored.
    #[error("cold store: {action}: {source}")]
    Io {
        /// What was being done, with the path.
        action: String,
        /// What the system said.
        source: io::Error,
    },
    /// No room. Nothing of the write is stored, and everything before it still is.
    #[error("cold store: disk full: {action}: {source}; rows stored before are intact")]
    Full {
        /// What was being done, with the path.
        action: String,
        /// What the system said.
        source: io::Error,
    },
    /// Bytes on disk are not what was written.
    #[error("the cold store is damaged: {0}; restore the data folder from a backup")]
    Damaged(String),
    /// The folder is not a cold store, or one of a version this program does not know.
    #[error("cold store: {0}: start the version of quipu that wrote it, or export there and import here")]
    Format(String),
    /// Another process has the folder open.
    #[error("cold store: {} is in use by another process", .0.display())]
    Locked(PathBuf),
    /// The caller broke a rule of this interface.
    #[error("cold store: refused: {0}")]
    Refused(String),
    /// This write, or an earlier one to the same space, failed at the moment of commit, so that what a
    /// restart would find is not known. Nothing more is written to the space until the store is opened again.
    #[error("cold store: space {0} stopped by a failed commit; restart to find out what is stored")]
    Stopped(String),
}

impl ColdError {
    /// An error of the system, told apart by what the caller can do about it.
    pub(crate) fn from_io(action: impl Into<String>, source: io::Error) -> Self {
        use io::ErrorKind::{FileTooLarge, InvalidData, NotFound, QuotaExceeded, StorageFull, UnexpectedEof};
        let action = action.into();
        match source.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => Self::Full { action, source },
            // Every file the store looks for is one it wrote and synced before naming it.
            NotFound | UnexpectedEof | InvalidData => Self::Damaged(format!("{action}: {source}")),
            _ => Self::Io { action, source },
        }
    }
}

/// Refuses names that would not be safe as the name of a folder, or could be taken for another.
fn check_space_name(name: &str) -> Result<(), ColdError> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
    let starts_well = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if starts_well && name.len() <= SPACE_NAME_BYTES_MAX && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(ColdError::Refused(format!(
        "{name:?} is not a name of a space: 1 to {SPACE_NAME_BYTES_MAX} of a-z 0-9 . - _, a letter or digit first"
    )))
}

/// The same range in bounds that every implementation accepts, or `None` when no key can be in it.
fn normal_range<'a>(from: Bound<&'a [u8]>, to: Bound<&'a [u8]>) -> Option<Range<'a>> {
    use Bound::{Excluded, Included, Unbounded};
    // No key is empty and none is longer than the longest, so such bounds can be moved to where keys are.
    let from = match from {
        Included([]) | Excluded([]) => Unbounded,
        Included(key) | Excluded(key) if key.len() > KEY_BYTES_MAX => Excluded(&key[..KEY_BYTES_MAX]),
        other => other,
    };
    let to = match to {
        Included([]) | Excluded([]) => return None,
        Included(key) | Excluded(key) if key.len() > KEY_BYTES_MAX => Included(&key[..KEY_BYTES_MAX]),
        other => other,
    };
    let holds_a_key = match (from, to) {
        (Included(low), Included(high)) => low <= high,
        (Included(low) | Excluded(low), Excluded(high)) | (Excluded(low), Included(high)) => low < high,
        _ => true,
    };
    holds_a_key.then_some((from, to))
}
