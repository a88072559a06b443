//! The rules: what an action does to a cell.
//!
//! [`decide`], and [`crate::kinds::decide_whole`] for counters that are more than a number, are the only places in Rust where a request changes a
//! value (FLUSHALL and expiry remove whole cells). Everything else finds the cell, keeps the order, makes the change durable and carries the reply.

use crate::action::{Action, Add, Condition, Expire, ExpireWhen, Expiry, Set};
use crate::batch::Reply;
use crate::body::Kind;
use crate::cell::{Cell, NEVER};
use crate::policy::Limits;
use crate::refusal::Refusal;

/// What becomes of the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing.
    Keep,
    /// It is now this.
    Put(Cell),
    /// It no longer exists.
    Remove,
}

/// The change and what the caller is told about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What becomes of the cell.
    pub change: Change,
    /// What the caller is told.
    pub reply: Reply,
}

/// Decides one action on one counter.
///
/// `stored` is the cell as it lies there, expired or not; `now_ms` the entry time; `sequence` the number this
/// change takes in its partition if it is one. Global actions have no cell and are not decided here.
#[inline]
pub fn decide(stored: Option<Cell>, action: &Action, limits: &Limits, now_ms: u64, sequence: u64) -> Verdict {
    let live = match stored {
        Some(cell) if cell.is_live(now_ms) => Some(cell),
        _ => None,
    };
    match action {
        Action::Read | Action::Count | Action::Clear => {
            Verdict { change: Change::Keep, reply: Reply::state(live) }
        }
        Action::Check(condition) if !holds(*condition, live) => refuse(live, Refusal::ConditionUnmet),
        Action::Check(_) => Verdict { change: Change::Keep, reply: Reply::state(live) },
        Action::Add(add) => decide_add(live, add, limits, now_ms, sequence),
        Action::Set(set) | Action::Overwrite(set) => decide_set(live, set, limits, now_ms, sequence),
        Action::Reset(condition) => decide_reset(live, *condition, limits, now_ms, sequence),
        Action::Delete(condition) => decide_delete(live, *condition, limits),
        Action::Expire(expire) => decide_expire(live, expire, limits, now_ms),
        // What `kinds` decides never comes here.
        _ => refuse(live, Refusal::WrongKind),
    }
}

/// Nothing changes, for this reason.
pub(crate) fn refuse(live: Option<Cell>, refusal: Refusal) -> Verdict {
    Verdict { change: Change::Keep, reply: Reply { refusal: Some(refusal), ..Reply::state(live) } }
}

fn decide_add(live: Option<Cell>, add: &Add, limits: &Limits, now_ms: u64, sequence: u64) -> Verdict {
    if limits.disabled {
        return refuse(live, Refusal::Disabled);
    }
    if !holds(add.condition, live) {
        return refuse(live, Refusal::ConditionUnmet);
    }
    match bounded_sum(live, add, limits) {
        Ok(sum) => match live {
            // At its bound there was nothing left to take, and nothing was done: that is no change.
            Some(cell)
                if sum == cell.value
                    && add.delta != 0
                    && expiry_after(add.expiry, cell.expires_at_ms, now_ms) == cell.expires_at_ms =>
            {
                Verdict { change: Change::Keep, reply: Reply::state(live) }
            }
            _ => born_or_changed(live, sum, add.expiry, limits, now_ms, sequence),
        },
        Err(refusal) => refuse(live, refusal),
    }
}

/// The sum, or why not. The bounds of the call hold for the result. The bounds of the policy hold for the
/// direction: a counter that lies outside them (because the policy came later) may come back step by step, but
/// never move further out. None is born outside.
fn bounded_sum(live: Option<Cell>, add: &Add, limits: &Limits) -> Result<i64, Refusal> {
    let value = live.map_or(0, |cell| cell.value);
    let (floor, ceiling) = match live {
        Some(cell) => (limits.floor.min(cell.value), limits.ceiling.max(cell.value)),
        None => (limits.floor, limits.ceiling),
    };
    let lower = add.min.max(floor);
    let upper = add.max.min(ceiling);
    let sum = i128::from(value) + i128::from(add.delta);
    let too_low = || if lower == i64::MIN { Refusal::Overflow } else { Refusal::BelowFloor };
    let too_high = || if upper == i64::MAX { Refusal::Overflow } else { Refusal::AboveCeiling };
    if lower > upper {
        // The call's range and the policy's range have nothing in common.
        return Err(if add.delta < 0 { Refusal::BelowFloor } else { Refusal::AboveCeiling });
    }
    // A counter that would have to be born inside bounds that exclude zero takes all of the step or none of it.
    let reachable = live.is_some() || (limits.floor..=limits.ceiling).contains(&0);
    let saturate = (add.saturate || limits.saturate) && reachable;
    let result = if sum > i128::from(upper) {
        if !saturate {
            return Err(too_high());
        }
        upper
    } else if sum < i128::from(lower) {
        if !saturate {
            return Err(too_low());
        }
        lower
    } else {
        sum as i64
    };
    // Saturating into a far range may be a step that no reply could name.
    result.checked_sub(value).map(|_| result).ok_or(Refusal::Overflow)
}

