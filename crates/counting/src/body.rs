//! What a counter may have beyond its five numbers: a sketch of what it has seen, sums in buckets of time, amounts set aside.
//!
//! Most counters have no body. One that has got it by what was asked of it (its first `observe` makes it a counter of uniques) or by
//! its policy, and keeps it for the rest of its life. A body changes by [`Event`]s alone: the rules say them, the log keeps
//! them, and applying them again comes to the same, so nothing is decided twice.
//!
//! ```text
//! body   := state holds series [rollups]
//! state  := 0 | 1 sketch | 2 frame keep_ms:v buckets | 3 frame keep_ms:v count:v (start_ms:v sketch)*
//! frame  := 0 span_ms:v bucket_ms:v | 1 span_ms:v | 2 unit:1 anchor:1 zone
//! zone   := name count:v (from_ms:z offset_s:z)*
//! event  := 0 shape | 1 start_ms:v from_ms:v count:v hash:8* | 2 sketch | 3 sketch | 4 start_ms:v from_ms:v delta:z | 5 keep_ms:v
//!         | 6 number:v amount:z expires_at_ms:v | 7 number:v | 8
//!         | 9 minutes_ms:v hours_ms:v days_ms:v before:z changed_at_ms:v | 10
//!         | 11 start_ms:v end_ms:v from_ms:v delta:z | 12 length:v body
//!         | 13 value:z declared | 14 | 15 delta:z values
//!         | 16 frame latest_ms:v | 17 start_ms:v end_ms:v from_ms:v count:v hash:8* | 18 values
//!         | 19 end_ms:v sum:z
//! shape  := 0 | 1 | 2 frame keep_ms:v | 3 frame keep_ms:v
//! sketch, buckets, holds, series, name, values := length:v bytes; those of buckets end with what was dropped, where event 19 came before
//! rollups, declared as in [`crate::rollup`]
//! ```

use crate::bytes::{Bytes, put_bytes, put_varint, put_zigzag};
use crate::hold::{Hold, Holds};
use crate::rollup::{Declared, Rollups};
use crate::series::{Retention, Series};
use crate::unique::Unique;
use crate::visitors::Visitors;
use crate::window::{Buckets, Frame, Recut, Unit, Zone};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Sums of what is added.
    Sum,
    /// Different items.
    Unique,
    /// Sums by time.
    Window,
}

impl Keeping {
    /// What a counter keeps of it.
    pub fn to_be_kept(&self) -> Keeping {
        Keeping { frame: with_zone(&self.frame, Zone::name_only), keep_ms: self.keep_ms }
    }

    /// How a counter goes on that has kept this, and is left without a policy.
    pub fn alone(&self) -> Keeping {
        Keeping { frame: with_zone(&self.frame, |_| Zone::utc()), keep_ms: self.keep_ms }
    }

    /// Before what nothing is kept, at `now_ms`: never something that counts.
    pub fn from_ms(&self, now_ms: u64) -> u64 {
        let kept_ms = self.frame.bucket(now_ms.saturating_sub(self.keep_ms)).start;
        kept_ms.min(self.frame.window(now_ms).start)
    }
}

fn with_zone(frame: &Frame, other: impl FnOnce(&Zone) -> Zone) -> Frame {
    match frame {
        Frame::Calendar { unit, anchor, zone } => {
            Frame::Calendar { unit: *unit, anchor: *anchor, zone: other(zone) }
        }
        frame => frame.clone(),
    }
}

impl Kind {
    /// Every kind with the word for it, in the order of the numbers they are stored by.
    pub const ALL: [(Kind, &'static str); 3] =
        [(Kind::Sum, "sum"), (Kind::Unique, "unique"), (Kind::Window, "window")];

    /// The word for it.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

/// How a counter of a kind is kept, before anything was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A sum that has more than its number: amounts set aside.
    Sum,
    /// A sketch.
    Unique,
    /// Sums in buckets.
    Window(Keeping),
    /// A sketch for each bucket.
    Visitors(Keeping),
}

/// How time is cut, and how long the pieces are kept. Where a policy says it, the policy is asked each time, and what the counter keeps of it
/// is how its buckets are cut, and what it would go on with if the policy were gone: the name of a time zone, and not its offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keeping {
    /// How it is cut.
    pub frame: Frame,
    /// How long what is past stays readable.
    pub keep_ms: u64,
}

/// What is counted so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing but the cell's value.
    Sum,
    /// What was seen.
    Unique(Unique),
    /// What was added when.
    Window(Keeping, Buckets),
    /// What was seen when.
    Visitors(Keeping, Visitors),
}

