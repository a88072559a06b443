//! Policies that cut time anew: what was counted stays counted.

use proptest::prelude::*;
use quipu_counting::body::State;
use quipu_counting::window::{Unit, Zone};

use super::*;

fn calendar(unit: Unit, anchor: u8, zone: Zone) -> Frame {
    Frame::Calendar { unit, anchor, zone }
}

fn zone(name: &str, offset_h: i32) -> Zone {
    // Changes of offset that lie far from where these tests count.
    Zone::new(name, [(0, 0), (1_000_000_000_000, offset_h * 3_600), (2_000_000_000_000, 0)]).unwrap()
}

fn window(frame: Frame) -> Policy {
    kind(Kind::Window, Some(frame), 70 * DAY_MS)
}

/// What is in the buckets, as so long after [`START_MS`].
fn sums(counter: &Counter) -> Vec<(i64, i64)> {
    let State::Window(_, buckets) = &counter.body().state else { panic!("it has a window") };
    let all = buckets.iter(0..u64::MAX);
    all.map(|(start_ms, sum)| (start_ms as i64 - START_MS as i64, sum)).collect()
}

/// Counts under one cut at noon, changes the policy, and says what is used two hours later.
fn used_after(before: Frame, after: Option<Frame>) -> String {
    let mut counter = script(Counter::under(window(before)), &[(0, add(3), "3"), (HOUR_MS, add(4), "7")]);
    counter.policy = after.map(window);
    let asked = counter.ask(START_MS + 2 * HOUR_MS, &acquire(1, 100));
    let looked = counter.clone().ask(START_MS + 2 * HOUR_MS, &read());
    let Some(Detail::Body(body, Some(frame))) = looked.detail.as_deref() else { panic!("{looked:?}") };
    let State::Window(_, buckets) = &body.state else { panic!() };
    let shown = buckets.sum(frame.window(START_MS + 2 * HOUR_MS));
    let Some(Detail::Quota { used, .. }) = asked.detail.as_deref() else { panic!("{asked:?}") };
    assert_eq!(shown, i128::from(*used), "who looks sees what is used");
    used.to_string()
}

#[test]
fn usage_is_kept_whatever_the_cut_was() {
    let (month, week, day) = (Unit::Month, Unit::Week, Unit::Day);
    let tokyo = || zone("Asia/Tokyo", 9);
    let new_york = || zone("America/New_York", -5);
    // It is noon of the 28th of March 2026, a Saturday; 7 were counted, and 1 is acquired.
    for (name, before, after, used) in [
        (
            "another zone, whose day began later",
            calendar(day, 0, Zone::utc()),
            Some(calendar(day, 0, new_york())),
            "8",
        ),
        (
            "another zone, whose day began earlier",
            calendar(day, 0, new_york()),
            Some(calendar(day, 0, tokyo())),
            "8",
        ),
        ("no zone, because no policy", calendar(day, 0, new_york()), None, "8"),
        (
            "months that begin later",
            calendar(month, 1, Zone::utc()),
            Some(calendar(month, 15, Zone::utc())),
            "8",
        ),
        ("months that begin today", calendar(month, 1, tokyo()), Some(calendar(month, 28, tokyo())), "8"),
        ("weeks of months", calendar(month, 1, Zone::utc()), Some(calendar(week, 6, Zone::utc())), "8"),
        ("days of months", calendar(month, 1, Zone::utc()), Some(calendar(day, 0, Zone::utc())), "8"),
        ("an hour of a day", Frame::Fixed { span_ms: DAY_MS }, Some(sliding(HOUR_MS, MINUTE_MS)), "8"),
        ("a day of hours", sliding(DAY_MS, HOUR_MS), Some(Frame::Fixed { span_ms: DAY_MS }), "8"),
        (
            "pieces that do not fit",
            sliding(DAY_MS, 7 * MINUTE_MS),
            Some(sliding(DAY_MS, 10 * MINUTE_MS)),
            "8",
        ),
        ("a shorter window", sliding(DAY_MS, MINUTE_MS), Some(sliding(HOUR_MS / 2, MINUTE_MS)), "1"),
    ] {
        assert_eq!(used_after(before, after), used, "{name}");
    }
}

