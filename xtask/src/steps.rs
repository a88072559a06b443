//! The one command that a change must pass, and its `fix` twin.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Result, bail, ensure};

use crate::workspace::{cargo, top};
use crate::{cluster, on_redis, packages, schemathesis};

/// Runs every step, also after one has failed, so that one run tells everything.
pub fn test() -> Result<()> {
    packages::require(packages::OF_TESTS)?;
    let started = Instant::now();
    let mut failed = Vec::new();
    let steps = test_steps(has_nextest());
    for (name, arguments) in &steps {
        if !run(name, arguments)? {
            failed.push(*name);
        }
    }
    let more: [Check; 3] = [
        ("on Redis", || on_redis::run(&on_redis::Arguments::in_test())),
        ("HTTP API", || schemathesis::run(&schemathesis::Arguments::in_test())),
        ("cluster torture", || cluster::run(&cluster::Arguments::in_test())),
    ];
    for (name, run) in more {
        if let Err(error) = run() {
            println!("== {name}: FAILED: {error:#}");
            failed.push(name);
        }
    }
    let seconds = started.elapsed().as_secs();
    if !failed.is_empty() {
        bail!("failed after {seconds} s: {}", failed.join(", "));
    }
    let names: Vec<&str> = steps.iter().map(|(name, _)| *name).chain(more.map(|(name, _)| name)).collect();
    println!("all passed in {seconds} s: {}", names.join(", "));
    Ok(())
}

/// Formats, applies what the linter can fix by itself, and writes the pages anew that come from the program.
pub fn fix() -> Result<()> {
    ensure!(run("format", &["fmt", "--all"])?, "cargo fmt failed");
    let clippy = ["clippy", "--workspace", "--all-targets", "--fix", "--allow-dirty", "--allow-staged"];
    ensure!(run("lints", &clippy)?, "cargo clippy --fix failed");
    let page = cargo().args(["run", "--quiet", "--package", "quipu-server", "--", "manual"]).output()?;
    ensure!(page.status.success(), "`quipu manual` failed");
    std::fs::write(top().join("docs/cli.md"), page.stdout)?;
    // The test that compares this page with the table writes it, if it is told to.
    let page = ["test", "--quiet", "--package", "quipu-wire", "--test", "commands_page"];
    let status = cargo().args(page).env("QUIPU_REWRITE_PAGES", "1").status()?;
    ensure!(status.success(), "docs/commands.md was not written");
    Ok(())
}

/// Runs the server's kill test with more rounds, on the binary that people run.
pub fn torture_kill(rounds: u32) -> Result<()> {
    let arguments = ["test", "--release", "--package", "quipu-server", "--test", "kill", "--", "--nocapture"];
    let status = cargo().args(arguments).env("QUIPU_KILL_ROUNDS", rounds.to_string()).status()?;
    ensure!(status.success(), "the kill test failed");
    Ok(())
}

/// Runs the test of `quipu reconcile` under load with more counters, on the binary that people run.
pub fn torture_reconcile(rows: u32) -> Result<()> {
    let test =
        ["test", "--release", "--package", "quipu-server", "--test", "reconcile_live", "--", "--nocapture"];
    let status = cargo().args(test).env("QUIPU_RECONCILE_ROWS", rows.to_string()).status()?;
    ensure!(status.success(), "the test of reconciliation failed");
    Ok(())
}

/// The fuzz targets, one after the other. What they find is kept in `fuzz/artifacts`.
pub fn fuzz(minutes: u64, only: Option<&str>) -> Result<()> {
    let wanted = |target: &&str| only.is_none_or(|only| only == *target);
    for target in ["resp", "log", "codec", "json"].into_iter().filter(wanted) {
        // libFuzzer's instrumentation is not stable yet; the compiler is.
        let mut command = cargo();
        command.env("RUSTC_BOOTSTRAP", "1").args(["fuzz", "run", "--release", target, "--", "-timeout=10"]);
        command.args([
            "-rss_limit_mb=2048",
            "-print_final_stats=1",
            &format!("-max_total_time={}", minutes * 60),
        ]);
        ensure!(
            command.status()?.success(),
            "fuzzing {target} failed (is cargo-fuzz installed? `cargo install cargo-fuzz`)"
        );
    }
    Ok(())
}

/// A step that is no call of cargo.
type Check = (&'static str, fn() -> Result<()>);

type Step = (&'static str, Vec<&'static str>);

fn test_steps(has_nextest: bool) -> Vec<Step> {
    let mut steps = vec![
        ("format", vec!["fmt", "--all", "--check"]),
        ("lints", vec!["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
    ];
    if has_nextest {
        steps.push(("tests", vec!["nextest", "run", "--workspace", "--no-fail-fast"]));
        steps.push(("documentation tests", vec!["test", "--workspace", "--doc"]));
    } else {
        steps.push(("tests", vec!["test", "--workspace", "--no-fail-fast"]));
    }
    steps
}

fn run(name: &str, arguments: &[&str]) -> Result<bool> {
    let started = Instant::now();
    println!("== {name}: cargo {}", arguments.join(" "));
    let passed = cargo().args(arguments).status()?.success();
    println!("== {name}: {} in {} s", if passed { "passed" } else { "FAILED" }, started.elapsed().as_secs());
    Ok(passed)
}

fn has_nextest() -> bool {
    let mut command: Command = cargo();
    command.args(["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_tests_run_in_either_form() {
        let with = test_steps(true);
        assert!(with.iter().any(|(_, arguments)| arguments.contains(&"--doc")));
        // Plain `cargo test` runs them by itself.
        let without = test_steps(false);
        assert!(without.iter().any(|(_, arguments)| arguments == &["test", "--workspace", "--no-fail-fast"]));
    }
}