/// See the head of this file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// What is counted.
    pub state: State,
    /// What is set aside.
    pub holds: Holds,
    /// What the value was, where a policy wants it kept.
    pub series: Series,
    /// The value by dimensions, where a policy declares some.
    pub rollups: Option<Rollups>,
}

/// One change of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The counter has a body from here on.
    Become(Shape),
    /// These were seen, in this bucket where there are buckets.
    Observe {
        /// Where the bucket begins; 0 without buckets.
        start_ms: u64,
        /// What lies before this is forgotten.
        from_ms: u64,
        /// What was seen.
        hashes: Vec<u64>,
    },
    /// All that this one has seen was seen.
    Join(Unique),
    /// This is what was seen.
    Replace(Unique),
    /// So much was added in this bucket.
    Count {
        /// Where the bucket begins.
        start_ms: u64,
        /// What lies before this is forgotten.
        from_ms: u64,
        /// How much.
        delta: i64,
    },
    /// The same in a bucket that is past.
    CountLate {
        /// Where the bucket begins.
        start_ms: u64,
        /// Where it ends.
        end_ms: u64,
        /// What lies before this is forgotten.
        from_ms: u64,
        /// How much.
        delta: i64,
    },
    /// Items were seen in a bucket that is past.
    ObserveLate {
        /// Where the bucket begins.
        start_ms: u64,
        /// Where it ends.
        end_ms: u64,
        /// What lies before this is forgotten.
        from_ms: u64,
        /// What was seen.
        hashes: Vec<u64>,
    },
    /// Time is cut so from here on, and what was counted goes into the buckets of that cut: see [`Recut`].
    Recut {
        /// How.
        frame: Frame,
        /// Nothing was counted after this.
        latest_ms: u64,
    },
    /// From here on it is noted what was counted in buckets that are dropped. It comes behind the birth of a counter; those that were born before
    /// there was such an event get it with their next change.
    Remember {
        /// What was dropped before happened before this.
        end_ms: u64,
        /// How much it was.
        sum: i64,
    },
    /// The past stays readable for longer.
    Keep(u64),
    /// So much is set aside.
    Reserve {
        /// The hold's number.
        number: u64,
        /// How much, until when.
        hold: Hold,
    },
    /// A hold is no longer.
    End(u64),
    /// Nothing is counted; what is set aside stays so.
    Empty,
    /// The value changes for the first time in this minute.
    Note {
        /// What is kept of the past.
        retention: Retention,
        /// What the value was.
        before: i64,
        /// Since when.
        changed_at_ms: u64,
    },
    /// What the value was is no longer kept.
    ForgetHistory,
    /// This is the body from here on.
    Restore(Box<Body>),
    /// From here on the value is rolled up so.
    RollUp {
        /// How.
        declared: Declared,
        /// What was counted before.
        value: i64,
    },
    /// What is older than these values is no longer rolled up by time.
    FoldRollups {
        /// One for each declared name; empty where all is kept.
        kept_from: Vec<u8>,
    },
    /// It no longer is.
    ForgetRollups,
    /// So much was added under these values.
    Tally {
        /// How much.
        delta: i64,
        /// One for each declared name, see [`Declared::values`].
        values: Vec<u8>,
    },
}

impl Body {
    /// One of this shape, with nothing counted.
    pub fn new(shape: Shape) -> Body {
        let state = match shape {
            Shape::Sum => State::Sum,
            Shape::Unique => State::Unique(Unique::new()),
            Shape::Window(keeping) => State::Window(keeping, Buckets::default()),
            Shape::Visitors(keeping) => State::Visitors(keeping, Visitors::default()),
        };
        Body { state, holds: Holds::default(), series: Series::default(), rollups: None }
    }

