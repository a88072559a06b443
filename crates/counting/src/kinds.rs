//! The rules for counters that are more than five numbers: uniques, windows, quotas, and amounts set aside.
//!
//! [`settle_whole`] is to a [`Whole`] what [`decide`] is to a cell, and calls it for what both have in common. It changes the counter in
//! place and says by which events, or leaves it alone and says why.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::action::{Acquire, Action, Add, Condition, Ending, Expiry, Set};
use crate::batch::Reply;
use crate::body::{Body, Event, Keeping, Kind, Shape, State, read_frame, read_hashes, seen_from};
use crate::bytes::{Bytes, put_bytes, put_varint, put_zigzag};
use crate::cell::Cell;
use crate::hold::{HOLDS_MAX, Hold, Holds, Outstanding};
use crate::policy::{Limits, Policy};
use crate::refusal::Refusal;
use crate::rollup::{Declared, Rollups, Slice, Sliceable, Sliced};
use crate::rules::{Change, Verdict, born_or_changed, decide, holds, refuse};
use crate::series::Series;
use crate::told::Told;
use crate::unique::{Seen, Unique};
use crate::window::{BucketRefusal, Frame, Zone, usage};

/// How far ahead of ours a clock may be whose times are believed.
pub const AHEAD_MS: u64 = 60_000;

/// A counter with all it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Whole {
    /// Its numbers, if it exists, expired or not.
    pub cell: Option<Cell>,
    /// What it has beyond them. Shared with whoever looks at it; copied when it is changed while somebody does.
    pub body: Option<Arc<Body>>,
}

/// What a reply says beyond the numbers of the counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detail {
    /// What the counter has beyond them, and how time is cut for it.
    Body(Arc<Body>, Option<Frame>),
    /// How an attempt to acquire came out.
    Quota {
        /// What is used of the limit, with what was acquired and what is set aside.
        used: i64,
        /// The limit.
        limit: i64,
        /// Milliseconds until some of it is free again.
        reset_ms: u64,
    },
    /// What was set aside.
    Hold {
        /// Its number.
        number: u64,
        /// When it comes back by itself.
        expires_at_ms: u64,
    },
    /// When something may have happened that is counted for its time.
    Bound {
        /// The earliest time.
        earliest_ms: u64,
        /// The latest.
        latest_ms: u64,
    },
    /// What observing came to.
    Seen {
        /// Whether the number is that of the items, or an estimate.
        is_exact: bool,
    },
    /// What a part of the value comes to, once somebody adds it up.
    Sliceable(Sliceable),
    /// What it came to.
    Sliced(Sliced),
    /// By which dimensions the value is rolled up, for who has asked for others.
    Declared(Declared),
}

impl Detail {
    /// What a part of the value came to, where that was asked for.
    pub fn sliced(&self) -> Option<Cow<'_, Sliced>> {
        match self {
            Detail::Sliceable(sliceable) => sliceable.add_up().map(Cow::Owned),
            Detail::Sliced(sliced) => Some(Cow::Borrowed(sliced)),
            _ => None,
        }
    }
}

/// What was asked of a counter, with the bytes that belong to it.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// What.
    pub action: &'a Action,
    /// Items, a sketch, or how time is cut.
    pub payload: &'a [u8],
}

/// What holds for the counter.
#[derive(Clone, Copy, Debug)]
pub struct Ruled<'a> {
    /// Its bounds.
    pub limits: Limits,
    /// The whole policy, if there is one.
    pub policy: Option<&'a Policy>,
}

/// What was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    /// What becomes of the cell.
    pub change: Change,
    /// What became of the body, as [`Event`]s one behind the other. A cell that is put with another birth, or removed, has left
    /// its former body behind.
    pub events: Vec<u8>,
    /// What the caller is told.
    pub reply: Reply,
}

/// The counter while it is decided about.
struct Deciding<'a> {
    live: Option<Cell>,
    body: Option<Arc<Body>>,
    events: Vec<u8>,
    ruled: Ruled<'a>,
    now_ms: u64,
    sequence: u64,
}

/// Decides one action on one counter, and changes it.
pub fn settle_whole(
    whole: &mut Whole,
    asked: Asked<'_>,
    ruled: Ruled<'_>,
    now_ms: u64,
    sequence: u64,
) -> Settled {
    let live = whole.cell.filter(|cell| cell.is_live(now_ms));
    let body = match live {
        Some(_) => whole.body.take(),
        None => None,
    };
    let mut deciding = Deciding { live, body, events: Vec::new(), ruled, now_ms, sequence };
    let mut verdict = deciding.decide(asked);
    deciding.note_history(&verdict.change);
    let frame = deciding.keeping().map(|keeping| keeping.frame);
    let Deciding { body, mut events, .. } = deciding;
    debug_assert!(
        verdict.reply.refusal.is_none() || events.is_empty() || live.is_none(),
        "what is refused leaves no trace"
    );
    if !matches!(verdict.change, Change::Put(_)) {
        // What would have been born, or is removed at once.
        events.clear();
    }
    if let Some(body) = &body {
        verdict.reply.kind = body.kind();
    }
    let is_shown = matches!(asked.action, Action::Read | Action::Delete(_) | Action::Expire(_));
    if let (true, Some(body)) = (is_shown, &body) {
        verdict.reply.detail = Some(Arc::new(Detail::Body(Arc::clone(body), frame)));
    }
    match verdict.change {
        Change::Keep => {
            if live.is_some() {
                whole.body = body;
            }
        }
        Change::Put(cell) => {
            whole.cell = Some(cell);
            whole.body = body;
        }
        Change::Remove => *whole = Whole::default(),
    }
    Settled { change: verdict.change, events, reply: verdict.reply }
}

