//! backend: where the counters lie, how far behind the archive is, and what was lost and brought back.

use serde::Deserialize;

use super::client::{Call, Client};
use super::failure::Failure;
use super::terminal;

/// backend
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    client: Client,
}

/// What a server answers.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Backend {
    epoch: String,
    problem: Option<String>,
    warning: Option<String>,
    masters: Vec<Master>,
    archive: Option<Archive>,
}

#[derive(Debug, Deserialize)]
struct Master {
    address: String,
    groups: usize,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Archive {
    up: bool,
    lag_ms: u64,
    stream_entries: u64,
    flushed_events: u64,
    #[serde(default)]
    unseeded_groups: u64,
    problem: Option<String>,
    recoveries: Vec<Recovery>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Recovery {
    epoch_after: String,
    detected_at: String,
    groups_lost: i32,
    counters: i64,
    request_ids: i64,
    replayed: i64,
    gap: Option<Gap>,
    watermark: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Gap {
    from: String,
    to: String,
    length_ms: u64,
}

impl Args {
    /// Prints it, a fact a line.
    pub fn run(&self) -> Result<(), Failure> {
        let call = Call::get("backend".to_owned());
        let Some(backend) = self.client.call::<Backend>(&call)? else { return Ok(()) };
        terminal::print(backend.lines().join("\n"))
    }
}

impl Backend {
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            format!("state     {}", self.problem.as_deref().unwrap_or("everything can be counted")),
            format!("epoch     {}", self.epoch),
        ];
        lines.extend(self.warning.iter().map(|warning| format!("warning   {warning}")));
        lines.extend(
            self.masters
                .iter()
                .map(|Master { address, groups }| format!("master    {address}, {groups} of 64 groups")),
        );
        let Some(archive) = &self.archive else {
            lines.push("archive   none".to_owned());
            return lines;
        };
        lines.push(format!(
            "archive   {}, {} behind, {} entries wait, {} changes flushed by this node",
            if archive.up { "up" } else { "cannot be written to" },
            terminal::duration(archive.lag_ms),
            archive.stream_entries,
            archive.flushed_events
        ));
        lines.extend(archive.problem.iter().map(|problem| format!("waiting   {problem}")));
        if archive.unseeded_groups > 0 {
            lines.push(format!(
                "unseeded  the archive has not got everything of {} of 64 groups yet: they could not be rebuilt from it",
                archive.unseeded_groups
            ));
        }
        lines.extend(archive.recoveries.iter().flat_map(Recovery::lines));
        lines
    }
}

impl Recovery {
    fn lines(&self) -> [String; 2] {
        let Recovery { detected_at, groups_lost, counters, request_ids, replayed, epoch_after, .. } = self;
        let rebuilt = format!(
            "rebuilt   {detected_at}: {groups_lost} groups were lost; {counters} counters and {request_ids} request ids came \
             back, {replayed} changes from the streams; epoch {epoch_after}"
        );
        let gap = match &self.gap {
            Some(Gap { from, to, length_ms }) => format!(
                "gap       {from} to {to} ({}): what was acknowledged then, after entry {}, is gone",
                terminal::duration(*length_ms),
                self.watermark
            ),
            None => "gap       none: nothing that was acknowledged is missing".to_owned(),
        };
        [rebuilt, gap]
    }
}
