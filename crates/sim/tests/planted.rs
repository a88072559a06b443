//! Every invariant notices the bug that was planted for it.

use std::collections::BTreeSet;

use quipu_sim::kinds::{self, Ground, STEPS};
use quipu_sim::{Invariant, Plant, run};

/// Seeds within which a planted bug must be found.
const SEEDS: u64 = 400;

/// Runs worlds with the bug until the invariant is found broken.
fn finds(plant: Plant, invariant: Invariant) {
    let mut others = BTreeSet::new();
    for seed in 0..SEEDS {
        match run(seed, plant, false) {
            Err(violation) if violation.invariant == invariant => return,
            Err(violation) => drop(others.insert(violation.invariant)),
            Ok(_) => {}
        }
    }
    panic!("{plant:?} did not break {invariant:?} within {SEEDS} seeds, only {others:?}");
}

#[test]
fn syncs_that_lie_lose_acknowledged_changes() {
    finds(Plant::SyncsLie, Invariant::Survival);
}

#[test]
fn recycled_segments_that_keep_old_bytes_lose_changes() {
    finds(Plant::RecycledSegmentsKeepOldBytes, Invariant::Survival);
}

#[test]
fn a_cold_store_that_forgets_its_last_write_loses_changes() {
    finds(Plant::ColdForgetsTheLastWrite, Invariant::Survival);
}

#[test]
fn a_cold_store_that_tears_writes_breaks_the_ledger() {
    finds(Plant::ColdTearsWrites, Invariant::Ledger);
}

#[test]
fn stale_rows_of_the_cold_store_are_noticed() {
    finds(Plant::ColdReadsStaleRows, Invariant::Answers);
}

#[test]
fn request_ids_that_never_reach_the_cold_store_are_missed() {
    finds(Plant::ColdDropsRequestIds, Invariant::ExactlyOnce);
}

#[test]
fn trails_that_never_reach_the_cold_store_are_missed() {
    let world = |seed| kinds::run(seed, Ground::planted(seed, Plant::ColdDropsTrails), STEPS, false);
    let is_noticed =
        |seed| matches!(world(seed), Err(violation) if violation.invariant == Invariant::Survival);
    assert!((0..SEEDS).any(is_noticed));
}

#[test]
fn copies_that_read_differently_are_no_twins() {
    finds(Plant::ColdDiffersBetweenCopies, Invariant::Twins);
}

#[test]
fn replies_before_settling_are_taken_back() {
    finds(Plant::RepliesBeforeSettling, Invariant::NothingShownIsTakenBack);
}

#[test]
fn replies_before_settling_acknowledge_what_is_lost() {
    finds(Plant::RepliesBeforeSettling, Invariant::Survival);
}

#[test]
fn retries_without_id_count_twice() {
    finds(Plant::RetriesWithoutId, Invariant::ExactlyOnce);
}

#[test]
fn bounds_that_are_left_away_are_crossed() {
    finds(Plant::BoundsLeftAway, Invariant::Bounds);
}

#[test]
fn groups_that_are_torn_apart_survive_in_part() {
    finds(Plant::GroupsTornApart, Invariant::Atomicity);
}

#[test]
fn scans_that_lose_a_key_are_noticed() {
    finds(Plant::ScansLoseAKey, Invariant::Scans);
}

#[test]
fn damage_taken_for_the_end_is_noticed() {
    finds(Plant::DamageReadsAsTheEnd, Invariant::Damage);
}
