//! What happened before it is counted.

use std::collections::BTreeMap;

use proptest::prelude::*;
use quipu_counting::body::State;
use quipu_counting::kinds::AHEAD_MS;
use quipu_counting::window::{BUCKETS_MAX, Buckets};

use super::*;

fn buckets(counter: &Counter) -> &Buckets {
    let State::Window(_, buckets) = &counter.body().state else { panic!("it has a window") };
    buckets
}

/// What is in the buckets, as so long after [`START_MS`].
fn sums(counter: &Counter) -> Vec<(i64, i64)> {
    let all = buckets(counter).iter(0..u64::MAX);
    all.map(|(start_ms, sum)| (start_ms as i64 - START_MS as i64, sum)).collect()
}

#[test]
fn what_is_late_counts_for_its_time() {
    let policy = kind(Kind::Window, Some(sliding(10 * SECOND_MS, SECOND_MS)), 20 * SECOND_MS);
    let counter = script(
        Counter::under(policy.clone()),
        &[
            (30_500, add_at(5, 12_345), "5"),
            (30_500, add(1), "6"),
            (30_500, add_at(2, 30_400), "8"),
            (30_500, add_at(-1, 12_000), "7"),
            // All that is kept, and no more.
            (30_500, add_at(1, 10_000), "8"),
            (30_500, add_at(1, 9_999), "no out-of-time 10000..=90500"),
            // A clock that is a little ahead.
            (30_500, add_at(1, 30_500 + AHEAD_MS), "9"),
            (30_500, add_at(1, 30_501 + AHEAD_MS), "no out-of-time 10000..=90500"),
            // What is late is used, if it is in the window.
            (30_500, add_at(6, 25_000), "15"),
            (30_500, acquire(1, 10), "no over-quota used 10/10 reset 5499"),
        ],
    );
    assert_eq!(sums(&counter), [(10_000, 1), (12_000, 4), (25_000, 6), (30_000, 4)]);
    // Also of one that is born by it, and late by no more than is allowed.
    let policy = Policy { lateness_ms: Some(3_000), ..policy };
    let counter = script(
        Counter::under(policy),
        &[
            (30_500, add_at(1, 27_499), "no out-of-time 27500..=90500"),
            (30_500, read(), "none"),
            (30_500, add_at(1, 27_500), "1"),
        ],
    );
    assert_eq!(sums(&counter), [(27_000, 1)]);
}

#[test]
fn who_does_not_count_by_time_says_so() {
    script(
        Counter::default(),
        &[(0, add_at(1, 0), "no no-window"), (0, add(1), "1"), (0, add_at(1, 0), "no no-window")],
    );
    script(
        Counter::default(),
        &[(0, observe(&["a"]), "1 exactly applied 3"), (0, add_at(1, 0), "no wrong-kind")],
    );
    // A limit made it one that does.
    let window = sliding(10 * SECOND_MS, SECOND_MS);
    script(
        Counter::default(),
        &[
            (0, acquire(1, 9).over(&window), "1 used 1/9 reset 10999"),
            (5_000, add_at(2, 3_000), "3"),
            (5_000, acquire(0, 9), "3 used 3/9 reset 5999"),
        ],
    );
}

#[test]
fn a_past_bucket_does_not_overflow() {
    let fixed = Frame::Fixed { span_ms: MINUTE_MS };
    script(
        Counter::under(kind(Kind::Window, Some(fixed), HOUR_MS)),
        &[
            (0, add(i64::MAX), &i64::MAX.to_string()),
            (MINUTE_MS, add(-10), &(i64::MAX - 10).to_string()),
            (MINUTE_MS, add_at(1, 0), "no overflow"),
            (MINUTE_MS, add_at(-1, 0), &(i64::MAX - 11).to_string()),
            (MINUTE_MS, add_at(1, 59_999), &(i64::MAX - 10).to_string()),
            (MINUTE_MS, add_at(1, 59_999), "no overflow"),
        ],
    );
}

