//! Counters beside what the source says of them.
//!
//! Let the source be read as of the moment M, and let each change be in both after `settle` at the latest, whichever comes first. A
//! counter that was last changed before M - settle, and is read after M + settle, had everything in it at M that the source has, and
//! nothing else: what differs, differs for good. When it was last changed it says itself, by the server's clock; M is taken from
//! the same clock, before the source is asked.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_128;

use super::findings::{Finding, Kind, Spool, Spooled};
use super::truths::Truths;
use super::{Args, stop};
use crate::cli::counter::{Counter, Results, time_ms};
use crate::cli::counters::{batch_get_strong, key_body};
use crate::cli::failure::Failure;
use crate::cli::interrupt::Interrupt;
use crate::cli::list::{PAGE_MAX, Pages, Selection, patiently};
use crate::cli::terminal;

/// Counters that are compared at once.
const CHUNK: usize = 5_000;
/// How often a wait looks whether it should end.
const LOOK_AROUND: Duration = Duration::from_millis(50);
/// By how much clocks may differ, and the whole second that the server's leaves out.
const CLOCKS_APART_MS: u64 = 6_000;
/// Looks that must agree before a counter counts as steady: two may by chance.
pub const STEADY_LOOKS: u8 = 3;

/// How many of each there were.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Rows of the source.
    pub rows: u64,
    pub same: u64,
    pub drifts: u64,
    pub missing: u64,
    pub unlisted: u64,
    pub busy: u64,
    /// Of those, the ones that differed when they were last seen.
    pub busy_differing: u64,
    /// What all drifts come to, and what they come to without their signs.
    pub drift_sum: i128,
    pub drift_size: u128,
}

/// A comparison on its way.
pub struct Comparison<'a> {
    args: &'a Args,
    interrupt: &'a Interrupt,
    bar: &'a ProgressBar,
    found: Spool,
    /// What has to be looked at again.
    again: Spool,
    /// The counters that the source has, if it is asked which it lacks.
    listed: HashSet<u128>,
    tally: Tally,
}

/// A counter as it is compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Seen {
    exists: bool,
    value: i64,
    version: u64,
    updated_at_ms: u64,
}

impl Seen {
    fn of(counter: &Counter) -> Seen {
        if !counter.exists {
            return Seen::default();
        }
        // What does not say when it changed may have changed just now.
        let updated_at_ms = counter.updated_at.as_deref().and_then(time_ms).unwrap_or(u64::MAX);
        Seen { exists: true, value: counter.value, version: counter.version, updated_at_ms }
    }
}

/// What a look says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Same,
    Found(Finding),
    /// It may not be judged yet; so far it looks like this.
    Again(Finding),
}

/// A moment for which counters are judged.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// No two marks have the same. Their moments may be: that of a file is the same in every run, and the server tells whole seconds.
    number: u64,
    /// Before when a counter must have been changed last.
    quiet_before_ms: u64,
}

/// Judges a counter that was last changed before the mark; of another, says what it looks like. `before` is what it looked like
/// in the round before, and `is_live` whether there can be another round.
fn judge(
    key: Vec<u8>,
    truth: Option<i64>,
    seen: Seen,
    mark: Mark,
    before: Option<&Finding>,
    is_live: bool,
) -> Verdict {
    let Seen { exists, value, version, updated_at_ms } = seen;
    let kind = match (exists, truth) {
        (false, _) => Kind::Missing,
        (true, None) => Kind::Unlisted,
        (true, Some(_)) => Kind::Drift,
    };
    let (looks, is_steady) = (1, true);
    let mut finding =
        Finding { key, kind, truth, value, version, updated_at_ms, mark: mark.number, looks, is_steady };
    let was_same = before.is_none_or(|before| before.is_steady && before.drift() == finding.drift());
    finding.looks = before.map_or(0, |before| before.looks).saturating_add(1);
    finding.is_steady = was_same && finding.drift() != 0;
    let can_be_judged = match kind {
        // What is not there does not say since when: it must have been missing before, too.
        Kind::Missing => {
            !is_live || before.is_some_and(|before| before.kind == kind && before.truth == truth)
        }
        _ => updated_at_ms < mark.quiet_before_ms,
    };
    match (can_be_judged, finding.drift()) {
        (true, 0) => Verdict::Same,
        (false, 0) if !exists => Verdict::Same,
        (true, _) => Verdict::Found(finding),
        (false, _) => Verdict::Again(finding),
    }
}

