//! The folder of the real store on disk.
//!
//! ```text
//! LOCK                      held by the process that has the store open
//! FORMAT                    which layout this is:
//!                             0  magic     8  "quipucld"
//!                             8  version   2  1
//!                            10  features  2  none yet
//!                            12  crc32     4  of the bytes before it
//! spaces/<name>@<number>/   one LSM tree per space (lsm-tree's own format V3):
//!   current                   which manifest counts: number u64, xxh3-128 of it, type of checksum u8
//!   v<number>                 a manifest: the tables of each level
//!   tables/<number>           sorted tables, blocks with checksums
//!   dropped                   what `current` is renamed to when the space is dropped
//! names/<name>@<number>     empty: this space was created and not dropped, so that a missing one is noticed
//! ```
//! A folder without `current` is a dropped space, or one whose creation was cut short and that has no tables
//! yet; both are removed when the store is opened. Tables with neither `current` nor `dropped` are damage.
//! The number behind a name tells a space from one of the same name dropped before it, whose files may still
//! be in use by a reader. A space gets its entry in `names` before its first row, and loses it before it is dropped; one
//! without an entry was caught between, and gets it back. Integers are little-endian.

use super::ColdError;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

const MAGIC: &[u8; 8] = b"quipucld";
const VERSION: u16 = 1;
const FORMAT_BYTES: usize = 16;

const LOCK: &str = "LOCK";
const FORMAT: &str = "FORMAT";
const SPACES: &str = "spaces";
const NAMES: &str = "names";
const CURRENT: &str = "current";
const DROPPED: &str = "dropped";
const TABLES: &str = "tables";

/// Length of `current`: number, checksum, type of checksum.
const CURRENT_BYTES: usize = 8 + 16 + 1;

/// An opened folder. The lock is held as long as this lives.
pub(super) struct Folder {
    root: PathBuf,
    _lock: File,
}

impl Folder {
    /// Whether a folder has the marker of a store.
    pub(super) fn is_at(root: &Path) -> bool {
        root.join(FORMAT).exists()
    }

