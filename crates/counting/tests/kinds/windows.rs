//! Windows and the limits in them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use quipu_counting::body::State;
use quipu_counting::window::{BUCKETS_MAX, Unit, Zone};

use super::*;

#[test]
fn acquiring_without_a_window() {
    script(
        Counter::default(),
        &[
            (0, acquire(1, None), "no no-limit"),
            (0, acquire(6, 5), "no over-quota used 0/5 reset 0"),
            (0, read(), "none"),
            (0, acquire(3, 5), "3 used 3/5 reset 0"),
            (1, acquire(3, 5), "no over-quota used 3/5 reset 0"),
            (2, acquire(3, 5).softly(), "6 used 6/5 reset 0"),
            (3, acquire(0, 5), "no over-quota used 6/5 reset 0"),
            (4, acquire(1, 7), "7 used 7/7 reset 0"),
            // It is a sum: windows came too late.
            (5, acquire(1, 9).over(&sliding(10, 1)), "no wrong-kind"),
            (6, add(-7), "0"),
            (7, acquire(5, 5), "5 used 5/5 reset 0"),
        ],
    );
    script(
        Counter::default(),
        &[
            (0, add(i64::MAX), &i64::MAX.to_string()),
            (0, acquire(1, i64::MAX).softly(), "no overflow"),
            (0, acquire(0, i64::MAX), &format!("{0} used {0}/{0} reset 0", i64::MAX)),
        ],
    );
}

#[test]
fn acquiring_in_a_sliding_window() {
    let window = sliding(10 * SECOND_MS, SECOND_MS);
    script(
        Counter::default(),
        &[
            (0, acquire(6, 5).over(&window), "no over-quota used 0/5 reset 10000"),
            (0, read(), "none"),
            (0, acquire(2, 5).over(&window), "2 used 2/5 reset 10999"),
            (1_500, acquire(3, 5).over(&window), "5 used 5/5 reset 9499"),
            (1_500, acquire(1, 5).over(&window), "no over-quota used 5/5 reset 9499"),
            // Its own window where none is given.
            (2_000, acquire(1, 5), "no over-quota used 5/5 reset 8999"),
            (10_998, acquire(1, 5).over(&window), "no over-quota used 5/5 reset 1"),
            (10_999, acquire(2, 5).over(&window), "7 used 5/5 reset 1000"),
            (11_999, acquire(4, 5).over(&window), "no over-quota used 2/5 reset 9000"),
            (11_999, acquire(3, 5).over(&window), "10 used 5/5 reset 9000"),
            // Additions count as well, in both directions.
            (12_000, add(-4), "6"),
            (12_000, acquire(4, 5), "10 used 5/5 reset 8999"),
            (13_000, reset(), "0"),
            (13_000, acquire(5, 5), "5 used 5/5 reset 10999"),
            (14_000, set(1), "no wrong-kind"),
            (14_000, acquire(1, 5).over(&Frame::Fixed { span_ms: 10_000 }), "no wrong-kind"),
            (14_000, delete(), "none"),
            (14_000, acquire(5, 5).over(&Frame::Fixed { span_ms: 10_000 }), "5 used 5/5 reset 6000"),
            (19_999, acquire(1, 5), "no over-quota used 5/5 reset 1"),
            (20_000, acquire(1, 5), "6 used 1/5 reset 10000"),
        ],
    );
}

