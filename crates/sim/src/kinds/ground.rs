//! What an engine stands on: a simulated machine that fails at any operation, or a folder on a real disk.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use quipu_engine::{Engine, OpenError, Options};
use quipu_store::RealDisk;
use quipu_store::cold::{ColdOptions, LsmStore, OPEN_TABLES_MAX_DEFAULT};
use rand::Rng;
use rand::rngs::SmallRng;
use tempfile::TempDir;

use crate::machine::Machine;
use crate::plant::Plant;
use crate::world::FOLDER;

/// More operations than any life performs.
const NEVER: u64 = 1 << 40;

/// See the head of this file.
pub enum Ground {
    /// Simulated.
    Machine(Box<Machine>),
    /// Real.
    Folder(TempDir),
}

impl Ground {
    /// A simulated machine.
    pub fn machine(seed: u64) -> Ground {
        Ground::Machine(Box::new(Machine::new(seed, Plant::None)))
    }

    /// A simulated machine with a bug.
    pub fn planted(seed: u64, plant: Plant) -> Ground {
        Ground::Machine(Box::new(Machine::new(seed, plant)))
    }

    /// A folder that is removed in the end.
    pub fn folder() -> io::Result<Ground> {
        Ok(Ground::Folder(TempDir::new()?))
    }

    /// Opens an engine without threads.
    pub fn open(&self, options: Options) -> Result<Arc<Engine>, OpenError> {
        match self {
            Ground::Machine(machine) => {
                Engine::open_on(machine.disk(), machine.cold(), Path::new(FOLDER), options)
            }
            Ground::Folder(folder) => {
                let cold = ColdOptions { cache_bytes: 8 << 20, open_tables_max: OPEN_TABLES_MAX_DEFAULT };
                let cold = LsmStore::open(folder.path().join("cold"), cold)?;
                Engine::open_on(Arc::new(RealDisk), Arc::new(cold), folder.path(), options)
            }
        }
    }

    /// Whether it stopped.
    pub fn is_down(&self) -> bool {
        matches!(self, Ground::Machine(machine) if machine.is_down())
    }

    /// Something goes wrong soon. Returns whether that is possible.
    pub fn arm(&self, random: &mut SmallRng) -> bool {
        let Ground::Machine(machine) = self else { return false };
        match random.random_range(0..6) {
            0..3 => machine.sim_disk().crash_after(random.random_range(0..40)),
            3 => machine.model_store().crash_after(random.random_range(0..30)),
            4 => machine.sim_disk().fail_sync(random.random_range(1..6)),
            _ => machine.model_store().full_after(random.random_range(0..4)),
        }
        true
    }

    /// Nothing goes wrong any more.
    pub fn disarm(&self) {
        if let Ground::Machine(machine) = self {
            machine.sim_disk().crash_after(NEVER);
            machine.sim_disk().fail_sync(NEVER);
            machine.model_store().crash_after(NEVER);
            machine.model_store().full_after(NEVER);
        }
    }

    /// A copy of what is there now, as a process that is killed in this moment leaves it.
    pub fn copy(&self, seed: u64) -> io::Result<Ground> {
        Ok(match self {
            Ground::Machine(machine) => Ground::Machine(Box::new(machine.copy(seed))),
            Ground::Folder(folder) => {
                let copy = TempDir::new()?;
                // The cold store merges tables behind our back; a copy is one of a moment if nothing came or went meanwhile.
                loop {
                    let before = names(folder.path())?;
                    copy_all(folder.path(), copy.path())?;
                    if names(folder.path())? == before {
                        break;
                    }
                    fs::remove_dir_all(copy.path())?;
                }
                Ground::Folder(copy)
            }
        })
    }

    /// The machine goes down, with or without its power. Returns whether what was not synced may be lost.
    pub fn crash(&mut self, random: &mut SmallRng) -> io::Result<()> {
        match self {
            Ground::Machine(machine) => match random.random_ratio(2, 3) {
                true => machine.lose_power(),
                false => machine.kill(),
            },
            folder => *folder = folder.copy(0)?,
        }
        Ok(())
    }
}

fn names(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        names.push(entry.path().to_string_lossy().into_owned());
        if entry.file_type()?.is_dir() {
            names.extend(self::names(&entry.path())?);
        }
    }
    names.sort();
    Ok(names)
}

fn copy_all(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        let copied =
            if entry.file_type()?.is_dir() { copy_all(&from, &to) } else { fs::copy(&from, &to).map(|_| ()) };
        match copied {
            // It went while it was copied: the names tell.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}
