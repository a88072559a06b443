//! Overflow, the bounds of a call and the bounds of a policy.

use quipu_counting::{Action, Add, Condition, Limits, NEVER, Refusal, decide};

use crate::Expected::{Deleted, No, Now, Same};
use crate::{NOW, SEQUENCE, add, cell, check, expired, live, set, within};

#[test]
fn sums_that_do_not_fit_are_refused() {
    let (lowest, highest) = (i64::MIN, i64::MAX);
    for (value, delta, expected) in [
        (highest, 1, No(Refusal::Overflow)),
        (highest, highest, No(Refusal::Overflow)),
        (highest - 1, 1, Now(highest, NEVER)),
        (highest, 0, Now(highest, NEVER)),
        (highest, lowest, Now(-1, NEVER)),
        (lowest, -1, No(Refusal::Overflow)),
        (lowest, lowest, No(Refusal::Overflow)),
        (lowest + 1, -1, Now(lowest, NEVER)),
        (lowest, highest, Now(-1, NEVER)),
        (-1, lowest, No(Refusal::Overflow)),
        (0, lowest, Now(lowest, NEVER)),
        (1, highest, No(Refusal::Overflow)),
    ] {
        check(live(value), add(delta), Limits::NONE, expected);
    }
    check(None, add(lowest), Limits::NONE, Now(lowest, NEVER));
    check(None, add(highest), Limits::NONE, Now(highest, NEVER));
    // Saturating without any bound stops at the ends of the type.
    let saturating = |delta| Action::Add(Add { saturate: true, ..Add::plain(delta) });
    check(live(highest - 2), saturating(9), Limits::NONE, Now(highest, NEVER));
    check(live(lowest + 2), saturating(-9), Limits::NONE, Now(lowest, NEVER));
}

/// `INCREX` of Redis 8.8: the result must lie in [LBOUND, UBOUND], wherever the value came from; SATURATE moves
/// the result to the nearer bound, even backwards when the stored value already lies outside.
#[test]
fn bounds_of_the_call() {
    let (lowest, highest) = (i64::MIN, i64::MAX);
    let (low, high) = (No(Refusal::BelowFloor), No(Refusal::AboveCeiling));
    for (value, delta, min, max, refusing, saturating) in [
        (5, 3, 0, 10, Now(8, NEVER), Now(8, NEVER)),
        (5, 5, 0, 10, Now(10, NEVER), Now(10, NEVER)),
        (5, -5, 0, 10, Now(0, NEVER), Now(0, NEVER)),
        // Stored outside, and the step reaches into the range.
        (200, -150, 0, 100, Now(50, NEVER), Now(50, NEVER)),
        (-7, 7, 0, 100, Now(0, NEVER), Now(0, NEVER)),
        (5, 6, 0, 10, high, Now(10, NEVER)),
        (5, -6, 0, 10, low, Now(0, NEVER)),
        (10, 1, 0, 10, high, Same),
        (0, -1, 0, 10, low, Same),
        // Stored outside: a step in the right direction that does not reach is refused all the same.
        (200, 100, 0, 100, high, Now(100, NEVER)),
        (200, -50, 0, 100, high, Now(100, NEVER)),
        (200, 0, 0, 100, high, Now(100, NEVER)),
        (200, -300, 0, 100, low, Now(0, NEVER)),
        (-7, 2, 0, 100, low, Now(0, NEVER)),
        (-7, 0, 0, 100, low, Now(0, NEVER)),
        (-7, 200, 0, 100, high, Now(100, NEVER)),
        // A sum beyond 64 bits goes to the bound of the call, not to the end of the type.
        (5, highest, 0, 10, high, Now(10, NEVER)),
        (-5, lowest, -10, 0, low, Now(-10, NEVER)),
        // A saturated step that no reply could name.
        (lowest, 1, highest, highest, low, No(Refusal::Overflow)),
        (lowest, 1, 0, highest, low, No(Refusal::Overflow)),
        (highest, -1, lowest, -2, high, No(Refusal::Overflow)),
        // An empty range admits nothing, in either form.
        (5, 1, 10, 0, high, high),
        (5, -1, 10, 0, low, low),
    ] {
        let action = |saturate| Action::Add(Add { min, max, saturate, ..Add::plain(delta) });
        check(live(value), action(false), Limits::NONE, refusing);
        check(live(value), action(true), Limits::NONE, saturating);
    }
    // A refusal does not bring a counter into existence; a saturated addition does, even of nothing.
    let full = |saturate| Action::Add(Add { max: 0, saturate, ..Add::plain(5) });
    for nothing in [None, expired(3)] {
        check(nothing, full(false), Limits::NONE, high);
        check(nothing, full(true), Limits::NONE, Now(0, NEVER));
    }
}

