//! Counters of uniques, alone and by time.

use std::collections::BTreeSet;

use proptest::prelude::*;
use quipu_counting::body::State;
use quipu_counting::kinds::AHEAD_MS;
use quipu_counting::unique::EXACT_MAX;
use quipu_counting::visitors::VISITOR_BUCKETS_MAX;

use super::*;

#[test]
fn observing() {
    script(
        Counter::default(),
        &[
            (0, read(), "none"),
            (0, observe(&["a", "b", "a"]), "2 exactly applied 3"),
            (1, observe(&["a"]), "2 exactly applied 0"),
            (2, observe(&[]), "2 exactly applied 0"),
            (3, observe(&["b", "c"]), "3 exactly applied 3"),
            (4, read(), "3"),
        ],
    );
    // Nothing was seen, and yet there is a counter now: as PFADD without items.
    script(Counter::default(), &[(0, observe(&[]), "0 exactly applied 1"), (1, read(), "0")]);
}

#[test]
fn kinds_do_not_mix() {
    for ask in [add(1), set(1), acquire(1, 5), reserve(1, 10), acquire(1, 5).over(&sliding(10, 1))] {
        let counter = script(Counter::default(), &[(0, observe(&["a"]), "1 exactly applied 3")]);
        script(counter, &[(1, ask, "no wrong-kind"), (2, read(), "1")]);
    }
    for first in [add(1), reserve(1, 10), acquire(1, 5).over(&sliding(10, 1))] {
        for ask in [observe(&["a"]), join(&["a"])] {
            let mut counter = Counter::default();
            let value = counter.ask(START_MS, &first).cell.value;
            script(counter, &[(1, ask, "no wrong-kind"), (2, read(), &value.to_string())]);
        }
    }
    // Bytes that are none of ours.
    let torn = |action| Ask(action, vec![7, 7]);
    script(
        Counter::default(),
        &[
            (0, torn(Action::Join { sketch: Default::default() }), "no wrong-kind"),
            (0, Ask(acquire(1, 5).0, vec![9]), "no wrong-kind"),
            (0, read(), "none"),
        ],
    );
}

#[test]
fn joining_and_replacing() {
    script(
        Counter::default(),
        &[
            (0, join(&["a", "b"]), "2 exactly applied 3"),
            (1, join(&["b"]), "2 exactly applied 0"),
            (2, join(&["b", "c"]), "3 exactly applied 3"),
            (3, replace(&["x"], Expiry::Keep, Condition::Absent), "no condition-unmet"),
            (3, replace(&["x"], Expiry::Keep, Condition::Version(2)), "1"),
            (4, observe(&["a", "x"]), "2 exactly applied 3"),
            // Gone at once, with all it had.
            (5, replace(&["x"], Expiry::At(5), Condition::Always), "none"),
            (6, read(), "none"),
            (7, replace(&["x"], Expiry::At(5), Condition::Always), "none"),
            (8, replace(&["x", "y"], Expiry::In(2), Condition::Absent), "2"),
            (9, observe(&["y"]), "2 exactly applied 0"),
            (10, observe(&["y"]), "1 exactly applied 3"),
        ],
    );
}

/// As SET and RESTORE do in Redis. What comes of it is another life, so that no hold and no sketch belongs to both.
#[test]
fn overwriting() {
    let sketch = || replace(&["x", "y"], Expiry::Keep, Condition::Always);
    let counter = script(
        Counter::default(),
        &[
            (0, observe(&["a"]), "1 exactly applied 3"),
            (1, set(5), "no wrong-kind"),
            (1, overwrite(5), "5"),
            (2, add(1), "6"),
            (2, reserve(1, 100), "6 hold 4 until 102"),
            (3, sketch(), "2"),
            (4, commit(4), "no no-such-hold"),
            (4, observe(&["x"]), "2 exactly applied 0"),
            (5, overwrite(-1), "-1"),
        ],
    );
    assert_eq!(counter.whole.body, None);
    // Unless a policy wants them to be what they are; and a window is no number.
    let unique = Counter::under(kind(Kind::Unique, None, 0));
    script(unique, &[(0, observe(&["a"]), "1 exactly applied 3"), (1, overwrite(5), "no wrong-kind")]);
    let sum = Counter::under(kind(Kind::Sum, None, 0));
    script(sum, &[(0, add(1), "1"), (1, sketch(), "no wrong-kind")]);
    let window = acquire(1, 5).over(&sliding(10, 1));
    script(
        Counter::default(),
        &[
            (0, window, "1 used 1/5 reset 10"),
            (1, overwrite(5), "no wrong-kind"),
            (1, sketch(), "no wrong-kind"),
        ],
    );
}

#[test]
fn the_rest_of_the_verbs() {
    script(
        Counter::default(),
        &[
            (0, observe(&["a", "b"]), "2 exactly applied 3"),
            (1, plain(Action::Reset(Condition::Version(7))), "no condition-unmet"),
            (1, plain(Action::Check(Condition::Exists)), "2"),
            (1, reset(), "0"),
            (2, observe(&["a"]), "1 exactly applied 3"),
            (3, expire(10), "1"),
            (4, observe(&["b"]), "2 exactly applied 3"),
            // Another life begins without what the one before saw.
            (13, observe(&["b"]), "1 exactly applied 3"),
            (14, delete(), "none"),
            (15, reset(), "none"),
            (15, delete(), "none"),
            (16, add(1), "1"),
        ],
    );
}

