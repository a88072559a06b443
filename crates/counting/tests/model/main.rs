//! The rules against a naive model: random actions on a few counters while time moves on and limits change, and
//! what must hold in every such story whatever the model says.

mod naive;
mod steps;

use std::collections::BTreeMap;

use naive::{Naive, World, ask, sweep};
use proptest::prelude::*;
use quipu_counting::{Action, Add, Cell, Change, Condition, Limits, Reply, Set, decide};
use steps::{Guard, KEYS, START_MS, Step, steps};

/// One decision with all that it was made of.
struct Decision {
    key: usize,
    action: Action,
    limits: Limits,
    now_ms: u64,
    sequence: u64,
    stored: Option<Cell>,
    change: Change,
    reply: Reply,
}

fn drive(steps: &[Step], mut observe: impl FnMut(&Decision)) {
    let mut cells = [None; KEYS];
    let mut limits = [Limits::NONE; KEYS];
    let mut last_told = [Condition::Absent; KEYS];
    let (mut now_ms, mut sequence) = (START_MS, 1);
    for step in steps {
        let (key, action) = match step {
            Step::Wait(ms) => {
                now_ms += ms;
                continue;
            }
            Step::Limits(key, changed) => {
                limits[*key] = *changed;
                continue;
            }
            Step::Ask(key, Guard::Plain(condition), action) => (*key, guarded(*action, *condition)),
            Step::Ask(key, Guard::LastTold, action) => (*key, guarded(*action, last_told[*key])),
        };
        let stored: Option<Cell> = cells[key];
        let verdict = decide(stored, &action, &limits[key], now_ms, sequence);
        let (change, reply) = (verdict.change, verdict.reply);
        observe(&Decision {
            key,
            action,
            limits: limits[key],
            now_ms,
            sequence,
            stored,
            change,
            reply: reply.clone(),
        });
        match change {
            Change::Keep => {}
            Change::Put(cell) => cells[key] = Some(cell),
            Change::Remove => cells[key] = None,
        }
        if reply.exists {
            last_told[key] = Condition::Tag { birth: reply.cell.birth, version: reply.cell.version };
        }
        sequence += u64::from(change != Change::Keep);
    }
}

fn guarded(action: Action, condition: Condition) -> Action {
    match action {
        Action::Add(add) => Action::Add(Add { condition, ..add }),
        Action::Set(set) => Action::Set(Set { condition, ..set }),
        Action::Reset(_) => Action::Reset(condition),
        Action::Delete(_) => Action::Delete(condition),
        Action::Check(_) => Action::Check(condition),
        other => other,
    }
}

fn configuration() -> ProptestConfig {
    ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(configuration())]

    #[test]
    fn rules_agree_with_the_model(steps in steps(true)) {
        let mut world = World::new();
        drive(&steps, |decision| {
            let Decision { key, action, limits, now_ms, sequence, reply, .. } = decision;
            sweep(&mut world, *now_ms);
            let told = ask(&mut world, *key, action, limits, *now_ms, *sequence);
            let story = format!("{action:?} under {limits:?} at {now_ms}: {reply:?}");
            assert_eq!(told.refusal, reply.refusal, "{story}");
            assert_eq!(told.before.is_some(), reply.existed, "{story}");
            assert_eq!(told.before.unwrap_or(0), i128::from(reply.previous), "{story}");
            let nameable = told.applied.clamp(i64::MIN.into(), i64::MAX.into());
            assert_eq!(nameable, i128::from(reply.applied), "{story}");
            assert_eq!(told.after.unwrap_or(Naive::of(&Cell::ABSENT)), Naive::of(&reply.cell), "{story}");
            assert_eq!(world.contains_key(key), reply.exists, "{story}");
            // What lies there afterwards is what the model holds, once the expired are looked away from.
            let after = match decision.change {
                Change::Keep => decision.stored,
                Change::Put(cell) => Some(cell),
                Change::Remove => None,
            };
            let after = after.filter(|cell| cell.is_live(*now_ms));
            assert_eq!(after.as_ref().map(Naive::of).as_ref(), world.get(key), "{story}");
        });
    }

    /// What was applied, less what was lost with a life that ended by expiry, is the value. The same sum over a
    /// whole partition is its ledger.
    #[test]
    fn what_was_applied_adds_up_to_the_value(steps in steps(false)) {
        let mut ledger = [0i128; KEYS];
        let mut counted_out: [Option<u64>; KEYS] = [None; KEYS];
        drive(&steps, |Decision { key, stored, now_ms, reply, .. }| {
            let total = &mut ledger[*key];
            if let Some(cell) = stored.filter(|cell| !cell.is_live(*now_ms))
                && counted_out[*key] != Some(cell.birth)
            {
                *total -= i128::from(cell.value);
                counted_out[*key] = Some(cell.birth);
            }
            *total += i128::from(reply.applied);
            assert_eq!(*total, i128::from(reply.cell.value));
            assert_eq!(reply.previous + reply.applied, reply.cell.value);
            if !reply.exists {
                *total -= i128::from(reply.cell.value);
            }
        });
    }

    #[test]
    fn the_version_counts_the_changes_of_one_life(steps in steps(true)) {
        let mut changes: BTreeMap<u64, u64> = BTreeMap::new();
        drive(&steps, |Decision { change, reply, now_ms, stored, .. }| {
            match change {
                Change::Put(cell) => {
                    let count = changes.entry(cell.birth).or_default();
                    *count += 1;
                    assert_eq!((cell.version, cell.updated_at_ms), (*count, *now_ms));
                    assert_eq!((*cell, true), (reply.cell, reply.exists));
                }
                Change::Remove => assert!(stored.is_some() && !reply.exists && reply.refusal.is_none()),
                Change::Keep => {}
            }
        });
    }

    #[test]
    fn no_change_crosses_a_bound(steps in steps(true)) {
        drive(&steps, |Decision { action, limits, change, reply, .. }| {
            if reply.refusal.is_some() {
                assert_eq!((*change, reply.applied, reply.previous), (Change::Keep, 0, reply.cell.value));
                assert_eq!(reply.existed, reply.exists);
                return;
            }
            let (before, after) = (reply.previous, reply.cell.value);
            match action {
                Action::Add(add) => {
                    assert!((add.min..=add.max).contains(&after), "the bounds of the call hold for the result");
                    assert!(after >= limits.floor || after >= before, "moved down below the floor");
                    assert!(after <= limits.ceiling || after <= before, "moved up above the ceiling");
                    let asked = i128::from(add.delta);
                    let saturate = add.saturate || limits.saturate;
                    assert!(saturate || i128::from(reply.applied) == asked, "a part was applied unasked");
                }
                Action::Set(_) => assert!((limits.floor..=limits.ceiling).contains(&after)),
                Action::Reset(_) if reply.existed => assert!((limits.floor..=limits.ceiling).contains(&after)),
                Action::Read | Action::Check(_) | Action::Expire(_) => assert_eq!(before, after),
                _ => {}
            }
            assert!(!limits.disabled || *change == Change::Keep);
        });
    }
}
