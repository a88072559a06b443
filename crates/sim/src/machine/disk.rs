//! The machine's disk: the simulated one, down when the cold store is, and the bugs that can be planted in it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quipu_store::cold::ModelStore;
use quipu_store::{Disk, DiskFile, SimDisk};

use crate::plant::Plant;

/// See the head of this file.
pub(super) struct MachineDisk {
    pub(super) disk: SimDisk,
    pub(super) cold: Arc<ModelStore>,
    pub(super) plant: Plant,
    /// Where the disk was damaged on purpose.
    pub(super) damage: Option<(PathBuf, u64)>,
}

struct MachineFile {
    file: Arc<dyn DiskFile>,
    cold: Arc<ModelStore>,
    syncs_lie: bool,
    /// Everything from here on reads as zeros.
    blank_from: Option<u64>,
}

fn check_up(cold: &ModelStore) -> io::Result<()> {
    if cold.has_crashed() { Err(io::Error::other("the simulated machine is down")) } else { Ok(()) }
}

impl MachineDisk {
    fn wrap(&self, path: &Path, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        let is_spare = path.extension().is_some_and(|extension| extension == "spare");
        let syncs_lie = match self.plant {
            Plant::SyncsLie => true,
            Plant::RecycledSegmentsKeepOldBytes => is_spare,
            _ => false,
        };
        let damaged =
            self.damage.as_ref().filter(|(damaged, _)| damaged == path).map(|(_, position)| *position);
        let blank_from = damaged.filter(|_| self.plant == Plant::DamageReadsAsTheEnd);
        Arc::new(MachineFile { file, cold: Arc::clone(&self.cold), syncs_lie, blank_from })
    }
}

impl Disk for MachineDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        check_up(&self.cold)?;
        Ok(self.wrap(path, self.disk.create(path)?))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        check_up(&self.cold)?;
        Ok(self.wrap(path, self.disk.open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        check_up(&self.cold)?;
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        check_up(&self.cold)?;
        self.disk.remove(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        check_up(&self.cold)?;
        self.disk.list(dir)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        check_up(&self.cold)?;
        self.disk.create_dir_all(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        check_up(&self.cold)?;
        self.disk.sync_dir(dir)
    }
}

impl DiskFile for MachineFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        check_up(&self.cold)?;
        let read = self.file.read_at(buffer, position)?;
        if let Some(from) = self.blank_from {
            let visible = (from.saturating_sub(position) as usize).min(read);
            buffer[visible..read].fill(0);
        }
        Ok(read)
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        check_up(&self.cold)?;
        self.file.write_at(bytes, position)
    }

    fn sync_data(&self) -> io::Result<()> {
        check_up(&self.cold)?;
        if self.syncs_lie { Ok(()) } else { self.file.sync_data() }
    }

    fn len(&self) -> io::Result<u64> {
        check_up(&self.cold)?;
        self.file.len()
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        check_up(&self.cold)?;
        self.file.set_len(length)
    }

    fn try_lock(&self) -> io::Result<bool> {
        check_up(&self.cold)?;
        self.file.try_lock()
    }
}