#[test]
fn from_exact_to_an_estimate() {
    let items: Vec<u64> = (0..20_000u64).map(|item| hash(&item.to_le_bytes())).collect();
    let mut counter = Counter::default();
    for (portion, items) in items.chunks(100).enumerate() {
        let reply = counter.ask(START_MS, &observe_hashes(items));
        let seen = (portion + 1) * 100;
        let Some(Detail::Seen { is_exact }) = reply.detail.as_deref() else { panic!("{reply:?}") };
        assert_eq!(*is_exact, seen <= EXACT_MAX);
        let off = reply.cell.value.abs_diff(seen as i64) as f64 / seen as f64;
        assert!(off < 0.05, "{seen} different items, {} counted", reply.cell.value);
    }
    // Nothing new and nothing changed, however large it is.
    let version = counter.whole.cell.unwrap().version;
    assert_eq!(counter.ask(START_MS, &observe_hashes(&items)).applied, 0);
    assert_eq!(counter.whole.cell.unwrap().version, version);
    let sketch = Ask(Action::Join { sketch: Default::default() }, sketch_of(&items));
    assert_eq!(counter.ask(START_MS, &sketch).applied, 0);
}

fn visitors(frame: Frame, keep_ms: u64) -> Counter {
    Counter::under(kind(Kind::Unique, Some(frame), keep_ms))
}

#[test]
fn uniques_by_time() {
    let day = Frame::Fixed { span_ms: DAY_MS };
    script(
        visitors(day.clone(), 3 * DAY_MS),
        &[
            (0, observe(&["a", "b"]), "2 exactly applied 3"),
            (1, add(1), "no wrong-kind"),
            (2, join(&["a"]), "no wrong-kind"),
            (2, replace(&["a"], Expiry::Keep, Condition::Always), "no wrong-kind"),
            // Every day counts anew.
            (DAY_MS, observe(&["a"]), "1 exactly applied 3"),
            (DAY_MS + 1, observe(&["a", "c"]), "2 exactly applied 3"),
            (DAY_MS + 1, read(), "2"),
            (2 * DAY_MS, read(), "0"),
            (2 * DAY_MS, reset(), "0"),
            (2 * DAY_MS, observe(&["a"]), "1 exactly applied 3"),
        ],
    );
    script(
        visitors(sliding(2 * DAY_MS, DAY_MS), 9 * DAY_MS),
        &[
            (0, observe(&["a", "b"]), "2 exactly applied 3"),
            // What is told, and what lists and sums show, is what a reader sees: the window.
            (DAY_MS, observe(&["a", "c"]), "3 exactly applied 3"),
            (DAY_MS, read(), "3"),
            (3 * DAY_MS, read(), "2"),
            (3 * DAY_MS, observe(&["c"]), "2 exactly applied 3"),
            (3 * DAY_MS + HOUR_MS, observe(&["c"]), "2 exactly applied 0"),
            (4 * DAY_MS, observe(&["d"]), "2 exactly applied 3"),
            (9 * DAY_MS, read(), "0"),
        ],
    );
    // Not born by a sketch, which does not say when.
    script(visitors(day, DAY_MS), &[(0, join(&["a"]), "no wrong-kind"), (0, read(), "none")]);
}

#[test]
fn buckets_of_visitors_that_are_kept() {
    let mut counter = visitors(sliding(MINUTE_MS, MINUTE_MS), 5 * MINUTE_MS);
    for minute in 0..20 {
        counter.ask(START_MS + minute * MINUTE_MS, &observe(&["a"]));
    }
    let minutes: Vec<u64> =
        starts(&counter).iter().map(|start_ms| (start_ms - START_MS) / MINUTE_MS).collect();
    assert_eq!(minutes, [14, 15, 16, 17, 18, 19]);
    // Never more than fit, however long they should be kept.
    let mut counter = visitors(sliding(SECOND_MS, SECOND_MS), DAY_MS);
    for second in 0..VISITOR_BUCKETS_MAX as u64 + 50 {
        counter.ask(START_MS + second * SECOND_MS, &observe(&["a"]));
    }
    assert_eq!(starts(&counter).len(), VISITOR_BUCKETS_MAX);
    assert_eq!(starts(&counter)[0], START_MS + 50 * SECOND_MS);
}

fn starts(counter: &Counter) -> Vec<u64> {
    let State::Visitors(_, visitors) = &counter.body().state else { panic!() };
    visitors.iter().map(|(start_ms, _)| *start_ms).collect()
}

