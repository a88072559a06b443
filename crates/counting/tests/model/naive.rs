//! The model: deliberately simple, and nothing of it is shared with the rules.
//!
//! Numbers are `i128`, "none" is an `Option`, expired counters are swept before every step, and a bounded addition
//! tries candidates for the result instead of computing a range.

use std::collections::BTreeMap;

use quipu_counting::{Action, Add, Cell, Condition, ExpireWhen, Expiry, Limits, NEVER, Refusal, Set};

/// A counter.
#[derive(Clone, Debug, PartialEq)]
pub struct Naive {
    pub value: i128,
    pub changes: u64,
    pub changed_at: u64,
    pub born: u64,
    pub expires: Option<u64>,
}

impl Naive {
    /// The cell in the words of the model.
    pub fn of(cell: &Cell) -> Naive {
        Naive {
            value: cell.value.into(),
            changes: cell.version,
            changed_at: cell.updated_at_ms,
            born: cell.birth,
            expires: (cell.expires_at_ms != NEVER).then_some(cell.expires_at_ms),
        }
    }
}

/// What the model tells; compared with the reply field by field.
#[derive(Debug, PartialEq)]
pub struct Told {
    pub refusal: Option<Refusal>,
    pub before: Option<i128>,
    pub after: Option<Naive>,
    pub applied: i128,
}

/// All counters that exist.
pub type World = BTreeMap<usize, Naive>;

/// Removes what has expired.
pub fn sweep(world: &mut World, now: u64) {
    world.retain(|_, counter| counter.expires.is_none_or(|at| at > now));
}

/// Takes one step in the swept world; refusals leave it alone.
pub fn ask(world: &mut World, key: usize, action: &Action, limits: &Limits, now: u64, sequence: u64) -> Told {
    let old = world.get(&key).cloned();
    let before = old.as_ref().map(|counter| counter.value);
    let refused = |refusal| Told { refusal: Some(refusal), before, after: old.clone(), applied: 0 };
    if limits.disabled && !matches!(action, Action::Read | Action::Check(_)) {
        return refused(Refusal::Disabled);
    }
    let condition = match action {
        Action::Add(Add { condition, .. }) | Action::Set(Set { condition, .. }) => *condition,
        Action::Reset(condition) | Action::Delete(condition) | Action::Check(condition) => *condition,
        _ => Condition::Always,
    };
    let met = match (condition, &old) {
        (Condition::Always, _) | (Condition::Absent | Condition::Version(0), None) => true,
        (Condition::Exists, Some(_)) => true,
        (Condition::Version(version), Some(counter)) => version == counter.changes,
        (Condition::Tag { birth, version }, Some(counter)) => {
            (birth, version) == (counter.born, counter.changes)
        }
        _ => false,
    };
    if !met {
        return refused(Refusal::ConditionUnmet);
    }
    let current = before.unwrap_or(0);
    let (value, expires) = match (action, &old) {
        (Action::Read | Action::Check(_), _) | (Action::Reset(_) | Action::Delete(_), None) => {
            return Told { refusal: None, before, after: old, applied: 0 };
        }
        (Action::Delete(_), Some(_)) => {
            world.remove(&key);
            return Told { refusal: None, before, after: None, applied: -current };
        }
        (Action::Expire(_), None) => return refused(Refusal::ConditionUnmet),
        (Action::Expire(expire), Some(counter)) => {
            let new = new_expiry(expire.expiry, counter.expires, now);
            if !may_expire(expire.when, counter.expires, new) {
                return refused(Refusal::ConditionUnmet);
            }
            if new == counter.expires {
                return Told { refusal: None, before, after: old, applied: 0 };
            }
            (current, new)
        }
        (Action::Add(add), _) => match sum(before, add, limits) {
            Ok(value)
                if add.delta != 0
                    && before == Some(value)
                    && old.as_ref().is_some_and(|counter| {
                        birth_or_new_expiry(add.expiry, &old, limits, now) == counter.expires
                    }) =>
            {
                return Told { refusal: None, before, after: old, applied: 0 };
            }
            Ok(value) => (value, birth_or_new_expiry(add.expiry, &old, limits, now)),
            Err(refusal) => return refused(refusal),
        },
        (Action::Set(Set { value, .. }), _) if *value < limits.floor => return refused(Refusal::BelowFloor),
        (Action::Set(Set { value, .. }), _) if *value > limits.ceiling => {
            return refused(Refusal::AboveCeiling);
        }
        (Action::Set(set), _) => (set.value.into(), birth_or_new_expiry(set.expiry, &old, limits, now)),
        (Action::Reset(_), Some(_)) if limits.floor > 0 => return refused(Refusal::BelowFloor),
        (Action::Reset(_), Some(_)) if limits.ceiling < 0 => return refused(Refusal::AboveCeiling),
        (Action::Reset(_), Some(counter)) => (0, counter.expires),
        (other, _) => unreachable!("not generated: {other:?}"),
    };
    let (born, changes) = old.map_or((sequence, 0), |counter| (counter.born, counter.changes));
    let after = Naive { value, changes: changes + 1, changed_at: now, born, expires };
    world.insert(key, after.clone());
    sweep(world, now);
    Told { refusal: None, before, after: Some(after), applied: value - current }
}

