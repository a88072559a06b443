//! How many different items there were: a counter of distinct items.
//!
//! A [`Unique`] has one of three forms, each taken when the one before becomes too large, never the way back:
//!
//! | form | file | at most | what it keeps | its count |
//! |---|---|---|---|---|
//! | exact | `exact` | 2 KiB | the hashes of the items, as they came | exact |
//! | sparse | `sparse` | 3 KiB | HyperLogLog registers, runs of equal ones together | an estimate |
//! | dense | `dense` | 12 KiB | HyperLogLog registers, six bits each | an estimate |
//!
//! The two HyperLogLog forms are those of Redis 7 byte for byte, so that sketches move both ways: the same hash
//! (`hash`), the same layout (`header`), the same way from one byte string to the next as items come, the same
//! estimate to the last digit (`estimate`). That the exact form stands in front of them shows nowhere else: it
//! keeps what is needed to become what Redis would have.

mod dense;
mod estimate;
mod exact;
mod hash;
mod header;
mod run;
mod sparse;

pub use hash::hash;

use dense::Dense;
use exact::Exact;
use hash::Trace;
use header::Body;
use sparse::{Raise, Sparse};

/// How many items are kept exactly. A counter of so many costs 2 KiB, less than the sparse form will, and a look
/// through them takes less time than one through the runs of a sparse form.
pub const EXACT_MAX: usize = 256;
/// The standard error of an estimate: 1.04 / sqrt(16384), from the number of registers.
pub const STANDARD_ERROR: f64 = 1.04 / 128.0;

/// How many registers a sketch has. A trace's register is below it.
const REGISTERS: usize = 1 << hash::REGISTER_BITS;

/// The tags of the stored form.
const STORED_EXACT: u8 = 0;
const STORED_SKETCH: u8 = 1;

/// A counter of distinct items.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unique {
    form: Form,
}

/// The large forms are boxed, so that a counter that is small takes little.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    Exact(Exact),
    Sparse(Box<Sparse>),
    Dense(Box<Dense>),
}

impl Default for Form {
    fn default() -> Form {
        Form::Exact(Exact::default())
    }
}

/// What an item, or another counter, was to a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Whether the counter changes by it, and must be stored again: a register is raised, an item is new to the exact
    /// set, or the counter is not exact any more.
    pub is_new: bool,
    /// Whether a register of the sketch is raised, or would be if the counter were one already: what PFADD
    /// answers 1 to.
    pub is_altered: bool,
}

impl Seen {
    /// Of a sketch: it changes if and only if a register does.
    fn of_sketch(is_altered: bool) -> Seen {
        Seen { is_new: is_altered, is_altered }
    }
}

/// Why bytes are not a HyperLogLog value of Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotASketch {
    /// Redis says WRONGTYPE, but does not look at the zero bytes.
    #[error("not a HyperLogLog value: it must begin with HYLL, an encoding of 0 or 1 and three zero bytes")]
    Header,
    /// Redis says WRONGTYPE.
    #[error("not a HyperLogLog value: with encoding 0 it must have 12304 bytes, and this has {0}")]
    Length(usize),
    /// Redis says INVALIDOBJ.
    #[error("a damaged HyperLogLog value: its runs must cover 16384 registers, no more and no less")]
    Runs,
    /// Redis takes it, and leaves the register out of its estimate.
    #[error("a damaged HyperLogLog value: a register holds more than 51, which no item leads to")]
    Register,
}

impl Unique {
    /// A counter that has seen nothing.
    pub fn new() -> Unique {
        Unique::default()
    }

    /// Takes an item in, by its [`hash`].
    pub fn observe(&mut self, hash: u64) -> Seen {
        if let Form::Exact(exact) = &mut self.form {
            let seen = exact.look(hash);
            if !seen.is_new {
                return seen;
            }
            if exact.len() < EXACT_MAX {
                exact.push(hash);
                return seen;
            }
            self.leave_exact();
            self.raise(Trace::of(hash));
            // New even if no register is raised: the counter was exact and is not any more.
            return seen;
        }
        Seen::of_sketch(self.raise(Trace::of(hash)))
    }

    /// What [`Unique::observe`] would say, without taking the item in.
    pub fn would_see(&self, hash: u64) -> Seen {
        let trace = Trace::of(hash);
        match &self.form {
            Form::Exact(exact) => exact.look(hash),
            Form::Sparse(sparse) => Seen::of_sketch(trace.rank > sparse.rank(trace.register)),
            Form::Dense(dense) => Seen::of_sketch(trace.rank > dense.rank(trace.register)),
        }
    }

    /// How many different items there were: exactly while [`Unique::is_exact`], else the estimate.
    pub fn count(&self) -> u64 {
        match &self.form {
            Form::Exact(exact) => exact.len() as u64,
            _ => self.estimate(),
        }
    }

    /// Whether the count is exact.
    pub fn is_exact(&self) -> bool {
        matches!(self.form, Form::Exact(_))
    }

    /// What PFCOUNT of Redis says of the same items, also while the exact number is known. Like PFCOUNT it
    /// believes the count that a value of Redis brings along.
    pub fn estimate(&self) -> u64 {
        let (header, histogram) = match &self.form {
            Form::Exact(exact) => return exact.histogram().estimate(),
            Form::Sparse(sparse) => (&sparse.header, &sparse.histogram),
            Form::Dense(dense) => (&dense.header, &dense.histogram),
        };
        header.count().unwrap_or_else(|| histogram.estimate())
    }

