//! Things to do to a data folder and to the disk under it, and a server that must refuse to start.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use crate::support::serve_command;

/// Runs `quipu serve` where it must refuse to start, with this exit code, and say all of this.
pub fn assert_refused(data: &Path, arguments: &[&str], code: i32, words: &[&str]) {
    let mut command = serve_command(data);
    command.args(arguments);
    assert_command_refused(command, code, words);
}

/// The same with a command made ready elsewhere.
pub fn assert_command_refused(mut command: Command, code: i32, words: &[&str]) {
    let output = command.output().expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{command:?}: {said}");
    println!("{said}");
    for word in words {
        assert!(said.contains(word), "{said:?} does not say {word:?}");
    }
    assert!(!said.contains(" serves: ") && !said.contains("panicked"), "{said}");
}

/// Every file below a folder, locks apart, with its length and the time of its last change: equal when nobody wrote.
pub fn snapshot(folder: &Path) -> BTreeMap<PathBuf, (u64, SystemTime)> {
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        if metadata.is_dir() {
            files.extend(snapshot(&entry.path()));
        } else if !entry.file_name().to_str().unwrap().to_ascii_lowercase().ends_with("lock") {
            files.insert(entry.path(), (metadata.len(), metadata.modified().unwrap()));
        }
    }
    files
}

/// The entries of a folder whose path ends like this, in order.
pub fn entries(folder: &Path, suffix: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut entries: Vec<_> = all.filter(|path| path.to_str().unwrap().ends_with(suffix)).collect();
    entries.sort();
    entries
}

/// Flips all bits of one byte. Twice is as before.
pub fn flip(path: &Path, position: u64) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, position).unwrap();
    file.write_all_at(&[!byte[0]], position).unwrap();
}

/// The segment of the log that is in use last, and where the last byte in it that is not zero stands.
pub fn log_end(data: &Path) -> (PathBuf, u64) {
    let segments = entries(&data.join("log"), ".log");
    let used = |path: &PathBuf| {
        let bytes = fs::read(path).unwrap();
        bytes.starts_with(b"QUIPULOG").then(|| bytes.iter().rposition(|byte| *byte != 0).unwrap() as u64)
    };
    let last = segments.into_iter().rev().find_map(|path| used(&path).map(|end| (path, end)));
    last.expect("a log has a segment in use")
}

/// A file system in memory, mounted where the test wants it; gone when dropped.
pub struct Mount {
    folder: PathBuf,
}

impl Mount {
    /// Mounts, if this process may.
    pub fn of_megabytes(folder: &Path, megabytes: u64) -> Option<Mount> {
        fs::create_dir_all(folder).unwrap();
        let size = format!("size={megabytes}m");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "quipu-test"]).arg(folder).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| Mount { folder: folder.to_path_buf() })
    }

    /// From now on nobody writes to it, or everybody again.
    pub fn remount(&self, option: &str) {
        let option = format!("remount,{option}");
        let output = Command::new("mount").args(["-o", &option]).arg(&self.folder).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Lazily, because a server that still runs (the test failed) must not keep it. A failure shows as a leftover.
        let _ = Command::new("umount").arg("-l").arg(&self.folder).output();
    }
}

/// A library that makes the disk fail on command (`shim.c`), compiled for the test.
pub struct Shim {
    library: PathBuf,
    trigger: PathBuf,
}

impl Shim {
    /// Compiles it into a folder.
    pub fn compile(folder: &Path) -> Shim {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/shim.c");
        let library = folder.join("shim.so");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"]).arg(&library).arg(source).arg("-ldl");
        let output = compiler.output().expect("a C compiler (cc) is installed");
        assert!(output.status.success(), "{output:?}");
        Shim { library, trigger: folder.join("fault") }
    }

    /// `quipu serve` on a disk that can fail.
    pub fn serve(&self, data: &Path) -> Command {
        let mut command = serve_command(data);
        command.env("LD_PRELOAD", &self.library).env("QUIPU_FAULT", &self.trigger);
        command
    }

    /// From now on it fails in this way (`sync`, `write` or `full`) for files whose names end so.
    pub fn fail(&self, fault: &str, name_end: &str) {
        let draft = self.trigger.with_extension("draft");
        fs::write(&draft, format!("{fault} {name_end}")).unwrap();
        fs::rename(draft, &self.trigger).unwrap();
    }

    /// From now on it works.
    pub fn heal(&self) {
        fs::remove_file(&self.trigger).unwrap();
    }
}
