//! Many requests that travel together.
//!
//! A front decodes what its sockets have into one batch and hands it over once. Keys and ids lie in one byte
//! buffer that is reused from batch to batch, so a request costs no allocation.

use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use crate::action::{Action, Add};
use crate::audit::{ACTOR_BYTES_MAX, ADDRESS_BYTES_MAX, Origin};
use crate::body::Kind;
use crate::cell::Cell;
use crate::identity::Outcome;
use crate::kinds::Detail;
use crate::refusal::Refusal;
use crate::told::Told;

/// A place in the batch's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    start: u32,
    length: u32,
}

impl Span {
    /// Whether nothing is there.
    pub fn is_empty(self) -> bool {
        self.length == 0
    }
}

/// A request id as the caller gave it, and which of the requests for one counter under that id this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId {
    /// Where the bytes lie.
    pub span: Span,
    /// How many came before it, 0 for a request of its own.
    pub index: u32,
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Which counter; empty for global actions.
    pub key: Span,
    /// What is asked.
    pub action: Action,
    /// The caller's name for this request, if retries must be recognized.
    pub id: Option<RequestId>,
}

/// Requests `start..end` of the batch belong together.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// First request.
    pub start: usize,
    /// One past the last request.
    pub end: usize,
    /// How they belong together.
    pub kind: GroupKind,
}

/// How the requests of a group belong together.
#[derive(Clone, Copy, Debug)]
pub enum GroupKind {
    /// All or none.
    Atomic,
    /// All or none, once per (producer, epoch, sequence).
    Session {
        /// Where the producer's name lies.
        producer: Span,
        /// The producer's incarnation; a higher one fences the lower.
        epoch: u64,
        /// The producer's own numbering, from 1.
        sequence: u64,
    },
    /// Each of them is a [`Action::Check`]. If one is refused, nothing that follows up to `until` runs: those requests
    /// are told [`Refusal::GroupAborted`]. If none is, they run as they would without these checks, in groups of
    /// their own where they have some.
    Guard {
        /// One past the last request that is guarded.
        until: usize,
    },
}

/// What one caller is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Why it was refused, if it was.
    pub refusal: Option<Refusal>,
    /// This is the first outcome again, not a new change.
    pub duplicate: bool,
    /// Whether the counter existed before.
    pub existed: bool,
    /// Whether it exists now.
    pub exists: bool,
    /// The value before.
    pub previous: i64,
    /// By how much the value changed, as far as 64 bits can say it. An addition always fits; a set from one end of the range
    /// to the other does not, see [`Reply::difference`].
    pub applied: i64,
    /// The counter after; [`Cell::ABSENT`] where there is none. A counter that a past expiry ended at once is
    /// shown as it died, with `exists` false. For `Count` the number is the value; for a
    /// session group the last sequence is the version.
    pub cell: Cell,
    /// What the counter counts.
    pub kind: Kind,
    /// What else there is to say, of counters that are more than their numbers.
    pub detail: Option<Arc<Detail>>,
}

impl Reply {
    /// The state and nothing done to it.
    pub fn state(live: Option<Cell>) -> Reply {
        let cell = live.unwrap_or(Cell::ABSENT);
        Reply {
            refusal: None,
            duplicate: false,
            existed: live.is_some(),
            exists: live.is_some(),
            previous: cell.value,
            applied: 0,
            cell,
            kind: Kind::Sum,
            detail: None,
        }
    }

    /// As of when the counter is shown: now, but not before its last change. The clock of who changed it may be ahead of the one that is
    /// asked, and what was acknowledged is seen.
    pub fn as_of_ms(&self, now_ms: u64) -> u64 {
        now_ms.max(self.cell.updated_at_ms)
    }

    /// By how much the value changed, exactly.
    pub fn difference(&self) -> i128 {
        i128::from(self.cell.value) - i128::from(self.previous)
    }

    /// The first outcome of a request, told again.
    pub fn replay(outcome: &Outcome) -> Reply {
        Reply {
            refusal: outcome.refusal,
            duplicate: true,
            existed: outcome.existed,
            exists: outcome.exists,
            previous: outcome.previous,
            applied: outcome.value.saturating_sub(outcome.previous),
            cell: Cell {
                value: outcome.value,
                version: outcome.version,
                birth: outcome.birth,
                ..Cell::ABSENT
            },
            kind: Kind::Sum,
            detail: None,
        }
    }
}

