//! What is said about a run: a table for a person, lines for a program, rows in a file that is kept.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::time::Instant;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Args;
use super::compare::Tally;
use super::correct::Correction;
use super::findings::{Finding, Kind};
use crate::cli::failure::{Failure, system_words};
use crate::cli::terminal::{self, Screen, print_aside, print_note};

/// Findings of a table: what a person reads. All of them are behind a pipe, with --json and in the report.
const SHOWN_MAX: usize = 50;
const COLUMNS: &[&str] = &["KEY", "SOURCE ", "QUIPU ", "DRIFT ", "FINDING", "CORRECTION"];

/// What is told while a run goes on, and at its end.
pub struct Report<'a> {
    args: &'a Args,
    screen: Screen,
    tally: Tally,
    table: Vec<Vec<String>>,
    kept: Option<BufWriter<File>>,
    applied: u64,
    before: u64,
    refused: u64,
    /// Findings that nobody wanted corrected, busy ones apart.
    left: u64,
    /// Why the first that was refused was.
    first_refusal: Option<String>,
}

impl<'a> Report<'a> {
    /// Everything is compared, nothing is corrected yet.
    pub fn begin(args: &'a Args, source: &str, tally: Tally) -> Result<Report<'a>, Failure> {
        let kept = args.report.as_ref().map(|path| File::options().create(true).append(true).open(path));
        let kept = kept.transpose().map_err(|error| unwritable(args, &error))?.map(BufWriter::new);
        let mut report = Report {
            args,
            screen: Screen::stdout(),
            tally,
            table: Vec::new(),
            kept,
            applied: 0,
            before: 0,
            refused: 0,
            left: 0,
            first_refusal: None,
        };
        let server = &args.client.server;
        let run = json!({ "at": Timestamp::now().to_string(), "source": source, "server": server, "apply": args.apply });
        report.keep(&json!({ "run": run }))?;
        Ok(report)
    }

    /// One finding, and what became of it.
    pub fn tell(&mut self, finding: &Finding, correction: &Correction) -> Result<(), Failure> {
        let became = match correction {
            Correction::None if finding.kind == Kind::Busy => "",
            Correction::None => {
                self.left += 1;
                ""
            }
            Correction::Applied => {
                self.applied += 1;
                "applied"
            }
            Correction::Before => {
                self.before += 1;
                "applied before"
            }
            Correction::Refused(why) => {
                self.refused += 1;
                self.first_refusal.get_or_insert_with(|| format!("{}: {why}", terminal::key(&finding.key)));
                "refused"
            }
        };
        let mut row = finding.to_json();
        if !became.is_empty() {
            row.insert("correction".into(), json!(became));
        }
        if let Correction::Refused(why) = correction {
            row.insert("refusal".into(), json!(why));
        }
        let row = Value::Object(row);
        self.keep(&row)?;
        if self.args.quiet {
            return Ok(());
        }
        if self.args.client.json {
            return terminal::print(row);
        }
        let is_shown = !self.screen.is_terminal || self.table.len() < SHOWN_MAX;
        if is_shown {
            let fields = self.fields(finding, became);
            match self.screen.is_terminal {
                true => self.table.push(fields),
                false => terminal::print(fields.join("\t").trim_end())?,
            }
        }
        Ok(())
    }

    fn fields(&self, finding: &Finding, became: &str) -> Vec<String> {
        let number =
            |number: Option<i128>| number.map_or("-".to_owned(), |number| self.screen.number(number));
        let value = (finding.version > 0).then(|| finding.value.into());
        vec![
            terminal::key(&finding.key),
            number(finding.truth.map(i128::from)),
            number(value),
            number(Some(finding.drift())),
            finding.kind.name().to_owned(),
            became.to_owned(),
        ]
    }

    fn keep(&mut self, row: &Value) -> Result<(), Failure> {
        let Some(kept) = &mut self.kept else { return Ok(()) };
        writeln!(kept, "{row}").map_err(|error| unwritable(self.args, &error))
    }

    /// What was told so far is on disk.
    pub fn flush(&mut self) -> Result<(), Failure> {
        let Some(kept) = &mut self.kept else { return Ok(()) };
        kept.flush().and_then(|()| kept.get_ref().sync_data()).map_err(|error| unwritable(self.args, &error))
    }

    /// Sums up. That there is a difference left is a failure.
    pub fn end(mut self, started: Instant) -> Result<(), Failure> {
        let summary = json!({ "summary": self.summary(started) });
        self.keep(&summary)?;
        self.flush()?;
        let args = self.args;
        if args.client.json {
            terminal::print(summary)?;
        } else if !args.quiet {
            if !self.table.is_empty() {
                terminal::print(self.screen.table(COLUMNS, std::mem::take(&mut self.table)))?;
            }
            self.sum_up(started);
        }
        self.judge()
    }

    fn summary(&self, started: Instant) -> Value {
        let tally = &self.tally;
        let number = |number: i128| i64::try_from(number).map_or(json!(number.to_string()), Value::from);
        json!({
            "rows": tally.rows, "same": tally.same, "drifts": tally.drifts, "missing": tally.missing,
            "unlisted": tally.unlisted, "busy": tally.busy, "busyDiffering": tally.busy_differing,
            "driftSum": number(tally.drift_sum),
            "driftSize": number(i128::try_from(tally.drift_size).unwrap_or(i128::MAX)),
            "apply": self.args.apply, "applied": self.applied, "appliedBefore": self.before, "refused": self.refused,
            "seconds": started.elapsed().as_secs_f64(),
        })
    }

    fn sum_up(&self, started: Instant) {
        let tally = &self.tally;
        let number = |number: u64| terminal::grouped(number.into());
        let found = tally.drifts + tally.missing + tally.unlisted + tally.busy_differing;
        if self.screen.is_terminal && found > SHOWN_MAX as u64 {
            print_note(&format!(
                "{} more are not shown; --json or --report FILE has all",
                number(found - SHOWN_MAX as u64)
            ));
        }
        print_aside(&format!(
            "{} rows compared in {}: {} drifts (sum {}, size {}), {} missing, {} unlisted, {} busy",
            number(tally.rows),
            terminal::duration(started.elapsed().as_millis() as u64),
            number(tally.drifts),
            terminal::grouped(tally.drift_sum),
            terminal::grouped(i128::try_from(tally.drift_size).unwrap_or(i128::MAX)),
            number(tally.missing),
            number(tally.unlisted),
            number(tally.busy),
        ));
        if self.args.apply {
            let (applied, before, refused) =
                (number(self.applied), number(self.before), number(self.refused));
            print_aside(&format!(
                "{applied} corrected, {before} had been corrected before, {refused} refused"
            ));
        }
        if tally.busy > 0 {
            print_note(&format!(
                "{} counters changed all the time and were not judged ({} of them differed when last seen); see --rounds, --settle and \
                 --steady",
                number(tally.busy),
                number(tally.busy_differing)
            ));
        }
    }

    fn judge(&self) -> Result<(), Failure> {
        let number = |number: u64| terminal::grouped(number.into());
        if let Some(first) = &self.first_refusal {
            let refused = number(self.refused);
            return Err(Failure::partial(format!("{refused} corrections were refused; the first: {first}")));
        }
        if self.left == 0 {
            return Ok(());
        }
        let left = number(self.left);
        Err(Failure::drift(match self.args.apply {
            false => format!("{left} counters differ from the source; --apply corrects them"),
            true => format!("{left} counters were left alone; see --create-missing and --zero-unlisted"),
        }))
    }
}

fn unwritable(args: &Args, error: &std::io::Error) -> Failure {
    let path = args.report.clone().unwrap_or_default();
    Failure::general(format!("cannot write {}: {}", path.display(), system_words(error)))
}
