//! audit: who changed a counter, when and why.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use serde::Deserialize;

use super::client::{Call, Client, encode};
use super::counters::key_parser;
use super::failure::Failure;
use super::terminal::{self, Screen, print_note};

/// audit
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The counter
    #[arg(value_parser = key_parser())]
    key: OsString,
    /// From this time on: RFC 3339, or milliseconds since 1970
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Up to this time
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// The most changes to show
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Go on where an earlier page ended: the cursor that --json shows
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
    #[command(flatten)]
    client: Client,
}

#[derive(Debug, Deserialize)]
struct Audit {
    changes: Vec<Change>,
    cursor: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Change {
    at: String,
    action: String,
    applied: Option<i64>,
    held: Option<i64>,
    value: i64,
    version: u64,
    request_id: Option<String>,
    reason: Option<String>,
    by: Option<Origin>,
}

#[derive(Debug, Deserialize)]
struct Origin {
    name: Option<String>,
    address: String,
}

impl Change {
    /// The name, or where there is none the address, and both where there are both.
    fn by(&self) -> String {
        match &self.by {
            None => String::new(),
            Some(Origin { name: None, address }) => address.clone(),
            Some(Origin { name: Some(name), address }) => format!("{name} ({address})"),
        }
    }

    fn fields(&self, number: impl Fn(i64) -> String) -> Vec<String> {
        let text = |text: &str| terminal::key(text.as_bytes());
        let signed = |by: i64| if by > 0 { format!("+{}", number(by)) } else { number(by) };
        let applied = match (self.applied, self.held) {
            (applied, Some(held)) => {
                format!("{} held {}", applied.map_or_else(String::new, signed), signed(held))
            }
            (Some(applied), None) => signed(applied),
            (None, None) => String::new(),
        };
        vec![
            self.at.clone(),
            self.action.clone(),
            applied,
            number(self.value),
            self.version.to_string(),
            text(&self.by()),
            text(self.reason.as_deref().unwrap_or_default()),
            text(self.request_id.as_deref().unwrap_or_default()),
        ]
    }
}

impl Args {
    /// Prints the changes, the newest first.
    pub fn run(&self) -> Result<(), Failure> {
        let mut path = format!("counters/{}/audit?limit={}", encode(self.key.as_bytes()), self.limit);
        for (name, value) in [("from", &self.from), ("to", &self.to), ("cursor", &self.cursor)] {
            if let Some(value) = value {
                path.push_str(&format!("&{name}={}", encode(value.as_bytes())));
            }
        }
        let Some(Audit { changes, cursor }) = self.client.call(&Call::get(path))? else { return Ok(()) };
        let screen = Screen::stdout();
        if screen.is_terminal && !changes.is_empty() {
            let columns = ["TIME", "ACTION", "APPLIED ", "VALUE ", "VERSION ", "BY", "REASON", "REQUEST ID"];
            let row = |change: &Change| change.fields(|number| screen.number(number));
            terminal::print(screen.table(&columns, changes.iter().map(row)))?;
        } else if !changes.is_empty() {
            let line = |change: &Change| change.fields(|number| number.to_string()).join("\t");
            terminal::print(changes.iter().map(line).collect::<Vec<_>>().join("\n"))?;
        }
        if let Some(cursor) = cursor {
            print_note(&format!("there are older changes: --cursor {cursor}"));
        }
        Ok(())
    }
}
