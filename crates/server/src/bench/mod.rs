//! `quipu bench`: the same load against quipu or any server that speaks the Redis protocol.
//!
//! | file | what lives there |
//! |---|---|
//! | here | arguments, and the course of a run: prepare, drive, report |
//! | `workload` | the commands as bytes |
//! | `driver` | the loop of one thread over its connections, closed or open |
//! | `connection` | one connection: bytes out, replies counted |
//! | `target` | the address, and a blocking session for what surrounds a run |
//! | `process` | CPU time and memory of the server's process |
//! | `report` | the result, for people and for programs |
//!
//! The generator shares the machine with the server it measures, so it must be cheap itself: one thread drives all
//! connections, commands are copied together from prebuilt parts, and replies are skipped, not decoded.

mod connection;
mod driver;
mod process;
mod report;
mod target;
mod workload;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use self::driver::{Outcome, Share, drive, latency_histogram};
use self::report::{Report, ServerUse, SumCheck};
use self::target::{Session, Target};
use self::workload::{COUNT_ONCE_SCRIPT, Command, KeyFormat, Workload, mget_of_range};

/// Operations of a run that is limited by nothing else.
const DEFAULT_OPERATIONS: u64 = 1_000_000;

/// Keys read with one command when the sum is verified.
const KEYS_PER_VERIFYING_READ: u64 = 1_000;

/// How often the progress line is drawn.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Offer load to a Redis-protocol server and measure what it takes
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  \
    quipu bench --command incr --connections 50 --pipeline 16 --operations 5000000\n  \
    quipu bench --target resp://127.0.0.1:6379 --command get --rate 50000 --seconds 30 --json result.json")]
pub struct Args {
    /// The server: resp://[user:password@]host:port
    #[arg(long, default_value = "resp://127.0.0.1:7071")]
    pub target: String,
    /// What to send
    #[arg(long, value_enum, default_value = "incr")]
    pub command: Command,
    /// Connections, shared out over the threads
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub connections: u32,
    /// Commands sent together on a connection
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub pipeline: u32,
    /// Keys are numbered from 0 to below this
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: u64,
    /// Name of key number n
    #[arg(long, default_value = "counter:{n}")]
    pub key_format: String,
    /// What `load` adds to each key
    #[arg(long, default_value_t = 1)]
    pub value: i64,
    /// Stop after this many operations [default: 1000000; with --seconds no limit; with load: --keys]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub operations: Option<u64>,
    /// Stop after this many seconds (at most a day)
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: Option<u64>,
    /// Open loop: start this many operations per second, and count latency from when each should have started
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: Option<u64>,
    /// Generator threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub threads: u32,
    /// Repeat a run: the same keys and request ids [default: random]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Process of the server, for its CPU and memory [default: asked from a server on this machine]
    #[arg(long)]
    pub server_pid: Option<u32>,
    /// Read all keys before and after, and fail unless their sum grew by what was acknowledged
    #[arg(long)]
    pub verify: bool,
    /// Write the result as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Runs the load and prints the report. Fails if any reply was an error or the sum is wrong.
pub fn run(args: Args) -> Result<()> {
    let report = measure(&args)?;
    println!("{report}");
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&report.to_json())?;
        std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(first) = &report.first_error {
        bail!("{} of {} replies were errors, the first: {first}", report.errors, report.operations);
    }
    if let Some(sum) = report.sum.filter(|sum| sum.expected != sum.found) {
        bail!("the sum of all keys grew by {}, but {} was acknowledged", sum.found, sum.expected);
    }
    Ok(())
}

/// Runs the load.
fn measure(args: &Args) -> Result<Report> {
    ensure!(args.threads <= args.connections, "--threads {} need as many --connections", args.threads);
    let target = Target::parse(&args.target)?;
    let mut session = target.connect()?;
    let workload = prepare_workload(args, &mut session)?;
    let server_pid = find_server(args, &target, &mut session)?;
    let sum_before = args.verify.then(|| sum_of_keys(&mut session, &workload)).transpose()?;
    let checkpoints_before = session.info_number("checkpoints").unwrap_or(None);
    let server_cpu_before = server_pid.map(process::cpu_seconds).transpose()?;
    let client_cpu_before = process::cpu_seconds(std::process::id())?;

    let outcomes = drive_all(args, &target, &workload)?;

    let client_cpu_seconds = process::cpu_seconds(std::process::id())? - client_cpu_before;
    let server = match (server_pid, server_cpu_before) {
        (Some(pid), Some(before)) => {
            let cpu_seconds = process::cpu_seconds(pid).context("the server has gone")? - before;
            let checkpoints = match (checkpoints_before, session.info_number("checkpoints").unwrap_or(None)) {
                (Some(before), Some(after)) => Some(after.saturating_sub(before)),
                _ => None,
            };
            Some(ServerUse { pid, cpu_seconds, resident_bytes: process::resident_bytes(pid)?, checkpoints })
        }
        _ => None,
    };
    let mut report = gather(args, &target, &workload, outcomes)?;
    report.client_cpu_seconds = client_cpu_seconds;
    report.server = server;
    if let Some(before) = sum_before {
        let raised = i128::from(args.command.raises_sum_by(args.value));
        let expected = i128::from(report.operations - report.errors) * raised;
        report.sum = Some(SumCheck { expected, found: sum_of_keys(&mut session, &workload)? - before });
    }
    Ok(report)
}

