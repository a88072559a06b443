//! Which states a crash may leave behind.
//!
//! Changes happen in steps, a batch each, and the log keeps their order: whatever a crash takes away, it takes
//! from the end. So the states to be found after a restart are those after some number of steps, not fewer than
//! the *floor*: what was acknowledged or shown. A power loss and the mere end of the process have floors of
//! their own, because in the modes that do not sync only the latter keeps every acknowledged step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quipu_counting::{Cell, Policy};

use super::answers::is_counter;
use super::model::{Edit, Model};
use super::rules::Ticket;
use crate::ask::{Key, Touched, Unit, Universe};
use crate::violation::{Invariant, Violation};

/// Steps kept below the floor, to say what was lost when something was.
const STEPS_KEPT: usize = 256;

/// How a life of the engine ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The power was lost.
    PowerLoss,
    /// The process ended, the machine went on.
    Kill,
}

/// Why a step must survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Nothing says so.
    None,
    /// Somebody was shown a state that contains it.
    Shown,
    /// Its own client was told.
    Acknowledged,
}

/// What one batch changed.
pub struct Step {
    pub edits: Vec<Edit>,
    /// The partitions whose state contains it.
    pub touched: Touched,
    /// Requests whose retry tells whether the step survived, with the time from which their ids count.
    pub probes: Vec<(Unit, Option<u64>)>,
    /// Births from this ticket on came with this step or later.
    pub first_ticket: Ticket,
    reason: Reason,
}

impl Step {
    /// A step that nobody knows of yet.
    pub fn new(edits: Vec<Edit>, asked: &[Unit], first_ticket: Ticket, universe: &Universe) -> Step {
        let probe = |unit: &Unit| {
            edits.iter().find_map(|edit| remembered_at(unit, edit)).map(|at| (unit.clone(), at))
        };
        let probes = asked.iter().filter_map(probe).collect();
        let touched =
            edits.iter().fold(Touched::default(), |touched, edit| touched.with(edit.partition(universe)));
        Step { edits, touched, probes, first_ticket, reason: Reason::None }
    }
}

/// Whether the edit is that the unit is remembered, and if by an id, from when on.
fn remembered_at(unit: &Unit, edit: &Edit) -> Option<Option<u64>> {
    match (edit, unit) {
        (Edit::Id { name: (of, id, 0), after, .. }, Unit::Single { key, id: Some(asked), .. }) => {
            ((of, id) == (key, asked)).then(|| after.as_ref().map(|known| known.at))
        }
        (Edit::Id { name: (of, id, 0), after, .. }, Unit::Atomic { items, id: Some(asked) }) => {
            ((*of, id) == (items[0].0, asked)).then(|| after.as_ref().map(|known| known.at))
        }
        (Edit::Session { producer: of, after, .. }, Unit::Session { producer, epoch, sequence, .. }) => {
            let is_it = after.is_some_and(|after| (after.epoch, after.sequence) == (*epoch, *sequence));
            (of == producer && is_it).then_some(None)
        }
        _ => None,
    }
}

/// What a restart found.
pub struct Found {
    /// By key.
    pub cells: Vec<Option<Cell>>,
    pub policies: BTreeMap<Vec<u8>, Policy>,
}

/// The steps so far and how many of them are certain.
#[derive(Default)]
pub struct History {
    steps: VecDeque<Step>,
    /// Steps that are no longer kept.
    dropped: usize,
    floor_of_power_loss: usize,
    floor_of_kill: usize,
}

impl History {
    /// How many steps there were.
    pub fn len(&self) -> usize {
        self.dropped + self.steps.len()
    }

    /// Whether nothing ever changed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One more step.
    pub fn push(&mut self, step: Step) {
        self.steps.push_back(step);
        let floor = self.floor_of_power_loss.min(self.floor_of_kill);
        while self.dropped + STEPS_KEPT < floor {
            self.steps.pop_front();
            self.dropped += 1;
        }
    }

    /// A step.
    pub fn step(&self, index: usize) -> &Step {
        &self.steps[index - self.dropped]
    }

    /// Somebody is shown the state of these partitions as it was after `count` steps; the last of them may be
    /// the client's own. Everything up to the last step that touched them must survive.
    pub fn show(&mut self, touched: Touched, count: usize, own: Option<usize>, endings: &[Ending]) {
        let last = (self.dropped..count).rev().find(|index| self.step(*index).touched.meets(touched));
        let Some(last) = last else { return };
        for (index, step) in (self.dropped..=last).zip(&mut self.steps) {
            if own == Some(index) {
                step.reason = Reason::Acknowledged;
            } else if step.reason == Reason::None {
                step.reason = Reason::Shown;
            }
        }
        self.raise(last + 1, endings);
    }

