//! `quipu bench`: the same load against quipu, over RESP or HTTP, or any server that speaks the Redis protocol.
//!
//! | file | what lives there |
//! |---|---|
//! | here | the course of a run: prepare, drive, report |
//! | `args` | what can be asked for |
//! | `workload` | which commands on which keys |
//! | `resp`, `http` | commands and replies as bytes, in both protocols |
//! | `driver` | the loop of one thread over its connections, closed or open |
//! | `timer` | wakes the open loop |
//! | `connection` | one connection: bytes out, replies counted |
//! | `tally` | what came back |
//! | `target` | the address, and a session for what surrounds a run |
//! | `process` | CPU time and memory of the server's process |
//! | `report` | the result, for people and for programs |
//!
//! The generator shares the machine with the server it measures, so it must be cheap itself: one thread drives all
//! connections, commands are copied together from prebuilt parts, and replies are skipped, not decoded.

mod args;
mod connection;
mod driver;
mod http;
mod process;
mod report;
mod resp;
mod tally;
mod target;
mod timer;
mod workload;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

pub use self::args::Args;
use self::driver::{Outcome, Share, drive};
use self::report::{Report, ServerUse, SumCheck};
use self::resp::COUNT_ONCE_SCRIPT;
use self::tally::Tally;
pub use self::target::Unreachable;
use self::target::{Session, Target};
use self::workload::{Command, KeyFormat, Workload};
use crate::cli::failure::{self, Failure};
use crate::cli::terminal;
use crate::open_files;

/// Keys read with one command when the sum is verified.
const KEYS_PER_VERIFYING_READ: u64 = 1_000;

/// How often the progress line is drawn.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Files the generator needs beside connections.
const OTHER_FILES: u64 = 64;

/// Runs the load and prints the report. Fails if the sum is wrong, or if any reply was an error and nobody asked to
/// keep going.
pub fn run(args: Args) -> Result<(), Failure> {
    let report = measure(&args).map_err(|error| match error.is::<Unreachable>() {
        true => Failure::unreachable(failure::describe(&error)),
        false => error.into(),
    })?;
    // The file first: where nobody reads stdout, the process ends there. Neither is a reason to lose the other.
    let saved = args.json.as_ref().map_or(Ok(()), |path| save(&report, path));
    terminal::print(&report)?;
    saved?;
    Ok(judge(&args, &report)?)
}

fn save(report: &Report, path: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(&report.to_json())?;
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

/// Whether what came back is what was asked for.
fn judge(args: &Args, report: &Report) -> Result<()> {
    if let Some(first) = report.tally.first_error.as_ref().filter(|_| !args.keep_going) {
        let (errors, operations) = (report.tally.error_count(), report.tally.replies);
        bail!("{errors} of {operations} replies were errors, the first: {first}");
    }
    if let Some(sum) = report.sum.filter(|sum| !sum.holds()) {
        bail!("the sum of all keys grew by {}, but {} was acknowledged", sum.found, sum.expected);
    }
    Ok(())
}

/// Runs the load.
fn measure(args: &Args) -> Result<Report> {
    let target = Target::parse(&args.target)?;
    args.check(target.protocol)?;
    make_room_for(args.connections)?;
    let mut session = target.connect()?;
    let workload = prepare_workload(args, &target, &mut session)?;
    let server_pid = find_server(args, &target, &mut session);
    let sum_before = args.verify.then(|| sum_of_keys(&mut session, &workload)).transpose()?;
    let checkpoints_before = session.fact("checkpoints");
    let server_cpu_before = server_pid.map(process::cpu_seconds).transpose()?;
    let client_cpu_before = process::cpu_seconds(std::process::id())?;

    let outcomes = drive_all(args, &target, &workload)?;

    let mut report = gather(args, &target, &workload, outcomes)?;
    report.client_cpu_seconds = process::cpu_seconds(std::process::id())? - client_cpu_before;
    if let (Some(pid), Some(before)) = (server_pid, server_cpu_before) {
        let cpu_seconds = process::cpu_seconds(pid).context("the server has gone")? - before;
        let checkpoints = match (checkpoints_before, session.fact("checkpoints")) {
            (Some(before), Some(after)) => Some(after.saturating_sub(before)),
            _ => None,
        };
        let resident_bytes = process::resident_bytes(pid)?;
        report.server = Some(ServerUse { pid, cpu_seconds, resident_bytes, checkpoints });
    }
    if let Some(before) = sum_before {
        let raised = i128::from(workload.raises_sum_by());
        report.sum = Some(SumCheck {
            expected: i128::from(report.tally.replies - report.tally.error_count()) * raised,
            unknown: i128::from(report.tally.unanswered) * raised,
            found: sum_of_keys(&mut session, &workload)? - before,
        });
    }
    Ok(report)
}

/// Every connection is a file.
fn make_room_for(connections: u32) -> Result<()> {
    let wanted = u64::from(connections) + OTHER_FILES;
    let possible = open_files::raise_limit(wanted);
    ensure!(
        possible >= wanted,
        "{connections} connections need {wanted} open files, but only {possible} are allowed; raise it with ulimit -n"
    );
    Ok(())
}

fn prepare_workload(args: &Args, target: &Target, session: &mut Session) -> Result<Workload> {
    let script_hash = match (args.command, session) {
        (Command::ScriptId, Session::Resp(session)) => {
            let hash =
                session.command(&["SCRIPT", "LOAD", COUNT_ONCE_SCRIPT]).context("cannot load the script")?;
            String::from_utf8_lossy(hash.as_bytes().unwrap_or_default()).into_owned()
        }
        _ => String::new(),
    };
    Ok(Workload {
        command: args.command,
        protocol: target.protocol,
        key_format: KeyFormat::parse(&args.key_format)?,
        keys: args.keys,
        value: args.value,
        batch: args.batch,
        seed: args.seed.unwrap_or_else(|| SmallRng::from_os_rng().random()),
        script_hash,
    })
}

/// The process to watch: the one given, or the one a server on this machine names. A server in another process
/// namespace names a number that means nothing here; then there is none.
fn find_server(args: &Args, target: &Target, session: &mut Session) -> Option<u32> {
    if args.server_pid.is_some() || !target.is_local() {
        return args.server_pid;
    }
    let named = session.fact("process_id").and_then(|pid| u32::try_from(pid).ok());
    named.filter(|pid| process::cpu_seconds(*pid).is_ok())
}

/// One thread per share; this thread draws the progress.
fn drive_all(args: &Args, target: &Target, workload: &Workload) -> Result<Vec<Outcome>> {
    let shares: Vec<Share> = args.shares(target.protocol);
    let total = shares.iter().map(|share| share.operations).fold(0, u64::saturating_add);
    let (ready, done) = (&Barrier::new(shares.len()), &AtomicU64::new(0));
    thread::scope(|scope| {
        let threads: Vec<_> = shares
            .iter()
            .map(|share| scope.spawn(move || drive(target, workload, share, ready, done)))
            .collect();
        if std::io::stderr().is_terminal() {
            draw_progress(&threads, total, done);
        }
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| bail!("a generator thread failed")))
            .collect()
    })
}