#[test]
fn a_past_bucket_takes_in_what_was_cut_more_finely() {
    let mut counter = Counter::under(kind(Kind::Window, Some(sliding(10 * SECOND_MS, SECOND_MS)), HOUR_MS));
    for second in 55..65 {
        counter.ask(START_MS + second * SECOND_MS, &add(1));
    }
    counter.policy = Some(kind(Kind::Window, Some(Frame::Fixed { span_ms: MINUTE_MS }), HOUR_MS));
    let counter = script(counter, &[(2 * MINUTE_MS, add_at(10, 59_999), "20")]);
    assert_eq!(sums(&counter), [(0, 15), (60_000, 5)]);
}

#[test]
fn when_all_buckets_are_newer_there_is_no_room() {
    let mut counter = Counter::under(kind(Kind::Window, Some(sliding(SECOND_MS, SECOND_MS)), DAY_MS));
    let last_ms = BUCKETS_MAX as u64 * SECOND_MS;
    for second in 1..=BUCKETS_MAX as u64 {
        counter.ask(START_MS + second * SECOND_MS, &add(1));
    }
    let bound = format!("no out-of-time 1000..={}", last_ms + AHEAD_MS);
    let counter = script(counter, &[(last_ms, add_at(1, 999), &bound), (last_ms, add_at(1, 1_000), "4097")]);
    assert_eq!(buckets(&counter).len(), BUCKETS_MAX);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against a list of all that was counted, in the order of arrival.
    #[test]
    fn windows_are_the_sum_of_their_events_late_ones_too(
        steps in prop::collection::vec((0..4_000u64, 0..40_000u64, -20..20i64), 1..200),
        bucket_ms in 1..3_000u64,
        count in 1..20u64,
        keep_ms in 1..60_000u64,
        lateness_ms in prop::option::of(0..60_000u64),
        is_fixed: bool,
    ) {
        let span_ms = bucket_ms * count;
        let frame = if is_fixed { Frame::Fixed { span_ms } } else { sliding(span_ms, bucket_ms) };
        let policy = Policy { lateness_ms, ..kind(Kind::Window, Some(frame.clone()), keep_ms) };
        let mut counter = Counter::under(policy);
        let mut events: Vec<(u64, i64)> = Vec::new();
        let (mut now_ms, mut value) = (START_MS, 0);
        for (later_ms, ago_ms, delta) in steps {
            now_ms += later_ms;
            let at_ms = now_ms - ago_ms;
            let reply = counter.ask(now_ms, &add_at(delta, at_ms - START_MS.min(at_ms)));
            let at_ms = at_ms.max(START_MS);
            // Said without ranges: it is in the window, or its bucket was going on when what is kept began.
            let length_ms = if is_fixed { span_ms } else { bucket_ms };
            let bucket_ends_ms = (at_ms / length_ms + 1) * length_ms;
            let in_window = if is_fixed { bucket_ends_ms > now_ms } else { bucket_ends_ms - 1 + span_ms > now_ms };
            let is_kept = in_window || bucket_ends_ms > now_ms - keep_ms;
            let is_taken = is_kept && now_ms - at_ms <= lateness_ms.unwrap_or(u64::MAX);
            prop_assert_eq!(reply.refusal.is_none(), is_taken, "{:?}", reply);
            if !is_taken {
                continue;
            }
            value += delta;
            prop_assert_eq!(reply.cell.value, value);
            events.push((at_ms, delta));
            let mut expected: BTreeMap<u64, i64> = BTreeMap::new();
            for (at_ms, delta) in &events {
                *expected.entry(at_ms / length_ms * length_ms).or_default() += delta;
            }
            let State::Window(keeping, buckets) = &counter.body().state else { panic!() };
            let from_ms = keeping.from_ms(now_ms);
            expected.retain(|start_ms, sum| *start_ms >= from_ms && *sum != 0);
            let found: BTreeMap<u64, i64> = buckets.iter(from_ms..u64::MAX).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