    /// What is counted.
    pub fn kind(&self) -> Kind {
        match self.state {
            State::Sum => Kind::Sum,
            State::Unique(_) | State::Visitors(..) => Kind::Unique,
            State::Window(..) => Kind::Window,
        }
    }

    /// What the body takes in memory, roughly.
    pub fn memory_bytes(&self) -> usize {
        let state = match &self.state {
            State::Sum => 0,
            State::Unique(unique) => unique.memory_bytes(),
            State::Window(_, buckets) => buckets.memory_bytes(),
            State::Visitors(_, visitors) => visitors.memory_bytes(),
        };
        let rollups = self.rollups.as_ref().map_or(0, Rollups::memory_bytes);
        size_of::<Body>() + state + self.holds.memory_bytes() + self.series.memory_bytes() + rollups
    }

    /// Carries out an event that happened at `time_ms`. `None` if it cannot have happened to this body.
    pub fn apply(&mut self, event: Event, time_ms: u64) -> Option<()> {
        match (event, &mut self.state) {
            (Event::Become(shape), state) => *state = Body::new(shape).state,
            (Event::Restore(body), _) => *self = *body,
            (Event::Note { retention, before, changed_at_ms }, _) => {
                self.series.note(&retention, before, changed_at_ms, time_ms);
            }
            (Event::ForgetHistory, _) => self.series = Series::default(),
            (Event::RollUp { declared, value }, _) => {
                self.rollups = Some(Rollups::declare(self.rollups.take(), declared, value));
            }
            (Event::FoldRollups { kept_from }, _) => self.rollups.as_mut()?.fold(&kept_from, time_ms)?,
            (Event::ForgetRollups, _) => self.rollups = None,
            (Event::Tally { delta, values }, _) => self.rollups.as_mut()?.add(&values, delta)?,
            (Event::Observe { hashes, .. }, State::Unique(unique)) => {
                for hash in hashes {
                    unique.observe(hash);
                }
            }
            (Event::Observe { start_ms, from_ms, hashes }, State::Visitors(_, visitors)) => {
                visitors.observe(start_ms..u64::MAX, from_ms, &hashes);
            }
            (Event::ObserveLate { start_ms, end_ms, from_ms, hashes }, State::Visitors(_, visitors)) => {
                visitors.observe(start_ms..end_ms, from_ms, &hashes);
            }
            (Event::Recut { frame, latest_ms }, State::Window(keeping, buckets)) => {
                *buckets = buckets.recut(&Recut { from: &keeping.frame, to: &frame, latest_ms });
                keeping.frame = with_zone(&frame, Zone::name_only);
            }
            (Event::Recut { frame, latest_ms }, State::Visitors(keeping, visitors)) => {
                *visitors = visitors.recut(&Recut { from: &keeping.frame, to: &frame, latest_ms });
                keeping.frame = with_zone(&frame, Zone::name_only);
            }
            (Event::Join(other), State::Unique(unique)) => {
                unique.merge(&other);
            }
            (Event::Replace(other), State::Unique(unique)) => *unique = other,
            (Event::Count { start_ms, from_ms, delta }, State::Window(keeping, buckets)) => {
                buckets.gather(start_ms..u64::MAX, delta).ok()?;
                buckets.forget_before(from_ms, &keeping.frame);
            }
            (Event::CountLate { start_ms, end_ms, from_ms, delta }, State::Window(keeping, buckets)) => {
                buckets.forget_before(from_ms, &keeping.frame);
                buckets.gather(start_ms..end_ms, delta).ok()?;
            }
            (Event::Remember { end_ms, sum }, State::Window(_, buckets)) => buckets.remember(end_ms, sum),
            (Event::Keep(keep_ms), State::Window(keeping, _) | State::Visitors(keeping, _)) => {
                keeping.keep_ms = keep_ms
            }
            (Event::Reserve { number, hold }, _) => {
                self.holds.forget_expired(time_ms);
                if !self.holds.reserve(number, hold) {
                    return None;
                }
            }
            (Event::End(number), _) => {
                self.holds.end(number, time_ms)?;
                self.holds.forget_expired(time_ms);
            }
            (Event::Empty, state) => match state {
                State::Sum => {}
                State::Unique(unique) => *unique = Unique::new(),
                State::Window(_, buckets) => buckets.empty(),
                State::Visitors(_, visitors) => *visitors = Visitors::default(),
            },
            _ => return None,
        }
        Some(())
    }

