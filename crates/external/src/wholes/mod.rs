//! Counters that are more than a number: uniques, windows, quotas, holds, roll-ups, histories.
//!
//! Their rules are long, and there is one set of them (`quipu_counting::kinds`): they are not written down a second time in Lua. So a
//! node decides about such a counter, on what it takes the counter to be, and Redis carries out what was decided if the counter
//! is still that (`wholes.lua`): by version and birth, in one call with what is remembered under request ids, with the expiry
//! and with the entry of the stream. If it is not, the call answers what it is, and the node decides again. What a node has
//! decided about lately it remembers, so that mostly one round trip does. What changes nothing is asked all the same: an answer is
//! never older than the question.
//!
//! Requests for one counter that meet in a node are decided about together. Of nodes that compete for a counter one
//! always gets through.
//!
//! | file | what lives there |
//! |---|---|
//! | `pieces` | what has to be done together |
//! | `known` | what a decision rests on |
//! | `draft` | the decision |
//! | `call` | how it is asked for, and answered |
//! | `cache` | what was decided about lately |
//! | `producer` | sessions as they are stored |

mod cache;
mod call;
mod draft;
mod known;
mod pieces;
mod producer;

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use quipu_counting::{Policies, Reply, Whole};
use redis::{Cmd, Value};

use self::cache::Cache;
use self::call::{Answered, Asked, Outcome};
pub(crate) use self::draft::EventKind;
use self::draft::{Births, Drafted, draft};
use self::known::{Known, Needs};
pub(crate) use self::producer::told_session;
use crate::call::{Terms, function};
use crate::groups::GROUPS;
use crate::units::Unit;

/// Births are reserved so many at once, and again when half of them are left. A call takes at most one for each of its requests, which
/// are fewer than that half.
const BIRTHS_AT_ONCE: u64 = 8_192;

const _: () = assert!(crate::units::REQUESTS_PER_CALL_MAX as u64 * 4 <= BIRTHS_AT_ONCE);

/// What a node knows and has to do about such counters.
pub(crate) struct Wholes {
    queues: Mutex<Vec<Queue>>,
    cache: Mutex<Cache>,
    /// By group.
    terms: Mutex<Vec<Term>>,
}

/// A time in which the same master, without a break, had the counters of a group. What was learnt in another is worth nothing: see
/// `cache.rs`, and births may have been given to others.
#[derive(Clone, Default)]
struct Term {
    number: u64,
    /// The epoch that was named last.
    epoch: Option<Arc<str>>,
    /// Births that this node may give out.
    births: Births,
}

impl Term {
    fn end(&mut self) {
        *self = Term { number: self.number + 1, epoch: None, births: Births::default() };
    }
}

/// What waits in a group.
#[derive(Default)]
struct Queue {
    units: VecDeque<Unit>,
    /// What those that were wrong have learnt, in which term.
    learnt: (u64, Known),
}

impl Queue {
    fn learn(&mut self, term: u64, known: Known) {
        if self.learnt.0 != term {
            self.learnt = (term, Known::default());
        }
        self.learnt.1.extend(known);
    }
}

/// What is under way to a group.
pub(crate) struct WholeCall {
    pub(crate) group: u16,
    /// The number of the term in which it was decided.
    term: u64,
    pieces: Vec<Piece>,
    /// What could be given out before, and after.
    births: (Births, Births),
    births_wanted: u64,
    /// Nothing was decided yet.
    only_looks: bool,
    /// What it was decided with, should it have to be decided again.
    terms: OwnTerms,
}

struct Piece {
    units: Vec<Unit>,
    needs: Needs,
    known: Known,
    drafted: Drafted,
}

/// [`Terms`] that last.
pub(crate) struct OwnTerms {
    pub(crate) epoch: Arc<str>,
    pub(crate) time_ms: u64,
    pub(crate) id_window_ms: u64,
    pub(crate) policies: Arc<Policies>,
}

impl OwnTerms {
    fn terms(&self, group: u16) -> Terms<'_> {
        let OwnTerms { epoch, time_ms, id_window_ms, policies } = self;
        Terms { group, epoch, time_ms: *time_ms, id_window_ms: *id_window_ms, policies }
    }
}