/// A place between two requests of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchMark {
    bytes: usize,
    requests: usize,
    groups: usize,
    origins: usize,
}

impl BatchMark {
    /// How many requests lie before it.
    pub fn requests(&self) -> usize {
        self.requests
    }
}

/// What a key mostly has at most.
const USUAL_KEY_BYTES: usize = 32;

/// What an origin has at most.
const ORIGIN_BYTES: usize = ACTOR_BYTES_MAX + ADDRESS_BYTES_MAX;

/// How fresh what a batch looks at must be. What writes always meets the newest state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Freshness {
    /// Everything that was acknowledged before is seen.
    #[default]
    Strong,
    /// The same; but where that cannot be had at the moment, something older that says how far behind it may be.
    StrongOrStated,
    /// Whoever holds a counter may be asked, if it can say how far behind it may be.
    Eventual {
        /// The most it may be behind.
        max_staleness_ms: Option<u64>,
    },
}

/// Requests with their bytes, their groups and, once executed, their replies in the same order.
#[derive(Debug, Default)]
pub struct Batch {
    bytes: Vec<u8>,
    /// The requests, in command order.
    pub requests: Vec<Request>,
    /// Groups in ascending order, not overlapping. Requests outside any group stand alone.
    pub groups: Vec<Group>,
    /// Who asks, each from the request of that number on; said only where somebody wants to know.
    origins: Vec<(usize, Option<Arc<Origin>>)>,
    /// Numbers that say to which stripe of its counter a request goes, where that was said, in ascending order of requests.
    stripe_by: Vec<(usize, u64)>,
    /// One reply per request once the batch has run.
    pub replies: Vec<Reply>,
    /// How fresh what is looked at must be.
    pub freshness: Freshness,
    /// Reads are answered with all that counters have, also by another node: else that leaves the cells of roll-ups out.
    pub wants_whole: bool,
    /// How far behind each reply may be, once the batch has run; empty where none is.
    pub staleness_ms: Vec<u64>,
}

impl Batch {
    /// An empty one with memory for so many requests.
    pub fn with_room(requests: usize) -> Batch {
        Batch {
            bytes: Vec::with_capacity(requests * USUAL_KEY_BYTES),
            requests: Vec::with_capacity(requests),
            groups: Vec::new(),
            replies: Vec::with_capacity(requests),
            ..Batch::default()
        }
    }

