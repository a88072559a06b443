//! Libraries of other languages, fetched once at the versions that are pinned beside this file.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::SYSTEM_PYTHON;
use super::host::succeeds;

/// A file beside this one.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

/// Where the libraries are kept: with what the compiler makes, and as easily made again.
pub fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients");
    fs::create_dir_all(&folder).expect("a folder for the clients");
    folder
}

/// The folder `node_modules` with ioredis and node-redis.
pub fn node_modules() -> PathBuf {
    let folder = installed("node", &source("node/package-lock.json"), |folder| {
        for name in ["package.json", "package-lock.json"] {
            fs::copy(source("node").join(name), folder.join(name)).expect("a copy");
        }
        let mut npm = Command::new("npm");
        succeeds(npm.args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]).current_dir(folder));
    });
    folder.join("node_modules")
}

/// A Python with the newest redis-py.
pub fn python() -> PathBuf {
    let requirements = source("requirements.txt");
    let folder = installed("python", &requirements, |folder| {
        succeeds(Command::new(SYSTEM_PYTHON).args(["-m", "venv"]).arg(folder));
        let mut pip = Command::new(folder.join("bin/pip"));
        pip.args(["install", "--quiet", "--disable-pip-version-check", "--require-hashes", "-r"]);
        succeeds(pip.arg(&requirements));
    });
    folder.join("bin/python")
}

/// The folder `name`, made by `install` unless it was made from the same list of versions. Tests run at the same time, so
/// one installs and the others wait.
fn installed(name: &str, list: &Path, install: impl FnOnce(&Path)) -> PathBuf {
    let folder = folder().join(name);
    let lock = File::create(folder.with_extension("lock")).expect("a lock");
    lock.lock().expect("the lock");
    let (wanted, done) = (fs::read(list).expect("the list of versions"), folder.join("installed-from"));
    if fs::read(&done).ok().as_ref() != Some(&wanted) {
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        install(&folder);
        fs::write(done, wanted).expect("a note of what is installed");
    }
    folder
}
