//! A disk that exists in memory and fails on demand, the same way for the same seed.
//!
//! It keeps no promise that [`Disk`] does not make: what was not synced survives a crash only by chance,
//! sector by sector and folder operation by folder operation. Every change (write, sync, create, rename,
//! remove, ...) counts as one operation, so a simulation can stop the world before each of them in turn.
//! Reads are not counted: stopping at a read is stopping at the change that follows.
//!
//! Simplification: folders themselves are durable at once; only what is in them is not.

mod inode;
mod world;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::disk::{Disk, DiskFile};
use inode::{Inode, Survival};
use world::{FolderOperation, World};

/// The simulated disk. Clones are the same disk.
#[derive(Clone)]
pub struct SimDisk {
    world: Arc<Mutex<World>>,
}

impl SimDisk {
    /// An empty disk; all its chances come from the seed.
    pub fn new(seed: u64) -> SimDisk {
        SimDisk { world: Arc::new(Mutex::new(World::new(seed))) }
    }

    /// A second disk in exactly this state, with its own chances from here on. Handles stay with the first.
    pub fn fork(&self, seed: u64) -> SimDisk {
        let mut world = self.world.lock().clone();
        world.random = StdRng::seed_from_u64(seed);
        SimDisk { world: Arc::new(Mutex::new(world)) }
    }

    /// Operations so far.
    pub fn operations(&self) -> u64 {
        self.world.lock().operations
    }

    /// Lets `count` more operations succeed. The one after them may take effect but reports an error, and
    /// so does everything later, reads included, until [`SimDisk::crash`] or [`SimDisk::kill`].
    pub fn crash_after(&self, count: u64) {
        let mut world = self.world.lock();
        world.stop_at = Some(world.operations + count);
    }

    /// Whether the world stopped because of [`SimDisk::crash_after`].
    pub fn has_stopped(&self) -> bool {
        self.world.lock().is_stopped()
    }

    /// Power loss and restart: what was not synced survives by chance, all handles and locks are gone.
    /// Planned stops and failures are forgotten; the capacity stays.
    pub fn crash(&self) {
        let mut world = self.world.lock();
        let world = &mut *world;
        let survival = Survival::draw(&mut world.random);
        world.settle_names(survival);
        for inode in world.inodes.values_mut() {
            inode.lose_power(&mut world.random, survival);
        }
        world.begin_life();
    }

    /// The process dies and starts again, the machine stays up: everything written is still seen, synced or
    /// not.
    pub fn kill(&self) {
        let mut world = self.world.lock();
        for inode in world.inodes.values_mut() {
            inode.locked = false;
        }
        world.begin_life();
    }

    /// Makes the `nth` sync of a file from now fail (1 is the next): part of what it should have made
    /// durable is lost at the next crash, although readers see it until then and later syncs succeed.
    pub fn fail_sync(&self, nth: u64) {
        self.world.lock().syncs_until_failure = Some(nth);
    }

    /// The space there is for all files together; `None` for as much as one likes.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.world.lock().capacity_bytes = bytes;
    }

    /// The space all files take.
    pub fn used_bytes(&self) -> u64 {
        self.world.lock().used_bytes()
    }

    /// Changes one byte of a file where it lies, as a bad sector would.
    ///
    /// # Panics
    /// When there is no such file or byte: the test is wrong then.
    pub fn flip_byte(&self, path: &Path, position: u64) {
        let mut world = self.world.lock();
        let inode = world.names.get(path).copied().and_then(|id| world.inodes.get_mut(&id));
        inode.expect("a file to damage").flip(position as usize);
    }
}

