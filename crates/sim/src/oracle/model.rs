//! The whole service as a model: counters, request ids, sessions and policies, and what each batch does to them.
//!
//! Every change is recorded as a list of [`Edit`]s that can be undone and done again, which is how the states a
//! crash may leave behind are compared with what a restart finds.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use quipu_counting::{Action, Condition, Policy, Refusal};

use super::births::Births;
use super::policies::policy_of;
use super::rules::{Counter, Fate, Told, decide, resolve_tag};
use crate::ask::{Ask, Id, Key, Producer, Touched, Unit, Universe};

/// What is remembered of a request under an id.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    pub asked: Asked,
    pub at: u64,
    pub told: Told,
}

/// What was asked under an id: the first item of a group stands for the whole group.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    Single(Action),
    Group(Vec<(Key, Action)>),
}

/// A producer's last sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    pub epoch: u64,
    pub sequence: u64,
    pub refusal: Option<Refusal>,
}

/// One change of the model, with what was there before.
#[allow(clippy::large_enum_variant)] // A few hundred of them live at a time.
#[derive(Clone, Debug)]
pub enum Edit {
    Counter { key: Key, before: Option<Counter>, after: Option<Counter> },
    Id { name: (Key, Id, u32), before: Option<Known>, after: Option<Known> },
    Session { producer: Producer, before: Option<Session>, after: Option<Session> },
    Policy { pattern: Vec<u8>, before: Option<Policy>, after: Option<Policy> },
}

impl Edit {
    /// The partition whose state changes.
    pub fn partition(&self, universe: &Universe) -> u16 {
        match self {
            Edit::Counter { key, .. } | Edit::Id { name: (key, ..), .. } => universe.partition(*key),
            Edit::Session { producer, .. } => universe.producer_partition(*producer),
            Edit::Policy { .. } => 0,
        }
    }
}

/// What a batch must answer, request by request.
#[derive(Clone, Debug, PartialEq)]
pub enum Expected {
    One(Told),
    /// A number of counters between these: expired ones count until they are removed.
    Count {
        low: u64,
        high: u64,
    },
}

/// See the head of this file.
pub struct Model {
    pub universe: Rc<Universe>,
    /// Expired ones stay until something takes their place: whether they are removed already does not show.
    pub counters: BTreeMap<Key, Counter>,
    pub ids: BTreeMap<(Key, Id, u32), Known>,
    pub sessions: BTreeMap<Producer, Session>,
    pub policies: BTreeMap<Vec<u8>, Policy>,
    pub births: Births,
    /// Counters that expired and may or may not be there still, because nothing tells whether a crash took their
    /// last change.
    phantoms: BTreeSet<Key>,
    /// Entry time of every partition.
    times: Vec<u64>,
    window_ms: u64,
}

impl Model {
    /// A service without counters.
    pub fn new(universe: Rc<Universe>, window_ms: u64) -> Model {
        let times = vec![0; usize::from(universe.partitions)];
        Model {
            universe,
            counters: BTreeMap::new(),
            ids: BTreeMap::new(),
            sessions: BTreeMap::new(),
            policies: BTreeMap::new(),
            births: Births::default(),
            phantoms: BTreeSet::new(),
            times,
            window_ms,
        }
    }

    /// Entry time of a key's partition.
    pub fn time(&self, key: Key) -> u64 {
        self.times[usize::from(self.universe.partition(key))]
    }

    /// The counter, if it exists.
    pub fn live(&self, key: Key) -> Option<Counter> {
        self.counters.get(&key).copied().filter(|counter| counter.is_live(self.time(key)))
    }

    /// Time passes for these partitions.
    pub fn advance(&mut self, touched: Touched, now: u64) {
        for (partition, time) in self.times.iter_mut().enumerate() {
            if touched.has(partition as u16) {
                *time = now.max(*time);
            }
        }
    }

    /// Time passes for all of them.
    pub fn advance_all(&mut self, now: u64) {
        self.advance((0..self.universe.partitions).fold(Touched::default(), Touched::with), now);
    }

    /// Carries a batch out. Returns what must be answered and what changed.
    pub fn ask(&mut self, ask: &Ask, now: u64) -> (Vec<Expected>, Vec<Edit>) {
        self.advance(ask.touched(&Rc::clone(&self.universe)), now);
        let (mut expected, mut edits) = (Vec::new(), Vec::new());
        for unit in &ask.units {
            match unit {
                Unit::Single { key, action, id } => {
                    expected.push(Expected::One(self.single(*key, action, *id, &mut edits)));
                }
                Unit::Atomic { items, id } => {
                    expected.extend(self.atomic(items, *id, &mut edits).into_iter().map(Expected::One));
                }
                Unit::Session { producer, epoch, sequence, items } => {
                    let asked = Session { epoch: *epoch, sequence: *sequence, refusal: None };
                    let told = self.session(*producer, asked, items, &mut edits);
                    expected.extend(items.iter().map(|_| Expected::One(told)));
                }
                Unit::Guarded { checks, items } => {
                    expected.extend(self.guarded(checks, items, &mut edits).into_iter().map(Expected::One));
                }
                Unit::Count => expected.push(self.count()),
                Unit::Clear => {
                    expected.push(self.count());
                    for key in self.counters.keys().copied().collect::<Vec<_>>() {
                        self.put_counter(key, None, &mut edits);
                    }
                }
            }
        }
        (expected, edits)
    }

