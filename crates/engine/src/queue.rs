//! Who waits for the disk, in which order, and who is told to come back later. No threads and no clock: those are in
//! `pool.rs`.
//!
//! ```text
//!   admit ──> small ─┐
//!         └─> large ─┴──> run ──> leave
//!               ^          │
//!               │          └──> crowded    until one thread has made a checkpoint for all of them
//!               └─────────────────┘
//! ```
//!
//! - Everything admitted counts until it leaves. Above the bound nothing is admitted: memory is for counters, and a
//!   longer queue only makes everybody wait longer.
//! - What has waited too long to be run is given up, oldest first: its caller has lost patience, and those behind it
//!   still have theirs.
//! - Small work does not stand behind large work. They get equal shares, counted in requests; and one thread is never
//!   given anything that takes long.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The most requests of small work: a lone command or a modest pipeline.
const SMALL_REQUESTS_MAX: usize = 64;
/// One part in so many of the bound is kept for small work, so that few large callers cannot lock everybody out.
const KEPT_FOR_SMALL: usize = 4;

/// How much may wait and how long.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Requests admitted and not yet done.
    pub requests_max: usize,
    /// How long one may wait for its turn.
    pub wait_max: Duration,
    /// Pieces of large work and checkpoints that may be under way at the same time.
    pub long_running_max: usize,
}

/// Work that was admitted.
#[derive(Debug)]
pub struct Admitted<T> {
    /// What is to be done.
    pub work: T,
    requests: usize,
    expires_at: Instant,
}

impl<T> Admitted<T> {
    fn is_small(&self) -> bool {
        self.requests <= SMALL_REQUESTS_MAX
    }
}

/// What a thread should do now.
#[derive(Debug)]
pub enum Next<T> {
    /// This; afterwards [`Queue::leave`] or [`Queue::wait_for_checkpoint`].
    Run(Admitted<T>),
    /// Relieve this partition by a checkpoint; afterwards [`Queue::relieved`].
    Relieve(u16),
    /// Say that this has waited too long. It has left.
    GiveUp(T),
    /// Wait for something to happen, at most until then.
    Sleep(Option<Instant>),
    /// End.
    Stop,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Queue<T> {
    bounds: Bounds,
    small: VecDeque<Admitted<T>>,
    large: VecDeque<Admitted<T>>,
    /// What found a partition crowded, with that partition.
    crowded: VecDeque<(u16, Admitted<T>)>,
    /// A thread makes a checkpoint for them.
    is_relieving: bool,
    /// Large work and checkpoints under way.
    long_running: usize,
    /// Requests admitted and not yet done.
    requests: usize,
    /// So many requests of small work come before the next large work.
    due_to_small: usize,
    is_closed: bool,
}

impl<T> Queue<T> {
    /// An empty queue.
    pub fn new(bounds: Bounds) -> Queue<T> {
        Queue {
            bounds,
            small: VecDeque::new(),
            large: VecDeque::new(),
            crowded: VecDeque::new(),
            is_relieving: false,
            long_running: 0,
            requests: 0,
            due_to_small: 0,
            is_closed: false,
        }
    }

    /// Requests admitted and not yet done.
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// Whether nothing is admitted any more.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Takes work of so many requests in, or gives it back when there is no room. What is larger than the bound itself
    /// has room when nothing else is there.
    pub fn admit(&mut self, work: T, requests: usize, now: Instant) -> Result<(), T> {
        let admitted = Admitted { work, requests, expires_at: now + self.bounds.wait_max };
        let kept = if admitted.is_small() { 0 } else { self.bounds.requests_max / KEPT_FOR_SMALL };
        let is_full = self.requests > 0 && self.requests + requests > self.bounds.requests_max - kept;
        if is_full || self.is_closed {
            return Err(admitted.work);
        }
        self.requests += requests;
        self.line(&admitted).push_back(admitted);
        Ok(())
    }

    /// What the thread that asks should do.
    pub fn next(&mut self, now: Instant) -> Next<T> {
        if let Some(late) = self.take_late(now) {
            self.requests -= late.requests;
            return Next::GiveUp(late.work);
        }
        let may_take_long = self.long_running < self.bounds.long_running_max;
        if may_take_long
            && !self.is_relieving
            && let Some((partition, _)) = self.crowded.front()
        {
            self.is_relieving = true;
            self.long_running += 1;
            return Next::Relieve(*partition);
        }
        let large_is_next = may_take_long && (self.small.is_empty() || self.due_to_small == 0);
        if large_is_next && let Some(large) = self.large.pop_front() {
            self.due_to_small = large.requests;
            self.long_running += 1;
            return Next::Run(large);
        }
        if let Some(small) = self.small.pop_front() {
            self.due_to_small = self.due_to_small.saturating_sub(small.requests);
            return Next::Run(small);
        }
        if self.is_closed { Next::Stop } else { Next::Sleep(self.fronts().min()) }
    }

