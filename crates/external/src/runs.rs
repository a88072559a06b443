//! Which requests of a call are asked as runs of additions, the short way through the function: see `run_of_additions` in `library.lua`.
//!
//! A run is of additions that have ids, or of additions that have none, to counters without limits. Each is on its own, or all are of one client.

use std::collections::HashSet;
use std::ops::Range;

use quipu_counting::{Action, Add, Limits, Policies};

use crate::units::Unit;

/// What may be added in a run: as many digits as `QUICK` says in `library.lua`.
const DELTA_MAX: u64 = 9_999_999_999_999;

/// How a unit is asked. In the order in which a call has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// With all there is to say about it.
    Full,
    /// In a run with others.
    Run { has_id: bool },
    /// In a run of its client.
    OfClient { has_id: bool },
}

/// Units that are asked in one run.
pub(crate) struct Run {
    pub(crate) units: Range<usize>,
    pub(crate) has_ids: bool,
    pub(crate) is_of_client: bool,
}

/// Brings units into the order in which they are asked, and says which of them are runs. The others come first. What one client asks stays in its
/// order; that of clients among each other does not matter.
pub(crate) fn arrange(units: &mut Vec<Unit>, policies: &Policies) -> Vec<Run> {
    let mut ways: Vec<Way> = Vec::with_capacity(units.len());
    for of_client in units.chunk_by(Unit::is_of_same_batch) {
        let mut way = way_of(&of_client[0], policies, of_client.len() > 1);
        if of_client[1..].iter().any(|unit| way_of(unit, policies, true) != way) {
            way = Way::Full;
        }
        ways.extend(std::iter::repeat_n(way, of_client.len()));
    }
    // A name stands for one id in a call: where two ask under the same, the function has to look twice.
    if ways.iter().all(|way| *way == Way::Full) || has_same_ids(units) {
        return Vec::new();
    }
    let mut placed: Vec<(Way, Unit)> = ways.into_iter().zip(units.drain(..)).collect();
    placed.sort_by_key(|(way, _)| *way);
    let mut runs: Vec<Run> = Vec::new();
    for (place, (way, unit)) in placed.into_iter().enumerate() {
        let (has_ids, is_of_client) = match way {
            Way::Full => {
                units.push(unit);
                continue;
            }
            Way::Run { has_id } => (has_id, false),
            Way::OfClient { has_id } => (has_id, true),
        };
        let goes_on = |run: &&mut Run| {
            run.has_ids == has_ids
                && run.is_of_client == is_of_client
                && (!is_of_client || units[run.units.start].is_of_same_batch(&unit))
        };
        match runs.last_mut().filter(goes_on) {
            Some(run) => run.units.end = place + 1,
            None => runs.push(Run { units: place..place + 1, has_ids, is_of_client }),
        }
        units.push(unit);
    }
    runs
}

fn way_of(unit: &Unit, policies: &Policies, is_of_client: bool) -> Way {
    let range = unit.range();
    let (batch, index) = (unit.batch(), range.start);
    if unit.claim.is_some() || range.len() != 1 || !unit.groups().is_empty() {
        return Way::Full;
    }
    let is_short = addition(&batch.requests[index].action).is_some_and(|add| add.unsigned_abs() <= DELTA_MAX);
    if !is_short || (!policies.is_empty() && policies.limits(batch.key(index)) != Limits::NONE) {
        return Way::Full;
    }
    let has_id = batch.requests[index].id.is_some();
    if is_of_client { Way::OfClient { has_id } } else { Way::Run { has_id } }
}

/// What is added, if that is all. Why it is added is kept by nobody here.
pub(crate) fn addition(action: &Action) -> Option<i64> {
    let (Action::Add(add) | Action::Told { add, .. }) = action else { return None };
    (*add == Add::plain(add.delta)).then_some(add.delta)
}

fn has_same_ids(units: &[Unit]) -> bool {
    let mut names = HashSet::with_capacity(units.len());
    for unit in units {
        let batch = unit.batch();
        for index in unit.range() {
            if let Some(id) = batch.requests[index].id
                && !names.insert((batch.key(index), id.index, batch.bytes(id.span)))
            {
                return true;
            }
        }
    }
    false
}