impl Disk for SimDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut world = self.world.lock();
        let inode = world.operate(|world| {
            if let Ok(id) = world.lookup(path) {
                if let Some(inode) = world.inodes.get_mut(&id) {
                    inode.set_length(0);
                }
                return Ok(id);
            }
            let id = world.next_inode;
            world.next_inode += 1;
            world.inodes.insert(id, Inode::default());
            world.change_names(FolderOperation::Create { path: path.to_path_buf(), inode: id });
            Ok(id)
        })?;
        Ok(self.handle(&world, inode))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let world = self.world.lock();
        world.check_alive()?;
        let inode = world.lookup(path)?;
        Ok(self.handle(&world, inode))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.world.lock().operate(|world| {
            world.lookup(from)?;
            world.change_names(FolderOperation::Rename { from: from.to_path_buf(), to: to.to_path_buf() });
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.world.lock().operate(|world| {
            world.lookup(path)?;
            world.change_names(FolderOperation::Remove { path: path.to_path_buf() });
            Ok(())
        })
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let world = self.world.lock();
        world.check_alive()?;
        let inside = world.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside.filter_map(|path| path.file_name()?.to_str().map(str::to_owned)).collect())
    }

    fn create_dir_all(&self, _dir: &Path) -> io::Result<()> {
        self.world.lock().operate(|_| Ok(()))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut world = self.world.lock();
        world.check_alive()?;
        world.operations += 1;
        // A sync that the crash interrupts made nothing certain: chance decides, as if it had not begun.
        world.check_alive()?;
        let operations = std::mem::take(&mut world.unsynced_names);
        for operation in operations {
            if operation.folder() == Some(dir) {
                operation.apply(&mut world.durable_names);
            } else {
                world.unsynced_names.push(operation);
            }
        }
        Ok(())
    }
}

impl SimDisk {
    fn handle(&self, world: &World, inode: u64) -> Arc<dyn DiskFile> {
        let holds_lock = AtomicBool::new(false);
        Arc::new(SimFile { world: self.world.clone(), inode, life: world.life, holds_lock })
    }
}

struct SimFile {
    world: Arc<Mutex<World>>,
    inode: u64,
    life: u64,
    holds_lock: AtomicBool,
}

impl SimFile {
    fn read<T>(&self, reading: impl FnOnce(&Inode) -> T) -> io::Result<T> {
        let world = self.world.lock();
        world.check_alive()?;
        self.check_life(&world)?;
        world.inodes.get(&self.inode).map(reading).ok_or_else(stale)
    }

    fn check_life(&self, world: &World) -> io::Result<()> {
        if self.life == world.life { Ok(()) } else { Err(stale()) }
    }
}

fn stale() -> io::Error {
    io::Error::other("a handle from before the crash")
}

impl DiskFile for SimFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.read(|inode| {
            let rest = inode.cached.get(position as usize..).unwrap_or_default();
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            count
        })
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        let mut world = self.world.lock();
        self.check_life(&world)?;
        world.operate(|world| {
            let length = world.inodes.get(&self.inode).ok_or_else(stale)?.cached.len() as u64;
            world.check_room((position + bytes.len() as u64).saturating_sub(length))?;
            world.inodes.get_mut(&self.inode).ok_or_else(stale)?.write(position as usize, bytes);
            Ok(())
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut world = self.world.lock();
        self.check_life(&world)?;
        world.check_alive()?;
        world.operations += 1;
        // As for folders: an interrupted sync leaves everything to chance.
        world.check_alive()?;
        let World { random, inodes, syncs_until_failure, .. } = &mut *world;
        let inode = inodes.get_mut(&self.inode).ok_or_else(stale)?;
        let left = syncs_until_failure.take();
        if left == Some(1) {
            inode.fail_sync(random);
            return Err(io::Error::other("the simulated sync failed"));
        }
        *syncs_until_failure = left.map(|left| left.saturating_sub(1));
        inode.sync();
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        self.read(|inode| inode.cached.len() as u64)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut world = self.world.lock();
        self.check_life(&world)?;
        world.operate(|world| {
            world.inodes.get_mut(&self.inode).ok_or_else(stale)?.set_length(length as usize);
            Ok(())
        })
    }

    fn try_lock(&self) -> io::Result<bool> {
        let mut world = self.world.lock();
        world.check_alive()?;
        self.check_life(&world)?;
        let inode = world.inodes.get_mut(&self.inode).ok_or_else(stale)?;
        if std::mem::replace(&mut inode.locked, true) {
            return Ok(self.holds_lock.load(Ordering::Relaxed));
        }
        self.holds_lock.store(true, Ordering::Relaxed);
        Ok(true)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut world = self.world.lock();
        if self.holds_lock.load(Ordering::Relaxed)
            && self.life == world.life
            && let Some(inode) = world.inodes.get_mut(&self.inode)
        {
            inode.locked = false;
        }
    }
}

#[cfg(test)]
mod tests;
