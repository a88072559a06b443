//! What was started and made, so that it goes with whoever did. Destructors see to that after success and after failure, but a signal runs
//! none: Ctrl-C and SIGTERM end everything here first, the newest first.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

/// What a shell calls the end of a program by Ctrl-C.
const EXIT_INTERRUPTED: i32 = 130;
/// How long it is tried to remove a folder.
const REMOVE_MAX: Duration = Duration::from_secs(5);

enum Left {
    /// A process, and the signal that ends it.
    Process(u32, &'static str),
    Folder(PathBuf),
}

static LEFT: Mutex<Vec<(u64, Left)>> = Mutex::new(Vec::new());

/// While it lives, somebody has to see to the end of something.
#[derive(Debug)]
pub struct Pending(u64);

impl Drop for Pending {
    fn drop(&mut self) {
        LEFT.lock().unwrap_or_else(PoisonError::into_inner).retain(|(number, _)| *number != self.0);
    }
}

fn note(left: &mut Vec<(u64, Left)>, what: Left) -> Pending {
    let number = left.last().map_or(0, |(number, _)| number + 1);
    left.push((number, what));
    Pending(number)
}

/// Starts a process that goes by this signal. Not while everything ends: then it would be forgotten.
pub fn start(command: &mut Command, ends_by: &'static str) -> std::io::Result<(Child, Pending)> {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    let child = command.spawn()?;
    let pending = note(&mut left, Left::Process(child.id(), ends_by));
    Ok((child, pending))
}

/// A folder of one's own.
pub struct Scratch {
    folder: tempfile::TempDir,
    _pending: Pending,
}

impl Scratch {
    /// A new one, with nothing in it.
    pub fn new() -> std::io::Result<Scratch> {
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir()?;
        let pending = note(&mut left, Left::Folder(folder.path().to_owned()));
        Ok(Scratch { folder, _pending: pending })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// From now on a signal ends everything before it ends this process.
pub fn watch() -> std::io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            end_all(|| {
                // The shell that started us must see that we were interrupted.
                let _ = emulate_default_handler(signal);
                std::process::exit(EXIT_INTERRUPTED);
            });
        }
    });
    Ok(())
}

/// Ends everything; then this. Nobody starts anything meanwhile.
pub fn end_all(then: impl FnOnce()) {
    let left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    for (_, left) in left.iter().rev() {
        // Each on its own: the next must go even if this one does not.
        match left {
            Left::Process(id, signal) => _ = Command::new("kill").args([*signal, &id.to_string()]).output(),
            Left::Folder(path) => remove(path),
        }
    }
    then();
}

/// Who was just told to end may write for a moment yet.
fn remove(folder: &Path) {
    let until = Instant::now() + REMOVE_MAX;
    while std::fs::remove_dir_all(folder).is_err() && folder.exists() && Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
    }
}
