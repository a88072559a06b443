//! The history of a counter: its value at full minutes, hours and days (UTC), for plots and for "the value as of".
//!
//! A point says what the value was at its boundary and at all later ones up to the next point; boundaries at
//! which nothing had changed have none, so a counter that rests costs nothing. A boundary's value is the one after
//! all changes up to and including that millisecond. Points are made by the change that follows them: only it
//! knows that the boundaries behind it are over. What came after the last change is the counter's value itself.

use std::collections::VecDeque;

use crate::varint;

/// The most points of a step that one counter keeps, and that one answer has: a week of minutes, a year of hours,
/// thirty years of days. Kept, they are 176 KB.
pub const POINTS_MAX: usize = 11_000;

/// How far points lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// At every full minute.
    Minute,
    /// At every full hour.
    Hour,
    /// At every midnight, UTC.
    Day,
}

impl Step {
    /// All of them, the finest first. Each boundary of one is a boundary of those before it.
    pub const ALL: [Step; 3] = [Step::Minute, Step::Hour, Step::Day];

    /// How far, in milliseconds.
    pub const fn ms(self) -> u64 {
        match self {
            Step::Minute => 60_000,
            Step::Hour => 3_600_000,
            Step::Day => 86_400_000,
        }
    }

    /// The first boundary at `at_ms` or later.
    fn boundary_from(self, at_ms: u64) -> Option<u64> {
        at_ms.checked_next_multiple_of(self.ms())
    }

    /// The last boundary at `at_ms` or before.
    fn boundary_until(self, at_ms: u64) -> u64 {
        at_ms - at_ms % self.ms()
    }
}

/// How long points of each step are kept; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Values at full minutes.
    pub minutes_ms: u64,
    /// Values at full hours.
    pub hours_ms: u64,
    /// Values at midnights.
    pub days_ms: u64,
}

impl Retention {
    fn of(&self, step: Step) -> u64 {
        match step {
            Step::Minute => self.minutes_ms,
            Step::Hour => self.hours_ms,
            Step::Day => self.days_ms,
        }
    }
}

/// A value of the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// The value.
    pub value: i64,
    /// The moment at which it was just that, at most as late as the one asked for. What changed in between, if
    /// anything, is not known any more.
    pub exact_to_ms: u64,
}

/// The points of one counter. Whoever keeps one calls [`note`](Series::note) at every change, or lets go of it: a
/// change that it is not told of would look as if it never was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    /// By step as in [`Step::ALL`]: boundary and value, ascending, no two values in a row alike.
    steps: [VecDeque<(u64, i64)>; 3],
}

impl Series {
    /// Takes note that the value changes at `now_ms`; it was `before` since `changed_at_ms`, the time of the change
    /// before this one. The change that makes a counter has none before it and needs no note. Also forgets what
    /// need no longer be kept.
    #[inline]
    pub fn note(&mut self, retention: &Retention, before: i64, changed_at_ms: u64, now_ms: u64) {
        if Series::is_due(changed_at_ms, now_ms) {
            self.note_boundaries(retention, before, changed_at_ms, now_ms);
        }
    }

    /// Whether there is anything to [`note`](Series::note): a boundary lies between the two changes, or on the first. The next
    /// change mostly comes within the same minute.
    #[inline]
    pub fn is_due(changed_at_ms: u64, now_ms: u64) -> bool {
        Step::Minute.boundary_from(changed_at_ms).is_some_and(|boundary_ms| boundary_ms < now_ms)
    }

    fn note_boundaries(&mut self, retention: &Retention, before: i64, changed_at_ms: u64, now_ms: u64) {
        for (step, points) in Step::ALL.into_iter().zip(&mut self.steps) {
            let Some(boundary_ms) = step.boundary_from(changed_at_ms).filter(|at_ms| *at_ms < now_ms) else {
                continue;
            };
            let is_news = points.back().is_none_or(|(at_ms, value)| *at_ms < boundary_ms && *value != before);
            if retention.of(step) > 0 && is_news {
                if points.len() == POINTS_MAX {
                    points.pop_front();
                } else if points.len() == points.capacity() {
                    // By a quarter and not to the double: in the end there are as many as are kept.
                    points.reserve_exact((points.len() / 4).max(4));
                }
                points.push_back((boundary_ms, before));
            }
        }
        self.forget(retention, now_ms);
    }

