//! The history of a counter against a plain record of all its changes.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

use proptest::prelude::*;
use quipu_counting::series::{POINTS_MAX, Point, Retention, Series, Step};

const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 86_400_000;
/// 2026-11-16T00:00:00Z.
const START_MS: u64 = 1_794_787_200_000;

/// A counter with its history, and the record of everything that happened to it.
struct Counter {
    series: Series,
    retention: Retention,
    /// When, and to what; the first made the counter.
    changes: Vec<(u64, i64)>,
}

impl Counter {
    fn new(retention: Retention, at_ms: u64, value: i64) -> Counter {
        Counter { series: Series::default(), retention, changes: vec![(at_ms, value)] }
    }

    fn set(&mut self, at_ms: u64, value: i64) {
        let (changed_at_ms, before) = self.last();
        self.series.note(&self.retention, before, changed_at_ms, at_ms);
        self.changes.push((at_ms, value));
    }

    fn last(&self) -> (u64, i64) {
        *self.changes.last().unwrap()
    }

    fn created_at_ms(&self) -> u64 {
        self.changes[0].0
    }

    /// The value after all changes up to that time, as the record has it.
    fn recorded(&self, at_ms: u64) -> Option<i64> {
        self.changes.iter().rfind(|(changed_at_ms, _)| *changed_at_ms <= at_ms).map(|(_, value)| *value)
    }

    fn at(&self, at_ms: u64) -> Option<Point> {
        let (last_change_ms, current) = self.last();
        self.series.at(at_ms, current, last_change_ms)
    }

    fn points(&self, step: Step, from_ms: u64, to_ms: u64) -> Vec<(u64, i64)> {
        let (last_change_ms, current) = self.last();
        self.series.points(step, from_ms, to_ms, current, last_change_ms, self.created_at_ms())
    }

    /// How long boundaries of this step are surely known: finer steps have them too.
    fn kept_ms(&self, step: Step) -> u64 {
        let Retention { minutes_ms, hours_ms, days_ms } = self.retention;
        match step {
            Step::Minute => minutes_ms,
            Step::Hour => minutes_ms.max(hours_ms),
            Step::Day => minutes_ms.max(hours_ms).max(days_ms),
        }
    }
}

fn retentions() -> impl Strategy<Value = Retention> {
    let keep = |step_ms: u64| prop_oneof![Just(0), 1..step_ms, step_ms..100 * step_ms, Just(u64::MAX)];
    (keep(MINUTE_MS), keep(HOUR_MS), keep(DAY_MS)).prop_map(|(minutes_ms, hours_ms, days_ms)| Retention {
        minutes_ms,
        hours_ms,
        days_ms,
    })
}

