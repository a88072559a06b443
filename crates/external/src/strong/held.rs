//! Counters and ids while their rows are locked. Who decides is `quipu_counting`; here is what it decides on, and what became of it.

use std::collections::{BTreeMap, HashMap};

use quipu_counting::identity::{group_fingerprint, request_fingerprint};
use quipu_counting::rules::GroupItem;
use quipu_counting::{
    Action, Batch, Cell, Change, Group, GroupKind, Outcome, Policies, Refusal, Remembered, Reply, Told,
    decide, decide_group,
};

use crate::units::{Unit, guarded_until};

/// Names a request: the counter, the place among the items of one id, the id.
pub(super) type RequestName = (Vec<u8>, u32, Vec<u8>);

/// See the head of this file.
pub(super) struct Held {
    cells: BTreeMap<Vec<u8>, Option<Cell>>,
    ids: HashMap<RequestName, Remembered>,
    /// The next birth.
    births: u64,
    now_ms: u64,
    window_ms: u64,
    /// Counters that are not what they were.
    pub(super) changed: BTreeMap<Vec<u8>, Option<Cell>>,
    /// What has to be remembered.
    pub(super) remembered: HashMap<RequestName, Remembered>,
}

/// The name of a request under an id.
pub(super) fn name(batch: &Batch, index: usize) -> Option<RequestName> {
    let id = batch.requests[index].id?;
    Some((batch.key(index).to_vec(), id.index, batch.bytes(id.span).to_vec()))
}

/// Nobody here keeps why an addition is made: it is one like any other.
fn plain(batch: &Batch, index: usize) -> Action {
    let says_only_why = || {
        Told::read(batch.payload(index))
            .is_some_and(|told| told.at_ms.is_none() && told.dimensions.is_empty())
    };
    match batch.requests[index].action {
        Action::Told { add, .. } if says_only_why() => Action::Add(add),
        action => action,
    }
}

impl Held {
    pub(super) fn new(
        cells: BTreeMap<Vec<u8>, Option<Cell>>,
        ids: HashMap<RequestName, Remembered>,
        births: u64,
        now_ms: u64,
        window_ms: u64,
    ) -> Held {
        Held { cells, ids, births, now_ms, window_ms, changed: BTreeMap::new(), remembered: HashMap::new() }
    }

    /// Decides what belongs together.
    pub(super) fn run(&mut self, unit: &Unit, policies: &Policies) -> Vec<Reply> {
        let (batch, range) = (unit.batch(), unit.range());
        let mut replies = Vec::with_capacity(range.len());
        let mut groups = unit.groups().iter().peekable();
        while replies.len() < range.len() {
            let index = range.start + replies.len();
            match groups.next_if(|group| group.start == index) {
                None => replies.push(self.single(batch, index, policies)),
                Some(group) if matches!(group.kind, GroupKind::Guard { .. }) => {
                    let checks: Vec<Reply> =
                        (group.start..group.end).map(|check| self.single(batch, check, policies)).collect();
                    let is_refused = checks.iter().any(|reply| reply.refusal.is_some());
                    replies.extend(checks);
                    if is_refused {
                        let until = guarded_until(batch, group);
                        let aborted = Reply { refusal: Some(Refusal::GroupAborted), ..Reply::state(None) };
                        replies.resize(until - range.start, aborted);
                        while groups.next_if(|group| group.start < until).is_some() {}
                    }
                }
                Some(group) => replies.extend(self.atomic(batch, group, policies)),
            }
        }
        replies
    }

    fn known(&self, batch: &Batch, index: usize) -> Option<Remembered> {
        let known = self.ids.get(&name(batch, index)?)?;
        known.is_current(self.now_ms, self.window_ms).then_some(*known)
    }

    fn remember(&mut self, batch: &Batch, index: usize, fingerprint: u64, reply: &Reply) {
        if let Some(name) = name(batch, index)
            && reply.refusal.is_none_or(Refusal::is_remembered)
        {
            let outcome = Outcome::of(reply);
            let remembered = Remembered { identity: 0, fingerprint, at_ms: self.now_ms, outcome };
            self.ids.insert(name.clone(), remembered);
            self.remembered.insert(name, remembered);
        }
    }

    fn cell(&self, key: &[u8]) -> Option<Cell> {
        self.cells.get(key).copied().flatten()
    }

    /// The clock of another node may have been ahead.
    fn time_ms(&self, cell: Option<Cell>) -> u64 {
        cell.map_or(self.now_ms, |cell| self.now_ms.max(cell.updated_at_ms))
    }

    fn change(&mut self, key: &[u8], change: &Change) {
        let cell = match change {
            Change::Keep => return,
            Change::Put(cell) => Some(*cell),
            Change::Remove => None,
        };
        self.cells.insert(key.to_vec(), cell);
        self.changed.insert(key.to_vec(), cell);
    }

    fn single(&mut self, batch: &Batch, index: usize, policies: &Policies) -> Reply {
        let fingerprint = request_fingerprint(batch, index);
        if let Some(known) = self.known(batch, index) {
            return known.answer(fingerprint);
        }
        let (key, action) = (batch.key(index), plain(batch, index));
        let cell = self.cell(key);
        let verdict = decide(cell, &action, &policies.limits(key), self.time_ms(cell), self.births);
        self.births += 1;
        self.change(key, &verdict.change);
        self.remember(batch, index, fingerprint, &verdict.reply);
        verdict.reply
    }

    /// All or none. Where an id of it is known, the group was decided before, or is another.
    fn atomic(&mut self, batch: &Batch, group: &Group, policies: &Policies) -> Vec<Reply> {
        let places = group.start..group.end;
        let print = |index: usize| match index == group.start {
            true => group_fingerprint(batch, group),
            false => request_fingerprint(batch, index),
        };
        let known: Vec<Option<Remembered>> = places.clone().map(|index| self.known(batch, index)).collect();
        if let Some(any) = known.iter().flatten().next() {
            let is_same = known[0].is_some_and(|first| first.fingerprint == print(group.start));
            let answer = |(known, index): (&Option<Remembered>, usize)| match known {
                Some(known) if is_same => known.answer(print(index)),
                _ => any.answer(!any.fingerprint),
            };
            return known.iter().zip(places).map(answer).collect();
        }
        let (mut keys, mut items): (Vec<&[u8]>, Vec<GroupItem<'_>>) = Default::default();
        let actions: Vec<Action> = places.clone().map(|index| plain(batch, index)).collect();
        for (index, action) in places.clone().zip(&actions) {
            let key = batch.key(index);
            let cell = keys.iter().position(|known| *known == key).unwrap_or_else(|| {
                keys.push(key);
                keys.len() - 1
            });
            items.push(GroupItem {
                cell,
                action,
                limits: policies.limits(key),
                sequence: self.births + items.len() as u64,
                now_ms: self.time_ms(self.cell(key)),
            });
        }
        let mut cells: Vec<Option<Cell>> = keys.iter().map(|key| self.cell(key)).collect();
        let decided = decide_group(&items, &mut cells);
        self.births += items.len() as u64;
        let (replies, refusal) = match decided {
            Ok(verdicts) => {
                for (index, verdict) in places.clone().zip(&verdicts) {
                    self.change(batch.key(index), &verdict.change);
                }
                (verdicts.into_iter().map(|verdict| verdict.reply).collect(), None)
            }
            Err((refused, replies)) => {
                let refusal = replies[refused].refusal;
                (replies, refusal)
            }
        };
        if refusal.is_none_or(Refusal::is_remembered) {
            for (index, reply) in places.zip(&replies) {
                self.remember(batch, index, print(index), reply);
            }
        }
        replies
    }
}