/// What an answer comes to.
pub(crate) enum Heard {
    Pieces {
        /// These are answered.
        answered: Vec<(Unit, Vec<Reply>)>,
        /// These have to be decided again, because others were faster.
        again: Vec<Unit>,
    },
    /// Nothing was done: this epoch is there instead, or none.
    Lost(Vec<Unit>, String),
    /// It is no answer, and nobody knows what became of these.
    Unknown(Vec<Unit>),
}

impl Wholes {
    /// Remembers counters of about so many bytes.
    pub(crate) fn new(cache_bytes: usize) -> Wholes {
        let groups = usize::from(GROUPS);
        Wholes {
            queues: Mutex::new((0..groups).map(|_| Queue::default()).collect()),
            cache: Mutex::new(Cache::new(cache_bytes)),
            terms: Mutex::new(vec![Term::default(); groups]),
        }
    }

    /// Marks those of a client's units that are decided about here: where one of a group is, all are, so that they stay in order.
    pub(crate) fn mark(&self, units: &mut [Unit], policies: &Policies) {
        let cache = self.cache.lock();
        let knows_some = !cache.is_empty();
        let mut groups = [false; GROUPS as usize];
        for unit in units.iter() {
            let group = &mut groups[usize::from(unit.group)];
            *group = *group || unit.asks_for_whole(policies, |key| knows_some && cache.has_body(key));
        }
        for unit in units {
            unit.is_for_whole |= groups[usize::from(unit.group)];
        }
    }

    /// These groups have, or may have, another master, or one that has been away.
    pub(crate) fn forget(&self, groups: impl IntoIterator<Item = u16>) {
        let mut terms = self.terms.lock();
        groups.into_iter().for_each(|group| terms[usize::from(group)].end());
    }

    pub(crate) fn push(&self, unit: Unit) {
        self.queues.lock()[usize::from(unit.group)].units.push_back(unit);
    }

    /// These come before all that wait.
    pub(crate) fn push_first(&self, units: Vec<Unit>) {
        let mut queues = self.queues.lock();
        for unit in units.into_iter().rev() {
            queues[usize::from(unit.group)].units.push_front(unit);
        }
    }

    /// Everything that waits.
    pub(crate) fn drain(&self) -> Vec<Unit> {
        self.queues.lock().iter_mut().flat_map(|queue| queue.units.drain(..)).collect()
    }

    /// Decides about what waits in a group, as much as one call may hold: `end` says how much that is.
    pub(crate) fn take(
        &self,
        group: u16,
        end: impl FnOnce(&VecDeque<Unit>) -> usize,
        terms: impl FnOnce(&[Unit]) -> OwnTerms,
    ) -> Option<WholeCall> {
        let (units, learnt) = {
            let mut queues = self.queues.lock();
            let queue = &mut queues[usize::from(group)];
            if queue.units.is_empty() {
                return None;
            }
            let end = end(&queue.units);
            (queue.units.drain(..end).collect::<Vec<Unit>>(), std::mem::take(&mut queue.learnt))
        };
        let terms = terms(&units);
        let (term, begin) = {
            let term = &mut self.terms.lock()[usize::from(group)];
            if term.epoch.as_ref().is_some_and(|epoch| *epoch != terms.epoch) {
                term.end();
            }
            term.epoch = Some(Arc::clone(&terms.epoch));
            (term.number, term.births)
        };
        let births_wanted = if begin.left() < BIRTHS_AT_ONCE / 2 { BIRTHS_AT_ONCE } else { 0 };
        let requests: usize = units.iter().map(|unit| unit.range().len()).sum();
        // Without births nothing can be decided: then this only looks.
        let only_looks = begin.left() < requests as u64;
        let (mut births, mut pieces) = (begin, Vec::new());
        for (units, needs) in pieces::pieces(units) {
            let known = self.known(&needs, &learnt, term);
            let drafted = match only_looks {
                true => Drafted::nothing(births),
                false => draft(&terms.terms(group), &units, &known, births),
            };
            births = drafted.births;
            pieces.push(Piece { units, needs, known, drafted });
        }
        if let Some(mut now) = self.in_term(group, term) {
            now.births = births;
        }
        Some(WholeCall { group, term, pieces, births: (begin, births), births_wanted, only_looks, terms })
    }

