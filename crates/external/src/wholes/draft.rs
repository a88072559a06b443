//! Decides about a piece on what is taken for true, by the rules of counting. Nothing is done by that: what came of it is carried
//! out in Redis if it was true (`wholes.lua`), and thrown away if it was not.

use std::collections::{BTreeMap, HashMap};

use quipu_counting::kinds::{
    Asked, Decided, RULES, Ruled, WholeItem, decide_whole, decide_whole_group, recall,
};
use quipu_counting::session::admit;
use quipu_counting::{
    Batch, Cell, Change, Group, GroupKind, Kind, Outcome, Refusal, Remembered, Reply, Session,
    SessionVerdict, Whole,
};

use super::known::{Known, id_name};
use super::producer;
use crate::call::{self, Terms, print_in, request_print};
use crate::units::{Unit, guarded_until};

/// Numbers for counters that are born: each is given to one counter of the group, whoever decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Births {
    /// The last one that was given out.
    pub(crate) last: u64,
    /// Those up to here may be.
    pub(crate) end: u64,
}

impl Births {
    /// How many are left.
    pub(crate) fn left(&self) -> u64 {
        self.end.saturating_sub(self.last)
    }
}

/// What was decided about a piece.
pub(crate) struct Drafted {
    /// The replies of each unit.
    pub(crate) replies: Vec<Vec<Reply>>,
    /// Counters that are another now.
    pub(crate) counters: BTreeMap<Vec<u8>, Whole>,
    /// What is remembered from now on, by the names of ids in Redis.
    pub(crate) ids: BTreeMap<Vec<u8>, Remembered>,
    pub(crate) producers: BTreeMap<Vec<u8>, Session>,
    /// For the stream: keys, and what became of them; producers under an empty key.
    pub(crate) events: Vec<(Vec<u8>, Vec<u8>)>,
    /// What is left for others.
    pub(crate) births: Births,
}

impl Drafted {
    /// Of which nothing was decided.
    pub(crate) fn nothing(births: Births) -> Drafted {
        Drafted {
            replies: Vec::new(),
            counters: BTreeMap::new(),
            ids: BTreeMap::new(),
            producers: BTreeMap::new(),
            events: Vec::new(),
            births,
        }
    }

    /// Whether there is anything to carry out.
    pub(crate) fn is_change(&self) -> bool {
        !(self.counters.is_empty() && self.ids.is_empty() && self.producers.is_empty())
    }
}

/// Decides about units, one behind the other.
pub(crate) fn draft(terms: &Terms<'_>, units: &[Unit], known: &Known, births: Births) -> Drafted {
    // No counter goes back in time, whoever's clock is behind.
    let newest = known.counters.values().filter_map(|whole| whole.cell).map(|cell| cell.updated_at_ms).max();
    let time_ms = terms.time_ms.max(newest.unwrap_or(0));
    let drafted = Drafted::nothing(births);
    let mut drafting = Drafting { terms, known, time_ms, drafted };
    for unit in units {
        let replies = drafting.unit(unit);
        drafting.drafted.replies.push(replies);
    }
    drafting.drafted
}

struct Drafting<'a> {
    terms: &'a Terms<'a>,
    known: &'a Known,
    time_ms: u64,
    drafted: Drafted,
}

