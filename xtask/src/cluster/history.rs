//! Was there one counter, and did everybody see it in one order?
//!
//! Every change answers the counter's version, so the order of changes is known and nothing has to be searched: by version they
//! must be 1, 2, 3, ... and each value the one before plus what was added. What is left is time. Whatever was answered before
//! something else was asked comes before it; one walk over all beginnings and ends, sorted, checks that. Each operation then has a
//! point between its question and its answer at which it happened, in that order: the history is linearizable.
//!
//! Nothing may be left unknown: whoever lost an answer asks again under the same id, and the operation lasts from the first
//! question to the first answer.

use std::collections::BTreeMap;
use std::fmt;

/// What was asked, and what came of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outcome {
    /// An addition that was carried out: what it added, the value then and the version.
    Added { delta: i64, value: i64, version: u64 },
    /// An addition that would have gone below this bound, and the value that it met.
    Refused { delta: i64, min: i64, value: i64 },
    /// A look.
    Read { value: i64, version: u64 },
}

/// One operation on one counter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Operation {
    /// The counter.
    pub key: u32,
    /// Who asked.
    pub client: u32,
    /// When it was asked first, in microseconds since the beginning.
    pub asked_us: u64,
    /// When it was answered.
    pub answered_us: u64,
    /// What came of it.
    pub outcome: Outcome,
}

/// Something that cannot have happened.
#[derive(Debug, PartialEq)]
pub struct Violation {
    /// On which counter.
    pub key: u32,
    /// About when: the answer of the operation that gives it away.
    pub at_us: u64,
    /// What.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "counter {} at {} ms: {}", self.key, self.at_us / 1_000, self.what)
    }
}

/// Checks every counter of a complete history. Returns the last value of each, or what is wrong.
pub fn check(operations: &[Operation]) -> Result<BTreeMap<u32, i64>, Vec<Violation>> {
    let mut by_key: BTreeMap<u32, Vec<Operation>> = BTreeMap::new();
    for operation in operations {
        by_key.entry(operation.key).or_default().push(*operation);
    }
    let mut values = BTreeMap::new();
    let mut violations = Vec::new();
    for (key, operations) in by_key {
        match check_counter(&operations) {
            Ok(value) => drop(values.insert(key, value)),
            Err(violation) => violations.push(violation),
        }
    }
    if violations.is_empty() { Ok(values) } else { Err(violations) }
}

fn check_counter(operations: &[Operation]) -> Result<i64, Violation> {
    let values = chain(operations)?;
    check_reads(operations, &values)?;
    check_time(operations, &values)?;
    Ok(values.last().copied().unwrap_or(0))
}

fn wrong(operation: &Operation, what: String) -> Violation {
    Violation { key: operation.key, at_us: operation.answered_us, what }
}

/// The value after each version, from 0 on.
fn chain(operations: &[Operation]) -> Result<Vec<i64>, Violation> {
    let mut changes: Vec<(u64, i64, i64, &Operation)> = operations
        .iter()
        .filter_map(|operation| match operation.outcome {
            Outcome::Added { delta, value, version } => Some((version, delta, value, operation)),
            _ => None,
        })
        .collect();
    changes.sort_by_key(|(version, ..)| *version);
    let mut values = vec![0];
    for (version, delta, value, operation) in changes {
        let (expected, before) = (values.len() as u64, values[values.len() - 1]);
        if version < expected {
            return Err(wrong(operation, format!("version {version} was answered twice: {operation:?}")));
        }
        if version > expected {
            let what = format!("version {expected} is nobody's, {version} is there: {operation:?}");
            return Err(wrong(operation, what));
        }
        if before + delta != value {
            let what = format!("{before} was there, and {delta} more is not {value}: {operation:?}");
            return Err(wrong(operation, what));
        }
        values.push(value);
    }
    Ok(values)
}

/// What was read must have been there at some time.
fn check_reads(operations: &[Operation], values: &[i64]) -> Result<(), Violation> {
    for operation in operations {
        if let Outcome::Read { value, version } = operation.outcome
            && values.get(version as usize) != Some(&value)
        {
            return Err(wrong(operation, format!("nobody ever wrote that: {operation:?}")));
        }
    }
    Ok(())
}