    /// Work that ran is done.
    pub fn leave(&mut self, done: &Admitted<T>) {
        self.end_run(done);
        self.requests -= done.requests;
    }

    /// Work that ran could not go on, because this partition has too much that is not yet in the cold store.
    pub fn wait_for_checkpoint(&mut self, partition: u16, admitted: Admitted<T>) {
        self.end_run(&admitted);
        self.crowded.push_back((partition, admitted));
    }

    /// The checkpoint was made: everyone who waited for one is next. `look` sees what waited for this partition's.
    pub fn relieved(&mut self, partition: u16, mut look: impl FnMut(&mut T)) {
        self.end_relief();
        while let Some((waited_for, mut admitted)) = self.crowded.pop_back() {
            if waited_for == partition {
                look(&mut admitted.work);
            }
            self.line(&admitted).push_front(admitted);
        }
    }

    /// The checkpoint failed: everyone who waited for one has left.
    pub fn not_relieved(&mut self) -> Vec<T> {
        self.end_relief();
        let all = std::mem::take(&mut self.crowded);
        self.requests -= all.iter().map(|(_, admitted)| admitted.requests).sum::<usize>();
        all.into_iter().map(|(_, admitted)| admitted.work).collect()
    }

    /// Admits no more; everyone who waits has left.
    pub fn close(&mut self) -> Vec<T> {
        self.is_closed = true;
        let lines = self.small.drain(..).chain(self.large.drain(..));
        let all: Vec<Admitted<T>> =
            lines.chain(self.crowded.drain(..).map(|(_, admitted)| admitted)).collect();
        self.requests -= all.iter().map(|admitted| admitted.requests).sum::<usize>();
        all.into_iter().map(|admitted| admitted.work).collect()
    }

    fn line(&mut self, admitted: &Admitted<T>) -> &mut VecDeque<Admitted<T>> {
        if admitted.is_small() { &mut self.small } else { &mut self.large }
    }

    /// When those at the head of each line have waited too long.
    fn fronts(&self) -> impl Iterator<Item = Instant> {
        let crowded = self.crowded.front().map(|(_, admitted)| admitted);
        [self.small.front(), self.large.front(), crowded].into_iter().flatten().map(|first| first.expires_at)
    }

    fn take_late(&mut self, now: Instant) -> Option<Admitted<T>> {
        let is_late = |admitted: &mut Admitted<T>| admitted.expires_at <= now;
        let crowded =
            self.crowded.pop_front_if(|(_, admitted)| is_late(admitted)).map(|(_, admitted)| admitted);
        crowded.or_else(|| self.small.pop_front_if(is_late)).or_else(|| self.large.pop_front_if(is_late))
    }

    fn end_run(&mut self, admitted: &Admitted<T>) {
        if !admitted.is_small() {
            self.long_running -= 1;
        }
    }