fn draw_progress(threads: &[ScopedJoinHandle<'_, Result<Outcome>>], total: u64, done: &AtomicU64) {
    let of_total = if total == u64::MAX { String::new() } else { format!(" of {total}") };
    let mut stderr = std::io::stderr();
    let mut before = 0;
    while !threads.iter().all(ScopedJoinHandle::is_finished) {
        thread::sleep(PROGRESS_INTERVAL);
        let now = done.load(Ordering::Relaxed);
        let per_second = (now - before) as f64 / PROGRESS_INTERVAL.as_secs_f64();
        // A terminal that cannot be written to is no reason to lose a measurement.
        let _ = write!(stderr, "\r{now}{of_total} operations, {per_second:.0} per second\x1b[K");
        before = now;
    }
    let _ = write!(stderr, "\r\x1b[K");
}

/// Adds up what the threads measured.
fn gather(args: &Args, target: &Target, workload: &Workload, outcomes: Vec<Outcome>) -> Result<Report> {
    let started = outcomes.iter().map(|outcome| outcome.started).min();
    let ended = outcomes.iter().map(|outcome| outcome.ended).max();
    let mut tally = Tally::new()?;
    for outcome in outcomes {
        tally.add(outcome.tally)?;
    }
    Ok(Report {
        target: target.shown(),
        command: args.command.name(),
        connections: args.connections as usize,
        pipeline: args.pipeline(target.protocol),
        threads: args.threads as usize,
        keys: workload.keys,
        counters_per_operation: workload.counters_per_operation(),
        seed: workload.seed,
        rate: args.rate,
        started_at_ms: started.map_or(0, unix_ms),
        seconds: started.zip(ended).map_or(0.0, |(started, ended)| (ended - started).as_secs_f64()),
        tally,
        client_cpu_seconds: 0.0,
        server: None,
        sum: None,
    })
}

/// When `moment` was, in milliseconds since 1970.
fn unix_ms(moment: Instant) -> u64 {
    let wall = SystemTime::now() - moment.elapsed();
    wall.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// The sum of all keys of the workload; a missing key counts nothing.
fn sum_of_keys(session: &mut Session, workload: &Workload) -> Result<i128> {
    let mut sum: i128 = 0;
    for from in (0..workload.keys).step_by(KEYS_PER_VERIFYING_READ as usize) {
        let to = workload.keys.min(from + KEYS_PER_VERIFYING_READ);
        sum += session.sum_of_range(&workload.key_format, from, to)?;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests;
