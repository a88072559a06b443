//! A damaged byte is reported, never skipped: the engine refuses to open, or everything is as it was.

use std::path::{Path, PathBuf};

use quipu_engine::{Engine, OpenError, Options};
use quipu_store::LogError;
use rand::Rng;
use rand::rngs::SmallRng;

use crate::ask::Universe;
use crate::machine::Machine;
use crate::observe;
use crate::oracle::history::Found;
use crate::violation::{Invariant, Violation};

/// Damages one byte of a machine that was closed in order and opens it. `intact` is what it held.
pub fn check(
    mut machine: Machine,
    folder: &Path,
    options: Options,
    universe: &Universe,
    intact: &Found,
    now: u64,
    random: &mut SmallRng,
) -> Result<(), Violation> {
    let Some((path, position)) = choose(&machine, folder, random) else { return Ok(()) };
    machine.damage(&path, position);
    let place = format!("byte {position} of {}", path.display());
    let broken =
        |what: String| Err(Violation::new(Invariant::Damage, format!("{place} was damaged: {what}")));
    match Engine::open_on(machine.disk(), machine.cold(), folder, options) {
        Err(
            OpenError::Log(LogError::Damage { .. }) | OpenError::Damaged { .. } | OpenError::Version { .. },
        ) => Ok(()),
        Err(error) => broken(format!("the engine says {error}")),
        Ok(engine) => match observe::everything(&engine, universe, now) {
            Ok(found) if found.cells == intact.cells && found.policies == intact.policies => Ok(()),
            Ok(_) => broken("the engine opened and counters differ".to_string()),
            Err(error) => broken(format!("the engine opened and says {error}")),
        },
    }
}

/// A byte of some file, as far as the file was written.
fn choose(machine: &Machine, folder: &Path, random: &mut SmallRng) -> Option<(PathBuf, u64)> {
    let disk = machine.disk();
    let log = folder.join("log");
    let mut files: Vec<PathBuf> = disk.list(&log).ok()?.into_iter().map(|name| log.join(name)).collect();
    files.push(folder.join("quipu.meta"));
    let path = files.swap_remove(random.random_range(0..files.len()));
    let file = disk.open(&path).ok()?;
    let mut bytes = vec![0; file.len().ok()? as usize];
    file.read_at(&mut bytes, 0).ok()?;
    let written = bytes.iter().rposition(|byte| *byte != 0)? + 1;
    Some((path, random.random_range(0..written) as u64))
}
