//! Stories: clusters that do what a text says, line by line, and must answer what it says.
//!
//! ```text
//! cluster of 3
//! call old the leader of likes
//! add likes 5 id a at node 2 -> 5
//! cut old from all
//! add likes 1 id b at old -> outcome-unknown
//! ```
//!
//! A line is a step (`steps`), and behind the arrow what comes of it; without an arrow it must just work. `5 or 5 again` is for
//! what chance decides. The words `the`, `node`
//! and `nodes` are for the reader. What follows a `#` is a comment. Time passes in steps that take time, and in no others.
//!
//! A story must not depend on luck, so it is told with several seeds, and ends the same way each time.

mod steps;

use std::fmt;
use std::path::Path;

use quipu_cluster::raft::runtime::seed_chances;

use self::steps::Stage;

/// What a step says that just works.
const DONE: &str = "done";

/// A line of a story that did not come true.
#[derive(Debug, PartialEq, Eq)]
pub struct Mismatch {
    pub file: String,
    pub line: usize,
    pub step: String,
    pub expected: String,
    pub got: String,
    pub seed: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { file, line, step, expected, got, seed } = self;
        write!(f, "{file}:{line}: {step}\n  expected: {expected}\n       got: {got}\n  (seed {seed})")
    }
}

/// Tells the story of a file.
pub fn tell_file(path: &Path, seed: u64) -> Result<(), Mismatch> {
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| Mismatch {
        file: file.clone(),
        line: 0,
        step: String::new(),
        expected: "a story".into(),
        got: error.to_string(),
        seed,
    })?;
    tell(&file, &text, seed)
}

/// Tells a story; the first line that does not come true ends it.
pub fn tell(file: &str, text: &str, seed: u64) -> Result<(), Mismatch> {
    seed_chances(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let mismatch = |line: usize, step: &str, expected: &str, got: String| Mismatch {
        file: file.to_string(),
        line,
        step: step.to_string(),
        expected: expected.to_string(),
        got,
        seed,
    };
    let runtime = runtime.map_err(|error| mismatch(0, "", "a runtime", error.to_string()))?;
    runtime.block_on(async {
        let mut stage = Stage::new(seed).map_err(|error| mismatch(0, "", "a world", error.to_string()))?;
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.split('#').next().unwrap_or_default().trim();
            if text.is_empty() {
                continue;
            }
            let (step, expected) = match text.split_once("->") {
                Some((step, expected)) => (step.trim(), expected.trim()),
                None => (text, DONE),
            };
            let got = stage.step(step).await.unwrap_or_else(|why| why);
            if !expected.split(" or ").any(|expected| got == expected) {
                return Err(mismatch(line, step, expected, got));
            }
        }
        stage.end().await;
        Ok(())
    })
}
