//! Ctrl-C and SIGTERM leave nothing behind: no server, no mounted image, no scratch folder.
//!
//! Destructors do this after success and failure, but a signal runs none. So whoever makes something that must go
//! also says here how to undo it; the newest is undone first.

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::Result;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// What a shell calls the end of a program by Ctrl-C.
const EXIT_INTERRUPTED: i32 = 130;

/// How to get rid of something.
#[derive(Debug, Clone, PartialEq)]
pub enum Undo {
    /// A process that we started and have not waited for.
    Kill(u32),
    /// A mounted file system.
    Unmount(PathBuf),
    /// A folder.
    Remove(PathBuf),
}

static PENDING: Mutex<Vec<(u64, Undo)>> = Mutex::new(Vec::new());

/// While it lives, an interruption undoes what it stands for.
#[derive(Debug)]
pub struct Pending(u64);

impl Pending {
    /// Remembers what to undo.
    pub fn new(undo: Undo) -> Pending {
        let mut pending = PENDING.lock().unwrap_or_else(PoisonError::into_inner);
        let number = pending.last().map_or(0, |(number, _)| number + 1);
        pending.push((number, undo));
        Pending(number)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        PENDING.lock().unwrap_or_else(PoisonError::into_inner).retain(|(number, _)| *number != self.0);
    }
}

/// From now on signals clean up before the process ends.
pub fn watch() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])?;
    thread::spawn(move || {
        if signals.forever().next().is_some() {
            // The lock is kept: nobody shall start anything new.
            let pending = PENDING.lock().unwrap_or_else(PoisonError::into_inner);
            for (_, undo) in pending.iter().rev() {
                // Each on its own: the next must go even if this one does not.
                let _ = run(undo);
            }
            crate::drill::ending::end_all(|| std::process::exit(EXIT_INTERRUPTED));
        }
    });
    Ok(())
}

fn run(undo: &Undo) -> Result<()> {
    match undo {
        Undo::Kill(pid) => drop(Command::new("kill").args(["-KILL", &pid.to_string()]).output()?),
        // Lazily: the process just killed may hold its files for a moment.
        Undo::Unmount(mount_point) => drop(Command::new("umount").arg("--lazy").arg(mount_point).output()?),
        Undo::Remove(folder) => std::fs::remove_dir_all(folder)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_pending(undo: &Undo) -> bool {
        PENDING.lock().unwrap().iter().any(|(_, other)| other == undo)
    }

    #[test]
    fn only_what_still_exists_is_undone() {
        let [first, second] = ["first", "second"].map(|name| Undo::Remove(PathBuf::from(name)));
        let first_pending = Pending::new(first.clone());
        let second_pending = Pending::new(second.clone());
        drop(first_pending);
        assert!(!is_pending(&first) && is_pending(&second));
        drop(second_pending);
        assert!(!is_pending(&second));
    }

    #[test]
    fn folders_go() {
        let folder = tempfile::tempdir().unwrap().keep();
        run(&Undo::Remove(folder.clone())).unwrap();
        assert!(!folder.exists());
    }
}