impl<'a> Comparison<'a> {
    pub fn new(
        args: &'a Args,
        interrupt: &'a Interrupt,
        bar: &'a ProgressBar,
    ) -> Result<Comparison<'a>, Failure> {
        Ok(Comparison {
            args,
            interrupt,
            bar,
            found: spool()?,
            again: spool()?,
            listed: HashSet::new(),
            tally: Tally::default(),
        })
    }

    /// Compares everything, in as many rounds as it takes.
    pub fn run(&mut self, truths: &mut Truths) -> Result<(), Failure> {
        let mark = self.mark(truths)?;
        truths.begin()?;
        loop {
            let rows = truths.next(CHUNK)?;
            if rows.is_empty() {
                break;
            }
            self.tally.rows += rows.len() as u64;
            let keys: Vec<Vec<u8>> = rows.iter().map(|row| row.key.clone()).collect();
            self.check_prefix(&keys)?;
            for (row, seen) in rows.into_iter().zip(self.read(&keys)?) {
                let verdict = judge(row.key, Some(row.value), seen, mark, None, truths.is_live());
                self.note(verdict)?;
            }
            self.show();
        }
        self.find_unlisted(mark, truths.is_live())?;
        for _ in 1..self.args.rounds {
            if self.again.count == 0 || !truths.is_live() {
                break;
            }
            self.repeat(truths)?;
        }
        Ok(())
    }

    /// What was found.
    pub fn finish(mut self) -> Result<(Spooled, Tally), Failure> {
        let mut busy = unspool(std::mem::replace(&mut self.again, spool()?))?;
        loop {
            let some = busy.next(CHUNK).map_err(|error| spool_failure(&error))?;
            if some.is_empty() {
                break;
            }
            for finding in some {
                self.tally.busy += 1;
                if finding.drift() != 0 {
                    self.tally.busy_differing += 1;
                    let finding = Finding { kind: Kind::Busy, ..finding };
                    self.found.push(&finding).map_err(|error| spool_failure(&error))?;
                }
            }
        }
        Ok((unspool(self.found)?, self.tally))
    }

    /// Takes the moment that counts, and waits until everything of it has arrived.
    fn mark(&mut self, truths: &mut Truths) -> Result<Mark, Failure> {
        let client = &self.args.client;
        let now_ms = patiently(client, self.interrupt, self.bar, || client.clock_ms())?;
        truths.look()?;
        let looked_at = Instant::now();
        let mark_ms = truths.as_of_ms().unwrap_or(now_ms);
        if mark_ms > now_ms.saturating_add(CLOCKS_APART_MS) {
            let what = match self.args.as_of {
                Some(_) => "--as-of lies in the future".to_owned(),
                None => format!("{} was last written in the future; say --as-of", truths.shown()),
            };
            return Err(Failure::malformed(format!("{what}, by the server's clock; nothing was changed")));
        }
        let settle = Duration::from_millis(self.args.settle);
        let passed = Duration::from_millis(now_ms.saturating_sub(mark_ms));
        while looked_at.elapsed() + passed < settle {
            std::thread::sleep(LOOK_AROUND.min(settle));
            stop(self.interrupt);
        }
        let quiet_before_ms = mark_ms.min(now_ms).saturating_sub(self.args.settle);
        Ok(Mark { number: SmallRng::from_os_rng().random(), quiet_before_ms })
    }

    fn check_prefix(&mut self, keys: &[Vec<u8>]) -> Result<(), Failure> {
        let Some(prefix) = &self.args.prefix else { return Ok(()) };
        for key in keys {
            if !key.starts_with(prefix.as_bytes()) {
                let (key, prefix) = (terminal::key(key), terminal::key(prefix.as_bytes()));
                return Err(Failure::malformed(format!(
                    "the source has {key}, which does not begin with {prefix} as --prefix says; nothing was changed"
                )));
            }
            self.listed.insert(xxh3_128(key));
        }
        Ok(())
    }

    fn read(&self, keys: &[Vec<u8>]) -> Result<Vec<Seen>, Failure> {
        stop(self.interrupt);
        let bodies: Vec<Value> = keys.iter().map(|key| key_body(key)).collect();
        let (client, call) = (&self.args.client, batch_get_strong(&bodies));
        let read = patiently(client, self.interrupt, self.bar, || client.fetch::<Results>(&call));
        stop(self.interrupt);
        Ok(read?.results.iter().map(Seen::of).collect())
    }

    /// Counters that the source does not have.
    fn find_unlisted(&mut self, mark: Mark, is_live: bool) -> Result<(), Failure> {
        let Some(prefix) = &self.args.prefix else { return Ok(()) };
        let selection = Selection { prefix: Some(prefix.clone()) };
        let mut pages = Pages::new(&self.args.client, &selection, None, PAGE_MAX);
        while let Some(counters) = pages.next_patiently::<Counter>(self.interrupt, self.bar)? {
            stop(self.interrupt);
            for counter in &counters {
                let key = counter.key();
                if !self.listed.contains(&xxh3_128(&key)) {
                    self.note(judge(key, None, Seen::of(counter), mark, None, is_live))?;
                }
            }
            self.show();
        }
        self.listed = HashSet::new();
        Ok(())
    }

    /// Another look at what could not be judged.
    fn repeat(&mut self, truths: &mut Truths) -> Result<(), Failure> {
        let mut candidates = unspool(std::mem::replace(&mut self.again, spool()?))?;
        let mark = self.mark(truths)?;
        loop {
            let some = candidates.next(CHUNK).map_err(|error| spool_failure(&error))?;
            if some.is_empty() {
                return Ok(());
            }
            let keys: Vec<Vec<u8>> = some.iter().map(|candidate| candidate.key.clone()).collect();
            let values = truths.of(&keys)?;
            for (before, seen) in some.into_iter().zip(self.read(&keys)?) {
                let truth = values.get(&before.key).copied();
                // Whoever does not ask which counters the source lacks is not told of those that it lacks by now.
                if truth.is_none() && self.args.prefix.is_none() {
                    self.tally.same += 1;
                    continue;
                }
                let key = before.key.clone();
                self.note(judge(key, truth, seen, mark, Some(&before), true))?;
            }
            self.show();
        }
    }

    fn note(&mut self, verdict: Verdict) -> Result<(), Failure> {
        let written = match &verdict {
            Verdict::Same => {
                self.tally.same += 1;
                Ok(())
            }
            Verdict::Again(finding) => self.again.push(finding),
            Verdict::Found(finding) => {
                let tally = &mut self.tally;
                match finding.kind {
                    Kind::Drift => tally.drifts += 1,
                    Kind::Missing => tally.missing += 1,
                    Kind::Unlisted => tally.unlisted += 1,
                    Kind::Busy => {}
                }
                if finding.kind == Kind::Drift {
                    tally.drift_sum += finding.drift();
                    tally.drift_size += finding.drift().unsigned_abs();
                }
                self.found.push(finding)
            }
        };
        written.map_err(|error| spool_failure(&error))
    }

    fn show(&self) {
        let number = |number: u64| terminal::grouped(number.into());
        let (rows, found, again) =
            (number(self.tally.rows), number(self.found.count), number(self.again.count));
        self.bar.set_message(format!("{rows} rows, {found} found, {again} to look at again"));
    }
}

