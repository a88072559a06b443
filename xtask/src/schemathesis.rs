//! The HTTP API against its own description: schemathesis makes requests from `/openapi.json`, right ones, wrong ones and
//! whole histories of them, sends them to the real binary and holds the replies against the document.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::packages::SYSTEM_PYTHON;
use crate::servers::Server;
use crate::workspace::{Binary, Scratch, target_folder, top};

/// What `cargo xtask test` gives it: all phases once, and some rounds of fuzzing.
const SECONDS_IN_TEST: u64 = 45;
/// The same requests in each run of the tests; a longer run of its own makes others.
const SEED_IN_TEST: u64 = 1;

/// How long, and from which seed.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Go on making requests for so long
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Repeat the run that said this seed
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    binary: Binary,
}

impl Arguments {
    /// As `cargo xtask test` runs it.
    pub fn in_test() -> Arguments {
        Arguments { seconds: SECONDS_IN_TEST, seed: Some(SEED_IN_TEST), binary: Binary::debug() }
    }
}

/// Runs until the time is over or something is found.
pub fn run(arguments: &Arguments) -> Result<()> {
    let binary = arguments.binary.get()?;
    let python = environment()?;
    let scratch = Scratch::new("schemathesis")?;
    // Nothing is lost in this test, so nothing waits for the disk.
    let server = Server::quipu(&binary, &scratch.path().join("served"), &["--durability", "none"])?;
    let http = server.http.context("quipu serves HTTP")?;
    let folder = top().join("xtask/schemathesis");
    let mut command = Command::new(python.join("bin/schemathesis"));
    command
        // What it keeps between runs goes where it is started.
        .current_dir(scratch.path())
        .arg("--config-file")
        .arg(folder.join("schemathesis.toml"))
        .args(["run", &format!("http://{http}/openapi.json"), "--checks", "all"])
        .args(["--max-time", &arguments.seconds.to_string()])
        // Its reply has no end to wait for.
        .args(["--exclude-path", "/api/v1/watch"])
        .env("SCHEMATHESIS_HOOKS", "hooks")
        .env("PYTHONPATH", &folder)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    if let Some(seed) = arguments.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    ensure!(command.status()?.success(), "the HTTP API is not as /openapi.json says");
    Ok(())
}

/// A Python environment in cargo's output folder, made once for each set of requirements.
fn environment() -> Result<PathBuf> {
    let wanted = top().join("xtask/schemathesis/requirements.txt");
    let folder = target_folder()?.join("schemathesis-environment");
    let made_of = folder.join("requirements.txt");
    let text = std::fs::read(&wanted).with_context(|| wanted.display().to_string())?;
    if std::fs::read(&made_of).is_ok_and(|found| found == text) {
        return Ok(folder);
    }
    succeed(Command::new(SYSTEM_PYTHON).args(["-m", "venv", "--clear"]).arg(&folder))?;
    let mut pip = Command::new(folder.join("bin/pip"));
    succeed(pip.args(["install", "--quiet", "--disable-pip-version-check", "-r"]).arg(&wanted))?;
    std::fs::copy(&wanted, &made_of).with_context(|| made_of.display().to_string())?;
    Ok(folder)
}

fn succeed(command: &mut Command) -> Result<()> {
    let program = Path::new(command.get_program()).display().to_string();
    let status = command.status().with_context(|| program.clone())?;
    ensure!(status.success(), "{program} failed: {status}");
    Ok(())
}
