//! Counters that become what they were elsewhere.

use quipu_counting::kinds::put_restored;
use quipu_counting::series::Retention;

use super::*;

/// All that this counter is.
fn restore(counter: &Counter) -> Ask {
    let (mut body, mut payload) = (Vec::new(), Vec::new());
    counter.body().put(&mut body);
    let cell = counter.whole.cell.unwrap();
    put_restored(&mut payload, cell.updated_at_ms, cell.value, &body);
    let (expiry, condition) = (Expiry::Keep, Condition::Always);
    Ask(Action::Restore { whole: Default::default(), expiry, condition }, payload)
}

fn window() -> Policy {
    kind(Kind::Window, Some(sliding(10 * SECOND_MS, SECOND_MS)), MINUTE_MS)
}

#[test]
fn all_it_had_is_there_again_and_again() {
    let windowed = script(Counter::under(window()), &[(0, add(5), "5"), (3_000, add(2), "7")]);
    let unique = script(Counter::default(), &[(0, observe(&["a", "b"]), "2 exactly applied 3")]);
    let visits = kind(Kind::Unique, Some(sliding(10 * SECOND_MS, SECOND_MS)), MINUTE_MS);
    let visits = script(
        Counter::under(visits),
        &[(0, observe(&["a"]), "1 exactly applied 3"), (2_000, observe(&["b"]), "2 exactly applied 3")],
    );
    for (counter, told) in [(windowed, "7"), (unique, "2"), (visits, "2")] {
        // Where there was nothing, a number, something of the same kind, or of another.
        for before in
            [vec![], vec![(4_000, add(1), "1")], vec![(4_000, observe(&["z"]), "1 exactly applied 3")]]
        {
            let mut other = script(Counter::default(), &before);
            other = script(other, &[(5_000, restore(&counter), told), (6_000, restore(&counter), told)]);
            assert_eq!(other.body(), counter.body());
            let (cell, original) = (other.whole.cell.unwrap(), counter.whole.cell.unwrap());
            assert_eq!((cell.value, cell.updated_at_ms), (original.value, original.updated_at_ms));
        }
    }
}

#[test]
fn it_counts_on() {
    let counter = script(Counter::under(window()), &[(0, add(5), "5")]);
    script(
        Counter::default(),
        &[
            (1_000, restore(&counter), "5"),
            (2_000, add(1), "6"),
            (2_000, acquire(1, 6), "no over-quota used 6/6 reset 8999"),
            (11_000, acquire(1, 6), "7 used 2/6 reset 1999"),
        ],
    );
}

#[test]
fn what_was_set_aside_stays_where_it_was() {
    let counter =
        script(Counter::default(), &[(0, add(5), "5"), (0, reserve(3, HOUR_MS), "5 hold 2 until 3600000")]);
    let other = script(
        Counter::default(),
        &[(0, restore(&counter), "5"), (0, add_within(5, 0, 10), "10"), (0, commit(2), "no hold-ended")],
    );
    assert_eq!(other.body().holds.iter().count(), 0);
}

#[test]
fn history_stays_true() {
    let policy = || Policy {
        history: Some(Retention { minutes_ms: HOUR_MS, hours_ms: 0, days_ms: 0 }),
        ..Policy::default()
    };
    let counter = script(Counter::under(policy()), &[(0, add(5), "5"), (10 * MINUTE_MS, add(2), "7")]);
    // Of a life before it nothing is known.
    let other = script(
        Counter::under(policy()),
        &[(0, add(100), "100"), (20 * MINUTE_MS, restore(&counter), "7"), (30 * MINUTE_MS, add(1), "8")],
    );
    let counter = script(counter, &[(30 * MINUTE_MS, add(1), "8")]);
    assert_eq!(other.body().series, counter.body().series);
}

#[test]
fn policies_hold() {
    let counter = script(Counter::under(window()), &[(0, add(5), "5")]);
    for (policy, told) in [
        (kind(Kind::Sum, None, 0), "no wrong-kind"),
        (kind(Kind::Unique, None, 0), "no wrong-kind"),
        (Policy { max: Some(4), ..Policy::default() }, "no above-ceiling"),
        (Policy { disabled: true, ..Policy::default() }, "no disabled"),
        (Policy { max: Some(5), ..window() }, "5"),
    ] {
        script(Counter::under(policy), &[(0, restore(&counter), told)]);
    }
}

#[test]
fn what_is_no_counter_is_refused() {
    let Ask(action, payload) = restore(&script(Counter::under(window()), &[(0, add(5), "5")]));
    for length in 0..payload.len() {
        let shorter = Ask(action, payload[..length].to_vec());
        script(Counter::default(), &[(0, shorter, "no wrong-kind"), (0, read(), "none")]);
    }
}