    fn end_relief(&mut self) {
        self.is_relieving = false;
        self.long_running -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::{Admitted, Bounds, Next, Queue};
    use std::time::{Duration, Instant};

    const WAIT: Duration = Duration::from_secs(1);

    fn queue(requests_max: usize) -> (Queue<&'static str>, Instant) {
        (Queue::new(Bounds { requests_max, wait_max: WAIT, long_running_max: 2 }), Instant::now())
    }

    fn run(queue: &mut Queue<&'static str>, now: Instant) -> Admitted<&'static str> {
        match queue.next(now) {
            Next::Run(admitted) => admitted,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_does_not_fit_comes_back_and_what_is_done_makes_room() {
        let (mut queue, now) = queue(400);
        queue.admit("large", 300, now).unwrap();
        assert_eq!(
            queue.admit("one too many", 65, now),
            Err("one too many"),
            "a quarter is kept for small work"
        );
        queue.admit("small", 64, now).unwrap();
        queue.admit("fits exactly", 36, now).unwrap();
        assert_eq!(queue.admit("full", 1, now), Err("full"));
        let large = run(&mut queue, now);
        assert_eq!(queue.admit("what runs counts", 1, now), Err("what runs counts"));
        queue.leave(&large);
        assert_eq!(queue.requests(), 100);
        queue.admit("again", 200, now).unwrap();
    }

    #[test]
    fn what_is_larger_than_the_bound_is_taken_alone() {
        let (mut queue, now) = queue(10);
        queue.admit("giant", 1000, now).unwrap();
        assert_eq!(queue.admit("small", 1, now), Err("small"));
        let giant = run(&mut queue, now);
        queue.leave(&giant);
        queue.admit("small", 1, now).unwrap();
    }

    #[test]
    fn small_and_large_work_take_turns_by_requests() {
        let (mut queue, now) = queue(10_000);
        for (work, requests) in [("L1", 100), ("L2", 100), ("s1", 60), ("s2", 60), ("s3", 1), ("s4", 1)] {
            queue.admit(work, requests, now).unwrap();
        }
        let mut order = Vec::new();
        while let Next::Run(admitted) = queue.next(now) {
            order.push(admitted.work);
            queue.leave(&admitted);
        }
        assert_eq!(order, ["L1", "s1", "s2", "L2", "s3", "s4"]);
    }

    #[test]
    fn large_work_leaves_a_thread_for_small_work() {
        let (mut queue, now) = queue(10_000);
        for _ in 0..3 {
            queue.admit("large", 100, now).unwrap();
        }
        let first = run(&mut queue, now);
        run(&mut queue, now);
        assert!(matches!(queue.next(now), Next::Sleep(Some(until)) if until == now + WAIT));
        queue.admit("small", 1, now).unwrap();
        assert_eq!(run(&mut queue, now).work, "small");
        queue.leave(&first);
        assert_eq!(run(&mut queue, now).work, "large");
    }

    #[test]
    fn who_waits_too_long_is_given_up_and_who_runs_is_not() {
        let (mut queue, now) = queue(1000);
        queue.admit("runs", 1, now).unwrap();
        let running = run(&mut queue, now);
        queue.admit("small", 1, now).unwrap();
        queue.admit("large", 100, now).unwrap();
        queue.admit("later", 1, now + WAIT / 2).unwrap();
        for expected in ["small", "large"] {
            assert!(matches!(queue.next(now + WAIT), Next::GiveUp(work) if work == expected));
        }
        assert_eq!(run(&mut queue, now + WAIT).work, "later");
        queue.leave(&running);
        assert_eq!(queue.requests(), 1);
    }

    #[test]
    fn one_thread_makes_the_checkpoint_and_all_who_wait_for_one_are_next() {
        let (mut queue, now) = queue(1000);
        for work in ["a", "b", "c"] {
            queue.admit(work, 1, now).unwrap();
        }
        let (first, second) = (run(&mut queue, now), run(&mut queue, now));
        queue.wait_for_checkpoint(7, first);
        queue.wait_for_checkpoint(8, second);
        assert!(matches!(queue.next(now), Next::Relieve(7)));
        assert_eq!(run(&mut queue, now).work, "c", "others go on meanwhile");
        assert!(matches!(queue.next(now), Next::Sleep(Some(_))), "one checkpoint at a time");
        queue.admit("d", 1, now).unwrap();
        let mut waited = Vec::new();
        queue.relieved(7, |work| waited.push(*work));
        assert_eq!(waited, ["a"]);
        let order: Vec<&str> = (0..3).map(|_| run(&mut queue, now).work).collect();
        assert_eq!(order, ["a", "b", "d"]);
    }

    #[test]
    fn nobody_waits_for_a_checkpoint_that_failed_or_takes_too_long() {
        let (mut queue, now) = queue(1000);
        queue.admit("late", 1, now).unwrap();
        queue.admit("failed", 100, now + WAIT / 2).unwrap();
        // The large one is taken first, the small one found its partition crowded first.
        let (large, small) = (run(&mut queue, now), run(&mut queue, now));
        queue.wait_for_checkpoint(0, small);
        queue.wait_for_checkpoint(0, large);
        assert!(matches!(queue.next(now), Next::Relieve(0)));
        assert!(matches!(queue.next(now + WAIT), Next::GiveUp("late")));
        assert_eq!(queue.not_relieved(), ["failed"]);
        assert_eq!(queue.requests(), 0);
        assert!(matches!(queue.next(now + WAIT), Next::Sleep(None)));
    }

    #[test]
    fn a_closed_queue_is_empty_and_takes_nothing() {
        let (mut queue, now) = queue(1000);
        queue.admit("small", 1, now).unwrap();
        queue.admit("large", 100, now).unwrap();
        assert_eq!(queue.close(), ["small", "large"]);
        assert_eq!(queue.admit("more", 1, now), Err("more"));
        assert!(matches!(queue.next(now), Next::Stop));
        assert_eq!(queue.requests(), 0);
    }
}
