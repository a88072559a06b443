//! Where things are, and how cargo is called.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::interrupt::{Pending, Undo};

/// Top folder of the repository.
pub fn top() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// The cargo that runs us, in the top folder.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(top());
    command
}

/// Cargo's output folder; measurements leave their files there too, because it is on a real disk and is ignored by git.
pub fn target_folder() -> Result<PathBuf> {
    let output = cargo().args(["metadata", "--no-deps", "--format-version", "1"]).output()?;
    ensure!(output.status.success(), "cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let folder = metadata["target_directory"].as_str().context("cargo metadata names no target_directory")?;
    Ok(PathBuf::from(folder))
}

/// Which quipu to drive.
#[derive(Debug, Clone, clap::Args)]
pub struct Binary {
    /// Use this quipu instead of building the release binary
    #[arg(long, global = true, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Of tests, which have built this one already.
    #[arg(skip)]
    is_debug: bool,
}

impl Binary {
    /// The one that tests run.
    pub fn debug() -> Binary {
        Binary { binary: None, is_debug: true }
    }

    /// Whether it was given, so that nobody knows what it was built from.
    pub fn is_given(&self) -> bool {
        self.binary.is_some()
    }

    /// The binary given, or the release binary, freshly built.
    pub fn get(&self) -> Result<PathBuf> {
        if let Some(given) = &self.binary {
            return given.canonicalize().with_context(|| given.display().to_string());
        }
        let (arguments, folder): (&[&str], _) = match self.is_debug {
            // As tests are built: by itself it would have other features, and everything would be built again.
            true => (&["test", "--workspace", "--no-run", "--quiet"], "debug"),
            false => (&["build", "--package", "quipu-server", "--bin", "quipu", "--release"], "release"),
        };
        let status = cargo().args(arguments).status()?;
        ensure!(status.success(), "the {folder} binary does not build");
        Ok(target_folder()?.join(folder).join("quipu"))
    }
}

/// A fresh folder for data of servers, removed when dropped.
pub struct Scratch {
    folder: tempfile::TempDir,
    _pending: Pending,
}

impl Scratch {
    /// In cargo's output folder, under a name that says what it was for.
    pub fn new(purpose: &str) -> Result<Scratch> {
        let target = target_folder()?;
        std::fs::create_dir_all(&target)?;
        let folder = tempfile::Builder::new().prefix(&format!("{purpose}-")).tempdir_in(target)?;
        let pending = Pending::new(Undo::Remove(folder.path().to_path_buf()));
        Ok(Scratch { folder, _pending: pending })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}
