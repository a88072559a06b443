//! Programs of the system that tests and measurements drive, and how to get them on Debian and Ubuntu.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

/// The interpreter that sees the distribution's Python packages, also where another python3 comes first in PATH.
pub const SYSTEM_PYTHON: &str = "/usr/bin/python3";

/// A program and the package that brings it.
pub struct Package {
    name: &'static str,
    is_present: fn() -> bool,
}

/// What `cargo xtask test` needs: peers to compare replies with, and clients that people use.
pub const OF_TESTS: &[Package] = &[
    Package { name: "redis-server", is_present: || has_program("redis-server") },
    Package { name: "redis-tools", is_present: || has_program("redis-cli") },
    Package {
        name: "postgresql-15",
        is_present: || Path::new("/usr/lib/postgresql/15/bin/initdb").is_file(),
    },
    Package { name: "python3-redis", is_present: || python_runs("import redis") },
    Package { name: "python3-venv", is_present: || python_runs("import ensurepip, venv") },
    Package { name: "nodejs", is_present: || has_program("node") },
    Package { name: "npm", is_present: || has_program("npm") },
    Package { name: "gcc", is_present: || has_program("cc") },
    Package { name: "libhiredis-dev", is_present: || Path::new("/usr/include/hiredis/hiredis.h").is_file() },
    Package { name: "bsdutils", is_present: || has_program("script") },
    Package { name: "xfsprogs", is_present: || has_program("mkfs.xfs") && has_program("xfs_io") },
    Package { name: "curl", is_present: || has_program("curl") },
    Package { name: "chromium", is_present: || has_program("chromium") },
];

/// What `cargo xtask bench` needs.
pub const OF_BENCH: &[Package] =
    &[Package { name: "redis-server", is_present: || has_program("redis-server") }];

/// What `cargo xtask bench cluster` needs.
pub const OF_CLUSTER_BENCH: &[Package] =
    &[Package { name: "etcd-server", is_present: || has_program("etcd") }];

/// What `cargo xtask bench external` needs beside Redis.
pub const OF_EXTERNAL_BENCH: &[Package] = &[
    Package { name: "redis-tools", is_present: || has_program("redis-cli") },
    Package {
        name: "postgresql-15",
        is_present: || Path::new("/usr/lib/postgresql/15/bin/initdb").is_file(),
    },
];

/// What `cargo xtask torture power` needs.
pub const OF_POWER: &[Package] = &[
    Package { name: "xfsprogs", is_present: || has_program("mkfs.xfs") && has_program("xfs_io") },
    Package { name: "e2fsprogs", is_present: || has_program("mkfs.ext4") },
    Package { name: "mount", is_present: || has_program("mount") && has_program("umount") },
];

/// Installs what is missing, or says what to install.
pub fn require(packages: &[Package]) -> Result<()> {
    let missing = missing(packages);
    if missing.is_empty() {
        return Ok(());
    }
    if let Some(installer) = installer() {
        println!("installing {}", missing.join(", "));
        install(&installer, &missing);
    }
    let still_missing = self::missing(packages);
    if !still_missing.is_empty() {
        bail!(
            "missing programs; install these packages and run again: {0}\n  Debian, Ubuntu: sudo apt-get install {0}",
            still_missing.join(" ")
        );
    }
    Ok(())
}

fn missing(packages: &[Package]) -> Vec<&'static str> {
    packages.iter().filter(|package| !(package.is_present)()).map(|package| package.name).collect()
}

/// The words that come before `install`, if this user may install packages without being asked for a password.
fn installer() -> Option<Vec<&'static str>> {
    if !has_program("apt-get") {
        None
    } else if is_root() {
        Some(vec!["apt-get"])
    } else if has_program("sudo") && succeeds(Command::new("sudo").args(["-n", "true"])) {
        Some(vec!["sudo", "-n", "apt-get"])
    } else {
        None
    }
}

/// Failures are left to the second look at what is missing. The index is refreshed only when the first try fails.
fn install(installer: &[&str], packages: &[&str]) {
    let apt = |arguments: &[&str]| {
        let mut command = Command::new(installer[0]);
        command.args(&installer[1..]).args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        command.status().is_ok_and(|status| status.success())
    };
    let arguments = [&["install", "-y", "--no-install-recommends"], packages].concat();
    if !apt(&arguments) && apt(&["update"]) {
        apt(&arguments);
    }
}

/// Whether we run as root.
pub fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

fn python_runs(line: &str) -> bool {
    succeeds(Command::new(SYSTEM_PYTHON).args(["-c", line]))
}

/// Also looks where programs for root live, which is not in everybody's PATH.
fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.into_iter().any(|folder| Path::new(&folder).join(name).is_file())
}

fn succeeds(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let packages = [
            Package { name: "present", is_present: || true },
            Package { name: "absent", is_present: || false },
        ];
        assert_eq!(missing(&packages), ["absent"]);
        assert!(has_program("sh"));
        assert!(!has_program("no-such-program-anywhere"));
    }
}