#[test]
fn visitors_that_are_late_count_for_their_time() {
    let policy = Policy {
        lateness_ms: Some(10 * MINUTE_MS),
        ..kind(Kind::Unique, Some(sliding(5 * MINUTE_MS, MINUTE_MS)), 30 * MINUTE_MS)
    };
    let counter = script(
        Counter::under(policy),
        &[
            (20 * MINUTE_MS, observe_at(&["a", "b"], 18 * MINUTE_MS + 7), "2 exactly applied 3"),
            (20 * MINUTE_MS, observe(&["a", "c"]), "3 exactly applied 3"),
            (20 * MINUTE_MS, observe_at(&["a"], 18 * MINUTE_MS), "3 exactly applied 0"),
            // Before the window: known, and not in it.
            (20 * MINUTE_MS, observe_at(&["d"], 11 * MINUTE_MS), "3 exactly applied 3"),
            (20 * MINUTE_MS, observe_at(&["d"], 10 * MINUTE_MS - 1), "no out-of-time 600000..=1260000"),
            (20 * MINUTE_MS, observe_at(&["e"], 20 * MINUTE_MS + AHEAD_MS), "4 exactly applied 3"),
            (20 * MINUTE_MS, read(), "4"),
            // "b" was seen only then.
            (24 * MINUTE_MS, read(), "3"),
        ],
    );
    let minutes: Vec<u64> = starts(&counter).iter().map(|at_ms| (at_ms - START_MS) / MINUTE_MS).collect();
    assert_eq!(minutes, [11, 18, 20]);
    script(Counter::default(), &[(0, observe_at(&["a"], 0), "no no-window"), (0, read(), "none")]);
    let one_sketch =
        [(0, observe(&["a"]), "1 exactly applied 3"), (0, observe_at(&["b"], 0), "no no-window")];
    script(Counter::default(), &one_sketch);
}

#[test]
fn when_all_visitors_are_newer_there_is_no_room() {
    let mut counter = visitors(sliding(SECOND_MS, SECOND_MS), DAY_MS);
    let last_ms = VISITOR_BUCKETS_MAX as u64 * SECOND_MS;
    for second in 1..=VISITOR_BUCKETS_MAX as u64 {
        counter.ask(START_MS + second * SECOND_MS, &observe(&["a"]));
    }
    let bound = format!("no out-of-time 1000..={}", last_ms + AHEAD_MS);
    let counter = script(
        counter,
        &[
            (last_ms, observe_at(&["b"], 999), &bound),
            (last_ms, observe_at(&["b"], 1_000), "1 exactly applied 3"),
        ],
    );
    assert_eq!(starts(&counter).len(), VISITOR_BUCKETS_MAX);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against a list of all visits, late ones too; and a counter that was stored and read again says the same, though it has to add up anew.
    #[test]
    fn windows_of_visitors_are_the_items_of_their_visits(
        steps in prop::collection::vec((0..4_000u64, 0..40_000u64, 0..250u64), 1..150),
        bucket_ms in 1..3_000u64,
        count in 1..20u64,
        is_fixed: bool,
    ) {
        let span_ms = bucket_ms * count;
        let frame = if is_fixed { Frame::Fixed { span_ms } } else { sliding(span_ms, bucket_ms) };
        let mut counter = visitors(frame.clone(), 60_000);
        let mut visits: Vec<(u64, u64)> = Vec::new();
        let mut now_ms = START_MS;
        for (later_ms, ago_ms, item) in steps {
            now_ms += later_ms;
            let at_ms = (now_ms - ago_ms).max(START_MS);
            let items = [item.to_string(), (item / 2).to_string()];
            let names: Vec<&str> = items.iter().map(String::as_str).collect();
            let mut stored = counter.clone();
            let mut bytes = Vec::new();
            if let Some(body) = &counter.whole.body {
                body.put(&mut bytes);
                stored.whole.body = Body::read(&bytes).map(Arc::new);
            }
            let ask = observe_at(&names, at_ms - START_MS);
            let reply = counter.ask(now_ms, &ask);
            prop_assert_eq!(&stored.ask(now_ms, &ask), &reply);
            visits.extend([(at_ms, item), (at_ms, item / 2)]);
            let window = frame.window(now_ms);
            let within = visits.iter().filter(|(at_ms, _)| window.contains(at_ms));
            let different: BTreeSet<u64> = within.map(|(_, item)| *item).collect();
            prop_assert_eq!(reply.cell.value, different.len() as i64);
        }
    }
}

#[test]
fn a_policy_that_cuts_time_in_larger_pieces_keeps_what_was_seen() {
    let mut counter = visitors(sliding(SECOND_MS, SECOND_MS), DAY_MS);
    for second in 0..VISITOR_BUCKETS_MAX as u64 {
        counter.ask(START_MS + second * SECOND_MS, &observe(&["a", &(second % 10).to_string()]));
    }
    counter.policy = Some(kind(Kind::Unique, Some(Frame::Fixed { span_ms: DAY_MS }), DAY_MS));
    let now_ms = VISITOR_BUCKETS_MAX as u64 * SECOND_MS;
    script(
        counter,
        &[
            (now_ms, read(), "11"),
            (now_ms, observe(&["b"]), "12 exactly applied 3"),
            (now_ms, read(), "12"),
            (now_ms, observe(&["a", "0"]), "12 exactly applied 0"),
        ],
    );
}
