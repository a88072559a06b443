//! Everything a simulated disk consists of: files, names, and what was planned to go wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::inode::{Inode, Survival};

#[derive(Clone)]
pub(super) struct World {
    pub(super) random: StdRng,
    pub(super) inodes: BTreeMap<u64, Inode>,
    pub(super) next_inode: u64,
    /// The names processes see.
    pub(super) names: BTreeMap<PathBuf, u64>,
    /// The names that survive a crash for certain.
    pub(super) durable_names: BTreeMap<PathBuf, u64>,
    /// What leads from the durable names to the visible ones, in order.
    pub(super) unsynced_names: Vec<FolderOperation>,
    /// Handles of an earlier life answer with errors.
    pub(super) life: u64,
    pub(super) operations: u64,
    /// The operation number at which the world stops.
    pub(super) stop_at: Option<u64>,
    /// Syncs of files to go until one fails.
    pub(super) syncs_until_failure: Option<u64>,
    pub(super) capacity_bytes: Option<u64>,
}

#[derive(Clone)]
pub(super) enum FolderOperation {
    Create { path: PathBuf, inode: u64 },
    Rename { from: PathBuf, to: PathBuf },
    Remove { path: PathBuf },
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        World {
            random: StdRng::seed_from_u64(seed),
            inodes: BTreeMap::new(),
            next_inode: 1,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            unsynced_names: Vec::new(),
            life: 0,
            operations: 0,
            stop_at: None,
            syncs_until_failure: None,
            capacity_bytes: None,
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop_at.is_some_and(|stop_at| self.operations > stop_at)
    }

    pub(super) fn check_alive(&self) -> io::Result<()> {
        if self.is_stopped() { Err(io::Error::other("the simulated machine is down")) } else { Ok(()) }
    }

    /// Counts one operation and performs it; the one that reaches the stop is performed and then fails.
    pub(super) fn operate<T>(
        &mut self,
        operation: impl FnOnce(&mut World) -> io::Result<T>,
    ) -> io::Result<T> {
        self.check_alive()?;
        self.operations += 1;
        let result = operation(self);
        self.check_alive()?;
        result
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.names.values().filter_map(|id| self.inodes.get(id)).map(|inode| inode.cached.len() as u64).sum()
    }

    pub(super) fn check_room(&self, growth: u64) -> io::Result<()> {
        match self.capacity_bytes {
            Some(capacity) if growth > 0 && self.used_bytes() + growth > capacity => {
                Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on the simulated disk"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn lookup(&self, path: &Path) -> io::Result<u64> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, format!("no file {}", path.display()));
        self.names.get(path).copied().ok_or_else(missing)
    }

    pub(super) fn change_names(&mut self, operation: FolderOperation) {
        operation.apply(&mut self.names);
        self.unsynced_names.push(operation);
    }

    /// Decides which folder operations survive: a prefix, as a journal keeps them, or any that still make
    /// sense.
    pub(super) fn settle_names(&mut self, survival: Survival) {
        let operations = std::mem::take(&mut self.unsynced_names);
        let kept = self.random.random_range(0..=operations.len());
        let in_order: bool = self.random.random();
        for (index, operation) in operations.into_iter().enumerate() {
            let survives = match survival {
                Survival::Nothing => false,
                Survival::Everything => true,
                Survival::Chance if in_order => index < kept,
                Survival::Chance => self.random.random(),
            };
            if survives {
                operation.apply(&mut self.durable_names);
            }
        }
        self.names.clone_from(&self.durable_names);
    }

    pub(super) fn begin_life(&mut self) {
        self.life += 1;
        self.stop_at = None;
        self.syncs_until_failure = None;
        let created = self.unsynced_names.iter().filter_map(|operation| match operation {
            FolderOperation::Create { inode, .. } => Some(inode),
            _ => None,
        });
        let named: BTreeSet<u64> =
            self.names.values().chain(self.durable_names.values()).chain(created).copied().collect();
        self.inodes.retain(|id, _| named.contains(id));
    }
}

impl FolderOperation {
    pub(super) fn folder(&self) -> Option<&Path> {
        match self {
            FolderOperation::Create { path, .. } | FolderOperation::Remove { path } => path.parent(),
            FolderOperation::Rename { to, .. } => to.parent(),
        }
    }

    /// Does what still makes sense: a rename whose source never came to be is nothing.
    pub(super) fn apply(&self, names: &mut BTreeMap<PathBuf, u64>) {
        match self {
            FolderOperation::Create { path, inode } => {
                names.insert(path.clone(), *inode);
            }
            FolderOperation::Rename { from, to } => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
            FolderOperation::Remove { path } => {
                names.remove(path);
            }
        }
    }
}