fn decide_set(live: Option<Cell>, set: &Set, limits: &Limits, now_ms: u64, sequence: u64) -> Verdict {
    if limits.disabled {
        return refuse(live, Refusal::Disabled);
    }
    if !holds(set.condition, live) {
        return refuse(live, Refusal::ConditionUnmet);
    }
    if set.value < limits.floor {
        return refuse(live, Refusal::BelowFloor);
    }
    if set.value > limits.ceiling {
        return refuse(live, Refusal::AboveCeiling);
    }
    born_or_changed(live, set.value, set.expiry, limits, now_ms, sequence)
}

fn decide_reset(
    live: Option<Cell>,
    condition: Condition,
    limits: &Limits,
    now_ms: u64,
    sequence: u64,
) -> Verdict {
    let set = Set { value: 0, expiry: Expiry::Keep, condition };
    match live {
        Some(_) => decide_set(live, &set, limits, now_ms, sequence),
        None if limits.disabled => refuse(live, Refusal::Disabled),
        None if !holds(condition, live) => refuse(live, Refusal::ConditionUnmet),
        None => Verdict { change: Change::Keep, reply: Reply::state(None) },
    }
}

fn decide_delete(live: Option<Cell>, condition: Condition, limits: &Limits) -> Verdict {
    if limits.disabled {
        return refuse(live, Refusal::Disabled);
    }
    if !holds(condition, live) {
        return refuse(live, Refusal::ConditionUnmet);
    }
    let Some(cell) = live else {
        return Verdict { change: Change::Keep, reply: Reply::state(None) };
    };
    let reply = Reply {
        existed: true,
        previous: cell.value,
        applied: 0i64.saturating_sub(cell.value),
        ..Reply::state(None)
    };
    Verdict { change: Change::Remove, reply }
}

fn decide_expire(live: Option<Cell>, expire: &Expire, limits: &Limits, now_ms: u64) -> Verdict {
    if limits.disabled {
        return refuse(live, Refusal::Disabled);
    }
    let Some(cell) = live else {
        return refuse(None, Refusal::ConditionUnmet);
    };
    let expires_at_ms = expiry_after(expire.expiry, cell.expires_at_ms, now_ms);
    let has_expiry = cell.expires_at_ms != NEVER;
    let allowed = match expire.when {
        ExpireWhen::Always => true,
        ExpireWhen::None => !has_expiry,
        ExpireWhen::Some => has_expiry,
        ExpireWhen::Later => has_expiry && expires_at_ms > cell.expires_at_ms,
        ExpireWhen::Earlier => expires_at_ms < cell.expires_at_ms,
        ExpireWhen::SomeAndLater => has_expiry && expires_at_ms > cell.expires_at_ms,
        ExpireWhen::SomeAndEarlier => has_expiry && expires_at_ms < cell.expires_at_ms,
    };
    if !allowed {
        return refuse(live, Refusal::ConditionUnmet);
    }
    if expires_at_ms == cell.expires_at_ms {
        return Verdict { change: Change::Keep, reply: Reply::state(live) };
    }
    let after =
        Cell { expires_at_ms, version: cell.version.saturating_add(1), updated_at_ms: now_ms, ..cell };
    accepted(live, after, now_ms)
}

