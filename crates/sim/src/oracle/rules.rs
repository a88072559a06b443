//! What counting means, said a second time: simple, slow, and nothing of it shared with the product's rules.
//!
//! Numbers are `i128`, "none" is an `Option`, and a bounded addition tries candidates for the result instead of
//! computing a range. Births are not predicted but told apart: a new counter gets a [`Ticket`], and the number
//! behind it is learned from the first reply that shows it.

use quipu_counting::{Action, Add, Condition, ExpireWhen, Expiry, Policy, Refusal, Set};

/// Stands for the birth of one counter.
pub type Ticket = u32;

/// A counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    pub value: i128,
    pub changes: u64,
    pub changed_at: u64,
    pub born: Ticket,
    pub expires: Option<u64>,
}

impl Counter {
    /// Whether it exists at a time.
    pub fn is_live(&self, now: u64) -> bool {
        self.expires.is_none_or(|at| at > now)
    }
}

/// What a caller must be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    pub refusal: Option<Refusal>,
    pub duplicate: bool,
    pub existed: bool,
    pub exists: bool,
    pub previous: i128,
    pub applied: i128,
    pub value: i128,
    pub version: u64,
    pub born: Option<Ticket>,
    pub changed_at: u64,
    pub expires: Option<u64>,
}

impl Told {
    /// The state and nothing done to it.
    pub fn state(live: Option<Counter>) -> Told {
        Told {
            refusal: None,
            duplicate: false,
            existed: live.is_some(),
            exists: live.is_some(),
            previous: live.map_or(0, |counter| counter.value),
            applied: 0,
            value: live.map_or(0, |counter| counter.value),
            version: live.map_or(0, |counter| counter.changes),
            born: live.map(|counter| counter.born),
            changed_at: live.map_or(0, |counter| counter.changed_at),
            expires: live.and_then(|counter| counter.expires),
        }
    }

    /// A refusal in this state.
    pub fn refused(live: Option<Counter>, refusal: Refusal) -> Told {
        Told { refusal: Some(refusal), ..Told::state(live) }
    }
}

/// What becomes of the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Same,
    Now(Counter),
    Gone,
}

/// Decides an action on a counter that exists (or not: `None`). `ticket` is for the counter that may be born.
pub fn decide(
    live: Option<Counter>,
    action: &Action,
    policy: &Policy,
    now: u64,
    ticket: Ticket,
) -> (Told, Fate) {
    let refused = |refusal| (Told::refused(live, refusal), Fate::Same);
    let unchanged = (Told::state(live), Fate::Same);
    if matches!(action, Action::Read | Action::Count | Action::Clear) {
        return unchanged;
    }
    if policy.disabled && !matches!(action, Action::Check(_)) {
        return refused(Refusal::Disabled);
    }
    if !is_met(condition(action), live) {
        return refused(Refusal::ConditionUnmet);
    }
    let out_of_policy = |value: i64| match policy {
        Policy { min: Some(min), .. } if value < *min => Some(Refusal::BelowFloor),
        Policy { max: Some(max), .. } if value > *max => Some(Refusal::AboveCeiling),
        _ => None,
    };
    let old_expiry = live.and_then(|counter| counter.expires);
    let (value, expires) = match (action, live) {
        (Action::Add(add), _) => match sum(live.map(|counter| counter.value), add, policy) {
            Ok(value)
                if add.delta != 0
                    && live.is_some_and(|counter| counter.value == value)
                    && expiry_of_change(add.expiry, live, policy, now) == old_expiry =>
            {
                return unchanged;
            }
            Ok(value) => (value, expiry_of_change(add.expiry, live, policy, now)),
            Err(refusal) => return refused(refusal),
        },
        (Action::Set(set), _) => match out_of_policy(set.value) {
            Some(refusal) => return refused(refusal),
            None => (i128::from(set.value), expiry_of_change(set.expiry, live, policy, now)),
        },
        (Action::Reset(_), None) | (Action::Delete(_), None) => return unchanged,
        (Action::Reset(_), Some(_)) => match out_of_policy(0) {
            Some(refusal) => return refused(refusal),
            None => (0, old_expiry),
        },
        (Action::Delete(_), Some(counter)) => {
            let told =
                Told { existed: true, previous: counter.value, applied: -counter.value, ..Told::state(None) };
            return (told, Fate::Gone);
        }
        (Action::Expire(_), None) => return refused(Refusal::ConditionUnmet),
        (Action::Expire(expire), Some(counter)) => {
            let new = new_expiry(expire.expiry, old_expiry, now);
            if !may_expire(expire.when, old_expiry, new) {
                return refused(Refusal::ConditionUnmet);
            }
            if new == old_expiry {
                return unchanged;
            }
            (counter.value, new)
        }
        (Action::Read | Action::Check(_) | Action::Count | Action::Clear, _) => return unchanged,
        // This oracle knows sums; the workload asks for nothing else.
        (other, _) => unreachable!("{other:?}"),
    };
    let (born, changes) = live.map_or((ticket, 0), |counter| (counter.born, counter.changes));
    let after = Counter { value, changes: changes + 1, changed_at: now, born, expires };
    let previous = live.map_or(0, |counter| counter.value);
    let exists = after.is_live(now);
    let told = Told {
        existed: live.is_some(),
        exists,
        previous,
        applied: value - previous,
        ..Told::state(Some(after))
    };
    let fate = match (exists, live) {
        (true, _) => Fate::Now(after),
        (false, Some(_)) => Fate::Gone,
        (false, None) => Fate::Same,
    };
    (told, fate)
}

