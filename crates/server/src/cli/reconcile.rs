//! `quipu reconcile`: are the counters what a source of truth says?
//!
//! | file | what it says |
//! |---|---|
//! | here | arguments, and the course of a run |
//! | `truths` | the source: a query of PostgreSQL, or a file |
//! | `compare` | when a counter can be compared with it, and what is found |
//! | `findings` | a counter that differs; many of them, on disk |
//! | `correct` | corrections, each once |
//! | `report` | what is said about it all |
//!
//! Whether a counter differs can only be said of one point in time, the *mark*. A source in PostgreSQL is read as of one moment,
//! which is its mark; a file has the time of `--as-of`. A counter that was not changed for a while before the mark (`--settle`, by
//! how much the source and quipu may be apart) and not since, had the value it has now at the mark, whatever is under way elsewhere.
//! Only such a counter is judged. Others are looked at again, under a new mark, as far as the source can say what holds then.
//!
//! A correction is an addition of what is missing: whatever is counted between the mark and the correction stays. Its request id is
//! made of the state that was judged, so the same finding is corrected once, however often and from wherever it is sent.

mod compare;
mod correct;
mod findings;
mod report;
mod truths;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use quipu_counting::told::REASON_BYTES_MAX;

use self::compare::Comparison;
use self::report::Report;
use self::truths::Truths;
use super::client::Client;
use super::counter::time_ms;
use super::export::Format;
use super::failure::Failure;
use super::interrupt::{Interrupt, end_by};
use super::progress;
use super::terminal::{print_error, print_note};
use crate::config::units;

/// reconcile
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Where the truth is: postgres://...?query=SELECT..., or a CSV or NDJSON file with key and value; - is stdin
    #[arg(long, value_name = "SOURCE")]
    source: String,
    /// The query, if it does not stand in --source: its columns are key and value
    #[arg(long, value_name = "SQL")]
    query: Option<String>,
    /// How the rows of a file are written [default: by its name, else by what it begins with]
    #[arg(short, long, value_enum)]
    format: Option<Format>,
    /// As of when the source is right, for files [default: when the file was last written]
    #[arg(long, value_name = "TIME", value_parser = moment)]
    as_of: Option<u64>,
    /// By how much the source and quipu may be apart: a change is in both after this
    #[arg(long, value_name = "DURATION", value_parser = units::duration_ms, default_value = "2s")]
    settle: u64,
    /// How often to look at counters that keep changing, before they are given up as busy
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u8).range(1..=100))]
    rounds: u8,
    /// The source has all counters that begin with this: report those that it lacks
    #[arg(short, long, value_name = "PREFIX")]
    prefix: Option<OsString>,
    /// Correct what differs; without it nothing is changed
    #[arg(long)]
    apply: bool,
    /// With --apply: also make counters that the source has and quipu lacks
    #[arg(long, requires = "apply")]
    create_missing: bool,
    /// With --apply: also bring counters to zero that the source lacks
    #[arg(long, requires = "apply", requires = "prefix")]
    zero_unlisted: bool,
    /// With --apply: also correct busy counters that differed by the same in every one of at least 3 rounds
    #[arg(long, requires = "apply")]
    steady: bool,
    /// Why, for the trail [default: what the source said, and what the counter was]
    #[arg(long, value_name = "TEXT", requires = "apply")]
    reason: Option<String>,
    /// Append what was found and done to this file, as NDJSON
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Do it again and again, so long after each end
    #[arg(long, value_name = "DURATION", value_parser = units::duration_ms)]
    every: Option<u64>,
    /// Draw no progress and print no findings; the exit code says how it went
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    #[command(flatten)]
    client: Client,
}

fn moment(text: &str) -> Result<u64, String> {
    let ms = text.parse().ok().or_else(|| time_ms(text));
    ms.ok_or_else(|| "a time like 2026-02-23T10:00:00Z, or milliseconds since 1970".to_owned())
}

impl Args {
    /// Compares, and corrects where that is wanted.
    pub fn run(&self) -> Result<(), Failure> {
        if self.reason.as_ref().is_some_and(|text| !(1..=REASON_BYTES_MAX).contains(&text.len())) {
            return Err(Failure::malformed(format!("--reason has 1 to {REASON_BYTES_MAX} bytes")));
        }
        let interrupt = Interrupt::watch().map_err(|error| Failure::general(error.to_string()))?;
        let Some(every_ms) = self.every else { return self.run_once(&interrupt) };
        if self.source == "-" {
            return Err(Failure::malformed("stdin can be read once; --every needs a query or a file"));
        }
        loop {
            // The next one may go better: a source or a server that is away comes back.
            if let Err(failure) = self.run_once(&interrupt) {
                print_error(&failure.to_string());
            }
            if let Some(signal) = interrupt.wait(Duration::from_millis(every_ms)) {
                end_by(signal);
            }
        }
    }

    fn run_once(&self, interrupt: &Interrupt) -> Result<(), Failure> {
        let started = Instant::now();
        let bar = progress::spinner("comparing: ", self.quiet);
        let mut truths = Truths::open(self, interrupt)?;
        let mut comparison = Comparison::new(self, interrupt, &bar)?;
        comparison.run(&mut truths)?;
        // The source is not needed any more, and its moment costs it something.
        let source = truths.shown();
        drop(truths);
        bar.finish_and_clear();
        let (findings, tally) = comparison.finish()?;
        let mut report = Report::begin(self, &source, tally)?;
        self.correct(findings, &mut report, interrupt)?;
        report.end(started)
    }
}

/// What to do when somebody asks to stop: nothing was changed yet.
fn stop(interrupt: &Interrupt) {
    if let Some(signal) = interrupt.received() {
        print_note("interrupted; nothing was changed");
        end_by(signal);
    }
}
