//! Limits whose window reaches back beyond what is kept: by another policy, or by a call that asks for more than any before.

use proptest::prelude::*;
use quipu_counting::body::State;

use super::*;

fn limited(frame: Frame, limit: i64) -> Policy {
    let keep_ms = quipu_counting::kinds::keep_for(&frame);
    Policy { limit: Some(limit), ..kind(Kind::Window, Some(frame), keep_ms) }
}

/// Ten, four times, each long after the one before has left its window.
fn four_tens(mut counter: Counter) -> Counter {
    for time in 0..4 {
        assert_eq!(counter.ask(START_MS + time * 1_300, &acquire(10, None)).refusal, None);
    }
    counter
}

#[test]
fn a_wider_window_knows_what_was_dropped() {
    let counter = four_tens(Counter::under(limited(sliding(SECOND_MS, 100), 10)));
    let widened = |frame: Frame, limit| Counter { policy: Some(limited(frame, limit)), ..counter.clone() };
    let minute = sliding(MINUTE_MS, SECOND_MS);
    script(
        widened(minute.clone(), 35),
        &[
            (4_000, acquire(10, None), "no over-quota used 40/35 reset 56999"),
            (4_000, acquire(0, 40), "40 used 40/40 reset 56999"),
            // It is a minute since the first ten.
            (60_999, acquire(5, None), "45 used 35/35 reset 1000"),
            (70_000, acquire(30, None), "75 used 35/35 reset 50999"),
        ],
    );
    // Nothing is counted twice, and nothing that lies before the window.
    script(widened(sliding(4_000, 100), 31), &[(4_150, acquire(1, None), "41 used 31/31 reset 1249")]);
    // Fixed ones: whatever was dropped meanwhile, all of it happened in this minute.
    script(
        widened(Frame::Fixed { span_ms: MINUTE_MS }, 35),
        &[(4_000, acquire(1, None), "no over-quota used 40/35 reset 56000")],
    );
    let fixed = four_tens(Counter::under(limited(Frame::Fixed { span_ms: SECOND_MS }, 10)));
    script(
        Counter { policy: Some(limited(Frame::Fixed { span_ms: MINUTE_MS }, 35)), ..fixed },
        &[
            (4_000, acquire(1, None), "no over-quota used 40/35 reset 56000"),
            (60_000, acquire(35, None), "75 used 35/35 reset 60000"),
        ],
    );
}

#[test]
fn a_call_that_asks_for_more_than_any_before_knows_it_too() {
    let mut counter = Counter::default();
    let (short, long) = (sliding(SECOND_MS, 100), sliding(MINUTE_MS, 100));
    for time in 0..4 {
        counter.ask(START_MS + time * 1_300, &acquire(10, 10).over(&short));
    }
    script(
        counter,
        &[
            (4_000, acquire(10, 35).over(&long), "no over-quota used 40/35 reset 56099"),
            (4_000, reset(), "0"),
            (4_000, acquire(10, 35).over(&long), "10 used 10/35 reset 60099"),
        ],
    );
}

/// Counters of a former version noted nothing. Their value is all that was ever counted, and the buckets say the rest.
#[test]
fn what_was_dropped_before_it_was_noted_is_what_the_buckets_lack() {
    let policy = limited(sliding(SECOND_MS, 100), 10);
    let mut counter = Counter::under(policy.clone());
    for time in 0..4 {
        counter.ask_by(3, START_MS + time * 1_300, &acquire(10, None));
    }
    let State::Window(_, buckets) = &counter.body().state else { panic!() };
    assert_eq!(buckets.past(), None, "by the former rules");
    let widened = Counter { policy: Some(limited(sliding(MINUTE_MS, SECOND_MS), 35)), ..counter.clone() };
    let mut former = widened.clone();
    assert_eq!(told(&former.ask_by(3, START_MS + 4_000, &acquire(5, None))), "45 used 25/35 reset 58999");
    // Twenty happened before the first of the buckets that are there, which began after 2.6 seconds.
    script(
        widened,
        &[
            (4_000, acquire(10, None), "no over-quota used 40/35 reset 58999"),
            (62_999, acquire(25, None), "65 used 35/35 reset 1000"),
        ],
    );
    // Who goes on as before is told the same as before.
    script(counter, &[(5_000, acquire(10, None), "50 used 10/10 reset 1099")]);
}

#[test]
fn what_is_taken_back_where_nobody_sees_it_makes_no_room() {
    let mut counter = Counter::under(limited(sliding(SECOND_MS, 100), 100));
    for (at_ms, delta) in [(0, 10), (1_000, -30), (2_000, 30), (9_000, 1)] {
        counter.ask(START_MS + at_ms, &add(delta));
    }
    counter.policy = Some(limited(sliding(7_500, 100), 100));
    script(counter, &[(9_000, acquire(0, None), "11 used 31/100 reset 599")]);
}

fn frame() -> impl Strategy<Value = Frame> {
    prop_oneof![
        (1..50u64, 1..40u64).prop_map(|(bucket_ms, count)| sliding(bucket_ms * count, bucket_ms)),
        (1..3_000u64).prop_map(|span_ms| Frame::Fixed { span_ms }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against a list of all that was counted: however windows are widened and narrowed, by policies and by calls, no limit is told of less than
    /// there was, and of no more than all that there ever was.
    #[test]
    fn a_limit_never_sees_less_than_there_was(
        steps in prop::collection::vec(
            (0..800u64, 0..20i64, prop::option::weighted(0.1, frame()), prop::option::weighted(0.1, 1..90u64)),
            1..120,
        ),
        first in frame(),
    ) {
        let mut counter = Counter::under(limited(first.clone(), i64::MAX));
        let (mut frame, mut now_ms) = (first, START_MS);
        let mut events: Vec<(u64, i64)> = Vec::new();
        for (later_ms, amount, another, longer) in steps {
            now_ms += later_ms;
            if let Some(another) = another {
                frame = another;
                counter.policy = Some(limited(frame.clone(), i64::MAX));
            }
            let asked = match (&frame, longer) {
                (Frame::Sliding { bucket_ms, .. }, Some(longer)) => sliding(longer * bucket_ms, *bucket_ms),
                _ => frame.clone(),
            };
            let reply = counter.ask(now_ms, &acquire(amount, None).over(&asked));
            prop_assert_eq!(reply.refusal, None);
            events.push((now_ms, amount));
            let Some(Detail::Quota { used, .. }) = reply.detail.as_deref() else { panic!("{reply:?}") };
            let first_ms = match asked {
                Frame::Sliding { span_ms, .. } => now_ms - span_ms + 1,
                _ => asked.window(now_ms).start,
            };
            let counted: i64 =
                events.iter().filter(|(at_ms, _)| *at_ms >= first_ms).map(|(_, amount)| amount).sum();
            let ever: i64 = events.iter().map(|(_, amount)| amount).sum();
            prop_assert!((counted..=ever).contains(used), "{} not in {}..={}", used, counted, ever);
        }
    }
}