    /// All steps so far are certain.
    pub fn is_certain(&mut self) {
        self.raise(self.len(), &[Ending::PowerLoss, Ending::Kill]);
    }

    fn raise(&mut self, count: usize, endings: &[Ending]) {
        for ending in endings {
            let floor = match ending {
                Ending::PowerLoss => &mut self.floor_of_power_loss,
                Ending::Kill => &mut self.floor_of_kill,
            };
            *floor = count.max(*floor);
        }
    }

    /// The numbers of steps that explain what was found, in ascending order; the model is taken back to the
    /// first of them. They differ in ids and sessions, or in counters that came and went.
    pub fn explain(&self, model: &mut Model, found: &Found, ending: Ending) -> Result<Vec<usize>, Violation> {
        let floor = match ending {
            Ending::PowerLoss => self.floor_of_power_loss,
            Ending::Kill => self.floor_of_kill,
        };
        let mut difference = Difference::new(model, found);
        let mut never_right = difference.keys.clone();
        let mut explained = Vec::new();
        let mut count = self.len();
        loop {
            if difference.is_empty() {
                explained.push(count);
            }
            if count >= floor {
                never_right.retain(|key| difference.keys.contains(key));
            }
            if count == self.dropped || (count <= floor && !explained.is_empty()) {
                break;
            }
            count -= 1;
            let edits = &self.step(count).edits;
            model.undo(edits);
            difference.update(model, found, edits);
        }
        explained.reverse();
        match explained.first() {
            Some(fewest) if *fewest >= floor => {
                (count..*fewest).for_each(|index| model.redo(&self.step(index).edits));
                Ok(explained)
            }
            Some(survived) => Err(self.lost(*survived, floor, ending)),
            None => Err(inexplicable(&never_right, model, found, ending)),
        }
    }

    /// Forgets the steps after these: a crash took them.
    pub fn truncate(&mut self, count: usize) {
        assert!(count >= self.dropped, "steps that are no longer kept are certain");
        self.steps.truncate(count - self.dropped);
        self.floor_of_power_loss = self.floor_of_power_loss.min(count);
        self.floor_of_kill = self.floor_of_kill.min(count);
    }

    fn lost(&self, survived: usize, floor: usize, ending: Ending) -> Violation {
        let lost = survived..floor;
        let acknowledged = lost.clone().any(|index| self.step(index).reason == Reason::Acknowledged);
        let invariant = if acknowledged { Invariant::Survival } else { Invariant::NothingShownIsTakenBack };
        let (count, all, first) = (lost.len(), self.len(), &self.step(survived).edits);
        Violation::new(
            invariant,
            format!("{ending:?} took {count} certain steps of {all} away, the first: {first:?}"),
        )
    }
}

fn inexplicable(never_right: &BTreeSet<Key>, model: &Model, found: &Found, ending: Ending) -> Violation {
    match never_right.first() {
        Some(key) => {
            let (cell, counter) = (&found.cells[*key], model.counters.get(key));
            let what =
                format!("after {ending:?} key {key} is {cell:?}, which it never was; {counter:?} long ago");
            Violation::new(Invariant::Survival, what)
        }
        None => {
            let what =
                format!("after {ending:?} every counter is as it was at some step, but not all at the same");
            Violation::new(Invariant::Atomicity, what)
        }
    }
}

/// In what the model and what was found differ.
struct Difference {
    keys: BTreeSet<Key>,
    policies: bool,
}

impl Difference {
    fn new(model: &Model, found: &Found) -> Difference {
        let differs = |key: &Key| !is_found(model, found, *key);
        let keys = (0..found.cells.len()).filter(differs).collect();
        Difference { keys, policies: model.policies != found.policies }
    }

    fn is_empty(&self) -> bool {
        self.keys.is_empty() && !self.policies
    }

    /// After a change of the model.
    fn update(&mut self, model: &Model, found: &Found, edits: &[Edit]) {
        for edit in edits {
            match edit {
                Edit::Counter { key, .. } if is_found(model, found, *key) => drop(self.keys.remove(key)),
                Edit::Counter { key, .. } => drop(self.keys.insert(*key)),
                Edit::Policy { .. } => self.policies = model.policies != found.policies,
                Edit::Id { .. } | Edit::Session { .. } => {}
            }
        }
    }
}

fn is_found(model: &Model, found: &Found, key: Key) -> bool {
    is_counter(model.live(key).as_ref(), found.cells[key].as_ref(), &model.births)
}