impl Drafting<'_> {
    fn unit(&mut self, unit: &Unit) -> Vec<Reply> {
        let (batch, range) = (unit.batch(), unit.range());
        let mut replies = Vec::with_capacity(range.len());
        let mut groups = unit.groups().iter().peekable();
        while range.start + replies.len() < range.end {
            let index = range.start + replies.len();
            // What a failed guard has skipped.
            while groups.next_if(|group| group.start < index).is_some() {}
            match groups.next_if(|group| group.start == index) {
                None => replies.push(self.single(batch, index)),
                Some(group) => self.group(batch, group, &mut replies),
            }
        }
        replies
    }

    fn group(&mut self, batch: &Batch, group: &Group, replies: &mut Vec<Reply>) {
        match group.kind {
            GroupKind::Atomic => replies.extend(self.atomic(batch, group)),
            GroupKind::Session { producer, epoch, sequence } => {
                let asked = Session { epoch, sequence, refusal: None };
                let reply = self.session(batch, group, batch.bytes(producer), asked);
                replies.extend(std::iter::repeat_n(reply, group.end - group.start));
            }
            GroupKind::Guard { .. } => {
                let from = replies.len();
                replies.extend((group.start..group.end).map(|index| self.single(batch, index)));
                if replies[from..].iter().any(|reply| reply.refusal.is_some()) {
                    let aborted = Reply { refusal: Some(Refusal::GroupAborted), ..Reply::state(None) };
                    let skipped = guarded_until(batch, group) - group.end;
                    replies.extend(std::iter::repeat_n(aborted, skipped));
                }
            }
        }
    }

    /// The counter as it is by what was decided so far.
    fn whole(&self, key: &[u8]) -> Whole {
        let whole = self.drafted.counters.get(key).or_else(|| self.known.counters.get(key));
        whole.cloned().unwrap_or_default()
    }

    fn ruled(&self, key: &[u8]) -> Ruled<'_> {
        Ruled {
            limits: self.terms.policies.limits(key),
            policy: self.terms.policies.policy_for(key),
            rules: RULES,
        }
    }

    fn remembered(&self, batch: &Batch, index: usize) -> Option<Remembered> {
        let name = id_name(self.terms.group, batch, index)?;
        let known = self.drafted.ids.get(&name).copied().or_else(|| self.known.remembered(&name));
        known.filter(|known| known.is_current(self.time_ms, self.terms.id_window_ms))
    }

    fn remember(&mut self, batch: &Batch, index: usize, fingerprint: u64, reply: &Reply) {
        if let Some(name) = id_name(self.terms.group, batch, index)
            && reply.refusal.is_none_or(Refusal::is_remembered)
        {
            let remembered =
                Remembered { identity: 0, fingerprint, at_ms: self.time_ms, outcome: Outcome::of(reply) };
            self.drafted.ids.insert(name, remembered);
        }
    }

    fn single(&mut self, batch: &Batch, index: usize) -> Reply {
        let fingerprint = request_print(batch, index);
        if let Some(known) = self.remembered(batch, index) {
            return self.answer_again(batch, index, &known, fingerprint);
        }
        let key = batch.key(index);
        // One that was decided about before is nobody else's: its body is changed in place.
        let staged = self.drafted.counters.remove(key);
        let is_staged = staged.is_some();
        let mut whole = staged.unwrap_or_else(|| self.whole(key));
        let before = self.before(&whole);
        let asked = Asked { action: &batch.requests[index].action, payload: batch.payload(index) };
        let sequence = self.drafted.births.last + 1;
        let decided = decide_whole(&mut whole, asked, self.ruled(key), self.time_ms, sequence);
        if matches!(decided.change, Change::Put(cell) if cell.birth == sequence) {
            self.drafted.births.last = sequence;
        }
        self.tell(batch, index, fingerprint, before, &decided.change, whole.body.is_some());
        if is_staged || decided.change != Change::Keep {
            self.drafted.counters.insert(key.to_vec(), whole);
        }
        self.remember(batch, index, fingerprint, &decided.reply);
        decided.reply
    }

    /// What a request is told that was decided before.
    fn answer_again(&self, batch: &Batch, index: usize, known: &Remembered, fingerprint: u64) -> Reply {
        let mut reply = known.answer(fingerprint);
        let (key, action) = (batch.key(index), &batch.requests[index].action);
        let mut whole = self.whole(key);
        if !whole.cell.is_some_and(|cell| cell.is_live(self.time_ms)) {
            whole.body = None;
        }
        reply.kind = whole.body.as_ref().map_or(Kind::Sum, |body| body.kind());
        if action.is_for_whole() && reply.refusal.is_none() {
            let asked = Asked { action, payload: batch.payload(index) };
            let at = (&reply, known.at_ms);
            reply.detail = recall(&whole, asked, self.ruled(key), at, self.time_ms);
        }
        reply
    }

    /// All or none, remembered item by item; the first item's fingerprint covers the whole group.
    fn atomic(&mut self, batch: &Batch, group: &Group) -> Vec<Reply> {
        let places = group.start..group.end;
        let known: Vec<Option<Remembered>> =
            places.clone().map(|index| self.remembered(batch, index)).collect();
        if let Some(any) = known.iter().flatten().next() {
            let first_print = print_in(batch, group, group.start);
            let is_same = known[0].is_some_and(|first| first.fingerprint == first_print);
            let answer = |(known, index): (&Option<Remembered>, usize)| match known {
                Some(known) if is_same => {
                    self.answer_again(batch, index, known, print_in(batch, group, index))
                }
                _ => any.answer(!any.fingerprint),
            };
            return known.iter().zip(places).map(answer).collect();
        }
        let (replies, refusal) = self.all_or_none(batch, group);
        if refusal.is_none_or(Refusal::is_remembered) {
            for (index, reply) in places.zip(&replies) {
                self.remember(batch, index, print_in(batch, group, index), reply);
            }
        }
        replies
    }

    fn all_or_none(&mut self, batch: &Batch, group: &Group) -> (Vec<Reply>, Option<Refusal>) {
        let places = group.start..group.end;
        let mut counters: Vec<Whole> = Vec::new();
        let mut counter_of: HashMap<&[u8], usize> = HashMap::new();
        let mut items = Vec::with_capacity(places.len());
        for (index, sequence) in places.clone().zip(self.drafted.births.last + 1..) {
            let key = batch.key(index);
            let counter = *counter_of.entry(key).or_insert_with(|| {
                counters.push(self.whole(key));
                counters.len() - 1
            });
            let asked = Asked { action: &batch.requests[index].action, payload: batch.payload(index) };
            let (ruled, now_ms) = (self.ruled(key), self.time_ms);
            items.push(WholeItem { counter, asked, ruled, sequence, now_ms });
        }
        let (decided, after) = match decide_whole_group(&items, &counters) {
            Ok(decided) => decided,
            Err((refused, replies)) => {
                let refusal = replies[refused].refusal;
                return (replies, refusal);
            }
        };
        let counter_of: Vec<usize> = items.iter().map(|item| item.counter).collect();
        // Births are given out by counting items, also those that are born by none of them.
        self.drafted.births.last += items.len() as u64;
        let mut replies = Vec::with_capacity(decided.len());
        for ((index, decided), counter) in places.zip(decided).zip(counter_of) {
            let Decided { change, reply, .. } = decided;
            let (key, fingerprint) = (batch.key(index), print_in(batch, group, index));
            let before = self.before(&self.whole(key));
            // Nobody looks before all of it is done, so the body may be there at once as it is in the end.
            let body = after[counter].body.clone();
            self.tell(batch, index, fingerprint, before, &change, body.is_some());
            match change {
                Change::Keep => {}
                Change::Put(cell) => {
                    _ = self.drafted.counters.insert(key.to_vec(), Whole { cell: Some(cell), body })
                }
                Change::Remove => _ = self.drafted.counters.insert(key.to_vec(), Whole::default()),
            }
            replies.push(reply);
        }
        (replies, None)
    }

    fn session(&mut self, batch: &Batch, group: &Group, producer: &[u8], asked: Session) -> Reply {
        let known = match self.drafted.producers.get(producer) {
            Some(session) => Ok(Some(*session)),
            None => self.known.session(producer),
        };
        let (last, duplicate, refusal) =
            match known.map(|known| admit(known.as_ref(), asked.epoch, asked.sequence)) {
                Err(refusal) => (0, false, Some(refusal)),
                Ok(SessionVerdict::Fenced { epoch }) => (epoch, false, Some(Refusal::Fenced)),
                Ok(SessionVerdict::Duplicate { last, refusal }) => (last, true, refusal),
                Ok(SessionVerdict::Fresh) => {
                    let (_, refusal) = self.all_or_none(batch, group);
                    // A state of the service, such as a disabled policy, does not use the sequence up.
                    if refusal.is_none_or(Refusal::is_remembered) {
                        let session = Session { refusal, ..asked };
                        self.drafted.producers.insert(producer.to_vec(), session);
                        // No counter has an empty key.
                        self.drafted.events.push((Vec::new(), producer::to_tell(producer, &session)));
                    }
                    (asked.sequence, false, refusal)
                }
            };
        Reply { refusal, duplicate, cell: Cell { version: last, ..Cell::ABSENT }, ..Reply::state(None) }
    }

    fn before(&self, whole: &Whole) -> Before {
        let live = whole.cell.filter(|cell| cell.is_live(self.time_ms));
        Before { live, has_body: whole.body.is_some() }
    }

    /// What the stream says of a change.
    fn tell(
        &mut self,
        batch: &Batch,
        index: usize,
        fingerprint: u64,
        before: Before,
        change: &Change,
        has_body: bool,
    ) {
        let (kind, cell) = match change {
            Change::Keep => return,
            Change::Put(cell) if has_body => (EventKind::Body, *cell),
            Change::Put(cell) if before.has_body => (EventKind::BodyLost, *cell),
            Change::Put(cell) => (EventKind::Plain, *cell),
            Change::Remove => {
                let (birth, updated_at_ms) = (before.live.map_or(0, |cell| cell.birth), self.time_ms);
                (EventKind::End, Cell { birth, updated_at_ms, ..Cell::ABSENT })
            }
        };
        let previous = before.live.map_or(0, |cell| cell.value);
        let difference = i128::from(cell.value) - i128::from(previous);
        let mut told = format!("{} {difference} {}", kind.letter(), call::numbers(&cell)).into_bytes();
        if let Some(id) = batch.requests[index].id {
            told.extend_from_slice(format!(" {fingerprint} {}:", id.index).as_bytes());
            told.extend_from_slice(batch.bytes(id.span));
        }
        self.drafted.events.push((batch.key(index).to_vec(), told));
    }
}

/// What a change begins with.
#[derive(Clone, Copy)]
struct Before {
    live: Option<Cell>,
    has_body: bool,
}

/// What the stream says of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// The counter has no body.
    Plain,
    /// It has one, which may have changed.
    Body,
    /// It has none any more.
    BodyLost,
    /// The counter is gone.
    End,
}

impl EventKind {
    fn letter(self) -> char {
        match self {
            EventKind::Plain => 's',
            EventKind::Body => 'b',
            EventKind::BodyLost => 'o',
            EventKind::End => 'd',
        }
    }

    /// From its letter, or one of the function's own.
    pub(crate) fn of(letter: &str) -> EventKind {
        match letter {
            "b" => EventKind::Body,
            "o" => EventKind::BodyLost,
            "d" => EventKind::End,
            _ => EventKind::Plain,
        }
    }
}
