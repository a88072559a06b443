//! The simulated cold store: the same contract in memory, with crashes and failures on command.
//!
//! The real store does its own file I/O, so a simulated machine runs on this model of it: a write is in whole
//! or not at all, and once it has returned `Ok` nothing takes it back. A crash that hits a write decides by
//! the seed which of the two it is, as a crash of the real store around its rename does.

use super::{ColdError, ColdStats, ColdStore, Rows, Visit, check_space_name, normal_range};
use parking_lot::{Mutex, MutexGuard};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::Arc;

type Table = BTreeMap<Vec<u8>, Vec<u8>>;
type Spaces = BTreeMap<String, Arc<Table>>;

/// A cold store in memory. It is a handle: the rows belong to the simulated disk, which
/// [`ModelStore::reopen`] gives to the next life of the machine.
pub struct ModelStore {
    disk: Arc<Mutex<Disk>>,
    /// The life of the machine this handle belongs to. Handles of earlier lives are dead.
    life: u64,
}

#[derive(Clone)]
struct Disk {
    /// Shared until changed, so that a fork and a scan cost nothing.
    spaces: Spaces,
    random: SmallRng,
    life: u64,
    crashed: bool,
    /// Operations until the crash; the one that counts down to zero is hit by it.
    crash_after: Option<u64>,
    /// Writes until one is answered with a full disk.
    full_after: Option<u64>,
}

impl ModelStore {
    /// An empty store. The seed decides whether changes that a crash hits are in.
    pub fn new(seed: u64) -> Self {
        let disk = Disk {
            spaces: BTreeMap::new(),
            random: SmallRng::seed_from_u64(seed),
            life: 0,
            crashed: false,
            crash_after: None,
            full_after: None,
        };
        Self { disk: Arc::new(Mutex::new(disk)), life: 0 }
    }

    /// Stops the machine now: every operation fails from here on.
    pub fn crash(&self) {
        self.disk.lock().crashed = true;
    }

    /// Lets `operations` more operations (reads count) finish and stops the machine in the one after them.
    pub fn crash_after(&self, operations: u64) {
        self.disk.lock().crash_after = Some(operations);
    }

    /// Lets `writes` more writes finish and answers the one after them with a full disk, once. Dropping a
    /// space needs no room and is not a write.
    pub fn full_after(&self, writes: u64) {
        self.disk.lock().full_after = Some(writes);
    }

    /// Whether the machine has stopped.
    pub fn has_crashed(&self) -> bool {
        let disk = self.disk.lock();
        disk.crashed || disk.life != self.life
    }

    /// The next life of the machine, with the disk as the crash (or an orderly end) left it. Older handles
    /// stay dead.
    pub fn reopen(&self) -> Self {
        let mut disk = self.disk.lock();
        disk.life += 1;
        disk.crashed = false;
        disk.crash_after = None;
        disk.full_after = None;
        Self { disk: self.disk.clone(), life: disk.life }
    }

    /// A machine of its own with a copy of this one's disk, as a folder copied at this moment would be.
    pub fn fork(&self, seed: u64) -> Self {
        let copy = Disk { random: SmallRng::seed_from_u64(seed), ..self.disk.lock().clone() };
        Self { disk: Arc::new(Mutex::new(copy)), life: 0 }.reopen()
    }

    /// Counts an operation. `Err` when the machine is down; `Ok(true)` when it goes down in this one.
    fn begin(&self) -> Result<(MutexGuard<'_, Disk>, bool), ColdError> {
        let mut disk = self.disk.lock();
        if disk.crashed || disk.life != self.life {
            return Err(down());
        }
        match disk.crash_after {
            Some(0) => disk.crashed = true,
            Some(left) => disk.crash_after = Some(left - 1),
            None => {}
        }
        let crashes = disk.crashed;
        Ok((disk, crashes))
    }

    fn read(&self, space: &str) -> Result<Option<Arc<Table>>, ColdError> {
        let (disk, crashes) = self.begin()?;
        if crashes { Err(down()) } else { Ok(disk.spaces.get(space).cloned()) }
    }
}

impl Disk {
    /// Makes a change that a crash may hit, before it or after it.
    fn change(&mut self, crashes: bool, apply: impl FnOnce(&mut Spaces)) -> Result<(), ColdError> {
        if !crashes || self.random.random() {
            apply(&mut self.spaces);
        }
        if crashes { Err(down()) } else { Ok(()) }
    }
}

impl ColdStore for ModelStore {
    fn spaces(&self) -> Result<Vec<String>, ColdError> {
        let (disk, crashes) = self.begin()?;
        if crashes { Err(down()) } else { Ok(disk.spaces.keys().cloned().collect()) }
    }

    fn get(&self, space: &str, key: &[u8]) -> Result<Option<Vec<u8>>, ColdError> {
        Ok(self.read(space)?.and_then(|table| table.get(key).cloned()))
    }

    fn scan(
        &self,
        space: &str,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: &mut Visit<'_>,
    ) -> Result<(), ColdError> {
        let Some(table) = self.read(space)? else { return Ok(()) };
        let Some(range) = normal_range(from, to) else { return Ok(()) };
        for (key, value) in table.range::<[u8], _>(range) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn write(&self, space: &str, rows: &Rows) -> Result<(), ColdError> {
        rows.check_sorted()?;
        check_space_name(space)?;
        if rows.is_empty() {
            return Ok(());
        }
        let (mut disk, crashes) = self.begin()?;
        match disk.full_after {
            Some(0) if !crashes => {
                disk.full_after = None;
                return Err(ColdError::from_io(
                    format!("write space {space}"),
                    io::ErrorKind::StorageFull.into(),
                ));
            }
            Some(left) => disk.full_after = Some(left.saturating_sub(1)),
            None => {}
        }
        disk.change(crashes, |spaces| {
            let table = Arc::make_mut(spaces.entry(space.to_string()).or_default());
            for (key, value) in rows.iter() {
                match value {
                    Some(value) => table.insert(key.to_vec(), value.to_vec()),
                    None => table.remove(key),
                };
            }
        })
    }

    fn drop_space(&self, space: &str) -> Result<(), ColdError> {
        let (mut disk, crashes) = self.begin()?;
        disk.change(crashes, |spaces| {
            spaces.remove(space);
        })
    }

    fn stats(&self) -> ColdStats {
        let disk = self.disk.lock();
        let rows = || disk.spaces.values().flat_map(|table| table.iter());
        ColdStats {
            spaces: disk.spaces.len() as u64,
            rows: rows().count() as u64,
            disk_bytes: rows().map(|(key, value)| (key.len() + value.len()) as u64).sum(),
            tables: disk.spaces.len() as u64,
            ..ColdStats::default()
        }
    }

    fn sizes(&self, prefix: &str) -> (u64, u64) {
        let disk = self.disk.lock();
        let spaces = disk.spaces.iter().filter(|(name, _)| name.starts_with(prefix));
        let rows = spaces.flat_map(|(_, table)| table.iter());
        rows.fold((0, 0), |(rows, bytes), (key, value)| (rows + 1, bytes + (key.len() + value.len()) as u64))
    }
}

fn down() -> ColdError {
    ColdError::Io {
        action: "the simulated machine is down".into(),
        source: io::ErrorKind::Interrupted.into(),
    }
}
