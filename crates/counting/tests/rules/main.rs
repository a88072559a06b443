//! The rules as tables: what `decide` answers for every verb, on a counter that is absent, live or expired.
//!
//! Every case goes through `check`, which compares the whole verdict. A refusal therefore never passes by
//! looking at the value alone: the change must be `Keep` and the reply the untouched state.

mod bounds;
mod expiry;

use quipu_counting::{
    Action, Add, Cell, Change, Condition, Expire, ExpireWhen, Expiry, Kind, Limits, NEVER, Refusal, Reply,
    Set, Verdict, decide,
};

const NOW: u64 = 1_000_000;
const SEQUENCE: u64 = 77;
const BIRTH: u64 = 9;
const VERSION: u64 = 4;

/// What a case expects; everything else about the verdict follows from the state before.
#[derive(Clone, Copy, Debug)]
enum Expected {
    /// Accepted, nothing changed.
    Same,
    /// Accepted: this value, this expiry.
    Now(i64, u64),
    /// Accepted, and the counter expired in the same moment with this value and expiry.
    GoneAs(i64, u64),
    /// Accepted: deleted.
    Deleted,
    /// Refused.
    No(Refusal),
}
use Expected::{Deleted, GoneAs, No, Now, Same};

fn cell(value: i64, expires_at_ms: u64) -> Option<Cell> {
    Some(Cell { value, version: VERSION, updated_at_ms: NOW - 500, birth: BIRTH, expires_at_ms })
}

fn live(value: i64) -> Option<Cell> {
    cell(value, NEVER)
}

fn expired(value: i64) -> Option<Cell> {
    cell(value, NOW)
}

fn add(delta: i64) -> Action {
    Action::Add(Add::plain(delta))
}

fn set(value: i64) -> Action {
    Action::Set(Set { value, expiry: Expiry::Keep, condition: Condition::Always })
}

fn expire(expiry: Expiry, when: ExpireWhen) -> Action {
    Action::Expire(Expire { expiry, when })
}

fn within(floor: i64, ceiling: i64) -> Limits {
    Limits { floor, ceiling, ..Limits::NONE }
}

fn check(stored: Option<Cell>, action: Action, limits: Limits, expected: Expected) {
    let before = stored.filter(|cell| cell.expires_at_ms > NOW);
    let previous = before.map_or(0, |cell| cell.value);
    let after = |value, expires_at_ms| Cell {
        value,
        version: before.map_or(1, |cell| cell.version + 1),
        updated_at_ms: NOW,
        birth: before.map_or(SEQUENCE, |cell| cell.birth),
        expires_at_ms,
    };
    let told = |exists, cell: Cell| Reply {
        refusal: None,
        duplicate: false,
        existed: before.is_some(),
        exists,
        previous,
        applied: cell.value - previous,
        cell,
        kind: Kind::Sum,
        detail: None,
    };
    let verdict = match expected {
        Same => Verdict { change: Change::Keep, reply: Reply::state(before) },
        No(refusal) => {
            Verdict { change: Change::Keep, reply: Reply { refusal: Some(refusal), ..Reply::state(before) } }
        }
        Now(value, expires_at_ms) => {
            let after = after(value, expires_at_ms);
            Verdict { change: Change::Put(after), reply: told(true, after) }
        }
        GoneAs(value, expires_at_ms) => {
            let change = if before.is_some() { Change::Remove } else { Change::Keep };
            Verdict { change, reply: told(false, after(value, expires_at_ms)) }
        }
        Deleted => Verdict { change: Change::Remove, reply: told(false, Cell::ABSENT) },
    };
    assert_eq!(
        decide(stored, &action, &limits, NOW, SEQUENCE),
        verdict,
        "{action:?} on {stored:?} under {limits:?}: expected {expected:?}"
    );
}

#[test]
fn every_verb_on_every_state() {
    let unmet = No(Refusal::ConditionUnmet);
    let later = expire(Expiry::In(9), ExpireWhen::Always);
    for (action, on_nothing, on_five) in [
        (Action::Read, Same, Same),
        (add(3), Now(3, NEVER), Now(8, NEVER)),
        (add(-3), Now(-3, NEVER), Now(2, NEVER)),
        (add(0), Now(0, NEVER), Now(5, NEVER)),
        (set(7), Now(7, NEVER), Now(7, NEVER)),
        (set(5), Now(5, NEVER), Now(5, NEVER)),
        (Action::Reset(Condition::Always), Same, Now(0, NEVER)),
        (Action::Delete(Condition::Always), Same, Deleted),
        (later, unmet, Now(5, NOW + 9)),
        (expire(Expiry::Keep, ExpireWhen::Always), unmet, Same),
        (expire(Expiry::Clear, ExpireWhen::Always), unmet, Same),
    ] {
        check(None, action, Limits::NONE, on_nothing);
        check(live(5), action, Limits::NONE, on_five);
        check(expired(5), action, Limits::NONE, on_nothing);
        check(cell(5, 0), action, Limits::NONE, on_nothing);
    }
}

#[test]
fn conditions() {
    let tag = |birth, version| Condition::Tag { birth, version };
    for (condition, holds_on_nothing, holds_on_live) in [
        (Condition::Always, true, true),
        (Condition::Exists, false, true),
        (Condition::Absent, true, false),
        (Condition::Version(0), true, false),
        (Condition::Version(VERSION), false, true),
        (Condition::Version(VERSION - 1), false, false),
        (Condition::Version(VERSION + 1), false, false),
        (tag(BIRTH, VERSION), false, true),
        (tag(BIRTH, VERSION - 1), false, false),
        // Another life of the same name at the same version.
        (tag(BIRTH - 1, VERSION), false, false),
        (tag(0, 0), false, false),
    ] {
        let verbs = [
            (Action::Add(Add { condition, ..Add::plain(3) }), Now(3, NEVER), Now(8, NEVER)),
            (Action::Set(Set { value: 7, expiry: Expiry::Keep, condition }), Now(7, NEVER), Now(7, NEVER)),
            (Action::Reset(condition), Same, Now(0, NEVER)),
            (Action::Delete(condition), Same, Deleted),
            (Action::Check(condition), Same, Same),
        ];
        for (action, on_nothing, on_five) in verbs {
            let or_unmet = |holds, expected| if holds { expected } else { No(Refusal::ConditionUnmet) };
            check(None, action, Limits::NONE, or_unmet(holds_on_nothing, on_nothing));
            check(expired(5), action, Limits::NONE, or_unmet(holds_on_nothing, on_nothing));
            check(live(5), action, Limits::NONE, or_unmet(holds_on_live, on_five));
        }
    }
}

#[test]
fn a_disabled_counter_serves_reads_and_refuses_writes() {
    let disabled = Limits { disabled: true, ..Limits::NONE };
    let unmet = Condition::Version(99);
    for stored in [None, live(5), cell(5, NOW + 1), expired(5)] {
        check(stored, Action::Read, disabled, Same);
        check(stored, Action::Check(Condition::Always), disabled, Same);
        for action in [
            add(1),
            add(0),
            set(5),
            Action::Reset(Condition::Always),
            Action::Delete(Condition::Always),
            expire(Expiry::In(1), ExpireWhen::Always),
            expire(Expiry::Keep, ExpireWhen::Some),
            // Said before anything that a retry would find remembered.
            Action::Add(Add { condition: unmet, ..Add::plain(1) }),
            Action::Set(Set { value: 1, expiry: Expiry::Keep, condition: unmet }),
            Action::Reset(unmet),
            Action::Delete(unmet),
        ] {
            check(stored, action, disabled, No(Refusal::Disabled));
        }
    }
}
