//! One space of the real store: one LSM tree, fed by ingestion only.
//!
//! A write and a merge of the same space never overlap: both create numbered table files, and only while one
//! of them runs alone is it known, when it fails, which files it left behind.

use super::folder::{committed_manifest, remove_tree, retire_tree};
use super::{ColdError, Range, Rows, Visit};
use lsm_tree::compaction::Leveled;
use lsm_tree::config::{
    BlockSizePolicy, BloomConstructionPolicy, FilterPolicy, FilterPolicyEntry, PartitioningPolicy,
    PinningPolicy, RestartIntervalPolicy,
};
use lsm_tree::{AbstractTree, AnyTree, Cache, Config, DescriptorTable, Guard, SeqNo, SequenceNumberCounter};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bits of bloom filter per row: one get in 300 of an absent key reads a block in vain.
const FILTER_BITS_PER_KEY: f32 = 12.0;

/// Bytes of a data block, the unit of reading and caching: one page of the system, some 80 rows.
const BLOCK_BYTES: u32 = 4096;

/// Every how many rows a block has a full key to start searching from; those between are stored as their
/// difference to it. Half of this costs 3 % of disk and made no get measurably faster.
const RESTART_INTERVAL: u8 = 16;

/// Runs of tables (one per write) above the levels that make a merge due.
const RUNS_TO_MERGE: u8 = 4;

/// Size of a table written by a merge. Bounds a merge, and with it how long a write to the same space or a
/// clean stop may wait: the first level is at most `RUNS_TO_MERGE` of these.
const TABLE_BYTES: u64 = 32 * 1024 * 1024;

/// Runs at which a writer merges before it writes. Far below 256, where the count in lsm-tree's manifest
/// would wrap round unnoticed; ingestion itself has no brake.
const RUNS_TO_STALL: usize = 12;
const _: () = assert!(RUNS_TO_STALL > RUNS_TO_MERGE as usize && RUNS_TO_STALL < 128);

/// One space.
pub(super) struct Space {
    name: String,
    /// Tells it from others of the same name.
    number: u64,
    folder: PathBuf,
    tree: AnyTree,
    /// Files of its tables that are open, among those of others. What is removed must be closed here, or its room on disk
    /// stays taken.
    open_tables: Arc<DescriptorTable>,
    /// Next sequence number of the tree. Later writes shadow earlier ones by it.
    sequence: SequenceNumberCounter,
    /// Held by whoever creates or removes files.
    files: Mutex<State>,
    /// Set while this space waits for the compactor.
    pub(super) queued: AtomicBool,
    /// Whether the last reference shall remove the folder.
    dropped: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// What is on disk may be ahead of what is in memory.
    Stopped,
    Dropped,
}

/// What became of a write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Written {
    Durably,
    /// Not at all: the space was dropped meanwhile, and one of the same name must be created.
    SpaceIsGone,
}

/// What spaces share.
pub(super) struct Shared {
    pub(super) cache: Arc<Cache>,
    /// Shared, so that files held open are bounded whatever the number of spaces.
    pub(super) open_tables: Arc<DescriptorTable>,
}