fn spool() -> Result<Spool, Failure> {
    Spool::new().map_err(|error| spool_failure(&error))
}

fn unspool(spool: Spool) -> Result<Spooled, Failure> {
    spool.read().map_err(|error| spool_failure(&error))
}

pub fn spool_failure(error: &std::io::Error) -> Failure {
    let folder = std::env::temp_dir();
    Failure::general(format!(
        "cannot keep what was found in {}: {error}; set TMPDIR to a folder with room",
        folder.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: Mark = Mark { number: 77, quiet_before_ms: 1_000 };

    fn at(value: i64, updated_at_ms: u64) -> Seen {
        Seen { exists: true, value, version: 9, updated_at_ms }
    }

    fn verdict(
        truth: Option<i64>,
        seen: Seen,
        before: Option<&Finding>,
        is_live: bool,
    ) -> (String, Option<Finding>) {
        match judge(b"k".to_vec(), truth, seen, MARK, before, is_live) {
            Verdict::Same => ("same".to_owned(), None),
            Verdict::Found(finding) => {
                (format!("{} {}", finding.kind.name(), finding.drift()), Some(finding))
            }
            Verdict::Again(finding) => (format!("again {}", finding.drift()), Some(finding)),
        }
    }

    #[test]
    fn only_what_rested_is_judged() {
        for (truth, seen, expected) in [
            (Some(5), at(5, 999), "same"),
            (Some(5), at(3, 999), "drift 2"),
            (Some(5), at(3, 1_000), "again 2"),
            // What looks right now may have been wrong at the mark.
            (Some(5), at(5, 1_000), "again 0"),
            (Some(5), Seen::default(), "again 5"),
            (Some(0), Seen::default(), "same"),
            (None, at(4, 999), "unlisted -4"),
            (None, at(0, 999), "same"),
            (None, at(4, 1_000), "again -4"),
            (Some(i64::MAX), at(i64::MIN, 0), "drift 18446744073709551615"),
        ] {
            assert_eq!(verdict(truth, seen.clone(), None, true).0, expected, "{truth:?} {seen:?}");
        }
        // A file will not say anything else later.
        assert_eq!(verdict(Some(5), Seen::default(), None, false).0, "missing 5");
    }

    #[test]
    fn what_is_missing_is_so_twice() {
        let before = verdict(Some(5), Seen::default(), None, true).1;
        assert_eq!(verdict(Some(5), Seen::default(), before.as_ref(), true).0, "missing 5");
        assert_eq!(verdict(Some(6), Seen::default(), before.as_ref(), true).0, "again 6");
        assert_eq!(verdict(Some(5), at(5, 999), before.as_ref(), true).0, "same");
        assert_eq!(verdict(None, Seen::default(), before.as_ref(), true).0, "same");
        let busy = verdict(Some(5), at(1, 1_000), None, true).1;
        assert_eq!(verdict(Some(5), Seen::default(), busy.as_ref(), true).0, "again 5");
    }

    #[test]
    fn steady_is_what_differs_by_the_same_every_time() {
        let look = |truth, value, before: Option<&Finding>| {
            verdict(Some(truth), at(value, 5_000), before, true).1.unwrap()
        };
        let first = look(10, 8, None);
        let second = look(20, 18, Some(&first));
        let third = look(30, 28, Some(&second));
        assert_eq!((third.is_steady, third.looks), (true, 3));
        let other = look(30, 29, Some(&second));
        assert!(!other.is_steady && !look(30, 29, Some(&other)).is_steady);
        assert!(!look(30, 30, None).is_steady);
    }
}
