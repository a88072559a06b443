//! A number of worlds in every test run; `quipu-sim` runs as many as one likes.

use quipu_sim::{Plant, Stats, run};

/// Enough to meet every kind of world, few enough for every test run.
const SEEDS: u64 = 200;

#[test]
fn no_world_breaks_a_promise() {
    let mut total = Stats::default();
    for seed in 0..SEEDS {
        match run(seed, Plant::None, false) {
            Ok(stats) => total = total.and(stats),
            Err(violation) => {
                panic!("seed {seed}: {violation}\nagain: cargo run --release -p quipu-sim -- --seed {seed}")
            }
        }
    }
    // Worlds in which nothing happens would prove nothing.
    for (what, count) in [
        ("lives", total.lives),
        ("power losses", total.power_losses),
        ("unacknowledged steps lost", total.steps_lost),
        ("checkpoints", total.checkpoints),
        ("evictions", total.evicted),
        ("reads of the cold store", total.cold_reads),
        ("requests refused for lack of space", total.refused_for_space),
        ("complete walks", total.walks),
        ("damaged disks", total.damages),
    ] {
        assert!(count >= SEEDS / 10, "only {count} {what} in {SEEDS} worlds");
    }
}

/// A failure is worth little if it cannot be seen again.
#[test]
fn a_seed_is_the_same_world_each_time() {
    for seed in [1, 2, 3, 31] {
        assert_eq!(run(seed, Plant::None, false).ok(), run(seed, Plant::None, false).ok(), "seed {seed}");
    }
}
