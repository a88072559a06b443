//! sum: totals over the counters of a pattern.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use serde::Deserialize;

use super::client::{Call, Client, encode};
use super::counters::{Part as PartOfValue, key_parser, print_groups};
use super::failure::Failure;
use super::terminal::{self, Screen, print_note};

/// sum
#[derive(Debug, clap::Args)]
pub struct Sum {
    /// Which counters: a key in which * stands for any bytes and ? for one
    #[arg(value_parser = key_parser())]
    pattern: OsString,
    /// Show where the numbers come from, partition by partition
    #[arg(long, conflicts_with = "json")]
    parts: bool,
    /// Be content with what can be asked, where a part of a cluster does not answer
    #[arg(long)]
    partial: bool,
    #[command(flatten)]
    part: PartOfValue,
    #[command(flatten)]
    client: Client,
}

/// What a server answers.
#[derive(Deserialize)]
struct Totals {
    sum: i128,
    count: u64,
    min: Option<i64>,
    max: Option<i64>,
    parts: Vec<Part>,
    #[serde(default)]
    missing: Vec<Missing>,
    groups: Option<Vec<SumGroup>>,
    partial: bool,
}

#[derive(Deserialize)]
struct SumGroup {
    dims: BTreeMap<String, String>,
    sum: i128,
}

#[derive(Deserialize)]
struct Part {
    partition: u16,
    node: Option<u64>,
    sum: i128,
    count: u64,
}

#[derive(Deserialize)]
struct Missing {
    partition: u16,
    detail: String,
}

impl Sum {
    /// Prints sum, count, smallest and largest value; behind a pipe the sum.
    pub fn run(&self) -> Result<(), Failure> {
        let pattern = encode(self.pattern.as_bytes());
        let part = self.part.parameter('&');
        let call = Call::get(format!("counters/{pattern}/aggregate?partial={}{part}", self.partial));
        let Some(totals) = self.client.call::<Totals>(&call)? else { return Ok(()) };
        let screen = Screen::stdout();
        match (self.parts, screen.is_terminal) {
            (false, _) if totals.groups.is_some() => {
                let groups = totals.groups.iter().flatten().map(|group| (&group.dims, group.sum));
                print_groups(&screen, groups, totals.partial && totals.missing.is_empty())?;
            }
            (true, _) => terminal::print(parts(&screen, &totals))?,
            (false, true) => terminal::print(table(&screen, &totals))?,
            (false, false) => terminal::print(totals.sum)?,
        }
        for Missing { partition, detail } in &totals.missing {
            print_note(&format!("partition {partition} is not in it: {detail}"));
        }
        Ok(())
    }
}

fn table(screen: &Screen, totals: &Totals) -> String {
    let or_dash = |value: Option<i64>| value.map_or("-".to_owned(), |value| screen.number(value));
    let row = vec![
        screen.number(totals.sum),
        screen.number(totals.count),
        or_dash(totals.min),
        or_dash(totals.max),
    ];
    screen.table(&["SUM ", "COUNT ", "MIN ", "MAX "], [row])
}

fn parts(screen: &Screen, totals: &Totals) -> String {
    let row = |part: &Part| {
        let node = part.node.map_or("-".to_owned(), |node| node.to_string());
        vec![part.partition.to_string(), node, screen.number(part.sum), screen.number(part.count)]
    };
    let rows = totals.parts.iter().map(row);
    match screen.is_terminal {
        true => screen.table(&["PARTITION ", "NODE ", "SUM ", "COUNT "], rows),
        false => rows.map(|row| row.join("\t")).collect::<Vec<_>>().join("\n"),
    }
}
