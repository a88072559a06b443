//! The real cold store: one LSM tree of the `lsm-tree` crate per space, fed by bulk ingestion.
//!
//! # Why ingestion
//! A checkpoint is already durable in our log and already sorted, so it needs neither a second log nor a
//! memtable. Read from the sources of lsm-tree 3.1.10:
//! - *Atomic.* All tables of an ingestion enter the tree with one new manifest, and a manifest counts once
//!   the file `current` has been renamed over. A crash before that leaves files nobody names, removed at the
//!   next open.
//! - *Durable.* Each table is synced, then its folder; then the manifest and its folder; then `current` is
//!   written aside, synced, renamed, and the folder synced. All before `finish` returns.
//! - *Overlap and deletions.* An ingestion becomes the newest run of level 0 with a sequence number of its
//!   own, so it may overlap anything and may hold tombstones. Keys must ascend strictly or it panics:
//!   [`Rows`] are checked.
//!
//! What it does not do, done here: the folder *above* a new tree is synced; files of a failed ingestion are
//! removed at once; writers are held back when merges fall behind; the manifest is compared with its
//! checksum; empty and overlong keys, on which it panics, are refused.
//!
//! # Why not fjall
//! fjall is the database built on these trees. What it adds (a journal, memtables, transactions) is not
//! needed, and three things in 3.1.13 do harm: the sequence counter of its list of keyspaces is not restored
//! at open, so a keyspace created after "drop one, reopen" can lose against the old tombstone and *is
//! deleted* at a later open; a merge that fails once (full disk) ends merging until a restart while ingestion
//! goes on; and with two or more workers one of them spins while another merges.
//!
//! # Memory
//! Filters and indexes are split into blocks of 4 KiB that pass through one cache with the data blocks; in
//! memory for good is one entry per such block. There are no memtables.

use super::compactor::Compactor;
use super::folder::{Folder, check_tree};
use super::space::{Shared, Space, Written, discard};
use super::{ColdError, ColdStats, ColdStore, KEY_BYTES_MAX, Rows, Visit, check_space_name, normal_range};
use lsm_tree::{Cache, DescriptorTable};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

/// Limits of a store.
#[derive(Debug, Clone, Copy)]
pub struct ColdOptions {
    /// Memory for blocks of data, indexes and filters. Filters and indexes take about 2 bytes a row; a store
    /// works with less than that, and then reads more.
    pub cache_bytes: u64,
    /// Table files that all spaces together may hold open for reading. Merges and writes open some more.
    pub open_tables_max: usize,
}

/// Tables held open unless told otherwise: some 24 GiB of rows. Opening one anew costs less than reading a block of it.
pub const OPEN_TABLES_MAX_DEFAULT: usize = 768;

impl Default for ColdOptions {
    fn default() -> Self {
        Self { cache_bytes: 16 * 1024 * 1024, open_tables_max: OPEN_TABLES_MAX_DEFAULT }
    }
}

/// A cold store in a folder of the file system.
pub struct LsmStore {
    // Fields drop in this order: the thread ends before the trees close, and the lock is freed last.
    compactor: Compactor,
    /// Held for a lookup only, never while a space works.
    spaces: RwLock<BTreeMap<String, Arc<Space>>>,
    /// Number for the next space. Locked while a space is created or dropped, one at a time.
    next_number: Mutex<u64>,
    shared: Shared,
    folder: Folder,
}

impl LsmStore {
    /// Whether there is a store in the folder, as far as its marker tells.
    pub fn is_at(path: impl AsRef<Path>) -> bool {
        Folder::is_at(path.as_ref())
    }

    /// Opens the store in a folder, creating it when there is none. Reads a few blocks of each table, not the
    /// rows.
    pub fn open(path: impl AsRef<Path>, options: ColdOptions) -> Result<Self, ColdError> {
        let folder = Folder::open(path.as_ref())?;
        let shared = Shared {
            cache: Arc::new(Cache::with_capacity_bytes(options.cache_bytes)),
            open_tables: Arc::new(DescriptorTable::new(options.open_tables_max)),
        };
        let compactor =
            Compactor::start().map_err(|error| ColdError::from_io("start the merging thread", error))?;
        let mut spaces = BTreeMap::new();
        let mut next_number = 0;
        for (name, (number, path)) in folder.spaces()? {
            check_tree(&path)?;
            let space = Arc::new(Space::open(&name, number, path, &shared)?);
            next_number = next_number.max(number + 1);
            if space.has_tables() {
                compactor.enqueue(&space);
                spaces.insert(name, space);
            } else {
                // Left empty by a first write that did not finish, or by deletions.
                folder.strike_name(&name, number)?;
                space.retire()?;
            }
        }
        Ok(Self {
            compactor,
            spaces: RwLock::new(spaces),
            next_number: Mutex::new(next_number),
            shared,
            folder,
        })
    }

