//! What became of the rows.

use serde_json::{Value, json};

use super::rows::BadRow;
use crate::cli::terminal;

/// Problems that are kept to be told: a file of the wrong kind would have millions.
const PROBLEMS_MAX: usize = 100;

/// Rows by what became of them.
#[derive(Debug, Default)]
pub struct Tally {
    /// Rows that took effect.
    pub imported: u64,
    /// Additions that took effect in an earlier run.
    pub repeated: u64,
    /// Rows that the server refused.
    pub refused: u64,
    /// Lines that are no rows.
    pub bad: u64,
    /// The last line whose outcome is known; all before it are known too.
    pub last_line: u64,
    /// The first problems.
    problems: Vec<Problem>,
}

#[derive(Debug)]
struct Problem {
    line: u64,
    key: Option<Vec<u8>>,
    reason: String,
}

impl Tally {
    /// A row took effect.
    pub fn imported(&mut self, line: u64) {
        self.imported += 1;
        self.last_line = line;
    }

    /// An addition took effect in an earlier run, and not again.
    pub fn repeated(&mut self, line: u64) {
        self.repeated += 1;
        self.last_line = line;
    }

    /// The server refused a row.
    pub fn refused(&mut self, line: u64, key: &[u8], reason: String) {
        self.refused += 1;
        self.last_line = line;
        self.keep(Problem { line, key: Some(key.to_vec()), reason });
    }

    /// A line is no row.
    pub fn bad(&mut self, BadRow { line, reason }: BadRow) {
        self.bad += 1;
        self.keep(Problem { line, key: None, reason });
    }

    fn keep(&mut self, problem: Problem) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem);
        }
    }

    /// Rows that were not imported though they should have been.
    pub fn failed(&self) -> u64 {
        self.refused + self.bad
    }

    /// The first line that was not imported though it should have been.
    pub fn first_failed(&self) -> Option<u64> {
        self.problems.iter().map(|problem| problem.line).min()
    }

    /// Rows whose counters are now as the file says.
    pub fn in_effect(&self) -> u64 {
        self.imported + self.repeated
    }

    /// The first problems, a line each.
    pub fn problem_lines(&self) -> Vec<String> {
        let mut problems: Vec<&Problem> = self.problems.iter().collect();
        // Those of the server come later than those of the file.
        problems.sort_by_key(|problem| problem.line);
        let mut lines: Vec<String> = problems
            .iter()
            .map(|Problem { line, key, reason }| match key {
                Some(key) => format!("line {line}, {}: {reason}", terminal::key(key)),
                None => format!("line {line}: {reason}"),
            })
            .collect();
        let untold = self.failed() - lines.len() as u64;
        if untold > 0 {
            lines.push(format!("... and {} more", terminal::grouped(untold.into())));
        }
        lines
    }

    /// The counts and the first problems.
    pub fn to_json(&self) -> Value {
        let problem = |problem: &Problem| {
            let key = problem.key.as_deref().map(terminal::key);
            json!({"line": problem.line, "key": key, "reason": problem.reason})
        };
        json!({
            "imported": self.imported,
            "repeated": self.repeated,
            "refused": self.refused,
            "bad": self.bad,
            "lastLine": self.last_line,
            "problems": self.problems.iter().map(problem).collect::<Vec<_>>(),
        })
    }
}
