//! The rules for counters that are more than five numbers: uniques, windows, quotas, and amounts set aside.
//!
//! [`decide_whole`] is to a [`Whole`] what [`decide`] is to a cell, and calls it for what both have in common. It changes the counter in
//! place and says by which events, or leaves it alone and says why.

mod groups;
mod quotas;
mod uniques;

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::action::{Acquire, Action, Add, Condition, Ending, Expiry, Set};
use crate::batch::Reply;
use crate::body::{Body, Event, Keeping, Kind, Shape, State, read_frame, read_hashes};
use crate::bytes::{Bytes, put_bytes, put_varint, put_zigzag};
use crate::cell::Cell;
use crate::hold::{HOLDS_MAX, Hold, Holds, Outstanding};
use crate::policy::{Limits, Policy};
use crate::refusal::Refusal;
use crate::rollup::{Declared, Rollups, Slice, Sliceable, Sliced, is_of_none};
use crate::rules::{Change, Verdict, born_or_changed, decide, holds, refuse};
use crate::series::Series;
use crate::told::Told;
use crate::unique::{Seen, Unique};
use crate::window::{BucketRefusal, Frame, Zone, usage};

pub use groups::{DecidedGroup, WholeItem, decide_whole_group};
pub use quotas::keep_for;
pub(crate) use uniques::split_join;
pub use uniques::{put_join, seen_by, visitors};

/// The rules of this program. Replicas decide alike only by the same ones, so what is agreed on says by which it is decided.
pub const RULES: u64 = RULES_OF_LIMITS;
/// By these and later ones a limit knows what was counted in buckets that are no longer kept.
pub const RULES_OF_PAST: u64 = 4;
/// By these and later ones a hold that never was is told from one that has ended, and what adds nothing needs no room in roll-ups.
pub const RULES_OF_HOLDS: u64 = 5;
/// By these and later ones the limit of a policy binds what is set aside, too.
pub const RULES_OF_LIMITS: u64 = 6;

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
        /// How long its window is, of a calendar the current one; 0 without a window.
        window_ms: u64,
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
    /// By which rules it is decided: [`RULES`], unless some replica does not know them yet.
    pub rules: u64,
}

