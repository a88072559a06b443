//! `quipu-sim`: runs worlds, one seed each, and says how to run a failing one again.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use clap::Parser;
use quipu_sim::cluster::story::tell_file;
use quipu_sim::cluster::{self, Planted};
use quipu_sim::{Plant, Violation, kinds, run};

/// Simulates crashes of the engine and its store, or clusters.
#[derive(Parser)]
struct Arguments {
    /// How many seeds to run
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run this one seed and tell what happens in it
    #[arg(long)]
    seed: Option<u64>,
    /// Go on after a failure
    #[arg(long)]
    keep_going: bool,
    /// Worlds of many nodes
    #[arg(long)]
    cluster: bool,
    /// Worlds of counters that are more than numbers
    #[arg(long, conflicts_with = "cluster")]
    kinds: bool,
    /// Tell this story, with one seed
    #[arg(long)]
    story: Option<PathBuf>,
}

/// The numbers of all worlds of one kind.
trait Total: Copy + Default + Send + std::fmt::Debug {
    fn run(seed: u64, is_traced: bool) -> Result<Self, Violation>;
    fn and(self, other: Self) -> Self;
    /// How to say on the command line that it is this kind.
    const OPTION: &str;
}

impl Total for quipu_sim::Stats {
    fn run(seed: u64, is_traced: bool) -> Result<Self, Violation> {
        run(seed, Plant::None, is_traced)
    }

    fn and(self, other: Self) -> Self {
        self.and(other)
    }

    const OPTION: &str = "";
}

impl Total for cluster::Stats {
    fn run(seed: u64, is_traced: bool) -> Result<Self, Violation> {
        cluster::run(seed, Planted::None, is_traced)
    }

    fn and(self, other: Self) -> Self {
        self.and(other)
    }

    const OPTION: &str = " --cluster";
}

impl Total for kinds::Stats {
    fn run(seed: u64, is_traced: bool) -> Result<Self, Violation> {
        kinds::run(seed, kinds::Ground::machine(seed), kinds::STEPS, is_traced)
    }

    fn and(self, other: Self) -> Self {
        self.and(other)
    }

    const OPTION: &str = " --kinds";
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(path) = &arguments.story {
        let told = tell_file(path, arguments.seed.unwrap_or(1));
        return told
            .inspect_err(|mismatch| println!("{mismatch}"))
            .map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    match (arguments.cluster, arguments.kinds) {
        (true, _) => run_all::<cluster::Stats>(&arguments),
        (_, true) => run_all::<kinds::Stats>(&arguments),
        _ => run_all::<quipu_sim::Stats>(&arguments),
    }
}

fn run_all<T: Total>(arguments: &Arguments) -> ExitCode {
    if let Some(seed) = arguments.seed {
        let outcome = T::run(seed, true);
        match &outcome {
            Ok(stats) => println!("seed {seed}: {stats:?}"),
            Err(violation) => println!("seed {seed}: {violation}"),
        }
        return if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let next = AtomicU64::new(arguments.from);
    let failed = AtomicBool::new(false);
    let total = Mutex::new((0, T::default()));
    let end = arguments.from + arguments.seeds;
    let work = || {
        while !failed.load(Ordering::Relaxed) || arguments.keep_going {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            match T::run(seed, false) {
                Ok(stats) => {
                    let mut total = total.lock().unwrap_or_else(|poison| poison.into_inner());
                    *total = (total.0 + 1, total.1.and(stats));
                }
                Err(violation) => {
                    failed.store(true, Ordering::Relaxed);
                    let option = T::OPTION;
                    println!(
                        "seed {seed}: {violation}\n  cargo run --release -p quipu-sim -- --seed {seed}{option}"
                    );
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let (worlds, total) = total.into_inner().unwrap_or_else(|poison| poison.into_inner());
    println!("{worlds} worlds: {total:?}");
    if failed.load(Ordering::Relaxed) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