fn prepare_workload(args: &Args, session: &mut Session) -> Result<Workload> {
    let script_hash = match args.command {
        Command::ScriptId => {
            let hash =
                session.command(&["SCRIPT", "LOAD", COUNT_ONCE_SCRIPT]).context("cannot load the script")?;
            String::from_utf8_lossy(hash.as_bytes().unwrap_or_default()).into_owned()
        }
        _ => String::new(),
    };
    Ok(Workload {
        command: args.command,
        key_format: KeyFormat::parse(&args.key_format)?,
        keys: args.keys,
        value: args.value,
        seed: args.seed.unwrap_or_else(|| SmallRng::from_os_rng().random()),
        script_hash,
    })
}

/// The process to watch: the one given, or the one a server on this machine names. A server in another process
/// namespace names a number that means nothing here; then there is none.
fn find_server(args: &Args, target: &Target, session: &mut Session) -> Result<Option<u32>> {
    if args.server_pid.is_some() || !target.is_local() {
        return Ok(args.server_pid);
    }
    let named = session.info_number("process_id").unwrap_or(None).and_then(|pid| u32::try_from(pid).ok());
    Ok(named.filter(|pid| process::cpu_seconds(*pid).is_ok()))
}

/// One thread per share; this thread draws the progress.
fn drive_all(args: &Args, target: &Target, workload: &Workload) -> Result<Vec<Outcome>> {
    let shares = shares(args);
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

/// Divides connections, operations and rate over the threads.
fn shares(args: &Args) -> Vec<Share> {
    let threads = u64::from(args.threads);
    let total = match (args.operations, args.seconds) {
        (Some(operations), _) => operations,
        (None, _) if args.command == Command::Load => args.keys,
        (None, Some(_)) => u64::MAX,
        (None, None) => DEFAULT_OPERATIONS,
    };
    let part = |whole: u64, index: u64| whole / threads + u64::from(index < whole % threads);
    let mut first_operation = 0;
    (0..threads)
        .map(|index| {
            let connections = part(u64::from(args.connections), index);
            let operations = part(total, index);
            let share = Share {
                connections: connections as usize,
                operations,
                first_operation,
                pipeline: args.pipeline,
                time_limit: args.seconds.map(Duration::from_secs),
                rate: args.rate.map(|rate| rate as f64 * connections as f64 / f64::from(args.connections)),
            };
            first_operation += operations;
            share
        })
        .collect()
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
    let mut latency_ns = latency_histogram()?;
    for outcome in &outcomes {
        latency_ns.add(&outcome.tally.latency_ns)?;
    }
    Ok(Report {
        target: target.shown(),
        command: args.command.name(),
        connections: args.connections as usize,
        pipeline: args.pipeline,
        threads: args.threads as usize,
        keys: workload.keys,
        seed: workload.seed,
        rate: args.rate.map(|rate| rate as f64),
        operations: outcomes.iter().map(|outcome| outcome.tally.replies).sum(),
        errors: outcomes.iter().map(|outcome| outcome.tally.errors).sum(),
        first_error: outcomes.into_iter().find_map(|outcome| outcome.tally.first_error),
        seconds: started.zip(ended).map_or(0.0, |(started, ended)| (ended - started).as_secs_f64()),
        latency_ns,
        client_cpu_seconds: 0.0,
        server: None,
        sum: None,
    })
}

/// The sum of all keys of the workload; a missing key counts nothing.
fn sum_of_keys(session: &mut Session, workload: &Workload) -> Result<i128> {
    let mut sum: i128 = 0;
    for from in (0..workload.keys).step_by(KEYS_PER_VERIFYING_READ as usize) {
        let to = workload.keys.min(from + KEYS_PER_VERIFYING_READ);
        let values = session.exchange(&mget_of_range(&workload.key_format, from, to))?;
        let values = values.as_elements().context("MGET answered no list")?;
        sum += values.iter().filter_map(|value| value.as_integer()).map(i128::from).sum::<i128>();
    }
    Ok(sum)
}

#[cfg(test)]
mod tests;