/// The permitted result nearest to the sum, where only the sum itself will do unless saturating.
fn sum(before: Option<i128>, add: &Add, limits: &Limits) -> Result<i128, Refusal> {
    let current = before.unwrap_or(0);
    let (min, max) = (i128::from(add.min), i128::from(add.max));
    let (floor, ceiling) = (i128::from(limits.floor), i128::from(limits.ceiling));
    let (lowest, highest) = (i128::from(i64::MIN), i128::from(i64::MAX));
    let sum = current + i128::from(add.delta);
    let permitted = |result: i128| {
        (lowest..=highest).contains(&result)
            && (result >= min && result <= max)
            && (result >= floor || (before.is_some() && result >= current))
            && (result <= ceiling || (before.is_some() && result <= current))
    };
    let born_outside = before.is_none() && (floor > 0 || ceiling < 0);
    let saturate = (add.saturate || limits.saturate) && !born_outside;
    let candidates = [sum, min, max, floor, ceiling, current, lowest, highest];
    let nearest =
        candidates.into_iter().filter(|result| permitted(*result)).min_by_key(|result| (result - sum).abs());
    match nearest {
        None if add.delta < 0 => Err(Refusal::BelowFloor),
        None => Err(Refusal::AboveCeiling),
        Some(result) if result == sum || saturate => {
            if (lowest..=highest).contains(&(result - current)) {
                Ok(result)
            } else {
                Err(Refusal::Overflow)
            }
        }
        Some(end) if (sum < lowest && end == lowest) || (sum > highest && end == highest) => {
            Err(Refusal::Overflow)
        }
        Some(end) if sum < end => Err(Refusal::BelowFloor),
        Some(_) => Err(Refusal::AboveCeiling),
    }
}

fn birth_or_new_expiry(expiry: Expiry, old: &Option<Naive>, limits: &Limits, now: u64) -> Option<u64> {
    match old {
        Some(counter) => new_expiry(expiry, counter.expires, now),
        None if matches!(expiry, Expiry::Keep | Expiry::Clear) && limits.ttl_ms > 0 => {
            Some(now + limits.ttl_ms)
        }
        None => new_expiry(expiry, None, now),
    }
}

fn new_expiry(expiry: Expiry, old: Option<u64>, now: u64) -> Option<u64> {
    match expiry {
        Expiry::Keep => old,
        Expiry::Clear => None,
        Expiry::In(ms) => Some(now + ms),
        Expiry::At(at) => Some(at),
        Expiry::InIfNone(ms) => old.or(Some(now + ms)),
        Expiry::AtIfNone(at) => old.or(Some(at)),
    }
}

fn may_expire(when: ExpireWhen, old: Option<u64>, new: Option<u64>) -> bool {
    let later = match (old, new) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(old), Some(new)) => new > old,
    };
    let earlier = match (old, new) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(old), Some(new)) => new < old,
    };
    match when {
        ExpireWhen::Always => true,
        ExpireWhen::None => old.is_none(),
        ExpireWhen::Some => old.is_some(),
        ExpireWhen::Later | ExpireWhen::SomeAndLater => later,
        ExpireWhen::Earlier => earlier,
        ExpireWhen::SomeAndEarlier => old.is_some() && earlier,
    }
}