#[test]
fn several_limits_on_one_counter() {
    let (short, long) = (sliding(10 * SECOND_MS, SECOND_MS), sliding(MINUTE_MS, SECOND_MS));
    let counter = script(
        Counter::default(),
        &[
            (0, acquire(3, 3).over(&short), "3 used 3/3 reset 10999"),
            (15_000, acquire(3, 3).over(&short), "6 used 3/3 reset 10999"),
            // From here on a minute is kept, and a minute more.
            (15_000, acquire(1, 7).over(&long), "7 used 7/7 reset 45999"),
            (45_000, acquire(1, 3).over(&short), "8 used 1/3 reset 10999"),
            (45_000, acquire(1, 8).over(&long), "no over-quota used 8/8 reset 15999"),
            (60_998, acquire(1, 8).over(&long), "no over-quota used 8/8 reset 1"),
            (60_999, acquire(1, 8).over(&long), "9 used 6/8 reset 15000"),
        ],
    );
    // Finer than its buckets, or so long that they would not fit: that it cannot tell.
    for window in [sliding(SECOND_MS / 2, 10), sliding(BUCKETS_MAX as u64 * SECOND_MS, MINUTE_MS)] {
        script(counter.clone(), &[(61_000, acquire(1, 1_000).over(&window), "no wrong-kind")]);
    }
    let longest = sliding((BUCKETS_MAX as u64 - 1) * SECOND_MS, MINUTE_MS);
    script(counter, &[(61_000, acquire(1, 10).over(&longest), "10 used 10/10 reset 4034999")]);
}

#[test]
fn calendars_belong_to_policies() {
    let day = |zone| Frame::Calendar { unit: Unit::Day, anchor: 0, zone };
    let tokyo = Zone::new("Asia/Tokyo", [(0, 9 * 3600)]).unwrap();
    script(
        Counter::default(),
        &[
            (0, acquire(1, 5).over(&day(tokyo.clone())), "no wrong-kind"),
            (0, acquire(5, 5).over(&day(Zone::utc())), "5 used 5/5 reset 43200000"),
            (12 * HOUR_MS - 1, acquire(1, 5).over(&day(Zone::utc())), "no over-quota used 5/5 reset 1"),
            (12 * HOUR_MS, acquire(5, 5).over(&day(Zone::utc())), "10 used 5/5 reset 86400000"),
        ],
    );
    // There the day ends three hours after the beginning of scripts.
    let mut policy = kind(Kind::Window, Some(day(tokyo.clone())), 9 * DAY_MS);
    policy.limit = Some(5);
    let counter = script(
        Counter::under(policy),
        &[
            (0, acquire(5, None), "5 used 5/5 reset 10800000"),
            (1, acquire(1, 5).over(&day(tokyo)), "no over-quota used 5/5 reset 10799999"),
            (1, acquire(1, 5).over(&day(Zone::utc())), "no wrong-kind"),
            (3 * HOUR_MS, acquire(1, None), "6 used 1/5 reset 86400000"),
        ],
    );
    // Without the policy it goes on by UTC, where all of that was on one day.
    let counter = Counter { policy: None, ..counter };
    script(counter, &[(4 * HOUR_MS, acquire(1, 10), "7 used 7/10 reset 28800000")]);
}

#[test]
fn a_policy_that_cuts_time_in_other_pieces() {
    // As many buckets as fit, and then all of them within one.
    let mut counter = Counter::under(kind(Kind::Window, Some(sliding(SECOND_MS, SECOND_MS)), DAY_MS));
    for second in 0..BUCKETS_MAX as u64 + 7 {
        counter.ask(START_MS + second * SECOND_MS, &add(1));
    }
    let State::Window(_, buckets) = &counter.body().state else { panic!() };
    assert_eq!(buckets.len(), BUCKETS_MAX);
    counter.policy = Some(kind(Kind::Window, Some(Frame::Fixed { span_ms: DAY_MS }), DAY_MS));
    let counter = script(
        counter,
        &[
            // The seven that found no room are counted too.
            (2 * HOUR_MS, acquire(4, 4_107), "4107 used 4107/4107 reset 36000000"),
            (2 * HOUR_MS, acquire(1, 4_107), "no over-quota used 4107/4107 reset 36000000"),
        ],
    );
    let State::Window(_, buckets) = &counter.body().state else { panic!() };
    assert_eq!(buckets.len(), 1);
    // A sum that fits, of buckets that do not.
    let mut counter = Counter::under(kind(Kind::Window, Some(sliding(SECOND_MS, 1)), DAY_MS));
    counter.ask(START_MS, &add(i64::MAX));
    counter.ask(START_MS + 1, &add(-5));
    counter.policy = Some(kind(Kind::Window, Some(Frame::Fixed { span_ms: DAY_MS }), DAY_MS));
    script(counter, &[(2, add(5), &i64::MAX.to_string()), (2, add(1), "no overflow")]);
}