    /// What is taken for true.
    fn known(&self, needs: &Needs, (term_learnt, learnt): &(u64, Known), term: u64) -> Known {
        let (mut cache, nothing) = (self.cache.lock(), Known::default());
        let learnt = if *term_learnt == term { learnt } else { &nothing };
        let mut known = Known::default();
        for key in &needs.keys {
            let whole = learnt.counters.get(key).cloned().or_else(|| cache.get(key, term));
            known.counters.extend(whole.map(|whole| (key.clone(), whole)));
        }
        let of_ids = needs.ids.iter().filter_map(|name| Some((name.clone(), learnt.ids.get(name)?.clone())));
        known.ids.extend(of_ids);
        let producers = needs.producers.iter();
        let producers = producers.filter_map(|name| Some((name.clone(), *learnt.producers.get(name)?)));
        known.producers.extend(producers);
        known
    }

    /// What Redis made of it.
    pub(crate) fn hear(&self, call: WholeCall, answer: &Value) -> Heard {
        let group = usize::from(call.group);
        let asked: Vec<(&Needs, &Known)> =
            call.pieces.iter().map(|piece| (&piece.needs, &piece.known)).collect();
        let (last_birth, outcomes) = match call::answered(answer, &asked) {
            Some(Answered::Pieces(last_birth, outcomes)) => (last_birth, outcomes),
            Some(Answered::Lost(found)) => return Heard::Lost(call.into_units(), found),
            None => return Heard::Unknown(call.into_units()),
        };
        if let Some(mut now) = self.in_term(call.group, call.term) {
            let is_done = outcomes.iter().any(|outcome| matches!(outcome, Outcome::Done));
            if !is_done && now.births == call.births.1 {
                // None of them was given out.
                now.births = call.births.0;
            }
            if let Some(last) = last_birth {
                now.births = Births { last: last.saturating_sub(call.births_wanted), end: last };
            }
        }
        let (mut answered, mut again) = (Vec::new(), Vec::new());
        for (piece, outcome) in call.pieces.into_iter().zip(outcomes) {
            let known = match outcome {
                Outcome::Done if !call.only_looks => {
                    self.keep(piece.drafted.counters, call.term);
                    answered.extend(piece.units.into_iter().zip(piece.drafted.replies));
                    continue;
                }
                Outcome::Done => piece.known,
                Outcome::Otherwise(known) => known,
            };
            // What changes nothing is answered by what was found: so it was after it was asked for.
            let births = Births { last: 0, end: u64::MAX };
            let drafted = draft(&call.terms.terms(call.group), &piece.units, &known, births);
            self.keep(known.counters.clone(), call.term);
            if drafted.is_change() {
                self.queues.lock()[group].learn(call.term, known);
                again.extend(piece.units);
            } else {
                answered.extend(piece.units.into_iter().zip(drafted.replies));
            }
        }
        Heard::Pieces { answered, again }
    }

    fn keep(&self, counters: impl IntoIterator<Item = (Vec<u8>, Whole)>, term: u64) {
        let mut cache = self.cache.lock();
        for (key, whole) in counters {
            cache.put(&key, whole, term);
        }
    }

    /// The term of a group, if it is still this one.
    fn in_term(&self, group: u16, number: u64) -> Option<MappedMutexGuard<'_, Term>> {
        let term = MutexGuard::map(self.terms.lock(), |terms| &mut terms[usize::from(group)]);
        (term.number == number).then_some(term)
    }
}

impl WholeCall {
    pub(crate) fn command(&self) -> Cmd {
        let mut pieces: Vec<Asked<'_>> = Vec::with_capacity(self.pieces.len());
        for Piece { needs, known, drafted, .. } in &self.pieces {
            pieces.push(Asked { needs, known, drafted });
        }
        let function = function("_wholes", self.units());
        call::command(&self.terms.terms(self.group), function, self.births_wanted, &pieces)
    }

    /// About how many bytes it writes.
    pub(crate) fn bytes(&self) -> usize {
        let written = self.pieces.iter().flat_map(|piece| piece.drafted.counters.values());
        written.filter_map(|whole| whole.body.as_ref()).map(|body| body.memory_bytes()).sum()
    }

    pub(crate) fn units(&self) -> impl Iterator<Item = &Unit> {
        self.pieces.iter().flat_map(|piece| &piece.units)
    }

    pub(crate) fn into_units(self) -> Vec<Unit> {
        self.pieces.into_iter().flat_map(|piece| piece.units).collect()
    }
}
