//! What the connections of one wake-up asked for, executed as one batch.
//!
//! Fifty connections with a command each cost fifty times the locks, log records and waits for memory of one batch with
//! fifty commands. So a connection's commands are drafted behind those of the connection before it, and executed when
//! enough are together, when a command must see what came before it, or at the end of the wake-up:
//!
//! ```text
//!   draft   | INCR a  GET b | MGET c d | INCR a | ...
//!   parts   | connection 7  |    12    |   3    |          each ends where the next begins
//! ```
//!
//! If the batch cannot run as it is (one of its counters is on disk, say), nothing of it has run. Then every part is
//! executed by itself, so that nobody waits for another's counters, and for some time no parts are put together.

use mio::Token;
use quipu_counting::{Batch, BatchMark};

use super::plan::{Draft, View};

/// Requests that are worth executing: more of them gain nothing, and what belongs to them would no longer fit the
/// processor's nearest caches.
const REQUESTS_WORTH_EXECUTING: usize = 512;
/// After a batch that had to be taken apart, wake-ups execute every connection by itself: one after the first such
/// batch, twice as many after every further one, and at most so many. Where most requests miss, the attempt would
/// mostly be in vain.
const WAKEUPS_APART_MAX: u32 = 64;

/// See the head of this file.
#[derive(Debug, Default)]
pub struct Round {
    /// What was understood and not yet answered.
    pub draft: Draft,
    parts: Vec<Part>,
    /// How many more wake-ups put nothing together.
    apart: u32,
    /// How many it was the last time; half of it for every batch since then that ran as a whole.
    last_apart: u32,
}

/// What one connection asked.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The connection.
    pub token: Token,
    start: Mark,
    end: Mark,
}

/// A place between two commands of a draft.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    batch: BatchMark,
    plans: usize,
    literals: usize,
}

impl Round {
    /// Whether what was drafted should be executed now, though nothing demands it.
    #[inline]
    pub fn is_worth_executing(&self) -> bool {
        self.apart > 0 || self.draft.batch.requests.len() >= REQUESTS_WORTH_EXECUTING || self.draft.is_full()
    }

    /// What was drafted since the last part is this connection's.
    #[inline]
    pub fn end_part(&mut self, token: Token) {
        let (start, end) = (self.start(), self.mark());
        if start == end {
            return;
        }
        match self.parts.last_mut() {
            Some(last) if last.token == token => last.end = end,
            _ => {
                debug_assert!(
                    self.parts.iter().all(|part| part.token != token),
                    "two parts of one connection"
                );
                self.parts.push(Part { token, start, end });
            }
        }
    }

    /// Takes back what was drafted since the last part.
    pub fn withdraw(&mut self) {
        let start = self.start();
        self.draft.batch.truncate(start.batch);
        self.draft.plans.truncate(start.plans);
        self.draft.literals.truncate(start.literals);
    }

    /// The parts in the order drafted.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The plans of a part and what its requests gave.
    #[inline]
    pub fn view(&self, part: &Part) -> View<'_> {
        let Part { start, end, .. } = part;
        let replies = &self.draft.batch.replies;
        View {
            plans: &self.draft.plans[start.plans..end.plans],
            literals: &self.draft.literals[start.literals..end.literals],
            replies: replies.get(start.batch.requests()..end.batch.requests()).unwrap_or_default(),
        }
    }

    /// A part as a draft of its own.
    pub fn separate(&self, part: &Part) -> Draft {
        let view = self.view(part);
        Draft {
            batch: self.draft.batch.part(part.start.batch, part.end.batch),
            plans: view.plans.to_vec(),
            literals: view.literals.to_vec(),
        }
    }

    /// The whole draft, for a single part that has to wait.
    pub fn take(&mut self) -> Draft {
        self.parts.clear();
        std::mem::take(&mut self.draft)
    }

    /// Forgets what was answered.
    pub fn clear(&mut self) {
        self.draft.clear();
        self.parts.clear();
    }

    /// Putting parts together did not help.
    pub fn stay_apart(&mut self) {
        self.last_apart = (self.last_apart * 2).clamp(1, WAKEUPS_APART_MAX);
        self.apart = self.last_apart;
    }

    /// Putting parts together did help.
    pub fn stay_together(&mut self) {
        if self.parts.len() > 1 {
            self.last_apart /= 2;
        }
    }

    /// A wake-up is over.
    pub fn end_wakeup(&mut self) {
        debug_assert!(self.draft.is_empty() && self.parts.is_empty());
        self.apart = self.apart.saturating_sub(1);
    }

    /// The batch to execute.
    pub fn batch(&mut self) -> &mut Batch {
        &mut self.draft.batch
    }

    fn start(&self) -> Mark {
        self.parts.last().map_or(Mark::default(), |part| part.end)
    }

    fn mark(&self) -> Mark {
        Mark {
            batch: self.draft.batch.mark(),
            plans: self.draft.plans.len(),
            literals: self.draft.literals.len(),
        }
    }
}