    /// Empties it and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.requests.clear();
        self.groups.clear();
        self.origins.clear();
        self.stripe_by.clear();
        self.replies.clear();
        self.freshness = Freshness::Strong;
        self.wants_whole = false;
        self.staleness_ms.clear();
    }

    /// How far behind the reply to a request may be.
    pub fn staleness_ms(&self, index: usize) -> u64 {
        self.staleness_ms.get(index).copied().unwrap_or(0)
    }

    /// The replies to these requests may be so far behind.
    pub fn note_staleness(&mut self, places: &[usize], staleness_ms: u64) {
        if staleness_ms == 0 {
            return;
        }
        self.staleness_ms.resize(self.requests.len(), 0);
        for place in places {
            // What is about all counters is put together from several.
            self.staleness_ms[*place] = self.staleness_ms[*place].max(staleness_ms);
        }
    }

    /// How many bytes of keys, ids and origins it holds, for limits.
    pub fn bytes_len(&self) -> usize {
        self.bytes.len() + self.origins.len() * ORIGIN_BYTES
    }

    /// Keeps bytes that a request will point to.
    pub fn intern(&mut self, bytes: &[u8]) -> Span {
        debug_assert!(self.bytes.len() + bytes.len() < u32::MAX as usize);
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        Span { start, length: bytes.len() as u32 }
    }

    /// The bytes of a span of this batch.
    #[inline]
    pub fn bytes(&self, span: Span) -> &[u8] {
        &self.bytes[span.start as usize..][..span.length as usize]
    }

    /// An addition, with what is told of it if anything is.
    pub fn addition(&mut self, add: Add, told: &Told<'_>) -> Action {
        if *told == Told::default() {
            return Action::Add(add);
        }
        let mut bytes = Vec::new();
        told.put(&mut bytes);
        Action::Told { add, told: self.intern(&bytes) }
    }

    /// Adds a request without id. Returns its index.
    #[inline]
    pub fn push(&mut self, key: &[u8], action: Action) -> usize {
        let key = self.intern(key);
        self.requests.push(Request { key, action, id: None });
        self.requests.len() - 1
    }

    /// Adds a request under an id; `index` tells items under one id apart.
    pub fn push_with_id(&mut self, key: &[u8], action: Action, id: &[u8], index: u32) -> usize {
        let key = self.intern(key);
        let span = self.intern(id);
        self.requests.push(Request { key, action, id: Some(RequestId { span, index }) });
        self.requests.len() - 1
    }

    /// Adds a request of another batch, with its bytes and who asks. Returns its index.
    pub fn push_from(&mut self, other: &Batch, index: usize) -> usize {
        self.wants_whole |= other.wants_whole;
        if !(self.origins.is_empty() && other.origins.is_empty()) {
            self.ask_from(other.origin(index));
        }
        self.stripe_by.extend(other.stripe_by(index).map(|number| (self.requests.len(), number)));
        let request = &other.requests[index];
        let action = match request.action.payload() {
            Some(payload) => request.action.with_payload(self.intern(other.bytes(payload))),
            None => request.action,
        };
        let key = other.bytes(request.key);
        match request.id {
            Some(id) => self.push_with_id(key, action, other.bytes(id.span), id.index),
            None => self.push(key, action),
        }
    }

    /// The bytes that belong to a request's action.
    pub fn payload(&self, index: usize) -> &[u8] {
        self.requests[index].action.payload().map_or(&[], |payload| self.bytes(payload))
    }

    /// The next request goes to the stripe of its counter that this value says, if the counter lies in stripes and nothing else says it.
    pub fn stripe_next_by(&mut self, value: &[u8]) {
        let mut hasher = SipHasher13::new();
        hasher.write(value);
        self.stripe_by.push((self.requests.len(), hasher.finish()));
    }

    /// The number that says to which stripe a request goes, if there is one.
    pub fn stripe_by(&self, index: usize) -> Option<u64> {
        let place = self.stripe_by.binary_search_by_key(&index, |(request, _)| *request).ok()?;
        Some(self.stripe_by[place].1)
    }

    /// Binds the requests from `start` to the last one together.
    pub fn group(&mut self, start: usize, kind: GroupKind) {
        let end = self.requests.len();
        self.groups.push(Group { start, end, kind });
    }

    /// What is added from here on is asked by this one.
    pub fn ask_from(&mut self, origin: Option<&Arc<Origin>>) {
        let known = self.origins.last().and_then(|(_, origin)| origin.as_ref());
        if known.map(Arc::as_ptr) != origin.map(Arc::as_ptr) {
            self.origins.pop_if(|(start, _)| *start == self.requests.len());
            self.origins.push((self.requests.len(), origin.cloned()));
        }
    }

    /// Everything in it is asked by this one.
    pub fn ask_all_from(&mut self, origin: &Arc<Origin>) {
        self.origins = vec![(0, Some(Arc::clone(origin)))];
    }

    /// Who asks for a request, if it was said.
    pub fn origin(&self, index: usize) -> Option<&Arc<Origin>> {
        let behind = self.origins.partition_point(|(start, _)| *start <= index);
        self.origins[..behind].last().and_then(|(_, origin)| origin.as_ref())
    }

    /// Who asks, each from which request on.
    pub fn origins(&self) -> &[(usize, Option<Arc<Origin>>)] {
        &self.origins
    }

    /// Says all at once who asks, in ascending order of requests.
    pub fn set_origins(&mut self, origins: Vec<(usize, Option<Arc<Origin>>)>) {
        self.origins = origins;
    }

    /// Where the next request begins.
    #[inline]
    pub fn mark(&self) -> BatchMark {
        BatchMark {
            bytes: self.bytes.len(),
            requests: self.requests.len(),
            groups: self.groups.len(),
            // One who has asked nothing yet does not count.
            origins: self.origins.partition_point(|(start, _)| *start < self.requests.len()),
        }
    }

    /// Takes back everything that was added since `mark`. No group may reach across it.
    pub fn truncate(&mut self, mark: BatchMark) {
        self.bytes.truncate(mark.bytes);
        self.requests.truncate(mark.requests);
        self.groups.truncate(mark.groups);
        self.origins.truncate(mark.origins);
        let kept = self.stripe_by.partition_point(|(request, _)| *request < mark.requests);
        self.stripe_by.truncate(kept);
    }

    /// Adds all requests of another batch behind those of this one, in their groups.
    pub fn append(&mut self, other: &Batch) {
        self.wants_whole |= other.wants_whole;
        let (bytes, requests) = (self.bytes.len() as u32, self.requests.len());
        let moved = |span: Span| Span { start: span.start + bytes, ..span };
        if other.origins.first().is_none_or(|(start, _)| *start != 0) {
            self.ask_from(None);
        }
        self.origins.extend(other.origins.iter().map(|(start, origin)| (start + requests, origin.clone())));
        self.stripe_by.extend(other.stripe_by.iter().map(|(request, number)| (request + requests, *number)));
        self.bytes.extend_from_slice(&other.bytes);
        self.requests.extend(other.requests.iter().map(|request| Request {
            key: moved(request.key),
            id: request.id.map(|id| RequestId { span: moved(id.span), ..id }),
            action: request.action.moved(moved),
        }));
        self.groups.extend(other.groups.iter().map(|group| Group {
            start: group.start + requests,
            end: group.end + requests,
            kind: match group.kind {
                GroupKind::Session { producer, epoch, sequence } => {
                    GroupKind::Session { producer: moved(producer), epoch, sequence }
                }
                GroupKind::Guard { until } => GroupKind::Guard { until: until + requests },
                GroupKind::Atomic => GroupKind::Atomic,
            },
        }));
    }

    /// Whether nothing of these requests leaves anything behind, not even that they were asked.
    pub fn only_looks(&self, range: Range<usize>) -> bool {
        let looks = |request: &Request| !request.action.is_write() && request.id.is_none();
        self.requests[range.clone()].iter().all(looks) && self.sessions(range).next().is_none()
    }

    /// Whether they may be asked again when nobody knows what became of them.
    pub fn can_repeat(&self, range: Range<usize>) -> bool {
        let in_session = |index: usize| self.sessions(index..index + 1).next().is_some();
        range.into_iter().all(|index| {
            let request = &self.requests[index];
            !request.action.is_write() || request.id.is_some() || in_session(index)
        })
    }

    /// The groups of producers' sessions that have some of these requests.
    fn sessions(&self, range: Range<usize>) -> impl Iterator<Item = &Group> {
        let has_some = move |group: &&Group| group.start < range.end && range.start < group.end;
        self.groups.iter().filter(|group| matches!(group.kind, GroupKind::Session { .. })).filter(has_some)
    }

    /// A batch of its own with what was added between two marks. No group may reach across them.
    pub fn part(&self, from: BatchMark, to: BatchMark) -> Batch {
        let moved = |span: Span| Span { start: span.start - from.bytes as u32, ..span };
        let requests = self.requests[from.requests..to.requests].iter().map(|request| Request {
            key: moved(request.key),
            id: request.id.map(|id| RequestId { span: moved(id.span), ..id }),
            action: request.action.moved(moved),
        });
        let groups = self.groups[from.groups..to.groups].iter().map(|group| Group {
            start: group.start - from.requests,
            end: group.end - from.requests,
            kind: match group.kind {
                GroupKind::Session { producer, epoch, sequence } => {
                    GroupKind::Session { producer: moved(producer), epoch, sequence }
                }
                GroupKind::Guard { until } => GroupKind::Guard { until: until - from.requests },
                GroupKind::Atomic => GroupKind::Atomic,
            },
        });
        let inner = (self.origins.iter())
            .filter(|(start, _)| (from.requests + 1..to.requests).contains(start))
            .map(|(start, origin)| (start - from.requests, origin.clone()));
        let first = self.origin(from.requests).map(|origin| (0, Some(Arc::clone(origin))));
        let stripe_by = (self.stripe_by.iter())
            .filter(|(request, _)| (from.requests..to.requests).contains(request))
            .map(|(request, number)| (request - from.requests, *number));
        Batch {
            requests: requests.collect(),
            groups: groups.collect(),
            origins: first.into_iter().chain(inner).collect(),
            bytes: self.bytes[from.bytes..to.bytes].to_vec(),
            stripe_by: stripe_by.collect(),
            freshness: self.freshness,
            wants_whole: self.wants_whole,
            ..Batch::default()
        }
    }

    /// The key of a request.
    #[inline]
    pub fn key(&self, index: usize) -> &[u8] {
        self.bytes(self.requests[index].key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_asked_again() {
        let mut batch = Batch::default();
        batch.push(b"a", Action::Read);
        batch.push_with_id(b"a", Action::Read, b"id", 0);
        batch.push(b"a", Action::Add(Add::plain(1)));
        batch.push_with_id(b"a", Action::Add(Add::plain(1)), b"id", 1);
        let start = batch.requests.len();
        batch.push(b"a", Action::Read);
        batch.push(b"a", Action::Add(Add::plain(1)));
        let producer = batch.intern(b"p");
        batch.group(start, GroupKind::Session { producer, epoch: 1, sequence: 1 });
        let looks = |index: usize| batch.only_looks(index..index + 1);
        assert_eq!(
            [0, 1, 2, 3, 4, 5].map(looks),
            [true, false, false, false, false, false],
            "a session moves on"
        );
        let repeats = |index: usize| batch.can_repeat(index..index + 1);
        assert_eq!([0, 1, 2, 3, 4, 5].map(repeats), [true, true, false, true, true, true]);
        assert!(!batch.can_repeat(0..6) && batch.can_repeat(3..6) && batch.only_looks(0..1));
    }

    #[test]
    fn what_says_the_stripe_goes_with_the_requests() {
        let said = |batch: &Batch| -> Vec<Option<u64>> {
            (0..batch.requests.len()).map(|index| batch.stripe_by(index)).collect()
        };
        let mut batch = Batch::default();
        batch.push(b"a", Action::Read);
        let first = batch.mark();
        batch.stripe_next_by(b"user-7");
        batch.push(b"b", Action::Read);
        batch.push(b"c", Action::Read);
        let middle = batch.mark();
        batch.stripe_next_by(b"user-8");
        batch.push(b"d", Action::Read);
        let (seven, eight) = (batch.stripe_by(1), batch.stripe_by(3));
        assert!(seven.is_some() && eight.is_some() && seven != eight);
        assert_eq!(said(&batch), [None, seven, None, eight]);
        assert_eq!(said(&batch.part(first, middle)), [seven, None]);
        assert_eq!(said(&batch.part(middle, batch.mark())), [eight]);
        let mut other = Batch::default();
        other.push(b"e", Action::Read);
        other.append(&batch);
        other.push_from(&batch, 1);
        assert_eq!(said(&other), [None, None, seven, None, eight, seven]);
        batch.truncate(middle);
        batch.push(b"f", Action::Read);
        assert_eq!(said(&batch), [None, seven, None, None]);
        batch.clear();
        batch.push(b"a", Action::Read);
        batch.push(b"b", Action::Read);
        assert_eq!(said(&batch), [None, None]);
    }

    #[test]
    fn who_asks_goes_with_the_requests() {
        let [anna, bert] = ["anna", "bert"].map(|name| Arc::new(Origin::new(name.as_bytes(), "host:1")));
        let names = |batch: &Batch| -> Vec<String> {
            let name = |index| batch.origin(index).map_or("-", |origin| &origin.name).to_owned();
            (0..batch.requests.len()).map(name).collect()
        };
        let mut batch = Batch::default();
        batch.push(b"a", Action::Read);
        batch.ask_from(Some(&anna));
        let nobody = batch.mark();
        batch.ask_from(Some(&bert));
        assert_eq!(batch.mark(), nobody, "who has asked nothing leaves no mark");
        batch.ask_from(Some(&anna));
        batch.push(b"b", Action::Read);
        batch.push(b"c", Action::Read);
        let middle = batch.mark();
        batch.push(b"d", Action::Read);
        batch.ask_from(Some(&bert));
        batch.push(b"e", Action::Read);
        assert_eq!(names(&batch), ["-", "anna", "anna", "anna", "bert"]);
        assert_eq!(names(&batch.part(middle, batch.mark())), ["anna", "bert"]);
        assert_eq!(names(&batch.part(nobody, middle)), ["anna", "anna"]);
        let mut other = Batch::default();
        other.append(&batch);
        other.append(&Batch::default());
        let mut unnamed = Batch::default();
        unnamed.push(b"f", Action::Read);
        other.append(&unnamed);
        assert_eq!(names(&other), ["-", "anna", "anna", "anna", "bert", "-"]);
        let mut picked = Batch::default();
        for index in [4, 0, 1] {
            picked.push_from(&other, index);
        }
        assert_eq!(names(&picked), ["bert", "-", "anna"]);
        batch.truncate(middle);
        batch.push(b"g", Action::Read);
        assert_eq!(names(&batch), ["-", "anna", "anna", "anna"]);
    }
}
