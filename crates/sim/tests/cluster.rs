//! Worlds of many nodes in every test run, and the bugs that they must notice; `quipu-sim --cluster` runs as many as one likes.

use quipu_cluster::plant::Plant;
use quipu_sim::cluster::{Planted, Stats, run};
use quipu_sim::{Invariant, Violation};

/// Enough to meet every kind of fault, few enough for every test run.
const SEEDS: u64 = 100;
/// Seeds within which a planted bug must be found.
const SEEDS_WITH_A_BUG: u64 = 300;

#[test]
fn no_cluster_breaks_a_promise() {
    let mut total = Stats::default();
    for seed in 0..SEEDS {
        match run(seed, Planted::None, false) {
            Ok(stats) => total = total.and(stats),
            Err(violation) => panic!(
                "seed {seed}: {violation}\nagain: cargo run --release -p quipu-sim -- --cluster --seed {seed}"
            ),
        }
    }
    // Worlds in which nothing happens would prove nothing.
    for (what, count) in [
        ("nodes that ended", total.ends),
        ("power losses", total.power_losses),
        ("cuts", total.cuts),
        ("snapshots", total.snapshots),
        ("refusals", total.refusals),
        ("elections", total.elections),
        ("joins", 10 * total.joins),
        ("leaves", 10 * total.leaves),
    ] {
        assert!(count >= SEEDS / 2, "only {count} {what} in {SEEDS} worlds");
    }
}

/// A failure is worth little if it cannot be seen again.
#[test]
fn a_seed_is_the_same_cluster_each_time() {
    for seed in [1, 2, 3, 53] {
        let runs = [(); 2].map(|()| run(seed, Planted::None, false).unwrap());
        assert_eq!(runs[0], runs[1], "seed {seed}");
    }
}

/// Runs worlds with a bug until one of these is found broken.
fn finds(planted: Planted, invariants: &[Invariant]) {
    let is_it = |violation: &Violation| invariants.contains(&violation.invariant);
    let found = (0..SEEDS_WITH_A_BUG).find_map(|seed| run(seed, planted, false).err().filter(is_it));
    assert!(found.is_some(), "{planted:?} was not noticed within {SEEDS_WITH_A_BUG} seeds");
}

#[test]
fn acknowledging_before_the_sync_of_a_majority_is_noticed() {
    finds(Planted::InNodes(Plant::AcknowledgesBeforeSync), &[Invariant::ExactlyOnce, Invariant::Survival]);
}

#[test]
fn a_deposed_leader_that_answers_reads_is_noticed() {
    finds(Planted::InNodes(Plant::ReadsWithoutAsking), &[Invariant::NothingShownIsTakenBack]);
}

#[test]
fn an_entry_carried_out_twice_after_a_restart_is_noticed() {
    finds(Planted::InNodes(Plant::AppliesTwice), &[Invariant::Twins, Invariant::Survival]);
}

/// Two leaders of one term end in a replica that finds its own log impossible, and stops.
#[test]
fn a_vote_forgotten_by_a_crash_is_noticed() {
    finds(Planted::InNodes(Plant::ForgetsVotes), &[Invariant::Progress, Invariant::ExactlyOnce]);
}

#[test]
fn request_ids_missing_from_a_snapshot_are_noticed() {
    finds(Planted::SnapshotsWithoutIds, &[Invariant::ExactlyOnce]);
}