    /// Opens the folder, creating it when it does not exist.
    pub(super) fn open(root: &Path) -> Result<Self, ColdError> {
        let spaces = root.join(SPACES);
        fs::create_dir_all(root).map_err(failed("create folder", root))?;
        let lock = lock(root)?;
        if !root.join(FORMAT).exists() {
            if spaces.exists() && has_entries(&spaces)? {
                return Err(ColdError::Format(format!("{} has spaces but no {FORMAT} file", root.display())));
            }
            for folder in [&spaces, &root.join(NAMES)] {
                fs::create_dir_all(folder).map_err(failed("create folder", folder))?;
                sync_folder(folder)?;
            }
            write_format(root)?;
            if let Some(parent) = root.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                sync_folder(parent)?;
            }
        }
        read_format(root)?;
        Ok(Self { root: root.to_path_buf(), _lock: lock })
    }

    /// The folder of a space.
    pub(super) fn space(&self, name: &str, number: u64) -> PathBuf {
        self.root.join(SPACES).join(format!("{name}@{number}"))
    }

    /// Makes the names of spaces created before durable. The tree syncs its own folder but not the one above.
    pub(super) fn sync_names(&self) -> Result<(), ColdError> {
        sync_folder(&self.root.join(SPACES))
    }

    /// Makes it durable that a space is there.
    pub(super) fn enter_name(&self, name: &str, number: u64) -> Result<(), ColdError> {
        let entry = self.name(name, number);
        File::create(&entry).map_err(failed("create", &entry))?;
        sync_folder(&self.root.join(NAMES))
    }

    /// Makes it durable that a space need not be there. Works on a full disk.
    pub(super) fn strike_name(&self, name: &str, number: u64) -> Result<(), ColdError> {
        let entry = self.name(name, number);
        match fs::remove_file(&entry) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.map_err(failed("remove", &entry))?,
        }
        sync_folder(&self.root.join(NAMES))
    }

    fn name(&self, name: &str, number: u64) -> PathBuf {
        self.root.join(NAMES).join(format!("{name}@{number}"))
    }

    /// The spaces that must be there.
    fn names(&self) -> Result<BTreeSet<(String, u64)>, ColdError> {
        let names = self.root.join(NAMES);
        let entries = fs::read_dir(&names).map_err(failed("list", &names))?;
        let parse = |entry: io::Result<fs::DirEntry>| {
            let path = entry.map_err(failed("list", &names))?.path();
            let strange = || ColdError::Format(format!("{} is not the name of a space", path.display()));
            parse_space(&path).ok_or_else(strange)
        };
        entries.map(parse).collect()
    }

    /// The number and folder of every space, by name, after removal of what is left of dropped and
    /// half-created ones. Refuses when one is missing.
    pub(super) fn spaces(&self) -> Result<BTreeMap<String, (u64, PathBuf)>, ColdError> {
        let mut names = self.names()?;
        if let Some(missing) =
            names.iter().map(|(name, number)| self.space(name, *number)).find(|path| !path.exists())
        {
            return Err(ColdError::Damaged(format!("{} is missing", missing.display())));
        }
        let spaces = self.root.join(SPACES);
        let mut found: BTreeMap<String, (u64, PathBuf)> = BTreeMap::new();
        for entry in fs::read_dir(&spaces).map_err(failed("list", &spaces))? {
            let path = entry.map_err(failed("list", &spaces))?.path();
            let Some((name, number)) = parse_space(&path) else {
                return Err(ColdError::Format(format!("{} is not a space", path.display())));
            };
            let has_name = names.remove(&(name.clone(), number));
            if !path.join(CURRENT).exists() {
                if has_name {
                    return Err(ColdError::Damaged(format!("{} has no {CURRENT} file", path.display())));
                }
                remove_leftover(&path)?;
                continue;
            }
            if !has_name {
                self.enter_name(&name, number)?;
            }
            let newer = found.get(&name).is_none_or(|(other, _)| number > *other);
            // Two of one name: the machine stopped while the older was being dropped.
            let older = if newer { found.insert(name.clone(), (number, path)) } else { Some((number, path)) };
            if let Some((number, older)) = older {
                self.strike_name(&name, number)?;
                retire_tree(&older)?;
                remove_tree(&older)?;
            }
        }
        Ok(found)
    }
}

/// Makes a tree a dropped one, durably. Works on a full disk, because it only renames.
pub(super) fn retire_tree(folder: &Path) -> Result<(), ColdError> {
    let (current, dropped) = (folder.join(CURRENT), folder.join(DROPPED));
    match fs::rename(&current, &dropped) {
        // An earlier attempt came this far and could not sync.
        Err(error) if error.kind() == io::ErrorKind::NotFound && dropped.exists() => {}
        other => other.map_err(failed("drop", &current))?,
    }
    sync_folder(folder)
}

/// Removes a dropped tree, tables first, so that a crash on the way does not leave tables that nobody
/// dropped.
pub(super) fn remove_tree(folder: &Path) -> Result<(), ColdError> {
    let tables = folder.join(TABLES);
    if tables.exists() {
        fs::remove_dir_all(&tables).map_err(failed("remove", &tables))?;
    }
    fs::remove_dir_all(folder).map_err(failed("remove", folder))
}

/// Removes a folder that is not a space, or no longer.
fn remove_leftover(folder: &Path) -> Result<(), ColdError> {
    let tables = folder.join(TABLES);
    if !folder.join(DROPPED).exists() && tables.exists() && has_entries(&tables)? {
        return Err(ColdError::Damaged(format!("{} has tables but no {CURRENT} file", folder.display())));
    }
    remove_tree(folder)
}

/// The number of the manifest that a restart would find.
pub(super) fn committed_manifest(folder: &Path) -> io::Result<u64> {
    read_current(folder).map(|(number, _)| number)
}