    /// Stores or removes a policy.
    pub fn set_policy(&mut self, pattern: &[u8], policy: Option<Policy>) -> Edit {
        let before = self.policies.get(pattern).cloned();
        let edit = Edit::Policy { pattern: pattern.to_vec(), before, after: policy };
        self.apply(&edit, true);
        edit
    }

    /// Takes edits back.
    pub fn undo(&mut self, edits: &[Edit]) {
        edits.iter().rev().for_each(|edit| self.apply(edit, false));
    }

    /// Makes them again.
    pub fn redo(&mut self, edits: &[Edit]) {
        edits.iter().for_each(|edit| self.apply(edit, true));
    }

    /// What is known of an id and still counts.
    pub fn known(&self, name: (Key, Id, u32)) -> Option<&Known> {
        let now = self.time(name.0);
        self.ids.get(&name).filter(|known| now.saturating_sub(known.at) < self.window_ms)
    }

    fn apply(&mut self, edit: &Edit, forward: bool) {
        fn put<K: Ord + Clone, V: Clone>(map: &mut BTreeMap<K, V>, key: &K, value: &Option<V>) {
            match value {
                Some(value) => map.insert(key.clone(), value.clone()),
                None => map.remove(key),
            };
        }
        match edit {
            Edit::Counter { key, before, after } => {
                put(&mut self.counters, key, if forward { after } else { before })
            }
            Edit::Id { name, before, after } => {
                put(&mut self.ids, name, if forward { after } else { before })
            }
            Edit::Session { producer, before, after } => {
                put(&mut self.sessions, producer, if forward { after } else { before });
            }
            Edit::Policy { pattern, before, after } => {
                put(&mut self.policies, pattern, if forward { after } else { before });
            }
        }
    }

    fn record(&mut self, edit: Edit, edits: &mut Vec<Edit>) {
        self.apply(&edit, true);
        edits.push(edit);
    }

    fn put_counter(&mut self, key: Key, after: Option<Counter>, edits: &mut Vec<Edit>) {
        let before = self.counters.get(&key).copied();
        self.record(Edit::Counter { key, before, after }, edits);
    }

    fn decide(&mut self, key: Key, live: Option<Counter>, action: &Action) -> (Told, Fate) {
        let births = &self.births;
        let has_birth = |birth| live.is_some_and(|counter| births.number(counter.born) == Some(birth));
        let action = resolve_tag(action, has_birth);
        let policy = policy_of(&self.policies, &self.universe.keys[key]);
        let ticket = self.births.next();
        let (told, fate) = decide(live, &action, &policy, self.time(key), ticket);
        if told.born == Some(ticket) {
            self.births.take(matches!(fate, Fate::Now(_)).then_some(key));
        }
        (told, fate)
    }

    fn single(&mut self, key: Key, action: &Action, id: Option<Id>, edits: &mut Vec<Edit>) -> Told {
        let asked = Asked::Single(*action);
        if let Some(known) = id.and_then(|id| self.known((key, id, 0))) {
            return replay(known, &asked);
        }
        let (told, fate) = self.decide(key, self.live(key), action);
        self.carry_out(key, fate, edits);
        if let Some(id) = id
            && is_remembered(told.refusal)
        {
            self.remember((key, id, 0), asked, told, edits);
        }
        told
    }

    fn carry_out(&mut self, key: Key, fate: Fate, edits: &mut Vec<Edit>) {
        match fate {
            Fate::Same => {}
            Fate::Now(counter) => self.put_counter(key, Some(counter), edits),
            Fate::Gone => self.put_counter(key, None, edits),
        }
    }

    fn remember(&mut self, name: (Key, Id, u32), asked: Asked, told: Told, edits: &mut Vec<Edit>) {
        let known = Known { asked, at: self.time(name.0), told };
        let before = self.ids.get(&name).cloned();
        self.record(Edit::Id { name, before, after: Some(known) }, edits);
    }

