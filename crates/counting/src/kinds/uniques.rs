//! Counters of different items: what they have seen, and what is shown to them.

use super::*;

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

/// What a counter of uniques has seen: in its window as time stands, where it knows when, else in all. This adds up sketches, so it is
/// for who shows the counter, and not for who decides about it.
pub fn seen_by(body: &Body, frame: Option<&Frame>, now_ms: u64) -> Unique {
    visitors(body, &frame.map_or(0..u64::MAX, |frame| frame.window(now_ms)))
}

/// The same in a span of time.
pub fn visitors(body: &Body, range: &Range<u64>) -> Unique {
    match &body.state {
        State::Unique(unique) => unique.clone(),
        State::Visitors(_, visitors) => visitors.seen(range).into_owned(),
        State::Sum | State::Window(..) => Unique::new(),
    }
}

impl Deciding<'_> {
    /// A counter that is born for what it is shown.
    fn ensure_sketch(&mut self) -> Result<(), Refusal> {
        if self.live.is_some() || self.body.is_some() {
            return Ok(());
        }
        let policy = self.ruled.policy;
        let shape = match policy.map(|policy| (policy.kind, &policy.window)) {
            None | Some((None, _)) | Some((Some(Kind::Unique), None)) => Shape::Unique,
            Some((Some(Kind::Unique), Some(keeping))) => Shape::Visitors(keeping.to_be_kept()),
            Some((Some(Kind::Sum | Kind::Window), _)) => return Err(Refusal::WrongKind),
        };
        self.happens(Event::Become(shape));
        Ok(())
    }

    /// The bucket that something seen at `at_ms` belongs to; the newest one has no end.
    fn bucket(&self, at_ms: u64) -> Range<u64> {
        let Some(keeping) = self.keeping() else { return 0..u64::MAX };
        let bucket = keeping.frame.bucket(at_ms);
        if bucket.contains(&self.now_ms) { bucket.start..u64::MAX } else { bucket }
    }

    /// What was seen in a bucket, or in all by a counter that has none.
    fn sketch(&self, bucket: &Range<u64>) -> Result<Cow<'_, Unique>, Refusal> {
        match self.body.as_ref().map(|body| &body.state) {
            Some(State::Unique(unique)) => Ok(Cow::Borrowed(unique)),
            Some(State::Visitors(_, visitors)) if visitors.has_room_for(bucket) => Ok(visitors.seen(bucket)),
            // As many buckets as there can be are newer.
            Some(State::Visitors(..)) => Err(Refusal::OutOfTime),
            _ => Err(Refusal::WrongKind),
        }
    }

    /// How many different items were seen, in the window where there is one, and whether that is exact: what a reader is told.
    pub(super) fn seen_in_all(&mut self) -> Option<(u64, bool)> {
        let from_ms = self.keeping().map_or(0, |keeping| keeping.frame.window(self.now_ms).start);
        let told = |unique: &Unique| (unique.count(), unique.is_exact());
        let known = match &self.body.as_ref()?.state {
            State::Unique(unique) => Some(unique),
            State::Visitors(_, visitors) => visitors.known_since(from_ms),
            State::Sum | State::Window(..) => return None,
        };
        if let Some(known) = known {
            return Some(told(known));
        }
        match &mut Arc::make_mut(self.body.as_mut()?).state {
            State::Visitors(_, visitors) => Some(told(visitors.seen_since(from_ms))),
            _ => None,
        }
    }

    /// The one sketch of a counter that does not know when it saw what: others take no sketches.
    pub(super) fn only_sketch(&mut self) -> Result<Unique, Refusal> {
        self.ensure_sketch()?;
        let sketch = self.sketch(&(0..u64::MAX))?.into_owned();
        match self.body.as_ref().map(|body| &body.state) {
            Some(State::Unique(_)) => Ok(sketch),
            _ => Err(Refusal::WrongKind),
        }
    }

    pub(super) fn observe(&mut self, items: &[u64], at_ms: u64) -> Verdict {
        let bucket = self.bucket(at_ms);
        let sketch = match self.ensure_sketch().and_then(|()| self.sketch(&bucket)) {
            Ok(sketch) => sketch,
            Err(Refusal::OutOfTime) => return self.out_of_time(self.oldest_ms()),
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
            self.happens(match (bucket.start, bucket.end) {
                (start_ms, u64::MAX) => Event::Observe { start_ms, from_ms, hashes },
                (start_ms, end_ms) => Event::ObserveLate { start_ms, end_ms, from_ms, hashes },
            });
        }
        self.seen(seen)
    }

    pub(super) fn join(&mut self, other: &Unique) -> Verdict {
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

    pub(super) fn replace(&mut self, sketch: Unique, expiry: Expiry, condition: Condition) -> Verdict {
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

    /// The reply of something that was shown to a sketch. What it came to is said by `applied`: 1 if a register of the sketch rose (or the counter
    /// is new), 2 more if something new is known: a difference that an outcome can remember.
    pub(super) fn seen(&mut self, seen: Seen) -> Verdict {
        let is_born = self.live.is_none();
        let (count, is_exact) = self.seen_in_all().unwrap_or((0, true));
        let applied = i64::from(seen.is_altered || is_born) + 2 * i64::from(seen.is_new);
        let mut verdict = if applied == 0 {
            let mut reply = Reply::state(self.live);
            // In a window there may be fewer than when something was new.
            reply.cell.value = to_i64(count);
            Verdict { change: Change::Keep, reply }
        } else {
            let (now_ms, sequence) = (self.now_ms, self.sequence);
            born_or_changed(self.live, to_i64(count), Expiry::Keep, &self.ruled.limits, now_ms, sequence)
        };
        verdict.reply.applied = applied;
        verdict.reply.previous = verdict.reply.cell.value.saturating_sub(applied);
        verdict.reply.detail = Some(Arc::new(Detail::Seen { is_exact }));
        verdict
    }
}
