//! The sparse form: runs of neighbouring registers that hold the same (see `run`).
//!
//! The same registers can be written in several ways. Which one it is depends on the order in which they were
//! raised, and comes out here as it does in Redis: a run is cut where a register is raised, and runs around the cut
//! are joined, but only those that five steps from the run before it lead to.
//!
//! Redis looks for a register from the first run on. Here *guides* know the run in which every 256th register lies,
//! and a look begins there.

use super::estimate::Histogram;
use super::hash::Trace;
use super::header::{HEADER_BYTES, Header};
use super::run::{Cut, RANK_MAX, RANKS_MAX, Run, Start, ranks};
use super::{NotASketch, REGISTERS};

/// How long a value may become in this form, with its header: what Redis has unless told otherwise.
const VALUE_BYTES_MAX: usize = 3000;
/// How many steps are made to join runs: one for each that a cut can concern, which is the one before, three from
/// one, and the one behind.
const JOIN_STEPS: usize = 5;
/// How many registers one guide is for: with the longest runs' bytes a look passes some 20 runs, and the guides of a
/// sketch take 256 bytes.
const GUIDE_REGISTERS: usize = 256;
/// By how much the room for runs grows. Doubling would leave half of it empty for good.
const ROOM_BYTES: usize = 256;

/// A sketch in sparse form.
#[derive(Clone)]
pub(super) struct Sparse {
    pub(super) header: Header,
    /// Of the registers.
    pub(super) histogram: Histogram,
    /// Valid: they cover all registers and none twice.
    runs: Vec<u8>,
    /// For each 256 registers where the run begins in which the first of them lies.
    guides: [Start; REGISTERS / GUIDE_REGISTERS],
}

/// What became of raising a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Raise {
    /// It was as high already.
    Kept,
    Raised,
    /// It was not, because this form has no room for it: the sketch must become dense.
    Full,
}

impl PartialEq for Sparse {
    /// All else follows from these.
    fn eq(&self, other: &Sparse) -> bool {
        self.header == other.header && self.runs == other.runs
    }
}

impl Eq for Sparse {}

impl std::fmt::Debug for Sparse {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Sparse")
            .field("header", &self.header)
            .field("runs", &self.runs)
            .finish_non_exhaustive()
    }
}

impl Sparse {
    /// All registers hold 0.
    pub(super) fn new() -> Sparse {
        let mut whole = Cut::default();
        whole.push_run(REGISTERS, 0);
        Sparse {
            header: Header::new(),
            histogram: Histogram::new(),
            runs: whole.as_slice().to_vec(),
            guides: [Start::default(); REGISTERS / GUIDE_REGISTERS],
        }
    }

    pub(super) fn read(header: Header, bytes: &[u8]) -> Result<Sparse, NotASketch> {
        let (mut at, mut register) = (0, 0);
        let mut histogram = Histogram::new();
        while at < bytes.len() {
            let run = Run::read(bytes, at, register).ok_or(NotASketch::Runs)?;
            if run.end() > REGISTERS {
                return Err(NotASketch::Runs);
            }
            histogram.moved(run.length as u16, 0, run.rank);
            (at, register) = (at + run.width, run.end());
        }
        if register != REGISTERS {
            return Err(NotASketch::Runs);
        }
        let guides = [Start::default(); REGISTERS / GUIDE_REGISTERS];
        let mut sparse = Sparse { header, histogram, runs: bytes.to_vec(), guides };
        sparse.guide(Start::default(), REGISTERS, 0);
        Ok(sparse)
    }

    pub(super) fn runs(&self) -> &[u8] {
        &self.runs
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.runs.capacity()
    }

    /// What a register holds.
    pub(super) fn rank(&self, register: u16) -> u8 {
        self.find(usize::from(register)).rank
    }