impl Space {
    /// Opens the tree in a folder, creating it when there is none.
    pub(super) fn open(name: &str, number: u64, folder: PathBuf, shared: &Shared) -> Result<Self, ColdError> {
        let sequence = SequenceNumberCounter::default();
        let bloom = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(FILTER_BITS_PER_KEY));
        let tree = Config::new(&folder, sequence.clone(), SequenceNumberCounter::default())
            .use_cache(shared.cache.clone())
            .use_descriptor_table(Some(Arc::clone(&shared.open_tables)))
            .data_block_size_policy(BlockSizePolicy::all(BLOCK_BYTES))
            .data_block_restart_interval_policy(RestartIntervalPolicy::all(RESTART_INTERVAL))
            .filter_policy(FilterPolicy::all(bloom))
            // Filters and indexes in blocks that pass through the cache: memory is bounded by the cache, not
            // by the number of rows.
            .index_block_partitioning_policy(PartitioningPolicy::all(true))
            .filter_block_partitioning_policy(PartitioningPolicy::all(true))
            .index_block_pinning_policy(PinningPolicy::all(false))
            .filter_block_pinning_policy(PinningPolicy::all(false))
            .open()
            .map_err(failed("open", name))?;
        // Above every row found, so that the next write shadows them all.
        sequence.fetch_max(tree.get_highest_seqno().map_or(0, |highest| highest + 1));
        Ok(Self {
            name: name.to_string(),
            number,
            folder,
            tree,
            open_tables: Arc::clone(&shared.open_tables),
            sequence,
            files: Mutex::new(State::Open),
            queued: AtomicBool::new(false),
            dropped: AtomicBool::new(false),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ColdError> {
        let value = self.tree.get(key, SeqNo::MAX).map_err(failed("read", &self.name))?;
        // A copy, because the slice would keep its whole block in memory.
        Ok(value.map(|value| value.to_vec()))
    }

    pub(super) fn scan(&self, range: Range<'_>, visit: &mut Visit<'_>) -> Result<(), ColdError> {
        // The iterator holds the list of tables it was created with, so a write or merge meanwhile is not
        // seen.
        for row in self.tree.range::<&[u8], _>(range, SeqNo::MAX, None) {
            let (key, value) = row.into_inner().map_err(failed("scan", &self.name))?;
            if visit(&key, &value).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Writes sorted rows, at least one, as one run of tables.
    pub(super) fn write(&self, rows: &Rows) -> Result<Written, ColdError> {
        let mut state = self.files.lock();
        match *state {
            State::Open => {}
            State::Stopped => return Err(ColdError::Stopped(self.name.clone())),
            State::Dropped => return Ok(Written::SpaceIsGone),
        }
        while self.tree.l0_run_count() >= RUNS_TO_STALL && self.merge_once(&mut state)? {}
        let first_table = self.tree.next_table_id();
        match self.ingest(rows) {
            Ok(()) => {
                self.forget_old_versions();
                Ok(Written::Durably)
            }
            Err(error) => Err(self.clean_up(&mut state, first_table, failed("write", &self.name)(error))),
        }
    }

    fn ingest(&self, rows: &Rows) -> lsm_tree::Result<()> {
        let mut ingestion = self.tree.ingestion()?;
        for (key, value) in rows.iter() {
            match value {
                Some(value) => ingestion.write(key, value)?,
                None => ingestion.write_tombstone(key)?,
            }
        }
        ingestion.finish()
    }

    /// Does the most urgent merge. Says whether there was one.
    pub(super) fn merge(&self) -> Result<bool, ColdError> {
        let mut state = self.files.lock();
        match *state {
            State::Open => self.merge_once(&mut state),
            State::Stopped | State::Dropped => Ok(false),
        }
    }

    fn merge_once(&self, state: &mut State) -> Result<bool, ColdError> {
        let strategy =
            Leveled::default().with_l0_threshold(RUNS_TO_MERGE).with_table_target_size(TABLE_BYTES);
        let first_table = self.tree.next_table_id();
        let version = self.tree.current_version().id();
        // Nobody reads at an older sequence number, so every row that is shadowed now can go.
        match self.tree.compact(Arc::new(strategy), self.sequence.get()) {
            Ok(()) => {
                self.forget_old_versions();
                Ok(self.tree.current_version().id() != version)
            }
            Err(error) => Err(self.clean_up(state, first_table, failed("merge", &self.name)(error))),
        }
    }

    /// Lets go of all lists of tables but the latest. The tree keeps the one before it, and so would keep the
    /// tables that went into a merge on disk until the next merge. A scan that still reads them keeps them by
    /// itself.
    fn forget_old_versions(&self) {
        if let Err(error) =
            self.tree.get_version_history_lock().maintenance(&self.folder, self.sequence.get())
        {
            tracing::debug!(space = self.name, %error, "an old manifest stays until the next start");
        }
    }

    /// Removes the table files of a failed write or merge, which would take room until the next start, at the
    /// time when room may be what is missing. Returns the error to report.
    fn clean_up(&self, state: &mut State, first_table: u64, error: ColdError) -> ColdError {
        let version = self.tree.current_version();
        if committed_manifest(&self.folder).ok() != Some(version.id()) {
            tracing::error!(space = self.name, %error, "commit failed half-way; the space takes no more writes");
            *state = State::Stopped;
            return ColdError::Stopped(self.name.clone());
        }
        let live: BTreeSet<u64> = version.iter_tables().map(|table| table.id()).collect();
        for table in (first_table..self.tree.next_table_id()).filter(|table| !live.contains(table)) {
            // Absent when the writer got no further than its number; anything else is found at the next
            // start.
            let _ = std::fs::remove_file(self.folder.join("tables").join(table.to_string()));
            self.close_table(table);
        }
        error
    }

    fn close_table(&self, table: u64) {
        self.open_tables.remove_for_table(&(self.tree.id(), table).into());
    }

    /// Drops the space: durable when it returns. The files go with the last reference.
    pub(super) fn retire(&self) -> Result<(), ColdError> {
        let mut state = self.files.lock();
        retire_tree(&self.folder)?;
        *state = State::Dropped;
        self.dropped.store(true, Ordering::Release);
        Ok(())
    }

    pub(super) fn has_tables(&self) -> bool {
        self.tree.table_count() > 0
    }

    /// Tables, rows and bytes.
    pub(super) fn sizes(&self) -> (u64, u64, u64) {
        (self.tree.table_count() as u64, self.tree.approximate_len() as u64, self.tree.disk_space())
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        if !self.dropped.load(Ordering::Acquire) {
            return;
        }
        self.tree.current_version().iter_tables().for_each(|table| self.close_table(table.id()));
        if let Err(error) = remove_tree(&self.folder) {
            tracing::warn!(space = self.name, %error, "files of a dropped space stay until the next start");
        }
    }
}

/// Turns an error of the tree into one of ours, for `map_err`.
fn failed<'a>(action: &'a str, space: &'a str) -> impl FnOnce(lsm_tree::Error) -> ColdError + 'a {
    move |error| {
        let action = format!("{action} space {space}");
        match error {
            lsm_tree::Error::Io(error) => ColdError::from_io(action, error),
            lsm_tree::Error::InvalidVersion(version) => ColdError::Format(format!(
                "{action}: tables of version {version}, which this program does not know"
            )),
            lsm_tree::Error::ChecksumMismatch { .. } => {
                ColdError::Damaged(format!("{action}: a block of a table does not match its checksum"))
            }
            lsm_tree::Error::Unrecoverable => {
                ColdError::Damaged(format!("{action}: tables are missing or not readable"))
            }
            other => ColdError::Damaged(format!("{action}: {other}")),
        }
    }
}

/// The folder of a space that could not be created, removed again as far as possible.
pub(super) fn discard(folder: &Path) {
    if let Err(error) = remove_tree(folder) {
        tracing::debug!(folder = %folder.display(), %error, "left for the next start");
    }
}
