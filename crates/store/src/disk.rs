//! The seam between the store and the file system: two small traits and their real form.
//!
//! The contract is what POSIX promises and no more, because the simulated disk takes away everything else:
//!
//! - bytes written are durable only after [`DiskFile::sync_data`] of that file returned `Ok`;
//! - a file created, renamed or removed is so for good only after [`Disk::sync_dir`] of its folder;
//! - after a failed sync nobody knows what is on disk, and a later successful sync does not tell.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file system, as narrow as the store needs it.
pub trait Disk: Send + Sync {
    /// Creates the file, or empties the one that is there.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens an existing file for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;

    /// Gives the file a new name, atomically, over whatever bears that name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Names of the files directly in the folder, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Creates the folder and its parents, durably.
    fn create_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// Makes creations, renames and removals in this folder durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// An open file. Positions are explicit, so a handle is shared between threads without a lock.
pub trait DiskFile: Send + Sync {
    /// Reads up to `buffer.len()` bytes; fewer only at the end of the file.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize>;

    /// Writes all of `bytes`, growing the file where needed.
    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()>;

    /// Makes everything written so far durable, the length included.
    fn sync_data(&self) -> io::Result<()>;

    /// The length in bytes.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file holds no byte.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Cuts or grows the file; what grows reads as zeros and may have no space behind it.
    fn set_len(&self, length: u64) -> io::Result<()>;

    /// Grows the file to `length` with space behind all of it, without writing; `false` where that cannot be had.
    fn allocate(&self, length: u64) -> io::Result<bool> {
        let _ = length;
        Ok(false)
    }

    /// Takes the exclusive lock of the file; `false` when somebody else holds it. Released with the handle.
    fn try_lock(&self) -> io::Result<bool>;
}

/// The file system of the machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(RealFile(OpenOptions::new().read(true).write(true).open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            // A name that is not UTF-8 is none of ours.
            if entry.file_type()?.is_file()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn create_dir_all(&self, dir: &Path) -> io::Result<()> {
        // Each new folder is an entry in its parent, which has to be synced as well.
        let missing: Vec<PathBuf> = dir
            .ancestors()
            .take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists())
            .map(Path::to_path_buf)
            .collect();
        fs::create_dir_all(dir)?;
        for folder in missing.iter().rev() {
            match folder.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => self.sync_dir(parent)?,
                _ => self.sync_dir(Path::new("."))?,
            }
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }
}

struct RealFile(File);

impl DiskFile for RealFile {
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.0.read_at(&mut buffer[filled..], position + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, bytes: &[u8], position: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, position)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    #[cfg(target_os = "linux")]
    fn allocate(&self, length: u64) -> io::Result<bool> {
        use rustix::fs::{FallocateFlags, fallocate};
        use rustix::io::Errno;
        match fallocate(&self.0, FallocateFlags::empty(), 0, length) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn try_lock(&self) -> io::Result<bool> {
        match self.0.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_file_reads_back_what_was_written_and_locks_once() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("a/b");
        RealDisk.create_dir_all(&dir).unwrap();
        let path = dir.join("file");
        let file = RealDisk.create(&path).unwrap();
        file.write_at(b"knots", 3).unwrap();
        file.sync_data().unwrap();
        RealDisk.sync_dir(&dir).unwrap();
        let mut bytes = [9; 16];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 8);
        assert_eq!(&bytes[..8], b"\0\0\0knots");
        assert!(file.try_lock().unwrap());
        let second = RealDisk.open(&path).unwrap();
        assert!(!second.try_lock().unwrap());
        drop(file);
        assert!(second.try_lock().unwrap());
        RealDisk.rename(&path, &dir.join("moved")).unwrap();
        assert_eq!(RealDisk.list(&dir).unwrap(), ["moved"]);
        RealDisk.remove(&dir.join("moved")).unwrap();
        assert!(RealDisk.list(&dir).unwrap().is_empty());
    }
}
