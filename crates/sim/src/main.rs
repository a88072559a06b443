//! `quipu-sim`: runs worlds, one seed each, and says how to run a failing one again.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use clap::Parser;
use quipu_sim::{Plant, Stats, run};

/// Simulates crashes of the engine and its store.
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
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(seed) = arguments.seed {
        let outcome = run(seed, Plant::None, true);
        match &outcome {
            Ok(stats) => println!("seed {seed}: {stats:?}"),
            Err(violation) => println!("seed {seed}: {violation}"),
        }
        return if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let next = AtomicU64::new(arguments.from);
    let failed = AtomicBool::new(false);
    let total = Mutex::new(Vec::<Stats>::new());
    let end = arguments.from + arguments.seeds;
    let work = || {
        while !failed.load(Ordering::Relaxed) || arguments.keep_going {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            match run(seed, Plant::None, false) {
                Ok(stats) => total.lock().unwrap_or_else(|poison| poison.into_inner()).push(stats),
                Err(violation) => {
                    failed.store(true, Ordering::Relaxed);
                    println!("seed {seed}: {violation}\n  cargo run --release -p quipu-sim -- --seed {seed}");
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let total = total.into_inner().unwrap_or_else(|poison| poison.into_inner());
    println!("{} worlds: {:?}", total.len(), total.iter().copied().fold(Stats::default(), Stats::and));
    if failed.load(Ordering::Relaxed) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