/// What was answered before something else was asked happened before it.
fn check_time(operations: &[Operation], values: &[i64]) -> Result<(), Violation> {
    let mut by_answer: Vec<usize> = (0..operations.len()).collect();
    by_answer.sort_by_key(|index| operations[*index].answered_us);
    let latest = latest_allowed(operations, values.len() as u64 - 1);
    let mut by_question: Vec<usize> = (0..operations.len()).collect();
    by_question.sort_by_key(|index| operations[*index].asked_us);

    // The version behind which each operation happened; of a refusal, the first that explains it.
    let mut happened: Vec<Option<u64>> = vec![None; operations.len()];
    let mut answered = by_answer.into_iter().peekable();
    // The newest version that somebody has seen whose answer came before the question at hand.
    let mut seen = 0;
    for index in by_question {
        let operation = &operations[index];
        while let Some(done) = answered.next_if(|done| operations[*done].answered_us < operation.asked_us) {
            seen = seen.max(happened[done].unwrap_or(0));
        }
        let version = match operation.outcome {
            Outcome::Added { version, .. } if version <= seen => {
                let what = format!("version {seen} had been seen before it was asked: {operation:?}");
                return Err(wrong(operation, what));
            }
            Outcome::Read { version, .. } if version < seen => {
                return Err(wrong(operation, format!("a stale read, {seen} had been seen: {operation:?}")));
            }
            Outcome::Added { version, .. } | Outcome::Read { version, .. } => version,
            Outcome::Refused { delta, min, value } => {
                let explains = |version: &u64| values[*version as usize] == value && value + delta < min;
                let found = (seen..=latest[index]).find(explains);
                found.ok_or_else(|| {
                    let what =
                        format!("refused without a reason between versions {seen} and {}", latest[index]);
                    wrong(operation, format!("{what}: {operation:?}"))
                })?
            }
        };
        happened[index] = Some(version);
    }
    Ok(())
}