    /// Does all merges that are due, and returns when none is: for measuring, and before a folder is copied.
    pub fn merge_all(&self) -> Result<(), ColdError> {
        let spaces: Vec<_> = self.spaces.read().values().cloned().collect();
        for space in spaces {
            while space.merge()? {}
        }
        Ok(())
    }

    fn find(&self, name: &str) -> Option<Arc<Space>> {
        self.spaces.read().get(name).cloned()
    }

    fn find_or_create(&self, name: &str) -> Result<Arc<Space>, ColdError> {
        if let Some(space) = self.find(name) {
            return Ok(space);
        }
        check_space_name(name)?;
        let mut next_number = self.next_number.lock();
        if let Some(space) = self.find(name) {
            return Ok(space);
        }
        let number = *next_number;
        let path = self.folder.space(name, number);
        // Never used twice, not even after a failure.
        *next_number += 1;
        let created = Space::open(name, number, path.clone(), &self.shared).and_then(|space| {
            self.folder.sync_names()?;
            self.folder.enter_name(name, number)?;
            Ok(Arc::new(space))
        });
        let space = created.inspect_err(|_| {
            // Only in this order: an empty space is of no harm, a name without a space is.
            if self.folder.strike_name(name, number).is_ok() {
                discard(&path);
            }
        })?;
        self.spaces.write().insert(name.to_string(), space.clone());
        Ok(space)
    }
}

impl ColdStore for LsmStore {
    fn spaces(&self) -> Result<Vec<String>, ColdError> {
        Ok(self.spaces.read().keys().cloned().collect())
    }

    fn get(&self, space: &str, key: &[u8]) -> Result<Option<Vec<u8>>, ColdError> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Ok(None);
        }
        self.find(space).map_or(Ok(None), |space| space.get(key))
    }

    fn scan(
        &self,
        space: &str,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: &mut Visit<'_>,
    ) -> Result<(), ColdError> {
        let Some(range) = normal_range(from, to) else { return Ok(()) };
        self.find(space).map_or(Ok(()), |space| space.scan(range, visit))
    }

    fn write(&self, space: &str, rows: &Rows) -> Result<(), ColdError> {
        rows.check_sorted()?;
        check_space_name(space)?;
        if rows.is_empty() {
            return Ok(());
        }
        loop {
            let space = self.find_or_create(space)?;
            if space.write(rows)? == Written::Durably {
                self.compactor.enqueue(&space);
                return Ok(());
            }
        }
    }

    fn drop_space(&self, space: &str) -> Result<(), ColdError> {
        let _one_at_a_time = self.next_number.lock();
        let Some(found) = self.find(space) else { return Ok(()) };
        self.folder.strike_name(space, found.number())?;
        found.retire()?;
        self.spaces.write().remove(space);
        Ok(())
    }

    fn stats(&self) -> ColdStats {
        let spaces: Vec<_> = self.spaces.read().values().cloned().collect();
        let (merges, merge_failures) = self.compactor.counts();
        let mut stats = ColdStats {
            spaces: spaces.len() as u64,
            cache_bytes: self.shared.cache.size(),
            merges,
            merge_failures,
            ..ColdStats::default()
        };
        for space in spaces {
            let (tables, rows, disk_bytes) = space.sizes();
            stats.tables += tables;
            stats.rows += rows;
            stats.disk_bytes += disk_bytes;
        }
        stats
    }

    fn sizes(&self, prefix: &str) -> (u64, u64) {
        let spaces = self.spaces.read();
        let sizes =
            spaces.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, space)| space.sizes());
        sizes.fold((0, 0), |(rows, bytes), (_, more_rows, more_bytes)| (rows + more_rows, bytes + more_bytes))
    }
}
