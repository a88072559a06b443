//! What is said about an import: how many rows, which were bad or refused, and how to go on.

use std::time::Instant;

use serde_json::json;

use super::connection::Target;
use super::tally::Tally;
use super::{Args, End, Mode};
use crate::cli::failure::Failure;
use crate::cli::terminal::{self, Screen};

impl Args {
    /// After a look only: what would be imported, or why nothing was.
    pub(super) fn tell_findings(&self, tally: &Tally) -> Result<(), Failure> {
        if self.json {
            terminal::print(json!({
                "dryRun": self.dry_run,
                "imported": 0,
                "rows": tally.imported,
                "bad": tally.bad,
                "problems": tally.to_json()["problems"],
            }))?;
        }
        if !self.quiet {
            tally.problem_lines().iter().for_each(|line| terminal::print_aside(line));
        }
        let screen = Screen::stdout();
        let (rows, bad) = (screen.number(tally.imported), screen.number(tally.bad));
        if tally.bad > 0 && !self.skip_bad {
            let all = screen.number(tally.imported + tally.bad);
            return Err(Failure::malformed(format!(
                "{bad} of {all} rows are bad, and nothing was imported; correct them, or pass over them with --skip-bad"
            )));
        }
        if self.quiet || self.json {
            return Ok(());
        }
        terminal::print(format!("{rows} rows would be imported, {bad} are bad"))
    }

    /// After an import, whatever its end.
    pub(super) fn summarize(&self, tally: &Tally, target: &Target, started: Instant) -> Result<(), Failure> {
        let seconds = started.elapsed().as_secs_f64();
        let per_second = tally.in_effect() as f64 / seconds.max(f64::MIN_POSITIVE);
        if self.json {
            let mut summary = tally.to_json();
            summary["target"] = json!(target.shown());
            summary["mode"] = json!(if self.mode == Mode::Add { "add" } else { "set" });
            summary["seconds"] = json!(seconds);
            summary["rowsPerSecond"] = json!(per_second);
            return terminal::print(summary);
        }
        if self.quiet {
            return Ok(());
        }
        tally.problem_lines().iter().for_each(|line| terminal::print_aside(line));
        let screen = Screen::stdout();
        terminal::print(format!(
            "imported {} rows into {} in {} ({} per second)",
            screen.number(tally.imported),
            target.shown(),
            terminal::duration((seconds * 1e3) as u64),
            screen.number(per_second as i128),
        ))?;
        if tally.repeated == 0 {
            return Ok(());
        }
        terminal::print(format!(
            "{} rows were counted by an earlier import of the same lines, and not again{}",
            screen.number(tally.repeated),
            if self.run_id.is_none() { " (--run-id NAME makes it another import)" } else { "" },
        ))
    }

    /// What was done, and how to go on.
    pub(super) fn how_far(&self, tally: &Tally) -> String {
        if tally.in_effect() == 0 {
            return "nothing was imported".to_owned();
        }
        let rows = terminal::grouped(tally.in_effect().into());
        let line = tally.last_line;
        let again = match self.mode {
            Mode::Add => "the same command again counts nothing twice",
            Mode::Set => "the same command again sets them once more",
        };
        match tally.first_failed().filter(|_| !self.skip_bad) {
            // Rows behind one that the server refuses are under way when it says so.
            Some(failed) if failed <= line => format!(
                "{rows} rows are imported, up to line {line} but for those that were refused; {again}, \
                 --from-line {failed} begins with the first that was refused"
            ),
            _ => {
                let next = line + 1;
                format!(
                    "{rows} rows are imported, up to line {line}; {again}, --from-line {next} goes on behind them"
                )
            }
        }
    }

    /// Whether it was a success.
    pub(super) fn judge(&self, end: End, tally: &Tally) -> Result<(), Failure> {
        match (tally.failed(), tally.in_effect()) {
            (0, _) => Ok(()),
            (failed, _) if matches!(end, End::Whole) && self.skip_bad => Err(Failure::partial(format!(
                "{} rows were passed over, all others are imported",
                terminal::grouped(failed.into())
            ))),
            (_, 0) if tally.refused == 0 => {
                Err(Failure::malformed("nothing was imported; --skip-bad passes over bad rows"))
            }
            (failed, _) if matches!(end, End::Whole) => Err(Failure::partial(format!(
                "{} rows were refused, all others are imported; --from-line {} begins with the first of them, \
                 --skip-bad passes over them",
                terminal::grouped(failed.into()),
                tally.first_failed().unwrap_or(1)
            ))),
            _ => Err(Failure::partial(format!(
                "stopped because of line {}: {}; --skip-bad passes over bad and refused rows",
                tally.first_failed().unwrap_or(1),
                self.how_far(tally)
            ))),
        }
    }
}