/// What a payload of [`Action::Join`] begins with where it says what was asked for; sketches begin otherwise.
const ASKED_FOR: u8 = 0xff;

/// Appends the payload of [`Action::Join`] under a request id: a hash of what was asked for, by which the request is the same when it comes
/// again, and the sketch, which may then be another. Without a sketch it is refused, unless it was done before.
pub fn put_join(out: &mut Vec<u8>, asked_for: u64, sketch: Option<&Unique>) {
    out.push(ASKED_FOR);
    out.extend(asked_for.to_le_bytes());
    if let Some(sketch) = sketch {
        sketch.put(out);
    }
}

/// What was asked for, as far as it is said, and the sketch.
pub(crate) fn split_join(payload: &[u8]) -> (Option<&[u8; 8]>, &[u8]) {
    match payload.split_first() {
        Some((&ASKED_FOR, rest)) => match rest.split_first_chunk() {
            Some((asked_for, sketch)) => (Some(asked_for), sketch),
            None => (None, &[]),
        },
        _ => (None, payload),
    }
}

/// A counter as it was elsewhere.
pub struct Restored {
    updated_at_ms: u64,
    value: i64,
    body: Body,
}

/// Appends the payload of [`Action::Restore`]: when the counter last changed, its value, and its body as [`Body::put`] has it.
pub fn put_restored(out: &mut Vec<u8>, updated_at_ms: u64, value: i64, body: &[u8]) {
    put_varint(out, updated_at_ms);
    put_zigzag(out, value);
    put_bytes(out, body);
}

/// Reads what was appended.
pub fn read_restored(payload: &[u8]) -> Option<Restored> {
    let mut bytes = Bytes::new(payload);
    let (updated_at_ms, value) = (bytes.varint()?, bytes.zigzag()?);
    let body = Body::read(bytes.bytes()?)?;
    bytes.is_empty().then_some(Restored { updated_at_ms, value, body })
}

/// What a counter of uniques has seen: in its window as time stands, where it knows when, else in all. This adds up sketches, so it is
/// for who shows the counter, and not for who decides about it.
pub fn seen_by(body: &Body, frame: Option<&Frame>, now_ms: u64) -> Unique {
    visitors(body, &frame.map_or(0..u64::MAX, |frame| frame.window(now_ms)))
}

/// The same in a span of time.
pub fn visitors(body: &Body, range: &Range<u64>) -> Unique {
    let mut all = Unique::new();
    match &body.state {
        State::Unique(unique) => all = unique.clone(),
        State::Visitors(_, sketches) => {
            for (_, unique) in sketches.iter().filter(|(start, _)| range.contains(start)) {
                all.merge(unique);
            }
        }
        State::Sum | State::Window(..) => {}
    }
    all
}