fn condition(action: &Action) -> Condition {
    match action {
        Action::Add(Add { condition, .. }) | Action::Set(Set { condition, .. }) => *condition,
        Action::Reset(condition) | Action::Delete(condition) | Action::Check(condition) => *condition,
        _ => Condition::Always,
    }
}

/// Conditions that name a birth never reach this: the model resolves them first (see [`resolve_tag`]).
fn is_met(condition: Condition, live: Option<Counter>) -> bool {
    match (condition, live) {
        (Condition::Always, _) | (Condition::Absent | Condition::Version(0), None) => true,
        (Condition::Exists, Some(_)) => true,
        (Condition::Version(version), Some(counter)) => version == counter.changes,
        _ => false,
    }
}

/// An action whose condition names a birth, as one that does not: `matches` says whether the counter has it.
pub fn resolve_tag(action: &Action, matches: impl FnOnce(u64) -> bool) -> Action {
    let Condition::Tag { birth, version } = condition(action) else { return *action };
    // A version that no counter has stands for "never".
    let condition = Condition::Version(if matches(birth) && version > 0 { version } else { u64::MAX });
    match *action {
        Action::Add(add) => Action::Add(Add { condition, ..add }),
        Action::Set(set) => Action::Set(Set { condition, ..set }),
        Action::Reset(_) => Action::Reset(condition),
        Action::Delete(_) => Action::Delete(condition),
        Action::Check(_) => Action::Check(condition),
        other => other,
    }
}

/// The permitted result nearest to the sum, where only the sum itself will do unless saturating.
fn sum(before: Option<i128>, add: &Add, policy: &Policy) -> Result<i128, Refusal> {
    let current = before.unwrap_or(0);
    let (lowest, highest) = (i128::from(i64::MIN), i128::from(i64::MAX));
    let (min, max) = (i128::from(add.min), i128::from(add.max));
    let floor = policy.min.map_or(lowest, i128::from);
    let ceiling = policy.max.map_or(highest, i128::from);
    let sum = current + i128::from(add.delta);
    let permitted = |result: i128| {
        (lowest..=highest).contains(&result)
            && (result >= min && result <= max)
            && (result >= floor || (before.is_some() && result >= current))
            && (result <= ceiling || (before.is_some() && result <= current))
    };
    let born_outside = before.is_none() && (floor > 0 || ceiling < 0);
    let saturate = (add.saturate || policy.saturate) && !born_outside;
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

fn expiry_of_change(expiry: Expiry, live: Option<Counter>, policy: &Policy, now: u64) -> Option<u64> {
    match (live, policy.ttl_ms) {
        (Some(counter), _) => new_expiry(expiry, counter.expires, now),
        (None, Some(ttl_ms)) if matches!(expiry, Expiry::Keep | Expiry::Clear) => Some(now + ttl_ms),
        (None, _) => new_expiry(expiry, None, now),
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
