//! The data folder: what is in it, who may use it, and what it is for.
//!
//! ```text
//! quipu.lock       locked while a process uses the folder
//! quipu.meta       magic "QUIPUDAT", version u32, features u32, partitions u16, reserved u16, incarnation u32,
//!                  identity key 16, node id u128, crc32 of all before; little-endian
//!                  features: 1 its partitions are replicated
//! log/             segments of the log
//! cold/            the cold store
//! ```
//! The meta file is written last: in a folder that has one, the log and the cold store were there too, and where one of
//! them is missing somebody removed it. A folder without one was never used, and must not hold anything.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use quipu_counting::IdentityKey;
use quipu_counting::slot::PARTITIONS_MAX;
use quipu_store::disk::{Disk, DiskFile};

use crate::options::OpenError;

const MAGIC: &[u8; 8] = b"QUIPUDAT";
/// The newest folder format this build reads and writes.
pub const FORMAT_VERSION: u32 = 2;
const META_BYTES: usize = 8 + 4 + 4 + 2 + 2 + 4 + 16 + 16 + 4;

/// What a folder says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// How many partitions, fixed at creation.
    pub partitions: u16,
    /// Which life of the folder: 1 at creation, more after a restore.
    pub incarnation: u32,
    /// Keys the identities of request ids.
    pub identity_key: IdentityKey,
    /// Random name of this node.
    pub node_id: u128,
    /// Whether its partitions are ordered by a cluster: then the log holds what was agreed on, and not effects.
    pub is_replicated: bool,
}

/// The one feature there is.
const REPLICATED: u32 = 1;

/// A folder this process holds.
pub struct Folder {
    /// Where it is.
    pub path: PathBuf,
    /// What it says.
    pub meta: Meta,
    /// Whether nobody ever used it: it has no meta file yet.
    pub is_new: bool,
    /// Held for its lock.
    _lock: Arc<dyn DiskFile>,
}

impl Folder {
    /// Locks the folder and reads what it says. A new one says `fresh` once it is [established](Folder::establish).
    pub fn open(disk: &dyn Disk, path: &Path, fresh: Meta) -> Result<Folder, OpenError> {
        let io = |source| OpenError::io(path, source);
        disk.create_dir_all(path).map_err(io)?;
        let lock_path = path.join("quipu.lock");
        let names = disk.list(path).map_err(io)?;
        let has = |name: &str| names.iter().any(|known| known == name);
        let lock =
            if has("quipu.lock") { disk.open(&lock_path) } else { disk.create(&lock_path) }.map_err(io)?;
        if !lock.try_lock().map_err(io)? {
            return Err(OpenError::Locked(path.to_path_buf()));
        }
        let is_new = !has("quipu.meta");
        let meta = if is_new { fresh } else { read_meta(disk, path)? };
        Ok(Folder { path: path.to_path_buf(), meta, is_new, _lock: lock })
    }

    /// Writes the meta file of a new folder, now that everything else is there. Under another name first: a folder
    /// either has a whole one or none.
    pub fn establish(&self, disk: &dyn Disk) -> Result<(), OpenError> {
        let write = || -> std::io::Result<()> {
            if self.is_new {
                self.write_meta(disk)?;
            }
            // Also of an old one: whoever was killed between the rename and its sync left a name that is seen but
            // not certain.
            disk.sync_dir(&self.path)
        };
        write().map_err(|source| OpenError::io(&self.path, source))
    }

    fn write_meta(&self, disk: &dyn Disk) -> std::io::Result<()> {
        let draft = self.path.join("quipu.meta.draft");
        let file = disk.create(&draft)?;
        file.write_at(&encode(&self.meta), 0)?;
        file.sync_data()?;
        disk.rename(&draft, &self.path.join("quipu.meta"))
    }

    /// From now on its partitions are ordered by a cluster. Nothing in the log may be needed any more.
    pub fn become_replicated(&mut self, disk: &dyn Disk) -> Result<(), OpenError> {
        self.meta.is_replicated = true;
        let written = self.write_meta(disk).and_then(|()| disk.sync_dir(&self.path));
        written.map_err(|source| OpenError::io(&self.path, source))
    }

    /// Whether it is what it is opened as.
    pub fn check_kind(&self, is_replicated: bool) -> Result<(), OpenError> {
        let what = match (self.meta.is_replicated, is_replicated) {
            (true, false) => {
                "belongs to a node of a cluster, and is started with its folder `cluster`; if that is gone, put it back from a copy, or replace the node"
            }
            (false, true) => "is not that of a node of a cluster",
            _ => return Ok(()),
        };
        Err(OpenError::Options(format!("the data folder {} {what}", self.path.display())))
    }