    /// The registers that do not hold 0, the lowest first.
    pub(super) fn traces(&self) -> impl Iterator<Item = Trace> + '_ {
        let first = self.run(Start::default());
        std::iter::successors(Some(first), |run| self.next(run)).filter(|run| run.rank > 0).flat_map(|run| {
            (run.first..run.end()).map(move |register| Trace { register: register as u16, rank: run.rank })
        })
    }

    /// Raises a register to a rank, if it is below.
    pub(super) fn raise(&mut self, trace: Trace) -> Raise {
        let register = usize::from(trace.register);
        let run = self.find(register);
        if run.rank >= trace.rank {
            return Raise::Kept;
        }
        if trace.rank > RANK_MAX {
            return Raise::Full;
        }
        let mut cut = Cut::default();
        cut.push_run(register - run.first, run.rank);
        cut.push_run(1, trace.rank);
        cut.push_run(run.end() - register - 1, run.rank);
        let cut = cut.as_slice();
        let length_before = self.runs.len();
        if cut.len() > run.width && HEADER_BYTES + length_before + cut.len() - run.width > VALUE_BYTES_MAX {
            return Raise::Full;
        }

        let start = self.before(&run);
        self.replace(&run, cut);
        let until = self.join(start);
        self.guide(start, until, self.runs.len() as isize - length_before as isize);
        self.histogram.moved(1, run.rank, trace.rank);
        self.header.mark_stale();
        Raise::Raised
    }

    /// The run in which a register lies.
    fn find(&self, register: usize) -> Run {
        let mut run = self.run(self.guides[register / GUIDE_REGISTERS]);
        while run.end() <= register {
            match self.next(&run) {
                Some(next) => run = next,
                None => break,
            }
        }
        run
    }

    /// Where the run before this one begins, or this one if it is the first.
    fn before(&self, run: &Run) -> Start {
        let mut guide = run.first / GUIDE_REGISTERS;
        while guide > 0 && usize::from(self.guides[guide].at) >= run.at {
            guide -= 1;
        }
        let mut before = self.run(self.guides[guide]);
        while before.at + before.width < run.at {
            match self.next(&before) {
                Some(next) => before = next,
                None => break,
            }
        }
        before.start()
    }

    /// Puts other bytes in the place of a run.
    fn replace(&mut self, run: &Run, bytes: &[u8]) {
        let length_before = self.runs.len();
        let length = length_before + bytes.len() - run.width;
        if length > self.runs.capacity() {
            self.runs.reserve_exact(length - length_before + ROOM_BYTES);
        }
        self.runs.resize(length.max(length_before), 0);
        self.runs.copy_within(run.at + run.width..length_before, run.at + bytes.len());
        self.runs.truncate(length);
        self.runs[run.at..run.at + bytes.len()].copy_from_slice(bytes);
    }

    /// Joins runs that hold the same, in a few steps from a place on. Gives the register behind all it has touched.
    fn join(&mut self, start: Start) -> usize {
        let mut run = self.run(start);
        for _ in 0..JOIN_STEPS {
            let Some(next) = self.next(&run) else { break };
            let length = run.length + next.length;
            if run.rank > 0 && run.rank == next.rank && length <= RANKS_MAX {
                self.runs.remove(run.at);
                self.runs[run.at] = ranks(length, run.rank);
                run.length = length;
            } else {
                run = next;
            }
        }
        run.end()
    }

    /// Sets the guides right after runs have changed between a start and a register. What lies behind has moved by
    /// so many bytes.
    fn guide(&mut self, start: Start, until: usize, moved: isize) {
        for guide in &mut self.guides {
            if usize::from(guide.register) >= until {
                guide.at = guide.at.wrapping_add_signed(moved as i16);
            }
        }
        let mut run = self.run(start);
        let mut guide = run.first.div_ceil(GUIDE_REGISTERS);
        loop {
            while guide < self.guides.len() && guide * GUIDE_REGISTERS < run.end() {
                self.guides[guide] = run.start();
                guide += 1;
            }
            match self.next(&run) {
                Some(next) if next.first < until => run = next,
                _ => return,
            }
        }
    }

    fn run(&self, start: Start) -> Run {
        let (at, first) = (usize::from(start.at), usize::from(start.register));
        // The runs are valid and starts point at them, so there is one.
        Run::read(&self.runs, at, first).unwrap_or(Run {
            at,
            first,
            length: REGISTERS - first,
            rank: 0,
            width: 1,
        })
    }

    fn next(&self, run: &Run) -> Option<Run> {
        Run::read(&self.runs, run.at + run.width, run.end())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Header, Raise, Sparse, Trace, VALUE_BYTES_MAX};
    use crate::unique::NotASketch;

    /// Registers that are raised and to what, and the runs that Redis has after it.
    type Case = (&'static [(u16, u8)], &'static [u8]);

    /// The remarks are what `PFDEBUG DECODE` shows.
    #[test]
    fn runs_are_cut_and_joined() {
        const CASES: &[Case] = &[
            (&[], &[0x7f, 0xff]),
            // v:1,1 Z:16383
            (&[(0, 1)], &[0x80, 0x7f, 0xfe]),
            // Z:16383 v:32,1
            (&[(16383, 32)], &[0x7f, 0xfe, 0xfc]),
            // z:64 v:1,1 Z:16319
            (&[(64, 1)], &[0x3f, 0x80, 0x7f, 0xbe]),
            // Z:65 v:1,1 Z:16318
            (&[(65, 1)], &[0x40, 0x40, 0x80, 0x7f, 0xbd]),
            // Neighbours that hold the same are joined, whichever came first.
            (&[(0, 2), (1, 2)], &[0x85, 0x7f, 0xfd]),
            (&[(1, 2), (0, 2)], &[0x85, 0x7f, 0xfd]),
            (&[(0, 2), (2, 2), (1, 2)], &[0x86, 0x7f, 0xfc]),
            // At most four.
            (&[(0, 1), (1, 1), (2, 1), (3, 1), (4, 1)], &[0x83, 0x80, 0x7f, 0xfa]),
            (&[(4, 1), (3, 1), (2, 1), (1, 1), (0, 1)], &[0x80, 0x83, 0x7f, 0xfa]),
            // A run of ranks is cut into three, and into one again.
            (&[(0, 1), (1, 1), (2, 1), (1, 3)], &[0x80, 0x88, 0x80, 0x7f, 0xfc]),
            (&[(0, 1), (1, 1), (2, 1), (1, 3), (0, 3), (2, 3)], &[0x8a, 0x7f, 0xfc]),
            // What is as high already changes nothing.
            (&[(0, 4), (0, 4), (0, 3)], &[0x8c, 0x7f, 0xfe]),
        ];
        for (traces, runs) in CASES {
            let mut sparse = Sparse::new();
            for (register, rank) in *traces {
                let is_above = *rank > sparse.rank(*register);
                let expected = if is_above { Raise::Raised } else { Raise::Kept };
                assert_eq!(sparse.raise(Trace { register: *register, rank: *rank }), expected, "{traces:?}");
            }
            assert_eq!(sparse.runs(), *runs, "{traces:?}");
        }
    }

    #[test]
    fn what_has_no_room_is_refused_and_changes_nothing() {
        let mut sparse = Sparse::new();
        assert_eq!(sparse.raise(Trace { register: 7, rank: 33 }), Raise::Full);
        assert_eq!(sparse, Sparse::new());

        // Every other register takes two bytes, until the next would be too much.
        let mut register = 0;
        while sparse.raise(Trace { register, rank: 1 }) == Raise::Raised {
            register += 2;
        }
        let length = sparse.runs().len() + super::HEADER_BYTES;
        assert!((VALUE_BYTES_MAX - 1..=VALUE_BYTES_MAX).contains(&length), "{length}");
        // What needs no more room goes on.
        assert_eq!(sparse.raise(Trace { register: 0, rank: 2 }), Raise::Raised);
    }

    #[test]
    fn runs_that_do_not_cover_all_registers_are_refused() {
        for (bytes, is_valid) in [
            (&[][..], false),
            (&[0x7f], false),
            (&[0x7f, 0xff], true),
            (&[0x7f, 0xfe], false),
            (&[0x7f, 0xfe, 0x00], true),
            (&[0x7f, 0xfe, 0x40, 0x00], true),
            (&[0x7f, 0xff, 0x00], false),
            (&[0x7f, 0xfe, 0xff], false),
            (&[0x80, 0x7f, 0xfe], true),
            (&[0x80, 0x7f, 0xff], false),
        ] {
            let read = Sparse::read(Header::new(), bytes);
            assert_eq!(
                read.as_ref().map(|_| ()),
                is_valid.then_some(()).ok_or(&NotASketch::Runs),
                "{bytes:x?}"
            );
        }
    }

    proptest! {
        /// Guides are only kept up, histograms too: both must be as if made anew.
        #[test]
        fn what_follows_from_the_runs_is_kept_up(
            traces in prop::collection::vec((prop_oneof![0..600u16, 0..16384u16], 1..6u8), 0..800)
        ) {
            let mut sparse = Sparse::new();
            for (register, rank) in traces {
                sparse.raise(Trace { register, rank });
            }
            let anew = Sparse::read(sparse.header, sparse.runs()).unwrap();
            prop_assert_eq!(&sparse.histogram, &anew.histogram);
            let starts = |sparse: &Sparse| sparse.guides.map(|guide| (guide.at, guide.register));
            prop_assert_eq!(starts(&sparse), starts(&anew));
        }
    }
}