/// What was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// What becomes of the cell.
    pub change: Change,
    /// What became of the body, as [`Event`]s one behind the other. A cell that is put with another birth, or removed, has left
    /// its former body behind.
    pub events: Vec<u8>,
    /// What the caller is told.
    pub reply: Reply,
    /// By how much what is set aside has changed, where a trail wants to know.
    pub held: i64,
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
pub fn decide_whole(
    whole: &mut Whole,
    asked: Asked<'_>,
    ruled: Ruled<'_>,
    now_ms: u64,
    sequence: u64,
) -> Decided {
    let live = whole.cell.filter(|cell| cell.is_live(now_ms));
    let body = match live {
        Some(_) => whole.body.take(),
        None => None,
    };
    let mut deciding = Deciding { live, body, events: Vec::new(), ruled, now_ms, sequence };
    let recut = deciding.recut();
    let held_before = deciding.held();
    let mut verdict = deciding.decide(asked);
    deciding.note_history(&verdict.change);
    let frame = deciding.keeping().map(|keeping| keeping.frame);
    if verdict.reply.refusal.is_some() && live.is_none() {
        // What it would have been born as.
        verdict.reply.kind = deciding.kind();
    }
    let Deciding { body, mut events, .. } = deciding;
    debug_assert!(
        verdict.reply.refusal.is_none() || events.is_empty() || live.is_none(),
        "what is refused leaves no trace"
    );
    match (verdict.change, &recut) {
        // Time is cut anew with the next change, unless that begins another life.
        (Change::Put(cell), Some((_, event))) if live.is_some_and(|live| live.birth == cell.birth) => {
            events.splice(..0, event.iter().copied());
        }
        (Change::Put(_), _) => {}
        // What would have been born, or is removed at once.
        _ => events.clear(),
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
                whole.body = recut.map(|(before, _)| before).or(body);
            }
        }
        Change::Put(cell) => {
            whole.cell = Some(cell);
            whole.body = body;
        }
        Change::Remove => *whole = Whole::default(),
    }
    let held_after = whole.body.as_ref().map_or(0, |body| body.holds.outstanding(now_ms).sum());
    let held = if ruled.limits.audit_ms > 0 { clamp(held_after - held_before) } else { 0 };
    Decided { change: verdict.change, events, reply: verdict.reply, held }
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
            Action::Observe { at_ms, .. } => match at_ms.map(|at_ms| self.moment(at_ms)) {
                None => self.observe(&read_hashes(asked.payload), self.now_ms),
                Some(Ok(at_ms)) => self.observe(&read_hashes(asked.payload), at_ms),
                Some(Err(verdict)) => verdict,
            },
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

    /// All that is set aside.
    fn held(&self) -> i128 {
        self.outstanding().sum()
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
            self.become_window(&keeping);
        }
    }

    fn become_window(&mut self, keeping: &Keeping) {
        self.happens(Event::Become(Shape::Window(keeping.to_be_kept())));
        if self.ruled.rules >= RULES_OF_PAST {
            self.happens(Event::Remember { end_ms: 0, sum: 0 });
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
        let ruled = policy.and_then(|policy| policy.window.clone());
        let mut keeping = ruled.or_else(|| own.map(Keeping::alone))?;
        // Somebody may have asked for a longer window than the policy thought of.
        keeping.keep_ms = keeping.keep_ms.max(own.map_or(0, |own| own.keep_ms));
        Some(keeping)
    }

    /// Brings what was counted into the buckets of how time is cut now, where that is another way than before, and begins to note what is
    /// dropped, where that was not done. Returns the body as it was, and the events that say so.
    fn recut(&mut self) -> Option<(Arc<Body>, Vec<u8>)> {
        let (State::Window(own, _) | State::Visitors(own, _)) = &self.body.as_ref()?.state else {
            return None;
        };
        let frame = Some(self.keeping()?.frame).filter(|frame| !own.frame.cuts_like(frame));
        let dropped = self.dropped_unnoted();
        if frame.is_none() && dropped.is_none() {
            return None;
        }
        let before = self.body.clone()?;
        let latest_ms = self.live?.updated_at_ms;
        if let Some((end_ms, sum)) = dropped {
            self.happens(Event::Remember { end_ms, sum });
        }
        if let Some(frame) = frame {
            self.happens(Event::Recut { frame: frame.around(latest_ms), latest_ms });
        }
        Some((before, std::mem::take(&mut self.events)))
    }

    /// What was dropped while nobody noted it, and before when it happened: the value is all that was ever counted, so it is what the buckets lack.
    fn dropped_unnoted(&self) -> Option<(u64, i64)> {
        let (live, body) = (self.live?, self.body.as_ref()?);
        let State::Window(_, buckets) = &body.state else { return None };
        if buckets.past().is_some() || self.ruled.rules < RULES_OF_PAST {
            return None;
        }
        let oldest_ms = buckets.iter(0..u64::MAX).next().map(|(start_ms, _)| start_ms);
        let end_ms = oldest_ms.unwrap_or(live.updated_at_ms.saturating_add(1));
        Some((end_ms, clamp(i128::from(live.value) - buckets.sum(0..u64::MAX))))
    }

    /// An addition of which more is told.
    fn told(&mut self, add: &Add, told: &Told<'_>) -> Verdict {
        if self.kind() == Kind::Unique {
            return self.refuse(Refusal::WrongKind);
        }
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
            Kind::Sum => None,
            Kind::Unique | Kind::Window => self.keeping(),
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
        match self.tally(delta, at_ms, values, false) {
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
            Some(State::Visitors(_, visitors)) => visitors.iter().next().map_or(0, |(start_ms, _)| *start_ms),
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

    /// Notes an addition in its bucket and in its roll-ups, or leaves both alone. What was promised finds room in the roll-ups.
    fn tally(&mut self, delta: i64, at_ms: u64, values: Vec<u8>, is_promised: bool) -> Result<(), Refusal> {
        let events = self.tallies(delta, values, is_promised)?;
        self.count(delta, at_ms)?;
        events.into_iter().for_each(|event| self.happens(event));
        Ok(())
    }

    /// What an addition does to the roll-ups.
    fn tallies(&self, delta: i64, values: Vec<u8>, is_promised: bool) -> Result<Vec<Event>, Refusal> {
        let known = self.rollups();
        let Some((policy, declared)) = self.ruled.policy.zip(self.declared()) else {
            return Ok(known.map(|_| Event::ForgetRollups).into_iter().collect());
        };
        let value = self.live.map_or(0, |cell| cell.value);
        let mut events = Vec::new();
        // Cells are shared until they change, so a copy costs little.
        let mut rollups = match known {
            Some(known) if known.declared() == declared => Cow::Borrowed(known),
            _ => {
                events.push(Event::RollUp { declared: declared.clone(), value });
                Cow::Owned(Rollups::declare(known.cloned(), declared.clone(), value))
            }
        };
        if let Some(kept_from) = rollups.due(&policy.rollups_kept, || policy.zone(), self.now_ms) {
            rollups.to_mut().fold(&kept_from, self.now_ms);
            events.push(Event::FoldRollups { kept_from });
        }
        if delta != 0 || self.ruled.rules < RULES_OF_HOLDS {
            // Who names no dimension could not name fewer.
            let has_room = self.ruled.rules >= RULES_OF_HOLDS && (is_promised || is_of_none(&values));
            match rollups.check(&values, delta) {
                Err(Refusal::TooManyCells) if has_room => {}
                checked => checked?,
            }
        }
        if delta != 0 {
            events.push(Event::Tally { delta, values });
        }
        Ok(events)
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
            State::Visitors(own, _) => {
                let frame = policy.and_then(|policy| policy.window.as_ref()).unwrap_or(own).frame.clone();
                to_i64(seen_by(&body, Some(&frame), updated_at_ms.min(self.now_ms)).count())
            }
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
        Action::Observe { .. } | Action::Join { .. } => {
            deciding.recut();
            Detail::Seen { is_exact: deciding.seen_in_all()?.1 }
        }
        Action::Acquire(acquire) => {
            let limit = acquire.limit.or(ruled.policy.and_then(|policy| policy.limit))?;
            deciding.recut();
            let frame = deciding.frame(read_frame(&mut Bytes::new(asked.payload))).ok()?;
            return Some(deciding.quota_now(limit, frame.as_ref()));
        }
        _ => return None,
    };
    Some(Arc::new(detail))
}