#[test]
fn what_may_have_been_late_counts_as_late() {
    let mut counter = Counter::under(window(Frame::Fixed { span_ms: HOUR_MS }));
    for (at_ms, delta) in [(0, 1), (HOUR_MS, 2), (2 * HOUR_MS, -3), (3 * HOUR_MS + 5 * MINUTE_MS, 4)] {
        counter.ask(START_MS + at_ms, &add(delta));
    }
    counter.policy = Some(window(sliding(3 * HOUR_MS, 10 * MINUTE_MS)));
    let now_ms = 3 * HOUR_MS + 30 * MINUTE_MS;
    let minutes = |counter: &Counter| -> Vec<(i64, i64)> {
        sums(counter).iter().map(|(at_ms, sum)| (at_ms / MINUTE_MS as i64, *sum)).collect()
    };
    let before = minutes(&counter);
    counter.ask(START_MS + now_ms, &read());
    counter.ask(START_MS + now_ms, &acquire(1_000, 10));
    assert_eq!(minutes(&counter), before, "who looks, or is refused, changes nothing");
    counter.ask(START_MS + now_ms, &add(5));
    // At the end of the hour; of what was taken back at its begin; of the last hour when something last changed.
    assert_eq!(minutes(&counter), [(50, 1), (110, 2), (120, -3), (180, 4), (210, 5)]);
    // And back: nothing is lost, and nothing counted twice.
    counter.policy = Some(window(Frame::Fixed { span_ms: HOUR_MS }));
    counter.ask(START_MS + now_ms, &add(1));
    assert_eq!(minutes(&counter), [(0, 1), (60, 2), (120, -3), (180, 10)]);
}

#[test]
fn a_zone_is_known_by_name_where_its_clocks_are_not() {
    let day = |zone| window(calendar(Unit::Day, 0, zone));
    let mut counter = Counter::under(day(zone("America/New_York", -5)));
    // Noon there is 17:00 UTC; days begin at 5:00.
    counter.ask(START_MS, &add(1));
    counter.ask(START_MS + DAY_MS, &add(2));
    assert_eq!(sums(&counter), [(-7 * HOUR_MS as i64, 1), (17 * HOUR_MS as i64, 2)]);
    counter.policy = Some(day(zone("Asia/Tokyo", 9)));
    // What was counted on the first of them may have been so until the second began, at 5:00, which is in the day that began at 15:00.
    counter.ask(START_MS + DAY_MS + 1, &add(4));
    assert_eq!(sums(&counter), [(3 * HOUR_MS as i64, 7)]);
}

#[test]
fn visitors_stay_seen_too() {
    let unique = |frame| kind(Kind::Unique, Some(frame), 9 * DAY_MS);
    let mut counter = Counter::under(unique(Frame::Fixed { span_ms: DAY_MS }));
    counter.ask(START_MS, &observe(&["a", "b"]));
    counter.policy = Some(unique(sliding(HOUR_MS, MINUTE_MS)));
    script(
        counter,
        &[
            (30 * MINUTE_MS, read(), "2"),
            (30 * MINUTE_MS, observe(&["b", "c"]), "3 exactly applied 3"),
            (61 * MINUTE_MS, read(), "2"),
        ],
    );
}

fn frame() -> impl Strategy<Value = Frame> {
    let zones =
        prop::sample::select(vec![("UTC", 0), ("Asia/Tokyo", 9), ("America/New_York", -5), ("Etc/Half", 1)]);
    let zoned = (0..3usize, 1..8u8, zones).prop_map(|(unit, anchor, (name, offset_h))| {
        let unit = [Unit::Day, Unit::Week, Unit::Month][unit];
        let zone = if name == "UTC" { Zone::utc() } else { zone(name, offset_h) };
        calendar(unit, if unit == Unit::Day { 0 } else { anchor }, zone)
    });
    prop_oneof![
        (1..100u64, 1..30u64)
            .prop_map(|(minutes, count)| sliding(minutes * count * MINUTE_MS, minutes * MINUTE_MS)),
        (1..5_000u64).prop_map(|minutes| Frame::Fixed { span_ms: minutes * MINUTE_MS }),
        zoned,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// However often the policy changes: a limit never sees less than what was counted in its window, and nothing is counted twice.
    #[test]
    fn a_limit_never_sees_less_than_there_was(
        steps in prop::collection::vec((0..600u64, 0..20i64, prop::option::weighted(0.2, frame())), 1..80),
        first in frame(),
    ) {
        let mut counter = Counter::under(window(first.clone()));
        let (mut frame, mut now_ms) = (first, START_MS);
        let mut events: Vec<(u64, i64)> = Vec::new();
        for (later_min, delta, another) in steps {
            now_ms += later_min * MINUTE_MS;
            if let Some(another) = another {
                frame = another;
                counter.policy = Some(window(frame.clone()));
            }
            let reply = counter.ask(now_ms, &acquire(delta, i64::MAX));
            events.push((now_ms, delta));
            let Some(Detail::Quota { used, .. }) = reply.detail.as_deref() else { panic!("{reply:?}") };
            let window = frame.window(now_ms);
            let counted: i64 =
                events.iter().filter(|(at_ms, _)| window.contains(at_ms)).map(|(_, delta)| delta).sum();
            let ever: i64 = events.iter().map(|(_, delta)| delta).sum();
            prop_assert!((counted..=ever).contains(used), "{} not in {}..={}", used, counted, ever);
        }
    }
}
