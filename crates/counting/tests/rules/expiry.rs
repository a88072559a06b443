//! When a counter expires: what additions and replacements do to it, lifetimes by policy, and EXPIRE.

use quipu_counting::{Action, Add, Condition, ExpireWhen, Expiry, Limits, NEVER, Refusal, Set};

use crate::Expected::{GoneAs, No, Now, Same};
use crate::{NOW, add, cell, check, expire, expired, live, set};

#[test]
fn a_counter_lives_until_its_expiry_and_not_in_that_millisecond() {
    check(cell(5, NOW + 1), add(1), Limits::NONE, Now(6, NOW + 1));
    check(cell(5, NOW), add(1), Limits::NONE, Now(1, NEVER));
    check(cell(5, NOW - 1), add(1), Limits::NONE, Now(1, NEVER));
}

#[test]
fn expiry_of_additions_and_replacements() {
    let last = NEVER - 1;
    let soon = NOW + 50;
    // (form, expiry of a newborn, of a counter without expiry, of one that had `soon`)
    for (expiry, born, had_none, had_soon) in [
        (Expiry::Keep, NEVER, NEVER, soon),
        (Expiry::Clear, NEVER, NEVER, NEVER),
        (Expiry::In(9), NOW + 9, NOW + 9, NOW + 9),
        (Expiry::In(u64::MAX), last, last, last),
        (Expiry::At(NOW + 7), NOW + 7, NOW + 7, NOW + 7),
        (Expiry::At(u64::MAX), last, last, last),
        (Expiry::InIfNone(9), NOW + 9, NOW + 9, soon),
        (Expiry::InIfNone(u64::MAX), last, last, soon),
        (Expiry::AtIfNone(NOW + 7), NOW + 7, NOW + 7, soon),
        (Expiry::AtIfNone(u64::MAX), last, last, soon),
    ] {
        let adding = Action::Add(Add { expiry, ..Add::plain(3) });
        let setting = Action::Set(Set { value: 3, expiry, condition: Condition::Always });
        for (action, then) in [(adding, 8), (setting, 3)] {
            check(None, action, Limits::NONE, Now(3, born));
            // The expiry of a former life is not inherited.
            check(expired(5), action, Limits::NONE, Now(3, born));
            check(live(5), action, Limits::NONE, Now(then, had_none));
            check(cell(5, soon), action, Limits::NONE, Now(then, had_soon));
        }
        // Refused: the expiry stays as it was, and nothing is born.
        let refused = Action::Add(Add { expiry, max: 1, ..Add::plain(3) });
        for stored in [None, live(5), cell(5, soon), expired(5)] {
            check(stored, refused, Limits::NONE, No(Refusal::AboveCeiling));
        }
    }
}

#[test]
fn an_expiry_that_has_passed_ends_the_counter_at_once() {
    for (expiry, at_ms) in [
        (Expiry::In(0), NOW),
        (Expiry::At(NOW), NOW),
        (Expiry::At(NOW - 1), NOW - 1),
        (Expiry::At(0), 0),
        (Expiry::InIfNone(0), NOW),
        (Expiry::AtIfNone(1), 1),
    ] {
        let adding = Action::Add(Add { expiry, ..Add::plain(3) });
        check(live(5), adding, Limits::NONE, GoneAs(8, at_ms));
        check(None, adding, Limits::NONE, GoneAs(3, at_ms));
        check(expired(5), adding, Limits::NONE, GoneAs(3, at_ms));
        let setting = Action::Set(Set { value: 3, expiry, condition: Condition::Always });
        check(live(5), setting, Limits::NONE, GoneAs(3, at_ms));
        check(live(5), expire(expiry, ExpireWhen::Always), Limits::NONE, GoneAs(5, at_ms));
    }
}

/// A lifetime by policy begins at birth, is not renewed by later changes, and gives way to what the call says.
#[test]
fn lifetime_by_policy() {
    let policy = Limits { ttl_ms: 60, ..Limits::NONE };
    for (expiry, born) in [
        (Expiry::Keep, NOW + 60),
        (Expiry::Clear, NOW + 60),
        (Expiry::In(9), NOW + 9),
        (Expiry::At(NOW + 7), NOW + 7),
        (Expiry::InIfNone(9), NOW + 9),
        (Expiry::AtIfNone(NOW + 7), NOW + 7),
    ] {
        let setting = Action::Set(Set { value: 3, expiry, condition: Condition::Always });
        for action in [Action::Add(Add { expiry, ..Add::plain(3) }), setting] {
            check(None, action, policy, Now(3, born));
            check(expired(5), action, policy, Now(3, born));
        }
    }
    for (stored, expires_at_ms) in [(live(5), NEVER), (cell(5, NOW + 1), NOW + 1)] {
        check(stored, add(1), policy, Now(6, expires_at_ms));
        check(stored, set(6), policy, Now(6, expires_at_ms));
        check(stored, Action::Reset(Condition::Always), policy, Now(0, expires_at_ms));
    }
    check(None, add(1), Limits { ttl_ms: u64::MAX, ..Limits::NONE }, Now(1, NEVER - 1));
    check(None, Action::Reset(Condition::Always), policy, Same);
}

/// The answers of `PEXPIREAT` of Redis 7.0: whether it returned 1, for a counter without expiry and for one that
/// expires at +100. NX is `None`, XX `Some`, GT `Later`, LT `Earlier`; GT and LT with XX are the last two; all other
/// combinations are errors of syntax.
#[test]
fn conditions_of_expire_are_those_of_redis() {
    use ExpireWhen::{Always, Earlier, Later, None as Unset, Some as Already, SomeAndEarlier, SomeAndLater};
    // new expiry:          had none        |  had +100
    //                   past  +50   +100   past  +50   +100  +150
    for (when, on_none, on_some) in [
        (Always, [true, true, true], [true, true, true, true]),
        (Unset, [true, true, true], [false, false, false, false]),
        (Already, [false, false, false], [true, true, true, true]),
        (Later, [false, false, false], [false, false, false, true]),
        (Earlier, [true, true, true], [true, true, false, false]),
        (SomeAndLater, [false, false, false], [false, false, false, true]),
        (SomeAndEarlier, [false, false, false], [true, true, false, false]),
    ] {
        let times = [5, NOW + 50, NOW + 100, NOW + 150];
        let states = [(NEVER, on_none.as_slice()), (NOW + 100, on_some.as_slice())];
        for (had, answers) in states {
            for (at_ms, answer) in times.into_iter().zip(answers) {
                let expected = match answer {
                    false => No(Refusal::ConditionUnmet),
                    true if at_ms == had => Same,
                    true if at_ms < NOW => GoneAs(8, at_ms),
                    true => Now(8, at_ms),
                };
                check(cell(8, had), expire(Expiry::At(at_ms), when), Limits::NONE, expected);
            }
        }
        check(None, expire(Expiry::At(NOW + 50), when), Limits::NONE, No(Refusal::ConditionUnmet));
        check(expired(8), expire(Expiry::At(NOW + 50), when), Limits::NONE, No(Refusal::ConditionUnmet));
    }
    // PERSIST: 1 with an expiry, 0 without.
    check(cell(8, NOW + 1), expire(Expiry::Clear, Already), Limits::NONE, Now(8, NEVER));
    check(live(8), expire(Expiry::Clear, Already), Limits::NONE, No(Refusal::ConditionUnmet));
}
