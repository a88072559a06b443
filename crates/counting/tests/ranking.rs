//! What the ranking promises: who is asked for often is found, and nothing is told that did not happen.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

use std::collections::BTreeMap;

use proptest::prelude::*;
use quipu_counting::Ranking;
use quipu_counting::ranking::{KEYS_HELD, SECONDS};

/// Any second.
const NOW_MS: u64 = 1_790_000_000_000;

/// A key by number; its hash is some permutation of it.
fn count(ranking: &mut Ranking, number: u32, times: u32) {
    let key = number.to_be_bytes();
    ranking.count(number.wrapping_mul(0x9E37_79B1), times, || &key);
}

fn told(ranking: &Ranking) -> BTreeMap<u32, u64> {
    ranking.keys().map(|(key, count)| (u32::from_be_bytes(key.try_into().unwrap()), count)).collect()
}

proptest! {
    /// Over several seconds: nothing is told that is older than the window, and nothing twice.
    #[test]
    fn only_the_last_seconds_are_told(
        seconds in proptest::collection::vec((0..4u64, proptest::collection::vec(0..100u32, 0..40)), 1..30),
    ) {
        let mut ranking = Ranking::new(1);
        let mut now_ms = NOW_MS;
        let mut history: Vec<(u64, u32)> = Vec::new();
        for (later, keys) in seconds {
            now_ms += later * 1_000;
            ranking.turn(now_ms);
            for number in keys {
                count(&mut ranking, number, 1);
                history.push((now_ms / 1_000, number));
            }
            let mut model: BTreeMap<u32, u64> = BTreeMap::new();
            let from = now_ms / 1_000 - SECONDS as u64;
            for (_, number) in history.iter().filter(|(second, _)| *second >= from) {
                *model.entry(*number).or_default() += 1;
            }
            prop_assert_eq!(ranking.requests(), model.values().sum::<u64>());
            prop_assert_eq!(told(&ranking), model, "fewer keys than places: nothing is missed");
        }
    }
}

/// However the requests of a pipeline are ordered, and however many others there are, a key that is in all of them is found.
#[test]
fn no_regular_order_hides_a_key() {
    for period in (2..=130).chain([192, 255, 256]) {
        let mut ranking = Ranking::new(7);
        ranking.turn(NOW_MS);
        let mut fresh = 1_000_000;
        // The second is old, and keys come in by sample, when it begins.
        for _ in 0..5_000 {
            fresh += 1;
            count(&mut ranking, fresh, 1);
        }
        for _ in 0..2_000 {
            count(&mut ranking, 1, 1);
            for _ in 1..period {
                fresh += 1;
                count(&mut ranking, fresh, 1);
            }
        }
        let seen = told(&ranking).get(&1).copied().unwrap_or(0);
        assert!(
            seen >= 1_000,
            "of every {period} requests one was of the same key, and {seen} of 2,000 were seen"
        );
    }
}

#[test]
fn what_was_hot_makes_room_and_disappears() {
    let mut ranking = Ranking::new(7);
    ranking.turn(NOW_MS);
    for number in 0..KEYS_HELD as u32 {
        count(&mut ranking, number, 1_000_000);
    }
    let first = told(&ranking);
    assert_eq!(first.len(), KEYS_HELD);
    // Others come, with far less: within the time that is told they have taken the places.
    for second in 1..=SECONDS as u64 + 1 {
        ranking.turn(NOW_MS + second * 1_000);
        for _ in 0..100 {
            (1_000..1_010).for_each(|number| count(&mut ranking, number, 10));
        }
    }
    let told_now = told(&ranking);
    assert!((1_000..1_010).all(|number| told_now[&number] >= 9_000), "{told_now:?}");
    assert!((0..KEYS_HELD as u32).all(|number| !told_now.contains_key(&number)), "{told_now:?}");
    // And when nobody asks for anything, nobody is told.
    ranking.turn(NOW_MS + 60_000);
    assert_eq!((ranking.requests(), ranking.since_ms(), told(&ranking).len()), (0, None, 0));
}

#[test]
fn rates_are_over_the_time_in_which_there_were_requests() {
    let mut ranking = Ranking::new(7);
    ranking.turn(NOW_MS);
    assert_eq!(ranking.since_ms(), None);
    // The first request comes when it comes, not at the beginning of a second.
    ranking.turn(NOW_MS + 2_345);
    count(&mut ranking, 1, 1);
    assert_eq!(ranking.since_ms(), Some(NOW_MS + 2_345));
    for second in 3..=40 {
        ranking.turn(NOW_MS + second * 1_000 + 500);
        count(&mut ranking, 1, 1);
    }
    assert_eq!(ranking.since_ms(), Some(NOW_MS + 30_000), "the last ten seconds and the one under way");
    assert_eq!(told(&ranking)[&1], 11);
}

#[test]
fn clocks_may_go_back() {
    let mut ranking = Ranking::new(7);
    ranking.turn(NOW_MS);
    count(&mut ranking, 1, 1);
    // A little late: another thread's batch.
    ranking.turn(NOW_MS - 1_500);
    count(&mut ranking, 1, 1);
    assert_eq!(told(&ranking)[&1], 2);
    // Far back: somebody has set the clock.
    ranking.turn(NOW_MS - 3_600_000);
    count(&mut ranking, 2, 1);
    assert_eq!(told(&ranking), BTreeMap::from([(2, 1)]));
}