impl Deciding<'_> {
    fn decide(&mut self, asked: Asked<'_>) -> Verdict {
        let action = asked.action;
        if action.is_write() && self.ruled.limits.disabled {
            return self.refuse(Refusal::Disabled);
        }
        match action {
            Action::Add(add) => self.add(add, &[]),
            Action::Told { add, .. } => match Told::read(asked.payload) {
                Some(told) => self.told(add, &told),
                None => self.refuse(Refusal::WrongKind),
            },
            Action::Slice { .. } => match Slice::read(asked.payload) {
                Some(slice) => self.slice(slice),
                None => self.refuse(Refusal::WrongKind),
            },
            Action::Set(set) => self.set(set),
            Action::Overwrite(set) => self.overwrite(set),
            Action::Reset(condition) => self.reset(*condition),
            Action::Observe { .. } => self.observe(&read_hashes(asked.payload)),
            Action::Join { .. } => match Unique::read(split_join(asked.payload).1) {
                Some(sketch) => self.join(&sketch),
                None => self.refuse(Refusal::WrongKind),
            },
            Action::Replace { expiry, condition, .. } => match Unique::read(asked.payload) {
                Some(sketch) => self.replace(sketch, *expiry, *condition),
                None => self.refuse(Refusal::WrongKind),
            },
            Action::Restore { expiry, condition, .. } => match read_restored(asked.payload) {
                Some(restored) => self.restore(restored, *expiry, *condition),
                None => self.refuse(Refusal::WrongKind),
            },
            Action::Acquire(acquire) => self.acquire(acquire, asked.payload),
            Action::Reserve(add, ttl_ms) => self.reserve(add, *ttl_ms),
            Action::End { birth, number, ending } => self.end(*birth, *number, *ending),
            Action::Read
            | Action::Check(_)
            | Action::Delete(_)
            | Action::Expire(_)
            | Action::Count
            | Action::Clear => self.plain(action, &self.ruled.limits),
        }
    }

    /// Keeps what the value was at the boundaries that lie behind, if the policy wants it.
    fn note_history(&mut self, change: &Change) {
        let (Change::Put(_), Some(before)) = (change, self.live) else { return };
        let is_kept = self.body.as_ref().is_some_and(|body| body.series != Series::default());
        match self.ruled.policy.and_then(|policy| policy.history) {
            Some(retention) if Series::is_due(before.updated_at_ms, self.now_ms) => {
                let (before, changed_at_ms) = (before.value, before.updated_at_ms);
                self.happens(Event::Note { retention, before, changed_at_ms });
            }
            None if is_kept => self.happens(Event::ForgetHistory),
            _ => {}
        }
    }

    fn plain(&self, action: &Action, limits: &Limits) -> Verdict {
        decide(self.live, action, limits, self.now_ms, self.sequence)
    }

    fn refuse(&self, refusal: Refusal) -> Verdict {
        refuse(self.live, refusal)
    }

    /// The counter of uniques as it is, for who is told what it was.
    fn shown(&self) -> Option<Arc<Detail>> {
        let body = self.body.as_ref().filter(|body| self.live.is_some() && body.kind() == Kind::Unique)?;
        Some(Arc::new(Detail::Body(Arc::clone(body), self.keeping().map(|keeping| keeping.frame))))
    }

    fn unmet(&self) -> Verdict {
        let mut verdict = self.refuse(Refusal::ConditionUnmet);
        verdict.reply.detail = self.shown();
        verdict
    }

    /// What the counter is, or would be born as.
    fn kind(&self) -> Kind {
        match (self.live, &self.body) {
            (_, Some(body)) => body.kind(),
            (Some(_), None) => Kind::Sum,
            (None, None) => self.ruled.policy.and_then(|policy| policy.kind).unwrap_or(Kind::Sum),
        }
    }

    fn outstanding(&self) -> Outstanding {
        self.body.as_ref().map_or(Outstanding::default(), |body| body.holds.outstanding(self.now_ms))
    }

    /// The body changes by this, and the log says so.
    fn happens(&mut self, event: Event) {
        event.put(&mut self.events);
        let shared = self.body.get_or_insert_with(|| Arc::new(Body::new(Shape::Sum)));
        let applied = Arc::make_mut(shared).apply(event, self.now_ms);
        debug_assert!(applied.is_some(), "what was decided can be carried out");
    }

    /// A counter that is born by policy as one by time is one from its first change on.
    fn ensure_shape(&mut self) {
        if self.live.is_none()
            && self.body.is_none()
            && self.kind() == Kind::Window
            && let Some(keeping) = self.keeping()
        {
            self.happens(Event::Become(Shape::Window(keeping.to_be_kept())));
        }
    }

    /// How time is cut for the counter: as the policy says, where it speaks of the counter's kind; else as it was when the counter was born.
    fn keeping(&self) -> Option<Keeping> {
        let own = match self.body.as_ref().map(|body| &body.state) {
            Some(State::Window(keeping, _) | State::Visitors(keeping, _)) => Some(keeping),
            Some(State::Sum | State::Unique(_)) => return None,
            None if self.live.is_some() => return None,
            None => None,
        };
        let policy = self.ruled.policy.filter(|policy| policy.kind == Some(self.kind()));
        let mut keeping = policy.and_then(|policy| policy.window.as_ref()).or(own).cloned()?;
        // Somebody may have asked for a longer window than the policy thought of.
        keeping.keep_ms = keeping.keep_ms.max(own.map_or(0, |own| own.keep_ms));
        Some(keeping)
    }

    /// An addition of which more is told.
    fn told(&mut self, add: &Add, told: &Told<'_>) -> Verdict {
        match told.at_ms.map(|at_ms| self.moment(at_ms)) {
            None => self.add(add, &told.dimensions),
            Some(Ok(at_ms)) => self.add_at(add, at_ms, &told.dimensions),
            Some(Err(verdict)) => verdict,
        }
    }

    /// For when something is counted that happened at `at_ms`, if it can be. Clocks differ: what is a little ahead counts as now, so that no
    /// bucket is newer than the one that time is in.
    fn moment(&self, at_ms: u64) -> Result<u64, Verdict> {
        let keeping = match self.kind() {
            Kind::Unique => return Err(self.refuse(Refusal::WrongKind)),
            Kind::Sum => None,
            Kind::Window => self.keeping(),
        };
        let Some(keeping) = keeping else { return Err(self.refuse(Refusal::Timeless)) };
        let lateness_ms = self.ruled.policy.and_then(|policy| policy.lateness_ms).unwrap_or(u64::MAX);
        let earliest_ms = keeping.from_ms(self.now_ms).max(self.now_ms.saturating_sub(lateness_ms));
        if (earliest_ms..=self.now_ms.saturating_add(AHEAD_MS)).contains(&at_ms) {
            return Ok(at_ms.min(self.now_ms));
        }
        Err(self.out_of_time(earliest_ms))
    }

    fn out_of_time(&self, earliest_ms: u64) -> Verdict {
        let latest_ms = self.now_ms.saturating_add(AHEAD_MS);
        let mut verdict = self.refuse(Refusal::OutOfTime);
        verdict.reply.detail = Some(Arc::new(Detail::Bound { earliest_ms, latest_ms }));
        verdict
    }

    fn add(&mut self, add: &Add, dimensions: &[(&str, &str)]) -> Verdict {
        self.add_at(add, self.now_ms, dimensions)
    }

    fn add_at(&mut self, add: &Add, at_ms: u64, dimensions: &[(&str, &str)]) -> Verdict {
        if self.kind() == Kind::Unique {
            return self.refuse(Refusal::WrongKind);
        }
        let Ok(values) = self.values(dimensions, at_ms) else { return self.refuse_dimension() };
        let (add, limits) = self.within_holds(add);
        let verdict = self.plain(&Action::Add(add), &limits);
        let Change::Put(after) = verdict.change else { return verdict };
        let delta = after.value.wrapping_sub(self.live.map_or(0, |cell| cell.value));
        match self.tally(delta, at_ms, values) {
            Ok(()) => verdict,
            // As many buckets as there can be are newer.
            Err(Refusal::OutOfTime) => self.out_of_time(self.oldest_ms()),
            Err(refusal) => self.refuse(refusal),
        }
    }

    /// Where the oldest bucket begins.
    fn oldest_ms(&self) -> u64 {
        match self.body.as_ref().map(|body| &body.state) {
            Some(State::Window(_, buckets)) => {
                buckets.iter(0..u64::MAX).next().map_or(0, |(start_ms, _)| start_ms)
            }
            _ => 0,
        }
    }

    fn declared(&self) -> Option<&Declared> {
        self.ruled.policy.and_then(|policy| policy.rollups.as_ref())
    }

    /// What an addition that says this belongs to, for all dimensions that are declared.
    fn values(&self, dimensions: &[(&str, &str)], at_ms: u64) -> Result<Vec<u8>, Refusal> {
        match self.ruled.policy.and_then(|policy| Some((policy, policy.rollups.as_ref()?))) {
            Some((policy, declared)) => declared.values(dimensions, || policy.zone(), at_ms),
            None if dimensions.is_empty() => Ok(Vec::new()),
            None => Err(Refusal::UndeclaredDimension),
        }
    }

    fn refuse_dimension(&self) -> Verdict {
        let mut verdict = self.refuse(Refusal::UndeclaredDimension);
        verdict.reply.detail = self.declared().map(|declared| Arc::new(Detail::Declared(declared.clone())));
        verdict
    }

    fn rollups(&self) -> Option<&Rollups> {
        self.body.as_ref().and_then(|body| body.rollups.as_ref())
    }

    /// Notes an addition in its bucket and in its roll-ups, or leaves both alone.
    fn tally(&mut self, delta: i64, at_ms: u64, values: Vec<u8>) -> Result<(), Refusal> {
        let known = self.rollups();
        let (begin, count) = match self.declared() {
            None => (known.map(|_| Event::ForgetRollups), None),
            Some(declared) => {
                let value = self.live.map_or(0, |cell| cell.value);
                let is_known = known.is_some_and(|known| known.declared() == declared);
                let begun = (!is_known).then(|| Rollups::declare(known.cloned(), declared.clone(), value));
                if let Some(rollups) = begun.as_ref().or(known) {
                    rollups.check(&values, delta)?;
                }
                let begin = begun.map(|_| Event::RollUp { declared: declared.clone(), value });
                (begin, (delta != 0).then_some(Event::Tally { delta, values }))
            }
        };
        self.count(delta, at_ms)?;
        begin.into_iter().chain(count).for_each(|event| self.happens(event));
        Ok(())
    }

    /// The value is no sum of what is known any more: all of it belongs to the empty values.
    fn forget_rollups(&mut self) {
        if self.rollups().is_some() {
            self.happens(Event::ForgetRollups);
        }
    }

    /// A look at a part of the value.
    fn slice(&self, slice: Slice) -> Verdict {
        if self.kind() == Kind::Unique {
            return self.refuse(Refusal::WrongKind);
        }
        let Some(declared) = self.declared().filter(|declared| declared.tells(&slice)) else {
            return self.refuse_dimension();
        };
        let (declared, value) = (declared.clone(), self.live.map_or(0, |cell| cell.value));
        let sliceable = Sliceable { slice, declared, value, body: self.body.clone() };
        let detail = Some(Arc::new(Detail::Sliceable(sliceable)));
        Verdict { change: Change::Keep, reply: Reply { detail, ..Reply::state(self.live) } }
    }

    /// Bounds leave room for what is set aside.
    fn within_holds(&self, add: &Add) -> (Add, Limits) {
        let Outstanding { up, down, .. } = self.outstanding();
        let (up, down) = (clamp(up), clamp(down));
        let (mut add, mut limits) = (*add, self.ruled.limits);
        // What is set aside may leave less than there is: then nothing can be added, and nothing is taken away either.
        let value = self.live.map_or(0, |cell| cell.value);
        let lower = |bound: i64| if up == 0 { bound } else { bound.saturating_sub(up).max(value.min(bound)) };
        let higher =
            |bound: i64| if down == 0 { bound } else { bound.saturating_sub(down).min(value.max(bound)) };
        (add.max, limits.ceiling) = (lower(add.max), lower(limits.ceiling));
        (add.min, limits.floor) = (higher(add.min), higher(limits.floor));
        (add, limits)
    }

    /// Notes an addition in the bucket of its time, where the counter has buckets.
    fn count(&mut self, delta: i64, at_ms: u64) -> Result<(), Refusal> {
        self.ensure_shape();
        let (Some(State::Window(_, buckets)), Some(keeping)) =
            (self.body.as_ref().map(|body| &body.state), self.keeping())
        else {
            return Ok(());
        };
        if delta == 0 {
            return Ok(());
        }
        let (bucket, from_ms) = (keeping.frame.bucket(at_ms), keeping.from_ms(self.now_ms));
        let (start_ms, end_ms) = (bucket.start, bucket.end);
        let is_late = !bucket.contains(&self.now_ms);
        let gathered = buckets.gathered(start_ms..if is_late { end_ms } else { u64::MAX }, delta);
        gathered.map_err(|refusal| match refusal {
            BucketRefusal::Overflow => Refusal::Overflow,
            BucketRefusal::TooOld => Refusal::OutOfTime,
        })?;
        self.happens(match is_late {
            true => Event::CountLate { start_ms, end_ms, from_ms, delta },
            false => Event::Count { start_ms, from_ms, delta },
        });
        Ok(())
    }

    fn set(&mut self, set: &Set) -> Verdict {
        if !holds(set.condition, self.live) {
            return self.unmet();
        }
        if self.kind() != Kind::Sum {
            return self.refuse(Refusal::WrongKind);
        }
        let (_, limits) = self.within_holds(&Add::plain(0));
        let verdict = self.plain(&Action::Set(*set), &limits);
        if matches!(verdict.change, Change::Put(_)) {
            self.forget_rollups();
        }
        verdict
    }

    /// A counter of uniques may be overwritten by a number, unless a policy wants it to be what it is.
    fn overwrite(&mut self, set: &Set) -> Verdict {
        let is_wanted = self.ruled.policy.is_some_and(|policy| policy.kind == Some(Kind::Unique));
        if self.kind() != Kind::Unique || is_wanted {
            return self.set(set);
        }
        if !holds(set.condition, self.live) {
            return self.unmet();
        }
        let mut verdict = self.plain(&Action::Set(*set), &self.ruled.limits);
        if verdict.reply.refusal.is_none() {
            verdict.reply.detail = self.body.take().map(|body| Arc::new(Detail::Body(body, None)));
            self.begin_anew(&mut verdict);
        }
        verdict
    }

    /// What the counter becomes is another life of it.
    fn begin_anew(&self, verdict: &mut Verdict) {
        if let Change::Put(cell) = &mut verdict.change {
            cell.birth = self.sequence;
            verdict.reply.cell.birth = self.sequence;
        }
    }

    fn reset(&mut self, condition: Condition) -> Verdict {
        let (_, limits) = self.within_holds(&Add::plain(0));
        let verdict = self.plain(&Action::Reset(condition), &limits);
        if matches!(verdict.change, Change::Put(_)) {
            if self.kind() != Kind::Sum {
                self.happens(Event::Empty);
            }
            self.forget_rollups();
        }
        verdict
    }

    /// The sketch that something seen now belongs to, of a counter that is born for it if there is none; where its bucket begins.
    fn sketch(&mut self) -> Result<(Cow<'_, Unique>, u64), Refusal> {
        if self.live.is_none() && self.body.is_none() {
            let policy = self.ruled.policy;
            let shape = match policy.map(|policy| (policy.kind, &policy.window)) {
                None | Some((None, _)) | Some((Some(Kind::Unique), None)) => Shape::Unique,
                Some((Some(Kind::Unique), Some(keeping))) => Shape::Visitors(keeping.to_be_kept()),
                Some((Some(Kind::Sum | Kind::Window), _)) => return Err(Refusal::WrongKind),
            };
            self.happens(Event::Become(shape));
        }
        let start_ms = self.keeping().map_or(0, |keeping| keeping.frame.bucket(self.now_ms).start);
        match self.body.as_ref().map(|body| &body.state) {
            Some(State::Unique(unique)) => Ok((Cow::Borrowed(unique), 0)),
            Some(State::Visitors(_, sketches)) => Ok((seen_from(sketches, start_ms), start_ms)),
            _ => Err(Refusal::WrongKind),
        }
    }

    /// The one sketch of a counter that does not know when it saw what: others take no sketches.
    fn only_sketch(&mut self) -> Result<Unique, Refusal> {
        let sketch = self.sketch()?.0.into_owned();
        match self.body.as_ref().map(|body| &body.state) {
            Some(State::Unique(_)) => Ok(sketch),
            _ => Err(Refusal::WrongKind),
        }
    }

    fn observe(&mut self, items: &[u64]) -> Verdict {
        let (sketch, start_ms) = match self.sketch() {
            Ok(found) => found,
            Err(refusal) => return self.refuse(refusal),
        };
        let mut seen = Seen { is_new: false, is_altered: false };
        let hashes: Vec<u64> = (items.iter().copied())
            .filter(|hash| {
                let one = sketch.would_see(*hash);
                seen.is_altered |= one.is_altered;
                seen.is_new |= one.is_new;
                one.is_new
            })
            .collect();
        if !hashes.is_empty() {
            let from_ms = self.keeping().map_or(0, |keeping| keeping.from_ms(self.now_ms));
            self.happens(Event::Observe { start_ms, from_ms, hashes });
        }
        self.seen(seen)
    }

    fn join(&mut self, other: &Unique) -> Verdict {
        let mut joined = match self.only_sketch() {
            Ok(sketch) => sketch,
            Err(refusal) => return self.refuse(refusal),
        };
        let seen = joined.merge(other);
        if seen.is_new {
            self.happens(Event::Join(other.clone()));
        }
        self.seen(seen)
    }

    fn replace(&mut self, sketch: Unique, expiry: Expiry, condition: Condition) -> Verdict {
        if !holds(condition, self.live) {
            return self.unmet();
        }
        let before = self.shown();
        // A number may be overwritten by a sketch, as it may be in Redis.
        let is_wanted = self.ruled.policy.is_some_and(|policy| policy.kind == Some(Kind::Sum));
        let is_sum = self.live.is_some() && self.kind() == Kind::Sum && !is_wanted;
        if is_sum {
            self.body = None;
            self.happens(Event::Become(Shape::Unique));
        } else if let Err(refusal) = self.only_sketch() {
            return self.refuse(refusal);
        }
        let count = sketch.count();
        self.happens(Event::Replace(sketch));
        let (limits, now_ms) = (self.ruled.limits, self.now_ms);
        let mut verdict = born_or_changed(self.live, to_i64(count), expiry, &limits, now_ms, self.sequence);
        verdict.reply.detail = before;
        if is_sum {
            self.begin_anew(&mut verdict);
        }
        verdict
    }

    /// It begins another life, as it was in the one before, but for what was set aside: holds are known by the life they were made in. When it
    /// last changed is when it did so there, so that its history stays true.
    fn restore(&mut self, restored: Restored, expiry: Expiry, condition: Condition) -> Verdict {
        let Restored { updated_at_ms, value, mut body } = restored;
        let policy = self.ruled.policy;
        if policy.and_then(|policy| policy.kind).is_some_and(|kind| kind != body.kind()) {
            return self.refuse(Refusal::WrongKind);
        }
        body.holds = Holds::default();
        let value = match &body.state {
            State::Sum | State::Window(..) => value,
            State::Unique(unique) => to_i64(unique.count()),
            State::Visitors(_, sketches) => sketches.last().map_or(0, |(_, unique)| to_i64(unique.count())),
        };
        let limits = self.ruled.limits;
        let mut verdict = match body.kind() {
            Kind::Unique if holds(condition, self.live) => {
                born_or_changed(self.live, value, expiry, &limits, self.now_ms, self.sequence)
            }
            _ => self.plain(&Action::Set(Set { value, expiry, condition }), &limits),
        };
        let Change::Put(cell) = &mut verdict.change else { return verdict };
        cell.updated_at_ms = updated_at_ms.min(self.now_ms);
        verdict.reply.cell.updated_at_ms = cell.updated_at_ms;
        self.begin_anew(&mut verdict);
        // Nothing of the life before goes into the history of this one.
        (self.live, self.body) = (None, None);
        self.happens(Event::Restore(Box::new(body)));
        verdict
    }

    /// The reply of something that was shown to a sketch. What it came to is said by `applied`: 1 if a register of the sketch rose (or the counter
    /// is new), 2 more if something new is known: a difference that an outcome can remember.
    fn seen(&mut self, seen: Seen) -> Verdict {
        let is_born = self.live.is_none();
        let (count, is_exact) =
            self.sketch().map_or((0, true), |(sketch, _)| (sketch.count(), sketch.is_exact()));
        let applied = i64::from(seen.is_altered || is_born) + 2 * i64::from(seen.is_new);
        let mut verdict = if applied == 0 {
            Verdict { change: Change::Keep, reply: Reply::state(self.live) }
        } else {
            let (now_ms, sequence) = (self.now_ms, self.sequence);
            born_or_changed(self.live, to_i64(count), Expiry::Keep, &self.ruled.limits, now_ms, sequence)
        };
        verdict.reply.applied = applied;
        verdict.reply.previous = verdict.reply.cell.value.saturating_sub(applied);
        verdict.reply.detail = Some(Arc::new(Detail::Seen { is_exact }));
        verdict
    }

    fn acquire(&mut self, acquire: &Acquire, payload: &[u8]) -> Verdict {
        let policy = self.ruled.policy;
        let Some(limit) = acquire.limit.or(policy.and_then(|policy| policy.limit)) else {
            return self.refuse(Refusal::NoLimit);
        };
        let asked = match payload {
            [] => None,
            payload => match read_frame(&mut Bytes::new(payload)) {
                Some(frame) => Some(frame),
                None => return self.refuse(Refusal::WrongKind),
            },
        };
        let frame = match self.frame(asked) {
            Ok(frame) => frame,
            Err(refusal) => return self.refuse(refusal),
        };
        let (counted, reset_ms) = self.used(frame.as_ref());
        let used = counted + self.outstanding().up;
        let after = used + i128::from(acquire.amount);
        let is_soft = acquire.is_soft || policy.is_some_and(|policy| policy.soft);
        let quota =
            |used: i128, reset_ms| Some(Arc::new(Detail::Quota { used: clamp(used), limit, reset_ms }));
        if after > i128::from(limit) && !is_soft {
            let mut verdict = self.refuse(Refusal::OverQuota);
            verdict.reply.detail = quota(used, reset_ms);
            return verdict;
        }
        let is_born = self.live.is_none() && self.body.is_none();
        let kept_ms = self.keeping().map_or(0, |keeping| keeping.keep_ms);
        let longer_ms = frame.as_ref().map(keep_for).filter(|keep_ms| *keep_ms > kept_ms);
        if let (true, Some(frame)) = (is_born, frame.clone()) {
            let keep_ms = longer_ms.unwrap_or(kept_ms);
            self.happens(Event::Become(Shape::Window(Keeping { frame, keep_ms }.to_be_kept())));
        }
        // All of it or nothing, also where a policy lets additions take what is left.
        self.ruled.limits.saturate = false;
        let mut verdict = self.add(&Add::plain(acquire.amount), &[]);
        if verdict.reply.refusal.is_none() {
            if let (false, Some(keep_ms)) = (is_born, longer_ms) {
                self.happens(Event::Keep(keep_ms));
            }
            // What was just counted is the first to come back where nothing was.
            let (_, reset_ms) = self.used(frame.as_ref());
            verdict.reply.detail = quota(after, reset_ms);
        }
        verdict
    }

    /// How the window of a limit is cut: as asked, as far as what the counter keeps can tell; else as the policy says.
    fn frame(&self, asked: Option<Frame>) -> Result<Option<Frame>, Refusal> {
        if self.kind() == Kind::Unique {
            return Err(Refusal::WrongKind);
        }
        match (self.keeping(), asked) {
            (own, None) => Ok(own.map(|keeping| keeping.frame)),
            (None, Some(asked)) if self.may_become(&asked) => Ok(Some(asked)),
            (None, Some(_)) => Err(Refusal::WrongKind),
            (Some(own), Some(asked)) => match (own.frame, asked) {
                (Frame::Sliding { bucket_ms, .. }, Frame::Sliding { span_ms, .. }) => {
                    let frame = Frame::Sliding { span_ms, bucket_ms };
                    // The buckets must be fine enough for it, and as many as it needs must fit.
                    if frame.problem().is_none() { Ok(Some(frame)) } else { Err(Refusal::WrongKind) }
                }
                (own, asked) if own == asked => Ok(Some(own)),
                _ => Err(Refusal::WrongKind),
            },
        }
    }

    /// Whether the counter may be born by a limit whose window is cut so. The offsets of a time zone are for a policy to say:
    /// a counter does not keep them.
    fn may_become(&self, frame: &Frame) -> bool {
        let is_sum_by_policy = self.ruled.policy.is_some_and(|policy| policy.kind == Some(Kind::Sum));
        let is_elsewhere = matches!(frame, Frame::Calendar { zone, .. } if *zone != Zone::utc());
        self.live.is_none() && !is_sum_by_policy && !is_elsewhere
    }

    fn used(&self, frame: Option<&Frame>) -> (i128, u64) {
        let buckets = match self.body.as_ref().map(|body| &body.state) {
            Some(State::Window(_, buckets)) => Some(buckets),
            _ => None,
        };
        match (frame, buckets) {
            (Some(frame), Some(buckets)) => {
                let usage = usage(frame, buckets, self.now_ms);
                (usage.used, usage.reset_ms)
            }
            (Some(frame), None) => (0, usage(frame, &Default::default(), self.now_ms).reset_ms),
            // Without a window nothing comes back by itself.
            (None, _) => (self.live.map_or(0, |cell| i128::from(cell.value)), 0),
        }
    }

    fn reserve(&mut self, add: &Add, ttl_ms: u64) -> Verdict {
        if self.kind() == Kind::Unique {
            return self.refuse(Refusal::WrongKind);
        }
        if self.outstanding().count >= HOLDS_MAX {
            return self.refuse(Refusal::TooManyHolds);
        }
        if self.live.is_none() {
            // A counter that is born by it has the value 0, which must be allowed too.
            let zero = self.plain(&Action::Add(Add::plain(0)), &self.ruled.limits);
            if zero.reply.refusal.is_some() {
                return zero;
            }
        }
        // As if it were added, with all that is set aside already.
        let (within, limits) = self.within_holds(&Add { saturate: false, ..*add });
        let verdict = self.plain(&Action::Add(within), &Limits { saturate: false, ..limits });
        if verdict.reply.refusal.is_some() {
            return verdict;
        }
        self.ensure_shape();
        let value = self.live.map_or(0, |cell| cell.value);
        let (limits, now_ms, sequence) = (self.ruled.limits, self.now_ms, self.sequence);
        let mut verdict = born_or_changed(self.live, value, add.expiry, &limits, now_ms, sequence);
        let number = verdict.reply.cell.version;
        let expires_at_ms = self.now_ms.saturating_add(ttl_ms);
        self.happens(Event::Reserve { number, hold: Hold { amount: add.delta, expires_at_ms } });
        verdict.reply.detail = Some(Arc::new(Detail::Hold { number, expires_at_ms }));
        verdict
    }

    fn end(&mut self, birth: u64, number: u64, ending: Ending) -> Verdict {
        let is_same = self.live.is_some_and(|cell| cell.birth == birth);
        let held = self.body.as_ref().and_then(|body| body.holds.get(number, self.now_ms));
        let (true, Some(hold)) = (is_same, held) else { return self.refuse(Refusal::HoldEnded) };
        let amount = match ending {
            Ending::Void => 0,
            Ending::Commit(None) => hold.amount,
            Ending::Commit(Some(amount)) => amount,
        };
        let is_within = if hold.amount < 0 {
            (hold.amount..=0).contains(&amount)
        } else {
            (0..=hold.amount).contains(&amount)
        };
        if !is_within {
            return self.refuse(Refusal::BeyondHold);
        }
        let value = self.live.map_or(0, |cell| cell.value);
        let Some(value) = value.checked_add(amount) else { return self.refuse(Refusal::Overflow) };
        let now_ms = self.now_ms;
        if let Err(refusal) = self.values(&[], now_ms).and_then(|values| self.tally(amount, now_ms, values)) {
            return self.refuse(refusal);
        }
        self.happens(Event::End(number));
        let limits = self.ruled.limits;
        born_or_changed(self.live, value, Expiry::Keep, &limits, self.now_ms, self.sequence)
    }
}