    /// Takes in all that another counter has seen. The counter stays exact while both are and all items together
    /// are few; registers come out the same in whatever order counters are merged.
    pub fn merge(&mut self, other: &Unique) -> Seen {
        match (&mut self.form, &other.form) {
            (Form::Exact(mine), Form::Exact(theirs)) => {
                let (united, is_altered) = mine.union(theirs);
                if united.len() <= EXACT_MAX {
                    let is_new = united.len() > mine.len();
                    *mine = united;
                    return Seen { is_new, is_altered };
                }
                self.leave_exact();
                self.merge_sketch(other);
                Seen { is_new: true, is_altered }
            }
            (Form::Exact(_), _) if other.has_no_items() => Seen::default(),
            (Form::Exact(_), _) => {
                self.leave_exact();
                Seen { is_new: true, is_altered: self.merge_sketch(other) }
            }
            _ => Seen::of_sketch(self.merge_sketch(other)),
        }
    }

    /// Reads the whole value that GET of a HyperLogLog key of Redis gives.
    pub fn from_redis(bytes: &[u8]) -> Result<Unique, NotASketch> {
        let form = match header::split(bytes)? {
            (header, Body::Sparse(runs)) => Form::Sparse(Box::new(Sparse::read(header, runs)?)),
            (header, Body::Dense(registers)) => Form::Dense(Box::new(Dense::read(header, registers)?)),
        };
        Ok(Unique { form })
    }

    /// What GET gives in Redis after the same changes, apart from the count that Redis keeps in it when it was
    /// asked for one: what came by [`Unique::from_redis`] has it as it came until a register changes.
    pub fn to_redis(&self) -> Vec<u8> {
        match &self.form {
            Form::Exact(exact) => sketch_of(exact).to_redis(),
            Form::Sparse(sparse) => header::join(&sparse.header, Body::Sparse(sparse.runs())),
            Form::Dense(dense) => header::join(&dense.header, Body::Dense(dense.registers())),
        }
    }

    /// How much memory the counter takes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Unique>()
            + match &self.form {
                Form::Exact(exact) => exact.heap_bytes(),
                Form::Sparse(sparse) => size_of::<Sparse>() + sparse.heap_bytes(),
                Form::Dense(_) => size_of::<Dense>(),
            }
    }

    /// Writes the stored form: a tag, and then the hashes as they came, eight bytes each with the lowest first, or
    /// the value of Redis.
    pub fn put(&self, out: &mut Vec<u8>) {
        match &self.form {
            Form::Exact(exact) => {
                out.push(STORED_EXACT);
                out.extend(exact.hashes().iter().flat_map(|hash| hash.to_le_bytes()));
            }
            _ => {
                out.push(STORED_SKETCH);
                out.extend(self.to_redis());
            }
        }
    }

    /// Reads what [`Unique::put`] wrote, all of it; `None` is damage.
    pub fn read(bytes: &[u8]) -> Option<Unique> {
        match bytes.split_first()? {
            (&STORED_EXACT, hashes) => {
                let (hashes, []) = hashes.as_chunks::<8>() else { return None };
                let exact = Exact::read(hashes.iter().map(|hash| u64::from_le_bytes(*hash)))?;
                Some(Unique { form: Form::Exact(exact) })
            }
            (&STORED_SKETCH, value) => Unique::from_redis(value).ok(),
            _ => None,
        }
    }

    /// From the exact form to the one that Redis has after the same items.
    fn leave_exact(&mut self) {
        if let Form::Exact(exact) = &self.form {
            *self = sketch_of(exact);
        }
    }

    /// Raises a register of a sketch to a rank, if it is below. An exact counter cannot: it leaves that form first.
    fn raise(&mut self, trace: Trace) -> bool {
        match &mut self.form {
            Form::Exact(_) => false,
            Form::Sparse(sparse) => match sparse.raise(trace) {
                Raise::Kept => false,
                Raise::Raised => true,
                Raise::Full => {
                    let mut dense = Box::new(Dense::of(sparse));
                    dense.raise(trace);
                    self.form = Form::Dense(dense);
                    true
                }
            },
            Form::Dense(dense) => dense.raise(trace),
        }
    }

    /// PFMERGE of another into a sketch: register by register, and dense if one of the two is. Unlike there a sketch
    /// that already has everything stays as it is.
    fn merge_sketch(&mut self, other: &Unique) -> bool {
        match (&mut self.form, &other.form) {
            (_, Form::Exact(theirs)) => {
                theirs.traces().into_iter().fold(false, |altered, trace| self.raise(trace) | altered)
            }
            (_, Form::Sparse(theirs)) => {
                theirs.traces().fold(false, |altered, trace| self.raise(trace) | altered)
            }
            (Form::Dense(mine), Form::Dense(theirs)) => mine.merge(theirs),
            (Form::Sparse(mine), Form::Dense(theirs)) => {
                let mut dense = Box::new(Dense::of(mine));
                let is_altered = dense.merge(theirs);
                if is_altered {
                    self.form = Form::Dense(dense);
                }
                is_altered
            }
            (Form::Exact(_), Form::Dense(_)) => false,
        }
    }

    fn has_no_items(&self) -> bool {
        match &self.form {
            Form::Exact(exact) => exact.len() == 0,
            Form::Sparse(sparse) => sparse.histogram.is_of_nothing(),
            Form::Dense(dense) => dense.histogram.is_of_nothing(),
        }
    }
}

/// What Redis has after these items, in this order.
fn sketch_of(exact: &Exact) -> Unique {
    let mut sketch = Unique { form: Form::Sparse(Box::new(Sparse::new())) };
    for hash in exact.hashes() {
        sketch.raise(Trace::of(*hash));
    }
    sketch
}