    fn atomic(&mut self, items: &[(Key, Action)], id: Option<Id>, edits: &mut Vec<Edit>) -> Vec<Told> {
        let asked = |index: usize| match index {
            0 => Asked::Group(items.to_vec()),
            _ => Asked::Single(items[index].1),
        };
        let known = |index: usize| self.known((items[index].0, id?, index as u32));
        if let Some(any) = (0..items.len()).find_map(known) {
            let is_same = known(0).is_some_and(|first| first.asked == asked(0));
            let answer = |index: usize| match known(index) {
                Some(known) if is_same => replay(known, &asked(index)),
                _ => reused(any),
            };
            return (0..items.len()).map(answer).collect();
        }
        let (told, refusal) = self.all_or_none(items, edits);
        if let Some(id) = id
            && is_remembered(refusal)
        {
            for (index, told) in told.iter().enumerate() {
                self.remember((items[index].0, id, index as u32), asked(index), *told, edits);
            }
        }
        told
    }

    fn guarded(
        &mut self,
        checks: &[(Key, Condition)],
        items: &[(Key, Action)],
        edits: &mut Vec<Edit>,
    ) -> Vec<Told> {
        let check = |(key, condition): &(Key, Condition)| {
            self.single(*key, &Action::Check(*condition), None, &mut Vec::new())
        };
        let mut told: Vec<Told> = checks.iter().map(check).collect();
        let holds = told.iter().all(|check| check.refusal.is_none());
        told.extend(items.iter().map(|(key, action)| match holds {
            true => self.single(*key, action, None, edits),
            false => Told::refused(None, Refusal::GroupAborted),
        }));
        told
    }

    fn all_or_none(
        &mut self,
        items: &[(Key, Action)],
        edits: &mut Vec<Edit>,
    ) -> (Vec<Told>, Option<Refusal>) {
        let mut staged: BTreeMap<Key, Option<Counter>> = BTreeMap::new();
        let mut told = Vec::new();
        for (index, (key, action)) in items.iter().enumerate() {
            let live = staged.get(key).copied().unwrap_or_else(|| self.live(*key));
            let (one, fate) = self.decide(*key, live, action);
            if let Some(refusal) = one.refusal {
                let state = |(other, (key, _)): (usize, &(Key, Action))| {
                    let refusal = if other == index { refusal } else { Refusal::GroupAborted };
                    Told::refused(self.live(*key), refusal)
                };
                return (items.iter().enumerate().map(state).collect(), Some(refusal));
            }
            match fate {
                Fate::Same => {}
                Fate::Now(counter) => drop(staged.insert(*key, Some(counter))),
                Fate::Gone => drop(staged.insert(*key, None)),
            }
            told.push(one);
        }
        for (key, counter) in staged {
            self.put_counter(key, counter, edits);
        }
        (told, None)
    }

    fn session(
        &mut self,
        producer: Producer,
        asked: Session,
        items: &[(Key, Action)],
        edits: &mut Vec<Edit>,
    ) -> Told {
        let answer = |version, duplicate, refusal| Told { refusal, duplicate, version, ..Told::state(None) };
        let before = self.sessions.get(&producer).copied();
        if let Some(known) = before {
            if asked.epoch < known.epoch {
                return answer(known.epoch, false, Some(Refusal::Fenced));
            }
            if asked.epoch == known.epoch && asked.sequence <= known.sequence {
                let refusal = known.refusal.filter(|_| asked.sequence == known.sequence);
                return answer(known.sequence, true, refusal);
            }
        }
        let (_, refusal) = self.all_or_none(items, edits);
        if is_remembered(refusal) {
            let after = Some(Session { refusal, ..asked });
            self.record(Edit::Session { producer, before, after }, edits);
        }
        answer(asked.sequence, false, refusal)
    }

    fn count(&self) -> Expected {
        let low = self.counters.keys().filter(|key| self.live(**key).is_some()).count() as u64;
        let high = self.counters.keys().chain(&self.phantoms).collect::<BTreeSet<_>>().len() as u64;
        Expected::Count { low, high }
    }

    /// Makes edits again of which nothing tells whether they happened.
    pub fn redo_perhaps(&mut self, edits: &[Edit]) {
        self.redo(edits);
        self.phantoms.extend(edits.iter().filter_map(|edit| match edit {
            Edit::Counter { key, .. } => Some(*key),
            _ => None,
        }));
    }
}

/// A disabled policy is a state of the service and no decision: the same request may be asked again.
fn is_remembered(refusal: Option<Refusal>) -> bool {
    refusal != Some(Refusal::Disabled)
}

/// The answer to a request whose id is known.
pub fn replay(known: &Known, asked: &Asked) -> Told {
    if known.asked != *asked {
        return reused(known);
    }
    Told {
        duplicate: true,
        changed_at: 0,
        expires: None,
        applied: known.told.value - known.told.previous,
        ..known.told
    }
}

fn reused(known: &Known) -> Told {
    Told {
        refusal: Some(Refusal::IdReused),
        duplicate: false,
        existed: known.told.exists,
        previous: known.told.value,
        applied: 0,
        changed_at: 0,
        expires: None,
        ..known.told
    }
}