/// Compares the manifest with its checksum, which lsm-tree writes but does not read, and removes temporary
/// files a crash left beside it.
pub(super) fn check_tree(folder: &Path) -> Result<(), ColdError> {
    let (number, checksum) = read_current(folder).map_err(failed("read current of", folder))?;
    let manifest = folder.join(format!("v{number}"));
    let bytes = fs::read(&manifest).map_err(failed("read", &manifest))?;
    if xxh3_128(&bytes) != checksum {
        return Err(ColdError::Damaged(format!("{}: checksum differs", manifest.display())));
    }
    for entry in fs::read_dir(folder).map_err(failed("list", folder))? {
        let entry = entry.map_err(failed("list", folder))?;
        if entry.file_name().as_encoded_bytes().starts_with(b".tmp") {
            fs::remove_file(entry.path()).map_err(failed("remove", &entry.path()))?;
        }
    }
    Ok(())
}

fn read_current(folder: &Path) -> io::Result<(u64, u128)> {
    let bytes = fs::read(folder.join(CURRENT))?;
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "current does not name a manifest");
    let bytes: &[u8; CURRENT_BYTES] = bytes.as_slice().try_into().map_err(|_| wrong())?;
    let (number, rest) = bytes.split_first_chunk::<8>().ok_or_else(wrong)?;
    let (checksum, kind) = rest.split_first_chunk::<16>().ok_or_else(wrong)?;
    if kind != [0] {
        return Err(wrong());
    }
    Ok((u64::from_le_bytes(*number), u128::from_le_bytes(*checksum)))
}

fn parse_space(path: &Path) -> Option<(String, u64)> {
    let (name, number) = path.file_name()?.to_str()?.rsplit_once('@')?;
    super::check_space_name(name).ok()?;
    Some((name.to_string(), number.parse().ok()?))
}

fn lock(root: &Path) -> Result<File, ColdError> {
    let path = root.join(LOCK);
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(failed("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ColdError::Locked(root.to_path_buf())),
        Err(TryLockError::Error(error)) => Err(failed("lock", &path)(error)),
    }
}

fn format_bytes() -> [u8; FORMAT_BYTES] {
    let mut bytes = [0; FORMAT_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    let checksum = crc32fast::hash(&bytes[..12]);
    bytes[12..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

fn write_format(root: &Path) -> Result<(), ColdError> {
    let (temporary, path) = (root.join("FORMAT.new"), root.join(FORMAT));
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(&format_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, &path)
    });
    written.map_err(failed("create", &path))?;
    sync_folder(root)
}

fn read_format(root: &Path) -> Result<(), ColdError> {
    let path = root.join(FORMAT);
    let bytes = fs::read(&path).map_err(failed("read", &path))?;
    if bytes == format_bytes() {
        return Ok(());
    }
    let path = path.display();
    if bytes.len() != FORMAT_BYTES || !bytes.starts_with(MAGIC) {
        return Err(ColdError::Format(format!("{path} is not the format marker of a cold store")));
    }
    if crc32fast::hash(&bytes[..12]).to_le_bytes() != bytes[12..] {
        return Err(ColdError::Damaged(format!("{path}: checksum differs")));
    }
    let version = u16::from_le_bytes([bytes[8], bytes[9]]);
    let features = u16::from_le_bytes([bytes[10], bytes[11]]);
    Err(ColdError::Format(format!(
        "{path}: version {version} with features {features:#06x}; this program knows version {VERSION} without features"
    )))
}

fn has_entries(folder: &Path) -> Result<bool, ColdError> {
    Ok(fs::read_dir(folder).map_err(failed("list", folder))?.next().is_some())
}

fn sync_folder(folder: &Path) -> Result<(), ColdError> {
    File::open(folder).and_then(|file| file.sync_all()).map_err(failed("sync folder", folder))
}

/// Names what failed, for `map_err`.
fn failed<'a>(action: &'a str, path: &'a Path) -> impl Fn(io::Error) -> ColdError + 'a {
    move |error| ColdError::from_io(format!("{action} {}", path.display()), error)
}
