//! Commands about counters of uniques: observe, merge.

use std::ffi::OsString;
use std::io::BufRead;
use std::os::unix::ffi::OsStrExt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quipu_wire::json::unique::ITEMS_MAX;
use serde::Deserialize;
use serde_json::{Value, json};

use super::client::Client;
use super::counters::{Target, key_body, key_parser};
use super::failure::Failure;
use super::terminal::{self, Screen};

/// What the items of one call may have in bytes: half of what a server takes, because some grow on their way.
const CALL_BYTES_MAX: usize = 512 << 10;

/// observe
#[derive(Debug, clap::Args)]
pub struct Observe {
    #[command(flatten)]
    target: Target,
    /// What was seen; - reads more from stdin, one a line
    #[arg(required = true, value_name = "ITEM")]
    items: Vec<OsString>,
    /// When they were seen, if not now: a time like 2026-02-23T10:00:00Z, or milliseconds since 1970; for uniques by time
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    #[command(flatten)]
    client: Client,
}

/// merge
#[derive(Debug, clap::Args)]
pub struct Merge {
    /// The counter that shall have seen all of it
    #[arg(value_name = "DEST", value_parser = key_parser())]
    key: OsString,
    /// The counters whose items it shall know
    #[arg(required = true, value_name = "SOURCE", value_parser = key_parser())]
    sources: Vec<OsString>,
    /// Request id: repeating the command under the same id tells the first outcome
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Print nothing; the exit code says how it went
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    #[command(flatten)]
    client: Client,
}

/// What the server answers.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Seen {
    changed: bool,
    estimate: i64,
    exact: bool,
    standard_error: Option<f64>,
}

impl Observe {
    /// Sends the items, many of them in several calls, and prints how many different ones there are.
    pub fn run(&self) -> Result<(), Failure> {
        let mut sending = Sending { observe: self, items: Vec::new(), bytes: 0, calls: 0, last: None };
        for item in &self.items {
            if item != "-" {
                sending.add(item.as_bytes())?;
                continue;
            }
            for line in std::io::stdin().lock().split(b'\n') {
                let line = line.map_err(|error| Failure::general(format!("cannot read stdin: {error}")))?;
                let line = line.strip_suffix(b"\r").unwrap_or(&line);
                if !line.is_empty() {
                    sending.add(line)?;
                }
            }
        }
        sending.send()?;
        match sending.last.filter(|_| !self.target.quiet) {
            Some(seen) => print(&seen),
            None => Ok(()),
        }
    }
}

/// Items on their way.
struct Sending<'a> {
    observe: &'a Observe,
    items: Vec<Value>,
    bytes: usize,
    calls: usize,
    last: Option<Seen>,
}

impl Sending<'_> {
    fn add(&mut self, item: &[u8]) -> Result<(), Failure> {
        if self.items.len() == ITEMS_MAX || self.bytes + item.len() > CALL_BYTES_MAX {
            self.send()?;
        }
        self.bytes += item.len();
        self.items.push(match std::str::from_utf8(item) {
            Ok(text) => json!(text),
            Err(_) => json!({ "base64": STANDARD.encode(item) }),
        });
        Ok(())
    }

    /// Each call has an id of its own, so that a repeat of the command is a repeat of each.
    fn send(&mut self) -> Result<(), Failure> {
        if self.items.is_empty() {
            return Ok(());
        }
        let Observe { target, client, .. } = self.observe;
        let id = match (&target.id, self.calls) {
            (Some(id), 0) => Some(id.clone()),
            (Some(id), calls) => Some(format!("{id}-{calls}")),
            (None, _) => None,
        };
        let mut body = json!({ "items": std::mem::take(&mut self.items) });
        if let Some(at) = &self.observe.at {
            body["at"] = json!(at);
        }
        let call = target.call("POST", "/observe", Some(body));
        let seen = client.call(&super::client::Call { id: id.as_deref(), ..call })?;
        (self.last, self.bytes) = (seen, 0);
        self.calls += 1;
        Ok(())
    }
}

impl Merge {
    /// Merges, and prints how many different items there are.
    pub fn run(&self) -> Result<(), Failure> {
        let sources: Vec<Value> = self.sources.iter().map(|key| key_body(key.as_bytes())).collect();
        let target = Target { key: self.key.clone(), id: self.id.clone(), quiet: self.quiet };
        let call = target.call("POST", "/merge", Some(json!({ "sources": sources })));
        match self.client.call::<Seen>(&call)?.filter(|_| !self.quiet) {
            Some(seen) => print(&seen),
            None => Ok(()),
        }
    }
}

/// The number alone for a program; for a person also how sure it is.
fn print(seen: &Seen) -> Result<(), Failure> {
    let screen = Screen::stdout();
    let number = screen.number(seen.estimate);
    if !screen.is_terminal {
        return terminal::print(number);
    }
    let sure = match seen.standard_error {
        Some(error) if !seen.exact => format!("an estimate, ± {:.2} %", error * 100.0),
        _ => "exact".to_owned(),
    };
    let news = if seen.changed { "some were new" } else { "none was new" };
    terminal::print(format!("{number}  {}", screen.dim(&format!("({sure}; {news})"))))
}