    /// Forgets what need not be kept at `now_ms`, as every [`note`](Series::note) of a new minute does; for counters
    /// that no longer change. The value at the far end of what is kept stays known.
    pub fn forget(&mut self, retention: &Retention, now_ms: u64) {
        for (step, points) in Step::ALL.into_iter().zip(&mut self.steps) {
            match retention.of(step) {
                0 => *points = VecDeque::new(),
                keep_ms => {
                    // The last of those at the far end or before it holds there.
                    let end_ms = now_ms.saturating_sub(keep_ms);
                    let old = points.partition_point(|(at_ms, _)| *at_ms <= end_ms);
                    points.drain(..old.saturating_sub(1));
                    if points.capacity() > 2 * points.len() + 4 {
                        points.shrink_to(points.len() + points.len() / 4);
                    }
                }
            }
        }
    }

    /// The value as of `at_ms`, as near to it as is known: from the finest step that reaches back to it. `current`
    /// is the value since `last_change_ms`. Nothing if that is older than everything kept.
    pub fn at(&self, at_ms: u64, current: i64, last_change_ms: u64) -> Option<Point> {
        if at_ms >= last_change_ms {
            return Some(Point { value: current, exact_to_ms: at_ms });
        }
        Step::ALL.into_iter().zip(&self.steps).find_map(|(step, points)| {
            let exact_to_ms = step.boundary_until(at_ms);
            Some(Point { value: held(points, exact_to_ms)?, exact_to_ms })
        })
    }

    /// Boundary and value at every boundary of `step` from `from_ms` up to and including `to_ms` at which the
    /// value is known, the oldest first; the first [`POINTS_MAX`] if there are more. `current` is the value since
    /// `last_change_ms`, and there is none before `created_at_ms`. The future is not told from the past: `to_ms`
    /// is at most now.
    pub fn points(
        &self,
        step: Step,
        from_ms: u64,
        to_ms: u64,
        current: i64,
        last_change_ms: u64,
        created_at_ms: u64,
    ) -> Vec<(u64, i64)> {
        // Finer steps have the boundaries of this one too, if they reach back so far.
        let steps = &self.steps[..=step as usize];
        let known_from_ms = steps.iter().filter_map(|points| Some(points.front()?.0)).min();
        let first_ms =
            from_ms.max(created_at_ms).max(known_from_ms.unwrap_or(last_change_ms).min(last_change_ms));
        let mut points = Vec::new();
        let mut next_ms = step.boundary_from(first_ms);
        while let Some(at_ms) = next_ms.filter(|at_ms| *at_ms <= to_ms && points.len() < POINTS_MAX) {
            let value = if at_ms >= last_change_ms {
                Some(current)
            } else {
                steps.iter().rev().find_map(|points| held(points, at_ms))
            };
            points.extend(value.map(|value| (at_ms, value)));
            next_ms = at_ms.checked_add(step.ms());
        }
        points
    }

    /// What it costs, itself included.
    pub fn memory_bytes(&self) -> usize {
        let capacity: usize = self.steps.iter().map(VecDeque::capacity).sum();
        size_of::<Series>() + capacity * size_of::<(u64, i64)>()
    }

    /// Appends its bytes: for each step how many points; for each of them how many boundaries further than the one
    /// before, less one (of the first: than 1970), and how much more than the value before (the first: than 0).
    pub fn put(&self, out: &mut Vec<u8>) {
        for (step, points) in Step::ALL.into_iter().zip(&self.steps) {
            varint::put(out, points.len() as u64);
            let (mut next, mut before) = (0, 0i64);
            for (at_ms, value) in points {
                let number = at_ms / step.ms();
                varint::put(out, number - next);
                varint::put_signed(out, value.wrapping_sub(before));
                (next, before) = (number + 1, *value);
            }
        }
    }

    /// From all of `bytes`. Nothing if [`put`](Series::put) would not write exactly these.
    pub fn read(mut bytes: &[u8]) -> Option<Series> {
        let bytes = &mut bytes;
        let mut series = Series::default();
        for (step, points) in Step::ALL.into_iter().zip(&mut series.steps) {
            let count = usize::try_from(varint::read(bytes)?).ok().filter(|count| *count <= POINTS_MAX)?;
            // A point has two bytes at least: a count that lies takes no memory.
            points.reserve_exact(count.min(bytes.len() / 2));
            let (mut next, mut before) = (0u64, 0i64);
            for place in 0..count {
                let number = varint::read(bytes)?.checked_add(next)?;
                let more = varint::read_signed(bytes).filter(|more| *more != 0 || place == 0)?;
                before = before.wrapping_add(more);
                points.push_back((number.checked_mul(step.ms())?, before));
                next = number + 1;
            }
        }
        bytes.is_empty().then_some(series)
    }
}

/// The value that points give for a boundary, if they reach back to it.
fn held(points: &VecDeque<(u64, i64)>, boundary_ms: u64) -> Option<i64> {
    let behind = points.partition_point(|(at_ms, _)| *at_ms <= boundary_ms);
    points.get(behind.checked_sub(1)?).map(|(_, value)| *value)
}
