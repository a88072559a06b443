//! `quipu check`: is a data folder whole?

use std::path::PathBuf;

use quipu_engine::{CheckReport, check};
use serde_json::json;

use super::failure::Failure;

/// check
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The data folder
    folder: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Reads every counter and compares the sums with the ledgers.
    pub fn run(&self) -> Result<(), Failure> {
        let report = check(&self.folder).map_err(|error| Failure::from(anyhow::Error::new(error)))?;
        if self.json {
            println!("{}", to_json(&report))
        } else {
            print(&report)
        }
        if report.problems.is_empty() {
            return Ok(());
        }
        Err(Failure::general(format!(
            "{} does not agree with its ledger; restore it from a backup, and keep a copy for whoever looks into it",
            self.folder.display()
        )))
    }
}

fn print(report: &CheckReport) {
    let CheckReport { partitions, counters, sum, request_ids, producers, problems } = report;
    println!("partitions   {partitions}");
    println!("counters     {counters}, in sum {sum}");
    println!("request ids  {request_ids}");
    println!("producers    {producers}");
    for problem in problems {
        println!("PROBLEM      {problem}");
    }
    if problems.is_empty() {
        println!("all is well: every partition agrees with its ledger");
    }
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
