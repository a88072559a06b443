//! `quipu check`: is a data folder whole?

use std::path::PathBuf;

use quipu_engine::{CheckReport, check};
use serde_json::json;

use super::failure::Failure;
use super::progress;
use super::terminal::{self, Screen};

/// check
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The data folder
    folder: PathBuf,
    /// Print nothing; the exit code says how it went
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Print JSON, for programs
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Reads every counter and compares the sums with the ledgers.
    pub fn run(&self) -> Result<(), Failure> {
        // Until the log has been read nobody knows how many counters there are.
        let bar = progress::spinner(&format!("checking {}", self.folder.display()), self.quiet);
        let report = check(&self.folder, &mut |counters, total| {
            if counters == 0 {
                progress::turn_to_counters(&bar, total);
            }
            bar.set_position(counters);
        });
        bar.finish_and_clear();
        let report = report.map_err(|error| Failure::from(anyhow::Error::new(error)))?;
        match (self.json, self.quiet) {
            (true, _) => terminal::print(to_json(&report))?,
            (false, false) => terminal::print(describe(&report))?,
            (false, true) => {}
        }
        if report.problems.is_empty() {
            return Ok(());
        }
        Err(Failure::damaged(format!(
            "{} does not agree with its ledger; restore it from a backup, and keep a copy for whoever looks into it",
            self.folder.display()
        )))
    }
}

fn describe(report: &CheckReport) -> String {
    let CheckReport { partitions, counters, sum, request_ids, producers, problems } = report;
    let screen = Screen::stdout();
    let mut lines = vec![
        format!("partitions   {partitions}"),
        format!("counters     {}, in sum {}", screen.number(*counters), screen.number(*sum)),
        format!("request ids  {}", screen.number(*request_ids)),
        format!("producers    {}", screen.number(*producers)),
    ];
    lines.extend(problems.iter().map(|problem| format!("PROBLEM      {problem}")));
    if problems.is_empty() {
        lines.push("all is well: every partition agrees with its ledger".to_owned());
    }
    lines.join("\n")
}

fn to_json(report: &CheckReport) -> serde_json::Value {
    json!({
        "ok": report.problems.is_empty(),
        "partitions": report.partitions,
        "counters": report.counters,
        // The sum of many counters may exceed what JSON readers can hold.
        "sumText": report.sum.to_string(),
        "requestIds": report.request_ids,
        "producers": report.producers,
        "problems": report.problems,
    })
}
