//! Worlds of uniques, windows, quotas and holds, on simulated machines and on a real disk.

use quipu_sim::Violation;
use quipu_sim::kinds::{Ground, STEPS, Stats, run};

/// Enough to meet everything that happens in them, few enough for every test run.
const MACHINES: u64 = 120;
const FOLDERS: u64 = 4;

fn all(count: u64, world: impl Fn(u64) -> Result<Stats, Violation>) -> Stats {
    let mut total = Stats::default();
    for seed in 0..count {
        match world(seed) {
            Ok(stats) => total = total.and(stats),
            Err(violation) => {
                panic!(
                    "seed {seed}: {violation}\nagain: cargo run --release -p quipu-sim -- --kinds --seed {seed}"
                )
            }
        }
    }
    // Worlds in which nothing happens would prove nothing.
    for (what, number) in [
        ("retries", total.retries),
        ("lives", total.lives),
        ("checkpoints", total.checkpoints),
        ("evictions", total.evicted),
        ("reads of the cold store", total.cold_reads),
        ("comparisons of digests", total.digests),
    ] {
        assert!(number >= count, "only {number} {what} in {count} worlds");
    }
    total
}

#[test]
fn crashes_change_no_answer() {
    let total = all(MACHINES, |seed| run(seed, Ground::machine(seed), STEPS, false));
    assert!(total.steps_lost >= MACHINES / 10, "only {} unacknowledged steps lost", total.steps_lost);
}

#[test]
fn nor_do_real_disks() {
    all(FOLDERS, |seed| {
        let folder = Ground::folder().expect("a temporary folder");
        run(seed, folder, STEPS, false)
    });
}

#[test]
fn a_seed_is_the_same_world_each_time() {
    for seed in [1, 2, 3] {
        let world = || run(seed, Ground::machine(seed), STEPS, false).ok();
        assert_eq!(world(), world(), "seed {seed}");
    }
}