/// The last version behind which each operation can have happened: changes that were asked for after its answer come later.
fn latest_allowed(operations: &[Operation], last: u64) -> Vec<u64> {
    let mut by_answer: Vec<usize> = (0..operations.len()).collect();
    by_answer.sort_by_key(|index| std::cmp::Reverse(operations[*index].answered_us));
    let mut later: Vec<(u64, u64)> = operations
        .iter()
        .filter_map(|operation| match operation.outcome {
            Outcome::Added { version, .. } => Some((operation.asked_us, version - 1)),
            Outcome::Read { version, .. } => Some((operation.asked_us, version)),
            Outcome::Refused { .. } => None,
        })
        .collect();
    later.sort_unstable();
    let mut latest = vec![last; operations.len()];
    let mut bound = last;
    for index in by_answer {
        while let Some((_, version)) = later.pop_if(|(asked, _)| *asked > operations[index].answered_us) {
            bound = bound.min(version);
        }
        latest[index] = bound;
    }
    latest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(asked_us: u64, answered_us: u64, outcome: Outcome) -> Operation {
        Operation { key: 7, client: 0, asked_us, answered_us, outcome }
    }

    fn added(asked_us: u64, answered_us: u64, delta: i64, value: i64, version: u64) -> Operation {
        operation(asked_us, answered_us, Outcome::Added { delta, value, version })
    }

    fn read(asked_us: u64, answered_us: u64, value: i64, version: u64) -> Operation {
        operation(asked_us, answered_us, Outcome::Read { value, version })
    }

    fn refused(asked_us: u64, answered_us: u64, delta: i64, value: i64) -> Operation {
        operation(asked_us, answered_us, Outcome::Refused { delta, min: 0, value })
    }

    /// The last value, or the words of the violation.
    fn verdict(history: &[Operation]) -> Result<i64, String> {
        check(history).map(|values| values[&7]).map_err(|violations| violations[0].what.clone())
    }

    fn assert_wrong(history: &[Operation], words: &str) {
        let what = verdict(history).unwrap_err();
        assert!(what.contains(words), "{what}");
    }

    #[test]
    fn changes_that_overlap_may_come_in_any_order() {
        let history =
            [added(0, 100, 5, 8, 2), added(10, 90, 3, 3, 1), read(20, 30, 0, 0), read(40, 110, 3, 1)];
        assert_eq!(verdict(&history), Ok(8));
        assert_eq!(verdict(&[read(0, 1, 0, 0)]), Ok(0));
    }

    #[test]
    fn an_answer_at_the_moment_of_a_question_is_not_before_it() {
        assert_eq!(verdict(&[added(0, 10, 1, 2, 2), added(10, 20, 1, 1, 1)]), Ok(2));
    }

    #[test]
    fn a_lost_increment_is_found() {
        assert_wrong(&[added(0, 1, 1, 1, 1), added(2, 3, 1, 1, 1)], "answered twice");
        // The version went on, the value did not.
        assert_wrong(&[added(0, 1, 1, 1, 1), added(2, 3, 1, 1, 2)], "1 more is not 1");
    }

    #[test]
    fn an_increment_counted_twice_is_found() {
        assert_wrong(&[added(0, 1, 1, 1, 1), added(2, 3, 1, 3, 3)], "version 2 is nobody's");
        assert_wrong(&[added(0, 1, 1, 1, 1), added(2, 3, 1, 3, 2)], "1 more is not 3");
    }

    #[test]
    fn changes_out_of_time_are_found() {
        assert_wrong(&[added(0, 10, 1, 2, 2), added(20, 30, 1, 1, 1)], "had been seen before");
        // Seen by a read before the change was asked for.
        assert_wrong(&[read(0, 10, 1, 1), added(20, 30, 1, 1, 1)], "had been seen before");
    }

    #[test]
    fn stale_reads_are_found() {
        assert_wrong(&[added(0, 10, 1, 1, 1), read(20, 30, 0, 0)], "a stale read");
        let history = [added(0, 100, 1, 1, 1), read(10, 20, 1, 1), read(30, 40, 0, 0)];
        assert_wrong(&history, "a stale read");
        // The same reads at the same time are well.
        let history = [added(0, 100, 1, 1, 1), read(10, 35, 1, 1), read(30, 40, 0, 0)];
        assert_eq!(verdict(&history), Ok(1));
    }

    #[test]
    fn reads_of_what_never_was_are_found() {
        assert_wrong(&[added(0, 10, 1, 1, 1), read(20, 30, 2, 1)], "nobody ever wrote that");
        assert_wrong(&[added(0, 10, 1, 1, 1), read(20, 30, 2, 2)], "nobody ever wrote that");
    }

    #[test]
    fn a_refusal_needs_a_reason_within_its_time() {
        let stock = [added(0, 10, 2, 2, 1), added(20, 30, -2, 0, 2), added(40, 50, 1, 1, 3)];
        let with = |refusal: Operation| verdict(&[&stock[..], &[refusal]].concat());
        assert_eq!(with(refused(31, 39, -1, 0)), Ok(1));
        assert_eq!(with(refused(5, 45, -1, 0)), Ok(1));
        for early_or_late in [refused(11, 19, -1, 0), refused(51, 60, -1, 0)] {
            assert!(with(early_or_late).unwrap_err().contains("without a reason"));
        }
        // It says that it met a value which would have allowed it, or one that was not there then.
        assert!(with(refused(51, 60, -1, 1)).unwrap_err().contains("without a reason"));
        assert!(with(refused(31, 39, -3, 2)).unwrap_err().contains("without a reason"));
    }

    #[test]
    fn refusals_are_ordered_among_themselves() {
        // 0, then 1, then 0 again: the first refusal can only be late, so the second cannot be early.
        let history =
            [added(0, 10, 1, 1, 1), added(20, 100, -1, 0, 2), refused(30, 40, -1, 0), refused(50, 60, -2, 1)];
        assert_wrong(&history, "without a reason between versions 2");
        // The other way round it is well.
        let history =
            [added(0, 10, 1, 1, 1), added(20, 100, -1, 0, 2), refused(30, 40, -2, 1), refused(50, 60, -1, 0)];
        assert_eq!(verdict(&history), Ok(0));
    }

    #[test]
    fn counters_are_checked_each_for_itself() {
        let other = |operation: Operation| Operation { key: 8, ..operation };
        let history = [added(0, 10, 1, 1, 1), other(added(20, 30, 4, 4, 1))];
        assert_eq!(check(&history), Ok(BTreeMap::from([(7, 1), (8, 4)])));
    }
}