    /// Carries out the events of one change, or says that they are not such.
    pub fn apply_all(body: &mut Option<Body>, events: &[u8], time_ms: u64) -> Option<()> {
        let mut bytes = Bytes::new(events);
        while !bytes.is_empty() {
            let event = Event::read(&mut bytes)?;
            body.get_or_insert_with(|| Body::new(Shape::Sum)).apply(event, time_ms)?;
        }
        Some(())
    }

    /// Appends it, as it is stored.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.put_without_rollups(out);
        if let Some(rollups) = &self.rollups {
            rollups.put(out);
        }
    }

    /// The same without what only those need who ask for it.
    pub fn put_without_rollups(&self, out: &mut Vec<u8>) {
        match &self.state {
            State::Sum => out.push(0),
            State::Unique(unique) => {
                out.push(1);
                put_sketch(out, unique);
            }
            State::Window(keeping, buckets) => {
                out.push(2);
                put_keeping(out, keeping);
                let mut bytes = Vec::new();
                buckets.put(&mut bytes);
                put_bytes(out, &bytes);
            }
            State::Visitors(keeping, visitors) => {
                out.push(3);
                put_keeping(out, keeping);
                put_varint(out, visitors.iter().len() as u64);
                for (start_ms, unique) in visitors.iter() {
                    put_varint(out, *start_ms);
                    put_sketch(out, unique);
                }
            }
        }
        let mut bytes = Vec::new();
        self.holds.put(&mut bytes);
        put_bytes(out, &bytes);
        bytes.clear();
        self.series.put(&mut bytes);
        put_bytes(out, &bytes);
    }

    /// What is counted by the body that was stored so.
    pub fn kind_of(bytes: &[u8]) -> Option<Kind> {
        match bytes.first()? {
            0 => Some(Kind::Sum),
            1 | 3 => Some(Kind::Unique),
            2 => Some(Kind::Window),
            _ => None,
        }
    }

    /// From what was stored: all of the bytes.
    pub fn read(bytes: &[u8]) -> Option<Body> {
        let mut bytes = Bytes::new(bytes);
        let state = match bytes.byte()? {
            0 => State::Sum,
            1 => State::Unique(Unique::read(bytes.bytes()?)?),
            2 => State::Window(read_keeping(&mut bytes)?, Buckets::read(bytes.bytes()?)?),
            3 => {
                let keeping = read_keeping(&mut bytes)?;
                let mut sketches = Vec::new();
                for _ in 0..bytes.varint()? {
                    sketches.push((bytes.varint()?, Unique::read(bytes.bytes()?)?));
                }
                State::Visitors(keeping, Visitors::new(sketches)?)
            }
            _ => return None,
        };
        let holds = Holds::read(bytes.bytes()?)?;
        let series = Series::read(bytes.bytes()?)?;
        let rollups = if bytes.is_empty() { None } else { Some(Rollups::read(&mut bytes)?) };
        Some(Body { state, holds, series, rollups })
    }
}

