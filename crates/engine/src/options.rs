//! What the owner of an engine chooses, and why an engine may refuse to open.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use quipu_store::cold::{ColdError, OPEN_TABLES_MAX_DEFAULT};
use quipu_store::{Durability, LogError, LogOptions};

/// Says what time it is, UTC milliseconds. The keeper's expiry goes by it; requests bring their own time.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Choices that hold while the engine is open.
#[derive(Clone)]
pub struct Options {
    /// When a change counts as done.
    pub durability: Durability,
    /// Memory for counters and request ids. Counters beyond it live on disk. Other parts of the process (the
    /// cold store's cache, buffers of connections) come on top, in all some tens of MiB.
    pub memory_bytes: u64,
    /// Number of partitions of a new folder, a power of two; an existing folder keeps its own.
    pub partitions: u16,
    /// How long request ids are remembered.
    pub id_window_ms: u64,
    /// How much log may lie behind the oldest checkpoint; bounds the time of a restart.
    pub log_tail_bytes: u64,
    /// Requests that may wait for the disk at the same time; more are refused as busy. Each takes about 250 bytes.
    pub pending_requests_max: usize,
    /// How long one may wait for its turn before it is refused as busy.
    pub pending_wait_ms: u64,
    /// Tables of the cold store that may be held open; each is a file descriptor.
    pub open_tables_max: usize,
    /// Whether hot keys are found. It costs next to nothing; without it, that can be measured.
    pub finds_hot_keys: bool,
    /// Sizes of the log.
    pub log: LogOptions,
    /// The clock of the keeper; by default the system's.
    pub clock: Clock,
    /// Where the secrets of a new folder and the seed of the hash come from; `None` for the system's source.
    pub entropy: Option<[u8; 40]>,
}

/// Smallest memory budget.
pub const MEMORY_BYTES_MIN: u64 = 32 << 20;
/// Smallest memory budget of one partition: a chunk to fill, one to sweep, and some to serve from.
const PARTITION_BYTES_MIN: u64 = 2 << 20;
/// Shortest time to remember request ids: slices of it are not shorter than a second.
pub const ID_WINDOW_MS_MIN: u64 = 1_000;

/// The least memory that a folder with so many partitions needs.
pub fn memory_bytes_min(partitions: u16) -> u64 {
    MEMORY_BYTES_MIN.max(PARTITION_BYTES_MIN * u64::from(partitions))
}

impl Default for Options {
    fn default() -> Options {
        Options {
            durability: Durability::Sync,
            memory_bytes: 1 << 30,
            partitions: 16,
            id_window_ms: 24 * 3_600_000,
            log_tail_bytes: 128 << 20,
            pending_requests_max: 200_000,
            pending_wait_ms: 1_000,
            open_tables_max: OPEN_TABLES_MAX_DEFAULT,
            finds_hot_keys: true,
            log: LogOptions::default(),
            clock: Arc::new(system_time_ms),
            entropy: None,
        }
    }
}

fn system_time_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Why an engine did not open. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An option that cannot work.
    #[error("{0}")]
    Options(String),
    /// Somebody else has the folder.
    #[error("the data folder {} is in use by another process; stop it, or choose another folder with --data", .0.display())]
    Locked(PathBuf),
    /// The folder was written by another version.
    #[error("the data folder {} has format {found} and this program reads {supported}; use the version of quipu that wrote it", path.display())]
    Version {
        /// The folder.
        path: PathBuf,
        /// Its format.
        found: String,
        /// Ours.
        supported: u32,
    },
    /// The folder is not ours or is damaged.
    #[error("the data folder {} is damaged: {what}; restore it from a backup", path.display())]
    Damaged {
        /// The folder or file.
        path: PathBuf,
        /// What was found.
        what: String,
    },
    /// The file system refused.
    #[error("cannot use {}: {source}; the data folder (--data) must be a folder that quipu may write to", path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// There is no room to begin.
    #[error("there is no room for the data folder: {0}; free some space and start again, nothing was lost")]
    Full(String),
    /// The log refused.
    #[error(transparent)]
    Log(LogError),
    /// The cold store refused.
    #[error(transparent)]
    Cold(ColdError),
}

impl OpenError {
    /// Whether bytes of the folder are not what was written, so that only another copy of it helps.
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            OpenError::Damaged { .. }
                | OpenError::Log(LogError::Damage { .. })
                | OpenError::Cold(ColdError::Damaged(_))
        )
    }

    /// An error of the file system, told apart by what the operator can do about it.
    pub(crate) fn io(path: &Path, source: std::io::Error) -> OpenError {
        use std::io::ErrorKind::{QuotaExceeded, StorageFull};
        match source.kind() {
            StorageFull | QuotaExceeded => OpenError::Full(format!("{}: {source}", path.display())),
            _ => OpenError::Io { path: path.to_path_buf(), source },
        }
    }
}

impl From<LogError> for OpenError {
    fn from(error: LogError) -> OpenError {
        match error {
            LogError::Full(what) => OpenError::Full(what.to_string()),
            other => OpenError::Log(other),
        }
    }
}

impl From<ColdError> for OpenError {
    fn from(error: ColdError) -> OpenError {
        match error {
            ColdError::Full { action, source } => OpenError::Full(format!("cannot {action}: {source}")),
            other => OpenError::Cold(other),
        }
    }
}