    /// Something that must be there is not.
    pub fn missing(&self, part: &str) -> OpenError {
        OpenError::Damaged { path: self.path.clone(), what: format!("{part} is missing") }
    }
}

/// What the meta file of a folder says, if it has one.
pub fn look(disk: &dyn Disk, path: &Path) -> Result<Option<Meta>, OpenError> {
    let is_there = disk.list(path).is_ok_and(|names| names.iter().any(|name| name == "quipu.meta"));
    if is_there { read_meta(disk, path).map(Some) } else { Ok(None) }
}

fn read_meta(disk: &dyn Disk, path: &Path) -> Result<Meta, OpenError> {
    let file_path = path.join("quipu.meta");
    let io = |source| OpenError::io(&file_path, source);
    let mut bytes = [0; META_BYTES];
    let file = disk.open(&file_path).map_err(io)?;
    let read = file.read_at(&mut bytes, 0).map_err(io)?;
    decode(&bytes[..read]).map_err(|problem| match problem {
        Problem::Version(found) => {
            OpenError::Version { path: path.to_path_buf(), found, supported: FORMAT_VERSION }
        }
        Problem::Damage(what) => OpenError::Damaged { path: file_path, what: what.to_string() },
    })
}

fn encode(meta: &Meta) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(META_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    let features = if meta.is_replicated { REPLICATED } else { 0 };
    bytes.extend_from_slice(&features.to_le_bytes());
    bytes.extend_from_slice(&meta.partitions.to_le_bytes());
    bytes.extend_from_slice(&0u16.to_le_bytes());
    bytes.extend_from_slice(&meta.incarnation.to_le_bytes());
    bytes.extend_from_slice(&meta.identity_key.0);
    bytes.extend_from_slice(&meta.node_id.to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
    debug_assert_eq!(bytes.len(), META_BYTES);
    bytes
}

enum Problem {
    Version(String),
    Damage(&'static str),
}

fn decode(bytes: &[u8]) -> Result<Meta, Problem> {
    fn part<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Problem> {
        let part = bytes.get(at..at + N).ok_or(Problem::Damage("quipu.meta is cut short"))?;
        part.try_into().map_err(|_| Problem::Damage("quipu.meta is cut short"))
    }
    if part::<8>(bytes, 0)? != *MAGIC {
        return Err(Problem::Damage("quipu.meta does not begin as one"));
    }
    let version = u32::from_le_bytes(part(bytes, 8)?);
    let features = u32::from_le_bytes(part(bytes, 12)?);
    // The version comes before the checksum: a newer format may be longer.
    if version != FORMAT_VERSION || features & !REPLICATED != 0 {
        return Err(Problem::Version(format!("{version} (features {features:#x})")));
    }
    let crc = u32::from_le_bytes(part(bytes, META_BYTES - 4)?);
    if crc32fast::hash(&bytes[..META_BYTES - 4]) != crc {
        return Err(Problem::Damage("the checksum of quipu.meta is wrong"));
    }
    let partitions = u16::from_le_bytes(part(bytes, 16)?);
    if !partitions.is_power_of_two() || partitions > PARTITIONS_MAX {
        return Err(Problem::Damage("quipu.meta has an impossible number of partitions"));
    }
    Ok(Meta {
        partitions,
        incarnation: u32::from_le_bytes(part(bytes, 20)?),
        identity_key: IdentityKey(part(bytes, 24)?),
        node_id: u128::from_le_bytes(part(bytes, 40)?),
        is_replicated: features & REPLICATED != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meta_is_read_as_written_and_damage_is_noticed() {
        let alone = Meta {
            partitions: 16,
            incarnation: 1,
            identity_key: IdentityKey([7; 16]),
            node_id: 99,
            is_replicated: false,
        };
        let meta = Meta { is_replicated: true, ..alone };
        assert!(matches!(decode(&encode(&alone)), Ok(read) if read == alone));
        let bytes = encode(&meta);
        assert!(matches!(decode(&bytes), Ok(read) if read == meta));
        for position in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[position] ^= 1;
            assert!(decode(&changed).is_err(), "byte {position}");
            assert!(decode(&bytes[..position]).is_err(), "cut at {position}");
        }
        let mut newer = bytes;
        newer[8] += 1;
        assert!(matches!(decode(&newer), Err(Problem::Version(_))));
    }
}