impl Event {
    /// Appends it, as the log keeps it.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Event::Become(shape) => {
                out.push(0);
                match shape {
                    Shape::Sum => out.push(0),
                    Shape::Unique => out.push(1),
                    Shape::Window(keeping) => {
                        out.push(2);
                        put_keeping(out, keeping);
                    }
                    Shape::Visitors(keeping) => {
                        out.push(3);
                        put_keeping(out, keeping);
                    }
                }
            }
            Event::Observe { start_ms, from_ms, hashes } => {
                out.push(1);
                put_varint(out, *start_ms);
                put_varint(out, *from_ms);
                put_hashes(out, hashes);
            }
            Event::Join(unique) => {
                out.push(2);
                put_sketch(out, unique);
            }
            Event::Replace(unique) => {
                out.push(3);
                put_sketch(out, unique);
            }
            Event::Count { start_ms, from_ms, delta } => {
                out.push(4);
                put_varint(out, *start_ms);
                put_varint(out, *from_ms);
                put_zigzag(out, *delta);
            }
            Event::Keep(keep_ms) => {
                out.push(5);
                put_varint(out, *keep_ms);
            }
            Event::Remember { end_ms, sum } => {
                out.push(19);
                put_varint(out, *end_ms);
                put_zigzag(out, *sum);
            }
            Event::Reserve { number, hold } => {
                out.push(6);
                put_varint(out, *number);
                put_zigzag(out, hold.amount);
                put_varint(out, hold.expires_at_ms);
            }
            Event::End(number) => {
                out.push(7);
                put_varint(out, *number);
            }
            Event::Empty => out.push(8),
            Event::Note { retention, before, changed_at_ms } => {
                out.push(9);
                put_retention(out, retention);
                put_zigzag(out, *before);
                put_varint(out, *changed_at_ms);
            }
            Event::ForgetHistory => out.push(10),
            Event::CountLate { start_ms, end_ms, from_ms, delta } => {
                out.push(11);
                put_varint(out, *start_ms);
                put_varint(out, *end_ms);
                put_varint(out, *from_ms);
                put_zigzag(out, *delta);
            }
            Event::Restore(body) => {
                out.push(12);
                let mut bytes = Vec::new();
                body.put(&mut bytes);
                put_bytes(out, &bytes);
            }
            Event::RollUp { declared, value } => {
                out.push(13);
                put_zigzag(out, *value);
                declared.put(out);
            }
            Event::ForgetRollups => out.push(14),
            Event::Tally { delta, values } => {
                out.push(15);
                put_zigzag(out, *delta);
                put_bytes(out, values);
            }
            Event::FoldRollups { kept_from } => {
                out.push(18);
                put_bytes(out, kept_from);
            }
            Event::Recut { frame, latest_ms } => {
                out.push(16);
                put_frame(out, frame);
                put_varint(out, *latest_ms);
            }
            Event::ObserveLate { start_ms, end_ms, from_ms, hashes } => {
                out.push(17);
                put_varint(out, *start_ms);
                put_varint(out, *end_ms);
                put_varint(out, *from_ms);
                put_hashes(out, hashes);
            }
        }
    }

    fn read(bytes: &mut Bytes<'_>) -> Option<Event> {
        Some(match bytes.byte()? {
            0 => Event::Become(match bytes.byte()? {
                0 => Shape::Sum,
                1 => Shape::Unique,
                2 => Shape::Window(read_keeping(bytes)?),
                3 => Shape::Visitors(read_keeping(bytes)?),
                _ => return None,
            }),
            1 => {
                let (start_ms, from_ms) = (bytes.varint()?, bytes.varint()?);
                Event::Observe { start_ms, from_ms, hashes: read_counted_hashes(bytes)? }
            }
            2 => Event::Join(Unique::read(bytes.bytes()?)?),
            3 => Event::Replace(Unique::read(bytes.bytes()?)?),
            4 => Event::Count { start_ms: bytes.varint()?, from_ms: bytes.varint()?, delta: bytes.zigzag()? },
            5 => Event::Keep(bytes.varint()?),
            6 => Event::Reserve {
                number: bytes.varint()?,
                hold: Hold { amount: bytes.zigzag()?, expires_at_ms: bytes.varint()? },
            },
            7 => Event::End(bytes.varint()?),
            8 => Event::Empty,
            9 => Event::Note {
                retention: read_retention(bytes)?,
                before: bytes.zigzag()?,
                changed_at_ms: bytes.varint()?,
            },
            10 => Event::ForgetHistory,
            11 => Event::CountLate {
                start_ms: bytes.varint()?,
                end_ms: bytes.varint()?,
                from_ms: bytes.varint()?,
                delta: bytes.zigzag()?,
            },
            12 => Event::Restore(Box::new(Body::read(bytes.bytes()?)?)),
            13 => Event::RollUp { value: bytes.zigzag()?, declared: Declared::read(bytes)? },
            14 => Event::ForgetRollups,
            15 => Event::Tally { delta: bytes.zigzag()?, values: bytes.bytes()?.to_vec() },
            18 => Event::FoldRollups { kept_from: bytes.bytes()?.to_vec() },
            16 => Event::Recut { frame: read_frame(bytes)?, latest_ms: bytes.varint()? },
            17 => Event::ObserveLate {
                start_ms: bytes.varint()?,
                end_ms: bytes.varint()?,
                from_ms: bytes.varint()?,
                hashes: read_counted_hashes(bytes)?,
            },
            19 => Event::Remember { end_ms: bytes.varint()?, sum: bytes.zigzag()? },
            _ => return None,
        })
    }
}

