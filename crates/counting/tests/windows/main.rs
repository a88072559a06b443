//! Windows against a plain list of events, what limits in windows promise, and the bytes of buckets.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod calendar;

use std::collections::BTreeMap;

use calendar::zone;
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use proptest::prelude::*;
use quipu_counting::window::{BUCKETS_MAX, BucketRefusal, Buckets, Frame, Unit, Usage, Zone, usage};

const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 86_400_000;
/// 2026-03-28T12:00:00Z: the night after it, clocks in Berlin go forward.
const START_MS: u64 = 1_774_699_200_000;

fn configuration() -> ProptestConfig {
    ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() }
}

fn berlin(at_ms: u64) -> Date {
    let zone = TimeZone::get("Europe/Berlin").unwrap();
    Timestamp::from_millisecond(at_ms as i64).unwrap().to_zoned(zone).date()
}

/// Whether an event counts, said without buckets and ranges.
fn counts(frame: &Frame, event_ms: u64, now_ms: u64) -> bool {
    match frame {
        Frame::Sliding { span_ms, bucket_ms } => {
            let bucket_ends_ms = (event_ms / bucket_ms + 1) * bucket_ms;
            bucket_ends_ms - 1 + span_ms > now_ms
        }
        Frame::Fixed { span_ms } => event_ms / span_ms == now_ms / span_ms,
        Frame::Calendar { unit: Unit::Day, .. } => berlin(event_ms) == berlin(now_ms),
        Frame::Calendar { unit: Unit::Week, .. } => {
            berlin(event_ms).iso_week_date().week() == berlin(now_ms).iso_week_date().week()
                && berlin(event_ms).iso_week_date().year() == berlin(now_ms).iso_week_date().year()
        }
        Frame::Calendar { unit: Unit::Month, .. } => {
            berlin(event_ms).first_of_month() == berlin(now_ms).first_of_month()
        }
    }
}

fn frames() -> impl Strategy<Value = Frame> {
    let calendar = |unit, anchor| Frame::Calendar { unit, anchor, zone: zone("Europe/Berlin") };
    prop_oneof![
        (1..100_000u64, 1..1_000u64)
            .prop_map(|(bucket_ms, count)| Frame::Sliding { span_ms: bucket_ms * count, bucket_ms }),
        (1..10_000u64, 0..10_000_000u64)
            .prop_map(|(bucket_ms, more)| Frame::Sliding { span_ms: bucket_ms + more, bucket_ms }),
        (1..10 * DAY_MS).prop_map(|span_ms| Frame::Fixed { span_ms }),
        Just(calendar(Unit::Day, 0)),
        Just(calendar(Unit::Week, 1)),
        Just(calendar(Unit::Month, 1)),
    ]
    .prop_filter("a frame that is none", |frame| frame.problem().is_none())
}

/// How long until the next event, and what it adds.
fn events() -> impl Strategy<Value = Vec<(u64, i64)>> {
    let wait = prop_oneof![0..10u64, 0..2 * MINUTE_MS, 0..2 * HOUR_MS, 0..3 * DAY_MS];
    let delta = prop_oneof![-3..10i64, Just(1), i64::MIN / 200..i64::MAX / 200];
    prop::collection::vec((wait, delta), 1..100)
}