/// A new value for a counter that lives, or is born by this.
pub(crate) fn born_or_changed(
    live: Option<Cell>,
    value: i64,
    expiry: Expiry,
    limits: &Limits,
    now_ms: u64,
    sequence: u64,
) -> Verdict {
    let after = match live {
        Some(cell) => Cell {
            value,
            version: cell.version.saturating_add(1),
            updated_at_ms: now_ms,
            birth: cell.birth,
            expires_at_ms: expiry_after(expiry, cell.expires_at_ms, now_ms),
        },
        None => {
            let inherited = match limits.ttl_ms {
                0 => NEVER,
                ttl_ms => deadline(now_ms, ttl_ms),
            };
            let expires_at_ms = match expiry {
                // A counter born under a policy with a lifetime never outlives it by accident: a plain SET, which
                // clears the expiry of a counter that has one, does not make an immortal one.
                Expiry::Keep | Expiry::Clear => inherited,
                other => expiry_after(other, NEVER, now_ms),
            };
            Cell { value, version: 1, updated_at_ms: now_ms, birth: sequence, expires_at_ms }
        }
    };
    accepted(live, after, now_ms)
}

fn accepted(live: Option<Cell>, after: Cell, now_ms: u64) -> Verdict {
    let previous = live.map_or(0, |cell| cell.value);
    let exists = after.is_live(now_ms);
    let reply = Reply {
        refusal: None,
        duplicate: false,
        existed: live.is_some(),
        exists,
        previous,
        applied: after.value.saturating_sub(previous),
        cell: after,
        kind: Kind::Sum,
        detail: None,
    };
    let change = match (exists, live) {
        (true, _) => Change::Put(after),
        (false, Some(_)) => Change::Remove,
        (false, None) => Change::Keep,
    };
    Verdict { change, reply }
}

pub(crate) fn holds(condition: Condition, live: Option<Cell>) -> bool {
    match condition {
        Condition::Always => true,
        Condition::Exists => live.is_some(),
        Condition::Absent => live.is_none(),
        Condition::Version(version) => live.map_or(0, |cell| cell.version) == version,
        Condition::Tag { birth, version } => {
            live.is_some_and(|cell| cell.birth == birth && cell.version == version)
        }
    }
}

fn expiry_after(expiry: Expiry, before_ms: u64, now_ms: u64) -> u64 {
    match expiry {
        Expiry::Keep => before_ms,
        Expiry::Clear => NEVER,
        Expiry::In(ms) => deadline(now_ms, ms),
        Expiry::At(at_ms) => at_ms.min(NEVER - 1),
        Expiry::InIfNone(_) | Expiry::AtIfNone(_) if before_ms != NEVER => before_ms,
        Expiry::InIfNone(ms) => deadline(now_ms, ms),
        Expiry::AtIfNone(at_ms) => at_ms.min(NEVER - 1),
    }
}

fn deadline(now_ms: u64, ms: u64) -> u64 {
    now_ms.saturating_add(ms).min(NEVER - 1)
}

/// One item of an all-or-none group: which of the group's cells it is about, and what it asks.
#[derive(Clone, Copy, Debug)]
pub struct GroupItem<'a> {
    /// Index into the group's cells; two items may share one.
    pub cell: usize,
    /// What is asked.
    pub action: &'a Action,
    /// What holds for the key.
    pub limits: Limits,
    /// The sequence this item's change would take.
    pub sequence: u64,
    /// Entry time of the item's partition.
    pub now_ms: u64,
}

/// Decides a group as one: either every item is accepted, each seeing what the ones before it did, or none is.
///
/// `cells` are the caller's copies: they come back changed only if the whole group is accepted, so a refused
/// group leaves no trace. On refusal: the index of the item that was refused, and the replies of all (the
/// others say [`Refusal::GroupAborted`] and the state as it is).
pub fn decide_group(
    items: &[GroupItem<'_>],
    cells: &mut [Option<Cell>],
) -> Result<Vec<Verdict>, (usize, Vec<Reply>)> {
    let mut staged = cells.to_vec();
    let mut verdicts = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let verdict = decide(staged[item.cell], item.action, &item.limits, item.now_ms, item.sequence);
        if verdict.reply.refusal.is_some() {
            let unchanged = |(other, item): (usize, &GroupItem<'_>)| {
                let live = cells[item.cell].filter(|cell| cell.is_live(item.now_ms));
                let refusal =
                    if other == index { verdict.reply.refusal } else { Some(Refusal::GroupAborted) };
                Reply { refusal, ..Reply::state(live) }
            };
            return Err((index, items.iter().enumerate().map(unchanged).collect()));
        }
        match verdict.change {
            Change::Keep => {}
            Change::Put(cell) => staged[item.cell] = Some(cell),
            Change::Remove => staged[item.cell] = None,
        }
        verdicts.push(verdict);
    }
    cells.copy_from_slice(&staged);
    Ok(verdicts)
}