fn put_hashes(out: &mut Vec<u8>, hashes: &[u64]) {
    put_varint(out, hashes.len() as u64);
    hashes.iter().for_each(|hash| out.extend_from_slice(&hash.to_le_bytes()));
}

fn read_counted_hashes(bytes: &mut Bytes<'_>) -> Option<Vec<u64>> {
    let count = usize::try_from(bytes.varint()?).ok()?;
    Some(read_hashes(bytes.take(count.checked_mul(8)?)?))
}

/// Hashes as they travel: eight bytes each.
pub fn read_hashes(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|hash| u64::from_le_bytes(*hash)).collect()
}

fn put_sketch(out: &mut Vec<u8>, unique: &Unique) {
    let mut bytes = Vec::new();
    unique.put(&mut bytes);
    put_bytes(out, &bytes);
}

fn put_keeping(out: &mut Vec<u8>, keeping: &Keeping) {
    put_frame(out, &keeping.frame);
    put_varint(out, keeping.keep_ms);
}

fn read_keeping(bytes: &mut Bytes<'_>) -> Option<Keeping> {
    Some(Keeping { frame: read_frame(bytes)?, keep_ms: bytes.varint()? })
}

/// Appends how long the past is kept.
pub fn put_retention(out: &mut Vec<u8>, retention: &Retention) {
    for ms in [retention.minutes_ms, retention.hours_ms, retention.days_ms] {
        put_varint(out, ms);
    }
}

/// From what [`put_retention`] appended.
pub fn read_retention(bytes: &mut Bytes<'_>) -> Option<Retention> {
    Some(Retention { minutes_ms: bytes.varint()?, hours_ms: bytes.varint()?, days_ms: bytes.varint()? })
}

/// Appends how time is cut.
pub fn put_frame(out: &mut Vec<u8>, frame: &Frame) {
    match frame {
        Frame::Sliding { span_ms, bucket_ms } => {
            out.push(0);
            put_varint(out, *span_ms);
            put_varint(out, *bucket_ms);
        }
        Frame::Fixed { span_ms } => {
            out.push(1);
            put_varint(out, *span_ms);
        }
        Frame::Calendar { unit, anchor, zone } => {
            out.push(2);
            out.push(match unit {
                Unit::Day => 0,
                Unit::Week => 1,
                Unit::Month => 2,
            });
            out.push(*anchor);
            put_bytes(out, zone.name().as_bytes());
            put_varint(out, zone.offsets().len() as u64);
            for (from_ms, offset_s) in zone.offsets() {
                put_zigzag(out, *from_ms);
                put_zigzag(out, i64::from(*offset_s));
            }
        }
    }
}

/// From what [`put_frame`] appended.
pub fn read_frame(bytes: &mut Bytes<'_>) -> Option<Frame> {
    let frame = match bytes.byte()? {
        0 => Frame::Sliding { span_ms: bytes.varint()?, bucket_ms: bytes.varint()? },
        1 => Frame::Fixed { span_ms: bytes.varint()? },
        2 => {
            let unit = match bytes.byte()? {
                0 => Unit::Day,
                1 => Unit::Week,
                2 => Unit::Month,
                _ => return None,
            };
            let anchor = bytes.byte()?;
            let name = std::str::from_utf8(bytes.bytes()?).ok()?;
            let mut offsets = Vec::new();
            for _ in 0..bytes.varint()? {
                offsets.push((bytes.zigzag()?, i32::try_from(bytes.zigzag()?).ok()?));
            }
            Frame::Calendar { unit, anchor, zone: Zone::new(name, offsets)? }
        }
        _ => return None,
    };
    frame.problem().is_none().then_some(frame)
}