proptest! {
    #![proptest_config(configuration())]

    #[test]
    fn sums_are_those_of_the_events(frame in frames(), events in events(), last_ms in 1..10 * DAY_MS) {
        let (mut buckets, mut list, mut now_ms) = (Buckets::default(), Vec::new(), START_MS);
        for (wait_ms, delta) in events {
            now_ms += wait_ms;
            // What is used before this event, when time went on since the one before.
            let naive = |wanted: &dyn Fn(u64) -> bool| -> i128 {
                list.iter().filter(|(at_ms, _)| wanted(*at_ms)).map(|(_, delta)| i128::from(*delta)).sum()
            };
            let Usage { used, reset_ms } = usage(&frame, &buckets, now_ms);
            prop_assert_eq!(used, naive(&|at_ms| counts(&frame, at_ms, now_ms)));
            prop_assert!(reset_ms > 0);

            // What counts stays the same for `reset_ms`, and then it does not.
            let counting = |at_ms| buckets.iter(frame.window(at_ms)).collect::<Vec<_>>();
            prop_assert_eq!(counting(now_ms + reset_ms - 1), counting(now_ms));
            prop_assert!(counting(now_ms).is_empty() || counting(now_ms + reset_ms) != counting(now_ms));

            // Past windows stay readable: the one of any earlier event, and the last so many milliseconds.
            if let Some((past_ms, _)) = list.get(list.len() / 2) {
                let past = frame.bucket(*past_ms);
                prop_assert_eq!(buckets.sum(past.clone()), naive(&|at_ms| past.contains(&at_ms)));
            }
            let oldest = frame.bucket(now_ms - last_ms + 1).start;
            prop_assert_eq!(buckets.sum(frame.last(last_ms, now_ms)), naive(&|at_ms| at_ms >= oldest));

            prop_assert_eq!(buckets.add(frame.bucket(now_ms).start, delta), Ok(()));
            list.push((now_ms, delta));
        }
    }

    #[test]
    fn no_span_holds_more_than_a_sliding_limit(
        bucket_ms in 1..50u64,
        count in 1..40u64,
        limit in 1..50i128,
        calls in prop::collection::vec((0..60u64, 1..20i64), 1..300),
    ) {
        let frame = Frame::Sliding { span_ms: bucket_ms * count, bucket_ms };
        let admitted = admit(&frame, limit, &calls);
        for (begin, (from_ms, _)) in admitted.iter().enumerate() {
            let within = admitted[begin..].iter().take_while(|(at_ms, _)| at_ms - from_ms < bucket_ms * count);
            let sum: i128 = within.map(|(_, amount)| i128::from(*amount)).sum();
            prop_assert!(sum <= limit, "{} of {} from {} on", sum, limit, from_ms);
        }
    }

    #[test]
    fn buckets_are_a_map_of_sums(
        steps in prop::collection::vec((0..40u64, prop_oneof![-2..3i64, any::<i64>()], 0..20u8), 0..200),
    ) {
        let (mut buckets, mut map) = (Buckets::default(), BTreeMap::<u64, i64>::new());
        for (start_ms, delta, forget) in steps {
            if forget == 0 {
                buckets.forget_before(start_ms, &Frame::Fixed { span_ms: 1 });
                map.retain(|at_ms, _| *at_ms >= start_ms);
                continue;
            }
            match map.get(&start_ms).copied().unwrap_or(0).checked_add(delta) {
                Some(0) => {
                    prop_assert_eq!(buckets.add(start_ms, delta), Ok(()));
                    map.remove(&start_ms);
                }
                Some(sum) => {
                    prop_assert_eq!(buckets.add(start_ms, delta), Ok(()));
                    map.insert(start_ms, sum);
                }
                None => prop_assert_eq!(buckets.add(start_ms, delta), Err(BucketRefusal::Overflow)),
            }
            prop_assert!(buckets.iter(0..u64::MAX).eq(map.iter().map(|(at_ms, sum)| (*at_ms, *sum))));
            prop_assert_eq!(buckets.len(), map.len());
        }
        let mut bytes = Vec::new();
        buckets.put(&mut bytes);
        prop_assert_eq!(Buckets::read(&bytes), Some(buckets));
    }

    #[test]
    fn what_is_gathered_is_in_one_bucket(
        steps in prop::collection::vec((0..60u64, 1..9u64, prop_oneof![-2..3i64, any::<i64>()]), 0..200),
    ) {
        let (mut buckets, mut map) = (Buckets::default(), BTreeMap::<u64, i64>::new());
        for (start_ms, length_ms, delta) in steps {
            let bucket = start_ms..start_ms + length_ms;
            let sum: i128 = map.range(bucket.clone()).map(|(_, sum)| i128::from(*sum)).sum();
            let expected = i64::try_from(sum + i128::from(delta)).map_err(|_| BucketRefusal::Overflow);
            prop_assert_eq!(buckets.gathered(bucket.clone(), delta), expected);
            prop_assert_eq!(buckets.gather(bucket.clone(), delta), expected.map(drop));
            if let Ok(sum) = expected {
                map.retain(|at_ms, _| !bucket.contains(at_ms));
                map.insert(start_ms, sum);
                map.retain(|_, sum| *sum != 0);
            }
            prop_assert!(buckets.iter(0..u64::MAX).eq(map.iter().map(|(at_ms, sum)| (*at_ms, *sum))));
        }
    }

    #[test]
    fn bytes_are_buckets_in_one_way_or_not_at_all(
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..30),
            prop::collection::vec(0..4u8, 0..12),
            prop::collection::vec(prop_oneof![Just(0xffu8), Just(0x80), Just(1), Just(0)], 0..30),
        ],
    ) {
        if let Some(buckets) = Buckets::read(&bytes) {
            let mut again = Vec::new();
            buckets.put(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn buckets_cover_all_times_side_by_side(
        frame in prop_oneof![
            (any::<u64>(), any::<u64>()).prop_map(|(span_ms, bucket_ms)| Frame::Sliding { span_ms, bucket_ms }),
            any::<u64>().prop_map(|span_ms| Frame::Fixed { span_ms }),
            strange_calendars(),
        ],
        at_ms in prop_oneof![0..3 * DAY_MS, any::<u64>(), u64::MAX - DAY_MS..u64::MAX],
    ) {
        let at_ms = at_ms.min(u64::MAX - 1);
        let bucket = frame.bucket(at_ms);
        prop_assert!(bucket.contains(&at_ms), "{:?}", bucket);
        prop_assert_eq!(frame.bucket(bucket.start), bucket.clone());
        prop_assert_eq!(frame.bucket(bucket.end - 1), bucket.clone());
        if bucket.start > 0 {
            prop_assert_eq!(frame.bucket(bucket.start - 1).end, bucket.start);
        }
        prop_assert!(frame.window(at_ms).contains(&at_ms));
        prop_assert!(frame.last(u64::MAX, at_ms).contains(&at_ms));
        frame.reset_ms(Some(at_ms), u64::MAX);
    }
}

#[test]
fn bytes_that_are_no_buckets() {
    assert!(Buckets::read(&[2, 5, 4, 0, 1]).is_some());
    // With nothing that was dropped, and with 3 that were before the ninth millisecond.
    assert!(Buckets::read(&[0, 0]).is_some_and(|buckets| buckets.past().is_some()));
    assert!(Buckets::read(&[0, 1, 9, 6]).is_some_and(|buckets| buckets.past().unwrap().since(8) == 3));
    let mut too_many = vec![0x81, 0x20];
    too_many.extend([0, 2].repeat(BUCKETS_MAX + 1));
    for bytes in [
        &[][..],
        &[1],
        &[1, 5],
        &[0, 0, 0],
        &[0, 1, 9, 5],       // of what was taken back nothing is noted
        &[0, 2, 9, 6, 0, 6], // two spans that end together
        &[1, 5, 0],          // a bucket without a sum
        &too_many,
        &[2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 0, 2], // after the end of time
    ] {
        assert_eq!(Buckets::read(bytes), None, "{} bytes", bytes.len());
    }
}

/// Zones in which clocks jump about as they never did.
fn strange_calendars() -> impl Strategy<Value = Frame> {
    let offsets =
        prop::collection::btree_map(-(DAY_MS as i64)..4 * DAY_MS as i64, -90_000..=90_000i32, 1..30);
    let unit = prop_oneof![Just(Unit::Day), Just(Unit::Week), Just(Unit::Month)];
    (unit, any::<u8>(), offsets).prop_map(|(unit, anchor, offsets)| {
        let offsets: Vec<(i64, i32)> = offsets.into_iter().collect();
        Frame::Calendar { unit, anchor, zone: Zone::new("Nowhere", offsets).unwrap() }
    })
}

/// What a limit admits of calls that come so long after each other and ask for so much.
fn admit(frame: &Frame, limit: i128, calls: &[(u64, i64)]) -> Vec<(u64, i64)> {
    let (mut buckets, mut admitted, mut now_ms) = (Buckets::default(), Vec::new(), START_MS);
    for (wait_ms, amount) in calls {
        now_ms += wait_ms;
        if usage(frame, &buckets, now_ms).used + i128::from(*amount) <= limit {
            buckets.add(frame.bucket(now_ms).start, *amount).unwrap();
            admitted.push((now_ms, *amount));
        }
    }
    admitted
}

/// The boundary burst: who spends the limit at the end of a fixed window and again at the beginning of the next
/// gets twice the limit within a second. A sliding window of the same span gives the limit once.
#[test]
fn fixed_windows_admit_a_burst_at_their_boundary_and_sliding_ones_do_not() {
    // START_MS is a full minute, and midnight in a zone of our own. 500 calls in the half second before the
    // next boundary, 500 in the half second after it.
    let calls_around = |boundary_ms: u64| -> Vec<(u64, i64)> {
        (0..1_000).map(|n| (if n == 0 { boundary_ms - 500 } else { 1 }, 1)).collect()
    };
    let midnight = Zone::new("Far/East", [(0, 12 * 3600)]).unwrap();
    let day = Frame::Calendar { unit: Unit::Day, anchor: 0, zone: midnight };
    for (frame, boundary_ms, admitted) in [
        (Frame::Fixed { span_ms: MINUTE_MS }, MINUTE_MS, 1_000),
        (day, DAY_MS, 1_000),
        (Frame::Sliding { span_ms: MINUTE_MS, bucket_ms: SECOND_MS }, MINUTE_MS, 500),
        (Frame::Sliding { span_ms: MINUTE_MS, bucket_ms: MINUTE_MS }, MINUTE_MS, 500),
        (Frame::Sliding { span_ms: DAY_MS, bucket_ms: HOUR_MS }, DAY_MS, 500),
    ] {
        assert_eq!(admit(&frame, 500, &calls_around(boundary_ms)).len(), admitted, "{frame:?}");
    }
}

#[test]
fn resets() {
    let sliding = Frame::Sliding { span_ms: HOUR_MS, bucket_ms: MINUTE_MS };
    let month = Frame::Calendar { unit: Unit::Month, anchor: 1, zone: Zone::utc() };
    let mut buckets = Buckets::default();
    assert_eq!(usage(&sliding, &buckets, START_MS), Usage { used: 0, reset_ms: HOUR_MS });
    buckets.add(START_MS, 5).unwrap();
    buckets.add(START_MS + MINUTE_MS, 7).unwrap();
    for (frame, after_ms, used, reset_ms) in [
        // The newest of the first bucket came at 59.999 s, and counts for an hour.
        (&sliding, MINUTE_MS, 12, HOUR_MS - 1),
        (&sliding, HOUR_MS, 12, MINUTE_MS - 1),
        (&sliding, HOUR_MS + MINUTE_MS - 2, 12, 1),
        (&sliding, HOUR_MS + MINUTE_MS - 1, 7, MINUTE_MS),
        (&sliding, HOUR_MS + 2 * MINUTE_MS - 1, 0, HOUR_MS),
        (&Frame::Fixed { span_ms: HOUR_MS }, 59 * MINUTE_MS, 12, MINUTE_MS),
        (&Frame::Fixed { span_ms: HOUR_MS }, HOUR_MS, 0, HOUR_MS),
        (&month, DAY_MS, 12, 2 * DAY_MS + 12 * HOUR_MS),
    ] {
        assert_eq!(
            usage(frame, &buckets, START_MS + after_ms),
            Usage { used, reset_ms },
            "{frame:?} {after_ms}"
        );
    }
}

#[test]
fn frames_that_are_none_say_what_to_do() {
    let zone = Zone::utc;
    for (frame, words) in [
        (Frame::Sliding { span_ms: 0, bucket_ms: 1 }, "at least a millisecond"),
        (Frame::Sliding { span_ms: 1, bucket_ms: 0 }, "at least a millisecond"),
        (Frame::Sliding { span_ms: 1, bucket_ms: 2 }, "longer than its window"),
        (
            Frame::Sliding { span_ms: BUCKETS_MAX as u64, bucket_ms: 1 },
            &*format!("than {BUCKETS_MAX} buckets"),
        ),
        (Frame::Fixed { span_ms: 0 }, "at least a millisecond"),
        (Frame::Calendar { unit: Unit::Day, anchor: 1, zone: zone() }, "must be 0"),
        (Frame::Calendar { unit: Unit::Week, anchor: 0, zone: zone() }, "from 1 (Monday) to 7"),
        (Frame::Calendar { unit: Unit::Week, anchor: 8, zone: zone() }, "from 1 (Monday) to 7"),
        (Frame::Calendar { unit: Unit::Month, anchor: 0, zone: zone() }, "from 1 to 31"),
        (Frame::Calendar { unit: Unit::Month, anchor: 32, zone: zone() }, "from 1 to 31"),
    ] {
        assert!(frame.problem().is_some_and(|problem| problem.contains(words)), "{frame:?}");
    }
    assert_eq!(Frame::Sliding { span_ms: BUCKETS_MAX as u64 - 1, bucket_ms: 1 }.problem(), None);
}

/// The largest window there is, always full: nothing that counts is forgotten, and memory stays what it is.
#[test]
fn what_counts_is_never_forgotten() {
    let frame = Frame::Sliding { span_ms: 2 * (BUCKETS_MAX as u64 - 1), bucket_ms: 2 };
    assert_eq!(frame.problem(), None);
    let mut buckets = Buckets::default();
    for n in 0..3 * BUCKETS_MAX as u64 {
        let now_ms = START_MS + 2 * n;
        buckets.add(frame.bucket(now_ms).start, 1).unwrap();
        let expected = (n + 1).min(BUCKETS_MAX as u64);
        assert_eq!(usage(&frame, &buckets, now_ms).used, i128::from(expected));
        assert_eq!(
            usage(&frame, &buckets, now_ms + 1).used,
            i128::from(expected.min(BUCKETS_MAX as u64 - 1))
        );
        assert!(buckets.memory_bytes() <= 64 + buckets.len() * 24);
    }
    assert_eq!(buckets.len(), BUCKETS_MAX);
    assert_eq!(buckets.add(START_MS, 1), Err(BucketRefusal::TooOld));
    // One that comes late, but not as late as that, takes the place of the oldest.
    let oldest_ms = buckets.iter(0..u64::MAX).next().unwrap().0;
    buckets.add(oldest_ms + 1, 100).unwrap();
    assert_eq!(buckets.iter(0..u64::MAX).next(), Some((oldest_ms + 1, 100)));
    assert_eq!(buckets.len(), BUCKETS_MAX);

    buckets.forget_before(START_MS + 6 * BUCKETS_MAX as u64 - 10, &frame);
    assert_eq!(buckets.len(), 5);
    assert!(buckets.memory_bytes() <= 64 + buckets.len() * 24);
}