#[test]
fn nothing_that_counts_is_forgotten() {
    // The policy keeps less than its own window, and less than what is asked for.
    let mut policy = kind(Kind::Window, Some(sliding(10 * SECOND_MS, SECOND_MS)), 1);
    policy.limit = Some(2);
    script(
        Counter::under(policy),
        &[
            (0, acquire(1, None), "1 used 1/2 reset 10999"),
            (5_000, acquire(1, None), "2 used 2/2 reset 5999"),
            (9_000, acquire(1, None), "no over-quota used 2/2 reset 1999"),
            (9_000, acquire(1, 5).over(&sliding(MINUTE_MS, SECOND_MS)), "3 used 3/5 reset 51999"),
            (30_000, add(1), "4"),
            (31_000, acquire(1, 5).over(&sliding(MINUTE_MS, SECOND_MS)), "5 used 5/5 reset 29999"),
            (
                32_000,
                acquire(1, 5).over(&sliding(MINUTE_MS, SECOND_MS)),
                "no over-quota used 5/5 reset 28999",
            ),
        ],
    );
}

/// One step of a random life: how much later, and what.
fn steps() -> impl Strategy<Value = Vec<(u64, u8, i64, bool)>> {
    prop::collection::vec((0..4_000u64, 0..10u8, 0..20i64, any::<bool>()), 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against a list of all that was counted.
    #[test]
    fn windows_are_the_sum_of_their_events(steps in steps(), bucket_ms in 1..3_000u64, count in 1..20u64, is_fixed: bool) {
        let span_ms = bucket_ms * count;
        let frame = if is_fixed { Frame::Fixed { span_ms } } else { sliding(span_ms, bucket_ms) };
        let mut counter = Counter::default();
        let mut events: BTreeMap<u64, i64> = BTreeMap::new();
        let (mut now_ms, limit) = (START_MS, 40);
        for (later_ms, what, amount, flag) in steps {
            now_ms += later_ms;
            let counts = |at_ms: u64| match is_fixed {
                true => at_ms / span_ms == now_ms / span_ms,
                false => (at_ms / bucket_ms + 1) * bucket_ms - 1 + span_ms > now_ms,
            };
            let used: i64 = events.iter().filter(|(at_ms, _)| counts(**at_ms)).map(|(_, sum)| sum).sum();
            if counter.whole.cell.is_some() && what < 2 {
                let delta = if flag { amount } else { -amount };
                prop_assert_eq!(counter.ask(now_ms, &add(delta)).refusal, None);
                *events.entry(now_ms).or_default() += delta;
                continue;
            }
            if what == 2 {
                counter.ask(now_ms, &reset());
                events.clear();
                continue;
            }
            let mut ask = acquire(amount, limit).over(&frame);
            ask = if what == 3 { ask.softly() } else { ask };
            let reply = counter.ask(now_ms, &ask);
            let fits = used + amount <= limit || what == 3;
            prop_assert_eq!(reply.refusal.is_none(), fits, "{} used, {} asked", used, amount);
            let Some(Detail::Quota { used: told, .. }) = reply.detail.as_deref() else { panic!("{reply:?}") };
            prop_assert_eq!(*told, if fits { used + amount } else { used });
            if fits {
                *events.entry(now_ms).or_default() += amount;
            }
            if let Some(cell) = counter.whole.cell {
                prop_assert_eq!(cell.value, events.values().sum::<i64>());
            }
        }
    }
}
