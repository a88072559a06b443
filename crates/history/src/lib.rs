//! Was there one counter, and did everybody see it in one order?
//!
//! Every change answers the counter's version, so the order of changes is known and nothing has to be searched: by version they
//! must be 1, 2, 3, ... and each value the one before plus what was added. What is left is time. Whatever was answered before
//! something else was asked comes before it; one walk over all beginnings and ends, sorted, checks that. Each operation then has a
//! point between its question and its answer at which it happened, in that order: the history is linearizable.
//!
//! Nothing may be left unknown: whoever lost an answer asks again under the same id, and the operation lasts from the first
//! question to the first answer.
//!
//! Simulated clusters and tortured ones are held against the same rules, so they live here, and know neither.

use std::collections::BTreeMap;
use std::fmt;

/// What was asked, and what came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// An addition that was carried out.
    Added {
        /// What was added.
        delta: i64,
        /// The value then.
        value: i64,
        /// The version that was made.
        version: u64,
    },
    /// An addition that would have gone below a bound.
    Refused {
        /// What was to be added.
        delta: i64,
        /// The bound.
        min: i64,
        /// The value it met.
        value: i64,
        /// The version it met.
        version: u64,
    },
    /// A look.
    Read {
        /// The value.
        value: i64,
        /// The version.
        version: u64,
    },
}

impl Outcome {
    /// The version that was made, or met.
    fn version(self) -> u64 {
        match self {
            Outcome::Added { version, .. }
            | Outcome::Refused { version, .. }
            | Outcome::Read { version, .. } => version,
        }
    }
}

/// One operation on one counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

/// What must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Every version is made once.
    Once,
    /// Values follow from each other, and nothing was seen that never was.
    Values,
    /// What was over before something else began comes before it.
    Time,
}

/// Something that cannot have happened.
#[derive(Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which rule it breaks.
    pub rule: Rule,
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
    check_time(operations)?;
    Ok(values.last().copied().unwrap_or(0))
}

fn wrong(rule: Rule, operation: &Operation, what: String) -> Violation {
    Violation { rule, key: operation.key, at_us: operation.answered_us, what }
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
            return Err(wrong(
                Rule::Once,
                operation,
                format!("version {version} was answered twice: {operation:?}"),
            ));
        }
        if version > expected {
            let what = format!("version {expected} is nobody's, {version} is there: {operation:?}");
            return Err(wrong(Rule::Values, operation, what));
        }
        if before + delta != value {
            let what = format!("{before} was there, and {delta} more is not {value}: {operation:?}");
            return Err(wrong(Rule::Values, operation, what));
        }
        values.push(value);
    }
    Ok(values)
}

/// What was read must have been there at some time, and what was refused must have had its reason then.
fn check_reads(operations: &[Operation], values: &[i64]) -> Result<(), Violation> {
    for operation in operations {
        match operation.outcome {
            Outcome::Read { value, version } | Outcome::Refused { value, version, .. }
                if values.get(version as usize) != Some(&value) =>
            {
                return Err(wrong(Rule::Values, operation, format!("nobody ever wrote that: {operation:?}")));
            }
            Outcome::Refused { delta, min, value, .. } if value + delta >= min => {
                return Err(wrong(
                    Rule::Values,
                    operation,
                    format!("refused without a reason: {operation:?}"),
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

/// What was answered before something else was asked happened before it.
fn check_time(operations: &[Operation]) -> Result<(), Violation> {
    let mut by_answer: Vec<&Operation> = operations.iter().collect();
    by_answer.sort_by_key(|operation| operation.answered_us);
    let mut by_question: Vec<&Operation> = operations.iter().collect();
    by_question.sort_by_key(|operation| operation.asked_us);
    let mut answered = by_answer.into_iter().peekable();
    // The newest version that somebody has seen whose answer came before the question at hand.
    let mut seen = 0;
    for operation in by_question {
        while let Some(done) = answered.next_if(|done| done.answered_us < operation.asked_us) {
            seen = seen.max(done.outcome.version());
        }
        let version = operation.outcome.version();
        let (is_change, what) = match operation.outcome {
            Outcome::Added { .. } => (true, "had been seen before it was asked"),
            Outcome::Read { .. } => (false, "had been seen before this stale read"),
            Outcome::Refused { .. } => (false, "had been seen before this stale refusal"),
        };
        if version < seen || (is_change && version == seen) {
            return Err(wrong(Rule::Time, operation, format!("version {seen} {what}: {operation:?}")));
        }
    }
    Ok(())
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

    fn refused(asked_us: u64, answered_us: u64, delta: i64, value: i64, version: u64) -> Operation {
        operation(asked_us, answered_us, Outcome::Refused { delta, min: 0, value, version })
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
        assert_wrong(&[added(0, 10, 1, 1, 1), read(20, 30, 0, 0)], "this stale read");
        let history = [added(0, 100, 1, 1, 1), read(10, 20, 1, 1), read(30, 40, 0, 0)];
        assert_wrong(&history, "this stale read");
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
        assert_eq!(with(refused(31, 39, -1, 0, 2)), Ok(1));
        assert_eq!(with(refused(5, 45, -1, 0, 2)), Ok(1));
        assert_eq!(with(refused(5, 45, -3, 2, 1)), Ok(1));
        assert!(with(refused(51, 60, -1, 0, 2)).unwrap_err().contains("stale refusal"));
        // Too early: the change that it met was asked for after its answer.
        assert!(with(refused(11, 19, -1, 0, 2)).unwrap_err().contains("had been seen before it was asked"));
        assert!(with(refused(31, 60, -1, 1, 3)).unwrap_err().contains("without a reason"));
        assert!(with(refused(31, 60, -3, 2, 3)).unwrap_err().contains("nobody ever wrote that"));
    }

    #[test]
    fn counters_are_checked_each_for_itself() {
        let other = |operation: Operation| Operation { key: 8, ..operation };
        let history = [added(0, 10, 1, 1, 1), other(added(20, 30, 4, 4, 1))];
        assert_eq!(check(&history), Ok(BTreeMap::from([(7, 1), (8, 4)])));
    }
}
