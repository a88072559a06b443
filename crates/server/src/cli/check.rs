//! `quipu check`: is a data folder whole?

use std::path::PathBuf;

use quipu_engine::{CheckReport, check};
use serde_json::json;

use super::failure::Failure;
use super::progress;
use super::terminal::{self, Screen};
use crate::cluster::folder::ClusterFolder;

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
        if ClusterFolder::find(&self.folder).is_some() && !self.quiet {
            eprintln!(
                "note: a node's folder; changes that are in its log and in no checkpoint yet are not looked at, \
                 `quipu cluster digest` does"
            );
        }
        // Until the log has been read nobody knows how many counters there are.
        let bar = progress::spinner(&format!("checking {}", self.folder.display()), self.quiet);
        let report = check(&self.folder, &mut |counters, total| {
            if counters == 0 {
                progress::turn_to_counters(&bar, total);
            }
            bar.set_position(counters);
        });
        bar.finish_and_clear();
        let found = match report {
            Ok(report) => Found::Read(report),
            // What is found on the way is told like what is found at the end.
            Err(error) if error.is_damage() => Found::Unreadable(error.to_string()),
            Err(error) => return Err(anyhow::Error::new(error).into()),
        };
        match (self.json, self.quiet) {
            (true, _) => terminal::print(found.to_json())?,
            (false, false) => terminal::print(found.describe())?,
            (false, true) => {}
        }
        let folder = self.folder.display();
        let what = match &found {
            Found::Read(report) if report.problems.is_empty() => return Ok(()),
            Found::Read(_) => "does not agree with its ledger",
            Found::Unreadable(_) => "is damaged",
        };
        Err(Failure::damaged(format!(
            "{folder} {what}; restore it from a backup, and keep a copy for whoever looks into it"
        )))
    }
}

/// What there is to tell.
enum Found {
    /// Everything was read.
    Read(CheckReport),
    /// Damage, in words, that let nothing be counted.
    Unreadable(String),
}

impl Found {
    fn describe(&self) -> String {
        match self {
            Found::Read(report) => describe(report),
            Found::Unreadable(problem) => problem_line(problem),
        }
    }

    /// The same fields whatever was found; `null` is what is not known.
    fn to_json(&self) -> serde_json::Value {
        let (report, problems) = match self {
            Found::Read(report) => (Some(report), report.problems.as_slice()),
            Found::Unreadable(problem) => (None, std::slice::from_ref(problem)),
        };
        json!({
            "ok": problems.is_empty(),
            "partitions": report.map(|report| report.partitions),
            "counters": report.map(|report| report.counters),
            // The sum of many counters may exceed what JSON readers can hold.
            "sumText": report.map(|report| report.sum.to_string()),
            "requestIds": report.map(|report| report.request_ids),
            "producers": report.map(|report| report.producers),
            "trailRows": report.map(|report| report.trail_rows),
            "problems": problems,
        })
    }
}

fn problem_line(problem: &String) -> String {
    format!("PROBLEM      {problem}")
}

fn describe(report: &CheckReport) -> String {
    let CheckReport { partitions, counters, sum, request_ids, producers, trail_rows, problems } = report;
    let screen = Screen::stdout();
    let mut lines = vec![
        format!("partitions   {partitions}"),
        format!("counters     {}, in sum {}", screen.number(*counters), screen.number(*sum)),
        format!("request ids  {}", screen.number(*request_ids)),
        format!("producers    {}", screen.number(*producers)),
        format!("trail rows   {}", screen.number(*trail_rows)),
    ];
    lines.extend(problems.iter().map(problem_line));
    if problems.is_empty() {
        lines.push("all is well: every partition agrees with its ledger".to_owned());
    }
    lines.join("\n")
}