/// How long until the next change, and to what. Full minutes, at which "up to and including" shows, are common.
fn changes() -> impl Strategy<Value = Vec<(u64, i64)>> {
    let wait = prop_oneof![
        3 => 0..5u64,
        3 => 0..2 * MINUTE_MS,
        2 => (0..4u64).prop_map(|minutes| minutes * MINUTE_MS),
        1 => 0..2 * HOUR_MS,
        1 => (0..3u64).prop_map(|hours| hours * HOUR_MS),
        1 => 0..3 * DAY_MS,
    ];
    prop::collection::vec((wait, prop_oneof![4 => 0..4i64, 1 => any::<i64>()]), 0..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn history_is_what_happened(
        retention in retentions(),
        start_ms in prop_oneof![Just(START_MS), START_MS..START_MS + DAY_MS],
        changes in changes(),
        rest_ms in 0..2 * DAY_MS,
        looks in prop::collection::vec(0.0..1.1f64, 20),
    ) {
        let mut counter = Counter::new(retention, start_ms, 1);
        for (wait_ms, value) in changes {
            let at_ms = counter.last().0 + wait_ms;
            counter.set(at_ms, value);
        }
        let changed_at_ms = counter.last().0;
        let now_ms = changed_at_ms + rest_ms;

        for step in Step::ALL {
            let points = counter.points(step, 0, now_ms);
            for (at_ms, value) in &points {
                prop_assert_eq!(at_ms % step.ms(), 0);
                prop_assert_eq!(Some(*value), counter.recorded(*at_ms), "{:?} {}", step, at_ms);
            }
            prop_assert!(points.is_sorted_by(|(a_ms, _), (b_ms, _)| a_ms + step.ms() == *b_ms), "a gap");
            // All boundaries since the creation are there, as far as they must be kept.
            let keep_ms = counter.kept_ms(step);
            if keep_ms > 0 && points.len() < POINTS_MAX {
                let from_ms = changed_at_ms.saturating_sub(keep_ms).max(start_ms);
                let expected: Vec<u64> =
                    (from_ms.div_ceil(step.ms())..=now_ms / step.ms()).map(|number| number * step.ms()).collect();
                let found = counter.points(step, from_ms, now_ms);
                prop_assert!(found.iter().map(|(at_ms, _)| *at_ms).eq(expected));
                prop_assert!(points.ends_with(&found));
            }
        }

        for look in looks {
            let age_ms = ((now_ms - start_ms) as f64 * look) as u64;
            let at_ms = now_ms - age_ms;
            let must_know = |step: Step| {
                let boundary_ms = at_ms - at_ms % step.ms();
                boundary_ms >= start_ms && at_ms.saturating_add(counter.kept_ms(step)) >= changed_at_ms && counter.kept_ms(step) > 0
            };
            match counter.at(at_ms) {
                Some(Point { value, exact_to_ms }) => {
                    prop_assert_eq!(Some(value), counter.recorded(exact_to_ms));
                    prop_assert!(exact_to_ms <= at_ms);
                    prop_assert!(at_ms < changed_at_ms || exact_to_ms == at_ms);
                    for step in Step::ALL.into_iter().filter(|step| must_know(*step)) {
                        prop_assert!(at_ms - exact_to_ms < step.ms());
                    }
                }
                None => prop_assert!(!Step::ALL.into_iter().any(must_know)),
            }
        }

        let mut bytes = Vec::new();
        counter.series.put(&mut bytes);
        prop_assert_eq!(Series::read(&bytes), Some(counter.series.clone()));

        // To forget once more what need not be kept changes nothing that must be known.
        let before = Step::ALL.map(|step| counter.points(step, now_ms - counter.kept_ms(step).min(now_ms), now_ms));
        counter.series.forget(&retention, now_ms);
        let after = Step::ALL.map(|step| counter.points(step, now_ms - counter.kept_ms(step).min(now_ms), now_ms));
        for step in Step::ALL.into_iter().filter(|step| counter.kept_ms(*step) > 0) {
            prop_assert_eq!(&before[step as usize], &after[step as usize]);
        }
    }

    #[test]
    fn bytes_are_a_series_in_one_way_or_not_at_all(
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            prop::collection::vec(0..4u8, 3..16),
            prop::collection::vec(prop_oneof![Just(0xffu8), Just(0x80), Just(1), Just(0)], 0..40),
        ],
    ) {
        if let Some(series) = Series::read(&bytes) {
            let mut again = Vec::new();
            series.put(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }
}

#[test]
fn bytes_that_are_no_series() {
    let good = [2, 5, 4, 0, 1, 0, 0];
    assert!(Series::read(&good).is_some());
    for bytes in [
        &[][..],
        &[0, 0],
        &[0, 0, 0, 0],
        &[1, 0, 0],
        &[2, 5, 4, 0, 0, 0, 0], // two points in a row with the same value
        &[0xf9, 0x55, 0, 0],    // 11,001 points
        &[2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 4, 0, 1, 0, 0], // after the end of time
    ] {
        assert_eq!(Series::read(bytes), None, "{bytes:?}");
    }
}

/// A morning of a counter, as somebody would plot it.
#[test]
fn a_morning() {
    let retention = Retention { minutes_ms: HOUR_MS, hours_ms: DAY_MS, days_ms: 0 };
    let at = |hour: u64, minute: u64, second: u64| {
        START_MS + hour * HOUR_MS + minute * MINUTE_MS + second * SECOND_MS
    };
    let mut counter = Counter::new(retention, at(8, 58, 30), 1);
    for (at_ms, value) in [
        (at(8, 58, 40), 2),
        (at(8, 59, 59), 3),
        (at(9, 0, 0), 4), // at a boundary: the value there includes it
        (at(9, 3, 10), 5),
        (at(9, 3, 20), 9),
        (at(9, 3, 30), 5),
        (at(9, 4, 10), 6),
    ] {
        counter.set(at_ms, value);
    }
    let minutes = [(8, 59, 2), (9, 0, 4), (9, 1, 4), (9, 2, 4), (9, 3, 4), (9, 4, 5), (9, 5, 6), (9, 6, 6)];
    let expected: Vec<(u64, i64)> =
        minutes.iter().map(|(hour, minute, value)| (at(*hour, *minute, 0), *value)).collect();
    assert_eq!(counter.points(Step::Minute, 0, at(9, 6, 59)), expected);
    assert_eq!(counter.points(Step::Minute, at(9, 0, 0), at(9, 2, 0)), expected[1..4]);
    assert_eq!(counter.points(Step::Minute, at(9, 0, 1), at(9, 1, 59)), expected[2..3]);
    assert_eq!(counter.points(Step::Minute, at(9, 2, 0), at(9, 1, 0)), []);
    assert_eq!(counter.points(Step::Hour, 0, at(10, 59, 0)), [(at(9, 0, 0), 4), (at(10, 0, 0), 6)]);
    assert_eq!(counter.points(Step::Day, 0, at(23, 59, 0)), []);

    // What there was before a counter was made is not part of its history.
    let (last_change_ms, current) = counter.last();
    let younger = counter.series.points(Step::Minute, 0, at(9, 6, 59), current, last_change_ms, at(9, 2, 1));
    assert_eq!(younger, expected[4..]);

    for (at_ms, expected) in [
        (at(8, 58, 0), None),
        (at(8, 58, 59), None), // there was no full minute yet
        (at(8, 59, 58), Some((2, at(8, 59, 0)))),
        (at(9, 3, 25), Some((4, at(9, 3, 0)))),
        (at(9, 4, 0), Some((5, at(9, 4, 0)))),
        (at(9, 4, 10), Some((6, at(9, 4, 10)))),
        (at(9, 44, 10), Some((6, at(9, 44, 10)))),
    ] {
        let expected = expected.map(|(value, exact_to_ms)| Point { value, exact_to_ms });
        assert_eq!(counter.at(at_ms), expected, "{at_ms}");
    }

    // In the afternoon the minutes of the morning are gone, the hours are not.
    for hour in 13..16 {
        counter.set(at(hour, 30, 0), hour as i64);
    }
    assert_eq!(counter.at(at(9, 4, 0)), Some(Point { value: 4, exact_to_ms: at(9, 0, 0) }));
    assert_eq!(counter.at(at(14, 40, 30)), Some(Point { value: 14, exact_to_ms: at(14, 40, 0) }));
    let hours = counter.points(Step::Hour, 0, at(16, 0, 0));
    assert_eq!(hours[..3], [(at(9, 0, 0), 4), (at(10, 0, 0), 6), (at(11, 0, 0), 6)]);
    assert_eq!(hours[5..], [(at(14, 0, 0), 13), (at(15, 0, 0), 14), (at(16, 0, 0), 15)]);
}

/// Who no longer wants history gets none; who wants it again does not get what was not noted.
#[test]
fn steps_that_are_no_longer_kept() {
    let all = Retention { minutes_ms: DAY_MS, hours_ms: DAY_MS, days_ms: DAY_MS };
    let mut counter = Counter::new(all, START_MS, 0);
    for minute in 1..10 {
        counter.set(START_MS + minute * MINUTE_MS, minute as i64);
    }
    counter.retention = Retention { minutes_ms: 0, ..all };
    counter.set(START_MS + 2 * HOUR_MS, 100);
    assert_eq!(counter.at(START_MS + 5 * MINUTE_MS), Some(Point { value: 0, exact_to_ms: START_MS }));
    counter.retention = Retention::default();
    counter.set(START_MS + 4 * HOUR_MS, 101);
    assert_eq!(counter.series, Series::default());
    assert_eq!(counter.at(START_MS + 3 * HOUR_MS), None);
    counter.retention = all;
    counter.set(START_MS + 6 * HOUR_MS, 102);
    assert_eq!(counter.at(START_MS + 3 * HOUR_MS), None);
    assert_eq!(
        counter.at(START_MS + 5 * HOUR_MS),
        Some(Point { value: 101, exact_to_ms: START_MS + 5 * HOUR_MS })
    );
}

/// A counter that changes all the time and is to keep everything: so much and not more.
#[test]
fn what_is_kept_is_bounded() {
    let everything = Retention { minutes_ms: u64::MAX, hours_ms: u64::MAX, days_ms: u64::MAX };
    let mut counter = Counter::new(everything, START_MS, 0);
    let minutes = POINTS_MAX as u64 + 5_000;
    for minute in 1..=minutes {
        counter.set(START_MS + minute * MINUTE_MS, minute as i64);
    }
    let now_ms = START_MS + minutes * MINUTE_MS;
    let points = counter.points(Step::Minute, 0, now_ms);
    assert_eq!(points.len(), POINTS_MAX);
    assert_eq!(points[0], (START_MS + 5_000 * MINUTE_MS, 5_000));
    assert!(counter.series.memory_bytes() < 2 * POINTS_MAX * 16);
    // Older minutes are known by the hour.
    let early = counter.at(START_MS + 90 * MINUTE_MS);
    assert_eq!(early, Some(Point { value: 60, exact_to_ms: START_MS + HOUR_MS }));
    // An answer is bounded too, and goes on where it ended.
    let first = counter.points(Step::Minute, 0, u64::MAX);
    assert_eq!(first.len(), POINTS_MAX);
    let next = counter.points(Step::Minute, first[POINTS_MAX - 1].0 + 1, u64::MAX);
    assert_eq!(next[0].0, first[POINTS_MAX - 1].0 + MINUTE_MS);

    let mut bytes = Vec::new();
    counter.series.put(&mut bytes);
    assert_eq!(Series::read(&bytes).as_ref(), Some(&counter.series));
    assert!(bytes.len() < 3 * POINTS_MAX, "points in a row are short: {} bytes", bytes.len());

    let hour = Retention { minutes_ms: HOUR_MS, hours_ms: 0, days_ms: 0 };
    counter.series.forget(&hour, now_ms);
    assert!(counter.series.memory_bytes() < 100 + 61 * 20, "{}", counter.series.memory_bytes());
}

/// The ends of time, and calls that no caller should make, are no panic.
#[test]
fn the_ends_of_time() {
    let all = Retention { minutes_ms: DAY_MS, hours_ms: DAY_MS, days_ms: DAY_MS };
    let mut series = Series::default();
    for (changed_at_ms, now_ms) in
        [(0, 0), (0, 1), (1, u64::MAX), (u64::MAX - 1, u64::MAX), (u64::MAX, 0), (500, 70_000)]
    {
        series.note(&all, 7, changed_at_ms, now_ms);
        series.note(&all, 8, changed_at_ms, now_ms);
        for at_ms in [0, 1, MINUTE_MS, u64::MAX] {
            series.at(at_ms, 9, now_ms);
            for step in Step::ALL {
                assert!(series.points(step, at_ms, u64::MAX, 9, now_ms, 0).len() <= POINTS_MAX);
            }
        }
        let mut bytes = Vec::new();
        series.put(&mut bytes);
        assert_eq!(Series::read(&bytes).as_ref(), Some(&series));
    }
}