/// The limit is read live and never stored beside the count: lowering it below the usage neither underflows nor
/// blocks the way back, and nothing moves further out.
#[test]
fn bounds_of_the_policy() {
    let (low, high) = (No(Refusal::BelowFloor), No(Refusal::AboveCeiling));
    let range = within(-10, 50);
    for (value, delta, refusing, saturating) in [
        (40, 10, Now(50, NEVER), Now(50, NEVER)),
        (40, 11, high, Now(50, NEVER)),
        (0, -10, Now(-10, NEVER), Now(-10, NEVER)),
        (0, -11, low, Now(-10, NEVER)),
        // The ceiling was lowered after the fact.
        (100, 1, high, Same),
        (100, 0, Now(100, NEVER), Now(100, NEVER)),
        (100, -1, Now(99, NEVER), Now(99, NEVER)),
        (100, -50, Now(50, NEVER), Now(50, NEVER)),
        (100, -111, low, Now(-10, NEVER)),
        (i64::MAX, -1, Now(i64::MAX - 1, NEVER), Now(i64::MAX - 1, NEVER)),
        (i64::MAX, 1, No(Refusal::Overflow), Same),
        // The floor was raised after the fact.
        (-30, -1, low, Same),
        (-30, 0, Now(-30, NEVER), Now(-30, NEVER)),
        (-30, 5, Now(-25, NEVER), Now(-25, NEVER)),
        (-30, 81, high, Now(50, NEVER)),
    ] {
        check(live(value), add(delta), range, refusing);
        check(live(value), add(delta), Limits { saturate: true, ..range }, saturating);
        let asked = Action::Add(Add { saturate: true, ..Add::plain(delta) });
        check(live(value), asked, range, saturating);
    }
}

#[test]
fn the_narrower_of_call_and_policy_holds() {
    let (low, high) = (No(Refusal::BelowFloor), No(Refusal::AboveCeiling));
    for (value, delta, (min, max), (floor, ceiling), refusing, saturating) in [
        (0, 9, (0, 8), (0, 10), high, Now(8, NEVER)),
        (0, 9, (0, 10), (0, 8), high, Now(8, NEVER)),
        (0, -9, (-8, 0), (-10, 0), low, Now(-8, NEVER)),
        (0, -9, (-10, 0), (-8, 0), low, Now(-8, NEVER)),
        // Nothing in common: SATURATE must not drag the value over a bound of the policy.
        (5, 1, (20, 30), (0, 10), high, high),
        (5, -1, (-30, -20), (0, 10), low, low),
        (100, 1, (0, 50), (80, 90), high, high),
        // Outside both: the call's bound holds for the result, the policy's for the direction.
        (100, -10, (0, 95), (0, 50), Now(90, NEVER), Now(90, NEVER)),
        (100, -1, (0, 95), (0, 50), high, Now(95, NEVER)),
    ] {
        let action = |saturate| Action::Add(Add { min, max, saturate, ..Add::plain(delta) });
        check(live(value), action(false), within(floor, ceiling), refusing);
        check(live(value), action(true), within(floor, ceiling), saturating);
    }
}

/// Decrements clamped at zero vanish for good: three tries to take 5 of 7 must leave 2 and say no twice, or,
/// saturating, say exactly what was taken.
#[test]
fn nothing_is_clamped_silently() {
    let stock = within(0, i64::MAX);
    check(live(7), add(-5), stock, Now(2, NEVER));
    check(live(2), add(-5), stock, No(Refusal::BelowFloor));
    let saturating = Action::Add(Add { saturate: true, ..Add::plain(-5) });
    let taken = decide(live(2), &saturating, &stock, NOW, SEQUENCE).reply;
    assert_eq!((taken.previous, taken.applied, taken.cell.value), (2, -2, 0));
    let nothing_left = decide(live(0), &saturating, &stock, NOW, SEQUENCE).reply;
    assert_eq!((nothing_left.refusal, nothing_left.applied, nothing_left.cell.value), (None, 0, 0));
}

#[test]
fn replacements_must_lie_within_the_policy() {
    let (low, high) = (No(Refusal::BelowFloor), No(Refusal::AboveCeiling));
    for (value, limits, expected) in [
        (10, within(0, 10), Now(10, NEVER)),
        (0, within(0, 10), Now(0, NEVER)),
        (11, within(0, 10), high),
        (-1, within(0, 10), low),
        // A policy that saturates additions does not bend what was set.
        (11, Limits { saturate: true, ..within(0, 10) }, high),
        // No steps for replacements: 90 is nearer than 100, but still outside.
        (90, within(0, 50), high),
        (i64::MAX, Limits::NONE, Now(i64::MAX, NEVER)),
        (-i64::MAX + 100, Limits::NONE, Now(-i64::MAX + 100, NEVER)),
    ] {
        check(live(100), set(value), limits, expected);
    }
    for value in [i64::MIN, i64::MAX] {
        check(None, set(value), Limits::NONE, Now(value, NEVER));
    }
    let reset = Action::Reset(Condition::Always);
    check(live(7), reset, within(5, 10), low);
    check(live(-7), reset, within(-10, -5), high);
    check(None, reset, within(5, 10), Same);
    check(cell(7, NOW + 50), reset, Limits::NONE, Now(0, NOW + 50));
    check(live(7), Action::Delete(Condition::Always), within(5, 10), Deleted);
}