/// A window stays readable for a second one, so that the one before can be looked at.
pub fn keep_for(frame: &Frame) -> u64 {
    let span_ms = match frame {
        Frame::Sliding { span_ms, .. } | Frame::Fixed { span_ms } => *span_ms,
        // A month and a day.
        Frame::Calendar { .. } => 32 * 24 * 3_600_000,
    };
    span_ms.saturating_mul(2)
}

fn to_i64(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn clamp(number: i128) -> i64 {
    number.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// What a reply that is given again says beyond the outcome that is remembered: as it is now.
pub fn recall(
    whole: &Whole,
    asked: Asked<'_>,
    ruled: Ruled<'_>,
    (reply, at_ms): (&Reply, u64),
    now_ms: u64,
) -> Option<Arc<Detail>> {
    let live = whole.cell.filter(|cell| cell.is_live(now_ms));
    let body = live.and_then(|_| whole.body.clone());
    let mut deciding = Deciding { live, body, events: Vec::new(), ruled, now_ms, sequence: 0 };
    let detail = match asked.action {
        Action::Reserve(_, ttl_ms) => {
            let expires_at_ms = at_ms.saturating_add(*ttl_ms);
            Detail::Hold { number: reply.cell.version, expires_at_ms }
        }
        Action::Observe { .. } | Action::Join { .. } => match deciding.sketch() {
            Ok((sketch, _)) => Detail::Seen { is_exact: sketch.is_exact() },
            Err(_) => return None,
        },
        Action::Acquire(acquire) => {
            let limit = acquire.limit.or(ruled.policy.and_then(|policy| policy.limit))?;
            let frame = deciding.frame(read_frame(&mut Bytes::new(asked.payload))).ok()?;
            let (used, reset_ms) = deciding.used(frame.as_ref());
            Detail::Quota { used: clamp(used + deciding.outstanding().up), limit, reset_ms }
        }
        _ => return None,
    };
    Some(Arc::new(detail))
}

/// One item of an all-or-none group of whole counters.
#[derive(Clone, Copy, Debug)]
pub struct WholeItem<'a> {
    /// Index into the group's counters; two items may share one.
    pub counter: usize,
    /// What is asked.
    pub asked: Asked<'a>,
    /// What holds for the key.
    pub ruled: Ruled<'a>,
    /// The sequence this item's change would take.
    pub sequence: u64,
    /// Entry time of the item's partition.
    pub now_ms: u64,
}

/// What was decided about each item, and what becomes of each counter in the end; or which item was refused, and what all are told.
pub type SettledGroup = Result<(Vec<Settled>, Vec<Whole>), (usize, Vec<Reply>)>;

/// As [`decide_group`](crate::decide_group), for counters with all they have. Bodies are changed in place from item to item.
pub fn settle_group(items: &[WholeItem<'_>], counters: &[Whole]) -> SettledGroup {
    let mut staged = counters.to_vec();
    let mut all = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let whole = &mut staged[item.counter];
        let settled = settle_whole(whole, item.asked, item.ruled, item.now_ms, item.sequence);
        let Some(refusal) = settled.reply.refusal else {
            all.push(settled);
            continue;
        };
        let unchanged = |(other, item): (usize, &WholeItem<'_>)| {
            let live = counters[item.counter].cell.filter(|cell| cell.is_live(item.now_ms));
            let body = counters[item.counter].body.as_ref().filter(|_| live.is_some());
            let state = Reply { kind: body.map_or(Kind::Sum, |body| body.kind()), ..Reply::state(live) };
            match other == index {
                true => Reply { refusal: Some(refusal), detail: settled.reply.detail.clone(), ..state },
                false => Reply { refusal: Some(Refusal::GroupAborted), ..state },
            }
        };
        return Err((index, items.iter().enumerate().map(unchanged).collect()));
    }
    Ok((all, staged))
}
